"""Who waits for whom in a job whose GPUs synchronise in every iteration, from their power.

Synchronisation makes all iterations equally long, so their times do not show the slow GPU. Power does: a GPU
that waits needs less than one that works, even where it polls in a kernel. A reading is a mean over the
sensor's window, and iterations are no multiple of its refresh. So some hundred readings show an iteration far
more finely than one of them does.

The power of a GPU over an iteration is modelled as levels with edges between them. Readings are then linear
functions of the levels. All GPUs of a job do the same work, so their levels agree up to some percent. Three
shifts distinguish their edges: that of the beginning of the work, that of its end, and the delay of the
sensor, which edges show that all GPUs have together. The end of the work is a GPU's arrival at the
synchronisation. A GPU waits from its arrival until that of the last GPU. See docs/explanation/jobs.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from ..records import THROTTLE_REASONS, throttle_names
from .records import GpuWait, JobWaiting

Array = np.ndarray[Any, Any]

# Standard deviations between the GPUs of a node: of static power and of the power of the same work, of a
# single level of power (all in parts of the mean power), and of the delay of a sensor.
CARDS, ALIKE, DELAY_S = 0.1, 0.02, 0.001
LEAST_ITERATIONS = 20
WORTH = 0.01  # of an iteration; a GPU that costs less is no straggler


class _PowerReadings(NamedTuple):
    """Power readings of one GPU, each a mean over a window."""

    begin_s: Array
    end_s: Array
    power: Array  # in parts of `mean_w`
    mean_w: float


class _Clock:
    """Counts edges that lie at given times after the iterations' ends."""

    def __init__(self, ends_s: Array) -> None:
        self.period_s = float(np.median(np.diff(ends_s)))
        around_s = np.arange(1, 4) * self.period_s
        self.ends_s = np.concatenate([ends_s[0] - around_s[::-1], ends_s, ends_s[-1] + around_s])
        steps_s = np.diff(self.ends_s)
        self.sums_s = np.concatenate([[0.0], np.cumsum(steps_s * np.arange(1, len(steps_s) + 1))])
        # Of one iteration from 0.6 before an end, with a quarter more on both sides for other GPUs' shifts.
        self.places_s = (np.arange(-64, 321) / 256 - 0.6) * self.period_s

    def passed(self, readings: _PowerReadings, edges_s: Array) -> tuple[Array, Array]:
        """Mean number of passed edges within each reading's window, (readings, edges), and its change with
        each edge (1/s).
        """
        numbers, change, total_s = np.arange(len(self.ends_s)), 0.0, 0.0
        for sign, side_s in ((1, readings.end_s), (-1, readings.begin_s)):
            at_s = side_s - edges_s[:, None]
            number = np.interp(at_s, self.ends_s, numbers).astype(np.int64)
            total_s = total_s + sign * (self.sums_s[number] + (number + 1) * (at_s - self.ends_s[number]))
            change = change - sign * number
        length_s = readings.end_s - readings.begin_s
        return np.asarray(total_s / length_s).T, np.asarray(change / length_s).T


