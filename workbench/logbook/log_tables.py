"""Files of other programs as tables of text: `table_of(path)`.

A table is wide (a column for each metric) or long: then it has the columns "metric" and "value". Both may
have a column of times and columns that identify a GPU. `log_readers` knows what the metrics mean. A file that
was cut off is read as far as it goes, and rows that cannot be read are counted.

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

from ..errors import UsageError, missing, read_file
from ..trace import read_parquet

Row = dict[str, object]  # a value by column
Rows = list[Row]
PART = "part of the file"  # column: the number of heads before a row, as each session appends one
ENTITY = re.compile(r"#\s*Entity\s+(?P<names>.+)$")
EXPOSED = re.compile(r'^(?P<name>[A-Za-z_:][\w:]*)(?P<labels>\{(?:[^"}]|"(?:[^"\\]|\\.)*")*\})?\s+'
                     r"(?P<value>[-+.\w]+)(?:\s+(?P<at>[\d.]+))?$")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
BLOCK, HEAD = 32768, struct.Struct("<4xHB")  # LevelDB: blocks of records; a record's length and kind
# Beginnings of files that are no text, and what to do.
BINARY = {
    b"SQLite format 3": (
        "an SQLite database, as MLflow's mlflow.db is. Write its metrics to a CSV file: sqlite3 -csv -header "
        "mlflow.db 'select key, value, timestamp, run_uuid from metrics' > metrics.csv"),
    b"PK\x03\x04": "a ZIP archive or a spreadsheet. Unpack it, or save the table as CSV",
    b"\x89HDF": "an HDF5 file. Write the table as CSV or Parquet",
    b"BZh": "compressed by bzip2. Unpack it",
    b"\xfd7zXZ": "compressed by xz. Unpack it",
    b"\x28\xb5\x2f\xfd": "compressed by zstd. Unpack it",
    b"%PDF": "a PDF document. Give the table as CSV",
    b"ARROW1": "an Arrow or Feather file. Write the table as CSV or Parquet",
}
NUMERIC = r"^[+-]?\d[\d.,'\s\u00a0\u202f]*(?:[eE][+-]?\d+)?\s*[A-Za-zµ%]*$"
GROUPED = r"^[+-]?[1-9]\d{0,2}(?:,\d{3})+\D*$"


def table_of(path: Path) -> tuple[pl.DataFrame, int]:
    """The table in a file, or in the folder of an MLflow run; every value is text or null. And the number of
    rows that could not be read.

    Raises:
        UsageError: it cannot be read, or is no table.
    """
    if path.is_dir():
        return _mlflow(path)
    raw = read_file(path)
    if raw.startswith(b"PAR1"):
        try:
            frame = read_parquet(raw, path.name)
            plain = [name for name, kind in frame.schema.items() if not kind.is_nested()]
            return frame.select(pl.col(plain).cast(pl.String, strict=False)), 0
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
            raise UsageError(f"{path} is a damaged Parquet file: {str(error).splitlines()[0]}") from error
    if raw.startswith(b":W&B"):
        return _frame(_wandb(raw)), 0
    if b"brain.Event:" in raw[:100]:
        return _frame(_tensorboard(path)), 0
    wide = raw[:2] in (b"\xff\xfe", b"\xfe\xff")  # a redirect of PowerShell
    start = raw[:4096]
    for beginning, what in BINARY.items():
        if start.startswith(beginning):
            raise UsageError(f"{path.name} is {what}")
    if not wide and sum(byte < 9 or 13 < byte < 32 for byte in start) > 0.1 * len(start):
        raise UsageError(f"{path.name} is a binary file of no known kind; give a table as text or Parquet")
    text = raw.decode("utf-16" if wide else "utf-8-sig", errors="replace").replace("\0", "")
    if text.lstrip().startswith(("{", "[")):
        return _json(text, path)
    ended = text.endswith(("\n", "\r"))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    exposed = lines[:1] and lines[0].startswith(("# HELP", "# TYPE"))
    if exposed or any("{" in line[:400] and EXPOSED.match(line) for line in lines[:400]):
        rows = [dict(LABEL.findall(found["labels"] or "")) | _row(found["at"], found["name"], found["value"])
                for found in map(EXPOSED.match, lines) if found]
        return _frame(rows), sum(line[0] != "#" for line in lines) - len(rows)
    if any(map(ENTITY.search, lines[:200])):
        return _dmon(lines if ended else lines[:-1])
    return _separated(lines, path, ended)


def _frame(rows: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    """Rows as a table of text; empty texts are null."""
    names = dict.fromkeys(name for row in rows for name in row)
    texts = {name: [None if (value := row.get(name)) is None else str(value) for row in rows]
             for name in names}
    return _texts(texts)


def _texts(columns: Mapping[str, Any]) -> pl.DataFrame:
    frame = pl.DataFrame(columns, schema=dict.fromkeys(columns, pl.String))
    return frame.with_columns(pl.all().str.strip_chars().replace("", None))


def _row(at: object, metric: str, value: object) -> Row:
    return {"time": at, "metric": metric, "value": value}


def _separated(lines: Sequence[str], path: Path, ended: bool) -> tuple[pl.DataFrame, int]:
    """Rows between commas, semicolons, tabs or bars. A head that comes again begins another part, also with
    other columns. Rows with another number of fields than their head are counted and left out.
    """
    if not lines:
        raise UsageError(f"{path.name} is empty")
    separator = max(",;|\t", key=lines[0].count)
    parts: list[list[list[str]]] = []  # each begins with its head
    unread = 0
    try:
        for cells in csv.reader(lines, delimiter=separator, skipinitialspace=True):
            if not parts or cells[0] == parts[-1][0][0] != "":
                parts.append([cells])
            elif len(cells) == len(parts[-1][0]):
                parts[-1].append(cells)
            else:
                unread += 1
    except csv.Error as error:
        raise UsageError(f"{path.name} is no table that can be read: {error}") from error
    widths = [len(row[-1]) for row in parts[-1][1:]]
    if not ended and len(widths) > 1 and widths[-1] < min(widths[:-1]):
        parts[-1].pop()  # without its end of line, and shorter than others: cut off in the middle of a number
        unread += 1
    frames = [_part(*rows, separator=separator).with_columns(pl.lit(str(number)).alias(PART))
              for number, rows in enumerate(parts)]
    return pl.concat(frames, how="diagonal"), unread


def _part(head: Sequence[str], *rows: Sequence[str], separator: str) -> pl.DataFrame:
    """Rows below one head as columns: numbers in plain form, with the unit of the head ("power.draw [mW]")
    where the cell has none.
    """
    columns = {}
    for number, title in enumerate(head):
        name, unit = re.findall(r"^(.*?)\s*(?:\[(.*)\])?$", title.strip())[0]
        texts = _plain(pl.Series([row[number] for row in rows], dtype=pl.String).str.strip_chars(), separator)
        columns[name] = texts.str.replace(r"^[+-]?[\d.]+(?:[eE][+-]?\d+)?$", f"$0 {unit}") if unit else texts
    return _texts(columns)


def _plain(texts: pl.Series, separator: str) -> pl.Series:
    """The numbers of a column with a decimal point and without thousands separators; other texts unchanged.

    A comma is the decimal mark where it comes after a point, or where not all commas are before three digits.
    "12,345" alone is twelve and a third where semicolons separate the fields.
    """
    numeric = texts.str.contains(NUMERIC)
    marked = texts.filter(numeric & texts.str.contains(r"\d[,'\s]\d|^\d{1,3}(?:\.\d{3}){2,}\D*$"))
    if not len(marked):
        return texts
    commas = marked.filter(marked.str.contains(",", literal=True))
    both = marked.filter(marked.str.contains(r"\..*,|,.*\."))
    if len(both):
        comma = both[0].rfind(",") > both[0].rfind(".")
    elif len(commas):
        grouped, large = commas.str.contains(GROUPED), commas.str.contains(r"^\D?\d,|,\d{3},")
        comma = not grouped.all() or (separator == ";" and not large.any())
    else:
        comma = marked.str.contains(r"\..*\.").any()
    plain = texts.str.replace_all(r"(\d)[.'\s](\d)" if comma else r"(\d)[,'\s](\d)", "$1$2")
    return plain.str.replace(",", ".", literal=True).zip_with(numeric, texts) if comma else plain.zip_with(
        numeric, texts)


def _json(text: str, path: Path) -> tuple[pl.DataFrame, int]:
    """A range query of Prometheus; or rows, as a list or a row a line."""
    unread = 0
    try:
        try:
            whole = json.loads(text)
        except ValueError:
            whole = []
            for line in text.splitlines():
                try:
                    whole.append(json.loads(line))
                except ValueError:
                    unread += bool(line.strip())
        if isinstance(whole, list) and whole:
            return _frame(whole), unread
        return _frame([
            series["metric"] | _row(at, series["metric"]["__name__"], value) | {
                PART: [each for each in series["metric"].items() if not each[0].startswith(("__", "GPU_I"))]}
            for series in whole["data"]["result"] for at, value in series["values"]]), 0
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UsageError(f"{path.name} is JSON of no known kind; known are Prometheus' query_range and rows "
                         "of W&B's system metrics with _timestamp and system.gpu.0.powerWatts") from error


def _dmon(lines: Sequence[str]) -> tuple[pl.DataFrame, int]:
    """`dcgmi dmon`, with or without a time before each line."""
    names: list[str] = []
    rows: Rows = []
    unread = 0
    for line in lines:
        if found := ENTITY.search(line):
            names = found["names"].split()
            continue
        fields = line.split()
        entity = len(fields) - len(names) - 2
        if entity >= 0 and re.fullmatch(r"v?GPU(-I|-CI)?", fields[entity]):
            values = dict(zip(names, fields[entity + 2 :], strict=True))
            gpu = " ".join(fields[entity : entity + 2])
            kind = "gpu_i_id" if "-" in gpu else "gpu"  # a MIG instance has the power of its board
            rows.append({"time": " ".join(fields[:entity]), kind: gpu, **values})
        else:
            unread += "GPU" in line
    return _frame([row for row in rows if "gpu" in row] or rows), unread


def _mlflow(folder: Path) -> tuple[pl.DataFrame, int]:
    """A run of a file store: `metrics/system/gpu_0_power_usage_watts` has lines of time, value, step; with
    several nodes the names begin with `node_0/`.
    """
    places = (folder, folder / "system", folder / "metrics", folder / "metrics" / "system")
    files = {path: str(path.relative_to(place))
             for place in places for pattern in ("*gpu_*_*", "node_*/gpu_*_*")
             for path in sorted(place.glob(pattern)) if path.is_file()}
    rows = [(name, line.split()) for path, name in files.items()
            for line in read_file(path).decode(errors="replace").splitlines()]
    found = [_row(parts[0], name, parts[1]) for name, parts in rows if len(parts) >= 2]
    if not found:
        raise UsageError(f"{folder} is no regular file, and no run of MLflow with GPU metrics; give the "
                         "folder of a run, which has metrics/system/gpu_0_power_usage_watts")
    return _frame(found), len(rows) - len(found)


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
