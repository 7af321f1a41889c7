// @ts-check
// The energy-time frontier: points, a choice that steps along it, Apply and Undo, the saving; under "more" a slowdown limit, eta, a table, files.
/** @import { Applied, FrontierChoice, FrontierPoints, FrontierView } from "./messages" */
import { Applying } from "./applying.js";
import { Asking, Code, Slider, button, element, folded, labelled, lines, offer, picker, press, put, row, say, slowdownSlider, space, toggle, walks } from "./controls.js";
import { floats } from "./formats.js";
import { Files } from "./frontier_parts.js";
import { FrontierPlot } from "./frontier_plot.js";
import { FrontierTable } from "./frontier_table.js";
import { livePanel } from "./live.js";

const HIGHEST_BOUND = 100; // per cent, above which the slider shows any
const SETTLED_MS = 400; // without a further step, before a step is applied automatically
const ETA = "eta weighs energy (1) against time (0) in the cost eta x energy + (1 - eta) x highest power x time";
const KNEE = "the knee: the point of the frontier beyond which a little less energy takes much more time";
const FRONTIER = "the frontier: configurations that no other beats in both time and energy";

/** The controls of the choice: three sliders, two buttons for a step, three for notable points. `take` gets each change. */
class Choosing {
  constructor(take, walk) {
    const steps = "step along the frontier, from fastest to least energy";
    this.step = new Slider("workbench-step-slider", steps, { min: 0, max: 0, step: 1 }, { changed: (place) => take({ row: this.view.front[place], rule: "hand" }) });
    const bound = (slowdown) => take({ slowdown, rule: this.rule === "eta" ? "eta" : "slowdown" });
    this.bound = slowdownSlider("workbench-bound", "slowdown limit relative to the default in per cent", HIGHEST_BOUND, bound);
    this.eta = new Slider("workbench-eta", "eta: 0 counts time only, 1 energy only", { min: 0, max: 1, step: 0.01, title: ETA }, {
      text: (eta) => String(Number(eta.toFixed(2))), changed: (eta) => take({ eta, rule: "eta" }),
    });
    this.back = button("do-back", "\u2039", "one step faster (left arrow)", () => walk(-1));
    this.on = button("do-on", "\u203a", "one step to less energy (right arrow)", () => walk(1));
    put(this.back, { "aria-label": "one step faster" });
    put(this.on, { "aria-label": "one step to less energy" });
    this.knee = toggle("knee", "knee", KNEE, () => take({ row: this.view.knee, rule: "hand" }));
    this.best = toggle("optimum", "best for eta", "lowest cost at this eta within the slowdown limit (diamond)", () => take({ rule: "eta" }));
    this.least = toggle("least", "least energy", "least energy within the slowdown limit", () => take({ rule: "slowdown" }));
    const between = (from, { input, words }, to, ...more) => {
      const ends = [element("span", "workbench-slider-from", from), element("span", "workbench-slider-to", to)];
      return element("label", "workbench-control workbench-slider", ends[0], input, ends[1], words, ...more);
    };
    this.steps = element("div", "workbench-sliders", { title: FRONTIER }, between("faster", this.step, "less energy", this.back, this.on));
    this.sliders = element("div", "workbench-sliders", between("slowdown limit", this.bound, ""), between("eta: time", this.eta, "energy"));
    this.points = row(this.knee, this.best, this.least);
  }
  fit(/** @type {FrontierView} */ view, slowdown) {
    this.view = view;
    this.bound.input.step = view.slowest < 10 ? "0.1" : "0.5";
    this.bound.input.max = String(Math.min(HIGHEST_BOUND, Math.max(1, Math.ceil(1.05 * view.slowest), Math.ceil(slowdown ?? 0) + 1)));
  }
  show(/** @type {FrontierChoice} */ { rule, eta, slowdown, place, allowed, on, headline, ...marks }) {
    this.rule = rule;
    const count = this.view.front.length;
    put(this.step.input, { max: String(allowed - 1), disabled: allowed < 2 });
    const bounded = allowed < count ? `, ${allowed} allowed` : "";
    this.step.show(place, on ? `${place + 1} of ${count}${bounded}` : "dominated", headline);
    put(this.back, { disabled: place <= 0 });
    put(this.on, { disabled: place >= allowed - 1 });
    this.eta.show(eta);
    this.bound.show(slowdown);
    for (const name of ["knee", "best", "least"]) press(this[name], marks[name]);
  }
}

