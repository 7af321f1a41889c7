"""Histories of recurring jobs as one frame, a row per attempt, and as CSV, lists as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import polars as pl

from ...errors import MeasurementError, StoreError, UsageError, check_fields, read_file
from ...logbook.store import FORMULA, for_spreadsheets
from ...search.objective import check_measured
from .attempts import STATES, Attempt

PROFILE = ("power_limit_w", "epoch_time_s", "power_w")  # of each profiled epoch
_COLUMNS: dict[str, Any] = {
    "number": pl.Int64, "recurrence": pl.Int64, "purpose": pl.String, "batch_size": pl.Int64,
    "power_limit_w": pl.Float64, "state": pl.String, "epochs": pl.Float64, "time_s": pl.Float64,
    "energy_j": pl.Float64, "profile_time_s": pl.Float64, "profile_energy_j": pl.Float64,
    "metric": pl.Float64, "target": pl.Float64, "gpu": pl.String, "oom": pl.Boolean,
    "iterations_per_epoch": pl.Float64, "reason": pl.String, "heartbeat_unix_s": pl.Float64,
    "profile": pl.List(pl.Struct({name: pl.Float64() for name in PROFILE})), "late_for": pl.Int64,
}
HISTORY = pl.Schema(_COLUMNS)
NEEDED = ("batch_size", "state", "epochs", "time_s", "energy_j")


def as_frame(attempts: Iterable[Attempt]) -> pl.DataFrame:
    """Attempts as a frame `HISTORY`, those that run included."""
    rows = [
        {name: getattr(each, name) for name in HISTORY}
        | {"profile": [dict(zip(PROFILE, row, strict=True)) for row in each.profile]}
        for each in attempts
    ]
    return pl.DataFrame(rows, schema=HISTORY)


def of_frame(frame: pl.DataFrame) -> list[Attempt]:
    """Attempts of a frame `HISTORY`, whose columns beyond the needed ones may be missing or null.

    Raises:
        UsageError: a needed column is missing, or a row that cannot be.
    """
    return _attempts(frame, "of this frame", "row", first=0)


def write_csv(attempts: Iterable[Attempt], path: Path) -> int:
    """Write the attempts that have ended. Raises StoreError where the file cannot be written."""
    ended = [each for each in attempts if each.ended]
    profiles = pl.Series("profile", [json.dumps(each.profile) for each in ended], dtype=pl.String)
    try:
        for_spreadsheets(as_frame(ended).with_columns(profiles).drop("late_for")).write_csv(path)
    except OSError as error:
        raise StoreError(f"{path} cannot be written ({error.strerror or error}); name a file") from error
    return len(ended)


def read_csv(path: Path) -> list[Attempt]:
    """Read what `write_csv` has written; columns that are not needed may be missing.

    Raises:
        UsageError: no such file, not such a table, or a row that cannot be; it names which.
    """
    try:
        frame = pl.read_csv(read_file(path), infer_schema=False)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise UsageError(f"{path} cannot be read as a history: {str(error).splitlines()[0]}") from error
    frame = frame.with_columns(pl.all().str.replace(f"^'({FORMULA})", "$1"))  # of `for_spreadsheets`
    return _attempts(frame, f"of {path}", "line", first=2)


def _attempts(frame: pl.DataFrame, where: str, kind: str, *, first: int) -> list[Attempt]:
    """The attempts of a frame; errors name the row by its `kind` and its number, counted from `first`."""
    if absent := [name for name in NEEDED if name not in frame.columns]:
        raise UsageError(f"the table {where} is no history of a recurring job: no column {', '.join(absent)}")
    known, found = frame.select(name for name in HISTORY if name in frame.columns), []
    for number, row in enumerate(known.to_dicts()):
        try:
            found.append(_attempt({name: _read(row[name], HISTORY[name]) for name in row}, number))
        except (ValueError, TypeError, AttributeError, MeasurementError) as error:
            text = f"{kind} {first + number} {where} is no attempt: {error}. Nothing was added"
            raise UsageError(text) from error
    return found


def _read(value: Any, kind: pl.DataType) -> Any:
    """A value of a frame, or its text in a file."""
    if kind.is_nested():
        text = isinstance(value, str)
        rows = json.loads(value or "[]") if text else [each.values() for each in value or ()]
        return tuple((float(limit_w), float(time_s), float(power_w)) for limit_w, time_s, power_w in rows)
    if not isinstance(value, str) or kind == pl.String:
        return value
    if not value:
        return None
    return value == "true" if kind == pl.Boolean else int(value) if kind == pl.Int64 else float(value)


def _attempt(row: dict[str, Any], number: int) -> Attempt:
    """The attempt of a row, whose number is that of the row where it reports none.

    Raises:
        ValueError, TypeError, MeasurementError: it cannot be one.
    """
    values = {name: value for name, value in row.items() if value is not None}
    if absent := [name for name in NEEDED if name not in values]:
        raise ValueError(f"its {', '.join(absent)} is missing")
    attempt = Attempt(**{"number": number, **values})
    check_fields(attempt)
    if attempt.state not in STATES:
        raise ValueError(f"'{attempt.state}' is no state of an attempt ({', '.join(STATES)})")
    if attempt.batch_size < 1:
        raise ValueError(f"batch size {attempt.batch_size} is below 1")
    check_measured(attempt.time_s, attempt.energy_j)
    check_measured(attempt.profile_time_s, attempt.profile_energy_j)
    if not 0 <= attempt.epochs < math.inf:
        raise ValueError(f"{attempt.epochs:g} epochs")
    if attempt.target is not None and not math.isfinite(attempt.target):
        raise ValueError(f"a target of {attempt.target:g}")
    return attempt
