"""The life of the sampler: at full pace while somebody needs it, seldom after a minute, none after ten; and
few looks where they cost much.
"""

from __future__ import annotations

import itertools
import math
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from workbench.device.discovery import open_device
from workbench.measurement import gpu_table
from workbench.measurement.recorder import Recorder
from workbench.measurement.ring import Ring
from workbench.measurement.sampler import Sampler
from workbench.measurement.session import Session
from workbench.panels import PowerView
from workbench.records import Sample
from workbench.simulation.machine import Machine

Simulated = Callable[..., Machine]


@pytest.fixture
def session(simulated: Simulated) -> Iterator[Session]:
    """Measures a stepped A100, whose counter moves every 101 ms."""
    simulated("A100", stepped=True)
    made = Session(sync=False)
    yield made
    made.close()


def step(session: Session, seconds: float) -> None:
    session.devices[0].clock.sleep(seconds)


def readings(session: Session, from_s: float, to_s: float) -> np.ndarray:
    assert session.recorder is not None
    return session.recorder.rows(session.devices[0].uuid, from_s, to_s)["time_s"]


def test_the_sampler_rests_after_a_minute_and_stops_after_ten(session: Session) -> None:
    recorder = session.meter.recorder
    assert recorder is not None
    begin_s = recorder.clock()
    step(session, 59.0)
    assert np.diff(readings(session, begin_s + 1, begin_s + 59)).max() < 0.15
    assert recorder.resting() == ""
    step(session, 60.0)
    assert recorder.resting() != ""
    assert list(gpu_table.lines(session.devices, recorder))[-1] == recorder.resting()
    assert np.diff(readings(session, begin_s + 62, begin_s + 119)) == pytest.approx(1.0, abs=0.01)
    step(session, 600.0)
    assert readings(session, begin_s + 602, begin_s + 719).tolist() == []
    assert "has stopped" in recorder.resting()
    assert recorder.running
    assert session.meter.recorder is recorder


@pytest.mark.parametrize("idle_s", [100.0, 1000.0])
def test_the_next_window_wakes_it_and_is_measured_as_any_other(session: Session, idle_s: float) -> None:
    machine = session.devices[0].clock
    meter = session.meter
    step(session, idle_s)
    window = meter.open("next")
    step(session, 5.0)
    window = meter.close(window)
    step(session, 0.3)
    measured = meter.measure(window)
    assert machine() > idle_s
    assert np.diff(readings(session, window.start_s + 0.3, window.end_s or 0.0)).max() < 0.15
    (gpu,) = measured.gpus
    assert gpu.notes == ()
    assert gpu.energy_uncertainty_j is not None
    assert gpu.energy_j is not None
    assert gpu.energy_uncertainty_j < 0.05 * gpu.energy_j


def test_an_open_window_keeps_it_awake_and_its_end_begins_the_minute(session: Session) -> None:
    meter = session.meter
    window = meter.open("long")
    step(session, 700.0)
    window = meter.close(window)
    end_s = window.end_s or 0.0
    meter.measure(window)
    step(session, 100.0)
    times_s = readings(session, window.start_s, end_s + 100)
    awake_s = times_s[times_s < end_s + 55]
    assert np.diff(awake_s).max() < 0.15
    assert np.diff(times_s[times_s > end_s + 62]) == pytest.approx(1.0, abs=0.01)


def test_a_watched_view_keeps_it_awake_and_marks_where_it_rested(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = session.meter.recorder
    assert recorder is not None
    view = PowerView(recorder, session.devices, period=False)
    for _ in range(13):
        view.receive({"kind": "ping"})
        view.changes()
        step(session, 10.0)
    assert recorder.resting() == ""
    now_s = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: now_s() + 1000.0)  # the browser is gone, the view is not
    for _ in range(13):
        view.changes()
        step(session, 10.0)
    assert recorder.resting() != ""
    assert view.snapshot()[0]["marks"] == []
    view.receive({"kind": "ping"})
    view.changes()
    assert recorder.resting() == ""
    ((_, text),) = view.snapshot()[0]["marks"]
    assert "2 min" in text


def test_without_a_session_samples_are_needed_until_the_stop(simulated: Simulated) -> None:
    machine = simulated("A100", stepped=True)
    recorder = Recorder([open_device()])
    machine.step(700.0)
    assert recorder.resting() == ""
    assert np.diff(recorder.rows(recorder.devices[0].uuid, 600.0, 699.0)["time_s"]).max() < 0.15
    recorder.stop()


def test_the_process_ends_after_ten_minutes_and_the_next_window_starts_another(simulated: Simulated) -> None:
    simulated("A100", scale=200.0)
    mine = Session(sync=False)
    recorder = mine.meter.recorder
    assert recorder is not None
    first = recorder.pid
    assert first is not None
    ended = os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)  # by itself, 3 s later
    assert ended is not None
    assert ended.si_status == 0
    assert (recorder.failure(), recorder.running) == ("", True)
    window = mine.meter.close(mine.meter.open())
    assert mine.recorder is recorder
    assert recorder.pid != first
    assert recorder.running
    assert mine.meter.measure(window).gpus[0].energy_j is not None
    mine.close()
    assert (recorder.failure(), recorder.running) == ("", False)


# what a look costs


