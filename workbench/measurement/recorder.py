"""Samples become traces: starts the sampling process, drains its ring, hands out samples.

The process samples the GPUs even while a C call of the kernel holds the interpreter lock. Where
no process can be started (and on a stepped clock, in tests) the same sampler runs in this one.
"""

from __future__ import annotations

import contextlib
import math
import os
import subprocess
import sys
import threading
import time
import uuid as uuid_module
import weakref
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _paths, _processes, _shared_memory
from ..device.protocol import Device
from ..errors import MeasurementError, WorkbenchError
from ..samples import ROWS
from ..simulation.state import ENVIRONMENT_VARIABLE
from .ring import LOST, RUNNING, Ring
from .sampler import REST_AFTER_S, RESTING, Sampler, pace_after

if TYPE_CHECKING:
    import polars as pl

KEEP_S = 1800.0
DRAIN_EVERY_S, TEND_EVERY_S = 20.0, 1.0
SLOW_CALL_S = 0.01
FOLLOWED_S = 0.25  # until a row shows an update of a sensor whose updates are known
AGAIN_AFTER_S = 30.0  # between two starts of a sampling process that dies
_MADE_HERE: set[Path] = set()  # rings of this process, which reads each by its own recorder
_processes.after_fork(_MADE_HERE.clear)  # they are its parent's, and can be read like any


