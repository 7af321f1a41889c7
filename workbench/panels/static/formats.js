// @ts-check
// Numbers as words, and numbers as plots want them. Nothing in here knows the page.

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

/** The highest of many numbers, and 1 where there is none above. */
export const highest = (...columns) => columns.reduce((top, values) => values.reduce((most, value) => (value > most ? value : most), top), 1);

/** The rows of a table of columns. @returns {any[]} */
export function rowsOf(table) {
  const [first = []] = Object.values(table);
  return first.map((_, n) => Object.fromEntries(Object.entries(table).map(([name, values]) => [name, values[n]])));
}
