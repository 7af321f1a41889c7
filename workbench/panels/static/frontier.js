// @ts-check
// The energy-time frontier: points, a choice that steps along it, a bound, eta, what is saved, a table, the traces behind a point.
/** @import { FrontierNews, FrontierPoints } from "./messages" */
import { Asking, Code, Slider, button, cells, element, labelled, offer, picker, press, put, row, say, slowdownSlider, space, toggle, walks } from "./controls.js";
import { Files, Traces, savingRows } from "./frontier_parts.js";
import { FrontierPlot } from "./frontier_plot.js";
import { Points } from "./frontier_points.js";
import { FrontierTable } from "./frontier_table.js";
import { livePanel } from "./live.js";

const HIGHEST_BOUND = 100; // per cent, above which the slider says any

/** What moves the choice: three sliders, two buttons for a step, three for points that stand out. `take` is told what changes. */
class Choosing {
  constructor(take, walk) {
    const hand = (at) => take({ row: at, rule: "hand" });
    const steps = "step along the frontier, from fastest to least energy";
    this.step = new Slider("workbench-step-slider", steps, { min: 0, max: 0, step: 1 }, { changed: (place) => hand(this.model.front[place]) });
    const bound = (slowdown) => take({ slowdown, rule: this.rule === "eta" ? "eta" : "slowdown" });
    this.bound = slowdownSlider("workbench-bound", "allowed slowdown against the default in per cent", HIGHEST_BOUND, bound);
    this.eta = new Slider("workbench-eta", "eta: 0 counts time only, 1 energy only", { min: 0, max: 1, step: 0.01 }, {
      told: (eta) => String(Number(eta.toFixed(2))), changed: (eta) => take({ eta, rule: "eta" }),
    });
    this.back = button("do-back", "\u2039", "one step faster (left arrow)", () => walk(-1));
    this.on = button("do-on", "\u203a", "one step to less energy (right arrow)", () => walk(1));
    put(this.back, { "aria-label": "one step faster" });
    put(this.on, { "aria-label": "one step to less energy" });
    this.knee = toggle("knee", "knee", "where the frontier bends most", () => hand(this.model.knee));
    this.optimum = toggle("optimum", "best for eta", "where eta's cost is least within the bound (diamond)", () => take({ rule: "eta" }));
    this.least = toggle("least", "least energy", "least energy within the bound", () => take({ rule: "slowdown" }));
    const between = (from, { input, words }, to, ...more) => {
      const ends = [element("span", "workbench-slider-from", from), element("span", "workbench-slider-to", to)];
      return element("label", "workbench-control workbench-slider", ends[0], input, ends[1], words, ...more);
    };
    this.sliders = element(
      "div", "workbench-sliders", between("faster", this.step, "less energy", this.back, this.on), between("slower by at most", this.bound, ""),
      between("eta: time", this.eta, "energy"),
    );
    this.points = row(this.knee, this.optimum, this.least);
  }
  fit(model, slowdown) {
    this.model = model;
    const slowest = 100 * (model.time[model.front[model.front.length - 1]] / model.referenceTime - 1);
    this.bound.input.step = slowest < 10 ? "0.1" : "0.5";
    this.bound.input.max = String(Math.min(HIGHEST_BOUND, Math.max(1, Math.ceil(1.05 * slowest), Math.ceil(slowdown ?? 0) + 1)));
  }
  show({ row: at, rule, eta, slowdown, best }, headline) {
    this.rule = rule;
    const { model } = this;
    const [allowed, place, begins] = [model.allowed(slowdown), model.place[at], model.step[at]];
    put(this.step.input, { max: String(allowed - 1), disabled: allowed < 2 });
    const bounded = allowed < model.front.length ? `, ${allowed} allowed` : "";
    this.step.show(begins, place < 0 ? "beside the frontier" : `${place + 1} of ${model.front.length}${bounded}`, headline);
    put(this.back, { disabled: begins <= 0 });
    put(this.on, { disabled: begins >= allowed - 1 });
    this.eta.show(eta);
    this.bound.show(slowdown);
    press(this.knee, at === model.knee);
    press(this.optimum, at === best);
    press(this.least, at === model.front[allowed - 1]);
  }
}

/** Which points are taken in. */
class Filters {
  constructor(post) {
    const select = (change) => post({ kind: "select", ...change });
    this.selects = Object.entries({ job: "job", gpu: "GPU", batch_size: "batch size" }).map(([name, words]) => {
      const made = picker("workbench-select", words, (value) => select({ [name]: this.about.options[name].find((each) => String(each) === value) ?? "all" }));
      return { name, made, label: labelled(words, made) };
    });
    this.predicted = toggle("predicted", "predictions", "take predictions in", () => select({ predicted: !this.about.filters.predicted }));
  }
  show(/** @type {FrontierPoints} */ message) {
    this.about = message;
    const { options, filters } = message;
    put(this.predicted, { hidden: !message.hollow, "aria-pressed": filters.predicted });
    for (const { name, made, label } of this.selects) {
      const values = options[name].map(String);
      put(label, { hidden: values.length < 2 });
      offer(made, [...(name === "job" ? [] : ["all"]), ...values].map((value) => [value, value]), String(filters[name] ?? "all"));
    }
  }
}

