"""Measures a GPU for its profile: workloads at the default and at some other settings, over whole iterations.

A `Collector` is a generator of measurements, so a command, a button and a test can all step it. At any end,
the GPU is restored. The file is a CSV file with a header, one row per measurement. It is replaced after each
workload: a workload is compared with its own reference, measured minutes before, so an interrupted pass
begins again. Each pass has a number (`run`), and the latest pass of a workload counts.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import polars as pl

from ... import _paths
from ...device import lease
from ...device.protocol import Device
from ...errors import MeasurementError, NotPermitted, NotSupported, StoreError, UsageError, read_file
from ...experiments.stretch_energy import READ_S
from ...experiments.trial import out_of_memory
from ...measurement.meter import Meter
from ...records import Setting
from ...search.space import KNOBS, knobs
from ..features import NAMES, FeatureReader
from .workloads import CalibrationWorkload, Step

T = TypeVar("T")
# after a change; a power limit acts on about a second's average, and half of that is enough to be near
SETTLE_S = 0.6
SM_CLOCKS = 8  # at the highest memory clock; half as many at each lower one
POWER_LIMITS = 6
LOWEST = 0.3  # of the highest SM clock: below, everything costs more
SCHEMA = pl.Schema({
    "run": pl.Int64, "gpu": pl.String, "workload": pl.String, "group": pl.String, "reference": pl.Boolean,
    "sm_clock_mhz": pl.Int64, "mem_clock_mhz": pl.Int64, "power_limit_w": pl.Float64,
    "iteration_s": pl.Float64, "power_w": pl.Float64, "iteration_j": pl.Float64, "iterations": pl.Int64,
    "time_s": pl.Float64, "energy_j": pl.Float64, "energy_uncertainty_j": pl.Float64,
    "feature_set": pl.String, **dict.fromkeys(NAMES, pl.Float64), "note": pl.String,
})


# settings and rows


def settings_to_try(device: Device) -> list[Setting]:
    """Settings next to the default: SM clocks at the highest memory clock and fewer at lower ones.

    Power limits where no clock can be locked, because a limit acts as the clock at which the power meets it.
    """
    limits = device.limits
    clocks = {mem: limits.sm_clocks_mhz[mem] for mem in limits.mem_clocks_mhz if limits.sm_clocks_mhz[mem]}
    if clocks and device.can("lock_sm_clock"):
        found = []
        top, *_ = memories = list(clocks)
        several = len(memories) > 1 and device.can("lock_mem_clock")
        for mem in _spread(memories, SM_CLOCKS // 2) if several else [top]:
            down = sorted(clocks[mem], reverse=True)
            enough = [clock for clock in down if clock >= LOWEST * max(clocks[top])] or down[:1]
            found += [
                Setting(sm_clock_mhz=clock, mem_clock_mhz=mem if several else None)
                for clock in _spread(enough, SM_CLOCKS if mem == top else SM_CLOCKS // 2)
            ]
        return found
    low_w, high_w = limits.min_power_limit_w, limits.default_power_limit_w
    if not device.can("set_power_limit") or low_w is None or high_w is None or high_w <= low_w:
        return []
    steps_w = np.linspace(high_w, low_w, POWER_LIMITS + 1)[1:].tolist()
    return [Setting(power_limit_w=max(low_w, float(round(each)))) for each in steps_w]


def _spread(values: Sequence[T], count: int) -> list[T]:
    """At most so many of a list, both ends among them and the rest spread evenly."""
    return [values[at] for at in sorted({round(at) for at in np.linspace(0, len(values) - 1, count)})]


def read_rows(path: Path, gpu: str) -> pl.DataFrame:
    """The latest pass over each workload, with the columns of `SCHEMA`; empty where there is no file.

    Args:
        path: The file.
        gpu: The GPU's name.

    Raises:
        UsageError: the file cannot be read, has measurements of another GPU, or is not a profile.
    """
    header = ",".join(SCHEMA).encode()
    raw = read_file(path) if path.exists() else header
    try:
        if not raw.startswith(header):
            raise ValueError("its columns are others")
        table = pl.read_csv(raw, schema=SCHEMA)
    except (ValueError, pl.exceptions.PolarsError) as error:
        raise UsageError(
            f"{path} is no profile of this version ({error}); choose another --output, or remove it"
        ) from error
    if others := set(table["gpu"]) - {gpu}:
        raise UsageError(
            f"{path} has measurements of {', '.join(sorted(others))} and this GPU is {gpu}; choose another "
            "--output"
        )
    return table.filter(pl.col("run") == pl.col("run").max().over("workload"))


# measuring


class Collector:
    """Measures workloads on a GPU, one setting at a time, and keeps each finished workload in a file.

    Args:
        meter: Of this one GPU, with a recorder.
        workloads: The loads. Those that the file has at all settings are not measured again.
        settings: To measure next to the default.
        path: The file.
        seconds: Least length of a measured stretch.

    Attributes:
        left: Workloads that the file does not have yet.
        steps: Measurements of a workload: the default first and last, and each setting.
        notes: Workloads and settings that were left out, as text.

    Raises:
        UsageError: the file has measurements of another GPU, or is none of ours; an impossible length.
    """

    def __init__(
        self, meter: Meter, workloads: Sequence[CalibrationWorkload], settings: Sequence[Setting], path: Path,
        seconds: float = 2.0,
    ) -> None:
        if not 0.2 <= seconds <= 600:
            raise UsageError(f"a stretch of {seconds:g} s cannot be measured well; choose 0.2 to 600 seconds")
        (self.device,) = meter.devices
        self.meter, self.settings, self.path, self.seconds = meter, settings, path, seconds
        self.rows = read_rows(path, self.device.name)
        self.steps = len(settings) + 2
        wanted = set(knobs(settings).rows())
        finished = {
            name for (name,), rows in self.rows.group_by("workload")
            if wanted <= set(rows.filter(~pl.col("reference")).select(*KNOBS).rows())
        }
        self.left = [each for each in workloads if each.name not in finished]
        self.notes: list[str] = []
        self._refused: dict[Setting, str] = {}

    def run(self) -> Generator[str, None, None]:
        """Measure the rest; yields the next measurement as text, before each one. Ends with the GPU
        as it was.

        Raises:
            NotPermitted, NotSupported, DeviceHeld: nothing may be changed here.
            MeasurementError: other processes use the GPU.
            GpuLost: workloads that were finished are kept.
            StoreError: the file cannot be written.
        """
        recorder, device = self.meter.recorder, self.device
        if not self.left or recorder is None:
            return
        # Our own descendants, too: nothing but the measured load may run.
        others = [each for each in device.processes() if each.pid != os.getpid() and each.name != "?"]
        if others:
            names = ", ".join(f"{each.name} ({each.pid})" for each in others[:3])
            raise MeasurementError(
                f"other processes use {device.name}: {names}; their work would be measured too, so end them "
                "first"
            )
        if reason := device.missing_rights():  # before an hour is spent
            raise NotPermitted(f"{device.name} cannot be profiled: {reason}")
        default_w = device.limits.default_power_limit_w
        settable = device.can("set_power_limit") and device.setting().power_limit_w != default_w
        awake = recorder.hold(device.clock)  # without an open window the sampler would rest
        # The references are of the default limit; where it is set already, the GPU is held only.
        with lease.applied(device, Setting(default_w if settable else None)):
            reader = FeatureReader(device, recorder)
            for workload in list(self.left):
                try:
                    table = yield from self._pass(workload, reader)
                except (MemoryError, RuntimeError) as error:
                    if not out_of_memory(error):
                        raise
                    self.notes.append(f"{workload.name} does not fit this GPU's memory and was left out")
                    continue
                self.rows = pl.concat([self.rows.filter(pl.col("workload") != workload.name), table])
                try:
                    with _paths.replacing(self.path) as file:
                        self.rows.write_csv(file)
                except OSError as error:
                    raise StoreError(
                        f"{self.path} cannot be written: {error.strerror or error}; choose another --output"
                    ) from error
                self.left.remove(workload)
        del awake
        self.notes += [
            f"{count} setting{'s were' if count > 1 else ' was'} left out: {why}"
            for why, count in Counter(self._refused.values()).items()
        ]

    def _pass(
        self, workload: CalibrationWorkload, reader: FeatureReader
    ) -> Generator[str, None, pl.DataFrame]:
        """The reference, all settings in an order of its own (a warming GPU is no trend), the reference."""
        order: list[Setting | None] = list(self.settings)
        random.Random(workload.name).shuffle(order)
        about = {
            "run": time.time_ns() // 1_000_000, "gpu": self.device.name, "workload": workload.name,
            "group": workload.group,
        }
        rows: list[dict[str, Any]] = []
        self.device.clock.sleep(SETTLE_S)
        with workload.running() as step:
            for setting in [None, *order, None]:
                yield f"{workload.name}, {setting or 'default'}"
                values: dict[str, Any] = {"power_limit_w": self.device.limits.default_power_limit_w}
                if setting is None:
                    values |= self._measured(step, None if rows else reader)
                else:
                    values = asdict(setting) | self._at(setting, step)
                rows.append({**about, "reference": setting is None, **values})
        return pl.DataFrame(rows, schema=SCHEMA)

    def _at(self, setting: Setting, step: Step) -> dict[str, Any]:
        """A measurement at a setting, or a note that it cannot be set; then it is not tried again."""
        if setting not in self._refused:
            try:
                with lease.applied(self.device, setting):
                    return self._measured(step)
            except (NotPermitted, NotSupported) as error:
                self._refused[setting] = str(error)
                if len(self._refused) == len(self.settings):
                    raise
        return {"note": self._refused[setting]}

    def _measured(self, step: Step, reader: FeatureReader | None = None) -> dict[str, Any]:
        """Time and energy of whole iterations, and with a reader the features of the workload."""
        clock, values = self.device.clock, {}
        self._iterate(step, self.seconds if reader else SETTLE_S)
        for _ in range(2):
            if reader:
                reader.start()
            begin_s = clock()
            count = self._iterate(step, self.seconds)
            end_s = clock()
            if reader:
                features = reader.read()
                values = {**features.values, "feature_set": features.source}
            self._iterate(step, READ_S)
            seconds, energy = end_s - begin_s, self.meter.energy(begin_s, end_s)
            if energy is not None and energy.energy_j > 0:
                return values | {
                    "iteration_s": seconds / count, "power_w": energy.energy_j / seconds,
                    "iteration_j": energy.energy_j / count, "iterations": count, "time_s": seconds,
                    "energy_j": energy.energy_j, "energy_uncertainty_j": energy.uncertainty_j,
                }
            clock.sleep(SETTLE_S)
        return values | {"note": "its energy was not seen"}

    def _iterate(self, step: Step, seconds: float) -> int:
        """Whole iterations for so long; how many."""
        until_s, count = self.device.clock() + seconds, 0
        while self.device.clock() < until_s:
            step()
            count += 1
        return count
