"""What others do with a job of `benchmarks.truth`: each method once, and two ways to run it.

A method is a generator. It asks for measurements (`Ask`), receives the result (`Seen`, or None for none),
and returns the setting for the rest of the job.

`in_loop`
    On the stepped machine, with the information that our tuner has: the steps that a job reports, otherwise
    the product's own detection; energies and clocks by the product's recorder. Where it finds nothing that
    can be counted, a method stays at the default setting. No method notices that the work changes.
`privileged`
    From the tables: true ends of iterations, energies with a standard error of 1 %, and every change of the
    work is known, and the method starts again.

limit 75 %, 80 %, 90 %; SM 80 %, 90 %
    A fixed share of the default power limit, or of the highest SM clock.
clock rule
    The lowest SM clock whose ratio to the mean clock under load allows at most the slowdown limit. It reads
    clocks for two seconds and measures no time.
Zeus
    Its power-limit optimizer: 5 s at each limit (steps of 25 W), then the limit of the least cost at eta 0.5
    (NSDI'23, equation 2).
Zeus, limited
    The same with its largest allowed slowdown (`MaxSlowdownConstraint`).
GPOEO
    Its search over clocks (the port of `workbench.search.clocks.gpoeo`) with the slowdown limit.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks import clocks_jobs
from benchmarks.fixtures.true_jobs import Part, TrueJob
from workbench.records import Setting

LIMITS, CLOCKS = (0.75, 0.80, 0.90), (0.80, 0.90)
ENERGY_ERROR = 0.01  # relative standard deviation of what the privileged methods measure
ZEUS_STEP_W, ZEUS_S, ZEUS_ETA = 25, 5.0, 0.5
RULE_S = 2.0
LENGTHS = 1.06  # by which an iteration may be shorter or longer than its clocks suggest
HOPELESS_S = 60.0  # without iterations, after which a method stays at the default setting


@dataclass(frozen=True)
class Ask:
    """A measurement: a setting, whole iterations and seconds at least; 0 iterations: of the clock alone."""

    setting: Setting
    iterations: int
    seconds: float


@dataclass(frozen=True)
class Seen:
    """Iterations, seconds, joules with their standard error, and the mean SM clock under load."""

    iterations: int
    time_s: float
    energy_j: float
    energy_sd_j: float
    clock_mhz: float


Method = Callable[[TrueJob], Generator[Ask, Seen | None, Setting]]


def fixed(setting: Callable[[TrueJob], Setting]) -> Method:
    """A method that measures nothing."""

    def method(job: TrueJob) -> Generator[Ask, Seen | None, Setting]:
        return setting(job)
        yield

    return method


def _limit(share: float) -> Callable[[TrueJob], Setting]:
    def setting(job: TrueJob) -> Setting:
        low_w, default_w, _ = job.card.power_limit_w
        return Setting(power_limit_w=max(low_w, float(round(share * default_w))))

    return setting


def _clock(share: float) -> Callable[[TrueJob], Setting]:
    def setting(job: TrueJob) -> Setting:
        clocks = [each.sm_clock_mhz for each in job.settings() if each.sm_clock_mhz is not None]
        near = [clock for clock in clocks if clock >= share * job.card.sm_clocks_mhz[0]]
        return Setting(sm_clock_mhz=min(near)) if near else Setting()

    return setting


def clock_rule(job: TrueJob) -> Generator[Ask, Seen | None, Setting]:
    seen = yield Ask(Setting(), 0, RULE_S)
    clocks = [each.sm_clock_mhz for each in job.settings() if each.sm_clock_mhz is not None]
    if seen is None or not clocks:
        return Setting()
    return Setting(sm_clock_mhz=min(
        (clock for clock in clocks if seen.clock_mhz / clock <= 1 + job.max_slowdown), default=max(clocks)
    ))


def zeus(job: TrueJob) -> Generator[Ask, Seen | None, Setting]:
    limits = yield from _profiled_limits(job)
    most_w = job.card.power_limit_w[2]

    def cost(setting: Setting) -> float:
        return ZEUS_ETA * limits[setting][1] + (1 - ZEUS_ETA) * most_w * limits[setting][0]

    return min(limits, key=cost, default=Setting())


def zeus_limited(job: TrueJob) -> Generator[Ask, Seen | None, Setting]:
    limits = yield from _profiled_limits(job)
    most_s = (1 + job.max_slowdown) * next(iter(limits.values()))[0] if limits else 0.0
    return min(
        (each for each in limits if limits[each][0] <= most_s), key=lambda each: limits[each][1],
        default=Setting(),
    )


def _profiled_limits(
    job: TrueJob
) -> Generator[Ask, Seen | None, dict[Setting, tuple[float, float]]]:
    """Seconds and joules per iteration at each limit, highest first, as far as anything is seen."""
    low_w, default_w, _ = job.card.power_limit_w
    found = {}
    for watts in np.arange(default_w, low_w - 1e-9, -ZEUS_STEP_W):
        setting = Setting(power_limit_w=float(watts))
        seen = yield Ask(setting, 1, ZEUS_S)
        if seen is None:
            break
        found[setting] = (seen.time_s / seen.iterations, seen.energy_j / seen.iterations)
    return found


def gpoeo(job: TrueJob) -> Generator[Ask, Seen | None, Setting]:
    from benchmarks.peers import make_search, report
    from workbench.search.space import space_of

    settings = job.settings()
    clocks = [setting for setting in settings if setting.sm_clock_mhz is not None]
    space = space_of(
        [Setting(), *(clocks or settings[1:])], Setting(), max_power_limit_w=job.card.power_limit_w[1]
    )
    search = make_search("gpoeo", space, None, job.max_slowdown)
    while (plan := search.next(search.now_s)).kind != "held":
        setting = space.settings[plan.row]
        seen = yield Ask(setting, plan.count, plan.seconds)
        if seen is not None:
            report(search, plan.row, seen.iterations, seen.time_s, seen.energy_j, seen.energy_sd_j)
        elif setting == Setting() or len(search.barred) >= 2:
            return Setting()
        else:
            search.bar(plan.row, "nothing was seen")
    return space.settings[plan.row]


FIXED: dict[str, Method] = {
    **{f"limit {100 * share:.0f} %": fixed(_limit(share)) for share in LIMITS},
    **{f"SM {100 * share:.0f} %": fixed(_clock(share)) for share in CLOCKS},
}
METHODS: dict[str, Method] = {
    **FIXED, "clock rule": clock_rule, "Zeus": zeus, "Zeus, limited": zeus_limited, "GPOEO": gpoeo,
}


# from the tables


def privileged(job: TrueJob, name: str) -> tuple[float, float]:
    """Seconds and joules of the whole job with a method that knows the true ends of iterations."""
    bills = [Bill(job, part, f"{name} {number}") for number, part in enumerate(job.parts)]
    for bill in bills:
        method = METHODS[name](job)
        seen = None
        try:
            while not bill.ended:
                seen = bill.measure(method.send(seen))
        except StopIteration as held:
            bill.hold(held.value)
    return sum(bill.time_s for bill in bills), sum(bill.energy_j for bill in bills)


class Bill:
    """A part of a tuned job: iterations are consumed in order, at their true cost."""

    def __init__(self, job: TrueJob, part: Part, salt: str) -> None:
        self.job, self.part = job, part
        self.time_s = self.energy_j = 0.0
        self.done = 0
        self._rng = random.Random(f"{job.seed} {job.number} {salt}")

    @property
    def ended(self) -> bool:
        return self.done >= len(self.part)

    def measure(self, ask: Ask) -> Seen | None:
        """Measure at a setting; None where the part ended before."""
        begin, count = self.done, max(1, ask.iterations)
        while True:
            end = min(begin + count, len(self.part))
            time_s, energy_j = self.part.cost(self.job.card, ask.setting, begin, end)
            if time_s >= ask.seconds or end == len(self.part):
                break
            count = max(count + 1, math.ceil(count * min(8.0, 1.02 * ask.seconds / time_s)))
        self.done = end
        self.time_s += time_s
        self.energy_j += energy_j
        if end - begin < ask.iterations or time_s < ask.seconds:
            return None
        measured_j = energy_j * (1 + self._rng.gauss(0.0, ENERGY_ERROR))
        clock_mhz = self.part.clock_mhz(self.job.card, ask.setting, begin, end)
        return Seen(end - begin, time_s, measured_j, ENERGY_ERROR * measured_j, clock_mhz)

    def hold(self, setting: Setting) -> None:
        """Run the rest at a setting."""
        if not self.ended:
            self.measure(Ask(setting, len(self.part) - self.done, 0.0))


# on the machine


def in_loop(seed: int, job: TrueJob, name: str) -> tuple[float, float]:
    """Seconds and joules of the whole job on the machine, with a method that knows what our tuner knows."""
    from workbench.measurement.session import current

    session = current()
    session.close()
    present = job.machine(seed)
    run, loop = clocks_jobs.Run(job, present), Loop(session, METHODS[name](job))
    try:
        session.meter  # made before the job begins, as %%energy does  # noqa: B018
        present.step(2.0)
        return clocks_jobs.train_all(run, job.trainings(present), loop)
    finally:
        loop.end()
        session.close()
        present.close()


class Loop:
    """Runs a method next to a job, as the tuner's thread would."""

    PACE_S = 0.1

    def __init__(self, session: Any, method: Generator[Ask, Seen | None, Setting]) -> None:
        from workbench.experiments.iteration_sources import MarkedIterations
        from workbench.tuning.options import TuningRequest
        from workbench.tuning.record import TuningRecord

        self._meter, self._method = session.meter, method
        clock = self._meter.clock
        self._marked = MarkedIterations(clock, None)
        self._request, self._log = TuningRequest(), TuningRecord(clock)
        self._steps = self._run()
        next(self._steps)
        self._gpus: Any = None
        self._ended = False

    def __call__(self, run: clocks_jobs.Run) -> float:
        self._marked.sample(self._meter.clock())
        if not self._ended:
            try:
                next(self._steps)
            except StopIteration:
                self._ended = True
        return math.inf if self._ended else self.PACE_S

    def end(self) -> None:
        if self._gpus is not None:
            self._gpus.restore()
        self._marked.marks.end()

    def _run(self) -> Generator[None, None, None]:
        """One short step per value."""
        from workbench.tuning.change_detection import busy_gpus
        from workbench.tuning.gpus import TunedGpus

        yield
        recorder, clock = self._meter.recorder, self._meter.clock
        while not (busy := busy_gpus(recorder, self._meter.devices, clock())):
            yield
        self._gpus = TunedGpus(busy, self._meter, recorder, self._request, self._log)
        hold = recorder.hold(lambda: clock() - 60.0)  # noqa: F841 (the recorder keeps so much while it lives)
        found = seen = None
        try:
            while True:
                ask = self._method.send(seen)
                if ask.iterations and found is None:
                    found = yield from self._detected()
                    if found is None:
                        self._gpus.put(Setting())
                        return
                seen = yield from self._measured(ask, found)
        except StopIteration as held:
            self._gpus.put(held.value)

    def _detected(self) -> Generator[None, None, Any]:
        """The iterations that the product finds; None where there are none to be counted."""
        from workbench.errors import WorkbenchError
        from workbench.tuning.detect_iterations import IterationDetector

        gpus = self._gpus
        finder = IterationDetector(
            gpus.recorder, gpus.devices, self._marked.marks, self._marked.counter, self._meter.clock()
        )
        try:
            begun_s = self._meter.clock()
            while (found := finder.observe(self._meter.clock())) is None:
                if finder.given_up or self._meter.clock() > begun_s + HOPELESS_S:
                    return None
                yield
            return found
        except WorkbenchError:
            return None
        finally:
            finder.end()

    def _measured(self, ask: Ask, found: Any) -> Generator[None, None, Seen | None]:
        from workbench.experiments.iteration_sources import Guess, Trace
        from workbench.search.clocks.descent import Plan
        from workbench.tuning.blocks import BlockMeter, Usual, clock_under_load

        gpus, clock = self._gpus, self._meter.clock
        uuid = gpus.devices[0].uuid
        begin_s = clock()
        if not ask.iterations:
            while clock() < begin_s + ask.seconds:
                yield
            clock_mhz = clock_under_load(gpus.recorder.rows(uuid, begin_s, clock()), 0.0)
            return Seen(0, ask.seconds, 0.0, 0.0, clock_mhz) if clock_mhz > 0 else None
        if ask.setting != gpus.current:
            gpus.put(ask.setting)
        most = self._most(ask.setting)
        low_s, high_s = found.iteration_s / LENGTHS, found.iteration_s * most * LENGTHS
        guess = Guess(math.sqrt(low_s * high_s), math.log(high_s / low_s) / 4, low_s, high_s)
        meter = BlockMeter(
            gpus, found.source, Plan(0, ask.seconds, ask.iterations, "trial", ""), Usual(), asked_s=begin_s,
            unit_s=guess.seconds, guess=guess if isinstance(found.source, Trace) else None, origin_s=0.0,
        )
        while not meter.over:
            meter.advance(clock())
            yield
        block = meter.block
        if block is None or not block.count:
            return None
        half_s = 0.5 * block.time_s
        clock_mhz = clock_under_load(gpus.recorder.rows(uuid, block.at_s - half_s, block.at_s + half_s), 0.0)
        return Seen(round(block.count), block.time_s, block.energy_j, block.energy_sd_j, clock_mhz)

    def _most(self, setting: Setting) -> float:
        """How much longer an iteration may take, by the ratios of clocks and limits."""
        limits = self._gpus.devices[0].limits
        most = 1.0
        if setting.sm_clock_mhz:
            most *= max(max(each) for each in limits.sm_clocks_mhz.values()) / setting.sm_clock_mhz
        if setting.mem_clock_mhz:
            most *= max(limits.sm_clocks_mhz) / setting.mem_clock_mhz
        if setting.power_limit_w:
            most *= (limits.default_power_limit_w / setting.power_limit_w) ** 2
        return most
