"""Curves of earlier runs: their place in a space, and what is measured first because of them."""

from __future__ import annotations

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


def test_rows_that_are_named_are_measured_first_and_once() -> None:
    search = FrontierSearch(pl.DataFrame({"power_limit_w": LIMITS_W}))
    search.first = (3, 5, 3, 7)
    search.cannot(3, "out of memory")
    asked = []
    for _ in range(3):
        step = search.ask()
        assert step is not None
        asked.append(step.row)
        search.tell(step.row, 250.0 / LIMITS_W[step.row], 1.0 + LIMITS_W[step.row])
    assert asked[:2] == [5, 7]
    assert asked[2] not in (3, 5, 7)
