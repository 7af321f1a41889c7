// @ts-check
// The points of a frontier and the words about each as they were sent, and the ranks by which a choice moves before the kernel answers.
// Nothing in here knows the page.
/** @import { FrontierView } from "./messages" */
import { floats } from "./formats.js";

const Z = 1.96; // of a 95 % interval

/**
 * What is chosen by `rule` ("hand", "eta" or "slowdown", which is in per cent), and `best`, the row of least cost at `eta` within it.
 * @typedef {{ row: number, rule: string, eta: number, slowdown: number | null, best: number | null }} Choice
 */

export class Points {
  version; count; gpus; front; names; reference; words; against; sure; ranges; knee; maxPower; referenceTime; bounds; etas; factors; price; currency; co2; // of the view
  time; energy; time_sd; energy_sd; limit; sm; mem; batch; gpu; chance; measured; repeats; step; // of each row
  constructor(/** @type {FrontierView} */ view, [table, ranks]) {
    const all = floats([table]);
    Object.assign(this, view);
    view.columns.forEach((name, n) => (this[name] = all.subarray(n * view.count, (n + 1) * view.count)));
    this.optima = new Uint32Array(floats([ranks]).buffer);
    this.each = `${/^[aeiou]/.test(view.unit) ? "an" : "a"} ${view.unit}`;
    this.place = new Int32Array(view.count).fill(-1);
    view.front.forEach((row, place) => (this.place[row] = place));
  }
  /** How a choice came about, what it takes, what the default is, and how surely it is on the frontier. */
  details({ row, rule, eta, slowdown }) {
    const bounded = slowdown === null ? "" : ` at most ${Number(slowdown.toPrecision(3))} % slower`;
    const place = this.place[row];
    const how = rule === "eta" ? `Least cost at eta ${Number(eta.toFixed(2))}${bounded}` : rule === "slowdown" ? `Least energy${bounded}`
      : place < 0 ? "Selected, dominated" : `Selected, step ${place + 1} of ${this.front.length}`;
    const said = `${how}: ${this.words.time[row]} and ${this.words.energy[row]} ${this.each}; ${this.against}`;
    return place < 0 ? said : `${said}. ${this.sure[place]}`;
  }
  /** Change against the default in per cent. */
  relative(row, column) {
    return 100 * (this[column][row] / this[column][/** @type {number} */ (this.reference)] - 1);
  }
  /** What a row saves against the default: energy in joules with its 95 % error, and how much longer it takes. */
  saved(row) {
    const usual = /** @type {number} */ (this.reference);
    const error = Z * Math.hypot(this.energy_sd[usual], this.energy_sd[row]);
    return { energy: this.energy[usual] - this.energy[row], error, longer: this.time[row] - this.time[usual] };
  }
  /** How many of the frontier, the fastest first, are within a slowdown in per cent; the kernel sent the least bound that allows each. */
  allowed(slowdown) {
    return slowdown === null ? this.front.length : this.bounds.filter((least) => least <= slowdown).length;
  }
  /** The row of least cost within a slowdown, as the kernel ranked the places for each eta of the slider. */
  optimum(eta, slowdown) {
    const rank = Math.round(eta * (this.etas - 1));
    return this.front[this.optima[rank * this.front.length + this.allowed(slowdown) - 1]];
  }
  /** The row that is `by` steps from one on the frontier, within a slowdown. */
  walk(row, by, slowdown) {
    return this.front[Math.max(0, Math.min(this.allowed(slowdown) - 1, this.step[row] + by))];
  }
  /** A choice with its row moved to what its rule and bound mean. @returns {Choice} */
  settle(choice) {
    const best = this.optimum(choice.eta, choice.slowdown);
    const last = this.allowed(choice.slowdown) - 1;
    const row = choice.rule === "eta" ? best : choice.rule === "slowdown" || this.place[choice.row] > last ? this.front[last] : choice.row;
    return { ...choice, best, row };
  }
}
