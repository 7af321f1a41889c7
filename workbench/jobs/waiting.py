"""Which GPUs of a job wait for which: from the power of each GPU over the iterations of the job.

A data-parallel job synchronises in every iteration, so iterations take equally long on all GPUs. A GPU that
arrives early polls or blocks until the last one arrives, and draws less power meanwhile. All waiting ends at
the same moment, when the last GPU has arrived and the gradients are reduced. So the waiting is a dip of power
that ends on all GPUs together and begins on each at its own arrival. The last GPU has the shortest dip.

Power readings are means over the sensor's window. Their phases move through the iterations, so many readings
together show power over the mean iteration more finely than the sensor refreshes. It is their least-squares
deconvolution with a roughness penalty, whose weight is chosen by generalised cross-validation (Craven and
Wahba, Numer. Math. 31, 1979). Uncertainties are from a bootstrap over blocks of time (Künsch, Ann. Statist. 17, 1989).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ..records import throttle_names
from .records import GpuWait, JobWaiting

Floats = NDArray[np.float64]
# Windows of NVIDIA's power sensors (arXiv 2312.02741, table 2). The one that suits the readings best is taken.
WINDOWS_S = (0.01, 0.025, 0.05, 0.1, 1.0)
NAMED = 0.01  # of an iteration: a straggler costs at least so much
_BINS = 100  # of an iteration
_BLOCKS, _REPLICATES = 16, 40


@dataclass(frozen=True)
class _Readings:
    """Power readings of one GPU: (n,) means over a window that ends at a time, and at a phase: iterations
    since the first end, with fractions.
    """

    power_w: Floats
    phase: Floats
    time_s: Floats

    def shares(self, ends_s: Floats, window_s: float) -> Floats:
        """(n, _BINS) shares of each reading's window in each part of an iteration."""
        before = _phase(ends_s, self.time_s - window_s)
        edges = np.arange(_BINS + 1) / _BINS

        def passed(phase: Floats) -> Floats:
            return np.floor(phase)[:, None] * edges + np.minimum((phase % 1.0)[:, None], edges)

        shares = np.diff(passed(self.phase) - passed(before), axis=1)
        return np.asarray(shares / np.maximum(self.phase - before, 1e-9)[:, None])


class _Deconvolution:
    """Sums over blocks of time, from which the power of one GPU over an iteration is estimated."""

    def __init__(self, readings: _Readings, ends_s: Floats, window_s: float) -> None:
        shares, power_w = readings.shares(ends_s, window_s), readings.power_w
        self.count = len(power_w)
        blocks = np.array_split(np.arange(self.count), _BLOCKS)
        self.matrices = np.stack([shares[rows].T @ shares[rows] for rows in blocks])
        self.vectors = np.stack([shares[rows].T @ power_w[rows] for rows in blocks])
        self.squares = np.array([power_w[rows] @ power_w[rows] for rows in blocks])
        rough = np.eye(_BINS) - np.roll(np.eye(_BINS), 1, axis=1)  # cyclic differences
        self.penalty = rough.T @ rough

    def error(self, weight: float) -> float:
        """The criterion of generalised cross-validation."""
        matrix, vector = self.matrices.sum(0), self.vectors.sum(0)
        inverse = np.linalg.inv(matrix + weight * self.penalty)
        power_w = inverse @ vector
        left = self.squares.sum() - 2 * power_w @ vector + power_w @ matrix @ power_w
        free = self.count - float(np.trace(inverse @ matrix))
        return float(self.count * max(left, 0.0) / max(free, 1.0) ** 2)

    def power_w(self, weight: float, times: Floats) -> Floats:
        """(_BINS,) power (W), where each block counts so many times."""
        matrix = np.tensordot(times, self.matrices, 1) + weight * self.penalty
        return np.asarray(np.linalg.solve(matrix, times @ self.vectors))


def _phase(ends_s: Floats, times_s: Floats) -> Floats:
    """Iterations since the first end, with fractions; beyond either end at the mean pace."""
    pace_s = (ends_s[-1] - ends_s[0]) / (len(ends_s) - 1)
    phase = np.interp(times_s, ends_s, np.arange(len(ends_s), dtype=float))
    phase = np.where(times_s < ends_s[0], (times_s - ends_s[0]) / pace_s, phase)
    return np.where(times_s > ends_s[-1], len(ends_s) - 1 + (times_s - ends_s[-1]) / pace_s, phase)


@dataclass(frozen=True)
class _Dips:
    """The common end of a dip, its beginning on each GPU before that (shares of an iteration), and how much
    more its beginnings differ than its ends.
    """

    end: float
    length: Floats
    contrast: float


