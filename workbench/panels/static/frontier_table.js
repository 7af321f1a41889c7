// @ts-check
// A table that can be sorted, of which only the rows in sight are there: ten thousand scroll as ten do.
import { cells, element, put, refill, table, walks } from "./controls.js";

const ROW = 24; // pixels
const SEEN = 9; // rows

export class FrontierTable {
  /** `choose(row)` on a click. */
  constructor(choose) {
    this.columns = /** @type {import("./messages").FrontierColumn[]} */ ([]);
    this.rows = [];
    this.sort = [0, 1];
    this.chosen = null;
    this.name = ""; // of the chosen row
    this.painted = /** @type {Map<string, HTMLTableRowElement>} */ (new Map()); // rows by what they show
    this.above = element("td", "workbench-space-cell");
    this.below = element("td", "workbench-space-cell");
    this.table = table("configurations");
    const walk = (by) => {
      const at = Math.max(0, this.rows.indexOf(this.chosen));
      if (this.rows.length) choose(this.rows[Math.max(0, Math.min(this.rows.length - 1, at + by))]);
    };
    const about = { tabIndex: 0, role: "region", "aria-label": "table of configurations; arrow keys go from row to row" };
    this.root = element("div", "workbench-table-box", this.table.root, about, { onscroll: () => this.paint(), onkeydown: walks(walk, SEEN) });
    this.table.body.append(...[this.above, this.below].map((cell) => element("tr", "", cell, { "aria-hidden": "true" })));
    this.table.body.addEventListener("click", (event) => {
      const row = /** @type {HTMLElement | null} */ (/** @type {Element} */ (event.target).closest("tr[data-row]"));
      if (row) choose(Number(row.dataset.row));
    });
  }
  /** Show rows of the columns; where another configuration is chosen, it is scrolled to. */
  show(/** @type {import("./messages").FrontierColumn[]} */ columns, rows, /** @type {import("./messages").FrontierChoice} */ { row, name }) {
    const moves = name !== this.name;
    Object.assign(this, { columns, chosen: row, name });
    if (this.sort[0] >= this.columns.length) this.sort = [0, 1];
    const sort = (number) => {
      this.sort = [number, this.sort[0] === number ? -this.sort[1] : 1];
      this.order();
      this.reveal();
    };
    refill(this.table.head, this.columns.map(({ name, hint }) => [name, hint]), ([name, hint], number) => {
      const button = element("button", "workbench-sort", name, { title: `${hint}; click to sort`, onclick: () => sort(number) });
      return element("th", "", button, { scope: "col" });
    });
    this.rows = [...rows];
    this.root.style.height = `${(Math.min(SEEN, this.rows.length) + 1) * ROW + 2}px`;
    this.order();
    if (moves) this.reveal();
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
    this.paint();
  }
  select(/** @type {import("./messages").FrontierChoice} */ { row, name }) {
    const moves = row !== this.chosen;
    Object.assign(this, { chosen: row, name });
    if (moves) this.reveal();
    this.paint();
  }
  /** Scroll to the row that is chosen. */
  reveal() {
    const place = this.rows.indexOf(this.chosen);
    const [top, bottom] = [place * ROW, (place + 1) * ROW];
    if (place >= 0 && top < this.root.scrollTop) this.root.scrollTop = top;
    else if (bottom > this.root.scrollTop + SEEN * ROW) this.root.scrollTop = bottom - SEEN * ROW;
  }
  /** A row that stays in sight stays in the page: a row that is replaced during a click gets no click event. */
  paint() {
    const first = Math.max(0, Math.min(Math.floor(this.root.scrollTop / ROW) - 2, this.rows.length - SEEN - 4));
    const shown = this.rows.slice(first, first + SEEN + 5);
    const painted = new Map();
    for (const row of shown) {
      const texts = this.columns.map((column) => column.texts?.[row] ?? String(column.values[row] ?? ""));
      let key = texts.join("\t");
      while (painted.has(key)) key += "\t"; // measured twice
      const made = this.painted.get(key) ?? element("tr", "", ...cells(texts));
      put(made, { "data-row": row, "aria-selected": row === this.chosen });
      painted.set(key, made);
    }
    for (const [key, each] of this.painted) if (!painted.has(key)) each.remove();
    this.painted = painted;
    const { children } = this.table.body;
    [...painted.values()].forEach((each, n) => {
      if (children[n + 1] !== each) this.table.body.insertBefore(each, children[n + 1]);
    });
    const spaces = /** @type {[HTMLTableCellElement, number][]} */ ([[this.above, first], [this.below, Math.max(0, this.rows.length - first - shown.length)]]);
    for (const [cell, rows] of spaces) put(cell, { colSpan: this.columns.length, height: String(rows * ROW) });
  }
}
