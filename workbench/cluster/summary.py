"""Key figures of a run, for the comparison of policies."""

from __future__ import annotations

import polars as pl
from polars import col

from ..tariff import J_PER_KWH
from .result import Result


def per_job(jobs: pl.DataFrame) -> pl.DataFrame:
    """A result's jobs with `jct_s`, `jct_h`, `wait_s`, `wait_h`, `slowdown`, `missed`, and `inflation` of
    the time on GPUs.
    """
    return jobs.with_columns(
        jct_s=col.end_s - col.submit_s, inflation=col.run_s / col.duration_s - 1,
        missed=(col.end_s > col.deadline_s * (1 + 1e-12)).fill_null(False),
    ).with_columns(
        wait_s=(col.jct_s - col.run_s).clip(0.0), jct_h=col.jct_s / 3600,
        slowdown=col.jct_s / col.duration_s,
    ).with_columns(wait_h=col.wait_s / 3600)


def summarise(result: Result) -> dict[str, float | int | str]:
    """One row: energy, nodes, runtime, waiting, misses, undos.

    `runtime_inflation` is the mean time on GPUs over the mean duration, minus 1. `mean_job_inflation` is the
    mean over jobs. `jct_h` is waiting plus running, from submission to end. `active_nodes` are nodes with a
    job, averaged from the first submission to the last end; `awake_nodes` includes those without one.
    `misses` are jobs that ended after their deadline, of `deadlines` that had one.
    """
    frame = per_job(result.jobs)
    row = frame.select(
        runtime_inflation=col.run_s.mean() / col.duration_s.mean() - 1,
        mean_job_inflation=col.inflation.mean(),
        p95_job_inflation=col.inflation.quantile(0.95, "linear"),
        jct_h=col.jct_s.mean() / 3600, jct_p95_h=col.jct_s.quantile(0.95, "linear") / 3600,
        wait_h=col.wait_s.mean() / 3600, wait_p95_h=col.wait_s.quantile(0.95, "linear") / 3600,
        misses=col.missed.sum(), deadlines=col.deadline_s.count(), undos=col.undos.sum(),
        moves=col.moves.sum(),
    ).row(0, named=True)
    span_s = max(result.end_s - result.start_s, 1e-9)
    nodes = result.nodes.sum().row(0, named=True)
    return {
        "policy": result.policy, "nodes": result.cluster.size, "jobs": frame.height,
        "energy_kwh": result.energy_j / J_PER_KWH, "active_nodes": nodes["hosting_s"] / span_s,
        "awake_nodes": nodes["awake_s"] / span_s, "wakes": nodes["wakes"],
        "unowned_kwh": nodes["unowned_j"] / J_PER_KWH, "makespan_h": span_s / 3600, **row,
    }
