"""Processes: whether one lives, which belong together, how this package starts its own and they end with it.

A process id means nothing in another PID namespace (a container). There a file that its owner keeps locked
shows whether the owner lives. Standard library only, but for names.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import select
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from .errors import MeasurementError

if TYPE_CHECKING:  # the processes next to the kernel start no others
    import subprocess

try:
    import fcntl
except ImportError:  # Windows: process ids alone tell
    fcntl = None  # type: ignore[assignment]

_polars_is_lost = False  # in a forked process: its threads were the parent's
STOPPED = b"Tt"  # states in /proc
_GONE = b"ZXx"
_PR_SET_PDEATHSIG = 1
_ROUNDS = 200  # most looks for processes that others have begun meanwhile


def runs(pid: int, started: str = "") -> bool:
    """Whether a process still runs, and not another under its number where it is known when it started."""
    now = started_at(pid)
    return bool(now) and (not started or now == started)


class ProcessFacts(NamedTuple):
    """A process as /proc shows it: its state, its session, and when it started as the kernel counts."""

    state: bytes
    session: int
    started: str


def process_facts(pid: int) -> ProcessFacts | None:
    """None where it is gone or a zombie, or there is no /proc."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        facts = ProcessFacts(fields[0], int(fields[3]), fields[19].decode())
    except (OSError, IndexError, ValueError):
        return None
    return None if facts.state in _GONE else facts


def started_at(pid: int) -> str:
    """When a process started, as the kernel counts; empty for one that is gone or a zombie."""
    if sees_its_own():
        return facts.started if (facts := process_facts(pid)) is not None else ""
    try:
        os.kill(pid, 0)
    except PermissionError:  # another user's
        return "running"
    except OSError:
        return ""
    return "running"


def age_s(pid: int) -> float:
    """How long ago a process started (s); 0 where that is not known."""
    try:
        started_s = int(started_at(pid)) / os.sysconf("SC_CLK_TCK")
        return max(time.clock_gettime(time.CLOCK_BOOTTIME) - started_s, 0.0)
    except (ValueError, AttributeError, OSError):
        return 0.0


def sees_its_own() -> bool:
    """Whether there is a /proc and it shows the processes of this PID namespace."""
    try:
        return os.readlink("/proc/self") == str(os.getpid())
    except OSError:
        return False


def namespace() -> str:
    """The number of the PID namespace that this process lives in; empty where the kernel does not report."""
    try:
        return str(os.stat("/proc/self/ns/pid").st_ino)
    except OSError:
        return ""


def hold(file: IO[bytes]) -> None:
    """Lock a shared file for as long as this process has it open or mapped, for `is_held` to report."""
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


def take(descriptor: int) -> bool:
    """Whether nobody else has this file or directory locked, which is locked now until it is closed."""
    if fcntl is not None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            return error.errno not in (errno.EWOULDBLOCK, errno.EACCES)
    return True


# `struct flock` of Linux: kind, from where, start, length, pid
_FLOCK = struct.Struct("@hhqqi4x")


def lock_byte(file: IO[bytes], at: int, *, release: bool = False) -> bool:
    """Lock a byte of a shared file for as long as it is open or mapped here (Linux); False where another has
    it.
    """
    kind = getattr(fcntl, "F_UNLCK" if release else "F_WRLCK", 0)
    try:
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, at, 1, 0))
    except AttributeError:  # no such locks here: nothing is shared
        return True
    except OSError as error:
        return error.errno not in (errno.EAGAIN, errno.EACCES)
    return True


def byte_is_locked(file: IO[bytes], at: int) -> bool:
    """Whether another process, of any PID namespace, has locked a byte of a shared file."""
    try:
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, at, 1, 0)
        found = _FLOCK.unpack(fcntl.fcntl(file, fcntl.F_OFD_GETLK, asked))
    except (AttributeError, OSError, ValueError):  # no such locks here, or closed meanwhile
        return False
    return bool(found[0] != fcntl.F_UNLCK)


@lru_cache(maxsize=1)
def boot_id() -> str:
    """Of this start of the machine; empty where the kernel does not report."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _note_fork() -> None:
    global _polars_is_lost
    _polars_is_lost = "polars" in sys.modules


def after_fork(act: Callable[[], object]) -> None:
    """Call a function in every process that this one forks."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=act)


after_fork(_note_fork)


def require_polars() -> None:
    """Raises MeasurementError in a forked process whose parent had loaded Polars, where it would wait for
    ever for the parent's threads.
    """
    if _polars_is_lost:
        raise MeasurementError(
            "there are no traces and no iterations in a forked process, as Polars does not outlive a fork; "
            "start it by `spawn` or `forkserver` (multiprocessing.get_context), or ask in the parent"
        )


