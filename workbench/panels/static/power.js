// @ts-check
// The live power view: header in words, plots of power, SM clock and utilisation, a limit slider, a Stop button.
/** @import { Gpu, LimitAnswer, PowerGreeting, PowerNews } from "./messages" */
import { Asking, Head, button, chip, element, picker, put, range, row, space, swatch } from "./controls.js";
import { elapsed, floats, joules, watts } from "./formats.js";
import { livePanel } from "./live.js";
import { PeriodView } from "./period.js";
import { PowerPlots } from "./power_plots.js";
import { COLUMNS, LIMIT, POWER, Series, Spans, axisEnd, periodTables } from "./series.js";

const STEP_W = 5;
const SILENT_S = 3;

/** The slider that asks for power limits; a drag skips what it passed while a request is under way. */
class LimitControl {
  constructor(post) {
    this.asking = new Asking((value) => post({ kind: "limit", uuids: this.targets().map((number) => this.gpus[number].uuid), watts: value }));
    this.asked = null;
    this.chosen = picker("", "GPUs whose power limit is set", () => {
      this.asked = null;
      this.fit();
    });
    this.slider = range("", "Power limit in watts", { step: STEP_W });
    this.words = element("span", "workbench-limit-words");
    this.low = element("span", "workbench-faint");
    this.high = element("span", "workbench-faint");
    this.root = element("div", "workbench-control", element("span", "", "Power limit"), this.chosen, this.low, this.slider, this.high, this.words);
    this.slider.addEventListener("input", () => {
      this.asked = Number(this.slider.value);
      this.asking.ask(this.asked);
      this.tell();
    });
  }
  greeting(/** @type {Gpu[]} */ gpus) {
    this.gpus = gpus;
    const before = this.chosen.value;
    const options = gpus.map((gpu, number) => new Option(`GPU ${gpu.index}`, String(number)));
    if (gpus.length > 1) options.unshift(new Option("all GPUs", "all"));
    this.chosen.replaceChildren(...options);
    if (before) this.chosen.value = before;
    this.chosen.hidden = gpus.length === 1;
    this.inForce = gpus.map(() => NaN);
    this.asking.forget();
    this.fit();
  }
  targets() {
    return this.chosen.value === "all" ? this.gpus.map((_, number) => number) : [Number(this.chosen.value || 0)];
  }
  /** The reason why the chosen GPUs cannot be set, empty where they can. */
  reason() {
    return this.targets().map((number) => this.gpus[number].reason).find(Boolean) ?? "";
  }
  fit() {
    const targets = this.targets().map((number) => this.gpus[number]);
    this.slider.min = String(Math.max(...targets.map((gpu) => gpu.low ?? 0)));
    this.slider.max = String(Math.min(...targets.map((gpu) => gpu.high ?? 0)));
    this.low.textContent = watts(Number(this.slider.min));
    this.high.textContent = watts(Number(this.slider.max));
    this.fitted = false;
    this.tell();
  }
  answered(/** @type {LimitAnswer} */ { applied }) {
    this.gpus.forEach((gpu, number) => (this.inForce[number] = applied[gpu.uuid] ?? this.inForce[number]));
    this.asking.answered();
    this.tell();
  }
  /** Limits as sampled; another program may have changed them. */
  sampled(limits) {
    limits.forEach((limit, number) => {
      if (Number.isFinite(limit)) this.inForce[number] = limit;
    });
    if (!this.fitted && this.targets().every((number) => Number.isFinite(this.inForce[number]))) {
      this.slider.value = String(this.inForce[this.targets()[0]]);
      this.fitted = true;
    }
    this.tell();
  }
  tell() {
    const reason = this.reason();
    const values = [...new Set(this.targets().map((number) => watts(this.inForce[number])))];
    const inForce = `${values.join(" / ")} in force`;
    put(this.words, { textContent: reason ? `${inForce}; ${reason}` : this.asked === null ? inForce : `asked ${watts(this.asked)} · ${inForce}` });
  }
  enable(enabled) {
    put(this.slider, { disabled: !enabled || Boolean(this.reason()) });
    put(this.chosen, { disabled: !enabled });
  }
}

/** What the kernel has sent of a run: samples, marks and iterations. */
class Run {
  constructor(/** @type {PowerGreeting} */ about) {
    this.series = about.gpus.map(() => new Series());
    this.marks = new Map();
    this.spans = new Spans();
    this.elapsed = 0;
    this.energy = /** @type {(number | null)[]} */ ([]);
  }
  /** Take news in; the tables of the iterations, where there are new ones. */
  take(/** @type {PowerNews} */ message, buffers) {
    const table = floats(buffers);
    let first = 0;
    message.counts.forEach((count, number) => {
      this.series[number].append(table, first, count);
      first += count;
    });
    for (const mark of message.marks ?? []) this.marks.set(mark[0], mark);
    ({ elapsed: this.elapsed, energy: this.energy } = message);
    if (!message.period) return null;
    const tables = periodTables(message.period.sizes, table, first * COLUMNS.length);
    this.spans.take(message.period.since, tables[0]);
    return tables;
  }
  last(column) {
    return this.series.map((one) => one.last(column) ?? NaN);
  }
  words() {
    const power = this.last(POWER).reduce((sum, value) => sum + value, 0);
    const energy = this.energy.includes(null) ? null : this.energy.reduce((sum, value) => sum + value, 0);
    return `${watts(power)} now · ${joules(energy)} so far · ${elapsed(this.elapsed)}`;
  }
}

