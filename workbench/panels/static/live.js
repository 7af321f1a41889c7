// @ts-check
// The browser's part of every live panel: find BokehJS, greet the kernel, notice when it does not answer, follow the theme, and sleep.
// While nothing moves, the view is hidden and no request is open, it sets no timer, writes nothing to the page and sends nothing.
import { Head, element, say } from "./controls.js";
import { readTheme } from "./plots.js";

const ANSWER_MS = 1000; // a kernel that takes longer is busy with a cell
const PING_MS = 2000; // while something moves
const SELDOM_MS = 30_000; // while nothing does; after 90 s without a message the kernel assumes that the view is hidden
const MOVING_MS = 10_000; // since the last news
const ASK_AGAIN_MS = 5000;
const HELLO_AGAIN_MS = 300; // at first, then after twice the time
const HELLO_SELDOM_MS = 60_000;
const GONE = "The kernel that drew this has ended or was restarted. Run the cell again.";

// One BokehJS for all panels of the page, sent by the kernel on the first one's request.
const shared = (/** @type {any} */ (globalThis).__workbenchPage ??= { bokeh: null, asked: -Infinity, arrived: new EventTarget() });

/** Run the gzipped script of BokehJS and leave whatever other BokehJS the page has as it was. */
async function loadBokeh(version, gzipped) {
  if (shared.bokeh) return;
  const installed = () => /** @type {any} */ (globalThis).Bokeh;
  if (!installed()?.[version]) {
    const stream = new Blob([/** @type {BlobPart} */ (gzipped)]).stream().pipeThrough(new DecompressionStream("gzip"));
    const src = URL.createObjectURL(await new Response(stream, { headers: { "content-type": "text/javascript" } }).blob());
    await new Promise((onload, reject) => {
      const onerror = () => reject(new Error("the browser refused to run BokehJS"));
      document.head.append(element("script", "", { onload, onerror, src }));
    });
    URL.revokeObjectURL(src);
  }
  shared.bokeh = installed()[version] ?? installed();
  shared.arrived.dispatchEvent(new Event("bokeh"));
}

/**
 * Keep a key from the notebook around a panel: in command mode `b` adds a cell, `x` cuts one, arrows go to another.
 * JupyterLab and Notebook 7 listen on the document, after the controls have had the key. Saving stays theirs.
 */
