"""One process at a time changes a GPU: two record locks for each. Standard library only.

One file is in the system's temporary directory and keeps users apart; one in the home keeps processes of one
user apart that have different temporary directories (containers). They are empty: the kernel shows the
holder, and ends a lock with the process that took it, also where a forked one lives on.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import sys
import threading
import time
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows: the journal still protects, two processes are not kept apart
    fcntl = None  # type: ignore[assignment]

from .. import _paths, _processes
from ..errors import NotPermitted

_ASK = struct.Struct("@hhqqi0q")  # Linux's `struct flock`: kind, whence, start, length, pid
_guard = threading.Lock()  # a process that closes a file loses its locks on it, also those of another thread
_taken: set[str] = set()


class Lock:
    """The right to change one GPU, until it is closed or this process ends."""

    def __init__(self, uuid: str, descriptors: list[int]) -> None:
        self._uuid, self._descriptors = uuid, descriptors

    def close(self) -> None:
        with _guard:
            _close(self._descriptors)
            self._descriptors = []
            _taken.discard(self._uuid)


def take(uuid: str, name: str) -> Lock | None:
    """The lock of a GPU; None where another process or thread has it. Raises NotPermitted."""
    descriptors: list[int] = []
    with _guard:
        if uuid in _taken:
            return None
        try:
            descriptors.append(_open(uuid, name))
            with contextlib.suppress(OSError):  # another user's file in a shared home
                descriptors.append(_open_in_home(uuid))
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
    if fcntl is None or not sys.platform.startswith("linux"):  # elsewhere `struct flock` is another
        return ""
    with _guard:
        if uuid in _taken:
            return ""
        for path in (_shared(uuid), _in_home(uuid)):
            try:
                descriptor = _paths.open_plain(path, os.O_RDONLY)
            except OSError:
                continue
            try:
                asked = _ASK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
                kind, _, _, _, pid = _ASK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))
                if kind != fcntl.F_UNLCK:
                    return _describe(pid, os.fstat(descriptor).st_mtime)
            except OSError:  # a file system without locks: nobody can tell
                continue
            finally:
                os.close(descriptor)
    return ""


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


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
