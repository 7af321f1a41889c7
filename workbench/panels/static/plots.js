// @ts-check
// Frames of BokehJS as all panels have them: quiet axes, the theme's colours, glyphs over columns.

/** The colours of the page's theme: {what: [variable, on light, on dark]} -> {what: colour}. */
export function readTheme(variables) {
  const dark = document.body.dataset.jpThemeLight === "false";
  const style = getComputedStyle(document.body);
  const read = ([variable, onLight, onDark]) => style.getPropertyValue(variable).trim() || (dark ? onDark : onLight);
  return Object.fromEntries(Object.entries(variables).map(([what, names]) => [what, read(names)]));
}

const WORDS = {
  axis_label_text_font_style: "normal", axis_label_text_font_size: "11px", major_label_text_font_size: "11px", minor_tick_line_color: null,
};
const BARE = {
  sizing_mode: "stretch_width", toolbar_location: null, min_border_right: 14, min_border_top: 4, min_border_bottom: 4, outline_line_color: null,
  background_fill_color: null, border_fill_color: null, lod_threshold: null,
};

/** A column of a source. */
export const column = (name) => ({ field: name });

/** Columns of a source, as properties of the same names. */
export const columns = (...names) => Object.fromEntries(names.map((name) => [name, column(name)]));

/** Frames with what is drawn in them, in one place of the page. */
export class Figure {
  constructor(Bokeh, place) {
    this.Bokeh = Bokeh;
    this.models = Bokeh.Models;
    this.place = place;
    this.frames = [];
    this.ink = []; // glyphs, their property, and which colour of the theme it takes
  }
  /** An empty table. */
  source(...names) {
    return new this.models.ColumnDataSource({ data: Object.fromEntries(names.map((name) => [name, []])) });
  }
  /** A range. */
  range(start = 0, end = 1) {
    return new this.models.Range1d({ start, end });
  }
  /**
   * A frame with an axis to the left and one below.
   * @param {{ title?: string | null, label?: string, ticks?: [number, number], x?: any, y?: any, left?: object, below?: any, plot?: object }} options `title`: null
   *   for none; `label`: of the axis below; `ticks`: about how many, left and below; `left`, `below`, `plot`: more properties of these, an axis in place of `below`
   */
  frame({ title = "", label = "", ticks = [5, 7], x = this.range(), y = this.range(), left: atLeft = {}, below: atBottom = {}, plot: more = {} }) {
    const { Plot, LinearAxis, BasicTicker, Grid, Title } = this.models;
    const heading = title === null ? {} : { title: new Title({ text: title, text_font_size: "11px", text_font_style: "normal", offset: 0, standoff: 2 }) };
    const plot = new Plot({ ...BARE, min_border_left: 52, height: 205, x_range: x, y_range: y, ...heading, ...more });
    const left = new LinearAxis({ ...WORDS, ticker: new BasicTicker({ desired_num_ticks: ticks[0] }), ...atLeft });
    const ticker = new BasicTicker({ desired_num_ticks: ticks[1], num_minor_ticks: 0 });
    const below = atBottom.type ? atBottom : new LinearAxis({ ...WORDS, axis_label: label, axis_label_standoff: 2, ticker, ...atBottom });
    plot.add_layout(left, "left");
    plot.add_layout(below, "below");
    const grid = new Grid({ dimension: 1, axis: left });
    plot.add_layout(grid, "center");
    const made = { plot, x, y, grid, left, below, axes: [left, below] };
    this.frames.push(made);
    return made;
  }
  /** An axis below whose steps are factors. */
  logAxis(label, ticks) {
    const { LogAxis, FixedTicker, CustomJSTickFormatter } = this.models;
    const formatter = new CustomJSTickFormatter({ code: "return String(Number(tick.toPrecision(2)))" });
    return new LogAxis({ ...WORDS, axis_label: label, axis_label_standoff: 2, ticker: new FixedTicker({ ticks }), formatter });
  }
  /**
   * Draw a glyph over the columns of a source.
   * @param {any} frame @param {string} kind @param {object} look @param {any} source
   * @param {{ ink?: string, of?: string, level?: string }} options `ink`: its property that takes a colour of the theme, the text's or the one that `of` names
   */
  glyph(frame, kind, look, source, { ink, of = "text", level } = {}) {
    const glyph = new this.models[kind](look);
    if (ink) this.ink.push([glyph, ink, of]);
    return frame.plot.add_glyph(glyph, source, level ? { level } : {});
  }
  /** Words at points, in the colour of the text. */
  words(frame, source, look, level = "glyph") {
    return this.glyph(frame, "Text", { ...columns("x", "y", "text"), text_font_size: "11px", ...look }, source, { ink: "text_color", level });
  }
  /** What the pointer over a glyph is told. */
  hover(frame, renderers, tooltips, more = {}) {
    frame.plot.add_tools(new this.models.HoverTool({ renderers, tooltips, ...more }));
  }
  /** The same along a line. */
  hoverLine(frame, renderer, tooltips) {
    this.hover(frame, [renderer], tooltips, { mode: "vline", line_policy: "nearest" });
  }
  /** Ticks at places, with words of their own. */
  ticks(axis, places, words) {
    const names = new Map(words ? places.map((place, n) => [place, words[n]]) : []);
    axis.setv({ ticker: new this.models.FixedTicker({ ticks: places }), major_label_overrides: names });
  }
  /** Frames side by side. */
  row(...frames) {
    return new this.models.Row({ children: frames.map(({ plot }) => plot), sizing_mode: "stretch_width", spacing: 0 });
  }
  /** Show it. */
  embed(root, colours) {
    const { Document } = this.Bokeh.require("document");
    this.recolour(colours);
    this.document = new Document();
    this.document.add_root(root);
    this.views = this.Bokeh.embed.add_document_standalone(this.document, this.place);
  }
  /** Take the page's colours. */
  recolour(colours) {
    for (const { plot, grid, axes } of this.frames) {
      if (plot.title) plot.title.text_color = colours.faint_text;
      grid.grid_line_color = colours.line;
      for (const axis of axes) {
        const tick = axis.major_tick_line_color === null ? null : colours.frame;
        axis.setv({ axis_line_color: colours.frame, major_tick_line_color: tick, major_label_text_color: colours.faint_text, axis_label_text_color: colours.faint_text });
      }
    }
    for (const [glyph, property, of] of this.ink) glyph[property] = colours[of];
  }
  dispose() {
    this.views?.then((views) => (views.clear ? views.clear() : [...views].forEach((view) => view.remove()))).catch(() => {});
    this.document?.clear();
  }
}

