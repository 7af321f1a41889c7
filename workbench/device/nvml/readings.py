"""Readings of a GPU's driver: energy, power, status, processes and performance counters."""

from __future__ import annotations

import contextlib
import ctypes
import math
import weakref
from collections import ChainMap
from collections.abc import Callable
from typing import Any

import pynvml as nvml

from ... import _processes
from ...errors import GpuLost, NoDriver, NotSupported
from ...records import Process, Sample
from .identification import IdentifiedGpu
from .library import REFUSED, error_for, translated

NAN = float("nan")
_ENERGY, _INSTANT, ENFORCED, REQUESTED = 83, 186, 190, 192
GPU_SCOPE, _MODULE_SCOPE = 0, 1
_MIB = 1 << 20
# GPM metrics, by number too: what DCGM calls the same, and what makes SI of percent and MiB/s
_COUNTED = {
    2: ("sm_active", 0.01), 3: ("sm_occupancy", 0.01), 5: ("tensor_active", 0.01), 11: ("fp64_active", 0.01),
    12: ("fp32_active", 0.01), 13: ("fp16_active", 0.01), 10: ("dram_active", 0.01),
    20: ("pcie_tx_bytes_per_s", _MIB), 21: ("pcie_rx_bytes_per_s", _MIB), 61: ("nvlink_tx_bytes_per_s", _MIB),
    60: ("nvlink_rx_bytes_per_s", _MIB),
}


class Counters:
    """One look at a GPU's performance counters; the driver's memory for it is given back with it."""

    def __init__(self, sample: Any) -> None:
        self.sample, self.time_s = sample, NAN
        weakref.finalize(self, _forget_sample, sample, nvml.nvmlLib).atexit = False


def _forget_sample(sample: Any, library: Any) -> None:
    with contextlib.suppress(nvml.NVMLError):
        if nvml.nvmlLib is library:
            nvml.nvmlGpmSampleFree(sample)


