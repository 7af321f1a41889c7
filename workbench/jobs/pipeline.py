"""The time-energy frontier of one training iteration of a pipeline, and the clocks for a chosen time.

    plans = frontier(profile, microbatches=8, blocking_power_w=80.0)
    plan = plans.at(max_slowdown=0.05)                    a clock per forward and backward of every microbatch
    plan = plans.at(max_slowdown=0.05, per="stage")       one clock per stage

Perseus (Chung et al., SOSP'24, arXiv 2312.06902) poses this time-cost trade-off. Here it is a linear
programme over measured clocks. A stage that waits draws the blocking power, so an instruction costs its
energy minus blocking power times its duration, and an iteration costs blocking power times stages times its
duration on top.
"""

from __future__ import annotations

import graphlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import polars as pl
from scipy.optimize import Bounds, LinearConstraint, linprog, milp
from scipy.sparse import coo_array, hstack

from .._html import HtmlFacts
from ..errors import UsageError, checked, listed, near, shown, type_name
from ..search.frontier import check, on_frontier
from ..search.objective import check_slowdown

INSTRUCTIONS = ("forward", "backward")
SCHEDULES = ("1f1b", "gpipe")
POINTS = 20  # plans of a frontier: steps of 1 % where the slowest useful iteration is 20 % slower
_ALIASES = {"frequency": "sm_clock_mhz", "time": "time_s", "energy": "energy_j"}  # of Perseus' files


class _Task(NamedTuple):
    """One instruction of one microbatch."""

    stage: int
    instruction: int  # of `INSTRUCTIONS`
    microbatch: int


@dataclass(frozen=True)
class _Options:
    """Measured clocks of one instruction of one stage, in rising order, and their cost.

    Attributes:
        clock_mhz, time_s, energy_j: (clocks,).
        cost_j: Energy minus blocking power times time; below zero is possible.
        pareto: Clocks that no other beats in time and cost, fastest first.
        hull: Those of them on the lower convex hull.
    """

    clock_mhz: np.ndarray
    time_s: np.ndarray
    energy_j: np.ndarray
    cost_j: np.ndarray
    pareto: np.ndarray
    hull: np.ndarray


@dataclass(frozen=True, slots=True)
class PipelinePlan(HtmlFacts):
    """Clocks of one iteration of a pipeline, and what they lead to.

    Attributes:
        time_s: Duration of the iteration.
        energy_j: Of all stages, with their waiting.
        bound_j: No choice of measured clocks within the same time limit needs less.
        slowdown: Share of additional time to the highest clocks; below 0 is faster.
        saving: Share of energy saved against the highest clocks.
        clocks: One row per forward and backward: stage, microbatch, instruction, sm_clock_mhz, start_s,
            time_s, energy_j (without waiting).
    """

    time_s: float
    energy_j: float
    bound_j: float
    slowdown: float
    saving: float
    clocks: pl.DataFrame

    @property
    def stages(self) -> pl.DataFrame:
        """One row per stage: its lowest and highest clock and its time of work and of waiting."""
        return self.clocks.group_by("stage", maintain_order=True).agg(
            pl.col("sm_clock_mhz").min().alias("lowest_mhz"),
            pl.col("sm_clock_mhz").max().alias("highest_mhz"),
            pl.col("time_s").sum().alias("work_s"),
            (self.time_s - pl.col("time_s").sum()).alias("wait_s"),
        )


