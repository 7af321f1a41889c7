import assert from "node:assert/strict";
import { test } from "node:test";

import { Asking } from "../../../workbench/panels/static/controls.js";
import { inFrame } from "../../../workbench/panels/static/frontier_plot.js";

test("one thing is asked at a time, and then the newest", () => {
  const sent = [];
  const asking = new Asking((value, number) => sent.push([value, number]));
  for (const value of ["a", "b", "c"]) asking.ask(value);
  assert.deepEqual(sent, [["a", 1]]);
  asking.answered(7); // an answer to somebody else
  assert.ok(asking.waiting);
  asking.answered(1);
  assert.deepEqual(sent, [["a", 1], ["c", 2]]);
  asking.forget();
  assert.ok(!asking.waiting);
});

test("a falling line ends where the frame ends", () => {
  const [x, y] = [{ start: 0, end: 10 }, { start: 0, end: 5 }];
  assert.deepEqual(inFrame((at) => 8 - at, x, y), { x: [3, 8], y: [5, 0] });
  assert.deepEqual(inFrame((at) => -1 - at, x, y), { x: [], y: [] });
  assert.deepEqual(inFrame(() => 2, x, y), { x: [0, 10], y: [2, 2] });
});
