"""Curves of earlier runs: their place in a space, when they count, and the trials they save a frontier
search.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import polars as pl
import pytest

from workbench.records import Setting
from workbench.search.earlier import (
    AGREED,
    CONTRADICTED,
    EarlierCurve,
    EarlierRuns,
    PlacedCurve,
    log_odds,
    place,
)
from workbench.search.surrogates.expected_hypervolume import FrontierSearch

LIMITS_W = [100.0 + 12.5 * step for step in range(13)]
TOP = Setting(power_limit_w=250.0, sm_clock_mhz=1500, mem_clock_mhz=900)


def curve(points: dict[float, tuple[float, float]]) -> PlacedCurve:
    logs = np.log(np.array(list(points.values())))
    rows = np.array([LIMITS_W.index(limit) for limit in points])
    return PlacedCurve(rows, logs, 0.01, "yesterday", np.log(250.0 / np.array(LIMITS_W)))


def measured(*points: tuple[int, float, float]) -> dict[int, tuple[float, float, float, float]]:
    return {row: (math.log(time), math.log(energy), 0.005, 0.005) for row, time, energy in points}


def cost(limit_w: float) -> tuple[float, float]:
    x = limit_w / 250.0
    busy = min(max((x - 0.2) / 0.7, 0.1), 1.0) ** 0.5
    time = 0.3 + 0.7 / busy
    return time, time * (70 + 180 * busy**2.5)


def test_a_default_is_the_highest_and_a_limit_may_be_off_by_a_little() -> None:
    settings = [Setting(power_limit_w=limit) for limit in (250.0, 200.0, 150.0)]
    points = {
        Setting(): (1.0, 1.0), Setting(power_limit_w=201.0): (1.1, 0.9), Setting(power_limit_w=170.0): (1.2, 0.8),
    }
    found = place(EarlierCurve(points), settings, TOP)
    assert found is not None
    assert found.rows.tolist() == [0, 1]
    assert np.exp(found.logs[1]) == pytest.approx([1.1, 0.9])
    clocks = EarlierCurve({Setting(sm_clock_mhz=1400): (1.0, 1.0), Setting(sm_clock_mhz=1200): (1.1, 0.9)})
    assert place(clocks, settings, TOP) is None
    assert place(clocks, settings, Setting(power_limit_w=250.0)) is None  # nobody knows how high clocks go


def test_another_card_counts_relative_to_its_own_top_and_with_a_wider_error() -> None:
    settings = [Setting(power_limit_w=limit) for limit in (250.0, 200.0, 150.0)]
    points = {Setting(power_limit_w=limit): (1.0, 1.0) for limit in (400.0, 320.0, 240.0)}
    found = place(EarlierCurve(points, elsewhere=Setting(power_limit_w=400.0)), settings, TOP)
    assert found is not None
    assert found.rows.tolist() == [0, 1, 2]
    assert found.sd >= 0.05


def test_settings_must_agree_but_for_the_unit_and_more_so_the_lower_they_are() -> None:
    known = curve({250.0: (1.0, 1.0), 237.5: (1.02, 0.97), 150.0: (1.4, 0.8)})
    top, near, low = (LIMITS_W.index(limit) for limit in (250.0, 237.5, 150.0))
    assert log_odds(known, measured((top, 30.0, 40.0))) == 0.0
    right = log_odds(known, measured((top, 30.0, 40.0), (low, 42.3, 32.2)))
    assert right > AGREED > log_odds(known, measured((top, 30.0, 40.0), (near, 30.6, 38.8))) > 0
    assert log_odds(known, measured((top, 30.0, 40.0), (low, 36.0, 32.0))) < CONTRADICTED
    assert log_odds(known, measured((top, 30.0, 40.0), (low, 42.0, 36.0))) < CONTRADICTED


def test_a_contradicted_curve_is_dropped_and_gives_no_first_trial() -> None:
    runs = EarlierRuns([curve({250.0: (1.0, 1.0), 200.0: (1.1, 0.9)}), curve({250.0: (1.0, 1.0), 150.0: (1.3, 0.8)})])
    assert runs.text.startswith("3 settings")
    assert runs.text.endswith("yesterday")
    assert runs.first() is runs.open[0]
    top, middle, low = (LIMITS_W.index(limit) for limit in (250.0, 200.0, 150.0))
    assert runs.see(measured((top, 1.0, 1.0), (middle, 1.3, 0.9))) == [("yesterday", False)]
    assert runs.first() is None
    assert runs.see(measured((top, 1.0, 1.0), (low, 1.3, 0.8))) == [("yesterday", True)]
    assert len(runs.agreed) == 1
    assert runs.see(measured((top, 1.0, 1.0), (low, 1.3, 0.8))) == []


SPACE = pl.DataFrame([(limit, clock) for limit in LIMITS_W[::2] for clock in range(600, 1501, 150)],
                     schema=["power_limit_w", "sm_clock_mhz"], orient="row")


WRONG = np.array([(1.0, limit * clock) for limit, clock in SPACE.rows()])


def slower(limit_w: float, clock_mhz: int) -> tuple[float, float]:
    """A job that runs at the clock that is set, or at what a limit leaves of it, as physics has it."""
    busy = min((limit_w / 250.0 - 0.2) / 0.7, (clock_mhz / 1500) ** 2, 1.0) ** 0.5
    time = 0.3 + 0.7 / busy
    return time, time * (70 + 180 * busy**2.5)


def both(limit_w: float, clock_mhz: int) -> tuple[float, float]:
    """A job that a clock and a limit slow down by their product, and a cliff: no physics makes it."""
    time, energy = cost(limit_w)
    longer = max(0.75 * 1500 / clock_mhz, 1.0) ** 0.6
    return time * longer, energy * (0.9 * longer if clock_mhz > 1000 else 1.05 * longer)


def needed(
    job: Callable[[float, int], tuple[float, float]], known: np.ndarray | None, seed: int,
    begun: int | None = None,
) -> tuple[int, FrontierSearch]:
    """Measurements until 99 % of the frontier's area are there; the first is of row `begun`, if any."""
    search = FrontierSearch(SPACE, rng=np.random.default_rng(seed), min_gain=0.0)
    if known is not None:
        deep = np.log(np.array([max(250.0 / limit, 1500 / clock) for limit, clock in SPACE.rows()]))
        search.assume([PlacedCurve(np.arange(0, len(SPACE), 2), np.log(known[::2]), 0.01, "yesterday", deep)])
    costs = np.array([job(*row) for row in SPACE.rows()])
    luck = np.random.default_rng(seed)
    while area(costs[search.measured], costs) < 0.99 * area(costs, costs):
        row, begun = begun, None
        if row is None:
            step = search.ask()
            assert step is not None
            row = step.row
        time, energy = costs[row] * np.exp(0.003 * luck.standard_normal(2))
        search.tell(row, float(time), float(energy))
    return len(search.measured), search


