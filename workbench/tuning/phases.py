"""The states of a tuner: each exists only while it is true, and returns the next one.

    Waiting -> Detecting -> Baseline -> Searching <-> Trying
                   ^                       |  ^
                   |                       v  |
                Retuning <------------- Holding -> Watching <-> Checking

`step` never waits: it reads the clock and the record, does at most one short thing, and returns
the state that is true then, most often itself. `Interrupted` stands for any of them while others use the GPUs
or these are idle. Each state that has a baseline may go to `Retuning`. `Finished` is the last.
"""

from __future__ import annotations

import math
from functools import partial

from ..errors import DeviceError, DeviceHeld, GpuLost, NotPermitted, UsageError
from ..experiments.evidence import known_runs
from ..experiments.iteration_sources import MarkedIterations, Rate, Trace, guessed
from ..experiments.probe import Probe, Reading
from ..measurement.meter import Meter
from ..records import Setting
from ..search.clocks.base import Done
from ..search.clocks.posterior import SettingPosterior
from ..search.space import SettingSpace, space_of
from .accounts import Counted, Stretch
from .change_detection import IDLE_S, busy_gpus
from .detect_iterations import DetectedIterations, IterationDetector
from .gpus import TunedGpus
from .models import Forecast
from .options import TuningRequest
from .params import PARAMS
from .record import TuningRecord
from .tuned_job import TunedJob, Workplace


class TunerPhase:
    """A state of the tuner.

    Attributes:
        state: Its name, as `TuningView.state`.
        stops_idle: Whether nothing can be done in it while the GPUs are idle.
        work: The GPUs that are tuned; None before any has worked.
        job: The job that is tuned; None before it has a baseline.
    """

    state = ""
    stops_idle = True
    work: Workplace | None = None
    job: TunedJob | None = None

    def step(self, now_s: float) -> TunerPhase:
        """Do the next short thing; returns the state that is true now."""
        return self

    def leave(self) -> TunerPhase:
        """Give up the current step; its time and energy are booked. Returns the state to go on from."""
        return self

    def resume(self, now_s: float, *, crowded: bool) -> TunerPhase:
        """Go on after an interruption, in which others may have used the GPUs."""
        return self

    def conclude(self, now_s: float) -> None:
        """Put everything that was measured until now on the account."""

    def close(self) -> None:
        """Release its sources."""


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
        if recorder is None:
            raise UsageError("the GPU's power is not recorded")
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
        return Detecting(Workplace(self._request, log, self._marked, gpus), now_s)


# until there is a baseline


class Detecting(TunerPhase):
    """Look for the iterations of what runs now, at the default setting.

    Args:
        work: The GPUs.
        from_s: What came before belongs to another job.
        failures: Baselines that could not be measured.
        only_rate: Look for no iterations, take a rate.
    """

    state = "detect"
    stops_idle = False
    work: Workplace

    def __init__(self, work: Workplace, from_s: float, failures: int = 0, *, only_rate: bool = False) -> None:
        self.work, self._failures = work, failures
        gpus, marked = work.gpus, work.marked
        self._finder = IterationDetector(gpus.recorder, gpus.devices, marked.marks, marked.counter, from_s)
        self._finder.only_rate = only_rate
        work.log.ledger.drop()

    def step(self, now_s: float) -> TunerPhase:
        found, log = self._finder.observe(now_s), self.work.log
        log.text = f"looking for the iterations: {self._finder.text}"
        if found is None:
            return self
        self.close()
        log.found = found
        log.note(found.text)
        log.ledger.begin(found.from_s)
        return Baseline(self.work, found, self._failures)

    def resume(self, now_s: float, *, crowded: bool) -> TunerPhase:
        if not crowded:
            return self
        self.close()
        return Detecting(self.work, now_s)

    def close(self) -> None:
        self._finder.end()