@dataclass(frozen=True)
class PipelineFrontier:
    """Plans of one pipeline; `frontier` makes it.

    Attributes:
        stages: Number of stages.
        microbatches: Per iteration.
        blocking_power_w: Power of a stage's GPU while it waits.
        schedule: Of `SCHEDULES`.
    """

    stages: int
    microbatches: int
    blocking_power_w: float
    schedule: str
    _options: dict[tuple[int, int], _Options] = field(repr=False)

    @cached_property
    def default(self) -> PipelinePlan:
        """The plan with the highest clock everywhere, the reference of slowdowns and savings."""
        return self._plan([-1] * len(self._tasks), self._relaxed(self._reference[0])[0])

    @cached_property
    def fastest_s(self) -> float:
        """Time of an iteration with the fastest clock of every forward and backward."""
        return max(self._ends([float(each.time_s.min()) for each in self._each]))

    @cached_property
    def points(self) -> pl.DataFrame:
        """The frontier, fastest first: time_s, energy_j, bound_j, slowdown and saving of its plans.

        It ends where a longer iteration would cost more energy.
        """
        slowest_s = max(self._ends(self._relaxed(math.inf)[2].tolist()))
        plans = [self.at(iteration_s=each) for each in np.linspace(self.fastest_s, slowest_s, POINTS)]
        names = ("time_s", "energy_j", "bound_j", "slowdown", "saving")
        frame = pl.DataFrame({name: [getattr(plan, name) for plan in plans] for name in names})
        return frame[on_frontier(frame["time_s"].to_numpy(), frame["energy_j"].to_numpy())]

    @checked
    def at(
        self, max_slowdown: float | None = None, *, iteration_s: float | None = None, per: str = "microbatch"
    ) -> PipelinePlan:
        """The plan with the least energy within a time limit.

        Args:
            max_slowdown: Allowed share of additional time to the highest clocks (0.05 is 5 %).
            iteration_s: The limit in seconds, in place of `max_slowdown`.
            per: "microbatch": a clock per forward and backward of every microbatch. "stage": one clock per
                stage.

        Raises:
            UsageError: Not exactly one limit, a limit that no clocks keep, or an unknown `per`.
        """
        if per not in ("microbatch", "stage"):
            raise UsageError(f"per={shown(per)}: choose 'microbatch' or 'stage'")
        if (max_slowdown is None) == (iteration_s is None):
            raise UsageError("give one of max_slowdown (0.05 is 5 %) and iteration_s (seconds)")
        if iteration_s is None:
            limit_s = self._reference[0] * (1 + (check_slowdown(max_slowdown) or 0.0))
        else:
            limit_s = iteration_s
        if not limit_s >= self.fastest_s:
            raise UsageError(
                f"iteration_s={limit_s:.4g} s is below the fastest iteration of these profiles, "
                f"{self.fastest_s:.6g} s; give at least that, or fewer microbatches"
            )
        bound_j, relaxed_s, durations_s = self._relaxed(limit_s)
        choice = self._per_stage(limit_s) if per == "stage" else self._rounded(durations_s, relaxed_s)
        return self._plan(choice, bound_j)

    # the graph of one iteration

    @cached_property
    def _before(self) -> dict[_Task, list[_Task]]:
        """Every task with the tasks that must end before it, in an order in which they can run."""
        last, before = self.stages - 1, {}
        for stage in range(self.stages):
            previous: list[_Task] = []
            warm_up = min(self.microbatches, last - stage if self.schedule == "1f1b" else self.microbatches)
            order = [_Task(stage, 0, each) for each in range(warm_up)]
            for each in range(self.microbatches):
                order += [_Task(stage, 0, warm_up + each)] if warm_up + each < self.microbatches else []
                order.append(_Task(stage, 1, each))
            for task in order:
                other = stage - 1 if task.instruction == 0 else stage + 1
                before[task] = previous + ([task._replace(stage=other)] if 0 <= other <= last else [])
                previous = [task]
        return {task: before[task] for task in graphlib.TopologicalSorter(before).static_order()}

    @cached_property
    def _tasks(self) -> list[_Task]:
        return list(self._before)

    @cached_property
    def _edges(self) -> list[list[int]]:
        """Numbers of the tasks before each task."""
        number = {task: row for row, task in enumerate(self._tasks)}
        return [[number[each] for each in self._before[task]] for task in self._tasks]

    @cached_property
    def _each(self) -> list[_Options]:
        """The measured clocks of every task."""
        return [self._options[task[:2]] for task in self._tasks]

    def _ends(self, durations_s: Sequence[float]) -> list[float]:
        """Earliest end of every task, in seconds."""
        ends: list[float] = []
        for before, duration_s in zip(self._edges, durations_s, strict=True):
            ends.append(max((ends[each] for each in before), default=0.0) + duration_s)
        return ends

    def _latest(self, durations_s: Sequence[float], limit_s: float) -> list[float]:
        """Latest end of every task in an iteration of `limit_s`."""
        latest = [limit_s] * len(durations_s)
        for row in reversed(range(len(latest))):
            for each in self._edges[row]:
                latest[each] = min(latest[each], latest[row] - durations_s[row])
        return latest

    def _durations(self, choice: Sequence[int]) -> list[float]:
        return [float(each.time_s[clock]) for each, clock in zip(self._each, choice, strict=True)]

    @cached_property
    def _reference(self) -> tuple[float, float]:
        """Seconds and joules of an iteration with the highest clock everywhere."""
        return self._cost([-1] * len(self._tasks))

    def _cost(self, choice: Sequence[int]) -> tuple[float, float]:
        """Seconds and joules of an iteration with one clock per task."""
        time_s = max(self._ends(self._durations(choice)))
        own_j = sum(float(each.cost_j[clock]) for each, clock in zip(self._each, choice, strict=True))
        return time_s, own_j + self.blocking_power_w * self.stages * time_s

    def _plan(self, choice: Sequence[int], bound_j: float) -> PipelinePlan:
        """The schedule of one clock per task, every task as early as it can begin."""
        ends = self._ends(self._durations(choice))
        rows = [
            (task.stage, task.microbatch, INSTRUCTIONS[task.instruction], int(each.clock_mhz[clock]),
             end_s - each.time_s[clock], each.time_s[clock], each.energy_j[clock])
            for task, each, clock, end_s in zip(self._tasks, self._each, choice, ends, strict=True)
        ]
        names = ("stage", "microbatch", "instruction", "sm_clock_mhz", "start_s", "time_s", "energy_j")
        clocks = pl.DataFrame(rows, schema=names, orient="row").sort("stage", "start_s")
        (time_s, energy_j), (default_s, default_j) = self._cost(choice), self._reference
        return PipelinePlan(
            time_s, energy_j, bound_j, time_s / default_s - 1, 1 - energy_j / default_j, clocks
        )

    # the least energy within a time limit

    def _relaxed(self, limit_s: float) -> tuple[float, float, np.ndarray]:
        """Energy, iteration time and durations (tasks,) if clocks between the measured ones existed.

        A linear programme. Its variables are, for each task, the seconds it takes within each segment of its
        hull, whose slopes rise so that the cheapest segments are taken first; then the starts of the tasks;
        then the time of the iteration.
        """
        count = len(self._tasks)
        widths = [np.diff(each.time_s[each.hull]) for each in self._each]
        drops = [np.diff(each.cost_j[each.hull]) for each in self._each]
        width_s, owner = np.concatenate(widths), np.repeat(np.arange(count), [len(each) for each in widths])
        shortest = np.array([each.time_s.min() for each in self._each])
        shape = count, len(owner)
        segments = coo_array((np.ones(len(owner)), (owner, np.arange(len(owner)))), shape=shape).tocsr()
        # A task ends before each of its successors begins, and before the iteration ends (row `count`).
        pairs = [(each, row) for row, before in enumerate(self._edges) for each in before]
        first, second = np.array(pairs + [(row, count) for row in range(count)]).T
        one, steps = np.ones(len(first)), np.arange(len(first))
        starts = coo_array((np.r_[one, -one], (np.r_[steps, steps], np.r_[first, second])))
        found = linprog(
            np.r_[np.concatenate(drops) / width_s, np.zeros(count), self.blocking_power_w * self.stages],
            A_ub=hstack([segments[first], starts]).tocsr(),
            b_ub=-shortest[first],
            bounds=np.c_[np.zeros(len(owner) + count + 1), np.r_[width_s, np.full(count, np.inf), limit_s]],
        )
        fixed_j = sum(float(each.cost_j[each.hull[0]]) for each in self._each)
        durations_s = shortest + segments @ found.x[: len(owner)]
        return float(found.fun) + fixed_j, min(float(found.x[-1]), limit_s), durations_s

    def _rounded(self, durations_s: np.ndarray, limit_s: float) -> list[int]:
        """A measured clock per task, near its duration.

        The better of two starts: the slowest clock within the duration, and the nearest one on the hull,
        which can be late.
        """
        pairs = list(zip(self._each, durations_s, strict=True))
        starts = (
            [_slowest(*pair) for pair in pairs],
            [int(each.hull[np.argmin(abs(each.time_s[each.hull] - wanted))]) for each, wanted in pairs],
        )
        choices = [self._repaired(start, limit_s) for start in starts]
        return min(choices, key=lambda choice: self._cost(choice)[1])

    def _repaired(self, choice: list[int], limit_s: float) -> list[int]:
        """The choice with faster clocks where a task is late, then slower ones where it has slack.

        Late tasks come first, the one with the least cost per second. Then the largest saving comes first.
        """
        while True:
            present = self._durations(choice)
            ends, latest = self._ends(present), self._latest(present, limit_s)
            best = (False, 0.0, -1, -1)
            for row, (each, clock) in enumerate(zip(self._each, choice, strict=True)):
                slack_s = latest[row] - ends[row]
                other = _slowest(each, present[row] + slack_s)
                gain_j = float(each.cost_j[clock] - each.cost_j[other])
                if slack_s < 0 and other != clock:
                    gain_j /= present[row] - float(each.time_s[other])  # joules per second
                if other != clock:
                    best = max(best, (slack_s < 0, gain_j, row, other))
            if best[2] < 0:
                return choice
            choice[best[2]] = best[3]

    def _per_stage(self, limit_s: float) -> list[int]:
        """One clock per stage within the limit, as an index per task, of the least energy (to 0.1 %).

        An integer programme over the stages' clocks. The graph comes in path by path: the critical path of
        each solution limits the next one, until a solution has a known critical path.
        """
        forward, backward = ([self._options[stage, each] for stage in range(self.stages)] for each in (0, 1))
        owner = np.repeat(np.arange(self.stages), [len(each.clock_mhz) for each in forward])
        times_s = np.array([np.concatenate([each.time_s for each in part]) for part in (forward, backward)])
        costs_j = self.microbatches * sum(
            np.concatenate([each.cost_j for each in part]) for part in (forward, backward)
        )
        firsts = np.searchsorted(owner, np.arange(self.stages))
        one_each = np.c_[owner == np.arange(self.stages)[:, None], np.zeros(self.stages)]
        rules = [LinearConstraint(one_each, 1, 1)]
        paths: set[bytes] = set()
        while True:
            found = milp(
                np.r_[costs_j, self.blocking_power_w * self.stages],
                integrality=np.r_[np.ones(len(owner)), 0],
                bounds=Bounds(0, np.r_[np.ones(len(owner)), limit_s]),
                constraints=rules,
                options={"mip_rel_gap": 1e-3},
            )
            if found.x is None:
                raise UsageError(
                    f"no single clock per stage keeps an iteration within {limit_s:.4g} s; give at least "
                    f"{self._reference[0]:.6g} s, the time at the highest clocks, or per='microbatch'"
                )
            taken = found.x[:-1] > 0.5
            clocks = np.flatnonzero(taken) - firsts
            choice = [int(clocks[task.stage]) for task in self._tasks]
            path = self._critical(self._durations(choice))
            if path.tobytes() not in paths:
                paths.add(path.tobytes())
                length_s = (path[owner] * times_s.T).sum(axis=1)
                rules.append(LinearConstraint(np.r_[length_s, -1.0][None], -np.inf, 0))
            elif max(self._ends(self._durations(choice))) <= limit_s:
                return choice
            else:  # late within the solver's tolerance: any other choice
                rules.append(LinearConstraint(np.r_[taken, False][None].astype(float), 0, self.stages - 1))

    def _critical(self, durations_s: Sequence[float]) -> np.ndarray:
        """Forwards and backwards of each stage on a longest path; shape (stages, 2)."""
        ends = self._ends(durations_s)
        counts = np.zeros((self.stages, 2))
        waiting = [int(np.argmax(ends))]
        while waiting:
            row = waiting.pop()
            counts[self._tasks[row][:2]] += 1
            waiting = [max(self._edges[row], key=ends.__getitem__)] if self._edges[row] else []
        return counts


