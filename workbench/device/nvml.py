"""The door to the driver: NVML through pynvml. Nothing else in the workbench imports it.

A reading is probed when a device is opened, and is then there or absent with its reason. Driver codes become
our errors here, and milliwatts and millijoules are converted on the line that calls.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import shlex
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pynvml as nvml

from .. import _processes
from ..clock import MONOTONIC, Clock
from ..errors import (
    DeviceError,
    DriverError,
    GpuLost,
    NoDriver,
    NotPermitted,
    NotSupported,
    OutOfRange,
    Transient,
    UnknownGpu,
)
from ..records import CLOCKS_SET, Capability, Limits, Process, Sample, Setting
from . import selection, zeusd
from .driver import Identity, read_only
from .gpu import KNOBS, OpenGpu

T = TypeVar("T")
NAN = float("nan")
NAME, VISIBLE, MEMORY_FILES = "NVML", "CUDA_VISIBLE_DEVICES", "/dev/nvidia-uvm"
UUID = r"(?:GPU|MIG)-[0-9a-fA-F-]{8,}"

ARCHITECTURES = {
    2: "Kepler", 3: "Maxwell", 4: "Pascal", 5: "Volta", 6: "Turing", 7: "Ampere", 8: "Ada", 9: "Hopper",
    10: "Blackwell", 13: "Rubin",
}
_RIGHTS = ("it takes root or CAP_SYS_ADMIN (in a container: --cap-add=SYS_ADMIN), or the Zeus daemon "
           "(ZEUSD_SOCK_PATH); a simulated GPU can be had with `%gpu simulate A100`")

_NO_LIBRARY, _UNKNOWN = 12, 999
_INTEGRATED = (
    "the driver has a GPU without a UUID or PCI address: an integrated one (Jetson), whose NVML reports no "
    "energy; its INA sensors are not read"
)
# NVML code -> our error and the sentence that follows what was being done; others have NVML's own text. By
# number, which is ABI: bindings older than a code have no name for it.
ERRORS: dict[int, tuple[type[DeviceError], str]] = {
    1: (Transient, "NVML was shut down (after a fork?); open the device again"),
    2: (OutOfRange, "the driver does not take that value"),
    3: (NotSupported, "this GPU, driver or virtual machine does not support it"), 4: (NotPermitted, _RIGHTS),
    5: (DriverError, "NVML was initialised already"),
    6: (UnknownGpu, "the driver does not know it; `nvidia-smi -L` lists what there is"),
    7: (DriverError, "the answer was longer than expected"),
    8: (GpuLost, "a power cable of the GPU is not attached"),
    9: (NoDriver, "the NVIDIA kernel module is not loaded; try `nvidia-smi`, then reboot"),
    10: (Transient, "the driver did not answer in time"),
    11: (GpuLost, "the kernel has an interrupt problem with this GPU"),
    12: (NoDriver, "there is no NVIDIA driver here (libnvidia-ml.so.1 was not found)"),
    13: (NotSupported, "the installed driver is too old for it"),
    14: (DriverError, "the GPU's infoROM is corrupted"),
    15: (GpuLost, "the GPU is lost (fell off the bus); a reboot brings it back"),
    16: (GpuLost, "the GPU needs a reset: `nvidia-smi --gpu-reset` as root"),
    17: (NotPermitted, "the operating system (a cgroup?) keeps the GPU from this process"),
    18: (NoDriver, "the driver was upgraded and is not loaded yet; reboot"),
    19: (Transient, "the GPU is in use by somebody who excludes others"),
    20: (Transient, "the driver ran out of memory"), 21: (Transient, "the driver has no data yet"),
    22: (NotSupported, "not with ECC in a virtual GPU"), 23: (Transient, "the driver is out of resources"),
    24: (OutOfRange, "the card has no such clock"),
    25: (NotSupported, "the installed driver is too old for this pynvml"),
    26: (NotSupported, "the driver no longer has it"), 27: (Transient, "the GPU is not ready yet"),
    28: (NoDriver, "the driver finds no GPU"), 29: (DriverError, "the GPU is in the wrong state for it"),
    30: (NotSupported, "this GPU cannot be reset that way"),
    999: (DriverError, "the driver reports an unknown error"),
}

_SYS_ADMIN = 21  # the capability's bit
_ENERGY, _INSTANT, _ENFORCED, _REQUESTED = 83, 186, 190, 192
_GPU_SCOPE, _MODULE_SCOPE = 0, 1
_BY_INDEX = "NVML:"
_LOCKED_CLOCKS = {"sm_clock_mhz": "GpuLockedClocks", "mem_clock_mhz": "MemoryLockedClocks"}
_MIB = 1 << 20
# GPM metrics, by number too: what DCGM calls the same, and what makes SI of percent and MiB/s
_COUNTED = {
    2: ("sm_active", 0.01), 3: ("sm_occupancy", 0.01), 5: ("tensor_active", 0.01), 11: ("fp64_active", 0.01),
    12: ("fp32_active", 0.01), 13: ("fp16_active", 0.01), 10: ("dram_active", 0.01),
    20: ("pcie_tx_bytes_per_s", _MIB), 21: ("pcie_rx_bytes_per_s", _MIB), 61: ("nvlink_tx_bytes_per_s", _MIB),
    60: ("nvlink_rx_bytes_per_s", _MIB),
}


def error_for(code: int, doing: str) -> DeviceError:
    """Our error for an NVML return code met while `doing` something; never a bare number."""
    kind, sentence = ERRORS.get(code) or (DriverError, str(nvml.NVMLError(code)))
    return kind(f"{doing}: {sentence} (NVML {code})", code=code)


@contextlib.contextmanager
def translated(doing: str) -> Iterator[None]:
    """NVML's errors inside become ours; a forked process starts NVML before."""
    if _forked:
        _start_anew()
    try:
        yield
    except nvml.NVMLError as error:
        raise error_for(error.value, doing) from error


