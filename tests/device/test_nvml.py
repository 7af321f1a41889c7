"""The NVML device on simulated GPUs: discovery when it opens, samples and settings."""

from __future__ import annotations

import gc
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from workbench.device import nvml
from workbench.device.discovery import devices, open_device, why_no_gpu
from workbench.errors import DriverError, GpuLost, NotSupported, OutOfRange, SimulationError, UnknownGpu
from workbench.records import Setting, throttle_names
from workbench.simulation import activity
from workbench.simulation.catalogue import CARDS
from workbench.simulation.machine import Machine
from workbench.simulation.state import ENVIRONMENT_VARIABLE

BUSY = (1500, 877, 1.0, 0.5, 0)


# what a device is


@pytest.mark.parametrize(
    ("card", "architecture", "capability", "window_s", "lacking"),
    [
        ("P100", "Pascal", (6, 0), 0.010, {"energy", "lock_sm_clock", "lock_mem_clock"}),
        ("V100", "Volta", (7, 0), 0.010, {"lock_mem_clock"}),
        ("RTX6000", "Turing", (7, 5), 0.100, {"lock_mem_clock"}),
        ("A100", "Ampere", (8, 0), 0.025, {"lock_mem_clock"}),  # it has one memory clock
        ("A40", "Ampere", (8, 6), 0.100, set()),
        ("RTX4090", "Ada", (8, 9), 0.100, set()),
        ("H100", "Hopper", (9, 0), 0.025, set()),
    ],
)
def test_each_generation_has_its_documented_abilities(
    simulated: Callable[..., Machine], card: str, architecture: str, capability: tuple[int, int],
    window_s: float, lacking: set[str],
) -> None:
    simulated(card, stepped=True)
    device = open_device()
    assert (device.architecture, device.compute_capability, device.power_window_s) == (
        architecture, capability, window_s,
    )
    absent = {each.name: each.reason for each in device.capabilities if not each.present}
    if len(device.limits.mem_clocks_mhz) < 2:
        lacking = lacking | {"lock_mem_clock"}
    if architecture != "Hopper":
        lacking = lacking | {"gpm"}
    assert absent.keys() == lacking
    assert all(reason and device.why_not(name) == reason for name, reason in absent.items())


def test_a_device_knows_its_name_place_and_limits(stepped: Machine) -> None:
    device = open_device()
    assert (device.name, device.index, device.pci_bus_id) == (
        f"{CARDS['V100'].name} (simulated)", 0, "00000000:10:00.0",
    )
    assert device.uuid == stepped.state.card(0, "uuid")
    assert (device.simulated, device.note) == (True, "")
    limits = device.limits
    assert (limits.min_power_limit_w, limits.default_power_limit_w, limits.max_power_limit_w) == (
        100, 250, 250,
    )
    assert limits.mem_clocks_mhz == (877,)
    assert limits.sm_clocks_mhz == {877: CARDS["V100"].sm_clocks_mhz}
    assert repr(device) == f"<GPU 0: {device.name}, {device.uuid}>"


def test_a_door_that_is_opened_twice_is_one_room(stepped: Machine) -> None:
    assert open_device("sim:V100").uuid == open_device(0).uuid == devices()[0].uuid


def test_simulated_cards_are_only_had_by_name(simulated: Callable[..., Machine]) -> None:
    assert ENVIRONMENT_VARIABLE not in os.environ
    assert open_device("sim:H100").simulated
    machine = nvml.nvml.nvmlLib.state.path
    try:
        with pytest.raises(UnknownGpu, match=r"H100.*simulate\('A100', ...\)"):
            open_device("sim:A100")
        assert os.environ[ENVIRONMENT_VARIABLE] == str(machine)  # children find it
    finally:
        os.environ.pop(ENVIRONMENT_VARIABLE)
        machine.unlink()


# samples


def test_a_sample_reports_the_current_values(stepped: Machine) -> None:
    state, device = stepped.state, open_device()
    state.publish(0, 0.0, [], (200.0, 1380, 877, 0.75, 0.25, 0x4))
    stepped.step(10.001)
    sample = device.sample()
    assert sample._replace(energy_j=0.0) == (
        10.001, 0.0, 200.0, 250.0, 1380, 877, 0.75, 0.25, sample.temperature_c, 0x4,
    )
    assert sample.energy_j == pytest.approx(3600 * 26 + 10 * 200)  # at the counter's last tick
    assert sample.energy_j == device.energy_j()
    assert throttle_names(sample.throttle) == ("power cap",)


def test_a_quick_sample_takes_the_rest_from_an_earlier_one(stepped: Machine) -> None:
    device = open_device()
    stepped.step(1.0)
    full = device.sample()
    stepped.state.publish(0, 1.0, [], (200.0, *BUSY))
    stepped.step(1.0)
    quick = device.sample(full)
    assert (quick.power_w, quick.sm_clock_mhz, quick.utilisation) == (
        200.0, full.sm_clock_mhz, full.utilisation,
    )


