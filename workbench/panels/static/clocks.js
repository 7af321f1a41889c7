// A tuner at work: time against energy, the clocks or power limits, the probes in order, what can be asked of it.
import { colourFrames, element, livePanel, readTheme } from "./base.js";

const LEVELS = 6; // of the ground of the plane of clocks
const ANY = 0.5; // per cent above the slider's highest bound: any slowdown is allowed
const HIGHEST_BOUND = 30;
const KNOBS = { clocks: "SM clock (MHz)", sm: "SM clock (MHz)", limit: "power limit (W)" };
const CHIPS = { clocks: "clocks", sm: "SM clock", limit: "power limit" };
const COLUMNS = 8; // of the table of what is believed

const numbers = (values) => values.map((value) => value ?? NaN);
const minutes = (seconds) => `${Math.floor(seconds / 60)}:${String(Math.floor(seconds % 60)).padStart(2, "0")}`;

/** Two plots side by side: the plane of time and energy, and that of the settings. */
class ClocksPlots {
  constructor(Bokeh, place, colours, inks) {
    const { Plot, Range1d, LinearAxis, Grid, BasicTicker, FixedTicker, Row, Line, Segment, Scatter, Band, Quad, Text, HSpan, VSpan, VStrip, Title, HoverTool,
      ColumnDataSource } = Bokeh.Models;
    const { Document } = Bokeh.require("document");
    Object.assign(this, { place, inks, FixedTicker, BasicTicker });
    const words = { axis_label_text_font_style: "normal", axis_label_text_font_size: "11px", major_label_text_font_size: "11px", minor_tick_line_color: null };
    const source = (...names) => new ColumnDataSource({ data: Object.fromEntries(names.map((name) => [name, []])) });
    const field = (name) => ({ field: name });
    const frame = (title, label) => {
      const [x, y] = [new Range1d({ start: 0, end: 1 }), new Range1d({ start: 0, end: 1 })];
      const plot = new Plot({
        x_range: x, y_range: y, title: new Title({ text: title, text_font_size: "11px", text_font_style: "normal", offset: 0, standoff: 2 }), height: 270,
        sizing_mode: "stretch_width", toolbar_location: null, min_border_left: 52, min_border_right: 14, min_border_top: 4, min_border_bottom: 4,
        outline_line_color: null, background_fill_color: null, border_fill_color: null, lod_threshold: null,
      });
      const left = new LinearAxis({ ...words, ticker: new BasicTicker({ desired_num_ticks: 6 }) });
      const below = new LinearAxis({ ...words, axis_label: label, axis_label_standoff: 2, ticker: new BasicTicker({ desired_num_ticks: 6, num_minor_ticks: 0 }) });
      plot.add_layout(left, "left");
      plot.add_layout(below, "below");
      const grid = new Grid({ dimension: 1, axis: left });
      plot.add_layout(grid, "center");
      return { plot, x, y, grid, left, below, axes: [left, below] };
    };
    const ink = []; // glyphs in the colour of the text
    const inInk = (glyph, ...properties) => {
      for (const property of properties) ink.push([glyph, property]);
      return glyph;
    };
    const small = (more) => inInk(new Text({ text: field("text"), x: field("x"), y: field("y"), text_font_size: "10px", ...more }), "text_color");

    // Time against energy.
    const trade = frame("Energy against the default (%)", "time against the default (%)");
    this.trade = trade;
    this.bound = source("low", "high", "x", "y", "text");
    this.believed = source("time", "energy", "time_error", "energy_error", "words");
    this.way = source("x", "y");
    this.times = source("x0", "x1", "y");
    this.energies = source("x", "y0", "y1");
    this.tried = source("x", "y", "fill", "n", "words", "cost", "time_error", "energy_error");
    this.again = source("x", "y", "words", "cost");
    this.numbers = source("x", "y", "text", "dx", "dy", "align");
    this.marks = source("x", "y", "text", "size", "line", "width", "align", "dx");
    this.now = source("x", "y");
    this.usual = source("x", "y", "text");
    const glyph = (plot, made, data, options = {}) => plot.add_glyph(made, data, options);
    glyph(trade.plot, new VStrip({ x0: field("low"), x1: field("high"), fill_color: inks.time, fill_alpha: 0.09, line_color: null }), this.bound, { level: "underlay" });
    glyph(trade.plot, small({ text_baseline: "bottom", x_offset: 5, y_offset: -3 }), this.bound);
    this.zero = source("at");
    glyph(trade.plot, inInk(new HSpan({ y: field("at"), line_alpha: 0.45 }), "line_color"), this.zero);
    glyph(trade.plot, inInk(new VSpan({ x: field("at"), line_alpha: 0.45 }), "line_color"), this.zero);
    const pale = glyph(trade.plot, new Scatter({ x: field("time"), y: field("energy"), size: 5, fill_color: inks.energy, fill_alpha: 0.28, line_color: null }), this.believed);
    glyph(trade.plot, inInk(new Line({ x: field("x"), y: field("y"), line_alpha: 0.35 }), "line_color"), this.way);
    glyph(trade.plot, new Segment({ x0: field("x0"), x1: field("x1"), y0: field("y"), y1: field("y"), line_color: inks.energy, line_alpha: 0.6 }), this.times);
    glyph(trade.plot, new Segment({ x0: field("x"), x1: field("x"), y0: field("y0"), y1: field("y1"), line_color: inks.energy, line_alpha: 0.6 }), this.energies);
    const square = (data) => glyph(trade.plot, inInk(new Scatter({ x: field("x"), y: field("y"), marker: "square", size: 7, fill_color: null, line_width: 1.6 }), "line_color"), data);
    const again = square(this.again);
    square(this.usual);
    glyph(trade.plot, small({ text_align: "right", text_baseline: "top", x_offset: -7, y_offset: 4 }), this.usual);
    const tried = glyph(trade.plot, new Scatter({ x: field("x"), y: field("y"), size: 9, fill_color: inks.energy, fill_alpha: field("fill"), line_color: inks.energy,
      line_width: 1.6 }), this.tried);
    const number = { text_baseline: "middle", text_align: field("align"), x_offset: field("dx"), y_offset: field("dy") };
    glyph(trade.plot, small(number), this.numbers);
    const ring = (plot, data) => glyph(plot, inInk(new Scatter({ x: field("x"), y: field("y"), size: 23, fill_color: null, line_dash: [2, 2] }), "line_color"), data);
    const chosen = (plot, data, named) => {
      glyph(plot, new Scatter({ x: field("x"), y: field("y"), size: 16, fill_color: null, line_color: inks.chosen, line_width: 2.6 }), data);
      const name = { text_font_size: "11px", text_font_style: "bold", text_align: field("align"), x_offset: field("dx"), text_baseline: "top", y_offset: 5 };
      if (named) glyph(plot, small(name), data);
    };
    ring(trade.plot, this.now);
    chosen(trade.plot, this.marks, true);
    trade.plot.add_tools(
      new HoverTool({ renderers: [tried], tooltips: [["probe", "@n: @words"], ["time", "@x{+0.0} % ± @time_error{0.0}"], ["energy", "@y{+0.0} % ± @energy_error{0.0}"],
        ["took", "@cost"]] }),
      new HoverTool({ renderers: [again], tooltips: [["default", "@words"], ["took", "@cost"]] }),
      new HoverTool({ renderers: [pale], limit: 1, tooltips: [["believed", "@words"], ["time", "@time{+0.0} % ± @time_error{0.0}"],
        ["energy", "@energy{+0.0} % ± @energy_error{0.0}"]] }),
    );

    // A line over one knob.
    const line = frame("Change against the default (%)", "");
    this.line = line;
    this.spans = source("low", "high");
    glyph(line.plot, new VStrip({ x0: field("low"), x1: field("high"), fill_color: inks.time, fill_alpha: 0.09, line_color: null }), this.spans, { level: "underlay" });
    glyph(line.plot, inInk(new HSpan({ y: field("at"), line_alpha: 0.45 }), "line_color"), this.zero);
    this.curve = source("x", "time", "time_low", "time_high", "energy", "energy_low", "energy_high");
    this.knobProbes = {};
    this.knobNumbers = source("x", "y", "text", "dx", "dy", "align");
    this.names = source("x", "y", "text", "colour", "dy");
    for (const name of ["time", "energy"]) {
      line.plot.add_layout(new Band({ base: field("x"), lower: field(`${name}_low`), upper: field(`${name}_high`), source: this.curve, fill_color: inks[name], fill_alpha: 0.13,
        line_color: null }));
      const curve = glyph(line.plot, new Line({ x: field("x"), y: field(name), line_color: inks[name], line_alpha: 0.55, line_width: 1.6 }), this.curve);
      if (name === "energy") {
        line.plot.add_tools(new HoverTool({ renderers: [curve], mode: "vline", line_policy: "nearest",
          tooltips: [["at", "@x"], ["time", "@time{+0.0} %"], ["energy", "@energy{+0.0} %"]] }));
      }
      this.knobProbes[name] = source("x", "y", "fill");
      glyph(line.plot, new Scatter({ x: field("x"), y: field("y"), size: 8, fill_color: inks[name], fill_alpha: field("fill"), line_color: inks[name], line_width: 1.6 }),
        this.knobProbes[name]);
    }
    glyph(line.plot, small(number), this.knobNumbers);
    // The corner below the default is empty: it would be less energy for nothing.
    glyph(line.plot, new Text({ x: field("x"), y: field("y"), text: field("text"), text_color: field("colour"), text_font_size: "11px", text_font_style: "bold",
      text_align: "right", text_baseline: "bottom", x_offset: -6, y_offset: field("dy") }), this.names);
    this.at = source("x", "y", "text", "align", "dx");
    this.nowAt = source("x");
    glyph(line.plot, inInk(new VSpan({ x: field("x"), line_dash: [2, 2] }), "line_color"), this.nowAt);
    glyph(line.plot, new VSpan({ x: field("x"), line_color: inks.chosen, line_width: 2 }), this.at);
    glyph(line.plot, small({ text_font_size: "11px", text_font_style: "bold", text_align: field("align"), text_baseline: "top", x_offset: field("dx"), y_offset: 2 }), this.at);

    // The plane of SM and memory clocks.
    const plane = frame("Memory clock (MHz); green: less energy, framed: allowed", KNOBS.clocks);
    this.plane = plane;
    this.shaded = source("left", "right", "top", "bottom", "colour", "alpha");
    this.framed = source("left", "right", "top", "bottom");
    const sides = { left: field("left"), right: field("right"), top: field("top"), bottom: field("bottom") };
    glyph(plane.plot, new Quad({ ...sides, fill_color: field("colour"), fill_alpha: field("alpha"), line_color: null }), this.shaded);
    glyph(plane.plot, inInk(new Quad({ ...sides, fill_color: null, line_alpha: 0.7, line_width: 1.2 }), "line_color"), this.framed);
    this.steps = source("x", "y");
    this.stops = source("x", "y", "fill", "n", "words", "cost", "time", "energy");
    this.stopNumbers = source("x", "y", "text", "dx", "dy", "align");
    this.nowCell = source("x", "y");
    this.chosenCell = source("x", "y", "text", "align", "dx");
    glyph(plane.plot, inInk(new Line({ x: field("x"), y: field("y"), line_alpha: 0.35 }), "line_color"), this.steps);
    const stops = glyph(plane.plot, new Scatter({ x: field("x"), y: field("y"), size: 9, fill_color: inks.energy, fill_alpha: field("fill"), line_color: inks.energy, line_width: 1.6 }),
      this.stops);
    glyph(plane.plot, small(number), this.stopNumbers);
    ring(plane.plot, this.nowCell);
    chosen(plane.plot, this.chosenCell, false);
    plane.plot.add_tools(new HoverTool({ renderers: [stops], tooltips: [["probe", "@n: @words"], ["time", "@time{+0.0} %"], ["energy", "@energy{+0.0} %"], ["took", "@cost"]] }));

    this.ink = ink;
    this.frames = [trade, line, plane];
    this.row = new Row({ children: this.frames.map(({ plot }) => plot), sizing_mode: "stretch_width", spacing: 0 });
    line.plot.visible = false;
    plane.plot.visible = false;
    this.zero.data = { at: [0] };
    this.recolour(colours);
    this.document = new Document();
    this.document.add_root(this.row);
    this.views = Bokeh.embed.add_document_standalone(this.document, place);
  }
  recolour(colours) {
    colourFrames(this.frames, this.ink, colours);
    this.plane.grid.grid_line_color = null;
  }
  draw(drawing, table, knob) {
    this.drawTrade(drawing, table);
    this.line.plot.visible = knob === "sm" || knob === "limit";
    this.plane.plot.visible = knob === "clocks";
    if (knob === "clocks") this.drawPlane(drawing);
    else if (knob) this.drawLine(drawing, knob);
  }
  drawTrade({ bound, probes, ranges, default: usual, current, choice }, table) {
    const frame = this.trade;
    frame.x.setv({ start: ranges.time[0], end: ranges.time[1] });
    frame.y.setv({ start: ranges.energy[0], end: ranges.energy[1] });
    const end = bound === null ? null : Math.min(bound, ranges.time[1]);
    this.bound.data = bound === null
      ? { low: [], high: [], x: [], y: [], text: [] }
      : { low: [ranges.time[0]], high: [end], x: [ranges.time[0]], y: [ranges.energy[0]], text: [`within ${bound} %`] };
    const rows = [];
    for (let at = 0; at < table.length; at += COLUMNS) {
      if (table[at + 3] <= ranges.time[1] && table[at + 5] <= ranges.energy[1]) rows.push(table.subarray(at, at + COLUMNS));
    }
    const column = (number) => Float64Array.from(rows, (row) => row[number]);
    this.believed.data = { time: column(3), time_error: column(4), energy: column(5), energy_error: column(6), words: rows.map(settingWords) };
    const known = probes.n.map((_, row) => row).filter((row) => probes.time[row] !== null && probes.energy[row] !== null);
    const counted = known.filter((row) => probes.n[row] !== null);
    const pick = (name, which) => which.map((row) => probes[name][row]);
    this.way.data = { x: pick("time", counted), y: pick("energy", counted) };
    const across = known.filter((row) => probes.time_error[row]);
    this.times.data = {
      x0: across.map((row) => probes.time[row] - probes.time_error[row]), x1: across.map((row) => probes.time[row] + probes.time_error[row]), y: pick("energy", across),
    };
    const up = known.filter((row) => probes.energy_error[row]);
    this.energies.data = {
      x: pick("time", up), y0: up.map((row) => probes.energy[row] - probes.energy_error[row]), y1: up.map((row) => probes.energy[row] + probes.energy_error[row]),
    };
    this.tried.data = {
      x: pick("time", counted), y: pick("energy", counted), fill: counted.map((row) => (probes.whole[row] ? 1 : 0)), n: pick("n", counted), words: pick("words", counted),
      cost: pick("cost", counted), time_error: numbers(pick("time_error", counted)), energy_error: numbers(pick("energy_error", counted)),
    };
    const again = known.filter((row) => probes.n[row] === null);
    this.again.data = { x: pick("time", again), y: pick("energy", again), words: pick("words", again), cost: pick("cost", again) };
    this.numbers.data = {
      x: pick("time", counted), y: pick("energy", counted), text: counted.map((row) => String(probes.n[row])), ...numberPlaces(probes, "trade", counted),
    };
    this.usual.data = { x: [usual.time], y: [usual.energy], text: ["default"] };
    this.now.data = spot(current, current?.time, current?.energy);
    this.marks.data = chosenSpot(choice, choice?.time, choice?.energy, ranges.time);
  }
  drawLine({ bound, lines, probes, ranges, current, choice }, knob) {
    const [frame, line] = [this.line, lines[knob]];
    const [span, change] = [ranges[knob], ranges[`${knob} change`]];
    frame.below.axis_label = KNOBS[knob];
    frame.x.setv({ start: span[0], end: span[1] });
    frame.y.setv({ start: change[0], end: change[1] });
    this.spans.data = bound === null ? { low: [], high: [] } : { low: line.allowed_from, high: line.allowed_to };
    const curve = { x: line.x };
    for (const name of ["time", "energy"]) {
      curve[name] = numbers(line[name]);
      curve[`${name}_low`] = line[name].map((value, row) => (value ?? NaN) - (line[`${name}_error`][row] ?? 0));
      curve[`${name}_high`] = line[name].map((value, row) => (value ?? NaN) + (line[`${name}_error`][row] ?? 0));
    }
    this.curve.data = curve;
    const own = knob === "limit" ? "limit_w" : "sm_mhz";
    const rows = probes.n.map((_, row) => row).filter((row) => probes.n[row] !== null && probes[own][row] !== null && probes.energy[row] !== null);
    for (const name of ["time", "energy"]) {
      this.knobProbes[name].data = {
        x: rows.map((row) => probes[own][row]), y: rows.map((row) => probes[name][row] ?? NaN), fill: rows.map((row) => (probes.whole[row] ? 1 : 0)),
      };
    }
    this.knobNumbers.data = { x: rows.map((row) => probes[own][row]), y: rows.map((row) => probes.energy[row]), text: rows.map((row) => String(probes.n[row])),
      ...numberPlaces(probes, knob, rows) };
    this.names.data = { x: [span[1], span[1]], y: [change[0], change[0]], text: ["time", "energy"], colour: [this.inks.time, this.inks.energy], dy: [-4, -19] };
    const [at, now] = [choice?.[own] ?? null, current?.[own] ?? null];
    this.nowAt.data = { x: now === null ? [] : [now] };
    const right = at > span[0] + 0.75 * (span[1] - span[0]);
    this.at.data = at === null
      ? { x: [], y: [], text: [], align: [], dx: [] }
      : { x: [at], y: [change[1]], text: [`${at} ${knob === "limit" ? "W" : "MHz"}`], align: [right ? "right" : "left"], dx: [right ? -5 : 5] };
  }
  drawPlane({ bound, mem_clocks: memories, shaded, allowed, probes, ranges, current, choice }) {
    const frame = this.plane;
    frame.x.setv({ start: ranges.clocks[0], end: ranges.clocks[1] });
    frame.y.setv({ start: -0.5, end: memories.length - 0.5 });
    frame.left.setv({ ticker: new this.FixedTicker({ ticks: memories.map((_, row) => row) }), major_label_overrides: new Map(memories.map((clock, row) => [row, String(clock)])) });
    const quads = (cells) => ({ left: cells.from, right: cells.to, top: cells.row.map((row) => row + 0.46), bottom: cells.row.map((row) => row - 0.46) });
    this.shaded.data = {
      ...quads(shaded), colour: shaded.shade.map((shade) => (shade < 0 ? this.inks.time : this.inks.spent)),
      alpha: shaded.shade.map((shade) => 0.06 + (shade < 0 ? 0.5 : 0.2) * (Math.abs(shade) / LEVELS) ** 1.5),
    };
    this.framed.data = bound === null ? { left: [], right: [], top: [], bottom: [] } : quads(allowed);
    const place = new Map(memories.map((clock, row) => [clock, row]));
    const rows = probes.n.map((_, row) => row).filter((row) => probes.n[row] !== null && probes.sm_mhz[row] !== null && place.has(probes.mem_mhz[row]));
    const [x, y] = [rows.map((row) => probes.sm_mhz[row]), rows.map((row) => place.get(probes.mem_mhz[row]))];
    this.steps.data = { x, y };
    const pick = (name) => rows.map((row) => probes[name][row]);
    this.stops.data = {
      x, y, fill: rows.map((row) => (probes.whole[row] ? 1 : 0)), n: pick("n"), words: pick("words"), cost: pick("cost"), time: numbers(pick("time")), energy: numbers(pick("energy")),
    };
    this.stopNumbers.data = { x, y, text: rows.map((row) => String(probes.n[row])), ...numberPlaces(probes, "clocks", rows) };
    this.nowCell.data = spot(current, current?.sm_mhz, place.get(current?.mem_mhz));
    this.chosenCell.data = chosenSpot(choice, choice?.sm_mhz, place.get(choice?.mem_mhz), ranges.clocks);
  }
  dispose() {
    this.views.then((views) => (views.clear ? views.clear() : [...views].forEach((view) => view.remove()))).catch(() => {});
    this.document.clear();
  }
}

