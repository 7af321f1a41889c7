// Policies over a job log, simulated: what is chosen, how far the runs are, what came of them, one job or node of them.
import { element, livePanel, readTheme } from "./base.js";
import { ClusterPlots } from "./cluster_plots.js";

const SOON_MS = 150; // a slider that moves on is not asked about
const OWN = "policy's own";
const percent = (value) => `${Math.round(100 * value)} %`;
const seconds = (value) => (value === "never" ? "never" : value < 120 ? `${value} s` : value < 7200 ? `${value / 60} min` : `${value / 3600} h`);
const number = (word) => (word === "never" ? word : Number(word));
const SLIDERS = {
  load_threshold: ["utilisation threshold", [null, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.5], percent, "highest sum of the utilisations that jobs on one GPU have alone"],
  max_jobs: ["jobs per GPU", [null, 1, 2, 3, 4, 5, 6], String, "most jobs on one GPU"],
  slack: ["deadlines' slack", [null, 1.1, 1.2, 1.35, 1.5, 2, 3, 5, 10], (value) => `1.05 to ${value} × duration`, "deadlines are drawn between 1.05 and so many times the duration after the submission"],
  sleep_after_s: ["sleep after", [null, 0, 60, 300, 900, 3600, "never"], seconds, "when an empty node goes to standby; policies that are always on stay so"],
};
const SWEEPS = { nodes: "16 28 64", load_threshold: "0.6 0.8 1 1.2", max_jobs: "1 2 3 4", slack: "1.2 1.5 2 3", sleep_after_s: "0 60 300 900" };

/** A slider over a list of values, the first of which leaves it to the policies. */
class Setting {
  constructor(name, post) {
    const [label, values, words, hint] = SLIDERS[name];
    Object.assign(this, { name, values: [...values], told: words, post, hint });
    this.slider = Object.assign(element("input", `workbench-limit workbench-set-${name}`), { type: "range", min: 0, max: values.length - 1, step: 1, value: 0, title: hint });
    this.slider.setAttribute("aria-label", label);
    this.words = element("span", "workbench-faint");
    this.root = element("label", "workbench-cluster-slider", element("span", "", label), this.slider, this.words);
    this.slider.addEventListener("input", () => {
      this.say();
      clearTimeout(this.soon);
      this.soon = setTimeout(() => this.send(), SOON_MS);
    });
  }
  get value() {
    return this.values[Number(this.slider.value)];
  }
  /** Whether it moves anything: a policy that is chosen takes it, and it is not what varies. */
  enable(taken, varies) {
    this.slider.disabled = !taken || varies;
    this.slider.title = varies ? "this varies: its values are above" : taken ? this.hint : "none of the chosen policies takes it";
  }
  send() {
    this.soon = null;
    this.post({ [this.name]: this.value });
  }
  say() {
    const words = this.value === null ? OWN : this.told(this.value);
    this.words.textContent = words;
    this.slider.setAttribute("aria-valuetext", words);
  }
  show(value) {
    if (this.soon) return; // it moves
    if (!this.values.includes(value)) {
      const at = this.values.findIndex((each) => each !== null && (each === "never" || each > value));
      this.values.splice(at < 0 ? this.values.length : at, 0, value);
      this.slider.max = this.values.length - 1;
    }
    this.slider.value = this.values.indexOf(value);
    this.say();
  }
}

