// @ts-check
// The plots of a tuner: energy against time, and beside it what its settings are over: one knob, or the plane of clocks.
/** @import { ClocksDrawing } from "./messages" */
import { numbers, pick } from "./formats.js";
import { Figure, addBound, addErrors, column, columns, span } from "./plots.js";

const LEVELS = 6; // of the ground of the plane of clocks
const KNOBS = { clocks: "SM clock (MHz)", sm: "SM clock (MHz)", limit: "power limit (W)" };
const COLUMNS = 8; // of the table of what is believed
const PLOT = { height: 270 };
const TICKS = /** @type {[number, number]} */ ([6, 6]);
const AXES = { line_alpha: 0.45 };
const WAY = { ...columns("x", "y"), line_alpha: 0.35 };
const RING = { ...columns("x", "y"), size: 23, fill_color: null, line_dash: [2, 2] };
const NUMBER = { text_font_size: "10px", text_baseline: "middle", text_align: column("align"), x_offset: column("dx"), y_offset: column("dy") };
const NAME = { text_font_style: "bold", text_align: column("align"), x_offset: column("dx"), text_baseline: "top" };

const stop = (colour) => ({ ...columns("x", "y"), size: 9, fill_color: colour, fill_alpha: column("fill"), line_color: colour, line_width: 1.6 });

const choice = (colour) => ({ ...columns("x", "y"), size: 16, fill_color: null, line_color: colour, line_width: 2.6 });

function settingWords([limit, sm, mem]) {
  const words = [[limit, `${limit} W`], [sm, `SM ${sm} MHz`], [mem, `memory ${mem} MHz`]];
  return words.filter(([value]) => !Number.isNaN(value)).map(([, each]) => each).join(", ");
}

/** Rows of the probes that pass. @returns {number[]} */
const rowsOf = (probes, test) => probes.n.map((_, row) => row).filter(test);

/** Whether probes were counted in, as columns that fill a mark or leave it hollow. */
const fills = (probes, rows) => rows.map((row) => (probes.whole[row] ? 1 : 0));

/** The numbers of probes at their points on a plane. */
function numbered(probes, plane, rows) {
  const [across, up] = [probes[`${plane} across`], probes[`${plane} up`]];
  return {
    text: rows.map((row) => String(probes.n[row])), dx: rows.map((row) => across[row]), dy: rows.map((row) => -up[row]),
    align: rows.map((row) => (across[row] < 0 ? "right" : across[row] > 0 ? "left" : "center")),
  };
}

/** A point as columns; none where it is not known. */
function spot(mark, x, y) {
  const known = mark && (x ?? null) !== null && (y ?? null) !== null;
  return known ? { x: [x], y: [y] } : { x: [], y: [] };
}

/** The same with the words of the choice. */
function chosenSpot(mark, x, y, [start, end]) {
  const point = spot(mark, x, y);
  // Nothing lies below and left of the best; only at the edge there is no room.
  const left = point.x.map((value) => value > start + 0.3 * (end - start));
  return { ...point, text: point.x.map(() => mark.words), align: left.map((on) => (on ? "right" : "left")), dx: left.map((on) => (on ? -9 : 14)) };
}

