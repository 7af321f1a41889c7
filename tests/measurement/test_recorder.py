"""The sampling process sees everything while it is wanted, and leaves nothing when it is not."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from workbench import _shared_memory
from workbench._processes import runs as alive
from workbench.device.discovery import devices, open_device
from workbench.errors import MeasurementError
from workbench.measurement import recorder as recorders
from workbench.measurement.recorder import KEEP_S, Recorder
from workbench.measurement.ring import Ring
from workbench.records import Sample
from workbench.samples import ROWS
from workbench.simulation.machine import Machine
from workbench.trace import SCHEMA

Simulated = Callable[..., Machine]
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def rings_of(pid: int) -> list[Path]:
    return list(_shared_memory.directory().glob(f"workbench-ring-{pid}-*"))


def wait_until(true: Callable[[], bool], timeout_s: float = 240.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if true():
            return True
        time.sleep(0.02)
    return true()


def test_a_call_that_keeps_the_interpreter_does_not_blind_the_recorder(simulated: Simulated) -> None:
    machine = simulated("A100")
    before, device = set(rings_of(os.getpid())), open_device()
    recorder = Recorder([device])
    try:
        assert recorder.ready(60.0)
        assert recorder.calibrated(60.0)
        assert wait_until(lambda: recorder.update_s(device.uuid) == pytest.approx(0.101, rel=0.01))
        period_s = recorder.update_s(device.uuid)
        begin_s = machine.clock()
        sum(range(60_000_000))  # one C call, during which no thread of this process runs
        end_s = machine.clock()
        time.sleep(0.15)
        times = recorder.rows(device.uuid, begin_s - 0.2, end_s + 0.15)["time_s"]
        assert end_s - begin_s > 5 * period_s
        # The scheduler of a busy machine may keep the sampling process waiting now and then, the call never does.
        assert len(times) >= (end_s - begin_s) / period_s / 2
        assert np.median(np.diff(times)) < 2 * period_s
        assert np.diff(times).max() < max(3 * period_s, (end_s - begin_s) / 2)
    finally:
        recorder.stop()
    assert set(rings_of(os.getpid())) <= before


@LINUX
def test_the_process_is_small(simulated: Simulated) -> None:
    simulated("A100,V100,H100,P100")
    recorder = Recorder(devices())
    try:
        assert recorder.calibrated(60.0)
        status = Path(f"/proc/{recorder.pid}/status").read_text()
        kilobytes = int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])
        assert kilobytes < 30_000
    finally:
        recorder.stop()


PARENT = """
import os, signal, sys, time
from workbench.device.discovery import devices
from workbench.measurement.recorder import Recorder
signal.signal(signal.SIGINT, signal.SIG_IGN)
recorder = Recorder(devices())
assert recorder.ready(60.0)
if "fork" in sys.argv and os.fork() == 0:
    time.sleep(60)
print(recorder.pid, flush=True)
sys.stdin.readline()
rows = lambda: len(recorder.rows(recorder.devices[0].uuid, 0.0, 1e9))
before, until_s = rows(), time.monotonic() + 60
while rows() <= before + 5 and time.monotonic() < until_s:
    time.sleep(0.01)
