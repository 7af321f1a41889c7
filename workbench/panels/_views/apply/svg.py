"""The power around a change as a small SVG, and the whole panel as HTML without scripts."""

from __future__ import annotations

import html

from ...._html import table
from ....device.control import AFTER_S, BEFORE_S, StepResponse
from ..._core.svg import Pen, Picture
from ..._core.theme import colour
from .model import ApplyView

WIDTH, HEIGHT = 460, 110  # fits a panel in a window of 900 pixels
NONE_YET = "After Apply or Undo the power around the change stands here"


def power(followed: StepResponse | None) -> str:
    """One `<svg>` element: watts over the seconds around a change, and both levels; a sentence before one."""
    if followed is None or not len(followed.time_s):
        return f'<div class="workbench-faint" style="font-size:13px">{NONE_YET}</div>'
    times, watts = followed.time_s, followed.power_w
    picture = Picture(followed.text[:1].upper() + followed.text[1:], size=12, width=WIDTH)
    picture.y = 32.0
    frame = picture.frame(HEIGHT, (-BEFORE_S, AFTER_S), (0.0, max(float(watts.max()) * 1.12, 1.0)))
    frame.axes("Power (W)")
    frame.below("seconds since the change", 8)
    frame.upright(0.0, Pen(colour(1), 2))
    for level_w, span in ((followed.before_w, (-BEFORE_S, 0.0)), (followed.after_w, (0.0, AFTER_S))):
        if level_w is not None:
            frame.line(span, [level_w, level_w], Pen(dashes=(4, 3), opacity=0.55))
    frame.line(times, watts, Pen(colour(0), 1.6))
    picture.down(HEIGHT)
    return picture.svg()


def apply_page(title: str, view: ApplyView | None, drawn: str, problem: str = "") -> str:
    """The panel as a table and its plot.

    Args:
        title: Of the panel.
        view: What is active and chosen; None before the first reading.
        drawn: SVG of the power.
        problem: What went wrong.
    """
    rows = [*([] if view is None else view.facts), ("", problem)]
    style = "font-size:12px;white-space:pre-wrap"
    head = f'<div style="font-size:13px;font-weight:600">{html.escape(title)}</div>'
    return head + table((), [row for row in rows if row[1]], style=style) + drawn