def child_command(module: str, function: str, *arguments: str) -> list[str]:
    """The command line of a process that calls a function of this package with a list of arguments.

    The user's directories come last on its path: a `random.py` in one of them must not be taken for Python's.
    """
    paths = [
        str(Path(__file__).resolve().parent.parent),
        *(path for path in sys.path if path and os.path.isdir(path)),
    ]
    code = (f"import sys; sys.path += sys.argv[1].split('\\n'); from {module} import {function}; "
            f"{function}(sys.argv[2:])")
    return [sys.executable, "-I", "-S", "-c", code, "\n".join(paths), *arguments]


def start(
    module: str, function: str, *arguments: str, environment: Mapping[str, str] | None = None,
    answers: bool = False,
) -> subprocess.Popen[bytes]:
    """A process that calls a function of this package and listens to this one (`heard`).

    It has a session of its own: no signal to this process's group or terminal reaches it. Raises OSError.

    Args:
        module, function: The function that it calls, with `arguments` as a list.
        environment: Its own; this process's where None.
        answers: Whether its output is read.
    """
    import subprocess

    return subprocess.Popen(
        child_command(module, function, *arguments), stdin=subprocess.PIPE,
        stdout=subprocess.PIPE if answers else subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment,
        start_new_session=True,
    )


def end(process: subprocess.Popen[bytes], *, wait_s: float, message: bytes = b"", kill: bool = True) -> None:
    """End a process that listens: its input is closed, after a message; after `wait_s` it is killed.

    Args:
        process: The child; it must end when its input is closed.
        wait_s: How long it may take.
        message: Bytes written to its input first.
        kill: Whether it is killed after `wait_s`.
    """
    import subprocess

    if process.stdin is not None:
        with contextlib.suppress(OSError, ValueError):
            process.stdin.write(message)
            process.stdin.close()
    try:
        process.wait(wait_s)
    except subprocess.TimeoutExpired:
        if kill:
            process.kill()
            process.wait()
        else:  # else Python warns about an unawaited child later
            threading.Thread(target=process.wait, daemon=True).start()
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


def last_message(process: subprocess.Popen[bytes]) -> str:
    """The last line that a process which has ended has written about it, or its exit code."""
    output = process.stderr.read().decode(errors="replace").strip() if process.stderr else ""
    process.wait()
    return output.splitlines()[-1] if output else f"exit code {process.returncode}"


def heard(parent: int, timeout_s: float) -> bytes | None:
    """The parent's input to this process; empty if nothing came in that time, None if the parent has closed
    it or ended.

    The input alone does not show it: a process that the parent has forked may hold its other end. Nor does
    the parent's number, where nobody waits for it. Messages from before its end are returned first.
    """
    ended = os.getppid() != parent
    if not select.select([0], [], [], 0.0 if ended else timeout_s)[0]:
        return None if ended else b""
    return os.read(0, 4096) or None


@contextlib.contextmanager
def interrupts_to(handler: Any) -> Iterator[None]:
    """Let a handler take the interrupts (Ctrl-C, a notebook's Stop) of a block in the main thread.

    One that a program around Python (R, Julia) has installed in C stays: Python could not put it back.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) is None:
        yield
        return
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def interrupts_later() -> Iterator[None]:
    """Hold back the interrupts of a block that must not stop half done; one that came follows at its end."""
    came: list[int] = []
    try:
        with interrupts_to(lambda number, _: came.append(number)):
            yield
    finally:
        if came:
            signal.raise_signal(signal.SIGINT)


def die_with(parent: int, number: int = signal.SIGKILL) -> None:
    """Have this process sent a signal when its parent ends, immediately (Linux)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:  # it went before we had asked
        os.kill(os.getpid(), number)


def exit_with_parent() -> None:
    """In a worker of `multiprocessing`: end when the parent does, however it ends."""
    import multiprocessing

    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()


# names and ancestors


def is_ours(pid: int) -> bool:
    """Whether a process is this one, or descends from it."""
    import psutil

    try:
        return pid == os.getpid() or os.getpid() in (each.pid for each in psutil.Process(pid).parents())
    except psutil.Error:
        return False


def with_open(path: str) -> set[int]:
    """Ids of this process and its descendants that have a file open whose path begins so (Linux)."""
    import psutil

    with contextlib.suppress(psutil.Error):
        own = psutil.Process()
        pids = (own.pid, *(each.pid for each in own.children(recursive=True)))
        return {pid for pid in pids if any(file.startswith(path) for file in _open_files(pid))}
    return set()


