"""Where trials run: one at a time on each GPU, behind `concurrent.futures.Executor`.

    LocalExecutor    processes of this machine, the default
    HereExecutor     this process, for work that cannot leave it
    DaskExecutor     workers of a Dask client, one per GPU with `resources={"GPU": 1}`; extra `[cluster]`

A process that dies takes its trial with it, not the sweep: its watchdog restores the setting, and the trial
is run again.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from ..device import driver
from ..errors import UsageError, WorkbenchError, missing

if TYPE_CHECKING:
    from distributed import Client

P = ParamSpec("P")
T = TypeVar("T")
ATTEMPTS = 3


class WorkerDied(WorkbenchError):
    """A process died with every attempt at a trial."""


class HereExecutor(Executor):
    """Runs everything in this process, at once: `submit` returns when it is done."""

    gpus: tuple[str, ...] = ("",)

    def submit(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()
        try:
            future.set_result(function(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


class LocalExecutor(Executor):
    """One process per GPU of `gpus` (UUIDs), which sees no other; functions travel by value (cloudpickle).

    Raises:
        UsageError: no GPU.
    """

    def __init__(self, gpus: Sequence[str]) -> None:
        self.gpus = _distinct(gpus)
        self._jobs: queue.SimpleQueue[tuple[Future[Any], bytes] | None] = queue.SimpleQueue()
        self._closed = False
        self._processes: dict[str, multiprocessing.process.BaseProcess] = {}
        self._threads = [
            threading.Thread(target=self._serve, args=(uuid,), name=f"trials on {uuid}", daemon=True)
            for uuid in self.gpus
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run a function in the process of the next GPU that is free."""
        import cloudpickle

        if self._closed:
            raise RuntimeError("this executor was shut down; make a new one")
        future: Future[T] = Future()
        self._jobs.put((future, cloudpickle.dumps((function, args, kwargs))))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the processes after what runs, and with `cancel_futures` without what waits."""
        if not self._closed:
            self._closed = True
            if cancel_futures:
                self._drop()
            for _ in self._threads:
                self._jobs.put(None)
        if wait:
            for thread in self._threads:
                thread.join()

    def _drop(self) -> None:
        while True:
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                return
            if job is not None:
                job[0].cancel()

    def _serve(self, uuid: str) -> None:
        """A GPU's thread: hand its process one job after the other."""
        here: Connection | None = None
        try:
            while (job := self._jobs.get()) is not None:
                future, message = job
                if future.set_running_or_notify_cancel():
                    here = self._have_done(uuid, here, future, message)
        finally:
            self._end(uuid, here)

    def _have_done(
        self, uuid: str, here: Connection | None, future: Future[Any], message: bytes
    ) -> Connection | None:
        """Have a GPU's process do one job; returns the connection to it, None where it has died."""
        for _ in range(ATTEMPTS):
            process = self._processes.get(uuid)
            try:
                if process is None or not process.is_alive() or here is None:
                    here = self._start(uuid)
            except Exception as error:  # this thread must live on: whoever waits for it would wait for ever
                future.set_exception(WorkerDied(f"no process can be started for GPU {uuid}: {error}"))
                return None
            try:
                here.send_bytes(message)
                answer = here.recv_bytes()
            except (EOFError, OSError):  # it died
                here = None
                continue
            _settle(future, answer)
            return here
        future.set_exception(WorkerDied(f"the process of GPU {uuid} died {ATTEMPTS} times with this trial"))
        return None

    def _start(self, uuid: str) -> Connection:
        context = multiprocessing.get_context("spawn")  # a forked driver works no more
        here, there = context.Pipe()
        process = context.Process(target=_work, args=(there, uuid), name=f"trials on {uuid}", daemon=True)
        process.start()
        there.close()
        self._processes[uuid] = process
        return here

    def _end(self, uuid: str, here: Connection | None) -> None:
        process = self._processes.pop(uuid, None)
        if here is not None:
            here.close()  # which ends it
        if process is not None:
            process.join(10)
            if process.is_alive():
                process.terminate()


