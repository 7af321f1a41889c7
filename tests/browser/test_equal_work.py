"""A notebook compares no runs that did unequal work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from lab import Notebook

pytestmark = pytest.mark.browser
Make = Callable[[Sequence[str]], Notebook]

SET_UP = """
%load_ext workbench
%config EnergyMagics.live = False
import workbench
from workbench import Setting
from workbench.experiments.executors import HereExecutor
from workbench.simulation.training import TrainingJob
session = workbench.simulate("V100", stepped=True)
session.meter.clock.step(3.0)
def train(iterations, batch_size=256, stop=None):
    for batch in TrainingJob("imagenet", batch_size, iterations=iterations, evaluate=False):
        workbench.step()
        if batch.iteration == stop:
            raise KeyboardInterrupt
"""
CELLS = {
    "first": "%%energy train\ntrain(25)",
    "more": "%%energy train\ntrain(80)",
    "stopped": "%%energy train\ntrain(80, stop=20)",
    "tuned": "%%energy train --tune\ntrain(150)",
    "limited": "%%energy limited\nwith workbench.gpu_settings(Setting(power_limit_w=150)):\n    train(40)",
    "sweep": """found = workbench.sweep(lambda size: train(25, size), {"batch_size": [64, 128]}, order="grid", label="sweep",
    executor=HereExecutor(), progress=False)""",
    "log": "%energy_log",
    "frontier": "panel = workbench.panels.frontier(_, live=False)\npanel.select(job='sweep')\npanel",
}


@pytest.mark.slow
def test_unequal_runs_are_not_compared_and_the_log_has_the_settings_and_batch_sizes(
    notebook: Make, tmp_path: Path
) -> None:
    made = notebook([SET_UP, *CELLS.values()])
    made.execute(*range(len(CELLS) + 1))
    shown = {name: made.page.evaluate("""cell => window.jupyterapp.shell.currentWidget.content.widgets[cell].node
        .querySelector('.jp-OutputArea').innerText""", number) for number, name in enumerate(CELLS, start=1)}
    made.page.screenshot(path=str(tmp_path / "notebook.png"))
    assert "the last run" not in shown["first"]
    against = shown["more"].partition("the last run")[2]
    assert "per iteration" in against
    assert "+2" not in against  # 220 % more energy for 220 % more iterations
    assert "not compared" in shown["stopped"]
    assert "the last run" not in shown["tuned"]
    assert "saved" in shown["tuned"]
    assert "changed inside" not in shown["limited"]
    rows = [" ".join(row.split()) for row in shown["log"].splitlines()]
    table = "\n".join(rows)
    assert "tuned cell" in table
    limited = next(row for row in rows if "limited" in row)
    assert "150 W" in limited
    assert "250 W" not in limited
    small, large = (next(row for row in rows if " sweep " in row and f" {size} " in row) for size in (64, 128))
    assert "1600 samples" in small
    assert "3200 samples" in large
    assert "batch size 64" in shown["frontier"] or "64" in shown["frontier"]
    assert "a sample" in shown["frontier"]
