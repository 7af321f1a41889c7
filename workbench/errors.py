"""What can go wrong, as one tree.

    WorkbenchError
    ├── DeviceError                 something about a GPU
    │   ├── NoDriver                no NVML here, or one that does not work
    │   ├── UnknownGpu              no such GPU (index, UUID, PCI id, simulated card)
    │   ├── NotSupported            this GPU, driver or guest cannot do it
    │   ├── NotPermitted            it could, with more rights
    │   ├── OutOfRange              a power limit or clock that the card does not take
    │   ├── GpuLost                 the GPU fell off the bus or needs a reset
    │   ├── Transient               the driver could not answer this time
    │   ├── DeviceHeld              another process is changing this GPU
    │   └── DriverError             anything else NVML says
    ├── MeasurementError            no number can be given, and why
    ├── StoreError                  the measurements' directory
    ├── SimulationError             the simulated GPUs
    └── UsageError                  an option or argument that makes no sense

Every message names the value, the limit and the way out.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

HIDDEN_BINDINGS = (
    "an old package named pynvml hides NVIDIA's bindings; pip uninstall pynvml, pip install nvidia-ml-py"
)

class WorkbenchError(Exception):
    """Base of everything that the workbench raises on purpose."""


class DeviceError(WorkbenchError):
    """Something about a GPU; `code` is the NVML return code where there was one."""

    def __init__(self, message: str, *, code: int | None = None) -> None:
        super().__init__(message)
        self.code = code


class NoDriver(DeviceError):
    """There is no NVIDIA driver here, or one that does not work."""


class UnknownGpu(DeviceError, LookupError):
    """No GPU answers to that index, UUID, PCI id or card name."""


class NotSupported(DeviceError):
    """This GPU, its driver or the virtual machine cannot do this."""


class NotPermitted(DeviceError, PermissionError):
    """The GPU could do this for a user with more rights."""

    def __init__(self, message: str, *, code: int | None = None) -> None:
        DeviceError.__init__(self, message, code=code)


class OutOfRange(DeviceError, ValueError):
    """A power limit or clock that the card does not take."""


class GpuLost(DeviceError):
    """The GPU fell off the bus or needs a reset; it will not answer again by itself."""


class Transient(DeviceError):
    """The driver could not answer this time; the next call may succeed."""


class DeviceHeld(DeviceError):
    """Another process holds the right to change this GPU."""


class DriverError(DeviceError):
    """NVML said something that has no better class."""


class MeasurementError(WorkbenchError):
    """No number can be given for this window; the message says why."""


class StoreError(WorkbenchError):
    """The directory of measurements cannot be read or written."""


class SimulationError(WorkbenchError):
    """The simulated GPUs cannot do what was asked."""


class UsageError(WorkbenchError, ValueError):
    """An option, unit or argument that makes no sense."""


def describe_error(error: BaseException) -> str:
    """What went wrong, in one sentence."""
    if isinstance(error, WorkbenchError) and str(error):
        return str(error)
    return f"{type(error).__name__}: {error}"


def renamed(**names: tuple[str, Callable[..., object]]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator: keyword arguments' old names still work, with a DeprecationWarning. `names` gives, by old
    name, the new one and what makes its value of the old one's.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*args: P.args, **options: P.kwargs) -> R:
            for old in names.keys() & options.keys():
                new, convert = names[old]
                words = f"{function.__name__}({old}=...) is now {function.__name__}({new}=...)"
                warnings.warn(words, DeprecationWarning, stacklevel=2)
                options[new] = convert(options.pop(old))
            return function(*args, **options)

        return call

    return decorate
