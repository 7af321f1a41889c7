"""The method of the tuner: every block of whole iterations is a measurement, and decides the next one.

    method = Descent(rungs, most, objective, 0.05)
    plan = method.next(now_s)          # a setting, seconds and iterations at least, and why
    method.tell(block)                 # what the block has shown

There is no separate search, hold and check. The held setting has the least cost among those whose largest
credible time fits the rest of the allowed slowdown. Another setting is tried where that is expected to pay
for itself in the rest of the job. The default is measured again where a smaller error pays.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from .effects import LEAST_SD, Effects
from .knowledge import SURE_SD, Knowledge

BLOCK_S, BLOCK_COUNT = 4.0, 6  # of a block, at least: several readings of every sensor, and a scatter
HOLD_SHARE = 0.08  # of the time so far: how long a setting is held before the next decision
WORTH = 0.0005  # of the cost of the rest of the job: what a trial must promise
STEP = 0.25  # of ln(time) in the worst case, beyond the deepest setting that was visited
SWITCH_S = 0.5  # that a change of the setting costs
MOVED = 0.06  # of ln(time) since the default was last measured, before it is measured again


@dataclass(frozen=True)
class Plan:
    """The next block.

    Attributes:
        row: Its setting.
        seconds, count: Least length, in time and in whole iterations.
        kind: "default", "trial", "held" or "clocks" (safe by the clocks alone).
        why: One sentence.
        too_slow_s: An iteration that takes longer ends the block.
    """

    row: int
    seconds: float
    count: int
    kind: str
    why: str
    too_slow_s: float = math.inf


class Descent(Knowledge):
    """Decides what a running job is put to.

    Attributes:
        first: A row that is tried first: the best one of an earlier run.
        recheck: Whether the default setting may be measured again for a smaller error.
    """

    name = "descent"
    first: int = -1
    recheck: bool = True
    _base_level = 0.0  # of ln(time), when the default was measured last

    def next(self, now_s: float) -> Plan:
        """The next block."""
        self.now_s = max(now_s, self.now_s)
        here, hold_s = self.rungs.reference, max(BLOCK_S, HOLD_SHARE * self.now_s)
        if not self.counted:
            return self._by_clocks(hold_s)
        if here not in self.visited(counted=True):
            return Plan(here, BLOCK_S, BLOCK_COUNT + 2, "default", "the default setting comes first")
        if self._odd:
            return Plan(here, BLOCK_S, BLOCK_COUNT, "default", "the last block was odd")
        if self.first >= 0 and self.first not in self.barred:
            row, self.first = self.first, -1
            return Plan(row, BLOCK_S, BLOCK_COUNT, "trial", "it was the best of an earlier run")
        time, power = self.effects()
        if self.visited()[-1] == here:
            self._base_level = time.level
        elif abs(time.level - self._base_level) > MOVED:
            seconds = max(BLOCK_S, BLOCK_COUNT * self.unit_s)
            return Plan(here, seconds, BLOCK_COUNT, "default", "iterations have become longer or shorter")
        return self._weigh(time, power, hold_s)

    @np.errstate(invalid="ignore")  # the cost of a barred setting is infinite
    def _weigh(self, time: Effects, power: Effects, hold_s: float) -> Plan:
        """Hold, try another setting, or measure the default again: what costs least until the end."""
        here, left_s, allowed = self.rungs.reference, self.left_s, math.log1p(self.allowed())
        mean, most = self.bounded(time)
        cost = self.cost(mean, power.mean)
        cost[list(self.barred)] = np.inf
        held = int(np.argmin(np.where(most <= allowed, cost, np.inf)))
        saving = 1.0 - cost[held]
        slope_t, slope_p = ((self.cost(mean + a, power.mean + b) / cost - 1.0) / 0.01
                            for a, b in ((0.01, 0.0), (0.0, 0.01)))
        top = np.log(np.maximum(self.most, 1.0))
        visited = {*self.visited()}
        reach = np.zeros(len(top))
        for knob in np.unique(self.rungs.knob):
            mine = self.rungs.knob == knob
            reach[mine] = STEP + max((top[row] for row in visited if mine[row]), default=0.0)
        near = np.where(mean <= allowed, cost, np.inf)
        near[here] = np.inf
        wanted = int(np.argmin(near))
        limit = self.max_slowdown if self.max_slowdown is not None else 1.0
        best = Plan(held, hold_s, BLOCK_COUNT, "held", ""), WORTH * left_s
        time_h, power_h = time.cov(held), power.cov(held)
        length_s = max(BLOCK_S, BLOCK_COUNT * self.unit_s)
        slow_s = math.exp(min(time.level + allowed + 0.08 + 1.5 * self.scatter, 30.0))
        for seconds in (length_s, 3 * length_s, 9 * length_s):
            if seconds > max(length_s, 0.1 * left_s):
                break
            noise_t, noise_p = self.noise(seconds), LEAST_SD**2 + (0.02 / seconds) ** 2
            # Of what a block will show, and its covariance with the setting's own effect.
            block_t = time.var + 2 * time.with_level + time.level_var + noise_t
            block_p = power.var + 2 * power.with_level + power.level_var + noise_p
            own_t, own_p = time.var + time.with_level, power.var + power.with_level
            after = np.sqrt(np.maximum(time.var - own_t**2 / block_t, 1e-12))
            learned = np.sqrt(own_t**2 / block_t + 1e-12)
            keeps = np.where(most <= allowed, 1.0, ndtr((allowed - SURE_SD * after - mean) / learned))
            keeps = np.where((mean <= allowed + 0.5 * limit) & (top <= reach), keeps, 0.0)
            apart_t = own_t - time_h - time.with_level[held]
            apart_p = own_p - power_h - power.with_level[held]
            sd = np.sqrt((slope_t * apart_t) ** 2 / block_t + (slope_p * apart_p) ** 2 / block_p + 1e-12)
            u = (cost[held] - cost) / sd
            expected = sd * (u * ndtr(u) + np.exp(-u * u / 2) / math.sqrt(2 * math.pi))
            late = np.maximum(np.exp(mean - allowed) - 1.0, 0.0) / max(limit, 1e-3) * saving
            loss = seconds * (np.maximum(cost - cost[held], 0.0) + late) + SWITCH_S * saving
            value = np.where(np.isfinite(cost), expected * keeps * (left_s - seconds) - loss, -np.inf)
            value[[held, here]] = -np.inf
            row = int(np.argmax(value))
            if value[row] > best[1]:
                why = f"may save {100 * expected[row]:.1f} % more; allowed with {100 * keeps[row]:.0f} %"
                best = Plan(row, seconds, BLOCK_COUNT, "trial", why, slow_s), float(value[row])
            if not self.recheck or not np.isfinite(near[wanted]):
                continue
            # A smaller error of the default allows a setting nearer to the limit.
            before = math.sqrt(max(time.var[wanted], 1e-12))
            learnt = time.with_level[wanted] ** 2 / (time.level_var + noise_t)
            better = math.sqrt(max(time.var[wanted] - learnt, 1e-12))
            steep = max(cost[held] - cost[wanted], 0.0) / max(most[wanted] - most[held], 0.003)
            worth = left_s * steep * SURE_SD * (before - better) - (seconds + SWITCH_S) * saving
            if worth > best[1]:
                why = f"lowers the error of times from {100 * before:.1f} to {100 * better:.1f} %"
                best = Plan(here, seconds, BLOCK_COUNT, "default", why), worth
        return best[0]

    def _by_clocks(self, hold_s: float) -> Plan:
        """The least power among the settings that cannot be too slow by their clocks."""
        time, power = self.effects()
        _, most = self.bounded(time)
        safe = np.isfinite(most) & (most <= math.log1p(self.allowed()))
        safe[self.rungs.reference] = True
        safe[list(self.barred)] = False
        # Nothing tells their times apart.
        cost = self.cost(np.zeros(len(most)), power.mean - np.sqrt(np.maximum(power.var, 0.0)))
        row = int(np.argmin(np.where(safe, cost, np.inf)))
        seconds = hold_s if row in self.visited() else BLOCK_S
        return Plan(row, seconds, BLOCK_COUNT, "clocks", "cannot be too slow by its clocks")

    def sentence(self, row: int) -> str:
        """Why a setting is held, from the numbers that decided it."""
        time, power = self.effects()
        mean, most = self.bounded(time)
        name = str(self.rungs.settings[row]) if row != self.rungs.reference else "the default setting"
        parts = []
        if self.sure[row] and row != self.rungs.reference:
            parts.append(f"at most {100 * (self.most[row] - 1):.1f} % slower by its clocks")
        about = self.about(row)
        if about.measured and self.counted and row != self.rungs.reference:
            error = 196 * about.time_ratio * about.time_sd
            parts.append(f"{100 * (about.time_ratio - 1):.1f} ± {error:.1f} % slower measured")
        if row != self.rungs.reference:
            error = 196 * about.energy_ratio * about.energy_sd
            parts.append(f"{100 * (1 - about.energy_ratio):.1f} ± {error:.1f} % less energy")
        cost = self.cost(mean, power.mean)
        cost[list(self.barred)] = np.inf
        better = cost < cost[row] - 1e-3
        other = int(np.argmin(np.where(better & (mean < mean[row] + 0.05), cost, np.inf)))
        text = f"{name}: {', '.join(parts) or 'nothing saves more and keeps the limit'}"
        if better[other] and other != row:
            more, slower = 100 * (cost[row] - cost[other]), 100 * math.expm1(most[other])
            name = str(self.rungs.settings[other])
            text += f"; {name} would save {more:.1f} % more but may be {slower:.1f} % slower"
        return text
