"""Read a job: the node logs in a directory as one, or a measurement of the log."""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from ..errors import UsageError, checked, listed
from ..logbook.quantities import format_duration
from ..logbook.store import Store, from_row
from ..measurement.marks import ENOUGH
from ..periods.segment import per_iteration
from ..records import GpuMeasurement, IterationSummary, Measurement, WorkDone
from . import node_log
from .combine import notes_of, rank_of, stored_job, waiting_of
from .records import JobMeasurement, JobNode, Rank


@dataclass
class NodeFile:
    """One node's log as it was read; `skew_s` is its clock minus that of the first node."""

    facts: dict[str, Any]
    frame: pl.DataFrame | None
    measurement: Measurement
    ranks: list[Rank]
    skew_s: float | None = None
    skew_uncertainty_s: float | None = None

    @property
    def job(self) -> str:
        return str(self.facts["job"])

    @property
    def node(self) -> str:
        return str(self.facts["node"])

    @property
    def outcome(self) -> str:
        return "unfinished" if self.facts["state"] == "running" else str(self.facts["state"])

    @property
    def start_s(self) -> float:
        """Civil time of its beginning on the first node's clock, as far as the skew is known."""
        return self.measurement.started_unix_s - (self.skew_s or 0.0)

    @property
    def end_s(self) -> float:
        return self.start_s + self.measurement.time_s

    def ends_s(self) -> np.ndarray[Any, Any]:
        """Civil times by its own clock at which iterations end, by number; NaN for one without an end."""
        if self.frame is None:
            return np.empty(0)
        ends = self.frame.drop_nulls("iteration").group_by("iteration").agg(pl.col("end_s").max())
        numbers = ends["iteration"].to_numpy()
        found = np.full(int(numbers.max(initial=-1)) + 1, np.nan)
        found[numbers] = ends["end_s"].to_numpy()
        shift_s: float = self.measurement.started_unix_s - self.facts["start_s"]
        return np.asarray(found + shift_s)


def read_nodes(directory: Path) -> tuple[list[NodeFile], list[str]]:
    """The node logs of a directory, that of the first rank first, and sentences about damaged ones.

    Raises:
        UsageError: there is no such directory, or it has no node logs.
    """
    found, notes = [], []
    for path in sorted(directory.glob(f"*/{node_log.FILE}")):
        try:
            facts = json.loads(path.read_bytes())
            frames = path.parent / node_log.ITERATIONS
            frame = pl.read_parquet(frames) if frames.exists() else None
            found.append(NodeFile(facts, frame, from_row(facts["measurement"]),
                                  [rank_of(each) for each in facts["ranks"]]))
        except (OSError, ValueError, KeyError, TypeError, pl.exceptions.PolarsError) as error:
            notes.append(f"{path.parent.name} cannot be read ({error}) and is left out")
    if not found:
        what = "has no readable log of a node" if directory.is_dir() else "is no directory"
        raise UsageError(f"{directory} {what}; workbench run --job-dir {directory} -- COMMAND writes one on "
                         "each node")
    def place(each: NodeFile) -> tuple[float, float]:
        ranks = [rank.rank for rank in each.ranks if rank.rank is not None]
        return min(ranks, default=math.inf), each.measurement.started_unix_s

    return sorted(found, key=place), notes


@checked
def read_jobs(directory: str | Path) -> dict[str, JobMeasurement]:
    """All jobs whose nodes have written to a directory, by name. Raises UsageError if there are none."""
    nodes, notes = read_nodes(Path(directory).expanduser())
    names = list(dict.fromkeys(each.job for each in nodes))
    if len(names) > 1:
        known = listed(name or "without a name" for name in names)
        notes.append(f"the directory has {len(names)} jobs: {known}")
    return {name: merged([each for each in nodes if each.job == name], notes) for name in names}


