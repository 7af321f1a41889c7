"""The log as a person reads it: one row a run, newest first, every value a short text.

`%energy_log`, `workbench log` and the Log tab of the workbench show this table.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterable, Mapping
from typing import Any

import polars as pl

from .._html import MOST_ROWS, table
from ..tariff import significant
from .quantities import MOST_SETTINGS, as_columns, format_duration, format_energy, gpu_names
from .report import decisive_notes

Row = Mapping[str, Any]  # of a log, or of a GPU in it
Texts = Mapping[str, str]
SHOWN = MOST_ROWS
COLUMNS = ("when", "label", "what", "GPU", "setting", "batch size", "energy", "time", "J/iteration", "work",
           "note")
EMPTY = "Nothing is measured yet: write %%energy above a cell, or run `workbench run -- python train.py`."


def rows(
    log: pl.DataFrame, tags: Texts | None = None, *, now_unix_s: float | None = None
) -> list[dict[str, str]]:
    """Rows of a log (`store.SCHEMA`) in its order: texts by `COLUMNS`, and the run's id as "id"."""
    now_s = time.time() if now_unix_s is None else now_unix_s
    known = tags or {}
    return [_texts(row, known.get(row["id"], ""), now_s) for row in log.iter_rows(named=True)]


def _texts(row: Row, tag: str, now_s: float) -> dict[str, str]:
    gpus = row["gpus"] or []
    joules = row["iteration_j"]
    per_iteration = "" if joules is None else format_energy(joules, row["iteration_j_uncertainty"])
    return {
        "id": row["id"], "when": when(row["started_unix_s"], now_s), "label": row["label"],
        "what": row.get("kind") or "cell",
        "GPU": gpu_names(gpu["name"] for gpu in gpus) + ", simulated" * bool(row["simulated"]),
        "batch size": str(row.get("batch_size") or ""),
        "energy": "-" if row["energy_j"] is None else format_energy(row["energy_j"],
                                                                    row["energy_uncertainty_j"]),
        "time": format_duration(row["time_s"]), "J/iteration": per_iteration,
        "work": _work(row),
        "setting": "; ".join(dict.fromkeys(set_to(gpu) for gpu in gpus)), "note": _note(row, tag),
    }


def _work(row: Row) -> str:
    """How much was done, with the first kind's rate: "3072 samples (12.3/J), 24 iterations"."""
    work = list(row.get("work") or ())
    parts = [f"{significant(each['amount'], 4)} {each['name'].replace('_', ' ')}" for each in work]
    if parts and row["energy_j"]:
        parts[0] += f" ({significant(work[0]['amount'] / row['energy_j'])}/J)"
    if row["iteration_count"]:
        parts.append(f"{row['iteration_count']} iterations")
    return ", ".join(parts)


def set_to(gpu: Row) -> str:
    """The setting of a GPU: its power limit, and locked clocks. If it changed inside, each stretch with its
    length ("250 W 3 s → 150 W 7 s"), or of many the longest settings.
    """
    if segments := gpu.get("segments"):
        named = [(_knobs(each), each["time_s"]) for each in segments]
        if len(named) <= MOST_SETTINGS:
            return " → ".join(f"{name} {format_duration(time_s)}" for name, time_s in named)
        sums = {name: sum(time_s for other, time_s in named if other == name) for name, _ in named}
        longest = sorted(sums, key=lambda name: -sums[name])[:MOST_SETTINGS]
        return ", ".join([*(f"{name} {format_duration(sums[name])}" for name in longest), "..."])
    return _knobs(gpu)


def limit_w(gpu: Row) -> float | None:
    """The power limit of a GPU, or of a stretch: as set, else as read; None where neither is known."""
    known_w: float | None = (gpu["setting"] or {}).get("power_limit_w")
    return gpu.get("power_limit_w") if known_w is None else known_w


def _knobs(gpu: Row) -> str:
    setting = gpu["setting"] or {}
    knobs = (("{:.0f} W", limit_w(gpu)), ("SM {} MHz", setting.get("sm_clock_mhz")),
             ("memory {} MHz", setting.get("mem_clock_mhz")))
    return ", ".join(form.format(value) for form, value in knobs if value is not None)


def _note(row: Row, tag: str) -> str:
    """Its owner's words, how it ended where it did not end well, and what changes its meaning."""
    parts = [tag] if tag else []
    if row["outcome"] != "ok":
        parts.append(row["outcome"])
    if row["repeats"] > 1:
        parts.append(f"mean of {row['repeats']} runs")
    if row["energy_j"] is None:
        parts += list(row["notes"] or ())[:1]
    parts += [note for note in row["notes"] or () if note.startswith("job of ")]
    parts += [note.partition(":")[0] for gpu in row["gpus"] or () for note in decisive_notes(gpu["notes"])
              if "setting changed" not in note]  # which its own column shows
    return "; ".join(dict.fromkeys(parts))


def when(unix_s: float, now_s: float) -> str:
    """A moment as text, by the local calendar.

    >>> now_s = time.mktime((2026, 3, 14, 15, 0, 0, 0, 0, -1))
    >>> when(now_s - 60, now_s), when(now_s - 86_400, now_s), when(now_s - 400 * 86_400, now_s)
    ('today 14:59:00', 'yesterday 15:00', '7 Feb 2025 15:00')
    """
    then, now = map(datetime.datetime.fromtimestamp, (unix_s, now_s))
    days = (now.date() - then.date()).days
    if days < 2:
        return f"{then:today %H:%M:%S}" if days < 1 else f"{then:yesterday %H:%M}"
    return f"{then.day} {then:%b}{'' if then.year == now.year else f' {then.year}'} {then:%H:%M}"


def texts(found: Iterable[Texts]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Heads and cells of rows; columns that are empty in all of them are left out."""
    listed = list(found)
    heads = tuple(name for name in COLUMNS if any(row[name] for row in listed))
    return heads, [tuple(row[name] for name in heads) for row in listed]


def as_text(found: Iterable[Texts]) -> str:
    """Rows as lines for a terminal."""
    heads, cells = texts(found)
    return as_columns(heads, cells) if cells else EMPTY


class RunLog(pl.DataFrame):
    """The log as a Polars frame (`store.SCHEMA`, oldest first) that shows itself as the run table."""

    tags: Mapping[str, str] = {}

    @classmethod
    def of(cls, log: pl.DataFrame, tags: Texts) -> RunLog:
        made = cls(log)
        made.tags = tags
        return made

    def _newest(self) -> list[dict[str, str]]:
        return rows(self.tail(SHOWN).reverse(), self.tags)

    def _repr_html_(self, *_: Any, **__: Any) -> str:
        heads, cells = texts(self._newest())
        if not cells:
            return f"<p>{as_text(())}</p>"
        style = "font-family:system-ui,sans-serif;font-size:12px;font-variant-numeric:tabular-nums"
        more = f"<div style='font-size:12px;opacity:.8'>{self._more()}</div>"
        return table(heads, cells, style=style) + more

    def _more(self) -> str:
        earlier = f"The newest {SHOWN} of {self.height} runs. " * (self.height > SHOWN)
        return f"{earlier}This is a Polars frame with {self.width} columns: _.columns lists them."

    def __repr__(self) -> str:
        return f"{as_text(self._newest())}\n{self._more()}"

    __str__ = __repr__
