// The live power view: header in words, plots of power, SM clock and utilisation, a limit slider, a Stop button.
import { element, livePanel, readTheme } from "./base.js";
import { PeriodView, Spans, addStrips, periodTables } from "./period.js";

const COLUMNS = ["time_s", "power_w", "power_limit_w", "sm_clock_mhz", "utilisation"];
const [TIME, POWER, LIMIT, CLOCK, BUSY] = [0, 1, 2, 3, 4];
const RECENT_S = 75;
const MOST_ROWS = 7000;
const BINS = 1000;
const STEP_W = 5;
const SILENT_S = 3;
const TOGETHER = 2; // GPUs in one frame of power

/** What is remembered of one GPU: the last minute whole, what is older as the extremes of short stretches. As in series.py. */
class Series {
  constructor() {
    this.columns = COLUMNS.map(() => []);
  }
  get length() {
    return this.columns[TIME].length;
  }
  last(column) {
    return this.columns[column][this.length - 1];
  }
  append(table, from, count) {
    for (let row = from; row < from + count; row += 1) {
      this.columns.forEach((values, column) => {
        const value = table[row * COLUMNS.length + column];
        values.push(column === BUSY ? 100 * value : value);
      });
    }
    if (this.length > MOST_ROWS) this.shorten();
  }
  shorten() {
    const times = this.columns[TIME];
    const recent = times.findIndex((time) => time >= this.last(TIME) - RECENT_S);
    const [start, span] = [times[0], Math.max(times[recent] - times[0], 1e-9)];
    const keep = new Set();
    let extremes = null;
    for (let row = 0; row < recent; row += 1) {
      const [power, limit] = [this.columns[POWER][row], this.columns[LIMIT][row]];
      const gap = [POWER, LIMIT, CLOCK, BUSY].every((column) => Number.isNaN(this.columns[column][row]));
      if (gap || (row > 0 && Math.abs(limit - this.columns[LIMIT][row - 1]) > 0.5)) keep.add(row);
      if (gap) continue;
      const bin = Math.floor(((times[row] - start) / span) * BINS);
      if (extremes?.bin !== bin) {
        if (extremes) keep.add(extremes.low).add(extremes.high);
        extremes = { bin, low: row, high: row };
      }
      if (power < this.columns[POWER][extremes.low]) extremes.low = row;
      if (power > this.columns[POWER][extremes.high]) extremes.high = row;
    }
    if (extremes) keep.add(extremes.low).add(extremes.high);
    this.columns = this.columns.map((values) => values.filter((_, row) => row >= recent || keep.has(row)));
  }
  /** Columns from a time on (and one row before it, where the line comes from). */
  since(time) {
    const times = this.columns[TIME];
    let first = 0;
    if (time > 0) {
      let high = times.length;
      while (first < high) {
        const middle = (first + high) >> 1;
        if (times[middle] < time) first = middle + 1;
        else high = middle;
      }
      first = Math.max(0, first - 1);
    }
    return Object.fromEntries(COLUMNS.map((name, column) => [name, Float64Array.from(this.columns[column].slice(first))]));
  }
}

// words

const watts = (value) => (Number.isFinite(value) ? `${value.toFixed(0)} W` : "– W");
function joules(value) {
  if (value === null || !Number.isFinite(value)) return "energy not told";
  if (value >= 1e6) return `${(value / 1e6).toFixed(2)} MJ`;
  return value >= 1e4 ? `${(value / 1e3).toFixed(1)} kJ` : `${value.toFixed(0)} J`;
}
function seconds(value) {
  if (value < 100) return `${value.toFixed(1)} s`;
  const whole = Math.floor(value);
  const [hours, minutes, rest] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  const two = (number) => String(number).padStart(2, "0");
  return hours ? `${hours}:${two(minutes)}:${two(rest)} h` : `${minutes}:${two(rest)} min`;
}

