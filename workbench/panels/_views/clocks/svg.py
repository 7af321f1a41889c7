"""The still picture of a tuner: what settings were believed to cost, the probes in order, the planes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..._core.svg import Frame, Pen, Picture, Values
from ..._core.theme import colour
from .model import Drawing, SettingMark
from .surface import Columns, Table, opacity

HEIGHT = 215
SPENT, SAVED = colour(5), colour(2)
NAMES = {"sm": "SM clock (MHz)", "limit": "power limit (W)", "clocks": "SM clock (MHz)"}


def draw(title: str, sentences: Sequence[str], view: Drawing | None, table: Table) -> str:
    """One `<svg>` element; without a drawing it has only words."""
    picture = Picture(title)
    picture.sentences(sentences)
    if view is None:
        picture.y += 12
        return picture.svg()
    with picture.row(HEIGHT):
        _plane(picture, view, table)
        if view.knobs:
            (_clocks if view.knobs[0] == "clocks" else _line_of)(picture, view)
    return picture.svg()


# time against energy


def _plane(picture: Picture, view: Drawing, table: Table) -> None:
    frame = picture.frame(HEIGHT, view.ranges["time"], view.ranges["energy"], side="left")
    if view.bound is not None:
        frame.fill(frame.rectangle(frame.x_span[0], view.bound), SAVED, opacity=0.09)
    frame.axes("Energy against the default (%)", 6)
    frame.below("time against the default (%)")
    believed = table[:, [3, 5]].tolist()
    frame.cloud(((x, e) for x, e in believed if frame.holds(x, e)), colour(0), opacity=0.28)
    frame.upright(0, Pen(opacity=0.45))  # where the default is
    frame.level(0, Pen(opacity=0.45))
    if view.bound is not None:
        words = f"within {view.bound:g} %"
        frame.label(frame.x_span[0], frame.y_span[0], words, dx=5, dy=-6, opacity=0.8)
    probes = view.probes
    known = _drawn(frame, probes, probes["time"], probes["energy"])
    _way(frame, probes, known)
    for n, x, y in known:
        frame.errors(x, y, probes["time_error"][n], probes["energy_error"][n], Pen(colour(0), opacity=0.6))
        _probe(frame, probes, n, x, y)
    _numbers(frame, probes, "trade", known)
    numbers = [
        (frame.x(x) + 0.8 * (probes["trade across"][n] or 0), frame.y(y) - 0.8 * (probes["trade up"][n] or 0))
        for n, x, y in known if probes["n"][n] is not None
    ]
    for mark in filter(None, (view.default, view.current, view.choice)):
        _mark(frame, mark, mark.time, mark.energy, numbers)


Place = tuple[int, float, float]  # of a probe: its row, across, up


def _drawn(frame: Frame, probes: Columns, across: Values, up: Values) -> list[Place]:
    """The probes that lie in the frame."""
    places = zip(range(len(probes["n"])), across, up, strict=True)
    return [(n, x, y) for n, x, y in places if x is not None and y is not None and frame.holds(x, y)]


def _way(frame: Frame, probes: Columns, places: Sequence[Place]) -> None:
    """From probe to probe."""
    tried = [(x, y) for n, x, y in places if probes["n"][n] is not None]
    if len(tried) > 1:
        frame.line([x for x, _ in tried], [y for _, y in tried], Pen(opacity=0.35))


def _probe(frame: Frame, probes: Columns, n: int, x: float, y: float) -> None:
    if probes["n"][n] is None:
        frame.square(x, y, 3)
    else:
        frame.dot(x, y, colour(0), hollow=not probes["whole"][n])


def _numbers(frame: Frame, probes: Columns, plane: str, places: Sequence[Place]) -> None:
    for n, x, y in places:
        if probes["n"][n] is not None:
            across, up = probes[f"{plane} across"][n], probes[f"{plane} up"][n]
            anchor = "middle" if across == 0 else "end" if across < 0 else ""
            words = str(probes["n"][n])
            frame.label(x, y, words, dx=0.8 * across, dy=4 - 0.8 * up, anchor=anchor, size=10)


def _covers(x: float, y: float, dx: float, dy: float, numbers: Sequence[tuple[float, float]]) -> bool:
    """Whether a word of 45 pixels beside a point would lie over a number in the picture."""
    middle = x + dx + (22 if dx > 0 else -22)
    return any(abs(across - middle) < 30 and abs(up - (y + dy - 4)) < 13 for across, up in numbers)


def _mark(
    frame: Frame, mark: SettingMark, x: float | None, y: float | None,
    numbers: Sequence[tuple[float, float]] = (), *, named: bool = True,
) -> None:
    if x is None or y is None or not frame.holds(x, y):
        return
    if mark.words == "default":
        frame.square(x, y, 4.5)
        frame.label(x, y, "default", dx=-8, dy=15, anchor="end", opacity=0.8)
    elif mark.words == "now":
        frame.ring(x, y, 11, Pen(dashes=(2, 2)))
    else:
        frame.ring(x, y, 7.5, Pen(colour(1), 2.6))
        # Nothing lies below and left of the best; only at the edge there is no room, or by a probe's number.
        left = frame.x(x) > frame.left + 110
        sides = [(dx, dy) for dy in (16, -10, 28, -22) for dx in ((-11, 11) if left else (11, -11))]
        free = (each for each in sides if not _covers(frame.x(x), frame.y(y), *each, numbers))
        dx, dy = next(free, sides[0])
        anchor = "end" if dx < 0 else ""
        frame.label(x, y, mark.words * named, dx=dx, dy=dy, anchor=anchor, weight="bold")


# a line of power limits, or of SM clocks


def _line_of(picture: Picture, view: Drawing) -> None:
    knob, probes = view.knobs[0], view.probes
    rows, of_limits = view.lines[knob], knob == "limit"
    frame = picture.frame(HEIGHT, view.ranges[knob], view.ranges[f"{knob} change"], side="right")
    if view.bound is not None:
        for x0, x1 in zip(rows["allowed_from"], rows["allowed_to"], strict=True):
            frame.fill(frame.rectangle(x0, x1), SAVED, opacity=0.09)
    frame.axes("Change against the default (%)", 6)
    frame.below(NAMES[knob])
    frame.level(0, Pen(opacity=0.45))
    for number, (name, ink) in enumerate((("time", colour(2)), ("energy", colour(0)))):
        line = zip(rows["x"], rows[name], strict=True)
        values = [value if frame.holds(x, value) else None for x, value in line]
        _believed(frame, rows["x"], values, rows[f"{name}_error"], ink)
        places = _drawn(frame, probes, probes["limit_w" if of_limits else "sm_mhz"], probes[name])
        for n, x, y in places:
            if probes["n"][n] is not None:
                frame.dot(x, y, ink, 3.4, hollow=not probes["whole"][n])
        if name == "energy":
            _numbers(frame, probes, knob, places)
        # The corner below the default is empty: it would be less energy for nothing.
        below = -8 - 15 * number
        picture.swatch(frame.right - 66, frame.bottom + below - 4, Pen(ink))
        frame.label(frame.x_span[1], frame.y_span[0], name, dx=-6, dy=below, anchor="end")
    for mark in (view.current, view.choice):
        at = None if mark is None else mark.limit_w if of_limits else mark.sm_mhz
        if at is None:
            continue
        if mark is view.choice:
            words = f"{at:g} {'W' if of_limits else 'MHz'}"
            frame.upright(at, Pen(colour(1), 2), words=words, weight="bold")
        else:
            frame.upright(at, Pen(dashes=(2, 2)))


def _believed(frame: Frame, xs: Values, values: Values, errors: Values, ink: str) -> None:
    """A line and its band, in the stretches that lie in the frame."""
    stretch: list[tuple[float, float, float]] = []
    for x, value, error in [*zip(xs, values, errors, strict=True), (0.0, None, None)]:
        if value is not None:
            stretch.append((x, value, error or 0.0))
            continue
        if len(stretch) > 1:
            low, high = ([value + sign * error for _, value, error in stretch] for sign in (-1, 1))
            frame.band([x for x, _, _ in stretch], low, high, ink, opacity=0.13)
        stretch = []
    frame.line(xs, values, Pen(ink, 1.6, opacity=0.55))


# SM clock against memory clock


def _clocks(picture: Picture, view: Drawing) -> None:
    memories, probes = view.mem_clocks, view.probes
    frame = picture.frame(HEIGHT, view.ranges["clocks"], (-0.5, len(memories) - 0.5), side="right")
    frame.name("Memory clock (MHz); green: less energy, framed: allowed")
    frame.below(NAMES["clocks"], 5)
    for row, memory in enumerate(memories):
        frame.label(frame.x_span[0], row, f"{memory}", dx=-6, dy=4, anchor="end")
    grounds: dict[int, list[str]] = {}
    for cell in _rows(view.shaded):
        grounds.setdefault(cell["shade"], []).append(_cell(frame, cell))
    for shade, drawn in sorted(grounds.items()):
        frame.fill(drawn, SAVED if shade < 0 else SPENT, opacity=opacity(shade))
    if view.bound is not None:
        framed = "".join(_cell(frame, cell) for cell in _rows(view.allowed))
        picture.path(framed, Pen(width=1.2, opacity=0.7))
    places = {memory: row for row, memory in enumerate(memories)}
    known = _drawn(frame, probes, probes["sm_mhz"], [places.get(memory) for memory in probes["mem_mhz"]])
    for n, x, y in known:
        _probe(frame, probes, n, x, y)
    _way(frame, probes, known)
    _numbers(frame, probes, "clocks", known)
    for mark in (view.current, view.choice):
        if mark and mark.mem_mhz is not None:
            _mark(frame, mark, mark.sm_mhz, places.get(mark.mem_mhz), named=False)


def _cell(frame: Frame, cell: dict[str, Any]) -> str:
    return frame.rectangle(cell["from"], cell["to"], (cell["row"] - 0.46, cell["row"] + 0.46))


def _rows(columns: Columns) -> list[dict[str, Any]]:
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
