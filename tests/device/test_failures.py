"""The 26 ways in which a driver is known to fail, in order, and what each becomes.

That is an error with the way out, or a reading from elsewhere. The simulated NVML fails with the driver's own
codes.
"""

from __future__ import annotations

import ctypes
import math
import os
import re
from collections.abc import Callable

import pynvml
import pytest

from workbench.device import nvml
from workbench.device.discovery import devices, open_device, why_no_gpu
from workbench.device.nvml import NvmlDevice, library
from workbench.device.nvml.library import error_for
from workbench.errors import (
    DeviceError,
    DriverError,
    GpuLost,
    NoDriver,
    NotPermitted,
    NotSupported,
    OutOfRange,
    Transient,
    UnknownGpu,
)
from workbench.records import Setting, throttle_names
from workbench.simulation.machine import Machine
from workbench.simulation.state import ABILITIES

Simulated = Callable[..., Machine]


def lacking(machine: Machine, *names: str) -> None:
    """Take abilities off the simulated card."""
    present = machine.state.card(0, "abilities")
    for name in names:
        present &= ~(1 << ABILITIES.index(name))
    machine.state.set_card(0, "abilities", present)


def no_driver(machine: Machine, code: int) -> str:
    """The reason where the library loads and its start fails with a code."""
    machine.state.set_header("driver_fault", code)
    assert devices() == []
    with pytest.raises(NoDriver, match=r"simulate\('A100'\)") as caught:
        open_device()
    assert caught.value.code == code
    return why_no_gpu()


def test_every_nvml_error_has_its_class_and_a_message() -> None:
    codes = {name: value for name, value in vars(pynvml).items() if name.startswith("NVML_ERROR_")}
    assert len(codes) >= 31
    assert [name for name, code in codes.items() if code not in library.ERRORS] == []
    for code in codes.values():
        error = error_for(code, "reading a GPU")
        assert isinstance(error, DeviceError)
        assert error.code == code
        assert re.fullmatch(r"reading a GPU: .{15,}", str(error))


def test_01_no_driver_library(simulated: Simulated) -> None:
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        assert devices() == []
        with pytest.raises(NoDriver, match=r"libnvidia-ml\.so\.1.*simulate\('A100'\)") as caught:
            open_device()
        assert caught.value.code == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND
    assert "no NVIDIA driver" in no_driver(simulated(stepped=True), pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "module.*reboot"),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "upgraded.*reboot"),
        (pynvml.NVML_ERROR_GPU_NOT_FOUND, "finds no GPU"),
    ],
    ids=["02_the_kernel_module_is_not_loaded", "03_the_driver_was_upgraded", "08_no_gpu_was_found"],
)
def test_02_03_08(simulated: Simulated, code: int, reason: str) -> None:
    assert re.search(reason, no_driver(simulated(stepped=True), code))


def test_04_an_old_driver_lacks_a_function(stepped: Machine) -> None:
    for name in ("GetFieldValues", "GetTemperatureV", "GetCurrentClocksEventReasons", "SetGpuLockedClocks"):
        stepped.library.forget(f"nvmlDevice{name}")
    device = open_device()
    stepped.step(1.0)
    sample = device.sample()  # one call each in the older way
    assert (sample.power_w, sample.power_limit_w, sample.temperature_c, sample.throttle) == (26.0, 250.0, 33, 1)
    assert sample.energy_j == pytest.approx(3601 * 26.0)
    with pytest.raises(NotSupported, match=r"900 MHz.*too old") as caught:
        device.write(Setting(sm_clock_mhz=900))
    assert caught.value.code == pynvml.NVML_ERROR_FUNCTION_NOT_FOUND


def test_04_a_driver_that_knows_no_architectures(stepped: Machine) -> None:
    stepped.library.forget("nvmlDeviceGetArchitecture")
    device = open_device()
    assert (device.architecture, device.compute_capability) == ("unknown", (7, 0))
    assert "too old" in device.why_not("architecture")
    assert device.sample().power_w == 26.0


