// @ts-check
// A GPU's setting: in force, chosen, the difference; apply, undo, default; the power around the change.
/** @import { Apply, ApplyKnobs, ApplyView } from "./messages" */
import { Code, button, choose, element, facts, labelled, offer, picker, put, row, say } from "./controls.js";
import { livePanel } from "./live.js";

const LEFT = "left to the driver";

/** The facts about a setting, [name, words] each. */
const known = (/** @type {ApplyView} */ view) => [
  ["In force", `${view.force} · ${view.origin}`], ["Chosen", view.chosen], ["Difference", view.difference.join("\n") || "nothing would change"], ["", view.note],
  ["Rights", view.rights], ["Held by", view.holder], ["", view.computing], ["", view.left], ["Done", view.history.map((line) => line.join("  ")).join("\n")],
];

/** What is to be set: power limit, clocks, batch size. */
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
  const gpu = picker("workbench-follow workbench-gpu", "GPU", (uuid) => post({ kind: "gpu", uuid }));
  head.waits.before(gpu);
  head.show("Apply", false);
  const knobs = new Knobs((wanted) => post({ kind: "choose", ...wanted }));
  const send = (kind, words, hint) => button(`do-${kind}`, words, hint, () => post({ kind }));
  const buttons = {
    apply: send("apply", "Apply", "put the GPU to what is chosen; it stays so until it is undone or the kernel ends"),
    undo: send("undo", "Undo", "take the last change back"),
    default: send("default", "Driver's default", "give every knob back to the driver"),
  };
  const done = element("span", "workbench-faint workbench-done", { role: "status" });
  const table = element("div", "workbench-facts");
  const command = new Code("pre", "workbench-command", "command for an administrator");
  const plot = element("div", "workbench-power-around");
  root.classList.add("workbench-apply");
  root.append(table, command.root, knobs.root, row(...Object.values(buttons), done), plot);
  let seen = /** @type {Apply | null} */ (null);

  function take(/** @type {Apply} */ message) {
    seen = message;
    const { view, gpus } = message;
    if (message.knobs) knobs.equip(message.knobs);
    if (gpus) {
      put(gpu, { hidden: gpus.length < 2 });
      offer(gpu, gpus);
    }
    head.show(message.title, view?.simulated ?? message.title.includes("(simulated)"));
    if (!view) return;
    gpu.value = message.uuid;
    facts(table, known(view).filter(([, words]) => words));
    say(command.code, view.command);
    put(command.root, { hidden: view.allowed || !view.command });
    knobs.show(message.wanted);
    plot.innerHTML = message.plot;
    const watching = message.follows && message.done ? "; watching the power" : "";
    say(done, message.doing ? `${message.doing} …` : message.done + watching);
    Object.assign(root, { workbench: message });
  }
  return {
    take,
    on: { knobs: take },
    state(state) {
      const [over, view] = [state.greeted && !state.running, seen?.view];
      root.classList.toggle("workbench-queued", state.queued);
      put(buttons.apply, { disabled: over || !view?.can_apply });
      put(buttons.undo, { disabled: over || !view?.can_undo });
      put(buttons.default, { disabled: over || !view });
    },
  };
}

export default { render: livePanel(applier) };
