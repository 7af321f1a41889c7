"""The picture of a comparison: nodes and power over time, distributions of the jobs, energy, the sweep."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from .... import _html
from ....cluster.scenario import UNITS, label
from ....logbook.quantities import format_change
from ..._core.svg import Pen, Picture, Span, padded, ticks
from ..._core.theme import colour, dash
from .model import DISTRIBUTION_AXES, HEADS, ClusterView, PolicyCurve

HEIGHT = 165
MOST_MARKS = 10  # values of a sweep that are written below its axis


def draw(title: str, sentences: Sequence[str], found: ClusterView, *distributions: str) -> Picture:
    """The picture below the sentences; only sentences before the first run has ended.

    Args:
        title: Title of the picture.
        sentences: Sentences above it.
        found: The data of the drawing.
        distributions: Keys of `DISTRIBUTION_AXES`, a frame each; a browser takes all and shows one.
    """
    picture = Picture(title)
    picture.sentences(sentences, headline=bool(found.headline))
    if not found.curves:
        picture.y += 10
        return picture
    picture.y += 6
    picture.legend((each.text, _pen(each.number)) for each in found.curves)
    picture.y -= 8
    with picture.row(HEIGHT):
        _course(picture, found.curves, "hosting", "Active nodes: with a job", "left")
        _course(picture, found.curves, "power_kw", "Power of the cluster (kW)", "right")
    with picture.row(HEIGHT):
        _bars(picture, found)
        for name in distributions:
            _shares(picture, found.curves, name)
    if found.sweep or len(distributions) > 1:  # a browser keeps its place
        with picture.row(HEIGHT):
            _sweep(picture, found)
    return picture


def _pen(number: int, width: float = 1.0) -> Pen:
    return Pen(colour(number), width, dash(number))


def _course(picture: Picture, curves: Sequence[PolicyCurve], name: str, text: str, side: str) -> None:
    end = max(each.course["hours"][-1] for each in curves if len(each.course["hours"]))
    high = max(float(each.course[name].max(initial=0.0)) for each in curves)
    frame = picture.frame(HEIGHT, (0.0, max(end, 1e-9)), (0.0, 1.08 * high or 1.0), side=side)
    scale, unit = (24.0, "days") if end > 72 else (1.0, "hours")
    frame.axes(text)
    marks = {value * scale: f"{value:g}" for value in ticks(0.0, end / scale, 6)}
    frame.below(f"{unit} since the first submission", marks)
    for each in curves:
        hours, values = [0.0, *each.course["hours"]], each.course[name]
        frame.line(hours, [*values, *values[-1:]], _pen(each.number, 1.3), steps=True, name=each.text)


def axis(name: str, curves: Sequence[PolicyCurve]) -> tuple[Span, bool]:
    """Range of a distribution's values over all curves, and whether its axis is logarithmic."""
    _, _, low = DISTRIBUTION_AXES[name]
    values = [each.distributions[name] for each in curves if len(each.distributions[name])]
    highest = max((float(each[-1]) for each in values), default=1.0)
    if low is None:
        # One job in a hundred may be far slower than all others; the axis is for the rest.
        high = max((float(each[int(0.99 * (len(each) - 1))]) for each in values), default=1.0)
        return (min(0.0, min((float(each[0]) for each in values), default=0.0)), max(1.15 * high, 1.0)), False
    return (low, max(highest * 1.05, 10 * low)), True


def _shares(picture: Picture, curves: Sequence[PolicyCurve], name: str) -> None:
    span, logarithmic = axis(name, curves)
    low, high = (math.log10(span[0]), math.log10(span[1])) if logarithmic else span
    frame = picture.frame(HEIGHT, (low, high), (0.0, 1.0), side="left")
    title, unit, _ = DISTRIBUTION_AXES[name]
    frame.axes(f"{title}: share of jobs below", 5)
    decades = range(math.ceil(low - 1e-9), math.floor(high + 1e-9) + 1)
    frame.below(unit, {float(n): f"{10.0**n:g}" for n in decades} if logarithmic else 6)
    for each in curves:
        held = np.clip(each.distributions[name], *span)
        xs = np.log10(held) if logarithmic else held
        shares = np.linspace(0, 1, len(xs))
        frame.line(xs, shares, _pen(each.number, 1.6), name=each.text)


def _bars(picture: Picture, found: ClusterView) -> None:
    high = max(((bar.ratio or 0.0) + (bar.ratio_sd or 0.0) for bar in found.bars), default=1.0)
    count = len(found.bars)
    frame = picture.frame(HEIGHT, (-0.6, count - 0.4), (0.0, 1.12 * high), side="right")
    if not count:
        return
    frame.axes("Energy against the first policy; pale: nodes without a job", 5)
    frame.below("policies in the order of the table", {float(n): str(n + 1) for n in range(count)})
    for n, bar in enumerate(found.bars):
        whole, ink = bar.ratio or 0.0, colour(bar.number)
        owned = whole * (1 - bar.unowned)
        hover = {"policy": bar.text, "against the first": f"{whole:.3f}"}
        frame.boxes([(n - 0.31, n + 0.31, (0.0, owned))], ink, opacity=1.0, hover=hover)
        frame.boxes([(n - 0.31, n + 0.31, (owned, whole))], ink, opacity=0.4, hover=hover)
        frame.errors(n, whole, None, bar.ratio_sd, Pen(width=1.6))
        frame.label(n, whole + (bar.ratio_sd or 0.0), format_change(whole - 1), dy=-4, anchor="middle")


def _sweep(picture: Picture, found: ClusterView) -> None:
    lines = [
        (line.value, line) for line in found.lines if line.value is not None and math.isfinite(line.value)
    ]
    if found.sweep is None or not lines:
        picture.frame(HEIGHT, (0.0, 1.0), (0.0, 1.0))
        return
    tried = sorted({value for value, _ in lines})
    top = max(line.energy_mwh + (line.energy_sd or 0.0) for _, line in lines)
    frame = picture.frame(HEIGHT, padded(tried[0], tried[-1]), (0.0, 1.08 * top))
    spread = any(line.energy_sd for _, line in lines)
    frame.axes("Energy (MWh)" + ("; bars: standard deviation over seeds" if spread else ""))
    marks = tried if len(tried) <= MOST_MARKS else ticks(tried[0], tried[-1], 8)
    frame.below(UNITS[found.sweep], {value: f"{value:g}" for value in marks})
    for policy, number in {line.policy: line.number for _, line in lines}.items():
        spots = sorted((x, each.energy_mwh, each.energy_sd) for x, each in lines if each.policy == policy)
        frame.line([x for x, _, _ in spots], [y for _, y, _ in spots], _pen(number, 1.4))
        for x, y, error in spots:
            frame.dot(x, y, colour(number), 3.2, hover={"policy": label(policy), "MWh": f"{y:.4g}"})
            frame.errors(x, y, None, error, Pen(colour(number)))


def table(found: ClusterView) -> str:
    """The policies side by side, as HTML without scripts."""
    rows = [(f"{n}. {line.cells[0]}", *line.cells[1:]) for n, line in enumerate(found.lines, start=1)]
    return _html.table([name for name, _ in HEADS], rows, style="font-size:12px")
