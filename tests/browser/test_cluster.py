"""Policies over a job log in JupyterLab: chosen, run with progress, cancelled, compared, looked into, also
while a cell runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from lab import Notebook

pytestmark = pytest.mark.browser
Make = Callable[[Sequence[str]], Notebook]

# What the cluster panel says and draws.
SEE = """() => {
  const root = [...document.querySelectorAll('.workbench-cluster')].at(-1);
  if (!root?.workbench) return null;
  const { plots, settings, run, drawn, drill, asked, heard, hidden } = root.workbench;
  const of = (selector) => root.querySelector(selector);
  // Of the energy, the jobs, the nodes, the power, the sweep: what is drawn in each frame.
  const layers = (n) => [...(plots.layers[n]?.values() ?? [])].map((layer) => layer.data_source.data).filter((data) => Object.values(data)[0]?.length);
  const cells = [...root.querySelectorAll('.workbench-table tbody tr')].map((row) => [...row.children].map((cell) => cell.textContent));
  return {
    state: run.state, words: of('.workbench-progress').textContent, stale: run.stale,
    share: Math.max(0, ...run.each.map(({ share }) => share)), bars: root.querySelectorAll('.workbench-one-bar').length,
    cells, settings, answered: heard() === asked(),
    headline: of('.workbench-headline').textContent, title: of('.workbench-title').textContent, badge: !of('.workbench-badge').hidden,
    lines: layers(2).length, power: layers(3).map(({ y }) => Math.max(...y)),
    shares: layers(1).length, sharesTitle: plots.figure.frames[1]?.plot.title.text, energy: layers(0).find(({ text }) => text)?.text,
    swept: layers(4).reduce((sum, { size }) => sum + (size?.length ?? 0), 0), hidden: hidden(),
    drilled: drill.shown && { kind: drill.shown.kind, name: drill.shown.name, facts: Object.fromEntries(drill.shown.facts) },
    picture: root.querySelectorAll('.workbench-drill-picture svg').length,
    boxes: root.querySelectorAll('.workbench-drill-picture [data-job]').length,
    further: [...root.querySelectorAll('.workbench-drill-further button')].map((each) => each.textContent),
    most: of('.workbench-set-max_jobs').getAttribute('aria-valuetext'),
    pressed: root.querySelectorAll('.workbench-policies [aria-pressed=true]').length,
    ink: plots.figure.frames[2]?.left.major_label_text_color, problem: root.parentElement.querySelector('.workbench-problem').textContent,
    named: [...root.querySelectorAll('input,select')].every((each) => each.getAttribute('aria-label')),
    wide: [...root.querySelectorAll('.workbench-table-box')].every((each) => each.scrollWidth <= each.clientWidth + 1),
  };
}"""
SET_UP = """
%load_ext workbench
import workbench
from workbench.cluster import generate
given = ("job_id", "submit_s", "duration_s", "num_gpus")
logs = {"small": generate(300, gpus=32, seed=3, load=0.9, mean_s=4000.0).select(given),
        "large": generate(150_000, gpus=64, seed=3).select(given), "empty": generate(5, gpus=8, seed=0).clear()}
"""
OPEN = "panel = workbench.panels.cluster(logs, nodes=4, trim=False, workers=1)\npanel"
BUSY = """
while panel.comparison.scenario.nodes != 6:
    sum(range(20_000))
