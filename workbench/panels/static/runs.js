// @ts-check
// The log: every run in a table; those that are ticked are opened, compared and tagged below it.
/** @import { LogNews, LogRun } from "./messages" */
import { button, cells, element, field, folded, labelled, offer, picker, put, refill, row, say, table } from "./controls.js";
import { livePanel } from "./live.js";
import { differing, linesOf, matching, ordered } from "./run_order.js";
import { RunTable } from "./run_table.js";

const FILTER = "Words that a run must have. label:adam searches one column; energy<500 and time>60 compare numbers (J, s)";
const NUMERIC = new Set(["batch size", "energy", "time", "J/iteration", "tokens"]);

function runs({ root, post }) {
  const known = /** @type {Map<string, LogRun>} */ (new Map()); // by id, newest first
  const asked = new Set(); // runs whose power was asked for
  let columns = /** @type {string[]} */ ([]);
  let [sorted, rising, group, filter] = [0, false, -1, ""];
  const [hidden, closed] = [new Set(["tokens"]), new Set()];
  const ticked = new Set();

  const search = field("workbench-select workbench-filter", "Filter", { type: "search", placeholder: "filter: adam energy<500", title: FILTER });
  search.oninput = () => {
    filter = search.value;
    draw();
  };
  const by = picker("workbench-select", "group by", (value) => {
    group = Number(value);
    draw();
  });
  const chooser = element("div", "workbench-chooser");
  const counted = element("span", "workbench-faint", { role: "status" });
  const inTable = new RunTable({
    tick(id) {
      if (!ticked.delete(id)) ticked.add(id);
      choose();
    },
    sort(column) {
      [sorted, rising] = [column, column === sorted ? !rising : !NUMERIC.has(columns[column]) && column > 0];
      draw();
    },
    toggle(name) {
      if (!closed.delete(name)) closed.add(name);
      draw();
    },
    needs(ids) {
      const missing = ids.filter((id) => !asked.has(id));
      missing.forEach((id) => asked.add(id));
      if (missing.length) post({ kind: "sparks", ids: missing });
    },
  });
  const words = element("span", "workbench-faint", { role: "status" });
  const tag = field("workbench-select", "Tag of the ticked runs", { maxLength: 60, placeholder: "a few words, kept with the run" });
  tag.onchange = () => post({ kind: "tag", ids: [...ticked], text: tag.value });
  const clear = button("do-clear", "Untick all", "", () => {
    ticked.clear();
    choose();
  });
  const about = row(words, labelled("Tag", tag), clear);
  const different = table("differences of the ticked runs");
  const look = element("div", "workbench-look");
  root.append(
    row(labelled("Filter", search), labelled("Group by", by), counted), folded("Columns", chooser), inTable.root,
    about, element("div", "workbench-sheet", different.root), look,
  );

  function choose() {
    post({ kind: "choose", ids: [...ticked] });
    draw();
  }
  const numeric = () => new Set(columns.flatMap((name, n) => (NUMERIC.has(name) ? [n] : [])));
  function draw() {
    const all = [...known.values()];
    const used = columns.flatMap((name, n) => (all.some(({ cells: texts }) => texts[n]) ? [n] : []));
    const found = ordered(matching(all, columns, filter), sorted, rising);
    const shown = used.filter((n) => !hidden.has(columns[n]));
    inTable.ticked = ticked;
    inTable.show({ columns, shown, lines: linesOf(found, columns, group, closed), sorted, rising, numeric: numeric() });
    say(counted, !all.length ? "" : found.length < all.length ? `${found.length} of ${all.length} runs` : `${all.length} runs`);
    offer(by, [["-1", "nothing"], ...used.map((n) => [String(n), columns[n]])], String(group));
    refill(chooser, used.map((n) => columns[n]), (name) => labelled(name, field("", name, {
      type: "checkbox", checked: !hidden.has(name), onchange: () => {
        if (!hidden.delete(name)) hidden.add(name);
        draw();
      },
    })));
    compare();
  }
  function compare() {
    const chosen = [...ticked].flatMap((id) => known.get(id) ?? []);
    say(words, chosen.length ? `${chosen.length} ticked` : "Tick one run to open it, two to compare them, more to see what differs.");
    for (const node of [tag.parentElement, clear]) put(node, { hidden: !chosen.length });
    const tags = new Set(chosen.map(({ cells: texts }) => texts[columns.indexOf("tag")]));
    if (document.activeElement !== tag) put(tag, { value: tags.size === 1 ? [...tags][0] : "" });
    const differ = chosen.length > 1 ? differing(chosen, columns) : [];
    put(different.root, { hidden: !differ.length });
    refill(different.head, differ, (name) => element("th", "", name, { scope: "col" }));
    refill(different.body, chosen.map(({ cells: texts }) => differ.map((name) => texts[columns.indexOf(name)])), (texts) => element("tr", "", ...cells(texts)));
  }
  function take(/** @type {LogNews} */ message) {
    ({ columns } = message);
    if (message.whole) known.clear();
    const before = [...known.values()];
    known.clear();
    for (const run of [...message.runs, ...before]) if (!known.has(run.id)) known.set(run.id, run);
    ticked.clear();
    message.chosen.forEach((id) => ticked.add(id));
    if (look.innerHTML !== message.look) look.innerHTML = message.look;
    draw();
  }
  return {
    take,
    on: {
      sparks: ({ sparks }) => {
        for (const [id, watts] of Object.entries(sparks)) inTable.sparks.set(id, watts);
        inTable.paint();
      },
    },
  };
}

export default { render: livePanel(runs) };
