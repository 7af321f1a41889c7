// A recorded trace with its iterations, to look at: zoom, choose a level or a period of one's own, and see it folded.
import { colourFrames, element, livePanel, readTheme } from "./base.js";
import { PeriodView, Spans, addStrips, periodTables } from "./period.js";

const OWN_AFTER_MS = 250; // a slider that is dragged asks when it rests

/** The power over time, to be zoomed. */
class PowerPlot {
  constructor(Bokeh, place, colours, zoomed) {
    const { Plot, Range1d, LinearAxis, Grid, BasicTicker, Line, ColumnDataSource, HoverTool, PanTool, BoxZoomTool, WheelZoomTool, ResetTool } =
      Bokeh.Models;
    const { Document } = Bokeh.require("document");
    this.place = place;
    this.x = new Range1d({ start: 0, end: 1 });
    this.y = new Range1d({ start: 0, end: 1 });
    this.source = new ColumnDataSource({ data: { x: [], y: [] } });
    this.plot = new Plot({
      x_range: this.x, y_range: this.y, height: 210, sizing_mode: "stretch_width", min_border_left: 58, min_border_right: 14, min_border_top: 6,
      min_border_bottom: 4, outline_line_color: null, background_fill_color: null, border_fill_color: null, lod_threshold: null,
    });
    const words = { axis_label_text_font_style: "normal", axis_label_text_font_size: "11px", major_label_text_font_size: "11px", minor_tick_line_color: null };
    const left = new LinearAxis({ ...words, axis_label: "Power (W)", axis_label_standoff: 4, ticker: new BasicTicker({ desired_num_ticks: 5 }) });
    const below = new LinearAxis({ ...words, axis_label: "seconds since the start of the trace", axis_label_standoff: 2 });
    this.plot.add_layout(left, "left");
    this.plot.add_layout(below, "below");
    this.grid = new Grid({ dimension: 1, axis: left });
    this.plot.add_layout(this.grid, "center");
    this.axes = [left, below];
    this.strips = addStrips(Bokeh, this.plot);
    this.line = new Line({ x: { field: "x" }, y: { field: "y" }, line_width: 1.3, line_join: "round" });
    const line = this.plot.add_glyph(this.line, this.source);
    const wheel = new WheelZoomTool({ dimensions: "width" });
    const tooltips = [["at", "@x{0.00} s"], ["power", "@y{0} W"]];
    this.plot.add_tools(new PanTool({ dimensions: "width" }), wheel, new BoxZoomTool({ dimensions: "width" }), new ResetTool(),
      new HoverTool({ renderers: [line], mode: "vline", line_policy: "nearest", tooltips }));
    this.plot.toolbar.logo = null;
    this.plot.toolbar.autohide = true;
    this.x.change.connect(zoomed);
    this.recolour(colours);
    this.document = new Document();
    this.document.add_root(this.plot);
    this.views = Bokeh.embed.add_document_standalone(this.document, place);
  }
  recolour(colours) {
    colourFrames([{ grid: this.grid, axes: this.axes }], [], colours);
    this.strips.recolour(colours);
  }
  show(times, power, colour, whole) {
    this.source.data = { x: times, y: power };
    this.line.line_color = colour;
    let top = 1;
    for (const value of power) if (value > top) top = value;
    this.y.setv({ start: 0, end: 1.08 * top });
    if (!whole) return;
    const end = times.at(-1) ?? 1;
    this.x.setv({ start: 0, end, reset_start: 0, reset_end: end });
  }
  ground(spans) {
    this.strips.draw(spans.strips(this.x.start, this.x.end, Math.max(this.place.clientWidth - 72, 100)));
  }
  dispose() {
    this.views.then((views) => (views.clear ? views.clear() : [...views].forEach((view) => view.remove()))).catch(() => {});
    this.document.clear();
  }
}

/** A slider over periods, even in their logarithm. */
class OwnPeriod {
  constructor(post) {
    this.slider = Object.assign(element("input", "workbench-limit"), { type: "range", min: 0, max: 1000, step: 1 });
    this.slider.setAttribute("aria-label", "Fold at a period of one's own");
    this.words = element("span", "workbench-faint");
    this.root = element("label", "workbench-control", element("span", "", "Fold at"), this.slider, this.words);
    this.slider.addEventListener("input", () => {
      const seconds = this.seconds();
      this.words.textContent = `${seconds.toPrecision(3)} s`;
      clearTimeout(this.timer);
      this.timer = setTimeout(() => post({ kind: "seconds", seconds }), OWN_AFTER_MS);
    });
  }
  seconds() {
    return this.low * (this.high / this.low) ** (this.slider.value / 1000);
  }
  fit(low, high, seconds) {
    this.root.hidden = !(high > low);
    [this.low, this.high] = [low, high];
    if (seconds && document.activeElement !== this.slider) this.slider.value = (1000 * Math.log(seconds / low)) / Math.log(high / low);
    if (seconds) this.words.textContent = `${seconds.toPrecision(3)} s`;
  }
}

function inspection({ root, post }) {
  const title = element("span", "workbench-title");
  const badge = element("span", "workbench-badge", "simulated");
  const state = element("span", "workbench-faint");
  const place = element("div", "workbench-plots");
  const period = new PeriodView(post);
  const own = new OwnPeriod(post);
  root.append(element("div", "workbench-head", title, badge, state), place, period.root, own.root);
  badge.hidden = true;
  own.root.hidden = true;
  let plot = null;
  let about = null;
  let spans = new Spans();

  function take(message, buffers, whole) {
    const view = buffers[0];
    const numbers = new Float32Array(view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength));
    const [times, power] = [0, 1].map((column) => Float64Array.from({ length: message.count }, (_, row) => numbers[2 * row + column]));
    const tables = periodTables(message.period.sizes, numbers, 2 * message.count);
    title.textContent = message.title.replace(/ ?\(simulated\)/g, "");
    spans = new Spans();
    spans.take(null, tables[0]);
    const other = period.about?.gpu !== message.period.gpu;
    period.take(message.period, tables);
    plot.show(times, power, about.gpus[message.period.gpu].colour, whole || other);
    plot.ground(spans);
    own.fit(tables[3][0][0], tables[3][0].at(-1), message.period.level?.seconds);
    root.workbench = { plot, period, own, spans: () => spans.rows };
  }
  return {
    greeting(message, buffers, Bokeh) {
      about = message;
      badge.hidden = !message.simulated;
      const colours = readTheme(message.theme);
      plot ??= new PowerPlot(Bokeh, place, colours, () => plot?.ground(spans));
      period.greeting(message.gpus, Bokeh, colours);
      take(message, buffers, true);
    },
    message(message, buffers) {
      if (message.kind === "news") take(message, buffers, false);
    },
    recolour() {
      plot?.recolour(readTheme(about.theme));
      period.recolour(readTheme(about.theme));
    },
    state({ queued, greeted }) {
      state.textContent = !greeted ? "loading" : queued ? "what you choose is shown when the kernel has finished its cell" : "";
    },
    dispose() {
      plot?.dispose();
      period.dispose();
    },
  };
}

export default { render: livePanel(inspection) };
