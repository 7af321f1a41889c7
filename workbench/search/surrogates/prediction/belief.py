"""A Gaussian over ln time and ln energy of all settings at once: what one probe says of all others, and which
probe would say most.

The covariance of a model's errors is kept as a factor: its columns are errors that were made on unseen
workloads, so a draw is a thing that happens. Errors are alike over clocks, so that one probe takes most of
them away (Kalman's update; Rasmussen and Williams, 2006, 2.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .curves import Array

NUGGET = 1e-4  # standard deviation below which no probe is believed


@dataclass(frozen=True)
class GaussianPosterior:
    """Mean (2 * settings,), ln times then ln energies; F (2 * settings, columns) of covariance F F'."""

    mean: Array
    factor: Array

    @property
    def settings(self) -> int:
        return len(self.mean) // 2

    @property
    def sd(self) -> Array:
        return np.asarray(np.sqrt(np.sum(self.factor**2, axis=1)))

    def after(
        self, rows: Sequence[int], log_time: Array, log_energy: Array, errors: Array
    ) -> GaussianPosterior:
        """The posterior after measured ln times and ln energies of some settings.

        Args:
            rows: Setting of each probe.
            log_time, log_energy: ln of time and energy of an iteration relative to the reference, (probes,).
            errors: Standard errors of both, (probes, 2).
        """
        at = np.concatenate([np.asarray(rows, int), np.asarray(rows, int) + self.settings])
        seen = np.concatenate([np.asarray(log_time, float), np.asarray(log_energy, float)])
        noise = np.asarray(errors, float).reshape(-1, 2).T.ravel() ** 2 + NUGGET**2
        reach = self.factor[at]
        # (I + U U')^(-1/2) of the factor's own space keeps the covariance positive whatever the rounding; U
        # has two columns a probe.
        sides, sizes, _ = np.linalg.svd(reach.T / np.sqrt(noise), full_matrices=False)
        shrink = 1 / np.sqrt(1 + sizes**2) - 1
        factor = self.factor + (self.factor @ sides) * shrink @ sides.T
        gain = factor @ (factor[at].T @ ((seen - self.mean[at]) / noise))
        return GaussianPosterior(self.mean + gain, factor)

    def compact(self) -> GaussianPosterior:
        """The posterior with a factor of no more columns than rows: later steps are faster."""
        if self.factor.shape[1] <= self.factor.shape[0]:
            return self
        left, sizes, _ = np.linalg.svd(self.factor, full_matrices=False)
        return GaussianPosterior(self.mean, left * sizes)

    def draws(self, count: int, rng: np.random.Generator) -> Array:
        """Equally likely surfaces, (count, 2 * settings)."""
        return np.asarray(self.mean + rng.standard_normal((count, self.factor.shape[1])) @ self.factor.T)
