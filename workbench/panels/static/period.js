// @ts-check
// The iterations of a GPU: words, the iterations overlaid, the spectrum. Used by the live view and by the inspection view.
/** @import { Period } from "./messages" */
import { chip, element, offer, picker, put, refill, say, space } from "./controls.js";
import { highest } from "./formats.js";
import { BESIDE, Figure, TEXT, beside, column, columns, fill, fit, span } from "./plots.js";

const DECADES = [0.001, 0.01, 0.1, 1, 10, 100, 1000].flatMap((power) => [power, 2 * power, 5 * power]);
const LINE = { ...columns("x", "y"), line_join: "round" };

/** One iteration after another over the seconds since its start, their median, and what eight of ten lie in. */
class Fold {
  constructor(figure) {
    this.frame = figure.frame({
      label: "seconds since its start", y: figure.range(0, 100), ticks: [4, 6], plot: { height: 190, min_border_left: 58 }, left: { axis_label: "Power (W)" },
    });
    this.shape = figure.glyph(this.frame, "VArea", { ...columns("x"), y1: column("low"), y2: column("high"), fill_alpha: 0.2 });
    this.folded = figure.glyph(this.frame, "Line", { ...LINE, line_width: 0.8, line_alpha: 0.3 });
    const strip = { ...columns("x0", "x1"), fill_alpha: 0.14, line_color: null, fill_color: TEXT };
    this.waits = figure.glyph(this.frame, "VStrip", strip, { level: "underlay" });
    figure.words(this.frame, { text_align: column("align"), text_baseline: "top" }, { over: this.waits });
    const median = figure.glyph(this.frame, "Line", { ...LINE, line_width: 2, line_color: TEXT }, { over: this.shape });
    figure.hoverLine(this.frame, median, [["at", "@x{0.000} s"], ["median", "@y{0} W"], ["eight of ten", "@low{0} to @high{0} W"]]);
  }
  draw(/** @type {Period} */ { level, cycle, waits }, folded, shape, colour) {
    this.folded.glyph.line_color = colour;
    this.shape.glyph.fill_color = colour;
    this.frame.plot.visible = level !== null && shape[0].length > 0;
    if (!level || !shape[0].length) return;
    const top = highest(folded[1], shape[3]);
    fill(this.folded, { x: folded[0], y: folded[1] });
    fill(this.shape, { x: shape[0], low: shape[1], y: shape[2], high: shape[3] });
    const title = `${cycle[0].toUpperCase()}${cycle.slice(1)}s overlaid, median in bold`;
    fit(this.frame, [0, level.seconds], [0, 1.15 * top], { title });
    fill(this.waits, (waits ? [waits] : []).map(([x0, x1]) => {
      const late = x1 > 0.93 * level.seconds; // no room to the right
      return { x0, x1, x: late ? x1 - 0.01 * level.seconds : (x0 + x1) / 2, y: 1.14 * top, text: "waits", align: late ? "right" : "center" };
    }));
  }
}

