"""A window's energy is the energy that the GPU drew in it, with a correct error bar. Where the energy is
unknown, the reason is reported.
"""

from __future__ import annotations

import math
import os
import pickle
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from workbench.device import rapl
from workbench.device.discovery import devices, open_device
from workbench.errors import MeasurementError, UsageError
from workbench.measurement.blocks import BlockResult, TrackedLoop
from workbench.measurement.meter import Meter
from workbench.measurement.recorder import Recorder
from workbench.measurement.repeats import repeated
from workbench.records import GpuMeasurement, Measurement, Setting, Window
from workbench.simulation.machine import Machine

Simulated = Callable[..., Machine]
LOST = 15


def work(machine: Machine, power_w: float, seconds: float, *, gpu: int = 0, reasons: int = 0) -> None:
    """A GPU draws so much for so long, and idles afterwards (26 W)."""
    machine.state.publish(gpu, machine.clock(), [], (power_w, 1380, 877, 1.0, 0.5, reasons))
    machine.step(seconds)
    machine.state.publish(gpu, machine.clock(), [], (26.0, 135, 877, 0.0, 0.0, 1))


@pytest.fixture
def meter(stepped: Machine) -> Meter:
    found = [open_device()]
    made = Meter(found, Recorder(found), zones=())
    stepped.step(5.0)
    return made


def near(m: Measurement, true_j: float) -> bool:
    assert m.energy_j is not None
    assert m.energy_uncertainty_j is not None
    return abs(m.energy_j - true_j) <= m.energy_uncertainty_j


# what a window tells


def test_a_window_has_the_energy_of_what_ran_in_it(meter: Meter, stepped: Machine) -> None:
    window = meter.open("train")
    work(stepped, 200.0, 2.0, reasons=0x4)
    window = meter.close(window)
    stepped.step(0.2)
    m = meter.measure(window)
    assert (m.label, m.outcome, m.time_s, m.source) == ("train", "ok", pytest.approx(2.0), "counter, simulated")
    assert near(m, 400.0)
    assert m.energy_uncertainty_j is not None
    assert m.energy_uncertainty_j < 1.0  # a quarter of a step of 20 ms
    (gpu,) = m.gpus
    assert gpu.mean_power_w == pytest.approx(200.0, rel=0.005)
    assert gpu.peak_power_w == 200.0
    assert gpu.throttle_reasons == ("power cap",)
    assert gpu.setting == Setting(power_limit_w=250.0)
    assert gpu.power_limit_w == 250.0
    assert gpu.samples == pytest.approx(100, abs=2)
    assert (gpu.gaps, gpu.notes, gpu.other_processes) == (0, (), ())
    assert gpu.idle_share is not None
    assert gpu.idle_share < 0.2  # utilisation lags by its own sixth of a second and our look by a fifth
    assert m.started_unix_s == pytest.approx(time.time(), abs=60)  # whatever the simulated clock says


def test_nested_windows_count_what_each_of_them_saw(meter: Meter, stepped: Machine) -> None:
    outer = meter.open("epoch")
    stepped.step(1.0)
    inner = meter.open("batch")
    work(stepped, 200.0, 2.0)
    inner = meter.close(inner)
    stepped.step(1.0)
    outer = meter.close(outer)
    stepped.step(0.2)
    assert near(meter.measure(inner), 400.0)
    assert near(meter.measure(outer), 452.0)


def test_windows_may_overlap(meter: Meter, stepped: Machine) -> None:
    first = meter.open()
    work(stepped, 100.0, 1.0)
    second = meter.open()
    work(stepped, 200.0, 1.0)
    first = meter.close(first)
    work(stepped, 50.0, 1.0)
    second = meter.close(second)
    stepped.step(0.2)
    assert near(meter.measure(first), 300.0)
    assert near(meter.measure(second), 250.0)


