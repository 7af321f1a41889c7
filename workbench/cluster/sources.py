"""The job logs that may be simulated: what was given, files found, generated ones; each is read when it is first chosen."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import polars as pl

from ..errors import UsageError
from .generator import generate
from .joblogs import Trimmed, parts, read, trim

# (name, jobs, GPUs that the load is of, load)
GENERATED = (("generated: 2,000 jobs, 0.7 of 16 nodes", 2000, 128, 0.7), ("generated: 2,000 jobs, 1.1 of 16 nodes", 2000, 128, 1.1))


@dataclass
class Source:
    """A log by its name, and what was read of it.

    Attributes:
        drawn: It is generated, not a record of a real cluster.
    """

    name: str
    load: Callable[[], pl.DataFrame]
    drawn: bool = False
    _raw: pl.DataFrame | None = field(default=None, repr=False)
    _parts: dict[bool, tuple[Trimmed | None, dict[str, Callable[[], pl.DataFrame]]]] = field(default_factory=dict, repr=False)

    @property
    def raw(self) -> pl.DataFrame:
        if self._raw is None:
            self._raw = self.load()
        return self._raw

    def pieces(self, trimmed: bool) -> tuple[Trimmed | None, dict[str, Callable[[], pl.DataFrame]]]:
        """Its parts by name, and what trimming has left out."""
        if trimmed not in self._parts:
            done = trim(self.raw) if trimmed else None
            found = parts(self.raw if done is None else done.jobs)
            self._parts[trimmed] = (done, {name: cache(cut) for name, cut in found.items()})
        return self._parts[trimmed]


def sources(given: Any) -> dict[str, Source]:
    """By name, in the order in which they are offered.

    Args:
        given: None: files of `data_directory()`, and generated logs. A frame, a path, a directory of
            logs, or several of these by name.

    Raises:
        UsageError: none of these.
    """
    found: list[Source] = []
    if given is None:
        found += _directory(data_directory())
        found += [Source(name, partial(_generated, count, gpus, load), drawn=True) for name, count, gpus, load in GENERATED]
    elif isinstance(given, Mapping):
        for name, each in given.items():
            found.append(Source(str(name), partial(read, each)))
    elif isinstance(given, pl.DataFrame):
        found.append(Source("jobs", partial(read, given)))
    elif isinstance(given, (str, Path)):
        found += of_path(given)
    elif isinstance(given, Sequence):
        for each in given:
            found += list(sources(each).values())
    else:
        raise UsageError(f"a job log is a frame, a path, or several of these by name, not {type(given).__name__}")
    if not found:
        raise UsageError("no job log is given; give a frame, the path of a Parquet or CSV file, or None for the generated ones")
    return {source.name: source for source in found}


def of_path(path: str | Path) -> list[Source]:
    """The log of a file, or those of a directory. Raises UsageError where there is none."""
    where = Path(path).expanduser()
    if where.is_dir():
        found = _directory(where)
        if not found:
            raise UsageError(f"in {str(where)!r} is no Parquet, CSV or text file")
        return found
    if not where.exists():
        raise UsageError(f"there is no file {str(where)!r}; give the path of a job log (Parquet or CSV), or a frame")
    return [Source(where.stem, partial(read, where))]


def _generated(count: int, gpus: int, load: float) -> pl.DataFrame:
    """Arrivals, durations and GPU counts only: what a log does not tell is drawn for each draw anew."""
    return generate(count, gpus=gpus, seed=0, load=load).select("job_id", "submit_s", "duration_s", "num_gpus")


def data_directory() -> Path:
    """Where job logs of other systems may lie: `$WORKBENCH_DATA/cluster`, else `shared/data/cluster` one or two directories up."""
    if named := os.environ.get("WORKBENCH_DATA"):
        return Path(named) / "cluster"
    near, far = (Path(*up, "shared", "data", "cluster") for up in (("..",), ("..", "..")))
    return near if near.is_dir() else far


def _directory(where: Path) -> list[Source]:
    files = sorted(where.glob("*")) if where.is_dir() else []
    return [Source(path.stem, partial(read, path)) for path in files if path.suffix in (".parquet", ".csv", ".txt")]
