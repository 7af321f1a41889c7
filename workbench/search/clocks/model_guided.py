"""The search that uses every probe's time and energy, with their errors, over all knobs at once.

After every probe `response` says what may be true of every setting, as draws. What a setting is worth is its
expected cost, where a draw that breaks the bound is charged as the reference and more: that alone keeps the
choice as far from the bound as the errors ask. The next probe is the one that is expected to improve the
choice most (knowledge gradient: Frazier, Powell and Dayanik, 2009): for every candidate the draws themselves
play the truth in turn, the others are weighed by what the probe would then show, and the choice that follows
is charged against that truth. It ends when no probe improves the choice by more than the probe costs the rest
of the job.

No probe is made where the bound is all but surely broken (`TRY`), one that may break it is dearer, and after
one that did the next is where it is probably kept (`SURE`).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import polars as pl

from ...errors import MeasurementError, UsageError
from ..objective import Objective
from ..space import SettingSpace
from ..surrogates.response_surface import Response, fit, prepare
from .base import ERROR, Choice, Done, Probing, Trial, bounded

HORIZON_S = 600.0  # how long the job goes on, if nobody says
SETTLE_S = 1.0  # what a probe costs beside its iterations
WORTH = 0.002  # of the cost of the job: a gain below it is not worth the trouble of a probe
WORTH_LATER, ERROR_LATER = 0.003, 0.015  # and how exact a probe is, where the choice is learnt of anyhow
OVERSHOOT = 0.0  # what a share of time beyond the bound is charged, beside the saving that is lost
CHOOSE, TRY = 0.9, 0.08  # least probability of keeping the bound: to be chosen, to be probed
DOUBT, SURE = 0.5, 0.8  # after a probe where it is below the first, the next is where it is above the second
DOUBTED, SETTLED = (
    1.5,
    0.99,
)  # a choice that was not probed and is less sure than a probe of it would be is probed
NEAR, FAR = (
    0.03,
    0.12,
)  # in ln clock or limit: a choice that is farther than the second from every probe is probed anyhow,
UNSURE = 0.008  # and one that is farther than the first, where its time is less sure than this
BREAK = 2.0  # times that trouble more, where a probe breaks the bound for sure
CANDIDATES = 16  # settings whose probe is thought through
SHORTLIST = 64  # settings that may be chosen after it
LEAST = 3  # probes, the reference included, unless nothing can be won: two points prove no shape


class ModelGuided(Probing):
    """See the module. `horizon_s`: how long the job probably goes on; a probe must pay within it.
    `wait_share`: see `response.fit`.

    `learns_later`: the choice will be held and measured for longer than any probe. What a probe would tell of
    it comes for nothing then, so a probe is worth less, and the choice is not probed for its own sake where a
    probe was near.
    """

    name = "model-guided"

    def __init__(
        self,
        space: SettingSpace,
        *args: Any,
        horizon_s: float = HORIZON_S,
        worth: float | None = None,
        wait_share: float | None = None,
        learns_later: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(space, *args, **options)
        if not horizon_s > 0:
            raise UsageError(
                f"a job cannot go on for {horizon_s:g} s; give seconds above 0, or leave horizon_s out"
            )
        if wait_share is not None and not 0 <= wait_share <= 1:
            raise UsageError(
                f"a GPU cannot wait for {wait_share:g} of an iteration; give a share from 0 to 1, or None"
            )
        self.horizon_s, self.wait_share = horizon_s, wait_share
        self.learns_later = learns_later
        self.worth = worth if worth is not None else WORTH_LATER if learns_later else WORTH
        self._response: Response | None = None
        prepare(space)

    def trial(self, row: int, reason: str, error: float | None = None) -> Trial:
        """As `Probing.trial`; a shorter one where the choice is learnt of anyhow."""
        return super().trial(
            row, reason, error if error is not None else ERROR_LATER if self.learns_later else ERROR
        )

    def _changed(self, row: int) -> None:
        self._response = None

    @property
    def response(self) -> Response:
        """What is believed of every setting by now."""
        if self._response is None:
            reference = self.pooled(self.space.reference_row)
            share = None
            if reference is not None and self.space.max_power_limit_w is not None:
                share = reference.energy_j / reference.time_s / self.gpus / self.space.max_power_limit_w
            self._response = fit(
                self.space,
                [told[0] for told in self._told],
                [told[2] / told[1] for told in self._told],
                [told[3] / told[1] for told in self._told],
                self.errors(),
                prior=self.prior,
                power_share=share,
                wait_share=self.wait_share,
            )
        return self._response

    def next(self) -> Trial | Done:
        """The next probe, or why there is none."""
        first = self.first()
        if first is not None:
            return first
        response = self.response
        charged, allowed = self._charged(response, self.objective, self.max_slowdown)
        open_ = self._open()
        best = self._best(charged, allowed, open_)
        tried = {told[0] for told in self._told}
        candidates = self._candidates(charged, allowed, open_, best)
        if not len(candidates):
            return Done("no other setting can be set and is likely to keep the bound")
        gains = self._gains(response, charged, allowed, candidates, open_, best)
        prices = np.array([self._price(row, charged, allowed, best) for row in candidates])
        pick = int(np.argmax(gains - prices))
        row = int(candidates[pick])
        if gains[pick] - prices[pick] > 0:
            return self.trial(row, f"it is expected to lower the cost by {gains[pick]:.1%}")
        limit = UNSURE if self.learns_later else float(np.median(self.errors()[:, 0])) * DOUBTED
        doubt = float(response.time_sd[best]) > limit and float(allowed[:, best].mean()) < SETTLED
        if self.learns_later:
            doubt = self._apart(best) > (NEAR if doubt else FAR)
        if best not in tried and (len(tried) < LEAST or doubt):
            return self.trial(best, "the best by what is believed, to see whether it is so")
        where = "the reference" if best == self.space.reference_row else f"{self.space.settings[best]}"
        return Done(
            f"no probe is expected to improve on {where} by what it costs (at most {max(gains.max(), 0):.2%} "
            "of the cost)"
        )

    def choice(self, objective: Objective | None = None, max_slowdown: float | None = None) -> Choice:
        """The best setting by what is known now, of any objective and bound; probed or not.

        Raises:
            MeasurementError: nothing was probed yet.
        """
        if not self._told:
            raise MeasurementError("nothing is known yet; probe the reference first")
        objective, bound = bounded(
            objective or self.objective, self.max_slowdown if max_slowdown is None else max_slowdown
        )
        response = self.response
        charged, allowed = self._charged(response, objective, bound)
        row = self._best(charged, allowed, self._open())
        return Choice(
            self.space.settings[row],
            float(response.time_ratio[row]),
            float(response.energy_ratio[row]),
            float(response.time_sd[row]),
            float(response.energy_sd[row]),
            float(allowed[:, row].mean()),
            any(told[0] == row for told in self._told),
        )

    def belief(self) -> pl.DataFrame:
        """One row a setting: ratios to the reference, their relative standard deviations, probability of
        keeping the bound, probes.
        """
        response = self.response
        _, allowed = self._charged(response, self.objective, self.max_slowdown)
        return self.space.frame().with_columns(
            time_ratio=response.time_ratio,
            time_sd=response.time_sd,
            energy_ratio=response.energy_ratio,
            energy_sd=response.energy_sd,
            p_allowed=allowed.mean(axis=0),
            probes=np.bincount([told[0] for told in self._told], minlength=len(self.space)).astype(np.int64),
        )

    # arithmetic

    def _open(self) -> np.ndarray:
        return np.array([setting not in self.unreachable for setting in self.space.settings])

    def _charged(
        self, response: Response, objective: Objective, bound: float | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Cost of every draw at every setting relative to the reference, and whether the bound is kept;
        what breaks it pays for that.
        """
        time_s = np.exp(response.log_times + response.log_time_s[:, None])
        energy_j = np.exp(response.log_energies + response.log_energy_j[:, None])
        cost = np.asarray(objective.cost(time_s, energy_j), dtype=float)
        cost = cost / cost[:, [self.space.reference_row]]
        if bound is None:
            return cost, np.ones(cost.shape, bool)
        over = response.log_times - math.log1p(bound)
        allowed = over <= 1e-12
        share = bound / np.maximum(np.expm1(response.log_times), 1e-9 + bound)
        return np.where(
            allowed, cost, np.maximum(share * cost + 1 - share, cost) + OVERSHOOT * np.maximum(over, 0.0)
        ), allowed

    def _best(self, charged: np.ndarray, allowed: np.ndarray, open_: np.ndarray) -> int:
        mean = np.where(open_ & (allowed.mean(axis=0) >= CHOOSE), charged.mean(axis=0), np.inf)
        return int(np.argmin(mean)) if np.isfinite(mean).any() else self.space.reference_row

    def _candidates(
        self, charged: np.ndarray, allowed: np.ndarray, open_: np.ndarray, best: int
    ) -> np.ndarray:
        """What wins in some draw, the choice itself and the reference; nothing that all but surely breaks
        the bound.
        """
        kept = allowed.mean(axis=0)
        least = SURE if self._doubtful(kept) else TRY
        fit_ = open_ & (kept >= least)
        wins = (
            np.bincount(np.argmin(np.where(open_, charged, np.inf), axis=1), minlength=charged.shape[1])
            * fit_
        )
        rows = [row for row in np.argsort(-wins)[: CANDIDATES - 4].tolist() if wins[row] > 0]
        spread = np.argsort(np.where(fit_, charged.mean(axis=0), np.inf))[: 8 * CANDIDATES : 8]
        mean = np.where(fit_, charged.mean(axis=0), np.inf)
        each_memory = [
            int(np.argmin(np.where(self.space.mu == mu, mean, np.inf))) for mu in np.unique(self.space.mu)
        ]
        rows = [best, self.space.reference_row, *each_memory, *rows, *spread.tolist()]
        return np.array([row for row in dict.fromkeys(rows) if fit_[row]][: CANDIDATES + 8], dtype=int)

    def _apart(self, row: int) -> float:
        """How far a setting is from all that was probed, in ln clock or limit; far away it is believed on
        the shape of curves alone.
        """
        space, tried = self.space, sorted({told[0] for told in self._told})
        steps = [np.abs(np.log(each[tried] / each[row])) for each in (space.x, space.mu, space.limit)]
        return float(np.max(steps, axis=0).min())

    def _doubtful(self, kept: np.ndarray) -> bool:
        """Whether the last probe was where the bound is as likely broken as kept."""
        return bool(self._told) and float(kept[self._told[-1][0]]) < DOUBT

    def _gains(
        self,
        response: Response,
        charged: np.ndarray,
        allowed: np.ndarray,
        candidates: np.ndarray,
        open_: np.ndarray,
        best: int,
    ) -> np.ndarray:
        """Expected fall of the choice's charged cost through one probe at each candidate."""
        mean = np.where(open_, charged.mean(axis=0), np.inf)
        wins = np.bincount(np.argmin(np.where(open_, charged, np.inf), axis=1), minlength=charged.shape[1])
        short = np.argsort(mean - 1e3 * (wins > 0))[:SHORTLIST]
        short = np.unique(np.append(short[np.isfinite(mean[short])], [best, self.space.reference_row]))
        costs = charged[:, short].astype(np.float32)
        keeps = allowed[:, short].astype(np.float32)
        error = np.maximum(np.median(self.errors(), axis=0), 1e-3)
        draws = len(charged)
        noise = np.random.default_rng(1).standard_normal((2, draws))
        here = int(np.flatnonzero(short == best)[0])
        gains = np.empty(len(candidates))
        for number, row in enumerate(candidates):
            apart = np.zeros((draws, draws), np.float32)
            for which, (values, scale) in enumerate(
                ((response.log_times, response.log_time_s), (response.log_energies, response.log_energy_j))
            ):
                shown = (values[:, row] + scale) / error[which]
                shown = (shown - shown.mean()).astype(np.float32)
                apart += ((shown + noise[which].astype(np.float32))[:, None] - shown[None, :]) ** 2
            np.fill_diagonal(apart, np.inf)  # the truth is not among what is weighed
            weights = np.exp(-0.5 * (apart - apart.min(axis=1, keepdims=True)))
            weights /= weights.sum(axis=1, keepdims=True)
            after = weights @ costs
            after[weights @ keeps < CHOOSE] = np.inf
            picks = np.argmin(after, axis=1)
            gains[number] = float(np.mean(costs[:, here] - costs[np.arange(draws), picks]))
        return gains

    def _price(self, row: int, charged: np.ndarray, allowed: np.ndarray, best: int) -> float:
        """What a probe costs, of the job's cost: some trouble, more where it may break the bound, and its
        seconds at a dearer setting.
        """
        iterations, time_s = self._told[-1][1:3]
        seconds = SETTLE_S + max(time_s, time_s / iterations)
        dear = max(float(charged[:, row].mean() - charged[:, best].mean()), 0.0)
        trouble = self.worth * (1 + BREAK * (1 - float(allowed[:, row].mean())))
        return float(trouble * HORIZON_S / self.horizon_s + dear * seconds / self.horizon_s)
