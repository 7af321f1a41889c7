"""The job logs of the cluster benchmark: read by their columns, cut by rules that hold for any log."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from workbench.cluster import draw

LONGEST_S = 3 * 86400.0
SHORTEST_S = 60.0
WIDEST = 8
WEEK_S = 7 * 86400.0


def job_logs(data: Path) -> dict[str, pl.DataFrame]:
    """Every Parquet or CSV file in `DIR/cluster` that has the columns of a job log."""
    found = {}
    for path in sorted((data / "cluster").glob("*")):
        if path.suffix not in (".parquet", ".csv"):
            continue
        frame = pl.read_parquet(path) if path.suffix == ".parquet" else pl.read_csv(path, infer_schema_length=None)
        if {"job_id", "submit_s", "duration_s", "num_gpus"} <= set(frame.columns):
            found[path.stem] = frame
    return found


def usable(log: pl.DataFrame) -> pl.DataFrame:
    """Jobs of at most 8 GPUs and at least a minute, durations capped at 3 days, in order of submission."""
    kept = log.filter((pl.col("num_gpus") <= WIDEST) & (pl.col("num_gpus") >= 1) & (pl.col("duration_s") >= SHORTEST_S))
    capped = kept.with_columns(pl.col("duration_s").cast(pl.Float64).clip(upper_bound=LONGEST_S), pl.col("submit_s").cast(pl.Float64))
    return capped.sort("submit_s", maintain_order=True)


def weeks(log: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """The busiest seven days by jobs submitted, and of the remaining ones those with the median GPU time; days counted as in `submit_s`.

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
    ranked = sorted(starts, key=lambda start: float(work.filter(day.is_between(start, start + 6)).sum()))
    found = {f"days {busy}-{busy + 7}, the busiest": log.filter(day.is_between(busy, busy + 6))}
    if ranked:
        start = ranked[len(ranked) // 2]
        found[f"days {start}-{start + 7}, a median week"] = log.filter(day.is_between(start, start + 6))
    return found


def drawn(log: pl.DataFrame, seed: int) -> pl.DataFrame:
    """With models, memory, deadlines and sensitivities by the rule of `workbench.cluster.draw`."""
    return draw(log, seed)
