"""Measurements and their traces on disk, as Parquet; they survive restarts, kills and full disks.

    <home>/measurements/m-<unix time>-<id>.parquet      one row
    <home>/measurements/log-<n>.parquet                 many rows, when single files have become many
    <home>/traces/t-<unix time>-<id>.parquet            the trace behind it, all GPUs
    <home>/traces/i-<unix time>-<id>.parquet            its iterations, where there are any
    <home>/jobs/<id>.json                               ranks and nodes of a job on several GPUs
    <home>/tags/<id>                                    words that its owner keeps with it
    <home>/observations/<kind>-<name>-<hash>.parquet    what a job has taken under several settings

A file that cannot be read is renamed to `.damaged` and reported; nothing else is lost. Files of another
version of the schema stay as they are and are left out. Only traces count against the quota, and the oldest
go first.
"""

from __future__ import annotations

import contextlib
import glob
import json
import math
import re
import stat
import time
import uuid
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from datetime import datetime
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import polars as pl

from .. import _paths, trace
from .._processes import require_polars
from ..errors import StoreError, UsageError, checked, listed, named_file, near
from ..records import GpuMeasurement, IterationSummary, Measurement
from . import keeping
from .run_table import rows

SCHEMA_VERSION = 3
QUOTA_BYTES = 512 * 1024**2
COMPACT_AT = 400
MOST_TAG = 200  # bytes
MOST_JOBS = 64  # whose observations are read, the newest

@cache
def _hints(record: Any) -> dict[str, Any]:
    """Annotations of a record's fields."""
    return get_type_hints(record)


def _kind(annotation: Any) -> Any:
    """The type in Polars of a record, or of a field with this annotation."""
    if is_dataclass(annotation):
        known = _hints(annotation).items()  # type: ignore[arg-type]
        return pl.Struct({name: _kind(each) for name, each in known})
    if get_origin(annotation) is tuple:
        return pl.List(_kind(get_args(annotation)[0]))
    kinds = {bool: pl.Boolean, int: pl.Int64, float: pl.Float64, str: pl.String}
    return next(kind for plain, kind in kinds.items() if plain in (annotation, *get_args(annotation)))


_FIELDS = {  # of the summary of iterations, by column
    "iteration_s": "time_s", "iteration_s_uncertainty": "time_uncertainty_s", "iteration_j": "energy_j",
    "iteration_j_uncertainty": "energy_uncertainty_j",
    **{f"iteration_{name}": name
       for name in ("count", "source", "sure", "reason", "detected_s", "check", "levels")},
}
# A measurement has these as sums over its GPUs
_DERIVED = ("energy_j", "energy_uncertainty_j", "mean_power_w", "source", "simulated")
_ANNOTATIONS = _hints(Measurement) | {name: _hints(GpuMeasurement)[name] for name in _DERIVED} | {
    column: _hints(IterationSummary)[name] for column, name in _FIELDS.items()} | {"schema_version": int}
_ORDER = """
    id label started_unix_s time_s energy_j energy_uncertainty_j mean_power_w source simulated outcome repeats
    time_sd_s energy_sd_j cpu_energy_j dram_energy_j iteration_s iteration_s_uncertainty iteration_j
    iteration_j_uncertainty iteration_count iteration_source iteration_sure iteration_reason
    iteration_detected_s iteration_check iteration_levels gpus notes schema_version kind work batch_size calls
"""
SCHEMA = pl.Schema({name: _kind(_ANNOTATIONS[name]) for name in _ORDER.split()})
Row = dict[str, Any]  # of a frame of it
# What a job has taken under settings of a GPU, whoever measured it: a row per setting.
OBSERVATIONS = pl.Schema({
    "kind": pl.String,  # "a tuned run", "a sweep" or "a recurring job"
    "name": pl.String,  # of the job
    "gpu": pl.String, "simulated": pl.Boolean, "batch_size": pl.Int64,
    "power_limit_w": pl.Float64, "sm_clock_mhz": pl.Int64, "mem_clock_mhz": pl.Int64,  # null: left alone
    "unit": pl.String,  # that time and energy are for: "sample", "iteration", "epoch" and the like
    "time_s": pl.Float64, "energy_j": pl.Float64, "ended_unix_s": pl.Float64,
    "run": pl.Int64,  # rows of one number compare with each other only; null: all rows of a job compare
})
# What a row must report. Any other column may be null.
_NEEDED = ("id", "label", "started_unix_s", "time_s", "source", "simulated", "outcome", "repeats", "gpus",
           "notes", "schema_version")
