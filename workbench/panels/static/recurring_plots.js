// @ts-check
// The plots of a recurring job: believed costs, the profile of power limits, costs and savings over recurrences.
/** @import { RecurringView } from "./messages" */
import { numbers, percent, pick } from "./formats.js";
import { Figure, column, columns, span } from "./plots.js";

const TICKS = /** @type {[number, number]} */ ([4, 6]);
const DASHED = { line_dash: [2, 3], line_alpha: 0.6 };

/** What a recurrence is believed to cost at each batch size. */
class Believed {
  constructor(figure, [one, chosen]) {
    this.figure = figure;
    this.colours = [one, chosen];
    this.frame = figure.frame({ label: "batch size; above each: probability of costing least", ticks: TICKS });
    this.interval = figure.source("x", "low", "high", "colour");
    this.points = figure.source("x", "y", "colour", "fill", "size", "marker", "batch", "middle", "low", "high", "best", "reached", "other");
    this.shares = figure.source("x", "y", "text");
    this.crosses = figure.source("x", "y", "why");
    const ends = { x0: column("x"), x1: column("x"), y0: column("low"), y1: column("high") };
    figure.glyph(this.frame, "Segment", { ...ends, line_color: column("colour"), line_width: 3, line_alpha: 0.5 }, this.interval);
    const look = { ...columns("x", "y", "size", "marker"), line_color: column("colour"), line_width: 1.6, fill_color: column("colour"), fill_alpha: column("fill") };
    const points = figure.glyph(this.frame, "Scatter", look, this.points);
    figure.words(this.frame, this.shares, { text_align: "center", text_baseline: "bottom", y_offset: -6 });
    const cross = { ...columns("x", "y"), size: 9, marker: "x", line_width: 1.6, line_alpha: 0.6 };
    const crosses = figure.glyph(this.frame, "Scatter", cross, this.crosses, { ink: "line_color" });
    figure.hover(this.frame, [points], [
      ["batch size", "@batch"], ["believed", "@middle{0.000}"], ["90 %", "@low{0.000} to @high{0.000}"], ["costs least", "@best{0 %}"],
      ["runs", "@reached reached the target, @other did not"],
    ]);
    figure.hover(this.frame, [crosses], [["not tried", "@why"]]);
  }
  draw(/** @type {RecurringView} */ { believed, arm, unit, ranges }) {
    const [low, high] = ranges.believed;
    const { frame } = this;
    const arms = [...believed.batch.keys()];
    frame.plot.title.text = `Believed cost of a recurrence (${unit}), 90 %`;
    span(frame.y, [low, high]);
    span(frame.x, [-0.6, arms.length - 0.4]);
    this.figure.ticks(frame.below, arms, believed.batch.map(String));
    const middle = numbers(believed.middle);
    const known = arms.filter((number) => believed.middle[number] !== null);
    const within = known.filter((number) => middle[number] <= high);
    const colour = (number) => this.colours[number === arm ? 1 : 0];
    const top = (number, most) => Math.min(believed.high[number], most);
    this.interval.data = { x: within, low: within.map((number) => believed.low[number]), high: within.map((number) => top(number, high)), colour: within.map(colour) };
    const told = ["batch", "middle", "low", "high", "best", "reached", "other"];
    this.points.data = {
      ...pick(believed, known, Object.fromEntries(told.map((name) => [name, name]))), x: known, y: known.map((number) => Math.min(middle[number], 0.97 * high)),
      // Hollow: no run of it has reached the target. A triangle: it lies above.
      fill: known.map((number) => (believed.reached[number] > 0 ? 1 : 0)), size: known.map((number) => (number === arm ? 11 : 8)), colour: known.map(colour),
      marker: known.map((number) => (middle[number] > high ? "triangle" : "circle")),
    };
    const shared = within.filter((number) => believed.best[number] >= 0.005);
    this.shares.data = { x: shared, y: shared.map((number) => top(number, 0.86 * high)), text: shared.map((number) => percent(believed.best[number])) };
    const barred = arms.filter((number) => believed.barred[number]);
    this.crosses.data = { x: barred, y: barred.map(() => low + 0.05 * (high - low)), why: barred.map((number) => believed.barred[number]) };
  }
}

/** Time, energy and cost of an epoch over power limits, at the batch size that was profiled. */
class Profile {
  constructor(figure, [one, chosen, saved]) {
    this.frame = figure.frame({ label: "power limit (W)", ticks: TICKS });
    this.curves = figure.source("x", "time", "energy", "cost");
    this.names = figure.source("x", "y", "text");
    this.best = figure.source("x", "y", "text", "top");
    const line = (name, look, options) => figure.glyph(this.frame, "Line", { ...columns("x"), y: column(name), line_join: "round", ...look }, this.curves, options);
    line("time", { line_width: 1.4, line_color: saved });
    line("energy", { line_width: 1.4, line_color: one });
    const cost = line("cost", { line_width: 2.2 }, { ink: "line_color" });
    figure.hoverLine(this.frame, cost, [["limit", "@x W"], ["time", "@time{0.000}"], ["energy", "@energy{0.000}"], ["cost", "@cost{0.000}"]]);
    figure.words(this.frame, this.names, { text_baseline: "bottom", x_offset: 3, y_offset: -3 });
    figure.glyph(this.frame, "VSpan", { ...columns("x"), ...DASHED }, this.best, { ink: "line_color" });
    figure.words(this.frame, this.best, { y: column("top"), text_align: "center", text_baseline: "top" });
    figure.glyph(this.frame, "Scatter", { ...columns("x", "y"), size: 10, fill_color: chosen, line_color: chosen }, this.best);
  }
  draw(/** @type {RecurringView} */ { profile, optimum, profile_of: batch, ranges }) {
    const { limit_w: limits } = profile;
    const { frame } = this;
    frame.plot.visible = limits.length > 0;
    if (!limits.length) return;
    const [first, last] = [limits[0], limits[limits.length - 1]];
    frame.plot.title.text = `An epoch at batch size ${batch}, share of that at ${last} W`;
    span(frame.x, [first - 0.03 * (last - first), last + 0.03 * (last - first)]);
    span(frame.y, ranges.profile);
    this.curves.data = { x: limits, time: numbers(profile.time), energy: numbers(profile.energy), cost: numbers(profile.cost) };
    const names = ["time", "energy", "cost"].filter((name) => profile[name][0] !== null);
    this.names.data = { x: names.map(() => first), y: names.map((name) => profile[name][0]), text: names };
    this.best.data = optimum === null ? { x: [], y: [], text: [], top: [] }
      : { x: [limits[optimum]], y: [profile.cost[optimum]], text: [`best: ${limits[optimum]} W`], top: [ranges.profile[1]] };
  }
}

