// @ts-check
// A view's memory of a power trace, and of the iterations in it. Independent of the page.

export const COLUMNS = ["time_s", "power_w", "power_limit_w", "sm_clock_mhz", "utilisation"];
export const [TIME, POWER, LIMIT, CLOCK, BUSY] = [0, 1, 2, 3, 4];
const [SUM, COUNT] = [5, 6]; // of the power readings that a row represents
const RECENT_S = 75;
const MOST_ROWS = 7000;
const BINS = 1000;
const NARROW = 20; // pixels; of narrower iterations the mean power and its range are drawn. As in svg.py
const COLUMN = 4; // pixels of one mean

/** The rows kept for one GPU: the last minute in full, older rows as extremes of short stretches. As in series.py. */
export class Series {
  constructor() {
    this.columns = /** @type {number[][]} */ ([...COLUMNS, SUM, COUNT].map(() => []));
    this.coarse = this.thinned = 0; // seconds of a stretch that was shortened, and where those end
  }
  get length() {
    return this.columns[TIME].length;
  }
  last(column) {
    return this.columns[column][this.length - 1];
  }
  /** Rows of a table that holds them one after another. */
  append(table, from, count) {
    for (let row = from; row < from + count; row += 1) {
      COLUMNS.forEach((_, column) => this.columns[column].push((column === BUSY ? 100 : 1) * table[row * COLUMNS.length + column]));
      const power = this.last(POWER);
      this.columns[SUM].push(Number.isNaN(power) ? 0 : power);
      this.columns[COUNT].push(Number.isNaN(power) ? 0 : 1);
    }
    if (this.length > MOST_ROWS) this.shorten();
  }
  shorten() {
    const times = this.columns[TIME];
    const recent = times.findIndex((time) => time >= this.last(TIME) - RECENT_S);
    const [start, span] = [times[0], Math.max(times[recent] - times[0], 1e-9)];
    const keep = new Set();
    let extremes = /** @type {any} */ (null);
    const close = ({ low, high, sum, count }) => {
      keep.add(low).add(high);
      [this.columns[SUM][low], this.columns[COUNT][low]] = [sum, count]; // the mean survives
    };
    for (let row = 0; row < recent; row += 1) {
      const [power, limit] = [this.columns[POWER][row], this.columns[LIMIT][row]];
      const gap = [POWER, LIMIT, CLOCK, BUSY].every((column) => Number.isNaN(this.columns[column][row]));
      if (gap || (row > 0 && Math.abs(limit - this.columns[LIMIT][row - 1]) > 0.5)) keep.add(row);
      if (gap) continue;
      const bin = Math.floor(((times[row] - start) / span) * BINS);
      if (extremes?.bin !== bin) {
        if (extremes) close(extremes);
        extremes = { bin, low: row, high: row, sum: 0, count: 0 };
      }
      extremes.sum += this.columns[SUM][row];
      extremes.count += this.columns[COUNT][row];
      this.columns[SUM][row] = this.columns[COUNT][row] = 0;
      if (power < this.columns[POWER][extremes.low]) extremes.low = row;
      if (power > this.columns[POWER][extremes.high]) extremes.high = row;
    }
    if (extremes) close(extremes);
    [this.coarse, this.thinned] = [span / BINS, times[recent]];
    this.columns = this.columns.map((values) => values.filter((_, row) => row >= recent || keep.has(row)));
  }
  /** Mean, lowest and highest power of some pixels each, and of whole iterations where those are narrow; null where every reading has room. */
  band(from, to, pixels, iteration = 0) {
    const narrow = isNarrow(iteration, from, to, pixels);
    const least = Math.max((COLUMN * (to - from)) / pixels, from < this.thinned ? this.coarse : 0);
    const step = narrow ? Math.ceil(least / iteration) * iteration : least;
    const times = this.columns[TIME];
    const inside = times.flatMap((time, row) => (time >= from && time <= to ? [row] : []));
    if (!narrow && from >= this.thinned && (iteration || inside.length < 2 * pixels)) return null;
    const bins = /** @type {any[]} */ ([]);
    for (const row of inside) {
      const [x, power] = [(Math.floor(times[row] / step) + 0.5) * step, this.columns[POWER][row]];
      const last = bins[bins.length - 1];
      if (Number.isNaN(power)) bins.push({ x: times[row], sum: NaN, count: 1, low: NaN, high: NaN }); // no line crosses a gap
      else if (last?.x !== x) bins.push({ x, sum: this.columns[SUM][row], count: this.columns[COUNT][row], low: power, high: power });
      else {
        last.sum += this.columns[SUM][row];
        last.count += this.columns[COUNT][row];
        Object.assign(last, { low: Math.min(last.low, power), high: Math.max(last.high, power) });
      }
    }
    if (narrow && bins.length > 1) bins.pop(); // an iteration that has not ended
    return bins.filter(({ count }) => count).map(({ x, sum, count, low, high }) => ({ x, mean: sum / count, low, high }));
  }
  /** Columns from a time on (and one row before it, where the line comes from). */
  since(time) {
    let first = time > 0 ? this.length - 1 : 0;
    while (first > 0 && this.columns[TIME][first] >= time) first -= 1;
    return Object.fromEntries(COLUMNS.map((name, column) => [name, Float64Array.from(this.columns[column].slice(first))]));
  }
}

