"""A GPU as `workbench.open_device` gives it: what its user sets is journalled, held and put back."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from ..errors import UsageError
from ..records import Setting
from . import lease
from .nvml import NvmlDevice


class OpenGpu(NvmlDevice):
    """A GPU that is read, and put to settings that are put back whatever happens.

        with gpu.applied(power_limit_w=250):        # for the length of a block
            train()
        gpu.apply(power_limit_w=250)                # until `undo`, or the end of this process
        gpu.undo()

    Both take a `Setting`, or its knobs by name; other knobs, and what other programs set, are left alone.
    """

    def __init__(self, handle: Any) -> None:
        super().__init__(handle)
        self._changes: list[lease.Lease] = []

    def applied(
        self, setting: Setting | None = None, *, power_limit_w: float | None = None,
        sm_clock_mhz: int | None = None, mem_clock_mhz: int | None = None, force: bool = False,
    ) -> AbstractContextManager[Setting]:
        """Hold a setting for the length of a `with` block, which gets the setting read back; `force`: also
        where somebody has locked clocks already, which cannot be put back.

        Raises:
            DeviceHeld: another process is changing this GPU.
            OutOfRange, NotSupported, NotPermitted: nothing was changed.
        """
        wanted = setting_of(setting, power_limit_w, sm_clock_mhz, mem_clock_mhz)
        return lease.applied(self, wanted, force=force)

    def apply(
        self, setting: Setting | None = None, *, power_limit_w: float | None = None,
        sm_clock_mhz: int | None = None, mem_clock_mhz: int | None = None, force: bool = False,
    ) -> Setting:
        """As `applied`, until `undo` or the end of this process; returns what was read back."""
        change = lease.Lease([self], force=force)
        shown = change.apply(setting_of(setting, power_limit_w, sm_clock_mhz, mem_clock_mhz))
        self._changes.append(change)
        return shown[0]

    def undo(self) -> str:
        """Take the last `apply` back; returns a sentence on what is active now, or on what is left.

        Raises:
            UsageError: there is nothing to undo.
            DeviceError: it cannot be undone just now; it can be tried again.
        """
        self._changes = [each for each in self._changes if each.holds]  # others were put back meanwhile
        if not self._changes:
            raise UsageError("there is nothing to undo: nothing was applied, or it was put back since")
        left = self._changes[-1].restore()
        self._changes.pop()
        return "; ".join(left) or f"undone: {self.setting()} is active again"


def setting_of(
    setting: Setting | None, power_limit_w: float | None, sm_clock_mhz: int | None, mem_clock_mhz: int | None
) -> Setting:
    """The setting that is meant. Raises UsageError where none is, or two."""
    named = Setting(power_limit_w, sm_clock_mhz, mem_clock_mhz)
    if (setting is None) == (named == Setting()):
        raise UsageError("name what to set: a Setting, or power_limit_w=, sm_clock_mhz= or mem_clock_mhz=")
    return setting or named
