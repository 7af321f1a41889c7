// A recurring job: believed costs, the profile of power limits, costs and savings over recurrences, and what can be done with them.
import { colourFrames, element, livePanel, readTheme } from "./base.js";

const MANY = 10; // recurrences on the second button, unless another number is given
const HIGHEST = 1000;

const numbers = (values) => values.map((value) => value ?? NaN);

/** Four plots, two in a row. */
class RecurringPlots {
  constructor(Bokeh, place, colours, [one, chosen, saved]) {
    const { Plot, Range1d, LinearAxis, Grid, BasicTicker, FixedTicker, Row, Column, Line, Segment, Scatter, VArea, HStrip, Text, VSpan, HSpan, Title, HoverTool,
      ColumnDataSource } = Bokeh.Models;
    const { Document } = Bokeh.require("document");
    Object.assign(this, { place, one, chosen, saved, FixedTicker });
    const words = { axis_label_text_font_style: "normal", axis_label_text_font_size: "11px", major_label_text_font_size: "11px", minor_tick_line_color: null };
    const title = () => new Title({ text: "", text_font_size: "11px", text_font_style: "normal", offset: 0, standoff: 2 });
    const source = (...names) => new ColumnDataSource({ data: Object.fromEntries(names.map((name) => [name, []])) });
    const field = (name) => ({ field: name });
    const frame = (label) => {
      const [x, y] = [new Range1d({ start: 0, end: 1 }), new Range1d({ start: 0, end: 1 })];
      const plot = new Plot({
        x_range: x, y_range: y, title: title(), height: 205, sizing_mode: "stretch_width", toolbar_location: null, min_border_left: 52, min_border_right: 14,
        min_border_top: 4, min_border_bottom: 4, outline_line_color: null, background_fill_color: null, border_fill_color: null, lod_threshold: null,
      });
      const left = new LinearAxis({ ...words, ticker: new BasicTicker({ desired_num_ticks: 4 }) });
      const below = new LinearAxis({ ...words, axis_label: label, axis_label_standoff: 2, ticker: new BasicTicker({ desired_num_ticks: 6, num_minor_ticks: 0 }) });
      plot.add_layout(left, "left");
      plot.add_layout(below, "below");
      const grid = new Grid({ dimension: 1, axis: left });
      plot.add_layout(grid, "center");
      return { plot, x, y, grid, below, axes: [left, below] };
    };
    const ink = []; // glyphs in the colour of the text
    const small = (more) => new Text({ text: field("text"), x: field("x"), y: field("y"), text_font_size: "11px", ...more });

    this.believed = frame("batch size; above each: probability of costing least");
    this.interval = source("x", "low", "high", "colour");
    this.points = source("x", "y", "colour", "fill", "size", "marker", "batch", "middle", "low", "high", "best", "reached", "other");
    this.shares = source("x", "y", "text");
    this.crosses = source("x", "y", "why");
    this.believed.plot.add_glyph(new Segment({ x0: field("x"), x1: field("x"), y0: field("low"), y1: field("high"), line_color: field("colour"), line_width: 3,
      line_alpha: 0.5 }), this.interval);
    const points = this.believed.plot.add_glyph(new Scatter({ x: field("x"), y: field("y"), size: field("size"), marker: field("marker"),
      line_color: field("colour"), line_width: 1.6, fill_color: field("colour"), fill_alpha: field("fill") }), this.points);
    const share = small({ text_align: "center", text_baseline: "bottom", y_offset: -6 });
    this.believed.plot.add_glyph(share, this.shares);
    const cross = new Scatter({ x: field("x"), y: field("y"), size: 9, marker: "x", line_width: 1.6, line_alpha: 0.6 });
    const crosses = this.believed.plot.add_glyph(cross, this.crosses);
    this.believed.plot.add_tools(
      new HoverTool({ renderers: [points], tooltips: [["batch size", "@batch"], ["believed", "@middle{0.000}"], ["90 %", "@low{0.000} to @high{0.000}"],
        ["costs least", "@best{0 %}"], ["runs", "@reached reached the target, @other did not"]] }),
      new HoverTool({ renderers: [crosses], tooltips: [["not tried", "@why"]] }),
    );
    ink.push([share, "text_color"], [cross, "line_color"]);

    this.profile = frame("power limit (W)");
    this.curves = source("x", "time", "energy", "cost");
    this.names = source("x", "y", "text");
    this.best = source("x", "y", "text", "top");
    for (const [name, colour, width] of [["time", saved, 1.4], ["energy", one, 1.4], ["cost", null, 2.2]]) {
      const line = new Line({ x: field("x"), y: field(name), line_width: width, line_join: "round", ...(colour ? { line_color: colour } : {}) });
      const renderer = this.profile.plot.add_glyph(line, this.curves);
      if (!colour) {
        ink.push([line, "line_color"]);
        this.profile.plot.add_tools(new HoverTool({ renderers: [renderer], mode: "vline", line_policy: "nearest",
          tooltips: [["limit", "@x W"], ["time", "@time{0.000}"], ["energy", "@energy{0.000}"], ["cost", "@cost{0.000}"]] }));
      }
    }
    const name = small({ text_baseline: "bottom", x_offset: 3, y_offset: -3 });
    const optimum = new VSpan({ x: field("x"), line_dash: [2, 3], line_alpha: 0.6 });
    const optimumWords = small({ y: field("top"), text_align: "center", text_baseline: "top" });
    this.profile.plot.add_glyph(name, this.names);
    this.profile.plot.add_glyph(optimum, this.best);
    this.profile.plot.add_glyph(optimumWords, this.best);
    this.profile.plot.add_glyph(new Scatter({ x: field("x"), y: field("y"), size: 10, fill_color: chosen, line_color: chosen }), this.best);
    ink.push([name, "text_color"], [optimum, "line_color"], [optimumWords, "text_color"]);

    this.costs = frame("recurrence");
    this.each = source("x", "y", "batch");
    this.usual = source("low", "high", "y", "x", "text");
    const strip = new HStrip({ y0: field("low"), y1: field("high"), fill_alpha: 0.1, line_color: null });
    const usual = new HSpan({ y: field("y"), line_dash: [5, 4] });
    const usualWords = small({ text_align: "right", text_baseline: "bottom", x_offset: -4, y_offset: -2 });
    this.costs.plot.add_glyph(strip, this.usual, { level: "underlay" });
    this.costs.plot.add_glyph(usual, this.usual);
    this.costs.plot.add_glyph(usualWords, this.usual);
    const each = this.costs.plot.add_glyph(new Scatter({ x: field("x"), y: field("y"), size: 6, fill_color: one, line_color: one }), this.each);
    this.costs.plot.add_tools(new HoverTool({ renderers: [each], tooltips: [["recurrence", "@x"], ["cost", "@y{0.000}"], ["batch size", "@batch"]] }));
    ink.push([strip, "fill_color"], [usual, "line_color"], [usualWords, "text_color"]);

    this.savings = frame("recurrence");
    this.sums = source("x", "low", "y", "high");
    this.even = source("x", "y", "text", "align", "offset");
    this.zero = source("y");
    const zero = new HSpan({ y: field("y"), line_alpha: 0.6 });
    const even = new VSpan({ x: field("x"), line_dash: [2, 3], line_alpha: 0.6 });
    const evenWords = small({ text_align: field("align"), text_baseline: "top", x_offset: field("offset") });
    this.savings.plot.add_glyph(new VArea({ x: field("x"), y1: field("low"), y2: field("high"), fill_color: saved, fill_alpha: 0.18 }), this.sums);
    this.savings.plot.add_glyph(zero, this.zero);
    const sums = this.savings.plot.add_glyph(new Line({ x: field("x"), y: field("y"), line_color: saved, line_width: 2, line_join: "round" }), this.sums);
    this.savings.plot.add_glyph(even, this.even);
    this.savings.plot.add_glyph(evenWords, this.even);
    this.savings.plot.add_tools(new HoverTool({ renderers: [sums], mode: "vline", line_policy: "nearest",
      tooltips: [["after recurrence", "@x"], ["saved", "@y{0.000}"], ["90 %", "@low{0.000} to @high{0.000}"]] }));
    ink.push([zero, "line_color"], [even, "line_color"], [evenWords, "text_color"]);

    this.ink = ink;
    this.frames = [this.believed, this.profile, this.costs, this.savings];
    const row = (...frames) => new Row({ children: frames.map(({ plot }) => plot), sizing_mode: "stretch_width", spacing: 0 });
    this.column = new Column({ children: [row(this.believed, this.profile), row(this.costs, this.savings)], sizing_mode: "stretch_width", spacing: 4 });
    this.recolour(colours);
    this.document = new Document();
    this.document.add_root(this.column);
    this.views = Bokeh.embed.add_document_standalone(this.document, place);
  }
  recolour(colours) {
    colourFrames(this.frames, this.ink, colours);
  }
  draw(view) {
    this.drawBelieved(view);
    this.drawProfile(view);
    const { rows, ranges, default: usual } = view;
    const end = (rows.recurrence.at(-1) ?? 0) + 1;
    const put = (frame, name, title) => {
      frame.plot.title.text = title;
      frame.y.setv({ start: ranges[name][0], end: ranges[name][1] });
    };
    for (const frame of [this.costs, this.savings]) frame.x.setv({ start: 0, end });
    put(this.costs, "cost", `Cost of each recurrence, all its attempts (${view.unit})`);
    this.each.data = { x: rows.recurrence, y: numbers(rows.cost), batch: rows.batch };
    this.usual.data = usual
      ? { low: [usual.low], high: [usual.high], y: [usual.cost], x: [end], text: ["default"] }
      : { low: [], high: [], y: [], x: [], text: [] };
    put(this.savings, "saved", `Saved against the default, in sum (${view.saved_unit})`);
    const known = rows.saved !== undefined;
    this.sums.data = known
      ? { x: rows.recurrence, low: numbers(rows.saved_low), y: numbers(rows.saved), high: numbers(rows.saved_high) }
      : { x: [], low: [], y: [], high: [] };
    this.zero.data = { y: [0] };
    const at = view.break_even === null ? [] : [view.break_even];
    this.even.data = {
      x: at, y: at.map(() => ranges.saved[1]), text: at.map((number) => `cheaper since ${number}`),
      align: at.map((number) => (number > 0.6 * end ? "right" : "left")), offset: at.map((number) => (number > 0.6 * end ? -4 : 4)),
    };
  }
  drawBelieved({ believed, arm, unit, ranges }) {
    const [low, high] = ranges.believed;
    const { believed: frame } = this;
    frame.plot.title.text = `Believed cost of a recurrence (${unit}), 90 %`;
    frame.y.setv({ start: low, end: high });
    frame.x.setv({ start: -0.6, end: believed.batch.length - 0.4 });
    frame.below.setv({
      ticker: new this.FixedTicker({ ticks: believed.batch.map((_, number) => number) }),
      major_label_overrides: new Map(believed.batch.map((batch, number) => [number, String(batch)])),
    });
    const known = believed.batch.map((_, number) => number).filter((number) => believed.middle[number] !== null);
    const colour = (number) => (number === arm ? this.chosen : this.one);
    const within = known.filter((number) => believed.middle[number] <= high);
    this.interval.data = {
      x: within, low: within.map((number) => believed.low[number]), high: within.map((number) => Math.min(believed.high[number], high)),
      colour: within.map(colour),
    };
    const pick = (name) => known.map((number) => believed[name][number]);
    this.points.data = {
      x: known, y: known.map((number) => Math.min(believed.middle[number], 0.97 * high)), colour: known.map(colour),
      // Hollow: no run of it has reached the target. A triangle: it lies above.
      fill: known.map((number) => (believed.reached[number] > 0 ? 1 : 0)), size: known.map((number) => (number === arm ? 11 : 8)),
      marker: known.map((number) => (believed.middle[number] > high ? "triangle" : "circle")),
      batch: pick("batch"), middle: pick("middle"), low: pick("low"), high: pick("high"), best: pick("best"), reached: pick("reached"), other: pick("other"),
    };
    const shared = within.filter((number) => believed.best[number] >= 0.005);
    this.shares.data = {
      x: shared, y: shared.map((number) => Math.min(believed.high[number], 0.86 * high)), text: shared.map((number) => `${Math.round(100 * believed.best[number])} %`),
    };
    const barred = believed.batch.map((_, number) => number).filter((number) => believed.barred[number]);
    this.crosses.data = { x: barred, y: barred.map(() => low + 0.05 * (high - low)), why: barred.map((number) => believed.barred[number]) };
  }
  drawProfile({ profile, optimum, profile_of: batch, ranges }) {
    const { limit_w: limits } = profile;
    const { profile: frame } = this;
    frame.plot.visible = limits.length > 0;
    if (!limits.length) return;
    const [first, last] = [limits[0], limits.at(-1)];
    const [low, high] = ranges.profile;
    frame.plot.title.text = `An epoch at batch size ${batch}, share of that at ${last} W`;
    frame.x.setv({ start: first - 0.03 * (last - first), end: last + 0.03 * (last - first) });
    frame.y.setv({ start: low, end: high });
    this.curves.data = { x: limits, time: numbers(profile.time), energy: numbers(profile.energy), cost: numbers(profile.cost) };
    const names = ["time", "energy", "cost"].filter((name) => profile[name][0] !== null);
    this.names.data = { x: names.map(() => first), y: names.map((name) => profile[name][0]), text: names };
    this.best.data = optimum === null
      ? { x: [], y: [], text: [], top: [] }
      : { x: [limits[optimum]], y: [profile.cost[optimum]], text: [`best: ${limits[optimum]} W`], top: [high] };
  }
  dispose() {
    this.views.then((views) => (views.clear ? views.clear() : [...views].forEach((view) => view.remove()))).catch(() => {});
    this.document.clear();
  }
}

