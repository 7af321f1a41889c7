"""The power around a change as a small SVG, and the whole panel as HTML without scripts."""

from __future__ import annotations

import html

import numpy as np

from ....device.control import AFTER_S, BEFORE_S, StepResponse
from ..._core.svg import Pen, Picture
from ..._core.theme import colour
from .model import SAME, ApplyView

WIDTH, HEIGHT = 460, 110  # fits a panel in a window of 900 pixels
POINTS = 300
NONE_YET = "After Apply or Undo the power around the change stands here"


def power(followed: StepResponse | None) -> str:
    """One `<svg>` element: watts over the seconds around a change, and both levels; a sentence before one."""
    if followed is None or not len(followed.time_s):
        return f'<div class="workbench-faint" style="font-size:13px">{NONE_YET}</div>'
    times, watts = followed.time_s, followed.power_w
    if len(times) > POINTS:
        pick = np.linspace(0, len(times) - 1, POINTS).astype(int)
        times, watts = times[pick], watts[pick]
    picture = Picture(followed.text[:1].upper() + followed.text[1:], size=12, width=WIDTH)
    picture.y = 32.0
    frame = picture.frame(HEIGHT, (-BEFORE_S, AFTER_S), (0.0, max(float(watts.max()) * 1.12, 1.0)))
    frame.axes("Power (W)")
    frame.below("seconds since the change", 8)
    frame.upright(0.0, Pen(colour(1), 2))
    for level_w, span in ((followed.before_w, (-BEFORE_S, 0.0)), (followed.after_w, (0.0, AFTER_S))):
        if level_w is not None:
            frame.level(level_w, Pen(dashes=(4, 3), opacity=0.55), x=span)
    frame.line(times, watts, Pen(colour(0), 1.6))
    picture.down(HEIGHT)
    return picture.svg()


def apply_page(title: str, view: ApplyView | None, drawn: str, problem: str = "") -> str:
    """The panel as a table and its plot.

    Args:
        title: Of the panel.
        view: What is active and chosen; None before the first reading.
        drawn: SVG of the power.
        problem: Shown in place of the view's facts.
    """
    if view is None:
        return f'<div style="font-size:13px">{html.escape(problem or title)}</div>'
    rows = [
        ("Active", f"{view.force} · {view.origin}"), ("Chosen", view.chosen),
        ("Difference", "\n".join(view.difference) or SAME), ("", view.note), ("Rights", view.rights),
        ("Command", "" if view.allowed else view.command), ("Held by", view.holder), ("", view.computing),
        ("", view.left), ("", view.earlier), ("", problem),
        ("Done", "\n".join(f"{at}  {what}" for at, what in view.history)),
    ]
    head = '<th style="text-align:left;vertical-align:top;padding-right:12px;font-weight:600">'
    cells = "".join(
        f"<tr>{head}{html.escape(name)}</th>"
        f'<td style="text-align:left;white-space:pre-wrap">{html.escape(text)}</td></tr>'
        for name, text in rows if text
    )
    return (
        f'<div style="font-size:13px;font-weight:600">{html.escape(title)}</div>'
        f'<table style="font-size:12px">{cells}</table>{drawn}'
    )