/** Energy against time: what is believed of all settings, the probes in order, the choice. */
class Trade {
  constructor(figure, inks, zero) {
    const frame = figure.frame({ title: "Energy against the default (%)", label: "time against the default (%)", ticks: TICKS, plot: PLOT });
    this.frame = frame;
    this.believed = figure.source("time", "energy", "time_error", "energy_error", "words");
    this.way = figure.source("x", "y");
    this.tried = figure.source("x", "y", "fill", "n", "words", "cost", "time_error", "energy_error");
    this.again = figure.source("x", "y", "words", "cost");
    this.numbers = figure.source("x", "y", "text", "dx", "dy", "align");
    this.marks = figure.source("x", "y", "text", "align", "dx");
    this.now = figure.source("x", "y");
    this.usual = figure.source("x", "y", "text");
    this.bound = addBound(figure, frame, inks.time);
    figure.glyph(frame, "HSpan", { y: column("at"), ...AXES }, zero, { ink: "line_color" });
    figure.glyph(frame, "VSpan", { x: column("at"), ...AXES }, zero, { ink: "line_color" });
    const pale = { x: column("time"), y: column("energy"), size: 5, fill_color: inks.energy, fill_alpha: 0.28, line_color: null };
    const believed = figure.glyph(frame, "Scatter", pale, this.believed);
    figure.glyph(frame, "Line", WAY, this.way, { ink: "line_color" });
    this.errors = addErrors(figure, frame, inks.energy);
    const square = { ...columns("x", "y"), marker: "square", size: 7, fill_color: null, line_width: 1.6 };
    const again = figure.glyph(frame, "Scatter", square, this.again, { ink: "line_color" });
    figure.glyph(frame, "Scatter", square, this.usual, { ink: "line_color" });
    figure.words(frame, this.usual, { text_font_size: "10px", text_align: "right", text_baseline: "top", x_offset: -7, y_offset: 4 });
    const tried = figure.glyph(frame, "Scatter", stop(inks.energy), this.tried);
    figure.words(frame, this.numbers, NUMBER);
    figure.glyph(frame, "Scatter", RING, this.now, { ink: "line_color" });
    figure.glyph(frame, "Scatter", choice(inks.chosen), this.marks);
    figure.words(frame, this.marks, { ...NAME, y_offset: 5 });
    const change = [["time", "@time{+0.0} % ± @time_error{0.0}"], ["energy", "@energy{+0.0} % ± @energy_error{0.0}"]];
    const measured = [["time", "@x{+0.0} % ± @time_error{0.0}"], ["energy", "@y{+0.0} % ± @energy_error{0.0}"]];
    figure.hover(frame, [tried], [["probe", "@n: @words"], ...measured, ["took", "@cost"]]);
    figure.hover(frame, [again], [["default", "@words"], ["took", "@cost"]]);
    figure.hover(frame, [believed], [["believed", "@words"], ...change], { limit: 1 });
  }
  draw(/** @type {ClocksDrawing} */ { bound, probes, ranges, default: usual, current, choice: chosen }, table) {
    span(this.frame.x, ranges.time);
    span(this.frame.y, ranges.energy);
    this.bound.draw(bound, `within ${bound} %`);
    const rows = [];
    for (let at = 0; at < table.length; at += COLUMNS) {
      if (table[at + 3] <= ranges.time[1] && table[at + 5] <= ranges.energy[1]) rows.push(table.subarray(at, at + COLUMNS));
    }
    const believed = (number) => Float64Array.from(rows, (row) => row[number]);
    this.believed.data = { time: believed(3), time_error: believed(4), energy: believed(5), energy_error: believed(6), words: rows.map(settingWords) };
    const known = rowsOf(probes, (row) => probes.time[row] !== null && probes.energy[row] !== null);
    const counted = known.filter((row) => probes.n[row] !== null);
    const again = known.filter((row) => probes.n[row] === null);
    const places = pick(probes, counted, { x: "time", y: "energy" });
    this.way.data = places;
    this.errors(known.map((row) => ({ x: probes.time[row], y: probes.energy[row], dx: probes.time_error[row], dy: probes.energy_error[row] })));
    const { time_error, energy_error, ...told } = pick(probes, counted, { n: "n", words: "words", cost: "cost", time_error: "time_error", energy_error: "energy_error" });
    this.tried.data = { ...places, ...told, fill: fills(probes, counted), time_error: numbers(time_error), energy_error: numbers(energy_error) };
    this.again.data = pick(probes, again, { x: "time", y: "energy", words: "words", cost: "cost" });
    this.numbers.data = { ...places, ...numbered(probes, "trade", counted) };
    this.usual.data = { x: [usual.time], y: [usual.energy], text: ["default"] };
    this.now.data = spot(current, current?.time, current?.energy);
    this.marks.data = chosenSpot(chosen, chosen?.time, chosen?.energy, ranges.time);
  }
}

