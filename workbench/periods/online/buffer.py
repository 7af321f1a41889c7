"""What a tracker remembers of a recorder's rows: the newest, in constant memory, and questions to them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ...samples import ROWS

if TYPE_CHECKING:
    import polars as pl

Array = np.ndarray[Any, Any]

CAPACITY = 8192  # rows that are remembered: 14 minutes at 10 Hz
DETECTED = CAPACITY // 2  # rows that a detector is given; of more, neighbours are averaged
_COLUMNS = ("time_s", "tick_s", "energy_j", "power_w", "power_tick_s", "power_limit_w", "sm_clock_mhz",
            "utilisation", "memory_utilisation")
_COUNTED = ("tick_s", "energy_j")  # of a counter the last reading counts, not a mean


class Memory:
    """The last rows, in one piece. Some may be there that were not looked at yet: those come by `next`."""

    def __init__(self) -> None:
        self._rows = np.empty(2 * CAPACITY, ROWS)
        self._read = self._high = 0
        self.newest_s = -math.inf

    def add(self, rows: Array) -> None:
        """Append at most `CAPACITY` rows; those that are not newer than all before are left out."""
        if not rows["time_s"][0] > self.newest_s:  # asked for twice: a recorder's edges belong to both sides
            rows = rows[rows["time_s"] > self.newest_s]
            if not len(rows):
                return
        if self._high + len(rows) > len(self._rows):
            drop = self._high - CAPACITY
            self._rows[:CAPACITY] = self._rows[drop : self._high].copy()
            self._read, self._high = max(0, self._read - drop), CAPACITY
        self._rows[self._high : self._high + len(rows)] = rows
        self._high += len(rows)
        self.newest_s = float(rows["time_s"][-1])

    def next(self, until_s: float) -> Array:
        """Rows not taken yet, up to a time (s); the first such row where none is as old."""
        waiting = self._rows["time_s"][self._read : self._high]
        upto = self._read + max(1, int(np.searchsorted(waiting, until_s, side="right")))
        fresh, self._read = self._rows[self._read : upto], upto
        return fresh

    def since(self, from_s: float) -> Array:
        """Rows taken already that have a power reading, from a time (s) on."""
        rows = self._rows[max(0, self._read - CAPACITY) : self._read]
        rows = rows[int(np.searchsorted(rows["time_s"], from_s)) :]
        known = np.isfinite(rows["power_w"])
        return rows if known.all() else rows[known]


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
        columns["power_tick_s"] = np.full(whole // group, math.nan)  # a mean belongs to no refresh
    return pl.DataFrame(columns, nan_to_null=True)


def busy(rows: Array) -> Array:
    """Rows in which the utilisation is above 0 or unknown."""
    return rows[~(rows["utilisation"] <= 0)]


def clock_mhz(rows: Array) -> float:
    """The usual SM clock under load; NaN where there is none."""
    clocks = busy(rows)["sm_clock_mhz"]
    return float(np.median(clocks)) if len(clocks) and np.isfinite(clocks).all() else math.nan


def other_clock(rows: Array, at_s: float) -> str:
    """A sentence where a steady SM clock (MHz) gave way to another at about `at_s`; else empty."""
    rows = busy(rows)
    # When the change was is known to a stretch or two only.
    late_s = 0.5 * (at_s + rows["time_s"][-1]) if len(rows) else at_s
    before, after = rows["sm_clock_mhz"][rows["time_s"] < at_s], rows["sm_clock_mhz"][rows["time_s"] > late_s]
    if len(before) < 10 or len(after) < 10 or not (np.isfinite(before).all() and np.isfinite(after).all()):
        return ""
    (low, was, high), (least, now, most) = (np.quantile(each, [0.1, 0.5, 0.9]) for each in (before, after))
    # A power limit moves the clock unsteadily, lighter work raises it; nothing but a lock holds it low.
    moved = now < 0.98 * low or (high - low < 0.01 * was and now > 1.02 * was)
    locked = most - least < 0.01 * now and moved
    return f"the SM clock went from {was:.0f} to {now:.0f} MHz" if locked else ""
