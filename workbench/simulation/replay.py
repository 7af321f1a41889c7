"""A recorded session of NVML as a simulated machine: the same answers at the same times
(docs/reference/recordings.md). Standard library only: the sampling process imports this.

The machine's file has the recording behind the memory of its GPUs, and a name that ends in `SUFFIX`, by which
other processes know that no setting can be changed.
"""

from __future__ import annotations

import ctypes
import gzip
import json
import os
import time
import uuid
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .. import _processes
from ..errors import SimulationError
from .state import ABILITIES, MAX_GPUS, MachineState

FORMAT = "gpu-energy-workbench recording 1"
SUFFIX = "-replay"  # of the name of a machine's file
FIELDS, OUTPUT = "nvmlDeviceGetFieldValues", "*"
SLOW_US = 300  # calls that take longer take their time in a replay too
# Column of a trace -> function, other arguments, factor; what a reading of it is.
COLUMNS: dict[str, tuple[str, list[Any], float]] = {
    "energy_j": ("nvmlDeviceGetTotalEnergyConsumption", [], 1000.0),
    "power_w": ("nvmlDeviceGetPowerUsage", [], 1000.0),
    "power_limit_w": ("nvmlDeviceGetEnforcedPowerLimit", [], 1000.0),
    "sm_clock_mhz": ("nvmlDeviceGetClockInfo", [1], 1.0),
    "mem_clock_mhz": ("nvmlDeviceGetClockInfo", [2], 1.0),
    "temperature_c": ("nvmlDeviceGetTemperature", [0], 1.0),
    "throttle": ("nvmlDeviceGetCurrentClocksEventReasons", [], 1.0),
}


def load(path: Path) -> list[dict[str, Any]]:
    """The lines of a recording. Raises SimulationError where it is none."""
    try:
        raw = path.read_bytes()
        text = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
        lines: list[dict[str, Any]] = [json.loads(line) for line in text.splitlines() if line.strip()]
        head = lines[0]
        if head["format"] != FORMAT or not 1 <= len(head["gpus"]) <= MAX_GPUS:
            raise ValueError
        Recording(lines)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, EOFError, OSError) as error:
        raise SimulationError(f"{path.name} cannot be replayed ({error or 'no recording'}); `workbench "
                              "doctor --record FILE` writes a recording") from error
    return lines


def of_traces(
    traces: Mapping[str, Mapping[str, Sequence[float | None]]], written_by: str
) -> list[dict[str, Any]]:
    """The lines of a recording with what traces have; a column that is empty is not supported.

    Args:
        traces: By GPU, the columns of a trace by name (`trace.SCHEMA`).
        written_by: The program.
    """
    head = {"format": FORMAT, "driver": written_by, "call_us": 0,
            "gpus": [{"name": f"GPU {name} of {written_by}"} for name in traces]}
    lines: list[dict[str, Any]] = [head]
    for gpu, columns in enumerate(traces.values()):
        times_us = [round(1e6 * (at_s or 0.0)) for at_s in columns["time_s"]]

        def add(function: str, inputs: list[Any], values: Sequence[Any], gpu: int = gpu,
                times_us: list[int] = times_us) -> None:
            answers = [[at_us, 0, [value]] for at_us, value in zip(times_us, values, strict=True)
                       if value is not None]
            if answers:
                lines.append({"gpu": gpu, "function": function, "arguments": [*inputs, OUTPUT],
                              "answers": answers})

        for name, (function, inputs, factor) in COLUMNS.items():
            add(function, inputs, [None if each is None else round(factor * each)
                                   for each in columns.get(name, [None] * len(times_us))])
        busy, memory = (columns.get(name, [None] * len(times_us))
                        for name in ("utilisation", "memory_utilisation"))
        add("nvmlDeviceGetUtilizationRates", [], [
            None if share is None else {"gpu": round(100 * share), "memory": round(100 * (other or 0.0))}
            for share, other in zip(busy, memory, strict=True)
        ])
    return lines


