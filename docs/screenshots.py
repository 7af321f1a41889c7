"""Takes the pictures in docs/images on simulated GPUs: python docs/screenshots.py [DIR] [--only
running|tuned|frontier|whole|cluster]
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
LARGEST_BYTES = 150_000
sys.path.insert(0, str(HERE.parent / "tests" / "browser"))

from lab import Lab, Notebook, browser_page  # noqa: E402
from PIL import Image  # noqa: E402
from playwright.sync_api import Locator, Page  # noqa: E402

SET_UP = """
from threading import Thread
from workbench.simulation.machine import simulate
machine = simulate(CARDS, seed=1)
from workbench.device.discovery import devices
from workbench.panels import PowerView
from workbench.panels._core.jupyter import interrupt_cell
from workbench.measurement.recorder import Recorder
from workbench.records import Setting
from workbench.simulation.training import TrainingJob
gpus = {gpu.uuid: gpu for gpu in devices()}
recorder = Recorder(list(gpus.values()))
recorder.ready()
def change(uuid, watts):
    return gpus[uuid].write(Setting(power_limit_w=watts)).power_limit_w
def train(workload, iterations, batch_size=None):
    view = PowerView(recorder, list(gpus.values()), label=workload, stop=interrupt_cell, set_power_limit=change)
    view.show()
    view.start()
    for other in range(1, len(gpus)):
        job = TrainingJob(workload, batch_size, iterations=10 * iterations, gpu=other, seed=other)
        Thread(target=job.run, daemon=True).start()
    start_s = recorder.clock()
    for batch in TrainingJob(workload, batch_size, iterations=iterations):
        pass
    end_s = recorder.clock()
    joules = sum(machine.true_energy_j(number, start_s, end_s) for number in range(len(gpus)))
    view.finish(f"{joules:.0f} J in {end_s - start_s:.1f} s, mean {joules / (end_s - start_s):.0f} W (simulated)", end_s=end_s)
"""

PERIOD = """
%load_ext workbench
import workbench
from workbench.simulation.training import TrainingJob
session = workbench.simulate("V100")
session.meter
"""

RECURRING = """
%load_ext workbench
import tempfile, workbench
from pathlib import Path
from notebooks.learning import Accuracy, shorter
from workbench.simulation.training import TrainingJob
session = workbench.simulate("V100", stepped=True)
workload = shorter("cifar100", 6_400)
def train(run):
    accuracy = Accuracy(run.batch_size, seed=run.attempt.number)
    while not run.should_stop():
        for _ in TrainingJob(workload, run.batch_size, seed=run.attempt.number):
            workbench.step()
            if run.should_stop():
                return
        run.report(accuracy.after_epoch())
home = Path(tempfile.mkdtemp())
job = workbench.RecurringJob("nightly", [64, 128, 256, 512, 1024], 1024, target=0.6, storage=home / "runs.db", max_epochs=60, seed=1)
"""

CLOCKS = """
%load_ext workbench
import time, workbench
from workbench.simulation.training import TrainingJob
session = workbench.simulate("CARD", stepped=True)
"""
FRONTIER = """
%load_ext workbench
import workbench
from workbench.experiments.executors import HereExecutor
from workbench.experiments.workloads import example_training
%config EnergyMagics.price_per_kwh = 0.3
%config EnergyMagics.g_co2_per_kwh = 380
session = workbench.simulate("V100", stepped=True)
def train(batch_size):
    return sum(batch_size for _ in example_training("imagenet", iterations=12, batch_size=batch_size))
space = {"batch_size": [64, 128, 256], "power_limit_w": range(100, 251, 25)}
found = workbench.sweep(train, space, n_trials=12, executor=HereExecutor(), progress=False)
"""
CHOOSE = """workbench.panels.frontier(found, unit="sample", per_epoch=1_281_167, epochs=90, name="imagenet", max_slowdown=0.1)"""
TUNED = """%%energy train --tune --max-slowdown 5 OVER
for batch in TrainingJob(WORKLOAD, iterations=COUNT):
    workbench.step()
    time.sleep(0.02)
