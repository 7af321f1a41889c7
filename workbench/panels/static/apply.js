// @ts-check
// A GPU's setting: active, chosen, the difference; apply, undo, default; the power around the change.
/** @import { Apply, ApplyKnobs } from "./messages" */
import { Applying } from "./applying.js";
import { button, choose, element, facts, labelled, offer, put, row } from "./controls.js";
import { livePanel } from "./live.js";

const LEFT = "driver default";

/** The setting to apply: power limit, clocks, batch size. */
class Knobs {
  constructor(choose) {
    const onchange = () => choose(Object.fromEntries(Object.entries(this.inputs).map(([name, { value }]) => [name, value === "" ? null : Number(value)])));
    const number = (more) => element("input", "workbench-count", { type: "number", onchange, ...more });
    const select = () => element("select", "workbench-follow", { onchange });
    this.inputs = { power_limit_w: number({}), sm_clock_mhz: select(), mem_clock_mhz: select(), batch_size: number({ min: "1" }) };
    this.limit = labelled("power limit (W)", this.inputs.power_limit_w);
    this.sm = labelled("SM clock", this.inputs.sm_clock_mhz);
    this.memory = labelled("memory clock", this.inputs.mem_clock_mhz);
    this.root = row(this.limit, this.sm, this.memory, labelled("batch size", this.inputs.batch_size));
  }
  equip(/** @type {ApplyKnobs} */ { limits, sm, memory }) {
    this.limit.hidden = !limits;
    if (limits) {
      const [min, max, usual] = limits;
      const title = `${min} to ${max} W; empty is the driver's default, ${usual} W`;
      put(this.inputs.power_limit_w, { min, max, step: 5, placeholder: String(usual ?? ""), title });
    }
    const clocks = (values) => [["", LEFT], ...values.map((value) => [String(value), `${value} MHz`])];
    this.sm.hidden = !sm.length;
    offer(this.inputs.sm_clock_mhz, clocks(sm));
    this.memory.hidden = !memory.length;
    offer(this.inputs.mem_clock_mhz, clocks(memory));
  }
  show(wanted) {
    for (const [name, each] of Object.entries(this.inputs)) {
      const value = String(wanted?.[name] ?? "");
      if (document.activeElement === each) continue;
      if (each instanceof HTMLSelectElement) choose(each, value, `${value} MHz`);
      else put(each, { value });
    }
  }
}

function applier({ root, head, post }) {
  const applying = new Applying((kind, more) => post({ kind, ...more }));
  head.waits.before(applying.gpu);
  head.show("Apply", false);
  const knobs = new Knobs((wanted) => post({ kind: "choose", ...wanted }));
  const usual = button("do-default", "Driver default", "restore the driver's default for every setting", () => post({ kind: "default" }));
  const table = element("div", "workbench-facts");
  root.classList.add("workbench-apply");
  root.append(table, applying.command.root, knobs.root, row(applying.apply, applying.undo, usual, applying.done), applying.plot);

  function take(/** @type {Apply} */ message) {
    const { view } = message;
    if (message.knobs) knobs.equip(message.knobs);
    head.show(message.title, view?.simulated ?? message.title.includes("(simulated)"));
    applying.show(message);
    if (!view) return;
    facts(table, view.facts.filter(([name]) => name !== "Command"));
    knobs.show(message.wanted);
    Object.assign(root, { workbench: message });
  }
  return {
    take,
    on: { knobs: take },
    state(state) {
      const over = state.greeted && !state.running;
      root.classList.toggle("workbench-queued", state.queued);
      applying.able(over);
      put(usual, { disabled: over || !applying.view?.can_default });
    },
  };
}

export default { render: livePanel(applier) };
