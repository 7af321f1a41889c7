"""One process's GPUs, recorder, meter and store, made when first needed; magics and scripts share them."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import _html
from ..device import driver, selection
from ..device.discovery import Gpus, devices, why_no_gpu
from ..device.gpu import OpenGpu
from ..device.lease import Lease, owes, restore_all, warn
from ..device.restore import not_default, recover
from ..errors import (
    DeviceError,
    MeasurementError,
    NoDriver,
    SimulationError,
    StoreError,
    UnknownGpu,
    UsageError,
    WorkbenchError,
    checked,
    describe_error,
    shown,
)
from ..logbook import keeping
from ..records import Measurement, Setting, Window
from .meter import Meter
from .recorder import Recorder

if TYPE_CHECKING:
    from ..logbook.store import Store
    from ..periods.segment import SegmentedIterations


class Session:
    """What one process measures with: `gpus` as `devices` takes them; frameworks' queued work waited for
    (`sync`).
    """

    def __init__(self, gpus: Gpus = None, *, sync: bool = True) -> None:
        self.gpus, self.sync = gpus, sync
        self._meter: Meter | None = None
        self._lock = threading.RLock()
        self._by_rank, self._rank_note = True, ""  # until somebody asks for another GPU
        self._leases: dict[str, Lease] = {}  # by UUID, of the limits that this session has set
        self.messages: list[str] = []

    @property
    def meter(self) -> Meter:
        """The meter to open windows with, made on first use (half a second where there is a GPU), and again
        where its sampling process has died. Windows that are open belong to the meter that opened them.
        """
        with self._lock:
            recorder = self._meter.recorder if self._meter else None
            if self._meter is None or (recorder is not None and not recorder.running):
                self._meter = self._make()
            return self._meter

    @property
    def devices(self) -> tuple[OpenGpu, ...]:
        return (self._meter or self.meter).devices  # type: ignore[return-value]

    @property
    def open_devices(self) -> dict[str, OpenGpu]:
        """The GPUs that it has open, by UUID; none before its meter is made."""
        return {device.uuid: device for device in self.devices} if self._meter else {}

    @property
    def recorder(self) -> Recorder | None:
        return (self._meter or self.meter).recorder

    def wake(self) -> None:
        """Wake a resting sampler to full pace."""
        if self._meter is not None and self._meter.recorder is not None:
            self._meter.recorder.wake()

    def meter_or_clock(self, gpus: Gpus = None) -> Meter:
        """The meter, of the GPUs that are named; one that measures time alone and gives the reason, where it
        cannot be made: a training must not end of that.

        Raises:
            UsageError: a name that is none.
        """
        try:
            return self.meter_of(gpus)
        except Exception as error:
            if isinstance(error, UsageError) or (gpus is not None and isinstance(error, UnknownGpu)):
                raise
            return Meter((), sync=self.sync, why=describe_error(error))

    def uuids(self, gpus: Gpus) -> tuple[str, ...] | None:
        """UUIDs of the GPUs that are named; None where none is named, which means all of them.

        Raises:
            UsageError: this session does not measure one of them.
            NoDriver, UnknownGpu: there is no such GPU.
        """
        if gpus is None:
            return None
        found = tuple(device.uuid for device in devices(gpus))
        others = set(found) - {device.uuid for device in self.devices}
        if not self.devices or (others and self._by_rank and selection.local_rank(os.environ) is not None):
            self._by_rank = False  # or made before a simulated GPU was named
            self.close()
        if outside := set(found) - {device.uuid for device in self.devices}:
            what = f"GPU {min(outside)} is not one that this process measures"
            raise UsageError(f"{what}; {driver.current().VISIBLE} hides it")
        return found

    def meter_of(self, gpus: Gpus) -> Meter:
        """A meter of the GPUs that are named, by this session's recorder. Raises as `uuids`."""
        uuids, meter = self.uuids(gpus), self.meter
        if uuids is None or len(uuids) == len(meter.devices):
            return meter
        chosen = [device for device in meter.devices if device.uuid in uuids]
        why = "" if chosen else "no GPU is to be measured (gpus=[])"
        return Meter(chosen, meter.recorder if chosen else None, sync=self.sync, why=why)

    def _own(self, found: list[OpenGpu]) -> list[OpenGpu]:
        """The GPU of this rank, where a node's ranks see all of its GPUs; else all."""
        rank = selection.local_rank(os.environ)
        if not self._by_rank or rank is None or len(found) < 2 or rank >= len(found):
            return found
        note = f"rank {rank} of this node measures GPU {rank}; gpus=... measures others too"
        if note != self._rank_note:  # once, though the meter may be made again
            self._rank_note = note
            self.messages.append(note)
        return [found[rank]]

    def _make(self) -> Meter:
        with contextlib.suppress(WorkbenchError, OSError):
            for message in recover():
                self.messages.append(message)
                if not message.endswith("is restored"):  # a script shows warnings only
                    warn(message)
        found = self._own(devices()) if self.gpus is None else devices(self.gpus)
        of_a_job = found and selection.local_rank(os.environ) is not None
        for device in found:
            with contextlib.suppress(DeviceError):
                self.messages += filter(None, [not_default(device)])
        recorder = None
        if found:
            try:
                node = [uuid for uuid, _, _ in driver.current().identities()] if of_a_job else []
                recorder = Recorder(found, node=node, rests=True)
                if not recorder.ready():
                    self.messages.append(recorder.failure() or "the sampling process is slow to start")
                recorder.calibrated()
            except (MeasurementError, OSError) as error:
                self.messages.append(f"{error}; energy comes from the counter alone, with wider error bars")
        return Meter(found, recorder, sync=self.sync, why="" if found else self.why_no_gpu())

    def why_no_gpu(self) -> str:
        """One sentence for a session without GPUs."""
        return why_no_gpu()

    def __repr__(self) -> str:
        return f"Session: {', '.join(each.name for each in self.devices) or self.why_no_gpu()}"

    def _repr_html_(self) -> str:
        shown = [{"gpu": number, "name": each.name, "uuid": each.uuid, **asdict(each.setting()),
                  "default_power_limit_w": each.limits.default_power_limit_w}
                 for number, each in enumerate(self.devices)]
        why = self.why_no_gpu() if not shown else ""
        simulated = any(each.simulated for each in self.devices)
        return _html.facts("GPUs of this process", {"gpus": shown, "none": why}, simulated=simulated)

    def set_power_limit(self, uuid: str, watts: float) -> float:
        """Put one GPU to a power limit until `restore`; returns the limit read back."""
        device = {each.uuid: each for each in self.devices}.get(uuid)
        if device is None:
            raise NoDriver(f"this session does not measure GPU {uuid}")
        mine = self._leases.setdefault(uuid, Lease([device], who="slider"))
        return mine.apply(Setting(power_limit_w=watts))[0].power_limit_w or watts

    def restore(self) -> list[str]:
        """Undo only the limits of `set_power_limit`; returns sentences about failures."""
        return [sentence for mine in list(self._leases.values()) for sentence in mine.release()]

    def restore_all(self) -> list[str]:
        """Restore what this process, or one that is gone, has changed; returns sentences."""
        self._leases = {}
        return [*restore_all(again=True), *recover(but=owes)]

    def close(self) -> None:
        """Restore, stop sampling, forget the devices. The next use makes them again."""
        keeping.writer().flush(keeping.FLUSH_S)  # which needs the trace
        with self._lock:
            self.messages.clear()  # they are about the devices that it forgets
            self._leases = {}
            restore_all()
            if self._meter is not None and self._meter.recorder is not None:
                self._meter.recorder.stop()
            self._meter = None


