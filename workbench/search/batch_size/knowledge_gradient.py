"""Our policy: what a try is worth over the next recurrences, and when to stop it.

The cost of a recurrence is epochs x cost of an epoch. The second is known from seconds of profiling, the
first is believed (`epochs.py`). A try at a batch size is worth what it costs now, with the best moment to
stop it, plus what the recurrences of a planning horizon will cost once it is known: the knowledge gradient
(Frazier, Powell and Dayanik, 2008).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from scipy.special import ndtr

from ..objective import Objective
from .epochs import EpochPosterior, EpochPrior, believe
from .history import MOST_RUNS, Evidence
from .policy import Progress, Proposal

# Set by looking at draws of `benchmarks.recurring` that are not scored (docs/validation/recurring.md).
BINS = 16  # of draws, between which a run may be stopped: twice or half as many change nothing
FIRST_CAP = 1.5  # of the default's cost: a dearer first run counts as lost, and the default follows it
HOPE_QUANTILE = 0.3  # of what a batch size may cost that makes a slice worthwhile
CAREFUL_QUANTILE = 0.25  # of the default's epochs: in safe mode, only what has surely been saved is spent
DEAR_QUANTILE = 0.9  # of an epoch's cost: in safe mode, a try must be able to pay it


@dataclass(frozen=True, slots=True)
class KnowledgeGradient:
    """Knowledge gradient over a planning horizon, with optimal stopping of runs.

    Attributes:
        safe: Never let the sum of all costs rise above what the default configuration would have cost.
        horizon: Recurrences over which a try has to pay for itself, at least; what has recurred n times is
            expected to recur n times more.
        draws: Draws from the belief.
        explore_first: Whether the first run may be at another batch size than the default, where seconds of
            profiling promise that it costs less.
        prior: What is believed of epochs before any run.
    """

    safe: bool = False
    horizon: float = 40.0
    draws: int = 256
    explore_first: bool = True
    prior: EpochPrior = field(default_factory=EpochPrior)

    @property
    def name(self) -> str:
        return "knowledge-gradient" + (" safe" if self.safe else "")

    def ask(self, evidence: Evidence, objective: Objective, rng: np.random.Generator) -> Proposal:
        if not evidence.count.any() or not evidence.in_profile.any():
            fresh = not evidence.runs and not evidence.in_flight.any()
            begin = None
            if fresh and self.explore_first and not self.safe:
                begin = self._begin(evidence, objective, rng)
            return begin or self._first(evidence, objective)
        if self.safe and evidence.last_run_now and evidence.usable[evidence.default]:
            # What never loses a recurrence that the default would not lose.
            limit = _profiled_limit(evidence, evidence.default, objective)
            return _run(evidence, evidence.default, limit, "the last run of this recurrence is the default")
        belief = believe(evidence, objective, self.prior, self.draws, rng)
        budget = self._budget(evidence, objective, belief) if self.safe else math.inf
        options = weigh(belief, evidence, objective, self, budget)
        incumbent = options.incumbent
        may_try = self._may_try(evidence, belief, incumbent)
        arm = int(np.argmin(options.value)) if may_try else incumbent
        stop, reason = float(options.stop[arm]), "may be cheaper"
        limit = _profiled_limit(evidence, arm, objective)
        if arm == incumbent:
            stop, reason = float(belief.failures.stop_epochs[arm]), "best so far"
            # Who gives up what the default would have finished pays for another run.
            worst = stop**objective.degree * float(np.nanmean(belief.epoch_cost[:, arm]))
            if arm == evidence.default and worst + options.expected[arm] > budget:
                stop = math.inf
        return _run(evidence, arm, limit, reason, stop)

    def _may_try(self, evidence: Evidence, belief: EpochPosterior, incumbent: int) -> bool:
        """Whether this recurrence may go to another batch size than the best so far.

        Not where another run is going on, nor after a run of this recurrence was lost: one loss each is
        enough, unless what is best so far fails more often than not and there is a run left after this one.
        """
        if evidence.in_flight.any() or evidence.last_run_now:
            return False
        return not evidence.lost_now or float(belief.failure_rate[:, incumbent].mean()) > 0.5

    def watch(
        self, evidence: Evidence, objective: Objective, proposal: Proposal, progress: Progress
    ) -> str | None:
        """As `BatchSizePolicy.watch`."""
        return "so many epochs are not worth it" if progress.epochs >= proposal.stop_after_epochs else None

    def _first(self, evidence: Evidence, objective: Objective) -> Proposal:
        """The default until it has reached the target, or what is nearest to it and failed least often.

        In safe mode for two recurrences: running the default costs nobody more than the default.
        """
        if evidence.count.any():  # which reached the changed job's target, or was chosen on another card
            arm = int(np.argmax(evidence.count))
            reason = f"the {'job' if evidence.since else 'card'} is another one: what does an epoch cost now?"
            return _run(evidence, arm, None, reason)
        failed = np.bincount([run.arm for run in evidence.current], minlength=evidence.arms)
        distance = np.abs(evidence.octaves - evidence.octaves[evidence.default])
        usable = evidence.usable if evidence.usable.any() else np.ones(evidence.arms, dtype=bool)
        patience = 2 * MOST_RUNS - 1 if self.safe else 1
        arm = int(np.argmin(np.where(usable, np.maximum(failed - patience, 0) * 2 + distance, np.inf)))
        limit = _profiled_limit(evidence, arm, objective)
        return _run(evidence, arm, limit, "nothing has reached the target here yet")

    def _begin(self, evidence: Evidence, objective: Objective, rng: np.random.Generator) -> Proposal | None:
        """The first run, where it had better not be at the default: None where the default it is.

        What an epoch costs is known from slices of seconds; of the epochs only how they may compare is
        believed. A batch size that does not get there is paid for twice, so unlikely good luck
        does not count for more than that.
        """
        space, default = evidence.space, evidence.default
        if not space.power_limits_w or space.max_epochs < 2 or evidence.usable.sum() < 2:
            return None
        highest = max(space.power_limits_w)
        if not evidence.in_profile[default]:
            return Proposal(space.default, highest, "slice", reason="what does an epoch cost here?")
        belief = believe(evidence, objective, self.prior, 4 * self.draws, rng)
        costs = np.exp(objective.degree * belief.log_epochs) * belief.epoch_cost
        ratio = costs / costs[:, [default]]
        capped = np.where(ratio > FIRST_CAP, FIRST_CAP + 1, ratio)
        score = np.where(evidence.usable, capped.mean(axis=0), np.inf)
        arm = int(np.argmin(score))
        if score[arm] >= 1:
            # A slice is cheap where a good end of what is believed would change this.
            hoped = np.quantile(ratio, HOPE_QUANTILE, axis=0)
            hope = np.where(evidence.usable & ~evidence.in_profile, hoped, np.inf)
            arm = int(np.argmin(hope)) if hope.min() < 1 else default
        if arm == default:
            return None
        if not evidence.in_profile[arm]:
            return Proposal(space.batch_sizes[arm], highest, "slice", reason="what does an epoch cost here?")
        # The default gets there within all its epochs; what has cost as much as those would have is dearer
        # than the default.
        each = evidence.epoch_costs(objective)
        most = space.max_epochs * (np.nanmin(each[default]) / np.nanmin(each[arm])) ** (1 / objective.degree)
        stop = float(np.clip(np.ceil(most), 1, space.max_epochs))
        return _run(evidence, arm, None, "its epochs are far cheaper than the default's", stop)

    def _budget(self, evidence: Evidence, objective: Objective, belief: EpochPosterior) -> float:
        """What has been saved so far against the default batch size at the highest limit, with this
        recurrence at the default's price.

        A try may cost this much in all, the run that follows a stopped one included. What a run at the
        default would have cost at the highest limit is known from that run; elsewhere a careful price counts,
        and before the job changed nothing was saved: what may never have been is not to be spent.
        """
        default, degree = evidence.default, objective.degree
        own = evidence.epoch_costs(objective)[default]
        if np.isnan(own).all():
            return 0.0
        highest = own[evidence.column(None)] if not np.isnan(own[evidence.column(None)]) else np.nanmax(own)
        log_epochs = np.quantile(belief.log_epochs[:, default], CAREFUL_QUANTILE)
        careful = float(np.exp(degree * log_epochs)) * float(highest)
        spent = sum(float(objective.cost(time_s, energy_j)) for time_s, energy_j in evidence.slices)
        price = careful
        for number, (run, local) in enumerate(zip(evidence.runs, evidence.local, strict=True)):
            if not local:
                continue
            cost = float(objective.cost(run.time_s, run.energy_j))
            spent += cost
            now = number >= evidence.since
            if run.arm == default and run.state == "stopped":
                # Had it failed, the default would have paid all its epochs; else the run after it stands for
                # it.
                if now and (default, run.epochs) not in belief.failures.bounds:
                    price += belief.max_epochs**degree * highest
            elif run.arm == default and now and run.profile_time_s > 0:
                price += run.epochs**degree * highest
            elif run.arm == default and run.state != "crashed":
                there = own[evidence.column(run.power_limit_w)]
                price += cost * (highest / there if there > 0 else 1.0)
            elif run.state == "reached":
                price += careful if now else cost
        # What the objective forbids has no price that anything could be saved against.
        return float(price - spent) if math.isfinite(price) and math.isfinite(spent) else 0.0


@dataclass(frozen=True, slots=True)
class CandidateValues:
    """Per batch size a try's worth (lower is better), where to stop it, its expected cost; the incumbent."""

    value: np.ndarray
    stop: np.ndarray
    expected: np.ndarray
    incumbent: int


