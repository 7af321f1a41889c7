"""What a tuner does while it holds a setting: looks at the job, learns from what it sees, steers, and checks
the default now and then.

Every stretch at the held setting is a measurement of it, and a better one than any probe. So the search is
told of it, in portions that double in length, and where the next setting is believed to be better by then, or
the bound is no longer kept, the tuner goes there.
"""

from __future__ import annotations

import math

import numpy as np

from ..records import Setting
from .accounts import Stretch
from .change_detection import make_watch
from .choice import Choosing
from .iteration_sources import Count, Counter, MarkSource, Trace, guessed
from .ledger import Counted, Pool
from .probe import Reading


class Holding(Choosing):
    """The part of a `Tuner` that holds a setting, measures it and notices another job."""

    def _do_hold(self, now_s: float) -> None:
        belief, source = self._belief, self._source
        assert belief is not None
        assert source is not None
        self._choose()
        wanted = self._own(
            self._pinned
            if self._pinned is not None
            else self._choice.setting
            if self._choice is not None
            else Setting()
        )
        if wanted != self.current:
            self._cut(now_s, "held" if self._settled_s is not None else "probe")
            self._put(wanted)
        if self._settled_s is None:
            self._settled_s, self._settled_iterations = now_s - self.begun_s, round(self.iterations)
        self._since_s = self._seen_s = now_s
        self._pool = Pool()
        iteration_s = power_w = math.nan  # where nobody has seen it yet, the first stretch tells
        if belief.visited(wanted):
            time_s, _, energy_j, _ = self.book.accounts[-1].baseline()
            ratio, _, energy_ratio = belief.ratios(wanted)
            iteration_s, power_w = time_s * ratio, energy_j * energy_ratio / (time_s * ratio)
        self._watcher = make_watch(self._watch_name, iteration_s, power_w, periodic=source.name != "rate",
                                   false_alarms=self._false_alarms)
        if not now_s < self._check_s < math.inf:
            self._check_s = now_s + self._check_every_s
        self.state, self._held = "watch", belief.named(wanted)
        self._note(f"held at {self._at(wanted)}")
        self._words = f"holding {self._at(wanted)}"

    def _do_watch(self, now_s: float) -> None:
        params = self.params
        source = self._source
        assert source is not None
        if self._probe is not None:
            self._re_check(now_s)
            return
        if self._better_source(now_s):
            self._change_of_job(now_s, "the training tells its iterations now")
            return
        long_s = self._stretch_s()
        begun_s = (
            self._since_s if math.isnan(self._ledger.cursor_s) else max(self._ledger.cursor_s, self._since_s)
        )
        if now_s - begun_s < long_s:
            return
        self._meddled()
        self._cut(now_s, "held")
        if (
            self._recheck
            and now_s >= self._check_s
            and not self.paused
            and self._pinned is None
            and self.current != Setting()
        ):
            self._begin_check(now_s)
            return
        hold_s = float(np.clip(params.lost_share * (now_s - self._since_s), *params.lost_s)) + 3.0 * long_s
        if now_s - self._seen_s > hold_s:
            self._change_of_job(now_s, f"its iterations have not been seen for {now_s - self._seen_s:.0f} s")

    def _stretch_s(self) -> float:
        """How long a stretch at a setting that stays is."""
        params = self.params
        traced = self._source is not None and self._source.name == "power"
        least_s = params.trace_stretch_s if traced else params.stretch_s
        least = params.trace_stretch_iterations if traced else params.stretch_iterations
        return max(least_s, least * self._expected(self.current).seconds)

    def _look_at_held(self, counted: list[Counted], now_s: float) -> None:
        """Whether the job is still the one that was tuned, and keeps the bound."""
        belief, watcher = self._belief, self._watcher
        held = [each for each in counted if each.stretch.kind == "held"]
        self._suspects += [
            each.stretch for each in held
        ]  # also those that were cut for a re-check that is under way now
        mine = [each for each in held if each.stretch.setting == self.current]
        if not mine or belief is None or watcher is None or self.state != "watch":
            return
        stretch, run = max(((each.stretch, each.run) for each in mine), key=lambda pair: pair[0].iterations)
        self._seen_s = now_s
        if isinstance(self._source, Trace):
            self._source.learn(run.start_s, run.end_s, run.iteration_s)
        usual = (
            self._found.variation / math.sqrt(max(stretch.iterations, 1.0))
            if self._found is not None
            else 0.0
        )
        why = watcher.feed(
            now_s, stretch.iteration_s, max(run.sd_s / run.iteration_s, usual), stretch.power_w
        )
        if why:
            self._change_of_job(now_s, why)
            return
        if watcher.calm:
            self._believe()
        self._learn(stretch, run)  # at the default setting too: everything is relative to it
        if self._pinned is None and not self.paused and self._probe is None and now_s >= self._steer_s:
            self._steer_s = now_s + self.params.steer_s
            self._reconsider(now_s)

    def _learn(self, stretch: Stretch, run: Reading | Count) -> None:
        """What a stretch at the held setting says of it: held for longer than it was probed, it is the
        better measurement of the two.
        """
        pool, belief = self._pool, self._belief
        assert belief is not None
        pool.add(stretch, run)
        if pool.iterations < 4 or pool.time_s < pool.least_s:
            return
        whole = max(round(pool.iterations), 1)
        scale = whole / pool.iterations
        belief.tell(
            stretch.setting, whole, scale * pool.time_s, scale * pool.energy_j,
            scale * math.sqrt(pool.variance_j), math.sqrt(pool.variance_s / whole),
        )
        self._pool, self._steer_s = pool.next(), -math.inf

    def _reconsider(self, now_s: float) -> None:
        """Keep the held setting, or go to one that is better by now."""
        params = self.params
        belief, before = self._belief, self._choice
        assert belief is not None
        self._choose()
        new = self._choice
        if before is None or new is None or new.setting == before.setting:
            return
        time_s, _, energy_j, _ = self.book.accounts[-1].baseline()
        gain = belief.cost(before.setting, (time_s, energy_j)) - belief.cost(new.setting, (time_s, energy_j))
        faster = belief.ratios(new.setting)[0] < belief.ratios(before.setting)[0]
        if faster and self._keeps(before.setting) < params.doubted:
            self.state, self._calm_s = "hold", now_s + params.calm_s
            self._note(f"{self._at(new.setting)} keeps the bound")
        elif gain > params.better and belief.near(new.setting, params.step) and now_s >= self._calm_s:
            self.state = "hold"
            self._note(f"{self._at(new.setting)} is better by what is known now")
        elif (
            gain > params.better
            and not belief.near(new.setting, params.step)
            and now_s >= self._calm_s
            and self._more < params.most_more
        ):
            self._cut(now_s, "held")
            self.state, self._calm_s, self._more = "search", now_s + params.calm_s, self._more + 1
            self._note(
                f"{self._at(new.setting)} may be better, and is far from all that was measured: searching on"
            )
        else:
            self._choice = belief.about(before.setting)

    def _begin_check(self, now_s: float) -> None:
        """The default setting again, for a few iterations: what is saved is measured, not assumed."""
        params = self.params
        assert self._found is not None
        self._put(Setting())
        time_s = self.book.accounts[-1].baseline()[0]
        wanted = math.ceil((self._found.variation / params.check_sd) ** 2)
        iterations = max(4, min(wanted, math.ceil(params.check_s / time_s)))
        self._begin_probe(
            "re-check", Setting(), now_s + self._settling_s(Setting()), iterations, 2.0,
            guessed(time_s, params.baseline_sd)
        )
        self._words = "measuring the default setting again, for a moment"

    def _re_check(self, now_s: float) -> None:
        params = self.params
        probe = self._step_probe(now_s)
        if probe is None:
            return
        held = self._own(self._choice.setting) if self._choice is not None else Setting()
        reading = probe.reading
        if reading is None:
            self._record(probe, "failed", probe.failed)
            self._failed(probe.failed)
            self._cut(now_s, "re-check")
        else:
            time_s, _, energy_j, _ = self.book.accounts[-1].baseline()
            off = max(
                abs(math.log(reading.iteration_s / time_s)), abs(math.log(reading.iteration_j / energy_j))
            )
            self._record(probe, "kept", "the default setting again")
            if off > params.other_job * min(1 + self._false_alarms, 4) + 2.0 * reading.energy_sd:
                what = f"{reading.iteration_s:.3g} s and {reading.iteration_j:.4g} J"
                self._change_of_job(now_s, f"at the default setting an iteration takes {what} now")
                return
            self._seen_s = now_s
            self.book.check(reading)
            self._tell(reading)
            self._cut(now_s, "re-check", reading)
            self._reconsider(now_s)
        saving = 1.0 - (self._belief.ratios(held)[2] if self._belief is not None else 1.0)
        worth_s = (now_s - self._probe_since_s) * max(saving, params.checked_saving) / params.check_cost
        every_s = max(params.check_growth * self._check_every_s, worth_s)
        self._check_every_s = min(every_s, params.rarest_check_s)
        self._check_s = now_s + self._check_every_s
        self._since_s = now_s
        held = self._own(self._choice.setting) if self._choice is not None and self.state == "hold" else held
        self._words = f"holding {self._at(held)}"
        self._put(held)

    def _change_of_job(self, now_s: float, why: str) -> None:
        self._note(f"the job has changed: {why}")
        self._words = f"the job has changed: {why}; looking again"
        self._probe = None
        self._ledger.drop()
        self._suspects = []
        self._retuned += 1
        self._deceived = False
        self._since_s = now_s
        self._check_s, self._check_every_s = math.inf, self.params.first_check_s
        self.state = "re-tune"
        self._put(Setting())

    def _better_source(self, now_s: float) -> bool:
        """Whether the training tells its iterations, which were guessed until now."""
        if self._source is None or isinstance(self._source, (MarkSource, Counter)):
            return False
        steps = self._marks.last(12)
        return len(steps) >= 12 and bool(steps[-1] > now_s - 3.0 * max(float(np.median(np.diff(steps))), 0.3))

    def _tell(self, reading: Reading) -> None:
        assert self._belief is not None
        self._energy_failures = 0
        self._belief.read(reading)
