// @ts-check
// The iterations laid over one another, and the spectrum of the power.
/** @import { Period } from "./messages" */
import { column, columns, span } from "./plots.js";

const DECADES = [0.001, 0.01, 0.1, 1, 10, 100, 1000].flatMap((power) => [power, 2 * power, 5 * power]);

/** One iteration after another over the seconds since its start, their median, and what eight of ten lie in. */
export class Fold {
  constructor(figure) {
    this.frame = figure.frame({
      label: "seconds since its start", y: figure.range(0, 100), ticks: [4, 6], plot: { height: 190, min_border_left: 58 },
      left: { axis_label: "Power (W)", axis_label_standoff: 4 },
    });
    this.folded = figure.source("x", "y");
    this.shape = figure.source("x", "low", "y", "high");
    this.waits = figure.source("x0", "x1", "x", "y", "text", "align");
    const { glyph } = figure.glyph(this.frame, "VArea", { ...columns("x"), y1: column("low"), y2: column("high"), fill_alpha: 0.2 }, this.shape);
    this.band = glyph;
    this.lines = figure.glyph(this.frame, "Line", { ...columns("x", "y"), line_width: 0.8, line_alpha: 0.3, line_join: "round" }, this.folded).glyph;
    figure.glyph(this.frame, "VStrip", { ...columns("x0", "x1"), fill_alpha: 0.14, line_color: null }, this.waits, { ink: "fill_color", level: "underlay" });
    figure.words(this.frame, this.waits, { text_align: column("align"), text_baseline: "top" });
    const median = figure.glyph(this.frame, "Line", { ...columns("x", "y"), line_width: 2, line_join: "round" }, this.shape, { ink: "line_color" });
    figure.hoverLine(this.frame, median, [["at", "@x{0.000} s"], ["median", "@y{0} W"], ["eight of ten", "@low{0} to @high{0} W"]]);
  }
  draw(/** @type {Period} */ { level, waits: share }, folded, shape, colour) {
    this.lines.line_color = colour;
    this.band.fill_color = colour;
    this.frame.plot.visible = level !== null && shape[0].length > 0;
    if (!level || !shape[0].length) return;
    let top = 1;
    for (const values of [folded[1], shape[3]]) for (const value of values) if (value > top) top = value;
    this.folded.data = { x: folded[0], y: folded[1] };
    this.shape.data = { x: shape[0], low: shape[1], y: shape[2], high: shape[3] };
    span(this.frame.x, [0, level.seconds]);
    span(this.frame.y, [0, 1.15 * top]);
    this.frame.plot.title.text = `${level.name[0].toUpperCase()}${level.name.slice(1)}s laid over one another, and their median`;
    const waits = share ? [share] : [];
    const late = waits.map(([, to]) => to > 0.93 * level.seconds); // no room to the right
    this.waits.data = {
      x0: waits.map(([from]) => from), x1: waits.map(([, to]) => to), align: late.map((is) => (is ? "right" : "center")),
      x: waits.map(([from, to], row) => (late[row] ? to - 0.01 * level.seconds : (from + to) / 2)), y: waits.map(() => 1.14 * top), text: waits.map(() => "waits"),
    };
  }
}

/** How strongly the power swings at which periods, with the levels that were found. */
export class Spectrum {
  constructor(figure) {
    this.frame = figure.frame({
      title: "Spectrum of the power", x: figure.range(0.05, 10), y: figure.range(0, 1.15), left: { major_label_text_font_size: "0px", major_tick_line_color: null },
      below: figure.logAxis("period (s)", DECADES), plot: { height: 190, min_border_left: 24, x_scale: new figure.models.LogScale() },
    });
    this.frame.grid.visible = false;
    this.amplitude = figure.source("x", "y");
    this.chosen = figure.source("x", "y", "text", "offset", "align");
    this.others = figure.source("x", "y", "text", "offset", "align");
    const curve = figure.glyph(this.frame, "Line", { ...columns("x", "y"), line_width: 1.3, line_join: "round" }, this.amplitude);
    this.curve = curve.glyph;
    figure.hoverLine(this.frame, curve, [["period", "@x{0.000} s"]]);
    const words = { text_align: column("align"), x_offset: column("offset"), text_baseline: "top" };
    for (const [source, line_dash, line_alpha] of [[this.chosen, [], 0.9], [this.others, [3, 3], 0.6]]) {
      figure.glyph(this.frame, "VSpan", { ...columns("x"), line_dash, line_alpha }, source, { ink: "line_color" });
      figure.words(this.frame, source, words);
    }
  }
  draw(/** @type {Period} */ { level, levels }, /** @type {Float64Array[]} */ [periods, amplitudes], colour) {
    this.curve.line_color = colour;
    this.amplitude.data = { x: periods, y: amplitudes };
    if (periods.length) span(this.frame.x, [periods[0], periods[periods.length - 1]]);
    const { start, end } = this.frame.x;
    const inside = levels.map((one, row) => ({ ...one, row })).filter(({ seconds }) => seconds >= start && seconds <= end);
    const put = (source, known) => {
      const right = known.map(({ seconds }) => Math.log(seconds / start) / Math.log(end / start) > 0.6);
      source.data = {
        x: known.map((one) => one.seconds), y: known.map((one) => 1.13 - 0.11 * one.row), text: known.map((one) => one.words),
        align: right.map((is) => (is ? "right" : "left")), offset: right.map((is) => (is ? -5 : 5)),
      };
    };
    put(this.chosen, inside.filter((one) => one.name === level?.name));
    put(this.others, inside.filter((one) => one.name !== level?.name));
  }
}
