"""The knowledge about a running job: its blocks, the bounds of its times, and the slowdown that is left.

Work never takes less time than at the default, and hardly more than the clocks under load suggest: cycles
hardly grow when a clock falls. Measured times overrule that. Two odd blocks mean that the work has changed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from scipy.special import ndtr, ndtri

from ...records import Observation, Setting
from ..objective import Energy, Objective
from ..space import knobs
from .effects import CLOCK, LEAST_SD, LIMIT, POWER, ROUGH_SD, TIME, Array, Curves, Effects, Ladders

SURE_SD = 1.9  # standard deviations that a held setting stays within the allowed slowdown
AIM = 0.97  # of the allowed slowdown
HORIZON_S = 300.0  # assumed rest of a job of unknown length: as long as it has lasted, and at least so long
GROWTH = 0.2  # largest growth of the cycles of work, as a share, for a fall of the clock by all of it
CHANGED, CHANGED_SD = 0.05, 3.0  # of ln(time) or ln(power), and beyond so many standard deviations: odd
FIRST_SCATTER, FIRST_COUNT = 0.02, 8  # of single iterations, until it is known; what that guess counts for
POWER_SLOPE = 0.9  # of ln(power) over ln(clock), at least: how far a power limit lowers the clock
MOST_BLOCKS = 80  # that are kept apart


def time_bounds(rungs: Ladders, clocks_mhz: Array, busy: Array) -> Array:
    """The largest time ratio that the clocks under load suggest, by row; for a power limit it is a guess.

    Args:
        rungs: The settings.
        clocks_mhz: SM clocks at the default setting, sampled under load; NaN: unknown.
        busy: Utilisation (0..1) of each sample.
    """
    known = np.isfinite(clocks_mhz) & (busy > 0.05)
    if not known.any():  # an idle GPU keeps nobody waiting
        idle_gpu = len(busy) > 0 and bool((busy <= 0.05).all())
        return np.full(len(rungs.z), 1.0 if idle_gpu else math.inf)
    clock, share, idle = clocks_mhz[known], busy[known], 1.0 - float(busy.mean())
    most = np.ones(len(rungs.z))
    for row, setting in enumerate(rungs.settings):
        if rungs.knob[row] == CLOCK and setting.sm_clock_mhz:
            ratio = np.maximum(clock / setting.sm_clock_mhz, 1.0)
            most[row] = idle + float((share * ratio).sum()) / len(busy)
        elif rungs.knob[row] == LIMIT:
            most[row] = idle + (1.0 - idle) * math.exp(rungs.z[row] / POWER_SLOPE)
        elif rungs.z[row] > 0:
            most[row] = idle + (1.0 - idle) * math.exp(rungs.z[row])
    return most


@dataclass(frozen=True)
class Choice:
    """The estimate for a setting.

    Attributes:
        time_ratio, energy_ratio: Time and energy of an iteration, relative to the default setting.
        time_sd, energy_sd: Their relative standard deviations.
        p_allowed: Probability that it keeps the slowdown limit; 1 without a limit.
        measured: Whether it was tried.
    """

    setting: Setting
    time_ratio: float
    energy_ratio: float
    time_sd: float
    energy_sd: float
    p_allowed: float
    measured: bool


class Knowledge:
    """Estimates for all settings, from the blocks and clocks of a running job.

    Args:
        rungs: The settings.
        most: Largest time ratio of each by the clocks, as of `time_bounds`.
        objective: The cost to minimise.
        max_slowdown: Allowed share of additional time of the whole job; None for no limit.
        busy, clock_mhz: Utilisation (0..1) and SM clock under load at the default setting; NaN: unknown.
        earlier_s: Seconds that the work before this one has lost, and would have needed by default.
        total_s: Length of the job, where it is known.
        rough_sd: As of `Curves`.

    Attributes:
        counted: Whether units of work are counted; otherwise the clocks alone keep the limit.
        blocks: The measurements.
        time_at_s: Seconds at each setting, counted or not.
        least: Of ln(time) relative to the default setting: no setting takes less time.
    """

    def __init__(
        self, rungs: Ladders, most: Array, objective: Objective | None = None,
        max_slowdown: float | None = 0.05, *, busy: float = 1.0, clock_mhz: float = math.nan,
        earlier_s: tuple[float, float] = (0.0, 0.0), total_s: float | None = None, rough_sd: float = ROUGH_SD,
    ) -> None:
        self.rungs, self.objective, self.max_slowdown = rungs, objective or Energy(), max_slowdown
        self.busy, self.clock_mhz, self.total_s = busy, clock_mhz, total_s
        self.counted, self.now_s, self.least = False, 0.0, 0.0
        self.blocks: list[Observation] = []
        self._rows = {setting: row for row, setting in enumerate(rungs.settings)}
        self.barred: dict[int, str] = {}
        self.most, self.time_at_s = most.copy(), np.zeros(len(rungs.z))
        self.sure = (rungs.knob == CLOCK) & np.isfinite(most)  # where `most` is known by clocks under load
        self._earlier_s = earlier_s
        self._curves = Curves(rungs, TIME, rough_sd), Curves(rungs, POWER, rough_sd)
        self._limits: dict[int, float] = {}  # bounds of the power limits that were visited, by row
        self._odd, self._doubted = 0, -1
        self._known: tuple[float, Effects, Effects] | None = None

    def count(self, counted: bool) -> None:
        """Whether units of work are counted from now on; without, counts until now mean nothing."""
        if not counted:
            self.blocks = [replace(each, count=0.0) for each in self.blocks]
        self.counted, self._known = counted, None

    def row(self, block: Observation) -> int:
        """The row of its setting."""
        return self._rows[block.configuration.setting]

    def visited(self, *, counted: bool = False) -> list[int]:
        """The rows of all blocks, in order, or of those that have counted work."""
        return [self.row(each) for each in self.blocks if each.count or not counted]

    # what is known

    def effects(self) -> tuple[Effects, Effects]:
        """Effects on time and on power, as of now."""
        if self._known is None or self._known[0] != self.now_s:
            counted = [each for each in self.blocks if each.count > 0]
            scatter = self.scatter
            time = self._fit(0, counted, [math.log(each.time_s / each.count) for each in counted],
                             [self.time_variance(each, scatter) for each in counted])
            power = self._fit(1, self.blocks, [math.log(each.energy_j / each.time_s) for each in self.blocks],
                              [LEAST_SD**2 + (each.energy_sd_j / each.energy_j) ** 2 for each in self.blocks])
            self._known = self.now_s, time, power
        return self._known[1:]

    def _fit(
        self, which: int, blocks: Sequence[Observation], values: Sequence[float], variances: Sequence[float]
    ) -> Effects:
        rows = np.array([self.row(each) for each in blocks], dtype=int)
        at_min = np.array([each.at_s for each in blocks]) / 60.0
        return self._curves[which].fit(
            rows, at_min, np.array(values), np.array(variances), self.now_s / 60.0
        )

    @property
    def scatter(self) -> float:
        """Relative standard deviation of single iterations."""
        timed = [each for each in self.blocks if each.scatter > 0]
        squares = FIRST_COUNT * FIRST_SCATTER**2 + sum(each.scatter**2 * each.count for each in timed)
        return math.sqrt(squares / (FIRST_COUNT + sum(each.count for each in timed)))

    def time_variance(self, block: Observation, scatter: float) -> float:
        """Of the logarithm of the mean time of a block's iterations, with the scatter of single ones."""
        own = block.time_sd**2 if block.time_sd else scatter**2 / max(block.count, 1.0)
        return own + LEAST_SD**2

    def noise(self, seconds: float) -> float:
        """Variance of the logarithm of the mean time in a block that is still to come, of this length."""
        traced = [each.time_sd * math.sqrt(each.time_s / seconds) for each in self.blocks if each.time_sd]
        if traced:
            return float(np.median(traced)) ** 2 + 0.005**2
        return self.scatter**2 / max(seconds / self.unit_s, 1.0) + LEAST_SD**2

    @property
    def unit_s(self) -> float:
        """Time of a unit in the last block that counted any."""
        return next((each.time_s / each.count for each in reversed(self.blocks) if each.count > 0), 0.1)

    def bounded(self, time: Effects) -> tuple[Array, Array]:
        """Mean and quantile (`SURE_SD`) of the effects on ln(time): between 0 and what the clocks allow."""
        top = np.log(np.maximum(self.most, 1.0) * (1.0 + GROWTH * (1.0 - np.exp(-self.rungs.z))))
        if not self.counted:
            top = np.minimum(top, 1.0)  # also where the clocks are not known
            return 0.5 * top, top
        sd = np.sqrt(np.maximum(time.var, 1e-12))
        top = np.where(self.sure & (time.mean - sd <= top), top, 5.0)  # measured times overrule the bound
        low, high = (self.least - time.mean) / sd, (top - time.mean) / sd
        below, share = ndtr(low), np.maximum(ndtr(high) - ndtr(low), 1e-12)

        def density(x: Array) -> Array:
            return np.exp(-x * x / 2) / math.sqrt(2 * math.pi)

        mean = time.mean + sd * (density(low) - density(high)) / share
        most = time.mean + sd * ndtri(np.clip(below + ndtr(SURE_SD) * share, 1e-12, 1 - 1e-12))
        known = share > 1e-9
        inside = np.clip(time.mean, self.least, top)
        here = self.rungs.z > 0
        mean = np.where(here, np.where(known, np.clip(mean, self.least, top), inside), 0.0)
        return mean, np.where(here, np.where(known, np.clip(most, self.least, top), inside), 0.0)

    def cost(self, time: Array, power: Array) -> Array:
        """Cost relative to the default, from effects on ln(time) and ln(power)."""
        unit_s, unit_j = self.default
        cost = self.objective.cost
        return np.asarray(cost(unit_s * np.exp(time), unit_j * np.exp(time + power)) / cost(unit_s, unit_j))

    @property
    def default(self) -> tuple[float, float]:
        """Time (s) and energy (J) of a unit at the default setting now; (1, 1) while nothing was measured."""
        if not self.blocks:
            return 1.0, 1.0
        time, power = self.effects()
        unit_s = math.exp(time.level) if self.counted else 1.0
        return unit_s, unit_s * math.exp(power.level)

    # what slowdown is left

    @property
    def left_s(self) -> float:
        """How long the job still lasts, as far as that is known."""
        return max(self.total_s - self.now_s, 1.0) if self.total_s else max(HORIZON_S, self.now_s)

    def spent_s(self) -> tuple[float, float]:
        """Seconds lost so far, and seconds that the same work would have taken at the default setting."""
        mean, most = self.bounded(self.effects()[0])
        would_s = self.time_at_s / np.exp(mean if self.counted else most)
        lost_s, earlier_s = self._earlier_s
        return lost_s + float((self.time_at_s - would_s).sum()), earlier_s + float(would_s.sum())

    def allowed(self) -> float:
        """Slowdown that the rest of the job may have so that all of it keeps the limit."""
        if self.max_slowdown is None:
            return math.inf
        lost_s, would_s = self.spent_s()
        aim = AIM * self.max_slowdown
        return max(0.0, aim + (aim * would_s - lost_s) / self.left_s)

    # what was seen

    def passed(self, row: int, seconds: float) -> None:
        """Add time that has passed at a setting."""
        self.time_at_s[row] += seconds
        self._known = None

    def tell(self, block: Observation) -> bool:
        """Add a block; returns whether the work has changed, which the second odd one in a row shows."""
        self.now_s = max(self.now_s, block.at_s + 0.5 * block.time_s)
        self._learn_clock(block)
        odd = self._is_odd(block)
        row = self.row(block)
        if odd and not self._odd and row == self._doubted:
            odd = False  # for the second time, and the default in between was as expected
        if odd:
            self._doubted = row
        self._odd = self._odd + 1 if odd else 0
        if not odd:  # else a checkpoint, or other work: the next block tells
            self.blocks.append(block)
            self._merge()
        self._known = None
        return self._odd >= 2

    @property
    def doubtful(self) -> bool:
        """Whether the last block was odd."""
        return self._odd > 0

    def _learn_clock(self, block: Observation) -> None:
        """Bound the time at a power limit, and above it, by the clock under load that it left."""
        z, knob, here, at = self.rungs.z, self.rungs.knob, self.rungs.reference, self.row(block)
        if knob[at] != LIMIT or not block.clock_mhz > 0 or not self.clock_mhz > 0:
            return
        bound = (self.busy * max(self.clock_mhz / block.clock_mhz, 1.0) + 1.0 - self.busy) * 1.005
        self._limits[at] = bound
        visited = sorted(self._limits, key=lambda row: float(z[row]))
        for row in np.flatnonzero(knob == LIMIT):
            deeper = [self._limits[each] for each in visited if z[each] >= z[row] - 1e-9]
            if deeper:
                self.most[row], self.sure[row] = min(deeper), z[row] > 0
                continue
            # Below all that were visited a limit lowers the clock further, half as steeply again at most.
            last = visited[-1]
            before, shallow = (visited[-2], self._limits[visited[-2]]) if len(visited) > 1 else (here, 1.0)
            fall = max(float(z[last] - z[before]), 0.01)
            steep = max(1 / POWER_SLOPE, 1.5 * math.log(max(self._limits[last] / shallow, 1.0)) / fall)
            self.most[row] = self._limits[last] * math.exp(float(z[row] - z[last]) * steep)

    def _is_odd(self, block: Observation) -> bool:
        if len(self.blocks) < 2 or not self.measured:
            return False
        time, power = self.effects()
        row, off = self.row(block), math.log(block.energy_j / block.time_s) - power.level
        sd = math.sqrt(max(power.var[row] + power.level_var + 2 * power.with_level[row], 0.0) + LEAST_SD**2)
        odd = abs(off - power.mean[row]) > CHANGED + CHANGED_SD * sd
        if block.count and not block.time_sd:  # a length from the power trace may be an alias
            off = math.log(block.time_s / block.count) - time.level
            error = CHANGED_SD * math.sqrt(max(time.level_var, 0.0) + self.time_variance(block, self.scatter))
            top = math.log(self.most[row]) if np.isfinite(self.most[row]) else 0.0
            wide = CHANGED + math.hypot(CHANGED_SD * math.sqrt(max(time.var[row], 0.0)), error)
            odd |= abs(off - time.mean[row]) > wide or not -CHANGED - error < off < top + CHANGED + error
        return odd

    def _merge(self) -> None:
        """Where blocks are many, the two nearest in time of those at one setting become one."""
        if len(self.blocks) < MOST_BLOCKS:
            return
        last: dict[tuple[int, bool], int] = {}
        pairs = []
        for at, each in enumerate(self.blocks):
            alike = self.row(each), each.count > 0
            if alike in last:
                pairs.append((each.at_s - self.blocks[last[alike]].at_s, last[alike], at))
            last[alike] = at
        if pairs:
            _, one, other = min(pairs)
            self.blocks[one] += self.blocks.pop(other)
            self.blocks.sort(key=lambda each: each.at_s)

    def bar(self, row: int, why: str) -> None:
        """A setting that cannot be set or measured."""
        self.barred[row] = why

    # what others ask

    @property
    def measured(self) -> bool:
        """Whether the default setting was measured."""
        return self.rungs.reference in self.visited()

    def best_measured(self) -> int:
        """The row of least cost within the limit among those that were measured."""
        time, power = self.effects()
        mean, most = self.bounded(time)
        cost = self.cost(mean, power.mean)
        limit = math.inf if self.max_slowdown is None else math.log1p(self.max_slowdown)
        rows = {row for row in self.visited() if (mean if self.counted else most)[row] <= limit}
        return min(rows | {self.rungs.reference}, key=lambda row: float(cost[row]))

    def held(self) -> int:
        """The row of least cost that keeps the limit for sure."""
        time, power = self.effects()
        mean, most = self.bounded(time)
        cost = self.cost(mean, power.mean)
        cost[list(self.barred)] = np.inf
        allowed = most <= math.log1p(self.allowed())
        if not self.counted:
            allowed &= np.isfinite(most)
        allowed[self.rungs.reference] = True
        return int(np.argmin(np.where(allowed, cost, np.inf)))

    def about(self, row: int) -> Choice:
        """The estimate for a setting."""
        time_ratio, time_sd, energy_ratio, energy_sd, kept = (float(each[row]) for each in self._estimates())
        measured = row in self.visited()
        return Choice(
            self.rungs.settings[row], time_ratio, energy_ratio, time_sd, energy_sd, kept, measured
        )

    def frame(self) -> pl.DataFrame:
        """One row per setting: knobs, time_ratio, time_sd, energy_ratio, energy_sd, p_allowed, probes."""
        names = ("time_ratio", "time_sd", "energy_ratio", "energy_sd", "p_allowed")
        columns = {name: pl.Series(each) for name, each in zip(names, self._estimates(), strict=True)}
        probes = np.bincount(self.visited(), minlength=len(self.rungs.z))
        return knobs(self.rungs.settings).with_columns(**columns, probes=pl.Series(probes.astype(np.int64)))

    @np.errstate(invalid="ignore")  # of a setting without a bound, where there is no limit either
    def _estimates(self) -> tuple[Array, ...]:
        """Ratio of the time of a unit and its relative standard deviation, the same of its energy, and the
        probability that the slowdown limit is kept, by row.
        """
        time, power = self.effects()
        mean, most = self.bounded(time)
        time_sd = np.sqrt(np.maximum(time.var, 0.0)) if self.counted else most / math.sqrt(12.0)
        energy_sd = np.hypot(time_sd, np.sqrt(np.maximum(power.var, 0.0)))
        limit = math.inf if self.max_slowdown is None else math.log1p(self.max_slowdown)
        kept = np.where(most <= limit, 1.0, ndtr((limit - mean) / np.maximum(time_sd, 1e-6)))
        return np.exp(mean), time_sd, np.exp(mean + power.mean), energy_sd, kept
