"""The simulated machine's memory: one mapped file that every process sees.

A header (clock, rights, faults) precedes one block per GPU. A block has the card's properties and settings,
and a ring of segments of piecewise constant true power, each with the exact energy before it. Readers take no
lock: a sequence number makes them read again. Writers hold a lock on the file. The past (before now +
`GUARD_S`) is never rewritten, so energy never decreases.

Standard library only: the sampling process imports nothing else. The layout is little-endian and fixed, so
that the C fixture of the tests reads the same bytes; `HEADER`, `CARD`, `CONTROL` and `SEGMENT` describe it
completely.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import threading
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

try:
    import fcntl
except ImportError:  # Windows: one process at a time
    fcntl = None  # type: ignore[assignment]

from .. import _shared_memory
from .._processes import hold, runs
from ..errors import SimulationError

ENVIRONMENT_VARIABLE = "WORKBENCH_SIMULATED_GPUS"
MAGIC = b"WBSIMGPU"
VERSION = 1
MAX_GPUS = 16
RING = 65536
GUARD_S = 0.002
FAULT_SLOTS = 16
PROCESS_SLOTS = TENANT_SLOTS = 8
PAGE = 4096


def _fields(at: int, **kinds: str) -> dict[str, tuple[int, str]]:
    """Offset and struct format of adjacent fields, each at a multiple of its size."""
    found = {}
    for name, kind in kinds.items():
        at += -at % struct.calcsize(kind[-1])
        found[name] = at, kind
        at += struct.calcsize(kind)
    return found


# name -> (offset, struct format); `owner_namespace` is the PID namespace of the owner. The `recording_bytes`
# of a replay follow the blocks of all GPUs.
HEADER = _fields(
    0, magic="8s", version="I", count="I", stepped="I", driver_fault="I", scale="d", origin_s="d",
    stepped_now_s="d", unix_s="d", latency_s="d", unprivileged="I", owner_pid="I", seed="Q",
    driver_version="32s", owner_namespace="Q"
) | _fields(
    512, latency_spread="d", dies_in_fork="I", recording_bytes="Q"
)
# In the header, and in the block of a GPU: up to 256 x u32, highest first.
FAULTS_AT = SM_CLOCKS_AT = PAGE // 4
# function, NVML code, calls left (-1: for ever), good calls before, GPU (-1: any)
FAULT = struct.Struct("<64sIiii")
HEADER_BYTES = RING_AT = PAGE

# `power_scope` is the NVML scope of the power fields: 0 the GPU, 1 its module. `mem_top_sm` and `mem_low_sm`
# are the highest and the lowest SM clock for each memory clock; 0: no restriction.
# `counter_part_time`: the energy counter only sums the power readings.
# After the processes: the delay of settings (`arrival_s`; without one `governor_delay_s`), the share of the
# default limit that a management controller enforces (`cap_share`), whether processes have ids of another PID
# namespace (`host_pids`), and their MPS server (`mps`: its id; 0: none).
# `reading_gain`: ratio of power readings to the counter's power; 0: equal.
# `silicon`: factors of `catalogue.individual`; 0: as its model.
CARD = _fields(
    0, name="96s", uuid="48s", pci="32s", key="16s", architecture="I", cc_major="I", cc_minor="I",
    index="I", memory_bytes="Q", limit_min_w="d", limit_default_w="d", limit_max_w="d", n_sm_clocks="I",
    n_mem_clocks="I", mem_clocks="8I", power_update_s="d", power_window_s="d", average_window_s="d",
    counter_update_s="d", sensor_phase_s="d", gain="d", offset_w="d", noise="d",
    utilisation_window_s="d", governor_delay_s="d", idle_c="d", c_per_w="d", thermal_s="d", idle_w="d",
    abilities="Q", mig="I", power_scope="I", counter_lag_s="d", mem_top_sm="8I", mem_low_sm="8I",
    counter_part_time="I"
) | _fields(
    896, arrival_s="8d", cap_share="d", host_pids="I", mps="I", reading_gain="d", silicon="3d"
)

# `tenants` is the number of occupied slots. A part-time counter was at `summed_j` after `readings_summed`
# refreshes.
CONTROL = _fields(
    512, generation="Q", effective_from_s="d", limit_w="d", lock_sm_min="I", lock_sm_max="I",
    lock_mem_min="I", lock_mem_max="I", was_limit_w="d", was_sm_min="I", was_sm_max="I",
    was_mem_min="I", was_mem_max="I", persistence="I", lost="I", enforced_w="d", forced_reasons="Q",
    counter_reset_j="d", memory_used="Q", load_pid="I", tenants="I", readings_summed="q", summed_j="d"
)
PROCESSES_AT = CONTROL["summed_j"][0] + 8
PROCESS = struct.Struct("<IIQ")
SEQUENCE_AT, TOTAL_AT = 2048, 2056
# start, true power, energy before, SM MHz, memory MHz, utilisation, memory utilisation, reasons
SEGMENT = struct.Struct("<dddIIffQ")
GPU_BYTES = RING_AT + RING * SEGMENT.size
# After the blocks of all GPUs: for each GPU the slots of the jobs that share it (`tenants`).
TENANT_BYTES = 128 + PAGE * 40

ABILITIES = (
    "power", "instant_field", "average_field", "energy", "power_limit", "set_power_limit", "sm_lock",
    "mem_lock", "utilisation", "clocks", "processes",
)

# Native numbers are copied whole. struct writes others byte by byte, and a reader could get half of one.
_WHOLE, _BOTH = struct.Struct("@Q"), struct.Struct("@QQ")


class Segment(NamedTuple):
    """True power from `start_s` to the next segment's start; the last one lasts for ever."""

    start_s: float
    power_w: float
    energy_before_j: float
    sm_clock_mhz: int
    mem_clock_mhz: int
    utilisation: float
    memory_utilisation: float
    reasons: int


