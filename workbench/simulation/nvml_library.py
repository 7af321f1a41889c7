"""A simulated NVML that replaces `pynvml.nvmlLib` and answers from the simulated machine's memory.

`install()` puts it where pynvml keeps the loaded library. Everything above runs unchanged: our own driver,
and any other NVML program in the process. Each function takes pynvml's arguments (handles, `byref` arguments,
buffers) and returns an NVML code. Answers and error codes follow nvml.h. A function without an implementation
is a missing symbol, as in an old driver.

Standard library and pynvml only: the sampling process imports this.
"""

from __future__ import annotations

import ctypes
import math
import os
import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pynvml

from ..errors import SimulationError
from . import activity, replay, sensors
from .state import ENVIRONMENT_VARIABLE, MachineState

OK, UNINITIALIZED, INVALID, UNSUPPORTED, DENIED, NOT_FOUND, TOO_SMALL, UNKNOWN = 0, 1, 2, 3, 4, 6, 7, 999
NO_DATA, OTHER_VERSION, DRAM_UTILISATION = 21, 25, 10
HIDDEN_BINDINGS = (
    "an old package named pynvml hides NVIDIA's bindings; pip uninstall pynvml, pip install nvidia-ml-py"
)
_INSTANCES = 0x100  # the handle of a GPU is its index plus 1; this offset gives its MIG instance
_TDP, _UNLIMITED = 0xFFFFFF01, 0xFFFFFF02
HOST_PIDS = 1 << 23  # above any process id of this system


class MachineClock:
    """The simulated machine's clock. A stepped clock moves only during a sleep or a step."""

    def __init__(self, state: MachineState) -> None:
        self._state = state
        self.on_step: list[Callable[[float], None]] = []

    def __call__(self) -> float:
        return self._state.now_s()

    @property
    def stepped(self) -> bool:
        return bool(self._state.header("stepped"))

    @property
    def scale(self) -> float:
        """Seconds of this clock per real second."""
        return float(self._state.header("scale"))

    def sleep(self, seconds: float) -> None:
        if self.stepped:
            self.step(seconds)
        elif seconds > 0:
            time.sleep(seconds / self.scale)

    def step(self, seconds: float) -> None:
        """Move a stepped clock; listeners get the new time first and may stop at moments before it."""
        if not self.stepped:
            raise SimulationError(
                "this simulated machine runs in real time; simulate(..., stepped=True) makes one to step"
            )
        if seconds < 0:
            raise SimulationError(f"time cannot go back ({seconds:g} s)")
        target_s = self() + seconds
        for listener in list(self.on_step):
            listener(target_s)
        self.show(target_s)

    def show(self, at_s: float) -> None:
        """Set a stepped clock forward without a call of listeners; for listeners."""
        self._state.set_header("stepped_now_s", max(at_s, self()))

    def unix_s(self, at_s: float) -> float:
        return float(self._state.header("unix_s") + at_s)


