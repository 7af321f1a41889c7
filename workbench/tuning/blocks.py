"""Measures one block: a setting arrives, whole iterations are counted, and their energy is read."""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass

import numpy as np

from ..experiments.iteration_sources import (
    Counter,
    Guess,
    Marked,
    MarkSource,
    Trace,
    in_phases,
    stretches,
)
from ..experiments.stretch_energy import READ_S, WAIT_S, energy
from ..records import Configuration, Observation
from ..search.clocks.descent import Plan
from ..search.clocks.knowledge import SURE_SD
from .gpus import TunedGpus

Array = np.ndarray

LATE = 1.3  # times a usual iteration: a late batch or a checkpoint, which says nothing of a setting
ENOUGH = 12  # iterations, from which on it is known what is usual
LAST = 400  # of them that are looked at
UNCOUNTED_S = 2.0  # of a block without iterations, at least
PATIENCE_S = 60.0  # without an iteration, beyond three times the expected time of a block
ENDLESS = 1.6  # times what is too slow: such an iteration need not end
PARTS = 8  # of a stretch, whose mean powers show the error of the mean
KINDS = ("tokens", "samples")  # of work, the preferred one first


@dataclass(frozen=True)
class WorkUnit:
    """The unit that blocks count.

    Attributes:
        name: A name in `workbench.work()`, such as "tokens"; empty for iterations.
        amount: Of an average iteration; blocks count multiples of it, so that a count of 1 is an iteration.
    """

    name: str = ""
    amount: float = 1.0


ITERATIONS = WorkUnit()


class Usual:
    """Which iterations are usual; different lengths of batches are."""

    def __init__(self) -> None:
        self._lengths_s = np.empty(0)

    def mask(self, lengths: Array) -> Array:
        """Whether each of these is usual, given those before."""
        self._lengths_s = np.concatenate([self._lengths_s, lengths])[-LAST:]
        if len(self._lengths_s) < ENOUGH:
            return np.asarray(lengths < 3 * np.median(lengths))
        usual = lengths < LATE * np.quantile(self._lengths_s, 0.9)
        # Where most are long, the work or the setting is another.
        return usual if usual.mean() > 0.5 else np.ones(len(lengths), bool)


