"""GPOEO's prediction and local search (Wang et al., TPDS 2022), with the methods of `Descent`.

As in its code (ruixueqingyang/GPOEO 37d5a34, `PyEPOpt.py:954-1722`, `StateReward.py`): it starts from a
predicted point, with at most three trials for the memory clock. Then a walk outwards by a tenth of the card's
gears until both ends are worse, and golden section while the bracket is seven gears or wider. Last are cubic
fits of energy and of time over the gears, whose best gear is held. Objective and slowdown limit are the
caller's; as shipped it minimises energy x time**2 within 4.5 %. It knows no errors: the first block at a
setting is the measurement of that setting.

The blocks and what follows from them (changed work, estimates for the views) are those of `Descent`.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from ..space import SettingSpace
from .descent import BLOCK_COUNT, BLOCK_S, HOLD_SHARE, Descent, Plan

# NVIDIA's cards have clocks ("gears") from 210 MHz in steps of 15 MHz.
LOWEST_MHZ = 210
TOP_MHZ = 2010  # of a card whose clocks are unknown: 120 gears

# Constants of GPOEO's search, all as in its published code (37d5a34); none was tuned here.
# `benchmarks.clocks --only search` compares the search with the others.
RADIUS = 0.10  # step of the walk outwards, as a share of the card's gears
RADIUS_LOW_MEMORY = 0.15  # the same if the memory clock is well below the highest
LOW_MEMORY = 0.95  # of the highest memory clock
GOLDEN_RATIO = 1.618
WIDE_MHZ = 97.5  # a bracket of seven gears is divided, one of six is not
SECTION_ROUNDS = 5  # two probes in the first one, then one each: six
FAR = 0.75  # of the reference's cost: the walk downwards has gone far enough
CENTRE = 0.85  # of the centre's cost: such a trial is the new centre
BELOW_LIMIT = 0.8  # of the slowdown limit: a slowdown below it needs no walk upwards
ABOVE_LIMIT = 1.2  # of the slowdown limit: a slowdown above it needs no walk downwards
MEMORY_KEEP = 0.9  # a memory clock ends the trials of lower ones if this share of its time is still too slow

Ask = tuple[int, str]  # a row to try, and why


class Gpoeo(Descent):
    """GPOEO's search over the memory clock, then the SM clock (or the power limit).

    Args:
        space: The settings of the rungs.
        prior: A prediction made before any trial (`predictor.Prediction`); None for a rule of thumb.
        args, options: As of `Descent`.

    Attributes:
        memory: Memory clock of each setting, relative to the highest.
        clocks_mhz: SM clock of each setting. A power limit counts as the same share of the highest SM clock.
        predicted: Time and energy of each setting relative to the reference; NaN where the model has none.
    """

    def __init__(self, *args: Any, space: SettingSpace, prior: Any = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self.memory, top_mhz = space.mu, space.max_sm_clock_mhz or TOP_MHZ
        self.clocks_mhz = space.x * space.limit * top_mhz
        self._tried: dict[int, tuple[float, float]] = {}
        self._line: list[int] = []  # rows of the chosen memory clock, lowest clock first
        if prior is not None:
            self.predicted = np.exp(prior.frame.select("log_time", "log_energy").to_numpy()).T
        else:  # shares of a usual job: what follows no clock, the SM clock, and the memory clock
            clock = space.x * np.sqrt(space.limit)
            time = 0.3 + 0.5 / clock + 0.2 / space.mu
            self.predicted = np.array([time, time * (0.3 + 0.55 * clock**3 + 0.15 * space.mu)])

    def next(self, now_s: float) -> Plan:
        """The default setting first, and after an odd block; then the next trial, and last the choice."""
        plan = super().next(now_s)
        if self.doubtful or not self.counted or self.rungs.reference not in self.tried:
            return plan
        for row, why in self.script():
            return Plan(row, BLOCK_S, BLOCK_COUNT, "trial", why)
        hold_s = max(BLOCK_S, HOLD_SHARE * self.now_s)
        return Plan(self.held(), hold_s, BLOCK_COUNT, "held", "a cubic through the trials")

    # what the trials have shown

    @property
    def tried(self) -> dict[int, tuple[float, float]]:
        """Time (s) and energy (J) of an iteration in the first block at each setting, by row."""
        for each in self.blocks:
            if each.count > 0:
                self._tried.setdefault(self.row(each), (each.time_s / each.count, each.energy_j / each.count))
        return self._tried

    @property
    def limit(self) -> float:
        """The slowdown limit as a share; infinity for none."""
        return math.inf if self.max_slowdown is None else self.max_slowdown

    def slowdown(self, row: int) -> float:
        """Relative growth of an iteration's time over the reference's, as measured."""
        return self.tried[row][0] / self.tried[self.rungs.reference][0] - 1

    def reward(self, row: int) -> float:
        """Cost of an iteration, as measured."""
        return float(self.objective.cost(*self.tried[row]))

    def rank(self, row: int) -> tuple[bool, float]:
        """GPOEO's order of two settings, the better one first: the cheaper within the slowdown limit, beyond
        it the faster.
        """
        slow = self.slowdown(row)
        return slow > self.limit, slow if slow > self.limit else self.reward(row)

    def best(self) -> int:
        """The row of the best trial that can still be set; the reference if there is none."""
        rows = [row for row in self.tried if row not in self.barred]
        return min(rows, key=self.rank, default=self.rungs.reference)

    # the search

    def script(self) -> Iterator[Ask]:
        """The rows that are still to be tried, in order. Each call begins with the predicted point and skips
        tried rows.
        """
        centre = yield from self._memory_clock(self.start())
        self._line = self.rows_at(self.memory[centre])
        low, high = yield from self._bracket(self._line, self._line.index(centre))
        yield from self._section(self._line, low, high)

    def visit(self, row: int, why: str) -> Generator[Ask, None, bool]:
        """Try a row unless it was tried or cannot be set; returns whether it was tried."""
        if row not in self.tried and row not in self.barred:
            yield row, why
        return row in self.tried

    def start(self) -> int:
        """The row of least predicted cost within the slowdown limit."""
        (time, energy), (unit_s, unit_j) = self.predicted, self.tried[self.rungs.reference]
        cost = self.objective.cost(unit_s * time, unit_j * energy)
        cost = np.where(time <= 1 + self.limit, cost, np.inf)
        cost[list(self.barred)] = np.inf
        return int(np.nanargmin(cost)) if np.isfinite(cost).any() else self.rungs.reference

    def _memory_clock(self, start: int) -> Generator[Ask, None, int]:
        """The best of at most three memory clocks at the predicted SM clock, as a row."""
        yield from self.visit(start, "the predicted point")
        clocks, tried = sorted(set(self.memory), reverse=True), [start]
        at = clocks.index(self.memory[start])
        fast = self.slowdown(start) < ABOVE_LIMIT * self.limit
        highest = max(at - 1 if fast else at - 2, 0)
        for clock in clocks[highest : highest + 3 if fast else at]:
            row = min(self.rows_at(clock), key=lambda row: abs(self.clocks_mhz[row] - self.clocks_mhz[start]))
            if (yield from self.visit(row, "a neighbouring memory clock at the predicted SM clock")):
                tried.append(row)
                if clock < clocks[at] and MEMORY_KEEP * (1 + self.slowdown(row)) - 1 > self.limit:
                    break
        return min(tried, key=self.rank)

    def _bracket(self, line: list[int], centre: int) -> Generator[Ask, None, tuple[int, int]]:
        """Walk outwards until both ends are worse; returns their places in the line."""
        share = RADIUS if self.memory[line[0]] >= LOW_MEMORY else RADIUS_LOW_MEMORY
        spread_mhz, last = np.ptp(self.clocks_mhz[line]), len(line) - 1
        radius_mhz = share * (self.clocks_mhz.max() - LOWEST_MHZ)
        radius = max(1, round(radius_mhz * last / max(spread_mhz, 1.0)))
        slow, far = self.slowdown(line[centre]), FAR * self.reward(self.rungs.reference)
        up = self.max_slowdown is None or slow >= BELOW_LIMIT * self.limit
        down = slow <= ABOVE_LIMIT * self.limit
        ends = [0 if down else centre, last if up else centre]
        for side, where in ((1, "higher"), (0, "lower")):
            walk = [*range(centre, ends[side], radius if side else -radius), ends[side]]
            for place, step in pairwise(walk):
                if not (yield from self.visit(line[step], f"outwards, to {where} clocks")):
                    break
                ends[side], reward = step, self.reward(line[step])
                if self.rank(line[step]) >= self.rank(line[place]) or (step < place and reward < far):
                    break
                better = reward < CENTRE * self.reward(line[centre])
                if better or not down:
                    ends[1 - side] = place
                if better:
                    centre = step
        return ends[0], ends[1]

    def _section(self, line: list[int], low: int, high: int) -> Iterator[Ask]:
        """Golden section between two places of the line."""
        left, right = _inside(low, high)
        for _ in range(SECTION_ROUNDS):
            wide = self.clocks_mhz[line[high]] - self.clocks_mhz[line[low]] > WIDE_MHZ
            if not (wide and low < left < right < high):
                return
            for place in (left, right):
                if not (yield from self.visit(line[place], "golden section")):
                    return
            if self.rank(line[left]) < self.rank(line[right]):
                high, right = right, left  # the previous inner trial is one of the next two
                left = min(_inside(low, high)[0], right - 1)
            else:
                low, left = left, right
                right = max(_inside(low, high)[1], left + 1)

    def rows_at(self, memory: float) -> list[int]:
        """Rows of a relative memory clock, lowest SM clock first."""
        rows = np.flatnonzero(self.memory == memory).tolist()
        return sorted(rows, key=lambda row: self.clocks_mhz[row])

    def held(self) -> int:
        """The row of the best gear of the cubics between the tried gears; the reference if no gear keeps the
        limit. With fewer than three tried gears: the best trial. Without counted iterations: as of `Descent`.
        """
        here, tried, line = self.rungs.reference, self.tried, self._line
        if not self.counted:
            return super().held()
        places = [place for place, row in enumerate(line) if row in tried]
        if len(places) < 3:
            return self.best()
        fit = np.polyfit(places, [tried[line[place]] for place in places], min(3, len(places) - 1))
        most_s = (1 + self.limit) * tried[here][0]
        good = [
            (self.objective.cost(time_s, energy_j), line[place])
            for place in range(places[0], places[-1] + 1)
            for time_s, energy_j in [np.polyval(fit, place)]
            if line[place] not in self.barred and 0 < time_s <= most_s and energy_j > 0
        ]
        return min(good, default=(0.0, here))[1]


def _inside(low: int, high: int) -> tuple[int, int]:
    """The two inner places of a golden section."""
    reach = (high - low) / GOLDEN_RATIO
    return round(high - reach), round(low + reach)