class Recorder:
    """Watches devices of one clock, whose times it keeps, until it is stopped.

    Args:
        devices: What to watch.
        node: UUIDs of what other processes of the same job watch on this machine: one sampling process looks
            at all of it. Where one of this user looks at `devices` already, that one's samples are read.
        rests: Look only once per second when nothing was held and nobody has called `wake` for a minute, and
            not at all after ten; without it the samples are needed until `stop`.

    Raises:
        MeasurementError: no devices, no space for the samples, or the sampling process could not be started.
    """

    def __init__(self, devices: Sequence[Device], *, node: Sequence[str] = (), rests: bool = False) -> None:
        if not devices:
            raise MeasurementError("there is no GPU to record")
        self.devices = tuple(devices)
        self.clock = devices[0].clock
        self._pid = os.getpid()
        self._rests, self._node = rests, tuple(dict.fromkeys([*(each.uuid for each in devices), *node]))
        self._lock, self._attaching = threading.Lock(), threading.Lock()
        self._kept: dict[str, list[np.ndarray]] = {device.uuid: [] for device in self.devices}
        self._weak_holds: weakref.WeakValueDictionary[int, Hold] = weakref.WeakValueDictionary()
        self._process: subprocess.Popen[bytes] | None = None
        self._started_s = -math.inf
        self._sampler: Sampler | None = None
        self._stop = threading.Event()
        _shared_memory.sweep()
        self._attach()
        arguments = weakref.ref(self), self._stop
        threading.Thread(target=_drain, args=arguments, name="energy-drain", daemon=True).start()

    # starting and stopping

    def _attach(self) -> None:
        """Read what a sampling process of this user writes about the devices, or start one."""
        uuids = [device.uuid for device in self.devices]
        stepped = getattr(self.clock, "stepped", False)
        # Two simulated machines of one seed have the same UUIDs.
        machine = zlib.crc32(os.environ.get(ENVIRONMENT_VARIABLE, "").encode())
        with _shared_memory.lock():
            found = None if stepped else _shared(uuids, machine)
            if found is None:
                name = f"workbench-ring-{os.getpid()}-{uuid_module.uuid4().hex[:8]}"
                ring = Ring.create(_shared_memory.directory() / name, self._node, machine=machine)
                _MADE_HERE.add(ring.path)
                found = ring, ring.own(range(len(uuids)), shared=not stepped)
        with self._lock:
            self._ring, self._reader = found
            self._path = self._ring.path
            numbers = {uuid: number for number, uuid in enumerate(self._ring.uuids)}
            self._numbers = {uuid: numbers[uuid] for uuid in uuids}
            self._views = {uuid: self._view(uuid) for uuid in uuids}
            self._read = dict.fromkeys(uuids, 0)
        self._need(self._until_s)
        if stepped:
            self._start_stepped()
        else:
            self._process = None if self._reader else self._started()
        self._finalizer = weakref.finalize(self, _clean, self._process, self._ring, self._reader, self._pid)

    def _started(self) -> subprocess.Popen[bytes]:
        self._started_s = time.monotonic()
        try:
            return _processes.start("workbench.measurement.sampler", "main", str(self._path), *self._node)
        except OSError as error:
            _clean(None, self._ring, self._reader, self._pid)
            self._stop.set()
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
            recorder = alive()
            if recorder is None:
                clock.on_step.remove(follow)
                return
            sampler.horizon_s = target_s
            while (due_s := sampler.due_s()) <= target_s:
                clock.show(due_s)
                recorder.tend()
                sampler.tick()

        clock.on_step.append(follow)
        self._follow = follow

    def stop(self) -> None:
        """End the sampling; recorded samples can still be read."""
        if self._sampler is not None:
            clock: Any = self.clock
            with contextlib.suppress(ValueError):
                clock.on_step.remove(self._follow)
        self._stop.set()
        self._finalizer()
        with self._lock:  # whoever still shows what was recorded keeps no deleted file mapped
            self._ring.detach()
            self._views = {uuid: self._view(uuid) for uuid in self._views}
        self.drain()

    @property
    def running(self) -> bool:
        return os.getpid() == self._pid and not self._stop.is_set() and not self._failed

    @property
    def pid(self) -> int | None:
        """Of the sampling process."""
        return self._process.pid if self._process else self._ring.writer_pid or None

    @property
    def _failed(self) -> bool:
        return self._process is not None and self._process.poll() not in (None, 0)

    @property
    def _may_start_again(self) -> bool:
        """Whether the sampling process was killed, while a window or view needs it, and not for the second
        time in a row.
        """
        return (
            self._failed and self._until_s == math.inf and not self._stop.is_set()
            and time.monotonic() - self._started_s >= AGAIN_AFTER_S
        )

    # whether anybody needs it

    def wake(self) -> float:
        """Note that samples are needed now: a sampler at rest continues at full pace, and one that has
        stopped is started. Returns the seconds that nothing had been needed for.
        """
        idle_s = max(0.0, self.clock() - self._needed_s)
        if self._needed_s < math.inf:
            self._need(self._until_s)
            if idle_s >= 0.5 * REST_AFTER_S and (self._gone or self._sampler is not None):
                self._resume()
        return idle_s

    def tend(self) -> None:
        """Note whether samples are still needed; where they are, and nobody writes any more, start again."""
        until_s = self._until_s
        if (until_s == math.inf) != (self._needed_s == math.inf):
            self._need(until_s)
        if until_s >= sys.float_info.max and (self._gone or self._may_start_again):
            self._resume()

    def resting(self) -> str:
        """A sentence on a sampler that looks seldom or not at all, as nobody needs it; else empty."""
        if self._gone:
            return "sampling has stopped, as nothing is measured; the next window or view starts it again"
        if pace_after(self.clock() - self._needed_s) == RESTING:
            return "sampling rests at one look a second, as nothing is measured"
        return ""

    @property
    def _holds(self) -> list[Hold]:
        # `valuerefs` makes its list in one step: other threads open windows meanwhile.
        return [hold for each in self._weak_holds.valuerefs() if (hold := each()) is not None]

    @property
    def _until_s(self) -> float:
        """Until when samples are needed: infinity while a window or view holds them, the largest number for a
        recorder that does not rest, now for another.
        """
        if any(hold.awake and hold.from_s < math.inf for hold in self._holds):
            return math.inf
        return self.clock() if self._rests else sys.float_info.max

    @property
    def _gone(self) -> bool:
        """Whether nobody writes any more: the sampling process has gone to rest, or with another reader."""
        if self._stop.is_set() or self._failed:
            return False
        if self._sampler is not None:
            return self._sampler.stopped
        return self._process.poll() == 0 if self._process is not None else not self._ring.written

    def _need(self, until_s: float) -> None:
        if os.getpid() == self._pid:  # not a forked child: its parent's need stands
            self._ring.need(self._reader, until_s)
            self._needed_s = until_s

    def _resume(self) -> None:
        if self._sampler is not None:
            self._sampler.attend()
            return
        if os.getpid() != self._pid or not self._attaching.acquire(blocking=False):
            return
        try:
            self.drain()
            self._finalizer()
            self._attach()
        except (MeasurementError, OSError):
            self._stop.set()  # the next window makes another recorder, or does without
            raise
        finally:
            self._attaching.release()
        self.calibrated()

    def ready(self, timeout_s: float = 5.0) -> bool:
        """Wait until every device has been looked at, or until it is clear that one cannot be."""
        return self._wait(lambda n: self._ring.head(n) > 0 or self._ring.state(n)[0] == LOST, timeout_s)

    def calibrated(self, timeout_s: float = 2.0) -> bool:
        """Wait until the sensors' updates are known, as far as they can be, and followed."""
        known = self._wait(lambda n: self._ring.state(n)[0] in (RUNNING, LOST), timeout_s)
        if known and self._sampler is None:  # a window that begins now needs an update before its start
            self._wait(lambda _: all(row is not None and row["tick_s"] > 0
                                     for row in map(self.latest, self._numbers)), FOLLOWED_S)
        return known

    def _wait(self, done: Callable[[int], bool], timeout_s: float) -> bool:
        """Wait until that is so of every device, by its number; False where it is not in time."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and self.running:
            if all(done(number) for number in self._numbers.values()):
                return True
            time.sleep(0.002)
        return False

    def failure(self) -> str:
        """Why the sampling process ended by itself; empty while it runs."""
        if self._stop.is_set() or not self._failed or self._process is None:
            return ""
        return f"the sampling process ended ({_processes.last_message(self._process)})"

    # reading

    def update_s(self, uuid: str) -> float | None:
        """The found update period (s) of a device's counter, or of its power; None if not known yet."""
        value = self._ring.state(self._numbers[uuid])[3]
        return None if math.isnan(value) else value

    def slow_calls(self, uuid: str) -> str:
        """A sentence where one sample of a device takes so long that nothing is known sharply; else empty."""
        call_s = self._ring.call_s(self._numbers[uuid])
        return f"this driver answers in {1e3 * call_s:.0f} ms: bars are wide" if call_s >= SLOW_CALL_S else ""

    def error(self, uuid: str) -> str:
        """What keeps a device from being read now; empty where nothing does."""
        return self._ring.state(self._numbers[uuid])[5] or self.failure()

    def latest(self, uuid: str) -> np.ndarray | None:
        """The newest row of a device."""
        number = self._numbers[uuid]
        head = self._ring.head(number)
        return self._views[uuid][(head - 1) % self._ring.capacity].copy() if head else None

    def rows(self, uuid: str, from_s: float, to_s: float) -> np.ndarray:
        """Rows (dtype `ROWS`) of a device with from_s <= time_s <= to_s, oldest first."""
        self.drain()
        with self._lock:
            chunks = self._kept[uuid]
            hits = [c for c in chunks if len(c) and c["time_s"][-1] >= from_s and c["time_s"][0] <= to_s]
        if not hits:
            return np.empty(0, ROWS)
        rows = np.concatenate(hits) if len(hits) > 1 else hits[0]
        low = np.searchsorted(rows["time_s"], from_s, side="left")
        return rows[low : np.searchsorted(rows["time_s"], to_s, side="right")]

    def trace(self, uuid: str, from_s: float, to_s: float) -> pl.DataFrame:
        """The trace (`trace.SCHEMA`) of a device between two times."""
        return as_trace(self.rows(uuid, from_s, to_s))

    def hold(self, from_s: float | Callable[[], float], *, awake: bool = True) -> Hold:
        """Keep everything since a time (a function may report it, infinity for nothing) while the returned
        object lives; with `awake` samples are needed as long.
        """
        hold = Hold(from_s, awake=awake)
        if awake and hold.from_s < math.inf:
            self.wake()
        self._weak_holds[id(hold)] = hold
        self.tend()
        return hold

    def ask_interval(self, uuid: str, seconds: float | None) -> None:
        """Ask for another time between two samples of a device; None leaves it to the sampler again.

        The sampling process obeys at its next sample, but misses no refresh that it follows, and takes 5 ms
        or more.
        """
        self._ring.ask(self._numbers[uuid], seconds)

    def drain(self) -> None:
        """Move new samples of the ring into memory of this process, and drop old ones that are not held."""
        with self._lock:
            for uuid, view in self._views.items():
                number, kept = self._numbers[uuid], self._kept[uuid]
                head, capacity = self._ring.head(number), self._ring.capacity
                # the writer may be inside the oldest ones
                first = max(self._read[uuid], head - capacity + 64)
                if first >= head:
                    continue
                rows = view[np.arange(first, head) % capacity]
                rows = rows[max(0, self._ring.head(number) - capacity - first) :]
                if kept and not self._read[uuid]:  # another ring, which may go further back
                    rows = rows[rows["time_s"] > kept[-1]["time_s"][-1]]
                self._read[uuid] = head
                if len(rows):
                    kept.append(rows)
                    self._tidy(kept)

    def _tidy(self, chunks: list[np.ndarray]) -> None:
        # Chunks of like size only, so that a row is copied a few times and not at each of many drains.
        while len(chunks) > 1 and len(chunks[-2]) <= min(2 * len(chunks[-1]), 4096 - len(chunks[-1])):
            last = chunks.pop()
            chunks[-1] = np.concatenate([chunks[-1], last])
        oldest_s = min([chunks[-1]["time_s"][-1] - KEEP_S, *(hold.from_s - 10.0 for hold in self._holds)])
        while len(chunks) > 1 and chunks[0]["time_s"][-1] < oldest_s:
            chunks.pop(0)

    def _view(self, uuid: str) -> np.ndarray:
        at = self._ring.rows_at(self._numbers[uuid])
        return np.frombuffer(self._ring.map, ROWS, self._ring.capacity, at)