/** Time and energy over one knob, with what is believed of them. */
class KnobLine {
  constructor(figure, inks, zero) {
    const frame = figure.frame({ title: "Change against the default (%)", ticks: TICKS, plot: PLOT });
    this.frame = frame;
    this.inks = inks;
    this.spans = figure.source("low", "high");
    this.curve = figure.source("x", "time", "time_low", "time_high", "energy", "energy_low", "energy_high");
    this.probes = { time: figure.source("x", "y", "fill"), energy: figure.source("x", "y", "fill") };
    this.numbers = figure.source("x", "y", "text", "dx", "dy", "align");
    this.names = figure.source("x", "y", "text", "colour", "dy");
    this.at = figure.source("x", "y", "text", "align", "dx");
    this.now = figure.source("x");
    const allowed = { x0: column("low"), x1: column("high"), fill_color: inks.time, fill_alpha: 0.09, line_color: null };
    figure.glyph(frame, "VStrip", allowed, this.spans, { level: "underlay" });
    figure.glyph(frame, "HSpan", { y: column("at"), ...AXES }, zero, { ink: "line_color" });
    for (const name of ["time", "energy"]) {
      const band = { base: column("x"), lower: column(`${name}_low`), upper: column(`${name}_high`), source: this.curve };
      frame.plot.add_layout(new figure.models.Band({ ...band, fill_color: inks[name], fill_alpha: 0.13, line_color: null }));
      const curve = figure.glyph(frame, "Line", { x: column("x"), y: column(name), line_color: inks[name], line_alpha: 0.55, line_width: 1.6 }, this.curve);
      if (name === "energy") figure.hoverLine(frame, curve, [["at", "@x"], ["time", "@time{+0.0} %"], ["energy", "@energy{+0.0} %"]]);
      figure.glyph(frame, "Scatter", { ...stop(inks[name]), size: 8 }, this.probes[name]);
    }
    figure.words(frame, this.numbers, NUMBER);
    // The corner below the default is empty: it would be less energy for nothing.
    const corner = { text_color: column("colour"), text_font_size: "11px", text_font_style: "bold", text_align: "right", text_baseline: "bottom" };
    figure.glyph(frame, "Text", { ...columns("x", "y", "text"), ...corner, x_offset: -6, y_offset: column("dy") }, this.names);
    figure.glyph(frame, "VSpan", { ...columns("x"), line_dash: [2, 2] }, this.now, { ink: "line_color" });
    figure.glyph(frame, "VSpan", { ...columns("x"), line_color: inks.chosen, line_width: 2 }, this.at);
    figure.words(frame, this.at, { ...NAME, y_offset: 2 });
  }
  draw(/** @type {ClocksDrawing} */ { bound, lines, probes, ranges, current, choice: chosen }, knob) {
    const [{ frame }, line] = [this, lines[knob]];
    const [across, change] = [ranges[knob], ranges[`${knob} change`]];
    frame.below.axis_label = KNOBS[knob];
    span(frame.x, across);
    span(frame.y, change);
    this.spans.data = bound === null ? { low: [], high: [] } : { low: line.allowed_from, high: line.allowed_to };
    const curve = { x: line.x };
    for (const name of ["time", "energy"]) {
      const error = (row) => line[`${name}_error`][row] ?? 0;
      curve[name] = numbers(line[name]);
      curve[`${name}_low`] = curve[name].map((value, row) => value - error(row));
      curve[`${name}_high`] = curve[name].map((value, row) => value + error(row));
    }
    this.curve.data = curve;
    const own = knob === "limit" ? "limit_w" : "sm_mhz";
    const rows = rowsOf(probes, (row) => probes.n[row] !== null && probes[own][row] !== null && probes.energy[row] !== null);
    for (const name of ["time", "energy"]) {
      const { x, y } = pick(probes, rows, { x: own, y: name });
      this.probes[name].data = { x, y: numbers(y), fill: fills(probes, rows) };
    }
    this.numbers.data = { ...pick(probes, rows, { x: own, y: "energy" }), ...numbered(probes, knob, rows) };
    this.names.data = { x: [across[1], across[1]], y: [change[0], change[0]], text: ["time", "energy"], colour: [this.inks.time, this.inks.energy], dy: [-4, -19] };
    const [at, now] = [chosen?.[own] ?? null, current?.[own] ?? null];
    this.now.data = { x: now === null ? [] : [now] };
    const right = at > across[0] + 0.75 * (across[1] - across[0]);
    this.at.data = at === null ? { x: [], y: [], text: [], align: [], dx: [] }
      : { x: [at], y: [change[1]], text: [`${at} ${knob === "limit" ? "W" : "MHz"}`], align: [right ? "right" : "left"], dx: [right ? -5 : 5] };
  }
}

