"""The log of all runs: sort, filter, group and tag them, open one, compare two.

    workbench.panels.log()        the content of `%energy_log`, interactive
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from ...._html import table
from ....errors import UsageError, type_name
from ....logbook.equal_work import describe_comparison
from ....logbook.report import page
from ....logbook.run_table import EMPTY, SHOWN, as_text, rows, texts
from ....logbook.store import Store
from ..._core.live import Content, LivePanel, Message, field, script
from ..._core.log_files import log_version, readable_log
from .svg import comparison_picture, run_picture

NO_TRACE = "<p>No trace is stored: the run was too short, or newer traces replaced it.</p>"
ALL_COLUMNS = (
    "when", "label", "energy", "time", "J/iteration", "setting", "batch size", "work", "tokens", "tag",
    "note", "what", "GPU",
)
NUMBERS = {  # columns that are sorted by a number of the log
    "when": "started_unix_s", "batch size": "batch_size", "energy": "energy_j", "time": "time_s",
    "J/iteration": "iteration_j",
}


class LogPanel(LivePanel):
    """The measured runs, as a table to sort, filter, group and tag; one is opened, two are compared.

    `chosen` are the ids of the ticked runs.

    Args:
        store: The store of the runs; None takes this user's.
        live: True for a widget, False for a picture; None takes a widget if the front end supports them.
    """

    poll_s = 1.0
    _esm = script("runs")

    def __init__(self, store: Store | None = None, *, live: bool | None = None) -> None:
        if not isinstance(store, Store | None):
            raise UsageError(f"expected a store of runs, got {type_name(store)}; leave it out for your own")
        self.store, self.chosen = store or Store(), tuple[str, ...]()
        self._sent_version: Any = None, ()  # of the runs, and the ticked ones
        self._sent_runs: dict[str, Content] = {}
        self._drawn: tuple[tuple[str, ...], str] = ((), "")  # runs, and their page
        super().__init__(live=live)

    # for the caller

    def choose(self, *runs: str) -> None:
        """Open one run, or compare two, by label or id. Raises UsageError for an unknown run."""
        self.chosen = tuple(self.store.find(run).id for run in runs)
        self.tell()

    def summary(self) -> str:
        newest = readable_log(self.store).reverse()
        parts = [f"Log: {newest.height} runs", as_text(rows(newest.head(10), self.store.tags()))]
        if len(self.chosen) == 2:
            parts.insert(1, describe_comparison(*map(self.store.find, self.chosen)))
        return "\n".join(parts)

    def html(self) -> str:
        newest = readable_log(self.store).reverse()
        if newest.is_empty():
            return f"<p>{EMPTY}</p>"
        heads, found = texts(rows(newest.head(SHOWN), self.store.tags()))
        more = f"<p>The newest {SHOWN} of {newest.height} runs.</p>" * (newest.height > SHOWN)
        style = "font-size:12px;font-variant-numeric:tabular-nums"
        return f"<div style='overflow-x:auto'>{table(heads, found, style=style)}</div>{more}{self._page()}"

    # for the views

    def news(self, *, whole: bool = False) -> Message | None:
        tags = self.store.tags()
        of_runs = log_version(self.store), tags
        if (of_runs, self.chosen) == self._sent_version and not whole:
            return None
        runs = self._sent_runs
        if of_runs != self._sent_version[0]:
            runs = {run["id"]: run for run in log_runs(readable_log(self.store).reverse(), tags)}
        self._sent_version = of_runs, self.chosen
        whole = whole or not self._sent_runs.keys() <= runs.keys()
        fresh = [run for run in runs.values() if whole or self._sent_runs.get(run["id"]) != run]
        self._sent_runs = runs
        return {
            "kind": "news", "columns": list(ALL_COLUMNS), "runs": fresh, "whole": whole,
            "chosen": list(self.chosen), "look": self._page() if runs else f"<p>{EMPTY}</p>",
        }, []

    def on_message(self, kind: str, content: Content) -> None:
        ids = field(content, "ids", "[str]") if kind in ("sparks", "choose", "tag") else ()
        if unknown := set(ids) - set(readable_log(self.store)["id"]):
            raise UsageError(f"the log has no run {min(unknown)!r}; reload the page")
        if kind == "sparks":
            self._say({"kind": "sparks", "sparks": {run: sparkline(self.store.trace(run)) for run in ids}})
            return
        if kind == "choose":
            self.chosen = ids
        elif kind == "tag":
            text = field(content, "text", "str")
            for run in ids:
                self.store.tag(run, text)
        self.tell()

    # inside

    def _page(self) -> str:
        if self._drawn[0] != self.chosen:
            self._drawn = (self.chosen, self._draw(self.chosen))
        return self._drawn[1]

    def _draw(self, chosen: Sequence[str]) -> str:
        if not 0 < len(chosen) < 3:
            return ""
        runs = [self.store.find(run) for run in chosen]
        traces = [self.store.trace(run.id) for run in runs]
        if len(runs) == 2:
            return comparison_picture(runs, traces)
        picture = NO_TRACE
        if traces[0] is not None and traces[0].height:
            picture = run_picture(runs[0], traces[0], self.store.iterations(runs[0].id))
        return page(runs[0]) + picture


def log_runs(log: pl.DataFrame, tags: Mapping[str, str]) -> list[Content]:
    """Rows of a log (`store.SCHEMA`) for the table: id, texts by `ALL_COLUMNS`, and numbers to sort by."""
    found = []
    for row, shown in zip(log.iter_rows(named=True), rows(log, now_unix_s=time.time()), strict=True):
        tokens = sum(each["amount"] for each in row["work"] or () if each["name"] == "tokens")
        shown |= {"tokens": f"{tokens:,.0f}" if tokens else "", "tag": tags.get(row["id"], "")}
        numbers = {name: row.get(column) for name, column in NUMBERS.items()} | {"tokens": tokens or None}
        found.append({
            "id": row["id"], "cells": [shown[name] for name in ALL_COLUMNS],
            "numbers": [numbers.get(name) for name in ALL_COLUMNS],
        })
    return found


def sparkline(trace: pl.DataFrame | None) -> list[int]:
    """Mean power (W) over equal parts of a trace, of all its GPUs together; empty without a trace."""
    if trace is None:
        return []
    by_gpu = [part["power_w"].drop_nulls().to_numpy() for part in trace.partition_by("uuid")]
    parts = [[float(each.mean()) for each in np.array_split(power_w, min(45, len(power_w)))]
             for power_w in by_gpu if len(power_w)]
    shortest = min(map(len, parts), default=0)
    return [round(sum(part[n] for part in parts)) for n in range(shortest)]


log = LogPanel
