"""The interface of a device, for all code outside of drivers."""

from __future__ import annotations

from typing import Protocol

from ..clock import Clock
from ..records import Capability, Limits, Process, Sample, Setting

# By knob: the capability that it takes, its name, and what is done to it.
KNOBS = {
    "power_limit_w": ("set_power_limit", "power limit", "set"),
    "sm_clock_mhz": ("lock_sm_clock", "SM clock", "locked"),
    "mem_clock_mhz": ("lock_mem_clock", "memory clock", "locked"),
}


class Device(Protocol):
    """A GPU that can be measured and, with the right to, changed. Watts, joules, seconds, MHz."""

    name: str
    uuid: str
    pci_bus_id: str
    index: int
    architecture: str
    simulated: bool
    limits: Limits
    power_window_s: float
    node: str
    clock: Clock

    @property
    def capabilities(self) -> tuple[Capability, ...]:
        """Probed capabilities, each present or absent with its reason."""

    def can(self, name: str) -> bool:
        """Whether a capability ("energy", "power", "set_power_limit", ...) is present."""

    def energy_j(self) -> float:
        """The energy counter: joules since the driver was loaded. Raises NotSupported without one."""

    def sample(self, status: Sample | None = None) -> Sample:
        """One sample: energy and power in one driver call, the rest of `status` where that is given."""

    def setting(self) -> Setting:
        """The power limit asked for and the clocks that this process has locked; NVML hides others' locks."""

    def enforced_limit_w(self) -> float | None:
        """The power limit that holds: that asked for, or a cap below it; None where it cannot be read."""

    def clocks_are_set(self) -> bool | None:
        """Whether locked clocks hold it back just now, locked by any program; None at rest, where it does
        not show.
        """

    def locked(self) -> Setting:
        """The clocks that this process has locked; asks the driver nothing."""

    def lock_history(self) -> tuple[tuple[float, Setting], ...]:
        """The clocks that this process has locked, each from a moment of `clock` on, oldest first."""

    def missing_rights(self) -> str:
        """Why this process may not change it, found out without a change; empty where it may."""

    def check(self, setting: Setting) -> None:
        """Raises OutOfRange or NotSupported where it does not take a setting; asks no driver."""

    def write(self, setting: Setting) -> Setting:
        """Put the device to a setting (None is left alone); returns the setting read back. For `lease`
        alone.
        """

    def reset(self, knobs: tuple[str, ...]) -> None:
        """Give knobs ("sm_clock_mhz", "mem_clock_mhz", "power_limit_w") back to the driver's default."""

    def processes(self, *, graphics: bool = False) -> tuple[Process, ...]:
        """The processes that compute on this GPU now; `graphics`: also those that only draw, as a desktop."""
