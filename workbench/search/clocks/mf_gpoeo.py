"""MF-GPOEO's search: feedback on the measured slowdown, without a model.

As in its code (ruixueqingyang/MF-GPOEO 0b051df, `pid.h`, `TuneMemClk`, `judgeConfigStability`): lower memory
clocks are tried first while they keep the bound and pay; then a PID controller moves the SM gear until the
slowdown stands just below the bound. It lowers the clock as far as the bound lets it: it assumes that lower
is always cheaper. Its kernel-level slowdown needs CUPTI; here the slowdown is that of whole iterations, which
is exact. With power limits for gears it works alike.
"""

from __future__ import annotations

import numpy as np

from .gpoeo import GEAR_MHZ, LOWEST_GEAR_MHZ, Scripted, Steps

KP, KI, KD = 2.8, 0.002, 0.9
MARGIN = 0.002  # below the bound: 0.1 to 0.3 % as shipped
START, START_LOW_MEMORY = 0.95, 0.8  # of the gears
LIMIT = 0.2  # slowdown that is steered to where no bound was given
CONTROLS = 12
MOST_CONTROLS = 5  # after so many controls a slowdown within the bound is good enough


class Feedback(Scripted):
    """See the module."""

    name = "mf-gpoeo"

    def script(self) -> Steps:
        bound = LIMIT if self.max_slowdown is None else self.max_slowdown
        reference = self.space.reference_row
        memory, best = float(self.space.mu[reference]), reference
        for clock in sorted(set(self.space.mu.tolist()), reverse=True):
            if clock > 0.95 * memory:
                continue
            row = self._at(clock, 1.0)
            if not (yield from self.visit(row, "a lower memory clock, while it keeps the bound and pays")):
                break
            if self.slowdown(row) > bound or self.reward(row) >= self.reward(best):
                break
            memory, best = clock, row
        low = memory < 0.95 * float(self.space.mu[reference])
        yield from self._steer(memory, START_LOW_MEMORY if low else START, bound)

    def _steer(self, memory: float, start: float, bound: float) -> Steps:
        rows = np.flatnonzero(self.space.mu == memory)
        gears = self._gear_numbers(rows)
        order = np.argsort(gears)
        rows, gears = rows[order], gears[order]
        wanted = bound - min(MARGIN, 0.1 * bound)
        gear = start * float(gears[-1])
        summed, before = 0.0, 0.0
        seen: list[float] = []
        errors: list[float] = []
        for control in range(CONTROLS):
            place = int(np.argmin(np.abs(gears - gear)))
            row, gear = int(rows[place]), float(gears[place])
            if not (yield from self.visit(row, "steered towards the bound")):
                self._why = "the next gear cannot be set"
                return
            slow = self.slowdown(row)
            error = wanted - slow
            seen.append(gear)
            errors.append(abs(error))
            if abs(error) < 0.01 * wanted:
                self._why = "the slowdown is what was asked for"
                return
            if len(seen) >= 3 and max(seen[-3:]) - min(seen[-3:]) <= 3 and slow <= bound:
                self._why = "three gears next to each other, within the bound"
                return
            if control + 1 >= MOST_CONTROLS and slow <= bound:
                self._why = "enough controls, within the bound"
                return
            if len(errors) >= 4 and float(np.mean(errors[-3:])) < 0.1 * wanted:
                self._why = "the mean error is small"
                return
            summed += error
            swings = len(seen) >= 3 and (seen[-1] - seen[-2]) * (seen[-2] - seen[-3]) < 0
            move = KP * error + KI * summed + (KD * (error - before) if swings else 0.0)
            before = error
            if control == 0:
                move *= 0.7
            elif error > 0.5 * wanted:
                move *= 1.75
            elif error > 0.25 * wanted:
                move *= 1.5
            elif -0.5 * wanted < error < 0:
                move *= 1.75
            step = -round(gear * move)
            if step == 0:
                step = -1 if error > 0 else 1
            target = min(max(gear + step, float(gears[0])), float(gears[-1]))
            after = int(np.argmin(np.abs(gears - target)))
            if after == place:
                self._why = "the gear stays where it is"
                return
            gear = float(gears[after])
        self._why = "so many controls are enough"

    def _at(self, memory: float, share: float) -> int:
        rows = np.flatnonzero(self.space.mu == memory)
        gears = self._gear_numbers(rows)
        return int(rows[np.argmin(np.abs(gears - share * gears.max()))])

    def _gear_numbers(self, rows: np.ndarray) -> np.ndarray:
        if self.space.max_sm_clock_mhz is None:
            return np.asarray(120 * self.space.limit[rows])
        clocks = self.space.x[rows] * self.space.limit[rows] * self.space.max_sm_clock_mhz
        return np.asarray(np.maximum((clocks - LOWEST_GEAR_MHZ) / GEAR_MHZ, 0.0))
