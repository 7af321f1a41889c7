"""Settings put to the GPUs of one job, and the way back to what was found."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from ..device.journal import KNOBS
from ..device.lease import Lease
from ..device.protocol import Device
from ..errors import DeviceError, DeviceHeld, NotPermitted, NotSupported
from ..records import Limits, Setting


class Actuator:
    """All GPUs of a job at one setting. The reference, `Setting()`, is what each was found at.

    The GPUs are held from `begin` to `back`, so that a visit at the reference is not a release of them.

    Args:
        devices: The GPUs.
    """

    def __init__(self, devices: Sequence[Device]) -> None:
        self.devices = tuple(devices)
        self.current = Setting()
        self.found: tuple[Setting, ...] = ()
        self._holds: list[Lease] = []
        self._ways: list[Lease] = []

    def begin(self, over: str) -> dict[str, str]:
        """Hold the GPUs, and try which knobs may be set; returns those that may not, with the reason.

        Raises:
            DeviceHeld: another process is changing one of them.
            DeviceError: it cannot be reached.
        """
        self.found = tuple(device.setting() for device in self.devices)
        refused: dict[str, str] = {}
        self._holds = [Lease([device]) for device in self.devices]
        for device, hold, found in zip(self.devices, self._holds, self.found, strict=True):
            if found.power_limit_w is not None and device.can("set_power_limit"):
                # The limit that there is: nothing changes, and it shows whether this process has the right
                # to.
                self._try(refused, "power_limit_w", hold, Setting(power_limit_w=found.power_limit_w))
        self._ways = [Lease([device]) for device in self.devices]
        for device, way in zip(self.devices, self._ways, strict=True):
            if over == "power":
                break
            clocks = device.limits.sm_clocks_mhz
            memory = device.limits.mem_clocks_mhz
            if device.can("lock_sm_clock") and memory and clocks[memory[0]]:
                self._try(refused, "sm_clock_mhz", way, Setting(sm_clock_mhz=max(clocks[memory[0]])))
            if device.can("lock_mem_clock") and "sm_clock_mhz" not in refused:
                self._try(refused, "mem_clock_mhz", way, Setting(mem_clock_mhz=memory[0]))
            way.restore()
        self.current = Setting()
        return refused

    @staticmethod
    def _try(refused: dict[str, str], knob: str, way: Lease, setting: Setting) -> None:
        try:
            way.apply(setting)
        except DeviceHeld:
            raise
        except (NotPermitted, NotSupported) as error:
            refused[knob] = str(error)

    def put(self, setting: Setting) -> None:
        """Put all GPUs to a setting; knobs that it does not name go back to what was found.

        Raises:
            DeviceError: as `control.change`; the GPUs are then at what was found.
        """
        if setting == self.current:
            return
        dropped = any(
            getattr(self.current, knob) is not None and getattr(setting, knob) is None for knob in KNOBS
        )
        if dropped or setting == Setting():
            for way in self._ways:
                way.restore()
            self.current = Setting()
        if setting == Setting():
            return
        try:
            for way in self._ways:
                way.apply(setting)
        except DeviceError:
            for way in self._ways:
                with contextlib.suppress(DeviceError):  # one that does not answer must not keep the others
                    way.restore()
            self.current = Setting()
            raise
        self.current = setting

    def changed_externally(self) -> str:
        """A sentence, if another program has changed the power limit since."""
        for device, found in zip(self.devices, self.found, strict=True):
            wanted_w = (
                self.current.power_limit_w if self.current.power_limit_w is not None else found.power_limit_w
            )
            now_w = device.setting().power_limit_w
            if wanted_w is not None and now_w is not None and abs(now_w - wanted_w) > 1.0:
                return (
                    f"another program has set the power limit of {device.name} to {now_w:g} W (or a person, "
                    "by hand); tuning has ended"
                )
        return ""

    def restore(self) -> list[str]:
        """Everything as it was found, and the GPUs let go; returns sentences about what could not be. May
        be called again.
        """
        left: list[str] = []
        for way in [
            *self._holds, *self._ways,
        ]:  # a hold that was ours leaves alone what other programs have set since
            try:
                left += way.restore()
            except (DeviceError, OSError) as error:  # a disk that takes no journal, too
                left.append(str(error))
        self.current = Setting()
        return list(dict.fromkeys(left))


def limits_of(devices: Sequence[Device], found: Sequence[Setting], refused: dict[str, str]) -> Limits:
    """What may be set on all of some GPUs of one model: never a limit above the one that was found."""
    first = devices[0].limits
    clocks: dict[int, tuple[int, ...]] = {}
    if "sm_clock_mhz" not in refused and all(device.can("lock_sm_clock") for device in devices):
        clocks = dict(first.sm_clocks_mhz)
    low_w = max((d.limits.min_power_limit_w or 0.0 for d in devices), default=0.0)
    tops = [each.power_limit_w for each in found if each.power_limit_w is not None]
    if (
        "power_limit_w" in refused
        or not tops
        or not all(device.can("set_power_limit") for device in devices)
        or not low_w
    ):
        return Limits(sm_clocks_mhz=clocks)
    return Limits(low_w, min(tops), min(tops), clocks)
