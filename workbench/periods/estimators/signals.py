"""From a trace to evenly spaced signals, each with the shortest period that its sensor can show."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

Array = np.ndarray

# Tuned constants of the even grid, set manually; `tools.fit_period_ranker` must follow their changes.

# a period must include so many refreshes of its signal (a sampling theorem with a margin)
LEAST_REFRESHES = 2.2
LONG_GAP_STEPS = 4.0  # longer gaps are masked, shorter ones are bridged


@dataclass(frozen=True)
class Signal:
    """One reading on an even grid."""

    name: str  # column of the trace
    values: Array  # (n,) bin means, mean removed
    weights: Array  # (n,) 1 for readings, 0 inside gaps
    shortest_s: float  # the shortest period that this signal can show
    sd: float  # of the readings
    centre: float  # the mean that was removed
    low: float  # the 3 % quantile of the readings, from `centre`
    high: float  # the 97 % quantile, likewise


@dataclass(frozen=True)
class SignalGrid:
    """All signals of a trace at one step."""

    start_s: float
    step_s: float
    signals: tuple[Signal, ...]
    poll_s: float
    refresh_s: float  # of the power reading

    @property
    def count(self) -> int:
        return len(self.signals[0].values)

    @property
    def seconds(self) -> float:
        return self.count * self.step_s


def begins(rows: Array) -> Array:
    """Starts of runs of equal values in (n,) sorted values: (n,) True or False."""
    found = np.ones(len(rows), dtype=bool)
    np.not_equal(rows[1:], rows[:-1], out=found[1:])
    return found


def refresh_s(time_s: Array, values: Array) -> float:
    """Seconds between changes of a reading: their lower quartile."""
    changed = np.flatnonzero(np.diff(values) != 0)
    if len(changed) < 3:
        return float(time_s[-1] - time_s[0])
    return float(np.quantile(np.diff(time_s[changed + 1]), [0.25])[0])


def on_grid(time_s: Array, columns: dict[str, Array]) -> SignalGrid:
    """Bin means of (n,) columns without NaN, including "power_w", at (n,) ascending times, on one even grid.
    """
    steps = np.diff(time_s)
    poll_s = float(np.median(steps))
    own_s = {name: refresh_s(time_s, values) for name, values in columns.items()}
    refresh = max(own_s["power_w"], poll_s)
    if refresh > 0.1 * (time_s[-1] - time_s[0]):  # a reading that hardly ever changes; another one may
        refresh = max(min(own_s.values()), poll_s)
    # Three bins per refresh keep all information of the sensor; more would only repeat values.
    step_s = max(poll_s, refresh / 3)
    if step_s < 1.6 * poll_s:
        step_s = poll_s
    count = int((time_s[-1] - time_s[0]) / step_s) + 1
    where = np.minimum(((time_s - time_s[0]) / step_s + 0.25).astype(np.int64), count - 1)
    hits = np.bincount(where, minlength=count)
    filled = np.flatnonzero(hits)
    at = np.arange(count)
    weights = np.ones(count)
    holes = np.diff(filled)
    for hole in np.flatnonzero(holes > max(LONG_GAP_STEPS, 1 + 3 * poll_s / step_s)):
        weights[filled[hole] + 1 : filled[hole + 1]] = 0
    known = weights > 0
    signals = []
    for name, values in columns.items():
        means = np.bincount(where, values, count)[filled] / hits[filled]
        even = np.interp(at, filled, means) if len(filled) < count else means
        centre = float((even * weights).sum() / weights.sum())
        even = (even - centre) * weights
        low, high = np.quantile(even[known], [0.03, 0.97])
        shortest_s = LEAST_REFRESHES * max(own_s[name], poll_s)
        sd = float(np.sqrt((even**2).sum() / weights.sum()))
        signals.append(Signal(name, even, weights, shortest_s, sd, centre, float(low), float(high)))
    return SignalGrid(float(time_s[0]), step_s, tuple(signals), poll_s, refresh)


@dataclass(frozen=True)
class Pauses:
    """Pauses of the GPU between intervals of work (`pieces`, slices of the grid). Each piece restarts the
    period. Includes the median lengths of pauses and pieces.
    """

    pieces: tuple[slice, ...]
    pause_s: float
    piece_s: float


def pauses(signal: Signal, step_s: float) -> Pauses | None:
    """Runs of low readings in the longest class of such runs: half as long again as any of the next class.

    None if no reading is low, or if only short pieces would remain.
    """
    middle = float(np.median(signal.values[signal.weights > 0]))
    if signal.high - signal.low <= 0 or middle - signal.low < 0.3 * (signal.high - signal.low):
        return None
    below = (signal.values < signal.low + 0.45 * (middle - signal.low)) | (signal.weights == 0)
    edges = np.flatnonzero(np.diff(np.concatenate([[0], below.astype(np.int8), [0]])))
    starts, ends = edges[::2], edges[1::2]
    if len(starts) == 0:
        return None
    lengths = np.sort(ends - starts)
    jumps = lengths[1:] / lengths[:-1]
    shortest = lengths[int(np.argmax(jumps)) + 1] if len(jumps) and jumps.max() >= 1.5 else lengths[0]
    long = (ends - starts) >= shortest
    cuts = np.concatenate([[0], np.column_stack([starts[long], ends[long]]).ravel(), [len(below)]])
    pieces = tuple(slice(int(a), int(b)) for a, b in cuts.reshape(-1, 2) if b - a >= 12)
    if len(pieces) < 2:
        return None
    pause_s = float(np.median((ends - starts)[long])) * step_s
    return Pauses(pieces, pause_s, float(np.median(np.array([p.stop - p.start for p in pieces]))) * step_s)
