// @ts-check
// Policies over a job log, simulated: what is chosen, how far the runs are, what came of them, one job or node of them.
/** @import { ClusterBar, ClusterChosen, ClusterDrawn, ClusterGreeting, ClusterNews, ClusterRun, ClusterSwept } from "./messages" */
import { Drill } from "./cluster_drill.js";
import { ClusterSettings } from "./cluster_settings.js";
import { Legend, button, cells, element, folded, labelled, lines, offer, picker, press, put, refill, row, say, swatch, table, toggle } from "./controls.js";
import { decades, floats, signed, steps } from "./formats.js";
import { livePanel } from "./live.js";
import { Figure, TEXT, addErrors, column, columns, fill, fit, sizeOf } from "./plots.js";

const MOST_MARKS = 10; // values of a sweep that are written below its axis
const LABEL = 58; // pixels beside a bar
const PLOT = { height: 220 };
const LINES = { ...columns("xs", "ys"), line_color: column("colour"), line_dash: column("dash"), line_width: 1.6, line_join: "round" };

/** A frame with a line for each policy. */
class Lines {
  constructor(figure, tooltips) {
    this.frame = figure.frame({ plot: PLOT });
    this.plot = this.frame.plot;
    this.figure = figure;
    this.layer = figure.glyph(this.frame, "MultiLine", LINES);
    figure.hover(this.frame, [this.layer], [["", "@text"], ...tooltips], { line_policy: "nearest" });
  }
  plain(count) {
    this.frame.below.setv({ ticker: this.figure.ticker(count), major_label_overrides: new Map() });
  }
}

/** The energy of each policy against the first's, a bar each with its name, with the part of nodes without a job. */
class Bars {
  constructor(figure) {
    this.frame = figure.frame({ label: "pale: empty nodes", title: "Energy, share of the first policy's", plot: PLOT });
    this.frame.grid.visible = false;
    this.figure = figure;
    const sides = { ...columns("y"), left: column("low"), right: column("high"), height: 0.62, line_color: null };
    this.layer = figure.glyph(this.frame, "HBar", { ...sides, fill_color: column("colour"), fill_alpha: column("alpha") });
    figure.hover(this.frame, [this.layer], [["", "@text"], ["against the first", "@ratio{0.000}"]]);
    this.errors = addErrors(figure, this.frame, { line_color: TEXT, line_width: 1.6, line_alpha: 1 });
    this.labels = figure.words(this.frame, { text_baseline: "middle", x_offset: 6 });
  }
  draw(/** @type {ClusterBar[]} */ bars, colour) {
    const all = bars.map(({ owned, unowned, error, text, number }, n) => {
      return { y: -n, owned, x: owned + unowned, dx: error ?? 0, text, colour: colour(number) };
    });
    const room = 1 - Math.min(0.5, LABEL / sizeOf(this.frame)[0]);
    fit(this.frame, [0, Math.max(0.1, ...all.map(({ x, dx }) => x + dx)) / room], [0.4 - Math.max(bars.length, 1), 0.6]);
    this.figure.ticks(this.frame.left, all.map(({ y }) => y), all.map(({ text }) => text));
    fill(this.layer, [
      ...all.map((bar) => ({ ...bar, ratio: bar.x, low: 0, high: bar.owned, alpha: 1 })),
      ...all.map((bar) => ({ ...bar, ratio: bar.x, low: bar.owned, high: bar.x, alpha: 0.4 })),
    ]);
    this.errors(all);
    fill(this.labels, all.map(({ x, dx, y }) => ({ x: x + dx, y, text: signed(100 * (x - 1)) })));
  }
}

