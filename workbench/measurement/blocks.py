"""Results of a measured block, function or loop: measurement, iterations and traces.

Errors in here never end a training: they become notes of the measurement.
"""

from __future__ import annotations

import sys
import threading
import time
import uuid as uuid_module
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from .. import _html
from .._processes import require_polars
from ..errors import MeasurementError, Suggesting, describe_error
from ..logbook import keeping
from ..logbook.report import line, page
from ..records import Measurement, Periods, Window
from . import marks, work
from .meter import Meter, encodable
from .repeats import repeated, with_iterations

if TYPE_CHECKING:
    import polars as pl

    from ..periods.segment import SegmentedIterations

T = TypeVar("T")


def _begun_at() -> str:
    """The line outside of the workbench that is being run: what has no label is known by it."""
    frame = sys._getframe()
    while str(frame.f_globals.get("__name__")).partition(".")[0] in ("workbench", "contextlib"):
        if frame.f_back is None:
            break
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


class BlockResult(Suggesting):
    """The result of a measured block; the estimate is made at its first use.

        with BlockResult(meter, "epoch") as result:     # of itself it raises nothing
            train()

    Where measuring fails there is the time alone, and a note that gives the reason.
    """

    def __init__(self, meter: Meter, label: str = "") -> None:
        self._meter, self._label, self._outcome = meter, label, "ok"
        self._problem = ""
        self._begun_s = time.monotonic()
        self._time_s: float | None = None
        self._key = label or _begun_at()
        self._left_out, self._unkept = 0, ""
        self._found: SegmentedIterations | None = None
        self._measurement: Measurement | None = None
        self._measuring = threading.Lock()
        self.opened = self.attempt(lambda: meter.open(label))
        self.closed: Window | None = None

    def __enter__(self) -> BlockResult:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._outcome = "interrupted" if issubclass(kind, KeyboardInterrupt) else "error"
        self.close()
        self.keep_later("block")

    def attempt(self, act: Callable[[], T]) -> T | None:
        """What `act` returns; None where it fails, and the measurement gives the reason."""
        try:
            return act()
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # Polars panics with one that is no Exception
            self._problem = self._problem or describe_error(error)
            return None

    def now_s(self) -> float | None:
        """The time of the window's clock; None where that is gone, as the end of the window reports."""
        try:
            return self._meter.clock()
        except ValueError:
            return None

    def close(self) -> None:
        """End the block now; leaving the `with` does it."""
        opened = self.opened
        self.closed = self.attempt(lambda: self._meter.close(opened)) if opened is not None else None
        self._time_s = time.monotonic() - self._begun_s

    def keep_later(self, kind: str) -> None:
        """Have the measurement and its iterations written to the log."""
        try:
            require_polars()
        except MeasurementError as error:
            self._unkept = f"this is not in the log: {error}"
            return
        left_out = self.attempt(lambda: keeping.writer().admit(self._key))
        if left_out is None:
            return
        self._left_out = left_out

        def write() -> None:
            from ..logbook.store import Store
            from .session import keep

            measurement = self.measurement
            if self.closed is not None:
                for message in keep(measurement, self.closed, self._meter, Store(), self._found, kind=kind):
                    warnings.warn(message, RuntimeWarning, stacklevel=2)

        self.attempt(lambda: keeping.writer().put(write))

    @property
    def measurement(self) -> Measurement:
        """Raises MeasurementError while it is still running."""
        if self._time_s is None:
            raise MeasurementError("it is still running; its measurement is there when it has ended")
        if self._measurement is None:
            with self._measuring:
                self._measurement = self._measurement or self._measured(self._time_s)
        return self._measurement

    def _measured(self, time_s: float) -> Measurement:
        began_unix_s = time.time() - (time.monotonic() - self._begun_s)
        measured = Measurement(uuid_module.uuid4().hex[:12], encodable(self._label), began_unix_s, time_s,
                               outcome=self._outcome)
        if (closed := self.closed) is not None:
            measured = self.attempt(lambda: self._meter.measure(closed, outcome=self._outcome)) or measured
            self._found = self.attempt(lambda: self._meter.count(closed, measured))
        failed = f"this could not be measured in full: {self._problem}" if self._problem else ""
        notes = [note for note in (self._meter.why, failed, self._unkept) if note]
        if self._left_out:
            what = "label" if self._label else "line"
            notes.append(f"{self._left_out} runs of this {what} before this one are not in the log")
        return with_iterations(replace(measured, notes=(*notes, *measured.notes)), self._found)

    def __getstate__(self) -> dict[str, Any]:
        """For another process: the measurement and its iterations. The samples stay in this process."""
        found = None if self.measurement.iterations is None else self.found
        known = {"_measurement": self.measurement, "_found": found, "_time_s": self._time_s}
        return {**dict.fromkeys(vars(self)), **known}

    def __repr__(self) -> str:
        return "a block that is still running" if self._time_s is None else line(self.measurement)

    def _repr_html_(self) -> str | None:
        return None if self._time_s is None else page(self.measurement)

    @property
    def traces(self) -> dict[str, pl.DataFrame]:
        """The power trace of each GPU (`trace.SCHEMA`, seconds since the block began), by its place and name;
        empty without a recorder.
        """
        power_traces = {} if self.closed is None else self._meter.traces(self.closed)
        return {
            f"GPU {number}, {each.name}": power_traces[each.uuid]
            for number, each in enumerate(self._meter.devices if power_traces else ())
        }

    @property
    def found(self) -> SegmentedIterations:
        """The iterations of the block, their summary and the periods of its trace, in seconds since it began;
        also of a block too short to be looked at unasked.
        """
        measurement, window = self.measurement, self.closed
        if window is not None and (self._found is None or self._found.periods is None):
            self._found = self._meter.count(window, measurement, detect_periods=True)
        if self._found is None:
            raise MeasurementError("nothing was measured in which iterations could be found: no GPU, and no "
                                   "marks (workbench.step())")
        return self._found if window is None else self._found.since(window.start_s)

    @property
    def iterations(self) -> Any:
        """A Polars frame with a row for each iteration and each stretch between
        (`workbench.periods.segment`); the energies add up.
        """
        return self.found.frame

    @property
    def periods(self) -> Periods:
        """The periods of the power trace; none, with the reason, where there was no trace."""
        return self.found.periods or Periods(reason="the power was not recorded")

    @property
    def energy_j(self) -> float | None:
        """Energy of all GPUs (J); None where it is not known."""
        return self.measurement.energy_j

    @property
    def time_s(self) -> float:
        """Length of the block (s)."""
        return self.measurement.time_s


