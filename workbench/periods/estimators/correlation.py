"""Normalised autocorrelation over a pyramid of windows.

NSDF after McLeod and Wyvill, "A smarter way to find pitch" (ICMC 2005), eq. 9: 2 sum x(t) x(t+lag) / sum
x(t)^2 + x(t+lag)^2, here with weights for gaps. Level j averages over windows of the trace's length / 2^j.
Short windows are insensitive to drift, checkpoints and evaluation. Long windows separate long cycles from
multiples.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.fft import irfft, next_fast_len, rfft

Array = np.ndarray

# Tuned constants of the correlations, set manually; `tools.fit_period_ranker` must follow their changes.
WINDOW_POINTS = 2048  # per window; longer ones are thinned by bin means
SEGMENTS = 8  # windows per level, spread over the trace
LEAST_POINTS = 24  # in the shortest window


@dataclass(frozen=True)
class CorrelationLevel:
    """The averaged NSDF of one window length: `values[k]` belongs to the lag k * step_s."""

    step_s: float
    window_s: float
    values: Array
    middle: Array  # the median over the windows

    @property
    def longest_s(self) -> float:
        return (len(self.values) - 1) * self.step_s

    def at(self, lag_s: float) -> float:
        """The value at a lag (s), interpolated; NaN beyond half a window."""
        place = lag_s / self.step_s
        k = int(place)
        if not 0 <= k < len(self.values) - 1:
            return float("nan")
        return float(self.values[k] + (place - k) * (self.values[k + 1] - self.values[k]))

    def near(self, lag_s: float, slack: float) -> tuple[float, float]:
        """The highest value within a share of a lag: (its lag, its value); NaN beyond half a window."""
        low = math.ceil(lag_s * (1 - slack) / self.step_s)
        high = int(lag_s * (1 + slack) / self.step_s)
        if high + 1 >= len(self.values) or lag_s <= 0:
            return lag_s, float("nan")
        if high - low < 2:
            low, high = low - 1, high + 1
        low = max(low, 1)
        k = low + int(self.values[low : high + 1].argmax())
        place, value = parabola(self.values, k)
        return place * self.step_s, value


def parabola(values: Array, k: int) -> tuple[float, float]:
    """Place and height of a peak's vertex by its two neighbours; of the point itself where it is no peak."""
    if not 0 < k < len(values) - 1:
        return float(k), float(values[k])
    a, b, c = float(values[k - 1]), float(values[k]), float(values[k + 1])
    bend = a - 2 * b + c
    if bend >= 0 or b < a or b < c:
        return float(k), b
    shift = 0.5 * (a - c) / bend
    return k + shift, b - 0.25 * (a - c) * shift


