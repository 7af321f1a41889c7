"""Values of a sensor at its refreshes, and from them the energy between two moments, with its error.

Between two steps of a counter the energy is exact; uncertain is the piece of a step at either edge of a
window. Power near an edge is taken as a Gaussian process: a level that may change at the edge, plus
fluctuation with exponential correlation (Ornstein-Uhlenbeck). Steps of the counter and power readings are
means of it over known stretches. So the energy of the piece is a conditional mean and its error a conditional
variance (kriging with interval supports; Rasmussen and Williams, "Gaussian Processes for Machine Learning",
2.2). Size and length of the fluctuation, and whether the level changes, are averaged over by their
likelihood.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..records import Edge
from ..samples import refreshes
from .sampled_counter import READING_ERROR, missed_variance

Floats = NDArray[np.float64]
Rows = np.ndarray

# Sizes of the fluctuation, of the highest power around, and its correlation lengths, of the update period: a
# grid over which the estimate averages. Half as many give the same figures but for short parts of a window.
FLUCTUATION = (0.003, 0.03, 0.1, 0.25, 0.5)
CORRELATION_STEPS = (0.05, 0.2, 0.7, 3.0)
NEIGHBOURS = 2  # steps on either side of an edge that say something about it; half a step later none does
RESOLUTION_J = 0.001  # of a counter: NVML's millijoules
SHORT = 1.2  # bars of windows within a few steps, where few means decide which of the hypotheses is likely
HISTORY_S = 30.0  # before and after an edge: steps that show what the step at the edge may hide
ALIKE = 0.02  # of the power limit: a larger change between two steps is a visible change of the load
GROWTH = 1.7  # of the roughness with the lag; independent steps have none, those that drift along a wave do
SWING = 0.7  # 95 % quantile of the product of two uniform variables: a wave's swing, and the phase of an edge
BETWEEN = 1.25  # times the median roughness, hides within a step where the load visibly changes; else twice
UNTOLD_ERROR_S = 1e-3  # of a refresh's moment, where a stored trace has none
LATE_S = 2.0  # without a new reading of the counter, after which what was drawn meanwhile is not known
# Half width of what is uniform over a width of 1: the 95 % interval of the sum of two, over the root of two.
UNIFORM = (1 - 0.05**0.5) / 2**0.5


class EnergyParts(NamedTuple):
    """Joules of stretches, which add up to the whole, and the half widths of their 95 % intervals.

    NaN where nothing was seen; an infinite half width where a stretch was not followed.
    """

    energy_j: Floats
    uncertainty_j: Floats

    @property
    def known(self) -> NDArray[np.bool_]:
        return np.isfinite(self.energy_j) & np.isfinite(self.uncertainty_j)



@dataclass(frozen=True)
class SensorUpdates:
    """Values of a sensor, one entry per refresh, in order of time; NaN for missing ones."""

    tick_s: Floats  # when it refreshed
    energy_j: Floats  # the counter then
    power_w: Floats  # seen with it, a mean over the `window_s` before its own refresh
    power_tick_s: Floats  # when the power reading had refreshed
    window_s: float  # averaging window of a power reading
    period_s: float  # time between refreshes
    tick_error_s: Floats  # standard error of `tick_s`
    most_w: float = 0.0  # that this GPU may draw (its power limit); bounds what an unseen change can be
    # Whether the counter only sums readings; `power_w` then comes from its steps. None: that is not known.
    part_time: bool | None = False
    regular: bool = True  # whether refreshes are on a line, so that their errors cancel between two of them

    @property
    def counted(self) -> bool:
        """Whether there is a counter that integrates power all the time."""
        return not self.part_time and bool(np.isfinite(self.energy_j).any())

    @property
    def known(self) -> NDArray[np.bool_]:
        """Which refreshes energy can be counted from."""
        return np.isfinite(self.energy_j if self.counted or self.part_time else self.power_w)

    @property
    def highest_w(self) -> float:
        """The highest power that was observed, or the limit where that is higher."""
        counted_w = np.diff(self.energy_j) / np.diff(self.tick_s)
        observed_w = np.concatenate([self.power_w, counted_w])
        return float(np.max(observed_w[np.isfinite(observed_w)], initial=max(self.most_w, 1.0)))


def as_updates(
    rows: Rows, window_s: float | None, closing: Edge | None = None, most_w: float = 0.0, *,
    part_time: bool | None = False,
) -> SensorUpdates | None:
    """One entry per refresh of the sensor, on one line in time where they are on one: the rest of their error
    cancels between the edges of a window. None while the refreshes are not known.

    Args:
        rows: Samples, `samples.ROWS`.
        window_s: Over which readings are averages; None where they are instantaneous.
        closing: A counter reading at the window's end, which may show a refresh that no row has.
        most_w: Highest possible power; 0 where unknown.
        part_time: Whether the counter only sums readings that average part of each interval; None where that
            is not known.
    """
    ticks = rows["tick_s"][np.isfinite(rows["tick_s"])]
    gaps = np.diff(ticks)
    gaps = gaps[gaps > 0.004]
    if not len(gaps):
        return None
    rows = refreshes(rows, float(np.median(gaps)))
    if len(rows) < 3:
        return None
    period_s = float(np.median(np.diff(rows["tick_s"])))
    error_s = np.nan_to_num(rows["tick_error_s"].astype(np.float64), nan=UNTOLD_ERROR_S)
    tick_s, regular = _on_one_line(rows["tick_s"], period_s, error_s)
    energy_j, power_w, power_tick_s = (
        rows[name].astype(np.float64) for name in ("energy_j", "power_w", "power_tick_s")
    )
    if regular and closing is not None and closing.energy_j > energy_j[-1]:
        later, into = divmod((closing.time_s - closing.took_s / 2 - tick_s[-1]) / period_s, 1.0)
        # A reading just before a refresh may have been answered just after it.
        if later >= 1 and into * period_s + closing.took_s < period_s - 0.005:
            tick_s = np.append(tick_s, tick_s[-1] + later * period_s)
            energy_j, error_s = np.append(energy_j, closing.energy_j), np.append(error_s, error_s[-1])
            power_w, power_tick_s = np.append(power_w, math.nan), np.append(power_tick_s, math.nan)
    if window_s is None:  # what a reading is the mean of: of all between two, unless the counter knows that
        window_s = period_s
        power_tick_s = np.where(np.isfinite(energy_j), np.nan, power_tick_s)
    if part_time:
        power_tick_s, power_w = tick_s, np.append(power_w[:1], np.diff(energy_j) / np.diff(tick_s))
    return SensorUpdates(
        tick_s, energy_j, power_w, power_tick_s, window_s, period_s, error_s, most_w, part_time, regular
    )


def _on_one_line(times: Floats, period_s: float, errors: Floats) -> tuple[Floats, bool]:
    """Refresh times on a weighted straight line, and whether they keep to one; else as they are."""
    numbers = np.round((times - times[-1]) / period_s)
    if len(times) < 4 or np.min(np.diff(numbers)) < 1:
        return times, len(times) < 4
    weight = 1.0 / np.maximum(errors, 1e-6)
    slope, offset = np.polyfit(numbers, times - times[-1], 1, w=weight)
    line: Floats = times[-1] + offset + slope * numbers
    keeps = bool(np.all(np.abs(line - times) < 4.0 * errors + 2e-4))
    return (line if keeps else times), keeps


def reaches(updates: SensorUpdates, start_s: float, end_s: float) -> bool:
    """Whether the sensor was followed all through a window."""
    slack_s = (NEIGHBOURS + 0.5) * updates.period_s
    tick_s = updates.tick_s
    near_start = (tick_s <= start_s) & (tick_s > start_s - slack_s)
    return bool(near_start.any()) and bool(tick_s[-1] > end_s - slack_s)


class _Curve(NamedTuple):
    """The energy at each refresh that it can be counted from, and the variance of what was not observed."""

    tick_s: Floats
    energy_j: Floats
    variance: Floats
    power_w: Floats


def energy_by_refreshes(updates: SensorUpdates, moments: Floats) -> EnergyParts:
    """The stretches between moments that the refreshes surround or nearly reach."""
    curve = _curve(updates)
    inside = _inside(updates, curve, moments)
    if inside is None:
        energy_j, variance = _within_few(updates, moments)
    else:
        energy_j, variance = _over_many(updates, curve, moments, inside)
    if len(curve.tick_s) > 1:
        number = np.clip(np.searchsorted(curve.tick_s, moments) - 1, 0, len(curve.tick_s) - 2)
        power_w = (np.diff(curve.energy_j) / np.diff(curve.tick_s))[number]
        off_j = power_w * _tick_errors(updates)[updates.known][number]
        low_j, high_j = curve.energy_j[number] - 3 * off_j, curve.energy_j[number + 1] + 3 * off_j
        if updates.counted and curve.tick_s[0] <= moments[0] and moments[-1] <= curve.tick_s[-1]:
            # Whatever power did, the counter did not pass the readings before and after a moment.
            least_j, most_j = low_j[1:] - high_j[:-1], high_j[1:] - low_j[:-1]
            energy_j = np.clip(energy_j, least_j, most_j)
            most_j2 = np.square(most_j - least_j) / 4
            variance = np.where(np.isfinite(variance), np.minimum(variance, most_j2), variance)
        variance += _sums(np.square(off_j))
    else:
        variance += _sums(np.square(_tick_errors(updates)[:1] * np.full(len(moments), updates.highest_w)))
    if updates.part_time is not False:
        read = np.isfinite(curve.power_w)
        variance += missed_variance(curve.tick_s[read], curve.power_w[read], updates.window_s, moments)
    half_j = 1.96 * np.sqrt(variance)
    hidden_j = np.array([_hidden_j(updates, curve, at_s) for at_s in moments.tolist()])
    if len(curve.tick_s) > 1 and updates.counted:
        # In a step far longer than the others, as of a counter that rests with its GPU, power may jump once.
        span_s, gain_j = np.diff(curve.tick_s)[number], np.diff(curve.energy_j)[number]
        long = span_s > (NEIGHBOURS + 0.5) * updates.period_s
        hidden_j = np.maximum(hidden_j, np.where(long, UNIFORM * gain_j, 0.0))
        on_lines_j = np.diff(np.interp(moments, curve.tick_s, curve.energy_j))
        energy_j = np.where(long[1:] | long[:-1], on_lines_j, energy_j)
    return _forward(EnergyParts(energy_j, np.maximum(half_j, half_widths(hidden_j))))


def _tick_errors(updates: SensorUpdates) -> Floats:
    return np.broadcast_to(updates.tick_error_s, updates.tick_s.shape)


def energies_by_refreshes(updates: SensorUpdates, moments: Floats) -> Floats:
    """The energies alone, by straight lines between refreshes; what the lines miss of the whole at its edges
    counts in each stretch by its length.
    """
    curve = _curve(updates)
    energy_j = np.diff(np.interp(moments, curve.tick_s, curve.energy_j))
    whole_j = energy_by_refreshes(updates, moments[[0, -1]]).energy_j[0]
    return np.asarray(energy_j + (whole_j - energy_j.sum()) * np.diff(moments) / max(np.ptp(moments), 1e-9))


def _inside(updates: SensorUpdates, curve: _Curve, moments: Floats) -> tuple[int, int] | None:
    """The first and the last refresh between moments; None where they are so near that both edges depend on
    the same steps.
    """
    inside = np.flatnonzero((curve.tick_s >= moments[0]) & (curve.tick_s <= moments[-1]))
    if len(inside) < 2 or moments[-1] - moments[0] < (NEIGHBOURS + 2) * updates.period_s:
        return None
    return int(inside[0]), int(inside[-1])


def _over_many(
    updates: SensorUpdates, curve: _Curve, moments: Floats, inside: tuple[int, int]
) -> tuple[Floats, Floats]:
    """Energies and variances of the parts of a window whose edges are independent."""
    anchor = np.searchsorted(curve.tick_s, moments, side="right") - 1
    anchor[0], anchor[-1] = inside
    pairs = zip(moments.tolist(), anchor.tolist(), strict=True)
    at_j, variance = np.array([_at(updates, curve, at_s, tick) for at_s, tick in pairs]).T
    return np.diff(at_j), _sums(variance) + np.maximum(np.diff(curve.variance[anchor]), 0.0)


def _at(updates: SensorUpdates, curve: _Curve, at_s: float, number: int) -> tuple[float, float]:
    """The energy up to a moment near a refresh, and its variance."""
    tick_s, energy_j = float(curve.tick_s[number]), float(curve.energy_j[number])
    unfollowed = at_s - tick_s >= (NEIGHBOURS + 0.5) * updates.period_s
    if unfollowed and number + 1 < len(curve.tick_s):
        span_s, gain_j = (float(each[number + 1] - each[number]) for each in curve[:2])
        error_j = math.inf if span_s > LATE_S else UNIFORM * gain_j / 1.96
        return energy_j + gain_j * (at_s - tick_s) / span_s, error_j**2
    hypotheses = ((), (at_s,), _step_around(updates, at_s))
    (piece_j,), (variance,) = _conditional(updates, np.sort([at_s, tick_s]), hypotheses, at_s, at_s)
    return energy_j + math.copysign(piece_j, at_s - tick_s), variance


def _sums(values: Floats) -> Floats:
    return np.asarray(values[1:] + values[:-1])


def half_widths(half_j: Floats) -> Floats:
    """Half widths of stretches, from those of the moments they are between."""
    return np.hypot(half_j[1:], half_j[:-1])


def _forward(parts: EnergyParts) -> EnergyParts:
    """No window gives energy back."""
    return parts if parts.energy_j.sum() >= 0 else parts._replace(energy_j=np.zeros(len(parts.energy_j)))


def _hidden_j(updates: SensorUpdates, curve: _Curve, at_s: float) -> float:
    """Half width (J) of the 95 % interval of the energy that a step hides between its start and a moment.

    All steps are alike if the load repeats as often as the sensor refreshes. If the refreshes fall at
    changing phases of an iteration, the counter deviates from a straight line by as much as power deviates
    within a step. The deviation then does not grow with the lag over which it is taken. If it is too small
    to measure or still grows, the sampling cannot exclude any wave between no power and the power limit.
    """
    near = np.abs(curve.tick_s - at_s) <= HISTORY_S
    tick_s, joules = curve.tick_s[near], curve.energy_j[near]
    if len(tick_s) < 3:
        return 0.0
    number = int(np.clip(np.searchsorted(tick_s, at_s, side="right") - 1, 0, len(tick_s) - 2))
    spans = np.diff(tick_s)
    into = min(max(float((at_s - tick_s[number]) / spans[number]), 0.0), 1.0)
    inside = 4.0 * into * (1.0 - into)  # nothing hides at the ends of the step, where the counter is known
    if not updates.counted:
        return 2.0 * BETWEEN * _roughness(tick_s, joules, 1) * inside
    # A wave shorter than a step deviates near its ends too: as a random walk whose ends are known.
    rough = BETWEEN * math.sqrt(inside)
    hidden_j = rough * _roughness(tick_s, joules, 1)
    limit_w = updates.most_w
    power_w = np.diff(joules) / spans
    changes = np.flatnonzero(np.abs(np.diff(power_w)) > ALIKE * limit_w) + 1
    borders = np.concatenate([[0], changes, [len(power_w)]])
    first, last = borders[np.searchsorted(changes, number, side="right") + np.arange(2)]
    if not limit_w or last - first < 4:
        return hidden_j
    alike_s, alike_j = tick_s[first : last + 1], joules[first : last + 1]
    lags = np.unique(np.round(1.3 ** np.arange(30)).astype(int))
    lags = lags[3 * lags < len(alike_j)]
    rough_j = np.array([_roughness(alike_s, alike_j, lag) for lag in lags.tolist()])
    most_j = float(rough_j.max())
    measured = most_j > RESOLUTION_J
    if measured and most_j < GROWTH * rough_j[:3].max():
        return max(hidden_j, 2.0 * rough * most_j)
    # Of all power between two bounds with a given mean, a wave that jumps from one to the other deviates
    # most. Readings that average part of a step show every wave that is longer than what they average.
    high_w = max(limit_w, float(power_w.max()))
    wave_w = float(power_w[number]) * (1.0 - float(power_w[number]) / high_w)
    return max(hidden_j, SWING * wave_w * min(updates.window_s, updates.period_s) * inside)


def _roughness(tick_s: Floats, joules: Floats, lag: int) -> float:
    """Median distance (J) of the counter from the line between its values `lag` steps before and after."""
    before, after = slice(None, -2 * lag), slice(2 * lag, None)
    share = (tick_s[lag:-lag] - tick_s[before]) / (tick_s[after] - tick_s[before])
    middle = joules[lag:-lag] - joules[before] - share * (joules[after] - joules[before])
    return float(np.median(np.abs(middle)))


def _within_few(updates: SensorUpdates, moments: Floats) -> tuple[Floats, Floats]:
    """Energies and variances of the parts of a window of a few refreshes, whose edges are not independent."""
    start_s, end_s = float(moments[0]), float(moments[-1])
    plateau = _step_around(updates, start_s)[:1] + _step_around(updates, end_s)[1:]
    changes = ((), (start_s,), (end_s,), (start_s, end_s), plateau)
    energy_j, variance = _conditional(updates, moments, changes, start_s, end_s)
    return energy_j, SHORT**2 * variance


def _curve(updates: SensorUpdates) -> _Curve:
    """Energy since the first refresh: exact by the counter, else by power readings."""
    usable = np.flatnonzero(updates.known)
    tick_s, power_w = updates.tick_s[usable], updates.power_w[usable]
    if updates.counted or updates.part_time:
        return _Curve(tick_s, updates.energy_j[usable], np.zeros(len(usable)), power_w)
    spans = np.diff(tick_s)
    unseen = np.maximum(spans - updates.window_s, 0.0)
    # A reading is the mean of the window before its step; between two windows power is as between both.
    gains = power_w[1:] * (spans - unseen) + 0.5 * (power_w[1:] + power_w[:-1]) * unseen
    # Between two windows power may be anything as far from the readings as they differ, at each pass alike.
    noise = READING_ERROR * power_w[1:] * (spans - unseen)
    variances = 2.0 * np.square(np.diff(power_w) * unseen) + noise**2 / 4
    energy_j, variance = (np.append(0.0, np.cumsum(each)) for each in (gains, variances))
    return _Curve(tick_s, energy_j, variance, power_w)


@dataclass(frozen=True)
class _Cells:
    """Stretches of time, the mean power over each, and the variance of that mean as read."""

    begin_s: Floats
    end_s: Floats
    mean_w: Floats
    variance: Floats


def _supports(updates: SensorUpdates, from_s: float, to_s: float) -> _Cells:
    """Means given near an edge: steps of the counter, and readings where they tell something else."""
    near = (updates.tick_s >= from_s) & (updates.tick_s <= to_s)
    begins, ends, means, variances = [], [], [], []
    if updates.counted:
        known = near & np.isfinite(updates.energy_j)
        times, energy = updates.tick_s[known], updates.energy_j[known]
        spans = np.diff(times)
        errors_s = _tick_errors(updates)[known] * (not updates.regular)
        off = np.hypot(errors_s[1:], errors_s[:-1]) / spans
        begins.append(times[:-1])
        ends.append(times[1:])
        means.append(np.diff(energy) / spans)
        variances.append(0.05**2 + (RESOLUTION_J / spans) ** 2 + (means[-1] * off) ** 2)
    known = (updates.power_tick_s >= from_s) & (updates.power_tick_s <= to_s) & np.isfinite(updates.power_w)
    times, power = updates.power_tick_s[known], updates.power_w[known]
    begins.append(times - updates.window_s)
    ends.append(times)
    means.append(power)
    variances.append((READING_ERROR * power) ** 2 + 0.3**2)
    return _Cells(*(np.concatenate(parts) for parts in (begins, ends, means, variances)))


def _conditional(
    updates: SensorUpdates, moments: Floats, hypotheses: tuple[tuple[float, ...], ...], from_s: float,
    to_s: float,
) -> tuple[Floats, Floats]:
    """Energies of the stretches between moments and their variances, given the cells around two edges; the
    level may change at a hypothesis' times.
    """
    reach_s = NEIGHBOURS * updates.period_s
    cells = _supports(updates, from_s - reach_s, to_s + reach_s)
    spans = np.diff(moments)
    if not len(cells.mean_w):
        return np.zeros(len(spans)), np.square(updates.highest_w * spans)
    bounds = np.stack([moments[:-1], np.maximum(moments[1:], moments[:-1] + 1e-9)])
    answers = [_given_changes(cells, bounds, points, updates) for points in hypotheses]
    score, mean_w, variance = (np.concatenate(parts) for parts in zip(*answers, strict=True))
    weight = np.exp(score - score.max())
    weight /= weight.sum()
    centre_w = weight @ mean_w
    return centre_w * spans, weight @ (variance + np.square(mean_w - centre_w)) * spans**2


def _given_changes(
    cells: _Cells, bounds: Floats, points: tuple[float, ...], updates: SensorUpdates
) -> tuple[Floats, Floats, Floats]:
    """Log likelihood (combinations), means and variances (combinations, pieces) of the pieces' mean power,
    for each size and length of the fluctuation. `bounds` are the pieces' starts and ends.
    """
    begin, end = np.append(cells.begin_s, bounds[0]), np.append(cells.end_s, bounds[1])
    borders = np.array([-np.inf, *points, np.inf])
    segments = len(borders) - 1
    low, high = np.maximum(begin, borders[:-1, None]), np.minimum(end, borders[1:, None])
    # (segments, cells): how much of each cell is in a segment
    share = np.maximum(high - low, 0.0) / (end - begin)
    level = updates.highest_w**2 * share.T @ share
    scale_w = max(float(np.max(cells.mean_w)), 1.0)
    centre_w = float(np.mean(cells.mean_w))
    values = cells.mean_w - centre_w
    # Every segment has its own size of fluctuation: an idle GPU is quiet, a busy one is not.
    lengths_s = [length * updates.period_s for length in CORRELATION_STEPS]
    shapes = np.stack([_ou_means(low, high, share, length_s) for length_s in lengths_s])
    # Before and after a piece with two changes the GPU does the same thing, most often nothing.
    pairs = product(FLUCTUATION, repeat=min(segments, 2))
    sizes = scale_w * np.array([(*pair, pair[0])[:segments] for pair in pairs])  # (combinations, segments)
    kernels = np.einsum("cs,lsij->clij", sizes**2, shapes).reshape(-1, len(begin), len(begin)) + level
    n = len(values)
    known = kernels[:, :n, :n] + np.diag(cells.variance)
    factor = np.linalg.cholesky(known)
    right = np.concatenate([np.broadcast_to(values, (len(known), n))[:, :, None], kernels[:, :n, n:]], axis=2)
    solved = np.linalg.solve(factor, right)
    white, cross = solved[:, :, :1], solved[:, :, 1:]
    score = -0.5 * np.sum(white[:, :, 0] ** 2, axis=1)
    score -= np.sum(np.log(np.diagonal(factor, axis1=1, axis2=2)), axis=1)
    score -= math.log(len(kernels))  # the same prior weight for every number of changes
    mean = centre_w + np.sum(cross * white, axis=1)
    variance = np.diagonal(kernels, axis1=1, axis2=2)[:, n:] - np.sum(cross**2, axis=1)
    return score, mean, np.maximum(variance, 0.0)


def _ou_means(low: Floats, high: Floats, share: Floats, length_s: float) -> Floats:
    """Covariances (segments, cells, cells) of cell means of a unit Ornstein-Uhlenbeck process."""

    def integral(u: Floats) -> Floats:  # twice integrated exp(-|u| / length)
        size = np.abs(u) / length_s
        return length_s**2 * (np.exp(-size) + size - 1.0)

    a, b = low[:, :, None], np.maximum(high, low)[:, :, None]
    c, d = low[:, None, :], np.maximum(high, low)[:, None, :]
    double = integral(b - c) - integral(a - c) - integral(b - d) + integral(a - d)
    sizes = (b - a) * (d - c)
    mean = np.divide(double, sizes, out=np.zeros_like(double), where=sizes > 0)
    return mean * share[:, :, None] * share[:, None, :]


def _step_around(updates: SensorUpdates, at_s: float) -> tuple[float, ...]:
    """The refreshes before and after a moment, as far as there are any."""
    index = int(np.searchsorted(updates.tick_s, at_s, side="right"))
    return tuple(float(at) for at in updates.tick_s[max(index - 1, 0) : index + 1])
