// @ts-check
// A tuner at work: time against energy, the clocks or power limits, the probes in order, what can be asked of it.
/** @import { ClocksDrawing, ClocksGreeting, ClocksNews, ClocksWords } from "./messages" */
import { ClocksPlots } from "./clocks_plots.js";
import { Asking, Head, button, chip, element, labelled, lines, offer, picker, put, range, row, space } from "./controls.js";
import { floats, minutes } from "./formats.js";
import { livePanel } from "./live.js";

const ANY = 0.5; // per cent above the slider's highest bound: any slowdown is allowed
const HIGHEST_BOUND = 30;
const CHIPS = { clocks: "clocks", sm: "SM clock", limit: "power limit" };
const LATE = "what you choose is done when the kernel has finished its cell";
const COMMANDS = [
  ["start", "Start", "begin, or go on after a pause"], ["step", "One probe", "try one more setting, then pause"], ["pause", "Pause", "try no further setting for now"],
  ["hold", "Hold here", "search no further and keep the best setting so far"], ["stop", "Stop", "put the GPU back as it was and tune no more"],
];

/** The slider of the allowed slowdown. */
class Slowdown {
  constructor(post) {
    this.asking = new Asking((percent, asked) => post({ kind: "slowdown", percent, asked }));
    this.slider = range("workbench-slowdown", "allowed slowdown in per cent", { min: 0, max: HIGHEST_BOUND + ANY, step: 0.5 });
    this.words = element("span", "workbench-faint workbench-slowdown-words");
    this.root = labelled("slower by at most", this.slider, this.words);
    this.slider.addEventListener("input", () => {
      const percent = Number(this.slider.value) >= Number(this.slider.max) ? null : Number(this.slider.value);
      this.say(percent);
      this.asking.ask(percent);
    });
  }
  say(percent) {
    put(this.words, { textContent: percent === null ? "any" : `${Number(percent.toFixed(1))} %` });
  }
  show(percent) {
    if (this.asking.waiting || (document.activeElement === this.slider && this.slider.matches(":active"))) return;
    if (percent !== null && percent > Number(this.slider.max) - ANY) this.slider.max = String(2 * Math.ceil(percent) + ANY);
    this.slider.value = String(percent ?? this.slider.max);
    this.say(percent);
  }
}

/** What a tuner says: its steps, sentences and events. */
class Words {
  constructor() {
    this.steps = element("span", "workbench-steps");
    this.headline = element("div", "workbench-headline");
    this.saved = element("div", "workbench-saved");
    this.details = element("div", "workbench-details");
    this.events = element("div", "workbench-events workbench-faint");
  }
  show(/** @type {ClocksWords | null} */ words, /** @type {ClocksGreeting} */ about) {
    put(this.headline, { textContent: words?.headline ?? about.nothing });
    put(this.saved, { textContent: words?.saved ?? "" });
    lines(this.details, words?.details ?? []);
    lines(this.events, (words?.events ?? []).map(([at, text]) => `${minutes(at)}  ${text}`));
    const names = words && words.step === null ? [...about.steps, words.state] : about.steps;
    this.steps.replaceChildren(...names.map((name, number) => {
      const step = element("span", "workbench-step", name);
      if (words && number === (words.step ?? about.steps.length)) step.setAttribute("aria-current", "step");
      return step;
    }));
  }
}

/** What can be asked of a tuner. */
class Commands {
  constructor(post) {
    this.buttons = Object.fromEntries(COMMANDS.map(([kind, words, hint]) => [kind, button(`do-${kind}`, words, hint, () => post({ kind }))]));
    this.objective = picker("workbench-objective", "what is to be small", (name) => post({ kind: "objective", name }));
    this.slowdown = new Slowdown(post);
    this.chips = element("span", "workbench-levels");
    this.root = element(
      "div", "", row(...Object.values(this.buttons), space(), this.chips), row(labelled("for", this.objective), this.slowdown.root),
    );
  }
  show(/** @type {ClocksNews} */ { words, begins, wanted }, over) {
    const ended = !words || ["done", "refused"].includes(words.state);
    const can = words?.commands ?? {};
    for (const [name, each] of Object.entries(this.buttons)) put(each, { disabled: over || !(can[name] || (name === "start" && ended && begins)) });
    put(this.buttons.start, { textContent: words?.paused && !ended ? "Go on" : "Start" });
    const { objective, slowdown } = this;
    for (const each of [objective, slowdown.slider]) put(each, { disabled: over || !(can.change || (ended && begins)) });
    const [name, bound] = words && !(ended && begins) ? [words.objective, words.bound] : [wanted.objective ?? objective.options[0]?.value, wanted.bound];
    if (name && ![...objective.options].some((option) => option.value === name)) objective.add(new Option(name, name)); // one of the caller's own
    if (document.activeElement !== objective || words?.objective === objective.value) objective.value = name;
    slowdown.show(bound);
  }
}

function tuner({ root, post }) {
  const words = new Words();
  const head = new Head(words.steps);
  const place = element("div", "workbench-plots");
  const commands = new Commands(post);
  root.append(head.root, words.headline, words.saved, words.details, place, ...commands.root.children, words.events);
  root.classList.add("workbench-tuner");
  let plots = /** @type {ClocksPlots | null} */ (null);
  let about = /** @type {ClocksGreeting | null} */ (null);
  let drawing = /** @type {ClocksDrawing | null} */ (null);
  let table = new Float32Array();
  let knob = null; // that a person has chosen
  let over = false;

  const shown = () => (drawing?.knobs.includes(knob) ? knob : (drawing?.knobs[0] ?? null));
  function redraw() {
    plots.draw(drawing, table, shown());
    const several = drawing.knobs.length > 1 ? drawing.knobs : [];
    commands.chips.replaceChildren(...several.map((name) => chip(CHIPS[name], name === shown(), () => {
      knob = name;
      redraw();
    })));
  }
  function take(/** @type {ClocksNews} */ message, buffers) {
    head.show(message.title, message.simulated);
    words.show(message.words, about);
    commands.show(message, over);
    if (message.drawing) {
      ({ drawing } = message);
      table = floats(buffers);
      redraw();
    }
    Object.assign(root, { workbench: { plots, words: message.words, drawing, table, slowdown: commands.slowdown, knob: shown } });
  }
  return {
    figures: () => [plots?.figure],
    greeting(message, buffers, { Bokeh, colours }) {
      about = message;
      offer(commands.objective, Object.entries(about.objectives));
      plots ??= new ClocksPlots(Bokeh, place, colours(), message.inks);
      commands.slowdown.asking.forget(); // what was asked before is answered by this
      over = message.state !== "running";
      take(message, buffers);
    },
    on: {
      news(message, buffers) {
        if (message.asked !== undefined) commands.slowdown.asking.answered(message.asked);
        take(message, buffers);
      },
    },
    state(state) {
      over = state.greeted && !state.running;
      head.state(state, LATE);
      root.classList.toggle("workbench-queued", state.queued);
    },
  };
}

export default { render: livePanel(tuner) };
