"""Marks: a training reports where its iterations end, and the open windows record it.

    for batch in loader:
        train(batch)
        workbench.step()                     # once per iteration; next to nothing where nothing is measured
    with workbench.phase("evaluation"):      # its time is no iteration's
        evaluate()

Iterations are cut by marks where there are enough of them. They are the host's moments, which may run ahead
of the GPU's by what a framework queues; over many iterations that makes no difference.

A thread that has opened windows of its own marks those, and the windows of the main thread that measure the
same GPUs. A thread without a window of its own marks every open window.
"""

from __future__ import annotations

import atexit
import bisect
import contextlib
import itertools
import json
import math
import os
import shutil
import socket
import sys
import tempfile
import threading
import time
import warnings
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from .._processes import after_fork, age_s, started_at
from ..device import driver, selection
from ..errors import checked, shown
from ..records import NO_MARKS, Marks, Phase, WorkDone

# a directory in which each process writes its marks, for the process that measures it (see `MarkWriter`)
ENVIRONMENT_VARIABLE = "WORKBENCH_MARKS"
SUFFIX = ".marks"
PHASES = "evaluation", "checkpoint", "epoch"  # that have a meaning
ENOUGH = 3  # marks that outweigh a tracked loop around them


class MarkRecorder:
    """Marks of an open window, on its device's `clock`; threads may write: appends are atomic.

    Args:
        clock: Of the window's device.
        gpus: UUIDs of the GPUs that the window measures, which this thread opens. None records the marks of
            all threads.
    """

    def __init__(self, clock: Callable[[], float], gpus: Iterable[str] | None = None) -> None:
        self.clock = clock
        self.thread = None if gpus is None else threading.get_ident()
        self.gpus = frozenset(gpus or ())
        self.steps = array("d")
        self.phases: list[Phase] = []
        self.loops: list[Sequence[float]] = []
        self.work: dict[str, tuple[array[float], array[float]]] = {}  # moments and amounts
        self.notes: list[str] = []
        self.last_s: float | None = None  # end of the last iteration or phase
        self.bounded = False  # whether the first step begins an iteration and the last one ends one

    def step(self) -> None:
        self.last_s = now_s = self.clock()
        self.steps.append(now_s)

    def count(self, amounts: Mapping[str, float]) -> None:
        """Work that was done until now. Other values become notes."""
        now_s = self.clock()
        for name, amount in amounts.items():
            try:
                number = float(amount)
            except (TypeError, ValueError):
                number = math.nan
            if not 0 <= number < math.inf:
                if len(self.notes) < 3:
                    note = f"work({name}={shown(amount)}) is not counted: give a number of 0 or more"
                    self.notes.append(note)
                    warnings.warn(note, RuntimeWarning, stacklevel=3)
                continue
            self.worked(name, now_s, number)

    def worked(self, name: str, at_s: float, amount: float) -> None:
        """An amount of work was done by this moment."""
        moments, done = self.work.setdefault(name, (array("d"), array("d")))
        moments.append(at_s)
        done.append(amount)

    def begun(self, start_s: float) -> None:
        """A phase begins, which `MarkWriter` reports."""

    def ended(self, kind: str, start_s: float, end_s: float) -> None:
        """A phase has ended."""
        self.phases.append(Phase(kind, start_s, end_s))
        self.last_s = end_s

    def now_s(self) -> float | None:
        """The time on its clock; None, and no further marks, where that is gone."""
        try:
            return self.clock()
        except Exception:
            detach(self)
            return None

    def since_last(self, kind: str) -> None:
        """A phase has just ended, which began with the last iteration's or phase's end."""
        now_s = self.now_s()
        if self.last_s is not None and now_s is not None and now_s > self.last_s:
            self.ended(kind, self.last_s, now_s)

    def begin(self) -> None:
        """The first iteration of a training begins; the time since an earlier one is a pause."""
        before_s, self.bounded = self.last_s, True
        self.step()
        if before_s is not None and self.last_s is not None and self.last_s > before_s:
            self.ended("pause", before_s, self.last_s)

    def phases_between(self, start_s: float, end_s: float) -> tuple[Phase, ...]:
        """The phases between two moments; one within another is part of it."""
        inside = [each for each in self.phases if start_s <= each.start_s < each.end_s <= end_s]
        inside.sort(key=lambda phase: (phase.start_s, -phase.end_s))
        reach_s = itertools.accumulate((each.end_s for each in inside), max, initial=start_s)
        return tuple(each for each, until_s in zip(inside, reach_s, strict=False) if each.end_s > until_s)

    def marks(self, start_s: float, end_s: float) -> Marks:
        """Marks between two moments: steps before loops, inner loops before those around them."""
        if not (self.steps or self.phases or self.loops or self.work or self.notes):
            return NO_MARKS
        phases = self.phases_between(start_s, end_s)
        steps = tuple(at for at in sorted(self.steps) if start_s <= at <= end_s)
        work, notes = self.work_between(start_s, end_s, phases), tuple(self.notes)
        if len(steps) >= ENOUGH:
            return Marks((steps,), phases, edges=not self.bounded, work=work, notes=notes)
        loops = sorted(tuple(at for at in loop if start_s <= at <= end_s) for loop in self.loops)
        whole = [loop for loop in loops if len(loop) > 1]
        inner = [loop for loop in whole if not any(_around(loop, other) for other in whole)]
        runs: list[tuple[float, ...]] = []
        for loop in inner:  # two loops at the same time, in two threads: the first one counts
            if not runs or loop[0] >= runs[-1][-1]:
                runs.append(loop)
        return Marks(tuple(runs), phases, work=work, notes=notes)

    def work_between(
        self, start_s: float, end_s: float, phases: Sequence[Phase]
    ) -> tuple[WorkDone, ...]:
        """Sums of what was counted between two moments; inside of phases apart, under their names."""
        sums: dict[str, float] = {}
        starts = [each.start_s for each in phases]  # which come sorted
        for name, (moments, amounts) in self.work.items():
            for at_s, amount in zip(moments, amounts, strict=False):
                if start_s <= at_s <= end_s:
                    place = bisect.bisect_left(starts, at_s) - 1
                    inside = place >= 0 and at_s <= phases[place].end_s
                    full = f"{phases[place].kind} {name}" if inside else name
                    sums[full] = sums.get(full, 0.0) + amount
        return tuple(WorkDone(name, amount) for name, amount in sums.items())


