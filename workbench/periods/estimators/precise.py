"""Makes a detected period precise: phases of successive chunks give its mean, its scatter and a boundary."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.fft import irfft, rfft

from .shapes import fold, folded
from .signals import Signal

Array = np.ndarray

# Tuned constants of precise periods, set manually; `benchmarks.periods` scores the stated errors.
PRECISE_BINS = 48  # per period
MOST_CHUNKS = 40
FINE_BINS = 8  # phase bins between phase bins, by interpolation of the correlation


@dataclass(frozen=True)
class Precise:
    """A period in seconds, made precise by folding the trace in chunks."""

    period_s: float  # mean over the trace, without detected changes and pauses
    scatter: float  # standard error of that mean from the chunks' scatter, as a share of the period
    boundary: float  # start of the newest clearly visible iteration, in grid steps from the trace's start
    explained: float  # share of the variance that a shape repeated within a chunk explains, mean over chunks
    least: float  # the same for the worst fifth of the chunks
    chunks: int  # number of used chunks
    moves: float  # largest difference between the periods of two thirds of the trace, as a share

    def doubts(self, step_s: float, seconds: float) -> list[float]:
        """Ratios on which the error of `period_s` depends, for the model that predicts it."""
        periods = max(1.0, seconds / self.period_s)
        least = step_s / seconds  # a grid step over the whole observed time: the error of an exact clock
        return [
            np.log(self.scatter + 1e-6), np.log(least), np.log(periods), np.log(step_s / self.period_s),
            self.explained, self.least, float(self.chunks), self.moves,
        ]


def precise(signal: Signal, step_s: float, period_s: float) -> Precise:
    """A period (s) known to a few per cent, made precise: chunks phase-locked to their neighbours."""
    count = len(signal.values)
    per_chunk = max(3 * period_s / step_s, 24.0)  # steps
    number = int(np.clip(count / per_chunk, 1, MOST_CHUNKS))
    length = int(min(count, max(per_chunk, min(count / number, 8 * period_s / step_s))))
    starts = np.unique(np.linspace(0, count - length, number).astype(int))
    bins = int(np.clip(3 * period_s / step_s, 8, PRECISE_BINS))
    one = np.zeros(len(starts), dtype=int)
    folds = fold(starts, one + length, one, step_s / np.array([period_s]), np.array([bins]))
    shapes, shares = folded(signal.values[None], signal.weights, folds)
    table, explained = shapes.reshape(len(starts), bins), shares[0]
    table = table - table.mean(axis=1, keepdims=True)
    good = explained >= 0.5 * float(explained.max())
    good[int(np.argmax(explained))] = True  # if no chunk is explained, the best one alone
    newest = int(np.flatnonzero(good)[-1])
    boundary = _boundary(table[newest], int(starts[newest]), length, step_s, period_s)
    used = int(good.sum())
    if used < 3:
        scatter, least = 0.03 if used < 2 else 0.01, float(explained.min())
        return Precise(period_s, scatter, boundary, float(explained.mean()), least, used, 0.0)
    shift, weight = _shifts(table[good])
    distance = np.diff(starts[good]) * step_s / period_s  # in periods
    slope = shift / distance  # a positive shift: the next chunk comes late, the period is longer
    keep = np.abs(shift) < 0.35  # more than a third of a period is no drift: a pause restarted the period
    least = float(np.quantile(explained, 0.2))
    if keep.sum() < 2:
        return Precise(period_s, 0.02, boundary, float(explained.mean()), least, used, 0.0)
    slope, weight, distance = slope[keep], weight[keep], distance[keep]
    low, high = np.quantile(slope, [0.1, 0.9])
    spread = max(high - low, 1e-6)
    inside = (slope >= low - spread) & (slope <= high + spread)
    mass, slope = (weight * distance)[inside] + 1e-9, slope[inside]
    mean = float((slope * mass).sum() / mass.sum())
    sd = float(np.sqrt((mass * (slope - mean) ** 2).sum() / mass.sum()))
    thirds = [part.mean() for part in np.array_split(slope, 3) if len(part)]
    found_s = period_s * (1 + mean)
    scatter, moves = sd / np.sqrt(len(slope)), float(max(thirds) - min(thirds))
    return Precise(found_s, scatter, boundary, float(explained[good].mean()), least, used, moves)


def _shifts(table: Array) -> tuple[Array, Array]:
    """Phase of each chunk's shape against the last, in periods -0.5..0.5, and their agreement (0..1)."""
    transformed = rfft(table, axis=1)
    bins = table.shape[1]
    product = transformed[1:] * transformed[:-1].conj()
    fine = irfft(product, bins * FINE_BINS, axis=1) * FINE_BINS
    k = np.argmax(fine, axis=1)
    norm = np.sqrt((table[1:] ** 2).sum(axis=1) * (table[:-1] ** 2).sum(axis=1)) + 1e-12
    rows = np.arange(len(fine))
    agreement = np.clip(fine[rows, k] / norm, 0.0, 1.0)
    a, b, c = fine[rows, k - 1], fine[rows, k], fine[rows, (k + 1) % fine.shape[1]]
    bend = a - 2 * b + c
    place = k + np.where(bend < 0, 0.5 * (a - c) / np.where(bend < 0, bend, 1.0), 0.0)
    shift = place / (bins * FINE_BINS)
    return (shift + 0.5) % 1.0 - 0.5, agreement


def _boundary(shape: Array, start: int, length: int, step_s: float, period_s: float) -> float:
    """The newest boundary in grid steps: the largest rise of the power from its lowest interval."""
    before, after = np.append(shape[-1:], shape[:-1]), np.append(shape[1:], shape[:1])
    smooth = (shape + before + after) / 3
    rise = shape - before - 0.25 * (smooth - smooth.min())
    phase = float(np.argmax(rise)) / len(shape)
    last = (start + length) * step_s / period_s
    return float((np.floor(last - 1 - phase) + phase) * period_s / step_s)
