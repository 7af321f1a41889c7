"""Arguments of wrong types and values: one sentence with the argument, its value and what is needed."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import workbench
from workbench.cluster.readers import read as read_jobs
from workbench.errors import (
    MOST_VALUES,
    UsageError,
    WorkbenchError,
    checked,
    listed,
    named_file,
    shown,
)
from workbench.experiments.sweep import candidates
from workbench.measurement import doctor, session
from workbench.records import Configuration, Setting
from workbench.simulation.machine import Machine

Simulated = Callable[..., Machine]
POINTS = pl.DataFrame({"time_s": [1.0, 2.0], "energy_j": [2.0, 1.0]})


@checked
def called(
    count: int, share: float | None = None, *, path: str | Path = "x", values: Sequence[float] = (),
    keep: bool = True, seed: int = 0, other: Callable[[], None] | None = None,
) -> tuple[Any, ...]:
    return count, share, path, values, keep, seed, other


def test_numbers_of_other_kinds_become_pythons_own() -> None:
    found = called(np.int64(3), np.float32(2.0), values=np.array([1.0, 2.0]), keep=np.bool_(False))  # type: ignore[arg-type]
    assert found == (3, 2.0, "x", (1.0, 2.0), False, 0, None)
    assert [type(each) for each in found[:2]] == [int, float]
    assert called(4.0)[0] == 4  # type: ignore[arg-type]
    assert called(1, math.nan)[1] is not None  # what is too large or no number the function itself refuses


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"count": "x"}, "count='x'.*whole number"),
        ({"count": True}, "count=True"),
        ({"count": 1.5}, r"count=1\.5"),
        ({"count": 10**30}, "whole number"),
        ({"count": 1, "share": [1]}, r"share=\[1\].*number or None"),
        ({"count": 1, "share": 10**400}, "number or None"),
        ({"count": 1, "path": 3}, "path=3"),
        ({"count": 1, "path": "a\0b"}, "no valid path"),
        ({"count": 1, "path": "~nobody-of-this-name/x"}, "unknown user"),
        ({"count": 1, "path": "x" * 300}, "too long"),
        ({"count": 1, "values": "12"}, "values='12'.*list"),
        ({"count": 1, "values": [1, "x"]}, "value of values='x'"),
        ({"count": 1, "values": range(10**7)}, f"values .*{MOST_VALUES:,}"),
        ({"count": 1, "keep": 1}, "keep=1.*True or False"),
        ({"count": 1, "seed": -1}, "seed=-1.*0 or more"),
    ],
)
def test_an_argument_of_another_type_is_named(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        called(**arguments)


def test_a_value_of_thousands_of_letters_leaves_the_way_out_in_the_sentence() -> None:
    text = str(WorkbenchError(f"there is no {'x' * 10_000}; give another"))
    assert len(text) < 1000
    assert text.endswith("; give another")
    assert len(shown("x" * 10_000)) <= 80
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    assert shown(deep).startswith("[[")
    assert listed(range(20), 2) == "0, 1 and 18 more"


@pytest.mark.parametrize("path", ["/dev/zero", "/", "pipe"])
def test_a_file_that_is_not_regular_is_not_read(tmp_path: Path, path: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    for read in (named_file, workbench.read_log, read_jobs):
        with pytest.raises(UsageError, match="no regular file"):
            read(tmp_path / path)


@pytest.mark.parametrize("value", ["200", b"200", [200.0], True, object(), Path("x"), 1j])
def test_a_setting_holds_numbers_only(value: Any) -> None:
    for knob in ("power_limit_w", "sm_clock_mhz", "mem_clock_mhz"):
        with pytest.raises(UsageError, match=f"{knob}=.*; give a"):
            Setting(**{knob: value})
    with pytest.raises(UsageError, match=r"batch_size=.*whole number"):
        Configuration(batch_size=value)
    assert Setting(np.float32(200.0), np.int64(1410)) == Setting(200.0, 1410)  # type: ignore[arg-type]


def test_a_sweep_of_too_many_candidates_is_refused_immediately() -> None:
    tens = range(1, 10**7)
    with pytest.raises(UsageError, match=r"batch_size .*100,000 values"):
        candidates({"batch_size": tens, "power_limit_w": tens, "sm_clock_mhz": tens})
    with pytest.raises(UsageError, match="1,000,000 configurations"):
        candidates({"batch_size": range(1, 1001), "power_limit_w": range(1, 1001)})
    for space in (1410, "power", [("batch_size", 1)], object()):
        with pytest.raises(UsageError, match="a space is"):
            candidates(space)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("act", "text"),
    [
        (lambda: workbench.best_configuration(ValueError("x")), "time_s and energy_j"),  # type: ignore[arg-type]
        (lambda: workbench.best_configuration(POINTS, default=[1]), "is no Configuration"),  # type: ignore[arg-type]
        (lambda: workbench.best_configuration(POINTS.with_columns(time_s=pl.lit([[1.0]]))), "time_s and energy_j are numbers"),
        (lambda: workbench.sweep(len, {"batch_size": [1]}, order=np.array([])), "the order is"),  # type: ignore[arg-type]
        (lambda: workbench.trace_of(7), "7 is no measurement"),  # type: ignore[arg-type]
        (lambda: workbench.iterations_of([None]), "is no measurement"),  # type: ignore[arg-type]
        (lambda: workbench.devices(range(10**7)), "not found"),
        (lambda: workbench.devices(np.array(3)), "names no GPU"),  # type: ignore[arg-type]
        (lambda: workbench.tune(over=[1]), r"over=\[1\]"),  # type: ignore[arg-type]
        (lambda: workbench.share("true", "true", labels=3.5), "labels=3.5"),  # type: ignore[arg-type]
        (lambda: workbench.simulate("A100", scale="x"), "scale='x'"),  # type: ignore[arg-type]
        (lambda: workbench.example_training(iterations="3"), "iterations='3'"),  # type: ignore[arg-type]
    ],
)
def test_a_bad_argument_is_explained(simulated: Simulated, act: Callable[[], object], text: str) -> None:
    simulated("A100")
    with pytest.raises(WorkbenchError, match=text):
        act()


@pytest.mark.filterwarnings("ignore:only the time")
@pytest.mark.parametrize("label", [np.array([]), POINTS, 3])
def test_a_training_continues_with_any_label(simulated: Simulated, label: Any) -> None:
    simulated("A100")
    assert list(workbench.track([1, 2], label)) == [1, 2]


@pytest.mark.parametrize("columns", ["metric", "value", "metric,more"])
def test_a_log_of_metrics_without_values_is_refused(tmp_path: Path, columns: str) -> None:
    path = tmp_path / "log.csv"
    path.write_text(f"timestamp,gpu,{columns}\n" + "1700000000.0,0,DCGM_FI_DEV_POWER_USAGE,1\n" * 3)
    with pytest.raises(UsageError, match="no power"):
        workbench.read_log(path)


def test_the_doctor_takes_minutes_and_not_days(simulated: Simulated) -> None:
    simulated("A100", stepped=True)
    device = workbench.open_device(0)
    for seconds, load, text in ((1e6, None, "at most 300"), (math.nan, None, "more than 0"), (1.0, 3, "load=3")):
        with pytest.raises(UsageError, match=text):
            doctor.gpu_findings(device, load, seconds=seconds)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"retries": -1}, "retries=-1"),
        ({"retries": math.nan}, "retries=nan"),
        ({"retries": "x"}, "retries='x'"),
        ({"retries": [0]}, r"retries=\[0\]"),
        ({"max_epochs": math.nan}, "max_epochs=nan"),
        ({"max_epochs": True}, "max_epochs=True"),
        ({"batch_sizes": [1.5]}, "value of batch_sizes=1.5"),
        ({"batch_sizes": "64"}, "batch_sizes='64'"),
        ({"storage": True}, "storage=True"),
        ({"storage": (8, 16)}, r"storage=\(8, 16\)"),
        ({"storage": POINTS}, "storage=.*path of a file"),
        ({"storage": "~nobody-of-this-name/x"}, "storage='~nobody"),
        ({"power_limits_w": -1}, "power_limits_w=-1"),
        ({"target": range(3)}, r"target=range\(0, 3\)"),
        ({"policy": 3}, "policy 3"),
        ({"objective": "A100"}, "objective='A100'"),
        ({"label": None}, "label=None"),
    ],
)
def test_each_argument_of_a_recurring_job_is_checked(
    simulated: Simulated, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, options: dict[str, Any], text: str
) -> None:
    session.current().close()
    monkeypatch.chdir(tmp_path)
    simulated("V100", stepped=True)
    given = {"label": "job", "batch_sizes": [32, 64], "storage": tmp_path / "runs.db", "gpus": 0, **options}
    try:
        with pytest.raises(UsageError, match=text):
            workbench.RecurringJob(given.pop("label"), given.pop("batch_sizes"), **given)
    finally:
        session.current().close()
    assert not (tmp_path / "True").exists()
