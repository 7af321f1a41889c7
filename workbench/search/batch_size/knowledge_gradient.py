"""Our policy: what a try is worth over the next recurrences, and when to stop it.

The cost of a recurrence is epochs x cost of an epoch. The second is known from seconds of profiling, the
first is believed (`epochs.py`). A try at a batch size is worth what it costs now, with the best moment to
stop it, plus what the recurrences of a planning horizon will cost once it is known: the knowledge gradient
(Frazier, Powell and Dayanik, 2008) over several further samples, since one alone often changes no decision
although two would.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np

from ..objective import Objective
from .epochs import EpochPosterior, EpochPrior, believe, forecast
from .failures import failures
from .history import MOST_RUNS, Evidence, Run
from .policy import UNTRIED, Progress, Proposal


@dataclass(frozen=True, slots=True)
class KnowledgeGradientParams:
    """Tuned constants of `KnowledgeGradient`, in units of epochs, octaves of batch size and shares of cost.

    Set by looking at seeds 1000 to 1039 of `benchmarks.recurring`, not scored ones
    (docs/validation/recurring.md); `bins`, `margin` and those of `watch` and `budget` by hand.
    """

    bins: int = 16  # of draws, between which a run may be stopped
    sure_gain_runs: float = 0.2  # what a try is expected to save, in runs, below which it is thought over
    confirm_factor: int = 4  # times the draws with which it is
    chance_factor: float = 2.0  # times the slope that chance alone would show is taken off
    # of the default's cost: a dearer first run counts as one lost, and the default's after it
    first_cap: float = 1.5
    # per octave, as `EpochPrior.wall`: later tries run the same risk, the first carries no more of it
    first_wall: float = 0.05
    first_slices: int = 4  # at most, before the first run
    hope_quantile: float = 0.3  # of what a batch size may cost that makes a slice worthwhile
    margin: float = 1.3  # beyond the longest run believed in, so that an honest run is not cut at its end
    # of the default's epochs: a careful price, what may never have been saved is not spent
    budget_quantile: float = 0.25
    dear_quantile: float = 0.9  # of an epoch's cost that a safe try must be able to pay
    optimism: float = 0.02  # quantile of what is believed of a cost that gives a batch size its turn
    least_saving: float = 0.01  # share of the cost below which no turn is worth its noise
    exploration_runs: float = 0.2  # times the logarithm of the recurrences: what turns may cost, in runs
    exploration_pays: float = 10.0  # times its expected loss that a turn could save within the horizon
    explored_runs: int = 2  # that reached the target, from which on a batch size needs no turn
    few_runs: int = 5  # of a batch size, up to which its runs count as tries
    parity: float = 1.1  # times the best's cost, after which a turn cannot pay any more
    parity_chance: float = 0.1  # of being as cheap as the best, below which a turn that lags is stopped
    slice_share: float = 0.02  # of all time, for slices that no run needs
    slice_optimism: float = 0.02  # quantile of what a batch size may cost, below `slice_hope` times the best
    slice_hope: float = 1.5
    slice_again: float = 1.02  # the same, for further slices of a batch size, `most_slices` in all
    most_slices: int = 4
    settled_after_runs: int = 12  # from which on worth is weighed at every `settled_share`-th of the runs
    settled_share: int = 8
    settled_least: int = 3  # runs of a batch size that are known by themselves
    last_patience: float = 2.0  # times the epochs of other runs, for the last one of a recurrence
    forecast_runs: int = 20  # newest finished runs that a forecast is made from


PARAMS = KnowledgeGradientParams()


@dataclass(frozen=True, slots=True)
class KnowledgeGradient:
    """Knowledge gradient over a planning horizon, with optimal stopping of runs.

    Attributes:
        safe: Never let the sum of all costs rise above what the default configuration would have cost.
        horizon: Recurrences over which a try has to pay for itself, at least.
        growth: What has recurred n times is expected to recur growth x n times more.
        samples: Further runs at a batch size that are weighed as one plan.
        draws: Draws from the belief.
        reach: A step down or up goes at most so many octaves beyond what has reached the target.
        first_below: The first run is not at the default where another batch size is expected to cost less
            than so many times as much, by what an epoch costs there; 0 always begins at the default.
        prior: What is believed of epochs before any run.
        params: The remaining constants.
    """

    safe: bool = False
    horizon: float = 40.0
    growth: float = 1.0
    samples: tuple[int, ...] = (1, 3)
    draws: int = 256
    reach: float = 2.0
    first_below: float = 0.97
    prior: EpochPrior = field(default_factory=EpochPrior)
    params: KnowledgeGradientParams = PARAMS

    @property
    def name(self) -> str:
        return "knowledge-gradient" + (" safe" if self.safe else "")

    def ask(self, evidence: Evidence, objective: Objective, rng: np.random.Generator) -> Proposal:
        space = evidence.space
        if not evidence.count.any() or not evidence.in_profile.any():
            fresh = not evidence.runs and not evidence.in_flight.any()
            begin = None
            if fresh and self.first_below > 0 and not self.safe:
                begin = self._begin(evidence, objective, rng)
            return begin or self._first(evidence, objective)
        if self.safe and evidence.last_run_now and evidence.usable[evidence.default]:
            # What never loses a recurrence that the default would not lose.
            limit = _profiled_limit(evidence, evidence.default, objective)
            return _run(evidence, evidence.default, limit, "the last run of this recurrence is the default")
        settled = self._settled(evidence, objective)
        if settled is not None and not (self.safe and settled == evidence.default):
            limit = _best_limit(evidence, settled, objective)
            return _run(evidence, settled, limit, "best so far", _give_up(evidence, settled))
        belief = believe(evidence, objective, self.prior, self.draws, rng)
        budget = self._budget(evidence, objective, belief) if self.safe else math.inf
        options = weigh(belief, evidence, objective, self, budget)
        incumbent = options.incumbent
        may_try = self._may_try(evidence, belief, incumbent)
        arm = int(np.argmin(options.value)) if may_try else incumbent
        gain = (options.value[incumbent] - options.value[arm]) / options.expected[incumbent]
        if 0 < gain < self.params.sure_gain_runs and evidence.in_profile[arm]:
            # Asked often enough, chance draws in favour of a try some day. A thought is cheap, a try is not:
            # once more, with more draws.
            draws = self.params.confirm_factor * self.draws
            belief = believe(evidence, objective, self.prior, draws, rng)
            options = weigh(belief, evidence, objective, self, budget)
            incumbent = options.incumbent
            arm = int(np.argmin(options.value))
        stop, reason = float(options.stop[arm]), "may be cheaper"
        # What has been run often is known: going there is no try, and takes nobody's turn.
        known = arm == incumbent or evidence.count[arm] > self.params.few_runs
        if known and may_try:
            exploration = next_exploration(
                belief, evidence, objective, self.params, incumbent, budget, self.horizon
            )
            if exploration is not None:
                arm, stop, reason = exploration.arm, exploration.stop_epochs, exploration.reason
        if arm == incumbent and may_try and _slice_cost(evidence, objective) < budget - options.expected[arm]:
            unknown = self._worth_slicing(belief, evidence, objective, incumbent)
            if unknown is not None:
                arm = unknown
        if arm != incumbent and space.power_limits_w:
            column = _next_slice(evidence, arm, incumbent, objective, self.params)
            if column is not None:
                return Proposal(
                    space.batch_sizes[arm], space.power_limits_w[column], "slice",
                    reason="what does an epoch cost here?",
                )
        limit = _profiled_limit(evidence, arm, objective)
        if arm == incumbent:
            stop, reason = _give_up(evidence, arm), "best so far"
            # Who gives up what the default would have finished pays for another run.
            worst = stop**objective.degree * float(np.nanmean(belief.epoch_cost[:, arm]))
            if arm == evidence.default and worst + options.expected[arm] > budget:
                stop = math.inf
        return _run(evidence, arm, limit, reason, stop)

    def _worth_slicing(
        self, belief: EpochPosterior, evidence: Evidence, objective: Objective, incumbent: int
    ) -> int | None:
        """The most hopeful batch size of which seconds would tell what an epoch costs, while all such take
        little time.
        """
        params = self.params
        if not evidence.space.power_limits_w or not _may_slice(evidence, params):
            return None
        many = (~np.isnan(evidence.epoch_time_s)).sum(axis=1)
        unknown = evidence.usable & ~evidence.fully_profiled & (many < params.most_slices)
        low = np.quantile(run_costs(belief, objective), params.slice_optimism, axis=0)
        hope = np.where(many == 0, params.slice_hope, params.slice_again) * low[incumbent]
        low = np.where(unknown & (low < hope), low, np.inf)
        return int(np.argmin(low)) if np.isfinite(low).any() else None

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
        if progress.epochs >= proposal.stop_after_epochs:
            return "so many epochs are not worth it"
        if not progress.milestones or progress.epochs not in progress.milestones.values():
            return None
        return self._lagging(evidence, objective, proposal, progress)

    def _lagging(
        self, evidence: Evidence, objective: Objective, proposal: Proposal, progress: Progress
    ) -> str | None:
        """Whether the metric's course says that the run is better stopped now."""
        arm = evidence.index[proposal.batch_size]
        # One that has got there before is not cut by how it starts: that bias would keep it from ever being
        # known.
        if evidence.count[arm] or proposal.stop_after_epochs >= evidence.space.max_epochs:
            return None
        # What an earlier try has shown by then was known when this one was begun.
        if any(run.arm == arm and run.epochs >= progress.epochs for run in evidence.current):
            return None
        whole = [run for run in evidence.current if run.state == "reached" and run.milestones]
        whole = whole[-self.params.forecast_runs :]
        if not whole or forecast(dict(progress.milestones), whole, self.prior) is None:
            return None
        so_far = Run(arm, "stopped", progress.epochs, 0.0, 0.0, milestones=dict(progress.milestones))
        known = evidence.with_run(so_far)
        belief = believe(known, objective, self.prior, self.draws, np.random.default_rng(len(evidence.runs)))
        costs = run_costs(belief, objective)
        expected = costs.mean(axis=0)
        tried = evidence.count > 0
        if not tried.any():
            return None
        fallback = float(expected[tried].min())
        allowed = tried.copy()
        allowed[arm] = True
        horizon = max(self.horizon, self.growth * float(evidence.count.sum()))
        # As many samples as `ask` weighed: a try that pays only together with a second one must not be
        # stopped for not paying alone.
        going_on, _ = _plans(
            belief, costs, np.array([arm]), fallback, allowed, objective.degree, horizon, self.samples,
            self.params, sunk=progress.epochs,
        )
        # A turn was expected to lose: only one that can hardly be as cheap as the best is given up.
        hopeless = (costs[:, arm] < fallback).mean() < self.params.parity_chance
        worse = horizon * fallback < going_on[0] and (hopeless or not proposal.is_exploration)
        return "its metric lags behind: stopping now costs less" if worse else None

    def _settled(self, evidence: Evidence, objective: Objective) -> int | None:
        """The best batch size by its own runs, where one more run since the last thought cannot have changed
        much.

        After the first dozen runs, worth is weighed anew at every eighth of the runs so far: thoughts are
        dear, and one result among fifty says little. A result of another batch size than the best is always
        thought about.
        """
        runs = len(evidence.runs) - evidence.since
        params = self.params
        if runs < params.settled_after_runs or runs % (runs // params.settled_share) == 0:
            return None
        costs = evidence.epoch_costs(objective)
        known = (evidence.count >= params.settled_least) & ~np.isnan(costs).all(axis=1)
        if not known.any():
            return None
        epochs = failures(evidence).epochs[known]
        mean = epochs**objective.degree * np.nanmin(costs[known], axis=1)
        arm = int(np.flatnonzero(known)[np.argmin(mean)])
        return arm if evidence.runs[-1].arm == arm and evidence.runs[-1].state == "reached" else None

    def _first(self, evidence: Evidence, objective: Objective) -> Proposal:
        """The default until it has reached the target, or what is nearest to it and failed least often.

        In safe mode for two recurrences: running the default costs nobody more than the default.
        """
        if evidence.count.any():  # which reached the changed job's target, or was chosen on another card
            arm = int(np.argmax(evidence.count))
            reason = f"the {'job' if evidence.since else 'card'} is another one: what does an epoch cost now?"
            return _run(evidence, arm, None, reason)
        failures = np.zeros(evidence.arms)
        for run in evidence.current:
            failures[run.arm] += 1
        distance = np.abs(evidence.octaves - evidence.octaves[evidence.default])
        usable = evidence.usable if evidence.usable.any() else np.ones(evidence.arms, dtype=bool)
        patience = 2 * MOST_RUNS - 1 if self.safe else 1
        arm = int(np.argmin(np.where(usable, np.maximum(failures - patience, 0) * 2 + distance, np.inf)))
        limit = _profiled_limit(evidence, arm, objective)
        return _run(evidence, arm, limit, "nothing has reached the target here yet")

    def _begin(self, evidence: Evidence, objective: Objective, rng: np.random.Generator) -> Proposal | None:
        """The first run, where it had better not be at the default: None where the default it is.

        What an epoch costs is known from slices of seconds; of the epochs only how they may compare is
        believed. A batch size that does not get there is paid for twice, so unlikely good luck
        does not count for more than that.
        """
        params = self.params
        space, default = evidence.space, evidence.default
        if not space.power_limits_w or space.max_epochs < 2 or evidence.usable.sum() < 2:
            return None
        highest = max(space.power_limits_w)
        if not evidence.in_profile[default]:
            return Proposal(space.default, highest, "slice", reason="what does an epoch cost here?")
        prior = replace(self.prior, wall=params.first_wall)
        belief = believe(evidence, objective, prior, 4 * self.draws, rng)
        costs = np.exp(objective.degree * belief.log_epochs) * belief.epoch_cost
        ratio = costs / costs[:, [default]]
        near = (np.abs(evidence.octaves - evidence.octaves[default]) <= self.reach + 1e-9) & evidence.usable
        capped = np.where(ratio > params.first_cap, params.first_cap + 1, ratio)
        score = np.where(near, capped.mean(axis=0), np.inf)
        arm = int(np.argmin(score))
        if score[arm] >= self.first_below:
            # A slice is cheap where a good end of what is believed would change this.
            hoped = np.quantile(ratio, params.hope_quantile, axis=0)
            hope = np.where(near & ~evidence.in_profile, hoped, np.inf)
            few = evidence.in_profile.sum() < params.first_slices
            arm = int(np.argmin(hope)) if few and hope.min() < self.first_below else default
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
        log_epochs = np.quantile(belief.log_epochs[:, default], self.params.budget_quantile)
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
                blame = belief.failures.blame.get((default, run.epochs), 0.0) if now else 0.0
                price += blame * belief.max_epochs**degree * highest
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
        policy: Horizon, samples and constants.
        budget: What a try may cost at most.
    """
    costs = run_costs(belief, objective)
    expected = costs.mean(axis=0)
    tried = evidence.count > 0
    incumbent = int(np.argmin(np.where(tried, expected, np.inf)))
    octaves = evidence.octaves
    low, high = octaves[tried].min() - policy.reach, octaves[tried].max() + policy.reach
    allowed = (octaves >= low - 1e-9) & (octaves <= high + 1e-9) & evidence.usable
    allowed[[arm for arm in evidence.lost_now if arm != incumbent]] = False
    value = np.full(evidence.arms, np.inf)
    stop = np.full(evidence.arms, np.inf)
    horizon = max(policy.horizon, policy.growth * float(evidence.count.sum()))
    value[incumbent] = expected[incumbent] + (horizon - 1) * expected[allowed].min()
    arms = np.flatnonzero(allowed)
    arms = arms[arms != incumbent]
    if len(arms):
        fallback = float(expected[incumbent])
        value[arms], stop[arms] = _plans(
            belief, costs, arms, fallback, allowed, objective.degree, horizon, policy.samples, policy.params,
            budget=budget, free=evidence.default,
        )
    return CandidateValues(value, stop, expected, incumbent)


@dataclass(frozen=True, slots=True)
class Exploration:
    """A try of a batch size that may be cheaper than is believed.

    Attributes:
        arm: Index of the batch size.
        stop_epochs: After so many there is no parity any more.
        loss_runs: What it is expected to cost beyond a run at what is best so far, in such runs.
        saves: Share of the cost that it could save.
        reason: All this, for a person.
    """

    arm: int
    stop_epochs: float
    loss_runs: float
    saves: float
    reason: str


def next_exploration(
    belief: EpochPosterior, evidence: Evidence, objective: Objective, params: KnowledgeGradientParams,
    incumbent: int, budget: float = math.inf, horizon: float = 40.0,
) -> Exploration | None:
    """The most hopeful batch size whose turn it is; None where none is.

    One whose optimistic cost is below the best's gets its turn when what that is expected to lose fits what
    exploring may cost in all, which grows with the logarithm of the recurrences: an arm that is believed a
    little worse is tried soon, one that is believed far worse late, and none never (Lai and Robbins, 1985).

    Args:
        belief: Samples of epochs to the target.
        evidence: Runs so far.
        objective: Cost of time and energy.
        params: Constants.
        incumbent: Number of the best batch size.
        budget: What exploring may still cost.
        horizon: Recurrences to come.
    """
    degree, longest = objective.degree, belief.max_epochs
    costs = run_costs(belief, objective)
    best = float(costs[:, incumbent].mean())
    optimistic = np.quantile(costs, params.optimism, axis=0)
    hopeful = evidence.usable & (optimistic < (1 - params.least_saving) * best)
    hopeful &= evidence.count < params.explored_runs
    hopeful[[incumbent, *evidence.lost_now]] = False
    if not hopeful.any() or len(evidence.current) < params.settled_after_runs:
        return None
    each = belief.epoch_cost
    room = np.exp(2 * belief.noise.mean() * (evidence.count > 0))
    stop = np.ceil((params.parity * room * best / each.mean(axis=0)) ** (1 / degree))
    stop = np.clip(stop, 1, longest)
    # What is lost where it is given up there, and another run follows.
    observed = np.exp(belief.log_epochs + belief.noise[:, None] * _shock(len(costs))[:, None])
    lost = (observed > stop) | (_luck(len(costs))[:, None] < belief.failure_rate)
    loss = (np.where(lost, stop, observed) ** degree * each + lost * best).mean(axis=0) / best - 1
    dearest = stop**degree * np.quantile(each, params.dear_quantile, axis=0)
    # What tries have cost since the first dozen runs: at batch sizes that have not been chosen for good.
    few = evidence.count <= params.few_runs
    spent = 0.0
    for run in evidence.current[params.settled_after_runs :]:
        if few[run.arm] and run.arm != incumbent:
            spent += float(run.epochs**degree * each[:, run.arm].mean()) / best
            spent -= float(run.state == "reached")
    left = params.exploration_runs * math.log1p(float(evidence.count.sum())) - max(spent, 0.0)
    paid = (dearest + best <= budget) | (np.arange(evidence.arms) == evidence.default)
    affordable = hopeful & (loss <= left) & paid
    # What it could save would have to pay for it well within what is planned for.
    saves_runs = (1 - optimistic / best) * max(horizon, float(evidence.count.sum()))
    affordable &= saves_runs >= params.exploration_pays * loss
    if not affordable.any():
        return None
    gain = np.maximum(best - costs, 0).mean(axis=0) / best
    arm = int(np.argmax(np.where(affordable, gain / np.maximum(loss, 0.02), -np.inf)))
    runs = [run.arm for run in evidence.current]
    since = runs[::-1].index(arm) if arm in runs else len(runs)
    saves = 1 - float(optimistic[arm]) / best
    reason = (
        f"{UNTRIED}{since} run{'s' * (since != 1)}; could save {100 * saves:.0f} %; costs at most "
        f"{float(dearest[arm]) / best:.2g} runs"
    )
    return Exploration(arm, float(stop[arm]), float(loss[arm]), saves, reason)


def run_costs(belief: EpochPosterior, objective: Objective) -> np.ndarray:
    """Expected cost of a recurrence whose first run is at each batch size, a row per draw.

    The mean over the scatter of runs. A run that fails, or needs more epochs than it may take, costs those
    epochs and a recurrence at the best batch size that has reached the target.
    """
    degree, longest = objective.degree, belief.max_epochs
    noise = belief.noise[:, None]
    lost = 1 - (1 - belief.failure_rate) * belief.failures.there(belief.log_epochs, noise)
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
    degree: int, horizon: float, samples: tuple[int, ...], params: KnowledgeGradientParams, sunk: float = 0.0,
    budget: float = math.inf, free: int = -1,
) -> tuple[np.ndarray, np.ndarray]:
    """The best plan of tries at each of `arms`: all costs over the horizon, and the epochs after which the
    first try is to be stopped. `budget` pays for all of them but `free`.

    Draws are sorted by the epochs that the tries would show, and cut into bins. After bin k is where a run
    may be stopped. Axes: number of tries, batch size, draw or bin (`sunk` epochs of the first try are done
    already).
    """
    draws = len(costs)
    bins = min(params.bins, draws)
    tries = np.asarray(samples, dtype=float)[:, None, None]
    observed = belief.log_epochs[:, arms].T + belief.noise / np.sqrt(tries) * _shock(draws)
    # What fails, or would need more epochs than a run may take, is stopped there at the latest.
    fails = _luck(draws)[:, None] < belief.failure_rate[:, arms]
    end = math.log(belief.max_epochs) + 1e-3
    observed = np.where(fails.T, end, np.minimum(observed, end))
    if sunk:
        # Given that the run has gone so far, only draws in which it goes further are left; a few remain
        # always.
        observed = np.maximum(observed, math.log(sunk + 0.5))
    order = np.argsort(observed, axis=-1)
    ranked = np.take_along_axis(observed, order, axis=-1)

    def in_bins(values: np.ndarray) -> np.ndarray:
        return np.asarray(values[..., : draws - draws % bins].reshape(*observed.shape[:2], bins, -1))

    def binned(values: np.ndarray) -> np.ndarray:
        """Of every draw to the mean of every bin."""
        sorted_values = np.take_along_axis(np.broadcast_to(values, observed.shape), order, axis=-1)
        return np.asarray(in_bins(sorted_values).mean(axis=-1))

    # Draws in which training never gets there must not tilt the line.
    usual = np.clip(observed, ranked[..., [draws // 20]], ranked[..., [draws * 17 // 20]])
    centred = usual - usual.mean(axis=-1, keepdims=True)
    near = np.minimum(costs, 2 * fallback)
    off = near - near.mean(axis=0)
    squares = np.maximum((centred**2).sum(axis=-1, keepdims=True), 1e-12)
    slope = centred @ off / squares
    # A line through few draws is never flat, and the least of many such lines flatters: what chance would
    # explain is taken off.
    explained = slope**2 * squares
    chance = np.maximum((off**2).sum(axis=0) - explained, 0) / draws
    by_chance = chance / np.maximum(explained, 1e-9 * chance + 1e-300)
    slope = slope * np.maximum(1 - params.chance_factor * by_chance, 0)
    # What would be believed of all after the tries: of the batch size itself its bin, of others along a line.
    # Bins of others would be noisy means of few draws, and the least of noisy means flatters.
    future = costs.mean(axis=0) + binned(centred)[..., None] * slope[:, :, None, :]
    others = allowed & (np.arange(len(allowed)) != arms[:, None])
    rest_best = np.where(others[:, None, :], future, np.inf).min(axis=-1)
    own = binned(costs[:, arms].T)
    each = binned(belief.epoch_cost[:, arms].T)
    epochs = np.exp(in_bins(ranked))
    limits = epochs[..., -1]
    # What gets nowhere in all its epochs is followed by another run.
    nowhere = (in_bins(ranked) >= end).mean(axis=-1)
    spent = np.maximum(epochs.mean(axis=-1) ** degree - sunk**degree, 0) * each + nowhere * fallback
    after = np.arange(bins - 1, -1, -1)  # bins beyond the stop

    def tail(values: np.ndarray) -> np.ndarray:
        """Mean of the bins beyond each."""
        beyond = values.sum(axis=-1, keepdims=True) - np.cumsum(values, axis=-1)
        return np.asarray(beyond / np.maximum(after, 1))

    stopped = np.maximum(limits**degree - sunk**degree, 0) * tail(each) + fallback
    now = (np.cumsum(spent, axis=-1) + after * stopped) / bins
    # Of a stopped run only that it is long is learned: the bins beyond are one.
    beyond = after * np.minimum(tail(own), tail(rest_best))
    later = (np.cumsum(np.minimum(rest_best, own), axis=-1) + beyond) / bins
    # What is done counts for the first of the tries only.
    again = (tries - 1) * sunk**degree * each.mean(axis=-1, keepdims=True)
    total = tries * now + again + (horizon - tries) * later
    if budget < math.inf:
        # The worst that can happen: the run gets to where it is stopped, and another one follows.
        ends = limits * np.where(after > 0, 1.0, params.margin)
        dearest = np.quantile(belief.epoch_cost[:, arms], params.dear_quantile, axis=0)[:, None]
        paid = np.ceil(ends) ** degree * dearest + fallback <= budget
        total = np.where(paid | (arms == free)[:, None], total, np.inf)
    # The best number of tries and bin of each batch size.
    flat, ends = (each.transpose(1, 0, 2).reshape(len(arms), -1) for each in (total, limits))
    best = np.argmin(flat, axis=1)
    rows = np.arange(len(arms))
    stop = ends[rows, best]
    for row in np.flatnonzero(best % bins == bins - 1):
        # Not stopped before the last bin: within it, which holds all that gets nowhere, draw by draw.
        last = epochs[best[row] // bins, row, -1]
        left = np.arange(len(last) - 1, -1, -1)
        at = (np.cumsum(last**degree) + left * last**degree) * belief.epoch_cost[:, arms[row]].mean()
        at += (left + (last >= math.exp(end))) * fallback
        stop[row] = last[np.argmin(at)] * params.margin
    return flat[rows, best], np.ceil(stop)


def _run(
    evidence: Evidence, arm: int, limit_w: float | None, reason: str, stop: float = math.inf
) -> Proposal:
    """A run at a batch size, of at most `stop` epochs."""
    stop = min(stop, evidence.space.max_epochs)
    return Proposal(evidence.space.batch_sizes[arm], limit_w, stop_after_epochs=stop, reason=reason)


def _next_slice(
    evidence: Evidence, arm: int, incumbent: int, objective: Objective, params: KnowledgeGradientParams
) -> int | None:
    """The column of the limit at which a slice tells most of a batch size; None where a run may begin.

    The first at the limit that is best at the nearest batch size whose limits are known; where slices have
    taken little time so far, another next to it, since one says little of what the best limit saves.
    """
    if evidence.fully_profiled[arm]:
        return None
    costs = evidence.epoch_costs(objective)
    known = ~np.isnan(costs)
    whole = np.flatnonzero(evidence.fully_profiled)
    near = incumbent
    if len(whole):
        near = int(whole[np.argmin(np.abs(evidence.octaves[whole] - evidence.octaves[arm]))])
    if known[arm].any() and (known[arm].sum() >= params.most_slices or not _may_slice(evidence, params)):
        return None
    left = np.where(known[arm] | ~known[near], np.inf, costs[near])
    if np.isfinite(left).any():
        return int(np.argmin(left))
    return None if known[arm].any() else evidence.column(None)


def _may_slice(evidence: Evidence, params: KnowledgeGradientParams) -> bool:
    """Whether slices that no run needs have taken little of the time so far."""
    return evidence.sliced_s <= params.slice_share * evidence.spent_time_s


def _slice_cost(evidence: Evidence, objective: Objective) -> float:
    """The most that a slice has cost, or a limit in the profile of a run, in the objective's unit."""
    limits = max(len(evidence.space.power_limits_w), 1)
    parts = [*evidence.slices]
    parts += [
        (run.profile_time_s / limits, run.profile_energy_j / limits)
        for run in evidence.current if run.profile_time_s > 0
    ]
    return max((float(objective.cost(time_s, energy_j)) for time_s, energy_j in parts), default=0.0)


def _give_up(evidence: Evidence, arm: int) -> float:
    """Epochs after which a run at what is best so far is better given up and another one begun.

    The last run of a recurrence has more: no other follows it, and what is only slow gets there.
    """
    patience = PARAMS.last_patience if evidence.last_run_now else 1.0
    return patience * float(failures(evidence).stop_epochs[arm])


def _profiled_limit(evidence: Evidence, arm: int, objective: Objective) -> float | None:
    """The best limit of a batch size where it is known; None asks for a profile of all."""
    return _best_limit(evidence, arm, objective) if evidence.fully_profiled[arm] else None


def _best_limit(evidence: Evidence, arm: int, objective: Objective) -> float | None:
    costs = evidence.epoch_costs(objective)[arm]
    if not evidence.space.power_limits_w or np.isnan(costs).all():
        return None
    return evidence.space.power_limits_w[int(np.nanargmin(costs))]
