"""Our policy: the value of a trial over the next recurrences, and the best time to stop it.

The cost of a recurrence is epochs x cost of an epoch. The second is known from seconds of profiling, the
first is estimated (`epochs.py`). The value of a try at a batch size is its cost now, with the best moment to
stop it, plus the expected cost of the recurrences in a planning horizon afterwards: the knowledge gradient
(Frazier, Powell and Dayanik, 2008).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import ndtr

from ..objective import Objective
from .epochs import PATIENCE, EpochPosterior, EpochPrior, believe
from .history import MOST_RUNS, Evidence
from .policy import Proposal

# Bins of samples, between which a run may be stopped: twice or half as many change nothing. One sample per
# bin costs two runs of regret: the result of a trial then counts as certain.
BINS = 16
# Quantiles of the estimate. A profiling window is worthwhile if a good case of a batch size's cost is cheap.
# In safe mode, savings and the worst end of a trial are counted at a careful price.
GOOD_CASE = 0.25


@dataclass(frozen=True)
class KnowledgeGradient:
    """Knowledge gradient over a planning horizon, with optimal stopping of runs.

    Attributes:
        safe: Keep the sum of all costs at or below the cost of the default configuration.
        horizon: Recurrences over which a trial must pay for itself.
        draws: Number of posterior samples.
    """

    safe: bool = False
    horizon: float = 40.0
    draws: int = 256

    def ask(self, evidence: Evidence, objective: Objective, rng: np.random.Generator) -> Proposal:
        if not evidence.count.any() or not evidence.in_profile.any():
            fresh = not evidence.runs and not evidence.in_flight.any()
            begin = self._begin(evidence, objective, rng) if fresh and not self.safe else None
            return begin or self._first(evidence, objective)
        if self.safe and evidence.last_run_now:
            # This never loses a recurrence that the default would not lose.
            reason = "the last run of this recurrence is the default"
            return _run(evidence, evidence.default, objective, reason)
        belief = believe(evidence, objective, EpochPrior(), self.draws, rng)
        budget = self._budget(evidence, objective, belief) if self.safe else math.inf
        options = weigh(belief, evidence, objective, self.horizon, budget)
        arm, reason = int(np.argmin(options.value)), "may be cheaper"
        if arm == options.incumbent or not self._may_try(evidence, belief, options.incumbent):
            arm, reason = options.incumbent, "best so far"
        stop = float(options.stop[arm])
        if self.safe and arm == evidence.default == options.incumbent:
            stop = math.inf  # a run that the default would have finished is finished
        return _run(evidence, arm, objective, reason, stop)

    def _may_try(self, evidence: Evidence, belief: EpochPosterior, incumbent: int) -> bool:
        """Whether this recurrence may use another batch size than the best so far.

        Not during another run, nor after a lost run in this recurrence: one loss each is enough. The
        exception is a best batch size that usually fails, if there is a run left after this one.
        """
        if evidence.in_flight.any() or evidence.last_run_now:
            return False
        return not evidence.lost_now or float(belief.failure_rate[:, incumbent].mean()) > 0.5

    def _first(self, evidence: Evidence, objective: Objective) -> Proposal:
        """The default until it has reached the target, or the batch size closest to it with the fewest
        failures.

        In safe mode for two recurrences: a run at the default costs no more than the default.
        """
        if evidence.count.any():  # it reached the changed job's target, or was chosen on another card
            arm = int(np.argmax(evidence.count))
            reason = f"the {'job' if evidence.since else 'card'} has changed: measuring the cost of an epoch"
            return _run(evidence, arm, objective, reason)
        failed = np.bincount([run.arm for run in evidence.current], minlength=evidence.arms)
        distance = np.abs(evidence.octaves - evidence.octaves[evidence.default])
        patience = 2 * MOST_RUNS - 1 if self.safe else 1
        arm = int(np.argmin(np.maximum(failed - patience, 0) * 2 + distance))
        return _run(evidence, arm, objective, "nothing has reached the target here yet")

    def _begin(self, evidence: Evidence, objective: Objective, rng: np.random.Generator) -> Proposal | None:
        """The first run, if it should not be at the default; None if it should.

        Profiling windows of seconds give the cost of an epoch. For epochs, only the prior of their ratios is
        known. A batch size that does not reach the target is paid for twice, so unlikely good luck does not
        count for more than that.
        """
        space, default = evidence.space, evidence.default
        if not space.power_limits_w or space.max_epochs < 2 or evidence.arms < 2:
            return None
        slice_w = max(space.power_limits_w)
        if not evidence.in_profile[default]:
            return Proposal(space.default, slice_w, "slice", reason="measuring an epoch's cost here")
        belief = believe(evidence, objective, EpochPrior(), 4 * self.draws, rng)
        costs = np.exp(objective.degree * belief.log_epochs) * belief.epoch_cost
        ratio = costs / costs[:, [default]]
        # A much more expensive run counts as lost, and the default follows it.
        score = np.where(ratio > PATIENCE, PATIENCE + 1, ratio).mean(axis=0)
        arm = int(np.argmin(score))
        if score[arm] >= 1:
            # A profiling window is cheap if a good case of the estimate would change this.
            hope = np.where(evidence.in_profile, np.inf, np.quantile(ratio, GOOD_CASE, axis=0))
            arm = int(np.argmin(hope)) if hope.min() < 1 else default
        if arm == default:
            return None
        if not evidence.in_profile[arm]:
            return Proposal(space.batch_sizes[arm], slice_w, "slice", reason="measuring an epoch's cost here")
        # The default reaches the target within all its epochs. A run that has cost as much as those would is
        # more expensive than the default.
        each = evidence.epoch_costs(objective)
        most = space.max_epochs * (np.nanmin(each[default]) / np.nanmin(each[arm])) ** (1 / objective.degree)
        stop = float(np.clip(np.ceil(most), 1, space.max_epochs))
        return _run(evidence, arm, objective, "its epochs are far cheaper than the default's", stop)

    def _budget(self, evidence: Evidence, objective: Objective, belief: EpochPosterior) -> float:
        """Savings so far against the default batch size at the highest limit, with this recurrence at the
        default's price.

        The total cost of a trial is limited to this, including the run that follows a stopped one. A run at
        the default gives the cost at the highest limit. Elsewhere a careful price counts. Before a change of
        the job, savings are zero, because uncertain savings must not be spent.
        """
        default, degree = evidence.default, objective.degree
        own = evidence.epoch_costs(objective)[default]
        if np.isnan(own).all():
            return 0.0
        highest = own[evidence.column(None)] if not np.isnan(own[evidence.column(None)]) else np.nanmax(own)
        careful = float(np.exp(degree * np.quantile(belief.log_epochs[:, default], GOOD_CASE)) * highest)
        price = careful
        spent = sum(float(objective.cost(time_s, energy_j)) for time_s, energy_j in evidence.slices)
        for number, (run, local) in enumerate(zip(evidence.runs, evidence.local, strict=True)):
            if not local:
                continue
            cost = float(objective.cost(run.time_s, run.energy_j))
            spent += cost
            if number < evidence.since:
                price += cost * (run.state == "reached")
            elif run.arm == default and run.state in ("reached", "failed"):
                # Relative to the profile of its own limit, so that an error of the profile is no saving.
                there = own[evidence.column(run.power_limit_w)]
                same = there > 0 and run.profile_time_s == 0
                price += cost * highest / there if same else run.epochs**degree * highest
            elif run.state == "reached":
                price += careful
        # A forbidden configuration has no price for comparison.
        return float(price - spent) if math.isfinite(price) and math.isfinite(spent) else 0.0


@dataclass(frozen=True)
class CandidateValues:
    """Per batch size a trial's expected cost (lower is better) and where to stop it; the best so far."""

    value: np.ndarray
    stop: np.ndarray
    incumbent: int