def _around(outer: Sequence[float], inner: Sequence[float]) -> bool:
    """Whether one loop ran inside one iteration of another, and had more than one itself."""
    return (
        outer is not inner and len(inner) > 2
        and any(a <= inner[0] and inner[-1] <= b for a, b in itertools.pairwise(outer))
    )


# Open windows, as keys. No lock: a dropped window leaves during garbage collection, in any thread.
_open: dict[MarkRecorder, None] = {}


def attach(notebook: MarkRecorder) -> None:
    """From now on marks are noted here too."""
    _open[notebook] = None


def detach(notebook: MarkRecorder) -> None:
    """No further marks; a second time does nothing."""
    _open.pop(notebook, None)


def _reached() -> Sequence[MarkRecorder]:
    """The open windows that a mark of this thread is for."""
    everyone, thread = tuple(_open), threading.get_ident()
    own = [each for each in everyone if each.thread == thread]
    if len(own) in (0, len(everyone)):
        return everyone
    main, gpus = threading.main_thread().ident, own[-1].gpus
    return [each for each in everyone
            if each.thread in (None, thread) or (each.thread == main and each.gpus >= gpus)]


def latest_steps(count: int) -> list[float]:
    """The last marks of iterations (s, oldest first) of the window that noted the newest one."""
    noted = [each.steps for each in tuple(_open) if len(each.steps)]
    return list(max(noted, key=lambda steps: steps[-1])[-count:]) if noted else []


def batch_size() -> int | None:
    """Samples of the last iteration of the running job; None where it counts none."""
    counted = [each for each in tuple(_open) if len(each.steps) > 1 and "samples" in each.work]
    if not counted:
        return None
    newest = max(counted, key=lambda each: each.steps[-1])
    start_s, end_s = newest.steps[-2:]
    done = zip(*newest.work["samples"], strict=False)
    return round(sum(amount for at_s, amount in done if start_s < at_s <= end_s)) or None


def step() -> None:
    """Mark the end (or the beginning) of a training iteration: once in each, at the same place of the loop.

    Open windows record it (a `%%energy` cell, `workbench.measure`). Without an open window nothing happens.
    """
    for notebook in _reached():
        try:
            notebook.step()
        # a simulated machine that is gone, whose window nobody closed: no reason to stop a training
        except Exception:
            detach(notebook)


def work(amounts: Mapping[str, float]) -> None:
    """Count work that was done since the last call; see `measurement.work.work`."""
    for notebook in _reached():
        try:
            notebook.count(amounts)
        except Warning:  # the user's filters turn warnings into errors
            pass
        except Exception:
            detach(notebook)


@checked
@contextlib.contextmanager
def phase(kind: str) -> Iterator[None]:
    """Mark this block as an "evaluation", a "checkpoint" or the like, counted apart from iterations."""
    if similar := [each for each in PHASES if each.startswith(kind.lower()) and each != kind]:
        warnings.warn(f"phase({kind!r}) is counted under a name of its own; did you mean {similar[0]!r}? The "
                      f"known phases are {', '.join(PHASES)}", RuntimeWarning, stacklevel=3)
    begun = [(notebook, start_s) for notebook in _reached() if (start_s := notebook.now_s()) is not None]
    for notebook, start_s in begun:
        notebook.begun(start_s)
    try:
        yield
    finally:
        for notebook, start_s in begun:
            end_s = notebook.now_s()
            if end_s is not None and end_s > start_s:
                notebook.ended(kind, start_s, end_s)


