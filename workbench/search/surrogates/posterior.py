"""Time and energy at every configuration of a sweep, given some measurements and a prior.

    ln y(setting) = prior sample + unit + smooth deviation + rough deviation + its own deviation

A prior is a set of possible curves (physics). Deviations from them have a few sizes, of
time and of energy independently. The measurements weight the sizes and, for each size, the prior samples.
Weights that would leave too few samples are tempered. Each sample is then corrected towards the measurements
(Matheron's rule). The unit is free: only ratios count.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from scipy.special import logsumexp

Array = np.ndarray
Size = tuple[float, float]

# Tuned constants of `condition`.
POSTERIOR_DRAWS = 256
# prior samples that the weights must leave; any value from 24 to 96 gives the same figures
LEAST_EFFECTIVE = 48.0
# standard deviations of the logarithm: smooth over the space; jumping between neighbours
SMOOTH_SDS = (0.012, 0.04)
ROUGH_SDS = (0.0, 0.015, 0.04)
TIME_RATIO = 0.4  # of the deviations of ln time to those of ln power
SINGLE_SD = 0.002  # of each setting alone
# correlation length of a smooth deviation, and of a rough one, in the logarithm of a knob
REACH = 0.35
ROUGH_REACH = 0.03
UNIT_SD = 3.0  # of the logarithm of the unit: a factor of 20 either way, so that the data decide
STRONG = 3.0  # logarithm of a Bayes factor of 20 (Kass and Raftery, 1995)
SIZES = tuple(itertools.product(SMOOTH_SDS, ROUGH_SDS))
# Sizes on cards that follow the usual curve: all but the largest jumps.
USUAL = [rough < ROUGH_SDS[-1] for _, rough in SIZES]


class Deviations:
    """Correlations of the deviations over settings at `places`, (settings, knobs) in ln of a knob."""

    def __init__(self, places: Array) -> None:
        apart = np.abs(places[:, None, :] - places[None, :, :])
        near = -0.5 * (apart / REACH) ** 2
        self.smooth = np.exp(near.sum(axis=2))
        # A jump along one knob is the same at all values of the others.
        along = [knob for knob in range(places.shape[1]) if apart[..., knob].any()] or [0]
        others = 0.25 * (near.sum(axis=2, keepdims=True) - near)
        self.rough = np.exp(others - apart / ROUGH_REACH)[..., along].mean(axis=2)
        self._roots = _root(self.smooth), _root(self.rough)

    def covariance(self, size: Size, at: Array, other: Array) -> Array:
        """Covariance of ln time and ln energy at two lists of rows, both stacked."""
        pairs = np.ix_(at, other)
        power = size[0] ** 2 * self.smooth[pairs] + size[1] ** 2 * self.rough[pairs]
        power += SINGLE_SD**2 * (at[:, None] == other)
        time = TIME_RATIO**2 * power
        return np.block([[time, time], [time, time + power]])

    def draw(self, size: Size, count: int, rng: np.random.Generator) -> Array:
        """Deviations of ln time and ln energy, stacked, (count, 2 x settings)."""
        time, power = SINGLE_SD * rng.standard_normal((2, count, len(self.smooth)))
        for sd, root in zip(size, self._roots, strict=True):
            if sd:
                more = sd * rng.standard_normal((2, count, root.shape[1])) @ root.T
                time, power = time + more[0], power + more[1]
        time = TIME_RATIO * time
        return np.hstack([time, time + power])


@dataclass(frozen=True)
class Prior:
    """Curves that may be true, ln time and ln energy in any unit, (samples, settings), and the deviations."""

    log_times: Array
    log_energies: Array
    deviations: Deviations


@dataclass(frozen=True)
class PosteriorDraws:
    """Equally likely samples of ln time and ln energy, (samples, settings).

    Attributes:
        unusual: There is strong evidence that the card does not follow the usual curve.
    """

    log_times: Array
    log_energies: Array
    unusual: bool


def condition(prior: Prior, rows: Array, logs: Array, rng: np.random.Generator) -> PosteriorDraws:
    """The posterior given measurements at some rows; there may be none.

    Args:
        prior: Before them.
        rows: Where, (rows,).
        logs: Logarithms of time and energy, (rows, 2).
        rng: Draws the errors.
    """
    target = logs.T.ravel()
    samples = np.hstack([prior.log_times, prior.log_energies])
    settings = prior.log_times.shape[1]
    at = np.concatenate([rows, rows + settings])
    units = np.kron(np.eye(2), np.full((len(rows), len(rows)), UNIT_SD**2))
    covers = [prior.deviations.covariance(size, rows, rows) + units for size in SIZES]
    found = [_likelihood(target - samples[:, at], cover) for cover in covers]
    evidence = logsumexp(found, axis=1)
    counts = np.diff(
        np.round(POSTERIOR_DRAWS * np.cumsum(np.exp(evidence - logsumexp(evidence)))).astype(int), prepend=0
    )
    drawn = []
    for size, count, cover, likelihood in zip(SIZES, counts, covers, found, strict=True):
        if not count:
            continue
        power, weights = _tempered(likelihood)
        state = samples[_systematic(weights, count, rng)]
        if power < 1:
            spread = np.sqrt(weights)[:, None] * (samples - weights @ samples)
            rest = cover / (1 - power)
            gain = np.linalg.solve(spread[:, at].T @ spread[:, at] + rest, spread[:, at].T @ spread)
            noise = rng.standard_normal((count, len(at))) @ np.linalg.cholesky(rest).T
            state = state + (target - noise - state[:, at]) @ gain
        state = state + prior.deviations.draw(size, count, rng)
        cross = prior.deviations.covariance(size, rows, np.arange(settings))
        cross += np.kron(np.eye(2), np.full((len(rows), settings), UNIT_SD**2))
        drawn.append(state + (target - state[:, at]) @ np.linalg.solve(cover, cross))
    log_times, log_energies = np.hsplit(np.concatenate(drawn), 2)
    unusual = bool(evidence.max() > evidence[USUAL].max() + STRONG)
    return PosteriorDraws(log_times, log_energies, unusual)


def _root(kernel: Array) -> Array:
    values, vectors = np.linalg.eigh(kernel)
    keep = values > 1e-4 * values[-1]
    return vectors[:, keep] * np.sqrt(values[keep])


def _likelihood(rests: Array, covariance: Array) -> Array:
    """Log likelihood of each row, up to a constant that all covariances share."""
    lower = np.linalg.cholesky(covariance)
    white = np.linalg.solve(lower, rests.T)
    return -0.5 * np.sum(white**2, axis=0) - np.sum(np.log(np.diag(lower)))


def _tempered(likelihood: Array) -> tuple[float, Array]:
    """The largest power of the likelihood, 1 at most, whose weights leave enough samples; and the weights."""
    for power in 0.9 ** np.arange(80):
        weights = np.exp(power * (likelihood - likelihood.max()))
        if weights.sum() ** 2 >= LEAST_EFFECTIVE * (weights**2).sum():
            break
    return float(power), np.asarray(weights / weights.sum())


def _systematic(weights: Array, count: int, rng: np.random.Generator) -> Array:
    places = (np.arange(count) + rng.random()) / count
    return np.minimum(np.searchsorted(np.cumsum(weights), places), len(weights) - 1)
