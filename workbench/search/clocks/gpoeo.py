"""GPOEO's search: memory clock first, then a bracket and golden section over the SM clock, then a cubic
through all trials.

As in its code (ruixueqingyang/GPOEO 37d5a34, `PyEPOpt.py:954-1722`, `StateReward.py`): it starts from a
predicted point, with at most three trials for the memory clock. Then a walk outwards by a tenth of the card's
gears until both ends are worse, and golden section while the bracket is seven gears or wider, with at most
six trials. Last are cubic fits of energy and of time over the gears, whose best gear is the answer. Objective
and bound are the caller's; as shipped it minimises energy x time**2 within 4.5 %. Its probes are single
measurements: it knows no errors.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np

from .base import Choice, Scripted, Steps

# Constants of GPOEO's search, all as in its published code (37d5a34); none was tuned here.
# `benchmarks.clocks --only search` compares the search with the others.

RADIUS = 0.10  # step of the walk outwards, as a share of the card's clock steps
RADIUS_LOW_MEMORY = 0.15  # the same if the memory clock is well below the highest
LOW_MEMORY = 0.95  # of the highest memory clock
GOLDEN_RATIO = 1.618
NARROW_GEARS = 7  # bracket at which the section ends
SECTION_PROBES = 6
MEMORY_PROBES = 3
FAR = 0.75  # of the reference's cost: the walk downwards has gone far enough
CENTRE = 0.85  # of the centre's cost: such a trial is the new centre
BELOW_BOUND = 0.8  # of the slowdown limit: a slowdown below it needs no walk upwards
ABOVE_BOUND = 1.2  # of the slowdown limit: a slowdown above it needs no walk downwards
# of the time: a lower memory clock that exceeds the slowdown limit even so ends its trials
MEMORY_KEEP = 0.9


class Golden(Scripted):
    """GPOEO's search over memory clock, then SM clock (or power limit), one setting per trial."""

    name = "gpoeo"

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._line: list[int] = []  # rows of the chosen memory clock, lowest first

    def script(self) -> Steps:
        start = self.predicted()
        memory = yield from self._memory(start)
        self._line = self._rows_at(memory)
        yield from self._bracket_and_section(self._line, self._line.index(self._near(self._line, start)))
        self._why = "the bracket is narrow; a cubic through the trials gives the rest"

    # memory clock

    def _memory(self, start: int) -> Generator[tuple[int, str], bool, float]:
        """The memory clock, from at most three trials at the predicted SM clock."""
        clocks = sorted(set(self.space.mu.tolist()), reverse=True)
        if len(clocks) == 1:
            return float(clocks[0])
        at = clocks.index(self.space.mu[start])
        limit = self.max_slowdown
        tried: list[int] = []
        if (yield from self.visit(start, "the predicted point")):
            tried.append(start)
            order = [at - 2, at - 1]  # the next two higher, highest first
            if limit is None or self.slowdown(start) < ABOVE_BOUND * limit:
                order = [at + 1, at + 2] if at == 0 else [at - 1, at + 1]
        else:
            order = [at - 1, at + 1]
        for index in [each for each in order if 0 <= each < len(clocks)]:
            if len(tried) >= MEMORY_PROBES:
                break
            row = self._near(self._rows_at(clocks[index]), start)
            if (yield from self.visit(row, "a neighbouring memory clock at the predicted SM clock")):
                tried.append(row)
                keep = MEMORY_KEEP * (1 + self.slowdown(row)) - 1
                if limit is not None and index > at and keep > limit:
                    break
        return float(self.space.mu[self.best_of(tried)]) if tried else float(clocks[at])

    # SM clock, or power limit if there are no clocks

    def _bracket_and_section(self, line: list[int], centre: int) -> Steps:
        share = RADIUS if self.space.mu[line[0]] >= LOW_MEMORY else RADIUS_LOW_MEMORY
        radius = max(1, round(share * self._all_gears() / max(self._gear_step(line), 1e-9)))
        last = len(line) - 1
        if not (yield from self.visit(line[centre], "the predicted SM clock")):
            return
        limit = self.max_slowdown
        slow = self.slowdown(line[centre])
        up = limit is None or slow >= BELOW_BOUND * limit
        down = limit is None or slow <= ABOVE_BOUND * limit
        low, high = 0 if down else centre, last if up else centre
        place = centre
        while up and place < last:
            step = min(place + radius, last)
            if not (yield from self.visit(line[step], "outwards, to higher clocks")):
                break
            high = step
            if not self.better(line[step], line[place]):
                break
            if self.reward(line[step]) < CENTRE * self.reward(line[centre]):
                centre = step
            if not down:
                low = place
            place = step
        place = centre
        while down and place > 0:
            step = max(place - radius, 0)
            if not (yield from self.visit(line[step], "outwards, to lower clocks")):
                break
            low = step
            beyond = limit is not None and self.slowdown(line[step]) > limit
            reward = self.reward(line[step])
            if beyond or reward < FAR or not self.better(line[step], line[place]):
                break
            if reward < CENTRE * self.reward(line[centre]):
                centre, high = step, place
            place = step
        yield from self._section(line, low, high)

    def _section(self, line: list[int], low: int, high: int) -> Steps:
        probes = 0
        narrow = NARROW_GEARS / max(self._gear_step(line), 1.0)
        left, right = self._inside(low, high)
        while high - low >= narrow and low < left < right < high and probes < SECTION_PROBES:
            for place in (left, right):
                probes += not self.known(line[place])
                if not (yield from self.visit(line[place], "golden section")):
                    return
            if self.better(line[left], line[right]):
                high, right = right, left  # the previous inner trial is one of the next two
                left = min(self._inside(low, high)[0], right - 1)
            else:
                low, left = left, right
                right = max(self._inside(low, high)[1], left + 1)

    def choice(self) -> Choice:
        """The best clock step of the cubics between the tried ones, at the chosen memory clock; before that
        the best trial.

        Raises:
            MeasurementError: No setting was tried yet.
        """
        plain = super().choice()
        places = np.array([place for place, row in enumerate(self._line) if self.known(row)])
        if len(places) < 3:
            return plain
        unit = max(float(places[-1]), 1.0)
        gears = np.arange(places[0], places[-1] + 1)
        values = np.array([self.measured(self._line[place]) for place in places]).T
        times, energies = (
            np.polyval(np.polyfit(places / unit, each, min(3, len(places) - 1)), gears / unit)
            for each in values
        )
        good = (times > 0) & (energies > 0)
        good &= [self.space.settings[self._line[gear]] not in self.unreachable for gear in gears]
        here = self.space.reference_row
        if self.max_slowdown is not None:
            good &= times <= (1 + self.max_slowdown) * self.measured(here)[0]
        if not good.any():  # no feasible gear: the highest
            return plain if self.max_slowdown is None else self._as_choice(here)
        costs = np.asarray(self.objective.cost(np.abs(times), np.abs(energies)))
        best = int(np.argmin(np.where(good, costs, np.inf)))
        return self._as_choice(self._line[gears[best]], (float(times[best]), float(energies[best])))

    # helpers

    def _rows_at(self, memory: float) -> list[int]:
        """Rows of a memory clock, lowest gear first."""
        rows = np.flatnonzero(self.space.mu == memory)
        return [int(row) for row in rows[np.argsort(self._gears(rows), kind="stable")]]

    def _near(self, rows: list[int], start: int) -> int:
        return rows[np.argmin(np.abs(self._gears(rows) - self._gears([start])))]

    def _all_gears(self) -> float:
        return float(self._gears(np.arange(len(self.space))).max())

    def _gear_step(self, line: list[int]) -> float:
        """Gears from a row to the next: a list of coarser steps ends sooner."""
        return float(np.median(np.diff(self._gears(line)))) if len(line) > 1 else 1.0

    def _inside(self, low: int, high: int) -> tuple[int, int]:
        reach = (high - low) / GOLDEN_RATIO
        return round(high - reach), round(low + reach)