/** The plots: three frames over one time axis. */
class Plots {
  constructor(Bokeh, place, gpus, colours) {
    this.place = place;
    const { Plot, Range1d, LinearAxis, Grid, BasicTicker, Column, Line, Step, VSpan, Text, ColumnDataSource, HoverTool } = Bokeh.Models;
    const { Document } = Bokeh.require("document");
    this.sources = gpus.map(() => new ColumnDataSource({ data: Object.fromEntries(COLUMNS.map((name) => [name, []])) }));
    this.marks = new ColumnDataSource({ data: { x: [], y: [], text: [] } });
    this.x = new Range1d({ start: 0, end: 10 });
    this.themed = [];
    this.glyphs = gpus.map(() => []);

    const base = {
      x_range: this.x, sizing_mode: "stretch_width", toolbar_location: null, min_border_left: 58, min_border_right: 14,
      min_border_top: 6, min_border_bottom: 4, outline_line_color: null, background_fill_color: null, border_fill_color: null,
      lod_threshold: null,
    };
    const words = { axis_label_text_font_style: "normal", axis_label_text_font_size: "11px", major_label_text_font_size: "11px" };
    const frame = (label, height, y, numbers, column, { ticks, last = false, labels = false }) => {
      const plot = new Plot({ ...base, y_range: y, height });
      const left = new LinearAxis({
        ...words, axis_label: label, axis_label_standoff: 4, ticker: new BasicTicker({ desired_num_ticks: ticks }),
        minor_tick_line_color: null,
      });
      const below = new LinearAxis({
        ...words, axis_label: last ? "seconds since the start" : null, axis_label_standoff: 2, minor_tick_line_color: null,
        major_tick_line_color: null, major_label_text_font_size: last ? "11px" : "0px",
      });
      plot.add_layout(left, "left");
      plot.add_layout(below, "below");
      const grid = new Grid({ dimension: 1, axis: left });
      plot.add_layout(grid, "center");
      const spans = plot.add_glyph(new VSpan({ x: { field: "x" }, line_dash: [2, 3], line_alpha: 0.7 }), this.marks);
      this.themed.push({ axes: [left, below], grid, marks: spans.glyph });
      for (const number of numbers) {
        const look = { line_color: gpus[number].colour, x: { field: "time_s" } };
        if (column === "power_w") {
          const steps = new Step({ ...look, y: { field: "power_limit_w" }, mode: "after", line_dash: [6, 4] });
          this.glyphs[number].push(plot.add_glyph(steps, this.sources[number], { level: "overlay" }));
          if (numbers.length === 1) this.themed.push({ limit: steps });
        }
        const line = new Line({
          ...look, y: { field: column }, line_width: column === "power_w" ? 1.6 : 1.2, line_dash: gpus[number].dash, line_join: "round",
        });
        this.glyphs[number].push(plot.add_glyph(line, this.sources[number]));
      }
      if (labels) {
        const text = new Text({
          x: { field: "x" }, y: { field: "y" }, text: { field: "text" }, text_font_size: "11px", x_offset: 4, y_offset: 12,
        });
        plot.add_glyph(text, this.marks);
        this.themed.push({ words: text });
      }
      return plot;
    };
    this.y = { power: new Range1d(), clock: new Range1d(), busy: new Range1d({ start: 0, end: 108 }) };
    const all = gpus.map((_, number) => number);
    // Lines of two GPUs can be told apart in one frame, those of eight cannot: each gets a row then, on one scale.
    this.rows = gpus.length > TOGETHER
      ? all.map((number) => frame(`GPU ${gpus[number].index}`, 58, this.y.power, [number], "power_w", { ticks: 2, labels: number === 0 }))
      : [frame("Power (W)", 210, this.y.power, all, "power_w", { ticks: 5, labels: true })];
    if (gpus.length === 1) {
      const tooltips = [["at", "@time_s{0.00} s"], ["power", "@power_w{0} W"], ["limit", "@power_limit_w{0} W"],
        ["SM clock", "@sm_clock_mhz{0} MHz"], ["utilisation", "@utilisation{0} %"]];
      this.rows[0].add_tools(new HoverTool({ renderers: [this.glyphs[0].at(-1)], mode: "vline", line_policy: "nearest", tooltips }));
    }
    const clock = frame("SM MHz", 76, this.y.clock, all, "sm_clock_mhz", { ticks: 2 });
    const busy = frame("Busy (%)", 112, this.y.busy, all, "utilisation", { ticks: 2, last: true });
    this.column = new Column({ children: [...this.rows, clock, busy], sizing_mode: "stretch_width", spacing: 0 });
    this.strips = this.rows.map((plot) => addStrips(Bokeh, plot));
    this.recolour(colours);
    this.document = new Document();
    this.document.add_root(this.column);
    this.views = Bokeh.embed.add_document_standalone(this.document, place);
  }
  recolour(colours) {
    for (const strips of this.strips) strips.recolour(colours);
    for (const { axes, grid, marks, words, limit } of this.themed) {
      for (const axis of axes ?? []) {
        axis.setv({
          axis_line_color: colours.frame, major_tick_line_color: axis.axis_label ? colours.frame : null,
          major_label_text_color: colours.faint_text, axis_label_text_color: colours.faint_text,
        });
      }
      if (grid) grid.grid_line_color = colours.line;
      if (marks) marks.line_color = colours.faint_text;
      if (words) words.text_color = colours.text;
      if (limit) limit.line_color = colours.text;
    }
  }
  /** Draw what is known from `from` to `to`. */
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
    this.y.power.setv({ start: 0, end: top });
    this.y.clock.setv({ start: 0, end: highestMhz * 1.12 });
    if (this.x.start !== from || this.x.end !== to) this.x.setv({ start: from, end: to });
    this.strips.forEach((strips, row) => {
      // Where each GPU has a row of its own, the iterations are those of one of them.
      const theirs = this.rows.length === 1 || row === followed;
      strips.draw(theirs ? spans.strips(from, to, this.place.clientWidth - 72) : { turns: [], pauses: [] });
    });
    const seen = marks.filter(([, time]) => time >= from && time <= to).sort((a, b) => a[1] - b[1]);
    const texts = seen.map(([, , text]) => text);
    const width = Math.max(this.place.clientWidth - 72, 100);
    let free = Infinity;
    for (let number = seen.length - 1; number >= 0; number -= 1) {
      const x = ((seen[number][1] - from) / (to - from)) * width;
      const room = Math.min(free, width) - x;
      if (room < 7 * texts[number].length + 6) texts[number] = ""; // the label would run into the next one
      free = x;
    }
    this.marks.data = { x: seen.map(([, time]) => time), y: seen.map(() => top), text: texts };
  }
  dispose() {
    this.views.then((views) => (views.clear ? views.clear() : [...views].forEach((view) => view.remove()))).catch(() => {});
    this.document.clear();
  }
}

