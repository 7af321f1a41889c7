// @ts-check
// The energy-time frontier: points, a choice that steps along it, Apply and Undo, what is saved; under "more" a bound, eta, a table, traces.
/** @import { FrontierNews, FrontierPoints } from "./messages" */
import { Applying } from "./applying.js";
import { Asking, Code, Slider, button, cells, element, folded, labelled, offer, picker, press, put, row, say, slowdownSlider, space, toggle, walks } from "./controls.js";
import { amount, duration, watts } from "./formats.js";
import { Files, Traces, savingRows } from "./frontier_parts.js";
import { FrontierPlot } from "./frontier_plot.js";
import { Points } from "./frontier_points.js";
import { FrontierTable } from "./frontier_table.js";
import { livePanel } from "./live.js";

const HIGHEST_BOUND = 100; // per cent, above which the slider says any
const SETTLED_MS = 400; // that a step rests before it is applied by itself
const ETA = "eta weighs energy (1) against time (0) in the cost eta x energy + (1 - eta) x highest power x time";
const KNEE = "the knee: the point of the frontier beyond which a little less energy takes much more time";
const LEGEND = "hollow: predicted · pale: dominated · square: default · ring: selected · dashed: equal cost at eta";
const FRONTIER = "the frontier: configurations that no other beats in both time and energy";