function settingWords([limit, sm, mem]) {
  const words = [[limit, (value) => `${value} W`], [sm, (value) => `SM ${value} MHz`], [mem, (value) => `memory ${value} MHz`]];
  return words.filter(([value]) => !Number.isNaN(value)).map(([value, say]) => say(value)).join(", ");
}

/** Where the numbers of probes stand at their points on a plane. */
function numberPlaces(probes, plane, rows) {
  const [across, up] = [probes[`${plane} across`], probes[`${plane} up`]];
  return {
    dx: rows.map((row) => across[row]), dy: rows.map((row) => -up[row]), align: rows.map((row) => (across[row] < 0 ? "right" : across[row] > 0 ? "left" : "center")),
  };
}

/** A point as columns; none where it is not known. */
function spot(mark, x, y) {
  const known = mark && (x ?? null) !== null && (y ?? null) !== null;
  return known ? { x: [x], y: [y] } : { x: [], y: [] };
}

function chosenSpot(mark, x, y, [start, end]) {
  const point = spot(mark, x, y);
  // Nothing lies below and left of the best; only at the edge there is no room.
  const left = point.x.map((value) => value > start + 0.3 * (end - start));
  return { ...point, text: point.x.map(() => mark.words), align: left.map((on) => (on ? "right" : "left")), dx: left.map((on) => (on ? -9 : 14)) };
}

