"""What came of sharing a GPU: the jobs side by side, what the set saves, and the verdict in one sentence."""

from __future__ import annotations

import html
from dataclasses import asdict, dataclass, field
from typing import Any

from .._html import table
from ..cluster.placement import MEMORY_SHARE
from ..logbook.quantities import format_duration, format_energy, format_seconds
from ..records import Measurement
from .comparing import ConfidenceInterval, SharingEffect
from .picture import picture

MIME = "application/vnd.gpu-energy-workbench.sharing+json"
RULE = (
    "attributed: the idle power in equal parts; the rest by each job's progress, an iteration weighted by "
    "its energy over idle alone"
)
REPORTED = (
    "gpu", "uuid", "simulated", "mode", "decision", "verdict", "bound", "idle_w", "memory_used_bytes",
    "memory_bytes", "watched",
)


@dataclass(frozen=True)
class SharedJob:
    """One of the jobs.

    Attributes:
        label: Its name.
        command: The commands or functions.
        outcome: "ok", "running", "stopped", "out of memory", "error", "hung", or "not started".
        memory_bytes: On the GPU, the most that was seen; None where the driver does not report.
        log: File of its output.
        source: Where its iterations come from: "marks", "optimizer" (PyTorch's steps), "power" (its period in
            the power trace), or "" where they are not known.
    """

    label: str
    command: str
    outcome: str
    memory_bytes: int | None = None
    log: str = ""
    source: str = ""


@dataclass(frozen=True)
class SharingResult:
    """Two to four jobs on one GPU. Shows itself as a table with a verdict.

    Attributes:
        jobs: In the order given; columns of `comparison` are in this order.
        comparison: None where there was too little to compare; `verdict` gives the reason.
        decision: "share", "do not share", "undecided", or "unknown" where there is no comparison.
        verdict: One sentence.
        bound: The slowdown that each job may have.
        board: Energy of the GPU from before the first job's start to the end, by all users; None where it
            could not be measured.
        mode: How the jobs share.
        memory_used_bytes, memory_bytes: Together, and of the GPU.
        idle_w: Power of the board before the first job.
        watched: What came of watching the first epoch; empty where it was not watched.
        trace: Power of the whole, as a Polars frame; `spans` has the schedule in it: labels, start and end
            in seconds of its clock.
    """

    gpu: str
    uuid: str
    simulated: bool
    jobs: tuple[SharedJob, ...]
    comparison: SharingEffect | None
    decision: str
    verdict: str
    bound: float
    board: Measurement | None = None
    mode: str = ""
    memory_used_bytes: int | None = None
    memory_bytes: int | None = None
    idle_w: float | None = None
    watched: str = ""
    notes: tuple[str, ...] = ()
    spans: tuple[tuple[tuple[str, ...], float, float], ...] = ()
    trace: Any = field(default=None, repr=False, compare=False)

    @property
    def excess(self) -> float | None:
        """Mean growth of an iteration's time, as `cluster.colocation` counts it: 0.08 is 8 % longer."""
        if self.comparison is None:
            return None
        return sum(each.value for each in self.comparison.slowdown) / len(self.jobs) - 1.0

    def as_dict(self) -> dict[str, Any]:
        """Everything but the trace, as JSON can hold it; errors are half widths of 95 % intervals."""
        found, board = self.comparison, self.board
        jobs = [asdict(job) for job in self.jobs]
        whole: dict[str, Any] = {name: getattr(self, name) for name in REPORTED}
        whole |= {
            "jobs": jobs, "notes": list(self.notes), "rule": RULE,
            "total_j": None if board is None else board.energy_j,
            "total_error_j": None if board is None else board.energy_uncertainty_j,
            "total_s": None if board is None else board.time_s,
        }
        if found is None:
            return whole
        for number, row in enumerate(jobs):
            for name in ("alone_s", "together_s", "slowdown", "alone_j", "attributed_j"):
                each = getattr(found, name)[number]
                row |= {name: each.value, f"{name}_error": each.error}
            row["part_j"] = found.parts_j[number]
        for name in ("saving", "progress", "together_w"):
            whole |= {name: getattr(found, name).value, f"{name}_error": getattr(found, name).error}
        return {**whole, "board_j": found.board_j}

    def __repr__(self) -> str:
        """The verdict, the jobs as a table, and what else there is to know."""
        heads, rows = _rows(self)
        keep = [place for place in range(len(heads)) if any(row[place] for row in rows)]
        cells = [[row[place] for place in keep] for row in (heads, *rows)]
        widths = [max(len(row[place]) for row in cells) for place in range(len(keep))]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in cells
        ]
        return "\n  ".join([_heading(self), *lines, *_lines(self)])

    def _repr_html_(self) -> str:
        """Plain HTML: no script, colours inherited, readable in any theme."""
        items = "".join(f"<li>{html.escape(line)}</li>" for line in _lines(self))
        labels = [job.label for job in self.jobs]
        drawn = picture(self.trace, self.spans, labels, self.idle_w) if self.trace is not None else ""
        return (
            f"<div class='gpu-sharing'><p><b>{html.escape(_heading(self))}</b></p>"
            f"{table(*_rows(self))}{drawn}<ul style='margin:.3em 0;opacity:.8'>{items}</ul></div>"
        )

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        return {"text/plain": repr(self), "text/html": self._repr_html_(), MIME: self.as_dict()}