def test_energy_is_the_counter_value_times_its_gain(simulated: Callable[..., Machine]) -> None:
    machine = simulated("A100", stepped=True)
    device, state = open_device(), machine.state
    state.set_card(0, "sensor_phase_s", 0.0)
    state.set_card(0, "counter_lag_s", 0.0)
    before_j = device.energy_j()
    state.publish(0, 0.0, [], (300.0, *BUSY))
    machine.step(10 * 0.101 + 1e-9)
    assert device.energy_j() - before_j == pytest.approx(
        machine.gain(0) * 300 * 1.01, abs=0.002
    )  # millijoules, cut


def test_processes_are_reported_with_their_names(stepped: Machine) -> None:
    stepped.state.set_process(0, os.getpid(), 1 << 30)
    (process,) = open_device().processes()
    assert (process.pid, process.memory_bytes) == (os.getpid(), 1 << 30)
    assert process.name == Path("/proc/self/comm").read_text().strip()


# settings


def test_a_setting_is_read_back_as_it_was_applied(simulated: Callable[..., Machine]) -> None:
    machine = simulated("A40", stepped=True)
    device = open_device()
    assert device.setting() == Setting(power_limit_w=300.0)
    wanted = Setting(power_limit_w=200.0, sm_clock_mhz=1500, mem_clock_mhz=5001)
    assert device.write(wanted) == wanted == device.setting()
    machine.step(1.0)
    assert machine.state.effective(0, 1.0) == (200.0, 210, 1500, 405, 5001)  # locks are ceilings
    assert device.write(Setting(power_limit_w=250.0)) == Setting(
        250.0, 1500, 5001
    )  # other knobs are left alone
    device.reset(("sm_clock_mhz", "mem_clock_mhz", "power_limit_w"))
    machine.step(1.0)
    assert device.setting() == Setting(power_limit_w=300.0)
    assert machine.state.effective(0, 2.0) == (300.0, 0, 0, 0, 0)


def test_a_lock_above_which_the_gpu_runs_is_no_setting(simulated: Callable[..., Machine]) -> None:
    machine = simulated("A100", stepped=True)
    device = open_device()
    assert device.write(Setting(sm_clock_mhz=900)).sm_clock_mhz == 900
    machine.state.publish(0, machine.clock(), [], (300.0, 1410, 1593, 1.0, 0.5, 0))  # as if it ignored the lock
    machine.step(1.0)
    assert device.setting().sm_clock_mhz == 900  # clocks take their time to follow
    machine.step(4.0)
    assert device.setting().sm_clock_mhz is None
    assert device.locked().sm_clock_mhz == 900


def test_a_gpu_that_does_not_answer_keeps_its_number(simulated: Callable[..., Machine]) -> None:
    machine = simulated("A100,A100,A100", stepped=True)
    uuids = [machine.state.card(gpu, "uuid") for gpu in range(3)]
    machine.inject("nvmlDeviceGetUUID", 999, gpu=0)
    assert [uuid for uuid, _, _ in nvml.identities()] == ["NVML:0", *uuids[1:]]
    assert [each.uuid for each in devices()] == uuids[1:]
    assert open_device(2).uuid == uuids[2]


def test_a_limit_is_passed_on_to_the_milliwatt(stepped: Machine) -> None:
    assert open_device().write(Setting(power_limit_w=137.125)).power_limit_w == 137.125


@pytest.mark.parametrize("limit_w", [99.999, 250.001, -1.0, math.nan, math.inf])
def test_a_limit_that_the_card_does_not_take_changes_nothing(stepped: Machine, limit_w: float) -> None:
    device = open_device()
    with pytest.raises(OutOfRange, match=r"100\.\.250 W"):
        device.write(Setting(power_limit_w=limit_w))
    assert stepped.state.generation(0) == 0


def test_the_next_number_is_an_error_that_lists_what_there_is(stepped: Machine) -> None:
    with pytest.raises(UnknownGpu, match=r"GPU 1 .*available: 0"):
        open_device(1)
    assert why_no_gpu() == ""


# the same driver's door on a C library, as with a real driver


def test_our_driver_reads_the_same_through_the_c_library(
    simulated: Callable[..., Machine], c_nvml: Path
) -> None:
    machine = simulated("V100,H100", stepped=True)
    machine.state.publish(1, 0.0, [], (300.0, *BUSY))
    machine.step(12.34)
    program = (
        "from workbench.device import nvml\nfrom workbench.records import Setting\n"
        "device = nvml.open_index(1)\n"
        "print(device.simulated, device.limits, device.capabilities, sep='\\n')\n"
        "print(device.sample()[1:], device.setting(), sep='\\n')\n"
        "print(device.write(Setting(400.0, 1500)))"
    )
    environment = {
        **os.environ, "LD_LIBRARY_PATH": str(c_nvml), "WORKBENCH_SIMULATED_GPUS": str(machine.state.path),
    }
    here = nvml.open_index(1)
    expected = ["False", str(here.limits), str(here.capabilities), str(here.sample()[1:])]
    child = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    reported = child.stdout.splitlines()
    assert reported[:4] == expected
    assert reported[4:] == ["700 W", str(Setting(400.0, 1500))]
    assert here.setting() == Setting(power_limit_w=400.0)
    machine.step(1.0)
    assert machine.state.effective(1, machine.clock()) == (400.0, 345, 1500, 0, 0)


