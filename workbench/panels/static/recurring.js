// @ts-check
// A recurring job: estimated costs, the profile of power limits, costs and savings over recurrences, and what can be done with them.
/** @import { RecurringGreeting, RecurringNews, RecurringView } from "./messages" */
import { Asking, Slider, button, element, field, labelled, lines, put, row, save, say, space } from "./controls.js";
import { numbers, percent, rowsOf } from "./formats.js";
import { livePanel } from "./live.js";
import { AT, BESIDE, Figure, GROUND, NAMED, TEXT, beside, column, columns, fill, fit, place, sizeOf, spread } from "./plots.js";

const MANY = 10; // recurrences on the second button, unless another number is given
const HIGHEST = 1000;
const TICKS = [4, 6];
const ETA = "eta weighs energy (1) against time (0) in the cost eta x energy + (1 - eta) x highest power x time";
const DASHED = { ...columns("x"), line_color: TEXT, line_dash: [2, 3], line_alpha: 0.6 };

/** The estimated cost of a recurrence at each batch size. */
class Believed {
  constructor(figure, [one, chosen]) {
    this.figure = figure;
    this.colours = [one, chosen];
    this.frame = figure.frame({ label: "batch size; above each: probability of costing least", ticks: TICKS });
    const ends = { x0: column("x"), x1: column("x"), y0: column("low"), y1: column("high") };
    this.interval = figure.glyph(this.frame, "Segment", { ...ends, line_color: column("colour"), line_width: 3, line_alpha: 0.5 });
    const look = { ...columns("size", "marker"), fill_color: column("colour"), fill_alpha: column("fill"), line_color: column("colour"), line_width: 1.6 };
    this.points = figure.glyph(this.frame, "Scatter", { ...AT, ...look });
    this.shares = figure.words(this.frame, { ...BESIDE, text_baseline: "bottom", y_offset: -6 });
    this.crosses = figure.glyph(this.frame, "Scatter", { ...AT, size: 9, marker: "x", line_width: 1.6, line_alpha: 0.6, line_color: TEXT });
    figure.hover(this.frame, [this.points], [
      ["batch size", "@batch"], ["estimated", "@middle{0.000}"], ["90 %", "@low{0.000} to @high{0.000}"], ["costs least", "@best{0 %}"],
      ["runs", "@reached reached the target, @other did not"],
    ]);
    figure.hover(this.frame, [this.crosses], [["not tried", "@why"]]);
  }
  draw(/** @type {RecurringView} */ { believed, arm, unit, ranges }) {
    const [low, high] = ranges.believed;
    const arms = rowsOf(believed).map((row, x) => ({ ...row, x, colour: this.colours[x === arm ? 1 : 0] }));
    fit(this.frame, [-0.6, arms.length - 0.4], ranges.believed, { title: `Estimated cost of a recurrence (${unit}), 90 %` });
    this.figure.ticks(this.frame.below, arms.map(({ x }) => x), believed.batch.map(String));
    const known = arms.filter(({ middle }) => middle !== null);
    const within = known.filter(({ middle }) => middle <= high);
    fill(this.interval, within.map((each) => ({ ...each, high: Math.min(each.high, high) })));
    // Hollow: no run of it has reached the target. A triangle: it lies above.
    fill(this.points, known.map((each) => ({
      ...each, y: Math.min(each.middle, 0.97 * high), fill: each.reached > 0 ? 1 : 0, size: each.x === arm ? 11 : 8, marker: each.middle > high ? "triangle" : "circle",
    })));
    const shared = within.filter(({ best }) => best >= 0.005);
    fill(this.shares, shared.map(({ x, best, high: end }) => {
      const above = end < 0.86 * high; // else beside the bar
      return { x, y: above ? end : 0.86 * high, text: percent(best), align: above ? "center" : "left", dx: above ? 0 : 6 };
    }));
    fill(this.crosses, arms.filter(({ barred }) => barred).map(({ x, barred: why }) => ({ x, y: low + 0.05 * (high - low), why })));
  }
}

