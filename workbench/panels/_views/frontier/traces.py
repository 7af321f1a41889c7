"""The power traces behind a point of a frontier, as a picture."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from ....measurement.store import Store
from ....trace import duration_s
from ..power.series import Rows, Series, rows_of
from ..power.svg import TraceLine, trace_picture

MOST = 4  # repeats in one picture, the newest


def traces(measurements: Sequence[str], store: Store | None = None) -> tuple[str, str]:
    """An `<svg>` element with the power of an observation's repeats, each from its own start; and a sentence.

    The element is empty where no trace is kept, and the sentence says why.
    """
    if not measurements:
        return "", "this point names no measurement of the log, so there is no trace"
    kept = store or Store()
    lines: list[TraceLine] = []
    end_s = 0.0
    told = []
    for name in list(measurements)[-MOST:]:
        frame = kept.trace(name)
        if frame is None or frame.is_empty():
            continue
        told.append(name)
        for part in frame.partition_by("uuid", maintain_order=True) if "uuid" in frame.columns else [frame]:
            length_s = duration_s(part)
            label = name if len(measurements) > 1 else f"GPU {len(lines)}"
            lines.append(TraceLine(len(lines), label, _rows(part, length_s)))
            end_s = max(end_s, length_s)
    if not lines:
        return "", f"no trace is kept of measurement {', '.join(list(measurements)[-MOST:])}"
    more = f", the newest of {len(measurements)} repeats" if len(measurements) > MOST else ""
    picture = trace_picture("Power of this observation", lines, (), end_s)
    return picture.svg(), f"measurement {', '.join(told)}{more}"


def _rows(frame: pl.DataFrame, length_s: float) -> Rows:
    frame = frame.sort("time_s")
    series = Series(gap_s=max(1.0, length_s / 20))
    series.append(rows_of(frame, frame["time_s"][0]))
    return series.rows
