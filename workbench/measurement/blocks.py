"""What a measured block, function or loop leaves behind: its measurement, iterations and traces.

Nothing in here ends a training: what goes wrong is a note of the measurement.
"""

from __future__ import annotations

import sys
import threading
import time
import uuid as uuid_module
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from .. import _html
from .._processes import require_polars
from ..errors import MeasurementError, describe_error
from ..logbook import keeping
from ..logbook.report import line, page
from ..records import Measurement, Periods, Window
from . import marks, work
from .meter import Meter, encodable
from .repeats import with_iterations

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


class TrainingWindow:
    """A window of a training. Where measuring fails there is the time alone, and a note that says why."""

    def __init__(self, meter: Meter, label: str) -> None:
        self._meter, self._label, self._problem = meter, label, ""
        self._begun_s = time.monotonic()
        self._time_s: float | None = None
        self._key = label or _begun_at()
        self._left_out, self._unkept = 0, ""
        self.opened = self.attempt(lambda: meter.open(label))
        self.closed: Window | None = None
        # of the trace, as long as it may be asked for
        opened, recorder = self.opened, meter.recorder
        self._hold = None
        if recorder and opened:
            self._hold = self.attempt(lambda: recorder.hold(opened.start_s, awake=False))

    @property
    def ended(self) -> bool:
        return self._time_s is not None

    def attempt(self, act: Callable[[], T]) -> T | None:
        """What `act` returns; None where it fails, and the measurement says why."""
        try:
            return act()
        except Exception as error:
            self._problem = self._problem or describe_error(error)
            return None

    def now_s(self) -> float | None:
        """The time of the window's clock; None where that is gone."""
        return self.attempt(self._meter.clock)

    def close(self) -> None:
        opened = self.opened
        self.closed = self.attempt(lambda: self._meter.close(opened)) if opened is not None else None
        self._time_s = time.monotonic() - self._begun_s

    def keep_later(self, kind: str, measured: Callable[[], tuple[Measurement, Any]]) -> None:
        """Have what `measured` returns, a measurement and its iterations or None, written to the log."""
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

            measurement, found = measured()
            frame = found.frame if found is not None and found.summary.count else None
            if self.closed is not None:
                keep(measurement, self.closed, self._meter, Store(), frame, kind=kind)

        self.attempt(lambda: keeping.writer().put(write))

    def measure(self, outcome: str = "ok") -> tuple[Measurement, SegmentedIterations | None]:
        """Its measurement, and its iterations where they were looked for and found."""
        assert self._time_s is not None
        began_unix_s = time.time() - (time.monotonic() - self._begun_s)
        measured = Measurement(uuid_module.uuid4().hex[:12], encodable(self._label), began_unix_s,
                               self._time_s, outcome=outcome)
        found = None
        if (closed := self.closed) is not None:
            measured = self.attempt(lambda: self._meter.measure(closed, outcome=outcome)) or measured
            found = self.attempt(lambda: self._meter.count(closed, measured))
        failed = f"this could not be measured in full: {self._problem}" if self._problem else ""
        notes = [note for note in (self._meter.why, failed, self._unkept) if note]
        if self._left_out:
            what = "label" if self._label else "line"
            notes.append(f"{self._left_out} runs of this {what} before this one are not in the log")
        return with_iterations(replace(measured, notes=(*notes, *measured.notes)), found), found


