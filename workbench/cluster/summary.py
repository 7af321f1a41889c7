"""Key figures of a run, for the comparison of policies."""

from __future__ import annotations

import polars as pl

from .result import Result


def per_job(jobs: pl.DataFrame) -> pl.DataFrame:
    """A result's jobs with `jct_s`, `jct_h`, `wait_s`, `wait_h`, `slowdown`, `missed`, and `inflation` of
    the time on GPUs.
    """
    return jobs.with_columns(
        (pl.col("end_s") - pl.col("submit_s")).alias("jct_s"),
        (pl.col("run_s") / pl.col("duration_s") - 1).alias("inflation"),
        (pl.col("end_s") > pl.col("deadline_s") * (1 + 1e-12)).fill_null(False).alias("missed"),
    ).with_columns(
        (pl.col("jct_s") - pl.col("run_s")).clip(lower_bound=0.0).alias("wait_s"),
        (pl.col("jct_s") / 3600).alias("jct_h"), (pl.col("jct_s") / pl.col("duration_s")).alias("slowdown"),
    ).with_columns((pl.col("wait_s") / 3600).alias("wait_h"))


def summarise(result: Result) -> dict[str, float | int | str]:
    """One row: energy, nodes, runtime, waiting, misses, undos.

    `runtime_inflation` is the mean time on GPUs over the mean duration, minus 1. `mean_job_inflation` is the
    mean over jobs. `jct_h` is waiting plus running, from submission to end. `active_nodes` are nodes with a
    job, averaged from the first submission to the last end; `awake_nodes` includes those without one.
    `misses` are jobs that ended after their deadline, of `deadlines` that had one.
    """
    frame = per_job(result.jobs)
    row = frame.select(
        (pl.col("run_s").mean() / pl.col("duration_s").mean() - 1).alias("runtime_inflation"),
        pl.col("inflation").mean().alias("mean_job_inflation"),
        pl.col("inflation").quantile(0.95, "linear").alias("p95_job_inflation"),
        (pl.col("jct_s").mean() / 3600).alias("jct_h"),
        (pl.col("jct_s").quantile(0.95, "linear") / 3600).alias("jct_p95_h"),
        (pl.col("wait_s").mean() / 3600).alias("wait_h"),
        (pl.col("wait_s").quantile(0.95, "linear") / 3600).alias("wait_p95_h"),
        pl.col("missed").sum().alias("misses"), pl.col("deadline_s").is_not_null().sum().alias("deadlines"),
        pl.col("undos").sum().alias("undos"), pl.col("moves").sum().alias("moves"),
    ).row(0, named=True)
    span_s = max(result.end_s - result.start_s, 1e-9)
    nodes = result.nodes
    return {
        "policy": result.policy, "nodes": result.cluster.size, "jobs": frame.height,
        "energy_kwh": result.energy_j / 3.6e6,
        "active_nodes": float(nodes["hosting_s"].sum()) / span_s,
        "awake_nodes": float(nodes["awake_s"].sum()) / span_s,
        "wakes": int(nodes["wakes"].sum()),
        "unowned_kwh": float(nodes["unowned_j"].sum()) / 3.6e6, "makespan_h": span_s / 3600, **row,
    }
