"""The sampler finds when a sensor refreshes and reads once after each refresh, at any load of the GPU."""

from __future__ import annotations

import errno
import math
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from workbench import _shared_memory
from workbench.device.discovery import devices, open_device
from workbench.errors import MeasurementError, SimulationError
from workbench.measurement.edges import EdgeTracker
from workbench.measurement.meter import Meter
from workbench.measurement.recorder import KEEP_S, Recorder
from workbench.measurement.ring import Ring
from workbench.records import Sample
from workbench.simulation import machine as machines
from workbench.simulation.machine import Machine

Simulated = Callable[..., Machine]
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
READING_S = 0.0007
TIMEOUT, UNKNOWN = 10, 999


def edge(number: int, period_s: float, phase_s: float) -> float:
    return phase_s + number * period_s


def watch(tracker: EdgeTracker, at_s: float, rng: random.Random) -> None:
    """See one refresh as a burst of looks does: it lies somewhere between two of them."""
    before_s = at_s - rng.uniform(0, READING_S)
    tracker.add(before_s, before_s + READING_S)


# finding the steps


@pytest.mark.parametrize("period_s", [0.1, 0.02])
@pytest.mark.parametrize("missed", [(), (3, 4, 9), tuple(range(2, 30, 2))])
def test_period_and_phase_are_found_also_where_edges_were_missed(
    period_s: float, missed: tuple[int, ...]
) -> None:
    rng, tracker, phase_s = random.Random(1), EdgeTracker(), 17.3137
    for number in range(40):
        if number not in missed:
            watch(tracker, edge(number, period_s, phase_s), rng)
    assert tracker.locked
    assert tracker.period_s == pytest.approx(period_s, abs=2e-5)
    at_s = edge(45, period_s, phase_s) + 0.4 * period_s
    assert tracker.edge_before(at_s) == pytest.approx(edge(45, period_s, phase_s), abs=0.0005)
    assert tracker.error_s(at_s) < 0.0005


def test_the_error_is_honest() -> None:
    inside = 0
    for seed in range(200):
        rng, tracker = random.Random(seed), EdgeTracker()
        for number in range(rng.randrange(4, 30)):
            watch(tracker, edge(number, 0.1, 0.05), rng)
        true_s = edge(35, 0.1, 0.05)
        inside += abs(tracker.edge_before(true_s + 0.05) - true_s) <= 2 * tracker.error_s(true_s)
    assert inside >= 185  # of 200: 95 % lie within two standard errors


def test_edges_that_were_observed_sharply_count_more_than_vague_ones() -> None:
    rng, tracker = random.Random(4), EdgeTracker()
    for number in range(30):
        half_s = 0.002 if number % 3 else 0.0001
        middle_s = edge(number, 0.1, 5.0) + rng.uniform(-half_s, half_s)
        tracker.add(middle_s - half_s, middle_s + half_s)
    assert abs(tracker.edge_before(8.05) - 8.0) < 2e-4  # by all alike some 0.4 ms
    assert tracker.error_s(8.0) < 2e-4


def test_a_known_step_is_looked_at_ever_more_closely(stepped: Machine) -> None:
    recorder = Recorder([open_device(0)])
    stepped.step(12.0)
    rows = recorder.rows(recorder.devices[0].uuid, 10.0, 12.0)
    recorder.stop()
    assert np.median(rows["tick_error_s"]) < 1.5e-4  # 0.24 ms with looks 0.7 ms apart, all alike


def test_a_prediction_far_ahead_is_less_sure() -> None:
    rng, tracker = random.Random(2), EdgeTracker()
    for number in range(4):
        watch(tracker, edge(number, 0.1, 0.0), rng)
    assert tracker.error_s(60.0) > 10 * tracker.error_s(0.3)


def test_a_drifting_sensor_is_followed() -> None:
    """A quartz that runs 50 ppm slower in each of three half hours, seen once in five seconds."""
    rng, tracker, at_s, worst_s = random.Random(3), EdgeTracker(), 0.0, 0.0
    for half_hour in range(3):
        period_s = 0.1 * (1 + 50e-6 * half_hour)
        for number in range(18000):
            at_s += period_s
            if number % 50 == 0 or at_s < 1.0:
                watch(tracker, at_s, rng)
            if tracker.locked and number > 4000 and number % 50 == 49:
                worst_s = max(worst_s, abs(tracker.edge_before(at_s + 0.05) - at_s))
    assert worst_s < 0.001
    assert tracker.period_s == pytest.approx(0.1 * (1 + 100e-6), rel=5e-6)