/** The slider; asks for one bound at a time, and for the newest when that is answered. */
class Slowdown {
  constructor(post) {
    this.post = post;
    this.slider = Object.assign(element("input", "workbench-limit workbench-slowdown"), { type: "range", min: 0, max: HIGHEST_BOUND + ANY, step: 0.5 });
    this.slider.setAttribute("aria-label", "allowed slowdown in per cent");
    this.words = element("span", "workbench-faint workbench-slowdown-words");
    this.root = element("label", "workbench-control", element("span", "", "slower by at most"), this.slider, this.words);
    this.asked = 0;
    this.waits = null;
    this.slider.addEventListener("input", () => this.ask());
  }
  percent() {
    return Number(this.slider.value) >= Number(this.slider.max) ? null : Number(this.slider.value);
  }
  say(percent) {
    this.words.textContent = percent === null ? "any" : `${Number(percent.toFixed(1))} %`;
  }
  ask() {
    this.say(this.percent());
    if (this.waits !== null) return;
    this.asked += 1;
    this.waits = this.slider.value;
    this.post({ kind: "slowdown", percent: this.percent(), asked: this.asked });
  }
  answered(number) {
    if (number !== this.asked || this.waits === null) return;
    const was = this.waits;
    this.waits = null;
    if (this.slider.value !== was) this.ask();
  }
  show(percent) {
    if (this.waits !== null || document.activeElement === this.slider && this.slider.matches(":active")) return;
    if (percent !== null && percent > Number(this.slider.max) - ANY) this.slider.max = 2 * Math.ceil(percent) + ANY;
    this.slider.value = percent ?? this.slider.max;
    this.say(percent);
  }
}

