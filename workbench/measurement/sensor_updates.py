"""What a sensor said at its refreshes, and the energy between two moments by it, with its error.

Between two steps of a counter the energy is exact; uncertain is the piece of a step at either edge of a
window. Power near an edge is taken as a Gaussian process: a level that may change at the edge, plus
fluctuation with exponential correlation (Ornstein-Uhlenbeck). Steps of the counter and power readings are
means of it over known stretches, so the energy of the piece is a conditional mean and its error a conditional
variance (kriging with interval supports; Rasmussen and Williams, "Gaussian Processes for Machine Learning",
2.2). Size and length of the fluctuation, and whether the level changes, are averaged over by their
likelihood.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import maximum_filter1d
from scipy.special import ndtr

from ..records import Edge
from .sampled_counter import long_run_share, unseen_variance

Floats = NDArray[np.float64]
Rows = np.ndarray[Any, Any]

LEVEL_SD = 0.7  # how far levels lie apart before anything is known, of the highest power around
FLUCTUATION = (0.003, 0.03, 0.1, 0.25, 0.5)  # of the highest power around
CORRELATION_STEPS = (0.05, 0.2, 0.7, 3.0)  # of the update period
NEIGHBOURS = 2  # steps on either side of an edge that are looked at
RESOLUTION_J = 0.001  # of a counter
READING_ERROR = 0.006  # relative noise of a power reading
BESIDE_ERROR = 0.015  # the same beside a counter, whose gain may be another
UNKNOWN_W = 300.0  # what power may be where nothing at all was read
SHORT = 1.2  # bars of windows within a few steps, whose two edges depend on the same few means
TIMING = 1.3  # errors of the steps' times, which differ more between both edges than their fit shows
HISTORY_S = 30.0  # before and after an edge: steps that show what the step at the edge may hide
IDLE_SHARE = 0.1  # of the power limit: what an idle GPU draws
ALIKE = 0.02  # of the power limit: a larger change between two steps is a visible change of the load
ALIKE_S = 0.95  # without a visible change, after which a period equal to the refresh is suspected
GROWTH = 1.7  # of the roughness with the lag; independent steps have none, those that drift along a wave do
SWING = 0.7  # 95 % quantile of the product of two uniform variables: a wave's swing, and the phase of an edge
CROSSED = 6.0  # peak-to-peak over median roughness: 4.2 for a triangle wave, more if sampled unevenly
BETWEEN = 1.25  # times the median roughness, hides within a step where the load visibly changes; else twice
STEADY = 2.0  # power changes more between two refreshes than its means from one to the next
SLACK_STEPS = 2.5  # without a refresh, after which a moment was not followed
UNTOLD_ERROR_S = 1e-3  # of a refresh's moment, where a stored trace does not tell
LATE_S = 2.0  # without a new reading of the counter, after which what was drawn meanwhile is not known
UNIFORM = 0.55  # of what is uniform over a width: two of them are within 0.78 of it at 95 %
TOGETHER = 64  # parts of a short window that are estimated in one go


class EnergyParts(NamedTuple):
    """Joules of stretches, which add up to the whole, and the half widths of their 95 % intervals.

    NaN where nothing was seen; an infinite half width where a stretch was not followed.
    """

    energy_j: Floats
    uncertainty_j: Floats

    @property
    def known(self) -> NDArray[np.bool_]:
        return np.isfinite(self.energy_j) & np.isfinite(self.uncertainty_j)



@dataclass(frozen=True, slots=True)
class SensorUpdates:
    """What a sensor said, one entry per refresh, in order of time; NaN for what there is not."""

    tick_s: Floats  # when it refreshed
    energy_j: Floats  # the counter then
    power_w: Floats  # seen with it, a mean over the `window_s` before its own refresh
    power_tick_s: Floats  # when the power reading had refreshed
    window_s: float  # averaging window of a power reading
    period_s: float  # time between refreshes
    tick_error_s: float  # standard error of `tick_s`, common to all
    most_w: float = 0.0  # that this GPU may draw (its power limit); bounds what an unseen change can be
    part_time: bool = False  # whether the counter only sums readings; `power_w` then comes from its steps

    @property
    def counted(self) -> bool:
        """Whether there is a counter that integrates power all the time."""
        return not self.part_time and bool(np.isfinite(self.energy_j).any())

    @property
    def known(self) -> NDArray[np.bool_]:
        """Which refreshes energy can be counted from."""
        return np.isfinite(self.energy_j if self.counted or self.part_time else self.power_w)


def as_updates(
    rows: Rows, window_s: float | None, closing: Edge | None = None, most_w: float = 0.0, *,
    part_time: bool = False,
) -> SensorUpdates | None:
    """One entry per refresh of the sensor, on one line in time where they lie on one: what is left of their
    error cancels between the edges of a window. None while the refreshes are not known.

    Args:
        rows: Samples, `samples.ROWS`.
        window_s: Over which readings are averages; None where they are instantaneous.
        closing: A counter reading at the window's end, which may show a refresh that no row has.
        most_w: Highest possible power; 0 where unknown.
        part_time: Whether readings average part of each interval.
    """
    rows = rows[np.isfinite(rows["tick_s"])]
    if len(rows) < 3:
        return None
    ticks = rows["tick_s"]
    gaps = np.diff(ticks)
    gaps = gaps[gaps > 0.004]
    if not len(gaps):
        return None
    period_s = float(np.median(gaps))
    numbers, first = np.unique(np.round((ticks - ticks[-1]) / period_s).astype(np.int64), return_index=True)
    errors_s = np.nan_to_num(rows["tick_error_s"], nan=UNTOLD_ERROR_S)
    tick_s = _on_one_line(numbers, ticks[first], errors_s[first])
    energy_j, power_w, power_tick_s = (
        rows[name][first].astype(np.float64) for name in ("energy_j", "power_w", "power_tick_s")
    )
    if closing is not None and math.isfinite(closing.energy_j) and closing.energy_j > energy_j[-1]:
        later, into = divmod((closing.time_s - closing.took_s / 2 - tick_s[-1]) / period_s, 1.0)
        # A reading just before a refresh may have been answered just after it.
        if later >= 1 and into * period_s + closing.took_s < period_s - 0.005:
            tick_s = np.append(tick_s, tick_s[-1] + later * period_s)
            energy_j = np.append(energy_j, closing.energy_j)
            power_w, power_tick_s = np.append(power_w, math.nan), np.append(power_tick_s, math.nan)
    if window_s is None:  # what a reading is the mean of: of all between two, unless the counter knows that
        window_s = period_s
        power_tick_s = np.where(np.isfinite(energy_j), np.nan, power_tick_s)
    error_s = float(np.median(errors_s))
    if part_time:
        power_tick_s, power_w = tick_s, np.append(power_w[:1], np.diff(energy_j) / np.diff(tick_s))
    return SensorUpdates(
        tick_s, energy_j, power_w, power_tick_s, window_s, period_s, error_s, most_w, part_time
    )


def _on_one_line(numbers: Floats, times: Floats, errors: Floats) -> Floats:
    """Refresh times on a weighted straight line; as they are, if they do not keep to one."""
    if len(times) < 4:
        return times
    weight = 1.0 / np.maximum(errors.astype(np.float64), 1e-6)
    slope, offset = np.polyfit(numbers, times - times[-1], 1, w=weight)
    line: Floats = times[-1] + offset + slope * numbers
    return line if np.max(np.abs(line - times)) < 4.0 * float(np.max(errors)) + 2e-4 else times


def reaches(updates: SensorUpdates, start_s: float, end_s: float) -> bool:
    """Whether the sensor was followed all through a window, and its counter never went back."""
    slack_s = SLACK_STEPS * updates.period_s
    tick_s = updates.tick_s
    near_start = (tick_s <= start_s) & (tick_s > start_s - slack_s)
    inside = (tick_s > start_s - slack_s) & (tick_s < end_s + slack_s)
    forward = not np.any(np.diff(updates.energy_j[inside]) < 0)
    return bool(near_start.any()) and tick_s[-1] > end_s - slack_s and forward


def energy_by_refreshes(updates: SensorUpdates, moments: Floats, closely: bool) -> EnergyParts:
    """The stretches between moments that the refreshes surround or nearly reach."""
    usable = np.flatnonzero(updates.known)
    tick_s = updates.tick_s[usable]
    inside = np.flatnonzero((tick_s >= moments[0]) & (tick_s <= moments[-1]))
    # Only in a window long enough do its edges not know of each other.
    if len(inside) < 2 or moments[-1] - moments[0] < (NEIGHBOURS + 2) * updates.period_s:
        return _forward(_within_few(updates, moments))
    joules, variance = _between(updates, usable)
    anchor = np.searchsorted(tick_s, moments, side="right") - 1
    anchor[0], anchor[-1] = inside[0], inside[-1]
    followed = moments - tick_s[anchor] < SLACK_STEPS * updates.period_s
    followed[[0, -1]] = True
    edges = np.flatnonzero(followed) if closely else np.array([0, len(moments) - 1])
    pieces = {k: _edge(updates, float(moments[k]), float(tick_s[anchor[k]])) for k in edges.tolist()}
    at_j = np.zeros(len(moments))
    for k, piece in pieces.items():
        at_j[k] = joules[anchor[k]] + (piece.mean if moments[k] >= tick_s[anchor[k]] else -piece.mean)
    rest = np.setdiff1d(np.arange(len(moments)), edges)
    between = slice(inside[0], inside[-1] + 1)
    at_j[rest] = np.interp(moments[rest], np.concatenate([moments[:1], tick_s[between], moments[-1:]]),
                           np.concatenate([at_j[:1], joules[between], at_j[-1:]]))
    after = np.minimum(anchor + 1, len(tick_s) - 1)
    late = tick_s[after] - tick_s[anchor] > LATE_S
    gap_j = np.where(late, np.inf, UNIFORM * (joules[after] - joules[anchor]))
    half_j = np.where(followed, _steady_error(updates, usable, joules, moments), gap_j)
    timing = {k: _timing_variance(updates, float(moments[k])) for k in pieces}
    if len(rest):
        half_j[edges] = [piece.half_width(timing[k]) for k, piece in pieces.items()]
    spread = variance[anchor[1:]] - variance[anchor[:-1]]
    if updates.part_time:
        spread = spread * long_run_share(updates.power_w[usable], np.diff(tick_s), updates.window_s, anchor)
    width_j = np.sqrt(half_widths(half_j) ** 2 + 1.96**2 * np.maximum(spread, 0.0))
    for k in range(len(moments) - 1):
        if k in pieces and k + 1 in pieces:
            sums = _Mixture(np.ones(1), np.zeros(1), np.maximum(spread[k : k + 1], 0.0))
            width_j[k] = (sums + pieces[k] + pieces[k + 1]).half_width(timing[k] + timing[k + 1])
    hidden_j = [_hidden_j(updates, tick_s, joules, at_s) if k in pieces else 0.0
                for k, at_s in enumerate(moments.tolist())]
    width_j = np.maximum(width_j, half_widths(np.array(hidden_j)))
    return _forward(EnergyParts(np.diff(at_j), width_j))


def half_widths(half_j: Floats) -> Floats:
    """Half widths of stretches, from those of the moments they lie between."""
    return np.hypot(half_j[1:], half_j[:-1])


def _forward(parts: EnergyParts) -> EnergyParts:
    """No window gives energy back."""
    return parts if parts.energy_j.sum() >= 0 else parts._replace(energy_j=np.zeros(len(parts.energy_j)))


def _edge(updates: SensorUpdates, at_s: float, tick_s: float) -> _Mixture:
    """The energy between a moment and a refresh near it."""
    reach_s = NEIGHBOURS * updates.period_s
    cells = _supports(updates, at_s - reach_s, at_s + reach_s)
    piece = (min(at_s, tick_s), max(at_s, tick_s))
    (energy,) = _conditional(cells, [piece], ((), (at_s,), _step_around(updates, at_s)), updates)
    return energy


def _timing_variance(updates: SensorUpdates, at_s: float) -> float:
    """The variance (J^2) of an energy up to a moment that the error of the refreshes' own moments causes."""
    return (TIMING * updates.tick_error_s * _power_near(updates, at_s)) ** 2


