"""The static picture of a comparison of policies: nodes and power over time, a distribution, energy, the
sweep; SVG without scripts.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..._core.svg import LEFT, RIGHT, WIDTH, Frame, lines, svg, text, ticks
from ..._core.theme import colour, dash
from .model import DISTRIBUTION_WORDS, HEADS, LOWEST, ClusterView, PolicyCurve

HEIGHT = 165
GUTTER = 34
MIDDLE = (WIDTH + LEFT - 20) / 2
CHARACTERS = 116
NAME_PX = 6.3  # of a character
MOST_MARKS = 10  # values of a sweep that are written below its axis


def draw(title: str, sentences: Sequence[str], found: ClusterView, distribution: str = "wait_h") -> str:
    """One `<svg>` element."""
    parts = [text(0, 13, title, size=13, weight="bold")]
    y = 18.0
    for number, sentence in enumerate(sentences):
        for line in lines(sentence, CHARACTERS):
            y += 16
            bold = number == 0 and bool(found.headline)
            parts.append(
                text(
                    0, y, line, size=12 if bold else 11, weight="bold" if bold else "",
                    opacity=1.0 if bold else 0.75,
                )
            )
    if not found.curves:
        return svg(title, parts, y + 10)
    legend, y = _legend(found.curves, y + 22)
    parts += legend
    y += GUTTER - 8
    parts += _course(found.curves, y, "hosting", "Active nodes: with a job", left=True)
    parts += _course(found.curves, y, "power_kw", "Power of the cluster (kW)", left=False)
    y += HEIGHT + 38 + GUTTER
    parts += _shares(found.curves, y, distribution)
    parts += _bars(found, y)
    y += HEIGHT + 38
    if found.swept:
        y += GUTTER
        parts += _sweep(found, y)
        y += HEIGHT + 38
    return svg(title, parts, y)


def _legend(curves: Sequence[PolicyCurve], y: float) -> tuple[list[str], float]:
    parts, x = [], float(LEFT)
    for each in curves:
        wide = 34 + NAME_PX * len(each.words)
        if x + wide > WIDTH and x > LEFT:
            x, y = float(LEFT), y + 16
        parts.append(
            f'<path d="M{x:.0f} {y - 4:.0f}h18" stroke="{colour(each.number)}" '
            f'stroke-width="3"{_dashes(each.number)}/>'
        )
        parts.append(text(x + 24, y, each.words))
        x += wide
    return parts, y


def _dashes(number: int) -> str:
    pattern = dash(number)
    return f' stroke-dasharray="{" ".join(map(str, pattern))}"' if pattern else ""


def _half(y: float, x: tuple[float, float], span: tuple[float, float], *, left: bool) -> Frame:
    return (
        Frame(y, HEIGHT, x, span, right=MIDDLE - 30)
        if left
        else Frame(y, HEIGHT, x, span, left=MIDDLE + 26, right=WIDTH - RIGHT)
    )


def _course(curves: Sequence[PolicyCurve], y: float, name: str, words: str, *, left: bool) -> list[str]:
    end = max(each.course["hours"][-1] for each in curves if len(each.course["hours"]))
    high = max(float(each.course[name].max(initial=0.0)) for each in curves)
    frame = _half(y, (0.0, max(end, 1e-9)), (0.0, 1.08 * high or 1.0), left=left)
    scale, unit = (24.0, "days") if end > 72 else (1.0, "hours")
    parts = frame.axes(words, 4, None)
    parts += frame.below(
        f"{unit} since the first submission",
        {value * scale: f"{value:g}" for value in ticks(0.0, end / scale, 6)},
    )
    for each in curves:
        hours, values = each.course["hours"], each.course[name]
        starts = np.concatenate([[0.0], hours[:-1]])
        drawn: list[str] = []
        last = ""
        for start, stop, value in zip(starts, hours, values, strict=True):
            level = f"{frame.y(float(value)):.1f}"
            if not drawn:
                drawn.append(f"M{frame.x(float(start)):.1f} {level}")
            elif level != last:
                drawn.append(f"V{level}")
            elif drawn[-1].startswith("H"):
                drawn.pop()
            drawn.append(f"H{frame.x(float(stop)):.1f}")
            last = level
        parts.append(
            f'<path d="{"".join(drawn)}" stroke="{colour(each.number)}" '
            f'stroke-width="1.3"{_dashes(each.number)}/>'
        )
    return parts


def axis(name: str, curves: Sequence[PolicyCurve]) -> tuple[tuple[float, float], bool]:
    """Range of a distribution's values over all curves, and whether its axis is logarithmic."""
    low = LOWEST[name]
    values = [each.distributions[name] for each in curves if len(each.distributions[name])]
    highest = max((float(each[-1]) for each in values), default=1.0)
    if low is None:
        # One job of a hundred may be slowed beyond all others; the axis is for the rest.
        high = max((float(each[int(0.99 * (len(each) - 1))]) for each in values), default=1.0)
        return (min(0.0, min((float(each[0]) for each in values), default=0.0)), max(1.15 * high, 1.0)), False
    return (low, max(highest * 1.05, 10 * low)), True


