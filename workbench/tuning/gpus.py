"""The GPUs of one tuned job: their settable knobs, current and original settings."""

from __future__ import annotations

import contextlib
import math
from dataclasses import replace
from typing import Any

from ..device.lease import Lease
from ..device.protocol import Device
from ..errors import (
    DeviceError,
    DeviceHeld,
    GpuLost,
    NotPermitted,
    NotSupported,
    Transient,
    UsageError,
    WorkbenchError,
)
from ..measurement.meter import Meter
from ..measurement.recorder import Recorder
from ..records import Limits, Setting
from ..search.clocks import descent  # noqa: F401 (loaded here, not while a cell is measured)
from ..search.space import space_from
from .arrival import MARGIN_S, Arrival
from .options import TuningRequest
from .record import TuningRecord

MOST_LIMITS = 100  # power limits to choose from: 2 or 3 W apart, about what drivers keep to
_taken: list[TunedGpus] = []


class TunedGpus:
    """GPUs of one model, tuned together from now on, and the settings that they can be put to.

    Args:
        devices: The GPUs.
        whole: Measures them, and perhaps others; `recorder` is its recorder.
        request: The knobs to set.
        log: Called with refused knobs, and settings that could not be restored.

    Attributes:
        meter: Measures these GPUs and no others.
        space: The settings.
        current: Their current setting; `Setting()` is each original setting.
        reductions: Lower SM clocks (MHz) of some GPUs, by UUID, at each setting.

    Raises:
        UsageError: several models, or nothing to choose.
        NotPermitted: nothing may be set here.
        DeviceHeld: another process, or another tuner of this one, is at work on one of them.
        Transient: a driver is busy; it can be asked again.
    """

    def __init__(
        self, devices: tuple[Device, ...], whole: Meter, recorder: Recorder, request: TuningRequest,
        log: TuningRecord,
    ) -> None:
        self.devices, self.recorder, self._request, self._log = devices, recorder, request, log
        if len({device.name for device in devices}) > 1:
            names = ", ".join(sorted({device.name for device in devices}))
            raise UsageError(
                f"GPUs of several models work here ({names}); no setting suits them all: name those of one "
                "model with --gpu"
            )
        for other in _taken:  # a hold keeps other processes away, not this one's
            if {device.uuid for device in other.devices} & {device.uuid for device in devices}:
                named = f" ({other._request.label})" if other._request.label else ""
                raise DeviceHeld(
                    f"something{named} is being tuned on this GPU by this process already; stop that first, "
                    "or let it end"
                )
        self._due: Setting | None = None  # what the driver was too busy for
        self.current = Setting()
        self.reductions: dict[Setting, dict[str, int]] = {}
        self._lease = Lease(devices, who="tuner")
        self._arrival = Arrival(devices, recorder)
        try:
            self._find_settings(log)
        except WorkbenchError:
            log.not_restored = self._lease.release() or log.not_restored
            raise
        self.meter = whole if len(devices) == len(whole.devices) else Meter(devices, recorder, zones=())
        _taken.append(self)

    def _find_settings(self, log: TuningRecord) -> None:
        """Hold the GPUs and find what may be set on all of them."""
        found, refused = self._lease.found, self._refused_knobs()
        sm, limit = (knob not in refused for knob in ("sm_clock_mhz", "power_limit_w"))
        memory = self._request.over == "memory" and "mem_clock_mhz" not in refused
        memory = memory and self._can("lock_mem_clock")
        clocks = self.devices[0].limits.sm_clocks_mhz if sm and self._can("lock_sm_clock") else {}
        limits = Limits(sm_clocks_mhz=clocks)
        low_w = max((each.limits.min_power_limit_w or 0.0 for each in self.devices), default=0.0)
        # No limit above the one that was found, or that holds.
        tops = [each.power_limit_w for each in found if each.power_limit_w is not None]
        tops += [cap_w for device in self.devices if (cap_w := device.enforced_limit_w()) is not None]
        step_w = None
        if limit and self._can("set_power_limit") and tops and low_w:
            limits = Limits(low_w, min(tops), min(tops), clocks)
            step_w = max(1.0, math.ceil((min(tops) - low_w) / MOST_LIMITS))
        over: Any = "both" if self._request.over == "memory" else self._request.over
        reasons = list(dict.fromkeys(refused.values()))
        try:
            self.space = space_from(limits, over, can_lock_memory=memory, step_w=step_w)
        except UsageError as error:
            raise NotPermitted("; ".join(reasons)) if reasons else error from error
        for reason in reasons:
            log.remark(reason)

    def _can(self, ability: str) -> bool:
        return all(device.can(ability) for device in self.devices)

    def _refused_knobs(self) -> dict[str, str]:
        """Knobs that may not be set, with the reason."""
        # Not by writing the limit that there is: where a cap holds it may be the cap's.
        if missing := next(filter(None, (device.missing_rights() for device in self.devices)), ""):
            return dict.fromkeys(("power_limit_w", "sm_clock_mhz", "mem_clock_mhz"), missing)
        self._lease.apply(Setting())
        refused: dict[str, str] = {}
        mem = next(iter(self.devices[0].limits.mem_clocks_mhz), None)
        if self._request.over == "power" or mem is None or not self._can("lock_sm_clock"):
            return refused
        highest = Setting(sm_clock_mhz=max(self.devices[0].limits.sm_clocks_mhz[mem], default=None))
        tests = {"sm_clock_mhz": highest}
        if self._request.over == "memory" and self._can("lock_mem_clock"):
            tests["mem_clock_mhz"] = Setting(mem_clock_mhz=mem)
        for knob, setting in tests.items():
            try:
                self._lease.apply(setting)
            except DeviceHeld:
                raise
            except (NotPermitted, NotSupported) as error:
                refused[knob] = str(error)
                break
        self._lease.put(Setting())
        return refused

    def restore(self) -> list[str]:
        """Restore everything and release the GPUs; returns sentences about failures."""
        if self in _taken:
            _taken.remove(self)
        self.current = Setting()
        return self._lease.release()

    # settings

    def put(self, setting: Setting) -> None:
        """Put them to a setting, now or, where a driver is busy, by `settle`.

        Raises:
            DeviceError: it cannot be set.
        """
        self._due = self.own(setting)
        with contextlib.suppress(Transient):
            self.settle()

    def settle(self) -> None:
        """Put what a busy driver has refused until now.

        Raises:
            GpuLost: one of them cannot be read any more.
            Transient: a driver is busy still.
            DeviceError: it cannot be set.
        """
        for device in self.devices:
            if problem := self.recorder.error(device.uuid):
                raise GpuLost(problem)
        if self._due is None:
            return
        reached = Setting()
        try:
            self._lease.put(self._each(self._due))
            reached, self._due = self._due, None
        except Transient:
            raise
        except DeviceError:
            self._due = None
            raise
        finally:
            if reached != self.current:
                self._arrival.begin(self.current, reached, self.devices[0].clock(), self._log.iteration_s)
            self.current = reached

    def reduce(self, clocks_mhz: dict[str, int]) -> None:
        """Lower clocks of some GPUs, by UUID, at the present setting; none restores them.

        Raises:
            DeviceError: as `put`.
        """
        self.reductions[self.current] = clocks_mhz
        self.put(self.current)

    def _each(self, setting: Setting) -> list[Setting]:
        """The setting of each GPU at a setting of the job."""
        lower = self.reductions.get(setting, {})
        return [replace(setting, sm_clock_mhz=lower.get(each.uuid, setting.sm_clock_mhz))
                for each in self.devices]

    def sm_clocks_mhz(self, setting: Setting) -> tuple[int, ...]:
        """SM clocks that may be set on all GPUs at a setting; none where clocks are not to be changed."""
        if self.space.max_sm_clock_mhz is None or self._request.over == "power":
            return ()
        clocks = self.devices[0].limits.sm_clocks_mhz
        return tuple(clocks.get(setting.mem_clock_mhz or max(clocks, default=0), ()))

    def own(self, setting: Setting) -> Setting:
        """The reference is the original setting, under any name in a search."""
        return Setting() if setting == self.space.reference else setting

    def name(self, setting: Setting) -> str:
        """A setting in words."""
        return "the default setting" if self.own(setting) == Setting() else str(setting)

    def settled_s(self, now_s: float) -> float | None:
        """When the last setting was active, in the readings of power too; None where it is not yet."""
        arrived_s = self._arrival.at_s(now_s)
        return None if arrived_s is None or self._due is not None else arrived_s + self.shows_s

    @property
    def shows_s(self) -> float:
        """From the arrival of a setting until readings of power are of it alone."""
        window_s = max(device.power_window_s for device in self.devices)
        return MARGIN_S + min(window_s, 1.0)

    # what they tell

    def check(self) -> None:
        """Raises UsageError where another program has set the limit."""
        if change := self._lease.changed_externally():
            raise UsageError(f"{change}; tuning has ended")
