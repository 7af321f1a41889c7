"""Files on disk about a changed GPU: locks, so that one process at a time changes it, and the journal with
the earlier settings to restore. Standard library only.

A GPU has up to three record locks. One file is in the system's temporary directory and keeps users apart. One
in the home keeps processes of one user apart that have different temporary directories (containers). The
third is the GPU's own file in /dev, which containers share that share nothing else. The kernel shows who
holds a lock, and ends it with the process that took it, also where a forked one lives on.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import socket
import struct
import sys
import threading
import time
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows: the journal still protects, two processes are not kept apart
    fcntl = None  # type: ignore[assignment]

from .. import _paths, _processes
from ..errors import DeviceError, NotPermitted
from ..records import Setting
from . import protocol

KNOBS = tuple(protocol.KNOBS)
LARGEST_BYTES = 16 * 2**20
RELEASED = "released"  # as `started`: the present holder of the lock may restore
_ASK = struct.Struct("@hhqqi0q")  # Linux's `struct flock`: kind, whence, start, length, pid
_guard = threading.Lock()  # a process that closes a file loses its locks on it, also those of another thread
_taken: set[str] = set()


@dataclass
class Journal:
    """The setting before the first change, and the settings made since.

    Attributes:
        before_w: The power limit (W) to restore; None where the driver did not report it.
        touched: Knobs that are not restored yet.
        limits_w: The last power limits (W) that this process has set or is about to set, each once.
        directory: Where its file is, for the length of a hold; empty in journals of older versions.
    """

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
    namespace: str = ""  # that the pid counts in; journals of older versions tell none
    directory: str = ""

    @property
    def path(self) -> Path:
        return Path(self.directory or _paths.journals()) / _paths.named(self.uuid, ".json")

    @property
    def text(self) -> bytes:
        """One line of JSON with a checksum, which shows flipped bits."""
        return json.dumps({**self.__dict__, "checksum": _checksum(self.__dict__)}).encode()

    def write(self) -> None:
        """Replace the file on disk in one step, and wait until the disk has it. Raises DeviceError."""
        try:
            with _paths.replacing(self.path) as file:
                file.write(self.text)
        except OSError as error:
            raise DeviceError(f"{self.name} is not changed: its journal, from which it is restored after a "
                              f"kill, cannot be written ({error}); free space there, or set WORKBENCH_HOME"
                              ) from error

    def note(self, setting: Setting) -> None:
        """Write down the next setting."""
        touched = [knob for knob in KNOBS if getattr(setting, knob) is not None or knob in self.touched]
        limits_w = self.limits_w
        if setting.power_limit_w is not None:
            limit_w = float(setting.power_limit_w)  # JSON does not take NumPy's
            limits_w = [*[each for each in limits_w if each != limit_w][-99:], limit_w]
        replace(self, touched=touched, limits_w=limits_w).write()
        self.touched, self.limits_w = touched, limits_w

    def forget(self, knobs: Iterable[str]) -> None:
        """Remove restored knobs. With the last one, delete the file if this process wrote it last."""
        self.touched = [knob for knob in self.touched if knob not in knobs]
        if self.touched:
            self.write()
        elif (found := load(self.path)) is not None and found.writer == self.writer:
            self.path.unlink(missing_ok=True)

    @property
    def writer(self) -> tuple[int, str, str]:
        """The process that wrote it: its id, when it started, and the PID namespace."""
        return self.pid, self.started, self.namespace

    @property
    def of_this_host(self) -> bool:
        """Whether it was written on this machine: every start of a container has another host name, and the
        same boot.
        """
        if self.boot_id and self.boot_id == _processes.boot_id():
            return True
        return not self.host or self.host == socket.gethostname()

    @property
    def of_an_earlier_boot(self) -> bool:
        """Settings do not survive a reboot, so such a journal has nothing to restore."""
        now = _processes.boot_id()
        return bool(now and self.boot_id) and self.boot_id != now

    @property
    def in_this_namespace(self) -> bool:
        """Whether the pid counts in the PID namespace of this process."""
        return self.namespace in ("", _processes.namespace())

    @property
    def writer_runs(self) -> bool:
        """Whether its writer still runs. In another PID namespace, and without a /proc in which a zombie
        differs from a living process, the lock in the same home shows it.
        """
        if fcntl is None or (self.in_this_namespace and _processes.sees_its_own()):
            return _processes.runs(self.pid, self.started)
        if self.started == RELEASED or (by := _locked_by(self.uuid)) is None:
            return False
        return not self.in_this_namespace or by[0] == self.pid

    @property
    def is_sound(self) -> bool:
        """Whether every field is of its type: the file may have been damaged, or made by somebody."""
        texts = (self.uuid, self.name, self.started, self.simulated, self.host, self.boot_id, self.namespace,
                 self.directory)
        return (
            all(isinstance(text, str) and "\0" not in text for text in texts) and type(self.pid) is int
            and 0 < self.pid < 2**31 and (self.before_w is None or _is_power(self.before_w))
            and isinstance(self.touched, list) and all(knob in KNOBS for knob in self.touched)
            and isinstance(self.limits_w, list) and all(_is_power(limit_w) for limit_w in self.limits_w)
        )


def _is_power(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e6  # NaN is not


def of(uuid: str) -> Journal | None:
    """The journal of a GPU; None where there is none."""
    return load(_paths.journals() / _paths.named(uuid, ".json"))


def parse(text: str | bytes) -> Journal | None:
    """A journal from its text; None where that is damaged, or of a newer version."""
    try:
        fields = json.loads(text)
        sound = fields.pop("checksum", None) in (None, _checksum(fields))
        journal = Journal(**fields)
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None
    return journal if sound and journal.is_sound else None


def load(path: Path) -> Journal | None:
    """The journal of a file; None where there is none, or none that can be read."""
    try:
        journal = parse(_read(path))
        if journal is None or path.name != _paths.named(journal.uuid, ".json"):
            return None
    except (OSError, DeviceError):
        return None
    journal.directory = str(path.parent)  # the present place of the file
    return journal


def unusable() -> dict[Path, str]:
    """Return unreadable journals, each with a sentence. They are kept until the user removes them."""
    found = sorted(_paths.journals().glob("[!.]*.[dj]*"))  # .json and .damaged
    return {path: _describe_unusable(path) for path in found if load(path) is None}


def set_aside(path: Path) -> str:
    """Rename an unreadable journal, so that a new one can be written; returns a sentence about it."""
    kept = path.with_suffix(f".{time.time_ns()}.damaged")
    with contextlib.suppress(OSError):  # the directory is read-only, so no new journal can be written either
        path.rename(kept)
    return _describe_unusable(kept)


def _describe_unusable(path: Path) -> str:
    uuid, text = path.name.split(".")[0], ""
    with contextlib.suppress(OSError):
        text = _read(path)
    known = [what for knob, (_, what, _) in protocol.KNOBS.items() if f'"{knob}"' in text]
    known += [f"{watts} W before" for watts in re.findall(r'"before_w": ?([0-9.]+)', text)]
    return (f"{uuid} may be left changed ({', '.join(known) or 'nothing can be read'}): its journal {path} "
            f"is damaged, of a newer version or another user's. See `nvidia-smi -q -i {uuid}`; "
            "`workbench restore --all` sets the defaults and removes it")


def _read(path: Path) -> str:
    with open(_paths.open_plain(path, os.O_RDONLY), encoding="utf-8", errors="replace") as file:
        return file.read(LARGEST_BYTES)


def _checksum(fields: dict[str, object]) -> int:
    return zlib.crc32(json.dumps(fields).encode())


class Lock:
    """The right to change one GPU, until it is closed or this process ends.

    Attributes:
        abandoned: Its last holder has died, and its watchdog may have to restore.
    """

    def __init__(self, uuid: str, descriptors: list[int]) -> None:
        self._uuid, self._descriptors = uuid, descriptors
        self.abandoned = os.fstat(descriptors[0]).st_size > 0
        self._mark(1)

    def _mark(self, length: int) -> None:
        with contextlib.suppress(OSError, IndexError):
            os.ftruncate(self._descriptors[0], length)

    def close(self, *, abandoned: bool = False) -> None:
        with _guard:
            self._mark(int(abandoned))
            _close(self._descriptors)
            self._descriptors = []
            _taken.discard(self._uuid)


def lock(uuid: str, name: str, node: str = "") -> Lock | None:
    """The lock of a GPU; None where another process or thread has it. Raises NotPermitted.

    Args:
        uuid: Of the GPU.
        name: Of the GPU, for messages.
        node: Its file in /dev.
    """
    descriptors: list[int] = []
    with _guard:
        if uuid in _taken:
            return None
        try:
            descriptors.append(_open(uuid, name))
            with contextlib.suppress(OSError):  # another user's file in a shared home
                descriptors.append(_open_in_home(uuid))
            with contextlib.suppress(OSError):  # no such file, or no right to write to it
                descriptors += [os.open(node, os.O_RDWR | os.O_CLOEXEC)] if node else []
            if all(_locked(descriptor) for descriptor in descriptors):
                _taken.add(uuid)
                return Lock(uuid, descriptors)
        except BaseException:
            _close(descriptors)
            raise
        _close(descriptors)
        return None


def holder(uuid: str) -> str:
    """Which other process has the lock, "process 123 (train.py), since 14:30"; empty where none has."""
    by = _locked_by(uuid)
    return _describe(*by) if by is not None else ""


def _locked_by(uuid: str) -> tuple[int, float] | None:
    """Process id of another holder of the lock, and the time of its start."""
    if fcntl is None or not sys.platform.startswith("linux"):  # elsewhere `struct flock` is another
        return None
    with _guard:
        for path in () if uuid in _taken else (_shared(uuid), _in_home(uuid)):
            try:
                descriptor = _paths.open_plain(path, os.O_RDONLY)
            except OSError:
                continue
            try:
                asked = _ASK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
                kind, _, _, _, pid = _ASK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))
                if kind != fcntl.F_UNLCK:
                    return pid, os.fstat(descriptor).st_mtime
            except OSError:  # a file system without locks: nobody can report
                continue
            finally:
                os.close(descriptor)
    return None


def _forget() -> None:
    """In a forked child: the locks are the parent's, and another thread of it may have been in here."""
    global _guard
    _guard = threading.Lock()
    _taken.clear()