class SimulatedLibrary:
    """The counterpart of `ctypes.CDLL`; the driver module recognises it by `simulated` and `clock`."""

    simulated = True

    def __init__(self, state: MachineState) -> None:
        self.state = state
        self.clock = MachineClock(state)
        self._initialised = 0
        self._pid = 0  # the process that it works in, if it does not outlive a fork
        self._latency_s, self._random = 0.0, random.Random(state.header("seed"))
        # GPM: GPU and time of each taken sample, by the number of the sample
        self._samples: dict[int, tuple[int, float] | None] = {}
        answers = {name[1:]: getattr(self, name) for name in dir(type(self)) if name.startswith("_nvml")}
        answers |= {name: partial(self._number, ask) for name, ask in NUMBERS.items()}
        self.recording = replay.of_machine(state)
        if self.recording is not None:
            names = {*self.recording.functions, *answers} - {replay.FIELDS}
            call = partial(self.recording.call, state.now_s)
            answers |= {name: partial(call, name) for name in names if not name.startswith(_KEPT)}
        for name, answer in answers.items():
            setattr(self, name, self._guarded(name, answer))
        # A plain function, as all are: pynvml sets attributes of its symbols, and a method has none.
        self.nvmlErrorString = lambda code: _ERRORS.get(int(code), "Unknown Error").encode()

    def _guarded(self, name: str, call: Callable[..., int]) -> Callable[..., Any]:
        """The checks of every call: driver, initialisation, injected faults, a lost GPU, call latency, the
        required ability of the GPU, and the required right of the process.
        """
        ability, privileged = NEEDS.get(name, ""), name.startswith(_CHANGES)
        on_device = (
            name.startswith("nvmlDevice") and "HandleBy" not in name and "Count" not in name
        ) or name in ("nvmlGpmQueryDeviceSupport", "nvmlGpmSampleGet", "nvmlGpmMigSampleGet")
        by_index = "HandleByIndex" in name
        needs_init = not name.startswith("nvmlInit")
        state = self.state

        def guarded(*arguments: Any) -> int:
            if needs_init and not self._initialised:
                return UNINITIALIZED
            if self._pid and self._pid != os.getpid() and "Shutdown" not in name:
                return UNKNOWN
            gpu, instance = -1, False
            if on_device:
                gpu, instance = _index(arguments[0], state.count)
                if gpu < 0:
                    return INVALID
                lost = state.control(gpu, "lost")
                if lost:
                    return int(lost)
                arguments = (gpu, *arguments[1:])
            elif by_index:
                gpu = int(getattr(arguments[0], "value", arguments[0]))
            code = state.fault(name, gpu)
            if code:
                return code
            if instance:
                return self._on_instance(name, *arguments)
            if ability and not state.able(gpu, ability):
                return UNSUPPORTED
            if privileged and state.header("unprivileged"):
                return DENIED
            if not self._latency_s:
                return call(*arguments)
            return self._slowly(call, *arguments)

        return guarded

    @property
    def privileged(self) -> bool:
        """Whether limits and clocks may be set."""
        return not self.state.header("unprivileged")

    def _slowly(self, call: Callable[..., int], *arguments: Any) -> int:
        """A call that takes time behind the driver's one lock, with its answer from some moment within."""
        spread = self.state.header("latency_spread")
        call_s = self._latency_s
        if spread:
            call_s = min(max(call_s * math.exp(self._random.gauss(0.0, spread)), 5e-5), 0.02)
        before_s = call_s * self._random.random()
        with self.state.driver():
            self._spend(before_s)
            answer = call(*arguments)
            self._spend(call_s - before_s)
        return answer

    def _spend(self, seconds: float) -> None:
        """Let time pass within a call: real seconds, or the machine's if its clock is stepped."""
        if self.clock.stepped:
            self.clock.show(self.clock() + seconds)
        else:
            time.sleep(seconds)

    @staticmethod
    def _on_instance(name: str, gpu: int, *arguments: Any) -> int:
        """Answers of a MIG instance: its type, and its GPU; power and clocks are the GPU's."""
        if name == "nvmlDeviceIsMigDeviceHandle":
            arguments[0]._obj.value = 1
            return OK
        if name == "nvmlDeviceGetDeviceHandleFromMigDeviceHandle":
            return _write_out(arguments[0], gpu)
        return UNSUPPORTED

    def _number(self, ask: Callable[..., int], gpu: int, out: Any) -> int:
        """The answer of a function of `NUMBERS`."""
        out._obj.value = ask(self.state, gpu, self._now())
        return OK

    def forget(self, name: str) -> None:
        """Act as a driver too old to export this function."""
        delattr(self, name)
        pynvml._nvmlGetFunctionPointer_cache.pop(name, None)

    def _now(self) -> float:
        return self.state.now_s()

    # library and machine

    def _nvmlInitWithFlags(self, _flags: Any) -> int:
        fault = self.state.header("driver_fault")
        if fault:
            return int(fault)
        self._latency_s = self.state.header("latency_s")
        self._pid = os.getpid() if self.state.header("dies_in_fork") else 0
        self._initialised += 1
        return OK

    _nvmlInit_v2 = _nvmlInitWithFlags

    def _nvmlShutdown(self) -> int:
        self._initialised -= 1
        self._pid = self._pid if self._initialised else 0
        return OK

    def _nvmlSystemGetDriverVersion(self, buffer: Any, size: Any) -> int:
        return _text(buffer, size, self.state.header("driver_version"))

    def _nvmlSystemGetNVMLVersion(self, buffer: Any, size: Any) -> int:
        return _text(buffer, size, "13.0.simulated")

    def _nvmlSystemGetCudaDriverVersion_v2(self, version: Any) -> int:
        version._obj.value = 13000
        return OK

    _nvmlSystemGetCudaDriverVersion = _nvmlSystemGetCudaDriverVersion_v2

    def _nvmlSystemGetProcessName(self, pid: Any, buffer: Any, size: Any) -> int:
        try:
            with open(f"/proc/{pid.value}/cmdline", "rb") as file:
                return _text(buffer, size, file.read().split(b"\0")[0].decode(errors="replace"))
        except OSError:
            return NOT_FOUND

    def _nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = self.state.count
        return OK

    def _nvmlDeviceGetHandleByIndex_v2(self, index: Any, handle: Any) -> int:
        number = int(getattr(index, "value", index))
        if not 0 <= number < self.state.count:
            return INVALID
        return _write_out(handle, number)

    def _nvmlDeviceGetHandleByUUID(self, uuid: Any, handle: Any) -> int:
        text = uuid.value.decode()
        if text.upper().startswith("MIG-"):  # a GPU in MIG mode has one instance, with the rest of its UUID
            for gpu in range(self.state.count):
                whole = self.state.card(gpu, "uuid")
                if self.state.card(gpu, "mig") and whole[4:].upper() == text[4:].upper():
                    return _write_out(handle, _INSTANCES + gpu)
        return self._by("uuid", text, handle)

    def _nvmlDeviceGetHandleByPciBusId_v2(self, pci: Any, handle: Any) -> int:
        text = pci.value.decode().upper()
        return self._by("pci", (f"0:{text}" if text.count(":") == 1 else text).zfill(16), handle)

    def _by(self, field: str, value: str, handle: Any) -> int:
        for gpu in range(self.state.count):
            if self.state.card(gpu, field).upper() == value.upper():
                return _write_out(handle, gpu)
        return NOT_FOUND

    # properties of the card

    def _nvmlDeviceGetName(self, gpu: int, buffer: Any, size: Any) -> int:
        return _text(buffer, size, self.state.card(gpu, "name"))

    def _nvmlDeviceGetUUID(self, gpu: int, buffer: Any, size: Any) -> int:
        return _text(buffer, size, self.state.card(gpu, "uuid"))

    def _nvmlDeviceGetPciInfo_v3(self, gpu: int, info: Any) -> int:
        bus_id = self.state.card(gpu, "pci")
        info = info._obj
        domain, bus, rest = bus_id.split(":")
        info.busId, info.busIdLegacy = bus_id.encode(), bus_id[4:].encode()
        info.domain, info.bus, info.device = int(domain, 16), int(bus, 16), int(rest.split(".")[0], 16)
        return OK

    def _nvmlDeviceGetCudaComputeCapability(self, gpu: int, major: Any, minor: Any) -> int:
        major._obj.value = self.state.card(gpu, "cc_major")
        minor._obj.value = self.state.card(gpu, "cc_minor")
        return OK

    def _nvmlDeviceGetMemoryInfo(self, gpu: int, info: Any) -> int:
        total, used = self.state.card(gpu, "memory_bytes"), sum(m for _, m in self.state.processes(gpu))
        info._obj.total, info._obj.used, info._obj.free = total, used, total - used
        return OK

    _nvmlDeviceGetMemoryInfo_v2 = _nvmlDeviceGetMemoryInfo

    def _nvmlDeviceGetMigMode(self, gpu: int, current: Any, pending: Any) -> int:
        if self.state.card(gpu, "architecture") not in (7, 9) or not self.state.able(gpu, "power"):
            return UNSUPPORTED
        current._obj.value = pending._obj.value = self.state.card(gpu, "mig")
        return OK

    def _nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, _gpu: int, _handle: Any) -> int:
        return INVALID

    # sensors

    def _nvmlDeviceGetFieldValues(self, gpu: int, count: Any, values: Any) -> int:
        now = self._now()
        stamp = round(1e6 * self.clock.unix_s(now))
        fields = values._obj if hasattr(values, "_obj") else values
        for field in fields[: count.value]:
            code, value = self._field(gpu, field.fieldId, field.scopeId, now)
            field.nvmlReturn, field.timestamp, field.latencyUsec = code, stamp, 0
            field.valueType = 3 if field.fieldId in (83, 191) else 1
            field.value.ullVal = value
        return OK

    def _field(self, gpu: int, field: int, scope: int, now: float) -> tuple[int, int]:
        state = self.state
        code = state.fault(f"field:{field}", gpu)
        if code:
            return code, 0
        if self.recording is not None:
            code, value = self.recording.at(now, gpu, replay.FIELDS, [field, scope])
            return code, value or 0
        if field in (83, 191) and state.able(gpu, "energy"):
            return OK, sensors.energy_mj(state, gpu, now)
        if field in (185, 186) and scope != state.card(gpu, "power_scope"):
            return UNSUPPORTED, 0
        if field == 186 and state.able(gpu, "instant_field"):
            return OK, round(1000 * sensors.power_w(state, gpu, now))
        if field == 185 and state.able(gpu, "average_field"):
            return OK, round(1000 * sensors.power_w(state, gpu, now, averaged=True))
        if field in _LIMIT_FIELDS and state.able(gpu, "power_limit"):
            return OK, _LIMIT_FIELDS[field](state, gpu)
        return UNSUPPORTED, 0

    def _nvmlDeviceGetUtilizationRates(self, gpu: int, rates: Any) -> int:
        if self.state.card(gpu, "mig"):
            return UNSUPPORTED
        rates._obj.gpu, rates._obj.memory = sensors.utilisation(self.state, gpu, self._now())
        return OK

    def _nvmlDeviceGetEncoderUtilization(self, _gpu: int, busy: Any, period: Any) -> int:
        busy._obj.value, period._obj.value = 0, 167000
        return OK

    _nvmlDeviceGetDecoderUtilization = _nvmlDeviceGetEncoderUtilization

    def _nvmlDeviceGetTemperature(self, gpu: int, _sensor: Any, degrees: Any) -> int:
        degrees._obj.value = sensors.temperature_c(self.state, gpu, self._now())
        return OK

    def _nvmlDeviceGetTemperatureV(self, gpu: int, reading: Any) -> int:
        reading._obj.temperature = sensors.temperature_c(self.state, gpu, self._now())
        return OK

    def _nvmlDeviceGetFanSpeed(self, _gpu: int, *_arguments: Any) -> int:
        return UNSUPPORTED

    # Functions that monitors call for every card; a missing symbol would make them log at length.
    _nvmlDeviceGetDriverModel = _nvmlDeviceGetDriverModel_v2 = _nvmlDeviceGetFanSpeed
    _nvmlDeviceGetTotalEccErrors = _nvmlDeviceGetProcessUtilization = _nvmlDeviceGetFanSpeed

    def _nvmlDeviceGetClockInfo(self, gpu: int, kind: Any, mhz: Any) -> int:
        segment = self.state.segment_at(gpu, self._now())
        kind = getattr(kind, "value", kind)
        mhz._obj.value = segment.mem_clock_mhz if kind == 2 else segment.sm_clock_mhz
        return OK

    def _nvmlDeviceGetMaxClockInfo(self, gpu: int, kind: Any, mhz: Any) -> int:
        kind = getattr(kind, "value", kind)
        mhz._obj.value = (self.state.mem_clocks(gpu) if kind == 2 else self.state.sm_clocks(gpu))[0]
        return OK

    def _nvmlDeviceGetSupportedMemoryClocks(self, gpu: int, count: Any, clocks: Any) -> int:
        return _fill(count, clocks, self.state.mem_clocks(gpu))

    def _nvmlDeviceGetSupportedGraphicsClocks(self, gpu: int, mem_mhz: Any, count: Any, clocks: Any) -> int:
        if mem_mhz.value not in self.state.mem_clocks(gpu):
            return NOT_FOUND
        return _fill(count, clocks, self.state.sm_clocks_at(gpu, mem_mhz.value))

    def _nvmlDeviceGetComputeRunningProcesses_v3(self, gpu: int, count: Any, processes: Any) -> int:
        server = self.state.card(gpu, "mps")
        return self._list(gpu, [(server, 2**20)] if server else self.state.processes(gpu), count, processes)

    def _nvmlDeviceGetMPSComputeRunningProcesses_v3(self, gpu: int, count: Any, processes: Any) -> int:
        rows = self.state.processes(gpu) if self.state.card(gpu, "mps") else []
        return self._list(gpu, rows, count, processes)

    def _list(self, gpu: int, rows: list[tuple[int, int]], count: Any, processes: Any) -> int:
        room, count._obj.value = count._obj.value, len(rows)
        if rows and (processes is None or room < len(rows)):
            return TOO_SMALL
        for slot, (pid, memory) in enumerate(rows):
            pid += HOST_PIDS if self.state.card(gpu, "host_pids") else 0
            processes[slot].pid, processes[slot].usedGpuMemory = pid, memory
            processes[slot].gpuInstanceId = processes[slot].computeInstanceId = 0xFFFFFFFF
        return OK

    def _nvmlDeviceGetGraphicsRunningProcesses_v3(self, _gpu: int, count: Any, _processes: Any) -> int:
        count._obj.value = 0
        return OK

    # power limit and clocks

    def _nvmlDeviceGetPowerManagementLimitConstraints(self, gpu: int, low: Any, high: Any) -> int:
        low._obj.value, high._obj.value = (_LIMIT_FIELDS[field](self.state, gpu) for field in (187, 188))
        return OK

    def _nvmlDeviceSetPowerManagementLimit(self, gpu: int, milliwatts: Any) -> int:
        watts = milliwatts.value / 1000
        if not self.state.card(gpu, "limit_min_w") <= watts <= self.state.card(gpu, "limit_max_w"):
            return INVALID
        self.state.change_setting(gpu, limit_w=watts)
        return OK

    def _nvmlDeviceSetPowerManagementLimit_v2(self, gpu: int, value: Any) -> int:
        return self._nvmlDeviceSetPowerManagementLimit(gpu, ctypes.c_uint(value._obj.powerValueMw))

    def _nvmlDeviceSetGpuLockedClocks(self, gpu: int, low: Any, high: Any) -> int:
        return self._lock(gpu, "sm", low.value, high.value, self.state.sm_clocks(gpu))

    def _nvmlDeviceResetGpuLockedClocks(self, gpu: int) -> int:
        self.state.change_setting(gpu, lock_sm_min=0, lock_sm_max=0)
        return OK

    def _nvmlDeviceSetMemoryLockedClocks(self, gpu: int, low: Any, high: Any) -> int:
        return self._lock(gpu, "mem", low.value, high.value, self.state.mem_clocks(gpu))

    def _nvmlDeviceResetMemoryLockedClocks(self, gpu: int) -> int:
        self.state.change_setting(gpu, lock_mem_min=0, lock_mem_max=0)
        return OK

    def _lock(self, gpu: int, knob: str, low: int, high: int, supported: tuple[int, ...]) -> int:
        symbolic = [value in (_TDP, _UNLIMITED) for value in (low, high)]
        if any(symbolic):
            if not all(symbolic):
                return INVALID
            low, high = 0, supported[0]
        elif low > high or high < supported[-1] or low > supported[0]:
            return INVALID
        self.state.change_setting(gpu, **{f"lock_{knob}_min": low, f"lock_{knob}_max": high})
        return OK

    def _nvmlDeviceSetPersistenceMode(self, gpu: int, mode: Any) -> int:
        self.state.set_control(gpu, "persistence", int(getattr(mode, "value", mode)))
        return OK


    # GPM, performance counters: the activity between two samples. Hopper and newer have it. A GPU that is cut
    # into MIG instances refuses, and so do all metrics except the memory's.

    def _nvmlGpmQueryDeviceSupport(self, gpu: int, support: Any) -> int:
        if support._obj.version != 1:
            return OTHER_VERSION
        support._obj.isSupportedDevice = int(self._counts(gpu))
        return OK

    def _nvmlGpmSampleAlloc(self, sample: Any) -> int:
        number = max(self._samples, default=0) + 1
        self._samples[number] = None
        ctypes.c_void_p.from_address(ctypes.addressof(sample._obj)).value = number
        return OK

    def _nvmlGpmSampleFree(self, sample: Any) -> int:
        return OK if self._samples.pop(_number_of(sample), 0) != 0 else INVALID

    def _nvmlGpmSampleGet(self, gpu: int, sample: Any) -> int:
        if not self._counts(gpu) or self.state.card(gpu, "mig"):
            return UNSUPPORTED
        if _number_of(sample) not in self._samples:
            return INVALID
        self._samples[_number_of(sample)] = gpu, self._now()
        return OK

    def _nvmlGpmMigSampleGet(self, _gpu: int, _instance: Any, _sample: Any) -> int:
        return UNSUPPORTED

    def _nvmlGpmMetricsGet(self, question: Any) -> int:
        asked = question._obj
        if asked.version != 1:
            return OTHER_VERSION
        numbers = (_number_of(each) for each in (asked.sample1, asked.sample2))
        first, second = map(self._samples.get, numbers)
        if (
            first is None or second is None or first[0] != second[0]
            or not 0 <= asked.numMetrics <= len(asked.metrics)
        ):
            return INVALID
        (gpu, from_s), (_, to_s) = first, second
        if to_s <= from_s:
            return NO_DATA
        spans = self.state.spans(gpu, from_s, to_s)
        share = sum(span_s * activity.unpack(at.reasons) for span_s, at in spans) / (to_s - from_s)
        for metric in asked.metrics[: asked.numMetrics]:
            known = metric.metricId == DRAM_UTILISATION
            metric.nvmlReturn = OK if known else UNSUPPORTED
            metric.value = 100 * share if known else 0.0
        return OK

    def _counts(self, gpu: int) -> bool:
        return bool(self.state.card(gpu, "architecture") >= activity.SINCE)


