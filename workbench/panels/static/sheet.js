// @ts-check
// A page of HTML that the kernel writes, with the bar of what is under way.
/** @import { Sheet } from "./messages" */
import { button, element, put, row, say } from "./controls.js";
import { livePanel } from "./live.js";

function sheet({ root, post }) {
  const bar = element("progress", "workbench-bar", { max: 1 });
  const words = element("span", "workbench-faint", { role: "status" });
  const cancel = button("do-cancel", "Cancel", "", () => post({ kind: "cancel" }));
  const controls = row(bar, words, cancel);
  const [tools, body] = ["workbench-tools", "workbench-sheet"].map((name) => element("div", name));
  root.append(controls, tools, body);
  for (const type of ["click", "input", "change"]) {
    root.addEventListener(type, ({ target }) => {
      const on = target.closest(`[data-on="${type}"]`);
      if (on) post({ kind: "act", name: on.dataset.act, value: on.value });
    });
  }
  function take(/** @type {Sheet} */ message) {
    put(controls, { hidden: !message.bar });
    if (message.bar) {
      bar.value = message.bar.share;
      say(words, message.bar.words);
      put(cancel, { disabled: !message.bar.can_cancel });
    }
    const { dataset, value } = /** @type {any} */ (body.contains(document.activeElement) ? document.activeElement : {});
    if (message.tools && !tools.innerHTML) tools.innerHTML = message.tools;
    put(body, { innerHTML: message.html, hidden: Boolean(message.bar) });
    // The page is written again, and a keyboard goes on where it was.
    if (dataset?.act) /** @type {any} */ (body.querySelector(`[data-act="${dataset.act}"][value="${CSS.escape(value)}"]`))?.focus();
  }
  return { take };
}

export default { render: livePanel(sheet) };
