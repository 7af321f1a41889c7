// @ts-check
// The plane of time and energy. What stays is drawn once; what a step moves lies on a canvas of its own ("overlay"), so that ten thousand
// points are not drawn again for it.
import { percent, prefixed } from "./formats.js";
import { Figure, addBound, addErrors, column, columns, span } from "./plots.js";

const FEW = 300; // points, up to which all that are measured have error bars; of more only the frontier's
const LEGEND = "; hollow: predicted, pale: beaten, dashed: equal cost at eta, diamond: its optimum, bars: 95 %";
const NEAR = 14; // pixels, within which a click means a point
const Z = 1.96;
const AT = columns("x", "y");
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
    this.x = this.frame.x;
    this.y = this.frame.y;
    this.scales = [1, 1];
    this.shift = 0;
  }
  fit(model, relative, whole) {
    this.model = model;
    const { reference } = model;
    const [times, energies] = model.ranges[whole ? "all" : "frontier"];
    const { plot, below } = this.frame;
    if (relative && reference !== null) {
      this.scales = [model.time[reference] / 100, model.energy[reference] / 100];
      this.shift = 100;
      plot.title.text = `Energy against the default (%)${LEGEND}`;
      below.axis_label = "time against the default (%)";
    } else {
      const [time, energy] = [prefixed(times[1], "s"), prefixed(energies[1], "J")];
      this.scales = [time[0], energy[0]];
      this.shift = 0;
      plot.title.text = `Energy (${energy[1]}) ${model.each}${LEGEND}`;
      below.axis_label = `time (${time[1]}) ${model.each}`;
    }
    span(this.x, times.map((seconds) => this.atTime(seconds)));
    span(this.y, energies.map((joules) => this.atEnergy(joules)));
  }
  atTime(seconds) {
    return seconds / this.scales[0] - this.shift;
  }
  atEnergy(joules) {
    return joules / this.scales[1] - this.shift;
  }
  spots(rows) {
    const { time, energy } = this.model;
    return { x: Float64Array.from(rows, (row) => this.atTime(time[row])), y: Float64Array.from(rows, (row) => this.atEnergy(energy[row])) };
  }
  /** Whether words at a place have no room to its right. */
  isRight(x) {
    return x > this.x.start + 0.85 * (this.x.end - this.x.start);
  }
  /** The row that a click means. */
  tapped({ x, y }) {
    if (!this.model || x === undefined || y === undefined) return null;
    const { inner_width: width, inner_height: height } = this.frame.plot;
    const [perX, perY] = [width / (this.x.end - this.x.start), height / (this.y.end - this.y.start)];
    let [nearest, least] = [/** @type {number | null} */ (null), NEAR ** 2];
    for (let row = 0; row < this.model.count; row += 1) {
      const [dx, dy] = [(this.atTime(this.model.time[row]) - x) * perX, (this.atEnergy(this.model.energy[row]) - y) * perY];
      const distance = dx * dx + dy * dy - (this.model.place[row] >= 0 ? 25 : 0); // what matters is hit first
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
    const [beaten, guessed, front, frontGuessed] = Array.from({ length: 4 }, () => figure.source("x", "y", "row"));
    this.guessed = guessed;
    this.frontGuessed = frontGuessed;
    this.groups = /** @type {[any, boolean, boolean][]} */ ([[beaten, true, false], [guessed, false, false], [front, true, true], [frontGuessed, false, true]]);
    this.stairs = figure.source("x", "y");
    this.default = figure.source("x", "y", "text", "align", "dx");
    const dot = (source, look) => figure.glyph(frame, "Scatter", { ...AT, line_color, fill_color: line_color, ...look }, source);
    const below = [dot(beaten, { size: 5, fill_alpha: 0.38, line_color: null }), dot(guessed, { size: 6, fill_color: null, line_alpha: 0.7 })];
    figure.glyph(frame, "Step", { ...AT, mode: "after", line_color, line_alpha: 0.55 }, this.stairs);
    this.errors = addErrors(figure, frame, line_color);
    const on = [dot(front, { size: 8 }), dot(frontGuessed, { size: 8, fill_color: null, line_width: 1.6 })];
    const square = { ...AT, marker: "square", size: 13, fill_color: null, line_width: 1.6 };
    figure.glyph(frame, "Scatter", square, this.default, { ink: "line_color" });
    const name = { text_font_size: "10px", text_baseline: "bottom", text_align: column("align"), x_offset: column("dx"), y_offset: -4 };
    figure.words(frame, this.default, name);
    const tooltips = [["", "@words"], ["time", "@time"], ["energy", "@energy"], ["on the frontier", "@chance"], ["", "@kind"]];
    for (const renderers of [on, below]) figure.hover(frame, renderers, tooltips, { limit: 1 });
  }
  draw(model) {
    const { plane } = this;
    const rows = [...Array(model.count).keys()];
    const on = (row) => model.place[row] >= 0;
    for (const [source, measured, front] of this.groups) {
      const group = rows.filter((row) => Boolean(model.measured[row]) === measured && on(row) === front);
      source.data = {
        ...plane.spots(group), row: group, words: group.map((row) => model.words(row)), time: group.map((row) => model.timeWords(row)),
        energy: group.map((row) => model.energyWords(row)), chance: group.map((row) => percent(model.chance[row])), kind: group.map((row) => model.kindWords(row)),
      };
    }
    this.stairs.data = plane.spots(model.front);
    const [perTime, perEnergy] = plane.scales.map((scale) => Z / scale);
    const barred = model.count > FEW ? model.front : rows.filter((row) => model.measured[row] || on(row));
    this.errors(barred.map((row) => ({
      x: plane.atTime(model.time[row]), y: plane.atEnergy(model.energy[row]), dx: perTime * model.timeSd[row], dy: perEnergy * model.energySd[row],
    })));
    const usual = plane.spots(model.reference === null ? [] : [model.reference]);
    const right = [...usual.x].map((x) => plane.isRight(x));
    this.default.data = { ...usual, text: right.map(() => "default"), align: right.map((is) => (is ? "right" : "left")), dx: right.map((is) => (is ? -9 : 9)) };
  }
}

