"""A history under an objective: estimated costs, actual costs, costs of the default.

    paid = attempts_paid(study.attempts, space)              # once, when something has ended
    outlook = look(ledger, paid, objective, policy)          # again at every change of the objective

Nothing is run or claimed. Every cost is computed from the recorded time and energy, so another objective
scores the same history again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import polars as pl

from ...errors import UsageError
from ...search.batch_size.epochs import EpochPosterior, EpochPrior, believe
from ...search.batch_size.history import MOST_RUNS, Evidence, Space
from ...search.batch_size.knowledge_gradient import run_costs
from ...search.batch_size.policy import BatchSizePolicy, Proposal
from ...search.objective import EnergyWithin, Objective
from .attempts import Attempt, without
from .optuna_bridge import AttemptLedger, OptunaPolicy, propose

DRAWS = 1024  # samples; any number from 256 to 4096 shows the same
INTERVAL = (0.05, 0.95)
BELIEVED = pl.Schema({
    "batch_size": pl.Int64,
    # of a recurrence at its best power limit: the middle of what is estimated; null where nothing is
    "cost": pl.Float64,
    "low": pl.Float64,  # 90 % are between these two
    "high": pl.Float64,
    "best": pl.Float64,  # probability that no other batch size costs less
    "reached": pl.Int64,  # runs that reached the target
    "other": pl.Int64,  # runs that did not
    "barred": pl.String,  # why it is not tried any more; empty where it may be
})
PAID = pl.Schema({
    "number": pl.Int64, "recurrence": pl.Int64, "batch_size": pl.Int64, "power_limit_w": pl.Float64,
    "state": pl.String,
    "in_vain": pl.Boolean,  # a run that ended by itself, without the target
    "time_s": pl.Float64,  # profiling included
    "energy_j": pl.Float64,
})


@dataclass(frozen=True)
class Default:
    """A recurrence at the default batch size and the highest power limit: medians of the posterior, whose
    mean a few extreme samples decide, and 90 % of it for the cost (low..high).
    """

    batch_size: int
    power_limit_w: float | None
    cost: float
    low: float
    high: float
    time_s: float
    energy_j: float


@dataclass(frozen=True)
class Outlook:
    """All that there is to see of a recurring job; see the functions that make its parts.

    Attributes:
        estimated: Frame `BELIEVED`, a row per batch size of the space.
        proposal: The next proposal of the policy without other running attempts; None with the `reason`.
        arm: Index in the space's batch sizes of what is proposed, or estimated best; None where nothing is.
        recurrences: A row per recurrence, as `recurrences` makes it.
        break_even: The first recurrence from which on the sum stays below the default's; None where it does
            not (yet).
        profile: As `epoch_profile` makes it, at the batch size `profile_of`: the one of `arm`, or, where that
            has not been profiled, one that ran last.
        changes: How often the job has changed on the way.
        since: The first recurrence (counted from 1) that savings count; later than 1 after a change, because
            nothing is known of what the default would take before it.
    """

    objective: Objective
    space: Space
    believed: pl.DataFrame
    proposal: Proposal | None
    reason: str
    arm: int | None
    recurrences: pl.DataFrame
    default: Default | None
    break_even: int | None
    profile: pl.DataFrame
    profile_of: int | None
    changes: int
    since: int

    @property
    def batch_size(self) -> int | None:
        return None if self.arm is None else self.space.batch_sizes[self.arm]


def outlook_of(
    ledger: AttemptLedger, paid: pl.DataFrame, objective: Objective, policy: BatchSizePolicy, *,
    pardoned: dict[int, int] | None = None,
) -> Outlook:
    """Everything immediately, with the same random draws every time: what moves on a screen was moved.

    Args:
        ledger: Of the history; read before.
        paid: Its attempts, of `attempts_paid`.
        objective: To score it by.
        policy: Chooses the next batch size; a sampler of Optuna's is not asked, which would change it.
        pardoned: As the study has it.
    """
    barred = ledger.bars(pardoned).out
    proposal, reason = None, ""
    try:
        if isinstance(policy, OptunaPolicy):
            reason = "a sampler of Optuna's chooses the next batch size"
        else:
            proposal = propose(
                ledger, policy, objective, np.random.default_rng(0), before=0, pardoned=pardoned
            )
        space = without(ledger.space, barred)
    except UsageError as error:
        reason, space = str(error), ledger.space
    evidence = ledger.evidence(space, before=0)
    belief = belief_of(evidence, objective)
    believed = believed_costs(evidence, belief, objective, ledger.space, barred)
    arm = None
    if proposal is not None:
        arm = ledger.space.batch_sizes.index(proposal.batch_size)
    elif believed["best"].is_not_null().any():
        arm = int(np.argmax(believed["best"].fill_null(-1.0).to_numpy()))
    default = (
        default_cost(evidence, belief, objective)
        if belief is not None and ledger.space.default == space.default else None
    )
    first = evidence.current[0].recurrence if evidence.changes else None
    rows = recurrences(paid, objective, default, first)
    for profile_of in (
        None if arm is None else ledger.space.batch_sizes[arm], *rows["batch_size"].to_list()[:-4:-1],
    ):
        profile = epoch_profile(evidence, profile_of, objective)
        if profile.height > 1:
            break
    return Outlook(
        objective, ledger.space, believed, proposal, reason, arm, rows, default, break_even(rows), profile,
        profile_of, evidence.changes,
        1 if first is None else 1 + paid.filter(paid["recurrence"] < first)["recurrence"].n_unique(),
    )


def belief_of(evidence: Evidence, objective: Objective) -> EpochPosterior | None:
    """Samples of what may be true; None before a run has reached the target or an epoch was profiled."""
    if not evidence.count.any() or not evidence.in_profile.any():
        return None
    return believe(evidence, objective, EpochPrior(), DRAWS, np.random.default_rng(0))


def believed_costs(
    evidence: Evidence, belief: EpochPosterior | None, objective: Objective, space: Space,
    barred: dict[int, str],
) -> pl.DataFrame:
    """Frame `BELIEVED` for all of `space`; `evidence` and `belief` leave out barred batch sizes.

    Args:
        evidence: Runs and profiles, without barred batch sizes.
        belief: Samples of `belief_of`; None gives nulls.
        objective: Cost of time and energy.
        space: All batch sizes, barred ones too.
        barred: Batch size to the reason.
    """
    believed: list[tuple[float | None, ...]] = [(None,) * 4] * evidence.arms
    if belief is not None:
        costs = run_costs(belief, objective)
        best = np.bincount(np.argmin(costs, axis=1), minlength=evidence.arms) / len(costs)
        columns = [*np.quantile(costs, (0.5, *INTERVAL), axis=0).tolist(), best.tolist()]
        believed = list(zip(*columns, strict=True))
    others = [run.arm for run in evidence.current if run.state != "reached"]
    rows: list[tuple[object, ...]] = []
    for b in space.batch_sizes:
        known: tuple[object, ...] = (None,) * 4 + (0, 0)
        if (arm := evidence.index.get(b)) is not None:
            known = (*believed[arm], int(evidence.count[arm]), others.count(arm))
        rows.append((b, *known, barred.get(b, "")))
    return pl.DataFrame(rows, schema=BELIEVED, orient="row")


def default_cost(evidence: Evidence, belief: EpochPosterior, objective: Objective) -> Default | None:
    """The cost of the default configuration; None if it was not profiled."""
    arm, limits = evidence.default, evidence.space.power_limits_w
    known = ~np.isnan(evidence.epoch_time_s[arm])
    if not known.any():
        return None
    column = evidence.column(None)
    if not known[column]:
        column = int(np.flatnonzero(known)[-1])  # the highest that is known
    time_s, power_w = float(evidence.epoch_time_s[arm, column]), float(evidence.power_w[arm, column])
    each = float(_total(objective, np.array(time_s), np.array(time_s * power_w)))
    degree = objective.degree
    costs = np.exp(degree * belief.log_epochs[:, arm] + 0.5 * (degree * belief.noise) ** 2) * each
    epochs = float(np.median(np.exp(belief.log_epochs[:, arm] + 0.5 * belief.noise**2)))
    low, cost, high = (float(value) for value in np.quantile(costs, (INTERVAL[0], 0.5, INTERVAL[1])))
    return Default(
        evidence.space.batch_sizes[arm], limits[column] if limits else None, cost, low, high,
        epochs * time_s, epochs * time_s * power_w,
    )


def attempts_paid(attempts: Iterable[Attempt], space: Space) -> pl.DataFrame:
    """Frame `PAID` of all attempts that have ended, without those on other GPUs or to other targets."""
    kept = [a for a in attempts if a.ended]
    late = {a.late_for for a in kept if a.late_for is not None}
    rows = [
        (
            a.number, a.recurrence, a.batch_size, a.power_limit_w, a.state, a.purpose == "run" and a.lost,
            a.time_s + a.profile_time_s, a.energy_j + a.profile_energy_j,
        )
        for a in kept if a.number not in late and a.state != "withdrawn"
        and (a.target is None or space.target is None or a.target == space.target)
        and (a.gpu is None or space.gpu is None or a.gpu == space.gpu)
    ]
    return pl.DataFrame(sorted(rows), schema=PAID, orient="row")


def recurrences(
    paid: pl.DataFrame, objective: Objective, default: Default | None = None, first: int | None = None,
) -> pl.DataFrame:
    """A row per recurrence: what all its attempts cost together, and the sum so far.

    Columns: recurrence (counted from 1), batch_size and power_limit_w of its last run, reached, lost (it
    ended without the target, after as many runs as one may have), attempts, time_s, energy_j, cost, spent.
    With a default also usual_time_s and usual_energy_j, for this recurrence at the default. Last saved,
    saved_low and saved_high: how much more all of them would have cost at the default, counted from the
    recurrence `first` on (its number in the history) and NaN before it.

    Args:
        paid: Frame `PAID`.
        objective: Cost of time and energy.
        default: Of `default_cost`; None leaves the savings out.
        first: Savings count from this recurrence on; None for all.
    """
    # Numpy, not a query, whose threads take longer to wake than all the rest, at every move of a slider.
    time_s, energy_j = paid["time_s"].to_numpy(), paid["energy_j"].to_numpy()
    cost = _total(objective, time_s, energy_j)
    names, row = np.unique(paid["recurrence"].to_numpy(), return_inverse=True)
    count = len(names)
    last = np.zeros(count, dtype=int)
    np.maximum.at(last, row, np.arange(len(row)))  # in the order of their numbers
    reached = np.bincount(row, weights=paid["state"].to_numpy() == "reached", minlength=count) > 0
    in_vain = np.bincount(row, weights=paid["in_vain"].to_numpy(), minlength=count)
    sums = [np.bincount(row, weights=values, minlength=count) for values in (time_s, energy_j, cost)]
    spent = np.cumsum(sums[2])
    columns: dict[str, object] = {
        "recurrence": np.arange(1, count + 1), "batch_size": paid["batch_size"].to_numpy()[last],
        "power_limit_w": paid["power_limit_w"].to_numpy()[last], "reached": reached,
        "lost": ~reached & (in_vain >= MOST_RUNS),
        "attempts": np.bincount(row, minlength=count), "time_s": sums[0], "energy_j": sums[1],
        "cost": sums[2], "spent": spent,
    }
    if default is not None:
        counted = np.ones(count, bool) if first is None else names >= first
        limit_w = paid["power_limit_w"].to_numpy()[last]
        top_w = np.nan if default.power_limit_w is None else default.power_limit_w
        # A recurrence that ran at the default needs no estimate. Only one that has reached its target has
        # done the work that the default is charged for.
        own = (columns["batch_size"] == default.batch_size) & (columns["attempts"] == 1) & (
            np.isnan(limit_w) | (limit_w == top_w)
        )
        for name, taken, usual in (
            ("usual_time_s", sums[0], default.time_s), ("usual_energy_j", sums[1], default.energy_j),
        ):
            columns[name] = np.where(counted & reached, np.where(own, taken, usual), 0.0)
        for name, each in (("saved", default.cost), ("saved_low", default.low), ("saved_high", default.high)):
            gained = reached * np.where(own, sums[2], each) - sums[2]
            columns[name] = np.where(counted, np.cumsum(np.where(counted, gained, 0.0)), np.nan)
    return pl.DataFrame(columns)


def break_even(rows: pl.DataFrame) -> int | None:
    """The first recurrence from which on the sum stays below the default's; None where there is none."""
    if "saved" not in rows.columns or not rows.height:
        return None
    saved = rows["saved"].to_numpy()
    behind = np.flatnonzero(~(saved >= 0))  # also where nothing is counted: NaN
    return (int(behind[-1]) + 2 if len(behind) else 1) if saved[-1] > 0 else None


