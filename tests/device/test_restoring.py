"""While a driver fails, a restore is done, or it is reported and can be repeated: never changed without a word."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import workbench
from workbench import _paths, _processes
from workbench.device import journal, lease, restore, watchdog
from workbench.device.discovery import open_device
from workbench.device.journal import Journal
from workbench.device.nvml.readings import Readings
from workbench.errors import DeviceError
from workbench.measurement import session
from workbench.records import Setting
from workbench.simulation.machine import Machine

Simulated = Callable[..., Machine]
CHANGED = Setting(power_limit_w=200.0, sm_clock_mhz=900, mem_clock_mhz=5001)
ALWAYS = 1_000_000


@pytest.fixture(autouse=True)
def own_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, simulated: Simulated) -> Iterator[None]:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(session, "_current", None)
    yield
    if (present := session.present()) is not None:
        present.close()
    lease.restore_all()
    watchdog.stop()


@pytest.fixture
def machine(simulated: Simulated) -> Machine:
    """An A40 at its 300 W, whose SM and memory clocks can be locked."""
    return simulated("A40", stepped=True)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No watchdog, and one attempt for each restore."""
    monkeypatch.setattr(watchdog, "start", lambda: None)
    monkeypatch.setattr(restore, "PATIENCE_S", (0.0,))


def settings(machine: Machine) -> tuple[float, ...]:
    return tuple(machine.state.control(0, name) for name in ("limit_w", "lock_sm_max", "lock_mem_max"))


AS_FOUND = (300.0, 0, 0)


def journals() -> list[str]:
    return sorted(path.name for path in _paths.journals().iterdir())


class Faults:
    """The driver's answers: the calls from one on, so many of them, fail."""

    def __init__(self, code: int = 0, first: int = 0, count: int = 0) -> None:
        self.code, self.first, self.last, self.calls = code, first, first + count, 0

    def __call__(self, name: str, gpu: int) -> int:
        self.calls += 1
        return self.code if self.first < self.calls <= self.last else 0


class Ending:
    """A hold that ends in this process, with a warning where something is left."""

    def begin(self) -> None:
        self.device = open_device()
        lease.change(self.device, CHANGED)

    def end(self) -> list[str]:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            lease.restore(self.device)
        return [str(each.message) for each in warned]

    def again(self) -> None:
        lease.restore_all(again=True)


class Starting:
    """The changes of a process that is gone, which the next start finds."""

    def begin(self) -> None:
        device = open_device()
        Journal(device.uuid, device.name, 2**22 + 1, "1", 300.0, os.environ["WORKBENCH_SIMULATED_GPUS"],
                list(journal.KNOBS), [200.0], directory=str(_paths.journals())).write()
        device.write(CHANGED)

    def end(self) -> list[str]:
        return [each for each in restore.recover() if not each.endswith("is restored")]

    again = end


@pytest.mark.parametrize(
    ("kind", "code"), [*((Ending, code) for code in (2, 3, 4, 15, 23, 999)), (Starting, 3), (Starting, 999)]
)
def test_a_fault_at_any_call_of_a_restore_leaves_nothing_changed_without_a_word(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, alone: None, kind: type[Ending | Starting], code: int
) -> None:
    def attempt(faults: Faults) -> None:
        trial = kind()
        trial.begin()
        assert settings(machine) == (200.0, 900, 5001)
        monkeypatch.setattr(machine.state, "fault", faults)
        reported = trial.end()
        if settings(machine) != AS_FOUND:
            assert len(reported) == 1, (faults.__dict__, reported)
            assert re.search(f"{uuid}.*still changed: .*(limit|clock).*`workbench restore`", reported[0])
            assert journals() == [f"{uuid}.json"], faults.__dict__
        monkeypatch.setattr(machine.state, "fault", Faults())
        trial.again()
        assert (settings(machine), journals()) == (AS_FOUND, []), faults.__dict__

    uuid, counted = open_device().uuid, Faults()
    attempt(counted)
    assert counted.calls >= 5
    for first in range(counted.calls):
        for count in (1, ALWAYS):
            attempt(Faults(code, first, count))


