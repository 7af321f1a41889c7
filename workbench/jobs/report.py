"""A job as text and as HTML: one line for the whole, a row for each rank or GPU, and for each node."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from .._html import table
from ..logbook.quantities import MINUS, as_columns, format_duration, format_energy, format_seconds
from ..logbook.report import CARD, line
from ..tariff import significant
from .records import GpuWait, JobMeasurement, JobNode, JobWaiting, Rank

Table = tuple[Sequence[str], Sequence[Sequence[str]]]


class GpuName(NamedTuple):
    """A GPU in a lane, and in a sentence: "2: GPU 5" and "GPU 5 of node-b" where there are several nodes."""

    short: str
    full: str


def names_of(job: JobMeasurement) -> dict[str, GpuName]:
    """The names of a job's GPUs by UUID."""
    waiting = () if job.waiting is None else job.waiting.gpus
    index = {gpu.uuid: gpu.index for gpu in waiting}
    nodes = job.nodes or (JobNode("", job.measurement),)
    found = own_names(waiting)
    for number, node in enumerate(nodes, start=1):
        for place, gpu in enumerate(node.measurement.gpus):
            name = f"GPU {index.get(gpu.uuid, place)}"
            found[gpu.uuid] = GpuName(name, name) if len(nodes) == 1 else GpuName(
                f"{number}: {name}", f"{name} of {node.name}")
    return found


def own_names(gpus: Iterable[GpuWait]) -> dict[str, GpuName]:
    """The names of the GPUs of one node by UUID."""
    return {gpu.uuid: GpuName(f"GPU {gpu.index}", f"GPU {gpu.index}") for gpu in gpus}


def answer(waiting: JobWaiting, names: Mapping[str, GpuName]) -> str:
    """Which GPU the others wait for, how long, and what that costs; or why this is not known."""
    if len(waiting.gpus) == 1:
        return "The job has one GPU: no other waits for it"
    if not waiting.known:
        why = waiting.reason or "the data do not show it"
        return f"Which GPU the others wait for is unknown: {why}"
    if waiting.straggler is None:
        return "No GPU keeps the others waiting"
    others = [gpu for gpu in waiting.gpus if gpu.uuid != waiting.straggler]
    times_s = [gpu.wait_s for gpu in others if gpu.wait_s is not None]
    long = f" {format_seconds(sum(times_s) / len(times_s))} of" if times_s else " in"
    who = f"the other{'s' * (len(others) > 1)}"
    text = (f"{names[waiting.straggler].full} keeps {who} waiting{long} each "
            f"{format_seconds(waiting.iteration_s)} iteration")
    if waiting.energy_j is None:
        return text
    whole = format_energy(waiting.count * waiting.energy_j, None)
    return (f"{text}; the waiting costs {format_energy(waiting.energy_j, None)} per iteration "
            f"({whole} in all)")


def basis(waiting: JobWaiting, names: Mapping[str, GpuName]) -> list[str]:
    """Sentences below the answer: what a faster straggler would save, and why it is slow."""
    if not waiting.known:
        return []
    found = []
    if waiting.straggler is not None and waiting.cost_s:
        name = names[waiting.straggler].full
        found.append(f"An iteration would take {format_seconds(waiting.cost_s)} less if {name} were as fast "
                     f"as the next slowest GPU")
    elif waiting.straggler is None and waiting.energy_j:
        found.append(f"All waiting together costs {format_energy(waiting.energy_j, None)} per iteration")
    return [*found, *filter(None, [waiting.reason])]


def who_waits(job: JobMeasurement) -> list[str]:
    """The answer and its basis; nothing where it was not looked for."""
    names = names_of(job)
    return [] if job.waiting is None else [answer(job.waiting, names), *basis(job.waiting, names)]


def wait_text(gpu: GpuWait, *, error: bool = True) -> str:
    """How long a GPU waits, with its error, and what that costs; empty where it does not wait.

    >>> wait_text(GpuWait("GPU-0", 0, 0.28, 0.021, 0.0011, 12.1))
    '21.0 ± 1.1 ms, 12.1 J'
    """
    if not gpu.wait_s:
        return ""
    energy = "" if gpu.wait_energy_j is None else f", {format_energy(gpu.wait_energy_j, None)}"
    return format_seconds(gpu.wait_s, gpu.wait_uncertainty_s if error else None) + energy


