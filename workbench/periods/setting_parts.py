"""Divides a window into parts at changes of a GPU's power limit or clocks during a training.

After such a change, iterations have another length, so that one period cannot follow them through the window.
Limits are sampled as set. For clocks, only the actual frequency is known: a clock that is constant for
seconds, and then constant at another frequency, was set. A clock that fluctuates follows the power.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from .._html import HtmlFacts
from ..records import Periods

Array = np.ndarray
CLOCKS = ("sm_clock_mhz", "mem_clock_mhz")
SETTINGS = ("power_limit_w", *CLOCKS)

UNKNOWN = "an unknown setting"

# Constants of the parts, set manually.
SAME_LIMIT_W = 0.5  # tolerance within which power limits are equal
OTHER_CLOCK = 0.02  # relative change that makes another clock; a constant one varies by half of it
HELD_S = 2.0  # minimum constant time; changes closer together than this are one
MOST_PARTS = 40  # parts; a person or a search does not change settings more often
# share by which a clock may move by itself (its temperature, lighter work), and by which an iteration may
# change beyond the effect of clocks
SLACK = 0.15


@dataclass(frozen=True)
class SettingPart(HtmlFacts):
    """An interval of a window under one setting.

    `setting` names it, as far as it differs between the parts ("150 W"). Parts of one setting have the same
    `number`. `periods` were found in it, or in a longer part of the same setting. Unknown values are NaN.
    """

    start_s: float
    end_s: float
    setting: str
    limits_w: tuple[float, ...]  # of each GPU
    sm_clock_mhz: float  # mean of the slowest GPU while it was busy
    mem_clock_mhz: float
    periods: Periods | None = None
    detected: bool = False  # whether `periods` were found in this very part
    number: int = 0
    changed: tuple[str, ...] = ()  # of `SETTINGS`, inside the window

    def may_take(self, seconds: float, other: SettingPart, other_s: float) -> bool:
        """Whether iterations of `seconds` here may be those of `other_s` in another part: a change of clocks
        cannot change them by a larger factor than the clocks.
        """
        ratios = np.array(other.clocks) / np.array(self.clocks)
        known = ratios[np.isfinite(ratios)]
        low, high = np.prod(np.minimum(known, 1.0)), np.prod(np.maximum(known, 1.0))
        if not len(known):
            low, high = 0.5, 2.0
        return bool(low / (1 + SLACK) <= seconds / other_s <= high * (1 + SLACK))

    @property
    def clocks(self) -> tuple[float, float]:
        """SM and memory clock (MHz)."""
        return self.sm_clock_mhz, self.mem_clock_mhz

    def other_limit(self, other: SettingPart) -> bool:
        """Whether a power limit differs from that of another part."""
        pairs = zip(self.limits_w, other.limits_w, strict=True)
        return any(abs(mine - theirs) > SAME_LIMIT_W for mine, theirs in pairs)


def setting_parts(traces: Sequence[pl.DataFrame], within_s: tuple[float, float]) -> tuple[SettingPart, ...]:
    """Adjacent parts of a window; none if no setting changed in it.

    Args:
        traces: Traces of the GPUs of a job (`trace.SCHEMA`); missing columns do not change.
        within_s: Start and end of the window.
    """
    tables = [_table(trace, within_s) for trace in traces]
    changes = _changes(tables)
    borders_s = _borders(changes, within_s)
    if not 3 <= len(borders_s) <= MOST_PARTS + 1:
        return ()
    parts = [_part(tables, *pair_s) for pair_s in itertools.pairwise(borders_s)]
    return number_settings(parts, [name for name in SETTINGS if any(changes[name])])


def whole_part(traces: Sequence[pl.DataFrame], within_s: tuple[float, float]) -> tuple[SettingPart, ...]:
    """A window without a change, as one part; none if settings changed too often."""
    tables = [_table(trace, within_s) for trace in traces]
    if len(_borders(_changes(tables), within_s)) > 2:
        return ()
    return number_settings([_part(tables, *within_s)], ())


def unknown_part(start_s: float, end_s: float) -> SettingPart:
    """An interval with unknown settings."""
    return SettingPart(start_s, end_s, "", (), math.nan, math.nan)


def number_settings(parts: Sequence[SettingPart], changed: Collection[str]) -> tuple[SettingPart, ...]:
    """Parts with the number and the name of their setting, as far as it `changed`. The name is that of its
    first part, because mean clocks are never exactly equal. If the limits identify all settings, the name
    omits the clocks, which follow them.
    """
    found: list[SettingPart] = []
    first: list[SettingPart] = []
    for part in parts:
        alike = (each for each in first if not any(_other(part, each, name) for name in changed))
        known = next(alike, None)
        if known is None:
            known = replace(part, number=len(first))
            first.append(known)
        found.append(replace(part, number=known.number, changed=tuple(changed)))
    names = [_describe(each, [name for name in changed if name == "power_limit_w"]) for each in first]
    if len(set(names)) < len(first) or UNKNOWN in names:
        names = [_describe(each, changed) for each in first]
    return tuple(replace(each, setting=names[each.number]) for each in found)


def limits_differ(parts: Sequence[SettingPart]) -> bool:
    """Whether parts have other power limits than the first one."""
    return any(_other(part, parts[0], "power_limit_w") for part in parts[1:])


def moved_by_itself(parts: Sequence[SettingPart]) -> bool:
    """Whether only clocks changed between parts, and so little that the GPU may have done it itself."""
    if any("power_limit_w" in part.changed for part in parts):
        return False
    clocks = np.array([part.clocks for part in parts])
    known = [each for column in clocks.T if len(each := column[np.isfinite(column)])]
    return bool(known) and all(np.ptp(each) <= SLACK * np.max(each) for each in known)


def _describe(part: SettingPart, changed: Collection[str]) -> str:
    if not changed:
        return ""
    labels = []
    limits_w = [f"{limit_w:.4g}" for limit_w in part.limits_w if math.isfinite(limit_w)]
    if "power_limit_w" in changed and limits_w:
        labels.append("/".join(limits_w if len(set(limits_w)) > 1 else limits_w[:1]) + " W")
    for name, mhz, kind in zip(CLOCKS, part.clocks, ("", " memory"), strict=True):
        if name in changed and math.isfinite(mhz):
            labels.append(f"{mhz:.0f} MHz{kind}")
    return ", ".join(labels) or UNKNOWN


def _other(part: SettingPart, other: SettingPart, name: str) -> bool:
    """Whether a setting differs in another part, or is known in one of them only."""
    if name == "power_limit_w":
        mine, theirs = np.array(part.limits_w), np.array(other.limits_w)
        if len(mine) != len(theirs):
            return True
        slack = np.full(len(mine), SAME_LIMIT_W)
    else:
        at = CLOCKS.index(name)
        mine, theirs = np.array(part.clocks[at : at + 1]), np.array(other.clocks[at : at + 1])
        slack = OTHER_CLOCK * np.maximum(mine, theirs)
    known = np.isfinite(mine) & np.isfinite(theirs)
    apart = np.abs(mine - theirs)[known] > slack[known]
    return bool(apart.any() or (np.isfinite(mine) != np.isfinite(theirs)).any())


def _table(trace: pl.DataFrame, within_s: tuple[float, float]) -> dict[str, tuple[Array, Array]]:
    """Moments (s) and readings of each setting in a window. Clocks count only while the GPU was busy; none if
    it was mostly idle.
    """
    inside = trace.filter(pl.col("time_s").is_between(*within_s))
    times = inside["time_s"].to_numpy()
    busy = np.ones(len(times), dtype=bool)
    if "utilisation" in inside.columns:
        busy = ~(inside["utilisation"].cast(pl.Float64).to_numpy() <= 0)
    busy &= busy.mean() > 0.5 if len(busy) else False
    found = {}
    for name in SETTINGS:
        column = inside[name] if name in inside.columns else pl.Series([None] * len(times))
        values = column.cast(pl.Float64).to_numpy()
        known = np.isfinite(values) & (busy if name in CLOCKS else True)
        found[name] = (times[known], values[known])
    return found


def _changes(tables: Sequence[dict[str, tuple[Array, Array]]]) -> dict[str, list[float]]:
    """Moments at which each setting changed on any GPU."""
    return {
        name: [at_s for table in tables
               for at_s in (clock_changes if name in CLOCKS else _limit_changes)(*table[name])]
        for name in SETTINGS
    }


def _borders(changes: dict[str, list[float]], within_s: tuple[float, float]) -> list[float]:
    """Starts of the parts, and the end of the window."""
    start_s, end_s = within_s
    borders_s = [start_s]
    for at_s in sorted(itertools.chain(*changes.values())):
        if at_s - borders_s[-1] >= HELD_S and end_s - at_s >= HELD_S:
            borders_s.append(at_s)
    return [*borders_s, end_s]


def _part(tables: Sequence[dict[str, tuple[Array, Array]]], start_s: float, end_s: float) -> SettingPart:
    usual = {"power_limit_w": np.median}  # unaffected by a change too short for a part of its own
    limits_w, *clocks = (
        [_usual(*table[name], start_s, end_s, usual.get(name, np.mean)) for table in tables]
        for name in SETTINGS
    )
    sm_mhz, mem_mhz = (float(np.fmin.reduce(each)) for each in clocks)
    return SettingPart(start_s, end_s, "", tuple(limits_w), sm_mhz, mem_mhz)


def _usual(
    times: Array, values: Array, start_s: float, end_s: float, usual: Callable[[Array], Any]
) -> float:
    inside = values[(times >= start_s) & (times < end_s)]
    return float(usual(inside)) if len(inside) else float("nan")


def _limit_changes(times: Array, limits_w: Array) -> list[float]:
    return times[1:][np.abs(np.diff(limits_w)) > SAME_LIMIT_W].tolist()


def clock_changes(times: Array, clocks: Array) -> list[float]:
    """Moments at which a constant clock begins or ends, next to another one or a fluctuating one."""
    blocks = _blocks(times, clocks)
    found = []
    for (_, was, was_still), (first, now, now_still) in itertools.pairwise(blocks):
        if was_still and now_still:
            moved = abs(now[1] - was[1]) > OTHER_CLOCK * max(now[1], was[1])
        else:  # power makes a clock fluctuate, lighter work raises it; only a setting keeps it low
            held, loose = (was, now) if was_still else (now, was)
            moved = held[1] < (1 - OTHER_CLOCK) * loose[0]
        if moved:
            found.append(float(times[first]))
    return found


def _blocks(times: Array, clocks: Array) -> list[tuple[int, tuple[float, float], bool]]:
    """Intervals in which a clock is constant or fluctuates: first row, lowest tenth and median, is it
    constant.
    """
    if not len(clocks):
        return []
    borders, low, high = [0], float(clocks[0]), float(clocks[0])
    for row in (np.flatnonzero(np.diff(clocks)) + 1).tolist():
        value = float(clocks[row])
        low, high = min(low, value), max(high, value)
        if high - low > 0.5 * OTHER_CLOCK * high:
            borders.append(row)
            low = high = value
    blocks: list[tuple[int, int, bool]] = []
    for first, end in zip(borders, [*borders[1:], len(clocks)], strict=True):
        still = times[end - 1] - times[first] >= HELD_S
        if not still and blocks and not blocks[-1][2]:
            blocks[-1] = (blocks[-1][0], end, False)
        else:
            blocks.append((first, end, still))
    return [
        (first, tuple(np.quantile(clocks[first:end], [0.1, 0.5]).tolist()), still)
        for first, end, still in blocks if still or times[end - 1] - times[first] >= HELD_S
    ]
