"""Changing a GPU's setting so that it is put back: on success, on failure, at exit, and when the process was killed.

One process at a time holds a GPU (a lock file). Before the first change a journal with the state found goes to disk, and a
watchdog process starts that restores it if this process dies. A journal that outlived both is restored on the next start.
What another program has set meanwhile is left alone, and said. A home that several machines share has the journals of all
of them; each looks at its own.

Standard library only, but for the driver's door: the watchdog runs this too.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

try:
    import fcntl
except ImportError:  # Windows: the journal still protects, two processes are not kept apart
    fcntl = None  # type: ignore[assignment]

from .. import places
from ..errors import DeviceError, DeviceHeld, NotPermitted, NotSupported, SimulationError, Transient
from ..records import Setting
from .protocol import Device

KNOBS = ("power_limit_w", "sm_clock_mhz", "mem_clock_mhz")
SAME_W = 1.0  # the driver rounds limits
PATIENCE_S = (0.05, 0.15, 0.3, 0.5)  # pauses between the attempts to restore while the driver cannot answer
T = TypeVar("T")


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
    host: str = ""
    boot_id: str = ""

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


@dataclass(frozen=True, slots=True)
class Outcome:
    """How putting back went: what there is to tell, and whether nothing is owed any more."""

    sentence: str = ""
    settled: bool = True


@dataclass
class _Holding:
    device: Device
    journal: Journal
    lock: Any
    owes: bool = False  # the journal holds what an earlier one could not put back


_held: dict[str, _Holding] = {}
_owed: set[str] = set()  # let go with a journal of what could not be put back
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
        try:
            _note(holding.journal, setting)  # before the change: a kill in between must not lose the way back
        except BaseException:  # a full disk: nothing was changed yet
            if fresh:
                _release(holding, keep_journal=holding.owes)
            raise
        try:
            return device.apply(setting)
        except DeviceError:
            if fresh:
                _give_up(holding)
            raise
        except BaseException:  # an interrupt, and the setting may be in force already
            if fresh:
                with contextlib.suppress(Exception):
                    restore(device)
            raise


def _note(journal: Journal, setting: Setting) -> None:
    journal.touched += [knob for knob in KNOBS if getattr(setting, knob) is not None and knob not in journal.touched]
    if setting.power_limit_w is not None:
        journal.limits_w.append(setting.power_limit_w)
    journal.write()


def restore(device: Device) -> str:
    """Put a GPU back to what it was before the first `change`, and let it go. Returns a sentence if something is left.

    A GPU that this process does not hold is left alone.
    """
    with _guard:
        holding = _held.get(device.uuid)
        if holding is None:
            return ""
        outcome = put_back(holding.device, holding.journal)
        _release(holding, keep_journal=not outcome.settled)
        return outcome.sentence


def restore_all() -> list[str]:
    """Restore every GPU that this process holds; returns the sentences of those where something is left."""
    with _guard:
        return [left for holding in list(_held.values()) if (left := restore(holding.device))]


class WayBack:
    """The way back from one's own changes, whoever else in this process has changed the GPU.

    It leads to what was set when the first of them was made: within a hold that was there already to its setting, else to
    what was before the hold.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        with _guard:
            self._begin()

    def _begin(self) -> None:
        self._holding = _held.get(self._device.uuid)
        self._before = self._device.setting() if self._holding else None
        self._tried: set[str] = set()

    def change(self, setting: Setting) -> Setting:
        """As `change` of this module."""
        with _guard:
            if _held.get(self._device.uuid) is not self._holding:  # restored meanwhile, and our change with it
                self._begin()
            new = {knob for knob in KNOBS if getattr(setting, knob) is not None} - self._tried
            self._tried |= new
            try:
                return change(self._device, setting)
            except DeviceError:
                self._tried -= new  # the device has undone it
                raise
            finally:
                self._holding = _held.get(self._device.uuid)

    def back(self) -> str:
        """Undo the changes; returns a sentence if something is left. What was restored meanwhile is left alone."""
        with _guard:
            left = ""
            if self._tried and self._holding is not None and _held.get(self._device.uuid) is self._holding:
                if self._before is None:
                    left = restore(self._device)
                else:
                    _back_to(self._device, self._before, self._tried)
            self._tried = set()  # not before: who is interrupted in here can call again
            return left


@contextlib.contextmanager
def applied(device: Device, setting: Setting) -> Iterator[Setting]:
    """Hold a setting for the length of a block; nested blocks put back what the outer one had set."""
    way = WayBack(device)
    try:
        yield way.change(setting)
    finally:
        way.back()


def holder(uuid: str) -> str:
    """Who holds a GPU: "this process", "process 123 (python)", or empty when nobody does."""
    if uuid in _held:
        return "this process"
    path = places.locks() / f"{uuid}.lock"
    if fcntl is None:
        return ""
    try:
        file = open(path, encoding="utf-8")  # noqa: SIM115
    except OSError:
        return ""
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
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
        if not _of_this_host(journal):
            continue
        if _of_an_earlier_boot(journal):
            path.unlink(missing_ok=True)
            continue
        if journal.uuid in _held or _runs(journal.pid, journal.started):
            continue
        try:
            lock = _take_lock(journal.uuid, journal.name)
        except NotPermitted as error:
            told.append(f"{journal.name} was left changed by a process that is gone and is not restored: {error}")
            continue
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
        outcome = put_back(device, journal)
    except (DeviceError, SimulationError) as error:
        return [f"{journal.name} was left changed by a process that is gone and could not be restored: {error}"]
    if outcome.settled:
        path.unlink(missing_ok=True)
    what = "power limit" if journal.touched == ["power_limit_w"] else "setting"
    return [
        f"{journal.name}: {outcome.sentence}"
        if outcome.sentence
        else f"{journal.name} was left changed by a process that is gone; its {what} is restored"
    ]


