"""What is believed of the settings of a running job: a search, its space, and questions to both."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from ..errors import WorkbenchError
from ..records import Setting
from ..search.clocks.base import Choice
from ..search.objective import Objective, ZeusCost
from ..search.space import SettingSpace
from .evidence import EarlierSetting
from .probe import Reading

if TYPE_CHECKING:
    from ..search.clocks.make import ClockSearch


EVIDENCE_SD = 0.01  # relative, by which the same setting differs from run to run
CONTRADICTED = 3.0  # standard deviations
Z = 1.96


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
    """

    def __init__(
        self, name: str, space: SettingSpace, objective: Objective, max_slowdown: float | None, *,
        prior: Any = None, gpus: int = 1, update_s: float = 0.1, wait_share: float | None = None,
        seed: int = 0,
    ) -> None:
        from ..search.clocks.make import make_search

        if isinstance(objective, ZeusCost):
            objective = replace(
                objective, gpus=gpus, max_power_w=space.max_power_limit_w or objective.max_power_w
            )
        self.space, self.objective, self.max_slowdown = space, objective, max_slowdown
        self._options: dict[str, Any] = {
            "prior": prior, "gpus": gpus, "update_s": update_s, "wait_share": wait_share, "seed": seed,
        }
        self.search: ClockSearch = make_search(
            name, space, objective, max_slowdown, prior=prior, counter_update_s=update_s, gpus=gpus,
            wait_share=wait_share, learns_later=True, rng=np.random.default_rng(seed),
        )
        self.name = name
        self._told: list[tuple[Any, ...]] = []
        self.evidence: tuple[EarlierSetting, ...] = ()
        self._barred: list[tuple[Setting, str]] = []
        self._rows = set(space.settings)
        self._baseline = (1.0, 1.0)
        self._frame: pl.DataFrame | None = None
        self._columns: dict[str, list[Any]] = {}

    def again(self, objective: Objective, max_slowdown: float | None) -> SettingPosterior:
        """The same job under another objective or bound, with everything that was measured."""
        other = self._bare(objective, max_slowdown)
        other.assume(self.evidence, self._baseline)
        for told in self._told:
            other.tell(*told)
        for setting, reason in self._barred:
            other.cannot(setting, reason)
        return other

    def _bare(self, objective: Objective, max_slowdown: float | None) -> SettingPosterior:
        return SettingPosterior(self.name, self.space, objective, max_slowdown, **self._options)

    def assume(self, evidence: Sequence[EarlierSetting], baseline: tuple[float, float]) -> None:
        """Take what an earlier run measured for one iteration each; `baseline` is (s, J) of one here."""
        rows = {setting: each for each in evidence if (setting := self.named(each.setting)) in self._rows}
        self.evidence, self._baseline = tuple(rows.values()), baseline
        for setting, each in rows.items():
            time_s, energy_j = each.time_ratio * baseline[0], each.energy_ratio * baseline[1]
            self.search.tell(setting, 1, time_s, energy_j, EVIDENCE_SD * Z * energy_j, None)
        self._frame = None

    def contradicts(self, reading: Reading) -> bool:
        """Whether a probe is not what the evidence of an earlier run lets one expect of its setting."""
        if not self.evidence or self.named(reading.setting) == self.space.reference:
            return False
        time_ratio, time_sd, energy_ratio = self.ratios(reading.setting)
        time_s, energy_j = self._baseline
        off = abs(math.log(reading.iteration_s / time_s / time_ratio))
        off_j = abs(math.log(reading.iteration_j / energy_j / energy_ratio))
        sd = math.hypot(time_sd, EVIDENCE_SD, reading.sd_s / reading.iteration_s)
        return off > CONTRADICTED * sd or off_j > CONTRADICTED * math.hypot(sd, reading.energy_sd)

    def without_evidence(self) -> SettingPosterior:
        """The same with nothing but what this run has measured."""
        other = self._bare(self.objective, self.max_slowdown)
        for told in self._told:
            other.tell(*told)
        for setting, reason in self._barred:
            other.cannot(setting, reason)
        return other

    def measured(self) -> dict[Setting, tuple[float, float]]:
        """Time (s) and energy (J) of an iteration at each setting that this run has measured, pooled."""
        sums: dict[Setting, np.ndarray] = {}
        for setting, iterations, time_s, energy_j, *_ in self._told:
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
        """Report a measurement of a setting to the search."""
        self.search.tell(self.named(setting), iterations, time_s, energy_j, uncertainty_j, sd_s)
        self._told.append((setting, iterations, time_s, energy_j, uncertainty_j, sd_s))
        self._frame = None

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
        return any(told[0] == setting or self.named(told[0]) == self.named(setting) for told in self._told)

    def near(self, setting: Setting, step: float) -> bool:
        """Whether something was measured within this share of its clocks and its limit."""
        space, row = self.space, self.space.row(self.named(setting))
        rows = [space.row(self.named(told[0])) for told in self._told]
        return any(
            max(abs(each[row] / each[other] - 1.0) for each in (space.x, space.mu, space.limit)) <= step
            for other in rows
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

    def cost(self, setting: Setting, baseline: Sequence[float]) -> float:
        """Cost relative to the reference, where an iteration takes `baseline` (s, J)."""
        time_ratio, _, energy_ratio = self.ratios(setting)
        time_s, energy_j = baseline
        there = float(self.objective.cost(time_s, energy_j))
        return float(self.objective.cost(time_s * time_ratio, energy_j * energy_ratio)) / there

    def _of(self, setting: Setting, name: str) -> float | None:
        try:
            _ = self.frame
            value = self._columns[name][self.space.row(self.named(setting))]
        except WorkbenchError:
            return None
        return None if value is None or not math.isfinite(value) else float(value)
