"""Sources of a recurring job's history: a job, a study, or a record."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any

from ....experiments.history.optuna_bridge import AttemptLedger
from ....experiments.history.replay import Recorded
from ....experiments.history.storage import translate_storage_errors
from ....experiments.history.study import JobStudy
from ....experiments.job import RecurringJob
from ....search.objective import Objective, ZeusCost


class Studied:
    """A job or a study. Others may write its history too, so the panel reads it with its own ledger."""

    def __init__(self, job: RecurringJob | JobStudy, run: Callable[[Any], object] | None = None) -> None:
        self._job = job if isinstance(job, RecurringJob) else None
        self.history = job.study if isinstance(job, RecurringJob) else job
        self._run = run
        self.name = job.label
        gpus = self._job.meter.devices if self._job else ()
        named = "simulated" in (self.history.space.gpu or "")
        self.simulated = named or any(gpu.simulated for gpu in gpus)
        self.ledger = AttemptLedger(self.history.space)

    @property
    def pardoned(self) -> dict[int, int]:
        return self.history.pardoned

    @property
    def why_not(self) -> str:
        """The reason why no recurrence can be run from the panel; empty if one can."""
        if self._run:
            return ""
        what = "run=train" if self._job else "run=one_recurrence"
        return f"no recurrence can be run from here: give the panel your training, recurring(job, {what})"

    def read(self) -> Hashable:
        """Read the newest history; the returned value changes with the content."""
        with translate_storage_errors(self.history.url):
            self.ledger.read(self.history.study.get_trials(deepcopy=False))
            pardoned = tuple(sorted(self.pardoned.items()))
        going = tuple((a.number, a.epochs) for a in self.ledger.open.values())
        return (len(self.ledger.ended), going, self.history.objective, pardoned)

    def set_eta(self, eta: float) -> None:
        if self._job:
            self._job.objective = eta
        else:
            self.history.objective = _with_eta(self.history.objective, eta, self.ledger)

    def recur(self) -> None:
        """Run one recurrence, which can take long."""
        assert self._run is not None
        if self._job:
            self._job.run(self._run)
        else:
            self._run(self.history)


class Played:
    """A fixed record; as `Studied` otherwise."""

    why_not = "a history has nothing to run"

    def __init__(self, recorded: Recorded, name: str) -> None:
        self.history, self.name = recorded, name
        self.simulated = "simulated" in (recorded.space.gpu or "")
        self.pardoned: dict[int, int] = {}

    @property
    def ledger(self) -> AttemptLedger:
        return self.history.ledger

    def read(self) -> Hashable:
        return (len(self.ledger.ended), self.history.objective)

    def recur(self) -> None:
        """Raises, because a record cannot be run."""

    def set_eta(self, eta: float) -> None:
        self.history.objective = _with_eta(self.history.objective, eta, self.ledger)


JobSource = Studied | Played


def _with_eta(objective: Objective, eta: float, ledger: AttemptLedger) -> ZeusCost:
    if isinstance(objective, ZeusCost):
        return replace(objective, eta=eta)
    limits = ledger.space.power_limits_w
    drawn = [a.energy_j / a.time_s for a in ledger.ended if a.time_s > 0]
    return ZeusCost(eta, max(limits) if limits else max(drawn, default=1.0))
