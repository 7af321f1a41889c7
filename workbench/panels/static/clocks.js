// @ts-check
// A tuner at work: time against energy, the clocks or power limits, the probes in order, what can be asked of it.
/** @import { ClocksDrawing, ClocksGreeting, ClocksNews, ClocksWords } from "./messages" */
import { Asking, button, chip, choose, element, folded, labelled, lines, offer, picker, put, refill, row, say, slowdownSlider, space } from "./controls.js";
import { floats, minutes, numbers, rowsOf, settingWords } from "./formats.js";
import { livePanel } from "./live.js";
import { AT, BESIDE, Figure, TEXT, addBound, addErrors, beside, column, columns, fill, fit } from "./plots.js";

const ANY = 0.5; // per cent above the slider's highest bound: any slowdown is allowed
const HIGHEST_BOUND = 30;
const CHIPS = { clocks: "clocks", sm: "SM clock", limit: "power limit" };
const COMMANDS = [
  ["start", "Start tuning", "begin, or go on after a pause"], ["stop", "End tuning", "restore the GPU's setting and tune no more; the cell goes on"],
  ["pause", "Pause", "try no further setting for now"], ["hold", "Hold here", "search no further and keep the best setting so far"],
  ["step", "One probe", "try one more setting, then pause"],
];
const LEVELS = 6; // of the ground of the plane of clocks
const KNOBS = { clocks: "SM clock (MHz)", sm: "SM clock (MHz)", limit: "power limit (W)" };
const COLUMNS = 8; // of the table of what is believed
const SHAPE = { ticks: [6, 6], plot: { height: 270 } };
const SIDES = columns("left", "right", "top", "bottom");
const AXIS = { line_alpha: 0.45, line_color: TEXT };
const RING = { ...AT, size: 23, fill_color: null, line_dash: [2, 2], line_color: TEXT };
const NUMBER = { ...BESIDE, text: column("number"), text_font_size: "10px", text_baseline: "middle", y_offset: column("dy") };
const NAME = { ...BESIDE, text_font_style: "bold", text_baseline: "top" };

const stop = (colour) => ({ ...AT, size: 9, fill_color: colour, fill_alpha: column("fill"), line_color: colour, line_width: 1.6 });
const choice = (colour) => ({ ...AT, size: 16, fill_color: null, line_color: colour, line_width: 2.6 });

/** Probes on a plane: at points, filled where they were counted in, with their numbers beside them. */
function placed(probes, plane, x, y) {
  return probes.map((probe) => {
    const across = probe[`${plane} across`];
    const align = across < 0 ? "right" : across > 0 ? "left" : "center";
    return { ...probe, x: x(probe), y: y(probe), fill: probe.whole ? 1 : 0, number: String(probe.n), dx: across, dy: -probe[`${plane} up`], align };
  });
}

/** A point as rows, with its words where there is room; none where it is not known. */
function spot(mark, x, y, [start, end] = [0, 1]) {
  const known = mark && (x ?? null) !== null && (y ?? null) !== null;
  // Nothing lies below and left of the best; only at the edge there is no room.
  return known ? [{ x, y, text: mark.words, ...beside(x > start + 0.3 * (end - start), 9, 14) }] : [];
}

