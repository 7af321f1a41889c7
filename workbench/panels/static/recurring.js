// @ts-check
// A recurring job: believed costs, the profile of power limits, costs and savings over recurrences, and what can be done with them.
/** @import { RecurringGreeting, RecurringNews, RecurringView } from "./messages" */
import { Asking, Head, button, element, field, labelled, lines, put, range, row, save, space } from "./controls.js";
import { livePanel } from "./live.js";
import { RecurringPlots } from "./recurring_plots.js";

const MANY = 10; // recurrences on the second button, unless another number is given
const HIGHEST = 1000;

/** The slider between time and energy. */
class Eta {
  constructor(post) {
    this.asking = new Asking((eta, asked) => post({ kind: "eta", eta, asked }));
    this.slider = range("workbench-eta", "eta: 0 counts time only, 1 energy only", { min: 0, max: 1, step: 0.01 });
    this.words = element("span", "workbench-faint workbench-eta-words");
    this.root = labelled("time", this.slider, element("span", "", "energy"), this.words);
    this.slider.addEventListener("input", () => {
      const eta = Number(this.slider.value);
      put(this.words, { textContent: `eta ${eta}` });
      this.asking.ask(eta);
    });
  }
  show(/** @type {RecurringView} */ { eta, objective }) {
    if (this.asking.waiting) return;
    if (eta !== null) this.slider.value = String(eta);
    put(this.words, { textContent: objective });
  }
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
    const file = Object.assign(element("input", "workbench-file"), { type: "file", accept: ".csv,text/csv", hidden: true });
    const read = button("import", "Import CSV", "", () => file.click());
    file.addEventListener("change", async () => {
      if (file.files?.length) post({ kind: "import", text: await file.files[0].text() });
      file.value = "";
    });
    this.root = row(this.one, this.many, count, this.stop, this.rewind, space(), read, file, write);
    this.note = element("span", "workbench-faint workbench-note");
  }
  name(replayed) {
    put(this.one, { textContent: replayed ? "Play one recurrence" : "Run one recurrence" });
    put(this.many, { textContent: replayed ? "Play" : "Run" });
    put(this.rewind, { hidden: !replayed });
  }
  show(left, whyNot, note) {
    for (const each of [this.one, this.many]) put(each, { disabled: left > 0 || whyNot !== "", title: whyNot });
    put(this.stop, { hidden: left === 0, disabled: left === 1 });
    put(this.note, { textContent: left > 1 ? `${left} recurrences to go` : left === 1 ? "one recurrence to go" : note });
  }
}

function recurringJob({ root, post }) {
  const head = new Head();
  const headline = element("div", "workbench-headline workbench-next");
  const details = element("div", "workbench-details");
  const place = element("div", "workbench-plots");
  const eta = new Eta(post);
  const runs = new Runs(post);
  root.append(head.root, headline, details, place, row(eta.root), runs.root, runs.note);
  let plots = /** @type {RecurringPlots | null} */ (null);
  let about = /** @type {RecurringGreeting | null} */ (null);

  function take(/** @type {RecurringNews} */ { left, note, view }) {
    runs.show(left, about.whyNot, note);
    if (!view) return;
    put(headline, { textContent: view.headline });
    lines(details, view.details);
    eta.show(view);
    plots.draw(view);
    Object.assign(root, { workbench: { plots, view, eta, left: () => left } });
  }
  return {
    figures: () => [plots?.figure],
    greeting(message, buffers, { Bokeh, colours }) {
      about = message;
      head.show(message.title, message.simulated);
      runs.name(message.replayed);
      plots ??= new RecurringPlots(Bokeh, place, colours(), message.colours);
      eta.asking.forget(); // what was asked before is answered by this
      take(message);
    },
    on: {
      csv: ({ name, text }) => save(name, text, "text/csv"),
      news(message) {
        if (message.asked !== undefined) eta.asking.answered(message.asked);
        take(message);
      },
    },
    state: (state) => head.state(state, "what you choose is shown when the kernel has finished its cell"),
  };
}

export default { render: livePanel(recurringJob) };