def epoch_profile(evidence: Evidence, batch_size: int | None, objective: Objective) -> pl.DataFrame:
    """An epoch at each known power limit: columns power_limit_w, time_s, energy_j, cost, best."""
    arm, limits = evidence.index.get(batch_size or 0), evidence.space.power_limits_w
    known = np.empty(0, int)
    if arm is not None and limits:
        known = np.flatnonzero(~np.isnan(evidence.epoch_time_s[arm]))
    at = (arm or 0, known)
    time_s = evidence.epoch_time_s[at]
    energy_j = time_s * evidence.power_w[at]
    cost = np.asarray(objective.cost(time_s, energy_j), dtype=float)
    best = np.arange(len(cost)) == (np.argmin(cost) if len(cost) else -1)
    limit_w = np.asarray(limits, dtype=float)[known]
    return pl.DataFrame(
        {"power_limit_w": limit_w, "time_s": time_s, "energy_j": energy_j, "cost": cost, "best": best}
    )


def _total(objective: Objective, time_s: np.ndarray, energy_j: np.ndarray) -> np.ndarray:
    """Costs of whole runs; where a bound is on the time of an epoch, a run that is over costs its energy."""
    return np.asarray(
        energy_j if isinstance(objective, EnergyWithin) else objective.cost(time_s, energy_j), dtype=float
    )
