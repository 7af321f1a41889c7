"""The rows of one GPU in a log, in the order of time.

A file may have several sessions (`nvidia-smi >> file`), the logs of two machines one after another, rows
twice, or a clock that was set back, as each autumn where times are local.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from .log_energies import whole_zones
from .log_tables import PART
from .quantities import format_duration


def streams(rows: pl.DataFrame) -> list[tuple[pl.DataFrame, str]]:
    """The rows of each source with one clock, in the order of time, and a note.

    Rows that are there twice, below another head, count once. A clock that was set back goes on from where
    it was. Rows of the same time below another head come from another source.

    Args:
        rows: In the order of the file, with "time_us", "piece" (grows where time goes back) and `PART`.
    """
    found: list[pl.DataFrame] = []
    notes: list[str] = []
    pieces = rows.partition_by("piece", maintain_order=True)
    if not 1 < len(pieces) < 200:
        return [(_in_order(rows), "")]
    pace_us = rows.select(pl.col("time_us").diff().over("piece").median()).item() or 1.0
    values = [name for name in rows.columns if name not in ("piece", PART)]
    back_us, part, twice = 0, None, 0
    for piece in pieces:
        same_head = piece[PART][0] == part
        back_us, part = back_us * same_head, piece[PART][-1]
        piece = piece.with_columns(pl.col("time_us") + back_us)
        for earlier in found:
            new = piece.join(earlier, on=values, how="anti", nulls_equal=True)
            # a clock that was set back may show rows of a constant power again
            if not same_head or new.select(values[1:]).n_unique() > 1:
                twice, piece = twice + piece.height - new.height, new
        if not piece.height:
            continue
        fits = (number for number, each in enumerate(found) if not _crowded(each, piece, pace_us))
        place = next(fits, None)
        if place is None and found and same_head:
            ahead_us = found[-1]["time_us"][-1] - piece["time_us"][0] + round(pace_us)
            back_s, starts = ahead_us / 1e6, [each["time_us"][0] for each in (found[-1], piece)]
            if whole_zones(back_s, pace_us / 1e6) or starts[0] < starts[1]:
                piece, place = piece.with_columns(pl.col("time_us") + ahead_us), len(found) - 1
                back_us += ahead_us
                notes[-1] += f"the clock was set back by {format_duration(back_s)} and later rows moved; "
        if place is None:
            found.append(_in_order(piece))
            notes.append("other rows have the same times: another host or process; " * bool(notes))
        else:
            found[place] = _in_order(pl.concat([found[place], piece]))
    notes[0] += f"{twice} rows that are there twice count once; " * bool(twice)
    return list(zip(found, notes, strict=True))


def _in_order(rows: pl.DataFrame) -> pl.DataFrame:
    """Rows by time; of several at one time the last one."""
    return rows.sort("time_us", maintain_order=True).unique("time_us", keep="last", maintain_order=True)


def _crowded(one: pl.DataFrame, other: pl.DataFrame, pace_us: float) -> bool:
    """Whether two pieces have more rows in their common time than one source writes."""
    times = [each["time_us"] for each in (one, other)]
    start_us: int = max(each[0] for each in times)
    end_us: int = min(each[-1] for each in times)
    if start_us > end_us:
        return False
    count = sum(len(each.filter(each.is_between(start_us, end_us))) for each in times)
    return count > 1.5 * ((end_us - start_us) / pace_us + 1)


def sessions(rows: pl.DataFrame) -> Iterator[tuple[pl.DataFrame, str]]:
    """Parts of a stream that were recorded one after another, each below a head, with a note on the time
    before it.
    """
    steps_s = rows["time_us"].diff() / 1e6
    pace_s = steps_s.quantile(0.75, "lower") or 0.0
    starts = [0, *((rows[PART] != rows[PART].shift()) & (steps_s > 3 * pace_s)).fill_null(False).arg_true()]
    for number, (start, end) in enumerate(zip(starts, [*starts[1:], rows.height], strict=True), 1):
        note = f"session {number} of {len(starts)}; " if len(starts) > 1 else ""
        if start:
            note += f"the {format_duration(steps_s[start])} before it were not recorded; "
        yield rows[start:end], note
