"""Limits and clocks as real machines have them: capped by a controller, locked by an administrator, reset."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable

import pytest

import workbench
from workbench.device import control, journal, lease, nvml, restore
from workbench.errors import NoDriver, NotPermitted
from workbench.measurement import doctor, session
from workbench.records import Setting
from workbench.simulation.machine import Machine, idle

Simulated = Callable[..., Machine]


def locks(machine: Machine) -> tuple[int, int]:
    return machine.state.control(0, "lock_sm_min"), machine.state.control(0, "lock_sm_max")


class Waits:
    """A stepped machine's clock that is not known to be stepped."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def __call__(self) -> float:
        return self.machine.clock()

    def sleep(self, seconds: float) -> None:
        self.machine.step(seconds)


def works(machine: Machine, *stretches: tuple[float, int]) -> None:
    """The GPU is busy from now on, for so many seconds each with these clock event reasons."""
    plan = [(seconds, 200.0, 1005, 1593, 1.0, 0.5, reasons) for seconds, reasons in stretches]
    machine.state.publish(0, machine.clock(), plan, idle(machine.card(0)))


# requested and enforced limits (M11)


def test_a_capped_gpu_restores_the_requested_limit_not_the_cap(simulated: Simulated) -> None:
    machine = simulated("A100,capped", stepped=True)
    gpu = workbench.open_device(0)
    assert (gpu.setting().power_limit_w, gpu.enforced_limit_w()) == (400.0, 320.0)
    with gpu.applied(power_limit_w=350.0) as shown:  # before: "another program is changing the limit too"
        assert shown.power_limit_w == 350.0
    with gpu.applied(power_limit_w=250.0):
        assert gpu.enforced_limit_w() == 250.0
    assert machine.state.control(0, "limit_w") == 400.0  # not the cap's 320 W


def test_a_cap_that_hides_the_requested_limit_is_not_blamed_on_another_program(simulated: Simulated) -> None:
    machine = simulated("A100,capped", stepped=True)
    machine.inject("field:192", 3)
    gpu = workbench.open_device(0)
    assert gpu.write(Setting(power_limit_w=350.0)).power_limit_w == 320.0


def test_limits_that_a_cap_hides_are_not_tried(simulated: Simulated) -> None:
    simulated("A100,capped", stepped=True)
    assert control.highest_limit_w(workbench.open_device(0)) == 320.0
    simulated("A100", stepped=True)
    gpu = workbench.open_device(0)
    with gpu.applied(power_limit_w=250.0):  # asked for, and no cap
        assert control.highest_limit_w(gpu) == 400.0


def test_rights_are_found_without_a_change(simulated: Simulated) -> None:
    machine = simulated("A100", stepped=True, privileged=False)
    before = machine.state.generation(0)
    assert "CAP_SYS_ADMIN" in workbench.open_device(0).missing_rights()
    assert machine.state.generation(0) == before


# locks are ceilings (M9), and an administrator's are respected (M10)


def test_a_lock_is_a_ceiling_and_so_is_the_command_for_it(simulated: Simulated) -> None:
    machine = simulated("A100", stepped=True)
    gpu = workbench.open_device(0)
    with gpu.applied(sm_clock_mhz=1200) as shown:
        assert locks(machine) == (210, 1200)
        assert shown.sm_clock_mhz == 1200
    (line,) = gpu.commands(gpu.setting(), control.whole(Setting(sm_clock_mhz=1200), gpu))
    assert line.endswith("-lgc 210,1200")


