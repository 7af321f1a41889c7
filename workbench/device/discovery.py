"""The GPUs of this machine: list them, open one. Real by default; simulated only when asked for by name."""

from __future__ import annotations

import contextlib
import os

from ..errors import DeviceError, GpuLost, NoDriver, NotPermitted, Transient, UnknownGpu
from . import nvml, selection
from .gpu import OpenGpu

NO_LIBRARY, UNKNOWN = 12, 999  # NVML return codes


def devices() -> list[OpenGpu]:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves to this process, in CUDA's order; empty where there is none.

    Where the environment names a simulated machine (`WORKBENCH_SIMULATED_GPUS`), these are its GPUs.

    Raises:
        Transient: the driver cannot answer just now.
        UnknownGpu: CUDA_VISIBLE_DEVICES counts GPUs, and nothing says in which order.
    """
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


def open_device(which: int | str = 0) -> OpenGpu:
    """Open one GPU.

    Args:
        which: A number as CUDA counts, a UUID or its beginning, a PCI bus id, or "sim:V100" for a simulated
            card.

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
        raise NoDriver(
            f"{_reason(error)}; a simulated one can be had by name: open_device('sim:A100')", code=error.code
        ) from error
    if not known:
        raise NoDriver(
            "the driver works and finds no GPU; a simulated one can be had by name: open_device('sim:A100')"
        )
    return nvml.open_uuid(selection.resolve(which, known, _environment()), OpenGpu)


def why_no_gpu() -> str:
    """One sentence that says why `devices()` is empty; empty where it is not."""
    _attach()
    try:
        known = nvml.identities()
        if not known:
            return "the driver works and finds no GPU"
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


def _reason(error: DeviceError) -> str:
    """Why no GPU can be used, with the way out where a container is behind it."""
    if error.code == UNKNOWN:
        return (
            f"{error}; a container says so that has lost its GPUs (after `systemctl daemon-reload` on its "
            "host): restart it"
        )
    if error.code == NO_LIBRARY and os.path.exists("/dev/nvidiactl"):
        return (
            f"{error}, but a GPU is here: start the container with -e "
            "NVIDIA_DRIVER_CAPABILITIES=compute,utility"
        )
    return str(error)


def _environment() -> dict[str, str]:
    """What says which GPUs are visible. No CUDA numbers simulated GPUs, so they go by PCI bus."""
    order = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"} if nvml.library_is_simulated() else {}
    return {**os.environ, **order}


def _attach() -> None:
    from ..simulation import machine

    machine.attached()


def _simulated(card: str) -> OpenGpu:
    from ..simulation import catalogue, machine

    key = catalogue.card(card).key
    present = machine.attached()
    if present is None:
        present = machine.simulate([key])
    if key not in present.cards:
        raise UnknownGpu(
            f"the simulated machine of this process has {', '.join(present.cards)} and no {key}; "
            f"choose all cards at once: simulate({key!r}, ...) or %gpu simulate {key},..."
        )
    return nvml.open_index(present.cards.index(key), OpenGpu)
