"""Which configuration to measure next where the whole energy-time frontier is wanted: where it is expected to
grow most.

`FrontierSearch` believes worlds of physics (`sweep_prior`), some with a step where the card changes its
state, and deviations from them of many sizes: smooth, jumping between neighbours, single. Each size and world
counts as much as it predicts what was measured, of time and of power by itself, so a card that follows no
curve is soon searched without one. The next configuration is the one whose expected gain of dominated area
(expected hypervolume improvement; Emmerich et al., 2006) is largest, as a share of the area of the frontier
in the same world. It stops where no configuration is expected to add `worth` of it, on a card that may be
rougher than it seems.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import polars as pl
from scipy.special import logsumexp

from ...errors import UsageError
from ..earlier import EarlierRuns, PlacedCurve
from ..objective import check_measured
from .sweep_prior import Array, CandidateGrid, draw, grid


@dataclass(frozen=True, slots=True)
class FrontierSearchParams:
    """Tuned constants of `FrontierSearch`, chosen on generated sweeps (docs/validation/frontier.md)."""

    samples: int = 4000  # sets of numbers of the physics
    draws: int = 128  # of worlds with their deviations
    # Deviations of log time and log power from the physics: sizes that are smooth over the space; that jump
    # between neighbours of one axis; that each configuration has alone. All combinations are weighed.
    smooth_sds: tuple[float, ...] = (0.004, 0.015, 0.05, 0.12)
    jump_sds: tuple[float, ...] = (0.0, 0.01, 0.04)
    single_sds: tuple[float, ...] = (0.0015, 0.005, 0.02)
    # log of what is believed beforehand of each size, for each step up
    rarer: tuple[float, float, float] = (-1.0, -0.7, -0.5)
    stepped: float = 0.2  # share of worlds with a step between two values of an axis
    step_sds: tuple[tuple[float, float], ...] = ((0.02, 0.04), (0.06, 0.12))  # of log time and log power
    # logarithmic distance along each axis over which a deviation, and a jump, is alike
    reach: tuple[float, ...] = (0.7, 0.25, 0.25, 0.25)
    jump_reach: tuple[float, ...] = (0.3, 0.1, 0.06, 0.3)
    usual_sds: tuple[float, float, float] = (0.05, 0.01, 0.005)  # up to which a card follows the usual curve
    plain_share: float = 0.05  # of the worlds that fit, below which a card is said not to follow it
    tells: int = 5  # measurements from which on that can be told
    doubt: float = 0.5  # power of the likelihood by which roughness is judged before the search ends
    least_effective: float = 40.0  # worlds that must remain
    unit_variance: float = 25.0  # of the logarithm of a world's unit


PARAMS = FrontierSearchParams()
ERROR = 0.01  # relative, of a measurement, that earlier runs are compared by


@dataclass(frozen=True, slots=True)
class Next:
    """A row among the candidates to measure next, and the share of the frontier's area it may add."""

    row: int
    gain: float


@dataclass(frozen=True)
class _Points:
    """Rows, (ln time, ln energy), relative errors, and which run measured each: 0 is this one."""

    rows: Array
    logs: Array
    sd: Array
    runs: Array


