"""Just-in-time profile of power limits inside a running job (Zeus, NSDI'23, section 4.2): the next limit, and
the results.

    profile = PowerProfile(limits_w, objective)
    while isinstance(plan := profile.next(), Plan):
        # set the GPUs to profile.limits_w[plan.row], let it settle, measure plan.count whole iterations
        ...
        profile.tell(plan.row, iterations, time_s, energy_j, energy_uncertainty_j)
    plan                          # why it is done
    profile.best_w

`Descent` chooses the limits, as for any running job. It starts at the highest limit, for a job that recurs. A
limit is worth measuring while it may save a share of the cost of many hours. A profile uses no device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import polars as pl

from ...errors import MeasurementError
from ...records import Configuration, Observation, Setting
from ..earlier import EarlierCurve, best_row, first_known
from ..objective import Energy, EnergyWithin, Objective
from ..space import space_of
from .descent import Descent, Plan
from .effects import LIMIT, Ladders

# Constants of `PowerProfile`, set manually; `benchmarks.power_profile` scores the profiles.
MOST_WINDOWS = 12  # profiling windows that are requested
WINDOW_S, LONGEST_S = 4.0, 15.0  # of a window: at least, and at most unless an iteration takes longer
ABOVE = 1.2  # times the mean power at the highest limit: lower limits slow a GPU down
FLAT = 0.25  # of the depth of a limit that counts where it does not slow a GPU down
STEEP = 0.5  # of ln(time) that a limit is thought to add at most, per unit of depth
ROUGH_SD = 0.03  # of single limits: measured epochs jump from one limit to the next
LEAST = -0.2  # of ln(time): epochs at a lower limit are sometimes faster
HORIZON_S = 20_000.0  # of the recurrences that a profile serves


class PowerProfile:
    """A profile of power limits at one batch size, active or complete.

    Args:
        limits_w: Limits of one GPU that may be set.
        objective: The cost to minimise; `EnergyWithin` is taken relative to the highest limit.
        gpus: GPUs of the job: one limit for all, energies summed. The objective must be for as many.
        same: Earlier runs of the job. The best limit of the first one that knows some is tried first.

    Attributes:
        limits_w: The limits (W), highest first; a row is a place in them.
        known: Which earlier run knows some of the limits, as text; empty for none.

    Raises:
        UsageError: No limits.
    """

    def __init__(
        self, limits_w: Sequence[float], objective: Objective, *, gpus: int = 1,
        same: Sequence[EarlierCurve] = ()
    ) -> None:
        self.limits_w = sorted({float(limit_w) for limit_w in limits_w}, reverse=True)
        self._space = space_of([Setting(power_limit_w=limit_w) for limit_w in self.limits_w])
        self._goal: tuple[Objective, float | None] = objective, None
        if isinstance(objective, EnergyWithin):
            self._goal = Energy(), objective.slowdown - 1
        self._gpus = gpus
        self._earlier, self.known = first_known(same, self._space)
        self._method = self._descent(self.limits_w[0])

    def _descent(self, draw_w: float) -> Descent:
        """The method over limits, of which those below `draw_w` slow a GPU down."""
        limits_w = np.array(self.limits_w)
        depths = np.log(np.maximum(draw_w / limits_w, 1.0)) + FLAT * np.log(limits_w[0] / limits_w)
        rungs = Ladders(self._space.settings, np.full(len(depths), LIMIT), depths, 0)
        method = Descent(rungs, np.exp(STEEP * depths), *self._goal, total_s=HORIZON_S, rough_sd=ROUGH_SD)
        method.count(True)
        method.least = LEAST
        return method

    @property
    def measured(self) -> bool:
        """Whether a limit was measured."""
        return self._method.measured

    def iteration_s(self, row: int) -> float:
        """Expected time of an iteration at a limit; NaN before the highest one was measured."""
        return self._method.default[0] * self._method.about(row).time_ratio if self.measured else math.nan

    def next(self) -> Plan | str:
        """The next profiling window, or why there is none."""
        method = self._method
        if 0 in method.barred:
            return f"the highest limit cannot be set: {method.barred[0]}"
        if self.measured and method.objective.cost(1.0, 0.0) == method.objective.cost(1.0, 1.0):
            return "only time counts, and no lower limit is faster"
        if len(method.blocks) >= MOST_WINDOWS:
            return f"{MOST_WINDOWS} windows are enough"
        plan = method.next(method.now_s)
        if plan.kind == "held" and any(row == plan.row for row in method.visited()):
            return "no other limit is expected to save more than its measurement costs"
        count = min(plan.count, math.ceil(LONGEST_S / method.unit_s))
        return replace(plan, count=count, seconds=min(plan.seconds, WINDOW_S))

    def tell(
        self, row: int, iterations: int, time_s: float, energy_j: float, energy_uncertainty_j: float = 0.0,
        iteration_sd_s: float = 0.0,
    ) -> None:
        """Report the time (s) and energy (J, all GPUs together) of a profiling window; windows at one limit
        pool. The first window is at the highest limit.

        Args:
            row: Of the limit.
            iterations: Whole iterations of the window.
            time_s: Their total time.
            energy_j: Their total energy, above 0.
            energy_uncertainty_j: Half width of the 95 % interval of `energy_j`.
            iteration_sd_s: Scatter of single iterations; 0 if they were not timed.
        """
        if not self.measured:  # now the draw is known
            self._method = self._descent(min(ABOVE * energy_j / time_s / self._gpus, self.limits_w[0]))
            if self._earlier:
                unit = time_s / iterations, energy_j / iterations
                self._method.first = best_row(self._earlier, 0, unit, *self._goal) or -1
        method = self._method
        scatter, at_s = iteration_sd_s * iterations / time_s, method.now_s + 0.5 * time_s
        # Not `Descent.tell`: what a profile measures is one work, and an odd window is an odd card.
        method.blocks.append(Observation(
            Configuration(self._space.settings[row]), iterations, time_s, energy_j,
            energy_uncertainty_j / 1.96, scatter, at_s=at_s,
        ))
        method.now_s += time_s

    def cannot(self, row: int, reason: str) -> None:
        """Report a limit that could not be set; it is excluded from now on."""
        self._method.bar(row, reason)

    def frame(self) -> pl.DataFrame:
        """The curve as a frame: limit_w, iteration_s, power_w of all GPUs, and whether it was measured.

        Raises:
            MeasurementError: No profiling window has been reported yet.
        """
        if not self.measured:
            raise MeasurementError("no limit has been measured yet; run a profiling window first")
        unit_s, unit_j = self._method.default
        time, energy = pl.col("time_ratio"), pl.col("energy_ratio")
        return self._method.frame().select(
            limit_w="power_limit_w", iteration_s=unit_s * time, power_w=unit_j / unit_s * energy / time,
            measured=pl.col("probes") > 0,
        )

    @property
    def best_w(self) -> float:
        """The measured limit (W) that costs least, of equals the higher one. The highest limit, if none was
        measured.
        """
        return self.limits_w[self._method.best_measured()]
