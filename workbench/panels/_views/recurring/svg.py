"""The still picture of a recurring job: costs believed and paid, the profile of limits, savings."""

from __future__ import annotations

from ..._core.svg import INK, Frame, Pen, Picture, padded, ticks
from ..._core.theme import colour
from .model import RecurringView

HEIGHT = 165


def draw(title: str, view: RecurringView) -> str:
    """One `<svg>` element."""
    picture = Picture(title)
    picture.sentences([view.headline, *view.details, f"Objective: {view.objective}"])
    with picture.row(HEIGHT):
        _believed(picture, view)
        _profile(picture, view)
    with picture.row(HEIGHT):
        _costs(picture, view)
        _saved(picture, view)
    return picture.svg()


def _believed(picture: Picture, view: RecurringView) -> None:
    about = view.believed
    count = len(about["batch"])
    frame = picture.frame(HEIGHT, (-0.6, count - 0.4), view.ranges["believed"], side="left")
    frame.axes(f"Estimated cost of a recurrence ({view.unit}), 90 %")
    frame.below(
        "batch size; above: probability of costing least", {n: str(b) for n, b in enumerate(about["batch"])}
    )
    low, high = frame.y_span
    for n in range(count):
        ink, middle = colour(1) if n == view.arm else colour(0), about["middle"][n]
        if about["barred"][n]:
            frame.cross(n, low, dy=-10)
        if middle is None:
            continue
        if middle > high:  # beyond the axis, and so marked at its end
            frame.beyond(n, ink)
            continue
        top = min(about["high"][n], high)
        frame.line([n, n], [max(about["low"][n], low), top], Pen(ink, 3, opacity=0.5))
        frame.dot(n, middle, ink, 5 if n == view.arm else 4, hollow=not about["reached"][n])
        if about["best"][n] >= 0.005:
            dy = max(-5.0, frame.top + 11 - frame.y(top))
            frame.label(n, top, f"{100 * about['best'][n]:.0f} %", dy=dy, anchor="middle", opacity=0.8)


def _profile(picture: Picture, view: RecurringView) -> None:
    about, limits = view.profile, view.profile["limit_w"]
    if not limits:
        return
    span = padded(limits[0], limits[-1], 0.03)
    frame = picture.frame(HEIGHT, span, view.ranges["profile"], side="right")
    frame.axes(f"An epoch at batch size {view.profile_of}, share of that at {limits[-1]:g} W")
    frame.below("power limit (W)", {value: f"{value:g}" for value in ticks(limits[0], limits[-1], 6)})
    for name, ink, wide in (("time", colour(2), 1.4), ("energy", colour(0), 1.4), ("cost", INK, 2.2)):
        known = [n for n, value in enumerate(about[name]) if value is not None]
        frame.line([limits[n] for n in known], [about[name][n] for n in known], Pen(ink, wide))
        if known:
            frame.label(limits[known[0]], about[name][known[0]], name, dx=3, dy=-5)
    if view.optimum is not None:
        best_w = limits[view.optimum]
        frame.upright(best_w, Pen(dashes=(2, 3), opacity=0.6))
        frame.dot(best_w, about["cost"][view.optimum], colour(1), 5)
        frame.label(best_w, frame.y_span[1], f"best: {best_w:g} W", dy=11, anchor="middle")


def _over_recurrences(picture: Picture, view: RecurringView, name: str, words: str, side: str) -> Frame:
    span = (0.0, view.rows["recurrence"][-1] + 1.0)
    frame = picture.frame(HEIGHT, span, view.ranges[name], side=side)
    frame.axes(words)
    whole = [value for value in ticks(*span, 6) if value == round(value)]
    frame.below("recurrence", {value: f"{value:g}" for value in whole})
    return frame


def _costs(picture: Picture, view: RecurringView) -> None:
    rows, default = view.rows, view.default
    if not rows["recurrence"]:
        return
    words = f"Cost of each recurrence, all its attempts ({view.unit})"
    frame = _over_recurrences(picture, view, "cost", words, "left")
    top = frame.y_span[1]
    if default:
        at = min(default["cost"], top)
        frame.fill(frame.rectangle(*frame.x_span, (default["low"], min(default["high"], top))), opacity=0.1)
        frame.level(at, Pen(dashes=(5, 4)))
        frame.label(frame.x_span[1], at, "default", dx=-4, dy=-4, anchor="end", opacity=0.8)
    for recurrence, cost, lost in zip(rows["recurrence"], rows["cost"], rows["lost"], strict=True):
        if cost is not None and lost:
            frame.cross(recurrence, min(cost, top))
        elif cost is not None:
            frame.dot(recurrence, min(cost, top), colour(0), 3)
    if any(rows["lost"]):
        frame.label(frame.x_span[0], top, "x: lost, no run reached the target", dx=4, dy=11, opacity=0.8)


def _saved(picture: Picture, view: RecurringView) -> None:
    rows = view.rows
    if "saved" not in rows:
        return
    words = f"Saved against the default, in sum ({view.saved_unit})"
    frame = _over_recurrences(picture, view, "saved", words, "right")
    frame.band(rows["recurrence"], rows["saved_low"], rows["saved_high"], colour(2))
    frame.level(0, Pen(opacity=0.6))
    frame.line(rows["recurrence"], rows["saved"], Pen(colour(2), 2.0))
    if view.break_even is not None:
        words = f"cheaper since {view.break_even}"
        frame.upright(view.break_even, Pen(dashes=(2, 3), opacity=0.6), words=words)