class FrontierSearch:
    """Looks for the frontier of a space with as few measurements as it can.

    Args:
        configurations: Candidates, one a row, with any of `worlds.AXES` as columns; null leaves a knob to the
            driver.
        worth: Stop where the next measurement is expected to add less than this share of the frontier's area.
        rng: Of the worlds.

    Raises:
        UsageError: no candidates, or a share that is none.
    """

    def __init__(
        self, configurations: pl.DataFrame, *, worth: float = 0.0005,
        rng: np.random.Generator | None = None,
    ) -> None:
        if not 0 <= worth < 1:
            raise UsageError(
                f"worth is {worth:g}; it is a share of the frontier's area between 0 and 1, for example "
                "0.0005"
            )
        self.configurations, self.worth = configurations, worth
        self._grid: CandidateGrid = grid(configurations)
        self._rng = rng or np.random.default_rng(0)
        self._time, self._energy = draw(self._grid, PARAMS.samples, self._rng)
        self._smooth, self._jumps = _kernels(self._grid.features)  # of deviations with standard deviation 1
        tiny = 1e-6 * np.eye(len(self._grid))
        self._roots = [np.linalg.cholesky(each + tiny) for each in (self._smooth, self._jumps)]
        self._sizes, self._prior = _kinds()
        self._steps = _steps(self._grid.features)
        self._step = np.zeros(PARAMS.samples, dtype=int)  # worlds without a step come first
        self._height = np.zeros((2, PARAMS.samples))
        some = round(PARAMS.samples * PARAMS.stepped) if len(self._steps) > 1 else 0
        if some:
            self._step[-some:] = np.sort(self._rng.integers(1, len(self._steps), some))
            size = self._rng.integers(0, len(PARAMS.step_sds), some)
            self._height[:, -some:] = np.array(PARAMS.step_sds).T[:, size]
        self._usual = 1.0
        self._last: float | None = None
        self._measured: dict[int, list[tuple[float, float]]] = {}
        self._barred: dict[int, str] = {}
        self._begun: list[int] = []
        self.earlier = EarlierRuns()
        self._ends: list[int] = []  # of the frontier of an earlier run, still to be tried

    def assume(self, curves: Iterable[PlacedCurve]) -> None:
        """Take earlier runs of this workload: both ends of the newest one's frontier are tried first, and
        what the measurements then bear out counts as measured once, with an error and a unit of its own.
        """
        self.earlier = EarlierRuns(curves)
        first = self.earlier.first()
        if first is not None:
            ends = (first.logs[:, 1].argmin(), first.logs[:, 0].argmin())
            self._ends = list(dict.fromkeys(int(first.rows[each]) for each in ends))
        self._learn()

    def _learn(self) -> None:
        """See what the measurements make of earlier runs."""
        logs = {row: np.log(np.mean(entries, axis=0)) for row, entries in self._measured.items()}
        own = {row: (float(time), float(energy), ERROR, ERROR) for row, (time, energy) in logs.items()}
        if not all(agreed for _, agreed in self.earlier.see(own)):
            self._ends = []

    @property
    def measured(self) -> list[int]:
        """Rows that were measured, in the order of their first measurement."""
        return list(self._measured)

    def tell(self, row: int, time_s: float, energy_j: float) -> None:
        """Report time (s) and energy (J) of a configuration for a fixed amount of work; repeats are averaged.

        Raises:
            UsageError: no such row. MeasurementError: numbers that cannot have been measured; nothing is
                changed.
        """
        if not 0 <= row < len(self._grid):
            raise UsageError(f"there is no candidate {row}; there are {len(self._grid)}, from 0")
        check_measured(time_s, energy_j)
        if not (time_s > 0 and energy_j > 0):
            raise UsageError(
                f"candidate {row} took {time_s:g} s and {energy_j:g} J; both are above 0 where something ran"
            )
        self._measured.setdefault(row, []).append((time_s, energy_j))
        self._learn()
        self._begun = [each for each in self._begun if each != row]

    def begin(self, row: int) -> None:
        """Note a configuration under measurement: the next to ask for should add to it."""
        self._begun.append(row)

    def cannot(self, row: int, reason: str) -> None:
        """Leave out a configuration that cannot be measured (out of memory, not settable)."""
        self._barred[row] = reason
        self._begun = [each for each in self._begun if each != row]

    def allow(self, row: int) -> None:
        """A configuration that could not be measured may be tried again."""
        self._barred.pop(row, None)

    @property
    def begun(self) -> tuple[int, ...]:
        """Rows whose measurement is under way."""
        return tuple(self._begun)

    def ask(self) -> Next | None:
        """The next configuration; None where none is worth it."""
        out = {*self._measured, *self._barred, *self._begun}
        left = np.array([i for i in range(len(self._grid)) if i not in out])
        if not len(left):
            return None
        for row in self._ends:
            if row not in out:
                return Next(row, 1.0)
        tried = [*self._measured, *self._begun]
        for trust in (1.0, PARAMS.doubt):  # before it ends, it asks what a rougher card could still have
            gains = _gains(*self._draws(self._rng, trust), tried, left)
            pick = int(np.argmax(gains))
            self._last = float(gains[pick])
            if not tried or gains[pick] >= self.worth:
                return Next(int(left[pick]), float(gains[pick]))
        return None

    @property
    def note(self) -> str:
        """That the card does not follow the usual curve of GPUs, as a sentence; empty where it does, and
        before that can be told.
        """
        unusual = len(self._measured) >= PARAMS.tells and self._usual < PARAMS.plain_share
        return "this card does not follow the usual curve: measuring more" if unusual else ""

    @property
    def reason(self) -> str:
        """Why `ask` had nothing more to ask for, as a sentence; empty while there is something."""
        if len({*self._measured, *self._barred}) >= len(self._grid):
            return "every configuration is measured or cannot be"
        if self._last is None or self._last >= self.worth or not self._measured:
            return ""
        return (
            f"the frontier is known: another measurement would add {100 * self._last:.2g} % to its area, "
            f"less than {100 * self.worth:.2g} %"
        )

    def belief(self) -> pl.DataFrame:
        """Expected time and energy of every candidate with their standard errors (columns as `pareto` reads
        them), and `measured`.

        A look changes nothing of what is asked for next.
        """
        times, energies = self._draws(np.random.default_rng(0))
        return self.configurations.with_columns(
            time_s=pl.Series(np.exp(np.log(times).mean(axis=0))),
            energy_j=pl.Series(np.exp(np.log(energies).mean(axis=0))), time_sd_s=pl.Series(times.std(axis=0)),
            energy_sd_j=pl.Series(energies.std(axis=0)),
            measured=pl.Series([i in self._measured for i in range(len(self._grid))]),
        )

    # arithmetic

    def _draws(self, rng: np.random.Generator, trust: float = 1.0) -> tuple[Array, Array]:
        """Times and energies in worlds that agree with what was measured, shape (draws, configurations).

        How rough the card is, is judged by the likelihood to the power of `trust`.
        """
        points = self._points()
        rows, tried = points.rows, points.logs
        logs = (tried[:, 0], tried[:, 1] - tried[:, 0])
        samples = (self._time, self._energy - self._time)
        inside = self._covers(points)
        found = [
            _likelihoods(each - sample[:, rows], inside, self._steps[:, rows], self._step, height)
            + self._prior[:, None]
            for each, sample, height in zip(logs, samples, self._height, strict=True)
        ]
        whole = np.sum([logsumexp(each, axis=0) for each in found], axis=0)
        # How rough the card is, is judged by the worlds that fit best; which worlds there are, more widely.
        best = rng.choice(PARAMS.samples, PARAMS.draws, p=np.exp(trust * whole - logsumexp(trust * whole)))
        kinds = np.stack([_one_each(trust * each[:, best], rng) for each in found], axis=1)
        several = len(np.unique(self._grid.features[:, 0])) > 1  # batch sizes, between which any card jumps
        small = np.array([PARAMS.usual_sds[0], np.inf, np.inf] if several else PARAMS.usual_sds)
        plain = (self._sizes[kinds] <= small).all(axis=(1, 2)) & (self._step[best] == 0)
        self._usual = float(plain.mean()) if trust == 1 else self._usual
        heat = _heat(whole)
        chosen = np.empty(PARAMS.draws, dtype=int)
        for time_kind, power_kind in np.unique(kinds, axis=0):
            mine = np.flatnonzero((kinds == (time_kind, power_kind)).all(axis=1))
            likely = heat * (found[0][time_kind] + found[1][power_kind])
            chosen[mine] = rng.choice(PARAMS.samples, len(mine), p=np.exp(likely - logsumexp(likely)))
        drawn = []
        for number, (measured_here, sample, height) in enumerate(
            zip(logs, samples, self._height, strict=True)
        ):
            out = np.empty((PARAMS.draws, len(self._grid)))
            alike = np.stack([kinds[:, number], self._step[chosen], height[chosen]], axis=1)
            for kind, at, tall in np.unique(alike, axis=0):
                mine = (alike == (kind, at, tall)).all(axis=1)
                sizes, step, cover = self._sizes[int(kind)], tall * self._steps[int(at)], inside[int(kind)]
                out[mine] = self._corrected(
                    sample[chosen[mine]], points, measured_here, sizes, step, cover, rng
                )
            drawn.append(out)
        return np.exp(drawn[0]), np.exp(drawn[0] + drawn[1])

    def _points(self) -> _Points:
        """What was measured, and what earlier runs measured that it bears out."""
        rows = np.array(list(self._measured), dtype=int)
        logs = np.log(np.array([np.mean(self._measured[row], axis=0) for row in rows]).reshape(-1, 2))
        curves = self.earlier.agreed
        sizes = [len(rows), *(len(each.rows) for each in curves)]
        return _Points(
            np.concatenate([rows, *(each.rows for each in curves)]),
            np.concatenate([logs, *(each.logs for each in curves)]),
            np.repeat([0.0, *(each.sd for each in curves)], sizes), np.repeat(np.arange(len(sizes)), sizes),
        )

    def _covers(self, points: _Points) -> Array:
        """Covariance of measurements about a world, for each size of deviations; a world's unit is free, and
        so is each earlier run's.
        """
        rows = points.rows
        smooth, jump, single = (self._sizes[:, i, None, None] ** 2 for i in range(3))
        at = np.ix_(rows, rows)
        alone = single * (rows[:, None] == rows[None, :])
        unit = PARAMS.unit_variance * (points.runs[:, None] == points.runs[None, :])
        errors = np.diag(points.sd**2)
        return np.asarray(smooth * self._smooth[at] + jump * self._jumps[at] + alone + unit + errors)

    def _corrected(
        self, samples: Array, points: _Points, tried: Array, sizes: Array, step: Array, inside: Array,
        rng: np.random.Generator,
    ) -> Array:
        """Prior samples whose units, steps and deviations agree with the measurements (Matheron's rule).

        Args:
            samples: Logarithms, shape (draws, configurations).
            points, tried: Configurations that were measured, and what they showed.
            sizes: Of smooth, jumping and single deviations.
            step: What a step's height of 1 adds to each configuration.
            inside: Covariance of `tried` about a sample without its step.
        """
        smooth, jump, single = sizes
        rows, own = points.rows, points.runs == 0
        out = samples + single * rng.standard_normal(samples.shape)
        out = out + rng.standard_normal((len(samples), 1)) * step
        for size, root in zip((smooth, jump), self._roots, strict=True):
            if size:
                out = out + size * (rng.standard_normal(samples.shape) @ root.T)
        if not len(rows):
            return np.asarray(out)
        cross = smooth**2 * self._smooth[:, rows] + jump**2 * self._jumps[:, rows]
        cross = cross + PARAMS.unit_variance * own
        cross = cross + np.outer(step, step[rows])
        cross[rows, range(len(rows))] += single**2
        inside = inside + np.outer(step[rows], step[rows])
        slips = points.sd * rng.standard_normal((len(samples), len(rows))) if not own.all() else 0.0
        out = out + (tried - slips - out[:, rows]) @ np.linalg.solve(inside, cross.T)
        out[:, rows[own]] = tried[own]
        return np.asarray(out)