def test_three_edges_on_a_line_are_needed() -> None:
    tracker = EdgeTracker()
    for number in range(3):
        assert not tracker.locked
        tracker.add(0.1 * number, 0.1 * number + READING_S)
    assert tracker.locked


def test_a_value_that_changes_at_random_has_no_period() -> None:
    rng, tracker, at_s = random.Random(4), EdgeTracker(), 0.0
    for _ in range(30):
        at_s += rng.expovariate(20.0) + 0.002
        watch(tracker, at_s, rng)
    assert not tracker.locked


def test_edges_that_were_observed_vaguely_are_on_the_line_too() -> None:
    tracker = EdgeTracker()
    for number in range(9):  # every second one between looks that other calls kept apart
        half_s = 0.02 if number % 2 else 0.0004
        tracker.add(0.1 * number - half_s, 0.1 * number + half_s)
    assert tracker.locked
    assert tracker.period_s == pytest.approx(0.1, abs=1e-4)  # 0.2 without them


def test_edges_of_different_bursts_give_no_period() -> None:
    tracker = EdgeTracker()
    for number in (0, 6, 12, 18):
        tracker.add(0.101 * number - 0.0004, 0.101 * number + 0.0004)
    assert not tracker.locked


def test_an_edge_that_cannot_be_counted_on_the_line_begins_another() -> None:
    tracker = EdgeTracker()
    for number in range(4):
        tracker.add(0.1 * number - 0.01, 0.1 * number + 0.01)
    assert tracker.locked
    tracker.add(30.0, 30.02)  # which one, if a step is known to 5 ms?
    assert not tracker.locked
    assert len(tracker.edges) == 1


def test_a_clock_that_stops_before_a_refresh_does_not_lose_the_line(simulated: Simulated) -> None:
    machine = simulated("A100", stepped=True, seed=1)
    with_gpu = [open_device()]
    recorder = Recorder(with_gpu)
    for _ in range(60):
        machine.step(0.073)
    assert recorder.update_s(with_gpu[0].uuid) == pytest.approx(0.101, abs=1e-4)
    rows = recorder.rows(with_gpu[0].uuid, 1.0, 5.0)
    assert np.isfinite(rows["tick_s"]).all()
    recorder.stop()


@pytest.mark.parametrize("card", ["A100,moving", "V100,moving"])
def test_the_update_of_a_counter_that_moves_at_every_reading_is_found(simulated: Simulated, card: str) -> None:
    machine = simulated(card, stepped=True, seed=1)
    with_gpu = [open_device()]
    recorder = Recorder(with_gpu)
    meter = Meter(with_gpu, recorder, sync=False, zones=())
    machine.step(3.0)
    assert recorder.update_s(with_gpu[0].uuid) == pytest.approx(0.0005, rel=0.05)
    machine.state.publish(0, machine.clock(), [], (200.0, 1380, 877, 1.0, 0.5, 0))
    machine.step(1.0)
    window = meter.open("w")
    machine.step(1.2345)
    window = meter.close(window)
    machine.step(0.2)
    (gpu,) = meter.measure(window).gpus
    assert gpu.energy_uncertainty_j == pytest.approx(0.78 * 200.0 * machine.gain(0) * 0.0005, rel=0.1)  # 7.8 J before
    assert gpu.energy_j == pytest.approx(246.9 * machine.gain(0), abs=0.1 * machine.gain(0))
    assert gpu.notes == ()
    recorder.stop()


def test_an_edge_between_two_distant_readings_gives_no_period() -> None:
    rng, tracker = random.Random(5), EdgeTracker()
    for number in range(6):
        watch(tracker, edge(number, 0.1, 0.0), rng)
    known = list(tracker.edges)
    tracker.add(0.6, 0.68)  # the process slept over it
    assert tracker.edges == known


def test_the_memory_of_a_tracker_is_bounded() -> None:
    tracker = EdgeTracker()
    for number in range(1000):
        tracker.add(0.1 * number, 0.1 * number + READING_S)
    assert len(tracker.edges) == EdgeTracker.KEEP


# the ring


