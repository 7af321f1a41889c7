"""The shared file in which the sampling process leaves its samples. Standard library only."""

from __future__ import annotations

import math
import mmap
import os
import struct
import weakref
from collections.abc import Iterable, Sequence
from pathlib import Path

from .. import _processes, _shared_memory
from ..errors import MeasurementError
from ..records import Sample

MAGIC, VERSION = b"WBRING\0\0", 4
# magic, version, devices, capacity, the writer's pid, started, and which machine the devices are of
HEADER = struct.Struct("<8sIIIIdI")
# One place for each reader: which devices it reads (a bit each), and until when at least it needs them.
READERS, READER, READERS_AT = 32, struct.Struct("@Qd"), 64
HEADER_BYTES = READERS_AT + READERS * READER.size
_ALL_READERS = struct.Struct("@" + READERS * "Qd")
# rows written, state, edges seen, update period, power update, phase error, uuid, error
DEVICE = struct.Struct("<QIIddd64s192s")
# time, tick, energy, tick of the power reading, tick error, power, limit, SM MHz, memory MHz, utilisation,
# memory utilisation, temperature, throttle
ROW = struct.Struct("<ddddffffffffQ")
ROW_BYTES = ROW.size
CAPACITY = 16384
# native: copied whole, where "<Q" goes byte by byte and a reader could see half of it
_WHOLE = struct.Struct("@Q")
# between a device's state and its rows: what a reader asks for, and what a call costs
_NUMBER, ASKED_AT, CALL_AT = struct.Struct("@d"), DEVICE.size, DEVICE.size + 8
DEVICE_BYTES = CALL_AT + _NUMBER.size
STARTING, RUNNING, LOST = 0, 1, 2


