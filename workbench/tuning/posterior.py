"""What is believed of the settings of a running job: a search, its space, and questions to both."""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy, deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from ..errors import WorkbenchError
from ..records import Setting
from ..search.clocks.base import Choice, Done, Trial
from ..search.earlier import EarlierCurve, EarlierRuns, PlacedCurve, best_row, place_in
from ..search.objective import Objective
from ..search.space import SettingSpace
from ..search.surrogates.library import Library, Mixtures
from ..search.surrogates.response_surface import Response, fit
from .probe import Reading

if TYPE_CHECKING:
    from ..search.clocks.make import ClockSearch


UNLIKELY = 0.08  # probability of keeping the bound by what is known here, below which nothing is tried first


class SettingPosterior:
    """A search over the settings of one workload, which has its own name for the reference `Setting()`.

    Args:
        name: Of the search.
        space, objective, max_slowdown: What it searches.
        prior: A prediction, or None.
        gpus: How many GPUs the energies are of.
        update_s: How often their energy counters move.
        wait_share: Of an iteration at the default setting, in which they wait; None where they do not tell.
        seed: Of its draws.
        same: Earlier runs of this job, the one to be tried first in front.
        others: Earlier runs of other jobs on this card.
        learns_later: What is chosen will be held and measured.
    """

    def __init__(
        self, name: str, space: SettingSpace, objective: Objective, max_slowdown: float | None, *,
        prior: Any = None, gpus: int = 1, update_s: float = 0.1, wait_share: float | None = None,
        seed: int = 0, same: Sequence[EarlierCurve] = (), others: Sequence[EarlierCurve] = (),
        learns_later: bool = True,
    ) -> None:
        self.space, self.objective, self.max_slowdown = space, objective, max_slowdown
        self.name, self._seed = name, seed
        self._options: dict[str, Any] = {
            "prior": prior, "gpus": gpus, "counter_update_s": update_s, "wait_share": wait_share,
            "learns_later": learns_later,
        }
        self._measured: list[tuple[Any, ...]] = []
        self._barred: list[tuple[Setting, str]] = []
        self.earlier = EarlierRuns(expected(each, space) for each in place_in(same, space))
        self._others = mixtures_of(others, space)
        self.news = ""  # what the last measurement has made of earlier runs, where it has
        self._frame: pl.DataFrame | None = None
        self._columns: dict[str, list[Any]] = {}
        self.search = self._search()

    def _search(self) -> ClockSearch:
        """The search with what is known from before, and all that was measured."""
        from ..search.clocks.make import make_search

        library = Library(self._others, tuple(self.earlier.agreed))
        known = library if library.others is not None or library.same else None
        search = make_search(
            self.name, replace(self.space, known=known), self.objective, self.max_slowdown,
            rng=np.random.default_rng(self._seed), **self._options,
        )
        for setting, *measurement in self._measured:
            search.tell(self.named(setting), *measurement)
        for setting, reason in self._barred:
            search.cannot(self.named(setting), reason)
        self._frame = None
        return search

    def again(self, objective: Objective, max_slowdown: float | None) -> SettingPosterior:
        """The same job under another objective or bound, with everything that was measured."""
        other = copy(self)
        other.objective, other.max_slowdown = objective, max_slowdown
        other._measured, other._barred, other.earlier = (
            [*self._measured],
            [*self._barred],
            deepcopy(self.earlier),
        )
        other.search = other._search()
        return other

    def next(self) -> Trial | Done:
        """The next probe, or why there is none: what was best in an earlier run first, and no choice at the
        end that only an earlier run has measured.
        """
        if self._measured and (row := self._first_row()) is not None:
            return self.search.trial(row, f"{self.earlier.text}: tried first")
        step = self.search.next()
        if isinstance(step, Done) and self.earlier.agreed:
            setting = self.search.choice().setting
            if not self.visited(setting) and setting not in self._unreachable:
                row = self.space.row(setting)
                return self.search.trial(row, "the best by what an earlier run has measured")
        return step

    @property
    def _unreachable(self) -> set[Setting]:
        return {self.named(setting) for setting, _ in self._barred}

    def _first_row(self) -> int | None:
        """The setting that was best in an earlier run, where it was better than the default; once."""
        curve, here = self.earlier.first(), self.space.reference_row
        if curve is None:
            return None
        baseline = self.measured().get(Setting(), (1.0, 1.0))
        best = best_row(curve, here, baseline, self.objective, self.max_slowdown)
        setting = self.space.settings[best]
        if best == here or self.visited(setting) or setting in self._unreachable or (
            self.probability(setting) < UNLIKELY
        ):
            self.earlier.tried()
            return None
        return best

    def measured(self) -> dict[Setting, tuple[float, float]]:
        """Time (s) and energy (J) of an iteration at each setting that this run has measured, pooled."""
        sums: dict[Setting, np.ndarray] = {}
        for setting, iterations, time_s, energy_j, *_ in self._measured:
            own = Setting() if self.named(setting) == self.space.reference else setting
            sums[own] = sums.get(own, np.zeros(3)) + np.array([iterations, time_s, energy_j])
        return {setting: (total[1] / total[0], total[2] / total[0]) for setting, total in sums.items()}

    def named(self, setting: Setting) -> Setting:
        """Setting of the search's space that stands for this one."""
        return self.space.reference if setting == Setting() else setting

    def tell(
        self, setting: Setting, iterations: int, time_s: float, energy_j: float, uncertainty_j: float,
        sd_s: float | None,
    ) -> None:
        """Report a measurement of a setting to the search.

        Args:
            setting: That was measured.
            iterations: Whole ones.
            time_s: Of all of them.
            energy_j: Of all of them.
            uncertainty_j: 95 %, of the energy.
            sd_s: Standard deviation of their length; None where unknown.
        """
        self.search.tell(self.named(setting), iterations, time_s, energy_j, uncertainty_j, sd_s)
        self._measured.append((setting, iterations, time_s, energy_j, uncertainty_j, sd_s))
        self._frame = None
        verdicts = self.earlier.see(self.search.measured()) if self.earlier else []
        self.news = "; ".join(
            f"known from {source or 'an earlier run'}: "
            + ("as this run measures" if agreed else "this run measures otherwise: left out")
            for source, agreed in verdicts
        )
        if verdicts:
            self.search = self._search()

    def read(self, reading: Reading) -> None:
        """Report a probe to the search."""
        self.tell(
            reading.setting, reading.iterations, reading.time_s, reading.energy_j,
            reading.energy_uncertainty_j, reading.iteration_sd_s,
        )

    def cannot(self, setting: Setting, reason: str) -> None:
        """A setting that could not be set or measured."""
        self.search.cannot(self.named(setting), reason)
        self._barred.append((setting, reason))
        self._frame = None

    def too_slow(self, setting: Setting, reason: str) -> None:
        """A setting at which nothing could be seen any more; what is slower still is left out with it."""
        space, row = self.space, self.space.row(self.named(setting))
        below = (space.x <= space.x[row]) & (space.mu <= space.mu[row]) & (space.limit <= space.limit[row])
        for other in np.flatnonzero(below):
            self.cannot(space.settings[other], reason)

    def choice(self, max_slowdown: float | None) -> Choice:
        """The best setting by what is known, under this bound."""
        return self.search.choice(max_slowdown=max_slowdown)

    def about(self, setting: Setting) -> Choice:
        """What is known of a setting that somebody else has chosen."""
        time_ratio, time_sd, energy_ratio = self.ratios(setting)
        energy_sd = self._of(setting, "energy_sd")
        return Choice(
            self.named(setting), time_ratio, energy_ratio, time_sd, 0.1 if energy_sd is None else energy_sd,
            self.probability(setting), self.visited(setting),
        )

    @property
    def frame(self) -> pl.DataFrame:
        """`ClockSearch.belief()`; the same frame until more is known."""
        if self._frame is None:
            self._frame = self.search.belief()
            self._columns = self._frame.to_dict(as_series=False)
        return self._frame

    def visited(self, setting: Setting) -> bool:
        """Whether a setting was measured."""
        return any(
            measurement[0] == setting or self.named(measurement[0]) == self.named(setting)
            for measurement in self._measured
        )

    def slowest(self, setting: Setting, power_share: float) -> float:
        """Most time, relative to the reference, that a setting can need: all of it waits for what was slowed.

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
        time_ratio, time_sd, energy_ratio = (
            self._of(setting, name) for name in ("time_ratio", "time_sd", "energy_ratio")
        )
        if time_ratio is None:  # a search that believes its probes alone
            return 1.0, 0.1, 1.0
        return time_ratio, 0.05 if time_sd is None else time_sd, 1.0 if energy_ratio is None else energy_ratio

    def probability(self, setting: Setting) -> float:
        """Probability that a setting keeps the bound, 0..1."""
        if self.max_slowdown is None or self.named(setting) == self.space.reference:
            return 1.0
        known = self._of(setting, "p_allowed")
        return 0.5 if known is None else known

    def cost(self, setting: Setting) -> float:
        """Cost of an iteration relative to the reference."""
        time_ratio, _, energy_ratio = self.ratios(setting)
        time_s, energy_j = self.measured()[Setting()]
        here = float(self.objective.cost(time_s * time_ratio, energy_j * energy_ratio))
        return here / float(self.objective.cost(time_s, energy_j))

    def _of(self, setting: Setting, name: str) -> float | None:
        try:
            _ = self.frame
            value = self._columns[name][self.space.row(self.named(setting))]
        except WorkbenchError:
            return None
        return None if value is None or not math.isfinite(value) else float(value)


def expected(curve: PlacedCurve, space: SettingSpace) -> PlacedCurve:
    """A curve with what it lets one expect between its settings."""
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
    return Mixtures(*(np.array([each.mean(axis=0) for each in values])
                      for values in ([fit.log_times for fit in fits], [fit.log_energies for fit in fits])))


def _fit(curve: PlacedCurve, space: SettingSpace) -> Response:
    time_s, energy_j = np.exp(curve.logs - curve.logs.mean(axis=0)).T
    return fit(space, curve.rows, time_s, energy_j, np.full((len(curve.rows), 2), curve.sd))
