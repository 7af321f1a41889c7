"""Power traces: a plain Polars frame with `SCHEMA`.

A row is one look at one GPU, at `time_s`. `tick_s` is the moment of the last refresh of what energy comes
from, to which `energy_j` belongs, `power_tick_s` that of the power reading (null while they are not known).
Values that a GPU does not report are null.
"""

from __future__ import annotations

import polars as pl

_FLOATS = (
    "time_s", "tick_s", "energy_j", "power_w", "power_tick_s", "power_limit_w", "sm_clock_mhz",
    "mem_clock_mhz", "utilisation", "memory_utilisation", "temperature_c",
)
SCHEMA = pl.Schema({**dict.fromkeys(_FLOATS, pl.Float64), "throttle": pl.UInt64})


def duration_s(trace: pl.DataFrame) -> float:
    """Time from the first row to the last; 0 for fewer than two."""
    times = trace["time_s"]
    return float(times[-1] - times[0]) if len(times) > 1 else 0.0
