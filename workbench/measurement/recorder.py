"""Samples become traces: starts the sampling process, drains its ring, hands out what was seen.

The process looks at the GPUs whatever the kernel does, also while a C call holds the interpreter lock. Where
no process can be started (and on a stepped clock, in tests) the same sampler runs in this one.
"""

from __future__ import annotations

import contextlib
import math
import os
import subprocess
import threading
import time
import uuid as uuid_module
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _processes, _shared_memory
from ..device.protocol import Device
from ..errors import MeasurementError, UsageError
from ..samples import ROWS
from .ring import LOST, RUNNING, Ring
from .sampler import Sampler

if TYPE_CHECKING:
    import polars as pl

KEEP_S = 1800.0
DRAIN_EVERY_S = 20.0


class Recorder:
    """Watches devices of one clock, whose times it keeps, until it is stopped.

    Raises:
        MeasurementError: no devices, no space for the samples, or the sampling process could not be started.
    """

    def __init__(self, devices: Sequence[Device]) -> None:
        if not devices:
            raise MeasurementError("there is no GPU to record")
        self.devices = tuple(devices)
        self.clock = devices[0].clock
        self._numbers = {device.uuid: number for number, device in enumerate(self.devices)}
        wanted = _shared_memory.directory() / f"workbench-ring-{os.getpid()}-{uuid_module.uuid4().hex[:8]}"
        _shared_memory.sweep()
        self._ring = Ring.create(wanted, [device.uuid for device in self.devices])
        self._path = self._ring.path
        self._views = [self._view(number) for number in range(len(self.devices))]
        self._lock = threading.Lock()
        self._kept: list[list[np.ndarray[Any, Any]]] = [[] for _ in self.devices]
        self._read = [0] * len(self.devices)
        self._holds: weakref.WeakSet[Hold] = weakref.WeakSet()
        self._process: subprocess.Popen[bytes] | None = None
        self._sampler: Sampler | None = None
        self._stop = threading.Event()
        if getattr(self.clock, "stepped", False):
            self._start_stepped()
        else:
            self._start_process()
        self._finalizer = weakref.finalize(self, _clean, self._process, self._path, self._stop)
        told = weakref.ref(self), self._stop
        threading.Thread(target=_drain, args=told, name="energy-drain", daemon=True).start()

    # starting and stopping

    def _start_process(self) -> None:
        try:
            self._process = _processes.start(
                "workbench.measurement.sampler", "main", str(self._path), *self._numbers
            )
        except OSError as error:
            _clean(None, self._path, self._stop)
            raise MeasurementError(f"the sampling process could not be started: {error}") from error

    def _start_stepped(self) -> None:
        clock: Any = self.clock
        self._sampler = sampler = Sampler(
            self.devices, self._ring, clock,
            pause=lambda seconds: clock.show(min(clock() + seconds, sampler.horizon_s)),
        )
        sampler.start()
        alive = weakref.ref(self)

        def follow(target_s: float) -> None:
            if alive() is None:
                clock.on_step.remove(follow)
                return
            sampler.horizon_s = target_s
            while (due_s := sampler.due_s()) <= target_s:
                clock.show(due_s)
                sampler.tick()

        clock.on_step.append(follow)
        self._follow = follow

    def stop(self) -> None:
        """End the sampling; what was recorded can still be read."""
        with contextlib.suppress(ValueError):  # the clock of a simulated machine that is gone already
            self.drain()
        if self._sampler is not None:
            clock: Any = self.clock
            with contextlib.suppress(ValueError):
                clock.on_step.remove(self._follow)
        self._finalizer()
        with self._lock:  # whoever still shows what was recorded keeps no deleted file mapped
            self._ring.map = bytearray(self._ring.map)
            self._views = [self._view(number) for number in range(len(self.devices))]

    @property
    def running(self) -> bool:
        return not self._stop.is_set() and (self._process is None or self._process.poll() is None)

    @property
    def pid(self) -> int | None:
        """Of the sampling process."""
        return self._process.pid if self._process else None

    def ready(self, timeout_s: float = 5.0) -> bool:
        """Wait until every device has been looked at, or until it is clear that one cannot be."""
        return self._wait(lambda n: self._ring.head(n) > 0 or self._ring.state(n)[0] == LOST, timeout_s)

    def calibrated(self, timeout_s: float = 2.0) -> bool:
        """Wait until the sensors' update steps are known, as far as they can be."""
        return self._wait(lambda n: self._ring.state(n)[0] in (RUNNING, LOST), timeout_s)

    def _wait(self, done: Callable[[int], bool], timeout_s: float) -> bool:
        """Wait until that is so of every device, by its number; False where it is not in time."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and self.running:
            if all(done(number) for number in range(len(self.devices))):
                return True
            time.sleep(0.002)
        return False

    def failure(self) -> str:
        """Why the sampling process ended by itself; empty while it runs."""
        if self._process is None or self._process.poll() is None or self._stop.is_set():
            return ""
        return f"the sampling process ended ({_processes.last_words(self._process)})"

    # reading

    def update_s(self, uuid: str) -> float | None:
        """The found update period (s) of a device's counter, or of its power; None if not known yet."""
        value = self._ring.state(self._numbers[uuid])[3]
        return None if math.isnan(value) else value

    def error(self, uuid: str) -> str:
        """What keeps a device from being read now; empty where nothing does."""
        return self._ring.state(self._numbers[uuid])[5] or self.failure()

    def latest(self, uuid: str) -> np.ndarray[Any, Any] | None:
        """The newest row of a device."""
        number = self._numbers[uuid]
        head = self._ring.head(number)
        return self._views[number][(head - 1) % self._ring.capacity].copy() if head else None

    def rows(self, uuid: str, from_s: float, to_s: float) -> np.ndarray[Any, Any]:
        """Rows (dtype `ROWS`) of a device with from_s <= time_s <= to_s, oldest first."""
        self.drain()
        with self._lock:
            chunks = self._kept[self._numbers[uuid]]
            hits = [c for c in chunks if len(c) and c["time_s"][-1] >= from_s and c["time_s"][0] <= to_s]
        if not hits:
            return np.empty(0, ROWS)
        rows = np.concatenate(hits)
        low = np.searchsorted(rows["time_s"], from_s, side="left")
        return rows[low : np.searchsorted(rows["time_s"], to_s, side="right")]

    def trace(self, uuid: str, from_s: float, to_s: float) -> pl.DataFrame:
        """The trace (`trace.SCHEMA`) of a device between two times."""
        return as_trace(self.rows(uuid, from_s, to_s))

    def hold(self, from_s: float | Callable[[], float]) -> Hold:
        """Keep everything since a time (a function may tell it) while the returned object lives."""
        hold = Hold(from_s)
        self._holds.add(hold)
        return hold

    def ask_interval(self, uuid: str, seconds: float | None) -> None:
        """Ask for another time between two samples of a device; None leaves it to the sampler again.

        The sampling process obeys at its next sample, but misses no refresh that it follows, and takes 5 ms
        or more.
        """
        if seconds is not None and not 0 < seconds < math.inf:
            raise UsageError("the time between two looks must be a positive number of seconds, not "
                             f"{seconds:g}; None leaves it to the sampler")
        self._ring.ask(self._numbers[uuid], seconds)

    def drain(self) -> None:
        """Move what is new in the ring into memory of this process, and forget what is old and not held."""
        with self._lock:
            for number, view in enumerate(self._views):
                head, capacity = self._ring.head(number), self._ring.capacity
                # the writer may be inside the oldest ones
                first = max(self._read[number], head - capacity + 64)
                if first >= head:
                    continue
                rows = _slice(view, first, head)
                late = max(0, self._ring.head(number) - capacity - first)
                self._kept[number].append(rows[late:])
                self._read[number] = head
                self._tidy(number)

    def _tidy(self, number: int) -> None:
        chunks = self._kept[number]
        while len(chunks) > 1 and len(chunks[-1]) + len(chunks[-2]) <= 4096:
            last = chunks.pop()
            chunks[-1] = np.concatenate([chunks[-1], last])
        oldest_s = min([self.clock() - KEEP_S, *(hold.from_s - 10.0 for hold in self._holds)])
        while len(chunks) > 1 and chunks[0]["time_s"][-1] < oldest_s:
            chunks.pop(0)

    def _view(self, number: int) -> np.ndarray[Any, Any]:
        return np.frombuffer(self._ring.map, ROWS, self._ring.capacity, self._ring.rows_at(number))


