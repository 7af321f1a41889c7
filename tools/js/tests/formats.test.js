import assert from "node:assert/strict";
import { test } from "node:test";

import * as formats from "../../../workbench/panels/static/formats.js";

test("energies and times of a cell", () => {
  assert.deepEqual([9_999.4, 12_340, 2.5e6].map(formats.joules), ["10.0 kJ", "12.3 kJ", "2.50 MJ"]);
  assert.deepEqual([NaN, null].map(formats.joules), Array(2).fill("– J"));
  assert.deepEqual([9.96, 99.9, 102.4, 754, 7_384].map(formats.elapsed), ["10.0 s", "99.9 s", "102 s", "12 min 34 s", "2 h 3 min"]);
  assert.deepEqual([249.6, NaN].map(formats.watts), ["250 W", "– W"]);
});

test("digits that matter, and no exponent", () => {
  assert.deepEqual([0, 0.0012345, 1.2345, 123.45, 12_345, -0.5].map((value) => formats.digits(value)), ["0", "0.00123", "1.23", "123", "12345", "\u22120.500"]);
  assert.equal(formats.digits(2 / 3, 2), "0.67");
  assert.equal(formats.percent(0.667), "67 %");
});

test("columns of a message", () => {
  assert.deepEqual(formats.numbers([1, null]), [1, NaN]);
  const whole = new Float32Array([9, 1, 2]);
  const view = new DataView(whole.buffer, 4, 8);
  assert.deepEqual([...formats.floats([view])], [1, 2]);
  assert.deepEqual(formats.rowsOf({ a: [1, 2], b: [4, null] }), [{ a: 1, b: 4 }, { a: 2, b: null }]);
  assert.deepEqual(formats.rowsOf({}), []);
  assert.deepEqual([formats.highest([2, NaN, 7], new Float32Array([3])), formats.highest(), formats.highest([0.5])], [7, 1, 1]);
});
