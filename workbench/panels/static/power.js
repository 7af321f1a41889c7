// @ts-check
// The live power view: header in words, plots of power, SM clock and utilisation, a limit slider, a Stop button.
/** @import { Gpu, LimitAnswer, PowerGreeting, PowerNews, PowerPlot } from "./messages" */
import { Asking, Code, Legend, button, element, field, offer, paced, picker, press, put, row, say, space, toggle } from "./controls.js";
import { elapsed, floats, highest, joules, watts } from "./formats.js";
import { Lanes } from "./lanes.js";
import { livePanel } from "./live.js";
import { PeriodView } from "./period.js";
import { Figure, TEXT, addStrips, column, columns, fill, span } from "./plots.js";
import { COLUMNS, LIMIT, POWER, Series, Spans, axisEnd, roomFor, spansFrom } from "./series.js";

const STEP_W = 5;
const [SILENT_S, BESIDE, AROUND, FOOT, LEAST] = [3, 72, 46, 36, 180]; // no news; pixels next to a frame, around its inside, of an axis below, of the lowest
const TOOLTIPS = [["at", "@time_s{0.00} s"], ["power", "@power_w{0} W"], ["limit", "@power_limit_w{0} W"], ["SM clock", "@sm_clock_mhz{0} MHz"],
  ["utilisation", "@utilisation{0} %"]];
const BAND_TOOLTIPS = [["at", "@x{0.0} s"], ["mean power", "@mean{0} W"], ["range", "@low{0} to @high{0} W"]];

