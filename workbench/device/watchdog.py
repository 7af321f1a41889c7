"""The process that puts GPUs back when the one that has changed them was killed. Standard library only, but for the driver's door."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from .. import alive, places
from .journal import load
from .restoring import recover

_watchdog: subprocess.Popen[bytes] | None = None


def start() -> None:
    """Have one run; it is watching when this returns."""
    global _watchdog
    if _watchdog is not None and _watchdog.poll() is None:
        return
    paths = "\n".join([str(Path(__file__).resolve().parents[2]), *(p for p in sys.path if p and os.path.isdir(p))])
    code = "import sys; sys.path[:] = sys.argv[1].split('\\n'); from workbench.device.watchdog import watch; watch(sys.argv[2:])"
    # A session of its own: whoever kills the kernel's process group must not take the watchdog along.
    _watchdog = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", code, paths, str(os.getpid()), alive.started_at(os.getpid())],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    assert _watchdog.stdout is not None
    _watchdog.stdout.read(1)  # it is watching


def stop() -> None:
    """Nothing is held or owed any more."""
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
        if not alive.runs(parent, started) and not recover() and not _left_by(parent):
            return
        time.sleep(0.05 if time.monotonic() < deadline - 29.0 else 0.5)


def _left_by(pid: int) -> bool:
    known = [journal for path in places.journals().glob("*.json") if (journal := load(path))]
    return any(journal.pid == pid and journal.of_this_host for journal in known)


def pid() -> int | None:
    """Of the watchdog of this process."""
    return _watchdog.pid if _watchdog is not None else None


def forget() -> None:
    """In a forked child: it must not keep the watchdog's end of its pipe when the parent is gone."""
    global _watchdog
    if _watchdog is not None:
        for pipe in (_watchdog.stdin, _watchdog.stdout):
            if pipe is not None:
                pipe.close()
        _watchdog.returncode = 0  # not this process's child
        _watchdog = None
