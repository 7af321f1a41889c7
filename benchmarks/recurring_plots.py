"""Pictures of the replay as small SVG files: cumulative cost over the cost of the best configuration.

python -m benchmarks.recurring_plots RESULT.json [DIR]
"""

from __future__ import annotations

import html
import json
import sys
from collections.abc import Mapping, Sequence
from math import log
from pathlib import Path

from workbench.panels._core.theme import colour

SHOWN = ("ours", "Zeus", "best limit only")
WIDTH, HEIGHT, GAP, LEFT, TOP = 216, 128, 22, 44, 66
COLUMNS = 3
INK, FAINT = "#212121", "#e0e0e0"
LOW, HIGH = 1.0, 3.0  # of the logarithmic axis; what is beyond is cut
POINTS = 70  # of a curve


def curves_plot(curves: Mapping[str, Mapping[str, Sequence[float]]], names: Sequence[str] = SHOWN) -> str:
    """Cumulative cost over the oracle's against recurrences, a small plot for every pair. Contestants that
    were not there are left out.
    """
    names = [name for name in names if name in curves]
    pairs = list(curves[names[0]]) if names else []
    parts = [_text(LEFT, 22, "Cost so far over the best configuration's, by recurrences", size=15, bold=True)]
    for place, name in enumerate(names):
        key = LEFT + 130 * place
        parts += [
            f'<path d="M{key} 40h18" stroke="{colour(place)}" stroke-width="2"/>',
            _text(key + 24, 44, name),
        ]
    for n, pair in enumerate(pairs):
        row, column = divmod(n, COLUMNS)
        x0, y0 = LEFT + column * (WIDTH + GAP), TOP + row * (HEIGHT + 44)
        longest = max(len(curves[name][pair]) for name in names)
        parts.append(_text(x0, y0 + 2, pair, bold=True))
        for tick in (1.0, 1.5, 2.0, 3.0):
            y = y0 + 10 + _height(tick)
            parts.append(f'<path d="M{x0} {y:.1f}h{WIDTH}" stroke="{FAINT}"/>')
            if column == 0:
                parts.append(_text(x0 - 6, y + 4, f"{tick:g}", anchor="end"))
        for place, name in enumerate(names):
            parts.append(
                f'<path d="{_path(curves[name][pair], longest, x0, y0 + 10)}" stroke="{colour(place)}" '
                'stroke-width="1.6"/>'
            )
        parts += [
            _text(x0, y0 + HEIGHT + 24, "1"),
            _text(x0 + WIDTH, y0 + HEIGHT + 24, str(longest), anchor="end"),
        ]
    rows = -(-len(pairs) // COLUMNS)
    width, height = LEFT + COLUMNS * (WIDTH + GAP), TOP + rows * (HEIGHT + 44)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" fill="none" '
        'font-family="system-ui, sans-serif"><rect width="100%" height="100%" '
        f'fill="#ffffff"/>{"".join(parts)}</svg>\n'
    )


def draw(curves: Mapping[str, Mapping[str, Sequence[float]]], directory: Path) -> Path:
    """Write `recurring-cost.svg`."""
    directory.mkdir(parents=True, exist_ok=True)
    target = directory / "recurring-cost.svg"
    target.write_text(curves_plot(curves), encoding="utf-8")
    return target


def _path(values: Sequence[float], longest: int, x0: float, y0: float) -> str:
    """A curve over recurrences; the first ones matter, so that the axis is logarithmic as well."""
    wanted = {round(longest ** (i / POINTS)) - 1 for i in range(POINTS + 1)}
    at = [i for i in range(len(values)) if i in wanted or i == len(values) - 1]
    points = [
        f"{x0 + WIDTH * log(i + 1) / log(max(longest, 2)):.1f} {y0 + _height(values[i]):.1f}" for i in at
    ]
    return "M" + "L".join(points)


def _height(ratio: float) -> float:
    """From the top of a plot."""
    share = (log(min(max(ratio, LOW), HIGH)) - log(LOW)) / (log(HIGH) - log(LOW))
    return HEIGHT * (1 - share)


def _text(
    x: float, y: float, words: str, *, size: int = 11, anchor: str = "start", bold: bool = False
) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{INK}" '
        f'text-anchor="{anchor}"{weight}>{html.escape(words)}</text>'
    )


if __name__ == "__main__":
    found = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["curves"]
    print(
        draw(
            found,
            Path(sys.argv[2])
            if len(sys.argv) > 2
            else Path(__file__).resolve().parents[1] / "docs" / "images",
        )
    )
