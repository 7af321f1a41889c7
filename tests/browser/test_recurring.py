"""A recurring job in JupyterLab: recurrences run on a click, the choice follows eta, the history goes out
and comes in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from lab import Notebook

pytestmark = pytest.mark.browser
Make = Callable[[Sequence[str]], Notebook]

# What the panel that is shown last says and draws.
SEE = """() => {
  const root = [...document.querySelectorAll('.workbench-panel')].at(-1);
  if (!root?.workbench?.view) return null;
  const { plots, view, left } = root.workbench;
  const of = (selector) => root.querySelector(selector);
  const [believed, profile, costs, savings] = plots.layers.map((layers) => (kind) => [...layers]
    .filter(([look]) => JSON.parse(look).kind === kind).flatMap(([, { data_source }]) => [...(data_source.data.x ?? [])]));
  return {
    headline: of('.workbench-next').textContent, details: of('.workbench-details').textContent,
    eta: Number(of('.workbench-eta').value), words: of('.workbench-eta-words').textContent, left: left(),
    recurrences: costs('dot').length, believed: believed('dot').length, sums: savings('line').length,
    curve: new Set(profile('line')).size, optimum: profile('upright')[0] ?? null,
    badge: !of('.workbench-badge').hidden, disabled: of('.workbench-run-one').disabled, note: of('.workbench-note').textContent,
    ink: plots.figure.frames[0].left.major_label_text_color, problem: root.parentElement.querySelector('.workbench-problem').textContent,
  };
}"""
SET_UP = """
%load_ext workbench
import tempfile, time, workbench
from pathlib import Path
from workbench.experiments.job import RecurringJob
from workbench.search.objective import ZeusCost
from notebooks.learning import Accuracy, shorter
from workbench.simulation.training import TrainingJob
session = workbench.simulate("V100", stepped=True)
workload = shorter("cifar100", 6_400)
def train(run):
    while Path("hold").exists():
        time.sleep(0.02)
    accuracy = Accuracy(run.batch_size, seed=run.attempt.number)
    while not run.should_stop():
        for batch in TrainingJob(workload, run.batch_size, seed=run.attempt.number):
            workbench.step()
            if run.should_stop():
                return
        run.report(accuracy.after_epoch())
home = Path(tempfile.mkdtemp())
job = RecurringJob("nightly", [64, 128, 256, 512, 1024], 1024, target=0.6, storage=home / "runs.db", max_epochs=60, seed=1)
"""


def state_when(notebook: Notebook, condition: str) -> dict[str, Any]:
    """Wait for a condition (JavaScript) on the state of the view, `it`; returns it."""
    return notebook.until(condition, observe=SEE)


def slide(notebook: Notebook, share: float) -> None:
    slider = notebook.page.locator(".workbench-eta").last
    slider.scroll_into_view_if_needed()
    box = slider.bounding_box()
    assert box is not None
    notebook.page.mouse.click(box["x"] + share * box["width"], box["y"] + box["height"] / 2)


@pytest.fixture
def opened(notebook: Make) -> Notebook:
    show = "panel = workbench.panels.recurring(job, run=train)\npanel"
    busy = "while not Path('enough').exists():\n    time.sleep(0.05)"
    made = notebook([SET_UP, show, busy, "panel.run(2)", "panel.on_message('eta', {'eta': 0.97})", "panel"])
    made.execute(0, 1)
    return made


@pytest.mark.slow
def test_recurrences_run_on_a_click_and_eta_changes_the_choice(opened: Notebook, tmp_path: Path) -> None:
    page = opened.page
    first = state_when(opened, "it.problem === ''")
    assert (first["recurrences"], first["believed"]) == (0, 0)
    assert "size 1024 at 250 W" in first["headline"]
    assert first["badge"]  # simulated, and it says so

    page.locator(".workbench-run-one").last.click()
    one = state_when(opened, "it.recurrences === 1 && it.left === 0")
    assert (one["believed"], one["curve"], one["sums"]) == (5, 7, 1)
    page.locator(".workbench-count").last.fill("7")
    opened.flag("hold", True)
    page.locator(".workbench-run-many").last.click()
    running = state_when(opened, "it.left > 1")
    opened.flag("hold", False)
    assert running["disabled"]
    many = state_when(opened, "it.recurrences === 8 && it.left === 0")
    assert "likely the cheapest" in many["headline"]
    assert "8 recurrences cost" in many["details"]

    slide(opened, 0.01)
    time = state_when(opened, "it.eta < 0.05 && it.words.includes('% time')")
    slide(opened, 0.99)
    energy = state_when(opened, "it.eta > 0.95 && it.words.includes('% energy') && it.optimum !== null")
    assert time["optimum"] > energy["optimum"]  # of limits, lowest first
    assert time["headline"] != energy["headline"]
    assert energy["recurrences"] == 8  # not one run more

    opened.theme("JupyterLab Dark")
    dark = state_when(opened, f"it.ink !== '{energy['ink']}'")
    assert dark["ink"] != energy["ink"]
    opened.theme("JupyterLab Light")


@pytest.mark.slow
def test_it_answers_while_a_cell_runs_and_shows_errors(opened: Notebook) -> None:
    page = opened.page
    opened.run(2)
    page.locator(".workbench-run-one").last.click()
    state_when(opened, "it.recurrences === 1 && it.left === 0")
    slide(opened, 0.9)
    state_when(opened, "it.eta > 0.85 && it.words.startsWith('eta 0.')")
    page.locator(".workbench-count").last.fill("0")
    page.locator(".workbench-run-many").last.click()
    wrong = state_when(opened, "it.problem !== ''")
    assert "0 recurrences" in wrong["problem"]
    assert opened.count(2) is None
    opened.enough()
    opened.finish(2)


ETAS = """() => [...document.querySelectorAll('.workbench-panel')].filter((each) => each.workbench?.view).map((root) => {
  const of = (selector) => root.querySelector(selector);
  return {
    eta: of('.workbench-eta').value, words: of('.workbench-eta-words').textContent,
    headline: of('.workbench-next').textContent, best: [...root.workbench.plots.layers[1]].find(([look]) => JSON.parse(look).kind === 'upright')?.[1].data_source.data.x[0],
  };
})"""


@pytest.mark.slow
def test_set_eta_from_python_moves_the_slider_and_the_marked_point_in_every_view(opened: Notebook) -> None:
    opened.execute(3, 5)
    opened.wait(f"() => ({ETAS})().filter((it) => it.eta === '0.5' && it.best).length === 2")
    before = opened.page.evaluate(ETAS)
    opened.execute(4)
    opened.wait(f"() => ({ETAS})().every((it) => it.eta === '0.97' && it.words.startsWith('eta 0.97'))")
    one, other = opened.page.evaluate(ETAS)
    assert one == other
    assert one["best"] < before[0]["best"]  # more energy saved: a lower limit