_initialised_library: Any = None
_forked = False  # since NVML was started, which does not outlive that
_opened: weakref.WeakSet[NvmlDevice] = weakref.WeakSet()


def _note_fork() -> None:
    global _forked
    _forked = _initialised_library is not None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)


def _start_anew() -> None:
    """Start NVML again in a forked process, and find the GPUs that it has open, by their UUIDs."""
    global _forked
    _forked = False
    for _ in range(8):  # as often as it was started before the fork
        try:
            nvml.nvmlShutdown()
        except nvml.NVMLError:
            break
    with translated("starting NVML again after a fork"):
        nvml.nvmlInit()
    for device in list(_opened):
        with contextlib.suppress(nvml.NVMLError):  # one that is gone says so when it is read
            device.find_again()


def initialise() -> None:
    """Start NVML once for this process's library. Raises NoDriver where there is none that works."""
    global _initialised_library
    if _forked:
        _start_anew()
    if nvml.nvmlLib is not None and nvml.nvmlLib is _initialised_library and _still_initialised():
        return
    if not hasattr(nvml, "_nvmlGetFunctionPointer"):
        from ..simulation.nvml_library import HIDDEN_BINDINGS

        raise NoDriver(HIDDEN_BINDINGS)
    with translated("no NVIDIA GPU can be used"):
        nvml.nvmlInit()
    _initialised_library = nvml.nvmlLib


def _still_initialised() -> bool:
    """Whether nobody else in this process has shut NVML down since."""
    try:
        nvml.nvmlDeviceGetCount()
    except nvml.NVMLError as error:
        return bool(error.value != nvml.NVML_ERROR_UNINITIALIZED)
    return True


def library_is_simulated() -> bool:
    """Whether what answers in NVML's place is the simulated machine."""
    return bool(getattr(nvml.nvmlLib, "simulated", False))


def real_library_loaded() -> bool:
    """Whether this process has the real NVML in use."""
    return nvml.nvmlLib is not None and not library_is_simulated()


def is_privileged() -> bool:
    """Whether this process has the capability SYS_ADMIN, for which the driver asks."""
    with contextlib.suppress(OSError, ValueError, StopIteration):
        status = Path("/proc/self/status").read_text().splitlines()
        effective = next(line.split()[1] for line in status if line.startswith("CapEff:"))
        return bool(int(effective, 16) >> _SYS_ADMIN & 1)
    return hasattr(os, "geteuid") and os.geteuid() == 0


def missing_rights() -> str:
    """Why this process may set no limit and no clock, found out without setting any; empty where it may."""
    simulated = library_is_simulated()
    allowed = nvml.nvmlLib.privileged if simulated else is_privileged() or zeusd.present()
    return read_only() or ("" if allowed else _RIGHTS)


def driver_version() -> str:
    """The driver's version, such as "580.65.06"."""
    initialise()
    with translated("asking for the driver's version"):
        return str(nvml.nvmlSystemGetDriverVersion())


