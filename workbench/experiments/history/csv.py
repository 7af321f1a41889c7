"""Histories of recurring jobs as one frame, a row per attempt, and as CSV, what has many values as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import polars as pl

from ...errors import MeasurementError, StoreError, UsageError, check_fields, named_file
from ...logbook.store import for_spreadsheets
from ...search.objective import check_measured
from .attempts import STATES, Attempt

COLUMNS = {
    "number": pl.Int64, "recurrence": pl.Int64, "purpose": pl.String, "batch_size": pl.Int64,
    "power_limit_w": pl.Float64, "state": pl.String, "epochs": pl.Float64, "time_s": pl.Float64,
    "energy_j": pl.Float64, "profile_time_s": pl.Float64, "profile_energy_j": pl.Float64,
    "metric": pl.Float64, "target": pl.Float64, "gpu": pl.String, "oom": pl.Boolean,
    "iterations_per_epoch": pl.Float64, "reason": pl.String, "heartbeat_unix_s": pl.Float64,
}
LISTS = {  # columns of rows: (limit, time, power) of each profiled epoch
    "profile": ("power_limit_w", "epoch_time_s", "power_w"),
}
_ROWS = {name: pl.List(pl.Struct({each: pl.Float64() for each in fields})) for name, fields in LISTS.items()}
HISTORY = pl.Schema([*COLUMNS.items(), *_ROWS.items(), ("late_for", pl.Int64)])
NEEDED = ("batch_size", "state", "epochs", "time_s", "energy_j")


def as_frame(attempts: Iterable[Attempt]) -> pl.DataFrame:
    """Attempts as a frame `HISTORY`, those that run included."""
    rows = []
    for each in attempts:
        row = {name: getattr(each, name) for name in HISTORY}
        for name, fields in LISTS.items():
            row[name] = [dict(zip(fields, values, strict=True)) for values in row[name]]
        rows.append(row)
    return pl.DataFrame(rows, schema=HISTORY)


def of_frame(frame: pl.DataFrame) -> list[Attempt]:
    """Attempts of a frame `HISTORY`, whose columns beyond the needed ones may be missing or null.

    Raises:
        UsageError: a needed column is missing, or a row that cannot be.
    """
    if absent := [name for name in NEEDED if name not in frame.columns]:
        raise UsageError(f"this frame is no history of a recurring job: no column {', '.join(absent)}")
    known = frame.select(name for name in HISTORY if name in frame.columns)
    found = []
    for number, row in enumerate(known.to_dicts()):
        try:
            for name in LISTS:
                row[name] = [each.values() for each in row.get(name) or ()]
            found.append(_attempt(row, number))
        except (ValueError, TypeError, AttributeError, MeasurementError) as error:
            raise UsageError(f"row {number} of this frame is no attempt: {error}") from error
    return found


def write_csv(attempts: Iterable[Attempt], path: Path) -> int:
    """Write the attempts that have ended. Raises StoreError where the file cannot be written."""
    ended = [each for each in attempts if each.ended]
    lists = [
        pl.Series(name, [json.dumps(getattr(each, name)) for each in ended], dtype=pl.String)
        for name in LISTS
    ]
    try:
        for_spreadsheets(as_frame(ended).select(*COLUMNS).with_columns(lists)).write_csv(path)
    except OSError as error:
        raise StoreError(f"{path} cannot be written ({error.strerror or error}); name a file") from error
    return len(ended)


def read_csv(path: Path) -> list[Attempt]:
    """Read what `write_csv` has written; columns that are not needed may be missing.

    Raises:
        UsageError: no such file, not such a table, or a row that cannot be; it says which.
    """
    try:
        frame = pl.read_csv(named_file(path), infer_schema=False)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise UsageError(f"{path} cannot be read as a history: {str(error).splitlines()[0]}") from error
    frame = frame.with_columns(pl.all().str.replace(r"^'([=+@\t\r-])", "$1"))  # of `for_spreadsheets`
    if absent := [name for name in NEEDED if name not in frame.columns]:
        raise UsageError(f"{path} is no history of a recurring job: it has no column {', '.join(absent)}")
    found = []
    for line, row in enumerate(frame.iter_rows(named=True), start=2):
        try:
            values = {name: _read(row.get(name) or None, kind) for name, kind in COLUMNS.items()}
            values |= {name: json.loads(row.get(name) or "[]") for name in LISTS}
            attempt = _attempt(values, line)
            if not attempt.ended:
                raise ValueError("'running' is no state of an attempt that has ended")
        except (ValueError, TypeError, MeasurementError) as error:
            raise UsageError(f"line {line} of {path} is no attempt: {error}. Nothing was added") from error
        found.append(attempt)
    return found


def _read(text: str | None, kind: pl.DataType | type[pl.DataType]) -> object:
    if text is None or kind == pl.String:
        return text
    return text == "true" if kind == pl.Boolean else int(text) if kind == pl.Int64 else float(text)


def _attempt(row: dict[str, Any], number: int) -> Attempt:
    """The attempt of a row, whose number is that of the row where it tells none.

    Raises:
        ValueError, TypeError, MeasurementError: it cannot be one.
    """
    values = {name: value for name, value in row.items() if value is not None}
    if absent := [name for name in NEEDED if name not in values]:
        raise ValueError(f"its {', '.join(absent)} is missing")
    values |= {name: tuple(tuple(float(each) for each in line) for line in row[name]) for name in LISTS}
    attempt = Attempt(**{"number": number, **values})
    check_fields(attempt)
    if attempt.state not in STATES:
        raise ValueError(f"'{attempt.state}' is no state of an attempt that has ended ({', '.join(STATES)})")
    if attempt.batch_size < 1:
        raise ValueError(f"batch size {attempt.batch_size} is below 1")
    check_measured(attempt.time_s, attempt.energy_j)
    check_measured(attempt.profile_time_s, attempt.profile_energy_j)
    if not math.isfinite(attempt.epochs) or attempt.epochs < 0:
        raise ValueError(f"{attempt.epochs:g} epochs")
    if attempt.target is not None and not math.isfinite(attempt.target):
        raise ValueError(f"a target of {attempt.target:g}")
    return attempt


def missing(rows: Iterable[Attempt], there: Iterable[Attempt]) -> list[Attempt]:
    """Those that are not there yet."""
    known = {_content(each) for each in there}
    return [each for each in rows if _content(each) not in known]


def _content(each: Attempt) -> tuple[object, ...]:
    return (
        each.batch_size, each.state, each.purpose, each.epochs, each.time_s, each.energy_j,
        each.heartbeat_unix_s,
    )