def _settle(future: Future[Any], answer: bytes) -> None:
    try:
        failed, value = pickle.loads(answer)
    # errors with arguments of their own often cannot be unpickled; whoever waits must still hear of it
    except Exception as error:
        future.set_exception(RuntimeError(f"its answer cannot be read here: {type(error).__name__}: {error}"))
        return
    if failed:
        future.set_exception(value)
    else:
        future.set_result(value)


def _work(jobs: Connection, uuid: str) -> None:
    """A GPU's process: run what comes, until nobody sends any more."""
    os.environ.update(driver.current().environment(uuid))
    while True:
        try:
            message = jobs.recv_bytes()
        except (EOFError, OSError, KeyboardInterrupt):
            return
        try:
            function, args, kwargs = pickle.loads(message)
            answer: tuple[bool, Any] = (False, function(*args, **kwargs))
        # a terminal interrupts all its processes: told, not died of, or the trial would begin again
        except (Exception, KeyboardInterrupt) as error:
            answer = (True, error)
        try:
            jobs.send(answer)
        except (EOFError, OSError):
            return
        except Exception as error:
            jobs.send((True, RuntimeError(f"its answer cannot be sent: {error}")))


class DaskExecutor(Executor):
    """Workers of a Dask client: any cluster whose workers have `resources={"GPU": 1}` and see one GPU each.

    Args:
        client: `distributed.Client`; `dask_client` makes one for this machine.

    Raises:
        UsageError: no worker offers a GPU.
    """

    def __init__(self, client: Client) -> None:
        self.client = client
        workers = client.scheduler_info(n_workers=-1)["workers"]
        offered = [worker for worker in workers.values() if worker.get("resources", {}).get("GPU")]
        if not offered:
            raise UsageError(
                f"none of the {len(workers)} Dask workers offers a GPU; start one worker per GPU with "
                f"--resources 'GPU=1' --nthreads 1 and {driver.current().VISIBLE} set, or use "
                "workbench.experiments.executors.dask_client()"
            )
        self.gpus = tuple(str(worker.get("name", "")) for worker in offered)

    def submit(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run a function on the next worker whose GPU is free."""
        inner = self.client.submit(function, *args, **kwargs, resources={"GPU": 1}, pure=False, retries=0)
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()

        def done(finished: Any) -> None:
            if finished.status == "finished":
                future.set_result(finished.result())
            elif finished.status == "cancelled":
                future.set_exception(WorkerDied("the trial was cancelled in the cluster"))
            else:
                future.set_exception(finished.exception() or WorkerDied(f"the trial is {finished.status}"))

        inner.add_done_callback(done)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Leaves the cluster to whoever made it."""


def dask_client(gpus: Sequence[str]) -> Client:
    """A Dask cluster on this machine, one worker per GPU. Close its `cluster` after it.

    Raises:
        UsageError: no GPU, or Dask is not installed.
    """
    found = _distinct(gpus)
    try:
        from distributed import Client, Nanny, Scheduler, SpecCluster
    except ImportError as error:
        raise UsageError(f"{missing('Dask', 'cluster')}; or leave out executor=") from error
    local = {"host": "127.0.0.1", "dashboard": False, "dashboard_address": "127.0.0.1:0"}
    common = {**local, "nthreads": 1, "resources": {"GPU": 1}, "silence_logs": logging.ERROR}
    workers = {
        uuid: {"cls": Nanny, "options": {**common, "name": uuid, "env": driver.current().environment(uuid)}}
        for uuid in found
    }
    scheduler = {"cls": Scheduler, "options": {**local, "port": 0}}
    return Client(SpecCluster(workers=workers, scheduler=scheduler, silence_logs=logging.ERROR))


def _distinct(gpus: Sequence[str]) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(gpus))
    if not found:
        raise UsageError(
            "there is no GPU to run trials on; choose a simulated one with workbench.simulate('A100')"
        )
    return found
