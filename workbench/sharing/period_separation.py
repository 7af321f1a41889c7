"""Iterations of jobs that make no marks, from the power: alone by the period detector, next to others by the
harmonics of that period.

Next to others a job's frequency is at or a little below its value alone; the weights of its harmonics alone
identify its comb. Unclear periods are reported as unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from ..errors import MeasurementError
from ..periods import harmonics
from ..periods.detect import find_periods
from ..periods.vote import same

Array = np.ndarray
MOST_STRETCH = 2.5
CLEAR = 6.0  # times the usual score of a wrong period
WAY_OUT = (
    "call workbench.step() once per iteration in it, or use a callback of workbench.callbacks"
)


@dataclass(frozen=True)
class PeriodEstimate:
    """A period, its relative standard deviation, and the power of its harmonics relative to all of them."""

    seconds: float
    relative_error: float
    weights: tuple[float, ...]


def alone_period(trace: pl.DataFrame) -> PeriodEstimate:
    """The iteration of a job that had the GPU to itself. Raises MeasurementError where the power does not
    show it.
    """
    found = find_periods(trace)
    level = found.iteration
    if level is None or not found.sure:
        raise MeasurementError(
            f"its iterations do not show in the power ({found.reason or 'the detector is not sure'}); "
            f"{WAY_OUT}"
        )
    time_s, power_w = _readings(trace)
    tones = np.arange(1, harmonics.MOST + 1) / level.period_s
    strengths = _strength(time_s, power_w, tones)
    weights = tuple((strengths / strengths.sum()).tolist())
    return PeriodEstimate(level.period_s, level.uncertainty_s / 1.96 / level.period_s, weights)


def beside(trace: pl.DataFrame, alone: PeriodEstimate, label: str) -> PeriodEstimate:
    """The same job's iteration while others run. Raises MeasurementError where it cannot be separated from
    theirs.
    """
    time_s, power_w = _readings(trace)
    if len(time_s) < 20:
        raise MeasurementError(
            f"too few readings to find the iterations of {label} in; measure for longer (stage_s=...)"
        )
    span_s = float(time_s[-1] - time_s[0])
    # A comb of period T is as wide as T**2 / span; steps are an eighth of that.
    frequencies = np.arange(1.0 / (MOST_STRETCH * alone.seconds), 1.02 / alone.seconds, 0.125 / span_s)
    highest = 0.5 * (len(time_s) - 1) / span_s
    score = np.zeros(len(frequencies))
    for k, weight in enumerate(alone.weights, start=1):
        if weight > 0.02 and k / alone.seconds < highest:
            score += weight * _strength(time_s, power_w, k * frequencies)
    best = int(np.argmax(score))
    usual = float(np.median(score))
    apart = np.abs(frequencies - frequencies[best]) > 2.0 / span_s
    second = float(score[apart].max()) if apart.any() else 0.0
    if not score[best] > CLEAR * usual or not score[best] > 1.5 * second:
        raise MeasurementError(
            f"the iterations of {label} cannot be reported in the power that the jobs draw together; "
            f"{WAY_OUT}"
        )
    seconds = float(1.0 / frequencies[best])
    return PeriodEstimate(seconds, 0.25 * seconds / span_s, alone.weights)


def require_distinct(label: str, seconds: float, others: Sequence[tuple[str, float]]) -> None:
    """Raises MeasurementError where the period of another job, or a small multiple of it, was found for this
    one.

    Two jobs may well have one period; but a period that is faint is easily taken for a harmonic of one that
    is strong.
    """
    for name, period_s in others:
        ratio = max(seconds, period_s) / min(seconds, period_s)
        if ratio < 3.5 and same(ratio, round(ratio)):
            raise MeasurementError(
                f"the iterations of {label} cannot be separated from those of {name} in the power that they "
                f"draw "
                f"together; {WAY_OUT}"
            )


def _readings(trace: pl.DataFrame) -> tuple[Array, Array]:
    known = trace.select("time_s", "power_w").drop_nulls().unique("time_s", keep="first", maintain_order=True)
    time_s, power_w = known["time_s"].to_numpy().astype(float), known["power_w"].to_numpy().astype(float)
    changed = np.concatenate([[True], np.diff(power_w) != 0]) if len(power_w) else np.zeros(0, bool)
    return time_s[changed], power_w[changed]


def _strength(time_s: Array, power_w: Array, frequencies: Array) -> Array:
    """Share of the readings' variance that a sine of each frequency explains."""
    return np.asarray(1.0 - harmonics.unexplained(time_s, power_w, frequencies, [1]))
