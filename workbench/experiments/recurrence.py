"""One attempt of a recurring job: measured, its power limit set or profiled, stopped in time, reported."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Protocol

import numpy as np

from .. import _html
from ..device.lease import Lease
from ..errors import DeviceError, StoreError, Suggesting, UsageError, checked
from ..logbook.store import Store
from ..measurement import marks
from ..measurement.meter import Meter
from ..measurement.session import keep
from ..records import Measurement, Setting, Window
from ..search.batch_size.policy import Progress
from ..search.clocks.power_profile import PowerProfile
from ..search.earlier import EarlierCurve
from ..search.objective import Time
from .evidence import known_runs, observe
from .history.attempts import Attempt, Profile
from .history.study import JobStudy
from .power_profiling import OnlinePowerProfiler, PowerLimitSetter
from .trial import out_of_memory

SETTLED_S = 2.0  # after a moment, what its energy is reported to be changes no more


class JobContext(Protocol):
    """The interface of a job to its recurrences; `RecurringJob` is one."""

    label: str
    meter: Meter
    study: JobStudy
    notes: list[str]
    higher_is_better: bool
    warm_start: bool


class JobRun(Suggesting):
    """One attempt of a job: a context manager that measures it and knows when to stop it.

    Attributes:
        batch_size: To train with.
        reached: Whether it has reached its target.
        stop_reason: Why it is to be stopped, where it is.
        notes: What else there is to report: limits that could not be set, profiles that were cut short.
        measurement: Of the whole attempt, profiling included, when it has ended.
    """

    def __init__(self, job: JobContext, attempt: Attempt) -> None:
        self.job, self.attempt = job, attempt
        self.batch_size, self.reason, self.purpose = attempt.batch_size, attempt.reason, attempt.purpose
        self.entered = self.reached = False
        self.stop_reason = ""
        self.notes: list[str] = []
        self.metric: float | None = None
        self.measurement: Measurement | None = None
        self.epochs = 0.0
        self._steps, self._first_epoch_steps = 0, 0
        self._reported: bool | None = None
        self._meter = job.meter
        self._window: Window | None = None
        self._lease = Lease(self._meter.devices)
        self._limiter = PowerLimitSetter(self._lease)
        self._profiling: OnlinePowerProfiler | None = None
        self._settled = (0.0, 0.0)  # a moment that is long past, and the energy up to it

    @property
    def power_limit_w(self) -> float | None:
        """The limit that is active through this run; None where the run leaves it alone."""
        return self._limiter.limit_w

    @property
    def profile(self) -> PowerProfile | None:
        """The profile of limits that was made in this run."""
        return self._profiling.profile if self._profiling else None

    def __repr__(self) -> str:
        state = "not begun" * (not self.entered) or self.stop_reason or f"{self.epochs:g} epochs"
        return f"attempt of {self.job.label} at batch size {self.batch_size}: {state}"

    def _repr_html_(self) -> str:
        known = {
            "batch_size": self.batch_size, "power_limit_w": self.power_limit_w, "reason": self.reason,
            "epochs": self.epochs, "metric": self.metric, "reached": self.reached,
            "stop_reason": self.stop_reason, "notes": self.notes, "measurement": self.measurement,
        }
        return _html.facts(f"{self.purpose.capitalize()} of {self.job.label}", known)

    def __enter__(self) -> JobRun:
        if self.entered:
            raise UsageError("this attempt has run already; ask the job for another: job.recurrence()")
        self.entered = True
        self._notebook = _Steps(self._meter, self._on_step)
        try:
            self._window = self._meter.open(f"{self.job.label} {self.batch_size}")
            self._settled = (self._window.start_s, 0.0)
            self._begin_limits()
        except BaseException:
            self.notes += self._lease.release()
            self.job.study.end(self.attempt, state="interrupted")
            raise
        marks.attach(self._notebook)
        return self

    def step(self) -> None:
        """Mark the end of an iteration, as `workbench.step()` does."""
        self._inside("step")
        self._notebook.step()

    def _inside(self, name: str) -> None:
        if not self.entered:
            raise UsageError(f"run.{name}() must be called inside of `with run:`")

    @checked
    def report(self, metric: float | None = None) -> None:
        """Report the end of an epoch, with this value of the validation metric.

        Raises:
            UsageError: a metric that is no number.
        """
        self._inside("report")
        if metric is not None and math.isnan(metric):
            raise UsageError(
                "run.report(nan): the metric must be a number; leave it out, or end the run when training "
                "has "
                "diverged"
            )
        self.epochs += 1
        if not self._first_epoch_steps:
            self._first_epoch_steps = self._steps
        if self._profiling is not None:
            self._profiling.epoch()
        if metric is not None:
            self._take(float(metric))
        time_s, energy_j = self._spent()
        with self._stored():
            if not self.reached and self.purpose == "run":
                cost = float(self.job.study.objective.cost(time_s, energy_j))
                why = self.job.study.watch(self.attempt, Progress(self.epochs, cost))
                self.stop_reason = self.stop_reason or why
            self.attempt = self.job.study.update(
                self.attempt, epochs=self.epochs, time_s=time_s, energy_j=energy_j,
                metric=_finite(self.metric),
            )

    def should_stop(self) -> bool:
        """Whether to leave the training loop: the target is reached, it is not worth it, a slice is done."""
        if self.purpose == "slice" and (self._profiling is None or self._profiling.done):
            self.stop_reason = self.stop_reason or "the slice is done"
        return self.reached or bool(self.stop_reason)

    @checked
    def finish(self, *, reached: bool, metric: float | None = None) -> None:
        """Say how the run ended. Without this, or a target that the metric reaches, it counts as failed.

        Raises:
            UsageError: a metric that is no number.
        """
        if metric is not None:
            if math.isnan(metric):
                raise UsageError("the metric is NaN; report a number, or reached=False without one")
            self.metric = float(metric)
        self._reported = reached
        self.reached = reached

    def __exit__(self, kind: object, error: BaseException | None, *trace: object) -> None:
        marks.detach(self._notebook)
        assert self._window is not None
        try:
            if self._profiling is not None:
                self._profiling.end()
        except Exception as problem:  # a GPU that is gone must not hide why the training ended
            self.notes.append(str(problem))
        finally:
            if self._limiter.refused and self._profiling is not None:
                note = f"the power limit stays as it is, and only one is known: {self._limiter.refused}"
                self.notes.append(note)
                if note not in self.job.notes:
                    self.job.notes.append(note)
                    warnings.warn(note, RuntimeWarning, stacklevel=2)
            window = self._meter.close(self._window)
            self.notes += self._lease.release()
        failed = "interrupted" if isinstance(error, KeyboardInterrupt) else "error"
        measurement = self._meter.measure(window, outcome="ok" if error is None else failed)
        self.measurement = replace(measurement, batch_size=self.batch_size)
        with contextlib.suppress(Exception):  # it is in the history all the same
            keep(self.measurement, window, self._meter, Store(), kind="recurring job")
        self._end(error)

    # limits

    def _begin_limits(self) -> None:
        limits = self.job.study.space.power_limits_w
        wanted = self.attempt.power_limit_w
        if not limits:
            self.notes += self.job.notes
            return
        if wanted is not None and self.purpose == "run":
            try:
                self._limiter.set(wanted)
            except DeviceError as error:
                self._limiter.refused = str(error)
            if self._limiter.refused:
                self.notes.append(
                    f"the run goes on without its power limit of {wanted:g} W: {self._limiter.refused}"
                )
            return
        among = limits if wanted is None else (wanted,)
        label, size = self.job.label, self.batch_size
        same: list[EarlierCurve] = []
        if self.job.warm_start and (devices := self._meter.devices):
            same = known_runs(label, devices[0], batch_size=size, besides="a recurring job")

        def make() -> PowerProfile:
            return PowerProfile(
                among, self.job.study.objective, gpus=len(self._meter.devices), same=same,
            )

        self._profiling = OnlinePowerProfiler(self._meter, self._limiter, make)
        if known := self._profiling.profile.known:
            self.reason = "; ".join(filter(None, (self.reason, known)))
            self.attempt = self.job.study.update(self.attempt, reason=self.reason)

    # how it goes

    def _on_step(self) -> None:
        self._steps += 1
        if self._profiling is not None:
            self._profiling.step()

    def _take(self, metric: float) -> None:
        """Note the metric of the epoch that has ended."""
        self.metric, target = metric, self.job.study.space.target
        if target is None:
            return
        sign = 1.0 if self.job.higher_is_better else -1.0
        if sign * (metric - target) >= 0:
            self.reached = self._reported is not False

    def _spent(self) -> tuple[float, float]:
        """Time (s) and energy (J) since the start, to decide by; of the trace only what is new is fetched."""
        assert self._window is not None
        meter, (settled_s, settled_j) = self._meter, self._settled
        if meter.recorder is None:
            measured = meter.measure(meter.close(self._window, sync=False, keep_open=True), settle=False)
            return measured.time_s, measured.energy_j or 0.0
        now_s = max(meter.clock(), settled_s)
        past_s = max(settled_s, now_s - SETTLED_S)
        past_j, new_j = np.nan_to_num(meter.energies([settled_s, past_s, now_s]).energy_j).tolist()
        self._settled = (past_s, settled_j + past_j)
        return now_s - self._window.start_s, settled_j + past_j + new_j

    @contextlib.contextmanager
    def _stored(self) -> Iterator[None]:
        """Note that the history cannot be read or written now; the training goes on."""
        try:
            yield
        except StoreError as error:
            if (note := f"the history could not be reached while the job ran: {error}") not in self.notes:
                self.notes.append(note)

    # the end

    def _end(self, error: BaseException | None) -> None:
        assert self.measurement is not None
        time_s, energy_j = self.measurement.time_s, self.measurement.energy_j
        measured = energy_j is not None or isinstance(self.job.study.objective, Time)
        if not measured:
            self.notes.append(
                "the energy of this run could not be measured; the history has it as interrupted, which does "
                "not count against its batch size"
            )
        energy_j = energy_j or 0.0
        profiled = self._profiling
        p_time_s, p_energy_j = (profiled.time_s, profiled.energy_j) if profiled else (0.0, 0.0)
        state = self._state(error)
        self.reached = state == "reached"
        if not measured and state != "crashed":
            state = "interrupted"
        epochs = self.epochs or (1.0 if state in ("reached", "failed") else 0.0)
        with self._stored():
            self.attempt = self.job.study.end(
                self.attempt, state=state, epochs=epochs, power_limit_w=self._limiter.limit_w,
                time_s=max(time_s - p_time_s, 0.0), energy_j=max(energy_j - p_energy_j, 0.0),
                profile_time_s=p_time_s, profile_energy_j=p_energy_j,
                profile=self._profiled(epochs, time_s - p_time_s, energy_j - p_energy_j)
                if state != "crashed" or profiled else (),
                iterations_per_epoch=self._iterations_per_epoch(), metric=_finite(self.metric),
                oom=error is not None and out_of_memory(error),
                reason=self.stop_reason
                or (f"{type(error).__name__}: {error}"[:200] if error is not None else self.reason),
            )
            self._keep()
        if profiled is not None and not profiled.done:
            self.notes.append("the profile of power limits was not finished")

    def _keep(self) -> None:
        """What an epoch takes at each power limit, for tuned cells and sweeps of this label."""
        costs = {
            Setting(power_limit_w=limit_w): (epoch_s, epoch_s * power_w)
            for limit_w, epoch_s, power_w in self.attempt.profile if limit_w > 0
        }
        if costs:
            gpu = self._meter.devices[0]
            observe("a recurring job", self.job.label, gpu, costs, unit="epoch", batch_size=self.batch_size)

    def _state(self, error: BaseException | None) -> str:
        if error is not None:
            return "crashed" if isinstance(error, Exception) else "interrupted"
        if self.purpose == "slice":
            return "stopped"
        if self.reached:
            return "reached"
        if self.stop_reason and self.epochs < self.job.study.space.max_epochs:
            return "stopped"
        return "failed"

    def _iterations_per_epoch(self) -> float | None:
        if self._first_epoch_steps:
            return float(self._first_epoch_steps)
        if self._profiling is not None and not self._profiling.by_epoch:
            # Of a run that saw no epoch: samples of an epoch are the same at every batch size.
            known = [
                a.iterations_per_epoch * a.batch_size for a in self.job.study.attempts
                if a.iterations_per_epoch
            ]
            return sorted(known)[len(known) // 2] / self.batch_size if known else None
        return None

    def _profiled(
        self, epochs: float, time_s: float, energy_j: float
    ) -> Profile:
        """(limit, seconds, watts) of an epoch at each limit that is known now."""
        profiling = self._profiling
        limit_w = self._limiter.limit_w
        if profiling is None or not profiling.profile.measured:
            settable = self._limiter.refused == "" and self.job.study.space.power_limits_w
            if self.epochs < 1 or time_s <= 0 or settable:
                return ()
            return ((self._limit_found() or 0.0, time_s / epochs, energy_j / time_s),)
        each = 1.0 if profiling.by_epoch else self._iterations_per_epoch()
        if each is None:
            return ()
        frame = profiling.profile.frame()
        if self.purpose == "slice":
            frame = frame.filter(frame["measured"])
        rest = epochs - (profiling.steps / each if not profiling.by_epoch else 0.0)
        longer, hungrier = 1.0, 1.0
        if not profiling.by_epoch and rest > 0.5 and limit_w is not None and time_s > 0:
            # An epoch is more than its iterations: evaluation, checkpoints, waiting.
            at = min(frame.iter_rows(named=True), key=lambda row: abs(row["limit_w"] - limit_w))
            longer = time_s / rest / (at["iteration_s"] * each)
            hungrier = energy_j / time_s / at["power_w"]
        return tuple(
            (limit, iteration_s * each * longer, power_w * hungrier)
            for limit, iteration_s, power_w in frame.select("limit_w", "iteration_s", "power_w").iter_rows()
        )

    def _limit_found(self) -> float | None:
        """The limit that there is (W); None where it is not reported."""
        try:
            return self._meter.devices[0].setting().power_limit_w if self._meter.devices else None
        except DeviceError:
            return None


class _Steps(marks.MarkRecorder):
    """Takes note of iterations as any open window does, and passes each on."""

    def __init__(self, meter: Meter, on_step: Callable[[], None]) -> None:
        super().__init__(meter.clock, (device.uuid for device in meter.devices))
        self._on_step = on_step

    def step(self) -> None:
        self._on_step()


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