def _kinds() -> tuple[Array, Array]:
    """Sizes of smooth, jumping and single deviations, (kinds, 3), and the log of what is believed of each."""
    choices = (PARAMS.smooth_sds, PARAMS.jump_sds, PARAMS.single_sds)
    ranks = itertools.product(*(range(len(each)) for each in choices))
    prior = np.array([np.dot(each, PARAMS.rarer) for each in ranks])
    return np.array(list(itertools.product(*choices))), prior


def _kernels(features: Array) -> tuple[Array, Array]:
    """Correlations of smooth deviations, and of jumps along one axis that all values of the others share."""
    apart = np.abs(features[:, None, :] - features[None, :, :])
    near = -0.5 * (apart / np.array(PARAMS.reach)) ** 2
    smooth = np.exp(near.sum(axis=2))
    along = [axis for axis in range(features.shape[1]) if apart[..., axis].any()] or [0]
    rest = 0.25 * (near.sum(axis=2, keepdims=True) - near)
    jumps = np.exp(rest - apart / np.array(PARAMS.jump_reach))[..., along]
    return np.asarray(smooth), np.asarray(jumps.mean(axis=2))


def _likelihoods(rests: Array, covers: Array, steps: Array, step: Array, height: Array) -> Array:
    """Log likelihood of each world under each covariance, up to a constant; shape (covariances, worlds).

    The height of a world's step is integrated out (a covariance of one dimension more). Worlds without a step
    come first.
    """
    first, found = int(np.searchsorted(step, 1)), np.empty((len(covers), len(rests)))
    square, at = height[first:] ** 2, step[first:]
    for kind, cover in enumerate(covers):
        inverse = np.linalg.inv(np.linalg.cholesky(cover))
        white, risen = inverse @ rests.T, (inverse @ steps.T)[:, at]
        found[kind] = np.log(np.diagonal(inverse)).sum() - 0.5 * (white**2).sum(axis=0)
        along = 1.0 + square * (risen**2).sum(axis=0)
        moved = (white[:, first:] * risen).sum(axis=0) ** 2
        found[kind, first:] += 0.5 * (moved * square / along - np.log(along))
    return found


