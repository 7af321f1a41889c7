"""Who takes part in the replay also the workbench's own policies: Zeus' own code, Optuna's samplers,
grid search, doing nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np

from workbench.search.batch_size.history import Evidence
from workbench.search.batch_size.policy import Proposal
from workbench.search.objective import Objective


def least_cost(evidence: Evidence, objective: Objective) -> float:
    """The least cost of a recurrence, its failed tries included: what early stopping is measured against."""
    least, spent, recurrence = math.inf, 0.0, -1
    for run in evidence.runs:
        spent = (spent if run.recurrence == recurrence else 0.0) + float(
            objective.cost(run.time_s, run.energy_j)
        )
        recurrence = run.recurrence
        if run.state == "reached":
            least = min(least, spent)
    return least


def best_limit(evidence: Evidence, arm: int, objective: Objective) -> float | None:
    """The limit of the cheapest profiled epoch, the higher of equals; None to profile."""
    costs = evidence.epoch_costs(objective)[arm]
    if np.isnan(costs).all():
        return None
    order = np.argsort(-np.asarray(evidence.space.power_limits_w))
    return evidence.space.power_limits_w[int(order[np.nanargmin(costs[order])])]


@dataclass
class Default:
    """The default batch size at the highest limit: what a person has who does nothing."""

    name: str = "default"

    def ask(self, evidence: Evidence, objective: Objective, rng: np.random.Generator) -> Proposal:
        return Proposal(
            evidence.space.default, max(evidence.space.power_limits_w),
            stop_after_epochs=evidence.space.max_epochs,
        )


class _Told:
    """A peer that keeps state: it is reported the runs it has not seen yet, then asked."""

    def __init__(self, name: str, beta: float) -> None:
        self.name = name
        self.beta = beta
        self.seen = 0

    def tell(self, evidence: Evidence, arm: int, cost: float, reached: bool) -> None:
        raise NotImplementedError

    def pick(self, evidence: Evidence) -> int:
        raise NotImplementedError

    def ask(self, evidence: Evidence, objective: Objective, rng: np.random.Generator) -> Proposal:
        for run in evidence.runs[self.seen :]:
            cost = float(objective.cost(run.time_s, run.energy_j))
            if run.state == "stopped" and run.epochs == 0:
                cost = (
                    100 * self.beta * least_cost(evidence, objective)
                )  # as Zeus' simulator tells a try that could not run
            self.tell(evidence, run.arm, cost, run.state == "reached")
        self.seen = len(evidence.runs)
        arm = self.pick(evidence)
        return Proposal(
            evidence.space.batch_sizes[arm], best_limit(evidence, arm, objective),
            stop_after_epochs=evidence.space.max_epochs,
            stop_after_cost=self.beta * least_cost(evidence, objective),
        )


class ZeusOwn(_Told):
    """Zeus' own batch size optimizer, from the package `zeus`."""

    def __init__(self, seed: int, beta: float = 2.0, window: int = 0) -> None:
        super().__init__("Zeus' own code", beta)
        from zeus._legacy.policy.optimizer import PruningGTSBatchSizeOptimizer  # type: ignore[import-untyped]

        self.bso = PruningGTSBatchSizeOptimizer(seed=seed, window_size=window, verbose=False)
        self.job: Any = None

    def tell(self, evidence: Evidence, arm: int, cost: float, reached: bool) -> None:
        self.bso.observe(self.job, evidence.space.batch_sizes[arm], cost, reached)

    def pick(self, evidence: Evidence) -> int:
        if self.job is None:
            from zeus._legacy.job import Job  # type: ignore[import-untyped]

            self.job = Job(
                "replay", "replay", "replay", 0.0, evidence.space.max_epochs, evidence.space.default
            )
            self.bso.register_job(self.job, list(evidence.space.batch_sizes))
        return evidence.index[int(self.bso.predict(self.job))]


class OptunaPeer(_Told):
    """An Optuna sampler over the batch sizes as a list of choices or as an ordered index; costs of stopped
    runs count as they are.
    """

    def __init__(self, seed: int, sampler: str, beta: float = 2.0) -> None:
        super().__init__(f"Optuna {sampler}", beta)
        import optuna

        if sampler == "GP" and find_spec("torch") is None:
            raise ImportError("Optuna's Gaussian process sampler needs torch, which is not installed")
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        make = {"TPE": optuna.samplers.TPESampler, "GP": optuna.samplers.GPSampler}[sampler]
        self.study = optuna.create_study(sampler=make(seed=seed))
        self.trial: Any = None

    def tell(self, evidence: Evidence, arm: int, cost: float, reached: bool) -> None:
        # A sampler that minimises knows no censoring: a stopped run is reported as twice what it has cost, or
        # it would look cheap.
        self.study.tell(self.trial, cost if reached else 2 * cost)

    def pick(self, evidence: Evidence) -> int:
        first = self.trial is None
        if first:
            self.study.enqueue_trial({"arm": evidence.default})
        self.trial = self.study.ask()
        return int(self.trial.suggest_int("arm", 0, evidence.arms - 1))


class GridSearch(_Told):
    """Every batch size once, outwards from the default. A direction ends at a failure. Afterwards always the
    cheapest.
    """

    def __init__(self, beta: float = 2.0) -> None:
        super().__init__("grid search with pruning", beta)
        self.results: list[tuple[int, float, bool]] = []

    def tell(self, evidence: Evidence, arm: int, cost: float, reached: bool) -> None:
        self.results.append((arm, cost, reached))

    def pick(self, evidence: Evidence) -> int:
        done = {arm: reached for arm, _, reached in self.results}
        for direction in (range(evidence.default, -1, -1), range(evidence.default + 1, evidence.arms)):
            for arm in direction:
                if arm not in done:
                    return arm
                if not done[arm]:
                    break
        firsts = {arm: cost for arm, cost, reached in reversed(self.results) if reached}
        return min(firsts, key=lambda arm: firsts[arm])
