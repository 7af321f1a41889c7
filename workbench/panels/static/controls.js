// @ts-check
// Buttons, sliders and words of the panels.

/**
 * An element, its class, and what is in it.
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag @param {(string | Node)[]} children @returns {HTMLElementTagNameMap[K]}
 */
export function element(tag, name = "", ...children) {
  const made = document.createElement(tag);
  if (name) made.className = name;
  made.append(...children);
  return made;
}

/**
 * Set what differs of a node's properties: to write the same again is a change of the page, too.
 * @param {any} node @param {Record<string, unknown>} values
 */
export function put(node, values) {
  for (const [name, value] of Object.entries(values)) if (node[name] !== value) node[name] = value;
}

/** Set an attribute where it differs. */
export function mark(node, name, value) {
  if (node.getAttribute(name) !== String(value)) node.setAttribute(name, String(value));
}

/** A button. */
export function button(name, words, hint, work, look = "workbench-button") {
  const made = element("button", `${look} workbench-${name}`, words);
  if (hint) made.title = hint;
  made.addEventListener("click", work);
  return made;
}

/** A button that stays pressed; `work` is told what it is to be. */
export function toggle(name, words, hint, work) {
  const made = button(`toggle-${name}`, words, hint, () => work(made.getAttribute("aria-pressed") !== "true"), "workbench-chip");
  return made;
}

/** A chip that is pressed or not. */
export function chip(words, pressed, work, ...before) {
  const made = element("button", "workbench-chip", ...before, words);
  made.setAttribute("aria-pressed", String(pressed));
  made.addEventListener("click", work);
  return made;
}

/** A square of a line's colour. */
export function swatch(colour) {
  const made = element("span", "workbench-swatch");
  made.style.background = colour;
  return made;
}

/** A list to choose from; `changed` is told the value. */
export function picker(name, label, changed) {
  const made = element("select", name);
  made.setAttribute("aria-label", label);
  made.addEventListener("change", () => changed(made.value));
  return made;
}

/** What a list offers, [value, words] each; nothing happens where it does already. */
export function offer(select, choices) {
  const is = (option, [value, words]) => option?.value === value && option.textContent === words;
  const same = select.options.length === choices.length && choices.every((choice, n) => is(select.options[n], choice));
  if (!same) select.replaceChildren(...choices.map(([value, words]) => new Option(words, value)));
}

/** A slider. */
export function range(name, label, more = {}) {
  const made = Object.assign(element("input", `workbench-limit ${name}`.trimEnd()), { type: "range", ...more });
  made.setAttribute("aria-label", label);
  return made;
}

/** A field for text or a number. */
export function field(name, label, more) {
  const made = Object.assign(element("input", name), more);
  made.setAttribute("aria-label", label);
  return made;
}

/** Controls side by side. */
export const row = (...children) => element("div", "workbench-controls", ...children);

/** A control with words in front of it. */
export const labelled = (words, ...children) => element("label", "workbench-control", element("span", "", words), ...children);

/** What takes the room between two groups of controls. */
export const space = () => element("span", "workbench-space");

/** One line each. */
export function lines(node, sentences) {
  const same = node.children.length === sentences.length && sentences.every((sentence, n) => node.children[n].textContent === sentence);
  if (!same) node.replaceChildren(...sentences.map((sentence) => element("div", "", sentence)));
}

/** Title, badge and what is to be said of the kernel. */
export class Head {
  constructor(...more) {
    this.title = element("span", "workbench-title");
    this.badge = element("span", "workbench-badge", "simulated");
    this.badge.hidden = true;
    this.waits = element("span", "workbench-faint workbench-waits");
    this.root = element("div", "workbench-head", this.title, this.badge, ...more, this.waits);
  }
  show(title, simulated) {
    put(this.title, { textContent: title.replace(/ ?\(simulated\)/g, "") });
    put(this.badge, { hidden: !simulated });
  }
  /** What becomes of input now; `late` where it has to wait. */
  state({ greeted, queued }, late) {
    put(this.waits, { textContent: !greeted ? "loading" : queued ? late : "" });
  }
}

/** Asks the kernel one thing at a time: of what is wanted meanwhile the newest is asked when that is answered. */
export class Asking {
  constructor(send) {
    this.send = send;
    this.number = 0;
    this.waiting = false;
    this.next = /** @type {{ value: any } | null} */ (null);
  }
  ask(value) {
    if (this.waiting) {
      this.next = { value };
      return;
    }
    this.number += 1;
    this.waiting = true;
    this.send(value, this.number);
  }
  /** The answer to a number has come; without one, to whatever was asked. */
  answered(number = this.number) {
    if (number !== this.number || !this.waiting) return;
    this.waiting = false;
    const { next } = this;
    this.next = null;
    if (next) this.ask(next.value);
  }
  /** What was asked is answered by what came instead. */
  forget() {
    this.waiting = false;
    this.next = null;
  }
}

/** Let the browser keep data as a file. */
export function save(name, data, type) {
  const url = URL.createObjectURL(new Blob([data], { type }));
  Object.assign(document.createElement("a"), { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
