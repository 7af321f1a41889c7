"""Files that several processes map as memory. Standard library only: the sampling process loads this."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from . import _processes

# what a file system answers that does not know how to reserve
_CANNOT = (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS)
_BLOCK = bytes(1 << 16)
FRESH_S = 5.0  # by then who makes a shared file has mapped it


def directory() -> Path:
    """Where memory is shared without touching a disk, if the system has such a place."""
    shm = Path("/dev/shm")
    if not os.access(shm, os.W_OK):
        import tempfile

        with contextlib.suppress(OSError):  # nowhere to write at all: who makes the file reports it
            return Path(tempfile.gettempdir())
    return shm


def create(path: str | os.PathLike[str], size_bytes: int, header: bytes) -> Path:
    """Make a file of zeros that begins with `header`, of which every page is there (a promised page of a full
    /dev/shm kills who touches it), or one in the temporary directory where it does not fit; returns where.

    Raises:
        OSError: it fits in neither; the message names both places, the size and the way out.
        FileExistsError: there is such a file already.
    """
    wanted = Path(path)
    try:
        return _filled(wanted, size_bytes, header)
    except FileExistsError:
        raise
    except OSError as error:
        first = error
    import tempfile

    try:
        return _filled(Path(tempfile.gettempdir()) / wanted.name, size_bytes, header)
    except OSError as error:
        raise OSError(f"{max(size_bytes >> 10, 1)} KB of shared memory fit neither in {wanted.parent} "
                      f"({first.strerror or first}) nor in the temporary directory "
                      f"({error.strerror or error}); free some space there, give a container more (docker "
                      "run --shm-size=1g), or set TMPDIR to a directory with space") from error


@contextlib.contextmanager
def lock(timeout_s: float = 1.0) -> Iterator[None]:
    """One process at a time, of those that share this directory, looks for a file and makes it if there is
    none; who waits for too long goes on.
    """
    descriptor = None
    with contextlib.suppress(OSError):
        descriptor = os.open(directory(), os.O_RDONLY | os.O_CLOEXEC)
    deadline_s = time.monotonic() + timeout_s
    try:
        while descriptor is not None and not _processes.take(descriptor) and time.monotonic() < deadline_s:
            time.sleep(0.002)
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def own_files(kind: str) -> list[Path]:
    """The files of this user here whose names begin so, the oldest first."""
    found = []
    for path in directory().glob(f"{kind}-*-*"):
        with contextlib.suppress(OSError):
            facts = path.lstat()
            if facts.st_uid == os.getuid() and stat.S_ISREG(facts.st_mode):
                found.append((facts.st_ctime, path))
    return [path for _, path in sorted(found)]


def sweep() -> None:
    """Remove the files of simulated machines and rings whose owners are gone (killed, without an exit).

    An owner in another PID namespace seems gone: what any process still has mapped is left, and what is new.
    """
    for kind in ("workbench-gpus", "workbench-ring"):
        for path in directory().glob(f"{kind}-*-*"):
            pid = path.name.split("-")[2]
            with contextlib.suppress(OSError):
                fresh = time.time() - path.lstat().st_ctime < FRESH_S
                ended = pid.isdigit() and not _processes.runs(int(pid))
                if ended and not fresh and not _processes.is_held(path):
                    path.unlink()


def _filled(path: Path, size_bytes: int, header: bytes) -> Path:
    with open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), "r+b") as file:
        try:
            _reserve(file.fileno(), size_bytes)
            file.write(header)
            file.flush()
        except OSError:
            with contextlib.suppress(OSError):
                path.unlink()
            raise
    return path


def _reserve(descriptor: int, size_bytes: int) -> None:
    """Make an empty file so long, with every block of it on the device."""
    try:
        os.posix_fallocate(descriptor, 0, size_bytes)
        return
    except AttributeError:  # macOS, Windows
        pass
    except OSError as error:
        if error.errno not in _CANNOT:
            raise
    for at in range(0, size_bytes, len(_BLOCK)):
        os.write(descriptor, _BLOCK[: size_bytes - at])
    os.lseek(descriptor, 0, os.SEEK_SET)
