"""Marks of other processes: each writes a file (`marks.MarkWriter`), and they become the marks of one job.

An iteration of a job ends when the last rank ends it. Work is the sum over ranks.
"""

from __future__ import annotations

import bisect
import contextlib
import copy
import itertools
import json
import math
import os
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ..records import NO_MARKS, Marks, Phase, WorkDone
from . import marks

ReadClock = Callable[[], float]


class ProcessMarks(marks.MarkRecorder):
    """What one process has marked, on the clock of who reads it.

    Attributes:
        facts: The first line of its file (`marks.MarkWriter`).
        inside: Processes in whose directories it writes, the outermost first.
        began_s: When it started.
        ended_s: When it ended by itself; None while it runs, and where it was killed.
        failed: Whether it ended with an exception.
        optimizer_steps: Steps that were observed in its optimizer.
        begun_s: Beginnings of phases that have not ended.
    """

    def __init__(self, facts: dict[str, Any], inside: tuple[int, ...], clock: ReadClock) -> None:
        super().__init__(clock)
        self.facts, self.inside = facts, inside
        self.pid = int(facts["pid"])
        self.rank: int | None = facts.get("rank")
        self.ended_s: float | None = None
        self.failed = False
        self.optimizer_steps = array("d")
        self.begun_s: set[float] = set()
        # from the monotonic clock to the reader's; the latter may be a simulated machine's
        scale = 1.0 if facts.get("stepped") else float(getattr(clock, "scale", 1.0))
        same = clock is time.monotonic or facts.get("stepped") or not hasattr(clock, "scale")
        self._scale, self._shift_s = scale, 0.0 if same else clock() - scale * time.monotonic()
        self.began_s = self._at(facts["began_s"])

    def _at(self, text: Any) -> float:
        return self._shift_s + self._scale * float(text)

    def add(self, row: str) -> None:
        """A line of its file. Raises ValueError for a damaged one."""
        what, at, *more = row.split(" ", 3)
        at_s = self._at(at)
        if what == "step":
            self.steps.append(at_s)
        elif what == "optimizer":
            self.optimizer_steps.append(at_s)
        elif what == "begun":
            self.begun_s.add(at_s)
        elif what == "phase":
            end, kind = more
            self.begun_s.discard(at_s)
            self.phases.append(Phase(kind, at_s, self._at(end)))
        elif what == "work":
            amount, name = more
            self.worked(name, at_s, float(amount))
        elif what in ("end", "failed"):
            self.ended_s, self.failed = at_s, what == "failed"

    @property
    def last_mark_s(self) -> float:
        """Its last mark of any kind; its beginning where it has none."""
        worked = (moments[-1] for moments, _ in self.work.values())
        return max([self.began_s, *self.steps[-1:], *(phase.end_s for phase in self.phases), *worked])

    def between(self, start_s: float, end_s: float) -> ProcessMarks:
        """Its marks between two moments."""
        found = copy.copy(self)
        found.steps = array("d", (at for at in self.steps if start_s <= at <= end_s))
        found.phases = list(self.phases_between(start_s, end_s))
        found.work = {name: each for name, each in self.work.items()
                      if any(start_s <= at <= end_s for at in each[0])}
        return found


class _File(NamedTuple):
    read: int  # bytes
    process: ProcessMarks | None


