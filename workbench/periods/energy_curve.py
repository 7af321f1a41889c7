"""The energy since the beginning of a trace, as a curve to read off at any moment. Pure functions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import polars as pl

Array = np.ndarray[Any, Any]


def energy_curve(trace: pl.DataFrame) -> tuple[Array, Array]:
    """Moments, and the energy since the first of them: by the counter's steps where the trace has them, else
    by trapezoids.

    Between two steps of the counter power is taken as steady; before the first and after the last step, and
    where the counter goes back (a reloaded driver), the power readings go on.
    """
    read = trace.select("time_s", "power_w").drop_nulls().sort("time_s")
    times, power = read["time_s"].to_numpy(), read["power_w"].to_numpy()
    area = area_below(times, power)
    ticks, counter = counter_steps(trace)
    if len(ticks) < 2:
        return times, area
    gains = np.diff(counter)
    by_power = np.diff(np.interp(ticks, times, area)) if len(times) else np.zeros(len(gains))
    energy = np.concatenate([[0.0], np.cumsum(np.where(gains >= 0, gains, by_power))])
    if not len(times):
        return ticks, energy
    before, after = times < ticks[0], times > ticks[-1]
    at_first, at_last = np.interp([ticks[0], ticks[-1]], times, area)
    whole = np.concatenate([area[before] - at_first, energy, energy[-1] + area[after] - at_last])
    return np.concatenate([times[before], ticks, times[after]]), whole - whole[0]


def area_below(times_s: Array, values: Array) -> Array:
    """The integral of a signal from its first reading to each one, by trapezoids; (n,) like the readings."""
    steps = 0.5 * (values[1:] + values[:-1]) * np.diff(times_s)
    return np.concatenate([[0.0], np.cumsum(steps)]) if len(times_s) else np.empty(0)


def counter_steps(trace: pl.DataFrame) -> tuple[Array, Array]:
    """Times (s) and values (J) of the counter's steps: at its refreshes if known, else at new values."""
    if "energy_j" not in trace.columns:
        return np.empty(0), np.empty(0)
    ticked = trace["tick_s"].null_count() < trace.height if "tick_s" in trace.columns else False
    at = "tick_s" if ticked else "time_s"
    known = trace.select(pl.col(at).alias("at"), "energy_j").drop_nulls().sort("at")
    known = known.unique("at", keep="first", maintain_order=True)
    if not ticked:
        known = known.filter(pl.col("energy_j") != pl.col("energy_j").shift(1).fill_null(math.nan))
    return known["at"].to_numpy(), known["energy_j"].to_numpy()