/** Energy over what is swept. */
class Sweep extends Lines {
  constructor(figure) {
    super(figure, [["at", "$x{0.00}"], ["MWh", "$y{0.00}"]]);
    this.errors = addErrors(figure, this.frame, { line_color: column("colour"), line_alpha: 1 });
    this.spots = figure.glyph(this.frame, "Scatter", { ...columns("x", "y"), size: 6, fill_color: column("colour"), line_color: null });
  }
  draw(/** @type {ClusterSwept[]} */ all, words, plots) {
    // "never" has no place on the axis; the table has it.
    const known = all.map((each) => {
      const rows = [...each.values.keys()].filter((n) => Number.isFinite(each.values[n]));
      return { ...each, spots: rows.map((n) => ({ x: each.values[n], y: each.energy_mwh[n], dy: each.error[n] ?? 0, colour: plots.colour(each.number) })) };
    });
    const spots = known.flatMap((each) => each.spots);
    this.plot.visible = spots.length > 0;
    if (!spots.length) return;
    const tried = [...new Set(spots.map(({ x }) => x))];
    const [low, high] = [Math.min(...tried), Math.max(...tried)];
    const room = 0.06 * (high - low || 1);
    const top = 1.08 * Math.max(...spots.map(({ y, dy }) => y + dy));
    const title = "Energy (MWh); bars: standard deviation between seeds";
    fit(this.frame, [low - room, high + room], [0, top], { title, label: words });
    if (tried.length <= MOST_MARKS) this.figure.ticks(this.frame.below, tried);
    else this.plain(8);
    fill(this.layer, known.map((each) => ({ ...plots.style(each), xs: each.spots.map(({ x }) => x), ys: each.spots.map(({ y }) => y) })));
    fill(this.spots, spots);
    this.errors(spots);
  }
}

class ClusterPlots {
  constructor(page, place, /** @type {ClusterGreeting} */ about) {
    this.about = about;
    const figure = new Figure(page, place);
    this.nodes = new Lines(figure, [["at", "$x{0.0}"], ["active nodes", "$y{0.0}"]]);
    this.power = new Lines(figure, [["at", "$x{0.0}"], ["kW", "$y{0.0}"]]);
    this.shares = new Lines(figure, [["jobs below", "$y{0.00}"]]);
    this.bars = new Bars(figure);
    this.sweep = new Sweep(figure);
    this.sweep.plot.visible = false;
    const [nodes, power, shares, bars, sweep] = figure.frames;
    figure.embed([[bars, shares], [nodes, power], [sweep]], 4);
  }
  colour(number) {
    return this.about.palette[number % this.about.palette.length];
  }
  style({ number, text }) {
    const { palette, dashes } = this.about;
    return { colour: this.colour(number), dash: dashes[Math.floor(number / palette.length) % dashes.length], text };
  }
  /** Draw results as the kernel sends them, with their buffer: the distribution of that name, and no lines of hidden policies. */
  draw(/** @type {ClusterDrawn} */ drawn, /** @type {Float32Array} */ view, distribution, hidden) {
    const curves = drawn.curves.filter(({ policy }) => !hidden.has(policy));
    const values = (curve, name) => view.subarray(...curve.places[name]);
    const end = Math.max(1e-9, ...drawn.curves.map((curve) => values(curve, "hours").slice(-1)[0] ?? 0));
    const [scale, unit] = end > 72 ? [24, "days"] : [1, "hours"];
    const over = ({ frame, layer }, name, title) => {
      const top = Math.max(1e-9, ...drawn.curves.map((curve) => values(curve, name).reduce((a, b) => Math.max(a, b), 0)));
      fit(frame, [0, end / scale], [0, 1.08 * top], { title, label: `${unit} since the first submission` });
      fill(layer, curves.map((curve) => {
        const [xs, ys] = steps(values(curve, "hours"), values(curve, name), scale);
        return { ...this.style(curve), xs, ys };
      }));
    };
    over(this.nodes, "hosting", "Active nodes: with a job");
    over(this.power, "power_kw", "Power of the cluster (kW)");
    this.drawShares(curves, values, drawn.axes[distribution][0], distribution);
    this.bars.draw(drawn.bars, (number) => this.colour(number));
    this.sweep.draw(drawn.sweptLines, drawn.sweptWords, this);
  }
  drawShares(curves, values, [low, high], name) {
    const [title, unit, lowest] = this.about.distributions[name];
    const at = lowest === null ? (value) => value : Math.log10;
    fit(this.shares.frame, [at(low), at(high)], [0, 1], { title: `${title}: share of jobs below`, label: unit });
    const marks = lowest === null ? [] : decades(at(low), at(high));
    if (lowest === null) this.shares.plain(7);
    else this.shares.figure.ticks(this.shares.frame.below, marks, marks.map((n) => String(Number((10 ** n).toPrecision(3)))));
    fill(this.shares.layer, curves.map((curve) => {
      const xs = Float64Array.from(values(curve, name), (value) => at(Math.min(Math.max(value, low), high)));
      return { ...this.style(curve), xs, ys: xs.map((_, n) => n / Math.max(1, xs.length - 1)) };
    }));
  }
}