function tuner({ root, post }) {
  const title = element("span", "workbench-title");
  const badge = element("span", "workbench-badge", "simulated");
  const steps = element("span", "workbench-steps");
  const waits = element("span", "workbench-faint workbench-waits");
  const headline = element("div", "workbench-headline");
  const saved = element("div", "workbench-saved");
  const details = element("div", "workbench-details");
  const place = element("div", "workbench-plots");
  const chips = element("span", "workbench-levels");
  const events = element("div", "workbench-events workbench-faint");
  const button = (name, words, hint, message) => {
    const made = Object.assign(element("button", `workbench-button workbench-do-${name}`, words), { title: hint });
    made.addEventListener("click", () => post(message));
    return made;
  };
  const buttons = {
    start: button("start", "Start", "begin, or go on after a pause", { kind: "start" }),
    step: button("step", "One probe", "try one more setting, then pause", { kind: "step" }),
    pause: button("pause", "Pause", "try no further setting for now", { kind: "pause" }),
    hold: button("hold", "Hold here", "search no further and keep the best setting so far", { kind: "hold" }),
    stop: button("stop", "Stop", "put the GPU back as it was and tune no more", { kind: "stop" }),
  };
  const objective = element("select", "workbench-objective");
  objective.setAttribute("aria-label", "what is to be small");
  objective.addEventListener("change", () => post({ kind: "objective", name: objective.value }));
  const slowdown = new Slowdown(post);
  root.append(
    element("div", "workbench-head", title, badge, steps, waits), headline, saved, details, place,
    element("div", "workbench-controls", ...Object.values(buttons), element("span", "workbench-space"), chips),
    element("div", "workbench-controls", element("label", "workbench-control", element("span", "", "for"), objective), slowdown.root), events,
  );
  root.classList.add("workbench-tuner");
  badge.hidden = true;
  let plots = null;
  let about = null;
  let drawing = null;
  let table = new Float32Array();
  let knob = null; // that a person has chosen
  let over = false;

  const shown = () => (drawing?.knobs.includes(knob) ? knob : (drawing?.knobs[0] ?? null));
  function redraw() {
    plots.draw(drawing, table, shown());
    const several = drawing.knobs.length > 1;
    chips.replaceChildren(...(several ? drawing.knobs : []).map((name) => {
      const chip = element("button", "workbench-chip", CHIPS[name]);
      chip.setAttribute("aria-pressed", String(name === shown()));
      chip.addEventListener("click", () => {
        knob = name;
        redraw();
      });
      return chip;
    }));
  }
  function say({ words, begins, wanted }) {
    const ended = !words || ["done", "refused"].includes(words.state);
    headline.textContent = words?.headline ?? about.nothing;
    saved.textContent = words?.saved ?? "";
    details.replaceChildren(...[...(words?.details ?? [])].map((sentence) => element("div", "", sentence)));
    steps.replaceChildren(...about.steps.map((name, number) => {
      const step = element("span", "workbench-step", name);
      if (words && number === words.step) step.setAttribute("aria-current", "step");
      return step;
    }));
    if (words && words.step === null) {
      const other = element("span", "workbench-step", words.state);
      other.setAttribute("aria-current", "step");
      steps.append(other);
    }
    for (const [name, each] of Object.entries(buttons)) each.disabled = over || !(words?.commands[name] ?? false);
    buttons.start.disabled = over || !((ended && begins) || words?.commands.start);
    buttons.start.textContent = words?.paused && !ended ? "Go on" : "Start";
    const steerable = !over && (words?.commands.change || (ended && begins));
    for (const each of [objective, slowdown.slider]) each.disabled = !steerable;
    const [name, bound] = words && !(ended && begins) ? [words.objective, words.bound] : [wanted.objective ?? objective.options[0]?.value, wanted.bound];
    if (name && ![...objective.options].some((option) => option.value === name)) objective.add(new Option(name, name)); // one of the caller's own
    if (document.activeElement !== objective || words?.objective === objective.value) objective.value = name;
    slowdown.show(bound);
    events.replaceChildren(...(words?.events ?? []).map(([at, text]) => element("div", "", `${minutes(at)}  ${text}`)));
  }
  function take(message, buffers) {
    title.textContent = message.title.replace(/ ?\(simulated\)/g, "");
    badge.hidden = !message.simulated;
    say(message);
    if (message.drawing) {
      const view = buffers[0];
      drawing = message.drawing;
      table = new Float32Array(view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength));
      redraw();
    }
    root.workbench = { plots, words: message.words, drawing, table, slowdown, knob: shown };
  }
  return {
    greeting(message, buffers, Bokeh) {
      about = message;
      objective.replaceChildren(...Object.entries(message.objectives).map(([name, words]) => {
        const option = element("option", "", words);
        option.value = name;
        return option;
      }));
      plots ??= new ClocksPlots(Bokeh, place, readTheme(message.theme), message.inks);
      slowdown.waits = null; // what was asked before is answered by this
      over = message.state !== "running";
      take(message, buffers);
    },
    message(message, buffers) {
      if (message.kind !== "news") return;
      if (message.asked !== undefined && message.asked !== null) slowdown.answered(message.asked);
      take(message, buffers);
    },
    recolour() {
      plots?.recolour(readTheme(about.theme));
    },
    state({ running, queued, greeted }) {
      over = greeted && !running;
      waits.textContent = !greeted ? "loading" : queued ? "what you choose is done when the kernel has finished its cell" : "";
      root.classList.toggle("workbench-queued", queued);
    },
    dispose() {
      plots?.dispose();
    },
  };
}

export default { render: livePanel(tuner) };