/** Time, energy and cost of an epoch over power limits, at the batch size that was profiled. */
class Profile {
  constructor(figure, [one, chosen, saved]) {
    this.frame = figure.frame({ label: "power limit (W)", ticks: TICKS });
    const line = (name, line_color, line_width) => {
      this.curves = figure.glyph(this.frame, "Line", { x: column("x"), y: column(name), line_join: "round", line_color, line_width }, { over: this.curves });
    };
    line("time", saved, 1.4);
    line("energy", one, 1.4);
    line("cost", TEXT, 2.2);
    figure.hoverLine(this.frame, this.curves, [["limit", "@x W"], ["time", "@time{0.000}"], ["energy", "@energy{0.000}"], ["cost", "@cost{0.000}"]]);
    this.best = figure.glyph(this.frame, "VSpan", DASHED);
    figure.glyph(this.frame, "Scatter", { ...AT, size: 10, fill_color: chosen, line_color: chosen }, { over: this.best });
    this.names = figure.words(this.frame, { ...NAMED, background_fill_color: GROUND, background_fill_alpha: 0.75 });
  }
  draw(/** @type {RecurringView} */ { profile, optimum, profile_of: batch, ranges }) {
    const { limit_w: limits } = profile;
    this.frame.plot.visible = limits.length > 0;
    if (!limits.length) return;
    const [first, last] = [limits[0], limits[limits.length - 1]];
    const room = 0.03 * (last - first);
    fit(this.frame, [first - room, last + room], ranges.profile, { title: `An epoch at batch size ${batch}, share of that at ${last} W` });
    const names = ["time", "energy", "cost"];
    fill(this.curves, { x: limits, ...Object.fromEntries(names.map((name) => [name, numbers(profile[name])])) });
    const best = optimum === null ? [] : [{ x: limits[optimum], y: profile.cost[optimum], text: `best: ${limits[optimum]} W` }];
    fill(this.best, best);
    // Three curves may lie on one another, and the best at either end: each name stands where it covers no other.
    const named = names.filter((name) => profile[name][0] !== null).map((text) => ({ x: first, y: profile[text][0], text }));
    fill(this.names, spread([...best, ...named].map((each) => ({ ...each, at: place(this.frame, each) })), sizeOf(this.frame)));
  }
}

/** The cost of each recurrence, against the default's. */
class Costs {
  constructor(figure, colour) {
    this.frame = figure.frame({ label: "recurrence", ticks: TICKS });
    const strip = { y0: column("low"), y1: column("high"), fill_alpha: 0.1, fill_color: TEXT, line_color: null };
    this.usual = figure.glyph(this.frame, "HStrip", strip, { level: "underlay" });
    figure.glyph(this.frame, "HSpan", { ...columns("y"), line_dash: [5, 4], line_color: TEXT }, { over: this.usual });
    const look = { text_align: "right", text_baseline: "bottom", x_offset: -4, y_offset: -2, background_fill_color: GROUND, background_fill_alpha: 0.75 };
    figure.words(this.frame, look, { over: this.usual });
    this.each = figure.glyph(this.frame, "Scatter", { ...AT, size: 6, fill_color: colour, line_color: colour });
    this.lost = figure.glyph(this.frame, "Scatter", { ...AT, size: 9, marker: "x", line_width: 1.6, line_color: TEXT });
    figure.hover(this.frame, [this.each, this.lost], [["recurrence", "@x"], ["cost", "@y{0.000}"], ["batch size", "@batch"], ["target", "@end"]]);
  }
  draw(/** @type {RecurringView} */ { rows, ranges, unit, default: usual }, end) {
    fit(this.frame, [0, end], ranges.cost, { title: `Cost of each recurrence, all its attempts (${unit})` });
    const { recurrence, cost, batch, reached, lost } = rows;
    const each = rowsOf({ x: recurrence, y: numbers(cost), batch, reached, lost });
    fill(this.each, each.filter((row) => !row.lost).map((row) => ({ ...row, end: row.reached ? "reached" : "not reached yet" })));
    fill(this.lost, each.filter((row) => row.lost).map((row) => ({ ...row, end: "not reached: this recurrence is lost" })));
    fill(this.usual, usual ? [{ low: usual.low, high: usual.high, y: usual.cost, x: end, text: "default" }] : []);
  }
}

/** What is saved against the default, in sum. */
class Savings {
  constructor(figure, colour) {
    this.frame = figure.frame({ label: "recurrence", ticks: TICKS });
    const area = { ...columns("x"), y1: column("low"), y2: column("high"), fill_color: colour, fill_alpha: 0.18 };
    this.sums = figure.glyph(this.frame, "VArea", area);
    this.zero = figure.glyph(this.frame, "HSpan", { ...columns("y"), line_alpha: 0.6, line_color: TEXT });
    const sums = figure.glyph(this.frame, "Line", { ...AT, line_color: colour, line_width: 2, line_join: "round" }, { over: this.sums });
    this.even = figure.glyph(this.frame, "VSpan", DASHED);
    figure.words(this.frame, { ...BESIDE, text_baseline: "top" }, { over: this.even });
    figure.hoverLine(this.frame, sums, [["after recurrence", "@x"], ["saved", "@y{0.000}"], ["90 %", "@low{0.000} to @high{0.000}"]]);
  }
  draw(/** @type {RecurringView} */ { rows, ranges, saved_unit: unit, break_even: even }, end) {
    fit(this.frame, [0, end], ranges.saved, { title: `Saved against the default, in sum (${unit})` });
    const { recurrence: x, saved, saved_low: low, saved_high: high } = rows;
    fill(this.sums, saved ? { x, low: numbers(low), y: numbers(saved), high: numbers(high) } : []);
    fill(this.zero, [{ y: 0 }]);
    const words = { y: ranges.saved[1], text: `paid for itself after run ${even}`, ...beside(even !== null && even > 0.6 * end, 4) };
    fill(this.even, even === null ? [] : [{ x: even, ...words }]);
  }
}

