// @ts-check
// What stands around the plane of the frontier: sliders, savings, the line of Python, files, traces, the table's columns.
/** @import { FrontierFile, FrontierTraces } from "./messages" */
import { button, element, mark, put, range, row, save } from "./controls.js";
import { amount, digits, duration, hours, mass, percent, signed } from "./formats.js";

const J_PER_KWH = 3.6e6;
const PNG_SCALE = 2;
const REST_MS = 350; // that a choice rests before its traces are asked for
const PER = { hour: "per hour at the default", epoch: "per epoch", job: "per job" };
const FILES = { png: "PNG", svg: "SVG", csv: "CSV", parquet: "Parquet" };
const TYPES = { svg: "image/svg+xml", csv: "text/csv" };
const KNOBS = [["limit", "limit (W)", "power limit in watts"], ["sm", "SM (MHz)", "SM clock"], ["mem", "memory (MHz)", "memory clock"], ["batch", "batch", "batch size"]];

/** A slider between two words, with what it says behind them. */
export class WordedSlider {
  constructor(name, label, [from, to], span, changed) {
    this.input = range(name, label, { min: 0, ...span });
    this.words = element("span", "workbench-faint workbench-slider-words");
    const ends = [element("span", "workbench-slider-from", from), element("span", "workbench-slider-to", to)];
    this.root = element("label", "workbench-control workbench-slider", ends[0], this.input, ends[1], this.words);
    this.input.addEventListener("input", () => changed(Number(this.input.value)));
  }
  show(value, words, heard) {
    this.input.value = String(value);
    put(this.words, { textContent: words });
    mark(this.input, "aria-valuetext", heard);
  }
}

/** Rows of what a choice saves against the default. */
export function savingRows(model, row) {
  if (model.reference === null) return [];
  const { view: { factors, price, currency, co2 } } = model;
  const { energy, error, longer } = model.saved(row);
  const heads = ["saved against the default", "energy", ...(price === null ? [] : ["money"]), ...(co2 === null ? [] : ["CO2"]), "time"];
  return [heads, ...Object.entries(factors).map(([per, factor]) => {
    const kwh = (factor * energy) / J_PER_KWH;
    const time = longer === 0 ? "the same" : `${duration(Math.abs(factor * longer))} ${longer > 0 ? "more" : "less"}`;
    const costs = [...(price === null ? [] : [`${digits(kwh * price)} ${currency}`]), ...(co2 === null ? [] : [mass(kwh * co2)])];
    return [PER[per], hours(kwh, (factor * error) / J_PER_KWH), ...costs, time];
  })];
}

/** Columns of the table: [heading, hint, row -> number or text, row -> words]. */
export function tableColumns(model) {
  const plain = (values) => [(at) => values[at], (at) => (Number.isNaN(values[at]) ? "" : String(Number(values[at].toPrecision(6))))];
  const share = (name) => [(at) => model.relative(at, name), (at) => signed(model.relative(at, name))];
  const gpu = (at) => model.gpus[model.gpu[at]];
  return [
    ["time", `time ${model.each}`, (at) => model.time[at], (at) => duration(model.time[at])],
    ["energy", `energy ${model.each}`, (at) => model.energy[at], (at) => amount(model.energy[at], "J")],
    ...(model.reference === null ? [] : [["time vs. default", "time in per cent of the default's", ...share("time")]]),
    ...(model.reference === null ? [] : [["energy vs. default", "energy in per cent of the default's", ...share("energy")]]),
    ...KNOBS.filter(([name]) => model[name].some((value) => !Number.isNaN(value))).map(([name, words, hint]) => [words, hint, ...plain(model[name])]),
    ...(model.gpus.length > 1 ? [["GPU", "its name", (at) => gpu(at) ?? null, (at) => gpu(at) ?? ""]] : []),
    ["frontier", "probability of lying on the frontier", (at) => model.chance[at], (at) => percent(model.chance[at])],
    ["repeats", "measurements that are pooled; none: predicted", (at) => (model.measured[at] ? model.repeats[at] : 0),
      (at) => (model.measured[at] ? String(model.repeats[at]) : "predicted")],
  ];
}

