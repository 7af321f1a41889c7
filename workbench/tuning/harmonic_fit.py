"""How long an iteration takes in a few seconds of power readings, when its length is roughly known.

By least squares the readings are laid on the first harmonics of every period within the range that a change
of clocks can have made, and the one that leaves least is it; the shape is free, because not all of an
iteration stretches alike. GPOEO detects the period anew at every probe instead (`PyEPOpt.py:954-1722`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..periods.online import aliasing

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class HarmonicFitParams:
    """Tuned constants of the fit; set by hand, `benchmarks.clocks --only online` scores them."""

    most_harmonics: int = 6
    shape_harmonics: int = 2  # of a period of four refreshes, that the refreshes show
    least_readings: int = 12
    steps: float = 5.0  # candidates to one width of the peak
    most_candidates: int = 400
    readings_per_period: int = 24  # that tell all there is
    variation: float = 0.01  # of an iteration's length, from one to the next: never taken to be less
    least_explained: float = 0.25  # share of the readings' variance that must repeat
    # between refreshes of a counter, from which on its differences tell more than readings
    slow_s: float = 0.06
    alike: float = 0.93  # of what the longer one explains


PARAMS = HarmonicFitParams()

# The newest: a stretch that nobody has looked at for an hour must not take the memory of the job.
MOST_READINGS = 4000
AT_ONCE = 200_000  # candidates times readings


@dataclass(frozen=True, slots=True)
class Timed:
    """The mean length of an iteration in a stretch of readings, and its standard error.

    Attributes:
        explained: Share of the readings' variance that repeats with it, 0..1.
        readings: Refreshes of the sensor that it stands on.
    """

    seconds: float
    sd_s: float
    explained: float
    readings: int


def readings(rows: Array) -> tuple[Array, Array]:
    """Times and mean powers of a recorder's rows, one for each refresh of the sensor where those are known.

    A slow sensor's reading is often a glimpse (25 ms of 100: Yang et al., arXiv 2312.02741), so there the
    differences of its energy counter are taken, which misses nothing.
    """
    counted = aliasing.refreshes(rows["tick_s"])
    if len(counted) > PARAMS.least_readings and np.isfinite(rows["energy_j"][counted]).all():
        ticks, joules = rows["tick_s"][counted], rows["energy_j"][counted]
        spans = np.diff(ticks)
        usual_s = float(np.median(spans))
        if usual_s >= PARAMS.slow_s and np.all(np.diff(joules) >= 0) and joules[-1] > joules[0]:
            whole = (spans > 0.02) & (spans < 2.5 * usual_s)
            return (ticks[:-1] + 0.5 * spans)[whole], (np.diff(joules) / np.maximum(spans, 1e-9))[whole]
    ticks = aliasing.refreshes(rows["power_tick_s"])
    if len(ticks) >= PARAMS.least_readings:
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
    variation: float = PARAMS.variation,
) -> Timed | None:
    """The length of an iteration in readings; None where too few are there or none repeats.

    Args:
        time_s, power_w: Readings, one a refresh.
        guess_s: What it should be.
        low, high: How much shorter and longer than `guess_s` it may be. Of two that fit alike, one twice the
            other, it is the shorter.
        sd: Standard deviation of the logarithm of what it is over the guess.
        variation: Of an iteration's length from one to the next, as a share (`variation`).
    """
    if len(time_s) < PARAMS.least_readings:
        return None
    time_s, power_w = thinned(time_s, power_w, guess_s)
    time_s, power_w = time_s[-MOST_READINGS:], power_w[-MOST_READINGS:]
    n = len(time_s)
    span_s = float(time_s[-1] - time_s[0])
    if span_s < 1.6 * guess_s:
        return None
    step_s = float(np.median(np.diff(time_s)))
    most = min(PARAMS.most_harmonics, (n - 4) // 6)
    harmonics = int(np.clip(math.floor(guess_s / (2.2 * step_s)), 1, most))
    first, last = 1.0 / (guess_s * high), 1.0 / (guess_s * low)
    # The peak of the highest harmonic is the narrowest.
    wanted = PARAMS.steps * span_s * (last - first) * min(harmonics, 3)
    count = int(np.clip(wanted, 24, PARAMS.most_candidates))
    grid = np.linspace(first, last, count)
    middle_s = 0.5 * (time_s[0] + time_s[-1])
    x, y = time_s - middle_s, power_w - power_w.mean()
    total = float(y @ y)
    if not total > 0:
        return None
    left = _left(x, y, grid, harmonics)
    likely = -0.5 * n * np.log(np.maximum(left / total, 1e-6))
    best = int(np.argmax(likely - 0.5 * (np.log(1.0 / (grid * guess_s)) / sd) ** 2))
    for part in (3, 2):  # a multiple of the true length fits as well as that itself
        near = np.flatnonzero(np.abs(grid / (part * grid[best]) - 1.0) < 2.0 / (span_s * grid[best] * part))
        if len(near):
            other = int(near[np.argmin(left[near])])
            if 1.0 - left[other] / total > PARAMS.alike * (1.0 - left[best] / total):
                best = other
                break
    if best in (0, count - 1):
        return None
    # A second, finer look around the best one, from whose bend the error comes.
    around = np.linspace(grid[best - 1], grid[best + 1], 13)
    fine = _left(x, y, around, harmonics)
    at = int(np.clip(np.argmin(fine), 1, 11))
    before, here, after = fine[at - 1 : at + 2]
    bend = (before - 2 * here + after) / (around[1] - around[0]) ** 2
    frequency = float(around[at])
    if bend > 0:
        off = float(np.clip(0.5 * (before - after) / (before - 2 * here + after), -1, 1))
        frequency += off * float(around[1] - around[0])
    explained = 1.0 - float(here) / total
    free = max(n - 2 * harmonics - 3, 1)
    variance = 2.0 * float(here) / free / bend if bend > 0 else (grid[1] - grid[0]) ** 2
    if step_s >= PARAMS.slow_s:  # an error of a slow refresh's moment is in two differences at once
        variance *= 2.5
    seconds = 1.0 / frequency
    varies_s = max(variation, PARAMS.variation) * seconds / math.sqrt(max(span_s / seconds, 1.0))
    sd_s = math.hypot(math.sqrt(variance) * seconds**2, varies_s)
    if explained < PARAMS.least_explained:
        return None
    return Timed(seconds, sd_s, explained, n)


def thinned(time_s: Array, power_w: Array, seconds: float) -> tuple[Array, Array]:
    """Neighbouring readings averaged, where there are more to a period than tell anything."""
    group = int(seconds / PARAMS.readings_per_period / max(float(np.median(np.diff(time_s))), 1e-6))
    whole = len(time_s) // max(group, 1) * group
    if group < 2 or whole // group < PARAMS.least_readings:
        return time_s, power_w
    return time_s[:whole].reshape(-1, group).mean(axis=1), power_w[:whole].reshape(-1, group).mean(axis=1)


def shape(time_s: Array, power_w: Array, seconds: float) -> Array:
    """Amplitudes (W) of the first harmonics of a period of at least four refreshes."""
    return aliasing.swing(time_s, power_w, seconds, list(range(1, PARAMS.shape_harmonics + 1)))[0]


def variation(time_s: Array, power_w: Array, seconds: float) -> float | None:
    """How much iterations differ in length, as a share: what phases wander more over two periods than one,
    in which the readings' own noise cancels. None where too few periods or readings tell.
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


