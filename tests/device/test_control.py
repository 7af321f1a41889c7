"""Every change is restored after success, failure, exit and kill, and its author is always clear."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from workbench import _paths
from workbench._processes import boot_id, runs
from workbench.device import lease, restore, watchdog
from workbench.device.discovery import open_device
from workbench.device.journal import Journal
from workbench.device.nvml import NvmlDevice
from workbench.errors import DeviceError, DeviceHeld, NotPermitted, NotSupported, OutOfRange
from workbench.records import Setting
from workbench.simulation.machine import Machine

Simulated = Callable[..., Machine]
SET_LIMIT, LOCK_SM, RESET_SM = (
    "nvmlDeviceSetPowerManagementLimit", "nvmlDeviceSetGpuLockedClocks", "nvmlDeviceResetGpuLockedClocks",
)
TIMEOUT, UNKNOWN, NO_PERMISSION = 10, 999, 4


@pytest.fixture(autouse=True)
def own_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, simulated: Simulated) -> Iterator[None]:
    """Locks of this test alone, also in its children; nothing held afterwards."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield
    lease.restore_all()
    watchdog.stop()


@pytest.fixture
def machine(simulated: Simulated) -> Machine:
    """A V100 at its 250 W, in a machine that other processes see; its clock stands still."""
    return simulated("V100", stepped=True)


def limit_w(machine: Machine) -> float:
    return float(machine.state.control(0, "limit_w"))


def locked_mhz(machine: Machine) -> int:
    return int(machine.state.control(0, "lock_sm_max"))


def journals() -> list[str]:
    return sorted(path.name for path in _paths.journals().iterdir())


def set_by_another_program(machine: Machine, watts: float) -> None:
    machine.state.change_setting(0, limit_w=watts)