"""
LEFT = (
    "picture = workbench.panels.cluster(logs['small'], nodes=4, live=False, "
    "policies=('fifo-best-fit',))\npicture.run()\npicture"
)


def state_when(notebook: Notebook, condition: str) -> dict[str, Any]:
    """Wait for a condition (JavaScript) on the state of the view, `it`; returns it."""
    return notebook.until(condition, observe=SEE)


@pytest.fixture
def opened(notebook: Make) -> Notebook:
    made = notebook([SET_UP, OPEN, BUSY, LEFT, "panel.show()", "panel.finish()"])
    made.execute(0, 1)
    state_when(made, "it.answered && it.settings.jobs === 300")
    return made


def kwh(row: list[str]) -> float:
    return float(row[1].split()[0].replace(",", ""))


@pytest.mark.slow
def test_policies_are_chosen_run_compared_and_inspected(opened: Notebook) -> None:
    page = opened.page
    first = state_when(opened, "true")
    assert (first["state"], first["badge"], first["pressed"], first["named"]) == ("idle", True, 4, True)
    page.locator(".workbench-policies button[data-policy=fifo-best-fit]").click()
    page.locator(".workbench-policies button[data-policy=lucid]").click()
    state_when(opened, "it.settings.chosen.join() === 'fifo-spread-always-on,eaco,ours,lucid'")
    page.locator(".workbench-do-run").click()
    done = state_when(opened, "it.state === 'done' && it.cells.length === 4 && it.lines === 4")
    energy = {row[0].split(". ", 1)[1]: kwh(row) for row in done["cells"]}
    fifo, eaco, ours, lucid = energy
    assert (fifo.split()[0], eaco.split()[0], ours, lucid) == ("FIFO", "EaCO,", "workbench", "Lucid-like")
    assert energy[ours] < energy[eaco] < energy[fifo]
    assert "less energy than" in done["headline"]
    assert "FIFO" not in done["headline"]
    assert done["energy"][0] == "+0.0 %"
    saved = float(done["energy"][2].removesuffix(" %").replace("\u2212", "-"))
    assert saved == pytest.approx(100 * (energy[ours] / energy[fifo] - 1), abs=1.1)
    assert max(done["power"]) < 4 * 1.97
    assert done["wide"]

    page.locator(".workbench-legend button").first.click()
    assert state_when(opened, "it.lines === 3 && it.shares === 3")["hidden"] == ["fifo-spread-always-on"]
    page.locator(".workbench-set-distribution").select_option("slowdown")
    assert "Slowdown" in state_when(opened, "it.sharesTitle.includes('Slowdown')")["sharesTitle"]

    # A slider, by keyboard: the results are of before, until they are run again.
    page.locator(".workbench-set-max_jobs").focus()
    page.keyboard.press("ArrowRight")
    moved = state_when(opened, "it.stale && it.settings.max_jobs === 1")
    assert (moved["most"], moved["cells"]) == ("1", done["cells"])
    page.locator(".workbench-do-run").focus()
    page.keyboard.press("Enter")
    alone = state_when(opened, "it.state === 'done' && !it.stale && it.cells.length === 4")
    assert kwh(alone["cells"][1]) > energy[eaco]
    assert alone["cells"][1][0] == "2. EaCO, 1 job, 100 %"
    assert kwh(alone["cells"][0]) == energy[fifo]
    page.locator(".workbench-toggle-at-once").click()
    state_when(opened, "it.settings.atOnce")
    page.locator(".workbench-set-max_jobs").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    three = state_when(
        opened, "it.state === 'done' && !it.stale && it.settings.max_jobs === 3 && it.cells.length === 4"
    )
    assert three["cells"][1][:2] == done["cells"][1][:2]

    # One job, one node, and on from there.
    page.locator(".workbench-drill-policy").select_option("ours")
    page.locator(".workbench-drill-notable optgroup[label='most slowed by others'] option").first.wait_for(
        state="attached"
    )
    name = page.locator(
        ".workbench-drill-notable optgroup[label='most slowed by others'] option"
    ).first.get_attribute("value")
    page.locator(".workbench-drill-notable").select_option(name)
    job = state_when(opened, f"it.drilled?.name === '{name}' && it.picture === 1")
    assert job["drilled"]["facts"]["shared with"][0].isdigit()
    page.locator(".workbench-drill-further button", has_text="node").first.click()
    node = state_when(opened, "it.drilled?.kind === 'node' && it.boxes > 0")
    assert page.locator(f".workbench-drill-picture [data-job='{name}']").count() >= 1
    assert node["further"]
    page.locator(".workbench-drill-picture [data-job]").first.dispatch_event("click")
    state_when(opened, "it.drilled?.kind === 'job'")
    page.locator(".workbench-drill-job").fill("nobody")
    page.keyboard.press("Enter")
    assert "no job 'nobody'" in state_when(opened, "it.problem !== ''")["problem"]

    before = state_when(opened, "true")["ink"]
    opened.theme("JupyterLab Dark")
    state_when(opened, f"it.ink !== '{before}'")
    opened.theme("JupyterLab Light")

    # A page that is loaded anew has it all, and one without a kernel has the picture.
    kept = (
        "JSON.stringify(window.jupyterapp.shell.currentWidget.content.widgets[1].model.outputs.toJSON()[0].data['text/html'])"
    )
    opened.wait(f"() => {kept}.includes('{three['cells'][2][1]}')")  # it follows when everything rests
    opened.save()
    opened.open()
    again = state_when(opened, "it.cells.length === 4 && it.lines === 4 && it.drilled?.kind === 'job'")
    assert again["cells"] == three["cells"]
    opened.execute(3)
    left = opened.outputs(3)[0]["data"]
    assert "<svg" in "".join(left["text/html"])
    assert "application/vnd.jupyter.widget-view+json" not in left
    # The saved notebook keeps what was seen last, also before it is asked to.
    assert three["cells"][2][1] in "".join(opened.outputs(1)[0]["data"]["text/html"])
    opened.execute(4, 5)
    opened.wait(
        "() => document.querySelectorAll('.jp-OutputArea-output svg[role=img] title').length >= 3"
    )
    left = opened.outputs(4)[0]["data"]
    assert "application/vnd.jupyter.widget-view+json" not in left
    assert three["cells"][2][1] in "".join(left["text/html"])


@pytest.mark.slow
def test_progress_moves_and_cancel_ends_it(opened: Notebook) -> None:
    page = opened.page
    page.locator(".workbench-set-log").select_option("large")
    state_when(opened, "it.settings.jobs === 150000")
    page.locator(".workbench-set-nodes").fill("8")
    page.keyboard.press("Tab")
    state_when(opened, "it.settings.nodes === 8 && it.settings.gpus === 64")
    page.locator(".workbench-do-run").click()
    begun = state_when(opened, "it.state === 'running' && it.share > 0")
    assert begun["bars"] == 4
    state_when(opened, f"it.share > {begun['share']} || it.cells.length > 0")
    page.locator(".workbench-do-cancel").click()
    ended = state_when(opened, "it.state === 'cancelled'")
    assert ended["words"].startswith("cancelled: ")
    assert len(ended["cells"]) < 4

    page.locator(".workbench-set-log").select_option("empty")
    state_when(opened, "it.settings.wrong !== ''")
    page.locator(".workbench-do-run").click()
    assert "empty has 0 jobs" in state_when(opened, "it.problem !== ''")["problem"]
    page.locator(".workbench-set-log").select_option("small")
    state_when(opened, "it.settings.wrong === ''")  # else its answer may overwrite what is typed next
    page.locator(".workbench-set-nodes").fill("0")
    page.keyboard.press("Tab")
    wrong = state_when(opened, "it.problem.includes('nodes is 0')")
    assert wrong["settings"]["nodes"] == 8

    page.locator(".workbench-set-nodes").fill("4")
    page.keyboard.press("Tab")
    page.locator(".workbench-set-sweep").select_option("max_jobs")
    page.locator(".workbench-set-values").fill("1 3")
    page.keyboard.press("Tab")
    state_when(opened, "it.settings.sweep === 'max_jobs' && it.settings.values.join() === '1,3'")
    assert page.locator(".workbench-set-max_jobs").is_disabled()  # it would move nothing
    assert page.locator(".workbench-set-slack").is_enabled()
    page.locator(".workbench-do-run").click()
    swept = state_when(opened, "it.state === 'done' && it.cells.length === 8")
    assert swept["swept"] == 8
    page.locator(".workbench-set-sweep").select_option("sleep_after_s")
    page.locator(".workbench-set-values").fill("60 never")
    page.keyboard.press("Tab")
    state_when(
        opened,
        "it.settings.sweep === 'sleep_after_s' && it.settings.values.length === 2 && it.settings.values[1] "
        "=== null",
    )
    page.locator(".workbench-do-run").click()
    last = state_when(
        opened,
        "it.state === 'done' && it.cells.length === 8 && it.cells.some((row) => row[0].includes('never'))",
    )
    assert last["swept"] == 4  # "never" has no place on the axis
    assert page.locator(".workbench-set-max_jobs").is_enabled()
    for policy in ("eaco", "ours"):
        page.locator(f".workbench-policies button[data-policy={policy}]").click()
    state_when(opened, "it.settings.chosen.length === 2")
    assert page.locator(".workbench-set-load_threshold").is_disabled()  # nobody who is chosen shares


@pytest.mark.slow
def test_it_goes_on_while_a_cell_runs(opened: Notebook) -> None:
    page = opened.page
    opened.run(2)
    page.locator(".workbench-do-run").click()
    done = state_when(opened, "it.state === 'done' && it.cells.length === 4")
    assert opened.count(2) is None  # the cell has not ended
    assert len(done["cells"]) == 4
    page.locator(".workbench-set-nodes").fill("6")
    page.keyboard.press("Tab")
    state_when(opened, "it.settings.nodes === 6")
    opened.finish(2)