class Baseline(TunerPhase):
    """Measure what an iteration takes at the default setting, and read what a model predicts from."""

    state = "baseline"
    work: Workplace

    def __init__(self, work: Workplace, found: DetectedIterations, failures: int) -> None:
        self.work, self._found, self._failures = work, found, failures + 1  # if this is one
        self._forecast = Forecast(work.gpus.devices[0], work.gpus.recorder, work.request.model)
        for text in self._forecast.notes:
            work.log.remark(text)
        self._guess = guessed(found.iteration_s, PARAMS.known_sd)
        self._probe = Probe(
            "baseline", work.gpus.meter, found.source, Setting(), found.from_s, found.iterations,
            found.least_s, self._guess,
        )
        self._probe.since_s = found.from_s
        work.log.text = "measuring what an iteration takes at the default setting"

    def step(self, now_s: float) -> TunerPhase:
        probe, work, tries = self._probe, self.work, PARAMS.tries
        probe.advance(now_s)
        if not probe.over:
            return self
        work.probed(probe, "the default setting")
        if probe.reading is not None:
            return Searching(self._job(probe.reading, now_s))
        if self._failures >= 2 * tries:
            raise UsageError(f"its iterations could not be measured: {probe.failed}")
        traced = self._found.source.name == "power"
        only_rate = self._failures >= tries or (self._failures >= 2 and traced)
        return Detecting(work, now_s, self._failures, only_rate=only_rate)

    def _job(self, reading: Reading, now_s: float) -> TunedJob:
        """The job that a baseline is of: one from before, or a new one."""
        work, log, book, request = self.work, self.work.log, self.work.log.accounts, self.work.request
        known = self._known(reading)
        # Of a rate nothing but the energy is known, which wanders where a sensor aliases.
        if known == len(book.accounts) - 1 or (isinstance(self._found.source, Rate) and log.retuned):
            work.false_alarms += 1
            work.level.false_alarm()
        if known >= 0:
            book.again(known)
            log.note("this is the earlier job again: its measurements count")
        else:
            book.open(self._new_belief(reading))
        account = book.accounts[-1]
        if (account.belief.objective, account.belief.max_slowdown) != (work.objective, request.max_slowdown):
            account.belief = account.belief.again(work.objective, request.max_slowdown)
        job = TunedJob(work, self._found, reading)
        job.cut(now_s, "baseline", reading)
        if job.chosen != Setting():
            saving = f"{100 * (1 - job.choice.energy_ratio):.0f} % less energy"
            log.text = f"expected best: {work.gpus.name(job.chosen)}, {saving}"
        return job

    def _known(self, reading: Reading) -> int:
        """Number of the workload on the account that this baseline is of; -1 for a new one."""
        most = PARAMS.same_job + 2.0 * reading.energy_sd
        pairs = enumerate(self.work.log.accounts.accounts)
        return next((number for number, each in pairs if reading.off(*each.baseline()[::2]) < most), -1)

    def _new_belief(self, reading: Reading) -> SettingPosterior:
        work, gpus, request = self.work, self.work.gpus, self.work.request
        space, source = gpus.space, self._found.source
        prior, why = self._forecast.prediction(space, reading.power_w / len(gpus.devices))
        if why:
            work.log.remark(why)
        if prior is not None:
            work.log.model = str(prior.source)
            work.log.note(f"predicted by {prior.source}")
        if isinstance(source, Rate):
            space = _space_by_rate(space, source)
        baseline = reading.iteration_s, reading.iteration_j
        belief = SettingPosterior(
            request.search, space, work.objective, request.max_slowdown, prior=prior,
            gpus=len(gpus.devices), counter_update_s=gpus.update_s, wait_share=gpus.wait_share(reading),
            same=known_runs(request.label, gpus.devices[0], baseline=baseline) if request.warm_start else (),
        )
        if belief.known:
            work.log.note(belief.known)
        return belief

    def resume(self, now_s: float, *, crowded: bool) -> TunerPhase:
        if not crowded and self.work.log.source in ("marks", "counter"):  # no iteration contains a pause
            self.work.log.ledger.begin(now_s)
            return self
        return Detecting(self.work, now_s)  # what was measured meanwhile is not of this job alone

    def conclude(self, now_s: float) -> None:
        log, gpus, source = self.work.log, self.work.gpus, self._found.source
        log.ledger.cut(now_s, "probe", source, gpus.current, self._guess)
        log.count_all(gpus.meter, source)


