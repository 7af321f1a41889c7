// @ts-check
// The energy-time frontier: points, a choice that steps along it, a bound, eta, what is saved, a table, the traces behind a point.
/** @import { FrontierNews, FrontierPoints } from "./messages" */
import { Asking, Head, button, element, labelled, mark, offer, picker, put, row, space, toggle } from "./controls.js";
import { CodeLine, Files, Traces, WordedSlider, savingRows, tableColumns } from "./frontier_parts.js";
import { FrontierPlot } from "./frontier_plot.js";
import { Points } from "./frontier_points.js";
import { FrontierTable } from "./frontier_table.js";
import { livePanel } from "./live.js";

const HIGHEST_BOUND = 100; // per cent, above which the slider says any
const KEYS = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, PageDown: 10, PageUp: -10, Home: -Infinity, End: Infinity };

/** What moves the choice: three sliders, two buttons for a step, three for points that stand out. `take` is told what changes. */
class Choosing {
  constructor(take, walk) {
    const hand = (at) => take({ row: at, rule: "hand" });
    this.step = new WordedSlider("workbench-step-slider", "step along the frontier, from fastest to least energy", ["faster", "less energy"], { max: 0, step: 1 },
      (place) => hand(this.model.front[place]));
    this.bound = new WordedSlider("workbench-bound", "allowed slowdown against the default in per cent", ["slower by at most", ""], { max: HIGHEST_BOUND, step: 0.5 },
      (value) => take({ slowdown: value >= Number(this.bound.input.max) ? null : value, rule: this.choice.rule === "eta" ? "eta" : "slowdown" }));
    this.eta = new WordedSlider("workbench-eta", "eta: 0 counts time only, 1 energy only", ["eta: time", "energy"], { max: 1, step: 0.01 },
      (eta) => take({ eta, rule: "eta" }));
    this.back = button("do-back", "\u2039", "one step faster (left arrow)", () => walk(-1));
    this.on = button("do-on", "\u203a", "one step to less energy (right arrow)", () => walk(1));
    this.back.setAttribute("aria-label", "one step faster");
    this.on.setAttribute("aria-label", "one step to less energy");
    this.step.root.append(this.back, this.on);
    this.knee = toggle("knee", "knee", "where the frontier bends most", () => hand(this.model.knee));
    this.optimum = toggle("optimum", "best for eta", "where eta's cost is least within the bound (diamond)", () => take({ rule: "eta" }));
    this.least = toggle("least", "least energy", "least energy within the bound", () => take({ rule: "slowdown" }));
    this.sliders = element("div", "workbench-sliders", this.step.root, this.bound.root, this.eta.root);
    this.points = row(this.knee, this.optimum, this.least);
  }
  /** Fit the sliders to new points. */
  fit(model, slowdown) {
    this.model = model;
    const slowest = 100 * (model.time[model.front[model.front.length - 1]] / model.referenceTime - 1);
    this.bound.input.step = slowest < 10 ? "0.1" : "0.5";
    this.bound.input.max = String(Math.min(HIGHEST_BOUND, Math.max(1, Math.ceil(1.05 * slowest), Math.ceil(slowdown ?? 0) + 1)));
  }
  show(choice, headline) {
    this.choice = choice;
    const { model, choice: { row: at, eta, slowdown } } = this;
    const [allowed, place, begins] = [model.allowed(slowdown), model.place[at], model.begins[at]];
    put(this.step.input, { max: String(allowed - 1), disabled: allowed < 2 });
    const bounded = allowed < model.front.length ? `, ${allowed} allowed` : "";
    this.step.show(begins, place < 0 ? "beside the frontier" : `${place + 1} of ${model.front.length}${bounded}`, headline);
    put(this.back, { disabled: begins <= 0 });
    put(this.on, { disabled: begins >= allowed - 1 });
    const etaWords = String(Number(eta.toFixed(2)));
    this.eta.show(eta, etaWords, etaWords);
    const boundWords = slowdown === null ? "any" : `${Number(slowdown.toPrecision(3))} %`;
    this.bound.show(slowdown ?? this.bound.input.max, boundWords, boundWords);
    mark(this.knee, "aria-pressed", at === model.knee);
    mark(this.optimum, "aria-pressed", at === choice.best);
    mark(this.least, "aria-pressed", at === model.front[allowed - 1]);
  }
}

