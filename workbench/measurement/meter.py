"""Windows are opened, closed and measured: the energy of what ran between two moments, and how sure that is.

Opening and closing read each GPU's energy counter; what the sampling process saw in between gives the rest
when the window is measured.
"""

from __future__ import annotations

import contextlib
import math
import time
import uuid as uuid_module
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..device import rapl
from ..device.protocol import Device
from ..errors import DeviceError, SimulationError, UsageError
from ..logbook.quantities import format_duration
from ..records import Edge, GpuMeasurement, Measurement, Window, throttle_names
from ..samples import ROWS
from . import marks, process_marks
from .counter_kind import CounterKind
from .energy_estimate import EnergyEstimate, EnergyTimeline, add_estimates, add_parts
from .foreign import ForeignProcesses, foreign_processes
from .recorder import Recorder
from .sampler import STATUS_EVERY_S
from .sensor_updates import EnergyParts
from .setting_segments import by_setting, setting_segments
from .synchronise import synchronise

if TYPE_CHECKING:
    import polars as pl

    from ..periods.segment import SegmentedIterations

NAN = math.nan
BEFORE_S, AFTER_S = 30.0, 1.0  # of the trace around a window that its edges are judged by


class _Running:
    """What a meter keeps of a window as long as the window exists: its samples, and its marks until it is
    closed.
    """

    def __init__(self, start_s: float, notebook: marks.MarkRecorder, recorder: Recorder | None) -> None:
        self.notebook, self.open = notebook, True
        self.hold = recorder.hold(start_s) if recorder is not None else None
        marks.attach(notebook)
        weakref.finalize(self, marks.detach, notebook).atexit = False  # a window that is dropped

    def end(self) -> None:
        """End the marks. Later samples are not needed."""
        marks.detach(self.notebook)
        if self.hold is not None:
            self.hold.awake = False


