"""Attempts of a study, read and counted once, as evidence for a policy; Optuna's samplers as policies."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ...errors import UsageError
from ...search.batch_size.history import Evidence, Space
from ...search.batch_size.policy import BatchSizePolicy, Proposal
from ...search.objective import Objective
from .attempts import Attempt, Bars, count, without

if TYPE_CHECKING:
    import optuna

KEY = "workbench"
PARAMETER = "batch_size"


class AttemptLedger:
    """Attempts of one study, read as they come and counted once; `evidence` is what a policy sees of them.

    Attributes:
        ended: Attempts, in the order in which they were seen to end.
        damaged: Why the records of some are left out, by number.
        open: Those that run and have a record, by number; `blank` are the numbers of those that have none.
    """

    def __init__(self, space: Space) -> None:
        self.space = space
        self._known: set[int] = set()
        self.ended: list[Attempt] = []
        self._late: set[int] = set()  # attempts that were given up and ended after all
        self.open: dict[int, Attempt] = {}
        self.blank: set[int] = set()
        self.damaged: dict[int, str] = {}
        self._evidence = (space, 0, Evidence(space))
        self._bars = (0, Bars(space))

    def read(self, trials: list[optuna.trial.FrozenTrial]) -> None:
        """Take note of what is new: attempts that have ended never change."""
        self.open, self.blank = {}, set()
        for trial in trials:
            if trial.number in self._known:
                continue
            finished, kept = trial.state.is_finished(), trial.user_attrs.get(KEY)
            # somebody else's, gone before it began, or damaged
            attempt = Attempt(trial.number, 0, state="killed")
            if kept is not None:
                try:
                    attempt = Attempt.of_json(trial.number, kept)
                except UsageError as error:
                    self.damaged[trial.number] = str(error)
            if finished:
                self.take(attempt if attempt.ended else replace(attempt, state="killed"))
            elif kept is None:
                self.blank.add(trial.number)
            elif attempt.batch_size:
                self.open[trial.number] = attempt

    def take(self, attempt: Attempt) -> None:
        """An attempt that has ended."""
        self._known.add(attempt.number)
        if attempt.batch_size:
            self.ended.append(attempt)
        if attempt.late_for is not None:  # what was counted in its place is to be counted no more
            self._late.add(attempt.late_for)
            self._evidence = (self.space, 0, Evidence(self.space))

    @property
    def attempts(self) -> list[Attempt]:
        """All of them, those that run included, by number."""
        return sorted([*self.ended, *self.open.values()], key=lambda a: a.number)

    def bars(self, pardoned: dict[int, int] | None = None) -> Bars:
        """Barred batch sizes."""
        if self._bars[1].pardoned != (pardoned or {}):
            self._bars = (0, Bars(self.space, pardoned))
        done, bars = self._bars
        for attempt in self.ended[done:]:
            bars.see(attempt)
        self._bars = (len(self.ended), bars)
        return bars

    def evidence(self, space: Space | None = None, *, before: int | None = None) -> Evidence:
        """The evidence of a policy.

        Args:
            space: A part of the job's, where batch sizes are barred.
            before: The trial that is asking, for which later ones do not run: of two together one explores.
        """
        space = space or self.space
        if self._evidence[0] != space:
            self._evidence = (space, 0, Evidence(space))
        _, done, evidence = self._evidence
        for attempt in self.ended[done:]:
            if attempt.number not in self._late:
                count(evidence, attempt)
        self._evidence = (space, len(self.ended), evidence)
        evidence.in_flight[:] = 0
        running = {number: attempt.batch_size for number, attempt in self.open.items()}
        running |= dict.fromkeys(self.blank, space.default)
        for number, batch_size in running.items():
            if before is None or number < before:
                evidence.in_flight[evidence.index.get(batch_size, evidence.default)] += 1
        return evidence


class OptunaPolicy:
    """A sampler of Optuna's as a policy: it is shown the history as scored today, and its choice goes to the
    nearest batch size.
    """

    def __init__(self, sampler: optuna.samplers.BaseSampler) -> None:
        self._sampler = sampler

    def ask(self, evidence: Evidence, objective: Objective, rng: np.random.Generator) -> Proposal:
        import optuna

        space, states = evidence.space, optuna.trial.TrialState
        shown = {"reached": states.COMPLETE, "stopped": states.PRUNED, "failed": states.PRUNED}
        study = optuna.create_study(sampler=self._sampler)
        sizes = optuna.distributions.IntDistribution(space.batch_sizes[0], space.batch_sizes[-1], log=True)
        for run, local in zip(evidence.runs, evidence.local, strict=True):
            if local and run.state in shown:
                study.add_trial(optuna.trial.create_trial(
                    state=shown[run.state], value=float(objective.cost(run.time_s, run.energy_j)),
                    params={PARAMETER: space.batch_sizes[run.arm]}, distributions={PARAMETER: sizes},
                ))
        wanted = study.ask({PARAMETER: sizes}).params[PARAMETER]
        arm = int(np.argmin(np.abs(evidence.octaves - np.log2(wanted))))
        return Proposal(
            space.batch_sizes[arm], evidence.known_limit_w(arm, objective),
            stop_after_epochs=space.max_epochs, reason="chosen by a sampler of Optuna's",
        )


def propose(
    ledger: AttemptLedger, policy: BatchSizePolicy, objective: Objective, rng: np.random.Generator, *,
    before: int | None = None, slices: bool = True, pardoned: dict[int, int] | None = None,
) -> Proposal:
    """The next proposal of a policy among allowed batch sizes.

    Args:
        ledger: The history.
        policy: Chooses the batch size.
        objective: Cost of time and energy.
        rng: Of the policy's samples.
        before: Only attempts below this number count as running; None for all.
        slices: Whether short profiling attempts may be proposed.
        pardoned: Batch size to the attempt from which on its failures count.

    Raises:
        UsageError: nothing is left to try, or the target is out of reach.
    """
    bars = ledger.bars(pardoned)
    bars.check_reachable()
    space = without(ledger.space, bars.out)
    proposal = policy.ask(ledger.evidence(space, before=before), objective, rng)
    if proposal.purpose == "slice" and not slices:
        # A run whose first iterations are the slice; `watch` stops it where it is not worth its epochs.
        return Proposal(proposal.batch_size, None, stop_after_epochs=space.max_epochs, reason=proposal.reason)
    return proposal
