// The plane of time and energy. What stays is drawn once; what a step moves lies on a canvas of its own ("overlay"), so that ten thousand
// points are not drawn again for it.
import { colourFrames, readTheme } from "./base.js";

const FEW = 300; // points, up to which all that are measured have error bars; of more only the frontier's
const PREFIXES = [[1e6, "M"], [1e3, "k"], [1, ""], [1e-3, "m"], [1e-6, "µ"]];
const LEGEND = "; hollow: predicted, pale: beaten, dashed: equal cost at eta, diamond: its optimum, bars: 95 %";
const NEAR = 14; // pixels, within which a click means a point

const numbersWith = (values, digits) => Number(values.toPrecision(digits));
/** The power of 1000 that a value is best told in, and the unit with its prefix; seconds have none above. */
export function prefixed(value, unit) {
  const [scale, prefix] = PREFIXES.find(([least]) => value >= least && !(unit === "s" && least > 1)) ?? PREFIXES.at(-1);
  return [scale, prefix + unit];
}

export class FrontierPlot {
  constructor(Bokeh, place, colours, inks, onTap) {
    const { Plot, Range1d, LinearAxis, Grid, BasicTicker, Line, Segment, Scatter, Text, VStrip, Step, Title, HoverTool, BoxZoomTool, ColumnDataSource } = Bokeh.Models;
    const { Document } = Bokeh.require("document");
    Object.assign(this, { place, inks });
    const words = { axis_label_text_font_style: "normal", axis_label_text_font_size: "11px", major_label_text_font_size: "11px", minor_tick_line_color: null };
    const source = (...names) => new ColumnDataSource({ data: Object.fromEntries(names.map((name) => [name, []])) });
    const field = (name) => ({ field: name });
    [this.x, this.y] = [new Range1d({ start: 0, end: 1 }), new Range1d({ start: 0, end: 1 })];
    const plot = new Plot({
      x_range: this.x, y_range: this.y, title: new Title({ text: "", text_font_size: "11px", text_font_style: "normal", offset: 0, standoff: 2 }), height: 320,
      sizing_mode: "stretch_width", toolbar_location: null, min_border_left: 56, min_border_right: 14, min_border_top: 4, min_border_bottom: 4,
      outline_line_color: null, background_fill_color: null, border_fill_color: null, lod_threshold: null,
    });
    this.left = new LinearAxis({ ...words, ticker: new BasicTicker({ desired_num_ticks: 6 }) });
    this.below = new LinearAxis({ ...words, axis_label_standoff: 2, ticker: new BasicTicker({ desired_num_ticks: 8, num_minor_ticks: 0 }) });
    plot.add_layout(this.left, "left");
    plot.add_layout(this.below, "below");
    this.grid = new Grid({ dimension: 1, axis: this.left });
    plot.add_layout(this.grid, "center");
    this.plot = plot;
    this.ink = []; // glyphs in the colour of the text
    const inInk = (glyph, property) => {
      this.ink.push([glyph, property]);
      return glyph;
    };
    const add = (glyph, data, level = "glyph") => plot.add_glyph(glyph, data, { level });

    // What stays.
    const names = ["x", "y", "row"];
    this.beaten = source(...names);
    this.guessed = source(...names);
    this.front = source(...names);
    this.frontGuessed = source(...names);
    this.stairs = source("x", "y");
    this.across = source("x0", "x1", "y");
    this.up = source("x", "y0", "y1");
    this.default = source("x", "y", "text", "align", "dx");
    const dot = (more) => new Scatter({ x: field("x"), y: field("y"), line_color: inks.one, fill_color: inks.one, ...more });
    const pale = add(dot({ size: 5, fill_alpha: 0.38, line_color: null }), this.beaten);
    const hollow = add(dot({ size: 6, fill_color: null, line_alpha: 0.7 }), this.guessed);
    add(new Step({ x: field("x"), y: field("y"), mode: "after", line_color: inks.one, line_alpha: 0.55 }), this.stairs);
    add(new Segment({ x0: field("x0"), x1: field("x1"), y0: field("y"), y1: field("y"), line_color: inks.one, line_alpha: 0.6 }), this.across);
    add(new Segment({ x0: field("x"), x1: field("x"), y0: field("y0"), y1: field("y1"), line_color: inks.one, line_alpha: 0.6 }), this.up);
    const solid = add(dot({ size: 8 }), this.front);
    const open = add(dot({ size: 8, fill_color: null, line_width: 1.6 }), this.frontGuessed);
    add(inInk(new Scatter({ x: field("x"), y: field("y"), marker: "square", size: 13, fill_color: null, line_width: 1.6 }), "line_color"), this.default);
    add(inInk(new Text({ x: field("x"), y: field("y"), text: field("text"), text_font_size: "10px", text_baseline: "bottom", text_align: field("align"),
      x_offset: field("dx"), y_offset: -4 }), "text_color"), this.default);

    // What a step, a bound or an eta moves.
    this.bound = source("low", "high", "x", "y", "text");
    this.iso = source("x", "y");
    this.best = source("x", "y");
    this.chosen = source("x", "y", "text", "align", "dx", "dy", "base");
    add(new VStrip({ x0: field("low"), x1: field("high"), fill_color: inks.saved, fill_alpha: 0.09, line_color: null }), this.bound, "overlay");
    add(inInk(new Text({ x: field("x"), y: field("y"), text: field("text"), text_font_size: "10px", text_baseline: "bottom", x_offset: 5, y_offset: -3 }), "text_color"),
      this.bound, "overlay");
    add(new Line({ x: field("x"), y: field("y"), line_color: inks.chosen, line_alpha: 0.8, line_dash: [6, 4] }), this.iso, "overlay");
    add(new Scatter({ x: field("x"), y: field("y"), marker: "diamond", size: 12, fill_color: inks.chosen, line_color: null }), this.best, "overlay");
    add(new Scatter({ x: field("x"), y: field("y"), size: 18, fill_color: null, line_color: inks.chosen, line_width: 2.6 }), this.chosen, "overlay");
    this.label = inInk(new Text({ x: field("x"), y: field("y"), text: field("text"), text_font_size: "11px", text_font_style: "bold", text_align: field("align"),
      x_offset: field("dx"), y_offset: field("dy"), text_baseline: field("base"), background_fill_alpha: 0.75, padding: 1 }), "text_color");
    add(this.label, this.chosen, "overlay");
    this.moving = [this.bound, this.iso, this.best, this.chosen];
    const tooltips = [["", "@words"], ["time", "@time"], ["energy", "@energy"], ["on the frontier", "@chance"], ["", "@kind"]];
    plot.add_tools(
      ...[[solid, open], [pale, hollow]].map((renderers) => new HoverTool({ renderers, tooltips, limit: 1 })),
      new BoxZoomTool(),
    );
    plot.toolbar.active_drag = null;
    plot.on_event("tap", (event) => this.tapped(event, onTap));
    plot.on_event("doubletap", () => this.fit(!this.whole));
    this.recolour(colours);
    this.document = new Document();
    this.document.add_root(plot);
    this.views = Bokeh.embed.add_document_standalone(this.document, place);
    Promise.resolve(this.views).then(() => { // the keys go to the place around it, which is one stop of the tab key, not two
      for (const each of place.querySelectorAll(".bk-Plot")) each.tabIndex = -1;
    });
  }
  recolour(colours) {
    colourFrames([{ plot: this.plot, grid: this.grid, axes: [this.left, this.below] }], this.ink, colours);
    this.label.background_fill_color = colours.background;
  }
  /** Points, drawn anew. `model` knows their columns and words. */
  draw(model, relative, whole) {
    this.model = model;
    this.relative = relative && model.reference !== null;
    this.whole = whole;
    const { ranges } = model;
    const spans = ranges[whole ? "all" : "frontier"];
    if (this.relative) {
      this.scales = [model.time[model.reference] / 100, model.energy[model.reference] / 100];
      this.shift = 100;
      this.plot.title.text = `Energy against the default (%)${LEGEND}`;
      this.below.axis_label = "time against the default (%)";
    } else {
      const [time, energy] = [prefixed(spans[0][1], "s"), prefixed(spans[1][1], "J")];
      this.scales = [time[0], energy[0]];
      this.shift = 0;
      this.plot.title.text = `Energy (${energy[1]}) ${model.each}${LEGEND}`;
      this.below.axis_label = `time (${time[1]}) ${model.each}`;
    }
    this.x.setv({ start: this.atTime(spans[0][0]), end: this.atTime(spans[0][1]) });
    this.y.setv({ start: this.atEnergy(spans[1][0]), end: this.atEnergy(spans[1][1]) });
    const groups = { beaten: [], guessed: [], front: [], frontGuessed: [] };
    for (let row = 0; row < model.count; row += 1) {
      const on = model.place[row] >= 0;
      groups[model.measured[row] ? (on ? "front" : "beaten") : on ? "frontGuessed" : "guessed"].push(row);
    }
    for (const [name, rows] of Object.entries(groups)) {
      this[name].data = {
        ...this.spots(rows), row: rows, words: rows.map((row) => model.words(row)), time: rows.map((row) => model.timeWords(row)),
        energy: rows.map((row) => model.energyWords(row)), chance: rows.map((row) => `${Math.round(100 * model.chance[row])} %`),
        kind: rows.map((row) => model.kindWords(row)),
      };
    }
    this.stairs.data = this.spots(model.front);
    const barred = model.count > FEW ? model.front : [...Array(model.count).keys()].filter((row) => model.measured[row] || model.place[row] >= 0);
    const across = barred.filter((row) => model.timeSd[row] > 0);
    const up = barred.filter((row) => model.energySd[row] > 0);
    const z = 1.96;
    this.across.data = {
      x0: across.map((row) => this.atTime(model.time[row] - z * model.timeSd[row])), x1: across.map((row) => this.atTime(model.time[row] + z * model.timeSd[row])),
      y: across.map((row) => this.atEnergy(model.energy[row])),
    };
    this.up.data = {
      x: up.map((row) => this.atTime(model.time[row])), y0: up.map((row) => this.atEnergy(model.energy[row] - z * model.energySd[row])),
      y1: up.map((row) => this.atEnergy(model.energy[row] + z * model.energySd[row])),
    };
    const usual = model.reference === null ? [] : [model.reference];
    const spot = this.spots(usual);
    const right = usual.length > 0 && this.isRight(spot.x[0]);
    this.default.data = { ...spot, text: usual.map(() => "default"), align: usual.map(() => (right ? "right" : "left")), dx: usual.map(() => (right ? -9 : 9)) };
  }
  isRight(x) {
    return x > this.x.start + 0.85 * (this.x.end - this.x.start);
  }
  atTime(seconds) {
    return seconds / this.scales[0] - this.shift;
  }
  atEnergy(joules) {
    return joules / this.scales[1] - this.shift;
  }
  spots(rows) {
    const { time, energy } = this.model;
    return { x: Float64Array.from(rows, (row) => this.atTime(time[row])), y: Float64Array.from(rows, (row) => this.atEnergy(energy[row])) };
  }
  /** The choice, the bound, the line of equal cost through the optimum of eta. */
  move({ row, best, eta, slowdown }) {
    const { model } = this;
    const at = this.spots([row]);
    const right = this.isRight(at.x[0]);
    const low = at.y[0] < this.y.start + 0.12 * (this.y.end - this.y.start);
    this.chosen.data = { ...at, text: ["chosen"], align: [right ? "right" : "left"], dx: [right ? -12 : 12], dy: [low ? -5 : 5], base: [low ? "bottom" : "top"] };
    this.best.data = this.spots([best]);
    const [bestTime, bestEnergy] = [model.time[best], model.energy[best]];
    this.iso.data = eta === 0
      ? { x: [this.atTime(bestTime), this.atTime(bestTime)], y: [this.y.start, this.y.end] }
      : this.inFrame((x) => this.atEnergy(bestEnergy + ((1 - eta) / eta) * model.maxPower * (bestTime - (x + this.shift) * this.scales[0])));
    const end = slowdown === null ? null : Math.min(this.atTime(model.referenceTime * (1 + slowdown / 100)), this.x.end);
    this.bound.data = slowdown === null
      ? { low: [], high: [], x: [], y: [], text: [] }
      : { low: [this.x.start], high: [Math.max(end, this.x.start)], x: [this.x.start], y: [this.y.start], text: [`at most ${numbersWith(slowdown, 3)} % slower`] };
  }
  /** A falling straight line as far as it lies in the frame: the canvas of what moves is not clipped to it. */
  inFrame(line) {
    const [from, to] = [this.x.start, this.x.end];
    const [first, last] = [line(from), line(to)];
    const at = (y) => (first === last ? from : from + ((y - first) / (last - first)) * (to - from));
    const [low, high] = [Math.max(from, at(this.y.end)), Math.min(to, at(this.y.start))];
    if (first === last) return { x: [from, to], y: [first, last] };
    return low < high ? { x: [low, high], y: [line(low), line(high)] } : { x: [], y: [] };
  }
  fit(whole) {
    this.onFit?.(whole);
  }
  tapped(event, onTap) {
    if (!this.model || event.x === undefined) return;
    const { inner_width: width, inner_height: height } = this.plot;
    const [perX, perY] = [width / (this.x.end - this.x.start), height / (this.y.end - this.y.start)];
    let [nearest, least] = [null, NEAR ** 2];
    for (let row = 0; row < this.model.count; row += 1) {
      const [dx, dy] = [(this.atTime(this.model.time[row]) - event.x) * perX, (this.atEnergy(this.model.energy[row]) - event.y) * perY];
      const distance = dx * dx + dy * dy - (this.model.place[row] >= 0 ? 25 : 0); // what matters is hit first
      if (distance < least) [nearest, least] = [row, distance];
    }
    if (nearest !== null) onTap(nearest);
  }
  dispose() {
    this.views.then((views) => (views.clear ? views.clear() : [...views].forEach((view) => view.remove()))).catch(() => {});
    this.document.clear();
  }
}
