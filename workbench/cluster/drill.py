"""One job or one node of a run that was recorded: where it was and with whom, how fast it went, what it drew.

All of it is worked out from who was where and when, and when nodes slept (`recording.RunRecord`): the
integrals of what is told here are the figures of the run, which the tests hold.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import polars as pl

from ..errors import UsageError
from .colocation import Colocation, Profile
from .power import UNIT, CapLevel, NodeType
from .recording import STANDBY, RunRecord
from .summary import per_job

NODE_SCHEMA: dict[str, Any] = {
    "from_s": pl.Float64, "to_s": pl.Float64, "state": pl.String, "jobs": pl.Int64, "utilisation": pl.Float64,
    "power_limit_w": pl.Float64, "power_w": pl.Float64,
}
JOB_SCHEMA: dict[str, Any] = {
    "from_s": pl.Float64, "to_s": pl.Float64, "state": pl.String, "nodes": pl.List(pl.Int64),
    "beside": pl.List(pl.String), "excess": pl.Float64, "speed": pl.Float64,
}


def node_kind(record: RunRecord, node: int) -> NodeType:
    """The type of a node. Raises UsageError where there is no such node."""
    if not 0 <= node < record.result.cluster.size:
        raise UsageError(
            f"there is no node {node}; the cluster has nodes 0 to {record.result.cluster.size - 1}"
        )
    left = node
    for kind, count in record.result.cluster.nodes:
        if left < count:
            return kind
        left -= count
    raise AssertionError("a cluster's size is the sum of its counts")


def residents(record: RunRecord, node: int) -> pl.DataFrame:
    """Who was on which GPU of a node from when to when, by GPU and coming."""
    node_kind(record, node)
    there = record.result.stays.filter((pl.col("node") == node) & (pl.col("to_s") > pl.col("from_s")))
    return there.sort("gpu", "from_s", "job_id")


def node_history(record: RunRecord, log: pl.DataFrame, node: int) -> pl.DataFrame:
    """A node from the run's beginning to its end, in stretches of one state: seats taken, utilisation, power
    limit, power.

    `jobs` counts jobs on GPUs: one on four GPUs counts four times. `power_limit_w` is null where there is
    none, `utilisation` where the node is not awake.

    Args:
        record: The run.
        log: Its jobs as they were simulated (`scenario.prepared`).
        node: Its index.
    """
    kind = node_kind(record, node)
    there = residents(record, node)
    profiles = _profiles(log, there["job_id"])
    changes: dict[float, list[tuple[int, str, int]]] = {}
    for job_id, gpu, from_s, to_s in there.select("job_id", "gpu", "from_s", "to_s").iter_rows():
        changes.setdefault(from_s, []).append((gpu, job_id, 1))
        changes.setdefault(to_s, []).append((gpu, job_id, -1))
    states = _States(record, node, kind, there["from_s"].unique().sort().to_list())
    times = sorted({*changes, *states.times, record.result.start_s, record.result.end_s})
    on: list[list[int]] = [[] for _ in range(kind.gpus)]
    made = []
    for from_s, to_s in pairwise(times):
        for gpu, job_id, by in changes.get(from_s, ()):
            if by > 0:
                on[gpu].append(profiles[job_id].load)
            else:
                on[gpu].remove(profiles[job_id].load)
        state, cap = states.at(from_s)
        used = sum(min(sum(gpu), UNIT) for gpu in on) / (UNIT * kind.gpus)
        limit_w = None if cap is None else cap.power_limit_w
        seats, awake = sum(map(len, on)), state == "awake"
        power_w = kind.power_w(used, cap) if awake else kind.standby_w if state == "standby" else kind.idle_w
        made.append((from_s, to_s, state, seats, used if awake else None, limit_w, power_w))
    return _joined(pl.DataFrame(made, orient="row", schema=NODE_SCHEMA))


def job_history(
    record: RunRecord, log: pl.DataFrame, job_id: str, colocation: Colocation | None = None
) -> pl.DataFrame:
    """A job from its submission to its end, in stretches: waiting, waking (a node that comes up for it),
    running, stopping (a checkpoint).

    `beside` are the jobs on any of its GPUs, `excess` by how much an iteration takes longer there for this
    job, `speed` its progress in seconds alone per second: 0 while it stops, waits or its node wakes.

    Args:
        record: Of the run.
        log: Its jobs, `jobs.SCHEMA`.
        job_id: In the log.
        colocation: Slowdowns of shared GPUs; the default ones where None.

    Raises:
        UsageError: No such job.
    """
    rows = record.result.jobs.filter(pl.col("job_id") == job_id)
    if rows.height == 0:
        raise UsageError(
            f"there is no job {job_id!r} in this run; it has {record.result.jobs.height:,} jobs, the first "
            f"is {record.result.jobs['job_id'][0]!r}"
        )
    job = rows.row(0, named=True)
    truth = colocation or Colocation()
    mine = record.result.stays.filter(pl.col("job_id") == job_id).sort("from_s", "node", "gpu")
    own = log.filter(pl.col("job_id") == job_id).row(0, named=True)
    sensitivity = 1.0 if own["sensitivity"] is None else own["sensitivity"]
    nodes = mine["node"].unique().to_list()
    all_there = record.result.stays.filter(pl.col("node").is_in(nodes) & (pl.col("to_s") > pl.col("from_s")))
    profiles = _profiles(log, all_there["job_id"])
    states = {}
    for node in nodes:
        comings_s = all_there.filter(pl.col("node") == node)["from_s"].unique().sort().to_list()
        states[node] = _States(record, node, node_kind(record, node), comings_s)
    made: list[tuple[Any, ...]] = []
    at_s = job["submit_s"]
    stays = mine.partition_by("from_s", "to_s", maintain_order=True) if mine.height else []
    for number, stay in enumerate(stays):
        from_s, to_s = float(stay["from_s"][0]), float(stay["to_s"][0])
        if from_s > at_s:
            made.append((at_s, from_s, "waiting", [], [], None, 0.0))
        at_s = to_s
        if to_s <= from_s:
            continue
        gpus = list(stay.select("node", "gpu").iter_rows())
        company = {gpu: _company(all_there, gpu, job_id, from_s, to_s) for gpu in gpus}
        here = sorted({node for node, _ in gpus})
        awake_s = max(states[node].awake_s(from_s) for node in here)
        # Who is stopped leaves after its checkpoint, if it had begun; the last stay ends with the work.
        leaving_s = to_s if number == len(stays) - 1 else max(to_s - record.checkpoint_s, awake_s)
        moments = {awake_s, leaving_s}.union(*(states[node].times for node in here))
        moments |= {at for others in company.values() for _, *span_s in others for at in span_s}
        times = sorted({from_s, to_s} | {moment for moment in moments if from_s < moment < to_s})
        for begin_s, end_s in pairwise(times):
            beside = {
                gpu: [other for other, came_s, went_s in company[gpu] if came_s <= begin_s < went_s]
                for gpu in gpus
            }
            names = sorted({other for others in beside.values() for other in others})
            excess = sensitivity * max(
                truth.excess([profiles[job_id], *(profiles[other] for other in others)]) if others else 0.0
                for others in beside.values()
            )
            state = "waking" if begin_s < awake_s else "stopping" if begin_s >= leaving_s else "running"
            speed = 0.0
            if state == "running":
                caps = [(node_kind(record, node), states[node].at(begin_s)[1]) for node in here]
                speed = min(kind.speed * (cap.speed if cap else 1.0) for kind, cap in caps) / (1 + excess)
            made.append((begin_s, end_s, state, here, names, excess, speed))
    return _joined(pl.DataFrame(made, orient="row", schema=JOB_SCHEMA))


def companions(history: pl.DataFrame) -> pl.DataFrame:
    """With whom a job has shared a GPU and for how long, longest first: `job_id`, `seconds`."""
    shared = history.select("from_s", "to_s", pl.col("beside").alias("job_id")).explode("job_id")
    seconds = (pl.col("to_s") - pl.col("from_s")).sum().alias("seconds")
    sums = shared.drop_nulls("job_id").group_by("job_id").agg(seconds)
    return sums.sort("seconds", "job_id", descending=[True, False])


def facts(record: RunRecord, job_id: str) -> dict[str, Any]:
    """A job's row of the result, waiting, running, deadline, and its share of energy that nobody owned."""
    rows = per_job(record.result.jobs.filter(pl.col("job_id") == job_id))
    if rows.height == 0:
        raise UsageError(f"there is no job {job_id!r} in this run")
    row = rows.row(0, named=True)
    return {**row, "shared_energy_j": row["energy_j"] - row["own_energy_j"]}


