"""Overlaid iterations: folded readings, their median shape, the power's spectrum, and waits of the GPU.

Pure functions over a power trace (`trace.SCHEMA`) and a `DetectedPeriod`. A frame of `start_s` and `end_s`
gives the iterations. Without it, the level's phase and period give evenly spaced ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from ..errors import UsageError
from ..records import DetectedPeriod
from .detect import LEAST_READINGS
from .estimators.signals import LONG_GAP_STEPS

Array = np.ndarray

SLOWEST = 4.0  # refreshes per iteration that are required to detect waits
SHORTEST = 1.5  # refreshes per wait that are required: one low reading may be a wait of any length
WAITING = 0.5  # of the busy power: above it, low power is a light phase, not a wait
BAND = (0.1, 0.9)
FEWEST_BINS, MOST_BINS, PER_BIN = 8, 120, 6


@dataclass(frozen=True)
class Idle:
    """Share of an iteration in which the GPU waits, and its longest wait (s)."""

    share: float  # of the iterations' time, 0..1
    longest_s: float  # wait of the median iteration; 0 where there is none
    at_s: float  # its start after the iteration's start
    shortest_s: float  # shorter waits are not visible with this sensor

    @property
    def text(self) -> str:
        """One sentence."""
        if self.longest_s <= 0 or self.share < 0.005:
            return f"no drop of the power within an iteration lasts {_short(self.shortest_s)} or longer"
        return (f"{100 * self.share:.0f} % of each iteration waits for data or the host, the longest wait "
                f"{_short(self.longest_s)}, {_short(self.at_s)} after its start")


def uniform_grid(trace: pl.DataFrame, level: DetectedPeriod) -> pl.DataFrame:
    """Whole periods of a level inside a trace, from its phase and period alone: columns start_s, end_s."""
    if not level.period_s > 0:
        raise UsageError(f"a period must be a positive number of seconds, not {level.period_s:g}")
    times, _ = _readings(trace)
    if len(times) < 2:
        return pl.DataFrame({"start_s": [], "end_s": []}, schema={"start_s": pl.Float64, "end_s": pl.Float64})
    first = np.ceil((times[0] - level.phase_s) / level.period_s - 1e-9)
    last = np.floor((times[-1] - level.phase_s) / level.period_s + 1e-9)
    edges = level.phase_s + level.period_s * np.arange(first, last + 1)
    return pl.DataFrame({"start_s": edges[:-1], "end_s": edges[1:]})


def fold(trace: pl.DataFrame, level: DetectedPeriod, spans: pl.DataFrame | None = None) -> pl.DataFrame:
    """Overlaid, clearly visible iterations: columns iteration, phase (0..1), time_in_iteration_s, power_w."""
    times, power = _readings(trace)
    starts, ends = _edges(uniform_grid(trace, level) if spans is None else spans)
    if not len(starts) or not len(times):
        return _folded(np.empty(0, np.int64), np.empty(0), np.empty(0), np.empty(0))
    number = np.searchsorted(starts, times, side="right") - 1
    inside = (number >= 0) & (times < ends[number])
    number, times, power = number[inside], times[inside], power[inside]
    readings = np.bincount(number, minlength=len(starts))
    rate = readings / (ends - starts)
    keep = (rate >= 0.5 * np.median(rate[readings > 0]))[number] if len(number) else np.empty(0, bool)
    number, times, power = number[keep], times[keep], power[keep]
    since_s = times - starts[number]
    return _folded(number, since_s / (ends - starts)[number], since_s, power)


def shape(folded: pl.DataFrame, level: DetectedPeriod, *, refresh: float | None = None) -> pl.DataFrame:
    """The median iteration of `fold` and the band that contains 80 %: columns phase, low_w, power_w, high_w.
    """
    # Iterations are no multiple of the refresh: folding resolves slightly more than one of them does.
    sensor = MOST_BINS if not refresh else 2 * level.period_s / refresh
    bins = int(np.clip(min(folded.height / PER_BIN, sensor), FEWEST_BINS, MOST_BINS))
    number = (pl.col("phase") * bins).floor().clip(0, bins - 1)
    low, high = BAND
    power = pl.col("power_w")
    shapes = folded.group_by(number.alias("bin")).agg(
        power.quantile(low, "linear").alias("low_w"), power.median().alias("median_w"),
        power.quantile(high, "linear").alias("high_w"),
    ).sort("bin")
    middle = ((pl.col("bin") + 0.5) / bins).alias("phase")
    return shapes.select(middle, "low_w", pl.col("median_w").alias("power_w"), "high_w")


def spectrum(trace: pl.DataFrame, *, points: int | None = None) -> pl.DataFrame:
    """Amplitude of the power's periods: columns period_s (ascending), frequency_hz, amplitude (at most 1).

    Readings are detrended, tapered by a Hann window and padded with zeros; gaps are filled with the trend.
    Periods that do not fit in twice are removed. Of each of `points` equal intervals of log period the
    highest is kept; None keeps all.
    """
    empty = pl.DataFrame(schema={"period_s": pl.Float64, "frequency_hz": pl.Float64, "amplitude": pl.Float64})
    times, power = _readings(trace)
    if len(times) < LEAST_READINGS:
        return empty
    steps = np.diff(times)
    step_s = float(np.median(steps))
    # A sampler that pauses leaves no gaps.
    gap_s = LONG_GAP_STEPS * max(step_s, 0.5 * float(np.quantile(steps, 0.95)))
    grid = np.arange(times[0], times[-1], step_s)
    mean_w = float(np.abs(power).mean())
    power = power - np.polyval(np.polyfit(times - times[0], power, 1), times - times[0])
    even = np.interp(grid, times, power) * np.hanning(len(grid) + 2)[1:-1]
    for at in np.flatnonzero(steps > gap_s).tolist():
        even[(grid > times[at]) & (grid < times[at + 1])] = 0.0
    size = 4 * (1 << (len(grid) - 1).bit_length())
    amplitude, frequency = np.abs(np.fft.rfft(even, size)), np.fft.rfftfreq(size, step_s)
    known = frequency >= 2.0 / (len(grid) * step_s)
    highest = float(amplitude[known].max(initial=0.0))
    if not highest > 1e-9 * len(grid) * max(1.0, mean_w):  # flat
        return empty
    frame = pl.DataFrame({
        "period_s": 1.0 / frequency[known], "frequency_hz": frequency[known],
        "amplitude": amplitude[known] / highest,
    }).sort("period_s")
    return frame if points is None else _peaks(frame, points)


def refresh_s(trace: pl.DataFrame) -> float | None:
    """Seconds between refreshes of the power reading, else the lower quartile between its changes."""
    if "power_tick_s" in trace.columns:
        ticks = np.unique(trace["power_tick_s"].drop_nulls().to_numpy())
        if len(ticks) > 4:
            return float(np.median(np.diff(ticks)))
    times, power = _readings(trace)
    changes = times[1:][np.diff(power) != 0]
    if len(changes) < 2:
        return None
    return float(np.quantile(np.diff(changes), 0.25))


def idle_share(trace: pl.DataFrame, level: DetectedPeriod, spans: pl.DataFrame | None = None) -> Idle | None:
    """Share of each iteration in which the GPU waits; None if the sensor is too slow to show it.

    A wait is where the power falls below half way from the busy level to that of the iterations' lowest
    readings, if that is below half of the busy power. An average over a window shorter than the wait does not
    move such crossings. A power dip during which kernels run (`utilisation`) is none; where utilisation shows
    waits that the power does not, the sensor is too slow.
    """
    refresh = refresh_s(trace)
    folded = fold(trace, level, spans)
    if refresh is None or level.period_s < SLOWEST * refresh or folded.height < 16:
        return None
    starts, ends = _edges(uniform_grid(trace, level) if spans is None else spans)
    numbers = np.unique(folded["iteration"].to_numpy())
    starts, ends = starts[numbers], ends[numbers]
    power = folded["power_w"].to_numpy()
    low_w = float(np.median(folded.group_by("iteration").agg(pl.col("power_w").min())["power_w"].to_numpy()))
    busy_w = float(np.median(power[power >= (low_w + power.max()) / 2]))
    shortest_s = SHORTEST * refresh
    none = Idle(0.0, 0.0, 0.0, shortest_s)
    unused = _unused(trace, float(starts[0]), float(ends[-1]))
    if not low_w <= WAITING * busy_w:
        return None if unused is not None and unused > 0.08 else none
    found = _below(trace, (low_w + busy_w) / 2)
    # Time below the threshold until a moment; a wait that continues into a pause counts only in part.
    moments = np.column_stack([found[:, 0], found.sum(axis=1)]).ravel()
    waited = np.concatenate([[0.0], np.repeat(np.cumsum(found[:, 1]), 2)])[: len(moments)]
    within = np.zeros(1)
    if len(found):
        within = np.interp(ends, moments, waited) - np.interp(starts, moments, waited)
    share = float(within.sum() / (ends - starts).sum())
    number = np.searchsorted(starts, found[:, 0], side="right") - 1
    inside = (number >= 0) & (found[:, 0] < ends[number])
    found, number = found[inside], number[inside]
    if unused is not None and unused < share / 4:
        return none
    longest = np.zeros(len(starts))
    np.maximum.at(longest, number, found[:, 1])
    if 0 < float(np.median(longest)) < shortest_s:
        return None
    waits = longest[number] == found[:, 1]
    rotations = 2j * np.pi * ((found[:, 0] - starts[number]) / (ends - starts)[number])[waits]
    middle = np.angle(np.exp(rotations).mean()) / (2 * np.pi) % 1.0 if len(rotations) else 0.0
    return Idle(share, float(np.median(longest)), float(middle) * level.period_s, shortest_s)


# helpers


def _readings(trace: pl.DataFrame) -> tuple[Array, Array]:
    """Times, ascending and unique, and the finite power readings at them."""
    known = trace.select(pl.col("time_s").cast(pl.Float64), pl.col("power_w").cast(pl.Float64)).drop_nulls()
    times, power = known["time_s"].to_numpy(), known["power_w"].to_numpy()
    finite = np.isfinite(times) & np.isfinite(power)
    times, order = np.unique(times[finite], return_index=True)
    return times, power[finite][order]


def _edges(spans: pl.DataFrame) -> tuple[Array, Array]:
    """Starts and ends, ascending; spans of zero length are removed."""
    known = spans.select("start_s", "end_s").drop_nulls().filter(pl.col("end_s") > pl.col("start_s"))
    ordered = known.sort("start_s")
    return ordered["start_s"].to_numpy(), ordered["end_s"].to_numpy()


def _folded(number: Array, phase: Array, since_s: Array, power: Array) -> pl.DataFrame:
    return pl.DataFrame({
        "iteration": number.astype(np.int64), "phase": phase, "time_in_iteration_s": since_s,
        "power_w": power,
    })


def _peaks(frame: pl.DataFrame, points: int) -> pl.DataFrame:
    """The row of highest amplitude in each of `points` equal intervals of log period."""
    if frame.height <= points:
        return frame
    period = frame["period_s"].log()
    low, high = float(period.min()), float(period.max())  # type: ignore[arg-type]
    place = ((period - low) / max(high - low, 1e-12) * points).floor().clip(0, points - 1).alias("place")
    peaks = frame.with_columns(place).sort("amplitude", descending=True).unique("place", keep="first")
    return peaks.sort("period_s").drop("place")


def _unused(trace: pl.DataFrame, from_s: float, to_s: float) -> float | None:
    """Share of the time without kernels, by the utilisation readings (shares of time); None without them."""
    if "utilisation" not in trace.columns:
        return None
    values = trace.filter(pl.col("time_s").is_between(from_s, to_s))["utilisation"].drop_nulls().drop_nans()
    mean = values.mean()
    return None if mean is None else 1.0 - float(mean)  # type: ignore[arg-type]


def _below(trace: pl.DataFrame, threshold_w: float) -> Array:
    """Intervals below a threshold (W), edges interpolated: (n, 2) of start and length (s), none in a gap."""
    times, power = _readings(trace)
    low = np.concatenate([[False], power < threshold_w, [False]])
    # the first low reading, the first after the last
    down, up = np.flatnonzero(~low[:-1] & low[1:]), np.flatnonzero(low[:-1] & ~low[1:])

    def crossing(after: Array) -> Array:
        """Seconds at which the power passes the threshold before a reading; else the trace's end."""
        b, a = np.clip(after, 0, len(times) - 1), np.clip(after - 1, 0, len(times) - 1)
        rise = np.where(power[b] == power[a], 1.0, power[b] - power[a])
        share = np.where(a == b, 0.0, (threshold_w - power[a]) / rise)
        return times[a] + share * (times[b] - times[a])

    steps = np.diff(times)
    gap_s = max(LONG_GAP_STEPS * float(np.median(steps)), 0.5)
    holes = np.concatenate([[0], np.cumsum(steps > gap_s)])
    last = len(times) - 1
    whole = holes[np.minimum(up, last)] == holes[np.maximum(down - 1, 0)]
    start_s = crossing(down)[whole]
    return np.column_stack([start_s, crossing(up)[whole] - start_s])


def _short(seconds: float) -> str:
    return f"{1000 * seconds:.0f} ms" if seconds < 0.9995 else f"{seconds:.3g} s"
