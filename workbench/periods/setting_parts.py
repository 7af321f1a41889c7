"""A window in parts: where a GPU's power limit or clocks were changed while a training ran.

A training's iterations take another time after such a change, so that one period cannot follow them through
the window. Limits are sampled as they are set. Of clocks only what a GPU runs at is known: a clock that
stands still for seconds, and then at another frequency, was set; one that wavers follows the power.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from .._html import HtmlFacts
from ..records import Periods

Array = np.ndarray[Any, Any]
CLOCKS = ("sm_clock_mhz", "mem_clock_mhz")
SETTINGS = ("power_limit_w", *CLOCKS)


@dataclass(frozen=True, slots=True)
class SettingPartParams:
    """Constants of the parts, by hand."""

    limit_w: float = 0.5  # within which a power limit is the same
    still: float = 0.01  # share that a clock which stands still moves by at most
    other: float = 0.02  # share from which on it is another one
    held_s: float = 2.0  # how long it has to stand still,
    held_rows: int = 5  # and in how many rows
    together_s: float = 1.0  # changes nearer than this are one, and no part is shorter
    most: int = 40  # parts; what changes more often is not set by a person or a search
    slack: float = 0.1  # share by which an iteration may change more than clocks explain


PARAMS = SettingPartParams()


@dataclass(frozen=True, slots=True)
class SettingPart(HtmlFacts):
    """A stretch of a window under one setting.

    `setting` says what it was, as far as it differs between the parts ("150 W"); `periods` were found in it,
    or in a longer part of the same setting. What is not known is NaN.
    """

    start_s: float
    end_s: float
    setting: str
    limits_w: tuple[float, ...]  # of each GPU
    sm_clock_mhz: float  # mean of the slowest GPU while it was busy
    mem_clock_mhz: float
    periods: Periods | None = None

    def may_take(self, seconds: float, other: SettingPart, other_s: float) -> bool:
        """Whether iterations of `seconds` here may be those of `other_s` in another part: no change of clocks
        makes them change by more than the clocks.
        """
        ratios = np.array(other.clocks) / np.array(self.clocks)
        known = ratios[np.isfinite(ratios)]
        low, high = np.prod(np.minimum(known, 1.0)), np.prod(np.maximum(known, 1.0))
        if not len(known):
            low, high = 0.5, 2.0
        return bool(low / (1 + PARAMS.slack) <= seconds / other_s <= high * (1 + PARAMS.slack))

    @property
    def clocks(self) -> tuple[float, float]:
        """SM and memory clock (MHz)."""
        return self.sm_clock_mhz, self.mem_clock_mhz

    def other_limit(self, other: SettingPart) -> bool:
        """Whether a power limit is another one than in another part."""
        pairs = zip(self.limits_w, other.limits_w, strict=True)
        return any(abs(mine - theirs) > PARAMS.limit_w for mine, theirs in pairs)


def setting_parts(traces: Sequence[pl.DataFrame], within_s: tuple[float, float]) -> tuple[SettingPart, ...]:
    """The parts of a window, end to end; none where nothing was changed in it.

    Args:
        traces: Of the GPUs of a job (`trace.SCHEMA`); columns that are missing do not change.
        within_s: Start and end of the window.
    """
    start_s, end_s = within_s
    tables = [_table(trace, within_s) for trace in traces]
    limited = sorted(at_s for table in tables for at_s in _limit_changes(*table["power_limit_w"]))
    clocked = sorted(at_s for table in tables for name in CLOCKS for at_s in _clock_changes(*table[name]))
    borders_s = [start_s]
    for at_s in sorted((*limited, *clocked)):
        if at_s - borders_s[-1] >= PARAMS.together_s and end_s - at_s >= PARAMS.together_s:
            borders_s.append(at_s)
    if not 2 <= len(borders_s) <= PARAMS.most:
        return ()
    parts = []
    for begin_s, until_s in zip(borders_s, [*borders_s[1:], end_s], strict=True):
        limits_w, *clocks = (
            [_usual(*table[name], begin_s, until_s) for table in tables] for name in SETTINGS
        )
        sm_mhz, mem_mhz = (float(np.fmin.reduce(each)) for each in clocks)
        words = []
        if limited:
            words.append("/".join(dict.fromkeys(f"{limit_w:.4g}" for limit_w in limits_w)) + " W")
        if clocked:
            words.append(f"{sm_mhz:.0f} MHz")
        parts.append(SettingPart(begin_s, until_s, ", ".join(words), tuple(limits_w), sm_mhz, mem_mhz))
    return _same_names(parts)


def _same_names(parts: Sequence[SettingPart]) -> tuple[SettingPart, ...]:
    """Parts of one setting have one name, that of the first: mean clocks are never quite the same."""
    named: list[SettingPart] = []
    for part in parts:
        alike = (each for each in named if not part.other_limit(each) and not _other_clock(part, each))
        named.append(replace(part, setting=next((each.setting for each in alike), part.setting)))
    return tuple(named)


def _other_clock(part: SettingPart, other: SettingPart) -> bool:
    pairs = zip(part.clocks, other.clocks, strict=True)
    return any(abs(a - b) > PARAMS.other * max(a, b) for a, b in pairs)


def _table(trace: pl.DataFrame, within_s: tuple[float, float]) -> dict[str, tuple[Array, Array]]:
    """Moments (s) and readings of each setting in a window; of the clocks while the GPU was busy, none where
    it mostly rested.
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


