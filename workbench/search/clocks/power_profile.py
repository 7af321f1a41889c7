"""Which power limit next, and what was learned: just-in-time profiling inside a running job (Zeus, NSDI'23,
section 4.2).

    profile = PowerProfile(limits_w, objective)
    while isinstance(step := profile.next_slice(), Slice):
        # put the GPUs to step.limit_w, let it settle, measure step.iterations whole iterations
        ...
        profile.tell(step.limit_w, iterations, time_s, energy_j, energy_uncertainty_j)
    step.reason                   # why it is done
    profile.optimum()             # of this objective, or of any other

The first slice is at the highest limit, the next ones where physics and the slices (`response_surface`) say
that something is to be won: downwards in general, and up again where the optimum lies between two. It ends
when no limit is worth a slice more, not when all were tried. Three limits at least are measured, unless there
are fewer or a lower one cannot win whatever it draws: a curve fits any two points. Where limits follow no
smooth curve more of them are measured, and where two that are cost nearly the same they are measured again.

A profile knows no device. It is a frame (`slices`) and can be made from one, so an interruption loses the
running slice only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from ...errors import MeasurementError, UsageError
from ...records import Setting
from ..objective import EnergyWithin, Objective, check_iterations
from ..space import space_of
from ..surrogates.response_surface import fit

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
    # of power, that an edge of a window leaves uncertain, where the counter refreshes every 0.1 s
    edge_s: float = 0.025
    stride: float = 0.65  # of the lowest limit that was measured: no slice far below it
    least_limits: int = 3  # that a curve is believed from
    again: int = 3  # slices at one limit that a stated error may take
    longest_s: float = 15.0  # of a slice, but for one iteration that takes longer
    least_power: float = 0.05  # of the highest limit: no busy card draws less
    error: float = 0.01  # wanted relative 95 % error of a slice's time and energy
    error_slack: float = 1.25  # times that, from which on a slice is measured again
    worth: float = 0.0005  # share of the cost that a further limit must be expected to save
    budget_s: float = 120.0  # of slices, beyond which only what `least_limits` need is measured
    scatter_iterations: float = 8.0  # that the first guess of the scatter counts for
    keeps: float = 0.5  # probability of keeping a bound, below which a limit is not chosen
    start: float = 0.45  # of the range of limits, from its lowest, where the second slice is


PARAMS = PowerProfileParams()
Z = 1.96
UNUSUAL = "this card does not follow the usual curve"


def relative_scatter(
    told: Sequence[tuple[float, int, float, float, float, float | None]], guess: float, weight: float
) -> float:
    """Relative scatter of iterations, from timed ones and a guess that counts for `weight` iterations.

    Args:
        told: Row or limit, iterations, seconds, joules, their error, scatter of an iteration (s) or None.
        guess: The scatter that is assumed before any was timed.
        weight: How many iterations that guess counts for.
    """
    count = weight
    squares = count * guess**2
    for _, iterations, time_s, _, _, sd_s in told:
        if sd_s is not None and math.isfinite(sd_s) and iterations > 1:
            count += iterations - 1
            squares += (iterations - 1) * (sd_s * iterations / time_s) ** 2
    return math.sqrt(squares / count)


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
class Done:
    """Nothing more to measure, and why."""

    reason: str


@dataclass(frozen=True, slots=True)
class Optimum:
    """The limit that costs least, and what an iteration takes there; energy and power are of all GPUs
    together.

    Attributes:
        probability: That it is within one step of the best limit.
        measured: Whether it was measured itself, or only its neighbours were.
    """

    limit_w: float
    iteration_s: float
    iteration_j: float
    cost: float
    probability: float
    measured: bool


@dataclass(frozen=True)
class PowerLimitCurve:
    """Time and power of an iteration of one GPU at every limit.

    Attributes:
        time_s, power_w: Best estimate at each limit.
        times_s, powers_w: Draws, one a row; equally likely.
    """

    limits_w: np.ndarray
    time_s: np.ndarray
    power_w: np.ndarray
    times_s: np.ndarray
    powers_w: np.ndarray


class PowerProfile:
    """A profile of power limits at one batch size, in the making or done.

    Args:
        limits_w: Limits of one GPU that may be set.
        objective: What is to be small; `EnergyWithin` is taken relative to the fastest limit of this profile.
        error: Wanted relative error of a slice's time and energy, 95 %.
        counter_update_s: How often the energy counter refreshes.
        gpus: GPUs of the job: one limit for all, energies summed. The objective must be one for as many.
        worth: A further limit is measured while that is expected to save such a share of the cost.
        budget_s: Beyond so many seconds of slices only what three limits need is measured.
        scatter: Of the length of iterations, relative, until it is known.
        slices: Frame of an earlier profile to go on with.
        params: The constants that have no argument of their own.

    Raises:
        UsageError: no limits, limits or an error that are none, or a slice that is none of these limits.
    """

    def __init__(
        self, limits_w: Sequence[float], objective: Objective, *, error: float = PARAMS.error,
        counter_update_s: float = 0.1, gpus: int = 1, worth: float = PARAMS.worth,
        budget_s: float = PARAMS.budget_s, scatter: float = PARAMS.scatter,
        slices: pl.DataFrame | None = None, params: PowerProfileParams = PARAMS,
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
        self._space = space_of([Setting(power_limit_w=limit) for limit in limits])
        self.objective, self.error, self.gpus, self.worth = objective, error, gpus, worth
        self.counter_update_s, self.budget_s, self._prior_scatter = counter_update_s, budget_s, scatter
        self.unreachable: dict[float, str] = {}
        self._rows: list[tuple[float, int, float, float, float, float | None]] = []
        self._curve: PowerLimitCurve | None = None
        self._unusual = False
        for row in slices.select(list(SLICES)).iter_rows() if slices is not None else ():
            self.tell(*row)

    # what is known

    @property
    def slices(self) -> pl.DataFrame:
        """Every reported slice, as a frame (`SLICES`); a profile made from it goes on where this one is."""
        return pl.DataFrame(self._rows, schema=SLICES, orient="row")

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
        check_iterations("slice", iterations, time_s, energy_j, energy_uncertainty_j)
        column = self._column(limit_w)
        numbers = float(time_s), float(energy_j), float(energy_uncertainty_j)
        self._rows.append((float(self.limits_w[column]), int(iterations), *numbers, iteration_sd_s))
        self._curve = None

    def cannot(self, limit_w: float, reason: str) -> None:
        """A limit that could not be set; it is left out from now on."""
        self.unreachable.setdefault(float(self.limits_w[self._column(limit_w)]), reason)

    @property
    def curve(self) -> PowerLimitCurve:
        """Time and power of an iteration against the limit, of one GPU.

        Raises:
            MeasurementError: no slice has been told yet.
        """
        if self._curve is None:
            if not self._rows:
                raise MeasurementError("no limit has been measured yet; run a slice first")
            measured, time_s, power_w, errors = self._measured()
            share = float(power_w[0] / self.gpus / self.limits_w[0]) if measured[0] == 0 else None
            found = fit(
                self._space, measured, time_s, time_s * power_w / self.gpus, errors, power_share=share
            )
            logs = np.stack([found.log_times + found.log_time_s[:, None],
                             found.log_energies + found.log_energy_j[:, None]])
            logs[1] -= logs[0]
            times_s, powers_w = np.exp(logs)
            middle_s, middle_w = np.exp(logs.mean(axis=1))
            self._unusual = found.unusual and len(measured) > 3
            self._curve = PowerLimitCurve(self.limits_w, middle_s, middle_w, times_s, powers_w)
        return self._curve

    def frame(self) -> pl.DataFrame:
        """The curve as a frame: limit_w, iteration_s, power_w of all GPUs, relative standard deviations."""
        curve = self.curve
        return pl.DataFrame({
            "limit_w": curve.limits_w,
            "iteration_s": curve.time_s,
            "power_w": curve.power_w * self.gpus,
            "iteration_j": curve.time_s * curve.power_w * self.gpus,
            "time_sd": np.std(np.log(curve.times_s), axis=0),
            "power_sd": np.std(np.log(curve.powers_w), axis=0),
            "measured": [bool(each) for each in np.isin(np.arange(len(curve.limits_w)), self._measured()[0])],
        })

    def optimum(self, objective: Objective | None = None) -> Optimum:
        """The limit that costs least by any objective; of equals the higher one."""
        curve, objective = self.curve, self._scaled(objective or self.objective)
        costs, drawn = self._costs(curve, objective)
        best = int(np.argmin(costs))
        winners = np.argmin(drawn, axis=1)
        return Optimum(
            float(curve.limits_w[best]), float(curve.time_s[best]),
            float(curve.time_s[best] * curve.power_w[best] * self.gpus), float(costs[best]),
            float(np.mean(np.abs(winners - best) <= 1)), bool(np.isin(best, self._measured()[0])),
        )

    # what to do next

    def next_slice(self) -> Slice | Done:
        """The next slice, or why there is none."""
        params = self.params
        open_ = [i for i, limit in enumerate(self.limits_w) if float(limit) not in self.unreachable]
        if not open_:
            return Done(f"no limit can be set: {next(iter(self.unreachable.values()))}")
        if not self._rows:
            return self._slice(open_[0], "the highest limit", warm_up=params.warm_up_iterations)
        measured = set(self._measured()[0].tolist())
        last = self._column(self._rows[-1][0])
        spent = self.time_s > self.budget_s
        error = self._error_at(last)
        if not spent and error > params.error_slack * self.error and self._count(last) < params.again:
            return self._slice(last, f"its error is {error:.1%}, and {self.error:.1%} is wanted")
        left = [i for i in open_ if i not in measured]
        if not left:
            return self._once_more(measured, spent) or Done("all limits are measured")
        if spent and len(measured) >= params.least_limits:
            return Done(
                f"the slices have taken {self.time_s:.0f} s, and {self.budget_s:g} s are what a profile may "
                "take"
            )
        if len(measured) == 1:
            if self._cannot_win(last):
                return Done("a lower limit cannot win: what counts is time, and no lower limit is faster")
            low, high = self.limits_w[left].min(), self.limits_w[list(measured)].max()
            wanted_w = low + params.start * (high - low)
            middle = min(left, key=lambda i: abs(self.limits_w[i] - wanted_w))
            return self._slice(middle, "the middle of the range")
        return self._by_gain(left, measured)

    def _by_gain(self, left: list[int], measured: set[int]) -> Slice | Done:
        params = self.params
        curve, objective = self.curve, self._scaled(self.objective)
        costs, drawn = self._costs(curve, objective)
        tried = np.array(sorted(measured))
        best = int(tried[np.argmin(costs[tried])])
        with np.errstate(invalid="ignore"):
            gains = np.maximum(drawn[:, [best]] - drawn[:, left], 0.0)
        gain = np.nan_to_num(gains, posinf=0.0).mean(axis=0) / costs[best]
        pick = self._downwards(left[int(np.argmax(gain))], left, tried)
        if len(measured) >= min(params.least_limits, len(measured) + len(left)) and gain.max() < self.worth:
            if self._unusual and math.isfinite(costs[pick]):
                return self._slice(pick, f"{UNUSUAL}: measuring more")
            return self._once_more(measured, False) or Done(self._why(left, best, costs))
        # The third point is a check of the shape: where it says most about the limits around the best.
        if (gain.max() < self.worth):
            around = [i for i in left if abs(i - best) <= max(2, len(self.limits_w) // 4)] or left
            energies = np.log(curve.times_s * curve.powers_w)
            pick = max(around, key=lambda i: float(np.std(energies[:, i] - energies[:, best])))
            return self._slice(pick, "a third limit, to check the shape of the curve")
        return self._slice(pick, f"it may save {gain.max():.2%} of the cost")

    def _once_more(self, measured: set[int], spent: bool) -> Slice | None:
        """A further slice at a limit that may be the best or may not, where to know that is worth it."""
        params = self.params
        curve, objective = self.curve, self._scaled(self.objective)
        costs, drawn = self._costs(curve, objective)
        tried = np.array(sorted(measured))
        best = int(tried[np.argmin(costs[tried])])
        with np.errstate(invalid="ignore"):
            gains = np.nan_to_num(np.maximum(drawn[:, [best]] - drawn[:, tried], 0.0), posinf=0.0)
        gain = gains.mean(axis=0) / costs[best]
        rival = int(tried[np.argmax(gain)])
        # At a flat optimum the wrong neighbour costs next to nothing more: less than a slice is worth.
        if spent or gain.max() < self.worth or not np.isfinite(costs[[best, rival]]).all():
            return None
        few = [i for i in (best, rival) if self._count(i) < params.again]
        if not few:
            return None
        both = f"{self.limits_w[best]:g} W and {self.limits_w[rival]:g} W"
        return self._slice(min(few, key=self._count), f"{both} cost too nearly the same to tell")

    def _downwards(self, pick: int, left: list[int], tried: np.ndarray) -> int:
        """Not far below what is measured at once: there the model knows least, and a slice costs most."""
        lowest_w = self.params.stride * float(self.limits_w[tried].min())
        near = [i for i in left if self.limits_w[i] >= lowest_w]
        return pick if self.limits_w[pick] >= lowest_w or not near else max(near)

    def _why(self, left: list[int], best: int, costs: np.ndarray) -> str:
        lower = [i for i in left if i > best]
        best_w = self.limits_w[best]
        if lower and min(self.limits_w[lower]) < self.limits_w[self._measured()[0]].min():
            least = float(np.min(costs[lower]) / costs[best] - 1)
            more = "no less" if math.isfinite(least) else "too much time"
            if math.isfinite(least) and least > 0.001:
                more = f"at least {least:.1%} more"
            return f"lower limits cannot win: they would cost {more} than {best_w:g} W"
        return f"no other limit is expected to save {self.worth:.1%} against {best_w:g} W"

    def _cannot_win(self, column: int) -> bool:
        """Whether lower limits lose even if they were as fast and drew next to nothing."""
        time_s, power_w = self.curve.time_s[column], self.curve.power_w[column]
        objective = self._scaled(self.objective)
        least_w = min(self.params.least_power * float(self.limits_w.max()), power_w)
        now = float(objective.cost(time_s, time_s * power_w * self.gpus))
        return float(objective.cost(time_s, time_s * least_w * self.gpus)) >= now * (1 - self.worth)

    def _slice(self, column: int, reason: str, *, warm_up: int = 1) -> Slice:
        params = self.params
        scatter = self._scatter()
        iterations = math.ceil((Z * scatter / self.error) ** 2)
        edge_s = params.edge_s * self.counter_update_s / 0.1
        if self._rows:  # an edge's error is joules, whatever the length of a window
            edge_s = max(row[4] / (row[3] / row[2]) for row in self._rows)
            iteration_s = self._rows[-1][2] / self._rows[-1][1]
            iterations = max(1, min(iterations, math.ceil(params.longest_s / iteration_s)))
        seconds = max(edge_s / self.error, 2 * self.counter_update_s)
        return Slice(
            float(self.limits_w[column]), max(iterations, 1), min(seconds, params.longest_s), params.settle_s,
            warm_up, reason,
        )

    # arithmetic

    def _column(self, limit_w: float) -> int:
        column = int(np.argmin(np.abs(self.limits_w - limit_w)))
        if abs(self.limits_w[column] - limit_w) > 1.0:  # the driver rounds limits
            raise UsageError(
                f"{limit_w:g} W is not one of the limits of this profile: "
                f"{', '.join(f'{w:g}' for w in self.limits_w)}"
            )
        return column

    def _count(self, column: int) -> int:
        return sum(row[0] == self.limits_w[column] for row in self._rows)

    def _scatter(self) -> float:
        return relative_scatter(self._rows, self._prior_scatter, self.params.scatter_iterations)

    def _pooled(self, column: int) -> tuple[int, float, float, float]:
        mine = [row for row in self._rows if row[0] == self.limits_w[column]]
        iterations, time_s = sum(row[1] for row in mine), sum(row[2] for row in mine)
        energy_j, squares = sum(row[3] for row in mine), sum(row[4] ** 2 for row in mine)
        return iterations, time_s, energy_j, math.sqrt(squares)

    def _error_at(self, column: int) -> float:
        """Relative 95 % error at a limit, the larger of time's and energy's."""
        iterations, _, energy_j, uncertainty_j = self._pooled(column)
        return max(Z * self._scatter() / math.sqrt(iterations), uncertainty_j / energy_j)

    def _measured(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Measured columns; an iteration's time, power of all GPUs, their relative standard errors."""
        columns = np.array(sorted({self._column(row[0]) for row in self._rows}))
        scatter = self._scatter()
        pooled = [self._pooled(int(column)) for column in columns]
        time_s = np.array([seconds / iterations for iterations, seconds, _, _ in pooled])
        power_w = np.array([energy_j / seconds for _, seconds, energy_j, _ in pooled])
        errors = np.array([
            (scatter / math.sqrt(n), uncertainty_j / energy_j / Z) for n, _, energy_j, uncertainty_j in pooled
        ])
        return columns, time_s, power_w, np.maximum(errors, 1e-4)

    def _scaled(self, objective: Objective) -> Objective:
        if isinstance(objective, EnergyWithin):
            return replace(objective, reference_time_s=float(self.curve.time_s.min()))
        return objective

    def _costs(self, curve: PowerLimitCurve, objective: Objective) -> tuple[np.ndarray, np.ndarray]:
        """Of an iteration at each limit; and of every draw, relative to nothing."""
        energy_j = curve.time_s * curve.power_w * self.gpus
        energies_j = curve.times_s * curve.powers_w * self.gpus
        costs = np.asarray(objective.cost(curve.time_s, energy_j), dtype=float)
        drawn = np.asarray(objective.cost(curve.times_s, energies_j), dtype=float)
        out = np.array([float(limit) in self.unreachable for limit in curve.limits_w])
        # A bound counts as kept where most of what may be true keeps it.
        if isinstance(objective, EnergyWithin):
            slowdowns = curve.times_s / curve.times_s.min(axis=1, keepdims=True)
            drawn = np.asarray(objective.cost(slowdowns * objective.reference_time_s, energies_j))
            out |= np.isinf(drawn).mean(axis=0) > 1 - self.params.keeps
        return np.where(out, np.inf, costs), np.where(out[None, :], np.inf, drawn)
