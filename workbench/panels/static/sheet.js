// A page of HTML that the kernel writes, with the bar of what is under way.
import { element, livePanel } from "./base.js";

function sheet({ root, post }) {
  const waits = element("span", "workbench-faint workbench-waits");
  const bar = element("progress", "workbench-bar");
  bar.max = 1;
  const words = element("span", "workbench-faint");
  words.setAttribute("role", "status");
  const cancel = element("button", "workbench-button workbench-do-cancel", "Cancel");
  cancel.addEventListener("click", () => post({ kind: "cancel" }));
  const row = element("div", "workbench-controls", bar, words, cancel);
  const body = element("div", "workbench-sheet");
  root.append(waits, row, body);
  function take(message) {
    row.hidden = !message.bar;
    if (message.bar) {
      bar.value = message.bar.share;
      words.textContent = message.bar.words;
      cancel.disabled = !message.bar.can_cancel;
    }
    body.innerHTML = message.html;
    body.hidden = Boolean(message.bar);
  }
  return {
    greeting: take,
    message(message) {
      if (message.kind === "news") take(message);
    },
    recolour() {},
    state({ queued, greeted }) {
      waits.textContent = !greeted ? "loading" : queued ? "what you choose is done when the kernel has finished its cell" : "";
    },
    dispose() {},
  };
}

export default { render: livePanel(sheet) };
