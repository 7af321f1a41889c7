"""The posterior of a curve agrees with Gaussian arithmetic, for all levels of noise and roughness together.
"""

from __future__ import annotations

import numpy as np
import pytest

from workbench.search.surrogates.curve_priors import LEVEL_VARIANCE, Shapes, condition, smooth_covariance

OCTAVES = np.arange(5.0)
COVARIANCE = smooth_covariance(OCTAVES, smooth_sd=0.2, length=2.0, single_sd=0.05)
FLAT, STEEP = np.zeros(5), np.arange(5.0)
SHAPES = Shapes(np.stack([FLAT, STEEP]), np.log([0.5, 0.5]), COVARIANCE)


def test_mean_and_covariance_are_those_of_a_gaussian() -> None:
    where, values, variances = np.array([1, 3]), np.array([0.3, 0.1]), np.array([0.01, 0.04])
    prior = COVARIANCE + LEVEL_VARIANCE
    gain = prior[:, where] @ np.linalg.inv(prior[np.ix_(where, where)] + np.diag(variances))
    posterior = condition(Shapes(FLAT[None], np.zeros(1), COVARIANCE), where, values, variances[None])
    assert posterior.gain[0] @ values == pytest.approx(gain @ values)
    assert posterior.covariance[0] == pytest.approx(prior - gain @ prior[where])


def test_the_shape_that_explains_the_values_gets_the_weight() -> None:
    posterior = condition(SHAPES, np.array([0, 2, 4]), np.array([1.0, 3.0, 5.0]), np.full((1, 3), 1e-3))
    weights = np.exp(posterior.log_weights[0] - posterior.log_weights[0].max())
    assert weights[0] / weights.sum() < 0.01
    curves, levels = posterior.sample(2000, np.random.default_rng(0))
    assert curves.mean(axis=0) == pytest.approx(1 + STEEP, abs=0.05)
    assert set(levels) == {0}


def test_values_of_another_group_inform_differences_but_not_the_level() -> None:
    where, groups = np.array([0, 1, 3]), np.array([0, 1, 1])
    means = []
    for level in (0.0, 50.0):
        posterior = condition(
            Shapes(FLAT[None], np.zeros(1), COVARIANCE),
            where,
            np.array([1.0, level, level]),
            np.full((1, 3), 1e-3),
            groups=groups,
        )
        means.append(posterior.gain[0] @ posterior.residual[0])
    assert means[0] == pytest.approx(means[1], abs=0.3)
