"""Estimates epochs to the target, the cost of an epoch and failures for every batch size.

Epochs: log E(b) = level + log(1 + b/Bc + (Bs/b)**q) + deviations. Beyond a critical batch size Bc more
samples per step bring no gain (McCandlish et al., arXiv 1812.06162). Below some Bs training gets noisy, and
with large q it does not reach the target at all. Runs scatter around that by an unknown share of their
epochs. Several values are kept and weighted by the runs so far, so a small sample has fat tails. A stopped
run is a lower limit.

Epoch cost: log c(b) = level + log(1 + Bh/b) + deviations: a part per sample and a part per step. Profiled
batch sizes have known costs.

A run fails if it does not reach the target within the allowed epochs. Either training diverged, or this batch
size needs more epochs. Another run may well reach it, so a failure has a rate and a price: the lost epochs
and the run that follows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import ndtr

from ..objective import Objective
from ..surrogates.curve_priors import Shapes, condition, smooth_covariance
from .history import FAILURE_RATE, PRIOR_RUNS, Evidence

# Allowed multiple of a run's usual epochs. A policy that gives up sooner never learns that late runs reach
# the target.
PATIENCE = 1.5


@dataclass(frozen=True)
class EpochPrior:
    """Prior of epochs and their cost before any run.

    Set manually on random seeds of `benchmarks.recurring` that are not scored.

    Attributes:
        smooth_sd, length, single_sd: Deviations of log epochs, and of the log cost of an epoch, from the
            shape: smooth over `length` octaves, and of one batch size.
        noise: Relative scatters of runs at one batch size, equally likely.
        wall: Probability, per octave away from tried batch sizes, that a batch size does not get to the
            target at all.
        tail: Probability that the few runs of a batch size were odd ones, `tail_sd` in log epochs next to
            their like. A run in five may take 7 epochs instead of 4, and a policy that takes the first such
            run for the rule never tries there again.
    """

    smooth_sd: float = 0.15
    length: float = 2.0
    single_sd: float = 0.03
    noise: tuple[float, ...] = (0.02, 0.05, 0.1, 0.2)
    wall: float = 0.05
    tail: float = 0.1
    tail_sd: float = 0.5

    def covariance(self, octaves: np.ndarray) -> np.ndarray:
        """Covariance of the deviations from a shape."""
        return smooth_covariance(
            octaves, smooth_sd=self.smooth_sd, length=self.length, single_sd=self.single_sd
        )


@dataclass(frozen=True)
class EpochPosterior:
    """Equally likely posterior samples, one per row.

    Attributes:
        log_epochs: Typical epochs to the target, per batch size.
        noise: Scatter of single runs, per sample.
        epoch_cost: Cost of an epoch, per batch size, in the objective's unit.
        failure_rate: Share of runs that fail after any number of epochs, per batch size.
        stop_epochs: Number of epochs after which a new run is better than the present one, per batch size;
            the allowed epochs where no run has reached the target.
        tried: Whether a run has reached the target, per batch size.
        max_epochs: Highest number of epochs of a run.
    """

    log_epochs: np.ndarray
    noise: np.ndarray
    epoch_cost: np.ndarray
    failure_rate: np.ndarray
    stop_epochs: np.ndarray
    tried: np.ndarray
    max_epochs: float


def believe(
    evidence: Evidence, objective: Objective, prior: EpochPrior, count: int, rng: np.random.Generator
) -> EpochPosterior:
    """Posterior samples of epochs to the target and cost of an epoch, per batch size.

    Before a run has reached the target, only ratios between batch sizes are meaningful.

    Args:
        evidence: Runs and profiles so far.
        objective: The cost of an epoch is in its unit.
        prior: Prior before any run.
        count: Number of samples.
        rng: Source of randomness.
    """
    log_epochs, scatter = _epochs(evidence, prior, count, rng)
    lost, bounds = failures(evidence)
    # The rate of all batch sizes is the prior of each one's.
    rate = (lost.sum() + PRIOR_RUNS * FAILURE_RATE) / ((evidence.count + lost).sum() + PRIOR_RUNS)
    failed, reached = PRIOR_RUNS * rate + lost, PRIOR_RUNS * (1 - rate) + evidence.count
    rates = rng.beta(failed, reached, size=log_epochs.shape)
    if bounds:
        kept = _bounded(log_epochs, scatter, rates, bounds, prior, rng)
        log_epochs, scatter, rates = log_epochs[kept], scatter[kept], rates[kept]
    return EpochPosterior(
        log_epochs, scatter, _epoch_costs(evidence, objective, prior, count, rng), rates,
        _stop_epochs(evidence, failed / (failed + reached)), evidence.count > 0,
        float(evidence.space.max_epochs),
    )


# epochs


@lru_cache(maxsize=64)
def _epoch_shapes(octaves: tuple[float, ...], default: int, prior: EpochPrior) -> Shapes:
    at = np.asarray(octaves)
    low, high = at[0], at[-1]
    rows = []
    for critical in np.arange(low - 2, high + 5.1, 1.0):
        for steep in (1.0, 3.0):
            for small in np.arange(low - 5, high + 0.1, 1.0):
                noisy = 2.0 ** np.minimum(steep * (small - at), 40)
                rows.append(np.log(1 + 2.0 ** (at - critical) + noisy))
    table = np.array(rows)
    table -= table[:, [default]]
    # Each distinct shape once, with the total weight.
    table, times = np.unique(table.round(1), axis=0, return_counts=True)
    return Shapes(table, np.log(times / times.sum()), prior.covariance(at))


def _epochs(
    evidence: Evidence, prior: EpochPrior, count: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Samples of log epochs by batch size, and of the scatter of single runs."""
    where = np.flatnonzero(evidence.count)
    runs = evidence.count[where]
    squares = max(float((evidence.sum_log2 - evidence.count * evidence.means**2).sum()), 0.0)
    sd = np.array(prior.noise)
    within = -0.5 * squares / sd**2 - (runs.sum() - len(where)) * np.log(sd)
    # Batch sizes whose few runs may all be exceptions, at most three of one or two runs, the fewest first:
    # for each, the same alternative with its runs as exceptions.
    few = np.flatnonzero(runs <= 2)
    odd = [-1, *few[np.argsort(runs[few], kind="stable")][:3]]
    weights, variances = [], []
    for number in odd:
        own = np.where(np.arange(len(runs)) == number, prior.tail_sd, 0.0)
        variances.append((sd[:, None] ** 2 + own**2) / runs)
        weights.append(within + (0.0 if number < 0 else math.log(prior.tail)))
    extra = _other_targets(evidence)
    elsewhere = np.tile(sd[:, None] ** 2 + prior.smooth_sd**2, (len(odd), len(extra)))
    posterior = condition(
        _epoch_shapes(tuple(evidence.octaves), evidence.default, prior),
        np.array([*where, *(arm for arm, *_ in extra)], dtype=int),
        np.array([*evidence.means[where], *(mean for _, mean, _ in extra)]),
        np.concatenate([np.concatenate(variances), elsewhere], axis=1),
        np.concatenate(weights), np.array([0] * len(where) + [group for *_, group in extra]),
    )
    log_epochs, levels = posterior.sample(count, rng)
    return _walls(log_epochs, evidence, prior, rng), sd[levels % len(sd)]