/** Power over time; SM clock and utilisation below it on demand. */
class PowerPlots {
  constructor(page, place, /** @type {Gpu[]} */ gpus, /** @type {PowerPlot[]} */ plots, zoomed) {
    this.figure = new Figure(page, place);
    this.place = place;
    this.gpus = gpus;
    this.x = this.figure.range(0, 10);
    this.x.bounds = [0, null]; // there is no time before the start
    this.held = this.drawing = false; // the stretch that a person has zoomed to
    this.x.change.connect(() => {
      if (this.drawing || this.held) return;
      this.held = true;
      zoomed();
    });
    this.y = Object.fromEntries(plots.map(({ column }) => [column, this.figure.range(0, 108)]));
    this.layers = /** @type {any[][]} */ (gpus.map(() => [])); // of each GPU, over one table
    this.bands = /** @type {any[]} */ ([]); // of each GPU: the mean of each pixel, its range, and the line where readings are few
    const isPower = ({ column }) => column === "power_w";
    this.cross = this.figure.make("Span", { dimension: "height", line_color: { theme: "faint_text" }, line_alpha: 0.6 });
    const frames = plots.map((plot) => this.frame(plot, plot === plots.filter(isPower).at(-1)));
    const power = frames.filter((_, n) => isPower(plots[n]));
    this.lower = frames.filter((_, n) => !isPower(plots[n])).map(({ plot }) => plot);
    this.unfold(false);
    this.figure.words(power[0], { x_offset: 4, y_offset: 12 }, { over: this.marks });
    this.strips = power.map((frame) => addStrips(this.figure, frame));
    this.rows = power.map(({ plot }) => plot);
    this.titles = this.rows.map(({ title }) => title.text);
    this.figure.embed(frames.map((frame) => [frame]));
  }
  /** Show or hide what is below the power. */
  unfold(open) {
    for (const plot of this.lower) put(plot, { visible: open });
  }
  /** Make one power plot higher or lower by some pixels, as far as it stays readable. */
  stretch(pixels) {
    if (this.rows.length === 1) put(this.rows[0], { height: Math.max(this.rows[0].height + pixels, LEAST) });
  }
  /** A frame as the kernel describes it, with its lines; `axis`: with the names of the seconds. */
  frame(/** @type {PowerPlot} */ { title, column: name, gpus, height, ticks }, axis) {
    const quiet = axis ? {} : { axis_label: null, major_label_text_font_size: "0px" };
    const below = { kind: "LinearAxis", major_tick_line_color: null, ...quiet };
    const frame = this.figure.frame({
      title, label: "seconds since the start", ticks: [ticks, 6], x: this.x, y: this.y[name], below,
      plot: { height: height + AROUND + (axis ? FOOT : 0), min_border_left: 58 },
    });
    const { BoxZoomTool, CrosshairTool, WheelZoomTool } = this.figure.models;
    const wheel = new WheelZoomTool({ dimensions: "width", modifiers: { shift: true } }); // the wheel alone scrolls the notebook
    frame.plot.add_tools(new BoxZoomTool({ dimensions: "width" }), wheel, new CrosshairTool({ dimensions: "height", overlay: this.cross }));
    frame.plot.toolbar.active_scroll = wheel;
    const look = { ...columns("x"), line_dash: [2, 3], line_alpha: 0.7, line_color: { theme: "faint_text" } };
    this.marks = this.figure.glyph(frame, "VSpan", look, { over: this.marks });
    for (const number of gpus) {
      const { colour: line_color, dash: line_dash } = this.gpus[number];
      const step = { mode: "after", line_dash: [6, 4], line_color: gpus.length === 1 ? TEXT : line_color };
      if (name === "power_w") this.layer(frame, number, "Step", "power_limit_w", step, "overlay");
      const line = this.layer(frame, number, "Line", name, { line_color, line_dash, line_width: name === "power_w" ? 1.6 : 1.2, line_join: "round" });
      if (name === "power_w") this.bands[number] = this.band(frame, line, { line_color, line_dash });
      if (name === "power_w" && this.gpus.length === 1) {
        this.figure.hoverLine(frame, line, TOOLTIPS);
        this.figure.hoverLine(frame, this.bands[number].mean, BAND_TOOLTIPS);
      }
    }
    return frame;
  }
  layer(frame, number, kind, name, look, level = "glyph") {
    const [over] = this.layers[number];
    const made = this.figure.glyph(frame, kind, { x: column("time_s"), y: column(name), ...look }, { over, level });
    this.layers[number].push(made);
    return made;
  }
  /** A replacement for a line of many readings: their mean and their range. */
  band(frame, line, { line_color, line_dash }) {
    const range = this.figure.glyph(frame, "VArea", { ...columns("x"), y1: column("low"), y2: column("high"), fill_color: line_color, fill_alpha: 0.3 });
    const mean = this.figure.glyph(frame, "Line", { x: column("x"), y: column("mean"), line_color, line_dash, line_width: 1.6, line_join: "round" }, { over: range });
    return { line, mean, range };
  }
  /** Draw a run from `from` to `to`; the iterations are those of one GPU, `followed`. */
  draw({ series, marks, spans, iteration: known }, first, last, /** @type {Set<number>} */ hidden, followed) {
    const [from, to] = this.held ? [this.x.start, this.x.end] : [first, last];
    this.drawing = true;
    const shown = series.map((one) => one.since(from));
    shown.forEach((data, number) => {
      fill(this.layers[number][0], data);
      const parts = this.layers[number];
      for (const part of this.rows.length > 1 ? [...parts, this.rows[number]] : parts) put(part, { visible: !hidden.has(number) });
    });
    const width = this.place.clientWidth - BESIDE;
    const iteration = spans.iteration(from, to) || known || 0;
    const banded = new Set();
    this.bands.forEach(({ line, mean, range }, number) => {
      const band = series[number].band(from, to, Math.max(width, 100), (followed ?? number) === number ? iteration : 0);
      fill(range, band ?? []);
      for (const part of [mean, range]) put(part, { visible: Boolean(band) && !hidden.has(number) });
      if (band) put(line, { visible: false });
      if (band) banded.add(this.rows[number] ?? this.rows[0]);
    });
    this.rows.forEach((plot, row) => put(plot.title, { text: this.titles[row] + (banded.has(plot) ? "; line: mean, band: lowest to highest" : "") }));
    const drawn = shown.filter((_, number) => !hidden.has(number));
    const top = 1.08 * highest(...drawn.flatMap((data) => [data.power_w, data.power_limit_w]));
    span(this.y.power_w, [0, top]);
    span(this.y.sm_clock_mhz, [0, 1.12 * highest(...drawn.map((data) => data.sm_clock_mhz))]);
    span(this.x, [from, to]);
    this.drawing = false;
    this.strips.forEach((strips, row) => {
      // Where each GPU has a row of its own, only one of them has iterations.
      const theirs = this.rows.length === 1 || row === followed;
      strips.draw(theirs ? spans.strips(from, to, width) : { turns: [], pauses: [] });
    });
    const seen = marks.filter(([time]) => time >= from && time <= to).sort((a, b) => a[0] - b[0]);
    const wide = Math.max(width, 100);
    const text = roomFor(seen.map(([, words]) => words), seen.map(([time]) => ((time - from) / (to - from)) * wide), wide);
    fill(this.marks, seen.map(([x], n) => ({ x, y: top, text: text[n] })));
  }
}

