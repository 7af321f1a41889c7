// @ts-check
// What every live panel does in the browser: find BokehJS, greet the kernel, notice when it does not answer, follow the theme, and rest.
// While nothing moves, nobody looks and nothing is asked it sets no timer, writes nothing to the page and says nothing to the kernel.
import { element, put } from "./controls.js";
import { readTheme } from "./plots.js";

const ANSWER_MS = 1000; // a kernel that takes longer is busy with a cell
const PING_MS = 2000; // while something moves
const SELDOM_MS = 30_000; // while nothing does; without a word for 90 s the kernel takes it that nobody looks
const MOVING_MS = 10_000; // since the last news
const ASK_AGAIN_MS = 5000;
const HELLO_AGAIN_MS = 300; // at first, then after twice the time
const HELLO_SELDOM_MS = 60_000;
const GONE = "The kernel that drew this has ended or was restarted: nobody hears what is done here. Run the cell again.";

// One BokehJS for all panels of the page, sent by the kernel on the first one's request.
const page = (/** @type {any} */ (globalThis).__workbenchPage ??= { bokeh: null, asked: -Infinity, arrived: new EventTarget() });

/** Run the gzipped script of BokehJS and leave whatever other BokehJS the page has as it was. */
async function loadBokeh(version, gzipped) {
  if (page.bokeh) return;
  const installed = () => /** @type {any} */ (globalThis).Bokeh;
  if (!installed()?.[version]) {
    const stream = new Blob([/** @type {BlobPart} */ (gzipped)]).stream().pipeThrough(new DecompressionStream("gzip"));
    const text = await new Response(stream).text();
    const url = URL.createObjectURL(new Blob([text], { type: "text/javascript" }));
    await new Promise((resolve, reject) => {
      const script = Object.assign(document.createElement("script"), { src: url, onload: resolve });
      script.onerror = () => reject(new Error("the browser refused to run BokehJS"));
      document.head.append(script);
    });
    URL.revokeObjectURL(url);
  }
  page.bokeh = installed()[version] ?? installed();
  page.arrived.dispatchEvent(new Event("bokeh"));
}

/**
 * Keep a key from the notebook around a panel: in command mode `b` adds a cell, `x` cuts one, arrows go to another.
 * JupyterLab and Notebook 7 listen on the document, after the controls have had the key. Saving stays theirs.
 * @param {KeyboardEvent} event
 */