def test_a_ring_keeps_the_newest_rows_and_its_size(tmp_path: Path) -> None:
    ring = Ring.create(tmp_path / "ring", ["GPU-1", "GPU-2"], capacity=8)
    size = (tmp_path / "ring").stat().st_size
    for number in range(20):
        ring.append(1, Sample(float(number), *[0.0] * 8, 0), math.nan, math.nan, math.nan)
    assert (ring.head(0), ring.head(1)) == (0, 20)
    assert Ring(tmp_path / "ring").head(1) == 20  # another process sees the same
    assert (tmp_path / "ring").stat().st_size == size


def test_a_file_that_is_no_ring_is_not_taken_for_one(tmp_path: Path) -> None:
    (tmp_path / "ring").write_bytes(bytes(4096))
    with pytest.raises(ValueError, match="no ring"):
        Ring(tmp_path / "ring")


@pytest.mark.parametrize("kept_bytes", [0, 10, 600, 900])
def test_a_ring_that_was_cut_is_not_taken_for_one(tmp_path: Path, kept_bytes: int) -> None:
    path = Ring.create(tmp_path / "ring", ["GPU-1"], capacity=8).path
    path.write_bytes(path.read_bytes()[:kept_bytes])
    with pytest.raises(ValueError, match="no ring"):
        Ring(path)


def test_a_long_reason_is_cut_and_still_readable(tmp_path: Path) -> None:
    ring = Ring.create(tmp_path / "ring", ["GPU-1"], capacity=8)
    ring.write_state(0, 2, 0, math.nan, math.nan, math.nan, "GPU-1", "é" * 200)
    assert ring.state(0)[5].startswith("ééé")


# a GPU, looked at for a while


@pytest.mark.parametrize("card", ["V100", "A100", "H100", "RTX6000"])
def test_every_refresh_of_a_minute_is_observed_once_and_stamped_with_its_time(
    simulated: Simulated, card: str
) -> None:
    machine = simulated(card, stepped=True)
    device = open_device()
    recorder = Recorder([device])
    machine.state.publish(0, machine.clock(), [], (200.0, 1380, 877, 1.0, 0.5, 0))
    machine.step(60.0)
    period_s = machine.state.card(0, "counter_update_s")
    phase_s = machine.state.card(0, "sensor_phase_s") + machine.state.card(0, "counter_lag_s")
    assert recorder.update_s(device.uuid) == pytest.approx(period_s, rel=1e-4)
    rows = recorder.rows(device.uuid, 1.0, 59.9)
    off_s = (rows["tick_s"] - phase_s + period_s / 2) % period_s - period_s / 2
    assert np.abs(off_s).max() < 0.001
    numbers = np.round((rows["tick_s"] - phase_s) / period_s).astype(int)
    assert set(np.diff(numbers)) <= {0, 1}  # none is missed
    assert np.mean(np.diff(numbers) == 0) < 0.02  # and hardly one looked at twice
    assert (rows["time_s"] > rows["tick_s"]).all()
    assert np.allclose(np.diff(rows["energy_j"][np.diff(numbers, prepend=-1) > 0]),
                       machine.gain(0) * 200.0 * period_s, atol=0.0015)


@pytest.mark.parametrize("asked_s", [0.031, 0.07])
def test_at_a_pace_that_was_asked_for_every_refresh_is_still_observed(
    simulated: Simulated, asked_s: float
) -> None:
    machine = simulated("A100", stepped=True)
    device = open_device()
    recorder = Recorder([device])
    machine.step(2.0)
    recorder.ask_interval(device.uuid, asked_s)
    machine.step(30.0)
    rows = recorder.rows(device.uuid, 3.0, 32.0)
    assert np.median(np.diff(rows["time_s"])) == pytest.approx(asked_s, rel=0.05)
    ticks_s = rows["tick_s"][np.isfinite(rows["tick_s"])]
    numbers = np.round(ticks_s / recorder.update_s(device.uuid)).astype(int)
    assert set(np.diff(numbers)) <= {0, 1}
    recorder.ask_interval(device.uuid, None)
    machine.step(10.0)
    assert np.median(np.diff(recorder.rows(device.uuid, 33.0, 42.0)["time_s"])) == pytest.approx(
        0.101, rel=0.01
    )


def test_a_pace_slower_than_the_sensor_is_not_obeyed(simulated: Simulated) -> None:
    """Energy at the edges of windows needs a look after every refresh."""
    machine = simulated("A100", stepped=True)
    device = open_device()
    recorder = Recorder([device])
    recorder.ask_interval(device.uuid, 0.5)
    machine.step(20.0)
    assert np.median(np.diff(recorder.rows(device.uuid, 3.0, 19.0)["time_s"])) == pytest.approx(
        0.101, rel=0.01
    )


