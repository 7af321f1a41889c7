"""Energy counters that only sum power readings: how to recognise one, and the variance of what it misses.

A100 and H100 measure power for 25 ms of every 100 (Yang et al., arXiv 2312.02741). It is not documented
whether their energy counters sum those readings or integrate all the time. A counter that sums readings moves
by what the readings said; one that integrates does not, under a load that changes within a step.

Such a counter is a sample of the power. The error of a sum over n readings is their standard deviation around
the local mean times the root of n, and larger where successive readings are correlated: a load whose period
is close to that of the sensor is sampled at nearly the same phase again and again. Over many periods of the
load these errors cancel, as far as they repeat (`long_run_share`). Where two readings leave less than
`HIDDEN_S` between them, no phase of a training hides there, and only the moments of its jumps are not known.

The constants were set on simulated trainings on an A100 and on generated loads; `python -m
benchmarks.measurement` scores them on V100 and H100.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
PART_TIME = 0.6  # a reading averages less than this share of the time between two refreshes
FEWEST_STEPS = 60  # of the counter, that are compared with readings
CHANGE = 0.05  # share of the mean power by which successive steps differ, where a step is compared
FEWEST_CHANGES = 10
OFF = 0.1  # share of such a change by which a step differs from what the readings explain
# Shares of the compared steps that differ: at most where readings are summed, at least where power is
# integrated.
SUMMED, INTEGRATED = 0.15, 0.55
NEAR = (20, 10)  # refreshes on either side, for the local mean, and over which readings may be correlated
BEFORE_LONG = 10  # steps, before errors that repeat begin to cancel
LONG_RUN = (3.48 / 1.96) ** 2  # 97.5 % quantile of a sum over its estimated long-run deviation, squared
LEAST = 0.1  # share of neighbours' variance that remains at least: what repeats may hide from all readings
HIDDEN_S = 0.02  # between two readings, in which no phase of a training hides
JUMPS = 1.5  # times the variance of a jump at a random moment between two readings
STEADY = 0.003  # of the power, by which the mean between two like readings may differ from theirs


def sums_readings(rows: np.ndarray[Any, Any]) -> bool | None:
    """Whether a GPU's energy counter only sums its power readings.

    Args:
        rows: Samples of one GPU (`samples.ROWS`) whose refreshes are known.

    Returns:
        None where it cannot be decided: too few refreshes, or a load that hardly changes.
    """
    share = unexplained_share(rows)
    if share is None or SUMMED < share < INTEGRATED:
        return None
    return share <= SUMMED


def unexplained_share(rows: np.ndarray[Any, Any]) -> float | None:
    """The share of the counter's changing steps that power readings do not explain; None if there are few."""
    known = rows[np.isfinite(rows["tick_s"]) & np.isfinite(rows["energy_j"]) & np.isfinite(rows["power_w"])]
    _, first = np.unique(np.round(known["tick_s"], 4), return_index=True)
    known = known[first]
    if len(known) < FEWEST_STEPS + 3:
        return None
    spans = np.diff(known["tick_s"])
    steps_w = np.diff(known["energy_j"]) / spans
    # A row may show the reading of the refresh before or after the one at which the counter moved.
    readings = np.stack([np.roll(known["power_w"].astype(float), shift)[1:] for shift in (-1, 0, 1)])
    use = np.abs(spans - np.median(spans)) < 0.1 * np.median(spans)
    use[[0, -1]] = False
    if use.sum() < FEWEST_STEPS:
        return None
    design = np.vstack([readings, np.ones(len(spans))]).T
    fitted, *_ = np.linalg.lstsq(design[use], steps_w[use], rcond=None)
    change_w = np.abs(np.diff(steps_w, prepend=steps_w[:1]))
    moved = use & (change_w > CHANGE * np.mean(steps_w))
    if moved.sum() < FEWEST_CHANGES:
        return None
    off_w = np.abs(steps_w - design @ fitted)
    return float(np.mean(off_w[moved] > OFF * change_w[moved]))


