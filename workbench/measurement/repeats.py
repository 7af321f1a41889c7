"""Several runs of one cell as one measurement; and a measurement with what its iterations cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..logbook.equal_work import comparison_basis
from ..logbook.quantities import student_half_width
from ..records import GpuMeasurement, Measurement, SettingSegment, WorkDone
from .setting_segments import by_setting

if TYPE_CHECKING:
    from ..periods.segment import SegmentedIterations


def with_iterations(measurement: Measurement, found: SegmentedIterations | None) -> Measurement:
    """A measurement that states what one iteration costs."""
    return measurement if found is None else replace(measurement, iterations=found.summary)


def repeated(measurements: Sequence[Measurement]) -> Measurement:
    """Several runs of one cell as one: means, and standard deviations over the runs.

    The half width of the mean is the larger of what the runs' own errors leave and Student's interval over
    the runs' sums; what the GPUs have in common from run to run is in those sums.
    """
    n = len(measurements)
    if n == 1:
        return measurements[0]
    basis = comparison_basis(measurements)
    notes = measurements[0].notes
    if basis.costs and basis.unit != "run":
        notes += (f"the {n} runs did unequal work; compare their cost{basis.per_unit}",)
    columns = list(zip(*(m.gpus for m in measurements), strict=True))
    sums = [m.energy_j for m in measurements if m.energy_j is not None]
    times = np.array([m.time_s for m in measurements])
    sd_j = float(np.std(sums, ddof=1)) if len(sums) == n else None
    spread_j = 0.0 if sd_j is None else student_half_width(sd_j, n) / math.sqrt(len(columns))
    return replace(
        measurements[0], time_s=float(times.mean()), time_sd_s=float(times.std(ddof=1)),
        gpus=tuple(_mean_gpu(column, times, spread_j) for column in columns),
        energy_sd_j=sd_j, cpu_energy_j=_mean_of([m.cpu_energy_j for m in measurements]),
        dram_energy_j=_mean_of([m.dram_energy_j for m in measurements]), repeats=n,
        outcome=measurements[-1].outcome, notes=notes, work=_mean_work(measurements), iterations=None,
    )


def _mean_work(measurements: Sequence[Measurement]) -> tuple[WorkDone, ...]:
    """What a run did on average; what only some of them counted too."""
    sums: dict[str, float] = {}
    for done in (each for m in measurements for each in m.work):
        sums[done.name] = sums.get(done.name, 0.0) + done.amount
    return tuple(WorkDone(name, amount / len(measurements)) for name, amount in sums.items())


def _mean_gpu(runs: Sequence[GpuMeasurement], times_s: np.ndarray, spread_j: float) -> GpuMeasurement:
    """One GPU over several runs. `spread_j` is its part of the interval over runs."""
    segments = [each for run, time_s in zip(runs, times_s.tolist(), strict=True)
                for each in run.segments or (SettingSegment(run.setting, time_s, run.energy_j),)]
    by_time = by_setting(segments)
    own_j = math.sqrt(sum((run.energy_uncertainty_j or 0.0) ** 2 for run in runs)) / len(runs)
    energy_j = _mean_of([run.energy_j for run in runs])
    peaks = [run.peak_power_w for run in runs if run.peak_power_w is not None]
    means: dict[str, Any] = {name: _mean_of([getattr(run, name) for run in runs])
             for name in ("mean_power_w", "idle_share", "mean_utilisation", "sm_clock_mhz")}
    return replace(
        runs[-1], energy_j=energy_j,
        energy_uncertainty_j=None if energy_j is None else max(own_j, spread_j),
        peak_power_w=max(peaks, default=None),
        notes=tuple(dict.fromkeys(note for run in runs for note in run.notes)),
        throttle_reasons=tuple(dict.fromkeys(reason for run in runs for reason in run.throttle_reasons)),
        samples=sum(run.samples for run in runs), gaps=sum(run.gaps for run in runs),
        setting=by_time[0].setting, segments=tuple(segments) if len(by_time) > 1 else (), **means,
    )


def _mean_of(values: Sequence[float | None]) -> float | None:
    return None if None in values else float(np.mean([value for value in values if value is not None]))