function keepKey(event) {
  const saves = (event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "s";
  if (!saves) event.stopPropagation();
}

/**
 * @typedef {{ running: boolean, queued: boolean, gone: boolean, greeted: boolean }} State  of the kernel: `running`, the panel's thread; `queued`, messages
 *   to it wait for a cell's end; `gone`, the kernel that made the view; `greeted`, it has sent the greeting
 * @typedef {{ Bokeh: any, colours: () => Record<string, string>, figures: import("./plots.js").Figure[], seen: () => boolean }} Page  what a figure needs,
 *   the figures made so far, and whether they are visible
 *
 * @typedef {object} Panel  what is specific to a panel
 * @property {(message: any) => void} [greet]  make the missing parts for a greeting, which answers earlier requests
 * @property {(message: any, buffers: DataView[]) => void} take  draw a greeting or news
 * @property {Record<string, (message: any, buffers: DataView[]) => void>} [on]  any other message of the kernel, by its kind
 * @property {{ late?: string, ended?: string } | null} [waits]  its head's texts for waiting input; null if the panel shows them itself
 * @property {(state: State, silent_s: number) => void} [state]  shows the state of the kernel, and the seconds since its last news
 * @property {boolean} [moves]  `state` is called every second while something should move
 * @property {() => void} [look]  called when it becomes visible or hidden
 */

/** Watch until `signal` whether an element is visible; `changed` is called when that changes. Returns a function that reports it. */
function watchSight(node, changed, signal) {
  let onScreen = true;
  const observer = new IntersectionObserver((entries) => {
    onScreen = entries[entries.length - 1].isIntersecting;
    changed();
  });
  observer.observe(node);
  document.addEventListener("visibilitychange", changed, { signal });
  signal.addEventListener("abort", () => observer.disconnect());
  return () => onScreen && !document.hidden;
}

/** The connection to the kernel: messages without an answer, and the time of the next action. */
class Line {
  constructor(model, broken) {
    this.model = model;
    this.broken = broken;
    this.me = Math.random().toString(36).slice(2);
    this.waiting = new Map(); // number of a message -> when it was sent
    this.sent = 0;
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
  hello(patience = HELLO_AGAIN_MS) {
    this.patience = patience;
    const now = performance.now();
    const ask = !shared.bokeh && (shared.asker === this.me || now - shared.asked > ASK_AGAIN_MS);
    if (ask) Object.assign(shared, { asked: now, asker: this.me });
    this.lastHello = now;
    this.post({ kind: "hello", view: this.me, bokeh: ask });
  }
  heard(message) {
    if (message.kind === "pong") {
      for (const number of [...this.waiting.keys()]) if (number <= message.n) this.waiting.delete(number);
      this.state.queued = false;
    } else if (message.kind !== "bokeh") {
      this.lastNews = performance.now();
    }
    if (message.kind === "done") this.state.running = false;
  }
  get live() {
    return this.state.greeted && this.state.running;
  }
  /** Seconds since the last news, while there should be some. */
  get silence() {
    return this.live ? (performance.now() - this.lastNews) / 1000 : 0;
  }
  /** Time of the next ping while the view is visible; at least `least` after the last message. */
  pingAt(seen, least = performance.now() - this.lastNews < MOVING_MS ? PING_MS : SELDOM_MS) {
    return this.live && seen && !this.waiting.size ? this.lastSent + least : Infinity;
  }
  /** The next actions and their times, for a visible and a hidden view. @returns {[number, () => void][]} */
  plans(seen) {
    const { gone, queued, greeted } = this.state;
    if (gone) return [];
    return [
      [queued ? Infinity : Math.min(...this.waiting.values()) + ANSWER_MS, () => (this.state.queued = true)],
      // JupyterLab sends to the main shell, which a cell may block, until the subshell that it asked for is there.
      // Or the panel that asked for BokehJS is gone.
      [greeted ? Infinity : this.lastHello + this.patience, () => this.hello(Math.min(2 * this.patience, HELLO_SELDOM_MS))],
      [this.pingAt(seen), () => this.post({ kind: "ping" })],
    ];
  }
  tick(seen) {
    for (const [at, work] of this.plans(seen)) if (performance.now() >= at) work();
  }
}

/** The `render` of a panel. `post(message)` sends to the kernel, figures are made on `page`. */
export function livePanel(/** @type {(given: { root: HTMLElement, head: Head, post: (message: object) => void, page: Page }) => Panel} */ build) {
  return function render({ model, el }) {
    const head = new Head();
    const root = element("div", "workbench-panel", head.root);
    const trouble = element("div", "workbench-problem", { role: "status" });
    el.append(root, trouble);
    el.addEventListener("keydown", keepKey);

    let theme = {};
    let timer = 0;
    const end = new AbortController();
    const page = { get Bokeh() { return shared.bokeh; }, colours: () => readTheme(theme), seen: () => seen(), figures: [] };
    const line = new Line(model, (error) => {
      console.warn(error);
      say(trouble, GONE);
      show();
    });
    const post = (message) => {
      line.post(message);
      plan();
    };
    const plan = () => {
      clearTimeout(timer);
      const silent = panel.moves && line.live && seen() ? performance.now() + 1000 : Infinity;
      const due = Math.min(silent, ...line.plans(seen()).map(([at]) => at));
      if (due < Infinity) timer = window.setTimeout(tick, Math.max(0, due - performance.now()));
    };
    /** A person looks at the view or is about to act: check whether the kernel answers. */
    const wake = () => {
      if (performance.now() > line.pingAt(seen(), PING_MS)) line.post({ kind: "ping" });
      plan();
    };
    const panel = build({ root, head, post, page });
    const seen = watchSight(root, () => {
      panel.look?.();
      wake();
    }, end.signal);
    for (const name of ["pointerenter", "focusin"]) root.addEventListener(name, wake);

    const guarded = (work) => {
      try {
        work();
      } catch (error) {
        console.error(error);
        say(trouble, `the view could not be drawn: ${error.message}`);
      }
    };
    const show = () => {
      if (panel.waits !== null) head.state(line.state, panel.waits ?? {});
      panel.state?.(line.state, line.silence);
      plan();
    };
    const tick = () => guarded(() => {
      line.tick(seen());
      show();
    });

    let waiting = []; // the last greeting and what came after it, while BokehJS is on its way
    function draw(message, buffers) {
      if (message.kind === "greeting") {
        Object.assign(line.state, { running: message.state === "running", greeted: true });
        el.closest(".workbench-tabs")?.addEventListener("keydown", keepKey); // the tabs' titles; the same one adds nothing
        say(trouble, message.problem);
        theme = message.theme;
        panel.greet?.(message);
      }
      if (line.state.greeted) (["greeting", "news"].includes(message.kind) ? panel.take : panel.on?.[message.kind])?.(message, buffers);
    }
    const onMessage = (message, buffers) => guarded(() => {
      line.heard(message);
      if (message.kind === "bokeh") loadBokeh(message.version, buffers[0]).catch((error) => say(trouble, error.message));
      else if (message.kind === "problem") say(trouble, message.text);
      else if (shared.bokeh) draw(message, buffers);
      else waiting = message.kind === "greeting" ? [[message, buffers]] : [...waiting, [message, buffers]];
      show();
    });
    /** The kernel was connected or is gone, as after a restart: sending fails where it is gone. */
    const onConnection = () => guarded(() => {
      line.post({ kind: "ping" });
      show();
    });
    const onBokeh = () => guarded(() => {
      for (const each of waiting.splice(0)) draw(...each);
      show();
    });
    model.on("msg:custom", onMessage);
    model.on("comm_live_update", onConnection);
    shared.arrived.addEventListener("bokeh", onBokeh, { signal: end.signal });

    const recolour = () => guarded(() => page.figures.forEach((figure) => figure.recolour()));
    const observer = new MutationObserver(() => {
      recolour();
      setTimeout(recolour, 300); // the style sheet may follow the attribute
    });
    observer.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light", "data-jp-theme-name"] });

    line.hello();
    show();
    return () => {
      clearTimeout(timer);
      end.abort();
      observer.disconnect();
      model.off("msg:custom", onMessage);
      model.off("comm_live_update", onConnection);
      for (const figure of page.figures) figure.dispose();
    };
  };
}
