"""The still picture of a power trace: power with its limit, SM clock and utilisation over seconds."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..._core.svg import INK, LETTER, WIDTH, Frame, Pen, Picture, ShadedSpan
from ..._core.theme import colour, dash
from .series import WINDOW_S, Rows, over, thin

POWER_HEIGHT, ROW_HEIGHT, SMALL_HEIGHT = 170, 40, 44
TOGETHER = 2  # GPUs whose power is told apart in one frame; more get a row each
POINTS = 900  # of one line: any number from 500 to 2000 looks the same, and the notebook carries them


class TraceLine(NamedTuple):
    """One GPU in the picture; the power of each second (`Series.seconds`) is drawn of a long run."""

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


def trace_picture(
    title: str, lines: Sequence[TraceLine], marks: Sequence[VerticalMark], end_s: float,
    spans: Sequence[ShadedSpan] = (),
) -> Picture:
    """Power with its limit, SM clock and utilisation over seconds; more can be drawn below.

    Args:
        title: Its heading.
        lines: The GPUs.
        marks: Vertical lines with words; new power limits have theirs anyway.
        end_s: Where the time axis ends.
        spans: Iterations, on whose ground the power is drawn.
    """
    bins = max(100, POINTS // 2 // len(lines))
    step_s = max(1, -(-int(end_s) // (bins // 2)))  # of a mean that is drawn
    long = end_s > WINDOW_S and any(line.seconds is not None and len(line.rows) > POINTS for line in lines)
    lines = [line._replace(rows=thin(line.rows, bins)) for line in lines]
    marks, span = sorted([*marks, *_limit_changes(lines)]), (0.0, max(end_s, 1e-3))
    highest_w = max(_highest(lines, 1), _highest(lines, 2)) * 1.1
    together = len(lines) <= TOGETHER
    apart = [(f"{line.name} (W)", [line], ROW_HEIGHT, 2) for line in lines]
    power = [("Power (W); dashed: its limit", lines, POWER_HEIGHT, 5)] if together else apart
    picture = Picture(title)
    picture.y = 22.0
    if together and len(lines) > 1:
        picture.legend((line.name, line.pen) for line in lines)
    for number, (name, shown, height, ticks) in enumerate(power):
        picture.y += 16
        frame = picture.frame(height, span, (0.0, highest_w or 1.0))
        if long:
            name += f"; line: mean of {step_s} s, band: lowest to highest"
        if spans and frame.narrow(spans):
            name += "; too many iterations to be drawn"
        elif spans:
            frame.bands(spans)
            name += "; bands: iterations" + ", darker: pauses" * any(span.pause for span in spans)
        frame.axes(name, ticks, None if together else shown[0].pen)
        _marks(frame, marks, named=not number)
        for line in shown:
            if long and line.seconds is not None:
                times, mean, low, high = over(line.seconds, step_s).T
                frame.band(times, low, high, line.pen.ink, opacity=0.3)
                frame.line(times, mean, line.pen._replace(width=1.6))
            else:
                frame.line(line.rows[:, 0], line.rows[:, 1], line.pen._replace(width=1.4))
            ink = INK if len(shown) == 1 else line.pen.ink
            frame.line(line.rows[:, 0], line.rows[:, 2], Pen(ink, 1.0, (5, 4)), steps=True)
        picture.y += height + 4
    for name, column, high in (("SM clock (MHz)", 3, _highest(lines, 3) * 1.1), ("Utilisation (%)", 4, 1.05)):
        if all(np.isnan(line.rows[:, column]).all() for line in lines):
            continue
        picture.y += 16
        scale = 100.0 if column == 4 else 1.0
        frame = picture.frame(SMALL_HEIGHT, span, (0.0, scale * high or 1.0))
        frame.axes(name, 2)
        _marks(frame, marks, named=False)
        for line in lines:
            frame.line(line.rows[:, 0], scale * line.rows[:, column], line.pen)
        picture.y += SMALL_HEIGHT + 4
    picture.frame(0, span, (0.0, 1.0)).below("seconds since the start", 8)
    picture.y += 34
    return picture


def _limit_changes(lines: Sequence[TraceLine]) -> list[VerticalMark]:
    """Each new power limit as a mark, with its GPU where there are several."""
    found = []
    for line in lines:
        known = line.rows[~np.isnan(line.rows[:, 2])]
        new = np.flatnonzero(np.abs(np.diff(known[:, 2])) > 0.5) + 1
        who = f"{line.name} " * (len(lines) > 1)
        found += [VerticalMark(float(row[0]), f"{who}{row[2]:g} W") for row in known[new]]
    return found


def _marks(frame: Frame, marks: Sequence[VerticalMark], *, named: bool) -> None:
    """Vertical lines, and the words of those that have room before the next one; of a drag the last one."""
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
