"""The shapes of all candidate periods in all signals at once: `shapes.shape_of` for many."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from .shapes import PARAMS, SHAPE_NAMES
from .signals import Signal

Array = np.ndarray[Any, Any]
LEAST_BINS, MOST_BINS, LEAST_STEPS = 8, 32, 16


class _Folds(NamedTuple):
    """Chunks of one grid folded at (periods,) candidates: one chunk after the other.

    `at` (steps,) is the place of each step in the grid, `cell` its bin; bins of all chunks are numbered
    through. `first` (chunks,) is the first step of each chunk, `chunk` (steps,) the chunk of each.
    """

    bins: Array  # (periods,) of a shape
    owner: Array  # (chunks,) whose it is
    at: Array
    cell: Array
    first: Array
    chunk: Array
    offset: Array  # (chunks,) of its bins


def shape_table(signals: Sequence[Signal], step_s: float, periods_s: Array) -> Array:
    """(signals, periods, len(SHAPE_NAMES)): NaN where a signal does not move, or cannot show the period."""
    found = np.full((len(signals), len(periods_s), len(SHAPE_NAMES)), np.nan)
    shown = np.array([
        (periods_s >= 0.95 * signal.shortest_s) & (signal.sd > 0) for signal in signals
    ])
    chosen = np.flatnonzero(shown.any(axis=0))
    if len(chosen):
        folds = _fold(len(signals[0].values), step_s, periods_s[chosen])
        tables, explained = _shapes(np.stack([each.values for each in signals]), signals[0].weights, folds)
        for number, signal in enumerate(signals):
            rows = _described(signal, tables[number], explained[number], folds)
            found[number, chosen] = rows
        found[~shown] = np.nan
    return found


def _fold(count: int, step_s: float, periods_s: Array) -> _Folds:
    bins = np.clip(2 * periods_s / step_s, LEAST_BINS, MOST_BINS).astype(np.int64)
    lengths = np.maximum((PARAMS.chunk_periods * periods_s / step_s).astype(np.int64), LEAST_STEPS)
    lengths = np.minimum(lengths, count)
    spread = np.linspace(0, count - lengths, PARAMS.chunks).astype(np.int64)  # (chunks, periods)
    new = np.vstack([np.ones(len(bins), dtype=bool), np.diff(spread, axis=0) > 0])
    owner, place = np.nonzero(new.T)
    starts, lengths = spread[place, owner], lengths[owner]
    first = np.cumsum(lengths) - lengths
    chunk = np.repeat(np.arange(len(starts)), lengths)
    at = np.arange(len(chunk)) - (first - starts)[chunk]
    offset = np.cumsum(bins[owner]) - bins[owner]
    phase = at * np.repeat(step_s / periods_s[owner], lengths)
    own = bins[owner][chunk]
    cell = np.minimum(((phase - np.floor(phase)) * own).astype(np.int64), own - 1) + offset[chunk]
    return _Folds(bins, owner, at, cell, first, chunk, offset)


def _shapes(values: Array, weights: Array, folds: _Folds) -> tuple[Array, Array]:
    """Mean shapes, chunk after chunk (signals, bins of all chunks), and the share (signals, chunks) of each
    chunk's variance that its shape explains, adjusted for the bins.
    """
    own = folds.bins[folds.owner]
    total = int(own.sum())
    x, w = values[:, folds.at], weights[folds.at]
    mass = np.bincount(folds.cell, w, total)
    cells = (folds.cell + total * np.arange(len(x))[:, None]).ravel()
    shape = np.bincount(cells, (x * w).ravel(), total * len(x)).reshape(len(x), total) / np.maximum(mass, 1e-9)
    whole = np.add.reduceat(w, folds.first)
    mean = np.add.reduceat(x * w, folds.first, axis=1) / np.maximum(whole, 1)
    around = np.add.reduceat((x - mean[:, folds.chunk]) ** 2 * w, folds.first, axis=1)
    left = np.add.reduceat((x - shape[:, folds.cell]) ** 2 * w, folds.first, axis=1)
    used = np.add.reduceat(mass > 0, folds.offset, dtype=np.int64)
    for k in np.flatnonzero((used < own) & (used > 1)).tolist():
        part = slice(folds.offset[k], folds.offset[k] + own[k])
        there = np.flatnonzero(mass[part] > 0)
        for row in shape[:, part]:
            row[:] = np.interp(np.arange(own[k]), there, row[there], period=own[k])
    enough = (whole >= own + 2) & (around > 0) & (used > 1)
    rest = left / np.where(around > 0, around, 1.0) * (whole - 1) / np.maximum(1.0, whole - used)
    return shape, np.where(enough, 1 - rest, 0.0)


def _described(signal: Signal, table: Array, explained: Array, folds: _Folds) -> Array:
    """`SHAPE_NAMES` of one signal (periods, ...): of the chunk of each period that is explained best."""
    firsts = np.flatnonzero(np.diff(folds.owner, prepend=-1))
    most, least = np.maximum.reduceat(explained, firsts), np.minimum.reduceat(explained, firsts)
    best = np.flatnonzero(explained == most[folds.owner])
    best = best[np.diff(folds.owner[best], prepend=-1) > 0]
    bins = folds.bins
    inside = np.arange(MOST_BINS) < bins[:, None]
    shape = table[np.where(inside, folds.offset[best][:, None] + np.arange(MOST_BINS), 0)]
    low, high = np.where(inside, shape, np.inf).min(axis=1), np.where(inside, shape, -np.inf).max(axis=1)
    middle = np.sort(np.where(inside, shape, np.inf), axis=1)[np.arange(len(bins)), bins // 2]
    below = inside & (shape < 0.5 * (low + high)[:, None])
    lows, highs, bumps, spread = _runs(below, bins)
    span, centre = max(signal.high - signal.low, 1e-9), max(signal.centre, 1e-9)
    return np.column_stack([
        most, least, (signal.centre + low) / centre, (signal.centre + high) / centre,
        (low - signal.low) / span, (high - signal.low) / span, (middle - signal.low) / span,
        below.sum(axis=1) / bins, lows / bins, highs / bins, bumps, spread, (high - low) / span,
    ])


def _runs(below: Array, bins: Array) -> tuple[Array, Array, Array, Array]:
    """Around circular masks (rows, MOST_BINS) of (rows,) bins: the longest run of True, of False, how many
    runs of True end, and how unevenly (standard deviation of their distances over the mean).
    """
    rows = np.arange(len(bins))
    before = np.roll(below, 1, axis=1)
    before[:, 0] = below[rows, bins - 1]
    row, turn = np.nonzero((below != before) & (np.arange(MOST_BINS) < bins[:, None]))
    lows, highs = (np.where(below[:, 0] == kind, bins, 0) for kind in (True, False))
    number = np.bincount(row, minlength=len(bins))
    lows[number > 0] = highs[number > 0] = 0
    kind = below[row, turn]
    length = _to_next(row, turn, bins)
    np.maximum.at(lows, row[kind], length[kind])
    np.maximum.at(highs, row[~kind], length[~kind])
    ends = row[~kind]
    bumps = np.bincount(ends, minlength=len(bins))
    apart = _to_next(ends, turn[~kind], bins)
    mean = bins / np.maximum(bumps, 1)
    variance = np.bincount(ends, (apart - mean[ends]) ** 2, len(bins)) / np.maximum(bumps, 1)
    return lows, highs, bumps.astype(float), np.where(bumps > 1, np.sqrt(variance) / mean, 0.0)


def _to_next(row: Array, place: Array, bins: Array) -> Array:
    """Distance from each place to the next of its row, around the circle."""
    if not len(row):
        return row
    first = np.flatnonzero(np.diff(row, prepend=-1))
    following = np.append(place[1:], 0)
    last = np.append(first[1:], len(row)) - 1
    following[last] = place[first] + bins[row[first]]
    return following - place