/** Starts, ends and pauses of the iterations that follow `from` in a message's numbers. */
export function spansFrom(numbers, from) {
  const length = (numbers.length - from) / 3;
  return [0, 1, 2].map((column) => Float64Array.from({ length }, (_, row) => numbers[from + 3 * row + column]));
}

/** Iterations and pauses as they are known: new ones take the place of what came after the first of them. */
export class Spans {
  constructor() {
    this.rows = /** @type {[number, number, boolean][]} */ ([]);
  }
  take(since, /** @type {Float64Array[]} */ [starts, ends, pauses]) {
    const fresh = /** @type {[number, number, boolean][]} */ ([...starts].map((start, row) => [start, ends[row], pauses[row] > 0]));
    const slack = fresh.length ? 0.5 * (fresh[0][1] - fresh[0][0]) : 0;
    const kept = since === null ? [] : this.rows.filter(([start, end]) => start < since - 1e-4 && end <= since + slack);
    this.rows = [...kept, ...fresh];
  }
  /** Seconds of the median iteration between two times; 0 where there is none. */
  iteration(from, to) {
    const lengths = this.rows.flatMap(([start, end, pause]) => (end > from && start < to && !pause ? [end - start] : [])).sort((a, b) => a - b);
    return lengths[lengths.length >> 1] ?? 0;
  }
  /** Strips for a stretch of time that is `width` pixels wide: every other iteration, and the pauses. */
  strips(from, to, width) {
    const inside = (/** @type {[number, number, boolean]} */ [start, end]) => end > from && start < to;
    const iterations = this.rows.filter(([, , pause]) => !pause);
    const every = isNarrow(this.iteration(from, to), from, to, width) ? [] : iterations.filter((span, number) => number % 2 === 1 && inside(span));
    return { turns: every, pauses: this.rows.filter((span) => span[2] && inside(span)) };
  }
}

const isNarrow = (iteration, from, to, width) => iteration > 0 && (iteration / (to - from)) * width < NARROW;

/** The end of the time axis of a view that is `window` seconds wide at most, for what is known up to `end`. */
export const axisEnd = (end, window) => (end > window ? end : [10, 20, 30, 45, window].find((step) => step >= end) ?? window);

/** Words at rising places on an axis of `width` pixels: those that would run into the next one are left out. */
export function roomFor(words, places, width) {
  let free = Infinity;
  return words.map((_, n) => words.length - 1 - n).map((number) => {
    const room = Math.min(free, width) - places[number];
    free = places[number];
    return room < 7 * words[number].length + 6 ? "" : words[number];
  }).reverse();
}
