"""Histories of recurring jobs as CSV: a row per attempt, what has many values as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path

import polars as pl

from ...errors import MeasurementError, UsageError
from ...search.objective import check_measured
from .attempts import ENDED, Attempt

COLUMNS = {
    "number": pl.Int64,
    "recurrence": pl.Int64,
    "purpose": pl.String,
    "batch_size": pl.Int64,
    "power_limit_w": pl.Float64,
    "state": pl.String,
    "epochs": pl.Float64,
    "time_s": pl.Float64,
    "energy_j": pl.Float64,
    "profile_time_s": pl.Float64,
    "profile_energy_j": pl.Float64,
    "metric": pl.Float64,
    "target": pl.Float64,
    "gpu": pl.String,
    "oom": pl.Boolean,
    "iterations_per_epoch": pl.Float64,
    "reason": pl.String,
    "seen_unix_s": pl.Float64,
}
LISTS = ("profile", "milestones")
NEEDED = ("batch_size", "state", "epochs", "time_s", "energy_j")
STATES = (*ENDED, "killed", "interrupted", "withdrawn")


def as_frame(attempts: Iterable[Attempt]) -> pl.DataFrame:
    """Attempts as a frame, those that run included."""
    rows = [{name: getattr(each, name) for name in COLUMNS} for each in attempts]
    return pl.DataFrame(rows, schema=COLUMNS)


def write_csv(attempts: Iterable[Attempt], path: Path) -> int:
    """Write the attempts that have ended."""
    ended = [each for each in attempts if each.ended]
    lists = [
        pl.Series(name, [json.dumps(getattr(each, name)) for each in ended], dtype=pl.String)
        for name in LISTS
    ]
    as_frame(ended).with_columns(lists).write_csv(path)
    return len(ended)


def read_csv(path: Path) -> list[Attempt]:
    """Read what `write_csv` has written; columns that are not needed may be missing.

    Raises:
        UsageError: no such file, not such a table, or a row that cannot be; it says which.
    """
    try:
        frame = pl.read_csv(path, infer_schema=False)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise UsageError(f"{path} cannot be read as a history: {str(error).splitlines()[0]}") from error
    if absent := [name for name in NEEDED if name not in frame.columns]:
        raise UsageError(f"{path} is no history of a recurring job: it has no column {', '.join(absent)}")
    found = []
    for line, row in enumerate(frame.iter_rows(named=True), start=2):
        try:
            found.append(_attempt(row, line))
        except (ValueError, TypeError, MeasurementError) as error:
            raise UsageError(f"line {line} of {path} is no attempt: {error}. Nothing was added") from error
    return found


def _attempt(row: dict[str, str | None], line: int) -> Attempt:
    values: dict[str, object] = {}
    for name, kind in COLUMNS.items():
        text = row.get(name)
        if text is None or text == "":
            continue
        values[name] = (
            text
            if kind == pl.String
            else text == "true"
            if kind == pl.Boolean
            else int(text)
            if kind == pl.Int64
            else float(text)
        )
    for name in LISTS:
        values[name] = tuple(
            tuple(float(value) for value in each) for each in json.loads(row.get(name) or "[]")
        )
    attempt = Attempt(**{"number": line, **values})  # type: ignore[arg-type]
    if attempt.state not in STATES:
        raise ValueError(f"'{attempt.state}' is no state of an attempt that has ended ({', '.join(STATES)})")
    if attempt.batch_size < 1:
        raise ValueError(f"batch size {attempt.batch_size} is below 1")
    check_measured(attempt.time_s, attempt.energy_j)
    check_measured(attempt.profile_time_s, attempt.profile_energy_j)
    if not math.isfinite(attempt.epochs) or attempt.epochs < 0:
        raise ValueError(f"{attempt.epochs:g} epochs")
    return attempt


def missing(rows: Iterable[Attempt], there: Iterable[Attempt]) -> list[Attempt]:
    """Those that are not there yet."""
    known = {_content(each) for each in there}
    return [each for each in rows if _content(each) not in known]


def _content(each: Attempt) -> tuple[object, ...]:
    return (
        each.batch_size, each.state, each.purpose, each.epochs, each.time_s, each.energy_j, each.seen_unix_s,
    )
