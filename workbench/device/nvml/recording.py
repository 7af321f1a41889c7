"""What NVML answered in a session that changes nothing, for a file that can be replayed
(`simulation.replay`, docs/reference/recordings.md).
"""

from __future__ import annotations

import contextlib
import ctypes
import gzip
import json
import math
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pynvml

from ...clock import Clock
from ...errors import DeviceError, UsageError
from ...simulation.nvml_library import HOST_PIDS
from ...simulation.replay import FIELDS, FORMAT, query
from ..gpu import OpenGpu
from . import driver_version, open_uuid
from .readings import field_number

# Parts of functions' names: what names which GPU it is, and what changes one.
_LEFT_OUT = ("UUID", "Serial", "Pci", "BoardId", "PartNumber", "Handle", "Count", "Set", "Reset")
_FOLLOWED = ("nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetPowerUsage", FIELDS)


class Answers:
    """Replaces `pynvml.nvmlLib`, passes every call on, and keeps the answers.

    Args:
        library: The one that answers.
        clock: Of the GPUs.
    """

    def __init__(self, library: Any, clock: Clock) -> None:
        self._library, self._clock, self._begun_s = library, clock, clock()
        self._gpus: dict[int | None, int] = {}  # by NVML handle
        self._pids: dict[int, int] = {}
        self._series: dict[str, dict[str, Any]] = {}
        self.head: dict[str, Any] = {"format": FORMAT, "begun_s": self._begun_s}

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # a simulated library is still known as one
        return type(self._library)

    def __getattr__(self, name: str) -> Any:
        answer = getattr(self._library, name)
        if not name.startswith("nvmlDevice") or any(part in name for part in _LEFT_OUT):
            return answer

        def recorded(handle: Any, *arguments: Any) -> int:
            at_us = round(1e6 * (self._clock() - self._begun_s))
            code = int(answer(handle, *arguments))
            gpu = self._gpus.setdefault(ctypes.cast(handle, ctypes.c_void_p).value, len(self._gpus))
            asked, targets = query(arguments)
            if name != FIELDS:
                self._add(gpu, name, asked, [at_us, code, [self._plain(each, name) for each in targets]])
                return code
            for field in targets[0]:
                answered = [at_us, code or field.nvmlReturn, field_number(field)]
                self._add(gpu, name, [field.fieldId, field.scopeId], answered)
            return code

        setattr(self, name, recorded)
        return recorded

    def _add(self, gpu: int, name: str, asked: list[Any], answer: list[Any]) -> None:
        line = self._series.setdefault(f"{gpu} {name} {asked}", {
            "gpu": gpu, "function": name, "arguments": asked, "answers": [], "reads_us": [],
        })
        if not line["answers"] or line["answers"][-1][1:] != answer[1:]:
            line["answers"].append(answer)
        if name in _FOLLOWED:
            line["reads_us"].append(answer[0])

    def _plain(self, value: Any, name: str) -> Any:
        """An output as JSON: numbers, texts, a structure's fields by name."""
        if isinstance(value, ctypes.Structure):
            return {field[0]: self._plain(getattr(value, field[0]), field[0]) for field in value._fields_}
        value = getattr(value, "value", value)
        if isinstance(value, ctypes.Array):
            return [self._plain(each, name) for each in value]
        if isinstance(value, bytes):
            return value.decode() if name == "nvmlDeviceGetName" else ""
        return self._pids.setdefault(value, HOST_PIDS + len(self._pids)) if name == "pid" else value

    def __str__(self) -> str:
        functions = dict.fromkeys(line["function"] for line in self._series.values())
        left_out = "no UUID, serial number, PCI address, process, user or host is named"
        return "\n  ".join([json.dumps(self.head), *functions, left_out])

    def write(self, path: Path) -> None:
        """Write the file, compressed where its name ends in .gz."""
        lines = [self.head, *self._series.values()]
        text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines).encode()
        path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)


def record(
    devices: Sequence[OpenGpu], seconds: float, *, every_s: float, share: float, status_s: float
) -> Answers:
    """Ask the driver what the workbench asks, for energy and power again and again. An interrupt ends it.

    Args:
        devices: The GPUs.
        seconds: For how long.
        every_s: Least time between two reads of energy and power.
        share: Of the time, that the calls may hold the driver's lock.
        status_s: Time between two reads of everything else.

    Raises:
        UsageError: no GPU, or no time.
        DeviceError: a GPU cannot be opened.
    """
    if not devices or not seconds > 0:
        raise UsageError(f"{len(devices)} GPUs for {seconds:g} s: give GPUs and seconds to record")
    clock, library = devices[0].clock, pynvml.nvmlLib
    answers = Answers(library, clock)
    _use(answers)
    try:
        opened = {gpu: gpu.sample() for gpu in [open_uuid(each.uuid) for each in devices]}
        answers.head |= {"driver": driver_version(), "gpus": [{"name": each.name} for each in opened]}
        begun_s, status_at_s, took_s = clock(), -math.inf, [0.0]
        with contextlib.suppress(KeyboardInterrupt):
            while (now_s := clock()) < begun_s + seconds:
                if now_s >= status_at_s + status_s:
                    status_at_s = now_s
                    for gpu in opened:
                        _ask(gpu.modes, gpu.processes, gpu.memory_bytes, gpu.clocks_are_set, gpu.sample)
                before_s = clock()
                for gpu, status in opened.items():
                    _ask(gpu.energy_j, partial(gpu.sample, status))
                took_s.append(clock() - before_s)
                clock.sleep(max(every_s, took_s[-1] / share))
        answers.head |= {"length_us": round(1e6 * (clock() - begun_s)),
                         "call_us": round(1e6 * statistics.median(took_s) / len(opened) / 2)}
        return answers
    finally:
        _use(library)


def _ask(*questions: Callable[[], object]) -> None:
    for ask in questions:
        with contextlib.suppress(DeviceError):  # which is an answer
            ask()


def _use(library: Any) -> None:
    pynvml.nvmlLib = library
    pynvml._nvmlGetFunctionPointer_cache.clear()
