"""The jobs of a set: started in sessions of their own, paused and continued whole, stopped in order, and
none left over.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from .. import _processes
from ..device import mps
from ..errors import MeasurementError, NotSupported, UsageError, shortened
from ..measurement import marks
from ..measurement.process_marks import MarkFolder

Array = np.ndarray
Work = str | Sequence[str] | Callable[[], object]
OPERATORS = {"&&", "||", "|", ";", ">", ">>", "<", "&", "2>", "2>&1"}
GRACE_S = 10.0  # real seconds between asking a job to end and making it
LONGEST_LABEL = 80  # bytes: it is part of a file's name
_OUT_OF_MEMORY = re.compile(
    r"out of memory|OutOfMemory|CUDA_ERROR_OUT_OF_MEMORY|CUBLAS_STATUS_ALLOC_FAILED", re.IGNORECASE
)


class CannotPause(MeasurementError):
    """Processes of a job go on although they were reported to stop."""


def label_of(work: Work, number: int) -> str:
    """A short name for a job: its script or its function."""
    if callable(work):
        name = getattr(work, "__name__", type(work).__name__)
        name = "" if name == "<lambda>" else name
    else:
        arguments = _arguments(work)
        scripts = [Path(word).stem for word in arguments[1:] if word.endswith((".py", ".sh"))]
        name = scripts[0] if scripts else Path(arguments[0]).name if arguments else ""
    return name.encode(errors="replace")[:LONGEST_LABEL].decode(errors="ignore") or f"job {number + 1}"


def _arguments(work: str | Sequence[str]) -> list[str]:
    if not isinstance(work, str):
        return [str(word) for word in work]
    try:
        return shlex.split(work)
    except ValueError as error:
        raise UsageError(
            f"{work!r} cannot be split into words ({error}); give them as a list, ['python', 'train.py']"
        ) from error


def arguments_of(work: str | Sequence[str]) -> list[str]:
    """A command as a list; in a notebook `python` is the kernel's, as its packages are those that the caller
    has. Raises UsageError where it cannot be run as it is.
    """
    arguments = _arguments(work)
    if not arguments:
        raise UsageError("an empty command cannot be run; give for example 'python train.py --lr 0.1'")
    if isinstance(work, str) and (found := OPERATORS.intersection(arguments)):
        raise UsageError(f"{work!r} takes a shell for {sorted(found)[0]!r}; give ['bash', '-c', {work!r}]")
    known = shutil.which(arguments[0]) is not None
    if arguments[0] in ("python", "python3") and ("ipykernel" in sys.modules or not known):
        return [sys.executable, *arguments[1:]]
    if not known:
        raise UsageError(f"there is no program {arguments[0]!r} to run")
    return arguments


def mark_of(path: str) -> bytes:
    """How an entry in the environment of a job's processes begins, where its marks go to this path."""
    return marks.ENVIRONMENT_VARIABLE.encode() + b"=" + os.fsencode(path)