class BlockResult:
    """What a measured block leaves behind; the estimate is made when it is first asked for.

        with BlockResult(meter, "epoch") as result:     # of itself it raises nothing
            train()
    """

    def __init__(self, meter: Meter, label: str = "") -> None:
        self._meter = meter
        self._found: SegmentedIterations | None = None
        self._outcome = "ok"
        self._measurement: Measurement | None = None
        self._measuring = threading.Lock()
        self._training = TrainingWindow(meter, label)

    def __enter__(self) -> BlockResult:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._outcome = "interrupted" if issubclass(kind, KeyboardInterrupt) else "error"
        self._training.close()
        self._training.keep_later("block", lambda: (self.measurement, self._found))

    @property
    def measurement(self) -> Measurement:
        """Raises MeasurementError while the block is still running."""
        if not self._training.ended:
            raise MeasurementError("the block is still running; its measurement is there when it has ended")
        with self._measuring:
            if self._measurement is None:
                self._measurement, self._found = self._training.measure(self._outcome)
            return self._measurement

    def __repr__(self) -> str:
        return line(self.measurement) if self._training.ended else "a block that is still running"

    def _repr_html_(self) -> str | None:
        return page(self.measurement) if self._training.ended else None

    @property
    def traces(self) -> dict[str, pl.DataFrame]:
        """The power trace of each GPU (`trace.SCHEMA`), by its place and name; empty without a recorder."""
        window, devices = self._training.closed, self._meter.devices
        power_traces = {} if window is None else self._meter.traces(window)
        return {
            f"GPU {number}, {each.name}": power_traces[each.uuid]
            for number, each in enumerate(devices)
            if power_traces
        }

    @property
    def found(self) -> SegmentedIterations:
        """The iterations of the block, their summary and the periods of its trace; also of a block too
        short to be looked at unasked.
        """
        measurement, window = self.measurement, self._training.closed
        if window is not None and (self._found is None or self._found.periods is None):
            self._found = self._meter.count(window, measurement, detect_periods=True)
        if self._found is None:
            raise MeasurementError("nothing was measured in which iterations could be found: no GPU, and no "
                                   "marks (workbench.step())")
        return self._found

    @property
    def iterations(self) -> Any:
        """A Polars frame with a row for each iteration and for what is none (`workbench.periods.segment`);
        the energies add up.
        """
        return self.found.frame

    @property
    def periods(self) -> Periods:
        """The rhythms of the power trace; none, with the reason, where there was no trace."""
        return self.found.periods or Periods(reason="the power was not recorded")

    @property
    def energy_j(self) -> float | None:
        """Energy of all GPUs (J); None where it is not known."""
        return self.measurement.energy_j

    @property
    def time_s(self) -> float:
        """Length of the block (s)."""
        return self.measurement.time_s


class Track(Iterable[T]):
    """An iterable whose iterations are windows, cut out of the trace afterwards; `measurement` is the loop's.

    A window reaches from the moment its item is asked for to the moment the next one is, so that waiting for
    data counts; it is the GPU's time, not that of the host that has queued the work.
    """

    def __init__(self, meter: Meter, iterable: Iterable[T], label: str = "") -> None:
        self._meter, self._iterable, self._label = meter, iterable, label
        self.marks_s: list[float] = []
        self._whole: TrainingWindow | None = None
        self._measurement: Measurement | None = None
        self._found: SegmentedIterations | None = None
        self._measuring = threading.Lock()
        self._iterations: Any = None

    def __len__(self) -> int:
        return len(self._iterable)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[T]:
        self._measurement = self._iterations = None
        self._whole = whole = TrainingWindow(self._meter, self._label)
        self.marks_s = [whole.opened.start_s] if whole.opened is not None else []
        marks.loop(self.marks_s)  # the windows around this loop learn its iterations too
        begun = False
        try:
            for item in self._iterable:
                begun, before = True, work.calls
                yield item
                if before == work.calls and (counts := work.of_batch(item)):
                    marks.work(counts)
                self._mark(whole.now_s())
                begun = False
        finally:
            whole.close()
            if begun and whole.closed is not None:  # left by a break or an error: that iteration ran too
                self._mark(whole.closed.end_s)
            whole.keep_later("loop", lambda: (self.measurement, self._found))

    def _mark(self, at_s: float | None) -> None:
        if at_s is not None and self.marks_s:
            self.marks_s.append(at_s)

    def _repr_html_(self) -> str | None:
        if self._whole is None or not self._whole.ended:
            return None
        return page(self.measurement) + _html.facts("", {"iterations": self.iterations})

    @property
    def measurement(self) -> Measurement:
        """The whole loop's. Raises MeasurementError while it has not ended."""
        if self._whole is None or not self._whole.ended:
            raise MeasurementError("the loop has not ended; its measurement is there when it has")
        with self._measuring:
            if self._measurement is None:
                self._measurement, self._found = self._whole.measure()
            return self._measurement

    @property
    def iterations(self) -> Any:
        """A Polars frame: iteration, start_s (from the loop's start), time_s, energy_j,
        energy_uncertainty_j (sum of GPUs).
        """
        if self._iterations is None:
            require_polars()
            import polars as pl

            _ = self.measurement  # which waits until the last edge is known
            assert self._whole is not None
            at_s = np.array(self.marks_s)
            parts = self._whole.attempt(lambda: self._meter.energies(self.marks_s)) if len(at_s) > 1 else None
            count = max(len(at_s) - 1, 0)
            known = np.zeros(count, bool) if parts is None else parts.known
            energy_j, half_j = parts or (np.zeros(count), np.zeros(count))
            self._iterations = pl.DataFrame({
                "iteration": np.arange(count), "start_s": at_s[:-1] - at_s[:1], "time_s": np.diff(at_s),
                "energy_j": np.where(known, energy_j, np.nan),
                "energy_uncertainty_j": np.where(known, half_j, np.nan),
            }).with_columns(pl.col("energy_j", "energy_uncertainty_j").fill_nan(None))
        return self._iterations
