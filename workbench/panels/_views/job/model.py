"""The texts of a job on several GPUs: who waits for whom, and tables of its GPUs, ranks and nodes."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ...._html import table
from ....errors import listed
from ....jobs.records import JobMeasurement, Rank
from ....jobs.report import names_of, tables, wait_text, who_waits
from ....logbook.quantities import gpu_names
from ....records import Setting
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
    return "".join(_table(*each) for each in tables(job)) + listed_notes


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in a box that scrolls; a value keeps its unit on its line."""
    cells = [[text.replace(" ", NBSP).replace(f",{NBSP}", ", ") for text in row] for row in rows]
    shown = table(heads, cells, style="font-size:12px")
    return f"<div tabindex='0' style='overflow:auto;max-height:300px'>{shown}</div>"


def settings_html(
    settings: Mapping[str, Setting], active: Mapping[str, Setting | None], job: JobMeasurement
) -> str:
    """The settings that are proposed for single GPUs, each with its wait and the active one."""
    names = names_of(job)
    waits = {} if job.waiting is None else {gpu.uuid: wait_text(gpu) for gpu in job.waiting.gpus}
    return _table(["GPU", "active", "proposed", "waits"], [
        [names[uuid].full if uuid in names else uuid,
         str(active[uuid] or "unknown") if uuid in active else "not on this machine",
         str(setting), waits.get(uuid, "")] for uuid, setting in settings.items()])
