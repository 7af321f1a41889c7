import assert from "node:assert/strict";
import { test } from "node:test";

import { Asking } from "../../../workbench/panels/static/controls.js";

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
