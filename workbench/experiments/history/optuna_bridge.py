"""Our policies as Optuna samplers, Optuna's samplers over a history scored anew, and the ledger of both.

    study = optuna.create_study(sampler=BanditSampler(space, objective))
    # which calls trial.suggest_int("batch_size", ...) and record(trial, ...)
    study.optimize(train)
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import UsageError
from ...search.batch_size.history import Evidence, Space
from ...search.batch_size.make import make_policy
from ...search.batch_size.policy import BatchSizePolicy, Proposal
from ...search.objective import Energy, Objective, check_measured
from .attempts import Attempt, Bars, count, without

if TYPE_CHECKING:
    import optuna

KEY = "workbench"
PARAMETER = "batch_size"
RESCORED = 300  # newest trials that a sampler of Optuna's is shown


class AttemptLedger:
    """Attempts of one study, read as they come and counted once; `evidence` is what a policy sees of them.

    Reading costs what is new, not what is there: ended attempts never change.

    Attributes:
        ended: Attempts, in the order in which they were seen to end.
        damaged: Why the records of some are left out, by number.
        open: Those that run and have a record, by number; `blank` are the numbers of those that have none.
        trials_read: How many trials there were, when it was last read.
    """

    def __init__(self, space: Space, *, plain: bool = False) -> None:
        self.space, self._plain = space, plain
        self._known: dict[int, Attempt] = {}
        self.ended: list[Attempt] = []
        self._late: set[int] = set()  # attempts that were given up and ended after all
        self._settled = 0  # all trials before that number have ended
        self.open: dict[int, Attempt] = {}
        self.blank: set[int] = set()
        self.damaged: dict[int, str] = {}
        self._evidence: tuple[Space, int, Evidence] | None = None
        self._bars: tuple[int, Bars] | None = None
        self.trials_read = 0

    def read(self, trials: list[optuna.trial.FrozenTrial]) -> None:
        """Take note of what is new."""
        self.open, self.blank, self.trials_read = {}, set(), len(trials)
        settled = self._settled
        from_there = settled < len(trials) and trials[settled].number == settled
        for trial in trials[settled:] if from_there else trials:
            if trial.number in self._known:
                continue
            kept = trial.user_attrs.get(KEY)
            finished = trial.state.is_finished()
            if kept is not None:
                try:
                    attempt = Attempt.of_json(trial.number, kept)
                except UsageError as error:
                    self.damaged[trial.number] = str(error)
                    if not finished:
                        continue
                    attempt = Attempt(trial.number, 0, state="killed")
                if finished and not attempt.ended:
                    attempt = replace(attempt, state="killed")
            elif (
                finished and self._plain and PARAMETER in trial.params and trial.value is not None
                and trial.state.name == "COMPLETE"
            ):
                # A cost is so many epochs that cost 1 each, and as little is known about it.
                epochs = max(trial.value, 1e-9)
                attempt = Attempt(
                    trial.number, int(trial.params[PARAMETER]), state="reached", epochs=epochs, time_s=epochs,
                    energy_j=epochs, profile=((0.0, 1.0, 1.0),),
                )
            elif finished:
                attempt = Attempt(trial.number, 0, state="killed")  # somebody else's, or gone before it began
            else:
                self.blank.add(trial.number)
                continue
            if finished:
                self._known[trial.number] = attempt
                if attempt.batch_size:
                    self.ended.append(attempt)
                if attempt.late_for is not None:  # what was counted in its place is to be counted no more
                    self._late.add(attempt.late_for)
                    self._evidence = None
            else:
                self.open[trial.number] = attempt
        while self._settled in self._known:
            self._settled += 1

    def take(self, attempt: Attempt) -> None:
        """An attempt that has ended elsewhere and has no trial here."""
        self._known[attempt.number] = attempt
        if attempt.batch_size:
            self.ended.append(attempt)

    @property
    def attempts(self) -> list[Attempt]:
        """All of them, those that run included, by number."""
        return sorted([*self.ended, *self.open.values()], key=lambda a: a.number)

    def bars(self, pardoned: dict[int, int] | None = None) -> Bars:
        """What is not to be tried again."""
        if self._bars is None or self._bars[1].pardoned != (pardoned or {}):
            self._bars = (0, Bars(self.space, pardoned))
        done, bars = self._bars
        for attempt in self.ended[done:]:
            bars.see(attempt)
        self._bars = (len(self.ended), bars)
        return bars

    def evidence(self, space: Space | None = None, *, before: int | None = None) -> Evidence:
        """What a policy sees.

        Args:
            space: A part of the job's, where batch sizes are barred.
            before: The trial that is asking, for which later ones do not run: of two at once one explores.
        """
        space = space or self.space
        if self._evidence is None or self._evidence[0] != space:
            self._evidence = (space, 0, Evidence(space))
        _, done, evidence = self._evidence
        for attempt in self.ended[done:]:
            if attempt.number not in self._late:
                count(evidence, attempt)
        self._evidence = (space, len(self.ended), evidence)
        evidence.in_flight[:] = 0
        for number, attempt in self.open.items():
            if before is None or number < before:
                evidence.in_flight[evidence.index.get(attempt.batch_size, evidence.default)] += 1
        evidence.in_flight[evidence.default] += sum(
            before is None or number < before for number in self.blank - {before}
        )
        return evidence


@lru_cache(maxsize=1)
def samplers() -> tuple[type, type]:
    """`BanditSampler` and `Rescored`, whose base is Optuna's."""
    import optuna

    class BatchSizeSampler(optuna.samplers.BaseSampler):
        """Answers for "batch_size" from the history of a study; `others` answers for the rest.

        Attributes:
            chosen: What to answer next, in place of a choice.
            proposals: What was decided, by number of the trial.
        """

        def __init__(
            self, space: Space, objective: Objective, others: optuna.samplers.BaseSampler, *,
            plain: bool = False,
        ) -> None:
            self.space, self.objective, self.others = space, objective, others
            self.ledger = AttemptLedger(space, plain=plain)
            self.pardoned: dict[int, int] = {}
            self.chosen: Proposal | None = None
            self.proposals: dict[int, Proposal] = {}

        def reseed_rng(self) -> None:
            self.others.reseed_rng()

        def infer_relative_search_space(
            self, study: optuna.Study, trial: optuna.trial.FrozenTrial
        ) -> dict[str, Any]:
            return {}

        def sample_relative(
            self, study: optuna.Study, trial: optuna.trial.FrozenTrial, search_space: dict[str, Any]
        ) -> dict[str, Any]:
            return {}

        def sample_independent(
            self, study: optuna.Study, trial: optuna.trial.FrozenTrial, param_name: str,
            param_distribution: optuna.distributions.BaseDistribution,
        ) -> Any:
            """As `optuna.samplers.BaseSampler.sample_independent`."""
            if param_name != PARAMETER:
                return self.others.sample_independent(study, trial, param_name, param_distribution)
            self.ledger.read(study.get_trials(deepcopy=False))
            proposal = self.chosen or self.propose(trial.number)
            self.proposals = {trial.number: proposal}
            return proposal.batch_size

        def propose(self, number: int) -> Proposal:
            """What trial `number` is to run at."""
            raise NotImplementedError

    class BanditSampler(BatchSizeSampler):
        """One of our policies as an Optuna sampler: it answers suggestions of "batch_size", others at random.

        Trials tell what they cost with `record(trial, ...)`; of trials that do not, the value is the cost.

        Args:
            space: What it may choose from.
            objective: What is to be small; None where trials have values only.
            policy: A policy or its name.
            seed: Of its random draws.
        """

        def __init__(
            self, space: Space, objective: Objective | None = None,
            policy: BatchSizePolicy | str = "knowledge-gradient", *, seed: int | None = None,
        ) -> None:
            others = optuna.samplers.RandomSampler(seed=None if seed is None else seed % 2**32)
            super().__init__(space, objective or Energy(), others, plain=objective is None)
            self.policy = make_policy(policy)
            self.rng = np.random.default_rng(seed)
            self.slices = False  # a plain study has no slices

        def reseed_rng(self) -> None:
            self.rng = np.random.default_rng()
            super().reseed_rng()

        def propose(self, number: int) -> Proposal:
            return propose(
                self.ledger, self.policy, self.objective, self.rng, before=number, slices=self.slices,
                pardoned=self.pardoned,
            )

    class Rescored(BatchSizeSampler):
        """A sampler of Optuna's over a history scored anew, its choice put to the nearest batch size."""

        def __init__(self, inner: optuna.samplers.BaseSampler, space: Space, objective: Objective) -> None:
            super().__init__(space, objective, inner)

        def propose(self, number: int) -> Proposal:
            space = without(self.space, self.ledger.bars(self.pardoned).out)
            shadow = optuna.create_study(sampler=self.others, storage=optuna.storages.InMemoryStorage())
            distribution = optuna.distributions.IntDistribution(
                space.batch_sizes[0], space.batch_sizes[-1], log=True
            )
            states = {
                "reached": optuna.trial.TrialState.COMPLETE,
                **dict.fromkeys(("stopped", "failed"), optuna.trial.TrialState.PRUNED),
            }
            for attempt in self.ledger.ended[-RESCORED:]:
                known = attempt.state in states and attempt.batch_size in space.batch_sizes
                if known and attempt.purpose == "run":
                    shadow.add_trial(
                        optuna.trial.create_trial(
                            state=states[attempt.state], value=attempt.cost(self.objective),
                            params={PARAMETER: attempt.batch_size}, distributions={PARAMETER: distribution},
                        )
                    )
            wanted = shadow.ask({PARAMETER: distribution}).params[PARAMETER]
            batch_size = min(space.batch_sizes, key=lambda b: abs(np.log2(b / wanted)))
            return Proposal(
                batch_size, best_limit_w(self.ledger.evidence(), batch_size, self.objective),
                stop_after_epochs=self.space.max_epochs, reason="chosen by a sampler of Optuna's",
            )

    return BanditSampler, Rescored


