"""What the workbench has besides its panels: a sweep's progress."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Hashable
from functools import partial
from typing import TYPE_CHECKING, Any

from ..logbook.report import format_duration
from ._core.live import LivePanel, Message, script

if TYPE_CHECKING:
    from ..experiments.sweep import Sweep


class HtmlPanel(LivePanel):
    """A page of HTML that changes now and then, with a bar and a Cancel button where something long goes on.

    Args:
        name: Its heading.
        read: Returns the HTML.
        seen: Returns something that changes with what there is to read.
        words: Returns the same as a few lines of text.
        sweep: Whose progress is shown.
    """

    poll_s = 1.0
    _esm = script("sheet")

    def __init__(
        self, name: str, read: Callable[[], str], seen: Callable[[], Hashable], words: Callable[[], str],
        sweep: Sweep | None = None,
    ) -> None:
        self.name, self._read, self._seen, self._words, self._sweep = name, read, seen, words, sweep
        self._told: Hashable = None
        super().__init__()
        self._read_s = -math.inf

    def summary(self) -> str:
        return f"{self.name}\n{self._words()}"

    def html(self) -> str:
        return self._read()

    @property
    def going(self) -> bool:
        """Whether its sweep is under way."""
        return self._sweep is not None and not self._sweep.cancelled and not self._sweep.reason

    def news(self, *, whole: bool = False) -> Message | None:
        told, sweep, bar = self._seen(), self._sweep, None
        if told == self._told and not whole:
            return None
        self._told = told
        if sweep is not None:
            bar = {
                "share": min(sweep.done / max(sweep.budget, 1), 1.0), "words": self._words(),
                "can_cancel": self.going,
            }
        return {"kind": "news", "name": self.name, "html": self._read(), "bar": bar}, []

    def on_message(self, kind: str, content: dict[str, Any]) -> None:
        if kind == "cancel" and self._sweep is not None:
            self._sweep.cancel()
            self.tell()


def progress_words(sweep: Sweep) -> str:
    """How far a sweep is: "12 of 40 configurations, 3 min left"."""
    words = f"{sweep.done} of {sweep.budget} configurations"
    left_s = sweep.remaining_s
    if sweep.failure and sweep.failure not in sweep.reason:
        words += f"; the first failure: {sweep.failure}"
    if sweep.reason:
        return f"{words}; ended: {sweep.reason}"
    if sweep.cancelled:
        return f"{words}; cancelled: the trials that run are finished and kept"
    words += f", {format_duration(left_s)} left" if left_s else ""
    return "; ".join(each for each in (words, sweep.note) if each)


def sweep_sheet(sweep: Sweep) -> HtmlPanel:
    """How far a sweep is, and a button that ends it."""
    words = partial(progress_words, sweep)
    return HtmlPanel("Sweep", lambda: f"<p>{html.escape(words())}</p>", words, words, sweep)
