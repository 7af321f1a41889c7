"""What NVML answered in a session that changes nothing, for a file that can be replayed
(`simulation.replay`, docs/reference/recordings.md).

    answers = record(["GPU-..."], 60.0, every_s=0.003, share=0.1, status_s=0.2)
    print(answers.contents())
    answers.write("finding.jsonl.gz")
"""

from __future__ import annotations

import contextlib
import ctypes
import gzip
import hashlib
import json
import math
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pynvml

from ..clock import Clock
from ..errors import DeviceError, UsageError
from ..simulation.nvml_library import HOST_PIDS
from ..simulation.replay import FIELDS, FORMAT, OUTPUT, is_output
from . import nvml

# Never recorded: who and where a GPU is, handles, and counters that take memory of the driver.
_LEFT_OUT = ("UUID", "Serial", "Pci", "BoardId", "PartNumber", "HandleBy", "FromMig", "Count", "Set", "Reset")
_TEXTS = ("nvmlDeviceGetName",)  # whose text is written as it is; others are hashed
_FOLLOWED = ("nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetPowerUsage", FIELDS)


class Answers:
    """Stands in the place of `pynvml.nvmlLib`, passes every call on, and keeps what it answered.

    Args:
        library: The one that answers.
        clock: Of the GPUs.
    """

    def __init__(self, library: Any, clock: Clock) -> None:
        self._library, self._clock, self._begun_s = library, clock, clock()
        self._gpus: dict[int | None, int] = {}  # by NVML handle
        self._pids: dict[int, int] = {}
        self._series: dict[tuple[int, str, str], dict[str, Any]] = {}
        self.driver, self.names, self.call_s = "", {}, 0.0  # type: tuple[str, dict[int, str], float]
        self.length_s = 0.0

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # a simulated library is still known as one
        return type(self._library)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._library, name)
        if not name.startswith("nvmlDevice") or any(part in name for part in _LEFT_OUT):
            return value

        def recorded(*arguments: Any) -> int:
            at_us = round(1e6 * (self._clock() - self._begun_s))
            code = int(value(*arguments))
            self._keep(name, at_us, code, *arguments)
            return code

        setattr(self, name, recorded)
        return recorded

    def _keep(self, name: str, at_us: int, code: int, handle: Any, *arguments: Any) -> None:
        if (gpu := self._gpu(handle)) is None:
            return
        if name == FIELDS:
            count, values = (getattr(each, "_obj", each) for each in arguments)
            for field in values[: getattr(count, "value", count)]:
                key = [field.fieldId, field.scopeId]
                self._add(gpu, name, key, at_us, code or field.nvmlReturn, nvml._number(field))
            return
        outputs = [getattr(each, "_obj", each) for each in arguments if is_output(each)]
        inputs = [OUTPUT if is_output(each) else getattr(each, "value", each) for each in arguments]
        plain = [self._plain(each, name in _TEXTS) for each in outputs]
        self._add(gpu, name, inputs, at_us, code, plain)

    def _add(self, gpu: int, name: str, inputs: list[Any], at_us: int, code: int, answer: Any) -> None:
        line = self._series.setdefault(
            (gpu, name, json.dumps(inputs)),
            {"gpu": gpu, "function": name, "arguments": inputs, "answers": [], "reads_us": []},
        )
        new = [code, None if code and name == FIELDS else answer]
        if not line["answers"] or line["answers"][-1][1:] != new:
            line["answers"].append([at_us, *new])
        line["reads_us"].append(at_us)

    def _gpu(self, handle: Any) -> int | None:
        address = ctypes.cast(handle, ctypes.c_void_p).value
        if address not in self._gpus:
            index = ctypes.c_uint()
            if self._library.nvmlDeviceGetIndex(handle, ctypes.byref(index)):
                return None
            self._gpus[address] = index.value
        return self._gpus[address]

    def _plain(self, value: Any, as_it_is: bool, name: str = "") -> Any:
        """An output as JSON: numbers, texts, a structure's fields by name."""
        if isinstance(value, ctypes.Structure):
            fields = [field[0] for field in getattr(value, "_fields_", ())]
            return {field: self._plain(getattr(value, field), as_it_is, field) for field in fields}
        if isinstance(value, ctypes.Array) and not isinstance(getattr(value, "value", None), bytes):
            return [self._plain(each, as_it_is, name) for each in value]
        value = getattr(value, "value", value)
        if isinstance(value, bytes):
            text = value.decode(errors="replace")
            return text if as_it_is or not text else hashlib.sha256(value).hexdigest()[:12]
        if name == "pid" and value:
            return self._pids.setdefault(value, HOST_PIDS + len(self._pids))
        return value if isinstance(value, int | float) else None

    # the file

    def contents(self) -> str:
        """What is in the file, for a person who is to pass it on."""
        count = sum(len(line["answers"]) for line in self._series.values())
        names = ", ".join(f"GPU {gpu} {name!r}" for gpu, name in sorted(self.names.items()))
        functions = sorted({name for _, name, _ in self._series})
        return (
            f"{self.length_s:.3g} s of {names}; driver {self.driver!r}; {count} answers of "
            f"{len(self._series)} queries:\n  " + "\n  ".join(functions)
            + "\nIt has no UUID, serial number, PCI address, process id or name, user or host name."
        )

    def write(self, path: Path) -> None:
        """Write the file, compressed where its name ends in .gz."""
        places = {gpu: place for place, gpu in enumerate(sorted(self.names))}
        head = {
            "format": FORMAT, "driver": self.driver,
            "length_us": round(1e6 * self.length_s), "call_us": round(1e6 * self.call_s),
            "gpus": [{"name": self.names[gpu]} for gpu in sorted(self.names)],
        }
        lines = [json.dumps(head)]
        for line in self._series.values():
            read_us = line["reads_us"] if line["function"] in _FOLLOWED else []
            since = [now - before for before, now in zip([0, *read_us], read_us, strict=False)]
            if line["gpu"] in places:
                line = line | {"gpu": places[line["gpu"]], "reads_us": since}
                lines.append(json.dumps(line, separators=(",", ":")))
        text = ("\n".join(lines) + "\n").encode()
        path.write_bytes(gzip.compress(text, mtime=0) if path.suffix == ".gz" else text)