def _steps(features: Array) -> Array:
    """No step, and one between each two neighbouring values of each axis; shape (steps, configurations)."""
    found = [np.zeros(len(features))]
    for axis in features.T:
        levels = np.unique(axis)
        found += [(axis >= level).astype(float) for level in levels[1:]]
    return np.stack(found)


def _one_each(logs: Array, rng: np.random.Generator) -> Array:
    """A row for each column, as likely as exp(logs) says."""
    shares = np.cumsum(np.exp(logs - logsumexp(logs, axis=0)), axis=0)
    return np.asarray((rng.random(logs.shape[1]) > shares).sum(axis=0).clip(0, len(logs) - 1))


def _heat(likelihood: Array) -> float:
    """The power of the likelihood, 1 at most, that leaves enough worlds: thousands hold none right in all."""

    for heat in 0.9 ** np.arange(80):
        weights = np.exp(heat * (likelihood - likelihood.max()))
        if weights.sum() ** 2 >= PARAMS.least_effective * (weights**2).sum():
            break
    return float(heat)


def _gains(times: Array, energies: Array, tried: list[int], left: Array) -> Array:
    """Area that each of `left` would add to what `seen` dominates, as a share of the area of all, up to the
    worst of each world.

    Args:
        times: Shape (worlds, configurations), energies alike.

    Returns:
        Shape (left,): the mean over worlds.
    """
    worst_time, worst_energy = times.max(axis=1, keepdims=True), energies.max(axis=1, keepdims=True)
    corners, ceilings = _stairs(times, energies, worst_energy)
    whole = (np.diff(np.hstack([corners, worst_time]), axis=1) * (worst_energy - ceilings)).sum(axis=1)
    # Between two corners of what is seen, what is not dominated lies below the faster one's energy; before
    # the first, below the worst.
    corners, ceilings = _stairs(times[:, tried], energies[:, tried], worst_energy)
    starts = np.hstack([np.full_like(worst_time, -np.inf), corners])
    ends = np.hstack([corners, worst_time])
    ceilings = np.hstack([worst_energy, ceilings])
    widths = np.clip(ends[:, None, :] - np.maximum(starts[:, None, :], times[:, left, None]), 0.0, None)
    heights = np.clip(ceilings[:, None, :] - energies[:, left, None], 0.0, None)
    added = (widths * heights).sum(axis=2)
    return np.asarray((added / np.where(whole > 0, whole, np.inf)[:, None]).mean(axis=0))


def _stairs(times: Array, energies: Array, most: Array) -> tuple[Array, Array]:
    """Times in order, and the least energy up to each, at most `most`; each world a row."""
    order = np.argsort(times, axis=1)
    least = np.minimum.accumulate(np.take_along_axis(energies, order, axis=1), axis=1)
    return np.take_along_axis(times, order, axis=1), np.minimum(least, most)
