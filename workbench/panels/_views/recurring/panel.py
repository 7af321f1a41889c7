"""A recurring job to look at and to run: what is believed of each batch size, what was saved, which power
limit is best.

    workbench.panels.recurring(job, run=train)       a job; its buttons run recurrences with `train(run)`
    workbench.panels.recurring("history.csv")        an exported history; its buttons play it again

The slider moves eta between time and energy: everything is scored anew from the history, and the next
recurrence is chosen by it. What other processes or a running cell add to the history appears by itself.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ....errors import UsageError, WorkbenchError
from ....experiments.history.attempts import Attempt
from ....experiments.history.outlook import Outlook, attempts_paid, look
from ....experiments.history.replay import Recorded
from ....experiments.history.study import JobStudy
from ....experiments.job import RecurringJob
from ....search.batch_size.history import RunHistory, Space
from ....search.objective import Objective
from ..._core import theme
from ..._core.live import Message, module, resting
from ..._core.persistent import PersistentPanel
from ..._core.svg import page
from .model import RecurringView, view
from .sources import JobSource, Played, Studied, as_csv
from .svg import draw

POLL_S = 0.5  # between two looks at a history that others may write
MOST = 1000  # recurrences on one click


class RecurringPanel(PersistentPanel):
    """A recurring job's beliefs, costs and savings.

    Args:
        source: Where the history is.
        live: A widget or a picture; None takes a widget where the front end has them.
    """

    _esm = module("base.js", "recurring.js")

    def __init__(self, source: JobSource, *, live: bool | None = None) -> None:
        self.source = source
        self._seen: Hashable = None
        self._paid: tuple[int, Any] = (-1, None)
        self._outlook: Outlook | None = None
        self._view: RecurringView | None = None
        self._sent: RecurringView | None = None  # to the browser
        self._read_s = self._heard_s = time.monotonic()
        self._worker: threading.Thread | None = None
        self._left = 0  # recurrences that are still to be run
        self._note = ""
        self._error: Exception | None = None  # that ended the last run
        super().__init__(live=live)
        with self._report_errors():
            self.refresh()

    # for the caller

    @property
    def outlook(self) -> Outlook:
        """What is shown, as values and frames."""
        self.refresh()
        assert self._outlook is not None
        return self._outlook

    def set_eta(self, eta: float) -> None:
        """Weigh energy (1) against time (0) anew: for what is shown, and for what runs next."""
        with self._lock:
            self.source.set_eta(float(eta))
            self._tell()

    def run(self, count: int = 1) -> None:
        """Run so many recurrences, or play them again; returns when they are done. After an interrupt no
        further one begins.
        """
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
        """Run no further recurrence; the one that runs comes to its end."""
        self._left = min(self._left, 1)

    def export_csv(self, path: str | Path) -> int:
        """Write the history as CSV; returns how many attempts that were."""
        text = as_csv(self.source.ledger.attempts)
        Path(path).write_text(text, encoding="utf-8")
        return sum(a.ended for a in self.source.ledger.attempts)

    def import_csv(self, path: str | Path) -> int:
        """Add an exported history; returns how many attempts of it were new."""
        with self._lock:
            count = self.source.add(Path(path).read_text(encoding="utf-8"))
            self._tell()
            return count

    def refresh(self) -> bool:
        """Take in what is new; whether there was anything."""
        with self._lock:
            self._read_s = time.monotonic()
            seen = self.source.read()
            if self._view is not None and seen == self._seen:
                return False
            ledger = self.source.ledger
            if self._paid[0] != len(ledger.ended) or self.source.replayed:
                self._paid = (len(ledger.ended), attempts_paid(ledger.attempts, ledger.space))
            self._outlook = look(
                ledger, self._paid[1], self.source.objective, self.source.policy,
                pardoned=self.source.pardoned,
            )
            self._view = view(self._outlook, list(ledger.open.values()))
            self._seen = seen
            self._picture_later()
            return True

    # showing

    def title(self) -> str:
        words = f"Recurring job {self.source.name}" if self.source.name else "Recurring job"
        return (
            words
            + (", replayed" if self.source.replayed else "")
            + (" (simulated)" if self.source.simulated else "")
        )

    def summary(self) -> str:
        if self._view is None:
            return self.title()
        return "\n".join(
            [self.title(), self._view.headline, *self._view.details, f"by {self._view.objective}"]
        )

    def svg(self) -> str:
        """The view as an `<svg>` element that needs no scripts and no network."""
        assert self._view is not None
        return draw(self.title(), self._view)

    def html(self) -> str:
        """The picture and its words: HTML without scripts."""
        return page(self.svg(), self.summary())

    # for the views

    def snapshot(self) -> Message:
        self._heard_s = time.monotonic()
        self.start()
        with self._report_errors():
            self.refresh()
        about = {
            "title": self.title(),
            "name": self.source.name,
            "simulated": self.source.simulated,
            "replayed": self.source.replayed,
            "whyNot": self.source.why_not,
            "theme": theme.VARIABLES,
            "colours": [theme.colour(0), theme.colour(1), theme.colour(2)],
        }
        return {**about, **self._state(), "view": self._told()}, []

    def changes(self) -> Message | None:
        if resting(self._read_s, self._heard_s, POLL_S):
            return None
        self.refresh()
        # Not what `refresh` returns: a call from Python may have taken it in, and the browser does not know
        # it.
        return None if self._sent is self._view else self._news()

    def _received(self, widget: Any, content: Any, buffers: Any) -> None:
        self._heard_s = time.monotonic()
        super()._received(widget, content, buffers)

    def on_message(self, kind: str, content: dict[str, Any]) -> None:
        if kind in ("eta", "run", "rewind", "import", "export"):
            self.report_error("")  # of what was asked for before
        with self._lock:
            if kind == "eta":
                try:
                    self.source.set_eta(float(content["eta"]))
                    self.refresh()
                finally:
                    self._say(*self._news(asked=content.get("asked")))
            elif kind == "run":
                self._begin(int(content.get("count", 1)))
            elif kind == "stop":
                self.stop()
                self._tell()
            elif kind == "rewind":
                self.source.rewind()
                self._tell()
            elif kind == "export":
                self._say(
                    {
                        "kind": "csv",
                        "name": f"{self.source.name or 'history'}.csv",
                        "text": as_csv(self.source.ledger.attempts),
                    }
                )
            elif kind == "import":
                count = self.source.add(str(content["text"]))
                self._note = (
                    f"{count} attempt{'s' * (count != 1)} added" if count else "nothing was new in that file"
                )
                self._tell()

    def _told(self) -> dict[str, Any] | None:
        return None if self._view is None else asdict(self._view)

    def _state(self) -> dict[str, Any]:
        return {"left": self._left, "note": self._note}

    def _news(self, **more: Any) -> Message:
        self._sent = self._view
        return {"kind": "news", "view": self._told(), **self._state(), **more}, []

    def _tell(self) -> None:
        self.refresh()
        self._say(*self._news())

    # running

    def _begin(self, count: int) -> None:
        with self._lock:
            if self.source.why_not:
                raise UsageError(self.source.why_not)
            if self._left:
                raise UsageError("a recurrence runs already; let it end, or stop after it")
            if not 1 <= count <= MOST:
                raise UsageError(f"{count} recurrences cannot be run at once; choose 1 to {MOST}")
            self._left, self._note, self._error = count, "", None
            self._worker = threading.Thread(target=self._work, name="recurrences", daemon=True)
            self._worker.start()

    def _work(self) -> None:
        """Run recurrences until there are enough, somebody stops, or one goes wrong."""
        with self._lock:
            self._tell()
        while self._left > 0:
            went = False
            try:
                # What is played again is done at once; a training takes its time, and the view goes on
                # meanwhile.
                with self._lock if self.source.replayed else contextlib.nullcontext():
                    went = self.source.recur()
            except Exception as error:
                self._error = error
                self.report_error(
                    str(error) if isinstance(error, WorkbenchError) else f"{type(error).__name__}: {error}"
                )
            with self._lock:
                self._left = self._left - 1 if went else 0
                if not went and self._error is None:
                    self._note = "that was the last recurrence of this history; rewind it to play it again"
                with self._report_errors():
                    self._tell()


def recurring(
    job: RecurringJob | JobStudy | Recorded | RunHistory | Sequence[Attempt] | str | Path,
    run: Callable[[Any], object] | None = None, *, space: Space | None = None,
    objective: Objective | None = None, live: bool | None = None, simulated: bool | None = None,
) -> RecurringPanel:
    """Look at a recurring job, and run it.

    Args:
        job: A job or its study; or a history: its CSV file, its frames, its attempts.
        run: What the buttons run: for a job the training, as `RecurringJob.run` takes it; for a study a
            function of the study that runs one recurrence. It is called on a thread of its own.
        space, objective: For a history, what could be chosen and what is to be small; a file does not tell.
        live: A widget or a picture; None takes a widget where the front end has them.
        simulated: Whether no joule of it is real, where the history does not tell.

    Raises:
        UsageError: none of these, or a history that cannot be read.
    """
    if isinstance(job, (RecurringJob, JobStudy)):
        return RecurringPanel(Studied(job, run, simulated), live=live)
    if run is not None:
        raise UsageError("a history has nothing to run; give the job or its study, or leave out run=")
    if not isinstance(job, Recorded):
        if not isinstance(job, (str, Path, RunHistory, Sequence)):
            raise UsageError(
                f"a recurring job, its study or its history can be looked at, not {type(job).__name__}"
            )
        name = Path(job).stem if isinstance(job, (str, Path)) else ""
        return RecurringPanel(Played(Recorded(job, space, objective), name, simulated), live=live)
    return RecurringPanel(Played(job, "", simulated), live=live)


__all__ = ["RecurringPanel", "recurring"]
