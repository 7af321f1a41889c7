"""The live power view in JupyterLab, with a real kernel that is busy with a cell of pure Python."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Callable, Sequence

import pytest
from lab import PATIENCE_S, Notebook

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
            with open("status.new", "w") as file:
                json.dump({"iteration": batch.iteration, "limit_w": gpus[0].setting().power_limit_w}, file)
            os.replace("status.new", "status.json")  # a test never reads half of it
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


def test_a_blocking_cell_is_shown_stopped_and_stays_with_its_result(notebook: Make) -> None:
    made = started(notebook, "train()")
    first = made.until("it.state === 'running' && it.badge && !it.disabled")
    assert first["title"] == "train · Tesla V100-PCIE-32GB"
    assert "power now" in first["numbers"]
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
    picture, widget, error = made.outputs(1)
    assert error["ename"] == "KeyboardInterrupt"
    assert picture["data"]["text/plain"] == "caption: interrupted"
    assert "<svg" in "".join(picture["data"]["text/html"])
    assert "application/vnd.jupyter.widget-view+json" in widget["data"]
    made.until("it.state === 'done' && it.answer.includes('caption: interrupted')")
    assert made.page.locator(".jp-OutputArea-output svg[role=img]").first.is_hidden()


def test_the_limit_slider_lowers_the_power_while_the_cell_runs(notebook: Make) -> None:
    made = started(notebook, "train()")
    before = made.until("!it.disabled && it.limit[0] === 250")
    # Not dragged: a live view may move between a look at its place and a click there.
    made.page.locator(".workbench-limit").fill("150")
    wanted = float(made.page.locator(".workbench-limit").input_value())
    assert wanted == 150
    after = made.until(
        f"it.limit[0] === {wanted} && it.words === 'requested {wanted:.0f} W · {wanted:.0f} W active'"
    )
    changed_s = after["time"][0]
    made.wait(
        """time => {
            const { series } = [...document.querySelectorAll('.workbench-panel')].at(-1).workbench;
            const [times, power] = [series[0].columns[0], series[0].columns[1]];
            const late = power.filter((_, row) => times[row] > time).slice(-50);
            return late.length === 50 && Math.max(...late) < %f;
        }""" % (1.1 * wanted), argument=changed_s,
    )
    assert before["limit"] == [250]
    until_s = time.monotonic() + PATIENCE_S  # the busy kernel sees the limit with its next iteration
    while (limit_w := json.loads((made.lab.notebooks / "status.json").read_text())["limit_w"]) != wanted:
        assert time.monotonic() < until_s, limit_w
        time.sleep(0.1)
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
def test_a_page_reloaded_while_the_cell_runs_attaches_again_also_where_it_was_not_saved(notebook: Make) -> None:
    made = started(notebook, "train()")
    made.enough()
    made.finish(1)
    made.until("it.state === 'done'")
    made.save()
    made.enough(False)
    made.run(1)  # what the saved notebook shows is the run before
    before = made.until("it.state === 'running' && it.points[0] > 30")
    made.open()
    after = made.until(f"it.state.startsWith('running') && it.points[0] >= {before['points'][0]}")
    assert after["first"] == before["first"]
    made.enough()
    made.until("it.state === 'done' && it.answer.includes('caption: ok')")


@pytest.mark.slow
def test_a_front_end_shows_that_its_messages_wait_for_the_cell(notebook: Make) -> None:
    monitor = "view = PowerView(recorder, gpus, set_power_limit=change)\nview.show()\nview.start()"
    busy = "while not os.path.exists('enough'): pass"
    made = notebook([SET_UP, monitor, busy])
    made.page.evaluate("() => { window.jupyterapp.serviceManager.kernels.commsOverSubshells = 'disabled'; }")
    made.execute(0, 1)
    idle = made.until("it.points[0] > 5 && !it.disabled && it.hint === ''")
    made.run(2)
    waiting = made.until("it.disabled && it.hint.includes('not answer')")
    assert made.count(2) is None
    made.until(f"it.points[0] > {waiting['points'][0]} + 20")  # what the kernel says still comes
    made.enough()
    made.finish(2)
    after = made.until("!it.disabled && it.hint === ''")
    assert after["first"] == idle["first"]


@pytest.mark.slow
def test_a_view_of_a_busy_kernel_moves_and_shows_the_code_to_type(notebook: Make) -> None:
    """As with ipykernel 6, and in front ends that ask for no subshell: the cell that shows it runs already."""
    made = notebook([SET_UP, "train()"])
    made.page.evaluate("() => { window.jupyterapp.serviceManager.kernels.commsOverSubshells = 'disabled'; }")
    made.execute(0)
    made.run(1)
    first = made.until("it.points[0] > 5 && it.disabled && it.hint.includes('not answer')")
    made.until(f"it.points[0] > {first['points'][0]} + 20")
    assert made.count(1) is None
    typed = made.page.locator(".workbench-typed").text_content()
    assert typed == 'with workbench.gpu_settings(power_limit_w=250, gpus="0"):'
    made.enough()
    made.finish(1)


@pytest.mark.slow
def test_a_view_of_a_restarted_kernel_is_not_running(notebook: Make) -> None:
    made = started(notebook, "train()")
    made.page.evaluate(
        "async () => { await window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart(); }"
    )
    after = made.until("it.state === 'not running'")
    assert after["disabled"]


MEASURED = """%%energy train
for batch in TrainingJob("imagenet", iterations=5):
    print("iteration", batch.iteration)
