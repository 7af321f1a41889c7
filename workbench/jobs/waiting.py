"""Who waits for whom in a job whose GPUs synchronise in every iteration, from their power.

Synchronisation makes all iterations equally long, so their times do not show the slow GPU. Power does: a GPU
that waits needs less than one that works, even where it polls in a kernel. The end of a GPU's work is its
arrival at the synchronisation. It waits from then until the last GPU arrives. `power_shape` finds the
arrivals. See docs/explanation/jobs.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import polars as pl

from ..records import THROTTLE_REASONS, throttle_names
from .power_shape import (
    DELAY_S,
    AlignedGpus,
    Array,
    Fits,
    IterationClock,
    PowerReadings,
    Shape,
    alignments,
    shares,
)
from .records import GpuWait, JobWaiting

LEAST_ITERATIONS = 20
WORTH = 0.01  # of an iteration; a GPU that costs less is no straggler


class _Arrival(NamedTuple):
    """When one GPU ends its work, without the delay of its sensor."""

    at_s: float  # after the iterations' ends
    error_s: float  # its standard error
    jitter_s: float  # standard deviation between iterations
    late_s: float  # by which its work begins after that of the shape
    level: float  # of the power after it, in parts of the mean


def _arrival(clock: IterationClock, readings: PowerReadings, shape: Shape, falls: Array) -> _Arrival:
    passed, changes = clock.passed(readings, shape.edges_s)
    parts = np.column_stack([passed, np.ones(len(passed))]) @ shares(shape.mix)
    steps = shape.mix @ shape.levels
    steps = steps - np.roll(steps, 1)
    slopes = np.column_stack([parts, changes * steps @ shape.ways])
    left = readings.power - parts @ shape.levels
    levels, shifts = len(shape.levels), shape.ways.shape[1]
    noise = float(left @ left) / (len(clock.ends_s) - 7)
    prior = np.diag(np.r_[np.zeros(levels + shifts - 1), noise / DELAY_S**2])
    prior[:levels, :levels] = noise * shape.unlike
    bread = np.linalg.pinv(slopes.T @ slopes + prior)
    # Errors that are near in time are alike, and so are those at the same part of the iteration, where the
    # shape is wrong: the sandwich estimate for two ways (Cameron, Gelbach and Miller, 2011).
    middle_s = (readings.end_s + readings.begin_s) / 2 - shape.moved_s[-1]
    after_s = middle_s - clock.ends_s[np.searchsorted(clock.ends_s, middle_s) - 1]
    scores, meat = slopes * left[:, None], prior * noise
    for order in (np.arange(len(left)), np.argsort(after_s)):
        parts = np.array([part.sum(axis=0) for part in np.array_split(scores[order], 20)])
        meat = meat + parts.T @ parts * 20 / 19
    errors = bread @ meat @ bread
    # Where a fall has several steps, its middle.
    parts = steps[falls] / steps[falls].sum()
    edges_s = shape.edges_s[falls]
    edges_s = edges_s[0] + (edges_s - edges_s[0]) % clock.period_s
    way = parts @ shape.ways[falls]
    way[-1] -= 1.0
    at_s = float(parts @ edges_s - shape.moved_s[-1])
    error_s = math.sqrt(float(way @ errors[levels:, levels:] @ way))
    late_s = float(shape.moved_s[0] - shape.moved_s[-1]) if shifts == 4 else 0.0
    level = float(shape.mix[falls[-1]] @ shape.levels)
    return _Arrival(at_s, error_s, abs(float(shape.moved_s[-2])), late_s, level)


def _readings(trace: pl.DataFrame, clock: IterationClock, window_s: float | None) -> PowerReadings | None:
    """Readings within iterations of usual length; None: there are too few."""
    known = trace.drop_nulls(["time_s", "power_w"])
    rows = known.select("time_s", "power_w", "power_tick_s").to_numpy()
    power_w, ticks_s = rows[:, 1], rows[:, 2]
    fresh = np.append(True, np.diff(power_w) != 0)
    if np.isfinite(ticks_s[fresh]).sum() >= 100:
        fresh &= np.isfinite(ticks_s)
    else:  # a refresh was between two looks
        ticks_s = rows[:, 0] - np.diff(rows[:, 0], prepend=rows[:1, 0]) / 2
    tick_s = ticks_s[fresh]
    if len(tick_s) < 100:
        return None
    power_w = power_w[fresh]
    window_s = window_s or float(np.median(np.diff(tick_s)))
    begin_s, ends_s = tick_s - window_s, clock.ends_s[3:-3]
    lengths_s = np.diff(ends_s)
    odd = np.concatenate([[True], np.abs(lengths_s / clock.period_s - 1) > 0.25, [True]])
    number = np.searchsorted(ends_s, np.array([begin_s, tick_s]))
    usual = ~odd[np.minimum(number, len(ends_s))].any(axis=0)
    if usual.sum() < 100:
        return None
    mean_w = float(power_w[usual].mean())
    return PowerReadings(begin_s[usual], tick_s[usual], power_w[usual] / mean_w, mean_w)


def waiting(
    traces: Mapping[str, pl.DataFrame], ends_s: Sequence[float], *,
    indices: Mapping[str, int] | None = None, windows_s: Mapping[str, float] | None = None,
) -> JobWaiting:
    """Who waits for whom in the mean iteration of a job whose GPUs synchronise in every iteration.

    Args:
        traces: Of each GPU of the job (`trace.SCHEMA`), by UUID.
        ends_s: Ends of the iterations on the traces' clock. They may all be early or late by the same time.
        indices: Of the GPUs, by UUID; their order where there are none.
        windows_s: Over which a power reading is a mean (`Device.power_window_s`), by UUID; where there is
            none, the time between two readings.
    """
    ends = np.unique(np.asarray(ends_s, dtype=np.float64))
    times_s = [trace["time_s"] for trace in traces.values() if trace.height]
    if len(times_s) < max(len(traces), 2):
        return JobWaiting(0.0, 0.0, 0, reason="the power of a second GPU was not recorded")
    ends = ends[(ends >= max(each[0] for each in times_s)) & (ends <= min(each[-1] for each in times_s))]
    if (count := max(len(ends) - 1, 0)) < LEAST_ITERATIONS:
        why = f"{count} iterations are too few; {LEAST_ITERATIONS} are needed"
        return JobWaiting(0.0, 0.0, 0, reason=why)
    clock = IterationClock(ends)
    lengths_s = np.diff(ends)
    lengths_s = lengths_s[np.abs(lengths_s / clock.period_s - 1) <= 0.25]
    whole = JobWaiting(
        float(lengths_s.mean()), 1.96 * float(lengths_s.std()) / math.sqrt(len(lengths_s)), len(lengths_s),
        tuple(
            GpuWait(uuid, (indices or {}).get(uuid, place), sm_clock_mhz=_mean(trace, "sm_clock_mhz", ends))
            for place, (uuid, trace) in enumerate(traces.items())
        ),
    )
    known = {uuid: _readings(trace, clock, (windows_s or {}).get(uuid)) for uuid, trace in traces.items()}
    readings = [each for each in known.values() if each is not None]
    if len(readings) < len(traces):
        return replace(whole, reason="a GPU has fewer than 100 power readings")
    if any(_hidden_s(each, clock) > 2 * WORTH * clock.period_s for each in readings):
        return replace(whole, reason=(
            "the iterations are in phase with the power sensor, which always shows the same parts of them"
        ))
    busy = np.array([_mean(trace, "utilisation", ends) or math.nan for trace in traces.values()])
    fits = [Fits.of(clock, each) for each in readings]
    found = alignments(fits, busy)
    if not found:
        return replace(whole, reason="the power of waiting GPUs does not differ from that of working ones")
    for gpu, fit, shape in zip(whole.gpus, fits, found[0].gpus, strict=True):
        if shape.score >= fit.flat:
            return replace(whole, reason=f"the power of GPU {gpu.index} does not follow the iterations")
    arrivals = [
        [_arrival(clock, *each, aligned.falls) for each in zip(readings, aligned.gpus, strict=True)]
        for aligned in found
    ]
    weights = [math.exp((found[0].score - aligned.score) / 4) for aligned in found]
    return _result(whole, clock, readings, found[0], arrivals, weights, traces)


def _hidden_s(readings: PowerReadings, clock: IterationClock) -> float:
    """The longest part of an iteration within which no window of the sensor begins, ends or lies."""
    since_s = np.sort(readings.end_s - clock.ends_s[np.searchsorted(clock.ends_s, readings.end_s) - 1])
    gap_s = max(float(np.diff(since_s).max()), clock.period_s - float(since_s[-1] - since_s[0]))
    return gap_s - float(np.median(readings.end_s - readings.begin_s))


def _mean(trace: pl.DataFrame, column: str, ends_s: Array) -> float | None:
    values = trace.filter(pl.col("time_s").is_between(ends_s[0], ends_s[-1]))[column].drop_nulls()
    return float(values.mean()) if len(values) else None  # type: ignore[arg-type]


def _result(
    whole: JobWaiting, clock: IterationClock, readings: Sequence[PowerReadings], aligned: AlignedGpus,
    tried: Sequence[Sequence[_Arrival]], weights: Sequence[float], traces: Mapping[str, pl.DataFrame],
) -> JobWaiting:
    arrivals = tried[0]
    moments_s, errors_s = (np.array([[getattr(each, name) for each in row] for row in tried])
                           for name in ("at_s", "error_s"))
    at_s, error_s = moments_s[0], errors_s[0]
    # Other shapes show what the choice of the shape decides.
    for other_s, weight in zip(moments_s[1:] - at_s, weights[1:], strict=True):
        error_s = np.hypot(error_s, weight * (other_s - np.median(other_s)))
    # The last GPU is not the same one in every iteration. Its mean arrival is later than any mean arrival.
    rng = np.random.default_rng(0)
    random = rng.standard_normal((400, len(at_s))) * np.median([each.jitter_s for each in arrivals])

    def barrier_s(moments_s: Array) -> Array:
        return np.asarray((moments_s[..., None, :] + random).max(axis=-1).mean(axis=-1))

    last_s = float(barrier_s(at_s))
    wait_s = np.maximum(last_s - at_s, 0.0)
    possible_s = at_s + error_s * rng.standard_normal((100, len(at_s)))
    # Errors of a shape come from its edges, some five: 95 % of a t distribution with 4 degrees of freedom.
    half_s = 2.8 * (barrier_s(possible_s)[:, None] - possible_s).std(axis=0)
    fitted_s = float(aligned.shape.edges_s[aligned.falls[-1] + 1]) if aligned.synchronous else at_s.max()
    half_s = np.hypot(half_s, last_s - fitted_s)
    after, slow = np.argsort(at_s)[-2:]
    lead_s, lead_error_s = float(at_s[slow] - at_s[after]), math.hypot(error_s[slow], error_s[after])
    # The probability that this GPU is the last one, over all shapes.
    next_s = np.where(np.arange(len(at_s)) == slow, -np.inf, moments_s)
    least_s = moments_s[:, slow] - next_s.max(axis=1)
    spread_s = np.hypot(errors_s[:, slow], errors_s[np.arange(len(tried)), next_s.argmax(axis=1)])
    last = [(1 + math.erf(each / math.sqrt(2))) / 2 for each in least_s / spread_s] @ np.array(weights)
    straggler, cost_s, reason = None, None, "the latest arrivals differ by less than their uncertainty"
    if last > 0.995 * sum(weights) and lead_s > WORTH * clock.period_s:
        as_next_s = at_s.copy()
        as_next_s[slow] = at_s[after]
        straggler, cost_s = whole.gpus[slow].uuid, last_s - float(barrier_s(as_next_s))
        reason = _cause(whole.gpus, int(slow), arrivals, lead_s, traces[straggler])
    elif 2.6 * lead_error_s > 3 * WORTH * clock.period_s:
        return replace(whole, reason=(
            f"the arrivals of GPUs differ by less than their uncertainty of {2000 * lead_error_s:.2g} ms"
        ))
    begin_s = min(float(gpu.edges_s[aligned.rise] - gpu.moved_s[-1]) for gpu in aligned.gpus)
    span_s = (last_s - begin_s) % clock.period_s
    gpus = []
    for number, gpu in enumerate(whole.gpus):
        shape, mean_w = aligned.gpus[number], readings[number].mean_w
        middle_s = begin_s + (np.arange(48) + 0.5) / 48 * clock.period_s + shape.moved_s[-1]
        since_s = (middle_s - shape.edges_s[0]) % clock.period_s
        last = np.searchsorted(shape.edges_s - shape.edges_s[0], since_s) - 1
        power_w = mean_w * (shape.mix @ shape.levels)[last]
        gpus.append(replace(
            gpu, work_s=float(span_s - wait_s[number]), wait_s=float(wait_s[number]),
            wait_uncertainty_s=float(half_s[number]), power_w=tuple(map(float, power_w)),
            wait_energy_j=float(wait_s[number]) * mean_w * arrivals[number].level,
        ))
    return replace(whole, gpus=tuple(gpus), straggler=straggler, cost_s=cost_s, known=True, reason=reason)


def _cause(
    gpus: Sequence[GpuWait], slow: int, arrivals: Sequence[_Arrival], lead_s: float, trace: pl.DataFrame,
) -> str:
    """Why a GPU is late, in one sentence."""
    who, clock_mhz = f"GPU {gpus[slow].index}", gpus[slow].sm_clock_mhz
    others_mhz = [gpu.sm_clock_mhz for gpu in gpus if gpu is not gpus[slow] and gpu.sm_clock_mhz is not None]
    if clock_mhz is not None and others_mhz and clock_mhz < 0.99 * float(np.median(others_mhz)):
        bits = trace["throttle"].drop_nulls()
        often = sum(bit for bit in THROTTLE_REASONS if len(bits) and (bits.to_numpy() & bit > 0).mean() > 0.5)
        limits = ", ".join(throttle_names(often))
        return (f"{who} runs at {clock_mhz:,.0f} MHz, the others at {float(np.median(others_mhz)):,.0f} MHz"
                + (f": {limits}" if limits else ""))
    begun_s = np.array([each.late_s for each in arrivals])
    late_s = float(begun_s[slow] - np.median(np.delete(begun_s, slow)))
    if late_s > lead_s / 2:
        return f"{who} begins its work {1000 * late_s:.2g} ms after the others"
    return f"{who} needs {1000 * lead_s:.2g} ms more than the others for the same work, at the same clock"
