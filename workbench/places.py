"""Where the workbench keeps things: measurements, journals of changed settings, locks.

`WORKBENCH_HOME` overrides the per-user directory. Where that cannot be written to, a directory of this user under the system's
temporary one serves, and `home()` says so. Standard library only.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import tempfile
from pathlib import Path

_NAME = "gpu-energy-workbench"


def wanted_home() -> Path:
    """The per-user directory that is meant to be used."""
    if chosen := os.environ.get("WORKBENCH_HOME"):
        return Path(chosen)
    base = os.environ.get("XDG_DATA_HOME") or os.path.join(os.path.expanduser("~"), ".local", "share")
    return Path(base) / _NAME


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
    second = _unwritable(fallback)
    note = f"{wanted} cannot be written to ({problem})"
    if second:
        return fallback, f"{note}, and neither can {fallback} ({second}); nothing will be kept. Set WORKBENCH_HOME"
    return fallback, f"{note}; {fallback} is used instead. Set WORKBENCH_HOME to choose another place"


def journals() -> Path:
    """Directory of the journals of changed settings."""
    path = home()[0] / "journals"
    path.mkdir(parents=True, exist_ok=True)
    return path


def locks() -> Path:
    """Directory of the locks that keep two processes, of any user, from changing one GPU."""
    path = Path(tempfile.gettempdir()) / f"{_NAME}-locks"
    path.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(OSError):  # another user's; then it has these rights already
        path.chmod(0o1777)
    return path


def _unwritable(path: Path) -> str:
    """Why a directory cannot be written to; empty when it can."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / f".probe-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        return error.strerror or str(error)
    return ""
