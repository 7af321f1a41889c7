"""One comparison from the first job's start to the last one's end: stages, verdict, the first epoch, and
nobody left behind.
"""

from __future__ import annotations

import contextlib
import signal
import time
from dataclasses import replace

from ..errors import DeviceError, MeasurementError
from ..measurement.report import format_duration
from .children import CannotPause, stop_all
from .comparing import compare, pooled
from .result import Shared, SharedJob
from .stages import TICK_S, Ended, Stages, short
from .watching import Interval

REST_S = 0.1  # real seconds between two looks when all that is left is to see the jobs to their end
SAFE_S = (
    60.0  # how long a newcomer that breaks the bound is waited for to end its epoch or write its checkpoint
)
SURE = 0.999  # of the intervals where one looks again and again, and takes a job off for it
SAFE_POINTS = ("evaluation", "checkpoint", "epoch")


class SharingRun(Stages):
    """The whole of a comparison."""

    def go(self) -> Shared:
        """Measure, judge, watch, and see the jobs to their end. Whatever happens, none is left running
        afterwards.
        """
        try:
            self._idle()
            try:
                self._measure()
            except Ended as ended:
                self.why_not = self._gone(ended.job)
            except CannotPause as error:
                self.why_not = str(error)
            self._judge()
            self.say(self.verdict)
            if self.plan.until_end:
                self._resume_all()
                if self.plan.watch and self.comparison is not None:
                    self._watch()
                self._see_to_the_end()
        finally:
            try:
                self.notes += stop_all(self.children, grace_s=self.plan.grace_s)
            except BaseException:  # interrupted a second time: at once, then
                for child in self.children:
                    child.kill()
                raise
            finally:
                self.window = self.meter.close(self.board, sync=False)
        return self.result()

    def result(self) -> Shared:
        """What is known now."""
        board = None
        if self.window.end_s is not None:
            board = self.meter.measure(self.window)
        last_s = self.window.end_s or self.clock()
        return self._shared(replace(board, label=self.board.label) if board is not None else None, last_s)

    def _shared(self, board: object = None, last_s: float | None = None) -> Shared:
        jobs = tuple(
            SharedJob(
                child.label, child.words, "hung" if number in self.hung else child.outcome(),
                self.memory.jobs.get(number), str(child.log),
                child.source or ("power" if number in self.watcher.rhythms else ""),
            )
            for number, child in enumerate(self.children)
        )
        total = None
        with contextlib.suppress(DeviceError):
            total = self.device.memory_bytes()[1]
        spans = tuple(
            (tuple(self.labels[job] for job in each.members), each.from_s, each.to_s)
            for each in self.intervals
        )
        # not the hours that may come after
        shown_s = min(last_s or 0.0, self.intervals[-1].to_s + 2.0) if self.intervals else last_s
        trace = self.watcher.trace(self.board.start_s - 1.0, shown_s) if shown_s is not None else None
        return Shared(
            self.device.name, self.device.uuid, self.device.simulated, jobs, self.comparison, self.decision,
            self.verdict, self.plan.bound, board,  # type: ignore[arg-type]
            self.mode, self.memory.together, total, self.idle_w, self.watched,
            tuple(dict.fromkeys(self.notes)), spans, trace,
        )

    # the first epoch, as EaCO watches it, and the rest

    def _watch(self) -> None:
        """Until each job has ended an epoch beside the others, or the bound is broken for sure; then the
        newcomer is stopped.
        """
        everyone = tuple(range(len(self.children)))
        began_s = from_s = self.clock()
        if self.decision == "do not share" and self._too_slow():
            self._break(f"{self.labels[-1]} came last: {self.verdict}")
            return
        while all(child.running for child in self.children):
            self._tick(())
            now_s = self.clock()
            if now_s - from_s >= self.plan.seconds:
                self.intervals.append(Interval(everyone, from_s, now_s))
                from_s = now_s
                late = self._too_slow()
                if late:
                    self._judge(last=True)
                    # all that was watched together may hide what has changed lately
                    if self.decision != "do not share":
                        self.decision, self.verdict = "do not share", f"{late}; run them one after the other"
                    self._break(late)
                    return
            if any(self._silent_s(job) is not None for job in everyone):
                break
            if now_s - began_s >= self.plan.watch_s or all(
                self._epoch_ended(job, began_s) for job in everyone
            ):
                self._judge(last=True)
                held = "the bound held"
                if self.decision == "do not share":
                    held = (
                        f"{self.verdict}; {self.labels[-1]} goes on, as no job is beyond the bound with "
                        f"{100 * SURE:g} % certainty"
                    )
                lasted = format_duration(now_s - began_s)
                self.watched = (
                    f"watched for {lasted} after the measurement, as long as the first epoch is looked at: "
                    f"{held}"
                )
                self.say(self.watched)
                return
        self.watched = (
            f"the first epoch was watched for {format_duration(self.clock() - began_s)}, until not all jobs "
            "were there any more"
        )
        self._judge(last=True)

    def _epoch_ended(self, job: int, since_s: float) -> bool:
        phases = self.children[job].phases_s()
        return any(
            kind in ("epoch", "evaluation") and float(self.watcher.at(end)) > since_s
            for kind, _, end in phases
        )

    def _too_slow(self) -> str:
        """Who is beyond the bound, for sure although it is looked at often: in what was watched last,
        which shows a change, or in all.
        """
        self.watcher.settled()
        everyone = tuple(range(len(self.children)))
        try:
            alone = [pooled(self._stages((job,))) for job in everyone]
            stages = [self.watcher.stage(self.intervals[-1]), pooled(self._stages(everyone))]
        except MeasurementError:
            return ""
        for stage in stages:
            with contextlib.suppress(MeasurementError):
                found = compare(alone, stage, self.idle_w or 0.0, level=SURE)
                for label, each in zip(self.labels, found.slowdown, strict=True):
                    if each.low > self.plan.bound:
                        more, most = 100 * (each.value - 1), 100 * (self.plan.bound - 1)
                        return (
                            f"{label} took {more:.0f} % longer than alone in the first epoch, beyond "
                            f"{most:.0f} %"
                        )
        return ""

    def _break(self, why: str) -> None:
        """Take the newcomer off the GPU at a safe point."""
        newcomer = len(self.children) - 1
        child = self.children[newcomer]
        if callable(self.plan.on_break):
            self.watched = f"{why}; left to the function given as on_break"
            self.plan.on_break(self._shared(), child.label)
            self.say(self.watched)
            return
        point = self._safe_point(newcomer)
        self.left_out.add(newcomer)
        if self.plan.on_break == "pause":
            try:
                child.pause()
                self.watched = (
                    f"{why}; {child.label} was paused {point} and goes on when the others have ended"
                )
            except CannotPause as error:
                self.watched = f"{why}; {error}, and was left alone"
        else:
            child.ask_to_stop()
            self.watched = f"{why}; {child.label} was asked to end {point}"
        self.say(self.watched)

    def _safe_point(self, job: int) -> str:
        """Wait for the end of an evaluation, checkpoint or epoch if the job tells of such, else of an
        iteration.
        """
        child = self.children[job]
        phases = [each for each in child.phases_s() if each[0] in SAFE_POINTS]
        until = time.monotonic() + (SAFE_S if phases else 5.0)
        have, steps = len(phases), child.count()
        while child.running and time.monotonic() < until:
            now = [each for each in child.phases_s() if each[0] in SAFE_POINTS]
            if len(now) > have:
                return f"at the end of its {now[-1][0]}"
            if not have and child.count() > steps:
                return "at the end of an iteration"
            time.sleep(TICK_S)
        return (
            f"after {SAFE_S:g} s without the end of an epoch or a checkpoint" if have
            else "at once: it makes no marks"
        )

    def _see_to_the_end(self) -> None:
        """Until every job has ended. A newcomer that was paused, or that was not begun, goes on when the
        others have ended.
        """
        asked = time.monotonic()
        while any(child.running or not child.started for child in self.children):
            time.sleep(REST_S)
            for job, child in enumerate(self.children):
                if not child.running and child.started and job not in self.told:
                    self._tell_end(job)
                elif child.running and child.stopped_by_us and time.monotonic() - asked > self.plan.grace_s:
                    self.notes += stop_all([child], grace_s=self.plan.grace_s / 4)
                elif (
                    child.running and not child.paused and job not in self.silent
                    and (silent_s := self._silent_s(job)) is not None
                ):
                    self._leave_alone(job, silent_s)
            waiting = [
                child for child in self.children if (child.paused and child.running) or not child.started
            ]
            if waiting and not any(child.running and not child.paused for child in self.children):
                self.say(f"{waiting[0].label} {'goes on' if waiting[0].started else 'starts'}")
                waiting[0].resume() if waiting[0].started else waiting[0].start()
        for job, child in enumerate(self.children):
            if child.started and job not in self.told:
                self._tell_end(job)

    def _tell_end(self, job: int) -> None:
        self.told.add(job)
        child = self.children[job]
        outcome = child.outcome()
        if outcome not in ("ok", "stopped"):
            said = f": {short(child.tail())}" if child.tail() else ""
            self.notes.append(f"{child.label} ended ({outcome}, status {child.status}){said}")
            self.say(self.notes[-1])


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