class Meter:
    """Measures windows on one or more GPUs. Windows nest, overlap and may be opened in any thread.

    Args:
        devices: GPUs to measure; may be empty, then windows have a time and no energy.
        recorder: What watches the same devices; None measures by the counter alone, with wider error bars.
        sync: Wait for queued GPU work of torch, JAX and CuPy at both edges.
        zones: RAPL counters to read as well.
        why: Why there is no GPU to measure, where there is none; trainings are reported with their result.
    """

    def __init__(
        self, devices: Sequence[Device], recorder: Recorder | None = None, *, sync: bool = True,
        zones: tuple[rapl.Zone, ...] | None = None, why: str = "",
    ) -> None:
        self.devices = tuple(devices)
        self.recorder = recorder
        self.sync = sync
        self.why = why
        self.zones = rapl.zones() if zones is None else zones
        self._counted = tuple(device.can("energy") for device in self.devices)
        self._counters = tuple(CounterKind(device, recorder) for device in self.devices)
        self._uuids = tuple(device.uuid for device in self.devices)
        self.clock = self.devices[0].clock if self.devices else time.monotonic
        self._measured: tuple[Window, list[EnergyTimeline]] | None = None  # the latest, until it is stored

    def open(self, label: str = "", *, sync: bool | None = None) -> Window:
        """Start a window now."""
        if self.sync if sync is None else sync:
            synchronise()
        if self.recorder is not None:
            self.recorder.wake()  # before the window's time begins: what rests may have to start again
        with contextlib.suppress(OSError):  # marks of child processes are not seen
            marks.share()
            process_marks.watch(self.clock)
        host = rapl.read(self.zones) if self.zones else {}
        edges, notes = self._edges()
        start_s = self.clock()
        key = _Running(start_s, marks.MarkRecorder(self.clock, self._uuids), self.recorder)
        return Window(encodable(label), start_s, edges, host_opened=host, notes=notes,
                      opened_unix_s=time.time(), key=key)

    def close(self, window: Window, *, sync: bool | None = None, keep_open: bool = False) -> Window:
        """End a window now; returns it closed. Closing twice gives two windows with one start.

        Args:
            window: As `open` returned it.
            sync: Wait for queued GPU work first; as the meter does where None.
            keep_open: The window goes on, and what is returned ends now.
        """
        if self.sync if sync is None else sync:
            synchronise()
        try:
            end_s = self.clock()  # before the counters are read: a slow driver is not the cell's time
        except SimulationError as error:
            return self._lost(window, str(error))
        edges, notes = self._edges()
        host = rapl.read(self.zones) if self.zones else {}
        noted, key = window.marks, window.key
        if isinstance(key, _Running) and key.open:
            noted, key.open = key.notebook.marks(window.start_s, end_s), keep_open
            children = process_marks.of_children(self.clock, window.start_s, end_s)
            noted = process_marks.with_children(noted, children, window.start_s, end_s)
            if not keep_open:
                key.end()
        return Window(window.label, window.start_s, window.opened, end_s, edges, window.host_opened, host,
                      window.notes + notes, noted, window.opened_unix_s, key)

    def _lost(self, window: Window, why: str) -> Window:
        """A window whose simulated machine is gone: it has the time alone, by the civil clock."""
        if isinstance(window.key, _Running):
            window.key.open = False
            window.key.end()
        seconds = time.time() - (window.opened_unix_s or time.time())
        return window._replace(end_s=window.start_s + max(seconds, 0.0), notes=(*window.notes, why))

    def _edges(self) -> tuple[tuple[Edge, ...], tuple[str, ...]]:
        edges: list[Edge] = []
        notes: tuple[str, ...] = ()
        before_s = self.clock()
        for device, counted in zip(self.devices, self._counted, strict=True):
            value = NAN
            if counted:
                try:
                    value = device.energy_j()
                except DeviceError as error:  # the window goes on: what can be had is still measured
                    notes = (*notes, str(error))
            after_s = self.clock()  # each GPU has its own moment: calls of a slow driver add up
            edges.append(Edge((before_s + after_s) / 2, value, after_s - before_s))
            before_s = after_s
        return tuple(edges), notes

    def settle(self, window: Window, *, timeout_s: float = 0.5) -> None:
        """Wait for a refresh of the sensors after the window's end, which makes its last edge known."""
        if self.recorder is None or window.end_s is None or getattr(self.clock, "stepped", False):
            return
        deadline = time.monotonic() + timeout_s
        for device in self.devices:
            while time.monotonic() < deadline and not self.recorder.error(device.uuid):
                row = self.recorder.latest(device.uuid)
                if row is not None and (
                    row["tick_s"] >= window.end_s
                    or (np.isnan(row["tick_s"]) and row["time_s"] > window.end_s)
                ):
                    break
                time.sleep(0.004)

    def measure(self, window: Window, *, settle: bool = True, outcome: str = "ok") -> Measurement:
        """Time and energy of a closed window. Raises UsageError while it is open.

        Args:
            window: As `close` returned it.
            settle: Wait up to one refresh of the sensors (about 0.1 s) to know the last edge better.
            outcome: How what ran in it ended: "ok", "error" or "interrupted".
        """
        if window.end_s is None:
            raise UsageError(f"window {window.label!r} is still open; close it before it is measured")
        if settle and window.closed:
            self.settle(window)
        numbers = range(len(window.closed))
        window_timelines = [self.timeline(number, window.start_s, window.end_s, window) for number in numbers]
        self._measured = (window, window_timelines)
        gpus = tuple(self._gpu(number, window, window_timelines[number]) for number in numbers)
        seconds = window.end_s - window.start_s
        started = time.time() - seconds if window.opened_unix_s is None else window.opened_unix_s
        return Measurement(
            id=uuid_module.uuid4().hex[:12], label=window.label, started_unix_s=started, time_s=seconds,
            gpus=gpus,
            cpu_energy_j=rapl.used_j(self.zones, window.host_opened, window.host_closed, "cpu", seconds),
            dram_energy_j=rapl.used_j(self.zones, window.host_opened, window.host_closed, "dram", seconds),
            outcome=outcome, notes=window.notes + window.marks.notes, work=window.marks.work,
        )

    def _gpu(self, number: int, window: Window, timeline: EnergyTimeline) -> GpuMeasurement:
        device, counted = self.devices[number], self._counted[number]
        assert window.end_s is not None
        rows, update_s = timeline.rows, None
        inside = rows[(rows["time_s"] >= window.start_s) & (rows["time_s"] <= window.end_s)]
        duration_s = window.end_s - window.start_s
        energy = timeline.between(window.start_s, window.end_s)
        notes = [getattr(device, "note", "")]
        if self.recorder is not None:
            notes += [self.recorder.error(device.uuid), self.recorder.slow_calls(device.uuid)]
            update_s = self.recorder.update_s(device.uuid)
        kind, missed_j = self._counters[number], timeline.missed_j(window.start_s, window.end_s)
        if kind.part_time or (energy is not None and 2.0 * missed_j > energy.uncertainty_j):
            notes.append(kind.note())  # else it makes no difference
        notes += _energy_notes(energy, timeline, window.start_s, window.end_s)
        energy_j, uncertainty_j = (energy.energy_j, energy.uncertainty_j) if energy else (None, None)
        by_counter = timeline.counted and energy is not None and energy.source != "power"
        foreign = ForeignProcesses((), 0)
        with contextlib.suppress(DeviceError):
            foreign = foreign_processes(device)
        notes += foreign.notes()
        missing = _gaps(inside, update_s)
        if missing:
            where = "comes from the counter" if counted else "is interpolated"
            notes.append(f"{missing} gaps in sampling; their energy {where}")
        limited = inside[np.isfinite(inside["power_limit_w"])]
        within_s, limits = (window.start_s, window.end_s), (limited["time_s"], limited["power_limit_w"])
        segments = setting_segments(*limits, device.lock_history(), within_s, timeline.energies_j)
        by_time = by_setting(segments)
        setting = by_time[0].setting
        if len(by_time) > 1:
            used = ", ".join(f"{each.setting} for {format_duration(each.time_s)}" for each in by_time[:3])
            notes.append(f"the setting changed inside: {used}{', and others' * (len(by_time) > 3)}")
        # What is asked five times per second and looks back as long tells nothing of a shorter window.
        status = inside if duration_s >= 2 * STATUS_EVERY_S else inside[:0]
        bits = int(np.bitwise_or.reduce(status["throttle"]))
        power = inside["power_w"][~(inside["power_tick_s"] - device.power_window_s < window.start_s)]
        power = power[np.isfinite(power)]
        return GpuMeasurement(
            name=device.name, uuid=device.uuid, energy_j=energy_j, energy_uncertainty_j=uncertainty_j,
            source="counter" if by_counter else "integrated" if energy else "none",
            simulated=device.simulated,
            mean_power_w=energy_j / duration_s if energy_j is not None and duration_s > 0 else None,
            peak_power_w=float(power.max()) if len(power) else None,
            idle_share=_mean(1.0 - status["utilisation"]), mean_utilisation=_mean(status["utilisation"]),
            setting=setting, power_limit_w=setting.power_limit_w, sm_clock_mhz=_mean(status["sm_clock_mhz"]),
            throttle_reasons=throttle_names(bits), other_processes=foreign.named, samples=len(inside),
            gaps=missing, notes=tuple(filter(None, notes)), segments=segments if len(segments) > 1 else (),
        )

    def count(
        self, window: Window, measurement: Measurement, *, detect_periods: bool | None = None
    ) -> SegmentedIterations | None:
        """The iterations of a measured window; see `iterations.count`."""
        from .iterations import count

        return count(window, measurement, self.timelines_of(window), detect_periods=detect_periods)

    def waste(self, window: Window, measurement: Measurement) -> tuple[str, ...]:
        """Sentences on energy of idle GPUs in a measured window; none for a short one.
        """
        from ..logbook.waste import describe_waste, waste_of_run
        from .iterations import CHEAP_S, trace_of

        if measurement.energy_j is None or window.end_s is None or window.end_s - window.start_s < CHEAP_S:
            return ()
        traces = {uuid: trace_of(each, *within(window)) for uuid, each in self.timelines_of(window).items()}
        return tuple(describe_waste(waste_of_run(measurement, traces)[0], measurement))

    def traces(self, window: Window) -> dict[str, pl.DataFrame]:
        """The traces (`trace.SCHEMA`) of a closed window and of half a second around it, by UUID, in seconds
        since its start; taken once, after the window is measured and its iterations are counted.
        """
        from .iterations import trace_of

        known = self.timelines_of(window)
        self._measured = None
        return {uuid: trace_of(each, *within(window), since_s=window.start_s) for uuid, each in known.items()}

    def timelines_of(self, window: Window) -> dict[str, EnergyTimeline]:
        """The GPUs' timelines of a closed window, by UUID; fetched once for the last measured window."""
        if self.recorder is None or not window.closed:
            return {}
        assert window.end_s is not None
        measured = self._measured  # which another thread may replace
        if measured is None or measured[0] is not window:
            numbers = range(len(self.devices))
            timelines = [self.timeline(n, window.start_s, window.end_s, window) for n in numbers]
            self._measured = measured = (window, timelines)
        return {device.uuid: each for device, each in zip(self.devices, measured[1], strict=True)}

    # the energy of stretches of the past

    def timeline(
        self, number: int, start_s: float, end_s: float, window: Window | None = None
    ) -> EnergyTimeline:
        """The energy of one GPU around two moments; with the counter's edges where a window is given.

        Args:
            number: Of the GPU in `devices`.
            start_s: Of the stretch.
            end_s: Of the stretch.
            window: An open or closed window whose edges count.
        """
        device = self.devices[number]
        rows, update_s = np.empty(0, ROWS), None
        if self.recorder is not None:
            rows = self.recorder.rows(device.uuid, start_s - BEFORE_S, end_s + AFTER_S)
            update_s = self.recorder.update_s(device.uuid)
        self._counters[number].learn()
        return EnergyTimeline(
            rows, power_window_s=device.power_window_s, counted=self._counted[number],
            most_w=device.limits.max_power_limit_w or 0.0, update_s=update_s, window=window, number=number,
            part_time=self._counters[number].part_time,
        )

    def energy(self, start_s: float, end_s: float) -> EnergyEstimate | None:
        """The energy of all GPUs from one moment to another; None where it is not known."""
        numbers = range(len(self.devices))
        return add_estimates([self.timeline(n, start_s, end_s).between(start_s, end_s) for n in numbers])

    def energies(self, moments_s: Sequence[float], window: Window | None = None) -> EnergyParts:
        """The energies of all GPUs between moments of the past, each of which may be a change of power; with
        the counter's readings at the edges of `window`, from which to which they reach.
        """
        start_s, end_s = moments_s[0], moments_s[-1]
        timelines = [self.timeline(number, start_s, end_s, window) for number in range(len(self.devices))]
        return add_parts(timelines, moments_s)


