// @ts-check
// One job or node of a simulated cluster: who and where, a picture, facts, and where to go on.
/** @import { ClusterDrawn, ClusterDrilled } from "./messages" */
import { button, element, field, offer, picker, row } from "./controls.js";

export class Drill {
  constructor(post) {
    this.post = post;
    this.policy = picker("workbench-select workbench-drill-policy", "policy whose run is looked into", () => {
      this.picked = true;
      this.offer();
      if (this.shown) this.ask(this.shown.kind, this.shown.name);
    });
    this.policy.title = "whose run is looked into";
    this.job = field("workbench-select workbench-drill-job", "id of the job to look into", { type: "text", placeholder: "job id", size: 26 });
    this.notable = picker("workbench-select workbench-drill-notable", "jobs that stand out", (name) => name && this.ask("job", name));
    this.node = field("workbench-count workbench-drill-node", "number of the node to look into", { type: "number", min: 0, value: 0 });
    const lookAtJob = () => this.job.value.trim() && this.ask("job", this.job.value.trim());
    const lookAtNode = () => this.ask("node", Number(this.node.value));
    this.job.addEventListener("keydown", (event) => event.key === "Enter" && lookAtJob());
    this.node.addEventListener("change", lookAtNode);
    this.picture = element("div", "workbench-drill-picture");
    this.picture.addEventListener("click", (event) => {
      const found = /** @type {Element} */ (event.target).closest("[data-job]");
      if (found instanceof HTMLElement || found instanceof SVGElement) this.ask("job", found.dataset.job);
    });
    this.facts = element("div", "workbench-facts");
    this.further = element("div", "workbench-controls workbench-drill-further");
    this.body = element("div", "", this.picture, this.facts, this.further);
    const controls = row(
      element("span", "workbench-title", "Look into"), this.policy, element("span", "", "job"), this.job, button("do-job", "Show job", "", lookAtJob), this.notable,
      element("span", "", "node"), this.node, button("do-node", "Show node", "", lookAtNode),
    );
    this.root = element("div", "workbench-drill", controls, this.body);
    this.shown = /** @type {ClusterDrilled | null} */ (null);
    this.picked = false;
  }
  ask(kind, name) {
    this.post({ kind, policy: this.policy.value, name });
  }
  /** Policies and jobs of the results. */
  fill(/** @type {ClusterDrawn} */ drawn) {
    this.drawn = drawn;
    const open = drawn.curves.filter((curve) => curve.open);
    this.root.hidden = !open.length;
    const before = this.policy.value;
    offer(this.policy, open.map(({ policy, words }) => [policy, words]));
    const still = this.picked && open.some(({ policy }) => policy === before);
    if (open.length) this.policy.value = still ? before : open[open.length - 1].policy;
    this.node.max = String(Math.max(0, drawn.nodeCount - 1));
    this.offer();
  }
  offer() {
    const notable = this.drawn?.curves.find(({ policy }) => policy === this.policy.value)?.notable ?? {};
    this.notable.replaceChildren(new Option("jobs that stand out", ""), ...Object.entries(notable).map(([label, jobs]) => {
      const group = Object.assign(element("optgroup"), { label });
      group.append(...jobs.map((job) => new Option(job, job)));
      return group;
    }));
  }
  show(/** @type {ClusterDrilled | null} */ drilled) {
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
    const beside = drilled.kind === "job" ? "longest beside:" : "longest here:";
    this.further.replaceChildren(
      ...(drilled.jobs.length ? [element("span", "workbench-faint", beside)] : []), ...drilled.jobs.map(([name, words]) => to(`${name} · ${words}`, "job", name)),
      ...drilled.nodes.map((number) => to(`node ${number}`, "node", number)),
    );
  }
}
