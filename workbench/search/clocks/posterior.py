"""Estimates for the settings of a running job: a search, its space and earlier runs.

The tuner of a running cell and the power-limit profile of a recurring job get their next trial from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy, deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from ...records import Setting
from ..earlier import EarlierCurve, EarlierRuns, PlacedCurve, best_row, place_in
from ..objective import Objective
from ..space import SettingSpace
from ..surrogates.library import Library, Mixtures
from ..surrogates.response_surface import Response, fit
from .base import Choice, Done, Trial

if TYPE_CHECKING:
    from .make import ClockSearch


class SettingPosterior:
    """A search over the settings of one workload; `Setting()` is the reference.

    Args:
        name: Name of the search.
        space, objective, max_slowdown: Its space, cost and slowdown limit.
        same: Earlier runs of this job; the first one is tried first.
        others: Earlier runs of other jobs on this card.
        options: Of `make_search`; `learns_later` by default.
    """

    def __init__(
        self, name: str, space: SettingSpace, objective: Objective, max_slowdown: float | None, *,
        same: Sequence[EarlierCurve] = (), others: Sequence[EarlierCurve] = (), **options: Any,
    ) -> None:
        self.space, self.objective, self.max_slowdown = space, objective, max_slowdown
        self.name, self._options = name, {"learns_later": True, **options}
        self._measured: list[tuple[Any, ...]] = []
        self._barred: list[tuple[Setting, str]] = []
        self.earlier = EarlierRuns(expected(each, space) for each in place_in(same, space))
        self._others = mixtures_of(others, space)
        self.news = ""  # effect of the last measurement on earlier runs, if any
        self._frame: pl.DataFrame | None = None
        self.search = self._search()

    def _search(self) -> ClockSearch:
        """The search with earlier knowledge and all measurements."""
        from .make import make_search

        library = Library(self._others, tuple(self.earlier.agreed))
        known = library if library.others is not None or library.same else None
        search = make_search(
            self.name, replace(self.space, known=known), self.objective, self.max_slowdown,
            **self._options,
        )
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
        other.earlier = deepcopy(self.earlier)
        other.search = other._search()
        return other

    def next(self) -> Trial | Done:
        """The next trial, or why there is none. The best setting of an earlier run is first. A choice that
        only an earlier run has measured is tried before the end.
        """
        if self._measured and (row := self._first_row()) is not None:
            return self.search.trial(row, f"{self.earlier.text}: tried first")
        step = self.search.next()
        if isinstance(step, Done) and self.earlier.agreed:
            setting = self.search.choice().setting
            if self._untried(setting):
                row = self.space.row(setting)
                return self.search.trial(row, "the best setting of an earlier run")
        return step

    def _untried(self, setting: Setting) -> bool:
        return not self.visited(setting) and setting not in {self.named(each) for each, _ in self._barred}

    def _first_row(self) -> int | None:
        """The setting that was best in an earlier run, if it was better than the default; once."""
        curve, here = self.earlier.first(), self.space.reference_row
        if curve is None:
            return None
        self.earlier.tried()
        baseline = self.measured().get(Setting(), (1.0, 1.0))
        best = best_row(curve, here, baseline, self.search.objective, self.search.max_slowdown)
        return best if best != here and self._untried(self.space.settings[best]) else None

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
        verdicts = self.earlier.see(self.search.measured()) if self.earlier else []
        self.news = "; ".join(
            f"known from {source or 'an earlier run'}: "
            + ("as this run's measurements" if agreed else "this run's measurements differ: not used")
            for source, agreed in verdicts
        )
        if verdicts:
            self.search = self._search()

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


def expected(curve: PlacedCurve, space: SettingSpace) -> PlacedCurve:
    """A curve with the expectation between its settings."""
    found = _fit(curve, space)
    logs = np.column_stack([found.log_times.mean(axis=0), found.log_energies.mean(axis=0)])
    sds = np.hypot(np.column_stack([found.time_sd, found.energy_sd]), curve.sd)
    logs += (curve.logs - logs[curve.rows]).mean(axis=0)
    return replace(curve, expected=dict(enumerate(map(tuple, np.hstack([logs, sds]).tolist()))))


def mixtures_of(curves: Sequence[EarlierCurve], space: SettingSpace) -> Mixtures | None:
    """Curves of other jobs on this card, completed by physics where they were not measured."""
    fits = [_fit(each, space) for each in place_in(curves, space)]
    if not fits:
        return None
    return Mixtures(np.array([each.log_times.mean(axis=0) for each in fits]),
                    np.array([each.log_energies.mean(axis=0) for each in fits]))


def _fit(curve: PlacedCurve, space: SettingSpace) -> Response:
    time_s, energy_j = np.exp(curve.logs - curve.logs.mean(axis=0)).T
    return fit(space, curve.rows, time_s, energy_j, np.full((len(curve.rows), 2), curve.sd))