def unseen_variance(power_w: Floats, spans_s: Floats, window_s: float) -> Floats:
    """The variance (J^2) of the energy that readings miss in each step; variances of steps add up.

    Args:
        power_w: (n + 1,) readings at the refreshes around n steps, W.
        spans_s: (n,) lengths of the steps, s.
        window_s: Time that each reading averages, s.
    """
    gaps_s = np.maximum(spans_s - window_s, 0.0)
    _, variance = _around(power_w, NEAR[0])
    missed = variance[1:] * max(_correlation(power_w, *NEAR), 1.0) * gaps_s * spans_s
    jumps = JUMPS * np.square(np.diff(power_w) * gaps_s) / 12.0
    missed = np.where(gaps_s < HIDDEN_S, np.minimum(jumps, missed), missed)
    return np.asarray(missed + np.square(STEADY * power_w[1:] * gaps_s))


def long_run_share(power_w: Floats, spans_s: Floats, window_s: float, places: NDArray[np.intp]) -> Floats:
    """What remains of the summed `unseen_variance` of stretches of many steps: below 1 where errors cancel,
    above it where they last, as those of a load whose period is close to that of the sensor.

    From the readings within each stretch, by an estimate of the long-run variance whose quantile allows for
    its own scatter (Kiefer and Vogelsang, "A new asymptotic theory for heteroskedasticity-autocorrelation
    robust tests", 2005, table 1: Bartlett's kernel, bandwidth half the length).

    Args:
        power_w: (n + 1,) readings at the refreshes around n steps, W.
        spans_s: (n,) lengths of the steps, s.
        window_s: Time that each reading averages, s.
        places: (m + 1,) where in `power_w` each stretch begins, and the last one ends.
    """
    gaps_s = np.maximum(spans_s - window_s, 0.0)
    shares = np.ones(max(len(places) - 1, 0))
    if not len(spans_s) or float(np.median(gaps_s)) < HIDDEN_S:
        return shares
    near = np.concatenate([[0.0], np.cumsum(unseen_variance(power_w, spans_s, window_s))])
    for k, (first, last) in enumerate(itertools.pairwise(places.tolist())):
        if last - first >= BEFORE_LONG and near[last] > near[first]:
            scale = float(np.mean(gaps_s[first:last] * spans_s[first:last]))
            long_run = LONG_RUN * _variance_of_sum(power_w[first + 1 : last + 1]) * scale
            shares[k] = max(long_run / (near[last] - near[first]), LEAST, BEFORE_LONG / (last - first))
    return shares


def _variance_of_sum(values: Floats) -> float:
    """The variance of the sum of values in a row that are correlated: Bartlett's kernel, half as wide."""
    off = values - values.mean()
    lags = len(off) // 2
    spectrum = np.abs(np.fft.rfft(off, 2 * len(off))) ** 2
    products = np.fft.irfft(spectrum)[:lags]
    weights = 1.0 - np.arange(lags) / lags
    return max(float(2.0 * np.sum(weights * products) - products[0]), 0.0)


def _around(power_w: Floats, around: int) -> tuple[Floats, Floats]:
    """Mean (W) and variance (W^2) of the readings around each, up to so many on either side."""
    n, full = len(power_w), 2 * around + 1
    at = np.arange(n)
    low = np.clip(at - around, 0, max(n - full, 0))
    high = np.minimum(low + full, n)
    sums, squares = (np.concatenate([[0.0], np.cumsum(each)]) for each in (power_w, power_w**2))
    count = high - low
    mean_w = (sums[high] - sums[low]) / count
    variance = np.maximum((squares[high] - squares[low]) / count - mean_w**2, 0.0)
    return mean_w, variance * count / np.maximum(count - 1, 1)


def _correlation(power_w: Floats, around: int, lags: int) -> float:
    """The variance of a sum of readings over that of uncorrelated ones (Newey and West, 1987)."""
    most = min(lags, len(power_w) // 3)
    level_w, variance = _around(power_w, around)
    scaled = (power_w - level_w) / np.sqrt(np.maximum(variance, 1e-6 + 1e-4 * level_w**2))
    whole = float(scaled @ scaled)
    if most < 1 or not whole > 0:
        return 1.0
    return 1.0 + 2.0 * math.fsum(
        (1.0 - lag / (most + 1)) * float(scaled[lag:] @ scaled[:-lag]) / whole for lag in range(1, most + 1)
    )
