"""Which configuration to measure next where the whole energy-time frontier is wanted: where it is expected to
grow most.

`FrontierSearch` believes a weighted set of `worlds` that agree with what was measured, and smooth deviations
from them. Its next configuration is the one whose expected gain of dominated area (expected hypervolume
improvement; Emmerich et al., 2006) is largest, as a share of the area of the frontier in the same world. It
stops where no configuration is expected to add `worth` of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import polars as pl

from ...errors import UsageError
from ..objective import check_measured
from .sweep_prior import Array, CandidateGrid, draw, grid


@dataclass(frozen=True, slots=True)
class FrontierSearchParams:
    """Tuned constants of `FrontierSearch`.

    Set by reasoning and looked at on `benchmarks.frontier --only sweeps`: over nine variations the means
    moved by less than a tenth (docs/frontier.md).
    """

    worlds: int = 3000  # sets of numbers of the physics
    draws: int = 96  # of worlds with their deviations
    # of log time and log power from the physics, smooth over the space; equally likely
    deviation_sds: tuple[float, float, float] = (0.008, 0.02, 0.05)
    # logarithmic distance along each axis over which a deviation is alike
    reach: tuple[float, ...] = (0.7, 0.25, 0.25, 0.25)
    rough_sd: float = 0.006  # of what is not smooth
    least_effective: float = 40.0  # worlds that must remain
    unit_variance: float = 25.0  # of the logarithm of a world's unit


PARAMS = FrontierSearchParams()


@dataclass(frozen=True, slots=True)
class Next:
    """A row among the candidates to measure next, and the share of the frontier's area it may add."""

    row: int
    gain: float


class FrontierSearch:
    """Looks for the frontier of a space with as few measurements as it can.

    Args:
        configurations: Candidates, one a row, with any of `worlds.AXES` as columns; null leaves a knob to the
            driver.
        worth: Stop where the next measurement is expected to add less than this share of the frontier's area.
        noise: Relative standard error of a measurement.
        rng: Of the worlds.

    Raises:
        UsageError: no candidates, or a share that is none.
    """

    def __init__(
        self, configurations: pl.DataFrame, *, worth: float = 0.0005, noise: float = 0.005,
        rng: np.random.Generator | None = None,
    ) -> None:
        if not 0 <= worth < 1:
            raise UsageError(
                f"worth is {worth:g}; it is a share of the frontier's area between 0 and 1, for example "
                "0.0005"
            )
        if not 0 <= noise < 1:
            raise UsageError(
                f"noise is {noise:g}; it is a relative standard error between 0 and 1, for example 0.01"
            )
        self.configurations, self.worth, self.noise = configurations, worth, noise
        self._grid: CandidateGrid = grid(configurations)
        self._rng = rng or np.random.default_rng(0)
        self._time, self._energy = draw(self._grid, PARAMS.worlds, self._rng)
        self._kernel = _smooth(self._grid.features)  # of a deviation with standard deviation 1
        self._cholesky = np.linalg.cholesky(self._kernel + 1e-6 * np.eye(len(self._grid)))
        self._told: dict[int, list[tuple[float, float]]] = {}
        self._barred: dict[int, str] = {}
        self._begun: list[int] = []

    @property
    def measured(self) -> list[int]:
        """Rows that were measured, in the order of their first measurement."""
        return list(self._told)

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
        self._told.setdefault(row, []).append((time_s, energy_j))
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
        out = {*self._told, *self._barred, *self._begun}
        left = np.array([i for i in range(len(self._grid)) if i not in out])
        if not len(left):
            return None
        times, energies = self._draws(self._rng)
        seen = [*self._told, *self._begun]
        gains = _gains(times, energies, seen, left)
        pick = int(np.argmax(gains))
        if seen and gains[pick] < self.worth:
            return None
        return Next(int(left[pick]), float(gains[pick]))

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
            measured=pl.Series([i in self._told for i in range(len(self._grid))]),
        )

    # arithmetic

    def _draws(self, rng: np.random.Generator) -> tuple[Array, Array]:
        """Times and energies in worlds that agree with what was measured, shape (draws, configurations)."""
        if not self._told:
            chosen = rng.choice(PARAMS.worlds, PARAMS.draws, replace=False)
            return np.exp(self._time[chosen]), np.exp(self._energy[chosen])
        rows = np.array(list(self._told))
        seen = np.log(np.array([np.mean(self._told[row], axis=0) for row in rows]))
        power = self._energy - self._time
        log_time, log_power = seen[:, 0], seen[:, 1] - seen[:, 0]
        inside = self._kernel[np.ix_(rows, rows)]
        rests = (log_time - self._time[:, rows], log_power - power[:, rows])
        misfits = np.stack([_misfit(rests, size**2 * inside, self._noise) for size in PARAMS.deviation_sds])
        picked = rng.choice(misfits.size, PARAMS.draws, p=_weights(misfits.ravel()))
        level, chosen = np.divmod(picked, PARAMS.worlds)
        times, powers = np.empty((PARAMS.draws, len(self._grid))), np.empty((PARAMS.draws, len(self._grid)))
        for number, size in enumerate(PARAMS.deviation_sds):
            mine = level == number
            if mine.any():
                times[mine] = self._corrected(self._time[chosen[mine]], rows, log_time, size, rng)
                powers[mine] = self._corrected(power[chosen[mine]], rows, log_power, size, rng)
        return np.exp(times), np.exp(times + powers)

    @property
    def _noise(self) -> float:
        """Variance of what one measurement shows and its neighbour does not."""
        return self.noise**2 + PARAMS.rough_sd**2

    def _corrected(
        self, worlds: Array, rows: Array, seen: Array, size: float, rng: np.random.Generator
    ) -> Array:
        """Worlds whose units and deviations agree with the measurements (Matheron's rule)."""
        # A world's unit is free: a constant that all configurations share, of any size.
        known = size**2 * self._kernel[np.ix_(rows, rows)] + self._noise * np.eye(len(rows))
        inside = known + PARAMS.unit_variance
        cross = size**2 * self._kernel[:, rows] + PARAMS.unit_variance
        smooth = size * (rng.standard_normal(worlds.shape) @ self._cholesky.T)
        noise = math.sqrt(self._noise) * rng.standard_normal((len(worlds), len(rows)))
        imagined = worlds[:, rows] + smooth[:, rows] + noise
        rough = PARAMS.rough_sd * rng.standard_normal(worlds.shape)
        out = worlds + smooth + rough + (seen - imagined) @ np.linalg.solve(inside, cross.T)
        out[:, rows] = seen
        return np.asarray(out)


