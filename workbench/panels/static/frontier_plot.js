// @ts-check
// The plane of time and energy. What stays is drawn once; what a step moves lies on a canvas of its own ("overlay"), so that ten thousand
// points are not drawn again for it.
import { percent, prefixed } from "./formats.js";
import { AT, Figure, GROUND, NAMED, TEXT, addBound, addErrors, fill, fit, place, sizeOf, spread } from "./plots.js";

const FEW = 300; // points, up to which all that are measured have error bars; of more only the frontier's
const NEAR = 14; // pixels, within which a click means a point
const Z = 1.96;
const OVER = { level: "overlay" };

/** A falling straight line as far as it lies in a frame: the canvas of what moves is not clipped to it. */
export function inFrame(line, x, y) {
  const [first, last] = [line(x.start), line(x.end)];
  if (first === last) return { x: [x.start, x.end], y: [first, last] };
  const at = (value) => x.start + ((value - first) / (last - first)) * (x.end - x.start);
  const [low, high] = [Math.max(x.start, at(y.end)), Math.min(x.end, at(y.start))];
  return low < high ? { x: [low, high], y: [line(low), line(high)] } : { x: [], y: [] };
}

/** A frame of time and energy, in what it is scaled by. */
class Plane {
  constructor(figure) {
    this.frame = figure.frame({ ticks: [6, 8], plot: { height: 320, min_border_left: 56 } });
    this.scales = [1, 1];
    this.shift = 0;
  }
  fit(model, relative, whole) {
    this.model = model;
    const { reference } = model;
    const [times, energies] = model.ranges[whole ? "all" : "frontier"];
    const against = relative && reference !== null;
    const [[perTime, time], [perEnergy, energy]] = against ? [[model.time[reference] / 100, ""], [model.energy[reference] / 100, ""]]
      : [prefixed(times[1], "s"), prefixed(energies[1], "J")];
    this.scales = [perTime, perEnergy];
    this.shift = against ? 100 : 0;
    const words = (unit) => (against ? "against the default (%)" : `(${unit}) ${model.each}`);
    const [low, high] = [0, 1].map((end) => this.at(times[end], energies[end]));
    fit(this.frame, [low.x, high.x], [low.y, high.y], { title: `Energy ${words(energy)}`, label: `time ${words(time)}` });
  }
  at(seconds, joules) {
    return { x: seconds / this.scales[0] - this.shift, y: joules / this.scales[1] - this.shift };
  }
  spot(row) {
    return this.at(this.model.time[row], this.model.energy[row]);
  }
  /** The row that a click means. */
  tapped({ x, y }) {
    if (!this.model || x === undefined || y === undefined) return null;
    const { plot, x: across, y: up } = this.frame;
    const [perX, perY] = [plot.inner_width / (across.end - across.start), plot.inner_height / (up.end - up.start)];
    let [nearest, least] = [/** @type {number | null} */ (null), NEAR ** 2];
    for (let row = 0; row < this.model.count; row += 1) {
      const at = this.spot(row);
      const distance = ((at.x - x) * perX) ** 2 + ((at.y - y) * perY) ** 2 - (this.model.place[row] >= 0 ? 25 : 0); // what matters is hit first
      if (distance < least) [nearest, least] = [row, distance];
    }
    return nearest;
  }
}

/** What stays: points, their errors, the default. */
class Standing {
  constructor(figure, plane, line_color) {
    const { frame } = plane;
    this.plane = plane;
    const dots = (look) => figure.glyph(frame, "Scatter", { ...AT, line_color, fill_color: line_color, ...look });
    this.dominated = dots({ size: 5, fill_alpha: 0.38, line_color: null });
    this.guessed = dots({ size: 6, fill_color: null, line_alpha: 0.7 });
    this.stairs = figure.glyph(frame, "Step", { ...AT, mode: "after", line_color, line_alpha: 0.85, line_width: 1.6 });
    this.errors = addErrors(figure, frame, { line_color });
    this.front = dots({ size: 8 });
    this.frontGuessed = dots({ size: 8, fill_color: null, line_width: 1.6 });
    this.default = figure.glyph(frame, "Scatter", { ...AT, marker: "square", size: 13, fill_color: null, line_width: 1.6, line_color: TEXT });
    const tooltips = [["", "@name"], ["time", "@time"], ["energy", "@energy"], ["on the frontier", "@chance"], ["", "@known"]];
    for (const layers of [[this.front, this.frontGuessed], [this.dominated, this.guessed]]) figure.hover(frame, layers, tooltips, { limit: 1 });
  }
  draw(model) {
    const { plane } = this;
    const rows = [...Array(model.count).keys()];
    const on = (row) => model.place[row] >= 0;
    const show = (layer, measured, front) => {
      const group = rows.filter((row) => Boolean(model.measured[row]) === measured && on(row) === front);
      const words = (row) => Object.fromEntries(Object.entries(model.words).map(([name, texts]) => [name, texts[row]]));
      fill(layer, group.map((row) => ({ ...plane.spot(row), ...words(row), chance: percent(model.chance[row]) })));
    };
    show(this.dominated, true, false);
    show(this.guessed, false, false);
    show(this.front, true, true);
    show(this.frontGuessed, false, true);
    fill(this.stairs, model.front.map((row) => plane.spot(row)));
    const [perTime, perEnergy] = plane.scales.map((scale) => Z / scale);
    const barred = model.count > FEW ? model.front : rows.filter((row) => model.measured[row] || on(row));
    this.errors(barred.map((row) => ({ ...plane.spot(row), dx: perTime * model.time_sd[row], dy: perEnergy * model.energy_sd[row] })));
    fill(this.default, model.reference === null ? [] : [plane.spot(model.reference)]);
  }
}

