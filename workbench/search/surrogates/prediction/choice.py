"""The setting of least expected energy within a slowdown, and the probe that improves this choice most."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.stats import norm

from .belief import NUGGET, GaussianPosterior
from .curves import Array

SURE = 0.5  # a setting is chosen only if it keeps the bound with this probability
SURE_PROBED = 0.65  # the same once something was probed: what is known to be good is there to fall back on
FANTASIES = 96
TRIED = 24  # candidates of a probe, at most


def chosen(belief: GaussianPosterior, reference: int, log_bound: float, *, sure: float = SURE) -> int:
    """The setting with the least expected energy; where the bound would break, the reference's energy is
    spent.

    Args:
        reference: Row of the setting that all is relative to; it is always allowed.
        log_bound: ln(1 + slowdown allowed).
        sure: Probability of keeping the bound that a choice needs.
    """
    return int(_chosen(belief.mean[None, :], belief.factor, reference, log_bound, sure)[0])


def _chosen(means: Array, factor: Array, reference: int, log_bound: float, sure: float) -> Array:
    """For each row of means (cases, 2 * settings), all with the same covariance."""
    n = means.shape[1] // 2
    time, energy = means[:, :n], means[:, n:]
    sd = np.sqrt(np.sum(factor[:n] ** 2, axis=1) + NUGGET**2)
    at = (log_bound - time) / sd
    kept = norm.cdf(at)
    # Energy where the bound is kept is not energy on average: both are wrong together (mean of a Gaussian cut
    # off at one side).
    slope = np.sum(factor[:n] * factor[n:], axis=1) / sd
    inside = energy - slope * np.exp(norm.logpdf(at) - norm.logcdf(at))
    spent = kept * np.exp(inside) + (1 - kept)
    spent = np.where(kept >= sure, spent, np.inf)
    spent[:, reference] = 1.0
    return np.asarray(np.argmin(spent, axis=1))


def next_probe(
    belief: GaussianPosterior, reference: int, log_bound: float, *, rng: np.random.Generator,
    error: float = 0.0, sure: float = SURE_PROBED, leave_out: Sequence[int] = (),
) -> int:
    """The setting whose probe is expected to improve the choice most (knowledge gradient; Frazier et al.,
    2009).

    Each of some draws is taken for the truth in turn: the probe is imagined, the belief brought up to date, a
    choice made and its cost taken from that truth.
    """
    n = belief.settings
    truths = belief.draws(FANTASIES, rng)
    paid = np.where(truths[:, :n] <= log_bound, np.exp(truths[:, n:]), 1.0)
    paid[:, reference] = 1.0
    sd = belief.sd
    promising = np.where(belief.mean[:n] - sd[:n] <= log_bound, belief.mean[n:] - sd[n:], np.inf)
    promising[[reference, *leave_out]] = np.inf
    candidates = [int(row) for row in np.argsort(promising)[:TRIED] if np.isfinite(promising[row])]
    # nothing is likely to be allowed: then what is least unlikely, which is near the reference and soon
    # measured
    if not candidates:
        rest = [row for row in range(n) if row != reference and row not in leave_out]
        if not rest:
            return reference
        return min(rest, key=lambda row: float((belief.mean[row] - log_bound) / (sd[row] + NUGGET)))
    costs = []
    for row in candidates:
        at = [row, row + n]
        told = belief.after([row], belief.mean[[row]], belief.mean[[row + n]], np.full((1, 2), error))
        # Every imagined probe moves the mean along the same two directions.
        gain = (told.factor @ told.factor[at].T) / (error**2 + NUGGET**2)
        after = belief.mean + (truths[:, at] - belief.mean[at]) @ gain.T
        picks = _chosen(after, told.factor, reference, log_bound, sure)
        costs.append(float(paid[np.arange(FANTASIES), picks].mean()))
    return candidates[int(np.argmin(costs))]
