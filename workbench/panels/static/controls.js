// @ts-check
// Buttons, sliders and words of the panels.

const SHOWN = new WeakMap(); // what nodes show of facts, as JSON

/**
 * An element, its class, and what is in it; objects among the parts are properties and attributes, as `put` takes them.
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag @param {(string | Node | Record<string, unknown>)[]} parts @returns {HTMLElementTagNameMap[K]}
 */
export function element(tag, name = "", ...parts) {
  const made = document.createElement(tag);
  if (name) made.className = name;
  for (const part of parts) {
    if (typeof part === "string" || part instanceof Node) made.append(part);
    else put(made, part);
  }
  return made;
}

/**
 * Set what differs of a node's properties, or attributes ("role", and names with a hyphen): to write the same again is a change of the page, too.
 * A function listens to the event of its name.
 * @param {any} node @param {Record<string, unknown>} values
 */
export function put(node, values) {
  for (const [name, value] of Object.entries(values)) {
    if (typeof value === "function") node.addEventListener(name.slice(2), value);
    else if (name !== "role" && !name.includes("-")) {
      if (node[name] !== value) node[name] = value;
    } else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, String(value));
  }
}

export const say = (node, words) => put(node, { textContent: words });
export const press = (node, pressed) => put(node, { "aria-pressed": pressed });

export const button = (name, words, hint, onclick, look = "workbench-button") => element("button", `${look} workbench-${name}`, words, { title: hint, onclick });

/** A button that stays pressed; `work` takes its new state. */
export function toggle(name, words, hint, work) {
  return button(`toggle-${name}`, words, hint, ({ currentTarget: made }) => work(made.getAttribute("aria-pressed") !== "true"), "workbench-chip");
}

export const chip = (parts, pressed, onclick, title = "") => element("button", "workbench-chip", ...[parts].flat(), { "aria-pressed": pressed, onclick, title });

export const swatch = (colour) => element("span", "workbench-swatch", { style: `background: ${colour}` });

/** A list to choose from; `changed` takes the value. */
export const picker = (name, label, changed) => element("select", name, { "aria-label": label, onchange: ({ target }) => changed(target.value) });

/** Fill a list with choices, [value, words] each; does nothing if it has them already. */
export function offer(select, choices, value = select.value) {
  const is = (option, [each, words]) => option?.value === each && option.textContent === words;
  const same = select.options.length === choices.length && choices.every((choice, n) => is(select.options[n], choice));
  if (!same) select.replaceChildren(...choices.map(([each, words]) => new Option(words, each)));
  choose(select, value);
}

/** Choose a value of a list; a value that is not in the list is added if `words` has any. */
export function choose(select, value, words = "") {
  const offered = [...select.options].some((option) => option.value === value);
  if (!offered && words) select.add(new Option(words, value));
  if (offered || words) put(select, { value });
}

export const field = (name, label, more) => element("input", name, { "aria-label": label, ...more });

/** A listener for keys that move: `walk` takes the number of steps. */
export function walks(walk, page, more = {}) {
  return (event) => {
    const by = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity, ...more }[event.key];
    if (by === undefined) return;
    event.preventDefault();
    walk(by);
  };
}

/** A slider with its value in words. */
export class Slider {
  /** `text`: a value in words; `changed` takes a value that a person sets, after `restMs` without movement. */
  constructor(name, label, more, { text = (value) => String(value), changed, valueAt = (place) => place, placeOf = (value) => value, restMs = 0 }) {
    this.text = text;
    this.placeOf = placeOf;
    this.timer = 0;
    this.words = element("span", `workbench-faint ${name}-words`);
    const rest = () => {
      this.timer = 0;
      changed(valueAt(Number(this.input.value)));
    };
    const move = () => {
      this.say(text(valueAt(Number(this.input.value))));
      clearTimeout(this.timer);
      if (restMs) this.timer = window.setTimeout(rest, restMs);
      else rest();
    };
    this.input = field(`workbench-limit ${name}`, label, { type: "range", ...more, oninput: move });
  }
  show(value, words = this.text(value), heard = words) {
    put(this.input, { value: String(this.placeOf(value)) });
    this.say(words, heard);
  }
  say(words, heard = words) {
    say(this.words, words);
    put(this.input, { "aria-valuetext": heard });
  }
}

/** A slider of an allowed slowdown in per cent, whose end allows any: null. */
export function slowdownSlider(name, label, most, changed) {
  const made = new Slider(name, label, { min: 0, max: most, step: 0.5 }, {
    text: (percent) => (percent === null ? "any" : `${Number(percent.toPrecision(3))} %`), changed,
    valueAt: (place) => (place >= Number(made.input.max) ? null : place), placeOf: (percent) => percent ?? made.input.max,
  });
  return made;
}

