"""A GPU as `workbench.open_device` gives it, and the base of every driver's own: what a driver does not
override is absent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from .._html import facts
from ..errors import NotSupported, OutOfRange, UsageError, shown
from ..records import Capability, Process, Setting
from .protocol import KNOBS, Device


class OpenGpu(Device):
    """A GPU that is read, and put to settings that are restored whatever happens.

        with gpu.applied(power_limit_w=250):        # for the length of a block
            train()
        gpu.apply(power_limit_w=250)                # until `undo`, or the end of this process
        gpu.undo()

    Both take a `Setting`, or its knobs by name; other knobs, and what other programs set, are left alone.

    Attributes:
        capabilities: Probed capabilities, each present or absent with its reason.
        power_window_s: Averaging window behind one reading of power (arXiv 2312.02741, by architecture).
        note: Something to know about all of its readings, such as that they are the whole module's.
        node: Its file in /dev, which containers share; empty where there is none.
    """

    note = node = ""
    _able: Mapping[str, Capability]  # every capability that was probed, by name

    def __repr__(self) -> str:
        return f"<GPU {self.index}: {self.name}, {self.uuid}>"

    def _repr_html_(self) -> str:
        known = {
            "uuid": self.uuid, "pci": self.pci_bus_id, "architecture": self.architecture, "note": self.note,
            "can": [each.name for each in self.capabilities if each.present], "limits": self.limits,
        }
        return facts(f"GPU {self.index}: {self.name}", known, simulated=self.simulated)

    @property
    def capabilities(self) -> tuple[Capability, ...]:
        return tuple(self._able.values())

    def can(self, name: str) -> bool:
        return name in self._able and self._able[name].present

    def why_not(self, name: str) -> str:
        """Why a capability is absent; empty where it is present."""
        return self._able[name].reason if name in self._able else "never probed"

    def check(self, setting: Setting) -> None:
        """Raises OutOfRange or NotSupported where this GPU does not take a setting; asks no driver."""
        limits = self.limits
        for knob, (capability, what, act) in KNOBS.items():
            if getattr(setting, knob) is not None and not self.can(capability):
                why = self.why_not(capability)
                raise NotSupported(f"the {what} of {self.name} cannot be {act}: {why}")
        limit_w, sm, mem = setting.power_limit_w, setting.sm_clock_mhz, setting.mem_clock_mhz
        low_w, high_w = limits.min_power_limit_w, limits.max_power_limit_w
        # NaN fails too; where the range is known, its message follows
        if limit_w is not None and low_w is None and not 0 < limit_w < math.inf:
            raise OutOfRange(f"a power limit of {limit_w:g} W cannot be set; give watts above 0")
        if not (limit_w is None or low_w is None or high_w is None or low_w <= limit_w <= high_w):
            raise OutOfRange(f"power limit {limit_w:g} W is outside {low_w:g}..{high_w:g} W of {self.name}")
        if mem is not None and mem not in limits.sm_clocks_mhz:
            have = ", ".join(str(clock) for clock in limits.mem_clocks_mhz)
            raise OutOfRange(f"{self.name} has no memory clock of {mem} MHz; it has {have}")
        clocks = limits.sm_clocks_mhz.get(mem or limits.mem_clocks_mhz[0], ()) if sm is not None else ()
        if sm is not None and sm not in clocks:
            near = min(clocks, key=lambda clock: abs(clock - sm))
            raise OutOfRange(f"{self.name} has no SM clock of {sm} MHz; it has {clocks[-1]}..{clocks[0]} "
                             f"MHz, the nearest is {near}")

    # what a driver may not have; `enforced_limit_w` and `clocks_are_set` return None where it lacks them

    def setting(self) -> Setting:
        return Setting()

    def application_clock_mhz(self) -> int | None:
        """The SM clock that an administrator has set for all programs, which a lock supersedes; None where it
        is the card's own, or the driver does not report it.
        """
        return None

    def locked(self) -> Setting:
        return Setting()

    def lock_history(self) -> tuple[tuple[float, Setting], ...]:
        return ()

    def write(self, setting: Setting) -> Setting:
        self.check(setting)
        return self.setting()

    def reset(self, knobs: tuple[str, ...]) -> None:
        raise NotSupported(f"the driver of {self.name} has no default to go back to")

    def missing_rights(self) -> str:
        return self.why_not("set_power_limit")

    def commands(self, now: Setting, wanted: Setting) -> tuple[str, ...]:
        """Command lines for an administrator that change one whole setting to another."""
        return ()

    def processes(self, *, graphics: bool = False) -> tuple[Process, ...]:
        return ()

    def memory_bytes(self) -> tuple[int, int]:
        """Device memory in use, and all there is. Raises DeviceError where the driver does not report it."""
        raise NotSupported(f"the driver of {self.name} does not report its memory")

    def counters(self) -> Any:
        """The performance counters now, for `counted`. Raises NotSupported where there are none."""
        raise NotSupported(f"{self.name} has no counters to read: {self.why_not('gpm')}")

    def modes(self) -> dict[str, float]:
        """Modes and settings that the driver reports; others are left out."""
        return {}

    # changing

    def applied(
        self, setting: Setting | None = None, *, power_limit_w: float | None = None,
        sm_clock_mhz: int | None = None, mem_clock_mhz: int | None = None, force: bool = False,
    ) -> AbstractContextManager[Setting]:
        """Hold a setting for the length of a `with` block, which gets the setting read back; `force`: also
        where somebody has locked clocks already, which cannot be restored.

        Args:
            setting: All knobs together; else the three that follow.
            power_limit_w: In watts; None leaves it.
            sm_clock_mhz: Locked SM clock; None leaves it.
            mem_clock_mhz: Locked memory clock; None leaves it.
            force: Also where clocks are locked already by someone else; those locks cannot be restored.

        Raises:
            DeviceHeld: another process is changing this GPU.
            OutOfRange, NotSupported, NotPermitted: nothing was changed.
        """
        from . import lease

        wanted = setting_of(setting, power_limit_w, sm_clock_mhz, mem_clock_mhz)
        return lease.applied(self, wanted, force=force)

    def apply(
        self, setting: Setting | None = None, *, power_limit_w: float | None = None,
        sm_clock_mhz: int | None = None, mem_clock_mhz: int | None = None, force: bool = False,
    ) -> Setting:
        """As `applied`, until `undo` or the end of this process; returns the setting read back.

        Args:
            setting: All knobs together; else the three that follow.
            power_limit_w: In watts; None leaves it.
            sm_clock_mhz: Locked SM clock; None leaves it.
            mem_clock_mhz: Locked memory clock; None leaves it.
            force: As for `applied`.
        """
        from .lease import Lease  # the sampling process changes nothing

        wanted = setting_of(setting, power_limit_w, sm_clock_mhz, mem_clock_mhz)
        return Lease([self], force=force, who="program").apply(wanted)[0]

    def undo(self) -> str:
        """Take the last `apply` back; returns a sentence on the active setting, or on the one that is left.

        Raises:
            UsageError: there is nothing to undo.
            DeviceError: it cannot be undone just now; it can be tried again.
        """
        from .lease import changes

        if not (mine := changes(self.uuid, "program")):
            raise UsageError("there is nothing to undo: nothing was applied, or it was restored since")
        return mine[-1].restore() or f"undone: {self.setting()} is active again"


def setting_of(
    setting: Setting | None, power_limit_w: float | None, sm_clock_mhz: int | None, mem_clock_mhz: int | None
) -> Setting:
    """The setting that is meant. Raises UsageError where none is, or two.

    Args:
        setting: All knobs together; None where single knobs are given.
        power_limit_w: In watts.
        sm_clock_mhz: Locked SM clock.
        mem_clock_mhz: Locked memory clock.
    """
    if not isinstance(setting, Setting | None):
        raise UsageError(f"{shown(setting)} is not a Setting; name what to set: power_limit_w=200")
    named = Setting(power_limit_w, sm_clock_mhz, mem_clock_mhz)
    if (setting is None) == (named == Setting()):
        raise UsageError("name what to set: a Setting, or power_limit_w=, sm_clock_mhz= or mem_clock_mhz=")
    return setting or named
