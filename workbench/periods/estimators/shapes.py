"""The shape of one period: readings overlaid in chunks short enough that drift does not smear them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .signals import Signal

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class ShapeParams:
    """Tuned constants of mean shapes, by hand; `tools.fit_period_ranker` must follow their changes."""

    chunk_periods: int = 10  # laid over one another
    chunks: int = 3  # spread over the trace


PARAMS = ShapeParams()
SHAPE_NAMES = ("ev", "ev_least", "least", "most", "place_low", "place_high", "place_middle", "low_share",
               "low_run", "high_run", "bumps", "bump_spread", "depth")


def folded(
    signal: Signal, step_s: float, period_s: float, starts: Array, length: int, bins: int
) -> tuple[Array, Array]:
    """Chunks of the readings folded at a period, from (k,) first steps `starts`, each of `length` steps.

    Returns:
        Mean shapes (k, bins), and the share (k,) of each chunk's variance that its shape explains, adjusted
            for the bins.
    """
    number = len(starts)
    at = starts[:, None] + np.arange(length)[None, :]
    phase = at * (step_s / period_s)
    which = np.minimum(((phase - np.floor(phase)) * bins).astype(np.int64), bins - 1)
    which = which + np.arange(number)[:, None] * bins
    x, w = signal.values[at], signal.weights[at]
    mass = np.bincount(which.ravel(), w.ravel(), bins * number)
    shape = np.bincount(which.ravel(), (x * w).ravel(), bins * number) / np.maximum(mass, 1e-9)
    whole = w.sum(axis=1)
    mean = (x * w).sum(axis=1) / np.maximum(whole, 1)
    around = (((x - mean[:, None]) ** 2) * w).sum(axis=1)
    left = (((x - shape[which]) ** 2) * w).sum(axis=1)
    table, masses = shape.reshape(number, bins), mass.reshape(number, bins)
    used = (masses > 0).sum(axis=1)
    for k in np.flatnonzero((used < bins) & (used > 1)):
        there = np.flatnonzero(masses[k] > 0)
        table[k] = np.interp(np.arange(bins), there, table[k, there], period=bins)
    enough = (whole >= bins + 2) & (around > 0) & (used > 1)
    rest = left / np.where(around > 0, around, 1.0) * (whole - 1) / np.maximum(1.0, whole - used)
    return table, np.where(enough, 1 - rest, 0.0)


def chunks(
    count: int, step_s: float, period_s: float, periods: int = PARAMS.chunk_periods
) -> tuple[Array, int]:
    """First steps of pieces of so many periods at the start, in the middle and at the end; their length."""
    length = min(count, max(int(periods * period_s / step_s), 16))
    return np.unique(np.linspace(0, count - length, PARAMS.chunks).astype(np.int64)), length


def shape_of(signal: Signal, step_s: float, period_s: float) -> list[float]:
    """`SHAPE_NAMES` of one signal at one period."""
    bins = int(np.clip(2 * period_s / step_s, 8, 32))
    table, explained = folded(signal, step_s, period_s, *chunks(len(signal.values), step_s, period_s), bins)
    shape = table[int(np.argmax(explained))]
    low, high = float(shape.min()), float(shape.max())
    span = max(signal.high - signal.low, 1e-9)
    below = shape < 0.5 * (low + high)
    starts, lows, highs = _runs(below)
    spread = np.diff(np.concatenate([starts, starts[:1] + bins])) if len(starts) > 1 else np.array([1.0])
    centre = max(signal.centre, 1e-9)
    return [
        float(explained.max()), float(explained.min()), (signal.centre + low) / centre,
        (signal.centre + high) / centre, (low - signal.low) / span, (high - signal.low) / span,
        (float(np.sort(shape)[bins // 2]) - signal.low) / span, np.count_nonzero(below) / bins, lows / bins,
        highs / bins, float(len(starts)), float(spread.std() / spread.mean()), (high - low) / span,
    ]


def _runs(mask: Array) -> tuple[Array, int, int]:
    """Around a circular mask: ends of runs of True, the longest run, the longest run of False."""
    turns = np.flatnonzero(mask != np.roll(mask, 1))
    if len(turns) == 0:
        return np.empty(0), len(mask) * int(mask[0]), len(mask) * int(not mask[0])
    lengths = np.diff(np.concatenate([turns, turns[:1] + len(mask)]))
    kinds = mask[turns]
    return turns[~kinds], int(lengths[kinds].max()), int(lengths[~kinds].max())
