"""The log of one node of a job in a directory that all nodes share; nothing listens for connections.

    <directory>/<host>-<pid>-<start>/node.json           job, GPUs, ranks: as of the last update
    <directory>/<host>-<pid>-<start>/iterations.parquet  the node's iterations, with its energy
    <directory>/<host>-<pid>-<start>/marks/              a copy of the marks of its ranks

It is written while the job runs, each file whole or not at all. A node that is killed leaves its last update.
A full disk ends no job.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

from .. import _paths
from ..errors import StoreError, WorkbenchError, describe_error
from ..logbook.store import as_frame
from ..measurement import marks
from ..measurement.meter import Meter
from ..measurement.process_marks import of_children
from ..measurement.repeats import with_iterations
from ..periods.segment import SegmentedIterations
from ..records import Window
from .combine import as_dict, job_name, job_of, rank_counts
from .records import JobMeasurement

UPDATE_S = 10.0  # between two updates
FILE, ITERATIONS, MARKS = "node.json", "iterations.parquet", "marks"


class NodeLog:
    """Writes the log of this node until it is closed.

    Args:
        directory: Shared by the nodes.
        meter: Of the node's GPUs.
        window: Open.
        job: The job's name; empty for the name that its launcher gives.
        say: Takes a message about a failure, once per reason.
        node: Name of this node.

    Raises:
        StoreError: the directory cannot be made.
    """

    def __init__(
        self, directory: Path, meter: Meter, window: Window, job: str = "", *,
        say: Callable[[str], object] = print, node: str = "",
    ) -> None:
        self.node = node or socket.gethostname()
        self.path = directory / f"{self.node}-{os.getpid()}-{time.time_ns()}"
        self._meter, self._window, self._job, self._say = meter, window, job, say
        self._messages: set[str] = set()
        self._copied: dict[Path, int] = {}
        try:
            self.path.mkdir(parents=True)
        except OSError as error:
            raise StoreError(f"the job's directory {directory} cannot be written to "
                             f"({error.strerror or error})") from error
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="node log", daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        took_s = 0.0
        while not self._stop.wait(max(UPDATE_S, 20 * took_s)):  # at most a twentieth of a core
            begun_s = time.monotonic()
            with contextlib.suppress(Exception):  # the next update may succeed
                self.update()
            took_s = time.monotonic() - begun_s

    def update(self) -> None:
        """Measure until now, and write the result."""
        window = self._meter.close(self._window, sync=False, keep_open=True)
        measurement = self._meter.measure(window, settle=False)
        found = self._meter.count(window, measurement)
        job = job_of(self._meter, window, with_iterations(measurement, found))  # who waits: at the end
        self.write(job, window, found, "running")

    def end(self) -> None:
        """No further updates; the last call of `write` reports how the job ended."""
        self._stop.set()
        self._thread.join()

    def write(
        self, job: JobMeasurement, window: Window, found: SegmentedIterations | None, state: str
    ) -> None:
        """Write the node's job, its iterations and marks; a failure becomes a message.

        Args:
            job: Of this node until now.
            window: Its measured window.
            found: Its iterations.
            state: "running", or how the job ended.
        """
        assert window.end_s is not None
        processes = of_children(self._meter.clock, window.start_s, window.end_s)
        document = {
            "schema": 1, "job": self._job or job_name(processes), "node": self.node, "state": state,
            "updated_unix_s": time.time(), "start_s": window.start_s,
            "measurement": as_frame([job.measurement]).to_dicts()[0],
            "node_count": max((each.facts.get("nodes") or 1 for each in processes), default=1),
            "rank_counts": rank_counts(processes),
            **as_dict(job),
        }
        try:
            with _paths.replacing(self.path / FILE) as file:
                file.write(json.dumps(document).encode())
            if found is not None and found.summary.source == "marks":
                with _paths.replacing(self.path / ITERATIONS) as file:
                    found.frame.write_parquet(file)
            self._copy_marks()
        except (OSError, WorkbenchError) as error:
            self._tell(f"the log of this node is not up to date in {self.path.parent}: "
                       f"{describe_error(error)}. The job goes on")

    def _copy_marks(self) -> None:
        source = Path(marks.shared())
        for path in sorted(source.rglob(f"*{marks.SUFFIX}")):
            target = self.path / MARKS / path.relative_to(source)
            target.parent.mkdir(parents=True, exist_ok=True)
            done = self._copied.get(path, 0)
            with open(path, "rb") as file, open(target, "r+b" if done else "wb") as copy:
                file.seek(done)
                copy.seek(done)
                self._copied[path] = done + copy.write(file.read())

    def _tell(self, message: str) -> None:
        if message not in self._messages:
            self._messages.add(message)
            self._say(message)
