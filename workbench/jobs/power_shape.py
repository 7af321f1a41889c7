"""Power over one iteration of a job: levels with edges between them, on each of its GPUs.

A reading is a mean over the sensor's window, and iterations are no multiple of its refresh. So some hundred
readings show an iteration far more finely than one of them does. Readings are linear functions of the levels.
All GPUs of a job do the same work, so their levels agree up to a factor, an offset and some percent. Three
shifts distinguish their edges: that of the beginning of the work, that of its end, and the delay of the
sensor, which edges show that all GPUs have together. See docs/explanation/jobs.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

Array = np.ndarray

# Standard deviations between the GPUs of a node: of static power and of the power of the same work, of a
# single level of power (all in parts of the mean power), and of the delay of a sensor.
CARDS, ALIKE, DELAY_S = 0.1, 0.02, 0.001


class PowerReadings(NamedTuple):
    """Power readings of one GPU, each a mean over a window."""

    begin_s: Array
    end_s: Array
    power: Array  # in parts of `mean_w`
    mean_w: float


class IterationClock:
    """Counts edges at given times after the iterations' ends."""

    def __init__(self, ends_s: Array) -> None:
        self.period_s = float(np.median(np.diff(ends_s)))
        around_s = np.arange(1, 4) * self.period_s
        self.ends_s = np.concatenate([ends_s[0] - around_s[::-1], ends_s, ends_s[-1] + around_s])
        steps_s = np.diff(self.ends_s)
        self.sums_s = np.concatenate([[0.0], np.cumsum(steps_s * np.arange(1, len(steps_s) + 1))])
        # Of one iteration from 0.6 before an end, with a quarter more on both sides for other GPUs' shifts.
        self.places_s = (np.arange(-64, 321) / 256 - 0.6) * self.period_s

    def passed(self, readings: PowerReadings, edges_s: Array) -> tuple[Array, Array]:
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