@checked
def read_job(where: str | Path, job_id: str = "") -> JobMeasurement:
    """A job with its ranks and nodes.

        job = workbench.read_job("/shared/runs/night")   # a directory of `workbench run --job-dir`
        print(job); job.measurement.energy_j

    Args:
        where: A directory with node logs, or a label or id of the log.
        job_id: Which job, where the directory has several.

    Raises:
        UsageError: no such directory or measurement, or several jobs and no `job_id`.
    """
    path = Path(where).expanduser()
    if where == "" or (job_id and not path.is_dir()):
        raise UsageError(f"{str(where)!r} is no directory with several jobs; name one, or leave out job_id "
                         "(--job-id)")
    if not path.is_dir():
        store = Store()
        try:
            return stored_job(store, store.find(str(where)))
        except UsageError as error:
            raise UsageError(f"{where} is no directory, and {error}") from None
    jobs = read_jobs(path)
    if job_id not in jobs and (job_id or len(jobs) > 1):
        raise UsageError(f"{path} has the jobs {listed(jobs)}; name one with job_id (--job-id)")
    return jobs[job_id] if job_id in jobs else next(iter(jobs.values()))


def merged(nodes: Sequence[NodeFile], notes: Iterable[str] = ()) -> JobMeasurement:
    """The logs of one job's nodes as one job: each GPU counts once."""
    remarks = list(notes)
    first = nodes[0]
    first.skew_s, first.skew_uncertainty_s = 0.0, 0.0
    for each in nodes[1:]:
        if (other := next((node for node in nodes if node is not each and node.node == each.node
                           and node.skew_s is not None), None)) is not None:
            each.skew_s, each.skew_uncertainty_s = other.skew_s, other.skew_uncertainty_s  # one clock
            continue
        each.skew_s, each.skew_uncertainty_s = skew(first, each)
        if each.skew_s is None:
            remarks.append(f"the clock of {each.node} cannot be compared with that of {first.node}: their "
                           "iterations do not end together")
    start_s, end_s = min(each.start_s for each in nodes), max(each.end_s for each in nodes)
    gpus = _each_once(nodes, remarks)
    over = any(each.outcome != "unfinished" for each in nodes)
    ranks = []
    for each in nodes:
        shift_s, cut = each.start_s - start_s, over and each.outcome == "unfinished"
        ranks += [replace(rank, started_s=rank.started_s + shift_s, ended_s=rank.ended_s + shift_s,
                          outcome="died" if cut else rank.outcome) for rank in each.ranks]
    ranks = [replace(each, outcome="restarted") if each.outcome == "died" and each.rank is not None and any(
        other.rank == each.rank and other.started_s >= each.ended_s for other in ranks) else each
        for each in ranks]
    ranks.sort(key=lambda each: (math.inf if each.rank is None else each.rank, each.started_s))
    remarks += [
        f"the log of {each.node} ends after {format_duration(each.measurement.time_s)}; it was killed or "
        "still runs, and later energy is missing" for each in nodes if each.outcome == "unfinished"]
    expected, present = max(each.facts["node_count"] for each in nodes), len({each.node for each in nodes})
    if present < expected:
        remarks.append(f"{expected - present} of {expected} nodes wrote no log; their energy is missing")
    worst = next((outcome for outcome in ("error", "unfinished", "interrupted")
                  if any(each.outcome == outcome for each in nodes)), "ok")
    worst = "unfinished" if present < expected else worst
    joules = [gpu.energy_uncertainty_j for gpu in gpus]
    own_j = None if None in joules else math.hypot(*(each or 0.0 for each in joules))
    whole = replace(
        first.measurement, id=uuid.uuid4().hex[:12], started_unix_s=start_s, time_s=end_s - start_s,
        gpus=tuple(gpus), cpu_energy_j=_sum(each.measurement.cpu_energy_j for each in nodes),
        dram_energy_j=_sum(each.measurement.dram_energy_j for each in nodes), outcome=worst, notes=(),
        iterations=_iterations(nodes, own_j), work=_work(nodes))
    sizes = max((each.facts["rank_counts"] for each in nodes), key=len)
    remarks = notes_of(ranks, whole, sizes, present) + remarks
    return JobMeasurement(
        replace(whole, notes=tuple(remarks)), tuple(ranks), tuple(
            JobNode(each.node, each.measurement, each.skew_s, each.skew_uncertainty_s, each.outcome)
            for each in nodes), waiting_of(first.facts) if len(nodes) == 1 else None, tuple(remarks))


