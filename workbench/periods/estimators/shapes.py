"""Shapes of candidate periods: readings overlaid in chunks short enough to avoid smearing by drift."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .signals import Signal, begins

Array = np.ndarray

# Tuned constants of mean shapes, set manually; `tools.fit_period_ranker` must follow their changes.
CHUNK_PERIODS = 10  # overlaid
CHUNKS = 3  # spread over the trace
SHAPE_NAMES = ("ev", "ev_least", "least", "most", "place_low", "place_high", "place_middle", "low_share",
               "low_run", "high_run", "bumps", "bump_spread", "depth")
LEAST_BINS, MOST_BINS, LEAST_STEPS = 8, 32, 16
STILL = 1e-24  # of a chunk's squares


class Folds(NamedTuple):
    """Chunks of one grid, each folded at the period of its owner, in sequence.

    `at` (steps,) is the index of each step in the grid, `cell` its bin. Bins of all chunks are numbered
    consecutively. `first` (chunks,) is the first step of each chunk, `chunk` (steps,) the chunk of each step,
    `offset` (chunks,) its first bin.
    """

    owner: Array  # (chunks,)
    bins: Array  # (chunks,) per shape
    at: Array
    cell: Array
    first: Array
    chunk: Array
    offset: Array


def fold(starts: Array, lengths: Array, owner: Array, cycles: Array, bins: Array) -> Folds:
    """Chunks (k,) of a grid by their first steps and lengths, folded at `cycles` (owners,) periods per step,
    into (owners,) bins.

    Args:
        starts: (k,) first steps.
        lengths: (k,) steps.
        owner: (k,) number of the owner of each chunk.
        cycles: (owners,) periods per step.
        bins: (owners,) bins per period.
    """
    ends = np.cumsum(lengths)
    first, own = ends - lengths, bins[owner]
    at = np.arange(ends[-1]) - np.repeat(first - starts, lengths)
    phase = at * np.repeat(cycles[owner], lengths)
    offset = np.cumsum(own) - own
    wide = np.repeat(own, lengths)
    cell = np.minimum(((phase - np.floor(phase)) * wide).astype(np.int64), wide - 1)
    chunk = np.repeat(np.arange(len(starts)), lengths)
    return Folds(owner, own, at, cell + np.repeat(offset, lengths), first, chunk, offset)


def folded(values: Array, weights: Array, folds: Folds) -> tuple[Array, Array]:
    """Chunks of values (signals, n), weighted by (n,) zeros and ones, folded.

    Returns:
        Mean shapes, chunk by chunk (signals, bins of all chunks), and the share (signals, chunks) of each
            chunk's variance that its shape explains, adjusted for the bins.
    """
    own, total = folds.bins, int(folds.bins.sum())
    x, w = values.take(folds.at, axis=1), weights.take(folds.at)
    if weights.all():
        weighed, mass = x, np.bincount(folds.cell, minlength=total).astype(float)
    else:
        weighed, mass = x * w, np.bincount(folds.cell, w, total)
    shape = np.array([np.bincount(folds.cell, row, total) for row in weighed]) / np.maximum(mass, 1e-9)
    whole = np.add.reduceat(mass, folds.offset)
    mean = np.add.reduceat(weighed, folds.first, axis=1) / np.maximum(whole, 1)
    off = (x - mean.take(folds.chunk, axis=1)) ** 2
    around = np.add.reduceat(off if weighed is x else off * w, folds.first, axis=1)
    # Residual of the bins' means: the chunk's variance minus that of its bins.
    between = mass * (shape - np.repeat(mean, own, axis=1)) ** 2
    left = np.maximum(around - np.add.reduceat(between, folds.offset, axis=1), 0.0)
    used = np.add.reduceat(mass > 0, folds.offset, dtype=np.int64)
    for k in np.flatnonzero((used < own) & (used > 1)).tolist():  # empty bins
        cells = slice(folds.offset[k], folds.offset[k] + own[k])
        there = np.flatnonzero(mass[cells])
        for row in shape[:, cells]:
            row[:] = np.interp(np.arange(own[k]), there, row[there], period=own[k])
    # The variance of a constant reading is only rounding.
    moves = around > STILL * np.add.reduceat(weighed**2, folds.first, axis=1)
    enough = (whole >= own + 2) & moves & (used > 1)
    rest = left / np.where(moves, around, 1.0) * (whole - 1) / np.maximum(1.0, whole - used)
    return shape, np.where(enough, 1 - rest, 0.0)


def shape_table(signals: Sequence[Signal], step_s: float, periods_s: Array) -> Array:
    """(signals, periods, len(SHAPE_NAMES)): NaN if a signal is constant, or cannot show the period."""
    found = np.full((len(signals), len(periods_s), len(SHAPE_NAMES)), np.nan)
    shown = np.array([(periods_s >= 0.95 * signal.shortest_s) & (signal.sd > 0) for signal in signals])
    chosen = np.flatnonzero(shown.any(axis=0))
    if len(chosen):
        folds = _chunks(len(signals[0].values), step_s, periods_s[chosen])
        found[:, chosen] = _described(signals, folds)
        found[~shown] = np.nan
    return found


def _chunks(count: int, step_s: float, periods_s: Array) -> Folds:
    """Pieces of some periods at the start, in the middle and at the end of so many steps."""
    bins = np.clip(2 * periods_s / step_s, LEAST_BINS, MOST_BINS).astype(np.int64)
    lengths = np.maximum((CHUNK_PERIODS * periods_s / step_s).astype(np.int64), LEAST_STEPS)
    lengths = np.minimum(lengths, count)
    spread = np.linspace(0, count - lengths, CHUNKS, axis=1).astype(np.int64)  # (periods, chunks)
    owner, place = np.nonzero(np.column_stack([np.full(len(bins), True), np.diff(spread) > 0]))
    return fold(spread[owner, place], lengths[owner], owner, step_s / periods_s, bins)


def _described(signals: Sequence[Signal], folds: Folds) -> Array:
    """`SHAPE_NAMES` of signals (signals, owners, ...): of each owner's chunk that is explained best."""
    table, explained = folded(np.stack([each.values for each in signals]), signals[0].weights, folds)
    firsts = np.flatnonzero(begins(folds.owner))
    most = np.maximum.reduceat(explained, firsts, axis=1)
    least = np.minimum.reduceat(explained, firsts, axis=1)
    chunk = np.where(explained == most[:, folds.owner], np.arange(len(folds.owner)), len(folds.owner))
    best = np.minimum.reduceat(chunk, firsts, axis=1)
    bins = np.broadcast_to(folds.bins[firsts], best.shape)
    inside = np.arange(MOST_BINS) < bins[..., None]
    place = np.where(inside, folds.offset[best][..., None] + np.arange(MOST_BINS), 0)
    shape = table[np.arange(len(signals))[:, None, None], place]
    ordered = np.sort(np.where(inside, shape, np.inf), axis=2)
    low = ordered[..., 0]
    high, middle = (np.take_along_axis(ordered, at[..., None], 2)[..., 0] for at in (bins - 1, bins // 2))
    below = inside & (shape < 0.5 * (low + high)[..., None])
    runs = [_runs(row[:count]) for row, count in zip(below.reshape(-1, MOST_BINS), bins.ravel(), strict=True)]
    lows, highs, bumps, spread = (np.reshape(each, best.shape) for each in zip(*runs, strict=True))
    floor, ceiling, centre = (
        np.array([getattr(each, name) for each in signals])[:, None] for name in ("low", "high", "centre")
    )
    span, usual = np.maximum(ceiling - floor, 1e-9), np.maximum(centre, 1e-9)
    return np.stack([
        most, least, (centre + low) / usual, (centre + high) / usual, (low - floor) / span,
        (high - floor) / span, (middle - floor) / span, np.count_nonzero(below, axis=2) / bins, lows / bins,
        highs / bins, bumps, spread, (high - low) / span,
    ], axis=2)


def _runs(below: Array) -> tuple[int, int, int, float]:
    """In a circular mask: the longest run of True, of False, the number of runs of True, and the irregularity
    of their ends (standard deviation of their distances over the mean).
    """
    edges = np.flatnonzero(below != np.roll(below, 1))
    if not len(edges):
        return (len(below), 0, 0, 0.0) if below[0] else (0, len(below), 0, 0.0)
    length = np.diff(edges, append=edges[0] + len(below))
    ends = edges[~below[edges]]
    apart = np.diff(ends, append=ends[0] + len(below))
    lows, highs = (int(length[below[edges] == kind].max()) for kind in (True, False))
    return lows, highs, len(ends), float(np.std(apart) / np.mean(apart))
