"""What the workbench has besides its panels: the log as a table, a sweep's progress."""

from __future__ import annotations

import html
import math
import time
from collections.abc import Callable, Hashable
from functools import partial
from typing import TYPE_CHECKING, Any

import polars as pl

from .._html import table
from ..measurement.report import format_duration, format_energy
from ..measurement.store import Store
from ._core.live import LivePanel, Message, script
from ._views.frontier.sources import files, log_of

if TYPE_CHECKING:
    from ..experiments.sweep import Sweep

ROWS = 40  # of the log that are shown, newest first
HEADS = ("when", "label", "outcome", "time", "energy", "power", "limit", "GPU")


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

    def news(self, *, whole: bool = False) -> Message | None:
        told, sweep, bar = self._seen(), self._sweep, None
        if told == self._told and not whole:
            return None
        self._told = told
        if sweep is not None:
            bar = {
                "share": min(sweep.done / max(sweep.budget, 1), 1.0), "words": self._words(),
                "can_cancel": not sweep.cancelled and not sweep.reason,
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
    return words + (f", {format_duration(left_s)} left" if left_s else "")


def log_sheet(store: Store) -> HtmlPanel:
    """The newest measurements of the log."""
    return HtmlPanel(
        "Log", lambda: log_html(log_of(store)), lambda: files(store),
        lambda: f"{len(log_of(store))} measurements",
    )


def log_html(log: pl.DataFrame) -> str:
    """The newest measurements as a table."""
    if log.is_empty():
        return "<p>Nothing is measured yet: %%energy above a cell measures it.</p>"
    rows = []
    for row in log.tail(ROWS).reverse().iter_rows(named=True):
        gpus = row["gpus"] or []
        watts = None if not row["time_s"] or row["energy_j"] is None else row["energy_j"] / row["time_s"]
        limit_w = gpus[0]["power_limit_w"] if gpus else None
        rows.append((
            time.strftime("%d %b %H:%M", time.localtime(row["started_unix_s"])), row["label"], row["outcome"],
            format_duration(row["time_s"]), format_energy(row["energy_j"], row["energy_uncertainty_j"]),
            "" if watts is None else f"{watts:.0f} W", "" if limit_w is None else f"{limit_w:.0f} W",
            " + ".join(dict.fromkeys(gpu["name"] for gpu in gpus)),
        ))
    more = "" if len(log) <= ROWS else f"<p>and {len(log) - ROWS} earlier ones: %energy_log</p>"
    return table(HEADS, rows, style="font-size:12px") + more


def sweep_sheet(sweep: Sweep) -> HtmlPanel:
    """How far a sweep is, and a button that ends it."""
    words = partial(progress_words, sweep)
    return HtmlPanel("Sweep", lambda: f"<p>{html.escape(words())}</p>", words, words, sweep)
