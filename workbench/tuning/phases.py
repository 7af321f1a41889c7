"""The states of a tuner: each exists only while it is true, and returns the next one.

    Waiting -> Looking -> Measuring (default, trial, held: one block after the other)
                  ^           |
                  +-----------+  the work has changed

`step` never waits: it reads the clock and the record, does at most one short thing, and returns the state
that is true then, most often itself. `Interrupted` stands for any of them while others use the GPUs or these
are idle. `Finished` is the last.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ..errors import DeviceError, DeviceHeld, GpuLost, NotPermitted
from ..experiments.iteration_sources import Marked, MarkedIterations
from ..experiments.stretch_energy import READ_S
from ..measurement.meter import Meter
from ..records import Setting
from ..search.clocks.descent import BLOCK_COUNT, BLOCK_S, HOLD_SHARE, Plan
from .blocks import BlockMeter
from .change_detection import IDLE_S, busy_gpus, mean_power_w
from .detect_iterations import IterationDetector
from .gpus import TunedGpus
from .models import Forecast
from .options import TuningRequest
from .record import TuningRecord
from .tuned_job import TRIES, TunedJob, Workplace
from .tuner_phase import TunerPhase

if TYPE_CHECKING:
    from ..search.surrogates.predictor import Prediction

LOAD_S = 2.0  # of clocks under load at the default setting
CHECK_S = 5.0  # between two looks at limits that another program may have set
LONGEST_BLOCK_S = 600.0  # at most: samples of a block are kept until it ends
UNSURE_S = 15.0  # of a block without iterations, after an odd one: a checkpoint takes seconds
STATES = {"default": "baseline", "trial": "search", "held": "hold", "clocks": "hold"}


class Waiting(TunerPhase):
    """No GPU of the meter has worked for long enough yet."""

    state = "wait"

    def __init__(
        self, meter: Meter, request: TuningRequest, log: TuningRecord, marked: MarkedIterations
    ) -> None:
        self._meter, self._request, self._log, self._marked = meter, request, log, marked
        self._busy_s = math.inf  # since when any of the GPUs works

    def step(self, now_s: float) -> TunerPhase:
        """Take the GPUs that work, once they do."""
        uuids, recorder, log = self._request.uuids, self._meter.recorder, self._log
        assert recorder is not None
        among = [device for device in self._meter.devices if uuids is None or device.uuid in uuids]
        problems = [problem for device in among if (problem := recorder.error(device.uuid))]
        among = [device for device in among if not recorder.error(device.uuid)]
        if problems and not among:  # another one of the machine may be lost
            raise GpuLost(problems[0])
        busy = busy_gpus(recorder, among, now_s)
        if not busy and self._marked.marks.total >= 3 and now_s - log.begun_s > IDLE_S:
            busy = tuple(among)  # the training states that it goes on
        if not busy:
            log.text = "waiting for the GPU to work"
            return self
        self._busy_s = min(self._busy_s, now_s)
        if len(busy) < len(among) and now_s - self._busy_s < 2.0 * IDLE_S:
            log.text = "waiting for other GPUs that the job may use"
            return self  # a job on several does not begin on all in one moment
        gpus = TunedGpus(busy, self._meter, recorder, self._request, log)
        return Looking(Workplace(self._request, log, self._marked, gpus), now_s)


class Looking(TunerPhase):
    """Read the clocks under load at the default setting.

    Args:
        work: The GPUs.
        from_s: What came before belongs to other work.
    """

    state = "detect"
    work: Workplace

    def __init__(self, work: Workplace, from_s: float) -> None:
        self.work, self._from_s = work, from_s
        self._settled_s: float | None = None
        work.log.ledger.pause()
        work.log.text = "reading the clocks under load"
        self._forecast: Forecast | None = None
        if work.request.search == "gpoeo":
            self._forecast = Forecast(work.gpus.devices[0], work.gpus.recorder, work.request.model)
            for text in self._forecast.notes:
                work.log.remark(text)

    def step(self, now_s: float) -> TunerPhase:
        gpus = self.work.gpus
        if self._settled_s is None:
            settled_s = gpus.settled_s(now_s)
            if settled_s is None:
                return self
            self._settled_s = max(settled_s, self._from_s)
        if now_s - self._settled_s < LOAD_S:
            return self
        job = TunedJob(self.work, self._settled_s, now_s, self._prediction(now_s))
        self.work.log.ledger.open(job.method, self._settled_s)
        return Measuring(job, now_s)

    def _prediction(self, now_s: float) -> Prediction | None:
        """What a model of this GPU predicts, for a method that uses one."""
        gpus, log = self.work.gpus, self.work.log
        power_w = mean_power_w(gpus.recorder.rows(gpus.devices[0].uuid, now_s - LOAD_S, now_s))
        if self._forecast is None or power_w is None:
            return None
        prior, why = self._forecast.prediction(gpus.space, power_w)
        if why:
            log.remark(why)
        if prior is not None:
            log.model = str(prior.source)
            log.note(f"predicted by {prior.source}")
        return prior

    def resume(self, now_s: float, *, crowded: bool) -> TunerPhase:
        return Looking(self.work, now_s)


class Measuring(TunerPhase):
    """One block after the other, as the method decides; until iterations are known, they are looked for."""

    job: TunedJob
    work: Workplace

    def __init__(self, job: TunedJob, now_s: float) -> None:
        self.job, self.work = job, job.work
        self.state = "detect"
        self._meter: BlockMeter | None = None
        self._before = job.row  # of the block before this one
        self._read_default, self._planned = True, False
        self._check_s = now_s
        gpus, marked = job.gpus, job.work.marked
        self._finder: IterationDetector | None = None
        if job.source is None:
            self._finder = IterationDetector(
                gpus.recorder, gpus.devices, marked.marks, marked.counter, now_s - LOAD_S
            )

    # one step

    def step(self, now_s: float) -> TunerPhase:
        job, log = self.job, self.job.log
        log.ledger.count(job.gpus.meter, now_s)
        if now_s >= self._check_s + CHECK_S:
            self._check_s = now_s
            job.gpus.check()
        if self._read_default and now_s >= job.default_s[1] + READ_S:
            self._read_default = False
            job.read_default()
        if self._finder is not None and self._find(now_s):
            return self
        if self._meter is None:
            self._next(now_s)
            return self
        meter = self._meter
        arrived_s = meter.begin_s
        meter.advance(now_s, idle=self.work.idle_s(now_s) > 0.0)
        if arrived_s is None and meter.begin_s is not None:
            self._arrived(meter.begin_s)
        if not meter.over:
            return self
        return self._done(meter, now_s)

    def _find(self, now_s: float) -> bool:
        """Look for iterations; returns whether they were found just now. Marks may come at any time."""
        finder, job = self._finder, self.job
        assert finder is not None
        begun = self._meter is not None and self._meter.begin_s is not None
        found = finder.observe(now_s, trace=begun)
        if finder.given_up and not job.distrusted:
            job.log.remark(finder.given_up)
            job.by_clocks()
        if found is None:
            return False
        self._end_block(now_s)
        job.count_by(found)
        finder.end()
        self._finder = None
        return True

    def _next(self, now_s: float) -> None:
        """Put the GPUs to the next setting."""
        job, gpus, log = self.job, self.job.gpus, self.job.log
        plan = self._plan(now_s)
        setting = job.setting(plan.row)
        before = job.row
        if setting != gpus.current:
            self._cut(now_s)
            try:
                gpus.put(setting)
            except (GpuLost, NotPermitted, DeviceHeld):
                raise
            except DeviceError as error:
                job.failures += 1
                reference = job.method.rungs.reference
                if job.failures >= 2 * TRIES and {*job.method.visited()} <= {reference}:
                    raise NotPermitted(f"no setting takes effect: {error}") from error
                job.method.bar(plan.row, str(error))
                log.note(f"{gpus.name(setting)} cannot be set: {error}")
                return
            job.balance.moved(now_s)
        self._before = before
        self._meter = job.begin(plan, now_s)
        self.state = "detect" if plan.kind == "default" and not job.method.counted else STATES[plan.kind]
        job.planned(plan, now_s)

    def _plan(self, now_s: float) -> Plan:
        job, request, method = self.job, self.job.work.request, self.job.method
        at_s = now_s - job.begun_s
        with np.errstate(invalid="ignore"):  # costs of settings that cannot be set are infinite
            plan = method.next(at_s)
        seconds = min(max(BLOCK_S, HOLD_SHARE * at_s), LONGEST_BLOCK_S)
        if plan.seconds > LONGEST_BLOCK_S:
            plan = replace(plan, seconds=LONGEST_BLOCK_S)
        if plan.kind == "clocks" and self._finder is not None and not self._finder.given_up and self._planned:
            plan = replace(plan, row=job.row)  # a period at two settings is two
        self._planned = True
        if plan.kind == "clocks" and method.doubtful:
            plan = replace(plan, seconds=UNSURE_S)
        elif job.failures and plan.kind == "held":
            plan = replace(plan, seconds=BLOCK_S)
        if request.paused or job.pinned is not None:
            row = job.pinned if job.pinned is not None else method.best_measured()
            why = "paused" if request.paused else "chosen by a person"
            return Plan(row, seconds, BLOCK_COUNT, "held", why)
        if request.once and plan.kind not in ("trial", "default"):
            request.once, request.paused = False, True
            job.log.note("there is nothing more to try")
        return plan

    def _arrived(self, begin_s: float) -> None:
        """The setting is active: the time until then was still at the one before."""
        log, job, finder = self.job.log, self.job, self._finder
        if finder is not None and self._before != job.row:
            finder.restart(begin_s)  # the period at another clock is another
        log.ledger.cut(begin_s - job.gpus.shows_s, self._before, self._kind)

    @property
    def _kind(self) -> str:
        return self._meter.plan.kind if self._meter is not None else "held"

    def _cut(self, now_s: float) -> None:
        self.job.log.ledger.cut(now_s, self.job.row, self._kind)

    def _done(self, meter: BlockMeter, now_s: float) -> TunerPhase:
        """A block is over."""
        job, log, request = self.job, self.job.log, self.job.work.request
        self._end_block(now_s)
        job.gpus.check()
        self._check_s = now_s
        if meter.other_unit is not None and job.work.counts_work:
            # Once: a job that reports its work now and then is counted in iterations.
            job.work.counts_work = bool(meter.other_unit.name)
            return self._again(now_s, meter.failed)
        if meter.block is None:
            job.probed(meter, now_s)
            job.failed(meter.failed)
            if job.failures >= 2 * TRIES and meter.plan.row != job.method.rungs.reference:
                job.method.bar(meter.plan.row, meter.failed)
        else:
            changed = job.tell(meter.block, meter.unseen)
            job.probed(meter, now_s)
            if changed:
                log.retuned += 1
                return self._again(now_s, "the work has changed")
            if not job.method.doubtful:
                log.ledger.believe()
        if request.once and meter.plan.kind == "trial":
            request.once, request.paused = False, True
        if self._finder is None and not isinstance(job.source, Marked) and job.work.marked.going(now_s):
            return self._again(now_s, "the training reports its iterations now")
        if meter.plan.kind == "held" and not request.paused and job.pinned is None:
            job.rebalance(now_s)
        return self

    def _end_block(self, now_s: float) -> None:
        self._cut(now_s)
        self._meter = None

    def _again(self, now_s: float, why: str) -> TunerPhase:
        """Begin again with other work, or with iterations that are known only now."""
        job, log = self.job, self.job.log
        log.note(why)
        self.close()
        self._meter = None
        job.work.earlier_s = job.method.spent_s()
        log.ledger.pause()
        job.gpus.put(Setting())
        return Looking(job.work, now_s)

    # from outside

    def cut(self, to_s: float) -> None:
        log = self.job.log
        self._cut(to_s)
        log.ledger.count(self.job.gpus.meter, math.inf)
        if not self.job.method.doubtful:
            log.ledger.believe()
        log.ledger.cursor_s = math.nan

    def leave(self) -> TunerPhase:
        self._end_block(self.job.log.clock())
        return self

    def resume(self, now_s: float, *, crowded: bool) -> TunerPhase:
        self._meter = None
        self.job.log.ledger.cursor_s = now_s
        return self

    def conclude(self, now_s: float) -> None:
        self.cut(now_s)
        if not self.job.method.counted and not self.job.distrusted:
            self.job.by_clocks()  # the job has ended before iterations were known

    def close(self) -> None:
        if self._finder is not None:
            self._finder.end()
            self._finder = None
