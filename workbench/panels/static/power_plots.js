// @ts-check
// The plots of the live power view: power, SM clock and utilisation over one time axis.
/** @import { Gpu } from "./messages" */
import { Figure, addStrips, column, columns, span } from "./plots.js";
import { COLUMNS, roomFor } from "./series.js";

const TOGETHER = 2; // GPUs in one frame of power
const BESIDE = 72; // pixels beside the frame

export class PowerPlots {
  constructor(Bokeh, place, /** @type {Gpu[]} */ gpus, colours) {
    this.figure = new Figure(Bokeh, place);
    this.place = place;
    this.gpus = gpus;
    this.sources = gpus.map(() => this.figure.source(...COLUMNS));
    this.marks = this.figure.source("x", "y", "text");
    this.x = this.figure.range(0, 10);
    this.y = { power: this.figure.range(), clock: this.figure.range(), busy: this.figure.range(0, 108) };
    this.glyphs = /** @type {any[][]} */ (gpus.map(() => []));
    const all = gpus.map((_, number) => number);
    // Lines of two GPUs can be told apart in one frame, those of eight cannot: each gets a row then, on one scale.
    this.frames = gpus.length > TOGETHER ? all.map((number) => this.powerFrame([number], `GPU ${gpus[number].index}`, 58, 2, number === 0))
      : [this.powerFrame(all, "Power (W)", 210, 5, true)];
    const clock = this.frame("SM MHz", 76, this.y.clock, 2, false);
    const busy = this.frame("Busy (%)", 112, this.y.busy, 2, true);
    for (const number of all) {
      this.line(clock, number, "sm_clock_mhz", 1.2);
      this.line(busy, number, "utilisation", 1.2);
    }
    this.strips = this.frames.map((frame) => addStrips(this.figure, frame));
    this.rows = this.frames.map(({ plot }) => plot);
    const children = [...this.rows, clock.plot, busy.plot];
    this.figure.embed(new this.figure.models.Column({ children, sizing_mode: "stretch_width", spacing: 0 }), colours);
  }
  frame(label, height, y, ticks, last) {
    const quiet = last ? {} : { axis_label: null, major_label_text_font_size: "0px" };
    const frame = this.figure.frame({
      title: null, label: "seconds since the start", ticks: [ticks, 6], x: this.x, y, plot: { height, min_border_left: 58, min_border_top: 6 },
      left: { axis_label: label, axis_label_standoff: 4 }, below: { major_tick_line_color: null, ...quiet },
    });
    this.figure.glyph(frame, "VSpan", { ...columns("x"), line_dash: [2, 3], line_alpha: 0.7 }, this.marks, { ink: "line_color", of: "faint_text" });
    return frame;
  }
  /** A frame of the power of some GPUs and of their limits. */
  powerFrame(numbers, label, height, ticks, words) {
    const frame = this.frame(label, height, this.y.power, ticks, false);
    for (const number of numbers) {
      const look = { x: column("time_s"), y: column("power_limit_w"), mode: "after", line_dash: [6, 4], line_color: this.gpus[number].colour };
      const ink = numbers.length === 1 ? "line_color" : undefined;
      this.glyphs[number].push(this.figure.glyph(frame, "Step", look, this.sources[number], { ink, level: "overlay" }));
      const line = this.line(frame, number, "power_w", 1.6);
      const tooltips = [["at", "@time_s{0.00} s"], ["power", "@power_w{0} W"], ["limit", "@power_limit_w{0} W"], ["SM clock", "@sm_clock_mhz{0} MHz"],
        ["utilisation", "@utilisation{0} %"]];
      if (this.gpus.length === 1) this.figure.hoverLine(frame, line, tooltips);
    }
    if (words) this.figure.words(frame, this.marks, { x_offset: 4, y_offset: 12 });
    return frame;
  }
  line(frame, number, name, width) {
    const { colour, dash } = this.gpus[number];
    const look = { x: column("time_s"), y: column(name), line_color: colour, line_dash: dash, line_width: width, line_join: "round" };
    const made = this.figure.glyph(frame, "Line", look, this.sources[number]);
    this.glyphs[number].push(made);
    return made;
  }
  /**
   * Draw what is known from `from` to `to`.
   * @param {import("./series.js").Series[]} series @param {[number, number, string][]} marks @param {number} from @param {number} to @param {boolean[]} visible
   * @param {import("./series.js").Spans} spans @param {number | undefined} followed
   */
  draw(series, marks, from, to, visible, spans, followed) {
    let [highestW, highestMhz] = [1, 1];
    series.forEach((one, number) => {
      const data = one.since(from);
      if (visible[number]) {
        for (const name of ["power_w", "power_limit_w"]) for (const value of data[name]) if (value > highestW) highestW = value;
        for (const value of data.sm_clock_mhz) if (value > highestMhz) highestMhz = value;
      }
      this.sources[number].data = data;
      const parts = this.rows.length > 1 ? [...this.glyphs[number], this.rows[number]] : this.glyphs[number];
      for (const part of parts) if (part.visible !== visible[number]) part.visible = visible[number];
    });
    const top = highestW * 1.08;
    span(this.y.power, [0, top]);
    span(this.y.clock, [0, highestMhz * 1.12]);
    if (this.x.start !== from || this.x.end !== to) span(this.x, [from, to]);
    const width = this.place.clientWidth - BESIDE;
    this.strips.forEach((strips, row) => {
      // Where each GPU has a row of its own, the iterations are those of one of them.
      const theirs = this.rows.length === 1 || row === followed;
      strips.draw(theirs ? spans.strips(from, to, width) : { turns: [], pauses: [] });
    });
    const seen = marks.filter(([, time]) => time >= from && time <= to).sort((a, b) => a[1] - b[1]);
    const wide = Math.max(width, 100);
    const text = roomFor(seen.map(([, , words]) => words), seen.map(([, time]) => ((time - from) / (to - from)) * wide), wide);
    this.marks.data = { x: seen.map(([, time]) => time), y: seen.map(() => top), text };
  }
}
