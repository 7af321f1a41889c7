"""From a recorder's rows to what the sensors said at each refresh (`estimate.Steps`), and whether that is
enough for a window.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..records import Edge, Window
from .energy_estimate import SensorUpdates

Array = np.ndarray[Any, Any]


def as_steps(
    rows: Array, window_s: float, closing: Edge | None = None, most_w: float = 0.0
) -> SensorUpdates | None:
    """One entry per refresh of the sensor; None while its refreshes are not known.

    The moments of the refreshes are put on one line where they lie on one: what is left of their error is
    then the same at both edges of a window and cancels. `closing` is a counter reading at the window's end,
    which may show a refresh that no row has seen yet; `most_w` the most that the GPU may draw.
    """
    rows = rows[np.isfinite(rows["tick_s"])]
    if len(rows) < 3:
        return None
    ticks = rows["tick_s"]
    gaps = np.diff(ticks)
    gaps = gaps[gaps > 0.004]
    if not len(gaps):
        return None
    period_s = float(np.median(gaps))
    numbers, first = np.unique(np.round((ticks - ticks[-1]) / period_s).astype(np.int64), return_index=True)
    tick_s = _on_one_line(numbers, ticks[first], rows["tick_error_s"][first])
    energy_j, power_w, power_tick_s = (
        rows[name][first].astype(np.float64) for name in ("energy_j", "power_w", "power_tick_s")
    )
    if closing is not None and math.isfinite(closing.energy_j) and closing.energy_j > energy_j[-1]:
        later, into = divmod((closing.time_s - tick_s[-1]) / period_s, 1.0)
        # A reading just before a refresh may have been answered just after it.
        if later >= 1 and into * period_s < period_s - 0.005:
            tick_s = np.append(tick_s, tick_s[-1] + later * period_s)
            energy_j = np.append(energy_j, closing.energy_j)
            power_w, power_tick_s = np.append(power_w, math.nan), np.append(power_tick_s, math.nan)
    error_s = float(np.median(rows["tick_error_s"]))
    return SensorUpdates(tick_s, energy_j, power_w, power_tick_s, window_s, period_s, error_s, most_w)


def reaches(steps: SensorUpdates, window: Window) -> bool:
    """Whether the sensor was followed from before the window to (nearly) its end, and its counter never
    went back.
    """
    assert window.end_s is not None
    slack_s = 2.5 * steps.period_s
    near_start = steps.tick_s[(steps.tick_s <= window.start_s) & (steps.tick_s > window.start_s - slack_s)]
    inside = (steps.tick_s > window.start_s - slack_s) & (steps.tick_s < window.end_s + slack_s)
    forward = not np.any(np.diff(steps.energy_j[inside]) < 0)
    return len(near_start) > 0 and steps.tick_s[-1] > window.end_s - slack_s and forward


def by_readings(rows: Array, window: Window) -> tuple[float, float] | None:
    """Energy and the half width of its 95 % interval from power readings alone, by trapezoids with
    interpolated edges.

    For a sensor whose refreshes are not known (it showed the same value all the time, or refreshes at no
    fixed pace). None where no readings surround the window.
    """
    assert window.end_s is not None
    rows = rows[np.isfinite(rows["power_w"])]
    times, power = rows["time_s"], rows["power_w"].astype(np.float64)
    if len(rows) < 2 or times[0] > window.start_s or times[-1] < window.end_s - 0.3:
        return None
    inside = (times > window.start_s) & (times < window.end_s)
    edges = np.interp([window.start_s, window.end_s], times, power)
    at_s = np.concatenate([[window.start_s], times[inside], [window.end_s]])
    watts = np.concatenate([edges[:1], power[inside], edges[1:]])
    spans = np.diff(at_s)
    energy_j = float(np.sum(spans * (watts[1:] + watts[:-1]) / 2))
    # Between two readings power may have been either's all along.
    doubt = np.abs(np.diff(watts)) * spans / 2
    return energy_j, 1.96 * float(np.sqrt(np.sum(doubt**2))) + 0.02 * energy_j / max(len(watts), 1)


def gaps(rows: Array, update_s: float | None) -> int:
    """How often sampling paused for far longer than the sensor's pace."""
    return int(np.sum(np.diff(rows["time_s"]) > 3.5 * max(update_s or 0.1, 0.1))) if len(rows) > 1 else 0


def _on_one_line(numbers: Array, times: Array, errors: Array) -> Array:
    """Refresh times by a weighted straight line through them, if they keep to it; as they are, if the
    sensor drifts.
    """
    if len(times) < 4:
        return times
    weight = 1.0 / np.maximum(errors.astype(np.float64), 1e-6)
    slope, offset = np.polyfit(numbers, times - times[-1], 1, w=weight)
    line: Array = times[-1] + offset + slope * numbers
    return line if np.max(np.abs(line - times)) < 4.0 * float(np.max(errors)) + 2e-4 else times
