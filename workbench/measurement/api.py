"""For scripts: `measure` a block, a function or a call, `track` a loop. They use the session of the process.

A training never ends of its measurement: what goes wrong here is a note of the result, which has the time in
any case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from ..errors import MeasurementError
from . import session
from .meter import BlockResult, Track

if TYPE_CHECKING:
    from ..periods.segment import SegmentedIterations
    from ..records import Measurement

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class MeasuredBlock(AbstractContextManager[BlockResult]):
    """What `measure("label")` gives: a context manager and a decorator."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._context: AbstractContextManager[BlockResult] | None = None

    def __enter__(self) -> BlockResult:
        self._context = session.current().meter_or_clock().window(self._label)
        return self._context.__enter__()

    def __exit__(self, *error: Any) -> bool | None:
        assert self._context is not None
        return self._context.__exit__(*error)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        def late(*args: P.args, **kwargs: P.kwargs) -> R:
            meter, result = session.current().meter_or_clock(), None
            try:
                with meter.window(self._label or function.__qualname__) as result:
                    return function(*args, **kwargs)
            finally:  # what failed has cost something too
                if result is not None:
                    late.measurement = result.measurement  # type: ignore[attr-defined]

        late.__wrapped__ = function  # type: ignore[attr-defined]
        late.__name__, late.__doc__ = function.__name__, function.__doc__
        return late


@overload
def measure(label: str = "") -> MeasuredBlock: ...
@overload
def measure(label: Callable[P, R]) -> Callable[P, R]: ...
def measure(label: str | Callable[..., Any] = "") -> Any:
    """Measure time and energy of a block or of every call of a function.

    with workbench.measure("epoch") as result: train()
    print(result.energy_j, result.measurement)

    @workbench.measure
    def epoch(): ...
    epoch(); print(epoch.measurement.energy_j)
    """
    return MeasuredBlock("")(label) if callable(label) else MeasuredBlock(label)


def track(iterable: Iterable[T], label: str = "") -> Track[T]:
    """Iterate as before, with the energy of every iteration in joules.

    for batch in (loop := track(loader)): train(batch)
    print(loop.iterations)
    """
    return session.current().meter_or_clock().track(iterable, label)


def iterations_of(measurement: Measurement | str) -> SegmentedIterations:
    """The iterations of a stored measurement, or of the newest with this label or id.

    `.frame` has a row for each, `.summary` and `.periods` what is known of all. The periods are found anew in
    its stored trace. Iterations that the training had marked stay as they were.

    Raises:
        UsageError: there is no such measurement.
        MeasurementError: its trace is not kept (any more), or has nothing to find iterations in.
    """
    from .iterations import from_stored
    from .store import Store

    store = Store()
    named = store.find(measurement) if isinstance(measurement, str) else measurement
    trace = store.trace(named.id)
    if trace is None:
        raise MeasurementError(
            f"no trace of {named.label or named.id!r} is kept in {store.directory}: the oldest traces go "
            "first when all together "
            f"exceed {store.quota_bytes >> 20} MB"
        )
    marked = named.iterations is not None and named.iterations.source == "marks"
    return from_stored(trace, store.iterations(named.id), marked=marked)
