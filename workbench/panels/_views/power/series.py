"""Rows that a plot keeps of a long run: the last minute in full, older ones as extremes of stretches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

COLUMNS = ("time_s", "power_w", "power_limit_w", "sm_clock_mhz", "utilisation")
LIMIT = COLUMNS.index("power_limit_w")
WINDOW_S = 60.0  # that a plot shows while something runs
MOST_ROWS = 7000  # as in series.js
BINS = MOST_ROWS // 7

Rows = np.ndarray[Any, np.dtype[np.float32]]


class Series:
    """Rows of one GPU (columns `COLUMNS`, seconds since the start), bounded however long the run is.

    A row of NaN except its time is a gap: nothing was observed there, and no line may cross it.

    Args:
        gap_s: Two rows further apart than this have a gap between them.
    """

    def __init__(self, gap_s: float = 0.5) -> None:
        self.gap_s = gap_s
        self.rows: Rows = np.empty((0, len(COLUMNS)), np.float32)
        self._seconds = np.empty((0, 4))  # of the power in each: sum, count, lowest, highest

    @property
    def seconds(self) -> Rows:
        """The power of each second, thinned or not: its middle (s), mean, lowest and highest (W)."""
        some = np.flatnonzero(self._seconds[:, 1])
        total, count, low, high = self._seconds[some].T
        return np.column_stack([some + 0.5, total / count, low, high]).astype(np.float32)

    def append(self, rows: Rows) -> Rows:
        """Add rows behind the others; returns them with the gaps marked."""
        if not len(rows):
            return rows
        self._count(rows[~np.isnan(rows[:, 1])])
        before = self.rows[-1:, 0] if len(self.rows) else rows[:1, 0]
        times = np.concatenate([before, rows[:, 0]])
        wide = np.flatnonzero(np.diff(times) > self.gap_s)
        if len(wide):
            holes = np.full((len(wide), len(COLUMNS)), np.nan, np.float32)
            holes[:, 0] = (times[wide] + times[wide + 1]) / 2
            rows = np.insert(rows, wide, holes, axis=0)
        self.rows = np.concatenate([self.rows, rows])
        if len(self.rows) > MOST_ROWS:
            recent = int(np.searchsorted(self.rows[:, 0], self.rows[-1, 0] - 1.25 * WINDOW_S))
            self.rows = np.concatenate([thin(self.rows[:recent], BINS), self.rows[recent:]])
        return rows

    def _count(self, rows: Rows) -> None:
        """Take readings of the power into the seconds."""
        which = np.maximum(rows[:, 0], 0.0).astype(int)
        if (more := int(which.max(initial=-1)) + 1 - len(self._seconds)) > 0:
            empty = np.tile([0.0, 0.0, np.inf, -np.inf], (max(more, len(self._seconds)), 1))
            self._seconds = np.concatenate([self._seconds, empty])
        power_w = rows[:, 1]
        np.add.at(self._seconds[:, 0], which, power_w)
        np.add.at(self._seconds[:, 1], which, 1.0)
        np.minimum.at(self._seconds[:, 2], which, power_w)
        np.maximum.at(self._seconds[:, 3], which, power_w)

    def cut(self, end_s: float) -> None:
        """Remove all rows after a time."""
        self.rows = self.rows[self.rows[:, 0] <= end_s]


def over(seconds: Rows, step_s: float) -> Rows:
    """Rows of `Series.seconds` as those of `step_s` seconds each."""
    which = seconds[:, 0] // step_s
    first = np.flatnonzero(np.diff(which, prepend=-1))
    mean = np.add.reduceat(seconds[:, 1], first) / np.diff(first, append=len(which))
    low, high = np.minimum.reduceat(seconds[:, 2], first), np.maximum.reduceat(seconds[:, 3], first)
    return np.column_stack([(which[first] + 0.5) * step_s, mean, low, high])


def readings(rows: Rows) -> Rows:
    """Readings of the power as rows like those of `Series.seconds`."""
    return rows[~np.isnan(rows[:, 1])][:, [0, 1, 1, 1]]


def rows_of(trace: Any, start_s: float) -> Rows:
    """Readings as rows of `COLUMNS`, seconds since `start_s`; missing values are NaN."""
    has = getattr(trace, "columns", None) or trace.dtype.names
    table = np.full((len(trace), len(COLUMNS)), np.nan, np.float32)
    for number, name in enumerate(COLUMNS):
        if name in has:
            values = np.asarray(trace[name], np.float64)  # null becomes NaN
            table[:, number] = values - start_s if name == "time_s" else values
    return table


def packed(tables: Iterable[Rows]) -> bytes:
    """Tables one after another, in the form for views."""
    return b"".join(np.ascontiguousarray(table, np.float32).tobytes() for table in tables)


def is_gap(rows: Rows) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which rows are gaps."""
    return np.asarray(np.isnan(rows[:, 1:]).all(axis=1))


def thin(rows: Rows, bins: int) -> Rows:
    """Of each of `bins` equal stretches the rows with the lowest and the highest power; also gaps and changes
    of the limit.

    It picks real rows and never averages, so a peak keeps its height, and thinning twice is harmless.
    """
    if len(rows) <= 2 * bins:
        return rows
    times, power, limit = rows[:, 0].astype(float), rows[:, 1], rows[:, 2]
    span_s = max(times[-1] - times[0], 1e-9)
    stretch = np.minimum(((times - times[0]) / span_s * bins).astype(int), bins - 1)
    keep = is_gap(rows)
    keep[1:] |= np.abs(np.diff(limit)) > 0.5
    filled = np.flatnonzero(~np.isnan(power))
    for order in (power[filled], -power[filled]):
        sorted_rows = filled[np.lexsort((order, stretch[filled]))]
        first = np.ones(len(sorted_rows), bool)
        first[1:] = np.diff(stretch[sorted_rows]) > 0
        keep[sorted_rows[first]] = True
    if not len(filled):  # no power here: take every stretch's first row
        keep[np.unique(stretch, return_index=True)[1]] = True
    return np.asarray(rows[keep])