class Hold:
    """Keeps a recorder from forgetting what came after `from_s`."""

    def __init__(self, from_s: float | Callable[[], float]) -> None:
        self._from_s = from_s

    @property
    def from_s(self) -> float:
        return self._from_s() if callable(self._from_s) else self._from_s


def as_trace(rows: np.ndarray[Any, Any]) -> pl.DataFrame:
    """Rows of a recorder as a trace frame; NaN becomes null."""
    import polars as pl

    from ..trace import SCHEMA

    frame = pl.DataFrame({name: rows[name] for name in SCHEMA.names()})
    return frame.cast(SCHEMA).with_columns(pl.selectors.float().fill_nan(None))


def as_rows(trace: pl.DataFrame) -> np.ndarray[Any, Any]:
    """A trace frame as rows of a recorder (dtype `ROWS`); what the frame does not have is NaN."""
    rows = np.zeros(trace.height, ROWS)
    for name in ROWS.names or ():
        if name in trace.columns:
            rows[name] = trace[name].fill_null(0 if name == "throttle" else math.nan).to_numpy()
        elif name != "throttle":
            rows[name] = math.nan
    return rows


def _slice(view: np.ndarray[Any, Any], first: int, head: int) -> np.ndarray[Any, Any]:
    capacity = len(view)
    low, high = first % capacity, head % capacity
    return view[low:high].copy() if low < high else np.concatenate([view[low:], view[:high]])


def _drain(recorder: weakref.ref[Recorder], stop: threading.Event) -> None:
    """Empties the ring now and then, so that a long quiet cell loses nothing."""
    while not stop.wait(DRAIN_EVERY_S):
        alive = recorder()
        if alive is None:
            return
        try:
            alive.drain()
        except ValueError:  # a simulated machine was taken away under a recorder that nobody stopped
            return
        del alive


def _clean(process: subprocess.Popen[bytes] | None, path: Path, stop: threading.Event) -> None:
    stop.set()
    if process is not None:
        _processes.end(process, wait_s=2.0)
    with contextlib.suppress(OSError):
        path.unlink()
