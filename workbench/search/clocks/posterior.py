"""Estimates for the settings of a running job: a search, its space and earlier runs.

The tuner of a running cell and the power-limit profile of a recurring job get their next trial from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from ...records import Setting
from ..earlier import EarlierCurve, best_row, first_known
from ..objective import Objective
from ..space import SettingSpace
from .base import Choice, Done, Trial

if TYPE_CHECKING:
    from .make import ClockSearch


class SettingPosterior:
    """A search over the settings of one workload; `Setting()` is the reference.

    Args:
        name: Name of the search.
        space, objective, max_slowdown: Its space, cost and slowdown limit.
        same: Earlier runs of this job; the best setting of the first one that knows this space is tried
            first.
        options: Of `make_search`; `learns_later` by default.
    """

    def __init__(
        self, name: str, space: SettingSpace, objective: Objective, max_slowdown: float | None, *,
        same: Sequence[EarlierCurve] = (), **options: Any,
    ) -> None:
        self.space, self.objective, self.max_slowdown = space, objective, max_slowdown
        self.name, self._options = name, {"learns_later": True, **options}
        self._measured: list[tuple[Any, ...]] = []
        self._barred: list[tuple[Setting, str]] = []
        self._earlier, self.known = first_known(same, space)
        self._frame: pl.DataFrame | None = None
        self.search = self._search()

    def _search(self) -> ClockSearch:
        """The search with all measurements."""
        from .make import make_search

        search = make_search(self.name, self.space, self.objective, self.max_slowdown, **self._options)
        for setting, *measurement in self._measured:
            search.tell(self.named(setting), *measurement)
        for setting, reason in self._barred:
            search.cannot(self.named(setting), reason)
        self._frame = None
        return search

    def again(self, objective: Objective, max_slowdown: float | None) -> SettingPosterior:
        """The same job under another objective or slowdown limit, with all measurements."""
        other = copy(self)
        other.objective, other.max_slowdown = objective, max_slowdown
        other._measured, other._barred = [*self._measured], [*self._barred]
        other.search = other._search()
        return other

    def next(self) -> Trial | Done:
        """The next trial, or why there is none. The best setting of an earlier run is first."""
        if self._measured and (row := self._first_row()) is not None:
            return self.search.trial(row, f"{self.known}: tried first")
        return self.search.next()

    def _first_row(self) -> int | None:
        """The setting that was best in an earlier run, if it was better than the default; once."""
        here, costs, self._earlier = self.space.reference_row, self._earlier, {}
        if not costs:
            return None
        baseline = self.measured().get(Setting(), (1.0, 1.0))
        best = best_row(costs, here, baseline, self.search.objective, self.search.max_slowdown)
        setting = self.space.settings[best]
        barred = {self.named(each) for each, _ in self._barred}
        return None if best == here or setting in barred or self.visited(setting) else best

    def measured(self) -> dict[Setting, tuple[float, float]]:
        """Time (s) and energy (J) of an iteration at each setting that this run has measured, pooled."""
        sums: dict[Setting, np.ndarray] = {}
        for setting, iterations, time_s, energy_j, *_ in self._measured:
            own = Setting() if self.named(setting) == self.space.reference else setting
            sums[own] = sums.get(own, np.zeros(3)) + np.array([iterations, time_s, energy_j])
        return {setting: (total[1] / total[0], total[2] / total[0]) for setting, total in sums.items()}

    def named(self, setting: Setting) -> Setting:
        """The corresponding setting of the search's space."""
        return self.space.reference if setting == Setting() else setting

    def tell(
        self, setting: Setting, iterations: int, time_s: float, energy_j: float, uncertainty_j: float,
        sd_s: float | None,
    ) -> None:
        """As `base.Probing.tell`; `Setting()` is the reference."""
        self.search.tell(self.named(setting), iterations, time_s, energy_j, uncertainty_j, sd_s)
        self._measured.append((setting, iterations, time_s, energy_j, uncertainty_j, sd_s))
        self._frame = None

    def cannot(self, setting: Setting, reason: str) -> None:
        """Report a setting that could not be set or measured."""
        self.search.cannot(self.named(setting), reason)
        self._barred.append((setting, reason))
        self._frame = None

    def too_slow(self, setting: Setting, reason: str) -> None:
        """Report a setting without observable iterations; slower ones are excluded with it."""
        space, row = self.space, self.space.row(self.named(setting))
        below = (space.x <= space.x[row]) & (space.mu <= space.mu[row]) & (space.limit <= space.limit[row])
        for other in np.flatnonzero(below):
            self.cannot(space.settings[other], reason)

    def choice(self, max_slowdown: float | None) -> Choice:
        """The estimated best setting under this slowdown limit."""
        return self.search.choice(max_slowdown=max_slowdown)

    def about(self, setting: Setting) -> Choice:
        """The estimate for a setting, chosen or not."""
        time_ratio, time_sd, energy_ratio = self.ratios(setting)
        row = self._row(setting)
        kept = 1.0 if row["p_allowed"] is None else row["p_allowed"]
        energy_sd = row["energy_sd"] or time_sd
        return Choice(
            self.named(setting), time_ratio, energy_ratio, time_sd, energy_sd, kept, self.visited(setting)
        )

    @property
    def frame(self) -> pl.DataFrame:
        """`ClockSearch.belief()`; the same frame until there is new evidence."""
        if self._frame is None:
            self._frame = self.search.belief()
        return self._frame

    def _row(self, setting: Setting) -> dict[str, Any]:
        return self.frame.row(self.space.row(self.named(setting)), named=True)

    def visited(self, setting: Setting) -> bool:
        """Whether a setting was measured."""
        return any(self.named(measurement[0]) == self.named(setting) for measurement in self._measured)

    def slowest(self, setting: Setting, power_share: float) -> float:
        """Longest possible time at a setting, relative to the reference: all work depends on the slowed unit.

        A limit lowers the SM clock at least until power follows, half of which may not depend on that clock.
        """
        row = self.space.row(self.named(setting))
        clocks = 1.0 / min(self.space.x[row], self.space.mu[row])
        limit = self.space.limit[row] / max(power_share, 1e-6)
        return float(max(clocks, 1.0 / limit**2 if limit < 1.0 else 1.0)) * 1.06

    def ratios(self, setting: Setting) -> tuple[float, float, float]:
        """Time relative to the reference, the relative error of that, and energy."""
        if self.named(setting) == self.space.reference:
            return 1.0, 0.01, 1.0
        row = self._row(setting)
        if row["time_ratio"] is None:  # a search that uses only its trials
            return 1.0, 0.1, 1.0
        return row["time_ratio"], row["time_sd"], row["energy_ratio"]

    def cost(self, setting: Setting) -> float:
        """Cost of an iteration relative to the reference."""
        time_ratio, _, energy_ratio = self.ratios(setting)
        time_s, energy_j = self.measured()[Setting()]
        cost = self.search.objective.cost
        return float(cost(time_s * time_ratio, energy_j * energy_ratio) / cost(time_s, energy_j))
