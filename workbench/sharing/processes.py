"""Which processes are a job's, signals to all of them, and a guardian that ends them when the comparison is
gone. Standard library only.

A job's processes are those of the session that it was started in, and all that have its mark in their
environment: workers that begin a session of their own (torchrun's do) keep the environment. Where there is no
/proc, the leader's group is all that is known.

As a program it is the guardian: it reads a pipe whose other end only the comparison holds, a line for each
job's leader, and when the pipe ends without "done" it ends every process of every job. A job that is paused
would else hold its memory for ever.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from typing import NamedTuple

VARIABLE = "WORKBENCH_MARKS"  # as `workbench.measurement.marks` calls it
STOPPED, GONE = b"Tt", b"ZXx"  # states in /proc
_ROUNDS = 200  # most looks for processes that others have begun meanwhile


class ProcessFacts(NamedTuple):
    """A process as /proc shows it."""

    state: bytes
    session: int


def process_facts(pid: int) -> ProcessFacts | None:
    """None where it is not there any more."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            words = file.read().rpartition(b")")[2].split()
        return None if words[0] in GONE else ProcessFacts(words[0], int(words[3]))
    except (OSError, IndexError, ValueError):
        return None


def has_mark(pid: int, mark: bytes) -> bool:
    """Whether an entry of its environment begins so."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return b"\0" + mark in b"\0" + file.read()
    except OSError:
        return False


def mark_of(path: str, *, directory: bool = False) -> bytes:
    """What the environment of a job's processes has: of one job, or, of a directory, of all whose marks go
    there.
    """
    return VARIABLE.encode() + b"=" + os.fsencode(path) + (b"/" if directory else b"\0")


def belongs(pid: int, mark: bytes, groups: set[int]) -> bool:
    """Whether a process is alive, and in the session of one of these leaders or marked."""
    seen = process_facts(pid)
    return seen is not None and (seen.session in groups or has_mark(pid, mark))


def members(mark: bytes, groups: set[int]) -> set[int]:
    """All of them but this one."""
    try:
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return set()
    return {pid for pid in pids if pid != os.getpid() and belongs(pid, mark, groups)}


def send(number: int, mark: bytes, groups: set[int]) -> set[int]:
    """Signal all of them, and those that they begin meanwhile; returns them."""
    reached: set[int] = set()
    for group in groups - {0, 1}:  # never our own, nor the machine's first
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, number)
    for _ in range(_ROUNDS):
        fresh = members(mark, groups) - reached
        if not fresh:
            break
        for pid in fresh:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
        reached |= fresh
    return reached


class JobReaper:
    """Ends the jobs whose marks go to a directory if this process is killed before `close`."""

    def __init__(self, directory: str) -> None:
        environment = {
            name: value for name, value in os.environ.items() if name != VARIABLE
        }  # it is nobody's job
        words = [sys.executable, "-I", "-S", os.path.abspath(__file__), directory, str(os.getpid())]
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env=environment, cwd="/", start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def began(self, leader: int) -> None:
        self._tell(f"+{leader}\n")

    def ended(self, leader: int) -> None:
        """Its number may be given to another process from now on."""
        self._tell(f"-{leader}\n")

    def close(self) -> None:
        """Nothing is left to guard; what jobs have left behind is not touched."""
        self._tell("done\n")
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(5)

    def _tell(self, words: str) -> None:
        with contextlib.suppress(
            OSError, ValueError
        ):  # it was killed; jobs still die with their starter, if not their children
            if self._process.stdin is not None:
                self._process.stdin.write(words.encode())
                self._process.stdin.flush()


def guard(directory: str, parent: int) -> None:
    """Until the pipe ends or the comparison is gone, which it may be while a copy of it still holds the
    pipe.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    rest = b""
    while os.getppid() == parent:
        if not select.select([0], [], [], 0.5)[0]:
            continue
        said = os.read(0, 4096)
        if not said:
            break
        *lines, rest = (rest + said).split(b"\n")
        for line in lines:
            if line == b"done":
                return
            change = groups.add if line[:1] == b"+" else groups.discard
            change(int(line[1:]))
    mark = mark_of(directory, directory=True)
    for _ in range(_ROUNDS):
        if not send(signal.SIGKILL, mark, groups):
            return
        time.sleep(0.01)


if __name__ == "__main__":
    guard(sys.argv[1], int(sys.argv[2]))
