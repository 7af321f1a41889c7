"""What is believed about the epochs to the target and the cost of an epoch, at every batch size.

Epochs: log E(b) = level + log(1 + b/Bc + (Bs/b)**q) + deviations. Beyond a critical batch size Bc more
samples per step buy nothing (McCandlish et al., arXiv 1812.06162); below some Bs training gets noisy, and
with large q it does not get there at all. Runs scatter around that by a share of their epochs that is not
known either: several values are kept and weighed by what was seen, so a small sample has fat tails. A stopped
run is a lower bound; the level its metric had reached by then, against the same level in runs that reached
the target, is a forecast.

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
from .history import Evidence, Run


@dataclass(frozen=True, slots=True)
class EpochPrior:
    """What is believed of epochs and their cost before any run: the tuned constants of `believe`.

    `benchmarks.recurring --tune` chose `own_sd`, `wall` and `forecast_sd` with the scored workload left out;
    the others were set by hand on the unscored seeds of the same benchmark (docs/validation/recurring.md).

    Attributes:
        smooth_sd, length, single_sd: Deviations of log epochs from the shape: smooth over `length` octaves,
            and of one batch size.
        rough: Deviations may be so many times those in scale, with `rough_weights`: most jobs follow the
            shape, a few do not.
        own_sd: More scatter that a batch size may have of its own: one run says less than the scatter of
            others makes believe.
        noise: Relative scatters of runs at one batch size, with `noise_weights`.
        wall: Probability, per octave away from what has been tried, that a batch size does not get to the
            target at all.
        forecast_sd: Scatter of a forecast from the start of a run, in log epochs, falling with how far the
            run got.
        trend_sd: How much a run may fall behind its forecast from its beginning to its end, in log epochs.
        cost_smooth_sd: Deviations of the log cost of an epoch from its shape.
        limit_sd: How far the cost at the best limit may be off, in its logarithm, where one limit is known;
            `limit_sd_runs` batch sizes' worth of that belief.
        slice_sd: Error of a slice that nothing takes away, in log cost.
        other_sd: How far batch sizes may compare otherwise at another target, in log epochs.
        tail: Probability that the few runs of a batch size were odd ones, `tail_sd` in log epochs beside
            their like: a run in five may take 7 epochs instead of 4, and who takes the first such run for the
            rule never looks there again.
        forecast_runs: Finished runs' worth of what is believed beforehand of how differently runs go on.
        early: Share of a run before which its beginning forecasts nothing: it says little of the end, and
            the same for all batch sizes.
        milestone_sd_epochs: Error of the epoch at which a level was reached.
        milestone_log_sd: Error of a forecast in log epochs that no level takes away.
        other_run_sd: Scatter of one run to another target, in log epochs.
        wall_log_epochs: What is added to log epochs where training does not get there.
    """

    smooth_sd: float = 0.15
    length: float = 2.0
    single_sd: float = 0.03
    rough: tuple[float, ...] = (0.5, 1.0, 3.0)
    rough_weights: tuple[float, ...] = (0.35, 0.4, 0.25)
    own_sd: float = 0.05
    noise: tuple[float, ...] = (0.02, 0.05, 0.1, 0.2, 0.4)
    noise_weights: tuple[float, ...] = (0.15, 0.3, 0.3, 0.2, 0.05)
    wall: float = 0.05
    forecast_sd: float = 0.3
    trend_sd: float = 0.5
    cost_smooth_sd: float = 0.2
    limit_sd: float = 0.06
    limit_sd_runs: float = 3.0
    slice_sd: float = 0.01
    other_sd: float = 0.15
    tail: float = 0.1
    tail_sd: float = 0.5
    forecast_runs: float = 3.0
    early: float = 0.05
    milestone_sd_epochs: float = 0.4
    milestone_log_sd: float = 0.02
    other_run_sd: float = 0.1
    wall_log_epochs: float = 3.0


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
    table = EpochTable.of(evidence)
    shapes = _epoch_shapes(octaves, evidence.default, prior)
    where = np.flatnonzero(table.count)
    extra = [(arm, value, variance, 0) for arm, value, variance in _forecasts(evidence, table, prior)]
    extra += _other_targets(evidence, prior)
    groups = np.array([0] * len(where) + [group for *_, group in extra])
    at = np.concatenate([where, np.array([arm for arm, *_ in extra], dtype=int)])
    values = np.concatenate([table.mean[where], np.array([value for _, value, *_ in extra])])
    count_observed = table.count[where]
    freedom = count_observed.sum() - len(where)
    sd = np.tile(prior.noise, len(prior.rough))[:, None]
    scales = np.repeat(prior.rough, len(prior.noise))
    log_levels = np.log(np.outer(prior.rough_weights, prior.noise_weights)).ravel()
    known = sd**2 / count_observed + (prior.own_sd / count_observed) ** 2
    promised = sd**2 + np.array([variance for _, _, variance, _ in extra])
    within = -0.5 * table.squares / sd[:, 0] ** 2 - freedom * np.log(sd[:, 0]) + log_levels
    variances = np.concatenate([known, promised], axis=1)
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
        scales, sd = np.tile(scales, len(odd) + 1), np.tile(sd, (len(odd) + 1, 1))
    posterior = condition(shapes, at, values, variances, within, groups, scales)
    log_epochs, levels = posterior.sample(count, rng)
    scatter = sd[levels, 0]
    log_epochs = _walls(log_epochs, evidence, table, prior, rng)
    failing = failures(evidence)
    rates = rng.beta(failing.failed, failing.reached, size=log_epochs.shape)
    if table.bounds:
        kept = _bounded(log_epochs, scatter, rates, failing, table, prior, rng)
        log_epochs, scatter, rates = log_epochs[kept], scatter[kept], rates[kept]
    costs = _epoch_costs(evidence, objective, prior, len(log_epochs), rng)
    return EpochPosterior(
        log_epochs, scatter, costs, rates, failing, evidence.count > 0, float(evidence.space.max_epochs)
    )


@dataclass(frozen=True, slots=True)
class EpochTable:
    """Runs per batch size: at the target, number, mean and squares of log epochs; of others the bounds."""

    count: np.ndarray
    mean: np.ndarray
    squares: float
    bounds: dict[tuple[int, float], int]

    @classmethod
    def of(cls, evidence: Evidence) -> EpochTable:
        mean = evidence.sum_log / np.maximum(evidence.count, 1)
        squares = float((evidence.sum_log2 - evidence.count * mean**2).sum())
        return cls(evidence.count, mean, max(squares, 0.0), evidence.bounds)


def _forecasts(evidence: Evidence, table: EpochTable, prior: EpochPrior) -> list[tuple[int, float, float]]:
    """(batch size, log epochs, variance) promised by stopped runs, against runs that reached the target."""
    if not table.bounds:
        return []
    stopped = [run for run in evidence.current if run.state == "stopped" and run.milestones][-8:]
    whole = [run for run in evidence.current if run.state == "reached" and run.milestones][-20:]
    # Early forecasts of one batch size all err the same way, so several are no better than the furthest one;
    # and runs that got to the end know better. Otherwise a batch size that starts slowly would be talked down
    # for ever.
    by_epochs = sorted(stopped, key=lambda run: run.epochs)
    furthest = {run.arm: run for run in by_epochs if table.count[run.arm] == 0}
    found = []
    for arm, run in furthest.items():
        if (promised := forecast(run.milestones, whole, prior)) is not None:
            # A forecast that the run itself has outlived has erred by so much at least.
            missed = max(float(np.log(max(run.epochs, 0.5))) - promised[0], 0.0)
            found.append((arm, promised[0], promised[1] + missed**2))
    return found


def _other_targets(evidence: Evidence, prior: EpochPrior) -> list[tuple[int, float, float, int]]:
    """(batch size, mean log epochs, variance, group) of runs to other targets, which batch sizes share."""
    found = []
    for group, results in enumerate(evidence.others.values(), start=1):
        arms = np.array([arm for arm, _ in results])
        logs = np.log([max(epochs, 0.5) for _, epochs in results])
        for arm in np.unique(arms):
            mine = logs[arms == arm]
            variance = prior.other_sd**2 + prior.other_run_sd**2 / len(mine)
            found.append((int(arm), float(mine.mean()), variance, group))
    return found


def forecast(
    milestones: dict[float, float], whole: list[Run], prior: EpochPrior
) -> tuple[float, float] | None:
    """Log epochs and their variance that a started run promises; None where no run shares a level with it."""
    # A level reached in the first epoch was reached somewhere in it: that says nothing of how fast.
    begun = [(level, epoch) for level, epoch in milestones.items() if epoch > 1]
    at = np.array([[run.milestones.get(level, 1.0) for run in whole] for level, _ in begun])
    at = at.reshape(len(begun), len(whole))
    there = at > 1
    count = there.sum(axis=1)
    if not count.any():
        return None
    at, there, epoch = at[count > 0], there[count > 0], np.array([epoch for _, epoch in begun])[count > 0]
    count = count[count > 0]
    ends = np.array([run.epochs for run in whole])
    gone = (at / ends * there).sum(axis=1) / count
    if gone.max() < prior.early:
        return None
    ratios = np.log(ends / at)
    ratio = (ratios * there).sum(axis=1) / count
    squares = ((ratios - ratio[:, None]) ** 2 * there).sum(axis=1)
    sd = prior.milestone_sd_epochs
    variance = prior.milestone_log_sd**2 + (sd / epoch) ** 2 + ((sd / at) ** 2 * there).sum(axis=1) / count
    promised = np.log(epoch) + ratio
    last = int(np.lexsort((promised, gone))[-1])
    # What falls behind from level to level goes on to: a line through what each level promises, to the end of
    # the run.
    left = 1 - gone[last]
    lines = np.stack([np.ones(len(gone)), gone - 1])
    known = np.linalg.inv((lines / variance) @ lines.T + np.diag([1e-6, prior.trend_sd**-2]))
    end = float((known @ (lines / variance) @ promised)[0])
    # How differently finished runs went on from there is how differently this one may, as Student's t has it:
    # of one run hardly known.
    freedom = prior.forecast_runs + count[last] - 1
    onwards = (prior.forecast_runs * (prior.forecast_sd * left) ** 2 + squares[last]) / (freedom - 2)
    return end, float(known[0, 0] + onwards * (1 + 1 / count[last]))


def _walls(
    log_epochs: np.ndarray, evidence: Evidence, table: EpochTable, prior: EpochPrior, rng: np.random.Generator
) -> np.ndarray:
    """Chance that training fails at a batch size: it grows with the distance from what reached the target."""
    octaves = evidence.octaves
    # The default is assumed to reach the target.
    reached = np.flatnonzero(table.count) if table.count.any() else np.array([evidence.default])
    low, high = octaves[reached[0]], octaves[reached[-1]]
    count = len(log_epochs)
    below = low - rng.exponential(1 / prior.wall, count)
    above = high + rng.exponential(1 / prior.wall, count)
    beyond = (octaves[None, :] < below[:, None]) | (octaves[None, :] > above[:, None])
    return np.where(beyond, log_epochs + prior.wall_log_epochs, log_epochs)


def _bounded(
    log_epochs: np.ndarray, noise: np.ndarray, rates: np.ndarray, failing: Failures, table: EpochTable,
    prior: EpochPrior, rng: np.random.Generator,
) -> np.ndarray:
    """Draws again (indices), by how well each draw explains that stopped runs had not reached the target."""
    score = np.zeros(len(noise))
    for (arm, epochs), times in table.bounds.items():
        # What had failed its rate has counted.
        counted = times * (1 - failing.blame.get((arm, epochs), 0.0))
        short = log_epochs[:, arm] - np.log(epochs)
        usual, odd = ndtr(short / np.hypot(noise, prior.own_sd)), ndtr(short / prior.tail_sd)
        longer = (1 - prior.tail) * usual + prior.tail * odd
        score += counted * np.log(rates[:, arm] + (1 - rates[:, arm]) * longer + 1e-6)
    weights = np.exp(score - score.max())
    edges = np.cumsum(weights) / weights.sum()
    count = len(noise)
    return np.minimum(np.searchsorted(edges, (np.arange(count) + rng.random()) / count), count - 1)


def _at_best_limit(
    costs: np.ndarray, best: np.ndarray, evidence: Evidence, prior: EpochPrior
) -> tuple[np.ndarray, np.ndarray]:
    """Cost of an epoch at the best limit, and the sd of its logarithm, per batch size.

    Where few limits are known, by how limits compare at the nearest batch size where all are. How far that
    is off is learned from what the same would have said of batch sizes whose limits are all known.
    """
    octaves, whole = evidence.octaves, np.flatnonzero(evidence.fully_profiled)
    many = (~np.isnan(costs)).sum(axis=1)
    out, sd = best.copy(), np.full(len(best), prior.slice_sd)
    misses = []
    for arm in whole if len(whole) > 1 else ():
        near = _nearest(whole[whole != arm], int(arm), octaves)
        both = np.flatnonzero(np.isfinite(costs[arm]) & np.isfinite(costs[near]))[-1:]
        if len(both) and best[arm] > 0:
            misses.append(np.log(_through(costs[arm, both], costs[near, both], costs[near]) / best[arm]))
    squares = np.square(misses)
    usual = prior.limit_sd_runs * prior.limit_sd**2
    miss_sd = np.sqrt((usual + squares.sum()) / (prior.limit_sd_runs + len(squares)))
    for arm in np.flatnonzero((many > 0) & ~evidence.fully_profiled):
        # The more limits of its own, the less depends on those of another.
        sd[arm] = np.hypot(miss_sd / many[arm], prior.slice_sd)
        if not len(whole):
            continue
        near = _nearest(whole, int(arm), octaves)
        both = np.flatnonzero(np.isfinite(costs[arm]) & np.isfinite(costs[near]) & (costs[near] > 0))
        if len(both):
            out[arm] = min(_through(costs[arm, both], costs[near, both], costs[near]), best[arm])
    return out, sd


def _nearest(arms: np.ndarray, arm: int, octaves: np.ndarray) -> int:
    return int(arms[np.argmin(np.abs(octaves[arms] - octaves[arm]))])


def _through(costs: np.ndarray, like: np.ndarray, all_like: np.ndarray) -> float:
    """Cost at the best limit, by costs at some limits here, at the same limits elsewhere, and all there."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = float(np.exp(np.log(costs / like).mean()))
    return ratio * float(all_like[np.isfinite(all_like)].min()) if np.isfinite(ratio) else float(costs.min())


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
    best, sd = _at_best_limit(costs, best, evidence, prior)
    best = np.where(forbidden, 1e3 * (finite.min() if len(finite) else 1.0), best)
    sure = known & ((sd <= prior.slice_sd) | forbidden)
    if sure.all():
        return np.asarray(np.broadcast_to(best, (count, len(best))))
    where = np.flatnonzero(known)
    shapes = _cost_shapes(tuple(evidence.octaves), evidence.default, prior)
    variances = np.where(sure[where], prior.slice_sd, sd[where])[None, :] ** 2
    posterior = condition(shapes, where, np.log(best[where]), variances)
    drawn = np.exp(posterior.sample(count, rng)[0])
    drawn[:, sure] = best[sure]
    return np.asarray(drawn)