/** The slider that asks for power limits; a drag skips what it passed while a request is under way. */
class LimitControl {
  constructor(post) {
    this.asking = new Asking((watts) => post({ kind: "limit", uuids: this.targets().map(({ uuid }) => uuid), watts }));
    this.asked = null;
    this.chosen = picker("", "GPUs whose power limit is set", () => {
      this.asked = null;
      this.fit();
    });
    const ask = () => {
      this.asked = Number(this.slider.value);
      this.asking.ask(this.asked);
      this.tell();
    };
    this.slider = field("workbench-limit", "Power limit in watts", { type: "range", step: STEP_W, oninput: ask });
    this.words = element("span", "workbench-limit-words");
    this.low = element("span", "workbench-faint");
    this.high = element("span", "workbench-faint");
    this.root = element("div", "workbench-control", element("span", "", "Power limit"), this.chosen, this.low, this.slider, this.high, this.words);
  }
  greeting(/** @type {Gpu[]} */ gpus) {
    this.gpus = gpus;
    const each = gpus.map((gpu, number) => [String(number), `GPU ${gpu.index}`]);
    const alike = gpus.every(({ low, high }) => low === gpus[0].low && high === gpus[0].high); // else one touch would cut the larger ones
    offer(this.chosen, gpus.length > 1 && alike ? [["all", "all GPUs"], ...each] : each);
    this.chosen.hidden = gpus.length === 1;
    this.inForce = new Map(); // watts by UUID
    this.asking.forget();
    this.fit();
  }
  targets() {
    return this.chosen.value === "all" ? this.gpus : this.gpus.filter((_, number) => String(number) === this.chosen.value);
  }
  /** The reason why the chosen GPUs cannot be set, empty where they can. */
  reason() {
    return this.targets().map(({ reason }) => reason).find(Boolean) ?? "";
  }
  fit() {
    const targets = this.targets();
    this.slider.min = String(Math.max(...targets.map((gpu) => gpu.low ?? 0)));
    this.slider.max = String(Math.min(...targets.map((gpu) => gpu.high ?? 0)));
    say(this.low, watts(Number(this.slider.min)));
    say(this.high, watts(Number(this.slider.max)));
    this.fitted = false;
    this.tell();
  }
  answered(/** @type {LimitAnswer} */ { applied }) {
    this.asking.answered(this.asking.number);
    this.hear(Object.entries(applied));
  }
  /** Active limits, watts by UUID, as applied or as sampled: another program may have changed them. */
  hear(limits) {
    for (const [uuid, limit] of limits) if (Number.isFinite(limit)) this.inForce.set(uuid, limit);
    const targets = this.targets();
    // Until a person moves the thumb it follows other programs, such as a tuner.
    if ((!this.fitted || this.asked === null) && targets.length && targets.every(({ uuid }) => this.inForce.has(uuid))) {
      put(this.slider, { value: String(this.inForce.get(targets[0].uuid)) });
      this.fitted = true;
    }
    this.tell();
  }
  tell() {
    const reason = this.reason();
    const values = new Set(this.targets().map(({ uuid }) => watts(this.inForce.get(uuid) ?? NaN)));
    const inForce = `${[...values].join(" / ")} active`;
    say(this.words, reason ? `${inForce}; ${reason}` : this.asked === null ? inForce : `requested ${watts(this.asked)} · ${inForce}`);
  }
  enable(enabled) {
    put(this.slider, { disabled: !enabled || Boolean(this.reason()) });
    put(this.chosen, { disabled: !enabled });
  }
}