def _smooth(features: Array) -> Array:
    far = (features[:, None, :] - features[None, :, :]) / np.array(PARAMS.reach)
    return np.asarray(np.exp(-0.5 * (far**2).sum(axis=2)))


def _misfit(rests: tuple[Array, Array], kernel: Array, noise: float) -> Array:
    """-2 log likelihood of each world for what was measured, its units left free."""
    covariance = kernel + noise * np.eye(len(kernel))
    inverse = np.linalg.inv(covariance)
    ones = inverse.sum(axis=1)
    precision = inverse - np.outer(ones, ones) / ones.sum()
    determinant = np.linalg.slogdet(covariance)[1] + math.log(ones.sum())
    return np.asarray(sum(((rest @ precision) * rest).sum(axis=1) + determinant for rest in rests))


def _weights(misfits: Array) -> Array:
    """Probabilities of worlds, tempered until enough remain: a few thousand hold none right in all."""
    rest = misfits - misfits.min()

    def cooled(heat: float) -> Array:
        weights = np.exp(-0.5 * heat * rest)
        return np.asarray(weights / weights.sum())

    if 1.0 / (cooled(1.0) ** 2).sum() >= PARAMS.least_effective:
        return cooled(1.0)
    low, high = 0.0, 1.0
    while high - low > 0.02 * high:
        heat = 0.5 * (low + high)
        low, high = (heat, high) if 1.0 / (cooled(heat) ** 2).sum() >= PARAMS.least_effective else (low, heat)
    return cooled(high)


def _gains(times: Array, energies: Array, seen: list[int], left: Array) -> Array:
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
    corners, ceilings = _stairs(times[:, seen], energies[:, seen], worst_energy)
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
