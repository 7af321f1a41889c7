// @ts-check
// A recorded trace with its iterations, to look at: zoom, choose a level or a period of one's own, and see it folded.
/** @import { PeriodGreeting, PeriodNews } from "./messages" */
import { Slider, element, labelled, put } from "./controls.js";
import { floats, highest } from "./formats.js";
import { livePanel } from "./live.js";
import { PeriodView } from "./period.js";
import { Figure, addStrips, columns, fill, span } from "./plots.js";
import { Spans, spansFrom } from "./series.js";

const OWN_AFTER_MS = 250; // a slider that is dragged asks when it rests

/** The power over time, to be zoomed. */
class TracePlot {
  constructor(page, place, zoomed) {
    const figure = new Figure(page, place);
    const { PanTool, WheelZoomTool, BoxZoomTool, ResetTool } = figure.models;
    const frame = figure.frame({
      title: null, label: "seconds since the start of the trace", ticks: [5, 6], left: { axis_label: "Power (W)" },
      plot: { height: 210, min_border_left: 58, min_border_top: 6, toolbar_location: "right" },
    });
    this.place = place;
    this.x = frame.x;
    this.y = frame.y;
    this.strips = addStrips(figure, frame);
    this.line = figure.glyph(frame, "Line", { ...columns("x", "y"), line_width: 1.3, line_join: "round" });
    const across = { dimensions: "width" };
    frame.plot.add_tools(new PanTool(across), new WheelZoomTool(across), new BoxZoomTool(across), new ResetTool());
    figure.hoverLine(frame, this.line, [["at", "@x{0.00} s"], ["power", "@y{0} W"]]);
    Object.assign(frame.plot.toolbar, { logo: null, autohide: true });
    this.x.change.connect(zoomed);
    figure.embed([[frame]]);
  }
  show(times, power, colour, whole) {
    fill(this.line, { x: times, y: power });
    this.line.glyph.line_color = colour;
    span(this.y, [0, 1.08 * highest(power)]);
    const end = times[times.length - 1] ?? 1;
    if (whole) this.x.setv({ start: 0, end, reset_start: 0, reset_end: end, bounds: [0, end] });
  }
  ground(spans) {
    this.strips.draw(spans.strips(this.x.start, this.x.end, Math.max(this.place.clientWidth - 72, 100)));
  }
}

function inspection({ root, head, post, page }) {
  const place = element("div", "workbench-plots");
  const period = new PeriodView(page, post);
  let [low, high] = [1, 1]; // of the slider over periods, even in their logarithm
  const own = new Slider("workbench-own-period", "Fold at your own period", { min: 0, max: 1000, step: 1 }, {
    text: (seconds) => `${seconds.toPrecision(3)} s`, changed: (seconds) => post({ kind: "seconds", seconds }), restMs: OWN_AFTER_MS,
    valueAt: (share) => low * (high / low) ** (share / 1000), placeOf: (seconds) => (1000 * Math.log(seconds / low)) / Math.log(high / low),
  });
  const fold = labelled("Fold at", own.input, own.words);
  fold.hidden = true;
  root.append(place, period.root, fold);
  let plot = /** @type {TracePlot | null} */ (null);
  let about = /** @type {PeriodGreeting | null} */ (null);
  let spans = new Spans();
  let begins = true;

  function take(/** @type {PeriodNews} */ message, buffers) {
    const numbers = floats(buffers);
    const [times, power] = [0, 1].map((column) => Float64Array.from({ length: message.count }, (_, row) => numbers[2 * row + column]));
    head.show(message.title, about.simulated);
    spans = new Spans();
    spans.take(null, spansFrom(numbers, 2 * message.count));
    plot.show(times, power, about.gpus[message.period.gpu].colour, begins || period.about?.gpu !== message.period.gpu);
    begins = false;
    period.take(message.period);
    period.draw();
    plot.ground(spans);
    [low, high] = message.period.range ?? [1, 1];
    put(fold, { hidden: !(high > low) });
    const seconds = message.period.level?.seconds;
    if (seconds && document.activeElement === own.input) own.say(own.text(seconds));
    else if (seconds) own.show(seconds);
    Object.assign(root, { workbench: { plot, period, spans: () => spans.rows } });
  }
  return {
    greet(message) {
      about = message;
      plot ??= new TracePlot(page, place, () => plot?.ground(spans));
      period.greeting(message.gpus);
      begins = true;
    },
    take,
    waits: { late: "your choice is shown when the running cell ends" },
  };
}

export default { render: livePanel(inspection) };