/** Four plots, two in a row. */
function makePlots(page, place, inks) {
  const figure = new Figure(page, place);
  const [believed, profile] = [new Believed(figure, inks), new Profile(figure, inks)];
  const [costs, savings] = [new Costs(figure, inks[0]), new Savings(figure, inks[2])];
  figure.embed([figure.frames.slice(0, 2), figure.frames.slice(2)], 4);
  return { believed, profile, costs, savings };
}

/** Buttons that run recurrences, and take them from or to a file. */
class Runs {
  constructor(post) {
    const count = field("workbench-count", "how many recurrences", { type: "number", min: 1, max: HIGHEST, value: MANY });
    this.one = button("run-one", "", "", () => post({ kind: "run", count: 1 }));
    this.many = button("run-many", "", "", () => post({ kind: "run", count: Number(count.value) }));
    this.stop = button("halt", "Stop after this one", "", () => post({ kind: "stop" }));
    this.rewind = button("rewind", "Rewind", "", () => post({ kind: "rewind" }));
    const write = button("export", "Export CSV", "", () => post({ kind: "export" }));
    const take = async () => {
      if (file.files?.length) post({ kind: "import", text: await file.files[0].text() });
      file.value = "";
    };
    const file = field("workbench-file", "recurrences as CSV", { type: "file", accept: ".csv,text/csv", hidden: true, onchange: take });
    const read = button("import", "Import CSV", "", () => file.click());
    this.root = row(this.one, this.many, count, this.stop, this.rewind, space(), read, file, write);
    this.note = element("span", "workbench-faint workbench-note");
  }
  show(/** @type {RecurringGreeting} */ { replayed, whyNot }, left, note) {
    say(this.one, replayed ? "Play one recurrence" : "Run one recurrence");
    say(this.many, replayed ? "Play" : "Run");
    put(this.rewind, { hidden: !replayed });
    for (const each of [this.one, this.many]) put(each, { disabled: left > 0 || whyNot !== "", title: whyNot });
    put(this.stop, { hidden: left === 0, disabled: left === 1 });
    say(this.note, left ? `${left} run${left > 1 ? "s" : ""} left` : note);
  }
}

function recurringJob({ root, head, post, page }) {
  const headline = element("div", "workbench-headline workbench-next workbench-result");
  const details = element("div", "workbench-details");
  const plane = element("div", "workbench-plots");
  const asking = new Asking((eta, asked) => post({ kind: "eta", eta, asked }));
  const slider = new Slider("workbench-eta", "eta: 0 counts time only, 1 energy only", { min: 0, max: 1, step: 0.01 }, {
    told: (eta) => `eta ${eta}`, changed: (eta) => asking.ask(eta),
  });
  const runs = new Runs(post);
  slider.input.title = ETA;
  root.classList.add("workbench-wide");
  root.append(headline, details, runs.root, runs.note, plane, row(labelled("time", slider.input, element("span", "", "energy"), slider.words)));
  let plots = /** @type {ReturnType<typeof makePlots> | null} */ (null);
  let about = /** @type {RecurringGreeting | null} */ (null);

  function take(/** @type {RecurringNews} */ { left, note, view, asked }) {
    asking.answered(asked);
    runs.show(about, left, note);
    if (!view) return;
    say(headline, view.headline);
    put(plane, { role: "group", "aria-label": `costs, power limits and savings: ${view.headline}` });
    lines(details, view.details);
    if (!asking.waiting) slider.show(view.eta ?? slider.input.value, view.objective);
    const { recurrence } = view.rows;
    for (const each of Object.values(plots)) each.draw(view, (recurrence[recurrence.length - 1] ?? 0) + 1);
    Object.assign(root, { workbench: { plots, view, left: () => left } });
  }
  return {
    greet(message) {
      about = message;
      head.show(message.title, message.simulated);
      plots ??= makePlots(page, plane, message.colours);
      asking.forget();
    },
    take,
    on: { csv: ({ name, text }) => save(name, text, "text/csv") },
    waits: { late: "what you choose is shown when the kernel has finished its cell" },
  };
}

export default { render: livePanel(recurringJob) };
