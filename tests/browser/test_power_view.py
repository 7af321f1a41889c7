"""The live power view in JupyterLab, with a real kernel that is busy with a cell of pure Python."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence

import pytest
from lab import LOOK, Notebook

from workbench.panels._core.live import bokeh_js

pytestmark = pytest.mark.browser

SET_UP = """
import json, os
from workbench.simulation.machine import simulate
machine = simulate("V100", seed=1)
from workbench.device.discovery import devices
from workbench.panels import PowerView
from workbench.panels._core.jupyter import interrupt_cell
from workbench.measurement.recorder import Recorder
from workbench.records import Setting
from workbench.simulation.training import TrainingJob
gpus = devices()
recorder = Recorder(gpus)
recorder.ready()
def change(uuid, watts):
    return gpus[0].write(Setting(power_limit_w=watts)).power_limit_w
def train():
    view = PowerView(recorder, gpus, label="train", stop=interrupt_cell, set_power_limit=change)
    view.show()
    view.start()
    outcome = "interrupted"
    try:
        for batch in TrainingJob("imagenet", iterations=100_000):
            if os.path.exists("enough"):
                break
            with open("status.json", "w") as file:
                json.dump({"iteration": batch.iteration, "limit_w": gpus[0].setting().power_limit_w}, file)
        outcome = "ok"
    finally:
        view.finish(f"caption: {outcome}")
"""

Make = Callable[[Sequence[str]], Notebook]


def started(notebook: Make, run: str, *more: str) -> Notebook:
    """A notebook whose second cell has been running long enough to show something."""
    made = notebook([SET_UP, run, *more])
    made.execute(0)
    made.run(1)
    made.until("it.points[0] > 30")
    return made


def test_a_blocking_cell_is_shown_stopped_and_left_as_a_picture(notebook: Make) -> None:
    made = started(notebook, "train()")
    first = made.until("it.state === 'running' && it.badge && !it.disabled")
    assert first["title"] == "train · Tesla V100-PCIE-32GB"
    assert " W now · " in first["numbers"]
    assert first["problem"] == first["hint"] == ""
    later = made.until(f"it.points[0] > {first['points'][0]} + 60 && it.drawn[0] > {first['drawn'][0]}")
    assert later["time"][0] > first["time"][0] + 1.0
    assert made.count(1) is None  # all this while the cell runs

    made.theme("JupyterLab Dark")
    dark = made.until("it.label === it.colours.faint_text && it.label.startsWith('rgba(255')")
    assert dark["label"] != first["label"]
    made.theme("JupyterLab Light")
    made.until(f"it.label === '{first['label']}'")

    made.page.locator(".workbench-stop").click()
    made.finish(1)
    display, error = made.outputs(1)
    assert error["ename"] == "KeyboardInterrupt"
    assert display["data"]["text/plain"] == "caption: interrupted"
    assert "<svg" in "".join(display["data"]["text/html"])
    assert "application/vnd.jupyter.widget-view+json" not in display["data"]
    made.wait("() => document.querySelector('.jp-OutputArea-output svg[role=img]') !== null")
    made.wait(f"() => ({LOOK})() === null")


def test_the_limit_slider_lowers_the_power_while_the_cell_runs(notebook: Make) -> None:
    made = started(notebook, "train()")
    before = made.until("!it.disabled && it.limit[0] === 250")
    slider = made.page.locator(".workbench-limit")
    slider.scroll_into_view_if_needed()
    box = slider.bounding_box()
    assert box is not None
    y = box["y"] + box["height"] / 2
    made.page.mouse.move(box["x"] + box["width"] - 6, y)
    made.page.mouse.down()
    for step in range(1, 11):
        made.page.mouse.move(box["x"] + box["width"] * (1 - 0.07 * step), y)
    made.page.mouse.up()
    wanted = float(slider.input_value())
    assert wanted < 160
    after = made.until(
        f"it.limit[0] === {wanted} && it.words === 'requested {wanted:.0f} W · {wanted:.0f} W active'"
    )
    changed_s = after["time"][0]
    made.wait(
        """time => {
            const { series } = [...document.querySelectorAll('.workbench-panel')].at(-1).workbench;
            const [times, power] = [series[0].columns[0], series[0].columns[1]];
            const late = power.filter((_, row) => times[row] > time + 0.5);
            return late.length > 50 && Math.max(...late) < %f;
        }""" % (1.1 * wanted), 20, changed_s,
    )
    assert before["limit"] == [250]
    status = json.loads((made.lab.notebooks / "status.json").read_text())
    assert status["limit_w"] == wanted  # as the busy kernel sees it
    assert made.count(1) is None
    made.page.locator(".workbench-stop").click()
    made.finish(1)


LARGEST_GAP = """() => {
  const times = [...document.querySelectorAll('.workbench-panel')].at(-1).workbench.series[0].columns[0].filter(Number.isFinite);
  return times.reduce((gap, at, n) => (n ? Math.max(gap, at - times[n - 1]) : 0), 0);
}"""


@pytest.mark.slow
def test_points_that_come_before_bokeh_js_are_drawn_with_it(notebook: Make) -> None:
    """A busy browser takes seconds to load it."""
    made = notebook([SET_UP, "train()"])
    made.execute(0)
    page = made.page
    page.evaluate(
        "() => { globalThis.__workbenchPage = { bokeh: null, asked: performance.now() + 1e9, arrived: new EventTarget() }; }"
    )
    made.run(1)
    made.wait("() => document.querySelector('.workbench-panel') !== null")
    came = page.evaluate("performance.now()")
    made.wait("came => performance.now() > came + 8600", argument=came)
    version, script = bokeh_js()
    page.add_script_tag(content=gzip.decompress(script).decode())
    page.evaluate(
        "version => { const page = globalThis.__workbenchPage; page.bokeh = Bokeh[version] ?? Bokeh; page.arrived.dispatchEvent(new Event('bokeh')); }",
        version,
    )
    made.until("it.points[0] > 30")
    assert page.evaluate(LARGEST_GAP) < 2.5  # seconds; what came since the last greeting, four ago, would else be missing
    page.locator(".workbench-stop").click()
    made.finish(1)


@pytest.mark.slow
def test_a_reloaded_page_gets_all_points_again(notebook: Make) -> None:
    run = """