class _Fits(NamedTuple):
    """Products of readings and of passed edges at `_Clock.places_s`, from which shapes are fitted: means over
    all readings.
    """

    period_s: float
    places_s: Array
    products: Array  # (places + 1, places + 1), of passed edges without their trend; the last is the constant
    right: Array  # (places + 1,), with the readings
    square: float  # of the readings
    iterations: int  # that are independent of each other

    def score(self, square: float, parameters: int) -> float:
        """Bayesian information criterion: less is better. Iterations differ, so that the readings of one are
        not independent.
        """
        return self.iterations * math.log(square) + parameters * math.log(self.iterations)

    @property
    def flat(self) -> float:
        """The score of constant power."""
        return self.score(self.square - float(self.right[-1]) ** 2, 1)

    @classmethod
    def of(cls, clock: _Clock, readings: _PowerReadings) -> _Fits:
        # Only differences of columns count. Without the trend they do not grow with time.
        passed, _ = clock.passed(readings, clock.places_s)
        passed -= passed[:, :256].mean(axis=1, keepdims=True)
        columns, power = np.column_stack([passed, np.ones(len(passed))]), readings.power
        square = float(power @ power) / len(power)
        products, right = columns.T @ columns / len(power), columns.T @ power / len(power)
        iterations = min(len(clock.ends_s) - 7, len(power))
        return cls(clock.period_s, clock.places_s, products, right, square, iterations)

    def between(self, edges_s: Array) -> tuple[Array, Array]:
        """The place before each edge, and how far the edge is on its way to the next place."""
        at = np.clip((edges_s - self.places_s[0]) / (self.period_s / 256), 0, len(self.places_s) - 1.001)
        number = at.astype(np.int64)
        return number, at - number

    def moved(self, to_s: Array) -> tuple[Array, Array]:
        """`products` and `right` of other places, (..., places)."""
        number, on = self.between(to_s)
        last = np.full((*to_s.shape[:-1], 1), len(self.places_s))
        low, high = np.concatenate([number, last], axis=-1), np.concatenate([number + 1, last], axis=-1)
        on = np.concatenate([on, np.zeros(last.shape)], axis=-1)
        right = self.right[low] * (1 - on) + self.right[high] * on
        products = np.zeros((*low.shape, low.shape[-1]))
        for row, row_part in ((low, 1 - on), (high, on)):
            for column, column_part in ((low, 1 - on), (high, on)):
                parts = row_part[..., :, None] * column_part[..., None, :]
                products += self.products[row[..., :, None], column[..., None, :]] * parts
        return products, right

    def fit(self, edges_s: Array, mix: Array, expected: Array, weight: Array) -> tuple[Array, Array]:
        """Residual sums of squares (sets,), and levels (sets, levels), of shapes with given edges.

        Args:
            edges_s: After the iterations' ends, ascending, (sets, edges).
            mix: The power after each edge as a mean of levels, (edges, levels).
            expected: Levels.
            weight: Inverse of the levels' covariance, (levels, levels).
        """
        shares = _shares(edges_s.shape[-1]) @ mix
        products, right = self.moved(edges_s)
        right = right @ shares + weight @ expected
        normal = shares.T @ products @ shares + weight
        levels = np.linalg.solve(normal, right[..., None])[..., 0]
        square = self.square + float(expected @ weight @ expected)
        return square - np.sum(right * levels, axis=-1), levels


def _shares(edges: int) -> Array:
    """Turns passed edges, and 1, into the shares of a window between one edge and the next."""
    shares = np.eye(edges + 1, edges) - np.eye(edges + 1, edges, -1)
    shares[0, -1], shares[edges] = -1.0, np.eye(edges)[-1]
    return shares


class _Shape(NamedTuple):
    """Power over the iteration: from each edge to the next one it is a mean of levels."""

    edges_s: Array  # after the iterations' ends, ascending, within one period
    levels: Array  # of the mean power
    square: float  # mean of the squared residuals
    score: float
    mix: Array  # (edges, levels)
    moved_s: Array = np.zeros(0)  # the shifts of one GPU, the last is that of its sensor
    ways: Array = np.zeros((0, 0))  # from them to the edges, (edges, shifts)
    unlike: Array = np.zeros((0, 0))  # inverse covariance of the levels of one GPU


def _search(
    fits: _Fits, start_s: Array, shape: _Shape, ways: Array, noise: float, delay_s: float = DELAY_S
) -> _Shape:
    """Shifts near given ones that fit best, line by line: edges are those of a shape plus `ways @ shifts`.

    Args:
        fits: Of the GPU.
        start_s: Shifts to begin with, (sets, shifts); the best is taken.
        shape: With the expected levels.
        ways: (edges, shifts).
        noise: Variance of the readings, for the weight of what is expected.
        delay_s: Standard deviation of the last shift.
    """
    delay = noise / delay_s**2

    def tried(moved_s: Array) -> tuple[Array, Array, Array]:
        moved_s[:, -1] = np.clip(moved_s[:, -1], -3 * delay_s, 3 * delay_s)
        edges_s = shape.edges_s + moved_s @ ways.T
        edges_s = np.minimum.accumulate(edges_s[:, ::-1], axis=-1)[:, ::-1]
        edges_s = np.maximum(edges_s, edges_s[:, -1:] - fits.period_s)
        squares, levels = fits.fit(edges_s, shape.mix, shape.levels, noise * shape.unlike)
        return squares + delay * moved_s[:, -1] ** 2, edges_s, levels

    best_s = start_s[int(np.argmin(tried(start_s)[0]))]
    for size in (0.03, 0.03, 0.01, 0.003, 0.001):
        for way in range(ways.shape[1]):
            moved_s = np.tile(best_s, (13, 1))
            moved_s[:, way] += np.linspace(-size, size, 13) * fits.period_s
            best_s = moved_s[int(np.argmin(tried(moved_s)[0]))]
    squares, edges_s, levels = tried(best_s[None])
    square = float(squares[0])
    score = fits.score(square, levels.shape[1] + ways.shape[1])
    return _Shape(edges_s[0], levels[0], square, score, shape.mix, best_s, ways, shape.unlike)


