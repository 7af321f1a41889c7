"""The static picture of a frontier: energy against time, the default, the line of equal cost, the choice,
and what it saves in words.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

import numpy as np

from ....search.objective import ZeusCost
from ....search.tradeoff import Z95, FrontierAnalysis
from ..._core.svg import Frame, lines, svg, text, ticks
from ..._core.theme import colour
from .model import FrontierChoice, ranges

HEIGHT = 300
GUTTER = 34
CHARACTERS = 112  # that fit into one line
MOST = 1500  # beaten points that are drawn: more would not be seen
ONE, CHOSEN, SAVED = colour(0), colour(1), colour(2)
LEGEND = "; hollow: predicted, pale: beaten, dashed: equal cost at eta, bars: 95 %"
PREFIXES = ((1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "µ"))


def draw(
    title: str, sentences: Sequence[str], seen: FrontierAnalysis | None, choice: FrontierChoice | None, *,
    relative: bool = False, whole: bool = False,
) -> str:
    """One `<svg>` element; without points it has only words."""
    parts = [text(0, 13, title, size=13, weight="bold")]
    y = 18.0
    for number, sentence in enumerate(sentences):
        for line in lines(sentence, CHARACTERS):
            y += 16
            parts.append(
                text(
                    0, y, line, size=11 if number else 12, weight="" if number else "bold",
                    opacity=0.75 if number else 1.0,
                )
            )
    if seen is None or choice is None:
        return svg(title, parts, y + 12)
    y += GUTTER
    parts += _plane(seen, choice, y, relative=relative and seen.reference is not None, whole=whole)
    return svg(title, parts, y + HEIGHT + 38)


class _Axes:
    """How time and energy become what the axes count."""

    def __init__(self, seen: FrontierAnalysis, *, relative: bool, whole: bool) -> None:
        spans = ranges(seen)["all" if whole else "frontier"]
        if relative and seen.reference is not None:
            at = seen.points.row(seen.reference, named=True)
            self.scales: tuple[float, float] = (at["time_s"] / 100, at["energy_j"] / 100)
            self.shift = 100.0
            self.names = ("time against the default (%)", "Energy against the default (%)")
        else:
            units = [prefixed(max(abs(spans[n][0]), abs(spans[n][1])), unit) for n, unit in enumerate("sJ")]
            self.scales, self.shift = (units[0][0], units[1][0]), 0.0
            self.names = (f"time ({units[0][1]})", f"Energy ({units[1][1]})")
        self.x_span = (self.time(spans[0][0]), self.time(spans[0][1]))
        self.y_span = (self.energy(spans[1][0]), self.energy(spans[1][1]))

    def time(self, seconds: float) -> float:
        return seconds / self.scales[0] - self.shift

    def energy(self, joules: float) -> float:
        return joules / self.scales[1] - self.shift


def prefixed(value: float, unit: str) -> tuple[float, str]:
    """The power of 1000 that a value is best told in, and the unit with its prefix; whole seconds stay
    seconds.

    >>> prefixed(52_000.0, "J"), prefixed(0.02, "s"), prefixed(5000.0, "s")
    ((1000.0, 'kJ'), (0.001, 'ms'), (1.0, 's'))
    """
    for scale, prefix in PREFIXES:
        if value >= scale and not (unit == "s" and scale > 1):
            return scale, prefix + unit
    return PREFIXES[-1][0], PREFIXES[-1][1] + unit


def _plane(
    seen: FrontierAnalysis, choice: FrontierChoice, y: float, *, relative: bool, whole: bool
) -> list[str]:
    axes = _Axes(seen, relative=relative, whole=whole)
    frame = Frame(y, HEIGHT, axes.x_span, axes.y_span)
    parts = []
    if choice.max_slowdown is not None:
        end = min(axes.time(seen.reference_time_s * (1 + choice.max_slowdown)), axes.x_span[1])
        if end > axes.x_span[0]:
            parts.append(
                f'<path d="M{frame.left:g} {frame.top:.1f}H{frame.x(end):.1f}v{HEIGHT}H{frame.left:g}z" '
                f'fill="{SAVED}" '
                f'fill-opacity="0.09"/>'
            )
            parts.append(
                text(
                    frame.left + 5, frame.top + HEIGHT - 6,
                    f"at most {100 * choice.max_slowdown:.3g} % slower", opacity=0.8,
                )
            )
    parts += frame.axes(axes.names[1] + LEGEND, 6, None)
    parts += frame.below(axes.names[0], {value: f"{value:g}" for value in ticks(*frame.x_span, 8)})
    parts += _iso(seen, choice, axes, frame)
    parts += _points(seen, axes, frame)
    return parts + _marks(seen, choice, axes, frame)


def _spot(seen: FrontierAnalysis, row: int, axes: _Axes, frame: Frame) -> tuple[float, float] | None:
    x, y = axes.time(float(seen.points["time_s"][row])), axes.energy(float(seen.points["energy_j"][row]))
    inside = axes.x_span[0] <= x <= axes.x_span[1] and axes.y_span[0] <= y <= axes.y_span[1]
    return (frame.x(x), frame.y(y)) if inside else None


def _iso(seen: FrontierAnalysis, choice: FrontierChoice, axes: _Axes, frame: Frame) -> list[str]:
    """Where all costs as much as the optimum of eta."""
    at = seen.points.row(int(seen.front[seen.optimum(choice.eta, choice.max_slowdown)]), named=True)
    price = ZeusCost(choice.eta, seen.max_power_w)
    cost = price.cost(at["time_s"], at["energy_j"])
    times = np.linspace(*(frame.x_span), 2)
    if choice.eta == 0:
        x = frame.x(axes.time(at["time_s"]))
        ends = [(x, frame.top), (x, frame.top + HEIGHT)]
    else:
        seconds = (times + axes.shift) * axes.scales[0]
        joules = (cost - (1 - choice.eta) * seen.max_power_w * seconds) / choice.eta
        clipped = _clip(times, joules / axes.scales[1] - axes.shift, axes.y_span)
        ends = [(frame.x(x), frame.y(value)) for x, value in clipped]
    if len(ends) < 2:
        return []
    line = "L".join(f"{x:.1f} {at_y:.1f}" for x, at_y in ends)
    return [f'<path d="M{line}" stroke="{CHOSEN}" stroke-opacity="0.8" stroke-dasharray="6 4"/>']


def _clip(xs: np.ndarray, ys: np.ndarray, span: tuple[float, float]) -> list[tuple[float, float]]:
    """A straight line as far as it lies between two heights."""
    (x0, x1), (y0, y1) = map(float, xs), map(float, ys)
    if y0 == y1:
        return [(x0, y0), (x1, y1)] if span[0] <= y0 <= span[1] else []
    shares = sorted(((span[0] - y0) / (y1 - y0), (span[1] - y0) / (y1 - y0)))
    low, high = max(0.0, shares[0]), min(1.0, shares[1])
    return [] if low >= high else [(x0 + share * (x1 - x0), y0 + share * (y1 - y0)) for share in (low, high)]


def _points(seen: FrontierAnalysis, axes: _Axes, frame: Frame) -> list[str]:
    parts = []
    on = set(seen.front.tolist())
    spots = {
        row: spot for row in range(len(seen.points)) if (spot := _spot(seen, row, axes, frame)) is not None
    }
    measured = seen.points["measured"].to_list()
    pale: dict[bool, dict[tuple[int, int], None]] = {True: {}, False: {}}
    for row, (x, y) in spots.items():
        if row not in on:
            pale[measured[row]][(round(x), round(y))] = None
    for solid, cells in pale.items():
        drawn = list(cells)[:: max(1, math.ceil(len(cells) / MOST))]
        if solid and drawn:
            dots = "".join(f"M{x} {y}h0" for x, y in drawn)
            parts.append(
                f'<path d="{dots}" stroke="{ONE}" stroke-opacity="0.38" stroke-width="5" '
                'stroke-linecap="round"/>'
            )
        parts += (
            []
            if solid
            else [f'<circle cx="{x}" cy="{y}" r="3" stroke="{ONE}" stroke-opacity="0.7"/>' for x, y in drawn]
        )
    corners = [spots[row] for row in seen.front.tolist() if row in spots]
    if len(corners) > 1:
        steps = f"M{corners[0][0]:.1f} {corners[0][1]:.1f}" + "".join(
            f"H{x:.1f}V{y:.1f}" for x, y in corners[1:]
        )
        parts.append(f'<path d="{steps}" stroke="{ONE}" stroke-opacity="0.55"/>')
    for row in seen.front.tolist():
        if row in spots:
            parts.append(_bars(seen, row, axes, frame, spots[row]))
            fill = f'fill="{ONE}"' if measured[row] else f'fill="none" stroke="{ONE}" stroke-width="1.6"'
            parts.append(f'<circle cx="{spots[row][0]:.1f}" cy="{spots[row][1]:.1f}" r="4" {fill}/>')
    return parts


def _bars(seen: FrontierAnalysis, row: int, axes: _Axes, frame: Frame, spot: tuple[float, float]) -> str:
    """Errors of 95 %."""
    x, y = spot
    bars = ""
    for column, scale, across in (
        ("time_sd_s", axes.scales[0], True), ("energy_sd_j", axes.scales[1], False),
    ):
        error = seen.points[column][row]
        if not error:
            continue
        half = Z95 * error / scale
        if across:
            wide = half * (frame.right - frame.left) / (frame.x_span[1] - frame.x_span[0])
            bars += f"M{max(x - wide, frame.left):.1f} {y:.1f}H{min(x + wide, frame.right):.1f}"
        else:
            high = half * frame.height / (frame.y_span[1] - frame.y_span[0])
            bars += f"M{x:.1f} {max(y - high, frame.top):.1f}V{min(y + high, frame.top + frame.height):.1f}"
    return f'<path d="{bars}" stroke="{ONE}" stroke-opacity="0.6"/>' if bars else ""


def _marks(seen: FrontierAnalysis, choice: FrontierChoice, axes: _Axes, frame: Frame) -> list[str]:
    parts = []
    if seen.reference is not None and (spot := _spot(seen, seen.reference, axes, frame)) is not None:
        x, y = spot
        parts.append(
            f'<path d="M{x - 6:.1f} {y - 6:.1f}h12v12h-12z" stroke="currentColor" stroke-width="1.6"/>'
        )
        parts.append(_beside(frame, x, y - 10, "default"))
    if (spot := _spot(seen, choice.row, axes, frame)) is not None:
        x, y = spot
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="8.5" stroke="{CHOSEN}" stroke-width="2.6"/>')
        parts.append(_beside(frame, x, y + 20, "chosen", weight="bold"))
    return parts


def _beside(frame: Frame, x: float, y: float, name: str, *, weight: str = "") -> str:
    left = x > frame.right - 60
    return text(
        x + (-11 if left else 11), min(max(y, frame.top + 11), frame.top + frame.height - 4), name,
        anchor="end" if left else "", weight=weight,
    )


def page(picture: str, rows: Sequence[dict[str, object]], code: str, words: str) -> str:
    """The picture with the frontier's rows, the line of Python and all words folded away."""
    cell = 'style="text-align:left;padding:0 1em 0 0"'
    heads = "".join(f"<th {cell}>{name}</th>" for name in ("step", "configuration", "time", "energy"))
    body = ""
    for row in rows:
        weight = ' style="font-weight:bold"' if row["chosen"] else ""
        cells = "".join(
            f"<td {cell}>{html.escape(str(row[name]))}</td>"
            for name in ("step", "configuration", "time", "energy")
        )
        body += f"<tr{weight}>{cells}</tr>"
    told = (
        f"<table style='margin:.3em 0;font-size:12px;color:inherit'><tr>{heads}</tr>{body}</table>"
        if rows
        else ""
    )
    line = f"<pre style='margin:.3em 0;white-space:pre-wrap'>{html.escape(code)}</pre>" if code else ""
    said = html.escape(words).replace("\n", "<br>")
    folded = (
        f"<details style='font-size:12px'><summary>the frontier in a table</summary>{told}{line}</details>"
        if told
        else ""
    )
    return f"{picture}{folded}<details style='font-size:12px'><summary>in words</summary>{said}</details>"


