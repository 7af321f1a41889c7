"""The energy between two moments, from a counter that moves in steps and readings that look part of the time;
with its error.

Between two steps of the counter the energy is exact; what is uncertain is the piece of a step at either edge
of a window. Power near an edge is taken as a Gaussian process: a level that may change at the edge (a cell
starts or ends work there) plus fluctuation with exponential correlation (Ornstein-Uhlenbeck). Steps of the
counter and power readings are both means of that process over known stretches, so the energy of the piece is
a conditional mean and its error a conditional variance (kriging with interval supports; Rasmussen and
Williams, "Gaussian Processes for Machine Learning", 2.2). Size and length of the fluctuation, and whether the
level changes, are averaged over by their likelihood.

Pure functions over arrays: seconds, joules, watts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

Floats = NDArray[np.float64]

LEVEL_SD = 0.7  # how far levels lie apart before anything is known, of the highest power around
FLUCTUATION = (0.003, 0.03, 0.1, 0.25, 0.5)  # of the highest power around
CORRELATION_STEPS = (0.05, 0.2, 0.7, 3.0)  # of the update period
NEIGHBOURS = 2  # steps on either side of an edge that are looked at
READING_ERROR = 0.006  # relative noise of a power reading
BESIDE_ERROR = 0.015  # the same beside a counter, whose gain may be another
UNKNOWN_W = 300.0  # what power may be where nothing at all was read
SHORT = 1.2  # bars of windows within a few steps, whose two edges share what little is known
TIMING = 1.3  # errors of the steps' times, which are less alike at both edges than their fit says
UNSEEN = 0.4  # of the roughness that is seen, hides between two refreshes


@dataclass(frozen=True, slots=True)
class EnergyEstimate:
    """Joules and the half width of their 95 % interval."""

    energy_j: float
    uncertainty_j: float


@dataclass(frozen=True, slots=True)
class SensorUpdates:
    """What a sensor said, one entry per refresh, in order of time.

    Args:
        tick_s: When it refreshed.
        energy_j: The counter then; NaN where there is no counter.
        power_w: The power reading seen with it, a mean over the `window_s` before its own refresh; NaN where
            there is none.
        power_tick_s: When the power reading had refreshed; NaN where that is not known.
        window_s: Averaging window of a power reading.
        period_s: Time between refreshes.
        tick_error_s: Standard error of `tick_s`, common to all.
        most_w: The most that this GPU may draw (its power limit); bounds what an unseen change can be.
    """

    tick_s: Floats
    energy_j: Floats
    power_w: Floats
    power_tick_s: Floats
    window_s: float
    period_s: float
    tick_error_s: float
    most_w: float = 0.0


def window_energy(steps: SensorUpdates, start_s: float, end_s: float) -> EnergyEstimate:
    """Energy between two moments that the steps surround (or that lie within a few steps of the last one).

    Raises:
        ValueError: fewer than two steps, or an end before the start.
    """
    if len(steps.tick_s) < 2:
        raise ValueError(f"{len(steps.tick_s)} refreshes of the sensor are too few for an estimate")
    if end_s < start_s:
        raise ValueError(f"the window ends {start_s - end_s:g} s before it starts")
    counted = bool(np.isfinite(steps.energy_j).any())
    inner = _inner(steps, start_s, end_s, counted)
    reach_s = NEIGHBOURS * steps.period_s
    if inner is None:
        cells = _supports(steps, start_s - reach_s, end_s + reach_s, counted)
        plateau = _step_around(steps, start_s)[:1] + _step_around(steps, end_s)[1:]
        energy = _conditional(
            cells, (start_s, end_s), ((), (start_s,), (end_s,), (start_s, end_s), plateau), steps
        )
    else:
        first, last = inner
        between_j, variance = _between(steps, first, last, counted)
        energy = _Mixture(np.ones(1), np.array([between_j]), np.array([variance]))
        for edge_s, piece in (
            (start_s, (start_s, steps.tick_s[first])), (end_s, (steps.tick_s[last], end_s)),
        ):
            cells = _supports(steps, edge_s - reach_s, edge_s + reach_s, counted)
            energy = energy + _conditional(cells, piece, ((), (edge_s,), _step_around(steps, edge_s)), steps)
    timing_j = [TIMING * steps.tick_error_s * _power_near(steps, at_s) for at_s in (start_s, end_s)]
    floor = sum(part**2 for part in timing_j)
    floor += sum(_unseen_j(steps, at_s, counted) ** 2 for at_s in (start_s, end_s))
    return EnergyEstimate(energy.mean, energy.half_width(floor) * (SHORT if inner is None else 1.0))


@dataclass(frozen=True, slots=True)
class _Mixture:
    """A weighted sum of normal distributions."""

    weight: Floats
    centre: Floats
    variance: Floats

    @property
    def mean(self) -> float:
        return float(self.weight @ self.centre)

    def __add__(self, other: _Mixture) -> _Mixture:
        """Of the sum of two independent quantities."""
        return _Mixture(
            np.outer(self.weight, other.weight).ravel(), np.add.outer(self.centre, other.centre).ravel(),
            np.add.outer(self.variance, other.variance).ravel(),
        )

    def likely(self, most: int = 20) -> _Mixture:
        """The components that count."""
        keep = np.argsort(self.weight)[-most:]
        weight = self.weight[keep] / self.weight[keep].sum()
        return _Mixture(weight, self.centre[keep], self.variance[keep])

    def half_width(self, floor: float) -> float:
        """Half width of the 95 % interval around the mean, with a variance added to every component."""
        mean, sd = self.mean, np.sqrt(np.maximum(self.variance, 0.0) + floor) + 1e-12
        low, high = 0.0, float(np.max(np.abs(self.centre - mean)) + 4.0 * np.max(sd))
        for _ in range(28):
            middle = 0.5 * (low + high)
            # A sum and not a dot product: BLAS would wake its threads for ten thousand numbers, on a machine
            # that computes.
            inside = ndtr((mean + middle - self.centre) / sd) - ndtr((mean - middle - self.centre) / sd)
            low, high = (middle, high) if float(np.sum(self.weight * inside)) < 0.95 else (low, middle)
        return high


def _unseen_j(steps: SensorUpdates, at_s: float, counted: bool) -> float:
    """What may hide between two refreshes: as much as readings that look part of the time differ from the
    whole.
    """
    index = int(np.searchsorted(steps.tick_s, at_s))
    near = slice(max(index - 1, 1), index + 2)
    spans = np.diff(steps.tick_s)[near.start - 1 : near.stop - 1]
    into_s = at_s - steps.tick_s[min(max(index - 1, 0), len(steps.tick_s) - 1)]
    edge_s = min(max(into_s, 0.0), max(steps.period_s - into_s, 0.0))
    if counted and steps.window_s < 0.6 * steps.period_s:
        whole_w = np.diff(steps.energy_j)[near.start - 1 : near.stop - 1] / spans
        differences = steps.power_w[near] - whole_w
    elif counted:
        differences = np.diff(np.diff(steps.energy_j) / np.diff(steps.tick_s))[near.start - 1 : near.stop - 1]
    else:
        differences = np.diff(steps.power_w)[near.start - 1 : near.stop - 1]
        edge_s = min(edge_s, steps.period_s - steps.window_s)
    differences = differences[np.isfinite(differences)]
    if not len(differences):
        return 0.0
    return float(UNSEEN * np.sqrt(np.mean(np.square(differences))) * edge_s)


def _inner(steps: SensorUpdates, start_s: float, end_s: float, counted: bool) -> tuple[int, int] | None:
    """First and last step inside a window long enough for its edges not to know of each other."""
    known = np.isfinite(steps.energy_j) if counted else np.isfinite(steps.power_w)
    inside = np.flatnonzero(known & (steps.tick_s >= start_s) & (steps.tick_s <= end_s))
    if len(inside) < 2 or end_s - start_s < (NEIGHBOURS + 2) * steps.period_s:
        return None
    return int(inside[0]), int(inside[-1])


def _between(steps: SensorUpdates, first: int, last: int, counted: bool) -> tuple[float, float]:
    """Energy and variance between two steps: exact by the counter, by readings where there is none."""
    if counted:
        return float(steps.energy_j[last] - steps.energy_j[first]), 0.0
    times, power = steps.tick_s[first : last + 1], steps.power_w[first : last + 1]
    known = np.isfinite(power)
    times, power = times[known], power[known]
    spans = np.diff(times)
    unseen = np.maximum(spans - steps.window_s, 0.0)
    # A reading is the mean of the window before its step; what lies between two windows is taken as between
    # the readings.
    energy_j = float(np.sum(power[1:] * (spans - unseen) + 0.5 * (power[1:] + power[:-1]) * unseen))
    jumps = np.diff(power)
    rough = 0.5 * (jumps[1:] - jumps[:-1]) if len(jumps) > 1 else jumps
    noise = READING_ERROR * power[1:] * (spans - unseen)
    return energy_j, float(np.mean(rough**2) * np.sum(unseen**2) + np.sum(noise**2) / 4)


@dataclass(frozen=True, slots=True)
class _Cells:
    """Stretches of time, the mean power over each, and the variance of that mean as read."""

    begin_s: Floats
    end_s: Floats
    mean_w: Floats
    variance: Floats


def _supports(steps: SensorUpdates, from_s: float, to_s: float, counted: bool) -> _Cells:
    """All means that the sensor gave near an edge: steps of the counter, and readings where they say
    something else.
    """
    near = (steps.tick_s >= from_s) & (steps.tick_s <= to_s)
    begins, ends, means, variances = [], [], [], []
    if counted:
        known = near & np.isfinite(steps.energy_j)
        times, energy = steps.tick_s[known], steps.energy_j[known]
        spans = np.diff(times)
        begins.append(times[:-1])
        ends.append(times[1:])
        means.append(np.diff(energy) / spans)
        variances.append(np.full(len(spans), 0.05**2) + (0.001 / spans) ** 2)
    known = (steps.power_tick_s >= from_s) & (steps.power_tick_s <= to_s) & np.isfinite(steps.power_w)
    times, power = steps.power_tick_s[known], steps.power_w[known]
    begins.append(times - steps.window_s)
    ends.append(times)
    means.append(power)
    # Beside a counter a reading's gain may be another than the counter's.
    variances.append(((BESIDE_ERROR if counted else READING_ERROR) * power) ** 2 + 0.3**2)
    return _Cells(*(np.concatenate(parts) for parts in (begins, ends, means, variances)))


def _conditional(
    cells: _Cells, piece: tuple[float, float], hypotheses: tuple[tuple[float, ...], ...], steps: SensorUpdates
) -> _Mixture:
    """The energy of a piece of time, given the cells; the level may change at the times of one of the
    hypotheses.
    """
    span_s = piece[1] - piece[0]
    if span_s <= 0:
        return _Mixture(np.ones(1), np.zeros(1), np.zeros(1))
    if not len(cells.mean_w):
        return _Mixture(np.ones(1), np.zeros(1), np.array([(UNKNOWN_W * span_s) ** 2]))
    answers = [_given_changes(cells, piece, points, steps) for points in hypotheses]
    score, mean_w, variance = (np.concatenate(parts) for parts in zip(*answers, strict=True))
    weight = np.exp(score - score.max())
    return _Mixture(weight / weight.sum(), mean_w * span_s, variance * span_s**2).likely()


def _given_changes(
    cells: _Cells, piece: tuple[float, float], points: tuple[float, ...], steps: SensorUpdates
) -> tuple[Floats, Floats, Floats]:
    """Log likelihood, mean and variance of the piece's mean power, for each size and length of the
    fluctuation.
    """
    begin, end = np.append(cells.begin_s, piece[0]), np.append(cells.end_s, piece[1])
    borders = np.array([-np.inf, *points, np.inf])
    segments = len(borders) - 1
    low = np.maximum(begin[None, :], borders[:-1, None])
    high = np.minimum(end[None, :], borders[1:, None])
    share = np.maximum(high - low, 0.0) / (
        end - begin
    )  # (segments, cells): how much of each cell lies in a segment
    scale_w = max(float(np.max(cells.mean_w)), 1.0)
    level = (LEVEL_SD * max(scale_w, 0.6 * steps.most_w)) ** 2 * np.einsum("si,sj->ij", share, share)
    centre_w = float(np.mean(cells.mean_w))
    values = cells.mean_w - centre_w
    # Every segment has its own size of fluctuation: an idle GPU is quiet, a busy one is not.
    shapes = np.stack([_ou_means(low, high, share, length * steps.period_s) for length in CORRELATION_STEPS])
    # Before and after a piece with two changes the GPU does the same thing, most often nothing.
    pairs = product(FLUCTUATION, repeat=min(segments, 2))
    sizes = scale_w * np.array([(*pair, pair[0])[:segments] for pair in pairs])  # (combinations, segments)
    kernels = np.einsum("cs,lsij->clij", sizes**2, shapes).reshape(-1, len(begin), len(begin)) + level
    n = len(values)
    known = kernels[:, :n, :n] + np.diag(cells.variance)
    factor = np.linalg.cholesky(known)
    right = np.concatenate([np.broadcast_to(values, (len(known), n))[:, :, None], kernels[:, :n, n:]], axis=2)
    solved = np.linalg.solve(factor, right)
    white, cross = solved[:, :, 0], solved[:, :, 1]
    score = -0.5 * np.sum(white**2, axis=1) - np.sum(np.log(np.diagonal(factor, axis1=1, axis2=2)), axis=1)
    score -= math.log(len(kernels))  # the same prior weight for every number of changes
    mean = centre_w + np.sum(cross * white, axis=1)
    variance = kernels[:, n, n] - np.sum(cross**2, axis=1)
    return score, mean, np.maximum(variance, 0.0)


def _ou_means(low: Floats, high: Floats, share: Floats, length_s: float) -> Floats:
    """Covariances (segments, cells, cells) of cell means of a unit Ornstein-Uhlenbeck process, independent
    by segment.
    """

    def integral(u: Floats) -> Floats:  # twice integrated exp(-|u| / length)
        size = np.abs(u) / length_s
        return length_s**2 * (np.exp(-size) + size - 1.0)

    a, b = low[:, :, None], np.maximum(high, low)[:, :, None]
    c, d = low[:, None, :], np.maximum(high, low)[:, None, :]
    double = integral(b - c) - integral(a - c) - integral(b - d) + integral(a - d)
    sizes = (b - a) * (d - c)
    mean = np.divide(double, sizes, out=np.zeros_like(double), where=sizes > 0)
    return mean * share[:, :, None] * share[:, None, :]


def _step_around(steps: SensorUpdates, at_s: float) -> tuple[float, ...]:
    """The refreshes before and after a moment, as far as there are any."""
    index = int(np.searchsorted(steps.tick_s, at_s, side="right"))
    return tuple(float(at) for at in steps.tick_s[max(index - 1, 0) : index + 1])


def _power_near(steps: SensorUpdates, at_s: float) -> float:
    """Power around a moment, for what an error of time is worth."""
    index = min(max(int(np.searchsorted(steps.tick_s, at_s)), 1), len(steps.tick_s) - 1)
    span_s = steps.tick_s[index] - steps.tick_s[index - 1]
    counted_w = (steps.energy_j[index] - steps.energy_j[index - 1]) / span_s if span_s > 0 else math.nan
    reading_w = steps.power_w[index]
    return float(
        counted_w if math.isfinite(counted_w) else reading_w if math.isfinite(reading_w) else UNKNOWN_W
    )