class MachineGone(SimulationError, ValueError):
    """The simulated machine was closed."""


class MachineState:
    """The mapped file of one simulated machine: fields by name, times on the machine's clock."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        try:
            self._file = open(self.path, "r+b")  # noqa: SIM115
        except OSError as error:
            raise SimulationError(
                f"the simulated GPUs of this process no longer exist: {self.path} cannot be opened "
                f"({error.strerror}). Run `%gpu simulate A100` in a notebook, or workbench.simulate('A100'), "
                "for new ones"
            ) from error
        with self._file:
            size = os.fstat(self._file.fileno()).st_size
            if size < HEADER_BYTES:
                raise SimulationError(f"{self.path} is not a file of simulated GPUs ({size} bytes)")
            hold(self._file)
            self._map = mmap.mmap(self._file.fileno(), size)
            self._lock_fd = os.dup(self._file.fileno())
        if self._map[:8] != MAGIC or self.header("version") != VERSION:
            raise SimulationError(f"{self.path} is not a file of simulated GPUs of this version ({VERSION})")
        self.count: int = self.header("count")
        self._cards: dict[tuple[int, str], Any] = {}
        self._depth, self._threads, self._calls = 0, threading.RLock(), threading.Lock()

    @classmethod
    def create(cls, path: str | os.PathLike[str], count: int) -> MachineState:
        """A new file for `count` GPUs, all zero except magic, version and count. It is in the temporary
        directory if the file system of `path` is full.

        Raises:
            SimulationError: Both are full.
        """
        size_bytes = HEADER_BYTES + count * (GPU_BYTES + TENANT_SLOTS * TENANT_BYTES)
        try:
            return cls(_shared_memory.create(path, size_bytes, struct.pack("<8sII", MAGIC, VERSION, count)))
        except OSError as error:
            raise SimulationError(
                f"no space for {count} simulated GPU{'s' * (count != 1)}: {error}"
            ) from error

    def close(self) -> None:
        if not self.closed:
            self._map.close()
            os.close(self._lock_fd)

    @property
    def closed(self) -> bool:
        return self._map.closed

    # fields

    def header(self, name: str):  # type: ignore[no-untyped-def]
        return self._read(HEADER[name], 0)

    def set_header(self, name: str, value: object) -> None:
        self._write(HEADER[name], 0, value)

    def card(self, gpu: int, name: str):  # type: ignore[no-untyped-def]
        """A field of the card. It is written with the machine, and each process reads it only once."""
        known = self._cards.get((gpu, name))
        if known is None:
            known = self._cards[gpu, name] = self._read(CARD[name], self._base(gpu))
        return known

    def set_card(self, gpu: int, name: str, value: object) -> None:
        self._write(CARD[name], self._base(gpu), value)
        self._cards.clear()

    def control(self, gpu: int, name: str):  # type: ignore[no-untyped-def]
        return self._read(CONTROL[name], self._base(gpu))

    def set_control(self, gpu: int, name: str, value: object) -> None:
        self._write(CONTROL[name], self._base(gpu), value)

    def _base(self, gpu: int) -> int:
        return HEADER_BYTES + gpu * GPU_BYTES

    def tenants_at(self, gpu: int) -> int:
        """Start of the slots of a GPU's jobs."""
        return HEADER_BYTES + self.count * GPU_BYTES + gpu * TENANT_SLOTS * TENANT_BYTES

    def get(self, at: int, length: int) -> bytes:
        """Raw memory, for the modules that know its layout."""
        return self._map[at : at + length]

    def put(self, at: int, content: bytes) -> None:
        self._map[at : at + len(content)] = content

    def _read(self, at: tuple[int, str], base: int):  # type: ignore[no-untyped-def]
        values = struct.unpack_from("<" + at[1], self._map, base + at[0])
        if len(values) > 1:
            return values
        value = values[0]
        return value.split(b"\0", 1)[0].decode() if isinstance(value, bytes) else value

    def _write(self, at: tuple[int, str], base: int, value: object) -> None:
        if isinstance(value, str):
            value = value.encode()
        values = value if isinstance(value, tuple) else (value,)
        struct.pack_into("<" + at[1], self._map, base + at[0], *values)

    def sm_clocks(self, gpu: int) -> tuple[int, ...]:
        """Supported SM clocks in MHz, highest first."""
        return struct.unpack_from(
            f"<{self.card(gpu, 'n_sm_clocks')}I", self._map, self._base(gpu) + SM_CLOCKS_AT
        )

    def set_sm_clocks(self, gpu: int, clocks: Sequence[int]) -> None:
        struct.pack_into(f"<{len(clocks)}I", self._map, self._base(gpu) + SM_CLOCKS_AT, *clocks)
        self.set_card(gpu, "n_sm_clocks", len(clocks))

    def sm_clocks_at(self, gpu: int, mem_clock_mhz: int) -> tuple[int, ...]:
        """Supported SM clocks in MHz, highest first, that the driver pairs with one of the memory clocks."""
        place = self.mem_clocks(gpu).index(mem_clock_mhz)
        top, low = self.card(gpu, "mem_top_sm")[place], self.card(gpu, "mem_low_sm")[place]
        return tuple(clock for clock in self.sm_clocks(gpu) if low <= clock and (not top or clock <= top))

    def mem_clocks(self, gpu: int) -> tuple[int, ...]:
        """Supported memory clocks in MHz, highest first."""
        return tuple(self.card(gpu, "mem_clocks")[: self.card(gpu, "n_mem_clocks")])

    def able(self, gpu: int, ability: str) -> bool:
        return bool(self.card(gpu, "abilities") >> ABILITIES.index(ability) & 1)

    # time

    def now_s(self) -> float:
        """The machine's time: seconds since it was started."""
        if self._map.closed:
            raise MachineGone("the simulated GPUs were replaced or removed meanwhile, so this energy is "
                              "unknown; call simulate() before a measurement begins, in a cell of its own")
        stepped, _, scale, origin_s, stepped_now_s = struct.unpack_from("<IIddd", self._map, 16)
        return float(stepped_now_s if stepped else (time.monotonic() - origin_s) * scale)

    # locking

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the file's lock. Readers do not wait for it."""
        with self._threads:  # file locks do not separate threads
            if self._depth == 0 and fcntl is not None:
                fcntl.lockf(self._lock_fd, fcntl.LOCK_EX, 1)
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                if self._depth == 0 and fcntl is not None:
                    fcntl.lockf(self._lock_fd, fcntl.LOCK_UN, 1)

    @contextlib.contextmanager
    def driver(self) -> Iterator[None]:
        """Hold the driver's lock, for which the slow calls of all processes wait."""
        with self._calls:
            if fcntl is not None:
                fcntl.lockf(self._lock_fd, fcntl.LOCK_EX, 1, 1)
            try:
                yield
            finally:
                if fcntl is not None:
                    fcntl.lockf(self._lock_fd, fcntl.LOCK_UN, 1, 1)

    # settings

    def change_setting(self, gpu: int, **values: float) -> None:
        """Write new limits or locks; they take effect after the governor's delay."""
        with self.writing():
            base, now = self._base(gpu), self.now_s()
            if now >= self.control(gpu, "effective_from_s"):
                limit_at, was_at = base + CONTROL["limit_w"][0], base + CONTROL["was_limit_w"][0]
                self.put(was_at, self.get(limit_at, was_at - limit_at))  # limit and locks are adjacent
            for name, value in values.items():
                self.set_control(gpu, name, value)
            delay_s = max(self.arrival_s(gpu, **values), 2 * GUARD_S)
            self.set_control(gpu, "effective_from_s", now + delay_s)
            self.set_control(gpu, "generation", self.control(gpu, "generation") + 1)

    def arrival_s(self, gpu: int, **values: float) -> float:
        """Delay (s) of new limits or locks. The table's first entry is for a limit. The clock (MHz) of a lock
        selects one of the others. Without `values`, the smallest of all.
        """
        table = [each for each in self.card(gpu, "arrival_s") if each]
        if not table:
            return float(self.card(gpu, "governor_delay_s"))
        if not values:
            return float(min(table))
        clock_mhz = int(max((value for name, value in values.items() if name != "limit_w"), default=0))
        chosen = 0 if "limit_w" in values else 1 + clock_mhz // 15 % (len(table) - 1)
        return float(table[chosen])

    def generation(self, gpu: int) -> int:
        """Increases with every change of a setting."""
        return int(struct.unpack_from("<Q", self._map, self._base(gpu) + CONTROL["generation"][0])[0])

    def effective(self, gpu: int, at_s: float) -> tuple[float, int, int, int, int]:
        """Active power limit (W) and locks (SM min, max, memory min, max in MHz; 0: none) at a time."""
        base = self._base(gpu)
        from_s, limit, a, b, c, d, was, e, f, g, h = struct.unpack_from("<ddIIIIdIIII", self._map, base + 520)
        if at_s < from_s:
            limit, a, b, c, d = was, e, f, g, h
        enforced = self.control(gpu, "enforced_w")
        return (min(limit, enforced) if enforced else limit, a, b, c, d)

    # the power timeline

    def publish(
        self, gpu: int, start_s: float, plan: Sequence[tuple[float, float, int, int, float, float, int]],
        tail: tuple[float, int, int, float, float, int],
    ) -> None:
        """Replace everything after `start_s` by a plan and a tail that lasts for ever.

        `plan` holds (duration_s, power_w, SM MHz, memory MHz, utilisation, memory utilisation, reasons) and
        `tail` the same without a duration. Nothing before now + `GUARD_S` is changed: an earlier part of a
        plan is cut.

        Args:
            gpu: Number of the GPU.
            start_s: Start of the plan.
            plan: Segments.
            tail: The segment after them.
        """
        with self.writing():
            base = self._base(gpu)
            sequence, total = _BOTH.unpack_from(self._map, base + SEQUENCE_AT)
            # Readers wait from here on. If this writer were suspended after it had chosen the start of its
            # rewrite, a reader would otherwise see energy decrease.
            sequence |= 1
            _WHOLE.pack_into(self._map, base + SEQUENCE_AT, sequence)
            floor_s = self.now_s() + (0.0 if self.header("stepped") else GUARD_S)
            keep = total
            while (
                keep > 0 and keep > total - RING
                and self._segment(base, keep - 1).start_s >= max(start_s, floor_s)
            ):
                keep -= 1
            last = self._segment(base, keep - 1) if keep else None
            _WHOLE.pack_into(self._map, base + TOTAL_AT, keep)  # valid if this process dies at any moment
            at_s, cursor = start_s, keep
            try:
                rows = []
                for duration_s, *values in plan:
                    begin_s, at_s = at_s, at_s + duration_s
                    if duration_s > 0 and at_s > floor_s:  # earlier segments belong to the immutable past
                        rows.append((begin_s, *values))
                for begin_s, power_w, sm, mem, busy, mem_busy, reasons in (*rows, (at_s, *tail)):
                    begin_s = max(begin_s, floor_s) if last is not None else begin_s
                    energy_j = (
                        0.0 if last is None
                        else last.energy_before_j + last.power_w * (begin_s - last.start_s)
                    )
                    clocks = int(sm), int(mem)
                    last = Segment(begin_s, power_w, energy_j, *clocks, busy, mem_busy, int(reasons))
                    SEGMENT.pack_into(self._map, base + RING_AT + (cursor % RING) * SEGMENT.size, *last)
                    cursor += 1
            finally:
                self._settle(base, sequence + 1, cursor)

    def _settle(self, base: int, sequence: int, total: int) -> None:
        """Admit readers again: write the number of segments first, then the sequence that confirms it."""
        _WHOLE.pack_into(self._map, base + TOTAL_AT, total)
        _WHOLE.pack_into(self._map, base + SEQUENCE_AT, sequence)

    def _segment(self, base: int, number: int) -> Segment:
        return Segment(*SEGMENT.unpack_from(self._map, base + RING_AT + (number % RING) * SEGMENT.size))

    def segment_at(self, gpu: int, at_s: float) -> Segment:
        """The active segment at a time; the oldest one kept if the time is before the ring's memory."""
        base = self._base(gpu)
        waits = 0
        while True:
            sequence, total = _BOTH.unpack_from(self._map, base + SEQUENCE_AT)
            if not sequence & 1:
                found = self._find(base, total, at_s)
                if _WHOLE.unpack_from(self._map, base + SEQUENCE_AT)[0] == sequence:
                    return found
            waits += 1
            time.sleep(0 if waits < 1000 else 0.001)
            if waits > 1000 and sequence & 1:
                self._finish(gpu, sequence)

    def _finish(self, gpu: int, sequence: int) -> None:
        """Complete the state after the death of a writer: the GPU idles from now on."""
        with self.writing():  # no living process holds it
            if _WHOLE.unpack_from(self._map, self._base(gpu) + SEQUENCE_AT)[0] == sequence:
                clocks = self.sm_clocks(gpu)[-1], self.mem_clocks(gpu)[-1]
                self.publish(gpu, self.now_s(), [], (self.card(gpu, "idle_w"), *clocks, 0.0, 0.0, 0x1))

    def _find(self, base: int, total: int, at_s: float) -> Segment:
        """The last segment that begins at or before a time."""
        def start_s(number: int) -> float:
            at = base + RING_AT + number % RING * SEGMENT.size
            return float(struct.unpack_from("<d", self._map, at)[0])

        kept = range(max(0, total - RING), total)
        return self._segment(base, kept[max(bisect_right(kept, at_s, key=start_s) - 1, 0)])

    def true_energy_j(self, gpu: int, at_s: float) -> float:
        """The exact integral of true power from the machine's start."""
        segment = self.segment_at(gpu, at_s)
        return segment.energy_before_j + segment.power_w * (at_s - segment.start_s)

    def true_mean_power_w(self, gpu: int, from_s: float, to_s: float) -> float:
        return (self.true_energy_j(gpu, to_s) - self.true_energy_j(gpu, from_s)) / (to_s - from_s)

    def mean_utilisation(self, gpu: int, from_s: float, to_s: float) -> tuple[float, float]:
        """Time-weighted (SM, memory) utilisation, 0..1."""
        busy = mem_busy = 0.0
        for span_s, segment in self.spans(gpu, from_s, to_s):
            busy += segment.utilisation * span_s
            mem_busy += segment.memory_utilisation * span_s
        return busy / (to_s - from_s), mem_busy / (to_s - from_s)

    def spans(self, gpu: int, from_s: float, to_s: float) -> list[tuple[float, Segment]]:
        """Segments between two times, newest first, and the seconds of each within that interval."""
        base, end_s = self._base(gpu), to_s
        _, total = _BOTH.unpack_from(self._map, base + SEQUENCE_AT)
        found = []
        for number in range(total - 1, max(0, total - RING) - 1, -1):
            if end_s <= from_s:
                break
            segment = self._segment(base, number)
            if segment.start_s < end_s:
                found.append((end_s - max(segment.start_s, from_s), segment))
                end_s = segment.start_s
        return found

    # processes

    def processes(self, gpu: int) -> list[tuple[int, int]]:
        """(pid, memory in bytes) of the living processes that use the GPU."""
        base = self._base(gpu) + PROCESSES_AT
        rows = [PROCESS.unpack_from(self._map, base + slot * PROCESS.size) for slot in range(PROCESS_SLOTS)]
        return [(pid, memory) for pid, _, memory in rows if pid and runs(pid)]

    def set_process(self, gpu: int, pid: int, memory_bytes: int | None) -> None:
        """Register a process with its memory, or remove it with None."""
        with self.writing():
            base = self._base(gpu) + PROCESSES_AT
            others = [row for row in self.processes(gpu) if row[0] != pid]
            rows = others + ([(pid, memory_bytes)] if memory_bytes is not None else [])
            if len(rows) > PROCESS_SLOTS:
                raise SimulationError(
                    f"a simulated GPU accepts at most {PROCESS_SLOTS} processes; stop one first"
                )
            for slot in range(PROCESS_SLOTS):
                pid_, memory = rows[slot] if slot < len(rows) else (0, 0)
                PROCESS.pack_into(self._map, base + slot * PROCESS.size, pid_, 0, memory)

    # faults

    def inject(self, function: str, code: int, *, times: int = -1, after: int = 0, gpu: int = -1) -> None:
        """Make an NVML function return `code` `times` times (-1: for ever), after `after` good calls.

        Args:
            function: Name in NVML, or `field:NUMBER`.
            code: NVML error code.
            times: Number of faulty calls; -1 for ever.
            after: Number of good calls before.
            gpu: Number of the GPU; -1 for all.
        """
        with self.writing():
            for slot in range(FAULT_SLOTS):
                at = FAULTS_AT + slot * FAULT.size
                name, _, left, _, _ = FAULT.unpack_from(self._map, at)
                if not name.strip(b"\0") or left == 0:
                    FAULT.pack_into(self._map, at, function.encode(), code, times, after, gpu)
                    return
        raise SimulationError(f"at most {FAULT_SLOTS} faults at a time; call clear_faults() first")

    def clear_faults(self) -> None:
        self._map[FAULTS_AT : FAULTS_AT + FAULT_SLOTS * FAULT.size] = bytes(FAULT_SLOTS * FAULT.size)

    def fault(self, function: str, gpu: int) -> int:
        """The error code of this call, or 0; counts the call."""
        if not self._map[FAULTS_AT]:
            return 0
        for slot in range(FAULT_SLOTS):
            at = FAULTS_AT + slot * FAULT.size
            name, code, left, after, only = FAULT.unpack_from(self._map, at)
            if name.split(b"\0", 1)[0].decode() != function or left == 0 or only not in (-1, gpu):
                continue
            if after > 0:
                FAULT.pack_into(self._map, at, name, code, left, after - 1, only)
                continue
            FAULT.pack_into(self._map, at, name, code, left - 1 if left > 0 else left, 0, only)
            return int(code)
        return 0