/** Filters of the points. */
class Filters {
  constructor(post) {
    const select = (change) => post({ kind: "select", ...change });
    this.selects = Object.entries({ job: "job", gpu: "GPU", batch_size: "batch size" }).map(([name, words]) => {
      const made = picker("workbench-select", words, (value) => select({ [name]: this.about.options[name].find((each) => String(each) === value) ?? "all" }));
      return { name, made, label: labelled(words, made) };
    });
    this.root = row(...this.selects.map(({ label }) => label));
    this.predicted = toggle("predicted", "predictions", "include predictions", () => select({ predicted: !this.about.filters.predicted }));
  }
  show(/** @type {FrontierPoints} */ message) {
    this.about = message;
    const { options, filters } = message;
    press(this.predicted, filters.predicted);
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
    this.follow = toggle("follow", "apply each step", "set the GPU to each step where the slider stops", (on) => press(this.follow, on));
    const { apply, undo, gpu, done } = this.applying;
    this.apply = element("div", "", { hidden: true }, row(apply, undo, gpu, this.follow, done), ...watch); // until there is a GPU
  }
  showApplied(/** @type {Applied} */ message) {
    const { view, job } = message;
    this.applying.show(message);
    put(this.apply, { hidden: !view });
    if (view) say(this.now, [view.status, job?.text].filter(Boolean).join(" · "));
  }
  show(/** @type {FrontierChoice} */ choice) {
    const { headline, details, name } = choice;
    say(this.headline, headline);
    lines(this.details, details);
    put(this.place, { "aria-label": `energy against time: ${headline}; arrow keys step along the frontier` });
    say(this.applying.apply, `Apply ${name}`);
    this.choosing.show(choice);
    this.table.select(choice);
  }
}

