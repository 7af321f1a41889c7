"""Energy counters that only sum power readings: recognised, remembered, and measured with a correct error."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import workbench
from workbench import _paths
from workbench.measurement import sampled_counter
from workbench.measurement.counter_kind import CounterKind
from workbench.measurement.meter import Meter
from workbench.measurement.recorder import Recorder
from workbench.samples import ROWS
from workbench.simulation.machine import Machine
from workbench.simulation.training import TrainingJob


def rows_of(steps_w: Any, readings_w: Any, update_s: float = 0.1) -> np.ndarray[Any, Any]:
    """A row per refresh of a counter and a reading."""
    rows = np.zeros(len(steps_w), ROWS)
    rows["time_s"] = rows["tick_s"] = rows["power_tick_s"] = update_s * np.arange(len(steps_w))
    rows["energy_j"] = np.cumsum(steps_w) * update_s
    rows["power_w"] = readings_w
    return rows


@pytest.fixture
def square() -> np.ndarray[Any, Any]:
    """Power in steps of a millisecond: 0.17 s at 300 W, 0.2 s at 100 W, over 20 s."""
    return np.where(np.arange(20_000) % 370 < 170, 300.0, 100.0)


def test_a_counter_that_sums_its_readings_is_distinguished_from_one_that_integrates(square: Any) -> None:
    blocks = square.reshape(-1, 100)
    readings = blocks[:, 75:].mean(axis=1)
    assert sampled_counter.sums_readings(rows_of(readings, readings), 0.025) is True
    assert sampled_counter.sums_readings(rows_of(blocks.mean(axis=1), readings), 0.025) is False
    glimpses = blocks[:, 20:45].mean(axis=1)  # on a timer of its own, which the readings do not explain
    assert sampled_counter.sums_readings(rows_of(glimpses, readings), 0.025) is not False


@pytest.mark.parametrize("case", ["steady", "short"])
def test_a_constant_or_rarely_read_counter_gives_no_period(square: Any, case: str) -> None:
    readings = np.full(200, 100.0) if case == "steady" else square.reshape(-1, 100)[:25, 75:].mean(axis=1)
    assert sampled_counter.sums_readings(rows_of(readings, readings), 0.025) is None


def half_width_j(power_w: Any, *, count: int | None = None, step_s: float = 0.1, window_s: float = 0.025) -> float:
    """The energy that the readings may have missed in the first `count` steps."""
    tick_s = step_s * np.arange(len(power_w))
    moments = np.array([0.0, tick_s[count or -1]])
    (variance,) = sampled_counter.missed_variance(tick_s, np.asarray(power_w, float), window_s, moments)
    return 1.96 * float(np.sqrt(variance))


def test_readings_of_a_steady_load_miss_nothing_and_those_of_a_load_that_moves_miss_by_its_spread() -> None:
    assert half_width_j(np.full(601, 250.0)) == pytest.approx(0.0, abs=1e-6)
    rng = np.random.default_rng(3)
    moving_w = rng.choice([100.0, 300.0], 601)
    # A spread of 100 W, three quarters of it not observed: 8.7 J a step, 212 J of 600 where none is like the next.
    assert 0.7 * 1.96 * 212.0 < half_width_j(moving_w) < 2.5 * 1.96 * 212.0
    slow_w = 200.0 + 100.0 * np.sin(np.arange(601) / 10)  # perhaps a copy of a load as fast as the sensor
    assert half_width_j(slow_w) > 1.2 * half_width_j(moving_w)


def test_a_change_of_level_hides_no_more_than_its_moment() -> None:
    noise_w = np.random.default_rng(4).normal(0.0, 5.0, 301)
    levels_w = np.repeat([400.0, 60.0, 400.0], [100, 101, 100]) + noise_w
    assert sampled_counter.level_changes(levels_w, 4.0).tolist() == [100, 201]
    # Each change came somewhere in 75 ms: 25.5 J at most.
    assert 0.5 * 25.5 < half_width_j(levels_w) < 2.0 * 25.5


@pytest.mark.parametrize("repeats_after", [8, 20, 60, 240])  # readings
@pytest.mark.parametrize("duty", [0.3, 0.5])
def test_a_slow_copy_of_a_fast_load_is_no_change_of_level(repeats_after: int, duty: float) -> None:
    at = np.arange(600)[:, None] / repeats_after + np.linspace(0.0, 0.25, 25)  # 25 ms of each 100 ms, in periods
    power_w = np.where(at % 1.0 < duty, 400.0, 100.0).mean(axis=1)
    assert not len(sampled_counter.level_changes(power_w, 4.0))


def test_readings_with_little_between_them_miss_only_the_moments_of_jumps() -> None:
    power_w = np.repeat([100.0, 300.0], 50)  # one jump, in a gap of 10 ms
    jump_j2 = 1.5 * (200.0 * 0.01) ** 2 / 12
    assert half_width_j(power_w, step_s=0.02, window_s=0.01) == pytest.approx(1.96 * np.sqrt(jump_j2), rel=0.01)


def test_errors_that_repeat_cancel_in_the_long_run() -> None:
    wave_w = 200.0 + 100.0 * np.sign(np.sin(2 * np.pi * np.arange(601) / 5))  # the same at every fifth reading
    random_w = np.random.default_rng(1).choice([100.0, 300.0], 601)
    assert half_width_j(wave_w) < 0.5 * half_width_j(random_w)


def test_errors_of_a_load_that_keeps_step_with_the_sensor_do_not_cancel() -> None:
    # What is seen moves through the load's period in 20 s: neighbours are alike, and minutes are not.
    drifting_w = 200.0 + 100.0 * np.sin(2 * np.pi * np.arange(401) / 200)
    # 15 s are on one side of the mean for 5 s longer than on the other: some 60 W in the mean
    assert half_width_j(drifting_w, count=150) > 0.75 * abs(0.1 * np.sum(drifting_w[1:151] - 200.0))


@pytest.fixture
def meter(simulated: Callable[..., Machine]) -> Iterator[Callable[[str], tuple[Machine, Meter]]]:
    made: list[Recorder] = []

    def make(cards: str) -> tuple[Machine, Meter]:
        machine = simulated(cards, stepped=True)
        device = workbench.open_device(0)
        made.append(Recorder([device]))
        machine.step(3.0)
        return machine, Meter([device], made[-1], sync=False, zones=())

    yield make
    for recorder in made:
        recorder.stop()


def measured(machine: Machine, meter: Meter, windows: int, seconds: float) -> list[tuple[float, Any]]:
    """The truth and the measurement of windows of a training."""
    job, found = iter(TrainingJob("squad", 32, machine=machine, seed=2, iterations=10**9)), []
    for _ in range(windows):
        window = meter.open("w")
        while machine.clock() < window.start_s + seconds:
            next(job)
        window = meter.close(window)
        assert window.end_s is not None
        gpu = meter.measure(window).gpus[0]
        found.append((machine.gain(0) * machine.true_energy_j(0, window.start_s, window.end_s), gpu))
    job.close()  # type: ignore[attr-defined]
    return found


def test_the_bar_of_a_part_time_counter_holds_the_truth_and_gives_the_reason_it_is_wide(meter: Any) -> None:
    machine, made = meter("H100,part-time")
    measured(machine, made, 1, 12.0)
    found = measured(machine, made, 12, 2.0)
    held = [abs(gpu.energy_j - truth_j) <= gpu.energy_uncertainty_j for truth_j, gpu in found]
    assert sum(held) >= 11
    assert all("25 ms" in gpu.notes[0] for _, gpu in found)


def test_a_counter_that_integrates_keeps_its_narrow_bar(meter: Any) -> None:
    machine, made = meter("H100")
    measured(machine, made, 1, 12.0)
    for truth_j, gpu in measured(machine, made, 3, 5.0):
        assert gpu.energy_uncertainty_j < 0.02 * truth_j
        assert gpu.notes == ()


def test_the_counter_kind_of_a_real_gpu_is_kept_for_its_driver(meter: Any) -> None:
    machine, made = meter("H100,part-time")
    device = made.devices[0]
    device.simulated = False  # nothing of a simulated GPU is kept: it is gone with its process
    measured(machine, made, 1, 12.0)
    (file,) = (_paths.home()[0] / "sensors").glob("*.json")
    assert CounterKind(device, None).part_time is True
    file.write_text(json.dumps({**json.loads(file.read_text()), "driver": "another"}))
    assert CounterKind(device, None).part_time is None
    file.write_text("[1, 2")
    assert CounterKind(device, None).part_time is None