# Beginnings of texts that some spreadsheet runs, after what it skips
FORMULA = r"[\s\"'\x{200b}\x{feff}]*[=+@\-\x{ff1d}\x{ff0b}\x{ff0d}\x{ff20}]|[\t\r\n]"
_LATEST_UNIX_S = 1e11  # the year 5138
# Polars panics on some damaged files, and a panic is no Exception
_FAILURES = Exception, pl.exceptions.PanicException
_TRACE = {**trace.SCHEMA, "uuid": pl.String()}


def unknown(name: str, labels: Iterable[str | None]) -> UsageError:
    """The error that no measurement has this label or id: a similar label, else the newest ones."""
    newest = [*dict.fromkeys(filter(None, reversed([*labels])))]
    hint = near(name, newest) if newest else "; the log is empty"
    return UsageError(f"no measurement is labelled {name!r}{hint}")


def as_frame(measurements: Sequence[Measurement]) -> pl.DataFrame:
    """Measurements as rows of `SCHEMA`."""
    rows = []
    for m in measurements:
        row = asdict(m) | {name: getattr(m, name) for name in _DERIVED} | {"schema_version": SCHEMA_VERSION}
        summary = row.pop("iterations") or {}
        row |= {column: summary.get(name) for column, name in _FIELDS.items()}
        rows.append({name: row[name] for name in SCHEMA})
    return pl.DataFrame(rows, schema=SCHEMA)


def from_row(row: Row) -> Measurement:
    """The measurement of a row of `as_frame`."""
    summary = {name: row[column] for column, name in _FIELDS.items()}
    measurement: Measurement = _record(Measurement, row | {
        "kind": row.get("kind") or "", "iterations": None if summary["count"] is None else summary})
    return measurement


def _record(annotation: Any, value: Any) -> Any:
    """What Polars gives for a record, or for a field with this annotation, as Python has it."""
    if get_origin(annotation) is tuple:
        return tuple(_record(get_args(annotation)[0], each) for each in value or () if each is not None)
    if is_dataclass(annotation):
        known = _hints(annotation).items()  # type: ignore[arg-type]
        return annotation(**{name: _record(each, value[name])  # type: ignore[operator]
                             for name, each in known if name in (value or ())})
    record = next(filter(is_dataclass, get_args(annotation)), None)
    return value if record is None or value is None else _record(record, value)


