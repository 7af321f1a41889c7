"""The picture of a recurring job: costs believed and paid, the profile of limits, savings."""

from __future__ import annotations

from ..._core.svg import INK, Frame, Pen, Picture, padded, ticks
from ..._core.theme import colour
from .model import RecurringView

HEIGHT = 165
CROSS = Pen(width=1.6, opacity=0.6)
OF_EACH = ("recurrence", "cost", "batch", "reached", "lost")  # columns of a recurrence


def draw(title: str, view: RecurringView) -> Picture:
    """The four frames below the words."""
    picture = Picture(title)
    picture.sentences([view.headline, *view.details, f"Objective: {view.objective}"])
    with picture.row(HEIGHT):
        _believed(picture, view)
        _profile(picture, view)
    with picture.row(HEIGHT):
        _costs(picture, view)
        _saved(picture, view)
    return picture


def _believed(picture: Picture, view: RecurringView) -> None:
    about = view.believed
    count = len(about["batch"])
    frame = picture.frame(HEIGHT, (-0.6, count - 0.4), view.ranges["believed"], side="left")
    frame.axes(f"Estimated cost of a recurrence ({view.unit}), 90 %")
    frame.below(
        "batch size; above: probability of costing least", {n: str(b) for n, b in enumerate(about["batch"])}
    )
    low, high = frame.y_span
    for n, arm in enumerate(dict(zip(about, row, strict=True)) for row in zip(*about.values(), strict=True)):
        ink, middle = colour(1) if n == view.arm else colour(0), arm["middle"]
        if arm["barred"]:
            frame.mark(n, low + 0.06 * (high - low), 4, CROSS, "x", hover={"not tried": arm["barred"]})
        if middle is None:
            continue
        hover = {
            "batch size": f"{arm['batch']}", "estimated": f"{middle:.3f}",
            "90 %": f"{arm['low']:.3f} to {arm['high']:.3f}", "costs least": f"{100 * arm['best']:.0f} %",
            "runs": f"{arm['reached']} reached the target, {arm['other']} did not",
        }
        if middle > high:  # beyond the axis, and so marked at its end
            frame.mark(n, high - 0.03 * (high - low), 4, Pen(ink), "triangle", fill=True, hover=hover)
            continue
        top = min(arm["high"], high)
        frame.line([n, n], [max(arm["low"], low), top], Pen(ink, 3, opacity=0.5))
        frame.dot(n, middle, ink, 5 if n == view.arm else 4, hollow=not arm["reached"], hover=hover)
        if arm["best"] >= 0.005:
            above = top < 0.86 * high  # else beside the bar
            place = {"dy": -5, "anchor": "middle"} if above else {"dx": 6, "dy": 11}
            frame.label(n, top, f"{100 * arm['best']:.0f} %", opacity=0.8, **place)


def _profile(picture: Picture, view: RecurringView) -> None:
    about, limits = view.profile, view.profile["limit_w"]
    span = padded(limits[0], limits[-1], 0.03) if limits else (0.0, 1.0)
    frame = picture.frame(HEIGHT, span, view.ranges["profile"], side="right")
    if not limits:
        return
    frame.axes(f"An epoch at batch size {view.profile_of}, share of that at {limits[-1]:g} W")
    frame.below("power limit (W)", {value: f"{value:g}" for value in ticks(limits[0], limits[-1], 6)})
    if view.optimum is not None:
        best_w = limits[view.optimum]
        frame.upright(best_w, Pen(dashes=(2, 3), opacity=0.6), text=f"best: {best_w:g} W")
    for name, ink, wide in (("time", colour(2), 1.4), ("energy", colour(0), 1.4), ("cost", INK, 2.2)):
        known = [n for n, value in enumerate(about[name]) if value is not None]
        xs, ys = [limits[n] for n in known], [about[name][n] for n in known]
        hover = {"limit": [f"{x:g} W" for x in xs], name: [f"{y:.3f}" for y in ys]}
        frame.line(xs, ys, Pen(ink, wide), hover=hover)
        if known:
            frame.label(xs[0], ys[0], name, dx=3, dy=-5, spread=True)
    if view.optimum is not None:
        frame.dot(best_w, about["cost"][view.optimum], colour(1), 5)


def _over_recurrences(picture: Picture, view: RecurringView, name: str, text: str, side: str) -> Frame:
    recurrences = view.rows["recurrence"]
    span = (0.0, (recurrences[-1] if recurrences else 0) + 1.0)
    frame = picture.frame(HEIGHT, span, view.ranges[name], side=side)
    if recurrences and name in view.rows:
        frame.axes(text)
        whole = [value for value in ticks(*span, 6) if value == round(value)]
        frame.below("recurrence", {value: f"{value:g}" for value in whole})
    return frame


def _costs(picture: Picture, view: RecurringView) -> None:
    rows, default = view.rows, view.default
    text = f"Cost of each recurrence, all its attempts ({view.unit})"
    frame = _over_recurrences(picture, view, "cost", text, "left")
    if not rows["recurrence"]:
        return
    top = frame.y_span[1]
    if default:
        at = min(default["cost"], top)
        frame.boxes([(*frame.x_span, (default["low"], min(default["high"], top)))], opacity=0.1)
        frame.level(at, Pen(dashes=(5, 4)))
        frame.label(frame.x_span[1], at, "default", dx=-4, dy=-4, anchor="end", opacity=0.8)
    for recurrence, cost, batch, reached, lost in zip(*(rows[name] for name in OF_EACH), strict=True):
        if cost is None:
            continue
        end = "not reached: this recurrence is lost" if lost else "reached" if reached else "not reached yet"
        hover = {
            "recurrence": f"{recurrence}", "cost": f"{cost:.3f}", "batch size": f"{batch}", "target": end,
        }
        if lost:
            frame.mark(recurrence, min(cost, top), 4, CROSS, "x", hover=hover)
        else:
            frame.dot(recurrence, min(cost, top), colour(0), 3, hover=hover)
    if any(rows["lost"]):
        frame.label(frame.x_span[0], top, "x: lost, no run reached the target", dx=4, dy=11, opacity=0.8)


def _saved(picture: Picture, view: RecurringView) -> None:
    rows = view.rows
    text = f"Saved against the default, in sum ({view.saved_unit})"
    frame = _over_recurrences(picture, view, "saved", text, "right")
    if "saved" not in rows:
        return
    xs, sums, low, high = (rows[name] for name in ("recurrence", "saved", "saved_low", "saved_high"))
    frame.band(xs, low, high, colour(2))
    frame.level(0, Pen(opacity=0.6))
    known = [None not in each for each in zip(sums, low, high, strict=True)]
    hover = {
        "after recurrence": [f"{x}" for x in xs],
        "saved": [f"{sums[n]:.3f}" if each else "" for n, each in enumerate(known)],
        "90 %": [f"{low[n]:.3f} to {high[n]:.3f}" if each else "" for n, each in enumerate(known)],
    }
    frame.line(xs, sums, Pen(colour(2), 2.0), hover=hover)
    if view.break_even is not None:
        text = f"cheaper since {view.break_even}"
        frame.upright(view.break_even, Pen(dashes=(2, 3), opacity=0.6), text=text)
