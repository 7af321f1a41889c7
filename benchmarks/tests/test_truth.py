"""The jobs of `benchmarks.truth` cost as much as their tables state, and its figures count correctly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from benchmarks import clocks_jobs, truth
from benchmarks.fixtures import true_jobs
from benchmarks.fixtures.true_jobs import SENSOR_KINDS, TrueJob
from workbench.device.discovery import open_device
from workbench.records import Setting
from workbench.simulation.machine import Machine

NUMBERS = range(28)


def short(number: int, seconds: float = 20.0) -> TrueJob:
    return true_jobs.draw(5, number, job_s=seconds, least=12)


def ran(job: TrueJob, machine: Machine) -> tuple[float, float]:
    return clocks_jobs.train_all(clocks_jobs.Run(job, machine), job.trainings(machine), lambda _: 0.5)


def test_a_seed_and_a_number_reproduce_a_job() -> None:
    one, same, other = short(3), short(3), true_jobs.draw(6, 3, job_s=20.0, least=12)
    assert (one.card.name, one.traits, one.cost()) == (same.card.name, same.traits, same.cost())
    assert one.cost() != other.cost()


@pytest.mark.parametrize("number", NUMBERS)
def test_tables_obey_the_rules_of_physics(number: int) -> None:
    job = short(number)
    x = np.array(job.card.sm_clocks_mhz) / job.card.sm_clocks_mhz[0]
    for kernel in (work.kernel for part in job.parts for work in part.work):
        for mem, time, power_w in zip(job.card.mem_clocks_mhz, kernel.time, kernel.power_w, strict=True):
            slowest = np.minimum(x, mem / job.card.mem_clocks_mhz[0])
            assert np.isfinite(power_w).all()
            assert power_w.min() > 0
            assert time.min() >= 1.0
            assert (time <= 1.0 / slowest + 1e-9).all()


@pytest.mark.parametrize("number", NUMBERS)
def test_a_capped_card_stays_below_its_limit(number: int) -> None:
    job = short(number)
    low_w, default_w, _ = job.card.power_limit_w
    for work in job.parts[0].work:
        for limit_w in (low_w, 0.8 * default_w, default_w):
            point = work.operate(job.card, power_limit_w=limit_w)
            assert point.power_w <= limit_w or point.sm_clock_mhz == job.card.sm_clocks_mhz[-1]
            assert point.capped == (point.sm_clock_mhz < job.card.sm_clocks_mhz[0])


@pytest.mark.parametrize("number", NUMBERS)
def test_the_oracle_is_no_worse_than_the_default_and_keeps_the_limit(number: int) -> None:
    job = short(number)
    default_s, default_j = job.cost()
    time_s, energy_j = job.cost(tuple(job.best(part)[0] for part in job.parts))
    assert energy_j <= default_j
    assert time_s <= (1 + job.max_slowdown) * default_s + 1e-9


def test_jobs_have_all_sensors_both_ways_to_find_steps_and_all_traits() -> None:
    jobs = [short(number) for number in range(42)]
    for kind in SENSOR_KINDS:
        assert {job.told for job in jobs if job.card.architecture == kind} == {True, False}
    traits = [job.traits for job in jobs]
    for trait in ("drift", "growth", "jitter", "wait_share", "checkpoint_s"):
        assert 0 < sum(each[trait] > 0 for each in traits) < len(jobs)
    assert {each["pulses"] for each in traits} >= {1, 2}
    assert {len(job.parts) for job in jobs} == {1, 2}


@pytest.mark.parametrize("number", [0, 8, 13])
def test_a_job_has_the_cost_in_its_tables(number: int, simulated: Callable[..., Machine]) -> None:
    job = short(number)
    machine = simulated(job.card.key, stepped=True)
    assert ran(job, machine) == pytest.approx(job.cost(), rel=1e-9)


def test_a_job_at_another_setting_has_the_cost_in_its_tables(simulated: Callable[..., Machine]) -> None:
    job = short(2)
    setting = Setting(sm_clock_mhz=job.card.sm_clocks_mhz[20])
    machine = simulated(job.card.key, stepped=True)
    open_device(0).write(setting)
    machine.step(2.0)
    assert ran(job, machine) == pytest.approx(job.cost(setting), rel=1e-9)


def test_other_methods_process_every_iteration_once() -> None:
    job = short(9, seconds=120.0)
    bill = truth.Bill(job, job.parts[0], "test")
    first = bill.measure(Setting(), 5, 3.0)
    assert first is not None
    assert first[0] >= 5
    assert first[1] >= 3.0
    bill.hold(Setting())
    assert bill.ended
    assert (bill.time_s, bill.energy_j) == pytest.approx(job.parts[0].cost(job.card, Setting()), rel=1e-9)
    found = truth.others(job)
    assert found[truth.DEFAULT] == pytest.approx(list(job.cost()))
    assert set(found) == {
        "driver default", "limit 75 %", "limit 80 %", "limit 90 %", "Zeus", "Zeus, 5 %", "GPOEO"
    }


# figures, from rows made by hand


def row(
    time_s: float, energy_j: float, reported: bool = True, shown: tuple[float, float] | None = None,
    **more: Any,
) -> dict[str, Any]:
    return {
        "told": reported, "default_s": 100.0, "default_j": 1000.0, "gain": 1.0, "observable": True,
        "methods": {truth.TUNER: [time_s, energy_j], "oracle": [104.0, 800.0]},
        "said": None if shown is None else {"energy_j": shown[0], "uncertainty_j": shown[1]},
        "false_retunes": 0, "error": "", **more,
    }


def test_the_bound_counts_whole_jobs() -> None:
    rows = [row(105.0, 900.0), row(107.0, 900.0), row(100.0, 900.0, reported=False)]
    found = truth.summary(rows)
    assert found["bound_kept_marked"] == 0.5
    assert found["bound_kept_unmarked"] == 1.0
    assert found["worst_slowdown_over_bound"] == pytest.approx(0.02)


def test_the_share_of_the_oracle_is_of_sums_and_leaves_out_what_cannot_be_observed() -> None:
    rows = [
        row(100.0, 900.0), row(100.0, 1000.0), row(100.0, 850.0, reported=False),
        row(100.0, 1000.0, reported=False, observable=False),
    ]
    found = truth.summary(rows)
    assert found["share_of_oracle_marked"] == pytest.approx(0.25)
    assert found["share_of_oracle_unmarked"] == pytest.approx(0.75)
    assert found["share_of_oracle_unmarked_all"] == pytest.approx(0.375)


def test_a_report_without_a_saving_is_right_and_an_interval_must_cover_the_truth() -> None:
    rows = [
        row(100.0, 900.0), row(100.0, 900.0, shown=(110.0, 20.0)), row(100.0, 900.0, shown=(110.0, 5.0)),
        row(100.0, 900.0, shown=(90.0, 95.0)),
    ]
    assert [truth.covered(each) for each in rows] == [True, True, False, True]
    assert not truth.covered(row(100.0, 900.0, error="failed"))
    found = truth.summary(rows)
    assert found["saving_covered"] == 0.75
    assert found["saving_covered_reported"] == pytest.approx(2 / 3)
    assert (found["saving_reported"], found["saving_claimed"]) == (3, 2)


def test_the_sensors_gain_is_no_error_of_the_report() -> None:
    assert truth.covered(row(100.0, 900.0, shown=(105.0, 1.0), gain=1.05))


def test_a_job_is_worse_if_it_uses_more_energy_and_is_not_faster() -> None:
    rows = [row(101.0, 1020.0), row(101.0, 1005.0), row(99.0, 1020.0)]
    assert truth.worse_by_1_percent(rows) == 1


@pytest.mark.parametrize(
    ("retunes_s", "shift_s", "false"),
    [([], None, 0), ([9.0], None, 1), ([120.0], 100.0, 0), ([9.0, 120.0, 180.0], 99.0, 2), ([9.0], 99.0, 1)],
)
def test_a_retune_is_false_but_for_the_first_one_after_a_change(
    retunes_s: list[float], shift_s: float | None, false: int
) -> None:
    assert truth.false_retunes(retunes_s, shift_s) == false


def test_the_details_of_a_job_have_its_log() -> None:
    log: dict[str, Any] = {"states": [(0.5, 3, "detect")], "events": [(1.25, "held at 200 W")]}
    text = truth.details(row(103.0, 900.0, **log))
    assert "100 J saved" in text
    assert "3.00%" in text
    assert "iteration      3: detect" in text
    assert "held at 200 W" in text
