// @ts-check
// A table that can be sorted, of which only the rows in sight are there: ten thousand scroll as ten do.
import { cells, element, put, table, walks } from "./controls.js";

const ROW = 24; // pixels
const SEEN = 9; // rows

export class FrontierTable {
  /** `choose(row)` on a click. */
  constructor(choose) {
    this.columns = /** @type {import("./messages").FrontierColumn[]} */ ([]);
    this.rows = [];
    this.sort = [0, 1];
    this.chosen = null;
    this.table = table("configurations");
    const walk = (by) => {
      const at = Math.max(0, this.rows.indexOf(this.chosen));
      if (this.rows.length) choose(this.rows[Math.max(0, Math.min(this.rows.length - 1, at + by))]);
    };
    const about = { tabIndex: 0, role: "region", "aria-label": "table of configurations; arrow keys go from row to row" };
    this.root = element("div", "workbench-table-box", this.table.root, about, { onscroll: () => this.paint(), onkeydown: walks(walk, SEEN) });
    this.table.body.addEventListener("click", (event) => {
      const row = /** @type {HTMLElement | null} */ (/** @type {Element} */ (event.target).closest("tr[data-row]"));
      if (row) choose(Number(row.dataset.row));
    });
  }
  show(/** @type {import("./messages").FrontierColumn[]} */ columns, rows) {
    this.columns = columns;
    if (this.sort[0] >= this.columns.length) this.sort = [0, 1];
    const sort = (number) => {
      this.sort = [number, this.sort[0] === number ? -this.sort[1] : 1];
      this.order();
    };
    this.table.head.replaceChildren(...this.columns.map(({ name, hint }, number) => {
      const button = element("button", "workbench-sort", name, { title: `${hint}; click to sort`, onclick: () => sort(number) });
      return element("th", "", button, { scope: "col" });
    }));
    this.rows = [...rows];
    this.root.style.height = `${(Math.min(SEEN, this.rows.length) + 1) * ROW + 2}px`;
    this.order();
  }
  order() {
    const [number, direction] = this.sort;
    const { values } = this.columns[number];
    const keys = new Map(this.rows.map((row) => [row, values[row]]));
    const missing = (key) => key === null;
    this.rows.sort((a, b) => {
      const [one, other] = [keys.get(a), keys.get(b)];
      if (missing(one) || missing(other)) return Number(missing(one)) - Number(missing(other)) || a - b; // at the end either way
      return direction * (one < other ? -1 : one > other ? 1 : 0) || a - b;
    });
    [...this.table.head.children].forEach((head, n) => put(head, { "aria-sort": n !== number ? "none" : direction > 0 ? "ascending" : "descending" }));
    this.painted = null;
    this.select(this.chosen);
  }
  select(row) {
    this.chosen = row;
    const place = this.rows.indexOf(row);
    const [top, bottom] = [place * ROW, (place + 1) * ROW];
    if (place >= 0 && top < this.root.scrollTop) this.root.scrollTop = top;
    else if (bottom > this.root.scrollTop + SEEN * ROW) this.root.scrollTop = bottom - SEEN * ROW;
    this.paint();
  }
  paint() {
    const first = Math.max(0, Math.min(Math.floor(this.root.scrollTop / ROW) - 2, this.rows.length - SEEN - 4));
    const shown = this.rows.slice(first, first + SEEN + 5);
    if (this.painted !== first) {
      const space = (rows) => {
        const cell = element("td", "workbench-space-cell", { colSpan: this.columns.length });
        cell.style.height = `${rows * ROW}px`;
        return element("tr", "", cell, { "aria-hidden": "true" });
      };
      const entry = ({ values, texts }, row) => (texts ? texts[row] : String(values[row] ?? ""));
      const made = shown.map((row) => element("tr", "", ...cells(this.columns.map((column) => entry(column, row))), { "data-row": row }));
      this.table.body.replaceChildren(space(first), ...made, space(Math.max(0, this.rows.length - first - shown.length)));
      this.painted = first;
    }
    [...this.table.body.children].slice(1, -1).forEach((each, n) => put(each, { "aria-selected": shown[n] === this.chosen }));
  }
}
