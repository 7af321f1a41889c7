"""The history of a recurring job as an Optuna study.

    study = JobStudy("nightly", space, objective, storage="sqlite:///runs.db")
    attempt = study.ask()                      # a trial that runs, with a batch size; other processes see it
    study.update(attempt, epochs=3, ...)       # a sign of life, and how far it is
    study.end(attempt, state="reached", ...)

Each trial has the parameter `batch_size`, its cost under the objective of that day as its value, and
everything that was measured in the user attribute `workbench` (`Attempt`): a change of the objective scores
old trials again. Attempts that reached the target are COMPLETE, stopped ones PRUNED, all others FAIL. Optuna
is imported when a study is opened.
"""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from ...errors import StoreError, UsageError, shown
from ...search.batch_size.history import MOST_RUNS, Evidence, Space
from ...search.batch_size.make import make_policy
from ...search.batch_size.policy import BatchSizePolicy, Progress, Proposal, stop_reason
from ...search.objective import Objective, check_measured
from .attempts import Attempt, current_owner, is_abandoned, without
from .csv import as_frame
from .optuna_bridge import KEY, PARAMETER, AttemptLedger, OptunaPolicy, propose
from .storage import LOCK_S, open_study, storage_url, translate_storage_errors

if TYPE_CHECKING:
    import optuna


