"""Iterations of a training as a frame: start, time and energy of each, and their means.

    iterations(trace, periods)     from the trace and a period (`detect.find_periods`)
    from_marks(marks)              from the steps that the program reports
    per_iteration(frame)           the means with their uncertainty
    compare(periods, marked)       comparison of both

A frame covers an interval without holes or overlaps, so its energies add up to the interval's. Columns:
`iteration` (its number; null for other rows), `kind` ("iteration", "pause" between two, "other" at both ends,
or the program's phase: "evaluation", "checkpoint"), `start_s`, `end_s` (the trace's clock), `time_s`,
`energy_j`, `mean_power_w`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import polars as pl
from scipy.special import ndtri, stdtr, stdtrit

from .._html import HtmlFacts
from ..errors import UsageError
from ..records import DetectedPeriod, IterationSummary, LevelCost, Marks, Periods, Phase
from .estimators.alignment import Alignment, align
from .fold import uniform_grid
from .setting_parts import SettingPart, moved_by_itself
from .vote import same

Array = np.ndarray
# The joules between the given moments, one fewer than these; None if unknown.
EnergiesBetween = Callable[[Array], Array | None]

SCHEMA = pl.Schema({
    "iteration": pl.Int64, "kind": pl.String, "start_s": pl.Float64, "end_s": pl.Float64,
    "time_s": pl.Float64, "energy_j": pl.Float64, "mean_power_w": pl.Float64,
})
SLIVER_S = 1e-6
# A marked iteration contains other work if it takes LONG times as long as all except a RARE share of them.
LONG, RARE = 2.0, 0.2
# Correlations of neighbours that the interval of a mean allows for, -0.999 to 0.999, and the logarithm of
# their reference prior, (1 - rho^2)^-1/2 (Berger and Yang, 1994), times the grid's spacing, 1 - rho^2.
RHO = np.tanh(np.linspace(-3.8, 3.8, 121))
LOG_PRIOR = 0.5 * np.log1p(-(RHO**2))
# Evenly spaced: at least this share of the distances is within this tolerance of the usual one.
MOSTLY, UNEVEN = 0.75, 0.25
EDGE = 0.3  # of an iteration: tolerance for the length of the first or last one
CLOCK_NOTE = "the clock changed inside"
SHOWN = 4  # settings that a note names
ALIKE = 0.75  # share of the match under the surest setting that is required under another one
SHORTER = (2, 3, 4)  # fractions of an iteration that may be another job's iteration
CLEARLY = 0.3  # difference of a match that shows another shape


class Span(NamedTuple):
    """An interval of one kind; several pieces around an evaluation may have an iteration's `number`."""

    kind: str
    start_s: float
    end_s: float
    number: int | None = None


@dataclass(frozen=True)
class SegmentedIterations(HtmlFacts):
    """The iterations of a window: a frame, their summary, and its trace's periods (None: not searched).

    `parts` are those of the window under each setting: one if no setting changed inside, none if that is
    unknown.
    """

    frame: pl.DataFrame
    summary: IterationSummary
    periods: Periods | None = None
    parts: tuple[SettingPart, ...] = ()

    def since(self, start_s: float) -> SegmentedIterations:
        """The same with all times since a moment."""
        periods = self.periods and replace(self.periods, levels=tuple(
            replace(level, phase_s=level.phase_s - start_s) for level in self.periods.levels))
        parts = (replace(part, start_s=part.start_s - start_s, end_s=part.end_s - start_s)
                 for part in self.parts)
        frame = self.frame.with_columns(pl.col("start_s", "end_s") - start_s)
        return replace(self, frame=frame, periods=periods, parts=tuple(parts))


# detection