def area(points: np.ndarray, every: np.ndarray) -> float:
    """What points dominate, up to the worst of all."""
    worst_time, low = every.max(axis=0)
    total = 0.0
    for time, energy in sorted(map(tuple, points)):
        total += max(low - energy, 0.0) * (worst_time - time)
        low = min(low, energy)
    return total


def test_a_frontier_is_found_sooner_where_it_is_known_and_hardly_later_where_that_is_wrong() -> None:
    costs = np.array([slower(*row) for row in SPACE.rows()])
    counts = {"none": 0, "right": 0, "wrong": 0}
    for seed in range(3):
        for name, known in (("none", None), ("right", costs * [7.0, 2.0]), ("wrong", WRONG)):
            count, search = needed(slower, known, seed)
            counts[name] += count
            assert bool(search.earlier) is (name == "right")
    assert counts["right"] < counts["none"]
    assert counts["wrong"] <= counts["none"] + 6  # over three seeds; rounding differs between processors


def test_after_a_wrong_run_a_frontier_search_is_as_if_it_had_begun_at_its_end_by_itself() -> None:
    """Also of a job that no physics makes, where such a beginning is a bad one."""
    for seed in range(2):
        count, search = needed(both, WRONG, seed)
        same, plain = needed(both, None, seed, begun=int(WRONG[:, 1].argmin()))
        assert (count, search.measured) == (same, plain.measured)
        assert not search.earlier


def test_known_points_predict_the_rest_of_the_curve() -> None:
    right = {limit: (7 * cost(limit)[0], 2 * cost(limit)[1]) for limit in LIMITS_W[::2]}
    errors = []
    for known in ({}, right):
        search = FrontierSearch(pl.DataFrame({"power_limit_w": LIMITS_W}), rng=np.random.default_rng(0))
        if known:
            search.assume([curve(known)])
        for row in (0, len(LIMITS_W) - 1):
            search.tell(row, *cost(LIMITS_W[row]))
        belief = search.belief()
        true = np.array([cost(limit)[1] for limit in LIMITS_W])
        errors.append(float(np.abs(np.log(belief["energy_j"].to_numpy() / true)).mean()))
        assert belief["energy_j"][0] == pytest.approx(cost(100.0)[1])
    assert errors[1] < 0.5 * errors[0]