def skew(first: NodeFile, other: NodeFile) -> tuple[float | None, float | None]:
    """The clock of another node minus that of the first one, and the half width of its 95 % interval.

    Synchronous ranks end an iteration together. Nodes that marked different numbers of iterations began
    together or ended together: the better fit counts if it is clear, and a node whose log is cut off began
    with the others. None where the ends fit no better than by chance.
    """
    mine, theirs = first.ends_s(), other.ends_s()
    shifts = {0} if "unfinished" in (first.outcome, other.outcome) else {0, len(mine) - len(theirs)}
    fits = []
    for shift in shifts:
        a, b = mine[max(shift, 0) :], theirs[max(-shift, 0) :]
        count = min(len(a), len(b))
        apart_s = b[:count] - a[:count]
        apart_s = apart_s[np.isfinite(apart_s)]
        if len(apart_s) >= ENOUGH:
            low_s, middle_s, high_s = np.quantile(apart_s, [0.025, 0.5, 0.975]).tolist()
            fits.append((max(high_s - middle_s, middle_s - low_s), middle_s, float(np.nanmedian(np.diff(a)))))
    fits.sort()
    # each end must be nearer to its counterpart than to the next one
    if not fits or fits[0][0] > 0.5 * fits[0][2] or (len(fits) > 1 and fits[1][0] < 2 * fits[0][0]):
        return None, None
    return fits[0][1], fits[0][0]


def _each_once(nodes: Sequence[NodeFile], remarks: list[str]) -> list[GpuMeasurement]:
    """The GPUs of all nodes. One that several logs have counts by the longest of those that overlap."""
    logs: dict[str, list[tuple[NodeFile, GpuMeasurement]]] = {}
    for each in nodes:
        for gpu in each.measurement.gpus:
            logs.setdefault(gpu.uuid, []).append((each, gpu))
    found = []
    for number, parts in enumerate(logs.values()):
        kept: list[tuple[NodeFile, GpuMeasurement]] = []
        for each, gpu in sorted(parts, key=lambda part: -part[0].measurement.time_s):
            if not any(each.start_s < other.end_s and other.start_s < each.end_s for other, _ in kept):
                kept.append((each, gpu))
        if len(kept) < len(parts):
            remarks.append(f"GPU {number} is in {len(parts)} logs of {parts[0][0].node} and counts once")
        gpus = [gpu for _, gpu in kept]
        errors = [gpu.energy_uncertainty_j for gpu in gpus]
        found.append(gpus[0] if len(gpus) == 1 else replace(
            gpus[0], energy_j=_sum(gpu.energy_j for gpu in gpus),
            energy_uncertainty_j=None if None in errors else math.hypot(*(each or 0.0 for each in errors))))
    return found


def _sum(values: Iterable[float | None]) -> float | None:
    known = list(values)
    return None if None in known else sum(each or 0.0 for each in known)


def _work(nodes: Sequence[NodeFile]) -> tuple[WorkDone, ...]:
    sums: dict[str, float] = {}
    for done in (done for each in nodes for done in each.measurement.work):
        sums[done.name] = sums.get(done.name, 0.0) + done.amount
    return tuple(WorkDone(name, amount) for name, amount in sums.items())


def _iterations(nodes: Sequence[NodeFile], own_j: float | None) -> IterationSummary | None:
    """Of nodes whose iterations end together: each node's energy in an iteration adds up."""
    frames = [each.frame.drop_nulls("iteration") for each in nodes if each.frame is not None]
    if len(nodes) == 1:
        return nodes[0].measurement.iterations
    counts = {frame["iteration"].n_unique() for frame in frames}
    if not frames:
        return None
    unequal = len(counts) > 1 and all(each.outcome != "unfinished" for each in nodes)
    if len(frames) < len(nodes) or any(each.skew_s is None for each in nodes) or unequal:
        return IterationSummary(0, sure=False, reason="the nodes marked different iterations")
    frames = [frame.filter(pl.col("iteration") < min(counts)) for frame in frames]
    energies = pl.concat(frames).group_by("iteration").agg(
        pl.when(pl.col("energy_j").null_count() == 0).then(pl.col("energy_j").sum()).alias("energy_j"))
    times = frames[0].group_by("iteration", maintain_order=True).agg(
        pl.col("kind").first(), pl.col("start_s").min(), pl.col("end_s").max(), pl.col("time_s").sum())
    frame = times.join(energies, on="iteration", maintain_order="left").with_columns(
        mean_power_w=pl.col("energy_j") / pl.col("time_s"))
    return per_iteration(frame, source="marks", own_error_j=own_j)
