"""Samples of one GPU as an array, before `trace` makes a frame of them. NumPy only."""

from __future__ import annotations

import numpy as np

# The columns of `trace.SCHEMA`, and the error of `tick_s`.
ROWS = np.dtype([
    ("time_s", "<f8"), ("tick_s", "<f8"), ("energy_j", "<f8"), ("power_tick_s", "<f8"),
    ("tick_error_s", "<f4"), ("power_w", "<f4"), ("power_limit_w", "<f4"), ("sm_clock_mhz", "<f4"),
    ("mem_clock_mhz", "<f4"), ("utilisation", "<f4"), ("memory_utilisation", "<f4"),
    ("temperature_c", "<f4"), ("throttle", "<u8"),
])


def refreshes(rows: np.ndarray, period_s: float) -> np.ndarray:
    """The first row of each refresh of a sensor whose refreshes are known.

    The counter of a powered GPU rises at every refresh; where it stood still, a refresh was missed or late. A
    GPU without a counter has refreshed where `tick_s` moved by more than half a period.
    """
    rows = rows[np.isfinite(rows["tick_s"])]
    if np.isfinite(rows["energy_j"]).any():
        rows = rows[np.isfinite(rows["energy_j"])]
        moved = np.append(True, np.diff(rows["energy_j"]) != 0)
        same_tick = np.append(False, np.diff(rows["tick_s"]) <= 0.1 * period_s)
        rows = rows[~(moved & same_tick)]  # a look next to a refresh
        first = np.append(True, np.diff(rows["energy_j"]) != 0)
    else:
        first = np.append(True, np.diff(rows["tick_s"]) > 0.5 * period_s)
    found: np.ndarray = rows[first[: len(rows)]]  # there may be none
    return found
