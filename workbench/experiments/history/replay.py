"""A history without a study: a file, or frames, to be looked at."""

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
from .csv import of_frame, read_csv
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
        found = _attempts(what)
        if not found and space is None:
            raise UsageError(
                "this history has no attempt, so nothing names which batch sizes there are; give "
                "space=Space(...)"
            )
        self.space = space or space_of(found)
        self.objective: Objective = objective or Energy()
        self.policy = make_policy(policy)
        self.ledger = AttemptLedger(self.space)
        for attempt in found:
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