# the verdict


def decide(found: SharingEffect, labels: tuple[str, ...], bound: float, seconds: float) -> tuple[str, str]:
    """Whether to share, and why, as far as the errors allow.

    Args:
        found: The comparison.
        labels: Of the jobs.
        bound: The slowdown that each may have.
        seconds: How long each stage was measured, for advice.
    """
    slow = [
        f"{label} by {_percent(each.value - 1)} ± {_points(each)}"
        for label, each in zip(labels, found.slowdown, strict=True)
    ]
    saving = found.saving
    headline = f"saves {_percent(saving.value)} ± {_points(saving)} of the energy" if saving.value >= 0 else (
        f"costs {_percent(-saving.value)} ± {_points(saving)} more energy")
    if saving.low <= 0 <= saving.high:
        headline = "makes no measurable difference in energy"
    facts = f"sharing {headline}, slows {', '.join(slow)}"
    broken = [label for label, each in zip(labels, found.slowdown, strict=True) if each.low > bound]
    if broken:
        return (
            "do not share",
            f"{facts}: beyond the bound of {_percent(bound - 1)} for {', '.join(broken)}; run them one after "
            "the other",
        )
    if saving.high < 0:
        return "do not share", f"{facts}; run them one after the other"
    unsure = [
        (label, abs(each.value - bound), each.error)
        for label, each in zip(labels, found.slowdown, strict=True) if each.high > bound
    ]
    slowdowns = ", ".join(label + "'s slowdown" for label, _, _ in unsure)
    open_ = [f"{slowdowns} is not significantly different from the limit"] if unsure else []
    if saving.low <= 0:
        unsure.append(("the saving", abs(saving.value), saving.error))
        open_.append("the saving is not significantly different from zero")
    if not unsure:
        return "share", f"{facts}; share them"
    longer = max(min(100.0, (error / max(distance, 1e-3)) ** 2) for _, distance, error in unsure)
    return "undecided", (
        f"{facts}; {' and '.join(open_)} yet: measure each for about "
        f"{format_duration(max(1.5, 1.2 * longer) * seconds)} (stage_s=...)"
    )


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %" if abs(share) < 0.0995 else f"{100 * share:.0f} %"


def _points(each: ConfidenceInterval) -> str:
    """The error of a share, in percent, of at least a tenth of a percent.

    >>> _points(ConfidenceInterval(0.24, 0.031)), _points(ConfidenceInterval(0.02, 0.0002))
    ('3.1 %', '0.1 %')
    """
    return f"{100 * max(each.error, 0.001):.{0 if each.error > 0.0995 else 1}f} %"


# in words


def _rows(shared: SharingResult) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    heads = (
        "job", "alone", "together", "slowdown", "energy alone", "attributed together", "part of the board",
        "GPU memory", "ended",
    )
    rows = []
    for number, job in enumerate(shared.jobs):
        cells = [""] * 6
        if (found := shared.comparison) is not None:
            cells = [
                format_seconds(found.alone_s[number].value, found.alone_s[number].error),
                format_seconds(found.together_s[number].value, found.together_s[number].error),
                f"{_percent(found.slowdown[number].value - 1)} ± {_points(found.slowdown[number])}",
                format_energy(found.alone_j[number].value, found.alone_j[number].error),
                format_energy(found.attributed_j[number].value, found.attributed_j[number].error),
                format_energy(found.parts_j[number], None),
            ]
        memory = "" if job.memory_bytes is None else f"{job.memory_bytes / 2**30:.1f} GiB"
        rows.append((job.label, *cells, memory, job.outcome))
    return heads, rows


def _lines(shared: SharingResult) -> list[str]:
    out = []
    if (found := shared.comparison) is not None:
        out.append(
            f"watched together: {format_energy(found.board_j, None)} of the board at "
            f"{found.together_w.value:.0f} W; the jobs' parts add up to it ({RULE})"
        )
        out.append(
            f"the set makes {found.progress.value:.2f} ± {found.progress.error:.2f} times the progress of "
            "one job at a time; times and energies are of one iteration, errors of 95 % intervals"
        )
    if shared.board is not None and shared.board.energy_j is not None:
        total = format_energy(shared.board.energy_j, shared.board.energy_uncertainty_j)
        lasted = format_duration(shared.board.time_s)
        out.append(
            f"the board in all, from before the first job's start to the last one's end: {total} in {lasted}"
        )
    if shared.memory_bytes and shared.memory_used_bytes is not None:
        free = shared.memory_bytes - shared.memory_used_bytes
        warn = (
            "; a peak that was not observed may not fit"
            if shared.memory_used_bytes > MEMORY_SHARE * shared.memory_bytes else ""
        )
        out.append(
            f"memory: {shared.memory_used_bytes / 2**30:.1f} of {shared.memory_bytes / 2**30:.0f} GiB used "
            f"together, {free / 2**30:.1f} GiB left{warn}"
        )
    if shared.watched:
        out.append(shared.watched)
    return [*out, *shared.notes]


def _heading(shared: SharingResult) -> str:
    return f"{shared.gpu}{'' if shared.mode == '' else f', {shared.mode}'}: {shared.verdict}"