/** Energy against time: what is believed of all settings, the probes in order, the choice. */
class Trade {
  constructor(figure, inks) {
    const frame = figure.frame({ title: "Energy against the default (%)", label: "time against the default (%)", ...SHAPE });
    this.frame = frame;
    this.bound = addBound(figure, frame, inks.time);
    this.zero = figure.glyph(frame, "HSpan", { y: column("at"), ...AXIS });
    figure.glyph(frame, "VSpan", { x: column("at"), ...AXIS }, { over: this.zero });
    this.believed = figure.glyph(frame, "Scatter", { ...AT, size: 5, fill_color: inks.energy, fill_alpha: 0.28, line_color: null });
    this.errors = addErrors(figure, frame, { line_color: inks.energy });
    const square = { ...AT, marker: "square", size: 7, fill_color: null, line_width: 1.6, line_color: TEXT };
    this.again = figure.glyph(frame, "Scatter", square);
    this.usual = figure.glyph(frame, "Scatter", square);
    figure.words(frame, { text_font_size: "10px", text_align: "right", text_baseline: "top", x_offset: -7, y_offset: 4 }, { over: this.usual });
    this.tried = figure.glyph(frame, "Scatter", stop(inks.energy));
    figure.words(frame, NUMBER, { over: this.tried });
    this.now = figure.glyph(frame, "Scatter", RING);
    this.marks = figure.glyph(frame, "Scatter", choice(inks.chosen));
    figure.words(frame, { ...NAME, y_offset: 5 }, { over: this.marks });
    const change = [["time", "@x{+0.0} % ± @time_error{0.0}"], ["energy", "@y{+0.0} % ± @energy_error{0.0}"]];
    figure.hover(frame, [this.tried], [["probe", "@n: @words"], ...change, ["took", "@cost"]]);
    figure.hover(frame, [this.again], [["default", "@words"], ["took", "@cost"]]);
    figure.hover(frame, [this.believed], [["estimated", "@words"], ...change], { limit: 1 });
  }
  draw(/** @type {ClocksDrawing} */ { bound, ranges, default: usual, current, choice: chosen }, probes, table) {
    fit(this.frame, ranges.time, ranges.energy);
    fill(this.zero, [{ at: 0 }]);
    this.bound.draw(bound, `within ${bound} %`);
    const believed = [];
    for (let at = 0; at < table.length; at += COLUMNS) {
      const [limit, sm, mem, x, time_error, y, energy_error] = table.subarray(at, at + COLUMNS);
      if (x <= ranges.time[1] && y <= ranges.energy[1]) believed.push({ x, y, time_error, energy_error, words: settingWords(limit, sm, mem) });
    }
    fill(this.believed, believed);
    const known = probes.filter(({ time, energy }) => time !== null && energy !== null);
    const points = placed(known, "trade", ({ time }) => time, ({ energy }) => energy);
    this.errors(points.map((point) => ({ x: point.x, y: point.y, dx: point.time_error, dy: point.energy_error })));
    fill(this.tried, points.filter(({ n }) => n !== null));
    fill(this.again, points.filter(({ n }) => n === null));
    fill(this.usual, [{ x: usual.time, y: usual.energy, text: "default" }]);
    fill(this.now, spot(current, current?.time, current?.energy));
    fill(this.marks, spot(chosen, chosen?.time, chosen?.energy, ranges.time));
  }
}

