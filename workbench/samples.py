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