def _number_of(sample: Any) -> int:
    return ctypes.cast(sample, ctypes.c_void_p).value or 0


def _enforced_limit_mw(state: MachineState, gpu: int, *_now: float) -> int:
    watts: float = state.control(gpu, "limit_w")
    enforced_w = state.control(gpu, "enforced_w")
    return round(1000 * (min(watts, enforced_w) if enforced_w else watts))


_LIMIT_FIELDS: dict[int, Callable[..., int]] = {
    187: lambda state, gpu, *_: round(1000 * state.card(gpu, "limit_min_w")),
    188: lambda state, gpu, *_: round(1000 * state.card(gpu, "limit_max_w")),
    189: lambda state, gpu, *_: round(1000 * state.card(gpu, "limit_default_w")),
    190: _enforced_limit_mw,
    192: lambda state, gpu, *_: round(1000 * state.control(gpu, "limit_w")),
}


def _event_reasons(state: MachineState, gpu: int, now_s: float) -> int:
    segment = state.segment_at(gpu, now_s)
    bits = int(segment.reasons & activity.REASONS | state.control(gpu, "forced_reasons"))
    return bits or (pynvml.nvmlClocksThrottleReasonGpuIdle if segment.utilisation == 0 else 0)


# Functions that return one number about a GPU, from the machine, the GPU and the time.
NUMBERS: dict[str, Callable[[MachineState, int, float], int]] = {
    "nvmlDeviceGetIndex": lambda _, gpu, now_s: gpu,
    "nvmlDeviceGetMinorNumber": lambda _, gpu, now_s: gpu,
    "nvmlDeviceGetArchitecture": lambda state, gpu, _: int(state.card(gpu, "architecture")),
    "nvmlDeviceGetPersistenceMode": lambda state, gpu, _: int(state.control(gpu, "persistence")),
    "nvmlDeviceGetComputeMode": lambda *_: 0,
    "nvmlDeviceGetDisplayActive": lambda *_: 0,
    "nvmlDeviceIsMigDeviceHandle": lambda *_: 0,
    "nvmlDeviceGetCurrentClocksEventReasons": _event_reasons,
    "nvmlDeviceGetCurrentClocksThrottleReasons": _event_reasons,
    "nvmlDeviceGetPowerUsage": (
        lambda state, gpu, now_s: round(1000 * sensors.power_w(state, gpu, now_s, averaged=True))
    ),
    "nvmlDeviceGetTotalEnergyConsumption": sensors.energy_mj,
    "nvmlDeviceGetPerformanceState": (
        lambda state, gpu, now_s: 0 if state.segment_at(gpu, now_s).utilisation > 0 else 8
    ),
    "nvmlDeviceGetPowerManagementLimit": _enforced_limit_mw,  # field 192 is the requested limit
    "nvmlDeviceGetPowerManagementDefaultLimit": _LIMIT_FIELDS[189],
    "nvmlDeviceGetEnforcedPowerLimit": _enforced_limit_mw,
    "nvmlDeviceGetPowerManagementMode": lambda *_: 1,
}
# The ability of a GPU (`state.ABILITIES`) that a function requires.
NEEDS = {
    "nvmlDeviceGetPowerUsage": "power", "nvmlDeviceGetTotalEnergyConsumption": "energy",
    "nvmlDeviceGetUtilizationRates": "utilisation",
    "nvmlDeviceGetComputeRunningProcesses_v3": "processes",
    "nvmlDeviceGetMPSComputeRunningProcesses_v3": "processes",
    **dict.fromkeys((
        "nvmlDeviceGetClockInfo", "nvmlDeviceGetSupportedMemoryClocks",
        "nvmlDeviceGetSupportedGraphicsClocks",
    ), "clocks"),
    **dict.fromkeys((
        "nvmlDeviceGetPowerManagementLimit", "nvmlDeviceGetPowerManagementDefaultLimit",
        "nvmlDeviceGetPowerManagementMode", "nvmlDeviceGetPowerManagementLimitConstraints",
    ), "power_limit"),
    "nvmlDeviceSetPowerManagementLimit": "set_power_limit",
    "nvmlDeviceSetPowerManagementLimit_v2": "set_power_limit",
    "nvmlDeviceSetGpuLockedClocks": "sm_lock", "nvmlDeviceResetGpuLockedClocks": "sm_lock",
    "nvmlDeviceSetMemoryLockedClocks": "mem_lock", "nvmlDeviceResetMemoryLockedClocks": "mem_lock",
}
_CHANGES = ("nvmlDeviceSet", "nvmlDeviceReset")  # prefixes of functions that need rights
# Functions that a replay answers as a simulated machine does.
_KEPT = (*_CHANGES, "nvmlInit", "nvmlShutdown", "nvmlSystem", "nvmlDeviceGetCount", "nvmlDeviceGetHandleBy",
         "nvmlDeviceGetIndex", "nvmlDeviceGetMinor", "nvmlDeviceGetName", "nvmlDeviceGetUUID",
         "nvmlDeviceGetPciInfo")


