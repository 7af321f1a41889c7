"""The life of a tuner: `Waiting` for GPUs that work, `AtWork` on them, `Finished`."""

from __future__ import annotations

import math

from ..device.protocol import Device
from ..errors import GpuLost, UsageError
from ..measurement.meter import Meter
from ..records import Setting
from .change_detection import PARAMS as WATCH_PARAMS
from .change_detection import ForeignProcessMonitor, IdleMonitor, PowerLevelDetector, busy_gpus
from .gpus import TunedGpus
from .iteration_sources import MarkedIterations, guessed
from .options import TuningRequest
from .phases import (
    Baseline,
    Checking,
    Detecting,
    Holding,
    Predicting,
    Profiling,
    Retuning,
    Searching,
    Trying,
    TunerPhase,
    Watching,
)
from .record import TuningRecord
from .tuned_job import TunedJob, Workplace


class Waiting:
    """No GPU of the meter has worked for long enough yet."""

    state = "wait"

    def __init__(
        self, meter: Meter, request: TuningRequest, log: TuningRecord, marked: MarkedIterations
    ) -> None:
        self._meter, self._request, self.log, self._marked = meter, request, log, marked
        self._busy: tuple[Device, ...] = ()
        self._busy_s = self._any_busy_s = math.nan  # since when just these GPUs work, since when any does

    def step(self, now_s: float) -> Waiting | AtWork:
        """Take the GPUs that work, once they do."""
        uuids, recorder = self._request.uuids, self._meter.recorder
        if recorder is None:
            raise UsageError("the GPU's power is not recorded")
        among = [device for device in self._meter.devices if uuids is None or device.uuid in uuids]
        problems = [problem for device in among if (problem := recorder.error(device.uuid))]
        among = [device for device in among if not recorder.error(device.uuid)]
        if problems and not among:  # another one of the machine may be lost
            raise GpuLost(problems[0])
        busy = busy_gpus(recorder, among, now_s)
        if not busy and self._marked.marks.total >= 3 and now_s - self.log.begun_s > WATCH_PARAMS.idle_s:
            busy = tuple(among)  # the training says that it goes on
        if not busy:
            self.log.text = "waiting for the GPU to work"
            return self
        if len(busy) < len(among) and self._others_may_begin(busy, now_s):
            return self
        gpus = TunedGpus(busy, self._meter, recorder, self._request, self.log)
        return AtWork(self._request, self.log, self._marked, gpus)

    def _others_may_begin(self, busy: tuple[Device, ...], now_s: float) -> bool:
        """Whether other GPUs may still begin: a job on several does not begin on all in one moment."""
        if math.isnan(self._any_busy_s):
            self._any_busy_s = now_s
        if busy != self._busy:
            self._busy, self._busy_s = busy, now_s
        self.log.text = "waiting for other GPUs that the job may use"
        return (
            now_s - self._busy_s < 2.0 * WATCH_PARAMS.idle_s
            and now_s - self._any_busy_s < 6.0 * WATCH_PARAMS.idle_s
        )