def _hidden_j(updates: SensorUpdates, tick_s: Floats, joules: Floats, at_s: float) -> float:
    """Half width (J) of the 95 % interval of the energy that a step hides between its start and a moment.

    All steps are alike if the load repeats as often as the sensor refreshes. If the refreshes fall at
    changing phases of an iteration, the counter deviates from a straight line by as much as power deviates
    within a step. The deviation then does not grow with the lag over which it is taken. If it is too small
    to measure or still grows, the sampling cannot exclude any wave between idle power and the power limit.
    """
    near = np.abs(tick_s - at_s) <= HISTORY_S
    tick_s, joules = tick_s[near], joules[near]
    if len(tick_s) < 3:
        return 0.0
    number = int(np.clip(np.searchsorted(tick_s, at_s, side="right") - 1, 0, len(tick_s) - 2))
    spans = np.diff(tick_s)
    into = min(max(float((at_s - tick_s[number]) / spans[number]), 0.0), 1.0)
    inside = 4.0 * into * (1.0 - into)  # nothing hides at the ends of the step, where the counter is known
    if not updates.counted:
        return 2.0 * BETWEEN * _roughness(joules, 1) * inside
    # A wave shorter than a step deviates near its ends too: as a random walk whose ends are known.
    rough = BETWEEN * math.sqrt(inside)
    hidden_j = rough * _roughness(joules, 1)
    limit_w = updates.most_w
    power_w = np.diff(joules) / spans
    changes = np.flatnonzero(np.abs(np.diff(power_w)) > ALIKE * limit_w) + 1
    borders = np.concatenate([[0], changes, [len(power_w)]])
    first, last = borders[np.searchsorted(changes, number, side="right") + np.arange(2)]
    if not limit_w or (last - first) * updates.period_s < ALIKE_S or last - first < 4:
        return hidden_j
    alike_j = joules[first : last + 1]
    lags = np.unique(np.round(1.3 ** np.arange(30)).astype(int))
    lags = lags[3 * lags < len(alike_j)]
    rough_j = np.array([_roughness(alike_j, lag) for lag in lags.tolist()])
    most_j = float(rough_j.max())
    measured = most_j > RESOLUTION_J
    if measured and most_j < GROWTH * rough_j[:3].max():
        return max(hidden_j, 2.0 * rough * most_j)
    # Of all power between two bounds with a given mean, a wave that jumps from one to the other deviates
    # most. Readings that average part of a step show every wave that is longer than what they average.
    low_w, high_w = min(IDLE_SHARE * limit_w, power_w.min()), max(limit_w, power_w.max())
    wave_w = (power_w[number] - low_w) * (high_w - power_w[number]) / (high_w - low_w)
    wave_j = float(wave_w) * min(updates.window_s, updates.period_s) * inside
    long = 2 * lags > lags[-1]
    if measured and rough_j[long].mean() < rough_j[~long].max(initial=0.0):  # it has stopped growing
        wave_j = min(wave_j, CROSSED * most_j)
    return max(hidden_j, SWING * wave_j)


