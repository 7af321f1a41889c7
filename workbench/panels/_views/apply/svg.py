"""The power around a change as a small SVG, and the whole panel as HTML without scripts."""

from __future__ import annotations

import html

import numpy as np

from ....device.settings import AFTER_S, BEFORE_S, StepResponse
from ..._core.svg import Frame, svg, text, ticks
from ..._core.theme import colour
from .model import SAME, ApplyView

HEIGHT = 110
POINTS = 300


def power(
    followed: StepResponse | None,
    default: str = "Nothing was changed from here yet; the power around a change is drawn here",
) -> str:
    """One `<svg>` element: watts over the seconds around a change, and both levels."""
    if followed is None or not len(followed.time_s):
        return svg("Power", [text(0, 14, default, opacity=0.75)], 20)
    times, watts = followed.time_s, followed.power_w
    if len(times) > POINTS:
        pick = np.linspace(0, len(times) - 1, POINTS).astype(int)
        times, watts = times[pick], watts[pick]
    frame = Frame(32.0, HEIGHT, (-BEFORE_S, AFTER_S), (0.0, max(float(watts.max()) * 1.12, 1.0)))
    parts = [
        text(0, 11, followed.words[:1].upper() + followed.words[1:], size=12, weight="bold"),
        *frame.axes("Power (W)", 4, None),
    ]
    parts += frame.below(
        "seconds since the change", {value: f"{value:g}" for value in ticks(-BEFORE_S, AFTER_S, 8)}
    )
    x = frame.x(0.0)
    parts.append(
        f'<path d="M{x:.1f} {frame.top:g}V{frame.top + HEIGHT:g}" stroke="{colour(1)}" stroke-width="2"/>'
    )
    for level, low, high in ((followed.before_w, -BEFORE_S, 0.0), (followed.after_w, 0.0, AFTER_S)):
        if level is not None:
            line = f"M{frame.x(low):.1f} {frame.y(level):.1f}H{frame.x(high):.1f}"
            parts.append(
                f'<path d="{line}" stroke="currentColor" stroke-opacity="0.55" stroke-dasharray="4 3"/>'
            )
    path = "L".join(
        f"{frame.x(float(t)):.1f} {frame.y(float(w)):.1f}" for t, w in zip(times, watts, strict=True)
    )
    parts.append(
        f'<path d="M{path}" fill="none" stroke="{colour(0)}" stroke-width="1.6" stroke-linejoin="round"/>'
    )
    return svg(followed.words, parts, frame.top + HEIGHT + 38)


def page(title: str, view: ApplyView | None, drawn: str, problem: str = "") -> str:
    """The panel as a table and its plot."""
    if view is None:
        return f'<div style="font-size:13px">{html.escape(problem or title)}</div>'
    rows = [
        ("In force", f"{view.force} · {view.origin}"), ("Chosen", view.chosen),
        ("Difference", "\n".join(view.difference) or SAME), ("", view.note), ("Rights", view.rights),
        ("Command", "" if view.allowed else view.command), ("Held by", view.holder), ("", view.computing),
        ("", view.left), ("", problem), ("Done", "\n".join(f"{at}  {what}" for at, what in view.history)),
    ]
    cells = "".join(
        '<tr><th style="text-align:left;vertical-align:top;padding-right:12px;font-weight:600">'
        f"{html.escape(name)}</th>"
        f'<td style="text-align:left;white-space:pre-wrap">{html.escape(words)}</td></tr>'
        for name, words in rows
        if words
    )
    return (
        f'<div style="font-size:13px;font-weight:600">{html.escape(title)}</div><table '
        f'style="font-size:12px">{cells}</table>{drawn}'
    )
