"""The jobs of a comparison on their GPU, and its stages: each is started and runs alone, then all run
together, there and back.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ..device.gpu import OpenGpu
from ..errors import DeviceError, MeasurementError, UsageError, listed
from ..logbook.report import format_duration
from ..measurement.meter import Meter
from ..records import Process
from .children import GRACE_S, CannotPause, JobProcess, stop_all
from .comparing import MOST as BLOCKS
from .comparing import Stage
from .watching import Interval, Watcher

TICK_S = 0.02  # real seconds between two looks at the jobs
STEPS = 3  # iterations by which a job has begun, or goes on as before after a pause
# A stage lasts at most so many times its seconds until it can be compared. A job that keeps the GPU busy for
# one part in so many of the time in which it may start, without a mark, makes none.
PATIENCE = 4.0
BUSY = 0.02  # utilisation over that of the idle card
HANG_S = 30.0  # without a mark, or `HANG_TIMES` iterations, whichever is longer: it hangs
# `HANG_TIMES` that where the GPU is busy: an evaluation of which nothing tells, or a deadlock that spins
HANG_TIMES = 20.0
STILL = 0.9  # of the rise in power: what draws more of it is not paused

Say = Callable[[str], None]


@dataclass(frozen=True)
class SharingPlan:
    """The plan; see `share`."""

    bound: float
    stage_s: float
    rounds: int
    start_s: float
    watch: bool
    watch_s: float
    until_end: bool
    on_break: str
    grace_s: float

    def __post_init__(self) -> None:
        for name in ("stage_s", "watch_s", "start_s", "grace_s"):
            if not 0.0 < getattr(self, name) < math.inf:
                raise UsageError(f"{name}={getattr(self, name):g}: give a positive number of seconds")
        if self.rounds < 1:
            raise UsageError(f"rounds={self.rounds}: each job is measured once at least")
        if self.on_break not in ("stop", "pause"):
            raise UsageError(f"on_break={self.on_break!r}: 'stop' or 'pause'")


class Ended(Exception):
    """A job is not there any more while it was to be measured."""

    def __init__(self, job: int) -> None:
        super().__init__(job)
        self.job = job


class JobSet:
    """The jobs of a comparison on their GPU: observations, and actions on all of them.

    Args:
        device: The GPU.
        meter: Of that GPU alone, with a recorder.
        children: The jobs, not started; the last one is the newcomer.
        plan: The plan.
        say: Told a sentence when something happens.

    Attributes:
        intervals: The stages.
        notes: Sentences for the result; `unmarked` holds those of jobs that have made no mark.
        hung: Jobs that were given up.
        left_out: Newcomers that were stopped or paused for good.
        reported: Jobs whose end was reported.
        silent: Jobs whose want of iterations was noted; they were left alone.
        memory_bytes: The most that each job was observed with; `together_bytes` the GPU with all of them.
        idle_w, idle_utilisation: Of the GPU with none of the jobs.
    """

    def __init__(
        self, device: OpenGpu, meter: Meter, children: Sequence[JobProcess], plan: SharingPlan, say: Say
    ) -> None:
        self.device, self.children, self.plan, self.say = device, list(children), plan, say
        self.watcher, self.clock = Watcher(meter, children), meter.clock
        self.labels = tuple(child.label for child in children)
        self.everyone = tuple(range(len(children)))
        self.intervals: list[Interval] = []
        self.notes: list[str] = []
        self.unmarked: dict[int, str] = {}
        self.hung: set[int] = set()
        self.left_out: set[int] = set()
        self.reported: set[int] = set()
        self.silent: set[int] = set()
        self.memory_bytes: dict[int, int] = {}
        self.together_bytes: int | None = None
        self.idle_w: float | None = None
        self.idle_utilisation = 0.0

    def names(self, members: Sequence[int]) -> tuple[str, ...]:
        return tuple(self.labels[job] for job in members)

    def note(self, message: str) -> None:
        """Say a sentence that is in the result, too."""
        self.notes.append(message)
        self.say(message)

    def tick(self, jobs: Sequence[int] = ()) -> None:
        """A moment later. Raises Ended where one of these jobs is not there any more."""
        time.sleep(TICK_S)
        for job in jobs:
            if not self.children[job].running:
                raise Ended(job)

    def resume(self) -> None:
        """All go on that were not taken off."""
        for job, child in enumerate(self.children):
            if job not in self.left_out:
                child.resume()

    def busy(self, lately_s: float) -> bool | None:
        """Whether the GPU was lately busier than with none of the jobs; None where its utilisation is not
        reported (MIG).
        """
        used = self.watcher.mean_utilisation(self.clock() - lately_s, self.clock())
        return None if used is None else used > self.idle_utilisation + BUSY

    def silent_s(self, job: int) -> float | None:
        """For how long a job that marks has not, if that is too long. It is never in a phase, and longer
        where the GPU is busy.
        """
        child, watcher = self.children[job], self.watcher
        steps, usual_s = watcher.steps_s(job, 1), watcher.step_s(job)
        if usual_s is None:
            return None
        since = [float(steps[-1]), *(float(watcher.at(end)) for _, _, end in child.phases_s())]
        silent_s = self.clock() - max(*since, float(watcher.at(child.resumed_s)))
        limit_s = max(HANG_S * float(getattr(self.clock, "scale", 1.0)), HANG_TIMES * usual_s)
        if silent_s <= limit_s or child.in_phase():
            return None
        return silent_s if silent_s > HANG_TIMES * limit_s or self.busy(limit_s / 2) is False else None

    def check_memory(self, *, together: bool) -> None:
        """Record the held memory, as far as the driver reports it; other processes on the GPU are noted."""
        with contextlib.suppress(DeviceError):
            listed = self.device.processes()
            for job, child in enumerate(self.children):
                mine = sum(each.memory_bytes or 0 for each in listed if child.has(each.pid))
                if mine:
                    self.memory_bytes[job] = max(self.memory_bytes.get(job, 0), mine)
            if together:
                self.note_strangers(
                    each for each in listed if not any(child.has(each.pid) for child in self.children)
                )
                self.together_bytes = max(self.together_bytes or 0, self.device.memory_bytes()[0])

    def note_strangers(self, strangers: Iterable[Process]) -> None:
        """Note the processes on the GPU that are no job's, once."""
        named = [f"{each.name} ({each.pid})" for each in strangers if each.name != "?"]
        if named and not any("other processes use" in note for note in self.notes):
            self.note(
                "other processes use this GPU, and their power and slowdown are in every figure: "
                f"{listed(named, 3)}"
            )

    def leave_alone(self, job: int, silent_s: float) -> None:
        """Note that a job has been silent for too long."""
        self.silent.add(job)
        lasted = format_duration(silent_s)
        self.note(f"{self.labels[job]} has made no iteration for {lasted}; it may hang, and was left alone")

    def blocks(self, members: tuple[int, ...]) -> list[Stage]:
        """The stages of just these jobs. Raises MeasurementError where that is nothing."""
        found, why = [], ""
        for interval in self.intervals:
            if interval.members == members:
                try:
                    found.append(self.watcher.stage(interval))
                except MeasurementError as error:
                    why = str(error)
        if not found:
            names = " and ".join(self.names(members))
            raise MeasurementError(why or f"{names} did not run long enough to be measured")
        return found

    def gone(self, job: int) -> str:
        """One sentence about a job that has ended before it was compared; it is reported of once."""
        child, outcome = self.children[job], "hung" if job in self.hung else self.children[job].outcome()
        others = [label for label, each in zip(self.labels, self.children, strict=True)
                  if each is not child and each.running]
        go_on = ""
        if others and self.plan.until_end:
            go_on = f"; {', '.join(others)} {'goes' if len(others) == 1 else 'go'} on"
        if job in self.silent:
            return f"{child.label} made no iterations for too long and could not be compared{go_on}"
        self.reported.add(job)
        self.left_out.add(job)
        held = [
            f"{self.labels[other]} holds {used / 2**30:.1f} GiB"
            for other, used in self.memory_bytes.items() if other != job
        ]
        return _why_gone(child, outcome, held) + go_on


