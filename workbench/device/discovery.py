"""The GPUs of this machine: list them, open one. Real by default; simulated only when asked for by name."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterable
from numbers import Integral
from typing import Any

from ..errors import (
    DeviceError,
    GpuLost,
    NoDriver,
    NotPermitted,
    SimulationError,
    Transient,
    UnknownGpu,
    UsageError,
    is_list,
    shown,
)
from . import nvml, selection
from .gpu import OpenGpu
from .protocol import Device

Gpu = int | str | Device
Gpus = Gpu | Iterable[Gpu] | None
NO_LIBRARY, UNKNOWN = 12, 999  # NVML return codes
MOST_GPUS = 1024  # names in one list; no machine has so many
_NO_GPU = "the driver works and finds no GPU"
_INTEGRATED = (
    "the driver has a GPU without a UUID or PCI address: an integrated one (Jetson), whose NVML reports no "
    "energy; its INA sensors are not read"
)


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
    _attach()
    try:
        known = nvml.identities()
    except Transient:
        raise
    except DeviceError:  # `why_no_gpu` says which
        return []
    opened: dict[str, OpenGpu] = {}
    for uuid in selection.visible(known, _environment()):
        with contextlib.suppress(GpuLost, NotPermitted):  # open_device says which and why
            device = nvml.open_uuid(uuid, OpenGpu)
            opened.setdefault(device.uuid, device)  # two MIG instances of one GPU are one meter of energy
    return list(opened.values())


def named(gpus: Gpu | Iterable[Gpu]) -> list[Gpu]:
    """The names of GPUs one by one; none of an empty list. Raises UsageError for what is no name.

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
    _attach()
    try:
        known = nvml.identities()
    except Transient:
        raise
    except DeviceError as error:
        raise NoDriver(f"{_reason(error)}; a simulated one can be had by name: open_device('sim:A100')",
                       code=error.code) from error
    if not known:
        raise NoDriver(f"{_none_known()}; a simulated one can be had by name: open_device('sim:A100')")
    return nvml.open_uuid(selection.resolve(which, known, _environment()), OpenGpu)


def why_no_gpu() -> str:
    """One sentence that says why `devices()` is empty; empty where it is not."""
    _attach()
    try:
        known = nvml.identities()
        if not known:
            return _none_known()
        seen = selection.visible(known, _environment())
        if not seen:
            return (
                f"CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES', '')!r} leaves no GPU to this "
                "process"
            )
        if not devices():
            nvml.open_uuid(seen[0])
    except DeviceError as error:
        return _reason(error)
    return ""


def _none_known() -> str:
    """Why no GPU has an identity."""
    return _INTEGRATED if nvml.count() else _NO_GPU


def _reason(error: DeviceError) -> str:
    """Why no GPU can be used, with the way out where a container is behind it."""
    if error.code == UNKNOWN:
        return (
            f"{error}; a container says so that has lost its GPUs (after `systemctl daemon-reload` on its "
            "host): restart it"
        )
    if error.code == NO_LIBRARY and os.path.exists("/dev/nvidiactl"):
        return (f"{error}, but a GPU is here: start the container with -e "
                "NVIDIA_DRIVER_CAPABILITIES=compute,utility")
    return str(error)


def _environment() -> dict[str, str]:
    """What says which GPUs are visible. No CUDA numbers simulated GPUs, so they go by PCI bus."""
    order = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"} if nvml.library_is_simulated() else {}
    return {**os.environ, **order}


def _attach() -> None:
    from ..simulation import machine

    machine.attached()


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
    return nvml.open_index(present.cards.index(key), OpenGpu)