/** The slider that asks for power limits. One request is under way at a time; a drag skips what it passed meanwhile. */
class LimitControl {
  constructor(post) {
    this.post = post;
    this.asking = false;
    this.wanted = null;
    this.asked = null;
    this.chosen = element("select");
    this.slider = Object.assign(element("input", "workbench-limit"), { type: "range" });
    this.slider.setAttribute("aria-label", "Power limit in watts");
    this.words = element("span", "workbench-limit-words");
    this.low = element("span", "workbench-faint");
    this.high = element("span", "workbench-faint");
    const name = element("span", "", "Power limit");
    this.root = element("div", "workbench-control", name, this.chosen, this.low, this.slider, this.high, this.words);
    this.slider.addEventListener("input", () => {
      this.wanted = Number(this.slider.value);
      this.asked = this.wanted;
      this.ask();
      this.tell();
    });
    this.chosen.addEventListener("change", () => {
      this.asked = null;
      this.fit();
    });
  }
  greeting(gpus) {
    this.gpus = gpus;
    const before = this.chosen.value;
    const options = gpus.map((gpu, number) => new Option(`GPU ${gpu.index}`, String(number)));
    if (gpus.length > 1) options.unshift(new Option("all GPUs", "all"));
    this.chosen.replaceChildren(...options);
    if (before) this.chosen.value = before;
    this.chosen.hidden = gpus.length === 1;
    this.inForce = gpus.map(() => NaN);
    this.asking = false;
    this.fit();
  }
  targets() {
    return this.chosen.value === "all" ? this.gpus.map((_, number) => number) : [Number(this.chosen.value || 0)];
  }
  /** The reason why the chosen GPUs cannot be set, empty where they can. */
  reason() {
    return this.targets().map((number) => this.gpus[number].reason).find(Boolean) ?? "";
  }
  fit() {
    const targets = this.targets().map((number) => this.gpus[number]);
    this.slider.min = Math.max(...targets.map((gpu) => gpu.low ?? 0));
    this.slider.max = Math.min(...targets.map((gpu) => gpu.high ?? 0));
    this.slider.step = STEP_W;
    this.low.textContent = watts(Number(this.slider.min));
    this.high.textContent = watts(Number(this.slider.max));
    this.fitted = false;
    this.tell();
  }
  ask() {
    if (this.asking || this.wanted === null) return;
    this.asking = true;
    this.post({ kind: "limit", uuids: this.targets().map((number) => this.gpus[number].uuid), watts: this.wanted });
    this.wanted = null;
  }
  answered(message) {
    this.asking = false;
    this.gpus.forEach((gpu, number) => {
      if (gpu.uuid in message.applied) this.inForce[number] = message.applied[gpu.uuid];
    });
    this.ask();
    this.tell();
  }
  /** Limits as sampled; another program may have changed them. */
  sampled(limits) {
    limits.forEach((limit, number) => {
      if (Number.isFinite(limit)) this.inForce[number] = limit;
    });
    if (!this.fitted && this.targets().every((number) => Number.isFinite(this.inForce[number]))) {
      this.slider.value = this.inForce[this.targets()[0]];
      this.fitted = true;
    }
    this.tell();
  }
  tell() {
    const reason = this.reason();
    const values = [...new Set(this.targets().map((number) => watts(this.inForce[number])))];
    const inForce = `${values.join(" / ")} in force`;
    this.words.textContent = reason ? `${inForce}; ${reason}` : this.asked === null ? inForce : `asked ${watts(this.asked)} · ${inForce}`;
  }
  enable(enabled) {
    this.slider.disabled = !enabled || Boolean(this.reason());
    this.chosen.disabled = !enabled;
  }
}

