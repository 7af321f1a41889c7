// @ts-check
// Numbers as words, and numbers for plots. Independent of the page.

const MINUS = "\u2212";

/** A column of a message: what is missing is NaN. */
export const numbers = (values) => values.map((value) => value ?? NaN);

/** The numbers of a message's first buffer, in memory of their own. */
export function floats([view]) {
  return new Float32Array(/** @type {ArrayBuffer} */ (view.buffer).slice(view.byteOffset, view.byteOffset + view.byteLength));
}

export const watts = (value) => (Number.isFinite(value) ? `${value.toFixed(0)} W` : "– W");

/** Energy since the start of a cell. */
export function joules(value) {
  if (value === null || !Number.isFinite(value)) return "– J";
  const [scale, unit] = value >= 1e6 ? [1e6, "MJ"] : value >= 1e3 ? [1e3, "kJ"] : [1, "J"];
  return `${digits(value / scale)} ${unit}`; // three digits, as the sensor is good for
}

/** Time since the start of a cell, as Python's `format_duration` writes it; below 100 s with tenths. */
export function elapsed(seconds) {
  if (seconds < 120) return `${seconds.toFixed(seconds < 99.95 ? 1 : 0)} s`;
  const minutes = Math.floor(seconds / 60);
  return minutes < 100 ? `${minutes} min ${Math.floor(seconds % 60)} s` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

export const percent = (value) => `${Math.round(100 * value)} %`;

/** So many significant digits, without an exponent. */
export function digits(value, count = 3) {
  if (!value || !Number.isFinite(value)) return String(value || 0);
  const size = Math.floor(Math.log10(Math.abs(Number(value.toPrecision(count))))); // 9.999 has that of 10.0
  return value.toFixed(Math.min(12, Math.max(0, count - 1 - size))).replace("-", MINUS);
}

/** The highest of many numbers, at least 1. */
export const highest = (...columns) => columns.reduce((top, values) => values.reduce((most, value) => (value > most ? value : most), top), 1);

/** The rows of a table of columns. @returns {any[]} */
export function rowsOf(table) {
  const [first = []] = Object.values(table);
  return first.map((_, n) => Object.fromEntries(Object.entries(table).map(([name, values]) => [name, values[n]])));
}