def test_clocks_that_somebody_has_locked_are_refused_and_stay(
    simulated: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = simulated("A100", stepped=True)
    machine.state.change_setting(0, lock_sm_min=210, lock_sm_max=1005)
    machine.step(1.0)
    works(machine, (0.5, 0x2), (0.2, 0x1), (9.0, 0x2))  # with a gap, in which nothing shows
    gpu = workbench.open_device(0)
    monkeypatch.setattr(gpu, "clock", Waits(machine))
    with pytest.raises(NotPermitted, match="force=True"):
        gpu.apply(sm_clock_mhz=1200)
    assert locks(machine) == (210, 1005)
    assert lease.holder(gpu.uuid) == ""
    assert journal.of(gpu.uuid) is None
    with gpu.applied(power_limit_w=300.0):  # limits are not clocks
        assert machine.state.control(0, "limit_w") == 300.0
    with gpu.applied(sm_clock_mhz=1200, force=True):
        assert locks(machine) == (210, 1200)
    assert locks(machine) == (0, 0)


def test_a_lock_cannot_be_read_at_rest_and_the_doctor_reports_that(simulated: Simulated) -> None:
    machine = simulated("A100", stepped=True)
    machine.state.change_setting(0, lock_sm_min=1200, lock_sm_max=1410)
    machine.state.publish(0, machine.clock(), [], (60.0, 1200, 1215, 0.0, 0.0, 0x1))
    machine.step(1.0)
    gpu = workbench.open_device(0)
    assert gpu.clocks_are_set() is None
    clocks = next(each for each in doctor.gpu_findings(gpu, None, seconds=0.5) if each.what == "clocks")
    assert clocks.grade == "INFO"


@pytest.mark.parametrize(("sm_mhz", "locked"), [(1095, False), (900, True)])
def test_application_clocks_are_no_lock(
    simulated: Simulated, monkeypatch: pytest.MonkeyPatch, sm_mhz: int, locked: bool
) -> None:
    machine = simulated("A100", stepped=True)
    monkeypatch.setattr(nvml.nvml, "nvmlDeviceGetApplicationsClock", lambda handle, kind: 1095)
    monkeypatch.setattr(nvml.nvml, "nvmlDeviceGetDefaultApplicationsClock", lambda handle, kind: 1410)
    machine.state.publish(0, machine.clock(), [(9.0, 250.0, sm_mhz, 1215, 1.0, 0.5, 0x2)],
                          (60.0, 210, 1215, 0.0, 0.0, 1))
    machine.step(1.0)
    gpu = workbench.open_device(0)
    assert gpu.application_clock_mhz() == 1095
    assert gpu.clocks_are_set() is locked  # True for both before: "somebody has locked the clocks"
    monkeypatch.setattr(nvml.nvml, "nvmlDeviceGetDefaultApplicationsClock", lambda handle, kind: 1095)
    assert gpu.application_clock_mhz() is None


def test_a_lock_that_was_just_released_is_free(
    simulated: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = simulated("A100", stepped=True)
    works(machine, (2.5, 0x2), (9.0, 0x0))  # by a process that has just ended
    gpu = workbench.open_device(0)
    monkeypatch.setattr(gpu, "clock", Waits(machine))
    with gpu.applied(sm_clock_mhz=1200):
        assert locks(machine) == (210, 1200)
    assert 2.5 < machine.clock() < 3.0


def test_a_gpu_with_one_memory_clock_reports_it(simulated: Simulated) -> None:
    simulated("A100", stepped=True)
    assert "one memory clock" in workbench.open_device(0).why_not("lock_mem_clock")


@pytest.mark.parametrize(("card", "window_s"), [("A40", 1.0), ("A100", 0.025), ("RTX6000", 0.1)])
def test_a_driver_without_the_instant_power_reports_a_mean_of_a_second_on_ampere(
    simulated: Simulated, card: str, window_s: float
) -> None:
    simulated(card, stepped=True).inject("field:186", 3)
    assert workbench.open_device(0).power_window_s == window_s


def test_a_jetson_is_named(simulated: Simulated) -> None:
    simulated("A100", stepped=True).inject("nvmlDeviceGetPciInfo_v3", 3)
    with pytest.raises(NoDriver, match="Jetson"):
        workbench.open_device(0)


# what is found at a start


def test_a_limit_of_unknown_origin_is_reported_at_the_next_start_with_the_restore_command(
    simulated: Simulated,
) -> None:
    machine = simulated("A100,V100", stepped=True)
    machine.state.change_setting(1, limit_w=180.0)
    made = session.Session()
    assert len(made.devices) == 2
    (message,) = [each for each in made.messages if "default" in each]
    made.close()
    assert re.search("180 W.*250 W", message)
    assert "workbench restore --all" in message
    outcome = restore.to_default(workbench.open_device(1))
    assert outcome.settled
    assert restore.not_default(workbench.open_device(1)) == ""


def test_no_message_about_a_limit_that_the_user_may_not_change(simulated: Simulated) -> None:
    machine = simulated("A100", stepped=True, privileged=False)
    machine.state.change_setting(0, limit_w=180.0)
    assert restore.not_default(workbench.open_device(0)) == ""


def test_a_default_limit_after_a_kill_is_a_driver_that_was_unloaded(simulated: Simulated) -> None:
    machine = simulated("A100", stepped=True)
    gpu = workbench.open_device(0)
    machine.state.change_setting(0, limit_w=300.0)  # an administrator's
    with gpu.applied(power_limit_w=200.0):
        mine = journal.of(gpu.uuid)
    assert mine is not None
    dataclasses.replace(mine, pid=2**22 + os.getpid() % 1000).write()
    machine.state.change_setting(0, limit_w=400.0)
    (message,) = restore.recover()
    assert "400 W" in message
    assert journal.of(gpu.uuid) is None
