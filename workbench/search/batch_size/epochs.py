"""What is believed about the epochs to the target and the cost of an epoch, at every batch size.

Epochs: log E(b) = level + log(1 + b/Bc + (Bs/b)**q) + deviations. Beyond a critical batch size Bc more
samples per step buy nothing (McCandlish et al., arXiv 1812.06162); below some Bs training gets noisy, and
with large q it does not get there at all. Runs scatter around that by a share of their epochs that is not
known either: several values are kept and weighed by the runs so far, so a small sample has fat tails. A
stopped run is a lower bound.

Epoch cost: log c(b) = level + log(1 + Bh/b) + deviations: a part per sample and a part per step. Profiled
batch sizes are known.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import ndtr

from ..objective import Objective
from ..surrogates.curve_priors import Shapes, condition, smooth_covariance
from .failures import Failures, failures
from .history import Evidence

SLICE_SD = 0.01  # relative error of a profiled epoch; half or twice as much changes nothing


@dataclass(frozen=True, slots=True)
class EpochPrior:
    """What is believed of epochs and their cost before any run.

    Set by hand on draws of `benchmarks.recurring` that are not scored; docs/validation/recurring.md shows
    what each of them is worth.

    Attributes:
        smooth_sd, length, single_sd: Deviations of log epochs from the shape: smooth over `length` octaves,
            and of one batch size.
        noise: Relative scatters of runs at one batch size, equally likely.
        wall: Probability, per octave away from what has been tried, that a batch size does not get to the
            target at all.
        cost_smooth_sd: Deviations of the log cost of an epoch from its shape.
        limit_sd: How far the cost at the best limit may be off, in its logarithm, where one limit is known.
        other_sd: How far batch sizes may compare otherwise at another target, in log epochs.
        tail: Probability that the few runs of a batch size were odd ones, `tail_sd` in log epochs beside
            their like: a run in five may take 7 epochs instead of 4, and who takes the first such run for the
            rule never looks there again.
    """

    smooth_sd: float = 0.15
    length: float = 2.0
    single_sd: float = 0.03
    noise: tuple[float, ...] = (0.02, 0.05, 0.1, 0.2)
    wall: float = 0.05
    cost_smooth_sd: float = 0.2
    limit_sd: float = 0.06
    other_sd: float = 0.15
    tail: float = 0.1
    tail_sd: float = 0.5


@dataclass(frozen=True, slots=True)
class EpochPosterior:
    """Draws of what may be true, one a row, equally likely.

    Attributes:
        log_epochs: Typical epochs to the target, per batch size.
        noise: Scatter of single runs, per draw.
        epoch_cost: Cost of an epoch, per batch size, in the objective's unit.
        failure_rate: Share of runs that fail whatever epochs they have, per batch size.
        failures: What that comes from, and after how many epochs a run is given up.
        tried: Whether a run has reached the target, per batch size.
        max_epochs: Of a run.
    """

    log_epochs: np.ndarray
    noise: np.ndarray
    epoch_cost: np.ndarray
    failure_rate: np.ndarray
    failures: Failures
    tried: np.ndarray
    max_epochs: float


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
    # Equal shapes once, with the weight of all.
    table, times = np.unique(table.round(1), axis=0, return_counts=True)
    # The person's own batch size is a sensible one: where it would need 4 times the epochs of the best per
    # octave, it is not.
    log_prior = np.log(times) - 0.5 * np.maximum(-table.min(axis=1) - 2.0, 0.0) ** 2
    smooth = {"smooth_sd": prior.smooth_sd, "length": prior.length, "single_sd": prior.single_sd}
    covariance = smooth_covariance(at, **smooth)
    return Shapes(table, log_prior - np.log(times.sum()), covariance)


@lru_cache(maxsize=64)
def _cost_shapes(octaves: tuple[float, ...], default: int, prior: EpochPrior) -> Shapes:
    at = np.asarray(octaves)
    half = np.arange(at[0] - 6, at[-1] + 1.1, 0.5)
    table = np.log(1 + 2.0 ** (half[:, None] - at[None, :]))
    table -= table[:, [default]]
    covariance = smooth_covariance(at, smooth_sd=prior.cost_smooth_sd, length=2.0, single_sd=0.03)
    return Shapes(table, np.full(len(half), -np.log(len(half))), covariance)


def believe(
    evidence: Evidence, objective: Objective, prior: EpochPrior, count: int, rng: np.random.Generator
) -> EpochPosterior:
    """Posterior draws of epochs to the target and cost of an epoch, per batch size.

    Before a run has reached the target, only ratios between batch sizes mean anything.

    Args:
        evidence: Runs and profiles so far.
        objective: The cost of an epoch is in its unit.
        prior: What is believed before any run.
        count: Draws.
        rng: Where randomness comes from.
    """
    octaves = tuple(evidence.octaves)
    count_all = evidence.count
    mean = evidence.sum_log / np.maximum(count_all, 1)
    squares = max(float((evidence.sum_log2 - count_all * mean**2).sum()), 0.0)
    shapes = _epoch_shapes(octaves, evidence.default, prior)
    where = np.flatnonzero(count_all)
    extra = _other_targets(evidence)
    groups = np.array([0] * len(where) + [group for *_, group in extra])
    at = np.concatenate([where, np.array([arm for arm, *_ in extra], dtype=int)])
    values = np.concatenate([mean[where], np.array([value for _, value, _ in extra])])
    count_observed = count_all[where]
    freedom = count_observed.sum() - len(where)
    sd = np.array(prior.noise)[:, None]
    within = -0.5 * squares / sd[:, 0] ** 2 - freedom * np.log(sd[:, 0])
    elsewhere = np.broadcast_to(sd**2 + prior.other_sd**2, (len(sd), len(extra)))
    variances = np.concatenate([sd**2 / count_observed, elsewhere], axis=1)
    # Batch sizes whose few runs may all be odd ones: at most three of one or two runs, the fewest first.
    few = np.flatnonzero(count_observed <= 2)
    odd = few[np.argsort(count_observed[few], kind="stable")][:3]
    if len(odd):
        # Once more for each: the same, but that its runs were odd ones.
        plain = len(sd)
        variances = np.tile(variances, (len(odd) + 1, 1))
        for i, observed in enumerate(odd, start=1):
            variances[i * plain : (i + 1) * plain, observed] += prior.tail_sd**2 / count_observed[observed]
        within = np.concatenate([within, *[within + np.log(prior.tail)] * len(odd)])
        sd = np.tile(sd, (len(odd) + 1, 1))
    posterior = condition(shapes, at, values, variances, within, groups)
    log_epochs, levels = posterior.sample(count, rng)
    scatter = sd[levels, 0]
    log_epochs = _walls(log_epochs, evidence, prior, rng)
    failing = failures(evidence)
    rates = rng.beta(failing.failed, failing.reached, size=log_epochs.shape)
    if failing.bounds:
        kept = _bounded(log_epochs, scatter, rates, failing, prior, rng)
        log_epochs, scatter, rates = log_epochs[kept], scatter[kept], rates[kept]
    costs = _epoch_costs(evidence, objective, prior, len(log_epochs), rng)
    return EpochPosterior(
        log_epochs, scatter, costs, rates, failing, evidence.count > 0, float(evidence.space.max_epochs)
    )


def _other_targets(evidence: Evidence) -> list[tuple[int, float, int]]:
    """(batch size, mean log epochs, group) of runs to other targets, which share how batch sizes compare."""
    found = []
    for group, results in enumerate(evidence.others.values(), start=1):
        arms = np.array([arm for arm, _ in results])
        logs = np.log([max(epochs, 0.5) for _, epochs in results])
        found += [(int(arm), float(logs[arms == arm].mean()), group) for arm in np.unique(arms)]
    return found


def _walls(
    log_epochs: np.ndarray, evidence: Evidence, prior: EpochPrior, rng: np.random.Generator
) -> np.ndarray:
    """Chance that training fails at a batch size: it grows with the distance from what reached the target."""
    octaves = evidence.octaves
    # The default is assumed to reach the target.
    reached = np.flatnonzero(evidence.count) if evidence.count.any() else np.array([evidence.default])
    low, high = octaves[reached[0]], octaves[reached[-1]]
    count = len(log_epochs)
    below = low - rng.exponential(1 / prior.wall, count)
    above = high + rng.exponential(1 / prior.wall, count)
    beyond = (octaves[None, :] < below[:, None]) | (octaves[None, :] > above[:, None])
    # A factor of 20: beyond all epochs that a run may take.
    return np.where(beyond, log_epochs + 3.0, log_epochs)


def _bounded(
    log_epochs: np.ndarray, noise: np.ndarray, rates: np.ndarray, failing: Failures, prior: EpochPrior,
    rng: np.random.Generator,
) -> np.ndarray:
    """Draws again (indices), by how well each draw explains that stopped runs had not reached the target."""
    score = np.zeros(len(noise))
    for (arm, epochs), times in failing.bounds.items():
        short = log_epochs[:, arm] - np.log(epochs)
        longer = (1 - prior.tail) * ndtr(short / noise) + prior.tail * ndtr(short / prior.tail_sd)
        score += times * np.log(rates[:, arm] + (1 - rates[:, arm]) * longer + 1e-6)
    weights = np.exp(score - score.max())
    edges = np.cumsum(weights) / weights.sum()
    count = len(noise)
    return np.minimum(np.searchsorted(edges, (np.arange(count) + rng.random()) / count), count - 1)


def _epoch_costs(
    evidence: Evidence, objective: Objective, prior: EpochPrior, count: int, rng: np.random.Generator
) -> np.ndarray:
    costs = evidence.epoch_costs(objective)
    known = ~np.isnan(costs).all(axis=1)
    best = np.full(len(costs), np.nan)
    best[known] = np.nanmin(costs[known], axis=1)
    # What an objective forbids (infinite) is a thousand times as dear as the cheapest: arithmetic goes on,
    # nothing chooses it.
    finite = best[np.isfinite(best)]
    forbidden = np.isinf(best)
    best = np.where(forbidden, 1e3 * (finite.min() if len(finite) else 1.0), best)
    sure = evidence.fully_profiled | forbidden
    whole = np.flatnonzero(evidence.fully_profiled & ~forbidden)
    for arm in np.flatnonzero(known & ~sure) if len(whole) else ():
        # Known at some limits only: the best limit saves what it saves at the nearest batch size.
        near = whole[np.argmin(np.abs(evidence.octaves[whole] - evidence.octaves[arm]))]
        saved = costs[near] / best[near]
        best[arm] = min(np.nanmin(costs[arm] / saved), best[arm])
    if sure.all():
        return np.asarray(np.broadcast_to(best, (count, len(best))))
    where = np.flatnonzero(known)
    shapes = _cost_shapes(tuple(evidence.octaves), evidence.default, prior)
    variances = np.where(sure[where], SLICE_SD, prior.limit_sd)[None, :] ** 2
    posterior = condition(shapes, where, np.log(best[where]), variances)
    drawn = np.exp(posterior.sample(count, rng)[0])
    drawn[:, sure] = best[sure]
    return np.asarray(drawn)