class Store:
    """The measurements of this user, by default in their own directory, with problems in `problem`; all
    traces together take `quota_bytes`.
    """

    def __init__(self, directory: Path | None = None, *, quota_bytes: int = QUOTA_BYTES) -> None:
        try:
            found, self.problem = (directory, "") if directory else _paths.home()
        except OSError as error:
            found = _paths.wanted_home()
            self.problem = f"there is no place to write to ({_reason(error)}); nothing will be kept"
        self.directory, self.quota_bytes = found, quota_bytes
        self._measurements, self._traces = found / "measurements", found / "traces"
        self._observations = found / "observations"
        self._messages: list[str] = []
        self._gone = False

    def save(
        self, measurement: Measurement, traces: dict[str, pl.DataFrame] | None = None,
        iterations: pl.DataFrame | None = None,
    ) -> None:
        """Write a measurement, the trace of each GPU by UUID, and the frame of its iterations.

        Raises:
            StoreError: the disk is full or read-only; nothing half-written is left.
        """
        stem = f"{measurement.started_unix_s:.3f}-{measurement.id}"
        _write(lambda: as_frame([measurement]), self._measurements / f"m-{stem}.parquet")
        frames = {gpu: frame for gpu, frame in (traces or {}).items() if frame.height}
        if frames:
            parts = (frame.with_columns(pl.lit(gpu).alias("uuid")) for gpu, frame in frames.items())
            _write(lambda: pl.concat(parts, how="vertical"), self._traces / f"t-{stem}.parquet")
        if iterations is not None and iterations.height:
            _write(lambda: iterations, self._traces / f"i-{stem}.parquet")
        if frames:
            self._make_room()
        self._compact()

    def save_job(self, measurement_id: str, document: Mapping[str, Any]) -> None:
        """Keep the ranks and nodes of a job (`jobs.combine.as_dict`). Raises StoreError."""
        path = self.directory / "jobs" / f"{measurement_id}.json"
        try:
            with _paths.replacing(path) as file:
                file.write(json.dumps(document).encode())
        except OSError as error:
            raise StoreError(f"the ranks of the job could not be kept in {path.parent} "
                             f"({_reason(error)})") from error

    def job(self, measurement_id: str) -> dict[str, Any] | None:
        """The document of `save_job`; None where there is none, or a damaged one."""
        try:
            found: dict[str, Any] = json.loads(
                (self.directory / "jobs" / f"{measurement_id}.json").read_bytes())
        except (OSError, ValueError):
            return None
        return found

    def log(self) -> pl.DataFrame:
        """All measurements, oldest first (`SCHEMA`). Damaged files are set aside; `messages` names which."""
        require_polars()
        keeping.writer().flush()
        # a file that is gone was made one with others meanwhile: its rows are in a file not listed yet
        for _ in range(5):
            self._gone = False
            frames = self._sound(self._files(self._measurements))
            if not self._gone:
                break
        if not frames:
            return pl.DataFrame(schema=SCHEMA)
        # files of one measurement come later in the order of names, and may replace an earlier one
        whole = pl.concat(frames.values()).unique("id", keep="last", maintain_order=True)
        return whole.sort("started_unix_s")

    def find(self, name: str) -> Measurement:
        """The newest complete measurement with this label, else the only one whose id begins so.

        A warning states that no run of the label is complete; the newest is returned.

        Raises:
            UsageError: there is none, or the id is not unique.
        """
        log, name = self.log(), name.encode("utf-8", "replace").decode()  # as labels are kept
        if not name.strip():
            raise UsageError("a label or id is empty; give one, the log lists them")
        hits = log.filter(pl.col("label") == name).sort(pl.col("outcome") == "ok", maintain_order=True)
        if hits.is_empty():
            hits = log.filter(pl.col("id").str.starts_with(name))
            if hits.is_empty():
                raise unknown(name, log["label"])
            if hits.height > 1:
                raise UsageError(f"{name!r} begins the ids {listed(hits['id'])}; give more of one")
        elif hits["outcome"][-1] != "ok":
            warnings.warn(f"no run labelled {name!r} is complete; this is the newest", stacklevel=2)
        return from_row(hits.row(-1, named=True))

    def trace(self, measurement_id: str) -> pl.DataFrame | None:
        """The stored trace of a measurement (`trace.SCHEMA` and `uuid`), or None where none is kept."""
        require_polars()
        keeping.writer().flush()
        for path in self._traces.glob(f"t-*-{glob.escape(measurement_id)}.parquet"):
            return self._read(path, lambda frame: _cast(frame, _TRACE, needed=("time_s", "power_w", "uuid")))
        return None

    def iterations(self, measurement_id: str) -> pl.DataFrame | None:
        """The stored iterations of a measurement (`iterations.SCHEMA`), or None where none are kept."""
        from ..periods.segment import SCHEMA as ITERATIONS

        for path in self._traces.glob(f"i-*-{glob.escape(measurement_id)}.parquet"):
            return self._read(path, lambda frame: _cast(frame, ITERATIONS, needed=()))
        return None

    def observe(self, kind: str, name: str, rows: pl.DataFrame) -> None:
        """Store observations of a job, in place of earlier ones of this kind and name.

        Args:
            kind: Of `OBSERVATIONS`.
            name: Of the job.
            rows: With the columns of `OBSERVATIONS` but these two; further ones are kept too.

        Raises:
            StoreError: it cannot be written.
        """
        named = rows.with_columns(kind=pl.lit(kind), name=pl.lit(name))
        _write(lambda: named, self._observed_path(kind, name))

    def observed(self, kind: str, name: str, schema: Mapping[str, Any] = OBSERVATIONS) -> pl.DataFrame:
        """Observations of one job; a damaged file is set aside."""
        path = self._observed_path(kind, name)
        frame = self._read(path, lambda frame: _cast(frame, schema, needed=tuple(schema)))
        return pl.DataFrame(schema=schema) if frame is None else frame.select(list(schema))

    def observations(self) -> pl.DataFrame:
        """Observations of the latest jobs (`OBSERVATIONS`)."""
        frames = [pl.DataFrame(schema=OBSERVATIONS)]
        for path in sorted(self._files(self._observations), key=_changed_unix_s)[-MOST_JOBS:]:
            frame = self._read(path, lambda frame: _cast(frame, OBSERVATIONS, needed=OBSERVATIONS.names()))
            if frame is not None:
                frames.append(frame.select(OBSERVATIONS.names()))
        return pl.concat(frames)

    def _observed_path(self, kind: str, name: str) -> Path:
        readable = re.sub(r"[^A-Za-z0-9]+", "-", f"{kind} {name}")[:80]
        digest = sha256(f"{kind}\n{name}".encode("utf-8", "replace")).hexdigest()[:8]
        return self._observations / f"{readable}-{digest}.parquet"

    def tag(self, measurement_id: str, tag_text: str) -> None:
        """Keep a few words with a measurement; none take them away.

        Raises:
            UsageError: what cannot be an id.
            StoreError: they cannot be written.
        """
        if not measurement_id.isalnum():
            raise UsageError(f"{measurement_id!r} is no id of a measurement; the log lists them")
        path = self.directory / "tags" / measurement_id
        try:
            if tag_text:
                with _paths.replacing(path) as file:
                    file.write(tag_text[:MOST_TAG].encode("utf-8", "replace"))
            else:
                path.unlink(missing_ok=True)
        except OSError as error:
            raise StoreError(f"the tag could not be kept in {path.parent} ({_reason(error)})") from error

    def tags(self) -> dict[str, str]:
        """Words that are kept with measurements, by their ids."""
        found = {}
        with contextlib.suppress(OSError):
            for path in sorted((self.directory / "tags").iterdir()):
                with contextlib.suppress(OSError, UsageError):
                    found[path.name] = named_file(path).read_bytes()[:MOST_TAG].decode("utf-8", "replace")
        return found

    def messages(self) -> list[str]:
        """Problems since the last call: damaged files, or another directory than the wanted one."""
        summary, self._messages = self._messages, []
        if self.problem:
            summary.insert(0, self.problem)
            self.problem = ""
        return summary

    def _files(self, directory: Path) -> list[Path]:
        try:
            return sorted(directory.glob("*.parquet"))
        except OSError as error:
            raise StoreError(f"{directory} cannot be read: {error.strerror}") from error

    def _sound(self, paths: Sequence[Path]) -> dict[Path, pl.DataFrame]:
        """The files of measurements that can be used, by path."""
        return {path: frame for path in paths if (frame := self._read(path, _columns)) is not None}

    def _read(self, path: Path, checked: Callable[[pl.DataFrame], pl.DataFrame]) -> pl.DataFrame | None:
        """The frame of a file as `checked` returns it; None where it cannot be used, and a message."""
        try:
            if not stat.S_ISREG(path.stat().st_mode):  # a pipe would block, a directory be searched
                raise ValueError("it is no regular file")
            return checked(pl.read_parquet(path))
        except _OtherVersion:
            self._tell(f"{path.name} is left out: another version of the workbench wrote it, and only that "
                       "version reads it")
            return None
        except FileNotFoundError:
            self._gone = True
            return None
        except (OSError, MemoryError) as error:
            self._tell(f"{path.name} could not be read this time ({_reason(error)})")
            return None
        except _FAILURES as error:
            aside = path.with_suffix(".damaged")
            with contextlib.suppress(OSError):
                path.replace(aside)
            reason = str(error).splitlines()[0][:120] if str(error) else type(error).__name__
            self._tell(f"{path.name} could not be read and was set aside as {aside.name} ({reason})")
            return None

    def _tell(self, sentence: str) -> None:
        if sentence not in self._messages:
            self._messages.append(sentence)

    def _make_room(self) -> None:
        with contextlib.suppress(OSError):
            files = [(path, path.stat().st_size) for path in self._files(self._traces)]
            total = sum(size for _, size in files)
            # by time, whether a trace or its iterations
            for path, size in sorted(files, key=lambda file: file[0].name[2:]):
                if total <= self.quota_bytes:
                    break
                path.unlink(missing_ok=True)
                total -= size

    def _compact(self) -> None:
        """Turn many single files into one. A crash in between leaves rows twice, which `log` drops by id."""
        single = sorted(self._measurements.glob("m-*.parquet"))
        if len(single) < COMPACT_AT:
            return
        frames = self._sound(single)
        if not frames:
            return
        with contextlib.suppress(StoreError):
            whole = self._measurements / f"log-t{time.time_ns()}-{uuid.uuid4().hex[:8]}.parquet"
            _write(lambda: pl.concat(frames.values()), whole)
            for path in frames:
                path.unlink(missing_ok=True)