/** Which points are taken in. */
class Filters {
  constructor(post) {
    const select = (change) => post({ kind: "select", ...change });
    this.selects = Object.entries({ job: "job", gpu: "GPU", batch_size: "batch size" }).map(([name, words]) => {
      const made = picker("workbench-select", words, (value) => {
        const given = this.about.options[name][made.selectedIndex - (made.options[0].value === "all" ? 1 : 0)];
        select({ [name]: value === "all" ? "all" : given });
      });
      return { name, made, label: labelled(words, made) };
    });
    this.predicted = toggle("predicted", "predictions", "take predictions in", () => select({ predicted: !this.about.filters.predicted }));
  }
  show(/** @type {FrontierPoints} */ message) {
    this.about = message;
    const { options, filters } = message;
    put(this.predicted, { hidden: !message.hollow });
    mark(this.predicted, "aria-pressed", filters.predicted);
    for (const { name, made, label } of this.selects) {
      const values = options[name].map(String);
      put(label, { hidden: values.length < 2 });
      offer(made, [...(name === "job" ? [] : ["all"]), ...values].map((value) => [value, value]));
      made.value = String(filters[name] ?? "all");
    }
  }
}

/** The parts of the view that only show. */
class Parts {
  constructor(take, walk, post) {
    this.head = new Head();
    this.headline = element("div", "workbench-headline");
    this.headline.setAttribute("aria-live", "polite");
    this.details = element("div", "workbench-details");
    this.note = element("div", "workbench-note");
    this.note.setAttribute("role", "status");
    this.place = Object.assign(element("div", "workbench-plots workbench-frontier-plot"), { tabIndex: 0 });
    this.place.setAttribute("role", "application");
    this.place.setAttribute("aria-label", "energy against time; arrow keys step along the frontier");
    this.place.addEventListener("keydown", (event) => {
      const by = KEYS[event.key];
      if (by === undefined) return;
      event.preventDefault();
      walk(by);
    });
    this.savings = element("table", "workbench-savings");
    this.counts = element("div", "workbench-faint");
    this.choosing = new Choosing(take, walk);
    this.filters = new Filters(post);
    this.code = new CodeLine();
    this.files = new Files(post);
    this.table = new FrontierTable((at) => take({ row: at, rule: "hand" }));
  }
  show(model, choice) {
    const headline = model.headline(choice);
    put(this.headline, { textContent: headline });
    put(this.details, { textContent: model.details(choice.row) });
    const cells = (words, at) => words.map((each) => element(at ? "td" : "th", "", each));
    this.savings.replaceChildren(...savingRows(model, choice.row).map((words, at) => element("tr", "", ...cells(words, at))));
    this.choosing.show(choice, headline);
    this.table.select(choice.row);
  }
}

