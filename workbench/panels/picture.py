"""The static picture of a power trace: SVG without scripts, readable on light and dark (axes take the text's colour)."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .series import Rows, is_gap, thin
from .theme import colour, dash

WIDTH, LEFT, RIGHT = 760, 56, 12
POWER_HEIGHT, SMALL_HEIGHT, SPACE = 170, 44, 16
POINTS = 900  # of one line: more would not be seen, and the notebook carries them


class Line(NamedTuple):
    """One GPU in the picture."""

    number: int
    name: str
    rows: Rows


class Mark(NamedTuple):
    """A vertical line with a few words."""

    time_s: float
    text: str


def picture(title: str, lines: Sequence[Line], marks: Sequence[Mark], end_s: float) -> str:
    """Power with its limit, SM clock and utilisation over seconds, as one `<svg>` element."""
    bins = max(60, POINTS // 2 // max(1, len(lines)) * 2)
    lines = [line._replace(rows=thin(line.rows, bins)) for line in lines]
    many = len(lines) > 1
    span = (0.0, max(end_s, 1e-3))
    top = 24 + (18 * math.ceil(len(lines) / 4) if many else 0)
    parts = [_text(0, 13, title, size=13, weight="bold")]
    if many:
        parts += _legend(lines, 32)
    highest_w = max([float(np.nanmax(line.rows[:, 1:3], initial=0.0)) for line in lines], default=0.0)
    body: list[str] = []
    y = top + 14
    for name, column, height, high in (
        ("Power (W)", 1, POWER_HEIGHT, highest_w * 1.06),
        ("SM clock (MHz)", 3, SMALL_HEIGHT, _highest(lines, 3) * 1.1),
        ("Utilisation (%)", 4, SMALL_HEIGHT, 105.0),
    ):
        if not any((~np.isnan(line.rows[:, column])).any() for line in lines):
            continue
        frame = _Frame(y, height, span, (0.0, high or 1.0))
        scale = 100.0 if column == 4 else 1.0
        body += frame.axes(name, few=column != 1)
        if column == 1:
            body += [mark for number, one in enumerate(marks) for mark in frame.mark(one, marks[number + 1 : number + 2])]
            body += [frame.path(line, 2, 1.0, width=1.0, dashes=(5, 4), steps=True, opacity=0.8) for line in lines]
        body += [frame.path(line, column, scale, width=1.4 if column == 1 else 1.1, dashes=dash(line.number)) for line in lines]
        y += height + SPACE + (14 if column != 4 else 0)
    y -= SPACE
    body += _Frame(y, 0, span, (0.0, 1.0)).seconds()
    height = y + 34
    words = html.escape(title)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" role="img" '
        f'aria-label="{words}" style="max-width:100%;height:auto;display:block" fill="none" '
        f'font-family="system-ui, sans-serif"><title>{words}</title>{"".join(parts + body)}</svg>'
    )


class _Frame:
    """One plot's rectangle, and how values fall into it."""

    def __init__(self, y: float, height: float, x_span: tuple[float, float], y_span: tuple[float, float]) -> None:
        self.top, self.height, self.x_span, self.y_span = y, height, x_span, y_span
        self.right = WIDTH - RIGHT

    def x(self, value: float) -> float:
        return LEFT + (value - self.x_span[0]) / (self.x_span[1] - self.x_span[0]) * (self.right - LEFT)

    def y(self, value: float) -> float:
        return self.top + self.height - (value - self.y_span[0]) / (self.y_span[1] - self.y_span[0]) * self.height

    def axes(self, name: str, *, few: bool) -> list[str]:
        parts = [_text(LEFT, self.top - 5, name, size=11, opacity=0.75)]
        for value in ticks(*self.y_span, 2 if few else 5):
            y = self.y(value)
            parts.append(f'<path d="M{LEFT} {y:.1f}H{self.right}" stroke="currentColor" stroke-opacity="0.16"/>')
            parts.append(_text(LEFT - 6, y + 4, f"{value:g}", anchor="end"))
        return parts

    def seconds(self) -> list[str]:
        y = self.top
        parts = [f'<path d="M{LEFT} {y:.1f}H{self.right}" stroke="currentColor" stroke-opacity="0.5"/>']
        for value in ticks(*self.x_span, 8):
            x = self.x(value)
            parts.append(f'<path d="M{x:.1f} {y:.1f}v4" stroke="currentColor" stroke-opacity="0.5"/>')
            parts.append(_text(x, y + 16, f"{value:g}", anchor="middle"))
        parts.append(_text((LEFT + self.right) / 2, y + 30, "seconds since the start", anchor="middle", opacity=0.75))
        return parts

    def mark(self, mark: Mark, following: Sequence[Mark]) -> list[str]:
        if not self.x_span[0] <= mark.time_s <= self.x_span[1]:
            return []
        x = self.x(mark.time_s)
        line = f'<path d="M{x:.1f} {self.top:.1f}v{self.height}" stroke="currentColor" stroke-opacity="0.45" stroke-dasharray="2 3"/>'
        room = min([self.x(after.time_s) for after in following] + [self.right + RIGHT]) - x
        length = 6.2 * len(mark.text) + 6
        if not mark.text or (following and room < length):
            return [line]
        if room < length:  # the last one, at the right edge
            return [line, _text(x - 4, self.top + 10, mark.text, anchor="end", halo=True)]
        return [line, _text(x + 4, self.top + 10, mark.text, halo=True)]

    def path(
        self, line: Line, column: int, scale: float, *, width: float, dashes: Sequence[int], steps: bool = False, opacity: float = 1.0
    ) -> str:
        drawn: list[str] = []
        pen, last_y = False, ""
        gaps = is_gap(line.rows)
        for (time_s, value), gap in zip(line.rows[:, [0, column]], gaps, strict=True):
            if gap or math.isnan(value):
                pen = False
                continue
            x, y = f"{self.x(float(time_s)):.1f}", f"{self.y(float(value) * scale):.1f}"
            if not pen:
                drawn.append(f"M{x} {y}")
            elif y == last_y:  # level stretches are drawn at their end
                drawn[-1] = f"H{x}" if drawn[-1].startswith("H") else drawn[-1]
                if not drawn[-1].startswith("H"):
                    drawn.append(f"H{x}")
            elif steps:
                drawn.append(f"H{x}V{y}")
            else:
                drawn.append(f"L{x} {y}")
            pen, last_y = True, y
        pattern = f' stroke-dasharray="{" ".join(map(str, dashes))}"' if dashes else ""
        return (
            f'<path d="{"".join(drawn)}" stroke="{colour(line.number)}" stroke-width="{width:g}" '
            f'stroke-opacity="{opacity:g}" stroke-linejoin="round"{pattern}/>'
        )


