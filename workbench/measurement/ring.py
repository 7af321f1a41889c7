"""The shared file in which the sampling process leaves its samples. Standard library only."""

from __future__ import annotations

import math
import mmap
import os
import struct
from collections.abc import Sequence
from pathlib import Path

from .. import _processes, _shared_memory
from ..errors import MeasurementError
from ..records import Sample

MAGIC, VERSION = b"WBRING\0\0", 2
HEADER = struct.Struct("<8sIIIId")  # magic, version, devices, capacity, pid, started
HEADER_BYTES = 64
# rows written, state, edges seen, update period, power update, phase error, uuid, error
DEVICE = struct.Struct("<QIIddd64s192s")
DEVICE_BYTES = 320
# time, tick, energy, tick of the power reading, tick error, power, limit, SM MHz, memory MHz, utilisation,
# memory utilisation, temperature, throttle
ROW = struct.Struct("<ddddffffffffQ")
ROW_BYTES = ROW.size
CAPACITY = 16384
# native: copied whole, where "<Q" goes byte by byte and a reader could see half of it
_WHOLE = struct.Struct("@Q")
# the one number that readers write: between a device's state and its rows
_ASKED, ASKED_AT = struct.Struct("@d"), DEVICE.size
STARTING, RUNNING, LOST = 0, 1, 2


class Ring:
    """The shared file: one ring of rows per device. One writer, any number of readers, no locks."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        with open(path, "r+b") as file:
            _processes.hold(file)
            self.map: mmap.mmap | bytearray = mmap.mmap(file.fileno(), 0)
        magic, version, count, capacity, _, _ = HEADER.unpack_from(self.map, 0)
        self.count, self.capacity = int(count), int(capacity)
        if magic != MAGIC or version != VERSION:
            raise ValueError(f"{self.path} is no ring of samples of version {VERSION}")

    @classmethod
    def create(cls, path: str | os.PathLike[str], uuids: Sequence[str], capacity: int = CAPACITY) -> Ring:
        """A new ring at `path`, or in the temporary directory where that is full. Raises MeasurementError if
        both are.
        """
        size_bytes = HEADER_BYTES + len(uuids) * (DEVICE_BYTES + capacity * ROW_BYTES)
        try:
            made = _shared_memory.create(path, size_bytes,
                                         HEADER.pack(MAGIC, VERSION, len(uuids), capacity, 0, 0.0))
        except OSError as error:
            gpus = f"{len(uuids)} GPU{'s' * (len(uuids) != 1)}"
            raise MeasurementError(f"there is no place for the samples of {gpus}: {error}") from error
        ring = cls(made)
        for device, uuid in enumerate(uuids):
            ring.write_state(device, STARTING, 0, math.nan, math.nan, math.nan, uuid, "")
        return ring

    def base(self, device: int) -> int:
        return HEADER_BYTES + device * (DEVICE_BYTES + self.capacity * ROW_BYTES)

    def rows_at(self, device: int) -> int:
        """Offset of a device's rows in the map."""
        return self.base(device) + DEVICE_BYTES

    def head(self, device: int) -> int:
        """How many rows were ever written for a device."""
        return int(_WHOLE.unpack_from(self.map, self.base(device))[0])

    def begun(self, at_s: float) -> None:
        """Note that this process writes from a moment on."""
        HEADER.pack_into(self.map, 0, MAGIC, VERSION, self.count, self.capacity, os.getpid(), at_s)

    def append(
        self, device: int, sample: Sample, tick_s: float, power_tick_s: float, tick_error_s: float
    ) -> None:
        at, head = self.base(device), self.head(device)
        ROW.pack_into(self.map, at + DEVICE_BYTES + head % self.capacity * ROW_BYTES, sample.time_s, tick_s,
                      sample.energy_j, power_tick_s, tick_error_s, *sample[2:])
        _WHOLE.pack_into(self.map, at, head + 1)

    def write_state(
        self, device: int, state: int, edges: int, update_s: float, power_update_s: float, error_s: float,
        uuid: str, why: str,
    ) -> None:
        text = why.encode()[:191]
        DEVICE.pack_into(self.map, self.base(device), self.head(device), state, edges, update_s,
                         power_update_s, error_s, uuid.encode(), text)

    def state(self, device: int) -> tuple[int, int, float, float, float, str]:
        """(state, edges seen, update period, power update period, phase error, what is wrong)."""
        _, state, edges, update_s, power_s, error_s, _, why = DEVICE.unpack_from(self.map, self.base(device))
        return state, edges, update_s, power_s, error_s, why.split(b"\0", 1)[0].decode(errors="replace")

    def asked_s(self, device: int) -> float | None:
        """The time between two looks that somebody asks for; None where the sampler decides."""
        (seconds,) = _ASKED.unpack_from(self.map, self.base(device) + ASKED_AT)
        return float(seconds) if seconds > 0 else None

    def ask(self, device: int, seconds: float | None) -> None:
        """Ask for another time between two looks; None leaves it to the sampler again."""
        _ASKED.pack_into(self.map, self.base(device) + ASKED_AT, seconds or 0.0)
