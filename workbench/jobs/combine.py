"""From a measured window and the marks of the processes below it to a job with its ranks."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from .. import _processes
from ..device import driver, selection
from ..errors import DeviceError, describe_error, listed
from ..logbook.quantities import format_energy
from ..logbook.store import Store
from ..measurement.energy_estimate import EnergyTimeline
from ..measurement.iterations import trace_of
from ..measurement.meter import Meter
from ..measurement.process_marks import ProcessMarks, generations, is_late, of_children, synchronous
from ..periods.segment import SegmentedIterations
from ..records import Measurement, Window, WorkDone
from . import report as report  # how a job shows itself
from .records import GpuWait, JobMeasurement, JobNode, JobWaiting, Rank
from .waiting import LEAST_ITERATIONS, waiting


def job_of(
    meter: Meter, window: Window, measurement: Measurement, found: SegmentedIterations | None = None
) -> JobMeasurement:
    """A measured window as a job on one node; without ranks where no child process has marked anything.

    Args:
        meter: The one that measured it.
        window: Closed, perhaps still going on.
        measurement: Of this window. A failure here becomes one of its notes.
        found: Its iterations, from which the waiting of several GPUs is found.
    """
    try:
        job = _job_of(meter, window, measurement)
        return replace(job, waiting=_waiting(meter, window, measurement, found))
    except Exception as error:
        note = f"the ranks of this job could not be combined ({describe_error(error)})"
        return JobMeasurement(replace(measurement, notes=(*measurement.notes, note)), notes=(note,))


def _waiting(
    meter: Meter, window: Window, measurement: Measurement, found: SegmentedIterations | None
) -> JobWaiting | None:
    """Who waits for whom, at the setting that lasted longest. None without two busy GPUs, enough iterations
    and synchronous ranks.
    """
    assert window.end_s is not None
    within_s = window.start_s, window.end_s
    busy = {gpu.uuid for gpu in measurement.gpus if (gpu.idle_share or 0.0) < 0.5}
    devices = [device for device in meter.devices if device.uuid in busy]
    few = found is None or not found.summary.sure or found.summary.count < LEAST_ITERATIONS
    if few or found is None or len(devices) < 2 or not synchronous(of_children(meter.clock, *within_s)):
        return None
    parts = [(part.start_s, part.end_s) for part in found.parts] or [within_s]
    start_s, end_s = max(parts, key=lambda part: part[1] - part[0])  # under one setting
    borders = found.frame.filter(kind="iteration").select("start_s", "end_s").to_numpy().ravel()
    borders = borders[(borders >= start_s) & (borders <= end_s)]
    timelines = meter.timelines_of(window)
    if not all(device.uuid in timelines for device in devices):
        return None
    return waiting(
        {device.uuid: trace_of(timelines[device.uuid], start_s, end_s) for device in devices},
        borders.tolist(), indices={device.uuid: device.index for device in devices},
        windows_s={device.uuid: device.power_window_s for device in devices},
    )


def _job_of(meter: Meter, window: Window, measurement: Measurement) -> JobMeasurement:
    assert window.end_s is not None
    within_s = window.start_s, window.end_s
    processes = of_children(meter.clock, *within_s)
    timelines = meter.timelines_of(window) if processes else {}
    gpus = [_gpus_of(each) for each in processes]
    groups = generations(processes)
    ranks = [
        Rank(each.rank, each.facts.get("host", ""), each.pid, used,
             max(len(each.steps) - 1, 0),
             outcome=_outcome(each, processes, groups, measurement.outcome),
             started_s=max(each.began_s, within_s[0]) - within_s[0],
             ended_s=min(_ended_s(each, within_s[1]), within_s[1]) - within_s[0],
             work=each.work_between(*within_s, each.phases_between(*within_s)))
        for each, used in zip(processes, gpus, strict=True)
    ]
    ranks = [_with_energy(each, ranks, timelines, within_s[0]) for each in ranks]
    elsewhere = any((each.facts.get("nodes") or 1) > 1 for each in processes)  # other nodes have other ranks
    notes = notes_of(ranks, measurement, [] if elsewhere else rank_counts(processes))
    name = processes[0].facts["host"] if processes else socket.gethostname()
    whole = replace(measurement, notes=(*measurement.notes, *notes))
    order = sorted(ranks, key=lambda each: (math.inf if each.rank is None else each.rank, each.started_s))
    return JobMeasurement(whole, tuple(order), (JobNode(name, whole, outcome=measurement.outcome),),
                          notes=tuple(notes))


def rank_counts(processes: Sequence[ProcessMarks]) -> list[int]:
    """The number of ranks in each generation of processes, from their launcher."""
    sizes = (max(each.facts.get("world_size") or 0 for each in group) for group in generations(processes))
    return [size for size in sizes if size]


def _gpus_of(process: ProcessMarks) -> tuple[str, ...]:
    """UUIDs of the GPUs that a process of this machine uses; of a part of a GPU that of the whole."""
    facts, found = process.facts, tuple[str, ...]()
    with contextlib.suppress(DeviceError):
        present = driver.current()
        found = selection.gpus_of_rank(
            facts.get("cuda", {}), facts.get("local_rank"), present.identities(), facts.get("gpu"))
        found = tuple(present.open_uuid(each).uuid for each in found)
    return found


def _runs(process: ProcessMarks) -> bool:
    return _processes.runs(process.pid, process.facts.get("started", ""))


def _ended_s(process: ProcessMarks, now_s: float) -> float:
    """When it ended; its last mark where it was killed."""
    if process.ended_s is not None:
        return process.ended_s
    return now_s if _runs(process) else process.last_mark_s


def _outcome(
    process: ProcessMarks, others: Sequence[ProcessMarks], groups: Sequence[Sequence[ProcessMarks]],
    job_outcome: str,
) -> str:
    """As `Rank.outcome`. A process without a number, as a worker of a pool, may be ended by its parent."""
    group = next((each for each in groups if process in each), [process])
    most = max(len(each.steps) for each in group)
    gone = process.ended_s is None and not _runs(process)
    if process.rank is not None and any(
        each.rank == process.rank and each.began_s >= process.last_mark_s for each in others
        if each is not process
    ):
        return "restarted"
    early = process.rank is not None and len(process.steps) < most - (job_outcome == "interrupted")
    if (gone and (early or job_outcome == "error")) or (process.failed and job_outcome != "interrupted"):
        return "died"
    return "late" if process.steps and is_late(process, group) else "ok"


def _with_energy(
    rank: Rank, ranks: Sequence[Rank], timelines: Mapping[str, EnergyTimeline], start_s: float
) -> Rank:
    """A rank with the energy of its GPUs; while several ranks use a GPU, each has an equal part."""
    energy_j, variance = 0.0, 0.0
    for uuid in rank.gpus:
        if uuid not in timelines:
            return rank
        users = [each for each in ranks if uuid in each.gpus]
        edges = {at for each in users for at in (each.started_s, each.ended_s)}
        edges_s = sorted(at for at in edges if rank.started_s <= at <= rank.ended_s)
        if len(edges_s) < 2:  # it was killed before its first mark in the window
            return rank
        parts = timelines[uuid].parts([start_s + at for at in edges_s])
        middles = [(a + b) / 2 for a, b in itertools.pairwise(edges_s)]
        share = np.array([1 / sum(each.started_s < at < each.ended_s for each in users) for at in middles])
        # An error at an edge between two parts of one share is none in their sum.
        alone = len(set(share.tolist())) == 1 and timelines[uuid].between(
            start_s + rank.started_s, start_s + rank.ended_s)
        energy_j += float(share @ parts.energy_j)
        variance += (share[0] * alone.uncertainty_j) ** 2 if alone else float(
            np.square(share * parts.uncertainty_j).sum())
    known = rank.gpus and math.isfinite(energy_j) and math.isfinite(variance)
    return replace(rank, energy_j=energy_j, energy_uncertainty_j=math.sqrt(variance)) if known else rank


def _named(ranks: Iterable[Rank]) -> str:
    """Ranks by number, processes without one by their ids: "rank 3", "ranks 0, 1"."""
    numbers = sorted({each.rank for each in ranks if each.rank is not None})
    pids = [str(each.pid) for each in ranks if each.rank is None]
    texts = [f"rank{'s' * (len(numbers) > 1)} {listed(numbers)}"] if numbers else []
    texts += [f"process{'es' * (len(pids) > 1)} {listed(pids)}"] if pids else []
    return " and ".join(texts)


def notes_of(
    ranks: Sequence[Rank], measurement: Measurement, rank_counts: Sequence[int], nodes: int = 1
) -> list[str]:
    """Remarks on the ranks of a job and their GPUs; without ranks on GPUs that were lost alone.

    Args:
        ranks: All processes.
        measurement: Of all GPUs.
        rank_counts: The number of ranks in each generation.
        nodes: How many there are.
    """
    notes: list[str] = []
    lost = [gpu for gpu in measurement.gpus if gpu.energy_j is None]
    if lost and len(lost) < len(measurement.gpus):
        rest_j = sum(gpu.energy_j for gpu in measurement.gpus if gpu.energy_j is not None)
        notes.append(f"the energy of {listed([gpu.uuid for gpu in lost])} is unknown; the other GPUs drew "
                     f"{format_energy(rest_j, None)}")
    if not ranks:
        return notes
    count = len({(each.rank, each.pid * (each.rank is None), each.node * (each.rank is None))
                 for each in ranks})
    where = f" on {nodes} nodes" if nodes > 1 else ""
    notes.insert(0, f"job of {count} rank{'s' * (count > 1)}{where}")
    texts: dict[str, Callable[[Sequence[Rank]], str]] = {
        "died": lambda each: f"{_named(each)} died; the GPUs count until the end of the job",
        "restarted": lambda each: f"{_named(each)} restarted; all attempts are in the energy",
        "late": lambda each: f"{_named(each)} began after the first iteration of the others",
    }
    for outcome, text in texts.items():
        if concerned := [each for each in ranks if each.outcome == outcome]:
            notes.append(text(concerned))
    if len(set(rank_counts)) > 1:
        steps = [str(size) for size, _ in itertools.groupby(rank_counts)]
        notes.append(f"the number of ranks changed: {' → '.join(steps)}")
    known = {each.rank for each in ranks if each.rank is not None}
    if rank_counts and (silent := sorted(set(range(max(rank_counts))) - known)):
        notes.append(f"no marks of rank{'s' * (len(silent) > 1)} {listed(silent)} of {max(rank_counts)}")
    counts = {each.iterations for each in ranks if each.outcome == "ok"}
    if len(counts) > 1:
        notes.append(f"the ranks marked unequal numbers of iterations: {min(counts)} to {max(counts)}")
    return notes + _gpu_notes(ranks, measurement)


def _gpu_notes(ranks: Sequence[Rank], measurement: Measurement) -> list[str]:
    notes = []
    measured = [gpu.uuid for gpu in measurement.gpus]
    if unknown := [each for each in ranks if not each.gpus]:
        notes.append(f"the GPU of {_named(unknown)} is unknown")
    if outside := [each for each in ranks if set(each.gpus) - set(measured)]:
        notes.append(f"{_named(outside)} used a GPU that was not measured")
    for number, uuid in enumerate(measured):
        users = [each for each in ranks if uuid in each.gpus]
        together = [each for each in users if any(
            other is not each and other.started_s < each.ended_s and each.started_s < other.ended_s
            for other in users)]
        if together:
            notes.append(f"{_named(together)} shared GPU {number}; each has an equal part of its energy")
        if not users and not unknown:
            notes.append(f"GPU {number} has no rank; its energy is in the sum")
    return notes


# the log


def keep_job(store: Store, job: JobMeasurement) -> None:
    """Store ranks and waiting of a job whose measurement is stored already. Raises StoreError."""
    if job.ranks or job.waiting is not None:
        store.save_job(job.measurement.id, as_dict(job))


def as_dict(job: JobMeasurement) -> dict[str, Any]:
    """Ranks, nodes, notes and waiting of a job as JSON can hold them."""
    nodes = [{"name": each.name, "outcome": each.outcome, "skew_s": each.skew_s,
              "skew_uncertainty_s": each.skew_uncertainty_s, "energy_j": each.measurement.energy_j,
              "gpus": [gpu.uuid for gpu in each.measurement.gpus]} for each in job.nodes]
    return {"ranks": [asdict(each) for each in job.ranks], "nodes": nodes, "notes": list(job.notes),
            "waiting": None if job.waiting is None else asdict(job.waiting)}


def rank_of(values: Mapping[str, Any]) -> Rank:
    """A rank of `as_dict`."""
    work = tuple(WorkDone(**each) for each in values["work"])
    return Rank(**{**values, "gpus": tuple(values["gpus"]), "work": work})


def waiting_of(document: Mapping[str, Any]) -> JobWaiting | None:
    """The waiting of `as_dict`."""
    known = document.get("waiting")
    if known is None:
        return None
    gpus = tuple(GpuWait(**{**each, "power_w": tuple(each["power_w"])}) for each in known["gpus"])
    return JobWaiting(**{**known, "gpus": gpus})


def stored_job(store: Store, measurement: Measurement) -> JobMeasurement:
    """A measurement of the log as a job; without ranks where it had none."""
    extras = store.job(measurement.id) or {"ranks": [], "nodes": [{"name": ""}], "notes": []}
    node = JobNode(extras["nodes"][0]["name"], measurement, outcome=measurement.outcome)
    return JobMeasurement(measurement, tuple(map(rank_of, extras["ranks"])), (node,), waiting_of(extras),
                          tuple(extras["notes"]))


def job_name(processes: Iterable[ProcessMarks]) -> str:
    """The name that a job's launcher gave it: of its ranks, else of this process."""
    names = (each.facts.get("job") for each in processes)
    return next(filter(None, names), "") or selection.job_name(os.environ)
