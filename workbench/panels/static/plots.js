// @ts-check
// Frames of BokehJS as all panels have them: quiet axes, the theme's colours, glyphs over columns; and frames that the kernel describes.
/** @import { Frame, Layer } from "./messages" */
import { put } from "./controls.js";
import { numbers, rowsOf } from "./formats.js";

/** The colours of the page's theme: {what: [variable, on light, on dark]} -> {what: colour}. */
export function readTheme(variables) {
  const dark = document.body.dataset.jpThemeLight === "false";
  const style = getComputedStyle(document.body);
  const read = ([variable, onLight, onDark]) => style.getPropertyValue(variable).trim() || (dark ? onDark : onLight);
  return Object.fromEntries(Object.entries(variables).map(([what, names]) => [what, read(names)]));
}

/** Colours of the theme as properties of what is drawn. */
const [FRAME, FAINT, LINE] = ["frame", "faint_text", "line"].map((theme) => ({ theme }));
export const TEXT = { theme: "text" };
export const GROUND = { theme: "background" };

const NARROWEST = 300; // pixels of a frame that has others next to it
const FONT = "system-ui, sans-serif"; // as in the pictures that stay
const WORDS = {
  axis_line_color: FRAME, major_tick_line_color: FRAME, major_label_text_color: FAINT, axis_label_text_color: FAINT, minor_tick_line_color: null,
  axis_label_text_font: FONT, axis_label_text_font_style: "normal", axis_label_text_font_size: "11px", major_label_text_font: FONT, major_label_text_font_size: "11px",
};
const BARE = {
  sizing_mode: "stretch_width", toolbar_location: null, min_border_right: 14, min_border_top: 4, min_border_bottom: 4, outline_line_color: null,
  background_fill_color: null, border_fill_color: null, lod_threshold: null,
};

export const column = (name) => ({ field: name });

/** Columns of a layer's table, as properties of the same names. */
export const columns = (...names) => Object.fromEntries(names.map((name) => [name, column(name)]));
export const AT = columns("x", "y");

/** Words next to a point as properties, and as columns: to its left, or to its right. */
export const BESIDE = { text_align: column("align"), x_offset: column("dx") };
export const beside = (left, by, other = by) => (left ? { align: "right", dx: -by } : { align: "left", dx: other });

/** The size of a frame's inside in pixels; until it is laid out, a guess. @returns {[number, number]} */
export function sizeOf({ plot }) {
  return plot.properties.inner_width.is_unset ? [400, 200] : [plot.inner_width, plot.inner_height];
}
/** A place of a frame in pixels from its lower left corner. */
export function place(frame, { x, y }) {
  const [wide, high] = sizeOf(frame);
  return [((x - frame.x.start) / (frame.x.end - frame.x.start)) * wide, ((y - frame.y.start) / (frame.y.end - frame.y.start)) * high];
}

/**
 * Words at points of a frame, in pixels from its lower left corner, each on the first of four sides where it covers nothing of `taken`; words without room are
 * left out. A row has its place as `at`; it comes back as a row of a layer with `NAMED`.
 */
export function spread(rows, /** @type {[number, number]} */ [width, height], /** @type {number[][]} */ taken = []) {
  return rows.flatMap(({ at: [x, y], text, ...more }) => {
    const wide = 6.6 * text.length + 2;
    for (const [right, over] of [[1, 1], [1, 0], [0, 0], [0, 1]]) {
      const [left, low] = [right ? x + 10 : x - 10 - wide, over ? y + 5 : y - 19];
      const box = [left, low, left + wide, low + 14];
      const free = left >= 0 && low >= 0 && box[2] <= width && box[3] <= height && taken.every(([l, b, r, t]) => l >= box[2] || r <= left || b >= box[3] || t <= low);
      if (!free) continue;
      taken.push(box);
      return [{ ...more, text, ...beside(!right, 10), dy: over ? -5 : 5, base: over ? "bottom" : "top" }];
    }
    return [];
  });
}
export const NAMED = { ...BESIDE, y_offset: column("dy"), text_baseline: column("base") };

