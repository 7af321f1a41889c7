"""Response of an iteration's time and energy to clocks and power limits: physics before any trial, corrected
by every trial.

The prior samples are physics (`physics_prior.bank`). The running job's trials and an external prediction are
runs with a unit each. `posterior` has the arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from ..space import SettingSpace
from .physics_prior import Knobs, bank
from .posterior import Deviations, MeasuredRun, Prior, condition, measured

SOFT_PROBES = 10  # settings at which a prediction counts as measured; any number from 5 to 20 does the same
SHARED = 0.9  # of the variance of a prediction's errors, which is common to settings near each other


@dataclass(frozen=True)
class Response:
    """Posterior of time and energy at every setting of a space, as equally likely samples.

    Attributes:
        log_times, log_energies: ln of time and energy of an iteration relative to the reference, (samples,
            settings).
        log_time_s, log_energy_j: ln of time and energy of an iteration at the reference, (samples,).
        unusual: Whether the trials deviate from the curves of physics.
    """

    space: SettingSpace
    log_times: np.ndarray
    log_energies: np.ndarray
    log_time_s: np.ndarray
    log_energy_j: np.ndarray
    unusual: bool

    @property
    def time_ratio(self) -> np.ndarray:
        """Best estimate per setting, relative to the reference (median in log)."""
        return np.exp(self.log_times.mean(axis=0))

    @property
    def energy_ratio(self) -> np.ndarray:
        return np.exp(self.log_energies.mean(axis=0))

    @property
    def time_sd(self) -> np.ndarray:
        """Relative standard deviation per setting."""
        return self.log_times.std(axis=0)

    @property
    def energy_sd(self) -> np.ndarray:
        return self.log_energies.std(axis=0)


def fit(
    space: SettingSpace, rows: Any, time_s: Any, energy_j: Any, errors: Any, *, prior: Any = None,
    power_share: float | None = None, wait_share: float | None = None,
) -> Response:
    """Estimates of every setting from trials (and a prediction).

    Args:
        space: The settings.
        rows: Row of the space of each trial; repeated trials pool. May be empty.
        time_s, energy_j: Time and energy of an iteration in each trial.
        errors: Relative standard errors, (trials, 2): of time and of energy.
        prior: A prediction: `frame` with log_time, log_time_sd, log_energy and log_energy_sd per setting,
            relative to the reference.
        power_share: Mean power at the reference over the power limit active there; None if unknown.
        wait_share: Share of an iteration at the reference in which the GPU waits (1 - utilisation), if known.
    """
    logs = np.log(np.column_stack([np.asarray(each, float).reshape(-1) for each in (time_s, energy_j)]))
    errors = np.asarray(errors, float).reshape(len(logs), 2)
    waits = None if wait_share is None else round(20 * wait_share) / 20
    share = None if power_share is None else round(min(max(power_share, 0.02), 1.0), 2)
    times, powers = _physics(space, share, waits)
    # Measurements in units of their own mean: the prior samples are relative to the reference.
    middle = logs.mean(axis=0) if len(logs) else np.zeros(2)
    runs = [measured(np.asarray(rows, dtype=int).reshape(-1), logs - middle, errors)]
    if prior is not None:
        runs += _predicted(space, prior)
    # The same random numbers for every call: comparisons depend on measurements only.
    found = condition(Prior(times, times + powers, _deviations(space)), runs, np.random.default_rng(0))
    here = space.reference_row
    log_time_s, log_energy_j = found.log_times[:, here], found.log_energies[:, here]
    return Response(
        space, found.log_times - log_time_s[:, None], found.log_energies - log_energy_j[:, None],
        log_time_s + middle[0], log_energy_j + middle[1], found.unusual,
    )


def prepare(space: SettingSpace) -> None:
    """Compute the common part of every fit over a space."""
    _deviations(space)


def _knobs(space: SettingSpace) -> Knobs:
    return Knobs(space.x, space.mu, space.limit, np.ones(len(space)))


@lru_cache(maxsize=8)
def _deviations(space: SettingSpace) -> Deviations:
    return Deviations(_knobs(space).places)


@lru_cache(maxsize=8)
def _physics(space: SettingSpace, share: float | None, waits: float | None) -> tuple[np.ndarray, np.ndarray]:
    """ln time and ln mean power over the reference's, (samples, settings)."""
    times, powers = (each - each[:, [space.reference_row]] for each in bank(_knobs(space), share, waits))
    return times, powers


def _predicted(space: SettingSpace, prior: Any) -> Iterator[MeasuredRun]:
    """A prediction as a run with measurements at the reference and at uncertain settings all over the space.
    """
    columns = (prior.frame[name] for name in ("log_time", "log_energy", "log_time_sd", "log_energy_sd"))
    table = np.column_stack([each.to_numpy().astype(float) for each in columns])
    good = np.isfinite(table).all(axis=1) & (table[:, 2:] > 0).all(axis=1)
    good[space.reference_row] = False
    if good.any():
        left = np.flatnonzero(good)
        rows = left[np.unique(np.linspace(0, len(left) - 1, SOFT_PROBES).round().astype(int))]
        alike = SHARED * _deviations(space).smooth[np.ix_(rows, rows)] + (1 - SHARED) * np.eye(len(rows))
        covariances = [
            np.pad(alike * np.outer(sds, sds), ((1, 0), (1, 0))) + 1e-8 * np.eye(len(rows) + 1)
            for sds in table[rows, 2:].T
        ]
        logs = np.vstack([np.zeros(2), table[rows, :2]])
        yield MeasuredRun(np.append(space.reference_row, rows), logs, covariances)
