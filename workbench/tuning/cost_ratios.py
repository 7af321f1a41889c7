"""What settings cost relative to the default setting, while the job itself changes."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

import numpy as np
from scipy.linalg import cho_factor, cho_solve

Array = np.ndarray
Points = Sequence[tuple[Hashable, float]]

# The cost of an iteration follows a trend of this share per minute (standard deviation), as when sequences
# become longer or a card warms up, and it wanders at random, by one of these shares in the first minute.
TREND = 0.02
WANDER = (0.005, 0.015, 0.05)
# A ratio wanders by this part of it. All of it would be right for a power limit, which holds the power of a
# card that warms up, and nothing for longer sequences, which cost the same share more at every setting.
UNEQUAL = 0.5


def cost_ratios(
    samples: Points, costs: Array, variances: Array, asked: Points, default: Hashable
) -> tuple[Array, Array]:
    """Compare samples at other settings with those at the default setting that are close in time.

    A change of the job between two samples counts as an error that grows with the time between them, and the
    scatter of all samples shows how large it is. This is universal kriging; the unknown size of the wander is
    averaged by restricted likelihood.

    Args:
        samples: Setting and time (s, from the first sample on) of each; at least one is at the default.
        costs, variances: Their mean cost of an iteration, and its relative variance.
        asked: Settings and times: for the default its cost, for any other setting its ratio to the default.

    Returns:
        Logarithms of what was asked for, and the covariance of their errors.
    """
    others = [each for each in dict.fromkeys(setting for setting, _ in samples) if each != default]
    every = [*samples, *asked]
    own = np.array([[setting == each for each in others] for setting, _ in every]).reshape(len(every), -1)
    count, minutes = len(samples), np.array([at_s for _, at_s in every]) / 60.0
    level = np.ones(len(every))  # whether the default's cost is part of it
    level[count:] = ~own[count:].any(axis=1)
    design = np.column_stack([level, own]).astype(float)
    both = np.minimum.outer(*2 * [np.maximum(minutes, 0.0)])
    trend = TREND**2 * np.outer(*2 * [minutes * level])
    walk = both * (np.outer(level, level) + UNEQUAL**2 * (own.astype(float) @ own.T))
    logs, free = np.log(costs), count - design.shape[1]
    found: list[tuple[float, Array, Array]] = []
    for wander in WANDER:
        prior = trend + wander**2 * walk
        factor = cho_factor(prior[:count, :count] + np.diag(variances), lower=True)
        solved = cho_solve(factor, design[:count])
        inverse = np.linalg.inv(design[:count].T @ solved)
        best = inverse @ (solved.T @ logs)
        left = logs - design[:count] @ best
        weighted = cho_solve(factor, left)
        misfit = float(left @ weighted)
        scale = max(1.0, misfit / free) if free else 1.0  # samples scatter more than their errors say
        likelihood = 0.5 * float(np.linalg.slogdet(inverse)[1]) - float(np.log(np.diag(factor[0])).sum())
        likelihood -= 0.5 * (free * math.log(scale) + misfit / scale)
        to_samples = prior[count:, :count]
        unknown = design[count:] - to_samples @ solved
        covariance = prior[count:, count:] - to_samples @ cho_solve(factor, to_samples.T)
        covariance += unknown @ inverse @ unknown.T
        found.append((likelihood, design[count:] @ best + to_samples @ weighted, scale * covariance))
    weights = np.exp(np.array([each[0] for each in found]) - max(each[0] for each in found))
    weights /= weights.sum()
    mean = np.einsum("w,wi", weights, np.array([each[1] for each in found]))
    spread = [each[2] + np.outer(*2 * [each[1] - mean]) for each in found]
    return mean, np.einsum("w,wij", weights, np.array(spread))