/** What moves the choice: three sliders, two buttons for a step, three for points that stand out. `take` is told what changes. */
class Choosing {
  constructor(take, walk) {
    const hand = (at) => take({ row: at, rule: "hand" });
    const steps = "step along the frontier, from fastest to least energy";
    this.step = new Slider("workbench-step-slider", steps, { min: 0, max: 0, step: 1 }, { changed: (place) => hand(this.model.front[place]) });
    const bound = (slowdown) => take({ slowdown, rule: this.rule === "eta" ? "eta" : "slowdown" });
    this.bound = slowdownSlider("workbench-bound", "allowed slowdown against the default in per cent", HIGHEST_BOUND, bound);
    this.eta = new Slider("workbench-eta", "eta: 0 counts time only, 1 energy only", { min: 0, max: 1, step: 0.01, title: ETA }, {
      told: (eta) => String(Number(eta.toFixed(2))), changed: (eta) => take({ eta, rule: "eta" }),
    });
    this.back = button("do-back", "\u2039", "one step faster (left arrow)", () => walk(-1));
    this.on = button("do-on", "\u203a", "one step to less energy (right arrow)", () => walk(1));
    put(this.back, { "aria-label": "one step faster" });
    put(this.on, { "aria-label": "one step to less energy" });
    this.knee = toggle("knee", "knee", KNEE, () => hand(this.model.knee));
    this.optimum = toggle("optimum", "best for eta", "where eta's cost is least within the bound (diamond)", () => take({ rule: "eta" }));
    this.least = toggle("least", "least energy", "least energy within the bound", () => take({ rule: "slowdown" }));
    const between = (from, { input, words }, to, ...more) => {
      const ends = [element("span", "workbench-slider-from", from), element("span", "workbench-slider-to", to)];
      return element("label", "workbench-control workbench-slider", ends[0], input, ends[1], words, ...more);
    };
    this.steps = element("div", "workbench-sliders", { title: FRONTIER }, between("faster", this.step, "less energy", this.back, this.on));
    this.sliders = element("div", "workbench-sliders", between("slower by at most", this.bound, ""), between("eta: time", this.eta, "energy"));
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
    this.step.show(begins, place < 0 ? "dominated" : `${place + 1} of ${model.front.length}${bounded}`, headline);
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
    this.root = row(...this.selects.map(({ label }) => label));
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
  constructor(take, walk, post, page, send) {
    this.headline = element("div", "workbench-headline workbench-result", { "aria-live": "polite" });
    this.details = element("div", "workbench-details");
    this.note = element("div", "workbench-note", { role: "status" });
    const onkeydown = walks(walk, 10, { ArrowRight: 1, ArrowLeft: -1 });
    this.place = element("div", "workbench-plots workbench-frontier-plot", { tabIndex: 0, role: "application", onkeydown });
    this.savings = element("table", "workbench-savings");
    this.counts = element("div", "workbench-faint");
    this.choosing = new Choosing(take, walk);
    this.filters = new Filters(post);
    this.code = new Code("code", "workbench-code", "a line of Python that makes this choice", "copy the line of Python");
    this.code.root.classList.add("workbench-code-row");
    this.files = new Files(post, page);
    this.table = new FrontierTable((at) => take({ row: at, rule: "hand" }));
    this.applying = new Applying(send);
    this.now = element("div", "workbench-faint workbench-now");
    const watch = [this.now, this.applying.command.root, this.applying.plot];
    this.follow = toggle("follow", "apply each step", "set the GPU to every step on which the choice rests", (on) => press(this.follow, on));
    const { apply, undo, gpu, done } = this.applying;
    this.apply = element("div", "", { hidden: true }, row(apply, undo, gpu, this.follow, done), ...watch); // until there is a GPU
  }
  showApplied(/** @type {import("./messages").Applied} */ message, each) {
    const { view, job } = message;
    this.applying.show(message);
    put(this.apply, { hidden: !view });
    if (!view) return;
    const runs = job ? `this job now: ${watts(job.power)}, ${amount(job.energy, "J")} and ${duration(job.time)} ${each}` : "";
    const name = view.simulated && !view.gpu.includes("(simulated)") ? `${view.gpu} (simulated)` : view.gpu;
    say(this.now, [`${name}: ${view.force}`, view.origin, runs, view.power, view.left, view.earlier].filter(Boolean).join(" · "));
  }
  show(model, choice) {
    const headline = `${model.words.change[choice.row]}: ${model.words.name[choice.row]}`;
    say(this.headline, headline);
    say(this.details, model.details(choice));
    put(this.place, { "aria-label": `energy against time: ${headline}; arrow keys step along the frontier` });
    this.savings.replaceChildren(...savingRows(model, choice.row).map((words, n) => element("tr", "", ...cells(words, n ? "td" : "th"))));
    this.choosing.show(choice, headline);
    this.table.select(choice.row);
  }
}

function frontier({ root, head, post, page }) {
  const parts = new Parts(turn, walk, post, page, (kind, more) => post({ kind, ...wanted(), ...more }));
  const { note, place, choosing, filters, code, files, table, applying } = parts;
  const relative = toggle("relative", "relative", "axes in per cent of the default", (on) => {
    redraw({ relative: on });
    post({ kind: "axes", relative: on });
  });
  const fit = () => redraw({ whole: !shown.whole });
  const whole = toggle("whole", "all points", "show all points, not only the surroundings of the frontier", fit);
  const every = toggle("every", "all in the table", "list all configurations, not only those of the frontier", list);
  const traces = new Traces(post, () => model && { version: model.version, row: choice.row });
  const rules = row(...choosing.points.children, space(), filters.predicted, relative, whole);
  const listed = row(every, parts.counts);
  const more = folded("more: bound and eta, table, files, power trace", choosing.sliders, rules, table.root, listed, code.root, files.root, traces.root);
  const beside = element("div", "", element("div", "workbench-faint workbench-legend-words", LEGEND), choosing.steps, parts.apply, parts.savings);
  const columns = element("div", "workbench-columns", place, beside);
  root.append(parts.headline, parts.details, note, filters.root, columns, more);
  root.classList.add("workbench-frontier");
  let plot = /** @type {FrontierPlot | null} */ (null);
  let model = /** @type {Points | null} */ (null);
  let choice = /** @type {import("./frontier_points.js").Choice} */ ({ row: 0, rule: "eta", eta: 0.5, slowdown: null, best: null });
  let shown = { relative: false, whole: false };
  // A choice is drawn at once by the kernel's ranks, and told to the kernel one at a time.
  const wanted = () => ({ ...choice, version: model?.version });
  const asking = new Asking((_, asked) => post({ kind: "choose", ...wanted(), asked }));
  let settled = 0;

  function turn(change) {
    if (!model) return;
    choice = model.settle({ ...choice, ...change });
    say(note, "");
    show();
    asking.ask(choice);
    clearTimeout(settled);
    if (parts.follow.getAttribute("aria-pressed") === "true") settled = window.setTimeout(() => applying.apply.click(), SETTLED_MS);
  }
  function walk(by) {
    if (model) turn({ row: model.walk(choice.row, by, choice.slowdown), rule: "hand" });
  }
  function show() {
    plot.moving.draw(choice);
    parts.show(model, choice);
    say(applying.apply, `Apply ${model.words.name[choice.row]}`);
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
    for (const part of [place, beside, more]) {
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
    if (message.applied) takeApplied(message.applied);
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
  function takeApplied(/** @type {import("./messages").Applied} */ message) {
    parts.showApplied(message, model?.each ?? "");
    plot?.moving.work(message.job);
    Object.assign(root, { applied: message });
  }
  return {
    greet(message) {
      plot ??= new FrontierPlot(page, place, message.inks, (row) => turn({ row, rule: "hand" }), fit);
      traces.asked = "";
    },
    take,
    on: {
      points: take,
      applied: takeApplied,
      choice: takeChoice,
      traces: (message) => traces.take(message),
      file: (message, [data]) => files.take(message, data).catch((error) => say(note, error.message)),
      axes: ({ relative: on }) => on !== shown.relative && redraw({ relative: on }),
    },
    waits: { late: "the kernel hears of it when the cell ends" },
    state({ gone, greeted, running }) {
      applying.able(gone || (greeted && !running));
      if (gone) for (const part of [code.root, traces.root, files.root]) put(part, { hidden: true }); // the kernel's work
    },
  };
}

export default { render: livePanel(frontier) };
