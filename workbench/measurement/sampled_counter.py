"""Energy counters that only sum power readings: how to recognise one, and the variance of what it misses.

A100 and H100 measure power for 25 ms of every 100 (Yang et al., arXiv 2312.02741). It is not documented
whether their energy counters sum such readings or integrate all the time. The mean over a whole interval
changes less from one interval to the next than the mean over a part of it. So the steps of a counter that
integrates change less than the readings do, and those of a counter that sums readings change as much.

Such a counter is a sample of the power. The error of a sum over n readings follows from their long-run
variance. It is large where successive readings are correlated, as those of a load whose period is close to
that of the sensor, and small where their errors cancel. Where two readings leave less than `HIDDEN_S` between
them, no phase of a training hides there, and only the moments of its jumps are not known. The same holds for
changes of level (`level_changes`), such as the end of a training.

The constants were set on simulated trainings on an A100; `python -m benchmarks.measurement` scores them on
V100 and H100.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ..samples import refreshes

Floats = NDArray[np.float64]
PART_TIME = 0.6  # a reading averages less than this share of the time between two refreshes
FEWEST_STEPS = 30  # of the counter, that are compared with readings
AROUND = 30  # readings before and after a stretch, by which it is judged too
CHANGE = 0.05  # share of the mean power by which successive readings have to differ
READING_ERROR = 0.006  # relative noise of a power reading; 0.015 gives the same figures
LONG_RUN = (3.48 / 1.96) ** 2  # 97.5 % quantile of a sum over its estimated long-run deviation, squared
JUMPS = 1.5  # times the variance of a jump at a random moment between two readings
HIDDEN_S = 0.02  # between two readings, in which no phase of a training hides


def sums_readings(rows: np.ndarray, window_s: float) -> bool | None:
    """Whether a GPU's energy counter only sums power readings.

    Args:
        rows: Samples of one GPU (`samples.ROWS`) whose refreshes are known.
        window_s: Time that each reading averages, s.

    Returns:
        None where it cannot be decided: too few refreshes, or a load that hardly changes.
    """
    compared = step_to_reading_ratio(rows)
    if compared is None:
        return None
    ratio, off, period_s = compared
    # Where power jumps between two levels and does nothing else, the mean over a share w of each interval
    # changes by a mean square of 1 - w / 3 of the jump's. No other load makes the two counters more alike.
    border = (1.0 + (2 / 3) / (1.0 - window_s / period_s / 3.0)) / 2
    return None if abs(ratio - border) < off else ratio > border


def step_to_reading_ratio(rows: np.ndarray) -> tuple[float, float, float] | None:
    """By how much a counter's steps change from one to the next, over how much power readings do.

    A mean over a whole interval changes less than a mean over a part of it, wherever the parts fall.

    Returns:
        The ratio of mean squares, the half width of its 95 % interval, and the time between refreshes (s);
        None where there are too few refreshes, or too small changes.
    """
    known = rows[np.isfinite(rows["tick_s"]) & np.isfinite(rows["energy_j"]) & np.isfinite(rows["power_w"])]
    gaps_s = np.diff(known["tick_s"])
    known = refreshes(known, float(np.median(gaps_s[gaps_s > 0.0]))) if gaps_s.any() else known[:0]
    if len(known) < FEWEST_STEPS + 3:
        return None
    spans_s = np.diff(known["tick_s"])
    period_s = float(np.median(spans_s))
    steps_w, readings_w = np.diff(known["energy_j"]) / spans_s, known["power_w"][1:].astype(float)
    alike = np.abs(spans_s - period_s) < 0.1 * period_s
    # A mean is between the lowest and the highest power, unless a refresh was taken for its neighbour.
    alike &= (steps_w > 0.95 * readings_w.min()) & (steps_w < 1.05 * readings_w.max())
    use = alike[1:] & alike[:-1]
    noise_w2 = 2.0 * (READING_ERROR * float(np.mean(readings_w))) ** 2
    steps_w2, readings_w2 = (np.square(np.diff(each))[use] for each in (steps_w, readings_w))
    size_w2 = float(np.mean(readings_w2)) - noise_w2 if len(readings_w2) else 0.0
    if len(readings_w2) < FEWEST_STEPS or size_w2 < (CHANGE * float(np.mean(readings_w))) ** 2:
        return None
    ratio = float(np.mean(steps_w2)) / size_w2
    spread = math.sqrt(LONG_RUN * _variance_of_sum(steps_w2 - ratio * (readings_w2 - noise_w2)))
    return ratio, 1.96 * spread / len(steps_w2) / size_w2, period_s


def missed_variance(tick_s: Floats, power_w: Floats, window_s: float, moments: Floats) -> Floats:
    """The variances (J^2) of the energies that readings miss between moments.

    From the readings in each stretch, or from the nearest ones where it is short, by an estimate of the
    long-run variance. Its quantile allows for its own scatter (Kiefer and Vogelsang, "A new asymptotic theory
    for heteroskedasticity-autocorrelation robust tests", 2005, table 1: Bartlett's kernel, bandwidth half the
    length). It is small where errors cancel, and large where they last, as those of a load whose period is
    close to that of the sensor.

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
    jumps_j2 = np.square(np.diff(power_w, prepend=power_w[:1]) * gap_s)
    changes = level_changes(power_w, step_s / window_s if window_s and gap_s >= HIDDEN_S else math.inf)
    levels = np.concatenate([[0], changes, [len(power_w)]])
    missed = []
    for first, last, duration_s in zip(places, places[1:], durations_s, strict=False):
        # Readings of other levels say nothing about these.
        before, after = np.searchsorted(levels, (first, last), side="right")
        inside = levels[before - 1 : after + 1]
        begin, end = max(first - AROUND, inside[0]), min(last + AROUND + 1, inside[-1])
        parts = np.split(power_w[begin:end], inside[1:-1] - begin)
        off_w = np.concatenate([each - each.mean() for each in parts if len(each)])
        if gap_s < HIDDEN_S:
            step_j2 = JUMPS * float(np.mean(jumps_j2[begin + 1 : end])) / 12.0
        else:
            step_j2 = LONG_RUN * _variance_of_sum(off_w) / len(off_w) * gap_s * step_s
        steps = duration_s / step_s
        # A change of level may have come at any time since the reading before; one does not average out.
        near = np.unique(changes[:, None] + np.arange(-1, 2))
        jumped_j2 = (0.95 / 1.96) ** 2 * float(jumps_j2[near[(first < near) & (near <= last)]].sum())
        missed.append(step_j2 * steps * min(steps, 1.0) + jumped_j2)
    return np.array(missed)


