"""Buffer of a tracker: a recorder's newest rows, in constant memory, and queries on them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from ...samples import ROWS
from ..setting_parts import HELD_S, clock_changes

if TYPE_CHECKING:
    import polars as pl

Array = np.ndarray

CAPACITY = 8192  # rows kept: 14 minutes at 10 Hz
DETECTED = CAPACITY // 2  # rows for a detector; neighbours of more rows are averaged
_COLUMNS = ("time_s", "tick_s", "energy_j", "power_w", "power_tick_s", "power_limit_w", "sm_clock_mhz",
            "utilisation", "memory_utilisation")
_COUNTED = ("tick_s", "energy_j")  # for a counter the last reading counts, not a mean


class Memory:
    """The newest rows, in one array. Rows that are not used yet are available by `next`."""

    def __init__(self) -> None:
        self._used, self._waiting = np.empty(0, ROWS), np.empty(0, ROWS)
        self.newest_s = -math.inf

    def add(self, rows: Array) -> None:
        """Append rows. Rows that are not newer than all before are dropped: a recorder's edges belong to both
        sides.
        """
        rows = rows[rows["time_s"] > self.newest_s]
        if len(rows):
            self._waiting = np.concatenate([self._waiting, rows])
            self.newest_s = float(rows["time_s"][-1])

    def next(self, until_s: float) -> Array:
        """Unused rows, up to a time (s); the first such row if none is as old."""
        upto = max(1, int(np.searchsorted(self._waiting["time_s"], until_s, side="right")))
        fresh, self._waiting = self._waiting[:upto], self._waiting[upto:]
        self._used = np.concatenate([self._used[-CAPACITY:], fresh])
        return fresh

    def since(self, from_s: float) -> Array:
        """Used rows that have a power reading, from a time (s) on."""
        rows = self._used[int(np.searchsorted(self._used["time_s"], from_s)) :]
        return rows[np.isfinite(rows["power_w"])]


def frame(rows: Array) -> pl.DataFrame:
    """Rows as a frame for the detector; too many are averaged in groups."""
    import polars as pl

    columns = {name: rows[name].astype(np.float64) for name in _COLUMNS}
    group = -(-len(rows) // DETECTED)
    if group > 1:
        whole = len(rows) // group * group
        groups = {name: values[:whole].reshape(-1, group) for name, values in columns.items()}
        for name, values in groups.items():
            columns[name] = values[:, -1] if name in _COUNTED else values.mean(axis=1)
        columns["power_tick_s"] = np.full(whole // group, math.nan)  # a mean belongs to no single refresh
    return pl.DataFrame(columns, nan_to_null=True)


def other_clock(rows: Array, at_s: float) -> str:
    """A message if a constant SM clock (MHz) was replaced by another at about `at_s`; else empty."""
    rows = rows[~(rows["utilisation"] <= 0) & np.isfinite(rows["sm_clock_mhz"])]
    times, clocks = rows["time_s"], rows["sm_clock_mhz"].astype(np.float64)
    for moment_s in clock_changes(times, clocks):
        was, now = (float(np.median(clocks[part])) for part in (times < moment_s, times >= moment_s))
        if moment_s > at_s - HELD_S:
            return f"the SM clock went from {was:.0f} to {now:.0f} MHz"
    return ""
