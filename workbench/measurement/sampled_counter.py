"""Energy counters that only sum power readings: how to recognise one, and the variance of what it misses.

A100 and H100 measure power for 25 ms of every 100 (Yang et al., arXiv 2312.02741). It is not documented
whether their energy counters sum those readings or integrate all the time. A counter that sums readings moves
by what the readings said; one that integrates does not, under a load that changes within a step.

Such a counter is a sample of the power. The error of a sum over n readings follows from their long-run
variance: it is large where successive readings are correlated, as those of a load whose period is close to
that of the sensor, and small where their errors cancel. Where two readings leave less than `HIDDEN_S` between
them, no phase of a training hides there, and only the moments of its jumps are not known.

The constants were set on simulated trainings on an A100; `python -m benchmarks.measurement` scores them on
V100 and H100.
"""

from __future__ import annotations

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
LONG_RUN = (3.48 / 1.96) ** 2  # 97.5 % quantile of a sum over its estimated long-run deviation, squared
JUMPS = 1.5  # times the variance of a jump at a random moment between two readings
HIDDEN_S = 0.02  # between two readings, in which no phase of a training hides


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


def missed_variance(tick_s: Floats, power_w: Floats, window_s: float, moments: Floats) -> Floats:
    """The variances (J^2) of the energies that readings miss between moments.

    From the readings in each stretch, or from the nearest ones where it is short, by an estimate of the
    long-run variance whose quantile allows for its own scatter (Kiefer and Vogelsang, "A new asymptotic
    theory for heteroskedasticity-autocorrelation robust tests", 2005, table 1: Bartlett's kernel, bandwidth
    half the length). It is small where errors cancel, and large where they last, as those of a load whose
    period is close to that of the sensor.

    Args:
        tick_s: Moments of refreshes, s.
        power_w: The readings then, W.
        window_s: Time that each reading averages, s.
        moments: Borders of the stretches, s.
    """
    spans_s = np.diff(tick_s)
    durations_s = np.diff(moments)
    if not len(spans_s):
        return np.zeros(len(durations_s))
    step_s = float(np.median(spans_s))
    gap_s = max(step_s - window_s, 0.0)
    places = np.clip(np.searchsorted(tick_s, moments), 1, len(spans_s))
    missed = []
    for first, last, duration_s in zip(places, places[1:], durations_s, strict=False):
        around = max(FEWEST_STEPS - (last - first), 0) // 2
        readings_w = power_w[max(first - around, 0) : last + around + 1]
        if gap_s < HIDDEN_S:
            step_j2 = JUMPS * float(np.mean(np.square(np.diff(readings_w) * gap_s))) / 12.0
        else:
            step_j2 = LONG_RUN * _variance_of_sum(readings_w) / len(readings_w) * gap_s * step_s
        steps = duration_s / step_s
        missed.append(step_j2 * steps * min(steps, 1.0))
    return np.array(missed)


def _variance_of_sum(values: Floats) -> float:
    """The variance of the sum of values in a row that are correlated: Bartlett's kernel, half as wide."""
    off = values - values.mean()
    lags = max(len(off) // 2, 1)
    spectrum = np.abs(np.fft.rfft(off, 2 * len(off))) ** 2
    products = np.fft.irfft(spectrum)[:lags]
    weights = 1.0 - np.arange(lags) / lags
    return max(float(2.0 * np.sum(weights * products) - products[0]), 0.0)
