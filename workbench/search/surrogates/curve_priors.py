"""Estimate of a curve over batch sizes: many shapes, an unknown level, smooth and single deviations from the
shape.

    y(b) = level + shape_h(b) + smooth deviation + deviation of this batch size alone

Given h everything is Gaussian with one covariance for all h, so hundreds of shapes cost little more than one.
The noise of the values is unknown, too. A few levels of noise are conditioned on together, and weighted with
the shapes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

# Tuned constants of `condition`; set manually, `benchmarks.recurring` scores the policies with them.

# of the logarithm: a factor of 20 either way, so that the data determine the level
LEVEL_VARIANCE = 9.0


@dataclass(frozen=True)
class Shapes:
    """Shapes (rows) over batch sizes (columns), their prior log weights, the deviations' covariance."""

    table: np.ndarray
    log_prior: np.ndarray
    covariance: np.ndarray


@dataclass(frozen=True)
class Posterior:
    """Posterior over shapes, by level of noise: log weights of the shapes, and the corrections of their
    means.

    Attributes:
        shapes: The prior shapes.
        log_weights: Levels of noise x shapes; how well both together explain the values.
        residual: Values minus the shape, shapes x values.
        gain: Levels x batch sizes x values: the effect of a residual on the mean.
        covariance: Levels x batch sizes x batch sizes.
    """

    shapes: Shapes
    log_weights: np.ndarray
    residual: np.ndarray
    gain: np.ndarray
    covariance: np.ndarray

    def sample(self, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Curves drawn from the posterior, one per row, and the index of each one's noise level."""
        weights = np.exp(self.log_weights - self.log_weights.max()).ravel()
        edges = np.cumsum(weights / weights.sum())
        # Stratified: fewer samples are as precise as many independent ones.
        places = np.searchsorted(edges, (np.arange(count) + rng.random(count)) / count)
        picked = np.minimum(places, len(edges) - 1)
        rng.shuffle(picked)
        level, shape = np.divmod(picked, self.log_weights.shape[1])
        arms = self.covariance.shape[-1]
        used = np.unique(level)
        roots = np.linalg.cholesky(self.covariance[used] + 1e-9 * np.eye(arms))
        deviation = rng.standard_normal(((count + 1) // 2, arms))
        both = np.concatenate([deviation, -deviation])[:count]
        # One product per sample, all together: a loop over levels of noise costs more in calls than in
        # arithmetic.
        at = np.searchsorted(used, level)
        mean = self.gain[level] @ self.residual[shape][:, :, None]
        curves = self.shapes.table[shape] + (mean + roots[at] @ both[:, :, None])[:, :, 0]
        return curves, level


def smooth_covariance(
    octaves: np.ndarray, *, smooth_sd: float, length: float, single_sd: float
) -> np.ndarray:
    """Covariance of the deviations from a shape; distances are in octaves of batch size.

    Args:
        octaves: (n,) log2 of the batch sizes.
        smooth_sd: Of the smooth part.
        length: Over which it is correlated, in octaves.
        single_sd: Of each point alone.
    """
    distance = np.abs(octaves[:, None] - octaves[None, :])
    smooth = smooth_sd**2 * np.exp(-0.5 * (distance / length) ** 2)
    return smooth + single_sd**2 * np.eye(len(octaves))


def condition(
    shapes: Shapes, where: np.ndarray, values: np.ndarray, variances: np.ndarray,
    log_levels: np.ndarray | None = None, groups: np.ndarray | None = None,
) -> Posterior:
    """The belief after seeing `values` at the batch sizes with index `where`; one may appear twice.

    Args:
        shapes: The prior.
        where: Batch sizes of the values.
        values: The observations.
        variances: Variances of the values' noise, one row per level of noise.
        log_levels: Log weights of the levels; equal by default.
        groups: Values of a group other than 0 share an unknown level of their own: only their differences
            carry information.
    """
    prior = shapes.covariance + LEVEL_VARIANCE
    observed_covariance = prior[where[:, None], where] + variances[:, :, None] * np.eye(len(where))
    if groups is not None and groups.any():
        observed_covariance += LEVEL_VARIANCE * (
            (groups[:, None] == groups[None, :]) & (groups[:, None] > 0)
        )
    lower = np.linalg.cholesky(observed_covariance)
    residual = values - shapes.table[:, where]
    # Of a matrix with as many rows as values, a dozen: no need for anything finer.
    inverse = np.linalg.inv(lower)
    white = inverse @ residual.T
    log_roots = np.log(np.diagonal(lower, axis1=1, axis2=2)).sum(axis=1)
    log_likelihood = -0.5 * (white**2).sum(axis=1) - log_roots[:, None]
    log_joint = shapes.log_prior + log_likelihood
    if log_levels is not None:
        log_joint = log_joint + log_levels[:, None]
    half = prior[:, where] @ inverse.transpose(0, 2, 1)
    return Posterior(shapes, log_joint, residual, half @ inverse, prior - half @ half.transpose(0, 2, 1))
