// A GPU's setting: in force, chosen, the difference; apply, undo, default; the power around the change.
import { element, livePanel } from "./base.js";

const LEFT = "left to the driver";

function applier({ root, post }) {
  const title = element("span", "workbench-title", "Apply");
  const badge = element("span", "workbench-badge", "simulated");
  const waits = element("span", "workbench-faint workbench-waits");
  const gpu = element("select", "workbench-follow workbench-gpu");
  gpu.setAttribute("aria-label", "GPU");
  gpu.addEventListener("change", () => post({ kind: "gpu", uuid: gpu.value }));

  const knobs = {};
  const knob = (name, words, tag) => {
    const made = element(tag, tag === "select" ? "workbench-follow" : "workbench-count");
    made.addEventListener("change", choose);
    knobs[name] = made;
    return element("label", "workbench-control", element("span", "", words), made);
  };
  const choose = () => post({ kind: "choose", ...Object.fromEntries(Object.entries(knobs).map(([name, each]) => [name, each.value === "" ? null : Number(each.value)])) });
  const limit = knob("power_limit_w", "power limit (W)", "input");
  const sm = knob("sm_clock_mhz", "SM clock", "select");
  const memory = knob("mem_clock_mhz", "memory clock", "select");
  const batch = knob("batch_size", "batch size", "input");
  for (const name of ["power_limit_w", "batch_size"]) knobs[name].type = "number";
  knobs.batch_size.min = 1;

  const button = (name, words, hint) => {
    const made = Object.assign(element("button", `workbench-button workbench-do-${name}`, words), { title: hint });
    made.addEventListener("click", () => post({ kind: name }));
    return made;
  };
  const buttons = {
    apply: button("apply", "Apply", "put the GPU to what is chosen; it stays so until it is undone or the kernel ends"),
    undo: button("undo", "Undo", "take the last change back"),
    default: button("default", "Driver's default", "give every knob back to the driver"),
  };
  const done = element("span", "workbench-faint workbench-done");
  done.setAttribute("role", "status");
  const table = element("div", "workbench-facts");
  const command = element("pre", "workbench-command");
  command.tabIndex = 0;
  command.setAttribute("aria-label", "command for an administrator");
  const copy = element("button", "workbench-button", "Copy");
  copy.addEventListener("click", () => navigator.clipboard?.writeText(command.textContent));
  const commands = element("div", "workbench-controls", command, copy);
  const plot = element("div", "workbench-power-around");
  root.classList.add("workbench-apply");
  root.append(
    element("div", "workbench-head", title, badge, gpu, waits), table, commands,
    element("div", "workbench-controls", limit, sm, memory, batch), element("div", "workbench-controls", ...Object.values(buttons), done), plot,
  );
  let over = false;
  let seen = null;

  const options = (select, values, word) => {
    select.replaceChildren(new Option(LEFT, ""), ...values.map((value) => new Option(`${value} ${word}`, value)));
  };
  function equip({ knobs: about, gpus }) {
    limit.hidden = !about.limits;
    if (about.limits) {
      const [low, high, usual] = about.limits;
      Object.assign(knobs.power_limit_w, { min: low, max: high, step: 5, placeholder: String(usual ?? "") });
      knobs.power_limit_w.title = `${low} to ${high} W; empty is the driver's default, ${usual} W`;
    }
    sm.hidden = !about.sm.length;
    options(knobs.sm_clock_mhz, about.sm, "MHz");
    memory.hidden = !about.memory.length;
    options(knobs.mem_clock_mhz, about.memory, "MHz");
    gpu.hidden = gpus.length < 2;
    gpu.replaceChildren(...gpus.map(([uuid, name]) => new Option(name, uuid)));
  }
  const rows = (view) => [
    ["In force", `${view.force} · ${view.origin}`], ["Chosen", view.chosen], ["Difference", view.difference.join("\n") || "nothing would change"], ["", view.note],
    ["Rights", view.rights], ["Held by", view.holder], ["", view.computing], ["", view.left], ["Done", view.history.map((row) => row.join("  ")).join("\n")],
  ];
  function take(message) {
    seen = message;
    title.textContent = message.title.replace(/ ?\(simulated\)/g, "");
    const { view, wanted } = message;
    if (!view) return;
    badge.hidden = !view.simulated;
    gpu.value = message.uuid;
    table.replaceChildren(...rows(view).filter(([, words]) => words).flatMap(([name, words]) => [element("div", "workbench-fact", name), element("div", "", words)]));
    command.textContent = view.command;
    commands.hidden = view.allowed || !view.command;
    for (const [name, each] of Object.entries(knobs)) {
      if (document.activeElement === each) continue;
      const value = String(wanted?.[name] ?? "");
      if (each.tagName === "SELECT" && ![...each.options].some((option) => option.value === value)) each.add(new Option(`${value} MHz`, value));
      each.value = value;
    }
    plot.innerHTML = message.plot;
    const watching = message.follows && message.done ? "; watching the power" : "";
    done.textContent = message.doing ? `${message.doing} …` : message.done + watching;
    enable();
    root.workbench = message;
  }
  function enable() {
    const view = seen?.view;
    buttons.apply.disabled = over || !view?.can_apply;
    buttons.undo.disabled = over || !view?.can_undo;
    buttons.default.disabled = over || !view;
  }
  return {
    greeting(message) {
      over = message.state !== "running";
      equip(message);
      take(message);
    },
    message(message) {
      if (message.kind === "knobs") equip(message);
      if (message.kind === "news" || message.kind === "knobs") take(message);
    },
    recolour() {},
    state({ running, queued, greeted }) {
      over = greeted && !running;
      waits.textContent = !greeted ? "loading" : queued ? "what you choose is done when the kernel has finished its cell" : "";
      root.classList.toggle("workbench-queued", queued);
      enable();
    },
    dispose() {},
  };
}

export default { render: livePanel(applier) };