def _space_by_rate(space: SettingSpace, rate: Rate) -> SettingSpace:
    """Settings whose cost in time a rate can report: a lock's clock is known, a limit's is only sampled."""
    pairs = zip(space.settings, space.mu, strict=True)
    settings = [each for each, mu in pairs if mu >= 1.0 or rate.sees_memory]
    locks = [each for each in settings if each.power_limit_w is None]
    if len(locks) > 1:
        settings = locks if space.reference in locks else [*locks, space.reference]
    return space_of(settings, space.reference, max_power_limit_w=space.max_power_limit_w)


# with a baseline


class JobPhase(TunerPhase):
    """A state with a job that is tuned.

    Attributes:
        kind: Of the stretch that is under way, as the account has it.
    """

    kind = "probe"
    job: TunedJob

    def __init__(self, job: TunedJob) -> None:
        self.job, self.work = job, job.work

    def observe(self, now_s: float) -> TunerPhase:
        """Learn from new records; returns the next state."""
        self.job.count(now_s)
        why = self.job.level_changed(now_s)
        return Retuning(self.job, now_s, why) if why else self

    def resume(self, now_s: float, *, crowded: bool) -> TunerPhase:
        self.job.log.ledger.begin(now_s)
        return self

    def conclude(self, now_s: float) -> None:
        self.job.cut(now_s, self.kind)
        self.job.log.count_all(self.job.gpus.meter, self.job.source)


class Searching(JobPhase):
    """Ask the search for the next setting to try, until it is done."""

    state = "search"

    def step(self, now_s: float) -> TunerPhase:
        job, request, gpus = self.job, self.job.work.request, self.job.gpus
        if request.paused:
            if gpus.current != job.safe:
                job.cut(now_s, "probe")
                gpus.put(job.safe)
            job.cut_where_long(now_s, "paused")
            return self
        test = job.test.next()
        step = test or job.belief.next()
        now_s = job.log.clock()  # thinking takes a moment
        if isinstance(step, Done):
            job.log.note(step.reason)
            request.once = False
            job.choose()
            return Holding(job)
        setting = step.setting
        job.cut(now_s, "probe")
        try:
            gpus.put(setting)
        except (GpuLost, NotPermitted, DeviceHeld):
            raise
        except DeviceError as error:
            job.failures += 1
            if job.failures >= 2 * PARAMS.tries and len(job.belief.measured()) < 2:
                raise NotPermitted(f"no setting takes effect: {error}") from error
            job.belief.cannot(setting, str(error))
            job.log.note(f"{gpus.name(setting)} cannot be set: {error}")
            return self
        breaks = partial(job.belief.search.breaks_bound, job.belief.named(setting))
        probe = Probe(
            "probe", gpus.meter, job.source, gpus.own(setting), now_s, step.iterations, step.seconds,
            job.expected(setting), None if test else breaks, settled_s=gpus.settled_s,
        )
        job.log.text = f"probing {gpus.name(setting)}: {step.reason}"
        return Trying(job, probe)