def test_every_thread_may_have_its_window(meter: Meter, stepped: Machine) -> None:
    barrier, found = threading.Barrier(5), []

    def one(number: int) -> None:
        window = meter.open(str(number))
        barrier.wait()
        barrier.wait()
        found.append(meter.close(window))

    threads = [threading.Thread(target=one, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    barrier.wait()
    work(stepped, 200.0, 1.0)
    barrier.wait()
    for thread in threads:
        thread.join()
    stepped.step(0.2)
    assert sorted(window.label for window in found) == ["0", "1", "2", "3"]
    assert all(near(meter.measure(window), 200.0) for window in found)


def test_a_window_measured_long_after_is_measured_as_well(meter: Meter, stepped: Machine) -> None:
    window = meter.open()
    work(stepped, 200.0, 1.01)
    window = meter.close(window)
    stepped.step(60.0)
    assert near(meter.measure(window), 202.0)


def test_a_window_shorter_than_a_step_is_unsure_and_shows_how_much(meter: Meter, stepped: Machine) -> None:
    stepped.state.publish(0, stepped.clock(), [], (200.0, 1380, 877, 1.0, 0.5, 0))
    stepped.step(1.003)
    window = meter.open()
    stepped.step(0.005)
    window = meter.close(window)
    stepped.step(0.2)
    assert near(meter.measure(window), 1.0)


def test_the_counter_alone_gives_wider_bars(stepped: Machine) -> None:
    meter = Meter([open_device()], None, zones=())
    stepped.step(1.013)
    window = meter.open()
    work(stepped, 200.0, 2.0)
    window = meter.close(window)
    m = meter.measure(window)
    assert near(m, 400.0)
    assert m.energy_uncertainty_j == pytest.approx(
        0.78 * 0.1 * 225.0, rel=0.02
    )  # 0.1 s: what a counter may take; power at the edges lies between the mean and the limit of 250 W
    assert m.gpus[0].samples == 0
    assert m.gpus[0].peak_power_w is None


def test_an_open_window_is_not_measured(meter: Meter) -> None:
    with pytest.raises(UsageError, match="'train'"):
        meter.measure(meter.open("train"))


# what can go wrong


def test_a_limit_that_came_back_is_a_note_with_the_time_at_both_limits(meter: Meter, stepped: Machine) -> None:
    window = meter.open()
    for limit_w in (250.0, 150.0, 250.0):
        stepped.state.set_control(0, "limit_w", limit_w)
        work(stepped, 140.0, 1.0)
    measured = meter.measure(meter.close(window))
    assert any("250 W for 2 s" in note and "150 W for 1 s" in note for note in measured.gpus[0].notes)


@pytest.mark.parametrize("moments_s", [(1.003,), (0.011,), (0.303, 6.007), (7.981,)])
@pytest.mark.parametrize(("rise_j", "sentence"), [(0.0, "went back by"), (70.0, "went back by"), (1e4, "rose by")])
def test_a_counter_that_starts_again_or_jumps_costs_the_energy_of_that_moment(
    meter: Meter, stepped: Machine, moments_s: tuple[float, ...], rise_j: float, sentence: str
) -> None:
    """Also where it ends above the value that it began with: the window is longer than the GPU has run."""
    work(stepped, 200.0, 2.0)
    window = meter.open()
    begun_s, total_j, now_s = stepped.clock(), 0.0, 0.0
    for power_w, until_s in zip((90.0, 240.0, 120.0), (*moments_s, 8.0, 8.0), strict=False):
        work(stepped, power_w, until_s - now_s)
        total_j, now_s = total_j + power_w * (until_s - now_s), until_s
        if until_s < 8.0:
            drawn_j = stepped.state.true_energy_j(0, stepped.clock())
            back_j = drawn_j - rise_j if sentence.startswith("went") else stepped.state.control(0, "counter_reset_j") - rise_j
            stepped.state.set_control(0, "counter_reset_j", back_j)
    window = meter.close(window)
    stepped.step(0.2)
    m = meter.measure(window)
    assert stepped.true_energy_j(0, begun_s, begun_s + 8.0) == pytest.approx(total_j)
    assert near(m, total_j)
    assert m.energy_uncertainty_j is not None
    assert m.energy_uncertainty_j < 30.0
    assert any(re.search(f"{sentence}.* J.*is unknown", note) for note in m.gpus[0].notes)


def test_a_counter_that_goes_back_unobserved_gives_no_energy(stepped: Machine) -> None:
    meter = Meter([open_device()], None, zones=())
    stepped.step(5.0)
    window = meter.open()
    work(stepped, 200.0, 0.2)
    stepped.state.set_control(0, "counter_reset_j", stepped.state.true_energy_j(0, stepped.clock()))
    stepped.step(0.5)
    m = meter.measure(meter.close(window))
    assert (m.energy_j, m.energy_uncertainty_j, m.mean_power_w, m.source) == (None, None, None, "none, simulated")
    assert m.time_s == pytest.approx(0.7)
    assert re.search(r"went back.* J", m.gpus[0].notes[0])


def test_samples_may_be_held_while_the_recorder_looks_at_the_holds(meter: Meter, stepped: Machine) -> None:
    recorder = meter.recorder
    assert recorder is not None
    added: list[object] = []

    def from_s() -> float:  # as another thread does, or a finalizer
        if len(added) < 3:
            added.append(recorder.hold(0.0, awake=False))
        return 0.0

    added.append(recorder.hold(from_s, awake=False))
    stepped.step(40.0)
    recorder.drain()
    assert len(added) > 1


def test_a_window_whose_simulated_gpus_are_replaced_has_a_time_and_the_reason(
    meter: Meter, stepped: Machine, simulated: Simulated
) -> None:
    window = meter.open("train")
    simulated("V100", stepped=True)
    window = meter.close(window)
    m = meter.measure(window)
    assert (m.energy_j, m.gpus, m.time_s >= 0.0) == (None, (), True)
    assert "call simulate() before" in m.notes[0]
    assert meter.count(window, m) is None


def test_a_gpu_that_is_lost_in_the_window_leaves_the_time_and_the_reason(
    meter: Meter, stepped: Machine
) -> None:
    window = meter.open()
    work(stepped, 200.0, 1.0)
    stepped.lose(0, LOST)
    stepped.step(2.0)
    m = meter.measure(meter.close(window))
    assert m.energy_j is None
    assert m.time_s == pytest.approx(3.0, abs=0.01)
    assert any("is lost" in note for note in m.notes)
    assert any("energy counter" in note for note in m.gpus[0].notes)
    assert m.gpus[0].peak_power_w == 200.0  # what was seen before is kept


def test_without_a_gpu_there_is_a_time_and_never_joules() -> None:
    meter = Meter([], zones=())
    window = meter.open("cell")
    m = meter.measure(meter.close(window))
    assert (m.gpus, m.energy_j, m.energy_uncertainty_j, m.mean_power_w) == ((), None, None, None)
    assert m.source == "none"
    assert 0 <= m.time_s < 1
    assert m.started_unix_s == pytest.approx(time.time(), abs=5)


def test_a_card_without_a_counter_is_integrated(simulated: Simulated) -> None:
    machine = simulated("P100", stepped=True)
    found = [open_device()]
    meter = Meter(found, Recorder(found), zones=())
    machine.step(5.0)
    window = meter.open()
    work(machine, 200.0, 3.0)
    window = meter.close(window)
    machine.step(0.2)
    m = meter.measure(window)
    assert m.source == "integrated, simulated"
    assert near(m, machine.gain(0) * 600.0)
    assert m.energy_j == pytest.approx(machine.gain(0) * 600.0, rel=0.01)


def test_a_card_without_a_counter_and_without_readings_has_no_energy(simulated: Simulated) -> None:
    machine = simulated("P100", stepped=True)
    meter = Meter([open_device()], None, zones=())
    window = meter.open()
    machine.step(1.0)
    m = meter.measure(meter.close(window))
    assert m.energy_j is None
    assert "no energy counter" in m.gpus[0].notes[0]


def test_others_on_the_gpu_are_named(meter: Meter, stepped: Machine) -> None:
    other, child = os.getppid(), subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        stepped.state.set_process(0, other, 1 << 30)
        stepped.state.set_process(0, os.getpid(), 1 << 20)  # this process is no other
        stepped.state.set_process(0, child.pid, 1 << 20)  # nor is one that it has started
        window = meter.open()
        stepped.step(1.0)
        (gpu,) = meter.measure(meter.close(window)).gpus
        assert [(process.pid, process.memory_bytes) for process in gpu.other_processes] == [(other, 1 << 30)]
        assert [f"({other})" in note for note in gpu.notes] == [True]
    finally:
        child.communicate(b"\n")


def test_a_stretch_without_samples_is_reported_and_counted(meter: Meter, stepped: Machine) -> None:
    window = meter.open()
    stepped.step(1.0)
    stepped.clock.show(stepped.clock() + 2.0)  # as if the sampling process had been stopped for two seconds
    stepped.step(1.0)
    window = meter.close(window)
    stepped.step(0.2)
    m = meter.measure(window)
    assert m.gpus[0].gaps == 1
    assert ["1 gaps" in note for note in m.gpus[0].notes] == [True]
    assert near(m, 4 * 26.0)


# several GPUs, and the host


def test_energies_of_two_gpus_add_and_so_do_the_squares_of_their_errors(simulated: Simulated) -> None:
    machine = simulated("V100,A100", stepped=True)
    found = devices()
    meter = Meter(found, Recorder(found), zones=())
    machine.step(5.0)
    window = meter.open()
    machine.state.publish(1, machine.clock(), [], (300.0, 1410, 1215, 1.0, 0.5, 0))
    work(machine, 200.0, 2.0)
    window = meter.close(window)
    machine.step(0.5)
    m = meter.measure(window)
    one, two = m.gpus
    assert one.energy_j is not None
    assert two.energy_j is not None
    assert m.energy_j == one.energy_j + two.energy_j
    assert one.energy_j == pytest.approx(400.0, rel=0.01)
    assert two.energy_j == pytest.approx(machine.gain(1) * 600.0, rel=0.03)
    bars = [gpu.energy_uncertainty_j or 0.0 for gpu in m.gpus]
    assert m.energy_uncertainty_j == pytest.approx(math.hypot(*bars))


def test_one_lost_gpu_of_two_leaves_no_sum(simulated: Simulated) -> None:
    machine = simulated("V100,V100", stepped=True)
    found = devices()
    meter = Meter(found, Recorder(found), zones=())
    machine.step(2.0)
    window = meter.open()
    machine.step(1.0)
    machine.lose(1)
    machine.step(1.0)
    m = meter.measure(meter.close(window))
    assert m.gpus[0].energy_j is not None
    assert m.gpus[1].energy_j is None
    assert (m.energy_j, m.mean_power_w) == (None, None)  # half of it is not it


def test_the_energy_of_the_processor_is_read_too(stepped: Machine, tmp_path: Path) -> None:
    zone = tmp_path / "intel-rapl:0"
    zone.mkdir()
    for name, text in (
        ("name", "package-0"),
        ("energy_uj", "5000000"),
        ("max_energy_range_uj", "262143000000"),
    ):
        (zone / name).write_text(f"{text}\n")
    meter = Meter([open_device()], None, zones=rapl.zones(tmp_path))
    window = meter.open()
    stepped.step(1.0)
    (zone / "energy_uj").write_text("45000000\n")
    m = meter.measure(meter.close(window))
    assert m.cpu_energy_j == 40.0
    assert m.dram_energy_j is None


# several runs as one


def run(energy_j: float | None, time_s: float, bar_j: float | None = 0.3, *notes: str) -> Measurement:
    gpu = GpuMeasurement(
        "G", "GPU-1", energy_j, bar_j, "counter", False, mean_power_w=100.0, peak_power_w=energy_j,
        samples=10, gaps=1, notes=notes,
    )
    return Measurement("id", "cell", 0.0, time_s, (gpu,), cpu_energy_j=time_s)


def test_runs_become_a_mean_with_its_deviation() -> None:
    m = repeated([run(10.0, 1.0), run(12.0, 2.0), run(14.0, 3.0)])
    assert (m.repeats, m.time_s, m.time_sd_s, m.energy_j, m.energy_sd_j) == (3, 2.0, 1.0, 12.0, 2.0)
    assert m.energy_uncertainty_j == pytest.approx(
        4.3027 * 2.0 / math.sqrt(3), rel=1e-4
    )  # Student, 2 degrees of freedom
    assert m.cpu_energy_j == 2.0
    assert (m.gpus[0].samples, m.gpus[0].gaps, m.gpus[0].peak_power_w) == (30, 3, 14.0)


def test_runs_that_agree_are_as_sure_as_their_bars_allow() -> None:
    m = repeated([run(10.0, 1.0, 0.3), run(10.0, 1.0, 0.4)])
    assert m.energy_uncertainty_j == pytest.approx(0.25)  # sqrt(0.09 + 0.16) / 2


def test_one_run_is_itself_and_one_without_energy_leaves_none() -> None:
    only = run(10.0, 1.0)
    assert repeated([only]) is only
    m = repeated([run(10.0, 1.0), run(None, 3.0, None)])
    assert (m.energy_j, m.energy_sd_j, m.time_s) == (None, None, 2.0)


def test_notes_of_all_runs_are_kept_once() -> None:
    m = repeated([run(1.0, 1.0, 0.1, "a"), run(1.0, 1.0, 0.1, "a", "b")])
    assert m.gpus[0].notes == ("a", "b")


# blocks and loops


def test_a_block_is_measured(meter: Meter, stepped: Machine) -> None:
    with BlockResult(meter, "epoch") as result:
        work(stepped, 100.0, 1.0)
        with pytest.raises(MeasurementError, match="still running"):
            _ = result.energy_j
    stepped.step(0.2)
    assert result.energy_j == pytest.approx(100.0, rel=0.01)
    assert result.time_s == pytest.approx(1.0)
    assert result.measurement is result.measurement
    assert result.measurement.outcome == "ok"


@pytest.mark.parametrize(
    ("error", "outcome"), [(ValueError, "error"), (KeyboardInterrupt, "interrupted"), (SystemExit, "error")]
)
def test_a_block_that_fails_is_measured_too_and_fails_on(
    meter: Meter, stepped: Machine, error: type[BaseException], outcome: str
) -> None:
    with pytest.raises(error), BlockResult(meter) as result:  # noqa: PT012
        work(stepped, 100.0, 1.0)
        raise error
    assert result.measurement.outcome == outcome
    assert result.energy_j == pytest.approx(100.0, rel=0.02)


def batches(machine: Machine, powers_w: list[float]) -> Iterator[float]:
    for power_w in powers_w:
        machine.step(0.1)  # loading takes 0.1 s at 26 W
        yield power_w


def test_the_iterations_of_a_loop_add_up_to_the_whole(meter: Meter, stepped: Machine) -> None:
    loop = TrackedLoop(meter, batches(stepped, [100.0, 200.0, 150.0]), "epoch")
    for power_w in loop:
        work(stepped, power_w, 1.0)
    stepped.step(0.2)
    table = loop.iterations
    assert table["iteration"].to_list() == [0, 1, 2]
    assert table["start_s"].to_list() == pytest.approx([0.0, 1.1, 2.2])
    assert table["time_s"].to_list() == pytest.approx([1.1, 1.1, 1.1])
    for energy_j, bar_j, true_j in zip(
        table["energy_j"], table["energy_uncertainty_j"], (102.6, 202.6, 152.6), strict=True
    ):
        assert abs(energy_j - true_j) <= bar_j
    whole = loop.measurement
    assert whole.label == "epoch"
    assert near(whole, 457.8)
    bar_j = math.hypot(*table["energy_uncertainty_j"], whole.energy_uncertainty_j or 0.0)
    assert abs(table["energy_j"].sum() - (whole.energy_j or 0.0)) <= bar_j


def test_a_loop_keeps_the_iterations_of_all_its_loops_to_the_last(meter: Meter, stepped: Machine) -> None:
    """Of a stepped clock no refresh follows the last iteration: the counter's reading at the end stands."""
    loop = TrackedLoop(meter, range(3), "epoch")
    for power_w in (100.0, 200.0):
        for _ in loop:
            work(stepped, power_w, 0.703)
        stepped.step(1.0)
    for _ in loop:
        work(stepped, 150.0, 0.703)
    rows = loop.iterations
    assert rows["iteration"].to_list() == list(range(9))
    assert rows["start_s"].is_sorted()
    drawn_j = 0.703 * np.repeat([100.0, 200.0, 150.0], 3)
    assert np.all(np.abs(rows["energy_j"].to_numpy() - drawn_j) <= rows["energy_uncertainty_j"].to_numpy())
    assert loop.measurement.repeats == 3
    assert near(loop.measurement, 3 * 0.703 * 150.0)


def test_results_reach_another_process(meter: Meter, stepped: Machine) -> None:
    with BlockResult(meter, "epoch") as result:
        loop = TrackedLoop(meter, range(2))
        with pytest.raises(MeasurementError, match="still running"):
            pickle.dumps(result)
        for _ in loop:
            work(stepped, 100.0, 0.5)
    for kept in (result, loop):
        sent = pickle.loads(pickle.dumps(kept))
        assert sent.measurement == kept.measurement
        assert repr(sent) == repr(kept)
        assert sent.iterations.equals(kept.iterations)


def test_a_loop_that_is_left_has_the_iterations_that_were_begun(meter: Meter, stepped: Machine) -> None:
    loop = TrackedLoop(meter, [1, 2, 3, 4])
    assert len(loop) == 4
    for number in loop:
        with pytest.raises(MeasurementError, match="still running"):
            _ = loop.measurement
        work(stepped, 100.0, 0.5)
        if number == 3:
            break
    del number
    stepped.step(0.2)
    assert loop.iterations["iteration"].to_list() == [0, 1, 2]
    assert loop.measurement.time_s >= 1.5


def test_a_loop_longer_than_the_recorders_memory_is_known_to_its_first_iteration(
    meter: Meter, stepped: Machine
) -> None:
    loop = TrackedLoop(meter, range(3))
    recorder = meter.recorder
    assert recorder is not None
    for _ in loop:
        work(stepped, 100.0, 1.007)
        stepped.clock.show(stepped.clock() + 1200.0)  # as long as recorded by a sampler that sleeps
        stepped.step(1.0)
        recorder.drain()
    _ = loop.measurement
    assert loop.iterations.height == 3
    assert loop.iterations["energy_j"][0] == pytest.approx(1200.0 * 26.0, rel=0.01)


def test_settling_waits_for_the_refresh_after_the_window(simulated: Simulated) -> None:
    simulated("A100")
    found = [open_device()]
    recorder = Recorder(found)
    try:
        assert recorder.calibrated(60.0)
        meter = Meter(found, recorder, zones=())
        window = meter.open()
        time.sleep(0.3)
        window = meter.close(window)
        begin_s = time.monotonic()
        meter.settle(window, timeout_s=240.0)
        assert time.monotonic() - begin_s < 30.0  # a refresh ended it; 0.1 s where nothing else runs
        latest = recorder.latest(found[0].uuid)
        assert latest is not None
        assert latest["tick_s"] >= (window.end_s or 0.0)
        m = meter.measure(window)
        assert near(m, recorder_truth(window))
    finally:
        recorder.stop()


def recorder_truth(window: Window) -> float:
    """The idle A100's energy as its sensors report it: its gain times its true power."""
    from workbench.simulation.machine import attached

    machine = attached()
    assert machine is not None
    assert window.end_s is not None
    return machine.gain(0) * machine.true_energy_j(0, window.start_s, window.end_s)


def test_a_long_window_shows_the_energy_drawn_while_idle(meter: Meter, stepped: Machine) -> None:
    window = meter.open("train")
    stepped.step(8.0)
    work(stepped, 200.0, 10.0)
    window = meter.close(window)
    stepped.step(0.5)
    (message,) = meter.waste(window, meter.measure(window))
    assert message.startswith("rest: ")
    assert "compile" in message
    short = meter.open("short")
    stepped.step(1.0)
    short = meter.close(short)
    assert meter.waste(short, meter.measure(short)) == ()