/** Fill the table of a layer, the renderer of a glyph, with columns or with rows: what is missing in one is NaN. */
export function fill({ data_source: source }, table) {
  if (Array.isArray(table) && !table.length && !source.get_length()) return;
  const column = (name) => table.map((row) => row[name] ?? NaN);
  const names = Object.keys(Array.isArray(table) ? (table[0] ?? source.data) : table);
  source.data = Array.isArray(table) ? Object.fromEntries(names.map((name) => [name, column(name)])) : table;
}

/** Frames with what is drawn in them, in one place of the page. */
export class Figure {
  constructor(page, place) {
    this.page = page;
    this.models = page.Bokeh.Models;
    this.place = place;
    this.frames = [];
    this.ink = []; // models, their property, and which colour of the theme it takes
    page.figures.push(this);
  }
  /** A model of Bokeh; its colours may be the theme's. */
  make(kind, look) {
    const inks = Object.entries(look).filter(([, value]) => value?.theme);
    const made = new this.models[kind]({ ...look, ...Object.fromEntries(inks.map(([property]) => [property, null])) });
    this.ink.push(...inks.map(([property, { theme }]) => [made, property, theme]));
    return made;
  }
  range(start = 0, end = 1) {
    return new this.models.Range1d({ start, end });
  }
  /**
   * A frame with an axis to the left and one below. `title`: null for none; `label`: of the axis below; `ticks`: about how many, left and below; `left`, `below`,
   * `plot`: more properties of these, of an axis its kind, too.
   */
  frame({ title = "", label = "", ticks = [5, 7], x = this.range(), y = this.range(), left: side = {}, below: { kind = "LinearAxis", ...foot } = {}, plot: more = {} }) {
    const words = { text: title, text_color: FAINT, text_font: FONT, text_font_size: "11px", text_font_style: "normal", offset: 0, standoff: 2 };
    const heading = title === null ? {} : { title: this.make("Title", words) };
    const plot = this.make("Plot", { ...BARE, min_border_left: 52, height: 205, x_range: x, y_range: y, ...heading, ...more });
    const left = this.make("LinearAxis", { ...WORDS, axis_label_standoff: 4, ticker: this.make("BasicTicker", { desired_num_ticks: ticks[0] }), ...side });
    const below = this.make(kind, { ...WORDS, axis_label: label, axis_label_standoff: 2, ticker: this.ticker(ticks[1]), ...foot });
    plot.add_layout(left, "left");
    plot.add_layout(below, "below");
    const grid = this.make("Grid", { dimension: 1, axis: left, grid_line_color: LINE });
    plot.add_layout(grid, "center");
    const made = { plot, x, y, grid, left, below };
    this.frames.push(made);
    return made;
  }
  ticker(count) {
    return this.make("BasicTicker", { desired_num_ticks: count, num_minor_ticks: 0 });
  }
  /** Draw a glyph, over a table of its own or that of another layer: its columns are those that `look` names. */
  glyph(frame, kind, look, { over = null, level = "glyph" } = {}) {
    const source = over?.data_source ?? new this.models.ColumnDataSource({ data: {} });
    for (const value of Object.values(look)) if (value?.field) source.data[value.field] ??= [];
    return frame.plot.add_glyph(this.make(kind, look), source, { level });
  }
  /** Words at points, in the colour of the text. */
  words(frame, look, options = {}) {
    return this.glyph(frame, "Text", { ...columns("x", "y", "text"), text_color: TEXT, text_font: FONT, text_font_size: "11px", ...look }, options);
  }
  hover(frame, renderers, tooltips, more = {}) {
    frame.plot.add_tools(new this.models.HoverTool({ renderers, tooltips, ...more }));
  }
  hoverLine(frame, layer, tooltips) {
    this.hover(frame, [layer], tooltips, { mode: "vline", line_policy: "nearest" });
  }
  ticks(axis, places, words) {
    const names = new Map(words ? places.map((place, n) => [place, words[n]]) : []);
    axis.setv({ ticker: new this.models.FixedTicker({ ticks: places }), major_label_overrides: names });
  }
  /** Show the frames in rows; those that would become too narrow go below one another. */
  embed(rows, spacing = 0) {
    const { Row, Column } = this.models;
    const { Document } = this.page.Bokeh.require("document");
    const side = (frames) => {
      if (frames.length === 1) return frames[0].plot;
      for (const { plot } of frames) plot.min_width = NARROWEST;
      return new Row({ children: frames.map(({ plot }) => plot), sizing_mode: "stretch_width", styles: { "flex-wrap": "wrap" }, spacing });
    };
    this.recolour();
    this.document = new Document();
    this.document.add_root(rows.length === 1 ? side(rows[0]) : new Column({ children: rows.map(side), sizing_mode: "stretch_width", spacing }));
    this.views = this.page.Bokeh.embed.add_document_standalone(this.document, this.place);
  }
  recolour() {
    const colours = this.page.colours();
    for (const [made, property, of] of this.ink) made[property] = colours[of];
  }
  dispose() {
    this.views?.then((views) => (views.clear ? views.clear() : [...views].forEach((view) => view.remove()))).catch(() => {});
    this.document?.clear();
  }
}