class _States:
    """When a node was awake, waking or in standby, and under which limit."""

    def __init__(self, record: RunRecord, node: int, kind: NodeType, comings_s: Sequence[float]) -> None:
        marks = record.marks.filter(pl.col("node") == node)
        sleeps = marks.filter(pl.col("cap") == STANDBY)["time_s"].to_list()
        limits = marks.filter(pl.col("cap") != STANDBY)
        start_s = record.result.start_s
        self._changes: list[tuple[float, str]] = [(start_s, "standby" if record.asleep else "awake")]
        events = sorted([(time_s, 0) for time_s in sleeps] + [(time_s, 1) for time_s in comings_s])
        state, awake_s = self._changes[0][1], start_s
        for time_s, coming in events:
            if state == "waking" and time_s >= awake_s:
                state = "awake"
            if coming and state == "standby":
                awake_s = time_s + kind.wake_s
                state = "waking"
                self._changes += [(time_s, "waking"), (awake_s, "awake")]
            elif not coming:
                state = "standby"
                self._changes.append((time_s, "standby"))
        self._times = [time_s for time_s, _ in self._changes]
        caps: list[CapLevel | None] = [*kind.caps, None]  # -1 is no limit
        set_at = limits.select("time_s", "cap").iter_rows()
        self._limits = [(start_s, None), *((time_s, caps[index]) for time_s, index in set_at)]
        self._limit_times = [time_s for time_s, _ in self._limits]
        times, end_s = {*self._times, *self._limit_times}, record.result.end_s
        self.times = sorted(time_s for time_s in times if start_s <= time_s <= end_s)

    def at(self, time_s: float) -> tuple[str, CapLevel | None]:
        """State and limit from a moment on."""
        state = self._changes[bisect_right(self._times, time_s) - 1][1]
        return state, self._limits[bisect_right(self._limit_times, time_s) - 1][1]

    def awake_s(self, time_s: float) -> float:
        """From when on it is awake, for who comes at a moment: that moment, where it is awake already."""
        place = bisect_right(self._times, time_s) - 1
        return self._times[place + 1] if self._changes[place][1] == "waking" else time_s