/** How strongly the power swings at which periods, with the levels that were found. */
class Spectrum {
  constructor(figure) {
    const formatter = figure.make("CustomJSTickFormatter", { code: "return String(Number(tick.toPrecision(2)))" });
    this.frame = figure.frame({
      title: "Spectrum of the power", label: "period (s)", x: figure.range(0.05, 10), y: figure.range(0, 1.15),
      left: { major_label_text_font_size: "0px", major_tick_line_color: null }, plot: { height: 190, min_border_left: 24, x_scale: figure.make("LogScale", {}) },
      below: { kind: "LogAxis", ticker: figure.make("FixedTicker", { ticks: DECADES }), formatter },
    });
    this.frame.grid.visible = false;
    this.amplitude = figure.glyph(this.frame, "Line", { ...LINE, line_width: 1.3 });
    figure.hoverLine(this.frame, this.amplitude, [["period", "@x{0.000} s"]]);
    const marks = (line_dash, line_alpha) => {
      const lines = figure.glyph(this.frame, "VSpan", { ...columns("x"), line_dash, line_alpha, line_color: TEXT });
      figure.words(this.frame, { ...BESIDE, text_baseline: "top" }, { over: lines });
      return lines;
    };
    this.chosen = marks([], 0.9);
    this.others = marks([3, 3], 0.6);
  }
  draw(/** @type {Period} */ { marks: named }, /** @type {Float64Array[]} */ [periods, amplitudes], colour) {
    this.amplitude.glyph.line_color = colour;
    fill(this.amplitude, { x: periods, y: amplitudes });
    if (periods.length) span(this.frame.x, [periods[0], periods[periods.length - 1]]);
    const { start, end } = this.frame.x;
    const marks = named.map(([text, seconds, chosen], n) => {
      const right = Math.log(seconds / start) / Math.log(end / start) > 0.6;
      return { x: seconds, y: 1.13 - 0.11 * n, text, chosen, ...beside(right, 5) };
    }).filter(({ x }) => x >= start && x <= end);
    fill(this.chosen, marks.filter(({ chosen }) => chosen));
    fill(this.others, marks.filter(({ chosen }) => !chosen));
  }
}

/** Words, fold and spectrum. `post` sends to the kernel what a person chooses. */
export class PeriodView {
  constructor(page, post) {
    this.page = page;
    this.post = post;
    this.headline = element("div", "workbench-headline");
    this.details = element("div", "workbench-details");
    this.levels = element("span", "workbench-levels");
    this.chosen = picker("workbench-follow", "GPU whose iterations are shown", (gpu) => post({ kind: "follow", gpu: Number(gpu) }));
    this.place = element("div", "workbench-plots");
    const line = element("div", "workbench-head", this.details, space(), this.levels, this.chosen);
    this.root = element("div", "workbench-period", this.headline, line, this.place, { hidden: true });
    this.gpus = /** @type {{ index: number, colour: string }[]} */ ([]);
    this.plots = /** @type {{ fold: Fold, spectrum: Spectrum } | null} */ (null);
    this.about = /** @type {Period | null} */ (null);
    this.tables = /** @type {Float64Array[][] | null} */ (null); // that are not drawn yet
  }
  greeting(gpus) {
    put(this.root, { hidden: false });
    this.gpus = gpus;
    offer(this.chosen, gpus.map((gpu, number) => [String(number), `Iterations of GPU ${gpu.index}`]));
    put(this.chosen, { hidden: gpus.length === 1 });
    if (!this.about) say(this.headline, "Looking for the iteration");
  }
  /** News; `draw` draws them. */
  take(/** @type {Period} */ about, tables) {
    this.about = about;
    this.tables = tables;
    put(this.headline, { textContent: about.headline, "data-sure": about.sure });
    say(this.details, about.details.join(" · "));
    this.chosen.value = String(about.gpu);
    this.offer(about);
  }
  draw() {
    if (!this.tables) return;
    const [, folded, shape, spectrum] = this.tables;
    const { about } = this;
    this.tables = null;
    if (!spectrum[0].length && !folded[0].length && !this.plots) return;
    if (!this.plots) {
      const figure = new Figure(this.page, this.place);
      this.plots = { fold: new Fold(figure), spectrum: new Spectrum(figure) };
      figure.embed([figure.frames]);
    }
    const { colour } = this.gpus[about.gpu];
    this.plots.fold.draw(about, folded, shape, colour);
    this.plots.spectrum.draw(about, spectrum, colour);
  }
  /** Buttons for the levels that were found, where there are several. */
  offer(/** @type {Period} */ { levels, level }) {
    const chips = levels.length > 1 ? levels.map(({ name, words }) => [name, words, name === level?.name]) : [];
    refill(this.levels, chips, ([name, words, pressed]) => chip(words, pressed, () => this.post({ kind: "level", name }), `fold the ${name}`));
  }
}