class Hold:
    """Keeps a recorder from forgetting what came after `from_s`, and with `awake` from resting."""

    def __init__(self, from_s: float | Callable[[], float], *, awake: bool = True) -> None:
        self._from_s, self.awake = from_s, awake

    @property
    def from_s(self) -> float:
        try:
            return self._from_s() if callable(self._from_s) else self._from_s
        except ValueError:  # the clock of a simulated machine that is gone
            return math.inf


def as_trace(rows: np.ndarray) -> pl.DataFrame:
    """Rows of a recorder as a trace frame; NaN becomes null. Raises MeasurementError as `require_polars`."""
    _processes.require_polars()
    import polars as pl

    from ..trace import SCHEMA

    frame = pl.DataFrame({name: rows[name] for name in SCHEMA.names()})
    return frame.cast(SCHEMA).with_columns(pl.selectors.float().fill_nan(None))


def as_rows(trace: pl.DataFrame) -> np.ndarray:
    """A trace frame as rows of a recorder (dtype `ROWS`); what the frame does not have is NaN."""
    rows = np.zeros(trace.height, ROWS)
    for name in set(ROWS.names or ()) - {"throttle"}:
        rows[name] = trace[name].fill_null(math.nan).to_numpy() if name in trace.columns else math.nan
    if "throttle" in trace.columns:
        rows["throttle"] = trace["throttle"].fill_null(0).to_numpy()
    return rows