def level_changes(power_w: Floats, apart: float) -> NDArray[np.int_]:
    """Where power goes from one level to another for certain, though readings leave time between them.

    A load whose period is close to that of the sensor shows a slow copy of itself in the readings. A reading
    averages a share of the time between two, so an edge of the copy takes that share of the copy's period:
    four readings of `4 * apart`. Levels that last `2 * apart` readings each, with a shorter edge between, are
    therefore no copy. Where the gap between two levels is more than twice the range of either, the edge has
    fewer than four readings.

    Args:
        power_w: Readings in a row.
        apart: The time between two readings over the time that one averages.

    Returns:
        The places of the first readings of new levels.
    """
    if len(power_w) <= 4.0 * apart + 2:
        return np.empty(0, int)
    size = math.ceil(2.0 * apart)
    windows = np.lib.stride_tricks.sliding_window_view(power_w, size)
    low, high = windows.min(axis=1), windows.max(axis=1)
    # One reading is between both levels: the change falls into it, or next to it.
    gap = np.maximum(low[size + 1 :] - high[: -size - 1], low[: -size - 1] - high[size + 1 :])
    wide = np.maximum((high - low)[size + 1 :], (high - low)[: -size - 1])
    sharp = np.flatnonzero(gap > 2.0 * wide) + size - 1
    # Neighbours see the same change, which is the largest of their steps.
    steps_w = np.abs(np.diff(power_w))
    groups = np.split(sharp, np.flatnonzero(np.diff(sharp) > 1) + 1) if len(sharp) else []
    return np.array([each[0] + 1 + np.argmax(steps_w[each[0] : each[-1] + 2]) for each in groups], int)


def _variance_of_sum(values: Floats) -> float:
    """The variance of the sum of values in a row that are correlated: Bartlett's kernel, half as wide."""
    off = values - values.mean()
    lags = max(len(off) // 2, 1)
    spectrum = np.abs(np.fft.rfft(off, 2 * len(off))) ** 2
    products = np.fft.irfft(spectrum)[:lags]
    weights = 1.0 - np.arange(lags) / lags
    return max(float(2.0 * np.sum(weights * products) - products[0]), 0.0)
