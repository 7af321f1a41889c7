"""Changing a GPU's setting so that it is put back: on success, on failure, at exit, and when the process was killed.

One process at a time holds a GPU (a lock file). Before the first change a journal with the state found goes to disk, and a
watchdog process starts that restores it if this process dies. A journal that outlived both is restored on the next start.
What another program has set meanwhile is left alone, and said.

Standard library only, but for the driver's door: the watchdog runs this too.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # Windows: the journal still protects, two processes are not kept apart
    fcntl = None  # type: ignore[assignment]

from .. import places
from ..errors import DeviceError, DeviceHeld, NotSupported, SimulationError
from ..records import Setting
from .protocol import Device

KNOBS = ("power_limit_w", "sm_clock_mhz", "mem_clock_mhz")
SAME_W = 1.0  # the driver rounds limits
_ALONE = "left alone"


@dataclass
class Journal:
    """What was found before the first change, and everything that was set since."""

    uuid: str
    name: str
    pid: int
    started: str
    before_w: float | None
    simulated: str
    touched: list[str] = field(default_factory=list)
    limits_w: list[float] = field(default_factory=list)

    @property
    def path(self) -> Path:
        return places.journals() / f"{self.uuid}.json"

    def write(self) -> None:
        """Replace the file on disk in one step, and wait until the disk has it."""
        scratch = self.path.with_suffix(f".{os.getpid()}.tmp")
        with open(scratch, "w", encoding="utf-8") as file:
            json.dump(self.__dict__, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(scratch, self.path)


@dataclass
class _Holding:
    device: Device
    journal: Journal
    lock: Any
    owes: bool = False  # the journal holds what an earlier one could not put back


_held: dict[str, _Holding] = {}
_guard = threading.RLock()
_watchdog: subprocess.Popen[bytes] | None = None


def change(device: Device, setting: Setting) -> Setting:
    """Put a GPU to a setting and hold it until `restore`; returns what was read back.

    Raises:
        DeviceHeld: another process holds this GPU.
        OutOfRange, NotSupported, NotPermitted: nothing was changed.
    """
    with _guard:
        fresh = device.uuid not in _held
        holding = _hold(device)
        journal = holding.journal
        try:
            new = [knob for knob in KNOBS if getattr(setting, knob) is not None and knob not in journal.touched]
            journal.touched += new
            if setting.power_limit_w is not None:
                journal.limits_w.append(setting.power_limit_w)
            journal.write()  # before the change: a kill in between must not lose the way back
            return device.apply(setting)
        except DeviceError:
            if fresh:
                _give_up(holding)
            raise
        except BaseException:  # a full disk: nothing was changed yet
            if fresh:
                _release(holding)
            raise


def restore(device: Device) -> str:
    """Put a GPU back to what it was before the first `change`, and let it go. Returns a sentence if something is left.

    A GPU that this process does not hold is left alone.
    """
    with _guard:
        holding = _held.get(device.uuid)
        if holding is None:
            return ""
        left = put_back(holding.device, holding.journal)
        _release(holding, keep_journal=bool(left) and not left.startswith(_ALONE))
        return left


def restore_all() -> list[str]:
    """Restore every GPU that this process holds; returns the sentences of those where something is left."""
    with _guard:
        return [left for holding in list(_held.values()) if (left := restore(holding.device))]


@contextlib.contextmanager
def applied(device: Device, setting: Setting) -> Iterator[Setting]:
    """Hold a setting for the length of a block; nested blocks put back what the outer one had set."""
    with _guard:
        outer = _held.get(device.uuid)
        before = device.setting() if outer else None
        got = change(device, setting)
        holding = _held[device.uuid]
    try:
        yield got
    finally:
        with _guard:
            if _held.get(device.uuid) is holding:  # and was not restored meanwhile
                if before is None:
                    restore(device)
                else:
                    _back_to(device, before, setting)


def holder(uuid: str) -> str:
    """Who holds a GPU: "this process", "process 123 (python)", or empty when nobody does."""
    if uuid in _held:
        return "this process"
    path = places.locks() / f"{uuid}.lock"
    if fcntl is None or not path.exists():
        return ""
    with open(path, "a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            return file.read().strip() or "another process"
    return ""


def recover() -> list[str]:
    """Restore what processes that are gone have left changed; returns a sentence for each GPU that was found so."""
    told = []
    for path in sorted(places.journals().glob("*.json")):
        journal = _load(path)
        if journal is None:
            aside = path.with_suffix(".damaged")
            with contextlib.suppress(OSError):
                path.replace(aside)
            told.append(f"a journal of a changed GPU could not be read and was set aside as {aside.name}")
            continue
        if journal.uuid in _held or _runs(journal.pid, journal.started):
            continue
        lock = _take_lock(journal.uuid, journal.name)
        if lock is None:
            continue  # its watchdog is at work
        try:
            if path.exists():
                told += _recover(path, journal)
        finally:
            lock.close()
    return told


def _recover(path: Path, journal: Journal) -> list[str]:
    from ..finder import open_exactly
    from ..simulation.nvml_library import attach

    if journal.simulated:
        here = os.environ.get("WORKBENCH_SIMULATED_GPUS", "")
        if not Path(journal.simulated).exists():
            path.unlink()
            return []
        if here != journal.simulated:
            return []  # not this process's machine
        attach()
    try:
        device = open_exactly(journal.uuid)
        left = put_back(device, journal)
    except (DeviceError, SimulationError) as error:
        return [f"{journal.name} was left changed by a process that is gone and could not be restored: {error}"]
    if not left or left.startswith(_ALONE):
        path.unlink(missing_ok=True)
    what = "power limit" if journal.touched == ["power_limit_w"] else "setting"
    return [
        f"{journal.name}: {left}"
        if left
        else f"{journal.name} was left changed by a process that is gone; its {what} is restored"
    ]


def put_back(device: Device, journal: Journal) -> str:
    """Undo what a journal tells; returns a sentence if something is left as it is."""
    problems = []
    clocks = tuple(knob for knob in journal.touched if knob != "power_limit_w")
    if clocks:
        try:
            device.reset(clocks)
        except NotSupported:
            pass  # then it was never locked
        except DeviceError as error:
            problems.append(str(error))
    if "power_limit_w" in journal.touched and journal.before_w is not None:
        try:
            now_w = device.setting().power_limit_w
            ours = now_w is not None and any(abs(now_w - limit_w) <= SAME_W for limit_w in journal.limits_w)
            if ours:
                device.apply(Setting(power_limit_w=journal.before_w))
            elif now_w is not None and abs(now_w - journal.before_w) > SAME_W:
                return f"{_ALONE} at {now_w:g} W: another program has set it meanwhile (it was {journal.before_w:g} W before)"
        except DeviceError as error:
            problems.append(f"the power limit could not be put back to {journal.before_w:g} W: {error}")
    return "; ".join(problems)


def _back_to(device: Device, before: Setting, tried: Setting) -> None:
    """Within a hold, return the knobs of `tried` to what they were."""
    freed = tuple(k for k in KNOBS if getattr(tried, k) is not None and getattr(before, k) is None)
    if freed:
        device.reset(freed)
    kept = {k: getattr(before, k) for k in KNOBS if getattr(tried, k) is not None and getattr(before, k) is not None}
    if kept:
        change(device, Setting(**kept))


def _hold(device: Device) -> _Holding:
    if device.uuid in _held:
        return _held[device.uuid]
    lock = _take_lock(device.uuid, device.name)
    if lock is None:
        raise DeviceHeld(
            f"{device.name} is being changed by {holder(device.uuid) or 'another process'}; "
            "wait until it has finished, or stop it there"
        )
    try:
        stale, left = _load(places.journals() / f"{device.uuid}.json"), ""
        if stale is not None and (stale.pid == os.getpid() or not _runs(stale.pid, stale.started)):
            left = put_back(device, stale)
        _start_watchdog()
        simulated = os.environ.get("WORKBENCH_SIMULATED_GPUS", "") if device.simulated else ""
        before_w = device.setting().power_limit_w if device.can("power_limit") else None
        journal = Journal(device.uuid, device.name, os.getpid(), _started(os.getpid()), before_w, simulated)
        holding = _Holding(device, journal, lock)
        if stale is not None and left and not left.startswith(_ALONE):  # what it owes goes on with ours
            journal.before_w, journal.touched, journal.limits_w = stale.before_w, stale.touched, stale.limits_w
            holding.owes = True
    except BaseException:
        lock.close()
        raise
    _held[device.uuid] = holding
    return holding


def _give_up(holding: _Holding) -> None:
    """Let a GPU go whose first change failed. The device has undone it; what it could not is tried again, or journalled."""
    journal = holding.journal
    try:
        still = holding.device.setting()
    except DeviceError:
        left = True
    else:
        now_w, before_w = still.power_limit_w, journal.before_w
        moved = "power_limit_w" in journal.touched and None not in (now_w, before_w) and abs(now_w - before_w) > SAME_W  # type: ignore[operator]
        left = holding.owes or moved or still.sm_clock_mhz is not None or still.mem_clock_mhz is not None
    _release(holding, keep_journal=left and bool(put_back(holding.device, journal)))


def _release(holding: _Holding, *, keep_journal: bool = False) -> None:
    if not keep_journal:
        holding.journal.path.unlink(missing_ok=True)
    _held.pop(holding.device.uuid, None)
    holding.lock.close()
    if not _held:
        _stop_watchdog()


def _take_lock(uuid: str, name: str) -> Any:
    """The open lock file, or None where another process has it."""
    path = places.locks() / f"{uuid}.lock"
    old = os.umask(0)
    try:
        file = open(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+", encoding="utf-8")  # noqa: SIM115
    finally:
        os.umask(old)
    if fcntl is not None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            return None
    file.truncate(0)
    file.write(f"process {os.getpid()} ({Path(sys.argv[0] or sys.executable).name}), since {time.strftime('%H:%M')}")
    file.flush()
    return file


def _load(path: Path) -> Journal | None:
    try:
        return Journal(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError):
        return None


# the watchdog


def _start_watchdog() -> None:
    global _watchdog
    if _watchdog is not None and _watchdog.poll() is None:
        return
    paths = "\n".join([str(Path(__file__).resolve().parents[2]), *(p for p in sys.path if p and os.path.isdir(p))])
    code = "import sys; sys.path[:] = sys.argv[1].split('\\n'); from workbench.device.control import watch; watch(sys.argv[2:])"
    # A session of its own: whoever kills the kernel's process group must not take the watchdog along.
    _watchdog = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", code, paths, str(os.getpid()), _started(os.getpid())],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    assert _watchdog.stdout is not None
    _watchdog.stdout.read(1)  # it is watching


def _stop_watchdog() -> None:
    global _watchdog
    dog, _watchdog = _watchdog, None
    if dog is None:
        return
    with contextlib.suppress(OSError):
        assert dog.stdin is not None
        dog.stdin.write(b"done")
        dog.stdin.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        dog.wait(timeout=5.0)
    if dog.stdout:
        dog.stdout.close()


def watch(argv: list[str]) -> None:
    """The watchdog process: when its parent is gone without having said "done", restore what it has left changed."""
    parent, started = int(argv[0]), argv[1]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.write(1, b".")
    if os.read(0, 16):
        return
    deadline = time.monotonic() + 30.0
    while time.monotonic() < deadline:
        if not _runs(parent, started) and not recover() and not _left_by(parent):
            return
        time.sleep(0.05 if time.monotonic() < deadline - 29.0 else 0.5)


def _left_by(pid: int) -> bool:
    return any(journal.pid == pid for path in places.journals().glob("*.json") if (journal := _load(path)))


def _runs(pid: int, started: str) -> bool:
    """Whether the process that wrote a journal still runs (and not another one under its number)."""
    now = _started(pid)
    return bool(now) and (not started or now == started)


def _started(pid: int) -> str:
    """When a process started, as the kernel counts; empty for one that is gone or a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return "" if fields[0] == b"Z" else fields[19].decode()
    except OSError:
        pass
    if os.path.isdir("/proc/self"):
        return ""
    try:
        os.kill(pid, 0)
    except OSError:
        return ""
    return "running"


def _forget() -> None:
    """In a forked child: it owes nothing, and must not keep the lock or the watchdog's end of its pipe when the parent is gone."""
    global _guard, _watchdog
    _guard = threading.RLock()
    for holding in _held.values():
        with contextlib.suppress(OSError):
            holding.lock.close()
    _held.clear()
    if _watchdog is not None:
        for pipe in (_watchdog.stdin, _watchdog.stdout):
            if pipe is not None:
                pipe.close()
        _watchdog.returncode = 0  # not this process's child
        _watchdog = None


atexit.register(restore_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
