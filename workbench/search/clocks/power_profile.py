"""Just-in-time profile of power limits inside a running job (Zeus, NSDI'23, section 4.2): the next limit, and
the results.

    profile = PowerProfile(limits_w, objective)
    while isinstance(step := profile.next(), Trial):
        # set the GPUs to step.setting, let it settle, measure step.iterations whole iterations
        ...
        profile.tell(limit_w, iterations, time_s, energy_j, energy_uncertainty_j)
    step.reason                   # why it is done
    profile.optimum()

`Descent` chooses the limits, as for any running job. It starts at the highest limit, for a job that recurs. A
limit is worth measuring while it may save a share of the cost of many hours. A profile uses no device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from ...errors import MeasurementError, UsageError
from ...records import Setting
from ..earlier import EarlierCurve, best_row, first_known
from ..objective import Objective, check_iterations
from ..space import space_of
from .base import LONGEST_TRIAL_S, Done, Trial, Z, bounded
from .descent import Descent
from .effects import LIMIT, Block, Ladders

# Constants of `PowerProfile`, set manually; `benchmarks.power_profile` scores the profiles.
MOST_WINDOWS = 12  # profiling windows that are requested
WINDOW_S = 4.0  # of a window, at least, unless an iteration takes longer
ABOVE = 1.2  # times the mean power at the highest limit: lower limits slow a GPU down
FLAT = 0.25  # of the depth of a limit that counts where it does not slow a GPU down
STEEP = 0.5  # of ln(time) that a limit is thought to add at most, per unit of depth
ROUGH_SD = 0.03  # of single limits: measured epochs jump from one limit to the next
LEAST = -0.2  # of ln(time): epochs at a lower limit are sometimes faster
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
        gpus: GPUs of the job: one limit for all, energies summed. The objective must be for as many.
        same: Earlier runs of the job. The best limit of the first one that knows some is tried first.

    Attributes:
        known: Which earlier run knows some of the limits, as text; empty for none.

    Raises:
        UsageError: No limits, or invalid limits.
    """

    def __init__(
        self, limits_w: Sequence[float], objective: Objective, *, gpus: int = 1,
        same: Sequence[EarlierCurve] = ()
    ) -> None:
        ordered = sorted((float(limit_w) for limit_w in limits_w), reverse=True)
        settings = tuple(Setting(power_limit_w=limit_w) for limit_w in ordered)
        if not settings:
            raise UsageError("no power limits to profile; give those that the card supports")
        self.objective = objective
        self._space = space_of(settings)
        self._gpus = gpus
        self._method = self._descent(ordered[0])
        self._earlier, self.known = first_known(same, self._space)

    def _descent(self, draw_w: float) -> Descent:
        """The method over limits, of which those below `draw_w` slow a GPU down."""
        settings, here = self._space.settings, self._space.reference_row
        limits_w = np.array([each.power_limit_w for each in settings])
        depths = np.log(np.maximum(draw_w / limits_w, 1.0)) + FLAT * np.log(limits_w[here] / limits_w)
        rungs = Ladders(settings, np.full(len(depths), LIMIT), depths, here)
        found = Descent(rungs, np.exp(STEEP * depths), *bounded(self.objective, None), total_s=HORIZON_S,
                        rough_sd=ROUGH_SD)
        found.count(True)
        found.least = LEAST
        return found

    @property
    def measured(self) -> bool:
        """Whether a limit was measured."""
        return bool(self._method.blocks)

    def iteration_s(self, limit_w: float) -> float:
        """Expected time of an iteration at a limit; NaN before the highest one was measured."""
        if not self._method.measured:
            return math.nan
        row = self._space.row(Setting(power_limit_w=limit_w))
        return self._method.default[0] * self._method.about(row).time_ratio

    def next(self) -> Trial | Done:
        """The next profiling window, or why there is none."""
        method = self._method
        if method.measured:
            time_s, energy_j = method.default
            if method.objective.cost(time_s, 0.0) >= method.objective.cost(time_s, energy_j):
                return Done("only time counts, and no lower limit is faster")
        elif reason := method.barred.get(method.rungs.reference):
            return Done(f"the highest limit cannot be set: {reason}")
        if len(method.blocks) >= MOST_WINDOWS:
            return Done(f"{MOST_WINDOWS} windows are enough")
        plan = method.next(method.now_s)
        if plan.kind == "held" and any(each.row == plan.row for each in method.blocks):
            return Done("no other limit is expected to save more than its measurement costs")
        most = math.ceil(LONGEST_TRIAL_S / method.unit_s)
        return Trial(
            self._space.settings[plan.row], max(1, min(plan.count, most)),
            min(plan.seconds, WINDOW_S), plan.why or "it is expected to cost least",
        )

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
        check_iterations("probe", iterations, time_s, energy_j, energy_uncertainty_j)
        row, method = self._space.row(Setting(power_limit_w=limit_w)), self._method
        scatter = (iteration_sd_s or 0.0) * iterations / time_s
        at_s = method.now_s + 0.5 * time_s
        # Not `Descent.tell`: what a profile measures is one work, and an odd window is an odd card.
        method.blocks.append(
            Block(row, iterations, time_s, energy_j, energy_uncertainty_j / Z, scatter, 0.0, at_s)
        )
        method.now_s += time_s
        if row == method.rungs.reference and len(method.blocks) == 1:
            self._method = self._descent(min(ABOVE * energy_j / time_s / self._gpus, limit_w))
            self._method.blocks, self._method.barred = method.blocks, method.barred
            self._method.now_s, method = method.now_s, self._method
        if self._earlier and method.measured:
            here, goal = method.rungs.reference, (method.objective, method.max_slowdown)
            best = best_row(self._earlier, here, method.default, *goal)
            method.first = -1 if best == here else best
            self._earlier = {}

    def cannot(self, limit_w: float, reason: str) -> None:
        """Report a limit that could not be set; it is excluded from now on."""
        self._method.bar(self._space.row(Setting(power_limit_w=limit_w)), reason)

    def frame(self) -> pl.DataFrame:
        """The curve as a frame: limit_w, iteration_s, power_w of all GPUs, and whether it was measured.

        Raises:
            MeasurementError: No profiling window has been reported yet.
        """
        if not self.measured:
            raise MeasurementError("no limit has been measured yet; run a profiling window first")
        time, power = self._method.effects()
        mean, _ = self._method.bounded(time)
        visited = {each.row for each in self._method.blocks}
        return pl.DataFrame({
            "limit_w": [each.power_limit_w for each in self._space.settings],
            "iteration_s": np.exp(time.level + mean),
            "power_w": np.exp(power.level + power.mean),
            "measured": [row in visited for row in range(len(mean))],
        })

    def optimum(self) -> Optimum:
        """The measured limit that costs least, of equals the higher one.

        Raises:
            MeasurementError: No profiling window has been reported yet.
        """
        row = self.frame().row(self._method.best_measured(), named=True)
        return Optimum(row["limit_w"], row["iteration_s"], row["iteration_s"] * row["power_w"])
