"""The start of each iteration for a known period: matched with the median shape, with drift and jitter.

The shape of one iteration slides over the trace. The result is the sequence of best matches whose distances
keep to the period within 15 % (dynamic programming over match peaks: Ellis, "Beat Tracking by Dynamic
Programming", J. New Music Research 36, 2007, section 3). Intervals unlike an iteration are excluded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

Array = np.ndarray

BINS = 40  # of one period

# Tuned constants of the alignment, set manually, scored by the true starts of recorded trainings.
STRETCH = 0.15  # largest relative difference of an iteration from its neighbours' length
LEAP = 1.0  # cost of an omitted interval, in matches: it is worthwhile from two matches on
LATE = 1.6  # a longer iteration (in usual lengths) counts as an iteration and a pause
LEAST_ITERATIONS = 3
# new readings per period from which on each iteration is recognised separately
CLEAR_READINGS = 8.0
MOST_TOGETHER = 11  # iterations that are recognised as one if there are fewer readings
FOLLOW = 0.15  # weight of an iteration's length in the expected length of its successor


def area_below(times_s: Array, values: Array) -> Array:
    """The integral of a signal from its first reading to each one, by the trapezoidal rule; (n,)."""
    steps = 0.5 * (values[1:] + values[:-1]) * np.diff(times_s)
    return np.concatenate([[0.0], np.cumsum(steps)]) if len(times_s) else np.empty(0)


@dataclass(frozen=True)
class BinnedSignal:
    """A signal in bins of equal width; `known` is False where the trace has a gap."""

    start_s: float
    step_s: float
    values: Array
    known: Array
    # neighbours that are matched together, if one iteration alone has too few readings
    together: int = 1


@dataclass(frozen=True)
class Alignment:
    """Start and end of each iteration, and their match with one shape (sum of correlations)."""

    start_s: Array
    end_s: Array
    match: float


def align(times_s: Array, values: Array, seconds: float, phase_s: float) -> Alignment:
    """Iterations of about `seconds` in a signal; none if fewer than three are alike.

    Args:
        times_s: Moments of the readings, ascending.
        values: The readings.
        seconds: The detected period.
        phase_s: One boundary; the others are at the same place of the shape.
    """
    empty = Alignment(np.empty(0), np.empty(0), 0.0)
    if len(times_s) < 4 or times_s[-1] - times_s[0] < 2 * seconds:
        return empty
    grid = _binned(times_s, values, seconds, phase_s)
    shape = _first_shape(grid, phase_s)
    if shape is None:
        return empty
    rows, _ = _chain(*_matches(grid, shape), seconds)
    if len(rows) < LEAST_ITERATIONS:
        return empty
    # Of aligned iterations: sharper than the shape of a few evenly spaced ones.
    shape = _median_shape(grid, _anchored(rows, phase_s, seconds))
    rows, total = _chain(*_matches(grid, shape), seconds)
    if len(rows) < LEAST_ITERATIONS:
        return empty
    starts, ends = _spans(_sharpened(rows, grid, shape), grid, shape, seconds)
    same = _alike(starts, ends, times_s, values, grid.together)
    return Alignment(starts[same], ends[same], total)


def _binned(times_s: Array, values: Array, seconds: float, phase_s: float) -> BinnedSignal:
    """Mean of the signal in each bin. The phase is an edge of a bin."""
    step_s = seconds / BINS
    start_s = phase_s + np.ceil((times_s[0] - phase_s) / step_s - 1e-9) * step_s
    count = int((times_s[-1] - start_s) / step_s + 1e-9)
    edges = start_s + step_s * np.arange(count + 1)
    spans = np.diff(times_s)
    binned = np.diff(np.interp(edges, times_s, area_below(times_s, values))) / step_s
    longest_s = max(4.0 * _pace(spans), 0.5 * seconds)
    known = np.ones(count, dtype=bool)
    for hole in np.flatnonzero(spans > longest_s):
        first, last = (int((times_s[at] - start_s) / step_s) for at in (hole, hole + 1))
        known[max(first, 0) : last + 1] = False
    return BinnedSignal(float(start_s), step_s, binned, known, _together(times_s, values, seconds))


def _pace(spans: Array) -> float:
    """Median seconds between readings: a trace may be dense in one part only."""
    ordered = np.sort(spans)
    return float(ordered[np.searchsorted(np.cumsum(ordered), 0.5 * float(np.sum(ordered)))])


def _together(times_s: Array, values: Array, seconds: float) -> int:
    """Number of iterations to recognise as one, by the new readings per period (sensors repeat)."""
    new_s = _pace(np.diff(times_s))
    runs = np.diff(times_s[1:][np.diff(values) != 0])
    if len(runs) > 8:
        short_s, usual_s, long_s = np.quantile(runs, [0.1, 0.5, 0.9])
        # At a regular period: refreshes, and not just a power that is constant between its steps.
        if long_s < 3.0 * short_s:
            new_s = max(new_s, float(usual_s))
    each = seconds / new_s
    if each >= CLEAR_READINGS:
        return 1
    return min(2 * math.ceil(0.5 * (CLEAR_READINGS / max(each, 0.5)) ** 2) + 1, MOST_TOGETHER)


def _first_shape(grid: BinnedSignal, phase_s: float) -> Array | None:
    """The median of five periods around the phase; None if all of them have gaps."""
    offset = round((phase_s - grid.start_s) / grid.step_s)
    periods = (len(grid.values) - offset % BINS) // BINS
    first = min(max(min(offset // BINS, periods - 5), 0), periods - 1)
    near = slice(offset % BINS + first * BINS, offset % BINS + min(first + 5, periods) * BINS)
    whole, known = (each[near].reshape(-1, BINS) for each in (grid.values, grid.known))
    clear = np.flatnonzero(known.all(axis=1))
    return np.median(whole[clear], axis=0) if len(clear) else None


def _matches(grid: BinnedSignal, shape: Array) -> tuple[list[float], list[float]]:
    """Moments (s) at which the shape matches better than around them, and their correlation, at most 1."""
    score = _correlation(grid, shape)
    if len(score) < 3:
        return [], []
    reach = BINS // 8  # matches within an eighth of a period of a better one are the same
    inner = score[1:-1]
    peaks = np.flatnonzero((inner >= score[:-2]) & (inner > score[2:])) + 1
    last = len(score) - 1
    edges = [index for index, other in ((0, 1), (last, last - 1)) if score[index] > score[other]]
    peaks = np.sort(np.concatenate([peaks, np.array(edges, dtype=peaks.dtype)]))
    if not len(peaks):
        return [], []
    peaks = peaks[score[peaks] > 0.1]
    kept: list[int] = []
    for peak in peaks.tolist():
        if kept and peak - kept[-1] < reach:
            if score[peak] > score[kept[-1]]:
                kept[-1] = peak
        else:
            kept.append(peak)
    places = np.array(kept, dtype=int)
    around = [score[np.clip(places + shift, 0, len(score) - 1)] for shift in (-1, 0, 1)]
    at_s = grid.start_s + grid.step_s * (np.array(kept) + _vertex(*around))
    return at_s.tolist(), around[1].tolist()


def _vertex(before: Array, here: Array, after: Array) -> Array:
    """Where a parabola through three neighbours peaks, in steps -0.5..0.5 from the middle one."""
    bend = before - 2 * here + after
    fine = np.where(bend < -1e-9, 0.5 * (before - after) / np.where(bend < -1e-9, bend, 1.0), 0.0)
    return np.clip(fine, -0.5, 0.5)


def _correlation(grid: BinnedSignal, shape: Array) -> Array:
    """Correlation of the shape with the interval at each bin; below 0 in a gap, reduced where it is flatter.
    """
    centred = shape - shape.mean()
    spread = float(np.sqrt(np.mean(centred**2)))
    if len(grid.values) < BINS or spread <= 1e-9 * max(float(np.abs(shape).max()), 1e-9):
        return np.empty(0)
    sums, squares = (_moving(each) for each in (grid.values, grid.values**2))
    own = np.sqrt(np.maximum(squares / BINS - (sums / BINS) ** 2, 0.0))
    # Flat noise correlates with anything; an interval with far less variation than an iteration is none.
    score = np.correlate(grid.values, centred, "valid") / (BINS * spread * np.maximum(own, 0.5 * spread))
    return _combed(np.where(_moving((~grid.known).astype(float)) > 0.5, -1.0, score), grid.together)


def _combed(score: Array, together: int) -> Array:
    """The mean match of an iteration and its neighbours on both sides, a period apart."""
    total, number = np.zeros(len(score)), np.zeros(len(score))
    for by in range(-(together // 2), together // 2 + 1):
        shift = by * BINS
        here = slice(max(-shift, 0), max(len(score) - max(shift, 0), 0))
        there = slice(max(shift, 0), max(len(score) - max(-shift, 0), 0))
        total[here] += score[there]
        number[here] += 1
    return np.where(score <= -1.0, -1.0, total / number)


def _moving(values: Array) -> Array:
    total = np.concatenate([[0.0], np.cumsum(values)])
    return total[BINS:] - total[:-BINS]


def _chain(at_s: list[float], score: list[float], seconds: float) -> tuple[list[float], float]:
    """The sequence of most matches about a period apart, and the sum of their scores."""
    count = len(at_s)
    best, back, local = [0.0] * count, [-1] * count, [seconds] * count
    nearest, reached, leap, leap_from = 0, 0, -np.inf, -1
    for i in range(count):
        value, source, length = 0.0, -1, seconds
        while at_s[reached] < at_s[i] - (1 + STRETCH) * seconds:
            if best[reached] > leap:
                leap, leap_from = best[reached], reached
            reached += 1
        if leap - LEAP > value:
            value, source, length = leap - LEAP, leap_from, local[leap_from]
        while at_s[nearest] < at_s[i] - LATE * seconds:
            nearest += 1
        for j in range(nearest, i):
            if abs((at_s[i] - at_s[j]) / local[j] - 1.0) <= STRETCH and best[j] > value:
                value, source = best[j], j
                length = (1 - FOLLOW) * local[j] + FOLLOW * (at_s[i] - at_s[j])
                length = min(max(length, 0.7 * seconds), 1.4 * seconds)
        best[i], back[i], local[i] = value + score[i], source, length
    if not count:
        return [], 0.0
    row: list[float] = []
    at = int(np.argmax(best))
    total = best[at]
    while at >= 0:
        row.append(at_s[at])
        at = back[at]
    return row[::-1], total


def _anchored(row: list[float], phase_s: float, seconds: float) -> list[float]:
    """The sequence of starts moved so that the phase is one of them."""
    nearest = min(row, key=lambda at: abs(at - phase_s))
    away_s = (phase_s - nearest + seconds / 2) % seconds - seconds / 2
    return [at + away_s for at in row]


def _median_shape(grid: BinnedSignal, starts_s: list[float]) -> Array:
    first = np.rint((np.array(starts_s) - grid.start_s) / grid.step_s).astype(int)
    first = first[(first >= 0) & (first + BINS <= len(grid.values))]
    return np.median(grid.values[first[:, None] + np.arange(BINS)], axis=0)


def _sharpened(row: list[float], grid: BinnedSignal, shape: Array) -> list[float]:
    """Starts (s) refined by half a period around each: a long iteration matches too late."""
    if grid.together > 1:
        return row
    half, reach = BINS // 4, BINS // 8
    around = np.concatenate([shape[-half:], shape[:half]])
    around = around - around.mean()
    spread = float(np.sqrt(np.mean(around**2)))
    first = np.rint((np.array(row) - grid.start_s) / grid.step_s).astype(int)
    shifts = np.arange(-reach, reach + 1)
    at = first[:, None] + shifts
    whole = (at[:, 0] - half >= 0) & (at[:, -1] + half <= len(grid.values))
    if spread < 0.3 * float(np.std(shape)) or not whole.any():  # this part of the shape is too flat to refine
        return row
    cuts = grid.values[np.clip(at[:, :, None] + np.arange(-half, half), 0, len(grid.values) - 1)]
    cuts = cuts - cuts.mean(axis=2, keepdims=True)
    own = np.maximum(np.sqrt(np.mean(cuts**2, axis=2)), 0.5 * spread)
    score = cuts @ around / (len(around) * spread * own)
    best = np.argmax(score - 0.2 * (shifts / reach) ** 2, axis=1)
    lines = np.arange(len(first))
    peak = whole & (best > 0) & (best < 2 * reach) & (score[lines, best] > 0.5)
    fine = _vertex(*(score[lines, np.clip(best + by, 0, 2 * reach)] for by in (-1, 0, 1)))
    moved = grid.start_s + grid.step_s * (first + shifts[best] + fine)
    return np.where(peak, moved, np.array(row)).tolist()


def _spans(row: list[float], grid: BinnedSignal, shape: Array, seconds: float) -> tuple[Array, Array]:
    """Starts and ends (s) from a sequence of starts; a late one follows a pause or a missed match."""
    lengths = np.diff(row)
    close = lengths[lengths < (1 + STRETCH) * seconds]
    usual = float(np.median(close)) if len(close) else seconds
    end_s = grid.start_s + grid.step_s * len(grid.values)
    score = _correlation(grid, shape)
    borders: list[float] = []
    for at, apart_s in zip(row, [*lengths.tolist(), 0.0], strict=True):
        parts = max(round(apart_s / usual), 1)
        inside = at + apart_s / parts * np.arange(1, parts)
        index = np.rint((inside - grid.start_s) / grid.step_s).astype(int)
        even = abs(apart_s / parts - usual) < STRETCH * usual
        matched = np.all(score[np.clip(index, 0, len(score) - 1)] > 0.15)
        borders += [at, *(inside.tolist() if even and matched else [])]
    starts = np.array(borders)
    apart = np.append(np.diff(starts), np.inf)
    ends = starts + np.where(apart <= LATE * usual, apart, usual)
    whole = ends <= end_s + 0.1 * usual
    return starts[whole], np.minimum(ends[whole], end_s)


def _alike(starts_s: Array, ends_s: Array, times_s: Array, values: Array, together: int) -> Array:
    """Which iterations have about the usual level: an evaluation's steps may have the same shape at another.
    """
    if not len(starts_s):
        return np.zeros(0, dtype=bool)
    area = area_below(times_s, values)
    level = (np.interp(ends_s, times_s, area) - np.interp(starts_s, times_s, area)) / (ends_s - starts_s)
    if together > 1:  # with few readings, the level of one iteration is random, the level of several is not
        row = np.ones(min(together, len(level)))
        level = np.convolve(level, row, "same") / np.convolve(np.ones(len(level)), row, "same")
    usual = float(np.median(level))
    spread = 1.4826 * float(np.median(np.abs(level - usual)))
    return np.abs(level - usual) <= max(5.0 * spread, 0.12 * abs(usual))
