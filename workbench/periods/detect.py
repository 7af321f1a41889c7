"""Iteration periods from a power trace, without touching the training code.

    periods = find_periods(trace)
    periods.iteration.seconds, periods.iteration.confidence, periods.reason

Several estimators that fail differently propose candidates: normalised autocorrelation (McLeod and Wyvill,
2005) of power and utilisations over windows of several lengths and between pauses, and an interpolated
spectrum. Boosted trees trained on simulated jobs tell the iteration and other levels (`estimators.ranker`);
folding in chunks makes it precise (`estimators.precise`). GPOEO's detector (Wang et al., TPDS 2022), which
this replaces, has one spectrum, one period, and even samples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from ..errors import UsageError
from ..records import Level, Periods
from .estimators import ranker
from .estimators.candidates import SignalView
from .estimators.features import NAMES, describe
from .estimators.precise import Precise, precise
from .estimators.signals import PARAMS as SIGNAL_PARAMS
from .estimators.signals import SignalGrid, on_grid


@dataclass(frozen=True, slots=True)
class PeriodDetectorParams:
    """Tuned constants of `find_periods`.

    `sure`, `likely`, `together`, `beats` and `sine` were chosen with the 400 traces of `benchmarks.periods`
    in view, `dissent` by what came true there (docs/periods.md); the others by hand.
    """

    least_readings: int = 20
    sure: float = 0.8  # confidence in the iteration from which it may be relied upon at once
    likely: float = 0.6  # from here on, if the trace without its beginning and without its end say the same,
    together: float = 0.65  # and all three are so sure on average
    left_out: float = 0.12  # of the trace
    # of the confidence remains where they do not: of such answers 0.44 came true, of agreeing ones 0.75
    dissent: float = 0.65
    level: float = 0.6  # confidence from which another level is named
    guess: float = 0.12  # below this nothing is named at all
    flat: float = 0.004  # relative spread of the power below which there is nothing to see
    flat_utilisation: float = 0.01  # standard deviation of utilisations below which there is nothing either
    same: float = 0.03  # periods nearer than this share are one
    neighbour: float = 1.15  # times a period, within which a rival is its neighbour
    beats: float = 3.5  # in the shortest periods that the sensor can show: where a sine may be a beat
    sine: float = 0.94  # share of a rhythm's variance in its fundamental
    witnessed: float = 0.5  # correlation in a utilisation from which a beat is out of the question


PARAMS = PeriodDetectorParams()
MOST_EMPTY = 200_000  # places of a grid without a reading, which take memory all the same
_READ = ("power_w", "utilisation", "memory_utilisation")


def find_periods(trace: pl.DataFrame) -> Periods:
    """The periods of a training job in a power trace: micro-step, iteration (optimizer step), cycle.

    A cycle is many iterations and an evaluation or a checkpoint.

    Args:
        trace: (n, >= 2) frame with `time_s` and `power_w`, and `utilisation`, `memory_utilisation` (0..1)
            where they are known, as in `trace.SCHEMA`. Uneven and missing samples are fine; rows without
            power, with negative power or a repeated time are left out.

    Returns:
        Levels, shortest first, each with its uncertainty, confidence and phase; or none, with the reason.

    Raises:
        UsageError: a column is missing, or is no number.
    """
    time_s, columns, notes = _readings(trace)
    if len(time_s) < PARAMS.least_readings:
        least = PARAMS.least_readings
        return Periods(reason=f"too short: {len(time_s)} readings, at least {least} are needed", notes=notes)
    if all(np.ptp(values) <= 1e-6 * np.abs(values).max() for values in columns.values()):
        reason = f"flat: every reading is {columns['power_w'][0]:.4g} W"
        return Periods(reason=reason, longer_s=0.0, notes=notes)
    span_s, step_s = time_s[-1] - time_s[0], float(np.median(np.diff(time_s)))
    if span_s / step_s > MOST_EMPTY + 10 * len(time_s):
        apart = f"{len(time_s)} readings, most of them {step_s:.3g} s apart, over {span_s:.3g} s"
        reason = f"too sparse: {apart}; leave out those of another time"
        return Periods(reason=reason, notes=notes)
    grid = on_grid(time_s, columns)
    if grid.count < PARAMS.least_readings:
        reason = f"the sensor refreshed {grid.count} times, at least {PARAMS.least_readings} are needed"
        return Periods(reason=f"too short: {reason}", notes=notes)
    if (why := _flat(grid)) != "":
        return Periods(reason=why, longer_s=0.0, notes=notes)
    periods_s, features, views = describe(grid)
    if not len(periods_s):
        return Periods(reason=_nothing(grid), longer_s=None, notes=notes)
    iteration, level = ranker.shipped()(periods_s, features)
    best = int(np.argmax(iteration))
    sure = bool(iteration[best] >= PARAMS.sure)
    if PARAMS.likely <= iteration[best] < PARAMS.sure:
        parts = (PARAMS.left_out, 1.0), (0.0, 1.0 - PARAMS.left_out)
        others = [_opinion(time_s, columns, part) for part in parts]
        agreed = all(abs(math.log(period_s / periods_s[best])) < PARAMS.same for period_s, _ in others)
        sure = agreed and (float(iteration[best]) + sum(score for _, score in others)) / 3 >= PARAMS.together
        iteration[best] *= 1.0 if agreed else PARAMS.dissent
    return _decide(grid, views, periods_s, features, iteration, level, sure, best, notes)


def _opinion(time_s: Any, columns: dict[str, Any], part: tuple[float, float]) -> tuple[float, float]:
    """The best period of a part of the trace, and the confidence in it; (infinity, 0) where there is none."""
    first, last = (time_s[0] + share * (time_s[-1] - time_s[0]) for share in part)
    inside = (time_s >= first) & (time_s <= last)
    if inside.sum() < PARAMS.least_readings or np.ptp(columns["power_w"][inside]) == 0:
        return math.inf, 0.0
    part_of = {name: values[inside] for name, values in columns.items()}
    periods_s, features, _ = describe(on_grid(time_s[inside], part_of))
    if not len(periods_s):
        return math.inf, 0.0
    iteration, _ = ranker.shipped()(periods_s, features)
    best = int(np.argmax(iteration))
    return float(periods_s[best]), float(iteration[best])


def _readings(trace: pl.DataFrame) -> tuple[Any, dict[str, Any], tuple[str, ...]]:
    if not isinstance(trace, pl.DataFrame):
        raise UsageError("periods are found in a frame with time_s and power_w, not in "
                         f"{type(trace).__name__}; workbench.trace_of gives that of a measurement, "
                         "workbench.read_log those of a log")
    for name in ("time_s", "power_w"):
        if name not in trace.columns:
            raise UsageError("a trace needs the columns time_s and power_w; this one has "
                             f"{', '.join(trace.columns) or 'none'}. workbench.read_log turns files of "
                             "nvidia-smi and DCGM into traces")
        if not trace.schema[name].is_numeric():
            raise UsageError(f"the column {name} must hold numbers, not {trace.schema[name]}")
    present = [name for name in _READ if name in trace.columns and trace.schema[name].is_numeric()]
    table = {name: trace[name].cast(pl.Float64).to_numpy() for name in ("time_s", *present)}
    notes = []
    good = np.isfinite(table["time_s"]) & np.isfinite(table["power_w"])
    if (lost := int((~good).sum())) > 0:
        notes.append(f"{lost} rows without time or power left out")
    below = good & (np.where(good, table["power_w"], 0.0) < 0)
    if below.any():
        notes.append(f"{int(below.sum())} rows with negative power left out")
    table = {name: values[good & ~below] for name, values in table.items()}
    steps = np.diff(table["time_s"])
    if len(steps) and steps.min() <= 0:
        first = np.unique(table["time_s"], return_index=True)[1]  # sorted, the first of equals
        if (steps < 0).any():
            notes.append("rows were out of order and have been sorted")
        if (twice := len(table["time_s"]) - len(first)) > 0:
            notes.append(f"{twice} rows with a repeated time left out")
        table = {name: values[first] for name, values in table.items()}
    time_s = table.pop("time_s")
    columns = {"power_w": table["power_w"]}
    for name in present[1:]:
        known = np.isfinite(table[name])
        if known.all():
            columns[name] = table[name]
        elif known.mean() > 0.9:
            columns[name] = np.interp(time_s, time_s[known], table[name][known])
    return time_s, columns, tuple(notes)


def _flat(grid: SignalGrid) -> str:
    power = grid.signals[0]
    others = all(signal.sd < PARAMS.flat_utilisation for signal in grid.signals[1:])
    if power.sd < PARAMS.flat * max(power.centre, 1e-9) and others:
        return f"flat: power stays within {power.sd:.2g} W of {power.centre:.4g} W"
    return ""


def _nothing(grid: SignalGrid) -> str:
    limit_s = min(signal.shortest_s for signal in grid.signals if signal.sd > 0)
    if grid.seconds < 2.5 * limit_s:
        limits = f"and this sensor shows nothing below {limit_s:.3g} s"
        return f"too short: {grid.seconds:.3g} s of trace, {limits}"
    return (f"aperiodic: no rhythm between {limit_s:.2g} s, the shortest that this sensor can show, and "
            f"{grid.seconds / 2.2:.3g} s")


def _decide(
    grid: SignalGrid, views: list[SignalView], periods_s: Any, features: Any, iteration: Any, level: Any,
    sure: bool, best: int, notes: tuple[str, ...],
) -> Periods:
    """Name the levels, and say how sure that is."""
    if iteration[best] < PARAMS.guess and level.max() < PARAMS.level:
        return Periods(reason=_nothing(grid), longer_s=_longer(grid, periods_s, iteration), notes=notes)
    named = [(best, "iteration", float(iteration[best]))]
    for name, kin in (
        ("micro-step", periods_s < periods_s[best] / PARAMS.neighbour),
        ("cycle", periods_s > periods_s[best] * PARAMS.neighbour),
    ):
        if kin.any():
            other = int(np.argmax(np.where(kin, level, -1.0)))
            if level[other] >= PARAMS.level:
                named.append((other, name, float(level[other])))
    levels, moved = [], 0.0
    for k, name, confidence in sorted(named, key=lambda one: float(periods_s[one[0]])):
        found = precisely(views, grid, float(periods_s[k]))
        levels.append(_level(found, grid, name, confidence))
        if name == "iteration":
            moved = found.moves
    if moved > 0.02:
        notes = (*notes, f"the period changes by {100 * moved:.0f} % on the way")
    if any(signal.weights.min() == 0 for signal in grid.signals):
        notes = (*notes, "there are gaps in the trace")
    alias = _may_be_a_beat(grid, float(periods_s[best]), dict(zip(NAMES, features[best], strict=True)))
    sure = sure and not alias
    periods = Periods(tuple(levels), sure, "", 0.0 if sure else _longer(grid, periods_s, iteration), notes)
    if sure:
        return periods
    return replace(periods, reason=alias or _doubt(grid, periods_s, iteration, level, best))


def _may_be_a_beat(grid: SignalGrid, period_s: float, seen: dict[str, float]) -> str:
    """Whether something faster than the sensor may have made a rhythm, in words.

    A beat with the sensor's refresh keeps the fundamental only: a sine. Iterations have an edge somewhere,
    unless they too are near the limit: then a utilisation must show the rhythm as well.
    """
    limit_s = SIGNAL_PARAMS.refreshes * max(grid.refresh_s, grid.poll_s)
    if period_s > PARAMS.beats * limit_s or not seen["power_w:pure"] >= PARAMS.sine:
        return ""
    # NaN where a utilisation cannot show such a period: no witness.
    if any(seen[f"{name}:x1"] >= PARAMS.witnessed for name in _READ[1:]):
        return ""
    return (f"aliasing suspected: {period_s:.3g} s may be the beat of something faster than {limit_s:.2g} s, "
            "the shortest that this sensor can show")


def precisely(views: list[SignalView], grid: SignalGrid, period_s: float) -> Precise:
    """A period made precise, by the signal that explains the period best; power where they are alike."""
    found = [
        (precise(view.signal, grid.step_s, period_s), 0.1 * (view.signal.name == "power_w")) for view in views
        if view.signal.name in _READ and view.signal.sd > 0 and period_s >= 0.9 * view.signal.shortest_s
    ]
    best = max(found, key=lambda one: one[0].explained + one[1])[0]
    power = found[0][0] if views[0].signal.sd > 0 else best
    return replace(best, explained=power.explained, boundary=power.boundary)


def _level(found: Precise, grid: SignalGrid, name: str, confidence: float) -> Level:
    uncertainty_s = found.period_s * ranker.shipped().uncertainty(found.doubts(grid.step_s, grid.seconds))
    phase_s = grid.start_s + found.boundary * grid.step_s
    explained = float(np.clip(found.explained, 0.0, 1.0))
    return Level(name, found.period_s, uncertainty_s, confidence, phase_s, explained)


def _longer(grid: SignalGrid, periods_s: Any, iteration: Any) -> float | None:
    """Seconds of trace that are missing for twelve of the likeliest periods; None where none are."""
    likely_s = float(periods_s[int(np.argmax(iteration))])
    missing_s = 12 * likely_s - grid.seconds
    return float(missing_s) if missing_s > 0 else None


def _doubt(grid: SignalGrid, periods_s: Any, iteration: Any, level: Any, best: int) -> str:
    period_s = float(periods_s[best])
    others = np.abs(np.log(periods_s / period_s)) > math.log(PARAMS.neighbour)
    rival = int(np.argmax(np.where(others, np.maximum(iteration, 0.5 * level), -1.0)))
    if grid.seconds < 5 * period_s:
        count = grid.seconds / period_s
        return f"too short: {period_s:.3g} s fits, but only {count:.1f} such periods were seen"
    if others.any() and max(iteration[rival], level[rival]) > 0.5 * iteration[best]:
        first, second = sorted((period_s, float(periods_s[rival])))
        return f"not sure which of {first:.3g} s and {second:.3g} s is the iteration"
    return f"aperiodic: {period_s:.3g} s comes back, but not regularly enough"
