"""Random jobs as the replay plays them, and what a policy makes of many."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec

import numpy as np

from workbench.search.batch_size.history import Space
from workbench.search.batch_size.knowledge_gradient import KnowledgeGradient
from workbench.search.batch_size.policy import BatchSizePolicy
from workbench.search.batch_size.zeus import ZeusPolicy

from .fixtures.recurring_job import RandomJob
from .replay import Bill, Job, Training, replay, zeus_cost
from .replay_contestants import Default

GENERATORS = ("recurring_jobs", "recurring_jobs_second")  # in `fixtures`; the last that is there is scored
OTHER_DRAWS = 5000  # added to the seeds, for the default against itself
TRAININGS = 400  # that are drawn of each batch size; which of them a run is, chance decides


@dataclass(frozen=True)
class Played:
    """What one policy did on one job and one seed."""

    regret: float  # in runs of the best configuration of that time
    last_gap: float  # of the last quarter
    runs_max: int  # in one recurrence
    tries_max: int  # of which were not repeats of a batch size in the same recurrence
    runs: int
    lost: int  # recurrences
    costs: list[float]


@lru_cache(maxsize=4)
def generated(name: str, count: int, seed: int) -> list[RandomJob]:
    """Jobs of the generator of that name in `fixtures`."""
    return list(import_module(f"benchmarks.fixtures.{name}").jobs(count, seed))


def as_job(random: RandomJob, seed: int) -> Job:
    """The same job as a record of so many trainings of each batch size, which are all that there is."""
    paths = []
    for arm, batch_size in enumerate(random.batch_sizes):
        rng = np.random.default_rng([seed, arm, 3])
        drawn = [random.epochs(batch_size, rng) for _ in range(TRAININGS)]
        paths.append([Training(math.inf if e is None else math.ceil(e)) for e in drawn])
    space = Space(
        random.batch_sizes, random.default_batch_size, random.power_limits_w, random.max_epochs, None, None
    )
    power_w = random.epoch_energy_j / random.epoch_time_s
    return Job(random.name, "random", space, random.epoch_time_s, power_w, paths, max(random.power_limits_w))


def expected(job: Job) -> np.ndarray:
    """Expected cost of a recurrence by batch size and limit, each run stopped at its best moment.

    Where runs fail at times, who stops one that takes too long pays less than all its epochs.
    """
    least = []
    for paths in job.paths:
        epochs = np.sort([path.epochs for path in paths])
        reached = epochs[epochs <= job.space.max_epochs]
        if not len(reached):
            least.append(math.inf)
            continue
        before, many = np.cumsum(reached), np.arange(1, len(reached) + 1)
        least.append(float(((before + (len(epochs) - many) * reached) / many).min()))
    return np.asarray(job.costs(zeus_cost(job, 0.5)) * np.array(least)[:, None])


def play(policy: BatchSizePolicy, random: RandomJob, seed: int) -> tuple[Played, Bill]:
    """One policy on one job."""
    job = as_job(random, seed)
    objective = zeus_cost(job, 0.5)
    drift = random.drift
    new = as_job(drift.job, seed + 1) if drift else None
    by_epoch = not isinstance(policy, KnowledgeGradient)
    bill = replay(
        policy, job, objective, seed, random.recurrences, profile_by_epoch=by_epoch,
        swap=(drift.recurrence, new) if drift and new else None,
    )
    costs = [expected(job)] * random.recurrences
    if drift and new:
        costs[drift.recurrence :] = [expected(new)] * (random.recurrences - drift.recurrence)
    least = np.array([each.min() for each in costs])
    chosen = np.array([each[at] for each, at in zip(costs, bill.chosen, strict=True)])
    last = -(-random.recurrences // 4)
    # What never reaches the target costs ever so much; ten times the best is bad enough to show.
    gap = float(np.minimum(chosen[-last:] / least[-last:], 10).mean() - 1)
    regret = float((np.array(bill.cost) / least).sum() - random.recurrences)
    return Played(
        regret, gap, max(bill.runs), max(bill.tries), sum(bill.runs), sum(bill.lost), list(bill.cost)
    ), bill


def compare(random: RandomJob, seed: int) -> dict[str, float]:
    """Ours and Zeus' policy on one job."""
    ours, _ = play(KnowledgeGradient(), random, seed)
    zeus, _ = play(ZeusPolicy(), random, seed)
    return {
        "regret_runs": ours.regret, "regret_runs_zeus": zeus.regret, "last_gap": ours.last_gap,
        "last_gap_zeus": zeus.last_gap, "runs_max": ours.runs_max, "tries_max": ours.tries_max,
        "runs": ours.runs, "lost": ours.lost, "recurrences": random.recurrences,
    }


def safe_over_default(random: RandomJob, seeds: int) -> tuple[float, float]:
    """Highest cost of safe mode over the default with the same random seeds, from the fifth recurrence on, of
    the mean over seeds of all costs so far. Also the same of the default with other seeds, which is chance.
    """

    def spent(policy: BatchSizePolicy, first: int = 0) -> np.ndarray:
        costs = [play(policy, random, first + seed)[0].costs for seed in range(seeds)]
        return np.asarray(np.cumsum(costs, axis=1).sum(axis=0))

    usual = spent(Default())
    safe, chance = spent(KnowledgeGradient(safe=True)), spent(Default(), OTHER_DRAWS)
    return float((safe / usual)[4:].max()), float((chance / usual)[4:].max())


def generator() -> str:
    """The name of the generator that is scored: the last that is there."""
    return [name for name in GENERATORS if find_spec(f"benchmarks.fixtures.{name}")][-1]


def summary(rows: list[dict[str, float]], safe: list[float], chance: list[float]) -> dict[str, float]:
    """The figures of random jobs, as plain numbers."""
    ours = np.array([row["regret_runs"] for row in rows])
    # A job on which chance alone made Zeus' policy cheaper than the best configuration has no ratio.
    zeus = np.array([row["regret_runs_zeus"] for row in rows])
    gaps = np.array([row["last_gap"] for row in rows])
    ratios = np.where(zeus > 0, ours / np.where(zeus > 0, zeus, 1), np.where(ours > zeus, np.inf, 0))
    most = 5 * float(np.median(np.maximum(zeus, 0))) or 1.0
    return {
        "random_jobs_ratio": float(ours.sum() / zeus.sum()),
        # No job counts for more than five of the usual: where Zeus' policy is lost it loses hundreds of runs.
        "random_jobs_ratio_capped": float(np.minimum(ours, most).sum() / np.minimum(zeus, most).sum()),
        "random_jobs_ratio_median": float(np.median(ratios)),
        "random_jobs_worse_than_zeus": float((ours >= zeus).mean()),
        "random_jobs_gap_share": float((gaps > 0.02).mean()),
        "random_jobs_gap_share_zeus": float(np.mean([row["last_gap_zeus"] > 0.02 for row in rows])),
        "runs_in_a_recurrence_max": float(max(row["runs_max"] for row in rows)),
        "batch_sizes_in_a_recurrence_max": float(max(row["tries_max"] for row in rows)),
        "runs_per_recurrence_max": max(row["runs"] / row["recurrences"] for row in rows),
        "recurrences_lost_share": float(
            sum(row["lost"] for row in rows) / sum(row["recurrences"] for row in rows)
        ),
        "safe_mode_random_mean": float(np.mean(safe)),
        "safe_mode_random_share_within": float((np.array(safe) <= 1.02).mean()),
        "safe_mode_random_max": max(safe),
        "default_on_other_draws_mean": float(np.mean(chance)),
        "default_on_other_draws_share_within": float((np.array(chance) <= 1.02).mean()),
    }
