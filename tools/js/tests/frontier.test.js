import assert from "node:assert/strict";
import { test } from "node:test";

import { Points } from "../../../workbench/panels/static/frontier_points.js";

const COLUMNS = ["time", "energy", "time_sd", "energy_sd", "limit", "sm", "mem", "batch", "gpu", "chance", "measured", "repeats", "traces", "step"];

/** Three points of a frontier and one beside it; `optima[eta][places allowed - 1]`. */
function points() {
  const rows = { time: [10, 12, 15, 14], energy: [300, 250, 200, 400], limit: [300, 200, 100, 150], chance: [1, 0.7, 1, 0], measured: [1, 1, 0, 1], step: [0, 1, 2, 2] };
  const table = Float32Array.from(COLUMNS.flatMap((name) => rows[name] ?? [0, 0, 0, 0].map(() => (["sm", "mem", "batch", "gpu"].includes(name) ? NaN : 0))));
  const optima = Uint32Array.from([0, 0, 0, 0, 1, 1, 0, 1, 2]); // eta 0, 0.5 and 1
  const words = { time: ["10 s", "12 s", "15 s", "14 s"], energy: ["300 J", "250 J", "200 J", "400 J"] };
  const view = { columns: COLUMNS, count: 4, gpus: ["A"], front: [0, 1, 2], reference: 0,
    words, against: "the default is 300 W", sure: ["", "Perhaps Pareto-optimal", ""], unit: "epoch", bounds: [0, 20, 50], etas: 3, version: 1 };
  return new Points(view, [table, optima].map((each) => new DataView(each.buffer)));
}
const choice = { row: 0, rule: "hand", eta: 0.5, slowdown: null, best: null };

test("a bound allows what the kernel says that it allows", () => {
  assert.deepEqual([null, 50, 49, 20, 0].map((bound) => points().allowed(bound)), [3, 3, 2, 2, 1]);
});

test("a choice moves by the ranks of the kernel", () => {
  const model = points();
  assert.equal(model.settle({ ...choice, rule: "eta", eta: 1 }).row, 2);
  assert.equal(model.settle({ ...choice, rule: "eta", eta: 1, slowdown: 20 }).row, 1);
  assert.equal(model.settle({ ...choice, rule: "slowdown", slowdown: 20 }).row, 1);
  assert.equal(model.settle({ ...choice, row: 2, slowdown: 20 }).row, 1); // what is chosen by hand moves within the bound
  assert.equal(model.settle({ ...choice, row: 3, slowdown: 0 }).row, 3); // beside the frontier it stays
  assert.equal(model.settle(choice).best, 1);
});

test("steps end at the ends of what is allowed", () => {
  const model = points();
  const steps = /** @type {[number, number, number | null][]} */ ([[0, 1, null], [0, Infinity, null], [1, Infinity, 20], [0, -1, null], [3, -1, null]]);
  assert.deepEqual(steps.map((step) => model.walk(...step)), [1, 2, 1, 0, 1]);
});

test("a choice says how it came about and what the kernel knows of the point", () => {
  const model = points();
  const details = "Selected, step 2 of 3: 12 s and 250 J an epoch; the default is 300 W. Perhaps Pareto-optimal";
  assert.equal(model.details({ ...choice, row: 1 }), details);
  assert.deepEqual(model.saved(1), { energy: 50, error: 0, longer: 2 });
});
