"""A lease changes several GPUs together, puts them back together, and is what a user's `gpu.apply` takes."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from workbench import _paths
from workbench.device import lease, watchdog
from workbench.device.discovery import devices, open_device
from workbench.device.gpu import OpenGpu
from workbench.device.lease import Lease
from workbench.errors import DeviceError, NotPermitted, OutOfRange, UsageError
from workbench.records import Setting
from workbench.simulation.machine import Machine

Simulated = Callable[..., Machine]
SET_LIMIT, NO_PERMISSION, TIMEOUT = "nvmlDeviceSetPowerManagementLimit", 4, 10


@pytest.fixture(autouse=True)
def own_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield
    lease.restore_all()
    watchdog.stop()


@pytest.fixture
def machine(simulated: Simulated) -> Machine:
    """An A100 at 400 W, and a V100 at 250 W, which takes no more."""
    return simulated("A100,V100", stepped=True)


def limits_w(machine: Machine) -> tuple[float, float]:
    return machine.state.control(0, "limit_w"), machine.state.control(1, "limit_w")


def locked_mhz(machine: Machine) -> tuple[float, float]:
    return machine.state.control(0, "lock_sm_max"), machine.state.control(1, "lock_sm_max")


def held() -> list[str]:
    return sorted(path.name for path in _paths.journals().iterdir())


def test_gpus_are_changed_and_restored_together(machine: Machine) -> None:
    with Lease(devices()) as mine:
        shown = mine.apply(Setting(power_limit_w=200.0))
        assert [setting.power_limit_w for setting in shown] == [200.0, 200.0]
        assert mine.apply([Setting(300.0), Setting(150.0)]) == (Setting(300.0), Setting(150.0))
        assert limits_w(machine) == (300.0, 150.0)
        assert [setting.power_limit_w for setting in mine.found] == [400.0, 250.0]
        assert len(held()) == 2
    assert (limits_w(machine), held(), mine.holds) == ((400.0, 250.0), [], False)


def test_a_refused_first_change_leaves_no_gpu_changed_or_held(machine: Machine) -> None:
    mine = Lease(devices())
    with pytest.raises(OutOfRange, match="300 W is outside"):
        mine.apply(Setting(power_limit_w=300.0))  # the A100 takes it
    assert (limits_w(machine), held(), mine.holds) == ((400.0, 250.0), [], False)


def test_a_refused_later_change_keeps_the_earlier_setting(machine: Machine) -> None:
    with Lease(devices()) as mine:
        mine.apply(Setting(power_limit_w=200.0, sm_clock_mhz=1005))
        machine.state.inject(SET_LIMIT, NO_PERMISSION, gpu=1)
        with pytest.raises(NotPermitted):
            mine.apply(Setting(power_limit_w=150.0, sm_clock_mhz=1200))
        machine.state.clear_faults()
        assert (limits_w(machine), locked_mhz(machine)) == ((200.0, 200.0), (1005, 1005))
    assert (limits_w(machine), locked_mhz(machine)) == ((400.0, 250.0), (0, 0))


def test_a_whole_setting_restores_unnamed_values_and_keeps_the_lease(machine: Machine) -> None:
    with lease.applied(open_device(0), Setting(power_limit_w=350.0)), Lease(devices()) as mine:
        mine.put(Setting(power_limit_w=200.0, sm_clock_mhz=1005))
        mine.put(Setting(sm_clock_mhz=1200))
        assert (limits_w(machine), locked_mhz(machine)) == ((350.0, 250.0), (1200, 1200))
        mine.put(Setting())
        assert (limits_w(machine), locked_mhz(machine)) == ((350.0, 250.0), (0, 0))
        assert len(held()) == 2
    assert (limits_w(machine), held()) == ((400.0, 250.0), [])


def test_a_refused_whole_setting_restores_the_original(machine: Machine) -> None:
    with Lease(devices()) as mine:
        mine.put(Setting(power_limit_w=200.0))
        with pytest.raises(OutOfRange):
            mine.put(Setting(power_limit_w=300.0))
        assert limits_w(machine) == (400.0, 250.0)
        mine.put(Setting(power_limit_w=200.0))
        assert limits_w(machine) == (200.0, 200.0)


def test_a_limit_that_another_program_sets_is_noticed_and_left_alone(machine: Machine) -> None:
    mine = Lease(devices())
    mine.apply(Setting(power_limit_w=200.0))
    assert mine.changed_externally() == ""
    machine.state.change_setting(1, limit_w=180.0)
    assert "Tesla V100" in mine.changed_externally()
    assert "180 W" in "".join(mine.release())
    assert limits_w(machine) == (400.0, 180.0)


def test_one_gpu_that_does_not_answer_keeps_no_other_changed(machine: Machine) -> None:
    outer = Lease(devices())
    outer.apply(Setting(power_limit_w=240.0))
    mine = Lease(devices())
    mine.apply(Setting(power_limit_w=200.0))
    machine.state.inject(SET_LIMIT, TIMEOUT, gpu=0)
    with pytest.raises(DeviceError):
        mine.restore()
    assert limits_w(machine) == (200.0, 240.0)
    machine.state.clear_faults()
    assert mine.restore() == []
    assert limits_w(machine) == (240.0, 240.0)
    assert outer.restore() == []
    assert limits_w(machine) == (400.0, 250.0)


def test_a_setting_restored_meanwhile_is_left_alone_and_a_lease_starts_again(machine: Machine) -> None:
    mine = Lease(devices())
    mine.apply(Setting(power_limit_w=200.0))
    lease.restore_all()
    machine.state.change_setting(1, limit_w=220.0)
    assert (mine.holds, mine.restore(), limits_w(machine)) == (False, [], (400.0, 220.0))
    mine.apply(Setting(power_limit_w=200.0))
    assert mine.restore() == []
    assert limits_w(machine) == (400.0, 220.0)


# what users have


def test_a_gpu_is_put_to_a_setting_for_a_block(machine: Machine) -> None:
    gpu = open_device(1)
    with gpu.applied(power_limit_w=200, sm_clock_mhz=1005) as shown:
        assert shown == Setting(200.0, 1005)
        with gpu.applied(Setting(power_limit_w=150.0)):
            assert limits_w(machine)[1] == 150.0
        assert (limits_w(machine)[1], locked_mhz(machine)[1]) == (200.0, 1005)
    assert (limits_w(machine)[1], locked_mhz(machine)[1], held()) == (250.0, 0, [])


def test_changes_by_a_user_are_undone_step_by_step(machine: Machine) -> None:
    gpu = open_device(1)
    assert gpu.apply(power_limit_w=200) == Setting(200.0)
    assert gpu.apply(Setting(power_limit_w=150.0, sm_clock_mhz=1005)) == Setting(150.0, 1005)
    assert "200 W" in gpu.undo()
    assert held()
    assert "250 W" in gpu.undo()
    assert (limits_w(machine)[1], locked_mhz(machine)[1], held()) == (250.0, 0, [])
    with pytest.raises(UsageError, match="nothing to undo"):
        gpu.undo()


def test_a_setting_restored_meanwhile_is_not_undone_again(machine: Machine) -> None:
    gpu = open_device(1)
    gpu.apply(power_limit_w=200)
    lease.restore_all()
    with pytest.raises(UsageError, match="nothing to undo"):
        gpu.undo()


@pytest.mark.parametrize("change", [OpenGpu.apply, OpenGpu.applied])
def test_a_change_names_a_setting_or_its_knobs(machine: Machine, change: Callable[..., object]) -> None:
    gpu = open_device(1)
    with pytest.raises(UsageError):
        change(gpu)
    with pytest.raises(UsageError):
        change(gpu, Setting(200.0), power_limit_w=200.0)
    assert (limits_w(machine)[1], held()) == (250.0, [])


def test_a_hold_lists_its_changes_and_each_can_be_undone(machine: Machine) -> None:
    gpu, slider = open_device(), Lease([open_device()], who="slider")

    def changes() -> list[tuple[str, float | None, float | None]]:
        return [(each.who, each.found.power_limit_w, each.current.power_limit_w) for each in lease.changes(gpu.uuid)]

    slider.apply(Setting(power_limit_w=200.0))
    gpu.apply(power_limit_w=150.0)
    assert changes() == [("slider", 400.0, 200.0), ("program", 200.0, 150.0)]
    assert [each.who for each in lease.changes(gpu.uuid, "slider")] == ["slider"]
    gpu.undo()
    assert changes() == [("slider", 400.0, 200.0)]
    assert lease.changes(gpu.uuid)[0].restore() == ""
    assert (changes(), limits_w(machine)[0]) == ([], 400.0)


HOLD = """
import sys
from workbench.device import journal
lock = journal.lock("GPU-0a", "A100", sys.argv[1])
print("held" if lock else "refused", flush=True)
sys.stdin.readline()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="record locks")
@pytest.mark.parametrize(("same_file", "second"), [(True, "refused"), (False, "held")])
def test_containers_that_share_only_the_gpus_file_keep_out_of_each_others_way(
    tmp_path: Path, same_file: bool, second: str
) -> None:
    outcomes, holders = [], []
    for number in range(2):
        own = tmp_path / str(number)
        own.mkdir()
        node = tmp_path / f"nvidia{0 if same_file else number}"
        node.touch()
        holders.append(subprocess.Popen(
            [sys.executable, "-c", HOLD, str(node)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "TMPDIR": str(own), "WORKBENCH_HOME": str(own / "home")},
        ))
        out = holders[-1].stdout
        assert out is not None
        outcomes.append(out.readline().strip())
    for each in holders:
        each.communicate("\n")
    assert outcomes == ["held", second]