/** The data that the kernel has sent of a run: samples, marks and iterations. */
class Run {
  constructor(/** @type {PowerGreeting} */ about) {
    this.series = about.gpus.map(() => new Series());
    this.marks = /** @type {[number, string][]} */ ([]);
    this.spans = new Spans();
    this.elapsed = 0;
    this.energy = /** @type {(number | null)[]} */ ([]);
    this.iteration = /** @type {number | null} */ (null); // seconds, where something else follows it
  }
  /** Take news in. */
  take(/** @type {PowerNews} */ message, buffers) {
    const table = floats(buffers);
    let first = 0;
    message.counts.forEach((count, number) => {
      this.series[number].append(table, first, count);
      first += count;
    });
    this.marks = message.marks ?? this.marks;
    ({ elapsed: this.elapsed, energy: this.energy, iteration: this.iteration } = message);
    if (!message.period) return null;
    this.spans.take(message.period.since, spansFrom(table, first * COLUMNS.length));
  }
  last(column) {
    return this.series.map((one) => one.last(column) ?? NaN);
  }
  /** Energy, time and power now, in words. */
  words() {
    const power = this.last(POWER).reduce((sum, value) => sum + value, 0);
    const energy = this.energy.includes(null) ? null : this.energy.reduce((sum, value) => sum + value, 0);
    return [joules(energy), elapsed(this.elapsed), watts(power)];
  }
}

/** Energy, time and power of a cell that runs. */
class LiveNumbers {
  constructor() {
    this.parts = [element("b", "workbench-big"), element("b"), element("b")];
    const [energy, time, now] = this.parts;
    const fact = (name, value) => element("span", "workbench-answer-fact", element("span", "workbench-faint", `${name} `), value);
    this.root = element("div", "workbench-numbers", energy, fact("so far", ""), fact("time", time), fact("power now", now));
    this.show([joules(null), elapsed(0), watts(NaN)]); // so much room it takes
  }
  show(/** @type {string[]} */ words) {
    this.parts.forEach((part, n) => say(part, words[n]));
  }
}

