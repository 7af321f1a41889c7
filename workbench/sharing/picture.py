"""The power of a shared GPU over time, with who ran when: one `<svg>` element without scripts, readable on
light and on dark.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 190, 48, 10, 34, 22
COLOURS = ("#1a80c4", "#d0600c", "#21a67a", "#8800ff")  # of the jobs, as GPUs have them in the panels
TOGETHER = "#808080"
Span = tuple[tuple[str, ...], float, float]


def picture(trace: Any, spans: Sequence[Span], labels: Sequence[str], idle_w: float | None = None) -> str:
    """Power in watts over seconds; empty where there is too little to draw.

    Args:
        trace: Frame with `time_s` and `power_w`.
        spans: Who was measured when, on the clock of the trace.
        labels: Of all jobs, in the order of their colours.
        idle_w: Of the board, as a dashed line.
    """
    known = trace.select("time_s", "power_w").drop_nulls()
    if known.height < 10 or not spans:
        return ""
    every_s, every_w = known["time_s"].to_numpy().astype(float), known["power_w"].to_numpy().astype(float)
    time_s, power_w = _thin(every_s, every_w)
    means: list[str] = []
    start_s, end_s = float(time_s[0]), float(time_s[-1])
    high_w = 1.08 * float(max(power_w.max(), idle_w or 0.0, 1.0))

    def x(at_s: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (min(max(at_s, start_s), end_s) - start_s) / (end_s - start_s)

    def y(watts: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * watts / high_w

    out = [_text(
        LEFT, 12, "Power (W) over seconds. Coloured: one job alone. Grey: all together. Thick: means",
        "start",
    )]
    for members, from_s, to_s in spans:
        colour = (
            TOGETHER if len(members) > 1 or members[0] not in labels
            else COLOURS[list(labels).index(members[0]) % len(COLOURS)]
        )
        left, wide = x(from_s), x(to_s) - x(from_s)
        out.append(
            f'<rect x="{left:.1f}" y="{TOP}" width="{wide:.1f}" height="{HEIGHT - TOP - BOTTOM}" '
            f'fill="{colour}" opacity="0.18"/>'
        )
        name = members[0] if len(members) == 1 else "together"
        if wide > 6.2 * len(name):
            out.append(_text(left + wide / 2, TOP - 6, name, "middle", colour))
        inside = (every_s >= from_s) & (every_s <= to_s)
        if inside.sum() > 1:
            mean_w = float(np.trapezoid(every_w[inside], every_s[inside]) / np.ptp(every_s[inside]))
            means.append(
                f'<line x1="{left:.1f}" x2="{left + wide:.1f}" y1="{y(mean_w):.1f}" y2="{y(mean_w):.1f}" '
                f'stroke="{colour}" stroke-width="3">'
                f"<title>{html.escape(name)}: {mean_w:.0f} W on average</title></line>"
            )
    for watts in _ticks(high_w):
        out.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(watts):.1f}" y2="{y(watts):.1f}" '
            'stroke="#808080" opacity="0.25"/>'
        )
        out.append(_text(LEFT - 6, y(watts) + 4, f"{watts:g}", "end"))
    out += [
        _text(x(start_s + seconds), HEIGHT - 6, f"{seconds:g}", "middle")
        for seconds in _ticks(end_s - start_s)
    ]
    if idle_w is not None:
        at = f'y1="{y(idle_w):.1f}" y2="{y(idle_w):.1f}"'
        out.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" {at} stroke="#808080" stroke-dasharray="4 3"/>')
    points = " ".join(
        f"{x(at_s):.1f},{y(watts):.1f}" for at_s, watts in zip(time_s.tolist(), power_w.tolist(), strict=True)
    )
    out.append(f'<polyline points="{points}" fill="none" stroke="#808080" stroke-width="0.8"/>')
    out += means
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'style="max-width:{WIDTH}px;width:100%" role="img" '
        f'aria-label="power of the GPU while the jobs ran">{"".join(out)}</svg>'
    )


def _thin(time_s: Any, power_w: Any) -> tuple[Any, Any]:
    """The least and the most of every three pixels, so that a line of few points swings as far as all did."""
    count = WIDTH // 3
    if len(time_s) <= 2 * count:
        return time_s, power_w
    parts = np.array_split(np.arange(len(time_s)), count)
    keep = sorted({each[place(power_w[each])] for each in parts for place in (np.argmin, np.argmax)})
    return time_s[keep], power_w[keep]


def _ticks(high: float) -> list[float]:
    """Three to six round numbers from 0 on."""
    step = 10.0 ** math.floor(math.log10(max(high, 1e-6) / 3))
    step *= next(factor for factor in (1, 2, 5, 10) if high / (step * factor) < 6)
    return [round(step * number, 9) for number in range(int(high / step) + 1)]


def _text(x: float, y: float, label: str, anchor: str, colour: str = "#808080") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="11" '
        f'fill="{colour}">{html.escape(label)}</text>'
    )
