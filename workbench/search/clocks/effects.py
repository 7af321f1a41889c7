"""What settings do to time and power, learned from blocks of iterations of a running job.

The logarithm of an iteration's time, or of the power, is a level that drifts plus the effect of the setting.
An effect is a curve over a knob (SM clock, power limit, memory clock), zero at the default setting: its slope
is a random walk, as in a cubic smoothing spline (Wahba, 1978), with a prior of what cards do. All blocks
together give the effects by Gaussian regression; a later block at the default setting improves all of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import solve_triangular

from ...records import Setting
from ..space import SettingSpace

Array = np.ndarray

CLOCK, LIMIT, MEMORY = 0, 1, 2
# Slope at the default setting per unit of ln(default / value): its mean for an SM clock, and for a power
# limit or a memory clock; its standard deviation for both; the variance by which it walks per unit.
TIME = (0.45, 0.10, 0.35, 0.20, 0.7)
POWER = (-1.4, -0.4, 0.7, 0.4, 3.0)
ROUGH_SD = 0.005  # of an effect from one step of a knob to the next
LEAST_SD = 0.002  # relative: no block predicts the next minutes more precisely
TREND_SD, WANDER_SD = 0.015, 0.010  # of the level per minute, and per square root of a minute
WARM_SD = 0.006  # of the effect of all power limits, per square root of a minute
VAGUE = 4.0  # variance of a level that nobody knows


@dataclass(frozen=True)
class Ladders:
    """The knob that each setting of a space turns, and how far: `z` is ln(default / value).

    Attributes:
        settings: As in the space.
        knob: CLOCK, LIMIT or MEMORY, by row.
        z: 0 at the default setting, whose row is `reference`.
    """

    settings: tuple[Setting, ...]
    knob: Array
    z: Array
    reference: int


def ladders(space: SettingSpace, clock_mhz: float, power_w: float) -> Ladders:
    """The ladders of a space.

    Args:
        space: Of the GPUs.
        clock_mhz: The highest SM clock under load at the default setting.
        power_w: Below this limit a GPU begins to slow down.
    """
    knob, z = [], []
    for setting in space.settings:
        watts, sm, mem = setting.power_limit_w, setting.sm_clock_mhz, setting.mem_clock_mhz
        if watts is not None:
            knob.append(LIMIT)
            z.append(math.log(max(power_w / watts, 1.0)))
        elif mem is not None and mem < (space.max_mem_clock_mhz or mem):
            knob.append(MEMORY)
            z.append(math.log((space.max_mem_clock_mhz or mem) / mem))
        else:
            knob.append(CLOCK)
            z.append(math.log(max(clock_mhz / sm, 1.0)) if sm else 0.0)
    z[space.reference_row] = 0.0
    return Ladders(space.settings, np.array(knob), np.array(z), space.reference_row)


@dataclass(frozen=True)
class Effects:
    """Effects of all settings on one quantity, as logarithms relative to the default.

    Attributes:
        mean, var: By row.
        level, level_var: Of the quantity at the default setting now.
        with_level: Covariance of each effect with the level.
    """

    mean: Array
    var: Array
    level: float
    level_var: float
    with_level: Array
    _prior: Array
    _solved: Array

    def cov(self, row: int) -> Array:
        """Covariance of all effects with that of a row."""
        return self._prior[:, row] - self._solved.T @ self._solved[:, row]

    def cov_of(self, rows: Sequence[int]) -> Array:
        """Covariance of the effects of some rows with each other."""
        solved = self._solved[:, rows]
        return self._prior[np.ix_(rows, rows)] - solved.T @ solved


class Curves:
    """The prior of the effects on one quantity.

    Args:
        rungs: The settings.
        prior: `TIME` or `POWER`.
        rough_sd: Of an effect from one step of a knob to the next.
    """

    def __init__(self, rungs: Ladders, prior: tuple[float, ...], rough_sd: float = ROUGH_SD) -> None:
        z, knob = rungs.z, rungs.knob
        mean, sd = (np.where(knob == CLOCK, *prior[place : place + 2]) for place in (0, 2))
        walk = prior[4]
        low, high = np.minimum.outer(z, z), np.maximum.outer(z, z)
        same = np.equal.outer(knob, knob) & np.outer(z > 0, z > 0)
        near = np.exp(-((np.subtract.outer(z, z) / 0.02) ** 2))
        slopes = np.outer(sd * z, sd * z) + walk * low**2 * (3 * high - low) / 6
        self._mean, self._prior = mean * z, same * (slopes + rough_sd**2 * near)
        self._limit = ((knob == LIMIT) & (z > 0)).astype(float)

    def fit(self, rows: Array, at_min: Array, values: Array, variances: Array, now_min: float) -> Effects:
        """The effects, given measured blocks.

        Args:
            rows: Their settings, (blocks,).
            at_min: Their middles in minutes, in order.
            values: Logarithms of their times of a unit, or powers.
            variances: Of these.
            now_min: The time that the effects are wanted for.
        """
        prior, limit = self._prior, self._limit
        begin = at_min[0] if len(at_min) else now_min
        t, now = at_min - begin, max(now_min - begin, 0.0)
        warm_now = WARM_SD**2 * now * np.outer(limit, limit)
        if not len(rows):
            total = prior + warm_now
            return Effects(
                self._mean, np.diag(total), 0.0, VAGUE, np.zeros(len(limit)), total, np.zeros((0, len(limit)))
            )
        drift = TREND_SD**2 * np.outer(t, t) + WANDER_SD**2 * np.minimum.outer(t, t)
        drift_now = TREND_SD**2 * t * now + WANDER_SD**2 * np.minimum(t, now)
        warm = WARM_SD**2 * np.minimum.outer(t, t) * np.outer(limit[rows], limit[rows])
        known = prior[np.ix_(rows, rows)] + warm + VAGUE + np.diag(variances + 1e-10)
        off = values - values[0] - self._mean[rows]
        across = prior[rows] + WARM_SD**2 * np.outer(limit[rows] * np.minimum(t, now), limit)
        wanted = np.column_stack([across, VAGUE + drift_now, off])
        found = solve_triangular(np.linalg.cholesky(known + drift), wanted, lower=True, check_finite=False)
        solved, solved_level, residual = found[:, :-2], found[:, -2], found[:, -1]
        total = prior + warm_now
        level_var = VAGUE + (TREND_SD * now) ** 2 + WANDER_SD**2 * now - float(solved_level @ solved_level)
        return Effects(
            self._mean + solved.T @ residual, np.diag(total) - (solved**2).sum(0),
            float(values[0] + solved_level @ residual), max(level_var, 1e-12), -solved.T @ solved_level,
            total, solved,
        )