class JobStudy:
    """The study of one recurring job.

    Args:
        label: Of the job, and of the study.
        space: The choices.
        objective: What to minimise; may be changed at any time.
        storage: An Optuna storage, its URL, or the path of an SQLite file.
        policy: A policy, its name, or a sampler of Optuna's.
        seed: Of the policy's draws; None draws one.
        accept_changes: Go on where the study had other batch sizes.

    Raises:
        StoreError: the storage is damaged, not there, or somebody else's.
        UsageError: the study was made with other batch sizes.
    """

    def __init__(
        self, label: str, space: Space, objective: Objective, *,
        storage: str | Path | optuna.storages.BaseStorage,
        policy: BatchSizePolicy | str | optuna.samplers.BaseSampler = "knowledge-gradient",
        seed: int | None = None, accept_changes: bool = False,
    ) -> None:
        import optuna

        self.label, self.space, self.objective = label, space, objective
        self.policy: BatchSizePolicy = (
            OptunaPolicy(policy) if isinstance(policy, optuna.samplers.BaseSampler) else make_policy(policy)
        )
        self._rng = np.random.default_rng(seed)
        self.ledger = AttemptLedger(space)
        self.url = "memory://" if isinstance(storage, optuna.storages.BaseStorage) else storage_url(storage)
        with translate_storage_errors(self.url):
            self.study, self._storage = open_study(label, storage)
        self._trials: dict[int, optuna.Trial] = {}  # that this object has begun, by number
        self._check(accept_changes)
        self.close_stale()

    # what is there

    @property
    def attempts(self) -> list[Attempt]:
        """All attempts by number, those of other processes and those that run included."""
        self.refresh()
        return self.ledger.attempts

    def history(self) -> pl.DataFrame:
        """All attempts, a row each (`csv.HISTORY`), with their `cost` under today's objective."""
        attempts = self.attempts
        cost = pl.Series("cost", [each.cost(self.objective) for each in attempts], dtype=pl.Float64)
        return as_frame(attempts).with_columns(cost)

    def evidence(self) -> Evidence:
        """Evidence for a policy."""
        self.refresh()
        return self.ledger.evidence()

    def barred(self) -> dict[int, str]:
        """Batch sizes that are not tried any more, and why."""
        self.refresh()
        return self.ledger.bars(self.pardoned).out

    def refresh(self) -> None:
        """Read what other processes have added."""
        with translate_storage_errors(self.url):
            self.ledger.read(self.study.get_trials(deepcopy=False))

    # what happens

    def ask(self, *, slices: bool = True) -> Attempt:
        """A new attempt that runs from now on.

        Args:
            slices: Whether a few seconds at a batch size may be asked for, and not only whole runs.

        Raises:
            UsageError: nothing is left to try, or no batch size reaches the target.
        """
        with translate_storage_errors(self.url):
            self.close_stale()
            self.check_reachable()
            without(self.space, self.barred())
            return self._begin(None, slices=slices)

    def check_reachable(self) -> None:
        """Raise UsageError where every batch size has had all its epochs and none has reached the target."""
        self.ledger.bars(self.pardoned).check_reachable()

    def claim(self, batch_size: int, power_limit_w: float | None = None) -> Attempt:
        """A new attempt at a batch size that a person has chosen; it runs from now on.

        Args:
            batch_size: One of the space's.
            power_limit_w: One of the space's; None takes the one that has cost least there so far.

        Raises:
            UsageError: a batch size or limit that the space has not.
        """
        if batch_size not in self.space.batch_sizes:
            have = ", ".join(str(size) for size in self.space.batch_sizes)
            raise UsageError(
                f"batch size {batch_size} is not one of those of '{self.label}': {have}; name it among its "
                "batch_sizes"
            )
        if power_limit_w is not None and power_limit_w not in self.space.power_limits_w:
            have = ", ".join(f"{limit_w:g}" for limit_w in self.space.power_limits_w) or "none"
            raise UsageError(f"power limit {power_limit_w:g} W is not one of those of '{self.label}': {have}")
        with translate_storage_errors(self.url):
            if power_limit_w is None:
                evidence = self.evidence()
                power_limit_w = evidence.known_limit_w(evidence.index[batch_size], self.objective)
            chosen = Proposal(
                batch_size, power_limit_w, stop_after_epochs=self.space.max_epochs, reason="selected"
            )
            return self._begin(chosen)

    def _begin(self, chosen: Proposal | None, *, slices: bool = False) -> Attempt:
        """Begin a trial at what was chosen, or what the policy decides then, knowing of all other trials."""
        trial = self.study.ask()
        try:
            self.refresh()
            proposal = chosen or propose(
                self.ledger, self.policy, self.objective, self._rng, before=trial.number, slices=slices,
                pardoned=self.pardoned,
            )
            trial.suggest_int(PARAMETER, proposal.batch_size, proposal.batch_size, log=True)
            recurrence = self._recurrence(trial.number)
            attempt = Attempt(
                trial.number, proposal.batch_size, recurrence if recurrence >= 0 else trial.number,
                proposal.purpose, power_limit_w=proposal.power_limit_w, reason=proposal.reason,
                target=self.space.target, gpu=self.space.gpu, owner=current_owner(),
                heartbeat_unix_s=time.time(), stop_after_epochs=proposal.stop_after_epochs,
                stop_after_cost=proposal.stop_after_cost,
            )
            trial.set_user_attr(KEY, attempt.as_json())
        except BaseException:
            with contextlib.suppress(Exception):
                self.study.tell(trial, state=_states()["crashed"])
            raise
        self._trials[trial.number] = trial
        return attempt

    def watch(self, attempt: Attempt, progress: Progress) -> str:
        """Why to stop a run that has not reached its target; empty to go on."""
        if progress.epochs >= self.space.max_epochs:
            return f"all {self.space.max_epochs} epochs are done"
        return stop_reason(progress, epochs=attempt.stop_after_epochs, cost=attempt.stop_after_cost)

    def update(self, attempt: Attempt, **changes: Any) -> Attempt:
        """A sign of life of an attempt, and how far it is."""
        import optuna

        attempt = replace(attempt, **{"heartbeat_unix_s": time.time(), **changes})
        trial = self._trials.get(attempt.number)
        # Where others have given it up, its end will be late.
        with (
            translate_storage_errors(self.url),
            contextlib.suppress(optuna.exceptions.UpdateFinishedTrialError),
        ):
            if trial is not None:
                trial.set_user_attr(KEY, attempt.as_json())
        return attempt

    def end(self, attempt: Attempt, **changes: Any) -> Attempt:
        """The end of an attempt; where others had given it up, it is added, and counts in place of that.

        Raises:
            MeasurementError: a time or energy that cannot be; the attempt is kept as crashed, without it.
        """
        attempt = replace(attempt, **{"heartbeat_unix_s": time.time(), **changes})
        try:
            check_measured(attempt.time_s, attempt.energy_j)
            check_measured(attempt.profile_time_s, attempt.profile_energy_j)
        except Exception:
            nothing = dict.fromkeys(("time_s", "energy_j", "profile_time_s", "profile_energy_j"), 0.0)
            self.end(attempt, state="crashed", **nothing)
            raise
        with translate_storage_errors(self.url):
            if not self._tell(attempt):
                attempt = self._add(replace(attempt, late_for=attempt.number))
        self.refresh()
        return attempt

    def unblock(self, batch_size: int | None = None) -> None:
        """Forget the crashes of a batch size, or of all: what came before does not bar it any more."""
        until = max((a.number for a in self.attempts), default=-1) + 1
        sizes = self.space.batch_sizes if batch_size is None else (batch_size,)
        pardoned = self.pardoned | dict.fromkeys(sizes, until)
        self.study.set_user_attr(f"{KEY} pardoned", {str(b): number for b, number in pardoned.items()})

    def close(self) -> None:
        """Let go of the database's connections; they are opened again where the history is used again."""
        engine = getattr(self._storage, "engine", None)
        if engine is not None:
            engine.dispose()

    def close_stale(self) -> list[int]:
        """Close attempts whose process is gone; returns their numbers."""
        self.refresh()
        ledger, now_s = self.ledger, time.time()
        gone = [
            attempt.number for attempt in ledger.open.values()
            if is_abandoned(attempt.owner, attempt.heartbeat_unix_s)
        ]
        # Between a trial and its record lie milliseconds.
        gone += [
            trial.number for trial in (self.study.get_trials(deepcopy=False) if ledger.blank else ())
            if trial.number in ledger.blank and trial.datetime_start is not None
            and now_s - trial.datetime_start.timestamp() > LOCK_S
        ]
        closed = [number for number in gone if self._close(number, ledger.open.get(number))]
        if closed:
            self.refresh()
        return closed

    # inside

    def _tell(self, attempt: Attempt) -> bool:
        """Write the end of an attempt of this object's; whether nobody had given it up before."""
        import optuna

        trial, state = self._trials.get(attempt.number), _states()[attempt.state]
        try:
            if trial is None:
                self._close(attempt.number, None)
                return False
            trial.set_user_attr(KEY, attempt.as_json())
            values = self._values(attempt)
            if values and state.name == "PRUNED":  # whose value is what was reported last
                trial.report(values[0], 0)
                values = None
            self.study.tell(trial, values, state)
        except (ValueError, optuna.exceptions.UpdateFinishedTrialError):  # Optuna raises either
            return False
        del self._trials[attempt.number]
        return True

    def _close(self, number: int, known: Attempt | None) -> bool:
        """End a trial of whatever process, as its record has it or as killed; whether it was us who did."""
        import optuna

        ended = known if known is not None and known.ended else None
        state = _states()["killed" if ended is None else ended.state]
        values = self._values(ended) if ended is not None and state.name == "COMPLETE" else None
        try:
            self.study.tell(number, values, state)
        except (ValueError, optuna.exceptions.UpdateFinishedTrialError):
            return False
        return True

    def _recurrence(self, number: int) -> int:
        """The recurrence of a new attempt: an unfinished one that nobody else retries, or (-1) a new one.

        One that has lost `MOST_RUNS` runs is over.
        """
        ledger = self.ledger
        near = [
            a for a in (*ledger.open.values(), *ledger.ended) if a.number < number and a.state != "withdrawn"
        ]
        newest = max((a.recurrence for a in near), default=-1)
        mine = [a for a in near if a.recurrence == newest]
        done = any(a.state == "reached" or not a.ended for a in mine)
        done |= sum(a.purpose == "run" and a.lost for a in mine) >= MOST_RUNS
        return -1 if done or any(other < number for other in ledger.blank) else newest

    def _values(self, attempt: Attempt) -> list[float] | None:
        if _states()[attempt.state].name == "FAIL" or attempt.purpose == "slice":
            return None
        cost = attempt.cost(self.objective)
        return [cost] if np.isfinite(cost) else [1e300]

    def _add(self, attempt: Attempt) -> Attempt:
        """An attempt that has ended, as a trial of its own: others had given it up."""
        import optuna

        kind = _states()["stopped" if attempt.purpose == "slice" else attempt.state]
        kept = json.dumps(attempt.as_json())
        self.study.add_trial(
            optuna.trial.create_trial(
                state=kind, values=self._values(attempt), params={PARAMETER: attempt.batch_size},
                distributions={PARAMETER: optuna.distributions.IntDistribution(1, 2**30, log=True)},
                user_attrs={KEY: json.loads(kept)},
            )
        )
        trials = self.study.get_trials(deepcopy=False)
        number = next(t.number for t in reversed(trials) if json.dumps(t.user_attrs.get(KEY)) == kept)
        return replace(attempt, number=number)

    @property
    def pardoned(self) -> dict[int, int]:
        """Batch sizes that `unblock` has freed, and the attempt from which on their failures count."""
        return {int(b): int(n) for b, n in self.study.user_attrs.get(f"{KEY} pardoned", {}).items()}

    def _check(self, accept_changes: bool) -> None:
        """Raise StoreError where the study is of no recurring job, UsageError where it has other sizes."""
        sizes = list(self.space.batch_sizes)
        with translate_storage_errors(self.url):
            kept: Any = self.study.user_attrs.get(KEY)
            ours = isinstance(kept, dict) and "batch_sizes" in kept
            trials = self.study.get_trials(deepcopy=False)
            if not ours and (kept is not None or trials):
                names = sorted({name for trial in trials for name in trial.params})
                raise StoreError(
                    f"the study '{self.label}' in {self.url} is not one of a recurring job: "
                    f"{len(trials)} trials with {', '.join(names) or 'no parameters'}; choose another label "
                    "or another storage. Nothing was changed"
                )
            if ours and kept["batch_sizes"] != sizes and not accept_changes:
                raise UsageError(
                    f"the study '{self.label}' was made with the batch sizes {shown(kept['batch_sizes'])}, "
                    f"and now they are {sizes}; go on with accept_changes=True (runs at others stay in the "
                    "history and are not used), or choose another label. Nothing was changed"
                )
            if not ours or kept["batch_sizes"] != sizes:
                self.study.set_user_attr(KEY, {"batch_sizes": sizes})


@lru_cache(maxsize=1)
def _states() -> dict[str, Any]:
    from optuna.trial import TrialState

    failed = ("failed", "crashed", "killed", "interrupted", "withdrawn")
    return {
        "running": TrialState.RUNNING, "reached": TrialState.COMPLETE, "stopped": TrialState.PRUNED,
        **dict.fromkeys(failed, TrialState.FAIL),
    }
