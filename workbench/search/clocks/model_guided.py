"""The search that uses every trial's time and energy, with their errors, over all knobs together.

After every probe `response_surface` gives draws of time and energy at every setting. A setting is rated by
its expected cost. A draw that breaks the slowdown limit is charged as if the job ran the rest of its time at
the reference. Where nothing will be learnt later, it is charged as the reference. The saving is then lost,
which keeps the choice as far from the limit as the errors and the saving ask. The next probe is the one that
is expected to improve the choice most (knowledge gradient: Frazier, Powell and Dayanik, 2009). The search
ends when no probe improves the choice by more than the probe costs the rest of the job.

Without later measurements and without a prediction, only tried settings can be chosen. The others count with
the price of one more trial. If a choice remains uncertain by its own trials and the reference's, the search
repeats the choice or the reference, whichever was measured less.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import polars as pl
from scipy.special import ndtr

from ...errors import MeasurementError, UsageError
from ..objective import Objective
from ..space import SettingSpace
from ..surrogates.response_surface import Response, prepare
from .base import Choice, Done, Probing, Trial, Z

VERIFY = "verifying the predicted best setting"
UNUSUAL = "this card does not follow the usual curve"


# Tuned constants of `ModelGuided`.
#
# `WORTH`, `CHOOSE` and `PROBE` were chosen among three to five values each by `benchmarks.clocks
# --only search`, `WORTH_LATER` and `ERROR_LATER` by `--only online`,
# `MOST_TRIALS` and `MUCH` by `benchmarks.limits` on the generated cards of its `CHOSEN_ON`. The others were
# set manually.
HORIZON_S = 600.0  # remaining time of the job, if unknown
SETTLE_S = 1.0  # cost of a trial in addition to its iterations
WORTH = 0.002  # of the cost of the job: a trial with a smaller gain is not worthwhile
WORTH_LATER = 0.012  # the same if the choice is measured later (`learns_later`)
ERROR_LATER = 0.015  # relative 95 % error of a trial there
CHOOSE = 0.9  # least probability of keeping the slowdown limit for a choice
PROBE = 0.08  # the same for a trial
CANDIDATES = 16  # settings whose trial is evaluated
KEPT = 0.9  # probability by its own trials alone, below which choice or reference is repeated
NEAR = 0.1  # in ln clock or limit: a choice farther from every trial is tried (`learns_later`)
MOST_TRIALS = 8  # number of trials from which on, up to twice as many,
MUCH = 0.03  # one more must promise this share of the job's cost; not with `learns_later`
LONGEST_RATIO = 2.0  # an iteration at a memory clock that is tried next, over that at the lowest tried


class ModelGuided(Probing):
    """Bayesian search over clocks and power limit: each trial has the largest gain for its price.

    Args:
        space: The settings.
        horizon_s: Expected remaining time of the job; a trial must pay within it.
        wait_share: Share of an iteration in which the GPU waits; see `response_surface.fit`.
        learns_later: The choice will be held and measured for longer than any probe. Its measurement is then
            free, so a trial is worth less, and the choice is not probed for its own sake where a probe was
            near.
        most: Number of trials from which on one more must promise `MUCH`.
        worth: Share of the job's cost that a trial must be expected to gain; by default `WORTH`, or
            `WORTH_LATER` with `learns_later`.
        args: Arguments of `Probing`.
        options: Arguments of `Probing`.

    Raises:
        UsageError: A horizon that is not above 0.
    """

    name = "model-guided"

    def __init__(
        self, space: SettingSpace, *args: Any, horizon_s: float = HORIZON_S,
        wait_share: float | None = None, learns_later: bool = False, most: int = MOST_TRIALS,
        worth: float | None = None, **options: Any,
    ) -> None:
        super().__init__(space, *args, **options)
        if not horizon_s > 0:
            raise UsageError(
                f"horizon_s={horizon_s:g} is no remaining time; give seconds above 0, or omit horizon_s"
            )
        self.horizon_s, self.wait_share = horizon_s, wait_share
        self.learns_later = learns_later
        # With a prediction, or if the choice is measured later, an untried setting can be chosen.
        self._trusts = learns_later or self.prior is not None
        self.worth = (WORTH_LATER if learns_later else WORTH) if worth is None else worth
        self.most = most
        self._response: Response | None = None
        prepare(space)

    def trial(self, row: int, reason: str, error: float | None = None) -> Trial:
        """As `Probing.trial`; a shorter one if the choice is measured later."""
        if error is None and self.learns_later:
            error = ERROR_LATER
        return super().trial(row, reason, error)

    def _changed(self, row: int) -> None:
        self._response = None

    @property
    def response(self) -> Response:
        """Posterior samples of time and energy at every setting."""
        if self._response is None:
            reference = self.pooled(self.space.reference_row)
            share = None
            if reference is not None and self.space.max_power_limit_w is not None:
                share = reference.energy_j / reference.time_s / self.gpus / self.space.max_power_limit_w
            self._response = self.fitted(power_share=share, wait_share=self.wait_share)
        return self._response

    def next(self) -> Trial | Done:
        """The next trial, or why there is none."""
        first = self.first()
        if first is not None:
            return first
        charged, allowed = self._charged(self.objective, self.max_slowdown)
        best = self._chosen(charged, allowed, self.max_slowdown)
        planned = best if self._trusts else self._planned(charged, allowed)
        row, gain, value = self._most_worth(charged, allowed, planned)
        promised = float(charged[:, best].mean() - charged[:, planned].mean())
        if value <= self._enough < promised and not self._tried()[planned]:
            return self.trial(planned, VERIFY)
        if row is None:
            return Done("no other available setting is likely to keep the slowdown limit")
        if value > self._enough:
            unusual = (
                f"; {UNUSUAL}: measuring more" if self.response.unusual and len(self._measured) > 2 else ""
            )
            return self.trial(row, f"it is expected to lower the cost by {gain:.1%}{unusual}")
        again = self._unprobed(best) if self._trusts else self._again(best)
        if again is not None:
            return again
        return Done(
            f"after {len(self._measured)} trials another one is expected to lower the cost by "
            f"{max(gain, 0):.2%}, less than it costs; {self.summary}"
        )

    @property
    def summary(self) -> str:
        """The estimate of the choice, its certainty, and whether the card is usual.

        Raises:
            MeasurementError: No setting was tried yet.
        """
        choice = self.choice()
        row = self.space.row(choice.setting)
        unusual = f"; {UNUSUAL}" if self.response.unusual else ""
        bound = self.max_slowdown
        if row == self.space.reference_row:
            within = "" if bound is None else " within the bound"
            return f"no other setting is likely to cost less{within}{unusual}"
        kept = "" if bound is None else f", within the slowdown limit with {choice.p_allowed:.0%} probability"
        return (
            f"{choice.setting} takes {choice.energy_ratio - 1:+.1%} ± {Z * choice.energy_sd:.1%} energy and "
            f"{choice.time_ratio - 1:+.1%} ± {Z * choice.time_sd:.1%} time{kept}{unusual}"
        )

    @property
    def _enough(self) -> float:
        """Required gain of a trial in addition to its price."""
        rounds = len(self._measured) // self.most
        return 0.0 if self._trusts or not rounds else MUCH if rounds < 2 else math.inf

    def _most_worth(
        self, charged: np.ndarray, allowed: np.ndarray, best: int
    ) -> tuple[int | None, float, float]:
        """The setting whose trial has the largest gain after its price, its gain, and the difference.

        None if no available setting keeps the slowdown limit with a probability of `probe`.
        """
        candidates = self._candidates(charged, allowed, best)
        if not len(candidates):
            return None, 0.0, 0.0
        prices = np.array([self._price(row, charged, allowed, best) for row in candidates])
        gains = self._gains(charged, allowed, candidates, best)
        pick = int(np.argmax(gains - prices))
        return int(candidates[pick]), float(gains[pick]), float(gains[pick] - prices[pick])

    def choice(self, objective: Objective | None = None, max_slowdown: float | None = None) -> Choice:
        """The estimated best setting, for any objective and slowdown limit, tried or not.

        Raises:
            MeasurementError: No setting was tried yet.
        """
        if not self._measured:
            raise MeasurementError("there is no trial yet; try the reference first")
        objective, bound = self.asked(objective, max_slowdown)
        response = self.response
        charged, allowed = self._charged(objective, bound)
        row = self._chosen(charged, allowed, bound)
        return Choice(
            self.space.settings[row], float(response.time_ratio[row]), float(response.energy_ratio[row]),
            float(response.time_sd[row]), float(response.energy_sd[row]), float(allowed[:, row].mean()),
            any(entry[0] == row for entry in self._measured),
        )

    def belief(self) -> pl.DataFrame:
        """One row per setting: ratios to the reference, deviations, probability of the limit, trials."""
        response = self.response
        _, allowed = self._charged(self.objective, self.max_slowdown)
        return self.space.frame().with_columns(
            time_ratio=response.time_ratio,
            time_sd=response.time_sd,
            energy_ratio=response.energy_ratio,
            energy_sd=response.energy_sd,
            p_allowed=allowed.mean(axis=0),
            probes=np.bincount(self.measured_rows, minlength=len(self.space)).astype(
                np.int64
            ),
        )

    # arithmetic

    def _open(self) -> np.ndarray:
        return np.array([setting not in self.unreachable for setting in self.space.settings])

    def _charged(
        self, objective: Objective, bound: float | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Each sample's relative cost at every setting, higher beyond the slowdown limit; whether it is kept.
        """
        response = self.response
        time_s = np.exp(response.log_times + response.log_time_s[:, None])
        energy_j = np.exp(response.log_energies + response.log_energy_j[:, None])
        cost = np.asarray(objective.cost(time_s, energy_j), dtype=float)
        cost = cost / cost[:, [self.space.reference_row]]
        if bound is None:
            return cost, np.ones(cost.shape, bool)
        allowed = response.log_times <= math.log1p(bound) + 1e-12
        if not self._trusts:  # no later measurement will correct it
            return np.where(allowed, cost, np.maximum(cost, 1.0)), allowed
        share = bound / np.maximum(np.expm1(response.log_times), 1e-9 + bound)
        return np.where(allowed, cost, np.maximum(share * cost + 1 - share, cost)), allowed

    def _best(self, charged: np.ndarray, allowed: np.ndarray, open_: np.ndarray) -> int:
        mean = np.where(open_ & (allowed.mean(axis=0) >= CHOOSE), charged.mean(axis=0), np.inf)
        return int(np.argmin(mean)) if np.isfinite(mean).any() else self.space.reference_row

    def _chosen(self, charged: np.ndarray, allowed: np.ndarray, bound: float | None) -> int:
        """The best; without later measurements, among tried settings that keep the limit by their trials."""
        if self._trusts:
            return self._best(charged, allowed, self._open())
        return self._best(charged, allowed, self._tried() & self._unrefuted(bound))

    def _planned(self, charged: np.ndarray, allowed: np.ndarray) -> int:
        """The best if an untried setting costs one more trial."""
        later = np.where(self._tried(), 0.0, self.worth)
        return self._best(charged + later, allowed, self._unrefuted(self.max_slowdown))

    def _tried(self) -> np.ndarray:
        """Which settings were tried."""
        return np.isin(np.arange(len(self.space)), self.measured_rows)

    def _unrefuted(self, bound: float | None) -> np.ndarray:
        """Available settings whose own trials do not show that they exceed the slowdown limit."""
        found = self._open()
        for row in set(self.measured_rows):
            found[row] &= self._keeps(row, bound) > 0.5
        return found

    def _keeps(self, row: int, bound: float | None) -> float:
        """Probability that a tried setting keeps the slowdown limit, by its own and the reference's trials.
        """
        here, reference = self.pooled(row), self.pooled(self.space.reference_row)
        if bound is None or row == self.space.reference_row or here is None or reference is None:
            return 1.0
        error = math.hypot(here.time_error, reference.time_error)
        return float(ndtr((math.log1p(bound) - math.log(here.time_s / reference.time_s)) / error))

    def _unprobed(self, best: int) -> Trial | None:
        """The choice, if no trial was near it."""
        space, tried = self.space, sorted(set(self.measured_rows))
        steps = [np.abs(np.log(each[tried] / each[best])) for each in (space.x, space.mu, space.limit)]
        far = float(np.max(steps, axis=0).min()) > NEAR
        return self.trial(best, VERIFY) if far else None

    def _again(self, best: int) -> Trial | None:
        """The choice or the reference again, whichever was measured less, if its own trials leave the
        slowdown limit in doubt.
        """
        here, rows = self.space.reference_row, self.measured_rows
        if best == here or len(rows) >= self.most:
            return None
        if self._keeps(best, self.max_slowdown) >= KEPT:
            return None
        row = best if rows.count(best) <= rows.count(here) else here
        return self.trial(row, "again, because the slowdown limit is in doubt")

    def _candidates(self, charged: np.ndarray, allowed: np.ndarray, best: int) -> np.ndarray:
        """Settings that win in most samples, some of low cost, the choice, the reference and the best of each
        memory clock, but none certainly beyond the slowdown limit.
        """
        count, open_ = CANDIDATES, self._open()
        fit_ = open_ & self._in_reach() & (allowed.mean(axis=0) >= PROBE)
        winners = np.argmin(np.where(open_, charged, np.inf), axis=1)
        wins = np.bincount(winners, minlength=len(open_))
        mean = np.where(fit_, charged.mean(axis=0), np.inf)
        clocks = self.space.mu
        each_memory = [int(np.argmin(np.where(clocks == mu, mean, np.inf))) for mu in np.unique(clocks)]
        by_wins = [row for row in np.argsort(-wins)[:count].tolist() if wins[row]]
        by_cost = np.argsort(mean)[:: max(len(mean) // count, 1)].tolist()
        rows = dict.fromkeys([best, self.space.reference_row, *each_memory, *by_wins, *by_cost])
        return np.array([row for row in rows if fit_[row]], dtype=int)

    def _in_reach(self) -> np.ndarray:
        """Settings whose memory clock is acceptable for a running job on an unknown card.

        At these, an iteration takes at most `LONGEST_RATIO` times as long as at the lowest tried memory
        clock, if all time without host waits is memory-bound. The next lower memory clock is included. Some
        cards offer a twentieth of the highest clock, and no trial ends before its second iteration.
        """
        clocks = self.space.mu
        if self.prior is not None or not (self.learns_later and self._measured):
            return np.ones(len(clocks), bool)
        lowest = float(clocks[self.measured_rows].min())
        waits = self.wait_share or 0.0
        longest = waits + (1 - waits) * lowest / clocks
        following = clocks[clocks < lowest].max(initial=lowest)
        return (longest <= LONGEST_RATIO) | (clocks >= following)

    def _gains(
        self, charged: np.ndarray, allowed: np.ndarray, candidates: np.ndarray, best: int
    ) -> np.ndarray:
        """Expected reduction of the choice's charged cost by one trial at each candidate.

        Every sample in turn is the truth. The others are weighted by the trial's result under it, and the
        resulting choice is charged against that truth.
        """
        response, draws = self.response, len(charged)
        # An untried setting can be chosen after one more trial.
        later = np.where(self._tried() | self._trusts, 0.0, self.worth)
        costs, keeps = (np.where(self._open(), each, bad).astype(np.float32)
                        for each, bad in ((charged, 1e3), (allowed, 0)))
        errors = np.maximum(np.median(self.errors(), axis=0), 1e-3)
        noise = np.random.default_rng(1).standard_normal((2, draws))
        found = (
            response.log_times + response.log_time_s[:, None],
            response.log_energies + response.log_energy_j[:, None],
        )
        gains = np.empty(len(candidates))
        for number, row in enumerate(candidates):
            apart = np.zeros((draws, draws), np.float32)
            for logs, error, slips in zip(found, errors, noise, strict=True):
                values = (logs[:, row] - logs[:, row].mean()) / error
                apart += ((values + slips)[:, None] - values).astype(np.float32) ** 2
            np.fill_diagonal(apart, np.inf)  # the truth is excluded from the weighted samples
            weights = np.exp(-0.5 * (apart - apart.min(axis=1, keepdims=True)))
            weights /= weights.sum(axis=1, keepdims=True)
            extra = np.where(np.arange(len(later)) == row, 0.0, later)
            after = np.where(weights @ keeps < CHOOSE, np.inf, weights @ costs + extra)
            picks = np.argmin(after, axis=1)
            now = costs[:, best] + later[best]
            gains[number] = np.mean(now - costs[np.arange(draws), picks] - extra[picks])
        return gains

    def _price(self, row: int, charged: np.ndarray, allowed: np.ndarray, best: int) -> float:
        """A trial's cost as a share of the job's: fixed cost, more if it may exceed the limit, its seconds.
        """
        iterations, time_s = self._measured[-1][1:3]
        seconds = SETTLE_S + max(time_s, time_s / iterations)
        dear = max(float(charged[:, row].mean() - charged[:, best].mean()), 0.0)
        trouble = self.worth * (2 - float(allowed[:, row].mean()))
        return float((trouble * HORIZON_S + dear * seconds) / self.horizon_s)