def _framed(spans: Sequence[Span], energies: EnergiesBetween | None) -> pl.DataFrame:
    """Adjacent spans as a frame."""
    starts, ends = np.array([span.start_s for span in spans]), np.array([span.end_s for span in spans])
    energy = energies(np.append(starts, ends[-1])) if energies is not None else None
    lengths = ends - starts
    power_w = None if energy is None else energy / np.where(lengths > 0, lengths, np.nan)
    return pl.DataFrame({
        "iteration": [span.number for span in spans], "kind": [span.kind for span in spans],
        "start_s": starts, "end_s": ends, "time_s": lengths, "energy_j": energy, "mean_power_w": power_w,
    }, schema=SCHEMA)


def iterations(
    trace: pl.DataFrame, periods: Periods, *, energies: EnergiesBetween | None = None,
    within_s: tuple[float, float] | None = None, parts: Sequence[SettingPart] = (),
) -> pl.DataFrame:
    """The iterations of a trace, one row each, and other rows in between; only "other" without a period.

    Args:
        trace: As recorded (`trace.SCHEMA`); columns other than time and power may be missing.
        periods: Periods of this trace or of a part of it.
        energies: Known energies; without, energies are null.
        within_s: Interval of the rows; None: the whole trace.
        parts: Parts with different settings: each is cut by its own periods, if it has any.

    Raises:
        UsageError: The trace has fewer than two power readings.
    """
    known = _known(trace)
    if known.height < 2:
        raise UsageError(
            f"iterations are detected in power readings, and this trace has {known.height}; at least 2 are "
            "needed"
        )
    start_s, end_s = within_s or (float(known["time_s"][0]), float(known["time_s"][-1]))
    level = _followed(periods)
    inner: list[Span] = []
    if any(part.periods is not None for part in parts):
        inner = _through(known, parts)
    elif level is not None:
        inner = _spans(_aligned(known.filter(pl.col("time_s").is_between(start_s, end_s)), level))
    return _framed(_tiled(inner, start_s, end_s), energies)


def with_periods(
    trace: pl.DataFrame, whole: Periods, parts: Sequence[SettingPart]
) -> tuple[Periods, tuple[SettingPart, ...]]:
    """Periods for a trace in which settings changed: one for all of it, or one per part.

    A part without a sure period uses that of the surest part, or its own if that agrees, provided that its
    iterations match.

    Args:
        trace: Trace of the whole window.
        whole: Periods of all of it.
        parts: Parts with the periods of each.

    Returns:
        The surest periods, and the parts. The parts have the periods to follow, or none if one period is to
            be followed through all of them.
    """
    single = tuple(replace(part, periods=None) for part in parts)
    asked = [
        part for part in parts if part.detected and part.periods is not None and part.periods.main_sure
    ]
    itself = moved_by_itself(parts)
    if itself:
        whole = replace(whole, notes=(*whole.notes, CLOCK_NOTE))
    if not asked:
        return whole, single
    surest = max(asked, key=lambda part: (_standing(part.periods), part.end_s - part.start_s))
    best = surest.periods
    assert best is not None
    assert best.main is not None
    known = _known(trace)
    least = ALIKE * _match(known, surest, best.main)
    detected = {part.number: part for part in parts if part.detected} | {surest.number: surest}
    chosen = [
        replace(part, periods=_periods_in(known, part, surest, detected.get(part.number, part), least))
        for part in parts
    ]
    if _standing(best) < _standing(whole):
        return whole, single
    takes = {part.number: f"{level.period_s:.3g} s at {part.setting}" for part in chosen
             if (level := _followed(part.periods)) is not None}
    named = ", ".join(list(takes.values())[:SHOWN])
    note = CLOCK_NOTE if itself else f"iteration length by setting: {named}"
    return replace(best, notes=(*best.notes, note)), tuple(chosen)


def _standing(periods: Periods | None) -> int:
    """Degree of certainty: none, of the period, or also of its role."""
    return 0 if periods is None else periods.main_sure + periods.sure


def _followed(periods: Periods | None) -> DetectedPeriod | None:
    if periods is None:
        return None
    return periods.main if periods.main_sure else periods.iteration or periods.main