/** What a step, a bound or an eta moves. */
class Moving {
  constructor(figure, plane, colour, ground) {
    const { frame } = plane;
    this.plane = plane;
    this.bound = addBound(figure, frame, ground, "overlay");
    this.iso = figure.glyph(frame, "Line", { ...AT, line_color: colour, line_alpha: 0.8, line_dash: [6, 4] }, OVER);
    this.best = figure.glyph(frame, "Scatter", { ...AT, marker: "diamond", size: 12, fill_color: colour, line_color: null }, OVER);
    this.chosen = figure.glyph(frame, "Scatter", { ...AT, size: 18, fill_color: null, line_color: colour, line_width: 2.6 }, OVER);
    this.job = figure.glyph(frame, "Scatter", { ...AT, marker: "star", size: 16, fill_color: ground, line_color: TEXT }, OVER);
    const plain = { ...NAMED, background_fill_color: GROUND, background_fill_alpha: 0.75 };
    this.names = figure.glyph(frame, "Scatter", { ...AT, size: 0 }, OVER);
    figure.words(frame, plain, { over: this.names, ...OVER });
    this.own = figure.glyph(frame, "Scatter", { ...AT, size: 0 }, OVER);
    figure.words(frame, { ...plain, text_font_style: "bold" }, { over: this.own, ...OVER });
    for (const size of ["inner_width", "inner_height"]) frame.plot.properties[size].change.connect(() => this.name());
  }
  /** Names beside the points of the frontier, as many as have room; those of the choice, the default and the running job first. */
  name() {
    const { plane, plane: { model }, choice } = this;
    if (!model || !choice) return;
    const row = (at, text) => ({ ...at, at: place(plane.frame, at), text });
    const of = (each) => (model.place[each] < 0 ? model.words.name[each] : model.names[model.place[each]]);
    const taken = [...model.front, choice.row].map((each) => place(plane.frame, plane.spot(each))).map(([x, y]) => [x - 5, y - 5, x + 5, y + 5]);
    if (choice.slowdown !== null) taken.push([0, 0, 150, 18]); // the words of the bound
    const usual = model.reference === null || model.reference === choice.row ? [] : [row(plane.spot(model.reference), "default")];
    const job = this.working ? [row(this.working, "this job, now")] : [];
    fill(this.own, spread([row(plane.spot(choice.row), `${of(choice.row)}${model.reference === choice.row ? " (default)" : ""}`)], sizeOf(plane.frame), taken));
    const front = model.front.filter((each) => each !== choice.row && each !== model.reference);
    const ends = [front[0], front[front.length - 1], ...front.slice(1, -1)].filter((each) => each !== undefined);
    fill(this.names, spread([...job, ...usual, ...[...new Set(ends)].map((each) => row(plane.spot(each), of(each)))], sizeOf(plane.frame), taken));
  }
  /** The running job's own place, in seconds and joules; null where none runs. */
  work(job) {
    this.working = job && this.plane.model ? this.plane.at(job.time, job.energy) : null;
    fill(this.job, this.working ? [this.working] : []);
    this.name();
  }
  /** The choice, the bound, the line of equal cost through the optimum of eta. */
  draw(choice) {
    const { row, rule, eta, slowdown, best } = choice;
    const { plane, plane: { model, frame: { x, y } } } = this;
    this.choice = choice;
    fill(this.chosen, [plane.spot(row)]);
    this.iso.visible = this.best.visible = rule === "eta"; // else they say nothing about the choice
    const optimum = plane.spot(best);
    fill(this.best, [optimum]);
    const cost = (place) => {
      const longer = model.time[best] - (place + plane.shift) * plane.scales[0];
      return plane.at(0, model.energy[best] + ((1 - eta) / eta) * model.maxPower * longer).y;
    };
    fill(this.iso, eta === 0 ? { x: [optimum.x, optimum.x], y: [y.start, y.end] } : inFrame(cost, x, y));
    if (slowdown === null) this.bound.draw(null, "");
    else this.bound.draw(plane.at(model.referenceTime * (1 + slowdown / 100), 0).x, `at most ${Number(slowdown.toPrecision(3))} % slower`);
    this.name();
  }
}

export class FrontierPlot {
  /** `take(row)` on a click on a point, `fit()` on two anywhere. */
  constructor(page, place, inks, take, fit) {
    const figure = new Figure(page, place);
    this.figure = figure;
    this.plane = new Plane(figure);
    this.standing = new Standing(figure, this.plane, inks.one);
    this.moving = new Moving(figure, this.plane, inks.chosen, inks.saved);
    const { plot } = this.plane.frame;
    plot.add_tools(new figure.models.BoxZoomTool());
    plot.toolbar.active_drag = null;
    plot.on_event("tap", (event) => {
      const row = this.plane.tapped(event);
      if (row !== null) take(row);
    });
    plot.on_event("doubletap", fit);
    figure.embed([[this.plane.frame]]);
    Promise.resolve(figure.views).then(() => { // the keys go to the place around it, which is one stop of the tab key, not two
      for (const each of /** @type {NodeListOf<HTMLElement>} */ (place.querySelectorAll(".bk-Plot"))) each.tabIndex = -1;
    });
  }
  draw(model, relative, whole) {
    this.plane.fit(model, relative, whole);
    this.standing.draw(model);
  }
}
