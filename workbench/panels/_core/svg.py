"""The static picture of a power trace: SVG without scripts, readable on light and on dark."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from .._views.power.series import Rows, is_gap, thin
from .theme import colour, dash

WIDTH, LEFT, RIGHT = 760, 56, 12
POWER_HEIGHT, ROW_HEIGHT, SMALL_HEIGHT = 170, 40, 44
TOGETHER = 2  # GPUs whose power is told apart in one frame; more get a row each
NARROW = 3.0  # iterations of less are not drawn
POINTS = 900  # of one line: more would not be seen, and the notebook carries them


class TraceLine(NamedTuple):
    """One GPU in the picture."""

    number: int
    name: str
    rows: Rows


class VerticalMark(NamedTuple):
    """A vertical line with a few words."""

    time_s: float
    text: str


def picture(
    title: str, lines: Sequence[TraceLine], marks: Sequence[VerticalMark], end_s: float,
    spans: Sequence[ShadedSpan] = (), below: Callable[[float], tuple[list[str], float]] | None = None,
) -> str:
    """Power with its limit, SM clock and utilisation over seconds, as one `<svg>` element.

    Args:
        title: Its heading.
        lines: The GPUs.
        marks: Vertical lines with words.
        end_s: Where the time axis ends.
        spans: Iterations, on whose ground the power is drawn.
        below: Draws more from a height on; returns what it drew and where that ends.
    """
    bins = max(100, POINTS // 2 // len(lines))
    lines = [line._replace(rows=thin(line.rows, bins)) for line in lines]
    span = (0.0, max(end_s, 1e-3))
    highest_w = max(_highest(lines, 1), _highest(lines, 2)) * 1.1
    together = len(lines) <= TOGETHER
    plots: list[_Plot] = []
    if together:
        plots.append(_Plot("Power (W); dashed: its limit", 1, lines, POWER_HEIGHT, highest_w, 5))
    else:
        plots += [_Plot(f"{line.name} (W)", 1, [line], ROW_HEIGHT, highest_w, 2) for line in lines]
    plots.append(_Plot("SM clock (MHz)", 3, lines, SMALL_HEIGHT, _highest(lines, 3) * 1.1, 2))
    plots.append(_Plot("Utilisation (%)", 4, lines, SMALL_HEIGHT, 105.0, 2))

    parts = [text(0, 13, title, size=13, weight="bold")]
    y = 22.0
    if together and len(lines) > 1:
        parts += _legend(lines, 34)
        y += 18
    for plot in plots:
        if not any((~np.isnan(line.rows[:, plot.column])).any() for line in plot.lines):
            continue
        y += 16
        frame = Frame(y, plot.height, span, (0.0, plot.high or 1.0))
        name = plot.name
        if spans and plot.column == 1:
            if frame.narrow(spans):
                name += "; too many iterations to be drawn"
            else:
                parts += frame.bands(spans)
                name += "; bands: iterations" + (
                    ", darker: pauses" if any(span.pause for span in spans) else ""
                )
        parts += frame.axes(name, plot.ticks, None if together or len(plot.lines) > 1 else plot.lines[0])
        for number, mark in enumerate(marks):
            next_s = marks[number + 1].time_s if number + 1 < len(marks) else None
            parts += frame.mark(mark, next_s, named=plot is plots[0])
        for line in plot.lines:
            if plot.column == 1:
                alone = len(plot.lines) == 1
                limit = frame.path(
                    line, 2, width=1.0, dashes=(5, 4), steps=True, stroke="currentColor" if alone else ""
                )
            parts.append(
                frame.path(
                    line, plot.column, width=1.4 if plot.column == 1 else 1.1, dashes=dash(line.number)
                )
            )
            if plot.column == 1:
                parts.append(limit)
        y += plot.height + 4
    parts += Frame(y, 0, span, (0.0, 1.0)).seconds()
    height = y + 34
    if below is not None:
        more, height = below(height)
        parts += more
    return svg(title, parts, height)


def svg(title: str, parts: Sequence[str], height: float) -> str:
    """The `<svg>` element around what was drawn."""
    words = html.escape(title)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" width="{WIDTH}" '
        'role="img" '
        f'aria-label="{words}" style="max-width:100%;height:auto;display:block" fill="none" '
        f'font-family="system-ui, sans-serif"><title>{words}</title>{"".join(parts)}</svg>'
    )


class ShadedSpan(NamedTuple):
    """An iteration, or a pause between iterations: an evaluation, a checkpoint, another shape."""

    start_s: float
    end_s: float
    pause: bool = False


class _Plot(NamedTuple):
    """What one frame shows."""

    name: str
    column: int
    lines: Sequence[TraceLine]
    height: int
    high: float
    ticks: int


class Frame:
    """One plot's rectangle, and how values fall into it."""

    def __init__(
        self, y: float, height: float, x_span: tuple[float, float], y_span: tuple[float, float], *,
        left: float = LEFT, right: float = WIDTH - RIGHT,
    ) -> None:
        self.top, self.height, self.x_span, self.y_span = y, height, x_span, y_span
        self.left, self.right = left, right

    def x(self, value: float) -> float:
        return self.left + (value - self.x_span[0]) / (self.x_span[1] - self.x_span[0]) * (
            self.right - self.left
        )

    def y(self, value: float) -> float:
        return (
            self.top
            + self.height
            - (value - self.y_span[0]) / (self.y_span[1] - self.y_span[0]) * self.height
        )

    def axes(self, name: str, about: int, swatch: TraceLine | None) -> list[str]:
        parts = [text(self.left + (22 if swatch else 0), self.top - 4, name, opacity=0.75)]
        if swatch:
            parts.append(_swatch(self.left, self.top - 8, swatch))
        for value in ticks(*self.y_span, about):
            y = self.y(value)
            parts.append(
                f'<path d="M{self.left:g} {y:.1f}H{self.right:g}" stroke="currentColor" '
                'stroke-opacity="0.16"/>'
            )
            parts.append(text(self.left - 6, y + 4, f"{value:g}", anchor="end"))
        return parts

    def below(self, name: str, values: Mapping[float, str]) -> list[str]:
        """The axis below: what stands at which value."""
        y = self.top + self.height
        parts = [
            f'<path d="M{self.left:g} {y:.1f}H{self.right:g}" stroke="currentColor" stroke-opacity="0.5"/>'
        ]
        for value, words in values.items():
            x = self.x(value)
            parts.append(f'<path d="M{x:.1f} {y:.1f}v4" stroke="currentColor" stroke-opacity="0.5"/>')
            parts.append(text(x, y + 16, words, anchor="middle"))
        parts.append(text((self.left + self.right) / 2, y + 30, name, anchor="middle", opacity=0.75))
        return parts

    def seconds(self) -> list[str]:
        return self.below(
            "seconds since the start", {value: f"{value:g}" for value in ticks(*self.x_span, 8)}
        )

    def bands(self, spans: Sequence[ShadedSpan]) -> list[str]:
        """Every other iteration on a light ground, what is no iteration on a darker one."""
        shown = [span for span in spans if span.end_s > self.x_span[0] and span.start_s < self.x_span[1]]
        turns = [span for span in shown if not span.pause]
        parts = []
        for opacity, each in ((0.07, turns[1::2]), (0.2, [span for span in shown if span.pause])):
            drawn = []
            for span in each:
                x0, x1 = self.x(max(span.start_s, self.x_span[0])), self.x(min(span.end_s, self.x_span[1]))
                drawn.append(f"M{x0:.1f} {self.top:.1f}H{x1:.1f}v{self.height}H{x0:.1f}z")
            if drawn:
                parts.append(f'<path d="{"".join(drawn)}" fill="currentColor" fill-opacity="{opacity:g}"/>')
        return parts

    def narrow(self, spans: Sequence[ShadedSpan]) -> bool:
        """Whether iterations are too narrow here to be told apart."""
        lengths = sorted(span.end_s - span.start_s for span in spans if not span.pause)
        return bool(lengths) and self.x(self.x_span[0] + lengths[len(lengths) // 2]) - self.left < NARROW

    def mark(self, mark: VerticalMark, next_s: float | None, *, named: bool) -> list[str]:
        if not self.x_span[0] <= mark.time_s <= self.x_span[1]:
            return []
        x = self.x(mark.time_s)
        look = 'stroke="currentColor" stroke-opacity="0.45" stroke-dasharray="2 3"'
        parts = [f'<path d="M{x:.1f} {self.top:.1f}v{self.height}" {look}/>']
        room = (WIDTH if next_s is None else self.x(next_s)) - x
        fits = room > 6.2 * len(mark.text) + 6
        if named and (fits or next_s is None):  # the last one turns to the left where it must
            parts.append(
                text(x + 4 if fits else x - 4, self.top + 10, mark.text, anchor="" if fits else "end")
            )
        return parts

    def path(
        self, line: TraceLine, column: int, *, width: float, dashes: Sequence[int], steps: bool = False,
        stroke: str = "",
    ) -> str:
        scale = 100.0 if column == 4 else 1.0
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
            elif y == last_y or steps:
                if drawn[-1].startswith("H"):  # a level stretch is one line
                    drawn.pop()
                drawn += [f"H{x}"] if y == last_y else [f"H{x}", f"V{y}"]
            else:
                drawn.append(f"L{x} {y}")
            pen, last_y = True, y
        pattern = f' stroke-dasharray="{" ".join(map(str, dashes))}"' if dashes else ""
        return (
            f'<path d="{"".join(drawn)}" stroke="{stroke or colour(line.number)}" stroke-width="{width:g}" '
            f'stroke-linejoin="round"{pattern}/>'
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


def _highest(lines: Sequence[TraceLine], column: int) -> float:
    return max([float(np.nanmax(line.rows[:, column], initial=0.0)) for line in lines], default=0.0)


def _legend(lines: Sequence[TraceLine], y: float) -> list[str]:
    parts = []
    for place, line in enumerate(lines):
        parts += [_swatch(LEFT + 90 * place, y - 4, line), text(LEFT + 90 * place + 24, y, line.name)]
    return parts


def _swatch(x: float, y: float, line: TraceLine) -> str:
    pattern = f' stroke-dasharray="{" ".join(map(str, dash(line.number)))}"' if dash(line.number) else ""
    return f'<path d="M{x:.0f} {y:.0f}h18" stroke="{colour(line.number)}" stroke-width="3"{pattern}/>'


def text(
    x: float, y: float, words: str, *, size: int = 11, anchor: str = "", weight: str = "",
    opacity: float = 1.0,
) -> str:
    more = (f' text-anchor="{anchor}"' if anchor else "") + (f' font-weight="{weight}"' if weight else "")
    more += f' fill-opacity="{opacity:g}"' if opacity < 1 else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" '
        f'fill="currentColor"{more}>{html.escape(words)}</text>'
    )


def lines(sentence: str, characters: int) -> list[str]:
    """A sentence in lines of at most so many characters, where its words allow it."""
    found = [""]
    for word in sentence.split():
        if len(found[-1]) + len(word) + 1 > characters:
            found.append("")
        found[-1] = f"{found[-1]} {word}".strip()
    return found