"""
SHIFTS = """() => {
  globalThis.shifts ??= new PerformanceObserver(() => {});
  globalThis.shifts.disconnect();
  globalThis.moved = 0;
  globalThis.shifts = new PerformanceObserver((list) => list.getEntries().forEach(({ value }) => (globalThis.moved += value)));
  globalThis.shifts.observe({ type: 'layout-shift' });
}"""
# Keeps the last height of the running view: the sentence about the iteration may become longer.
WATCH = """() => {
  const panel = [...document.querySelectorAll('.workbench-panel')].at(-1);
  const look = () => {
    if (panel.querySelector('.workbench-stop').hidden) return;
    globalThis.lastHeight = panel.getBoundingClientRect().height;
    requestAnimationFrame(look);
  };
  look();
}"""
PLACES = """() => {
  const { height } = [...document.querySelectorAll('.workbench-panel')].at(-1).getBoundingClientRect();
  const small = [...document.querySelectorAll('.workbench-panel *')].filter((each) => each.offsetParent && each.textContent.trim());
  return { height, least: Math.min(...small.map((each) => parseFloat(getComputedStyle(each).fontSize))), moved: globalThis.moved };
}"""


@pytest.mark.parametrize(("width", "height", "theme"), [
    (1366, 768, "JupyterLab Light"), pytest.param(683, 768, "JupyterLab Dark", marks=pytest.mark.slow),
    pytest.param(1920, 1080, "JupyterLab Light", marks=pytest.mark.slow),
])
def test_nothing_moves_when_a_cell_ends_and_its_result_takes_the_place_of_the_live_numbers(
    notebook: Make, width: int, height: int, theme: str
) -> None:
    made = notebook(["%load_ext workbench\n%gpu simulate V100\nfrom workbench.simulation.training import TrainingJob", MEASURED])
    size = made.page.viewport_size
    try:
        made.page.set_viewport_size({"width": width, "height": height})
        made.theme(theme)
        made.execute(0)
        made.page.evaluate(SHIFTS)
        made.run(1)
        made.until("it.points[0] > 30 && !it.disabled")
        made.page.locator(".workbench-toggle-details").click()  # the page unfolds what it finds
        made.page.evaluate(SHIFTS)
        live = made.page.evaluate(PLACES)
        made.page.evaluate(WATCH)
        made.finish(1)
        made.until("it.state === 'done' && it.answer.includes('mean power')")
        done = made.page.evaluate(PLACES)
        assert live["height"] < 460
        assert abs(done["height"] - made.page.evaluate("globalThis.lastHeight")) < (4 if width > 1000 else 24)
        assert done["moved"] < 0.05
        assert min(live["least"], done["least"]) >= 10
        headline = made.page.locator(".workbench-headline").last.text_content() or ""
        assert not headline.startswith("Looking")  # the cell is over
        made.page.locator(".workbench-toggle-details").click()
        made.wait("() => document.querySelector('.workbench-power-more table')?.getBoundingClientRect().height > 0")
    finally:
        assert size is not None
        made.page.set_viewport_size(size)