@checked
def frontier(
    profile: pl.DataFrame, microbatches: int, *, blocking_power_w: float, schedule: str = "1f1b"
) -> PipelineFrontier:
    """The time-energy frontier of one training iteration of a pipeline.

    Args:
        profile: One row per stage (0 to stages - 1), instruction ("forward", "backward") and clock:
            `sm_clock_mhz` (or `frequency`), `time_s` (`time`) and `energy_j` (`energy`) of one microbatch on
            one GPU. Repeated rows count with their mean.
        microbatches: Per iteration.
        blocking_power_w: Power of a GPU while it waits for another stage.
        schedule: "1f1b", or "gpipe": all forwards, then all backwards.

    Raises:
        UsageError: A missing column, stage, instruction or clock, a value without meaning, or an unknown
            schedule.
    """
    if schedule not in SCHEDULES:
        raise UsageError(f"schedule={shown(schedule)} is unknown{near(schedule, SCHEDULES)}")
    if microbatches < 1:
        raise UsageError(f"microbatches={microbatches}: an iteration has 1 or more")
    if not 0 <= blocking_power_w < math.inf:
        raise UsageError(f"blocking_power_w={blocking_power_w:g} W: give the power of a waiting GPU in watts")
    means = _read(profile)
    stages = int(means["stage"].max()) + 1  # type: ignore[arg-type]
    options = {}
    for stage in range(stages):
        parts = [means.filter(stage=stage, instruction=each) for each in INSTRUCTIONS]
        forward, backward = (set(part["sm_clock_mhz"].to_list()) for part in parts)
        if not forward or forward != backward:
            single = listed(f"{each} MHz" for each in sorted(forward ^ backward))
            raise UsageError(
                f"stage {stage} of 0 to {stages - 1} has {len(forward)} clocks of its forward and "
                f"{len(backward)} of its backward; only one of them has {single}. Measure both at the same "
                "clocks, or remove those rows"
            )
        for number, part in enumerate(parts):
            options[stage, number] = _options_of(part, blocking_power_w)
    return PipelineFrontier(stages, microbatches, blocking_power_w, schedule, options)


