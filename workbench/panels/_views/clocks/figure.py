"""The picture of a tuner: what settings are estimated to cost, the probes in order, planes of settings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ....records import Setting
from ..._core.svg import Frame, Pen, Picture, Values
from ..._core.theme import colour
from .model import Drawing, SettingMark
from .surface import Columns, Table, opacity

HEIGHT = 215
SPENT, SAVED, ENERGY = colour(5), colour(2), colour(0)
NAMES = {"clocks": "SM clock (MHz)", "sm": "SM clock (MHz)", "limit": "power limit (W)"}
KNOBS = tuple(NAMES)
FAINT, DEFAULT = Pen(opacity=0.45), Pen(width=1.6)
NOW, CHOICE = Pen(dashes=(2, 2)), Pen(colour(1), 2.6)

Probe = dict[str, Any]
Place = tuple[Probe, float, float]  # of a probe: across, up


def draw(
    title: str, sentences: Sequence[str], view: Drawing | None, table: Table, *, every: bool = False
) -> Picture:
    """Below the words a plane of time and energy, and beside it the first knob; without a drawing only words.

    With `every`, which is for a browser, there is a frame for each of `KNOBS`.

    Args:
        title: Of the picture.
        sentences: Above it.
        view: Points and lines; None for text only.
        table: A row per probe.
        every: A frame for each of `KNOBS`, for a browser.
    """
    picture = Picture(title)
    picture.sentences(sentences)
    if view is None:
        picture.y += 12
        return picture
    with picture.row(HEIGHT):
        _plane(picture, view, table)
        for knob in KNOBS if every else view.knobs[:1]:
            if knob not in view.knobs:
                picture.frame(HEIGHT, (0.0, 1.0), (0.0, 1.0))  # nothing is drawn in it
            elif knob == "clocks":
                _clocks(picture, view)
            else:
                _line_of(picture, view, knob)
    return picture


# time against energy


def _plane(picture: Picture, view: Drawing, table: Table) -> None:
    frame = picture.frame(HEIGHT, view.ranges["time"], view.ranges["energy"], side="left")
    if view.bound is not None:
        frame.boxes([(frame.x_span[0], view.bound, None)], SAVED, opacity=0.09)
    frame.axes("Energy against the default (%)", 6)
    frame.below("time against the default (%)")
    near = [row for row in table.tolist() if frame.holds(row[3], row[5])]
    hover = {
        "estimated": [_setting(row) for row in near], "time": [_change(row[3], row[4]) for row in near],
        "energy": [_change(row[5], row[6]) for row in near],
    }
    frame.cloud(((row[3], row[5]) for row in near), ENERGY, opacity=0.28, hover=hover)
    frame.upright(0, FAINT)  # where the default is
    frame.level(0, FAINT)
    if view.bound is not None:
        text = f"within {view.bound:g} %"
        frame.label(frame.x_span[0], frame.y_span[0], text, dx=5, dy=-6, opacity=0.8)
    known = _drawn(frame, view.probes, lambda probe: (probe["time"], probe["energy"]))
    for probe, x, y in known:
        frame.errors(x, y, probe["time_error"], probe["energy_error"], Pen(ENERGY, opacity=0.6))
    _probes(frame, "trade", known)
    numbers = [
        (frame.x(x) + 0.8 * (probe["trade across"] or 0), frame.y(y) - 0.8 * (probe["trade up"] or 0))
        for probe, x, y in known if probe["n"] is not None
    ]
    for mark in filter(None, (view.default, view.current, view.choice)):
        _mark(frame, mark, mark.time, mark.energy, numbers)


def _setting(row: Sequence[float]) -> str:
    limit, sm, mem = (None if math.isnan(knob) else knob for knob in row[:3])
    return str(Setting(limit, None if sm is None else int(sm), None if mem is None else int(mem)))


def _change(value: float | None, error: float | None) -> str:
    if value is None:
        return "not known"
    return f"{value:+.1f} %" + (f" ± {error:.1f} %" if error and not math.isnan(error) else "")


def _drawn(frame: Frame, probes: Columns, place: Any) -> list[Place]:
    """The probes that lie in the frame, where `place` says where one lies."""
    places = ((probe, *place(probe)) for probe in _rows(probes))
    return [(probe, x, y) for probe, x, y in places if None not in (x, y) and frame.holds(x, y)]


def _probes(frame: Frame, plane: str, places: Sequence[Place]) -> None:
    """Probes with their numbers and the way from one to the next; baselines as squares."""
    tried = [each for each in places if each[0]["n"] is not None]
    if len(tried) > 1:
        frame.line([x for _, x, _ in tried], [y for _, _, y in tried], Pen(opacity=0.35))
    for probe, x, y in places:
        hover = {
            "probe": f"{probe['n'] or 'default'}: {probe['words']}",
            "time": _change(probe["time"], probe["time_error"]),
            "energy": _change(probe["energy"], probe["energy_error"]), "took": probe["cost"],
        }
        if probe["n"] is None:
            frame.mark(x, y, 3, DEFAULT, "square", hover=hover)
        else:
            frame.dot(x, y, ENERGY, hollow=not probe["whole"], hover=hover)
    _numbers(frame, plane, tried)


def _numbers(frame: Frame, plane: str, tried: Sequence[Place]) -> None:
    for probe, x, y in tried:
        across, up = probe[f"{plane} across"], probe[f"{plane} up"]
        anchor = "middle" if across == 0 else "end" if across < 0 else ""
        frame.label(x, y, f"{probe['n']}", dx=0.8 * across, dy=4 - 0.8 * up, anchor=anchor, size=10)


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
    if mark.text == "default":
        frame.mark(x, y, 4.5, DEFAULT, "square")
        frame.label(x, y, "default", dx=-8, dy=15, anchor="end", opacity=0.8)
    elif mark.text == "now":
        frame.mark(x, y, 11, NOW)
    else:
        frame.mark(x, y, 7.5, CHOICE)
        # Nothing lies below and left of the best; only at the edge there is no room, or by a probe's number.
        left = frame.x(x) > frame.left + 110
        sides = [(dx, dy) for dy in (16, -10, 28, -22) for dx in ((-11, 11) if left else (11, -11))]
        free = (each for each in sides if not _covers(frame.x(x), frame.y(y), *each, numbers))
        dx, dy = next(free, sides[0])
        anchor = "end" if dx < 0 else ""
        frame.label(x, y, mark.text * named, dx=dx, dy=dy, anchor=anchor, weight="bold")


# a line of power limits, or of SM clocks


def _line_of(picture: Picture, view: Drawing, knob: str) -> None:
    rows, own, unit = view.lines[knob], *(("limit_w", "W") if knob == "limit" else ("sm_mhz", "MHz"))
    frame = picture.frame(HEIGHT, view.ranges[knob], view.ranges[f"{knob} change"], side="right")
    if view.bound is not None:
        spans = zip(rows["allowed_from"], rows["allowed_to"], strict=True)
        frame.boxes(((x0, x1, None) for x0, x1 in spans), SAVED, opacity=0.09)
    frame.axes("Change against the default (%)", 6)
    frame.below(NAMES[knob])
    frame.level(0, FAINT)
    for number, (name, ink) in enumerate((("time", SAVED), ("energy", ENERGY))):
        line = zip(rows["x"], rows[name], strict=True)
        values = [value if frame.holds(x, value) else None for x, value in line]
        _believed(frame, name, rows["x"], values, rows[f"{name}_error"], ink, unit)
        tried = [
            each for each in _drawn(frame, view.probes, lambda probe, name=name: (probe[own], probe[name]))
            if each[0]["n"] is not None
        ]
        for probe, x, y in tried:
            frame.dot(x, y, ink, 3.4, hollow=not probe["whole"])
        if name == "energy":
            _numbers(frame, knob, tried)
        # The corner below the default is empty: it would be less energy for nothing.
        frame.label(
            frame.x_span[1], frame.y_span[0], name, dx=-6, dy=-8 - 15 * number, anchor="end", weight="bold",
            ink=ink,
        )
    for mark in filter(None, (view.current, view.choice)):
        at = getattr(mark, own)
        if at is not None:
            chosen = mark is view.choice
            text = f"{at:g} {unit}" * chosen
            frame.upright(at, Pen(colour(1), 2) if chosen else NOW, text=text, weight="bold")


def _believed(
    frame: Frame, name: str, xs: Values, values: Values, errors: Values, ink: str, unit: str
) -> None:
    """A line and its band, in the stretches that lie in the frame."""
    stretch: list[tuple[float, float, float]] = []
    points = [*zip(xs, values, errors, strict=True)]
    for x, value, error in [*points, (0.0, None, None)]:
        if value is not None:
            stretch.append((x, value, error or 0.0))
            continue
        if len(stretch) > 1:
            low, high = ([value + sign * error for _, value, error in stretch] for sign in (-1, 1))
            frame.band([x for x, _, _ in stretch], low, high, ink, opacity=0.13)
        stretch = []
    hover = {
        "at": [f"{x:g} {unit}" for x, _, _ in points], name: [_change(value, e) for _, value, e in points]
    }
    frame.line(xs, values, Pen(ink, 1.6, opacity=0.55), hover=hover)


# SM clock against memory clock


def _clocks(picture: Picture, view: Drawing) -> None:
    places = {memory: row for row, memory in enumerate(view.mem_clocks)}
    frame = picture.frame(HEIGHT, view.ranges["clocks"], (-0.5, len(places) - 0.5), side="right")
    frame.axes(
        "Memory clock (MHz); green: less energy, framed: allowed",
        {row: f"{memory}" for memory, row in places.items()},
    )
    frame.below(NAMES["clocks"], 5)
    grounds: dict[int, list[tuple[float, float, tuple[float, float]]]] = {}
    for cell in _rows(view.shaded):
        grounds.setdefault(cell["shade"], []).append(_cell(cell))
    for shade, cells in sorted(grounds.items()):
        frame.boxes(cells, SAVED if shade < 0 else SPENT, opacity=opacity(shade))
    if view.bound is not None:
        frame.boxes(map(_cell, _rows(view.allowed)), opacity=0.7, edge=Pen(width=1.2, opacity=0.7))
    known = _drawn(frame, view.probes, lambda probe: (probe["sm_mhz"], places.get(probe["mem_mhz"])))
    _probes(frame, "clocks", known)
    for mark in filter(None, (view.current, view.choice)):
        if mark.mem_mhz is not None:
            _mark(frame, mark, mark.sm_mhz, places.get(mark.mem_mhz), named=False)


def _cell(cell: Probe) -> tuple[float, float, tuple[float, float]]:
    return cell["from"], cell["to"], (cell["row"] - 0.46, cell["row"] + 0.46)


def _rows(columns: Columns) -> list[Probe]:
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
