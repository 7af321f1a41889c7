// @ts-check
// Policies side by side: nodes and power over time, shares of jobs, energy against the first, energy over what is swept.
/** @import { ClusterBar, ClusterDrawn, ClusterGreeting, ClusterSwept } from "./messages" */
import { decades, steps } from "./formats.js";
import { Figure, column, columns, span } from "./plots.js";

const MOST_MARKS = 10; // values of a sweep that are written below its axis
const PLOT = { height: 220 };
const LINES = { xs: column("xs"), ys: column("ys"), line_color: column("colour"), line_dash: column("dash"), line_width: 1.6, line_join: "round" };

/** A frame with a line for each policy. */
class Lines {
  constructor(figure, tooltips) {
    this.frame = figure.frame({ ticks: [5, 7], plot: PLOT });
    this.plot = this.frame.plot;
    this.figure = figure;
    this.source = figure.source("xs", "ys", "colour", "dash", "words");
    const renderer = figure.glyph(this.frame, "MultiLine", LINES, this.source);
    figure.hover(this.frame, [renderer], [["", "@words"], ...tooltips], { line_policy: "nearest" });
  }
  fit(title, label, x, y) {
    this.plot.title.text = title;
    this.frame.below.axis_label = label;
    span(this.frame.x, x);
    span(this.frame.y, y);
  }
  /** Ticks of a plain axis below. */
  plain(count) {
    const ticker = new this.figure.models.BasicTicker({ desired_num_ticks: count, num_minor_ticks: 0 });
    this.frame.below.setv({ ticker, major_label_overrides: new Map() });
  }
}

/** The energy of each policy against the first's, with the part of nodes without a job. */
class Bars {
  constructor(figure) {
    this.frame = figure.frame({ label: "policies in the order of the table", title: "Energy against the first policy; pale: nodes without a job", plot: PLOT });
    this.figure = figure;
    this.source = figure.source("x", "low", "high", "colour", "alpha", "words", "ratio");
    this.errors = figure.source("x", "low", "high");
    this.labels = figure.source("x", "y", "text");
    const sides = { ...columns("x"), bottom: column("low"), top: column("high"), width: 0.62 };
    const bars = figure.glyph(this.frame, "VBar", { ...sides, fill_color: column("colour"), fill_alpha: column("alpha"), line_color: null }, this.source);
    figure.hover(this.frame, [bars], [["", "@words"], ["against the first", "@ratio{0.000}"]]);
    const error = { x0: column("x"), x1: column("x"), y0: column("low"), y1: column("high"), line_width: 1.6 };
    figure.glyph(this.frame, "Segment", error, this.errors, { ink: "line_color" });
    figure.words(this.frame, this.labels, { text_font_size: "10px", text_align: "center", text_baseline: "bottom", y_offset: -3 });
  }
  draw(/** @type {ClusterBar[]} */ bars, colour) {
    const tall = bars.map((bar) => bar.owned + bar.unowned);
    const top = bars.map((bar, n) => tall[n] + (bar.error ?? 0));
    const places = [...bars.keys()];
    span(this.frame.x, [-0.6, Math.max(bars.length, 1) - 0.4]);
    span(this.frame.y, [0, 1.12 * Math.max(0.1, ...top)]);
    this.figure.ticks(this.frame.below, places, places.map((n) => String(n + 1)));
    const twice = (owned, all) => [...bars.map(owned), ...bars.map(all)];
    const same = (value) => twice(value, value);
    this.source.data = {
      x: [...places, ...places], low: twice(() => 0, (bar) => bar.owned), high: twice((bar) => bar.owned, (_, n) => tall[n]), alpha: twice(() => 1, () => 0.4),
      words: same((bar) => bar.words), colour: same((bar) => colour(bar.number)), ratio: same((_, n) => tall[n]),
    };
    const wide = places.filter((n) => bars[n].error);
    this.errors.data = { x: wide, low: wide.map((n) => tall[n] - bars[n].error), high: wide.map((n) => top[n]) };
    this.labels.data = { x: places, y: top, text: tall.map((value) => value.toFixed(2)) };
  }
}

