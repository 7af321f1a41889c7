"""The GPUs of this machine: list them, open one. Real by default; simulated only when asked for by name."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterable
from numbers import Integral
from typing import Any, cast

from ..errors import (
    DeviceError,
    DriverError,
    GpuLost,
    NoDriver,
    NotPermitted,
    SimulationError,
    Transient,
    UnknownGpu,
    UsageError,
    checked,
    is_list,
    shown,
)
from . import driver, nvml
from .gpu import OpenGpu
from .protocol import Device

Gpu = int | str | Device
Gpus = Gpu | Iterable[Gpu] | None
NVML: driver.Driver = nvml  # holds the module to the protocol when types are checked
MOST_GPUS = 1024  # names in one list; no machine has so many
SIMULATE = "To try without a GPU, use a simulated one: workbench.simulate('A100')"


@checked
def devices(gpus: Gpus = None) -> list[OpenGpu]:
    """The GPUs that are named, each once; without names those of this process, in CUDA's order.

    Those of this process are what CUDA_VISIBLE_DEVICES leaves visible, and may be none. Where the environment
    names a simulated machine (`WORKBENCH_SIMULATED_GPUS`), they are its GPUs.

    Args:
        gpus: An index as CUDA counts, a UUID or its beginning, a PCI id, "sim:V100", an open device; several
            of them, or none, as a list, or several as one text with commas.

    Raises:
        Transient: the driver cannot answer just now.
        NoDriver, UnknownGpu, SimulationError: as `open_device`.
    """
    if gpus is not None:
        found = [open_device(each) if isinstance(each, int | str) else each for each in named(gpus)]
        return list({device.uuid: device for device in found}.values())  # type: ignore[arg-type]
    door = _attached()
    try:
        known = door.identities()
    except Transient:
        raise
    except DeviceError:  # `why_no_gpu` names which
        return []
    opened: dict[str, OpenGpu] = {}
    for uuid in door.visible(known):
        with contextlib.suppress(GpuLost, NotPermitted, DriverError):  # open_device names which and why
            device = cast(OpenGpu, door.open_uuid(uuid))
            opened.setdefault(device.uuid, device)  # two MIG instances of one GPU are one meter of energy
    return list(opened.values())


def named(gpus: Gpu | Iterable[Gpu]) -> list[Gpu]:
    """The names of GPUs one by one; none of an empty list. Raises UsageError for other values.

    >>> named("0, GPU-12"), named(1), named([0, "sim:V100,late"]), named([])
    (['0', 'GPU-12'], [1], [0, 'sim:V100,late'], [])
    """
    parts: list[Gpu] = []
    given: Any = gpus
    for each in itertools.islice(given, MOST_GPUS) if is_list(gpus) else [given]:
        if isinstance(each, str) and each.startswith("sim:"):
            parts.append(each.strip())
        elif isinstance(each, str) and each.strip(" ,"):
            parts += [part.strip() for part in each.split(",") if part.strip()]
        elif isinstance(each, Integral) and not isinstance(each, bool):
            parts.append(int(each))
        elif isinstance(each, (bool, str)) or not hasattr(each, "uuid"):
            raise UsageError(f"{shown(each)} names no GPU; give an index, a UUID, a PCI id, 'sim:V100', an "
                             "open device, or a list of them")
        else:
            parts.append(each)
    return parts


@checked
def open_device(which: int | str = 0) -> OpenGpu:
    """Open one GPU.

    Args:
        which: A number as CUDA counts, a UUID or its beginning, a PCI bus id, or "sim:V100".

    Raises:
        NoDriver: there is no GPU here that could be opened.
        UnknownGpu: nothing answers to `which`; the message lists what does.
        SimulationError: a simulated card where the real driver is in use already.
    """
    text = str(which).strip()
    if text.startswith("sim:"):
        return _simulated(text[len("sim:") :])
    door = _attached()
    try:
        known = door.identities()
    except Transient:
        raise
    except DeviceError as error:
        raise NoDriver(f"{door.why_none(error)}. {SIMULATE}", code=error.code) from error
    if not known:
        raise NoDriver(f"{door.why_none()}. {SIMULATE}")
    return cast(OpenGpu, door.open_uuid(door.resolve(which, known)))


def why_no_gpu() -> str:
    """One sentence that gives the reason `devices()` is empty; empty where it is not."""
    door = _attached()
    try:
        known = door.identities()
        if not known:
            return door.why_none()
        left = door.visible(known)
        if not left:
            return f"{door.VISIBLE}={os.environ.get(door.VISIBLE, '')!r} leaves no GPU to this process"
        if not devices():
            door.open_uuid(left[0])
    except DeviceError as error:
        return door.why_none(error)
    return ""


def _attached() -> driver.Driver:
    """The driver; simulated GPUs that the environment names answer in its library's place."""
    from ..simulation import machine

    machine.attached()
    return driver.current()


def _simulated(card: str) -> OpenGpu:
    """The simulated card of a name, with what makes it rough where it is made ("A100,part-time")."""
    from ..simulation import catalogue, machine

    name, *roughness = card.split(",")
    key = catalogue.card(name).key
    present = machine.attached()
    if present is None:
        present = machine.simulate([key, *roughness])
    elif missing := [each for each in roughness if not present.is_rough(each)]:
        raise SimulationError(
            f"the simulated machine of this process is not {', '.join(missing)}; make another one: "
            f"workbench.simulate({card!r})"
        )
    if key not in present.cards:
        raise UnknownGpu(
            f"the simulated machine of this process has {', '.join(present.cards)} and no {key}; choose all "
            f"cards together: simulate({key!r}, ...) or %gpu simulate {key},..."
        )
    return nvml.open_index(present.cards.index(key))