class MarkFolder:
    """Reads a directory of marks; each call of `read` goes on where the one before ended.

    Args:
        path: The directory. It need not exist.
        clock: On which the moments are wanted.
    """

    def __init__(self, path: str, clock: ReadClock = time.monotonic) -> None:
        self.path, self._clock, self._made_unix_s = path, clock, time.time()
        self._files: dict[str, _File] = {}

    def read(self) -> list[ProcessMarks]:
        """All processes that have marked, in the order in which they began to."""
        for path, inside in _files(self.path, ()):
            with contextlib.suppress(OSError):
                self._files[path] = self._go_on(path, inside, self._files.get(path, _File(0, None)))
        found = [each.process for each in self._files.values() if each.process is not None]
        return sorted(found, key=lambda each: each.began_s)

    def _go_on(self, path: str, inside: tuple[int, ...], known: _File) -> _File:
        if os.stat(path).st_size <= known.read:
            return known
        with open(path, "rb") as file:
            file.seek(known.read)
            fresh = file.read()
        usable = fresh.rfind(b"\n") + 1  # the last row may not be whole
        process = known.process
        for row in fresh[:usable].decode(errors="replace").splitlines():
            try:
                if process is None:
                    facts = json.loads(row)
                    if facts.get("stepped") and os.stat(path).st_mtime < self._made_unix_s:
                        return _File(known.read + len(fresh), None)  # of another simulated machine
                    process = ProcessMarks(facts, inside, self._clock)
                else:
                    process.add(row)
            except (ValueError, KeyError, TypeError):  # cut off by a full disk
                continue
        return _File(known.read + usable, process)


def _files(path: str, inside: tuple[int, ...]) -> list[tuple[str, tuple[int, ...]]]:
    found: list[tuple[str, tuple[int, ...]]] = []
    with contextlib.suppress(OSError), os.scandir(path) as entries:
        for entry in entries:
            if entry.name.endswith(marks.SUFFIX):
                found.append((entry.path, inside))
            elif entry.name.isdigit():
                found += _files(entry.path, (*inside, int(entry.name)))
    return found


_folders: dict[tuple[str, ReadClock], MarkFolder] = {}


def watch(clock: ReadClock) -> MarkFolder | None:
    """The marks of processes below this one, from now on where the clock is stepped; None where there are
    none.
    """
    path = marks.shared()
    if not path:
        return None
    return _folders.get((path, clock)) or _folders.setdefault((path, clock), MarkFolder(path, clock))


def _read(clock: ReadClock) -> list[ProcessMarks]:
    folder = watch(clock)
    return folder.read() if folder is not None else []


def of_children(clock: ReadClock, start_s: float, end_s: float) -> list[ProcessMarks]:
    """The processes below this one that have marked between two moments.

    A process that reports steps speaks for those below it.
    """
    found = _read(clock)
    cut = [each.between(start_s, end_s) for each in found if each.last_mark_s >= start_s]
    speakers = {each.pid for each in cut if each.steps}
    return [each for each in cut
            if (each.steps or each.phases or each.work) and speakers.isdisjoint(each.inside)]


def steps_after(clock: ReadClock, after_s: float) -> list[float]:
    """Marks of iterations after a time (s, ascending), of the lowest rank below this process."""
    found = [each for each in _read(clock) if each.last_mark_s > after_s and each.steps]
    if not found:
        return []
    first = min(found, key=lambda each: (math.inf if each.rank is None else each.rank, each.began_s))
    return first.steps[bisect.bisect_right(first.steps, after_s):].tolist()


def with_children(own: Marks, processes: Sequence[ProcessMarks], start_s: float, end_s: float) -> Marks:
    """The marks of a window with those of other processes. Where this process marks iterations itself, these
    count; and so does each kind of work that it counts itself.

    Args:
        own: Of this process.
        processes: The others, between the two moments.
        start_s: Of the window.
        end_s: Of the window.
    """
    if not processes:
        return own
    theirs = together(processes, start_s, end_s)
    counted = {each.name for each in own.work}
    work = own.work + tuple(each for each in theirs.work if each.name not in counted)
    return replace(own if own.count else theirs, work=work, notes=own.notes)


def together(processes: Sequence[ProcessMarks], start_s: float, end_s: float) -> Marks:
    """The marks of a job from those of its processes between two moments."""
    runs: list[tuple[float, ...]] = []
    for generation in generations(processes):
        run = tuple(iteration_ends(generation))
        if len(run) > 1 and not (runs and run[0] < runs[-1][-1]):
            runs.append(run)
    sums: dict[str, float] = {}
    whole = marks.MarkRecorder(time.monotonic)
    for process in processes:
        inside = process.phases_between(start_s, end_s)
        whole.phases += inside
        for done in process.work_between(start_s, end_s, inside):
            sums[done.name] = sums.get(done.name, 0.0) + done.amount
    if not (runs or whole.phases or sums):
        return NO_MARKS
    whole.phases = _merged(whole.phases, [at for run in runs for at in run])
    work = tuple(WorkDone(name, amount) for name, amount in sums.items())
    return Marks(tuple(runs), whole.phases_between(start_s, end_s), work=work)