/** Which of several lines are drawn: a chip for each, that shows or hides it. */
export class Legend {
  constructor(changed) {
    this.changed = changed;
    this.hidden = new Set();
    this.root = element("div", "workbench-legend");
  }
  /** `lines`: [what is shown or hidden, its colour, what its chip says, a hint] each. */
  show(lines) {
    this.root.replaceChildren(...lines.map(([what, colour, words, title]) => {
      const made = chip([swatch(colour), ...words], !this.hidden.has(what), () => {
        if (!this.hidden.delete(what)) this.hidden.add(what);
        press(made, !this.hidden.has(what));
        this.changed();
      }, title);
      return made;
    }));
  }
}

export const row = (...children) => element("div", "workbench-controls", ...children);

/** Rarely needed parts, folded behind a line of words. */
export const folded = (words, ...parts) => element("details", "workbench-more", element("summary", "", words), ...parts);

/** A control with words in front of it. */
export const labelled = (words, ...children) => element("label", "workbench-control", element("span", "", words), ...children);

/** Flexible space between two groups of controls. */
export const space = () => element("span", "workbench-space");

/** Fill a node with one child per fact (plain data); does nothing if it shows the same already. */
export function refill(node, facts, make) {
  const shows = JSON.stringify(facts);
  if (SHOWN.get(node) !== shows) node.replaceChildren(...facts.map(make));
  SHOWN.set(node, shows);
}

export const lines = (node, sentences) => refill(node, sentences, (sentence) => element("div", "", sentence));

/** Names with their texts, side by side. */
export function facts(node, pairs) {
  node.replaceChildren(...pairs.flatMap(([name, words]) => [element("div", "workbench-fact", name), element("div", "", words)]));
}

/** Cells of a table's row, one for each of some words or lists of words and nodes. */
export const cells = (each, /** @type {"td" | "th"} */ tag = "td") => each.map((parts) => element(tag, "", ...[parts].flat()));

/** A table with a head and a body to be filled. */
export function table(label) {
  const [head, body] = [element("tr"), element("tbody")];
  return { head, body, root: element("table", "workbench-table", { "aria-label": label }, element("thead", "", head), body) };
}

/** Title, badge and the state of the kernel; more parts go before `waits`. */
export class Head {
  constructor() {
    this.title = element("span", "workbench-title");
    this.badge = element("span", "workbench-badge", "simulated", { hidden: true });
    this.waits = element("span", "workbench-faint workbench-waits");
    this.root = element("div", "workbench-head", this.title, this.badge, this.waits);
  }
  show(title, simulated) {
    say(this.title, title.replace(/ ?\(simulated\)/g, ""));
    put(this.badge, { hidden: !simulated });
  }
  /** Show the fate of input: `late` if it has to wait, `ended` if the panel has ended. */
  state({ greeted, queued, running, gone }, { late = "your choice takes effect when the running cell ends", ended = "" }) {
    say(this.waits, gone ? "" : !greeted ? "loading" : !running && ended ? ended : queued ? late : "");
  }
}

/** Code that can be copied. */
export class Code {
  constructor(tag, name, label, hint = "") {
    this.code = element(tag, name, { tabIndex: 0, "aria-label": label });
    this.copied = element("span", "workbench-faint");
    this.root = row(this.code, button("do-copy", "Copy", hint, () => this.copy()), this.copied);
  }
  async copy() {
    try {
      await navigator.clipboard.writeText(this.code.textContent ?? "");
      this.copied.textContent = "copied";
    } catch {
      globalThis.getSelection()?.selectAllChildren(this.code);
      this.copied.textContent = "the browser refused to copy; the text is selected";
    }
    setTimeout(() => (this.copied.textContent = ""), 3000);
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
  /** The answer to a number has come. */
  answered(number) {
    if (number !== this.number || !this.waiting) return;
    const { next } = this;
    this.forget();
    if (next) this.ask(next.value);
  }
  /** Forget the open request: another message has answered it. */
  forget() {
    this.waiting = false;
    this.next = null;
  }
}

/** A `draw` that may be called often: after each drawing it pauses four times as long as that took, but 5 s at most, as a hidden page paints nothing. */
export function paced(draw) {
  const drawing = new Asking((_, number) => {
    const began = performance.now();
    requestAnimationFrame(() => setTimeout(() => setTimeout(() => drawing.answered(number), Math.min(4 * (performance.now() - began), 5000))));
    draw();
  });
  return () => drawing.ask(null);
}

/** Let the browser keep data as a file. */
export function save(name, data, type) {
  const url = URL.createObjectURL(new Blob([data], { type }));
  element("a", "", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
