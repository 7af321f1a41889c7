// @ts-check
// A recurring job: estimated costs, the profile of power limits, costs and savings over recurrences, and the buttons that run it.
/** @import { RecurringGreeting, RecurringNews } from "./messages" */
import { Asking, Slider, button, element, field, labelled, lines, put, row, say } from "./controls.js";
import { livePanel } from "./live.js";
import { Described } from "./plots.js";

const MANY = 10; // recurrences on the second button, unless another number is given
const HIGHEST = 1000;
const ETA = "eta weighs energy (1) against time (0) in the cost eta x energy + (1 - eta) x highest power x time";

/** Buttons that run recurrences. */
class Runs {
  constructor(post) {
    const count = field("workbench-count", "how many recurrences", { type: "number", min: 1, max: HIGHEST, value: MANY });
    this.one = button("run-one", "Run one recurrence", "", () => post({ kind: "run", count: 1 }));
    this.many = button("run-many", "Run", "", () => post({ kind: "run", count: Number(count.value) }));
    this.stop = button("halt", "Stop after this one", "", () => post({ kind: "stop" }));
    this.root = row(this.one, this.many, count, this.stop);
    this.note = element("span", "workbench-faint workbench-note");
  }
  show(/** @type {RecurringGreeting} */ { whyNot }, left) {
    for (const each of [this.one, this.many]) put(each, { disabled: left > 0 || whyNot !== "", title: whyNot });
    put(this.stop, { hidden: left === 0, disabled: left === 1 });
    say(this.note, left ? `${left} run${left > 1 ? "s" : ""} left` : "");
  }
}

function recurringJob({ root, head, post, page }) {
  const headline = element("div", "workbench-headline workbench-next workbench-result");
  const details = element("div", "workbench-details");
  const plane = element("div", "workbench-plots");
  const asking = new Asking((eta, asked) => post({ kind: "eta", eta, asked }));
  const slider = new Slider("workbench-eta", "eta: 0 counts time only, 1 energy only", { min: 0, max: 1, step: 0.01 }, {
    text: (eta) => `eta ${eta}`, changed: (eta) => asking.ask(eta),
  });
  const runs = new Runs(post);
  slider.input.title = ETA;
  root.classList.add("workbench-wide");
  root.append(headline, details, runs.root, runs.note, plane, row(labelled("time", slider.input, element("span", "", "energy"), slider.words)));
  let plots = /** @type {Described | null} */ (null);
  let about = /** @type {RecurringGreeting | null} */ (null);

  function take(/** @type {RecurringNews} */ { left, view, asked }) {
    asking.answered(asked);
    runs.show(about, left);
    if (!view) return;
    say(headline, view.headline);
    put(plane, { role: "group", "aria-label": `costs, power limits and savings: ${view.headline}` });
    lines(details, view.details);
    if (!asking.waiting) slider.show(view.eta ?? slider.input.value, view.objective);
    plots.draw(view.figure);
    Object.assign(root, { workbench: { plots, view, left: () => left } });
  }
  return {
    greet(message) {
      about = message;
      head.show(message.title, message.simulated);
      plots ??= new Described(page, plane);
      asking.forget();
    },
    take,
    waits: { late: "your choice is shown when the running cell ends" },
  };
}

export default { render: livePanel(recurringJob) };
