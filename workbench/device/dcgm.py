"""DCGM's profiling fields of one GPU, through `dcgmi dmon`, which a thread reads; nothing here waits for it.

Fields 1002 to 1012 and their names: DCGM user guide, profiling metrics.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import statistics
import subprocess
import threading
import weakref

from ..clock import Clock
from .protocol import Device

FIELDS = {
    "SMACT": (1002, "sm_active"), "SMOCC": (1003, "sm_occupancy"), "TENSO": (1004, "tensor_active"),
    "DRAMA": (1005, "dram_active"), "FP64A": (1006, "fp64_active"), "FP32A": (1007, "fp32_active"),
    "FP16A": (1008, "fp16_active"), "PCITX": (1009, "pcie_tx_bytes_per_s"),
    "PCIRX": (1010, "pcie_rx_bytes_per_s"), "NVLTX": (1011, "nvlink_tx_bytes_per_s"),
    "NVLRX": (1012, "nvlink_rx_bytes_per_s"),
}
EVERY_S = 0.1
_ENTITY = re.compile(r"#\s*Entity\s+(?P<names>.+)$")
_ROW = re.compile(r"^\s*(GPU\s+)?(?P<gpu>\d+)\s+(?P<values>.+)$")
_BLANK = 1e15  # DCGM's blanks begin above (dcgm_structs.h)


def find(device: Device) -> tuple[str, int]:
    """The program and DCGM's number of a GPU; the reason and -1 where it cannot be asked."""
    if device.simulated:
        return "DCGM knows no simulated GPUs", -1
    program = shutil.which("dcgmi")
    if program is None:
        return "dcgmi is not installed (NVIDIA Data Center GPU Manager)", -1
    try:
        said = subprocess.run(
            [program, "discovery", "-l"], capture_output=True, text=True, timeout=5.0, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"{program} could not be asked which GPUs there are: {error}", -1
    number = number_of(said.stdout, device)
    if number is None:
        why = f": {_last_words(said.stdout + said.stderr)}" if said.returncode else ""
        return f"`dcgmi discovery -l` does not list {device.name}{why}", -1
    return program, number


def number_of(discovery: str, device: Device) -> int | None:
    """The number under which `dcgmi discovery -l` lists a GPU, by its UUID or else its PCI address."""
    number: int | None = None
    by_address: int | None = None
    for line in discovery.splitlines():
        if row := re.match(r"\|\s*(\d+)\s*\|", line):
            number = int(row[1])
        if number is None:
            continue
        if device.uuid.casefold() in line.casefold():
            return number
        address = re.search(r"PCI Bus ID:\s*([0-9A-Fa-f:.]+)", line)
        # 00000000:3B:00.0 is 0000:3b:00.0
        if address and address[1].casefold().lstrip("0") == device.pci_bus_id.casefold().lstrip("0"):
            by_address = number
    return by_address


class Dmon:
    """`dcgmi dmon` of one GPU while it runs; ends with this object. `said` is its last line that was no row.
    """

    def __init__(self, program: str, number: int, clock: Clock) -> None:
        self.said = ""
        self._number, self._clock = number, clock
        self._rows: list[tuple[float, dict[str, float]]] = []
        self._lock = threading.Lock()
        fields = ",".join(str(field) for field, _ in FIELDS.values())
        # A terminal, not a pipe: into a pipe it writes in blocks of thousands of rows.
        ours, theirs = os.openpty()
        try:
            self._process = subprocess.Popen(
                [program, "dmon", "-i", str(number), "-e", fields, "-d", str(round(1000 * EVERY_S))],
                stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, start_new_session=True,
            )
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        self._end = weakref.finalize(self, _stop, self._process)
        told = weakref.ref(self), ours
        threading.Thread(target=_listen, args=told, name="dcgmi-dmon", daemon=True).start()

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def means(self, since_s: float) -> dict[str, float]:
        """Means of the fields that this GPU has, over the rows since a time; empty without rows."""
        with self._lock:
            rows = [row for at_s, row in self._rows if at_s >= since_s]
        names = {name for row in rows for name in row}
        return {name: statistics.fmean(row[name] for row in rows if name in row) for name in names}

    def stop(self) -> None:
        self._end()

    def _take(self, line: str, names: list[str]) -> list[str]:
        """Note a line; returns the names of the columns that are in force after it."""
        if head := _ENTITY.search(line):
            return head["names"].split()
        row = _ROW.match(line)
        values = row["values"].split() if row else []
        if row is None or not names or len(values) != len(names):
            if line.strip() not in ("", "ID"):
                self.said = line.strip()
            return names
        if int(row["gpu"]) == self._number:
            found = {FIELDS[name][1]: value for name, text in zip(names, values, strict=True)
                     if name in FIELDS and (value := _value(text)) is not None}
            if found:
                with self._lock:
                    self._rows.append((self._clock(), found))
                    del self._rows[:-6000]
        return names


def _listen(owner: weakref.ref[Dmon], descriptor: int) -> None:
    names: list[str] = []
    # OSError: the other end is gone
    with contextlib.suppress(OSError), open(descriptor, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            dmon = owner()
            if dmon is None:
                return
            names = dmon._take(line, names)
            del dmon


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=1.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _value(text: str) -> float | None:
    with contextlib.suppress(ValueError):
        value = float(text)
        if 0 <= value < _BLANK:
            return value
    return None


def _last_words(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"