def _describe(pid: int, since_s: float) -> str:
    since = time.strftime(", since %H:%M", time.localtime(since_s))
    if pid <= 0:
        return f"another process (in another container){since}"
    script = _processes.script_of(pid)
    return f"process {pid} ({script}){since}" if script else f"process {pid}{since}"


def _shared(uuid: str) -> Path:
    return _paths.locks() / f"gpu-energy-workbench-{_paths.named(uuid, '.lock')}"


def _in_home(uuid: str) -> Path:
    return _paths.home()[0] / "locks" / _paths.named(uuid, ".lock")


def _locked(descriptor: int) -> bool:
    """Whether this process now has the lock. Without locks of the file system the journals' pids protect."""
    if fcntl is None:
        return True
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EACCES, errno.EAGAIN)
    with contextlib.suppress(OSError):
        os.utime(descriptor)  # since when; cleaners of temporary directories see it too
    return True


def _open_in_home(uuid: str) -> int:
    path = _in_home(uuid)
    path.parent.mkdir(exist_ok=True)
    return _paths.open_plain(path, os.O_RDWR | os.O_CREAT)


def _open(uuid: str, name: str) -> int:
    """A descriptor of the lock file that all users share, made if need be. Raises NotPermitted."""
    problem: OSError | None = None
    try:
        path = _shared(uuid)
        # Linux refuses O_CREAT on a file of another user in a sticky directory (fs.protected_regular), even
        # where the file may be written to; the last attempt is for one that another user has made in between.
        for flags in (os.O_RDWR, os.O_RDWR | os.O_CREAT | os.O_EXCL, os.O_RDWR):
            try:
                descriptor = _paths.open_plain(path, flags)
            except OSError as error:
                problem = error
                continue
            if flags & os.O_CREAT:
                os.fchmod(descriptor, 0o666)  # whatever the umask: other users lock it too
            return descriptor
    except OSError as error:
        problem = error
    assert problem is not None
    raise NotPermitted(f"{name} cannot be locked against other processes: {problem.strerror} "
                       f"({problem.filename}); its owner or root can remove that file, or set TMPDIR to a "
                       "directory of your own") from problem


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)


_processes.after_fork(_forget)