def since_last(kind: str) -> None:
    """Mark what ran since the last step or phase as this kind; for hooks that are called at its end only."""
    for notebook in _reached():
        notebook.since_last(kind)


def begin() -> None:
    """Mark the beginning of a training's first iteration, for hooks whose steps end iterations."""
    for notebook in _reached():
        notebook.begin()


def loop(moments_s: Sequence[float]) -> None:
    """A tracked loop has ended, and these were its iterations' borders."""
    for notebook in _reached():
        notebook.loops.append(moments_s)


class MarkWriter(MarkRecorder):
    """Writes the marks of this process to a file of its own in a directory, for the process that measures it.

    The file is made at the first mark. Its first line describes the process as JSON (`_identity`). A line
    follows for each mark; times are of the machine's monotonic clock, or of a stepped simulated machine's:
    `step TIME`, `begun TIME` (of a phase), `phase START END KIND`, `work TIME AMOUNT NAME`, and at a normal
    exit `end TIME` or `failed TIME`. A disk that is full costs marks and ends no training.
    """

    def __init__(self, directory: str) -> None:
        super().__init__(_clock())
        self._directory, self._file = directory, -1

    def step(self) -> None:
        self.last_s = now_s = self.clock()
        self._write(f"step {now_s}")

    def begun(self, start_s: float) -> None:
        self._write(f"begun {start_s}")

    def ended(self, kind: str, start_s: float, end_s: float) -> None:
        self.last_s = end_s
        self._write(f"phase {start_s} {end_s} {kind}")

    def worked(self, name: str, at_s: float, amount: float) -> None:
        self._write(f"work {at_s} {amount} {name}")

    def _write(self, row: str) -> None:
        if self._file < 0:
            try:
                self._open()
            except OSError:  # nobody measures any more
                detach(self)
                return
        with contextlib.suppress(OSError):
            os.write(self._file, row.replace("\n", " ").encode(errors="replace") + b"\n")

    def _open(self) -> None:
        path = os.path.join(self._directory, f"{os.getpid()}-{time.time_ns()}{SUFFIX}")
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        pid, stepped = os.getpid(), self.clock is not time.monotonic
        began_s = self.clock() - (0.0 if stepped else age_s(pid))
        self._write(json.dumps(_identity(began_s, stepped=stepped)))

        def end() -> None:
            if os.getpid() == pid and self._file >= 0:
                how = "failed" if getattr(sys, "last_type", None) is not None else "end"
                self._write(f"{how} {self.clock()}")
                detach(self)

        atexit.register(end)
        if (pool := sys.modules.get("multiprocessing.util")) is not None:  # its forks run no `atexit`
            pool.Finalize(None, end, exitpriority=0)


def _clock() -> Callable[[], float]:
    """The monotonic clock; that of a simulated machine where it moves in steps."""
    clock = driver.stepped_clock()
    return time.monotonic if clock is None else clock


def _identity(began_s: float, *, stepped: bool) -> dict[str, object]:
    """Facts of this process by which the marks of several are combined; `gpu` where torch uses CUDA."""
    variables = {name: os.environ[name] for name in selection.CUDA_VARIABLES if name in os.environ}
    return {"pid": os.getpid(), "started": started_at(os.getpid()), "host": socket.gethostname(),
            "began_s": began_s, "stepped": stepped, "cuda": variables, "gpu": selection.torch_uuid(),
            **selection.rank_facts(os.environ)}


_shared: tuple[int, str] | None = None  # a process, and the directory for the marks of its children


def share() -> str:
    """Have child processes that start from now on write their marks; returns the directory.

    A process that is measured itself makes a directory inside of its parent's, which reads both.

    Raises:
        OSError: it cannot be made.
    """
    global _shared
    if _shared is None or _shared[0] != os.getpid():
        outer = os.environ.get(ENVIRONMENT_VARIABLE, "")
        if os.path.isdir(outer):
            path = os.path.join(outer, str(os.getpid()), "")
            os.makedirs(path, exist_ok=True)
        else:
            path = os.path.join(tempfile.mkdtemp(prefix="workbench-marks-"), "")
            atexit.register(_remove, path, os.getpid())
        _shared = os.getpid(), path
    if os.environ.get(ENVIRONMENT_VARIABLE) != _shared[1]:
        os.environ[ENVIRONMENT_VARIABLE] = _shared[1]
    return _shared[1]


def shared() -> str:
    """The directory of `share` in this process; empty where there is none."""
    return _shared[1] if _shared is not None and _shared[0] == os.getpid() else ""


def _remove(path: str, pid: int) -> None:
    if os.getpid() == pid:
        shutil.rmtree(path, ignore_errors=True)


def _report_to_parent() -> None:
    """Write marks where a process that measures this one asks for them; in a forked process to a new file."""
    for each in tuple(_open):
        if isinstance(each, MarkWriter):
            detach(each)
    if directory := os.environ.get(ENVIRONMENT_VARIABLE):
        attach(MarkWriter(directory))


_report_to_parent()
after_fork(_report_to_parent)
