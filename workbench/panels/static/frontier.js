// The energy-time frontier: points, a choice that steps along it, a bound, eta, what is saved, a table, the traces behind a point.
import { element, livePanel, readTheme } from "./base.js";
import { FrontierPlot, prefixed } from "./frontier_plot.js";
import { FrontierTable } from "./frontier_table.js";

const HIGHEST_BOUND = 100; // per cent, above which the slider says any
const J_PER_KWH = 3.6e6;
const HOURS = [[1e-2, 1, "kWh"], [1e-5, 1e3, "Wh"], [0, 1e6, "mWh"]]; // from how many kWh on, by what, and the unit
const REST_MS = 350; // that a choice rests before its traces are asked for
const PNG_SCALE = 2;

const digits = (value, count = 3) => {
  if (!value || !Number.isFinite(value)) return String(value || 0);
  return value.toFixed(Math.min(12, Math.max(0, count - 1 - Math.floor(Math.log10(Math.abs(value)))))).replace("-", "\u2212");
};
const hours = (kwh) => HOURS.find(([least]) => kwh >= least).slice(1);
const signed = (value) => `${value < 0 ? "\u2212" : "+"}${Math.abs(value).toFixed(1)} %`;
const duration = (seconds) => {
  if (seconds < 120) return seconds < 0.1 ? `${digits(1000 * seconds)} ms` : `${digits(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  return minutes < 100 ? `${minutes} min ${Math.floor(seconds % 60)} s` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
};
const amount = (value, unit) => {
  const [scale, words] = prefixed(Math.abs(value), unit);
  return `${digits(value / scale, 4)} ${words}`;
};

/** A value with its error, to two digits of that. */
const withError = (value, error, unit) => {
  const [scale, words] = prefixed(Math.abs(value), unit);
  const decimals = Math.min(6, Math.max(0, 1 - Math.floor(Math.log10(error / scale))));
  return `${(value / scale).toFixed(decimals)} ± ${(error / scale).toFixed(decimals)} ${words}`;
};

/** The points as they were sent, and words about each. */
class Points {
  constructor(view, buffer, ranks) {
    const all = new Float32Array(buffer.buffer.slice(buffer.byteOffset, buffer.byteOffset + buffer.byteLength));
    const column = (name) => {
      const number = view.columns.indexOf(name);
      return all.subarray(number * view.count, (number + 1) * view.count);
    };
    Object.assign(this, view, { time: column("time"), energy: column("energy"), timeSd: column("time_sd"), energySd: column("energy_sd"), chance: column("chance"),
      limit: column("limit"), sm: column("sm"), mem: column("mem"), batch: column("batch"), gpu: column("gpu"), measured: column("measured"),
      repeats: column("repeats"), traces: column("traces"), step: column("step"), optima: new Uint32Array(ranks.buffer.slice(ranks.byteOffset, ranks.byteOffset + ranks.byteLength)) });
    this.each = `${/^[aeiou]/.test(view.unit) ? "an" : "a"} ${view.unit}`;
    this.place = new Int32Array(view.count).fill(-1);
    view.front.forEach((row, place) => (this.place[row] = place));
  }
  words(row) {
    const parts = [];
    if (!Number.isNaN(this.limit[row])) parts.push(`${Number(this.limit[row].toPrecision(6))} W`);
    if (!Number.isNaN(this.sm[row])) parts.push(`SM ${this.sm[row]} MHz`);
    if (!Number.isNaN(this.mem[row])) parts.push(`memory ${this.mem[row]} MHz`);
    if (!parts.length) parts.push("the driver's own setting");
    if (!Number.isNaN(this.batch[row])) parts.push(`batch size ${this.batch[row]}`);
    if (this.gpus.length > 1 && !Number.isNaN(this.gpu[row])) parts.push(this.gpus[this.gpu[row]]);
    return parts.join(", ");
  }
  timeWords(row) {
    return this.timeSd[row] > 0 && this.time[row] < 1e4 ? withError(this.time[row], 1.96 * this.timeSd[row], "s") : duration(this.time[row]);
  }
  energyWords(row) {
    return this.energySd[row] > 0 ? withError(this.energy[row], 1.96 * this.energySd[row], "J") : amount(this.energy[row], "J");
  }
  kindWords(row) {
    if (!this.measured[row]) return "predicted, not measured";
    return this.repeats[row] > 1 ? `mean of ${this.repeats[row]} measurements` : "measured";
  }
  relative(row, column) {
    return 100 * (this[column][row] / this[column][this.reference] - 1);
  }
  /** How many of the frontier, the fastest first, are within a slowdown in per cent; the kernel sent the least bound that allows each. */
  allowed(slowdown) {
    return slowdown === null ? this.front.length : this.bounds.filter((least) => least <= slowdown).length;
  }
  /** The row of least cost within a slowdown, as the kernel ranked the places for each eta of the slider. */
  optimum(eta, slowdown) {
    const rank = Math.round(eta * (this.etas - 1));
    return this.front[this.optima[rank * this.front.length + this.allowed(slowdown) - 1]];
  }
}

function frontier({ root, post }) {
  const title = element("span", "workbench-title");
  const badge = element("span", "workbench-badge", "simulated");
  const waits = element("span", "workbench-faint workbench-waits");
  const headline = element("div", "workbench-headline");
  headline.setAttribute("aria-live", "polite");
  const details = element("div", "workbench-details");
  const note = element("div", "workbench-note");
  note.setAttribute("role", "status");
  const place = element("div", "workbench-plots workbench-frontier-plot");
  Object.assign(place, { tabIndex: 0 });
  place.setAttribute("role", "application");
  place.setAttribute("aria-label", "energy against time; arrow keys step along the frontier");
  const savings = element("table", "workbench-savings");
  const counts = element("div", "workbench-faint");
  const slider = (name, label, from, to, more) => {
    const input = Object.assign(element("input", `workbench-limit ${name}`), { type: "range", ...more });
    input.setAttribute("aria-label", label);
    const words = element("span", "workbench-faint workbench-slider-words");
    const row = element("label", "workbench-control workbench-slider", element("span", "workbench-slider-from", from), input, element("span", "workbench-slider-to", to), words);
    return { input, words, row };
  };
  const step = slider("workbench-step-slider", "step along the frontier, from fastest to least energy", "faster", "less energy", { min: 0, max: 0, step: 1 });
  const bound = slider("workbench-bound", "allowed slowdown against the default in per cent", "slower by at most", "", { min: 0, max: HIGHEST_BOUND, step: 0.5 });
  const eta = slider("workbench-eta", "eta: 0 counts time only, 1 energy only", "eta: time", "energy", { min: 0, max: 1, step: 0.01 });
  const button = (name, words, hint, action) => {
    const made = Object.assign(element("button", `workbench-button workbench-do-${name}`, words), { title: hint });
    made.addEventListener("click", action);
    return made;
  };
  const toggle = (name, words, hint, action) => {
    const made = Object.assign(element("button", `workbench-chip workbench-toggle-${name}`, words), { title: hint });
    made.addEventListener("click", action);
    return made;
  };
  const back = button("back", "\u2039", "one step faster (left arrow)", () => walk(-1));
  const on = button("on", "\u203a", "one step to less energy (right arrow)", () => walk(1));
  back.setAttribute("aria-label", "one step faster");
  on.setAttribute("aria-label", "one step to less energy");
  step.row.append(back, on);
  const knee = toggle("knee", "knee", "where the frontier bends most", () => take({ row: model.knee, rule: "hand" }));
  const optimum = toggle("optimum", "best for eta", "where eta's cost is least within the bound (diamond)", () => take({ rule: "eta" }));
  const least = toggle("least", "least energy", "least energy within the bound", () => take({ rule: "slowdown" }));
  const relative = toggle("relative", "relative", "axes in per cent of the default", () => {
    isRelative = !isRelative;
    post({ kind: "axes", relative: isRelative });
    redraw();
  });
  const whole = toggle("whole", "all points", "show all points, not only the surroundings of the frontier", () => fit(!isWhole));
  const every = toggle("every", "all in the table", "list all configurations, not only those of the frontier", () => {
    listsAll = !listsAll;
    list();
  });
  const predicted = toggle("predicted", "predictions", "take predictions in", () => post({ kind: "select", predicted: !about.filters.predicted }));
  const selects = Object.fromEntries([["job", "job"], ["gpu", "GPU"], ["batch_size", "batch size"]].map(([name, words]) => {
    const made = element("select", "workbench-select");
    made.setAttribute("aria-label", words);
    made.addEventListener("change", () => {
      const value = made.value === "all" ? "all" : about.options[name][made.selectedIndex - (made.options[0].value === "all" ? 1 : 0)];
      post({ kind: "select", [name]: value });
    });
    const label = element("label", "workbench-control", element("span", "", words), made);
    return [name, { made, label }];
  }));
  const me = Math.random().toString(36).slice(2); // there may be several views of one panel
  const code = element("code", "workbench-code");
  code.tabIndex = 0;
  code.setAttribute("aria-label", "a line of Python that makes this choice");
  const copied = element("span", "workbench-faint");
  const copy = button("copy", "Copy", "copy the line of Python", async () => {
    try {
      await navigator.clipboard.writeText(code.textContent);
      copied.textContent = "copied";
    } catch {
      globalThis.getSelection().selectAllChildren(code);
      copied.textContent = "the browser does not let it be copied; it is selected";
    }
    setTimeout(() => (copied.textContent = ""), 3000);
  });
  const exports = ["png", "svg", "csv", "parquet"].map((what) => {
    const words = { png: "PNG", svg: "SVG", csv: "CSV", parquet: "Parquet" }[what];
    return button(what, words, what === "png" || what === "svg" ? `the picture as ${words}` : `the points as ${words}`, () => post({ kind: "export", what, view: me }));
  });
  const traceWords = element("div", "workbench-faint");
  const tracePicture = element("div", "workbench-trace");
  const traces = element("details", "workbench-traces", element("summary", "", "power trace of this configuration"), traceWords, tracePicture);
  traces.addEventListener("toggle", () => askTraces());
  const table = new FrontierTable((row) => take({ row, rule: "hand" }));
  root.append(
    element("div", "workbench-head", title, badge, waits), headline, details, note,
    element("div", "workbench-controls", ...Object.values(selects).map(({ label }) => label), predicted, element("span", "workbench-space"), relative, whole),
    place, element("div", "workbench-sliders", step.row, bound.row, eta.row), element("div", "workbench-controls", knee, optimum, least),
    savings, table.root, element("div", "workbench-controls", every, counts),
    element("div", "workbench-controls workbench-code-row", code, copy, copied),
    element("div", "workbench-controls", element("span", "workbench-faint", "save as"), ...exports), traces,
  );
  root.classList.add("workbench-frontier");
  badge.hidden = true;
  let plot = null;
  let about = null;
  let model = null;
  let choice = { row: 0, rule: "eta", eta: 0.5, slowdown: null };
  let isRelative = false;
  let isWhole = false;
  let listsAll = false;
  let asked = 0;
  let waitsFor = null; // the number of the choice that the kernel has not answered
  let unsaid = false; // a newer one than that
  let rest = null;
  let traced = null;

  // choosing: drawn at once, told to the kernel one at a time

  function take(change) {
    if (!model) return;
    choice = { ...choice, ...change };
    const allowed = model.allowed(choice.slowdown);
    choice.best = model.optimum(choice.eta, choice.slowdown);
    if (choice.rule === "eta") choice.row = choice.best;
    else if (choice.rule === "slowdown") choice.row = model.front[allowed - 1];
    else if (model.place[choice.row] >= allowed) choice.row = model.front[allowed - 1];
    note.textContent = "";
    show();
    say();
  }
  function say() {
    if (waitsFor !== null) {
      unsaid = true;
      return;
    }
    asked += 1;
    waitsFor = asked;
    unsaid = false;
    post({ kind: "choose", ...choice, version: model.version, asked });
  }
  function walk(by) {
    if (!model) return;
    const last = model.allowed(choice.slowdown) - 1;
    take({ row: model.front[Math.max(0, Math.min(last, model.step[choice.row] + by))], rule: "hand" });
  }
  step.input.addEventListener("input", () => take({ row: model.front[Number(step.input.value)], rule: "hand" }));
  eta.input.addEventListener("input", () => take({ eta: Number(eta.input.value), rule: "eta" }));
  bound.input.addEventListener("input", () => {
    const any = Number(bound.input.value) >= Number(bound.input.max);
    take({ slowdown: any ? null : Number(bound.input.value), rule: choice.rule === "eta" ? "eta" : "slowdown" });
  });
  place.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, PageDown: 10, PageUp: -10, Home: -Infinity, End: Infinity }[event.key];
    if (by === undefined) return;
    event.preventDefault();
    walk(by);
  });

  // showing

  function show() {
    const { row, best } = choice;
    plot.move({ row, best, eta: choice.eta, slowdown: choice.slowdown });
    const bounded = choice.slowdown === null ? "" : ` at most ${Number(choice.slowdown.toPrecision(3))} % slower`;
    const at = model.place[row];
    const how = choice.rule === "eta" ? `least cost at eta ${Number(choice.eta.toFixed(2))}${bounded}`
      : choice.rule === "slowdown" ? `least energy${bounded}` : at < 0 ? "chosen by hand, not on the frontier" : `step ${at + 1} of ${model.front.length}, chosen by hand`;
    headline.textContent = `${model.words(row)}${model.measured[row] ? "" : " (predicted)"}: ${how}`;
    const against = model.reference === null ? model.why : row === model.reference ? `it is the default (${model.why})`
      : `time ${signed(model.relative(row, "time"))}, energy ${signed(model.relative(row, "energy"))} against the default (${model.words(model.reference)})`;
    const chance = model.chance[row];
    const sure = chance >= 0.95 ? "surely" : chance >= 0.5 ? "probably" : chance > 0.05 ? "possibly" : "not";
    details.textContent = `${model.timeWords(row)} and ${model.energyWords(row)} ${model.each}; ${against}; ${sure} on the frontier` +
      `${chance > 0.005 && chance < 0.995 ? ` (${Math.round(100 * chance)} % likely)` : ""}`;
    showSavings(row);
    const allowed = model.allowed(choice.slowdown);
    step.input.max = allowed - 1;
    step.input.value = model.step[row];
    step.input.disabled = allowed < 2;
    step.input.setAttribute("aria-valuetext", headline.textContent);
    step.words.textContent = at < 0 ? "beside the frontier" : `${at + 1} of ${model.front.length}${allowed < model.front.length ? `, ${allowed} allowed` : ""}`;
    [back.disabled, on.disabled] = [model.step[row] <= 0, model.step[row] >= allowed - 1];
    eta.input.value = choice.eta;
    eta.words.textContent = String(Number(choice.eta.toFixed(2)));
    bound.input.value = choice.slowdown ?? bound.input.max;
    bound.words.textContent = choice.slowdown === null ? "any" : `${Number(choice.slowdown.toPrecision(3))} %`;
    bound.input.setAttribute("aria-valuetext", bound.words.textContent);
    for (const [chip, pressed] of [[knee, row === model.knee], [optimum, row === best], [least, row === model.front[allowed - 1]]]) {
      chip.setAttribute("aria-pressed", String(pressed));
    }
    table.select(row);
    clearTimeout(rest);
    rest = setTimeout(askTraces, REST_MS);
    root.workbench = { plot, model, choice, table, about, heard: () => waitsFor === null };
  }
  function showSavings(row) {
    if (model.reference === null) {
      savings.replaceChildren();
      return;
    }
    const saved = model.energy[model.reference] - model.energy[row];
    const error = row === model.reference ? 0 : 1.96 * Math.hypot(model.energySd[model.reference], model.energySd[row]);
    const longer = model.time[row] - model.time[model.reference];
    const cells = (tag, words) => words.map((each) => element(tag, "", each));
    const heads = ["saved against the default", "energy", ...(model.price === null ? [] : ["money"]), ...(model.co2 === null ? [] : ["CO2"]), "time"];
    const names = { hour: "per hour at the default", epoch: "per epoch", job: "per job" };
    const made = Object.entries(model.factors).map(([per, factor]) => {
      const kwh = (factor * saved) / J_PER_KWH;
      const [scale, unit] = hours(Math.abs(kwh));
      const spread = error > 0 ? ` ± ${digits((scale * factor * error) / J_PER_KWH, 2)}` : "";
      return element("tr", "", ...cells("td", [
        names[per], `${digits(scale * kwh)}${spread} ${unit}`, ...(model.price === null ? [] : [`${digits(kwh * model.price)} ${model.currency}`]),
        ...(model.co2 === null ? [] : [Math.abs(kwh * model.co2) >= 1000 ? `${digits((kwh * model.co2) / 1000)} kg` : `${digits(kwh * model.co2)} g`]),
        longer === 0 ? "the same" : `${duration(Math.abs(factor * longer))} ${longer > 0 ? "more" : "less"}`,
      ]));
    });
    savings.replaceChildren(element("tr", "", ...cells("th", heads)), ...made);
  }
  function list() {
    every.setAttribute("aria-pressed", String(listsAll));
    const number = (name) => [(row) => model[name][row], (row) => (Number.isNaN(model[name][row]) ? "" : String(Number(model[name][row].toPrecision(6))))];
    const used = (name) => model[name].some((value) => !Number.isNaN(value));
    const share = (name) => [(row) => model.relative(row, name), (row) => signed(model.relative(row, name))];
    const knobs = [["limit", "limit (W)", "power limit in watts"], ["sm", "SM (MHz)", "SM clock"], ["mem", "memory (MHz)", "memory clock"], ["batch", "batch", "batch size"]];
    const columns = [
      ["time", `time ${model.each}`, (row) => model.time[row], (row) => duration(model.time[row])],
      ["energy", `energy ${model.each}`, (row) => model.energy[row], (row) => amount(model.energy[row], "J")],
      ...(model.reference === null ? [] : [["time vs. default", "time in per cent of the default's", ...share("time")], ["energy vs. default", "energy in per cent of the default's", ...share("energy")]]),
      ...knobs.filter(([name]) => used(name)).map(([name, words, hint]) => [words, hint, ...number(name)]),
      ...(model.gpus.length > 1 ? [["GPU", "its name", (row) => model.gpus[model.gpu[row]] ?? null, (row) => model.gpus[model.gpu[row]] ?? ""]] : []),
      ["frontier", "probability of lying on the frontier", (row) => model.chance[row], (row) => `${Math.round(100 * model.chance[row])} %`],
      ["repeats", "measurements that are pooled; none: predicted", (row) => (model.measured[row] ? model.repeats[row] : 0),
        (row) => (model.measured[row] ? String(model.repeats[row]) : "predicted")],
    ];
    table.chosen = choice.row;
    table.show(columns, listsAll ? [...Array(model.count).keys()] : model.front);
  }
  function fit(all) {
    isWhole = all;
    redraw();
  }
  function redraw() {
    if (!model) return;
    relative.disabled = model.reference === null;
    relative.setAttribute("aria-pressed", String(isRelative && model.reference !== null));
    whole.setAttribute("aria-pressed", String(isWhole));
    plot.draw(model, isRelative, isWhole);
    show();
  }
  function askTraces() {
    if (!traces.open || !model || traced === `${model.version}/${choice.row}`) return;
    traced = `${model.version}/${choice.row}`;
    traceWords.textContent = "looking";
    post({ kind: "traces", row: choice.row, version: model.version });
  }
  function take_points(message, buffers) {
    about = message;
    title.textContent = message.title.replace(/ ?\(simulated\)/g, "");
    badge.hidden = !message.simulated;
    counts.textContent = message.said;
    note.textContent = message.note;
    code.textContent = message.python;
    predicted.hidden = !message.hollow;
    predicted.setAttribute("aria-pressed", String(message.filters.predicted));
    for (const [name, { made, label }] of Object.entries(selects)) {
      const values = message.options[name];
      label.hidden = values.length < 2;
      const all = name === "job" ? [] : [["all", "all"]];
      made.replaceChildren(...[...all, ...values.map((value) => [String(value), String(value)])].map(([value, words]) => Object.assign(element("option", "", words), { value })));
      made.value = String(message.filters[name] ?? "all");
    }
    const drawn = message.view !== null;
    for (const part of [place, table.root, savings, code.parentElement, traces, step.row, bound.row, eta.row, knee, optimum, least, every, whole, relative, ...exports]) {
      part.hidden = !drawn;
    }
    if (!drawn) {
      headline.textContent = message.said;
      counts.textContent = "";
      return;
    }
    model = new Points(message.view, ...buffers);
    const slowest = 100 * (model.time[model.front.at(-1)] / model.referenceTime - 1);
    bound.input.step = slowest < 10 ? 0.1 : 0.5;
    bound.input.max = Math.min(HIGHEST_BOUND, Math.max(1, Math.ceil(1.05 * slowest), Math.ceil(message.slowdown ?? 0) + 1));
    isRelative = message.relative;
    waitsFor = null; // what was asked before is answered by this
    adopt(message);
    list();
    redraw();
  }
  function adopt(message) {
    choice = { row: message.row, rule: message.rule, eta: message.eta, slowdown: message.slowdown, best: message.best };
  }
  function save(name, data, type) {
    const url = URL.createObjectURL(new Blob([data], { type }));
    Object.assign(document.createElement("a"), { href: url, download: name }).click();
    setTimeout(() => URL.revokeObjectURL(url), 10_000);
  }
  async function savePng(name, data) {
    const colours = readTheme(about.theme);
    const text = new TextDecoder().decode(data).replace("<svg ", `<svg color="${colours.text}" `);
    const url = URL.createObjectURL(new Blob([text], { type: "image/svg+xml" }));
    const image = new Image();
    await new Promise((resolve, reject) => Object.assign(image, { onload: resolve, onerror: () => reject(new Error("the picture could not be drawn as PNG")), src: url }));
    const canvas = Object.assign(document.createElement("canvas"), { width: PNG_SCALE * image.width, height: PNG_SCALE * image.height });
    const context = canvas.getContext("2d");
    context.fillStyle = colours.background;
    context.fillRect(0, 0, canvas.width, canvas.height);
    context.drawImage(image, 0, 0, canvas.width, canvas.height);
    URL.revokeObjectURL(url);
    save(name, await new Promise((resolve) => canvas.toBlob(resolve, "image/png")), "image/png");
  }
  let queuedNow = false;
  return {
    greeting(message, buffers, Bokeh) {
      if (plot === null) {
        plot = new FrontierPlot(Bokeh, place, readTheme(message.theme), message.inks, (row) => take({ row, rule: "hand" }));
        plot.onFit = fit;
      }
      traced = null;
      take_points(message, buffers);
    },
    message(message, buffers) {
      if (message.kind === "points") {
        take_points({ ...message, theme: about.theme }, buffers);
      } else if (message.kind === "choice") {
        if (message.asked === waitsFor || message.asked === undefined) waitsFor = null;
        if (message.asked !== undefined && (waitsFor !== null || unsaid)) {
          if (unsaid && waitsFor === null) say(); // it has moved on meanwhile
          return;
        }
        if (!model || message.version !== model.version) return;
        const moved = message.row !== choice.row || message.rule !== choice.rule || message.eta !== choice.eta || message.slowdown !== choice.slowdown;
        adopt(message);
        code.textContent = message.python;
        note.textContent = message.note;
        if (moved) show();
      } else if (message.kind === "traces") {
        tracePicture.innerHTML = message.svg;
        traceWords.textContent = message.said;
      } else if (message.kind === "axes") {
        if (message.relative === isRelative) return;
        isRelative = message.relative;
        redraw();
      } else if (message.kind === "file") {
        if (message.view && message.view !== me) return;
        const data = buffers[0];
        if (message.what === "png") savePng(message.name, data).catch((error) => (note.textContent = error.message));
        else save(message.name, data, { svg: "image/svg+xml", csv: "text/csv" }[message.what] ?? "application/octet-stream");
      }
    },
    recolour() {
      plot?.recolour(readTheme(about.theme));
    },
    state({ queued, greeted, gone }) {
      if (gone) for (const part of [code.parentElement, traces, ...exports.map((each) => each.parentElement)]) part.hidden = true; // the kernel's work
      if (queued !== queuedNow) root.classList.toggle("workbench-frontier-queued", queued);
      queuedNow = queued;
      waits.textContent = !greeted ? "loading" : queued ? "the kernel hears of it when the cell ends" : "";
    },
    dispose() {
      clearTimeout(rest);
      plot?.dispose();
    },
  };
}

export default { render: livePanel(frontier) };
