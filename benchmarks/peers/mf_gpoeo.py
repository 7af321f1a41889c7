"""MF-GPOEO's search: feedback on the measured slowdown, without a model.

As in its code (ruixueqingyang/MF-GPOEO 0b051df, `pid.h`, `TuneMemClk`, `judgeConfigStability`): lower memory
clocks are tried first while they keep the bound and pay; then a PID controller moves the SM gear until the
slowdown stands just below the bound. It lowers the clock as far as the bound lets it: it assumes that lower
is always cheaper. Its kernel-level slowdown needs CUPTI; here the slowdown is that of whole iterations, which
is exact. With power limits for gears it works alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.search.clocks.gpoeo import LOWEST_MHZ, Ask, Gpoeo

GEAR_MHZ = 15  # of NVIDIA's cards, from the lowest clock on


@dataclass(frozen=True, slots=True)
class MfGpoeoParams:
    """Constants of MF-GPOEO's search, all as in its published code (0b051df) but `bound`, set by hand.

    `benchmarks.clocks --only search` holds the search against the others.
    """

    gain_p: float = 2.8
    gain_i: float = 0.002
    gain_d: float = 0.9
    margin: float = 0.002  # of slowdown, below the bound: 0.1 to 0.3 % as shipped
    start: float = 0.95  # of the gears
    start_low_memory: float = 0.8  # the same where the memory clock was lowered
    bound: float = 0.2  # slowdown that is steered to where no bound was given
    controls: int = 12  # at most
    enough_controls: int = 5  # after which a slowdown within the bound is good enough
    lower_memory: float = 0.95  # of the default memory clock: what is above it is no lower one
    first_move: float = 0.7  # of the first step
    exact: float = 0.01  # of the wanted slowdown: an error so small ends the search
    mean_exact: float = 0.1  # the same for the mean of the last three errors
    still_gears: int = 3  # width of three gears in a row that end it within the bound
    far_error: float = 0.5  # of the wanted slowdown, from which on steps are `far_boost` times as long
    far_boost: float = 1.75
    near_error: float = 0.25  # from which on they are `near_boost` times as long
    near_boost: float = 1.5


PARAMS = MfGpoeoParams()


class Feedback(Gpoeo):
    """MF-GPOEO's search: a PID controller steers the measured slowdown to just below the bound."""

    def __init__(self, *args: Any, params: MfGpoeoParams = PARAMS, **options: Any) -> None:
        super().__init__(*args, **options)
        self.params = params

    def script(self) -> Iterator[Ask]:
        params = self.params
        bound = params.bound if self.max_slowdown is None else self.max_slowdown
        reference = self.rungs.reference
        memory, best = float(self.memory[reference]), reference
        for clock in sorted(set(self.memory.tolist()), reverse=True):
            if clock > params.lower_memory * memory:
                continue
            row = self.rows_at(clock)[-1]
            if not (yield from self.visit(row, "a lower memory clock, while it keeps the bound and pays")):
                break
            if self.slowdown(row) > bound or self.reward(row) >= self.reward(best):
                break
            memory, best = clock, row
        low = memory < params.lower_memory * float(self.memory[reference])
        yield from self._steer(memory, params.start_low_memory if low else params.start, bound)

    def held(self) -> int:
        return self.best()

    def _steer(self, memory: float, start: float, bound: float) -> Iterator[Ask]:
        params = self.params
        rows = self.rows_at(memory)
        gears = self._gears(rows)
        wanted = bound - min(params.margin, 0.1 * bound)
        gear = start * float(gears[-1])
        summed, before = 0.0, 0.0
        seen: list[float] = []
        errors: list[float] = []
        for control in range(params.controls):
            place = int(np.argmin(np.abs(gears - gear)))
            row, gear = rows[place], float(gears[place])
            if not (yield from self.visit(row, "steered towards the bound")):
                return
            slow = self.slowdown(row)
            error = wanted - slow
            seen.append(gear)
            errors.append(abs(error))
            if abs(error) < params.exact * wanted:
                return
            still = len(seen) >= 3 and max(seen[-3:]) - min(seen[-3:]) <= params.still_gears
            if slow <= bound and (still or control + 1 >= params.enough_controls):
                return
            if len(errors) >= 4 and float(np.mean(errors[-3:])) < params.mean_exact * wanted:
                return
            summed += error
            swings = len(seen) >= 3 and (seen[-1] - seen[-2]) * (seen[-2] - seen[-3]) < 0
            rate = params.gain_d * (error - before) if swings else 0.0
            move = params.gain_p * error + params.gain_i * summed + rate
            before = error
            if control == 0:
                move *= params.first_move
            elif error > params.far_error * wanted:
                move *= params.far_boost
            elif error > params.near_error * wanted:
                move *= params.near_boost
            elif -params.far_error * wanted < error < 0:
                move *= params.far_boost
            step = -round(gear * move)
            if step == 0:
                step = -1 if error > 0 else 1
            target = min(max(gear + step, float(gears[0])), float(gears[-1]))
            after = int(np.argmin(np.abs(gears - target)))
            if after == place:
                return
            gear = float(gears[after])

    def _gears(self, rows: list[int]) -> np.ndarray:
        return np.maximum(self.clocks_mhz[rows] - LOWEST_MHZ, 0.0) / GEAR_MHZ
