"""Trainings alone and together, compared: slowdowns, energy of the same work, who used how much of it, each
with its error. Pure functions.

Every stretch that was watched is cut into blocks. A block has a length, an energy, and the iterations that
each job made in it (fractions count). The results (docs/explanation/sharing.md, "The figures") are ratios of
sums over blocks, and their errors come from leaving out one block after the other: the delete-one jackknife
for ratios (Efron, The Jackknife, the Bootstrap and Other Resampling Plans, SIAM 1982, ch. 3), stratified by
what ran, with Satterthwaite's degrees of freedom (Biometrics Bulletin 2, 1946).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest

import numpy as np
from scipy.special import ndtri, stdtrit

from ..errors import MeasurementError

Array = np.ndarray
FEWEST = 4  # blocks of a stage, below which their spread says too little
MOST = 12


@dataclass(frozen=True)
class Stage:
    """The stages in which some of the jobs ran.

    Attributes:
        members: Numbers of the jobs that ran.
        seconds: (b,) length of each block.
        energy_j: (b,) energy of the board in each.
        count: (b, n) iterations of each job of the set in each; 0 for who did not run.
        energy_error: Relative half width of the 95 % interval of all the energy, from the measurement itself.
        count_error: Relative standard deviation of the counts of each job that blocks do not show: of a
            period that was found in the power rather than marked.
    """

    members: tuple[int, ...]
    seconds: Array
    energy_j: Array
    count: Array
    energy_error: float = 0.0
    count_error: tuple[float, ...] = ()

    def without(self, block: int) -> Stage:
        seconds, energy_j, count = (
            np.delete(values, block, axis=0) for values in (self.seconds, self.energy_j, self.count)
        )
        return Stage(self.members, seconds, energy_j, count)

    def scaled(self, energy: float = 1.0, counts: Sequence[float] | None = None) -> Stage:
        factors = np.ones(self.count.shape[1]) if counts is None else np.asarray(counts)
        return Stage(self.members, self.seconds, self.energy_j * energy, self.count * factors)


@dataclass(frozen=True)
class ConfidenceInterval:
    """A number and the half width of its 95 % interval."""

    value: float
    error: float

    @property
    def low(self) -> float:
        return self.value - self.error

    @property
    def high(self) -> float:
        return self.value + self.error


@dataclass(frozen=True)
class SharingEffect:
    """What sharing does to a set of jobs.

    Attributes:
        alone_s: Of each job: seconds of an iteration alone; `together_s` next to the others.
        slowdown: The second over the first.
        alone_j: Joules of the board for an iteration alone; `attributed_j` its part of the board's together.
        saving: Share of energy that the same work costs less together than one after the other; below 0:
            more.
        progress: Iterations per second together over alone, summed over the jobs: above 1 the set is done
            sooner than one after the other.
        together_w: Mean power of the board.
        board_j: Energy of the board in the shared stages; the jobs' parts of it (`parts_j`) add up to
            it.
    """

    alone_s: tuple[ConfidenceInterval, ...]
    together_s: tuple[ConfidenceInterval, ...]
    slowdown: tuple[ConfidenceInterval, ...]
    alone_j: tuple[ConfidenceInterval, ...]
    attributed_j: tuple[ConfidenceInterval, ...]
    saving: ConfidenceInterval
    progress: ConfidenceInterval
    together_w: ConfidenceInterval
    board_j: float
    parts_j: tuple[float, ...]


def compare(
    alone: Sequence[Stage], together: Stage, idle_w: float = 0.0, *, level: float = 0.95
) -> SharingEffect:
    """A set of jobs alone and together.

    Args:
        alone: Of each job, in the order of the columns of `count`.
        together: Of all of them.
        idle_w: Power of the board with nothing to do, which jobs that share it have in equal parts.
        level: How often the intervals, of which errors are half the width, hold the truth.

    Raises:
        MeasurementError: fewer than `FEWEST` blocks of a stage, or a job that made no iteration in one.
    """
    stages = (*alone, together)
    for number, stage in enumerate(stages):
        who = "together" if number == len(alone) else f"of job {number + 1} alone"
        if len(stage.seconds) < FEWEST:
            raise MeasurementError(
                f"{len(stage.seconds)} blocks {who} can be used, {FEWEST} are needed; measure for longer "
                "(stage_s=...)"
            )
        for job in stage.members:
            if not stage.count[:, job].sum() > 0:
                raise MeasurementError(
                    f"job {job + 1} made no iteration in the measured stages {who}; measure for longer "
                    "(stage_s=...)"
                )

    def ask(function: Callable[[Sequence[Stage]], float]) -> ConfidenceInterval:
        return _estimate(function, stages, level)

    jobs = range(len(alone))

    def each(function: Callable[[int, Sequence[Stage]], float]) -> tuple[ConfidenceInterval, ...]:
        return tuple(ask(partial(function, job)) for job in jobs)

    return SharingEffect(
        alone_s=each(lambda job, s: _iteration_s(s[job], job)),
        together_s=each(lambda job, s: _iteration_s(s[-1], job)),
        slowdown=each(lambda job, s: _iteration_s(s[-1], job) / _iteration_s(s[job], job)),
        alone_j=each(lambda job, s: _iteration_j(s[job], job)),
        attributed_j=each(lambda job, s: _part(s, job, idle_w) / s[-1].count[:, job].sum()),
        saving=ask(
            lambda s: (
                1.0 - s[-1].energy_j.sum()
                / sum(s[-1].count[:, job].sum() * _iteration_j(s[job], job) for job in jobs)
            )
        ),
        progress=ask(lambda s: sum(_iteration_s(s[job], job) / _iteration_s(s[-1], job) for job in jobs)),
        together_w=ask(lambda s: s[-1].energy_j.sum() / s[-1].seconds.sum()),
        board_j=float(together.energy_j.sum()),
        parts_j=tuple(_part(stages, job, idle_w) for job in jobs),
    )


def _iteration_s(stage: Stage, job: int) -> float:
    return float(stage.seconds.sum() / stage.count[:, job].sum())


def _iteration_j(stage: Stage, job: int) -> float:
    return float(stage.energy_j.sum() / stage.count[:, job].sum())


def _part(stages: Sequence[Stage], job: int, idle_w: float) -> float:
    """Energy of the board together that is one job's: idle power in equal parts, the rest by progress."""
    together, n = stages[-1], len(stages) - 1
    board_j = float(together.energy_j.sum())
    idle_j = min(idle_w * float(together.seconds.sum()), board_j)
    weights = [
        float(together.count[:, each].sum())
        * max(0.0, _iteration_j(stages[each], each) - idle_w * _iteration_s(stages[each], each))
        for each in range(n)
    ]
    whole = sum(weights)
    return idle_j / n + (board_j - idle_j) * (weights[job] / whole if whole > 0 else 1.0 / n)


