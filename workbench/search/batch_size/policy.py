"""The common interface of the policies that choose a batch size for every recurrence of a job.

    policy = make.make_policy("knowledge-gradient")
    evidence.add(run)                                      # for each finished run
    proposal = policy.ask(evidence, objective, rng)        # what to run now, and when to stop it

`ask` depends only on its arguments. So two processes may use one history, and history can be scored again
with another objective. A proposal with the purpose "slice" requests a few seconds of that batch size at
`power_limit_w`, to measure the cost of an epoch there. Add the profile to the history and ask again. One with
`power_limit_w` None requests all limits profiled in the first iterations of the run ("just in time"; Zeus,
NSDI'23, section 4.2). After a run that did not reach its target, ask again. After `history.MOST_RUNS` such
runs the recurrence is lost.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ..objective import Objective
from .history import Evidence, Space


@dataclass(frozen=True)
class Progress:
    """Progress of a run: finished epochs, and their cost."""

    epochs: float
    cost: float


@dataclass(frozen=True)
class Proposal:
    """The next action: a run or a profiling window at a batch size.

    Attributes:
        batch_size: Batch size of the training.
        power_limit_w: Its power limit; None requests a profile of all limits in the run's first iterations.
        purpose: "run", or "slice": a profiling window of a few seconds.
        stop_after_epochs: Highest number of epochs that is worthwhile.
        stop_after_cost: Highest cost that is worthwhile, in the objective's unit.
        reason: One sentence for the user.
    """

    batch_size: int
    power_limit_w: float | None = None
    purpose: str = "run"
    stop_after_epochs: float = math.inf
    stop_after_cost: float = math.inf
    reason: str = ""


def stop_reason(progress: Progress, *, epochs: float, cost: float) -> str:
    """Why to stop a run that has not reached its target; empty to continue.

    Args:
        progress: Progress of the run.
        epochs: `stop_after_epochs` of its proposal.
        cost: Its `stop_after_cost`.
    """
    if progress.epochs >= epochs:
        return "more epochs are not worthwhile"
    each = progress.cost / progress.epochs if progress.epochs else 0.0
    if progress.cost + each > cost * (1 + 1e-12):
        return "one more epoch would exceed the highest worthwhile cost of this run"
    return ""


class BatchSizePolicy(Protocol):
    """Chooses batch sizes. Holds parameters only, no state of a job."""

    def ask(self, evidence: Evidence, objective: Objective, rng: np.random.Generator) -> Proposal:
        """The next action, given all evidence."""


__all__ = ["BatchSizePolicy", "Evidence", "Progress", "Proposal", "Space", "stop_reason"]