def _merged(phases: Sequence[Phase], ends_s: Sequence[float]) -> list[Phase]:
    """Phases of several ranks: those of one kind that overlap are one; they begin after the iteration in
    which the first rank enters them, and not before the phase before them ends.
    """
    merged: list[Phase] = []
    for kind, group in itertools.groupby(sorted(phases), key=lambda phase: phase.kind):
        for phase in group:
            last = merged[-1] if merged and merged[-1].kind == kind else None
            if last is not None and phase.start_s <= last.end_s:
                merged[-1] = last._replace(end_s=max(last.end_s, phase.end_s))
            else:
                merged.append(phase)
    found: list[Phase] = []
    for phase in sorted(merged, key=lambda phase: phase.start_s):
        place = int(np.searchsorted(ends_s, phase.start_s))
        straddled = place < len(ends_s) and ends_s[place] < phase.end_s and (
            place + 1 == len(ends_s) or ends_s[place + 1] >= phase.end_s)
        before_s = [each.end_s for each in found[-1:]]
        start_s = max([phase.start_s, *ends_s[place : place + straddled], *before_s])
        if start_s < phase.end_s:
            found.append(phase._replace(start_s=start_s))
    return found


def generations(processes: Sequence[ProcessMarks]) -> list[list[ProcessMarks]]:
    """Processes that iterate together. One that begins after the last marks of all others so far, as after a
    restart of the job or a change of its size, begins the next generation.
    """
    found: list[list[ProcessMarks]] = []
    for each in sorted((each for each in processes if each.steps), key=lambda each: each.steps[0]):
        if not found or all(other.steps[-1] <= each.steps[0] for other in found[-1]):
            found.append([])
        found[-1].append(each)
    return found


def synchronous(processes: Sequence[ProcessMarks], over: int = 8) -> bool:
    """Whether processes end their iterations together; True where too few are known.

    The distance between the ends of two processes stays within bounds if they synchronise. If not, it is a
    random walk: its change over several iterations grows with their number (the variance ratio of Lo and
    MacKinlay, Rev. Financ. Stud. 1, 1988).

    Args:
        processes: With their marks.
        over: So many iterations.
    """
    for first, *others in generations(processes):
        for other in others:
            count = min(len(first.steps), len(other.steps))
            apart_s = np.subtract(first.steps[-count:], other.steps[-count:])
            if count > 2 * over and np.mean(np.square(apart_s[over:] - apart_s[:-over])) > over / 2 * np.mean(
                np.square(np.diff(apart_s))
            ):
                return False
    return True


def is_late(process: ProcessMarks, generation: Sequence[ProcessMarks]) -> bool:
    """Whether a process began after another one of its generation had ended its first iteration."""
    return any(each is not process and each.steps[0] < process.began_s for each in generation)


def iteration_ends(generation: Sequence[ProcessMarks]) -> list[float]:
    """Moments at which the last process ends each iteration (s, ascending).

    Iterations of one number are the same, but those of a late process begin with the one next in time.
    """
    longest = np.sort(max(generation, key=lambda each: len(each.steps)).steps)
    ends = longest.copy()
    for each in generation:
        steps = np.sort(each.steps)
        first = int(np.argmin(np.abs(longest - steps[0]))) if is_late(each, generation) else 0
        ends = np.append(ends, steps[len(ends) - first :])
        ends[first : first + len(steps)] = np.maximum(ends[first : first + len(steps)], steps)
    return list(np.maximum.accumulate(ends).tolist())
