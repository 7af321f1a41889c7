// @ts-check
// Numbers as words, and numbers as plots want them. Nothing in here knows the page.

const MINUS = "\u2212";
const PREFIXES = /** @type {[number, string][]} */ ([[1e6, "M"], [1e3, "k"], [1, ""], [1e-3, "m"], [1e-6, "µ"]]);
const HOURS = /** @type {[number, number, string][]} */ ([[1e-2, 1, "kWh"], [1e-5, 1e3, "Wh"], [0, 1e6, "mWh"]]); // from how many kWh on, by what

/** A column of a message: what is missing is NaN. */
export const numbers = (values) => values.map((value) => value ?? NaN);

/** The numbers of a message's first buffer, in memory of their own. */
export function floats([view]) {
  return new Float32Array(/** @type {ArrayBuffer} */ (view.buffer).slice(view.byteOffset, view.byteOffset + view.byteLength));
}

export const watts = (value) => (Number.isFinite(value) ? `${value.toFixed(0)} W` : "– W");

/** Energy since the start of a cell. */
export function joules(value) {
  if (value === null || !Number.isFinite(value)) return "energy not available yet";
  const [scale, unit] = value >= 1e6 ? [1e6, "MJ"] : value >= 1e3 ? [1e3, "kJ"] : [1, "J"];
  return `${digits(value / scale)} ${unit} so far`; // three digits, as the sensor is good for
}

const two = (number) => String(number).padStart(2, "0");

/** Time since the start of a cell. */
export function elapsed(seconds) {
  if (seconds < 100) return `${seconds.toFixed(1)} s`;
  const whole = Math.floor(seconds);
  const [hours, minutes, rest] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  return hours ? `${hours}:${two(minutes)}:${two(rest)} h` : `${minutes}:${two(rest)} min`;
}

export const minutes = (seconds) => `${Math.floor(seconds / 60)}:${two(Math.floor(seconds % 60))}`;

export const percent = (value) => `${Math.round(100 * value)} %`;

/** So many significant digits, without an exponent. */
export function digits(value, count = 3) {
  if (!value || !Number.isFinite(value)) return String(value || 0);
  const size = Math.floor(Math.log10(Math.abs(Number(value.toPrecision(count))))); // 9.999 has that of 10.0
  return value.toFixed(Math.min(12, Math.max(0, count - 1 - size))).replace("-", MINUS);
}

/** A change in per cent. */
export const signed = (value) => `${value < 0 ? MINUS : "+"}${Math.abs(value).toFixed(1)} %`;

/** How long an epoch, a job or the like takes. */
export function duration(seconds) {
  if (seconds < 120) return seconds < 0.1 ? `${digits(1000 * seconds)} ms` : `${digits(seconds)} s`;
  const whole = Math.floor(seconds / 60);
  return whole < 100 ? `${whole} min ${Math.floor(seconds % 60)} s` : `${Math.floor(whole / 60)} h ${whole % 60} min`;
}

/** The power of 1000 that a value is best told in, and the unit with its prefix; seconds have none above. @returns {[number, string]} */
export function prefixed(value, unit) {
  const [scale, prefix] = PREFIXES.find(([least]) => value >= least && !(unit === "s" && least > 1)) ?? PREFIXES[PREFIXES.length - 1];
  return [scale, prefix + unit];
}

export function amount(value, unit) {
  const [scale, words] = prefixed(Math.abs(value), unit);
  return `${digits(value / scale, 4)} ${words}`;
}

/** Energy as who pays for it counts it; an error that is finer than the value's digits is rounded up. */
export function hours(kwh, error) {
  const [, scale, unit] = /** @type {[number, number, string]} */ (HOURS.find(([least]) => Math.abs(kwh) >= least));
  const value = digits(scale * kwh);
  const decimals = value.split(".")[1]?.length ?? 0;
  const least = Math.ceil(scale * error * 10 ** decimals - 1e-9) / 10 ** decimals;
  return `${value}${error > 0 ? ` ± ${least.toFixed(decimals)}` : ""} ${unit}`;
}

export const mass = (grams) => (Math.abs(grams) >= 1000 ? `${digits(grams / 1000)} kg` : `${digits(grams)} g`);

/** The highest of many numbers, and 1 where there is none above. */
export const highest = (...columns) => columns.reduce((top, values) => values.reduce((most, value) => (value > most ? value : most), top), 1);

/** The rows of a table of columns. @returns {any[]} */
export function rowsOf(table) {
  const [first = []] = Object.values(table);
  return first.map((_, n) => Object.fromEntries(Object.entries(table).map(([name, values]) => [name, values[n]])));
}