class JobProcess:
    """One job.

    Args:
        label: Its name.
        work: A command, or a function without arguments, which runs in a process of its own; if it returns an
            iterator, that is gone through, an item being an iteration.
        directory: Where its output and its marks go.
        environment: Of the process.
        guardian: Is notified of it.
        writer: The pid of a process that must not be stopped now, as it keeps others from a simulated
            machine; 0: none.
        client: Of the Multi-Process Service: it is killed only after the service has ended its GPU work.

    Raises:
        UsageError: a command that cannot be run, or a function that cannot be sent to another process.
        NotSupported: not a system with process groups.
    """

    def __init__(
        self, label: str, work: Work, directory: Path, environment: Mapping[str, str], *,
        guardian: _processes.ProcessReaper | None = None, writer: Callable[[], int] | None = None,
        client: bool = False,
    ) -> None:
        if not (hasattr(os, "killpg") and hasattr(os, "waitid")):
            raise NotSupported("jobs are paused with signals to process groups; this system has none")
        self.label, self.paused = label, False
        self.resumed_s = -math.inf  # when it was last continued or started, on the monotonic clock
        self.log = directory / f"{label}.log"
        place = directory / f"{label}{marks.SUFFIX}"
        place.mkdir(exist_ok=True)
        self._folder = MarkFolder(os.path.join(place, ""))
        self._mark = mark_of(self._folder.path)
        self._guardian, self._writer, self.client = guardian, writer, client
        paths = [str(_hook(directory)), *filter(None, [environment.get("PYTHONPATH")])]
        self._environment = {
            **environment,
            marks.ENVIRONMENT_VARIABLE: self._folder.path,
            "PYTHONPATH": os.pathsep.join(paths),
        }
        self._command = self._launcher(work, directory)
        self._process: subprocess.Popen[bytes] | None = None
        self._status: int | None = None
        self.stopped_by_us = False

    def _launcher(self, work: Work, directory: Path) -> list[str]:
        here = Path(__file__).resolve()
        launch = str(here.with_name("launch.py"))
        code = f"import runpy, sys; runpy.run_path({launch!r})['main'](sys.argv[1:])"
        end = [str(os.getpid()), str(int(signal.SIGINT if self.client else signal.SIGKILL))]
        if not callable(work):
            arguments = arguments_of(work)
            self.command_line = shlex.join(_arguments(work))
            return [sys.executable, "-I", "-S", "-c", code, *end, "command", *arguments]
        self.command_line = label_of(work, 0)
        import cloudpickle

        try:
            content = cloudpickle.dumps(work)
        except Exception as error:
            raise UsageError(
                f"{self.label} cannot be sent to a process of its own ({type(error).__name__}: {error}); "
                f"give a command, or a function that creates its own inputs"
            ) from error
        path = directory / f"{self.label}.function"
        path.write_bytes(content)
        paths = "\n".join([str(here.parents[2]), *(each or os.getcwd() for each in sys.path)])
        return [sys.executable, "-c", code, *end, "function", str(path), paths]

    # its life

    def start(self) -> None:
        with self.log.open("ab") as log:
            # A session of its own: the interrupt that ends the comparison reaches it in order, through
            # `stop`.
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                env=self._environment, start_new_session=True,
            )
        if self._guardian is not None:
            self._guardian.began(self.pid)

    @property
    def started(self) -> bool:
        return self._process is not None

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    @property
    def running(self) -> bool:
        return self._process is not None and self.status is None

    @property
    def status(self) -> int | None:
        """Its exit status, or the signal that ended it as a negative number; None while it runs."""
        if self._status is None and self._process is not None and self._process.returncode is None:
            # Only looked at: as long as it is not waited for, its number is given to no other process, and
            # signals reach nobody else.
            found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is not None:
                self._status = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
        return self._status

    def has(self, pid: int) -> bool:
        """Whether a process is one of this job's."""
        return self.started and _processes.belongs(pid, self._mark, {self.pid})

    def pause(self) -> None:
        """Stop all its processes where they are. The GPU finishes queued work; memory stays.

        Raises:
            CannotPause: one of them goes on; then all do.
        """
        if not self.running or self.paused:
            return
        self.paused = True
        until = time.monotonic() + GRACE_S  # in a call that cannot be interrupted no process stops
        while self.running:
            reached = self._signal(signal.SIGSTOP)
            moving = self._moving(reached)
            while moving and time.monotonic() < until:
                time.sleep(0.001)
                moving = self._moving(moving)
            if moving:
                self.resume()
                raise CannotPause(
                    f"{self.label} cannot be paused: process {min(moving)} goes on {GRACE_S:g} s after the "
                    f"signal to stop; it must be of the same user and not wait for a disk"
                )
            if _processes.members(self._mark, {self.pid}) - reached:  # begun by one that had not stopped yet
                continue
            if self._writer is None or self._writer() not in reached:
                return
            if time.monotonic() > until:
                self.resume()
                raise CannotPause(
                    f"{self.label} cannot be paused: it keeps the simulated machine to itself all the time"
                )
            self._signal(signal.SIGCONT)
            time.sleep(0.002)

    @staticmethod
    def _moving(pids: set[int]) -> set[int]:
        facts = {pid: _processes.process_facts(pid) for pid in pids}
        return {pid for pid, each in facts.items() if each and each.state not in _processes.STOPPED}

    def resume(self) -> None:
        if self.paused and self.running:
            self.paused, self.resumed_s = False, time.monotonic()
            self._signal(signal.SIGCONT)

    def ask_to_stop(self, number: int = signal.SIGINT) -> None:
        """Ask it to end. SIGINT goes to its group only, as Ctrl-C does: a launcher hands it on to workers
        as they take it.
        """
        if self.running:
            self.stopped_by_us = True
            if number == signal.SIGINT:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.pid, number)
            else:
                self._signal(number)
            self.resume()

    def kill(self) -> bool:
        """End all its processes now; returns whether all ended. Processes left by a job that has ended by
        itself (such as an upload) are not touched. Neither are clients of MPS that the service keeps.
        """
        if self._process is None or self._process.returncode is not None:
            return True
        if self.client and self.running:
            pids = {self.pid, *_processes.members(self._mark, {self.pid})}
            if mps.terminate_clients(pids, self._environment):
                return False
        if self.running or self.stopped_by_us or self.paused:
            self._signal(signal.SIGKILL)
            self.paused = False
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
            self._status = self._process.returncode if self._status is None else self._status
            if self._guardian is not None:
                self._guardian.ended(self.pid)
        return True

    def _signal(self, number: int) -> set[int]:
        return _processes.send(number, self._mark, {self.pid})

    # what it states

    def tail(self, lines: int = 1) -> str:
        """The last lines that it has written."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - 8192))
                messages = [line.strip() for line in file.read().decode(errors="replace").splitlines()]
        except OSError:
            return ""
        return shortened("\n".join([line for line in messages if line][-lines:]))

    @property
    def out_of_memory(self) -> bool:
        """Whether it has ended for lack of memory, from its last output."""
        failed = not self.running and self.status not in (0, None)
        return failed and bool(_OUT_OF_MEMORY.search(self.tail(20)))

    def outcome(self) -> str:
        """How it ended: "running", "ok", "out of memory", "stopped", or "error"."""
        if self.running:
            return "running"
        if not self.started:
            return "not started"
        if self.out_of_memory:
            return "out of memory"
        if self.stopped_by_us:
            return "stopped"
        return "ok" if self.status == 0 else "error"

    # its marks

    def _main(self) -> array[float]:
        """Marks of the one of its processes that has made most; what it reports itself goes before what an
        optimizer shows.
        """
        processes = self._folder.read()
        reported = [each.steps for each in processes if each.steps]
        return max(reported or (each.optimizer_steps for each in processes), key=len, default=array("d"))

    @property
    def source(self) -> str:
        """Where its iterations come from: "marks", "optimizer", or "" where there are none."""
        processes = self._folder.read()
        reported = any(each.steps for each in processes)
        return "marks" if reported else "optimizer" * any(each.optimizer_steps for each in processes)

    def count(self) -> int:
        """How many iterations it has marked."""
        return len(self._main())

    def steps_s(self, latest: int | None = None) -> Array:
        """Ends of iterations on the machine's monotonic clock, ascending; of the latest so many alone."""
        found = self._main()
        return np.array(found if latest is None else found[-latest:])

    def phases_s(self) -> list[tuple[str, float, float]]:
        """Evaluations, checkpoints, epochs and other phases: what, from when to when."""
        return [(*phase,) for each in self._folder.read() for phase in each.phases]

    def in_phase(self) -> bool:
        """Whether one of its processes is in a phase now. One in which it iterates, an epoch for example,
        does not count.
        """
        steps = self._main()
        latest_s = steps[-1] if steps else -math.inf
        return any(start_s >= latest_s and self.has(each.pid)
                   for each in self._folder.read() for start_s in each.begun_s)


