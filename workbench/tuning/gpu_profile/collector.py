"""Measures a GPU for its profile: workloads at the default and at some other settings, over whole iterations.

A `Collector` is a generator of measurements, so a command, a button and a test can all step it. Each row is
on disk before the next measurement begins; at any end, the GPU is restored.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...device import lease
from ...errors import MeasurementError, NotPermitted, NotSupported, UsageError
from ...experiments.probe import READ_S
from ...experiments.trial import out_of_memory
from ...measurement.meter import Meter
from ...records import Limits, Setting
from ..features import FeatureReader
from .rows import Rows

if TYPE_CHECKING:
    from .workloads import CalibrationWorkload, Step

# after a change; a power limit acts on about a second's average, and half of that is enough to be near
SETTLE_S = 0.6
SM_CLOCKS = 8  # at the highest memory clock; half as many at each lower one
POWER_LIMITS = 6
LOWEST = 0.3  # of the highest SM clock: below, everything costs more


# what to measure


def settings_to_try(
    limits: Limits, *, lock_sm: bool = True, lock_memory: bool = True, set_limit: bool = True,
) -> list[Setting]:
    """Settings next to the default: SM clocks at the highest memory clock, fewer at lower ones, power limits.

    Args:
        limits: The ranges of the device.
        lock_sm, lock_memory, set_limit: Whether this GPU's clocks may be locked and its limit set.
    """
    found: list[Setting] = []
    memories = [mem for mem in limits.mem_clocks_mhz if limits.sm_clocks_mhz[mem]]
    if lock_sm and memories:
        top = max(limits.sm_clocks_mhz[memories[0]])
        several = lock_memory and len(memories) > 1
        for number, mem in enumerate(_spread(memories, SM_CLOCKS // 2) if several else memories[:1]):
            paired = [clock for clock in limits.sm_clocks_mhz[mem] if clock >= LOWEST * top] or [
                max(limits.sm_clocks_mhz[mem])
            ]
            chosen = _spread(sorted(paired, reverse=True), SM_CLOCKS // (1 if number == 0 else 2))
            found += [Setting(sm_clock_mhz=clock, mem_clock_mhz=mem if several else None) for clock in chosen]
    low_w, high_w = limits.min_power_limit_w, limits.default_power_limit_w
    if set_limit and low_w is not None and high_w is not None and high_w > low_w:
        step_w = (high_w - low_w) / POWER_LIMITS
        found += [
            Setting(power_limit_w=float(round(high_w - step_w * number))) for number in range(1, POWER_LIMITS)
        ]
        found.append(Setting(power_limit_w=low_w))
    return found


def _spread(values: Sequence[int], count: int) -> list[int]:
    """At most so many of a list, both ends among them and the rest spread evenly."""
    if len(values) <= count:
        return list(values)
    return [
        values[place]
        for place in sorted({round(number * (len(values) - 1) / (count - 1)) for number in range(count)})
    ]


@dataclass(frozen=True)
class ProfilePlan:
    """What to measure on a GPU.

    Attributes:
        workloads: Which to run.
        settings: At which settings next to the default.
        seconds: Least length of a measured stretch.
        seed: Of the order of the settings, another for each workload: a warming GPU is no trend.
    """

    workloads: tuple[CalibrationWorkload, ...]
    settings: tuple[Setting, ...]
    seconds: float = 2.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0.2 <= self.seconds <= 600:
            raise UsageError(
                f"a stretch of {self.seconds:g} s cannot be measured well; choose 0.2 to 600 seconds"
            )
        if not self.settings:
            raise UsageError(
                "this GPU has neither clocks nor power limits that may be set: there is nothing to learn "
                "about it"
            )

    @property
    def steps(self) -> int:
        """Measurements of a workload: the default first and last, and each setting."""
        return len(self.settings) + 2


# measuring


class Collector:
    """Runs a plan on a GPU, a measurement at a time, and keeps each in a file.

    Args:
        meter: Of this one GPU, with a recorder.
        plan: What to measure.
        path: Where rows are kept; workloads that are there already are not measured again.

    Attributes:
        done: Measurements that there are, of `total`.
        notes: Failed measurements, as text.

    Raises:
        UsageError: the file has measurements of another GPU, or is none of ours.
    """

    def __init__(self, meter: Meter, plan: ProfilePlan, path: Path) -> None:
        (self.device,) = meter.devices
        self.meter, self.plan = meter, plan
        self.rows = Rows(path, self.device.name)
        self.total = len(plan.workloads) * plan.steps
        finished = self.rows.finished(plan.settings)
        self._left = [each for each in plan.workloads if each.name not in finished]
        self.done = self.total - len(self._left) * plan.steps
        self.notes: list[str] = []
        self._cannot: dict[Setting, str] = {}

    def run(self) -> Generator[str, None, None]:
        """Measure the rest; yields the next measurement as text, before each one. Ends with the GPU
        as it was.

        Raises:
            NotPermitted, NotSupported, DeviceHeld: nothing may be changed here.
            MeasurementError: other processes use the GPU.
            GpuLost: rows that were measured are kept.
        """
        if not self._left:
            return
        self._alone()
        recorder = self.meter.recorder
        assert recorder is not None
        awake = recorder.hold(self.device.clock)  # without an open window the sampler would rest
        with contextlib.ExitStack() as stack:
            self._try_rights(stack)
            reader = FeatureReader(self.device, recorder)
            for workload in self._left:
                before = self.done
                try:
                    yield from self._workload(workload, reader)
                except (MemoryError, RuntimeError) as error:
                    if not out_of_memory(error):
                        raise
                    self.notes.append(f"{workload.name} does not fit this GPU's memory and was left out")
                    self.done = before + self.plan.steps
        del awake

    def _workload(self, workload: CalibrationWorkload, reader: FeatureReader) -> Generator[str, None, None]:
        """One pass: the reference, all settings in an order of its own, and the reference again."""
        order: list[Setting | None] = list(self.plan.settings)
        random.Random(f"{self.plan.seed} {workload.name}").shuffle(order)
        number = time.time_ns() // 1_000_000
        self.device.clock.sleep(SETTLE_S)
        with workload.running() as step:
            for place, setting in enumerate([None, *order, None]):
                yield f"{workload.name}, {setting or 'default'}"
                refused = self._cannot.get(setting, "") if setting else ""
                values: dict[str, Any] = {"note": refused}
                if setting is None:
                    values = self._measured(step, reader if place == 0 else None)
                    values["power_limit_w"] = self.device.limits.default_power_limit_w
                elif not refused:
                    try:
                        with lease.applied(self.device, setting):
                            values = self._measured(step)
                    except (NotPermitted, NotSupported) as error:
                        self._leave_out(setting, error)
                        values["note"] = str(error)
                self.rows.add(number, workload.name, workload.group, setting, values)
                self.done += 1

    def _measured(self, step: Step, reader: FeatureReader | None = None) -> dict[str, Any]:
        """Time and energy of whole iterations of what runs, and with a reader its features."""
        self._iterate(step, self.plan.seconds if reader else SETTLE_S)
        for _ in range(2):
            values = self._stretch(step, reader)
            if "note" not in values:
                break
            self.device.clock.sleep(SETTLE_S)
        return values

    def _stretch(self, step: Step, reader: FeatureReader | None) -> dict[str, Any]:
        clock = self.device.clock
        features: dict[str, Any] = {}
        if reader:
            reader.start()
        begin_s = clock()
        count = self._iterate(step, self.plan.seconds)
        end_s = clock()
        if reader:
            found = reader.read()
            features = {**found.values, "feature_set": found.source}
        self._iterate(step, READ_S)
        seconds, energy = end_s - begin_s, self.meter.energy(begin_s, end_s)
        if energy is None or energy.energy_j <= 0:
            return features | {"note": "its energy was not seen"}
        return features | {
            "iteration_s": seconds / count, "power_w": energy.energy_j / seconds,
            "iteration_j": energy.energy_j / count, "iterations": count, "time_s": seconds,
            "energy_j": energy.energy_j, "energy_uncertainty_j": energy.uncertainty_j,
        }

    def _iterate(self, step: Step, seconds: float) -> int:
        """Whole iterations for so long; how many."""
        until_s, count = self.meter.clock() + seconds, 0
        while self.meter.clock() < until_s:
            step()
            count += 1
        return count

    def _alone(self) -> None:
        # Our own descendants, too: nothing but the measured load may run.
        others = [each for each in self.device.processes() if each.pid != os.getpid() and each.name != "?"]
        if others:
            names = ", ".join(f"{each.name} ({each.pid})" for each in others[:3])
            raise MeasurementError(
                f"other processes use {self.device.name}: {names}; their work would be measured too, so end "
                "them first"
            )

    def _leave_out(self, setting: Setting, error: Exception) -> None:
        """Try a setting no more; without the right to it, no other one of its kind either."""
        locks = setting.sm_clock_mhz is not None
        alike = [each for each in self.plan.settings if (each.sm_clock_mhz is not None) == locks]
        found = alike if isinstance(error, NotPermitted) else [setting]
        self._cannot.update(dict.fromkeys(found, str(error)))
        self.notes.append(f"{len(found)} setting{'s were' if len(found) > 1 else ' was'} left out: {error}")

    def _try_rights(self, stack: contextlib.ExitStack) -> None:
        """Raise where nothing may be set, before an hour is spent, and hold the GPU at its default limit."""
        if reason := self.device.missing_rights():
            raise NotPermitted(f"{self.device.name} cannot be profiled: {reason}")
        default_w = self.device.limits.default_power_limit_w
        at_default = self.device.setting().power_limit_w == default_w
        settable = self.device.can("set_power_limit") and not at_default
        # The references are of the default limit; where it is set already, the GPU is held only.
        stack.enter_context(lease.applied(self.device, Setting(default_w if settable else None)))
