"""The one interface of the policies that choose a batch size for every recurrence of a job.

    policy = make.make_policy("knowledge-gradient")
    evidence.add(run)                                      # for each that has ended
    proposal = policy.ask(evidence, objective, rng)        # what to run now, and when to stop it

`ask` depends on nothing but its arguments, so two processes may ask over one history, and history can be
scored again with another objective. A proposal with the purpose "slice" wants a few seconds of that batch
size at `power_limit_w`, to learn what an epoch costs there; add the profile to the history and ask again. One
with `power_limit_w` None wants all limits profiled in the first iterations of the run ("just in time"; Zeus,
NSDI'23, section 4.2). A run that did not reach its target is retried: ask again; after
`history.MOST_RUNS` such runs the recurrence is lost.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ..objective import Objective
from .history import Evidence, Space


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is: epochs done, and their cost."""

    epochs: float
    cost: float


@dataclass(frozen=True, slots=True)
class Proposal:
    """The next action: a run or a slice at a batch size.

    Attributes:
        batch_size: To train with.
        power_limit_w: To train at; None asks for a profile of all limits in the run's first iterations.
        purpose: "run", or "slice": a few seconds only.
        stop_after_epochs: The run is not worth more epochs than this.
        stop_after_cost: Nor more than this, in the objective's unit.
        reason: One sentence for a person.
    """

    batch_size: int
    power_limit_w: float | None = None
    purpose: str = "run"
    stop_after_epochs: float = math.inf
    stop_after_cost: float = math.inf
    reason: str = ""


def stop_reason(progress: Progress, *, epochs: float, cost: float) -> str:
    """Why to stop a run that has not reached its target; empty to go on.

    Args:
        progress: Of the run.
        epochs: `stop_after_epochs` of its proposal.
        cost: Its `stop_after_cost`.
    """
    if progress.epochs >= epochs:
        return "more epochs are not worth it"
    each = progress.cost / progress.epochs if progress.epochs else 0.0
    if progress.cost + each > cost * (1 + 1e-12):
        return "one more epoch would cost more than this run is worth"
    return ""


class BatchSizePolicy(Protocol):
    """Chooses batch sizes. Holds parameters only, no state of a job."""

    def ask(self, evidence: Evidence, objective: Objective, rng: np.random.Generator) -> Proposal:
        """The next action, given all evidence."""


__all__ = ["BatchSizePolicy", "Evidence", "Progress", "Proposal", "Space", "stop_reason"]
