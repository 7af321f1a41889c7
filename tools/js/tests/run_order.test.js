import assert from "node:assert/strict";
import { test } from "node:test";

import { describe, differing, linesOf, matching, ordered } from "../../../workbench/panels/static/run_order.js";

const columns = ["when", "label", "batch size", "energy"];
const run = (id, label, batch, joules) => ({ id, cells: [id, label, String(batch ?? ""), `${joules ?? "-"} J`], numbers: [null, null, batch, joules] });
const runs = [run("a", "adam 2", 64, 500), run("b", "sgd", 9, 90), run("c", "adam 10", null, null)];
const ids = (found) => found.map(({ id }) => id).join("");

test("a filter has words, columns and limits", () => {
  assert.equal(ids(matching(runs, columns, "ADAM")), "ac");
  assert.equal(ids(matching(runs, columns, "label:adam energy>100")), "a");
  assert.equal(ids(matching(runs, columns, "energy<100")), "b");
  assert.equal(ids(matching(runs, columns, "batchsize:9")), "b");
  assert.equal(ids(matching(runs, columns, "")), "abc");
});

test("numbers are sorted by size, texts as a person counts, and gaps come last either way", () => {
  assert.equal(ids(ordered(runs, 2, true)), "bac");
  assert.equal(ids(ordered(runs, 2, false)), "abc");
  assert.equal(ids(ordered(runs, 1, true)), "acb");
});

test("groups have their means, and can be closed", () => {
  const lines = linesOf(runs, columns, 2, new Set(["9"]));
  assert.deepEqual(lines.map((line) => line.group ?? line.run.id), ["64", "a", "9", "none", "c"]);
  assert.equal(describe(runs, columns), "3 runs, mean energy 295 J");
  assert.equal(linesOf(runs, columns, -1, new Set()).length, 3);
});

test("what differs between ticked runs", () => {
  assert.deepEqual(differing([runs[0], { ...runs[0], cells: ["a", "adam 2", "32", "500 J"] }], columns), ["batch size"]);
});
