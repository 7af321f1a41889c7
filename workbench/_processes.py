"""Processes: whether one still runs (and not another under its number), and how this package starts its own.

Standard library only.

A process id means nothing in another PID namespace (a container). There a file that its owner keeps locked
shows whether the owner lives.
"""

from __future__ import annotations

import contextlib
import os
import sys
from functools import lru_cache
from pathlib import Path
from typing import IO

try:
    import fcntl
except ImportError:  # Windows: process ids alone tell
    fcntl = None  # type: ignore[assignment]


def runs(pid: int, started: str = "") -> bool:
    """Whether a process still runs, and not another under its number where it is known when it started."""
    now = started_at(pid)
    return bool(now) and (not started or now == started)


def started_at(pid: int) -> str:
    """When a process started, as the kernel counts; empty for one that is gone or a zombie."""
    if _proc_is_ours():
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
            return "" if fields[0] == b"Z" else fields[19].decode()
        except OSError:
            return ""
    try:
        os.kill(pid, 0)
    except PermissionError:  # another user's
        return "running"
    except OSError:
        return ""
    return "running"


def _proc_is_ours() -> bool:
    """Whether there is a /proc and it shows the processes of this PID namespace."""
    try:
        return os.readlink("/proc/self") == str(os.getpid())
    except OSError:
        return False


def namespace() -> str:
    """The number of the PID namespace that this process lives in; empty where the kernel does not tell."""
    try:
        return str(os.stat("/proc/self/ns/pid").st_ino)
    except OSError:
        return ""


def hold(file: IO[bytes]) -> None:
    """Lock a shared file for as long as this process has it open or mapped, for `is_held` to tell."""
    if fcntl is not None:
        with contextlib.suppress(OSError):  # a file system without locks, or `is_held` is asked just now
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)


def is_held(path: Path) -> bool:
    """Whether a process of any PID namespace holds a file; true as well where that cannot be found out."""
    if fcntl is None:
        return False
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


@lru_cache(maxsize=1)
def boot_id() -> str:
    """Of this start of the machine; empty where the kernel does not tell."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def child_command(module: str, function: str, *arguments: str) -> list[str]:
    """The command line of a process that calls a function of this package with a list of arguments.

    The user's directories come last on its path: a `random.py` in one of them must not be taken for Python's.
    """
    paths = [
        str(Path(__file__).resolve().parent.parent),
        *(path for path in sys.path if path and os.path.isdir(path)),
    ]
    code = (
        f"import sys; sys.path += sys.argv[1].split('\\n'); from {module} import {function}; "
        f"{function}(sys.argv[2:])"
    )
    return [sys.executable, "-I", "-S", "-c", code, "\n".join(paths), *arguments]
