// Policies side by side: nodes and power over time, shares of jobs, energy against the first, energy over what is swept.
const MOST_MARKS = 10; // values of a sweep that are written below its axis
const numbersFrom = (view, [from, to]) => view.subarray(from, to);
const POWERS = (low, high) => {
  const found = [];
  for (let n = Math.ceil(low - 1e-9); n <= high + 1e-9; n += 1) found.push(n);
  return found;
};

/** Stretches as a line of steps: [xs, ys]. */
function steps(hours, values, scale) {
  const [xs, ys] = [new Float64Array(2 * hours.length), new Float64Array(2 * hours.length)];
  for (let n = 0; n < hours.length; n += 1) {
    xs[2 * n] = (n ? hours[n - 1] : 0) / scale;
    xs[2 * n + 1] = hours[n] / scale;
    ys[2 * n] = ys[2 * n + 1] = values[n];
  }
  return [xs, ys];
}

export class ClusterPlots {
  constructor(Bokeh, place, colours, about) {
    const { Plot, Range1d, LinearAxis, Grid, BasicTicker, FixedTicker, Row, Column, MultiLine, Line, Segment, Scatter, VBar, Text, Title, HoverTool, ColumnDataSource } =
      Bokeh.Models;
    const { Document } = Bokeh.require("document");
    Object.assign(this, { place, about, FixedTicker, BasicTicker, hidden: new Set() });
    const words = { axis_label_text_font_style: "normal", axis_label_text_font_size: "11px", major_label_text_font_size: "11px", minor_tick_line_color: null };
    const source = (...names) => new ColumnDataSource({ data: Object.fromEntries(names.map((name) => [name, []])) });
    const field = (name) => ({ field: name });
    const frame = (height = 220) => {
      const [x, y] = [new Range1d({ start: 0, end: 1 }), new Range1d({ start: 0, end: 1 })];
      const plot = new Plot({
        x_range: x, y_range: y, title: new Title({ text: "", text_font_size: "11px", text_font_style: "normal", offset: 0, standoff: 2 }), height,
        sizing_mode: "stretch_width", toolbar_location: null, min_border_left: 52, min_border_right: 14, min_border_top: 4, min_border_bottom: 4,
        outline_line_color: null, background_fill_color: null, border_fill_color: null, lod_threshold: null,
      });
      const left = new LinearAxis({ ...words, ticker: new BasicTicker({ desired_num_ticks: 5 }) });
      const below = new LinearAxis({ ...words, axis_label_standoff: 2, ticker: new BasicTicker({ desired_num_ticks: 7, num_minor_ticks: 0 }) });
      plot.add_layout(left, "left");
      plot.add_layout(below, "below");
      const grid = new Grid({ dimension: 1, axis: left });
      plot.add_layout(grid, "center");
      return { plot, x, y, grid, left, below, axes: [left, below] };
    };
    const ink = [];
    const inInk = (glyph, property) => {
      ink.push([glyph, property]);
      return glyph;
    };
    const many = () => new MultiLine({ xs: field("xs"), ys: field("ys"), line_color: field("colour"), line_dash: field("dash"), line_width: 1.6, line_join: "round" });
    const several = (tooltips) => {
      const made = frame();
      made.source = source("xs", "ys", "colour", "dash", "words");
      const renderer = made.plot.add_glyph(many(), made.source);
      made.plot.add_tools(new HoverTool({ renderers: [renderer], tooltips, line_policy: "nearest" }));
      return made;
    };
    this.nodes = several([["", "@words"], ["at", "$x{0.0}"], ["active nodes", "$y{0.0}"]]);
    this.power = several([["", "@words"], ["at", "$x{0.0}"], ["kW", "$y{0.0}"]]);
    this.shares = several([["", "@words"], ["jobs below", "$y{0.00}"]]);

    this.bars = frame();
    this.bars.source = source("x", "low", "high", "colour", "alpha", "words", "ratio");
    this.bars.errors = source("x", "low", "high");
    this.bars.labels = source("x", "y", "text");
    const bar = new VBar({ x: field("x"), bottom: field("low"), top: field("high"), width: 0.62, fill_color: field("colour"), fill_alpha: field("alpha"), line_color: null });
    const bars = this.bars.plot.add_glyph(bar, this.bars.source);
    this.bars.plot.add_tools(new HoverTool({ renderers: [bars], tooltips: [["", "@words"], ["against the first", "@ratio{0.000}"]] }));
    this.bars.plot.add_glyph(inInk(new Segment({ x0: field("x"), x1: field("x"), y0: field("low"), y1: field("high"), line_width: 1.6 }), "line_color"), this.bars.errors);
    const label = new Text({ x: field("x"), y: field("y"), text: field("text"), text_font_size: "10px", text_align: "center", text_baseline: "bottom", y_offset: -3 });
    this.bars.plot.add_glyph(inInk(label, "text_color"), this.bars.labels);

    this.sweep = several([["", "@words"], ["at", "$x{0.00}"], ["MWh", "$y{0.00}"]]);
    this.sweep.errors = source("x", "low", "high", "colour");
    this.sweep.spots = source("x", "y", "colour");
    this.sweep.plot.add_glyph(new Segment({ x0: field("x"), x1: field("x"), y0: field("low"), y1: field("high"), line_color: field("colour") }), this.sweep.errors);
    this.sweep.plot.add_glyph(new Scatter({ x: field("x"), y: field("y"), size: 6, fill_color: field("colour"), line_color: null }), this.sweep.spots);

    this.ink = ink;
    this.frames = [this.nodes, this.power, this.shares, this.bars, this.sweep];
    const row = (...frames) => new Row({ children: frames.map(({ plot }) => plot), sizing_mode: "stretch_width", spacing: 0 });
    this.sweep.plot.visible = false;
    this.column = new Column({
      children: [row(this.nodes, this.power), row(this.shares, this.bars), row(this.sweep)], sizing_mode: "stretch_width", spacing: 4,
    });
    this.recolour(colours);
    this.document = new Document();
    this.document.add_root(this.column);
    this.views = Bokeh.embed.add_document_standalone(this.document, place);
  }
  colour(number) {
    return this.about.palette[number % this.about.palette.length];
  }
  dash(number) {
    return this.about.dashes[Math.floor(number / this.about.palette.length) % this.about.dashes.length];
  }
  recolour(colours) {
    for (const { plot, grid, axes } of this.frames) {
      plot.title.text_color = colours.faint_text;
      grid.grid_line_color = colours.line;
      for (const axis of axes) {
        axis.setv({ axis_line_color: colours.frame, major_tick_line_color: colours.frame, major_label_text_color: colours.faint_text, axis_label_text_color: colours.faint_text });
      }
    }
    for (const [glyph, property] of this.ink) glyph[property] = colours.text;
  }
  /** `drawn` as the kernel sends it, with its buffer as float32 in `view`; `distribution` is the name of the one that is chosen. */
  draw(drawn, view, distribution) {
    Object.assign(this, { drawn, view });
    const curves = drawn.curves.filter(({ policy }) => !this.hidden.has(policy));
    const about = (each) => ({ colour: each.map(({ number }) => this.colour(number)), dash: each.map(({ number }) => this.dash(number)), words: each.map((one) => one.words) });
    const column = (curve, name) => numbersFrom(view, curve.places[name]);
    const end = Math.max(1e-9, ...drawn.curves.map((curve) => column(curve, "hours").at(-1) ?? 0));
    const [scale, unit] = end > 72 ? [24, "days"] : [1, "hours"];
    for (const [frame, name, title] of [[this.nodes, "hosting", "Active nodes: with a job"], [this.power, "power_kw", "Power of the cluster (kW)"]]) {
      const lines = curves.map((curve) => steps(column(curve, "hours"), column(curve, name), scale));
      const top = Math.max(1e-9, ...drawn.curves.map((curve) => column(curve, name).reduce((a, b) => Math.max(a, b), 0)));
      frame.plot.title.text = title;
      frame.below.axis_label = `${unit} since the first submission`;
      frame.x.setv({ start: 0, end: end / scale });
      frame.y.setv({ start: 0, end: 1.08 * top });
      frame.source.data = { xs: lines.map(([xs]) => xs), ys: lines.map(([, ys]) => ys), ...about(curves) };
    }
    this.drawShares(curves, about, column, distribution);
    this.drawBars(drawn);
    this.drawSweep(drawn, about);
  }
  drawShares(curves, about, column, name) {
    const { shares: frame } = this;
    const [title, unit, lowest] = this.about.distributions[name];
    const logarithmic = lowest !== null;
    const [span] = this.drawn.axes[name];
    const [low, high] = logarithmic ? span.map(Math.log10) : span;
    frame.plot.title.text = `${title}: share of jobs below`;
    frame.below.axis_label = unit;
    frame.x.setv({ start: low, end: high });
    frame.y.setv({ start: 0, end: 1 });
    if (logarithmic) {
      const marks = POWERS(low, high);
      frame.below.setv({ ticker: new this.FixedTicker({ ticks: marks }), major_label_overrides: new Map(marks.map((n) => [n, String(Number((10 ** n).toPrecision(3)))])) });
    } else {
      frame.below.setv({ ticker: new this.BasicTicker({ desired_num_ticks: 7, num_minor_ticks: 0 }), major_label_overrides: new Map() });
    }
    const held = (value) => {
      const inside = Math.min(Math.max(value, span[0]), span[1]);
      return logarithmic ? Math.log10(inside) : inside;
    };
    const values = curves.map((curve) => Float64Array.from(column(curve, name), held));
    frame.source.data = { xs: values, ys: values.map((each) => each.map((_, n) => n / Math.max(1, each.length - 1))), ...about(curves) };
  }
  drawBars({ bars }) {
    const { bars: frame } = this;
    const tall = (bar) => bar.owned + bar.unowned;
    frame.plot.title.text = "Energy against the first policy; pale: nodes without a job";
    frame.below.axis_label = "policies in the order of the table";
    frame.x.setv({ start: -0.6, end: Math.max(bars.length, 1) - 0.4 });
    frame.y.setv({ start: 0, end: 1.12 * Math.max(0.1, ...bars.map((bar) => tall(bar) + (bar.error ?? 0))) });
    const places = bars.map((_, n) => n);
    frame.below.setv({ ticker: new this.FixedTicker({ ticks: places }), major_label_overrides: new Map(places.map((n) => [n, String(n + 1)])) });
    const both = [...bars.map((bar, x) => ({ ...bar, x, low: 0, high: bar.owned, alpha: 1 })), ...bars.map((bar, x) => ({ ...bar, x, low: bar.owned, high: tall(bar), alpha: 0.4 }))];
    const pick = (name) => both.map((each) => each[name]);
    frame.source.data = {
      x: pick("x"), low: pick("low"), high: pick("high"), alpha: pick("alpha"), words: pick("words"), colour: both.map(({ number }) => this.colour(number)), ratio: both.map(tall),
    };
    const wide = places.filter((n) => bars[n].error);
    frame.errors.data = { x: wide, low: wide.map((n) => tall(bars[n]) - bars[n].error), high: wide.map((n) => tall(bars[n]) + bars[n].error) };
    frame.labels.data = { x: places, y: bars.map((bar) => tall(bar) + (bar.error ?? 0)), text: bars.map((bar) => tall(bar).toFixed(2)) };
  }
  drawSweep({ sweptLines: all, sweptWords }, about) {
    const { sweep: frame } = this;
    frame.plot.visible = all.length > 0;
    if (!all.length) return;
    // "never" has no place on the axis; the table has it.
    all = all.map((each) => {
      const known = each.values.map((_, n) => n).filter((n) => Number.isFinite(each.values[n]));
      const [values, energy_mwh, error] = [each.values, each.energy_mwh, each.error].map((column) => known.map((n) => column[n]));
      return { ...each, values, energy_mwh, error };
    });
    const values = all.flatMap((each) => each.values);
    frame.plot.visible = values.length > 0;
    if (!values.length) return;
    const tops = all.flatMap((each) => each.energy_mwh.map((energy, n) => energy + (each.error[n] ?? 0)));
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const room = 0.06 * (high - low || 1);
    frame.plot.title.text = "Energy (MWh); bars: standard deviation from draw to draw";
    frame.below.axis_label = sweptWords;
    frame.x.setv({ start: low - room, end: high + room });
    frame.y.setv({ start: 0, end: 1.08 * Math.max(...tops) });
    const tried = [...new Set(values)];
    frame.below.ticker = tried.length <= MOST_MARKS ? new this.FixedTicker({ ticks: tried }) : new this.BasicTicker({ desired_num_ticks: 8, num_minor_ticks: 0 });
    frame.source.data = { xs: all.map((each) => each.values), ys: all.map((each) => each.energy_mwh), ...about(all) };
    const spots = all.flatMap((each) => each.values.map((x, n) => ({ x, y: each.energy_mwh[n], error: each.error[n], colour: this.colour(each.number) })));
    frame.spots.data = { x: spots.map(({ x }) => x), y: spots.map(({ y }) => y), colour: spots.map(({ colour }) => colour) };
    const wide = spots.filter(({ error }) => error);
    frame.errors.data = {
      x: wide.map(({ x }) => x), low: wide.map(({ y, error }) => y - error), high: wide.map(({ y, error }) => y + error), colour: wide.map(({ colour }) => colour),
    };
  }
  dispose() {
    this.views.then((views) => (views.clear ? views.clear() : [...views].forEach((view) => view.remove()))).catch(() => {});
    this.document.clear();
  }
}
