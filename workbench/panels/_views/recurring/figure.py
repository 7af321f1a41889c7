"""The picture of a recurring job: estimated and measured costs, the profile of limits, savings."""

from __future__ import annotations

from ..._core.svg import INK, ROW, Frame, Pen, Picture, Span, padded, ticks
from ..._core.theme import colour
from .model import SAVED, RecurringView, known

TALLEST = 3.0  # times the least estimated cost; higher values are marked at the edge
CROSS = Pen(width=1.6, opacity=0.6)


def draw(title: str, view: RecurringView) -> Picture:
    """The four frames below the sentences."""
    picture = Picture(title)
    picture.sentences([view.headline, *view.details, f"Objective: {view.objective}"])
    with picture.row(ROW):
        _believed(picture, view)
        _profile(picture, view)
    with picture.row(ROW):
        _costs(picture, view)
        _saved(picture, view)
    return picture


def _believed(picture: Picture, view: RecurringView) -> None:
    arms = view.believed
    least = min(known(arms, "cost"), default=1.0)
    top = min(max(known(arms, "high"), default=least), TALLEST * least)
    frame = picture.frame(ROW, (-0.6, len(arms) - 0.4), (0.0, 1.18 * top), side="left")
    frame.axes(f"Estimated cost of a recurrence ({view.unit}), 90 %")
    names = {float(n): str(arm["batch_size"]) for n, arm in enumerate(arms)}
    frame.below("batch size; above: probability of costing least", names)
    high = frame.y_span[1]
    for n, arm in enumerate(arms):
        ink, middle = colour(1) if n == view.outlook.arm else colour(0), arm["cost"]
        if arm["barred"]:
            frame.mark(n, 0.06 * high, 4, CROSS, "x", hover={"not tried": arm["barred"]})
        if middle is None:
            continue
        hover = {
            "batch size": names[n], "estimated": f"{middle:.3f}",
            "90 %": f"{arm['low']:.3f} to {arm['high']:.3f}", "costs least": f"{100 * arm['best']:.0f} %",
            "runs": f"{arm['reached']} reached the target, {arm['other']} did not",
        }
        if middle > high:  # beyond the axis, and so marked at its end
            frame.mark(n, 0.97 * high, 4, Pen(ink), "triangle", fill=True, hover=hover)
            continue
        end = min(arm["high"], high)
        frame.line([n, n], [max(arm["low"], 0.0), end], Pen(ink, 3, opacity=0.5))
        frame.dot(n, middle, ink, hollow=not arm["reached"], hover=hover)
        if arm["best"] >= 0.005:
            place = {"dy": -5, "anchor": "middle"} if end < 0.86 * high else {"dx": 6, "dy": 11}
            frame.label(n, end, f"{100 * arm['best']:.0f} %", opacity=0.8, **place)


def _profile(picture: Picture, view: RecurringView) -> None:
    rows, shares = view.profile, known(view.profile, "time", "energy", "cost") or [0.0, 1.0]
    limits = [row["power_limit_w"] for row in rows]
    span = padded(limits[0], limits[-1], 0.03) if limits else (0.0, 1.0)
    frame = picture.frame(ROW, span, (0.95 * min(shares), 1.12 * max(shares)), side="right")
    if not limits:
        return
    about = f"An epoch at batch size {view.outlook.profile_of}"
    frame.axes(f"{about}, share of that at {limits[-1]:g} W")
    frame.below("power limit (W)", {value: f"{value:g}" for value in ticks(limits[0], limits[-1], 6)})
    for row in rows:
        if row["best"]:
            at_w = row["power_limit_w"]
            frame.upright(at_w, Pen(dashes=(2, 3), opacity=0.6), text=f"best: {at_w:g} W")
            frame.dot(at_w, row["cost"], colour(1), 5)
    for name, ink, wide in (("time", colour(2), 1.4), ("energy", colour(0), 1.4), ("cost", INK, 2.2)):
        points = [(row["power_limit_w"], row[name]) for row in rows if row[name] is not None]
        hover = {"limit": [f"{x:g} W" for x, _ in points], name: [f"{y:.3f}" for _, y in points]}
        frame.line([x for x, _ in points], [y for _, y in points], Pen(ink, wide), hover=hover)
        for x, y in points[:1]:
            frame.label(x, y, name, spread=True)


def _over_recurrences(picture: Picture, view: RecurringView, text: str, y_span: Span, side: str) -> Frame:
    rows = view.recurrences
    span = (0.0, rows[-1]["recurrence"] + 1.0 if rows else 1.0)
    frame = picture.frame(ROW, span, y_span, side=side)
    if rows:
        frame.axes(text)
        whole = [value for value in ticks(*span, 6) if value == round(value)]
        frame.below("recurrence", {value: f"{value:g}" for value in whole})
    return frame


def _costs(picture: Picture, view: RecurringView) -> None:
    rows, default = view.recurrences, view.default
    text = f"Cost of each recurrence, all its attempts ({view.unit})"
    top = 1.1 * max([*known(rows, "cost"), default["high"] if default else 0.0], default=0.0) or 1.0
    frame = _over_recurrences(picture, view, text, (0.0, top), "left")
    if not rows:
        return
    if default:
        frame.boxes([(*frame.x_span, (default["low"], default["high"]))], opacity=0.1)
        frame.level(default["cost"], Pen(dashes=(5, 4)))
        frame.label(frame.x_span[1], default["cost"], "default", dx=-4, dy=-4, anchor="end", opacity=0.8)
    for row in rows:
        if row["cost"] is None:
            continue
        end = "reached" if row["reached"] else "not reached yet"
        hover = {
            "recurrence": f"{row['recurrence']}", "cost": f"{row['cost']:.3f}",
            "batch size": f"{row['batch_size']}",
            "target": "target not reached: this recurrence is lost" if row["lost"] else end,
        }
        if row["lost"]:
            frame.mark(row["recurrence"], row["cost"], 4, CROSS, "x", hover=hover)
        else:
            frame.dot(row["recurrence"], row["cost"], colour(0), 3, hover=hover)
    if any(row["lost"] for row in rows):
        frame.label(frame.x_span[0], top, "x: lost, no run reached the target", dx=4, dy=11, opacity=0.8)


def _saved(picture: Picture, view: RecurringView) -> None:
    rows = [row for row in view.recurrences if row.get("saved") is not None]
    text = f"Cumulative saving against the default ({view.saved_unit})"
    ends = [0.0, *known(rows, "saved_low", "saved_high")]
    frame = _over_recurrences(picture, view, text, padded(min(ends), max(ends), 0.08), "right")
    xs, sums, low, high = ([row[name] for row in rows] for name in ("recurrence", *SAVED))
    frame.band(xs, low, high, colour(2))
    frame.level(0, Pen(opacity=0.6))
    hover = {
        "after recurrence": [f"{x}" for x in xs], "saved": [f"{value:.3f}" for value in sums],
        "90 %": [f"{least:.3f} to {most:.3f}" for least, most in zip(low, high, strict=True)],
    }
    frame.line(xs, sums, Pen(colour(2), 2.0), hover=hover)
    if view.outlook.break_even is not None:
        text = f"cheaper since {view.outlook.break_even}"
        frame.upright(view.outlook.break_even, Pen(dashes=(2, 3), opacity=0.6), text=text)