/** Time and energy over one knob, with what is believed of them. */
class KnobLine {
  constructor(figure, inks) {
    const frame = figure.frame({ title: "Change against the default (%)", ...SHAPE });
    this.frame = frame;
    this.inks = inks;
    const strip = { x0: column("low"), x1: column("high"), fill_color: inks.time, fill_alpha: 0.09, line_color: null };
    this.spans = figure.glyph(frame, "VStrip", strip, { level: "underlay" });
    this.zero = figure.glyph(frame, "HSpan", { y: column("at"), ...AXIS });
    this.probes = {};
    for (const name of ["time", "energy"]) {
      const look = { x: column("x"), y: column(name), line_color: inks[name], line_alpha: 0.55, line_width: 1.6 };
      this.curve = figure.glyph(frame, "Line", look, { over: this.curve });
      const band = { base: column("x"), lower: column(`${name}_low`), upper: column(`${name}_high`), source: this.curve.data_source };
      frame.plot.add_layout(new figure.models.Band({ ...band, fill_color: inks[name], fill_alpha: 0.13, line_color: null }));
      if (name === "energy") figure.hoverLine(frame, this.curve, [["at", "@x"], ["time", "@time{+0.0} %"], ["energy", "@energy{+0.0} %"]]);
      this.probes[name] = figure.glyph(frame, "Scatter", { ...stop(inks[name]), size: 8 });
    }
    figure.words(frame, NUMBER, { over: this.probes.energy });
    // The corner below the default is empty: it would be less energy for nothing.
    const corner = { text_color: column("colour"), text_font_style: "bold", text_align: "right", text_baseline: "bottom" };
    this.names = figure.words(frame, { ...corner, x_offset: -6, y_offset: column("dy") });
    this.now = figure.glyph(frame, "VSpan", { ...columns("x"), line_dash: [2, 2], line_color: TEXT });
    this.at = figure.glyph(frame, "VSpan", { ...columns("x"), line_color: inks.chosen, line_width: 2 });
    figure.words(frame, { ...NAME, y_offset: 2 }, { over: this.at });
  }
  draw(/** @type {ClocksDrawing} */ { bound, lines, ranges, current, choice: chosen }, probes, knob) {
    const [line, across, change] = [lines[knob], ranges[knob], ranges[`${knob} change`]];
    fit(this.frame, across, change, { label: KNOBS[knob] });
    fill(this.zero, [{ at: 0 }]);
    fill(this.spans, bound === null ? [] : { low: line.allowed_from, high: line.allowed_to });
    const own = knob === "limit" ? "limit_w" : "sm_mhz";
    const counted = probes.filter((probe) => probe.n !== null && probe[own] !== null && probe.energy !== null);
    const curve = { x: line.x };
    for (const name of ["time", "energy"]) {
      const error = line[`${name}_error`];
      curve[name] = numbers(line[name]);
      curve[`${name}_low`] = curve[name].map((value, n) => value - (error[n] ?? 0));
      curve[`${name}_high`] = curve[name].map((value, n) => value + (error[n] ?? 0));
      fill(this.probes[name], placed(counted, knob, (probe) => probe[own], (probe) => probe[name]));
    }
    fill(this.curve, curve);
    fill(this.names, ["time", "energy"].map((text, n) => ({ x: across[1], y: change[0], text, colour: this.inks[text], dy: [-4, -19][n] })));
    const [x, now] = [chosen?.[own] ?? null, current?.[own] ?? null];
    fill(this.now, now === null ? [] : [{ x: now }]);
    const words = { y: change[1], text: `${x} ${knob === "limit" ? "W" : "MHz"}`, ...beside(x > across[0] + 0.75 * (across[1] - across[0]), 5) };
    fill(this.at, x === null ? [] : [{ x, ...words }]);
  }
}

