"""What the panel of a tuner draws, as columns: the same for the live view and for the picture. `text` has
what it says.

Times and energies are changes against the default in per cent. Errors are half widths of 95 % intervals.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ....logbook.report import format_duration
from ....records import Setting
from ....search.tradeoff import Z95
from ..._core.svg import padded
from .surface import Columns, Table, add_row, cells, knobs_of, line, memory_clocks, surface
from .text import ENDED

if TYPE_CHECKING:
    import polars as pl

    from ....search.clocks.make import Choice
    from ....tuning.results import TuningView

MOST_PROBES = 200
HIGHEST = 5.0  # per cent of more energy that is shown where nobody was
FRAME_PX = (330.0, 170.0)  # of a plane, about; where numbers stand is chosen for this size
# Of a number at its point.
PLACES = (
    (9.0, 7.0), (-9.0, 7.0), (9.0, -8.0), (-9.0, -8.0), (0.0, 13.0), (0.0, -13.0), (20.0, 0.0), (-20.0, 0.0),
)
# Column across and its range, values up and their range.
Plane = tuple[str, tuple[float, float], Sequence[Any], tuple[float, float]]
PROBED = (
    "n", "limit_w", "sm_mhz", "mem_mhz", "time", "time_error", "energy", "energy_error", "kind", "whole",
    "words", "cost",
)


@dataclass(frozen=True)
class SettingMark:
    """A setting that stands out: the default, the one in force, the choice. What is not known is None."""

    text: str
    limit_w: float | None = None
    sm_mhz: int | None = None
    mem_mhz: int | None = None
    time: float | None = None
    energy: float | None = None


@dataclass(frozen=True)
class Drawing:
    """Columns and ranges.

    Attributes:
        bound: The allowed slowdown in per cent; None where any is.
        knobs: The planes of settings that can be drawn: "clocks" (SM against memory clock), "sm" and "limit"
            (lines); the first is shown.
        mem_clocks: Rows of the plane of clocks, lowest first.
        lines: By knob, as `surface.line` has them.
        shaded, allowed: Of the plane of clocks, as `surface.cells` has them.
        probes: Columns `PROBED`. A baseline has no number. Where a number stands on the plane "trade" (of
            time and energy) and on those of `knobs`, in pixels right of and above its point, is in "trade
            across", "trade up" and so on.
        default, current, choice: What stands out.
        ranges: Of the axes "time" and "energy" and of each knob.
    """

    bound: float | None
    knobs: tuple[str, ...]
    mem_clocks: tuple[int, ...]
    lines: dict[str, Columns]
    shaded: Columns
    allowed: Columns
    probes: Columns
    default: SettingMark
    current: SettingMark | None
    choice: SettingMark | None
    ranges: dict[str, tuple[float, float]]


def drawing(tuning: TuningView) -> tuple[Drawing, Table]:
    """What there is to be drawn of a tuner, and the table of what it believes of every setting."""
    table = surface(tuning.belief)
    probes = probe_columns(tuning.probes)
    bound = None if tuning.max_slowdown is None else 100 * tuning.max_slowdown
    choice = None if tuning.choice is None else _chosen(tuning.choice)
    default = _mark("default", tuning.reference, 0.0, 0.0)
    current = _current(tuning, table, probes)
    knobs = knobs_of(table)
    chosen = tuning.current if tuning.choice is None else tuning.choice.setting
    if len(knobs) > 1 and chosen.sm_clock_mhz is None and chosen.power_limit_w is not None:
        knobs.reverse()
    shaded, allowed = cells(table) if "clocks" in knobs else ({}, {})
    ranges = _ranges(table, probes, [mark for mark in (default, current, choice) if mark], bound, knobs)
    memories = memory_clocks(table)
    planes: dict[str, Plane] = {"trade": ("time", ranges["time"], probes["energy"], ranges["energy"])}
    for knob in knobs:
        if knob == "clocks":
            rows = [memories.index(clock) if clock in memories else None for clock in probes["mem_mhz"]]
            planes[knob] = ("sm_mhz", ranges[knob], rows, (-0.5, len(memories) - 0.5))
        else:
            planes[knob] = (
                "limit_w" if knob == "limit" else "sm_mhz", ranges[knob], probes["energy"],
                ranges[f"{knob} change"],
            )
    _place_numbers(probes, planes)
    lines = {knob: line(table, knob) for knob in knobs if knob != "clocks"}
    picture = Drawing(
        bound, tuple(knobs), memories, lines, shaded, allowed, probes, default, current, choice,
        ranges,
    )
    return picture, table


# columns


def probe_columns(probes: pl.DataFrame | None) -> Columns:
    """`PROBED` of the last probes."""
    columns: Columns = {name: [] for name in PROBED}
    number = 0
    for row in [] if probes is None else probes.to_dicts():
        kind = row.get("kind", "probe")
        number += kind == "probe"
        setting = Setting(row["power_limit_w"], row["sm_clock_mhz"], row["mem_clock_mhz"])
        add_row(columns, (
            number if kind == "probe" else None, *astuple(setting), *_change(row, "time"),
            *_change(row, "energy"), kind, row.get("outcome", "kept") == "kept", str(setting), _cost(row),
        ))
    return {name: values[-MOST_PROBES:] for name, values in columns.items()}


def _change(row: dict[str, Any], name: str) -> tuple[float | None, float | None]:
    """Of a probe's time or energy, and its error."""
    ratio, deviation = row.get(f"{name}_ratio"), row.get(f"{name}_sd")
    if ratio is None or deviation is None:
        return _percent(ratio), None
    return _percent(ratio), _finite(100 * Z95 * ratio * deviation)


