"""The states of a tuner at work: each exists only while it is true, and says what comes next.

    Detecting -> Profiling -> Baseline -> Predicting -> Searching <-> Trying
        ^                                                  |  ^
        |                                                  v  |
    Retuning <--- from all that have a baseline --- Holding -> Watching <-> Checking

`step` never waits: it looks at the clock and at what was recorded, does at most one short thing, and returns
the state that is true then, most often itself.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np

from ..errors import DeviceError, DeviceHeld, GpuLost, NotPermitted, Transient, UsageError
from ..experiments.evidence import KnownJob, known_job
from ..records import Setting
from ..search.clocks.base import Done
from ..search.space import SettingSpace, space_of
from .accounts import Counted, Pool, Stretch
from .detect_iterations import DetectedIterations, IterationDetector
from .iteration_sources import Count, Rate, Trace, guessed
from .models import Forecast
from .posterior import SettingPosterior
from .probe import Probe, Reading
from .tuned_job import TunedJob, Workplace


class TunerPhase(Protocol):
    """A state of the tuner; `state` is its name in `results.STATES`."""

    state: str

    def step(self, now_s: float) -> TunerPhase:
        """Do the next short thing; returns the state that is true now."""


# until there is a baseline


class Detecting:
    """Look for the iterations of what runs now, at the default setting.

    Args:
        from_s: What came before belongs to another job.
        failures: Baselines that could not be measured.
        only_rate: Look for no iterations, take a rate.
    """

    state = "detect"

    def __init__(self, work: Workplace, from_s: float, failures: int = 0, *, only_rate: bool = False) -> None:
        self._work, self._failures = work, failures
        gpus, marked = work.gpus, work.marked
        self._finder = IterationDetector(gpus.recorder, gpus.devices, marked.marks, marked.counter, from_s)
        self._finder.only_rate = only_rate
        work.log.ledger.drop()

    def step(self, now_s: float) -> TunerPhase:
        found, log = self._finder.observe(now_s), self._work.log
        log.text = f"looking for the iterations: {self._finder.text}"
        if found is None:
            return self
        self.close()
        log.found = found
        log.note(found.text)
        log.ledger.begin(found.from_s)
        return Profiling(self._work, found, self._failures)

    def close(self) -> None:
        """No more is wanted."""
        self._finder.end()


class Profiling:
    """Begin to read the features of the job, where a model asks for them, and to measure its baseline."""

    state = "features"

    def __init__(self, work: Workplace, found: DetectedIterations, failures: int) -> None:
        self._work, self.found, self._failures = work, found, failures

    def step(self, now_s: float) -> TunerPhase:
        work, found, gpus = self._work, self.found, self._work.gpus
        forecast = Forecast(gpus.devices[0], gpus.recorder, work.request.model)
        for text in forecast.remarks:
            work.log.remark(text)
        guess = guessed(found.iteration_s, work.request.params.baseline_sd)
        probe = Probe(
            "baseline", gpus.meter, found.source, Setting(), found.from_s, found.iterations, found.least_s,
            guess,
        )
        probe.since_s = found.from_s
        work.log.text = "measuring what an iteration takes at the default setting"
        return Baseline(work, found, forecast, probe, self._failures)


class Baseline:
    """Measure what an iteration takes at the default setting."""

    state = "baseline"

    def __init__(
        self, work: Workplace, found: DetectedIterations, forecast: Forecast, probe: Probe, failures: int
    ) -> None:
        self._work, self.found, self._forecast, self._probe = work, found, forecast, probe
        self._failures = failures + 1  # if this is one

    def step(self, now_s: float) -> TunerPhase:
        probe, work, params = self._probe, self._work, self._work.request.params
        probe.advance(now_s)
        if not probe.over:
            return self
        if probe.reading is not None:
            work.probed(probe, "kept", "the default setting")
            return Predicting(work, self.found, self._forecast, probe.reading)
        self.close()
        work.probed(probe, "failed", probe.failed)
        work.failed(probe)
        if self._failures >= 2 * params.failures:
            raise UsageError(f"its iterations could not be measured: {probe.failed}")
        traced = self.found.source.name == "power"
        only_rate = self._failures >= params.failures or (self._failures >= 2 and traced)
        return Detecting(work, now_s, self._failures, only_rate=only_rate)

    def close(self) -> None:
        """No more is wanted."""
        self._forecast.close()


class Predicting:
    """Find out whether the job is one from before, and what a model foretells of it where it is none."""

    state = "predict"

    def __init__(
        self, work: Workplace, found: DetectedIterations, forecast: Forecast, reading: Reading
    ) -> None:
        self._work, self.found, self._forecast, self._reading = work, found, forecast, reading

    def step(self, now_s: float) -> TunerPhase:
        work, reading, rate = self._work, self._reading, isinstance(self.found.source, Rate)
        log, book, request = work.log, work.log.accounts, work.request
        known = self._known()
        alarm = (known is not None and known == len(book.accounts) - 1) or (rate and log.retuned > 0)
        work.false_alarms += alarm
        if known is not None:
            book.again(known)
            log.note("this is the job from before again: what is known of it counts")
            if alarm:
                work.level.false_alarm()
        else:
            work.steering.more = 0
            book.open(self._new_belief())
        self.close()
        account = book.accounts[-1]
        if (account.belief.objective, account.belief.max_slowdown) != (work.objective, request.max_slowdown):
            account.belief = account.belief.again(work.objective, request.max_slowdown)
        job = TunedJob(work, self.found, reading)
        job.cut(now_s, "baseline", reading)
        if job.chosen != Setting():
            saving = f"{100 * (1 - job.choice.energy_ratio):.0f} % less energy"
            log.text = f"expected best: {work.gpus.name(job.chosen)}, {saving}"
        return Searching(job)

    def _known(self) -> int | None:
        """The workload on the account that this baseline is of."""
        # Where a sensor aliases, the energy of a steady job wanders; of a rate nothing else is known.
        reading, work = self._reading, self._work
        wide = 1 + min(work.false_alarms, 2) if isinstance(self.found.source, Rate) else 1
        for number, account in enumerate(work.log.accounts.accounts):
            time_s, _, energy_j = account.baseline()
            if reading.off(time_s, energy_j) < work.request.params.same_job * wide + 2.0 * reading.energy_sd:
                return number
        return None

    def _new_belief(self) -> SettingPosterior:
        work, gpus, request, reading = self._work, self._work.gpus, self._work.request, self._reading
        space, source = gpus.space, self.found.source
        prior, why = self._forecast.prediction(space, reading.power_w / len(gpus.devices))
        if why:
            work.log.remark(why)
        if prior is not None:
            work.log.model = str(prior.source)
            work.log.note(f"predicted by {prior.source}")
        if isinstance(source, Rate):
            space = _space_by_rate(space, source)
        baseline = reading.iteration_s, reading.iteration_j
        known = KnownJob()
        if request.earlier:
            known = known_job(request.label, gpus.devices[0], baseline=baseline)
        belief = SettingPosterior(
            request.search, space, work.objective, request.max_slowdown, prior=prior,
            gpus=len(gpus.devices), update_s=gpus.update_s, wait_share=gpus.wait_share(reading),
            seed=request.seed, same=[*known.same[:3], *known.elsewhere], others=known.others,
        )
        if belief.earlier:
            work.log.note(belief.earlier.text)
        if known.others:
            work.log.note(f"curves of {len(known.others)} other jobs on this GPU are weighed too")
        return belief

    def close(self) -> None:
        """No more is wanted."""
        self._forecast.close()


def _space_by_rate(space: SettingSpace, rate: Rate) -> SettingSpace:
    """Settings whose cost in time a rate can tell: a lock's clock is known, a limit's is only sampled."""
    pairs = zip(space.settings, space.mu, strict=True)
    settings = [each for each, mu in pairs if mu >= 1.0 or rate.sees_memory]
    locks = [each for each in settings if each.power_limit_w is None]
    if len(locks) > 1:
        settings = locks if space.reference in locks else [*locks, space.reference]
    return space_of(settings, space.reference, max_power_limit_w=space.max_power_limit_w)


# the search


class Searching:
    """Ask the search for the next setting to try, until it is done."""

    state = "search"

    def __init__(self, job: TunedJob) -> None:
        self.job = job

    def step(self, now_s: float) -> TunerPhase:
        job, work, gpus = self.job, self.job.work, self.job.gpus
        if work.request.paused:
            # Not one stretch for an hour, and no tuning.
            if now_s - job.log.ledger.cursor_s >= job.stretch_s:
                job.cut(now_s, "paused")
            return self
        test = job.test.next()
        step = test or job.belief.next()
        now_s = job.log.clock()  # thinking takes a moment
        if isinstance(step, Done):
            job.log.note(step.reason)
            work.request.once = False
            return Holding(job)
        setting = step.setting
        job.cut(now_s, "probe")
        try:
            gpus.put(setting)
        except Transient:
            gpus.forgive()  # the search is asked again
            raise
        except (GpuLost, NotPermitted, DeviceHeld):
            raise
        except DeviceError as error:
            gpus.forgive()
            job.belief.cannot(setting, str(error))
            job.log.note(f"{gpus.name(setting)} cannot be set: {error}")
            return self
        search, named = job.belief.search, job.belief.named(setting)

        def breaks(iterations: int, time_s: float) -> bool:
            return search.breaks_bound(named, iterations, time_s)

        probe = Probe(
            "probe", gpus.meter, job.source, gpus.own(setting), now_s, step.iterations, step.seconds,
            job.expected(setting), None if test else breaks, settled_s=gpus.settled_s,
        )
        job.log.text = f"probing {gpus.name(setting)}: {step.reason}"
        return Trying(job, probe)


class Trying:
    """Probe a setting."""

    state = "search"

    def __init__(self, job: TunedJob, probe: Probe) -> None:
        self.job, self.probe = job, probe

    def step(self, now_s: float) -> TunerPhase:
        self.probe.advance(now_s)
        if self.probe.over:
            return self._take(now_s)
        if self.probe.early and self.job.gpus.current == self.probe.setting:
            # It is beyond the bound for sure, and left at once; what it saw is read afterwards.
            self.job.log.note(f"{self.job.gpus.name(self.probe.setting)} is too slow: ended early")
            self.job.cut(now_s, "probe", self.probe.count)
            self._leave()
        return self

    def leave(self) -> Searching:
        """Give the probe up: the same one is wanted again, and what it took is on the account."""
        self.job.cut(self.job.log.clock(), "probe")
        return Searching(self.job)

    def _leave(self) -> None:
        """Away from a setting that is too slow, to the best that is known to be allowed."""
        safe = self.job.safe
        self.job.gpus.put_or_owe(safe if safe != self.probe.setting else Setting())

    def _take(self, now_s: float) -> TunerPhase:
        job, probe, reading, params = self.job, self.probe, self.probe.reading, self.job.params
        if reading is None:
            return self._failed(now_s)
        shortest, longest = params.odd_times
        guess = probe.guess
        most_s = longest * max(guess.most_s, guess.seconds)
        if not shortest * guess.least_s < reading.iteration_s < most_s:
            probe.failed = f"an iteration takes {reading.iteration_s:.3g} s, not about {guess.seconds:.3g} s"
            return self._failed(now_s)
        job.failures = 0
        job.read(reading)
        job.cut(now_s, "probe", None if probe.early else reading)
        job.choose()
        job.work.probed(probe, "ended early" if probe.early else "kept", job.log.text)
        return self._next()

    def _failed(self, now_s: float) -> TunerPhase:
        job, probe = self.job, self.probe
        job.work.probed(probe, "failed", probe.failed)
        job.work.failed(probe)
        job.failures += 1
        if job.failures >= job.params.tests:
            job.distrust("it was not visible at lower clocks")
        if probe.setting != Setting():
            if probe.guess.most_s > 1.5 * probe.guess.seconds:
                job.belief.too_slow(probe.setting, probe.failed)
            elif job.log.probes.failed.count(probe.setting) >= 2:
                job.belief.cannot(probe.setting, probe.failed)
            self._leave()
        if job.failures >= 2 * job.params.failures:
            return Retuning(job, now_s, probe.failed)
        return self._next()

    def _next(self) -> Searching:
        """Where one probe was asked for, it was made, also where nothing came of it."""
        request = self.job.work.request
        if request.once:
            request.once, request.paused = False, True
            self.job.gpus.put_or_owe(self.job.choice.setting)
        return Searching(self.job)


# what is held


class Holding:
    """Put the GPUs to the best setting."""

    state = "hold"

    def __init__(self, job: TunedJob) -> None:
        self.job = job

    def step(self, now_s: float) -> TunerPhase:
        job, log, gpus = self.job, self.job.log, self.job.gpus
        job.choose()
        wanted = job.chosen
        if wanted != gpus.current:
            job.cut(now_s, "held" if log.settled_s is not None else "probe")
            gpus.put(wanted)
        job.since_s = now_s
        if not now_s < job.check_s < math.inf:
            job.check_s = now_s + job.check_every_s
        log.settle(job.belief.named(wanted), now_s)
        log.note(f"held at {gpus.name(wanted)}")
        log.text = f"holding {gpus.name(wanted)}"
        return Watching(job, now_s)


class Watching:
    """Hold a setting, and look whether the job is still the one that was tuned.

    The search is told of the stretches at the held setting, in portions that double in length; where another
    setting is believed to be better by then, or the bound is no longer kept, the tuner goes there.

    Attributes:
        observed_s: When iterations of the job were last observed.
    """

    state = "watch"

    def __init__(self, job: TunedJob, now_s: float) -> None:
        self.job, self.observed_s, self._pool = job, now_s, Pool()

    def step(self, now_s: float) -> TunerPhase:
        job, params, request = self.job, self.job.params, self.job.work.request
        if not job.marked and job.work.marked.going(now_s):
            return Retuning(job, now_s, "the training tells its iterations now")
        cursor_s, long_s = job.log.ledger.cursor_s, job.stretch_s
        if now_s - (job.since_s if math.isnan(cursor_s) else max(cursor_s, job.since_s)) < long_s:
            return self
        job.gpus.check()
        job.cut(now_s, "held")
        due = request.recheck and now_s >= job.check_s and not (request.paused or job.watch.suspicious)
        if due and job.pinned is None and job.gpus.current != Setting():
            return self._check(now_s)
        hold_s = float(np.clip(params.lost_share * (now_s - job.since_s), *params.lost_s)) + 3.0 * long_s
        if now_s - self.observed_s > hold_s:
            why = f"its iterations have not been seen for {now_s - self.observed_s:.0f} s"
            return Retuning(job, now_s, why)
        return self

    def observe(self, held: list[Counted], now_s: float) -> TunerPhase:
        """Learn from stretches at the held setting, and see whether they are of the same job."""
        job = self.job
        mine = [each for each in held if each.stretch.setting == job.gpus.current]
        if not mine:
            return self
        stretch, run = max(mine, key=lambda each: each.stretch.iterations)
        self.observed_s = now_s
        if isinstance(job.source, Trace):
            job.source.learn(run.start_s, run.end_s, run.iteration_s)
        usual = job.found.variation / math.sqrt(max(stretch.iterations, 1.0))
        ratio, ratio_sd, energy_ratio = job.belief.ratios(stretch.setting)
        time_sd = math.hypot(max(run.sd_s / run.iteration_s, usual), ratio_sd)
        # A rate has no lengths that could change, and one of two iterations may contain a checkpoint.
        shows = not isinstance(job.source, Rate) and stretch.iterations > 2
        scatter = run.sd_s * math.sqrt(stretch.iterations) / run.iteration_s if job.marked else 0.0
        if shows and (why := job.watch.feed(
            stretch.iteration_s, time_sd, stretch.power_w, stretch.iterations, scatter,
            (ratio, energy_ratio / ratio),
        )):
            return Retuning(job, now_s, why)
        if job.watch.suspicious:
            return self
        job.pace *= run.iteration_s / job.expected(stretch.setting).seconds
        if job.watch.calm:
            job.log.believe()
        self._learn(stretch, run)  # at the default setting too: everything is relative to it
        steering = job.work.steering
        if job.pinned is not None or job.work.request.paused or now_s < steering.next_s:
            return self
        steering.next_s = now_s + job.params.steer_s
        return self.reconsider(now_s)

    def contradicts(self, reading: Reading) -> str:
        """Why the default setting just measured, and the held one just before, cannot be those of the job
        that was tuned; empty where they can.
        """
        if len(self.job.watch.latest) < 3:
            return ""
        lengths, sds = np.array(self.job.watch.latest).T
        off = float(np.median(lengths)) / reading.iteration_s
        error = math.hypot(float(np.median(sds)), float(np.std(np.log(lengths))),
                           reading.sd_s / reading.iteration_s)
        if abs(math.log(off)) < 3.0 * error:
            return ""
        found = off * self.job.belief.ratios(self.job.chosen)[0]
        there = f"{found:.3f} times its length at the default setting, not {found / off:.3f}"
        return f"an iteration takes {there}"

    def reconsider(self, now_s: float) -> TunerPhase:
        """Keep the held setting, or go to one that is better by now."""
        after = self.job.reconsider(now_s)
        return Holding(self.job) if after == "hold" else Searching(self.job) if after else self

    def _learn(self, stretch: Stretch, run: Reading | Count) -> None:
        """Pool a stretch at the held setting with others, and tell the search where they are enough."""
        pool = self._pool
        pool.add(stretch, run)
        if pool.iterations < 4 or pool.time_s < pool.least_s:
            return
        whole = max(round(pool.iterations), 1)
        scale = whole / pool.iterations
        self.job.belief.tell(
            stretch.setting, whole, scale * pool.time_s, scale * pool.energy_j,
            scale * math.sqrt(pool.variance_j), math.sqrt(pool.variance_s / whole),
        )
        if self.job.belief.news:
            self.job.log.note(self.job.belief.news)
        self._pool, self.job.work.steering.next_s = pool.next(), -math.inf

    def _check(self, now_s: float) -> TunerPhase:
        """The default setting again, for a few iterations: what is saved is measured, not assumed."""
        job, gpus, params = self.job, self.job.gpus, self.job.params
        gpus.put(Setting())
        time_s = job.baseline[0] * job.pace
        wanted = math.ceil((job.found.variation / params.check_sd) ** 2)
        iterations = max(4, min(wanted, math.ceil(params.check_s / time_s)))
        guess = guessed(time_s, params.baseline_sd)
        probe = Probe(
            "re-check", gpus.meter, job.source, Setting(), now_s, iterations, 2.0, guess,
            settled_s=gpus.settled_s,
        )
        job.log.text = "measuring the default setting again, for a moment"
        return Checking(self, probe)


class Checking:
    """Measure the default setting again for a moment, and then hold on."""

    state = "watch"

    def __init__(self, watching: Watching, probe: Probe) -> None:
        self.job, self._watching, self.probe = watching.job, watching, probe

    def leave(self) -> Watching:
        """Give the probe up; what it took is on the account."""
        self.job.cut(self.job.log.clock(), "re-check")
        return self._watching

    def step(self, now_s: float) -> TunerPhase:
        job, probe, params, work = self.job, self.probe, self.job.params, self.job.work
        probe.advance(now_s)
        if not probe.over:
            return self
        after: TunerPhase = self._watching
        held, reading = job.chosen, probe.reading
        if reading is None:
            work.probed(probe, "failed", probe.failed)
            work.failed(probe)
            job.cut(now_s, "re-check")
        else:
            work.probed(probe, "kept", "the default setting again")
            error = math.hypot(reading.energy_sd, job.account.baselines[-1].energy_sd)
            other = params.other_job * min(1 + work.false_alarms, 4) + 3.0 * error
            if not isinstance(job.source, Rate) and reading.off(*job.baseline) > other:
                what = f"{reading.iteration_s:.3g} s and {reading.iteration_j:.4g} J"
                return Retuning(job, now_s, f"at the default setting an iteration takes {what} now")
            if why := self._watching.contradicts(reading):
                return Retuning(job, now_s, why)
            self._watching.observed_s = now_s
            job.read(reading)
            job.cut(now_s, "re-check", reading)
            after = self._watching.reconsider(now_s)
        saving = 1.0 - job.belief.ratios(held)[2]
        worth_s = (now_s - probe.since_s) * max(saving, params.checked_saving) / params.check_cost
        job.check_every_s = min(max(params.check_growth * job.check_every_s, worth_s), params.rarest_check_s)
        job.check_s = now_s + job.check_every_s
        job.since_s = now_s
        held = job.chosen if isinstance(after, Holding) else held
        job.log.text = f"holding {job.gpus.name(held)}"
        job.gpus.put_or_owe(held)
        return after


class Retuning:
    """The job has changed, as `why` says: wait until the default setting is in force again."""

    state = "re-tune"

    def __init__(self, job: TunedJob, now_s: float, why: str) -> None:
        self.job = job
        log, gpus = job.log, job.gpus
        log.note(f"the job has changed: {why}")
        log.text = f"the job has changed: {why}; looking again"
        log.end_workload()
        log.retuned += 1
        gpus.put_or_owe(Setting())

    def step(self, now_s: float) -> TunerPhase:
        settled_s = self.job.gpus.settled_s(now_s)
        return self if settled_s is None or now_s < settled_s else Detecting(self.job.work, now_s)
