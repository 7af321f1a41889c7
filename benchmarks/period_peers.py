"""Known period detectors on a power trace, each written from its paper: one period, and whether it states
"periodic".

They run with their published or customary thresholds and nothing tuned. All but Lomb-Scargle need equal steps
and get the trace interpolated to its median step. A detector without a test of its own (`fft`, `odpp`) calls
everything periodic that is not flat.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import polars as pl
from scipy import fft as transform
from scipy.signal import lombscargle

from benchmarks.period_scores import Detector, single
from workbench.records import Periods

Array = np.ndarray
MIN_CYCLES = 2.0  # a period that was not seen twice is none
SHUFFLES = 100  # Vlachos et al. 2005, section 4.1: the 99 % quantile of as many shuffled series
ODPP_STEP_S, ODPP_LONGEST_S = 0.1, 60.0


class Verdict(NamedTuple):
    """A detector's one period, if any, and whether it takes the trace for periodic."""

    period_s: float | None
    periodic: bool


NOTHING = Verdict(None, False)


def detectors() -> dict[str, Detector]:
    """The peers by name, in the shape that the scorer takes."""
    rules: dict[str, Callable[[pl.DataFrame], Verdict]] = {
        "fft": fft_peak, "acf": acf_peak, "nsdf": nsdf, "yin": yin, "lomb_scargle": lomb_scargle,
        "autoperiod": autoperiod, "odpp": odpp,
    }
    return {name: _as_periods(rule) for name, rule in rules.items()}


def _as_periods(rule: Callable[[pl.DataFrame], Verdict]) -> Detector:
    def detect(trace: pl.DataFrame) -> Periods:
        return single(*rule(trace))

    return detect


def uniform(trace: pl.DataFrame) -> tuple[Array, float] | None:
    """Power at equal steps (the median one), its mean removed; None where it is flat or too short to
    report.
    """
    known = trace.select("time_s", "power_w").drop_nulls().drop_nans()
    if known.height < 20:
        return None
    time_s, power_w = known["time_s"].to_numpy(), known["power_w"].to_numpy()
    step_s = float(np.median(np.diff(time_s)))
    power_w = np.interp(np.arange(time_s[0], time_s[-1], step_s), time_s, power_w)
    x = power_w - power_w.mean()
    return (x, step_s) if x.std() > 1e-9 * max(1.0, abs(float(power_w.mean()))) else None


def fft_peak(trace: pl.DataFrame) -> Verdict:
    """Highest peak of the Hann-windowed, four times zero-padded spectrum, interpolated by a parabola
    (Smith and Serra 1987).
    """
    if (found := uniform(trace)) is None:
        return NOTHING
    x, step_s = found
    size = transform.next_fast_len(4 * len(x), real=True)
    amplitude = np.log(np.abs(transform.rfft(x * np.hanning(len(x)), size)) + 1e-12)
    lowest = int(np.ceil(MIN_CYCLES * size / len(x)))
    k = lowest + int(np.argmax(amplitude[lowest:-1]))
    return Verdict(size * step_s / (k + _vertex(amplitude, k)), True)


