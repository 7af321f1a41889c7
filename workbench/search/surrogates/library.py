"""Earlier measurements of a card, for a fit: curves of other jobs, mixed, and curves of the same job.

Curves of one card are similar: they share its voltages, its static power and the clocks it really reaches. A
library needs no features of the running job; trials soon show the most similar of its jobs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ..earlier import PlacedCurve

CONCENTRATION = 0.5  # of the mixtures: mostly one or two jobs
MIXTURES = 64  # 64, 128 and 256 give the same figures


@dataclass(frozen=True)
class Mixtures:
    """Curves of other jobs over the settings of a space, and curves between them.

    Attributes:
        log_times, log_energies: ln of time and energy relative to the reference, (jobs, settings); NaN where
            not known.
    """

    log_times: np.ndarray
    log_energies: np.ndarray

    def mixtures(self, times: np.ndarray, powers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Curves between the jobs', ln time and ln power; where none was measured, those given instead.

        Args:
            times, powers: ln time and ln power, (as many or more, settings).
        """
        known = np.isfinite(self.log_times).any(axis=0) & np.isfinite(self.log_energies).any(axis=0)
        alphas = np.full(len(self.log_times), CONCENTRATION)
        weights = np.random.default_rng(3).dirichlet(alphas, size=MIXTURES)
        mixed = weights @ _filled(self.log_times)
        mixed_powers = weights @ _filled(self.log_energies) - mixed
        return np.where(known, mixed, times[:MIXTURES]), np.where(known, mixed_powers, powers[:MIXTURES])


@dataclass(frozen=True)
class Library:
    """Earlier measurements at the settings of a space.

    Attributes:
        others: Other jobs of this card; None without any.
        same: Curves of this job that trials have confirmed.
    """

    others: Mixtures | None = None
    same: Sequence[PlacedCurve] = field(default=())


def _filled(values: np.ndarray) -> np.ndarray:
    """What is not known is the mean of the jobs that know it; 0 where none does."""
    known = np.isfinite(values)
    mean = np.where(known, values, 0.0).sum(axis=0) / np.maximum(known.sum(axis=0), 1)
    return np.where(known, values, mean)