def _shared(uuids: Sequence[str], machine: int) -> tuple[Ring, int] | None:
    """A ring with all of these devices that another process of this user fills, and a reader's place in it.
    """
    if not all(map(_paths.is_uuid, uuids)):
        return None  # the number of a lost GPU, which is another one's elsewhere
    for path in _shared_memory.own_files("workbench-ring"):
        if path in _MADE_HERE:
            continue
        try:
            ring = Ring(path)
        except (OSError, ValueError):
            continue
        numbers = {uuid: number for number, uuid in enumerate(ring.uuids)}
        wanted = [numbers[uuid] for uuid in uuids if uuid in numbers]
        here = len(wanted) == len(uuids) and ring.machine == machine and ring.written
        if here and not any(ring.state(number)[0] == LOST for number in wanted):
            reader = ring.join(wanted)
            if reader is not None:
                return ring, reader
        ring.close()
    return None


def _drain(recorder: weakref.ref[Recorder], stop: threading.Event) -> None:
    """Empties the ring now and then, so that a long quiet cell loses nothing, and sees that there is one."""
    rounds = 0
    while not stop.wait(TEND_EVERY_S):
        alive = recorder()
        if alive is None:
            return
        rounds += 1
        try:
            if rounds * TEND_EVERY_S >= DRAIN_EVERY_S:
                rounds = 0
                alive.drain()
            alive.tend()
        except (ValueError, RuntimeError, OSError, WorkbenchError):
            if stop.is_set() or not alive.running:  # its simulated machine is gone, or nothing can be started
                return
        del alive


def _clean(process: subprocess.Popen[bytes] | None, ring: Ring, reader: int, pid: int) -> None:
    """Read no more; end the process that was started, unless others read what it writes."""
    if os.getpid() != pid:  # a forked child ends: its parent reads on
        return
    ring.leave(reader)
    others = reader > 0 or ring.others()
    ring.release()
    if reader == 0:
        _MADE_HERE.discard(ring.path)
    if process is not None:
        _processes.end(process, wait_s=0.0 if others else 2.0, kill=not others)
    if not others:
        with contextlib.suppress(OSError):
            ring.path.unlink()