function keepKey(event) {
  const saves = (event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "s";
  if (!saves) event.stopPropagation();
}

/**
 * @typedef {{ running: boolean, queued: boolean, gone: boolean, greeted: boolean }} State  of the kernel: `running`, the panel's thread; `queued`, what is said
 *   to it waits for a cell's end; `gone`, the kernel that made the view; `greeted`, it has said what there is to show
 *
 * @typedef {object} Panel  what is specific to a panel
 * @property {(message: any, buffers: DataView[], page: { Bokeh: any, colours: () => Record<string, string> }) => void} greeting  draw from nothing, also again
 * @property {Record<string, (message: any, buffers: DataView[]) => void>} on  any other message of the kernel, by its kind
 * @property {() => (import("./plots.js").Figure | undefined)[]} [figures]  what takes the colours of the theme
 * @property {(state: State) => void} state  what the panel should say of the kernel
 * @property {(seconds: number) => void} [silence]  the kernel has said nothing new for so long; asked every second while something should move
 * @property {(seen: boolean) => void} [look]  somebody can see it now, or nobody
 */

/** Whether somebody can see an element; `changed` is called when that changes. */
class Sight {
  constructor(node, changed) {
    this.onScreen = true;
    this.changed = changed;
    this.observer = new IntersectionObserver((entries) => {
      this.onScreen = entries[entries.length - 1].isIntersecting;
      changed();
    });
    this.observer.observe(node);
    document.addEventListener("visibilitychange", changed);
  }
  get seen() {
    return this.onScreen && !document.hidden;
  }
  dispose() {
    this.observer.disconnect();
    document.removeEventListener("visibilitychange", this.changed);
  }
}

/** The way to the kernel and back: what was sent and not answered yet, and when there is something to do about it. */
class Line {
  constructor(model, broken) {
    this.model = model;
    this.broken = broken;
    this.me = Math.random().toString(36).slice(2);
    this.waiting = new Map(); // number of a message -> when it was sent
    this.sent = 0;
    this.patience = HELLO_AGAIN_MS;
    this.lastSent = this.lastHello = this.lastNews = performance.now();
    this.state = /** @type {State} */ ({ running: true, queued: false, gone: false, greeted: false });
  }
  post(message) {
    if (this.state.gone) return;
    this.sent += 1;
    this.lastSent = performance.now();
    try {
      this.model.send({ ...message, n: this.sent });
    } catch (error) {
      Object.assign(this.state, { gone: true, queued: false, running: false });
      this.waiting.clear();
      this.broken(error);
      return;
    }
    this.waiting.set(this.sent, this.lastSent);
  }
  hello() {
    const now = performance.now();
    const ask = !page.bokeh && (page.asker === this.me || now - page.asked > ASK_AGAIN_MS);
    if (ask) Object.assign(page, { asked: now, asker: this.me });
    this.lastHello = now;
    this.post({ kind: "hello", view: this.me, bokeh: ask });
  }
  /** Something was heard. */
  heard(message) {
    if (message.kind === "pong") {
      for (const number of [...this.waiting.keys()]) if (number <= message.n) this.waiting.delete(number);
      this.state.queued = false;
    } else if (message.kind !== "bokeh") {
      this.lastNews = performance.now();
    }
    if (message.kind === "done") this.state.running = false;
  }
  get since() {
    return (performance.now() - this.lastNews) / 1000;
  }
  /** When a ping is due, at the earliest. */
  pingAt(seen) {
    const { greeted, running } = this.state;
    if (!greeted || !running || !seen || this.waiting.size) return Infinity;
    return this.lastSent + (performance.now() - this.lastNews < MOVING_MS ? PING_MS : SELDOM_MS);
  }
  /** When there is something to do. */
  due(seen) {
    if (this.state.gone) return Infinity;
    const answer = this.state.queued ? Infinity : Math.min(...this.waiting.values()) + ANSWER_MS;
    return Math.min(answer, this.pingAt(seen), this.state.greeted ? Infinity : this.lastHello + this.patience);
  }
  /** Do what is due. */
  tick(seen) {
    const now = performance.now();
    this.state.queued ||= now >= Math.min(...this.waiting.values()) + ANSWER_MS;
    if (!this.state.greeted && now >= this.lastHello + this.patience) {
      // JupyterLab sends to the main shell, which a cell may block, until the subshell that it asked for is there.
      // Or the panel that asked for BokehJS is gone.
      this.patience = Math.min(2 * this.patience, HELLO_SELDOM_MS);
      this.hello();
    } else if (now >= this.pingAt(seen)) {
      this.post({ kind: "ping" });
    }
  }
}

/** The `render` of a panel. `post(message)` sends to the kernel. */
export function livePanel(build) {
  return function render({ model, el }) {
    const root = element("div", "workbench-panel");
    const trouble = element("div", "workbench-problem");
    trouble.setAttribute("role", "status");
    el.append(root, trouble);
    el.addEventListener("keydown", keepKey);

    const say = (text) => put(trouble, { textContent: text });
    const line = new Line(model, (error) => {
      console.warn(error);
      say(GONE);
      show();
    });
    let timer = 0;
    const plan = () => {
      clearTimeout(timer);
      const { greeted, running } = line.state;
      const silent = panel.silence && greeted && running && sight.seen ? performance.now() + 1000 : Infinity;
      const due = Math.min(line.due(sight.seen), silent);
      if (due < Infinity) timer = window.setTimeout(tick, Math.max(0, due - performance.now()));
    };
    const panel = build({
      root,
      post(message) {
        line.post(message);
        plan();
      },
    });
    const sight = new Sight(root, () => {
      panel.look?.(sight.seen);
      wake();
    });

    function guarded(work) {
      try {
        work();
      } catch (error) {
        console.error(error);
        say(`the view could not be drawn: ${error.message}`);
      }
    }
    function show() {
      panel.state(line.state);
      panel.silence?.(line.state.running && line.state.greeted ? line.since : 0);
      plan();
    }
    const tick = () => guarded(() => {
      line.tick(sight.seen);
      show();
    });
    /** Somebody looks or is about to do something: hear whether the kernel would answer. */
    const wake = () => {
      const { greeted, running } = line.state;
      if (greeted && running && sight.seen && !line.waiting.size && performance.now() - line.lastSent > PING_MS) line.post({ kind: "ping" });
      plan();
    };
    for (const name of ["pointerenter", "focusin"]) root.addEventListener(name, wake);

    let theme = {};
    const colours = () => readTheme(theme);
    let pending = null; // a greeting that came before BokehJS
    function greet(message, buffers) {
      pending = [message, buffers];
      if (!page.bokeh) return;
      Object.assign(line.state, { running: message.state === "running", greeted: true });
      el.closest(".workbench-tabs")?.addEventListener("keydown", keepKey); // the tabs' titles; the same one adds nothing
      say(message.problem);
      theme = message.theme;
      panel.greeting(message, buffers, { Bokeh: page.bokeh, colours });
      pending = null;
    }
    const onMessage = (message, buffers) => guarded(() => {
      line.heard(message);
      if (message.kind === "bokeh") loadBokeh(message.version, buffers[0]).catch((error) => say(error.message));
      else if (message.kind === "greeting") greet(message, buffers);
      else if (message.kind === "problem") say(message.text);
      else if (line.state.greeted) panel.on[message.kind]?.(message, buffers);
      show();
    });
    const onBokeh = () => guarded(() => {
      if (pending) greet(...pending);
      show();
    });
    model.on("msg:custom", onMessage);
    page.arrived.addEventListener("bokeh", onBokeh);

    const figures = () => panel.figures?.() ?? [];
    const recolour = () => guarded(() => figures().forEach((figure) => figure?.recolour(colours())));
    const observer = new MutationObserver(() => {
      recolour();
      setTimeout(recolour, 300); // the style sheet may follow the attribute
    });
    observer.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light", "data-jp-theme-name"] });

    line.hello();
    show();
    return () => {
      clearTimeout(timer);
      sight.dispose();
      observer.disconnect();
      page.arrived.removeEventListener("bokeh", onBokeh);
      model.off("msg:custom", onMessage);
      for (const figure of figures()) figure?.dispose();
    };
  };
}
