"""One comparison from the first job's start to the last one's end: stages, verdict, the first epoch, and
nobody left behind.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Sequence
from dataclasses import replace

from ..device.gpu import OpenGpu
from ..errors import DeviceError, MeasurementError
from ..logbook.report import format_duration
from ..measurement.meter import Meter
from .children import CannotPause, JobProcess, stop_all
from .comparing import SharingEffect, compare, pooled
from .result import SharedJob, SharingResult, decide
from .stages import TICK_S, Ended, JobSet, Say, SharingPlan, Stages
from .watching import LEAST_S, Interval

SURE = 0.999  # of the intervals where one looks again and again, and takes a job off for it
SAFE_POINTS = ("evaluation", "checkpoint", "epoch")


class Judgement:
    """Whether the jobs should share, as far as it is known.

    Attributes:
        why_not: Why they cannot be compared; empty where they can.
    """

    def __init__(self, jobs: JobSet) -> None:
        self.jobs = jobs
        self.why_not = ""
        self.comparison: SharingEffect | None = None
        self.decision, self.verdict = "unknown", ""

    def judge(self, *, last: bool = False) -> None:
        """Compare the stages so far; the `last` time the earlier result is kept if that fails."""
        jobs = self.jobs
        for job in [job for job in jobs.unmarked if jobs.watcher.marked(job)]:  # it was slow to begin
            jobs.notes.remove(jobs.unmarked.pop(job))
        if self.why_not:
            self.verdict = f"no comparison: {self.why_not}"
            return
        jobs.watcher.settled()
        try:
            alone = [pooled(jobs.blocks((job,))) for job in jobs.everyone]
            self.comparison = compare(alone, pooled(jobs.blocks(jobs.everyone)), jobs.idle_w or 0.0)
        except MeasurementError as error:
            if not last:
                self.verdict = f"no comparison: {error}"
            return
        self.decision, self.verdict = decide(self.comparison, jobs.labels, jobs.plan.bound, jobs.plan.stage_s)


class FirstEpoch:
    """The first epoch together, as EaCO watches it: until each job has ended one, or the bound is broken for
    sure; then the newcomer, the last job, is stopped.
    """

    def __init__(self, jobs: JobSet, judgement: Judgement) -> None:
        self.jobs, self.judgement = jobs, judgement
        self.plan, self.clock, self.newcomer = jobs.plan, jobs.clock, jobs.children[-1]

    def watch(self) -> str:
        """Returns what came of it."""
        jobs, judgement = self.jobs, self.judgement
        began_s = from_s = self.clock()
        if judgement.decision == "do not share" and self._too_slow():
            return self._break(f"{self.newcomer.label} came last: {judgement.verdict}")
        while all(child.running for child in jobs.children):
            jobs.tick()
            now_s = self.clock()
            if now_s - from_s >= self.plan.stage_s:
                jobs.intervals.append(Interval(jobs.everyone, from_s, now_s))
                from_s = now_s
                if late := self._too_slow():
                    judgement.judge(last=True)
                    # all that was watched together may hide what has changed lately
                    if judgement.decision != "do not share":
                        judgement.decision = "do not share"
                        judgement.verdict = f"{late}; run them one after the other"
                    return self._break(late)
            if any(jobs.silent_s(job) is not None for job in jobs.everyone):
                break
            if now_s - began_s >= self.plan.watch_s or all(
                self._epoch_ended(job, began_s) for job in jobs.everyone
            ):
                judgement.judge(last=True)
                return self._held(now_s - began_s)
        judgement.judge(last=True)
        lasted = format_duration(self.clock() - began_s)
        return f"the first epoch was watched for {lasted}, until not all jobs were there any more"

    def _held(self, seconds: float) -> str:
        held = "the bound held"
        if self.judgement.decision == "do not share":
            sure = f"no job is beyond the bound with {100 * SURE:g} % certainty"
            held = f"{self.judgement.verdict}; {self.newcomer.label} goes on, as {sure}"
        lasted = format_duration(seconds)
        message = f"watched for {lasted} after the measurement, for its first epoch: {held}"
        self.jobs.say(message)
        return message

    def _epoch_ended(self, job: int, since_s: float) -> bool:
        return any(
            kind in ("epoch", "evaluation") and float(self.jobs.watcher.at(end)) > since_s
            for kind, _, end in self.jobs.children[job].phases_s()
        )

    def _too_slow(self) -> str:
        """Who is beyond the bound, for sure although it is looked at often: in what was watched last,
        which shows a change, or in all.
        """
        jobs = self.jobs
        jobs.watcher.settled()
        try:
            alone = [pooled(jobs.blocks((job,))) for job in jobs.everyone]
            stages = [jobs.watcher.stage(jobs.intervals[-1]), pooled(jobs.blocks(jobs.everyone))]
        except MeasurementError:
            return ""
        for stage in stages:
            with contextlib.suppress(MeasurementError):
                found = compare(alone, stage, jobs.idle_w or 0.0, level=SURE)
                for label, each in zip(jobs.labels, found.slowdown, strict=True):
                    if each.low > self.plan.bound:
                        more, most = 100 * (each.value - 1), 100 * (self.plan.bound - 1)
                        took = f"{label} took {more:.0f} % longer than alone in the first epoch"
                        return f"{took}, beyond {most:.0f} %"
        return ""

    def _break(self, why: str) -> str:
        """Take the newcomer off the GPU at a safe point; returns what was done."""
        child = self.newcomer
        point = self._safe_point()
        self.jobs.left_out.add(self.jobs.everyone[-1])
        message = f"{why}; {child.label} was asked to end {point}"
        if self.plan.on_break == "stop":
            child.ask_to_stop()
        else:
            try:
                child.pause()
                message = f"{why}; {child.label} was paused {point} until the others end"
            except CannotPause as error:
                message = f"{why}; {error}, and was left alone"
        self.jobs.say(message)
        return message

    def _safe_point(self) -> str:
        """Wait for the end of an evaluation, checkpoint or epoch if the job reports of such, else of an
        iteration.
        """
        child = self.newcomer

        def ended() -> list[str]:
            return [kind for kind, _, _ in child.phases_s() if kind in SAFE_POINTS]

        have, steps = len(ended()), child.count()
        until = time.monotonic() + (self.plan.watch_s if have else self.plan.grace_s)
        while child.running and time.monotonic() < until:
            now = ended()
            if len(now) > have:
                return f"at the end of its {now[-1]}"
            if not have and child.count() > steps:
                return "at the end of an iteration"
            time.sleep(TICK_S)
        return "without waiting longer for the end of an epoch, a checkpoint or an iteration"


def see_to_the_end(jobs: JobSet) -> None:
    """Until every job has ended. A newcomer that was paused, or that was not begun, goes on when the others
    have ended.
    """
    asked = time.monotonic()
    grace_s = jobs.plan.grace_s
    while any(child.running or not child.started for child in jobs.children):
        time.sleep(LEAST_S)
        for job, child in enumerate(jobs.children):
            if not child.running:
                _tell_end(jobs, job)
            elif child.stopped_by_us and time.monotonic() - asked > grace_s:
                jobs.notes += stop_all([child], grace_s=grace_s / 4)
            elif (
                not child.paused and job not in jobs.silent and (silent_s := jobs.silent_s(job)) is not None
            ):
                jobs.leave_alone(job, silent_s)
        waiting = [child for child in jobs.children if (child.paused and child.running) or not child.started]
        if waiting and not any(child.running and not child.paused for child in jobs.children):
            jobs.say(f"{waiting[0].label} {'goes on' if waiting[0].started else 'starts'}")
            waiting[0].resume() if waiting[0].started else waiting[0].start()
    for job in jobs.everyone:
        _tell_end(jobs, job)


def _tell_end(jobs: JobSet, job: int) -> None:
    """Tell once that a job has ended, and how."""
    child = jobs.children[job]
    if not child.started or job in jobs.reported:
        return
    jobs.reported.add(job)
    outcome = child.outcome()
    if outcome not in ("ok", "stopped"):
        jobs.note(f"{child.label} ended ({outcome}, status {child.status}): {child.tail()}")


class SharingRun:
    """The whole of a comparison; `mode` is the way of sharing, the rest as for `JobSet`."""

    def __init__(
        self, device: OpenGpu, meter: Meter, children: Sequence[JobProcess], plan: SharingPlan, mode: str,
        say: Say,
    ) -> None:
        self.jobs = JobSet(device, meter, children, plan, say)
        self.judgement = Judgement(self.jobs)
        self.meter, self.plan, self.mode, self.watched = meter, plan, mode, ""
        self.board = self.window = meter.open("share: " + " + ".join(self.jobs.labels), sync=False)
        assert meter.recorder is not None
        self.hold = meter.recorder.hold(self.board.start_s)

    def go(self) -> SharingResult:
        """Measure, judge, watch, and see the jobs to their end. Whatever happens, none is left running
        afterwards.
        """
        jobs, judgement = self.jobs, self.judgement
        try:
            stages = Stages(jobs)
            stages.idle()
            try:
                stages.measure()
            except Ended as ended:
                judgement.why_not = jobs.gone(ended.job)
            except CannotPause as error:
                judgement.why_not = str(error)
            judgement.judge()
            jobs.say(judgement.verdict)
            if self.plan.until_end:
                jobs.resume()
                if self.plan.watch and judgement.comparison is not None:
                    self.watched = FirstEpoch(jobs, judgement).watch()
                see_to_the_end(jobs)
        finally:
            try:
                jobs.notes += stop_all(jobs.children, grace_s=self.plan.grace_s)
            except BaseException:  # interrupted a second time: immediately, then
                for child in jobs.children:
                    child.kill()
                raise
            finally:
                self.window = self.meter.close(self.board, sync=False)
        return self.result()

    def result(self) -> SharingResult:
        """The current state."""
        board = None
        if self.window.end_s is not None:
            board = replace(self.meter.measure(self.window), label=self.board.label)
        found, judgement, device = self.jobs, self.judgement, self.jobs.device
        jobs = tuple(
            SharedJob(
                child.label, child.command_line, "hung" if number in found.hung else child.outcome(),
                found.memory_bytes.get(number), str(child.log),
                child.source or ("power" if number in found.watcher.alone_periods else ""),
            )
            for number, child in enumerate(found.children)
        )
        total = None
        with contextlib.suppress(DeviceError):
            total = device.memory_bytes()[1]
        spans = tuple((found.names(each.members), each.from_s, each.to_s) for each in found.intervals)
        # not the hours that may come after
        trace = found.watcher.trace(self.board.start_s - 1.0, spans[-1][2] + 2.0) if spans else None
        return SharingResult(
            device.name, device.uuid, device.simulated, jobs, judgement.comparison, judgement.decision,
            judgement.verdict, self.plan.bound, board, self.mode, found.together_bytes, total, found.idle_w,
            self.watched, tuple(dict.fromkeys(found.notes)), spans, trace,
        )


def interruptible() -> contextlib.ExitStack:
    """SIGTERM and SIGHUP end the comparison as Ctrl-C does, while in this context; only a main thread can
    have it so.
    """
    stack = contextlib.ExitStack()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGHUP):
        before = signal.getsignal(number)
        # another library's, or `nohup`
        if before is None or (number == signal.SIGHUP and before == signal.SIG_IGN):
            continue
        with contextlib.suppress(ValueError):
            signal.signal(number, interrupt)
            stack.callback(signal.signal, number, before)
    return stack
