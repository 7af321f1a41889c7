"""What settings cost relative to the default setting, while the job itself changes."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import cho_factor, cho_solve

Array = np.ndarray[Any, Any]

# The cost of an iteration follows a trend of this share per minute (standard deviation), as when sequences
# become longer or a card warms up, and it wanders at random, by one of these shares in the first minute.
TREND = 0.02
WANDER = (0.005, 0.015, 0.05)


@dataclass(frozen=True, slots=True)
class CostRatios:
    """Estimates of one job.

    Attributes:
        settings: The settings that have a ratio.
        logs: Logarithms of the default's cost at the time 0, and of each setting's ratio to the default.
        covariance: Of the errors of `logs`.
        drift: Logarithm of the cost at each time that was asked for, relative to that at the time 0.
    """

    settings: tuple[Hashable, ...]
    logs: Array
    covariance: Array
    drift: Array


def cost_ratios(
    settings: Sequence[Hashable], at_s: Array, costs: Array, variances: Array, *, default: Hashable,
    asked_s: Array,
) -> CostRatios:
    """Compare measurements at other settings with those at the default setting that are close in time.

    The cost of an iteration follows a trend and a random walk, the same at all settings. So a change of the
    job between two measurements counts as an error that grows with the time between them, and the scatter of
    all measurements shows how large it is (generalised least squares; the unknown size of the random walk is
    averaged over `WANDER` by restricted likelihood).

    Args:
        settings, at_s, costs, variances: Of each measurement: its setting, its middle, the mean cost of an
            iteration, and the relative variance of that. At least one is at the default setting.
        asked_s: Times at which the default's cost is wanted. All times count from the first measurement.
    """
    others = tuple(dict.fromkeys(each for each in settings if each != default))
    columns = [np.ones(len(costs)), *(np.array([own == each for own in settings], float) for each in others)]
    design, logs, minutes = np.column_stack(columns), np.log(costs), at_s / 60.0
    free = len(costs) - len(columns)
    found: list[tuple[float, Array, Array]] = []
    for wander in WANDER:
        def together(first: Array, second: Array, wander: float = wander) -> Array:
            both = np.minimum.outer(np.maximum(first, 0.0), np.maximum(second, 0.0))
            return wander**2 * both + TREND**2 * np.outer(first, second)

        factor = cho_factor(together(minutes, minutes) + np.diag(variances), lower=True)
        inverse = np.linalg.inv(design.T @ cho_solve(factor, design))
        best = inverse @ (design.T @ cho_solve(factor, logs))
        left = cho_solve(factor, logs - design @ best)
        misfit = float((logs - design @ best) @ left)
        scale = max(1.0, misfit / free) if free else 1.0  # the measurements scatter more than they should
        likelihood = 0.5 * float(np.linalg.slogdet(inverse)[1]) - float(np.log(np.diag(factor[0])).sum())
        likelihood -= 0.5 * (free * math.log(scale) + misfit / scale)
        mean = np.concatenate([best, together(asked_s / 60.0, minutes) @ left])
        found.append((likelihood, mean, scale * inverse))
    weights = np.exp(np.array([each[0] for each in found]) - max(each[0] for each in found))
    weights /= weights.sum()
    mean = sum(weight * each[1] for weight, each in zip(weights, found, strict=True))
    size = len(columns)
    covariance = sum(
        weight * (each[2] + np.outer(*2 * [(each[1] - mean)[:size]]))
        for weight, each in zip(weights, found, strict=True)
    )
    return CostRatios(others, mean[:size], covariance, mean[size:])
