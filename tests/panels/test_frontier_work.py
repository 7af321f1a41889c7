"""A frontier compares equal work: of a sweep, and of the log, in which each batch size is a point of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

import workbench.panels
from workbench.experiments.executors import HereExecutor
from workbench.experiments.sweep import Sweep, sweep
from workbench.logbook.store import Store
from workbench.panels._views.frontier.sources import Logged, source
from workbench.records import GpuMeasurement, IterationSummary, Measurement, Setting, SettingSegment, WorkDone
from workbench.simulation.machine import Machine

GPU = GpuMeasurement("A100", "u", 300.0, 3.0, "counter", False, setting=Setting(250.0), power_limit_w=250.0)


def logged(number: int, label: str = "train", **changes: object) -> Measurement:
    return replace(Measurement(str(number), label, float(number), 2.0, (GPU,)), **changes)  # type: ignore[arg-type]


@pytest.fixture
def swept(machine: Machine) -> Callable[..., Sweep]:
    """A sweep over batch sizes 12 and 24 that trains 25 iterations of each: twice as many samples with 24."""

    def run(*, marked: bool) -> Sweep:
        def train(batch_size: int | None) -> None:
            for _ in range(25):
                seconds = 0.02 + 0.005 * (batch_size or 0)
                machine.state.publish(0, machine.clock(), [], (200.0, 1380, 877, 1.0, 0.5, 0))
                machine.step(seconds)
                if marked:
                    workbench.step()

        return sweep(train, {"batch_size": [12, 24]}, order="grid", executor=HereExecutor(), label="job", progress=False)

    return run


def test_a_sweep_compares_batch_sizes_per_sample(swept: Callable[..., Sweep]) -> None:
    """25 iterations of 12 samples take less energy than 25 of 24, and more for each sample."""
    points = swept(marked=True).points.sort("batch_size")
    assert points["unit"].to_list() == ["sample", "sample"]
    small_j, large_j = points["energy_j"]
    assert small_j > large_j
    assert points["run_j"][0] < points["run_j"][1]


def test_the_log_has_batch_size_and_work_of_each_trial_and_its_frontier_a_point_for_each(
    swept: Callable[..., Sweep],
) -> None:
    swept(marked=True)
    log = Store().log().sort("batch_size")
    assert log["batch_size"].to_list() == [12, 24]
    assert [row[0]["amount"] for row in log["work"]] == [300.0, 600.0]
    assert log["iteration_count"].to_list() == [25, 25]
    panel = workbench.panels.frontier(Logged(Store()), live=False)
    points = panel.analysis.points.sort("batch_size")  # type: ignore[union-attr]
    assert points["batch_size"].to_list() == [12, 24]
    assert points["repeats"].to_list() == [1, 1]
    assert points["energy_j"][0] > points["energy_j"][1]
    assert panel.work.unit == "sample"


def test_batch_sizes_of_unknown_work_are_shown_apart(swept: Callable[..., Sweep]) -> None:
    panel = workbench.panels.frontier(swept(marked=False), live=False)
    assert panel.analysis is not None
    assert panel.analysis.points["batch_size"].n_unique() == 1
    panel.select(batch_size="all")
    assert panel.analysis.points["batch_size"].n_unique() == 1
    panel = workbench.panels.frontier(Logged(Store()), live=False)
    assert panel.analysis is not None
    assert panel.analysis.points["batch_size"].n_unique() == 1
    assert "shown separately" in panel.summary()


def test_each_job_of_the_log_has_its_own_unit_of_work() -> None:
    store = Store()
    for run in (
        logged(1, work=(WorkDone("samples", 100.0),)),
        logged(2, label="other"),
        logged(3, label="marked", iterations=IterationSummary(80, 0.025, 0.001, 3.75, 0.1, "marks")),
        logged(4, label="marked", iterations=IterationSummary(25, 0.025, 0.001, 3.75, 0.1, "marks")),
    ):
        store.save(run)
    panel = workbench.panels.frontier(Logged(store), live=False)
    found = {}
    for job in ("train", "other", "marked"):
        panel.select(job=job)
        assert panel.analysis is not None
        found[job] = (panel.work.unit, panel.analysis.points["energy_j"].to_list())
    assert found == {"train": ("sample", [3.0]), "other": ("run", [300.0]), "marked": ("iteration", [3.75])}


def test_runs_whose_setting_changed_are_points_of_no_setting() -> None:
    segments = (SettingSegment(Setting(250.0), 1.0, 200.0), SettingSegment(Setting(150.0), 1.0, 100.0))
    given = source([logged(1), logged(2, gpus=(replace(GPU, segments=segments),))]).points()
    assert given.points["repeats"].to_list() == [1]
    assert any("1 of 2 runs" in note for note in given.notes)