def _company(
    stays: pl.DataFrame, gpu: tuple[int, int], job_id: str, from_s: float, to_s: float
) -> list[tuple[str, float, float]]:
    node, index = gpu
    beside = stays.filter(
        (pl.col("node") == node) & (pl.col("gpu") == index) & (pl.col("job_id") != job_id)
        & (pl.col("from_s") < to_s) & (pl.col("to_s") > from_s)
    )
    return list(beside.select("job_id", "from_s", "to_s").iter_rows())


def _profiles(log: pl.DataFrame, job_ids: pl.Series) -> dict[str, Profile]:
    found = log.filter(pl.col("job_id").is_in(job_ids.unique().to_list()))
    load = (pl.col("utilisation") * UNIT).round().cast(pl.Int64)
    rows = found.select("job_id", pl.col("model").fill_null("?"), load.alias("load")).iter_rows()
    return {job_id: Profile(model, load) for job_id, model, load in rows}


def _joined(stretches: pl.DataFrame) -> pl.DataFrame:
    """Neighbouring stretches that do not differ are one."""
    names = [name for name in stretches.columns if name not in ("from_s", "to_s")]
    if stretches.height < 2:
        return stretches
    same = pl.all_horizontal(pl.col(name).eq_missing(pl.col(name).shift(1)) for name in names) & (
        pl.col("from_s") == pl.col("to_s").shift(1)
    )
    run = stretches.with_columns((~same.fill_null(False)).cum_sum().alias("run"))
    return run.group_by("run", maintain_order=True).agg(
        pl.first("from_s"), pl.last("to_s"), *(pl.first(name) for name in names)
    ).select(stretches.columns)