"""


def drag(notebook: Notebook, share: float) -> None:
    """Drag the limit slider to a share of its range."""
    slider = notebook.page.locator(".workbench-limit").last
    slider.scroll_into_view_if_needed()
    box = slider.bounding_box()
    assert box is not None
    y = box["y"] + box["height"] / 2
    notebook.page.mouse.move(box["x"] + box["width"] - 6, y)
    notebook.page.mouse.down()
    for step in range(1, 9):
        notebook.page.mouse.move(box["x"] + box["width"] * (1 + (share - 1) * step / 8), y)
    notebook.page.mouse.up()


def shoot(notebook: Notebook, name: str, images: Path, cell: int = 1) -> None:
    """The running cell and its output, as a small PNG."""
    notebook.page.mouse.move(5, 5)
    notebook.page.wait_for_timeout(400)
    notebook.page.locator(".jp-Notebook-cell").nth(cell).screenshot(path=str(images / name))
    shrink(images / name)


def cut(what: Locator, name: str, images: Path) -> None:
    """One panel alone, as a small PNG."""
    what.scroll_into_view_if_needed()
    what.screenshot(path=str(images / name))
    shrink(images / name)


def shrink(path: Path) -> None:
    """Fewer colours, as few as make it small enough: text and lines have few, and no shades that anybody
    would miss.
    """
    with Image.open(path) as opened:
        whole = opened.convert("RGB")
    for colours in (256, 128, 64, 32):
        whole.quantize(colours, dither=Image.Dither.NONE).save(path, optimize=True)
        if path.stat().st_size <= LARGEST_BYTES:
            break
    print(path.name, path.stat().st_size, "bytes")


def tuned(lab: Lab, page: Page, images: Path) -> None:
    """A tuner at work on clocks, in both themes."""
    words = "each.workbench?.words"
    holds = (
        f"() => [...document.querySelectorAll('.workbench-panel')].some((each) => {words}?.state === 'hold' "
        f"&& /[3-9] trials/.test({words}.details.join()))"
    )
    cell = TUNED.replace("OVER", "--over clocks").replace("WORKLOAD", '"librispeech", 64').replace("COUNT", "400")
    clocks = Notebook(lab, page, "clocks-RTX3080TI", [CLOCKS.replace("CARD", "RTX3080TI"), cell])
    clocks.run(0)
    clocks.finish(0, 60)
    clocks.run(1)
    page.wait_for_function(holds, timeout=120_000)
    page.wait_for_timeout(2000)
    panel = page.locator(".workbench-tuner").last
    cut(panel, "clocks-light.png", images)
    clocks.theme("JupyterLab Dark")
    page.wait_for_timeout(500)
    cut(panel, "clocks-dark.png", images)
    clocks.theme("JupyterLab Light")
    lab.stop_kernels()


def frontier(lab: Lab, page: Page, images: Path) -> None:
    """A sweep's frontier with predictions, in both themes; and the picture that it leaves."""
    notebook = Notebook(lab, page, "frontier", [FRONTIER, CHOOSE, f"{CHOOSE[:-1]}, live=False)"])
    notebook.run(0)
    notebook.finish(0, 120)
    notebook.run(1)
    page.wait_for_selector(".workbench-frontier .workbench-table tr[data-row]", state="attached", timeout=60_000)
    page.wait_for_timeout(1500)
    panel = page.locator(".workbench-frontier").last
    cut(panel, "frontier-light.png", images)
    panel.locator(".workbench-more > summary").first.click()
    page.locator(".workbench-eta").last.focus()
    for _ in range(10):
        page.keyboard.press("ArrowRight")
    page.locator(".workbench-toggle-relative").last.click()
    page.locator(".workbench-toggle-whole").last.click()
    notebook.theme("JupyterLab Dark")
    page.wait_for_timeout(1500)
    cut(panel, "frontier-dark.png", images)
    notebook.theme("JupyterLab Light")
    notebook.run(2)
    notebook.finish(2)
    page.wait_for_timeout(500)
    cut(page.locator(".jp-OutputArea-output svg[role=img]").last, "frontier-static.png", images)
    lab.stop_kernels()


