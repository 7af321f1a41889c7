"""How the panels look: no words over others or too small, and nothing serious for axe-core, at three widths
in two themes.
"""

from __future__ import annotations

from collections.abc import Iterator

import looks
import pytest
from lab import Lab, Notebook, page_of_its_own
from playwright.sync_api import Page

pytestmark = [pytest.mark.browser, pytest.mark.slow]
SET_UP = """
%load_ext workbench
import time, polars as pl, workbench
from workbench.experiments.job import RecurringJob
from workbench.simulation.training import TrainingJob
session = workbench.simulate("V100", stepped=True)
watts = list(range(100, 251, 10))
points = pl.DataFrame({
    "power_limit_w": [float(each) for each in watts], "time_s": [20.0 * (250 / each) ** 0.5 for each in watts],
    "energy_j": [4000.0 + 12 * each + 60000 / each for each in watts],
})
job = RecurringJob("nightly", [64, 128], 128, target=0.6, storage="runs.db", max_epochs=60)
"""
TUNED = """%%energy train --tune --max-slowdown 5 --over power
for batch in TrainingJob("imagenet", 256, iterations=120):
    workbench.step()
"""
PANELS = {
    "frontier": "workbench.panels.frontier(points, max_slowdown=0.1)", "apply": "workbench.panels.apply()",
    "clocks": "workbench.panels.clocks()", "recurring": "workbench.panels.recurring(job, run=print)",
    "cluster": "compared = workbench.panels.cluster(nodes=28, part='whole log')\ncompared.run()\ncompared",
    "open": "workbench.panels.open(points)",
}
CELLS = [SET_UP, TUNED, *PANELS.values()]


@pytest.fixture(scope="module")
def shown(lab: Lab, page: Page) -> Iterator[Notebook]:
    browser = page.context.browser  # one a process: Playwright's loop is not made twice
    assert browser is not None
    own = page_of_its_own(browser, 1280, 1600)
    looks.note_text(own)
    made = Notebook(lab, own, "looks", CELLS)
    made.execute(*range(len(CELLS)))
    yield made
    own.context.close()
    page.bring_to_front()
    lab.stop_kernels()


def scroll_to(page: Page, cell: int) -> None:
    page.locator(".jp-Notebook-cell").nth(cell).scroll_into_view_if_needed()
    page.wait_for_timeout(400)  # the plots of what comes into sight are laid out


def settled_overlaps(page: Page) -> list[str]:
    """Words over words when the plots have taken up their new width."""
    found = looks.overlaps(page)
    for _ in range(20):
        if not found:
            break
        page.wait_for_timeout(500)
        found = looks.overlaps(page)
    return found


@pytest.mark.parametrize("theme", ["JupyterLab Light", "JupyterLab Dark"])
@pytest.mark.parametrize("width", [
    900,
    1280, 1800,
])
def test_no_text_overlaps_and_all_controls_are_accessible(shown: Notebook, width: int, theme: str) -> None:
    shown.page.set_viewport_size({"width": width, "height": 1600})
    shown.theme(theme)
    for number, name in enumerate(PANELS, start=2):
        scroll_to(shown.page, number)
        assert settled_overlaps(shown.page) == [], name
        assert looks.small_text(shown.page) == [], name
    for number, name in enumerate(PANELS, start=2):
        scroll_to(shown.page, number)
        assert looks.serious(shown.page) == [], name