function powerView({ root, post }) {
  const title = element("span", "workbench-title");
  const badge = element("span", "workbench-badge", "simulated");
  const state = element("span", "workbench-state");
  const numbers = element("span", "workbench-numbers");
  const stop = element("button", "workbench-button workbench-stop", "Stop");
  const span = element("button", "workbench-button workbench-span");
  const legend = element("div", "workbench-legend");
  const place = element("div", "workbench-plots");
  const hint = element("span", "workbench-hint");
  const limit = new LimitControl(post);
  const period = new PeriodView(post);
  const controls = element("div", "workbench-controls", limit.root);
  root.append(
    element("div", "workbench-head", title, badge, state, element("span", "workbench-space"), hint, span, stop),
    numbers, legend, place, controls, period.root,
  );
  badge.hidden = true;
  span.hidden = true;
  stop.hidden = true;
  controls.hidden = true;

  let plots = null;
  let about = null;
  let series = [];
  let marks = new Map();
  let visible = [];
  let chips = [];
  let spans = new Spans();
  let whole = false;
  let latest = { elapsed: 0, energy: [] };
  let onScreen = true;
  let stopping = false;

  const observer = new IntersectionObserver((entries) => {
    onScreen = entries.at(-1).isIntersecting;
    if (onScreen) draw();
  });
  observer.observe(place);

  span.addEventListener("click", () => {
    whole = !whole;
    draw();
  });
  stop.addEventListener("click", () => {
    stopping = true;
    post({ kind: "stop" });
  });

  function take(message, buffers) {
    const view = buffers[0];
    const table = new Float32Array(view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength));
    let row = 0;
    message.counts.forEach((count, number) => {
      series[number].append(table, row, count);
      row += count;
    });
    if (message.period) {
      const tables = periodTables(message.period.sizes, table, row * COLUMNS.length);
      spans.take(message.period.since, tables[0]);
      period.take(message.period, tables);
    }
    for (const mark of message.marks ?? []) marks.set(mark[0], mark);
    latest = { elapsed: message.elapsed, energy: message.energy };
  }
  function say() {
    const now = series.map((one) => one.last(POWER) ?? NaN);
    const power = now.reduce((sum, value) => sum + value, 0);
    const energy = latest.energy.includes(null) ? null : latest.energy.reduce((sum, value) => sum + value, 0);
    numbers.textContent = `${watts(power)} now · ${joules(energy)} so far · ${seconds(latest.elapsed)}`;
    chips.forEach((chip, number) => (chip.lastChild.textContent = watts(now[number])));
    limit.sampled(series.map((one) => one.last(LIMIT)));
  }
  function draw() {
    if (!plots || !onScreen) return;
    const end = latest.elapsed;
    const long = end > about.window;
    const steps = [10, 20, 30, 45, about.window];
    const to = long ? end : steps.find((step) => step >= end) ?? about.window;
    plots.draw(series, [...marks.values()], long && !whole ? end - about.window : 0, to, visible, spans, period.about?.gpu);
    span.hidden = !long;
    span.textContent = whole ? `Last ${about.window} s` : "Whole run";
  }
  function makeLegend(gpus) {
    chips = gpus.length > 1 ? gpus.map((gpu, number) => {
      const swatch = element("span", "workbench-swatch");
      swatch.style.background = gpu.colour;
      const chip = element("button", "workbench-chip", swatch, `GPU ${gpu.index} `, element("span", "workbench-chip-value"));
      chip.title = `${gpu.name}: show or hide`;
      chip.setAttribute("aria-pressed", "true");
      chip.addEventListener("click", () => {
        visible[number] = !visible[number];
        chip.setAttribute("aria-pressed", String(visible[number]));
        draw();
      });
      return chip;
    }) : [];
    legend.replaceChildren(...chips);
    legend.hidden = !chips.length;
  }

  return {
    greeting(message, buffers, Bokeh) {
      about = message;
      series = message.gpus.map(() => new Series());
      marks = new Map();
      spans = new Spans();
      if (message.follows) period.greeting(message.gpus, Bokeh, readTheme(message.theme));
      if (visible.length !== message.gpus.length) visible = message.gpus.map(() => true);
      take(message, buffers);
      title.textContent = message.title.replace(/ ?\(simulated\)/g, "");
      badge.hidden = !message.gpus.some((gpu) => gpu.simulated);
      limit.greeting(message.gpus);
      if (!plots) {
        makeLegend(message.gpus);
        plots = new Plots(Bokeh, place, message.gpus, readTheme(message.theme));
      }
      // For tests and curious people: what is drawn, without looking at pixels.
      root.workbench = { series, plots, marks: () => [...marks.values()], period, spans: () => spans.rows, colours: () => readTheme(about.theme) };
      say();
      draw();
    },
    message(message, buffers) {
      if (message.kind === "news") {
        take(message, buffers);
        say();
        draw();
      } else if (message.kind === "limit") {
        limit.answered(message);
      }
    },
    recolour() {
      plots?.recolour(readTheme(about.theme));
      period.recolour(readTheme(about.theme));
    },
    state({ running, queued, silent, greeted }) {
      const words = !running ? "done" : stopping ? "stopping" : "running";
      const quiet = silent > SILENT_S ? ` · nothing heard for ${silent.toFixed(0)} s` : "";
      state.title = queued ? "input waits until the kernel has finished the cell" : "";
      state.textContent = greeted ? words + quiet : queued ? "the view comes when the cell ends" : "loading";
      state.dataset.state = !greeted ? "loading" : running ? "running" : "done";
      const live = running && !queued && greeted;
      root.classList.toggle("workbench-queued", queued);
      hint.textContent = queued && running && greeted ? "queued until the cell ends" : "";
      stop.disabled = !live;
      stop.hidden = !about?.stop || !running;
      controls.hidden = !about?.slider || !running;
      if (about) limit.enable(live);
    },
    dispose() {
      observer.disconnect();
      plots?.dispose();
      period.dispose();
    },
  };
}

export default { render: livePanel(powerView) };
