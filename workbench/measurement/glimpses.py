"""Sensors that look part of the time: whether an energy counter is one, and what sums of glimpses may miss.

A100 and H100 read power for 25 ms of every 100 (Yang et al., arXiv 2312.02741). Nothing says whether their
energy counters add up those readings or look all the time. The steps of a counter that adds them up say what
the readings said; those of one that looks all the time do not, under a load that moves within a step.

Glimpses of a load that moves are a sample of it. A sum over n of them misses what lies between by the spread
of the glimpses around their level, times the root of n, and more where one glimpse is like the next: a load
that repeats nearly in step with the sensor is seen at nearly the same place again and again.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
PART_TIME = 0.6  # of the time between two refreshes, below which what is the mean of so much is a glimpse
FEWEST = 60  # steps of the counter that are compared with readings
MOVED = 0.05  # of the mean power, by which a step differs from the one before to tell something
FEWEST_MOVES = 10
OFF = 0.1  # of such a change, by which a step is another than the readings say
# of those steps are off: at most where readings are added up, at least where the counter looks all the time
ADDED_UP, WHOLE = 0.15, 0.55
AROUND = 10  # refreshes on either side of one that its level and spread are taken from
ALIKE = 6  # refreshes over which one glimpse may be like another


def adds_up_glimpses(rows: np.ndarray[Any, Any]) -> bool | None:
    """Whether a GPU's energy counter is the sum of its power readings.

    Args:
        rows: Samples of one GPU (`samples.ROWS`) whose refreshes are known.

    Returns:
        None where the rows do not tell: too few refreshes, or a load that hardly moves.
    """
    share = share_off(rows)
    if share is None or ADDED_UP < share < WHOLE:
        return None
    return share <= ADDED_UP


def share_off(rows: np.ndarray[Any, Any]) -> float | None:
    """Of the counter's steps that differ from the one before, the share that the readings do not explain."""
    known = rows[np.isfinite(rows["tick_s"]) & np.isfinite(rows["energy_j"]) & np.isfinite(rows["power_w"])]
    _, first = np.unique(np.round(known["tick_s"], 4), return_index=True)
    known = known[first]
    if len(known) < FEWEST + 3:
        return None
    spans = np.diff(known["tick_s"])
    steps_w = np.diff(known["energy_j"]) / spans
    # A row may show the reading of the refresh before or after the one at which the counter moved.
    readings = np.stack([np.roll(known["power_w"].astype(float), shift)[1:] for shift in (-1, 0, 1)])
    use = np.abs(spans - np.median(spans)) < 0.1 * np.median(spans)
    use[[0, -1]] = False
    if use.sum() < FEWEST:
        return None
    design = np.vstack([readings, np.ones(len(spans))]).T
    fitted, *_ = np.linalg.lstsq(design[use], steps_w[use], rcond=None)
    change_w = np.abs(np.diff(steps_w, prepend=steps_w[:1]))
    moved = use & (change_w > MOVED * np.mean(steps_w))
    if moved.sum() < FEWEST_MOVES:
        return None
    off_w = np.abs(steps_w - design @ fitted)
    return float(np.mean(off_w[moved] > OFF * change_w[moved]))


def missed_variance(power_w: Floats, spans_s: Floats, window_s: float) -> Floats:
    """What the energy of each step may be off by, as a variance (J^2) that adds up over steps.

    Args:
        power_w: (n + 1,) glimpses at the refreshes around n steps.
        spans_s: (n,) lengths of the steps.
        window_s: What each glimpse is the mean of.
    """
    share = np.clip(1.0 - window_s / spans_s, 0.0, 1.0)
    level_w, variance = _around(power_w)
    return np.asarray(variance[1:] * _likeness(power_w, level_w, variance) * share * spans_s**2)


def _around(power_w: Floats) -> tuple[Floats, Floats]:
    """Mean and variance of the glimpses around each."""
    n, full = len(power_w), 2 * AROUND + 1
    at = np.arange(n)
    low = np.clip(at - AROUND, 0, max(n - full, 0))
    high = np.minimum(low + full, n)
    sums, squares = (np.concatenate([[0.0], np.cumsum(each)]) for each in (power_w, power_w**2))
    count = high - low
    mean_w = (sums[high] - sums[low]) / count
    variance = np.maximum((squares[high] - squares[low]) / count - mean_w**2, 0.0)
    return mean_w, variance * count / np.maximum(count - 1, 1)


def _likeness(power_w: Floats, level_w: Floats, variance: Floats) -> float:
    """By how much the variance of a sum is larger than that of as many glimpses unlike each other."""
    most = min(ALIKE, len(power_w) // 3)
    scaled = (power_w - level_w) / np.sqrt(np.maximum(variance, 1e-6 + 1e-4 * level_w**2))
    whole = float(scaled @ scaled)
    if most < 1 or not whole > 0:
        return 1.0
    lags = range(1, most + 1)
    return max(1.0, 1.0 + 2.0 * math.fsum(
        (1.0 - lag / (most + 1)) * float(scaled[lag:] @ scaled[:-lag]) / whole for lag in lags
    ))
