"""What the log shows: which runs, in which order, and which one or two of them are looked at."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import polars as pl

from ....logbook.run_table import COLUMNS, SHOWN, SORTABLE, rows


@dataclass(frozen=True)
class LogSelection:
    """What a person has chosen of the log.

    Attributes:
        text: Runs have all of these words somewhere in their row.
        column: Of `SORTABLE`, that the table is sorted by.
        rising: Whether the smallest stands first.
        chosen: Ids of the runs that are looked at, two at most, in the order in which they were chosen.
    """

    text: str = ""
    column: str = "when"
    rising: bool = False
    chosen: tuple[str, ...] = ()

    def sorted_by(self, column: str) -> LogSelection:
        """By another column, largest first; by the same one the other way round."""
        rising = not self.rising if column == self.column else column == "label"
        return replace(self, column=column, rising=rising)

    def toggled(self, run: str) -> LogSelection:
        """With a run chosen, or no longer; a third one takes the place of the first."""
        kept = tuple(each for each in self.chosen if each != run)
        return replace(self, chosen=kept if run in self.chosen else (*kept[-1:], run))


def selected_rows(
    log: pl.DataFrame, tags: Mapping[str, str], selection: LogSelection
) -> list[dict[str, str]]:
    """Rows of the run table that a selection shows, in its order."""
    by = SORTABLE[selection.column]
    ordered = log.sort(by, descending=not selection.rising, nulls_last=True, maintain_order=True)
    text = selection.text.casefold().split()
    if not text:
        return rows(ordered, tags)
    return [row for row in rows(ordered, tags)
            if all(word in " ".join(row.values()).casefold() for word in text)]


def table_html(shown: Sequence[Mapping[str, str]], selection: LogSelection, *, live: bool) -> str:
    """The rows as a table; with headings and boxes to press where somebody hears of it."""
    heads = [name for name in COLUMNS if name == "label" or any(row[name] for row in shown)]
    head = "".join(f"<th>{_heading(name, selection) if live else name}</th>" for name in heads)
    body = "".join(
        f"<tr{' class=workbench-chosen' * (row['id'] in selection.chosen)}>{_box(row, selection) * live}"
        + "".join(f"<td>{html.escape(row[name])}</td>" for name in heads) + "</tr>"
        for row in shown[:SHOWN]
    )
    more = "" if len(shown) <= SHOWN else f"<p>and {len(shown) - SHOWN} more: the filter finds them</p>"
    return f"<table class='workbench-runs'><tr>{'<th></th>' * live}{head}</tr>{body}</table>{more}"


def _heading(name: str, selection: LogSelection) -> str:
    if name not in SORTABLE:
        return name
    arrow = (" ▲" if selection.rising else " ▼") * (name == selection.column)
    return f"<button data-act=sort data-on=click value='{name}'>{name}{arrow}</button>"


def _box(row: Mapping[str, str], selection: LogSelection) -> str:
    checked = " checked" * (row["id"] in selection.chosen)
    what = html.escape(f"look at {row['label'] or 'run'} of {row['when']}", quote=True)
    acts = f"data-act=choose data-on=change value='{row['id']}'"
    return f'<td><input type=checkbox {acts} aria-label="{what}"{checked}></td>'


FILTER = (
    "<label>Filter <input type=search data-act=filter data-on=input placeholder='label, GPU, setting, tag'>"
    "</label>"
)


def tag_field(run: str, text: str) -> str:
    """Where a person writes a few words of a run."""
    value = html.escape(text, quote=True)
    return (f"<label>Tag <input maxlength=60 data-act='tag {run}' data-on=change value=\"{value}\" "
            "placeholder='a few words, kept with the run'></label>")
