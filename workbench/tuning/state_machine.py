"""The tuner of a running job, one short step at a time.

    wait -> detect (clocks under load) -> baseline, search and hold, as the method decides
    done       it was stopped, or its job has ended
    refused    it cannot be done here; the reason is reported, and the GPU is as it was

The `Tuner` owns the lock, the commands and the present phase (`phases`).

`Tuner.advance` never waits for anything. After any failure the GPU is restored, and the job continues.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ..errors import Transient, UsageError, WorkbenchError
from ..experiments.evidence import keep
from ..experiments.iteration_sources import MarkedIterations
from ..measurement.meter import Meter
from ..search.objective import Objective, check_objective, check_slowdown
from .options import (
    TuningRequest,
    objective_name,
    objective_text,
)
from .phases import Waiting
from .record import TuningRecord
from .results import TuningResult, TuningView
from .tuned_job import TunedJob
from .tuner_phase import Finished, Interrupted, TunerPhase

PACE_S = 0.1  # between two calls of `advance`
LONGEST_PAUSE_S = 10.0  # without work: a checkpoint takes less, and belongs to the job
BUSY_REFUSALS = 20  # of the driver in a row that may pass

_running: list[Tuner] = []
_latest: Tuner | None = None


class Tuner:
    """Finds and holds the best setting for the job on the GPUs of a meter.

    Args:
        meter: What measures them; its recorder must be running.
        options: Of `TuningRequest`.
        no_gpu: Why the meter has no GPUs, where it has none and that is known.
        own_thread: The job on these GPUs trains in the thread that makes the tuner, so that steps of other
            threads with GPUs of their own are not its steps.

    Attributes:
        log: What happened so far.
        phase: Its current activity.

    Raises:
        UsageError: a bound, objective, search or knob that makes no sense.
    """

    def __init__(
        self, meter: Meter, *, no_gpu: str = "", own_thread: bool = False, **options: Any
    ) -> None:
        request = self.request = TuningRequest(**options)
        self._lock = threading.RLock()
        self._meter, self.clock, self.log = meter, meter.clock, TuningRecord(meter.clock)
        self._marked = MarkedIterations(
            meter.clock, request.progress, request.uuids if own_thread else None
        )
        self._result: TuningResult | None = None
        ledger, recorder = self.log.ledger, meter.recorder
        self._refusals = 0  # of the driver, in a row
        self.phase: TunerPhase = Waiting(meter, request, self.log, self._marked)
        global _latest
        _latest = self
        if recorder is None:
            nothing = no_gpu or "there is no GPU here whose power is recorded"
            self.refuse("the GPU's power is not recorded" if meter.devices else nothing)
        else:
            self._holds = [recorder.hold(lambda: ledger.oldest_s), recorder.hold(recorder.clock)]
            _running.append(self)
            chosen = [each for each in meter.devices if request.uuids is None or each.uuid in request.uuids]
            if missing := next(filter(None, (each.missing_rights() for each in chosen)), ""):
                self.refuse(missing)  # before the work begins, not after
        self._view = self._observe()

    # what is known from outside

    @property
    def state(self) -> str:
        """As `TuningView.state`."""
        return self.phase.state

    @property
    def ended(self) -> bool:
        """Whether it is done, or was refused."""
        return isinstance(self.phase, Finished)

    @property
    def refused(self) -> str:
        """Why it could not be done; empty where it could."""
        return self.phase.reason if isinstance(self.phase, Finished) else ""

    @property
    def text(self) -> str:
        """One sentence: the current and the next step."""
        phase = self.phase
        if isinstance(phase, (Finished, Interrupted)):
            return phase.text
        if self.request.paused:
            gpus = phase.work.gpus if phase.work is not None else None
            return f"paused at {'the default setting' if gpus is None else gpus.name(gpus.current)}"
        return self.log.text

    def works_on(self, uuid: str) -> bool:
        """Whether it is at work on a GPU, or waits for any GPU to work."""
        if self.phase.work is not None:
            return uuid in {device.uuid for device in self.phase.work.gpus.devices}
        return self.request.uuids is None or uuid in self.request.uuids

    def view(self) -> TuningView:
        """The complete current view; during a step, the view before it."""
        if self._lock.acquire(timeout=0.02):
            try:
                self._view = self._observe()
            finally:
                self._lock.release()
        return self._view

    def _observe(self) -> TuningView:
        work, job, request, log = self.phase.work, self.phase.job, self.request, self.log
        devices = work.gpus.devices if work is not None else self._meter.devices
        known: dict[str, Any] = {}
        if work is not None:
            known |= {"reference": work.gpus.space.reference, "current": work.gpus.current}
        if devices:
            device = devices[0]
            known |= {"gpu": device.name, "uuid": device.uuid, "index": device.index,
                      "simulated": bool(device.simulated)}
        if job is not None and job.method.blocks:
            method = job.method
            row = job.pinned if job.pinned is not None else method.held()
            if self.ended and log.held is not None:
                row = method.rungs.settings.index(log.held)
            known |= {"choice": method.about(row), "why": method.sentence(row), "belief": method.frame(),
                      "current": method.rungs.settings[job.row]}
            if method.counted:
                period_s, sd = method.default[0], math.sqrt(method.effects()[0].level_var)
                known |= {"period_s": period_s, "period_uncertainty_s": 1.96 * sd * period_s}
        elif log.found is not None:
            known["period_s"] = log.found.iteration_s
        spent_s, spent_j = log.ledger.spent
        return TuningView(
            state=self.state, text=self.text, paused=request.paused, label=request.label,
            over=request.over, objective=objective_name(request.objective),
            max_slowdown=request.max_slowdown, refused=self.refused, saved=log.ledger.saved(),
            trials=log.trials, period_source=log.source,
            elapsed_s=log.elapsed_s if self._result is None else self._result.elapsed_s,
            iterations=round(log.iterations), spent_s=spent_s, spent_j=spent_j,
            settled_s=log.settled_s, settled_iterations=log.settled_iterations,
            held_since_s=log.held_since_s, events=tuple(log.events),
            model=log.model, **known,
        )

    # the loop

    @property
    def pace_s(self) -> float:
        """How often `advance` wants to be called, on the device's clock."""
        quiet = isinstance(self.phase, (Waiting, Interrupted, Finished)) or self.state == "hold"
        return (2.0 if quiet else 1.0) * PACE_S

    def advance(self) -> str:
        """Do the next short thing; returns the state. Never raises."""
        with self._lock:
            if isinstance(self.phase, Finished):
                return self.state
            try:
                now_s = self.clock()
                if failed := self._marked.sample(now_s):
                    self.log.remark(failed)
                self.phase = self._step(now_s)
                self._refusals = 0
            except Transient as error:
                self._refusals += 1
                if self._refusals > BUSY_REFUSALS:
                    self.refuse(str(error))
            except WorkbenchError as error:
                self.refuse(str(error))
            except Exception as error:  # whatever it is, the training must not suffer from it
                self.refuse(f"tuning failed ({type(error).__name__}: {error})")
            return self.state

    def _step(self, now_s: float) -> TunerPhase:
        phase, work = self.phase, self.phase.work
        if work is not None:
            work.gpus.settle()
            if isinstance(phase, Interrupted):
                return phase.step(now_s)
            idle_s = work.idle_s(now_s) if phase.stops_idle else 0.0
            if idle_s > LONGEST_PAUSE_S:
                phase.cut(now_s - idle_s)
            if work.company.observe(now_s) or idle_s > LONGEST_PAUSE_S:
                return Interrupted(phase.leave(), work).step(now_s)
        return phase.step(now_s)

    # the end

    def end(self) -> TuningResult:
        """Put everything back as it was found; returns how it went. From any state, any number of times."""
        with self._lock:
            if self._result is not None and not self.log.not_restored:
                return self._result
            if not isinstance(self.phase, Finished):
                try:
                    self.phase.conclude(self.clock())
                except Exception as error:  # a GPU that is gone must not hide how it went
                    self.log.note(str(error))
                self._finish()
            self._release()  # first: whatever stops the writing, the GPU is restored
            self._keep()
            done = self._result
            self._result = self._conclude() if done is None else replace(done,
                not_restored=tuple(self.log.not_restored))
            return self._result

    @property
    def result(self) -> TuningResult:
        """Result of the tuning; while it goes on, as if it ended now."""
        return self._result if self._result is not None else self._conclude()

    def _conclude(self) -> TuningResult:
        state = self.phase.was if isinstance(self.phase, Finished) else self.state
        return self.log.result(state, self.refused, any(device.simulated for device in self._meter.devices))

    def _keep(self) -> None:
        """What was measured, for the next run of this job; the training does not suffer where that fails."""
        job = self.phase.job
        if job is None or self._result is not None:
            return
        with contextlib.suppress(Exception):
            keep(self.request.label, job.gpus.devices[0], [
                costs for each in self.log.ledger.accounts if (costs := job.costs(each.method)) is not None
            ])

    def refuse(self, reason: str) -> None:
        """Give up for a reason: the GPU is as it was, and the job goes on."""
        self._finish(reason)
        self.log.note(f"not tuned: {reason}")
        self._release()

    def _finish(self, reason: str = "") -> None:
        self.phase.close()
        self.phase = Finished(self.phase, reason)

    def _release(self) -> None:
        """Restore the GPU; nothing is watched any more."""
        if self.phase.work is not None:
            self.log.not_restored = self.phase.work.gpus.restore() or self.log.not_restored
        self._marked.marks.end()
        self.log.ledger.pause()  # and with it what the recorder keeps for it
        if self in _running:
            _running.remove(self)
            self._holds.pop()  # samples are no longer needed

    # what a person may ask

    def pause(self) -> None:
        """Try nothing more for now. The best measured setting so far is held, or what was found."""
        with self._commanded("pause"):
            self.request.paused = True
            self._go(self.phase.leave())
            self.log.note("paused")

    def resume(self) -> None:
        """Go on after `pause` or `hold_here`."""
        with self._commanded("resume") as job:
            self.request.paused, self.request.once = False, False
            if job is not None:
                job.pinned = None
            self._go(self.phase.leave())
            self.log.note("resumed")

    def step_once(self) -> None:
        """Make one trial, and pause again."""
        with self._commanded("probe") as job:
            self.request.paused, self.request.once = False, True
            if job is not None:
                job.pinned = None
            self._go(self.phase.leave())

    def hold_here(self) -> None:
        """Search no further, and hold the best setting within the bound that was measured so far.

        Raises:
            UsageError: nothing was measured yet.
        """
        with self._commanded("hold a setting") as job:
            if job is None or not job.method.measured:
                raise UsageError("there is nothing to hold now: the default setting is not measured yet")
            job.pinned = job.method.best_measured()
            self.request.paused = False
            self._go(self.phase.leave())
            self.log.note(f"the search was ended by hand at {job.name(job.pinned)}")

    def stop(self) -> None:
        """End tuning and restore the GPU, while the job goes on."""
        with self._lock:
            if not self.ended:
                self.log.note("stopped by hand")
                self.end()

    def change(
        self, *, objective: str | Objective | None = None, max_slowdown: float | str | None = "same"
    ) -> None:
        """Another objective or bound; everything measured so far counts for it.

        Args:
            objective: None leaves it.
            max_slowdown: "same" leaves it, None is no bound.

        Raises:
            UsageError: one that makes no sense.
        """
        with self._commanded("change its objective") as job:
            request = self.request
            new_objective = check_objective(objective) if objective is not None else request.objective
            new_bound = request.max_slowdown
            if not isinstance(max_slowdown, str):
                new_bound = check_slowdown(max_slowdown)
            if (new_objective, new_bound) == (request.objective, request.max_slowdown):
                return
            request.objective, request.max_slowdown = new_objective, new_bound
            bound = "no bound" if new_bound is None else f"at most {100 * new_bound:g} % slower"
            self.log.note(f"now {objective_text(new_objective)}, {bound}")
            if job is not None:
                job.method.objective, job.method.max_slowdown = job.work.objective, new_bound
                self._go(self.phase.leave())

    @contextlib.contextmanager
    def _commanded(self, what: str) -> Iterator[TunedJob | None]:
        """The job to which a command applies; None where none has a baseline.

        Raises:
            UsageError: the tuning has ended.
        """
        with self._lock:
            if self.ended:
                raise UsageError(f"this tuning has ended ({self.text}); it cannot {what} any more")
            yield self.phase.job

    def _go(self, phase: TunerPhase) -> None:
        """Go on with a phase, now or after an interruption."""
        if isinstance(self.phase, Interrupted):
            self.phase.go_on_with(phase)
        else:
            self.phase = phase


def running() -> tuple[Tuner, ...]:
    """The tuners of this process that have not ended, newest last."""
    return tuple(_running)


def latest() -> Tuner | None:
    """The tuner that was begun last in this process, also when it has ended."""
    return _latest
