// @ts-check
// A page of HTML that the kernel writes, with a progress bar.
/** @import { Sheet } from "./messages" */
import { button, element, put, row, say } from "./controls.js";
import { livePanel } from "./live.js";

function sheet({ root, post }) {
  const bar = element("progress", "workbench-bar", { max: 1 });
  const words = element("span", "workbench-faint", { role: "status" });
  const cancel = button("do-cancel", "Cancel", "", () => post({ kind: "cancel" }));
  const controls = row(bar, words, cancel);
  const body = element("div", "workbench-sheet");
  root.append(controls, body);
  function take(/** @type {Sheet} */ message) {
    put(controls, { hidden: !message.bar });
    if (message.bar) {
      bar.value = message.bar.share;
      say(words, message.bar.words);
      put(cancel, { disabled: !message.bar.can_cancel });
    }
    put(body, { innerHTML: message.html, hidden: Boolean(message.bar) });
  }
  return { take };
}

export default { render: livePanel(sheet) };
