"""GPUs as text: their state, capabilities, and the rights needed for more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from ..device.gpu import OpenGpu
from ..errors import DeviceError
from .recorder import Recorder


def lines(devices: Sequence[OpenGpu], recorder: Recorder | None = None) -> Iterator[str]:
    """A few lines for each device."""
    for number, device in enumerate(devices):
        yield f"GPU {number}: {device.name}, {device.architecture}, {device.uuid}, PCI {device.pci_bus_id}"
        limits = device.limits
        try:
            limit_w = device.setting().power_limit_w
        except DeviceError as error:
            yield f"    {error}"
            continue
        if limits.min_power_limit_w is not None and limit_w is not None:
            span = f"{limits.min_power_limit_w:g}..{limits.max_power_limit_w:g} W"
            default_w = limits.default_power_limit_w
            usual = "unknown" if default_w is None else f"{default_w:g} W"
            yield f"    power limit {limit_w:g} W, can be {span}, default {usual}"
        if limits.mem_clocks_mhz:
            sm = limits.sm_clocks_mhz[limits.mem_clocks_mhz[0]]
            mem = ", ".join(str(clock) for clock in limits.mem_clocks_mhz)
            yield f"    SM clock {sm[-1]}..{sm[0]} MHz, memory clock {mem} MHz"
        update_s = recorder.update_s(device.uuid) if recorder else None
        if device.can("energy"):
            steps = f", which moves every {1000 * update_s:.0f} ms" if update_s else ""
            yield f"    energy: from the driver's counter{steps}"
        elif device.can("power"):
            yield "    energy: integrated from power readings (this GPU has no energy counter)"
        else:
            yield f"    energy: cannot be measured: {device.why_not('power')}"
        if recorder and (slow := recorder.slow_calls(device.uuid)):
            yield f"    {slow}"
        absent = [each.name for each in device.capabilities if not each.present]
        if without := [name for name in absent if name not in ("energy", "power")]:
            yield f"    without: {', '.join(without)}"
        if device.note:
            yield f"    {device.note}"
    if recorder and (resting := recorder.resting()):
        yield resting


def as_dicts(devices: Sequence[OpenGpu]) -> list[dict[str, Any]]:
    """The same for a script: a dictionary for each device, as JSON can hold it; None where it is unknown."""
    return [_as_dict(number, device) for number, device in enumerate(devices)]


def _as_dict(number: int, device: OpenGpu) -> dict[str, Any]:
    try:
        setting: dict[str, Any] | None = asdict(device.setting())
    except DeviceError:
        setting = None
    return {
        "index": number, "name": device.name, "uuid": device.uuid, "pci_bus_id": device.pci_bus_id,
        "architecture": device.architecture, "simulated": device.simulated, "setting": setting,
        "limits": asdict(device.limits), "note": device.note,
        "capabilities": [asdict(each) for each in device.capabilities],
    }
