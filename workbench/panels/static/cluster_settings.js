// @ts-check
// The settings of a comparison of policies: the log, the cluster, the parameter that varies, the policies and their parameters.
/** @import { ClusterChosen, ClusterGreeting } from "./messages" */
import { Slider, button, chip, element, field, offer, picker, press, put, refill, row, say, space, toggle } from "./controls.js";
import { percent } from "./formats.js";

const SOON_MS = 150; // a slider that still moves sends nothing
const OWN = "policy default";
const NEVER = "never";
const SLACK = "deadlines are generated between 1.05 and this many times the duration after the submission";
const seconds = (value) => (value === NEVER ? NEVER : value < 120 ? `${value} s` : value < 7200 ? `${value / 60} min` : `${value / 3600} h`);
const number = (word) => (word === NEVER ? word : Number(word));
/** @type {Record<string, [string, any[], (value: any) => string, string]>} */
const SLIDERS = {
  load_threshold: ["utilisation threshold", [null, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.5], percent,
    "highest sum of the solo utilisations of the jobs on one GPU"],
  max_jobs: ["jobs per GPU", [null, 1, 2, 3, 4, 5, 6], String, "most jobs on one GPU"],
  slack: ["deadline slack", [null, 1.1, 1.2, 1.35, 1.5, 2, 3, 5, 10], (value) => `1.05 to ${value} × duration`, SLACK],
  sleep_after_s: ["sleep after", [null, 0, 60, 300, 900, 3600, NEVER], seconds, "time until an empty node goes to standby; always-on policies ignore it"],
};
const SWEEPS = { nodes: "16 28 64", load_threshold: "0.6 0.8 1 1.2", max_jobs: "1 2 3 4", slack: "1.2 1.5 2 3", sleep_after_s: "0 60 300 900" };

/** A slider over a list of values, the first of which leaves it to the policies. */
class Setting {
  constructor(name, set) {
    const [label, values, words, hint] = SLIDERS[name];
    this.name = name;
    this.values = [...values];
    this.hint = hint;
    this.slider = new Slider(`workbench-set-${name}`, label, { min: 0, max: values.length - 1, step: 1, value: 0, title: hint }, {
      text: (value) => (value === null ? OWN : words(value)), changed: (value) => set({ [name]: value }), restMs: SOON_MS,
      valueAt: (place) => this.values[place], placeOf: (value) => this.values.indexOf(value),
    });
    this.root = element("label", "workbench-cluster-slider", element("span", "", label), this.slider.input, this.slider.words);
  }
  /** `taken`: a policy that is chosen takes it; `varies`: it is what varies. */
  show(value, taken, varies) {
    const title = varies ? "this parameter varies: its values are above" : taken ? this.hint : "none of the chosen policies uses it";
    put(this.slider.input, { disabled: !taken || varies, title });
    if (this.slider.timer) return; // it moves
    if (!this.values.includes(value)) {
      const at = this.values.findIndex((each) => each !== null && (each === NEVER || each > value));
      this.values.splice(at < 0 ? this.values.length : at, 0, value);
      this.slider.input.max = String(this.values.length - 1);
    }
    this.slider.show(value);
  }
}

