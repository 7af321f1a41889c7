"""What every state of a tuner needs: its GPUs, its probe, its book, what it tells, and the way back."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..device.protocol import Device
from ..errors import DeviceHeld, NotPermitted, Transient, UsageError, WorkbenchError
from ..measurement.meter import Meter
from ..records import Limits, Setting
from ..search.objective import Objective
from . import models
from .accounts import SavingsAccounts, Stretch
from .actuator import Actuator, limits_of
from .change_detection import ForeignProcessMonitor, IdleMonitor, PowerLevelDetector, Watch
from .detect_iterations import DetectedIterations, IterationDetector
from .iteration_sources import Count, Counter, Guess, IterationSource, MarkSource, guessed
from .ledger import Counted, Pool, SavingsLedger
from .options import check_objective, check_options, check_slowdown, objective_name
from .params import PARAMS, TunerParams
from .posterior import SettingPosterior
from .probe import Probe, Reading
from .probe_table import ProbeTable
from .results import TuningResult, TuningView

if TYPE_CHECKING:
    from ..search.clocks.make import Choice
    from ..search.space import SettingSpace


_running: list[Core] = []
_latest: Core | None = None


class Core:
    """The part of a `Tuner` that every state needs: GPUs, probe, accounts, events and restoring."""

    def __init__(
        self, meter: Meter, *, uuids: Sequence[str] | None = None, objective: str | Objective = "energy",
        max_slowdown: float | None = 0.05, over: str = "both", search: str = "model-guided",
        progress: Callable[[], float] | None = None, model: Any = None, watch: str = "model",
        recheck: bool = True, label: str = "", seed: int = 0, params: TunerParams = PARAMS,
    ) -> None:
        self.params = params
        self._whole, self.clock = meter, meter.clock
        self.objective, self.max_slowdown = check_objective(objective), check_slowdown(max_slowdown)
        check_options(over, search, watch, model, progress)
        self.over, self.search_name, self.label, self.seed = over, search, label, seed
        self._uuids, self._model, self._watch_name, self._recheck = uuids, model, watch, recheck
        self.state, self.paused, self.refused = "wait", False, ""
        self._words = "waiting for the GPU to work"
        self._lock = threading.RLock()
        self.begun_s = self.clock()
        self.events: list[tuple[float, str]] = []
        self._remarks: list[str] = []  # what is to be said with the result too
        # what it works on
        self._devices: tuple[Device, ...] = ()
        self._meter = meter
        self._actuator: Actuator | None = None
        self._limits = Limits()
        self._space: SettingSpace | None = None
        self._marks = MarkSource(self.clock)
        self._counter = Counter(progress, self.clock) if progress is not None else None
        self._finder: IterationDetector | None = None
        self._found: DetectedIterations | None = None
        self._source: IterationSource | None = None
        self._company: ForeignProcessMonitor | None = None
        self._vitals: IdleMonitor | None = None
        self._level: PowerLevelDetector | None = None
        self._features: models.JobFeatures | None = None
        self._clock_model: Any = None
        self.model_words = ""
        # what it knows
        self.book = SavingsAccounts()
        self._ledger = SavingsLedger()
        self._beliefs: list[
            SettingPosterior
        ] = []  # of the workloads in the book, in its order; the last one is the present
        self._belief: SettingPosterior | None = None
        self._first: Reading | None = None
        self._choice: Choice | None = None
        self._table = ProbeTable()
        self._pool = Pool()
        self._suspects: list[Stretch] = []  # at the held setting, not in the book yet
        # what it does
        self._probe: Probe | None = None
        self._probe_kind, self._probe_since_s = "probe", 0.0
        self._pinned: Setting | None = None
        self._held: Setting | None = None  # the last one
        self._due: Setting | None = None  # what the driver was too busy for
        self._once = False
        self._failures = self._energy_failures = self._errors = self._retuned = self._tests = self._passed = 0
        self._false_alarms = self._more = 0
        self._settled_s: float | None = None
        self._settled_iterations: int | None = None
        self._watcher: Watch | None = None
        self._since_s = self._seen_s = math.nan  # of the held setting; when its iterations were last seen
        self._check_s, self._check_every_s = math.inf, params.first_check_s
        self._steer_s = self._calm_s = -math.inf
        self._level_of: Setting | None = None  # the setting whose power is watched
        self._busy: tuple[Device, ...] = ()
        self._busy_s = self._all_busy_s = math.nan  # since when just these GPUs work, since when any does
        self._crowded = self._idle = self._deceived = self._doubtful = False
        # what is left of it
        self._left: list[str] = []
        self._result: TuningResult | None = None
        self._view: TuningView | None = None
        global _latest
        _latest = self
        if meter.recorder is None:
            self._refuse(
                "there is no GPU here whose power is recorded"
                if not meter.devices
                else "the GPU's power is not recorded"
            )
        else:
            self._hold = meter.recorder.hold(lambda: self._ledger.oldest_s)
            _running.append(self)

    # what is known from outside

    @property
    def ended(self) -> bool:
        return self.state in ("done", "refused")

    @property
    def current(self) -> Setting:
        """Setting of the GPUs now; `Setting()` is the one that was found."""
        return self._actuator.current if self._actuator is not None else Setting()

    def works_on(self, uuid: str) -> bool:
        """Whether it is at work on a GPU, or waits for any GPU to work."""
        return uuid in {device.uuid for device in self._devices} or (
            not self._devices and (self._uuids is None or uuid in self._uuids)
        )

    def has_set(self, uuid: str) -> bool:
        """Whether it may have put a GPU to something else than what it found."""
        return self._actuator is not None and self.works_on(uuid)

    @property
    def words(self) -> str:
        """One sentence: what goes on and what is next."""
        if self.refused:
            return f"not tuned: {self.refused}"
        if self.state == "done":
            return "tuning has ended"
        if self._crowded and self._company is not None:
            return f"{self._company.words}: tuning waits until they are gone"
        if self._idle:
            return "the GPU is idle: tuning waits until it works again"
        if self.paused:
            return f"paused at {self._at(self.current)}"
        return self._words

    def end(self) -> TuningResult:
        """Put everything back as it was found; returns how it went. From any state, and as often as one
        likes.
        """
        with self._lock:
            if self._result is not None and not self._left:
                return self._result
            state = self.state
            if not self.ended:
                try:
                    self._cut(self.clock(), "held" if state in ("hold", "watch") else "probe")
                    self._believe()
                    for each in self._ledger.count_all(self._meter, self._source):
                        self.book.add(each.stretch)
                except Exception as error:  # a GPU that is gone must not hide how it went
                    self._note(str(error))
                self.state = "done"
            self._release()
            self._result = (
                self._conclude(state)
                if self._result is None
                else replace(self._result, left=tuple(self._left))
            )
            return self._result

    @property
    def result(self) -> TuningResult:
        """Result of the tuning; while it goes on, as if it ended now."""
        return self._result if self._result is not None else self._conclude(self.state)

    def view(self) -> TuningView:
        """Everything there is to see at this moment. Does not wait for a step that is under way: it then
        shows what was before.
        """
        if not self._lock.acquire(timeout=0.02 if self._view is not None else 5.0):
            assert self._view is not None
            return self._view
        try:
            self._view = self._make_view()
            return self._view
        finally:
            self._lock.release()

    # the GPUs

    def _take(self, devices: tuple[Device, ...]) -> None:
        """These GPUs are tuned from now on, together."""
        from ..search.clocks import make, model_guided  # noqa: F401 - now, and not while a probe waits
        from ..search.space import space_from

        if len({device.name for device in devices}) > 1:
            names = ", ".join(sorted({device.name for device in devices}))
            raise UsageError(
                f"GPUs of several models work here ({names}); no setting suits them all: name those of one "
                "model with --gpu"
            )
        recorder = self._whole.recorder
        assert recorder is not None
        for other in _running[:]:  # a hold keeps other processes away, not this one's
            if other is not self and {device.uuid for device in other._devices} & {
                device.uuid for device in devices
            }:
                named = f" ({other.label})" if other.label else ""
                raise DeviceHeld(
                    f"something{named} is being tuned on this GPU by this process already; stop that first, "
                    "or let it end"
                )
        self._actuator = Actuator(devices)
        try:
            refused = self._actuator.begin(self.over)
        except Transient:  # it is asked again, and begins anew
            self._left = self._actuator.restore()
            raise
        self._limits = limits_of(devices, self._actuator.found, refused)
        can_lock_memory = "mem_clock_mhz" not in refused and all(
            device.can("lock_mem_clock") for device in devices
        )
        try:
            over: Any = self.over
            self._space = space_from(
                self._limits, over, can_lock_memory=can_lock_memory, step_w=self._step_w()
            )
        except UsageError as error:
            reasons = "; ".join(dict.fromkeys(refused.values()))
            raise NotPermitted(reasons) if reasons else error from error
        for reason in dict.fromkeys(refused.values()):
            self._remark(reason)
        self._company = ForeignProcessMonitor(devices)
        self._vitals = IdleMonitor(recorder, [device.uuid for device in devices])
        self._level = PowerLevelDetector(recorder, [device.uuid for device in devices])
        self._meter = (
            self._whole if len(devices) == len(self._whole.devices) else Meter(devices, recorder, zones=())
        )
        self._devices = devices

    def _step_w(self) -> float | None:
        params = self.params
        low_w, high_w = self._limits.min_power_limit_w, self._limits.default_power_limit_w
        if low_w is None or high_w is None:
            return None
        step_w = params.limit_step_w
        return step_w * max(1, math.ceil((high_w - low_w) / step_w / params.most_limits))

    def _put(self, setting: Setting) -> None:
        """Put the GPUs to a setting. One that a busy driver does not take is owed, and put before anything
        else is done.
        """
        assert self._actuator is not None
        self._due = self._own(setting)
        self._actuator.put(self._due)
        self._due = None

    def _own(self, setting: Setting) -> Setting:
        """The reference is what was found, whatever a search calls it."""
        return Setting() if self._space is not None and setting == self._space.reference else setting

    def _at(self, setting: Setting) -> str:
        return "the default setting" if self._own(setting) == Setting() else str(setting)

    def _settling_s(self, setting: Setting) -> float:
        window_s = max(device.power_window_s for device in self._devices)
        limited = setting.power_limit_w is not None or self.over == "power"
        return (self.params.limit_settle_s if limited else self.params.settle_s) + min(window_s, 1.0)

    # the probe

    def _begin_probe(
        self, kind: str, setting: Setting, from_s: float, iterations: int, seconds: float, guess: Guess
    ) -> None:
        assert self._source is not None
        breaks: Callable[[int, float], bool] | None = None
        if kind == "probe" and self._belief is not None:
            search, named = self._belief.search, self._belief.named(setting)
            breaks = lambda n, time_s: search.breaks_bound(named, n, time_s)  # noqa: E731
        self._probe = Probe(
            self._meter, self._source, self._own(setting), from_s, iterations, seconds, guess, breaks
        )
        self._probe_kind, self._probe_since_s = kind, self.clock()

    def _step_probe(self, now_s: float) -> Probe | None:
        """The probe, if it is over."""
        assert self._probe is not None
        self._probe.advance(now_s)
        if not self._probe.over:
            return None
        probe, self._probe = self._probe, None
        return probe

    def _record(self, probe: Probe, outcome: str, reason: str) -> None:
        assert self._space is not None
        named = self._space.reference if probe.setting == Setting() else probe.setting
        account = self.book.accounts[-1] if self.book.accounts and self._probe_kind != "baseline" else None
        self._table.add(
            probe, named, self._probe_kind, outcome, reason, at_s=self._probe_since_s - self.begun_s,
            cost_s=self.clock() - self._probe_since_s, account=account,
        )

    def _failed(self, why: str) -> None:
        self._note(f"a probe has failed: {why}")
        self._energy_failures = self._energy_failures + 1 if "energy" in why else 0
        if self._energy_failures >= self.params.failures:
            raise UsageError(
                f"{why}, {self._energy_failures} times in a row; without it nothing can be compared"
            )

    # what is believed

    def _expected(self, setting: Setting) -> Guess:
        """How long an iteration should take at a setting."""
        params = self.params
        belief = self._belief
        if not self.book.accounts or belief is None:
            return guessed(self._found.iteration_s if self._found is not None else 1.0, params.baseline_sd)
        time_s = self.book.accounts[-1].baseline()[0]
        ratio, sd, _ = belief.ratios(setting)
        guess = guessed(time_s * ratio, max(0.02, 1.5 * sd))
        if belief.visited(setting):
            return guess
        # Nobody has seen it: from nothing to everything that its clocks allow is possible.
        most = belief.slowest(setting, self._power_share())
        sd = max(guess.sd, params.unseen_sd)
        return Guess(guess.seconds, sd, params.least_time * time_s, max(most, 1.1 * ratio) * time_s)

    def _power_share(self) -> float:
        """Of the highest limit that the job draws at the default setting."""
        time_s, _, energy_j, _ = self.book.accounts[-1].baseline()
        most_w = self._space.max_power_limit_w if self._space is not None else None
        return energy_j / time_s / len(self._devices) / most_w if most_w else 1.0

    def _prior(self, reading: Reading) -> Any:
        """What a model of this GPU predicts for the job, or None."""
        model, features = self._clock_model, self._features
        if model is None or features is None:
            return None
        values = features.read()
        if not values:
            self._remark(
                features.problem or "this GPU tells no features now; tuning goes on without its model"
            )
            return None
        try:
            prediction = model.predict(values, self._space, reading.power_w / len(self._devices))
        except Exception as error:  # a model's tables may be whole and yet make no sense
            what = (
                str(error)
                if isinstance(error, WorkbenchError)
                else f"the model cannot predict ({type(error).__name__}: {error})"
            )
            self._remark(f"{what}; tuning goes on without that model")
            return None
        self.model_words = str(prediction.source)
        self._note(f"predicted by {prediction.source}")
        return prediction

    # the book

    def _cut(self, to_s: float, kind: str, known: Reading | Count | None = None) -> None:
        """Everything up to a time was one stretch at the present setting."""
        guess = self._expected(self.current)
        count_from_s = (
            self._since_s + self._settling_s(self.current) if kind == "held" and self._devices else -math.inf
        )
        self._ledger.cut(
            to_s, kind, self._source, self.current, guess, count_from_s=count_from_s, known=known
        )

    def _count(self, now_s: float) -> list[Counted]:
        """Stretches whose energy is known by now; those at the held setting go into the book once they
        prove to be of the same job.
        """
        counted = self._ledger.count(self._meter, self._source, now_s)
        for each in counted:
            if each.stretch.kind != "held":
                self.book.add(each.stretch)
        return counted

    def _believe(self) -> None:
        """What was seen at the held setting is of the job."""
        for stretch in self._suspects:
            self.book.add(stretch)
        self._suspects = []

    @property
    def iterations(self) -> float:
        """Counted since the tuner began."""
        if self._source is self._marks:
            return float(self._marks.total)
        return (
            self.book.iterations
            + self._ledger.waiting
            + sum(stretch.iterations for stretch in self._suspects)
        )

    # the end, and what is told of it

    def _note(self, words: str) -> None:
        try:
            at_s = self.clock() - self.begun_s
        except Exception:  # a simulated machine that was taken away
            at_s = self.events[-1][0] if self.events else 0.0
        self.events.append((at_s, words))

    def _remark(self, words: str) -> None:
        """A note that belongs to the result."""
        self._note(words)
        if words not in self._remarks:
            self._remarks.append(words)

    def _refuse(self, reason: str) -> None:
        self.refused, self.state = reason, "refused"
        self._note(f"not tuned: {reason}")
        self._release()

    def _release(self) -> None:
        """The GPU as it was found; nothing is watched any more."""
        self._probe = None
        if self._actuator is not None:
            self._left = self._actuator.restore() or self._left
        if self._finder is not None:
            self._finder.end()
            self._finder = None
        self._marks.end()
        if self._features is not None:
            self._features.close()
            self._features = None
        self._ledger.drop()  # and with it what the recorder keeps for it
        if self in _running:
            _running.remove(self)

    def _conclude(self, state: str) -> TuningResult:
        try:
            elapsed_s = self.clock() - self.begun_s
        except Exception:
            elapsed_s = self.events[-1][0] if self.events else 0.0
        reason = self.refused
        if not reason and self._settled_s is None:
            reason = {
                "wait": "the GPU never worked for two seconds",
                "detect": "the job ended before its iterations were found; workbench.step() in its loop "
                          "tells them at once",
            }.get(state, "the job ended before a setting was found")
        return TuningResult(
            state, self._held, self.book.saved(), self._settled_s, self._settled_iterations,
            self._source.name if self._source else "", self._table.made, self.book.spent_s, self.book.spent_j,
            self._retuned, elapsed_s, reason, tuple(self._left), tuple(self.events), tuple(self._remarks),
            any(device.simulated for device in self._whole.devices),
        )

    def _make_view(self) -> TuningView:
        device = next(iter(self._devices or self._whole.devices), None)
        saved = self.book.saved()
        period_s = uncertainty_s = None
        if self.book.accounts:
            period_s, sd, _, _ = self.book.accounts[-1].baseline()
            uncertainty_s = 1.96 * sd * period_s
        elif self._found is not None:
            period_s = self._found.iteration_s
        belief, current = self._belief, self.current
        return TuningView(
            state=self.state, words=self.words, paused=self.paused, label=self.label,
            gpu=device.name if device else "", uuid=device.uuid if device else "",
            index=device.index if device else 0, simulated=bool(device and device.simulated), over=self.over,
            objective=objective_name(self.objective), max_slowdown=self.max_slowdown,
            reference=self._space.reference if self._space is not None else Setting(),
            current=belief.named(current) if belief is not None else current, choice=self._choice,
            belief=belief.frame if belief is not None and belief.search.probes.height else None,
            probes=self._table.frame, period_s=period_s, period_uncertainty_s=uncertainty_s,
            period_source=self._source.name if self._source else "", elapsed_s=self.clock() - self.begun_s,
            iterations=round(self.iterations), spent_s=self.book.spent_s, spent_j=self.book.spent_j,
            saved_j=saved.energy_j if saved else None,
            saved_uncertainty_j=saved.uncertainty_j if saved else None,
            saved_share=saved.share if saved else None,
            saved_share_uncertainty=saved.share_uncertainty if saved else None,
            slowdown=saved.slowdown if saved else None,
            slowdown_uncertainty=saved.slowdown_uncertainty if saved else None, settled_s=self._settled_s,
            settled_iterations=self._settled_iterations, events=tuple(self.events), refused=self.refused,
            model=self.model_words,
        )

    def _lost(self) -> str:
        """Why a GPU cannot be read any more; empty where it can."""
        assert self._whole.recorder is not None
        return next(
            (problem for device in self._devices if (problem := self._whole.recorder.error(device.uuid))), ""
        )

    def _meddled(self) -> None:
        """Raises UsageError where another program has set the limit."""
        if self._actuator is not None and (words := self._actuator.changed_externally()):
            raise UsageError(words)
