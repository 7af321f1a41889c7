"""The drawing of a tuner, for the live view and for the picture. Its sentences are in `text`.

Times and energies are changes against the default in per cent. Errors are half widths of 95 % intervals.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ....logbook.report import format_duration
from ....records import Setting
from ....search.tradeoff import Z95
from ....tuning import TuningView
from ..._core.svg import Span, padded
from .surface import ALLOWED, ENERGY, LIMIT, SM, TIME, Table, knobs_of, line, surface
from .text import ENDED, work_since_s

if TYPE_CHECKING:
    import polars as pl


class DrawnProbe(NamedTuple):
    """A setting that was tried. A baseline has no number; unknown values are None.

    Attributes:
        whole: Whether it was measured to its end.
        cost: Iterations and duration, and the outcome if the trial was not kept.
    """

    n: int | None
    setting: Setting
    time: float | None
    time_error: float | None
    energy: float | None
    energy_error: float | None
    whole: bool
    cost: str


class SettingMark(NamedTuple):
    """A marked setting: the default, the active one or the choice. Unknown values are None."""

    text: str
    setting: Setting
    time: float | None = None
    energy: float | None = None


@dataclass(frozen=True)
class Drawing:
    """The data of a tuner's drawing.

    Attributes:
        bound: The slowdown limit in per cent; None for no limit.
        knobs: The planes of settings that can be drawn: "clocks" (SM against memory clock), "sm" and "limit"
            (lines). The first is shown.
        table: The estimate of every setting, as `surface` returns it.
        default, current, choice: The marked settings.
        ranges: Ranges of the axes "time" and "energy" and of each knob.
    """

    bound: float | None
    knobs: tuple[str, ...]
    table: Table
    probes: tuple[DrawnProbe, ...]
    default: SettingMark
    current: SettingMark | None
    choice: SettingMark | None
    ranges: dict[str, Span]


def knob_of(setting: Setting, knob: str) -> float | None:
    """The value of a setting on the axis of a knob."""
    return setting.power_limit_w if knob == "limit" else setting.sm_clock_mhz


def drawing(tuning: TuningView) -> Drawing:
    """The drawing of a tuner."""
    table, probes = surface(tuning.belief), probes_of(tuning.trials, work_since_s(tuning))
    bound = None if tuning.max_slowdown is None else 100 * tuning.max_slowdown
    default = SettingMark("default", tuning.reference, 0.0, 0.0)
    chosen, choice = tuning.choice, None
    if chosen is not None:
        text = "choice" if chosen.measured else "choice, predicted"
        choice = SettingMark(text, chosen.setting, _percent(chosen.time_ratio), _percent(chosen.energy_ratio))
    current, knobs = _current(tuning, table, probes), knobs_of(table)
    at = tuning.current if chosen is None else chosen.setting
    if len(knobs) > 1 and at.sm_clock_mhz is None and at.power_limit_w is not None:
        knobs.reverse()
    ranges = _ranges(table, probes, [mark for mark in (default, current, choice) if mark], bound, knobs)
    return Drawing(bound, tuple(knobs), table, probes, default, current, choice, ranges)


def probes_of(probes: pl.DataFrame | None, from_s: float = 0.0) -> tuple[DrawnProbe, ...]:
    """The trials since a time, in their order; numbers count from the first of all."""
    found, number = list[DrawnProbe](), 0
    for row in [] if probes is None else probes.to_dicts():
        counts = row["kind"] == "probe"
        number += counts
        if (row["at_s"] or 0.0) < from_s:
            continue
        setting = Setting(row["power_limit_w"], row["sm_clock_mhz"], row["mem_clock_mhz"])
        time, energy = _change(row, "time"), _change(row, "energy")
        n, whole = number if counts else None, row["outcome"] == "kept"
        found.append(DrawnProbe(n, setting, time[0], time[1], energy[0], energy[1], whole, _cost(row)))
    return tuple(found)


def _change(row: dict[str, Any], name: str) -> tuple[float | None, float | None]:
    """The change of a trial's time or energy, and its error."""
    ratio, deviation = row[f"{name}_ratio"], row[f"{name}_sd"]
    known = ratio is not None and deviation is not None
    return _percent(ratio), 100 * Z95 * ratio * deviation if known else None


def _cost(row: dict[str, Any]) -> str:
    count, took_s, outcome = row["iterations"], row["cost_s"], row["outcome"]
    text = [f"{count} iteration{'s' * (count != 1)}"] if count else []
    text += [format_duration(took_s)] if took_s is not None else []
    if outcome != "kept":
        text.append(f"{outcome}{': ' + row['reason'] if row['reason'] else ''}")
    return ", ".join(text)


def _current(tuning: TuningView, table: Table, probes: Sequence[DrawnProbe]) -> SettingMark | None:
    """The active setting with its measured or estimated cost; None where the driver decides everything."""
    setting = tuning.current
    if setting == Setting() or tuning.state in ENDED:
        return None
    for probe in reversed(probes):
        if probe.setting == setting:
            return SettingMark("now", setting, probe.time, probe.energy)
    wanted = np.array(astuple(setting), float)
    for row in table[np.isclose(table[:, :3], wanted, equal_nan=True).all(axis=1)].tolist():
        return SettingMark("now", setting, row[TIME], row[ENERGY])
    return SettingMark("now", setting)


def _ranges(
    table: Table, probes: Sequence[DrawnProbe], marks: Sequence[SettingMark], bound: float | None,
    knobs: Sequence[str],
) -> dict[str, Span]:
    """Ranges of the axes: all trials and settings near the slowdown limit; much slower ones are outside."""
    places: list[DrawnProbe | SettingMark] = [*probes, *marks]
    times = [each.time for each in places if each.time is not None]
    energies = [each.energy for each in places if each.energy is not None]
    right = max([*times, 2.2 * (bound or 0.0), 10.0])
    left = min([*times, -0.2 * right])
    near = table[(table[:, TIME] >= left) & (table[:, TIME] <= right), ENERGY]
    bottom = min([*energies, float(near.min(initial=-5.0))])
    top = max([*energies, min(float(near.max(initial=0.0)), -bottom)])
    ranges = {"time": padded(left, right), "energy": padded(bottom, top)}
    for knob in knobs:
        column, rows = (LIMIT, line(table, "limit")) if knob == "limit" else (SM, line(table, "sm"))
        tried = [at for at in (knob_of(probe.setting, knob) for probe in probes) if at is not None]
        # Untried settings are left out if they cost more energy than the default or are beyond the left plot.
        worth = rows[(rows[:, ALLOWED] > 0) | ((rows[:, ENERGY] < 0) & (rows[:, TIME] <= right)), column]
        ends = np.concatenate([worth if len(worth) else rows[:, column], tried])
        ranges[knob] = padded(float(ends.min()), float(rows[:, column].max()))
        if knob != "clocks":
            least = float(np.nanmin(rows[rows[:, column] >= ends.min(), ENERGY], initial=-5.0))
            ranges[f"{knob} change"] = padded(least, max(right, top))
    return ranges


def _percent(ratio: float | None) -> float | None:
    return 100 * (ratio - 1) if ratio is not None and math.isfinite(ratio) else None