def running(lab: Lab, page: Page, images: Path) -> None:
    """Training cells under the live view, their iterations, and a recurring job."""
    trained = "for batch in TrainingJob('librispeech', 24, iterations=56):\n    pass"
    one = Notebook(lab, page, "one", [PERIOD, f"%%energy train\n{trained}"])
    one.run(0)
    one.finish(0)
    one.run(1)
    one.until("it.time[0] > 8")
    drag(one, 0.35)
    one.until("it.time[0] > 22", 40)
    shoot(one, "power-light.png", images)
    one.theme("JupyterLab Dark")
    shoot(one, "power-dark.png", images)
    one.theme("JupyterLab Light")
    one.finish(1, 120)
    shoot(one, "power-static.png", images)
    lab.stop_kernels()

    eight = Notebook(
        lab,
        page,
        "eight",
        [f'CARDS = "{",".join(["A100"] * 8)}"{SET_UP}', 'train("librispeech", 60, batch_size=96)'],
    )
    eight.run(0)
    eight.finish(0)
    eight.run(1)
    eight.until("it.time[0] > 20", 60)
    page.set_viewport_size({"width": 1180, "height": 1600})
    shoot(eight, "power-8gpus.png", images)
    page.set_viewport_size({"width": 1180, "height": 1250})
    lab.stop_kernels()

    job = 'TrainingJob("imagenet", iterations=36, checkpoint_every=14, checkpoint_s=2.5)'
    train_cell = f"%%energy train -o train\nfor batch in {job}:\n    pass"
    period = Notebook(lab, page, "period", [PERIOD, train_cell, "workbench.panels.period(train)"])
    period.run(0)
    period.finish(0)
    period.run(1)
    period.until("it.time[0] > 22", 60)
    shoot(period, "period-light.png", images)
    period.theme("JupyterLab Dark")
    shoot(period, "period-dark.png", images)
    period.theme("JupyterLab Light")
    period.finish(1, 120)
    shoot(period, "period-static.png", images)
    period.run(2)
    page.wait_for_function(
        "() => document.querySelectorAll('.workbench-period canvas, .workbench-headline').length > 0"
    )
    page.wait_for_timeout(2000)
    shoot(period, "period-look.png", images, cell=2)
    lab.stop_kernels()

    recurring = Notebook(lab, page, "recurring", [RECURRING, "workbench.panels.recurring(job, run=train)"])
    for cell in (0, 1):
        recurring.run(cell)
        recurring.finish(cell, 60)
    page.wait_for_selector(".workbench-count")
    page.locator(".workbench-count").fill("14")
    page.locator(".workbench-run-many:enabled").click()
    done = (
        "(it => it?.view.rows.recurrence.length === 14 && it.left() === "
        "0)(document.querySelector('.workbench-panel')?.workbench)"
    )
    page.wait_for_function(done, timeout=120_000)
    shoot(recurring, "recurring-light.png", images)
    lab.stop_kernels()


def whole(lab: Lab, page: Page, images: Path) -> None:
    """The workbench on its tabs after a sweep: the frontier and what is applied, in both themes and beside
    the notebook.
    """
    apply_it = ".workbench-apply .workbench-do-apply:enabled"
    notebook = Notebook(
        lab,
        page,
        "whole",
        [FRONTIER, "opened = workbench.panels.open(found)\nopened.select('Frontier')\nopened", "train(256)"],
    )
    for cell in (0, 1):
        notebook.run(cell)
        notebook.finish(cell, 120)
    page.wait_for_selector(".workbench-frontier .workbench-table tr[data-row]", state="attached", timeout=60_000)
    tabs = page.locator(".jupyter-widget-tab .lm-TabBar-tab")
    page.wait_for_timeout(1500)
    shoot(notebook, "workbench-light.png", images)
    notebook.theme("JupyterLab Dark")
    tabs.filter(has_text="Apply").click()
    notebook.run(2)  # the simulated time goes on with it
    notebook.finish(2, 60)
    page.locator(apply_it).last.click()
    page.wait_for_timeout(1500)
    notebook.run(2)
    notebook.finish(2, 60)
    page.wait_for_timeout(2000)
    shoot(notebook, "workbench-dark.png", images)
    applied = page.locator(".workbench-apply:visible").last
    cut(applied, "apply-dark.png", images)
    notebook.theme("JupyterLab Light")
    page.wait_for_timeout(1000)
    cut(applied, "apply-light.png", images)
    tabs.filter(has_text="Frontier").click()
    page.evaluate("() => { window.jupyterapp.shell.currentWidget.content.activeCellIndex = 1; }")
    page.evaluate("() => window.jupyterapp.commands.execute('notebook:create-output-view')")
    page.wait_for_function("() => document.querySelectorAll('.workbench-frontier').length === 2")
    page.evaluate("() => window.jupyterapp.commands.execute('application:toggle-left-area')")
    page.wait_for_timeout(2500)
    page.screenshot(path=str(images / "workbench-view.png"))
    shrink(images / "workbench-view.png")
    lab.stop_kernels()


