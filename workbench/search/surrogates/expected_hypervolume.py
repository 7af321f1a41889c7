"""The next configuration to measure for the whole energy-time frontier: the one with the largest expected
growth.

`FrontierSearch` conditions prior samples of physics (`physics_prior`) on the measurements (`posterior`). The
next configuration is the one whose expected gain of dominated area (expected hypervolume improvement;
Emmerich et al., 2006) is largest, as a share of the area of the frontier in the same sample. It stops when no
configuration is expected to add `worth` of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from ...errors import UsageError
from ..objective import check_measured
from .physics_prior import Array, Knobs, bank
from .posterior import Deviations, PosteriorDraws, Prior, condition

AXES = ("batch_size", "power_limit_w", "sm_clock_mhz", "mem_clock_mhz")


@dataclass(frozen=True)
class Next:
    """A row among the candidates to measure next."""

    row: int


class FrontierSearch:
    """Searches the frontier of a space with as few measurements as possible.

    Args:
        configurations: Candidates, one per row, with any of `AXES` as columns; null leaves a knob to the
            driver.
        min_gain: Stop when the next measurement is expected to add less than this share of the frontier's
            area.
        rng: Source of the prior samples.

    Raises:
        UsageError: No candidates, or an invalid share.
    """

    def __init__(
        self, configurations: pl.DataFrame, *, min_gain: float = 0.0005,
        rng: np.random.Generator | None = None,
    ) -> None:
        if not 0 <= min_gain < 1:
            raise UsageError(
                f"min_gain is {min_gain:g}; it is a share of the frontier's area between 0 and 1, for "
                f"example "
                "0.0005"
            )
        self.configurations, self.min_gain = configurations, min_gain
        self._rng = rng or np.random.default_rng(0)
        knobs = knobs_of(configurations)
        times, powers = bank(knobs)
        self._prior = Prior(times, times + powers, Deviations(knobs.places))
        self._unusual = False
        self._last: float | None = None
        self._measured: dict[int, list[tuple[float, float]]] = {}
        self._barred: dict[int, str] = {}
        self._begun: list[int] = []
        self.first: tuple[int, ...] = ()  # rows to be measured before any other

    @property
    def measured(self) -> list[int]:
        """Rows that were measured, in the order of their first measurement."""
        return list(self._measured)

    def tell(self, row: int, time_s: float, energy_j: float) -> None:
        """Report time (s) and energy (J) of a configuration for a fixed amount of work; repeats are averaged.

        Raises:
            UsageError: No such row.
            MeasurementError: Impossible values; nothing is changed.
        """
        if not 0 <= row < len(self.configurations):
            raise UsageError(f"there is no candidate {row}; there are {len(self.configurations)}, from 0")
        check_measured(time_s, energy_j)
        if not (time_s > 0 and energy_j > 0):
            raise UsageError(
                f"candidate {row} took {time_s:g} s and {energy_j:g} J; both are above 0 where something ran"
            )
        self._measured.setdefault(row, []).append((time_s, energy_j))
        self._begun = [each for each in self._begun if each != row]

    def begin(self, row: int) -> None:
        """Note a configuration under measurement: the next to ask for should add to it."""
        self._begun.append(row)

    def cannot(self, row: int, reason: str) -> None:
        """Exclude a configuration that cannot be measured (out of memory, not settable)."""
        self._barred[row] = reason
        self._begun = [each for each in self._begun if each != row]

    def allow(self, row: int) -> None:
        """A configuration that could not be measured may be tried again."""
        self._barred.pop(row, None)

    @property
    def begun(self) -> tuple[int, ...]:
        """Rows that are being measured."""
        return tuple(self._begun)

    def ask(self) -> Next | None:
        """The next configuration; None where none is worth it."""
        out = {*self._measured, *self._barred, *self._begun}
        left = np.array([i for i in range(len(self.configurations)) if i not in out])
        if not len(left):
            return None
        for row in self.first:
            if row not in out:
                return Next(row)
        tried = [*self._measured, *self._begun]
        found = self._posterior(self._rng)
        self._unusual = found.unusual
        gains = _gains(np.exp(found.log_times), np.exp(found.log_energies), tried, left)
        pick = int(np.argmax(gains))
        self._last = float(gains[pick])
        return Next(int(left[pick])) if not tried or self._last >= self.min_gain else None

    @property
    def note(self) -> str:
        """That the card does not follow the usual curve of GPUs, as a sentence; empty where it does."""
        return "this card does not follow the usual curve: measuring more" if self._unusual else ""

    @property
    def reason(self) -> str:
        """Why `ask` returned None, as a sentence; empty while it returns configurations."""
        if len({*self._measured, *self._barred}) >= len(self.configurations):
            return "every other configuration is measured or impossible"
        if self._last is None or self._last >= self.min_gain or not self._measured:
            return ""
        return (
            f"the frontier is known: another measurement would add {100 * self._last:.2g} % to its area, "
            f"less than {100 * self.min_gain:.2g} %"
        )

    def belief(self) -> pl.DataFrame:
        """Expected time and energy of every candidate with their standard errors (columns as `pareto` reads
        them), and `measured`.

        It does not affect the next configuration.
        """
        found = self._posterior(np.random.default_rng(0))
        time_s, energy_j = np.exp(found.log_times), np.exp(found.log_energies)
        return self.configurations.with_columns(
            time_s=pl.Series(np.exp(found.log_times.mean(axis=0))),
            energy_j=pl.Series(np.exp(found.log_energies.mean(axis=0))),
            time_se_s=pl.Series(time_s.std(axis=0)), energy_se_j=pl.Series(energy_j.std(axis=0)),
            measured=pl.Series([i in self._measured for i in range(len(self.configurations))]),
        )

    def _posterior(self, rng: np.random.Generator) -> PosteriorDraws:
        """Given the measurements; repeats are averaged."""
        rows = np.array(list(self._measured), dtype=int)
        means = np.array([np.mean(each, axis=0) for each in self._measured.values()]).reshape(-1, 2)
        return condition(self._prior, rows, np.log(means), rng)


def knobs_of(configurations: pl.DataFrame) -> Knobs:
    """Candidates relative to the highest of each of `AXES`; values left to the driver count as the highest.

    Raises:
        UsageError: No candidate, none of the columns, or an invalid value.
    """
    there = [axis for axis in AXES if axis in configurations.columns]
    if not there:
        raise UsageError(
            f"the candidates have none of the columns {', '.join(AXES)}; give at least one to choose along"
        )
    if configurations.is_empty():
        raise UsageError("there are no candidate configurations; give at least one")
    relative = {axis: np.ones(len(configurations)) for axis in AXES}
    for axis in there:
        values = configurations[axis].cast(pl.Float64).fill_null(np.nan).to_numpy()
        if (values <= 0).any():
            raise UsageError(
                f"{axis} is {np.nanmin(values):g} in a candidate; it is above 0, or null for the driver's "
                "choice"
            )
        if np.isfinite(values).any():
            relative[axis] = np.nan_to_num(values / np.nanmax(values), nan=1.0)
    return Knobs(
        relative["sm_clock_mhz"], relative["mem_clock_mhz"], relative["power_limit_w"], relative["batch_size"]
    )


def _gains(times: Array, energies: Array, tried: list[int], left: Array) -> Array:
    """Area that each of `left` would add to the dominated area of `seen`, as a share of the area of all, up
    to the worst of each prior sample.

    Args:
        times: Shape (samples, configurations), energies alike.

    Returns:
        Shape (left,): the mean over samples.
    """
    worst_time, worst_energy = times.max(axis=1, keepdims=True), energies.max(axis=1, keepdims=True)
    corners, ceilings = _stairs(times, energies, worst_energy)
    whole = (np.diff(np.hstack([corners, worst_time]), axis=1) * (worst_energy - ceilings)).sum(axis=1)
    # Between two corners of the frontier, the area that is not dominated is below the faster one's energy;
    # before the first, below the worst.
    corners, ceilings = _stairs(times[:, tried], energies[:, tried], worst_energy)
    starts = np.hstack([np.full_like(worst_time, -np.inf), corners])
    ends = np.hstack([corners, worst_time])
    ceilings = np.hstack([worst_energy, ceilings])
    widths = np.clip(ends[:, None, :] - np.maximum(starts[:, None, :], times[:, left, None]), 0.0, None)
    heights = np.clip(ceilings[:, None, :] - energies[:, left, None], 0.0, None)
    added = (widths * heights).sum(axis=2)
    return (added / np.where(whole > 0, whole, np.inf)[:, None]).mean(axis=0)


def _stairs(times: Array, energies: Array, most: Array) -> tuple[Array, Array]:
    """Times in order, and the least energy up to each, at most `most`; one row per sample."""
    order = np.argsort(times, axis=1)
    least = np.minimum.accumulate(np.take_along_axis(energies, order, axis=1), axis=1)
    return np.take_along_axis(times, order, axis=1), np.minimum(least, most)
