"""The process that restores GPUs when the one that changed them was killed. No numpy, no polars."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from pathlib import Path

from .. import _paths, _processes
from ..errors import DeviceError
from . import driver
from .journal import Journal, parse
from .restore import recover

_watchdog: subprocess.Popen[bytes] | None = None
_NOT_CHANGED = "no GPU is changed: the process that would put it back if this one were killed"


def start() -> None:
    """Have one run; it is watching when this returns. Raises DeviceError where it does not start."""
    global _watchdog
    if _watchdog is not None and _watchdog.poll() is None:
        return
    try:
        # The home is passed on, for it may be one that no other process would find.
        dog = _processes.start(
            "workbench.device.watchdog", "watch", str(os.getpid()),
            environment={**os.environ, "WORKBENCH_HOME": str(_paths.home()[0])}, answers=True,
        )
    except OSError as error:
        raise DeviceError(f"{_NOT_CHANGED} cannot be started: {error}") from error
    assert dog.stdout is not None
    assert dog.stderr is not None
    if dog.stdout.read(1) != b".":  # the sign of life
        problem = _processes.last_message(dog)
        _processes.end(dog, wait_s=0.0)
        raise DeviceError(f"{_NOT_CHANGED} ended at its start ({problem})")
    dog.stderr.close()
    _watchdog = dog


def send(journal: Journal) -> None:
    """Send a journal to the watchdog, which needs it if the file or the home is removed."""
    pipe, line = _watchdog and _watchdog.stdin, journal.text + b"\n"
    with contextlib.suppress(OSError, ValueError):  # the watchdog was killed; the file remains
        # A whole line or nothing. A stopped watchdog does not delay the caller.
        if pipe and len(line) <= select.PIPE_BUF and select.select([], [pipe], [], 0)[1]:
            os.write(pipe.fileno(), line)


def stop() -> None:
    """End the watchdog: no GPU is held, and every setting is restored."""
    global _watchdog
    dog, _watchdog = _watchdog, None
    if dog is not None:
        _processes.end(dog, wait_s=5.0, message=b"done\n", kill=False)


def watch(argv: list[str]) -> None:
    """The watchdog: if its parent ends without "done", it restores the GPUs that the parent has changed."""
    from ..simulation import machine  # noqa: F401
    driver.current()  # everything that restoring takes is there before the sign of life

    parent = int(argv[0])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.write(1, b".")
    held: dict[Path, Journal] = {}
    rest = b""
    while (sent := _processes.heard(parent, 0.5)) is not None or os.getppid() == parent:
        if sent is None:
            time.sleep(0.02)  # the parent is ending, or has closed everything and lives on
        *lines, rest = (rest + (sent or b"")).split(b"\n")
        for line in lines:
            if line == b"done":
                return
            if (journal := parse(line)) is not None:
                held[journal.path] = journal
    deadline = time.monotonic() + 30.0
    while time.monotonic() < deadline:
        with contextlib.suppress(Exception):  # whatever it was, the next try may go better
            recover(mine=held.values())
            if not any(journal.touched for journal in held.values()):
                return
        time.sleep(0.05 if time.monotonic() < deadline - 29.0 else 0.5)


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