def test_05_nvml_was_shut_down_under_an_open_device(stepped: Machine) -> None:
    device = open_device()
    pynvml.nvmlShutdown()
    for read in (device.energy_j, device.sample):
        with pytest.raises(Transient, match=r"shut down.*again"):
            read()
    assert open_device().sample().power_limit_w == 250.0  # and that works
    assert device.energy_j() > 0


def test_06_an_index_beyond_the_last_gpu(simulated: Simulated) -> None:
    simulated("V100,A100", stepped=True)
    with pytest.raises(UnknownGpu, match=r"GPU 2 .*0, 1"):
        open_device(2)
    with pytest.raises(OutOfRange, match="GPU 2") as caught:
        nvml.open_index(2)
    assert caught.value.code == pynvml.NVML_ERROR_INVALID_ARGUMENT


def test_07_a_uuid_of_no_gpu(stepped: Machine) -> None:
    with pytest.raises(UnknownGpu, match=r"'GPU-12345678'.*Tesla V100"):
        open_device("GPU-12345678")
    for name in ("GPU-12345678", "MIG-12345678"):
        with pytest.raises(UnknownGpu, match=f"{name}: .*`nvidia-smi -L`") as caught:
            nvml.open_uuid(name)
        assert caught.value.code == pynvml.NVML_ERROR_NOT_FOUND


def test_08_a_driver_without_gpus(stepped: Machine) -> None:
    stepped.state.count = 0
    assert (devices(), "no GPU" in why_no_gpu()) == ([], True)
    with pytest.raises(NoDriver, match="finds no GPU"):
        open_device()


@pytest.mark.parametrize(
    ("code", "advice"),
    [(15, "reboot"), (16, "nvidia-smi --gpu-reset")],
    ids=["09_a_gpu_falls_off_the_bus", "10_a_gpu_needs_a_reset"],
)
def test_09_10(simulated: Simulated, code: int, advice: str) -> None:
    machine = simulated("V100,A100", stepped=True)
    device, other = open_device("sim:V100"), open_device("sim:A100")
    machine.lose(0, code)
    for _ in range(2):  # and it does not come back by itself
        for read in (device.energy_j, device.sample, device.setting, lambda: device.write(Setting(200.0))):
            with pytest.raises(GpuLost, match=advice) as caught:
                read()
            assert caught.value.code == code
    with pytest.raises(GpuLost):
        nvml.open_index(0)
    assert device.processes() == ()
    assert other.sample().power_w > 0  # the other one lives
    assert [each.uuid for each in devices()] == [other.uuid]


def test_09_a_gpu_is_lost_in_the_answers_to_fields_alone(stepped: Machine) -> None:
    device = open_device()
    stepped.inject("field:186", pynvml.NVML_ERROR_GPU_IS_LOST)
    with pytest.raises(GpuLost):
        device.sample()


@pytest.mark.parametrize("code", [17, 4])
def test_11_the_operating_system_hides_a_gpu(simulated: Simulated, code: int) -> None:
    machine = simulated("V100,A100", stepped=True)
    machine.inject("nvmlDeviceGetHandleByIndex_v2", code, gpu=0)
    assert [device.index for device in devices()] == [1]  # CUDA in this cgroup does not count it either
    assert open_device(0).name.startswith("NVIDIA A100")
    with pytest.raises(NotPermitted, match=r"GPU 0.*(cgroup|CAP_SYS_ADMIN)") as caught:
        nvml.open_index(0)
    assert caught.value.code == code


@pytest.mark.parametrize(
    "setting", [Setting(power_limit_w=150.0), Setting(sm_clock_mhz=900), Setting(mem_clock_mhz=5001)]
)
def test_12_setting_without_the_right_to(simulated: Simulated, setting: Setting) -> None:
    machine = simulated("A40", stepped=True, privileged=False)
    device = open_device()
    with pytest.raises(NotPermitted, match=r"CAP_SYS_ADMIN") as caught:
        device.write(setting)
    assert caught.value.code == pynvml.NVML_ERROR_NO_PERMISSION
    assert isinstance(caught.value, PermissionError)
    assert machine.state.generation(0) == 0
    assert device.setting() == Setting(power_limit_w=300.0)
    assert device.sample().power_limit_w == 300.0  # reading takes no right


