"""How often runs of a batch size fail, and after how many epochs one is better given up.

A run fails where the target is not reached within the epochs that are allowed: training diverged, or this
batch size needs more epochs. Another run may well reach it, so a failure has a rate and a price: the epochs
that were lost, and the run that follows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from .history import Evidence

# Share of runs that fail for no visible reason before any run, and how many runs that belief counts for: one
# failure in the first five runs makes 18 %. Does not matter within a factor of two.
RATE, RATE_RUNS = 0.02, 5.0
# Scatter of log epochs before any run, and how many runs that counts for. Measured: 0.1 gives up honest late
# runs (docs/validation/recurring.md).
SPREAD, SPREAD_RUNS = 0.3, 3.0
# A run may take so many times its usual epochs: who gives up sooner never learns that late runs get there.
PATIENCE = 1.5
STEPS = 40  # moments to stop at that are compared: the cost is flat around the best one


@dataclass(frozen=True, slots=True)
class Failures:
    """Per batch size, all arrays of shape (arms,).

    Attributes:
        failed, reached: Parameters of the Beta distribution of the failure rate.
        bounds: (batch size, epochs) that runs were stopped at without being failures, and how often: there
            the batch size may need more epochs.
        stop_epochs: After so many epochs a run is better given up and another one begun; the epochs that are
            allowed where nothing has reached the target.
    """

    failed: np.ndarray
    reached: np.ndarray
    bounds: dict[tuple[int, float], int]
    stop_epochs: np.ndarray


def failures(evidence: Evidence) -> Failures:
    """What the runs so far show of failures."""
    count, longest = np.asarray(evidence.count), float(evidence.space.max_epochs)
    tried = count > 0
    mean = evidence.sum_log / np.maximum(count, 1)
    # A run that took longer than others of its batch size took, and was given up, has failed. So has the
    # default after all epochs: it is assumed to reach the target.
    lost, bounds = np.zeros(len(count)), {}
    for (arm, epochs), times in evidence.bounds.items():
        if (tried[arm] and math.log(epochs) > mean[arm]) or (arm == evidence.default and epochs >= longest):
            lost[arm] += times
        else:
            bounds[arm, epochs] = times
    # The rate of all batch sizes is the prior of each one's.
    rate = (lost.sum() + RATE_RUNS * RATE) / ((count + lost).sum() + RATE_RUNS)
    failed, reached = RATE_RUNS * rate + lost, RATE_RUNS * (1 - rate) + count
    # The same for the variance of log epochs.
    squares = np.maximum(evidence.sum_log2 - count * mean**2, 0.0)
    freedom = np.maximum(count - 1, 0)
    pooled = (squares.sum() + SPREAD_RUNS * SPREAD**2) / (freedom.sum() + SPREAD_RUNS)
    sd = np.sqrt((squares + SPREAD_RUNS * pooled) / (freedom + SPREAD_RUNS))
    stop = np.full(len(count), longest)
    if tried.any():
        fails = (failed / (failed + reached))[tried]
        patient = np.minimum(np.ceil(PATIENCE * np.exp(mean[tried])), longest)
        stop[tried] = np.maximum(_best_stop(mean[tried], sd[tried], fails, longest), patient)
    return Failures(failed, reached, bounds, stop)


def _best_stop(mean: np.ndarray, sd: np.ndarray, fails: np.ndarray, longest: float) -> np.ndarray:
    """The epochs s after which to give a run up, where another one follows until one reaches the target.

    One run takes E[min(epochs, s)] epochs and reaches the target with probability P(s). On average 1 / P(s)
    runs are needed, so E[min(epochs, s)] / P(s) is smallest at the best s.
    """
    low = np.minimum(mean - 2 * sd, math.log(longest))
    at = low + np.linspace(0.0, 1.0, STEPS)[:, None] * (math.log(longest) - low)
    reached = (1 - fails) * ndtr((at - mean) / sd)
    epochs, going = np.exp(at), 1 - reached
    # E[min(epochs, s)] is the integral of the share of runs that still go on (trapezoidal rule).
    spent = epochs[0] + np.cumsum(np.diff(epochs, axis=0) * 0.5 * (going[1:] + going[:-1]), axis=0)
    each = np.concatenate([epochs[:1], spent]) / np.maximum(reached, 1e-3)
    return np.asarray(np.ceil(epochs[np.argmin(each, axis=0), np.arange(len(mean))] - 1e-9))