def _periods_in(
    known: pl.DataFrame, part: SettingPart, surest: SettingPart, detected: SettingPart, least: float
) -> Periods | None:
    """The periods to follow in a part: its own if they are sure. Otherwise those of the surest part, or of
    the part of the same setting with a detection, by the better match of its iterations.

    Args:
        known: The trace.
        part: The part to cut.
        surest: The part with the surest period.
        detected: The part of the same setting in which a period was searched.
        least: Lowest match that counts.
    """
    best, own = surest.periods, part.periods
    assert best is not None
    assert best.main is not None
    level, mine = best.main, _followed(own)
    fits = mine is not None and part.may_take(mine.period_s, surest, level.period_s)
    if part is surest or (part.detected and own is not None and own.main_sure and fits):
        return own
    candidates: list[tuple[Periods, DetectedPeriod, SettingPart]] = []
    # With a constant clock the work may have changed: an evaluation must not be counted.
    if part.number == surest.number or part.other_limit(surest):
        candidates.append((best, level, surest))
    if part.number != surest.number and own is not None and mine is not None and fits:
        renamed = replace(level, period_s=mine.period_s, phase_s=mine.phase_s)
        sure = own.main_sure
        candidates.append((own if sure else replace(best, levels=(renamed,)), mine, detected))
    matches = [_match(known, part, each) for _, each, _ in candidates]
    if max(matches, default=0.0) < least:
        return None
    periods, found, where = candidates[int(np.argmax(matches))]
    return None if _shorter_job(known, part, where, found, least) else periods


def _shorter_job(
    known: pl.DataFrame, part: SettingPart, where: SettingPart, level: DetectedPeriod, least: float
) -> bool:
    """Whether another job runs in a part. Iterations of half or a third of the length then fit it as well,
    and better than they fit the part `where` they were found.
    """
    for share in SHORTER:
        short = replace(level, period_s=level.period_s / share)
        match = _match(known, part, short)
        if match >= least and match > _match(known, where, short) + CLEARLY:
            return True
    return False


def _match(known: pl.DataFrame, part: SettingPart, level: DetectedPeriod) -> float:
    """Match of a level's iterations with one shape, at most 1, as a mean over the part."""
    rows = known.filter(pl.col("time_s").is_between(part.start_s, part.end_s))
    if rows.height < 2:
        return 0.0
    return _aligned(rows, level, ruled=False).match * level.period_s / (part.end_s - part.start_s)


def _through(known: pl.DataFrame, parts: Sequence[SettingPart]) -> list[Span]:
    """The iterations of parts, each cut by its own period, numbered consecutively; "other" if a part has
    none.
    """
    spans: list[Span] = []
    for part in parts:
        level = _followed(part.periods)
        rows = known.filter(pl.col("time_s").is_between(part.start_s, part.end_s))
        if level is None or rows.height < 2:
            spans.append(Span("other", part.start_s, part.end_s))
        else:  # may be idle time
            spans += _spans(_aligned(rows, level, ruled=False))
    return [span if span.number is None else span._replace(number=k) for k, span in enumerate(spans)]


def _spans(found: Alignment) -> list[Span]:
    pairs = zip(found.start_s.tolist(), found.end_s.tolist(), strict=True)
    return [Span("iteration", *pair_s, number) for number, pair_s in enumerate(pairs)]


def _known(trace: pl.DataFrame) -> pl.DataFrame:
    """The finite readings of a trace for the detection of iterations, each moment once and in order."""
    read = ("time_s", "power_w", "utilisation", "memory_utilisation")
    known = trace.select(name for name in read if name in trace.columns)
    known = known.filter(pl.col("power_w").is_finite() & pl.col("time_s").is_finite())
    return known.unique("time_s", keep="first").sort("time_s")