class Trying(JobPhase):
    """Probe a setting."""

    state = "search"

    def __init__(self, job: TunedJob, probe: Probe) -> None:
        super().__init__(job)
        self._probe = probe

    def leave(self) -> TunerPhase:
        """The same setting is wanted again."""
        self.job.cut(self.job.log.clock(), "probe")
        return Searching(self.job)

    def step(self, now_s: float) -> TunerPhase:
        job, probe = self.job, self._probe
        probe.advance(now_s)
        if not probe.over:
            if probe.early and job.gpus.current == probe.setting:
                # It is beyond the bound for sure, and left immediately; what it saw is read afterwards.
                job.log.note(f"{job.gpus.name(probe.setting)} is too slow: ended early")
                job.cut(now_s, "probe", probe.count)
                self._flee()
            return self
        reading, guess = probe.reading, probe.guess
        if reading is not None:
            odd = PARAMS.odd
            if not guess.least_s / odd < reading.iteration_s < odd * guess.most_s:
                found_s = f"{reading.iteration_s:.3g} s, not about {guess.seconds:.3g} s"
                probe.failed = f"an iteration takes {found_s}"
        if probe.failed or reading is None:
            return self._failed(now_s)
        job.failures = 0
        job.read(reading)
        job.cut(now_s, "probe", None if probe.early else reading)
        job.choose()
        job.work.probed(probe, job.log.text)
        return self._next()

    def _flee(self) -> None:
        """Go from a setting that is too slow to the best that is known to be allowed."""
        safe = self.job.safe
        self.job.gpus.put(safe if safe != self._probe.setting else Setting())

    def _failed(self, now_s: float) -> TunerPhase:
        job, probe = self.job, self._probe
        job.work.probed(probe, "")
        job.failures += 1
        # Once iterations were seen at another setting too, a failure is that of its own setting.
        if job.failures >= PARAMS.tests and len(job.belief.measured()) < 2:
            job.distrust("it was not visible at lower clocks")
        if probe.setting != Setting():
            if probe.guess.most_s > 1.5 * probe.guess.seconds:
                job.belief.too_slow(probe.setting, probe.failed)
            elif job.log.probes.failed.count(probe.setting) >= 2:
                job.belief.cannot(probe.setting, probe.failed)
            self._flee()
        if job.failures >= 2 * PARAMS.tries:
            return Retuning(job, now_s, probe.failed)
        return self._next()

    def _next(self) -> TunerPhase:
        """Where one probe was asked for, it was made, also where nothing came of it."""
        request = self.job.work.request
        if request.once:
            request.once, request.paused = False, True
        return Searching(self.job)


class Holding(JobPhase):
    """Put the GPUs to the best setting; while paused, to the best that was measured."""

    state = "hold"
    kind = "held"

    def step(self, now_s: float) -> TunerPhase:
        job, log, gpus = self.job, self.job.log, self.job.gpus
        wanted = job.safe if job.work.request.paused else job.chosen
        if wanted != gpus.current:
            job.cut(now_s, "held" if log.settled_s is not None else "probe")
            gpus.put(wanted)
        if job.check_s < now_s:
            job.check_s = now_s + job.check_every_s
        named = job.belief.named(wanted)
        if named != log.held:
            log.note(f"held at {gpus.name(wanted)}")
        log.settle(named, now_s)
        log.text = f"holding {gpus.name(wanted)}"
        return Watching(job, now_s)


