"""Hyper-parameters of our policy for the replay: chosen with the scored workload left out.

The grid is small on purpose: what else the belief holds was set once, see docs/recurring.md.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from workbench.search.epochs import EpochPrior
from workbench.search.knowledge_gradient import KnowledgeGradient

from .replay import Job, replay, zeus_cost

TUNING_SEEDS = 1000  # those of the tuning begin here, those of the scores at 0

OWN_SD, WALL = (0.15, 0.2), (0.05, 0.1)
_FOUR = (0.04, 0.08, 0.15, 0.3)
SCATTER = {  # scatters of single runs, and their weights
    "calm": (_FOUR, (0.35, 0.35, 0.2, 0.1)),
    "fat": (_FOUR, (0.2, 0.3, 0.3, 0.2)),
    "wide": ((0.02, 0.05, 0.1, 0.2, 0.4), (0.15, 0.3, 0.3, 0.2, 0.05)),
}

# What `--tune` chose: for each workload by the other five, and by all six. The latter are the defaults of the library.
CHOSEN = {
    "cifar100": "own 0.15, wall 0.05, scatter wide",
    "imagenet": "own 0.15, wall 0.05, scatter calm",
    "librispeech": "own 0.15, wall 0.05, scatter wide",
    "movielens-1m": "own 0.15, wall 0.1, scatter fat",
    "sentiment140": "own 0.15, wall 0.05, scatter wide",
    "squad": "own 0.15, wall 0.1, scatter calm",
    "": "own 0.15, wall 0.05, scatter wide",
}


def grid() -> dict[str, EpochPrior]:
    """Every variant, by name."""
    out = {}
    for own_sd, wall, scatter in product(OWN_SD, WALL, SCATTER):
        noise, weights = SCATTER[scatter]
        out[f"own {own_sd:g}, wall {wall:g}, scatter {scatter}"] = EpochPrior(own_sd=own_sd, wall=wall, noise=noise, noise_weights=weights)
    return out


def tuned(workload: str, chosen: dict[str, str], *, safe: bool = False) -> KnowledgeGradient:
    """Our policy with what was chosen without a look at this workload."""
    return KnowledgeGradient(safe=safe, prior=grid()[chosen[workload]])


def leave_one_out(jobs: list[Job], seeds: int) -> dict[str, Any]:
    """For every workload the variant with the least regret, in runs without luck, summed over the pairs of all other workloads."""
    regret: dict[str, dict[str, float]] = {}
    for name, prior in grid().items():
        regret[name] = {}
        for job in jobs:
            objective = zeus_cost(job, 0.5)
            bills = [replay(KnowledgeGradient(prior=prior), job, objective, TUNING_SEEDS + seed, job.horizon) for seed in range(seeds)]
            spent = np.mean([sum(bill.cost) - sum(bill.luck) for bill in bills])
            regret[name][job.name] = float(spent / job.expected(objective).min() - job.horizon)
        print(f"  {name:42s} {sum(regret[name].values()):.2f}", flush=True)

    def best(left_out: str) -> str:
        pairs = [job.name for job in jobs if job.workload != left_out]
        return min(regret, key=lambda name: sum(regret[name][pair] for pair in pairs))

    return {
        "regret_runs": regret,
        "chosen": {workload: best(workload) for workload in sorted({job.workload for job in jobs})} | {"": best("")},
    }