def _aligned(known: pl.DataFrame, level: DetectedPeriod, *, ruled: bool = True) -> Alignment:
    """Iterations aligned by the power, or by a utilisation with a clearer shape; else `ruled`."""
    times = known["time_s"].to_numpy()
    best: Alignment | None = None
    for name in ("power_w", "utilisation", "memory_utilisation"):
        if name not in known.columns or known[name].null_count() > 0.2 * known.height:
            continue
        values = known[name].interpolate().fill_null(strategy="backward").fill_null(strategy="forward")
        found = align(times, values.to_numpy(), level.period_s, level.phase_s)
        if best is None or found.match > best.match:
            best = found
    if best is None or len(best.start_s) or not ruled:
        assert best is not None
        return best
    # Too few similar readings: evenly spaced iterations of this period are the best estimate.
    ruler = uniform_grid(known, level)
    return Alignment(ruler["start_s"].to_numpy(), ruler["end_s"].to_numpy(), 0.0)


def _tiled(inner: Sequence[Span], start_s: float, end_s: float) -> list[Span]:
    """Spans cut to an interval, in order, with rows for the gaps; iterations numbered from 0."""
    trained = [span for span in inner if span.number is not None]
    begun_s, done_s = (trained[0].start_s, trained[-1].end_s) if trained else (end_s, start_s)
    spans: list[Span] = []
    numbers: dict[int, int] = {}
    at_s = start_s
    for span in inner:
        begin_s, until_s = max(span.start_s, at_s), min(span.end_s, end_s)
        if until_s - begin_s <= SLIVER_S:
            continue
        if begin_s - at_s > SLIVER_S:
            spans.append(Span("pause" if begun_s < begin_s <= done_s else "other", at_s, begin_s))
        number = None if span.number is None else numbers.setdefault(span.number, len(numbers))
        spans.append(Span(span.kind, spans[-1].end_s if spans else at_s, until_s, number))
        at_s = until_s
    if end_s - at_s > SLIVER_S or not spans:
        spans.append(Span("other", at_s, end_s))
    else:
        spans[-1] = spans[-1]._replace(end_s=end_s)
    return spans


# reported steps


def from_marks(
    marks: Marks, *, energies: EnergiesBetween | None = None, within_s: tuple[float, float] | None = None
) -> pl.DataFrame:
    """The iterations between reported steps, as a frame like that of `iterations`.

    Args:
        marks: Steps and phases of a window. Time in a phase belongs to no iteration. A few iterations that
            are far longer than usual, outside of phases, become rows of kind "long iteration".
        energies: Known energies; without, energies are null.
        within_s: Interval of the rows; None: from the first step to the last.

    Raises:
        UsageError: Fewer than two steps, or steps that are not in ascending order.
    """
    if marks.count < 1:
        raise UsageError(f"an iteration needs two steps, and there are {sum(map(len, marks.runs))}; "
                         "call step() once per iteration")
    borders = [at for run in marks.runs for at in run]
    if any(not before <= after for before, after in itertools.pairwise(borders)):
        raise UsageError(
            "steps must be in ascending order; sort them, and use the trace's clock (seconds)"
        )
    start_s, end_s = within_s or (borders[0], borders[-1])
    runs = [list(run) for run in marks.runs]
    if marks.edges:
        _with_edges(runs, marks.phases, start_s, end_s)
    inner: list[Span] = []
    named = sorted(marks.phases, key=lambda phase: phase.start_s)
    number = next_phase = 0
    for run in runs:
        for begin_s, until_s in itertools.pairwise(run):
            at_s = begin_s
            while next_phase < len(named) and named[next_phase].start_s < until_s:
                kind, from_s, to_s = named[next_phase]
                if from_s > at_s:  # a phase between two runs begins before this one
                    inner.append(Span("iteration", at_s, from_s, number))
                inner.append(Span(kind, from_s, to_s))
                at_s = max(at_s, to_s)
                next_phase += 1
            if until_s > at_s:
                inner.append(Span("iteration", at_s, until_s, number))
            number += 1
    inner.extend(Span(*phase) for phase in named[next_phase:])
    return _framed(_tiled(_without_long(inner), start_s, end_s), energies)


