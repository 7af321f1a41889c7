"""Where the panel of a recurring job has its history from: a job, a study, or a record that is played
again.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Hashable
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from ....errors import UsageError
from ....experiments.history.attempts import Attempt
from ....experiments.history.csv import missing, read_csv, write_csv
from ....experiments.history.optuna_bridge import AttemptLedger
from ....experiments.history.replay import Recorded
from ....experiments.history.storage import translate_storage_errors
from ....experiments.history.study import JobStudy
from ....experiments.job import RecurringJob
from ....search.batch_size.policy import BatchSizePolicy
from ....search.objective import Objective, ZeusCost


class JobSource(Protocol):
    """What the panel asks for. `recur` may take long and is called on a thread of its own."""

    name: str
    simulated: bool
    replayed: bool

    @property
    def ledger(self) -> AttemptLedger: ...
    @property
    def objective(self) -> Objective: ...
    @property
    def policy(self) -> BatchSizePolicy | None: ...
    @property
    def pardoned(self) -> dict[int, int]: ...
    @property
    def why_not(self) -> str:
        """Why no recurrence can be run from here; empty where one can."""
        ...

    def read(self) -> Hashable:
        """Take in what is new; what it returns changes with what there is to show."""
        ...

    def set_eta(self, eta: float) -> None: ...
    def recur(self) -> bool:
        """Run one recurrence; false where there is none left."""
        ...

    def rewind(self) -> None: ...
    def add(self, text: str) -> int:
        """Add a history, as CSV; how many attempts were new."""
        ...


class Studied:
    """A job, or a study, whose history others may write at the same time: it is read with a ledger of its
    own.
    """

    replayed = False

    def __init__(
        self, job: RecurringJob | JobStudy, run: Callable[[Any], object] | None, simulated: bool | None
    ) -> None:
        self._job = job if isinstance(job, RecurringJob) else None
        self._study = job.study if isinstance(job, RecurringJob) else job
        self._run = run
        self.name = job.name
        gpus = self._job.meter.devices if self._job else ()
        named = "simulated" in (self._study.space.gpu or "")
        self.simulated = simulated if simulated is not None else named or any(gpu.simulated for gpu in gpus)
        self.ledger = AttemptLedger(self._study.space)

    @property
    def objective(self) -> Objective:
        return self._study.objective

    @property
    def policy(self) -> BatchSizePolicy | None:
        return self._study.policy

    @property
    def pardoned(self) -> dict[int, int]:
        return self._study._pardoned()

    @property
    def why_not(self) -> str:
        if self._run:
            return ""
        what = "run=train" if self._job else "run=one_recurrence"
        return f"no recurrence can be run from here: give the panel your training, recurring(job, {what})"

    def read(self) -> Hashable:
        with translate_storage_errors(self._study.url):
            self.ledger.read(self._study.study.get_trials(deepcopy=False))
            pardoned = tuple(sorted(self.pardoned.items()))
        going = tuple((a.number, a.epochs) for a in self.ledger.open.values())
        return (len(self.ledger.ended), going, self.objective, pardoned)

    def set_eta(self, eta: float) -> None:
        if self._job:
            self._job.objective = eta
        else:
            self._study.objective = _with_eta(self._study.objective, eta, self.ledger)

    def recur(self) -> bool:
        if self._run is None:
            raise UsageError(self.why_not)
        if self._job:
            self._job.run(self._run)
        else:
            self._run(self._study)
        return True

    def rewind(self) -> None:
        raise UsageError(
            "the history of a job is not rewound; export it, and look at the file: recurring('history.csv')"
        )

    def add(self, text: str) -> int:
        with _file(text) as path:
            rows = missing(read_csv(path), self.ledger.attempts)
        for row in rows:
            self._study.add(row)
        return len(rows)


class Played:
    """A record that is shown as it is, and played again on request."""

    replayed = True

    def __init__(self, recorded: Recorded, name: str, simulated: bool | None) -> None:
        self._recorded, self.name = recorded, name
        self.simulated = "simulated" in (recorded.space.gpu or "") if simulated is None else simulated

    @property
    def ledger(self) -> AttemptLedger:
        return self._recorded.ledger

    @property
    def objective(self) -> Objective:
        return self._recorded.objective

    @property
    def policy(self) -> BatchSizePolicy | None:
        return self._recorded.policy

    @property
    def pardoned(self) -> dict[int, int]:
        return {}

    @property
    def why_not(self) -> str:
        return ""

    def read(self) -> Hashable:
        return (self._recorded.shown, len(self._recorded.ledger.ended), self._recorded.objective)

    def set_eta(self, eta: float) -> None:
        self._recorded.objective = _with_eta(self._recorded.objective, eta, self._recorded.ledger)

    def recur(self) -> bool:
        return self._recorded.play()

    def rewind(self) -> None:
        self._recorded.rewind()

    def add(self, text: str) -> int:
        with _file(text) as path:
            return self._recorded.add(path)


def as_csv(attempts: list[Attempt]) -> str:
    """A history as the text of its file."""
    with _file("") as path:
        write_csv(attempts, path)
        return path.read_text(encoding="utf-8")


def _with_eta(objective: Objective, eta: float, ledger: AttemptLedger) -> ZeusCost:
    if isinstance(objective, ZeusCost):
        return replace(objective, eta=eta)
    limits = ledger.space.power_limits_w
    drawn = [a.energy_j / a.time_s for a in ledger.ended if a.time_s > 0]
    return ZeusCost(eta, max(limits) if limits else max(drawn, default=1.0))


class _file:  # noqa: N801
    """A file for as long as the block takes."""

    def __init__(self, text: str) -> None:
        self._directory = tempfile.TemporaryDirectory()
        self._path = Path(self._directory.name) / "history.csv"
        self._path.write_text(text, encoding="utf-8")

    def __enter__(self) -> Path:
        return self._path

    def __exit__(self, *_: object) -> None:
        self._directory.cleanup()
