"""A recorded session of NVML as a simulated machine: the same answers at the same times
(docs/reference/recordings.md). Standard library only: the sampling process imports this.

The machine's file has the recording after the memory of its GPUs. Its name ends in `SUFFIX`, which shows
other processes that no setting can be changed.
"""

from __future__ import annotations

import ctypes
import json
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import SimulationError, read_file
from .state import ABILITIES, MachineState

FORMAT = "gpu-energy-workbench recording 1"
SUFFIX = "-replay"
FIELDS, OUTPUT = "nvmlDeviceGetFieldValues", "*"
# Column of a trace -> function, its arguments, factor from its unit to that of the column.
COLUMNS: dict[str, tuple[str, list[Any], float]] = {
    "energy_j": ("nvmlDeviceGetTotalEnergyConsumption", [OUTPUT], 1000),
    "power_w": ("nvmlDeviceGetPowerUsage", [OUTPUT], 1000),
    "power_limit_w": ("nvmlDeviceGetEnforcedPowerLimit", [OUTPUT], 1000),
    "sm_clock_mhz": ("nvmlDeviceGetClockInfo", [1, OUTPUT], 1),
    "mem_clock_mhz": ("nvmlDeviceGetClockInfo", [2, OUTPUT], 1),
    "temperature_c": ("nvmlDeviceGetTemperature", [0, OUTPUT], 1),
    "throttle": ("nvmlDeviceGetCurrentClocksEventReasons", [OUTPUT], 1),
    "utilisation": ("nvmlDeviceGetUtilizationRates", [OUTPUT], 100),
}


def load(path: Path) -> list[dict[str, Any]]:
    """The lines of a recording. Raises SimulationError if the file is not a recording."""
    try:
        texts = read_file(path).splitlines()
        head = json.loads(texts[0])
        if head["format"] != FORMAT or not head["gpus"]:
            raise ValueError(f"it does not begin with {FORMAT!r}")
        lines: list[dict[str, Any]] = [head, *map(json.loads, texts[1:])]
        Recording(lines)
    except Exception as error:  # any effect of a damaged file
        raise SimulationError(f"{path.name} cannot be replayed ({error}); `workbench doctor --record FILE` "
                              "writes a recording") from error
    return lines


def of_traces(traces: Mapping[str, Mapping[str, list[Any]]], written_by: str) -> list[dict[str, Any]]:
    """The lines of a recording made from traces; an empty column is not supported.

    Args:
        traces: By GPU, the columns of a trace by name (`trace.SCHEMA`).
        written_by: The program.
    """
    head = {"format": FORMAT, "driver": written_by, "gpus": [{"name": f"GPU {name}"} for name in traces]}
    return [head, *(
        {"gpu": gpu, "function": function, "arguments": asked, "answers": [
            [round(1e6 * at_s), 0, [round(factor * value)] if name != "utilisation" else [
                {"gpu": round(factor * value), "memory": round(factor * (memory or 0.0))}
            ]]
            for at_s, value, memory in zip(
                columns["time_s"], columns[name], columns["memory_utilisation"], strict=True
            ) if value is not None
        ]}
        for gpu, columns in enumerate(traces.values())
        for name, (function, asked, factor) in COLUMNS.items()
    )]


class Recording:
    """Answers by GPU, function and arguments, each from the time of its first occurrence."""

    def __init__(self, lines: Sequence[Mapping[str, Any]]) -> None:
        self._answers = {
            (line["gpu"], line["function"], str(line["arguments"])): (
                [at_us / 1e6 for at_us, _, _ in line["answers"]], line["answers"]
            )
            for line in lines[1:]
        }
        self.functions = {function for _, function, _ in self._answers}

    def at(self, now_s: float, gpu: int, function: str, asked: list[Any]) -> tuple[int, Any]:
        """The code and the answer at a time: the last one before, or the first one of all.

        Args:
            now_s: The time.
            gpu: Index of the GPU.
            function: Name of the NVML function.
            asked: Its arguments (`query`), or a field and its scope.
        """
        times_s, answers = self._answers.get((gpu, function, str(asked)), ([], []))
        if not answers:
            return 3, None  # not supported
        _, code, answer = answers[max(bisect_right(times_s, now_s) - 1, 0)]
        return code, answer

    def call(self, now: Callable[[], float], function: str, gpu: int, *arguments: Any) -> int:
        """Repeat the recorded answer of a call: write its outputs, return its code."""
        asked, targets = query(arguments)
        code, answer = self.at(now(), gpu, function, asked)
        for target, value in zip(targets, answer or (), strict=False):
            if isinstance(value, list):
                if len(value) > len(target):
                    return 7  # insufficient size
                for place, part in enumerate(value):
                    _write(target, place, part)
            else:
                _write(target, "value", value)
        return code


def query(arguments: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """The arguments of a call, with `OUTPUT` for its outputs, and the outputs."""
    asked, targets = [], []
    for each in arguments:
        writes = hasattr(each, "_obj") or isinstance(each, ctypes.Array)
        asked.append(OUTPUT if writes else getattr(each, "value", each))
        targets += [getattr(each, "_obj", each)] * writes
    return asked, targets


def _write(target: Any, place: Any, value: Any) -> None:
    if isinstance(value, dict):
        for name, part in value.items():
            setattr(target if place == "value" else target[place], name, part)
    elif place == "value":
        target.value = value.encode() if isinstance(value, str) else value
    else:
        target[place] = value


def put(path: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    """Let the machine at a path replay a recording."""
    text = "\n".join(map(json.dumps, lines)).encode()
    state = MachineState(path)
    state.set_header("driver_version", lines[0]["driver"][:31])
    state.set_header("recording_bytes", len(text))
    for gpu, card in enumerate(lines[0]["gpus"]):
        state.set_card(gpu, "name", f"{card['name']} (replayed)"[:95])
        state.set_card(gpu, "abilities", (1 << len(ABILITIES)) - 1)
    state.close()
    with path.open("ab") as file:
        file.write(text)


def of_machine(state: MachineState) -> Recording | None:
    """The recording that a machine replays; None where it simulates."""
    if not (length := state.header("recording_bytes")):
        return None
    text = state.get(state.tenants_at(state.count), length)
    return Recording([json.loads(line) for line in text.splitlines()])