class SlowGpu:
    """A GPU whose counter moves every 100 ms and whose calls take `call_s` of a clock that they move."""

    uuid, name, power_window_s, simulated = "GPU-slow", "slow", 0.1, True

    def __init__(self, call_s: float) -> None:
        self.now_s, self.call_s, self.called_s = 0.0, call_s, [0.0]

    def clock(self) -> float:
        return self.now_s

    def pause(self, seconds: float) -> None:
        self.now_s += seconds

    def can(self, ability: str) -> bool:
        return True

    def sample(self, status: Sample | None = None) -> Sample:
        at_s = self.now_s
        self.called_s.append(at_s)
        self.now_s += self.call_s
        ticks = math.floor(at_s / 0.1)
        return Sample(at_s, 10.0 * ticks, 100.0 + ticks % 7, *[1.0] * 6, 0)


def sampled(gpu: SlowGpu, path: Path, seconds: float) -> Ring:
    """Sample a GPU for some seconds, a window being open."""
    ring = Ring.create(path / f"ring-{gpu.call_s}", [gpu.uuid])
    ring.own([0], shared=False)
    sampler = Sampler([gpu], ring, gpu.clock, pause=gpu.pause)  # type: ignore[list-item, arg-type]
    sampler.start()
    while gpu.now_s < seconds:
        gpu.now_s = max(gpu.now_s, sampler.due_s())
        sampler.tick()
    return ring


@pytest.mark.parametrize(("call_s", "least_s"), [(0.00002, 0.0007), (0.0005, 0.004), (0.002, 0.004), (0.005, 0.01)])
def test_slow_calls_are_made_seldom_and_find_the_steps_all_the_same(
    call_s: float, least_s: float, tmp_path: Path
) -> None:
    gpu = SlowGpu(call_s)
    ring = sampled(gpu, tmp_path, 20.0)
    assert ring.call_s(0) == pytest.approx(call_s)
    state = ring.state(0)
    assert state[2] == pytest.approx(0.1, rel=0.01)  # the period is found
    gaps_s = [after - before - call_s for before, after in itertools.pairwise(gpu.called_s[5:])]
    assert np.median(gaps_s[:20]) >= 0.99 * least_s
    busy = len([at_s for at_s in gpu.called_s if at_s > 5.0]) * call_s / 15.0
    assert busy < 0.2 * call_s / 0.005 + 0.01


def test_in_an_open_window_no_burst_begins(tmp_path: Path) -> None:
    gpu = SlowGpu(0.00002)
    ring = Ring.create(tmp_path / "ring", [gpu.uuid])
    ring.own([0], shared=False)
    sampler = Sampler([gpu], ring, gpu.clock, pause=gpu.pause)  # type: ignore[list-item, arg-type]
    sampler.start()
    while gpu.now_s < 2.0:
        gpu.now_s = max(gpu.now_s, sampler.due_s())
        sampler.tick()
    sampler._all[0].missing = True  # as where a sensor leaves its line
    sampler._all[0].refine_s = gpu.now_s
    gpu.called_s.clear()
    sampler.tick()
    gaps_s = np.diff(gpu.called_s)
    assert len(gaps_s) > 20
    assert np.median(gaps_s) >= 0.004
    assert np.mean(gaps_s < 0.004) < 0.1  # a look that was due meanwhile
    ring.need(0, gpu.now_s)  # the window is over: half a second at full pace finds it quicker
    sampler.attend()
    sampler._all[0].missing, sampler._all[0].refine_s = True, gpu.now_s
    gpu.called_s.clear()
    sampler.tick()
    assert np.median(np.diff(gpu.called_s)) < 0.001


def test_a_driver_that_answers_slowly_is_named(simulated: Simulated) -> None:
    simulated("A100", latency_s=0.012)
    mine = Session(sync=False)
    meter, recorder = mine.meter, mine.recorder
    assert recorder is not None
    assert recorder.calibrated(60.0)
    description = recorder.slow_calls(mine.devices[0].uuid)
    assert " ms" in description
    assert description in [line.strip() for line in gpu_table.lines(mine.devices, recorder)]
    window = meter.close(meter.open())
    assert description in meter.measure(window).gpus[0].notes
    mine.close()


def test_a_slow_driver_does_not_delay_the_first_samples_of_all_gpus(tmp_path: Path) -> None:
    clock = SlowGpu(0.005)

    def gpu(number: int) -> SlowGpu:
        made = SlowGpu(0.005)
        made.uuid = f"GPU-{number}"
        made.sample = clock.sample  # type: ignore[method-assign]
        return made

    gpus = [gpu(number) for number in range(8)]
    ring = Ring.create(tmp_path / "ring", [each.uuid for each in gpus])
    ring.own(range(6), shared=False)
    sampler = Sampler(gpus, ring, clock.clock, pause=clock.pause)  # type: ignore[arg-type]
    sampler.start()
    assert clock.now_s < 4.0  # 2.5 s and more for each of the eight before
    assert [ring.state(number)[1] > 2 for number in range(8)] == [True] + [False] * 7
    while clock.now_s < 30.0:
        clock.now_s = max(clock.now_s, sampler.due_s())
        sampler.tick()
    assert all(ring.state(number)[1] > 2 for number in range(6))
    assert not any(ring.state(number)[1] for number in (6, 7))  # nobody needs them


def test_who_leaves_a_ring_leaves_no_pace_behind(tmp_path: Path) -> None:
    ring = Ring.create(tmp_path / "ring", ["GPU-1", "GPU-2"])
    reader = ring.own([1], shared=False)
    ring.ask(1, 0.02)
    ring.leave(reader)
    assert ring.asked_s(1) is None  # 0.02 before
    assert ring.needs() == [-math.inf, -math.inf]
    ring.need(reader, 5.0)
    assert ring.needs() == [-math.inf, 5.0]  # a place that was cleared is taken again