def weigh(
    belief: EpochPosterior, evidence: Evidence, objective: Objective, horizon: float, budget: float = math.inf
) -> CandidateValues:
    """Expected total cost over the horizon of trying each batch size next, in the objective's unit.

    Args:
        belief: Samples of epochs and costs.
        evidence: Runs and profiles so far.
        objective: The cost.
        horizon: Recurrences over which a trial must pay for itself.
        budget: Highest cost of a trial.
    """
    costs = run_costs(belief, objective)
    expected = costs.mean(axis=0)
    incumbent = int(np.argmin(np.where(belief.tried, expected, np.inf)))
    value = np.full(evidence.arms, np.inf)
    stop = belief.stop_epochs.copy()
    value[incumbent] = expected[incumbent] + (horizon - 1) * expected.min()
    arms = np.array([arm for arm in range(evidence.arms) if arm != incumbent])
    if len(arms):
        fallback = float(expected[incumbent])
        total, limits, worst = _plans(belief, costs, arms, fallback, objective.degree, horizon)
        # Savings must pay for a trial; the default needs none.
        total = np.where((worst <= budget) | (arms == evidence.default)[:, None], total, np.inf)
        best = np.argmin(total, axis=1)
        rows = np.arange(len(arms))
        value[arms], stop[arms] = total[rows, best], limits[rows, best]
    return CandidateValues(value, stop, incumbent)