def _changed_unix_s(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # gone meanwhile, or a link to nothing
        return 0.0


class _OtherVersion(Exception):
    """A file that another version has written."""


def _columns(frame: pl.DataFrame) -> pl.DataFrame:
    """The frame of a file of measurements with the columns and kinds of `SCHEMA`; _OtherVersion, ValueError
    or PolarsError where another version has written it, a column is missing or holds something else.
    """
    if "schema_version" in frame.columns and (frame["schema_version"].cast(pl.Int64) != SCHEMA_VERSION).any():
        raise _OtherVersion
    frame = _cast(frame, SCHEMA, needed=SCHEMA.names()).select(SCHEMA.names())
    unknown = [name for name in _NEEDED if frame[name].null_count()]
    lists = (frame[name] for name in ("gpus", "notes", "iteration_levels"))
    unknown += [each.name for each in lists if (each.list.drop_nulls().list.len() < each.list.len()).any()]
    if unknown:
        raise ValueError(f"column {', '.join(unknown)} has places without a value")
    started_s, time_s = (frame[name].abs() for name in ("started_unix_s", "time_s"))
    if not ((started_s < _LATEST_UNIX_S) & (time_s < math.inf)).all():
        raise ValueError("a time is no finite number of seconds")
    return frame


def _cast(frame: pl.DataFrame, schema: Mapping[str, Any], *, needed: Sequence[str]) -> pl.DataFrame:
    """The frame with the kinds of a schema, as far as it has its columns."""
    if missing := set(needed) - set(frame.columns):
        raise ValueError(f"it has no columns {', '.join(sorted(missing))}")
    kinds = {name: kind for name, kind in schema.items() if name in frame.columns}
    have = frame.schema
    if any(have[name] != kind for name, kind in kinds.items()):
        frame = frame.cast(kinds)  # type: ignore[arg-type]
        have = frame.schema
    # a struct's fields are cast, not the struct
    if other := [name for name, kind in kinds.items() if have[name] != kind]:
        raise ValueError(f"column {', '.join(other)} holds {have[other[0]]}")
    return frame


def _write(make: Callable[[], pl.DataFrame], path: Path) -> None:
    """A whole file or none: written aside, flushed to the disk, renamed."""
    try:
        frame = make()
        with _paths.replacing(path) as file:
            frame.write_parquet(file)
    except _FAILURES as error:
        raise StoreError(
            f"the measurement could not be kept in {path.parent} ({_reason(error)}); it is shown but not "
            "stored. Free some space there or set WORKBENCH_HOME to another directory"
        ) from error


def _reason(error: BaseException) -> str:
    """What the system says, or the library."""
    return getattr(error, "strerror", None) or str(error)


def for_spreadsheets(frame: pl.DataFrame) -> pl.DataFrame:
    """The frame with an apostrophe before each text that a spreadsheet would run as a formula."""
    return frame.with_columns(pl.col(pl.String).str.replace(f"^({FORMULA})", "'$1"))


def _flattened(texts: pl.DataFrame, frame: pl.DataFrame) -> pl.DataFrame:
    """The columns for a spreadsheet: of a log those that a person reads come first, in a word each."""
    if "gpus" not in frame.columns:
        return texts
    summary = rows(frame)
    local = [datetime.fromtimestamp(unix_s).astimezone() for unix_s in frame["started_unix_s"]]
    read = {"started": pl.Series([each.isoformat(" ", "milliseconds") for each in local], dtype=pl.String)}
    read |= {name.lower(): pl.Series([row[name] for row in summary], dtype=pl.String)
             for name in ("GPU", "setting", "note")}
    return texts.select("label", **read).hstack(texts.drop("label"))


@checked
def export(frame: pl.DataFrame, path: str | Path) -> Path:
    """Write a log to a .parquet, .csv or .json file.

    In CSV a log begins with columns to read (label, started in local time with its offset from UTC, gpu,
    setting, note), and nested columns become JSON text.

    In CSV a `'` stands before text that a spreadsheet would run as a formula (`=`, `+`, `-`, `@` first).

    Raises:
        UsageError: another ending, or a directory that is not there.
        StoreError: it cannot be written there.
    """
    target = Path(path).expanduser()
    if target.suffix not in (".parquet", ".csv", ".json"):
        example = "for example --export energy.csv"
        raise UsageError(f"{target.name!r} ends in none of .parquet, .csv, .json; {example}")
    if not target.parent.is_dir():
        raise UsageError(f"there is no directory {target.parent} to export to")
    try:
        with target.open("wb") as file:  # Polars takes no name that is no UTF-8
            if target.suffix == ".parquet":
                frame.write_parquet(file)
            elif target.suffix == ".json":
                frame.write_json(file)
            else:
                texts = [
                    pl.Series(name, [json.dumps(value) for value in frame[name].to_list()], dtype=pl.String)
                    for name, kind in frame.schema.items() if kind.is_nested()
                ]
                plain = pl.col(pl.String).str.replace_all(r"[\x00-\x08\x0b-\x1f\x7f-\x{9f}]", "\ufffd")
                flat = _flattened(frame.with_columns(texts), frame).with_columns(plain)
                for_spreadsheets(flat).write_csv(file)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise StoreError(f"{target} could not be written ({_reason(error)})") from error
    return target
