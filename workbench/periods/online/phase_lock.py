"""Tracks a known period: compares each new interval of power with the shape of one iteration.

A matched filter compares the newest iterations with the shape of earlier ones: similarity, delay and mean
power. As in a phase-locked loop, the delay corrects the phase. The period is the slope of a line through the
last boundaries, so that slow drift is followed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

Array = np.ndarray

# Tuned constants of the phase lock, set manually; `benchmarks.tracking` scores the tracker.

# fewer match any shape: 16 random readings reach a correlation of 0.5 at the best of 25 shifts
LEAST_READINGS = 24
PHASE_GAIN = 0.6  # share of a phase error that is corrected immediately
MOST_BEATS = 16  # most boundaries in the line whose slope is the period,
LEAST_BEATS = 6  # and fewest: iterations vary, and one late boundary does not lengthen the period
TELLING_CORRELATION = 0.45  # correlation from which the shape repeats well enough
NEAR = np.linspace(-0.25, 0.25, 25)
ANYWHERE = np.arange(48) / 48


@dataclass(frozen=True)
class Match:
    """Match of an interval of power with the shape of an iteration."""

    likeness: float  # correlation with the shape at the best shift, -1..1
    late: float  # delay of the interval, as a share of a period
    level_w: float  # its mean power, corrected for the part of an iteration that it covers
    height: float  # its swing over the shape's


@dataclass(frozen=True)
class PhaseLock:
    """A period that is tracked."""

    seconds: float  # the period, corrected by later observations
    phase_s: float  # the latest boundary
    shape_w: Array  # power over one period, minus its mean; bins of equal width
    likeness: float  # usual correlation of intervals
    likeness_sd: float  # its standard deviation
    level_w: float  # their usual power
    level_sd_w: float  # its standard deviation
    stretches: int = 0  # number of intervals so far
    beats: tuple[tuple[int, float], ...] = ()  # numbers and moments (s) of the last few boundaries

    @property
    def telling(self) -> bool:
        """Whether the shape repeats well enough that a different interval is significant."""
        return self.likeness >= TELLING_CORRELATION


def stretch_s(seconds: float, step_s: float) -> float:
    """Seconds of an interval for one comparison: a period, and enough readings."""
    return max(seconds, LEAST_READINGS * step_s)


def learn(time_s: Array, power_w: Array, seconds: float, boundary_s: float, step_s: float) -> PhaseLock:
    """A phase lock learned from readings (s, W) that contain the period.

    Args:
        time_s: (n,).
        power_w: (n,).
        seconds: The period.
        boundary_s: A boundary between iterations.
        step_s: Step of the grid of the shape.
    """
    keep = time_s >= time_s[-1] - max(10 * seconds, 6 * stretch_s(seconds, step_s))
    time_s, power_w = time_s[keep], power_w[keep]
    phase_s = boundary_s + math.floor((time_s[-1] - boundary_s) / seconds) * seconds
    bins = int(np.clip(min(2 * seconds / step_s, len(time_s) / 4), 6, 48))
    recent = time_s >= time_s[-1] - max(4 * seconds, 2 * stretch_s(seconds, step_s))
    phases = ((time_s - phase_s) / seconds) % 1.0
    shape_w = fold(phases[recent], power_w[recent], bins)
    lock = PhaseLock(seconds, phase_s, shape_w, 1.0, 0.0, float(np.mean(power_w)), 0.0)
    pieces = _pieces(time_s, stretch_s(seconds, step_s))
    matches = [match(lock, phases[piece], power_w[piece], NEAR) for piece in pieces]
    levels_w, likenesses = np.array([(each.level_w, each.likeness) for each in matches]).T
    # The shape comes from the same readings, so later ones will match slightly less.
    likeness, level_w = 0.95 * float(np.median(likenesses)), float(np.median(levels_w))
    ends = [round((time_s[piece][-1] - phase_s) / seconds) for piece in pieces]
    beats = [(end, phase_s + (end + each.late) * seconds) for end, each in zip(ends, matches, strict=True)]
    return replace(lock, beats=tuple(beats[-MOST_BEATS:]), likeness=likeness, level_w=level_w,
                   likeness_sd=_spread(likenesses, likeness), level_sd_w=_spread(levels_w, level_w))


def _spread(values: Array, middle: float) -> float:
    """A robust standard deviation."""
    return 1.4826 * float(np.median(np.abs(values - middle)))


def fold(phase: Array, power_w: Array, bins: int) -> Array:
    """Power in each part of a period minus the mean of all (W); empty parts are interpolated."""
    number = np.minimum((phase * bins).astype(np.int64), bins - 1)
    count = np.bincount(number, minlength=bins)
    total = np.bincount(number, power_w, bins)
    known = np.flatnonzero(count)
    mean = total[known] / count[known]
    if len(known) < bins:
        around = np.concatenate([[known[-1] - bins], known, [known[0] + bins]])
        mean = np.interp(np.arange(bins), around, np.concatenate([mean[-1:], mean, mean[:1]]))
    shape: Array = mean - mean.mean()
    return shape


def match(lock: PhaseLock, phase: Array, power_w: Array, shifts: Array) -> Match:
    """Compare readings with the shape at each of several shifts (shares of a period) and return the best.

    Args:
        lock: The known shape.
        phase: (n,) shares of a period.
        power_w: (n,).
        shifts: (m,) shifts to try, as shares of a period.
    """
    bins = len(lock.shape_w)
    closed = np.concatenate([lock.shape_w[-1:], lock.shape_w, lock.shape_w[:1]])
    at = ((phase[None, :] - shifts[:, None]) % 1.0) * bins + 0.5
    low = np.minimum(at.astype(np.int64), bins)
    part = at - low
    expected = closed[low] * (1 - part) + closed[low + 1] * part
    centred = expected - expected.mean(axis=1, keepdims=True)
    off_w = power_w - power_w.mean()
    norm = np.einsum("ij,ij->i", centred, centred)
    cross = centred @ off_w
    with np.errstate(invalid="ignore", divide="ignore"):
        likeness = np.nan_to_num(cross / np.sqrt(norm * (off_w @ off_w)))
    best = int(np.argmax(likeness - 0.02 * np.abs(shifts)))  # the smallest of equal ones
    late = float(shifts[best])
    if 0 < best < len(shifts) - 1:
        before, here, after = likeness[best - 1 : best + 2]
        bend = before - 2 * here + after
        if bend < 0:
            late += float(np.clip(0.5 * (before - after) / bend, -0.5, 0.5)) * float(shifts[1] - shifts[0])
    height = float(cross[best] / norm[best]) if norm[best] > 0 else 0.0
    level_w = float(power_w.mean() - height * expected[best].mean())
    return Match(float(likeness[best]), late, level_w, height)


def compare(lock: PhaseLock, rows: Array, *, anywhere: bool = False) -> Match:
    """Match of a recorder's new rows: near the expected phase, or at the best phase of all."""
    phase = ((rows["time_s"] - lock.phase_s) / lock.seconds) % 1.0
    return match(lock, phase, rows["power_w"].astype(np.float64), ANYWHERE if anywhere else NEAR)


