// @ts-check
// Policies over a job log, simulated: what is chosen, how far the runs are, what came of them, one job or node of them.
/** @import { ClusterChosen, ClusterDrawn, ClusterGreeting, ClusterNews, ClusterRun } from "./messages" */
import { Drill } from "./cluster_drill.js";
import { ClusterPlots } from "./cluster_plots.js";
import { ClusterSettings } from "./cluster_settings.js";
import { Head, button, chip, element, lines, mark, offer, picker, put, row, swatch, toggle } from "./controls.js";
import { floats } from "./formats.js";
import { livePanel } from "./live.js";

const LATE = "what you choose is done when the kernel has finished its cell";

/** How far the runs are, and what begins and ends them. */
class Runs {
  constructor(send, base) {
    this.start = button("do-run", "Run", "", () => send({ kind: "run" }));
    this.cancel = button("do-cancel", "Cancel", "", () => send({ kind: "cancel" }));
    this.atOnce = toggle("at-once", "run on every change", "begin anew whenever a setting changes", (on) => send({ kind: "at once", on }));
    this.progress = element("span", "workbench-faint workbench-progress");
    this.announced = element("span", "workbench-announced"); // for who listens: what runs are doing, not every tenth of a second how far
    this.announced.setAttribute("role", "status");
    this.stale = element("span", "workbench-stale", "settings have changed since: Run");
    this.bars = row();
    this.bars.classList.add("workbench-bars");
    this.root = row(this.start, this.cancel, this.atOnce, element("span", "", "compared with"), base, this.progress, this.announced, this.stale);
  }
  show(/** @type {ClusterRun} */ run, /** @type {ClusterChosen} */ settings) {
    const running = run.state === "running";
    mark(this.atOnce, "aria-pressed", settings.atOnce);
    put(this.start, { textContent: running ? "Run anew" : "Run" });
    put(this.cancel, { disabled: !running });
    put(this.progress, { textContent: run.words });
    if (run.state !== this.progress.dataset.state) this.announced.textContent = run.words;
    put(this.progress.dataset, { state: run.state });
    put(this.stale, { hidden: !run.stale });
    put(this.bars, { hidden: !running });
    const bars = /** @type {HTMLElement[]} */ ([...this.bars.children]);
    if (bars.length !== run.each.length || run.each.some(({ policy }, n) => bars[n].dataset.policy !== policy)) {
      this.bars.replaceChildren(...run.each.map(({ policy }) => this.bar(policy, settings.policies.find(({ name }) => name === policy)?.words ?? policy)));
    }
    run.each.forEach(({ share }, n) => put(this.bars.children[n].querySelector("progress"), { value: share }));
  }
  bar(policy, words) {
    const bar = Object.assign(element("progress", "workbench-bar"), { max: 1 });
    bar.setAttribute("aria-label", `progress of ${words}`);
    const made = element("label", "workbench-control workbench-one-bar", element("span", "workbench-faint", words), bar);
    made.dataset.policy = policy;
    return made;
  }
}

