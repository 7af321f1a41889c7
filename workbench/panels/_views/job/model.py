"""The texts of a job on several GPUs: who waits for whom, and tables of its GPUs, ranks and nodes."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ...._html import table
from ....errors import listed
from ....jobs.records import GpuWait, JobMeasurement, JobNode, Rank
from ....jobs.report import names_of, who_waits
from ....logbook.quantities import MINUS, format_duration, format_energy, format_seconds, gpu_names
from ....records import GpuMeasurement, Measurement, Setting, WorkDone
from ....tariff import significant
from ..._core.svg import titled

OUTCOMES = {"died": "died", "restarted": "was started again", "late": "began late"}  # of ranks
HEADLINE = "font-size:20px;font-weight:600;line-height:1.3"
NBSP = "\N{NO-BREAK SPACE}"
FIRST = "reference"  # the node whose clock the others are compared with


def title(job: JobMeasurement) -> str:
    """The label, the GPUs and the number of nodes."""
    run = job.measurement
    nodes = f"{len(job.nodes)} nodes" if len(job.nodes) > 1 else ""
    text = " · ".join(filter(None, (run.label, gpu_names(gpu.name for gpu in run.gpus), nodes)))
    return titled(text, run.simulated)


def wait_text(gpu: GpuWait, *, error: bool = True) -> str:
    """How long a GPU waits, with its error, and what that costs; empty where it does not wait.

    >>> wait_text(GpuWait("GPU-0", "V100", 0, 0.28, 0.021, 0.0011, 12.1))
    '21.0 ± 1.1 ms, 12.1 J'
    """
    if not gpu.wait_s:
        return ""
    energy = "" if gpu.wait_energy_j is None else f", {format_energy(gpu.wait_energy_j, None)}"
    return format_seconds(gpu.wait_s, gpu.wait_uncertainty_s if error else None) + energy


# the job


def sentences(job: JobMeasurement) -> list[str]:
    """The answer, its basis, the job's energy, and what happened to its ranks and nodes."""
    cost = str(replace(job.measurement, label=""))
    return [*who_waits(job), cost, *(f"⚠ {each}" for each in incidents(job))]


def incidents(job: JobMeasurement) -> list[str]:
    """Sentences about ranks that died, restarted or came late, and nodes whose part is incomplete."""
    found = []
    for outcome, verb in OUTCOMES.items():
        which = [rank for rank in job.ranks if rank.outcome == outcome]
        if which:
            numbers = listed([f"{rank_name(rank)} of {rank.node}" for rank in which])
            found.append(f"{len(which)} of {len(job.ranks)} ranks {verb}: {numbers}; the energy is counted")
    unfinished = [node for node in job.nodes if node.outcome != "ok"]
    return found + [f"Node {node.name}: {node.outcome}" for node in unfinished]


def rank_name(rank: Rank) -> str:
    """The number of a rank, or its process where the launcher gives no number."""
    return f"process {rank.pid}" if rank.rank is None else f"rank {rank.rank}"


def answer_html(texts: Sequence[str]) -> str:
    """Sentences as HTML, the first one as a headline; a value keeps its unit on its line."""
    before_unit = re.compile(r"(?<=\d) (?=±|[kMm]?[JWs]\b|MHz|%)|(?<=±) ")
    first, *others = (before_unit.sub(NBSP, html.escape(text)) for text in texts)
    below = "".join(f"<div style='opacity:.75'>{each}</div>" for each in others)
    return f"<div style='{HEADLINE}'>{first}</div>{below}"


def details_html(job: JobMeasurement) -> str:
    """Tables of the ranks, or of the GPUs where no rank is known, and of the nodes, and the notes."""
    notes = "".join(f"<li>{html.escape(note)}</li>" for note in (*job.notes, *job.measurement.notes))
    listed_notes = f"<ul style='margin:.3em 0'>{notes}</ul>" if notes else ""
    nodes = _table([_node_cells(node, not n) for n, node in enumerate(job.nodes)]) * (len(job.nodes) > 1)
    return _ranks(job) + nodes + listed_notes