def _roughness(joules: Floats, lag: int) -> float:
    """Median distance (J) of the counter from the mean of its values `lag` steps before and after."""
    middle = joules[lag:-lag] - 0.5 * (joules[2 * lag :] + joules[: -2 * lag])
    return float(np.median(np.abs(middle)))


def _within_few(updates: SensorUpdates, moments: Floats) -> EnergyParts:
    """The parts of a window of a few refreshes, whose edges know of each other."""
    start_s, end_s = float(moments[0]), float(moments[-1])
    reach_s = NEIGHBOURS * updates.period_s
    cells = _supports(updates, start_s - reach_s, end_s + reach_s)
    plateau = _step_around(updates, start_s)[:1] + _step_around(updates, end_s)[1:]
    changes = ((), (start_s,), (end_s,), (start_s, end_s), plateau)
    (whole,) = found = _conditional(cells, [(start_s, end_s)], changes, updates)
    if len(moments) > 2:
        pairs = list(zip(moments[:-1].tolist(), moments[1:].tolist(), strict=True))
        found = [
            each for first in range(0, len(pairs), TOGETHER)
            for each in _conditional(cells, pairs[first : first + TOGETHER], changes, updates)
        ]
    energy_j = np.array([each.mean for each in found])
    energy_j[-1] = whole.mean - energy_j[:-1].sum()  # but for rounding, what it is already
    timing = [_timing_variance(updates, at_s) for at_s in moments.tolist()]
    bars = [each.half_width(timing[k] + timing[k + 1]) for k, each in enumerate(found)]
    half_j = SHORT * np.array(bars)
    usable = np.flatnonzero(updates.known)
    if len(usable) > 2:
        readings = updates.tick_s[usable], _between(updates, usable)[0]
        hidden_j = np.array([_hidden_j(updates, *readings, at_s) for at_s in moments.tolist()])
        half_j = np.maximum(half_j, half_widths(hidden_j))
    return EnergyParts(energy_j, np.hypot(half_j, _unseen_within(updates, moments)))


