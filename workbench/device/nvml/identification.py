"""Which GPUs there are, which of them is meant, and what one is: identifiers, generation, capabilities."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import pynvml as nvml

from ...clock import MONOTONIC, Clock
from ...errors import DeviceError, GpuLost, NotPermitted, NotSupported, Transient
from ...records import Capability
from .. import selection
from ..driver import Identity
from ..gpu import OpenGpu
from . import library
from .library import REFUSED, error_for, translated

T = TypeVar("T")
VISIBLE = "CUDA_VISIBLE_DEVICES"
BY_INDEX = "NVML:"
ARCHITECTURES = {
    2: "Kepler", 3: "Maxwell", 4: "Pascal", 5: "Volta", 6: "Turing", 7: "Ampere", 8: "Ada", 9: "Hopper",
    10: "Blackwell", 13: "Rubin",
}
_NO_LIBRARY, _UNKNOWN = 12, 999
_INTEGRATED = (
    "the driver has a GPU without a UUID or PCI address: an integrated one (Jetson), whose NVML reports no "
    "energy; its INA sensors are not read"
)


class Capabilities(dict[str, Capability]):
    """Capabilities probed when a GPU was opened, by name: present, or absent with its reason."""

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



class IdentifiedGpu(OpenGpu):
    """An open GPU: its identity and its capabilities."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self.simulated = library.library_is_simulated()
        # Not getattr with a default: a C library has a `clock` too, libc's.
        self.clock: Clock = nvml.nvmlLib.clock if self.simulated else MONOTONIC
        with translated("opening a GPU"):
            self.name = str(nvml.nvmlDeviceGetName(handle))
            self.uuid = str(nvml.nvmlDeviceGetUUID(handle))
            self.index = int(nvml.nvmlDeviceGetIndex(handle))
            self.pci_bus_id = str(nvml.nvmlDeviceGetPciInfo(handle).busId)
        with contextlib.suppress(*REFUSED, AttributeError):
            if nvml.nvmlDeviceGetMigMode(handle)[0]:
                self.note = "MIG is on: power and energy are those of the whole GPU, of all its instances"
        if not self.simulated:
            with contextlib.suppress(*REFUSED, AttributeError):
                self.node = f"/dev/nvidia{int(nvml.nvmlDeviceGetMinorNumber(handle))}"
        self._able = self.able = able = Capabilities(handle)
        generation = able.probe("architecture", lambda: nvml.nvmlDeviceGetArchitecture(handle))
        self.architecture = ARCHITECTURES.get(int(generation or 0), "unknown")
        capability = able.probe("compute_capability", lambda: nvml.nvmlDeviceGetCudaComputeCapability(handle))
        self.compute_capability = tuple(map(int, capability or (0, 0)))
        self.power_window_s = 0.100
        if self.architecture in ("Pascal", "Volta"):
            self.power_window_s = 0.010
        elif self.compute_capability == (8, 0) or self.architecture in ("Hopper", "Blackwell"):
            self.power_window_s = 0.025
        library.opened.add(self)

    def find_again(self) -> None:
        """Let the handle, which others have too, stand for this GPU in an NVML that was started again."""
        handle = nvml.nvmlDeviceGetHandleByUUID(self.uuid)
        ctypes.memmove(ctypes.addressof(self.handle), ctypes.addressof(handle), ctypes.sizeof(handle))


def identities() -> list[Identity]:
    """(UUID, PCI bus id, name) of every GPU that no cgroup hides, in NVML order.

    One that does not answer has `NVML:<index>` for a UUID: without it, an index would mean its neighbour.
    """
    rows: list[Identity] = []
    for index in range(library.count()):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            pci = nvml.nvmlDeviceGetPciInfo(handle).busId
            rows.append((str(nvml.nvmlDeviceGetUUID(handle)), str(pci), str(nvml.nvmlDeviceGetName(handle))))
        except nvml.NVMLError as error:
            if not isinstance(error_for(error.value, ""), NotPermitted | NotSupported):
                rows.append((f"{BY_INDEX}{index}", "", "a GPU that does not answer"))
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
    """What names which GPUs are visible. No CUDA numbers simulated GPUs, so they go by PCI bus."""
    order = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"} if library.library_is_simulated() else {}
    return {**os.environ, **order}


def why_none(error: DeviceError | None = None) -> str:
    """Why no GPU can be used, with the remedy where a container is behind it."""
    if error is None:
        return _INTEGRATED if library.count() else "the driver works and finds no GPU"
    if error.code == _UNKNOWN:
        return (
            f"{error}. A container loses its GPUs after `systemctl daemon-reload` on its host: restart it"
        )
    if error.code == _NO_LIBRARY and os.path.exists("/dev/nvidiactl"):
        return (f"{error}, but a GPU is here: start the container with -e "
                "NVIDIA_DRIVER_CAPABILITIES=compute,utility")
    return str(error)

