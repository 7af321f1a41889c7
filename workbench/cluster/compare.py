"""Several policies over one log, here or on an executor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, as_completed
from typing import Any

import polars as pl

from .policy import Policy
from .power import Cluster
from .result import Result
from .simulator import Simulator
from .summary import summarise


def simulate(log: pl.DataFrame, cluster: Cluster, make: Callable[[], Policy], options: Mapping[str, Any] | None = None) -> Result:
    """One run of a fresh policy; `options` go to the simulator. Picklable where `make` is."""
    return Simulator(log, cluster, make(), **(options or {})).run()


def runs(
    log: pl.DataFrame,
    cluster: Cluster,
    policies: Mapping[str, Callable[[], Policy]],
    *,
    executor: Executor | None = None,
    options: Mapping[str, Any] | None = None,
) -> Iterator[tuple[str, Result]]:
    """The policies' results as they come; on an executor (processes, Dask's `client.get_executor()`) several at once.

    Whoever stops asking cancels what has not begun.
    """
    if executor is None:
        for name, make in policies.items():
            yield name, simulate(log, cluster, make, options)
        return
    waiting = {executor.submit(simulate, log, cluster, make, options): name for name, make in policies.items()}
    try:
        for future in as_completed(waiting):
            yield waiting[future], future.result()
    finally:
        for future in waiting:
            future.cancel()


def compare(
    log: pl.DataFrame,
    cluster: Cluster,
    policies: Mapping[str, Callable[[], Policy]],
    *,
    executor: Executor | None = None,
    options: Mapping[str, Any] | None = None,
) -> pl.DataFrame:
    """A row per policy as `summarise` gives it, with the name it was asked for by; in the order of `policies`."""
    rows = {name: {"run": name, **summarise(result)} for name, result in runs(log, cluster, policies, executor=executor, options=options)}
    return pl.DataFrame([rows[name] for name in policies])
