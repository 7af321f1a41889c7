"""Windows are opened, closed and measured: the energy of what ran between two moments, and how sure that is.

Opening and closing read each GPU's energy counter and nothing else. What the sampling process saw in between gives the rest when
the window is measured: the energy of the pieces of a counter step at both edges (`estimate`), peaks, clocks, throttling.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
import uuid as uuid_module
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from . import estimate
from .device import rapl
from .device.nvml import throttle_names
from .device.protocol import Device
from .errors import DeviceError, MeasurementError, UsageError
from .recorder import Hold, Recorder
from .records import Edge, GpuMeasurement, Measurement, Process, Setting, Window
from .synchronise import synchronise

T = TypeVar("T")
NAN = math.nan
BEFORE_S = 3.0  # of the trace before a window that its first edge is judged by


class Meter:
    """Measures windows on one or more GPUs. Windows nest, overlap and may be opened in any thread.

    Args:
        devices: GPUs to measure; may be empty, then windows have a time and no energy.
        recorder: What watches the same devices; None measures by the counter alone, with wider error bars.
        sync: Wait for queued GPU work of torch, JAX and CuPy at both edges.
        zones: RAPL counters to read as well.
    """

    def __init__(
        self,
        devices: Sequence[Device],
        recorder: Recorder | None = None,
        *,
        sync: bool = True,
        zones: tuple[rapl.Zone, ...] | None = None,
    ) -> None:
        self.devices = tuple(devices)
        self.recorder = recorder
        self.sync = sync
        self.zones = rapl.zones() if zones is None else zones
        self._counted = tuple(device.can("energy") for device in self.devices)
        self._clock = self.devices[0].clock if self.devices else time.monotonic
        self._own_pids = {os.getpid()}
        self._starts: dict[int, float] = {}  # of windows that are not measured yet, so that their traces are kept
        if recorder is not None:
            self._hold = recorder.hold(self._oldest)

    def open(self, label: str = "", *, sync: bool | None = None) -> Window:
        """Start a window now."""
        if self.sync if sync is None else sync:
            synchronise()
        host = rapl.read(self.zones) if self.zones else {}
        edges, notes = self._edges()
        window = Window(label, self._clock(), edges, host_opened=host, notes=notes)
        if self.recorder is not None:
            if len(self._starts) >= 256:  # windows that were never measured must not keep traces for ever
                self._starts.pop(next(iter(self._starts)), None)
            self._starts[id(window)] = window.start_s
        return window

    def close(self, window: Window, *, sync: bool | None = None) -> Window:
        """End a window now; returns it closed. Closing twice gives two windows with one start."""
        if self.sync if sync is None else sync:
            synchronise()
        edges, notes = self._edges()
        end_s = self._clock()
        host = rapl.read(self.zones) if self.zones else {}
        closed = Window(window.label, window.start_s, window.opened, end_s, edges, window.host_opened, host,
                        window.notes + notes)  # fmt: skip
        if self.recorder is not None:
            start_s = self._starts.pop(id(window), None)
            if start_s is not None:
                self._starts[id(closed)] = start_s
        return closed

    def _oldest(self) -> float:
        return min(list(self._starts.values()), default=math.inf)

    def _edges(self) -> tuple[tuple[Edge, ...], tuple[str, ...]]:
        edges: list[Edge] = []
        notes: tuple[str, ...] = ()
        at_s = self._clock()
        for device, counted in zip(self.devices, self._counted, strict=True):
            value = NAN
            if counted:
                try:
                    value = device.energy_j()
                except DeviceError as error:  # the window goes on: what can be had is still measured
                    notes = (*notes, str(error))
            edges.append(Edge(at_s, value))
        return tuple(edges), notes

    def settle(self, window: Window, *, timeout_s: float = 0.5) -> None:
        """Wait until the sensors have refreshed once after the window's end, by which its last edge becomes known."""
        if self.recorder is None or window.end_s is None or getattr(self._clock, "stepped", False):
            return
        deadline = time.monotonic() + timeout_s
        for device in self.devices:
            while time.monotonic() < deadline and not self.recorder.error(device.uuid):
                row = self.recorder.latest(device.uuid)
                if row is not None and (
                    row["tick_s"] >= window.end_s or (np.isnan(row["tick_s"]) and row["time_s"] > window.end_s)
                ):
                    break
                time.sleep(0.004)

    def measure(self, window: Window, *, settle: bool = True, outcome: str = "ok") -> Measurement:
        """What a closed window cost.

        Args:
            window: As `close` returned it.
            settle: Wait up to one refresh of the sensors (about 0.1 s) to know the last edge; without, the error is larger.
            outcome: How what ran in it ended: "ok", "error" or "interrupted".

        Raises:
            UsageError: the window is still open.
        """
        if window.end_s is None:
            raise UsageError(f"window {window.label!r} is still open; close it before it is measured")
        if settle:
            self.settle(window)
        gpus = tuple(self._gpu(number, window) for number in range(len(self.devices)))
        self._starts.pop(id(window), None)
        unix_s = getattr(self._clock, "unix_s", None)
        started = unix_s(window.start_s) if unix_s else time.time() - (time.monotonic() - window.start_s)
        return Measurement(
            id=uuid_module.uuid4().hex[:12],
            label=window.label,
            started_unix_s=started,
            time_s=window.end_s - window.start_s,
            gpus=gpus,
            cpu_energy_j=rapl.used_j(self.zones, window.host_opened, window.host_closed, "cpu"),
            dram_energy_j=rapl.used_j(self.zones, window.host_opened, window.host_closed, "dram"),
            outcome=outcome,
            notes=window.notes,
        )

    def _gpu(self, number: int, window: Window) -> GpuMeasurement:
        device, counted = self.devices[number], self._counted[number]
        assert window.end_s is not None
        rows = _no_rows()
        notes: list[str] = [note for note in (getattr(device, "note", ""),) if note]
        if self.recorder is not None:
            rows = self.recorder.rows(device.uuid, window.start_s - BEFORE_S, window.end_s + 1.0)
            if error := self.recorder.error(device.uuid):
                notes.append(error)
        inside = rows[(rows["time_s"] >= window.start_s) & (rows["time_s"] <= window.end_s)]
        energy_j, uncertainty_j, source = self._energy(device, number, window, rows, counted, notes)
        update_s = self.recorder.update_s(device.uuid) if self.recorder is not None else None
        others = tuple(process for process in _processes(device) if process.pid not in self._own_pids)
        if others:
            names = ", ".join(f"{process.name} ({process.pid})" for process in others[:3])
            notes.append(f"other processes used this GPU and are in the figure: {names}")
        missing = _gaps(inside, window, update_s)
        if missing:
            notes.append(f"{missing} gaps in sampling; their energy comes from the counter" if counted else
                         f"{missing} gaps in sampling; their energy is interpolated")  # fmt: skip
        bits = int(np.bitwise_or.reduce(inside["throttle"])) if len(inside) else 0
        power = inside["power_w"][np.isfinite(inside["power_w"])]
        duration_s = window.end_s - window.start_s
        return GpuMeasurement(
            name=device.name,
            uuid=device.uuid,
            energy_j=energy_j,
            energy_uncertainty_j=uncertainty_j,
            source=source,
            simulated=device.simulated,
            mean_power_w=energy_j / duration_s if energy_j is not None and duration_s > 0 else None,
            peak_power_w=float(power.max()) if len(power) else None,
            idle_share=_idle_share(inside),
            mean_utilisation=_mean(inside["utilisation"]),
            setting=_setting(device),
            power_limit_w=_mean(inside["power_limit_w"][-1:]),
            sm_clock_mhz=_mean(inside["sm_clock_mhz"]),
            throttle_reasons=throttle_names(bits),
            other_processes=others,
            samples=len(inside),
            gaps=missing,
            notes=tuple(notes),
        )

    def _energy(
        self, device: Device, number: int, window: Window, rows: np.ndarray[Any, Any], counted: bool, notes: list[str]
    ) -> tuple[float | None, float | None, str]:
        assert window.end_s is not None
        opened, closed = window.opened[number], window.closed[number]
        limits = rows["power_limit_w"][np.isfinite(rows["power_limit_w"])]
        most_w = float(limits.max()) if len(limits) else device.limits.max_power_limit_w or 0.0
        steps = as_steps(rows, device.power_window_s, closed if counted else None, most_w)
        if counted:
            difference_j = closed.energy_j - opened.energy_j
            if not math.isfinite(difference_j):
                notes.append("the energy counter could not be read at an edge of the window")
                return None, None, "none"
            if difference_j < 0:
                notes.append(f"the energy counter went back by {-difference_j:.3g} J (was the driver reloaded?)")
                return None, None, "none"
            if steps is None or not _reaches(steps, window):
                return self._by_counter_alone(window, rows, difference_j, number)
            found = estimate.window_energy(steps, window.start_s, window.end_s)
            return max(found.energy_j, 0.0), found.uncertainty_j, "counter"
        if steps is not None and _reaches(steps, window):
            found = estimate.window_energy(steps, window.start_s, window.end_s)
            return max(found.energy_j, 0.0), found.uncertainty_j, "integrated"
        notes.append(
            f"{device.name} has no energy counter and too few power readings fell around this window "
            f"({len(rows)}); use a longer cell or --repeat"
        )
        return None, None, "none"

    def _by_counter_alone(
        self, window: Window, rows: np.ndarray[Any, Any], difference_j: float, number: int
    ) -> tuple[float, float, str]:
        """The plain difference; either edge may be off by up to one update at the highest power around."""
        assert window.end_s is not None
        update_s = 0.1
        if self.recorder is not None:
            update_s = self.recorder.update_s(self.devices[number].uuid) or update_s
        seen = rows["power_w"][np.isfinite(rows["power_w"])]
        mean_w = difference_j / max(window.end_s - window.start_s, update_s)
        power_w = max([mean_w, *seen.tolist()]) or estimate.UNKNOWN_W
        # Two edges, each uniform over one update: the difference has a triangular density, 95 % within 0.78 of it.
        return difference_j, 0.78 * update_s * power_w, "counter"

    # for scripts

    @contextlib.contextmanager
    def window(self, label: str = "", *, settle: bool = True) -> Iterator[Result]:
        """Measure a block: `with meter.window("epoch") as result: ...`, then `result.measurement`."""
        result = Result(self, settle)
        window = self.open(label)
        try:
            yield result
        except KeyboardInterrupt:
            result.close(self.close(window), "interrupted")
            raise
        except BaseException:
            result.close(self.close(window), "error")
            raise
        else:
            result.close(self.close(window), "ok")

    def track(self, iterable: Iterable[T], label: str = "") -> Track[T]:
        """Iterate with a window around every iteration; see `Track`."""
        return Track(self, iterable, label)