function frontier({ root, post }) {
  const parts = new Parts(take, walk, post);
  const { head, note, place, choosing, filters, code, files, table } = parts;
  const relative = toggle("relative", "relative", "axes in per cent of the default", () => {
    relate(!isRelative);
    post({ kind: "axes", relative: isRelative });
  });
  const whole = toggle("whole", "all points", "show all points, not only the surroundings of the frontier", fit);
  const every = toggle("every", "all in the table", "list all configurations, not only those of the frontier", () => {
    listsAll = !listsAll;
    list();
  });
  const traces = new Traces(post, () => model && { version: model.version, row: choice.row });
  root.append(
    head.root, parts.headline, parts.details, note, row(...filters.selects.map(({ label }) => label), filters.predicted, space(), relative, whole), place,
    choosing.sliders, choosing.points, parts.savings, table.root, row(every, parts.counts), code.root, files.root, traces.root,
  );
  root.classList.add("workbench-frontier");
  let plot = /** @type {FrontierPlot | null} */ (null);
  let model = /** @type {Points | null} */ (null);
  let choice = /** @type {import("./frontier_points.js").Choice} */ ({ row: 0, rule: "eta", eta: 0.5, slowdown: null, best: null });
  let isRelative = false;
  let isWhole = false;
  let listsAll = false;
  // A choice is drawn at once by the kernel's ranks, and told to the kernel one at a time.
  const asking = new Asking(({ row, rule, eta, slowdown }, asked) => post({ kind: "choose", row, rule, eta, slowdown, version: model.version, asked }));

  function take(change) {
    if (!model) return;
    choice = model.settle({ ...choice, ...change });
    put(note, { textContent: "" });
    show();
    asking.ask(choice);
  }
  function walk(by) {
    if (model) take({ row: model.step(choice.row, by, choice.slowdown), rule: "hand" });
  }
  function relate(on) {
    isRelative = on;
    redraw();
  }
  function fit() {
    isWhole = !isWhole;
    redraw();
  }
  function show() {
    plot.moving.draw(choice, choice.best);
    parts.show(model, choice);
    traces.rest();
    Object.assign(root, { workbench: { plot, model, choice, table, heard: () => !asking.waiting } });
  }
  function list() {
    mark(every, "aria-pressed", listsAll);
    table.chosen = choice.row;
    table.show(tableColumns(model), listsAll ? [...Array(model.count).keys()] : model.front);
  }
  function redraw() {
    if (!model) return;
    put(relative, { disabled: model.reference === null });
    mark(relative, "aria-pressed", isRelative && model.reference !== null);
    mark(whole, "aria-pressed", isWhole);
    plot.draw(model, isRelative, isWhole);
    show();
  }
  const adopt = ({ row, rule, eta, slowdown, best }) => (choice = { row, rule, eta, slowdown, best });
  function takePoints(/** @type {FrontierPoints} */ message, buffers) {
    head.show(message.title, message.simulated);
    put(note, { textContent: message.note });
    code.show(message.python);
    filters.show(message);
    const drawn = message.view !== null;
    for (const part of [place, table.root, parts.savings, code.root, traces.root, choosing.sliders, choosing.points, every, whole, relative, ...files.buttons]) {
      put(part, { hidden: !drawn });
    }
    put(parts.counts, { textContent: drawn ? message.said : "" });
    if (!message.view) {
      put(parts.headline, { textContent: message.said });
      return;
    }
    model = new Points(message.view, buffers);
    choosing.fit(model, message.slowdown);
    isRelative = message.relative;
    asking.forget(); // what was asked before is answered by this
    adopt(message);
    list();
    redraw();
  }
  function takeChoice(/** @type {FrontierNews} */ message) {
    const moves = asking.next !== null;
    asking.answered(message.asked);
    if (message.asked !== undefined && (moves || asking.waiting)) return; // it has moved on meanwhile
    if (!model || message.version !== model.version) return;
    const moved = message.row !== choice.row || message.rule !== choice.rule || message.eta !== choice.eta || message.slowdown !== choice.slowdown;
    adopt(message);
    code.show(message.python);
    put(note, { textContent: message.note });
    if (moved) show();
  }
  return {
    figures: () => [plot?.figure],
    greeting(message, buffers, { Bokeh, colours }) {
      plot ??= new FrontierPlot(Bokeh, place, colours(), message.inks, (at) => take({ row: at, rule: "hand" }), fit);
      files.colours = colours;
      traces.asked = "";
      takePoints(message, buffers);
    },
    on: {
      points: takePoints,
      choice: takeChoice,
      traces: (message) => traces.take(message),
      file: (message, [data]) => files.take(message, data).catch((error) => put(note, { textContent: error.message })),
      axes: ({ relative: on }) => on !== isRelative && relate(on),
    },
    state(state) {
      if (state.gone) for (const part of [code.root, traces.root, files.root]) put(part, { hidden: true }); // the kernel's work
      head.state(state, "the kernel hears of it when the cell ends");
    },
  };
}

export default { render: livePanel(frontier) };
