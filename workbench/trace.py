"""Power traces: a plain Polars frame with `SCHEMA`, and functions that take one and return a value or a new
one.

A row is one look at one GPU, at `time_s`. `tick_s` is the moment of the last refresh of what energy comes
from, to which `energy_j` belongs, `power_tick_s` that of the power reading (null while they are not known).
What a GPU does not tell is null.
"""

from __future__ import annotations

import polars as pl

from .errors import UsageError
from .records import Window

SCHEMA = pl.Schema({
    "time_s": pl.Float64,
    "tick_s": pl.Float64,
    "energy_j": pl.Float64,
    "power_w": pl.Float64,
    "power_tick_s": pl.Float64,
    "power_limit_w": pl.Float64,
    "sm_clock_mhz": pl.Float64,
    "mem_clock_mhz": pl.Float64,
    "utilisation": pl.Float64,
    "memory_utilisation": pl.Float64,
    "temperature_c": pl.Float64,
    "throttle": pl.UInt64,
})


def duration_s(trace: pl.DataFrame) -> float:
    """Time from the first row to the last; 0 for fewer than two."""
    times = trace["time_s"]
    return float(times[-1] - times[0]) if len(times) > 1 else 0.0


def energy_j(trace: pl.DataFrame) -> float:
    """Area under the power readings by trapezoids; rows without power are left out.

    A measurement's energy comes from the counter instead (`meter`); this is for pictures and for GPUs without
    one.
    """
    known = trace.select("time_s", "power_w").drop_nulls()
    steps = known.select(
        (pl.col("time_s").diff() * (pl.col("power_w") + pl.col("power_w").shift(1)) / 2).sum()
        .alias("energy_j")
    )
    return float(steps.item() or 0.0)


def mean_power_w(trace: pl.DataFrame) -> float:
    """Average power over the trace, weighted by time.

    >>> trace = pl.DataFrame({"time_s": [0.0, 1.0, 3.0], "power_w": [100.0, 200.0, 200.0]})
    >>> round(mean_power_w(trace), 1)
    183.3
    """
    known = trace.select("time_s", "power_w").drop_nulls()  # rows without power must not stretch the time
    if not duration_s(known) > 0:
        raise UsageError(f"a mean power needs two readings at different times; the trace has {known.height}")
    return energy_j(known) / duration_s(known)


def cut(trace: pl.DataFrame, window: Window) -> pl.DataFrame:
    """Keep what lies inside `window`; power at both edges is interpolated.

    >>> trace = pl.DataFrame({"time_s": [0.0, 2.0, 4.0], "power_w": [100.0, 200.0, 200.0]})
    >>> cut(trace, Window("w", 1.0, (), end_s=3.0)).rows()
    [(1.0, 150.0), (2.0, 200.0), (3.0, 200.0)]
    """
    if window.end_s is None:
        raise UsageError(f"window {window.label!r} is still open; close it before cutting a trace with it")
    start_s, end_s = window.start_s, window.end_s
    edges = [
        at for at in (start_s, end_s) if trace.height and trace["time_s"][0] <= at <= trace["time_s"][-1]
    ]
    # Dropping the edges would lose up to one sampling period of energy at each end, which is most of a short
    # window.
    inside = trace.filter(pl.col("time_s").is_between(start_s, end_s))
    missing = [at for at in edges if at not in set(inside["time_s"])]
    if not missing:
        return inside
    added = pl.DataFrame({"time_s": missing}).join(trace, on="time_s", how="left").select(trace.columns)
    whole = pl.concat([trace, added], how="vertical_relaxed").sort("time_s")
    interpolated = whole.with_columns(pl.col("power_w").interpolate_by("time_s"))
    return interpolated.filter(pl.col("time_s").is_between(start_s, end_s))


def resample(trace: pl.DataFrame, every_s: float) -> pl.DataFrame:
    """Time-binned means at a fixed step; a bin without rows stays out, so gaps remain gaps."""
    if not every_s > 0:
        raise UsageError(f"the step must be a positive number of seconds, not {every_s:g}")
    numbers = (pl.col("time_s") / every_s).floor().alias("bin")
    means = [
        pl.col(name).mean() for name in trace.columns
        if name not in ("time_s", "tick_s", "power_tick_s", "throttle")
    ]
    return (
        trace.group_by(numbers, maintain_order=True).agg(*means)
        .with_columns(((pl.col("bin") + 0.5) * every_s).alias("time_s"))
        .select("time_s", pl.exclude("time_s", "bin"))
    )