def _hook(directory: Path) -> Path:
    """A directory for PYTHONPATH from which PyTorch's optimizers tell their steps."""
    place = directory / "python"
    if not place.exists():
        place.mkdir()
        shutil.copyfile(Path(__file__).with_name("automatic.py"), place / "sitecustomize.py")
    return place


def stop_all(children: Sequence[JobProcess], *, grace_s: float = GRACE_S) -> list[str]:
    """Ask jobs to end, wait, insist, and in the end make them; returns sentences about those that had to
    be made to.
    """
    messages = []
    clients = any(child.client for child in children)
    grace_s = max(grace_s, mps.GRACE_S) if clients else grace_s
    for number in (signal.SIGINT,) if clients else (signal.SIGINT, signal.SIGTERM):
        left = [child for child in children if child.running]
        for child in left:
            child.ask_to_stop(number)
        until = time.monotonic() + (grace_s if number == signal.SIGINT else grace_s / 2)
        while any(child.running for child in left) and time.monotonic() < until:
            time.sleep(0.02)
    for child in children:
        late = child.running
        killed = child.kill()
        if late:
            what = "was killed" if killed else (
                f"was left alone (process {child.pid}): killing a client of MPS may take others with it"
            )
            waited = f"{grace_s if clients else 1.5 * grace_s:g} s"
            messages.append(f"{child.label} did not end within {waited} of being asked to and {what}")
    return messages