def _own(fits: _Fits) -> _Shape | None:
    """The shape without any knowledge, with as many edges as the readings show; None: they are flat."""
    coarse_s = fits.places_s[64:320:4]
    sets_s = coarse_s[np.column_stack(np.triu_indices(len(coarse_s), 1))]
    best, least = None, fits.flat
    for edges in range(2, 8):
        mix, unlike = np.eye(edges), 1e-6 * np.eye(edges)
        edges_s = sets_s[int(np.argmin(fits.fit(sets_s, mix, np.ones(edges), unlike)[0]))]
        shape = _Shape(edges_s, np.ones(edges), 0.0, 0.0, mix, unlike=unlike)
        shape = _search(fits, np.zeros((1, edges)), shape, np.eye(edges), 1.0, math.inf)
        if shape.levels.min() < 0:
            break
        if shape.score < least:
            best, least = shape, shape.score
        low_s, high_s = shape.edges_s[-1] - fits.period_s, shape.edges_s[0] + fits.period_s
        added_s = coarse_s[(coarse_s > low_s) & (coarse_s < high_s)]
        sets_s = np.column_stack([np.tile(shape.edges_s, (len(added_s), 1)), added_s])
        sets_s.sort(axis=1)
    return best


def _parts(shape: _Shape, period_s: float) -> list[tuple[int, Array, Array]]:
    """Possible readings of a shape: the edge at which the work begins, those at which it ends, and how each
    edge follows from the shifts of the work's beginning, its end, and all after that (edges, 3).
    """
    count = len(shape.levels)
    lengths_s = np.diff(np.append(shape.edges_s, shape.edges_s[0] + period_s))
    steps = shape.levels - np.roll(shape.levels, 1)
    most = int(np.argmax((shape.levels - shape.levels.min()) * lengths_s))
    # The first fall after the longest work is its end, if it is no small change within the work. A fall
    # that differs between iterations may look like several.
    order = (most + np.arange(1, count + 1)) % count
    first = int(np.flatnonzero(steps[order] <= steps.min() / 3)[0])
    found = []
    for last in range(first, count - 1):
        if steps[order[last]] > 0:
            break
        for start in range(last + 1, count):
            work = np.append(order[start:], order[: last + 1])
            since_s = (shape.edges_s[work] - shape.edges_s[work[0]]) % period_s
            if steps[order[start]] < steps.max() / 3 or since_s[-1] == 0:
                continue
            ways = np.zeros((count, 3))
            ways[order[last + 1 : start], 2] = 1.0
            ways[work, 1] = since_s / since_s[-1]
            ways[work, 0] = 1 - ways[work, 1]
            found.append((int(order[start]), order[first : last + 1], ways))
    return found


def _unlike(levels: Array, spread: Array | float = 0.0) -> Array:
    """The inverse covariance of a GPU's levels around those of another one. They differ in static power, in the
    power of the same work, and in each level.

    Args:
        levels: Of the other one.
        spread: Further standard deviations of what is expected.
    """
    own = np.diag(ALIKE**2 + np.square(spread) + np.zeros(len(levels)))
    return np.asarray(np.linalg.inv(own + CARDS**2 * (1.0 + np.outer(levels, levels))))


class _Aligned(NamedTuple):
    """The shapes of all GPUs as shifted ones of one of them."""

    shape: _Shape
    rise: int  # edge at which the work begins
    falls: Array  # edges at which it ends
    ways: Array  # from the shifts of the beginning, the end and all after that to the edges, (edges, 3)
    gpus: list[_Shape]
    score: float

    @property
    def synchronous(self) -> bool:
        """Whether there are edges between the arrival and the beginning of the work."""
        return bool(self.ways[:, 2].any())