class Watching(JobPhase):
    """Hold a setting, and look whether the job is still the one that was tuned.

    The search learns the stretches at the held setting, in portions that double in length. The tuner goes to
    another setting where that is better, or where the held one no longer keeps the bound. It waits twice as
    long before each such decision, up to `make_up_s`: else it would follow the scatter of single stretches.
    """

    state = "watch"
    kind = "held"

    def __init__(self, job: TunedJob, now_s: float) -> None:
        super().__init__(job)
        self._observed_s = now_s
        self._portion: Stretch | None = None  # that the search has not learned yet
        self._least_s = 0.0  # of a portion

    def leave(self) -> TunerPhase:
        return Holding(self.job)

    def step(self, now_s: float) -> TunerPhase:
        job, request = self.job, self.job.work.request
        if not job.marked and job.work.marked.going(now_s):
            return Retuning(job, now_s, "the training reports its iterations now")
        if not job.cut_where_long(now_s, "held"):
            return self
        job.gpus.check()
        held = not request.paused and job.pinned is None and job.gpus.current != Setting()
        if held and not job.watch.suspicious and job.rebalance(now_s):
            return Watching(job, now_s)
        if held and request.recheck and now_s >= job.check_s and not job.watch.suspicious:
            return Checking(job, now_s)
        missing_s = now_s - self._observed_s
        longest_s = PARAMS.lost_s + 3 * PARAMS.stretch_iterations * job.expected(Setting()).most_s
        if missing_s > longest_s:
            return Retuning(job, now_s, f"its iterations have not been seen for {missing_s:.0f} s")
        return self

    def observe(self, now_s: float) -> TunerPhase:
        """Learn from stretches at the held setting, and see whether they are of the same job."""
        job = self.job
        mine = [each for each in job.count(now_s) if each.stretch.setting == job.gpus.current]
        if why := job.level_changed(now_s):
            return Retuning(job, now_s, why)
        if not mine:
            return self
        longest = max(mine, key=lambda each: each.stretch.iterations)
        self._observed_s = now_s
        if why := self._another(longest):
            return Retuning(job, now_s, why)
        if job.watch.suspicious:
            return self
        stretch, run = longest
        job.pace *= run.iteration_s / job.expected(stretch.setting).seconds
        if job.watch.calm:
            job.log.believe()
        self._learn(stretch)  # at the default setting too: everything is relative to it
        if now_s < job.decide_s:
            return self
        job.decide_every_s = min(2.0 * job.decide_every_s, PARAMS.make_up_s)
        job.decide_s = now_s + job.decide_every_s
        return _reconsider(job) or self

    def _another(self, counted: Counted) -> str:
        """Why a stretch is of another job; empty where it is not."""
        job, (stretch, run) = self.job, counted
        if isinstance(job.source, Trace):
            job.source.learn(run.start_s, run.end_s, run.iteration_s)
        # A rate has no lengths that could change, and one of two iterations may contain a checkpoint.
        if isinstance(job.source, Rate) or stretch.iterations <= 2:
            return ""
        usual = job.found.variation / math.sqrt(stretch.iterations)
        ratio, ratio_sd, energy_ratio = job.belief.ratios(stretch.setting)
        time_sd = math.hypot(max(run.sd_s / run.iteration_s, usual), ratio_sd)
        scatter = run.sd_s * math.sqrt(stretch.iterations) / run.iteration_s if job.marked else 0.0
        return job.watch.feed(
            stretch.iteration_s, time_sd, stretch.power_w, stretch.iterations, scatter,
            (ratio, energy_ratio / ratio),
        )

    def _learn(self, stretch: Stretch) -> None:
        """Add a stretch to the portion, which the search learns where it is long enough."""
        job = self.job
        portion = self._portion = stretch if self._portion is None else self._portion + stretch
        if portion.iterations < 4 or portion.time_s < self._least_s:
            return
        whole = round(portion.iterations)
        scale = whole / portion.iterations
        job.belief.tell(
            stretch.setting, whole, scale * portion.time_s, scale * portion.energy_j,
            scale * portion.energy_uncertainty_j,
            portion.length_sd * portion.iteration_s * math.sqrt(whole),
        )
        self._portion, self._least_s = None, 2.0 * portion.time_s


def _reconsider(job: TunedJob) -> TunerPhase | None:
    """Where to go from the held setting by what is known now; None to stay."""
    if job.pinned is not None or job.work.request.paused:
        return None
    after = job.reconsider()
    return Holding(job) if after == "hold" else Searching(job) if after else None


