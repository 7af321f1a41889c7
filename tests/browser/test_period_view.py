"""The iterations in JupyterLab: found, drawn and described while a cell of pure Python keeps the kernel busy.
A picture remains afterwards.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from lab import Notebook

pytestmark = pytest.mark.browser
Make = Callable[[Sequence[str]], Notebook]

# What the period part of the panel that is shown last says and draws.
SEE = """() => {
  const root = [...document.querySelectorAll('.workbench-panel')].at(-1);
  if (!root?.workbench?.period?.about) return null;
  const { period, plots, plot, spans } = root.workbench;
  const strips = plots ? plots.strips[0] : plot.strips;
  const of = (layer) => layer.data_source.get_length();
  const all = spans();
  const rows = (kind) => (frame) => [...(period.plots?.layers[frame] ?? [])].filter(([look]) => JSON.parse(look).kind === kind)
    .reduce((count, [, layer]) => count + of(layer), 0);
  const [lines, bands] = [rows('line'), rows('band')];
  return {
    headline: period.headline.textContent, details: period.details.textContent, sure: period.about.sure,
    level: period.about.level, levels: period.about.levels.map((one) => one.name), gpu: period.about.gpu,
    spans: all.length, begin: all[0]?.[0], strips: of(strips.turns),
    folded: lines(0), shape: bands(0), spectrum: lines(1),
    chips: [...root.querySelectorAll('.workbench-levels .workbench-chip')].map((chip) => chip.textContent),
    problem: root.parentElement.querySelector('.workbench-problem').textContent,
  };
}"""
JOB = 'TrainingJob("librispeech", batch_size=24, iterations={})'
# Trains until the test has seen enough.
TRAIN = f"""%%energy train --live
for batch in {JOB.format(100_000)}:
    sum(range(20_000))
    if os.path.exists("enough"):
        break
"""
SET_UP = """
%load_ext workbench
import os, workbench
from workbench.simulation.training import TrainingJob
session = workbench.simulate("V100", stepped=STEPPED)
session.meter
"""


def state_when(notebook: Notebook, condition: str) -> dict[str, Any]:
    """Wait for a condition (JavaScript) on the state of the view, `it`; returns it."""
    return notebook.until(condition, observe=SEE)


def run(make: Make, *cells: str, stepped: bool = False) -> Notebook:
    made = make([SET_UP.replace("STEPPED", str(stepped)), *cells])
    made.execute(0)
    made.run(1)
    return made


def test_the_iterations_are_shown_while_the_cell_runs_and_stay_as_a_picture(notebook: Make) -> None:
    made = run(notebook, TRAIN)
    looking = state_when(made, "it.spectrum > 20")
    assert looking["headline"]
    # while the machine has no time for the cell, its power does not show where it waits
    waits = "it.details.includes('waits for data or the host')"
    found = state_when(made, f"it.sure && it.strips > 2 && it.shape > 0 && {waits}")
    assert made.count(1) is None  # all this while the cell runs
    assert re.search(r" [56]\d\d[.\d]* ± .* ms and ", found["headline"])
    assert 0.57 < found["level"]["seconds"] < 0.68  # 0.594, or longer where the machine has little time for the cell
    more = state_when(made, f"it.spans > {found['spans']} + 1")
    assert more["folded"] > 0
    assert made.until("it.problem === ''")["badge"]  # simulated, and it says so
    assert made.count(1) is None

    made.enough()
    made.finish(1)
    made.until("it.state === 'done'")
    picture = "".join(made.outputs(1)[0]["data"]["text/html"])
    assert "line: mean" in picture or "bands: iterations" in picture
    assert "Spectrum" in picture
    assert "simulated" in picture


@pytest.mark.slow
def test_a_page_reloaded_while_the_cell_runs_gets_all_iterations_when_it_has_run(notebook: Make) -> None:
    made = run(notebook, TRAIN)
    before = state_when(made, "it.sure && it.spans > 3")
    assert made.count(1) is None
    made.save()
    made.open()
    made.enough()
    after = state_when(made, f"it.sure && it.spans > {before['spans']} && it.folded > 0")
    assert after["headline"].startswith("One iteration takes ")
    assert after["begin"] < before["begin"] + 0.3  # from the first one on
    assert after["problem"] == ""


@pytest.mark.slow
def test_a_load_without_a_period_is_not_given_one(notebook: Make) -> None:
    cell = (
        '%%energy irregular --live\nfor batch in TrainingJob("imagenet", iterations=100_000, variation=0.9, '
        'seed=4):\n    pass'
    )
    made = run(notebook, cell)
    made.until("it.time[0] > 12")
    no = state_when(made, "it.spectrum > 20")
    assert made.count(1) is None
    assert not no["sure"]
    assert no["strips"] == 0
    made.page.locator(".workbench-stop").click()
    made.finish(1)


@pytest.mark.slow
def test_a_recorded_trace_is_shown_and_folded_again_on_request(notebook: Make) -> None:
    cell = f"%%energy -o plain --no-live\nfor batch in {JOB.format(32)}:\n    pass"
    made = run(notebook, cell, "workbench.panels.period(plain)", stepped=True)
    made.finish(1)
    made.run(2)
    first = state_when(made, "it.sure && it.shape > 0 && it.strips > 2")
    assert re.search(r" (5[89]|60)\d[.\d]* ± .* ms and ", first["headline"])
    slider = made.page.locator(".workbench-period ~ .workbench-control .workbench-limit")
    slider.scroll_into_view_if_needed()
    box = slider.bounding_box()
    assert box is not None
    made.page.mouse.click(box["x"] + 0.3 * box["width"], box["y"] + box["height"] / 2)
    own = state_when(made, "it.headline.startsWith('Folded at')")
    assert own["level"]["seconds"] < first["level"]["seconds"]
    assert own["problem"] == ""

    spans = made.page.evaluate(
        "() => [...document.querySelectorAll('.workbench-panel')].at(-1).workbench.plot.x.end"
    )
    plot = made.page.locator(".workbench-plots").first
    plot.hover(position={"x": 300, "y": 100})
    made.page.evaluate("""() => {
        const { x } = [...document.querySelectorAll('.workbench-panel')].at(-1).workbench.plot;
        x.setv({ start: 2, end: 5 });
    }""")
    assert own["strips"] == 0  # too narrow to be drawn
    zoomed = state_when(made, "it.strips > 0")
    assert zoomed["strips"] < 20
    assert spans > 10