export class ClusterSettings {
  constructor(send) {
    const set = (settings) => send({ kind: "set", settings });
    this.set = set;
    const choose = (name, label, changed) => picker(`workbench-select workbench-set-${name}`, label, changed);
    const count = (name, label, max) => {
      const onchange = (event) => set({ [name]: Number(event.target.value) });
      return field(`workbench-count workbench-set-${name}`, label, { type: "number", min: 1, max, onchange });
    };
    this.log = choose("log", "job log", (log) => set({ log }));
    this.part = choose("part", "part of the log", (part) => set({ part }));
    this.jobs = element("span", "workbench-faint workbench-jobs");
    const trimmed = "skip jobs beyond 1 to 8 GPUs or shorter than 60 s, and cut longer ones, as in the tables of the documentation";
    this.trimmed = toggle("trimmed", "1 to 8 GPUs, 60 s to 3 days", trimmed, (on) => set({ trimmed: on }));
    const valid = "skip rows that are invalid or too large for the cluster, instead of reporting an error";
    this.valid = toggle("valid", "only valid rows", valid, (on) => set({ keep_valid: on }));
    const open = () => path.value.trim() && send({ kind: "open", path: path.value.trim() });
    const enter = (event) => event.key === "Enter" && open();
    const path = field("workbench-select workbench-path", "path of another log", { type: "text", placeholder: "path of another log", size: 24, onkeydown: enter });
    this.nodes = count("nodes", "number of nodes", 10000);
    this.kind = choose("kind", "node type", (kind) => set({ kind }));
    this.gpus = element("span", "workbench-faint");
    this.draws = count("draws", "seeds for values missing from the log", 50);
    this.base = choose("base", "compared with", (value) => set({ policies: [value, ...this.given.chosen.filter((name) => name !== value)] }));
    this.sweep = choose("sweep", "parameter to vary", (value) => set({ sweep: value || null, values: value ? SWEEPS[value].split(" ").map(number) : [] }));
    const vary = () => set({ values: this.values.value.split(/[\s,;]+/).filter(Boolean).map(number) });
    this.values = field("workbench-select workbench-set-values", "values of the parameter that varies", { type: "text", size: 16, onchange: vary });
    this.policies = element("div", "workbench-controls workbench-policies", { role: "group", "aria-label": "policies" });
    this.sliders = Object.keys(SLIDERS).map((name) => new Setting(name, set));
    const words = (text) => element("span", "", text);
    this.parts = [
      row(words("log"), this.log, this.part, this.jobs, this.trimmed, this.valid, space(), path, button("do-open", "Open", "", open)),
      row(words("on"), this.nodes, this.kind, this.gpus, words("seeds"), this.draws, words("sweep"), this.sweep, this.values), this.policies,
      element("div", "workbench-cluster-sliders", ...this.sliders.map((each) => each.root)),
    ];
  }
  /** The kernel's settings; `forced` if they answer the last request, `early` if its answer is still to come. */
  show(/** @type {ClusterChosen} */ given, forced, early, /** @type {ClusterGreeting} */ about) {
    this.given = given;
    const options = (select, names, value, words = {}) => offer(select, names.map((name) => [name, words[name] ?? name]), value);
    const fill = (input, value, now = false) => {
      if (!early && (now || document.activeElement !== input)) input.value = value;
    };
    options(this.log, given.logs, given.log);
    options(this.part, given.parts, given.part);
    say(this.jobs, given.wrong || `${given.jobs.toLocaleString("en")} jobs`);
    this.jobs.classList.toggle("workbench-stale", Boolean(given.wrong));
    press(this.trimmed, given.trimmed);
    press(this.valid, given.keep_valid);
    options(this.kind, given.kinds, given.kind);
    say(this.gpus, `${given.gpus.toLocaleString("en")} GPUs`);
    fill(this.nodes, given.nodes, forced);
    fill(this.draws, given.draws, forced);
    options(this.sweep, ["", ...about.swept], given.sweep ?? "", { "": "none", ...about.units });
    put(this.values, { hidden: !given.sweep });
    fill(this.values, given.values.map((value) => value ?? NEVER).join(" "));
    options(this.base, given.chosen, given.chosen[0], Object.fromEntries(given.policies.map(({ name, words }) => [name, words])));
    const taken = new Set(["slack", ...given.policies.filter(({ name }) => given.chosen.includes(name)).flatMap(({ takes }) => takes)]);
    for (const each of this.sliders) each.show(given[each.name], taken.has(each.name), given.sweep === each.name);
    put(this.nodes, { disabled: given.sweep === "nodes" });
    this.showPolicies(given);
  }
  showPolicies(/** @type {ClusterChosen} */ { policies, chosen }) {
    const turn = (name) => {
      const without = this.given.chosen.filter((other) => other !== name);
      this.set({ policies: without.length < this.given.chosen.length ? without : [...this.given.chosen, name] });
    };
    refill(this.policies, policies.map(({ name }) => name), (name) => chip([name, { "data-policy": name }], false, () => turn(name)));
    policies.forEach(({ name, words, takes }, n) => {
      const sliders = takes.map((each) => SLIDERS[each][0]).join(", ");
      const title = sliders ? `uses the sliders: ${sliders}` : "uses only the slack slider";
      put(this.policies.children[n], { textContent: words, title, "aria-pressed": chosen.includes(name) });
    });
  }
}