/** What a step, a bound or an eta moves. */
class Moving {
  constructor(figure, plane, colour, ground) {
    const { frame } = plane;
    this.plane = plane;
    this.iso = figure.source("x", "y");
    this.best = figure.source("x", "y");
    this.chosen = figure.source("x", "y", "text", "align", "dx", "dy", "base");
    this.bound = addBound(figure, frame, ground, "overlay");
    figure.glyph(frame, "Line", { ...AT, line_color: colour, line_alpha: 0.8, line_dash: [6, 4] }, this.iso, OVER);
    figure.glyph(frame, "Scatter", { ...AT, marker: "diamond", size: 12, fill_color: colour, line_color: null }, this.best, OVER);
    figure.glyph(frame, "Scatter", { ...AT, size: 18, fill_color: null, line_color: colour, line_width: 2.6 }, this.chosen, OVER);
    const name = { text_font_style: "bold", text_align: column("align"), x_offset: column("dx"), y_offset: column("dy"), text_baseline: column("base") };
    const { glyph } = figure.words(frame, this.chosen, { ...name, background_fill_alpha: 0.75, padding: 1 }, "overlay");
    figure.ink.push([glyph, "background_fill_color", "background"]);
  }
  /** The choice, the bound, the line of equal cost through the optimum of eta. */
  draw({ row, eta, slowdown }, best) {
    const { plane, plane: { model, x, y } } = this;
    const at = plane.spots([row]);
    const right = plane.isRight(at.x[0]);
    const low = at.y[0] < y.start + 0.12 * (y.end - y.start);
    this.chosen.data = { ...at, text: ["chosen"], align: [right ? "right" : "left"], dx: [right ? -12 : 12], dy: [low ? -5 : 5], base: [low ? "bottom" : "top"] };
    this.best.data = plane.spots([best]);
    const [bestTime, bestEnergy] = [model.time[best], model.energy[best]];
    const cost = (place) => plane.atEnergy(bestEnergy + ((1 - eta) / eta) * model.maxPower * (bestTime - (place + plane.shift) * plane.scales[0]));
    const upright = { x: [plane.atTime(bestTime), plane.atTime(bestTime)], y: [y.start, y.end] };
    this.iso.data = eta === 0 ? upright : inFrame(cost, x, y);
    if (slowdown === null) this.bound.draw(null, "");
    else this.bound.draw(plane.atTime(model.referenceTime * (1 + slowdown / 100)), `at most ${Number(slowdown.toPrecision(3))} % slower`);
  }
}

export class FrontierPlot {
  /** `take(row)` on a click on a point, `fit()` on two anywhere. */
  constructor(Bokeh, place, colours, inks, take, fit) {
    this.figure = new Figure(Bokeh, place);
    this.plane = new Plane(this.figure);
    this.standing = new Standing(this.figure, this.plane, inks.one);
    this.moving = new Moving(this.figure, this.plane, inks.chosen, inks.saved);
    const { plot } = this.plane.frame;
    plot.add_tools(new this.figure.models.BoxZoomTool());
    plot.toolbar.active_drag = null;
    plot.on_event("tap", (event) => {
      const row = this.plane.tapped(event);
      if (row !== null) take(row);
    });
    plot.on_event("doubletap", fit);
    this.figure.embed(plot, colours);
    Promise.resolve(this.figure.views).then(() => { // the keys go to the place around it, which is one stop of the tab key, not two
      for (const each of /** @type {NodeListOf<HTMLElement>} */ (place.querySelectorAll(".bk-Plot"))) each.tabIndex = -1;
    });
  }
  /** Points, drawn anew. */
  draw(model, relative, whole) {
    this.plane.fit(model, relative, whole);
    this.standing.draw(model);
  }
}
