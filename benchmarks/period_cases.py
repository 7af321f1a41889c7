"""Cases with known periods: the traces of `--data DIR`, and those of our own simulator, in one format.

A detector gets only `Case.trace`. The truth is in `Case.truth`, which only the scorer reads.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from workbench.errors import UsageError

Range = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Truth:
    """The truth of a case. Every period is a range of seconds, of zero length for one number.

    Attributes:
        periodic: Whether there are iterations at all.
        observable: Whether the sensor can show them.
        iteration: Mean and median of the iteration's length; for a drift the range from its first to its last
            quarter.
        levels: The other true levels: "micro-step", "super-cycle" (a stall every k-th iteration), "cycle"
            (evaluation, checkpoint).
        mean_s: Mean length of an iteration.
    """

    periodic: bool
    observable: bool
    iteration: tuple[Range, ...] = ()
    levels: Mapping[str, tuple[Range, ...]] = field(default_factory=dict)
    mean_s: float | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """One trace with its truth; `sensor` and `family` only group the results."""

    name: str
    family: str
    sensor: str
    trace: pl.DataFrame
    truth: Truth

    def first(self, seconds: float) -> Case:
        """The same case with the first `seconds` of its trace only."""
        start = self.trace["time_s"][0] if self.trace.height else 0.0
        return replace(self, trace=self.trace.filter(pl.col("time_s") - start <= seconds))


def load_cases(data: Path) -> list[Case]:
    """The cases of a directory laid out as `shared/data/period` (or of its parent).

    Files are found by their names: `*traces*.parquet`, `*truth*.csv`, `*iters*.npz` (without it, cycles of
    evaluations or checkpoints are unknown).

    Raises:
        UsageError: There are no traces, or no truth.
    """
    directory = data / "period" if (data / "period").is_dir() else data
    traces, truth = _newest(directory, "*traces*.parquet"), _newest(directory, "*truth*.csv")
    if traces is None or truth is None:
        missing = "traces (*traces*.parquet)" if traces is None else "truth (*truth*.csv)"
        raise UsageError(f"{directory} holds no {missing}; name a directory with both: --data DIR")
    iterations = _newest(directory, "*iters*.npz")
    starts = dict(np.load(iterations)) if iterations is not None else {}
    by_starts = {_name(key.split("_", 1)[-1]): values for key, values in starts.items()}
    parts = {
        _name(key[0]): part
        for key, part in pl.read_parquet(traces).partition_by("case", as_dict=True).items()
    }
    rows = [
        (_name(row["case"]), row)
        for row in pl.read_csv(truth, infer_schema_length=None).iter_rows(named=True)
    ]
    return [_case(name, row, parts[name], by_starts.get(name)) for name, row in rows if name in parts]


def published_answers(data: Path) -> dict[str, dict[str, Any]] | None:
    """GPOEO's own answers by case name: `seconds_used`, `T_found`, `says_periodic`; None where the file is
    not there.
    """
    directory = data / "period" if (data / "period").is_dir() else data
    path = _newest(directory, "*gpoeo*.csv")
    if path is None:
        return None
    return {
        _name(row["case"]): row for row in pl.read_csv(path, infer_schema_length=None).iter_rows(named=True)
    }


def from_generated(generated: Any, name: str) -> Case:
    """A case of our own simulator (`benchmarks.fixtures.traces.Case`)."""
    truth = generated.truth
    iteration: tuple[Range, ...] = ()
    if generated.periodic:
        ends = (truth.low_s, truth.high_s)
        iteration = (ends,) if truth.drifts else ((ends[0], ends[0]), (ends[1], ends[1]))
    levels = {key: ((value, value),) for key, value in truth.levels_s.items() if key != "iteration" and value}
    refreshes = "<= 30" if generated.refresh_s <= 0.03 else "> 30"
    polls = "faster" if generated.poll_s < generated.refresh_s else "slower"
    sensor = f"refresh {refreshes} ms, polled {polls}"
    known = Truth(generated.periodic, bool(truth.observable), iteration, levels, truth.iteration_s)
    return Case(name, generated.family, sensor, generated.trace, known)


def stratified(cases: Sequence[Case], every: int) -> list[Case]:
    """Every `every`-th case of each family, so that a quick look has the same mixture."""
    seen: dict[str, int] = {}
    kept = []
    for case in cases:
        number = seen.get(case.family, 0)
        seen[case.family] = number + 1
        if number % every == 0:
            kept.append(case)
    return kept


def cycle_s(starts_s: np.ndarray, every: int) -> float | None:
    """Mean seconds from one evaluation or checkpoint to the next, from true iteration starts; None where none
    happened.

    >>> cycle_s(np.array([0.0, 1.0, 2.0, 5.0, 6.0, 7.0, 10.0]), every=3)
    5.0
    """
    turns = starts_s[::every]
    return float(np.mean(np.diff(turns))) if len(turns) > 1 else None


def _newest(directory: Path, pattern: str) -> Path | None:
    found = (
        sorted(directory.glob(pattern), key=lambda path: path.stat().st_mtime) if directory.is_dir() else []
    )
    return found[-1] if found else None


def _name(case: Any) -> str:
    """A case's name, written alike whether a file counts 7, "007" or names it.

    >>> _name(7), _name("007"), _name("resnet-2")
    ('7', '7', 'resnet-2')
    """
    text = str(case)
    return str(int(text)) if text.isdigit() else text


def _case(name: str, row: Mapping[str, Any], part: pl.DataFrame, starts_s: np.ndarray | None) -> Case:
    columns = {"t": pl.col("t").alias("time_s"), "power_w": pl.col("power_w"),
               "sm_util": (pl.col("sm_util") / 100).alias("utilisation"),
               "mem_util": (pl.col("mem_util") / 100).alias("memory_utilisation")}
    trace = part.select(*(value.cast(pl.Float64) for name, value in columns.items() if name in part.columns))
    mean_s = row.get("T_true")
    if mean_s is None:
        truth = Truth(periodic=False, observable=False)
    else:
        seen = str(row.get("observable", True)).lower() in ("true", "1", "1.0")
        truth = Truth(True, seen, _known_iteration(row, mean_s), _levels(row, starts_s), mean_s)
    return Case(name, str(row.get("family") or ""), str(row.get("sensor") or ""), trace, truth)


def _known_iteration(row: Mapping[str, Any], mean_s: float) -> tuple[Range, ...]:
    ends = [row[name] for name in ("T_head", "T_tail") if row.get(name) is not None]
    if row.get("family") == "drift" and ends:
        return ((min(ends), max(ends)),)
    return tuple((value, value) for value in (mean_s, row.get("T_med")) if value is not None)


def _levels(row: Mapping[str, Any], starts_s: np.ndarray | None) -> dict[str, tuple[Range, ...]]:
    levels: dict[str, tuple[Range, ...]] = {}
    for name, column in (("micro-step", "T_micro"), ("super-cycle", "T_super")):
        if row.get(column) is not None:
            levels[name] = ((row[column], row[column]),)
    meta = json.loads(row.get("meta") or "{}")
    every = meta["eval"][0] if "eval" in meta else meta.get("ckpt")
    if every is not None and starts_s is not None and (seconds := cycle_s(starts_s, int(every))) is not None:
        levels["cycle"] = ((seconds, seconds),)
    return levels
