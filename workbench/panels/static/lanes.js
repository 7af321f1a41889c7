// @ts-check
// The GPUs of a job as lanes over one iteration, and settings for single GPUs: below the answer of a cell that has ended, and of a job.
/** @import { Frame, OwnSettings } from "./messages" */
import { Applying } from "./applying.js";
import { element, put, row, say } from "./controls.js";
import { Described } from "./plots.js";

const LEAST = 180; // pixels of the lanes, where they give way to keep the height of the view

export class Lanes {
  constructor(page, post) {
    this.page = page;
    this.applying = new Applying((kind) => post({ kind }));
    const { apply, undo, done, command } = this.applying;
    this.controls = element("div", "", row(apply, undo, done), command.root);
    this.place = element("div", "workbench-plots workbench-lanes", { role: "img" });
    this.table = element("div", "workbench-own-settings");
    this.drawn = /** @type {Described | null} */ (null);
    this.root = element("div", "", this.controls, this.place, this.table);
    for (const part of [this.controls, this.place]) put(part, { hidden: true });
  }
  show(/** @type {Frame[][]} */ lanes, /** @type {OwnSettings | null} */ settings, headline) {
    if (settings) this.take(settings);
    if (!lanes.length) return;
    this.drawn ??= new Described(this.page, this.place);
    put(this.place, { "aria-label": `power and waiting of each GPU over one iteration: ${headline}` });
    put(this.place.style, { minHeight: this.place.style.minHeight || `${lanes.flat().reduce((sum, { height }) => sum + (height ?? 0), 0)}px` }); // before it is drawn
    this.drawn.draw(lanes);
  }
  take(/** @type {OwnSettings} */ settings) {
    this.applying.show(settings);
    say(this.applying.apply, settings.name);
    put(this.controls, { hidden: !settings.name });
    if (this.text !== settings.table) this.table.innerHTML = this.text = settings.table;
  }
  /** Give `root`, which these lanes are in, a height in pixels, as far as they stay readable; twice, as the page keeps a least height. */
  fit(root, tall) {
    for (let pass = 0; pass < 2; pass += 1) {
      for (const { plot } of this.drawn?.figure.frames ?? []) {
        const height = Math.max(plot.height + tall - root.offsetHeight, LEAST);
        put(plot, { height });
        put(this.place.style, { minHeight: `${height}px` });
      }
    }
  }
}
