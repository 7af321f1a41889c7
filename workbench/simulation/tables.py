"""Cards and jobs made of measurements: time and power at every setting come from a table instead of the simulator's equations.

    sweep = Measured("gemm", [Point(1410, None, None, 0.051, 400.0), Point(1095, None, None, 0.062, 260.0), ...])
    card = measured_card("TABLE", [sweep])
    job = measured_workload(card, "gemm", [(sweep, 0.5)])            # half a second of it at the highest clocks is an iteration
    machine = simulate("TABLE", stepped=True); TrainingJob(job, machine=machine)

Between measured points of one memory clock the logarithms of time and power are straight lines in the logarithm of the SM clock (of the
power limit); beyond the lowest and highest measured one nothing is offered: the card's driver lists only clocks at which all of its sweeps
were measured. Where clocks were measured, a power limit lowers the SM clock until the power between the points fits. Where limits were
measured, nothing is known of clocks, and the driver shows none.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..errors import UsageError
from . import catalogue
from .catalogue import Phase, Workload
from .physics import Card, OperatingPoint, clock_at_most, locked_clock, memory_index, nearest_clock

STEP_MHZ = 15  # between the SM clocks that the driver lists
UNNAMED_MHZ = 1000  # what the driver calls a memory clock that nobody wrote down
MOST_CLOCKS = 256


class Point(NamedTuple):
    """What was measured at one setting: seconds of one execution, and mean watts. Knobs that were not turned are None."""

    sm_clock_mhz: int | None
    mem_clock_mhz: int | None
    power_limit_w: float | None
    time_s: float
    power_w: float


@dataclass(frozen=True, slots=True)
class _Row:
    """One memory clock: logarithms of the knob, ascending, of time and of power."""

    knob: tuple[float, ...]
    time: tuple[float, ...]
    power: tuple[float, ...]

    def at(self, value: float) -> tuple[float, float]:
        """Time and power at a knob's value, which is held within what was measured."""
        x = min(max(math.log(value), self.knob[0]), self.knob[-1])
        place = min(max(bisect_right(self.knob, x), 1), len(self.knob) - 1) if len(self.knob) > 1 else 0
        if not place:
            return math.exp(self.time[0]), math.exp(self.power[0])
        low, high = self.knob[place - 1], self.knob[place]
        share = (x - low) / (high - low)
        return tuple(math.exp(row[place - 1] + share * (row[place] - row[place - 1])) for row in (self.time, self.power))  # type: ignore[return-value]

    def highest_below(self, value: float, power_w: float) -> float:
        """The highest value of the knob, at most `value`, at which the power is no more than `power_w`; else the lowest one measured."""
        at, last = min(max(math.log(value), self.knob[0]), self.knob[-1]), math.log(power_w)
        above = math.log(self.at(value)[1])
        for place in range(len(self.knob) - 1, -1, -1):
            if self.knob[place] >= at:
                continue
            if self.power[place] <= last:
                share = (last - self.power[place]) / (above - self.power[place]) if above > self.power[place] else 1.0
                return math.exp(self.knob[place] + min(share, 1.0) * (at - self.knob[place]))
            at, above = self.knob[place], self.power[place]
        return math.exp(self.knob[0])