def count() -> int:
    """How many GPUs the driver shows this process."""
    initialise()
    with translated("counting the GPUs"):
        return int(nvml.nvmlDeviceGetCount())


class Counters:
    """One look at a GPU's performance counters; the driver's memory for it is given back with it."""

    def __init__(self, sample: Any) -> None:
        self.sample, self.time_s = sample, NAN
        weakref.finalize(self, _forget_sample, sample, nvml.nvmlLib).atexit = False


def _forget_sample(sample: Any, library: Any) -> None:
    with contextlib.suppress(nvml.NVMLError):
        if nvml.nvmlLib is library:
            nvml.nvmlGpmSampleFree(sample)


class _Capabilities(dict[str, Capability]):
    """What a GPU was asked when it was opened, by name: there, or absent with its reason."""

    def __init__(self, handle: Any) -> None:
        super().__init__()
        self._handle = handle

    def probe(self, name: str, read: Callable[[], T]) -> T | None:
        """A reading, and note whether it can be had; None where it cannot."""
        failure: DeviceError
        for _ in range(3):
            try:
                with translated(name):
                    value = read()
            except AttributeError:
                failure = NotSupported("this pynvml is too old for it")
            except DeviceError as error:
                failure = error
            else:
                self[name] = Capability(name, True)
                return value
            if isinstance(failure, GpuLost):
                raise failure
            if not isinstance(failure, Transient):
                break
        self[name] = Capability(name, False, str(failure))
        return None

    def first(self, name: str, *ways: tuple[Any, ...]) -> Callable[[], Any] | None:
        """The first function of pynvml (name, arguments) that gives a reading; None where none does."""
        for function, *arguments in ways:
            way = partial(self._call, function, *arguments)
            if self.probe(name, way) is not None:
                return way
        return None

    def _call(self, function: str, *arguments: Any) -> Any:
        return getattr(nvml, function)(self._handle, *arguments)


