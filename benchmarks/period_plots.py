"""Pictures of the period benchmark as small SVG files, readable on light and dark pages."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from workbench.panels._core.theme import colour

WIDTH, TOP, LEFT, RIGHT = 720, 48, 52, 16
INK, FAINT = "#212121", "#e0e0e0"


def reliability_plot(bins: Sequence[Mapping[str, Any]], error: float | None, cases: int) -> str:
    """Share right over stated confidence: a point per bin, as large as it has cases."""
    side = 360
    parts = [
        _text(20, 24, "Is a confidence a probability? The iteration, simulated jobs", size=15, bold=True)
    ]
    said = "-" if error is None else f"{error:.3f}"
    parts.append(
        _text(LEFT, 42, f"{cases} jobs; expected calibration error {said}; figures: answers in the bin")
    )
    for tick in (0, 0.2, 0.4, 0.6, 0.8, 1.0):
        x, y = LEFT + tick * side, TOP + 10 + (1 - tick) * side
        parts += [
            f'<path d="M{LEFT} {y:.1f}h{side}M{x:.1f} {TOP + 10}v{side}" stroke="{FAINT}"/>',
            _text(LEFT - 6, y + 4, f"{tick:g}", anchor="end"),
            _text(x, TOP + side + 26, f"{tick:g}", anchor="middle"),
        ]
    parts.append(
        f'<path d="M{LEFT} {TOP + 10 + side}L{LEFT + side} {TOP + 10}" stroke="{INK}" stroke-dasharray="4 '
        '4"/>'
    )
    most = max((each["cases"] for each in bins), default=1)
    places = [
        (LEFT + each["confidence"] * side, TOP + 10 + (1 - each["right"]) * side, each["cases"])
        for each in bins
    ]
    if places:
        parts.append(
            f'<path d="M{"L".join(f"{x:.1f} {y:.1f}" for x, y, _ in places)}" stroke="{colour(0)}" '
            'stroke-width="1.5"/>'
        )
    for x, y, count in places:
        parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{3 + 9 * (count / most) ** 0.5:.1f}" fill="{colour(0)}" '
            'fill-opacity="0.6"/>'
        )
        parts.append(_text(x + 14, y + 4, str(count)))
    parts.append(_text(LEFT + side / 2, TOP + side + 44, "stated confidence", anchor="middle"))
    parts.append(
        f'<g transform="translate(14 {TOP + side / 2}) '
        f'rotate(-90)">{_text(0, 0, "share that was right", anchor="middle")}</g>'
    )
    return _svg(parts, LEFT + side + 60, TOP + side + 56)


def family_bars(shares: Mapping[str, Mapping[str, float | None]], counts: Mapping[str, int]) -> str:
    """A group of bars a family, a bar a detector: share of observable cases with the exact iteration."""
    names = list(shares)
    group, height = 18 + 14 * len(names), 16
    parts = [_text(20, 24, "Iteration within 5 %, by family (observable cases)", size=15, bold=True)]
    for place, name in enumerate(names):
        key = 150 + 105 * place
        parts += [
            f'<rect x="{key}" y="33" width="12" height="12" fill="{colour(place)}"/>',
            _text(key + 17, 43, name),
        ]
    wide = WIDTH - 150 - 60
    end = TOP + 14 + group * len(counts)
    for tick in (0, 0.25, 0.5, 0.75, 1.0):
        x = 150 + tick * wide
        parts += [
            f'<path d="M{x:.1f} {TOP + 8}V{end}" stroke="{FAINT}"/>',
            _text(x, end + 14, f"{tick:g}", anchor="middle"),
        ]
    for row, (family, count) in enumerate(counts.items()):
        y = TOP + 14 + row * group
        parts.append(_text(142, y + group / 2 - 2, f"{family} ({count})", anchor="end"))
        for place, name in enumerate(names):
            share = shares[name].get(family)
            if share is not None:
                top = y + 14 * place
                parts.append(
                    f'<rect x="150" y="{top}" width="{max(1.0, share * wide):.1f}" height="{height - 4}" '
                    f'fill="{colour(place)}"/>'
                )
                parts.append(_text(150 + share * wide + 5, top + 10, f"{share:.2f}"))
    return _svg(parts, WIDTH, end + 24)


def _svg(parts: Sequence[str], width: float, height: float) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        'fill="none" '
        'font-family="system-ui, sans-serif"><rect width="100%" height="100%" '
        f'fill="#ffffff"/>{"".join(parts)}</svg>\n'
    )


def _text(
    x: float, y: float, words: str, *, size: int = 11, anchor: str = "start", bold: bool = False
) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{INK}" '
        f'text-anchor="{anchor}"{weight}>{html.escape(words)}</text>'
    )