def within(window: Window) -> tuple[float, float]:
    """The moments of a closed window."""
    assert window.end_s is not None
    return window.start_s, window.end_s


def encodable(label: str) -> str:
    """A label that can be stored; file names that are no UTF-8 come with code points that no encoding has."""
    text = str(label)
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _energy_notes(
    energy: EnergyEstimate | None, timeline: EnergyTimeline, start_s: float, end_s: float
) -> list[str]:
    """What a reader has to know of how the energy of a window was had, or why it was not."""
    if breaks := [each for each in timeline.breaks if each.from_s < end_s and each.to_s > start_s]:
        worst = max(breaks, key=lambda each: abs(each.rise_j))
        unknown_s = sum(each.to_s - each.from_s for each in breaks)
        allowed = ", which the error allows for" if energy is not None else ""
        return [f"the energy counter {_changed(worst.rise_j)}; the energy of {format_duration(unknown_s)} is "
                f"unknown{allowed}"]
    if energy is not None:
        plain = energy.source == "difference" and not timeline.moving
        why = "the counter updates at the edges of this window were not observed: error up to one update each"
        return [why] * plain
    if timeline.difference_j < 0:
        return [f"the energy counter {_changed(timeline.difference_j)}"]
    what = "its energy counter could not be read" if timeline.counted else "it has no energy counter"
    return [f"{what}, and too few power readings fell around this window ({len(timeline.rows)}); use a "
            "longer cell or --repeat"]


def _changed(rise_j: float) -> str:
    """Describe a change of a counter that no GPU can cause."""
    if rise_j < 0:
        return f"went back by {-rise_j:.3g} J (was the driver reloaded?)"
    return f"rose by {rise_j:.3g} J in one refresh, more than a GPU can draw"


def _gaps(rows: np.ndarray, update_s: float | None) -> int:
    """How often sampling paused for far longer than the sensor's pace."""
    return int(np.sum(np.diff(rows["time_s"]) > 3.5 * max(update_s or 0.1, 0.1))) if len(rows) > 1 else 0


def _mean(values: np.ndarray) -> float | None:
    known = values[np.isfinite(values)]
    return float(np.mean(known)) if len(known) else None