def _unseen_within(updates: SensorUpdates, moments: Floats) -> Floats:
    """Half widths (J) of what readings may have missed in stretches not much longer than a refresh."""
    spans = np.diff(moments)
    usable = np.flatnonzero(updates.known)
    if not updates.part_time or len(usable) < 2:
        return np.zeros(len(spans))
    tick_s = updates.tick_s[usable]
    steps = np.diff(tick_s)
    rates = unseen_variance(updates.power_w[usable], steps, updates.window_s) / steps**2
    number = np.clip(np.searchsorted(tick_s, (moments[1:] + moments[:-1]) / 2) - 1, 0, len(steps) - 1)
    return np.asarray(1.96 * np.sqrt(rates[number] * spans * np.minimum(spans, updates.period_s)))


def _between(updates: SensorUpdates, usable: NDArray[np.intp]) -> tuple[Floats, Floats]:
    """Energy and variance since the first refresh: exact by the counter, else by power readings."""
    if updates.counted:
        return updates.energy_j[usable], np.zeros(len(usable))
    times, power = updates.tick_s[usable], updates.power_w[usable]
    spans = np.diff(times)
    if updates.part_time:
        missed = unseen_variance(power, spans, updates.window_s)
        return updates.energy_j[usable], np.concatenate([[0.0], np.cumsum(missed)])
    unseen = np.maximum(spans - updates.window_s, 0.0)
    # A reading is the mean of the window before its step; between two windows power is as between both.
    gains = power[1:] * (spans - unseen) + 0.5 * (power[1:] + power[:-1]) * unseen
    # Between two windows power may be anything as far from the readings as they differ, at each pass alike.
    changes = np.square(np.diff(power))
    noise = READING_ERROR * power[1:] * (spans - unseen)
    variances = 2.0 * changes * unseen**2 + noise**2 / 4
    return np.concatenate([[0.0], np.cumsum(gains)]), np.concatenate([[0.0], np.cumsum(variances)])


