"""What trying batch sizes and failures have cost, and why a batch size is not tried: for a person to read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..objective import Objective
from .epochs import EpochPosterior
from .history import Evidence
from .knowledge_gradient import run_costs

GOOD_CASE = 0.02  # quantile of what a batch size may cost
LEAST_SAVING = 0.01  # share of the cost, below which a batch size is no cheaper


@dataclass(frozen=True, slots=True)
class ExplorationCost:
    """What was paid beyond runs at the batch size that is best so far.

    Attributes:
        tries_runs: By runs at other batch sizes and slices, in runs of the best.
        lost_runs: How many runs did not reach the target.
        lost_cost: What these cost, in the objective's unit.
    """

    tries_runs: float
    lost_runs: int
    lost_cost: float


def exploration_cost(
    evidence: Evidence, belief: EpochPosterior, objective: Objective
) -> ExplorationCost | None:
    """What trying and failing has cost in all on this card; None before a run has reached the target."""
    expected = run_costs(belief, objective).mean(axis=0)
    reached = np.flatnonzero(evidence.count)
    if not len(reached):
        return None
    arm = int(reached[np.argmin(expected[reached])])
    best, tries, lost, lost_cost = float(expected[arm]), 0.0, 0, 0.0
    for run, local in zip(evidence.runs, evidence.local, strict=True):
        if not local:
            continue
        cost = float(objective.cost(run.time_s, run.energy_j))
        if run.state != "reached":
            lost, lost_cost = lost + 1, lost_cost + cost
        if run.arm != arm:
            tries += cost - best * (run.state == "reached")
    tries += sum(float(objective.cost(time_s, energy_j)) for time_s, energy_j in evidence.slices)
    return ExplorationCost(max(tries, 0.0) / best, lost, lost_cost)


def why_untried(evidence: Evidence, belief: EpochPosterior, objective: Objective) -> dict[str, list[int]]:
    """Batch sizes that have not been run and hold no hope, by the reason as a clause about them."""
    costs = run_costs(belief, objective)
    reached = evidence.count > 0
    if not reached.any():
        return {}
    best = float(costs[:, reached].mean(axis=0).min())
    ran = {run.arm for run in evidence.current}
    too_long = (belief.log_epochs > np.log(belief.max_epochs)).mean(axis=0)
    low = np.quantile(costs, GOOD_CASE, axis=0) / best
    found: dict[str, list[int]] = {}
    for arm, batch_size in enumerate(evidence.space.batch_sizes):
        if arm in ran or low[arm] < 1 - LEAST_SAVING:
            continue
        why = "even in a good case no cheaper"
        if too_long[arm] > 0.5:
            why = f"likely to need more than the {belief.max_epochs:g} epochs that a run may take"
        found.setdefault(why, []).append(batch_size)
    return found
