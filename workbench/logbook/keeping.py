"""What scripts have measured is written to the log by a thread of its own: a training waits for no disk.

A block that is measured again and again is in the log once per second, and less often after its first hundred
runs; each stored run has the number of skipped runs before it. Results are measured as they are written. Of
those that wait, `most` are kept in memory: the next one waits for the log, while something is written.
"""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # noqa: F401  (Polars imports it, and cannot while a process ends)
import math
import os
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable

EVERY_S, MANY = 1.0, 100  # between two runs of one label, times the hundreds that were written
FLUSH_S = 20.0  # without progress: then a process that ends waits no longer
READ_S = 60.0  # the same for a full queue, and for readers of the log


class LogQueue:
    """Runs what writes to the log, one after another, in a daemon thread that lives while there is some."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, *, forked: bool = False, most: float = 64
    ) -> None:
        self._clock, self._unended, self._most = clock, forked, most
        self._waiting: deque[Callable[[], object]] = deque()
        self._lock = threading.Lock()
        self._ended = threading.Condition(self._lock)  # another write, or who writes
        self._put = self._done = 0
        self._pid = os.getpid()
        self._writing: set[threading.Thread] = set()
        self._thread: threading.Thread | None = None
        self._written: dict[str, tuple[float, int]] = {}  # when last, and how many, by label
        self._left_out: dict[str, int] = {}

    def admit(self, label: str) -> int | None:
        """How many runs of a label, or of the line of what has none, were left out since the last one that
        was written; None where this one is left out too.
        """
        with self._lock:
            now_s = self._clock()
            last_s, count = self._written.get(label, (-math.inf, 0))
            if now_s - last_s < EVERY_S * max(1, count // MANY):
                self._left_out[label] = self._left_out.get(label, 0) + 1
                return None
            self._written[label] = (now_s, count + 1)
            return self._left_out.pop(label, 0)

    def put(self, write: Callable[[], object]) -> None:
        """Queue a write. Waits while the queue is full."""
        here = threading.current_thread()
        with self._ended:
            if self._unended and (ends := sys.modules.get("multiprocessing.util")) is not None:
                # its forked children pass `atexit` by
                ends.Finalize(None, self.end, exitpriority=0)
                self._unended = False
            self._waiting.append(write)
            self._put += 1
            if here in self._writing:
                return
            if self._thread is not None:
                if not self._wait(lambda: len(self._waiting) <= self._most or not self._writing, READ_S):
                    self._most = math.inf  # a log that does not respond must not stop a training
                return
            thread = threading.Thread(target=self._run, name="log", daemon=True)
            self._thread = thread
            self._writing.add(thread)
            try:
                thread.start()
                return
            except RuntimeError:  # the process is ending, or has no thread left
                self._leave(thread)
                self._writing.add(here)
        self._run()

    def flush(self, timeout_s: float = READ_S) -> None:
        """Wait until everything that was put before is written, as long as something is written every
        `timeout_s`; who writes does not wait for itself.
        """
        if os.getpid() != self._pid or threading.current_thread() in self._writing:
            return
        with self._ended:
            count = self._put
            self._wait(lambda: self._done >= count or not self._writing, timeout_s)

    def end(self) -> None:
        """Wait at the end of the process; a warning where results are not in the log then."""
        self.flush(FLUSH_S)
        if (count := len(self._waiting)) and os.getpid() == self._pid:
            warnings.warn(f"{count} measurements are not in the log: nothing could be written for "
                          f"{FLUSH_S:g} s. Check the disk of the log", RuntimeWarning, stacklevel=2)

    def _wait(self, over: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until `over`, or until nothing is written for `timeout_s`; returns whether it is `over`."""
        while not over():
            done = self._done
            if not self._ended.wait_for(lambda: over() or self._done > done, timeout_s):  # noqa: B023
                return False
        return True


    def _run(self) -> None:
        here = threading.current_thread()
        try:
            while True:
                with self._lock:
                    if not self._waiting:
                        self._leave(here)
                        return
                    write = self._waiting.popleft()
                try:
                    write()
                except (KeyboardInterrupt, SystemExit):
                    raise
                except BaseException:  # a training never ends of its log, nor of a panic of Polars
                    pass
                finally:
                    with self._ended:
                        self._done += 1
                        self._ended.notify_all()
        except BaseException:
            with self._lock:
                self._leave(here)
            raise

    def _leave(self, thread: threading.Thread) -> None:
        self._writing.discard(thread)
        if self._thread is thread:
            self._thread = None
        self._ended.notify_all()


_writer = LogQueue()


def writer() -> LogQueue:
    """The one of this process."""
    return _writer


def renew() -> None:
    """Write what waits, and forget which labels were written when: tests in one process are strangers."""
    global _writer
    _writer.flush()
    _writer = LogQueue()


def _forked() -> None:
    global _writer
    _writer = LogQueue(forked=True)  # the thread stayed with the parent


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
atexit.register(lambda: _writer.end())
