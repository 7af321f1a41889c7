"""The job logs of the cluster benchmark: read by their columns, cut by rules that hold for any log."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from workbench.cluster import draw, readers
from workbench.cluster.jobs import check
from workbench.errors import UsageError

LONGEST_S = 3 * 86400.0
SHORTEST_S = 60.0
WIDEST = 8
WEEK_S = 7 * 86400.0
SUFFIXES = (".parquet", ".csv", ".txt")


def job_logs(data: Path) -> dict[str, pl.DataFrame]:
    """Every table in `DIR/cluster`, or else anywhere in DIR, that has the columns of a job log: ours and
    Philly's, Alibaba's, Slurm's. Types of GPUs are left out, as the simulated nodes are all alike.
    """
    near = [path for path in sorted((data / "cluster").rglob("*")) if path.suffix in SUFFIXES]
    found: dict[str, pl.DataFrame] = {}
    for path in near or [path for path in sorted(data.rglob("*")) if path.suffix in SUFFIXES]:
        frame = read(path)
        if frame is not None:
            found[path.stem if path.stem not in found else str(path.relative_to(data))] = frame
    return found


def read(path: Path) -> pl.DataFrame | None:
    """The jobs of one file; None where it is no job log, which is reported if it cannot be read at all."""
    try:
        return readers.read(path, keep_valid=True).drop("gpu_type", strict=False)
    except UsageError as error:
        if not str(error).startswith("this is no job log"):
            print(f"{path.name} is passed over: {str(error).splitlines()[0]}")
    return None


def usable(log: pl.DataFrame) -> pl.DataFrame:
    """Jobs of at most 8 GPUs and at least a minute, durations capped at 3 days, in order of submission;
    wrong rows are left out.
    """
    kept = check(log, keep_valid=True).filter(
        (pl.col("num_gpus") <= WIDEST) & (pl.col("duration_s") >= SHORTEST_S)
    )
    if kept.height == 0:
        raise UsageError(
            f"none of the log's {log.height} jobs is valid, lasts {SHORTEST_S:g} s and takes at most "
            f"{WIDEST} GPUs"
        )
    return kept.with_columns(pl.col("duration_s").clip(upper_bound=LONGEST_S))


def weeks(log: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """The busiest seven days by jobs submitted, and of the remaining ones those with the median GPU time;
    days counted as in `submit_s`.

    A log of less than two weeks is taken whole.
    """
    span_s = float(log["submit_s"].max() - log["submit_s"].min())  # type: ignore[operator]
    if span_s < 2 * WEEK_S:
        return {"whole log": log}
    day = (log["submit_s"] / 86400).floor().cast(pl.Int64)
    first, last = int(day.min()), int(day.max())  # type: ignore[arg-type]
    busy = max(range(first, last - 5), key=lambda start: (day.is_between(start, start + 6).sum(), -start))
    work = (log["duration_s"] * log["num_gpus"]).alias("work")
    starts = [start for start in range(first, last - 5, 7) if start + 7 <= busy or start >= busy + 7]
    starts = [start for start in starts if day.is_between(start, start + 6).any()]
    ranked = sorted(starts, key=lambda start: float(work.filter(day.is_between(start, start + 6)).sum()))
    found = {f"days {busy}-{busy + 7}, the busiest": log.filter(day.is_between(busy, busy + 6))}
    if ranked:
        start = ranked[len(ranked) // 2]
        found[f"days {start}-{start + 7}, a median week"] = log.filter(day.is_between(start, start + 6))
    return found


def drawn(log: pl.DataFrame, seed: int) -> pl.DataFrame:
    """With models, memory, deadlines and sensitivities by the rule of `workbench.cluster.draw`."""
    return draw(log, seed)