def _read(profile: pl.DataFrame) -> pl.DataFrame:
    """The profile with our names, checked, one row per stage, instruction and clock, clocks rising."""
    if not isinstance(profile, pl.DataFrame):
        raise UsageError(f"the profile is a {type_name(profile)}; give a polars DataFrame")
    ours = [(old, new) for old, new in _ALIASES.items() if new not in profile.columns]
    table = profile.rename(dict(ours), strict=False)
    needed = ("stage", "instruction", *_ALIASES.values())
    if missing := [each for each in needed if each not in table.columns]:
        raise UsageError(f"the profile has no column {listed(missing)}; it has {listed(profile.columns)}")
    table = check(table)
    if wrong := set(table["instruction"].to_list()) - set(INSTRUCTIONS):
        raise UsageError(f"instruction {shown(wrong.pop())} is unknown; choose {listed(INSTRUCTIONS)}")
    keys = ["stage", "sm_clock_mhz"]
    try:
        table = table.with_columns(pl.col(keys).cast(pl.Int64))
    except pl.exceptions.PolarsError as error:
        raise UsageError(f"stages and clocks are whole numbers: {str(error).splitlines()[0]}") from error
    bad = table.filter(pl.any_horizontal(pl.col("stage").is_null() | (pl.col("stage") < 0),
                                         pl.col("sm_clock_mhz").is_null() | (pl.col("sm_clock_mhz") <= 0)))
    if len(bad):
        raise UsageError(
            f"{len(bad)} of {len(table)} rows have no stage from 0 or no clock above 0 MHz (stage "
            f"{bad['stage'][0]}, {bad['sm_clock_mhz'][0]} MHz); remove them or fill them in"
        )
    means = table.group_by("stage", "instruction", "sm_clock_mhz").agg(pl.col("time_s", "energy_j").mean())
    return means.sort("sm_clock_mhz")


def _slowest(options: _Options, time_s: float) -> int:
    """The cheapest clock that takes at most `time_s`, give or take a nanosecond."""
    place = int(np.searchsorted(options.time_s[options.pareto], time_s + 1e-9, side="right"))
    return int(options.pareto[max(place - 1, 0)])


def _options_of(part: pl.DataFrame, blocking_power_w: float) -> _Options:
    clock_mhz, time_s, energy_j = (part[each].to_numpy() for each in _ALIASES.values())
    cost_j = energy_j - blocking_power_w * time_s
    pareto = on_frontier(time_s, cost_j)
    hull: list[int] = []
    for each in pareto:  # Andrew's monotone chain
        while len(hull) > 1 and (cost_j[hull[-1]] - cost_j[hull[-2]]) * (time_s[each] - time_s[hull[-2]]) >= (
            cost_j[each] - cost_j[hull[-2]]
        ) * (time_s[hull[-1]] - time_s[hull[-2]]):
            hull.pop()
        hull.append(int(each))
    return _Options(clock_mhz, time_s, energy_j, cost_j, pareto, np.array(hull))
