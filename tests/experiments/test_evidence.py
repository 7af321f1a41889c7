"""What tuned jobs, sweeps and recurring jobs teach each other through the store."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import workbench
from workbench.experiments import recurrence
from workbench.experiments.evidence import keep, known_runs, top_of_device
from workbench.experiments.executors import HereExecutor
from workbench.experiments.job import RecurringJob
from workbench.experiments.sweep import Sweep, sweep
from workbench.experiments.workloads import example_training
from workbench.logbook.store import OBSERVATIONS, Store
from workbench.measurement import session
from workbench.records import Setting
from workbench.search.clocks.power_profile import PowerProfile
from workbench.search.objective import Energy
from workbench.simulation.machine import attached
from workbench.simulation.training import TrainingJob

LIMITS_W = [125.0, 150.0, 175.0, 200.0, 225.0, 250.0]
RATIOS = {125.0: (1.5, 0.8), 150.0: (1.2, 0.78), 175.0: (1.1, 0.8), 200.0: (1.03, 0.86), 225.0: (1.01, 0.95)}
BASELINE = (0.5, 100.0)


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[session.Session]:
    monkeypatch.setenv("WORKBENCH_HOME", str(tmp_path / "home"))
    found = session.simulate("V100", stepped=True)
    yield found
    found.close()
    if (machine := attached()) is not None:
        machine.close()


def device(mine: session.Session) -> Any:
    return mine.devices[0]


def tuned(mine: session.Session, label: str = "train", baseline: tuple[float, float] = BASELINE) -> None:
    """A tuned job of that label that has left its measurements."""
    measured = {
        Setting(power_limit_w=limit): (baseline[0] * time, baseline[1] * energy)
        for limit, (time, energy) in RATIOS.items()
    }
    keep(label, device(mine), [(baseline, {Setting(): baseline} | measured)])


def swept(mine: session.Session, name: str = "train", **changed: Any) -> None:
    """Store the observations of a sweep over the limits, per sample."""
    table = {250.0: (1.0, 1.0)} | RATIOS
    rows = [
        dict.fromkeys(OBSERVATIONS) | {
            "batch_size": 64, "power_limit_w": limit, "time_s": 0.01 * time, "energy_j": 2.0 * energy,
            "gpu": device(mine).name, "simulated": True, "unit": "sample", "ended_unix_s": 1.79e9,
        } | changed for limit, (time, energy) in table.items()
    ]
    Store().observe("a sweep", name, pl.DataFrame(rows, schema=OBSERVATIONS))


def day(unix_s: float) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(unix_s))


def work(batch_size: int | None) -> float:
    size = batch_size or 128
    return sum(size for _ in example_training("imagenet", iterations=12, batch_size=size))


# what is known of whom


def test_a_tuned_run_is_known_for_its_job_and_its_card(mine: session.Session) -> None:
    tuned(mine)
    (curve,) = known_runs("train", device(mine), baseline=(0.51, 99.0))
    assert curve.source.startswith("a tuned run")
    assert curve.costs[Setting(power_limit_w=200.0)] == pytest.approx((0.515, 86.0))
    assert curve.costs[Setting(power_limit_w=250.0)] == pytest.approx(BASELINE)
    assert known_runs("train", device(mine), baseline=(0.9, 190.0)) == []  # another batch size
    assert known_runs("", device(mine)) == []
    keep("", device(mine), [(BASELINE, {Setting(power_limit_w=200.0): (0.5, 90.0)})])
    keep("little", device(mine), [(BASELINE, {Setting(): BASELINE})])
    assert Store().observations()["name"].unique().to_list() == ["train"]


def test_a_sweep_is_known_by_its_name_and_batch_size(mine: session.Session) -> None:
    swept(mine)
    (curve,) = known_runs("train", device(mine), batch_size=64)
    assert (curve.batch_size, len(curve.costs)) == (64, 6)
    assert curve.source == f"a sweep of {day(1.79e9)}"
    assert known_runs("train", device(mine), besides="a sweep") == []
    assert known_runs("another", device(mine)) == []


def test_the_nearest_batch_size_and_then_the_newest_run_come_first(mine: session.Session) -> None:
    tuned(mine)  # today
    swept(mine)
    swept_rows = Store().observed("a sweep", "train")
    Store().observe("a sweep", "train", pl.concat([
        swept_rows.with_columns(batch_size=pl.lit(size, pl.Int64)) for size in (256, 64, 96)
    ]))
    found = [each.batch_size for each in known_runs("train", device(mine), batch_size=64)]
    assert found == [None, 64, 96, 256]


def test_another_card_and_a_simulated_one_teach_nothing(mine: session.Session) -> None:
    swept(mine, gpu="Tesla P100-PCIE-16GB")
    assert known_runs("train", device(mine)) == []
    swept(mine, simulated=False)
    assert known_runs("train", device(mine)) == []


# who teaches whom


@pytest.mark.slow
def test_a_recurring_job_teaches_a_tuned_cell_and_a_sweep(mine: session.Session) -> None:
    job = RecurringJob("train", [256, 1024], 1024, target=0.6, seed=1, max_epochs=30)

    def train(run: recurrence.JobRun) -> None:
        machine = attached()
        while not run.should_stop():
            for _ in TrainingJob("cifar100", run.batch_size, machine=machine, seed=int(run.epochs)):
                workbench.step()
                if run.should_stop():
                    return
            run.report(0.1 * (run.epochs + 1))

    job.run(train)
    (curve,) = known_runs("train", device(mine))
    assert curve.batch_size == 1024
    assert curve.source.startswith("a recurring job")
    assert curve.costs.keys() <= {Setting(power_limit_w=limit) for limit in job.space.power_limits_w}
    running = Sweep(work, {"batch_size": [1024], "power_limit_w": LIMITS_W}, label="train", warm_start=True)
    assert "a recurring job" in running.note
    assert running.note.endswith("tried first")
    assert not Sweep(work, {"batch_size": [1024], "power_limit_w": LIMITS_W}, label="train").note
    assert not Sweep(
        work, {"batch_size": [512, 256], "power_limit_w": LIMITS_W}, label="train", warm_start=True
    ).note


@pytest.mark.slow
def test_a_tuned_cell_teaches_a_sweep_and_is_left_out_where_it_is_wrong(mine: session.Session) -> None:
    space = {"power_limit_w": [*LIMITS_W]}

    def measured(**options: Any) -> Sweep:
        return sweep(work, space, executor=HereExecutor(), progress=False, warm_start=True, **options)

    plain = measured(label="plain")
    table = {row["power_limit_w"]: row for row in plain.points.to_dicts()}
    top = table[250.0]
    keep("right", device(mine), [((1.0, 1.0), {
        Setting(power_limit_w=limit): (row["time_s"] / top["time_s"], row["energy_j"] / top["energy_j"])
        for limit, row in table.items() if limit < 250.0
    })])
    keep("wrong", device(mine), [((1.0, 1.0), {
        Setting(power_limit_w=limit): (1.0, limit / 250.0) for limit in LIMITS_W[:-1]
    })])
    right, wrong = measured(label="right"), measured(label="wrong")
    least = min(table.values(), key=lambda row: row["energy_j"])["power_limit_w"]
    assert right.points["power_limit_w"].to_list()[:2] == [least, 250.0]  # both ends of what is known
    assert wrong.points["power_limit_w"].to_list()[0] == 125.0


def test_a_sweep_and_a_tuned_cell_teach_a_recurring_jobs_profile(
    mine: session.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    swept(mine)
    message = f"6 settings of this job are known from a sweep of {day(1.79e9)}"
    given: list[Any] = []

    class Profile(PowerProfile):
        def __init__(self, *args: Any, same: Any = (), **options: Any) -> None:
            given.append([each.source for each in same])
            super().__init__(*args, same=same, **options)

    monkeypatch.setattr(recurrence, "PowerProfile", Profile)
    for earlier in (True, False):
        run = RecurringJob("train", [64], target=0.6, warm_start=earlier).recurrence()
        with run:
            assert run.profile is not None
            (running,) = [each for each in run.job.study.attempts if not each.ended]
            assert running.reason.endswith(message) is earlier
            run.finish(reached=True)
        assert run.reason.endswith(message) is earlier
        assert run.attempt.reason.endswith(message) is earlier
    assert given == [[f"a sweep of {day(1.79e9)}"], []]


# what says nothing


def test_a_damaged_file_and_invalid_rows_are_ignored(mine: session.Session) -> None:
    for changed in ({"time_s": 0.0}, {"energy_j": float("nan")}, {"power_limit_w": None}):
        swept(mine, **changed)
        assert known_runs("train", device(mine)) == []
    swept(mine)
    (file,) = (Store().directory / "observations").iterdir()
    file.write_bytes(b"PAR1 no more")
    assert known_runs("train", device(mine)) == []
    swept(mine)
    file.with_name("gone.parquet").symlink_to(file.with_name("nowhere.parquet"))
    assert len(known_runs("train", device(mine))) == 1


def test_the_top_of_a_card_is_its_default_limit_and_its_highest_clocks(mine: session.Session) -> None:
    top = top_of_device(device(mine))
    assert top.power_limit_w == device(mine).limits.default_power_limit_w
    assert top.mem_clock_mhz == max(device(mine).limits.mem_clocks_mhz)


def test_limits_above_those_that_were_measured_hide_nothing(mine: session.Session) -> None:
    swept(mine)
    profile = PowerProfile([*LIMITS_W, 300.0], Energy(), same=known_runs("train", device(mine), batch_size=64))
    assert profile.known.startswith("6 settings")