def _align(fits: Sequence[_Fits], shape: _Shape | None) -> list[_Aligned]:
    """The best alignment of all GPUs to a shape; none where the shape has no end of work."""
    if shape is None:
        return []
    shape = shape._replace(unlike=_unlike(shape.levels))
    found = []
    for rise, falls, ways in _parts(shape, fits[0].period_s):
        gpus = _shifted(fits, shape, ways)
        # In doubt the work begins at the last rise before it.
        score = sum(gpu.score for gpu in gpus) - np.count_nonzero(ways[:, 2]) * math.log(fits[0].iterations)
        found.append(_Aligned(shape, rise, falls, ways, gpus, score))
    best = sorted(found, key=lambda each: each.score)[:1]
    return [each._replace(score=sum(gpu.score for gpu in each.gpus)) for each in best]


def _shifted(fits: Sequence[_Fits], shape: _Shape, ways: Array) -> list[_Shape]:
    """The shape on each GPU, by shifts of the beginning of its work, of its end, and of its sensor."""
    noise = shape.square / fits[0].iterations
    even_s = np.linspace(-0.2, 0.2, 21) * fits[0].period_s
    # Most GPUs begin their work together; a late beginning has to be worth its parameter.
    together = np.column_stack([ways[:, 1], ways[:, 0] + ways[:, 2]])
    gpus = []
    for each in fits:
        choice = []
        for one in (together, ways):
            grid = np.meshgrid(*[even_s] * (one.shape[1] - 1), [0.0])
            start_s = np.stack(grid, axis=-1).reshape(-1, one.shape[1])
            choice.append(_search(each, start_s, shape, one, noise))
        gpus.append(min(choice, key=lambda tried: tried.score))
    return gpus


def _with_wait(fits: Sequence[_Fits], aligned: _Aligned, busy: Array) -> _Aligned:
    """The same with arrivals that vary between iterations, and with a level of its own from each arrival
    until the last one. After that all GPUs exchange data. A waiting GPU needs at least its least power and at
    most that of the exchange.

    Args:
        fits: Of each GPU.
        aligned: Without such a level.
        busy: Share of the time in which each GPU executes kernels; NaN for unknown.
    """
    period_s = fits[0].period_s
    if aligned.falls[-1] < aligned.falls[0]:
        aligned = _turned(aligned, period_s)
    shape, first, last = aligned.shape, int(aligned.falls[0]), int(aligned.falls[-1])
    parts = (shape.levels - np.roll(shape.levels, 1))[aligned.falls]
    parts = parts / parts.sum()
    fall_s, way = float(parts @ shape.edges_s[aligned.falls]), parts @ aligned.ways[aligned.falls]
    ends_s = np.array([
        fall_s + way[-len(gpu.moved_s):] @ gpu.moved_s - gpu.moved_s[-1] for gpu in aligned.gpus
    ])
    slow = int(np.argmax(ends_s))
    latest, wait_s = aligned.gpus[slow], ends_s[slow] - ends_s
    # A GPU that idles while it waits, or before it begins, is not busy; one that polls is.
    late_s = np.array([gpu.moved_s[0] - gpu.moved_s[-1] if len(gpu.moved_s) == 3 else 0.0
                       for gpu in aligned.gpus])
    idle_s = (busy[slow] - busy) * period_s - late_s + late_s[slow]
    idles = bool(idle_s @ wait_s > wait_s @ wait_s / 2)
    low, exchange = float(latest.levels.min()), float(latest.levels[last])
    own = int(aligned.synchronous)  # level
    expected = [low if idles else (low + exchange) / 2][:own]
    levels = np.concatenate([shape.levels[:first], expected, [exchange], shape.levels[last + 1 :]])
    spread = np.zeros(len(levels))
    if own and not idles:
        spread[first] = (exchange - low) / math.sqrt(12)
    # Three edges with these distances and weights have the mean and the variance of a normal distribution.
    distances, weights = math.sqrt(3) * np.array([-1.0, 0.0, 1.0]), np.array([1, 4, 1]) / 6
    mix, passed = np.eye(len(levels)), np.cumsum(weights)[:, None]
    mix = np.concatenate([mix[:first], passed * mix[first] + (1 - passed) * mix[first - 1], mix[first + 1 :]])
    ways = np.concatenate([aligned.ways[:first], np.tile(way, (3, 1)), np.tile([0.0, 0.0, 1.0], (own, 1)),
                           aligned.ways[last + 1 :]])
    varies = np.zeros((len(ways), 1))
    varies[first : first + 3, 0] = distances
    late = np.column_stack([ways[:, :2], varies, ways[:, 2]])
    together = np.column_stack([ways[:, 1], varies, ways[:, 0] + ways[:, 2]])

    def fitted(last_s: float, starts: Sequence[Array]) -> _Aligned:
        inserted_s = [fall_s] * 3 + [last_s] * own
        edges_s = np.concatenate([shape.edges_s[:first], inserted_s, shape.edges_s[last + 1 :]])
        wider = _Shape(edges_s, levels, shape.square, shape.score, mix, unlike=_unlike(levels, spread))
        gpus = [
            _search(each, start_s, wider, late if start_s.shape[1] == 4 else together,
                    shape.square / each.iterations)
            for each, start_s in zip(fits, starts, strict=True)
        ]
        rise = aligned.rise + (2 + own - last + first) * (aligned.rise > last)
        return _Aligned(wider, rise, np.arange(first, first + 3), ways, gpus, sum(gpu.score for gpu in gpus))

    sizes_s = np.array([0.0, 0.01, 0.03]) * period_s
    last_s = float(ends_s[slow])
    best = fitted(last_s, [
        np.column_stack([np.tile(gpu.moved_s[:-1], (3, 1)), sizes_s, np.tile(gpu.moved_s[-1], 3)])
        for gpu in aligned.gpus
    ])
    next_s = np.append(shape.edges_s, shape.edges_s[0] + period_s)[last + 1]
    for size in (0.02, 0.01, 0.005, 0.002) * own:
        starts = [gpu.moved_s[None] for gpu in best.gpus]
        for at_s in (last_s - size * period_s, last_s + size * period_s):
            if at_s < next_s and (tried := fitted(at_s, starts)).score < best.score:
                best, last_s = tried, at_s
    return best


