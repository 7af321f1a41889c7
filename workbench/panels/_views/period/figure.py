"""The picture of a period: the folded iteration and the spectrum side by side."""

from __future__ import annotations

import numpy as np

from ..._core.svg import ROW, Described, Pen, Picture
from ..._core.theme import colour
from .model import PeriodView

DECADES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


def draw_period(picture: Picture, view: PeriodView, number: int) -> None:
    """Draw the period of GPU `number` at the end of a picture."""
    picture.y += 4
    picture.sentences([view.headline, *view.details])
    if not len(view.spectrum):
        picture.y += 8
        return
    folds = bool(len(view.folded)) and view.level is not None
    with picture.row(ROW):
        if folds:
            _fold(picture, view, number)
        else:
            picture.frame(ROW, (0.0, 1.0), (0.0, 1.0))  # nothing is drawn in it
        _spectrum(picture, view, number, "right" if folds else "")


def described(view: PeriodView, number: int) -> list[list[Described]]:
    """The same without words, for a browser."""
    picture = Picture("")
    draw_period(picture, view, number)
    return picture.described()


def _fold(picture: Picture, view: PeriodView, number: int) -> None:
    assert view.level is not None
    high_w = max(float(np.nanmax(view.folded[:, 1])), float(view.shape[:, 3].max())) * 1.15
    unit, scale = ("ms", 1000.0) if view.level.period_s < 0.9995 else ("s", 1.0)
    end = view.level.period_s * scale
    frame = picture.frame(ROW, (0.0, end), (0.0, high_w), side="left")
    frame.axes(f"{view.cycle_name.capitalize()}s overlaid (W), median in bold")
    if view.waits:
        x0, x1 = (at_s * scale for at_s in view.waits)
        frame.boxes([(x0, x1, None)], opacity=0.12)
        late = frame.x(x1) > frame.right - 20  # no room to the right
        at, dx, anchor = (x1, -3, "end") if late else ((x0 + x1) / 2, 0, "middle")
        frame.label(at, high_w, "waits", dx=dx, dy=11, anchor=anchor, opacity=0.75)
    times, low, median, high = (view.shape * np.array([scale, 1, 1, 1], np.float32)).T
    frame.band(times, low, high, colour(number))
    frame.line(view.folded[:, 0] * scale, view.folded[:, 1], Pen(colour(number), 0.7, opacity=0.4))
    hover = {
        "at": [f"{time:.4g} {unit}" for time in times], "median": [f"{each:.0f} W" for each in median],
        "80 % of them": [f"{least:.0f} to {most:.0f} W" for least, most in zip(low, high, strict=True)],
    }
    frame.line(times, median, Pen(width=1.8), hover=hover)
    frame.below(f"{unit} since its start")


def _spectrum(picture: Picture, view: PeriodView, number: int, side: str) -> None:
    periods = np.log10(view.spectrum[:, 0])
    frame = picture.frame(ROW, (float(periods[0]), float(periods[-1])), (0.0, 1.15), side=side)
    frame.name("Spectrum of the power")
    hover = {"period": [f"{seconds:.3f} s" for seconds in view.spectrum[:, 0]]}
    frame.line(periods, view.spectrum[:, 1], Pen(colour(number), 1.2), hover=hover)
    for row, (text, seconds, chosen) in enumerate(view.marks):
        pen = Pen(opacity=0.9) if chosen else Pen(dashes=(3, 3), opacity=0.5)
        frame.upright(float(np.log10(seconds)), pen, text=text, row=row)
    marks = {float(np.log10(value)): f"{value:g}" for value in DECADES}
    frame.below("period (s)", {at: text for at, text in marks.items() if frame.holds(at)})