/** The plane of SM and memory clocks. */
class ClockPlane {
  constructor(figure, inks) {
    const frame = figure.frame({ title: "Memory clock (MHz); green: less energy, framed: allowed", label: KNOBS.clocks, ticks: TICKS, plot: PLOT });
    frame.grid.visible = false;
    this.frame = frame;
    this.figure = figure;
    this.inks = inks;
    this.shaded = figure.source("left", "right", "top", "bottom", "colour", "alpha");
    this.framed = figure.source("left", "right", "top", "bottom");
    this.steps = figure.source("x", "y");
    this.stops = figure.source("x", "y", "fill", "n", "words", "cost", "time", "energy");
    this.numbers = figure.source("x", "y", "text", "dx", "dy", "align");
    this.now = figure.source("x", "y");
    this.marks = figure.source("x", "y", "text", "align", "dx");
    const sides = columns("left", "right", "top", "bottom");
    figure.glyph(frame, "Quad", { ...sides, fill_color: column("colour"), fill_alpha: column("alpha"), line_color: null }, this.shaded);
    figure.glyph(frame, "Quad", { ...sides, fill_color: null, line_alpha: 0.7, line_width: 1.2 }, this.framed, { ink: "line_color" });
    figure.glyph(frame, "Line", WAY, this.steps, { ink: "line_color" });
    const stops = figure.glyph(frame, "Scatter", stop(inks.energy), this.stops);
    figure.words(frame, this.numbers, NUMBER);
    figure.glyph(frame, "Scatter", RING, this.now, { ink: "line_color" });
    figure.glyph(frame, "Scatter", choice(inks.chosen), this.marks);
    figure.hover(frame, [stops], [["probe", "@n: @words"], ["time", "@time{+0.0} %"], ["energy", "@energy{+0.0} %"], ["took", "@cost"]]);
  }
  draw(/** @type {ClocksDrawing} */ { bound, mem_clocks: memories, shaded, allowed, probes, ranges, current, choice: chosen }) {
    span(this.frame.x, ranges.clocks);
    span(this.frame.y, [-0.5, memories.length - 0.5]);
    this.figure.ticks(this.frame.left, [...memories.keys()], memories.map(String));
    const quads = (cells) => ({ left: cells.from, right: cells.to, top: cells.row.map((row) => row + 0.46), bottom: cells.row.map((row) => row - 0.46) });
    this.shaded.data = {
      ...quads(shaded), colour: shaded.shade.map((shade) => (shade < 0 ? this.inks.time : this.inks.spent)),
      alpha: shaded.shade.map((shade) => 0.06 + (shade < 0 ? 0.5 : 0.2) * (Math.abs(shade) / LEVELS) ** 1.5),
    };
    this.framed.data = bound === null ? { left: [], right: [], top: [], bottom: [] } : quads(allowed);
    const rows = rowsOf(probes, (row) => probes.n[row] !== null && probes.sm_mhz[row] !== null && memories.includes(probes.mem_mhz[row]));
    const places = { x: rows.map((row) => probes.sm_mhz[row]), y: rows.map((row) => memories.indexOf(probes.mem_mhz[row])) };
    this.steps.data = places;
    const { time, energy, ...told } = pick(probes, rows, { n: "n", words: "words", cost: "cost", time: "time", energy: "energy" });
    this.stops.data = { ...places, ...told, fill: fills(probes, rows), time: numbers(time), energy: numbers(energy) };
    this.numbers.data = { ...places, ...numbered(probes, "clocks", rows) };
    const place = (mark) => (memories.includes(mark?.mem_mhz) ? memories.indexOf(mark.mem_mhz) : null);
    this.now.data = spot(current, current?.sm_mhz, place(current));
    this.marks.data = chosenSpot(chosen, chosen?.sm_mhz, place(chosen), ranges.clocks);
  }
}

/** Two plots side by side: the plane of time and energy, and that of the settings. */
export class ClocksPlots {
  constructor(Bokeh, place, colours, inks) {
    this.figure = new Figure(Bokeh, place);
    const zero = this.figure.source("at");
    this.trade = new Trade(this.figure, inks, zero);
    this.line = new KnobLine(this.figure, inks, zero);
    this.plane = new ClockPlane(this.figure, inks);
    zero.data = { at: [0] };
    this.show(null);
    this.figure.embed(this.figure.row(...this.figure.frames), colours);
  }
  show(knob) {
    this.line.frame.plot.visible = knob === "sm" || knob === "limit";
    this.plane.frame.plot.visible = knob === "clocks";
  }
  draw(/** @type {ClocksDrawing} */ drawing, table, knob) {
    this.trade.draw(drawing, table);
    this.show(knob);
    if (knob === "clocks") this.plane.draw(drawing);
    else if (knob) this.line.draw(drawing, knob);
  }
}
