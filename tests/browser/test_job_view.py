"""A job on several GPUs in JupyterLab: the lanes, the settings of single GPUs, and the view of a cell that becomes
one of lanes without moving.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import looks
import pytest
from lab import Notebook

pytestmark = pytest.mark.browser
Make = Callable[[Sequence[str]], Notebook]

# What the panel of a job, or a view of power, says and draws.
SEE = """() => {
  const root = [...document.querySelectorAll('.workbench-power')].at(-1);
  const of = (selector) => root?.querySelector(selector);
  if (!root?.workbench || !of('.workbench-answer')) return null;
  const lanes = of('.workbench-lanes');
  return {
    answer: of('.workbench-answer').textContent, height: root.offsetHeight, lanes: lanes.hidden ? 0 : lanes.offsetHeight, drawn: Boolean(lanes.querySelector('.bk-Canvas, div')),
    apply: of('.workbench-do-apply').textContent, canUndo: !of('.workbench-do-undo').disabled, done: of('.workbench-done').textContent,
    settings: of('.workbench-own-settings').textContent, details: !of('.workbench-power-more').hidden, state: of('.workbench-state').textContent, views: document.querySelectorAll('.workbench-power').length,
    power: !of('.workbench-plots:not(.workbench-lanes)').hidden, badge: !of('.workbench-badge').hidden,
    problem: root.parentElement.querySelector('.workbench-problem').textContent, frontier: document.querySelectorAll('.workbench-frontier').length,
  };
}"""
SET_UP = """
%load_ext workbench
import time, polars as pl, workbench
from pathlib import Path
from tests.panels.made_jobs import made_job
from workbench.logbook.report import Report
from workbench.panels import PowerView
here = workbench.simulate(",".join(["A100"] * 8))
uuids = [device.uuid for device in here.devices]
done = made_job(uuids=uuids)
points = pl.DataFrame({"time_s": [0.31, 0.33, 0.36], "energy_j": [1310.0, 1180.0, 1100.0], "power_limit_w": [400.0, 300.0, 250.0], "unit": ["iteration"] * 3})
settings = {uuid: workbench.Setting(power_limit_w=300.0 + 5 * n) for n, uuid in enumerate(uuids) if n != 5}
"""
OPEN = """panel = workbench.panels.job(done, points=points, settings=settings)
panel"""
LIMITS = "[device.setting().power_limit_w for device in here.devices]"
CELL = """
view = PowerView(here.meter.recorder, here.devices, label="train", period=False, set_power_limit=lambda uuid, watts: watts)
view.show()
view.start()
while not Path("enough").exists():
    time.sleep(0.05)
view.finish(Report(done.measurement), waiting=done.waiting)
"""


@pytest.mark.slow
def test_lanes_and_settings_of_single_gpus(notebook: Make) -> None:
    made = notebook([SET_UP, OPEN, LIMITS])
    looks.note_text(made.page)
    made.execute(0, 1)
    shown = made.until("it.lanes > 150 && it.drawn && it.apply", observe=SEE)
    assert shown["answer"].startswith("GPU 5 keeps the others waiting 21.8\u00a0ms of each 310\u00a0ms iteration")
    assert (shown["apply"], shown["canUndo"], shown["badge"], shown["frontier"]) == ("Apply to 7 GPUs", False, True, 1)
    assert shown["settings"].count("400") == 7
    stored, widget = (output["data"] for output in made.outputs(1))  # for a notebook without a kernel
    picture = "".join(stored["text/html"])
    assert picture.count("<svg") == 2
    assert "keeps the others waiting" in picture
    assert "application/vnd.jupyter.widget-view+json" in widget
    for name in ("apply", "undo"):  # by the keyboard
        made.page.locator(f".workbench-power .workbench-do-{name}").last.focus()
        made.page.keyboard.press("Enter")
        state = made.until(f"it.canUndo === {str(name == 'apply').lower()} && it.done", observe=SEE)
        made.execute(2)
        text = made.outputs(2)[0]["data"]["text/plain"]
        assert ("400.0, 400.0" in text) is (name == "undo"), text
        assert ("305.0, 310.0, 315.0, 320.0, 400.0, 330.0" in text) is (name == "apply"), text
    assert state["problem"] == ""
    lanes = made.page.locator(".workbench-lanes").last
    lanes.scroll_into_view_if_needed()
    box = lanes.bounding_box()
    assert box is not None
    for step in range(5):
        made.page.mouse.move(box["x"] + 0.5 * box["width"] + step, box["y"] + 0.4 * box["height"])
    made.page.get_by_text("works 267 ms").wait_for()
    assert looks.serious(made.page, ".workbench-power") == []


def test_a_cell_of_several_gpus_ends_with_lanes_and_nothing_moves(notebook: Make) -> None:
    made = notebook([SET_UP, CELL])
    made.execute(0)
    made.run(1)
    running = made.until("it.state.startsWith('running') && it.height > 500", observe=SEE)
    details = made.page.locator(".workbench-toggle-details").last
    details.evaluate("node => node.click()")  # the page's own script had opened it; a live view is never at rest
    running = made.until("!it.details", observe=SEE)
    made.enough()
    made.finish(1)
    ended = made.until("it.state === 'done' && it.lanes > 0", observe=SEE)
    assert abs(ended["height"] - running["height"]) <= 2, ended
    assert "keeps the others waiting" in ended["answer"]
    assert not ended["power"]  # it is one of the details
    details.evaluate("node => node.click()")
    assert made.until("it.details", observe=SEE)["power"]
    made.enough(False)