def test_13_a_limit_out_of_range(stepped: Machine) -> None:
    device = open_device()
    with pytest.raises(OutOfRange, match=r"300 W.*100\.\.250 W") as caught:
        device.write(Setting(power_limit_w=300.0))
    assert caught.value.code is None  # told before the driver was asked
    assert isinstance(caught.value, ValueError)
    assert stepped.state.generation(0) == 0


def test_13_the_driver_narrows_a_limit_that_was_in_range_before(stepped: Machine) -> None:
    device = open_device()
    stepped.state.set_card(0, "limit_max_w", 200.0)
    with pytest.raises(OutOfRange, match="240 W"):
        device.write(Setting(power_limit_w=240.0))


def test_14_a_laptop_whose_limit_is_not_for_us(simulated: Simulated) -> None:
    machine = simulated("RTX4090", stepped=True)
    lacking(machine, "power_limit", "set_power_limit")
    device = open_device()
    assert not device.can("set_power_limit")
    with pytest.raises(NotSupported, match="power limit"):
        device.write(Setting(power_limit_w=300.0))
    assert device.setting() == Setting()
    assert device.sample().power_limit_w == 450.0  # what is enforced is still told
    clock = device.limits.sm_clocks_mhz[10501][10]
    assert device.write(Setting(sm_clock_mhz=clock)) == Setting(sm_clock_mhz=clock)  # and clocks can be locked


def test_14_a_virtual_gpu_that_shows_a_limit_and_sets_none(stepped: Machine) -> None:
    lacking(stepped, "set_power_limit")
    with pytest.raises(NotSupported, match="150 W") as caught:
        open_device().write(Setting(power_limit_w=150.0))
    assert caught.value.code == pynvml.NVML_ERROR_NOT_SUPPORTED


def test_15_a_setter_that_hides_its_failure(simulated: Simulated) -> None:
    simulated(stepped=True, privileged=False)
    device = open_device()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    assert pynvml.nvmlDeviceSetPowerManagementLimit_v2(handle, 0, 150_000) == pynvml.NVML_SUCCESS
    assert device.setting().power_limit_w == 250.0
    with pytest.raises(NotPermitted):  # which is not the way we go
        device.write(Setting(power_limit_w=150.0))


def test_15_a_driver_that_reports_success_and_does_nothing_is_detected(stepped: Machine) -> None:
    device = open_device()
    stepped.library.nvmlDeviceSetPowerManagementLimit = lambda *_: pynvml.NVML_SUCCESS
    with pytest.raises(DriverError, match=r"150 W.*250 W"):
        device.write(Setting(power_limit_w=150.0))


def test_16_a_clock_that_the_card_does_not_have(simulated: Simulated) -> None:
    machine = simulated("A40", stepped=True)
    device = open_device()
    with pytest.raises(OutOfRange, match=r"1001 MHz.*210\.\.1740 MHz.*1005"):
        device.write(Setting(sm_clock_mhz=1001))
    with pytest.raises(OutOfRange, match=r"7000 MHz.*7251, 6251"):
        device.write(Setting(mem_clock_mhz=7000))
    assert machine.state.generation(0) == 0


def test_16_a_symbolic_clock_with_a_number(stepped: Machine) -> None:
    open_device()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceSetGpuLockedClocks(handle, pynvml.NVML_CLOCK_LIMIT_ID_TDP, 900)
    pynvml.nvmlDeviceSetGpuLockedClocks(
        handle, pynvml.NVML_CLOCK_LIMIT_ID_TDP, pynvml.NVML_CLOCK_LIMIT_ID_UNLIMITED
    )