class BlockMeter:
    """A block that is under way: call `advance` until `block` is set, or `failed` has the reason without one.

    Args:
        gpus: At the plan's setting since `asked_s`.
        source: What counts iterations; None where nothing does.
        plan: Least length.
        unit: Of its count.
        usual: Of the present work.
        unit_s: Expected time of an iteration.
        guess: The same with its limits, for a power trace.
        origin_s: Where the block's times begin.

    Attributes:
        other_unit: A unit that the job reports now, other than `unit`; then there is no block.
        unseen: Why no iteration was counted; the block then has its power alone.
    """

    def __init__(
        self, gpus: TunedGpus, source: Marked | Trace | None, plan: Plan, usual: Usual, *, asked_s: float,
        unit_s: float, guess: Guess | None, origin_s: float, unit: WorkUnit = ITERATIONS,
    ) -> None:
        self.plan, self.failed, self.asked_s = plan, "", asked_s
        self.unit = unit
        self.other_unit: WorkUnit | None = None
        self.unseen = ""
        self._gpus, self._source, self._usual = gpus, source, usual
        self._unit_s, self._guess, self._origin_s = unit_s, guess, origin_s
        self.begin_s: float | None = None  # since when the setting is active
        self._ends: Array | None = None  # of its iterations
        self._lengths: tuple[float, float, float] = 0.0, 0.0, 0.0  # count, scatter, error of the mean
        self._span: tuple[float, float] | None = None
        self.block: Observation | None = None

    @property
    def over(self) -> bool:
        return self.block is not None or bool(self.failed)

    def advance(self, now_s: float, *, idle: bool = False) -> None:
        """Look once; a GPU that is idle has no iterations, and a block without marks begins after that."""
        if self.begin_s is None:
            settled_s = self._gpus.settled_s(now_s)
            if settled_s is None:
                return
            self.begin_s = max(settled_s, self.asked_s)
        if self.over or now_s < self.begin_s:
            return
        if idle and self._span is None and (self._source is None or isinstance(self._source, Trace)):
            self.begin_s = now_s
        if self._span is None:
            if isinstance(self._source, Trace):
                self._count_trace(now_s, self._source)
            elif self._source is not None:
                self._count_marks(now_s, self._source)
            elif now_s - self.begin_s >= max(self.plan.seconds, UNCOUNTED_S):
                self._span = self.begin_s, now_s
        elif now_s >= self._span[1] + READ_S:
            self._read(now_s)

    def _count_marks(self, now_s: float, source: Marked) -> None:
        plan, begin_s = self.plan, self.begin_s
        assert begin_s is not None
        ends, counts = steps(source, begin_s, now_s, self.unit)
        count, took_s = float(counts.sum()), float(ends[-1] - ends[0]) if len(ends) else 0.0
        slow = len(counts) >= 2 and took_s > plan.too_slow_s * count
        since_s = now_s - (float(ends[-1]) if len(ends) else begin_s)
        if not len(counts) and since_s > ENDLESS * plan.too_slow_s:
            self._span, self._lengths = (now_s - since_s, now_s), (1.0, 0.0, 0.2)
            return
        if not slow and (count < plan.count or took_s < plan.seconds):
            if now_s - begin_s > 3 * (plan.seconds + plan.count * self._unit_s) + PATIENCE_S:
                self.failed = f"{count:.0f} iterations ended in {now_s - begin_s:.0f} s"
            return
        self._ends, self._span = ends, (float(ends[0]), float(ends[-1]))

    def _count_trace(self, now_s: float, source: Trace) -> None:
        assert self.begin_s is not None
        assert self._guess is not None
        if now_s - self.begin_s < max(self.plan.seconds, (self.plan.count + 2) * self._guess.seconds):
            return
        run = source.run(self.begin_s, now_s, self._guess)
        if run is None:
            self.unseen = f"no iteration is seen in {now_s - self.begin_s:.0f} s"
            self._span = self.begin_s, now_s
            return
        error = math.hypot(run.sd_s / run.iteration_s, run.common_sd)
        self._span = self.begin_s, now_s
        self._lengths = (now_s - self.begin_s) / run.iteration_s, 0.0, error

    def _read(self, now_s: float) -> None:
        assert self._span is not None
        (begin_s, end_s), (count, scatter, error) = self._span, self._lengths
        spans, time_s = [self._span], end_s - begin_s
        if self._ends is not None and self._source is not None and not isinstance(self._source, Trace):
            if isinstance(self._source, MarkSource):
                unit = work_unit(self._source, begin_s, end_s)
                if unit.name != self.unit.name:
                    self.other_unit, self.failed = unit, f"it counts {unit.name or 'iterations'} now"
                    return
            ends, counts = steps(self._source, begin_s, end_s, self.unit)
            lengths = np.diff(ends) / np.maximum(counts, 1e-9)
            usual = self._usual.mask(lengths) & ~in_phases(self._source, ends)
            if not usual.any():
                self.failed = "only unusual iterations"
                return
            spans = [(float(ends[first]), float(ends[last])) for first, last in stretches(usual)]
            count, time_s = float(counts[usual].sum()), float((lengths * counts)[usual].sum())
            mean_s = time_s / count
            scatter = float(np.std(lengths[usual])) / mean_s if usual.sum() > 2 else 0.0
        found = [(energy(self._gpus.meter, *span), span[1] - span[0]) for span in spans]
        known = [(each, length_s) for each, length_s in found if each is not None]
        if not known:
            if now_s > end_s + WAIT_S:
                self.failed = ("the energy could not be measured: its counter does not move, or too few "
                               "readings fell around the block")
            return
        read_s = sum(length_s for _, length_s in known)
        scale = time_s / read_s
        rows = self._gpus.recorder.rows(self._gpus.devices[0].uuid, begin_s, end_s)
        clock_mhz = clock_under_load(rows, -SURE_SD)
        energy_j = scale * sum(each.energy_j for each, _ in known)
        error_j = scale * math.hypot(*(each.uncertainty_j / 1.96 for each, _ in known))
        if not count:
            error_j = math.hypot(error_j, energy_j * power_error(self._gpus, begin_s, end_s))
        self.block = Observation(
            Configuration(self._gpus.space.settings[self.plan.row]), count, time_s, energy_j, error_j,
            scatter, error, 0.5 * (begin_s + end_s) - self._origin_s, clock_mhz,
            self._source.name if self._source is not None else "",
        )


