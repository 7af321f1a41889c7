"""The energy-time frontier: points that no other beats in both time and energy, with their certainty.

A frame of points has `time_s` and `energy_j` per row, and lower is better in both. Other columns stay with
their row; `time_se_s` and `energy_se_j` are standard errors. Only points for the same work can be compared.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import polars as pl

from ..errors import UsageError, checked

KNOBS = ("power_limit_w", "sm_clock_mhz", "mem_clock_mhz", "batch_size")
SURE = 0.95  # probability of being on the frontier
FAR = 4.0  # standard errors by which a point must be beaten not to be drawn at all


def check(points: pl.DataFrame) -> pl.DataFrame:
    """The points as numbers, checked.

    Raises:
        UsageError: No points, a missing column, or a value that is not finite or below zero. The message
            names row and value.
    """
    for column in ("time_s", "energy_j"):
        if column not in points.columns:
            raise UsageError(f"the points have no column '{column}'; time_s and energy_j are needed")
    if points.is_empty():
        raise UsageError("there are no points yet; measure at least one configuration")
    try:
        points = points.with_columns(pl.col("time_s", "energy_j").cast(pl.Float64))
    except pl.exceptions.PolarsError as error:
        why = str(error).splitlines()[0]
        raise UsageError(f"time_s and energy_j are numbers, in seconds and joules: {why}") from error
    for column, unit in (("time_s", "s"), ("energy_j", "J")):
        values = points[column].to_numpy()
        bad = np.flatnonzero(~(np.isfinite(values) & (values > 0)))
        if len(bad):
            row = int(bad[0])
            raise UsageError(
                f"row {row} has a {column} of {values[row]:g} {unit}; a run takes a finite {column} above 0 "
                f"{unit}. Remove rows without a measurement ({len(bad)} of {len(values)} rows)"
            )
    return points


def on_frontier(time_s: np.ndarray, energy_j: np.ndarray) -> np.ndarray:
    """Indices of non-dominated points, fastest first, in O(n log n) (Kung, Luccio and Preparata, 1975)."""
    order = np.lexsort((energy_j, time_s))
    energies = energy_j[order]
    least = np.minimum.accumulate(energies)
    keep = np.empty(len(order), dtype=bool)
    keep[:1] = True
    keep[1:] = energies[1:] < least[:-1]
    return order[keep]


@checked
def frontier(points: pl.DataFrame) -> pl.DataFrame:
    """The rows that no other beats in both time and energy, fastest first; of equal rows the first.

    >>> points = pl.DataFrame({"time_s": [1.0, 2.0, 2.0, 3.0], "energy_j": [9.0, 5.0, 7.0, 6.0]})
    >>> frontier(points)["energy_j"].to_list()
    [9.0, 5.0]

    Raises:
        UsageError: as `check`.
    """
    points = check(points)
    return points[on_frontier(points["time_s"].to_numpy(), points["energy_j"].to_numpy())]


def membership(points: pl.DataFrame, *, draws: int = 256) -> np.ndarray:
    """Probability that each point is on the frontier, given its standard errors; shape (points,).

    Points that are beaten by `FAR` standard errors have probability 0 without being drawn. Errors of time and
    energy are independent.
    """
    points = check(points)
    time_s, energy_j = points["time_s"].to_numpy(), points["energy_j"].to_numpy()
    time_sd, energy_sd = (_column(points, name) for name in ("time_se_s", "energy_se_j"))
    chance = np.zeros(len(time_s))
    if not (time_sd.any() or energy_sd.any()):
        chance[on_frontier(time_s, energy_j)] = 1.0
        return chance
    near = np.flatnonzero(~_far_beaten(time_s, energy_j, time_sd, energy_sd))
    rng = np.random.default_rng(0)
    for _ in range(draws):
        times = time_s[near] + time_sd[near] * rng.standard_normal(len(near))
        energies = energy_j[near] + energy_sd[near] * rng.standard_normal(len(near))
        chance[near[on_frontier(times, energies)]] += 1.0
    return chance / draws


def _far_beaten(
    time_s: np.ndarray, energy_j: np.ndarray, time_sd: np.ndarray, energy_sd: np.ndarray
) -> np.ndarray:
    """Mask of points whose best end is above another point's worst end in both axes."""
    high_time, high_energy = time_s + FAR * time_sd, energy_j + FAR * energy_sd
    corners = on_frontier(high_time, high_energy)
    step_time, step_energy = high_time[corners], high_energy[corners]
    at = np.searchsorted(step_time, time_s - FAR * time_sd, side="left") - 1
    return (at >= 0) & (step_energy[np.maximum(at, 0)] < energy_j - FAR * energy_sd)


def _column(points: pl.DataFrame, name: str) -> np.ndarray:
    if name not in points.columns:
        return np.zeros(len(points))
    values = points[name].cast(pl.Float64).fill_null(0.0).fill_nan(0.0).to_numpy()
    if (values < 0).any():
        row = int(np.flatnonzero(values < 0)[0])
        raise UsageError(f"row {row} has a {name} of {values[row]:g}; a standard error is 0 or more")
    return values


# choices along a frontier (rows fastest first)


def knee(front: pl.DataFrame) -> int:
    """Row of the knee: farthest below the chord of the ends, on scaled axes (Satopaa et al., 2011)."""
    time_s, energy_j = _axes(front)
    if len(time_s) < 3:
        return 0
    x = (time_s - time_s[0]) / (time_s[-1] - time_s[0])
    y = (energy_j - energy_j[-1]) / (energy_j[0] - energy_j[-1])
    return int(np.argmax(1.0 - x - y))


def nearest(front: pl.DataFrame, time_s: float, energy_j: float) -> int:
    """Row nearest to a point, both axes in shares of it: the new selection after a change of the frontier."""
    times, energies = _axes(front)
    return int(np.argmin(np.log(times / time_s) ** 2 + np.log(energies / energy_j) ** 2))


@dataclass(frozen=True)
class Distance:
    """Distance of a point from a frontier.

    Attributes:
        energy_j: Joules that a configuration with at most its time would save; below 0 beyond the frontier,
            NaN if the point is faster than all of it.
        time_s: Seconds that one with at most its energy would save; NaN if it draws less than all.
    """

    energy_j: float
    time_s: float


def distance(front: pl.DataFrame, time_s: float, energy_j: float) -> Distance:
    """Joules and seconds of a point above the measured configurations (without mixtures of two)."""
    times, energies = _axes(front)
    slower, hungrier = times <= time_s, energies <= energy_j
    return Distance(
        float(energy_j - energies[slower].min()) if slower.any() else math.nan,
        float(time_s - times[hungrier].min()) if hungrier.any() else math.nan,
    )


def _axes(front: pl.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    if front.is_empty():
        raise UsageError("the frontier is empty; measure at least one configuration")
    return front["time_s"].to_numpy(), front["energy_j"].to_numpy()