view = PowerView(recorder, gpus, label="monitor", set_power_limit=change)
view.show()
view.start()
"""
    made = started(notebook, run)
    before = made.until("it.points[0] > 150")
    made.save()
    made.open()
    after = made.until(f"it.points[0] >= {before['points'][0]}")
    assert after["first"] == before["first"]
    assert after["state"].startswith("running")  # nothing may have been heard of a busy machine for seconds
    made.until(f"it.points[0] > {after['points'][0]}")


@pytest.mark.slow
def test_a_page_reloaded_while_the_cell_runs_gets_all_points_when_it_has_run(notebook: Make) -> None:
    made = started(notebook, "train()")
    before = made.until("it.points[0] > 30")
    made.save()
    made.open()
    made.enough()
    # JupyterLab asks the main shell which widgets there are, so it shows "Loading widget..." until the cell
    # ends.
    after = made.until("it.state === 'done'")
    assert after["first"] == before["first"]
    assert after["points"][0] > before["points"][0]


@pytest.mark.slow
def test_a_front_end_whose_messages_wait_for_the_cell_says_so(notebook: Make) -> None:
    monitor = "view = PowerView(recorder, gpus, set_power_limit=change)\nview.show()\nview.start()"
    busy = "while not os.path.exists('enough'): pass"
    made = notebook([SET_UP, monitor, busy])
    made.page.evaluate("() => { window.jupyterapp.serviceManager.kernels.commsOverSubshells = 'disabled'; }")
    made.execute(0, 1)
    idle = made.until("it.points[0] > 5 && !it.disabled && it.hint === ''")
    made.run(2)
    waiting = made.until("it.disabled && it.hint === 'queued until the cell ends'")
    assert made.count(2) is None
    made.until(f"it.points[0] > {waiting['points'][0]} + 20")  # what the kernel says still comes
    made.enough()
    made.finish(2)
    after = made.until("!it.disabled && it.hint === ''")
    assert after["first"] == idle["first"]


@pytest.mark.slow
def test_a_view_of_a_kernel_that_hears_nothing_moves_all_the_same_and_says_what_to_type(notebook: Make) -> None:
    """As with ipykernel 6, and in front ends that ask for no subshell: the cell that shows it runs already."""
    made = notebook([SET_UP, "train()"])
    made.page.evaluate("() => { window.jupyterapp.serviceManager.kernels.commsOverSubshells = 'disabled'; }")
    made.execute(0)
    made.run(1)
    first = made.until("it.points[0] > 5 && it.disabled && it.hint === 'queued until the cell ends'")
    made.until(f"it.points[0] > {first['points'][0]} + 20")
    assert made.count(1) is None
    typed = made.page.locator(".workbench-typed").text_content()
    assert typed == 'with workbench.applied(power_limit_w=250, gpus="0"):'
    made.enough()
    made.finish(1)


@pytest.mark.slow
def test_a_view_of_a_restarted_kernel_is_not_running(notebook: Make) -> None:
    made = started(notebook, "train()")
    made.page.evaluate(
        "async () => { await window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart(); }"
    )
    after = made.until("it.state === 'not running'", timeout_s=5.0)
    assert after["disabled"]