class Result:
    """What a measured block leaves behind; the estimate is made when it is first asked for."""

    def __init__(self, meter: Meter, settle: bool) -> None:
        self._meter, self._settle = meter, settle
        self._window: Window | None = None
        self._outcome = "ok"
        self._measurement: Measurement | None = None

    def close(self, window: Window, outcome: str) -> None:
        self._window, self._outcome = window, outcome

    @property
    def measurement(self) -> Measurement:
        """Raises MeasurementError while the block is still running."""
        if self._measurement is None:
            if self._window is None:
                raise MeasurementError("the block is still running; its measurement is there when it has ended")
            self._measurement = self._meter.measure(self._window, settle=self._settle, outcome=self._outcome)
        return self._measurement

    @property
    def energy_j(self) -> float | None:
        return self.measurement.energy_j

    @property
    def time_s(self) -> float:
        return self.measurement.time_s


class Track(Iterable[T]):
    """An iterable whose iterations are windows.

    The window of an iteration reaches from the moment its item is asked for to the moment the next one is, so that waiting
    for data counts. `measurement` is of the whole loop, `iterations` a frame with a row per iteration.
    """

    def __init__(self, meter: Meter, iterable: Iterable[T], label: str = "") -> None:
        self._meter, self._iterable, self._label = meter, iterable, label
        self.marks: list[Window] = []
        self._whole: Window | None = None
        self._hold: Hold | None = None
        self._measurement: Measurement | None = None

    def __len__(self) -> int:
        return len(self._iterable)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[T]:
        self.marks, self._measurement = [], None
        # Iterations are cut out of the whole afterwards: waiting for queued work at each would slow the loop down.
        whole = self._meter.open(self._label)
        recorder = self._meter.recorder
        self._hold = recorder.hold(whole.start_s) if recorder is not None else None  # as long as iterations may be asked for
        last = replace(whole)
        try:
            for item in self._iterable:
                yield item
                last = self._mark(last)
        finally:
            self._whole = self._meter.close(whole)

    def _mark(self, last: Window) -> Window:
        closed = self._meter.close(last, sync=False)
        self.marks.append(closed)
        assert closed.end_s is not None
        return Window(self._label, closed.end_s, closed.closed)

    @property
    def measurement(self) -> Measurement:
        """The whole loop's. Raises MeasurementError while it has not ended."""
        if self._measurement is None:
            if self._whole is None:
                raise MeasurementError("the loop has not ended; its measurement is there when it has")
            self._measurement = self._meter.measure(self._whole)
        return self._measurement

    @property
    def iterations(self) -> Any:
        """A Polars frame: iteration, start_s (from the loop's start), time_s, energy_j, energy_uncertainty_j (sum of GPUs)."""
        import polars as pl

        rows = []
        for number, window in enumerate(self.marks):
            measured = self._meter.measure(window, settle=number == len(self.marks) - 1)
            start_s = window.start_s - self.marks[0].start_s
            rows.append((number, start_s, measured.time_s, measured.energy_j, measured.energy_uncertainty_j))
        schema = {"iteration": pl.Int64, "start_s": pl.Float64, "time_s": pl.Float64, "energy_j": pl.Float64,
                  "energy_uncertainty_j": pl.Float64}  # fmt: skip
        return pl.DataFrame(rows, schema=schema, orient="row")


