"""The picture of a tuner: estimated cost of settings, trials in their order, planes of settings."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from ....records import Setting
from ..._core.svg import ROW, Frame, Pen, Picture
from ..._core.theme import colour
from .model import Drawing, DrawnProbe, SettingMark, knob_of
from .surface import (
    ALLOWED,
    ENERGY,
    ENERGY_ERROR,
    LIMIT,
    SM,
    TIME,
    TIME_ERROR,
    Cell,
    allowed,
    cells,
    line,
    memory_clocks,
    opacity,
)

SPENT, SAVED, TRIED = colour(5), colour(2), colour(0)
NAMES = {"clocks": "SM clock (MHz)", "sm": "SM clock (MHz)", "limit": "power limit (W)"}
KNOBS = tuple(NAMES)
FAINT, DEFAULT = Pen(opacity=0.45), Pen(width=1.6)
NOW, CHOICE = Pen(dashes=(2, 2)), Pen(colour(1), 2.6)

Place = Callable[[DrawnProbe | SettingMark], tuple[float | None, float | None]]  # across, up


def draw(title: str, sentences: Sequence[str], view: Drawing | None, *, every: bool = False) -> Picture:
    """Sentences, a plane of time and energy, and next to it the first knob; without a drawing only sentences.

    Args:
        title: Title of the picture.
        sentences: Sentences above it.
        view: Points and lines; None for text only.
        every: Whether each of `KNOBS` gets a frame, as a browser needs.
    """
    picture = Picture(title)
    picture.sentences(sentences)
    if view is None:
        picture.y += 12
        return picture
    with picture.row(ROW):
        _plane(picture, view)
        for knob in KNOBS if every else view.knobs[:1]:
            if knob not in view.knobs:
                picture.frame(ROW, (0.0, 1.0), (0.0, 1.0))  # nothing is drawn in it
            elif knob == "clocks":
                _clocks(picture, view)
            else:
                _line_of(picture, view, knob)
    return picture


# time against energy


def _plane(picture: Picture, view: Drawing) -> None:
    frame = picture.frame(ROW, view.ranges["time"], view.ranges["energy"], side="left")
    if view.bound is not None:
        frame.boxes([(frame.x_span[0], view.bound, None)], SAVED, opacity=0.09)
        text = f"within {view.bound:g} %"
        frame.label(frame.x_span[0], frame.y_span[0], text, dx=5, dy=-6, opacity=0.8)
    frame.axes("Energy against the default (%)", 6)
    frame.below("time against the default (%)")
    near = [row for row in view.table.tolist() if frame.holds(row[TIME], row[ENERGY])]
    hover = {
        "estimated": [_setting(row) for row in near],
        "time": [_change(row[TIME], row[TIME_ERROR]) for row in near],
        "energy": [_change(row[ENERGY], row[ENERGY_ERROR]) for row in near],
    }
    frame.cloud(((row[TIME], row[ENERGY]) for row in near), TRIED, opacity=0.28, hover=hover)
    frame.upright(0, FAINT)  # where the default is
    frame.level(0, FAINT)
    bars = Pen(TRIED, opacity=0.6)
    for probe in view.probes:
        if probe.time is not None and probe.energy is not None:
            frame.errors(probe.time, probe.energy, probe.time_error, probe.energy_error, bars)
    for mark in filter(None, (view.choice, view.current, view.default)):
        _mark(frame, mark, mark.time, mark.energy)
    _probes(frame, view.probes, lambda each: (each.time, each.energy))


def _setting(row: Sequence[float]) -> str:
    limit, sm, mem = (None if math.isnan(knob) else knob for knob in row[:3])
    return str(Setting(limit, None if sm is None else int(sm), None if mem is None else int(mem)))


def _change(value: float | None, error: float | None) -> str:
    if value is None:
        return "unknown"
    return f"{value:+.1f} %" + (f" ± {error:.1f} %" if error and not math.isnan(error) else "")


def _probes(frame: Frame, probes: Iterable[DrawnProbe], place: Place) -> None:
    """Trials with their numbers and a line from each to the next; baselines as squares."""
    places = [(probe, *place(probe)) for probe in probes]
    known = [(probe, x, y) for probe, x, y in places if x is not None and y is not None and frame.holds(x, y)]
    tried = [(x, y) for probe, x, y in known if probe.n is not None]
    frame.line([x for x, _ in tried], [y for _, y in tried], Pen(opacity=0.35))
    for probe, x, y in known:
        hover = {
            "trial": f"{probe.n or 'default'}: {probe.setting}", "took": probe.cost,
            "time": _change(probe.time, probe.time_error),
            "energy": _change(probe.energy, probe.energy_error),
        }
        if probe.n is None:
            frame.mark(x, y, 3, DEFAULT, "square", hover=hover)
        else:
            frame.dot(x, y, TRIED, hollow=not probe.whole, hover=hover)
    _numbers(frame, known)


def _numbers(frame: Frame, places: Iterable[tuple[DrawnProbe, float, float]]) -> None:
    for probe, x, y in places:
        if probe.n is not None:
            frame.label(x, y, f"{probe.n}", size=10, spread=True)


def _mark(frame: Frame, mark: SettingMark, x: float | None, y: float | None, *, named: bool = True) -> None:
    if x is None or y is None or not frame.holds(x, y):
        return
    if mark.text == "now":
        frame.mark(x, y, 11, NOW)
        return
    frame.mark(x, y, *((4.5, DEFAULT, "square") if mark.text == "default" else (7.5, CHOICE)))
    frame.label(x, y, mark.text * named, spread=True, weight="" if mark.text == "default" else "bold")


# a line of power limits, or of SM clocks


def _line_of(picture: Picture, view: Drawing, knob: str) -> None:
    rows, (column, unit) = line(view.table, knob), ((LIMIT, "W") if knob == "limit" else (SM, "MHz"))
    frame = picture.frame(ROW, view.ranges[knob], view.ranges[f"{knob} change"], side="right")
    rows = rows[[frame.holds(x) for x in rows[:, column].tolist()]]
    if view.bound is not None:
        spans = allowed(rows[:, column], rows[:, ALLOWED])
        frame.boxes(((x0, x1, None) for x0, x1 in spans), SAVED, opacity=0.09)
    frame.axes("Change against the default (%)", 6)
    frame.below(NAMES[knob])
    frame.level(0, FAINT)
    xs = rows[:, column].tolist()
    for number, (name, first, ink) in enumerate((("time", TIME, SAVED), ("energy", ENERGY, TRIED))):
        values, errors = rows[:, first].tolist(), rows[:, first + 1]
        frame.band(xs, values - errors, values + errors, ink, opacity=0.13)
        hover = {"at": [f"{x:g} {unit}" for x in xs], name: [*map(_change, values, errors.tolist())]}
        shown = [value if frame.holds(x, value) else None for x, value in zip(xs, values, strict=True)]
        frame.line(xs, shown, Pen(ink, 1.6, opacity=0.55), hover=hover)
        places = [(probe, knob_of(probe.setting, knob), getattr(probe, name)) for probe in view.probes]
        tried = [(probe, x, y) for probe, x, y in places if probe.n and x is not None and frame.holds(x, y)]
        for probe, x, y in tried:
            frame.dot(x, y, ink, 3.4, hollow=not probe.whole)
        if name == "energy":
            _numbers(frame, tried)
        # The corner below the default is empty: it would be less energy for nothing.
        frame.label(
            frame.x_span[1], frame.y_span[0], name, dx=-6, dy=-8 - 15 * number, anchor="end", weight="bold",
            ink=ink,
        )
    for mark in filter(None, (view.current, view.choice)):
        at = knob_of(mark.setting, knob)
        if at is not None:
            chosen = mark is view.choice
            text = f"{at:g} {unit}" * chosen
            frame.upright(at, Pen(colour(1), 2) if chosen else NOW, text=text, weight="bold")


# SM clock against memory clock


def _clocks(picture: Picture, view: Drawing) -> None:
    places = {memory: row for row, memory in enumerate(memory_clocks(view.table))}
    frame = picture.frame(ROW, view.ranges["clocks"], (-0.5, len(places) - 0.5), side="right")
    names = {float(row): f"{memory}" for memory, row in places.items()}
    frame.axes("Memory clock (MHz); green: less energy, framed: allowed", names)
    frame.below(NAMES["clocks"], 5)
    shaded, kept = cells(view.table)
    for shade in sorted({cell.shade for cell in shaded}):
        ink = SAVED if shade < 0 else SPENT
        frame.boxes((_box(cell) for cell in shaded if cell.shade == shade), ink, opacity=opacity(shade))
    if view.bound is not None:
        frame.boxes(map(_box, kept), opacity=0.7, edge=Pen(width=1.2, opacity=0.7))

    def place(each: DrawnProbe | SettingMark) -> tuple[float | None, float | None]:
        return each.setting.sm_clock_mhz, places.get(each.setting.mem_clock_mhz or 0)

    _probes(frame, view.probes, place)
    for mark in filter(None, (view.current, view.choice)):
        _mark(frame, mark, *place(mark), named=False)


def _box(cell: Cell) -> tuple[float, float, tuple[float, float]]:
    return cell.start, cell.end, (cell.row - 0.46, cell.row + 0.46)
