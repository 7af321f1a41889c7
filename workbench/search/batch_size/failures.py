"""How often runs of a batch size fail, and after how many epochs one is better given up.

A run fails where the target is not reached within the epochs that are allowed: training went astray, or this
batch size needs more epochs. Another run may well get there, so a failure has a rate and a price: the epochs
that were lost, and the run that follows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from .history import Evidence


@dataclass(frozen=True, slots=True)
class FailureParams:
    """Constants of `failures`; set by hand on jobs of `benchmarks.fixtures.recurring_jobs`."""

    rate: float = 0.02  # share of runs that fail for no visible reason, before any run
    pool_runs: float = 5.0  # runs' worth of that belief
    arm_runs: float = 3.0  # runs' worth of what is known of all batch sizes, for one of them
    spread: float = 0.1  # scatter of log epochs, before any run
    spread_runs: float = 3.0  # runs' worth of that
    far_sds: float = 2.5  # beyond the mean of log epochs, where a run that goes on has failed
    far_least: float = 0.4  # in log epochs: epochs are whole, and five are not far from four
    odd_share: float = 0.04  # runs that are odd ones (`odd_sd` in log epochs), once many are known
    odd_runs: float = 0.3  # more of them while few are
    odd_sd: float = 0.5
    steps: int = 40  # moments that are weighed


PARAMS = FailureParams()


@dataclass(frozen=True, slots=True)
class Failures:
    """Per batch size, all arrays of shape (arms,).

    Attributes:
        failed, reached: Parameters of the Beta distribution of the failure rate.
        lost: Runs that failed where others reached the target.
        stop_epochs: After so many epochs a run is better given up and another one begun; the epochs that are
            allowed where nothing has reached the target.
        epochs: Mean epochs to the target, those of runs that fail on the way included; NaN where none has
            reached it.
    """

    failed: np.ndarray
    reached: np.ndarray
    lost: np.ndarray
    stop_epochs: np.ndarray
    epochs: np.ndarray


def failures(evidence: Evidence, params: FailureParams = PARAMS) -> Failures:
    """What the runs so far say of failures."""
    count, longest = np.asarray(evidence.count), float(evidence.space.max_epochs)
    tried = count > 0
    mean = evidence.sum_log / np.maximum(count, 1)
    squares = np.maximum(evidence.sum_log2 - count * mean**2, 0.0)
    freedom = np.maximum(count - 1, 0)
    pooled = (squares.sum() + params.spread_runs * params.spread**2) / (freedom.sum() + params.spread_runs)
    sd = np.sqrt((squares + params.spread_runs * pooled) / (freedom + params.spread_runs))
    lost = np.zeros(len(count))
    for (arm, epochs), times in evidence.bounds.items():
        far = math.log(epochs) > mean[arm] + max(params.far_sds * sd[arm], params.far_least)
        lost[arm] += times * bool(tried[arm] and (far or epochs >= longest))
    runs = (count + lost)[tried].sum()
    rate = (lost.sum() + params.pool_runs * params.rate) / (runs + params.pool_runs)
    failed = params.arm_runs * rate + lost
    reached = params.arm_runs * (1 - rate) + count
    stop, mean_epochs = np.full(len(count), longest), np.full(len(count), np.nan)
    if tried.any():
        stop[tried], mean_epochs[tried] = _best_stop(
            mean[tried], sd[tried], (failed / (failed + reached))[tried], count[tried], longest, params
        )
    return Failures(failed, reached, lost, stop, mean_epochs)


def _best_stop(
    mean: np.ndarray, sd: np.ndarray, rate: np.ndarray, count: np.ndarray, longest: float,
    params: FailureParams,
) -> tuple[np.ndarray, np.ndarray]:
    """The epochs after which to give a run up, and the mean epochs to the target if one always does.

    Epochs spent until s over the chance to be there by then: the least of that over s.
    """
    low = np.minimum(mean - 2 * sd, math.log(longest))
    share = np.linspace(0.0, 1.0, params.steps)[:, None]
    at = low + share * (math.log(longest) - low)
    odd = params.odd_share + params.odd_runs / (count + 2)
    there = (1 - odd) * ndtr((at - mean) / sd) + odd * ndtr((at - mean) / params.odd_sd)
    there = (1 - rate) * there
    epochs = np.exp(at)
    going = 1 - there
    spent = np.cumsum(np.diff(epochs, axis=0) * 0.5 * (going[1:] + going[:-1]), axis=0)
    spent = np.concatenate([epochs[:1], epochs[:1] + spent])
    each = np.where(there > 0.3, spent / np.maximum(there, 0.3), np.inf)
    # At the end of all epochs no run is given up: there it has failed.
    each[-1] = spent[-1] / np.maximum(there[-1], 1e-3)
    best = np.argmin(each, axis=0)
    arms = np.arange(len(mean))
    return np.ceil(epochs[best, arms] - 1e-9), each[best, arms]