class AtWork:
    """At work on some GPUs: `phase` says on what. Waits while others use them too, and while they are idle.

    Attributes:
        crowded, idle: Whether it waits, and why.
    """

    def __init__(
        self, request: TuningRequest, log: TuningRecord, marked: MarkedIterations, gpus: TunedGpus
    ) -> None:
        uuids = [device.uuid for device in gpus.devices]
        self._request, self.log, self.gpus = request, log, gpus
        self._work = Workplace(request, log, marked, gpus, PowerLevelDetector(gpus.recorder, uuids))
        self._company = ForeignProcessMonitor(gpus.devices)
        self._vitals = IdleMonitor(gpus.recorder, uuids)
        self.crowded = self.idle = False
        self.phase: TunerPhase = Detecting(self._work, log.clock())

    @property
    def state(self) -> str:
        return self.phase.state

    @property
    def job(self) -> TunedJob | None:
        """The job that is tuned; None before it has a baseline."""
        if isinstance(self.phase, (Searching, Trying, Holding, Watching, Checking, Retuning)):
            return self.phase.job
        return None

    def measured(self) -> list[tuple[tuple[float, float], dict[Setting, tuple[float, float]]]]:
        """Baseline (s, J) and settings of each workload that was tuned; none where a rate stood for it."""
        found = self.log.found
        if found is None or found.source.name == "rate":
            return []
        return [
            (account.baseline()[::2], account.belief.measured()) for account in self.log.accounts.accounts
        ]

    @property
    def text(self) -> str:
        """One sentence: what goes on and what is next."""
        if self.crowded:
            return f"{self._company.text}: tuning waits until they are gone"
        if self.idle:
            return "the GPU is idle: tuning waits until it works again"
        if self._request.paused:
            return f"paused at {self.gpus.name(self.gpus.current)}"
        return self.log.text

    def step(self, now_s: float) -> AtWork:
        """Do the next short thing, if nothing keeps it from it."""
        if problem := self.gpus.lost():
            raise GpuLost(problem)
        self.gpus.settle()
        if not self._wait(now_s):
            self._observe(now_s)
            self.phase = self.phase.step(now_s)
            self.gpus.settle()
        return self

    # others on the GPUs, and GPUs at rest

    def _wait(self, now_s: float) -> bool:
        """Whether nothing can be done now: others are on the GPUs, or they are idle."""
        crowded = self._company.observe(now_s)
        self._switch(crowded, self.crowded, self._company.text, "the GPU is this job's alone again", now_s)
        if crowded and not self.crowded:
            self.gpus.put(Setting())
        self.crowded = crowded
        if crowded:
            return True
        self._vitals.observe(now_s)
        looking = isinstance(self.phase, (Detecting, Retuning))
        usual_s = self.log.found.iteration_s if self.log.found is not None else 0.0
        idle = not looking and self._vitals.idle_s > max(WATCH_PARAMS.idle_s, 1.5 * usual_s)
        self._switch(idle, self.idle, "the GPU is idle", "the GPU works again", now_s)
        self.idle = idle
        return idle

    def _switch(self, now: bool, before: bool, begins: str, ends: str, now_s: float) -> None:
        """Stop what is under way where an interruption begins, and go on where it ends."""
        if now and not before:
            self.log.note(begins)
            self._leave_probe()
            self.log.ledger.drop()
        elif before and not now:
            self.log.note(ends)
            self._go_on(now_s)

    def _leave_probe(self) -> None:
        if isinstance(self.phase, (Trying, Checking)):
            self.phase = self.phase.leave()

    def _go_on(self, now_s: float) -> None:
        """After an interruption."""
        phase = self.phase
        early = isinstance(phase, (Profiling, Baseline, Predicting))
        marked = self.log.source in ("marks", "counter")  # no iteration contains a pause
        if (early and (self.crowded or not marked)) or (self.crowded and isinstance(phase, Detecting)):
            self.close()  # what was measured meanwhile is not of this job alone
            self.phase = Detecting(self._work, now_s)
        elif isinstance(phase, Watching):
            job = phase.job
            job.since_s = phase.observed_s = now_s
            if self.crowded or (self.gpus.current != job.chosen and not self._request.paused):
                self.phase = Holding(job)  # a check was cut short
        if early or isinstance(phase, (Searching, Holding, Watching)):
            self.log.ledger.begin(now_s)

    def _observe(self, now_s: float) -> None:
        """Whether what was seen since is of the same job."""
        job = self.job
        if job is None:
            return
        held = self.log.count(self.gpus.meter, job.source, now_s)
        if isinstance(self.phase, Watching):
            self.phase = self.phase.observe(held, now_s)
        going = isinstance(self.phase, (Searching, Trying, Watching, Checking))
        if going and (why := job.level_changed(now_s)):
            self.phase = Retuning(job, now_s, why)

    # what a person may ask

    def pause(self) -> None:
        """Put the GPUs to the best measured setting so far, or to what was found."""
        self._leave_probe()
        if isinstance(self.phase, (Searching, Holding, Watching)):
            job = self.phase.job
            job.cut(self.log.clock(), "probe" if isinstance(self.phase, Searching) else "held")
            self.gpus.put(job.safe)

    def resume(self) -> None:
        """Search on, where a setting was pinned."""
        job = self.job
        if job is not None and job.pinned is not None and not isinstance(self.phase, Retuning):
            job.pinned, self.phase = None, Searching(job)

    def step_once(self) -> None:
        """Search, whatever is held."""
        job = self.job
        if job is not None:
            job.pinned = None
        if isinstance(self.phase, (Holding, Watching, Checking)):
            self._leave_probe()
            self.phase = Searching(self.phase.job)

    def hold_here(self) -> str:
        """Pin the best measured setting so far; returns its name.

        Raises:
            UsageError: there is none.
        """
        job = self.job
        if job is None:
            raise UsageError("there is nothing to hold yet: the default setting is still being measured")
        if isinstance(self.phase, Retuning):
            raise UsageError(
                "there is nothing to hold now: the job has changed, and what was best was that for another "
                "one"
            )
        self._leave_probe()
        job.pinned = job.choice.setting if job.choice.measured else job.belief.space.reference
        self.phase = Holding(job)
        return self.gpus.name(job.pinned)

    def change(self) -> None:
        """The objective or the bound is another."""
        job = self.job
        if job is None or isinstance(self.phase, Retuning):
            return
        self._leave_probe()
        job.change()
        if isinstance(self.phase, (Holding, Watching)) and job.pinned is None:
            self.phase = Searching(job)

    # the end

    def conclude(self) -> None:
        """Put everything that was measured until now on the account."""
        log, phase, now_s = self.log, self.phase, self.log.clock()
        if isinstance(phase, (Profiling, Baseline, Predicting)):
            guess = guessed(phase.found.iteration_s, self._request.params.baseline_sd)
            log.ledger.cut(now_s, "probe", phase.found.source, self.gpus.current, guess)
            log.count_all(self.gpus.meter, phase.found.source)
        elif (job := self.job) is not None:
            searching = isinstance(phase, (Searching, Trying, Retuning))
            job.cut(now_s, "probe" if searching else "held")
            log.count_all(self.gpus.meter, job.source)

    def close(self) -> None:
        """What looks for iterations or reads features ends."""
        if isinstance(self.phase, (Detecting, Baseline, Predicting)):
            self.phase.close()


class Finished:
    """The tuner has ended: "done" where it was told to, "refused" where it could not go on.

    Attributes:
        last: What it was before.
        was: The state that it was in then; "refused" where it was refused.
        reason: Why it was refused.
    """

    def __init__(self, state: str, last: Waiting | AtWork, reason: str = "") -> None:
        self.state, self.last, self.reason = state, last, reason
        self.was = last.state if state == "done" else state

    @property
    def text(self) -> str:
        """One sentence: how it ended."""
        return f"not tuned: {self.reason}" if self.state == "refused" else "tuning has ended"
