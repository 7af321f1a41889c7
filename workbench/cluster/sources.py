"""Job logs on offer: given ones, files, generated ones; each is read when first selected."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from ..errors import UsageError
from .generator import generate
from .joblogs import Trimmed, parts, trim
from .readers import no_file, read

Pieces = tuple[Trimmed | None, dict[str, pl.DataFrame]]

# (name, jobs, number of GPUs, load of these GPUs)
GENERATED = (
    ("generated: 2,000 jobs, 0.7 of 16 nodes", 2000, 128, 0.7),
    ("generated: 2,000 jobs, 1.1 of 16 nodes", 2000, 128, 1.1),
)


@dataclass
class LogSource:
    """A log by its name, with its cached content.

    Attributes:
        name: Offered name, unless it is a duplicate.
        load: Reads the log; `keep_valid=True` accepts text in numeric columns.
        drawn: Whether it is generated, not a record of a real cluster.
        named: Whether its path was given, so that an unreadable log is reported immediately.
    """

    name: str
    load: Callable[..., pl.DataFrame]
    drawn: bool = False
    named: bool = False
    _pieces: dict[tuple[bool, bool], Pieces | str] = field(default_factory=dict, repr=False)

    def pieces(self, trimmed: bool, keep_valid: bool = False) -> Pieces:
        """Number of rows removed by trimming, and the log's parts by name. The error of an unreadable file is
        cached, too.

        Raises:
            UsageError: It cannot be read.
        """
        found = self._pieces.get((trimmed, keep_valid))
        if found is None:
            try:
                table = self.load(keep_valid=keep_valid)
                done = trim(table) if trimmed else None
                found = done, parts(done.jobs if done else table)
            except UsageError as error:
                found = str(error)
            except (pl.exceptions.PolarsError, ValueError, TypeError, OverflowError) as error:
                found = (
                    f"the log cannot be read as jobs: {error}. Give submit_s, duration_s and num_gpus as "
                    "numbers, times in seconds"
                )
            self._pieces[trimmed, keep_valid] = found
        if isinstance(found, str):
            raise UsageError(found)
        return found


def sources(given: Any) -> dict[str, LogSource]:
    """Logs by name, in the order in which they are offered.

    Args:
        given: None: files of `data_directory()`, and generated logs. Otherwise a frame, a path, a directory
            of logs, or several of these by name.

    Raises:
        UsageError: `given` is none of these.
    """
    if given is None:
        found = _directory(data_directory()) + [
            LogSource(name, partial(_generated, count, gpus, load), drawn=True)
            for name, count, gpus, load in GENERATED
        ]
    elif isinstance(given, pl.DataFrame):
        return sources({"jobs": given})
    elif isinstance(given, Mapping):
        found = [
            LogSource(str(name), partial(read, each), named=isinstance(each, (str, Path)))
            for name, each in given.items()
        ]
    elif isinstance(given, (str, Path)):
        found = of_path(given)
    elif isinstance(given, Sequence):
        found = [source for each in given for source in sources(each).values()]
    else:
        raise UsageError(
            f"a job log is a frame, a path, or several of these by name, not {type(given).__name__}"
        )
    if not found:
        raise UsageError(
            "no job log is given; give a frame, the path of a Parquet or CSV file, or None for the generated "
            "ones"
        )
    return by_name(found)


def by_name(found: Sequence[LogSource], taken: Collection[str] = ()) -> dict[str, LogSource]:
    """Logs under unique names: a second "jobs" is "jobs (2)"."""
    made: dict[str, LogSource] = {}
    for source in found:
        name, number = source.name, 1
        while name in taken or name in made:
            number += 1
            name = f"{source.name} ({number})"
        made[name] = source
    return made


def of_path(path: str | Path) -> list[LogSource]:
    """The log of a file, or those of a directory. Raises UsageError where there is none."""
    where = Path(path).expanduser()
    if os.path.isdir(where):
        if found := _directory(where):
            return found
        raise UsageError(f"{str(where)!r} contains no Parquet, CSV or text file")
    if not os.path.exists(where):  # a name that is too long is no file either
        raise no_file(where)
    return [LogSource(where.stem, partial(read, where), named=True)]


def _generated(count: int, gpus: int, load: float, *, keep_valid: bool = False) -> pl.DataFrame:
    """Arrivals, durations and GPU counts only: other values are generated for each seed."""
    jobs = generate(count, gpus=gpus, seed=0, load=load)
    return jobs.select("job_id", "submit_s", "duration_s", "num_gpus")


def data_directory() -> Path:
    """Directory of job logs from elsewhere: `$WORKBENCH_DATA/cluster`, or `shared/data/cluster` above."""
    if named := os.environ.get("WORKBENCH_DATA"):
        return Path(named) / "cluster"
    near, far = (Path(*up, "shared", "data", "cluster") for up in (("..",), ("..", "..")))
    return near if near.is_dir() else far


def _directory(where: Path) -> list[LogSource]:
    known = [path for path in sorted(where.glob("*")) if path.suffix in (".parquet", ".csv", ".txt")]
    return [LogSource(path.stem, partial(read, path)) for path in known]