def keep(
    measurement: Measurement, window: Window, meter: Meter, store: Store,
    found: SegmentedIterations | None = None, *, kind: str = "cell",
) -> list[str]:
    """Store a measurement and its traces; returns sentences about failures.

    Args:
        measurement, found: What to store, with its iterations.
        window: Where it was measured; the last one of several.
        meter: The one that measured it. A session's may be another by now.
        store: Where to.
        kind: The kind of measurement, as in the log.
    """
    traces, measurement = meter.traces(window), replace(measurement, kind=kind)
    iterations = found.since(window.start_s).frame if found is not None and found.summary.count else None
    try:
        store.save(
            measurement, {gpu.uuid: traces[gpu.uuid] for gpu in measurement.gpus if traces}, iterations
        )
    except StoreError as error:
        return [str(error)]
    return store.messages()


def devices_of(gpus: Gpus = None) -> list[OpenGpu]:
    """The GPUs that are named, all visible ones where none is.

    Where this process's session has one already, it is that object: it knows the clocks it has locked.
    """
    known = _current.open_devices if _current is not None else {}
    return [known.get(device.uuid, device) for device in devices(gpus)]


_current: Session | None = None


def current() -> Session:
    """The session of this process."""
    global _current
    if _current is None:
        _current = Session()
        atexit.register(_current.close)
    return _current


