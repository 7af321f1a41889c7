import assert from "node:assert/strict";
import { test } from "node:test";

import { Asking, paced } from "../../../workbench/panels/static/controls.js";

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

test("drawings pause, also after a page was hidden or a drawing failed", (context) => {
  context.mock.timers.enable({ apis: ["setTimeout"] });
  let [now, drawn, frame] = [0, 0, () => {}];
  context.mock.method(performance, "now", () => now);
  globalThis.requestAnimationFrame = (work) => (frame = work);
  const draw = paced(() => {
    drawn += 1;
    if (drawn === 1) throw new Error("cannot be drawn");
  });
  const painted = (after) => {
    now += after;
    frame();
    context.mock.timers.tick(0);
  };
  assert.throws(draw);
  draw();
  draw(); // both are one drawing, after the pause
  painted(100);
  context.mock.timers.tick(399);
  assert.equal(drawn, 1);
  context.mock.timers.tick(1);
  assert.equal(drawn, 2);
  draw();
  painted(3_600_000); // an hour in another tab
  context.mock.timers.tick(5000);
  assert.equal(drawn, 3);
});