def _usual(times: Array, values: Array, start_s: float, end_s: float) -> float:
    inside = values[(times >= start_s) & (times < end_s)]
    return float(np.mean(inside)) if len(inside) else float("nan")


def _limit_changes(times: Array, limits_w: Array) -> list[float]:
    return times[1:][np.abs(np.diff(limits_w)) > PARAMS.limit_w].tolist()  # type: ignore[no-any-return]


def _clock_changes(times: Array, clocks: Array) -> list[float]:
    """Moments at which a clock that stands still begins or ends, beside another one or a wavering one."""
    blocks = _blocks(times, clocks)
    found = []
    for (_, was, was_still), (first, now, now_still) in itertools.pairwise(blocks):
        if was_still and now_still:
            moved = abs(now[1] - was[1]) > PARAMS.other * max(now[1], was[1])
        else:  # power makes a clock waver, lighter work raises it; nothing but a setting holds it low
            held, loose = (was, now) if was_still else (now, was)
            moved = held[1] < (1 - PARAMS.other) * loose[0]
        if moved:
            found.append(float(times[first]))
    return found


def _blocks(times: Array, clocks: Array) -> list[tuple[int, tuple[float, float], bool]]:
    """Stretches in which a clock stands still or wavers: first row, lowest tenth and median, is it still."""
    if not len(clocks):
        return []
    borders, low, high = [0], float(clocks[0]), float(clocks[0])
    for row in (np.flatnonzero(np.diff(clocks)) + 1).tolist():
        value = float(clocks[row])
        low, high = min(low, value), max(high, value)
        if high - low > PARAMS.still * high:
            borders.append(row)
            low = high = value
    blocks: list[tuple[int, int, bool]] = []
    for first, end in zip(borders, [*borders[1:], len(clocks)], strict=True):
        still = end - first >= PARAMS.held_rows and times[end - 1] - times[first] >= PARAMS.held_s
        if not still and blocks and not blocks[-1][2]:
            blocks[-1] = (blocks[-1][0], end, False)
        else:
            blocks.append((first, end, still))
    return [
        (first, tuple(np.quantile(clocks[first:end], [0.1, 0.5]).tolist()), still)
        for first, end, still in blocks if still or times[end - 1] - times[first] >= PARAMS.held_s
    ]
