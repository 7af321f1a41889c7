"""The record of a tuning: events, blocks, counted and saved energy, and its result."""

from __future__ import annotations

from collections.abc import Callable

import polars as pl

from ..experiments.iteration_sources import MarkSource
from ..records import Setting
from .detect_iterations import DetectedIterations
from .ledger import Ledger
from .results import PROBES, TuningResult


class TuningRecord:
    """Record of one tuning, from its first moment to its last, in all states.

    Attributes:
        text: What goes on and what is next, one sentence.
        events: (seconds since the tuner began, text), newest last.
        notes: Remarks for the result.
        found: The iterations that were found last.
        trials: Rows of `results.PROBES`; `made` of them have measured something.
        held: The setting that was held last.
        not_restored: Sentences about settings that could not be restored.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock, self.begun_s = clock, clock()
        self.text = "waiting for the GPU to work"
        self.events: list[tuple[float, str]] = []
        self.notes: list[str] = []
        self.ledger = Ledger()
        self.trials, self.made = pl.DataFrame(schema=PROBES), 0
        self.found: DetectedIterations | None = None
        self.model = ""
        self.held: Setting | None = None
        self.held_since_s: float | None = None
        self.settled_s: float | None = None
        self.settled_iterations: int | None = None
        self.retuned = 0
        self.not_restored: list[str] = []

    @property
    def elapsed_s(self) -> float:
        """Since the tuner began."""
        try:
            return self.clock() - self.begun_s
        except Exception:  # a simulated machine that was taken away
            return self.events[-1][0] if self.events else 0.0

    @property
    def iteration_s(self) -> float:
        """Length of an iteration as it was found; 0 while none was."""
        return self.found.iteration_s if self.found is not None else 0.0

    def note(self, text: str) -> None:
        """Add an event."""
        self.events.append((self.elapsed_s, text))

    def remark(self, text: str) -> None:
        """Add an event that belongs to the result."""
        self.note(text)
        if text not in self.notes:
            self.notes.append(text)

    @property
    def iterations(self) -> float:
        """Counted since the tuner began."""
        if self.found is not None and isinstance(self.found.source, MarkSource):
            return float(self.found.source.total)
        return self.ledger.iterations

    # what is reported

    @property
    def source(self) -> str:
        """Where iterations come from; "clocks" where the clocks alone keep the limit, empty before."""
        if self.found is not None:
            return self.found.source.name
        return "clocks" if self.settled_s is not None else ""

    def result(self, state: str, refused: str, simulated: bool) -> TuningResult:
        """Result as if the tuning had ended now, in this state."""
        reason = refused
        if not reason and self.settled_s is None:
            when = {"wait": "the GPU was busy for less than 2 s", "detect": "no iteration was known yet"}
            reason = (f"the run was too short ({self.elapsed_s:.3g} s): "
                      f"{when.get(state, 'no setting was found')}. Tuning takes about 10 s and 20 iterations")
        return TuningResult(
            state, self.held, self.ledger.saved(), self.settled_s, self.settled_iterations, self.source,
            self.made, *self.ledger.spent, self.retuned, self.elapsed_s, reason,
            tuple(self.not_restored), tuple(self.events), tuple(self.notes), simulated, self.held_since_s,
        )
