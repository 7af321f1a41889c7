import assert from "node:assert/strict";
import { test } from "node:test";

import { POWER, Series, Spans, TIME, axisEnd, roomFor, spansFrom } from "../../../workbench/panels/static/series.js";

const rows = (count, power) => Float32Array.from({ length: 5 * count }, (_, at) => [Math.floor(at / 5) / 10, power(Math.floor(at / 5)), 300, 1000, 0.5][at % 5]);

test("what is old is kept as extremes, what is recent whole", () => {
  const series = new Series();
  const table = rows(20_000, (row) => (row === 777 ? 999 : 100));
  series.append(table, 0, 20_000);
  assert.ok(series.length < 7_000);
  assert.ok(series.columns[POWER].includes(999));
  assert.equal(series.columns[TIME].filter((time) => time >= series.last(TIME) - 75).length, 751);
  assert.equal(series.last(4), 50); // in per cent
});

test("many readings per pixel are a mean and a range, also of what was shortened", () => {
  const series = new Series();
  series.append(rows(20_000, (row) => (row % 10 === 0 ? 300 : 100)), 0, 20_000);
  for (const [from, to] of [[0, 2000], [100, 400], [1950, 2000]]) {
    const band = series.band(from, to, 100);
    const mid = band.slice(1, -1);
    assert.ok(mid.every(({ low, high }) => low === 100 && high <= 300));
    const mean = mid.reduce((sum, row) => sum + row.mean, 0) / mid.length;
    assert.ok(Math.abs(mean - 120) < 3, `${from}: ${mean}`);
  }
  assert.equal(series.band(1999, 2000, 100), null); // few readings are drawn as they are
});

test("iterations of few pixels are their mean power and range, wide ones are drawn reading by reading", () => {
  const series = new Series();
  series.append(rows(600, (row) => (row % 5 === 0 ? 0 : 100)), 0, 600); // 0.5 s per iteration
  const band = series.band(0, 60, 600, 0.5); // 5 pixels each
  assert.ok(band.length > 100);
  assert.ok(band.slice(1, -1).every(({ mean, low, high }) => Math.abs(mean - 80) < 15 && low === 0 && high === 100));
  assert.equal(series.band(0, 10, 600, 0.5), null);
});

test("no line crosses a gap in a band", () => {
  const series = new Series();
  series.append(rows(1000, (row) => (row === 500 ? NaN : 100)), 0, 1000);
  assert.equal(series.band(0, 100, 50).filter(({ mean }) => Number.isNaN(mean)).length, 1);
});

test("columns from a time on begin one row before it", () => {
  const series = new Series();
  series.append(rows(100, () => 100), 0, 100);
  assert.ok(Math.abs(series.since(5).time_s[0] - 4.9) < 1e-5);
  assert.equal(series.since(0).time_s.length, 100);
});

test("iterations that come anew take the place of those known", () => {
  const spans = new Spans();
  const table = (...starts) => [Float64Array.from(starts), Float64Array.from(starts, (start) => start + 1), new Float64Array(starts.length)];
  spans.take(null, table(0, 1, 2));
  spans.take(2, table(2.1, 3.1));
  assert.deepEqual(spans.rows.map(([start]) => start), [0, 1, 2.1, 3.1]);
  assert.deepEqual(spans.strips(0, 5, 500).turns.map(([start]) => start), [1, 3.1]); // every other one
  assert.deepEqual(spans.strips(0, 5, 5).turns, []); // too narrow to be seen
});

test("the iterations behind the samples of a message", () => {
  assert.deepEqual(spansFrom(Float32Array.from([9, 1, 2, 0, 2, 3, 1]), 1).map((column) => [...column]), [[1, 2], [2, 3], [0, 1]]);
});

test("an axis grows in steps, and words have room", () => {
  assert.deepEqual([3, 12, 50, 70].map((end) => axisEnd(end, 60)), [10, 20, 60, 70]);
  assert.deepEqual(roomFor(["epoch 1", "epoch 2"], [10, 40], 400), ["", "epoch 2"]);
  assert.deepEqual(roomFor(["epoch 1", "epoch 2"], [10, 390], 400), ["epoch 1", ""]);
});