def _without_long(inner: list[Span]) -> list[Span]:
    """Spans in which a few iterations many times as long (unreported checkpoints, compilations) are separate
    rows.
    """
    lengths: dict[int, float] = {}
    for span in inner:
        if span.number is not None:
            lengths[span.number] = lengths.get(span.number, 0.0) + span.end_s - span.start_s
    usual_s = sorted(lengths.values())[-1 - int(RARE * len(lengths))]
    long = {number for number, length in lengths.items() if length > LONG * usual_s}
    return [Span("long iteration", *span[1:3]) if span.number in long else span for span in inner]


def _with_edges(runs: list[list[float]], phases: Sequence[Phase], start_s: float, end_s: float) -> None:
    """Add an iteration of usual length before the first step or after the last (`step` ends the loop)."""
    lengths = np.diff(runs[0])
    usual_s = float(np.median(lengths))
    spent = [sum(each.end_s - each.start_s for each in phases if each.end_s <= runs[0][0]),
             sum(each.end_s - each.start_s for each in phases if each.start_s >= runs[0][-1])]
    head_s, tail_s = runs[0][0] - start_s - spent[0], end_s - runs[0][-1] - spent[1]
    if abs(head_s - usual_s) <= min(abs(tail_s - usual_s), EDGE * usual_s):
        runs[0].insert(0, start_s)
    elif abs(tail_s - usual_s) <= EDGE * usual_s:
        runs[0].append(end_s)


# means


def per_iteration(
    frame: pl.DataFrame, *, source: str = "detected", periods: Periods | None = None,
    own_error_j: float | None = None, parts: Sequence[SettingPart] = (),
) -> IterationSummary:
    """Mean time (s) and energy (J) of the iterations of a frame, with 95 % intervals (`mean_interval`).

    Args:
        frame: Result of `iterations` or `from_marks`.
        source: "detected" or "marks".
        periods: Periods of the trace. They add levels without rows, and the certainty. If a period is sure,
            but not that it is the iteration, `levels` has its cycle and no iteration.
        own_error_j: 95 % half width of the energy of all rows together; shared out over the iterations.
        parts: Parts with different settings: `levels` has the cost of iterations under each setting.
    """
    grouped = frame.filter(pl.col("iteration").is_not_null()).group_by("iteration", maintain_order=True)
    single = grouped.agg(pl.col("time_s", "energy_j").sum(),
                         pl.col("energy_j").is_null().any().alias("unknown"))
    count = single.height
    if not count:
        reason = periods.reason if periods is not None else ""
        return IterationSummary(0, sure=False, reason=reason, levels=_costs(frame, periods))
    detected = periods if source == "detected" else None
    guessed = detected is not None and not detected.sure
    if detected is not None and detected.main_sure and guessed:
        costs = _costs(frame, None)
        cycles = (replace(each, name="cycle") if each.name == "iteration" else each for each in costs)
        levels = (*cycles, *_by_setting(frame, parts, "cycle"))
        return IterationSummary(0, sure=False, reason=detected.reason, levels=levels)
    seconds, half_s = mean_interval(single["time_s"].to_numpy())
    energy_j = half_j = None
    if not single["unknown"].any():
        energy_j, spread_j = mean_interval(single["energy_j"].to_numpy())
        if spread_j is not None or own_error_j is not None:
            half_j = math.hypot(spread_j or 0.0, (own_error_j or 0.0) / count)
    if detected is not None and detected.iteration is not None:
        # Evenly spaced iterations share one error: the period's own interval, not the spread of lengths.
        ruled = count <= 3 or float(np.ptp(single["time_s"].to_numpy()[1:-1])) < 1e-6 * seconds
        own_s = detected.iteration.uncertainty_s / (1.0 if ruled else math.sqrt(count))
        half_s = max(half_s or 0.0, own_s)
        if ruled and energy_j is not None:
            half_j = math.hypot(half_j or 0.0, own_s / seconds * energy_j)
    # Cycles and micro-steps have the length of one of the settings.
    several = len({part.number for part in parts}) > 1
    costs = (*_costs(frame, None if several else periods), *_by_setting(frame, parts, "iteration"))
    reason = detected.reason if detected is not None and guessed else ""
    return IterationSummary(
        count, seconds, half_s, energy_j, half_j, source, costs, sure=not guessed, reason=reason)