def put_back(device: Device, journal: Journal) -> Outcome:
    """Undo what a journal tells, as far as it is still ours to undo."""
    clocks = _clocks_back(device, journal)
    limit = _limit_back(device, journal)
    return Outcome("; ".join(each.sentence for each in (clocks, limit) if each.sentence), clocks.settled and limit.settled)


def _clocks_back(device: Device, journal: Journal) -> Outcome:
    clocks = tuple(knob for knob in journal.touched if knob != "power_limit_w")
    if clocks:
        try:
            _patiently(lambda: device.reset(clocks))
        except NotSupported:
            pass  # then it was never locked
        except DeviceError as error:
            return Outcome(str(error), settled=False)
    return Outcome()


def _limit_back(device: Device, journal: Journal) -> Outcome:
    before_w = journal.before_w
    if "power_limit_w" not in journal.touched or before_w is None:
        return Outcome()
    try:
        now_w = _patiently(device.setting).power_limit_w
        if now_w is None or abs(now_w - before_w) <= SAME_W:
            return Outcome()
        if not any(abs(now_w - limit_w) <= SAME_W for limit_w in journal.limits_w):
            return Outcome(f"left alone at {now_w:g} W: another program has set it meanwhile (it was {before_w:g} W before)")
        _patiently(lambda: device.apply(Setting(power_limit_w=before_w)))
    except DeviceError as error:
        return Outcome(f"the power limit could not be put back to {before_w:g} W: {error}", settled=False)
    return Outcome()


def _patiently(act: Callable[[], T]) -> T:
    """Do something that the driver may not be able to answer just now; tried for a second."""
    for pause_s in PATIENCE_S:
        try:
            return act()
        except Transient:
            time.sleep(pause_s)
    return act()


def _back_to(device: Device, before: Setting, tried: set[str]) -> None:
    """Within a hold, return the knobs that were tried to what they were."""
    freed = tuple(k for k in KNOBS if k in tried and getattr(before, k) is None)
    if freed:
        device.reset(freed)
    kept = {k: getattr(before, k) for k in KNOBS if k in tried and getattr(before, k) is not None}
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
        stale, outcome = _load(places.journals() / f"{device.uuid}.json"), Outcome()
        if stale is not None and (not _of_this_host(stale) or _of_an_earlier_boot(stale)):
            stale = None
        if stale is not None and (stale.pid == os.getpid() or not _runs(stale.pid, stale.started)):
            outcome = put_back(device, stale)
        _start_watchdog()
        simulated = os.environ.get("WORKBENCH_SIMULATED_GPUS", "") if device.simulated else ""
        before_w = device.setting().power_limit_w if device.can("power_limit") else None
        journal = Journal(device.uuid, device.name, os.getpid(), _started(os.getpid()), before_w, simulated,
                          host=socket.gethostname(), boot_id=_boot_id())  # fmt: skip
        holding = _Holding(device, journal, lock)
        if stale is not None and not outcome.settled:  # what it owes goes on with ours
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
    _release(holding, keep_journal=left and not put_back(holding.device, journal).settled)


def _release(holding: _Holding, *, keep_journal: bool = False) -> None:
    uuid = holding.device.uuid
    if keep_journal:
        _owed.add(uuid)
    else:
        holding.journal.path.unlink(missing_ok=True)
        _owed.discard(uuid)
    _held.pop(uuid, None)
    holding.lock.close()
    if not _held and not _owed:  # what is owed the watchdog tries again when this process has ended
        _stop_watchdog()


def _take_lock(uuid: str, name: str) -> Any:
    """The open lock file, or None where another process has it."""
    file = open(_open_lock(uuid, name), "r+", encoding="utf-8")  # noqa: SIM115
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


def _open_lock(uuid: str, name: str) -> int:
    """A descriptor of the lock file, made if need be.

    Raises:
        NotPermitted: it cannot be opened or made.
    """
    problem: OSError | None = None
    old = os.umask(0)
    try:
        path = places.locks() / f"{uuid}.lock"
        # Linux refuses O_CREAT on a file of another user in a sticky directory (fs.protected_regular), even where the file
        # may be written to; the last attempt is for one that another user has made in between.
        for flags in (os.O_RDWR, os.O_RDWR | os.O_CREAT, os.O_RDWR):
            try:
                return os.open(path, flags, 0o666)
            except OSError as error:
                problem = error
    except OSError as error:
        problem = error
    finally:
        os.umask(old)
    assert problem is not None
    raise NotPermitted(
        f"{name} cannot be locked against other processes: {problem.strerror} ({problem.filename}); "
        "its owner or root can remove that file, or set TMPDIR to a directory of your own"
    ) from problem


def _load(path: Path) -> Journal | None:
    try:
        return Journal(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError):
        return None


def _of_this_host(journal: Journal) -> bool:
    return not journal.host or journal.host == socket.gethostname()


def _of_an_earlier_boot(journal: Journal) -> bool:
    """Settings do not survive a reboot, so such a journal has nothing to restore."""
    now = _boot_id()
    return bool(now and journal.boot_id) and journal.boot_id != now


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


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
    known = [journal for path in places.journals().glob("*.json") if (journal := _load(path))]
    return any(journal.pid == pid and _of_this_host(journal) for journal in known)


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
    _owed.clear()
    if _watchdog is not None:
        for pipe in (_watchdog.stdin, _watchdog.stdout):
            if pipe is not None:
                pipe.close()
        _watchdog.returncode = 0  # not this process's child
        _watchdog = None


atexit.register(restore_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
