"""Hyper-parameters of our policy for the replay: chosen with the scored workload left out.

The grid is small on purpose: what else the belief holds was set once, see docs/validation/recurring.md.
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from itertools import product
from typing import Any

import numpy as np

from workbench.search.batch_size.epochs import EpochPrior
from workbench.search.batch_size.knowledge_gradient import KnowledgeGradient

from .replay import Job, replay, zeus_cost

TUNING_SEEDS = 1000  # those of the tuning begin here, those of the scores at 0

OWN_SD, WALL, FORECAST_SD = (0.05, 0.1), (0.05, 0.1), (0.2, 0.3)

# What `--tune` chose: for each workload by the other five, and by all six. The latter are the defaults of the
# library.
CHOSEN = {
    "cifar100": "own 0.05, wall 0.05, forecast 0.3",
    "imagenet": "own 0.05, wall 0.05, forecast 0.3",
    "librispeech": "own 0.05, wall 0.05, forecast 0.3",
    "movielens-1m": "own 0.05, wall 0.1, forecast 0.3",
    "sentiment140": "own 0.05, wall 0.05, forecast 0.3",
    "squad": "own 0.05, wall 0.05, forecast 0.3",
    "": "own 0.05, wall 0.05, forecast 0.3",
}


def grid() -> dict[str, EpochPrior]:
    """Every variant, by name."""
    return {
        f"own {own_sd:g}, wall {wall:g}, forecast {forecast_sd:g}": EpochPrior(
            own_sd=own_sd, wall=wall, forecast_sd=forecast_sd
        )
        for own_sd, wall, forecast_sd in product(OWN_SD, WALL, FORECAST_SD)
    }


def tuned(workload: str, chosen: dict[str, str], *, safe: bool = False) -> KnowledgeGradient:
    """Our policy with what was chosen without a look at this workload."""
    return KnowledgeGradient(safe=safe, prior=grid()[chosen.get(workload, chosen[""])])


def leave_one_out(jobs: list[Job], seeds: int, workers: int = 1) -> dict[str, Any]:
    """For every workload the variant with the least regret, in runs without luck, summed over the pairs of
    all other workloads.
    """
    regret: dict[str, dict[str, float]] = {}
    pool = ProcessPoolExecutor(workers) if workers > 1 else None
    for name, prior in grid().items():
        tasks = [prior] * len(jobs), jobs, [seeds] * len(jobs)
        found = list(pool.map(_regret, *tasks) if pool else map(_regret, *tasks))
        regret[name] = {job.name: value for job, value in zip(jobs, found, strict=True)}
        print(f"  {name:42s} {sum(regret[name].values()):.2f}", flush=True)
    if pool:
        pool.shutdown()

    def best(left_out: str) -> str:
        pairs = [job.name for job in jobs if job.workload != left_out]
        return min(regret, key=lambda name: sum(regret[name][pair] for pair in pairs))

    return {
        "regret_runs": regret,
        "chosen": {workload: best(workload) for workload in sorted({job.workload for job in jobs})}
        | {"": best("")},
    }


def _regret(prior: EpochPrior, job: Job, seeds: int) -> float:
    """Mean over seeds that are not scored."""
    objective = zeus_cost(job, 0.5)
    bills = [
        replay(KnowledgeGradient(prior=prior), job, objective, TUNING_SEEDS + seed, job.horizon)
        for seed in range(seeds)
    ]
    spent = np.mean([sum(bill.cost) - sum(bill.luck) for bill in bills])
    return float(spent / job.expected(objective).min() - job.horizon)
