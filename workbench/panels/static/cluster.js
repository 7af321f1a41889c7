// @ts-check
// Policies over a job log, simulated: the settings, the progress of the runs, their results, one job or node.
/** @import { ClusterChosen, ClusterDrawn, ClusterGreeting, ClusterNews, ClusterRun } from "./messages" */
import { Drill } from "./cluster_drill.js";
import { ClusterSettings } from "./cluster_settings.js";
import { Legend, button, cells, element, folded, labelled, lines, offer, picker, press, put, refill, row, say, swatch, table, toggle } from "./controls.js";
import { livePanel } from "./live.js";
import { Described } from "./plots.js";

/** Progress of the runs, and the buttons that start and cancel them. */
class Runs {
  constructor(send, base) {
    this.start = button("do-run", "Run", "", () => send({ kind: "run" }), "workbench-primary workbench-button");
    this.cancel = button("do-cancel", "Cancel", "", () => send({ kind: "cancel" }));
    this.atOnce = toggle("at-once", "run on every change", "restart the runs whenever a setting changes", (on) => send({ kind: "each change", on }));
    this.progress = element("span", "workbench-faint workbench-progress");
    this.announced = element("span", "workbench-announced", { role: "status" }); // for screen readers: the state of the runs, not the progress every tenth of a second
    this.stale = element("span", "workbench-stale", "settings changed: press Run");
    this.bars = element("div", "workbench-controls workbench-bars");
    this.preset = picker("workbench-select workbench-preset", "which policies", (name) => name && send({ kind: "set", settings: { policies: this.presets[name] } }));
    const compare = labelled("compare", this.preset);
    this.root = row(compare, element("span", "", "with"), base, this.start, this.cancel, this.progress, this.announced, this.stale);
  }
  show(/** @type {ClusterRun} */ run, /** @type {ClusterChosen} */ settings) {
    const running = run.state === "running";
    this.presets = settings.presets;
    const chosen = Object.entries(this.presets).find(([, names]) => names.length === settings.chosen.length && names.every((name) => settings.chosen.includes(name)));
    const own = /** @type {[string, string]} */ (["", `${settings.chosen.length} policies of my own`]);
    offer(this.preset, [...Object.keys(this.presets).map((name) => [name, name]), ...(chosen ? [] : [own])], chosen?.[0] ?? "");
    press(this.atOnce, settings.atOnce);
    say(this.start, running ? "Run again" : "Run");
    put(this.cancel, { disabled: !running });
    say(this.progress, run.words);
    if (run.state !== this.state) this.announced.textContent = run.words;
    this.state = run.state;
    put(this.stale, { hidden: !run.stale });
    put(this.bars, { hidden: !running });
    const policies = run.each.map(({ policy }) => settings.policies.find(({ name }) => name === policy)?.words ?? policy);
    refill(this.bars, policies, (words) => {
      const bar = element("progress", "workbench-bar", { max: 1, "aria-label": `progress of ${words}` });
      return element("label", "workbench-control workbench-one-bar", element("span", "workbench-faint", words), bar);
    });
    this.bars.querySelectorAll("progress").forEach((bar, n) => put(bar, { value: run.each[n].share }));
  }
}