class Checking(JobPhase):
    """Measure the default setting again for a moment, so that the saving is measured, not assumed."""

    state = "watch"
    kind = "re-check"

    def __init__(self, job: TunedJob, now_s: float) -> None:
        super().__init__(job)
        job.gpus.put(Setting())
        guess = guessed(job.baseline.iteration_s * job.pace, PARAMS.known_sd)
        self._probe = Probe(
            "re-check", job.gpus.meter, job.source, Setting(), now_s,
            max(job.found.iterations // 2, 4), PARAMS.stretch_s, guess, settled_s=job.gpus.settled_s,
        )
        job.log.text = "measuring the default setting again, for a moment"

    def leave(self) -> TunerPhase:
        self.job.cut(self.job.log.clock(), "re-check")
        return Holding(self.job)

    def step(self, now_s: float) -> TunerPhase:
        job, probe, work = self.job, self._probe, self.job.work
        probe.advance(now_s)
        if not probe.over:
            return self
        work.probed(probe, "the default setting again")
        job.check_every_s = min(2.0 * job.check_every_s, PARAMS.rarest_check_s)
        reading, before = probe.reading, job.baseline
        if reading is not None:
            error = math.hypot(reading.energy_sd, before.energy_sd)
            other = 2.0 * PARAMS.same_job + 3.0 * error
            off = reading.off(before.iteration_s, before.iteration_j)
            if not isinstance(job.source, Rate) and off > other:
                what = f"{reading.iteration_s:.3g} s and {reading.iteration_j:.4g} J"
                return Retuning(job, now_s, f"at the default setting an iteration takes {what} now")
            job.read(reading)
        job.cut(now_s, "re-check", reading)
        return _reconsider(job) or Holding(job)


class Retuning(JobPhase):
    """The job has changed, for the reason in `why`: wait until the default setting is active again."""

    state = "re-tune"
    stops_idle = False

    def __init__(self, job: TunedJob, now_s: float, why: str) -> None:
        super().__init__(job)
        log = job.log
        log.note(f"the job has changed: {why}")
        log.text = f"the job has changed: {why}; looking again"
        log.end_workload()
        log.retuned += 1
        job.gpus.put(Setting())

    def observe(self, now_s: float) -> TunerPhase:
        return self

    def resume(self, now_s: float, *, crowded: bool) -> TunerPhase:
        return self

    def step(self, now_s: float) -> TunerPhase:
        settled_s = self.job.gpus.settled_s(now_s)
        return self if settled_s is None or now_s < settled_s else Detecting(self.job.work, now_s)


# at any time


class Interrupted(TunerPhase):
    """Others use the GPUs, or these are idle: the current step waits, and nothing is counted.

    Attributes:
        text: Why, one sentence.
        crowded: Whether others have used the GPUs, which are at the default setting then.
    """

    work: Workplace

    def __init__(self, phase: TunerPhase, work: Workplace) -> None:
        self.work, self.text, self.crowded = work, "", False
        self.go_on_with(phase)
        work.log.ledger.drop()

    def go_on_with(self, phase: TunerPhase) -> None:
        """Set the next state."""
        self.phase = phase
        self.state, self.job = phase.state, phase.job

    def step(self, now_s: float) -> TunerPhase:
        work, before = self.work, self.text
        if work.company.observe(now_s):
            self.text = f"{work.company.text}: tuning waits until they are gone"
            if not self.crowded:
                self.crowded = True
                work.log.note(work.company.text)
                work.gpus.put(Setting())
            return self
        if self.phase.stops_idle and work.idle(now_s):
            self.text = "the GPU is idle: tuning waits until it works again"
            if self.text != before:
                work.log.note("the GPU is idle")
            return self
        work.log.note("the GPU is this job's alone again" if self.crowded else "the GPU works again")
        return self.phase.resume(now_s, crowded=self.crowded)

    def leave(self) -> TunerPhase:
        return self.phase

    def conclude(self, now_s: float) -> None:
        self.phase.conclude(now_s)

    def close(self) -> None:
        self.phase.close()


class Finished(TunerPhase):
    """The tuner has ended: "done" where it was reported to, "refused" where it could not go on.

    Attributes:
        was: The state that it was in then; "refused" where it was refused.
        reason: Why it was refused.
    """

    def __init__(self, last: TunerPhase, reason: str = "") -> None:
        self.state, self.reason = "refused" if reason else "done", reason
        self.was = "refused" if reason else last.state
        self.work, self.job = last.work, last.job

    @property
    def text(self) -> str:
        """One sentence: how it ended."""
        return f"not tuned: {self.reason}" if self.reason else "tuning has ended"