def _left(x: Array, y: Array, frequencies: Array, harmonics: int) -> Array:
    """Sum of squares that harmonics of each frequency (and a straight line) leave of the readings."""
    step = max(1, AT_ONCE // max(len(x), 1))
    if len(frequencies) > step:
        return np.concatenate(
            [_left(x, y, frequencies[k : k + step], harmonics) for k in range(0, len(frequencies), step)]
        )
    angle = 2.0 * np.pi * frequencies[:, None] * x[None, :]
    cosine, sine = np.cos(angle), np.sin(angle)
    slope = np.broadcast_to(x / max(float(np.abs(x).max()), 1e-9), angle.shape)
    columns = [np.ones_like(angle), slope]
    c, s = cosine, sine
    for _ in range(harmonics):
        columns += [c, s]
        c, s = c * cosine - s * sine, s * cosine + c * sine
    design = np.stack(columns, axis=2)
    gram = np.swapaxes(design, 1, 2) @ design
    right = np.einsum("cnk,n->ck", design, y)
    gram += 1e-6 * len(x) * np.eye(gram.shape[1])
    solved = np.linalg.solve(gram, right[:, :, None])[:, :, 0]
    left: Array = y @ y - np.einsum("ck,ck->c", solved, right)
    return np.maximum(left, 1e-12)
