import assert from "node:assert/strict";
import { test } from "node:test";

import { Described, Figure, TEXT, beside, column, columns, fill, spread } from "../../../workbench/panels/static/plots.js";

/** A figure on models that keep what they are given, and the colours that a page has. */
function figure(colours) {
  const model = (kind) => class {
    constructor(look) {
      Object.assign(this, { kind }, look);
    }
    get_length() {
      return Object.values(this.data)[0]?.length ?? null;
    }
  };
  const Models = new Proxy({}, { get: (_, kind) => model(kind) });
  return new Figure({ Bokeh: { Models }, colours: () => colours, figures: [] }, null);
}
const frame = { plot: { add_glyph: (glyph, data_source, { level }) => ({ glyph, data_source, level }) } };

test("a glyph's table has the columns that its look names, and those of what is drawn over it", () => {
  const made = figure({});
  const dots = made.glyph(frame, "Scatter", { ...columns("x", "y"), size: 4 });
  const words = made.words(frame, { text_align: column("align") }, { over: dots });
  assert.equal(words.data_source, dots.data_source);
  assert.deepEqual(dots.data_source.data, { x: [], y: [], text: [], align: [] });
});

test("colours of the theme are taken when they change", () => {
  const colours = { text: "black" };
  const made = figure(colours);
  const { glyph } = made.glyph(frame, "Line", { ...columns("x"), line_color: TEXT, line_width: 2 });
  assert.equal(glyph.line_color, null);
  made.recolour();
  assert.deepEqual([glyph.line_color, glyph.line_width], ["black", 2]);
  colours.text = "white";
  made.recolour();
  assert.equal(glyph.line_color, "white");
});

test("a table is filled with rows or columns, and keeps its columns where there are none", () => {
  const dots = figure({}).glyph(frame, "Scatter", columns("x", "y"));
  const empty = dots.data_source.data;
  fill(dots, []);
  assert.equal(dots.data_source.data, empty); // nothing is written for nothing
  fill(dots, [{ x: 1, y: null, text: "a" }, { x: 2, y: 3, text: "b" }]);
  assert.deepEqual(dots.data_source.data, { x: [1, 2], y: [NaN, 3], text: ["a", "b"] });
  fill(dots, []);
  assert.deepEqual(dots.data_source.data, { x: [], y: [], text: [] });
  fill(dots, { x: [5], y: [6] });
  assert.deepEqual(dots.data_source.data, { x: [5], y: [6] });
});

test("words stand to the left where there is no room to the right", () => {
  assert.deepEqual([beside(true, 9, 14), beside(false, 9, 14), beside(false, 5)], [{ align: "right", dx: -9 }, { align: "left", dx: 14 }, { align: "left", dx: 5 }]);
});

test("names are spread so that none covers another, and what has no room is left out", () => {
  const [one, other, ...none] = spread([{ at: [10, 30], text: "250 W" }, { at: [14, 32], text: "225 W" }, { at: [12, 31], text: "200 W" }], [70, 60]);
  assert.deepEqual([one.text, one.align, one.base, other.text, other.base, none], ["250 W", "left", "bottom", "225 W", "top", []]);
});

test("layers that look alike are one glyph, whose rows are those of the last description", () => {
  const properties = { inner_width: { is_unset: true, change: { connect() {} } }, inner_height: { change: { connect() {} } } };
  const plots = new Described({ Bokeh: {}, figures: [] }, {});
  Object.assign(plots, { make: () => ({ plot: { ...frame.plot, properties, title: {} }, x: range(), y: range(), left: axis(), below: axis(), grid: {} }) });
  const [range, axis] = [() => ({ setv(ends) { Object.assign(this, ends); } }), () => ({ ticker: {}, setv() {} })];
  plots.figure = Object.assign(figure({}), { embed() {} });
  plots.layers.push(new Map());
  const line = { kind: "line", ink: "red", width: 1, dashes: [], opacity: 1, hover: [] };
  const about = { title: "Power", label: "seconds", height: 150, x: [0, 2], y: [0, 9], left: 4, below: 6 };
  const kept = plots.make();
  plots.figure.frames.push(kept);
  plots.draw([[{ ...about, layers: [{ ...line, rows: { x: [0, 1], y: [3, null] } }] }]]);
  plots.draw([[{ ...about, layers: [{ ...line, rows: { x: [2], y: [4] } }, { ...line, ink: "blue", rows: { x: [1], y: [1] } }] }]]);
  const [red, blue] = plots.layers[0].values();
  assert.deepEqual([red.data_source.data, blue.data_source.data], [{ x: [2], y: [4] }, { x: [1], y: [1] }]);
  assert.deepEqual([kept.plot.title.text, kept.x.end, kept.plot.visible], ["Power", 2, true]);
  plots.draw([[{ ...about, layers: [{ ...line, ink: "blue", rows: { x: [1], y: [2] } }] }]]);
  assert.deepEqual([red.data_source.data.x, blue.data_source.data.y], [[], [2]]);
});