def cluster(lab: Lab, page: Page, images: Path) -> None:
    """A week under four policies, in both themes; a job and a node of it; the picture that a sweep leaves."""
    data = Path(os.environ.get("WORKBENCH_DATA") or HERE.parent.parent / "shared" / "data") / "cluster"
    page.set_viewport_size({"width": 1180, "height": 1750})
    log, part = (repr(str(data)), "median week") if data.is_dir() else ("None", "whole log")
    made = f"panel = workbench.panels.cluster({log}, part={part!r}, nodes=28)\npanel"
    swept = (
        "panel.run(policies=['fifo-best-fit', 'eaco', 'ours'], draws=3, sweep='max_jobs', values=(3, 1, 2, "
        "4))"
    )
    cells = ["%load_ext workbench\nimport workbench", made, f"{swept}\npanel._shown.asked = False\npanel"]
    notebook = Notebook(lab, page, "cluster", cells)
    for cell in (0, 1):
        notebook.run(cell)
        notebook.finish(cell, 90)
    shown = "document.querySelector('.workbench-cluster')?.workbench"
    page.wait_for_selector(".workbench-cluster .workbench-do-run:enabled", timeout=60_000)
    page.locator(".workbench-do-run").click()
    page.wait_for_function(
        f"() => {shown}?.run.state === 'done' && {shown}.drawn.lines.length === 4", timeout=180_000
    )
    page.wait_for_timeout(2000)
    panel = page.locator(".workbench-cluster").last
    cut(panel, "cluster-light.png", images)
    slowed = page.locator(
        ".workbench-drill-notable optgroup[label='most slowed by others'] option"
    ).first.get_attribute("value")
    page.locator(".workbench-drill-notable").select_option(slowed)
    page.wait_for_selector(".workbench-drill-picture svg")
    page.wait_for_timeout(800)
    cut(page.locator(".workbench-drill").last, "cluster-job.png", images)
    page.locator(".workbench-drill-further button", has_text="node").first.click()
    page.wait_for_selector(".workbench-drill-picture [data-job]")
    notebook.theme("JupyterLab Dark")
    page.wait_for_timeout(1500)
    cut(panel, "cluster-dark.png", images)
    notebook.theme("JupyterLab Light")
    notebook.run(2)
    notebook.finish(2, 300)
    page.wait_for_timeout(800)
    cut(page.locator(".jp-OutputArea-output svg[role=img]").last, "cluster-static.png", images)
    lab.stop_kernels()


PARTS = {"running": running, "tuned": tuned, "frontier": frontier, "whole": whole, "cluster": cluster}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("images", type=Path, nargs="?", default=HERE / "images", metavar="DIR")
    parser.add_argument("--only", action="append", choices=list(PARTS))
    asked = parser.parse_args()
    asked.images.mkdir(parents=True, exist_ok=True)
    chromium = (
        os.environ.get("WORKBENCH_CHROMIUM")
        or shutil.which("chromium")
        or shutil.which("google-chrome")
        or ""
    )
    with (
        tempfile.TemporaryDirectory() as directory,
        Lab(Path(directory) / "server") as lab,
        browser_page(chromium, width=1180, height=1250) as page,
    ):
        for name, take in PARTS.items():
            if asked.only is None or name in asked.only:
                take(lab, page, asked.images)


if __name__ == "__main__":
    main()
