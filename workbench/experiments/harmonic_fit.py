"""How long an iteration takes in a few seconds of power readings, when its length is roughly known.

By least squares the readings are laid on the first harmonics of every period within the range that a change
of clocks can have made. The period with the smallest residual is the result. The shape is free, because not
all of an iteration stretches alike. GPOEO detects the period again at every probe instead
(`PyEPOpt.py:954-1722`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..periods import harmonics
from ..periods.online import aliasing

Array = np.ndarray

# Tuned constants of the fit; set by hand, `benchmarks.clocks --only online` scores them.
LEAST_READINGS = 12  # twice as many as what is fitted
PEAK_STEPS = 5.0  # candidates to one width of the peak
MOST_PERIODS = 60.0  # the newest ones tell all there is
VARIATION = 0.01  # of an iteration's length, from one to the next: never taken to be less
LEAST_EXPLAINED = 0.25  # share of the readings' variance that must repeat
# between refreshes of a counter, from which on its differences tell more than readings
SLOW_S = 0.06
ALIKE_EXPLAINED = 0.93  # of what the longer one explains


@dataclass(frozen=True)
class Timed:
    """The mean length of an iteration in a stretch of readings, and its standard error.

    Attributes:
        explained: Share of the readings' variance that repeats with it, 0..1.
        readings: Refreshes of the sensor that it is based on.
        amplitudes: Of its harmonics (W).
    """

    seconds: float
    sd_s: float
    explained: float
    readings: int
    amplitudes: Array


def readings(rows: Array) -> tuple[Array, Array]:
    """Times and mean powers of a recorder's rows, one for each refresh of the sensor where those are known.

    A slow sensor's reading is often a glimpse (25 ms of 100: Yang et al., arXiv 2312.02741), so there the
    differences of its energy counter are taken, which misses nothing.
    """
    counted = aliasing.refreshes(rows["tick_s"])
    if len(counted) > LEAST_READINGS and np.isfinite(rows["energy_j"][counted]).all():
        ticks, joules = rows["tick_s"][counted], rows["energy_j"][counted]
        spans = np.diff(ticks)
        usual_s = float(np.median(spans))
        if usual_s >= SLOW_S and np.all(np.diff(joules) >= 0) and joules[-1] > joules[0]:
            whole = (spans > 0.02) & (spans < 2.5 * usual_s)
            return (ticks[:-1] + 0.5 * spans)[whole], (np.diff(joules) / np.maximum(spans, 1e-9))[whole]
    ticks = aliasing.refreshes(rows["power_tick_s"])
    if len(ticks) >= LEAST_READINGS:
        time_s, power_w = rows["power_tick_s"][ticks], rows["power_w"][ticks]
    else:
        time_s, power_w = rows["time_s"], rows["power_w"]
        if len(rows) > 1:
            changed = np.concatenate([[True], np.diff(power_w) != 0])
            time_s, power_w = time_s[changed], power_w[changed]
    known = np.isfinite(power_w)
    return time_s[known], power_w[known].astype(np.float64)


def timed(
    time_s: Array, power_w: Array, guess_s: float, *, low: float, high: float, sd: float,
    variation: float = VARIATION,
) -> Timed | None:
    """The length of an iteration in readings; None where too few are there or none repeats.

    Args:
        time_s, power_w: Readings, one a refresh.
        guess_s: The expected value.
        low, high: How much shorter and longer than `guess_s` it may be. Of two that fit alike, one twice the
            other, it is the shorter.
        sd: Standard deviation of the logarithm of what it is over the guess.
        variation: Of an iteration's length from one to the next, as a share (`variation`).
    """
    if len(time_s) < LEAST_READINGS:
        return None
    newest = time_s >= time_s[-1] - MOST_PERIODS * guess_s
    time_s, power_w = thinned(time_s[newest], power_w[newest], guess_s)
    n, span_s = len(time_s), float(time_s[-1] - time_s[0])
    if span_s < 1.6 * guess_s or not np.ptp(power_w) > 0:
        return None
    step_s = float(np.median(np.diff(time_s)))
    shown = harmonics.resolved(guess_s, step_s)[: max((n - 4) // 6, 1)]
    power_w = power_w - np.polyval(np.polyfit(time_s - time_s[0], power_w, 1), time_s - time_s[0])
    first, last = 1.0 / (guess_s * high), 1.0 / (guess_s * low)
    # The peak of the highest harmonic is the narrowest.
    grid = np.linspace(first, last, max(24, int(PEAK_STEPS * span_s * (last - first) * len(shown))))
    left = harmonics.unexplained(time_s, power_w, grid, shown)
    likely = -0.5 * n * np.log(np.maximum(left, 1e-6))
    best = int(np.argmax(likely - 0.5 * (np.log(1.0 / (grid * guess_s)) / sd) ** 2))
    for part in (3, 2):  # a multiple of the true length fits as well as that itself
        near = np.flatnonzero(np.abs(grid / (part * grid[best]) - 1.0) < 2.0 / (span_s * grid[best] * part))
        if len(near):
            other = int(near[np.argmin(left[near])])
            if 1.0 - left[other] > ALIKE_EXPLAINED * (1.0 - left[best]):
                best = other
                break
    if best in (0, len(grid) - 1) or left[best] > 1.0 - LEAST_EXPLAINED:
        return None
    # A parabola through the best one and its neighbours, from whose bend the error comes.
    before, here, after = left[best - 1 : best + 2]
    step, bend = grid[1] - grid[0], before - 2 * here + after
    frequency, variance = float(grid[best]), float(step) ** 2
    if bend > 0:
        frequency += float(np.clip(0.5 * (before - after) / bend, -1, 1) * step)
        variance *= 2.0 * here / max(n - 2 * len(shown) - 3, 1) / bend
    if step_s >= SLOW_S:  # an error of a slow refresh's moment is in two differences immediately
        variance *= 2.5
    seconds = 1.0 / frequency
    varies_s = max(variation, VARIATION) * seconds / math.sqrt(max(span_s / seconds, 1.0))
    sd_s = math.hypot(math.sqrt(variance) * seconds**2, varies_s)
    amplitudes = harmonics.amplitudes(harmonics.fit(time_s, power_w, frequency, shown))
    return Timed(seconds, sd_s, 1.0 - float(here), n, amplitudes)


def thinned(time_s: Array, power_w: Array, seconds: float) -> tuple[Array, Array]:
    """Neighbouring readings averaged, where a period has more than needed."""
    group = int(seconds / (4 * harmonics.MOST) / max(float(np.median(np.diff(time_s))), 1e-6))
    whole = len(time_s) // max(group, 1) * group
    if group < 2 or whole // group < LEAST_READINGS:
        return time_s, power_w
    return time_s[:whole].reshape(-1, group).mean(axis=1), power_w[:whole].reshape(-1, group).mean(axis=1)


def variation(time_s: Array, power_w: Array, seconds: float) -> float | None:
    """How much iterations differ in length, as a share: what phases wander more over two periods than one,
    in which the readings' own noise cancels. None where too few periods or readings report.
    """
    number = np.floor((time_s - time_s[0]) / seconds).astype(np.int64)
    count = int(number[-1]) if len(number) else 0
    if count < 6 or len(time_s) < 6 * count:
        return None
    rotation = np.exp(-2j * np.pi * (time_s - time_s[0]) / seconds) * (power_w - power_w.mean())
    sums = np.bincount(number, rotation.real, count + 1) + 1j * np.bincount(number, rotation.imag, count + 1)
    phase = np.unwrap(np.angle(sums[:count])) / (2 * np.pi)
    one, two = np.diff(phase), phase[2:] - phase[:-2]
    return math.sqrt(max(float(np.var(two) - np.var(one)), 0.0))
