"""What other workloads did on the same card, as the beginning of a search: their curves, and mixtures of them.

Curves of one card are alike: they share its voltages, its static power and how far its clocks really go. A library needs no features of the
running job; probes tell soon enough which of its workloads the job is like. It is a prediction too (`frame`: mean and spread over the
workloads), so that a search that wants a single point to begin from has one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl

from ..errors import UsageError
from .settings import SettingSpace

FLOOR = 0.01  # least spread: no two workloads are the same
CONCENTRATION = 0.5  # of the mixtures: mostly one or two workloads
MIXTURES = 1024
SWING = 0.25  # by how much a mixture may be stretched


@dataclass(frozen=True)
class Library:
    """Curves of other workloads over the settings of a space.

    Attributes:
        space: The settings.
        log_times, log_energies: ln of time and energy relative to the reference, (workloads, settings); NaN where not known.
        source: In words.
    """

    space: SettingSpace
    log_times: np.ndarray
    log_energies: np.ndarray
    source: str = "other workloads on this card"

    @cached_property
    def frame(self) -> pl.DataFrame:
        """Knobs, log_time, log_time_sd, log_energy, log_energy_sd, one row a setting; null where no workload was measured."""
        columns = {}
        for name, values in (("log_time", self.log_times), ("log_energy", self.log_energies)):
            known = np.isfinite(values)
            count = np.maximum(known.sum(axis=0), 1)
            mean = np.where(known, values, 0.0).sum(axis=0) / count
            squares = np.where(known, (values - mean) ** 2, 0.0).sum(axis=0)
            spread = np.sqrt(squares / np.maximum(count - 1, 1) * (1 + 1 / count) + FLOOR**2)
            there = known.any(axis=0)
            columns[name] = pl.Series(np.where(there, mean, np.nan)).fill_nan(None)
            columns[f"{name}_sd"] = pl.Series(np.where(there, np.where(count > 1, spread, 0.2), np.nan)).fill_nan(None)
        return self.space.frame().with_columns(**columns)

    @cached_property
    def _mixed(self) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(3)
        times, energies = _filled(self.log_times), _filled(self.log_energies)
        weights = rng.dirichlet(np.full(len(times), CONCENTRATION), size=MIXTURES)
        stretch = 1 + SWING * rng.standard_normal((MIXTURES, 2))
        mixed = stretch[:, :1] * (weights @ times)
        return mixed, stretch[:, 1:] * (weights @ energies) - mixed

    def mixtures(self, times: np.ndarray, powers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Curves between and a little beyond the workloads', ln time and ln power; where none was measured, those given take their place.

        Args:
            times, powers: ln time and ln power, (as many or more, settings).
        """
        known = np.isfinite(self.log_times).any(axis=0) & np.isfinite(self.log_energies).any(axis=0)
        count = min(MIXTURES, len(times))
        mixed = (each[:count] for each in self._mixed)
        if known.all():
            return next(mixed), next(mixed)
        return np.where(known, next(mixed), times[:count]), np.where(known, next(mixed), powers[:count])


def library_of(space: SettingSpace, curves: Sequence[Mapping[str, np.ndarray]], source: str = "other workloads on this card") -> Library:
    """A library of measured curves.

    Args:
        space: The settings.
        curves: For each workload "time_s" and "energy_j" at every setting of the space, NaN where it was not measured there. A workload
            that was not measured at the reference is left out: nothing is relative to it.

    Raises:
        UsageError: no workload is left.
    """
    here = space.reference_row
    rows = []
    for each in curves:
        times, energies = (np.log(np.asarray(each[name], dtype=float)) for name in ("time_s", "energy_j"))
        if len(times) != len(space) or len(energies) != len(space):
            raise UsageError(f"a curve has {len(times)} settings and the space {len(space)}; give one value a setting")
        if np.isfinite(times[here]) and np.isfinite(energies[here]):
            rows.append((times - times[here], energies - energies[here]))
    if not rows:
        raise UsageError(f"no workload was measured at the reference ({space.reference}): this library says nothing here")
    return Library(space, np.array([times for times, _ in rows]), np.array([energies for _, energies in rows]), source)


def _filled(values: np.ndarray) -> np.ndarray:
    """What is not known is the mean of the workloads that know it; 0 where none does."""
    known = np.isfinite(values)
    mean = np.where(known, values, 0.0).sum(axis=0) / np.maximum(known.sum(axis=0), 1)
    return np.where(known, values, mean)
