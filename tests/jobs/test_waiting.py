"""Which rank the others wait for: slow silicon, late data, slow links, and cases without an answer."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest

from benchmarks.jobs_waiting import Job, generate
from workbench.jobs.records import JobWaiting
from workbench.jobs.waiting import waiting


def job(seed: int = 1, card: str = "A100", gpus: int = 4, **options: Any) -> Job:
    usual: dict[str, Any] = {"period_s": 0.53, "gap": 0.06, "spin": 0.35, "transfer": 0.1, "ahead": 0.05}
    return generate(np.random.default_rng(seed), card, gpus, **usual | options)


def found(made: Job) -> JobWaiting:
    return waiting(made.traces, made.ends_s, windows_s=made.windows_s)


def assert_waits(result: JobWaiting, made: Job, within: float = 0.006) -> None:
    waits_s = {gpu.uuid: gpu.wait_s for gpu in result.gpus}
    assert waits_s == pytest.approx(made.wait_s, abs=within * made.iteration_s)


@pytest.mark.parametrize("wait", ["spin", pytest.param("block", marks=pytest.mark.slow)])
@pytest.mark.parametrize("card", ["A100", *(pytest.param(each, marks=pytest.mark.slow) for each in ("V100", "A40"))])
def test_slow_silicon_is_named_with_its_clock(card: str, wait: str) -> None:
    made = job(card=card, slower=0.05, wait=wait)
    result = found(made)
    assert result.known
    assert result.straggler == made.straggler
    assert f"GPU {made.straggler.removeprefix('GPU-')} runs at" in result.reason  # type: ignore[union-attr]
    assert "thermal" in result.reason
    assert result.cost_s == pytest.approx(made.cost_s, abs=0.01 * made.iteration_s)
    assert_waits(result, made)


def test_a_slow_loader_is_named_by_its_late_beginning() -> None:
    made = job(slower=0.08, cause="data")
    result = found(made)
    assert result.straggler == made.straggler
    assert "begins its work" in result.reason
    assert_waits(result, made)


def test_a_slow_link_is_no_straggler() -> None:
    result = found(job(transfer=0.3))
    assert result.known
    assert result.straggler is None
    assert result.cost_s is None
    assert max(gpu.wait_s or 0.0 for gpu in result.gpus) < 0.02 * result.iteration_s


def test_a_rotating_straggler_is_none() -> None:
    assert found(job(jitter=0.05)).straggler is None


def test_busy_waiting_at_the_power_of_work_hides_who_waits() -> None:
    made = job(slower=0.05, spin=1.0, gap=0.0)
    result = found(made)
    assert result.straggler in (None, made.straggler)
    assert result.energy_j is None or result.known


def test_iterations_in_phase_with_the_sensor_give_no_answer() -> None:
    result = found(in_phase())
    assert not result.known
    assert "in phase" in result.reason


def in_phase() -> Job:
    made = job(slower=0.05)
    tick_s = made.traces["GPU-0"]["power_tick_s"].unique().sort().to_numpy()
    return Job(
        made.traces, tick_s[::5], made.windows_s, made.wait_s, made.wait_energy_j, made.straggler, made.cost_s,
        made.iteration_s,
    )


def test_too_few_iterations_give_no_answer() -> None:
    made = job(slower=0.05)
    result = waiting(made.traces, made.ends_s[:10], windows_s=made.windows_s)
    assert not result.known
    assert result.reason == "9 iterations are too few; 20 are needed"
    assert not waiting({}, []).known


def test_sensors_may_be_late_by_different_times() -> None:
    made = job(slower=0.05, lag_s=0.01)
    result = found(made)
    assert result.straggler == made.straggler
    assert_waits(result, made, 0.01)


def test_a_power_of_waiting_gives_its_energy() -> None:
    made = job(slower=0.08)
    result = found(made)
    assert result.energy_j == pytest.approx(sum(made.wait_energy_j.values()), rel=0.15)
    assert all(len(gpu.power_w) == 48 for gpu in result.gpus)
    work_s = [gpu.work_s + gpu.wait_s for gpu in result.gpus]  # type: ignore[operator]
    assert max(work_s) - min(work_s) < 1e-9  # all wait until the same moment


def test_refreshes_need_not_be_known() -> None:
    made = job(slower=0.08)
    traces = {uuid: trace.with_columns(power_tick_s=None) for uuid, trace in made.traces.items()}
    assert waiting(traces, made.ends_s, windows_s=made.windows_s).straggler == made.straggler


def test_readings_whose_refresh_is_unknown_do_not_spoil_the_others() -> None:
    made = job(slower=0.08)
    late = made.traces["GPU-0"].unique("power_tick_s", maintain_order=True).with_row_index("row")
    known = pl.when(pl.col("row") >= late.height // 2).then("power_tick_s")
    trace = late.with_columns(time_s=pl.col("power_tick_s") + 0.099, power_tick_s=known).drop("row")
    result = waiting({**made.traces, "GPU-0": trace}, made.ends_s, windows_s=made.windows_s)
    assert result.straggler == made.straggler
    assert_waits(result, made, 0.01)


@pytest.mark.slow
def test_sixty_four_gpus() -> None:
    made = job(gpus=64, slower=0.05, duration_s=30.0)
    result = found(made)
    assert result.straggler == made.straggler
    assert len(result.gpus) == 64
