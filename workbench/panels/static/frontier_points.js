// @ts-check
// The points of a frontier as they were sent, words about each, and the ranks by which a choice moves before the kernel answers.
// Nothing in here knows the page.
/** @import { FrontierView } from "./messages" */
import { amount, duration, floats, rounded, settingWords, withError } from "./formats.js";

const Z = 1.96; // of a 95 % interval

/**
 * What is chosen by `rule` ("hand", "eta" or "slowdown", which is in per cent), and `best`, the row of least cost at `eta` within it.
 * @typedef {{ row: number, rule: string, eta: number, slowdown: number | null, best: number | null }} Choice
 */

export class Points {
  version; count; gpus; front; names; reference; ranges; knee; maxPower; referenceTime; why; bounds; etas; factors; price; currency; co2; // of the view
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
  /** The configuration of a row. */
  words(row) {
    const parts = [settingWords(this.limit[row], this.sm[row], this.mem[row]) || "the driver's own setting"];
    if (!Number.isNaN(this.batch[row])) parts.push(`batch size ${this.batch[row]}`);
    if (this.gpus.length > 1 && !Number.isNaN(this.gpu[row])) parts.push(this.gpus[this.gpu[row]]);
    return parts.join(", ");
  }
  timeWords(row) {
    return this.time_sd[row] > 0 && this.time[row] < 1e4 ? withError(this.time[row], Z * this.time_sd[row], "s") : duration(this.time[row]);
  }
  energyWords(row) {
    return this.energy_sd[row] > 0 ? withError(this.energy[row], Z * this.energy_sd[row], "J") : amount(this.energy[row], "J");
  }
  kindWords(row) {
    if (!this.measured[row]) return "predicted, not measured";
    return this.repeats[row] > 1 ? `mean of ${this.repeats[row]} measurements` : "measured";
  }
  /** How a choice came about, what it takes, what the default is, and how surely it is on the frontier. */
  details({ row, rule, eta, slowdown }) {
    const { reference, why } = this;
    const bounded = slowdown === null ? "" : ` at most ${Number(slowdown.toPrecision(3))} % slower`;
    const place = this.place[row];
    const how = rule === "eta" ? `Least cost at eta ${Number(eta.toFixed(2))}${bounded}` : rule === "slowdown" ? `Least energy${bounded}`
      : place < 0 ? "Selected, dominated" : `Selected, step ${place + 1} of ${this.front.length}`;
    const against = reference === null ? why : `the default is ${this.words(reference)} (${why})`;
    const chance = this.chance[row];
    const sure = place < 0 ? "" : `; ${chance >= 0.95 ? "" : "perhaps "}Pareto-optimal${chance < 0.995 ? ` (${Math.round(100 * chance)} % likely)` : ""}`;
    return `${how}: ${this.timeWords(row)} and ${this.energyWords(row)} ${this.each}; ${against}${sure}`;
  }
  /** What a choice brings against the default, what is gained first, and its configuration. */
  headline({ row }) {
    const chosen = `${this.words(row)}${this.measured[row] ? "" : " (predicted)"}`;
    if (this.reference === null) return `${chosen}: ${this.energyWords(row)} in ${this.timeWords(row)}`;
    if (row === this.reference) return `Default: ${chosen}`;
    const changes = ["energy", "time"].map((name) => ({ name, by: this.relative(row, name) })).sort((a, b) => Number(a.by > 0) - Number(b.by > 0));
    const words = changes.map(({ name, by }) => `${rounded(by)} ${name}`);
    return `${words.join(changes[0].by < 0 && changes[1].by > 0 ? " for " : ", ")}: ${chosen}`;
  }
  /** Change against the default in per cent. */
  relative(row, column) {
    return 100 * (this[column][row] / this[column][/** @type {number} */ (this.reference)] - 1);
  }
  /** What a row saves against the default: energy in joules with its 95 % error, and how much longer it takes. */
  saved(row) {
    const usual = /** @type {number} */ (this.reference);
    const error = row === usual ? 0 : Z * Math.hypot(this.energy_sd[usual], this.energy_sd[row]);
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