/** Results of the runs: words, a table, plots, one job or node. */
class Results {
  constructor(send) {
    this.headline = element("div", "workbench-headline workbench-result");
    this.details = element("div", "workbench-details");
    this.legend = new Legend(() => this.draw());
    this.place = element("div", "workbench-plots");
    this.note = element("div", "workbench-faint workbench-about");
    this.distribution = picker("workbench-select workbench-set-distribution", "distribution over the jobs", (name) => {
      this.chosen = name;
      send({ kind: "distribution", name });
      this.draw();
    });
    this.table = table("policies side by side");
    this.drill = new Drill(send);
    this.root = element(
      "div", "workbench-results", element("div", "workbench-table-box", this.table.root, { tabIndex: 0, role: "region", "aria-label": "policies side by side" }),
      this.legend.root, this.place,
      row(element("span", "", "over the jobs"), this.distribution), this.drill.root,
    );
    this.answer = element("div", "", this.headline, this.details);
    this.plots = /** @type {Described | null} */ (null);
    this.drawn = /** @type {ClusterDrawn | null} */ (null);
    this.chosen = /** @type {string | null} */ (null);
  }
  equip(page, /** @type {ClusterGreeting} */ about) {
    this.table.head.replaceChildren(...about.heads.map(([name, title]) => element("th", "", name, { scope: "col", title })));
    this.chosen ??= about.distribution;
    offer(this.distribution, about.distributions, this.chosen);
    this.about = about;
    this.plots ??= new Described(page, this.place);
  }
  show(/** @type {ClusterDrawn} */ drawn) {
    this.drawn = drawn;
    if (!drawn.lines.length) this.drill.show(null);
    this.root.hidden = !drawn.lines.length;
    say(this.headline, drawn.headline);
    put(this.place, { role: "group", "aria-label": `plots: ${drawn.headline}; the table above has the numbers` });
    lines(this.details, drawn.details);
    lines(this.note, drawn.about);
    const [policies, { palette }] = [[...new Set(drawn.lines.map(({ policy }) => policy))], this.about];
    this.table.body.replaceChildren(...drawn.lines.map(({ policy, number, cells: [first, ...rest] }) => {
      const name = [`${policies.indexOf(policy) + 1}. `, swatch(palette[number % palette.length]), first];
      return element("tr", "", ...cells([name, ...rest]));
    }));
    this.legend.show(drawn.curves.map(({ policy, text, ink }) => [policy, ink, [text], "show or hide"]));
    this.drill.fill(drawn);
    this.draw();
  }
  /** Draw what the kernel describes: one distribution of the jobs, and no lines of hidden policies. */
  draw() {
    if (!this.drawn) return;
    const { figure, curves } = this.drawn;
    if (!figure.length) return this.plots.draw([]);
    const look = ({ ink, dashes }) => `${ink} ${dashes}`;
    const hidden = new Set(curves.filter(({ policy }) => this.legend.hidden.has(policy)).map(look));
    const shown = (frame) => ({ ...frame, layers: frame.layers.filter((layer) => !hidden.has(look(layer))) });
    const [[nodes, power], [bars, ...shares], sweep] = figure;
    const distribution = shares[this.about.distributions.findIndex(([name]) => name === this.chosen)];
    this.plots.draw([[bars, shown(distribution)], [nodes, power].map(shown), sweep]);
  }
}

function cluster({ root, head, post, page }) {
  let asked = 0;
  let heard = 0;
  const send = (message) => {
    asked += 1;
    post({ ...message, asked });
  };
  const settings = new ClusterSettings(send);
  const runs = new Runs(send, settings.base);
  const results = new Results(send);
  const more = folded("settings: job log, nodes, policies", ...settings.parts, row(runs.atOnce));
  root.append(results.answer, runs.root, runs.bars, results.root, more, results.note);
  root.classList.add("workbench-cluster", "workbench-wide");
  let about = /** @type {ClusterGreeting | null} */ (null);

  function take(/** @type {ClusterNews | ClusterGreeting} */ message) {
    head.show(message.title, true);
    heard = message.asked ?? heard;
    settings.show(message.settings, message.asked === asked, heard < asked, about);
    runs.show(message.run, message.settings);
    if (message.drawn) results.show(message.drawn);
    if ("drilled" in message) results.drill.show(message.drilled);
    const { plots, drawn, drill, legend } = results;
    const seen = { plots, settings: message.settings, run: message.run, drawn, drill, asked: () => asked, heard: () => heard, hidden: () => [...legend.hidden] };
    Object.assign(root, { workbench: seen });
  }
  return {
    greet(message) {
      about = message;
      results.equip(page, message);
      heard = asked; // what was asked before is answered by this
    },
    take,
    on: { drilled: ({ drilled }) => results.drill.show(drilled) },
    waits: { ended: "this panel has ended" },
    state: ({ running }) => put(runs.start, { disabled: !running }),
  };
}

export default { render: livePanel(cluster) };