class Stages:
    """The measurement of a comparison: who runs when, until all were seen alone and together."""

    def __init__(self, jobs: JobSet) -> None:
        self.jobs, self.plan, self.children = jobs, jobs.plan, jobs.children
        self.watcher, self.clock = jobs.watcher, jobs.clock
        self._paused: set[int] = set()  # jobs whose pauses were checked

    def idle(self) -> None:
        """The board's power with none of the jobs; who else is there is noted."""
        jobs = self.jobs
        jobs.note_strangers(jobs.device.processes())
        from_s = self.clock()
        self._pause(2.0 * max(self.watcher.least_s(), 1.0))
        self.watcher.settled()
        jobs.idle_w = self.watcher.mean_power_w(from_s, self.clock() - 0.2)
        jobs.idle_utilisation = self.watcher.mean_utilisation(from_s, self.clock()) or 0.0

    def measure(self) -> None:
        """Each alone and all together.

        Raises:
            Ended: A job is not there any more.
            CannotPause: One goes on although it was reported to stop.
        """
        jobs = self.jobs.everyone
        for job in jobs:
            self._begin(job)
            self._alone(job)
        # there and back, so that what drifts with time (heat) does not count for either side
        for _ in range(self.plan.rounds - 1):
            self._together()
            for job in reversed(jobs):
                for number, child in enumerate(self.children):
                    if number != job:
                        child.pause()
                self.children[job].resume()
                self._alone(job)
        self._together()

    def _begin(self, job: int) -> None:
        """Start a job and wait until it iterates."""
        child = self.children[job]
        child.start()
        self.jobs.say(f"{child.label} starts (output: {child.log})")
        until = time.monotonic() + self.plan.start_s
        begun_s = self.clock()
        longest_s = self.plan.start_s / PATIENCE
        while child.count() < STEPS:
            self.jobs.tick([job])
            if not child.count() and self.clock() - begun_s > longest_s and self.jobs.busy(longest_s):
                why = "makes no marks (workbench.step()); its iterations are looked for in the power"
                self.jobs.unmarked[job] = f"{child.label} {why}"
                self.jobs.notes.append(self.jobs.unmarked[job])
                return
            if time.monotonic() > until:
                self._give_up(
                    job,
                    f"{child.label} did not iterate within {self.plan.start_s:g} s of its start and was "
                    "stopped; start_s=... gives it longer",
                )

    def _alone(self, job: int) -> None:
        self._settle([job])
        self._stage([job])
        self.jobs.check_memory(together=False)
        last = self.jobs.intervals[-1]
        if self.jobs.busy(last.to_s - last.from_s) is False:
            label = self.children[job].label
            self.jobs.notes.append(
                f"the GPU was idle while {label} ran alone; does it choose another one itself?"
            )
        self.children[job].pause()
        self._check_pause(job, last)

    def _check_pause(self, job: int, alone: Interval) -> None:
        """Raise CannotPause where the GPU goes on as it did for a job that was stopped: its host waits, its
        kernels (NCCL's, say) spin. Once for each job.
        """
        if job in self._paused or self.jobs.idle_w is None:
            return
        self._paused.add(job)
        now_w = drawn_when_paused(self.watcher, self.jobs.idle_w, alone)
        if now_w is not None:
            raise CannotPause(
                f"{self.children[job].label} cannot be paused: it was stopped, and the GPU goes on drawing "
                f"{now_w:.0f} W after {GRACE_S:g} s ({self.jobs.idle_w:.0f} W at rest); its kernels do not "
                "end by themselves"
            )

    def _together(self) -> None:
        self.jobs.resume()
        everyone = [job for job in self.jobs.everyone if job not in self.jobs.left_out]
        self._settle(everyone)
        self._stage(everyone)
        self.jobs.check_memory(together=True)

    def _settle(self, jobs: Sequence[int]) -> None:
        """Wait until each has made a few iterations since now: a pause is none, and what was paused works
        off what it has queued.
        """
        queued_s = [self.watcher.step_s(job) or 0.0 for job in self.jobs.everyone if job not in jobs]
        self._pause(min(GRACE_S, max([0.2, *(1.5 * each for each in queued_s)])), jobs)
        have = self._counts(jobs)
        while self._have_few(have, STEPS):
            self.jobs.tick(jobs)
            self._check_hang(jobs)

    def _stage(self, jobs: Sequence[int]) -> None:
        """Watch these jobs for the plan's seconds, or longer where iterations are, or where a busy machine or
        an evaluation left too little that can be compared.
        """
        from_s, seconds = self.clock(), self.plan.stage_s
        check_s = from_s + seconds
        have = self._counts(jobs)
        while True:
            self.jobs.tick(jobs)
            self._check_hang(jobs)
            now_s = self.clock()
            if now_s < check_s:
                continue
            enough = not self._have_few(have, BLOCKS) and self.watcher.comparable(
                Interval(tuple(jobs), from_s, now_s)
            )
            if enough or now_s >= from_s + PATIENCE * seconds:
                break
            check_s = now_s + seconds / PATIENCE
        self.jobs.intervals.append(Interval(tuple(jobs), from_s, self.clock()))

    def _counts(self, jobs: Sequence[int]) -> dict[int, int]:
        return {job: self.children[job].count() for job in jobs}

    def _have_few(self, have: dict[int, int], more: int) -> bool:
        """Whether one of the jobs that mark has not made so many iterations more than it had."""
        return any(
            self.watcher.marked(job) and self.children[job].count() < count + more
            for job, count in have.items()
        )

    def _pause(self, seconds: float, jobs: Sequence[int] = ()) -> None:
        until_s = self.clock() + seconds
        while self.clock() < until_s:
            self.jobs.tick(jobs)

    def _check_hang(self, jobs: Sequence[int]) -> None:
        for job in jobs:
            silent_s = self.jobs.silent_s(job)
            if silent_s is None:
                continue
            if self.plan.until_end:
                self.jobs.leave_alone(job, silent_s)
                raise Ended(job)
            lasted = format_duration(silent_s)
            label = self.children[job].label
            self._give_up(job, f"{label} has made no iteration for {lasted}: it hangs, and was stopped")

    def _give_up(self, job: int, why: str) -> None:
        self.jobs.hung.add(job)
        self.jobs.note(why)
        stop_all([self.children[job]], grace_s=self.plan.grace_s)
        raise Ended(job)