def oddness(lock: PhaseLock, found: Match) -> float:
    """Deviation of an interval from the tracked period; 1 is the edge of the usual range. It is the largest
    of the power level's and the likeness' (in four times their usual deviations) and of the swing's (twice or
    half).
    """
    # Two or three intervals do not determine the usual range: widen it at first.
    least = 0.01 + 0.03 / (1 + lock.stretches)
    level = abs(found.level_w - lock.level_w) / (4.0 * max(lock.level_sd_w, least * abs(lock.level_w)))
    if not lock.telling:
        return min(max(level, 0.0), 4.0)
    shape = (lock.likeness - found.likeness) / (4.0 * max(lock.likeness_sd, 0.03 + least))
    height = abs(math.log(max(found.height, 1e-3))) / math.log(2.0)
    return min(max(level, shape, height), 4.0)


def follow(lock: PhaseLock, found: Match, end_s: float) -> PhaseLock:
    """The phase lock after an interval that belongs to the period."""
    late_s = found.late * lock.seconds
    number, before_s = lock.beats[-1] if lock.beats else (0, lock.phase_s)
    number += round((lock.phase_s - before_s) / lock.seconds)
    beats = (*lock.beats[-MOST_BEATS + 1 :], (number, lock.phase_s + late_s))
    seconds = lock.seconds
    if len(beats) >= LEAST_BEATS:
        numbers, moments = np.array(beats).T
        seconds = float(np.polyfit(numbers, moments - moments[0], 1)[0])
    phase_s = lock.phase_s + PHASE_GAIN * late_s
    phase_s += max(1, math.floor((end_s - phase_s) / seconds)) * seconds
    weight = max(0.05, 1.0 / (lock.stretches + 4))
    off, off_w = abs(found.likeness - lock.likeness), abs(found.level_w - lock.level_w)
    return replace(lock, seconds=seconds, phase_s=phase_s,
                   likeness=lock.likeness + weight * (found.likeness - lock.likeness),
                   likeness_sd=lock.likeness_sd + weight * (1.25 * off - lock.likeness_sd),
                   level_w=lock.level_w + weight * (found.level_w - lock.level_w),
                   level_sd_w=lock.level_sd_w + weight * (1.25 * off_w - lock.level_sd_w),
                   stretches=lock.stretches + 1, beats=beats)


def rephase(lock: PhaseLock, found: Match, end_s: float) -> PhaseLock:
    """The period continued at another phase, as after an evaluation."""
    phase_s = lock.phase_s + found.late * lock.seconds
    phase_s += math.floor((end_s - phase_s) / lock.seconds) * lock.seconds
    return replace(lock, beats=(), phase_s=phase_s)


def _pieces(time_s: Array, length_s: float) -> Sequence[slice]:
    edges = np.arange(time_s[-1], time_s[0], -length_s)[::-1]
    ends = np.searchsorted(time_s, edges, side="right")
    pieces = [slice(a, b) for a, b in itertools.pairwise(ends) if b - a >= LEAST_READINGS // 2]
    return pieces or [slice(0, len(time_s))]
