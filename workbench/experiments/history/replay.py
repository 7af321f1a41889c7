"""A history without a study: a file, or frames, to be looked at and played again recurrence by recurrence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl

from ...errors import UsageError
from ...search.batch_size.history import Space
from ...search.batch_size.make import make_policy
from ...search.batch_size.policy import BatchSizePolicy
from ...search.objective import Energy, Objective
from .attempts import Attempt
from .csv import missing, of_frame, read_csv
from .optuna_bridge import AttemptLedger


class Recorded:
    """Attempts that were made elsewhere.

    Args:
        what: The CSV file of an exported history, its frame, or attempts.
        space: The choices; those of the history where None, its first run as the default.
        objective: To score it by.
        policy: Whose choices are shown, by name.

    Raises:
        UsageError: a file that is no history, or one without an attempt.
    """

    def __init__(
        self, what: str | Path | pl.DataFrame | Sequence[Attempt], space: Space | None = None,
        objective: Objective | None = None, policy: BatchSizePolicy | str = "knowledge-gradient",
    ) -> None:
        self._all = _attempts(what)
        if not self._all and space is None:
            raise UsageError(
                "this history has no attempt, so nothing names which batch sizes there are; give "
                "space=Space(...)"
            )
        self.space = space or space_of(self._all)
        self.objective: Objective = objective or Energy()
        self.policy = make_policy(policy)
        self.shown = self.length
        self.ledger = AttemptLedger(self.space)
        self._show()

    @property
    def length(self) -> int:
        """Recurrences in all."""
        return len({a.recurrence for a in self._all})

    def play(self) -> bool:
        """Show one recurrence more; false where all are shown."""
        if self.shown >= self.length:
            return False
        self.shown += 1
        self._show()
        return True

    def rewind(self) -> None:
        """Show nothing, as before the first recurrence."""
        self.shown, self.ledger = 0, AttemptLedger(self.space)

    def add(self, path: Path) -> int:
        """Add what a file has more; all of it is shown. Returns how many attempts that were."""
        more = missing(read_csv(path), self._all)
        last = max((a.number for a in self._all), default=-1)
        self._all += [replace(a, number=last + 1 + number) for number, a in enumerate(more)]
        self.shown = self.length
        self._show()
        return len(more)

    def _show(self) -> None:
        known = {a.number for a in self.ledger.ended}
        firsts = sorted({a.recurrence for a in self._all})[: self.shown]
        replayed = set(firsts)
        for attempt in self._all:
            if attempt.recurrence in replayed and attempt.number not in known:
                self.ledger.take(attempt)


def space_of(attempts: Sequence[Attempt]) -> Space:
    """The choices that a history contains."""
    first = next((a for a in attempts if a.purpose == "run"), attempts[0])
    limits = {row[0] for a in attempts for row in a.profile if row[0] > 0}
    return Space(
        tuple(sorted({a.batch_size for a in attempts})), first.batch_size, tuple(sorted(limits)),
        max(1, int(np.ceil(max(a.epochs for a in attempts)))), attempts[-1].target, attempts[-1].gpu,
    )


def _attempts(what: str | Path | pl.DataFrame | Sequence[Attempt]) -> list[Attempt]:
    """Those that have ended, numbered in the order in which they stand: a file may be of several studies."""
    found = (
        read_csv(Path(what)) if isinstance(what, (str, Path))
        else of_frame(what) if isinstance(what, pl.DataFrame) else what
    )
    ended = [a for a in found if a.ended]
    new = {a.number: number for number, a in enumerate(ended)}
    return [
        replace(a, number=number, late_for=new.get(a.late_for) if a.late_for is not None else None)
        for number, a in enumerate(ended)
    ]
