"""The static picture of a recurring job: believed costs, the profile of limits, cost and savings over
recurrences, in four frames.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..._core.svg import LEFT, RIGHT, WIDTH, Frame, lines, svg, text, ticks
from ..._core.theme import colour
from .model import RecurringView

HEIGHT = 165
GUTTER = 34
MIDDLE = (WIDTH + LEFT - 20) / 2
CHARACTERS = 116  # that fit into one line
FRAME = "currentColor"


def draw(title: str, view: RecurringView) -> str:
    """One `<svg>` element."""
    parts = [text(0, 13, title, size=13, weight="bold")]
    y = 18.0
    for number, sentence in enumerate([view.headline, *view.details, f"Objective: {view.objective}"]):
        for line in lines(sentence, CHARACTERS):
            y += 16
            parts.append(
                text(
                    0, y, line, size=12 if number == 0 else 11, weight="bold" if number == 0 else "",
                    opacity=1.0 if number == 0 else 0.75,
                )
            )
    y += GUTTER
    parts += _believed(view, y)
    parts += _profile(view, y)
    y += HEIGHT + 38 + GUTTER
    parts += _costs(view, y)
    parts += _saved(view, y)
    return svg(title, parts, y + HEIGHT + 38)


def _left(view: RecurringView, y: float, x: tuple[float, float], name: str) -> Frame:
    return Frame(y, HEIGHT, x, view.ranges[name], right=MIDDLE - 30)


def _right(view: RecurringView, y: float, x: tuple[float, float], name: str) -> Frame:
    return Frame(y, HEIGHT, x, view.ranges[name], left=MIDDLE + 26, right=WIDTH - RIGHT)


def _believed(view: RecurringView, y: float) -> list[str]:
    about = view.believed
    count = len(about["batch"])
    frame = _left(view, y, (-0.6, count - 0.4), "believed")
    parts = frame.axes(f"Believed cost of a recurrence ({view.unit}), 90 %", 4, None)
    parts += frame.below(
        "batch size; above: probability of costing least", {n: str(b) for n, b in enumerate(about["batch"])}
    )
    low, high = frame.y_span
    for n in range(count):
        ink = colour(1) if n == view.arm else colour(0)
        if about["barred"][n]:
            parts.append(_cross(frame.x(n), frame.y(low) - 10))
        if about["middle"][n] is None:
            continue
        if about["middle"][n] > high:  # beyond the axis, and so marked at its end
            parts.append(_triangle(frame.x(n), frame.y(high) + 9, ink))
            continue
        y0, y1 = frame.y(max(about["low"][n], low)), frame.y(min(about["high"][n], high))
        parts.append(
            f'<path d="M{frame.x(n):.1f} {y0:.1f}V{y1:.1f}" stroke="{ink}" stroke-width="3" '
            'stroke-opacity="0.5"/>'
        )
        parts.append(
            _dot(
                frame.x(n), frame.y(about["middle"][n]), ink, 5 if n == view.arm else 4,
                hollow=not about["reached"][n],
            )
        )
        if about["best"][n] >= 0.005:
            parts.append(
                text(
                    frame.x(n), max(y1 - 5, frame.y(high) + 11), f"{100 * about['best'][n]:.0f} %",
                    anchor="middle", opacity=0.8,
                )
            )
    return parts


def _profile(view: RecurringView, y: float) -> list[str]:
    about = view.profile
    if not about["limit_w"]:
        return []
    limits = about["limit_w"]
    room = 0.03 * (limits[-1] - limits[0])
    frame = _right(view, y, (limits[0] - room, limits[-1] + room), "profile")
    parts = frame.axes(
        f"An epoch at batch size {view.profile_of}, share of that at {limits[-1]:g} W", 4, None
    )
    parts += frame.below(
        "power limit (W)", {value: f"{value:g}" for value in ticks(limits[0], limits[-1], 6)}
    )
    for name, ink, wide in (("time", colour(2), 1.4), ("energy", colour(0), 1.4), ("cost", FRAME, 2.2)):
        parts.append(_line(frame, limits, about[name], ink, wide))
        last = next((n for n, value in enumerate(about[name]) if value is not None), 0)
        if about[name][last] is not None:
            parts.append(text(frame.x(limits[last]) + 3, frame.y(about[name][last]) - 5, name))
    if view.optimum is not None:
        parts.append(_upright(frame, limits[view.optimum]))
        parts.append(_dot(frame.x(limits[view.optimum]), frame.y(about["cost"][view.optimum]), colour(1), 5))
        parts.append(
            text(
                frame.x(limits[view.optimum]), frame.y(frame.y_span[1]) + 11,
                f"best: {limits[view.optimum]:g} W", anchor="middle",
            )
        )
    return parts


def _costs(view: RecurringView, y: float) -> list[str]:
    rows = view.rows
    if not rows["recurrence"]:
        return []
    span = (0.0, rows["recurrence"][-1] + 1.0)
    frame = _left(view, y, span, "cost")
    parts = frame.axes(f"Cost of each recurrence, all its attempts ({view.unit})", 4, None)
    parts += frame.below(
        "recurrence", {value: f"{value:g}" for value in ticks(*span, 6) if value == round(value)}
    )
    if view.default:
        parts += _band(frame, view.default)
    for recurrence, cost in zip(rows["recurrence"], rows["cost"], strict=True):
        if cost is not None:
            parts.append(_dot(frame.x(recurrence), frame.y(min(cost, frame.y_span[1])), colour(0), 3))
    return parts


def _saved(view: RecurringView, y: float) -> list[str]:
    rows = view.rows
    if "saved" not in rows:
        return []
    span = (0.0, rows["recurrence"][-1] + 1.0)
    frame = _right(view, y, span, "saved")
    parts = frame.axes(f"Saved against the default, in sum ({view.saved_unit})", 4, None)
    parts += frame.below(
        "recurrence", {value: f"{value:g}" for value in ticks(*span, 6) if value == round(value)}
    )
    ends = (
        list(zip(rows["recurrence"], rows["saved_low"], strict=True))
        + list(zip(rows["recurrence"], rows["saved_high"], strict=True))[::-1]
    )
    ground = "L".join(f"{frame.x(x):.1f} {frame.y(value):.1f}" for x, value in ends if value is not None)
    if ground:
        parts.append(f'<path d="M{ground}z" fill="{colour(2)}" fill-opacity="0.18"/>')
    parts.append(
        f'<path d="M{frame.left:g} {frame.y(0):.1f}H{frame.right:g}" stroke="currentColor" '
        'stroke-opacity="0.6"/>'
    )
    parts.append(_line(frame, rows["recurrence"], rows["saved"], colour(2), 2.0))
    if view.break_even is not None:
        parts.append(_upright(frame, view.break_even))
        late = frame.x(view.break_even) > frame.right - 110
        parts.append(
            text(
                frame.x(view.break_even) + (-4 if late else 4), frame.top + 11,
                f"cheaper since {view.break_even}", anchor="end" if late else "",
            )
        )
    return parts


def _band(frame: Frame, default: dict[str, float]) -> list[str]:
    high, low = frame.y(min(default["high"], frame.y_span[1])), frame.y(default["low"])
    at = frame.y(min(default["cost"], frame.y_span[1]))
    return [
        f'<path d="M{frame.left:g} {high:.1f}H{frame.right:g}V{low:.1f}H{frame.left:g}z" fill="currentColor" '
        'fill-opacity="0.1"/>',
        f'<path d="M{frame.left:g} {at:.1f}H{frame.right:g}" stroke="currentColor" stroke-dasharray="5 4"/>',
        text(frame.right - 4, at - 4, "default", anchor="end", opacity=0.8),
    ]


def _line(frame: Frame, xs: Sequence[Any], ys: Sequence[Any], ink: str, width: float) -> str:
    points = [
        f"{frame.x(x):.1f} {frame.y(value):.1f}" for x, value in zip(xs, ys, strict=True) if value is not None
    ]
    return (
        f'<path d="M{"L".join(points)}" stroke="{ink}" stroke-width="{width:g}" stroke-linejoin="round"/>'
        if points
        else ""
    )


def _upright(frame: Frame, x: float) -> str:
    look = 'stroke="currentColor" stroke-opacity="0.6" stroke-dasharray="2 3"'
    return f'<path d="M{frame.x(x):.1f} {frame.top:.1f}v{frame.height}" {look}/>'


def _dot(x: float, y: float, ink: str, radius: float, *, hollow: bool = False) -> str:
    fill = f'fill="none" stroke="{ink}" stroke-width="1.6"' if hollow else f'fill="{ink}"'
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" {fill}/>'


def _triangle(x: float, y: float, ink: str) -> str:
    return f'<path d="M{x - 4:.1f} {y:.1f}h8l-4 -7z" fill="{ink}"/>'


def _cross(x: float, y: float) -> str:
    return (
        f'<path d="M{x - 4:.1f} {y - 4:.1f}l8 8m0 -8l-8 8" stroke="currentColor" stroke-opacity="0.6" '
        'stroke-width="1.6"/>'
    )