class TrackedLoop(Iterable[T]):
    """An iterable whose iterations are windows, cut out of the trace afterwards; `measurement` is the loop's.
    Where it is looped several times, `iterations` has all iterations and `measurement` is the mean of a loop.

    A window reaches from the moment its item is asked for to the moment the next one is, so that waiting for
    data counts; it is the GPU's time, not that of the host that has queued the work.
    """

    def __init__(self, meter: Meter, iterable: Iterable[T], label: str = "") -> None:
        self._meter, self._iterable, self._label = meter, iterable, str(label)
        self._loops: list[tuple[BlockResult, list[float]]] = []  # each with the borders of its iterations
        self._iterations: Any = None

    def __len__(self) -> int:
        return len(self._iterable)  # type: ignore[arg-type]

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_iterations": self.iterations, "_meter": None, "_iterable": ()}

    def __iter__(self) -> Iterator[T]:
        whole = BlockResult(self._meter, self._label)
        marks_s = [whole.opened.start_s] if whole.opened is not None else []
        self._loops.append((whole, marks_s))
        self._iterations = None
        marks.loop(marks_s)  # the windows around this loop learn its iterations too
        begun = False
        try:
            for item in self._iterable:
                begun, before = True, work.calls
                yield item
                if before == work.calls and (counts := work.of_batch(item)):
                    marks.work(counts)
                if marks_s and (at_s := whole.now_s()) is not None:
                    marks_s.append(at_s)
                begun = False
        finally:
            whole.close()
            if begun and marks_s and whole.closed is not None and whole.closed.end_s is not None:
                marks_s.append(whole.closed.end_s)  # the iteration that a break or an error ended
            whole.keep_later("loop")

    def __repr__(self) -> str:
        return line(self.measurement) if self._ended else "a loop that is running, or has not begun"

    def _repr_html_(self) -> str | None:
        facts = {"iterations": self.iterations} if self._ended else {}
        return page(self.measurement) + _html.facts("", facts) if facts else None

    @property
    def _ended(self) -> bool:
        return bool(self._loops) and self._loops[-1][0]._time_s is not None

    @property
    def measurement(self) -> Measurement:
        """The measurement of the loop, or the mean of several. Raises MeasurementError while it runs."""
        if not self._loops:
            raise MeasurementError("the loop has not begun; its measurement is there when it has ended")
        measured = [whole.measurement for whole, _ in self._loops]
        last = [gpu.uuid for gpu in measured[-1].gpus]
        alike = [each for each in measured if [gpu.uuid for gpu in each.gpus] == last]
        return repeated(alike)

    @property
    def iterations(self) -> Any:
        """A Polars frame: iteration, start_s (from the start of the first loop), time_s, energy_j,
        energy_uncertainty_j (sum of GPUs).
        """
        if self._iterations is None:
            require_polars()
            import polars as pl

            _ = self.measurement  # which waits until the last edge is known
            parts = [self._parts(*each) for each in self._loops]
            columns = [np.concatenate(each) for each in zip(*parts, strict=True)] or [np.empty(0)] * 4
            start_s, time_s, energy_j, half_j = columns
            self._iterations = pl.DataFrame({
                "iteration": np.arange(len(start_s)), "start_s": start_s - start_s[:1], "time_s": time_s,
                "energy_j": energy_j, "energy_uncertainty_j": half_j,
            }).with_columns(pl.col("energy_j", "energy_uncertainty_j").fill_nan(None))
        return self._iterations

    def _parts(self, whole: BlockResult, marks_s: list[float]) -> tuple[np.ndarray, ...]:
        """Start, time, energy and its half width of each iteration of a loop; NaN where not known."""
        window, count = whole.closed, max(len(marks_s) - 1, 0)
        energy_j = half_j = np.full(count, np.nan)
        if count and window is not None and window.end_s is not None:
            # With the end of the loop, where the counter was read: the last iteration ends just before it.
            moments_s = [*marks_s, window.end_s]
            parts = whole.attempt(lambda: self._meter.energies(moments_s, window))
            if parts is not None:
                known = parts.known[:count]
                energy_j, half_j = (np.where(known, each[:count], np.nan) for each in parts)
        return np.array(marks_s[:count]), np.diff(marks_s), energy_j, half_j
