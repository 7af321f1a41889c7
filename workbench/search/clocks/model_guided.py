"""The search that uses every probe's time and energy, with their errors, over all knobs at once.

After every probe `response` says what may be true of every setting, as draws: of physics with a smooth
deviation, or with jumps and plateaus, as far as the probes foretell it. What a setting is worth is its
expected cost. A draw that breaks the bound is charged as if the job ran the rest of its time at the
reference; where nothing is known of the card and nothing will be learnt later, as the reference: the saving
is lost, which keeps the choice as far from the bound as the errors and the saving ask. The next probe is the
one that is expected to improve the choice most (knowledge gradient: Frazier, Powell and Dayanik, 2009): for
every candidate the draws themselves play the truth in turn, the others are weighed by what the probe would
then show, and the choice that follows is charged against that truth. It ends when no probe improves the
choice by more than the probe costs the rest of the job. Where nothing is known of the card (no prediction, no
library), only what was probed itself can be chosen: what was not counts with the price of one more probe. A
choice that its own probes and the reference's leave in doubt is repeated, or the reference, whichever was
measured less.

No probe is made where the bound is all but surely broken (`params.probe`), one that may break it is dearer,
and after one that did the next is where it is probably kept (`params.sure`), if anything is to be won there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from scipy.special import ndtr

from ...errors import MeasurementError, UsageError
from ..objective import Objective
from ..space import SettingSpace
from ..surrogates.response_surface import Response, fit, prepare
from .base import Choice, Done, Probing, Trial, Z
from .probe_gain import expected_gain, gain_alone

UNUSUAL = "this card does not follow the usual curve"


@dataclass(frozen=True, slots=True)
class ModelGuidedParams:
    """Tuned constants of `ModelGuided`.

    `worth`, `choose` and `probe` were chosen among three to five values each by `benchmarks.clocks
    --only search` (kernels and four of 32 stages, docs/validation/clocks.md), those of `learns_later` by
    `benchmarks.clocks --only online`, those of the wary by `benchmarks.limits` on the generated cards of its
    `CHOSEN_ON` (docs/validation/limits.md), but `most` and `alone` by both, and `much` on the generated cards
    that `--only search` lists as chosen on; the others by hand.
    """

    horizon_s: float = 600.0  # how long the job goes on, if nobody says
    settle_s: float = 1.0  # what a probe costs beside its iterations
    worth: float = 0.002  # of the cost of the job: a gain below it is not worth the trouble of a probe
    worth_later: float = 0.006  # the same where the choice is learnt of anyhow (`learns_later`)
    error_later: float = 0.015  # relative 95 % error of a probe there
    choose: float = 0.9  # least probability of keeping the bound, to be chosen
    probe: float = 0.08  # the same, to be probed
    doubt: float = 0.5  # after a probe where that probability is below this,
    sure: float = 0.8  # the next is where it is above this
    doubted: float = 1.5  # times the error of a probe: a choice less sure than that is probed,
    settled: float = 0.99  # unless it keeps the bound with this probability
    # in ln clock or limit: a choice farther from every probe than this is probed where it is `unsure`,
    near: float = 0.03
    far: float = 0.12  # and one farther than this is probed anyhow
    unsure_sd: float = 0.008  # relative, of its time
    break_factor: float = 2.0  # times `worth` more, where a probe breaks the bound for sure
    break_wary: float = 0.3  # the same where nothing is known of the card
    candidates: int = 16  # settings whose probe is thought through
    shortlist: int = 64  # settings that may be chosen after it
    least_probes: int = 3  # the reference included, unless nothing can be won: two points prove no shape
    kept: float = 0.9  # probability by its own probes alone, below which choice or reference is repeated
    # in ln clock or limit: a probe as far from every other may tell of its own setting only
    alone: float = 0.5
    chosen: float = 0.5  # least such probability
    most: int = 8  # probes where nothing is known of the card, from which on, up to twice as many,
    much: float = 0.03  # one more must promise this share of the job's cost
    longest: float = 2.0  # an iteration at a memory clock that is tried next, over that at the lowest tried


PARAMS = ModelGuidedParams()


class ModelGuided(Probing):
    """Bayesian search over clocks and power limit: each probe is the one that is worth most for its price.

    Args:
        space: The settings.
        horizon_s: How long the job probably goes on; a probe must pay within it.
        worth: Share of the job's cost that a probe must promise; None for that of `params`.
        wait_share: Share of an iteration in which the GPU waits; see `response_surface.fit`.
        learns_later: The choice will be held and measured for longer than any probe. What a probe would tell
            of it comes for nothing then, so a probe is worth less, and the choice is not probed for its own
            sake where a probe was near.
        params: The constants.
        args: Of `Probing`.
        options: Of `Probing`.

    Raises:
        UsageError: a horizon that is not above 0, or a share outside 0..1.
    """

    name = "model-guided"

    def __init__(
        self, space: SettingSpace, *args: Any, horizon_s: float = PARAMS.horizon_s,
        worth: float | None = None, wait_share: float | None = None, learns_later: bool = False,
        params: ModelGuidedParams = PARAMS, **options: Any,
    ) -> None:
        super().__init__(space, *args, **options)
        self.params = params
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
        # Without anything known of the card, and where nothing more will be learnt, physics may be wrong.
        self.wary = self.prior is None and not learns_later
        usual = params.worth_later if learns_later else params.worth
        self.worth = worth if worth is not None else usual
        self._response: Response | None = None
        prepare(space)

    def trial(self, row: int, reason: str, error: float | None = None) -> Trial:
        """As `Probing.trial`; a shorter one where the choice is learnt of anyhow."""
        if error is None and self.learns_later:
            error = self.params.error_later
        return super().trial(row, reason, error)

    def _changed(self, row: int) -> None:
        self._response = None

    @property
    def response(self) -> Response:
        """Posterior draws of time and energy at every setting."""
        if self._response is None:
            reference = self.pooled(self.space.reference_row)
            share = None
            if reference is not None and self.space.max_power_limit_w is not None:
                share = reference.energy_j / reference.time_s / self.gpus / self.space.max_power_limit_w
            self._response = fit(
                self.space,
                [entry[0] for entry in self._measured],
                [entry[2] / entry[1] for entry in self._measured],
                [entry[3] / entry[1] for entry in self._measured],
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
        charged, allowed = self._charged(self.response, self.objective, self.max_slowdown)
        best = self._chosen(charged, allowed, self.max_slowdown)
        planned = self._planned(charged, allowed) if self.wary else best
        kept = allowed.mean(axis=0)
        cautious = self._doubtful(kept)
        row, gain, value = self._most_worth(
            charged, allowed, planned, self.params.sure if cautious else self.params.probe
        )
        promised = float(charged[:, best].mean() - charged[:, planned].mean())
        if value <= self._enough < promised and not self._tried()[planned]:
            return self.trial(planned, "the best by what is believed, to see whether it is so")
        if self.wary and cautious and value <= 0:  # rather a second one that may break the bound than none
            row, gain, value = self._most_worth(charged, allowed, planned, self.params.probe)
        if row is None:
            return Done("no other setting can be set and is likely to keep the bound")
        if value > self._enough:
            unusual = (
                f"; {UNUSUAL}: measuring more" if self.response.unusual and len(self._measured) > 2 else ""
            )
            return self.trial(row, f"it is expected to lower the cost by {gain:.1%}{unusual}")
        again = self._again(best) if self.wary else self._unsure(self.response, allowed, best)
        if again is not None:
            return again
        if value > 0:
            count = len(self._measured)
            return Done(f"after {count} probes none promises enough (at most {gain:.1%}); {self.summary}")
        return Done(
            f"no probe is expected to improve on {self._name(best)} by what it costs (at most "
            f"{max(gain, 0):.2%} of the cost); {self.summary}"
        )

    @property
    def summary(self) -> str:
        """What is estimated of the choice, how sure that is, and whether the card is as others are.

        Raises:
            MeasurementError: nothing was probed yet.
        """
        choice = self.choice()
        row = self.space.row(choice.setting)
        unusual = f"; {UNUSUAL}" if self.response.unusual else ""
        bound = self.max_slowdown
        if row == self.space.reference_row:
            within = "" if bound is None else " within the bound"
            return f"no other setting is likely to cost less{within}{unusual}"
        kept = "" if bound is None else f", within the bound with {choice.p_allowed:.0%} probability"
        return (
            f"{self._name(row)} takes {choice.energy_ratio - 1:+.1%} ± {Z * choice.energy_sd:.1%} energy and "
            f"{choice.time_ratio - 1:+.1%} ± {Z * choice.time_sd:.1%} time{kept}{unusual}"
        )

    @property
    def _enough(self) -> float:
        """What must be left of a probe's gain beside its price."""
        params, count = self.params, len(self._measured)
        if not self.wary or count < params.most:
            return 0.0
        return params.much if count < 2 * params.most else math.inf

    def _name(self, row: int) -> str:
        return str(self.space.settings[row])

    def _most_worth(
        self, charged: np.ndarray, allowed: np.ndarray, best: int, least: float
    ) -> tuple[int | None, float, float]:
        """The setting whose probe is worth most beyond its price, its gain, and what is left of that.

        Nothing is probed that keeps the bound with less than a probability of `least`; None if that leaves
        none.
        """
        open_ = self._open()
        candidates = self._candidates(charged, allowed, open_, best, least)
        if not len(candidates):
            return None, 0.0, 0.0
        prices = np.array([self._price(row, charged, allowed, best) for row in candidates])
        gains = self._gains(self.response, charged, allowed, candidates, open_, best)
        pick = int(np.argmax(gains - prices))
        return int(candidates[pick]), float(gains[pick]), float(gains[pick] - prices[pick])

    def choice(self, objective: Objective | None = None, max_slowdown: float | None = None) -> Choice:
        """The best setting by what is known now, of any objective and bound; probed or not.

        Raises:
            MeasurementError: nothing was probed yet.
        """
        if not self._measured:
            raise MeasurementError("nothing is known yet; probe the reference first")
        objective, bound = self.asked(objective, max_slowdown)
        response = self.response
        charged, allowed = self._charged(response, objective, bound)
        row = self._chosen(charged, allowed, bound)
        return Choice(
            self.space.settings[row], float(response.time_ratio[row]), float(response.energy_ratio[row]),
            float(response.time_sd[row]), float(response.energy_sd[row]), float(allowed[:, row].mean()),
            any(entry[0] == row for entry in self._measured),
        )

    def belief(self) -> pl.DataFrame:
        """One row a setting: ratios to the reference, deviations, probability of the bound, probes."""
        response = self.response
        _, allowed = self._charged(response, self.objective, self.max_slowdown)
        return self.space.frame().with_columns(
            time_ratio=response.time_ratio,
            time_sd=response.time_sd,
            energy_ratio=response.energy_ratio,
            energy_sd=response.energy_sd,
            p_allowed=allowed.mean(axis=0),
            probes=np.bincount([entry[0] for entry in self._measured], minlength=len(self.space)).astype(
                np.int64
            ),
        )

    # arithmetic

    def _open(self) -> np.ndarray:
        return np.array([setting not in self.unreachable for setting in self.space.settings])

    def _charged(
        self, response: Response, objective: Objective, bound: float | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Each draw's relative cost at every setting, dearer beyond the bound; whether the bound is kept."""
        time_s = np.exp(response.log_times + response.log_time_s[:, None])
        energy_j = np.exp(response.log_energies + response.log_energy_j[:, None])
        cost = np.asarray(objective.cost(time_s, energy_j), dtype=float)
        cost = cost / cost[:, [self.space.reference_row]]
        if bound is None:
            return cost, np.ones(cost.shape, bool)
        allowed = response.log_times <= math.log1p(bound) + 1e-12
        if self.wary:  # nothing will be measured of it later that would mend it
            return np.where(allowed, cost, np.maximum(cost, 1.0)), allowed
        share = bound / np.maximum(np.expm1(response.log_times), 1e-9 + bound)
        return np.where(allowed, cost, np.maximum(share * cost + 1 - share, cost)), allowed

    def _best(self, charged: np.ndarray, allowed: np.ndarray, open_: np.ndarray) -> int:
        mean = np.where(open_ & (allowed.mean(axis=0) >= self.params.choose), charged.mean(axis=0), np.inf)
        return int(np.argmin(mean)) if np.isfinite(mean).any() else self.space.reference_row

    def _chosen(self, charged: np.ndarray, allowed: np.ndarray, bound: float | None) -> int:
        """The best; for the wary among what was probed and keeps the bound by its own probes, too."""
        if not self.wary:
            return self._best(charged, allowed, self._open())
        return self._best(charged, allowed, self._tried() & self._unrefuted(bound))

    def _planned(self, charged: np.ndarray, allowed: np.ndarray) -> int:
        """The best for the wary if what was not probed costs one more probe."""
        later = np.where(self._tried(), 0.0, self.worth)
        return self._best(charged + later, allowed, self._unrefuted(self.max_slowdown))

    def _tried(self) -> np.ndarray:
        """Which settings were probed."""
        return np.isin(np.arange(len(self.space)), [entry[0] for entry in self._measured])

    def _unrefuted(self, bound: float | None) -> np.ndarray:
        """Settings that can be set and were not shown, by their own probes, to break the bound."""
        found = self._open()
        for row in {entry[0] for entry in self._measured}:
            found[row] &= self._keeps(row, bound) > self.params.chosen
        return found

    def _keeps(self, row: int, bound: float | None) -> float:
        """Probability that a probed setting keeps the bound, by its own probes and the reference's alone."""
        here, reference = self.pooled(row), self.pooled(self.space.reference_row)
        if bound is None or row == self.space.reference_row or here is None or reference is None:
            return 1.0
        error = math.hypot(here.time_error, reference.time_error)
        return float(ndtr((math.log1p(bound) - math.log(here.time_s / reference.time_s)) / error))

    def _unsure(self, response: Response, allowed: np.ndarray, best: int) -> Trial | None:
        """The best where it was not probed, and what is believed of it is not sure enough."""
        params, tried = self.params, {entry[0] for entry in self._measured}
        limit = float(np.median(self.errors()[:, 0])) * params.doubted
        if self.learns_later:
            limit = params.unsure_sd
        doubt = float(response.time_sd[best]) > limit and float(allowed[:, best].mean()) < params.settled
        if self.learns_later:
            doubt = self._apart(best) > (params.near if doubt else params.far)
        if best in tried or not (len(tried) < params.least_probes or doubt):
            return None
        return self.trial(best, "the best by what is believed, to see whether it is so")

    def _again(self, best: int) -> Trial | None:
        """The choice or the reference again, whichever was measured less, where its own probes leave the
        bound in doubt.
        """
        here, rows = self.space.reference_row, [entry[0] for entry in self._measured]
        if best == here or len(rows) >= self.params.most:
            return None
        if self._keeps(best, self.max_slowdown) >= self.params.kept:
            return None
        row = best if rows.count(best) <= rows.count(here) else here
        return self.trial(row, "again, as the bound is in doubt")

    def _candidates(
        self, charged: np.ndarray, allowed: np.ndarray, open_: np.ndarray, best: int, least: float
    ) -> np.ndarray:
        """Settings that win in some draw, the choice and the reference, but none surely beyond the bound."""
        params = self.params
        fit_ = open_ & self._in_reach() & (allowed.mean(axis=0) >= least)
        winners = np.argmin(np.where(open_, charged, np.inf), axis=1)
        wins = np.bincount(winners, minlength=charged.shape[1]) * fit_
        rows = [row for row in np.argsort(-wins)[: params.candidates - 4].tolist() if wins[row] > 0]
        mean = np.where(fit_, charged.mean(axis=0), np.inf)
        spread = np.argsort(mean)[: 8 * params.candidates : 8]
        clocks = self.space.mu
        each_memory = [int(np.argmin(np.where(clocks == mu, mean, np.inf))) for mu in np.unique(clocks)]
        rows = [best, self.space.reference_row, *each_memory, *rows, *spread.tolist()]
        return np.array([row for row in dict.fromkeys(rows) if fit_[row]][: params.candidates + 8], dtype=int)

    def _in_reach(self) -> np.ndarray:
        """Settings whose memory clock a running job may be put to where nothing is known of the card.

        Those at which an iteration takes at most `longest` times as long as at the lowest tried, were all
        that does not wait for the host bound by memory, and the next below that. Some cards offer a twentieth
        of the highest clock, and no probe ends before its second iteration.
        """
        clocks = self.space.mu
        if self.prior is not None or not (self.learns_later and self._measured):
            return np.ones(len(clocks), bool)
        lowest = float(clocks[[entry[0] for entry in self._measured]].min())
        waits = self.wait_share or 0.0
        longest = waits + (1 - waits) * lowest / clocks
        following = clocks[clocks < lowest].max(initial=lowest)
        return np.asarray((longest <= self.params.longest) | (clocks >= following))

    def _apart(self, row: int) -> float:
        """Distance of a setting from all probed ones, in ln clock or limit."""
        space, tried = self.space, sorted({entry[0] for entry in self._measured})
        steps = [np.abs(np.log(each[tried] / each[row])) for each in (space.x, space.mu, space.limit)]
        return float(np.max(steps, axis=0).min())

    def _doubtful(self, kept: np.ndarray) -> bool:
        """Whether the last probe was where the bound is as likely broken as kept."""
        return bool(self._measured) and float(kept[self._measured[-1][0]]) < self.params.doubt

    def _gains(
        self, response: Response, charged: np.ndarray, allowed: np.ndarray, candidates: np.ndarray,
        open_: np.ndarray, best: int,
    ) -> np.ndarray:
        """Expected fall of the choice's charged cost through one probe at each candidate."""
        mean = np.where(open_, charged.mean(axis=0), np.inf)
        wins = np.bincount(np.argmin(np.where(open_, charged, np.inf), axis=1), minlength=charged.shape[1])
        short = np.argsort(mean - 1e3 * (wins > 0))[: self.params.shortlist]
        besides = [best, self.space.reference_row, *(candidates if self.wary else ())]
        short = np.unique(np.append(short[np.isfinite(mean[short])], besides))
        # What was not probed itself can be chosen after one more probe.
        later = np.where(self._tried()[short] | (not self.wary), 0.0, self.worth).astype(np.float32)
        costs = charged[:, short].astype(np.float32)
        keeps = allowed[:, short].astype(np.float32)
        error = np.maximum(np.median(self.errors(), axis=0), 1e-3)
        here = int(np.flatnonzero(short == best)[0])
        gains = np.empty(len(candidates))
        for number, row in enumerate(candidates):
            shown = np.stack([(response.log_times[:, row] + response.log_time_s) / error[0],
                              (response.log_energies[:, row] + response.log_energy_j) / error[1]])
            extra = np.where(short == row, 0.0, later)
            now = costs[:, here] + later[here]
            gains[number] = expected_gain(shown, costs, keeps, extra, now, self.params.choose)
            if self.wary and self._apart(int(row)) > self.params.alone:
                mine = response.log_times[:, row], charged[:, row], charged[:, best]
                gains[number] = max(gains[number], gain_alone(*mine, error, self.max_slowdown))
        return gains

    def _price(self, row: int, charged: np.ndarray, allowed: np.ndarray, best: int) -> float:
        """A probe's cost as a share of the job's: trouble, more if it may break the bound, its seconds."""
        params = self.params
        iterations, time_s = self._measured[-1][1:3]
        seconds = params.settle_s + max(time_s, time_s / iterations)
        dear = max(float(charged[:, row].mean() - charged[:, best].mean()), 0.0)
        factor = params.break_wary if self.wary else params.break_factor
        trouble = self.worth * (1 + factor * (1 - float(allowed[:, row].mean())))
        return float(trouble * params.horizon_s / self.horizon_s + dear * seconds / self.horizon_s)
