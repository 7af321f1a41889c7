"""Shows and runs a recurring job: the estimated cost of each batch size, the saving, the best power limit.

    workbench.panels.recurring(job, run=train)       a job; its buttons run recurrences with `train(run)`
    workbench.panels.recurring("history.csv")        an exported history

The slider moves eta between time and energy. A new eta rescores the history and applies to the next
recurrence. Runs that other processes or a running cell add to the history appear automatically.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from ....errors import UsageError, describe_error
from ....experiments.history.attempts import Attempt
from ....experiments.history.outlook import Outlook, attempts_paid, outlook_of
from ....experiments.history.replay import Recorded
from ....experiments.history.study import JobStudy
from ....experiments.job import RecurringJob
from ....search.batch_size.history import Space
from ....search.objective import Objective
from ..._core.live import Content, LivePanel, Message, field, script
from ..._core.svg import titled
from .figure import draw
from .model import RecurringView, view
from .sources import JobSource, Played, Studied

POLICIES = {"KnowledgeGradient": "our policy", "ZeusPolicy": "Zeus' policy"}


class RecurringPanel(LivePanel):
    """A recurring job's estimates, costs and savings. `recurring` documents the arguments."""

    keeps_error = ("stop",)
    _esm = script("recurring")

    def __init__(self, source: JobSource, *, live: bool | None = None) -> None:
        self.source = source
        self._observed: Hashable = None
        self._paid: tuple[int, Any] = (-1, None)
        self._outlook: Outlook | None = None
        self._view: RecurringView | None = None
        self._described: Content | None = None  # the view, in the form for browsers
        self._worker: threading.Thread | None = None
        self._left = 0  # recurrences still to run
        self._error: Exception | None = None  # that ended the last run
        super().__init__(live=live)
        self._reread()

    # for the caller

    @property
    def outlook(self) -> Outlook:
        """The content as values and frames."""
        self.refresh()
        assert self._outlook is not None
        return self._outlook

    def run(self, count: int = 1) -> None:
        """Run `count` recurrences and wait; after an interrupt no further one begins."""
        self._begin(count)
        assert self._worker is not None
        try:
            self._worker.join()
        except KeyboardInterrupt:
            self.stop()
            raise
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Start no further recurrence; the running one is finished."""
        self._left = min(self._left, 1)

    def set_eta(self, eta: float, *, asked: int | None = None) -> None:
        """Weigh energy by `eta` (0..1) from now on, as the slider does."""
        with self._lock:
            try:
                self.source.set_eta(eta)
            finally:
                self.tell(asked=asked)

    def refresh(self) -> bool:
        """Read the newest history; returns whether it has changed."""
        with self._lock:
            observed = self.source.read()
            if self._view is not None and observed == self._observed:
                return False
            ledger = self.source.ledger
            if self._paid[0] != len(ledger.ended):
                self._paid = (len(ledger.ended), attempts_paid(ledger.attempts, ledger.space))
            policy, pardoned = self.source.history.policy, self.source.pardoned
            objective = self.source.history.objective
            self._outlook = outlook_of(ledger, self._paid[1], objective, policy, pardoned=pardoned)
            self._view = view(self._outlook, [*ledger.open.values()])
            self._observed = observed
            text = {name: getattr(self._view, name) for name in ("headline", "details", "eta", "objective")}
            self._described = {**text, "figure": draw(self.title(), self._view).described()}
            return True

    # showing

    def title(self) -> str:
        text = f"Recurring job {self.source.name}" if self.source.name else "Recurring job"
        policy = type(self.source.history.policy).__name__
        if policy in POLICIES:  # else one of the caller's own, or a sampler of Optuna's
            text += f", by {POLICIES[policy]}"
        return titled(text, self.source.simulated)

    def summary(self) -> str:
        observed = self._view
        sentences = (
            [] if observed is None else [observed.headline, *observed.details, f"by {observed.objective}"]
        )
        return "\n".join([self.title(), *sentences])

    def svg(self) -> str:
        assert self._view is not None
        return draw(self.title(), self._view).svg()

    # for the views

    def about(self) -> Content:
        return {
            "title": self.title(), "name": self.source.name, "simulated": self.source.simulated,
            "whyNot": self.source.why_not,
        }

    def news(self, *, whole: bool = False) -> Message:
        return {"kind": "news", "view": self._described, "left": self._left}, []

    def on_message(self, kind: str, content: Content) -> None:
        with self._lock:
            if kind == "eta":
                self.set_eta(field(content, "eta", "float"), asked=content.get("asked"))
            elif kind == "run":
                self._begin(field(content, "count", "int"))
            elif kind == "stop":
                self.stop()
                self.tell()

    # running

    def _begin(self, count: int) -> None:
        with self._lock:
            if self.source.why_not:
                raise UsageError(self.source.why_not)
            if self._left:
                raise UsageError("a recurrence is already running; wait for its end, or stop after it")
            if count < 1:
                raise UsageError(f"{count} recurrences cannot be run; choose 1 or more")
            self._left, self._error = count, None
            self._worker = threading.Thread(target=self._work, name="recurrences", daemon=True)
            self._worker.start()

    def _work(self) -> None:
        """Run recurrences until all are done, a person stops them or one fails; the view stays live."""
        with self._lock:
            self.tell()
        while self._left > 0:
            try:
                self.source.recur()
            except Exception as error:
                self._error = error
                self.report_error(describe_error(error))
            with self._lock:
                self._left = self._left - 1 if self._error is None else 0
                with self._report_errors():
                    self.tell()


def recurring(
    job: RecurringJob | JobStudy | Recorded | pl.DataFrame | Sequence[Attempt] | str | Path,
    run: Callable[[Any], object] | None = None, *, space: Space | None = None,
    objective: Objective | None = None, live: bool | None = None,
) -> RecurringPanel:
    """Show a recurring job, and run it.

    Args:
        job: A job or its study; or a history: its CSV file, its frame, its attempts.
        run: The function behind the buttons. For a job it is the training, as `RecurringJob.run` takes it.
            For a study it takes the study and runs one recurrence. It is called on its own thread.
        space, objective: Search space and objective of a history, which a file does not contain.
        live: True for a widget, False for a picture; None takes a widget if the front end supports them.

    Raises:
        UsageError: Another object, or a history that cannot be read.
    """
    if isinstance(job, (RecurringJob, JobStudy)):
        return RecurringPanel(Studied(job, run), live=live)
    if run is not None:
        raise UsageError("a history has nothing to run; give the job or its study, or leave out run=")
    if isinstance(job, Recorded):
        return RecurringPanel(Played(job, ""), live=live)
    if not isinstance(job, (str, Path, pl.DataFrame, Sequence)):
        kind = type(job).__name__
        raise UsageError(f"expected a recurring job, its study or its history, got {kind}")
    name = Path(job).stem if isinstance(job, (str, Path)) else ""
    return RecurringPanel(Played(Recorded(job, space, objective), name), live=live)