/** How far the runs are, and what begins and ends them. */
class Runs {
  constructor(send, base) {
    this.start = button("do-run", "Run", "", () => send({ kind: "run" }), "workbench-primary workbench-button");
    this.cancel = button("do-cancel", "Cancel", "", () => send({ kind: "cancel" }));
    this.atOnce = toggle("at-once", "run on every change", "begin again whenever a setting changes", (on) => send({ kind: "each change", on }));
    this.progress = element("span", "workbench-faint workbench-progress");
    this.announced = element("span", "workbench-announced", { role: "status" }); // for who listens: what runs are doing, not every tenth of a second how far
    this.stale = element("span", "workbench-stale", "settings have changed since: Run");
    this.bars = element("div", "workbench-controls workbench-bars");
    this.preset = picker("workbench-select workbench-preset", "which policies", (name) => name && send({ kind: "set", settings: { policies: this.presets[name] } }));
    const compare = labelled("compare", this.preset);
    this.root = row(compare, element("span", "", "with"), base, this.start, this.cancel, this.progress, this.announced, this.stale);
  }
  show(/** @type {ClusterRun} */ run, /** @type {ClusterChosen} */ settings) {
    const running = run.state === "running";
    this.presets = settings.presets;
    const chosen = Object.entries(this.presets).find(([, names]) => names.length === settings.chosen.length && names.every((name) => settings.chosen.includes(name)));
    const own = /** @type {[string, string]} */ (["", `${settings.chosen.length} policies of my own`]);
    offer(this.preset, [...Object.keys(this.presets).map((name) => [name, name]), ...(chosen ? [] : [own])], chosen?.[0] ?? "");
    press(this.atOnce, settings.atOnce);
    say(this.start, running ? "Run again" : "Run");
    put(this.cancel, { disabled: !running });
    say(this.progress, run.words);
    if (run.state !== this.state) this.announced.textContent = run.words;
    this.state = run.state;
    put(this.stale, { hidden: !run.stale });
    put(this.bars, { hidden: !running });
    const policies = run.each.map(({ policy }) => settings.policies.find(({ name }) => name === policy)?.words ?? policy);
    refill(this.bars, policies, (words) => {
      const bar = element("progress", "workbench-bar", { max: 1, "aria-label": `progress of ${words}` });
      return element("label", "workbench-control workbench-one-bar", element("span", "workbench-faint", words), bar);
    });
    this.bars.querySelectorAll("progress").forEach((bar, n) => put(bar, { value: run.each[n].share }));
  }
}