/** The slider; asks for one eta at a time, and for the newest when that is answered. */
class Eta {
  constructor(post) {
    this.post = post;
    this.slider = Object.assign(element("input", "workbench-limit workbench-eta"), { type: "range", min: 0, max: 1, step: 0.01 });
    this.slider.setAttribute("aria-label", "eta: 0 counts time only, 1 energy only");
    this.words = element("span", "workbench-faint workbench-eta-words");
    this.root = element("label", "workbench-control", element("span", "", "time"), this.slider, element("span", "", "energy"), this.words);
    this.asked = 0;
    this.waits = null;
    this.slider.addEventListener("input", () => this.ask());
  }
  ask() {
    this.words.textContent = `eta ${Number(this.slider.value)}`;
    if (this.waits !== null) return;
    this.asked += 1;
    this.waits = Number(this.slider.value);
    this.post({ kind: "eta", eta: this.waits, asked: this.asked });
  }
  answered(number) {
    if (number !== this.asked || this.waits === null) return;
    const was = this.waits;
    this.waits = null;
    if (Number(this.slider.value) !== was) this.ask();
  }
  show(view) {
    if (this.waits !== null) return;
    if (view.eta !== null) this.slider.value = view.eta;
    this.words.textContent = view.objective;
  }
}

function recurringJob({ root, post }) {
  const title = element("span", "workbench-title");
  const badge = element("span", "workbench-badge", "simulated");
  const state = element("span", "workbench-faint workbench-waits");
  const headline = element("div", "workbench-headline workbench-next");
  const details = element("div", "workbench-details");
  const place = element("div", "workbench-plots");
  const eta = new Eta(post);
  const button = (name, words, action) => {
    const made = element("button", `workbench-button ${name}`, words);
    made.addEventListener("click", action);
    return made;
  };
  const count = Object.assign(element("input", "workbench-count"), { type: "number", min: 1, max: HIGHEST, value: MANY });
  count.setAttribute("aria-label", "how many recurrences");
  const one = button("workbench-run-one", "", () => post({ kind: "run", count: 1 }));
  const many = button("workbench-run-many", "", () => post({ kind: "run", count: Number(count.value) }));
  const stop = button("workbench-halt", "Stop after this one", () => post({ kind: "stop" }));
  const rewind = button("workbench-rewind", "Rewind", () => post({ kind: "rewind" }));
  const save = button("workbench-export", "Export CSV", () => post({ kind: "export" }));
  const file = Object.assign(element("input", "workbench-file"), { type: "file", accept: ".csv,text/csv", hidden: true });
  const load = button("workbench-import", "Import CSV", () => file.click());
  file.addEventListener("change", async () => {
    if (file.files.length) post({ kind: "import", text: await file.files[0].text() });
    file.value = "";
  });
  const note = element("span", "workbench-faint workbench-note");
  root.append(
    element("div", "workbench-head", title, badge, state), headline, details, place, element("div", "workbench-controls", eta.root),
    element("div", "workbench-controls", one, many, count, stop, rewind, element("span", "workbench-space"), load, file, save), note,
  );
  badge.hidden = true;
  let plots = null;
  let about = null;
  let left = 0;

  function take(message) {
    left = message.left;
    for (const each of [one, many]) {
      each.disabled = left > 0 || about.whyNot !== "";
      each.title = about.whyNot;
    }
    stop.hidden = left === 0;
    stop.disabled = left === 1;
    note.textContent = left > 1 ? `${left} recurrences to go` : left === 1 ? "one recurrence to go" : message.note;
    if (!message.view) return;
    headline.textContent = message.view.headline;
    details.replaceChildren(...message.view.details.map((sentence) => element("div", "", sentence)));
    eta.show(message.view);
    plots.draw(message.view);
    root.workbench = { plots, view: message.view, eta, left: () => left };
  }
  return {
    greeting(message, buffers, Bokeh) {
      about = message;
      title.textContent = message.title.replace(/ ?\(simulated\)/g, "");
      badge.hidden = !message.simulated;
      one.textContent = message.replayed ? "Play one recurrence" : "Run one recurrence";
      many.textContent = message.replayed ? "Play" : "Run";
      rewind.hidden = !message.replayed;
      plots ??= new RecurringPlots(Bokeh, place, readTheme(message.theme), message.colours);
      eta.waits = null; // what was asked before is answered by this
      take(message);
    },
    message(message) {
      if (message.kind === "csv") {
        const url = URL.createObjectURL(new Blob([message.text], { type: "text/csv" }));
        Object.assign(document.createElement("a"), { href: url, download: message.name }).click();
        setTimeout(() => URL.revokeObjectURL(url), 10_000);
      } else if (message.kind === "news") {
        if (message.asked !== undefined) eta.answered(message.asked);
        take(message);
      }
    },
    recolour() {
      plots?.recolour(readTheme(about.theme));
    },
    state({ queued, greeted }) {
      state.textContent = !greeted ? "loading" : queued ? "what you choose is shown when the kernel has finished its cell" : "";
    },
    dispose() {
      plots?.dispose();
    },
  };
}

export default { render: livePanel(recurringJob) };
