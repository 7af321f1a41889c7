"""Files of other programs as tables of text: `table_of(path)`.

A table is wide (a column for each metric) or long: then it has the columns "metric" and "value". Both may
have a column of times and columns that identify a GPU. `log_readers` knows what the metrics mean. A file that
was cut off is read as far as it goes.

Layouts: docs.nvidia.com/datacenter/dcgm (dcgmi dmon), prometheus.io (HTTP API, exposition formats),
mlflow.org (system metrics), LevelDB's log format (W&B, whose package no longer reads its own files). The
packages of W&B and TensorBoard read their messages.
"""

from __future__ import annotations

import csv
import json
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from ..errors import UsageError, missing, named_file

Row = dict[str, object]  # a value by column
Rows = list[Row]
ENTITY = re.compile(r"#\s*Entity\s+(?P<names>.+)$")
EXPOSED = re.compile(r"^(?P<name>[A-Za-z_:][\w:]*)\{(?P<labels>[^}]*)\}\s+(?P<value>\S+)(?:\s+(?P<at>\d+))?$")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
BLOCK, HEAD = 32768, struct.Struct("<4xHB")  # LevelDB: blocks of records; a record's length and kind


def table_of(path: Path) -> pl.DataFrame:
    """The table in a file, or in the folder of an MLflow run; every value is text or null.

    Raises:
        UsageError: it cannot be read, or is no table.
    """
    if path.is_dir():
        return _frame(_mlflow(path))
    try:
        raw = named_file(path).read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from error
    if raw.startswith(b"PAR1"):
        try:
            return _frame(pl.read_parquet(path).to_dicts())
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
            raise UsageError(f"{path} is a damaged Parquet file: {str(error).splitlines()[0]}") from error
    if raw.startswith(b":W&B"):
        return _frame(_wandb(raw))
    if b"brain.Event:" in raw[:100]:
        return _frame(_tensorboard(path))
    wide = raw[:2] in (b"\xff\xfe", b"\xfe\xff")  # a redirect of PowerShell
    text = raw.decode("utf-16" if wide else "utf-8-sig", errors="replace").replace("\0", "")
    if text.lstrip().startswith(("{", "[")):
        return _json(text, path)
    lines = text.splitlines()
    if len(lines) > 2 and not text.endswith(("\n", "\r")):
        lines.pop()  # it may have been cut off in the middle of a number
    lines = [line.strip() for line in lines if line.strip()]
    if any(map(EXPOSED.match, lines[:400])):
        return _frame(_exporter(lines))
    if any(map(ENTITY.search, lines[:200])):
        return _frame(_dmon(lines))
    return _separated(lines, path)


def _frame(rows: Sequence[Mapping[str, Any]], heads: Sequence[str] = ()) -> pl.DataFrame:
    """Rows as a table of text; empty texts are null."""
    names = dict.fromkeys((*heads, *(name for row in rows for name in row)), pl.String)
    texts = [[None if (value := row.get(name)) is None else str(value) for row in rows] for name in names]
    frame = pl.DataFrame(texts, schema=names)
    return frame.with_columns(pl.all().str.strip_chars().replace("", None))


def _row(at: object, metric: str, value: object) -> Row:
    return {"time": at, "metric": metric, "value": value}


def _separated(lines: Sequence[str], path: Path) -> pl.DataFrame:
    """Rows between commas, semicolons or bars; damaged rows, and heads that come again, are left out."""
    if not lines:
        raise UsageError(f"{path.name} is empty")
    separator = max(",;|", key=lines[0].count)
    try:
        head, *rows = csv.reader(lines, delimiter=separator)
    except csv.Error as error:
        raise UsageError(f"{path.name} is no table that can be read: {error}") from error
    names = [re.sub(r"\s*\[.*?\]$", "", name.strip()) for name in head]  # without units
    whole = [row for row in rows if len(row) == len(head) and row != head]
    return _frame([dict(zip(names, row, strict=True)) for row in whole], names)


