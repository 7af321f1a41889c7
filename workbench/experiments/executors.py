"""Where trials run: one at a time on each GPU, behind `concurrent.futures.Executor`.

    LocalExecutor    processes of this machine, the default
    HereExecutor     this process, for work that cannot leave it
    DaskExecutor     workers of a Dask client, one per GPU with `resources={"GPU": 1}`; extra `[cluster]`

A process that dies takes its trial with it, not the sweep: its watchdog restores the setting, and the sweep
tries the configuration again.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from .._processes import exit_with_parent
from ..device import driver
from ..errors import UsageError, WorkbenchError, missing

if TYPE_CHECKING:
    from distributed import Client

P = ParamSpec("P")
T = TypeVar("T")


class WorkerDied(WorkbenchError):
    """A worker of a Dask cluster died with its trial, or was reported to leave it."""


class HereExecutor(Executor):
    """Runs everything in this process: `submit` returns when it is done."""

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
        self._pools = {uuid: _pool(uuid) for uuid in self.gpus}
        self._newest: dict[str, Future[Any]] = {}

    def submit(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run a function in the process of a GPU that is free; after a process that died a new one begins."""
        import cloudpickle

        message = cloudpickle.dumps((function, args, kwargs))
        free = (uuid for uuid in self.gpus if uuid not in self._newest or self._newest[uuid].done())
        uuid = next(free, self.gpus[0])
        try:
            future = self._pools[uuid].submit(_call, message)
        except BrokenProcessPool:
            self._pools[uuid] = _pool(uuid)
            future = self._pools[uuid].submit(_call, message)
        self._newest[uuid] = future
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the processes after the running tasks; `cancel_futures` drops the waiting ones."""
        for pool in self._pools.values():
            pool.shutdown(wait, cancel_futures=cancel_futures)


def _pool(uuid: str) -> ProcessPoolExecutor:
    spawn = multiprocessing.get_context("spawn")  # a driver does not work in a forked process
    return ProcessPoolExecutor(1, spawn, _begin, (driver.current().environment(uuid),))


def _begin(environment: dict[str, str]) -> None:
    """In a GPU's process, before anything else."""
    os.environ.update(environment)
    exit_with_parent()


def _call(message: bytes) -> Any:
    function, args, kwargs = pickle.loads(message)
    return function(*args, **kwargs)


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
        """Leaves the cluster to its owner."""


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