/** Which of several GPUs are drawn, and the power of each. */
class Legend {
  constructor(changed) {
    this.changed = changed;
    this.root = element("div", "workbench-legend");
    this.values = /** @type {HTMLElement[]} */ ([]);
    this.visible = /** @type {boolean[]} */ ([]);
  }
  show(/** @type {Gpu[]} */ gpus) {
    this.visible = gpus.map(() => true);
    const several = gpus.length > 1 ? gpus : [];
    this.values = several.map(() => element("span", "workbench-chip-value"));
    this.root.replaceChildren(...several.map((gpu, number) => {
      const made = chip(`GPU ${gpu.index} `, true, () => {
        this.visible[number] = !this.visible[number];
        made.setAttribute("aria-pressed", String(this.visible[number]));
        this.changed();
      }, swatch(gpu.colour));
      made.append(this.values[number]);
      made.title = `${gpu.name}: show or hide`;
      return made;
    }));
    this.root.hidden = !several.length;
  }
  say(power) {
    this.values.forEach((value, number) => put(value, { textContent: watts(power[number]) }));
  }
}

function powerView({ root, post }) {
  const state = element("span", "workbench-state");
  const numbers = element("span", "workbench-numbers");
  const hint = element("span", "workbench-hint");
  const width = button("span", "", "", () => {
    whole = !whole;
    draw();
  });
  const stop = button("stop", "Stop", "", () => {
    stopping = true;
    post({ kind: "stop" });
  });
  const head = new Head(state, space(), hint, width, stop);
  const legend = new Legend(draw);
  const place = element("div", "workbench-plots");
  const limit = new LimitControl(post);
  const period = new PeriodView(post);
  const controls = row(limit.root);
  root.append(head.root, numbers, legend.root, place, controls, period.root);
  for (const each of [width, stop, controls]) each.hidden = true;

  let plots = /** @type {PowerPlots | null} */ (null);
  let about = /** @type {PowerGreeting | null} */ (null);
  let run = /** @type {Run | null} */ (null);
  let whole = false;
  let seen = true;
  let stopping = false;
  let [words, quiet] = ["loading", ""];

  function take(message, buffers) {
    const tables = run.take(message, buffers);
    if (tables) period.take(message.period, tables);
    legend.say(run.last(POWER));
    limit.sampled(run.last(LIMIT));
    put(numbers, { textContent: run.words() });
  }
  function draw() {
    if (!plots || !seen) return;
    const end = run.elapsed;
    const long = end > about.window;
    plots.draw(run.series, [...run.marks.values()], long && !whole ? end - about.window : 0, axisEnd(end, about.window), legend.visible, run.spans, period.about?.gpu);
    period.draw();
    put(width, { hidden: !long, textContent: whole ? `Last ${about.window} s` : "Whole run" });
  }
  return {
    figures: () => [plots?.figure, period.plots?.figure],
    greeting(message, buffers, { Bokeh, colours }) {
      about = message;
      run = new Run(message);
      if (message.follows) period.greeting(message.gpus, Bokeh, colours);
      head.show(message.title, message.gpus.some((gpu) => gpu.simulated));
      limit.greeting(message.gpus);
      if (!plots) {
        legend.show(message.gpus);
        plots = new PowerPlots(Bokeh, place, message.gpus, colours());
      }
      take(message, buffers);
      // For tests and curious people: what is drawn, without looking at pixels.
      const { series, marks, spans } = run;
      Object.assign(root, { workbench: { series, plots, marks: () => [...marks.values()], period, spans: () => spans.rows, colours } });
      draw();
    },
    on: {
      limit: (message) => limit.answered(message),
      news(message, buffers) {
        take(message, buffers);
        draw();
      },
    },
    look(now) {
      seen = now;
      draw();
    },
    silence(seconds) {
      quiet = seconds > SILENT_S ? ` · nothing heard for ${seconds.toFixed(0)} s` : "";
      put(state, { textContent: words + quiet });
    },
    state({ running, queued, greeted }) {
      words = !greeted ? (queued ? "the view comes when the cell ends" : "loading") : !running ? "done" : stopping ? "stopping" : "running";
      put(state, { title: queued ? "input waits until the kernel has finished the cell" : "", textContent: words + (greeted ? quiet : "") });
      put(state.dataset, { state: !greeted ? "loading" : running ? "running" : "done" });
      const live = running && !queued && greeted;
      root.classList.toggle("workbench-queued", queued);
      put(hint, { textContent: queued && running && greeted ? "queued until the cell ends" : "" });
      put(stop, { disabled: !live, hidden: !about?.stop || !running });
      put(controls, { hidden: !about?.slider || !running });
      if (about) limit.enable(live);
    },
  };
}

export default { render: livePanel(powerView) };
