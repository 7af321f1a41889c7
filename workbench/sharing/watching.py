"""The stages of a comparison as a recorder and the jobs' marks show them, cut into blocks. Reads; changes
nothing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import MeasurementError
from ..measurement.meter import Meter
from ..measurement.recorder import Recorder, as_trace
from .children import JobProcess
from .comparing import FEWEST, Stage, counts, disturbed, edges
from .period_separation import PeriodEstimate, alone_period, beside, require_distinct

Array = np.ndarray
UPDATES = 5.0  # of the energy sensor that a block spans at least
LEAST_S = 0.5


@dataclass(frozen=True)
class Interval:
    """Who ran when, on the device's clock."""

    members: tuple[int, ...]
    from_s: float
    to_s: float


class Watcher:
    """Observations of jobs on one GPU, by a meter and marks.

    Args:
        meter: Of that GPU alone, with a recorder.
        children: The jobs.
    """

    def __init__(self, meter: Meter, children: Sequence[JobProcess]) -> None:
        self.meter, self.children = meter, children
        assert meter.recorder is not None
        self.recorder: Recorder = meter.recorder
        self.uuid = meter.devices[0].uuid
        self.clock = meter.clock
        self.alone_periods: dict[int, PeriodEstimate] = {}  # of jobs without marks

    # the machine's monotonic clock, on which marks are reported, and the device's

    def at(self, monotonic_s: Any) -> Any:
        """Moments of the monotonic clock on the device's."""
        if getattr(self.clock, "stepped", False):  # whose jobs know no other clock
            return np.asarray(monotonic_s)
        scale = float(getattr(self.clock, "scale", 1.0))
        return self.clock() + (np.asarray(monotonic_s) - time.monotonic()) * scale

    def steps_s(self, job: int, latest: int | None = None) -> Array:
        """Ends of iterations of a job on the device's clock."""
        found: Array = self.at(self.children[job].steps_s(latest))
        return found

    def marked(self, job: int) -> bool:
        return self.children[job].count() > 1

    def step_s(self, job: int) -> float | None:
        """The usual time of an iteration lately, on the device's clock."""
        steps = self.steps_s(job, 20)
        return float(np.median(np.diff(steps))) if len(steps) > 2 else None

    def least_s(self) -> float:
        update_s = self.recorder.update_s(self.uuid) or 0.1
        return max(LEAST_S, UPDATES * update_s)

    def trace(self, from_s: float, to_s: float) -> Any:
        return self.recorder.trace(self.uuid, from_s, to_s)

    def mean_utilisation(self, from_s: float, to_s: float) -> float | None:
        rows = self.recorder.rows(self.uuid, from_s, to_s)
        busy = rows["utilisation"][np.isfinite(rows["utilisation"])]
        return float(np.mean(busy)) if len(busy) else None

    def mean_power_w(self, from_s: float, to_s: float) -> float | None:
        energy = self.meter.energy(from_s, to_s)
        return None if energy is None else energy.energy_j / (to_s - from_s)

    def settled(self) -> None:
        """Wait until the sensors cover the stage that has just ended."""
        if getattr(self.clock, "stepped", False):
            return
        scale = float(getattr(self.clock, "scale", 1.0))
        time.sleep(min(0.5, 3.0 * (self.recorder.update_s(self.uuid) or 0.1) / scale + 0.1))

    # stages

    def stage(self, interval: Interval) -> Stage:
        """An interval in blocks.

        Raises:
            MeasurementError: iterations or energy are not known, and why.
        """
        marked = [job for job in interval.members if self.marked(job)]
        steps = {job: self.steps_s(job) for job in marked}
        unmarked = [job for job in interval.members if job not in marked]
        borders = edges([steps[job] for job in marked], interval.from_s, interval.to_s, self.least_s())
        if not len(borders):
            raise MeasurementError(
                f"{self._names(interval)}: too few iterations in {interval.to_s - interval.from_s:.3g} s; "
                "measure for longer (stage_s=...)"
            )
        use = ~disturbed(
            borders, [tuple(self.at(list(span))) for job in interval.members for span in self._breaks(job)]
        )
        energy_j, energy_error = self._energies(borders)
        use &= np.isfinite(energy_j)
        if not use.any():
            why = self.recorder.error(self.uuid)
            why = why or "its sensors were not followed, or an evaluation or checkpoint fills it"
            raise MeasurementError(f"{self._names(interval)}: the energy is not known ({why})")
        n, seconds = len(self.children), np.diff(borders)
        count, error = np.zeros((len(borders) - 1, n)), [0.0] * n
        for job in marked:
            count[:, job] = counts(steps[job], borders)
        made = {job: count[:, job].sum() for job in marked}
        found = {job: float(seconds.sum() / many) for job, many in made.items() if many > 0}
        for job in unmarked:
            alone = self._alone(job, interval)
            require_distinct(
                self.children[job].label, alone.seconds,
                [(self.children[other].label, each) for other, each in found.items()],
            )
            count[:, job], error[job] = seconds / alone.seconds, alone.relative_error
            found[job] = alone.seconds
        return Stage(interval.members, seconds[use], energy_j[use], count[use], energy_error, tuple(error))

    def comparable(self, interval: Interval) -> bool:
        """Whether an interval, by what the sensors have seen of it, has blocks enough for a comparison."""
        try:
            return len(self.stage(interval).seconds) >= FEWEST
        except MeasurementError:
            return False

    def _breaks(self, job: int) -> list[tuple[float, float]]:
        """Phases of a job that are no iterations; an epoch that is marked around its iterations is nothing
        else.
        """
        steps = self.children[job].steps_s()
        return [
            (start_s, end_s) for kind, start_s, end_s in self.children[job].phases_s()
            if kind != "epoch" or not np.any((steps > start_s) & (steps < end_s))
        ]

    def _energies(self, borders: Array) -> tuple[Array, float]:
        """Energy between borders, NaN where it is not known, and the relative half width of the error of
        all of it.
        """
        timeline = self.meter.timeline(0, float(borders[0]), float(borders[-1]))
        parts = timeline.parts(borders)
        whole = timeline.between(float(borders[0]), float(borders[-1]))
        energy_j = np.where(parts.known, parts.energy_j, math.nan)
        if whole is None or not whole.energy_j > 0:
            used_j, error_j = np.nansum(energy_j), np.sum(parts.uncertainty_j[parts.known])
            return energy_j, float(error_j / used_j) if used_j > 0 else 0.0
        return energy_j, whole.uncertainty_j / whole.energy_j

    def _alone(self, job: int, interval: Interval) -> PeriodEstimate:
        trace = as_trace(self.recorder.rows(self.uuid, interval.from_s, interval.to_s))
        if interval.members == (job,):
            self.alone_periods[job] = alone_period(trace)
            return self.alone_periods[job]
        if job not in self.alone_periods:
            label = self.children[job].label
            raise MeasurementError(
                f"the iterations of {label} alone are not known; call workbench.step() in it"
            )
        return beside(trace, self.alone_periods[job], self.children[job].label)

    def _names(self, interval: Interval) -> str:
        return " and ".join(self.children[job].label for job in interval.members)