def weigh(
    belief: EpochPosterior, evidence: Evidence, objective: Objective, policy: KnowledgeGradient,
    budget: float = math.inf,
) -> CandidateValues:
    """Expected total cost over the horizon of trying each batch size next, in the objective's unit.

    Args:
        belief: Draws of epochs and costs.
        evidence: Runs and profiles so far.
        objective: The cost.
        policy: Its horizon.
        budget: What a try may cost at most.
    """
    costs = run_costs(belief, objective)
    expected = costs.mean(axis=0)
    tried = evidence.count > 0
    incumbent = int(np.argmin(np.where(tried, expected, np.inf)))
    allowed = evidence.usable
    allowed[[arm for arm in evidence.lost_now if arm != incumbent]] = False
    value = np.full(evidence.arms, np.inf)
    stop = np.full(evidence.arms, np.inf)
    horizon = max(policy.horizon, float(evidence.count.sum()))
    value[incumbent] = expected[incumbent] + (horizon - 1) * expected[allowed].min()
    arms = np.flatnonzero(allowed)
    arms = arms[arms != incumbent]
    if len(arms):
        fallback = float(expected[incumbent])
        value[arms], stop[arms] = _plans(
            belief, costs, arms, fallback, allowed, objective.degree, horizon, budget, free=evidence.default,
        )
    return CandidateValues(value, stop, expected, incumbent)