class Measured:
    """One thing that was run at many settings of a GPU; as a phase's load it answers where the card settles.

    Args:
        name: What it was.
        points: All by SM clock (a memory clock each, or none), or all by power limit. What was measured twice is a mean (of logarithms).

    Raises:
        UsageError: no points, knobs that differ from point to point, a memory clock here and none there, or numbers that are not positive.
    """

    def __init__(self, name: str, points: Iterable[Point]) -> None:
        self.name = name
        given = list(points)
        if not given:
            raise UsageError(f"there is no measured point of {name}")
        for point in given:
            if not all(value is None or 0 < value < math.inf for value in point):
                raise UsageError(f"a measured point of {name} has a number that is not positive: {point}")
        self.by_limit = given[0].power_limit_w is not None
        knobs = {(p.power_limit_w is not None, p.sm_clock_mhz is not None, p.mem_clock_mhz is not None) for p in given}
        if len(knobs) > 1 or next(iter(knobs)) not in ((True, False, False), (False, True, False), (False, True, True)):
            raise UsageError(f"the points of {name} must all name an SM clock, and all or none a memory clock; or all a power limit")
        rows: dict[int, dict[float, list[Point]]] = {}
        for point in given:
            knob = float(point.power_limit_w or point.sm_clock_mhz or 0)
            rows.setdefault(point.mem_clock_mhz or UNNAMED_MHZ, {}).setdefault(knob, []).append(point)
        self.rows = {mem: _row(rows[mem]) for mem in sorted(rows, reverse=True)}
        top = next(iter(self.rows.values()))
        self.time_s, self.power_w = math.exp(top.time[-1]), math.exp(top.power[-1])

    def __repr__(self) -> str:
        return f"<{self.name}, measured at {sum(len(row.knob) for row in self.rows.values())} settings>"

    def ranges_mhz(self) -> dict[int, tuple[int, int]]:
        """Lowest and highest SM clock measured at each memory clock, the highest memory clock first."""
        return {mem: (math.ceil(math.exp(row.knob[0]) - 1e-6), math.floor(math.exp(row.knob[-1]) + 1e-6)) for mem, row in self.rows.items()}

    @property
    def watts(self) -> tuple[float, float]:
        """The least and the most power that was measured."""
        powers = [power for row in self.rows.values() for power in row.power]
        return math.exp(min(powers)), math.exp(max(powers))

    def sensitivity(self) -> float:
        """Share of the time, at the highest clocks, that follows the SM clock: the slope between the two highest, 0..1."""
        row = next(iter(self.rows.values()))
        if self.by_limit or len(row.knob) < 2:
            return 0.5
        # Neighbours a few MHz apart tell noise: the slope is taken over a tenth of the clock.
        low = next((place for place in range(len(row.knob) - 2, -1, -1) if row.knob[place] <= row.knob[-1] - 0.1), 0)
        return min(1.0, max(0.0, (row.time[low] - row.time[-1]) / (row.knob[-1] - row.knob[low])))

    def operate(
        self,
        card: Card,
        *,
        power_limit_w: float,
        max_sm_clock_mhz: int | None = None,
        min_sm_clock_mhz: int | None = None,
        mem_clock_mhz: int | None = None,
    ) -> OperatingPoint:
        """Where the card settles, of what was measured; `stretch` is relative to the highest clocks (the highest limit)."""
        place = memory_index(card, mem_clock_mhz, min_sm_clock_mhz)
        mem = card.mem_clocks_mhz[place]
        row = self.rows[mem]
        if self.by_limit:
            time_s, power_w = row.at(power_limit_w)
            return OperatingPoint(card.sm_clocks_mhz[0], mem, power_w, time_s / self.time_s, power_limit_w < math.exp(row.knob[-1]))
        clock = locked_clock(card, place, min_sm_clock_mhz, max_sm_clock_mhz)
        if card.mem_low_sm_mhz:
            clock = max(clock, card.mem_low_sm_mhz[place])
        time_s, power_w = row.at(clock)
        capped = power_w > power_limit_w
        if capped:
            exact = row.highest_below(clock, power_limit_w)
            time_s, power_w = row.at(exact)
            clock = nearest_clock(card.sm_clocks_mhz, exact)
        return OperatingPoint(clock, mem, power_w, time_s / self.time_s, capped)


def measured_card(
    key: str, sweeps: Sequence[Measured], *, name: str = "", architecture: str | None = None, step_mhz: int = STEP_MHZ
) -> Card:
    """A card known by sweeps alone, added to this process's catalogue under `key`.

    Its driver lists SM clocks in steps and those that were measured, from the highest down to the lowest that all sweeps reach, for each
    memory clock that all have. Its power limits reach from a third of the most power that was measured to that (rounded up to 10 W), or
    over the limits that were measured. What was not measured is stated: a resident job that waits draws what the lightest setting drew,
    an idle card half of it.

    Args:
        key: One to fifteen letters.
        sweeps: All of one GPU, by the same knobs.
        name: What the driver calls it; the key where empty.
        architecture: Whose sensors it has (`machine.SENSORS`). None: Volta's where limits were measured, GA100's at one memory clock,
            GA10x's at several.
        step_mhz: Between SM clocks.

    Raises:
        UsageError: no sweeps, sweeps of different knobs or with no settings in common, or a key that will not do.
    """
    if not sweeps:
        raise UsageError(f"a card of measurements needs some; none were given for {key}")
    if len({sweep.by_limit for sweep in sweeps}) > 1:
        raise UsageError(f"the sweeps of {key} must all be by clock or all by power limit")
    by_limit = sweeps[0].by_limit
    least_w, most_w = min(sweep.watts[0] for sweep in sweeps), max(sweep.watts[1] for sweep in sweeps)
    lacks: tuple[str, ...] = ()
    mems: tuple[int, ...]
    clocks: tuple[int, ...]
    tops: tuple[int, ...]
    lows: tuple[int, ...]
    if by_limit:
        ends = [[math.exp(row.knob[place]) for sweep in sweeps for row in sweep.rows.values()] for place in (0, -1)]
        low_w, high_w = round(max(ends[0]), 3), round(min(ends[1]), 3)
        mems, tops, lows, clocks = (UNNAMED_MHZ,), (UNNAMED_MHZ,), (UNNAMED_MHZ,), (UNNAMED_MHZ,)
        lacks = ("clocks", "sm_lock", "mem_lock")
        if not low_w < high_w:
            raise UsageError(f"the sweeps of {key} have no two power limits in common")
    else:
        high_w = 10.0 * math.ceil(most_w / 10.0)
        low_w = 10.0 * math.floor(high_w / 30.0)
        ranges = [sweep.ranges_mhz() for sweep in sweeps]
        common = {
            mem: (max(each[mem][0] for each in ranges), min(each[mem][1] for each in ranges))
            for mem in ranges[0]
            if all(mem in each for each in ranges)
        }
        common = {mem: span for mem, span in common.items() if span[0] <= span[1]}
        if not common:
            raise UsageError(f"the sweeps of {key} have no setting in common")
        mems = tuple(common)
        clocks = _clocks(common, sweeps, step_mhz)
        tops = tuple(clock_at_most(clocks, common[mem][1]) for mem in mems)
        lows = tuple(min(clock for clock in clocks if clock >= common[mem][0]) for mem in mems)
    kind = architecture or ("volta" if by_limit else "ampere" if len(mems) == 1 else "ampere-ga10x")
    return catalogue.add(
        Card(
            key=key, name=name or key, architecture=kind, compute_capability=_CAPABILITY.get(kind, (8, 6)), memory_bytes=16 << 30,
            power_limit_w=(low_w, high_w, high_w), sm_clocks_mhz=clocks, mem_clocks_mhz=mems, idle_w=0.5 * least_w, gap_w=least_w,
            static_w=least_w, knee=0.5, v_knee=1.0, x_min=0.1, mem_top_sm_mhz=tops, mem_low_sm_mhz=lows, lacks=lacks,
        )
    )  # fmt: skip