def rank_table(job: JobMeasurement) -> Table:
    """A row for each rank, and for each GPU without one."""
    gpus = {gpu.uuid: (number, gpu) for number, gpu in enumerate(job.measurement.gpus)}
    names = list(dict.fromkeys(done.name for rank in job.ranks for done in rank.work))
    several = len(job.nodes) > 1
    waits = {} if job.waiting is None else {gpu.uuid: gpu for gpu in job.waiting.gpus}
    nodes = {gpu.uuid: node.name for node in job.nodes for gpu in node.measurement.gpus}

    def gpu_text(uuid: str) -> str:
        number, gpu = gpus.get(uuid, (0, None))
        index = waits[uuid].index if uuid in waits and not several else number
        return uuid if gpu is None else f"{index}: {gpu.name.removesuffix(' (simulated)')}"

    def row(rank: Rank) -> list[str]:
        done = {each.name: significant(each.amount, 4) for each in rank.work}
        return ["-" if rank.rank is None else str(rank.rank), rank.node * several,
                ", ".join(map(gpu_text, rank.gpus)) or "unknown",
                "-" if rank.energy_j is None else format_energy(rank.energy_j, rank.energy_uncertainty_j),
                format_duration(rank.ended_s - rank.started_s), str(rank.iterations),
                *(done.get(name, "") for name in names), *waiting(rank.gpus), _outcome(rank)]

    def waiting(uuids: Sequence[str]) -> list[str]:
        known = job.waiting is not None and job.waiting.known
        there = [waits[uuid] for uuid in uuids if uuid in waits and known]
        clocks = [f"{gpu.sm_clock_mhz:.0f} MHz" for gpu in there if gpu.sm_clock_mhz is not None]
        return [", ".join(dict.fromkeys(clocks)), "; ".join(filter(None, map(wait_text, there)))]

    used = {uuid for rank in job.ranks for uuid in rank.gpus}
    rows = [row(each) for each in job.ranks] + [
        ["none", nodes.get(uuid, "") * several, gpu_text(uuid),
         format_energy(gpu.energy_j, gpu.energy_uncertainty_j), "", "", *("" for _ in names),
         *waiting([uuid]), ""]
        for uuid, (_, gpu) in gpus.items() if uuid not in used
    ]
    if not job.ranks:
        rows = [["", *each[1:]] for each in rows]
    heads = ["rank", "node", "GPU", "energy", "time", "iterations", *names, "SM clock", "waits", "outcome"]
    return _filled(heads, rows)


def _outcome(rank: Rank) -> str:
    if rank.outcome == "died":
        return f"died after {format_duration(rank.ended_s)}"
    return f"late by {format_duration(rank.started_s)}" if rank.outcome == "late" else rank.outcome


def node_table(job: JobMeasurement) -> Table:
    """A row for each node."""
    def skew(node: JobNode) -> str:
        if node is job.nodes[0]:
            return "0 s (reference)"
        if node.skew_s is None:
            return "unknown"
        sign = MINUS if node.skew_s < 0 else "+"
        return sign + format_seconds(abs(node.skew_s), node.skew_uncertainty_s)

    return _filled(["node", "GPUs", "energy", "time", "clock", "outcome"], [
        [each.name, str(len(each.measurement.gpus)),
         format_energy(each.measurement.energy_j, each.measurement.energy_uncertainty_j),
         format_duration(each.measurement.time_s), skew(each), each.outcome] for each in job.nodes])


def _filled(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A table without its empty columns."""
    kept = [number for number in range(len(heads)) if any(row[number] for row in rows)]
    return [heads[number] for number in kept], [[row[number] for number in kept] for row in rows]


def tables(job: JobMeasurement) -> list[Table]:
    """The tables that have more than one row."""
    found = [node_table(job)] if len(job.nodes) > 1 else []
    return found + ([rank_table(job)] if len(job.ranks) > 1 or len(job.measurement.gpus) > 1 else [])


def details(job: JobMeasurement) -> list[str]:
    """Its tables and notes as lines of text."""
    parts = [row for each in tables(job) for row in as_columns(*each).splitlines()]
    return [*who_waits(job), *parts, *job.notes]


def text(job: JobMeasurement) -> str:
    """The whole in one line, its tables, and its notes."""
    return "\n".join([line(job.measurement), *(f"  {each}" for each in details(job))])


def page(job: JobMeasurement) -> str:
    """The same as HTML."""
    items = "".join(f"<li>{html.escape(note)}</li>" for note in job.notes)
    parts = "".join(table(*each) for each in tables(job))
    return f"{CARD}<b>{html.escape(line(job.measurement))}</b>{parts}<ul>{items}</ul></div>"


JobMeasurement.__str__ = text  # type: ignore[method-assign, assignment]
JobMeasurement._repr_html_ = page  # type: ignore[method-assign, assignment]