def pyramids(
    values: Array, weights: Array, step_s: float, shortest_windows_s: Sequence[float]
) -> list[list[CorrelationLevel]]:
    """NSDFs of signals over windows of the whole length, half, a quarter ... down to each one's shortest,
    longest first.

    `values` (signals, n) have zero mean and are 0 inside gaps. `weights` (n,) are 0 inside gaps, otherwise 1.

    Args:
        values: (signals, n), zero mean, 0 inside gaps.
        weights: (n,), 0 inside gaps and 1 elsewhere.
        step_s: Step of the grid.
        shortest_windows_s: One per signal.
    """
    found: list[list[CorrelationLevel]] = [[] for _ in values]
    length, active = values.shape[1], list(range(len(values)))
    while active:
        thin = max(1, -(-length // WINDOW_POINTS))
        levels = _level(values[active], weights, step_s, length, thin)
        for number, level in zip(active, levels, strict=True):
            found[number].append(level)
        length //= 2
        longest_s = length * step_s if length >= LEAST_POINTS else -1.0
        active = [number for number in active if longest_s >= shortest_windows_s[number]]
    return found


def _level(values: Array, weights: Array, step_s: float, length: int, thin: int) -> list[CorrelationLevel]:
    size = length // thin
    count = values.shape[1] // length
    picked = np.arange(count)
    if count > SEGMENTS:
        picked = np.linspace(0, count - 1, SEGMENTS).astype(int)
    # The last window ends with the trace, so that the newest readings are always included.
    offset = values.shape[1] - count * length
    rows = values[:, offset:].reshape(len(values), count, length)[:, picked, : size * thin]
    w = None if weights.all() else weights[offset:].reshape(count, length)[picked, : size * thin]
    return _averaged(rows, w, step_s, thin, length * step_s)


def between(values: Array, weights: Array, step_s: float, pieces: Sequence[slice]) -> CorrelationLevel:
    """The NSDF of pieces of different lengths; no lag extends across two of them.

    Args:
        values: (signals, n), zero mean.
        weights: (n,), 0 inside gaps.
        step_s: Step of the grid.
        pieces: The pieces.
    """
    pieces = sorted(pieces, key=lambda piece: piece.start - piece.stop)[: 2 * SEGMENTS]
    longest = pieces[0].stop - pieces[0].start
    thin = max(1, -(-longest // WINDOW_POINTS))
    size = longest // thin * thin
    rows, w = np.zeros((len(pieces), size)), np.zeros((len(pieces), size))
    for k, piece in enumerate(pieces):
        count = min(size, piece.stop - piece.start)
        rows[k, :count] = values[piece.start : piece.start + count]
        w[k, :count] = weights[piece.start : piece.start + count]
    window_s = float(np.median(np.array([piece.stop - piece.start for piece in pieces]))) * step_s
    return _averaged(rows[None], w, step_s, thin, window_s)[0]


def _averaged(
    rows: Array, w: Array | None, step_s: float, thin: int, window_s: float
) -> list[CorrelationLevel]:
    """The levels of signals from their windows (signals, windows, n) with the weights (windows, n); None: all
    weights are 1.
    """
    size = rows.shape[2] // thin
    if thin > 1:
        rows = rows.reshape(*rows.shape[:2], size, thin).sum(axis=3)
        if w is None:
            rows = rows / thin
        else:
            hits = w.reshape(len(w), size, thin).sum(axis=2)
            rows, w = rows / np.maximum(hits, 1), (hits > thin / 2).astype(float)
    if w is not None and w.all():
        w = None
    if w is None:
        x = rows - rows.sum(axis=2, keepdims=True) / size
    else:
        mass = np.maximum(w.sum(axis=1, keepdims=True), 1)
        x = (rows - (rows * w).sum(axis=2, keepdims=True) / mass) * w
    keep = size // 2 + 1
    pad = next_fast_len(size + keep, real=True)
    spectrum = rfft(x, pad)
    product = irfft(spectrum.real**2 + spectrum.imag**2, pad)[..., :keep]
    square = x * x
    if w is None:
        total = np.cumsum(square, axis=2)
        head = total[..., size - keep :][..., ::-1]  # of x(t)^2 where x(t + lag) exists
        before = np.zeros(head.shape)
        before[..., 1:] = total[..., : keep - 1]
        energy = head + (total[..., -1:] - before)
    else:
        transformed, mask = rfft(square, pad), rfft(w, pad)
        energy = irfft(2 * (transformed * mask.conj()).real, pad)[..., :keep]
    floor = 1e-9 * np.maximum(energy[..., :1], 1e-30)
    each = 2 * product / np.maximum(energy, floor)
    if w is not None:  # lags with hardly any pair of readings
        pairs = irfft(mask.real**2 + mask.imag**2, pad)[:, :keep]
        each = np.where(pairs < 0.3 * mass, 0.0, each)
    # Windows without variation have no weight; others count by their variation, within a limit.
    power = energy[..., 0]
    share = np.sqrt(np.minimum(power, 2 * np.median(power, axis=-1)[:, None]) + 1e-12)
    share = share / share.sum(axis=1, keepdims=True)
    values = list(np.clip((share[:, None] @ each)[:, 0], -1, 1))
    middles = list(np.median(each, axis=1)) if each.shape[1] > 2 else values
    return [CorrelationLevel(step_s * thin, window_s, *pair) for pair in zip(values, middles, strict=True)]


def key_maxima(values: Array, first: int, last: int) -> Array:
    """Indices in [first, last] of the highest points between upward zero crossings of an NSDF (McLeod and
    Wyvill, 5); of all peaks if it never crosses zero. `last` is two indices before the NSDF's end.
    """
    v = values[: last + 2]
    edges = np.flatnonzero((v[1:] > 0) & (v[:-1] <= 0)) + 1
    if v.min() > 0:
        found = np.flatnonzero((v[1:-1] >= v[:-2]) & (v[1:-1] > v[2:])) + 1
    else:
        # Values below zero after a hill are lower than the hill.
        hills = itertools.pairwise([*edges, len(v)])
        found = np.array([a + v[a:b].argmax() for a, b in hills], dtype=np.int64)
    return found[(found >= first) & (found <= last)]