def drawn_when_paused(watcher: Watcher, idle_w: float, alone: Interval) -> float | None:
    """Power of the GPU after its only job was paused; None where its power falls, or where that
    job drew too little to show.
    """
    drew_w, least_s = watcher.mean_power_w(alone.from_s, alone.to_s), watcher.least_s()
    if drew_w is None or idle_w > STILL * drew_w:
        return None
    until, now_w = time.monotonic() + GRACE_S, drew_w
    while time.monotonic() < until:
        time.sleep(TICK_S)
        watcher.settled()
        now_w = watcher.mean_power_w(watcher.clock() - least_s, watcher.clock()) or idle_w
        if now_w - idle_w <= STILL * (drew_w - idle_w):
            return None
    return now_w


def _why_gone(child: JobProcess, outcome: str, held: Sequence[str]) -> str:
    """Why a job could not be compared, in a clause; `held` is what others have of the memory, in words."""
    if outcome == "hung":
        return f"{child.label} hung and could not be compared"
    if outcome == "out of memory":
        beside = f" next to the others ({', '.join(held)} of the GPU's memory)" if held else ""
        return f"{child.label} ran out of memory{beside}: {child.tail()}"
    if outcome == "ok":
        more = "give it more work, or measure for less (stage_s=...)"
        return f"{child.label} ended before it was compared; {more}"
    return f"{child.label} ended with status {child.status} before it was compared: {child.tail()}"