def run_costs(belief: EpochPosterior, objective: Objective) -> np.ndarray:
    """Expected cost of a recurrence whose first run is at each batch size, one row per sample.

    The mean over the scatter of runs. A run that fails, or needs more than the allowed epochs, costs those
    epochs and a recurrence at the best batch size that has reached the target.
    """
    degree, longest = objective.degree, belief.max_epochs
    noise = belief.noise[:, None]
    in_time = ndtr((np.log(belief.stop_epochs) - belief.log_epochs) / noise)
    lost = 1 - (1 - belief.failure_rate) * in_time
    mean = np.minimum(belief.log_epochs + 0.5 * degree * noise**2, math.log(longest))
    ended = (1 - lost) * np.exp(degree * mean) + lost * belief.stop_epochs**degree
    costs = ended * belief.epoch_cost
    tried = belief.tried
    if not tried.any():
        return costs
    # The cheapest sequence that always ends: runs at the best batch size until one reaches the target.
    again = costs[:, tried].mean(axis=0) / np.maximum(1 - lost[:, tried].mean(axis=0), 0.05)
    return costs + lost * again.min()


@lru_cache(maxsize=8)
def _chance(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Lengths and failures of runs in standard units. They are equal for every batch size and every call, so
    that comparisons depend on estimates and not on luck.
    """
    luck = np.random.default_rng(1).permutation((np.arange(count) + 0.5) / count)
    return np.random.default_rng(0).standard_normal(count), luck


def _plans(
    belief: EpochPosterior, costs: np.ndarray, arms: np.ndarray, fallback: float, degree: int, horizon: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For a trial at each of `arms` and each possible number of epochs to stop it: total cost over the
    horizon, that number, and the highest cost of the trial and the run after it.

    Samples are sorted by the epochs that the trial would show, and cut into bins. A run may be stopped after
    a bin. Axes: batch size, sample or bin.
    """
    draws = len(costs)
    bins = min(BINS, draws)
    shock, luck = _chance(draws)
    observed = belief.log_epochs[:, arms].T + belief.noise * shock
    # Runs that fail, or would need more than the allowed epochs, are stopped there at the latest.
    fails = luck[:, None] < belief.failure_rate[:, arms]
    end = math.log(belief.max_epochs) + 1e-3
    observed = np.where(fails.T, end, np.minimum(observed, end))
    order = np.argsort(observed, axis=-1)
    ranked = np.take_along_axis(observed, order, axis=-1)

    def in_bins(values: np.ndarray) -> np.ndarray:
        return values[:, : draws - draws % bins].reshape(len(arms), bins, -1)

    def binned(values: np.ndarray) -> np.ndarray:
        """Mean over every bin of a value of every sample."""
        return in_bins(np.take_along_axis(values, order, axis=-1)).mean(axis=-1)

    centred = observed - observed.mean(axis=-1, keepdims=True)
    near = np.minimum(costs, 2 * fallback)  # training that never reaches the target must not tilt the line
    squares = np.maximum((centred**2).sum(axis=-1, keepdims=True), 1e-12)
    slope = centred @ (near - near.mean(axis=0)) / squares
    # Estimates of all batch sizes after the trial: of the tried one its bin, of others along a line. Bins of
    # others would be noisy means of few samples, and the least of noisy means is too low.
    future = costs.mean(axis=0) + binned(centred)[..., None] * slope[:, None, :]
    future[np.arange(len(arms)), :, arms] = np.inf
    rest_best = future.min(axis=-1)
    own = binned(costs[:, arms].T)
    each = binned(belief.epoch_cost[:, arms].T)
    epochs = np.exp(in_bins(ranked))
    limits = np.ceil(epochs[..., -1])
    # A run that fails after all its epochs is followed by another run.
    nowhere = (in_bins(ranked) >= end).mean(axis=-1)
    spent = (epochs**degree).mean(axis=-1) * each + nowhere * fallback
    after = np.arange(bins - 1, -1, -1)  # bins beyond the stop

    def tail(values: np.ndarray) -> np.ndarray:
        """Mean of the bins beyond each."""
        beyond = values.sum(axis=-1, keepdims=True) - np.cumsum(values, axis=-1)
        return beyond / np.maximum(after, 1)

    stopped = limits**degree * tail(each) + fallback
    now = (np.cumsum(spent, axis=-1) + after * stopped) / bins
    # A stopped run shows only that it is long: the bins beyond are one.
    beyond = after * np.minimum(tail(own), tail(rest_best))
    later = (np.cumsum(np.minimum(rest_best, own), axis=-1) + beyond) / bins
    dearest = np.quantile(belief.epoch_cost[:, arms], 1 - GOOD_CASE, axis=0)[:, None]
    return now + (horizon - 1) * later, limits, limits**degree * dearest + fallback


def _run(
    evidence: Evidence, arm: int, objective: Objective, reason: str, stop: float = math.inf
) -> Proposal:
    """A run at a batch size, of at most `stop` epochs, at its best limit or with a profile of all."""
    limit_w = evidence.known_limit_w(arm, objective)
    stop = min(stop, evidence.space.max_epochs)
    return Proposal(evidence.space.batch_sizes[arm], limit_w, stop_after_epochs=stop, reason=reason)