/** The line of Python that makes the choice, to be copied. */
export class CodeLine {
  constructor() {
    this.code = Object.assign(element("code", "workbench-code"), { tabIndex: 0 });
    this.code.setAttribute("aria-label", "a line of Python that makes this choice");
    this.copied = element("span", "workbench-faint");
    this.root = element("div", "workbench-controls workbench-code-row", this.code, button("do-copy", "Copy", "copy the line of Python", () => this.copy()), this.copied);
  }
  show(python) {
    put(this.code, { textContent: python });
  }
  async copy() {
    try {
      await navigator.clipboard.writeText(this.code.textContent ?? "");
      this.copied.textContent = "copied";
    } catch {
      globalThis.getSelection()?.selectAllChildren(this.code);
      this.copied.textContent = "the browser does not let it be copied; it is selected";
    }
    setTimeout(() => (this.copied.textContent = ""), 3000);
  }
}

/** An SVG as PNG. @returns {Promise<Blob>} */
async function png(svg, colours) {
  const text = new TextDecoder().decode(svg).replace("<svg ", `<svg color="${colours.text}" `);
  const src = URL.createObjectURL(new Blob([text], { type: TYPES.svg }));
  const image = new Image();
  await new Promise((resolve, reject) => Object.assign(image, { onload: resolve, onerror: () => reject(new Error("the picture could not be drawn as PNG")), src }));
  const canvas = Object.assign(document.createElement("canvas"), { width: PNG_SCALE * image.width, height: PNG_SCALE * image.height });
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  context.fillStyle = colours.background;
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(image, 0, 0, canvas.width, canvas.height);
  URL.revokeObjectURL(src);
  return new Promise((resolve) => canvas.toBlob(/** @type {BlobCallback} */ (resolve), "image/png"));
}

/** Pictures and tables to be kept as files. */
export class Files {
  constructor(post) {
    const view = Math.random().toString(36).slice(2); // there may be several views of one panel
    const hint = (what, words) => (what === "png" || what === "svg" ? `the picture as ${words}` : `the points as ${words}`);
    this.view = view;
    this.colours = () => ({});
    this.buttons = Object.entries(FILES).map(([what, words]) => button(`do-${what}`, words, hint(what, words), () => post({ kind: "export", what, view })));
    this.root = row(element("span", "workbench-faint", "save as"), ...this.buttons);
  }
  /** A file has come; it is another view's perhaps. */
  async take(/** @type {FrontierFile} */ { view, what, name }, data) {
    if (view && view !== this.view) return;
    if (what === "png") save(name, await png(data, this.colours()), "image/png");
    else save(name, /** @type {BlobPart} */ (data), TYPES[what] ?? "application/octet-stream");
  }
}

/** The power traces behind a point, asked for where somebody looks. */
export class Traces {
  constructor(post, shown) {
    this.post = post;
    this.shown = shown;
    this.words = element("div", "workbench-faint");
    this.picture = element("div", "workbench-trace");
    this.root = element("details", "workbench-traces", element("summary", "", "power trace of this configuration"), this.words, this.picture);
    this.root.addEventListener("toggle", () => this.ask());
    this.asked = "";
    this.timer = 0;
  }
  /** Ask when the choice rests. */
  rest() {
    clearTimeout(this.timer);
    this.timer = window.setTimeout(() => this.ask(), REST_MS);
  }
  ask() {
    const shown = this.shown();
    if (!this.root.open || !shown || this.asked === `${shown.version}/${shown.row}`) return;
    this.asked = `${shown.version}/${shown.row}`;
    this.words.textContent = "looking";
    this.post({ kind: "traces", ...shown });
  }
  take(/** @type {FrontierTraces} */ { svg, said }) {
    this.picture.innerHTML = svg;
    this.words.textContent = said;
  }
}
