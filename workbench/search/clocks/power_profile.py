"""Just-in-time profile of power limits inside a running job (Zeus, NSDI'23, section 4.2): the next limit, and
the results.

    profile = PowerProfile(limits_w, objective)
    while isinstance(step := profile.next(), Trial):
        # set the GPUs to step.setting, let it settle, measure step.iterations whole iterations
        ...
        profile.tell(limit_w, iterations, time_s, energy_j, energy_uncertainty_j)
    step.reason                   # why it is done
    profile.optimum()

`SettingPosterior` chooses the limits, as for any running job. It starts at the highest limit, for a job that
recurs. A limit is worth measuring while it may save a share of the cost of many hours. A profile uses no
device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from ...errors import MeasurementError, UsageError
from ...records import Setting
from ..earlier import EarlierCurve
from ..objective import Objective
from ..space import space_of
from .base import Done, Trial
from .model_guided import ModelGuided
from .posterior import SettingPosterior

# Constants of `PowerProfile`, set manually; `benchmarks.power_profile` scores the profiles.
MOST_WINDOWS = 12  # profiling windows that the search requests
WORTH = 0.0005  # share of the cost that a further limit must be expected to save
HORIZON_S = 20_000.0  # of the recurrences that a profile serves


@dataclass(frozen=True)
class Optimum:
    """The measured limit that costs least, with time and energy of an iteration on all GPUs together."""

    limit_w: float
    iteration_s: float
    iteration_j: float


class PowerProfile:
    """A profile of power limits at one batch size, active or complete.

    Args:
        limits_w: Limits of one GPU that may be set.
        objective: The cost to minimise; `EnergyWithin` is taken relative to the highest limit.
        counter_update_s: Update interval of the energy counter.
        gpus: GPUs of the job: one limit for all, energies summed. The objective must be for as many.
        same: Earlier runs of the job. The best limit of the first one that knows some is tried first.

    Raises:
        UsageError: No limits, or invalid limits.
    """

    def __init__(
        self, limits_w: Sequence[float], objective: Objective, *, counter_update_s: float = 0.1,
        gpus: int = 1, same: Sequence[EarlierCurve] = (),
    ) -> None:
        ordered = sorted((float(limit_w) for limit_w in limits_w), reverse=True)
        settings = [Setting(power_limit_w=limit_w) for limit_w in ordered]
        if not settings:
            raise UsageError("no power limits to profile; give those that the card supports")
        self.objective = objective
        self.belief = SettingPosterior(
            ModelGuided.name, space_of(settings), objective, None,
            same=same, counter_update_s=counter_update_s, gpus=gpus,
            learns_later=False, horizon_s=HORIZON_S, most=MOST_WINDOWS, worth=WORTH,
        )
        self._slices = 0

    @property
    def measured(self) -> bool:
        """Whether a limit was measured."""
        return self._slices > 0

    def next(self) -> Trial | Done:
        """The next profiling window, or why there is none."""
        if self._slices:
            cost = self.belief.search.objective.cost
            time_s, energy_j = self.belief.measured()[Setting()]
            if cost(time_s, 0.0) >= cost(time_s, energy_j):
                return Done("only time counts, and no lower limit is faster")
        return self.belief.next()

    def tell(
        self, limit_w: float, iterations: int, time_s: float, energy_j: float,
        energy_uncertainty_j: float = 0.0, iteration_sd_s: float | None = None,
    ) -> None:
        """Report the time (s) and energy (J, all GPUs together) of a profiling window; windows at one limit
        pool.

        Args:
            limit_w: Limit of each GPU.
            iterations: Whole iterations of the window.
            time_s: Their total time.
            energy_j: Their total energy.
            energy_uncertainty_j: Half width of the 95 % interval of `energy_j`.
            iteration_sd_s: Scatter of single iterations; None if they were not timed.

        Raises:
            MeasurementError: Impossible values; nothing is changed.
            UsageError: A limit that is not one of this profile's.
        """
        setting = Setting(power_limit_w=limit_w)
        self.belief.tell(setting, iterations, time_s, energy_j, energy_uncertainty_j, iteration_sd_s)
        self._slices += 1

    def cannot(self, limit_w: float, reason: str) -> None:
        """Report a limit that could not be set; it is excluded from now on."""
        self.belief.cannot(Setting(power_limit_w=limit_w), reason)

    def frame(self) -> pl.DataFrame:
        """The curve as a frame: limit_w, iteration_s, power_w of all GPUs, and whether it was measured.

        Raises:
            MeasurementError: No profiling window has been reported yet.
        """
        search = self.belief.search
        if not self.measured or not isinstance(search, ModelGuided):
            raise MeasurementError("no limit has been measured yet; run a profiling window first")
        found = search.response
        time_s = np.exp((found.log_times + found.log_time_s[:, None]).mean(axis=0))
        energy_j = np.exp((found.log_energies + found.log_energy_j[:, None]).mean(axis=0))
        settings = self.belief.space.settings
        return pl.DataFrame({
            "limit_w": [each.power_limit_w for each in settings],
            "iteration_s": time_s,
            "power_w": energy_j / time_s,
            "measured": [self.belief.visited(each) for each in settings],
        })

    def optimum(self) -> Optimum:
        """The measured limit that costs least, of equals the higher one.

        Raises:
            MeasurementError: No profiling window has been reported yet.
        """
        limit_w = self.belief.choice(None).setting.power_limit_w
        row = self.frame().row(by_predicate=pl.col("limit_w") == limit_w, named=True)
        return Optimum(row["limit_w"], row["iteration_s"], row["iteration_s"] * row["power_w"])
