"""The online loop: from waiting for a job to holding its best setting, one short step at a time.

    wait -> detect -> features -> baseline -> predict -> search -> hold -> watch -> re-tune -> detect ...
    done       it was told to stop, or its job has ended
    refused    it cannot be done here; the reason is said, and the GPU is as it was

`Tuner.advance` never waits for anything: it looks at the clock and at what was recorded, does at most one
short thing, and returns. Whatever goes wrong in it, the GPU goes back to what was found, and the job goes on.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from ..device.protocol import Device
from ..errors import DeviceError, DeviceHeld, GpuLost, NotPermitted, Transient, UsageError, WorkbenchError
from ..records import Setting
from ..search.space import space_of
from . import core, models
from .change_detection import PARAMS as WATCH_PARAMS
from .change_detection import busy_gpus
from .commands import Commands
from .detect_iterations import IterationDetector
from .iteration_sources import Counter, Guess, MarkSource, Rate, busy_and_clock, guessed
from .posterior import SettingPosterior
from .probe import Probe, Reading

if TYPE_CHECKING:
    from ..search.clocks.make import Trial
    from ..search.space import SettingSpace


class Tuner(Commands):
    """Finds and holds the best setting of whatever runs on the GPUs of a meter.

    Args:
        meter: What measures them; its recorder must be running.
        uuids: Which GPUs; those that are found working where None.
        objective: A name of `OBJECTIVES`, or an objective of `search.objective`.
        max_slowdown: Allowed share of additional time, 0..1; None for no bound.
        over: What may be set: "power" limits, "clocks", or "both".
        search: How: a name of `search.clocks.make.NAMES`.
        progress: A counter of iterations: called often, returns a number that grows.
        model: A model of this GPU (or its path); None looks for one in the user's directory, False uses none.
        watch: "model" or "gpoeo": how a change of the job is noticed.
        recheck: Measure the default setting again now and then.
        label: Of the cell.
        seed: Of the search's draws.
        params: The constants.

    Raises:
        UsageError: a bound, objective, search or knob that makes no sense.
    """

    @property
    def pace_s(self) -> float:
        """How often `advance` wants to be called, on the device's clock."""
        return (
            self.params.quiet_pace_s
            if self.state in ("wait", "watch", "done", "refused") and self._probe is None
            else self.params.pace_s
        )

    def advance(self) -> str:
        """Do the next short thing; returns the state. Never raises."""
        with self._lock:
            if self.ended:
                return self.state
            try:
                now_s = self.clock()
                if not self._wait_out(now_s):
                    self._act(now_s)
                self._errors = 0
            except Transient as error:
                self._errors += 1
                if self._errors > self.params.busy_refusals:
                    self._refuse(str(error))
            except WorkbenchError as error:
                self._refuse(str(error))
            except Exception as error:  # whatever it is, the training must not suffer from it
                self._refuse(f"tuning failed ({type(error).__name__}: {error})")
            return self.state

    def _act(self, now_s: float) -> None:
        acts = {
            "wait": self._do_wait,
            "detect": self._do_detect,
            "features": self._do_features,
            "baseline": self._do_baseline,
            "predict": self._do_predict,
            "search": self._do_search,
            "hold": self._do_hold,
            "watch": self._do_watch,
            "re-tune": self._do_retune,
        }
        acts[self.state](now_s)

    # the states: until there is a baseline

    def _do_wait(self, now_s: float) -> None:
        recorder = self._whole.recorder
        assert recorder is not None
        among = [
            device for device in self._whole.devices if self._uuids is None or device.uuid in self._uuids
        ]
        problems = [problem for device in among if (problem := recorder.error(device.uuid))]
        among = [device for device in among if not recorder.error(device.uuid)]
        if problems and not among:  # another one of the machine may be lost
            raise GpuLost(problems[0])
        busy = busy_gpus(recorder, among, now_s)
        if not busy and self._marks.total >= 3 and now_s - self.begun_s > WATCH_PARAMS.idle_s:
            busy = tuple(among)  # the training says that it goes on
        if not busy:
            self._words = "waiting for the GPU to work"
            return
        if not self._devices:
            if len(busy) < len(among) and self._others_may_begin(busy, now_s):
                return
            self._take(busy)
        self._look_for_job(self.clock() if self._devices else now_s)

    def _others_may_begin(self, busy: tuple[Device, ...], now_s: float) -> bool:
        """A job on several GPUs does not begin on all of them in one moment; whether there is still
        something to wait for.
        """
        if math.isnan(self._all_busy_s):
            self._all_busy_s = now_s
        if busy != self._busy:
            self._busy, self._busy_s = busy, now_s
        self._words = "waiting for other GPUs that the job may use"
        return (
            now_s - self._busy_s < 2.0 * WATCH_PARAMS.idle_s
            and now_s - self._all_busy_s < 6.0 * WATCH_PARAMS.idle_s
        )

    def _look_for_job(self, from_s: float) -> None:
        assert self._whole.recorder is not None
        if self._finder is not None:
            self._finder.end()
        self._finder = IterationDetector(
            self._whole.recorder, self._devices, self._marks, self._counter, from_s
        )
        self._finder.no_doubtful = self._deceived
        self._ledger.drop()
        self.state, self._probe, self._failures = "detect", None, 0
        self._belief = self._choice = self._pinned = None

    def _do_detect(self, now_s: float) -> None:
        assert self._finder is not None
        found = self._finder.look(now_s)
        self._words = f"looking for the iterations: {self._finder.words}"
        if found is None:
            return
        self._finder.end()
        self._found, self._source = found, found.source
        self._note(found.words)
        self._ledger.begin(found.from_s)
        self.state = "features"

    def _do_features(self, now_s: float) -> None:
        found = self._found
        assert found is not None
        if self._features is not None:
            self._features.close()
            self._features = None
        if models.expected(self._devices[0], self._model):
            self._features = models.JobFeatures(self._devices[0], self._whole.recorder)
            self._clock_model, why = models.find(self._devices[0], self._features.source, self._model)
            for words in (self._features.problem, why):
                if words:
                    self._remark(words)
        self._begin_probe(
            "baseline", Setting(), found.from_s, found.iterations, found.least_s,
            guessed(found.iteration_s, self.params.baseline_sd),
        )
        self._probe_since_s = found.from_s
        self.state, self._words = "baseline", "measuring what an iteration takes at the default setting"

    def _do_baseline(self, now_s: float) -> None:
        probe = self._step_probe(now_s)
        if probe is None:
            return
        if probe.reading is None:
            self._record(probe, "failed", probe.failed)
            self._failed(probe.failed)
            self._look_again(now_s, probe.failed)
            return
        self._record(probe, "kept", "the default setting")
        self._first, self.state = probe.reading, "predict"

    def _look_again(self, now_s: float, why: str) -> None:
        """The iterations could not be measured: once more, and then by a rate."""
        failures, source = self._failures + 1, self._source
        if failures >= 2 * self.params.failures:
            raise UsageError(f"its iterations could not be measured: {why}")
        self._look_for_job(now_s)
        assert self._finder is not None
        self._failures = failures
        self._finder.only_rate = failures >= self.params.failures or (
            failures >= 2 and source is not None and source.name == "power"
        )

    def _do_predict(self, now_s: float) -> None:
        reading, space = self._first, self._space
        assert reading is not None
        assert space is not None
        if isinstance(self._source, Rate):
            space = self._seen_by_rate(space, self._source)
        known = self._known_job(reading)
        rate = isinstance(self._source, Rate)
        alarm = (known is not None and known == len(self.book.accounts) - 1) or (rate and self._retuned > 0)
        self._false_alarms += alarm
        if known is not None:
            self.book.again(known, reading)
            self._beliefs.append(self._beliefs.pop(known))
            self._note("this is the job from before again: what is known of it counts")
            if self._level is not None and alarm:
                self._level.false_alarm()
        else:
            self._more = 0
            self.book.open(reading)
            recorder = self._whole.recorder
            update_s = max(
                ((recorder.update_s(d.uuid) if recorder else None) or 0.1 for d in self._devices), default=0.1
            )
            self._beliefs.append(
                SettingPosterior(
                    self.search_name, space, self.objective, self.max_slowdown, prior=self._prior(reading),
                    gpus=len(self._devices), update_s=update_s, wait_share=self._wait_share(reading),
                    seed=self.seed,
                )
            )
        self._belief = self._beliefs[-1]
        if (self._belief.objective, self._belief.max_slowdown) != (self.objective, self.max_slowdown):
            self._belief = self._beliefs[-1] = self._belief.again(self.objective, self.max_slowdown)
        self._tell(reading)
        self._cut(now_s, "baseline", reading)
        self._choose()
        self.state, self._failures = "search", 0
        self._doubtful, self._tests, self._passed = self._found is not None and self._found.doubtful, 0, 0
        if self._choice is not None and self._own(self._choice.setting) != Setting():
            self._words = (
                f"expected best: {self._at(self._choice.setting)}, "
                f"{100 * (1 - self._choice.energy_ratio):.0f} % less energy"
            )

    def _seen_by_rate(self, space: SettingSpace, rate: Rate) -> SettingSpace:
        """Settings whose cost in time a rate can tell: a lock's clock is known, what a limit makes of it
        only as far as glimpses show.
        """
        settings = [
            each for each, mu in zip(space.settings, space.mu, strict=True) if mu >= 1.0 or rate.sees_memory
        ]
        locks = [each for each in settings if each.power_limit_w is None]
        kept = (
            [*locks, *([] if space.reference in locks else [space.reference])] if len(locks) > 1 else settings
        )
        return space_of(kept, space.reference, max_power_limit_w=space.max_power_limit_w)

    def _wait_share(self, reading: Reading) -> float | None:
        """Of the baseline, in which the GPUs waited; None where they do not tell."""
        assert self._whole.recorder is not None
        busy = [
            busy_and_clock(self._whole.recorder.rows(device.uuid, reading.start_s, reading.end_s))[0]
            for device in self._devices
        ]
        known = [each for each in busy if math.isfinite(each)]
        return min(max(1.0 - float(np.mean(known)), 0.0), 1.0) if known else None

    def _known_job(self, reading: Reading) -> int | None:
        """The workload in the book that this baseline is of."""
        # Where a sensor aliases, the energy of a steady job wanders; of a rate nothing but the energy is
        # known.
        wide = 1 + min(self._false_alarms, 2) if isinstance(self._source, Rate) else 1
        for number, account in enumerate(self.book.accounts):
            time_s, _, energy_j, _ = account.baseline()
            off = max(
                abs(math.log(reading.iteration_s / time_s)), abs(math.log(reading.iteration_j / energy_j))
            )
            if off < self.params.same_job * wide + 2.0 * reading.energy_sd:
                return number
        return None

    # the search

    def _do_search(self, now_s: float) -> None:
        from ..search.clocks.make import Done

        belief = self._belief
        assert belief is not None
        if self._probe is not None:
            probe = self._step_probe(now_s)
            if probe is None:
                self._end_early(now_s)
            else:
                self._take_probe(probe, now_s)
            return
        if self.paused:
            if (
                now_s - self._ledger.cursor_s >= self._stretch_s()
            ):  # not one stretch for an hour, and no tuning
                self._cut(now_s, "paused")
            return
        step = self._test_of_rhythm() if self._doubtful else belief.search.next()
        now_s = self.clock()  # thinking takes a moment
        if isinstance(step, Done):
            self._note(step.reason)
            self.state, self._once = "hold", False
            return
        self._cut(now_s, "probe")
        try:
            self._put(step.setting)
        except Transient:
            self._due = None  # the search is asked again
            raise
        except (GpuLost, NotPermitted, DeviceHeld):
            raise
        except DeviceError as error:
            self._due = None
            belief.cannot(step.setting, str(error))
            self._note(f"{self._at(step.setting)} cannot be set: {error}")
            return
        guess = self._expected(step.setting)
        if self._doubtful:  # a beat may have become shorter or much longer
            low, high = self.params.test_reach
            guess = Guess(guess.seconds, self.params.doubtful_sd, low * guess.seconds, high * guess.seconds)
        self._begin_probe(
            "probe", step.setting, now_s + self._settling_s(step.setting), step.iterations, step.seconds,
            guess,
        )
        if self._doubtful and self._probe is not None:
            self._probe.whole()
        self._words = f"probing {self._at(step.setting)}: {step.reason}"

    def _take_probe(self, probe: Probe, now_s: float) -> None:
        params = self.params
        assert self._belief is not None
        if self._doubtful and self._deceiving(probe):
            self._record(probe, "failed", "the rhythm was the sensor's own")
            self._note("the rhythm does not follow the clock as a job's would: it is a beat of the sensor")
            self._forget_job(now_s)
            return
        if probe.reading is None:
            self._record(probe, "failed", probe.failed)
            self._failed(probe.failed)
            self._failures += 1
            if probe.setting != Setting():
                slow = probe.guess.most_s > 1.5 * probe.guess.seconds
                if slow:
                    self._belief.too_slow(probe.setting, probe.failed)
                elif self._table.failures(probe.setting) >= 2:
                    self._belief.cannot(probe.setting, probe.failed)
                self._leave(probe.setting)
            if self._failures >= 2 * params.failures:
                self._change_of_job(now_s, "iterations can no longer be seen")
            else:
                self._pause_after_one()
            return
        if (
            not params.odd_times[0] * probe.guess.least_s
            < probe.reading.iteration_s
            < params.odd_times[1] * max(probe.guess.most_s, probe.guess.seconds)
        ):
            self._record(probe, "failed", "these are iterations of another job")
            self._change_of_job(
                now_s,
                f"an iteration takes {probe.reading.iteration_s:.3g} s, not about {probe.guess.seconds:.3g} "
                "s",
            )
            return
        self._failures = 0
        self._tell(probe.reading)
        self._cut(now_s, "probe", None if probe.early else probe.reading)
        self._choose()
        self._record(probe, "ended early" if probe.early else "kept", self._words)
        self._pause_after_one()

    def _pause_after_one(self) -> None:
        """Where one probe was asked for, it was made, also where nothing came of it."""
        if self._once:
            self._once, self.paused = False, True
            if self._choice is not None:
                self._put(self._choice.setting)

    def _end_early(self, now_s: float) -> None:
        """A probe that is beyond the bound for sure is left at once; what it saw is read afterwards."""
        probe = self._probe
        if probe is None or not probe.early or self.current != probe.setting:
            return
        self._note(f"{self._at(probe.setting)} is too slow: ended at once")
        self._cut(now_s, "probe", probe.count)
        self._leave(probe.setting)

    def _leave(self, setting: Setting) -> None:
        """Away from a setting that is too slow, to the best that is known to be allowed."""
        best = self._choice
        self._put(
            best.setting
            if best is not None and best.measured and self._own(best.setting) != setting
            else Setting()
        )

    def _test_of_rhythm(self) -> Trial:
        """A setting a little slower, at which a rhythm of the job is as much longer as the clock allows,
        and a beat is not.
        """
        from ..search.clocks.make import Trial

        reading, space = self._first, self._space
        assert reading is not None
        assert space is not None
        clock_mhz = self._clock_in(reading)
        top_mhz = space.max_sm_clock_mhz or clock_mhz
        clock = (
            clock_mhz / top_mhz if clock_mhz > 0 else 1.0
        )  # a power limit may hold it below the highest already
        watts = reading.power_w / len(self._devices) / (space.max_power_limit_w or math.inf)
        lower = np.where(space.limit < 1.0, space.limit / max(watts, 1e-3) / 0.95, space.x / clock)
        lower = np.where((space.mu < 1.0) | (lower >= 0.97), np.inf, lower)
        pick = int(np.argmin(np.abs(lower - self.params.test_clock ** (1 + self._tests))))
        self._tests += 1
        return Trial(space.settings[pick], 12, 5.0, "to see whether the rhythm is the job's own")

    def _deceiving(self, probe: Probe) -> bool:
        """Whether the rhythm has proved to be the sensor's; a test that changes too little is made again."""
        params = self.params
        first, reading = self._first, probe.reading
        assert first is not None
        if reading is None:
            return True
        slower = self._clock_in(first) / self._clock_in(reading)
        if not slower > params.test_slower:
            return self._tests > params.most_tests
        self._passed += 1
        self._doubtful = self._passed < params.passes
        ratio = reading.iteration_s / first.iteration_s
        error = math.hypot(reading.sd_s / reading.iteration_s, first.sd_s / first.iteration_s)
        error = params.test_error_sds * error + params.test_error
        return not 1.0 - error < ratio < slower * (1.0 + error)

    def _clock_in(self, reading: Reading) -> float:
        assert self._whole.recorder is not None
        return busy_and_clock(
            self._whole.recorder.rows(self._devices[0].uuid, reading.start_s, reading.end_s)
        )[1]

    def _forget_job(self, now_s: float) -> None:
        """What was taken for iterations was none; everything measured by it is void."""
        self._deceived, self._doubtful = True, False
        self.book.forget()
        self._beliefs.pop()
        self._look_for_job(now_s + self._settling_s(Setting()))
        self._put(Setting())

    def _do_retune(self, now_s: float) -> None:
        if now_s >= self._since_s + self._settling_s(Setting()):
            self._look_for_job(now_s)

    # others on the GPU, and a GPU at rest

    def _wait_out(self, now_s: float) -> bool:
        """Whether nothing can be done now: others are on the GPU, or it is idle."""
        self._marks.sample(now_s)
        if self._counter is not None:
            had_failed = self._counter.failed
            self._counter.sample(now_s)
            if self._counter.failed and not had_failed:
                self._remark(f"{self._counter.failed}; iterations are looked for elsewhere")
        if not self._devices:
            return False
        if problem := self._lost():
            raise GpuLost(problem)
        if self._due is not None:
            self._put(self._due)
        assert self._company is not None
        assert self._vitals is not None
        crowded = self._company.look(now_s)
        if crowded and not self._crowded:
            self._note(self._company.words)
            self._leave_probe()
            self._ledger.drop()
            self._put(Setting())
        elif self._crowded and not crowded:
            self._note("the GPU is this job's alone again")
            self._go_on(now_s)
        self._crowded = crowded
        if crowded:
            return True
        self._vitals.look(now_s)
        looking = self.state in ("wait", "detect", "re-tune")
        usual_s = self._found.iteration_s if self._found is not None else 0.0
        idle = not looking and self._vitals.idle_s > max(WATCH_PARAMS.idle_s, 1.5 * usual_s)
        if idle and not self._idle:
            self._note("the GPU is idle")
            self._leave_probe()
            self._ledger.drop()
        elif self._idle and not idle:
            self._note("the GPU works again")
            self._go_on(now_s)
        self._idle = idle
        if not idle:
            self._look_at_held(self._count(now_s), now_s)
            self._look_at_level(now_s)
        return idle or self.ended

    def _look_at_level(self, now_s: float) -> None:
        """Where iterations are not told: whether the power is that of another job."""
        belief, level = self._belief, self._level
        if (
            level is None
            or belief is None
            or isinstance(self._source, (MarkSource, Counter))
            or self.state not in ("search", "watch")
        ):
            return
        setting = self.current
        if setting != self._level_of:  # settles first
            self._level_of = setting
            level.begin(now_s + self._settling_s(setting))
            return
        time_s, _, energy_j, _ = self.book.accounts[-1].baseline()
        ratio, time_sd, energy_ratio = belief.ratios(setting)
        known = belief.visited(setting)
        why = level.look(
            now_s, time_s * ratio, energy_j * energy_ratio / (time_s * ratio),
            0.01 if known else max(time_sd, 0.06),
        )
        if why:
            self._change_of_job(now_s, why)

    def _go_on(self, now_s: float) -> None:
        """After an interruption."""
        if self.state in ("features", "baseline", "predict") or (self.state == "detect" and self._crowded):
            self._look_for_job(now_s)  # what was seen while others were there is not of this job alone
            return
        if self.state == "watch":
            held = self._own(self._choice.setting) if self._choice is not None else Setting()
            self.state = (
                "hold" if self._crowded or (self.current != held and not self.paused) else "watch"
            )  # a check was cut short
            self._since_s = self._seen_s = now_s
        if self.state in ("search", "hold", "watch"):
            self._ledger.begin(now_s)


def running() -> tuple[Tuner, ...]:
    """The tuners of this process that have not ended, newest last."""
    return tuple(each for each in core._running if isinstance(each, Tuner))


def latest() -> Tuner | None:
    """The tuner that was begun last in this process, also when it has ended."""
    found = core._latest
    return found if isinstance(found, Tuner) else None
