"""Hostile and unusual surroundings: modules, locks, homes, containers and damaged journals."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from workbench import _paths, _processes, _shared_memory
from workbench.device import journal, lease, restore, watchdog
from workbench.device.discovery import devices, open_device
from workbench.device.journal import Journal
from workbench.errors import DeviceError, DeviceHeld, NotPermitted, UsageError
from workbench.measurement import session as sessions
from workbench.measurement.recorder import Recorder
from workbench.measurement.ring import Ring
from workbench.records import Setting
from workbench.simulation.machine import Machine
from workbench.simulation.state import MachineState

Simulated = Callable[..., Machine]
# Modules of Python that the watchdog and the sampler need, or that what they need does.
NAMES = (
    "random", "types", "json", "bisect", "select", "token", "datetime", "string", "signal", "socket",
    "operator", "platform", "struct", "email", "http", "math", "time", "copy", "queue", "logging",
    "threading", "tempfile", "subprocess", "contextlib", "dataclasses", "functools", "itertools", "re",
    "enum", "ctypes",
)
ROOT = hasattr(os, "geteuid") and os.geteuid() == 0

HOLD = """
import ctypes, os, sys, time
from workbench.device import lease as control
from workbench.errors import DeviceHeld
from workbench.device.discovery import open_device
from workbench.records import Setting
device = open_device()
sys.path[:0] = sys.argv[2:]
try:
    control.change(device, Setting(power_limit_w=float(sys.argv[1])))
except DeviceHeld as error:
    sys.exit(f"refused: {error}")
child = ctypes.CDLL(None).fork() if "FORK" in os.environ else 0  # as C code forks: no Python code runs
if child == 0 and "FORK" in os.environ:
    time.sleep(60)
    os._exit(0)
print(child, flush=True)
sys.stdin.readline()
print(control.restore_all())
"""


@pytest.fixture(autouse=True)
def own_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, simulated: Simulated) -> Iterator[None]:
    """Locks of this test alone, also in its children; nothing held afterwards."""
    use_temporary(monkeypatch, tmp_path)
    yield
    lease.restore_all()
    watchdog.stop()


@pytest.fixture
def machine(simulated: Simulated) -> Machine:
    """A V100 at its 250 W, in a machine that other processes see; its clock stands still."""
    return simulated("V100", stepped=True)


@pytest.fixture
def holder() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a process that sets the GPU to 150 W and waits for a line."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str, prefix: tuple[str, ...] = (), **environment: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*prefix, sys.executable, "-c", HOLD, "150", *arguments],
            env={**os.environ, **environment}, start_new_session=True, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


Holder = Callable[..., subprocess.Popen[str]]


def use_temporary(monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
    directory.mkdir(exist_ok=True)
    monkeypatch.setenv("TMPDIR", str(directory))
    monkeypatch.setattr(tempfile, "tempdir", None)


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def limit_w(machine: Machine) -> float:
    return float(machine.state.control(0, "limit_w"))


def journals() -> list[str]:
    return sorted(path.name for path in _paths.journals().iterdir())


def lock_file(uuid: str) -> Path:
    return _paths.locks() / f"gpu-energy-workbench-{uuid}.lock"


def wait_until(true: Callable[[], bool], timeout_s: float = 240.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while not true() and time.monotonic() < deadline:
        time.sleep(0.02)
    return true()


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def left_changed(machine: Machine, gpu: int = 0, **more: object) -> Journal:
    """A GPU that a process which is gone has left at 150 W, with its journal."""
    device = open_device(gpu)
    device.write(Setting(power_limit_w=150.0))
    fields = {
        "uuid": device.uuid, "name": device.name, "pid": 2**22 + 1, "started": "1", "before_w": 250.0,
        "simulated": os.environ["WORKBENCH_SIMULATED_GPUS"],
        "touched": ["power_limit_w"], "limits_w": [150.0], "directory": str(_paths.journals()),
    }
    made = Journal(**{**fields, **more})  # type: ignore[arg-type]
    made.write()
    return made


def named_like(directory: Path, *names: str) -> Path:
    """A directory with modules of these names, which have nothing that Python's have."""
    directory.mkdir(exist_ok=True)
    for name in names:
        (directory / f"{name}.py").write_text("mine = 1\n")
    return directory


# modules of the user that are named like Python's


