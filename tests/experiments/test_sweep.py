"""Sweeps on simulated GPUs: trials, where they run, the rows they keep, and that every GPU is restored."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import workbench
from workbench.device import lease
from workbench.device.discovery import devices
from workbench.errors import DeviceHeld, UsageError
from workbench.experiments import trial
from workbench.experiments.executors import DaskExecutor, HereExecutor, LocalExecutor, dask_client
from workbench.experiments.sweep import Sweep, candidates, sweep
from workbench.experiments.workloads import example_training
from workbench.logbook.store import Store
from workbench.measurement import session
from workbench.records import Configuration, Setting
from workbench.simulation.machine import Machine, attached

PATIENCE_S = 240.0  # for a machine that is busy with something else
SPACE = {"batch_size": [64, 256], "power_limit_w": [100.0, 175.0, 250.0]}


def train(batch_size: int | None, iterations: int = 12) -> float:
    return sum(
        (batch_size or 128)
        for _ in example_training("imagenet", iterations=iterations, batch_size=batch_size)
    )


def kill_once(batch_size: int | None, flag: Path) -> float:
    """Takes its process down the first time, after it has changed the GPU."""
    if not flag.exists():
        flag.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return train(batch_size)


@pytest.fixture
def stepped() -> Iterator[session.Session]:
    mine = session.simulate("V100", stepped=True)
    yield mine
    _end(mine)


@pytest.fixture
def two() -> Iterator[session.Session]:
    mine = session.simulate("V100,V100", scale=60.0)
    yield mine
    _end(mine)


def _end(mine: session.Session) -> None:
    mine.close()
    machine = attached()
    if machine is not None:
        machine.close()


def machine() -> Machine:
    found = attached()
    assert found is not None
    return found


def here(work: Any = train, space: Any = SPACE, **options: Any) -> Sweep:
    return sweep(work, space, executor=HereExecutor(), progress=False, **options)


# a trial


def test_a_trial_records_the_requested_applied_and_restored_limit(
    stepped: session.Session,
) -> None:
    row = trial.run(
        Configuration(Setting(power_limit_w=150.0), 64), train, stepped.devices[0], stepped.meter
    )
    assert (row["power_limit_w"], row["applied_w"], row["restored_w"], row["outcome"]) == (
        150.0,
        150.0,
        250.0,
        "ok",
    )
    assert row["samples"] == 12 * 64
    assert row["energy_j"] * row["samples"] == pytest.approx(row["run_j"])
    assert row["simulated"]


@pytest.mark.parametrize(
    ("setting", "batch_size", "outcome"),
    [
        (Setting(power_limit_w=9000.0), 64, "out of range"),
        (Setting(mem_clock_mhz=123), 64, "not supported"),
        (Setting(), 1 << 20, "out of memory"),
    ],
)
def test_what_cannot_be_tried_is_an_outcome_and_not_an_error(
    stepped: session.Session, setting: Setting, batch_size: int, outcome: str
) -> None:
    row = trial.run(Configuration(setting, batch_size), train, stepped.devices[0], stepped.meter)
    assert row["outcome"] == outcome
    assert row["reason"]
    assert row["energy_j"] is None
    assert stepped.devices[0].setting().power_limit_w == 250.0


def test_work_that_fails_leaves_the_gpu_as_it_was(stepped: session.Session) -> None:
    def work(batch_size: int | None) -> None:
        raise ValueError("no data")

    row = trial.run(Configuration(Setting(power_limit_w=150.0)), work, stepped.devices[0], stepped.meter)
    assert row["outcome"] == "error"
    assert row["reason"] == "ValueError: no data"
    assert row["restored_w"] == 250.0
    assert not lease.holder(stepped.devices[0].uuid)


def test_an_interrupt_passes_through_after_the_gpu_is_restored(stepped: session.Session) -> None:
    def work(batch_size: int | None) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trial.run(Configuration(Setting(power_limit_w=150.0)), work, stepped.devices[0], stepped.meter)
    assert stepped.devices[0].setting().power_limit_w == 250.0


def test_a_number_of_samples_that_is_none_is_refused(stepped: session.Session) -> None:
    row = trial.run(Configuration(), lambda _: train(64, 3) * 0.0, stepped.devices[0], stepped.meter)
    assert row["outcome"] == "error"
    assert "0 samples" in row["reason"]


def test_a_trial_is_for_a_million_tokens_where_the_work_counts_them(stepped: session.Session) -> None:
    def train_tokens(batch_size: int | None) -> None:
        train(batch_size or 64, 3)
        workbench.work(tokens=5e5)

    row = trial.run(Configuration(), train_tokens, stepped.devices[0], stepped.meter)
    assert row["unit"] == "million tokens"
    assert row["energy_j"] == pytest.approx(2 * row["run_j"])
    row = trial.run(Configuration(), lambda _: train(64, 3), stepped.devices[0], stepped.meter)
    assert row["unit"] == "sample"


# a sweep


def test_the_grid_is_measured_once_each_and_in_order(stepped: session.Session) -> None:
    done = here(order="grid")
    assert done.trials.select("batch_size", "power_limit_w").rows() == candidates(SPACE).rows()
    assert done.trials["outcome"].unique().to_list() == ["ok"]
    assert done.reason.startswith("all configurations")


def test_a_trial_for_another_unit_of_work_is_not_compared_with_those_before(stepped: session.Session) -> None:
    began: list[int] = []

    def changes_its_mind(batch_size: int | None) -> None:
        train(batch_size, 3)
        began.append(1)
        if len(began) > 1:
            workbench.work(tokens=1000)

    done = here(changes_its_mind, {"power_limit_w": [150.0, 250.0]}, order="grid")
    first, second = done.trials["outcome"][0], done.trials.filter(outcome="error")["reason"][0]
    assert first == "ok"
    assert "million tokens" in second


def test_higher_limits_are_faster_and_lower_ones_draw_less(stepped: session.Session) -> None:
    large = here(order="grid").points.filter(pl.col("batch_size") == 256).sort("power_limit_w")
    assert large["time_s"].is_sorted(descending=True)
    assert (large["energy_j"] / large["time_s"]).is_sorted()


def test_the_frontier_stays_within_the_budget_and_gives_its_end_reason(stepped: session.Session) -> None:
    done = here(n_trials=3)
    assert len(done.points) == 3
    assert "budget" in done.reason
    assert done.belief.height == 6


def test_the_power_trace_of_each_trial_is_kept(stepped: session.Session) -> None:
    done = here(n_trials=1)
    kept = Store().trace(done.trials["measurement"][0])
    assert kept is not None
    assert len(kept) > 3


def test_a_batch_size_that_does_not_fit_takes_larger_ones_out(stepped: session.Session) -> None:
    done = here(space={"batch_size": [64, 1 << 20, 1 << 21]}, order="grid")
    assert done.trials["outcome"].to_list() == ["ok", "out of memory"]


def test_without_rights_one_trial_reports_it_and_the_rest_is_skipped(stepped: session.Session) -> None:
    machine().inject("nvmlDeviceSetPowerManagementLimit", 4)
    machine().inject("nvmlDeviceSetPowerManagementLimit_v2", 4)
    done = here(order="grid")
    assert done.trials["outcome"].to_list() == ["not permitted"]
    assert done.reason == done.trials["reason"][0]


def test_a_sweep_that_was_interrupted_goes_on_where_it_was(stepped: session.Session) -> None:
    first = Sweep(train, SPACE, order="grid", executor=HereExecutor(), label="night run")
    for _, _row in zip(range(2), first, strict=False):
        pass
    second = here(order="grid", label="night run")
    assert len(second.trials) == 6
    assert second.trials["trial"].to_list() == [0, 1, 2, 3, 4, 5]
    assert len(here(order="grid", label="night run").trials) == 6  # nothing is left to do


def test_a_damaged_sweep_is_set_aside_and_begins_again(stepped: session.Session) -> None:
    here(n_trials=1, label="broken")
    (file,) = (Store().directory / "observations").iterdir()
    file.write_bytes(b"nothing")
    assert here(n_trials=1, label="broken").trials.height == 1
    assert file.with_suffix(".damaged").read_bytes() == b"nothing"


def test_a_cancelled_sweep_keeps_its_points(stepped: session.Session) -> None:
    running = Sweep(train, SPACE, order="grid", executor=HereExecutor())
    for _ in running:
        running.cancel()
    assert len(running.points) == 1
    assert running.reason == "it was cancelled"


def test_work_that_fails_once_is_tried_again(stepped: session.Session) -> None:
    calls: list[int] = []

    def work(batch_size: int | None) -> float:
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("a glitch")
        return train(batch_size, 3)

    done = here(work, {"batch_size": [64]}, order="grid")
    assert done.trials["outcome"].to_list() == ["error", "ok"]


TWELVE = {"batch_size": [64, 256], "power_limit_w": [100.0, 125.0, 150.0, 175.0, 200.0, 250.0]}


def misread(configuration: Any) -> float:
    return train(configuration.batch_size)  # it is the batch size itself


@pytest.mark.parametrize("order", ["grid", "frontier"])
def test_work_that_fails_everywhere_ends_the_sweep_and_its_line_is_named(
    stepped: session.Session, capsys: pytest.CaptureFixture[str], order: Any
) -> None:
    done = sweep(misread, TWELVE, executor=HereExecutor(), order=order)
    assert len(done.trials) <= 4
    assert done.points.is_empty()
    line = f"{__file__}:{misread.__code__.co_firstlineno + 1}"
    for text in (done.reason, repr(done), capsys.readouterr().err):
        assert "AttributeError" in text
        assert line in text


def test_a_batch_size_that_always_fails_costs_no_other_one(stepped: session.Session) -> None:
    def work(batch_size: int | None) -> float:
        if batch_size == 64:
            raise ValueError(f"no data for {batch_size}")
        return train(batch_size, 3)

    done = here(work, TWELVE, order="grid")
    assert done.trials["outcome"].to_list() == ["error"] * 3 + ["ok"] * 6
    assert "no data for 64" in repr(done)


def test_points_before_failures_are_kept_and_fixed_work_resumes(
    stepped: session.Session,
) -> None:
    calls: list[int] = []

    def work(batch_size: int | None) -> float:
        calls.append(1)
        if 2 < len(calls) < 20:
            raise OSError("the data is gone")
        return train(batch_size, 3)

    done = here(work, SPACE, order="grid", label="night")
    assert len(done.points) == 2
    assert "data is gone" in done.reason
    calls += [1] * 20
    again = here(work, SPACE, order="grid", label="night")
    assert len(again.points) == 6
    assert again.reason.startswith("all configurations")
    assert again.failure == ""


@pytest.mark.parametrize(
    ("space", "options", "message"),
    [
        ({}, {}, "nothing to choose"),
        ({"batch_size": []}, {}, "batch_size .* no values"),
        ({"batchsize": [1]}, {}, "no axis 'batchsize'"),
        ({"batch_size": ["many"]}, {}, "batch_size=.many. .* str"),
        (SPACE, {"n_trials": 0}, "n_trials=0"),
        (SPACE, {"order": "best"}, "'best'"),
    ],
)
def test_a_sweep_that_makes_no_sense_is_refused(space: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Sweep(train, space, **options)


# where trials run


@pytest.mark.slow
def test_each_gpu_has_one_trial_at_a_time_and_a_process_that_dies_costs_no_configuration(
    two: session.Session, tmp_path: Path
) -> None:
    done = sweep(partial(kill_once, flag=tmp_path / "flag"), SPACE, order="grid", progress=False)
    assert sorted(done.trials["outcome"]) == ["lost"] + ["ok"] * 6
    assert done.points["uuid"].n_unique() == done.points["worker"].n_unique() == 2
    assert _overlaps(done.points) == 0
    assert [device.setting().power_limit_w for device in devices()] == [250.0, 250.0]


def test_without_a_gpu_there_is_no_executor() -> None:
    with pytest.raises(UsageError, match="no GPU"):
        LocalExecutor([])


@pytest.mark.slow
def test_dask_workers_share_the_trials_and_one_that_dies_loses_none(
    two: session.Session, tmp_path: Path
) -> None:
    pytest.importorskip("distributed", reason="the extra 'cluster' is not installed")
    with socket.socket() as other:
        with contextlib.suppress(OSError):
            other.bind(("127.0.0.1", 8787))  # as somebody's dashboard does: Dask's usual port
            other.listen()
        client = dask_client([device.uuid for device in two.devices])
    try:
        work = partial(kill_once, flag=tmp_path / "flag")
        done = sweep(work, SPACE, order="grid", executor=DaskExecutor(client), progress=False)
    finally:
        cluster = client.cluster
        client.close()
        cluster.close()
    assert done.trials["outcome"].to_list() == ["ok"] * 6
    assert _overlaps(done.trials) == 0
    assert [device.setting().power_limit_w for device in devices()] == [250.0, 250.0]


def _overlaps(trials: pl.DataFrame) -> int:
    """How many trials began on a GPU before the one before them on it had ended."""
    rows = trials.sort("uuid", "began_unix_s").with_columns(
        before=pl.col("ended_unix_s").shift().over("uuid")
    )
    return rows.filter(pl.col("began_unix_s") < pl.col("before")).height


def test_an_interrupt_of_all_processes_does_not_begin_the_trial_again(tmp_path: Path) -> None:
    executor = LocalExecutor(["GPU-nowhere"])
    try:
        with pytest.raises(KeyboardInterrupt):
            executor.submit(_interrupted, tmp_path / "begun").result(PATIENCE_S)
    finally:
        executor.shutdown()
    assert (tmp_path / "begun").read_text() == "once\n"


def _interrupted(begun: Path) -> None:
    with open(begun, "a") as file:
        file.write("once\n")
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a job in the background of a script ignores it, and so do its children
    os.kill(os.getpid(), signal.SIGINT)
    signal.pause()


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({"batch_size": [32, 64.5]}, "batch_size .* 64.5"),
        ({"batch_size": [0]}, "batch_size .* 0"),
        ({"power_limit_w": [100.0, float("nan")]}, "power_limit_w .* nan"),
        ({"sm_clock_mhz": [-5]}, "sm_clock_mhz .* -5"),
        ({"batch_size": 64}, "batch_size=64"),
        ({"batch_size": "64"}, "batch_size='64'"),
    ],
)
def test_values_that_cannot_be_are_named(space: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        candidates(space)


def test_work_that_returns_no_samples_is_an_error(stepped: session.Session) -> None:
    def work(batch_size: int | None) -> Any:
        train(batch_size)
        return {"loss": 0.1}

    row = trial.run(Configuration(Setting(), 64), work, stepped.devices[0], stepped.meter)
    assert (row["outcome"], row["energy_j"]) == ("error", None)
    assert "a dict" in row["reason"]


def test_a_trial_that_an_interrupt_ended_is_begun_again_by_the_next_pass(stepped: session.Session) -> None:
    class InterruptedOnce(HereExecutor):
        interrupted = False

        def submit(self, function: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
            if not self.interrupted:
                self.interrupted = True
                raise KeyboardInterrupt
            return super().submit(function, *args, **kwargs)

    running = Sweep(train, {"batch_size": [64, 128]}, order="grid", executor=InterruptedOnce())
    with pytest.raises(KeyboardInterrupt):
        list(running)
    assert [row["batch_size"] for row in running] == [64, 128]


def test_a_sweep_measures_what_this_kernel_holds_and_an_apply_is_back_afterwards(two: session.Session) -> None:
    gpu = two.devices[0]
    control = workbench.gpu_control(gpu.uuid)
    control.apply(Setting(power_limit_w=200.0))
    space = {"batch_size": [64], "power_limit_w": [150.0, None]}
    running = Sweep(train, space, order="grid", gpus=[0])
    rows = []
    for row in running:
        rows.append(row)
        assert len(control.history) == 1  # a panel that looks meanwhile keeps its Undo
        with pytest.raises(DeviceHeld, match="sweep"):
            control.apply(Setting(power_limit_w=225.0))
    assert [(row["outcome"], row["applied_w"]) for row in rows] == [("ok", 150.0), ("ok", 250.0)]
    assert gpu.setting().power_limit_w == 200.0
    control.undo()
    assert gpu.setting().power_limit_w == 250.0