def record(
    uuids: Sequence[str], seconds: float, *, every_s: float, share: float, status_s: float
) -> Answers:
    """Ask GPUs everything that the workbench asks, energy and power again and again; an interrupt ends it.

    Args:
        uuids: The GPUs.
        seconds: For how long.
        every_s: Least time between two reads of energy and power.
        share: Of the time, that the calls may hold the driver's lock.
        status_s: Time between two reads of everything else.

    Raises:
        UsageError: there is no GPU.
        DeviceError: one cannot be opened.
    """
    if not uuids:
        raise UsageError("there is no GPU to record")
    clock = nvml.open_uuid(uuids[0]).clock
    library, answers = pynvml.nvmlLib, Answers(pynvml.nvmlLib, clock)
    _use(answers)
    try:
        devices = [nvml.open_uuid(uuid) for uuid in uuids]
        answers.driver = nvml.driver_version()
        answers.names = {device.index: device.name for device in devices}
        opened = {device: device.sample() for device in devices}
        begun_s, status_at_s, rounds_s = clock(), -math.inf, [0.0]
        with contextlib.suppress(KeyboardInterrupt):
            while (now_s := clock()) < begun_s + seconds:
                if now_s >= status_at_s + status_s:
                    status_at_s = now_s
                    _ask(*(ask for device in devices for ask in (
                        device.modes, device.processes, device.memory_bytes, device.clocks_are_set,
                        device.sample,
                    )))
                before_s = clock()
                _ask(*(ask for device, status in opened.items() for ask in (
                    device.energy_j, partial(device.sample, status)
                )))
                rounds_s = [*rounds_s[-99:], clock() - before_s]
                clock.sleep(max(every_s, statistics.median(rounds_s) / share))
        answers.length_s = clock() - begun_s
        answers.call_s = statistics.median(rounds_s) / (2 * len(devices))
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
