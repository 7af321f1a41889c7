// @ts-check
// Apply and Undo, the GPUs that they change, and the power around the last change: in the apply panel and in the frontier's.
import { Code, button, element, offer, picker, put, say } from "./controls.js";

export class Applying {
  /** `send(kind, more)` asks the kernel. */
  constructor(send) {
    const make = (kind, words, hint) => button(`do-${kind}`, words, hint, () => send(kind), "workbench-button");
    this.apply = make("apply", "Apply", "apply the chosen setting; it stays active until Undo or the end of the kernel");
    this.undo = make("undo", "Undo", "restore the setting before the last change");
    this.apply.classList.add("workbench-primary");
    this.gpu = picker("workbench-follow workbench-gpu", "GPU", (uuid) => send("gpu", { uuid }));
    this.done = element("span", "workbench-faint workbench-done", { role: "status" });
    this.command = new Code("pre", "workbench-command", "command for an administrator");
    this.plot = element("div", "workbench-power-around");
  }
  /** @param {Omit<import("./messages").Applied, "kind" | "job"> | import("./messages").Apply} message */
  show({ view, gpus, uuid, doing, done, plot }) {
    if (gpus) put(this.gpu, { hidden: gpus.length < 2 });
    if (gpus) offer(this.gpu, gpus);
    put(this.gpu, { value: uuid });
    this.view = view;
    say(this.command.code, view?.command ?? "");
    put(this.command.root, { hidden: !view?.command });
    if (this.drawn !== plot) this.plot.innerHTML = this.drawn = plot;
    say(this.done, doing ? `${doing} …` : done);
  }
  able(over) {
    put(this.apply, { disabled: over || !this.view?.can_apply });
    put(this.undo, { disabled: over || !this.view?.can_undo });
  }
}
