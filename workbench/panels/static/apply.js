// @ts-check
// A GPU's setting: in force, chosen, the difference; apply, undo, default; the power around the change.
/** @import { Apply, ApplyKnobs, ApplyView } from "./messages" */
import { Head, button, element, labelled, offer, picker, put, row } from "./controls.js";
import { livePanel } from "./live.js";

const LEFT = "left to the driver";
const LATE = "what you choose is done when the kernel has finished its cell";

/** The facts about a setting, [name, words] each. */
const facts = (/** @type {ApplyView} */ view) => [
  ["In force", `${view.force} · ${view.origin}`], ["Chosen", view.chosen], ["Difference", view.difference.join("\n") || "nothing would change"], ["", view.note],
  ["Rights", view.rights], ["Held by", view.holder], ["", view.computing], ["", view.left], ["Done", view.history.map((line) => line.join("  ")).join("\n")],
];

/** What is to be set: power limit, clocks, batch size. */
class Knobs {
  constructor(choose) {
    const values = () => Object.fromEntries(Object.entries(this.inputs).map(([name, each]) => [name, each.value === "" ? null : Number(each.value)]));
    const number = () => Object.assign(element("input", "workbench-count"), { type: "number" });
    const select = () => element("select", "workbench-follow");
    this.inputs = { power_limit_w: number(), sm_clock_mhz: select(), mem_clock_mhz: select(), batch_size: number() };
    for (const each of Object.values(this.inputs)) each.addEventListener("change", () => choose(values()));
    this.inputs.batch_size.min = "1";
    this.limit = labelled("power limit (W)", this.inputs.power_limit_w);
    this.sm = labelled("SM clock", this.inputs.sm_clock_mhz);
    this.memory = labelled("memory clock", this.inputs.mem_clock_mhz);
    this.root = row(this.limit, this.sm, this.memory, labelled("batch size", this.inputs.batch_size));
  }
  /** What the GPU can be put to. */
  equip(/** @type {ApplyKnobs} */ { limits, sm, memory }) {
    this.limit.hidden = !limits;
    if (limits) {
      const [low, high, usual] = limits;
      const title = `${low} to ${high} W; empty is the driver's default, ${usual} W`;
      Object.assign(this.inputs.power_limit_w, { min: low, max: high, step: 5, placeholder: String(usual ?? ""), title });
    }
    const clocks = (values) => [["", LEFT], ...values.map((value) => [String(value), `${value} MHz`])];
    this.sm.hidden = !sm.length;
    offer(this.inputs.sm_clock_mhz, clocks(sm));
    this.memory.hidden = !memory.length;
    offer(this.inputs.mem_clock_mhz, clocks(memory));
  }
  show(wanted) {
    for (const [name, each] of Object.entries(this.inputs)) {
      if (document.activeElement === each) continue;
      const value = String(wanted?.[name] ?? "");
      if (each instanceof HTMLSelectElement && ![...each.options].some((option) => option.value === value)) each.add(new Option(`${value} MHz`, value));
      each.value = value;
    }
  }
}

function applier({ root, post }) {
  const gpu = picker("workbench-follow workbench-gpu", "GPU", (uuid) => post({ kind: "gpu", uuid }));
  const head = new Head(gpu);
  head.show("Apply", false);
  const knobs = new Knobs((wanted) => post({ kind: "choose", ...wanted }));
  const send = (kind, words, hint) => button(`do-${kind}`, words, hint, () => post({ kind }));
  const buttons = {
    apply: send("apply", "Apply", "put the GPU to what is chosen; it stays so until it is undone or the kernel ends"),
    undo: send("undo", "Undo", "take the last change back"),
    default: send("default", "Driver's default", "give every knob back to the driver"),
  };
  const done = element("span", "workbench-faint workbench-done");
  done.setAttribute("role", "status");
  const table = element("div", "workbench-facts");
  const command = Object.assign(element("pre", "workbench-command"), { tabIndex: 0 });
  command.setAttribute("aria-label", "command for an administrator");
  const copy = button("copy", "Copy", "", () => navigator.clipboard?.writeText(command.textContent));
  const commands = row(command, copy);
  const plot = element("div", "workbench-power-around");
  root.classList.add("workbench-apply");
  root.append(head.root, table, commands, knobs.root, row(...Object.values(buttons), done), plot);
  let over = false;
  let seen = /** @type {Apply | null} */ (null);

  function equip(/** @type {Apply} */ message) {
    knobs.equip(message.knobs);
    put(gpu, { hidden: message.gpus.length < 2 });
    offer(gpu, message.gpus);
  }
  function take(/** @type {Apply} */ message) {
    seen = message;
    const { view } = message;
    head.show(message.title, view?.simulated ?? message.title.includes("(simulated)"));
    if (!view) return;
    gpu.value = message.uuid;
    const known = facts(view).filter(([, words]) => words);
    table.replaceChildren(...known.flatMap(([name, words]) => [element("div", "workbench-fact", name), element("div", "", words)]));
    put(command, { textContent: view.command });
    put(commands, { hidden: view.allowed || !view.command });
    knobs.show(message.wanted);
    plot.innerHTML = message.plot;
    const watching = message.follows && message.done ? "; watching the power" : "";
    put(done, { textContent: message.doing ? `${message.doing} …` : message.done + watching });
    enable();
    Object.assign(root, { workbench: message });
  }
  function enable() {
    const view = seen?.view;
    put(buttons.apply, { disabled: over || !view?.can_apply });
    put(buttons.undo, { disabled: over || !view?.can_undo });
    put(buttons.default, { disabled: over || !view });
  }
  return {
    greeting(message) {
      over = message.state !== "running";
      equip(message);
      take(message);
    },
    on: {
      news: take,
      knobs(message) {
        equip(message);
        take(message);
      },
    },
    state(state) {
      over = state.greeted && !state.running;
      head.state(state, LATE);
      root.classList.toggle("workbench-queued", state.queued);
      enable();
    },
  };
}

export default { render: livePanel(applier) };
