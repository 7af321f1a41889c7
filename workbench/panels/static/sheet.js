// @ts-check
// A page of HTML that the kernel writes, with the bar of what is under way.
/** @import { Sheet } from "./messages" */
import { button, element, put, row } from "./controls.js";
import { livePanel } from "./live.js";

function sheet({ root, post }) {
  const waits = element("span", "workbench-faint workbench-waits");
  const bar = Object.assign(element("progress", "workbench-bar"), { max: 1 });
  const words = element("span", "workbench-faint");
  words.setAttribute("role", "status");
  const cancel = button("do-cancel", "Cancel", "", () => post({ kind: "cancel" }));
  const controls = row(bar, words, cancel);
  const body = element("div", "workbench-sheet");
  root.append(waits, controls, body);
  function take(/** @type {Sheet} */ message) {
    put(controls, { hidden: !message.bar });
    if (message.bar) {
      bar.value = message.bar.share;
      put(words, { textContent: message.bar.words });
      put(cancel, { disabled: !message.bar.can_cancel });
    }
    body.innerHTML = message.html;
    body.hidden = Boolean(message.bar);
  }
  return {
    greeting: take,
    on: { news: take },
    state({ queued, greeted }) {
      put(waits, { textContent: !greeted ? "loading" : queued ? "what you choose is done when the kernel has finished its cell" : "" });
    },
  };
}

export default { render: livePanel(sheet) };