def repeated(measurements: Sequence[Measurement]) -> Measurement:
    """Several runs of one cell as one: means, and standard deviations over the runs.

    The uncertainty of the mean combines the runs' own with their spread.
    """
    n = len(measurements)
    if n == 1:
        return measurements[0]
    first = measurements[0]
    gpus = []
    for column in zip(*(m.gpus for m in measurements), strict=True):
        energies = [gpu.energy_j for gpu in column]
        bars = [gpu.energy_uncertainty_j for gpu in column]
        if any(value is None for value in energies):
            gpus.append(replace(column[0], energy_j=None, energy_uncertainty_j=None))
            continue
        known = np.array([value for value in energies if value is not None])
        own = math.sqrt(sum(bar**2 for bar in bars if bar is not None)) / n
        spread = 1.96 * float(np.std(known, ddof=1)) / math.sqrt(n)
        mean_w = float(np.mean([gpu.mean_power_w for gpu in column]))
        peaks = [gpu.peak_power_w for gpu in column if gpu.peak_power_w is not None]
        notes = tuple(dict.fromkeys(note for gpu in column for note in gpu.notes))
        reasons = tuple(dict.fromkeys(reason for gpu in column for reason in gpu.throttle_reasons))
        gpus.append(
            replace(column[-1], energy_j=float(known.mean()), energy_uncertainty_j=max(own, spread), mean_power_w=mean_w,
                    peak_power_w=max(peaks, default=None), notes=notes, throttle_reasons=reasons,
                    samples=sum(gpu.samples for gpu in column), gaps=sum(gpu.gaps for gpu in column))
        )  # fmt: skip
    sums = [m.energy_j for m in measurements]
    times = np.array([m.time_s for m in measurements])
    return replace(
        first,
        time_s=float(times.mean()),
        time_sd_s=float(times.std(ddof=1)),
        gpus=tuple(gpus),
        energy_sd_j=float(np.std([s for s in sums if s is not None], ddof=1)) if None not in sums and sums else None,
        cpu_energy_j=_mean_of([m.cpu_energy_j for m in measurements]),
        dram_energy_j=_mean_of([m.dram_energy_j for m in measurements]),
        repeats=n,
        outcome=measurements[-1].outcome,
    )