class Fits(NamedTuple):
    """Products of readings and of passed edges at `IterationClock.places_s`, from which shapes are fitted:
    means over all readings.
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
    def of(cls, clock: IterationClock, readings: PowerReadings) -> Fits:
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
        turned = shares(mix)
        products, right = self.moved(edges_s)
        right = right @ turned + weight @ expected
        normal = turned.T @ products @ turned + weight
        levels = np.linalg.solve(normal, right[..., None])[..., 0]
        square = self.square + float(expected @ weight @ expected)
        return square - np.sum(right * levels, axis=-1), levels


def shares(mix: Array) -> Array:
    """Turns passed edges, and 1, into the shares of levels in a window.

    Args:
        mix: As of `Shape`.
    """
    edges = len(mix)
    between = np.eye(edges + 1, edges) - np.eye(edges + 1, edges, -1)
    between[0, -1], between[edges] = -1.0, np.eye(edges)[-1]
    return np.asarray(between @ mix)


class Shape(NamedTuple):
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
    fits: Fits, start_s: Array, shape: Shape, ways: Array, noise: float, delay_s: float = DELAY_S
) -> Shape:
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
        # In place, so that the shifts that are chosen have a possible delay.
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
    return Shape(edges_s[0], levels[0], square, score, shape.mix, best_s, ways, shape.unlike)


def _own(fits: Fits) -> Shape | None:
    """The shape without any knowledge, with as many edges as the readings show; None: they are flat."""
    coarse_s = fits.places_s[64:320:4]
    sets_s = coarse_s[np.column_stack(np.triu_indices(len(coarse_s), 1))]
    best, least = None, fits.flat
    for edges in range(2, 8):
        mix, unlike = np.eye(edges), 1e-6 * np.eye(edges)
        edges_s = sets_s[int(np.argmin(fits.fit(sets_s, mix, np.ones(edges), unlike)[0]))]
        shape = Shape(edges_s, np.ones(edges), 0.0, 0.0, mix, unlike=unlike)
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


def _parts(shape: Shape, period_s: float) -> list[tuple[int, Array, Array]]:
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
    """The inverse covariance of a GPU's levels around those of another one. They differ in static power, in
    the power of the same work, and in each level.

    Args:
        levels: Of the other one.
        spread: Further standard deviations of what is expected.
    """
    own = np.diag(ALIKE**2 + np.square(spread) + np.zeros(len(levels)))
    return np.asarray(np.linalg.inv(own + CARDS**2 * (1.0 + np.outer(levels, levels))))


class AlignedGpus(NamedTuple):
    """The shapes of all GPUs as shifted ones of one of them."""

    shape: Shape
    rise: int  # edge at which the work begins
    falls: Array  # edges at which it ends
    ways: Array  # from the shifts of the beginning, the end and all after that to the edges, (edges, 3)
    gpus: list[Shape]
    score: float

    @property
    def synchronous(self) -> bool:
        """Whether there are edges between the arrival and the beginning of the work."""
        return bool(self.ways[:, 2].any())


def _align(fits: Sequence[Fits], shape: Shape | None) -> list[AlignedGpus]:
    """The best alignment of all GPUs to a shape; none where the shape has no end of work."""
    if shape is None:
        return []
    shape = shape._replace(unlike=_unlike(shape.levels))
    found = []
    for rise, falls, ways in _parts(shape, fits[0].period_s):
        gpus = _shifted(fits, shape, ways)
        # In doubt the work begins at the last rise before it.
        score = sum(gpu.score for gpu in gpus) - np.count_nonzero(ways[:, 2]) * math.log(fits[0].iterations)
        found.append(AlignedGpus(shape, rise, falls, ways, gpus, score))
    best = sorted(found, key=lambda each: each.score)[:1]
    return [each._replace(score=sum(gpu.score for gpu in each.gpus)) for each in best]


def _shifted(fits: Sequence[Fits], shape: Shape, ways: Array) -> list[Shape]:
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


def _with_waiting(fits: Sequence[Fits], aligned: AlignedGpus, busy: Array) -> AlignedGpus:
    """The same with arrivals that vary between iterations, and with a level of its own from each arrival
    until the last one. After that all GPUs exchange data. A waiting GPU needs at least its least power and at
    most that of the exchange.

    `busy` is as of `alignments`.
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

    def fitted(last_s: float, starts: Sequence[Array]) -> AlignedGpus:
        inserted_s = [fall_s] * 3 + [last_s] * own
        edges_s = np.concatenate([shape.edges_s[:first], inserted_s, shape.edges_s[last + 1 :]])
        wider = Shape(edges_s, levels, shape.square, shape.score, mix, unlike=_unlike(levels, spread))
        gpus = [
            _search(each, start_s, wider, late if start_s.shape[1] == 4 else together,
                    shape.square / each.iterations)
            for each, start_s in zip(fits, starts, strict=True)
        ]
        rise = aligned.rise + (2 + own - last + first) * (aligned.rise > last)
        falls = np.arange(first, first + 3)
        return AlignedGpus(wider, rise, falls, ways, gpus, sum(gpu.score for gpu in gpus))

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


def _turned(aligned: AlignedGpus, period_s: float) -> AlignedGpus:
    """The same, with the edges from the end of the work on before those that are in the same iteration."""
    first, count = int(aligned.falls[0]), len(aligned.shape.levels)
    order = np.roll(np.arange(count), -first)
    shape = aligned.shape
    edges_s = np.concatenate([shape.edges_s[first:] - period_s, shape.edges_s[:first]])
    return aligned._replace(
        shape=shape._replace(edges_s=edges_s, levels=shape.levels[order]), ways=aligned.ways[order],
        rise=(aligned.rise - first) % count, falls=(aligned.falls - first) % count,
    )


def _pooled(fits: Sequence[Fits], aligned: AlignedGpus) -> Fits:
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
    return Fits(period_s, places_s, products / gpus, right / gpus, square, iterations)


def alignments(fits: Sequence[Fits], busy: Array) -> list[AlignedGpus]:
    """Alignments of all GPUs, the best first; none where power is flat.

    Args:
        fits: Of each GPU.
        busy: Share of the time in which each GPU executes kernels; NaN for unknown.
    """
    found: list[AlignedGpus] = []
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
    return sorted((_with_waiting(fits, each, busy) for each in found), key=lambda each: each.score)
