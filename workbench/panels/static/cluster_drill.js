// @ts-check
// One job or node of a simulated cluster: its selection, a picture, facts, and links to related jobs or nodes.
/** @import { ClusterDrawn, ClusterDrilled } from "./messages" */
import { button, choose, element, facts, field, offer, picker, row } from "./controls.js";

export class Drill {
  constructor(post) {
    this.post = post;
    this.policy = picker("workbench-select workbench-drill-policy", "policy whose run is inspected", () => {
      this.picked = true;
      this.offer();
      if (this.shown) this.ask(this.shown.kind, this.shown.name);
    });
    this.policy.title = "policy whose run is inspected";
    const lookAtJob = () => this.job.value.trim() && this.ask("job", this.job.value.trim());
    const lookAtNode = () => this.ask("node", Number(this.node.value));
    this.job = field("workbench-select workbench-drill-job", "id of the job to inspect", {
      type: "text", placeholder: "job id", size: 26, onkeydown: (event) => event.key === "Enter" && lookAtJob(),
    });
    this.notable = picker("workbench-select workbench-drill-notable", "notable jobs", (name) => name && this.ask("job", name));
    this.node = field("workbench-count workbench-drill-node", "number of the node to inspect", { type: "number", min: 0, value: 0, onchange: lookAtNode });
    const lookAtBox = (event) => {
      const found = event.target.closest("[data-job]");
      if (found) this.ask("job", found.dataset.job);
    };
    this.picture = element("div", "workbench-drill-picture", { onclick: lookAtBox });
    this.facts = element("div", "workbench-facts");
    this.further = element("div", "workbench-controls workbench-drill-further");
    this.body = element("div", "", this.picture, this.facts, this.further);
    const controls = row(
      element("span", "workbench-title", "Inspect"), this.policy, element("span", "", "job"), this.job, button("do-job", "Show job", "", lookAtJob), this.notable,
      element("span", "", "node"), this.node, button("do-node", "Show node", "", lookAtNode),
    );
    this.root = element("div", "workbench-drill", controls, this.body);
    this.shown = /** @type {ClusterDrilled | null} */ (null);
    this.picked = false;
  }
  ask(kind, name) {
    this.post({ kind, policy: this.policy.value, name });
  }
  fill(/** @type {ClusterDrawn} */ drawn) {
    this.drawn = drawn;
    const open = drawn.curves.filter((curve) => curve.open);
    this.root.hidden = !open.length;
    const still = this.picked && open.some(({ policy }) => policy === this.policy.value);
    offer(this.policy, open.map(({ policy, text }) => [policy, text]), still ? this.policy.value : open[open.length - 1]?.policy);
    this.node.max = String(Math.max(0, drawn.nodeCount - 1));
    this.offer();
  }
  offer() {
    const notable = this.drawn?.curves.find(({ policy }) => policy === this.policy.value)?.notable ?? {};
    const groups = Object.entries(notable).map(([label, jobs]) => element("optgroup", "", { label }, ...jobs.map((job) => new Option(job, job))));
    this.notable.replaceChildren(new Option("notable jobs", ""), ...groups);
  }
  show(/** @type {ClusterDrilled | null} */ drilled) {
    this.shown = drilled;
    this.picked = drilled !== null;
    this.body.hidden = drilled === null;
    if (!drilled) return;
    choose(this.policy, drilled.policy);
    if (drilled.kind === "job") this.job.value = drilled.name;
    else this.node.value = drilled.name;
    this.picture.innerHTML = drilled.picture; // the kernel's own; names of jobs are escaped there
    facts(this.facts, drilled.facts);
    const to = (words, kind, name) => element("button", "workbench-chip", words, { onclick: () => this.ask(kind, name) });
    const beside = element("span", "workbench-faint", drilled.kind === "job" ? "longest shared with:" : "longest here:");
    this.further.replaceChildren(
      ...(drilled.jobs.length ? [beside] : []), ...drilled.jobs.map(([name, words]) => to(`${name} · ${words}`, "job", name)),
      ...drilled.nodes.map((number) => to(`node ${number}`, "node", number)),
    );
  }
}