class NvmlDevice(OpenGpu):
    """A GPU behind NVML, real or simulated: a `protocol.Device`, opened by `workbench.open_device`."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self.simulated = library_is_simulated()
        # Not getattr with a default: a C library has a `clock` too, libc's.
        self.clock: Clock = nvml.nvmlLib.clock if self.simulated else MONOTONIC
        with translated("opening a GPU"):
            self.name = str(nvml.nvmlDeviceGetName(handle))
            self.uuid = str(nvml.nvmlDeviceGetUUID(handle))
            self.index = int(nvml.nvmlDeviceGetIndex(handle))
            self.pci_bus_id = str(nvml.nvmlDeviceGetPciInfo(handle).busId)
        with contextlib.suppress(nvml.NVMLError, AttributeError):
            if nvml.nvmlDeviceGetMigMode(handle)[0]:
                self.note = "MIG is on: power and energy are those of the whole GPU, of all its instances"
        able = _Capabilities(handle)
        self._able: _Capabilities = able
        generation = able.probe("architecture", lambda: nvml.nvmlDeviceGetArchitecture(handle))
        self.architecture = ARCHITECTURES.get(int(generation or 0), "unknown")
        capability = able.probe("compute_capability", lambda: nvml.nvmlDeviceGetCudaComputeCapability(handle))
        self.compute_capability = tuple(map(int, capability or (0, 0)))
        self.power_window_s = self._power_window_s()
        self._choose_readings()
        self._choose_status()
        self.limits = self._read_limits()
        self._probe_setters()
        able.probe("gpm", self._find_counters)
        # the clocks that this process has locked, each from a moment on: a day of changes every ten seconds
        self._locks: deque[tuple[float, Setting]] = deque(maxlen=10_000)
        self._daemon_ids: dict[tuple[str, ...], int] = {}
        _opened.add(self)

    def find_again(self) -> None:
        """Let the handle, which others have too, stand for this GPU in an NVML that was started again."""
        handle = nvml.nvmlDeviceGetHandleByUUID(self.uuid)
        ctypes.memmove(ctypes.addressof(self._handle), ctypes.addressof(handle), ctypes.sizeof(handle))

    # probing

    def _power_window_s(self) -> float:
        if self.architecture in ("Pascal", "Volta"):
            return 0.010
        if self.compute_capability == (8, 0) or self.architecture in ("Hopper", "Blackwell"):
            return 0.025
        return 0.100

    def _choose_readings(self) -> None:
        """Decide once how energy and power are read: one batched query where the driver has the fields."""
        able, handle = self._able, self._handle
        fields: list[tuple[int, int]] = []

        def in_batch(name: str, field: int, scope: int = _GPU_SCOPE) -> bool:
            found = able.probe(name, lambda: self._field(field, scope)) is not None
            if found:
                fields.append((field, scope))
            return found

        self._energy_in_batch = in_batch("energy", _ENERGY)
        if not self._energy_in_batch:
            able.probe("energy", lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle))
        self._power_in_batch = in_batch("power", _INSTANT)
        if not self._power_in_batch and in_batch("power", _INSTANT, _MODULE_SCOPE):
            self._power_in_batch = True
            self.note = "power and energy are those of the whole module (GPU, CPU and memory)"
        if not self._power_in_batch:
            able.probe("power", lambda: nvml.nvmlDeviceGetPowerUsage(handle))
            ampere = self.architecture == "Ampere" and self.compute_capability != (8, 0)
            if ampere or self.architecture in ("Ada", "Hopper", "Blackwell"):  # the mean of a second (nvml.h)
                self.power_window_s = 1.0
        self._limit_in_batch = bool(fields) and in_batch("enforced_limit", _ENFORCED)
        self._fields = (nvml.c_nvmlFieldValue_t * len(fields))()
        for value, (field, scope) in zip(self._fields, fields, strict=True):
            value.fieldId, value.scopeId = field, scope
        self._count, self._fields_at = ctypes.c_int(len(fields)), ctypes.byref(self._fields)

    def _choose_status(self) -> None:
        """Decide once how what changes slowly is read."""
        first = self._able.first
        self._read_limit = None if self._limit_in_batch else first(
            "enforced_limit", ("nvmlDeviceGetEnforcedPowerLimit",), ("nvmlDeviceGetPowerManagementLimit",)
        )
        self._read_clock = {
            "sm_clock_mhz": first("sm_clock", ("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM)),
            "mem_clock_mhz": first("mem_clock", ("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_MEM)),
        }
        self._read_busy = first("utilisation", ("nvmlDeviceGetUtilizationRates",))
        self._read_temperature = first("temperature", ("nvmlDeviceGetTemperatureV", 0),
                                       ("nvmlDeviceGetTemperature", 0))
        self._read_reasons = first("throttle", ("nvmlDeviceGetCurrentClocksEventReasons",),
                                   ("nvmlDeviceGetCurrentClocksThrottleReasons",))

    def _read_limits(self) -> Limits:
        handle, probe = self._handle, self._able.probe
        low_high = probe("limits", lambda: nvml.nvmlDeviceGetPowerManagementLimitConstraints(handle))
        default = probe("default_limit", lambda: nvml.nvmlDeviceGetPowerManagementDefaultLimit(handle))
        clocks: dict[int, tuple[int, ...]] = {}
        for mem in probe("clocks", lambda: nvml.nvmlDeviceGetSupportedMemoryClocks(handle)) or ():
            with contextlib.suppress(nvml.NVMLError):
                clocks[int(mem)] = tuple(map(int, nvml.nvmlDeviceGetSupportedGraphicsClocks(handle, mem)))
        low_w, high_w = (each / 1000 for each in low_high) if low_high else (None, None)
        return Limits(low_w, default / 1000 if default else None, high_w, clocks)

    def _probe_setters(self) -> None:
        """What could be set here, told without setting anything: rights show only when one tries."""
        limit = self._able.probe("power_limit", lambda: nvml.nvmlDeviceGetPowerManagementLimit(self._handle))
        if limit is not None:
            self._able.probe("requested_limit", lambda: self._field(_REQUESTED, _GPU_SCOPE))
        volta = self.architecture not in ("Kepler", "Maxwell", "Pascal", "unknown")
        ampere = volta and self.architecture not in ("Volta", "Turing")
        no_limit = self.why_not("power_limit") or self.why_not("limits")
        memories = len(self.limits.sm_clocks_mhz)
        no_memory = "it has one memory clock" if ampere and memories == 1 else (
            "locked memory clocks need Ampere or newer")
        for name, present, reason in (
            ("set_power_limit", limit is not None and self.can("limits"), no_limit),
            ("lock_sm_clock", volta and self.can("clocks"), "locked SM clocks need Volta or newer"),
            ("lock_mem_clock", ampere and memories > 1, no_memory),
        ):
            knob = next(knob for knob, (capability, _, _) in KNOBS.items() if capability == name)
            if read_only(knob):
                present, reason = False, read_only(knob)
            self._able[name] = Capability(name, present, "" if present else reason)

    # reading

    def _field(self, field: int, scope: int) -> int:
        value = nvml.nvmlDeviceGetFieldValues(self._handle, [(field, scope)])[0]
        if value.nvmlReturn != nvml.NVML_SUCCESS:
            raise nvml.NVMLError(value.nvmlReturn)
        return _number(value)

    def energy_j(self) -> float:
        if _forked:
            _start_anew()
        try:
            return float(nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle) / 1000)
        except nvml.NVMLError as error:
            raise error_for(error.value, f"reading the energy counter of {self.name}") from error

    def sample(self, status: Sample | None = None) -> Sample:
        """One sample (`protocol.Device`): NaN for a reading refused this once; raises for a lost GPU."""
        if _forked:
            _start_anew()
        handle = self._handle
        try:
            at_s = self.clock()
            batch = self._batch() if len(self._fields) else {}
            energy_j, power_w = batch.get(_ENERGY, NAN) / 1000, batch.get(_INSTANT, NAN) / 1000
            limit_w = batch.get(_ENFORCED, NAN) / 1000
            if not self._energy_in_batch and self.can("energy"):
                energy_j = self._try(nvml.nvmlDeviceGetTotalEnergyConsumption, handle) / 1000
            if not self._power_in_batch and self.can("power"):
                power_w = self._try(nvml.nvmlDeviceGetPowerUsage, handle) / 1000
            power_w = power_w or NAN  # 0 mW is what some drivers answer when asked too fast
            if status is not None:
                limit_w = status.power_limit_w if math.isnan(limit_w) else limit_w
                return Sample(at_s, energy_j, power_w, limit_w, *status[4:])
            if self._read_limit:
                limit_w = self._try(self._read_limit) / 1000
            busy: Any = self._try(self._read_busy)
            known = busy is not None and not isinstance(busy, float)
            reasons = self._try(self._read_reasons)
            sm_mhz, mem_mhz = (self._try(read) for read in self._read_clock.values())
            return Sample(
                at_s, energy_j, power_w, limit_w, sm_mhz, mem_mhz,
                busy.gpu / 100 if known else NAN, busy.memory / 100 if known else NAN,
                self._try(self._read_temperature), 0 if isinstance(reasons, float) else int(reasons),
            )
        except nvml.NVMLError as error:
            raise error_for(error.value, f"reading {self.name}") from error

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
                given[value.fieldId] = _number(value)
            else:
                self._refused(nvml.NVMLError(value.nvmlReturn))
        return given

    def _try(self, read: Callable[..., Any] | None, *arguments: Any) -> Any:
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

    def _clock_mhz(self, knob: str) -> float:
        with translated(f"reading {knob} of {self.name}"):
            return float(self._try(self._read_clock[knob]))

    # performance counters (GPM)

    def _find_counters(self) -> bool:
        """Whether the driver tells the GPU's performance counters (GPM)."""
        if not nvml.nvmlGpmQueryDeviceSupport(self._handle).isSupportedDevice:
            raise NotSupported("performance counters through NVML (GPM) need Hopper or newer")
        return True

    def counters(self) -> Any:
        """`OpenGpu.counters`; there are none before Hopper and with MIG."""
        if not self.can("gpm"):
            return super().counters()
        with translated(f"reading the performance counters of {self.name}"):
            sample = nvml.nvmlGpmSampleAlloc()
            kept = Counters(sample)
            at_s = self.clock()
            nvml.nvmlGpmSampleGet(self._handle, sample)
        kept.time_s = 0.5 * (at_s + self.clock())
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
        """Device memory in use, and all there is. Raises DeviceError where the driver does not tell."""
        with translated(f"reading the memory of {self.name}"):
            found = nvml.nvmlDeviceGetMemoryInfo(self._handle)
        return int(found.used), int(found.total)

    def processes(self) -> tuple[Process, ...]:
        lists: list[dict[int, int | None]] = []
        for name in ("Compute", "MPSCompute"):
            lists.append({})
            with contextlib.suppress(nvml.NVMLError, AttributeError):
                for row in getattr(nvml, f"nvmlDeviceGet{name}RunningProcesses")(self._handle):
                    lists[-1][int(row.pid)] = None if row.usedGpuMemory is None else int(row.usedGpuMemory)
        others, clients = lists
        named = {pid: _processes.name_of(pid) for pid in {*others, *clients}}
        if clients:  # then the first list has their server, which may be another container's
            for server in [pid for pid in others.keys() - clients.keys() if named[pid] == "?"][:1]:
                del others[server]
        found = sorted({**others, **clients}.items())
        return tuple(Process(pid, named[pid], memory) for pid, memory in found)

    # setting

    def locked(self) -> Setting:
        return self._locks[-1][1] if self._locks else Setting()

    def lock_history(self) -> tuple[tuple[float, Setting], ...]:
        return tuple(self._locks)

    def _note(self, clocks_mhz: dict[str, int | None]) -> None:
        self._locks.append((self.clock(), replace(self.locked(), **clocks_mhz)))

    def write(self, setting: Setting) -> Setting:
        """Put the device to a setting, which nothing puts back (`lease` does); returns what was read back.

        Raises:
            OutOfRange, NotSupported, NotPermitted: with the way out; what was changed before it is put back.
        """
        self.check(setting)
        asked_w, before_w, name = setting.power_limit_w, self._limit_w(), self.name
        tried: list[str] = []
        try:
            self._set(setting, tried)
        except DeviceError:
            with contextlib.suppress(DeviceError):
                self._set(Setting(before_w if asked_w is not None else None), [])
                self.reset(tuple(knob for knob in tried if knob != "power_limit_w"))
            raise
        after = self.setting()
        shown_w = after.power_limit_w
        if asked_w is not None and shown_w is not None and abs(shown_w - asked_w) > 1:
            cap_w = None if self.can("requested_limit") else self.enforced_limit_w()
            if cap_w is not None and abs(shown_w - cap_w) <= 1 < asked_w - cap_w:
                return after  # a cap holds, of a management controller, and hides what was asked for
            raise DriverError(f"the driver took {asked_w:g} W for {name} and shows {shown_w:g} "
                              "W: another program is changing the limit too")
        return after

    def setting(self) -> Setting:
        return replace(self.locked(), power_limit_w=self._limit_w())

    def reset(self, knobs: tuple[str, ...]) -> None:
        for knob in knobs:
            default_w = self.limits.default_power_limit_w
            if knob != "power_limit_w":
                act = partial(getattr(nvml, f"nvmlDeviceReset{_LOCKED_CLOCKS[knob]}"), self._handle)
                doing, lent = f"resetting {knob} of {self.name}", partial(zeusd.reset_clock, knob=knob)
                self._privileged(knob, doing, act, lent)
                self._note({knob: None})
            elif default_w is not None:
                self._set(Setting(power_limit_w=default_w), [])

    def _limit_w(self) -> float | None:
        """The power limit that was asked for, which a cap may undercut; None where it cannot be read."""
        if not self.can("power_limit"):
            return None
        with translated(f"reading the power limit of {self.name}"):
            if self.can("requested_limit"):
                return self._field(_REQUESTED, _GPU_SCOPE) / 1000
            return float(nvml.nvmlDeviceGetPowerManagementLimit(self._handle) / 1000)

    def enforced_limit_w(self) -> float | None:
        try:
            if self._limit_in_batch:
                return self._field(_ENFORCED, _GPU_SCOPE) / 1000
            return float(nvml.nvmlDeviceGetEnforcedPowerLimit(self._handle) / 1000)
        except (nvml.NVMLError, AttributeError):
            return None

    def _set(self, setting: Setting, tried: list[str]) -> None:
        """Set what a setting names, each knob noted in `tried` before it."""
        limit_w, name = setting.power_limit_w, self.name
        if limit_w is not None:
            tried.append("power_limit_w")
            self._privileged(
                "power_limit_w", f"setting the power limit of {name} to {limit_w:g} W",
                partial(nvml.nvmlDeviceSetPowerManagementLimit, self._handle, round(1000 * limit_w)),
                lambda gpu: zeusd.set_power_limit(gpu, limit_w, self._limit_w),
            )
        # Memory first: it decides which SM clocks there are.
        for knob in ("mem_clock_mhz", "sm_clock_mhz"):
            clock = getattr(setting, knob)
            if clock is not None:
                tried.append(knob)
                lock = getattr(nvml, f"nvmlDeviceSet{_LOCKED_CLOCKS[knob]}")
                within = self._lock_range(knob, clock, setting.mem_clock_mhz)
                self._privileged(knob, f"locking the {KNOBS[knob][1]} of {name} to {clock} MHz",
                                 partial(lock, self._handle, *within),
                                 partial(self._lock_through_daemon, knob, clock, setting.mem_clock_mhz))
                self._note({knob: clock})

    def _clocks_mhz(self, knob: str, mem_clock_mhz: int | None) -> tuple[int, ...]:
        """The clocks of a knob; SM clocks go with a memory clock, the highest where None."""
        memories = self.limits.mem_clocks_mhz
        if knob == "mem_clock_mhz":
            return memories
        return self.limits.sm_clocks_mhz.get(mem_clock_mhz or max(memories, default=0), ())

    def _lock_range(self, knob: str, clock_mhz: int, mem_clock_mhz: int | None) -> tuple[int, int]:
        """The lowest and highest clock (MHz) of a lock, which is a ceiling: a GPU at rest may go down."""
        return min(self._clocks_mhz(knob, mem_clock_mhz), default=clock_mhz), clock_mhz

    def _lock_through_daemon(self, knob: str, clock_mhz: int, mem_clock_mhz: int | None, gpu: int) -> None:
        choices = self._clocks_mhz(knob, mem_clock_mhz)
        zeusd.lock_clock(gpu, knob, clock_mhz, choices, partial(self._clock_mhz, knob), self.clock)

    def _privileged(
        self, knob: str, doing: str, act: Callable[[], object], lent: Callable[[int], None]
    ) -> None:
        """Do to a knob what takes rights: with one's own, else with those that the Zeus daemon lends."""
        if reason := read_only(knob):
            raise NotPermitted(f"{doing}: {reason}")
        try:
            with translated(doing):
                act()
        except NotPermitted:
            if self.simulated or not zeusd.present():  # no daemon knows a simulated GPU
                raise
            lent(self._daemon_id())

    def _daemon_id(self) -> int:
        """The Zeus daemon's number for this GPU, kept: restoring must not depend on other GPUs."""
        key = tuple(os.environ.get(name, "") for name in ("ZEUSD_SOCK_PATH", "ZEUSD_GPU_ID"))
        if key not in self._daemon_ids:
            known = identities()
            uuids = [uuid for uuid, _, _ in known]
            if self.uuid not in uuids:
                raise error_for(nvml.NVML_ERROR_GPU_IS_LOST, f"finding {self.name} among the GPUs")
            place = uuids.index(self.uuid)
            self._daemon_ids[key] = zeusd.gpu_id(place, [name for _, _, name in known])
        return self._daemon_ids[key]

    def missing_rights(self) -> str:
        return missing_rights()

    def clocks_are_set(self) -> bool | None:
        with translated(f"reading the clock event reasons of {self.name}"):
            reasons = self._try(self._read_reasons)
        if isinstance(reasons, float) or int(reasons) & nvml.nvmlClocksThrottleReasonGpuIdle:
            return None
        if not int(reasons) & CLOCKS_SET:
            return False
        own_mhz = self.application_clock_mhz()  # what holds it back where it runs at them, and no lock
        return own_mhz is None or self._clock_mhz("sm_clock_mhz") <= own_mhz - zeusd.SAME_MHZ

    def application_clock_mhz(self) -> int | None:
        """The SM clock that `nvidia-smi -ac` has set for all programs, which a lock supersedes (nvml.h,
        nvmlDeviceSetGpuLockedClocks); None where it is the card's own, or the driver does not tell.
        """
        found = []
        for name in ("ApplicationsClock", "DefaultApplicationsClock"):
            try:
                found.append(int(getattr(nvml, f"nvmlDeviceGet{name}")(self._handle, nvml.NVML_CLOCK_SM)))
            except (nvml.NVMLError, AttributeError):
                return None
        return found[0] if found[0] != found[1] else None

    def commands(self, now: Setting, wanted: Setting) -> tuple[str, ...]:
        from .control import changed  # loads NumPy, which the watchdog does without

        nvidia_smi, lines = f"sudo nvidia-smi -i {shlex.quote(self.uuid)}", []
        for knob in changed(now, wanted):
            value = getattr(wanted, knob)
            if knob == "power_limit_w":
                lines += [f"{nvidia_smi} -pl {value:g}"] if value is not None else []
            else:
                lock, reset = ("-lgc", "-rgc") if knob == "sm_clock_mhz" else ("-lmc", "-rmc")
                within = self._lock_range(knob, value or 0, wanted.mem_clock_mhz)
                act = reset if value is None else f"{lock} {within[0]},{within[1]}"
                lines.append(f"{nvidia_smi} {act}")
        return tuple(lines)

    def modes(self) -> dict[str, float]:
        handle = self._handle
        asked: dict[str, Callable[[], Any]] = {
            "persistence": lambda: nvml.nvmlDeviceGetPersistenceMode(handle),
            "compute_mode": lambda: nvml.nvmlDeviceGetComputeMode(handle),
            "mig": lambda: nvml.nvmlDeviceGetMigMode(handle)[0],
            "requested_limit_w": self._limit_w,
            "enforced_limit_w": self.enforced_limit_w,
            "clocks_set": lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(handle) & CLOCKS_SET,
        }
        with contextlib.suppress(nvml.NVMLError, AttributeError):
            asked["mps_clients"] = partial(len, nvml.nvmlDeviceGetMPSComputeRunningProcesses(handle))
        found: dict[str, float] = {}
        for name, read in asked.items():
            with contextlib.suppress(nvml.NVMLError, AttributeError, DeviceError):
                if (value := read()) is not None:
                    found[name] = value
        return found


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