/** The plane of SM and memory clocks. */
class ClockPlane {
  constructor(figure, inks) {
    const frame = figure.frame({ title: "Memory clock (MHz); green: less energy, framed: allowed", label: KNOBS.clocks, ...SHAPE });
    frame.grid.visible = false;
    this.frame = frame;
    this.figure = figure;
    this.inks = inks;
    this.shaded = figure.glyph(frame, "Quad", { ...SIDES, fill_color: column("colour"), fill_alpha: column("alpha"), line_color: null });
    this.framed = figure.glyph(frame, "Quad", { ...SIDES, fill_color: null, line_alpha: 0.7, line_width: 1.2, line_color: TEXT });
    this.stops = figure.glyph(frame, "Scatter", stop(inks.energy));
    figure.words(frame, NUMBER, { over: this.stops });
    this.now = figure.glyph(frame, "Scatter", RING);
    this.marks = figure.glyph(frame, "Scatter", choice(inks.chosen));
    figure.hover(frame, [this.stops], [["probe", "@n: @words"], ["time", "@time{+0.0} %"], ["energy", "@energy{+0.0} %"], ["took", "@cost"]]);
  }
  draw(/** @type {ClocksDrawing} */ { bound, mem_clocks: memories, shaded, allowed, ranges, current, choice: chosen }, probes) {
    fit(this.frame, ranges.clocks, [-0.5, memories.length - 0.5]);
    this.figure.ticks(this.frame.left, [...memories.keys()], memories.map(String));
    const quads = (cells) => rowsOf(cells).map(({ from: left, to: right, row, ...more }) => ({ left, right, top: row + 0.46, bottom: row - 0.46, ...more }));
    fill(this.shaded, quads(shaded).map(({ shade, ...sides }) => {
      const [colour, alpha] = shade < 0 ? [this.inks.time, 0.5] : [this.inks.spent, 0.2];
      return { ...sides, colour, alpha: 0.06 + alpha * (Math.abs(shade) / LEVELS) ** 1.5 };
    }));
    fill(this.framed, bound === null ? [] : quads(allowed));
    const height = (mark) => (memories.includes(mark?.mem_mhz) ? memories.indexOf(mark.mem_mhz) : null);
    const counted = probes.filter((probe) => probe.n !== null && probe.sm_mhz !== null && height(probe) !== null);
    fill(this.stops, placed(counted, "clocks", (probe) => probe.sm_mhz, height));
    fill(this.now, spot(current, current?.sm_mhz, height(current)));
    fill(this.marks, spot(chosen, chosen?.sm_mhz, height(chosen), ranges.clocks));
  }
}

/** Two plots side by side: the plane of time and energy, and that of the settings. */
class ClocksPlots {
  constructor(page, place, inks) {
    const figure = new Figure(page, place);
    this.trade = new Trade(figure, inks);
    this.line = new KnobLine(figure, inks);
    this.plane = new ClockPlane(figure, inks);
    for (const { plot } of figure.frames.slice(1)) plot.visible = false;
    figure.embed([figure.frames]);
  }
  draw(/** @type {ClocksDrawing} */ drawing, table, knob) {
    const probes = rowsOf(drawing.probes);
    this.trade.draw(drawing, probes, table);
    this.line.frame.plot.visible = knob === "sm" || knob === "limit";
    this.plane.frame.plot.visible = knob === "clocks";
    if (knob === "clocks") this.plane.draw(drawing, probes);
    else if (knob) this.line.draw(drawing, probes, knob);
  }
}

/** What a tuner says: its steps, sentences and events. */
class Words {
  constructor() {
    this.steps = element("span", "workbench-steps");
    this.headline = element("div", "workbench-headline");
    this.saved = element("div", "workbench-saved workbench-result");
    this.details = element("div", "workbench-details");
    this.events = element("div", "workbench-events workbench-faint");
  }
  show(/** @type {ClocksWords | null} */ words, /** @type {ClocksGreeting} */ about) {
    say(this.headline, words?.headline ?? about.nothing);
    say(this.saved, words?.saved ?? "");
    lines(this.details, words?.details ?? []);
    lines(this.events, (words?.events ?? []).map(([at, text]) => `${minutes(at)}  ${text}`));
    const names = words && words.step === null ? [...about.steps, words.state] : about.steps;
    const current = words ? (words.step ?? about.steps.length) : null;
    const steps = names.map((name, n) => [name, n === current ? { "aria-current": "step" } : {}]);
    refill(this.steps, steps, (step) => element("span", "workbench-step", ...step));
  }
}