export const span = (range, [start, end]) => range.setv({ start, end });

/** The ranges of a frame, and its words where there are new ones. */
export function fit(frame, x, y, { title = frame.plot.title.text, label = frame.below.axis_label } = {}) {
  span(frame.x, x);
  span(frame.y, y);
  frame.plot.title.text = title;
  frame.below.axis_label = label;
}

/** Strips of a frame's ground: every other iteration light, pauses darker. */
export function addStrips(figure, frame) {
  const look = { ...columns("x0", "x1"), fill_color: TEXT, line_color: null };
  const [turns, pauses] = [0.09, 0.22].map((fill_alpha) => figure.glyph(frame, "VStrip", { ...look, fill_alpha }, { level: "underlay" }));
  const rows = (spans) => spans.map(([x0, x1]) => ({ x0, x1 }));
  const draw = (strips) => {
    fill(turns, rows(strips.turns));
    fill(pauses, rows(strips.pauses));
  };
  return { turns, draw };
}

const ink = (name) => (name === "currentColor" ? TEXT : name);
const stroke = (layer) => ({ line_color: ink(layer.ink), line_width: layer.width, line_dash: layer.dashes, line_alpha: layer.opacity, line_join: "round" });
const area = (layer) => ({ fill_color: ink(layer.ink), fill_alpha: layer.opacity, line_color: null });

/** How each kind of layer is drawn over its rows. @type {Record<string, (layer: Layer) => [string, object]>} */
const KINDS = {
  line: (layer) => ["Line", { ...AT, ...stroke(layer) }],
  steps: (layer) => ["Step", { ...AT, ...stroke(layer), mode: "after" }],
  band: (layer) => ["Patches", { ...columns("xs", "ys"), ...area(layer) }],
  box: (layer) => ["Quad", { ...columns("left", "right", "top", "bottom"), ...(layer.framed ? { ...stroke(layer), fill_color: null } : area(layer)) }],
  upright: (layer) => ["VSpan", { ...columns("x"), ...stroke(layer) }],
  level: (layer) => ["HSpan", { ...columns("y"), ...stroke(layer) }],
  dot: (layer) => ["Scatter", { ...AT, ...columns("size"), ...stroke(layer), marker: layer.shape, fill_color: ink(layer.ink), fill_alpha: column("fill") }],
  cloud: (layer) => ["Scatter", { ...AT, ...area(layer), size: layer.width }],
  text: ({ ink: name, size, weight, opacity, spread: free }) => ["Text", {
    ...columns("x", "y", "text"), ...NAMED, text_color: ink(name), text_alpha: opacity, text_font: FONT, text_font_size: `${size}px`,
    text_font_style: weight || "normal", background_fill_color: GROUND, background_fill_alpha: free ? 0.75 : 0,
  }],
};
const ALIGN = { "": "left", middle: "center", end: "right" };

/** Fill the layers of words of a frame. Layers whose words find their own room share it, and bold and large words take it first. */
function fillWords(frame, layers) {
  const named = [...layers].filter(({ about }) => about).map((layer) => ({
    layer, about: layer.about, each: rowsOf(layer.about.rows).map((row) => ({ ...row, at: place(frame, row) })),
  }));
  const rank = ({ about }) => about.size + (about.weight ? 100 : 0);
  const free = named.filter(({ about }) => about.spread).sort((a, b) => rank(b) - rank(a));
  const taken = free.flatMap(({ each }) => each.map(({ at: [x, y] }) => [x - 5, y - 5, x + 5, y + 5]));
  for (const { layer, each } of free) fill(layer, spread(each, sizeOf(frame), taken));
  for (const { layer, about, each } of named) if (!about.spread) fill(layer, besideOf(frame, each));
}

