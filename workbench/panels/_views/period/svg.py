"""The static picture of a rhythm: the folded iteration and the spectrum side by side, below the power or
alone.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import numpy as np

from ..._core.svg import LEFT, RIGHT, WIDTH, Frame, text, ticks
from ..._core.theme import colour
from .model import PeriodView, Table, level_words

HEIGHT = 150
HEADLINE, DETAIL = 92, 120  # characters that fit the width, in letters of 13 and 11
SPLIT = 0.58  # where the fold ends and the spectrum begins
MOST_LINES = 14  # iterations in the picture: more would only be ink
DECADES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


def rhythm(look: PeriodView, number: int, top: float) -> tuple[list[str], float]:
    """What is known of the rhythm of GPU `number`, from a height on; and the height where it ends."""
    parts, y = [], top + 4
    for line in textwrap.wrap(look.headline, HEADLINE):
        y += 16
        parts.append(text(0, y, line, size=13, weight="bold"))
    for sentence in look.details:
        for line in textwrap.wrap(sentence, DETAIL):
            y += 16
            parts.append(text(0, y, line, opacity=0.75))
    if not len(look.spectrum):
        return parts, y + 8
    y += 32
    middle = WIDTH * SPLIT
    if len(look.folded) and look.level is not None:
        parts += _fold(look, number, y, middle - 14)
        parts += _spectrum(look, number, y, middle + 34)
    else:
        parts += _spectrum(look, number, y, LEFT)
    return parts, y + HEIGHT + 38


def _fold(look: PeriodView, number: int, y: float, right: float) -> list[str]:
    assert look.level is not None
    high_w = max(float(np.nanmax(look.folded[:, 1])), float(look.shape[:, 3].max())) * 1.15
    unit, scale = ("ms", 1000.0) if look.level.seconds < 0.9995 else ("s", 1.0)
    span_s = look.level.seconds
    frame = Frame(y, HEIGHT, (0.0, span_s * scale), (0.0, high_w), right=right)
    parts = frame.axes(
        f"{look.level.name.capitalize()}s laid over one another (W), and their median", 4, None
    )
    if look.waits:
        x0, x1 = (frame.x(at_s * scale) for at_s in look.waits)
        parts.append(
            f'<path d="M{x0:.1f} {y:.1f}H{x1:.1f}v{HEIGHT}H{x0:.1f}z" fill="currentColor" '
            'fill-opacity="0.12"/>'
        )
        late = x1 > right - 20  # no room to the right
        parts.append(
            text(
                x1 - 3 if late else (x0 + x1) / 2, y + 11, "waits", anchor="end" if late else "middle",
                opacity=0.75,
            )
        )
    low, high = look.shape[:, [0, 1]], look.shape[::-1][:, [0, 3]]
    band = "L".join(_points(frame, np.concatenate([low, high]), scale))
    parts.append(f'<path d="M{band}z" fill="{colour(number)}" fill-opacity="0.18"/>')
    pieces = np.split(look.folded, np.flatnonzero(np.isnan(look.folded[:, 0])))
    lines = [
        "M" + "L".join(_points(frame, piece[~np.isnan(piece[:, 0])], scale))
        for piece in pieces[-MOST_LINES:]
        if len(piece) > 2
    ]
    look_of_lines = (
        f'stroke="{colour(number)}" stroke-width="0.7" stroke-opacity="0.4" stroke-linejoin="round"'
    )
    parts.append(f'<path d="{"".join(lines)}" {look_of_lines}/>')
    median = "L".join(_points(frame, look.shape[:, [0, 2]], scale))
    parts.append(f'<path d="M{median}" stroke="currentColor" stroke-width="1.8" stroke-linejoin="round"/>')
    return parts + frame.below(
        f"{unit} since its start", {value: f"{value:g}" for value in ticks(0.0, span_s * scale, 6)}
    )


def _spectrum(look: PeriodView, number: int, y: float, left: float) -> list[str]:
    logs = np.column_stack([np.log10(look.spectrum[:, 0]), look.spectrum[:, 1]])
    span = (float(logs[0, 0]), float(logs[-1, 0]))
    frame = Frame(y, HEIGHT, span, (0.0, 1.15), left=left)
    parts = [text(left, y - 4, "Spectrum of the power", opacity=0.75)]
    line = "L".join(_points(frame, logs, 1.0))
    parts.append(f'<path d="M{line}" stroke="{colour(number)}" stroke-width="1.2" stroke-linejoin="round"/>')
    for row, level in enumerate(look.levels):
        at = float(np.log10(level.seconds))
        if not span[0] <= at <= span[1]:
            continue
        x, chosen = frame.x(at), level == look.level
        pattern = "" if chosen else ' stroke-dasharray="3 3"'
        parts.append(
            f'<path d="M{x:.1f} {y:.1f}v{HEIGHT}" stroke="currentColor" '
            f'stroke-opacity="{0.9 if chosen else 0.5:g}"{pattern}/>'
        )
        leftwards = x > WIDTH - RIGHT - 110
        parts.append(
            text(
                x - 4 if leftwards else x + 4, y + 10 + 13 * row, level_words(level),
                anchor="end" if leftwards else "",
            )
        )
    shown = {
        float(np.log10(value)): f"{value:g}" for value in DECADES if span[0] <= np.log10(value) <= span[1]
    }
    return parts + frame.below("period (s)", shown)


def _points(frame: Frame, table: Table, scale: float) -> Sequence[str]:
    return [f"{frame.x(float(x) * scale):.1f} {frame.y(float(y)):.1f}" for x, y in table]