/** What can be asked of a tuner. */
class Commands {
  constructor(post) {
    this.buttons = Object.fromEntries(COMMANDS.map(([kind, words, hint]) => [kind, button(`do-${kind}`, words, hint, () => post({ kind }))]));
    this.objective = picker("workbench-objective", "what is to be small", (name) => post({ kind: "objective", name }));
    this.asking = new Asking((percent, asked) => post({ kind: "slowdown", percent, asked }));
    this.slowdown = slowdownSlider("workbench-slowdown", "allowed slowdown in per cent", HIGHEST_BOUND + ANY, (percent) => this.asking.ask(percent));
    this.chips = element("span", "workbench-levels");
    const bound = labelled("slower by at most", this.slowdown.input, this.slowdown.words);
    this.search = picker("workbench-follow workbench-search", "search", (name) => post({ kind: "search", name }));
    this.search.title = "who chooses the next setting: ours, GPOEO's published search or MF-GPOEO's";
    const { start, stop, pause, hold, step } = this.buttons;
    start.classList.add("workbench-primary");
    this.first = row(start, stop, pause, hold, labelled("search", this.search), bound, space(), this.chips);
    this.more = row(step, labelled("for", this.objective));
  }
  show(/** @type {ClocksNews} */ { words, begins, wanted }, over) {
    const ended = !words || ["done", "refused"].includes(words.state);
    const can = words?.commands ?? {};
    for (const [name, each] of Object.entries(this.buttons)) put(each, { disabled: over || !(can[name] || (name === "start" && ended && begins)) });
    say(this.buttons.start, words?.paused && !ended ? "Go on" : "Start tuning");
    put(this.search, { value: wanted.search, disabled: over || !(ended && begins) });
    const { objective, slowdown, slowdown: { input } } = this;
    for (const each of [objective, input]) put(each, { disabled: over || !(can.change || (ended && begins)) });
    const [name, bound] = words && !(ended && begins) ? [words.objective, words.bound] : [wanted.objective ?? objective.options[0]?.value, wanted.bound];
    if (document.activeElement !== objective || words?.objective === objective.value) choose(objective, name, name); // it may be one of the caller's own
    if (this.asking.waiting || input.matches(":active")) return;
    if (bound !== null && bound > Number(input.max) - ANY) put(input, { max: String(2 * Math.ceil(bound) + ANY) });
    slowdown.show(bound);
  }
}

function tuner({ root, head, post, page }) {
  const words = new Words();
  const place = element("div", "workbench-plots");
  const commands = new Commands(post);
  head.waits.before(words.steps);
  const more = folded("more: objective, single probes, what happened", commands.more, words.events);
  root.append(words.saved, words.headline, words.details, commands.first, place, more);
  root.classList.add("workbench-tuner", "workbench-wide");
  let plots = /** @type {ClocksPlots | null} */ (null);
  let about = /** @type {ClocksGreeting | null} */ (null);
  let drawing = /** @type {ClocksDrawing | null} */ (null);
  let table = new Float32Array();
  let knob = null; // that a person has chosen
  let over = false;

  const shown = () => (drawing?.knobs.includes(knob) ? knob : (drawing?.knobs[0] ?? null));
  function redraw() {
    plots.draw(drawing, table, shown());
    const several = drawing.knobs.length > 1 ? drawing.knobs : [];
    commands.chips.replaceChildren(...several.map((name) => chip(CHIPS[name], name === shown(), () => {
      knob = name;
      redraw();
    })));
  }
  function take(/** @type {ClocksNews} */ message, buffers) {
    head.show(message.title, message.simulated);
    commands.asking.answered(message.asked);
    words.show(message.words, about);
    commands.show(message, over);
    put(place, { hidden: !message.drawing && !drawing, role: "group", "aria-label": `energy against time: ${message.words?.headline ?? about.nothing}` });
    if (message.drawing) {
      ({ drawing } = message);
      table = floats(buffers);
      redraw();
    }
    Object.assign(root, { workbench: { plots, words: message.words, drawing, table, knob: shown } });
  }
  return {
    greet(message) {
      about = message;
      offer(commands.objective, Object.entries(about.objectives));
      offer(commands.search, Object.entries(about.searches));
      plots ??= new ClocksPlots(page, place, message.inks);
      commands.asking.forget();
      over = message.state !== "running";
    },
    take,
    state(state) {
      over = state.greeted && !state.running;
      root.classList.toggle("workbench-queued", state.queued);
    },
  };
}

export default { render: livePanel(tuner) };
