"""The GPUs of this machine: list them, open one. Real by default; simulated only when asked for by name."""

from __future__ import annotations

import contextlib
import os

from .device import nvml, visible
from .device.nvml import NvmlDevice
from .errors import GpuLost, NoDriver, NotPermitted, UnknownGpu


def devices() -> list[NvmlDevice]:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves to this process, in CUDA's order; empty where there is none.

    Where the environment names a simulated machine (`WORKBENCH_SIMULATED_GPUS`), these are its GPUs.
    """
    _attach()
    try:
        known = nvml.identities()
    except NoDriver:
        return []
    opened: dict[str, NvmlDevice] = {}
    for uuid in visible.visible(known, _environment()):
        with contextlib.suppress(GpuLost, NotPermitted):  # open_device says which and why
            device = nvml.open_uuid(uuid)
            opened.setdefault(device.uuid, device)  # two MIG instances of one GPU are one meter of energy
    return list(opened.values())


def open_device(which: int | str = 0) -> NvmlDevice:
    """Open one GPU.

    Args:
        which: A number as CUDA counts, a UUID or its beginning, a PCI bus id, or "sim:V100" for a simulated card.

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
    except NoDriver as error:
        raise NoDriver(f"{error}; a simulated one can be had by name: open_device('sim:A100')", code=error.code) from error
    if not known:
        raise NoDriver("the driver works and finds no GPU; a simulated one can be had by name: open_device('sim:A100')")
    return nvml.open_uuid(visible.resolve(which, known, _environment()))


def open_exactly(uuid: str) -> NvmlDevice:
    """Open the GPU with this full UUID, whatever CUDA_VISIBLE_DEVICES says."""
    _attach()
    return nvml.open_uuid(uuid)


def why_no_gpu() -> str:
    """One sentence that says why `devices()` is empty; empty where it is not."""
    _attach()
    try:
        return "" if nvml.identities() else "the driver works and finds no GPU"
    except NoDriver as error:
        return str(error)


def _environment() -> dict[str, str]:
    """What says which GPUs are visible. No CUDA numbers simulated GPUs, so they go by PCI bus."""
    order = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"} if nvml.library_is_simulated() else {}
    return {**os.environ, **order}


def _attach() -> None:
    from .simulation import machine

    machine.attached()


def _simulated(card: str) -> NvmlDevice:
    from .simulation import catalogue, machine

    key = catalogue.card(card).key
    present = machine.attached()
    if present is None:
        present = machine.simulate([key])
    if key not in present.cards:
        raise UnknownGpu(
            f"the simulated machine of this process has {', '.join(present.cards)} and no {key}; "
            f"choose all cards at once: simulate({key!r}, ...) or %gpu simulate {key},..."
        )
    return nvml.open_index(present.cards.index(key))