def wait_until(true: Callable[[], bool], timeout_s: float = 240.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while not true() and time.monotonic() < deadline:
        time.sleep(0.02)
    return true()


# in one process


def test_a_setting_lasts_as_long_as_its_block(machine: Machine) -> None:
    device = open_device()
    with lease.applied(device, Setting(power_limit_w=150.0, sm_clock_mhz=1005)) as got:
        assert got == Setting(power_limit_w=150.0, sm_clock_mhz=1005)
        assert (limit_w(machine), locked_mhz(machine)) == (150.0, 1005)
        assert journals() == [f"{device.uuid}.json"]
        assert lease.holder(device.uuid) == "this process"
    assert (limit_w(machine), locked_mhz(machine)) == (250.0, 0)
    assert journals() == []
    assert lease.holder(device.uuid) == ""


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_a_setting_is_restored_when_the_work_fails(machine: Machine, error: type[BaseException]) -> None:
    with pytest.raises(error), lease.applied(open_device(), Setting(power_limit_w=150.0)):
        raise error
    assert limit_w(machine) == 250.0
    assert journals() == []


def test_a_change_restores_the_setting_found_before(machine: Machine) -> None:
    set_by_another_program(machine, 200.0)  # by the administrator, say: not the card's default
    with lease.applied(open_device(), Setting(power_limit_w=150.0)):
        pass
    assert limit_w(machine) == 200.0


def test_an_inner_block_restores_the_setting_of_the_outer_block(machine: Machine) -> None:
    device = open_device()
    with lease.applied(device, Setting(power_limit_w=200.0)):
        with lease.applied(device, Setting(power_limit_w=150.0, sm_clock_mhz=1005)):
            assert (limit_w(machine), locked_mhz(machine)) == (150.0, 1005)
        assert (limit_w(machine), locked_mhz(machine)) == (200.0, 0)
        with lease.applied(device, Setting(sm_clock_mhz=900)):
            assert (limit_w(machine), locked_mhz(machine)) == (200.0, 900)
        assert journals() != []
    assert (limit_w(machine), locked_mhz(machine)) == (250.0, 0)


def test_a_block_inside_a_lasting_change_leaves_that_change(machine: Machine) -> None:
    device = open_device()
    lease.change(device, Setting(power_limit_w=200.0))
    with lease.applied(device, Setting(power_limit_w=150.0)):
        pass
    assert limit_w(machine) == 200.0
    assert lease.restore(device) == ""
    assert limit_w(machine) == 250.0


def test_blocks_that_end_in_the_wrong_order_still_end_at_the_beginning(machine: Machine) -> None:
    device = open_device()
    outer = lease.applied(device, Setting(power_limit_w=200.0))
    inner = lease.applied(device, Setting(power_limit_w=150.0))
    outer.__enter__()
    inner.__enter__()
    outer.__exit__(None, None, None)
    inner.__exit__(None, None, None)
    assert limit_w(machine) == 250.0
    assert lease.holder(device.uuid) == ""


def test_changes_add_up_and_one_restore_undoes_them(machine: Machine) -> None:
    device = open_device()
    for watts in (200.0, 150.0, 175.0):
        assert lease.change(device, Setting(power_limit_w=watts)).power_limit_w == watts
    lease.change(device, Setting(sm_clock_mhz=1005))
    assert lease.restore_all() == []
    assert (limit_w(machine), locked_mhz(machine)) == (250.0, 0)
    assert lease.restore(device) == ""  # nothing is held any more


def test_two_gpus_are_held_and_restored_apart(simulated: Simulated) -> None:
    machine = simulated("V100,A100", stepped=True)
    one, two = open_device(0), open_device(1)
    lease.change(one, Setting(power_limit_w=150.0))
    lease.change(two, Setting(power_limit_w=300.0))
    lease.restore(one)
    assert (machine.state.control(0, "limit_w"), machine.state.control(1, "limit_w")) == (250.0, 300.0)
    lease.restore_all()
    assert machine.state.control(1, "limit_w") == two.limits.default_power_limit_w


@pytest.mark.parametrize(
    ("setting", "error"),
    [
        (Setting(power_limit_w=1000.0), OutOfRange),
        (Setting(sm_clock_mhz=1), OutOfRange),
        (Setting(mem_clock_mhz=877), NotSupported),
    ],
)
def test_a_refused_setting_changes_nothing(
    machine: Machine, setting: Setting, error: type[DeviceError]
) -> None:
    device = open_device()
    with pytest.raises(error), lease.applied(device, setting):
        pytest.fail("the block must not run")
    assert (limit_w(machine), locked_mhz(machine), journals(), lease.holder(device.uuid)) == (250.0, 0, [], "")


@pytest.mark.parametrize(
    "setting", [Setting(power_limit_w=150.0), Setting(power_limit_w=150.0, sm_clock_mhz=1005)]
)
def test_without_the_right_nothing_is_changed_and_no_journal_is_left(
    simulated: Simulated, setting: Setting
) -> None:
    machine = simulated("V100", stepped=True, privileged=False)
    device = open_device()
    with pytest.raises(NotPermitted, match="CAP_SYS_ADMIN"), lease.applied(device, setting):
        pytest.fail("the block must not run")
    assert (limit_w(machine), machine.state.generation(0), journals()) == (250.0, 0, [])
    assert lease.holder(device.uuid) == ""


@pytest.mark.parametrize(("watts", "message"), [(180.0, ".*180 W.*250 W.*"), (250.0, "")])
def test_25_a_limit_that_another_program_has_set_meanwhile_is_left_alone(
    machine: Machine, watts: float, message: str
) -> None:
    device = open_device()
    lease.change(device, Setting(power_limit_w=150.0))
    set_by_another_program(machine, watts)
    assert re.fullmatch(message, lease.restore(device))
    assert (limit_w(machine), journals()) == (watts, [])


def test_a_restore_that_the_driver_refuses_is_reported_and_tried_again(machine: Machine) -> None:
    device = open_device()
    lease.change(device, Setting(power_limit_w=150.0))
    machine.inject(SET_LIMIT, UNKNOWN)
    with pytest.warns(RuntimeWarning, match=f"{device.uuid}.*power limit .250 W.*`workbench restore`") as warned:
        message = lease.restore(device)
    assert [str(each.message) for each in warned] == [message]
    machine.state.clear_faults()
    assert limit_w(machine) == 150.0
    assert journals() == [f"{device.uuid}.json"]
    with lease.applied(device, Setting(power_limit_w=120.0)):  # the next change knows what is owed
        assert limit_w(machine) == 120.0
    assert limit_w(machine) == 250.0
    assert journals() == []


def test_a_setting_is_restored_after_two_refusals(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restore, "PATIENCE_S", (0.0,))
    device = open_device()
    lease.change(device, Setting(power_limit_w=150.0))
    machine.inject(SET_LIMIT, UNKNOWN, times=4)  # each time the device tries to undo it, too
    with pytest.warns(RuntimeWarning, match="250 W"):
        assert lease.restore(device)
    with lease.applied(
        device, Setting(sm_clock_mhz=1005)
    ):  # putting back fails at its start too, and works at its end
        assert (limit_w(machine), locked_mhz(machine)) == (150.0, 1005)
    assert (limit_w(machine), locked_mhz(machine), journals()) == (250.0, 0, [])


def test_a_change_that_fails_half_way_is_undone_even_if_undoing_fails_at_first(machine: Machine) -> None:
    device = open_device()
    machine.inject(LOCK_SM, UNKNOWN, times=1)
    machine.inject(SET_LIMIT, UNKNOWN, times=1, after=1)  # the device's own undoing
    with pytest.raises(DeviceError), lease.applied(device, Setting(power_limit_w=150.0, sm_clock_mhz=1005)):
        pytest.fail("the block must not run")
    assert (limit_w(machine), journals()) == (250.0, [])


def test_a_refused_change_inside_a_block_leaves_the_blocks_setting(machine: Machine) -> None:
    device = open_device()
    with lease.applied(device, Setting(power_limit_w=200.0)):
        with pytest.raises(OutOfRange):
            lease.change(device, Setting(power_limit_w=9000.0))
        assert limit_w(machine) == 200.0
    assert limit_w(machine) == 250.0


def test_the_journal_is_on_disk_before_the_change(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    device = open_device()
    observed = []
    real = NvmlDevice.write

    def write(self: NvmlDevice, setting: Setting) -> Setting:
        observed.append(json.loads((_paths.journals() / f"{self.uuid}.json").read_text()))
        return real(self, setting)

    monkeypatch.setattr(NvmlDevice, "write", write)
    with lease.applied(device, Setting(power_limit_w=150.0)):
        pass
    assert (observed[0]["before_w"], observed[0]["touched"], observed[0]["limits_w"]) == (
        250.0, ["power_limit_w"], [150.0],
    )
    assert (observed[0]["pid"], observed[0]["uuid"]) == (os.getpid(), device.uuid)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a disk that is full is had on Linux")
def test_a_journal_that_cannot_be_written_keeps_the_change_from_happening(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = open_device()

    def full(_file: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DeviceError, match="No space left"):
        lease.change(device, Setting(power_limit_w=150.0))
    assert limit_w(machine) == 250.0
    assert lease.holder(device.uuid) == ""


NEWER = '{"uuid": "GPU-1", "before_w": 250.0, "touched": ["power_limit_w"], "version": 2}'


@pytest.mark.parametrize(("text", "shown"), [('{"uuid": "GPU-', "nothing"), ("", "nothing"), (NEWER, "250.0 W before")])
def test_a_journal_that_cannot_be_read_is_kept_and_reported_until_a_person_acts(
    machine: Machine, text: str, shown: str
) -> None:
    device = open_device()
    path = _paths.journals() / f"{device.uuid}.json"
    for number in range(2):  # the second one does not replace the first
        path.write_text(text)
        (reported, *others) = restore.recover()[::-1]
        assert (f"{device.uuid} may" in reported, shown in reported, str(path) in reported) == (True, True, True)
        assert ("workbench restore --all" in reported, len(others)) == (True, number)
        with pytest.warns(RuntimeWarning, match=f"{device.uuid}.*damaged"), lease.applied(device, Setting(150.0)):
            pass
        assert limit_w(machine) == 250.0
    assert [re.sub("[.][0-9]+", "", name) for name in journals()] == [f"{device.uuid}.damaged"] * 2
    assert {(_paths.journals() / name).read_text() for name in journals()} == {text}
    assert len(restore.recover()) == len(restore.recover(dry_run=True)) == 2
    assert restore.to_default(device).settled
    assert (journals(), restore.recover(dry_run=True)) == ([], [])


def test_a_home_that_cannot_be_written_to_is_replaced_and_reported(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocker = tmp_path / "file"
    blocker.touch()
    monkeypatch.setenv("WORKBENCH_HOME", str(blocker / "home"))
    used, problem = _paths.home()
    assert used.parent == Path(tempfile.gettempdir())
    assert problem.startswith(f"{blocker / 'home'} ")
    assert str(used) in problem
    with lease.applied(open_device(), Setting(power_limit_w=150.0)):
        assert list((used / "journals").glob("*.json"))
    assert limit_w(machine) == 250.0


def test_a_home_of_ones_own_choice_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKBENCH_HOME", str(tmp_path / "mine"))
    assert _paths.home() == (tmp_path / "mine", "")
    monkeypatch.delenv("WORKBENCH_HOME")
    assert _paths.home() == (Path(os.environ["XDG_DATA_HOME"]) / "gpu-energy-workbench", "")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*is still changed:RuntimeWarning")
def test_a_hundred_changes_with_a_faulty_driver_restore_or_report_the_rest(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restore, "PATIENCE_S", (0.0,))
    rng, device = random.Random(20), open_device()
    clocks = device.limits.sm_clocks_mhz[877]
    depth: list[object] = []
    message: list[str] = []
    for _ in range(100):
        machine.state.clear_faults()
        if rng.random() < 0.3:
            name = rng.choice([SET_LIMIT, LOCK_SM, RESET_SM])
            code = rng.choice([TIMEOUT, UNKNOWN, NO_PERMISSION])
            machine.inject(name, code, times=rng.randrange(1, 3), after=rng.randrange(3))
        setting = Setting(
            power_limit_w=rng.choice([None, 90.0, 100.0, 180.0, 250.0]),
            sm_clock_mhz=rng.choice([None, 1, *clocks[::30]]),
        )
        try:
            step = rng.randrange(4)
            if step == 0:
                lease.change(device, setting)
            elif step == 1 and len(depth) < 3:
                block = lease.applied(device, setting)
                block.__enter__()
                depth.append(block)
            elif step == 2 and depth:
                depth.pop().__exit__(None, None, None)  # type: ignore[attr-defined]
            else:
                message.append(lease.restore(device))
        except DeviceError:
            pass
        holds = lease.holder(device.uuid) == "this process"
        untouched = (limit_w(machine), locked_mhz(machine)) == (250.0, 0)
        assert holds or untouched or journals(), "changed, not held and no journal: nobody would put it back"
    machine.state.clear_faults()
    lease.restore_all()
    lease.change(device, Setting(power_limit_w=180.0))  # pays what is owed from before, if anything is
    assert lease.restore_all() == []
    assert (limit_w(machine), locked_mhz(machine), journals()) == (250.0, 0, [])
    assert any(message), "no fault ever hit a restore: the test tests nothing"


@pytest.mark.parametrize(
    "how", [lease.change, lambda device, setting: lease.applied(device, setting).__enter__()]
)
def test_an_interrupt_while_the_driver_sets_leaves_nothing_changed(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, how: Callable[[NvmlDevice, Setting], object]
) -> None:
    device, real = open_device(), NvmlDevice.write
    interrupts = [KeyboardInterrupt()]

    def write(self: NvmlDevice, setting: Setting) -> Setting:
        got = real(self, setting)
        if interrupts:
            raise interrupts.pop()
        return got

    monkeypatch.setattr(NvmlDevice, "write", write)
    with pytest.raises(KeyboardInterrupt):
        how(device, Setting(power_limit_w=150.0, sm_clock_mhz=1005))
    assert (limit_w(machine), locked_mhz(machine), journals(), lease.holder(device.uuid)) == (250.0, 0, [], "")
    with lease.applied(device, Setting(power_limit_w=200.0)):
        interrupts.append(KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt), lease.applied(device, Setting(power_limit_w=150.0)):
            pytest.fail("the block must not run")
        assert limit_w(machine) == 200.0


def test_an_interrupt_just_after_a_change_does_not_leave_a_block_changed(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    device, real = open_device(), lease.change

    def change(device: NvmlDevice, setting: Setting, *, force: bool = False) -> Setting:
        real(device, setting)
        raise KeyboardInterrupt

    monkeypatch.setattr(lease, "change", change)
    with pytest.raises(KeyboardInterrupt), lease.applied(device, Setting(power_limit_w=150.0)):
        pytest.fail("the block must not run")
    assert (limit_w(machine), lease.holder(device.uuid)) == (250.0, "")


def test_an_unrestored_clock_and_a_foreign_limit_are_both_reported(machine: Machine) -> None:
    device = open_device()
    lease.change(device, Setting(power_limit_w=150.0, sm_clock_mhz=1005))
    set_by_another_program(machine, 180.0)
    machine.inject(RESET_SM, UNKNOWN)
    with pytest.warns(RuntimeWarning, match="SM clock"):
        message = lease.restore(device)
    machine.state.clear_faults()
    assert "resetting sm_clock_mhz" in message
    assert re.search("180 W.*250 W", message)
    assert journals() == [f"{device.uuid}.json"]  # the clock is still locked
    lease.change(device, Setting(sm_clock_mhz=900))
    lease.restore(device)
    assert (locked_mhz(machine), limit_w(machine), journals()) == (0, 180.0, [])


def test_a_driver_that_cannot_answer_just_now_is_asked_again(machine: Machine) -> None:
    device = open_device()
    lease.change(device, Setting(power_limit_w=150.0))
    machine.inject(SET_LIMIT, TIMEOUT, times=2)
    assert lease.restore(device) == ""
    assert (limit_w(machine), journals()) == (250.0, [])


def journal_of_a_dead_process(machine: Machine, **more: str) -> Journal:
    device = open_device()
    device.write(Setting(power_limit_w=150.0))
    journal = Journal(
        device.uuid, device.name, 1, "another start", 250.0, os.environ["WORKBENCH_SIMULATED_GPUS"],
        ["power_limit_w"], [150.0], **more,
    )
    journal.write()
    return journal


def test_a_journal_of_another_host_is_that_hosts(machine: Machine) -> None:
    journal_of_a_dead_process(machine, host="node17", boot_id="x")
    assert restore.recover() == []
    assert (limit_w(machine), len(journals())) == (150.0, 1)
    with lease.applied(open_device(), Setting(power_limit_w=200.0)):
        pass
    assert limit_w(machine) == 150.0


@pytest.mark.skipif(not boot_id(), reason="the kernel does not tell when it was booted")
@pytest.mark.parametrize("recover", [True, False])
def test_a_journal_of_an_earlier_boot_has_nothing_to_restore(machine: Machine, recover: bool) -> None:
    journal_of_a_dead_process(machine, host=socket.gethostname(), boot_id="an earlier one")
    if recover:
        assert restore.recover() == []
        assert journals() == []
    with lease.applied(open_device(), Setting(power_limit_w=200.0)):
        pass
    assert (limit_w(machine), journals()) == (150.0, [])


def test_a_journal_reports_host_and_boot(machine: Machine) -> None:
    device = open_device()
    with lease.applied(device, Setting(power_limit_w=150.0)):
        reported = json.loads((_paths.journals() / f"{device.uuid}.json").read_text())
    assert (reported["host"], reported["boot_id"]) == (socket.gethostname(), boot_id())


def test_a_lock_file_of_another_user_is_opened_without_making_it(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As under fs.protected_regular, where O_CREAT on it is refused."""
    device, real = open_device(), os.open
    lock = _paths.locks() / f"gpu-energy-workbench-{device.uuid}.lock"
    lock.touch()

    def protected(path: Path, flags: int, mode: int = 0o777) -> int:
        if str(path) == str(lock) and flags & os.O_CREAT:
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, flags, mode)

    monkeypatch.setattr(os, "open", protected)
    with lease.applied(device, Setting(power_limit_w=150.0)):
        assert limit_w(machine) == 150.0
    lock.unlink()
    with pytest.raises(NotPermitted, match=str(lock)) as caught:
        lease.change(device, Setting(power_limit_w=150.0))
    assert "TMPDIR" in str(caught.value)
    assert limit_w(machine) == 250.0


# several processes

CHANGE = """
import os, signal, sys, time
from workbench.device import lease as control, watchdog
from workbench.device.discovery import open_device
from workbench.records import Setting
device = open_device()
control.change(device, Setting(power_limit_w=150.0, sm_clock_mhz=1005))
if "fork" in sys.argv and os.fork() == 0:
    time.sleep(60)
print(watchdog.pid(), flush=True)
if "owe" in sys.argv:
    sys.stdin.readline()
    print(control.restore(device), flush=True)
    print(control.holder(device.uuid), flush=True)
if "fail" in sys.argv:
    raise RuntimeError("the training failed")
sys.stdin.readline()
"""


@pytest.fixture
def changer(machine: Machine) -> Iterator[Callable[..., tuple[subprocess.Popen[str], int]]]:
    """Start a process that changes the GPU and waits; gives it and the pid of its watchdog."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> tuple[subprocess.Popen[str], int]:
        process = subprocess.Popen(
            [sys.executable, "-c", CHANGE, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, start_new_session=True,
        )
        started.append(process)
        assert process.stdout is not None
        return process, int(process.stdout.readline())

    yield start
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


Changer = Callable[..., tuple[subprocess.Popen[str], int]]


def restored(machine: Machine) -> bool:
    return (limit_w(machine), locked_mhz(machine)) == (250.0, 0)


@pytest.mark.parametrize("arguments", [(), ("fail",)], ids=["end", "error"])
def test_a_process_that_ends_without_restoring_has_restored(
    machine: Machine, changer: Changer, arguments: tuple[str, ...]
) -> None:
    process, dog = changer(*arguments)
    process.communicate("\n", timeout=240)
    assert restored(machine)
    assert journals() == []
    assert wait_until(lambda: not runs(dog))


@pytest.mark.parametrize("arguments", [(), ("fork",)], ids=["alone", "with a forked child that lives on"])
def test_the_watchdog_restores_what_a_killed_process_has_left(
    machine: Machine, changer: Changer, arguments: tuple[str, ...]
) -> None:
    process, dog = changer(*arguments)
    assert (limit_w(machine), locked_mhz(machine)) == (150.0, 1005)
    os.kill(process.pid, signal.SIGKILL)
    assert wait_until(lambda: restored(machine))
    assert wait_until(lambda: not runs(dog))
    assert journals() == []


def test_the_watchdog_retries_a_failed_restore_after_the_process_exits(
    machine: Machine, changer: Changer
) -> None:
    process, dog = changer("owe")
    assert process.stdin is not None
    assert process.stdout is not None
    machine.inject(SET_LIMIT, TIMEOUT, times=1000)
    process.stdin.write("\n")
    process.stdin.flush()
    assert "250 W" in process.stdout.readline()
    assert process.stdout.readline() == "\n"
    assert (limit_w(machine), len(journals())) == (150.0, 1)
    machine.state.clear_faults()
    process.communicate("\n", timeout=240)
    assert wait_until(lambda: restored(machine))
    assert wait_until(lambda: not runs(dog))
    assert journals() == []


def test_the_watchdog_outlives_the_processes_group(machine: Machine, changer: Changer) -> None:
    process, dog = changer()
    os.killpg(process.pid, signal.SIGKILL)
    assert wait_until(lambda: restored(machine))
    assert wait_until(lambda: not runs(dog))


def test_when_both_were_killed_the_next_start_restores_and_reports_it(
    machine: Machine, changer: Changer
) -> None:
    process, dog = changer()
    os.kill(dog, signal.SIGKILL)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert not restored(machine)
    device = open_device()
    assert device.name in "".join(restore.recover())
    assert restored(machine)
    assert journals() == []
    assert restore.recover() == []


def test_what_another_program_set_after_the_kill_is_left_alone(machine: Machine, changer: Changer) -> None:
    process, dog = changer()
    os.kill(dog, signal.SIGKILL)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    set_by_another_program(machine, 180.0)
    (reported,) = restore.recover()
    assert "180 W" in reported
    assert limit_w(machine) == 180.0


def test_a_change_after_a_kill_first_restores_the_killed_process(machine: Machine, changer: Changer) -> None:
    process, dog = changer()
    os.kill(dog, signal.SIGKILL)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    with lease.applied(open_device(), Setting(power_limit_w=200.0)):  # nobody called recover
        assert locked_mhz(machine) == 0
    assert restored(machine)


def test_the_journal_of_a_process_that_runs_is_its_own(machine: Machine, changer: Changer) -> None:
    changer()
    assert restore.recover() == []
    assert limit_w(machine) == 150.0
    assert len(journals()) == 1


def test_the_error_names_the_process_that_holds_the_gpu(machine: Machine, changer: Changer) -> None:
    process, _ = changer()
    device = open_device()
    with pytest.raises(DeviceHeld, match=rf"{process.pid} \(.+\), since \d\d:\d\d"):
        lease.change(device, Setting(power_limit_w=200.0))
    assert lease.holder(device.uuid).startswith(f"process {process.pid} (")
    assert limit_w(machine) == 150.0
    process.communicate("\n", timeout=240)
    with lease.applied(device, Setting(power_limit_w=200.0)):
        assert limit_w(machine) == 200.0
    assert restored(machine)


def test_a_machine_that_is_gone_needs_no_restore(machine: Machine, changer: Changer) -> None:
    process, dog = changer()
    os.kill(dog, signal.SIGKILL)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    machine.close()
    assert restore.recover() == []
    assert journals() == []


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_forked_child_that_ends_restores_nothing(machine: Machine) -> None:
    lease.change(open_device(), Setting(power_limit_w=150.0))
    child = os.fork()
    if child == 0:  # pragma: no cover - what it does shows in the machine
        lease.restore_all()
        os._exit(0)
    os.waitpid(child, 0)
    assert limit_w(machine) == 150.0
    assert len(journals()) == 1
    lease.restore_all()
    assert limit_w(machine) == 250.0
