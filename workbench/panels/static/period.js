// @ts-check
// The iterations of a GPU: words, the iterations overlaid, the spectrum. Used by the live view and by the inspection view.
/** @import { Period } from "./messages" */
import { chip, element, offer, picker, put, refill, say, space } from "./controls.js";
import { Described } from "./plots.js";

/** Words, fold and spectrum. `post` sends a person's choice to the kernel. */
export class PeriodView {
  constructor(page, post) {
    this.page = page;
    this.post = post;
    this.headline = element("div", "workbench-headline");
    this.details = element("div", "workbench-details");
    this.levels = element("span", "workbench-levels");
    this.chosen = picker("workbench-follow", "GPU whose iterations are shown", (gpu) => post({ kind: "follow", gpu: Number(gpu) }));
    this.place = element("div", "workbench-plots");
    const line = element("div", "workbench-head", this.details, space(), this.levels, this.chosen);
    this.root = element("div", "workbench-period", this.headline, line, this.place, { hidden: true });
    this.plots = /** @type {Described | null} */ (null);
    this.about = /** @type {Period | null} */ (null);
    this.drawn = /** @type {Period | null} */ (null);
  }
  greeting(gpus) {
    for (const each of [this.root, this.headline]) put(each, { hidden: false });
    offer(this.chosen, gpus.map((gpu, number) => [String(number), `Iterations of GPU ${gpu.index}`]));
    put(this.chosen, { hidden: gpus.length === 1 });
    if (!this.about) say(this.headline, "Looking for the iteration");
  }
  /** The run has ended: disable the choices. Its iterations follow in the next message, unless the run was too short. */
  conclude() {
    this.root.prepend(this.headline);
    put(this.headline, { hidden: false, textContent: "No iteration found: the run was too short" });
    for (const each of [this.levels, this.chosen]) put(each, { hidden: true });
  }
  /** News; `draw` draws them. */
  take(/** @type {Period} */ about) {
    this.about = about;
    put(this.headline, { textContent: about.headline, "data-sure": about.sure });
    say(this.details, about.details.join(" · "));
    this.chosen.value = String(about.gpu);
    this.offer(about);
  }
  draw() {
    if (this.drawn === this.about) return;
    this.drawn = this.about;
    this.plots ??= new Described(this.page, this.place);
    this.plots.draw(this.about.figure);
  }
  /** Buttons for the detected levels, if there are several. */
  offer(/** @type {Period} */ { levels, level }) {
    const chips = levels.length > 1 ? levels.map(({ name, words }) => [name, words, name === level?.name]) : [];
    refill(this.levels, chips, ([name, words, pressed]) => chip(words, pressed, () => this.post({ kind: "level", name }), `fold the ${name}`));
  }
}
