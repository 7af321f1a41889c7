// @ts-check
// The plane of time and energy as the kernel describes it. Fixed parts are drawn once; parts that a choice moves have their own canvas.
/** @import { Layer } from "./messages" */
import { Described, place } from "./plots.js";

const NEAR = 14; // pixels, within which a click means a point

export class FrontierPlot extends Described {
  /** `take(row)` on a click on a point, `fit()` on two anywhere. */
  constructor(page, place, take, fit) {
    super(page, place);
    this.take = take;
    this.fit = fit;
    this.places = new Float32Array();
    this.moved = /** @type {Layer[]} */ ([]);
    this.job = /** @type {Layer[]} */ ([]);
  }
  make(about) {
    const frame = super.make(about);
    const { models } = this.figure;
    this.overlay = this.layersOf(frame);
    frame.plot.add_tools(new models.BoxZoomTool());
    frame.plot.toolbar.active_drag = null;
    frame.plot.on_event("tap", (event) => {
      const row = this.tapped(event);
      if (row !== null) this.take(row);
    });
    frame.plot.on_event("doubletap", this.fit);
    return frame;
  }
  /** Draw the points; `places` has x and y of each, one after another. */
  draw(rows, places = this.places) {
    const begins = !this.figure.frames.length;
    this.places = places;
    super.draw(rows);
    if (begins) Promise.resolve(this.figure.views).then(() => { // the keys go to the place around it, which is one stop of the tab key, not two
      for (const each of /** @type {NodeListOf<HTMLElement>} */ (this.place.querySelectorAll(".bk-Plot"))) each.tabIndex = -1;
    });
  }
  /** Draw the parts that a choice moves. */
  move(/** @type {Layer[]} */ moved) {
    this.moved = moved;
    this.drawLayers(this.figure.frames[0], this.overlay, [...moved, ...this.job], "overlay");
  }
  /** Move the ring alone, before the kernel has sent the other parts. */
  ring(row) {
    const [x, y] = [[this.places[2 * row]], [this.places[2 * row + 1]]];
    const ring = this.moved.filter(({ kind, shape }) => kind === "dot" && shape === "circle");
    this.move([...this.moved.filter(({ kind }) => kind === "box"), ...ring.map((layer) => ({ ...layer, rows: { ...layer.rows, x, y } }))]);
  }
  /** The row that a click means. */
  tapped({ x, y }) {
    if (x === undefined || y === undefined) return null;
    const [frame] = this.figure.frames;
    const [left, low] = place(frame, { x, y });
    let [nearest, least] = [/** @type {number | null} */ (null), NEAR];
    for (let row = 0; row < this.places.length / 2; row += 1) {
      const at = place(frame, { x: this.places[2 * row], y: this.places[2 * row + 1] });
      const distance = Math.hypot(at[0] - left, at[1] - low);
      if (distance < least) [nearest, least] = [row, distance];
    }
    return nearest;
  }
}
