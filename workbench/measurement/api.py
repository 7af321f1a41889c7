"""For scripts: `measure` a block, a function or a call, `track` a loop, hold a setting by `gpu_settings`.

A failed measurement never ends the training: the result has the time, and a note with the reason.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from ..device.discovery import SIMULATE, Gpus, named, why_no_gpu
from ..device.gpu import setting_of
from ..device.lease import Lease
from ..errors import MeasurementError, NoDriver, UsageError, checked, shown, suggesting
from ..records import Measurement, Setting
from . import session
from .blocks import BlockResult, TrackedLoop
from .meter import Meter

if TYPE_CHECKING:
    import polars as pl

    from ..logbook.store import Store
    from ..periods.segment import SegmentedIterations

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class MeasuredBlock(AbstractContextManager[BlockResult]):
    """What `measure("label")` gives: a context manager and a decorator."""

    def __init__(self, label: str, gpus: Gpus = None) -> None:
        self._label, self._gpus = str(label), gpus
        self._result: BlockResult | None = None

    def __enter__(self) -> BlockResult:
        self._result = BlockResult(_meter(self._gpus), self._label)
        return self._result

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        assert self._result is not None
        self._result.__exit__(kind)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def late(*args: P.args, **kwargs: P.kwargs) -> R:
            meter, result = _meter(self._gpus), None
            try:
                with BlockResult(meter, self._label or function.__qualname__) as result:
                    return function(*args, **kwargs)
            finally:  # what failed has cost something too
                if result is not None:
                    late.measurement = result.measurement  # type: ignore[attr-defined]

        return late


@overload
def measure(label: str = "", *, gpus: Gpus = None) -> MeasuredBlock: ...
@overload
def measure(label: Callable[P, R], *, gpus: Gpus = None) -> Callable[P, R]: ...
@suggesting
def measure(label: str | Callable[..., Any] = "", *, gpus: Gpus = None) -> Any:
    """Measure time and energy of a block or of every call of a function.

    Each call is logged. Calls faster than 1 Hz are thinned to one log entry per second.

        with workbench.measure("epoch") as result: train()
        print(result.energy_j, result.measurement)

        @workbench.measure
        def epoch(): ...
        epoch(); print(epoch.measurement.energy_j)

    Args:
        label: Its name in the log; or the function itself.
        gpus: Which GPUs to count, as `devices` takes them; all visible ones where None.
    """
    return MeasuredBlock("", gpus)(label) if callable(label) else MeasuredBlock(label, gpus)


@suggesting
def track(iterable: Iterable[T], label: str = "", *, gpus: Gpus = None) -> TrackedLoop[T]:
    """Iterate as before, with the energy of every iteration in joules.

        for batch in (loop := track(loader)): train(batch)
        print(loop.iterations)

    Args:
        iterable: What to iterate.
        label: Its name in the log.
        gpus: Which GPUs to count, as `devices` takes them; all visible ones where None.
    """
    return TrackedLoop(_meter(gpus), iterable, label)


def _meter(gpus: Gpus) -> Meter:
    """The session's meter; a warning where there is no GPU to measure."""
    meter = session.current().meter_or_clock(gpus)
    if not meter.devices and (gpus is None or named(gpus)):
        warnings.warn(f"only the time is measured: {meter.why}", RuntimeWarning, stacklevel=3)
    return meter


@checked
@contextmanager
def gpu_settings(
    setting: Setting | None = None, *, power_limit_w: float | None = None, sm_clock_mhz: int | None = None,
    mem_clock_mhz: int | None = None, gpus: Gpus = None,
) -> Iterator[tuple[Setting, ...]]:
    """Hold a setting of the GPUs for the length of a block; yields the setting read back from each.

        with workbench.gpu_settings(power_limit_w=250): train()

    Args:
        setting: All of it in one value, in place of the next three.
        power_limit_w: The power limit; None leaves it alone, as for the clocks.
        sm_clock_mhz: The SM clock.
        mem_clock_mhz: The memory clock.
        gpus: Which GPUs, as `devices` takes them; all visible ones where None.

    Raises:
        NoDriver: there is no GPU to set.
        DeviceHeld, OutOfRange, NotSupported, NotPermitted: nothing was changed.
        UsageError: no setting, or two.
    """
    wanted = setting_of(setting, power_limit_w, sm_clock_mhz, mem_clock_mhz)
    found = session.devices_of(gpus)
    if not found:
        raise NoDriver(f"{why_no_gpu() or 'gpus=[] names no GPU'}. {SIMULATE}")
    with Lease(found) as lease:
        yield lease.apply(wanted)


@checked
def trace_of(measurement: Measurement | str) -> pl.DataFrame:
    """The stored power trace (`trace.SCHEMA`) of a measurement, or of the newest with this label or id.

    Times are in seconds since the measurement began.

    Raises:
        UsageError: there is no such measurement.
        MeasurementError: its trace is not kept (any more).
    """
    from ..logbook.store import Store

    return _stored(Store(), measurement)[1]


@checked
def iterations_of(measurement: Measurement | str) -> SegmentedIterations:
    """The iterations of a stored measurement, or of the newest with this label or id.

    The periods are found again in its stored trace; the iterations and what one costs stay as they were
    stored. Times are seconds since the measurement began.

    Raises:
        UsageError: there is no such measurement.
        MeasurementError: its trace is not kept (any more), or has nothing to find iterations in.
    """
    from ..logbook.store import Store
    from .iterations import from_stored

    store = Store()
    named, trace = _stored(store, measurement)
    return from_stored(trace, store.iterations(named.id), named)


def _stored(store: Store, measurement: Measurement | str) -> tuple[Measurement, pl.DataFrame]:
    named = store.find(measurement) if isinstance(measurement, str) else measurement
    if not hasattr(named, "id"):
        raise UsageError(f"{shown(named)} is no measurement; give one, or a label or id of the log")
    trace = store.trace(named.id)
    if trace is None:
        raise MeasurementError(
            f"no trace of {named.label or named.id!r} is kept in {store.directory}: the oldest traces go "
            f"first when all together exceed {store.quota_bytes >> 20} MB"
        )
    return named, trace