@pytest.mark.parametrize("wrong_w", [0.0, 300.0, 250.0], ids=["nothing", "before", "another"])
@pytest.mark.parametrize("kind", [Ending, Starting])
def test_a_reading_that_is_wrong_once_is_not_taken_for_a_restore(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, alone: None, kind: type[Ending | Starting], wrong_w: float
) -> None:
    real, requested = Readings.field, 192
    for wrong_call in range(4):
        trial, calls = kind(), 0
        trial.begin()

        def field(self: Readings, number: int, scope: int) -> int:
            nonlocal calls
            calls += number == requested
            wrong = number == requested and calls == wrong_call + 1  # noqa: B023
            return round(1000 * wrong_w) if wrong else real(self, number, scope)

        with monkeypatch.context() as patch:
            patch.setattr(Readings, "field", field)
            reported = trial.end()
        found_w = machine.state.control(0, "limit_w")
        if found_w != 300.0:
            said = reported + ([] if journals() else [lease.restore(open_device())])
            assert said or journals() or wrong_w == 250.0, wrong_call  # of another program, as it seemed
        trial.again()
        machine.state.change_setting(0, limit_w=300.0, lock_sm_min=0, lock_sm_max=0, lock_mem_min=0, lock_mem_max=0)


def test_an_error_for_a_moment_is_waited_for(machine: Machine) -> None:
    for code in (2, 3, 13, 19, 23, 26, 999):
        with workbench.gpu_settings(CHANGED):
            for name in ("SetPowerManagementLimit", "ResetGpuLockedClocks", "GetFieldValues"):
                machine.inject(f"nvmlDevice{name}", code, times=1)
        assert (settings(machine), journals()) == (AS_FOUND, []), code
        machine.state.clear_faults()


def test_the_end_of_a_block_is_one_warning_where_a_gpu_stays_changed(machine: Machine, alone: None) -> None:
    uuid = open_device().uuid
    for _ in range(2):  # the same words again are shown again
        with pytest.warns(RuntimeWarning) as warned, workbench.gpu_settings(power_limit_w=200.0):
            machine.state.set_header("unprivileged", 1)
        assert len(warned) == 1
        assert re.search(f"{uuid}.*power limit .300 W before.*nvidia-smi.*`workbench restore`", str(warned[0].message))
        (left,) = lease.restore_all(again=True)
        assert uuid in left
        machine.state.set_header("unprivileged", 0)
        assert (lease.restore_all(again=True), settings(machine), journals()) == ([], AS_FOUND, [])