def ticks(low: float, high: float, about: int) -> list[float]:
    """Round values between two numbers, some `about` of them.

    >>> ticks(0, 424, 5)
    [0.0, 100.0, 200.0, 300.0, 400.0]
    """
    raw = (high - low) / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(number * step, 9) for number in range(first, math.floor(high / step + 1e-9) + 1)]


def _highest(lines: Sequence[Line], column: int) -> float:
    return max([float(np.nanmax(line.rows[:, column], initial=0.0)) for line in lines], default=0.0)


def _legend(lines: Sequence[Line], y: float) -> list[str]:
    parts = []
    for place, line in enumerate(lines):
        x, row_y = (place % 4) * WIDTH / 4, y + 18 * (place // 4)
        pattern = f' stroke-dasharray="{" ".join(map(str, dash(line.number)))}"' if dash(line.number) else ""
        parts.append(f'<path d="M{x:.0f} {row_y - 4:.0f}h18" stroke="{colour(line.number)}" stroke-width="3"{pattern}/>')
        parts.append(_text(x + 24, row_y, line.name))
    return parts


def _text(
    x: float, y: float, words: str, *, size: int = 11, anchor: str = "", weight: str = "", opacity: float = 1.0, halo: bool = False
) -> str:
    more = (f' text-anchor="{anchor}"' if anchor else "") + (f' font-weight="{weight}"' if weight else "")
    more += f' fill-opacity="{opacity:g}"' if opacity < 1 else ""
    del halo
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="currentColor"{more}>{html.escape(words)}</text>'