def _steady_error(
    updates: SensorUpdates, usable: NDArray[np.intp], joules: Floats, moments: Floats
) -> Floats:
    """Error (J) at moments if power changes between two refreshes as much as it does around them."""
    tick_s, power_w = updates.tick_s[usable], updates.power_w[usable]
    spans = np.diff(tick_s)
    mean_w = np.diff(joules) / spans
    padded = np.pad(mean_w, 1, mode="edge")
    beside = np.abs([padded[2:] - padded[:-2], np.diff(padded)[:-1], np.diff(padded)[1:],
                     power_w[1:] - mean_w, power_w[:-1] - mean_w])
    swing_w = maximum_filter1d(np.max(np.nan_to_num(beside), axis=0), 2 * NEIGHBOURS + 1)
    number = np.clip(np.searchsorted(tick_s, moments, side="right") - 1, 0, len(spans) - 1)
    into = np.clip((moments - tick_s[number]) / spans[number], 0.0, 1.0)
    swing_j = STEADY * swing_w[number] * spans[number] * into * (1.0 - into)
    timing_j = 1.96 * TIMING * updates.tick_error_s * mean_w[number]
    return np.asarray(np.hypot(swing_j, timing_j))


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
        return _Mixture(np.outer(self.weight, other.weight).ravel(),
                        np.add.outer(self.centre, other.centre).ravel(),
                        np.add.outer(self.variance, other.variance).ravel())

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
            # A sum, not a dot product: BLAS would wake its threads for it, on a machine that computes.
            inside = ndtr((mean + middle - self.centre) / sd) - ndtr((mean - middle - self.centre) / sd)
            low, high = (middle, high) if float(np.sum(self.weight * inside)) < 0.95 else (low, middle)
        return high