def test_a_warning_that_is_made_an_error_does_not_end_the_program(
    machine: Machine, alone: None, capsys: pytest.CaptureFixture[str]
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with workbench.gpu_settings(power_limit_w=200.0):
            machine.state.set_header("unprivileged", 1)
    assert "is still changed" in capsys.readouterr().err
    machine.state.set_header("unprivileged", 0)
    assert session.current().restore_all() == []
    assert settings(machine) == AS_FOUND


def test_another_process_may_restore_the_failed_restore_of_a_living_one(machine: Machine, alone: None) -> None:
    with pytest.warns(RuntimeWarning), workbench.gpu_settings(power_limit_w=200.0):
        machine.state.set_header("unprivileged", 1)
    assert len(restore.recover(dry_run=True)) == 1
    machine.state.set_header("unprivileged", 0)
    code = "import sys; from workbench import cli; sys.exit(cli.main(['restore']))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert (ended.returncode, "is restored" in ended.stdout) == (0, True), ended
    assert (settings(machine), journals(), lease.restore_all(again=True)) == (AS_FOUND, [], [])


def test_a_restore_that_another_process_is_at_is_waited_for_or_named(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    Starting().begin()
    uuid = open_device().uuid
    hold = ("from workbench.device import journal; import sys; lock = journal.lock(sys.argv[1], 'A40'); "
            "print(flush=True); sys.stdin.readline()")
    other = subprocess.Popen([sys.executable, "-c", hold, uuid], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert other.stdout is not None
    other.stdout.readline()
    (reported,) = restore.recover()
    assert re.search(f"{uuid}.*process {other.pid} .*just now", reported)
    other.communicate(b"\n", timeout=240)
    assert (len(restore.recover()), settings(machine)) == (1, AS_FOUND)


# drivers that round, and caps


def rounding(machine: Machine, step_mw: int) -> None:
    """A driver that rounds limits down."""
    name = "nvmlDeviceSetPowerManagementLimit"
    real = getattr(machine.library, name)
    setattr(machine.library, name, lambda handle, mw: real(handle, ctypes.c_uint(mw.value // step_mw * step_mw)))


@pytest.mark.parametrize("step_w", [7, 20, 50])
def test_a_driver_that_rounds_is_no_other_program(machine: Machine, step_w: int) -> None:
    rounding(machine, 1000 * step_w)
    asked_w, shown_w, back_w = 190.0, 190 // step_w * step_w, 300 // step_w * step_w
    gpu = open_device()
    with lease.Lease([gpu]) as mine:
        assert mine.apply(Setting(power_limit_w=asked_w))[0].power_limit_w == shown_w
        assert mine.changed_externally() == ""
    assert (settings(machine)[0], journals()) == (back_w, [])
    hand = workbench.gpu_control(0)
    assert hand.apply(Setting(power_limit_w=asked_w)).after.power_limit_w == shown_w
    assert "applied" in hand.active().text
    hand.undo_all()
    assert (settings(machine)[0], journals()) == (back_w, [])


def test_a_driver_that_rounds_is_restored_after_a_kill(machine: Machine, alone: None) -> None:
    rounding(machine, 7000)
    device = open_device()
    lease.change(device, Setting(power_limit_w=190.0))
    noted = journal.of(device.uuid)
    assert noted is not None
    assert noted.limits_w == [190.0, 189.0]


@pytest.mark.parametrize("limit_w", [350.0, 250.0])
def test_a_cap_that_hides_the_requested_limit_leaves_that_as_it_was(simulated: Simulated, limit_w: float) -> None:
    machine = simulated("A100,capped", stepped=True)
    machine.inject("field:192", 3)  # as R470, which shows the cap's 320 W only
    with workbench.gpu_settings(power_limit_w=limit_w):
        assert machine.state.control(0, "limit_w") == limit_w
    assert machine.state.control(0, "limit_w") == 400.0


def test_an_administrators_limit_of_an_old_driver_stays(simulated: Simulated) -> None:
    machine = simulated("A100", stepped=True)
    machine.inject("field:192", 3)
    machine.state.change_setting(0, limit_w=300.0)
    with workbench.gpu_settings(power_limit_w=250.0):
        pass
    assert machine.state.control(0, "limit_w") == 300.0


# what a driver refuses is not booked as changed, and what it left unanswered is


@pytest.mark.parametrize(("code", "noted"), [(3, []), (4, []), (999, ["sm_clock_mhz"])])
def test_a_refused_knob_is_not_booked(machine: Machine, alone: None, code: int, noted: list[str]) -> None:
    device = open_device()
    with lease.applied(device, Setting(power_limit_w=200.0)):
        machine.inject("nvmlDeviceSetGpuLockedClocks", code)
        with pytest.raises(DeviceError):
            lease.change(device, Setting(sm_clock_mhz=900))
        kept = journal.of(device.uuid)
        assert kept is not None
        assert kept.touched == ["power_limit_w", *noted]
        machine.state.clear_faults()
    assert (settings(machine), journals()) == (AS_FOUND, [])


def test_a_gpu_that_cannot_be_restored_is_not_lent(machine: Machine, alone: None) -> None:
    device = open_device()
    with lease.applied(device, Setting(power_limit_w=200.0)):
        machine.inject("nvmlDeviceSetPowerManagementLimit", 999)
        with pytest.raises(DeviceError, match="is still changed"), lease.lent([device.uuid]):
            pytest.fail("the block must not run")
        assert journals() == [f"{device.uuid}.json"]
        machine.state.clear_faults()
    assert (settings(machine), journals()) == (AS_FOUND, [])


def test_the_default_is_not_booked_before_it_is_read_back(machine: Machine, alone: None) -> None:
    Starting().begin()
    device = open_device()
    for name in ("SetPowerManagementLimit", "ResetGpuLockedClocks"):
        machine.inject(f"nvmlDevice{name}", 3)
        assert not restore.to_default(device).settled
        assert journals() == [f"{device.uuid}.json"]
        machine.state.clear_faults()
    assert restore.to_default(device).settled
    assert (settings(machine), journals()) == (AS_FOUND, [])


# homes that go, processes that nobody waits for

HOLD = """
import os, shutil, signal, sys
from workbench import _paths
from workbench.device import lease, watchdog
from workbench.device.discovery import open_device
from workbench.records import Setting
device = open_device()
lease.change(device, Setting(power_limit_w=200.0))
if "removed" in sys.argv:
    shutil.rmtree(_paths.home()[0])
if "moved" in sys.argv:
    os.environ["WORKBENCH_HOME"] += "-2"
    lease.change(device, Setting(sm_clock_mhz=900))
if "both" in sys.argv:
    os.kill(watchdog.pid(), signal.SIGKILL)
print(flush=True)
sys.stdin.readline()
os.kill(os.getpid(), signal.SIGKILL)
"""


def restored(machine: Machine, timeout_s: float = 240.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while settings(machine) != AS_FOUND and time.monotonic() < deadline:
        time.sleep(0.02)
    return settings(machine) == AS_FOUND


@pytest.mark.parametrize("how", ["removed", "moved"])
def test_a_home_that_goes_during_a_hold_takes_no_journal_along(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setenv("WORKBENCH_HOME", str(tmp_path / "home"))
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, how], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    assert settings(machine)[0] == 200.0
    process.communicate(b"\n", timeout=240)
    assert restored(machine)


# A first process of a PID namespace that waits for no child, and sees another namespace's /proc.
INIT = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1], *sys.argv[2:]], stdin=subprocess.PIPE)
child.stdin.write(b"\\n"); child.stdin.flush()
os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # a zombie from now on
if "both" in sys.argv:
    code = "from workbench.device import restore; print(restore.recover())"
    subprocess.run([sys.executable, "-c", code], check=True)
sys.stdin.readline()
os._exit(0)
"""


@pytest.mark.parametrize("who", ["watchdog", "both"])
def test_a_zombie_that_nobody_waits_for_is_restored_without_a_proc_of_its_own(machine: Machine, who: str) -> None:
    prefix = ("unshare", "--pid", "--fork", "--kill-child")
    if shutil.which("unshare") is None or subprocess.run([*prefix, "true"], capture_output=True).returncode:
        pytest.skip("this system makes no PID namespaces for this user (unshare)")
    init = subprocess.Popen([*prefix, sys.executable, "-c", INIT, HOLD, who], stdin=subprocess.PIPE)
    try:
        assert restored(machine)
        with lease.applied(open_device(), Setting(power_limit_w=250.0)):
            pass
        assert settings(machine) == AS_FOUND
    finally:
        init.communicate(b"\n", timeout=240)


def test_an_interrupt_handler_installed_in_c_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signal, "getsignal", lambda number: None)
    monkeypatch.setattr(signal, "signal", lambda number, handler: pytest.fail("it could not be put back"))
    with _processes.interrupts_later():
        pass