def _json(text: str, path: Path) -> pl.DataFrame:
    """A range query of Prometheus; or rows, as a list or a row a line."""
    try:
        try:
            whole = json.loads(text)
        except ValueError:  # the last line may have been cut off
            whole = [json.loads(line) for line in text.splitlines() if line.rstrip().endswith("}")]
        if isinstance(whole, list):
            return _frame(whole)
        return _frame([
            series["metric"] | _row(at, series["metric"]["__name__"], value)
            for series in whole["data"]["result"] for at, value in series["values"]])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UsageError(f"{path.name} is JSON of no known kind; known are Prometheus' query_range and rows "
                         "of W&B's system metrics with _timestamp and system.gpu.0.powerWatts") from error


def _exporter(lines: Sequence[str]) -> Rows:
    """Scrapes of an exporter, one after another."""
    return [dict(LABEL.findall(found["labels"])) | _row(found["at"], found["name"], found["value"])
            for found in map(EXPOSED.match, lines) if found]


def _dmon(lines: Sequence[str]) -> Rows:
    """`dcgmi dmon`, with or without a time before each line."""
    names: list[str] = []
    rows: Rows = []
    for line in lines:
        if found := ENTITY.search(line):
            names = found["names"].split()
            continue
        fields = line.split()
        entity = len(fields) - len(names) - 2
        if entity >= 0 and re.fullmatch(r"v?GPU(-I|-CI)?", fields[entity]):
            values = dict(zip(names, fields[entity + 2 :], strict=True))
            gpu = " ".join(fields[entity : entity + 2])
            rows.append({"time": " ".join(fields[:entity]), "gpu": gpu, **values})
    return rows


def _mlflow(folder: Path) -> Rows:
    """A run of a file store: `metrics/system/gpu_0_power_usage_watts` has lines of time, value, step."""
    places = (folder, folder / "system", folder / "metrics", folder / "metrics" / "system")
    files = sorted(path for place in places for path in place.glob("*gpu_*_*") if path.is_file())
    rows = [(path.name, line.split()) for path in files
            for line in path.read_text(encoding="utf-8", errors="replace").splitlines()]
    found = [_row(parts[0], name, parts[1]) for name, parts in rows if len(parts) >= 2]
    if not found:
        raise UsageError(f"{folder} is no regular file, and no run of MLflow with GPU metrics; give the "
                         "folder of a run, which has metrics/system/gpu_0_power_usage_watts")
    return found


def _wandb(raw: bytes) -> Rows:
    """System metrics of an offline run of W&B."""
    try:
        from wandb.proto.wandb_internal_pb2 import Record
    except ImportError as error:
        raise UsageError(f"W&B's own package reads it: {missing('wandb', 'sinks')}") from error
    rows = []
    for body in _leveldb(raw):
        stats = Record.FromString(body).stats
        at_s = stats.timestamp.ToMicroseconds() / 1e6
        rows += [_row(at_s, item.key, item.value_json) for item in stats.item]
    return rows


def _leveldb(raw: bytes) -> Iterator[bytes]:
    """Records of a log; what is cut off or of no known kind ends it."""
    at, begun = HEAD.size, b""
    while at + HEAD.size <= len(raw):
        if (left := BLOCK - at % BLOCK) < HEAD.size:
            at += left
            continue
        size, kind = HEAD.unpack_from(raw, at)
        at += HEAD.size + size
        if kind not in (1, 2, 3, 4) or at > len(raw):  # whole, first, middle, last
            return
        begun = raw[at - size : at] if kind in (1, 2) else begun + raw[at - size : at]
        if kind in (1, 4):
            yield begun


def _tensorboard(path: Path) -> Rows:
    """Scalars of an event file."""
    try:
        from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
        from tensorboard.util.tensor_util import make_ndarray
    except ImportError as error:
        raise UsageError(f"TensorBoard reads it: {missing('tensorboard', 'sinks')}") from error
    return [
        _row(event.wall_time, value.tag, make_ndarray(value.tensor).item())
        for event in EventFileLoader(str(path)).Load() for value in event.summary.value
        if value.HasField("tensor") and not value.tensor.tensor_shape.dim
    ]
