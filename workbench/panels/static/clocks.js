// @ts-check
// A running tuner: time against energy, the clocks or power limits, the trials in order, the commands.
/** @import { ClocksDrawing, ClocksGreeting, ClocksNews, ClocksWords } from "./messages" */
import { Asking, button, chip, choose, element, folded, labelled, lines, offer, picker, put, refill, row, say, slowdownSlider, space } from "./controls.js";
import { elapsed } from "./formats.js";
import { livePanel } from "./live.js";
import { Described } from "./plots.js";

const ANY = 0.5; // per cent above the slider's highest bound: any slowdown is allowed
const HIGHEST_BOUND = 30;
const CHIPS = { clocks: "clocks", sm: "SM clock", limit: "power limit" }; // in the order of the frames next to the first
const COMMANDS = [
  ["start", "Start tuning", "start tuning, or continue after a pause"], ["stop", "End tuning", "stop tuning and restore the GPU's setting; the cell continues"],
  ["pause", "Pause", "stop trials until you continue"], ["hold", "Hold here", "end the search and keep the best setting so far"],
  ["step", "One trial", "try one more setting, then pause"],
];

/** The report of a tuner: its steps, sentences and events. */
class Words {
  constructor() {
    this.steps = element("span", "workbench-steps");
    this.headline = element("div", "workbench-headline");
    this.saved = element("div", "workbench-saved workbench-result");
    this.details = element("div", "workbench-details");
    this.events = element("div", "workbench-events workbench-faint");
  }
  show(/** @type {ClocksWords | null} */ words, /** @type {ClocksGreeting} */ about) {
    say(this.headline, words?.headline ?? about.nothing);
    say(this.saved, words?.saved ?? "");
    lines(this.details, words?.details ?? []);
    lines(this.events, (words?.events ?? []).map(([at, text]) => `${elapsed(at)}  ${text}`));
    const names = words && words.step === null ? [...about.steps, words.state] : about.steps;
    const current = words ? (words.step ?? about.steps.length) : null;
    const steps = names.map((name, n) => [name, n === current ? { "aria-current": "step" } : {}]);
    refill(this.steps, steps, (step) => element("span", "workbench-step", ...step));
  }
}

/** The commands for a tuner. */
class Commands {
  constructor(post) {
    this.buttons = Object.fromEntries(COMMANDS.map(([kind, words, hint]) => [kind, button(`do-${kind}`, words, hint, () => post({ kind }))]));
    this.objective = picker("workbench-objective", "objective", (name) => post({ kind: "objective", name }));
    this.asking = new Asking((percent, asked) => post({ kind: "slowdown", percent, asked }));
    this.slowdown = slowdownSlider("workbench-slowdown", "slowdown limit in per cent", HIGHEST_BOUND + ANY, (percent) => this.asking.ask(percent));
    this.chips = element("span", "workbench-levels");
    this.bound = labelled("slowdown limit", this.slowdown.input, this.slowdown.words);
    const { start, stop, pause, hold, step } = this.buttons;
    start.classList.add("workbench-primary");
    this.first = row(start, stop, pause, hold, this.bound, space(), this.chips);
    this.more = row(step, labelled("for", this.objective));
  }
  show(/** @type {ClocksNews} */ { words, begins, wanted }, over) {
    const ended = !words || ["done", "refused"].includes(words.state);
    const can = words?.commands ?? {};
    const gone = ended && !begins; // it takes no more commands
    for (const each of [...Object.values(this.buttons), this.bound, this.more]) put(each, { hidden: gone });
    for (const [name, each] of Object.entries(this.buttons)) put(each, { disabled: over || !(can[name] || (name === "start" && ended && begins)) });
    say(this.buttons.start, words?.paused && !ended ? "Continue" : "Start tuning");
    const { objective, slowdown, slowdown: { input } } = this;
    for (const each of [objective, input]) put(each, { disabled: over || !(can.change || (ended && begins)) });
    const [name, bound] = words && !(ended && begins) ? [words.objective, words.bound] : [wanted.objective ?? objective.options[0]?.value, wanted.bound];
    if (document.activeElement !== objective || words?.objective === objective.value) choose(objective, name, name); // it may be one of the caller's own
    if (this.asking.waiting || input.matches(":active")) return;
    if (bound !== null && bound > Number(input.max) - ANY) put(input, { max: String(2 * Math.ceil(bound) + ANY) });
    slowdown.show(bound);
  }
}

function tuner({ root, head, post, page }) {
  const words = new Words();
  const place = element("div", "workbench-plots");
  const commands = new Commands(post);
  head.waits.before(words.steps);
  const more = folded("more: objective, single trials, events", commands.more, words.events);
  root.append(words.saved, words.headline, words.details, commands.first, place, more);
  root.classList.add("workbench-tuner", "workbench-wide");
  let plots = /** @type {Described | null} */ (null);
  let about = /** @type {ClocksGreeting | null} */ (null);
  let drawing = /** @type {ClocksDrawing | null} */ (null);
  let knob = null; // that a person has chosen
  let over = false;

  const shown = () => (drawing?.knobs.includes(knob) ? knob : (drawing?.knobs[0] ?? null));
  function redraw() {
    plots.draw(drawing.figure);
    Object.keys(CHIPS).forEach((name, n) => (plots.figure.frames[n + 1].plot.visible = name === shown()));
    const several = drawing.knobs.length > 1 ? drawing.knobs : [];
    commands.chips.replaceChildren(...several.map((name) => chip(CHIPS[name], name === shown(), () => {
      knob = name;
      redraw();
    })));
  }
  function take(/** @type {ClocksNews} */ message) {
    head.show(message.title, message.simulated);
    commands.asking.answered(message.asked);
    words.show(message.words, about);
    commands.show(message, over);
    put(place, { hidden: !message.drawing && !drawing, role: "group", "aria-label": `energy against time: ${message.words?.headline ?? about.nothing}` });
    if (message.drawing) {
      ({ drawing } = message);
      redraw();
    }
    Object.assign(root, { workbench: { plots, words: message.words, drawing, knob: shown } });
  }
  return {
    greet(message) {
      about = message;
      offer(commands.objective, Object.entries(about.objectives));
      plots ??= new Described(page, place);
      commands.asking.forget();
      over = message.state !== "running";
    },
    take,
    state(state) {
      over = state.greeted && !state.running;
      root.classList.toggle("workbench-queued", state.queued);
    },
  };
}

export default { render: livePanel(tuner) };
