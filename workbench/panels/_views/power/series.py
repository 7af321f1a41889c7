"""What a plot keeps of a long run: the last minute whole, what is older as extremes of short stretches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

COLUMNS = ("time_s", "power_w", "power_limit_w", "sm_clock_mhz", "utilisation")
RECENT_S = 75.0  # a little more than the plot's window of a minute
MOST_ROWS = 7000
BINS = 1000

Rows = np.ndarray[Any, np.dtype[np.float32]]


class Series:
    """Rows of one GPU (columns `COLUMNS`, seconds since the start), bounded however long the run is.

    A row of NaN but for its time is a gap: nothing was seen there, and no line may cross it.

    Args:
        gap_s: Two rows further apart than this have a gap between them.
    """

    def __init__(self, gap_s: float = 0.5) -> None:
        self.gap_s = gap_s
        self.rows: Rows = np.empty((0, len(COLUMNS)), np.float32)
        self._sums = np.zeros((0, 2))  # of the power in each second, in W, and how many readings

    @property
    def means(self) -> Rows:
        """The mean power of each second: its middle (s) and W; of all rows that ever were, thinned or not."""
        seconds = np.flatnonzero(self._sums[:, 1])
        return np.column_stack(
            [seconds + 0.5, self._sums[seconds, 0] / self._sums[seconds, 1]]
        ).astype(np.float32)

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
            recent = int(np.searchsorted(self.rows[:, 0], self.rows[-1, 0] - RECENT_S))
            self.rows = np.concatenate([thin(self.rows[:recent], BINS), self.rows[recent:]])
        return rows

    def _count(self, rows: Rows) -> None:
        """Take readings of the power into the means."""
        seconds = np.maximum(rows[:, 0], 0.0).astype(int)
        if len(seconds) and (more := int(seconds.max()) + 1 - len(self._sums)) > 0:
            self._sums = np.concatenate([self._sums, np.zeros((max(more, len(self._sums)), 2))])
        np.add.at(self._sums, seconds, np.column_stack([rows[:, 1], np.ones(len(rows))]))

    def cut(self, end_s: float) -> None:
        """Forget what came after a time."""
        self.rows = self.rows[self.rows[:, 0] <= end_s]


def rows_of(trace: Any, start_s: float) -> Rows:
    """Readings as rows of `COLUMNS`, seconds since `start_s`; what is missing is NaN."""
    has = getattr(trace, "columns", None) or trace.dtype.names
    table = np.full((len(trace), len(COLUMNS)), np.nan, np.float32)
    for number, name in enumerate(COLUMNS):
        if name in has:
            values = np.asarray(trace[name], np.float64)  # null becomes NaN
            table[:, number] = values - start_s if name == "time_s" else values
    return table


def packed(tables: Iterable[Rows]) -> bytes:
    """Tables one after another, as views take them."""
    return b"".join(np.ascontiguousarray(table, np.float32).tobytes() for table in tables)


def is_gap(rows: Rows) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which rows are gaps."""
    return np.asarray(np.isnan(rows[:, 1:]).all(axis=1))


def thin(rows: Rows, bins: int) -> Rows:
    """Of each of `bins` equal stretches the rows with the lowest and the highest power; also gaps and changes
    of the limit.

    Real rows are picked, never averaged: a peak keeps its height, and thinning what was thinned before is
    harmless.
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
    if not len(filled):  # power is not told here: every stretch's first row
        keep[np.unique(stretch, return_index=True)[1]] = True
    return np.asarray(rows[keep])