function powerView({ root, head, post, page }) {
  root.classList.add("workbench-power");
  const [state, hint] = ["state", "hint"].map((name) => element("span", `workbench-${name}`));
  const numbers = new LiveNumbers();
  const answer = element("div", "workbench-answer", { hidden: true }); // of a cell that has ended
  const [more, details] = [element("div", "workbench-power-more", { hidden: true }), element("div")];
  const width = button("span", "", "", () => {
    if (plots?.held) plots.held = false;
    else whole = !whole;
    draw();
  });
  const stop = button("stop", "Stop", "", () => {
    stopping = true;
    post({ kind: "stop" });
  });
  const open = toggle("details", "Details", "SM clock, utilisation, iterations, temperature and notes", (pressed) => {
    press(open, pressed);
    plots?.unfold(pressed);
    put(more, { hidden: !pressed });
    fold();
    draw();
  });
  press(open, false);
  head.waits.before(state, space(), hint, width, open, stop);
  const [legend, redraw] = [new Legend(draw), paced(draw)];
  let values = /** @type {HTMLElement[]} */ ([]); // the power of each of several GPUs
  const place = element("div", "workbench-plots");
  const limit = new LimitControl(post);
  const period = new PeriodView(page, post);
  const lanes = new Lanes(page, post);
  const controls = row(limit.root);
  const typed = new Code("code", "workbench-typed", "Python for the next cell");
  more.append(period.root, details);
  root.append(numbers.root, answer, lanes.root, period.headline, legend.root, place, controls, typed.root, more);
  for (const each of [width, controls, typed.root, period.headline]) each.hidden = true;

  let plots = /** @type {PowerPlots | null} */ (null);
  let about = /** @type {PowerGreeting | null} */ (null);
  let run = /** @type {Run | null} */ (null);
  let [whole, stopping] = [false, false];
  let tall = 0; // pixels of the view when what it shows ended

  function take(message, buffers) {
    run.take(message, buffers);
    if (message.period) period.take(message.period);
    values.forEach((value, number) => say(value, watts(run.last(POWER)[number])));
    limit.hear(run.last(LIMIT).map((watts, number) => [about.gpus[number].uuid, watts]));
    numbers.show(run.words());
    // For tests and curious people: what is drawn, without looking at pixels.
    const { series, spans } = run;
    Object.assign(root, { workbench: { series, plots, marks: () => run.marks, period, spans: () => spans.rows, colours: page.colours } });
    if (about.result) draw();
    else redraw();
  }
  function draw() {
    if (!plots || !page.seen()) return;
    const [end, long] = [run.elapsed, run.elapsed > about.window];
    const last = about.result && end > 0 ? end : axisEnd(end, about.window);
    plots.draw(run, long && !whole && !about.result ? end - about.window : 0, last, legend.hidden, period.about?.gpu);
    if (!more.hidden) period.draw();
    const words = plots.held ? "Reset zoom" : whole ? `Last ${about.window} s` : "Whole run";
    put(width, { hidden: (!long || Boolean(about.result)) && !plots.held, textContent: words, title: "drag across a plot, or Shift and the wheel, zoom" });
  }
  /** Where lanes are shown, the power of the whole run is one of the details. */
  const fold = () => [[place, plots], [legend.root, values.length]].forEach(([part, full]) => put(part, { hidden: !full || (lanes.drawn && more.hidden) }));
  /** The result replaces the live numbers. */
  function conclude(/** @type {PowerGreeting["result"]} */ result) {
    put(numbers.root, { hidden: Boolean(result) });
    put(answer, { hidden: !result });
    put(period.headline, { hidden: Boolean(result) || !about.follows });
    if (!result) return;
    Object.assign(answer, { innerHTML: result.answer });
    Object.assign(details, { innerHTML: result.details });
    lanes.show(about.lanes, about.settings ?? null, answer.textContent);
    period.conclude();
  }
  return {
    greet(message) {
      about = message;
      run = new Run(message);
      if (message.follows) period.greeting(message.gpus);
      head.show(message.title, message.title.includes("(simulated)"));
      limit.greeting(message.gpus);
      const several = message.gpus.length > 1 ? message.gpus : [];
      values = several.map(() => element("span", "workbench-chip-value"));
      legend.show(several.map(({ index, name, colour }, number) => [number, colour, [`GPU ${index} `, values[number]], `${name}: show or hide`]));
      if (message.plots.length) plots ??= new PowerPlots(page, place, message.gpus, message.plots, draw);
      conclude(message.result);
      fold();
    },
    take,
    on: { limit: (message) => limit.answered(message), applied: (message) => lanes.take(message) },
    look: draw, moves: true, waits: null,
    state({ running, queued, greeted, gone }, silent_s) {
      if (!running && !tall && !controls.hidden) tall = root.offsetHeight;
      const words = gone ? "not running" : !greeted ? "loading" : !running ? "done" : stopping ? "stopping" : "running";
      const quiet = silent_s > SILENT_S ? ` · no news for ${silent_s.toFixed(0)} s` : "";
      say(state, words + quiet);
      const hidden = greeted && (!plots || Boolean(about?.result)); // a result says how it ended
      put(state, { "data-state": !greeted ? "loading" : running ? "running" : "done", hidden });
      lanes.applying.able(gone || (greeted && !running));
      const live = running && !queued && greeted;
      root.classList.toggle("workbench-queued", queued);
      say(hint, queued && running && greeted ? "the kernel does not answer yet" : "");
      put(hint, { title: "The slider takes effect when the kernel answers. The notebook's own stop button always works." });
      put(stop, { disabled: !live, hidden: about?.stop === false || !running, title: queued ? "use the notebook's own stop button" : "" });
      put(controls, { hidden: !about?.slider || gone || Boolean(about.result) });
      put(typed.root, { hidden: !hint.textContent || !about?.slider });
      if (!typed.root.hidden) say(typed.code, `with workbench.gpu_settings(power_limit_w=${limit.slider.value}, gpus="${limit.targets().map(({ index }) => index)}"):`);
      if (about) limit.enable(live);
      if (tall <= 0 || !about?.result || !more.hidden) return;
      if (lanes.drawn) lanes.fit(root, tall);
      else plots?.stretch(tall - root.offsetHeight);
      tall = -1;
    },
  };
}

export default { render: livePanel(powerView) };