function frontier({ root, head, post, page }) {
  const parts = new Parts(turn, walk, post, page, (kind, more) => post({ kind, ...wanted(), ...more }));
  const { note, place, choosing, filters, code, files, table, applying } = parts;
  const axes = (change) => post({ kind: "axes", ...shown, ...change });
  const relative = toggle("relative", "relative", "axes in per cent of the default", (on) => axes({ relative: on }));
  const fit = () => axes({ whole: !shown.whole });
  const whole = toggle("whole", "all points", "show all points, not only those near the frontier", fit);
  const every = toggle("every", "all in the table", "list all configurations, not only those on the frontier", (all) => {
    list(all);
    table.reveal();
  });
  const rules = row(...choosing.points.children, space(), filters.predicted, relative, whole);
  const listed = row(every, parts.counts);
  const more = folded("more: slowdown limit and eta, table, files", choosing.sliders, rules, table.root, listed, code.root, files.root);
  const beside = element("div", "", choosing.steps, parts.apply);
  const columns = element("div", "workbench-columns", place, beside);
  root.append(parts.headline, parts.details, note, filters.root, columns, more);
  root.classList.add("workbench-frontier");
  let plot = /** @type {FrontierPlot | null} */ (null);
  let view = /** @type {FrontierView | null} */ (null);
  let choice = /** @type {FrontierChoice} */ (/** @type {any} */ ({}));
  const shown = { relative: false, whole: false };
  // A step is drawn immediately, with the words that came with the points; anything else when the kernel answers.
  const wanted = () => ({ version: choice.version, row: choice.row, rule: choice.rule, eta: choice.eta, slowdown: choice.slowdown });
  const asking = new Asking((_, asked) => post({ kind: "choose", ...wanted(), asked }));
  let steps = /** @type {number[]} */ ([]); // steps since the choice that the kernel was asked for
  let settled = 0;

  function turn(change) {
    if (!view) return;
    [choice, steps] = [{ ...choice, ...change }, []];
    const place = change.row === undefined ? -1 : view.front.indexOf(change.row);
    if (place >= 0) stepped(place);
    say(note, "");
    asking.ask(choice);
    clearTimeout(settled);
    if (parts.follow.getAttribute("aria-pressed") === "true") settled = window.setTimeout(() => applying.apply.click(), SETTLED_MS);
  }
  function stepped(place) {
    choice = { ...choice, .../** @type {FrontierView} */ (view).steps[place], place: Math.min(place, choice.allowed - 1), on: true };
    plot.ring(choice.row);
    show();
  }
  function walk(by) {
    if (asking.waiting && choice.rule !== "hand") steps.push(by);
    else if (view) turn({ row: view.front[Math.max(0, Math.min(choice.allowed - 1, choice.place + by))], rule: "hand" });
  }
  function show() {
    parts.show(choice);
    Object.assign(root, { workbench: { plot, view, choice, table, heard: () => !asking.waiting } });
  }
  function list(all) {
    press(every, all);
    if (view) table.show(view.table, all ? [...view.table[0].values.keys()] : view.front, choice);
  }
  function take(/** @type {FrontierPoints} */ message, buffers) {
    head.show(message.title, message.simulated);
    filters.show(message);
    ({ view, relative: shown.relative, whole: shown.whole } = message);
    for (const part of [place, beside, more]) put(part, { hidden: !view });
    say(parts.counts, view ? message.said : "");
    if (!view || !message.choice) {
      say(parts.headline, message.said);
      return;
    }
    const newer = asking.waiting && choice.version === message.choice.version; // than the kernel knew when it sent this
    choosing.fit(view, (newer ? choice : message.choice).slowdown);
    put(relative, { disabled: !view.compared, "aria-pressed": shown.relative && view.compared });
    press(whole, shown.whole);
    plot.draw(view.figure, floats(buffers));
    if (!newer) {
      asking.forget(); // it was about other points
      steps = [];
      choice = message.choice;
    }
    list(every.getAttribute("aria-pressed") === "true");
    if (newer) {
      plot.moved = message.choice.moved;
      plot.ring(choice.row);
      show();
    } else adopt(message.choice);
    if (message.applied) takeApplied(message.applied);
  }
  function adopt(/** @type {FrontierChoice} */ message) {
    choice = message;
    say(code.code, message.python);
    say(note, message.note);
    plot.move(message.moved);
    show();
  }
  function takeChoice(/** @type {FrontierChoice} */ message) {
    asking.answered(message.asked);
    if (asking.waiting || !view || message.version !== choice.version) return; // it has moved on meanwhile
    adopt(message);
    for (const by of steps.splice(0)) walk(by);
  }
  function takeApplied(/** @type {Applied} */ message) {
    parts.showApplied(message);
    plot.job = message.job?.layers ?? [];
    if (view) plot.move(plot.moved);
    Object.assign(root, { applied: message });
  }
  return {
    greet() {
      plot ??= new FrontierPlot(page, place, (row) => turn({ row, rule: "hand" }), fit);
    },
    take,
    on: {
      points: take,
      applied: takeApplied,
      choice: takeChoice,
      file: (message, [data]) => files.take(message, data).catch((error) => say(note, error.message)),
    },
    waits: { late: "the kernel takes the choice when the cell ends" },
    state({ gone, greeted, running }) {
      applying.able(gone || (greeted && !running));
      if (gone) for (const part of [code.root, files.root]) put(part, { hidden: true }); // the kernel's work
    },
  };
}

export default { render: livePanel(frontier) };
