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
        version: Returns something that changes with what there is to read.
        text: Returns the same as a few lines of text.
        sweep: Whose progress is shown.
    """

    poll_s = 1.0
    _esm = script("sheet")

    def __init__(
        self, name: str, read: Callable[[], str], version: Callable[[], Hashable], text: Callable[[], str],
        sweep: Sweep | None = None,
    ) -> None:
        self.name, self._read, self._version, self._text, self._sweep = name, read, version, text, sweep
        self._sent_version: Hashable = None
        super().__init__()
        self._read_s = -math.inf

    def summary(self) -> str:
        return f"{self.name}\n{self._text()}"

    def html(self) -> str:
        return self._read()

    @property
    def going(self) -> bool:
        """Whether its sweep is under way."""
        return self._sweep is not None and not self._sweep.cancelled and not self._sweep.reason

    def news(self, *, whole: bool = False) -> Message | None:
        current, sweep, bar = self._version(), self._sweep, None
        if current == self._sent_version and not whole:
            return None
        self._sent_version = current
        if sweep is not None:
            bar = {
                "share": min(sweep.done / max(sweep.budget, 1), 1.0), "words": self._text(),
                "can_cancel": self.going,
            }
        return {"kind": "news", "name": self.name, "html": self._read(), "bar": bar}, []

    def on_message(self, kind: str, content: dict[str, Any]) -> None:
        if kind == "cancel" and self._sweep is not None:
            self._sweep.cancel()
            self.tell()


def progress_text(sweep: Sweep) -> str:
    """How far a sweep is: "12 of 40 configurations, 3 min left"."""
    text = f"{sweep.done} of {sweep.budget} configurations"
    left_s = sweep.remaining_s
    if sweep.failure and sweep.failure not in sweep.reason:
        text += f"; the first failure: {sweep.failure}"
    if sweep.reason:
        return f"{text}; ended: {sweep.reason}"
    if sweep.cancelled:
        return f"{text}; cancelled: the trials that run are finished and kept"
    text += f", {format_duration(left_s)} left" if left_s else ""
    return "; ".join(each for each in (text, sweep.note) if each)


def sweep_sheet(sweep: Sweep) -> HtmlPanel:
    """How far a sweep is, and a button that ends it."""
    text = partial(progress_text, sweep)
    return HtmlPanel("Sweep", lambda: f"<p>{html.escape(text())}</p>", text, text, sweep)