def mean_interval(values: Array) -> tuple[float, float | None]:
    """The mean of consecutive values and the half width of its 95 % interval; None for a single value.

    Neighbours may be correlated, and few values do not show how much. The interval is the Bayesian one for a
    stationary AR(1) process: Student's t for each correlation in `RHO`, weighted by the exact likelihood of
    that correlation (Zellner and Tiao, "Bayesian Analysis of the Regression Model With Autocorrelated
    Errors", 1964). Fewer than 15 values hardly exclude a high correlation, so their interval is wide. The
    likelihood is that of normal scores, so that one slow value at an end is no sign of correlation.
    """
    count, mean = len(values), float(np.mean(values))
    if count < 2:
        return mean, None
    _, places, ties = np.unique(values, return_inverse=True, return_counts=True)
    if len(ties) < 2:
        return mean, 0.0
    scores = ndtri((np.cumsum(ties) - 0.5 * ties)[places] / count)
    weight = 2 + (count - 2) * (1 - RHO)
    log_odds = (LOG_PRIOR + 0.5 * np.log((1 + RHO) / weight)
                - 0.5 * (count - 1) * np.log(_residual(scores - np.mean(scores), weight)[1]))
    odds = np.exp(log_odds - log_odds.max())
    shift, squares = _residual(values - mean, weight)
    scale = np.sqrt(squares / ((count - 1) * (1 - RHO) * weight))
    low, high = 0.0, float(np.max(np.abs(shift) + stdtrit(count - 1, 0.975) * scale))
    for _ in range(30):  # bisection
        half = 0.5 * (low + high)
        inside = stdtr(count - 1, (half - shift) / scale) - stdtr(count - 1, (-half - shift) / scale)
        low, high = (half, high) if odds @ inside < 0.95 * odds.sum() else (low, half)
    return mean, high


def _residual(rest: Array, weight: Array) -> tuple[Array, Array]:
    """Shift of the mean of `rest` (0) for each correlation by least squares, and the weighted sum of squares.
    The inverse of an AR(1) correlation matrix has three diagonals.
    """
    shift = RHO * (rest[0] + rest[-1]) / weight
    squares = ((rest @ rest) * (1 + RHO**2) - 2 * RHO * (rest[1:] @ rest[:-1])
               - RHO**2 * (rest[0] ** 2 + rest[-1] ** 2) - (1 - RHO) * weight * shift**2)
    return shift, squares


def _costs(frame: pl.DataFrame, periods: Periods | None) -> tuple[LevelCost, ...]:
    """Time and energy of each kind of row, and of the levels that cut across rows."""
    total = frame.filter(pl.col("iteration").is_not_null())["iteration"].n_unique()
    number, energy = pl.col("iteration"), pl.col("energy_j")
    numbered = pl.when(number.is_null()).then(pl.int_range(pl.len())).otherwise(number)
    kinds = frame.group_by("kind", maintain_order=True).agg(
        numbered.n_unique().alias("count"), pl.col("time_s").sum(),
        pl.when(energy.is_null().any()).then(None).otherwise(energy.sum()).alias("energy_j"),
    )
    costs = []
    for kind, count, time_s, energy_j in kinds.rows():
        every = None if kind in ("iteration", "other") else _every(frame, kind)
        costs.append(_cost(kind, count, time_s, energy_j, every))
    costs.sort(key=lambda cost: (cost.name != "iteration", cost.name == "other", -cost.time_s))
    if periods is None or not total:
        return tuple(costs)
    inner = frame.filter(pl.col("kind") != "other")
    whole_s = float(inner["time_s"].sum())
    whole_j = None if inner["energy_j"].null_count() else float(inner["energy_j"].sum())
    if (small := periods.micro_step) is not None and (first := costs[0]).name == "iteration":
        parts = max(round(first.each_s / small.period_s), 1)
        costs.append(_cost("micro-step", total * parts, first.time_s, first.energy_j, 1 / parts))
    if (cycle := periods.cycle) is not None and whole_s >= 0.9 * cycle.period_s:
        count = int(whole_s / cycle.period_s + 0.1)
        share = count * cycle.period_s / whole_s  # an incomplete cycle does not count
        energy_j = None if whole_j is None else share * whole_j
        costs.append(_cost("cycle", count, share * whole_s, energy_j, share * total / count))
    return tuple(costs)