def _cost(row: dict[str, Any]) -> str:
    """What a probe took in all, and how it ended where it was not kept."""
    count, took_s, outcome = row.get("iterations"), row.get("cost_s"), row.get("outcome", "kept")
    text = [f"{count} iteration{'s' * (count != 1)}"] if count else []
    text += [format_duration(took_s)] if took_s is not None else []
    if outcome != "kept":
        text.append(f"{outcome}{': ' + row['reason'] if row.get('reason') else ''}")
    return ", ".join(text)


def _chosen(choice: Choice) -> SettingMark:
    text = "choice" if choice.measured else "choice, predicted"
    return _mark(text, choice.setting, _percent(choice.time_ratio), _percent(choice.energy_ratio))


def _current(tuning: TuningView, table: Table, probes: Columns) -> SettingMark | None:
    """The setting in force and what it costs or may; None where the driver decides everything."""
    setting = tuning.current
    if setting == Setting() or tuning.state in ENDED:
        return None
    knobs = astuple(setting)
    for n in reversed(range(len(probes["n"]))):
        if (probes["limit_w"][n], probes["sm_mhz"][n], probes["mem_mhz"][n]) == knobs:
            return _mark("now", setting, probes["time"][n], probes["energy"][n])
    wanted = np.array([np.nan if knob is None else knob for knob in knobs], np.float32)
    same = np.flatnonzero(np.isclose(table[:, :3], wanted, equal_nan=True).all(axis=1))
    if len(same):
        return _mark("now", setting, _finite(float(table[same[0], 3])), _finite(float(table[same[0], 5])))
    return _mark("now", setting)


def _mark(
    text: str, put: Setting, time: float | None = None, energy: float | None = None
) -> SettingMark:
    return SettingMark(text, put.power_limit_w, put.sm_clock_mhz, put.mem_clock_mhz, time, energy)


# ranges and places


def _ranges(
    table: Table, probes: Columns, marks: Sequence[SettingMark], bound: float | None, knobs: Sequence[str]
) -> dict[str, tuple[float, float]]:
    """Of the axes: all probes and what is near the bound; settings that are much slower lie outside."""
    times = [value for value in (*probes["time"], *(mark.time for mark in marks)) if value is not None]
    energies = [value for value in (*probes["energy"], *(mark.energy for mark in marks)) if value is not None]
    right = max([*times, 10.0 if bound is None else 2.2 * bound, 10.0])
    left = min([*times, -0.2 * right])
    near = table[(table[:, 3] >= left) & (table[:, 3] <= right), 5]
    top = max([*energies, min(float(near.max(initial=0.0)), HIGHEST), 0.0])
    bottom = min([*energies, float(near.min(initial=0.0)), -5.0])
    ranges = {"time": padded(left, right), "energy": padded(bottom, top)}
    for knob in knobs:
        column, own = (0, "limit_w") if knob == "limit" else (1, "sm_mhz")
        rows = table[~np.isnan(table[:, column]) & ((column == 1) | np.isnan(table[:, 1]))]
        tried = np.array([value for value in probes[own] if value is not None], np.float32)
        # What costs more energy than the default, and time besides, is left out where nobody was.
        worth = rows[(rows[:, 7] > 0) | (rows[:, 5] < 0), column]
        ends = np.concatenate([worth, tried]) if len(worth) else rows[:, column]
        ranges[knob] = padded(float(ends.min()), float(rows[:, column].max()))
        if knob != "clocks":
            least = min(float(np.nanmin(rows[:, 5], initial=bottom)), -5.0)
            ranges[f"{knob} change"] = padded(least, max(right, top))
    return ranges


def _place_numbers(probes: Columns, drawn: Mapping[str, Plane]) -> None:
    """Add "across" and "up" of each plane: where a probe's number covers least of the points and numbers."""
    for plane, (across, span, heights, rise) in drawn.items():
        scales = [size / (ends[1] - ends[0]) for size, ends in zip(FRAME_PX, (span, rise), strict=True)]
        places: list[tuple[float, float]] = []
        taken = [
            (x * scales[0], y * scales[1])
            for x, y in zip(probes[across], heights, strict=True) if x is not None and y is not None
        ]
        for number, x, y in zip(probes["n"], probes[across], heights, strict=True):
            if number is None or x is None or y is None:
                places.append(PLACES[0])
                continue
            at = (x * scales[0], y * scales[1])
            others = [spot for spot in taken if spot != at]
            places.append(max(PLACES, key=partial(_clear, at, others)))
            taken.append((at[0] + places[-1][0], at[1] + places[-1][1]))
        probes[f"{plane} across"], probes[f"{plane} up"] = [x for x, _ in places], [y for _, y in places]


def _clear(
    at: tuple[float, float], taken: Sequence[tuple[float, float]], place: tuple[float, float]
) -> float:
    """How far from everything else a number stands, in pixels; 13 is far enough."""
    x, y = at[0] + place[0], at[1] + place[1]
    return min([13.0, *(math.hypot((x - a) / 1.3, y - b) for a, b in taken)])


# numbers


def _percent(ratio: float | None) -> float | None:
    return None if ratio is None else _finite(100 * (ratio - 1))


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
