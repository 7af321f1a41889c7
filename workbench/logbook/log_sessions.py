"""The rows of one GPU in a log, in the order of time.

A file may have several sessions (`nvidia-smi >> file`), the logs of two machines one after another, rows
twice, or a clock that was set back, as each autumn where times are local.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from .log_tables import PART
from .quantities import format_duration


def streams(rows: pl.DataFrame) -> list[tuple[pl.DataFrame, str]]:
    """The rows of each source with one clock, in the order of time, and a note.

    Rows that are there twice count once. A clock that was set back goes on from where it was. Rows of the
    same time below another head come from another source.

    Args:
        rows: In the order of the file, with "time_us", "piece" (grows where time goes back) and `PART`.
    """
    found: list[pl.DataFrame] = []
    notes: list[str] = []
    pieces = rows.partition_by("piece", maintain_order=True)
    if not 1 < len(pieces) < 200:
        return [(rows.sort("time_us"), "")]
    pace_us = rows.select(pl.col("time_us").diff().over("piece").median()).item() or 1.0
    back_us, part = 0, None
    for piece in pieces:
        if piece[PART][0] != part:
            back_us, part = 0, piece[PART][-1]
        piece = piece.with_columns(pl.col("time_us") + back_us)
        values = piece.drop("piece", PART).columns
        for earlier in found:
            piece = piece.join(earlier, on=values, how="anti", nulls_equal=True)
        if not piece.height:
            continue
        place = next((number for number, each in enumerate(found) if not _crowded(each, piece, pace_us)), None)
        if place is None and found and found[-1][PART][-1] == piece[PART][0]:
            ahead_us = found[-1]["time_us"][-1] - piece["time_us"][0] + round(pace_us)
            zones_apart = (ahead_us + 0.5 * pace_us) % 1.8e9 <= pace_us  # by multiples of half an hour
            if zones_apart or piece["time_us"][0] > found[-1]["time_us"][0]:
                piece, place = piece.with_columns(pl.col("time_us") + ahead_us), len(found) - 1
                back_us += ahead_us
                notes[-1] += (f"the clock was set back by {format_duration(ahead_us / 1e6)}, and later rows are "
                              "counted as later; ")
        if place is None:
            found.append(piece)
            notes.append("its times are those of other rows of this file: another host or process; " * bool(notes))
        else:
            found[place] = pl.concat([found[place], piece]).sort("time_us")
    return list(zip(found, notes, strict=True))


def _crowded(one: pl.DataFrame, other: pl.DataFrame, pace_us: float) -> bool:
    """Whether two pieces have more rows in their common time than one source writes."""
    times = [each["time_us"] for each in (one, other)]
    start_us, end_us = max(each[0] for each in times), min(each[-1] for each in times)
    if start_us > end_us:
        return False
    count = sum(each.is_between(start_us, end_us).sum() for each in times)
    return count > 1.5 * ((end_us - start_us) / pace_us + 1)


def sessions(rows: pl.DataFrame) -> Iterator[tuple[pl.DataFrame, str]]:
    """Parts of a stream that were recorded one after another, each with a note on the time before it.

    A session ends before a head, or before six hours without a row.
    """
    steps_s = rows["time_us"].diff() / 1e6
    pace_s = steps_s.quantile(0.75, "lower") or 0.0
    ends = (steps_s > 21_600) | ((rows[PART] != rows[PART].shift()) & (steps_s > 3 * pace_s))
    starts = [0, *ends.fill_null(False).arg_true()]
    for number, (start, end) in enumerate(zip(starts, [*starts[1:], rows.height], strict=True), 1):
        note = f"session {number} of {len(starts)}; " if len(starts) > 1 else ""
        if start:
            note += f"the {format_duration(steps_s[start])} before it were not recorded; "
        yield rows[start:end], note
