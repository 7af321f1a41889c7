"""One process at a time changes a GPU: a lock file for each. Standard library only."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # Windows: the journal still protects, two processes are not kept apart
    fcntl = None  # type: ignore[assignment]

from .. import places
from ..errors import NotPermitted


def take(uuid: str, name: str) -> Any:
    """The open lock file, or None where another process has it."""
    file = open(_open(uuid, name), "r+", encoding="utf-8")  # noqa: SIM115
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


def holder(uuid: str) -> str:
    """Which other process has the lock, "process 123 (python)"; empty where none has."""
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


def _open(uuid: str, name: str) -> int:
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