def __getattr__(name: str) -> Any:
    if name == "BanditSampler":
        return samplers()[0]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def best_limit_w(evidence: Evidence, batch_size: int, objective: Objective) -> float | None:
    """The power limit that an epoch has cost least at; None where fewer than two are known."""
    costs, limits = evidence.epoch_costs(objective)[evidence.index[batch_size]], evidence.space.power_limits_w
    return limits[int(np.nanargmin(costs))] if limits and np.isfinite(costs).sum() > 1 else None


def propose(
    ledger: AttemptLedger, policy: BatchSizePolicy, objective: Objective, rng: np.random.Generator, *,
    before: int | None = None, slices: bool = True, pardoned: dict[int, int] | None = None,
) -> Proposal:
    """What a policy wants next, of what is not barred.

    Args:
        ledger: The history.
        policy: Chooses the batch size.
        objective: Cost of time and energy.
        rng: Of the policy's samples.
        before: Only attempts of recurrences below this number count; None for all.
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


def record(
    trial: optuna.trial.Trial, *, time_s: float, energy_j: float, epochs: float, reached: bool = True,
    **more: Any,
) -> None:
    """Tell a trial of `study.optimize` what it took, for `BanditSampler` to use and to score anew.

    Args:
        trial: Of `study.optimize`.
        time_s: Of the whole run.
        energy_j: Of the whole run, all GPUs.
        epochs: That it ran.
        reached: Whether the target was reached.
        more: Further fields of `Attempt`.
    """
    check_measured(time_s, energy_j)
    if epochs > 0 and time_s > 0:
        more.setdefault("profile", ((more.get("power_limit_w") or 0.0, time_s / epochs, energy_j / time_s),))
    attempt = Attempt(
        trial.number, int(trial.params[PARAMETER]), recurrence=trial.number,
        state="reached" if reached else "failed", time_s=time_s, energy_j=energy_j, epochs=epochs, **more,
    )
    trial.set_user_attr(KEY, attempt.as_json())
