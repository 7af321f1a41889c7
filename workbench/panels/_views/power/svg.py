"""The still picture of a power trace: power with its limit, SM clock and utilisation over seconds."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

from ..._core.svg import INK, LETTER, WIDTH, Frame, Pen, Picture, ShadedSpan
from ..._core.theme import colour, dash
from .series import COLUMNS, LIMIT, WINDOW_S, Rows, over, readings, thin

POWER_HEIGHT, ROW_HEIGHT, SMALL_HEIGHT = 170, 40, 44
TOGETHER = 2  # GPUs that share one frame of power; more get a row each
COLUMN = 4  # pixels of one mean
POINTS = 900  # of one line: any number from 500 to 2000 looks the same, and the notebook carries them


class TraceLine(NamedTuple):
    """One GPU in the picture; a long run is drawn as the power of each second (`Series.seconds`)."""

    number: int
    name: str
    rows: Rows
    seconds: Rows | None = None

    @property
    def pen(self) -> Pen:
        return Pen(colour(self.number), 1.1, dash(self.number))


class VerticalMark(NamedTuple):
    """A vertical line with a few words."""

    time_s: float
    text: str


class Plot(NamedTuple):
    """A frame of the picture and of the live view: its column, and the places of its GPUs."""

    title: str
    column: str
    gpus: Sequence[int]
    height: int
    ticks: int


def plots_of(names: Sequence[str]) -> list[Plot]:
    """The frames for GPUs of these names, from the top down: power, then clocks and utilisation."""
    every = range(len(names))
    power = [Plot("Power (W); dashed: its limit", "power_w", every, POWER_HEIGHT, 5)]
    if len(names) > TOGETHER:
        power = [Plot(f"{name} (W)", "power_w", [n], ROW_HEIGHT, 2) for n, name in enumerate(names)]
    return [
        *power, Plot("SM clock (MHz)", "sm_clock_mhz", every, SMALL_HEIGHT, 2),
        Plot("Utilisation (%)", "utilisation", every, SMALL_HEIGHT, 2),
    ]


def trace_picture(
    title: str, lines: Sequence[TraceLine], marks: Sequence[VerticalMark], end_s: float,
    spans: Sequence[ShadedSpan] = (), *, only: Collection[str] = COLUMNS, heading: bool = True,
    iteration_s: float = 0.0,
) -> Picture:
    """Power with its limit, SM clock and utilisation over seconds; more can be drawn below.

    Args:
        title: Its heading, and its name for screen readers.
        lines: The GPUs.
        marks: Vertical lines with words; new power limits are marked anyway.
        end_s: End of the time axis.
        spans: Iterations, drawn as bands behind the power.
        only: The columns that are drawn.
        heading: Whether the title is drawn.
        iteration_s: Seconds of an iteration, if there are no spans.
    """
    long = end_s > WINDOW_S
    whole = [line.seconds if long and line.seconds is not None else readings(line.rows) for line in lines]
    many = long and any(len(line.rows) > POINTS for line in lines)
    bins = max(100, POINTS // 2 // len(lines))
    lines = [line._replace(rows=thin(line.rows, bins)) for line in lines]
    marks, span = sorted([*marks, *_limit_changes(lines)]), (0.0, max(end_s, 1e-3))
    picture = Picture(title, size=13 * heading)
    picture.y = 22.0 * heading
    if 1 < len(lines) <= TOGETHER:
        picture.legend((line.name, line.pen) for line in lines)
    plots = [plot for plot in plots_of([line.name for line in lines]) if plot.column in only]
    for plot in plots:
        shown, column = [lines[n] for n in plot.gpus], COLUMNS.index(plot.column)
        if all(np.isnan(line.rows[:, column]).all() for line in shown):
            continue
        power, scale = plot.column == "power_w", 100.0 if plot.column == "utilisation" else 1.0
        high = max(_highest(lines, column), _highest(lines, LIMIT) * power)
        picture.y += 16
        frame = picture.frame(plot.height, span, (0.0, 1.08 * scale * high or 1.0))
        narrow_s = frame.narrow(spans, iteration_s)
        means = power and (many or narrow_s > 0)
        name = plot.title
        if means:
            pixels_s = end_s * COLUMN / (frame.right - frame.left)
            step_s = _step(pixels_s, narrow_s, whole_seconds=long)
            name += f"; line: mean of {step_s:.3g} s, band: lowest to highest"
        elif power and spans:
            frame.bands(spans)
            name += "; bands: iterations" + ", darker: pauses" * any(span.pause for span in spans)
        frame.axes(name, plot.ticks, shown[0].pen if len(shown) < len(lines) else None)
        _marks(frame, marks, named=plot is plots[0])
        for line, number in zip(shown, plot.gpus, strict=True):
            if means and len(whole[number]):
                ended_s = end_s // step_s * step_s or end_s  # of means over whole iterations
                times, mean, low, high = over(whole[number][whole[number][:, 0] < ended_s], step_s).T
                frame.band(times, low, high, line.pen.ink, opacity=0.3)
                frame.line(times, mean, line.pen._replace(width=1.6))
            else:
                width = 1.4 if power else 1.1
                frame.line(line.rows[:, 0], scale * line.rows[:, column], line.pen._replace(width=width))
            if power:
                ink = INK if len(shown) == 1 else line.pen.ink
                frame.line(line.rows[:, 0], line.rows[:, LIMIT], Pen(ink, 1.0, (5, 4)), steps=True)
        picture.y += plot.height + 4
    picture.frame(0, span, (0.0, 1.0)).below("seconds since the start", 8)
    picture.y += 34
    return picture


def _step(pixels_s: float, iteration_s: float, *, whole_seconds: bool) -> float:
    """Seconds of one mean: some pixels at least, and a whole number of narrow iterations."""
    step_s = math.ceil(pixels_s / iteration_s) * iteration_s if iteration_s else pixels_s
    return float(math.ceil(step_s)) if whole_seconds else step_s


def _limit_changes(lines: Sequence[TraceLine]) -> list[VerticalMark]:
    """Each new power limit as a mark, with its GPU if there are several."""
    found = []
    for line in lines:
        known = line.rows[~np.isnan(line.rows[:, LIMIT])]
        new = np.flatnonzero(np.abs(np.diff(known[:, LIMIT])) > 0.5) + 1
        who = f"{line.name} " * (len(lines) > 1)
        found += [VerticalMark(float(row[0]), f"{who}{row[LIMIT]:g} W") for row in known[new]]
    return found


def _marks(frame: Frame, marks: Sequence[VerticalMark], *, named: bool) -> None:
    """Vertical lines, with words if there is room before the next one; only the last one of a drag."""
    shown = [mark for mark in marks if frame.holds(mark.time_s)]
    for mark, after in itertools.zip_longest(shown, shown[1:]):
        room = (WIDTH if after is None else frame.x(after.time_s)) - frame.x(mark.time_s)
        if after is not None and room < LETTER:
            continue
        frame.upright(mark.time_s, Pen(dashes=(2, 3), opacity=0.45))
        if named and (after is None or room > LETTER * len(mark.text) + 6):
            frame.label(mark.time_s, frame.y_span[1], mark.text, dx=4, dy=10, rotated=True)


def _highest(lines: Sequence[TraceLine], column: int) -> float:
    return max([float(np.nanmax(line.rows[:, column], initial=0.0)) for line in lines], default=0.0)