def as_steps(
    rows: np.ndarray[Any, Any], window_s: float, closing: Edge | None = None, most_w: float = 0.0
) -> estimate.Steps | None:
    """A recorder's rows as one entry per refresh of the sensor; None while its refreshes are not known.

    The moments of the refreshes are put on one line where they lie on one: what is left of their error is then the same at
    both edges of a window and cancels. `closing` is a counter reading at the window's end, which may show a refresh that no
    row has seen yet; `most_w` the most that the GPU may draw.
    """
    rows = rows[np.isfinite(rows["tick_s"])]
    if len(rows) < 3:
        return None
    ticks = rows["tick_s"]
    steps = np.diff(ticks)
    steps = steps[steps > 0.004]
    if not len(steps):
        return None
    period_s = float(np.median(steps))
    numbers, first = np.unique(np.round((ticks - ticks[-1]) / period_s).astype(np.int64), return_index=True)
    tick_s = _on_one_line(numbers, ticks[first], rows["tick_error_s"][first])
    energy_j, power_w = rows["energy_j"][first], rows["power_w"][first].astype(np.float64)
    if closing is not None and math.isfinite(closing.energy_j):
        later = math.floor((closing.time_s - tick_s[-1]) / period_s)
        if later >= 1 and closing.energy_j > energy_j[-1]:
            tick_s = np.append(tick_s, tick_s[-1] + later * period_s)
            energy_j, power_w = np.append(energy_j, closing.energy_j), np.append(power_w, NAN)
    error_s = float(np.median(rows["tick_error_s"]))
    return estimate.Steps(tick_s, energy_j.astype(np.float64), power_w, window_s, period_s, error_s, most_w)


