"""The cluster benchmark's own rules: which files it reads, how a log is cut, what a limit does, when ours
is reported to hold.
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from benchmarks.cluster import EACO, verdict
from benchmarks.cluster_caps import clock_curves, levels, limit_curves
from benchmarks.cluster_logs import job_logs, usable, weeks
from benchmarks.fixtures.cluster_compare import compare, runs
from workbench.cluster.generator import generate
from workbench.cluster.joblogs import BUSIEST, MEDIAN, WHOLE, parts, trim
from workbench.cluster.policies import Eaco, EnergyAwarePolicy, Fifo
from workbench.cluster.power import Cluster
from workbench.cluster.readers import read
from workbench.errors import UsageError

DAY_S = 86400.0


def test_limits_and_clocks_are_found_by_their_columns_and_averaged_over_workloads(tmp_path: Path) -> None:
    (tmp_path / "zeus").mkdir()
    (tmp_path / "clocks").mkdir()
    sweep = {"network": "n", "batch_size": 1, "optimizer": "o"}
    rows = [
        {**sweep, "power_limit": p, "time_per_epoch": t, "average_power": w}
        for p, t, w in ((200, 10.0, 150.0), (180, 10.0, 130.0), (100, 20.0, 90.0))
    ]
    pl.DataFrame(rows).write_csv(tmp_path / "zeus" / "any_name.csv")
    windows = pl.DataFrame(
        {
            "window_name": [f"w_{p}" for p in (100, 180, 200)], "elapsed_time": [2.0, 1.25, 1.0],
            "gpu0_energy": [180.0, 137.5, 150.0],
        }
    )
    windows.write_csv(tmp_path / "zeus" / "others.csv")
    pl.DataFrame({"x": [1]}).write_csv(tmp_path / "zeus" / "neither.csv")
    curves = limit_curves(tmp_path)
    assert len(curves) == 2
    top = levels(curves, 250.0)[0]
    assert top.power_limit_w == 225.0
    assert top.speed == pytest.approx((1.0 + 0.8) / 2)
    # above an idle of 30 W: 100 and 80 of 120 and 120 W
    assert top.active == pytest.approx(180 / 240)
    stages = pl.DataFrame(
        {"stage": [0, 1] * 2, "instruction": ["f"] * 4, "frequency": [1000, 1000, 900, 900],
            "time": [1.0, 1.0, 1.1, 1.1], "energy": [200.0] * 2 + [176.0] * 2}
    )
    stages.write_csv(tmp_path / "clocks" / "sweep.csv")
    (clocked,) = levels(clock_curves(tmp_path), 250.0, idle_w=60.0)
    assert (clocked.speed, clocked.active) == (
        pytest.approx(1 / 1.1, abs=1e-4), pytest.approx(100 / 140, abs=1e-4),
    )
    assert levels([], 250.0) == ()


def test_a_log_is_cut_by_rules_that_know_nothing_of_it(tmp_path: Path) -> None:
    (tmp_path / "cluster").mkdir()
    days = [day for day in range(28) for _ in range(5 if 8 <= day < 15 else 1)]
    log = pl.DataFrame(
        {
            "job_id": range(len(days)), "submit_s": [day * DAY_S + 5 for day in days], "duration_s": 600.0,
            "num_gpus": 1,
        }
    )
    log.write_parquet(tmp_path / "cluster" / "ours.parquet")
    pl.DataFrame({"other": [1]}).write_csv(tmp_path / "cluster" / "table.csv")
    (name,) = job_logs(tmp_path)
    assert name == "ours"
    cut = weeks(usable(log))
    assert [part.height for part in cut.values()] == [35, 7]
    assert next(iter(cut)) == "days 8-15, the busiest"
    assert list(weeks(log.head(10))) == ["whole log"]


def test_wide_and_short_jobs_are_left_out_and_long_ones_capped() -> None:
    log = pl.DataFrame(
        {
            "job_id": [1, 2, 3, 4], "submit_s": [4, 3, 2, 1], "duration_s": [59, 60, 10**7, 100],
            "num_gpus": [1, 1, 8, 9],
        }
    )
    kept = usable(log)
    assert kept["job_id"].to_list() == ["3", "2"]
    assert kept["duration_s"].to_list() == [3 * DAY_S, 60.0]


@pytest.mark.parametrize(
    ("change", "holds"),
    [
        ({}, True), ({"energy_kwh": 93.0}, False), ({"jct_p95_h": 5.1}, False),
        ({"runtime_inflation": 0.06}, False), ({"misses": 11}, False),
    ],
)
def test_ours_holds_only_if_every_figure_does(change: dict[str, float], holds: bool) -> None:
    base: dict[str, Any] = {
        "energy_kwh": 100.0, "jct_h": 2.0, "jct_p95_h": 5.0, "runtime_inflation": 0.05,
        "mean_job_inflation": 0.05, "misses": 10,
    }
    rows = [{**base, "policy": name, "seed": 0, "energy_kwh": 100.0 + at} for at, name in enumerate(EACO)]
    rows += [
        {**base, "policy": name, "seed": 0, "energy_kwh": 200.0}
        for name in ("fifo-spread-always-on", "fifo-best-fit")
    ]
    rows.append({**base, "policy": "ours", "seed": 0, "energy_kwh": 90.0, **change})
    found = verdict(rows, "log", "week", 28)
    assert found["eaco_at_its_best"] == EACO[0]
    assert found["ours"]["holds"] is holds
    assert found["eaco_energy_over_fifo_spread"] == 0.5


def test_logs_of_other_systems_and_in_other_folders_are_found_and_wrong_rows_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "jobs").mkdir()
    pods = {
        "name": ["a"], "num_gpu": [1], "gpu_milli": [500], "gpu_spec": ["T4"], "creation_time": [10],
        "deletion_time": [900],
    }
    pl.DataFrame(pods).write_csv(tmp_path / "jobs" / "pods.csv")
    (tmp_path / "jobs" / "slurm.txt").write_text(
        "JobID|Submit|ElapsedRaw|AllocTRES\n1|2024-05-01T10:00:00|100|gres/gpu=2\n"
    )
    (tmp_path / "jobs" / "broken.parquet").write_bytes(b"nothing")
    rows = {
        "job_id": [1, 2, 3, 3], "submit_s": [5.0, float("nan"), 1.0, 1.0],
        "duration_s": [float("nan"), 70.0, 80.0, 80.0], "num_gpus": 1,
    }
    pl.DataFrame(rows).write_parquet(tmp_path / "jobs" / "own.parquet")
    found = job_logs(tmp_path)
    assert sorted(found) == ["own", "pods", "slurm"]
    assert "broken.parquet" in capsys.readouterr().out
    assert usable(found["own"])["job_id"].to_list() == ["3"]
    assert usable(found["pods"]).select("utilisation", "gpu_type").row(0) == (0.5, None)
    assert usable(found["slurm"])["num_gpus"].to_list() == [2]
    with pytest.raises(UsageError, match="1 jobs"):
        usable(found["own"].head(1).with_columns(pl.lit(1.0).alias("duration_s")))


def test_weeks_of_recorded_logs_are_those_of_the_tables(data_dir: Path) -> None:
    logs = job_logs(data_dir)
    assert logs
    for log in logs.values():
        of_tables = list(weeks(usable(log)).values())
        found = parts(trim(read(log)).jobs)
        of_panel = [found[name] for name in (BUSIEST, MEDIAN) if name in found] or [found[WHOLE]]
        assert [week["job_id"].to_list() for week in of_panel] == [
            week["job_id"].cast(pl.String).to_list() for week in of_tables
        ]


def test_policies_are_compared_here_and_on_an_executor_alike() -> None:
    frame = generate(100, gpus=16, seed=2, load=1.0, mean_s=1000.0)
    chosen = {"fifo": Fifo, "eaco": partial(Eaco, max_jobs=2), "ours": EnergyAwarePolicy}
    here = compare(frame, Cluster.of(2), chosen)
    assert here["run"].to_list() == ["fifo", "eaco", "ours"]
    with ProcessPoolExecutor(
        1, mp_context=get_context("spawn")
    ) as pool:  # a fork would copy the locks of running threads
        assert compare(frame, Cluster.of(2), chosen, executor=pool).equals(here)
    assert next(runs(frame, Cluster.of(2), chosen))[0] == "fifo"