def parent_of(pid: int) -> int:
    """The process that has started another; 0 where that is not known."""
    import psutil

    try:
        return int(psutil.Process(pid).ppid())
    except psutil.Error:
        return 0


def environment_of(pid: int) -> Mapping[str, str] | None:
    """The environment that a process of this user was started with; None for another's."""
    import psutil

    with contextlib.suppress(psutil.Error, OSError):
        process = psutil.Process(pid)
        if process.uids().real == os.getuid():
            environment: dict[str, str] = process.environ()
            return environment
    return None


def _open_files(pid: int) -> list[str]:
    found = []
    with contextlib.suppress(OSError):
        for link in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):  # closed meanwhile, as the directory itself
                found.append(os.readlink(f"/proc/{pid}/fd/{link}"))
    return found


def name_of(pid: int) -> str:
    """The name of a process; "?" where it is gone."""
    import psutil  # not for the processes next to the kernel, which ask for no names

    try:
        return str(psutil.Process(pid).name())
    except psutil.Error:
        return "?"


def script_of(pid: int) -> str:
    """The script that a process runs, or its program; empty where the system hides another user's."""
    import psutil

    try:
        program, *arguments = psutil.Process(pid).cmdline() or [""]
    except psutil.Error:
        return ""
    script = next((each for each in arguments if each and not each.startswith("-")), program)
    name = Path(program if "-c" in arguments[:3] else script).name
    return "".join(letter for letter in name if letter.isprintable())[:60]


# processes that belong together: of the session of a leader, or with a mark in their environment


def belongs(pid: int, mark: bytes, leaders: set[int]) -> bool:
    """Whether a process is alive, and in the session of one of these leaders, or marked: an entry of its
    environment begins with `mark`, which workers in other sessions (torchrun's) keep.
    """
    facts = process_facts(pid)
    if facts is None or facts.session in leaders:
        return facts is not None
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return b"\0" + mark in b"\0" + file.read()
    except OSError:
        return False


def members(mark: bytes, leaders: set[int]) -> set[int]:
    """All that belong together but this process; none where there is no /proc."""
    try:
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return set()
    return {pid for pid in pids if pid != os.getpid() and belongs(pid, mark, leaders)}


def send(number: int, mark: bytes, leaders: set[int]) -> set[int]:
    """Signal all that belong together, and those that they begin meanwhile; returns them."""
    reached: set[int] = set()
    for leader in leaders - {0, 1}:  # never our own, nor the machine's first
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, number)
    for _ in range(_ROUNDS):
        fresh = members(mark, leaders) - reached
        if not fresh:
            break
        for pid in fresh:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
        reached |= fresh
    return reached


class ProcessReaper:
    """A process that ends all that belong together (`mark` as for `belongs`, paused ones too) if this one is
    killed before `close`. Its `environment` is without the mark. With a grace (s) they are interrupted first.
    """

    def __init__(self, mark: bytes, environment: Mapping[str, str], grace_s: float = 0.0) -> None:
        self._process = start(
            "workbench._processes", "reap", os.fsdecode(mark), str(os.getpid()), str(grace_s),
            environment=environment,
        )

    def began(self, leader: int) -> None:
        self._tell(f"+{leader}\n")

    def ended(self, leader: int) -> None:
        """Its number may be given to another process from now on."""
        self._tell(f"-{leader}\n")

    def close(self) -> None:
        """Nothing is left to guard; other processes are not touched."""
        end(self._process, wait_s=5.0, message=b"done\n")

    def _tell(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # it was killed
            if self._process.stdin is not None:
                self._process.stdin.write(text.encode())
                self._process.stdin.flush()


def reap(argv: list[str]) -> None:
    """The reaper's process, with a mark, the parent's pid and a grace: until the parent ends or sends "done".
    """
    mark, parent, grace_s = os.fsencode(argv[0]), int(argv[1]), float(argv[2])
    os.chdir("/")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    leaders: set[int] = set()
    rest = b""
    while (output := heard(parent, 0.5)) is not None:
        *lines, rest = (rest + output).split(b"\n")
        for line in lines:
            if line == b"done":
                return
            change = leaders.add if line[:1] == b"+" else leaders.discard
            change(int(line[1:]))
    if grace_s:
        for number in (signal.SIGINT, signal.SIGCONT):
            send(number, mark, leaders)
        until = time.monotonic() + grace_s
        while members(mark, leaders) and time.monotonic() < until:
            time.sleep(0.1)
    for _ in range(_ROUNDS):
        if not send(signal.SIGKILL, mark, leaders):
            return
        time.sleep(0.01)
