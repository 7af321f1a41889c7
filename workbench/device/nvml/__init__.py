"""The door to NVIDIA's driver: NVML through pynvml. Nothing else in the workbench imports it.

A reading is probed when a device is opened, and is then there or absent with its reason. Driver codes become
our errors here, and milliwatts and millijoules are converted on the line that calls.

    library          NVML started once per process; its errors become ours
    identification   which GPUs there are, which is meant, and what one is
    readings         energy, power, status, processes, performance counters
    settings         power limit and clocks
"""

from __future__ import annotations

from typing import Any

import pynvml as nvml

from ...records import Process, Sample, Setting
from .. import zeusd
from ..driver import read_only
from . import library
from .identification import (
    BY_INDEX,
    VISIBLE,
    IdentifiedGpu,
    environment,
    identities,
    resolve,
    visible,
    why_none,
)
from .library import driver_version, initialise, is_privileged, real_library_loaded, translated
from .readings import Counters, Readings
from .settings import Settings

__all__ = [
    "MEMORY_FILES", "NAME", "UUID", "VISIBLE", "NvmlDevice", "driver_version", "environment", "identities",
    "is_privileged", "open_index", "open_uuid", "real_library_loaded", "recorder", "resolve", "visible",
    "why_none",
]

NAME, MEMORY_FILES = "NVML", "/dev/nvidia-uvm"
UUID = r"(?:GPU|MIG)-[0-9a-fA-F-]{8,}"


def recorder() -> Any:
    from .recording import record

    return record


class NvmlDevice(IdentifiedGpu):
    """A GPU behind NVML, real or simulated: a `protocol.Device`, opened by `workbench.open_device`."""

    def __init__(self, handle: Any) -> None:
        super().__init__(handle)
        self._readings = Readings(self)
        self._settings = Settings(self, self._readings)
        self.limits = self._settings.limits
        self.able.probe("processes", lambda: self._readings.running("Compute"))
        self.able.probe("gpm", self._readings.find_counters)

    # reading

    def energy_j(self) -> float:
        return self._readings.energy_j()

    def sample(self, status: Sample | None = None) -> Sample:
        return self._readings.sample(status)

    def memory_bytes(self) -> tuple[int, int]:
        return self._readings.memory_bytes()

    def processes(self, *, graphics: bool = False) -> tuple[Process, ...]:
        return self._readings.processes(graphics=graphics)

    def counters(self) -> Any:
        """`OpenGpu.counters`; there are none before Hopper and with MIG."""
        return self._readings.counters() if self.can("gpm") else super().counters()

    def counted(self, first: Counters, last: Counters) -> dict[str, float]:
        """Means between two readings 0.1 s apart or more: shares 0..1, and bytes/s over PCIe and NVLink."""
        return self._readings.counted(first, last)

    # setting

    def write(self, setting: Setting) -> Setting:
        """Put the device to a setting, which nothing restores (`lease` does); returns the setting read back.

        Raises:
            OutOfRange, NotSupported, NotPermitted: with the remedy; earlier changes are restored.
        """
        self.check(setting)
        return self._settings.write(setting)

    def reset(self, knobs: tuple[str, ...]) -> None:
        self._settings.reset(knobs)

    def setting(self) -> Setting:
        return self._settings.setting()

    def locked(self) -> Setting:
        return self._settings.locked()

    def lock_history(self) -> tuple[tuple[float, Setting], ...]:
        return self._settings.lock_history()

    def enforced_limit_w(self) -> float | None:
        return self._settings.enforced_limit_w()

    def clocks_are_set(self) -> bool | None:
        return self._settings.clocks_are_set()

    def application_clock_mhz(self) -> int | None:
        return self._settings.application_clock_mhz()

    def missing_rights(self) -> str:
        allowed = nvml.nvmlLib.privileged if self.simulated else is_privileged() or zeusd.present()
        return read_only() or ("" if allowed else library.RIGHTS)

    def commands(self, now: Setting, wanted: Setting) -> tuple[str, ...]:
        return self._settings.commands(now, wanted)

    def modes(self) -> dict[str, float]:
        return self._settings.modes()


def open_index(index: int) -> NvmlDevice:
    """The device at an NVML index (PCI order)."""
    initialise()
    with translated(f"opening GPU {index}"):
        return NvmlDevice(nvml.nvmlDeviceGetHandleByIndex(index))


def open_uuid(uuid: str) -> NvmlDevice:
    """The device with a full UUID, visible to CUDA or not; for a MIG instance's its whole GPU."""
    from ...simulation import machine

    machine.attached()
    if uuid.startswith(BY_INDEX):
        return open_index(int(uuid[len(BY_INDEX) :]))
    initialise()
    with translated(f"opening GPU {uuid}"):
        handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
        if not uuid.startswith("MIG-"):
            return NvmlDevice(handle)
        device = NvmlDevice(nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle))
    device.note = "this is a MIG instance: power and energy are those of its whole GPU"
    return device
