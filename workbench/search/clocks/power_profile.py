"""Which power limit next, and what was learned: just-in-time profiling inside a running job (Zeus, NSDI'23,
section 4.2).

    profile = PowerProfile(limits_w, objective)
    while isinstance(step := profile.next_slice(), Slice):
        # put the GPUs to step.limit_w, let it settle, measure step.iterations whole iterations
        ...
        profile.tell(step.limit_w, iterations, time_s, energy_j, energy_uncertainty_j)
    step.reason                   # why it is done
    profile.optimum()             # of this objective, or of any other

The limits are chosen by the search that chooses settings for any running job (`ModelGuided`), from the
highest limit on, for a job that recurs: a limit is worth measuring while it may save a share of the cost of
many hours. Beside that a slice that came out too uncertain is made again, and a profile ends when its time is
spent.

A profile knows no device. It is a frame (`slices`) and can be made from one, so an interruption loses the
running slice only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import polars as pl

from ...errors import MeasurementError, UsageError
from ...records import Setting
from ..earlier import EarlierCurve, EarlierRuns, best_row, place_in
from ..objective import Objective
from ..space import space_of
from ..surrogates.library import Library
from .base import PARAMS as PROBING
from .base import Done as Done
from .base import Trial, Z
from .model_guided import PARAMS as GUIDED
from .model_guided import ModelGuided

SLICES = pl.Schema({
    "limit_w": pl.Float64,
    "iterations": pl.Int64,
    "time_s": pl.Float64,
    "energy_j": pl.Float64,  # of all GPUs together
    "energy_uncertainty_j": pl.Float64,  # 95 % half width
    "iteration_sd_s": pl.Float64,  # scatter of single iterations; null where they were not timed
})


@dataclass(frozen=True, slots=True)
class PowerProfileParams:
    """Tuned constants of `PowerProfile`.

    Set by hand; `benchmarks.power_profile` scores the profiles that are made with them.
    """

    settle_s: float = 0.5  # a new limit is in force after some 0.1 s, and the clock then settles
    warm_up_iterations: int = 5  # before the first slice: caches, autotuning, allocators
    scatter: float = 0.01  # relative, of the length of iterations, until it is known
    least_limits: int = 3  # that a curve is believed from
    most: int = 12  # slices that the search asks for
    again: int = 3  # slices at one limit that a stated error may take
    least_power: float = 0.05  # of the highest limit: no busy card draws less
    error: float = 0.01  # wanted relative 95 % error of a slice's time and energy
    error_slack: float = 1.25  # times that, from which on a slice is measured again
    worth: float = 0.0005  # share of the cost that a further limit must be expected to save
    horizon_s: float = 20_000.0  # of the recurrences that a profile serves
    budget_s: float = 120.0  # of slices, beyond which only what `least_limits` need is measured


PARAMS = PowerProfileParams()


@dataclass(frozen=True, slots=True)
class Slice:
    """The next slice: a power limit, and the whole iterations and seconds that it takes at least.

    Attributes:
        settle_s: To wait after the limit was set, before the slice begins.
        warm_up: Iterations to let pass before the slice begins.
    """

    limit_w: float
    iterations: int
    seconds: float
    settle_s: float = PARAMS.settle_s
    warm_up: int = 1
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Optimum:
    """The measured limit that costs least, and what an iteration takes there, on all GPUs together."""

    limit_w: float
    iteration_s: float
    iteration_j: float
    cost: float


class PowerProfile:
    """A profile of power limits at one batch size, in the making or done.

    Args:
        limits_w: Limits of one GPU that may be set.
        objective: What is to be small; `EnergyWithin` is taken relative to the highest limit.
        error: Wanted relative error of a slice's time and energy, 95 %.
        counter_update_s: How often the energy counter refreshes.
        gpus: GPUs of the job: one limit for all, energies summed. The objective must be one for as many.
        worth: A further limit is measured while that is expected to save such a share of the cost.
        budget_s: Beyond so many seconds of slices only what three limits need is measured.
        scatter: Of the length of iterations, relative, until it is known.
        slices: Frame of an earlier profile to go on with.
        known: Limits (W), and time and energy at each of them over those at the highest limit, as an earlier
            run of the job has measured them. The best of them is tried first; they count once slices agree.
        params: The constants that have no argument of their own.

    Raises:
        UsageError: no limits, limits or an error that are none, or a slice that is none of these limits.
    """

    def __init__(
        self, limits_w: Sequence[float], objective: Objective, *, error: float = PARAMS.error,
        counter_update_s: float = 0.1, gpus: int = 1, worth: float = PARAMS.worth,
        budget_s: float = PARAMS.budget_s, scatter: float = PARAMS.scatter,
        slices: pl.DataFrame | None = None, known: Sequence[tuple[float, float, float]] = (),
        params: PowerProfileParams = PARAMS,
    ) -> None:
        self.params = params
        limits = sorted({float(limit) for limit in limits_w}, reverse=True)
        if not limits:
            raise UsageError(
                "no power limits to profile; give those that the card takes, for example range(100, 251, 25)"
            )
        if not all(limit > 0 and math.isfinite(limit) for limit in limits):
            raise UsageError(
                f"power limits are watts above 0, not {', '.join(f'{limit:g}' for limit in limits)}"
            )
        if not 0 < error < 1:
            raise UsageError(
                f"an error of {error:g} cannot be reached; it is a share between 0 and 1, for example 0.01 "
                "for 1 %"
            )
        if gpus < 1:
            raise UsageError(f"a job has {gpus} GPUs; give 1 or more")
        self.limits_w = np.array(limits)
        self.objective, self.error, self.gpus, self.budget_s = objective, error, gpus, budget_s
        self._make = partial(
            ModelGuided, objective=objective, max_slowdown=None, horizon_s=params.horizon_s, worth=worth,
            gpus=gpus, counter_update_s=counter_update_s,
            probing=replace(PROBING, scatter=scatter, error=error),
            params=replace(GUIDED, most=params.most),
        )
        self.unreachable: dict[float, str] = {}
        self._rows: list[tuple[float, int, float, float, float, float | None]] = []
        self._earlier = EarlierRuns()
        self._search = self._begin()
        costs = {Setting(power_limit_w=limit_w): (time, energy) for limit_w, time, energy in known}
        self._earlier = EarlierRuns(place_in([EarlierCurve(costs)] if costs else [], self._search.space))
        for row in slices.select(list(SLICES)).iter_rows() if slices is not None else ():
            self.tell(*row)

    def _begin(self) -> ModelGuided:
        """The search over the limits that can be set, told all that was measured at them."""
        able = [float(limit) for limit in self.limits_w if float(limit) not in self.unreachable]
        settings = [Setting(power_limit_w=limit) for limit in able or self.limits_w]
        known = Library(same=tuple(self._earlier.agreed)) if self._earlier.agreed else None
        space = replace(space_of(settings), known=known)
        search = self._make(space)
        for row in self._rows:
            if row[0] in able:
                search.tell(Setting(power_limit_w=row[0]), *row[1:])
        return search

    # what is known

    @property
    def slices(self) -> pl.DataFrame:
        """Every reported slice, as a frame (`SLICES`); a profile made from it goes on where this one is."""
        return pl.DataFrame(self._rows, schema=SLICES, orient="row")

    @property
    def measured(self) -> bool:
        """Whether there is a limit that can be set and was measured."""
        return bool(self._search.measured_rows)

    @property
    def time_s(self) -> float:
        """Time of all slices, in seconds."""
        return sum(row[2] for row in self._rows)

    @property
    def energy_j(self) -> float:
        """Energy of all slices, in joules."""
        return sum(row[3] for row in self._rows)

    def tell(
        self, limit_w: float, iterations: int, time_s: float, energy_j: float,
        energy_uncertainty_j: float = 0.0, iteration_sd_s: float | None = None,
    ) -> None:
        """Report the time (s) and energy (J, all GPUs together) of a slice; slices at one limit pool.

        Args:
            limit_w: Limit of each GPU.
            iterations: Whole iterations of the slice.
            time_s: What they took together.
            energy_j: What they drew together.
            energy_uncertainty_j: Half width of the 95 % interval of `energy_j`.
            iteration_sd_s: Scatter of single iterations; None where they were not timed.

        Raises:
            MeasurementError: numbers that cannot have been measured; nothing is changed.
            UsageError: a limit that is not one of this profile's.
        """
        known_w = float(self.limits_w[self._column(limit_w)])
        numbers = int(iterations), float(time_s), float(energy_j), float(energy_uncertainty_j), iteration_sd_s
        self._search.tell(Setting(power_limit_w=known_w), *numbers)
        self._rows.append((known_w, *numbers))
        if self._earlier and self._earlier.see(self._search.measured()):
            self._search = self._begin()

    def cannot(self, limit_w: float, reason: str) -> None:
        """A limit that could not be set; it is left out from now on."""
        self.unreachable.setdefault(float(self.limits_w[self._column(limit_w)]), reason)
        self._earlier = EarlierRuns()  # which knows the limits by their places
        self._search = self._begin()

    def frame(self) -> pl.DataFrame:
        """The curve as a frame: limit_w, iteration_s, power_w of all GPUs, relative standard deviations.

        Raises:
            MeasurementError: no slice has been told yet.
        """
        log_times, log_energies = self._drawn()
        time_s, energy_j = np.exp(log_times.mean(axis=0)), np.exp(log_energies.mean(axis=0))
        limits_w = [each.power_limit_w for each in self._search.space.settings]
        return pl.DataFrame({
            "limit_w": limits_w,
            "iteration_s": time_s,
            "power_w": energy_j / time_s,
            "iteration_j": energy_j,
            "time_sd": log_times.std(axis=0),
            "power_sd": (log_energies - log_times).std(axis=0),
            "measured": np.isin(np.arange(len(limits_w)), self._search.measured_rows),
        })

    def optimum(self, objective: Objective | None = None) -> Optimum:
        """The measured limit that costs least by any objective, of equals the higher one.

        Raises:
            MeasurementError: no slice has been told yet.
        """
        log_times, log_energies = self._drawn()
        setting = self._search.choice(objective).setting
        row = self._search.space.row(setting)
        time_s, energy_j = math.exp(log_times[:, row].mean()), math.exp(log_energies[:, row].mean())
        cost = (objective or self._search.objective).cost(time_s, energy_j)
        assert setting.power_limit_w is not None
        return Optimum(setting.power_limit_w, time_s, energy_j, float(cost))

    # what to do next

    def next_slice(self) -> Slice | Done:
        """The next slice, or why there is none."""
        params, search = self.params, self._search
        able = len(self.limits_w) - len(self.unreachable)
        if not able:
            return Done(f"no limit can be set: {next(iter(self.unreachable.values()))}")
        rows_measured = search.measured_rows
        if not rows_measured:
            return self._slice(search.trial(search.space.reference_row, "the highest limit"))
        last, spent = rows_measured[-1], self.time_s > self.budget_s
        mine = [row for row in self._rows if row[0] == search.space.settings[last].power_limit_w]
        error = self._error_of(mine)
        short = mine[-1][2] < search.probing.longest_s and not spent  # a longer one would be surer
        if short and error > params.error_slack * self.error and rows_measured.count(last) < params.again:
            why = f"its error is {error:.1%}, and {self.error:.1%} is wanted"
            return self._slice(search.trial(last, why))
        if spent and len(set(rows_measured)) >= min(params.least_limits, able):
            return Done(
                f"the slices have taken {self.time_s:.0f} s, and {self.budget_s:g} s are what a profile may "
                "take"
            )
        if len(set(rows_measured)) == 1 and self._cannot_win():
            return Done("a lower limit cannot win: what counts is time, and no lower limit is faster")
        if (best := self._first_row()) is not None:
            return self._slice(search.trial(best, "the best limit of an earlier run"))
        step = search.next()
        if isinstance(step, Done):
            return step
        if rows_measured.count(search.space.row(step.setting)) >= params.again:
            alike = f"{step.setting} costs too nearly the same as another limit to tell"
            return Done(f"{alike}; {search.summary}")
        return self._slice(step)

    # arithmetic

    def _slice(self, trial: Trial) -> Slice:
        assert trial.setting.power_limit_w is not None
        warm_up = 1 if self._rows else self.params.warm_up_iterations
        return Slice(
            trial.setting.power_limit_w, trial.iterations, trial.seconds, self.params.settle_s, warm_up,
            trial.reason,
        )

    def _drawn(self) -> tuple[np.ndarray, np.ndarray]:
        """ln of an iteration's seconds and joules of all GPUs, (draws, limits that can be set)."""
        if not self._search.measured_rows:
            raise MeasurementError("no limit has been measured yet; run a slice first")
        found = self._search.response
        return found.log_times + found.log_time_s[:, None], found.log_energies + found.log_energy_j[:, None]

    def _column(self, limit_w: float) -> int:
        column = int(np.argmin(np.abs(self.limits_w - limit_w)))
        if abs(self.limits_w[column] - limit_w) > 1.0:  # the driver rounds limits
            raise UsageError(
                f"{limit_w:g} W is not one of the limits of this profile: "
                f"{', '.join(f'{w:g}' for w in self.limits_w)}"
            )
        return column

    def _first_row(self) -> int | None:
        """The limit that was best in an earlier run, where it was not measured yet; once."""
        search, curve = self._search, self._earlier.first()
        reference = search.pooled(search.space.reference_row)
        if curve is None or reference is None:
            return None
        self._earlier.tried()
        measured = reference.time_s, reference.energy_j
        best = best_row(
            curve, search.space.reference_row, measured, search.objective, search.max_slowdown
        )
        return None if best in search.measured_rows else best

    def _error_of(self, mine: Sequence[tuple[float, int, float, float, float, float | None]]) -> float:
        """Relative 95 % error of slices at one limit, the larger of time's and energy's."""
        iterations, energy_j = sum(row[1] for row in mine), sum(row[3] for row in mine)
        uncertainty_j = math.sqrt(sum(row[4] ** 2 for row in mine))
        return max(Z * self._search.scatter / math.sqrt(iterations), uncertainty_j / energy_j)

    def _cannot_win(self) -> bool:
        """Whether lower limits lose even if they were as fast and drew next to nothing."""
        _, iterations, time_s, energy_j, *_ = self._rows[-1]
        cost = self._search.objective.cost
        least_w = self.params.least_power * float(self.limits_w.max()) * self.gpus
        now = float(cost(time_s / iterations, energy_j / iterations))
        least = float(cost(time_s / iterations, min(least_w * time_s, energy_j) / iterations))
        return least >= now * (1 - self._search.worth)