def _ranks(job: JobMeasurement) -> str:
    """A row for each rank, and for each GPU without one; the straggler's is bold."""
    names = names_of(job)
    waits = {} if job.waiting is None else {gpu.uuid: gpu for gpu in job.waiting.gpus}
    measured = {gpu.uuid: gpu for gpu in job.measurement.gpus}
    straggler = None if job.waiting is None else job.waiting.straggler
    rows, bold, taken = list[dict[str, str]](), set[int](), set[str]()

    def add(uuids: Sequence[str], first: dict[str, str], last: dict[str, str]) -> None:
        clocks = [_clock(waits.get(uuid), measured.get(uuid)) for uuid in uuids]
        if straggler in uuids:
            bold.add(len(rows))
        gpus = ", ".join(names[uuid].full if uuid in names else uuid for uuid in uuids)
        known = {"SM clock": ", ".join(dict.fromkeys(filter(None, clocks))),
                 "waits": "; ".join(filter(None, (wait_text(waits[u]) for u in uuids if u in waits)))}
        rows.append({**first, "GPU": gpus, **known, **last})
        taken.update(uuids)

    for rank in job.ranks:
        end = {"outcome": _outcome(rank)}
        energy = "" if rank.energy_j is None else format_energy(rank.energy_j, rank.energy_uncertainty_j)
        add(rank.gpus, {"rank": "" if rank.rank is None else str(rank.rank), "process": str(rank.pid)}, {
            "energy": energy, "iterations": str(rank.iterations), "work": _work(rank.work), **end})
    for gpu in job.measurement.gpus:
        if gpu.uuid not in taken:
            add([gpu.uuid], {}, {"energy": format_energy(gpu.energy_j, gpu.energy_uncertainty_j)})
    return _table(rows, bold)


def _table(rows: Sequence[Mapping[str, str]], bold: Iterable[int] = ()) -> str:
    """A table of the columns that have a text, in a box that scrolls."""
    heads = [head for head in dict.fromkeys(each for row in rows for each in row)
             if any(row.get(head) for row in rows)]
    texts = ([row.get(head, "").replace(" ", NBSP) for head in heads] for row in rows)
    cells = [[text.replace(f",{NBSP}", ", ") for text in row] for row in texts]
    shown = table(heads, cells, bold={*bold}, style="font-size:12px")
    return f"<div tabindex='0' style='overflow:auto;max-height:300px'>{shown}</div>" if shown else ""


def _outcome(rank: Rank) -> str:
    if rank.outcome == "died":
        return f"died after {format_duration(rank.ended_s)}"
    return f"late by {format_duration(rank.started_s)}" if rank.outcome == "late" else rank.outcome


def _work(work: Iterable[WorkDone]) -> str:
    return ", ".join(f"{significant(each.amount)} {each.name}" for each in work)


def _clock(wait: GpuWait | None, gpu: GpuMeasurement | None) -> str:
    """The SM clock while a GPU works, else its mean over the measurement."""
    known = wait.sm_clock_mhz if wait is not None else None
    clock_mhz = known if known is not None or gpu is None else gpu.sm_clock_mhz
    return "" if clock_mhz is None else f"{clock_mhz:.0f} MHz"


def _node_cells(node: JobNode, first: bool) -> dict[str, str]:
    run: Measurement = node.measurement
    skew = FIRST if first else "unknown"
    if node.skew_s is not None and not first:
        sign = MINUS if node.skew_s < 0 else "+"
        skew = sign + format_seconds(abs(node.skew_s), node.skew_uncertainty_s)
    return {"node": node.name, "GPUs": str(len(run.gpus)),
            "energy": format_energy(run.energy_j, run.energy_uncertainty_j), "clock": skew,
            "outcome": node.outcome}


def settings_html(
    settings: Mapping[str, Setting], active: Mapping[str, Setting | None], job: JobMeasurement
) -> str:
    """The settings that are proposed for single GPUs, each with its wait and the active one."""
    names = names_of(job)
    waits = {} if job.waiting is None else {gpu.uuid: wait_text(gpu) for gpu in job.waiting.gpus}
    return _table([
        {"GPU": names[uuid].full if uuid in names else uuid,
         "active": str(active[uuid] or "unknown") if uuid in active else "not on this machine",
         "proposed": str(setting), "waits": waits.get(uuid, "")} for uuid, setting in settings.items()])
