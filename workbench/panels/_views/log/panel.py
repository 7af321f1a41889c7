"""The log of all runs: sort, filter and tag them, look at one, compare two.

    workbench.panels.log()        what `%energy_log` has, to click on
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import Any

from ....errors import UsageError
from ....logbook.equal_work import describe_comparison
from ....logbook.report import page
from ....logbook.run_table import EMPTY, SORTABLE, as_text
from ....logbook.store import Store
from ..._core.live import LivePanel, Message, script
from ..._core.log_files import log_version, readable_log
from .model import FILTER, LogSelection, selected_rows, table_html, tag_field
from .svg import comparison_picture, run_picture

NO_TRACE = "<p>No trace of it is kept: it was too short, or made room for newer ones.</p>"


class LogPanel(LivePanel):
    """The runs that were measured, as a table to sort, filter and tag; one is looked at, two are compared.

    `selection` is what a person has chosen.

    Args:
        store: Where they are; this user's where None.
        live: A widget or a picture; None takes a widget where the front end has them.
    """

    poll_s = 1.0
    _esm = script("sheet")

    def __init__(self, store: Store | None = None, *, live: bool | None = None) -> None:
        self.store, self.selection = store or Store(), LogSelection()
        self._sent_version: Hashable = None
        self._drawn: tuple[tuple[str, ...], str] = ((), "")  # runs, and the HTML of a look at them
        super().__init__(live=live)

    # for the caller

    def choose(self, *runs: str) -> None:
        """Look at one run, or compare two, by label or id.

        Raises:
            UsageError: there is no such run, or there are more than two.
        """
        if len(runs) > 2:
            raise UsageError(f"{len(runs)} runs cannot be compared; choose one or two")
        found = tuple(self.store.find(run).id for run in runs)
        self.selection = replace(self.selection, chosen=found)
        self.tell()

    def summary(self) -> str:
        runs = selected_rows(readable_log(self.store), self.store.tags(), self.selection)
        parts = [f"Log: {len(runs)} runs", as_text(runs[:10])]
        if len(self.selection.chosen) == 2:
            parts.insert(1, describe_comparison(*map(self.store.find, self.selection.chosen)))
        return "\n".join(parts)

    def html(self) -> str:
        return self._html(live=False)

    # for the views

    def news(self, *, whole: bool = False) -> Message | None:
        current = (log_version(self.store), tuple(sorted(self.store.tags().items())), self.selection)
        if current == self._sent_version and not whole:
            return None
        self._sent_version = current
        shown = {"kind": "news", "name": "Log", "html": self._html(live=True), "bar": None}
        return {**shown, "tools": FILTER}, []

    def on_message(self, kind: str, content: dict[str, Any]) -> None:
        if kind != "act":
            return
        (name, *rest), value = str(content["name"]).split(), str(content["value"])
        if name == "sort" and value in SORTABLE:
            self.selection = self.selection.sorted_by(value)
        elif name == "filter":
            self.selection = replace(self.selection, text=value)
        elif name == "choose":
            self.selection = self.selection.toggled(value)
        elif name == "tag" and rest:
            self.store.tag(rest[0], value)
        self.tell()

    # inside

    def _html(self, *, live: bool) -> str:
        log, tags = readable_log(self.store), self.store.tags()
        if log.is_empty():
            return f"<p>{EMPTY}</p>"
        runs = selected_rows(log, tags, self.selection)
        counted = f"{len(runs)} of {log.height} runs" if self.selection.text else f"{log.height} runs"
        hint = "; tick one to look at it, two to compare them" * live
        drawn = self._page(live=live, tags=tags)
        return f"<p>{counted}{hint}</p>{drawn}{table_html(runs, self.selection, live=live)}"

    def _page(self, *, live: bool, tags: dict[str, str]) -> str:
        chosen = self.selection.chosen
        if not chosen:
            return ""
        if self._drawn[0] != chosen:
            self._drawn = (chosen, self._draw(chosen))
        field = tag_field(chosen[0], tags.get(chosen[0], "")) if live and len(chosen) == 1 else ""
        return f"<div class='workbench-look'>{self._drawn[1]}{field}</div>"

    def _draw(self, chosen: tuple[str, ...]) -> str:
        runs = [self.store.find(run) for run in chosen]
        traces = [self.store.trace(run.id) for run in runs]
        if len(runs) == 2:
            return comparison_picture(runs, traces)
        picture = NO_TRACE
        if traces[0] is not None and traces[0].height:
            picture = run_picture(runs[0], traces[0], self.store.iterations(runs[0].id))
        return page(runs[0]) + picture


log = LogPanel
