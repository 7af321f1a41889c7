"""Where the workbench keeps things: measurements, journals of changed settings, locks.

`WORKBENCH_HOME` overrides the per-user directory; where that cannot be written to, one in the system's
temporary directory serves, and `home()` reports it. Standard library only, but where a directory is first
made.
"""

from __future__ import annotations

import contextlib
import errno
import getpass
import os
import re
import stat
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from .errors import DeviceError

_NAME = "gpu-energy-workbench"
_UUID = re.compile(r"[0-9A-Za-z]+[._-][0-9A-Za-z._-]{1,90}")
_private: dict[Path, Path] = {}  # what this process uses in place of a directory that is another user's


def wanted_home() -> Path:
    """The per-user directory that is meant to be used."""
    if chosen := os.environ.get("WORKBENCH_HOME"):
        return Path(chosen)
    import platformdirs

    return platformdirs.user_data_path(_NAME, appauthor=False)


def home() -> tuple[Path, str]:
    """The directory in use, made if need be, and why it is not the wanted one (empty when it is)."""
    wanted = wanted_home()
    problem = _unwritable(wanted)
    if not problem:
        return wanted, ""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid()) if hasattr(os, "getuid") else "user"
    fallback = Path(tempfile.gettempdir()) / f"{_NAME}-{user}"
    note = f"{wanted} cannot be written to ({problem})"
    used = _of_this_user(fallback)
    second = _unwritable(used)
    if second:
        return used, f"{note}, and neither can {used} ({second}); nothing will be kept. Set WORKBENCH_HOME"
    if used != fallback:
        note += f", and {fallback} is another user's or open to others"
    return used, f"{note}; {used} is used instead. Set WORKBENCH_HOME to choose another place"


def journals() -> Path:
    """Directory of the journals of changed settings."""
    path = home()[0] / "journals"
    path.mkdir(parents=True, exist_ok=True)
    return path


def locks() -> Path:
    """Directory of the locks that keep two processes, of any user, from changing one GPU.

    It is the system's temporary one itself: anybody could make a directory in it first, with anything inside.

    Raises:
        OSError: it belongs to another user who is not root, or anybody may replace the files in it.
    """
    path = Path(tempfile.gettempdir())
    found = os.stat(path)
    roots = {0}
    with contextlib.suppress(OSError):
        roots.add(os.stat("/proc").st_uid)  # in a user namespace root may go by another number
    if not _is_mine(found) and found.st_uid not in roots:
        whose = f"its directory belongs to user {found.st_uid}, who is neither root nor you"
        raise OSError(errno.EPERM, whose, str(path))
    if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
        raise OSError(errno.EPERM, "anybody may replace the files of its directory (chmod +t)", str(path))
    return path


def is_uuid(text: str) -> bool:
    """Whether a text can be the identifier of a GPU, and so a part of a file's name."""
    return _UUID.fullmatch(text) is not None


def named(uuid: str, ending: str) -> str:
    """The name of a GPU's file. Raises DeviceError for any other text, which could name any file."""
    if not is_uuid(uuid):
        rule = "letters and digits, joined by '-', '.' or '_'"
        raise DeviceError(f"{uuid[:100]!r} is no UUID of a GPU: {rule}")
    return f"{uuid}{ending}"


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file to write that takes the place of `path`, whole, at the end of the block, or not at all.

    A device or pipe (/dev/null) is written to and kept; of a symbolic link the target is replaced.

    Raises:
        OSError: it cannot be written.
    """
    if path.is_symlink():
        path = Path(os.path.realpath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and not path.is_file():
        with open(path, "wb") as file:
            yield file
        return
    scratch = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
    try:
        with open(scratch, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(scratch, path)
    except BaseException:
        with contextlib.suppress(OSError):
            scratch.unlink()
        raise


def open_plain(path: Path, flags: int, mode: int = 0o600) -> int:
    """A descriptor of a regular file with one name, no link, no pipe. Raises OSError where it is none."""
    for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC"):
        flags |= getattr(os, name, 0)
    descriptor = os.open(path, flags, mode)
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
        os.close(descriptor)
        raise OSError(errno.EPERM, "it is no plain file, or has a second name", str(path))
    return descriptor


def is_ours(path: Path) -> bool:
    """Whether a file was written by this user. A file system may show another owner, of new files too."""
    try:
        found = os.lstat(path)
        if _is_mine(found):
            return True
        with tempfile.TemporaryFile(dir=path.parent) as probe:
            return os.fstat(probe.fileno()).st_uid == found.st_uid
    except OSError:
        return False


def _is_mine(found: os.stat_result) -> bool:
    return not hasattr(os, "geteuid") or found.st_uid == os.geteuid()


def _of_this_user(path: Path) -> Path:
    """A directory that this user alone writes to: this one, or a new one where this one is another user's."""
    with contextlib.suppress(OSError):
        path.mkdir(mode=0o700)
    try:
        found = os.lstat(path)
    except OSError:
        return path  # it cannot be made, which `_unwritable` says
    if stat.S_ISDIR(found.st_mode) and _is_mine(found) and not found.st_mode & 0o022:
        return path
    if path not in _private:
        _private[path] = Path(tempfile.mkdtemp(prefix=f"{path.name}-"))
    return _private[path]


def _unwritable(path: Path) -> str:
    """Why a directory cannot be written to; empty when it can."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)  # names of jobs and cells are nobody else's business
        probe = path / f".probe-{os.getpid()}"
        probe.touch()
        probe.unlink(missing_ok=True)  # a process of another container may have the same number
    except OSError as error:
        return error.strerror or str(error)
    return ""
