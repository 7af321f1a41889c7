"""Parallel runs of a scenario in worker processes, with progress and cancellation.

Progress and cancellation use a small file that all processes on the machine share: one number per run, and a
last one that ends all runs. A worker on another machine finishes its task; waiting tasks do not start.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import tempfile
import threading
import time
import weakref
from collections.abc import Sequence
from concurrent.futures import CancelledError, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from .. import _processes
from ..errors import WorkbenchError, describe_error
from .jobs import check
from .result import Result
from .scenario import Task, prepared
from .simulator import Simulator
from .summary import summarise
from .views import POINTS, RunView, view

SLICE = 500  # events between two reports of progress: milliseconds
MOST_WATCHED = 250_000  # jobs; of larger logs only the sums are kept
PROCESS_DIED = (
    "the process of a run died, possibly because memory ran out; use one process (workers=1) or a part of "
    "the log. In a script, code that starts runs must be under `if __name__ == '__main__':`"
)


class Cancelled(WorkbenchError):
    """The run was ended before its end."""


@dataclass(frozen=True)
class RunOutcome:
    """The outcome of a task: its row and, if they were kept, the data of its charts and the run itself."""

    task: Task
    row: dict[str, Any]
    cpu_s: float
    view: RunView | None
    result: Result | None


@dataclass(frozen=True)
class Channel:
    """Channel through which a run reports progress and is cancelled."""

    path: str
    number: int

    def report(self, progress: float) -> None:
        """Write the progress. Raises Cancelled where the run is to end."""
        with contextlib.suppress(FileNotFoundError):  # another machine's
            shared = np.memmap(self.path, float, "r+")
            shared[self.number] = progress
            if shared[-1]:
                raise Cancelled("the run was cancelled")


def work(
    jobs: pl.DataFrame, task: Task, channel: Channel | None = None, keep_valid: bool = False
) -> RunOutcome:
    """Do one task, in pieces between which it can be cancelled. Raises Cancelled.

    Args:
        jobs: The log, `jobs.SCHEMA`.
        task: Policy, seed and cluster of the run.
        channel: Reports progress and receives the cancellation; None for neither.
        keep_valid: Remove invalid rows of the log instead of raising.
    """
    began_s = time.process_time()
    if channel:
        channel.report(0.0)
    cluster, policy = task.scenario.cluster_of(task.policy), task.scenario.maker(task.policy)()
    log = check(prepared(jobs, task.scenario, task.seed), cluster, keep_valid=keep_valid)
    keep = task.keep and log.height <= MOST_WATCHED
    step_s = timeline_step_s(log, cluster.gpus)
    run = Simulator(log, cluster, policy, timeline_s=step_s, stays=keep)
    while run.advance(SLICE):
        if channel:
            channel.report(run.progress)
    result = run.result()
    drawn, row = view(result) if task.keep else None, summarise(result)
    return RunOutcome(task, row, time.process_time() - began_s, drawn, result if keep else None)


def timeline_step_s(log: pl.DataFrame, gpus: int) -> float:
    """A distance of the timeline's rows that gives about `POINTS` of them.

    Args:
        log: The jobs.
        gpus: Number of GPUs in the cluster; too small a cluster works long after the last submission.
    """
    alone_s = max(log["submit_s"] + log["duration_s"]) - min(log["submit_s"])
    busy_s = sum(log["duration_s"] * log["num_gpus"]) / gpus
    return float(max(alone_s, busy_s)) / POINTS


def processes(count: int | None = None) -> ProcessPoolExecutor:
    """Worker processes on this machine for runs; they end with this process, in every case.

    Args:
        count: Number of processes; None: one per core.
    """
    # A forked process would inherit held locks of Polars' threads.
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(count or len(os.sched_getaffinity(0)), mp_context=context, initializer=_serve)


def _serve() -> None:
    """In a worker: end with the parent in every case, and leave interrupts to it."""
    # A notebook's interrupt reaches all processes of its group, and a killed worker would break the pool.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _processes.exit_with_parent()


_under_way: weakref.WeakSet[Runs] = weakref.WeakSet()


def _leave() -> None:
    for runs in list(_under_way):
        runs.cancel()


# At exit the interpreter waits for its executors, which wait for their runs; `atexit` comes after that.
# This hook ends the runs before.
getattr(threading, "_register_atexit", lambda function: None)(_leave)


class Runs:
    """The tasks of a scenario as they run.

    Args:
        jobs: The log, before missing values are generated.
        tasks: The tasks to do.
        executor: Where tasks run; it stays open. Dask's `client.get_executor()`, `executors.HereExecutor()`.
            None: new `processes()`.
        workers: Number of these processes.
        keep_valid: Remove invalid rows of the log instead of failing.

    Attributes:
        cancelled: Whether the tasks were cancelled.
    """

    def __init__(
        self, jobs: pl.DataFrame, tasks: Sequence[Task], executor: Executor | None = None, *,
        workers: int | None = None, keep_valid: bool = False,
    ) -> None:
        self.tasks = tuple(tasks)
        self.cancelled = False
        self._began_s = self._ended_s = time.monotonic()
        descriptor, path = tempfile.mkstemp(prefix="workbench-runs-")
        os.close(descriptor)
        weakref.finalize(self, os.unlink, path)
        self._shared = np.memmap(path, float, "w+", shape=len(self.tasks) + 1)
        self._futures: list[Future[RunOutcome]] = []
        _under_way.add(self)
        pool = processes(workers) if executor is None else executor
        try:
            for number, task in enumerate(self.tasks):
                future = pool.submit(work, jobs, task, Channel(path, number), keep_valid)
                future.add_done_callback(self._ended)
                self._futures.append(future)
        except BaseException:
            self.cancel()
            raise
        finally:
            if executor is None:
                pool.shutdown(wait=False)  # it ends after its tasks

    def _ended(self, _: Future[RunOutcome]) -> None:
        self._ended_s = time.monotonic()

    @property
    def running(self) -> bool:
        return not all(future.done() for future in self._futures)

    @property
    def outcomes(self) -> dict[int, RunOutcome]:
        """Outcomes of the finished tasks, by number."""
        return {n: future.result() for n, future in enumerate(self._futures) if _error(future) is None}

    @property
    def errors(self) -> dict[int, str]:
        """Errors of the failed tasks, by number."""
        return {
            n: PROCESS_DIED if isinstance(error, BrokenProcessPool) else describe_error(error)
            for n, error in enumerate(map(_error, self._futures))
            if error and not isinstance(error, CancelledError | Cancelled)
        }

    @property
    def progress(self) -> list[float]:
        """Progress of each task, 0..1."""
        done = self.outcomes
        return [1.0 if n in done else value for n, value in enumerate(self._shared[:-1].tolist())]

    @property
    def seconds(self) -> float:
        """Elapsed time until now, or until the end."""
        return (time.monotonic() if self.running else self._ended_s) - self._began_s

    def cancel(self) -> None:
        """Cancel all runs: waiting ones immediately, others within a few tenths of a second. Finished ones
        are kept.
        """
        self.cancelled = True
        self._shared[-1] = 1.0
        for future in self._futures:
            future.cancel()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the end; returns whether it was reached."""
        return not wait(self._futures, timeout_s).not_done


def _error(future: Future[RunOutcome]) -> BaseException | None:
    """Why there is no outcome: the run has failed, was cancelled, or is active."""
    if future.cancelled() or not future.done():
        return CancelledError()
    return future.exception()