/** Energy over what is swept. */
class Sweep extends Lines {
  constructor(figure) {
    super(figure, [["at", "$x{0.00}"], ["MWh", "$y{0.00}"]]);
    this.errors = figure.source("x", "low", "high", "colour");
    this.spots = figure.source("x", "y", "colour");
    const error = { x0: column("x"), x1: column("x"), y0: column("low"), y1: column("high"), line_color: column("colour") };
    figure.glyph(this.frame, "Segment", error, this.errors);
    figure.glyph(this.frame, "Scatter", { ...columns("x", "y"), size: 6, fill_color: column("colour"), line_color: null }, this.spots);
  }
  draw(/** @type {ClusterSwept[]} */ all, words, plots) {
    // "never" has no place on the axis; the table has it.
    const known = all.map((each) => {
      const rows = [...each.values.keys()].filter((n) => Number.isFinite(each.values[n]));
      return { ...each, spots: rows.map((n) => ({ x: each.values[n], y: each.energy_mwh[n], error: each.error[n] ?? 0, colour: plots.colour(each.number) })) };
    });
    const spots = known.flatMap((each) => each.spots);
    this.plot.visible = spots.length > 0;
    if (!spots.length) return;
    const tried = [...new Set(spots.map(({ x }) => x))];
    const [low, high] = [Math.min(...tried), Math.max(...tried)];
    const room = 0.06 * (high - low || 1);
    const top = 1.08 * Math.max(...spots.map(({ y, error }) => y + error));
    this.fit("Energy (MWh); bars: standard deviation from draw to draw", words, [low - room, high + room], [0, top]);
    if (tried.length <= MOST_MARKS) this.figure.ticks(this.frame.below, tried);
    else this.plain(8);
    this.source.data = { xs: known.map((each) => each.spots.map(({ x }) => x)), ys: known.map((each) => each.spots.map(({ y }) => y)), ...plots.looks(known) };
    this.spots.data = { x: spots.map(({ x }) => x), y: spots.map(({ y }) => y), colour: spots.map(({ colour }) => colour) };
    const wide = spots.filter(({ error }) => error);
    this.errors.data = {
      x: wide.map(({ x }) => x), low: wide.map(({ y, error }) => y - error), high: wide.map(({ y, error }) => y + error), colour: wide.map(({ colour }) => colour),
    };
  }
}

export class ClusterPlots {
  constructor(Bokeh, place, colours, /** @type {ClusterGreeting} */ about) {
    this.about = about;
    this.hidden = new Set();
    const figure = new Figure(Bokeh, place);
    this.figure = figure;
    this.nodes = new Lines(figure, [["at", "$x{0.0}"], ["active nodes", "$y{0.0}"]]);
    this.power = new Lines(figure, [["at", "$x{0.0}"], ["kW", "$y{0.0}"]]);
    this.shares = new Lines(figure, [["jobs below", "$y{0.00}"]]);
    this.bars = new Bars(figure);
    this.sweep = new Sweep(figure);
    this.sweep.plot.visible = false;
    const [nodes, power, shares, bars, sweep] = figure.frames;
    const children = [figure.row(nodes, power), figure.row(shares, bars), figure.row(sweep)];
    figure.embed(new figure.models.Column({ children, sizing_mode: "stretch_width", spacing: 4 }), colours);
  }
  colour(number) {
    return this.about.palette[number % this.about.palette.length];
  }
  /** How the lines of policies look. */
  looks(each) {
    const { palette, dashes } = this.about;
    const dash = each.map(({ number }) => dashes[Math.floor(number / palette.length) % dashes.length]);
    return { colour: each.map(({ number }) => this.colour(number)), dash, words: each.map(({ words }) => words) };
  }
  /**
   * Draw results as the kernel sends them.
   * @param {ClusterDrawn} drawn @param {Float32Array} view its buffer @param {string} distribution the name of the one that is chosen
   */
  draw(drawn, view, distribution) {
    const curves = drawn.curves.filter(({ policy }) => !this.hidden.has(policy));
    const values = (curve, name) => view.subarray(...curve.places[name]);
    const end = Math.max(1e-9, ...drawn.curves.map((curve) => values(curve, "hours").slice(-1)[0] ?? 0));
    const [scale, unit] = end > 72 ? [24, "days"] : [1, "hours"];
    const over = (frame, name, title) => {
      const lines = curves.map((curve) => steps(values(curve, "hours"), values(curve, name), scale));
      const top = Math.max(1e-9, ...drawn.curves.map((curve) => values(curve, name).reduce((a, b) => Math.max(a, b), 0)));
      frame.fit(title, `${unit} since the first submission`, [0, end / scale], [0, 1.08 * top]);
      frame.source.data = { xs: lines.map(([xs]) => xs), ys: lines.map(([, ys]) => ys), ...this.looks(curves) };
    };
    over(this.nodes, "hosting", "Active nodes: with a job");
    over(this.power, "power_kw", "Power of the cluster (kW)");
    this.drawShares(curves, values, drawn.axes[distribution][0], distribution);
    this.bars.draw(drawn.bars, (number) => this.colour(number));
    this.sweep.draw(drawn.sweptLines, drawn.sweptWords, this);
  }
  drawShares(curves, values, [low, high], name) {
    const [title, unit, lowest] = this.about.distributions[name];
    const at = lowest === null ? (value) => value : Math.log10;
    this.shares.fit(`${title}: share of jobs below`, unit, [at(low), at(high)], [0, 1]);
    const marks = lowest === null ? [] : decades(at(low), at(high));
    if (lowest === null) this.shares.plain(7);
    else this.figure.ticks(this.shares.frame.below, marks, marks.map((n) => String(Number((10 ** n).toPrecision(3)))));
    const xs = curves.map((curve) => Float64Array.from(values(curve, name), (value) => at(Math.min(Math.max(value, low), high))));
    this.shares.source.data = { xs, ys: xs.map((each) => each.map((_, n) => n / Math.max(1, each.length - 1))), ...this.looks(curves) };
  }
}