def clock_under_load(rows: Array, sds: float) -> float:
    """Mean SM clock (MHz) while busy, and so many standard errors; NaN where it is not reported."""
    clocks = rows["sm_clock_mhz"][~(rows["utilisation"] <= 0)]
    clocks = clocks[np.isfinite(clocks)]
    return float(clocks.mean() + sds * clocks.std() / math.sqrt(len(clocks))) if len(clocks) else math.nan


def steps(
    source: Marked, from_s: float, to_s: float, unit: WorkUnit = ITERATIONS
) -> tuple[Array, Array]:
    """Ends of iterations between two times, and the units of work between one end and the next.

    Args:
        source: Of the ends.
        from_s, to_s: The two times.
        unit: Of the work.
    """
    if isinstance(source, Counter):
        times, values = source.observed
        inside = (times >= from_s) & (times <= to_s)
        return times[inside], np.diff(values[inside])
    ends = source.since(from_s, to_s)
    if unit.name and len(ends) > 1:
        return ends, _work_between(source, unit.name, ends) / unit.amount
    return ends, np.ones(max(len(ends) - 1, 0))


def work_unit(source: MarkSource, from_s: float, to_s: float) -> WorkUnit:
    """The kind of work that was reported for each iteration between two times; else iterations.

    The same kind is chosen each time; tokens before samples, and another kind only if it is the only one.
    """
    ends = source.since(from_s, to_s)
    names = [name for name in KINDS if name in source.work] or [*source.work][: 2 - len(source.work)]
    usual = ~in_phases(source, ends)
    for name in names:
        amounts = _work_between(source, name, ends)[usual] if len(ends) > 1 else np.empty(0)
        if len(amounts) and (amounts > 0).all():
            return WorkUnit(name, float(amounts.mean()))
    return ITERATIONS


def _work_between(source: MarkSource, name: str, ends: Array) -> Array:
    """Work between one end of an iteration and the next. A report covers the time since the one before it,
    so that it may come before or after the step of its iteration. Padding is work too.
    """
    amounts = np.zeros(len(ends) - 1)
    for each in (name, "padding") if name == "tokens" else (name,):
        moments, done = source.work.get(each, ((), ()))
        low = max(bisect.bisect_left(moments, ends[0]) - 1, 0)
        high = bisect.bisect_right(moments, ends[-1]) + 1
        times, values = np.array(moments[low:high]), np.array(done[low:high])
        if len(times):
            total = np.cumsum(values[: len(times)])
            amounts += np.diff(np.interp(ends, times[: len(total)], total - total[0]))
    return amounts


def power_error(gpus: TunedGpus, from_s: float, to_s: float) -> float:
    """Relative standard error of a mean power: what parts of the stretch differ by."""
    borders = np.linspace(from_s, to_s, PARTS + 1)
    means = np.zeros(PARTS)
    for device in gpus.devices:
        rows = gpus.recorder.rows(device.uuid, from_s, to_s)
        rows = rows[np.isfinite(rows["power_w"])]
        part = np.clip(np.searchsorted(borders, rows["time_s"], side="right") - 1, 0, PARTS - 1)
        number = np.bincount(part, minlength=PARTS)
        sums = np.bincount(part, rows["power_w"], PARTS)
        means += np.where(number > 0, sums / np.maximum(number, 1), np.nan)
    means = means[np.isfinite(means)]
    return float(means.std(ddof=1) / means.mean() / math.sqrt(len(means))) if len(means) > 2 else 1.0
