"""Jobs of a cluster as a Polars frame with `SCHEMA`. `check` reports row and value of the first invalid
entry.

job_id          unique
submit_s        when it came, seconds from any origin
duration_s      work: how long it runs alone on its GPUs
num_gpus        GPUs it holds all the time
user            who sent it (a virtual cluster in Philly)
model           the trained model; jobs of one model inform each other
utilisation     mean GPU utilisation alone, 0..1, of each of its GPUs
memory_bytes    peak memory on each of its GPUs
deadline_s      when it must have ended, on the clock of `submit_s`; null: no deadline
priority        higher is served first; above 0 a job shares its GPUs with nobody under the policies that
                share
gpu_type        null: any
epoch_s         time of one epoch alone; null: max(60 s, duration / 90), as the jobs of EaCO's paper have
                about 90 epochs
expected_s      what the scheduler gets of `duration_s`; null: the truth
sensitivity     hidden from policies: how far this job's excess under sharing departs from the model's, as a
                ratio; null: 1
"""

from __future__ import annotations

import polars as pl
from polars import col

from ..errors import UsageError, listed
from .power import Cluster

SCHEMA = pl.Schema({
    "job_id": pl.String, "submit_s": pl.Float64, "duration_s": pl.Float64, "num_gpus": pl.Int64,
    "user": pl.String, "model": pl.String, "utilisation": pl.Float64, "memory_bytes": pl.Int64,
    "deadline_s": pl.Float64, "priority": pl.Int64, "gpu_type": pl.String, "epoch_s": pl.Float64,
    "expected_s": pl.Float64, "sensitivity": pl.Float64,
})
NEEDED = ("job_id", "submit_s", "duration_s", "num_gpus")
EPOCHS = 90
SHORTEST_S = 60.0  # shortest epoch, and shortest job in a simulation


def check(jobs: pl.DataFrame, cluster: Cluster | None = None, *, keep_valid: bool = False) -> pl.DataFrame:
    """The jobs with all columns of `SCHEMA`, sorted by submission.

    Args:
        jobs: Any frame with at least `NEEDED`. Other columns of the schema may be missing, and unknown
            columns are dropped.
        cluster: The target cluster. Jobs that need more than it has are then errors, and so is a missing
            utilisation or memory.
        keep_valid: Remove invalid rows and sort unordered ones, instead of raising.

    Raises:
        UsageError: The first invalid row, the number of such rows, and the remedy.
    """
    missing = [name for name in NEEDED if name not in jobs.columns]
    if missing:
        raise UsageError(
            f"the jobs have no column {', '.join(map(repr, missing))}; they have "
            f"{listed(jobs.columns)}. Rename or add it"
        )
    frame = _typed(jobs)
    if frame.height == 0:
        raise UsageError("the log has 0 jobs; there is nothing to simulate")
    rows = frame.with_row_index("row")
    for reason, rule, column, out in _rules(cluster):
        wrong = rows.filter(rule.fill_null(False))
        if wrong.height and not keep_valid:
            raise UsageError(
                f"{_first(wrong, column)}, {reason}; {wrong.height} of {frame.height} rows have this fault. "
                f"{out}, or keep only the valid rows with keep_valid=True"
            )
        rows = rows.filter(~rule.fill_null(False))
    unsorted = rows.filter(col.submit_s < col.submit_s.shift(1))
    if unsorted.height and not keep_valid:
        raise UsageError(
            f"{_first(unsorted, 'submit_s')}, earlier than the row before; {unsorted.height} rows have this "
            "fault. Sort by submit_s, or use keep_valid=True"
        )
    if rows.height == 0:
        raise UsageError(
            f"none of the {frame.height} rows is valid; call check without keep_valid to see the first reason"
        )
    return rows.drop("row").sort("submit_s", maintain_order=True)


