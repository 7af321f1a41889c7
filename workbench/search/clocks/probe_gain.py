"""What a probe is worth before it is made: how far the cost of the choice is expected to fall (knowledge
gradient: Frazier, Powell and Dayanik, 2009), with the draws of a belief as possible truths.
"""

from __future__ import annotations

import math

import numpy as np


def expected_gain(
    shown: np.ndarray, costs: np.ndarray, keeps: np.ndarray, extra: np.ndarray, now: np.ndarray,
    choose: float,
) -> float:
    """Expected fall of the cost of the choice through one probe: every draw plays the truth in turn, the
    others are weighed by what the probe would then show, and the choice that follows is charged against that
    truth.

    Args:
        shown: ln time and ln energy of the probed setting in each draw, in standard errors of a probe,
            (2, draws).
        costs, keeps: Of what may be chosen, its cost and whether it keeps the bound (0, 1), (draws,
            settings).
        extra: What choosing each costs besides, (settings,).
        now: The cost of what would be chosen without the probe, (draws,).
        choose: Least probability of keeping the bound, to be chosen.
    """
    draws = len(costs)
    noise = np.random.default_rng(1).standard_normal((2, draws)).astype(np.float32)
    apart = np.zeros((draws, draws), np.float32)
    for values, slips in zip(shown, noise, strict=True):
        values = (values - values.mean()).astype(np.float32)
        apart += ((values + slips)[:, None] - values[None, :]) ** 2
    np.fill_diagonal(apart, np.inf)  # the truth is not among what is weighed
    weights = np.exp(-0.5 * (apart - apart.min(axis=1, keepdims=True)))
    weights /= weights.sum(axis=1, keepdims=True)
    after = weights @ costs + extra
    after[weights @ keeps < choose] = np.inf
    picks = np.argmin(after, axis=1)
    return float(np.mean(now - costs[np.arange(draws), picks] - extra[picks]))


def gain_alone(
    log_times: np.ndarray, costs: np.ndarray, now: np.ndarray, error: np.ndarray, bound: float | None
) -> float:
    """The same where a probe tells of its own setting only, as if draws were Gaussian.

    Few draws among many are like what a probe shows where all is open; this needs no such.

    Args:
        log_times, costs: ln time over the reference's and cost of the probed setting, (draws,).
        now: As `expected_gain` takes it.
        error: Standard errors of a probe's ln time and ln energy.
        bound: Allowed share of additional time; None for none.
    """
    noise = np.random.default_rng(2).standard_normal((2, len(costs)))
    found = []
    for which, values in enumerate((log_times, np.log(costs / now))):
        trust = float(np.var(values) / (np.var(values) + error[which] ** 2))
        after = values.mean() + trust * (values + error[which] * noise[which] - values.mean())
        found.append((after, math.sqrt(trust) * float(error[which])))
    (times, sd), (ratios, _) = found
    taken = ratios < 0 if bound is None else (ratios < 0) & (times + sd <= math.log1p(bound))
    return float(np.mean((now - costs) * taken))
