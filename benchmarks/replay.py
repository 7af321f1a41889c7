"""Recurring jobs replayed from the traces that Zeus' authors published; every run, stop, retry and slice
is charged.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from workbench.search.batch_size.history import MOST_RUNS, Evidence, Run, Space
from workbench.search.batch_size.knowledge_gradient import KnowledgeGradient
from workbench.search.batch_size.policy import BatchSizePolicy, Proposal
from workbench.search.objective import Objective, ZeusCost

from .clocks_grids import EMPTY

# What counts as reached, and how many epochs a run may take (Zeus, NSDI'23, table 1, and its artifact).
TARGETS = {
    "cifar100": 0.6, "imagenet": 0.65, "squad": 84.0, "librispeech": 40.0, "movielens-1m": 0.41,
    "sentiment140": 0.84,
}
MAX_EPOCHS = {
    "cifar100": 100, "imagenet": 100, "squad": 6, "librispeech": 16, "movielens-1m": 100, "sentiment140": 10,
}
SLICE_S = 3.0  # 1 s to settle, 2 s measured: 0.4 % error with a counter that moves ten times per second
SLICE_ERROR = 0.005
TRIES = 20  # per recurrence, of policies that retry until one reaches the target


@dataclass(frozen=True)
class Training:
    """One training of the trace: epochs to the target (inf: never)."""

    epochs: float


@dataclass(frozen=True)
class Job:
    """A workload on a GPU, from its traces."""

    workload: str
    gpu: str
    space: Space
    epoch_time_s: np.ndarray
    power_w: np.ndarray
    paths: list[list[Training]]
    max_power_w: float

    @property
    def name(self) -> str:
        return f"{self.workload} {self.gpu}"

    @property
    def horizon(self) -> int:
        return 2 * len(self.space.batch_sizes) * len(self.space.power_limits_w)

    def costs(self, objective: Objective) -> np.ndarray:
        """Cost of an epoch by batch size and limit; inf where the trace has none."""
        costs = objective.cost(self.epoch_time_s, self.epoch_time_s * self.power_w)
        return np.where(np.isnan(costs), np.inf, costs)

    def epoch(self, arm: int, column: int) -> tuple[float, float]:
        """Seconds and joules of an epoch."""
        time_s = float(self.epoch_time_s[arm, column])
        return time_s, time_s * float(self.power_w[arm, column])

    @cached_property
    def mean_run_epochs(self) -> np.ndarray:
        """Mean epochs of a run that nothing stops, whether it reaches the target or not."""
        return np.array(
            [np.mean([min(path.epochs, self.space.max_epochs) for path in paths]) for paths in self.paths]
        )

    def measured_at(self, arm: int, column: int) -> int:
        """The column itself, or the nearest limit with a measurement of the batch size, which replaces the
        requested one.
        """
        there = np.flatnonzero(~np.isnan(self.epoch_time_s[arm]))
        limits = np.asarray(self.space.power_limits_w)
        return int(there[np.argmin(np.abs(limits[there] - limits[column]))])

    def mean_epochs(self) -> np.ndarray:
        """Mean epochs to the target, failed runs repeated until one reaches it."""
        out = []
        for paths in self.paths:
            done = [min(p.epochs, self.space.max_epochs) for p in paths]
            reached = sum(p.epochs <= self.space.max_epochs for p in paths)
            out.append(sum(done) / reached if reached else math.inf)
        return np.array(out)

    def expected(self, objective: Objective) -> np.ndarray:
        """Expected cost of a recurrence by batch size and limit."""
        return np.asarray(self.costs(objective) * self.mean_epochs()[:, None])


def load(data: Path) -> list[Job]:
    """All workload-GPU pairs of the traces; those whose files or trainings are not there are left out.

    Batch sizes without trainings or without any measured epoch are dropped, and so are limits at which no
    batch size was measured.
    """
    needed = ("policy_baseline_setup.csv", "summary_train.csv")
    if not all((data / "zeus" / name).is_file() for name in needed):
        return []
    setup = pl.read_csv(data / "zeus" / "policy_baseline_setup.csv")
    train = pl.read_csv(data / "zeus" / "summary_train.csv", infer_schema_length=None, null_values=EMPTY)
    jobs = []
    for row in setup.iter_rows(named=True):
        measured = data / "zeus" / f"summary_power_{row['gpu']}.csv"
        if not measured.is_file() or row["workload"] not in TARGETS:
            continue
        job = _job(row, pl.read_csv(measured, infer_schema_length=None, null_values=EMPTY), train)
        if isinstance(job, str):
            print(f"{row['workload']} {row['gpu']} is left out: {job}")
        else:
            jobs.append(job)
    return jobs


def _job(row: dict[str, Any], power: pl.DataFrame, train: pl.DataFrame) -> Job | str:
    """The job of a row of the set-up, or why there is none."""
    workload, default = row["workload"], int(row["b0"])
    mine = train.filter(pl.col("dataset") == workload)
    if mine.is_empty():
        return "no training of it was recorded"
    power = power.filter((pl.col("dataset") == workload) & (pl.col("optimizer") == mine["optimizer"][0]))
    batch_sizes = [int(b) for b in str(row["batch_sizes"]).split()]
    limits = [float(p) for p in str(row["power_limits"]).split()]
    times = np.full((len(batch_sizes), len(limits)), np.nan)
    watts = times.copy()
    for b, limit, time_s, power_w in power.select(
        "batch_size", "power_limit", "time_per_epoch", "average_power"
    ).drop_nulls().iter_rows():
        if b in batch_sizes and limit in limits:
            times[batch_sizes.index(b), limits.index(limit)] = time_s
            watts[batch_sizes.index(b), limits.index(limit)] = power_w
    paths = [_trainings(mine.filter(pl.col("batch_size") == b), workload) for b in batch_sizes]
    arms = [i for i, each in enumerate(paths) if each and not np.isnan(times[i]).all()]
    columns = [i for i in range(len(limits)) if not np.isnan(times[arms, i]).all()]
    kept = tuple(batch_sizes[i] for i in arms)
    if default not in kept:
        return f"its default batch size, {default}, has no trainings or no measured epochs"
    space = Space(
        kept, default, tuple(limits[i] for i in columns), MAX_EPOCHS[workload], TARGETS[workload], row["gpu"]
    )
    times, watts = times[np.ix_(arms, columns)], watts[np.ix_(arms, columns)]
    found = Job(workload, row["gpu"], space, times, watts, [paths[i] for i in arms], float(row["max_power"]))
    arm = kept.index(default)
    if np.isnan(times[arm, int(np.argmax(space.power_limits_w))]):
        return f"its default batch size, {default}, was not measured at {max(space.power_limits_w):g} W"
    if found.mean_epochs()[arm] == math.inf:
        return f"no training at its default batch size, {default}, reaches the target"
    return found


def _trainings(mine: pl.DataFrame, workload: str) -> list[Training]:
    target = TARGETS[workload]
    each = []
    for _, run in mine.group_by(["run"], maintain_order=True):
        rows = run.select("target_metric", "target_epoch").drop_nulls()
        reached = (float(epoch) for level, epoch in rows.iter_rows() if abs(level - target) < 1e-9)
        each.append(Training(next(reached, math.inf)))
    return each


class World:
    """One seed of one job: draws that are the same for every contestant, and the bill.

    Raises:
        ValueError: a batch size that was measured at no power limit.
    """

    def __init__(self, job: Job, seed: int, runs: int) -> None:
        for size, times_s in zip(job.space.batch_sizes, job.epoch_time_s, strict=True):
            if np.isnan(times_s).all():
                raise ValueError(f"{job.name}: batch size {size} was measured at no power limit")
        rng = np.random.default_rng([seed, 1])
        self.job = job
        self.draws = [rng.integers(len(paths), size=2 * runs + 2 * TRIES) for paths in job.paths]
        self.noise = 1 + SLICE_ERROR * rng.standard_normal((2, *job.epoch_time_s.shape))
        self.used = [0] * len(job.paths)

    def path(self, arm: int) -> Training:
        """The next training at a batch size: the k-th run at it is the same for all contestants."""
        k = self.used[arm]
        self.used[arm] += 1
        return self.job.paths[arm][int(self.draws[arm][k % len(self.draws[arm])])]


@dataclass
class Bill:
    """Costs of one contestant by recurrence, and its final choice in each.

    `luck` is the cost of runs that could not be stopped beyond the mean of their configuration, which no
    policy can influence. It is zero on average, so costs without it separate policies with fewer seeds.
    `runs` are all runs of a recurrence, `tries` its different batch sizes. `lost` are recurrences that ended
    without the target: each is charged a training, at the mean cost of another recurrence.
    """

    cost: list[float] = field(default_factory=list)
    time_s: list[float] = field(default_factory=list)
    energy_j: list[float] = field(default_factory=list)
    chosen: list[tuple[int, int]] = field(default_factory=list)
    luck: list[float] = field(default_factory=list)
    runs: list[int] = field(default_factory=list)
    tries: list[int] = field(default_factory=list)
    lost: list[bool] = field(default_factory=list)
    log: list[str] = field(default_factory=list)


def replay(
    policy: BatchSizePolicy, job: Job, objective: Objective, seed: int, recurrences: int, *,
    evidence: Evidence | None = None, log: bool = False, swap: tuple[int, Job] | None = None,
    profile_by_epoch: bool = False,
) -> Bill:
    """Let a policy run a recurring job.

    Args:
        evidence: Earlier knowledge from other jobs.
        swap: Recurrence from which on the job is another one (drift).
        profile_by_epoch: Profile as Zeus' simulator does, the first epoch split equally over the limits.
    """
    world = World(job, seed, recurrences)
    most = MOST_RUNS if isinstance(policy, KnowledgeGradient) else TRIES
    evidence = evidence or Evidence(job.space)
    rng = np.random.default_rng([seed, 2])
    bill = Bill()
    for recurrence in range(recurrences):
        if swap is not None and recurrence == swap[0]:
            world = World(swap[1], seed, recurrences)
        before = (evidence.spent_time_s, evidence.spent_energy_j)
        arm = limit = tries = 0
        luck, sizes = 0.0, set()
        state = ""
        while tries < most and state != "reached":
            proposal = policy.ask(evidence, objective, rng)
            arm = evidence.index[proposal.batch_size]
            if proposal.purpose == "slice":
                _slice(world, evidence, arm, evidence.column(proposal.power_limit_w))
                if log:
                    bill.log.append(f"{recurrence} slice {proposal.batch_size}")
                continue
            tries += 1
            sizes.add(arm)
            run, limit = _run(world, evidence, policy, objective, proposal, profile_by_epoch)
            run = replace(run, recurrence=recurrence)
            if proposal.stop_after_epochs >= job.space.max_epochs and proposal.stop_after_cost == math.inf:
                luck += (run.epochs - world.job.mean_run_epochs[arm]) * float(
                    objective.cost(*world.job.epoch(arm, limit))
                )
            evidence.add(run)
            if log:
                stop = f"{run.state} {run.epochs:g} stop {proposal.stop_after_epochs:.1f}"
                bill.log.append(f"{recurrence} {proposal.batch_size} {stop} {proposal.reason}")
            state = run.state
        time_s, energy_j = evidence.spent_time_s - before[0], evidence.spent_energy_j - before[1]
        if state != "reached":
            owed_s, owed_j = _owed(world.job, arm, limit)
            time_s, energy_j = time_s + owed_s, energy_j + owed_j
        bill.time_s.append(time_s)
        bill.energy_j.append(energy_j)
        bill.cost.append(float(objective.cost(time_s, energy_j)))
        bill.chosen.append((arm, limit))
        bill.luck.append(luck)
        bill.runs.append(tries)
        bill.tries.append(len(sizes))
        bill.lost.append(state != "reached")
    return bill


def _owed(job: Job, arm: int, column: int) -> tuple[float, float]:
    """Seconds and joules of another recurrence, in the mean: at what was run last where that ever gets to
    the target, else at the default batch size and the highest limit.
    """
    if math.isinf(job.mean_epochs()[arm]):
        arm = job.space.batch_sizes.index(job.space.default)
        column = job.measured_at(arm, int(np.argmax(job.space.power_limits_w)))
    time_s, energy_j = job.epoch(arm, column)
    epochs = float(job.mean_epochs()[arm])
    return epochs * time_s, epochs * energy_j


def _slice(world: World, evidence: Evidence, arm: int, column: int) -> None:
    at = world.job.measured_at(arm, column)
    time_s, power_w = world.job.epoch_time_s[arm, at], world.job.power_w[arm, at]
    spent = min(SLICE_S, time_s)
    evidence.add_slice(spent, spent * power_w)
    limit = evidence.space.power_limits_w[column]
    evidence.add_profile(
        arm, limit, time_s * world.noise[0, arm, column], power_w * world.noise[1, arm, column]
    )


def _run(
    world: World, evidence: Evidence, policy: BatchSizePolicy, objective: Objective, proposal: Proposal,
    by_epoch: bool,
) -> tuple[Run, int]:
    job = world.job
    arm = evidence.index[proposal.batch_size]
    path = world.path(arm)
    there = ~np.isnan(job.epoch_time_s[arm])
    done = time_s = energy_j = 0.0
    if proposal.power_limit_w is None:
        times, watts = job.epoch_time_s[arm][there], job.power_w[arm][there]
        spent = times / len(times) if by_epoch else np.minimum(SLICE_S, times / len(times))
        done, time_s, energy_j = (
            float((spent / times).sum()), float(spent.sum()), float((spent * watts).sum()),
        )
        noise = np.ones_like(world.noise) if by_epoch else world.noise
        for i in np.flatnonzero(there):
            limit_w = evidence.space.power_limits_w[int(i)]
            evidence.add_profile(
                arm, limit_w, job.epoch_time_s[arm, i] * noise[0, arm, i],
                job.power_w[arm, i] * noise[1, arm, i],
            )
        costs = evidence.epoch_costs(objective)[arm]
        descending = np.argsort(-np.asarray(evidence.space.power_limits_w))
        column = int(descending[int(np.nanargmin(costs[descending]))])
    else:
        column = evidence.column(proposal.power_limit_w)
    column = job.measured_at(arm, column)
    profile = (time_s, energy_j)
    each_s = job.epoch_time_s[arm, column]
    each_j = each_s * job.power_w[arm, column]
    each_cost = float(objective.cost(each_s, each_j))
    last = min(path.epochs, float(job.space.max_epochs))
    epochs, state = 0.0, "stopped"
    while True:
        if (
            proposal.stop_after_cost < math.inf
        ):  # the paper's rule: before the epoch that would cross, known from the profile
            whole = min(proposal.stop_after_cost // each_cost, last)
            if whole == 0:
                return Run(arm, "stopped", 0.0, 0.0, 0.0), column
            state = (
                "reached"
                if whole >= path.epochs
                else "failed"
                if whole >= job.space.max_epochs
                else "stopped"
            )
            epochs = whole
            break
        epochs += 1
        if epochs >= path.epochs:
            state = "reached"
            break
        if epochs >= job.space.max_epochs:
            state = "failed"
            break
        if epochs >= proposal.stop_after_epochs:
            break
    time_s += (epochs - done) * each_s
    energy_j += (epochs - done) * each_j
    limit_w = evidence.space.power_limits_w[column]
    return Run(arm, state, epochs, time_s, energy_j, *profile, power_limit_w=limit_w), column


def zeus_cost(job: Job, eta: float) -> ZeusCost:
    """The paper's objective for a job."""
    return ZeusCost(eta, job.max_power_w)
