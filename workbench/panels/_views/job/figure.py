"""The GPUs of a job as lanes over its mean iteration: their power, and where they wait for the last one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ....jobs.records import GpuWait, JobWaiting
from ....jobs.report import GpuName, wait_text
from ....logbook.quantities import format_seconds
from ..._core.svg import ROW, Frame, Pen, Picture
from ..._core.theme import colour

LANE = 22  # pixels of a lane with a name and a text in it
MOST_LANES = 16  # more GPUs are sorted, and only the slowest and the fastest have lanes


class GpuLane(NamedTuple):
    """One GPU of the picture: its lower edge and height in pixels; `thin` ones have no name and no power."""

    gpu: GpuWait
    bottom: float
    height: float
    thin: bool = False

    @property
    def middle(self) -> float:
        return self.bottom + self.height / 2


def arranged(gpus: Sequence[GpuWait]) -> list[GpuLane]:
    """The lanes from the top down: in the order of the GPUs or, if there are many, the slowest first."""
    count, few = len(gpus), len(gpus) <= MOST_LANES
    ends = count if few else MOST_LANES // 4
    wide = min(max(ROW / count, LANE), 3 * LANE) if few else LANE
    if not few:
        gpus = sorted(gpus, key=lambda gpu: -(gpu.work_s or 0.0))
    thin = [not few and ends <= place < count - ends for place in range(count)]
    heights = [ROW / (count - 2 * ends) if each else wide for each in thin]
    tops = np.cumsum(heights)
    return [GpuLane(gpu, float(tops[-1] - top), height, each)
            for gpu, top, height, each in zip(gpus, tops, heights, thin, strict=True)]


def draw_lanes(picture: Picture, waiting: JobWaiting, names: Mapping[str, GpuName]) -> None:
    """Draw the lanes at the end of a picture; nothing where neither powers nor times are known."""
    known = [gpu for gpu in waiting.gpus if gpu.work_s is not None or len(gpu.power_w)]
    if not known or not waiting.iteration_s > 0:
        return
    rows = arranged(waiting.gpus)
    height = rows[0].bottom + rows[0].height
    unit, scale = ("ms", 1000.0) if waiting.iteration_s < 0.9995 else ("s", 1.0)
    top_w = float(np.max(_readings(*known), initial=0.0))
    with picture.row(height):
        frame = picture.frame(height, (0.0, waiting.iteration_s * scale), (0.0, height))
        power = f"Power, each 0 to {top_w:.0f} W" if top_w else "Time of work"
        grey = "; grey: waiting" * any(gpu.wait_s for gpu in known)
        thin = [row for row in rows if row.thin]
        ticks = {row.middle: names[row.gpu.uuid].short for row in rows if not row.thin}
        if thin:
            ticks[(thin[0].middle + thin[-1].middle) / 2] = f"{len(thin)} GPUs"
        frame.axes(power + grey, ticks)
        for row in rows:
            _lane(frame, row, waiting, names[row.gpu.uuid], scale, top_w)
        last = next((row.gpu.work_s for row in rows if row.gpu.uuid == waiting.straggler), None)
        if last is not None:
            frame.upright(last * scale, Pen(dashes=(4, 3), opacity=0.7))
        frame.below(f"{unit} of the mean of {waiting.count} iterations")


def _lane(
    frame: Frame, lane: GpuLane, waiting: JobWaiting, name: GpuName, scale: float, top_w: float
) -> None:
    """One GPU: its power as an area, its waiting as a grey box with words, and texts for the pointer."""
    gpu, bottom, high = lane.gpu, lane.bottom, 0.9 * lane.height
    slow = gpu.uuid == waiting.straggler
    ink, opacity = (colour(1), 0.6) if slow else (colour(0), 0.4)
    work_s, end_s = gpu.work_s, (gpu.work_s or 0.0) + (gpu.wait_s or 0.0)
    text = wait_text(gpu)
    if work_s is not None and gpu.wait_s:
        frame.boxes([(work_s * scale, end_s * scale, (bottom, bottom + high))], opacity=0.2)
    about = f"{name.full}: {f'waits {text}' if text else 'does not wait' if waiting.known else 'power'}"
    if lane.thin or not len(gpu.power_w):
        shown_s = waiting.iteration_s if work_s is None else work_s
        area = [0.0, shown_s * scale], [bottom] * 2, [bottom + (high if lane.thin else 0.6 * high)] * 2
    else:
        edges = np.linspace(0.0, waiting.iteration_s * scale, len(gpu.power_w) + 1)
        levels = bottom + high * np.repeat(np.asarray(gpu.power_w, float), 2) / (top_w or 1.0)
        xs = np.repeat(edges, 2)[1:-1]
        area = xs.tolist(), [bottom] * len(xs), levels.tolist()
        frame.line(xs, levels, Pen(ink, 1.6 if slow else 1.0))
    frame.band(*area, ink, opacity=opacity, title=about)
    _hover(frame, lane, waiting, name, scale)
    if lane.thin:
        return
    if slow:
        others = "the others wait for it" if len(waiting.gpus) > 2 else "the other waits for it"
        frame.label(0.0, bottom, others, dx=6, dy=-5, weight="bold")
    elif text and work_s is not None:
        part_s = waiting.iteration_s / max(len(gpu.power_w), 1)  # left of the part in which the power falls
        short = wait_text(gpu, error=False)
        frame.label(work_s // part_s * part_s * scale, bottom, short, dx=-4, dy=-5, anchor="end")


def _readings(*gpus: GpuWait) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The known powers of GPUs, without the missing ones."""
    return np.array([each for gpu in gpus for each in gpu.power_w if np.isfinite(each)], np.float64)


def _hover(frame: Frame, lane: GpuLane, waiting: JobWaiting, name: GpuName, scale: float) -> None:
    """Texts for the pointer over each part of a lane, in boxes that are not drawn."""
    gpu, text, unit = lane.gpu, wait_text(lane.gpu), "ms" if scale > 1 else "s"
    known = _readings(gpu)
    parts = gpu.power_w if not lane.thin and len(known) else [known.mean() if len(known) else np.nan]
    edges_s = np.linspace(0.0, waiting.iteration_s, len(parts) + 1)
    for start_s, end_s, power_w in zip(edges_s[:-1], edges_s[1:], parts, strict=True):
        middle_s, state = (start_s + end_s) / 2, ""
        if gpu.work_s is not None:
            waits = text and middle_s > gpu.work_s and middle_s <= gpu.work_s + (gpu.wait_s or 0.0)
            works = f"works {format_seconds(gpu.work_s)}"
            state = f"waits {text}" if waits else works if middle_s <= gpu.work_s else "all go on"
            state = f"{works}, waits {text}" if lane.thin and text else state
        hover = {
            "GPU": name.full, "at": f"{start_s * scale:.3g} to {end_s * scale:.3g} {unit}",
            "power": f"{power_w:.0f} W" if np.isfinite(power_w) else "unknown", "state": state,
        }
        box = (float(start_s * scale), float(end_s * scale), (lane.bottom, lane.bottom + lane.height))
        frame.boxes([box], opacity=0.0, hover=hover)
