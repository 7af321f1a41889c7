"""Power limit and clocks of a GPU: read them, their ranges and origins, and change them."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pynvml as nvml

from ...errors import DeviceError, DriverError, NotPermitted, NotSupported
from ...records import CLOCKS_SET, Capability, Limits, Setting
from .. import zeusd
from ..driver import read_only
from ..protocol import KNOBS
from .identification import IdentifiedGpu, identities
from .library import REFUSED, error_for, translated
from .readings import ENFORCED, GPU_SCOPE, REQUESTED, Readings

_LOCKED_CLOCKS = {"sm_clock_mhz": "GpuLockedClocks", "mem_clock_mhz": "MemoryLockedClocks"}


class Settings:
    """The power limit and the clocks of a GPU, and the clocks that this process has locked."""

    def __init__(self, gpu: IdentifiedGpu, readings: Readings) -> None:
        self._gpu, self._readings, self._handle, self.name = gpu, readings, gpu.handle, gpu.name
        self.limits = self._read_limits()
        self._probe_setters()
        # the clocks that this process has locked, each from a moment on: a day of changes every ten seconds
        self._locks: deque[tuple[float, Setting]] = deque(maxlen=10_000)
        self._daemon_ids: dict[tuple[str, ...], int] = {}

    def _read_limits(self) -> Limits:
        handle, probe = self._handle, self._gpu.able.probe
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
        gpu, probe = self._gpu, self._gpu.able.probe
        limit = probe("power_limit", lambda: nvml.nvmlDeviceGetPowerManagementLimit(self._handle))
        if limit is not None:
            probe("requested_limit", lambda: self._readings.field(REQUESTED, GPU_SCOPE))
        volta = gpu.architecture not in ("Kepler", "Maxwell", "Pascal", "unknown")
        ampere = volta and gpu.architecture not in ("Volta", "Turing")
        no_limit = gpu.why_not("power_limit") or gpu.why_not("limits")
        memories = len(self.limits.sm_clocks_mhz)
        no_memory = "it has one memory clock" if ampere and memories == 1 else (
            "locked memory clocks need Ampere or newer")
        for name, present, reason in (
            ("set_power_limit", limit is not None and gpu.can("limits"), no_limit),
            ("lock_sm_clock", volta and gpu.can("clocks"), "locked SM clocks need Volta or newer"),
            ("lock_mem_clock", ampere and memories > 1, no_memory),
        ):
            knob = next(knob for knob, (capability, _, _) in KNOBS.items() if capability == name)
            if read_only(knob):
                present, reason = False, read_only(knob)
            gpu.able[name] = Capability(name, present, "" if present else reason)

    def locked(self) -> Setting:
        return self._locks[-1][1] if self._locks else Setting()

    def lock_history(self) -> tuple[tuple[float, Setting], ...]:
        return tuple(self._locks)

    def _note(self, clocks_mhz: dict[str, int | None]) -> None:
        self._locks.append((self._gpu.clock(), replace(self.locked(), **clocks_mhz)))

    def write(self, setting: Setting) -> Setting:
        """Put the device to a setting, which nothing restores (`lease` does); returns the setting read back.

        Raises:
            OutOfRange, NotSupported, NotPermitted: with the remedy; earlier changes are restored.
        """
        asked_w, before_w, name = setting.power_limit_w, self._limit_w(), self.name
        tried: list[str] = []
        try:
            self._set(setting, tried)
        except DeviceError as error:
            with contextlib.suppress(DeviceError):
                self._set(Setting(before_w if asked_w is not None else None), [])
                self.reset(tuple(knob for knob in tried if knob != "power_limit_w"))
            if isinstance(error, NotPermitted) and not read_only() and not zeusd.present():
                lines = "; ".join(self.commands(self.setting(), setting))
                raise NotPermitted(f"{error}. An administrator can run: {lines}", code=error.code) from error
            raise
        after = self.setting()
        first_w = after.power_limit_w
        if asked_w is None or first_w is None or abs(first_w - asked_w) <= 1:
            return after
        cap_w = None if self._gpu.can("requested_limit") else self.enforced_limit_w()
        if cap_w is not None and abs(first_w - cap_w) <= 1 < asked_w - cap_w:
            return after  # a cap holds, of a management controller, and hides what was asked for
        self._set(Setting(power_limit_w=asked_w), [])
        after = self.setting()
        shown_w = after.power_limit_w or 0.0
        if abs(shown_w - asked_w) <= 1 or shown_w == first_w != before_w:
            return after  # the driver rounds: it shows the same value again
        raise DriverError(f"the driver took {asked_w:g} W for {name} and shows {shown_w:g} W: it ignores the "
                          "limit, or another program is changing it too")

    def setting(self) -> Setting:
        """`protocol.Device.setting`; without an SM clock lock above which the GPU runs: a driver that ignored
        the lock, or another program that has reset it, shows in nothing else.
        """
        locked = replace(self.locked(), power_limit_w=self._limit_w())
        lock_mhz = locked.sm_clock_mhz
        if lock_mhz is not None and self._gpu.clock() > self._locks[-1][0] + 2 * zeusd.FOLLOW_S and (
            self._readings.clock_mhz("sm_clock_mhz") > lock_mhz + zeusd.SAME_MHZ
        ):
            return replace(locked, sm_clock_mhz=None)
        return locked

    def reset(self, knobs: tuple[str, ...]) -> None:
        for knob in knobs:
            default_w = self.limits.default_power_limit_w
            if knob != "power_limit_w":
                act = partial(getattr(nvml, f"nvmlDeviceReset{_LOCKED_CLOCKS[knob]}"), self._handle)
                doing, lent = f"resetting {knob} of {self.name}", partial(zeusd.reset_clock, knob=knob)
                self._privileged(knob, doing, act, lent)
                self._note({knob: None})
            elif default_w is None:
                raise NotSupported(f"the default power limit of {self.name} is unknown")
            else:
                self.write(Setting(power_limit_w=default_w))

    def _limit_w(self) -> float | None:
        """The power limit that was asked for, which a cap may undercut; None where it cannot be read."""
        if not self._gpu.can("power_limit"):
            return None
        with translated(f"reading the power limit of {self.name}"):
            if self._gpu.can("requested_limit"):
                return self._readings.field(REQUESTED, GPU_SCOPE) / 1000
            return float(nvml.nvmlDeviceGetPowerManagementLimit(self._handle) / 1000)

    def enforced_limit_w(self) -> float | None:
        try:
            if self._readings.limit_in_batch:
                return self._readings.field(ENFORCED, GPU_SCOPE) / 1000
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
        clock_now = partial(self._readings.clock_mhz, knob)
        zeusd.lock_clock(gpu, knob, clock_mhz, choices, clock_now, self._gpu.clock)

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
            if self._gpu.simulated or not zeusd.present():  # no daemon knows a simulated GPU
                raise
            lent(self._daemon_id())

    def _daemon_id(self) -> int:
        """The Zeus daemon's number for this GPU, kept: restoring must not depend on other GPUs."""
        key = tuple(os.environ.get(name, "") for name in ("ZEUSD_SOCK_PATH", "ZEUSD_GPU_ID"))
        if key not in self._daemon_ids:
            known = identities()
            uuids = [uuid for uuid, _, _ in known]
            if self._gpu.uuid not in uuids:
                raise error_for(nvml.NVML_ERROR_GPU_IS_LOST, f"finding {self.name} among the GPUs")
            place = uuids.index(self._gpu.uuid)
            self._daemon_ids[key] = zeusd.gpu_id(place, [name for _, _, name in known])
        return self._daemon_ids[key]

    def clocks_are_set(self) -> bool | None:
        with translated(f"reading the clock event reasons of {self.name}"):
            reasons = self._readings.attempt(self._readings.read_reasons)
        if isinstance(reasons, float):
            return None
        asked = int(reasons) & CLOCKS_SET
        own_mhz = self.application_clock_mhz() if asked else None  # at these the GPU is not locked
        if int(reasons) & nvml.nvmlClocksThrottleReasonGpuIdle and (own_mhz is not None or not asked):
            return None
        sm_mhz = self._readings.clock_mhz("sm_clock_mhz")
        return bool(asked) and (own_mhz is None or sm_mhz <= own_mhz - zeusd.SAME_MHZ)

    def application_clock_mhz(self) -> int | None:
        """The SM clock that `nvidia-smi -ac` has set for all programs, which a lock supersedes (nvml.h,
        nvmlDeviceSetGpuLockedClocks); None where it is the card's own, or the driver does not report.
        """
        found = []
        for name in ("ApplicationsClock", "DefaultApplicationsClock"):
            try:
                found.append(int(getattr(nvml, f"nvmlDeviceGet{name}")(self._handle, nvml.NVML_CLOCK_SM)))
            except (nvml.NVMLError, AttributeError):
                return None
        return found[0] if found[0] != found[1] else None

    def commands(self, now: Setting, wanted: Setting) -> tuple[str, ...]:
        from ..control import changed  # loads NumPy, which the watchdog does without

        nvidia_smi, lines = f"sudo nvidia-smi -i {shlex.quote(self._gpu.uuid)}", []
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
            "mps_clients": lambda: len(self._readings.running("MPSCompute")),
        }
        found: dict[str, float] = {}
        for name, read in asked.items():
            with contextlib.suppress(*REFUSED, AttributeError, DeviceError):
                if (value := read()) is not None:
                    found[name] = value
        return found