def _turned(aligned: _Aligned, period_s: float) -> _Aligned:
    """The same, with the edges from the end of the work on before those that are in the same iteration."""
    first, count = int(aligned.falls[0]), len(aligned.shape.levels)
    order = np.roll(np.arange(count), -first)
    shape = aligned.shape
    edges_s = np.concatenate([shape.edges_s[first:] - period_s, shape.edges_s[:first]])
    return aligned._replace(
        shape=shape._replace(edges_s=edges_s, levels=shape.levels[order]), ways=aligned.ways[order],
        rise=(aligned.rise - first) % count, falls=(aligned.falls - first) % count,
    )


def _pooled(fits: Sequence[_Fits], aligned: _Aligned) -> _Fits:
    """All GPUs' readings as if they were one GPU's."""
    period_s, places_s = fits[0].period_s, fits[0].places_s
    edges_s = (aligned.shape.edges_s + np.array([[-period_s], [0.0], [period_s]])).ravel()
    products, right = np.zeros_like(fits[0].products), np.zeros_like(fits[0].right)
    for each, gpu in zip(fits, aligned.gpus, strict=True):
        shifts_s = np.tile(gpu.edges_s - aligned.shape.edges_s, 3)
        moved = each.moved(places_s + np.interp(places_s, edges_s, shifts_s))
        products, right = products + moved[0], right + moved[1]
    gpus = len(fits)
    square = sum(each.square for each in fits) / gpus
    iterations = fits[0].iterations * max(gpus // 2, 1)
    return _Fits(period_s, places_s, products / gpus, right / gpus, square, iterations)


def _shapes(fits: Sequence[_Fits]) -> list[_Aligned]:
    """Alignments of all GPUs, the best first; none where power is flat."""
    found: list[_Aligned] = []
    shape = _own(fits[0])
    for _ in range(2):
        tried = _align(fits, shape)
        if not tried:
            break
        tried += _align(fits, _own(_pooled(fits, tried[0])))
        found += tried
        # A GPU that has a part which the others do not have is the better one to begin with.
        last = min(tried, key=lambda each: each.score)
        worst = int(np.argmax([gpu.square for gpu in last.gpus]))
        shape = _own(fits[worst])
        if shape is None or last.gpus[worst].square < 1.1 * shape.square:
            break
    return sorted(found, key=lambda each: each.score)


class _Arrival(NamedTuple):
    """When one GPU ends its work, without the delay of its sensor."""

    at_s: float  # after the iterations' ends
    error_s: float  # its standard error
    jitter_s: float  # standard deviation between iterations
    late_s: float  # by which its work begins after that of the shape
    level: float  # of the power after it, in parts of the mean


def _arrival(clock: _Clock, readings: _PowerReadings, shape: _Shape, falls: Array) -> _Arrival:
    passed, changes = clock.passed(readings, shape.edges_s)
    shares = np.column_stack([passed, np.ones(len(passed))]) @ _shares(len(shape.edges_s)) @ shape.mix
    steps = shape.mix @ shape.levels
    steps = steps - np.roll(steps, 1)
    slopes = np.column_stack([shares, changes * steps @ shape.ways])
    left = readings.power - shares @ shape.levels
    levels, shifts = len(shape.levels), shape.ways.shape[1]
    noise = float(left @ left) / (len(clock.ends_s) - 7)
    prior = np.diag(np.r_[np.zeros(levels + shifts - 1), noise / DELAY_S**2])
    prior[:levels, :levels] = noise * shape.unlike
    bread = np.linalg.pinv(slopes.T @ slopes + prior)
    # Errors that are near in time are alike, and so are those at the same part of the iteration, where the
    # shape is wrong: the sandwich estimate for two ways (Cameron, Gelbach and Miller, 2011).
    middle_s = (readings.end_s + readings.begin_s) / 2 - shape.moved_s[-1]
    after_s = middle_s - clock.ends_s[np.searchsorted(clock.ends_s, middle_s) - 1]
    scores, meat = slopes * left[:, None], prior * noise
    for order in (np.arange(len(left)), np.argsort(after_s)):
        parts = np.array([part.sum(axis=0) for part in np.array_split(scores[order], 20)])
        meat = meat + parts.T @ parts * 20 / 19
    errors = bread @ meat @ bread
    # Where a fall has several steps, its middle.
    parts = steps[falls] / steps[falls].sum()
    edges_s = shape.edges_s[falls]
    edges_s = edges_s[0] + (edges_s - edges_s[0]) % clock.period_s
    way = parts @ shape.ways[falls]
    way[-1] -= 1.0
    at_s = float(parts @ edges_s - shape.moved_s[-1])
    error_s = math.sqrt(float(way @ errors[levels:, levels:] @ way))
    late_s = float(shape.moved_s[0] - shape.moved_s[-1]) if shifts == 4 else 0.0
    level = float(shape.mix[falls[-1]] @ shape.levels)
    return _Arrival(at_s, error_s, abs(float(shape.moved_s[-2])), late_s, level)


def _readings(trace: pl.DataFrame, clock: _Clock, window_s: float | None) -> _PowerReadings | None:
    """Readings within iterations of usual length; None: there are too few."""
    known = trace.drop_nulls(["time_s", "power_w"])
    rows = known.select("time_s", "power_w", "power_tick_s").to_numpy()
    power_w, ticks_s = rows[:, 1], rows[:, 2]
    fresh = np.append(True, np.diff(power_w) != 0)
    # Where the moment of a refresh is not known, it was between two looks.
    between_s = rows[:, 0] - np.diff(rows[:, 0], prepend=rows[:1, 0]) / 2
    tick_s = np.where(np.isfinite(ticks_s), ticks_s, between_s)[fresh]
    if len(tick_s) < 100:
        return None
    power_w = power_w[fresh]
    window_s = window_s or float(np.median(np.diff(tick_s)))
    begin_s, ends_s = tick_s - window_s, clock.ends_s[3:-3]
    lengths_s = np.diff(ends_s)
    odd = np.concatenate([[True], np.abs(lengths_s / clock.period_s - 1) > 0.25, [True]])
    number = np.searchsorted(ends_s, np.array([begin_s, tick_s]))
    usual = ~odd[np.minimum(number, len(ends_s))].any(axis=0)
    if usual.sum() < 100:
        return None
    mean_w = float(power_w[usual].mean())
    return _PowerReadings(begin_s[usual], tick_s[usual], power_w[usual] / mean_w, mean_w)


def waiting(
    traces: Mapping[str, pl.DataFrame], ends_s: Sequence[float], *,
    indices: Mapping[str, int] | None = None, windows_s: Mapping[str, float] | None = None,
) -> JobWaiting:
    """Who waits for whom in the mean iteration of a job whose GPUs synchronise in every iteration.

    Args:
        traces: Of each GPU of the job (`trace.SCHEMA`), by UUID.
        ends_s: Ends of the iterations on the traces' clock. They may all be early or late by the same time.
        indices: Of the GPUs, by UUID; their order where there are none.
        windows_s: Over which a power reading is a mean (`Device.power_window_s`), by UUID; where there is
            none, the time between two readings.
    """
    ends = np.unique(np.asarray(ends_s, dtype=np.float64))
    times_s = [trace["time_s"] for trace in traces.values() if trace.height]
    if len(times_s) < max(len(traces), 2):
        return JobWaiting(0.0, 0.0, 0, reason="the power of a second GPU was not recorded")
    ends = ends[(ends >= max(each[0] for each in times_s)) & (ends <= min(each[-1] for each in times_s))]
    if (count := max(len(ends) - 1, 0)) < LEAST_ITERATIONS:
        why = f"{count} iterations are too few; {LEAST_ITERATIONS} are needed"
        return JobWaiting(0.0, 0.0, 0, reason=why)
    clock = _Clock(ends)
    lengths_s = np.diff(ends)
    lengths_s = lengths_s[np.abs(lengths_s / clock.period_s - 1) <= 0.25]
    whole = JobWaiting(
        float(lengths_s.mean()), 1.96 * float(lengths_s.std()) / math.sqrt(len(lengths_s)), len(lengths_s),
        tuple(
            GpuWait(uuid, (indices or {}).get(uuid, place), sm_clock_mhz=_mean(trace, "sm_clock_mhz", ends))
            for place, (uuid, trace) in enumerate(traces.items())
        ),
    )
    found = {uuid: _readings(trace, clock, (windows_s or {}).get(uuid)) for uuid, trace in traces.items()}
    readings = [each for each in found.values() if each is not None]
    if len(readings) < len(traces):
        return replace(whole, reason="a GPU has fewer than 100 power readings")
    if any(_hidden_s(each, clock) > 2 * WORTH * clock.period_s for each in readings):
        return replace(whole, reason=(
            "the iterations are in phase with the power sensor, which always shows the same parts of them"
        ))
    fits = [_Fits.of(clock, each) for each in readings]
    busy = np.array([_mean(trace, "utilisation", ends) or math.nan for trace in traces.values()])
    alignments = sorted((_with_wait(fits, each, busy) for each in _shapes(fits)), key=lambda each: each.score)
    if not alignments:
        return replace(whole, reason="the power of waiting GPUs does not differ from that of working ones")
    for gpu, fit, shape in zip(whole.gpus, fits, alignments[0].gpus, strict=True):
        if shape.score >= fit.flat:
            return replace(whole, reason=f"the power of GPU {gpu.index} does not follow the iterations")
    arrivals = [
        [_arrival(clock, *each, aligned.falls) for each in zip(readings, aligned.gpus, strict=True)]
        for aligned in alignments[:2]
    ]
    doubt = math.exp((alignments[0].score - alignments[len(arrivals) - 1].score) / 4)
    return _result(whole, clock, readings, alignments[0], arrivals, doubt, traces)


def _hidden_s(readings: _PowerReadings, clock: _Clock) -> float:
    """The longest part of an iteration within which no window of the sensor begins, ends or lies."""
    since_s = np.sort(readings.end_s - clock.ends_s[np.searchsorted(clock.ends_s, readings.end_s) - 1])
    gap_s = max(float(np.diff(since_s).max()), clock.period_s - float(since_s[-1] - since_s[0]))
    return gap_s - float(np.median(readings.end_s - readings.begin_s))


def _mean(trace: pl.DataFrame, column: str, ends_s: Array) -> float | None:
    values = trace.filter(pl.col("time_s").is_between(ends_s[0], ends_s[-1]))[column].drop_nulls()
    return float(values.mean()) if len(values) else None  # type: ignore[arg-type]


def _result(
    whole: JobWaiting, clock: _Clock, readings: Sequence[_PowerReadings], aligned: _Aligned,
    both: Sequence[Sequence[_Arrival]], doubt: float, traces: Mapping[str, pl.DataFrame],
) -> JobWaiting:
    arrivals = both[0]
    at_s, error_s = (np.array([getattr(each, name) for each in arrivals]) for name in ("at_s", "error_s"))
    # The second best shape shows what the choice of the shape decides.
    other_s = np.array([each.at_s for each in both[-1]]) - at_s
    error_s = np.hypot(error_s, doubt * (other_s - np.median(other_s)))
    # The last GPU is not the same one in every iteration. Its mean arrival is later than any mean arrival.
    rng = np.random.default_rng(0)
    random = rng.standard_normal((400, len(at_s))) * np.median([each.jitter_s for each in arrivals])

    def barrier_s(moments_s: Array) -> Array:
        return np.asarray((moments_s[..., None, :] + random).max(axis=-1).mean(axis=-1))

    last_s = float(barrier_s(at_s))
    wait_s = np.maximum(last_s - at_s, 0.0)
    possible_s = at_s + error_s * rng.standard_normal((100, len(at_s)))
    half_s = 2.1 * (barrier_s(possible_s)[:, None] - possible_s).std(axis=0)
    fitted_s = float(aligned.shape.edges_s[aligned.falls[-1] + 1]) if aligned.synchronous else at_s.max()
    half_s = np.hypot(half_s, last_s - fitted_s)
    order = np.argsort(at_s)
    slow, after = order[-1], order[-2]
    lead_s = float(at_s[slow] - at_s[after])
    lead_error_s = math.hypot(error_s[slow], error_s[after])
    straggler, cost_s, reason = None, None, "the latest arrivals differ by less than their uncertainty"
    if lead_s > max(2.6 * lead_error_s, WORTH * clock.period_s):
        as_next_s = at_s.copy()
        as_next_s[slow] = at_s[after]
        straggler, cost_s = whole.gpus[slow].uuid, last_s - float(barrier_s(as_next_s))
        reason = _cause(whole.gpus, int(slow), arrivals, lead_s, traces[straggler])
    elif 2.6 * lead_error_s > 3 * WORTH * clock.period_s:
        return replace(whole, reason=(
            f"the arrivals of GPUs differ by less than their uncertainty of {2000 * lead_error_s:.2g} ms"
        ))
    begin_s = min(float(gpu.edges_s[aligned.rise] - gpu.moved_s[-1]) for gpu in aligned.gpus)
    span_s = (last_s - begin_s) % clock.period_s
    gpus = []
    for number, gpu in enumerate(whole.gpus):
        shape, mean_w = aligned.gpus[number], readings[number].mean_w
        middle_s = begin_s + (np.arange(48) + 0.5) / 48 * clock.period_s + shape.moved_s[-1]
        since_s = (middle_s - shape.edges_s[0]) % clock.period_s
        last = np.searchsorted(shape.edges_s - shape.edges_s[0], since_s) - 1
        power_w = mean_w * (shape.mix @ shape.levels)[last]
        gpus.append(replace(
            gpu, work_s=float(span_s - wait_s[number]), wait_s=float(wait_s[number]),
            wait_uncertainty_s=float(half_s[number]), power_w=tuple(map(float, power_w)),
            wait_energy_j=float(wait_s[number]) * mean_w * arrivals[number].level,
        ))
    return replace(whole, gpus=tuple(gpus), straggler=straggler, cost_s=cost_s, known=True, reason=reason)


def _cause(
    gpus: Sequence[GpuWait], slow: int, arrivals: Sequence[_Arrival], lead_s: float, trace: pl.DataFrame,
) -> str:
    """Why a GPU is late, in one sentence."""
    who, clock_mhz = f"GPU {gpus[slow].index}", gpus[slow].sm_clock_mhz
    others_mhz = [gpu.sm_clock_mhz for gpu in gpus if gpu is not gpus[slow] and gpu.sm_clock_mhz is not None]
    if clock_mhz is not None and others_mhz and clock_mhz < 0.99 * float(np.median(others_mhz)):
        bits = trace["throttle"].drop_nulls()
        often = sum(bit for bit in THROTTLE_REASONS if len(bits) and (bits.to_numpy() & bit > 0).mean() > 0.5)
        limits = ", ".join(throttle_names(often))
        return (f"{who} runs at {clock_mhz:,.0f} MHz, the others at {float(np.median(others_mhz)):,.0f} MHz"
                + (f": {limits}" if limits else ""))
    begun_s = np.array([each.late_s for each in arrivals])
    late_s = float(begun_s[slow] - np.median(np.delete(begun_s, slow)))
    if late_s > lead_s / 2:
        return f"{who} begins its work {1000 * late_s:.2g} ms after the others"
    return f"{who} needs {1000 * lead_s:.2g} ms more than the others for the same work, at the same clock"