def _other_targets(evidence: Evidence) -> list[tuple[int, float, int]]:
    """(batch size, mean log epochs, group) of runs to other targets; only their ratios between batch sizes
    count.
    """
    found = []
    for group, results in enumerate(evidence.others.values(), start=1):
        arms = np.array([arm for arm, _ in results])
        logs = np.log([max(epochs, 0.5) for _, epochs in results])
        found += [(int(arm), float(logs[arms == arm].mean()), group) for arm in np.unique(arms)]
    return found


def _walls(
    log_epochs: np.ndarray, evidence: Evidence, prior: EpochPrior, rng: np.random.Generator
) -> np.ndarray:
    """Probability that training fails at a batch size: it grows with the distance from successful ones."""
    octaves = evidence.octaves
    # The default is assumed to reach the target.
    reached = np.flatnonzero(evidence.count) if evidence.count.any() else np.array([evidence.default])
    low, high = octaves[reached[0]], octaves[reached[-1]]
    count = len(log_epochs)
    below = low - rng.exponential(1 / prior.wall, count)
    above = high + rng.exponential(1 / prior.wall, count)
    beyond = (octaves[None, :] < below[:, None]) | (octaves[None, :] > above[:, None])
    # A factor of 20: more than the allowed epochs of a run.
    return np.where(beyond, log_epochs + 3.0, log_epochs)


# failures


def failures(evidence: Evidence) -> tuple[np.ndarray, dict[tuple[int, float], int]]:
    """Failed runs per batch size, and (batch size, epochs) with the number of runs that were stopped there.
    Such a batch size may need more epochs.

    A stopped run that was longer than other runs of its batch size has failed. So has the default after all
    epochs: it is assumed to reach the target.
    """
    lost, bounds = np.zeros(evidence.arms), {}
    for (arm, epochs), times in evidence.bounds.items():
        late = evidence.count[arm] and math.log(epochs) > evidence.means[arm]
        if late or (arm == evidence.default and epochs >= evidence.space.max_epochs):
            lost[arm] += times
        else:
            bounds[arm, epochs] = times
    return lost, bounds