def install(path: str | os.PathLike[str]) -> SimulatedLibrary:
    """Put the simulated machine at `path` where pynvml keeps its library. A repeated call returns the same
    library.

    Raises:
        SimulationError: This process already uses the real NVML or another simulated machine, or an old
            package replaces NVIDIA's bindings.
    """
    if not hasattr(pynvml, "_nvmlGetFunctionPointer_cache"):
        raise SimulationError(HIDDEN_BINDINGS)
    present = pynvml.nvmlLib
    if isinstance(present, SimulatedLibrary):
        if present.state.path == Path(path):
            return present
        present.state.close()
    elif present is not None:
        raise SimulationError(
            "this process has loaded the real NVML library, and cannot use simulated GPUs as well; "
            "restart the kernel and choose the simulated GPUs first"
        )
    library = SimulatedLibrary(MachineState(path))
    pynvml.nvmlLib = library
    pynvml._nvmlGetFunctionPointer_cache.clear()
    return library


def uninstall() -> None:
    """Restore pynvml to its state before any library was loaded."""
    if isinstance(pynvml.nvmlLib, SimulatedLibrary):
        pynvml.nvmlLib.state.close()
        pynvml.nvmlLib = None
        pynvml._nvmlGetFunctionPointer_cache.clear()
        pynvml._nvmlLib_refcount = 0


