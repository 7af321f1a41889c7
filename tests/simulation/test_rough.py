"""Cards whose drivers and sensors are as rough as real ones."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

import workbench
from workbench.errors import NoDriver, SimulationError, UnknownGpu
from workbench.simulation.machine import Machine, attached
from workbench.simulation.training import TrainingJob


def test_a_part_time_counter_adds_up_what_the_readings_saw(simulated: Callable[..., Machine]) -> None:
    machine = simulated("A100,part-time", stepped=True)
    for name in ("noise", "sensor_phase_s"):
        machine.state.set_card(0, name, 0.0)
    device = workbench.open_device(0)
    machine.step(3.0)
    job = iter(TrainingJob("squad", 32, machine=machine, iterations=10**9))
    before_j, update_s = device.energy_j(), machine.state.card(0, "power_update_s")
    first = round(machine.clock() // update_s)
    while machine.clock() < 9.0:
        next(job)
    last = int(machine.clock() // update_s)
    observed_j = update_s * sum(
        machine.true_energy_j(0, number * update_s - 0.025, number * update_s) / 0.025
        for number in range(first + 1, last + 1)
    )
    assert device.energy_j() - before_j == pytest.approx(machine.gain(0) * observed_j, abs=0.003)
    job.close()  # type: ignore[attr-defined]


def test_a_part_time_counter_reports_the_same_of_the_past(simulated: Callable[..., Machine]) -> None:
    machine = simulated("H100,part-time", stepped=True)
    device = workbench.open_device(0)
    reported_j = []
    for _ in range(20):
        machine.step(0.37)
        reported_j.append((machine.clock(), device.energy_j()))
    for at_s, energy_j in reported_j:
        machine.state.set_header("stepped_now_s", at_s)
        assert device.energy_j() == pytest.approx(energy_j, abs=0.002)


def test_a_part_time_counter_continues_after_an_hour_without_a_reading(simulated: Callable[..., Machine]) -> None:
    machine = simulated("A100,part-time", stepped=True)
    device = workbench.open_device(0)
    before_j = device.energy_j()
    machine.step(3600.0)
    idle_j = machine.gain(0) * machine.true_energy_j(0, 0.0, 3600.0)
    assert device.energy_j() - before_j == pytest.approx(idle_j, rel=1e-3)


def test_names_of_irregularities_change_every_card(simulated: Callable[..., Machine]) -> None:
    state = simulated("A100, V100, late, slow", stepped=True).state
    assert [state.card(gpu, "key") for gpu in range(state.count)] == ["A100", "V100"]
    assert [state.card(gpu, "governor_delay_s") for gpu in range(2)] == [2.5, 2.5]
    assert state.header("latency_s") == 0.005
    assert state.card(0, "counter_part_time") == 0


def test_roughness_needs_a_card_and_a_name_that_is_known(simulated: Callable[..., Machine]) -> None:
    with pytest.raises(SimulationError, match="0 simulated"):
        simulated("part-time")
    with pytest.raises(UnknownGpu):
        simulated("A100,smooth")


def test_an_irregular_gpu_is_opened_by_name(simulated: Callable[..., Machine]) -> None:
    try:
        device = workbench.open_device("sim:A100,part-time")
        assert attached().state.card(device.index, "counter_part_time") == 1  # type: ignore[union-attr]
        assert [each.uuid for each in workbench.devices("sim:A100")] == [device.uuid]
        assert workbench.open_device("sim:A100,part-time").uuid == device.uuid
        with pytest.raises(SimulationError, match="'A100,late'"):
            workbench.open_device("sim:A100,late")
    finally:
        attached().close()  # type: ignore[union-attr]


def test_readings_may_have_another_gain_than_the_counter(simulated: Callable[..., Machine]) -> None:
    machine = simulated("V100,gains", stepped=True)
    machine.state.set_card(0, "noise", 0.0)
    device = workbench.open_device(0)
    machine.step(5.0)
    before_j = device.energy_j()
    machine.step(10.0)
    assert device.sample().power_w == pytest.approx(0.57 * (device.energy_j() - before_j) / 10.0, rel=1e-3)


def test_a_machine_that_lost_its_gpus_answers_999(simulated: Callable[..., Machine]) -> None:
    simulated("A100,lost", stepped=True)
    with pytest.raises(NoDriver, match="999"):
        workbench.open_device(0)


def test_slow_calls_of_all_threads_wait_for_one_another(simulated: Callable[..., Machine]) -> None:
    machine = simulated("V100,V100", latency_s=0.02)
    found, started_s = workbench.devices(), machine.clock()
    threads = [threading.Thread(target=found[number % 2].energy_j) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert machine.clock() - started_s >= 6 * 0.02
