"""Candidate periods: peaks that several estimators propose, merged, refined on their own multiples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from scipy.fft import next_fast_len, rfft

from .correlation import CorrelationLevel, between, key_maxima, parabola, pyramids
from .signals import Pauses, Signal, SignalGrid

Array = np.ndarray

# Tuned constants of proposals, set manually; `tools.fit_period_ranker` must follow their changes.
MOST_CANDIDATES = 22
SAME_SHARE = 0.035  # periods closer than this share are the same
# the first key maxima above these shares of the highest are proposed, and the highest
MAXIMA_HEIGHTS = (0.9, 0.6)
SPECTRAL_PEAKS = 5

Proposed = tuple[float, float, float, float]  # the fields of `Candidate`


@dataclass(frozen=True)
class SignalView:
    """A signal with its correlations and spectra."""

    signal: Signal
    levels: tuple[CorrelationLevel, ...]  # longest window first
    densities: tuple[Array, ...]  # spectral density per level (Blackman-Tukey): share of variance per bin
    resolution_hz: tuple[float, ...]  # width of a bin of `densities`, per level
    spectrum: Array  # amplitudes of the whole trace, Hann window, padded; empty between pauses
    spectrum_hz: float  # width of a bin of `spectrum`

    def level_for(self, period_s: float, periods: float) -> int:
        """The shortest window that contains so many periods, else the longest."""
        least_s = periods * period_s
        longer = (k for k in range(len(self.levels) - 1, 0, -1) if self.levels[k].window_s >= least_s)
        return next(longer, 0)


class LevelBank:
    """The levels of several views in one array, so that many lags are read together.

    Levels are numbered consecutively. `values` and `middle` of level k begin at `first[k]`, and have
    `count[k]` lags `step_s[k]` apart. `densities` (levels, bins) have `bins[k]` bins `bin_hz[k]` apart, and
    then zeros.
    """

    def __init__(self, views: Sequence[SignalView]) -> None:
        levels = [level for view in views for level in view.levels]
        self.count = np.array([len(level.values) for level in levels])
        self.first = np.cumsum(self.count) - self.count
        self.step_s = np.array([level.step_s for level in levels])
        self.values = np.concatenate([*(level.values for level in levels), [0.0]])
        self.middle = np.concatenate([*(level.middle for level in levels), [0.0]])
        shares = [density for view in views for density in view.densities]
        self.bins = np.array([len(density) for density in shares])
        self.densities = np.zeros((len(shares), int(self.bins.max())))
        for row, density in zip(self.densities, shares, strict=True):
            row[: len(density)] = density
        self.bin_hz = np.array([width for view in views for width in view.resolution_hz])
        depths = [len(view.levels) for view in views]
        self._longest = np.cumsum(depths) - depths
        self._windows_s = np.zeros((len(views), max(depths)))
        for row, view in zip(self._windows_s, views, strict=True):
            row[: len(view.levels)] = [level.window_s for level in view.levels]

    def level_for(self, view: Array, periods_s: Array, periods: float, longer: int = 0) -> Array:
        """The numbers (n,) of the shortest windows of views (n,) that contain so many periods (n,), else of
        the longest; `longer` selects windows so many levels longer.

        Args:
            view: (n,) numbers of views.
            periods_s: (n,) periods.
            periods: Required number of periods per window.
            longer: Number of levels to add.
        """
        fits = np.count_nonzero(self._windows_s[view] >= (periods * periods_s)[:, None], axis=1)
        found: Array = self._longest[view] + np.maximum(fits - 1 - longer, 0)
        return found

    def at(self, level: Array, lags_s: Array, *, middle: bool = False) -> Array:
        """The values at lags (n, m) of levels (n,), interpolated; NaN beyond half a window."""
        values = self.middle if middle else self.values
        place = lags_s / self.step_s[level][:, None]
        most = self.count[level][:, None] - 1
        k = np.minimum(place.astype(np.int64), most - 1)
        at = self.first[level][:, None] + k
        return np.where(place <= most, values[at] + (values[at + 1] - values[at]) * (place - k), np.nan)

    def highest(self, level: Array, lags_s: Array) -> Array:
        """The highest values within 3 % of lags (n, m) of levels (n,); NaN beyond half a window."""
        step_s, most = self.step_s[level][:, None], self.count[level][:, None] - 2
        low = np.ceil(lags_s * (0.97 / step_s)).astype(np.int64)
        high = (lags_s * (1.03 / step_s)).astype(np.int64)
        narrow = high - low < 2
        low, high = low - narrow, high + narrow
        known = high <= most
        low = np.minimum(np.maximum(low, 1), most)
        high, first = np.minimum(np.maximum(high, low), most), self.first[level][:, None]
        top = self.greatest((first + low).ravel(), (first + high + 1).ravel())
        return np.where(known, top.reshape(lags_s.shape), np.nan)

    def greatest(self, first: Array, end: Array) -> Array:
        """The highest of the values from each place (n,) to before another (n,)."""
        if not len(first):
            return np.empty(0)
        return np.maximum.reduceat(self.values, np.column_stack([first, end]).ravel())[::2]


@dataclass(frozen=True)
class Candidate:
    """A period (s), its `votes` by correlation windows, their best NSDF `clarity`, its spectral `peak`."""

    period_s: float
    votes: float
    clarity: float
    peak: float


def signal_views(signals: Sequence[Signal], step_s: float) -> list[SignalView]:
    """The views of signals of one grid."""
    values = np.stack([signal.values for signal in signals])
    shortest_windows_s = [max(3.0, 6 * signal.shortest_s) for signal in signals]
    levels = pyramids(values, signals[0].weights, step_s, shortest_windows_s)
    return _views(signals, levels, values, step_s)


def view_between(signal: Signal, step_s: float, found: Pauses) -> SignalView:
    """The view of a signal between its pauses only."""
    inside = np.concatenate([signal.values[piece] for piece in found.pieces])
    part = replace(signal, name="between_pauses", values=inside - inside.mean(), weights=np.ones(len(inside)))
    levels = [between(signal.values, signal.weights, step_s, found.pieces)]
    return _views([part], [levels], None, step_s)[0]


def _views(
    signals: Sequence[Signal], levels: Sequence[Sequence[CorrelationLevel]], values: Array | None,
    step_s: float,
) -> list[SignalView]:
    """The views of signals by their levels; with spectra where `values` (signals, n) are given."""
    densities: list[list[Array]] = [[] for _ in signals]
    for number in range(max(map(len, levels))):
        having = [k for k, own in enumerate(levels) if len(own) > number]
        rows = np.stack([levels[k][number].values for k in having])
        size = rows.shape[1]
        tapered = rows * _taper(size)
        # An even sequence: its transform is real, and is the power spectrum (Wiener-Khinchin).
        density = np.maximum(rfft(np.concatenate([tapered, tapered[:, -2:0:-1]], axis=1)).real, 0.0)
        density = density / np.maximum(density.sum(axis=1, keepdims=True), 1e-12)
        for k, own in zip(having, density, strict=True):
            densities[k].append(own)
    amplitudes, pad = np.zeros((len(signals), 0)), 1
    if values is not None:
        pad = next_fast_len(2 * values.shape[1], real=True)
        amplitudes = np.abs(rfft(values * _hann(values.shape[1]), pad))
    found = []
    for signal, own, shares, amplitude in zip(signals, levels, densities, amplitudes, strict=True):
        widths = tuple(1 / (2 * (len(level.values) - 1) * level.step_s) for level in own)
        found.append(SignalView(signal, tuple(own), tuple(shares), widths, amplitude, 1 / (pad * step_s)))
    return found


@lru_cache(maxsize=64)
def _taper(size: int) -> Array:
    found: Array = 0.5 + 0.5 * np.cos(np.pi * np.arange(size) / size)
    return found


@lru_cache(maxsize=4)
def _hann(size: int) -> Array:
    return np.hanning(size)


def propose(grid: SignalGrid, views: list[SignalView]) -> list[Candidate]:
    """At most `MOST_CANDIDATES` candidates, the most voted first."""
    longest_s = grid.seconds / 2.2
    moving = [view for view in views if view.signal.sd > 0]
    proposed = _from_levels(moving, longest_s)  # period, votes, clarity, spectral
    for view in moving:
        proposed.extend(_from_spectrum(view, longest_s))
    return _doubled(_merge(proposed), views[0], longest_s)


def _doubled(found: list[Candidate], view: SignalView, longest_s: float) -> list[Candidate]:
    """Twice the strongest: two halves that are nearly alike hide the true period from every estimator."""
    more: list[Candidate] = []
    for one in found[:6]:
        twice_s = 2 * one.period_s
        near = any(abs(np.log(twice_s / other.period_s)) < SAME_SHARE for other in found + more)
        if twice_s > longest_s or near:
            continue
        place_s, value = view.levels[view.level_for(twice_s, 4)].near(twice_s, 0.03)
        if np.isfinite(value) and value > 0.1:
            more.append(Candidate(place_s, 0.1, value, 0.0))
    return (found + more)[:MOST_CANDIDATES]


def _from_levels(views: Sequence[SignalView], longest_s: float) -> list[Proposed]:
    found = []
    for view in views:
        for level in view.levels:
            first = max(2, int(np.ceil(0.97 * view.signal.shortest_s / level.step_s)))
            last = min(int(longest_s / level.step_s), len(level.values) - 3)
            for values in (level.values,) if level.middle is level.values else (level.values, level.middle):
                peaks = key_maxima(values, first, last) if last >= first else np.empty(0, np.int64)
                top = float(values[peaks].max(initial=0.0))
                if top < 0.08:
                    continue
                above = [int(peaks[values[peaks] >= share * top][0]) for share in (*MAXIMA_HEIGHTS, 1.0)]
                for place, value in (parabola(values, k) for k in dict.fromkeys(above)):
                    found.append((place * level.step_s, 1.0, value, 0.0))
    return found


def _from_spectrum(view: SignalView, longest_s: float) -> list[Proposed]:
    from scipy.signal import find_peaks  # the ranker's library loads most of it anyway

    amplitude, width = view.spectrum, view.spectrum_hz
    low = max(3, int(1 / (longest_s * width)))
    high = min(len(amplitude) - 2, int(1 / (0.97 * view.signal.shortest_s * width)))
    if high - low < 3:
        return []
    peaks = find_peaks(amplitude[low - 1 : high + 1])[0] + low - 1
    if len(peaks) == 0:
        return []
    order = peaks[np.argsort(amplitude[peaks])[::-1][:SPECTRAL_PEAKS]]
    top = float(amplitude[order[0]])
    places = [1 / (parabola(amplitude, int(k))[0] * width) for k in order]
    return [(at, 0.6, 0.0, float(amplitude[k]) / top) for at, k in zip(places, order, strict=True)]


def _merge(proposed: list[Proposed]) -> list[Candidate]:
    """Proposals nearer than `SAME_SHARE` become one, at their weighted mean."""
    if not proposed:
        return []
    proposed = sorted(proposed)
    firsts, first_s, last_s = [0], proposed[0][0], proposed[0][0]
    for number, (period_s, *_) in enumerate(proposed):
        if period_s > min(last_s * (1 + SAME_SHARE / 2), first_s * (1 + 2 * SAME_SHARE)):
            firsts.append(number)
            first_s = period_s
        last_s = period_s
    table = np.array(proposed)
    weight = table[:, 1] * (0.05 + np.maximum(table[:, 2], 0.8 * table[:, 3]))
    votes = np.add.reduceat(weight, firsts)
    periods_s = np.add.reduceat(table[:, 0] * weight, firsts) / votes
    clarity, peak = np.maximum.reduceat(table[:, 2:], firsts).T
    found = [Candidate(*row) for row in np.column_stack([periods_s, votes, clarity, peak]).tolist()]
    found.sort(key=lambda one: -one.votes - one.peak)
    return found[:MOST_CANDIDATES]


def refine(view: SignalView, period_s: float) -> float:
    """A period (s) refined at increasing multiples, each doubling the precision of the NSDF's peak."""
    best, multiple, slack = period_s, 1, 0.03
    start_s, start = period_s, None
    while True:
        lag_s = best * multiple
        level = view.levels[view.level_for(lag_s, 2.5)]
        place_s, value = level.near(lag_s, slack / multiple if multiple > 1 else slack)
        if not np.isfinite(value) or (start is not None and value < 0.6 * start) or value <= 0.05:
            break
        start = value if start is None else max(start, value)
        best = place_s / multiple
        multiple *= 2
        slack = 0.04
        if multiple > 64:
            break
    return best if abs(best / start_s - 1) < 0.04 else start_s