class Recording:
    """Answers by GPU, function and arguments, each from the time on when it was first given."""

    def __init__(self, lines: Sequence[Mapping[str, Any]]) -> None:
        self._answers: dict[tuple[int, str, str], tuple[list[float], list[tuple[int, Any]]]] = {}
        for line in lines[1:]:
            key = int(line["gpu"]), str(line["function"]), json.dumps(line["arguments"])
            times_s = [at_us / 1e6 for at_us, _, _ in line["answers"]]
            self._answers[key] = times_s, [(int(code), value) for _, code, value in line["answers"]]
        self.functions = {function for _, function, _ in self._answers}

    def at(self, now_s: float, gpu: int, function: str, inputs: list[Any]) -> tuple[int, Any]:
        """The code and the answer at a time: the last one before, or the first one of all."""
        times_s, answers = self._answers.get((gpu, function, json.dumps(inputs)), ((), ()))
        if not answers:
            return 3, None  # not supported
        return answers[max(bisect_right(times_s, now_s) - 1, 0)]

    def call(self, now_s: float, gpu: int, function: str, *arguments: Any) -> int:
        """Answer a call as it was answered: write its outputs, return its code."""
        targets = [getattr(each, "_obj", each) for each in arguments if is_output(each)]
        inputs = [OUTPUT if is_output(each) else getattr(each, "value", each) for each in arguments]
        code, values = self.at(now_s, gpu, function, inputs)
        for target, value in zip(targets, values or (), strict=False):
            if isinstance(value, list) and len(value) > len(target):
                return 7  # insufficient size
            _write(target, value)
        return code


def is_output(argument: Any) -> bool:
    return hasattr(argument, "_obj") or isinstance(argument, ctypes.Array)


def _write(target: Any, value: Any) -> None:
    if isinstance(value, dict):
        for name, part in value.items():
            if isinstance(part, dict | list):
                _write(getattr(target, name), part)
            elif part is not None:
                setattr(target, name, part.encode() if isinstance(part, str) else part)
    elif isinstance(value, list):
        for place, part in enumerate(value):
            if isinstance(part, dict):
                _write(target[place], part)
            else:
                target[place] = part
    elif value is not None:
        target.value = value.encode() if isinstance(value, str) else value


def create(path: Path, lines: Sequence[Mapping[str, Any]], *, stepped: bool, scale: float) -> Path:
    """Write the file of a machine that replays a recording from its time 0 on; returns where.

    Args:
        path: Where to.
        lines: Of the recording.
        stepped: The clock moves only when stepped.
        scale: How much faster than real time the clock runs.
    """
    head = lines[0]
    text = "\n".join(json.dumps({**line, "reads_us": []}) for line in lines).encode()
    state = MachineState.create(path, len(head["gpus"]))
    slow = head.get("call_us", 0) > SLOW_US
    try:
        for name, value in {
            "stepped": int(stepped), "scale": scale, "origin_s": time.monotonic(), "unix_s": time.time(),
            "latency_s": head["call_us"] / 1e6 if slow else 0.0, "unprivileged": 1, "owner_pid": os.getpid(),
            "owner_namespace": int(_processes.namespace() or 0), "driver_version": str(head["driver"])[:31],
            "recording_bytes": len(text),
        }.items():
            state.set_header(name, value)
        for gpu, card in enumerate(head["gpus"]):
            identity = uuid.uuid5(uuid.NAMESPACE_OID, f"{gpu} {text!r}")
            for name, value in {
                "name": f"{card['name']} (replayed)"[:95], "uuid": f"GPU-{identity}", "index": gpu,
                "pci": f"00000000:{0x10 + gpu:02X}:00.0", "abilities": (1 << len(ABILITIES)) - 1,
            }.items():
                state.set_card(gpu, name, value)
        with state.path.open("ab") as file:
            file.write(text)
        return state.path
    except OSError:
        state.path.unlink()
        raise
    finally:
        state.close()


def of_machine(state: MachineState) -> Recording | None:
    """The recording that a machine replays; None where it simulates."""
    length = state.header("recording_bytes")
    if not length:
        return None
    text = state.get(state.tenants_at(state.count), length)
    return Recording([json.loads(line) for line in text.splitlines()])
