// What every live panel does in the browser: find BokehJS, greet the kernel, notice when it does not answer, follow the theme.

const ANSWER_MS = 1000; // a kernel that takes longer is busy with a cell
const PING_MS = 2000;
const ASK_AGAIN_MS = 5000;
const HELLO_AGAIN_MS = 300; // at first, then after twice the time
const HELLO_SELDOM_MS = 60_000;
const GONE = "The kernel that drew this has ended or was restarted: nobody hears what is done here. Run the cell again.";

// One BokehJS for all panels of the page, sent by the kernel on the first one's request.
const page = (globalThis.__workbenchPage ??= { bokeh: null, asked: -Infinity, arrived: new EventTarget() });

/** Run the gzipped script of BokehJS and leave whatever other BokehJS the page has as it was. */
async function loadBokeh(version, gzipped) {
  if (page.bokeh) return;
  if (!globalThis.Bokeh?.[version]) {
    const stream = new Blob([gzipped]).stream().pipeThrough(new DecompressionStream("gzip"));
    const text = await new Response(stream).text();
    const url = URL.createObjectURL(new Blob([text], { type: "text/javascript" }));
    await new Promise((resolve, reject) => {
      const script = Object.assign(document.createElement("script"), { src: url, onload: resolve });
      script.onerror = () => reject(new Error("the browser refused to run BokehJS"));
      document.head.append(script);
    });
    URL.revokeObjectURL(url);
  }
  page.bokeh = globalThis.Bokeh[version] ?? globalThis.Bokeh;
  page.arrived.dispatchEvent(new Event("bokeh"));
}

/** An element, its class, and what is in it. */
export function element(tag, name = "", ...children) {
  const made = document.createElement(tag);
  if (name) made.className = name;
  made.append(...children);
  return made;
}

/**
 * Keep a key from the notebook around a panel: in command mode `b` adds a cell, `x` cuts one, arrows go to another.
 * JupyterLab and Notebook 7 listen on the document, after the controls have had the key. Saving stays theirs.
 */
