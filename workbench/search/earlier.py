"""Earlier measurements of a job on this card: they choose the first trial of a search, and nothing else.

The name of a job may be wrong, or its input new. The best setting of an earlier run is therefore tried, once,
and only what this run measures counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..records import Setting
from .objective import Objective
from .space import SettingSpace

Cost = tuple[float, float]  # time (s) and energy (J)
SAME_SD = 0.01  # relative, by which the same setting differs from run to run
NEAR = 0.012  # in ln clock or limit, within which two settings are one


@dataclass(frozen=True)
class EarlierCurve:
    """Time (s) and energy (J) of a unit of work of one job at settings of one card.

    Attributes:
        costs: At each setting; the unit is the curve's own.
        source: In words, such as "a sweep of 2026-11-22".
        batch_size: None where it is not known.
    """

    costs: Mapping[Setting, Cost]
    source: str = "an earlier run"
    batch_size: int | None = None

    def at(self, settings: Sequence[Setting], top: Setting) -> dict[int, Cost]:
        """Its costs by row of `settings`, at those that it knows; empty where it knows fewer than two.

        Args:
            settings: Of the space, by row.
            top: Values of the knobs that are left alone, if known.
        """
        apart = np.abs(_places(settings, top)[:, None] - _places(self.costs, top)).max(axis=2)
        apart = np.nan_to_num(apart, nan=math.inf)  # a knob that only one names, with an unknown default
        costs, nearest = list(self.costs.values()), apart.argmin(axis=1)
        found = {row: costs[nearest[row]] for row in np.flatnonzero(apart.min(axis=1) <= NEAR).tolist()}
        return found if len(found) > 1 else {}

    def text(self, count: int) -> str:
        """That it knows so many of the settings."""
        return f"{count} settings of this job are known from {self.source}"


def first_known(curves: Iterable[EarlierCurve], space: SettingSpace) -> tuple[dict[int, Cost], str]:
    """Costs by row of a space, of the first curve that knows some; and where they are from, as text."""
    top = Setting(space.max_power_limit_w, space.max_sm_clock_mhz, space.max_mem_clock_mhz)
    for curve in curves:
        if costs := curve.at(space.settings, top):
            return costs, curve.text(len(costs))
    return {}, ""


def best_row(
    costs: Mapping[int, Cost], reference: int, measured: Cost, objective: Objective,
    max_slowdown: float | None,
) -> int:
    """The best setting of an earlier run, within the slowdown limit; the reference if none was better.

    Args:
        costs: Of the earlier run, by row.
        reference: Row of the setting that a slowdown is relative to.
        measured: Time (s) and energy (J) there, now.
        objective: The cost to minimise.
        max_slowdown: Allowed share of additional time; None for no limit.
    """
    top = costs.get(reference, min(costs.values()))
    ratios = {row: (time_s / top[0], energy_j / top[1]) for row, (time_s, energy_j) in costs.items()}
    bound = math.inf if max_slowdown is None else max((1 + max_slowdown) / math.exp(SAME_SD), 1.0)

    def cost(row: int) -> float:
        time, energy = ratios[row]
        return float(objective.cost(time * measured[0], energy * measured[1]))

    return min((row for row in ratios if ratios[row][0] <= bound), key=cost, default=reference)


def _places(settings: Iterable[Setting], top: Setting) -> np.ndarray:
    """ln limit, SM clock and memory clock relative to the top, (settings, 3); NaN if unknown."""
    highest = (top.power_limit_w, top.sm_clock_mhz, top.mem_clock_mhz)
    rows = []
    for each in settings:
        values = (each.power_limit_w, each.sm_clock_mhz, each.mem_clock_mhz)
        rows.append([
            (0.0 if value is None else math.nan) if high is None
            else 0.0 if value is None else math.log(value / high) if value > 0 < high else math.nan
            for value, high in zip(values, highest, strict=True)
        ])
    return np.array(rows, dtype=float).reshape(-1, 3)
