// The iterations of a GPU: words, the folded iteration, the spectrum. Used by the live view and by the inspection view.
import { element } from "./base.js";

const NARROW = 3; // pixels that an iteration must have to be drawn on the power
const DECADES = [0.001, 0.01, 0.1, 1, 10, 100, 1000].flatMap((power) => [power, 2 * power, 5 * power]);
const SIZES = [3, 2, 4, 2]; // columns of spans, folded, shape, spectrum

/** The four tables that follow `row` in a message's numbers. */
export function periodTables(sizes, numbers, from) {
  let at = from;
  return SIZES.map((columns, which) => {
    const table = Array.from({ length: columns }, () => new Float64Array(sizes[which]));
    for (let row = 0; row < sizes[which]; row += 1) for (let column = 0; column < columns; column += 1) table[column][row] = numbers[at++];
    return table;
  });
}

/** Iterations and pauses as they are known: new ones take the place of what came after the first of them. */
export class Spans {
  constructor() {
    this.rows = [];
  }
  take(since, [starts, ends, pauses]) {
    const fresh = [...starts].map((start, row) => [start, ends[row], pauses[row] > 0]);
    const slack = fresh.length ? 0.5 * (fresh[0][1] - fresh[0][0]) : 0;
    const kept = since === null ? [] : this.rows.filter(([start, end]) => start < since - 1e-4 && end <= since + slack);
    this.rows = [...kept, ...fresh];
  }
  /** Strips for a stretch of time that is `width` pixels wide: every other iteration, and the pauses. */
  strips(from, to, width) {
    const seen = this.rows.filter(([start, end]) => end > from && start < to);
    const turns = this.rows.map(([start, end, pause], row) => [start, end, pause, row]).filter(([, , pause]) => !pause);
    const lengths = seen.filter(([, , pause]) => !pause).map(([start, end]) => end - start).sort((a, b) => a - b);
    const narrow = lengths.length > 0 && (lengths[lengths.length >> 1] / (to - from)) * width < NARROW;
    const every = narrow ? [] : turns.filter(([start, end], number) => number % 2 === 1 && end > from && start < to);
    return { turns: every, pauses: seen.filter(([, , pause]) => pause), narrow };
  }
}

/** Strips of a plot's ground: every other iteration light, pauses darker. */
export function addStrips(Bokeh, plot) {
  const { ColumnDataSource, VStrip } = Bokeh.Models;
  const make = (alpha) => {
    const source = new ColumnDataSource({ data: { x0: [], x1: [] } });
    const glyph = new VStrip({ x0: { field: "x0" }, x1: { field: "x1" }, fill_alpha: alpha, line_color: null });
    plot.add_glyph(glyph, source, { level: "underlay" });
    return { source, glyph };
  };
  const [turns, pauses] = [make(0.09), make(0.22)];
  const fill = (source, rows) => {
    source.data = { x0: rows.map(([start]) => start), x1: rows.map(([, end]) => end) };
  };
  return {
    count: () => turns.source.get_length() ?? 0,
    draw(strips) {
      fill(turns.source, strips.turns);
      fill(pauses.source, strips.pauses);
    },
    recolour(colours) {
      for (const { glyph } of [turns, pauses]) glyph.fill_color = colours.text;
    },
  };
}

/** Words, fold and spectrum. `post` sends to the kernel what a person chooses. */
export class PeriodView {
  constructor(post) {
    this.post = post;
    this.headline = element("div", "workbench-headline");
    this.details = element("div", "workbench-details");
    this.levels = element("span", "workbench-levels");
    this.chosen = element("select", "workbench-follow");
    this.chosen.setAttribute("aria-label", "GPU whose iterations are shown");
    this.chosen.addEventListener("change", () => post({ kind: "follow", gpu: Number(this.chosen.value) }));
    this.place = element("div", "workbench-plots");
    const below = element("div", "workbench-head", this.details, element("span", "workbench-space"), this.levels, this.chosen);
    this.root = element("div", "workbench-period", this.headline, below, this.place);
    this.root.hidden = true;
    this.plots = null;
    this.about = null;
  }
  greeting(gpus, Bokeh, colours) {
    this.root.hidden = false;
    this.gpus = gpus;
    this.bokeh = Bokeh;
    this.colours = colours;
    this.chosen.replaceChildren(...gpus.map((gpu, number) => new Option(`Iterations of GPU ${gpu.index}`, String(number))));
    this.chosen.hidden = gpus.length === 1;
    if (!this.about) this.headline.textContent = "Looking for the iteration";
  }
  take(about, [, folded, shape, spectrum]) {
    this.about = about;
    this.headline.textContent = about.headline;
    this.headline.dataset.sure = String(about.sure);
    this.details.textContent = about.details.join(" · ");
    this.chosen.value = String(about.gpu);
    this.offer(about);
    if (!spectrum[0].length && !folded[0].length && !this.plots) return;
    if (!this.plots) this.plots = new PeriodPlots(this.bokeh, this.place, this.colours);
    this.plots.draw(about, folded, shape, spectrum, this.gpus[about.gpu].colour);
  }
  /** Buttons for the levels that were found, where there are several. */
  offer(about) {
    const key = JSON.stringify([about.levels, about.level]);
    if (key === this.offered) return;
    this.offered = key;
    const buttons = about.levels.length < 2 ? [] : about.levels.map((level) => {
      const button = element("button", "workbench-chip", level.words);
      button.title = `fold the ${level.name}`;
      button.setAttribute("aria-pressed", String(about.level?.name === level.name));
      button.addEventListener("click", () => this.post({ kind: "level", name: level.name }));
      return button;
    });
    this.levels.replaceChildren(...buttons);
  }
  recolour(colours) {
    this.colours = colours;
    this.plots?.recolour(colours);
  }
  dispose() {
    this.plots?.dispose();
  }
}