@dataclass(frozen=True, slots=True)
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
        begins.append(times[:-1])
        ends.append(times[1:])
        means.append(np.diff(energy) / spans)
        variances.append(np.full(len(spans), 0.05**2) + (0.001 / spans) ** 2)
    known = (updates.power_tick_s >= from_s) & (updates.power_tick_s <= to_s) & np.isfinite(updates.power_w)
    times, power = updates.power_tick_s[known], updates.power_w[known]
    begins.append(times - updates.window_s)
    ends.append(times)
    means.append(power)
    # Beside a counter a reading's gain may be another than the counter's.
    variances.append(((BESIDE_ERROR if updates.counted else READING_ERROR) * power) ** 2 + 0.3**2)
    return _Cells(*(np.concatenate(parts) for parts in (begins, ends, means, variances)))


def _conditional(
    cells: _Cells, pieces: Sequence[tuple[float, float]], hypotheses: tuple[tuple[float, ...], ...],
    updates: SensorUpdates,
) -> list[_Mixture]:
    """Energies of pieces of time, given the cells; the level may change at a hypothesis' times."""
    spans = np.array([end_s - start_s for start_s, end_s in pieces])
    found = [_Mixture(np.ones(1), np.zeros(1), np.array([(UNKNOWN_W * span) ** 2])) for span in spans]
    real = np.flatnonzero(spans > 0)
    if not len(cells.mean_w) or not len(real):
        return found
    bounds = np.array(pieces)[real].T
    answers = [_given_changes(cells, bounds, points, updates) for points in hypotheses]
    score, mean_w, variance = (np.concatenate(parts) for parts in zip(*answers, strict=True))
    weight = np.exp(score - score.max())
    weight /= weight.sum()
    for k, mean, own in zip(real.tolist(), mean_w.T, variance.T, strict=True):
        found[k] = _Mixture(weight, mean * spans[k], own * spans[k] ** 2).likely()
    return found


def _given_changes(
    cells: _Cells, bounds: Floats, points: tuple[float, ...], updates: SensorUpdates
) -> tuple[Floats, Floats, Floats]:
    """Log likelihood (combinations), means and variances (combinations, pieces) of the pieces' mean power,
    for each size and length of the fluctuation. `bounds` are the pieces' starts and ends.
    """
    begin, end = np.append(cells.begin_s, bounds[0]), np.append(cells.end_s, bounds[1])
    borders = np.array([-np.inf, *points, np.inf])
    segments = len(borders) - 1
    low = np.maximum(begin[None, :], borders[:-1, None])
    high = np.minimum(end[None, :], borders[1:, None])
    # (segments, cells): how much of each cell lies in a segment
    share = np.maximum(high - low, 0.0) / (end - begin)
    scale_w = max(float(np.max(cells.mean_w)), 1.0)
    level = (LEVEL_SD * max(scale_w, 0.6 * updates.most_w)) ** 2 * np.einsum("si,sj->ij", share, share)
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


def _power_near(updates: SensorUpdates, at_s: float) -> float:
    """Power around a moment, for what an error of time is worth."""
    index = min(max(int(np.searchsorted(updates.tick_s, at_s)), 1), len(updates.tick_s) - 1)
    span_s = updates.tick_s[index] - updates.tick_s[index - 1]
    counted_w = (updates.energy_j[index] - updates.energy_j[index - 1]) / span_s if span_s > 0 else math.nan
    reading_w = updates.power_w[index]
    return float(next((w for w in (counted_w, reading_w) if math.isfinite(w)), UNKNOWN_W))