/** What came of the runs: words, a table, plots, one job or node. */
class Results {
  constructor(send) {
    this.headline = element("div", "workbench-headline workbench-result");
    this.details = element("div", "workbench-details");
    this.legend = new Legend(() => this.draw());
    this.place = element("div", "workbench-plots");
    this.note = element("div", "workbench-faint workbench-about");
    this.distribution = picker("workbench-select workbench-set-distribution", "what is shown of the jobs", (name) => {
      this.chosen = name;
      send({ kind: "distribution", name });
      this.draw();
    });
    this.table = table("policies side by side");
    this.drill = new Drill(send);
    this.root = element(
      "div", "workbench-results", element("div", "workbench-table-box", this.table.root, { tabIndex: 0, role: "region", "aria-label": "policies side by side" }),
      this.legend.root, this.place,
      row(element("span", "", "of the jobs"), this.distribution), this.drill.root,
    );
    this.answer = element("div", "", this.headline, this.details);
    this.plots = /** @type {ClusterPlots | null} */ (null);
    this.drawn = /** @type {ClusterDrawn | null} */ (null);
    this.chosen = /** @type {string | null} */ (null);
  }
  equip(page, /** @type {ClusterGreeting} */ about) {
    this.table.head.replaceChildren(...about.heads.map(([name, title]) => element("th", "", name, { scope: "col", title })));
    this.chosen ??= about.distribution;
    offer(this.distribution, Object.entries(about.distributions).map(([name, [words]]) => [name, words]), this.chosen);
    this.plots ??= new ClusterPlots(page, this.place, about);
  }
  show(/** @type {ClusterDrawn} */ drawn, view) {
    this.drawn = drawn;
    this.view = view;
    if (!drawn.lines.length) this.drill.show(null);
    this.root.hidden = !drawn.lines.length;
    say(this.headline, drawn.headline);
    put(this.place, { role: "group", "aria-label": `plots: ${drawn.headline}; the table above has the numbers` });
    lines(this.details, drawn.details);
    lines(this.note, drawn.about);
    const policies = [...new Set(drawn.lines.map(({ policy }) => policy))];
    this.table.body.replaceChildren(...drawn.lines.map(({ policy, number, cells: [first, ...rest] }) => {
      const name = [`${policies.indexOf(policy) + 1}. `, swatch(this.plots.colour(number)), first];
      return element("tr", "", ...cells([name, ...rest]));
    }));
    this.legend.show(drawn.curves.map(({ policy, text, number }) => [policy, this.plots.colour(number), [text], "show or hide"]));
    this.drill.fill(drawn);
    this.draw();
  }
  draw() {
    if (this.drawn) this.plots.draw(this.drawn, this.view, this.chosen, this.legend.hidden);
  }
}

function cluster({ root, head, post, page }) {
  let asked = 0;
  let heard = 0;
  const send = (message) => {
    asked += 1;
    post({ ...message, asked });
  };
  const settings = new ClusterSettings(send);
  const runs = new Runs(send, settings.base);
  const results = new Results(send);
  const more = folded("settings: job log, nodes, policies", ...settings.parts, row(runs.atOnce));
  root.append(results.answer, runs.root, runs.bars, results.root, more, results.note);
  root.classList.add("workbench-cluster", "workbench-wide");
  let about = /** @type {ClusterGreeting | null} */ (null);

  function take(/** @type {ClusterNews | ClusterGreeting} */ message, buffers) {
    head.show(message.title, true);
    heard = message.asked ?? heard;
    settings.show(message.settings, message.asked !== undefined && message.asked !== null, about);
    runs.show(message.run, message.settings);
    if (message.drawn) results.show(message.drawn, floats(buffers));
    if ("drilled" in message) results.drill.show(message.drilled);
    const { plots, drawn, drill, legend } = results;
    const seen = { plots, settings: message.settings, run: message.run, drawn, drill, asked: () => asked, heard: () => heard, hidden: () => [...legend.hidden] };
    Object.assign(root, { workbench: seen });
  }
  return {
    greet(message) {
      about = message;
      results.equip(page, message);
      heard = asked; // what was asked before is answered by this
    },
    take,
    on: { drilled: ({ drilled }) => results.drill.show(drilled) },
    waits: { ended: "this panel has ended" },
    state: ({ running }) => put(runs.start, { disabled: !running }),
  };
}

export default { render: livePanel(cluster) };