/** One job or node: who and where, a picture, facts, and where to go on. */
class Drill {
  constructor(post) {
    this.post = post;
    this.policy = Object.assign(element("select", "workbench-select workbench-drill-policy"), { title: "whose run is looked into" });
    this.policy.setAttribute("aria-label", "policy whose run is looked into");
    this.job = Object.assign(element("input", "workbench-select workbench-drill-job"), { type: "text", placeholder: "job id", size: 26 });
    this.job.setAttribute("aria-label", "id of the job to look into");
    this.notable = element("select", "workbench-select workbench-drill-notable");
    this.notable.setAttribute("aria-label", "jobs that stand out");
    this.node = Object.assign(element("input", "workbench-count workbench-drill-node"), { type: "number", min: 0, value: 0 });
    this.node.setAttribute("aria-label", "number of the node to look into");
    const button = (words, name, work) => {
      const made = element("button", `workbench-button ${name}`, words);
      made.addEventListener("click", work);
      return made;
    };
    const lookAtJob = () => this.job.value.trim() && this.ask("job", this.job.value.trim());
    const lookAtNode = () => this.ask("node", Number(this.node.value));
    this.job.addEventListener("keydown", (event) => event.key === "Enter" && lookAtJob());
    this.node.addEventListener("change", lookAtNode);
    this.notable.addEventListener("change", () => this.notable.value && this.ask("job", this.notable.value));
    this.policy.addEventListener("change", () => {
      this.picked = true;
      this.offer();
      if (this.shown) this.ask(this.shown.kind, this.shown.name);
    });
    this.picture = element("div", "workbench-drill-picture");
    this.picture.addEventListener("click", (event) => {
      const found = event.target.closest("[data-job]");
      if (found) this.ask("job", found.dataset.job);
    });
    this.facts = element("div", "workbench-facts");
    this.further = element("div", "workbench-controls workbench-drill-further");
    this.body = element("div", "", this.picture, this.facts, this.further);
    this.root = element(
      "div", "workbench-drill",
      element("div", "workbench-controls", element("span", "workbench-title", "Look into"), this.policy, element("span", "", "job"), this.job,
        button("Show job", "workbench-do-job", lookAtJob), this.notable, element("span", "", "node"), this.node, button("Show node", "workbench-do-node", lookAtNode)),
      this.body,
    );
    this.shown = null;
  }
  ask(kind, name) {
    this.post({ kind, policy: this.policy.value, name });
  }
  /** Policies and jobs of the results. */
  fill(drawn) {
    this.drawn = drawn;
    const policies = drawn.curves.filter(({ open }) => open).map(({ policy, words }) => [policy, words]);
    this.root.hidden = !policies.length;
    const before = this.policy.value;
    this.policy.replaceChildren(...policies.map(([name, words]) => new Option(words, name)));
    if (this.picked && policies.some(([name]) => name === before)) this.policy.value = before;
    else if (policies.length) this.policy.value = policies.at(-1)[0];
    this.node.max = Math.max(0, drawn.nodeCount - 1);
    this.offer();
  }
  offer() {
    const groups = Object.entries(this.drawn?.curves.find(({ policy }) => policy === this.policy.value)?.notable ?? {}).map(([reason, jobs]) => {
      const group = Object.assign(element("optgroup"), { label: reason });
      group.append(...jobs.map((job) => new Option(job, job)));
      return group;
    });
    this.notable.replaceChildren(new Option("jobs that stand out", ""), ...groups);
  }
  show(drilled) {
    this.shown = drilled;
    this.picked = drilled !== null;
    this.body.hidden = drilled === null;
    if (!drilled) return;
    if ([...this.policy.options].some((option) => option.value === drilled.policy)) this.policy.value = drilled.policy;
    if (drilled.kind === "job") this.job.value = drilled.name;
    else this.node.value = drilled.name;
    this.picture.innerHTML = drilled.picture; // the kernel's own; names of jobs are escaped there
    this.facts.replaceChildren(...drilled.facts.flatMap(([name, words]) => [element("span", "workbench-fact", name), element("span", "", words)]));
    const to = (words, kind, name) => {
      const made = element("button", "workbench-chip", words);
      made.addEventListener("click", () => this.ask(kind, name));
      return made;
    };
    this.further.replaceChildren(
      ...(drilled.jobs.length ? [element("span", "workbench-faint", drilled.kind === "job" ? "longest beside:" : "longest here:")] : []),
      ...drilled.jobs.map(([name, words]) => to(`${name} · ${words}`, "job", name)),
      ...drilled.nodes.map((number) => to(`node ${number}`, "node", number)),
    );
  }
}

