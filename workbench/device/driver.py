"""The interface to a vendor's driver: a module with the names of `Driver`.

`WORKBENCH_DRIVER` names another module than `workbench.device.nvml`. Child processes inherit the variable, so
the sampling process, the watchdog and the jobs of a shared GPU open the same driver.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

from ..errors import DeviceError, SimulationError, UsageError
from ..simulation.replay import SUFFIX
from ..simulation.state import MachineState
from .protocol import Device

VARIABLE, DEFAULT = "WORKBENCH_DRIVER", "workbench.device.nvml"
SIMULATED = "WORKBENCH_SIMULATED_GPUS"  # simulated GPUs answer in the place of the default driver's library
READ_ONLY = "WORKBENCH_READ_ONLY"
Identity = tuple[str, str, str]  # UUID, PCI bus id, name


class Driver(Protocol):
    """The door to one vendor's GPUs. It raises `errors.DeviceError`; that of missing rights has the remedy.

    Attributes:
        NAME: The vendor's name for it.
        UUID: A regular expression of its GPUs' identifiers, which name files: letters, digits, ".", "_", "-".
        VISIBLE: The variable of the environment that names which GPUs a process sees.
        MEMORY_FILES: How the paths begin of files that every process has open which computes on a GPU.
    """

    NAME: str
    UUID: str
    VISIBLE: str
    MEMORY_FILES: str

    def identities(self) -> list[Identity]:
        """UUID, PCI bus id and name of each GPU."""

    def visible(self, known: Sequence[Identity]) -> list[str]:
        """UUIDs of the GPUs that the environment leaves to this process, in the order of its frameworks."""

    def resolve(self, which: int | str, known: Sequence[Identity]) -> str:
        """The UUID of the GPU that is meant. Raises UnknownGpu unless just one answers."""

    def open_uuid(self, uuid: str) -> Device:
        """The GPU with a UUID, visible to this process's frameworks or not; its class is a `gpu.OpenGpu`."""

    def environment(self, uuid: str, asked: str = "") -> dict[str, str]:
        """Variables with which a child process sees one GPU alone, or the part of it that was asked for."""

    def driver_version(self) -> str:
        """The installed version."""

    def is_privileged(self) -> bool:
        """Whether this process has the rights of its own to change a GPU."""

    def real_library_loaded(self) -> bool:
        """Whether this process uses real GPUs already."""

    def recorder(self) -> Callable[..., Any]:
        """What records the answers of a session (`nvml.recording.record`); a driver may lack it."""

    def why_none(self, error: DeviceError | None = None) -> str:
        """Why no GPU can be used, with the remedy: the driver works and finds none, or has raised `error`."""


def current() -> Driver:
    """The driver of this process."""
    name = DEFAULT if os.environ.get(SIMULATED) else os.environ.get(VARIABLE) or DEFAULT
    try:
        return cast(Driver, importlib.import_module(name))
    except ImportError as error:
        if name == DEFAULT:
            raise
        raise UsageError(f"{VARIABLE}={name} names no module that can be imported: {error}") from error


def stepped_clock() -> Callable[[], float] | None:
    """The clock of the environment's simulated machine where it moves in steps; else None."""
    try:
        state = MachineState(os.environ[SIMULATED])
    except (KeyError, OSError, SimulationError):
        return None
    return state.now_s if state.header("stepped") else None


def read_only(knob: str = "") -> str:
    """Why this process changes no GPU, or not this knob; empty unless an administrator or its user has asked
    for that: `WORKBENCH_READ_ONLY=1`, or `=clocks` to allow power limits.
    """
    if os.environ.get(SIMULATED, "").endswith(SUFFIX):
        return "a recording is replayed, and no setting can be changed in it"
    asked = os.environ.get(READ_ONLY, "").strip().lower()
    if asked == "clocks":
        return f"{READ_ONLY}=clocks is set: no clock is changed" if knob.endswith("_clock_mhz") else ""
    return f"{READ_ONLY} is set: no GPU is changed" if asked not in ("", "0") else ""
