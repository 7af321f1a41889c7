// @ts-check
// A table that can be sorted, of which only the rows in sight are there: ten thousand scroll as ten do.
import { element } from "./controls.js";

const ROW = 24; // pixels
const SEEN = 9; // rows

export class FrontierTable {
  /** `columns`: [[heading, hint, row -> number or text, row -> words]]; `choose(row)` on a click. */
  constructor(choose) {
    this.choose = choose;
    this.columns = [];
    this.rows = [];
    this.sort = [0, 1];
    this.chosen = null;
    this.head = element("tr");
    this.body = element("tbody");
    const table = element("table", "workbench-table", element("thead", "", this.head), this.body);
    table.setAttribute("aria-label", "configurations");
    this.box = element("div", "workbench-table-box", table);
    this.box.tabIndex = 0;
    this.box.setAttribute("role", "region");
    this.box.setAttribute("aria-label", "table of configurations; arrow keys go from row to row");
    this.box.addEventListener("scroll", () => this.paint());
    this.box.addEventListener("keydown", (event) => {
      const by = { ArrowDown: 1, ArrowUp: -1, PageDown: SEEN, PageUp: -SEEN, Home: -Infinity, End: Infinity }[event.key];
      if (by === undefined || !this.rows.length) return;
      event.preventDefault();
      const at = Math.max(0, this.rows.indexOf(this.chosen));
      this.choose(this.rows[Math.max(0, Math.min(this.rows.length - 1, at + by))]);
    });
    this.body.addEventListener("click", (event) => {
      const row = /** @type {HTMLElement | null} */ (/** @type {Element} */ (event.target).closest("tr[data-row]"));
      if (row) this.choose(Number(row.dataset.row));
    });
    this.root = this.box;
  }
  show(columns, rows) {
    this.columns = columns;
    if (this.sort[0] >= columns.length) this.sort = [0, 1];
    this.head.replaceChildren(...columns.map(([name, hint], number) => {
      const button = Object.assign(element("button", "workbench-sort", name), { title: `${hint}; click to sort` });
      button.addEventListener("click", () => {
        this.sort = [number, this.sort[0] === number ? -this.sort[1] : 1];
        this.order();
      });
      const head = element("th", "", button);
      head.scope = "col";
      return head;
    }));
    this.rows = [...rows];
    this.box.style.height = `${(Math.min(SEEN, this.rows.length) + 1) * ROW + 2}px`;
    this.order();
  }
  order() {
    const [number, direction] = this.sort;
    const value = this.columns[number]?.[2];
    if (!value) return;
    const keys = new Map(this.rows.map((row) => [row, value(row)]));
    const missing = (key) => key === null || key === undefined || Number.isNaN(key);
    this.rows.sort((a, b) => {
      const [one, other] = [keys.get(a), keys.get(b)];
      if (missing(one) || missing(other)) return Number(missing(one)) - Number(missing(other)) || a - b; // at the end either way
      return direction * (one < other ? -1 : one > other ? 1 : 0) || a - b;
    });
    this.places = new Map(this.rows.map((row, place) => [row, place]));
    [...this.head.children].forEach((head, place) => {
      head.setAttribute("aria-sort", place !== number ? "none" : direction > 0 ? "ascending" : "descending");
    });
    this.painted = null;
    this.reveal();
    this.paint();
  }
  select(row) {
    this.chosen = row;
    this.reveal();
    this.paint();
  }
  reveal() {
    const place = this.places?.get(this.chosen);
    if (place === undefined) return;
    const [top, bottom] = [place * ROW, (place + 1) * ROW];
    if (top < this.box.scrollTop) this.box.scrollTop = top;
    else if (bottom > this.box.scrollTop + SEEN * ROW) this.box.scrollTop = bottom - SEEN * ROW;
  }
  paint() {
    const first = Math.max(0, Math.min(Math.floor(this.box.scrollTop / ROW) - 2, this.rows.length - SEEN - 4));
    const shown = this.rows.slice(first, first + SEEN + 5);
    if (this.painted !== first) {
      const space = (rows) => {
        const cell = Object.assign(element("td", "workbench-space-cell"), { colSpan: this.columns.length });
        const made = element("tr", "", cell);
        made.setAttribute("aria-hidden", "true");
        cell.style.height = `${rows * ROW}px`;
        return made;
      };
      this.body.replaceChildren(space(first), ...shown.map((row) => {
        const made = element("tr", "", ...this.columns.map(([, , , words]) => element("td", "", words(row))));
        made.dataset.row = row;
        return made;
      }), space(Math.max(0, this.rows.length - first - shown.length)));
      this.painted = first;
    }
    for (const made of /** @type {NodeListOf<HTMLElement>} */ (this.body.querySelectorAll("tr[data-row]"))) {
      made.setAttribute("aria-selected", String(Number(made.dataset.row) === this.chosen));
    }
  }
}