def test_two_gpus_are_followed_each_at_its_own_pace(simulated: Simulated) -> None:
    machine = simulated("A100,V100", stepped=True)
    found = devices()
    recorder = Recorder(found)
    machine.step(30.0)
    for gpu, device in enumerate(found):
        period_s = machine.state.card(gpu, "counter_update_s")
        assert recorder.update_s(device.uuid) == pytest.approx(period_s, rel=1e-3)
        numbers = np.round((recorder.rows(device.uuid, 1.0, 29.9)["tick_s"]) / period_s).astype(int)
        assert set(np.diff(numbers)) <= {0, 1}


def test_a_lost_gpu_is_reported_and_sampled_again_when_it_is_back(stepped: Machine) -> None:
    device = open_device()
    recorder = Recorder([device])
    stepped.step(3.0)
    assert recorder.error(device.uuid) == ""
    stepped.lose(0)
    lost_s = stepped.clock()
    stepped.step(5.0)
    assert "is lost" in recorder.error(device.uuid)
    assert not len(recorder.rows(device.uuid, lost_s, stepped.clock()))
    stepped.lose(0, 0)
    back_s = stepped.clock()
    stepped.step(3.0)
    assert recorder.error(device.uuid) == ""
    rows = recorder.rows(device.uuid, back_s, stepped.clock())
    assert rows["time_s"][0] < back_s + 1.1  # it is asked for once a second
    ticks_s = rows["tick_s"][1:]  # the first look may have crossed a step
    assert (np.abs((ticks_s + 0.01) % 0.02 - 0.01) < 0.001).all()


def test_a_gpu_lost_from_the_start_is_reported_immediately_and_found_later(stepped: Machine) -> None:
    device = open_device()
    stepped.lose(0)
    recorder = Recorder([device])
    assert recorder.ready(timeout_s=0.5)  # nothing to wait for
    assert "is lost" in recorder.error(device.uuid)
    stepped.lose(0, 0)
    stepped.step(10.0)
    assert recorder.error(device.uuid) == ""
    assert recorder.update_s(device.uuid) == pytest.approx(0.02, rel=1e-3)


@pytest.mark.parametrize("code", [TIMEOUT, UNKNOWN])
def test_a_hiccup_of_the_driver_costs_a_reading_and_nothing_else(stepped: Machine, code: int) -> None:
    device = open_device()
    recorder = Recorder([device])
    stepped.step(2.0)
    stepped.inject("nvmlDeviceGetFieldValues", code, times=3)
    stepped.step(2.0)
    rows = recorder.rows(device.uuid, 1.5, 4.0)
    assert np.isnan(rows["energy_j"]).sum() <= 3
    assert recorder.error(device.uuid) == ""
    assert set(np.diff(np.round(rows["tick_s"] / 0.02).astype(int))) <= {0, 1}


def test_a_sensor_that_repeats_itself_is_found_as_soon_as_it_moves(simulated: Simulated) -> None:
    """A Pascal card that idles at exactly 25 W shows no refresh, and has no counter either."""
    machine = simulated("P100", stepped=True)
    machine.state.set_card(0, "noise", 0.0)
    device = open_device()
    recorder = Recorder([device])
    machine.step(30.0)
    assert not np.isfinite(recorder.rows(device.uuid, 0.0, 30.0)["tick_s"]).any()
    moments = [(0.01, 150.0 + number % 7, 1300, 715, 1.0, 0.5, 0) for number in range(300)]  # a training
    machine.state.publish(0, machine.clock(), moments, (25.0, 544, 715, 0.0, 0.0, 1))
    machine.step(3.0)
    rows = recorder.rows(device.uuid, 32.0, 33.0)
    assert np.isfinite(rows["tick_s"]).mean() > 0.8  # a look that crosses a step belongs to none