def _by_setting(frame: pl.DataFrame, parts: Sequence[SettingPart], name: str) -> list[LevelCost]:
    """Time and energy of the iterations that began under each setting, which add up to all iterations'. None
    if a clock moved by itself and iteration times did not change.
    """
    begun = frame.filter(pl.col("iteration").is_not_null())
    at = np.searchsorted([part.start_s for part in parts], begun["start_s"].to_numpy(), side="right") - 1
    costs, lengths = [], []
    for number, setting in {part.number: part.setting for part in parts}.items():
        here = begun.filter([parts[max(each, 0)].number == number for each in at.tolist()])
        if here.height:
            energy_j = None if here["energy_j"].null_count() else float(here["energy_j"].sum())
            single_s = here.group_by("iteration", maintain_order=True).agg(pl.col("time_s").sum())["time_s"]
            costs.append(_cost(f"{name} at {setting}", len(single_s), float(single_s.sum()), energy_j, None))
            lengths.append(mean_interval(single_s.to_numpy()))
    if len(costs) < 2 or (moved_by_itself(parts) and not _differ(lengths)):
        return []
    return costs


def _differ(means: Sequence[tuple[float, float | None]]) -> bool:
    """Whether two means with their errors differ significantly."""
    return any(
        abs(one - other) > math.hypot(half, other_half)
        for (one, half), (other, other_half) in itertools.combinations(means, 2)
        if half is not None and other_half is not None
    )


def _every(frame: pl.DataFrame, kind: str) -> float | None:
    """Number of iterations between two rows of a kind; None unless three or more are evenly spaced."""
    number = pl.col("iteration")
    before = frame.select((number.is_first_distinct() & number.is_not_null()).cum_sum())["iteration"]
    apart = before.filter(frame["kind"] == kind).diff().drop_nulls().to_numpy()
    if len(apart) < 2:
        return None
    usual = float(np.median(apart))
    even = np.abs(apart - usual) <= max(1.0, UNEVEN * usual)
    side_by_side = kind == "long iteration" and usual < 1  # one interval
    if side_by_side or np.mean(even) < MOSTLY:
        return None
    return usual + (kind == "long iteration")


def _cost(name: str, count: int, time_s: float, energy_j: float | None, every: float | None) -> LevelCost:
    each_j = None if energy_j is None else energy_j / count
    return LevelCost(name, count, time_s, energy_j, time_s / count, each_j, every)


# comparison of both


def compare(detected: Periods, marked: IterationSummary) -> str:
    """A message that compares the trace's own period with the steps'; empty if either is missing."""
    if marked.time_s is None:
        return ""
    level = detected.iteration
    if level is None:
        return f"the power trace alone shows no iteration ({detected.reason or 'no period'})"
    ratio = level.period_s / marked.time_s
    found = f"the power trace alone shows {level.period_s:.4g} s" + ("" if detected.sure else ", unsure")
    if same(ratio, 1.0):
        return f"{found}: {100 * abs(ratio - 1):.1f} % off the reported steps"
    whole, part = round(ratio), round(1 / ratio)
    if whole >= 2 and same(ratio, whole):
        return f"{found}: {whole} marked iterations"
    if part >= 2 and same(ratio * part, 1.0):
        return f"{found}: 1/{part} of a reported iteration"
    return f"{found}, and the reported steps disagree"