def _dips(power_w: Floats, end: int | None = None) -> _Dips | None:
    """The dips of (n, _BINS) GPUs that end together; None where there is none.

    Args:
        power_w: Over the mean iteration.
        end: Its bin, where it is known.
    """
    low, high = np.percentile(power_w, (10, 90), axis=1, keepdims=True)
    shown = (power_w - low) / np.maximum(high - low, 1e-9)
    mean = shown.mean(0)
    near = _BINS // 50
    rise = np.roll(mean, -near) - np.roll(mean, near)
    peaks = np.flatnonzero((rise >= np.roll(rise, 1)) & (rise > np.roll(rise, -1)) & (rise > 0.15))
    best: _Dips | None = None
    for peak in peaks if end is None else (end,):
        back = np.roll(shown, _BINS - 1 - int(peak), axis=1)[:, ::-1]  # from the peak backwards
        depth = np.median(back[:, : 3 * near].min(1))
        split = 0.5 * (depth + back[:, : _BINS // 2].max(1))
        lengths, ends = np.array([_stretch(row[near:], level) for row, level in zip(back, split, strict=True)]), None
        ahead = np.roll(shown, -int(peak) + near, axis=1)
        ends = np.array([_stretch(row, level) for row, level in zip(ahead, split, strict=True)])
        found = _Dips(int(peak), lengths / _BINS, float(np.ptp(lengths) - np.ptp(ends)) / _BINS)
        if best is None or found.contrast > best.contrast:
            best = found
    return best


def _stretch(row: Floats, level: float) -> float:
    """How many bins from the first on are below a level, with a fraction; 0 where the first is not."""
    above = np.flatnonzero(row > level)
    if not len(above) or above[0] == 0:
        return 0.0 if len(above) else float(len(row))
    k = int(above[0])
    return k - 0.5 + (level - row[k - 1]) / max(row[k] - row[k - 1], 1e-9)


def waiting(
    traces: Mapping[str, pl.DataFrame], ends_s: Sequence[float] | Floats, *,
    names: Mapping[str, str] | None = None,
) -> JobWaiting:
    """Who waits for whom in the mean iteration of a job.

    Args:
        traces: A power trace (`trace.SCHEMA`) of each GPU, by UUID, in the order of the GPUs.
        ends_s: Ends of the job's iterations on the traces' clock. All may be early or late by the same time.
        names: Names of the GPUs, by UUID.
    """
    ends = np.unique(np.asarray(ends_s, float))
    lengths = np.diff(ends)
    gpus = tuple(GpuWait(uuid, (names or {}).get(uuid, ""), place) for place, uuid in enumerate(traces))
    if len(ends) < 2 * _BLOCKS:
        mean_s = float(lengths.mean()) if len(lengths) else 0.0
        return JobWaiting(mean_s, 0.0, len(lengths), gpus,
                          reason=f"{len(lengths)} iterations are too few; {2 * _BLOCKS} are needed")
    lengths = lengths[lengths < 3.0 * np.median(lengths)]  # without evaluations
    result = JobWaiting(
        float(lengths.mean()), 1.96 * float(lengths.std(ddof=1)) / math.sqrt(len(lengths)), len(lengths), gpus,
    )
    if len(gpus) < 2:
        return replace(result, reason="one GPU waits for no other")
    readings = [_readings(trace, ends) for trace in traces.values()]
    few = min(len(each.power_w) for each in readings)
    if few < 4 * _BLOCKS:
        return replace(result, reason=f"{few} power readings are too few; {4 * _BLOCKS} are needed")
    if max(_widest_gap(each.phase) for each in readings) > 0.1:
        return replace(result, reason="the iterations are in phase with the refreshes of the power sensor")
    return _compared(result, traces, _estimates(readings, ends))


def _readings(trace: pl.DataFrame, ends_s: Floats) -> _Readings:
    """The power readings between the first and the last end, one for each refresh."""
    ticks = trace.drop_nulls(["power_tick_s", "power_w"]).unique("power_tick_s", keep="first", maintain_order=True)
    if len(ticks) < 2:  # stored without them
        ticks = trace.drop_nulls("power_w").with_columns(power_tick_s="time_s")
        ticks = ticks.filter(pl.col("power_w") != pl.col("power_w").shift().fill_null(-1.0))
    ticks = ticks.filter(pl.col("power_tick_s").is_between(ends_s[0], ends_s[-1]))
    time_s = ticks["power_tick_s"].to_numpy()
    return _Readings(ticks["power_w"].to_numpy(), _phase(ends_s, time_s), time_s)


def _widest_gap(phase: Floats) -> float:
    """The largest part of an iteration in which no reading ends."""
    there = np.sort(phase % 1.0)
    return float(np.diff(np.append(there, there[0] + 1.0)).max())


def _estimates(readings: Sequence[_Readings], ends_s: Floats) -> Floats:
    """(1 + _REPLICATES, n, _BINS) power of all GPUs over the mean iteration: of all data, and resampled."""
    weights = np.geomspace(1e-4, 1.0, 5) * np.mean([len(each.power_w) for each in readings]) / _BINS
    fits = [[_Deconvolution(each, ends_s, window_s) for each in readings] for window_s in WINDOWS_S]
    errors = np.array([[sum(each.error(weight) for each in fit) for weight in weights] for fit in fits])
    window, weight = np.unravel_index(int(errors.argmin()), errors.shape)
    rng = np.random.default_rng(0)
    times = [np.ones(_BLOCKS)]
    times += [np.bincount(rng.integers(0, _BLOCKS, _BLOCKS), minlength=_BLOCKS).astype(float)
              for _ in range(_REPLICATES)]
    return np.stack([[each.power_w(weights[weight], counts) for each in fits[window]] for counts in times])


def _compared(result: JobWaiting, traces: Mapping[str, pl.DataFrame], power_w: Floats) -> JobWaiting:
    """The waits from the dips of all GPUs."""
    dips, n = _dips(power_w[0]), len(result.gpus)
    gpus = tuple(replace(gpu, power_w=tuple(row.tolist()), sm_clock_mhz=_clock_mhz(traces[gpu.uuid]))
                 for gpu, row in zip(result.gpus, power_w[0], strict=True))
    result = replace(result, gpus=gpus)
    if dips is None:
        return replace(result, reason="power does not fall while GPUs wait, so their waiting cannot be seen")
    again = np.array([_dips(each, int(dips.end)).length for each in power_w[1:]])  # type: ignore[union-attr]
    wait = dips.length - dips.length.min()
    waits = again - again.min(1, keepdims=True)
    last, second = np.argsort(dips.length)[:2]
    leads = again[:, second] - again[:, last]
    lead = float(dips.length[second] - dips.length[last])
    iteration_s, errors = result.iteration_s, 1.96 * (waits - wait).std(0)
    measured = []
    for gpu, length, each, error in zip(gpus, dips.length, wait, errors, strict=True):
        bins = (int(dips.end) - np.arange(round(_BINS * dips.length.min()), round(_BINS * length))) % _BINS
        waits_w = float(np.mean(np.array(gpu.power_w)[bins])) if len(bins) else 0.0
        measured.append(replace(
            gpu, work_s=float(1.0 - length) * iteration_s, wait_s=float(each) * iteration_s,
            wait_uncertainty_s=float(error) * iteration_s, wait_energy_j=float(each) * iteration_s * waits_w,
        ))
    result = replace(result, gpus=tuple(measured), known=True, cost_s=lead * iteration_s)
    if n > 1 and lead - 1.96 * float(leads.std()) > NAMED:
        return replace(result, straggler=gpus[last].uuid, reason=_cause(measured, int(last), traces))
    return result


def _clock_mhz(trace: pl.DataFrame) -> float | None:
    """Mean SM clock while a GPU works."""
    clock = trace.filter(pl.col("utilisation").fill_null(1.0) > 0)["sm_clock_mhz"].mean()
    return None if clock is None else float(clock)  # type: ignore[arg-type]


def _cause(gpus: Sequence[GpuWait], last: int, traces: Mapping[str, pl.DataFrame]) -> str:
    """Why a GPU is the last, where its clock or its utilisation shows it."""
    mine, others = gpus[last], [gpu for place, gpu in enumerate(gpus) if place != last]
    clocks = [gpu.sm_clock_mhz for gpu in others if gpu.sm_clock_mhz]
    trace = traces[mine.uuid]
    if mine.sm_clock_mhz and clocks and mine.sm_clock_mhz < (1.0 - NAMED) * float(np.median(clocks)):
        bits = int(np.bitwise_or.reduce(trace["throttle"].drop_nulls().to_numpy(), initial=0))
        names = ", ".join(throttle_names(bits))
        return (f"GPU {mine.index} runs at {mine.sm_clock_mhz:.0f} MHz, the others at {np.median(clocks):.0f} MHz"
                + (f" ({names})" if names else ""))
    used = [float(each["utilisation"].mean() or math.nan) for each in traces.values()]  # type: ignore[arg-type]
    if used[last] < np.nanmedian(used) - NAMED:
        return f"GPU {mine.index} is busy {100 * used[last]:.0f} % of the time, the others " \
               f"{100 * float(np.nanmedian(used)):.0f} %: its data may come late"
    return ""