def _estimate(
    function: Callable[[Sequence[Stage]], float], stages: Sequence[Stage], level: float = 0.95
) -> ConfidenceInterval:
    """A function of the stages with the half width of the interval that holds the truth so often."""
    value = function(stages)
    variance, squares = 0.0, 0.0

    def changed(place: int, stage: Stage) -> float:
        return function([stage if number == place else each for number, each in enumerate(stages)])

    for place, stage in enumerate(stages):
        n = len(stage.seconds)
        left = np.array([changed(place, stage.without(block)) for block in range(n)])
        own = (n - 1) / n * float(np.sum((left - left.mean()) ** 2))
        variance += own
        squares += own**2 / (n - 1)
    freedom = variance**2 / squares if squares > 0 else math.inf
    students = float(stdtrit(min(freedom, 1e6), 0.5 + level / 2)) if variance > 0 else 0.0
    blocks_half = students * math.sqrt(variance)
    deviations = float(ndtri(0.5 + level / 2))
    widened = deviations / float(ndtri(0.975))  # the error of the energy is given for 95 %
    other = 0.0  # squares of half widths that blocks do not show
    for place, stage in enumerate(stages):
        if stage.energy_error > 0:
            other += (widened * (changed(place, stage.scaled(1.0 + stage.energy_error)) - value)) ** 2
        for job, error in enumerate(stage.count_error):
            if error > 0:
                factors = [1.0 + error if number == job else 1.0 for number in range(stage.count.shape[1])]
                other += (deviations * (changed(place, stage.scaled(counts=factors)) - value)) ** 2
    return ConfidenceInterval(value, math.sqrt(blocks_half**2 + other))


# from marks and moments to blocks


def edges(marks_s: Sequence[Array], from_s: float, to_s: float, least_s: float) -> Array:
    """Borders of blocks in which every one of these jobs is known to have iterated.

    Args:
        marks_s: Ends of iterations of each job, ascending.
        from_s, to_s: The stretch, without its ends beyond the first and last marks.
        least_s: How long a block is at least: a few updates of the sensors.

    Returns:
        Empty where there are too few marks.
    """
    inside = [marks[(marks >= from_s) & (marks <= to_s)] for marks in marks_s]
    if any(len(marks) < 2 for marks in inside):
        return np.empty(0)
    first_s = max([from_s, *(float(marks[0]) for marks in inside)])
    last_s = min([to_s, *(float(marks[-1]) for marks in inside)])
    # Of blocks much shorter than an iteration each knows nothing of its own: what is counted is interpolated.
    longest_s = max([(float(marks[-1] - marks[0]) / (len(marks) - 1)) for marks in inside], default=0.0)
    blocks = min(MOST, int((last_s - first_s) / max(least_s, longest_s)))
    return np.linspace(first_s, last_s, blocks + 1) if blocks >= 1 and last_s > first_s else np.empty(0)


def counts(marks_s: Array, borders_s: Array) -> Array:
    """Iterations between borders, those that a border cuts in proportion."""
    return np.diff(np.interp(borders_s, marks_s, np.arange(len(marks_s), dtype=float)))


def disturbed(borders_s: Array, phases: Sequence[tuple[float, float]]) -> Array:
    """Which blocks overlap an evaluation, a checkpoint or whatever else is no iteration."""
    found = np.zeros(max(0, len(borders_s) - 1), bool)
    for start_s, end_s in phases:
        found |= (borders_s[:-1] < end_s) & (borders_s[1:] > start_s)
    return found


def pooled(stages: Sequence[Stage]) -> Stage:
    """Stages of the same jobs as one. A period's error is the larger one: it may be off the same way in
    all of them.
    """
    whole_j = sum(float(stage.energy_j.sum()) for stage in stages)
    error_j = math.sqrt(sum((stage.energy_error * float(stage.energy_j.sum())) ** 2 for stage in stages))
    errors = tuple(max(each) for each in zip_longest(*(stage.count_error for stage in stages), fillvalue=0.0))
    return Stage(
        stages[0].members, np.concatenate([stage.seconds for stage in stages]),
        np.concatenate([stage.energy_j for stage in stages]),
        np.concatenate([stage.count for stage in stages]), error_j / whole_j if whole_j > 0 else 0.0, errors,
    )
