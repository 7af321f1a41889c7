// @ts-check
// The table of the log: only the rows in sight are in the page, so that ten thousand scroll as ten do.
import { element, put, refill, say, table, walks } from "./controls.js";

const ROW = 26; // pixels
const SEEN = 12; // rows
const SPARK = { width: 90, height: 20 };

/** A small picture of a run's power. @param {number[]} watts */
function sparkline(watts) {
  const high = Math.max(...watts, 1);
  const at = (n) => `${((n / Math.max(watts.length - 1, 1)) * SPARK.width).toFixed(1)},${((1 - watts[n] / high) * (SPARK.height - 2) + 1).toFixed(1)}`;
  const points = watts.map((_, n) => at(n)).join(" ");
  const title = `power, at most ${Math.round(high)} W`;
  return `<svg width="${SPARK.width}" height="${SPARK.height}" role="img" aria-label="${title}"><title>${title}</title>`
    + `<polyline points="${points}" fill="none" stroke="currentColor"/></svg>`;
}

export class RunTable {
  /** `tick(id)`, `sort(column)`, `toggle(group)` are a person's actions; `needs(ids)` asks for the power of runs. */
  constructor({ tick, sort, toggle, needs }) {
    this.does = { tick, sort, toggle, needs };
    this.lines = /** @type {any[]} */ ([]);
    this.shown = /** @type {number[]} */ ([]); // columns
    this.numeric = new Set(); // columns of numbers
    this.ticked = new Set();
    this.sparks = new Map();
    this.at = 0; // the line that the keyboard is on
    this.table = table("runs");
    put(this.table.root, { "aria-rowcount": -1 });
    this.spaces = [0, 1].map(() => element("tr", "", { "aria-hidden": "true" }));
    this.root = element("div", "workbench-table-box workbench-runs", this.table.root, {
      tabIndex: 0, role: "region", "aria-label": "runs; arrow keys go from row to row, the space bar ticks one", onscroll: () => this.paint(),
      onkeydown: (event) => this.key(event), style: `height: ${(SEEN + 1) * ROW + 2}px`,
    });
    this.walk = walks((by) => this.go(by), SEEN);
    this.table.body.addEventListener("click", ({ target }) => {
      const row = /** @type {HTMLElement | null} */ (target instanceof Element && target.closest("tr[data-at]"));
      if (row) this.act(Number(row.dataset.at));
    });
  }
  /** Show lines of the columns, by their numbers. */
  show({ columns, shown, lines, sorted, rising, numeric }) {
    Object.assign(this, { shown, lines, numeric });
    this.at = Math.min(this.at, Math.max(0, lines.length - 1));
    refill(this.table.head, ["", "power", ...shown.map((n) => columns[n])], (name) => element("th", "", ...(
      columns.includes(name) ? [element("button", "workbench-sort", name, { onclick: () => this.does.sort(columns.indexOf(name)) })] : [name]), { scope: "col" }));
    [...this.table.head.children].forEach((head, n) => put(head, {
      "aria-sort": shown[n - 2] !== sorted ? "none" : rising ? "ascending" : "descending", className: numeric.has(shown[n - 2]) ? "workbench-number" : "",
    }));
    this.paint();
  }
  key(event) {
    if (event.target !== this.root) return;
    if (event.key === " " || event.key === "Enter") {
      event.preventDefault();
      this.act(this.at);
    } else this.walk(event);
  }
  go(by) {
    this.at = Math.max(0, Math.min(this.lines.length - 1, this.at + by));
    const [top, bottom] = [this.at * ROW, (this.at + 1) * ROW];
    if (top < this.root.scrollTop) this.root.scrollTop = top;
    else if (bottom > this.root.scrollTop + SEEN * ROW) this.root.scrollTop = bottom - SEEN * ROW;
    this.paint();
  }
  act(at) {
    this.at = at;
    const line = this.lines[at];
    if (line?.run) this.does.tick(line.run.id);
    else if (line) this.does.toggle(line.group);
  }
  /** Draw the rows in sight again. */
  paint() {
    const first = Math.max(0, Math.min(Math.floor(this.root.scrollTop / ROW) - 3, this.lines.length - SEEN - 6));
    const inside = this.lines.slice(first, first + SEEN + 7);
    const rows = inside.map((line, n) => this.row(line, first + n));
    const heights = [first, Math.max(0, this.lines.length - first - inside.length)];
    this.spaces.forEach((space, n) => (space.style.height = `${heights[n] * ROW}px`));
    this.table.body.replaceChildren(this.spaces[0], ...rows, this.spaces[1]);
    const unknown = inside.flatMap(({ run }) => (run && !this.sparks.has(run.id) ? [run.id] : []));
    if (unknown.length) this.does.needs(unknown);
  }
  row(line, at) {
    const made = element("tr", at === this.at ? "workbench-at" : "", { "data-at": at });
    if (!line.run) {
      made.append(element("td", "workbench-group", line.words, { colSpan: this.shown.length + 2 }));
      return made;
    }
    const ticked = this.ticked.has(line.run.id);
    put(made, { "aria-selected": ticked });
    const box = element("input", "", { type: "checkbox", tabIndex: -1, checked: ticked, "aria-label": `tick ${line.run.cells[1] || "run"}` });
    const spark = element("td", "workbench-spark");
    spark.innerHTML = this.sparks.get(line.run.id)?.length ? sparkline(this.sparks.get(line.run.id)) : "";
    made.append(element("td", "", box), spark, ...this.shown.map((n) => {
      const cell = element("td", this.numeric.has(n) ? "workbench-number" : "", { title: line.run.cells[n] });
      say(cell, line.run.cells[n]);
      return cell;
    }));
    return made;
  }
}