def installed() -> SimulatedLibrary | None:
    """The simulated library of this process, if it has one."""
    return pynvml.nvmlLib if isinstance(pynvml.nvmlLib, SimulatedLibrary) else None


def attach() -> SimulatedLibrary | None:
    """The simulated machine that the environment names, installed; None if it names none."""
    path = os.environ.get(ENVIRONMENT_VARIABLE)
    return install(path) if path else installed()


def _index(handle: Any, count: int) -> tuple[int, bool]:
    """The GPU of a handle (-1: none), and whether the handle is of a MIG instance of it."""
    number = _number_of(handle) - 1
    instance = _INSTANCES <= number < _INSTANCES + count
    number -= _INSTANCES if instance else 0
    return (number if 0 <= number < count else -1), instance


def _write_out(handle: Any, gpu: int) -> int:
    ctypes.c_void_p.from_address(ctypes.addressof(handle._obj)).value = gpu + 1
    return OK


def _text(buffer: Any, size: Any, text: str) -> int:
    raw = text.encode()
    if len(raw) + 1 > getattr(size, "value", size):
        return TOO_SMALL
    buffer.value = raw
    return OK


def _fill(count: Any, array: Any, values: tuple[int, ...]) -> int:
    room, count._obj.value = count._obj.value, len(values)
    if array is None or room < len(values):
        return TOO_SMALL
    array[: len(values)] = values
    return OK


_ERRORS = {
    0: "Success", 1: "Uninitialized", 2: "Invalid Argument", 3: "Not Supported",
    4: "Insufficient Permissions", 6: "Not Found", 7: "Insufficient Size", 9: "Driver Not Loaded",
    12: "NVML Shared Library Not Found", 15: "GPU is lost", 16: "GPU requires reset",
    18: "Driver/library version mismatch", 21: "No data", 25: "Argument version mismatch",
    999: "Unknown Error",
}