def test_16_a_refused_clock_takes_back_the_limit_that_came_with_it(simulated: Simulated) -> None:
    machine = simulated("A40", stepped=True)
    device = open_device()
    machine.inject("nvmlDeviceSetGpuLockedClocks", pynvml.NVML_ERROR_FREQ_NOT_SUPPORTED)
    with pytest.raises(OutOfRange, match=r"SM.*1500 MHz") as caught:
        device.write(Setting(power_limit_w=200.0, sm_clock_mhz=1500, mem_clock_mhz=5001))
    assert caught.value.code == pynvml.NVML_ERROR_FREQ_NOT_SUPPORTED
    assert device.setting() == Setting(power_limit_w=300.0)
    machine.step(1.0)
    assert machine.state.effective(0, 1.0) == (300.0, 0, 0, 0, 0)


@pytest.mark.parametrize("card", ["P100", "V100", "RTX6000", "A100"])
def test_17_locking_the_memory_before_ampere_or_with_one_clock(simulated: Simulated, card: str) -> None:
    simulated(card, stepped=True)
    device = open_device()
    clock = device.limits.mem_clocks_mhz[0]
    with pytest.raises(NotSupported, match="memory clock"):
        device.write(Setting(mem_clock_mhz=clock))
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceSetMemoryLockedClocks(pynvml.nvmlDeviceGetHandleByIndex(0), clock, clock)


def test_18_no_energy_counter_before_volta(simulated: Simulated) -> None:
    simulated("P100", stepped=True)
    device = open_device()
    assert not device.can("energy")
    assert device.why_not("energy")
    with pytest.raises(NotSupported, match="Tesla P100") as caught:
        device.energy_j()
    assert caught.value.code == pynvml.NVML_ERROR_NOT_SUPPORTED
    sample = device.sample()
    assert math.isnan(sample.energy_j)  # never a zero
    assert sample.power_w > 0  # from which energy can be had


@pytest.mark.parametrize(
    ("card", "code"), [("V100", 3), ("RTX6000", 3), ("A100", 3), ("A40", 0), ("H100", 0)]
)
def test_19_no_averaged_power_on_ga100_and_older(simulated: Simulated, card: str, code: int) -> None:
    machine = simulated(card, stepped=True)
    machine.library.forget("nvmlDeviceGetPowerUsage")
    device = open_device()
    values = pynvml.nvmlDeviceGetFieldValues(pynvml.nvmlDeviceGetHandleByIndex(0), [185, 186])
    assert [value.nvmlReturn for value in values] == [code, 0]  # one by one: the call as a whole succeeds
    assert device.sample().power_w > 0  # of the field that all of them have


def test_20_no_power_at_all(simulated: Simulated) -> None:
    machine = simulated(stepped=True)
    lacking(machine, "power", "instant_field")
    device = open_device()
    assert not device.can("power")
    sample = device.sample()
    assert math.isnan(sample.power_w)
    assert sample.energy_j > 0


def test_20_a_jetson_that_starts_and_answers_nothing(simulated: Simulated) -> None:
    """NVML starts and counts one GPU, and every question about it is refused: the probing decides, not the
    start.
    """
    machine = simulated(stepped=True)
    lacking(machine, *ABILITIES)
    machine.inject("nvmlDeviceGetEnforcedPowerLimit", 3)
    device = open_device()
    for name in ("power", "energy", "enforced_limit", "limits", "clocks", "utilisation", "set_power_limit",
                 "lock_sm_clock"):
        assert not device.can(name)
        assert device.why_not(name)
    sample = device.sample()
    assert all(math.isnan(value) for value in sample[1:8])
    for setting in (Setting(power_limit_w=100.0), Setting(sm_clock_mhz=900), Setting(mem_clock_mhz=877)):
        with pytest.raises(NotSupported):
            device.write(setting)


def test_21_a_superchip_reports_the_power_of_its_module(simulated: Simulated) -> None:
    machine = simulated("H100", stepped=True)
    machine.state.set_card(0, "power_scope", 1)
    machine.state.set_card(0, "noise", 0.0)
    values = pynvml_fields([(186, 0), (186, 1)])
    assert [value.nvmlReturn for value in values] == [3, 0]
    device = open_device()
    assert "whole module" in device.note
    assert device.sample().power_w == pytest.approx(machine.state.card(0, "idle_w"), abs=0.001)