class Ring:
    """The shared file: one ring of rows per device. One writer, up to `READERS` readers, which wait for no
    lock; that the writer or a reader lives is seen by its lock on a byte of the file, from any PID namespace.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._file = os.fdopen(os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC), "r+b")
        weakref.finalize(self, self._file.close)
        try:
            _processes.hold(self._file)
            self.map: mmap.mmap | bytearray = mmap.mmap(self._file.fileno(), 0)
            magic, version, count, capacity, _, _, self.machine = HEADER.unpack_from(self.map, 0)
            size_bytes = HEADER_BYTES + count * (DEVICE_BYTES + capacity * ROW_BYTES)
            if magic != MAGIC or version != VERSION or not 0 < size_bytes <= len(self.map):
                raise ValueError
        except (ValueError, struct.error) as error:
            self._file.close()
            raise ValueError(f"{self.path} is no ring of samples of version {VERSION}") from error
        self.count, self.capacity = int(count), int(capacity)
        self._masks: dict[int, int] = {}  # of the readers' places that this process has taken

    @classmethod
    def create(
        cls, path: str | os.PathLike[str], uuids: Sequence[str], capacity: int = CAPACITY, *, machine: int = 0
    ) -> Ring:
        """A new ring at `path`, or in the temporary directory where that is full. Raises MeasurementError if
        both are.

        Args:
            path: Of the file.
            uuids: GPUs, in the order of their numbers.
            capacity: Rows per GPU.
            machine: Number of the simulated machine; 0 for real GPUs.
        """
        size_bytes = HEADER_BYTES + len(uuids) * (DEVICE_BYTES + capacity * ROW_BYTES)
        try:
            made = _shared_memory.create(path, size_bytes,
                                         HEADER.pack(MAGIC, VERSION, len(uuids), capacity, 0, 0.0, machine))
        except OSError as error:
            gpus = f"{len(uuids)} GPU{'s' * (len(uuids) != 1)}"
            raise MeasurementError(f"there is no place for the samples of {gpus}: {error}") from error
        ring = cls(made)
        for device, uuid in enumerate(uuids):
            ring.write_state(device, STARTING, 0, math.nan, math.nan, math.nan, uuid, "")
        return ring

    def close(self) -> None:
        """Let go of the file; nothing can be read any more."""
        if isinstance(self.map, mmap.mmap):
            self.map.close()
        self._file.close()

    def detach(self) -> None:
        """Keep a copy of what is in it and let go of the file, which may be deleted."""
        self.map = bytearray(self.map)
        self.release()

    def release(self) -> None:
        """Neither join nor leave any more; mapped memory can be read."""
        self._file.close()

    # who writes and who reads

    def begin(self, at_s: float) -> None:
        """Note that this process writes from a moment on."""
        _processes.lock_byte(self._file, 0)  # first: whoever sees the writer's id looks for its lock
        HEADER.pack_into(self.map, 0, MAGIC, VERSION, self.count, self.capacity, os.getpid(), at_s,
                         self.machine)

    @property
    def writer_pid(self) -> int:
        """As the writer's PID namespace numbers it; 0 before there is one."""
        return int(HEADER.unpack_from(self.map, 0)[4])

    @property
    def written(self) -> bool:
        """Whether its writer lives, or who made it is about to start one."""
        return _processes.byte_is_locked(self._file, 0 if self.writer_pid else READERS_AT)

    def join(self, devices: Iterable[int]) -> int | None:
        """Take a reader's place, for these devices; None where all are taken."""
        for reader in range(1, READERS):
            if _processes.lock_byte(self._file, READERS_AT + reader * READER.size):
                self._place(reader, devices)
                return reader
        return None

    def own(self, devices: Iterable[int], *, shared: bool) -> int:
        """Take the first place, that of who made the ring; others may read it too where it is `shared`."""
        if shared:
            _processes.lock_byte(self._file, READERS_AT)
        self._place(0, devices)
        return 0

    def _place(self, reader: int, devices: Iterable[int]) -> None:
        self._masks[reader] = mask = sum(1 << device for device in devices)
        READER.pack_into(self.map, READERS_AT + reader * READER.size, mask, math.inf)

    def leave(self, reader: int) -> None:
        """Need no device from now on, nor another time between its samples."""
        self._forget(reader)
        _processes.lock_byte(self._file, READERS_AT + reader * READER.size, release=True)

    def _forget(self, reader: int) -> None:
        at = READERS_AT + reader * READER.size
        mask = READER.unpack_from(self.map, at)[0]
        for device in range(self.count):
            if mask >> device & 1:
                self.ask(device, None)
        READER.pack_into(self.map, at, 0, 0.0)

    def need(self, reader: int, until_s: float) -> None:
        """Note until when a reader needs its devices at least; infinity while a window is open."""
        READER.pack_into(self.map, READERS_AT + reader * READER.size, self._masks.get(reader, 0), until_s)

    def needs(self) -> list[float]:
        """Until when each device is needed by the reader that needs it longest; -infinity for none."""
        values, needed = _ALL_READERS.unpack_from(self.map, READERS_AT), [-math.inf] * self.count
        for mask, until_s in zip(values[::2], values[1::2], strict=True):
            if mask:
                for device in range(self.count):
                    if mask >> device & 1 and until_s > needed[device]:
                        needed[device] = until_s
        return needed

    def others(self) -> bool:
        """Whether anybody reads but who made the ring; forgets what readers ask for that are gone."""
        found = False
        for reader in range(1, READERS):
            at = READERS_AT + reader * READER.size
            if not READER.unpack_from(self.map, at)[0]:
                continue
            if _processes.byte_is_locked(self._file, at):
                found = True
            else:
                self._forget(reader)
        return found

    # rows

    def base(self, device: int) -> int:
        return HEADER_BYTES + device * (DEVICE_BYTES + self.capacity * ROW_BYTES)

    def rows_at(self, device: int) -> int:
        """Offset of a device's rows in the map."""
        return self.base(device) + DEVICE_BYTES

    def head(self, device: int) -> int:
        """How many rows were ever written for a device."""
        return int(_WHOLE.unpack_from(self.map, self.base(device))[0])

    def append(
        self, device: int, sample: Sample, tick_s: float, power_tick_s: float, tick_error_s: float
    ) -> None:
        """Add a row of one GPU.

        Args:
            device: Number of the GPU.
            sample: The driver's answer.
            tick_s: Last refresh of the energy.
            power_tick_s: Last refresh of the power reading.
            tick_error_s: Error of `tick_s`.
        """
        at, head = self.base(device), self.head(device)
        ROW.pack_into(self.map, at + DEVICE_BYTES + head % self.capacity * ROW_BYTES, sample.time_s, tick_s,
                      sample.energy_j, power_tick_s, tick_error_s, *sample[2:])
        _WHOLE.pack_into(self.map, at, head + 1)

    def write_state(
        self, device: int, state: int, edges: int, update_s: float, power_update_s: float, error_s: float,
        uuid: str, why: str,
    ) -> None:
        """Write what the sampling process knows of one GPU.

        Args:
            device: Number of the GPU.
            state: Working, failing or lost.
            edges: Refreshes found so far.
            update_s: Interval of the energy's refreshes.
            power_update_s: Interval of the power's refreshes.
            error_s: Error of the intervals.
            uuid: Of the GPU.
            why: The driver's message where it fails.
        """
        text = why.encode()[:191]
        DEVICE.pack_into(self.map, self.base(device), self.head(device), state, edges, update_s,
                         power_update_s, error_s, uuid.encode(), text)

    def state(self, device: int) -> tuple[int, int, float, float, float, str]:
        """(state, edges seen, update period, power update period, phase error, what is wrong)."""
        _, state, edges, update_s, power_s, error_s, _, why = DEVICE.unpack_from(self.map, self.base(device))
        return state, edges, update_s, power_s, error_s, why.split(b"\0", 1)[0].decode(errors="replace")

    @property
    def uuids(self) -> list[str]:
        """Of its devices."""
        texts = (DEVICE.unpack_from(self.map, self.base(device))[6] for device in range(self.count))
        return [text.split(b"\0", 1)[0].decode(errors="replace") for text in texts]

    def call_s(self, device: int) -> float:
        """Seconds that one sample of a device takes; 0 before that is known."""
        return float(_NUMBER.unpack_from(self.map, self.base(device) + CALL_AT)[0])

    def note_call(self, device: int, seconds: float) -> None:
        _NUMBER.pack_into(self.map, self.base(device) + CALL_AT, seconds)

    def asked_s(self, device: int) -> float | None:
        """The time between two looks that somebody asks for; None where the sampler decides."""
        (seconds,) = _NUMBER.unpack_from(self.map, self.base(device) + ASKED_AT)
        return float(seconds) if seconds > 0 else None

    def ask(self, device: int, seconds: float | None) -> None:
        """Ask for another time between two looks; None leaves it to the sampler again."""
        _NUMBER.pack_into(self.map, self.base(device) + ASKED_AT, seconds or 0.0)