def _typed(jobs: pl.DataFrame) -> pl.DataFrame:
    columns = []
    for name, kind in SCHEMA.items():
        if name not in jobs.columns:
            columns.append(pl.lit(None, dtype=kind).alias(name))
            continue
        given = jobs[name]
        if given.dtype in (pl.Null, kind) or kind == pl.String:
            pass
        elif not given.dtype.is_numeric():
            raise UsageError(
                f"column {name!r} holds {given.dtype}, where numbers ({kind}) are expected, for instance "
                f"{_shown(given[0])}"
            )
        elif kind == pl.Int64 and given.dtype.is_float():
            part = (col(name) % 1).fill_nan(0.5)
            broken = jobs.with_row_index("row").filter(col(name).is_not_null() & (part != 0))
            if broken.height:
                first = broken.row(0, named=True)
                raise UsageError(
                    f"row {first['row']}: {name} is {first[name]}, where a whole number is expected"
                )
        columns.append(col(name).cast(kind))
    return jobs.select(columns).with_columns(col.priority.fill_null(0))


def _rules(cluster: Cluster | None) -> list[tuple[str, pl.Expr, str, str]]:
    """The rules for rows: reason, condition, column and remedy."""
    utilisation, deadline_s, gpus = col.utilisation, col.deadline_s, col.num_gpus
    rules: list[tuple[str, pl.Expr, str, str]] = [
        ("every job needs a name", col.job_id.is_null(), "job_id", "Name it"),
        ("that id is a duplicate", ~col.job_id.is_first_distinct() & col.job_id.is_not_null(),
         "job_id", "Drop the copy"),
        *(("a finite number is needed", col(name).is_null() | ~col(name).is_finite(), name, "Fix it")
          for name in ("submit_s", "duration_s")),
        ("a job takes more than 0 s", col.duration_s <= 0, "duration_s", "Drop jobs that did not run"),
        ("a job holds at least one GPU", gpus.is_null() | (gpus < 1), "num_gpus", "Drop CPU jobs"),
        ("utilisation is a share, 0..1", utilisation.is_nan() | (utilisation < 0) | (utilisation > 1),
         "utilisation", "Divide percent by 100"),
        ("memory cannot be negative", col.memory_bytes < 0, "memory_bytes", "Fix it"),
        ("a deadline is a moment or null", deadline_s.is_nan(), "deadline_s", "Put null for none"),
        ("a deadline must be after the submission", deadline_s <= col.submit_s, "deadline_s",
         "Give it on the clock of submit_s"),
    ]
    for name in ("epoch_s", "expected_s", "sensitivity"):
        low = col(name) < 0 if name == "sensitivity" else col(name) <= 0
        wrong = low | ~col(name).is_finite()
        rules.append(("a positive number or null is needed", wrong, name, "Fix it"))
    if cluster is None:
        return rules
    kind, out = cluster.kind, "Leave these jobs out"
    rules += [
        (f"the cluster has no more than {cluster.gpus} GPUs", gpus > cluster.gpus, "num_gpus",
         "Take more nodes or leave these jobs out"),
        (f"this cluster has {kind.gpu_type}", col.gpu_type != kind.gpu_type, "gpu_type",
         "Put null for any"),
        (f"a {kind.gpu_type} has {kind.memory_bytes} bytes", col.memory_bytes > kind.memory_bytes,
         "memory_bytes", out),
    ]
    draw = "Generate missing values with cluster.draw"
    for name in ("utilisation", "memory_bytes"):
        rules.append((f"a simulation needs every job's {name}", col(name).is_null(), name, draw))
    return rules


def _first(rows: pl.DataFrame, column: str) -> str:
    """The number of the row, and its value in the column."""
    row = rows.row(0, named=True)
    return f"row {row['row']} (job {row['job_id']}): {column} is {_shown(row[column])}"


def _shown(value: object) -> str:
    return "missing" if value is None else f"{value:g}" if isinstance(value, float) else repr(value)
