"""NVML through pynvml: started once per process and again after a fork; its errors become ours here."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pynvml as nvml

from ...errors import (
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

RIGHTS = "root, CAP_SYS_ADMIN (container: --cap-add=SYS_ADMIN) or the Zeus daemon (ZEUSD_SOCK_PATH) is needed"

# NVML code -> our error and the sentence that follows what was being done; others have NVML's own text. By
# number, which is ABI: bindings older than a code have no name for it.
ERRORS: dict[int, tuple[type[DeviceError], str]] = {
    1: (Transient, "NVML was shut down (after a fork?); open the device again"),
    2: (OutOfRange, "the driver does not take that value"),
    3: (NotSupported, "this GPU, driver or virtual machine does not support it"), 4: (NotPermitted, RIGHTS),
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
    999: (DriverError, "the driver reports an unknown error (NVML error 999)"),
}

# what pynvml raises; since 12.550 another kind where an old driver lacks a versioned function
REFUSED = (nvml.NVMLError, getattr(nvml, "NVMLLibraryMismatchError", nvml.NVMLError))
_SYS_ADMIN = 21  # the capability's bit


def error_for(code: int, doing: str) -> DeviceError:
    """Our error for an NVML return code met while `doing` something; never a bare number."""
    kind, sentence = ERRORS.get(code) or (DriverError, f"{nvml.NVMLError(code)} (NVML error {code})")
    return kind(f"{doing}: {sentence}", code=code)


@contextlib.contextmanager
def translated(doing: str) -> Iterator[None]:
    """NVML's errors inside become ours; a forked process starts NVML before."""
    restart_after_fork()
    try:
        yield
    except REFUSED as error:
        raise error_for(getattr(error, "value", nvml.NVML_ERROR_FUNCTION_NOT_FOUND), doing) from error


_initialised_library: Any = None
_forked = False  # since NVML was started, which does not outlive that
opened: weakref.WeakSet[Any] = weakref.WeakSet()  # GPUs, each with `find_again`


def _note_fork() -> None:
    global _forked
    _forked = _initialised_library is not None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)


def restart_after_fork() -> None:
    """Start NVML again in a forked process, and find the GPUs that it has open, by their UUIDs."""
    global _forked
    if not _forked:
        return
    _forked = False
    for _ in range(8):  # as often as it was started before the fork
        try:
            nvml.nvmlShutdown()
        except nvml.NVMLError:
            break
    with translated("starting NVML again after a fork"):
        nvml.nvmlInit()
    for device in list(opened):
        with contextlib.suppress(nvml.NVMLError):  # one that is gone reports it when it is read
            device.find_again()


def initialise() -> None:
    """Start NVML once for this process's library. Raises NoDriver where there is none that works."""
    global _initialised_library
    restart_after_fork()
    if nvml.nvmlLib is not None and nvml.nvmlLib is _initialised_library and _still_initialised():
        return
    if not hasattr(nvml, "_nvmlGetFunctionPointer"):
        from ...simulation.nvml_library import HIDDEN_BINDINGS

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

