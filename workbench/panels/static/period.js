// @ts-check
// The iterations of a GPU: words, the folded iteration, the spectrum. Used by the live view and by the inspection view.
/** @import { Period } from "./messages" */
import { chip, element, mark, offer, picker, put, space } from "./controls.js";
import { Fold, Spectrum } from "./period_plots.js";
import { Figure } from "./plots.js";

/** Fold and spectrum side by side. */
class PeriodPlots {
  constructor(Bokeh, place, colours) {
    this.figure = new Figure(Bokeh, place);
    this.fold = new Fold(this.figure);
    this.spectrum = new Spectrum(this.figure);
    this.figure.embed(this.figure.row(this.fold.frame, this.spectrum.frame), colours);
  }
}

/** Words, fold and spectrum. `post` sends to the kernel what a person chooses. */
export class PeriodView {
  gpus; Bokeh; colours; // of the greeting
  constructor(post) {
    this.post = post;
    this.headline = element("div", "workbench-headline");
    this.details = element("div", "workbench-details");
    this.levels = element("span", "workbench-levels");
    this.chosen = picker("workbench-follow", "GPU whose iterations are shown", (gpu) => post({ kind: "follow", gpu: Number(gpu) }));
    this.place = element("div", "workbench-plots");
    this.root = element("div", "workbench-period", this.headline, element("div", "workbench-head", this.details, space(), this.levels, this.chosen), this.place);
    this.root.hidden = true;
    this.plots = /** @type {PeriodPlots | null} */ (null);
    this.about = /** @type {Period | null} */ (null);
    this.tables = /** @type {Float64Array[][] | null} */ (null); // that are not drawn yet
  }
  greeting(gpus, Bokeh, colours) {
    put(this.root, { hidden: false });
    Object.assign(this, { gpus, Bokeh, colours });
    offer(this.chosen, gpus.map((gpu, number) => [String(number), `Iterations of GPU ${gpu.index}`]));
    put(this.chosen, { hidden: gpus.length === 1 });
    if (!this.about) put(this.headline, { textContent: "Looking for the iteration" });
  }
  /** News; `draw` draws them. */
  take(/** @type {Period} */ about, tables) {
    this.about = about;
    this.tables = tables;
    put(this.headline, { textContent: about.headline });
    mark(this.headline, "data-sure", about.sure);
    put(this.details, { textContent: about.details.join(" · ") });
    this.chosen.value = String(about.gpu);
    this.offer(about);
  }
  draw() {
    if (!this.tables) return;
    const [, folded, shape, spectrum] = this.tables;
    const { about } = this;
    this.tables = null;
    if (!spectrum[0].length && !folded[0].length && !this.plots) return;
    this.plots ??= new PeriodPlots(this.Bokeh, this.place, this.colours());
    const { colour } = this.gpus[about.gpu];
    this.plots.fold.draw(about, folded, shape, colour);
    this.plots.spectrum.draw(about, spectrum, colour);
  }
  /** Buttons for the levels that were found, where there are several. */
  offer(/** @type {Period} */ about) {
    const key = JSON.stringify([about.levels, about.level]);
    if (key === this.offered) return;
    this.offered = key;
    const several = about.levels.length > 1 ? about.levels : [];
    this.levels.replaceChildren(...several.map(({ name, words }) => {
      const made = chip(words, about.level?.name === name, () => this.post({ kind: "level", name }));
      made.title = `fold the ${name}`;
      return made;
    }));
  }
}
