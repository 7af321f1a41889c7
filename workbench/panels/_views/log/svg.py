"""Pictures of runs of the log: one run's power with its iterations; two runs' power and differences."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import polars as pl

from ....logbook.equal_work import comparison_basis, describe_comparison
from ....logbook.run_table import when
from ....records import Measurement
from ..._core.svg import Pen, Picture, ShadedSpan
from ..._core.theme import colour
from ..power.conditions import GpuTrace, conditions
from ..power.model import named_phases
from ..power.series import Series, rows_of
from ..power.svg import TraceLine, VerticalMark, trace_picture


def run_picture(run: Measurement, trace: pl.DataFrame, iterations: pl.DataFrame | None) -> str:
    """A run's power, clocks and utilisation, with its iterations and events; the rest is folded away."""
    lines = _lines(trace)
    start_s = float(trace["time_s"].min() or 0.0)  # type: ignore[arg-type]
    marks = list[VerticalMark]()
    spans: tuple[ShadedSpan, ...] = ()
    if iterations is not None and len(lines) == 1:
        marks = [VerticalMark(at_s - start_s, kind) for at_s, kind in named_phases(iterations)]
        spans = tuple(
            ShadedSpan(row["start_s"] - start_s, row["end_s"] - start_s, row["kind"] != "iteration")
            for row in iterations.iter_rows(named=True) if row["kind"] != "other"
        )
    end_s = max(float(line.rows[-1, 0]) for line in lines)
    picture = trace_picture("Power of " + (run.label or run.id), lines, marks, end_s, spans).svg()
    parts = enumerate(trace.partition_by("uuid", maintain_order=True))
    more = [GpuTrace(number, f"GPU {number}", part) for number, part in parts]
    return picture + conditions(more, start_s, start_s + end_s)


def comparison_picture(runs: Sequence[Measurement], traces: Sequence[pl.DataFrame | None]) -> str:
    """The energies of two runs with their errors, and their power over the seconds since each began."""
    now_s = time.time()
    if runs[0].label == runs[1].label:
        runs = [replace(run, label=f"{run.label} {letter}") for letter, run in zip("AB", runs, strict=True)]
    picture = Picture(describe_comparison(runs[0], runs[1]))
    names = [f"{run.label or run.id}, {when(run.started_unix_s, now_s)}" for run in runs]
    pens = [Pen(colour(number), 1.4) for number in range(2)]
    picture.legend(zip(names, pens, strict=True))
    basis = comparison_basis(runs)
    if basis.costs:
        picture.y += 22
        high = max(cost.energy_j + cost.energy_half_j for cost in basis.costs)
        frame = picture.frame(54, (0.0, 1.06 * high or 1.0), (0.0, 2.0))
        frame.name("Energy (J)")
        for number, (energy, error, *_) in enumerate(basis.costs):
            frame.boxes([(0.0, energy, (1.2 - number, 1.8 - number))], pens[number].ink, opacity=0.6)
            frame.errors(energy, 1.5 - number, error, None, Pen(width=1.5))
        frame.below(f"joules{basis.per_unit}")
        picture.down(54, 44)
    known = zip(pens, traces, strict=True)
    lines = [(pen, line.rows) for pen, trace in known if trace is not None for line in _lines(trace)]
    if lines:
        end_s, high_w = np.nanmax(np.concatenate([rows[:, :2] for _, rows in lines]), axis=0)
        picture.y += 18
        frame = picture.frame(150, (0.0, max(float(end_s), 1e-3)), (0.0, 1.06 * float(high_w) or 1.0))
        frame.axes("Power (W)")
        for pen, rows in lines:
            frame.line(rows[:, 0], rows[:, 1], pen)
        frame.below("seconds since each began")
        picture.down(150)
    return picture.svg()


def _lines(trace: pl.DataFrame) -> list[TraceLine]:
    """A stored trace's GPUs, seconds since its start, gaps marked."""
    start_s = float(trace["time_s"].min() or 0.0)  # type: ignore[arg-type]
    lines = []
    for number, (_, part) in enumerate(trace.group_by("uuid", maintain_order=True)):
        series = Series(1.0)
        series.append(rows_of(part.drop_nulls("time_s"), start_s))
        if len(series.rows):
            lines.append(TraceLine(number, f"GPU {number}", series.rows, series.seconds))
    return lines