def _on_one_line(numbers: np.ndarray[Any, Any], times: np.ndarray[Any, Any], errors: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Refresh times by a weighted straight line through them, if they keep to it; as they are, if the sensor drifts."""
    if len(times) < 4:
        return times
    weight = 1.0 / np.maximum(errors.astype(np.float64), 1e-6) ** 2
    slope, offset = np.polyfit(numbers, times - times[-1], 1, w=np.sqrt(weight))
    line = times[-1] + offset + slope * numbers
    return line if np.max(np.abs(line - times)) < 4.0 * float(np.max(errors)) + 2e-4 else times


def _reaches(steps: estimate.Steps, window: Window) -> bool:
    """Whether the sensor was followed from before the window to (nearly) its end, without a hole at an edge."""
    assert window.end_s is not None
    slack_s = 2.5 * steps.period_s
    near_start = steps.tick_s[(steps.tick_s <= window.start_s) & (steps.tick_s > window.start_s - slack_s)]
    return len(near_start) > 0 and steps.tick_s[-1] > window.end_s - slack_s


def _gaps(rows: np.ndarray[Any, Any], window: Window, update_s: float | None) -> int:
    if len(rows) < 2:
        return 0
    return int(np.sum(np.diff(rows["time_s"]) > 3.5 * max(update_s or 0.1, 0.1)))


def _idle_share(rows: np.ndarray[Any, Any]) -> float | None:
    busy = rows["utilisation"][np.isfinite(rows["utilisation"])]
    return float(1.0 - np.mean(busy)) if len(busy) else None


def _mean(values: np.ndarray[Any, Any]) -> float | None:
    known = values[np.isfinite(values)]
    return float(np.mean(known)) if len(known) else None


def _mean_of(values: Sequence[float | None]) -> float | None:
    return None if None in values else float(np.mean([value for value in values if value is not None]))


def _processes(device: Device) -> tuple[Process, ...]:
    try:
        return device.processes()
    except DeviceError:
        return ()


def _setting(device: Device) -> Setting:
    try:
        return device.setting()
    except DeviceError:
        return Setting()


def _no_rows() -> np.ndarray[Any, Any]:
    from .recorder import ROWS

    return np.empty(0, ROWS)