def acf_peak(trace: pl.DataFrame) -> Verdict:
    """Highest peak of the autocorrelation after its first zero; periodic from 0.3 on."""
    if (found := uniform(trace)) is None:
        return NOTHING
    x, step_s = found
    r = autocorrelation(x)
    r /= r[0]
    peaks = _peaks_after_zero(r, len(x) // 2)
    if not len(peaks):
        return NOTHING
    k = int(peaks[np.argmax(r[peaks])])
    return Verdict((k + _vertex(r, k)) * step_s, bool(r[k] >= 0.3))


def nsdf(trace: pl.DataFrame) -> Verdict:
    """First key maximum above 0.9 of the highest in the normalised square difference (McLeod and Wyvill
    2005); periodic from 0.4 on.
    """
    if (found := uniform(trace)) is None:
        return NOTHING
    x, step_s = found
    n = 2 * autocorrelation(x) / _energies(x)
    keys = _key_maxima(n, len(x) // 2)
    if not len(keys):
        return NOTHING
    k = int(keys[n[keys] >= 0.9 * n[keys].max()][0])
    return Verdict((k + _vertex(n, k)) * step_s, bool(n[k] >= 0.4))


def yin(trace: pl.DataFrame) -> Verdict:
    """First dip of the cumulative mean normalised difference below 0.4, else its lowest (de Cheveigne and
    Kawahara 2002).
    """
    if (found := uniform(trace)) is None:
        return NOTHING
    x, step_s = found
    half = len(x) // 2
    # The difference over whole overlaps, not over a fixed half window: with two minutes of data the statistic
    # is steadier.
    difference = (_energies(x) - 2 * autocorrelation(x))[: half + 2] / (len(x) - np.arange(half + 2))
    lags = np.arange(1, half + 2)
    d = np.concatenate([[1.0], difference[1:] * lags / np.maximum(np.cumsum(difference[1:]), 1e-12)])
    dips = 1 + np.flatnonzero((d[1:-1] < d[:-2]) & (d[1:-1] <= d[2:]))
    if not len(dips):
        return NOTHING
    low = dips[d[dips] < 0.4]
    k = int(low[0]) if len(low) else int(dips[np.argmin(d[dips])])
    return Verdict((k + _vertex(d, k)) * step_s, bool(len(low)))


def lomb_scargle(trace: pl.DataFrame) -> Verdict:
    """Highest peak of the Lomb-Scargle periodogram at the true timestamps; periodic where Baluev's
    false-alarm probability < 1e-6.

    The scan is Press and Rybicki's fast evaluation (1989), the refinement around its peak SciPy's exact one.
    """
    known = trace.select("time_s", "power_w").drop_nulls().drop_nans()
    if known.height < 20 or uniform(trace) is None:
        return NOTHING
    time_s, power_w = known["time_s"].to_numpy(), known["power_w"].to_numpy()
    time_s = time_s - time_s[0]
    span_s, y = float(time_s[-1]), power_w - power_w.mean()
    highest_hz = 0.5 / float(np.median(np.diff(time_s)))
    frequencies, power = fast_lomb_scargle(time_s, y, highest_hz)
    inside = (frequencies >= MIN_CYCLES / span_s) & (frequencies <= highest_hz)
    peak_hz = float(frequencies[inside][np.argmax(power[inside])])
    around = peak_hz + np.linspace(-0.3, 0.3, 25) / span_s
    exact = lombscargle(time_s, y, 2 * np.pi * around, normalize=True)
    k = int(np.argmax(exact))
    best_hz = around[k] + (_vertex(exact, k) * (around[1] - around[0]) if 0 < k < len(around) - 1 else 0.0)
    return Verdict(1 / float(best_hz), false_alarm(float(exact[k]), time_s, highest_hz) < 1e-6)


def fast_lomb_scargle(
    time_s: Array, y: Array, highest_hz: float, oversampling: int = 4
) -> tuple[Array, Array]:
    """Frequencies (Hz) and normalised power by spreading the samples on a fine grid (Press and Rybicki
    1989, equations 5 to 9).
    """
    span_s = float(time_s[-1] - time_s[0])
    spacing_hz = 1 / (oversampling * span_s)
    count = int(highest_hz / spacing_hz)
    size = transform.next_fast_len(8 * count, real=True)
    at = (time_s - time_s[0]) * spacing_hz * size

    def sums(weights: Array, position: Array) -> Array:
        grid = np.zeros(size)
        left = np.floor(position).astype(int)
        share = position - left
        nodes = {  # cubic Lagrange weights at the four nearest grid points
            -1: -share * (share - 1) * (share - 2) / 6,
            0: (share + 1) * (share - 1) * (share - 2) / 2,
            1: -(share + 1) * share * (share - 2) / 2,
            2: (share + 1) * share * (share - 1) / 6,
        }
        for offset, node in nodes.items():
            grid += np.bincount((left + offset) % size, weights * node, size)
        return np.asarray(np.conj(transform.rfft(grid)[1 : count + 1]))

    first, second = sums(y, at), sums(np.ones_like(y), 2 * at)
    tau = 0.5 * np.arctan2(second.imag, second.real)
    turned = first * np.exp(-1j * tau)
    half = 0.5 * np.abs(second)
    cosines, sines = 0.5 * len(y) + half, 0.5 * len(y) - half
    power = (turned.real**2 / cosines + turned.imag**2 / np.maximum(sines, 1e-9)) / np.sum(y**2)
    return spacing_hz * np.arange(1, count + 1), np.asarray(power)


def false_alarm(power: float, time_s: Array, highest_hz: float) -> float:
    """Probability that white noise has so high a peak (Baluev 2008, equation 6), for power normalised to
    0..1.
    """
    n = len(time_s)
    width = highest_hz * np.sqrt(4 * np.pi * np.var(time_s))
    tail = width * (1 - power) ** ((n - 4) / 2) * np.sqrt(0.5 * n * power)
    single_peak = (1 - power) ** ((n - 3) / 2)
    return float(1 - (1 - single_peak) * np.exp(-tail))


def autoperiod(trace: pl.DataFrame) -> Verdict:
    """Spectral peaks above those of shuffled copies, checked on the hills of the autocorrelation (Vlachos,
    Yu and Castelli 2005).
    """
    if (found := uniform(trace)) is None:
        return NOTHING
    x, step_s = found
    n = len(x)
    power = np.abs(transform.rfft(x)) ** 2
    rng = np.random.default_rng(0)
    copies = rng.permuted(np.broadcast_to(x.astype(np.float32), (SHUFFLES, n)), axis=1)
    threshold = float(np.sort(np.max(np.abs(transform.rfft(copies, axis=1)) ** 2, axis=1))[-2])
    hints = np.flatnonzero(power > threshold)
    hints = hints[(hints >= MIN_CYCLES) & (hints < len(power) - 1)]
    r = autocorrelation(x)[: n // 2 + 1] / (n - np.arange(n // 2 + 1))
    for k in hints[np.argsort(-power[hints])][:20]:
        if (lag := _on_a_hill(r, n, int(k))) is not None:
            return Verdict((lag + _vertex(r, lag)) * step_s, True)
    return NOTHING


def odpp(trace: pl.DataFrame) -> Verdict:
    """Largest peak of the plain spectrum of power and both utilisations, in percent, held at 0.1 s (ODPP as
    in `SpectrumAnalysis.py`).

    ODPP takes power relative to the power limit, which a trace need not report; here it is relative to the
    highest reading.
    """
    if uniform(trace) is None:
        return NOTHING
    time_s = trace["time_s"].to_numpy()
    at = np.searchsorted(time_s, np.arange(time_s[0], time_s[-1], ODPP_STEP_S), side="right") - 1
    power_w = trace["power_w"].to_numpy()
    x = power_w / power_w.max()
    for column in ("utilisation", "memory_utilisation"):
        if column in trace.columns:
            x = x + trace[column].to_numpy()
    held = x[at]
    if len(held) < 20:
        return NOTHING
    amplitude = np.abs(transform.rfft(held - held.mean()))
    periods_s = len(held) * ODPP_STEP_S / np.maximum(np.arange(len(amplitude)), 1e-9)
    peaks = 1 + np.flatnonzero((amplitude[1:-1] > amplitude[:-2]) & (amplitude[1:-1] >= amplitude[2:]))
    peaks = peaks[periods_s[peaks] <= min(ODPP_LONGEST_S, len(held) * ODPP_STEP_S / 3)]
    return Verdict(float(periods_s[peaks[np.argmax(amplitude[peaks])]]), True) if len(peaks) else NOTHING


def autocorrelation(x: Array) -> Array:
    """Sums of products at every lag."""
    size = transform.next_fast_len(2 * len(x), real=True)
    spectrum = transform.rfft(x, size)
    return np.asarray(transform.irfft(spectrum * np.conj(spectrum), size)[: len(x)])


def _energies(x: Array) -> Array:
    """At every lag, the energy of both overlapping pieces together: m'(tau) of McLeod and Wyvill, equation
    6.
    """
    total = np.concatenate([[0.0], np.cumsum(x**2)])
    lag = np.arange(len(x))
    return np.asarray(np.maximum(total[len(x) - lag] + total[-1] - total[lag], 1e-12))


def _vertex(values: Array, k: int) -> float:
    """Where between the neighbours of `k` a parabola through the three has its extremum, in steps from
    `k`.
    """
    if not 0 < k < len(values) - 1:
        return 0.0
    left, middle, right = values[k - 1 : k + 2]
    curve = left - 2 * middle + right
    return float(np.clip(0.5 * (left - right) / curve, -0.5, 0.5)) if curve else 0.0


def _peaks_after_zero(r: Array, longest: int) -> Array:
    below = np.flatnonzero(r[:longest] < 0)
    if not len(below):
        return np.empty(0, int)
    inner = np.arange(max(1, int(below[0])), min(longest, len(r) - 1))
    return inner[(r[inner] > r[inner - 1]) & (r[inner] >= r[inner + 1]) & (r[inner] > 0)]


def _key_maxima(n: Array, longest: int) -> Array:
    """The highest peak of every stretch between an upward and the next downward crossing of zero."""
    peaks = _peaks_after_zero(n, longest)
    if not len(peaks):
        return peaks
    stretch = np.cumsum(np.diff(np.sign(n[: longest + 1]) > 0, prepend=False))[peaks]
    best = [group[np.argmax(n[group])] for group in np.split(peaks, 1 + np.flatnonzero(np.diff(stretch)))]
    return np.array(best, int)


def _on_a_hill(r: Array, n: int, k: int) -> int | None:
    """The autocorrelation's peak next to the period n/k, if two straight lines around it go up and then
    down (section 4.3).
    """
    low = int(np.floor(0.5 * (n / (k + 1) + n / k))) - 1
    high = int(np.ceil(0.5 * (n / k + n / max(k - 1, 1)))) + 1
    low, high = max(1, low), min(high, len(r) - 2)
    if high - low < 4:
        centre = round(n / k)
        if not 1 <= centre < len(r) - 1:
            return None
        nearest = centre - 1 + int(np.argmax(r[centre - 1 : centre + 2]))
        return nearest if r[nearest] > max(r[nearest - 1], r[min(nearest + 1, len(r) - 1)]) else None
    slopes, split = _two_lines(r[low : high + 1])
    if not slopes[0] > 0 > slopes[1]:
        return None
    lag = low + split
    while lag < len(r) - 2 and r[lag + 1] > r[lag]:
        lag += 1
    while lag > 1 and r[lag - 1] > r[lag]:
        lag -= 1
    return lag


def _two_lines(values: Array) -> tuple[tuple[float, float], int]:
    """Slopes of the two least-squares lines that fit a curve best, and where they meet."""
    count = len(values)
    x = np.arange(count, dtype=float)
    sums = [
        np.concatenate([[0.0], np.cumsum(each)])
        for each in (np.ones(count), x, values, x * x, x * values, values**2)
    ]

    def line(start: Array | int, stop: Array | int) -> tuple[Array, Array]:
        one, sx, sy, sxx, sxy, syy = (each[stop] - each[start] for each in sums)
        vxx, vxy, vyy = sxx - sx * sx / one, sxy - sx * sy / one, syy - sy * sy / one
        slope = vxy / vxx
        return slope, vyy - slope * vxy

    cuts = np.arange(2, count - 1)
    (left, left_error), (right, right_error) = line(0, cuts), line(cuts, count)
    best = int(np.argmin(left_error + right_error))
    return (float(left[best]), float(right[best])), int(cuts[best])