def _bounded(
    log_epochs: np.ndarray, noise: np.ndarray, rates: np.ndarray, bounds: dict[tuple[int, float], int],
    prior: EpochPrior, rng: np.random.Generator,
) -> np.ndarray:
    """Resampled indices, weighted by the likelihood that stopped runs had not reached the target."""
    score = np.zeros(len(noise))
    for (arm, epochs), times in bounds.items():
        short = log_epochs[:, arm] - np.log(epochs)
        longer = (1 - prior.tail) * ndtr(short / noise) + prior.tail * ndtr(short / prior.tail_sd)
        score += times * np.log(rates[:, arm] + (1 - rates[:, arm]) * longer + 1e-6)
    weights = np.exp(score - score.max())
    edges = np.cumsum(weights) / weights.sum()
    count = len(noise)
    return np.minimum(np.searchsorted(edges, (np.arange(count) + rng.random()) / count), count - 1)


def _stop_epochs(evidence: Evidence, rates: np.ndarray) -> np.ndarray:
    """The best number of epochs s after which to stop a run, if another one follows until one reaches the
    target.

    One run takes E[min(epochs, s)] epochs and reaches the target with probability P(s). On average 1 / P(s)
    runs are needed, so the best s minimises E[min(epochs, s)] / P(s).
    """
    longest = evidence.space.max_epochs
    epochs = np.arange(1.0, longest + 1)[:, None]
    reached = (1 - rates) * ndtr((np.log(epochs) - evidence.means) / evidence.spreads)
    # Of the runs, 1 - reached[s] continue after epoch s.
    spent = 1 + np.concatenate([np.zeros((1, evidence.arms)), np.cumsum(1 - reached[:-1], axis=0)])
    best = epochs[np.argmin(spent / np.maximum(reached, 1e-3), axis=0), 0]
    patient = np.minimum(np.ceil(PATIENCE * np.exp(evidence.means)), longest)
    return np.where(evidence.count > 0, np.maximum(best, patient), float(longest))


# cost of an epoch


@lru_cache(maxsize=64)
def _cost_shapes(octaves: tuple[float, ...], default: int, prior: EpochPrior) -> Shapes:
    at = np.asarray(octaves)
    half = np.arange(at[0] - 6, at[-1] + 1.1, 0.5)
    table = np.log(1 + 2.0 ** (half[:, None] - at[None, :]))
    table -= table[:, [default]]
    return Shapes(table, np.full(len(half), -np.log(len(half))), prior.covariance(at))


def _epoch_costs(
    evidence: Evidence, objective: Objective, prior: EpochPrior, count: int, rng: np.random.Generator
) -> np.ndarray:
    costs = evidence.epoch_costs(objective)
    known = evidence.in_profile
    best = np.full(len(costs), np.nan)
    best[known] = np.nanmin(costs[known], axis=1)
    # A configuration that the objective forbids (infinite) costs a thousand times the cheapest: arithmetic
    # stays finite, and it is never chosen.
    finite = best[np.isfinite(best)]
    forbidden = np.isinf(best)
    best = np.where(forbidden, 1e3 * (finite.min() if len(finite) else 1.0), best)
    sure = evidence.fully_profiled | forbidden
    whole = np.flatnonzero(evidence.fully_profiled & ~forbidden)
    for arm in np.flatnonzero(known & ~sure) if len(whole) else ():
        # Known at one limit only: the best limit is assumed to save as much as at the nearest batch size.
        near = whole[np.argmin(np.abs(evidence.octaves[whole] - evidence.octaves[arm]))]
        saved = costs[near] / best[near]
        best[arm] = min(np.nanmin(costs[arm] / saved), best[arm])
    if sure.all():
        return np.broadcast_to(best, (count, len(best)))
    where = np.flatnonzero(known)
    shapes = _cost_shapes(tuple(evidence.octaves), evidence.default, prior)
    # The error of a profiling window and of that saving, about as large as a batch size's deviation from the
    # shape.
    posterior = condition(
        shapes, where, np.log(best[where]), np.where(sure[where], 0.0, prior.single_sd**2)[None, :]
    )
    samples = np.exp(posterior.sample(count, rng)[0])
    samples[:, sure] = best[sure]
    return samples