/** Words at their points: `turns` puts them on the other side of their point, and no words are above the frame. */
function besideOf(frame, each) {
  const [wide, high] = sizeOf(frame);
  return each.map(({ anchor, turns, dx, dy, at: [x, y], ...row }) => {
    const turned = turns && x + dx + 6.2 * row.text.length > wide;
    return { ...row, align: turned ? "right" : ALIGN[anchor], dx: turned ? -dx : dx, dy: Math.max(dy, y - high + 11) + 3, base: "bottom" };
  });
}

/** Frames as the kernel describes them: the layers of a frame that look alike in two descriptions are one glyph with other rows. */
export class Described {
  constructor(page, place) {
    this.figure = new Figure(page, place);
    this.place = place;
    this.layers = /** @type {Map<string, any>[]} */ ([]); // of each frame, by how they look
  }
  draw(/** @type {Frame[][]} */ rows) {
    const { figure } = this;
    put(this.place, { hidden: !rows.length });
    if (!rows.length) return;
    const begins = !figure.frames.length;
    rows.flat().forEach((about, n) => this.show(figure.frames[n] ?? this.make(about), this.layers[n], about));
    let at = 0;
    if (begins) figure.embed(rows.map((row) => row.map(() => figure.frames[at++])), 4);
  }
  make(/** @type {Frame} */ { height }) {
    const frame = this.figure.frame({ plot: { height } });
    this.layers.push(this.layersOf(frame));
    return frame;
  }
  /** A table for layers of a frame, whose words find their room again when its size changes. */
  layersOf(frame) {
    const [layers, fitted] = [new Map(), () => fillWords(frame, layers.values())];
    for (const size of ["inner_width", "inner_height"]) frame.plot.properties[size].change.connect(fitted);
    return layers;
  }
  show(frame, known, /** @type {Frame} */ { title, label, x, y, left, below, layers }) {
    frame.plot.visible = layers.length > 0;
    fit(frame, x, y, { title, label });
    for (const [axis, ticks] of /** @type {[any, Frame["left"]][]} */ ([[frame.left, left], [frame.below, below]])) {
      if (Array.isArray(ticks)) this.figure.ticks(axis, ...[0, 1].map((part) => ticks.map((tick) => tick[part])));
      else axis.ticker.desired_num_ticks = ticks;
    }
    frame.grid.visible = !Array.isArray(left);
    this.drawLayers(frame, known, layers);
  }
  /** Draw layers, those that look like earlier ones with their glyphs; those that are gone are emptied. */
  drawLayers(frame, known, /** @type {Layer[]} */ layers, level = "glyph") {
    const gone = new Set(known.values());
    for (const { rows, ...look } of layers) {
      const key = JSON.stringify(look);
      if (!known.has(key)) known.set(key, this.layer(frame, /** @type {Layer} */ (look), Object.keys(rows), level));
      const layer = known.get(key);
      gone.delete(layer);
      if (look.kind === "text") layer.about = { ...look, rows };
      else fill(layer, Object.fromEntries(Object.entries(rows).map(([name, values]) => [name, numbers(values)])));
    }
    for (const layer of gone) fill(Object.assign(layer, { about: null }), []);
    fillWords(frame, known.values());
    this.figure.recolour();
  }
  layer(frame, /** @type {Layer} */ look, names, level) {
    const [kind, properties] = KINDS[look.kind](look);
    const under = level === "glyph" && look.kind === "box" && !look.framed && !look.hover.length;
    const made = this.figure.glyph(frame, kind, properties, { level: under ? "underlay" : level });
    for (const name of names) made.data_source.data[name] ??= [];
    const line = look.kind === "line" ? { mode: "vline", line_policy: "nearest" } : { limit: 1 };
    const heads = look.name ? [[look.name, "$y{0.00}"]] : look.hover.map((head, n) => [head, `@hover${n}`]);
    if (heads.length) this.figure.hover(frame, [made], heads, line);
    return made;
  }
}