print(rows() - before, recorder.running, flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def parent(simulated: Simulated):  # type: ignore[no-untyped-def]
    """Start a process that records; gives it and the pid of its sampling process."""
    simulated("V100")
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> tuple[subprocess.Popen[str], int]:
        process = subprocess.Popen([sys.executable, "-c", PARENT, *arguments], stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, text=True, start_new_session=True)
        started.append(process)
        assert process.stdout is not None
        return process, int(process.stdout.readline())

    yield start
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.mark.parametrize("arguments", [(), ("fork",)], ids=["alone", "with a forked child that lives on"])
def test_the_sampling_ends_when_its_parent_is_killed(parent, arguments: tuple[str, ...]) -> None:  # type: ignore[no-untyped-def]
    process, sampler = parent(*arguments)
    assert alive(sampler)
    assert rings_of(process.pid)
    os.kill(process.pid, signal.SIGKILL)
    assert wait_until(lambda: not alive(sampler))
    assert wait_until(lambda: not rings_of(process.pid))


def test_the_interrupt_that_stops_a_cell_does_not_stop_the_sampling(parent) -> None:  # type: ignore[no-untyped-def]
    process, sampler = parent()
    os.killpg(process.pid, signal.SIGINT)
    process.stdin.write("\n")
    process.stdin.flush()
    rows, running = process.stdout.readline().split()
    assert int(rows) > 5  # those that came after the interrupt
    assert running == "True"
    assert alive(sampler)
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.wait(timeout=240) == 0
    assert not alive(sampler)
    assert not rings_of(process.pid)


def test_a_sampling_process_that_dies_is_reported(simulated: Simulated) -> None:
    simulated("V100")
    device = open_device()
    recorder = Recorder([device])
    try:
        assert recorder.ready(60.0)
        assert (recorder.failure(), recorder.error(device.uuid)) == ("", "")
        os.kill(recorder.pid or 0, signal.SIGKILL)
        assert wait_until(lambda: not recorder.running)
        assert "exit code -9" in recorder.failure()
        assert recorder.error(device.uuid) == recorder.failure()
        assert len(recorder.rows(device.uuid, 0.0, 1e9)) > 0  # what was seen before is still there
    finally:
        recorder.stop()


def test_a_sampling_process_that_was_killed_is_started_again_for_an_open_window(
    simulated: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorders, "AGAIN_AFTER_S", 0.0)
    simulated("V100")
    device = open_device()
    recorder = Recorder([device], rests=True)
    try:
        assert recorder.ready(60.0)
        window = recorder.hold(recorder.clock())
        first = recorder.pid or 0
        os.kill(first, signal.SIGKILL)
        assert wait_until(lambda: recorder.running and recorder.pid not in (None, 0, first), 60.0)
        assert recorder.ready(60.0)
        assert recorder.failure() == ""
        del window
    finally:
        recorder.stop()


def test_recorded_rows_can_be_read_after_the_stop(simulated: Simulated) -> None:
    simulated("V100")
    device = open_device()
    recorder = Recorder([device])
    assert recorder.ready(60.0)
    recorder.stop()
    recorder.stop()
    assert not recorder.running
    assert recorder.failure() == ""
    assert len(recorder.rows(device.uuid, 0.0, 1e9)) > 0


def test_an_unreferenced_recorder_ends_its_process(simulated: Simulated) -> None:
    simulated("V100")
    others = set(rings_of(os.getpid()))  # of tests before this one
    recorder = Recorder([open_device()])
    pid = recorder.pid or 0
    assert alive(pid)
    del recorder
    gc.collect()
    assert not alive(pid)
    assert set(rings_of(os.getpid())) <= others


def test_nothing_to_record_is_an_error() -> None:
    with pytest.raises(MeasurementError):
        Recorder([])


def test_a_process_that_cannot_be_started_is_an_error_and_leaves_nothing(
    simulated: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulated("V100")
    monkeypatch.setattr(sys, "executable", "no-such-python")
    others = set(rings_of(os.getpid()))  # of tests before this one
    with pytest.raises(MeasurementError, match="no-such-python"):
        Recorder([open_device()])
    assert set(rings_of(os.getpid())) <= others


# rows, on a stepped clock


def fill(ring: Ring, machine: Machine, from_s: int, to_s: int) -> None:
    """One row per second, written past the sampler."""
    for at_s in range(from_s, to_s):
        ring.append(0, Sample(float(at_s), at_s * 26.0, *[26.0] * 7, 0), float(at_s), float(at_s), 1e-5)
    machine.clock.show(float(to_s))


@pytest.fixture
def recorder(stepped: Machine) -> Recorder:
    made = Recorder([open_device()])
    stepped.clock.on_step.clear()
    return made


@pytest.fixture
def ring(recorder: Recorder) -> Ring:
    return Ring(max(rings_of(os.getpid()), key=lambda path: path.stat().st_mtime_ns))


def test_rows_between_two_times_include_both_ends(recorder: Recorder, ring: Ring, stepped: Machine) -> None:
    uuid = recorder.devices[0].uuid
    fill(ring, stepped, 10, 50)
    assert recorder.rows(uuid, 20.0, 25.0)["time_s"].tolist() == [20, 21, 22, 23, 24, 25]
    assert recorder.rows(uuid, 20.5, 21.5)["time_s"].tolist() == [21]
    assert recorder.rows(uuid, 20.1, 20.9)["time_s"].tolist() == []
    assert len(recorder.rows(uuid, 10.0, 1e9)) == 40
    assert recorder.rows(uuid, 60.0, 70.0).dtype == ROWS
    assert recorder.latest(uuid)["time_s"] == 49


def test_a_trace_is_a_frame_in_which_missing_is_null(recorder: Recorder, ring: Ring, stepped: Machine) -> None:
    uuid = recorder.devices[0].uuid
    ring.append(0, Sample(5.0, float("nan"), 26.0, *[float("nan")] * 6, 4), float("nan"), float("nan"), 0.0)
    trace = recorder.trace(uuid, 4.0, 10.0)
    assert trace.schema == SCHEMA
    assert trace.select("time_s", "tick_s", "energy_j", "power_w", "throttle").rows() == [
        (5.0, None, None, 26.0, 4)
    ]
    assert recorder.trace(uuid, 100.0, 110.0).equals(pl.DataFrame(schema=SCHEMA))


def test_a_ring_that_ran_over_gives_the_newest_rows(recorder: Recorder, ring: Ring, stepped: Machine) -> None:
    uuid = recorder.devices[0].uuid
    fill(ring, stepped, 0, 20_000)  # 16384 fit
    times = recorder.rows(uuid, 0.0, 1e9)["time_s"]
    assert len(times) == 16384 - 64
    assert times[-1] == 19_999
    assert (np.diff(times) == 1).all()


def test_only_the_last_half_hour_is_kept_unless_somebody_holds_it(
    recorder: Recorder, ring: Ring, stepped: Machine
) -> None:
    uuid = recorder.devices[0].uuid
    hold = recorder.hold(1000.0)

    def first_s() -> float:
        return float(recorder.rows(uuid, 0.0, 1e9)["time_s"][0])

    for from_s in range(0, 30_000, 5000):
        fill(ring, stepped, from_s, from_s + 5000)
        recorder.drain()
    assert first_s() <= 1000.0
    assert len(recorder.rows(uuid, 1000.0, 30_000.0)) == 29_000
    del hold
    gc.collect()
    fill(ring, stepped, 30_000, 35_000)
    assert 35_000 - KEEP_S - 10_000 < first_s() <= 35_000 - KEEP_S


@LINUX
def test_a_stopped_recorder_maps_no_file_and_still_returns_its_rows(simulated: Simulated) -> None:
    """A live view keeps its recorder: each new choice of GPUs left a deleted file mapped."""
    simulated("V100", scale=4.0)
    device = open_device()
    before = set(rings_of(os.getpid()))  # an earlier test may have left others to the garbage collector
    kept = [Recorder([device]) for _ in range(3)]
    rings = {path.name for path in set(rings_of(os.getpid())) - before}
    assert len(rings) == 3
    observed = []
    for recorder in kept:
        assert recorder.ready(60.0)
        recorder.stop()
        observed.append(len(recorder.rows(device.uuid, 0.0, 1e9)))
    assert min(observed) > 0
    assert all(recorder.latest(device.uuid) is not None for recorder in kept)
    assert [name for name in rings if name in Path("/proc/self/maps").read_text()] == []
    open_files = [os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    assert [name for name in open_files if any(ring in name for ring in rings)] == []


def test_rings_of_killed_kernels_are_removed_by_the_next_recorder(
    simulated: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(_shared_memory, "directory", lambda: tmp_path)
    monkeypatch.setattr(_shared_memory, "FRESH_S", -1.0)
    simulated("A100", stepped=True)
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True)
    left = _shared_memory.directory() / f"workbench-ring-{int(gone.stdout)}-left"
    left.touch()
    recorder = Recorder([open_device()])
    assert not left.exists()
    (ring,) = rings_of(os.getpid())
    assert ring.stat().st_mode & 0o777 == 0o600
    recorder.stop()