def open_index(index: int) -> NvmlDevice:
    """The device at an NVML index (PCI order)."""
    initialise()
    with translated(f"opening GPU {index}"):
        return NvmlDevice(nvml.nvmlDeviceGetHandleByIndex(index))


def open_uuid(uuid: str) -> NvmlDevice:
    """The device with a full UUID, visible to CUDA or not; for a MIG instance's its whole GPU."""
    from ..simulation import machine

    machine.attached()
    if uuid.startswith(_BY_INDEX):
        return open_index(int(uuid[len(_BY_INDEX) :]))
    initialise()
    with translated(f"opening GPU {uuid}"):
        handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
        if not uuid.startswith("MIG-"):
            return NvmlDevice(handle)
        device = NvmlDevice(nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle))
    device.note = "this is a MIG instance: power and energy are those of its whole GPU"
    return device


def identities() -> list[Identity]:
    """(UUID, PCI bus id, name) of every GPU that no cgroup hides, in NVML order.

    One that is lost has `NVML:<index>` for a UUID: without it, an index would mean its neighbour.
    """
    rows: list[Identity] = []
    for index in range(count()):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            pci = nvml.nvmlDeviceGetPciInfo(handle).busId
            rows.append((str(nvml.nvmlDeviceGetUUID(handle)), str(pci), str(nvml.nvmlDeviceGetName(handle))))
        except nvml.NVMLError as error:
            if isinstance(error_for(error.value, ""), GpuLost):
                rows.append((f"{_BY_INDEX}{index}", "", "a GPU that is lost"))
    return rows