/** What came of the runs: words, a table, plots, one job or node. */
class Results {
  constructor(send) {
    this.headline = element("div", "workbench-headline");
    this.details = element("div", "workbench-details");
    this.legend = element("div", "workbench-legend");
    this.place = element("div", "workbench-plots");
    this.note = element("div", "workbench-faint workbench-about");
    this.distribution = picker("workbench-select workbench-set-distribution", "what is shown of the jobs", (name) => {
      this.chosen = name;
      send({ kind: "distribution", name });
      this.draw();
    });
    this.head = element("tr");
    this.body = element("tbody");
    const table = element("table", "workbench-table", element("thead", "", this.head), this.body);
    table.setAttribute("aria-label", "policies side by side");
    this.drill = new Drill(send);
    this.root = element(
      "div", "workbench-results", this.headline, this.details, element("div", "workbench-table-box", table), this.legend, this.place,
      row(element("span", "", "of the jobs"), this.distribution), this.drill.root,
    );
    this.plots = /** @type {ClusterPlots | null} */ (null);
    this.drawn = /** @type {ClusterDrawn | null} */ (null);
    this.chosen = /** @type {string | null} */ (null);
  }
  equip(Bokeh, colours, /** @type {ClusterGreeting} */ about) {
    if (!this.head.children.length) this.head.append(...about.heads.map(([name, title]) => Object.assign(element("th", "", name), { scope: "col", title })));
    offer(this.distribution, Object.entries(about.distributions).map(([name, [words]]) => [name, words]));
    this.chosen ??= about.distribution;
    this.distribution.value = this.chosen;
    this.plots ??= new ClusterPlots(Bokeh, this.place, colours, about);
  }
  show(/** @type {ClusterDrawn} */ drawn, view) {
    this.drawn = drawn;
    this.view = view;
    if (!drawn.lines.length) this.drill.show(null);
    this.root.hidden = !drawn.lines.length;
    put(this.headline, { textContent: drawn.headline });
    lines(this.details, drawn.details);
    lines(this.note, drawn.about);
    const numbered = new Map();
    this.body.replaceChildren(...drawn.lines.map((line) => {
      if (!numbered.has(line.policy)) numbered.set(line.policy, numbered.size + 1);
      const [first, ...rest] = line.cells;
      const name = element("td", "", `${numbered.get(line.policy)}. `, swatch(this.plots.colour(line.number)), first);
      const made = element("tr", "", name, ...rest.map((cell) => element("td", "", cell)));
      made.dataset.policy = line.policy;
      return made;
    }));
    this.drill.fill(drawn);
    this.draw();
  }
  draw() {
    const { plots, drawn } = this;
    if (!drawn) return;
    plots.draw(drawn, this.view, this.chosen);
    this.legend.replaceChildren(...drawn.curves.map(({ policy, words, number }) => {
      const made = chip(words, !plots.hidden.has(policy), () => {
        if (!plots.hidden.delete(policy)) plots.hidden.add(policy);
        this.draw();
      }, swatch(plots.colour(number)));
      made.title = "show or hide";
      return made;
    }));
  }
}

function cluster({ root, post }) {
  let asked = 0;
  let heard = 0;
  const send = (message) => {
    asked += 1;
    post({ ...message, asked });
  };
  const head = new Head();
  const settings = new ClusterSettings(send);
  const runs = new Runs(send, settings.base);
  const results = new Results(send);
  root.append(head.root, ...settings.parts, runs.root, runs.bars, results.root, results.note);
  root.classList.add("workbench-cluster");
  let about = /** @type {ClusterGreeting | null} */ (null);

  function take(/** @type {ClusterNews} */ message, buffers) {
    head.show(message.title, true);
    heard = message.asked ?? heard;
    settings.show(message.settings, message.asked !== undefined && message.asked !== null, about);
    runs.show(message.run, message.settings);
    if (message.drawn) results.show(message.drawn, floats(buffers));
    const { plots, drawn, drill } = results;
    const seen = { plots, settings: message.settings, run: message.run, drawn, drill, asked: () => asked, heard: () => heard, hidden: () => [...plots.hidden] };
    Object.assign(root, { workbench: seen });
  }
  return {
    figures: () => [results.plots?.figure],
    greeting(message, buffers, { Bokeh, colours }) {
      about = message;
      results.equip(Bokeh, colours(), message);
      heard = asked; // what was asked before is answered by this
      take(message, buffers);
      results.drill.show(message.drilled);
    },
    on: { news: take, drilled: ({ drilled }) => results.drill.show(drilled) },
    state(state) {
      const { running, greeted, gone } = state;
      put(runs.start, { disabled: !running });
      head.state({ ...state, queued: state.queued || (greeted && !running) }, running ? LATE : "this panel has ended");
      if (gone) put(head.waits, { textContent: "" });
    },
  };
}

export default { render: livePanel(cluster) };
