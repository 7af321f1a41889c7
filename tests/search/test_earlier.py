"""Curves of earlier runs: their place in a space, and what is measured first because of them."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from workbench.records import Setting
from workbench.search.earlier import EarlierCurve, best_row, first_known
from workbench.search.objective import Energy
from workbench.search.space import space_of
from workbench.search.surrogates.expected_hypervolume import FrontierSearch

LIMITS_W = [100.0 + 12.5 * step for step in range(13)]
TOP = Setting(power_limit_w=250.0, sm_clock_mhz=1500, mem_clock_mhz=900)


def test_a_default_is_the_highest_and_a_limit_may_be_off_by_a_little() -> None:
    settings = [Setting(power_limit_w=limit) for limit in (250.0, 200.0, 150.0)]
    points = {
        Setting(): (1.0, 1.0), Setting(power_limit_w=201.0): (1.1, 0.9), Setting(power_limit_w=170.0): (1.2, 0.8),
    }
    assert EarlierCurve(points).at(settings, TOP) == {0: (1.0, 1.0), 1: (1.1, 0.9)}
    clocks = EarlierCurve({Setting(sm_clock_mhz=1400): (1.0, 1.0), Setting(sm_clock_mhz=1200): (1.1, 0.9)})
    assert clocks.at(settings, TOP) == {}
    assert clocks.at(settings, Setting(power_limit_w=250.0)) == {}  # nobody knows how high clocks go


def test_the_first_curve_that_knows_two_settings_of_a_space_is_taken() -> None:
    space = space_of([Setting(power_limit_w=limit) for limit in (250.0, 200.0, 150.0)])
    clocks = {Setting(sm_clock_mhz=mhz): (1.0, 1.0) for mhz in (1400, 1200)}
    little = {Setting(power_limit_w=limit): (1.0, 1.0) for limit in (250.0, 170.0)}
    known = {Setting(power_limit_w=limit): (250.0 / limit, 1.0) for limit in (250.0, 150.0)}
    curves = [EarlierCurve(each, str(number)) for number, each in enumerate((clocks, little, known))]
    costs, text = first_known(curves, space)
    assert costs == {0: (1.0, 1.0), 2: (250.0 / 150.0, 1.0)}
    assert text == "2 settings of this job are known from 2"
    assert first_known(curves[:2], space) == ({}, "")


@pytest.mark.parametrize(("max_slowdown", "best"), [(None, 2), (0.05, 1), (0.035, 0), (0.0, 0)])
def test_the_best_of_an_earlier_run_keeps_the_slowdown_limit_with_a_margin(
    max_slowdown: float | None, best: int
) -> None:
    """A percent of the limit is left for what differs from run to run."""
    costs = {0: (7.0, 30.0), 1: (7.0 * 1.03, 27.0), 2: (7.0 * 1.3, 21.0)}
    assert best_row(costs, 0, (0.5, 100.0), Energy(), max_slowdown) == best
    unknown = {row: costs[row] for row in (1, 2)}  # relative to the fastest that is known
    assert best_row(unknown, 0, (0.5, 100.0), Energy(), 0.05) == 1


SPACE = pl.DataFrame([(limit, clock) for limit in LIMITS_W[::2] for clock in range(600, 1501, 150)],
                     schema=["power_limit_w", "sm_clock_mhz"], orient="row")


def slower(limit_w: float, clock_mhz: int) -> tuple[float, float]:
    """A job that runs at the clock that is set, or at what a limit leaves of it, as physics has it."""
    busy = min((limit_w / 250.0 - 0.2) / 0.7, (clock_mhz / 1500) ** 2, 1.0) ** 0.5
    time = 0.3 + 0.7 / busy
    return time, time * (70 + 180 * busy**2.5)


def needed(first: tuple[int, ...], seed: int) -> FrontierSearch:
    """A search until 99 % of the frontier's area are there, with these rows measured first."""
    search = FrontierSearch(SPACE, rng=np.random.default_rng(seed), min_gain=0.0)
    search.first = first
    costs = np.array([slower(*row) for row in SPACE.rows()])
    luck = np.random.default_rng(seed)
    while area(costs[search.measured], costs) < 0.99 * area(costs, costs):
        step = search.ask()
        assert step is not None
        time, energy = costs[step.row] * np.exp(0.003 * luck.standard_normal(2))
        search.tell(step.row, float(time), float(energy))
    return search


def area(points: np.ndarray, every: np.ndarray) -> float:
    """What points dominate, up to the worst of all."""
    worst_time, low = every.max(axis=0)
    total = 0.0
    for time, energy in sorted(map(tuple, points)):
        total += max(low - energy, 0.0) * (worst_time - time)
        low = min(low, energy)
    return total


def test_rows_that_are_named_are_measured_first_and_once() -> None:
    costs = np.array([slower(*row) for row in SPACE.rows()])
    ends = int(costs[:, 1].argmin()), int(costs[:, 0].argmin())
    known = [needed(ends, seed).measured for seed in range(3)]
    assert all(each[:2] == list(ends) and len(each) == len({*each}) for each in known)
    # A beginning at the ends is no worse over three seeds than the search's own, but for rounding.
    assert sum(map(len, known)) <= sum(len(needed((), seed).measured) for seed in range(3)) + 2
    search = FrontierSearch(SPACE)
    search.first = (3, 5)
    search.cannot(3, "out of memory")
    step = search.ask()
    assert step is not None
    assert step.row == 5
