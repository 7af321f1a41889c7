// @ts-check
// A recorded trace with its iterations, to look at: zoom, choose a level or a period of one's own, and see it folded.
/** @import { PeriodGreeting, PeriodNews } from "./messages" */
import { Head, element, labelled, put, range } from "./controls.js";
import { floats } from "./formats.js";
import { livePanel } from "./live.js";
import { PeriodView } from "./period.js";
import { Figure, addStrips, columns, span } from "./plots.js";
import { Spans, periodTables } from "./series.js";

const OWN_AFTER_MS = 250; // a slider that is dragged asks when it rests

/** The power over time, to be zoomed. */
class TracePlot {
  constructor(Bokeh, place, colours, zoomed) {
    this.figure = new Figure(Bokeh, place);
    this.place = place;
    this.source = this.figure.source("x", "y");
    const { models } = this.figure;
    const frame = this.figure.frame({
      title: null, label: "seconds since the start of the trace", ticks: [5, 6], left: { axis_label: "Power (W)", axis_label_standoff: 4 },
      plot: { height: 210, min_border_left: 58, min_border_top: 6, toolbar_location: "right" },
    });
    const { plot } = frame;
    this.x = frame.x;
    this.y = frame.y;
    this.strips = addStrips(this.figure, frame);
    const line = this.figure.glyph(frame, "Line", { ...columns("x", "y"), line_width: 1.3, line_join: "round" }, this.source);
    this.line = line.glyph;
    const wheel = new models.WheelZoomTool({ dimensions: "width" });
    plot.add_tools(new models.PanTool({ dimensions: "width" }), wheel, new models.BoxZoomTool({ dimensions: "width" }), new models.ResetTool());
    this.figure.hoverLine(frame, line, [["at", "@x{0.00} s"], ["power", "@y{0} W"]]);
    plot.toolbar.logo = null;
    plot.toolbar.autohide = true;
    this.x.change.connect(zoomed);
    this.figure.embed(plot, colours);
  }
  show(times, power, colour, whole) {
    this.source.data = { x: times, y: power };
    this.line.line_color = colour;
    let top = 1;
    for (const value of power) if (value > top) top = value;
    span(this.y, [0, 1.08 * top]);
    const end = times[times.length - 1] ?? 1;
    if (whole) this.x.setv({ start: 0, end, reset_start: 0, reset_end: end });
  }
  ground(spans) {
    this.strips.draw(spans.strips(this.x.start, this.x.end, Math.max(this.place.clientWidth - 72, 100)));
  }
}

/** A slider over periods, even in their logarithm. */
class OwnPeriod {
  constructor(post) {
    this.low = this.high = 1;
    this.slider = range("", "Fold at a period of one's own", { min: 0, max: 1000, step: 1 });
    this.words = element("span", "workbench-faint");
    this.root = labelled("Fold at", this.slider, this.words);
    this.slider.addEventListener("input", () => {
      const seconds = this.low * (this.high / this.low) ** (Number(this.slider.value) / 1000);
      this.words.textContent = `${seconds.toPrecision(3)} s`;
      clearTimeout(this.timer);
      this.timer = setTimeout(() => post({ kind: "seconds", seconds }), OWN_AFTER_MS);
    });
  }
  fit(low, high, seconds) {
    put(this.root, { hidden: !(high > low) });
    Object.assign(this, { low, high });
    if (!seconds) return;
    if (document.activeElement !== this.slider) this.slider.value = String((1000 * Math.log(seconds / low)) / Math.log(high / low));
    put(this.words, { textContent: `${seconds.toPrecision(3)} s` });
  }
}

function inspection({ root, post }) {
  const head = new Head();
  const place = element("div", "workbench-plots");
  const period = new PeriodView(post);
  const own = new OwnPeriod(post);
  root.append(head.root, place, period.root, own.root);
  own.root.hidden = true;
  let plot = /** @type {TracePlot | null} */ (null);
  let about = /** @type {PeriodGreeting | null} */ (null);
  let spans = new Spans();

  function take(/** @type {PeriodNews} */ message, buffers, whole) {
    const numbers = floats(buffers);
    const [times, power] = [0, 1].map((column) => Float64Array.from({ length: message.count }, (_, row) => numbers[2 * row + column]));
    const tables = periodTables(message.period.sizes, numbers, 2 * message.count);
    head.show(message.title, about.simulated);
    spans = new Spans();
    spans.take(null, tables[0]);
    const other = period.about?.gpu !== message.period.gpu;
    period.take(message.period, tables);
    period.draw();
    plot.show(times, power, about.gpus[message.period.gpu].colour, whole || other);
    plot.ground(spans);
    const periods = tables[3][0];
    own.fit(periods[0], periods[periods.length - 1], message.period.level?.seconds);
    Object.assign(root, { workbench: { plot, period, own, spans: () => spans.rows } });
  }
  return {
    figures: () => [plot?.figure, period.plots?.figure],
    greeting(message, buffers, { Bokeh, colours }) {
      about = message;
      plot ??= new TracePlot(Bokeh, place, colours(), () => plot?.ground(spans));
      period.greeting(message.gpus, Bokeh, colours);
      take(message, buffers, true);
    },
    on: { news: (message, buffers) => take(message, buffers, false) },
    state: (state) => head.state(state, "what you choose is shown when the kernel has finished its cell"),
  };
}

export default { render: livePanel(inspection) };