# a real GPU


@pytest.mark.gpu
def test_a_real_gpu_reports_its_power_and_energy() -> None:
    device = open_device(nvml.identities()[0][0])
    assert not device.simulated
    samples = [device.sample()]
    for _ in range(15):
        device.clock.sleep(0.1)
        samples.append(device.sample())
    first, last = samples[0], samples[-1]
    powers_w = [sample.power_w for sample in samples]
    assert 0 < min(powers_w) <= max(powers_w) < 2000
    if device.can("energy"):  # what the counter says lies within what the sensor said meanwhile
        mean_w = (last.energy_j - first.energy_j) / (last.time_s - first.time_s)
        assert 0.95 * min(powers_w) - 2 < mean_w < 1.05 * max(powers_w) + 2
    low_w, high_w = device.limits.min_power_limit_w, device.limits.max_power_limit_w
    if low_w is not None and high_w is not None and device.can("power_limit"):
        limit_w = device.setting().power_limit_w
        assert limit_w is not None
        assert low_w <= limit_w <= high_w


@pytest.mark.gpu
def test_a_real_gpu_is_never_joined_by_simulated_ones() -> None:
    open_device(nvml.identities()[0][0])
    with pytest.raises(SimulationError, match="cannot use simulated GPUs"):
        open_device("sim:V100")


# performance counters (GPM)


def test_counters_are_means_of_what_the_units_did_between_two_readings(
    simulated: Callable[..., Machine],
) -> None:
    machine = simulated("H100", stepped=True)
    plan = [(0.5, 300.0, 1000, 2619, 1.0, 1.0, activity.pack(1.0)), (0.5, 120.0, 1000, 2619, 0.0, 0.0, 0)]
    machine.state.publish(0, machine.clock(), plan, (70.0, 345, 2619, 0.0, 0.0, 1))
    device = open_device()
    first = device.counters()
    machine.step(0.25)
    assert device.counted(first, device.counters())["dram_active"] == pytest.approx(1.0)
    machine.step(0.75)
    assert device.counted(first, device.counters()) == pytest.approx({"dram_active": 0.5})
    assert first.time_s == 0.0


def test_a_gpu_without_counters_reports_from_which_generation_on_there_are(
    simulated: Callable[..., Machine],
) -> None:
    simulated("A100", stepped=True)
    with pytest.raises(NotSupported, match=r"A100.*GPM.*Hopper"):
        open_device().counters()


def test_counters_of_a_gpu_cut_into_instances_are_refused_and_a_lost_one_is_lost(
    simulated: Callable[..., Machine],
) -> None:
    machine = simulated("H100", stepped=True)
    device = open_device()
    machine.state.set_card(0, "mig", 1)
    with pytest.raises(NotSupported, match="NVIDIA H100"):
        device.counters()
    machine.state.set_card(0, "mig", 0)
    machine.lose(0)
    with pytest.raises(GpuLost):
        device.counters()


def test_the_drivers_memory_for_counters_is_given_back(simulated: Callable[..., Machine]) -> None:
    machine = simulated("H100", stepped=True)
    device = open_device()
    free, freed = machine.library.nvmlGpmSampleFree, []
    machine.library.nvmlGpmSampleFree = lambda sample: freed.append(sample) or free(sample)
    kept = [device.counters() for _ in range(3)]
    assert freed == []
    del kept
    gc.collect()
    assert len(freed) == 3


def test_the_activity_bits_of_a_phase_do_not_appear_as_throttle_reasons(
    simulated: Callable[..., Machine],
) -> None:
    machine = simulated("H100", stepped=True)
    machine.state.publish(0, machine.clock(), [], (300.0, 1000, 2619, 1.0, 1.0, activity.pack(1.0) | 0x4))
    assert open_device().sample().throttle == 0x4


def test_a_driver_that_refuses_one_metric_still_reports_the_shares(simulated: Callable[..., Machine]) -> None:
    machine = simulated("H100", stepped=True)
    device = open_device()
    first = device.counters()
    machine.step(1.0)
    machine.inject("nvmlGpmMetricsGet", 2, times=1)
    assert set(device.counted(first, device.counters())) == {"dram_active"}
    machine.inject("nvmlGpmMetricsGet", 999)
    with pytest.raises(DriverError, match="NVIDIA H100"):
        device.counted(first, device.counters())
