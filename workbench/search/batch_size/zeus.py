"""The paper's policy (Zeus, NSDI'23, sections 4.3 and 4.4): pruning exploration, then Gaussian Thompson
sampling.

There are two rounds: from the default batch size downwards until one fails, then upwards until one fails. The
next round starts at the cheapest survivor. After that, there is one Gaussian arm per survivor, with the
variance of its own results and a flat prior. Runs are stopped before the epoch in which they would cost more
than `beta` times the least cost of a recurrence so far.

Differences from Zeus' own code unless `faithful` is set: costs are epochs x cost of an epoch where that is
profiled, so the profiling in a first run does not count against its batch size for ever. A run that did not
reach its target is never booked as cheaper than its stopping cost. A batch size that crashes is pruned. If
none survives, the default does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..objective import Objective
from .history import Evidence
from .policy import Proposal


@dataclass(frozen=True)
class _Booked:
    arm: int
    cost: float
    reached: bool


@dataclass(frozen=True)
class ZeusPolicy:
    """Pruning exploration and Thompson sampling, with the paper's constants; `benchmarks.recurring` compares
    them with Zeus' own code.

    Attributes:
        beta: A run may cost so many times the least cost of a recurrence.
        window: Results per batch size that count, newest; 0 is all (section 4.4, data drift).
        faithful: Book costs as Zeus' own code does.
    """

    beta: float = 2.0
    window: int = 0
    faithful: bool = False

    def ask(self, evidence: Evidence, objective: Objective, rng: np.random.Generator) -> Proposal:
        booked = self._book(evidence, objective)
        least = _least_cost(evidence, objective)
        if evidence.in_flight.any():
            # Section 4.4: concurrent submissions run at the best known configuration, without exploration.
            reached = [b for b in booked if b.reached]
            arm = min(reached, key=lambda b: b.cost).arm if reached else evidence.default
            why = "another run is in flight; best batch size so far"
        else:
            wanted, survivors = self._explore(evidence, booked)
            if wanted is not None:
                arm, why = wanted, "pruning exploration"
            else:
                arm, why = self._sample(booked, survivors or [evidence.default], rng), "Thompson sampling"
        limit = evidence.best_limit_w(arm, objective)
        return Proposal(
            evidence.space.batch_sizes[arm], limit, stop_after_epochs=evidence.space.max_epochs,
            stop_after_cost=self.beta * least, reason=why,
        )


    def _book(self, evidence: Evidence, objective: Objective) -> list[_Booked]:
        booked = []
        least, spent, recurrence = math.inf, 0.0, None
        costs = evidence.epoch_costs(objective)
        epoch_cost = np.where(np.isnan(costs), np.inf, costs).min(axis=1)
        for run, local in zip(evidence.runs, evidence.local, strict=True):
            if not local:
                continue
            if run.recurrence != recurrence:
                spent, recurrence = 0.0, run.recurrence
            raw = cost = float(objective.cost(run.time_s, run.energy_j))
            reached = run.state == "reached"
            if not self.faithful and math.isfinite(epoch_cost[run.arm]) and objective.degree == 1:
                cost = epoch_cost[run.arm] * run.epochs
            if not reached:
                threshold = self.beta * least
                if run.epochs == 0 and run.state == "stopped":
                    cost = 100.0 * threshold  # it could not even run one epoch
                elif not self.faithful and math.isfinite(threshold):
                    cost = max(cost, threshold)
            booked.append(_Booked(run.arm, cost, reached))
            spent += raw
            if reached:
                least = min(least, spent)
        return booked

    def _explore(self, evidence: Evidence, booked: list[_Booked]) -> tuple[int | None, list[int]]:
        """The batch size that pruning waits for, or None and the survivors."""
        results = iter(booked)
        arms, start = list(range(evidence.arms)), evidence.default
        for _ in range(2):
            good: list[int] = []
            least = math.inf
            here = arms.index(start)
            for direction in (arms[here::-1], arms[here + 1 :]):
                for arm in direction:
                    # Results of other batch sizes come from concurrent runs, which do not affect the pruning.
                    result = next((result for result in results if result.arm == arm), None)
                    if result is None:
                        return arm, good
                    if not result.reached:
                        break
                    good.append(arm)
                    if result.cost < least:
                        least, start = result.cost, arm
            if not good:
                return None, []
            arms = sorted(good)
        return None, arms

    def _sample(self, booked: list[_Booked], survivors: list[int], rng: np.random.Generator) -> int:
        rewards = {
            arm: [-b.cost for b in booked if b.arm == arm][-self.window if self.window else 0 :]
            for arm in survivors
        }
        for i in rng.choice(len(survivors), len(survivors), replace=False):
            arm = survivors[int(i)]
            if len(rewards[arm]) < 2:
                return arm
        drawn = []
        for arm in survivors:
            values = np.asarray(rewards[arm])
            drawn.append(rng.normal(values.mean(), math.sqrt(values.var() / len(values))))
        return survivors[int(np.argmax(drawn))]


@dataclass(frozen=True)
class DefaultBatchSize:
    """Always the default batch size, at the best power limit once that is profiled."""

    def ask(self, evidence: Evidence, objective: Objective, rng: np.random.Generator) -> Proposal:
        limit = evidence.best_limit_w(evidence.default, objective)
        return Proposal(
            evidence.space.default, limit, stop_after_epochs=evidence.space.max_epochs,
            reason="the default batch size",
        )


def _least_cost(evidence: Evidence, objective: Objective) -> float:
    """Least cost of a recurrence, including failed trials (as in Zeus' simulator)."""
    least, spent, recurrence = math.inf, 0.0, None
    for run, local in zip(evidence.runs, evidence.local, strict=True):
        if local:
            if run.recurrence != recurrence:
                spent, recurrence = 0.0, run.recurrence
            spent += float(objective.cost(run.time_s, run.energy_j))
            if run.state == "reached":
                least = min(least, spent)
    return least
