"""A tuner's knowledge of its GPUs, and of the job on them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..errors import UsageError
from ..experiments.iteration_sources import Count, Guess, Marked, MarkedIterations, guessed
from ..experiments.probe import Probe, Reading
from ..records import Setting
from ..search.clocks.base import Choice, Trial
from ..search.clocks.posterior import SettingPosterior
from ..search.objective import Objective, resolve_objective
from . import choice
from .accounts import Counted
from .balance import Balance
from .change_detection import (
    IDLE_S,
    LONGEST_ALARM_BACKOFF,
    ForeignProcessMonitor,
    IdleMonitor,
    ModelWatch,
    PowerLevelDetector,
)
from .detect_iterations import DetectedIterations, untrusted
from .gpus import TunedGpus
from .options import TuningRequest
from .params import PARAMS
from .record import TuningRecord


@dataclass
class Workplace:
    """Shared by all states of a working tuner, for any job.

    Attributes:
        company: Other processes on the GPUs.
        level: The power of a job without marked iterations.
        false_alarms: How often a job was taken for another and was none.
    """

    request: TuningRequest
    log: TuningRecord
    marked: MarkedIterations
    gpus: TunedGpus
    false_alarms: int = 0
    energy_failures: int = 0

    def __post_init__(self) -> None:
        uuids = [device.uuid for device in self.gpus.devices]
        self.level = PowerLevelDetector(self.gpus.recorder, uuids)
        self.company = ForeignProcessMonitor(self.gpus.devices)
        self._vitals = IdleMonitor(self.gpus.recorder, uuids)

    @property
    def objective(self) -> Objective:
        """The cost that the request asks for, on these GPUs."""
        devices = self.gpus.devices
        return resolve_objective(self.request.objective, devices[0].limits.max_power_limit_w, len(devices))

    def idle(self, now_s: float) -> bool:
        """Whether the GPUs are idle for longer than within an iteration."""
        self._vitals.observe(now_s)
        usual_s = self.log.found.iteration_s if self.log.found is not None else 0.0
        return self._vitals.idle_s > max(IDLE_S, 1.5 * usual_s)

    def probed(self, probe: Probe, reason: str) -> None:
        """Add a probe that is over to the table.

        Raises:
            UsageError: it has failed for lack of energy, as those before it.
        """
        named = self.gpus.space.reference if probe.setting == Setting() else probe.setting
        why = probe.failed
        if not why:
            self.energy_failures = 0
            self.log.probed(probe, named, "ended early" if probe.early else "kept", reason)
            return
        self.log.probed(probe, named, "failed", why)
        self.log.note(f"a probe has failed: {why}")
        self.energy_failures = self.energy_failures + 1 if "energy" in why else 0
        if self.energy_failures >= PARAMS.tries:
            raise UsageError(
                f"{why}, {self.energy_failures} times in a row; without it nothing can be compared"
            )


class TunedJob:
    """The job that is tuned, from its first baseline until it ends or another one takes its place.

    Attributes:
        choice: The best known setting, or the one pinned by hand.
        pace: Length of an iteration as last observed at the held setting, relative to the expected one.
        watch: Whether the held job is still the same.
        check_s: When the default setting is measured again; `check_every_s` after the last time.
    """

    def __init__(self, work: Workplace, found: DetectedIterations, first: Reading) -> None:
        self.work, self.found, self.source = work, found, found.source
        self.account = work.log.accounts.accounts[-1]
        self.log, self.gpus = work.log, work.gpus
        self.test = PeriodTest(work.gpus, self.traced)
        self.pinned: Setting | None = None
        self.failures, self.pace = 0, 1.0
        self.decide_s, self.decide_every_s = -math.inf, PARAMS.stretch_s  # about the held setting
        self.watch = ModelWatch(min(2.0**work.false_alarms, LONGEST_ALARM_BACKOFF))
        self.check_s, self.check_every_s = -math.inf, PARAMS.first_check_s
        self.balance = Balance(work.gpus, self.ends_s, self.log.note)
        self.read(first)
        self.choice: Choice
        self.choose()

    @property
    def belief(self) -> SettingPosterior:
        """Estimates of its settings."""
        return self.account.belief

    @property
    def baseline(self) -> Reading:
        """An iteration at the default setting, as measured last: jobs grow."""
        return self.account.baselines[-1]

    @property
    def marked(self) -> bool:
        """Whether the job reports its iterations itself."""
        return isinstance(self.source, Marked)

    @property
    def traced(self) -> bool:
        """Whether its iterations are read from the power trace."""
        return self.source.name == "power"

    def distrust(self, why: str) -> None:
        """Where iterations come from the power trace, end tuning at the default setting and claim nothing."""
        if self.traced:
            self.log.accounts.forget()
            raise untrusted(self.found.iteration_s, why)

    def read(self, reading: Reading) -> None:
        """A probe that has measured something."""
        if self.traced and (why := self.test.wrong(reading)):
            self.distrust(why)
        self.log.accounts.read(reading)
        self.pace = 1.0 if reading.setting == Setting() else self.pace
        self.belief.tell(
            reading.setting, reading.iterations, reading.time_s, reading.energy_j,
            reading.energy_uncertainty_j, reading.iteration_sd_s,
        )

    # the choice

    def choose(self) -> None:
        """Choose by current knowledge."""
        if self.pinned is not None:
            self.choice = self.belief.about(self.pinned)
            return
        self.choice = choice.best(
            self.belief, self.work.request.max_slowdown, self.log.accounts.saved(),
            common=self.baseline.common_sd,
        )

    @property
    def chosen(self) -> Setting:
        """Setting of the choice; `Setting()` for the reference."""
        return self.gpus.own(self.choice.setting)

    @property
    def safe(self) -> Setting:
        """The best setting that is known to be allowed: the choice if it was measured, else the default."""
        return self.chosen if self.choice.measured else Setting()

    @property
    def best_measured(self) -> Setting:
        """The best of the measured settings within the bound, as the panel draws them."""
        belief, bound = self.belief, self.work.request.max_slowdown
        measured = map(belief.named, belief.measured())
        allowed = [each for each in measured if bound is None or belief.ratios(each)[0] <= 1.0 + bound]
        return min(allowed, key=belief.cost)

    def reconsider(self) -> str:
        """Choose again; returns the next action: "hold" another setting, "search", or "" to stay."""
        belief, held, bound = self.belief, self.choice, self.work.request.max_slowdown
        self.choose()
        new = self.choice
        if new.setting == held.setting:
            return ""
        named, slower = self.gpus.name(new.setting), belief.ratios(held.setting)[0] - 1.0
        late = 0.0 if bound is None else choice.lost(self.log.accounts.saved(), bound)
        if bound is not None and slower > max(bound - late, belief.ratios(new.setting)[0] - 1.0):
            self.log.note(f"{named} keeps the bound")
            return "hold"
        if belief.cost(held.setting) - belief.cost(new.setting) > PARAMS.better:
            self.log.note(f"{named} is now the better one")
            return "search"
        self.choice = belief.about(held.setting)
        return ""

    def change(self) -> None:
        """The objective or the bound is another; everything that was measured counts for it."""
        self.account.belief = self.belief.again(self.work.objective, self.work.request.max_slowdown)
        self.choose()

    # its stretches

    def expected(self, setting: Setting) -> Guess:
        """How long an iteration should take at a setting."""
        time_s = self.baseline.iteration_s * self.pace
        ratio, sd, _ = self.belief.ratios(setting)
        guess = guessed(time_s * ratio, max(PARAMS.known_sd, 1.5 * sd))
        if self.belief.visited(setting):
            return guess
        # Nothing was measured there: all that its clocks allow is possible, four standard deviations wide.
        most_w = self.gpus.space.max_power_limit_w
        share = self.baseline.power_w / self.pace / len(self.gpus.devices) / most_w if most_w else 1.0
        least_s = guessed(time_s, PARAMS.known_sd).least_s
        most_s = time_s * max(self.belief.slowest(setting, share), 1.1 * ratio)
        return Guess(guess.seconds, max(guess.sd, math.log(most_s / least_s) / 4.0), least_s, most_s)

    def cut(self, to_s: float, kind: str, known: Reading | Count | None = None) -> None:
        """Everything up to a time was one stretch at the present setting."""
        current = self.gpus.current
        from_s = self.gpus.settled_by_s(to_s) if kind == "held" else -math.inf
        self.log.ledger.cut(
            to_s, kind, self.source, current, self.expected(current), count_from_s=from_s, known=known
        )

    def cut_where_long(self, now_s: float, kind: str) -> bool:
        """Cut a stretch at a setting that stays, once it is long enough to show something."""
        times = 2.0 if self.traced else 1.0
        iterations_s = PARAMS.stretch_iterations * self.expected(self.gpus.current).seconds
        if now_s - self.log.ledger.cursor_s < times * max(PARAMS.stretch_s, iterations_s):
            return False
        self.cut(now_s, kind)
        return True

    def level_changed(self, now_s: float) -> str:
        """Where iterations are not reported: a sentence, if the power is that of another job."""
        level, setting = self.work.level, self.gpus.current
        if self.marked:
            return ""
        if setting != level.setting:  # settles first
            level.begin(setting, max(now_s, self.gpus.settled_by_s(now_s)))
            return ""
        ratio, sd, energy_ratio = self.belief.ratios(setting)
        iteration_s, power_w = ratio * self.baseline.iteration_s, self.baseline.power_w * energy_ratio / ratio
        return level.observe(now_s, iteration_s, power_w, max(sd, 0.5 * PARAMS.known_sd))

    def ends_s(self, from_s: float, to_s: float) -> np.ndarray:
        """Ends of iterations between two times; none where the job does not report them."""
        return self.source.since(from_s, to_s) if isinstance(self.source, Marked) else np.empty(0)

    def rebalance(self, now_s: float) -> bool:
        """Reduce clocks of GPUs that wait, or restore them; returns whether anything was changed."""
        clocks_mhz = self.balance.change(now_s)
        if clocks_mhz is None:
            return False
        self.cut(now_s, "held")
        self.gpus.reduce(clocks_mhz)
        self.watch = ModelWatch(self.watch.tolerance)  # the same job at another power
        return True

    def count(self, now_s: float) -> list[Counted]:
        """Stretches at the held setting whose energy is known by now."""
        return self.log.count(self.gpus.meter, self.source, now_s)


class PeriodTest:
    """Whether the power readings show the job's own iterations, or an alias of something faster.

    Where a clock falls, an iteration takes longer, by at most the ratio of the clocks. An alias moves many
    times as far, or becomes shorter. Every reading is compared with those just before it. The first trials
    run at slightly lower clocks: so small a step cannot move an alias all the way round to where it was.
    """

    def __init__(self, gpus: TunedGpus, traced: bool) -> None:
        self._gpus = gpus
        self._left = PARAMS.tests if traced else 0
        self._known: list[tuple[Reading, tuple[float, float]]] = []

    def next(self) -> Trial | None:
        """The next test: a setting a little slower than the one before; None once all are done."""
        if not self._left:
            return None
        first, (clock_mhz, _) = self._known[0]
        space, made = self._gpus.space, PARAMS.tests - self._left
        # A power limit may hold the clock below the highest already.
        clock = clock_mhz / (space.max_sm_clock_mhz or clock_mhz)
        watts = first.power_w / len(self._gpus.devices) / (space.max_power_limit_w or math.inf)
        lower = np.minimum(space.x / clock, space.limit / max(watts, 1e-3) / 0.95)
        lower = np.where((space.mu < 1.0) | (lower >= 0.97), np.inf, lower)
        pick = int(np.argmin(np.abs(lower - PARAMS.test_clock ** (1 + made))))
        self._left -= 1
        return Trial(space.settings[pick], 12, 5.0, "to test whether the period follows the clock")

    def wrong(self, reading: Reading) -> str:
        """Why a reading cannot be of the same iterations as the ones before; empty where it can."""
        clocks = self._gpus.clocks_mhz(reading)
        if not clocks[0] > 0:
            return "the GPU does not report the SM clock that it should follow"
        for other, others in self._known:
            if reading.start_s - other.end_s > PARAMS.compared_s:
                continue
            # Parts of an iteration that wait for a clock stretch by its ratio, all others not at all.
            ratios = [b / a for a, b in zip(clocks, others, strict=True) if a > 0 and b > 0]
            low = math.prod(min(1.0, each) for each in ratios)
            high = math.prod(max(1.0, each) for each in ratios)
            ratio = reading.iteration_s / other.iteration_s
            error = 3.0 * math.hypot(reading.sd_s / reading.iteration_s, other.sd_s / other.iteration_s)
            error += PARAMS.ratio_error
            if not low * (1.0 - error) < ratio < high * (1.0 + error):
                return f"it became {ratio:.3f} times as long, and the clocks allow {low:.3f} to {high:.3f}"
        self._known.append((reading, clocks))
        return ""