def visible(known: Sequence[Identity]) -> list[str]:
    """UUIDs that CUDA_VISIBLE_DEVICES leaves to this process, in CUDA's order."""
    return selection.visible(known, _environment())


def resolve(which: int | str, known: Sequence[Identity]) -> str:
    """The UUID of the GPU that is meant: by CUDA's number, a UUID or its beginning, or a PCI id."""
    return selection.resolve(which, known, _environment())


def environment(uuid: str, asked: str = "") -> dict[str, str]:
    """Variables with which CUDA sees one GPU alone, or the part of it (a MIG instance) that was asked for or
    is visible.
    """
    entries = [each.strip() for each in os.environ.get(VISIBLE, "").split(",")]
    if asked.isdigit() and int(asked) < len(entries):
        asked = entries[int(asked)]
    return {VISIBLE: asked if asked.startswith("MIG-") else uuid, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def _environment() -> dict[str, str]:
    """What says which GPUs are visible. No CUDA numbers simulated GPUs, so they go by PCI bus."""
    order = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"} if library_is_simulated() else {}
    return {**os.environ, **order}


def why_none(error: DeviceError | None = None) -> str:
    """Why no GPU can be used, with the remedy where a container is behind it."""
    if error is None:
        return _INTEGRATED if count() else "the driver works and finds no GPU"
    if error.code == _UNKNOWN:
        return (
            f"{error}; a container says so that has lost its GPUs (after `systemctl daemon-reload` on its "
            "host): restart it"
        )
    if error.code == _NO_LIBRARY and os.path.exists("/dev/nvidiactl"):
        return (f"{error}, but a GPU is here: start the container with -e "
                "NVIDIA_DRIVER_CAPABILITIES=compute,utility")
    return str(error)


def _number(value: Any) -> int:
    """A field value's number by its type (0 double, 1 uint, 2 ulong, 3 ulonglong, 4 longlong, 5 int)."""
    kind = value.valueType
    if kind == 0:
        return round(float(value.value.dVal))
    if kind == 1:
        return int(value.value.uiVal)
    if kind == 5:
        return int(ctypes.c_int(value.value.uiVal).value)
    return int(value.value.ullVal)
