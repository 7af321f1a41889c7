"""Temperature, memory and throttling of a run, folded away below its power until somebody opens them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ....records import throttle_names
from ..._core.svg import Pen, Picture, Span
from ..._core.theme import colour, dash

BINS = 300  # of one line
HEIGHT, BAR = 48, 6
READINGS = (("Temperature (°C)", "temperature_c", 1.0), ("Memory clock (MHz)", "mem_clock_mhz", 1.0),
            ("Memory busy (%)", "memory_utilisation", 100.0))
SUMMARY = "<summary style='cursor:pointer;font-size:12px'>temperature, memory, throttling</summary>"


Array = np.ndarray[Any, Any]


class GpuTrace(NamedTuple):
    """What was read of one GPU: its place in the picture, its name, and a table with the columns of
    `trace.SCHEMA` (a frame, or rows as they are sampled).
    """

    number: int
    name: str
    trace: Any


def conditions(gpus: Sequence[GpuTrace], start_s: float, end_s: float) -> str:
    """Temperature, memory and reasons of throttling over seconds, behind a line that opens them: HTML
    without scripts; empty where none of them is known.

    Args:
        gpus: Their traces, on one clock.
        start_s, end_s: What is shown, on that clock.
    """
    length_s = max(end_s - start_s, 1e-3)
    picture = Picture("Temperature, memory and throttling", size=0)
    picture.y = 4.0
    if len(gpus) > 1:
        picture.legend((each.name, Pen(colour(each.number), 1.4, dash(each.number))) for each in gpus)
    drawn = 0
    for name, column, scale in READINGS:
        lines = [(each.number, _binned(each.trace, column, start_s, length_s)) for each in gpus]
        if not any(len(line) for _, line in lines):
            continue
        drawn += 1
        picture.y += 18
        high = scale * max(float(line[:, 1].max()) for _, line in lines if len(line))
        frame = picture.frame(HEIGHT, (0.0, length_s), (0.0, 1.1 * high or 1.0))
        frame.axes(name, 2)
        for number, line in lines:
            frame.line(line[:, 0], scale * line[:, 1], Pen(colour(number), 1.2, dash(number)))
        picture.y += HEIGHT + 4
    throttled = [(each, *row) for each in gpus for row in _throttled(each.trace, start_s, length_s)]
    for gpu, reason, share, held_s in throttled:
        picture.y += 18
        frame = picture.frame(BAR, (0.0, length_s), (0.0, 1.0))
        who = f"{gpu.name}: " * (len(gpus) > 1)
        percent = f"{100 * share:.0f}" if share >= 0.1 else f"{100 * share:.2g}"
        frame.name(f"{who}throttled by {reason}, {percent} % of the time")
        frame.boxes(((*each, None) for each in held_s), colour(gpu.number), opacity=0.8)
        picture.y += BAR + 4
    if not drawn and not throttled:
        return ""
    picture.frame(0, (0.0, length_s), (0.0, 1.0)).below("seconds since the start", 8)
    picture.y += 34
    known = any(np.isfinite(_column(each.trace, "throttle")).any() for each in gpus)
    never = "<div style='font-size:12px'>never throttled</div>" if known and not throttled else ""
    return f"<details>{SUMMARY}{picture.svg()}{never}</details>"


def _column(trace: Any, name: str) -> Array:
    """A column; NaN where a reading, or the column, is missing."""
    names = trace.dtype.names if isinstance(trace, np.ndarray) else trace.columns
    return np.asarray(trace[name], np.float64) if name in names else np.full(len(trace), np.nan)


def _since(trace: Any, start_s: float, length_s: float) -> tuple[Array, Array]:
    """Seconds since the start of what is shown, and which rows those are."""
    since_s = _column(trace, "time_s") - start_s
    inside = (since_s >= 0.0) & (since_s <= length_s)
    return since_s[inside], inside


def _binned(trace: Any, column: str, start_s: float, length_s: float) -> Array:
    """Means of a reading over equal stretches: seconds since the start, and the reading's unit; (n, 2)."""
    since_s, inside = _since(trace, start_s, length_s)
    values = _column(trace, column)[inside]
    since_s, values = since_s[np.isfinite(values)], values[np.isfinite(values)]
    stretch = (since_s / length_s * BINS).astype(int)
    counts = np.bincount(stretch)
    some = np.flatnonzero(counts)
    sums = np.column_stack([np.bincount(stretch, each)[some] for each in (since_s, values)])
    return sums / counts[some, None]


def _throttled(trace: Any, start_s: float, length_s: float) -> list[tuple[str, float, list[Span]]]:
    """What throttled a GPU, its share of the readings, and when: stretches in seconds since the start."""
    since_s, inside = _since(trace, start_s, length_s)
    bits = np.nan_to_num(_column(trace, "throttle")[inside]).astype(int)
    names = {value: throttle_names(value) for value in np.unique(bits).tolist()}
    bins = max(min(BINS, len(since_s)), 1)
    which = np.minimum((since_s / length_s * bins).astype(int), bins - 1)
    found = []
    for reason in dict.fromkeys(name for reasons in names.values() for name in reasons):
        held = np.isin(bits, [value for value, reasons in names.items() if reason in reasons])
        within = np.zeros(bins + 2)
        within[which[held] + 1] = 1
        edges_s = np.flatnonzero(np.diff(within)).reshape(-1, 2) * (length_s / bins)
        found.append((reason, float(held.mean()), [(one, end) for one, end in edges_s.tolist()]))
    return found