def present() -> Session | None:
    """The session of this process, where there is one already."""
    return _current


@checked
def simulate(
    cards: str | Sequence[str] = (), *, recording: str | Path | None = None, every_s: float | None = None,
    scale: float = 1.0, stepped: bool = False,
) -> Session:
    """Choose simulated GPUs for this process, by name or from a recording; returns its session.

    Args:
        cards: Names of the catalogue ("A100"), separated by commas or as a list; or the recording's file.
            "8xH100" is a node of 8 GPUs that differ from each other as real ones do.
        recording: A file of `workbench doctor --record`, a trace of the log, or a log that `read_log` reads.
            Its answers are replayed at their times, the last ones for ever; settings cannot be changed.
        every_s: How often such a log was written, where its rows have no times.
        scale: How much faster than real time their clock runs.
        stepped: Their clock moves only when a simulated training does, as fast as this machine works it out.

    Raises:
        UnknownGpu: a card that the catalogue does not have.
        SimulationError: the real driver is in use in this process already, or a damaged recording.
        UsageError: no cards and no recording, or a file that cannot be replayed.
    """
    from ..simulation import machine

    if recording is None and isinstance(cards, str) and "." in cards:  # no card has such a name
        recording, cards = cards, ()
    for wrong, why in (
        (recording is not None and cards, f"cards={shown(cards)} and a recording are two machines"),
        (recording is None and every_s is not None, "every_s= is of a recording, and none is given"),
        (stepped and scale != 1, f"scale={scale:g}: a stepped clock has no speed"),
    ):
        if wrong:
            raise UsageError(f"{why}; leave one of them out")
    replayed = None if recording is None else _replayable(Path(recording).expanduser(), every_s)
    if driver.current().real_library_loaded():
        raise SimulationError(
            "this process measures real GPUs already, and one process has the real ones or simulated ones, "
            "never both; restart the kernel and choose the simulated GPUs first"
        )
    session = current()
    session.close()
    try:
        present = machine.attached()
    except SimulationError:  # its file is gone, and the new machine takes its place
        present = None
    made = machine.simulate(cards, recording=replayed, scale=scale, stepped=stepped)
    atexit.unregister(session.close)
    atexit.register(session.close)  # before the machine goes, which was registered after it
    if present is not None and present.state.path != made.state.path:
        present.close()
    return session


def _replayable(path: Path, every_s: float | None) -> list[dict[str, Any]]:
    """What is to be replayed of a recording, or of a log that `read_log` reads."""
    from ..logbook.log_readers import read_log
    from ..simulation import replay

    if ".jsonl" in path.name:
        return replay.load(path)
    log = read_log(path, every_s=every_s)
    if not log:
        raise UsageError(f"{path.name} has energies and no power over time to replay")
    traces = {gpu: trace.to_dict(as_series=False) for gpu, trace in log.items()}
    return replay.of_traces(traces, log.written_by)
