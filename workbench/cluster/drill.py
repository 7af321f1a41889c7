"""The course of one job or one node of a recorded run (`Simulator(..., stays=True)`): place, neighbours,
speed, power. Integrals of these frames equal the figures of the run.
"""

from __future__ import annotations

import polars as pl
from polars import col

from ..errors import UsageError
from .result import Result

LENGTH = (col.to_s - col.from_s).alias("seconds")


def node_history(result: Result, node: int) -> pl.DataFrame:
    """A node from the beginning to the end of the run, in intervals of constant state: occupied seats,
    utilisation, power limit, power.

    `jobs` counts jobs on GPUs: one on four GPUs counts four times. `power_limit_w` is null where there is
    none, `utilisation` where the node is not awake. Raises UsageError where there is no such node.
    """
    if not 0 <= node < result.cluster.size:
        raise UsageError(f"there is no node {node}; the cluster has nodes 0 to {result.cluster.size - 1}")
    return result.node_stretches.filter(col.node == node)


def residents(result: Result, node: int) -> pl.DataFrame:
    """Intervals of jobs on each GPU of a node, by GPU and start."""
    there = result.stays.filter((col.node == node) & (col.to_s > col.from_s))
    return there.sort("gpu", "from_s", "job_id")


def job_history(result: Result, job_id: str) -> pl.DataFrame:
    """A job from its submission to its end, in intervals: waiting, waking (its node is starting), running,
    stopping (a checkpoint).

    `nodes` lists its nodes, and `beside` the jobs on any of its GPUs. `excess` is the relative growth of this
    job's iteration time. `speed` is its progress in seconds alone per second: 0 while it stops, waits or its
    node wakes. Raises UsageError where there is no such job.
    """
    job = result.jobs.filter(col.job_id == job_id)
    if job.height == 0:
        raise UsageError(
            f"there is no job {job_id!r} in this run; it has {result.jobs.height:,} jobs, the first "
            f"is {result.jobs['job_id'][0]!r}"
        )
    came = job.select("job_id", from_s="submit_s", state=pl.lit("waiting"), speed=0.0, excess=0.0)
    changes = pl.concat([came, result.job_changes.filter(col.job_id == job_id)])
    stretches = changes.with_columns(to_s=col.from_s.shift(-1))
    stretches = stretches.filter(col.to_s > col.from_s)
    mine = result.stays.filter(col.job_id == job_id)
    there = {"nodes": (mine, "node"), "beside": (_neighbours(result, job_id), "job_id")}
    for name, (stays, column) in there.items():
        during = stays.join_where(
            stretches.select(start_s="from_s", end_s="to_s"),
            col.from_s < col.end_s, col.start_s < col.to_s,
        )
        found = during.group_by(from_s="start_s").agg(col(column).unique().sort().alias(name))
        stretches = stretches.join(found, on="from_s", how="left")
    return stretches.sort("from_s").select(
        "from_s", "to_s", "state", col("nodes", "beside").fill_null([]), "excess", "speed"
    )


def companions(result: Result, job_id: str) -> pl.DataFrame:
    """Jobs that shared a GPU with this one and for how long, longest first: `job_id`, `seconds`."""
    sums = _neighbours(result, job_id).group_by("job_id").agg(LENGTH.sum())
    return sums.sort("seconds", "job_id", descending=[True, False])


def _neighbours(result: Result, job_id: str) -> pl.DataFrame:
    """Every other job on a GPU of this one, and the interval in which both were there."""
    mine = col.job_id == job_id
    both = result.stays.filter(~mine).join(result.stays.filter(mine), on=["node", "gpu"])
    return both.select(
        "job_id", from_s=pl.max_horizontal("from_s", "from_s_right"),
        to_s=pl.min_horizontal("to_s", "to_s_right"),
    ).filter(col.from_s < col.to_s).unique()