/** Where a range begins and ends. */
export const span = (range, [start, end]) => range.setv({ start, end });

/** Strips of a frame's ground: every other iteration light, pauses darker. */
export function addStrips(figure, frame) {
  const make = (fill_alpha) => {
    const source = figure.source("x0", "x1");
    figure.glyph(frame, "VStrip", { ...columns("x0", "x1"), fill_alpha, line_color: null }, source, { ink: "fill_color", level: "underlay" });
    return source;
  };
  const [turns, pauses] = [make(0.09), make(0.22)];
  const fill = (source, rows) => {
    if (rows.length || source.get_length()) source.data = { x0: rows.map(([start]) => start), x1: rows.map(([, end]) => end) };
  };
  return {
    count: () => turns.get_length() ?? 0,
    draw(strips) {
      fill(turns, strips.turns);
      fill(pauses, strips.pauses);
    },
  };
}

/** Bars of the errors of points, across and up. */
export function addErrors(figure, frame, line_color) {
  const [across, up] = [figure.source("x0", "x1", "y"), figure.source("x", "y0", "y1")];
  const look = { line_color, line_alpha: 0.6 };
  figure.glyph(frame, "Segment", { x0: column("x0"), x1: column("x1"), y0: column("y"), y1: column("y"), ...look }, across);
  figure.glyph(frame, "Segment", { x0: column("x"), x1: column("x"), y0: column("y0"), y1: column("y1"), ...look }, up);
  return (points) => {
    const [wide, tall] = [points.filter(({ dx }) => dx), points.filter(({ dy }) => dy)];
    across.data = { x0: wide.map(({ x, dx }) => x - dx), x1: wide.map(({ x, dx }) => x + dx), y: wide.map(({ y }) => y) };
    up.data = { x: tall.map(({ x }) => x), y0: tall.map(({ y, dy }) => y - dy), y1: tall.map(({ y, dy }) => y + dy) };
  };
}

/** The strip of what a bound allows, with its words. */
export function addBound(figure, frame, fill_color, level = "underlay") {
  const source = figure.source("low", "high", "x", "y", "text");
  figure.glyph(frame, "VStrip", { x0: column("low"), x1: column("high"), fill_color, fill_alpha: 0.09, line_color: null }, source, { level });
  figure.words(frame, source, { text_font_size: "10px", text_baseline: "bottom", x_offset: 5, y_offset: -3 }, level === "underlay" ? "glyph" : level);
  return {
    source,
    draw(end, words) {
      const [{ start, end: last }, y] = [frame.x, frame.y.start];
      source.data = end === null ? { low: [], high: [], x: [], y: [], text: [] }
        : { low: [start], high: [Math.max(start, Math.min(end, last))], x: [start], y: [y], text: [words] };
    },
  };
}
