"""Many runs of a scenario, several at once in processes of their own, with progress and an end before the
end.

Progress and cancelling go through a small file that all processes of the machine can see: eight bytes a run,
and one byte that ends all. A worker on another machine runs its task to the end, and what waits is not begun.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import struct
import tempfile
import threading
import time
import weakref
from collections.abc import Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from .. import _processes
from ..errors import UsageError, WorkbenchError, describe_error
from .scenario import Task, prepared
from .simulator import Simulator
from .summary import summarise
from .views import RunOutcome, view

SLICE_S = 0.05  # between two looks at whether it is to end
FIRST_SLICE = 500  # events
MOST_WATCHED = 250_000  # jobs; of larger logs only the sums are kept
POINTS = 2000  # of a timeline, about
DONE = 1.0
PROCESS_DIED = (
    "a process of a run ended by itself, perhaps for want of memory; run one by one (workers=1) or a part of "
    "the log. In a script, what starts runs must stand under `if __name__ == '__main__':`"
)


class Cancelled(WorkbenchError):
    """The run was ended before its end."""


@dataclass(frozen=True, slots=True)
class Channel:
    """Where a run tells its progress and hears that it is to end."""

    path: str
    number: int
    count: int

    def tell(self, progress: float) -> bool:
        """Write the progress; whether to go on."""
        try:
            with open(self.path, "r+b", buffering=0) as file:
                file.seek(8 * self.number)
                file.write(struct.pack("d", progress))
                file.seek(8 * self.count)
                return file.read(1) == b"\0"
        except FileNotFoundError:  # another machine's
            return True


def work(
    jobs: pl.DataFrame, task: Task, channel: Channel | None = None, keep_valid: bool = False
) -> RunOutcome:
    """Do one task, in slices between which it can be ended. Raises Cancelled.

    Args:
        jobs: The log, `jobs.SCHEMA`.
        task: Policy, seed and cluster of the run.
        channel: Reports progress and receives the cancellation; None for neither.
        keep_valid: Keep the frame of jobs that passed validation.
    """
    began_s = time.process_time()
    _go_on(channel, 0.0)
    log = prepared(jobs, task.scenario, task.seed)
    keep = task.keep and log.height <= MOST_WATCHED
    cluster, policy = task.scenario.cluster_of(task.policy), task.scenario.maker(task.policy)()
    step_s = timeline_step_s(log, cluster.gpus)
    run = Simulator(log, cluster, policy, timeline_s=step_s, stays=keep, keep_valid=keep_valid)
    events = FIRST_SLICE
    while True:
        slice_s = time.perf_counter()
        more = run.advance(events)
        took_s = time.perf_counter() - slice_s
        if not more:
            break
        _go_on(channel, run.progress)
        events = max(50, min(4 * events, int(events * SLICE_S / max(took_s, 1e-4))))
    record = run.record() if keep else None
    result = run.result() if record is None else record.result
    row = summarise(result)
    if channel is not None:
        channel.tell(DONE)
    drawn = view(result) if task.keep else None
    return RunOutcome(task, row, time.process_time() - began_s, drawn, record)


def _go_on(channel: Channel | None, progress: float) -> None:
    if channel is not None and not channel.tell(progress):
        raise Cancelled("the run was cancelled")


def timeline_step_s(log: pl.DataFrame, gpus: int) -> float:
    """A distance of the timeline's rows that gives some `POINTS` of them: whole minutes where the log lasts
    long enough.

    Args:
        log: The jobs.
        gpus: Of the cluster; one that is too small for them works on when the last has long come.
    """
    known = log.select(pl.col("submit_s", "duration_s").cast(pl.Float64), "num_gpus")
    known = known.filter(pl.col("submit_s").is_finite() & pl.col("duration_s").is_finite())
    came_s, takes_s = known["submit_s"].to_numpy(), known["duration_s"].to_numpy()
    busy_s = float((known["duration_s"] * known["num_gpus"]).sum()) / max(gpus, 1)
    span_s = max(float((came_s + takes_s).max() - came_s.min()), busy_s) if known.height else 0.0
    step_s = span_s / POINTS
    return max(60.0 * round(step_s / 60), 60.0) if step_s > 30 else max(step_s, 0.1)


def processes(count: int | None = None) -> Executor:
    """Processes of this machine for runs; they end with this process, however it ends.

    Args:
        count: How many; as many as there are cores where None.
    """
    # A forked process would have the locks of Polars' threads, held by nobody.
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(count or len(os.sched_getaffinity(0)), mp_context=context, initializer=_serve)


def _serve() -> None:
    """In a worker: end with the parent, however it ends, and leave interrupts to it."""
    # A notebook's interrupt goes to all processes of its group, and one that dies of it would break the pool.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _processes.exit_with_parent()


_under_way: weakref.WeakSet[Runs] = weakref.WeakSet()


def _leave() -> None:
    for runs in list(_under_way):
        runs.cancel()


# An interpreter that ends waits for its executors, and they for their runs; `atexit` comes after that.
# Without this hook it waits.
getattr(threading, "_register_atexit", lambda function: None)(_leave)


class Runs:
    """The tasks of a scenario under way.

    Args:
        jobs: The log, before what it does not tell is drawn.
        tasks: What to do.
        executor: Where; it is left open. `processes()`, Dask's `client.get_executor()`,
            `executors.HereExecutor()`.
        keep_valid: Leave out what is wrong in the log instead of failing.

    Attributes:
        outcomes, errors: By number of the task; an error that belongs to none has number -1.
        cancelled, broken: Whether it was ended before its end; whether a process died.

    Raises:
        UsageError: No tasks.
    """

    def __init__(
        self, jobs: pl.DataFrame, tasks: Sequence[Task], executor: Executor, *, keep_valid: bool = False,
    ) -> None:
        if not tasks:
            raise UsageError("there is nothing to run; choose a policy")
        self.tasks = tuple(tasks)
        self.outcomes: dict[int, RunOutcome] = {}
        self.errors: dict[int, str] = {}
        self.cancelled = self.broken = False
        self.began_s = time.monotonic()
        self.ended_s: float | None = None
        self._jobs, self._executor, self._keep_valid = jobs, executor, keep_valid
        self._directory = tempfile.TemporaryDirectory(prefix="workbench-runs-")
        self._path = Path(self._directory.name) / "progress"
        self._path.write_bytes(bytes(8 * len(self.tasks) + 1))
        self._futures: dict[Future[RunOutcome], int] = {}
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="cluster runs", daemon=True)
        _under_way.add(self)
        self._thread.start()

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    @property
    def progress(self) -> list[float]:
        """Of each task, 0..1."""
        try:
            content = self._path.read_bytes()
        except OSError:
            content = b""
        shares = [
            struct.unpack_from("d", content, 8 * n)[0] if len(content) >= 8 * n + 8 else 0.0
            for n in range(len(self.tasks))
        ]
        return [1.0 if n in self.outcomes else value for n, value in enumerate(shares)]

    @property
    def seconds(self) -> float:
        """How long it has taken, until now or to its end."""
        return (self.ended_s or time.monotonic()) - self.began_s

    def cancel(self) -> None:
        """End all runs: waiting ones at once, others within some 50 ms. What has ended is kept."""
        self.cancelled = True
        self._stop()

    def _stop(self) -> None:
        with contextlib.suppress(OSError), self._path.open("r+b") as file:
            file.seek(8 * len(self.tasks))
            file.write(b"\1")
        with self._lock:
            waiting = list(self._futures)
        for future in waiting:
            future.cancel()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the end; whether it came."""
        self._thread.join(timeout_s)
        return not self.running

    def _run(self) -> None:
        try:
            try:
                for number, task in enumerate(self.tasks):
                    if self.cancelled:
                        break
                    channel = Channel(str(self._path), number, len(self.tasks))
                    future = self._executor.submit(work, self._jobs, task, channel, self._keep_valid)
                    with self._lock:
                        self._futures[future] = number
                    future.add_done_callback(self._took)
            except Exception as error:
                self._failed(-1, error)
                self._stop()
            wait(list(self._futures))
            # Who waits for a future may be woken before its callbacks are called.
            for future in list(self._futures):
                self._took(future)
        finally:
            self.ended_s = time.monotonic()
            self._directory.cleanup()

    def _took(self, future: Future[RunOutcome]) -> None:
        with self._lock:
            number = self._futures[future]
        try:
            self.outcomes[number] = future.result()
        except (Cancelled, KeyboardInterrupt):
            pass
        except BaseException as error:  # a future that was cancelled raises what is no Exception
            if not future.cancelled() and type(error).__name__ != "CancelledError":
                self._failed(number, error)

    def _failed(self, number: int, error: BaseException) -> None:
        died = isinstance(error, BrokenProcessPool)
        self.broken |= died
        if number >= 0 or not self.cancelled:  # who cancels may close the executor, too
            self.errors.setdefault(number, PROCESS_DIED if died else describe_error(error))