@pytest.mark.parametrize("names", [
    pytest.param(NAMES, id="all"), *(pytest.param((name,), marks=pytest.mark.slow, id=name) for name in NAMES)
])
def test_a_module_named_like_pythons_does_not_keep_the_watchdog_from_restoring(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]
) -> None:
    left_changed(machine)
    monkeypatch.setattr(sys, "path", [str(named_like(tmp_path / "src", *names)), *sys.path])
    command = _processes.child_command("workbench.device.watchdog", "watch", str(dead_pid()), "1")
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=240)
    assert (ended.stdout, ended.returncode, limit_w(machine)) == (b".", 0, 250.0), ended.stderr


def test_modules_named_like_pythons_do_not_leave_the_limit_changed_after_a_kill(
    machine: Machine, tmp_path: Path, holder: Holder
) -> None:
    process = holder(str(named_like(tmp_path / "src", *NAMES)))
    first_line(process)
    assert limit_w(machine) == 150.0
    process.kill()
    assert wait_until(lambda: limit_w(machine) == 250.0)


def test_modules_named_like_pythons_do_not_stop_the_sampler(
    simulated: Simulated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulated("V100")
    monkeypatch.setattr(sys, "path", [str(named_like(tmp_path / "src", *NAMES)), *sys.path])
    recorder = Recorder(devices())
    try:
        assert recorder.ready(timeout_s=240.0), recorder.failure()
    finally:
        recorder.stop()


# the watchdog


def test_without_a_sign_of_life_of_the_watchdog_nothing_is_changed(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = open_device()
    monkeypatch.setattr(
        _processes, "child_command", lambda *_: [sys.executable, "-c", "raise ImportError('no such thing')"]
    )
    with pytest.raises(DeviceError, match="ImportError: "):
        lease.change(device, Setting(power_limit_w=150.0))
    monkeypatch.setattr(_processes, "child_command", lambda *_: ["/no/such/program"])
    with pytest.raises(DeviceError, match="No such file"):
        lease.change(device, Setting(power_limit_w=150.0))
    assert (limit_w(machine), journals(), lease.holder(device.uuid), watchdog.pid()) == (250.0, [], "", None)


def test_a_watchdog_that_fails_tries_again(machine: Machine) -> None:
    left_changed(machine)
    code = f"""
from workbench.device import watchdog
real, failures = watchdog.recover, [OSError("a disk"), TypeError("a bug"), KeyError("another")]
def recover(**held):
    if failures:
        raise failures.pop()
    return real(**held)
watchdog.recover = recover
watchdog.watch(["{dead_pid()}", "1"])
"""
    subprocess.run(
        [sys.executable, "-c", code], stdin=subprocess.DEVNULL, capture_output=True, timeout=240, check=True
    )
    assert (limit_w(machine), journals()) == (250.0, [])


def test_a_fork_in_c_that_holds_the_pipe_does_not_keep_the_watchdog_waiting(
    machine: Machine, holder: Holder
) -> None:
    process = holder(FORK="1")
    forked = int(first_line(process))
    process.kill()
    assert wait_until(lambda: limit_w(machine) == 250.0)
    assert _processes.started_at(forked), "the forked process has ended: the test tests nothing"


def test_one_gpu_that_fails_keeps_no_other_from_being_restored(
    simulated: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = simulated("V100,A40", stepped=True)
    uuids = sorted(
        left_changed(machine, gpu, before_w=before_w).uuid for gpu, before_w in ((0, 250.0), (1, 300.0))
    )
    real = restore.put_back

    def put_back(device: object, found: Journal) -> restore.RestoreOutcome:
        if found.uuid == uuids[0]:
            raise TypeError("a bug")
        return real(device, found)  # type: ignore[arg-type]

    monkeypatch.setattr(restore, "put_back", put_back)
    reported = restore.recover()
    assert any(f"{uuids[0]}.json" in each and "TypeError: a bug" in each for each in reported)
    assert journals() == [f"{uuids[0]}.json"]


# locks that somebody else has prepared


def test_a_lock_that_is_a_link_is_neither_followed_nor_written_through(
    machine: Machine, tmp_path: Path
) -> None:
    device, victim = open_device(), tmp_path / "victim"
    victim.write_text("precious")
    for make in (os.symlink, os.link):
        make(victim, lock_file(device.uuid))
        with pytest.raises(NotPermitted, match="TMPDIR"):
            lease.change(device, Setting(power_limit_w=150.0))
        lock_file(device.uuid).unlink()
    assert (victim.read_text(), limit_w(machine)) == ("precious", 250.0)


def test_a_pipe_in_place_of_a_lock_does_not_block(machine: Machine) -> None:
    device = open_device()
    os.mkfifo(lock_file(device.uuid))
    assert lease.holder(device.uuid) == ""
    with pytest.raises(NotPermitted, match="no plain file"):
        lease.change(device, Setting(power_limit_w=150.0))


def test_what_others_have_written_into_a_lock_is_not_shown(machine: Machine, holder: Holder) -> None:
    device = open_device()
    lock_file(device.uuid).write_text("process 1 (systemd)\x1b[2J")
    process = holder()
    first_line(process)
    assert lease.holder(device.uuid).startswith(f"process {process.pid} (python")


def test_the_name_of_a_holder_is_short_and_printable(machine: Machine, tmp_path: Path) -> None:
    script = tmp_path / ("\x1b[2J" + 100 * "x" + ".py")
    script.write_text(HOLD)
    process = subprocess.Popen(
        [sys.executable, str(script), "150"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    first_line(process)
    shown = lease.holder(open_device().uuid)
    process.communicate("\n", timeout=240)
    assert shown.startswith(f"process {process.pid} ([2Jxxx")
    assert shown.isprintable()
    assert len(shown) < 100


def test_a_directory_where_anybody_may_replace_a_lock_is_refused(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_temporary(monkeypatch, tmp_path / "open")
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(NotPermitted, match="anybody"):
        lease.change(open_device(), Setting(power_limit_w=150.0))
    (tmp_path / "open").chmod(0o1777)
    with lease.applied(open_device(), Setting(power_limit_w=150.0)):
        assert lock_file(open_device().uuid).stat().st_mode & 0o777 == 0o666  # other users lock it too


@pytest.mark.skipif(not ROOT, reason="only root gives a directory to another user")
def test_a_directory_of_another_user_is_refused_for_locks(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_temporary(monkeypatch, tmp_path / "theirs")
    os.chown(tmp_path / "theirs", 1234, 1234)
    with pytest.raises(NotPermitted, match="user 1234"):
        lease.change(open_device(), Setting(power_limit_w=150.0))
    assert limit_w(machine) == 250.0


@pytest.mark.parametrize(
    "uuid", ["../../service", "GPU-/../../x", "GPU-a/b", "service", "", "GPU-\n", "GPU-" + 100 * "a"]
)
def test_a_uuid_names_no_file_elsewhere(uuid: str) -> None:
    named = Journal(uuid, "A", 1, "1", None, "")
    for use in (
        lambda: named.path, lambda: journal.lock(uuid, "A"), lambda: journal.holder(uuid),
        lambda: journal.of(uuid),
    ):
        with pytest.raises(DeviceError):
            use()


def test_a_journal_with_a_path_for_a_uuid_or_under_another_name_is_not_followed(
    machine: Machine, tmp_path: Path
) -> None:
    other = _paths.home()[0].parent / "service.lock"
    other.write_text("another program's")
    found = left_changed(machine)
    for name, uuid in (("GPU-1.json", "../../../service"), ("GPU-2.json", found.uuid)):
        (_paths.journals() / name).write_text(json.dumps({**found.__dict__, "uuid": uuid}))
    found.path.unlink()
    assert len(restore.recover()) == 2
    assert journals() == ["GPU-1.json", "GPU-2.json"]
    assert (other.read_text(), limit_w(machine)) == ("another program's", 150.0)


# homes and journals of others


def test_the_home_is_where_the_system_keeps_such_things(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WORKBENCH_HOME", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "linux"))
    if sys.platform == "linux":
        assert _paths.wanted_home() == tmp_path / "linux" / "gpu-energy-workbench"
    monkeypatch.setattr("platformdirs.user_data_path", lambda name, appauthor: tmp_path / "elsewhere" / name)
    assert _paths.wanted_home() == tmp_path / "elsewhere" / "gpu-energy-workbench"


def test_the_fallback_home_is_used_only_where_it_is_this_users_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("WORKBENCH_HOME", str(tmp_path / "file" / "home"))
    first, _ = _paths.home()
    assert (first.parent, first.stat().st_mode & 0o777) == (tmp_path, 0o700)
    first.chmod(0o777)
    used, problem = _paths.home()
    assert used != first
    assert used == _paths.home()[0]  # the same one for the whole process
    assert f" {first} " in problem
    assert used.stat().st_mode & 0o777 == 0o700


def test_the_watchdog_uses_the_home_of_its_parent(machine: Machine, tmp_path: Path, holder: Holder) -> None:
    (tmp_path / "file").touch()
    blocked = {"WORKBENCH_HOME": str(tmp_path / "file" / "home")}
    code = "from workbench import _paths as places; print(places.home()[0])"
    fallback = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **blocked}, capture_output=True, text=True
    )
    Path(fallback.stdout.strip()).chmod(0o777)  # from now on each process takes a new one
    process = holder(**blocked)
    first_line(process)
    process.kill()
    assert wait_until(lambda: limit_w(machine) == 250.0)


@pytest.mark.skipif(not ROOT, reason="only root gives a file to another user")
def test_a_journal_of_another_user_restores_nothing_and_is_reported(machine: Machine) -> None:
    found = left_changed(machine, before_w=110.0)
    os.chown(found.path, 1234, 1234)
    assert not _paths.is_ours(found.path)
    (reported,) = restore.recover()
    assert str(found.path) in reported
    with lease.applied(open_device(), Setting(power_limit_w=200.0)):
        pass
    assert limit_w(machine) == 150.0


def test_a_limit_that_the_card_does_not_take_is_reported_and_the_default_is_the_remedy(machine: Machine) -> None:
    found = left_changed(machine, before_w=2500.0)
    (reported,) = restore.recover()
    assert re.search(r"2500 W.*100\.\.250 W", reported)
    assert (limit_w(machine), journals()) == (150.0, [f"{found.uuid}.json"])
    assert restore.to_default(open_device()).settled
    assert (limit_w(machine), journals()) == (250.0, [])


# processes that do not see one another


def test_who_follows_a_killed_process_of_another_home_waits_for_its_watchdog(
    machine: Machine, tmp_path: Path, holder: Holder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "WAITS", 10_000)  # on a busy machine a watchdog needs more than seconds
    process = holder(WORKBENCH_HOME=str(tmp_path / "other"))
    first_line(process)
    process.kill()
    process.wait()
    mine = lease.Lease([open_device()])
    mine.apply(Setting(power_limit_w=200.0))  # the lock went with the process, its limit did not
    assert mine.found[0].power_limit_w == 250.0
    assert mine.restore() == []
    assert limit_w(machine) == 250.0


def test_a_lock_whose_dead_holder_has_no_watchdog_is_taken_all_the_same(
    machine: Machine, tmp_path: Path, holder: Holder
) -> None:
    process = holder(WORKBENCH_HOME=str(tmp_path / "other"))
    first_line(process)
    for child in psutil.Process(process.pid).children():
        child.kill()
    process.kill()
    process.wait()
    with lease.applied(open_device(), Setting(power_limit_w=200.0)):
        assert limit_w(machine) == 200.0
    assert limit_w(machine) == 150.0  # as it was found
    lock = journal.lock(open_device().uuid, "V100")
    assert lock is not None
    assert not lock.abandoned
    lock.close()


def test_two_processes_with_temporary_directories_of_their_own_keep_apart(
    machine: Machine, tmp_path: Path, holder: Holder, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = holder()
    first_line(process)
    use_temporary(monkeypatch, tmp_path / "other")
    with pytest.raises(DeviceHeld, match=f"process {process.pid} "):
        lease.change(open_device(), Setting(power_limit_w=200.0))
    assert process.communicate("\n", timeout=240)[0].strip() == "[]"
    assert (limit_w(machine), journals()) == (250.0, [])
    with lease.applied(open_device(), Setting(power_limit_w=200.0)):
        pass


def test_where_files_cannot_be_locked_the_journal_of_a_living_process_keeps_others_away(
    machine: Machine, holder: Holder, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = holder()
    first_line(process)
    monkeypatch.setattr(journal, "fcntl", None)
    device = open_device()
    with pytest.raises(DeviceHeld, match=f"process {process.pid}.*{device.uuid}.json"):
        lease.change(device, Setting(power_limit_w=200.0))
    assert restore.recover() == []
    assert limit_w(machine) == 150.0


def test_only_ones_own_journal_is_removed(machine: Machine) -> None:
    device = open_device()
    lease.change(device, Setting(power_limit_w=150.0))
    path = _paths.journals() / f"{device.uuid}.json"
    theirs = journal.load(path)
    assert theirs is not None
    theirs.pid = 1
    theirs.write()
    lease.restore(device)
    assert journals() == [path.name]


def test_a_thread_that_asks_for_the_holder_does_not_lose_the_lock(machine: Machine, holder: Holder) -> None:
    device = open_device()
    with lease.applied(device, Setting(power_limit_w=200.0)):
        assert journal.holder(device.uuid) == ""
        assert journal.lock(device.uuid, device.name) is None
        _, error = holder().communicate(timeout=240)
        assert f"process {os.getpid()} " in error


def test_a_journal_of_an_older_version_is_restored(machine: Machine) -> None:
    found = left_changed(machine)
    fields = {
        name: value for name, value in found.__dict__.items() if name not in ("host", "boot_id", "namespace")
    }
    found.path.write_text(json.dumps(fields))
    assert len(restore.recover()) == 1
    assert (limit_w(machine), journals()) == (250.0, [])


def test_a_journal_of_another_namespace_is_judged_by_the_lock(machine: Machine, holder: Holder) -> None:
    process = holder()
    first_line(process)
    path = _paths.journals() / f"{open_device().uuid}.json"
    found = journal.load(path)
    assert found is not None
    found.namespace, found.pid = "1", dead_pid()
    found.write()
    assert restore.recover() == []
    assert limit_w(machine) == 150.0
    assert found.writer_runs
    os.kill(watchdog_of(process.pid), signal.SIGKILL)
    process.kill()
    process.wait()
    assert not found.writer_runs
    assert len(restore.recover()) == 1
    assert limit_w(machine) == 250.0


def watchdog_of(pid: int) -> int:
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[1]) == pid:
                return int(path.parent.name)
    raise AssertionError(f"process {pid} has no child")


@pytest.fixture
def namespaced() -> tuple[str, ...]:
    """The beginning of a command that runs in its own PID namespace."""
    prefix = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
    if shutil.which("unshare") is None or subprocess.run([*prefix, "true"], capture_output=True).returncode:
        pytest.skip("this system makes no PID namespaces for this user (unshare)")
    return prefix


@pytest.mark.parametrize("inside", [False, True], ids=["outside", "inside"])
def test_a_living_process_of_another_pid_namespace_is_left_alone(
    machine: Machine, tmp_path: Path, holder: Holder, namespaced: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch, inside: bool,
) -> None:
    process = holder(prefix=namespaced if inside else ())
    first_line(process)
    use_temporary(monkeypatch, tmp_path / "other")
    prefix = () if inside else namespaced
    code = "from workbench.device import restore as restoring; print(restoring.recover())"
    ended = subprocess.run([*prefix, sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert (ended.stdout.strip(), limit_w(machine), len(journals())) == ("[]", 150.0, 1), ended.stderr
    _, error = holder(prefix=prefix).communicate(timeout=240)
    assert error.startswith("refused: ")
    process.communicate("\n", timeout=240)
    assert (limit_w(machine), journals()) == (250.0, [])


def test_a_killed_pid_namespace_is_restored_from_outside(
    machine: Machine, holder: Holder, namespaced: tuple[str, ...]
) -> None:
    process = holder(prefix=namespaced)
    first_line(process)
    process.kill()  # and with it all processes of the namespace, the watchdog too
    assert wait_until(lambda: not journal.holder(open_device().uuid))
    assert limit_w(machine) == 150.0
    assert len(restore.recover()) == 1
    assert (limit_w(machine), journals()) == (250.0, [])


@pytest.fixture
def own_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A place for shared memory in which a sweep meets nothing of other tests, however new that is."""
    monkeypatch.setattr(_shared_memory, "directory", lambda: tmp_path)
    monkeypatch.setattr(_shared_memory, "FRESH_S", -1.0)
    return tmp_path


def test_simulating_in_another_pid_namespace_removes_no_living_machine_or_ring(
    simulated: Simulated, namespaced: tuple[str, ...], own_memory: Path
) -> None:
    machine = simulated("V100")
    recorder = Recorder(devices())
    code = (
        "from pathlib import Path; from workbench import _shared_memory; from workbench.simulation import machine; "
        f"_shared_memory.FRESH_S = -1.0; _shared_memory.directory = lambda: Path({str(own_memory)!r}); "
        "machine.simulate('A100')"
    )
    environment = {name: value for name, value in os.environ.items() if name != "WORKBENCH_SIMULATED_GPUS"}
    subprocess.run([*namespaced, sys.executable, "-c", code], env=environment, check=True, timeout=240)
    assert machine.state.path.exists()
    assert list(own_memory.glob(f"workbench-ring-{os.getpid()}-*"))
    recorder.stop()


def test_memory_mapped_by_a_process_is_not_swept(monkeypatch: pytest.MonkeyPatch, own_memory: Path) -> None:
    """The file name contains its owner's pid, which no process has in another PID namespace."""
    pid, folder = dead_pid(), own_memory
    gpus, ring = folder / f"workbench-gpus-{pid}-test", folder / f"workbench-ring-{pid}-test"
    try:
        state, samples = MachineState.create(gpus, 1), Ring.create(ring, ["GPU-1"], capacity=16)
        _shared_memory.sweep()
        assert gpus.exists()
        assert ring.exists()
        state.close()
        samples.close()
        monkeypatch.setattr(_shared_memory, "FRESH_S", 60.0)
        _shared_memory.sweep()
        assert gpus.exists()  # just made, and perhaps about to be mapped
        monkeypatch.setattr(_shared_memory, "FRESH_S", -1.0)
        _shared_memory.sweep()
        assert not gpus.exists()
        assert not ring.exists()
    finally:
        gpus.unlink(missing_ok=True)
        ring.unlink(missing_ok=True)


def test_a_machine_belongs_to_a_pid_of_its_namespace(machine: Machine) -> None:
    assert machine.owned
    machine.state.set_header("owner_namespace", 1)
    other = Machine(machine.library)
    assert not other.owned
    other.close()
    assert machine.state.path.exists()


# journals that are damaged, values that are no JSON


def test_no_damaged_journal_stops_a_session(machine: Machine) -> None:
    rng, found = random.Random(3), left_changed(machine)
    wrong = [
        None, "", "x", 0, -1, 1e400, float("nan"), [], [None], ["x"], {}, True, "../../x", 10**400, 10**30,
    ]
    for trial in range(300):
        fields, raw = json.loads(found.text), bytearray(found.text)
        if trial % 2:
            fields.update(
                {name: rng.choice(wrong) for name in rng.sample(sorted(fields), rng.choice([1, 2]))}
            )
            raw = bytearray(json.dumps(fields).encode())
        else:
            for _ in range(rng.choice([1, 3])):
                raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
        if raw == found.text:
            continue
        found.path.write_bytes(raw)
        reported = restore.recover()
        assert limit_w(machine) == 250.0 or (found.uuid in "".join(reported) and found.path.read_bytes() == raw)
        machine.state.change_setting(0, limit_w=150.0)
    found.path.write_text("[" * 100_000)
    (reported,) = restore.recover()
    assert found.uuid in reported


def test_a_home_that_cannot_be_read_does_not_stop_a_session(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def recover() -> list[str]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(restore, "recover", recover)
    mine = sessions.Session()
    assert len(mine.devices) == 1
    mine.close()


def test_the_journal_stays_short_however_often_a_limit_is_changed(machine: Machine) -> None:
    device = open_device()
    for step in range(200):
        lease.change(device, Setting(power_limit_w=150.0 + step % 50 + 0.5))
    noted = journal.of(device.uuid)
    assert noted is not None
    assert (noted.before_w, len(noted.limits_w)) == (250.0, 50)  # each limit once
    lease.restore(device)
    assert (limit_w(machine), journals()) == (250.0, [])


@pytest.mark.parametrize("value", [np.float32(200.0), np.int64(200), np.array(200.0)])
def test_a_limit_from_numpy_is_journalled(machine: Machine, value: float) -> None:
    device = open_device()
    with lease.applied(device, Setting(power_limit_w=180.0)):
        lease.change(device, Setting(power_limit_w=value))
        assert journal.of(device.uuid).limits_w == [180.0, 200.0]  # type: ignore[union-attr]
    assert (limit_w(machine), journals()) == (250.0, [])


@pytest.mark.parametrize(
    "value", [np.array([True, False]), object(), None], ids=["array", "object", "full disk"]
)
def test_a_journal_that_cannot_be_written_spoils_no_later_change(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, value: object
) -> None:
    device = open_device()
    lease.change(device, Setting(power_limit_w=180.0))
    with monkeypatch.context() as patch:
        if value is None:
            patch.setattr(
                os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device"))
            )
        description = "is not changed: its journal.*No space left" if value is None else "give a number or None"
        with pytest.raises((UsageError, DeviceError), match=description):
            lease.change(device, Setting(190.0 if value is None else value))  # type: ignore[arg-type]
    assert journals() == [f"{device.uuid}.json"]  # and no scratch file
    lease.change(device, Setting(power_limit_w=200.0))
    assert journal.of(device.uuid).limits_w == [180.0, 200.0]  # type: ignore[union-attr]
    lease.restore(device)
    assert limit_w(machine) == 250.0
