"""Iteration periods from a power trace, without touching the training code.

    periods = find_periods(trace)
    periods.iteration.period_s, periods.iteration.confidence, periods.reason

Several estimators with different weaknesses propose candidates: normalised autocorrelation (McLeod and
Wyvill, 2005) of power and utilisations over windows of several lengths and between pauses, and an
interpolated spectrum. Boosted trees, trained on simulated jobs, identify the iteration and other levels
(`estimators.ranker`). Folding in chunks makes the period precise (`estimators.precise`). This replaces
GPOEO's detector (Wang et al., TPDS 2022), which has one spectrum, one period, and even samples.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl

from ..errors import UsageError, checked, pip_line, type_name
from ..records import DetectedPeriod, Periods
from .estimators import ranker
from .estimators.features import describe
from .estimators.precise import Precise, precise
from .estimators.ranker import NEIGHBOUR_RATIO, Roles
from .estimators.signals import SignalGrid, on_grid
from .estimators.undersampling import faster_s as faster_s_of

# Tuned constants of `find_periods`.
#
# `MAIN_SURE` and `ROLE_SURE` were chosen on generated jobs of some families and scored on others. The rest
# were set manually.
LEAST_READINGS = 20
MAIN_SURE = 0.87  # confidence from which a period counts as real,
FAR_SURE = 0.8  # the same for one so many times as long as the shortest visible period,
FAR_RATIO = 6.0  # because sensor artefacts of faster periods are mostly shorter than this,
MANY_PERIODS = 12.0  # if so many of its periods were observed: few arise by chance
ROLE_SURE = 0.72  # and then confidence that it is the iteration,
CYCLE_SURE = 0.8  # or a cycle of iterations that are not visible
LEVEL_SURE = 0.6  # confidence from which another level is named
LEAST_SURE = 0.12  # below this no level is named
# relative spread of the power, and standard deviation of utilisations, below which a signal counts as
# flat
FLAT_SPREAD = 0.004
SUSPECTED = "aliasing suspected"
_HIDDEN = "too fast for this sensor"
MOST_EMPTY = 200_000  # grid points without a reading, which also need memory
_READ = ("power_w", "utilisation", "memory_utilisation")


@checked
def find_periods(trace: pl.DataFrame) -> Periods:
    """The periods of a training job in a power trace: micro-step, iteration (optimizer step), cycle.

    A cycle is many iterations and an evaluation or a checkpoint.

    Args:
        trace: (n, >= 2) frame with `time_s` and `power_w`, and `utilisation`, `memory_utilisation` (0..1)
            where they are known, as in `trace.SCHEMA`. Samples may be uneven or missing. Rows without power,
            with negative power or a repeated time are removed.

    Returns:
        Levels, shortest first, each with its uncertainty, confidence and phase. Without a level, the reason.

    Raises:
        UsageError: A column is missing, or is not numeric.
    """
    time_s, columns, notes = _readings(trace)
    if len(time_s) < LEAST_READINGS:
        least = LEAST_READINGS
        return Periods(reason=f"too short: {len(time_s)} readings, at least {least} are needed", notes=notes)
    if all(np.ptp(values) <= 1e-6 * np.abs(values).max() for values in columns.values()):
        reason = f"flat: every reading is {columns['power_w'][0]:.4g} W"
        return Periods(reason=reason, longer_s=0.0, notes=notes)
    span_s, step_s = time_s[-1] - time_s[0], float(np.median(np.diff(time_s)))
    if span_s / step_s > MOST_EMPTY + 10 * len(time_s):
        apart = f"{len(time_s)} readings, most of them {step_s:.3g} s apart, over {span_s:.3g} s"
        reason = f"too sparse: {apart}; remove those of another time"
        return Periods(reason=reason, notes=notes)
    grid = on_grid(time_s, columns)
    if grid.count < LEAST_READINGS:
        reason = f"the sensor refreshed {grid.count} times, at least {LEAST_READINGS} are needed"
        return Periods(reason=f"too short: {reason}", notes=notes)
    if (why := _flat(grid)) != "":
        return Periods(reason=why, longer_s=0.0, notes=notes)
    periods_s, features = describe(grid)
    if not len(periods_s):
        return Periods(reason=_nothing(grid), longer_s=None, notes=notes)
    try:
        scores = ranker.shipped()(periods_s, features)
    except ModuleNotFoundError as error:
        return Periods(reason=pip_line(error), longer_s=0.0, notes=notes)
    found = _decide(grid, periods_s, scores, notes)
    return _carried(found, time_s, columns["power_w"])


def _carried(found: Periods, time_s: Any, watts: Any) -> Periods:
    """The same where the readings separate its period from a faster one; otherwise a guess with a reason.
    """
    level = found.main
    if level is None or not (found.sure or found.main_sure):
        return found
    faster_s = faster_s_of(time_s, watts, level.period_s)
    if faster_s is None:
        return found
    pace_s = float(np.median(np.diff(time_s)))
    return found.doubted(
        f"{SUSPECTED}: readings {pace_s:.3g} s apart fit {level.period_s:.3g} s and {faster_s:.3g} s alike;"
        " record every 0.1 s", longer_s=None)


def _readings(trace: pl.DataFrame) -> tuple[Any, dict[str, Any], tuple[str, ...]]:
    if not isinstance(trace, pl.DataFrame):
        raise UsageError(f"expected a Polars DataFrame with time_s and power_w, got {type_name(trace)}. "
                         "workbench.trace_of() and workbench.read_log() return one")
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
        notes.append(f"{lost} rows without time or power removed")
    below = good & (np.where(good, table["power_w"], 0.0) < 0)
    if below.any():
        notes.append(f"{int(below.sum())} rows with negative power removed")
    table = {name: values[good & ~below] for name, values in table.items()}
    steps = np.diff(table["time_s"])
    if len(steps) and steps.min() <= 0:
        first = np.unique(table["time_s"], return_index=True)[1]  # sorted, the first of equals
        if (steps < 0).any():
            notes.append("rows were out of order and have been sorted")
        if (twice := len(table["time_s"]) - len(first)) > 0:
            notes.append(f"{twice} rows with a repeated time removed")
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
    others = all(signal.sd < FLAT_SPREAD for signal in grid.signals[1:])
    if power.sd < FLAT_SPREAD * max(power.centre, 1e-9) and others:
        return f"flat: power stays within {power.sd:.2g} W of {power.centre:.4g} W"
    return ""


def _nothing(grid: SignalGrid) -> str:
    limit_s = _shortest_s(grid)
    if grid.seconds < 2.5 * limit_s:
        limits = f"and this sensor shows nothing below {limit_s:.3g} s"
        return f"too short: {grid.seconds:.3g} s of trace, {limits}"
    return (f"aperiodic: no period between {limit_s:.2g} s, the shortest that this sensor can show, and "
            f"{grid.seconds / 2.2:.3g} s")


def _decide(
    grid: SignalGrid, periods_s: Any, roles: Roles, notes: tuple[str, ...]
) -> Periods:
    """Name the levels, with the confidence in the period and in its role."""
    named = _named(periods_s, roles)
    if not named:
        return Periods(reason=_nothing(grid), longer_s=_longer(grid, periods_s, roles), notes=notes)
    levels, moved = [], 0.0
    for k, name in sorted(named.items(), key=lambda one: float(periods_s[one[0]])):
        found = precisely(grid, float(periods_s[k]))
        levels.append(_level(found, grid, name, roles.confidence(k, name), float(roles.any_role[k])))
        if len(named) == 1 or name == "iteration":
            moved = found.moves
    if moved > 0.02:
        notes = (*notes, f"the period changes by {100 * moved:.0f} % within the trace")
    if any(signal.weights.min() == 0 for signal in grid.signals):
        notes = (*notes, "there are gaps in the trace")
    periods = Periods(tuple(levels), notes=notes)
    iteration, main = periods.iteration, periods.main
    assert main is not None
    there = _is_there(main, grid)
    sure = iteration is not None and _is_there(iteration, grid) and iteration.role >= ROLE_SURE
    hidden = not sure and there and main.name == "cycle" and main.role >= CYCLE_SURE
    longer_s = 0.0 if sure else _longer(grid, periods_s, roles)
    periods = replace(periods, sure=sure, steady=there, cycle_sure=hidden, longer_s=longer_s)
    return periods if sure else replace(periods, reason=_doubt(periods, grid))


def confirmed(periods: Periods) -> Periods:
    """The same, where a second sensor has shown that the period is not a beat: only its role may be doubted.
    """
    level = periods.main
    if level is None:
        return periods
    sure = level.name == "iteration" and level.role >= ROLE_SURE
    reason = "" if sure else f"a period of {level.period_s:.3g} s; not sure that it is the iteration"
    return replace(periods, steady=True, sure=sure, reason=reason)


def _is_there(level: DetectedPeriod, grid: SignalGrid) -> bool:
    """Whether a period counts as real."""
    far = level.period_s >= FAR_RATIO * _shortest_s(grid) and grid.seconds >= MANY_PERIODS * level.period_s
    return level.period_confidence >= (FAR_SURE if far else MAIN_SURE)


def _shortest_s(grid: SignalGrid) -> float:
    """The shortest period (s) that some signal can show."""
    return min(signal.shortest_s for signal in grid.signals if signal.sd > 0)


def _named(periods_s: Any, roles: Roles) -> dict[int, str]:
    """Numbers of the candidates to name, and their roles; at most one of each."""
    top, iteration = int(np.argmax(roles.any_role)), roles.iteration
    named: dict[int, str] = {}
    if roles.any_role[top] >= LEVEL_SURE and roles.cycle[top] >= CYCLE_SURE * roles.any_role[top]:
        # One period has one role: where the likeliest period is a cycle, another may be the iteration.
        named[top] = "cycle"
        iteration = np.where(np.arange(len(iteration)) == top, -1.0, iteration)
    best = int(np.argmax(iteration))
    if iteration[best] < LEAST_SURE:
        return named or ({top: roles.of(top)} if roles.any_role[top] >= LEVEL_SURE else {})
    shorter, longer = (periods_s < periods_s[best] / NEIGHBOUR_RATIO,
                       periods_s > periods_s[best] * NEIGHBOUR_RATIO)
    named = {k: "micro-step" if shorter[k] else name for k, name in named.items()} | {best: "iteration"}
    for name, kin in (("micro-step", shorter), ("cycle", longer)):
        if kin.any() and name not in named.values():
            other = int(np.argmax(np.where(kin, roles.any_role, -1.0)))
            if roles.any_role[other] >= LEVEL_SURE:
                named[other] = name
    return named


def precisely(grid: SignalGrid, period_s: float) -> Precise:
    """A period made precise by the power, or by a utilisation where the power cannot show it."""
    shown = [each for each in grid.signals if each.sd > 0 and period_s >= 0.9 * each.shortest_s]
    return precise(shown[0], grid.step_s, period_s)


def _level(found: Precise, grid: SignalGrid, name: str, confidence: float, any_role: float) -> DetectedPeriod:
    uncertainty_s = found.period_s * ranker.shipped().uncertainty(found.doubts(grid.step_s, grid.seconds))
    phase_s = grid.start_s + found.boundary * grid.step_s
    explained = float(np.clip(found.explained, 0.0, 1.0))
    return DetectedPeriod(name, found.period_s, uncertainty_s, confidence, phase_s, explained, any_role)


def _longer(grid: SignalGrid, periods_s: Any, roles: Roles) -> float | None:
    """Missing seconds of trace until it covers twelve of the likeliest periods; None if none are missing."""
    likely_s = float(periods_s[int(np.argmax(roles.iteration))])
    missing_s = MANY_PERIODS * likely_s - grid.seconds
    return float(missing_s) if missing_s > 0 else None


def _doubt(periods: Periods, grid: SignalGrid) -> str:
    """Why the iteration is uncertain, as text."""
    main = periods.main
    assert main is not None
    if periods.cycle_sure:
        return (f"a period of {main.period_s:.3g} s; the iterations inside it are "
                f"{_HIDDEN if periods.iteration is None else 'not sure'}")
    level = periods.iteration or main
    if grid.seconds < 5 * level.period_s:
        count = grid.seconds / level.period_s
        return f"too short: {level.period_s:.3g} s fits, but the trace has only {count:.1f} such periods"
    limit_s = _shortest_s(grid)
    if periods.main_sure:
        return f"a period of {main.period_s:.3g} s; not sure that it is the iteration"
    if level.period_s < FAR_RATIO * limit_s:
        return (f"{SUSPECTED}: {level.period_s:.3g} s may be the beat of a period below "
                f"{limit_s:.2g} s, the shortest that this sensor can show")
    return f"aperiodic: {level.period_s:.3g} s repeats, but not regularly enough"