def _shares(curves: Sequence[PolicyCurve], y: float, name: str) -> list[str]:
    span, logarithmic = axis(name, curves)
    turned = (math.log10(span[0]), math.log10(span[1])) if logarithmic else span
    frame = _half(y, turned, (0.0, 1.0), left=True)
    title, unit = DISTRIBUTION_WORDS[name]
    parts = frame.axes(f"{title}: share of jobs below", 5, None)
    if logarithmic:
        marks = {
            float(n): f"{10.0**n:g}"
            for n in range(math.ceil(turned[0] - 1e-9), math.floor(turned[1] + 1e-9) + 1)
        }
    else:
        marks = {value: f"{value:g}" for value in ticks(*span, 6)}
    parts += frame.below(unit, marks)
    for each in curves:
        values = each.distributions[name]
        if len(values):
            held = np.clip(values, *span)
            xs = np.log10(held) if logarithmic else held
            points = [
                f"{frame.x(float(x)):.1f} {frame.y(float(share)):.1f}"
                for x, share in zip(xs, np.linspace(0, 1, len(xs)), strict=True)
            ]
            parts.append(
                f'<path d="M{"L".join(points)}" stroke="{colour(each.number)}" '
                f'stroke-width="1.6"{_dashes(each.number)}/>'
            )
    return parts


def _bars(found: ClusterView, y: float) -> list[str]:
    if not found.bars:
        return []
    high = max(bar.owned + bar.unowned + (bar.error or 0.0) for bar in found.bars)
    count = len(found.bars)
    frame = _half(y, (-0.6, count - 0.4), (0.0, 1.12 * high), left=False)
    parts = frame.axes("Energy against the first policy; pale: nodes without a job", 5, None)
    parts += frame.below("policies in the order of the table", {float(n): str(n + 1) for n in range(count)})
    wide = 0.62 * (frame.right - frame.left) / (count + 0.2)
    for n, bar in enumerate(found.bars):
        x, top, middle, bottom = (
            frame.x(n), frame.y(bar.owned + bar.unowned), frame.y(bar.owned), frame.y(0.0),
        )
        ink = colour(bar.number)
        words = html.escape(f"{bar.words}: {bar.owned + bar.unowned:.3f}")
        parts.append(
            f'<path d="M{x - wide / 2:.1f} {bottom:.1f}V{middle:.1f}h{wide:.1f}V{bottom:.1f}z" '
            f'fill="{ink}"><title>{words}</title></path>'
        )
        parts.append(
            f'<path d="M{x - wide / 2:.1f} {middle:.1f}V{top:.1f}h{wide:.1f}V{middle:.1f}z" fill="{ink}" '
            'fill-opacity="0.4"/>'
        )
        if bar.error:
            low_y, high_y = (
                frame.y(bar.owned + bar.unowned - bar.error), frame.y(bar.owned + bar.unowned + bar.error),
            )
            parts.append(
                f'<path d="M{x:.1f} {low_y:.1f}V{high_y:.1f}" stroke="currentColor" stroke-width="1.6"/>'
            )
            top = high_y
        parts.append(text(x, top - 4, f"{bar.owned + bar.unowned:.2f}", anchor="middle"))
    return parts


def _sweep(found: ClusterView, y: float) -> list[str]:
    values = [value for each in found.swept for value in each.values if math.isfinite(value)]
    tops = [
        value + (error or 0.0)
        for each in found.swept
        for value, error in zip(each.energy_mwh, each.error, strict=True)
    ]
    if not values:
        return []
    low, high = min(values), max(values)
    room = 0.06 * ((high - low) or 1.0)
    frame = Frame(y, HEIGHT, (low - room, high + room), (0.0, 1.08 * max(tops)))
    parts = frame.axes(
        "Energy (MWh)"
        + ("; bars: standard deviation from draw to draw" if any(any(s.error) for s in found.swept) else ""),
        4, None,
    )
    tried = sorted(set(values))
    marks = tried if len(tried) <= MOST_MARKS else ticks(low, high, 8)
    parts += frame.below(found.swept_words, {value: f"{value:g}" for value in marks})
    for each in found.swept:
        ink = colour(each.number)
        spots = [
            (frame.x(value), frame.y(energy), error)
            for value, energy, error in zip(each.values, each.energy_mwh, each.error, strict=True)
            if math.isfinite(value)
        ]
        parts.append(
            f'<path d="M{"L".join(f"{x:.1f} {at:.1f}" for x, at, _ in spots)}" stroke="{ink}" '
            f'stroke-width="1.4"{_dashes(each.number)}/>'
        )
        for x, at, error in spots:
            parts.append(f'<circle cx="{x:.1f}" cy="{at:.1f}" r="3.2" fill="{ink}"/>')
            if error:
                half = error / (frame.y_span[1] - frame.y_span[0]) * frame.height
                parts.append(f'<path d="M{x:.1f} {at - half:.1f}V{at + half:.1f}" stroke="{ink}"/>')
    return parts


def page(picture: str, found: ClusterView, words: str, more: str = "") -> str:
    """The picture, the table below it, and all words folded away."""
    said = html.escape(words).replace("\n", "<br>")
    return (
        f"{picture}{table(found)}{more}<details style='font-size:12px'><summary>in "
        f"words</summary>{said}</details>"
    )


def table(found: ClusterView) -> str:
    """The policies side by side, as HTML without scripts."""
    if not found.lines:
        return ""
    style = "text-align:right;padding:0 12px 2px 0;font-weight:400"
    left = style.replace("right", "left", 1)
    heads = "".join(
        f'<th style="{left if n == 0 else style};opacity:.75" title="{html.escape(hint)}">{name}</th>'
        for n, (name, hint) in enumerate(HEADS)
    )
    body = ""
    for n, line in enumerate(found.lines):
        ink = f'<span style="color:{colour(line.number)}">■</span> '
        cells: list[Any] = [f'<td style="{left}">{n + 1}. {ink}{html.escape(line.cells[0])}</td>']
        cells += [f'<td style="{style}">{html.escape(cell)}</td>' for cell in line.cells[1:]]
        body += f"<tr>{''.join(cells)}</tr>"
    return (
        '<table style="font-size:12px;border-collapse:collapse;color:inherit;margin:.3em '
        f'0"><tr>{heads}</tr>{body}</table>'
    )