def measured_workload(card: Card, key: str, parts: Sequence[tuple[Measured, float]], *, gap_s: float = 0.0) -> Workload:
    """A training whose iteration is a row of measured phases, for `TrainingJob`.

    Args:
        card: Where they were measured.
        key: Its name.
        parts: What runs, in order, and for how many seconds at the highest clocks.
        gap_s: Wait for host and data at the end of each iteration, at the card's gap power.

    Raises:
        UsageError: no parts, or a length that is no positive number.
    """
    if not parts or not all(0 < seconds < math.inf for _, seconds in parts) or not 0 <= gap_s < math.inf:
        raise UsageError(f"an iteration of {key} needs parts, each for a positive number of seconds")
    kinds: tuple[catalogue.PhaseKind, ...] = ("forward", "backward")
    phases = [
        Phase(part.name, kinds[min(number, 1)], seconds, part, 1.0, round(1.0 - part.sensitivity(), 3))
        for number, (part, seconds) in enumerate(parts)
    ]
    if gap_s:
        phases.append(Phase("data", "data", gap_s, None, 0.0, 0.0))
    # An epoch without an end: nothing was measured of evaluations.
    return Workload(key, key, key, key, 10**12, 0, 1, (1,), 1 << 30, 0, 1 << 20, tuple(phases), card.key)


_CAPABILITY = {"pascal": (6, 1), "volta": (7, 0), "turing": (7, 5), "ampere": (8, 0), "ada": (8, 9), "hopper": (9, 0)}


def _row(points: dict[float, list[Point]]) -> _Row:
    def mean(values: Iterable[float]) -> float:
        logs = [math.log(value) for value in values]
        return sum(logs) / len(logs)

    knobs = sorted(points)
    return _Row(
        tuple(math.log(knob) for knob in knobs),
        tuple(mean(p.time_s for p in points[knob]) for knob in knobs),
        tuple(mean(p.power_w for p in points[knob]) for knob in knobs),
    )


def _clocks(common: dict[int, tuple[int, int]], sweeps: Sequence[Measured], step_mhz: int) -> tuple[int, ...]:
    """SM clocks that were measured or bound a memory clock's, and steps from the highest memory clock's top; highest first."""
    lowest, highest = min(low for low, _ in common.values()), max(high for _, high in common.values())
    top = next(iter(common.values()))[1]
    found = {clock for span in common.values() for clock in span}
    found |= {round(math.exp(log)) for sweep in sweeps for mem in common for log in sweep.rows[mem].knob}
    found = {clock for clock in found if lowest <= clock <= highest}
    found |= set(range(top, lowest - 1, -step_mhz)) | set(range(top, highest + 1, step_mhz))
    if len(found) > MOST_CLOCKS:
        raise UsageError(f"a driver lists {MOST_CLOCKS} SM clocks at most, not {len(found)}; take larger steps than {step_mhz} MHz")
    return tuple(sorted(found, reverse=True))