class Readings:
    """Energy, power and status of a GPU; the way to read them is chosen once."""

    def __init__(self, gpu: IdentifiedGpu) -> None:
        self._gpu, self._handle, self.name = gpu, gpu.handle, gpu.name
        self._choose_readings()
        self._choose_status()

    # probing

    def _choose_readings(self) -> None:
        """Decide once how energy and power are read: one batched query where the driver has the fields."""
        gpu, handle, able = self._gpu, self._handle, self._gpu.able
        fields: list[tuple[int, int]] = []

        def in_batch(name: str, field: int, scope: int = GPU_SCOPE) -> bool:
            found = able.probe(name, lambda: self.field(field, scope)) is not None
            if found:
                fields.append((field, scope))
            return found

        self._energy_in_batch = in_batch("energy", _ENERGY)
        if not self._energy_in_batch:
            able.probe("energy", lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle))
        self._power_in_batch = in_batch("power", _INSTANT)
        if not self._power_in_batch and in_batch("power", _INSTANT, _MODULE_SCOPE):
            self._power_in_batch = True
            gpu.note = "power and energy are those of the whole module (GPU, CPU and memory)"
        if not self._power_in_batch:
            able.probe("power", lambda: nvml.nvmlDeviceGetPowerUsage(handle))
            ampere = gpu.architecture == "Ampere" and gpu.compute_capability != (8, 0)
            if ampere or gpu.architecture in ("Ada", "Hopper", "Blackwell"):  # the mean of a second (nvml.h)
                gpu.power_window_s = 1.0
        self.limit_in_batch = bool(fields) and in_batch("enforced_limit", ENFORCED)
        self._fields = (nvml.c_nvmlFieldValue_t * len(fields))()
        for value, (field, scope) in zip(self._fields, fields, strict=True):
            value.fieldId, value.scopeId = field, scope
        self._count, self._fields_at = ctypes.c_int(len(fields)), ctypes.byref(self._fields)

    def _choose_status(self) -> None:
        """Decide once how what changes slowly is read."""
        first = self._gpu.able.first
        self._read_limit = None if self.limit_in_batch else first(
            "enforced_limit", ("nvmlDeviceGetEnforcedPowerLimit",), ("nvmlDeviceGetPowerManagementLimit",)
        )
        self._read_clock = {
            "sm_clock_mhz": first("sm_clock", ("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM)),
            "mem_clock_mhz": first("mem_clock", ("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_MEM)),
        }
        self._read_busy = first("utilisation", ("nvmlDeviceGetUtilizationRates",))
        self._read_temperature = first("temperature", ("nvmlDeviceGetTemperatureV", 0),
                                       ("nvmlDeviceGetTemperature", 0))
        self.read_reasons = first("throttle", ("nvmlDeviceGetCurrentClocksEventReasons",),
                                   ("nvmlDeviceGetCurrentClocksThrottleReasons",))


    def field(self, field: int, scope: int) -> int:
        value = nvml.nvmlDeviceGetFieldValues(self._handle, [(field, scope)])[0]
        if value.nvmlReturn != nvml.NVML_SUCCESS:
            raise nvml.NVMLError(value.nvmlReturn)
        return field_number(value)

    def energy_j(self) -> float:
        with translated(f"reading the energy counter of {self.name}"):
            return float(nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle) / 1000)

    def sample(self, status: Sample | None = None) -> Sample:
        """One sample (`protocol.Device`): NaN for a reading refused this once; raises for a lost GPU."""
        handle = self._handle
        with translated(f"reading {self.name}"):
            at_s = self._gpu.clock()
            batch = self._batch() if len(self._fields) else {}
            energy_j, power_w = batch.get(_ENERGY, NAN) / 1000, batch.get(_INSTANT, NAN) / 1000
            limit_w = batch.get(ENFORCED, NAN) / 1000
            if not self._energy_in_batch and self._gpu.can("energy"):
                energy_j = self.attempt(nvml.nvmlDeviceGetTotalEnergyConsumption, handle) / 1000
            if not self._power_in_batch and self._gpu.can("power"):
                power_w = self.attempt(nvml.nvmlDeviceGetPowerUsage, handle) / 1000
            power_w = power_w or NAN  # 0 mW is what some drivers answer when asked too fast
            if status is not None:
                limit_w = status.power_limit_w if math.isnan(limit_w) else limit_w
                return Sample(at_s, energy_j, power_w, limit_w, *status[4:])
            if self._read_limit:
                limit_w = self.attempt(self._read_limit) / 1000
            busy: Any = self.attempt(self._read_busy)
            known = busy is not None and not isinstance(busy, float)
            reasons = self.attempt(self.read_reasons)
            sm_mhz, mem_mhz = (self.attempt(read) for read in self._read_clock.values())
            return Sample(
                at_s, energy_j, power_w, limit_w, sm_mhz, mem_mhz,
                busy.gpu / 100 if known else NAN, busy.memory / 100 if known else NAN,
                self.attempt(self._read_temperature), 0 if isinstance(reasons, float) else int(reasons),
            )

    def _batch(self) -> dict[int, float]:
        """The fields of the batched query that the driver gave, in its units."""
        read = nvml._nvmlGetFunctionPointer("nvmlDeviceGetFieldValues")
        code = read(self._handle, self._count, self._fields_at)
        if code != nvml.NVML_SUCCESS:
            self._refused(nvml.NVMLError(code))
            return {}
        given: dict[int, float] = {}
        for value in self._fields:
            if value.nvmlReturn == nvml.NVML_SUCCESS:
                given[value.fieldId] = field_number(value)
            else:
                self._refused(nvml.NVMLError(value.nvmlReturn))
        return given

    def attempt(self, read: Callable[..., Any] | None, *arguments: Any) -> Any:
        """A reading, or NaN where there is none or the driver refuses it this once."""
        try:
            return read(*arguments) if read is not None else NAN
        except nvml.NVMLError as error:
            self._refused(error)
            return NAN

    def _refused(self, error: Any) -> None:
        """Raise what lasts: a lost GPU, no driver, an NVML that was shut down."""
        lasting = isinstance(error_for(error.value, f"reading {self.name}"), (GpuLost, NoDriver))
        if lasting or error.value == nvml.NVML_ERROR_UNINITIALIZED:
            raise error

    def clock_mhz(self, knob: str) -> float:
        with translated(f"reading {knob} of {self.name}"):
            return float(self.attempt(self._read_clock[knob]))

    # performance counters (GPM)

    def find_counters(self) -> bool:
        """Whether the driver reports the GPU's performance counters (GPM)."""
        if not nvml.nvmlGpmQueryDeviceSupport(self._handle).isSupportedDevice:
            raise NotSupported("performance counters through NVML (GPM) need Hopper or newer")
        return True

    def counters(self) -> Counters:
        """The performance counters now."""
        with translated(f"reading the performance counters of {self.name}"):
            sample = nvml.nvmlGpmSampleAlloc()
            kept = Counters(sample)
            at_s = self._gpu.clock()
            nvml.nvmlGpmSampleGet(self._handle, sample)
        kept.time_s = 0.5 * (at_s + self._gpu.clock())
        return kept

    def counted(self, first: Counters, last: Counters) -> dict[str, float]:
        """Means between two readings 0.1 s apart or more: shares 0..1, and bytes/s over PCIe and NVLink."""
        with translated(f"comparing performance counters of {self.name}"):
            try:
                rows = _compared(first, last, list(_COUNTED))
            # a driver that does not know one of the metrics may refuse them all
            except nvml.NVMLError as error:
                self._refused(error)
                rows = _compared(first, last, [each for each, (_, unit) in _COUNTED.items() if unit < 1])
        return {
            name: factor * rows[metric] for metric, (name, factor) in _COUNTED.items()
            if math.isfinite(rows.get(metric, NAN))
        }

    def memory_bytes(self) -> tuple[int, int]:
        """Device memory in use, and all there is. Raises DeviceError where the driver does not report."""
        with translated(f"reading the memory of {self.name}"):
            found = nvml.nvmlDeviceGetMemoryInfo(self._handle)
        return int(found.used), int(found.total)

    def running(self, kind: str) -> dict[int, int | None]:
        """Processes of a kind ("Compute", "Graphics", "MPSCompute") with their memory in bytes."""
        for version in ("", "_v2"):  # drivers before R510 have only the second
            with contextlib.suppress(*REFUSED, AttributeError):
                rows = getattr(nvml, f"nvmlDeviceGet{kind}RunningProcesses{version}")(self._handle)
                return {row.pid: row.usedGpuMemory for row in rows}
        raise NotSupported(f"the driver of {self.name} does not list its processes")

    def processes(self, *, graphics: bool = False) -> tuple[Process, ...]:
        lists: list[dict[int, int | None]] = []
        for kind in ("Compute", "MPSCompute", "Graphics")[: 2 + graphics]:
            lists.append({})
            with contextlib.suppress(NotSupported):
                lists[-1] = self.running(kind)
        others, clients, *drawing = lists
        named = {pid: _processes.name_of(pid) for each in lists for pid in each}
        if clients:  # then the first list has their server, which may be another container's
            for server in [pid for pid in others.keys() - clients.keys() if named[pid] == "?"][:1]:
                del others[server]
        found = sorted(ChainMap(others, clients, *drawing).items())
        return tuple(Process(pid, named[pid], memory) for pid, memory in found)


def _compared(first: Counters, last: Counters, metrics: list[int]) -> dict[int, float]:
    """Means of metrics between two looks at the counters, by number, as the driver gives them."""
    asked = nvml.c_nvmlGpmMetricsGet_t()
    asked.version, asked.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, len(metrics)
    asked.sample1, asked.sample2 = first.sample, last.sample
    for place, metric in enumerate(metrics):
        asked.metrics[place].metricId = metric
    nvml.nvmlGpmMetricsGet(asked)
    given = (row for row in asked.metrics[: len(metrics)] if row.nvmlReturn == nvml.NVML_SUCCESS)
    return {row.metricId: row.value for row in given}



def field_number(value: Any) -> int:
    """A field value's number by its type (0 double, 1 uint, 2 ulong, 3 ulonglong, 4 longlong, 5 int)."""
    kind = value.valueType
    if kind == 0:
        return round(float(value.value.dVal))
    if kind == 1:
        return int(value.value.uiVal)
    if kind == 5:
        return int(ctypes.c_int(value.value.uiVal).value)
    return int(value.value.ullVal)