/** The parts of the view that only show. */
class Parts {
  constructor(take, walk, post, page) {
    this.headline = element("div", "workbench-headline", { "aria-live": "polite" });
    this.details = element("div", "workbench-details");
    this.note = element("div", "workbench-note", { role: "status" });
    const label = "energy against time; arrow keys step along the frontier";
    const onkeydown = walks(walk, 10, { ArrowRight: 1, ArrowLeft: -1 });
    this.place = element("div", "workbench-plots workbench-frontier-plot", { tabIndex: 0, role: "application", "aria-label": label, onkeydown });
    this.savings = element("table", "workbench-savings");
    this.counts = element("div", "workbench-faint");
    this.choosing = new Choosing(take, walk);
    this.filters = new Filters(post);
    this.code = new Code("code", "workbench-code", "a line of Python that makes this choice", "copy the line of Python");
    this.code.root.classList.add("workbench-code-row");
    this.files = new Files(post, page);
    this.table = new FrontierTable((at) => take({ row: at, rule: "hand" }));
  }
  show(model, choice) {
    const headline = model.headline(choice);
    say(this.headline, headline);
    say(this.details, model.details(choice.row));
    this.savings.replaceChildren(...savingRows(model, choice.row).map((words, n) => element("tr", "", ...cells(words, n ? "td" : "th"))));
    this.choosing.show(choice, headline);
    this.table.select(choice.row);
  }
}

function frontier({ root, head, post, page }) {
  const parts = new Parts(turn, walk, post, page);
  const { note, place, choosing, filters, code, files, table } = parts;
  const relative = toggle("relative", "relative", "axes in per cent of the default", (on) => {
    redraw({ relative: on });
    post({ kind: "axes", relative: on });
  });
  const fit = () => redraw({ whole: !shown.whole });
  const whole = toggle("whole", "all points", "show all points, not only the surroundings of the frontier", fit);
  const every = toggle("every", "all in the table", "list all configurations, not only those of the frontier", list);
  const traces = new Traces(post, () => model && { version: model.version, row: choice.row });
  root.append(
    parts.headline, parts.details, note, row(...filters.selects.map(({ label }) => label), filters.predicted, space(), relative, whole), place,
    choosing.sliders, choosing.points, parts.savings, table.root, row(every, parts.counts), code.root, files.root, traces.root,
  );
  root.classList.add("workbench-frontier");
  let plot = /** @type {FrontierPlot | null} */ (null);
  let model = /** @type {Points | null} */ (null);
  let choice = /** @type {import("./frontier_points.js").Choice} */ ({ row: 0, rule: "eta", eta: 0.5, slowdown: null, best: null });
  let shown = { relative: false, whole: false };
  // A choice is drawn at once by the kernel's ranks, and told to the kernel one at a time.
  const asking = new Asking(({ row, rule, eta, slowdown }, asked) => post({ kind: "choose", row, rule, eta, slowdown, version: model.version, asked }));

  function turn(change) {
    if (!model) return;
    choice = model.settle({ ...choice, ...change });
    say(note, "");
    show();
    asking.ask(choice);
  }
  function walk(by) {
    if (model) turn({ row: model.walk(choice.row, by, choice.slowdown), rule: "hand" });
  }
  function show() {
    plot.moving.draw(choice);
    parts.show(model, choice);
    traces.rest();
    Object.assign(root, { workbench: { plot, model, choice, table, heard: () => !asking.waiting } });
  }
  function list(all) {
    press(every, all);
    table.chosen = choice.row;
    table.show(model, all ? [...Array(model.count).keys()] : model.front);
  }
  function redraw(change) {
    shown = { ...shown, ...change };
    if (!model) return;
    put(relative, { disabled: model.reference === null, "aria-pressed": shown.relative && model.reference !== null });
    press(whole, shown.whole);
    plot.draw(model, shown.relative, shown.whole);
    show();
  }
  const adopt = ({ row, rule, eta, slowdown, best }) => (choice = { row, rule, eta, slowdown, best });
  function take(/** @type {FrontierPoints} */ message, buffers) {
    head.show(message.title, message.simulated);
    say(note, message.note);
    say(code.code, message.python);
    filters.show(message);
    const drawn = message.view !== null;
    for (const part of [place, table.root, parts.savings, code.root, traces.root, choosing.sliders, choosing.points, every, whole, relative, ...files.buttons]) {
      put(part, { hidden: !drawn });
    }
    say(parts.counts, drawn ? message.said : "");
    if (!message.view) {
      say(parts.headline, message.said);
      return;
    }
    model = new Points(message.view, buffers);
    choosing.fit(model, message.slowdown);
    asking.forget(); // what was asked before is answered by this
    adopt(message);
    list(every.getAttribute("aria-pressed") === "true");
    redraw({ relative: message.relative });
  }
  function takeChoice(/** @type {FrontierNews} */ message) {
    const moves = asking.next !== null;
    asking.answered(message.asked);
    if (message.asked !== undefined && (moves || asking.waiting)) return; // it has moved on meanwhile
    if (!model || message.version !== model.version) return;
    const moved = ["row", "rule", "eta", "slowdown"].some((name) => message[name] !== choice[name]);
    adopt(message);
    say(code.code, message.python);
    say(note, message.note);
    if (moved) show();
  }
  return {
    greet(message) {
      plot ??= new FrontierPlot(page, place, message.inks, (row) => turn({ row, rule: "hand" }), fit);
      traces.asked = "";
    },
    take,
    on: {
      points: take,
      choice: takeChoice,
      traces: (message) => traces.take(message),
      file: (message, [data]) => files.take(message, data).catch((error) => say(note, error.message)),
      axes: ({ relative: on }) => on !== shown.relative && redraw({ relative: on }),
    },
    waits: { late: "the kernel hears of it when the cell ends" },
    state({ gone }) {
      if (gone) for (const part of [code.root, traces.root, files.root]) put(part, { hidden: true }); // the kernel's work
    },
  };
}

export default { render: livePanel(frontier) };
