"""The possible settings of a search: SM and memory clocks that a card pairs, power limits, or both.

A space is finite. Slowdown and saving are relative to its reference, the GPU's default setting. A clock lock
and a limit both lower the SM clock, so "both" has clocks and limits, but no combinations of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import polars as pl

from ..errors import UsageError
from ..records import Limits, Setting

KNOBS = pl.Schema({"power_limit_w": pl.Float64, "sm_clock_mhz": pl.Int64, "mem_clock_mhz": pl.Int64})
Over = Literal["power", "clocks", "both"]
LIMIT_STEPS = 60  # power limits between the lowest and the default, where no step is named


@dataclass(frozen=True)
class SettingSpace:
    """Settings that a search may choose from, and the default one.

    Attributes:
        settings: All candidates, the reference included, each once; each names only the knobs to be set.
        reference: The GPU's default setting: its default power limit, its highest clocks.
        max_power_limit_w, max_sm_clock_mhz, max_mem_clock_mhz: Of a knob that is left alone; None if unknown.
    """

    settings: tuple[Setting, ...]
    reference: Setting
    max_power_limit_w: float | None = None
    max_sm_clock_mhz: int | None = None
    max_mem_clock_mhz: int | None = None

    def __post_init__(self) -> None:
        if self.reference not in self.settings:
            raise UsageError(
                f"the reference ({self.reference}) is not among the {len(self.settings)} settings of this "
                "space; add it"
            )
        if len(set(self.settings)) != len(self.settings):
            raise UsageError("this space contains a setting twice; give each once")

    def __len__(self) -> int:
        return len(self.settings)

    @cached_property
    def rows(self) -> Mapping[Setting, int]:
        """Row of each setting."""
        return {setting: row for row, setting in enumerate(self.settings)}

    @property
    def reference_row(self) -> int:
        return self.rows[self.reference]

    def row(self, setting: Setting) -> int:
        """The row of a setting; a power limit may differ by a watt, because drivers round.

        Raises:
            UsageError: A setting that is not in this space.
        """
        if setting in self.rows:
            return self.rows[setting]
        if setting.power_limit_w is not None:
            for each, row in self.rows.items():
                near = abs((each.power_limit_w or math.inf) - setting.power_limit_w) <= 1.0
                if near and replace(each, power_limit_w=setting.power_limit_w) == setting:
                    return row
        raise UsageError(
            f"{setting} is not one of the {len(self)} settings of this search; the reference is "
            f"{self.reference}"
        )

    @cached_property
    def x(self) -> np.ndarray:
        """SM clock of each setting relative to the highest; 1 where it is left to the driver."""
        return _relative([each.sm_clock_mhz for each in self.settings], self.max_sm_clock_mhz)

    @cached_property
    def mu(self) -> np.ndarray:
        """Memory clock of each setting relative to the highest; 1 where it is left to the driver."""
        return _relative([each.mem_clock_mhz for each in self.settings], self.max_mem_clock_mhz)

    @cached_property
    def limit(self) -> np.ndarray:
        """Power limit of each setting relative to the highest; 1 where it is left alone."""
        return _relative([each.power_limit_w for each in self.settings], self.max_power_limit_w)

    def frame(self) -> pl.DataFrame:
        """One row per setting; null = left to the driver."""
        return knobs(self.settings)


def knobs(settings: Sequence[Setting]) -> pl.DataFrame:
    """Settings as columns power_limit_w, sm_clock_mhz, mem_clock_mhz; null = left to the driver."""
    rows = [(each.power_limit_w, each.sm_clock_mhz, each.mem_clock_mhz) for each in settings]
    return pl.DataFrame(rows, schema=KNOBS, orient="row")


def space_of(
    settings: Sequence[Setting], reference: Setting | None = None, *, max_power_limit_w: float | None = None
) -> SettingSpace:
    """The space of a table of settings; the default reference has the highest clocks, then limit."""
    found = tuple(dict.fromkeys(settings))
    if not found:
        raise UsageError(
            "there is no setting to choose from; give at least the GPU's default setting"
        )
    chosen = reference if reference is not None else max(found, key=_height)
    limits = [each.power_limit_w for each in found if each.power_limit_w is not None]
    sm = [each.sm_clock_mhz for each in found if each.sm_clock_mhz is not None]
    mem = [each.mem_clock_mhz for each in found if each.mem_clock_mhz is not None]
    highest_w = max_power_limit_w if max_power_limit_w is not None else max(limits, default=None)
    return SettingSpace(found, chosen, highest_w, max(sm, default=None), max(mem, default=None))


def space_from(
    limits: Limits, over: Over = "clocks", *, can_lock_memory: bool = True, step_w: float | None = None
) -> SettingSpace:
    """The settings that a device supports.

    Args:
        limits: The ranges of the device.
        over: "clocks": SM clocks at each memory clock. "power": limits at equal steps from the lowest to the
            default. "both": the clocks, and the limits below the default.
        can_lock_memory: Whether memory clocks may be locked (Ampere and newer, nvml.h).
        step_w: Distance of limits; by default 5 W, or a multiple that makes at most 60.

    Raises:
        UsageError: The device has no setting to change.
    """
    if over not in ("power", "clocks", "both"):
        raise UsageError(f"a search over '{over}' is not possible; choose power, clocks or both")
    if step_w is not None and not (step_w > 0 and math.isfinite(step_w)):
        raise UsageError(f"power limits cannot be {step_w:g} W apart; give a step above 0 W")
    caps = _limits_w(limits, step_w)
    clocks = _clocks(limits, can_lock_memory)
    if len(caps) < 2 and len(clocks) < 2:
        raise UsageError("this GPU has neither clocks nor power limits: it can be measured, not tuned")
    if over == "power" and len(caps) < 2:
        raise UsageError("this GPU has no power limit to choose; its clocks can be locked: choose clocks")
    if over == "clocks" and len(clocks) < 2:
        raise UsageError("this GPU has no clocks to choose; its power limit can be set: choose power")
    settings = list(clocks) if over != "power" and len(clocks) > 1 else []
    if over == "power" or not settings:
        settings = [Setting(power_limit_w=each) for each in caps]
    elif over == "both":
        settings += [Setting(power_limit_w=each) for each in caps[1:]]  # the default is the reference again
    highest_mhz = max((max(each) for each in limits.sm_clocks_mhz.values() if each), default=None)
    memory_mhz = max(limits.sm_clocks_mhz, default=None)
    return SettingSpace(tuple(settings), settings[0], _default_w(limits), highest_mhz, memory_mhz)


def _default_w(limits: Limits) -> float | None:
    known = limits.default_power_limit_w
    return known if known is not None else limits.max_power_limit_w


def _limits_w(limits: Limits, step_w: float | None) -> list[float]:
    """Highest first, from the default down."""
    top, low = _default_w(limits), limits.min_power_limit_w
    if top is None or low is None or not top > low:
        return [] if top is None else [float(top)]
    step = step_w if step_w is not None else max(5.0, 5.0 * math.ceil((top - low) / LIMIT_STEPS / 5.0))
    count = math.floor((top - low) / step + 1e-9)
    values = [top - i * step for i in range(count + 1)]
    return [float(each) for each in (values if values[-1] - low < 1.0 else [*values, low])]


def _clocks(limits: Limits, can_lock_memory: bool) -> list[Setting]:
    """Highest memory clock first, then highest SM clock."""
    memories = limits.mem_clocks_mhz
    if not memories:
        return []
    lock = can_lock_memory and len(memories) > 1
    found = []
    for mem in memories if lock else memories[:1]:
        sm = sorted(set(limits.sm_clocks_mhz[mem]), reverse=True)
        found += [Setting(sm_clock_mhz=each, mem_clock_mhz=mem if lock else None) for each in sm]
    return found


def _relative(values: Sequence[Any], highest: float | None) -> np.ndarray:
    named = [each for each in values if each is not None]
    unit = highest if highest is not None else max(named, default=1.0)
    return np.array([1.0 if each is None else each / unit for each in values])


def _height(setting: Setting) -> tuple[float, float, float]:
    knobs = (setting.mem_clock_mhz, setting.sm_clock_mhz, setting.power_limit_w)
    memory, sm, limit = (math.inf if value is None else value for value in knobs)
    return memory, sm, limit
