"""From a measured window to its iterations: by the training's marks, else by the power trace."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import polars as pl

from .._processes import require_polars
from ..errors import MeasurementError, WorkbenchError
from ..periods.segment import (
    EnergiesBetween,
    SegmentedIterations,
    compare,
    from_marks,
    iterations,
    per_iteration,
    with_periods,
)
from ..periods.setting_parts import (
    SETTINGS,
    SettingPart,
    limits_differ,
    number_settings,
    setting_parts,
    unknown_part,
    whole_part,
)
from ..records import IterationSummary, Marks, Measurement, Periods, Window
from .energy_estimate import EnergyTimeline
from .recorder import as_rows, as_trace
from .sensor_updates import Floats

MOST_VOTES = 4  # GPUs whose traces are looked at
CHEAP_S = 3.0  # a shorter window is not kept waiting for a look at its trace, unless it has marks
MOST_SEARCHES = 2  # parts of one setting in which a period is looked for: the longest may have been idle
SEARCH_S = 180.0  # how much of a long trace is looked at; what is found there is followed through all of it


def count(
    window: Window, measurement: Measurement, timelines: Mapping[str, EnergyTimeline], *,
    detect_periods: bool | None = None,
) -> SegmentedIterations | None:
    """The iterations of a window, or None where they are not looked for.

    The period is that of the GPU with the most energy, or what most of them show, for each setting again
    where settings changed inside; energies are those of all measured GPUs together. The rows' energies add up
    to the measured energy.

    Args:
        window: Closed.
        measurement: Of this window; its GPUs are the ones that count.
        timelines: Followers of the GPUs, by UUID; empty if none were followed.
        detect_periods: True always, False never; None from 3 s on, or where there are marks.
    """
    assert window.end_s is not None
    marked = window.marks.count >= 1
    long_enough = window.end_s - window.start_s >= CHEAP_S
    if (
        detect_periods is False
        or not (detect_periods or marked or long_enough)
        or not (measurement.gpus or marked)
    ):
        return None
    require_polars()
    within_s = (window.start_s, window.end_s)
    gpus = sorted(measurement.gpus, key=lambda gpu: -(gpu.energy_j or 0.0))
    found_timelines = [timelines[gpu.uuid] for gpu in gpus if gpu.uuid in timelines]
    traces = (
        [trace_of(each, *within_s) for each in found_timelines[:MOST_VOTES]]
        if len(found_timelines) == len(gpus)
        else []
    )
    trace = traces[0] if traces else None
    shown = trace is not None and _readings(trace) >= 2
    periods, parts = None, tuple[SettingPart, ...]()
    if traces and (detect_periods or long_enough):
        periods = detect_all(traces, within_s)
        if marked:
            parts = setting_parts(traces, within_s)
        else:
            periods, parts = detect_in_parts(traces, within_s, periods)
            parts = parts or whole_part(traces, within_s)
    if marked:
        frame = from_marks(window.marks, energies=energies_of(found_timelines), within_s=within_s)
    elif trace is not None and shown:
        assert periods is not None
        frame = iterations(
            trace, periods, energies=energies_of(found_timelines), within_s=within_s, parts=parts
        )
    else:
        summary = IterationSummary(0, sure=False, reason="the power was not recorded")
        return SegmentedIterations(from_marks(Marks((within_s,)), within_s=within_s).clear(), summary)
    return _found(frame, "marks" if marked else "detected", periods, measurement.energy_uncertainty_j, parts)


def trace_of(timeline: EnergyTimeline, start_s: float, end_s: float, *, since_s: float = 0.0) -> pl.DataFrame:
    """The trace (`trace.SCHEMA`) of a window and of the half second around it, in seconds since a moment.

    Args:
        timeline: Samples of a GPU.
        start_s: Start of the window, on the clock of the samples.
        end_s: End of the window.
        since_s: The moment.
    """
    times = timeline.rows["time_s"]
    trace = as_trace(timeline.rows[(times >= start_s - 0.5) & (times <= end_s + 0.5)])
    return trace.with_columns(pl.col("time_s", "tick_s", "power_tick_s") - since_s)


def energies_of(found_timelines: Sequence[EnergyTimeline | pl.DataFrame]) -> EnergiesBetween:
    """Energy of GPUs together, from their timelines or traces."""
    timelines = [
        each if isinstance(each, EnergyTimeline) else EnergyTimeline(as_rows(each))
        for each in found_timelines
    ]

    def between(moments_s: Floats) -> Floats | None:
        if not timelines:
            return None
        energy_j = np.sum([timeline.energies_j(moments_s) for timeline in timelines], axis=0)
        return None if np.isnan(energy_j).any() else energy_j

    return between


def detect(trace: pl.DataFrame, within_s: tuple[float, float] | None = None) -> Periods:
    """The periods of (the last minutes of) a trace; a failure becomes a reason, never an error.
    """
    from ..periods.detect import find_periods
    from ..periods.online import aliasing

    start_s, end_s = within_s or (-math.inf, float(trace["time_s"].max() or 0.0))  # type: ignore[arg-type]
    part = trace.filter(pl.col("time_s").is_between(max(start_s, end_s - SEARCH_S), end_s))
    try:
        found = find_periods(part)
    except WorkbenchError as error:
        return Periods(reason=str(error))
    # A recorder's trace has the counter next to the reading: what is in one of them only is a beat.
    counted = {"energy_j", "tick_s", "power_tick_s"} <= set(part.columns)
    return aliasing.with_counter(found, as_rows(part)) if counted else found


def detect_all(traces: Sequence[pl.DataFrame], within_s: tuple[float, float] | None = None) -> Periods:
    """The periods of GPUs of one job, the busiest first; the others are asked where that one is not sure."""
    from ..periods.vote import vote

    found = detect(traces[0], within_s)
    if found.sure:
        return found
    return vote([found, *(detect(trace, within_s) for trace in traces[1:MOST_VOTES])])


def detect_in_parts(
    traces: Sequence[pl.DataFrame], within_s: tuple[float, float], whole: Periods
) -> tuple[Periods, tuple[SettingPart, ...]]:
    """The periods of a window and its parts where settings changed inside; see `segment.with_periods`."""
    parts = setting_parts(traces[:MOST_VOTES], within_s)
    if not parts or _readings(traces[0]) < 2:
        return whole, ()
    found: dict[int, tuple[SettingPart, Periods]] = {}
    asked_in = dict.fromkeys((part.number for part in parts), 0)
    for part in sorted(parts, key=lambda each: each.start_s - each.end_s):
        known = found.get(part.number)
        sure = known is not None and known[1].main_sure
        if sure or asked_in[part.number] == MOST_SEARCHES or part.end_s - part.start_s < CHEAP_S:
            continue
        asked_in[part.number] += 1
        found_timelines = detect_all(traces, (part.start_s, part.end_s))
        if known is None or found_timelines.main_sure:
            found[part.number] = part, found_timelines
    asked = []
    for part in parts:
        where, periods = found.get(part.number, (None, None))
        asked.append(replace(part, periods=periods, detected=part is where))
    return with_periods(traces[0], whole, asked)


def pooled(founds: Sequence[SegmentedIterations], measurements: Sequence[Measurement]) -> SegmentedIterations:
    """The iterations of several runs of one cell as one, numbered through."""
    if len(founds) == 1:
        return founds[0]
    frames, first = [], 0
    for found in founds:
        frames.append(found.frame.with_columns(pl.col("iteration") + first))
        first += found.frame["iteration"].drop_nulls().n_unique()
    source = "marks" if all(found.summary.source == "marks" for found in founds) else "detected"
    errors_j = [m.energy_uncertainty_j for m in measurements]
    known_j = [each for each in errors_j if each is not None]
    error_j = math.sqrt(sum(each**2 for each in known_j)) if len(known_j) == len(errors_j) else None
    found_timelines = [found.periods for found in founds if found.periods is not None]
    periods = max(found_timelines, key=lambda each: (each.sure, each.main_sure), default=None)
    parts = _parts_of(founds)
    return _found(pl.concat(frames), source, periods, error_j, parts)


def _parts_of(founds: Sequence[SegmentedIterations]) -> tuple[SettingPart, ...]:
    """The parts of several runs, distinguished again: settings may have changed inside some, or between
    them.
    """
    if not any(found.parts for found in founds):
        return ()
    parts: list[SettingPart] = []
    for found in founds:
        ends_s = found.frame.select(pl.col("start_s").min(), pl.col("end_s").max()).row(0)
        parts += found.parts or ([unknown_part(*ends_s)] if found.frame.height else [])
    changed = {name for part in parts for name in part.changed}
    known = [part for part in parts if part.limits_w]
    if limits_differ(known):
        changed.add("power_limit_w")
    return number_settings(parts, [name for name in SETTINGS if name in changed])


def from_stored(
    trace: pl.DataFrame, frame: pl.DataFrame | None = None, measurement: Measurement | None = None
) -> SegmentedIterations:
    """The iterations of a stored trace (`Store.trace`): as they were stored (`frame`), else found again. The
    periods are found again; what the `measurement` states about its iterations is not changed.

    Raises:
        MeasurementError: there is nothing in the trace to find them in.
    """
    parts = trace.partition_by("uuid") if "uuid" in trace.columns else [trace]
    parts.sort(key=lambda part: -float(part["power_w"].mean() or 0.0))  # type: ignore[arg-type]
    if not parts or _readings(parts[0]) < 2:
        raise MeasurementError(
            f"the trace has {trace.height} rows and too few power readings to find iterations in"
        )
    within_s = (parts[0]["time_s"].item(0), parts[0]["time_s"].item(-1))
    first_s, last_s = within_s
    if frame is not None and frame.height:  # of several runs only the last one's trace is kept
        first_s, last_s = frame.select(pl.col("start_s").min(), pl.col("end_s").max()).row(0)
    elif measurement is not None and first_s <= 0.0:  # earlier versions stored the device's times
        first_s, last_s = 0.0, measurement.time_s
    within_s = (max(first_s, within_s[0]), min(last_s, within_s[1]))
    if not within_s[0] <= within_s[1]:  # damaged
        raise MeasurementError("the stored trace and its measurement are not of the same time")
    summary = measurement.iterations if measurement is not None else None
    source = "detected" if summary is None else summary.source
    error_j = measurement.energy_uncertainty_j if measurement is not None else None
    periods, settings = detect_all(parts, within_s), tuple[SettingPart, ...]()
    if frame is None or source != "marks":
        periods, settings = detect_in_parts(parts, within_s, periods)
        settings = settings or whole_part(parts[:MOST_VOTES], within_s)
    if frame is None or not frame.height:
        frame = iterations(parts[0], periods, energies=energies_of(parts), within_s=within_s, parts=settings)
    return _found(frame, source, periods, error_j, settings, summary)


def _found(
    frame: pl.DataFrame, source: str, periods: Periods | None, error_j: float | None,
    parts: tuple[SettingPart, ...] = (), known: IterationSummary | None = None,
) -> SegmentedIterations:
    """Iterations with their summary (`known` where it was stored), whose period is that of the iterations."""
    summary = known or per_iteration(frame, source=source, periods=periods, own_error_j=error_j, parts=parts)
    mean_s = summary.time_s or summary.detected_s
    if source == "detected" and periods is not None and mean_s and len({part.number for part in parts}) < 2:
        half_s = summary.time_uncertainty_s
        periods = replace(periods, levels=tuple(
            replace(level, period_s=mean_s, uncertainty_s=half_s or level.uncertainty_s)
            if level.name == "iteration" else level for level in periods.levels))
    # a guess may be looked at in the frame; it is nothing to compare costs by
    if not summary.sure and summary.count:
        summary = IterationSummary(0, sure=False, reason=summary.reason, detected_s=summary.time_s)
    if source == "marks" and periods is not None and known is None:
        level = periods.iteration
        detected_s = level.period_s if level else None
        summary = replace(summary, detected_s=detected_s, check=compare(periods, summary))
    return SegmentedIterations(frame, summary, periods, tuple(replace(part, periods=None) for part in parts))


def _readings(trace: pl.DataFrame) -> int:
    return trace.height - trace["power_w"].null_count()
