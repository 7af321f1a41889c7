"""How often runs of a batch size fail, and after how many epochs one is better given up.

A run fails where the target is not reached within the epochs that are allowed: training went astray, or this
batch size needs more epochs. Another run may well get there, so a failure has a rate and a price: the epochs
that were lost, and the run that follows. A run that was given up may have failed, or would have been a late
one: how likely each is, is weighed (expectation maximisation; Dempster, Laird and Rubin, 1977), or giving up
early would hide for good what it costs.
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
    late_share: float = 0.02  # runs that are late by up to `late_sd` in log epochs, once many are known
    late_runs: float = 0.15  # more of them while few are
    late_sd: float = 0.5
    rounds: int = 5  # of weighing what runs that were given up would have done
    steps: int = 40  # moments that are weighed


PARAMS = FailureParams()


@dataclass(frozen=True, slots=True)
class Failures:
    """Per batch size, all arrays of shape (arms,).

    Attributes:
        failed, reached: Parameters of the Beta distribution of the failure rate.
        lost: Runs that are expected to have failed where others reached the target.
        late: Share of the other runs that are late, as far as runs have shown: that few runs show little is
            a reason for patience, and none to think a batch size dearer than its like.
        blame: Chance that what ended at (batch size, epochs) had failed; those that are not in it had not.
        stop_epochs: After so many epochs a run is better given up and another one begun; the epochs that are
            allowed where nothing has reached the target.
        epochs: Mean epochs to the target, those of runs that fail on the way included; NaN where none has
            reached it.
    """

    failed: np.ndarray
    reached: np.ndarray
    lost: np.ndarray
    late: np.ndarray
    blame: dict[tuple[int, float], float]
    stop_epochs: np.ndarray
    epochs: np.ndarray

    def there(self, log_epochs: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Chance that a run which does not fail gets to the target before it is given up.

        Args:
            log_epochs: Typical ones of each batch size, a row per draw.
            noise: Scatter of single runs, shape (draws, 1).
        """
        short = np.log(self.stop_epochs) - log_epochs
        return _in_time(short, np.maximum(noise, 0.02), self.late, PARAMS.late_sd)


def failures(evidence: Evidence, params: FailureParams = PARAMS) -> Failures:
    """What the runs so far say of failures."""
    count, longest = np.asarray(evidence.count), float(evidence.space.max_epochs)
    tried = count > 0
    mean = evidence.sum_log / np.maximum(count, 1)
    squares = np.maximum(evidence.sum_log2 - count * mean**2, 0.0)
    freedom = np.maximum(count - 1, 0)
    pooled = (squares.sum() + params.spread_runs * params.spread**2) / (freedom.sum() + params.spread_runs)
    sd = np.sqrt((squares + params.spread_runs * pooled) / (freedom + params.spread_runs))
    # The default is assumed to reach the target: where it did not within all epochs, it has failed.
    ended = {
        (arm, epochs): times for (arm, epochs), times in evidence.bounds.items()
        if (tried[arm] and math.log(epochs) > mean[arm]) or (arm == evidence.default and epochs >= longest)
    }
    arms = np.array([arm for arm, _ in ended], dtype=int)
    epochs, times = np.array([epochs for _, epochs in ended]), np.array([*ended.values()], dtype=float)

    def by_arm(values: np.ndarray) -> np.ndarray:
        return np.asarray(np.bincount(arms, values, len(count)), dtype=float)

    # At first all of them have failed: of a rate of none there is no way up.
    lost, late_runs = by_arm(times), np.zeros(len(count))
    many = count + lost
    few_late = params.late_runs / (count + 2)
    for _ in range(params.rounds if len(arms) else 1):
        rate = (lost.sum() + params.pool_runs * params.rate) / (many.sum() + params.pool_runs)
        failed = params.arm_runs * rate + lost
        reached = params.arm_runs * (1 - rate) + many - lost
        observed_late = np.minimum(params.late_share + late_runs / np.maximum(many - lost, 1), 0.9)
        late = np.minimum(few_late + observed_late, 0.9)
        fails = (failed / (failed + reached))[arms]
        short = np.log(epochs) - mean[arms]
        usual, slow = 1 - ndtr(short / sd[arms]), 2 * ndtr(-short / params.late_sd)
        goes_on = (1 - fails) * (late[arms] * slow + (1 - late[arms]) * usual)
        blame = np.where(epochs >= longest, 1.0, fails / (fails + goes_on))
        lost = by_arm(times * blame)
        slows = late[arms] * slow / np.maximum(late[arms] * slow + (1 - late[arms]) * usual, 1e-12)
        late_runs = by_arm(times * (1 - blame) * slows)
    stop, mean_epochs = np.full(len(count), longest), np.full(len(count), np.nan)
    if tried.any():
        rates = (failed / (failed + reached))[tried]
        stop[tried], mean_epochs[tried] = _best_stop(
            mean[tried], sd[tried], rates, late[tried], longest, params
        )
    by_run = dict(zip(ended, blame.tolist(), strict=True))
    return Failures(failed, reached, lost, observed_late, by_run, stop, mean_epochs)


def _in_time(short: np.ndarray, sd: np.ndarray, late: np.ndarray, late_sd: float) -> np.ndarray:
    """Chance that a run is there where the epochs are `short` above its typical ones, in logarithms."""
    slow = np.maximum(2 * ndtr(short / late_sd) - 1, 0)
    return np.asarray((1 - late) * ndtr(short / sd) + late * slow)


def _best_stop(
    mean: np.ndarray, sd: np.ndarray, rate: np.ndarray, late: np.ndarray, longest: float,
    params: FailureParams,
) -> tuple[np.ndarray, np.ndarray]:
    """The epochs after which to give a run up, and the mean epochs to the target if one always does.

    Epochs spent until s over the chance to be there by then: the least of that over s.
    """
    low = np.minimum(mean - 2 * sd, math.log(longest))
    share = np.linspace(0.0, 1.0, params.steps)[:, None]
    at = low + share * (math.log(longest) - low)
    there = (1 - rate) * _in_time(at - mean, sd, late, params.late_sd)
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
