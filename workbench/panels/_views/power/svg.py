"""The still picture of a power trace: power with its limit, SM clock and utilisation over seconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..._core.svg import INK, LETTER, WIDTH, Frame, Pen, Picture, ShadedSpan
from ..._core.theme import colour, dash
from .series import Rows, thin

POWER_HEIGHT, ROW_HEIGHT, SMALL_HEIGHT = 170, 40, 44
TOGETHER = 2  # GPUs whose power is told apart in one frame; more get a row each
# From so many swings on in a picture, of so much of the highest power, and so many seconds, they are not told
# apart: lowest, mean and highest are drawn instead.
SWINGS, SWING, LONG_S = 140, 0.1, 20.0
POINTS = 900  # of one line: more would not be seen, and the notebook carries them


class TraceLine(NamedTuple):
    """One GPU in the picture; of a long run the mean power of each second (`Series.means`) too."""

    number: int
    name: str
    rows: Rows
    means: Rows | None = None

    @property
    def pen(self) -> Pen:
        return Pen(colour(self.number), 1.1, dash(self.number))


class VerticalMark(NamedTuple):
    """A vertical line with a few words."""

    time_s: float
    text: str


class _Plot(NamedTuple):
    """What one frame shows."""

    name: str
    column: int
    lines: Sequence[TraceLine]
    height: int
    high: float
    ticks: int


def trace_picture(
    title: str, lines: Sequence[TraceLine], marks: Sequence[VerticalMark], end_s: float,
    spans: Sequence[ShadedSpan] = (),
) -> Picture:
    """Power with its limit, SM clock and utilisation over seconds; more can be drawn below.

    Args:
        title: Its heading.
        lines: The GPUs.
        marks: Vertical lines with words.
        end_s: Where the time axis ends.
        spans: Iterations, on whose ground the power is drawn.
    """
    bins = max(100, POINTS // 2 // len(lines))
    long = {line.number for line in lines if line.means is not None and _crowded(line.rows, end_s)}
    marks = sorted(marks)
    step_s = max(1, -(-int(end_s) // (bins // 2)))  # of a mean that is drawn
    lines = [
        line._replace(rows=thin(line.rows, bins), means=None if line.means is None else
                      _over(line.means, step_s)) for line in lines
    ]
    span = (0.0, max(end_s, 1e-3))
    highest_w = max(_highest(lines, 1), _highest(lines, 2)) * 1.1
    together = len(lines) <= TOGETHER
    plots: list[_Plot] = []
    if together:
        plots.append(_Plot("Power (W); dashed: its limit", 1, lines, POWER_HEIGHT, highest_w, 5))
    else:
        plots += [_Plot(f"{line.name} (W)", 1, [line], ROW_HEIGHT, highest_w, 2) for line in lines]
    plots.append(_Plot("SM clock (MHz)", 3, lines, SMALL_HEIGHT, _highest(lines, 3) * 1.1, 2))
    plots.append(_Plot("Utilisation (%)", 4, lines, SMALL_HEIGHT, 105.0, 2))

    picture = Picture(title)
    picture.y = 22.0
    if together and len(lines) > 1:
        picture.legend((line.name, line.pen) for line in lines)
    for plot in plots:
        if not any((~np.isnan(line.rows[:, plot.column])).any() for line in plot.lines):
            continue
        picture.y += 16
        frame = picture.frame(plot.height, span, (0.0, plot.high or 1.0))
        name = plot.name
        if plot.column == 1 and long & {line.number for line in plot.lines}:
            name += f"; line: mean of {step_s} s, band: lowest to highest"
        if spans and plot.column == 1 and frame.narrow(spans):
            name += "; too many iterations to be drawn"
        elif spans and plot.column == 1:
            frame.bands(spans)
            name += "; bands: iterations" + ", darker: pauses" * any(span.pause for span in spans)
        frame.axes(name, plot.ticks, None if together or len(plot.lines) > 1 else plot.lines[0].pen)
        for number, mark in enumerate(marks):
            next_s = marks[number + 1].time_s if number + 1 < len(marks) else None
            _mark(frame, mark, next_s, named=plot is plots[0])
        for line in plot.lines:
            banded = line.number in long and plot.column == 1
            _line(frame, line, plot.column, alone=len(plot.lines) == 1, banded_s=step_s * banded)
        picture.y += plot.height + 4
    picture.frame(0, span, (0.0, 1.0)).below("seconds since the start", 8)
    picture.y += 34
    return picture


def _line(frame: Frame, line: TraceLine, column: int, *, alone: bool, banded_s: int) -> None:
    times, values = line.rows[:, 0], line.rows[:, column] * (100.0 if column == 4 else 1.0)
    if banded_s and line.means is not None:
        frame.band(*_extremes(line.rows, line.means[:, 0], banded_s), line.pen.ink, opacity=0.3)
        frame.line(line.means[:, 0], line.means[:, 1], line.pen._replace(width=1.6))
    else:
        frame.line(times, values, line.pen._replace(width=1.4 if column == 1 else 1.1))
    if column == 1:
        frame.line(times, line.rows[:, 2], Pen(INK if alone else line.pen.ink, 1.0, (5, 4)), steps=True)


def _crowded(rows: Rows, end_s: float) -> bool:
    """Whether power swings so often that a line would be a block."""
    power = rows[~np.isnan(rows[:, 1]), 1]
    if end_s < LONG_S or not len(power):
        return False
    off = power - power.mean()
    sides = np.sign(off[np.abs(off) > SWING * power.max()])
    return int(np.count_nonzero(np.diff(sides))) > SWINGS


def _over(means: Rows, step_s: int) -> Rows:
    """Means of single seconds as means of `step_s` seconds: their middles (s) and W."""
    which = (means[:, 0] // step_s).astype(int)
    steps, counts = np.unique(which, return_counts=True)
    sums = np.bincount(which, means[:, 1])[steps] if len(which) else np.empty(0)
    return np.column_stack([(steps + 0.5) * step_s, sums / counts]).astype(np.float32)


def _extremes(rows: Rows, middles: Rows, step_s: int) -> tuple[Rows, Rows, Rows]:
    """Lowest and highest power of the `step_s` seconds around each middle: times, W, W."""
    power = rows[~np.isnan(rows[:, 1])]
    edges = np.searchsorted(power[:, 0], np.append(middles - step_s / 2, middles[-1:] + step_s / 2))
    some = np.flatnonzero(np.diff(edges) > 0)
    parts = [power[edges[n]:edges[n + 1], 1] for n in some]
    low, high = ([float(pick(part)) for part in parts] for pick in (np.min, np.max))
    return middles[some], np.array(low, np.float32), np.array(high, np.float32)


def _mark(frame: Frame, mark: VerticalMark, next_s: float | None, *, named: bool) -> None:
    if not frame.holds(mark.time_s):
        return
    frame.upright(mark.time_s, Pen(dashes=(2, 3), opacity=0.45))
    room = (WIDTH if next_s is None else frame.x(next_s)) - frame.x(mark.time_s)
    fits = room > LETTER * len(mark.text) + 6
    if named and (fits or next_s is None):  # the last one turns to the left where it must
        dx, anchor = (4, "") if fits else (-4, "end")
        frame.label(mark.time_s, frame.y_span[1], mark.text, dx=dx, dy=10, anchor=anchor)


def _highest(lines: Sequence[TraceLine], column: int) -> float:
    return max([float(np.nanmax(line.rows[:, column], initial=0.0)) for line in lines], default=0.0)
