"""Temperature, memory and throttling of a run, folded away below its power until a reader opens them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ....records import throttle_names
from ..._core.svg import Pen, Picture, Span
from ..._core.theme import colour, dash

if TYPE_CHECKING:
    import polars as pl

BINS = 300  # of one line: any number from 150 to 600 looks the same
HEIGHT, BAR = 48, 6
READINGS = (("Temperature (°C)", "temperature_c", 1.0), ("Memory clock (MHz)", "mem_clock_mhz", 1.0),
            ("Memory busy (%)", "memory_utilisation", 100.0))
SUMMARY = "<summary style='cursor:pointer;font-size:12px'>temperature, memory, throttling</summary>"


class GpuTrace(NamedTuple):
    """The readings of one GPU: its place in the picture, its name, and a frame of `trace.SCHEMA`."""

    number: int
    name: str
    trace: pl.DataFrame


def conditions(gpus: Sequence[GpuTrace], start_s: float, end_s: float) -> str:
    """Temperature, memory and reasons of throttling over seconds, behind a line that opens them.

    HTML without scripts; empty if none of them is known.

    Args:
        gpus: Their traces, on one clock.
        start_s, end_s: The shown range of time, on that clock.
    """
    length_s = max(end_s - start_s, 1e-3)
    bins = min(BINS, max([1, *(gpu.trace.height for gpu in gpus)]))
    binned = [(gpu, _binned(gpu.trace, start_s, length_s, bins)) for gpu in gpus]
    picture = Picture("Temperature, memory and throttling", size=0)
    picture.y = 4.0
    if len(gpus) > 1:
        picture.legend((each.name, Pen(colour(each.number), 1.4, dash(each.number))) for each in gpus)
    began_y = picture.y
    for name, column, scale in READINGS:
        known = [(gpu.number, means.drop_nulls(column)) for gpu, means in binned]
        values = [scale * value for _, means in known for value in means[column]]
        if not values:
            continue
        picture.y += 18
        frame = picture.frame(HEIGHT, (0.0, length_s), (0.0, 1.1 * max(values) or 1.0))
        frame.axes(name, 2)
        for number, means in known:
            frame.line(means["at_s"], means[column] * scale, Pen(colour(number), 1.2, dash(number)))
        picture.y += HEIGHT + 4
    throttled = [(gpu, *row) for gpu, means in binned for row in _throttled(means, length_s / bins)]
    for gpu, reason, share, held_s in throttled:
        picture.y += 18
        frame = picture.frame(BAR, (0.0, length_s), (0.0, 1.0))
        who = f"{gpu.name}: " * (len(gpus) > 1)
        percent = f"{100 * share:.0f}" if share >= 0.1 else f"{100 * share:.2g}"
        frame.name(f"{who}throttled by {reason}, {percent} % of the time")
        frame.boxes(((*each, None) for each in held_s), colour(gpu.number), opacity=0.8)
        picture.y += BAR + 4
    if picture.y == began_y:
        return ""
    picture.frame(0, (0.0, length_s), (0.0, 1.0)).below("seconds since the start", 8)
    picture.y += 34
    read = any(len(each) for _, means in binned for each in means["throttle"])
    never = "<div style='font-size:12px'>never throttled</div>" if read and not throttled else ""
    return f"<details>{SUMMARY}{picture.svg()}{never}</details>"


def _binned(trace: pl.DataFrame, start_s: float, length_s: float, bins: int) -> pl.DataFrame:
    """Means of the readings, and all reasons of throttling, over equal stretches since the start."""
    import polars as pl

    at_s, names = pl.col("at_s"), [column for _, column, _ in READINGS]
    columns = [name for name in (*names, "throttle") if name not in trace.columns]
    missing = [pl.lit(None, pl.Float64).alias(name) for name in columns]
    since = trace.with_columns(*missing, at_s=pl.col("time_s") - start_s)
    groups = since.filter(at_s.is_between(0.0, length_s)).group_by(
        bin=(at_s / length_s * bins).floor().cast(int), maintain_order=True
    )
    means = pl.col(names).fill_nan(None).mean()
    return groups.agg(at_s.mean(), means, pl.col("throttle").drop_nulls(), rows=pl.len())


def _throttled(means: pl.DataFrame, width_s: float) -> list[tuple[str, float, list[Span]]]:
    """Reasons of throttling, each with its share of the readings and stretches in seconds since the start."""
    places: dict[str, list[int]] = {}
    for place, bits in means.select("bin", "throttle").iter_rows():
        for value in bits:
            for reason in throttle_names(int(value)):
                places.setdefault(reason, []).append(place)
    found = []
    for reason, each in places.items():
        within = np.bincount(each, minlength=max(each) + 2) > 0
        edges_s = np.flatnonzero(np.diff(within, prepend=False)).reshape(-1, 2) * width_s
        share = len(each) / int(means["rows"].sum())
        found.append((reason, share, [(float(one), float(end)) for one, end in edges_s]))
    return found