function cluster({ root, post }) {
  let asked = 0;
  let heard = 0;
  const send = (message) => {
    asked += 1;
    post({ ...message, asked });
  };
  const set = (settings) => send({ kind: "set", settings });
  const title = element("span", "workbench-title");
  const badge = element("span", "workbench-badge", "simulated");
  const waits = element("span", "workbench-faint workbench-waits");
  const picker = (name, label, changed) => {
    const made = element("select", `workbench-select workbench-set-${name}`);
    made.setAttribute("aria-label", label);
    made.addEventListener("change", () => changed(made.value));
    return made;
  };
  const counter = (name, label, most) => {
    const made = Object.assign(element("input", `workbench-count workbench-set-${name}`), { type: "number", min: 1, max: most });
    made.setAttribute("aria-label", label);
    made.addEventListener("change", () => set({ [name]: Number(made.value) }));
    return made;
  };
  const toggle = (name, words, hint, changed) => {
    const made = Object.assign(element("button", `workbench-chip workbench-toggle-${name}`, words), { title: hint });
    made.addEventListener("click", () => changed(made.getAttribute("aria-pressed") !== "true"));
    return made;
  };
  const log = picker("log", "job log", (value) => set({ log: value }));
  const part = picker("part", "part of the log", (value) => set({ part: value }));
  const jobs = element("span", "workbench-faint workbench-jobs");
  const trimmed = toggle("trimmed", "1 to 8 GPUs, 60 s to 3 days", "leave out other jobs and cut longer ones, as the tables of the docs do", (on) => set({ trimmed: on }));
  const valid = toggle("valid", "only valid rows", "leave out rows that are wrong or too large for the cluster, instead of saying so", (on) => set({ keep_valid: on }));
  const path = Object.assign(element("input", "workbench-select workbench-path"), { type: "text", placeholder: "path of another log", size: 24 });
  path.setAttribute("aria-label", "path of another log");
  const openPath = () => path.value.trim() && send({ kind: "open", path: path.value.trim() });
  path.addEventListener("keydown", (event) => event.key === "Enter" && openPath());
  const open = element("button", "workbench-button workbench-do-open", "Open");
  open.addEventListener("click", openPath);
  const nodes = counter("nodes", "number of nodes", 10000);
  const kind = picker("kind", "node type", (value) => set({ kind: value }));
  const gpus = element("span", "workbench-faint");
  const draws = counter("draws", "draws of what the log does not tell", 50);
  const base = picker("base", "compared with", (value) => set({ policies: [value, ...settings.chosen.filter((name) => name !== value)] }));
  const sweep = picker("sweep", "parameter to vary", (value) => set(value ? { sweep: value, values: SWEEPS[value].split(" ").map(number) } : { sweep: null, values: [] }));
  const values = Object.assign(element("input", "workbench-select workbench-set-values"), { type: "text", size: 16 });
  values.setAttribute("aria-label", "values of the parameter that varies");
  values.addEventListener("change", () => set({ values: values.value.split(/[\s,;]+/).filter(Boolean).map(number) }));
  const policies = element("div", "workbench-controls workbench-policies");
  policies.setAttribute("role", "group");
  policies.setAttribute("aria-label", "policies");
  const sliders = Object.keys(SLIDERS).map((name) => new Setting(name, set));
  const runIt = element("button", "workbench-button workbench-do-run", "Run");
  runIt.addEventListener("click", () => send({ kind: "run" }));
  const cancel = element("button", "workbench-button workbench-do-cancel", "Cancel");
  cancel.addEventListener("click", () => send({ kind: "cancel" }));
  const atOnce = toggle("at-once", "run on every change", "begin anew whenever a setting changes", (on) => send({ kind: "at once", on }));
  const progress = element("span", "workbench-faint workbench-progress");
  const announced = element("span", ""); // for who listens: what runs are doing, not every tenth of a second how far
  announced.setAttribute("role", "status");
  announced.style.cssText = "position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%);white-space:nowrap";
  const stale = element("span", "workbench-stale", "settings have changed since: Run");
  const bars = element("div", "workbench-controls workbench-bars");
  const headline = element("div", "workbench-headline");
  const details = element("div", "workbench-details");
  const legend = element("div", "workbench-legend");
  const place = element("div", "workbench-plots");
  const distribution = picker("distribution", "what is shown of the jobs", (value) => {
    chosen = value;
    send({ kind: "distribution", name: value });
    redraw();
  });
  const head = element("tr");
  const body = element("tbody");
  const table = element("table", "workbench-table", element("thead", "", head), body);
  table.setAttribute("aria-label", "policies side by side");
  const tableBox = element("div", "workbench-table-box", table);
  const drill = new Drill(send);
  const results = element("div", "workbench-results", headline, details, tableBox, legend, place, element("div", "workbench-controls", element("span", "", "of the jobs"), distribution), drill.root);
  const row = (...children) => element("div", "workbench-controls", ...children);
  const note = element("div", "workbench-faint workbench-about");
  root.append(
    element("div", "workbench-head", title, badge, waits), row(element("span", "", "log"), log, part, jobs, trimmed, valid, element("span", "workbench-space"), path, open),
    row(element("span", "", "on"), nodes, kind, gpus, element("span", "", "draws"), draws, element("span", "", "vary"), sweep, values), policies,
    element("div", "workbench-cluster-sliders", ...sliders.map((each) => each.root)),
    row(runIt, cancel, atOnce, element("span", "", "compared with"), base, progress, announced, stale), bars, results, note,
  );
  root.classList.add("workbench-cluster");
  let plots = null;
  let about = null;
  let settings = null;
  let drawn = null;
  let view = new Float32Array();
  let chosen = null;

  const put = (input, value) => {
    if (document.activeElement !== input) input.value = value;
  };
  function options(select, names, value, words = {}) {
    const same = select.options.length === names.length && names.every((name, n) => select.options[n].value === name && select.options[n].textContent === (words[name] ?? name));
    if (!same) select.replaceChildren(...names.map((name) => new Option(words[name] ?? name, name)));
    select.value = value;
  }
  function redraw() {
    if (!drawn) return;
    plots.draw(drawn, view, chosen);
    legend.replaceChildren(...drawn.curves.map(({ policy, words, number }) => {
      const swatch = element("span", "workbench-swatch");
      swatch.style.background = plots.colour(number);
      const chip = element("button", "workbench-chip", swatch, words);
      chip.title = "show or hide";
      chip.setAttribute("aria-pressed", String(!plots.hidden.has(policy)));
      chip.addEventListener("click", () => {
        if (!plots.hidden.delete(policy)) plots.hidden.add(policy);
        redraw();
      });
      return chip;
    }));
  }
  function showSettings(given, forced) {
    settings = given;
    options(log, given.logs, given.log);
    options(part, given.parts, given.part);
    jobs.textContent = given.wrong || `${given.jobs.toLocaleString("en")} jobs`;
    jobs.classList.toggle("workbench-stale", Boolean(given.wrong));
    trimmed.setAttribute("aria-pressed", String(given.trimmed));
    valid.setAttribute("aria-pressed", String(given.keep_valid));
    atOnce.setAttribute("aria-pressed", String(given.atOnce));
    options(kind, given.kinds, given.kind);
    gpus.textContent = `${given.gpus.toLocaleString("en")} GPUs`;
    for (const [input, value] of [[nodes, given.nodes], [draws, given.draws]]) forced ? (input.value = value) : put(input, value);
    options(sweep, ["", ...about.swept], given.sweep ?? "", { "": "nothing", ...about.units });
    values.hidden = !given.sweep;
    put(values, given.values.map((value) => value ?? "never").join(" "));
    const names = Object.fromEntries(given.policies.map(({ name, words }) => [name, words]));
    options(base, given.chosen, given.chosen[0], names);
    const taken = new Set(["slack", ...given.policies.filter(({ name }) => given.chosen.includes(name)).flatMap(({ takes }) => takes)]);
    for (const each of sliders) {
      each.show(given[each.name]);
      each.enable(taken.has(each.name), given.sweep === each.name);
    }
    nodes.disabled = given.sweep === "nodes";
    if (policies.children.length !== given.policies.length) {
      policies.replaceChildren(...given.policies.map(({ name }) => {
        const chip = element("button", "workbench-chip");
        chip.dataset.policy = name;
        chip.addEventListener("click", () => {
          const without = settings.chosen.filter((other) => other !== name);
          set({ policies: without.length < settings.chosen.length ? without : [...settings.chosen, name] });
        });
        return chip;
      }));
    }
    given.policies.forEach(({ name, words, takes }, n) => {
      const chip = policies.children[n];
      chip.textContent = words;
      chip.title = takes.length ? `takes the sliders: ${takes.map((each) => SLIDERS[each][0]).join(", ")}` : "takes none of the sliders but the slack";
      chip.setAttribute("aria-pressed", String(given.chosen.includes(name)));
    });
  }
  function showRun(run) {
    const running = run.state === "running";
    runIt.textContent = running ? "Run anew" : "Run";
    cancel.disabled = !running;
    progress.textContent = run.words;
    if (run.state !== progress.dataset.state) announced.textContent = run.words;
    progress.dataset.state = run.state;
    stale.hidden = !run.stale;
    bars.hidden = !running;
    if (bars.children.length !== run.each.length || run.each.some(({ policy }, n) => bars.children[n].dataset.policy !== policy)) {
      bars.replaceChildren(...run.each.map(({ policy }) => {
        const bar = Object.assign(element("progress", "workbench-bar"), { max: 1 });
        const words = settings.policies.find(({ name }) => name === policy)?.words ?? policy;
        bar.setAttribute("aria-label", `progress of ${words}`);
        const made = element("label", "workbench-control workbench-one-bar", element("span", "workbench-faint", words), bar);
        made.dataset.policy = policy;
        return made;
      }));
    }
    run.each.forEach(({ share }, n) => (bars.children[n].querySelector("progress").value = share));
  }
  function showResults() {
    results.hidden = !drawn.lines.length;
    headline.textContent = drawn.headline;
    details.replaceChildren(...drawn.details.map((sentence) => element("div", "", sentence)));
    note.replaceChildren(...drawn.about.map((sentence) => element("div", "", sentence)));
    const numbered = new Map();
    body.replaceChildren(...drawn.lines.map((line) => {
      if (!numbered.has(line.policy)) numbered.set(line.policy, numbered.size + 1);
      const swatch = element("span", "workbench-swatch");
      swatch.style.background = plots.colour(line.number);
      const made = element("tr", "", element("td", "", `${numbered.get(line.policy)}. `, swatch, line.cells[0]), ...line.cells.slice(1).map((cell) => element("td", "", cell)));
      made.dataset.policy = line.policy;
      return made;
    }));
    drill.fill(drawn);
    redraw();
  }
  function take(message, buffers) {
    title.textContent = message.title.replace(/ ?\(simulated\)/g, "");
    heard = message.asked ?? heard;
    showSettings(message.settings, message.asked !== undefined && message.asked !== null);
    showRun(message.run);
    if (message.drawn) {
      const bytes = buffers[0];
      ({ drawn } = message);
      view = new Float32Array(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength));
      if (!drawn.lines.length) drill.show(null);
      showResults();
    }
    root.workbench = { plots, settings, run: message.run, drawn, drill, asked: () => asked, heard: () => heard, hidden: () => [...plots.hidden] };
  }
  return {
    greeting(message, buffers, Bokeh) {
      about = message;
      if (!head.children.length) {
        head.append(...message.heads.map(([name, hint]) => Object.assign(element("th", "", name), { scope: "col", title: hint })));
        options(distribution, Object.keys(message.distributions), Object.keys(message.distributions)[0], Object.fromEntries(Object.entries(message.distributions).map(([name, [words]]) => [name, words])));
      }
      chosen ??= message.distribution;
      distribution.value = chosen;
      plots ??= new ClusterPlots(Bokeh, place, readTheme(message.theme), message);
      heard = asked; // what was asked before is answered by this
      take(message, buffers);
      drill.show(message.drilled);
    },
    message(message, buffers) {
      if (message.kind === "drilled") drill.show(message.drilled);
      else if (message.kind === "news") take(message, buffers);
    },
    recolour() {
      plots?.recolour(readTheme(about.theme));
    },
    state({ running, queued, greeted, gone }) {
      runIt.disabled = !running;
      waits.textContent = gone ? "" : !greeted ? "loading" : !running ? "this panel has ended" : queued ? "what you choose is done when the kernel has finished its cell" : "";
    },
    dispose() {
      plots?.dispose();
    },
  };
}

export default { render: livePanel(cluster) };