function keepKey(event) {
  const saves = (event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "s";
  if (!saves) event.stopPropagation();
}

/** The colours of the page's theme: {what: [variable, on light, on dark]} -> {what: colour}. */
export function readTheme(variables) {
  const dark = document.body.dataset.jpThemeLight === "false";
  const style = getComputedStyle(document.body);
  const read = ([variable, onLight, onDark]) => style.getPropertyValue(variable).trim() || (dark ? onDark : onLight);
  return Object.fromEntries(Object.entries(variables).map(([what, names]) => [what, read(names)]));
}

/** Give plots the page's colours: `frames` are {plot, grid, axes}, `ink` are pairs of a glyph and its colour that is the text's. */
export function colourFrames(frames, ink, colours) {
  for (const { plot, grid, axes } of frames) {
    if (plot) plot.title.text_color = colours.faint_text;
    grid.grid_line_color = colours.line;
    for (const axis of axes) {
      axis.setv({ axis_line_color: colours.frame, major_tick_line_color: colours.frame, major_label_text_color: colours.faint_text, axis_label_text_color: colours.faint_text });
    }
  }
  for (const [glyph, property] of ink) glyph[property] = colours.text;
}

/**
 * The `render` of a panel. `build({ root, post })` makes what is specific to it and returns
 *
 *   greeting(message, buffers, Bokeh)   draw from nothing, also a second time
 *   message(message, buffers)           any other message of the kernel
 *   recolour()                          the theme has changed
 *   state({ running, queued, gone, silent })  what the panel should say of the kernel; `silent` in seconds
 *   dispose()
 *
 * `post(message)` sends to the kernel.
 */
export function livePanel(build) {
  return function render({ model, el }) {
    const root = element("div", "workbench-panel");
    const trouble = element("div", "workbench-problem");
    trouble.setAttribute("role", "status");
    el.append(root, trouble);
    el.addEventListener("keydown", keepKey);

    const waiting = new Map(); // number of a message -> when it was sent
    let sent = 0;
    let running = true;
    let queued = false;
    let gone = false; // the kernel that made this
    let greeted = false;
    let patience = HELLO_AGAIN_MS;
    let lastHello = 0;
    const me = Math.random().toString(36).slice(2);
    let lastNews = performance.now();

    function post(message) {
      if (gone) return;
      sent += 1;
      try {
        model.send({ ...message, n: sent });
      } catch (error) {
        gone = true;
        queued = running = false;
        waiting.clear();
        console.warn(error);
        trouble.textContent = GONE;
        return;
      }
      waiting.set(sent, performance.now());
    }
    function hello() {
      const now = performance.now();
      const ask = !page.bokeh && (page.asker === me || now - page.asked > ASK_AGAIN_MS);
      if (ask) Object.assign(page, { asked: now, asker: me });
      lastHello = now;
      post({ kind: "hello", view: me, bokeh: ask });
    }
    const panel = build({ root, post });

    function show() {
      panel.state({ running, queued, gone, silent: running ? (performance.now() - lastNews) / 1000 : 0, greeted });
    }
    function guarded(work) {
      try {
        work();
      } catch (error) {
        console.error(error);
        trouble.textContent = `the view could not be drawn: ${error.message}`;
      }
    }

    let pending = null; // a greeting that came before BokehJS
    function greet(message, buffers) {
      pending = [message, buffers];
      if (!page.bokeh) return;
      running = message.state === "running";
      greeted = true;
      el.closest(".workbench-tabs")?.addEventListener("keydown", keepKey); // the tabs' titles; the same one adds nothing
      trouble.textContent = message.problem;
      panel.greeting(message, buffers, page.bokeh);
      pending = null;
    }
    function receive(message, buffers) {
      if (message.kind !== "pong" && message.kind !== "bokeh") lastNews = performance.now();
      if (message.kind === "pong") {
        for (const number of [...waiting.keys()]) if (number <= message.n) waiting.delete(number);
        queued = false;
      } else if (message.kind === "bokeh") {
        loadBokeh(message.version, buffers[0]).catch((error) => (trouble.textContent = error.message));
        return;
      } else if (message.kind === "greeting") {
        greet(message, buffers);
      } else if (message.kind === "problem") {
        trouble.textContent = message.text;
      } else if (message.kind === "done") {
        running = false;
      } else if (greeted) {
        panel.message(message, buffers);
      }
      show();
    }
    const onMessage = (message, buffers) => guarded(() => receive(message, buffers));
    const onBokeh = () => guarded(() => {
      if (pending) greet(...pending);
      show();
    });
    model.on("msg:custom", onMessage);
    page.arrived.addEventListener("bokeh", onBokeh);

    let lastPing = performance.now();
    const timer = setInterval(() => guarded(() => {
      const now = performance.now();
      const oldest = Math.min(...waiting.values(), Infinity);
      queued = !gone && now - oldest > ANSWER_MS;
      if (!greeted && now - lastHello > patience) {
        // JupyterLab sends to the main shell, which a cell may block, until the subshell that it asked for is there.
        // Or the panel that asked for BokehJS is gone.
        patience = Math.min(2 * patience, HELLO_SELDOM_MS);
        hello();
      } else if (greeted && running && !waiting.size && now - lastPing > PING_MS) {
        lastPing = now;
        post({ kind: "ping" });
      }
      show();
    }), 100);

    const recolour = () => guarded(() => greeted && panel.recolour());
    const observer = new MutationObserver(() => {
      recolour();
      setTimeout(recolour, 300); // the style sheet may follow the attribute
    });
    observer.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light", "data-jp-theme-name"] });

    hello();
    show();
    return () => {
      clearInterval(timer);
      observer.disconnect();
      page.arrived.removeEventListener("bokeh", onBokeh);
      model.off("msg:custom", onMessage);
      panel.dispose();
    };
  };
}
