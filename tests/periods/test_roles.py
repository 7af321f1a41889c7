"""A detection has two confidences: that a period is there, and what its role is. Who relies on it relies on the
role only when that is sure.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from benchmarks.fixtures.job_grammar import GRAMMAR, random_job_case, random_world
from benchmarks.fixtures.traces import APERIODIC, PERIODIC
from benchmarks.period_cases import Case, Truth
from benchmarks.period_scores import Answer, score, summarise
from workbench.logbook.report import describe_iterations
from workbench.panels._views.period.model import period_view
from workbench.periods import detect
from workbench.periods.detect import confirmed, find_periods
from workbench.periods.estimators.signals import on_grid
from workbench.periods.segment import iterations, per_iteration
from workbench.records import DetectedPeriod, Periods

RNG = np.random.default_rng
HIDDEN = "a period of 13.2 s; the iterations inside it are too fast for this sensor"


def checkpoints(loop_s: float = 0.21, cycle_s: float = 13.2, seconds: float = 200.0) -> pl.DataFrame:
    """Loops too fast for a sensor that shows 25 ms of each 0.1 s, and a checkpoint of 2.5 s in each cycle."""
    time_s = np.arange(0.0, seconds, 0.1)
    into = time_s % cycle_s
    loop = np.where(into % loop_s < 0.6 * loop_s, 250.0, 170.0)
    power_w = np.where(into < cycle_s - 2.5, loop, 75.0) + RNG(5).normal(0, 2.0, len(time_s))
    return pl.DataFrame({"time_s": time_s, "power_w": power_w, "energy_j": np.cumsum(power_w) * 0.1})


def known(*levels: DetectedPeriod, **what: bool) -> Periods:
    return Periods(levels, **what)  # type: ignore[arg-type]


CYCLE = DetectedPeriod("cycle", 13.2, 0.05, 0.93, 0.0, 0.8, 0.99)


def test_a_cycle_of_hidden_loops_is_a_sure_period_and_no_iteration() -> None:
    found = find_periods(checkpoints())
    assert found.main is not None
    assert found.main.period_s == pytest.approx(13.2, rel=0.01)
    assert found.main.period_confidence > 0.8
    assert not found.sure


def test_near_what_the_sensor_can_show_a_period_must_be_surer() -> None:
    trace = checkpoints()
    grid = on_grid(trace["time_s"].to_numpy(), {"power_w": trace["power_w"].to_numpy()})
    levels = [DetectedPeriod("iteration", seconds, 0.01, 0.8, 0.0, 0.5, 0.84) for seconds in (0.4, 13.2)]
    assert [detect._is_there(level, grid) for level in levels] == [False, True]
    few = replace(levels[1], period_s=30.0)  # of which 200 s hold six
    assert not detect._is_there(few, grid)


def test_a_role_implies_a_period_and_is_a_share_of_its_confidence() -> None:
    assert DetectedPeriod("iteration", 2.0, 0.1, 0.9, 0.0, 0.5).period_confidence == 0.9
    assert DetectedPeriod("iteration", 2.0, 0.1, 0.3, 0.0, 0.5, 0.6).role == 0.5
    assert Periods(sure=True).main_sure
    assert known(CYCLE, cycle_sure=True).role_sure
    doubted = known(CYCLE, cycle_sure=True).doubted("a beat")
    assert (doubted.main_sure, doubted.role_sure, doubted.reason) == (False, False, "a beat")


def test_the_period_is_the_iteration_where_that_is_sure_else_the_surest_level() -> None:
    iteration = DetectedPeriod("iteration", 1.1, 0.01, 0.7, 0.0, 0.5, 0.9)
    assert known(iteration, CYCLE, steady=True).main is CYCLE
    assert known(iteration, CYCLE, sure=True).main is iteration


def test_a_period_of_unsure_role_costs_joules_per_cycle_and_not_per_iteration() -> None:
    trace = checkpoints()
    periods = known(replace(CYCLE, period_s=13.2), steady=True, cycle_sure=True)
    periods = replace(periods, reason=HIDDEN)
    frame = iterations(trace, periods, energies=lambda at: np.diff(np.interp(at, trace["time_s"], trace["energy_j"])))
    summary = per_iteration(frame, periods=periods)
    assert (summary.count, summary.sure, summary.time_s, summary.energy_j) == (0, False, None, None)
    (cycle,) = (level for level in summary.levels if level.name == "cycle")
    assert cycle.each_s == pytest.approx(13.2, rel=0.02)
    assert not [level for level in summary.levels if level.name == "iteration"]
    text = describe_iterations(summary)
    assert "J per 13." in text
    assert "s cycle" in text
    assert text.endswith(HIDDEN)
    assert "an iteration" not in text


def test_a_cycle_without_a_known_iteration_is_headed_period() -> None:
    observed = period_view(checkpoints(), replace(known(CYCLE, cycle_sure=True), reason=HIDDEN))
    assert observed.sure
    assert observed.headline.startswith("Period 13.2")
    assert observed.headline.endswith("for this sensor")


def test_a_second_sensor_settles_that_a_period_is_there_and_leaves_its_role() -> None:
    clear = confirmed(known(DetectedPeriod("iteration", 0.4, 0.01, 0.6, 0.0, 0.5, 0.8)))
    assert (clear.sure, clear.reason) == (True, "")
    unclear = confirmed(known(DetectedPeriod("iteration", 0.4, 0.01, 0.2, 0.0, 0.5, 0.8)))
    assert (unclear.sure, unclear.main_sure) == (False, True)
    assert "period of 0.4 s" in unclear.reason


def scored(periods: Periods, *, observable: bool) -> dict[str, object]:
    truth = Truth(True, observable, ((0.2, 0.2),), {"cycle": ((13.2, 13.2),)}, 0.2)
    case = Case("1", "made", "any", checkpoints(seconds=3.0), truth)
    return summarise([score(case, Answer(periods, 0.0))])


def test_the_scores_count_a_period_and_its_role_separately() -> None:
    mistaken = known(replace(CYCLE, name="iteration"), sure=True)
    found = scored(mistaken, observable=True)
    assert (found["rhythm_sure"], found["rhythm_wrong"], found["role_sure"], found["role_wrong"]) == (1, 0, 1, 1)
    right = scored(known(CYCLE, cycle_sure=True), observable=True)
    assert (right["role_sure"], right["role_wrong"], right["level_exact"]) == (1, 0, 1)
    assert scored(mistaken, observable=False)["unobservable_sure_wrong"] == 1
    assert scored(known(CYCLE, steady=True), observable=False)["unobservable_sure_wrong"] == 0
    beat = known(replace(CYCLE, period_s=3.1), steady=True)
    assert scored(beat, observable=False)["unobservable_sure_wrong"] == 1


def test_four_tenths_of_random_jobs_suit_their_sensor() -> None:
    families = [random_world(RNG([3, number])).family for number in range(60)]
    today = sum(family in PERIODIC or family in APERIODIC for family in families)
    assert 0.3 < today / 60 < 0.6
    assert set(families) & set(GRAMMAR)


@pytest.mark.parametrize("family", GRAMMAR)
def test_a_job_by_grammar_is_the_same_again_and_its_levels_are_in_order(family: str) -> None:
    case, again = (random_job_case(RNG([8, 1]), family) for _ in range(2))
    assert np.array_equal(case.columns["power_w"], again.columns["power_w"])
    assert case.truth.iteration_s is not None
    assert all(np.diff(case.truth.starts_s) > 0)
    for name, seconds in case.truth.levels_s.items():
        assert (seconds < case.truth.iteration_s) is (name == "micro-step")


def test_hidden_loops_come_by_the_hundred_between_two_pauses() -> None:
    jobs = [random_job_case(RNG([9, number]), "hidden") for number in range(40)]
    ratios = [job.truth.levels_s["cycle"] / job.truth.iteration_s for job in jobs if "cycle" in job.truth.levels_s]
    assert max(ratios) > 300
    assert sum(not job.truth.observable for job in jobs) > 20