def run_costs(belief: EpochPosterior, objective: Objective) -> np.ndarray:
    """Expected cost of a recurrence whose first run is at each batch size, a row per draw.

    The mean over the scatter of runs. A run that fails, or needs more epochs than it may take, costs those
    epochs and a recurrence at the best batch size that has reached the target.
    """
    degree, longest = objective.degree, belief.max_epochs
    noise = belief.noise[:, None]
    in_time = ndtr((np.log(belief.failures.stop_epochs) - belief.log_epochs) / noise)
    lost = 1 - (1 - belief.failure_rate) * in_time
    mean = np.minimum(belief.log_epochs + 0.5 * degree * noise**2, math.log(longest))
    ended = (1 - lost) * np.exp(degree * mean) + lost * belief.failures.stop_epochs**degree
    costs = ended * belief.epoch_cost
    tried = belief.tried
    if not tried.any():
        return np.asarray(costs)
    # The least that always ends: runs at the best batch size until one gets there.
    again = costs[:, tried].mean(axis=0) / np.maximum(1 - lost[:, tried].mean(axis=0), 0.05)
    return np.asarray(costs + lost * again.min())


@lru_cache(maxsize=8)
def _shock(count: int) -> np.ndarray:
    # The same for every batch size and every call: what is compared differs in what is believed, not in luck.
    return np.random.default_rng(0).standard_normal(count)


@lru_cache(maxsize=8)
def _luck(count: int) -> np.ndarray:
    return np.random.default_rng(1).permutation((np.arange(count) + 0.5) / count)


