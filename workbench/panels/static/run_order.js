// @ts-check
// The runs that the log shows, their order and groups. Independent of the page.
/** @import { LogRun } from "./messages" */
import { digits } from "./formats.js";

const TERM = /^([^:<>]+)([:<>])(.+)$/;
const plain = (text) => text.toLowerCase().replaceAll(" ", "");

/**
 * Runs that have all words of a filter: a word anywhere, `label:word` in one column, `energy<500` and `time>60` of numbers (J, s).
 * @param {LogRun[]} runs @param {string[]} columns @param {string} filter
 */
export function matching(runs, columns, filter) {
  const tests = filter.toLowerCase().split(/\s+/).filter(Boolean).map((word) => {
    const [, name = "", how = "", value = ""] = TERM.exec(word) ?? [];
    const at = columns.findIndex((column) => plain(column) === name);
    if (at >= 0 && how === ":") return (run) => run.cells[at].toLowerCase().includes(value);
    if (at >= 0 && how === "<") return (run) => run.numbers[at] !== null && run.numbers[at] < Number(value);
    if (at >= 0) return (run) => run.numbers[at] !== null && run.numbers[at] > Number(value);
    return (run) => run.cells.some((cell) => cell.toLowerCase().includes(word));
  });
  return runs.filter((run) => tests.every((test) => test(run)));
}

/**
 * Runs by a column: numbers by their size, everything else as text; runs without a value come last either way.
 * @param {LogRun[]} runs @param {number} at @param {boolean} rising
 */
export function ordered(runs, at, rising) {
  const numeric = runs.some(({ numbers }) => numbers[at] !== null);
  const key = (run) => (numeric ? run.numbers[at] : run.cells[at] || null);
  const way = rising ? 1 : -1;
  const collator = new Intl.Collator("en", { numeric: true });
  const compare = numeric ? (a, b) => a - b : collator.compare;
  return runs.map((run) => ({ run, value: key(run) })).sort((a, b) => {
    if (a.value === null || b.value === null) return Number(a.value === null) - Number(b.value === null);
    return way * compare(a.value, b.value);
  }).map(({ run }) => run);
}

/**
 * The lines of a table: a heading for each value of a column and its runs, unless the group is closed; without a column the runs alone.
 * @param {LogRun[]} runs @param {string[]} columns @param {number} at @param {Set<string>} closed
 * @returns {({ run: LogRun } | { group: string, words: string })[]}
 */
export function linesOf(runs, columns, at, closed) {
  if (at < 0) return runs.map((run) => ({ run }));
  const groups = /** @type {Map<string, LogRun[]>} */ (new Map());
  for (const run of runs) groups.set(run.cells[at] || "none", [...(groups.get(run.cells[at] || "none") ?? []), run]);
  return [...groups].flatMap(([group, members]) => [
    { group, words: `${group}: ${describe(members, columns)}` }, ...(closed.has(group) ? [] : members.map((run) => ({ run }))),
  ]);
}

/** How many runs there are, and the means of those with an energy and a time. */
export function describe(runs, columns) {
  const mean = (name, unit) => {
    const at = columns.indexOf(name);
    const known = runs.flatMap(({ numbers }) => (Number.isFinite(numbers[at]) ? [/** @type {number} */ (numbers[at])] : []));
    return known.length ? [`mean ${name} ${digits(known.reduce((sum, value) => sum + value, 0) / known.length)} ${unit}`] : [];
  };
  return [`${runs.length} ${runs.length === 1 ? "run" : "runs"}`, ...mean("energy", "J"), ...mean("time", "s")].join(", ");
}

/** The columns in which runs differ. @param {LogRun[]} runs @param {string[]} columns */
export const differing = (runs, columns) => columns.filter((_, at) => new Set(runs.map(({ cells }) => cells[at])).size > 1);