class PeriodPlots {
  constructor(Bokeh, place, colours) {
    const { Plot, Range1d, LinearAxis, LogAxis, LogScale, Grid, BasicTicker, FixedTicker, Row, Line, VArea, VStrip, Text, VSpan, ColumnDataSource, Title,
      HoverTool, CustomJSTickFormatter } = Bokeh.Models;
    const { Document } = Bokeh.require("document");
    this.place = place;
    const words = { axis_label_text_font_style: "normal", axis_label_text_font_size: "11px", major_label_text_font_size: "11px",
      minor_tick_line_color: null };
    const base = { height: 190, sizing_mode: "stretch_width", toolbar_location: null, min_border_top: 4, min_border_bottom: 4, min_border_right: 14,
      outline_line_color: null, background_fill_color: null, border_fill_color: null, lod_threshold: null };
    const title = (text) => new Title({ text, text_font_size: "11px", text_font_style: "normal", offset: 0, standoff: 2 });
    const source = (...names) => new ColumnDataSource({ data: Object.fromEntries(names.map((name) => [name, []])) });
    const frame = (x, y, left, below, text, more) => {
      const plot = new Plot({ ...base, ...more, x_range: x, y_range: y, title: title(text) });
      plot.add_layout(left, "left");
      plot.add_layout(below, "below");
      const grid = new Grid({ dimension: 1, axis: left });
      plot.add_layout(grid, "center");
      return { plot, grid, axes: [left, below] };
    };

    this.x = new Range1d({ start: 0, end: 1 });
    this.y = new Range1d({ start: 0, end: 100 });
    const leftFold = new LinearAxis({ ...words, axis_label: "Power (W)", axis_label_standoff: 4, ticker: new BasicTicker({ desired_num_ticks: 4 }) });
    const belowFold = new LinearAxis({ ...words, axis_label_standoff: 2, axis_label: "seconds since its start" });
    this.fold = frame(this.x, this.y, leftFold, belowFold, "", { min_border_left: 58 });
    this.folded = source("x", "y");
    this.shape = source("x", "low", "y", "high");
    this.lines = new Line({ x: { field: "x" }, y: { field: "y" }, line_width: 0.8, line_alpha: 0.3, line_join: "round" });
    this.band = new VArea({ x: { field: "x" }, y1: { field: "low" }, y2: { field: "high" }, fill_alpha: 0.2 });
    this.median = new Line({ x: { field: "x" }, y: { field: "y" }, line_width: 2, line_join: "round" });
    this.fold.plot.add_glyph(this.band, this.shape);
    this.fold.plot.add_glyph(this.lines, this.folded);
    this.waits = source("x0", "x1", "x", "y", "text", "align");
    this.wait = new VStrip({ x0: { field: "x0" }, x1: { field: "x1" }, fill_alpha: 0.14, line_color: null });
    this.waitWords = new Text({ x: { field: "x" }, y: { field: "y" }, text: { field: "text" }, text_align: { field: "align" }, text_baseline: "top", text_font_size: "11px" });
    this.fold.plot.add_glyph(this.wait, this.waits, { level: "underlay" });
    this.fold.plot.add_glyph(this.waitWords, this.waits);
    const median = this.fold.plot.add_glyph(this.median, this.shape);
    const tooltips = [["at", "@x{0.000} s"], ["median", "@y{0} W"], ["eight of ten", "@low{0} to @high{0} W"]];
    this.fold.plot.add_tools(new HoverTool({ renderers: [median], mode: "vline", line_policy: "nearest", tooltips }));

    this.periods = new Range1d({ start: 0.05, end: 10 });
    this.amplitudes = new Range1d({ start: 0, end: 1.15 });
    const leftSpectrum = new LinearAxis({ ...words, major_label_text_font_size: "0px", major_tick_line_color: null });
    const belowSpectrum = new LogAxis({ ...words, axis_label: "period (s)", axis_label_standoff: 2, ticker: new FixedTicker({ ticks: DECADES }),
      formatter: new CustomJSTickFormatter({ code: "return String(Number(tick.toPrecision(2)))" }) });
    this.spectrum = frame(this.periods, this.amplitudes, leftSpectrum, belowSpectrum, "Spectrum of the power", { min_border_left: 24, x_scale: new LogScale() });
    this.amplitude = source("x", "y");
    this.chosen = source("x", "y", "text", "offset", "align");
    this.others = source("x", "y", "text", "offset", "align");
    this.curve = new Line({ x: { field: "x" }, y: { field: "y" }, line_width: 1.3, line_join: "round" });
    const curve = this.spectrum.plot.add_glyph(this.curve, this.amplitude);
    this.spectrum.plot.add_tools(new HoverTool({ renderers: [curve], mode: "vline", line_policy: "nearest", tooltips: [["period", "@x{0.000} s"]] }));
    this.rules = [];
    this.texts = [];
    for (const [levels, dash, alpha] of [[this.chosen, [], 0.9], [this.others, [3, 3], 0.6]]) {
      const rule = new VSpan({ x: { field: "x" }, line_dash: dash, line_alpha: alpha });
      const text = new Text({ x: { field: "x" }, y: { field: "y" }, text: { field: "text" }, text_align: { field: "align" }, text_font_size: "11px",
        x_offset: { field: "offset" }, text_baseline: "top" });
      this.spectrum.plot.add_glyph(rule, levels);
      this.spectrum.plot.add_glyph(text, levels);
      this.rules.push(rule);
      this.texts.push(text);
    }

    this.row = new Row({ children: [this.fold.plot, this.spectrum.plot], sizing_mode: "stretch_width", spacing: 0 });
    this.recolour(colours);
    this.document = new Document();
    this.document.add_root(this.row);
    this.views = Bokeh.embed.add_document_standalone(this.document, place);
  }
  recolour(colours) {
    for (const { plot, grid, axes } of [this.fold, this.spectrum]) {
      plot.title.text_color = colours.faint_text;
      grid.grid_line_color = colours.line;
      for (const axis of axes) {
        axis.setv({ axis_line_color: colours.frame, major_label_text_color: colours.faint_text, axis_label_text_color: colours.faint_text });
        if (axis.major_tick_line_color !== null) axis.major_tick_line_color = colours.frame;
      }
    }
    this.spectrum.grid.grid_line_color = null;
    this.median.line_color = colours.text;
    this.wait.fill_color = colours.text;
    this.waitWords.text_color = colours.faint_text;
    for (const rule of this.rules) rule.line_color = colours.text;
    for (const text of this.texts) text.text_color = colours.text;
  }
  draw(about, folded, shape, spectrum, colour) {
    for (const glyph of [this.lines, this.curve]) glyph.line_color = colour;
    this.band.fill_color = colour;
    const level = about.level;
    this.fold.plot.visible = level !== null && shape[0].length > 0;
    if (this.fold.plot.visible) {
      let top = 1;
      for (const values of [folded[1], shape[3]]) for (const value of values) if (value > top) top = value;
      this.folded.data = { x: folded[0], y: folded[1] };
      this.shape.data = { x: shape[0], low: shape[1], y: shape[2], high: shape[3] };
      this.x.setv({ start: 0, end: level.seconds });
      this.y.setv({ start: 0, end: 1.15 * top });
      const name = `${level.name[0].toUpperCase()}${level.name.slice(1)}s`;
      this.fold.plot.title.text = `${name} laid over one another, and their median`;
      const waits = about.waits ? [about.waits] : [];
      const late = waits.map(([, to]) => to > 0.93 * level.seconds); // no room to the right
      this.waits.data = {
        x0: waits.map(([from]) => from), x1: waits.map(([, to]) => to), align: late.map((is) => (is ? "right" : "center")),
        x: waits.map(([from, to], row) => (late[row] ? to - 0.01 * level.seconds : (from + to) / 2)),
        y: waits.map(() => 1.14 * top), text: waits.map(() => "waits"),
      };
    }
    this.amplitude.data = { x: spectrum[0], y: spectrum[1] };
    if (spectrum[0].length) this.periods.setv({ start: spectrum[0][0], end: spectrum[0].at(-1) });
    const inside = about.levels.map((one, row) => ({ ...one, row })).filter(({ seconds }) => seconds >= this.periods.start && seconds <= this.periods.end);
    const place = ({ seconds }) => Math.log(seconds / this.periods.start) / Math.log(this.periods.end / this.periods.start);
    const put = (source, levels) => {
      source.data = {
        x: levels.map((one) => one.seconds), y: levels.map((one) => 1.13 - 0.11 * one.row), text: levels.map((one) => one.words),
        align: levels.map((one) => (place(one) > 0.6 ? "right" : "left")), offset: levels.map((one) => (place(one) > 0.6 ? -5 : 5)),
      };
    };
    put(this.chosen, inside.filter((one) => one.name === level?.name));
    put(this.others, inside.filter((one) => one.name !== level?.name));
  }
  dispose() {
    this.views.then((views) => (views.clear ? views.clear() : [...views].forEach((view) => view.remove()))).catch(() => {});
    this.document.clear();
  }
}