def pynvml_fields(fields: list[tuple[int, int]]) -> list[pynvml.c_nvmlFieldValue_t]:
    pynvml.nvmlInit()
    return list(pynvml.nvmlDeviceGetFieldValues(pynvml.nvmlDeviceGetHandleByIndex(0), fields))


@pytest.mark.parametrize("code", [3, 10, 21, 27, 999])
def test_22_a_reading_is_refused_this_once(stepped: Machine, code: int) -> None:
    device = open_device()
    stepped.inject("field:186", code, times=1)
    one = device.sample()
    assert math.isnan(one.power_w)
    assert one.energy_j > 0
    stepped.inject("nvmlDeviceGetFieldValues", code, times=1)
    stepped.inject("nvmlDeviceGetUtilizationRates", code, times=1)
    stepped.inject("nvmlDeviceGetTemperatureV", code, times=1)
    none = device.sample()
    assert all(
        math.isnan(value) for value in (none.power_w, none.energy_j, none.utilisation, none.temperature_c)
    )
    assert none.sm_clock_mhz == 135  # what was not refused is there
    again = device.sample()
    assert (again.power_w, again.temperature_c) == (26.0, 33)


def test_22_zero_milliwatts_is_no_reading(stepped: Machine) -> None:
    device = open_device()
    stepped.state.set_card(0, "offset_w", -1000.0)
    assert math.isnan(device.sample().power_w)
    stepped.state.set_card(0, "offset_w", 0.0)
    assert device.sample().power_w == 26.0


def test_22_a_hiccup_while_a_device_opens_costs_no_capability(stepped: Machine) -> None:
    stepped.inject("field:83", pynvml.NVML_ERROR_TIMEOUT, times=2)
    stepped.inject("nvmlDeviceGetUtilizationRates", pynvml.NVML_ERROR_NO_DATA, times=2)
    device = open_device()
    assert device.can("energy")
    assert device.can("utilisation")


def test_23_the_counter_goes_back_when_the_driver_is_reloaded(stepped: Machine) -> None:
    """The device returns the counter as it is; a window measured over the reload has a difference below zero.
    """
    device = open_device()
    stepped.step(10.0)
    before_j = device.energy_j()
    stepped.state.set_control(0, "counter_reset_j", stepped.state.true_energy_j(0, 10.0))
    stepped.step(1.001)
    assert before_j == pytest.approx(3610 * 26.0)
    assert device.energy_j() == device.sample().energy_j == pytest.approx(26.0)


def test_24_less_is_enforced_than_was_asked_for(stepped: Machine) -> None:
    device = open_device()
    device.write(Setting(power_limit_w=200.0))
    stepped.state.set_control(0, "enforced_w", 160.0)
    stepped.state.set_control(0, "forced_reasons", 0x40)
    sample = device.sample()  # no error: both limits and the reason are told
    assert (device.setting().power_limit_w, sample.power_limit_w) == (200.0, 160.0)
    assert throttle_names(sample.throttle) == ("thermal (hardware)",)


# 25, another process changed the setting meanwhile: test_control.py


@pytest.mark.parametrize(
    ("code", "kind", "advice"),
    [
        (999, DriverError, "unknown error"),
        (77, DriverError, "Unknown Error"),  # from the library: no table here has it
        (25, NotSupported, "pynvml"),
        (7, DriverError, ""),
    ],
)
def test_26_codes_that_pynvml_does_not_know(
    stepped: Machine, code: int, kind: type[DeviceError], advice: str
) -> None:
    device = open_device()
    stepped.inject("nvmlDeviceGetTotalEnergyConsumption", code, times=1)
    with pytest.raises(kind, match=advice or "counter") as caught:
        device.energy_j()
    assert caught.value.code == code
    assert device.energy_j() > 0


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_forked_child_goes_on_reading(stepped: Machine) -> None:
    device = open_device()
    child = os.fork()
    if child == 0:  # pragma: no cover - the child says how it went by its exit code
        os._exit(0 if isinstance(device, NvmlDevice) and device.sample().power_w == 26.0 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