def _plans(
    belief: EpochPosterior, costs: np.ndarray, arms: np.ndarray, fallback: float, allowed: np.ndarray,
    degree: int, horizon: float, budget: float = math.inf, free: int = -1,
) -> tuple[np.ndarray, np.ndarray]:
    """All costs over the horizon of a try at each of `arms`, and the epochs after which it is to be stopped.

    Draws are sorted by the epochs that the try would show, and cut into bins. After bin k is where a run may
    be stopped. Axes: batch size, draw or bin. `budget` pays for all tries but those at `free`.
    """
    draws = len(costs)
    bins = min(BINS, draws)
    observed = belief.log_epochs[:, arms].T + belief.noise * _shock(draws)
    # What fails, or would need more epochs than a run may take, is stopped there at the latest.
    fails = _luck(draws)[:, None] < belief.failure_rate[:, arms]
    end = math.log(belief.max_epochs) + 1e-3
    observed = np.where(fails.T, end, np.minimum(observed, end))
    order = np.argsort(observed, axis=-1)
    ranked = np.take_along_axis(observed, order, axis=-1)

    def in_bins(values: np.ndarray) -> np.ndarray:
        return np.asarray(values[:, : draws - draws % bins].reshape(len(arms), bins, -1))

    def binned(values: np.ndarray) -> np.ndarray:
        """Of every draw to the mean of every bin."""
        return np.asarray(in_bins(np.take_along_axis(values, order, axis=-1)).mean(axis=-1))

    # Draws in which training never gets there must not tilt the line.
    usual = np.clip(observed, ranked[:, [draws // 20]], ranked[:, [draws * 17 // 20]])
    centred = usual - usual.mean(axis=-1, keepdims=True)
    near = np.minimum(costs, 2 * fallback)
    squares = np.maximum((centred**2).sum(axis=-1, keepdims=True), 1e-12)
    slope = centred @ (near - near.mean(axis=0)) / squares
    # What would be believed of all after the try: of the batch size itself its bin, of others along a line.
    # Bins of others would be noisy means of few draws, and the least of noisy means flatters.
    future = costs.mean(axis=0) + binned(centred)[..., None] * slope[:, None, :]
    others = allowed & (np.arange(len(allowed)) != arms[:, None])
    rest_best = np.where(others[:, None, :], future, np.inf).min(axis=-1)
    own = binned(costs[:, arms].T)
    each = binned(belief.epoch_cost[:, arms].T)
    epochs = np.exp(in_bins(ranked))
    limits = epochs[..., -1]
    # What gets nowhere in all its epochs is followed by another run.
    nowhere = (in_bins(ranked) >= end).mean(axis=-1)
    spent = epochs.mean(axis=-1) ** degree * each + nowhere * fallback
    after = np.arange(bins - 1, -1, -1)  # bins beyond the stop

    def tail(values: np.ndarray) -> np.ndarray:
        """Mean of the bins beyond each."""
        beyond = values.sum(axis=-1, keepdims=True) - np.cumsum(values, axis=-1)
        return np.asarray(beyond / np.maximum(after, 1))

    stopped = limits**degree * tail(each) + fallback
    now = (np.cumsum(spent, axis=-1) + after * stopped) / bins
    # Of a stopped run only that it is long is learned: the bins beyond are one.
    beyond = after * np.minimum(tail(own), tail(rest_best))
    later = (np.cumsum(np.minimum(rest_best, own), axis=-1) + beyond) / bins
    total = now + (horizon - 1) * later
    if budget < math.inf:
        # The worst that can happen: the run gets to where it is stopped, and another one follows.
        dearest = np.quantile(belief.epoch_cost[:, arms], DEAR_QUANTILE, axis=0)[:, None]
        paid = np.ceil(limits) ** degree * dearest + fallback <= budget
        total = np.where(paid | (arms == free)[:, None], total, np.inf)
    best = np.argmin(total, axis=1)
    rows = np.arange(len(arms))
    stop = limits[rows, best]
    for row in np.flatnonzero(best == bins - 1):
        # Not stopped before the last bin: within it, which holds all that gets nowhere, draw by draw.
        last = epochs[row, -1]
        left = np.arange(len(last) - 1, -1, -1)
        at = (np.cumsum(last**degree) + left * last**degree) * belief.epoch_cost[:, arms[row]].mean()
        at += (left + (last >= math.exp(end))) * fallback
        stop[row] = last[np.argmin(at)]
    return total[rows, best], np.ceil(stop)


def _run(
    evidence: Evidence, arm: int, limit_w: float | None, reason: str, stop: float = math.inf
) -> Proposal:
    """A run at a batch size, of at most `stop` epochs."""
    stop = min(stop, evidence.space.max_epochs)
    return Proposal(evidence.space.batch_sizes[arm], limit_w, stop_after_epochs=stop, reason=reason)


def _profiled_limit(evidence: Evidence, arm: int, objective: Objective) -> float | None:
    """The best limit of a batch size where it is known; None asks for a profile of all."""
    return _best_limit(evidence, arm, objective) if evidence.fully_profiled[arm] else None


def _best_limit(evidence: Evidence, arm: int, objective: Objective) -> float | None:
    costs = evidence.epoch_costs(objective)[arm]
    if not evidence.space.power_limits_w or np.isnan(costs).all():
        return None
    return evidence.space.power_limits_w[int(np.nanargmin(costs))]
