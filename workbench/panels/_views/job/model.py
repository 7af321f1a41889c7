"""A job on several GPUs as HTML: sentences, tables and proposed settings."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ...._html import table
from ....jobs.records import JobMeasurement
from ....jobs.report import names_of, tables, wait_text, who_waits
from ....logbook.quantities import gpu_names
from ....records import Setting
from ..._core.svg import titled

HEADLINE = "font-size:20px;font-weight:600;line-height:1.3"
NBSP = "\N{NO-BREAK SPACE}"


def title(job: JobMeasurement) -> str:
    """The label, the GPUs and the number of nodes."""
    run = job.measurement
    nodes = f"{len(job.nodes)} nodes" if len(job.nodes) > 1 else ""
    text = " · ".join(filter(None, (run.label, gpu_names(gpu.name for gpu in run.gpus), nodes)))
    return titled(text, run.simulated)


def sentences(job: JobMeasurement) -> list[str]:
    """The answer, its basis, the job's energy, and remarks about its ranks and nodes."""
    return [*who_waits(job), str(replace(job.measurement, label="")), *job.notes]


def answer_html(texts: Sequence[str]) -> str:
    """Sentences as HTML, the first one as a headline; a value keeps its unit on its line."""
    before_unit = re.compile(r"(?<=\d) (?=±|[kMm]?[JWs]\b|MHz|%)|(?<=±) ")
    first, *others = (before_unit.sub(NBSP, html.escape(text)) for text in texts)
    below = "".join(f"<div style='opacity:.75'>{each}</div>" for each in others)
    return f"<div style='{HEADLINE}'>{first}</div>{below}"


def details_html(job: JobMeasurement) -> str:
    """Tables of the ranks, or of the GPUs where no rank is known, and of the nodes, and other notes."""
    others = [note for note in job.measurement.notes if note not in job.notes]
    notes = "".join(f"<li>{html.escape(note)}</li>" for note in others)
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