def test_memory_stays_bounded_over_a_day(stepped: Machine) -> None:
    device = open_device()
    recorder = Recorder([device])
    stepped.clock.on_step.clear()  # two rows a second instead of fifty, so that the day is short
    ring = Ring(max(_shared_memory.directory().glob(f"workbench-ring-{os.getpid()}-*"), key=os.path.getmtime))
    size = os.path.getsize(ring.path)
    for number in range(2 * 86400):
        ring.append(0, Sample(0.5 * number, *[1.0] * 8, 0), 0.5 * number, 0.5 * number, 1e-5)
        if number % 4000 == 0:
            stepped.clock.show(0.5 * number)
            recorder.drain()
    stepped.clock.show(86400.0)
    rows = recorder.rows(device.uuid, 0.0, 90000.0)
    assert rows["time_s"][-1] == 86399.5
    assert 2 * KEEP_S <= len(rows) <= 2 * KEEP_S + 10000
    assert os.path.getsize(ring.path) == size


# where there is no space


def refuse_to_reserve(monkeypatch: pytest.MonkeyPatch, *full: Path, code: int = errno.ENOSPC) -> None:
    """Let nothing be reserved in these directories."""
    real = os.posix_fallocate

    def reserve(descriptor: int, offset: int, size_bytes: int) -> None:
        if Path(os.readlink(f"/proc/self/fd/{descriptor}")).parent in full:
            raise OSError(code, os.strerror(code))
        real(descriptor, offset, size_bytes)

    monkeypatch.setattr(os, "posix_fallocate", reserve)


@LINUX
def test_a_ring_owns_every_page_it_may_touch(tmp_path: Path) -> None:
    Ring.create(tmp_path / "ring", ["GPU-1"])
    status = (tmp_path / "ring").stat()
    assert status.st_blocks * 512 >= status.st_size


@LINUX
def test_a_ring_that_does_not_fit_is_made_in_the_temporary_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full, other = tmp_path / "full", tmp_path / "other"
    full.mkdir()
    other.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(other))
    refuse_to_reserve(monkeypatch, full)
    assert Ring.create(full / "ring", ["GPU-1"], capacity=8).path == other / "ring"
    assert list(full.iterdir()) == []
    refuse_to_reserve(monkeypatch, full, other)
    with pytest.raises(MeasurementError, match=r"No space left.*TMPDIR"):
        Ring.create(full / "ring-2", ["GPU-1"], capacity=8)
    assert [path.name for path in other.iterdir()] == ["ring"]


@LINUX
def test_where_space_cannot_be_reserved_zeros_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_to_reserve(monkeypatch, tmp_path, code=errno.EOPNOTSUPP)
    ring = Ring.create(tmp_path / "ring", ["GPU-1", "GPU-2"])
    status = ring.path.stat()
    assert status.st_blocks * 512 >= status.st_size
    assert (ring.count, ring.capacity, ring.head(1)) == (2, 16384, 0)


@LINUX
def test_a_simulated_machine_that_does_not_fit_is_made_in_the_temporary_directory(
    simulated: Simulated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    refuse_to_reserve(monkeypatch, _shared_memory.directory())
    made = simulated("V100")
    assert made.state.path.parent == tmp_path
    assert [device.name for device in devices()] == ["Tesla V100-PCIE-32GB (simulated)"]
    refuse_to_reserve(monkeypatch, _shared_memory.directory(), tmp_path)
    with pytest.raises(SimulationError, match=r"\d+ KB"):
        machines.simulate("V100,A100")


FULL_SHM = """
import contextlib, os, time
import workbench
workbench.simulate("V100,V100,V100,V100")
with open("/dev/shm/others", "wb", buffering=0) as others, contextlib.suppress(OSError):
    while True:
        others.write(bytes(4096))
os.truncate("/dev/shm/others", os.path.getsize("/dev/shm/others") - {pages} * 4096)
with workbench.measure("x") as result:
    time.sleep(0.1)
print("measured", result.energy_j >= 0)
"""


@LINUX
@pytest.mark.parametrize("pages", [1, *(pytest.param(each, marks=pytest.mark.slow) for each in (0, 2, 3))])
def test_a_full_shared_memory_ends_no_process(pages: int, tmp_path: Path) -> None:
    """Before every page was reserved, 1 to 3 free pages ended the process with SIGBUS."""
    inside = [
        "unshare", "--user", "--map-root-user", "--mount", "sh", "-c",
        'mount -t tmpfs -o size=24m tmpfs /dev/shm && exec "$@"', "-",
    ]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*inside, "true"], capture_output=True).returncode != 0
    ):
        pytest.skip("no file system may be mounted here")
    done = subprocess.run(
        [*inside, sys.executable, "-c", FULL_SHM.format(pages=pages)], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "measured True\n"), done.stderr
