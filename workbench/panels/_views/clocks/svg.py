"""The static picture of a tuner: what every setting was believed to cost, the probes on top in order, the
planes of settings.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import Any

from ..._core.svg import LEFT, RIGHT, WIDTH, Frame, lines, svg, text, ticks
from ..._core.theme import colour
from .model import Drawing, SettingMark
from .surface import Columns, Table, opacity

HEIGHT = 215
GUTTER = 34
MIDDLE = (WIDTH + LEFT - 20) / 2
CHARACTERS = 112  # that fit into one line
SPENT, SAVED = colour(5), colour(2)
Point = tuple[float, float, float]
NAMES = {"sm": "SM clock (MHz)", "limit": "power limit (W)", "clocks": "SM clock (MHz)"}


def draw(title: str, sentences: Sequence[str], view: Drawing | None, table: Table) -> str:
    """One `<svg>` element; without a drawing it has only words."""
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
    if view is None:
        return svg(title, parts, y + 12)
    y += GUTTER
    parts += _plane(view, table, y)
    if view.knobs:
        parts += (_clocks if view.knobs[0] == "clocks" else _line_of)(view, y)
    return svg(title, parts, y + HEIGHT + 38)


# time against energy


def _plane(view: Drawing, table: Table, y: float) -> list[str]:
    frame = Frame(y, HEIGHT, view.ranges["time"], view.ranges["energy"], right=MIDDLE - 24)
    parts = []
    if view.bound is not None:
        parts.append(_ground(frame, frame.x_span[0], min(view.bound, frame.x_span[1])))
    parts += frame.axes("Energy against the default (%)", 6, None)
    parts += frame.below(
        "time against the default (%)", {value: f"{value:g}" for value in ticks(*frame.x_span, 6)}
    )
    believed = table[:, [3, 5]].tolist()
    inside = [
        f"M{frame.x(x):.1f} {frame.y(e):.1f}h0"
        for x, e in believed
        if _within(x, frame.x_span) and _within(e, frame.y_span)
    ]
    if inside:
        parts.append(
            f'<path d="{"".join(inside)}" stroke="{colour(0)}" stroke-opacity="0.28" stroke-width="4" '
            'stroke-linecap="round"/>'
        )
    parts += [_cross_lines(frame)]
    if view.bound is not None:
        parts.append(
            text(frame.left + 5, frame.top + frame.height - 6, f"within {view.bound:g} %", opacity=0.8)
        )
    parts += _probes(frame, view.probes, "time", "energy", joined=True)
    parts += _marks(
        frame, [(mark, mark.time, mark.energy) for mark in (view.default, view.current, view.choice) if mark]
    )
    return parts


def _cross_lines(frame: Frame) -> str:
    """Where the default is."""
    return (
        f'<path d="M{frame.x(0):.1f} {frame.top:.1f}v{frame.height}M{frame.left:g} '
        f'{frame.y(0):.1f}H{frame.right:g}" '
        'stroke="currentColor" stroke-opacity="0.45"/>'
    )


def _ground(frame: Frame, x0: float, x1: float) -> str:
    return (
        f'<path d="M{frame.x(x0):.1f} {frame.top:.1f}H{frame.x(x1):.1f}v{frame.height}H{frame.x(x0):.1f}z" '
        f'fill="{SAVED}" fill-opacity="0.09"/>'
    )


def _probes(frame: Frame, probes: Columns, across: str, up: str, *, joined: bool) -> list[str]:
    known = [
        n
        for n in range(len(probes["n"]))
        if probes[across][n] is not None
        and probes[up][n] is not None
        and _within(probes[across][n], frame.x_span)
        and _within(probes[up][n], frame.y_span)
    ]
    spot = {n: (frame.x(probes[across][n]), frame.y(probes[up][n])) for n in known}
    tried = [n for n in known if probes["n"][n] is not None]
    parts = []
    if joined and len(tried) > 1:
        way = "L".join(f"{spot[n][0]:.1f} {spot[n][1]:.1f}" for n in tried)
        parts.append(f'<path d="M{way}" stroke="currentColor" stroke-opacity="0.35"/>')
    for n in known:
        x, y = spot[n]
        if joined:
            parts.append(_error_bars(frame, probes, n, x, y))
        if probes["n"][n] is None:
            parts.append(_square(x, y, 3))
            continue
        fill = (
            f'fill="{colour(0)}"'
            if probes["whole"][n]
            else f'fill="none" stroke="{colour(0)}" stroke-width="1.6"'
        )
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" {fill}/>')
    if joined:
        parts += [_number(spot[n], probes, "trade", n) for n in tried]
    return parts


def _number(spot: tuple[float, float], probes: Columns, plane: str, n: int) -> str:
    across, up = probes[f"{plane} across"][n], probes[f"{plane} up"][n]
    anchor = "middle" if across == 0 else "end" if across < 0 else ""
    return text(spot[0] + 0.8 * across, spot[1] - 0.8 * up + 4, str(probes["n"][n]), size=10, anchor=anchor)


def _error_bars(frame: Frame, probes: Columns, n: int, x: float, y: float) -> str:
    bars = ""
    if probes["time_error"][n]:
        half = (frame.right - frame.left) / (frame.x_span[1] - frame.x_span[0]) * probes["time_error"][n]
        bars += f"M{max(x - half, frame.left):.1f} {y:.1f}H{min(x + half, frame.right):.1f}"
    if probes["energy_error"][n]:
        half = frame.height / (frame.y_span[1] - frame.y_span[0]) * probes["energy_error"][n]
        bars += f"M{x:.1f} {max(y - half, frame.top):.1f}V{min(y + half, frame.top + frame.height):.1f}"
    return f'<path d="{bars}" stroke="{colour(0)}" stroke-opacity="0.6"/>' if bars else ""


def _marks(
    frame: Frame, marks: Sequence[tuple[SettingMark, float | None, float | None]], *, named: bool = True
) -> list[str]:
    parts = []
    for mark, across, up in marks:
        if across is None or up is None or not _within(across, frame.x_span) or not _within(up, frame.y_span):
            continue
        x, y = frame.x(across), frame.y(up)
        if mark.words == "default":
            parts += [_square(x, y, 4.5), text(x - 8, y + 15, "default", anchor="end", opacity=0.8)]
        elif mark.words == "now":
            parts.append(
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="11" stroke="currentColor" stroke-dasharray="2 2"/>'
            )
        else:
            parts.append(
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="7.5" stroke="{colour(1)}" stroke-width="2.6"/>'
            )
            if not named:
                continue
            # Nothing lies below and left of the best; only at the edge there is no room.
            left = x > frame.left + 110
            parts.append(
                text(
                    x + (-11 if left else 11), y + 16, mark.words, anchor="end" if left else "", weight="bold"
                )
            )
    return parts


def _square(x: float, y: float, half: float) -> str:
    return (
        f'<path d="M{x - half:.1f} {y - half:.1f}h{2 * half}v{2 * half}h{-2 * half}z" stroke="currentColor" '
        'stroke-width="1.6"/>'
    )


# a line of power limits, or of SM clocks


def _line_of(view: Drawing, y: float) -> list[str]:
    knob = view.knobs[0]
    rows = view.lines[knob]
    frame = Frame(
        y, HEIGHT, view.ranges[knob], view.ranges[f"{knob} change"], left=MIDDLE + 30, right=WIDTH - RIGHT
    )
    parts = []
    if view.bound is not None:
        for x0, x1 in zip(rows["allowed_from"], rows["allowed_to"], strict=True):
            parts.append(_ground(frame, max(x0, frame.x_span[0]), min(x1, frame.x_span[1])))
    parts += frame.axes("Change against the default (%)", 6, None)
    parts += frame.below(NAMES[knob], {value: f"{value:g}" for value in ticks(*frame.x_span, 6)})
    parts.append(
        f'<path d="M{frame.left:g} {frame.y(0):.1f}H{frame.right:g}" stroke="currentColor" '
        'stroke-opacity="0.45"/>'
    )
    for number, (name, ink) in enumerate((("time", colour(2)), ("energy", colour(0)))):
        for points in _seen(frame, rows, name):
            parts += _believed(frame, points, ink)
        parts += _dots(frame, view.probes, knob, name, ink)
        # The corner below the default is empty: it would be less energy for nothing.
        below = frame.top + frame.height - 8 - 15 * number
        parts.append(
            f'<path d="M{frame.right - 66:.1f} {below - 4:.1f}h14" stroke="{ink}" stroke-width="3"/>'
        )
        parts.append(text(frame.right - 6, below, name, anchor="end"))
    for mark, ink, dashes in ((view.current, "currentColor", "2 2"), (view.choice, colour(1), "")):
        at = None if mark is None else mark.limit_w if knob == "limit" else mark.sm_mhz
        if mark is not None and at is not None and _within(at, frame.x_span):
            pattern = f' stroke-dasharray="{dashes}"' if dashes else ' stroke-width="2"'
            parts.append(
                f'<path d="M{frame.x(at):.1f} {frame.top:.1f}v{frame.height}" stroke="{ink}"{pattern}/>'
            )
            if mark is view.choice:
                right = frame.x(at) > frame.right - 80
                words = f"{at:g} {'W' if knob == 'limit' else 'MHz'}"
                parts.append(
                    text(
                        frame.x(at) + (-5 if right else 5), frame.top + 11, words,
                        anchor="end" if right else "", weight="bold",
                    )
                )
    return parts


def _seen(frame: Frame, rows: Columns, name: str) -> list[list[Point]]:
    """The stretches of a line that lie in the frame: knob, value, error."""
    stretches: list[list[Point]] = [[]]
    for x, value, error in zip(rows["x"], rows[name], rows[f"{name}_error"], strict=True):
        if value is not None and _within(value, frame.y_span) and _within(x, frame.x_span):
            stretches[-1].append((x, value, error or 0.0))
        elif stretches[-1]:
            stretches.append([])
    return [each for each in stretches if len(each) > 1]


def _believed(frame: Frame, points: Sequence[Point], ink: str) -> list[str]:
    low, high = frame.y_span
    upper = [f"{frame.x(x):.1f} {frame.y(min(value + error, high)):.1f}" for x, value, error in points]
    lower = [f"{frame.x(x):.1f} {frame.y(max(value - error, low)):.1f}" for x, value, error in points]
    middle = "L".join(f"{frame.x(x):.1f} {frame.y(value):.1f}" for x, value, _ in points)
    return [
        f'<path d="M{"L".join(upper + lower[::-1])}z" fill="{ink}" fill-opacity="0.13"/>',
        f'<path d="M{middle}" stroke="{ink}" stroke-opacity="0.55" stroke-width="1.6"/>',
    ]


def _dots(frame: Frame, probes: Columns, knob: str, name: str, ink: str) -> list[str]:
    parts = []
    own = "limit_w" if knob == "limit" else "sm_mhz"
    for n, (at, value) in enumerate(zip(probes[own], probes[name], strict=True)):
        if (
            at is None
            or value is None
            or probes["n"][n] is None
            or not _within(at, frame.x_span)
            or not _within(value, frame.y_span)
        ):
            continue
        fill = f'fill="{ink}"' if probes["whole"][n] else f'fill="none" stroke="{ink}" stroke-width="1.6"'
        parts.append(f'<circle cx="{frame.x(at):.1f}" cy="{frame.y(value):.1f}" r="3.4" {fill}/>')
        if name == "energy":
            parts.append(_number((frame.x(at), frame.y(value)), probes, knob, n))
    return parts


# SM clock against memory clock


def _clocks(view: Drawing, y: float) -> list[str]:
    memories = view.mem_clocks
    frame = Frame(
        y, HEIGHT, view.ranges["clocks"], (-0.5, len(memories) - 0.5), left=MIDDLE + 44, right=WIDTH - RIGHT
    )
    parts = [
        text(
            frame.left, frame.top - 4, "Memory clock (MHz); green: less energy, framed: allowed", opacity=0.75
        )
    ]
    parts += frame.below(NAMES["clocks"], {value: f"{value:g}" for value in ticks(*frame.x_span, 5)})
    for row, memory in enumerate(memories):
        parts.append(text(frame.left - 6, frame.y(row) + 4, f"{memory}", anchor="end"))
    grounds: dict[int, list[str]] = {}
    for cell in _rows(view.shaded):
        if cell["to"] > frame.x_span[0]:
            grounds.setdefault(cell["shade"], []).append(_rectangle(frame, cell))
    frames = [_rectangle(frame, cell) for cell in _rows(view.allowed)] if view.bound is not None else []
    for shade, drawn in sorted(grounds.items()):
        parts.append(
            f'<path d="{"".join(drawn)}" fill="{SAVED if shade < 0 else SPENT}" '
            f'fill-opacity="{opacity(shade):.2f}"/>'
        )
    if frames:
        parts.append(
            f'<path d="{"".join(frames)}" stroke="currentColor" stroke-opacity="0.7" stroke-width="1.2"/>'
        )
    places = {memory: row for row, memory in enumerate(memories)}
    rows = [None if memory is None else places.get(memory) for memory in view.probes["mem_mhz"]]
    placed = {**view.probes, "row": rows}
    parts += _probes(frame, placed, "sm_mhz", "row", joined=False)
    tried = [
        n
        for n in range(len(rows))
        if placed["n"][n] is not None and placed["sm_mhz"][n] is not None and rows[n] is not None
    ]
    if len(tried) > 1:
        way = "L".join(f"{frame.x(placed['sm_mhz'][n]):.1f} {frame.y(rows[n] or 0):.1f}" for n in tried)
        parts.append(f'<path d="M{way}" stroke="currentColor" stroke-opacity="0.35"/>')
    for n in tried:
        parts.append(_number((frame.x(placed["sm_mhz"][n]), frame.y(rows[n] or 0)), placed, "clocks", n))
    standing = [mark for mark in (view.current, view.choice) if mark]
    spots = [
        (mark, mark.sm_mhz, None if mark.mem_mhz is None else places.get(mark.mem_mhz)) for mark in standing
    ]
    return parts + _marks(frame, spots, named=False)


def _rectangle(frame: Frame, cell: dict[str, Any]) -> str:
    left, right = frame.x(max(cell["from"], frame.x_span[0])), frame.x(min(cell["to"], frame.x_span[1]))
    return (
        f"M{left:.1f} "
        f"{frame.y(cell['row'] + 0.46):.1f}H{right:.1f}V{frame.y(cell['row'] - 0.46):.1f}H{left:.1f}z"
    )


# little things


def _rows(columns: Columns) -> list[dict[str, Any]]:
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _within(value: float, span: tuple[float, float]) -> bool:
    return not math.isnan(value) and span[0] <= value <= span[1]


def page(picture: str, words: str) -> str:
    """The picture with its words folded away, for a reader who cannot see it."""
    body = html.escape(words).replace("\n", "<br>")
    return f'{picture}<details style="font-size:12px"><summary>in words</summary>{body}</details>'
