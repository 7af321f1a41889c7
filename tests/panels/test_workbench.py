"""The whole workbench on tabs, without a browser: one to a kernel, its panels connected, its picture, a
sweep's progress.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import workbench
import workbench.panels
from workbench.cluster import generate
from workbench.device import watchdog
from workbench.errors import UsageError
from workbench.experiments import sweep as sweeps
from workbench.logbook.store import Store
from workbench.measurement import session as sessions
from workbench.measurement.recorder import Recorder
from workbench.panels.tab_sheets import SweepPanel
from workbench.records import Configuration, Setting
from workbench.simulation.machine import Machine
from workbench.simulation.training import TrainingJob

POINTS = pl.DataFrame(
    {
        "time_s": [10.0, 11.0, 14.0],
        "energy_j": [2500.0, 2100.0, 2000.0],
        "power_limit_w": [250.0, 200.0, 150.0],
    }
)


@pytest.fixture
def machine(
    simulated: Callable[..., Machine], own_session: None, tmp_path: Path
) -> Iterator[Machine]:
    with pytest.MonkeyPatch.context() as patch:  # not a test's own, which it may undo
        patch.setenv("TMPDIR", str(tmp_path))
        patch.setattr(tempfile, "tempdir", None)
        yield simulated("V100", stepped=True)
        workbench.panels.open().close()
        sessions.current().close()
    watchdog.stop()
    workbench.chosen.choose(None)


class Sweep:
    progress = sweeps.Sweep.progress
    done, n_trials, remaining_s, cancelled, reason, failure, note = 12, 40, 180.0, False, "", "", ""

    def cancel(self) -> None:
        self.cancelled = True


def test_it_is_one_to_a_kernel_and_keeps_its_state(machine: Machine) -> None:
    opened = workbench.panels.open()
    assert list(opened.panels) == ["Power and periods", "Frontier", "Clocks", "Apply", "Cluster", "Log"]
    opened.select("Apply")
    assert workbench.panels.open() is opened
    assert opened.box.selected_index == 3
    assert tuple(opened.box.titles) == tuple(opened.panels)
    other = workbench.panels.open(POINTS)
    assert other is not opened
    assert not opened.panels["Log"].running
    assert workbench.panels.open() is other


def test_a_job_log_that_is_none_is_refused_before_anything_is_held(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, held = workbench.panels.open(), []
    monkeypatch.setattr(Recorder, "hold", lambda *arguments, **options: held.append(arguments))
    with pytest.raises(UsageError, match="int"):
        workbench.panels.open(log=3)
    assert held == []
    monkeypatch.undo()
    assert workbench.panels.open() is opened
    other = workbench.panels.open(log=generate(20, gpus=8, seed=0))
    assert other.panels["Cluster"].logs == ["jobs"]  # type: ignore[attr-defined]
    assert "panel.run()" in other.html()


def test_the_apply_panel_applies_the_choice_of_the_frontier(machine: Machine) -> None:
    opened = workbench.panels.open(POINTS)
    opened.frontier.choose(Configuration(Setting(150.0)))
    panel: Any = opened.panels["Apply"]
    assert panel.chosen == opened.chosen == Configuration(Setting(150.0))
    panel.apply()
    assert machine.state.control(0, "limit_w") == 150.0
    panel.undo()
    assert machine.state.control(0, "limit_w") == 250.0


def test_the_log_fills_the_frontier_and_its_tab(machine: Machine) -> None:
    opened = workbench.panels.open()
    assert opened.chosen is None
    assert "No measurements" in opened.html()
    with workbench.measure("<epoch>") as measured:
        for _ in TrainingJob("imagenet", 256, machine=machine, iterations=5, evaluate=False):
            pass
    Store().save(measured.measurement)
    opened.frontier.refresh()
    assert opened.chosen is not None
    picture = opened.html()
    assert "&lt;epoch&gt;" in picture
    assert "<script" not in picture
    assert "Log: 1 runs" in opened.summary()


def test_a_sweep_tab_names_the_first_failure() -> None:
    sweep: Any = Sweep()
    sweep.failure = "work(64) raised ValueError: no data (train.py:3)"
    assert all(part in sweep.progress()[1] for part in ("12 of 40", sweep.failure, "3 min 0 s"))
    sweep.reason = f"4 trials in a row failed in the same way: {sweep.failure}"
    assert sweep.progress()[1].count(sweep.failure) == 1
    assert sweep.progress()[1].endswith(sweep.reason)


def test_a_sweep_shows_its_progress_and_can_be_cancelled() -> None:
    sweep: Any = Sweep()
    sheet = SweepPanel(sweep)
    assert all(part in sheet.summary() for part in ("12 of 40", "3 min 0 s"))
    assert sheet.news(whole=True)[0]["bar"]["share"] == 0.3
    sweep.note = "this card does not follow the usual curve: measuring more"
    assert sweep.progress()[1].endswith(f"; {sweep.note}")
    sheet.receive({"kind": "cancel", "n": 1})
    assert sweep.cancelled
    assert not sheet.news(whole=True)[0]["bar"]["can_cancel"]
    assert "cancelled: " in sweep.progress()[1]
    sheet.end()


def test_it_opens_on_the_sweep_or_the_frontier(machine: Machine) -> None:
    opened = workbench.panels.open(POINTS)
    assert opened.box.selected_index == list(opened.panels).index("Frontier")