/** The cost of each recurrence, against the default's. */
class Costs {
  constructor(figure, colour) {
    this.frame = figure.frame({ label: "recurrence", ticks: TICKS });
    this.each = figure.source("x", "y", "batch");
    this.usual = figure.source("low", "high", "y", "x", "text");
    const strip = { y0: column("low"), y1: column("high"), fill_alpha: 0.1, line_color: null };
    figure.glyph(this.frame, "HStrip", strip, this.usual, { ink: "fill_color", level: "underlay" });
    figure.glyph(this.frame, "HSpan", { ...columns("y"), line_dash: [5, 4] }, this.usual, { ink: "line_color" });
    figure.words(this.frame, this.usual, { text_align: "right", text_baseline: "bottom", x_offset: -4, y_offset: -2 });
    const each = figure.glyph(this.frame, "Scatter", { ...columns("x", "y"), size: 6, fill_color: colour, line_color: colour }, this.each);
    figure.hover(this.frame, [each], [["recurrence", "@x"], ["cost", "@y{0.000}"], ["batch size", "@batch"]]);
  }
  draw(/** @type {RecurringView} */ { rows, ranges, unit, default: usual }, end) {
    this.frame.plot.title.text = `Cost of each recurrence, all its attempts (${unit})`;
    span(this.frame.x, [0, end]);
    span(this.frame.y, ranges.cost);
    this.each.data = { x: rows.recurrence, y: numbers(rows.cost), batch: rows.batch };
    this.usual.data = usual ? { low: [usual.low], high: [usual.high], y: [usual.cost], x: [end], text: ["default"] } : { low: [], high: [], y: [], x: [], text: [] };
  }
}

/** What is saved against the default, in sum. */
class Savings {
  constructor(figure, colour) {
    this.frame = figure.frame({ label: "recurrence", ticks: TICKS });
    this.sums = figure.source("x", "low", "y", "high");
    this.even = figure.source("x", "y", "text", "align", "offset");
    this.zero = figure.source("y");
    const area = { ...columns("x"), y1: column("low"), y2: column("high"), fill_color: colour, fill_alpha: 0.18 };
    figure.glyph(this.frame, "VArea", area, this.sums);
    figure.glyph(this.frame, "HSpan", { ...columns("y"), line_alpha: 0.6 }, this.zero, { ink: "line_color" });
    const sums = figure.glyph(this.frame, "Line", { ...columns("x", "y"), line_color: colour, line_width: 2, line_join: "round" }, this.sums);
    figure.glyph(this.frame, "VSpan", { ...columns("x"), ...DASHED }, this.even, { ink: "line_color" });
    figure.words(this.frame, this.even, { text_align: column("align"), text_baseline: "top", x_offset: column("offset") });
    figure.hoverLine(this.frame, sums, [["after recurrence", "@x"], ["saved", "@y{0.000}"], ["90 %", "@low{0.000} to @high{0.000}"]]);
  }
  draw(/** @type {RecurringView} */ { rows, ranges, saved_unit: unit, break_even: even }, end) {
    this.frame.plot.title.text = `Saved against the default, in sum (${unit})`;
    span(this.frame.x, [0, end]);
    span(this.frame.y, ranges.saved);
    this.sums.data = rows.saved === undefined ? { x: [], low: [], y: [], high: [] }
      : { x: rows.recurrence, low: numbers(rows.saved_low), y: numbers(rows.saved), high: numbers(rows.saved_high) };
    this.zero.data = { y: [0] };
    const right = even !== null && even > 0.6 * end;
    this.even.data = even === null ? { x: [], y: [], text: [], align: [], offset: [] }
      : { x: [even], y: [ranges.saved[1]], text: [`cheaper since ${even}`], align: [right ? "right" : "left"], offset: [right ? -4 : 4] };
  }
}

/** Four plots, two in a row. */
export class RecurringPlots {
  constructor(Bokeh, place, colours, inks) {
    const figure = new Figure(Bokeh, place);
    this.figure = figure;
    this.believed = new Believed(figure, inks);
    this.profile = new Profile(figure, inks);
    this.costs = new Costs(figure, inks[0]);
    this.savings = new Savings(figure, inks[2]);
    const [believed, profile, costs, savings] = figure.frames;
    const children = [figure.row(believed, profile), figure.row(costs, savings)];
    figure.embed(new figure.models.Column({ children, sizing_mode: "stretch_width", spacing: 4 }), colours);
  }
  draw(/** @type {RecurringView} */ view) {
    const { recurrence } = view.rows;
    const end = (recurrence[recurrence.length - 1] ?? 0) + 1;
    this.believed.draw(view);
    this.profile.draw(view);
    this.costs.draw(view, end);
    this.savings.draw(view, end);
  }
}
