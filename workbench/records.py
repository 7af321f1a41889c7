"""Frozen records that subpackages exchange, without logic except derived properties."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple

from ._html import HtmlFacts, record_table
from .errors import check_fields, suggesting


@dataclass(frozen=True)
class Setting(HtmlFacts):
    """A setting of a GPU; `None` leaves that knob to the driver."""

    power_limit_w: float | None = None
    sm_clock_mhz: int | None = None
    mem_clock_mhz: int | None = None

    def __post_init__(self) -> None:
        check_fields(self)

    def __str__(self) -> str:
        knobs = (
            ("{:g} W", self.power_limit_w), ("SM {} MHz", self.sm_clock_mhz),
            ("memory {} MHz", self.mem_clock_mhz),
        )
        knob_texts = [form.format(value) for form, value in knobs if value is not None]
        return ", ".join(knob_texts) or "driver default"


@dataclass(frozen=True)
class Limits(HtmlFacts):
    """The range of a GPU: power limits in watts, and the SM clocks supported at each memory clock."""

    min_power_limit_w: float | None = None
    default_power_limit_w: float | None = None
    max_power_limit_w: float | None = None
    sm_clocks_mhz: dict[int, tuple[int, ...]] = field(default_factory=dict)

    @property
    def mem_clocks_mhz(self) -> tuple[int, ...]:
        """Memory clocks, highest first."""
        return tuple(sorted(self.sm_clocks_mhz, reverse=True))


@dataclass(frozen=True)
class Capability(HtmlFacts):
    """Whether a device answers one question; `reason` gives the reason if not."""

    name: str
    present: bool
    reason: str = ""


# Bits of `throttle` in samples and traces. They are NVIDIA's; other drivers translate their own to these.
CLOCKS_SET, POWER_CAP = 0x2, 0x4
THROTTLE_REASONS = {
    CLOCKS_SET: "clocks set by user", POWER_CAP: "power cap", 0x8: "hardware slowdown", 0x10: "sync boost",
    0x20: "thermal (software)", 0x40: "thermal (hardware)", 0x80: "power brake", 0x100: "display clocks",
}


def throttle_names(bits: int) -> tuple[str, ...]:
    """Reasons of throttling in words; idling is none."""
    return tuple(name for bit, name in THROTTLE_REASONS.items() if bits & bit)


class Sample(NamedTuple):
    """One sample of a GPU: NaN where it has no value; `throttle` has the bits of `THROTTLE_REASONS`."""

    time_s: float
    energy_j: float
    power_w: float
    power_limit_w: float
    sm_clock_mhz: float
    mem_clock_mhz: float
    utilisation: float
    memory_utilisation: float
    temperature_c: float
    throttle: int


@dataclass(frozen=True)
class Process(HtmlFacts):
    """A process that uses a GPU; memory in bytes where the driver reports."""

    pid: int
    name: str
    memory_bytes: int | None = None


class Edge(NamedTuple):
    """One GPU's energy counter at one side of a window: the middle of the call that read it (device clock),
    its answer, and how long the call took, somewhere in which it was answered.
    """

    time_s: float
    energy_j: float
    took_s: float = 0.0


@dataclass(frozen=True)
class DetectedPeriod(HtmlFacts):
    """One period of a training job: its micro-step, iteration (optimizer step) or a cycle of many iterations.

    Attributes:
        name: Its role: "micro-step", "iteration" or "cycle" (evaluation, checkpoint, a stalling data loader).
        period_s: The period.
        uncertainty_s: Half width of the 95 % interval of `period_s`.
        confidence: Calibrated probability, 0..1, that the period is right within 5 % and has the role in
            `name`.
        phase_s: The moment of one boundary, on the trace's clock; others follow every `period_s`.
        explained: Share 0..1 of the power's variance that a shape repeated with this period explains.
        period_confidence: The same probability that the job has a period of this length in any role.
            `role` is how sure `name` is, given that the period is there.
    """

    name: str
    period_s: float
    uncertainty_s: float
    confidence: float
    phase_s: float
    explained: float
    period_confidence: float = 0.0

    def __post_init__(self) -> None:
        if self.period_confidence < self.confidence:  # what has a role is there
            object.__setattr__(self, "period_confidence", self.confidence)

    @property
    def role(self) -> float:
        """Probability, 0..1, of the role in `name`, given that the period is there."""
        return self.confidence / self.period_confidence if self.period_confidence > 0 else 0.0


@dataclass(frozen=True)
class Periods(HtmlFacts):
    """The periods found in a power trace, shortest first; empty, or not `sure`, with the reason in words.

    Attributes:
        levels: All periods; those below `sure` are best guesses.
        sure: Whether the iteration may be relied upon: the period, and that it is the iteration.
        reason: Why there is none, or why it is not sure.
        longer_s: How many more seconds of trace would probably settle it; 0 for none, None where unknown.
        notes: What else was seen: gaps, a change of the period on the way, drift.
        steady: Whether there surely is a period, in any role; `main_sure` counts a sure role too.
        cycle_sure: Whether `main` is known to be a cycle of iterations that the sensor cannot show.
    """

    levels: tuple[DetectedPeriod, ...] = ()
    sure: bool = False
    reason: str = ""
    longer_s: float | None = None
    notes: tuple[str, ...] = ()
    steady: bool = False
    cycle_sure: bool = False

    @property
    def main_sure(self) -> bool:
        """Whether `main` may be relied upon to be there; its role only where `role_sure`."""
        return self.steady or self.role_sure

    @property
    def role_sure(self) -> bool:
        """Whether it is known what `main` is: the iteration, or a cycle of hidden iterations."""
        return self.sure or self.cycle_sure

    @property
    def main(self) -> DetectedPeriod | None:
        """The level to rely on: the iteration if it is sure, else the most certain one."""
        if self.sure and self.iteration is not None:
            return self.iteration
        return max(
            self.levels, key=lambda level: (level.period_confidence, level.name == "iteration"), default=None
        )

    def doubted(self, reason: str, longer_s: float | None = 0.0) -> Periods:
        """The same levels as guesses, with the reason why nothing of them may be relied upon."""
        return replace(
            self, sure=False, steady=False, cycle_sure=False, reason=reason, longer_s=longer_s
        )

    @property
    def iteration(self) -> DetectedPeriod | None:
        """The level that is the training iteration (optimizer step)."""
        return self._level("iteration")

    @property
    def micro_step(self) -> DetectedPeriod | None:
        """The level that is a forward and backward pass within an iteration."""
        return self._level("micro-step")

    @property
    def cycle(self) -> DetectedPeriod | None:
        """The level of several iterations: evaluations, checkpoints."""
        return self._level("cycle")

    def _level(self, name: str) -> DetectedPeriod | None:
        return next((level for level in self.levels if level.name == name), None)


class Phase(NamedTuple):
    """A stretch that is no iteration: an "evaluation", a "checkpoint" or any other word of the training."""

    kind: str
    start_s: float
    end_s: float


@dataclass(frozen=True)
class WorkDone(HtmlFacts):
    """How much of a kind of work was done: "tokens", "samples"; "evaluation tokens" inside such a phase."""

    name: str
    amount: float


@dataclass(frozen=True)
class Marks(HtmlFacts):
    """Marks of a training while a window was open; times are on the device clock.

    Attributes:
        runs: Each an unbroken row of moments; an iteration is between two that follow one another.
        phases: Evaluations, checkpoints and the like; their time is no iteration's.
        edges: Whether the stretch before the first or after the last moment may be an iteration too.
        work: Counted work, in total.
        notes: Values that were not counted.
    """

    runs: tuple[tuple[float, ...], ...] = ()
    phases: tuple[Phase, ...] = ()
    edges: bool = False
    work: tuple[WorkDone, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """Iterations that are between two marks."""
        return sum(max(len(run) - 1, 0) for run in self.runs)


NO_MARKS = Marks()


# Kinds of stretches that no training named; what else a frame of iterations has is a phase or its name.
UNNAMED_KINDS = ("iteration", "long iteration", "pause", "other", "micro-step", "cycle")


@dataclass(frozen=True)
class LevelCost(HtmlFacts):
    """Time and energy of one kind of stretch inside a measurement: iterations, cycles, evaluations, pauses,
    the rest.

    Attributes:
        name: Its kind. Levels overlap (a cycle contains iterations); kinds of one frame of iterations do not.
            "iteration at 150 W" is what ran under one of several settings.
        count: How many there were.
        time_s: Of all of them together; `each_s` of one.
        energy_j: Of all of them together, or None where it is not known; `each_j` of one.
        every: How many iterations there are to one of these; None for iterations and what does not repeat.
    """

    name: str
    count: int
    time_s: float
    energy_j: float | None
    each_s: float
    each_j: float | None
    every: float | None = None

    @property
    def setting(self) -> str:
        """The setting, where iterations under it are counted apart from those under others; else empty."""
        kind, _, setting = self.name.partition(" at ")
        return setting if kind in ("iteration", "cycle") else ""


@dataclass(frozen=True)
class IterationSummary(HtmlFacts):
    """Time and energy of one training iteration, as a mean over the iterations of a measurement.

    Attributes:
        count: How many iterations the means are over; 0 where none was found, then `reason` explains it.
        time_s: Mean time of one; `time_uncertainty_s` the half width of its 95 % interval.
        energy_j: Mean energy of one, all GPUs together; `energy_uncertainty_j` the half width of its 95 %
            interval, with the spread from iteration to iteration and the measurement's own error.
        source: "marks" (reported by the training), "detected" (from the power trace), or "none".
        levels: What each kind of stretch cost in all.
        sure: Whether it may be relied upon; marks always may. `reason` gives the reason if not.
        detected_s: The trace's own period, next to marks (`check` compares them) or as an unsure guess.
    """

    count: int
    time_s: float | None = None
    time_uncertainty_s: float | None = None
    energy_j: float | None = None
    energy_uncertainty_j: float | None = None
    source: str = "none"
    levels: tuple[LevelCost, ...] = ()
    sure: bool = True
    reason: str = ""
    detected_s: float | None = None
    check: str = ""


class Window(NamedTuple):
    """A stretch of time to be measured, on the device's clock; `closed` is empty while it is open.

    `opened` and `closed` hold an `Edge` per GPU, in the meter's order.
    `opened_unix_s` is the civil time at its opening, independent of a simulated device's clock. Its meter
    knows it by `key`, open or closed.
    A tuple: two are made for each window, and a frozen dataclass takes four times as long.
    """

    label: str
    start_s: float
    opened: tuple[Edge, ...]
    end_s: float | None = None
    closed: tuple[Edge, ...] = ()
    host_opened: Mapping[str, float] = MappingProxyType({})
    host_closed: Mapping[str, float] = MappingProxyType({})
    notes: tuple[str, ...] = ()
    marks: Marks = NO_MARKS
    opened_unix_s: float | None = None
    key: object = None

    def _repr_html_(self) -> str:
        return record_table(self)


@dataclass(frozen=True)
class SettingSegment(HtmlFacts):
    """A stretch of a measurement under one setting: its length and energy (None where it is not known)."""

    setting: Setting
    time_s: float
    energy_j: float | None


@dataclass(frozen=True)
class GpuMeasurement(HtmlFacts):
    """One GPU in a window. `None` marks missing values; `notes` have the reasons.

    `setting` was active for most of the time. Where it changed inside, `segments` has every stretch of half a
    second or more, in order.

    `energy_uncertainty_j` is the half width of a 95 % interval. The card's own calibration (typically +-5 %)
    comes on top and is the same for every window on one card.
    """

    name: str
    uuid: str
    energy_j: float | None
    energy_uncertainty_j: float | None
    source: str
    simulated: bool
    mean_power_w: float | None = None
    peak_power_w: float | None = None
    idle_share: float | None = None
    mean_utilisation: float | None = None
    setting: Setting = Setting()
    power_limit_w: float | None = None
    sm_clock_mhz: float | None = None
    throttle_reasons: tuple[str, ...] = ()
    other_processes: tuple[Process, ...] = ()
    samples: int = 0
    gaps: int = 0
    notes: tuple[str, ...] = ()
    segments: tuple[SettingSegment, ...] = ()


@dataclass(frozen=True)
class Measurement(HtmlFacts):
    """A measured window: time (the device's clock), energy per GPU and in total, with uncertainties.

    With `repeats` > 1 values are means over runs and `time_sd_s`, `energy_sd_j` their standard deviations.
    `iterations` is None where they were not looked for. `kind` is the kind of measurement, as in the log:
    "cell", "tuned cell", "block", "loop", "command", "tuned command", "sweep", "recurring job", "shared GPU",
    "comparison", "imported"; empty where it was not kept.
    `work` is what the training counted. `batch_size` is known where a sweep or a recurring job chose it.
    In a comparison the values are of one call, and each run made `calls` of them.
    """

    id: str
    label: str
    started_unix_s: float
    time_s: float
    gpus: tuple[GpuMeasurement, ...] = ()
    cpu_energy_j: float | None = None
    dram_energy_j: float | None = None
    repeats: int = 1
    time_sd_s: float | None = None
    energy_sd_j: float | None = None
    outcome: str = "ok"
    notes: tuple[str, ...] = ()
    iterations: IterationSummary | None = None
    kind: str = ""
    work: tuple[WorkDone, ...] = ()
    batch_size: int | None = None
    calls: int | None = None

    @property
    def energy_j(self) -> float | None:
        """Energy of all GPUs together, or None where one of them could not be measured."""
        if not self.gpus or any(gpu.energy_j is None for gpu in self.gpus):
            return None
        return sum(gpu.energy_j for gpu in self.gpus if gpu.energy_j is not None)

    @property
    def energy_uncertainty_j(self) -> float | None:
        """95 % half width of `energy_j`; the GPUs' edges are independent, so the squares add."""
        parts = [gpu.energy_uncertainty_j for gpu in self.gpus]
        if not parts or any(part is None for part in parts):
            return None
        return float(sum(part**2 for part in parts if part is not None) ** 0.5)

    @property
    def mean_power_w(self) -> float | None:
        """Energy of all GPUs over the time (W); None where the energy is not known."""
        return None if self.energy_j is None or self.time_s <= 0 else self.energy_j / self.time_s

    @property
    def simulated(self) -> bool:
        """Whether any of its GPUs was simulated."""
        return any(gpu.simulated for gpu in self.gpus)

    @property
    def source(self) -> str:
        """The source of the energy: counter, integrated, both or none; with "simulated" for simulated
        GPUs.
        """
        sources = sorted({gpu.source for gpu in self.gpus}) or ["none"]
        return "+".join(sources) + (", simulated" if self.simulated else "")


@dataclass(frozen=True)
class Configuration(HtmlFacts):
    """One point of the search space: what the device is put to, and the batch size (None = the job's own)."""

    setting: Setting = Setting()
    batch_size: int | None = None

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class Observation(HtmlFacts):
    """Units of work at a configuration: how many, and their time and energy. Two observations add up.

    Attributes:
        configuration: The setting of the GPUs, and the batch size.
        count: Units of work: iterations, or multiples of an average one's tokens; 0 where none was counted.
        time_s, energy_j: Of all units, and of all GPUs together; `energy_sd_j` is the standard error.
        scatter: Relative standard deviation of a unit's time; 0 where units were not timed one by one.
        time_sd: Relative standard error of the mean time of a unit, where it is not that of `scatter`.
        at_s: Its middle, on the clock of who observed it.
        clock_mhz: Mean SM clock under load; NaN where it is not reported.
        source: How units were counted: "marks", "counter", "power", or empty.
    """

    configuration: Configuration
    count: float
    time_s: float
    energy_j: float
    energy_sd_j: float = 0.0
    scatter: float = 0.0
    time_sd: float = 0.0
    at_s: float = 0.0
    clock_mhz: float = math.nan
    source: str = ""

    def __add__(self, other: Observation) -> Observation:
        """Both as one, at the configuration of the first."""
        time_s = self.time_s + other.time_s
        mine, its = self.time_s / time_s, other.time_s / time_s
        return replace(
            self, count=self.count + other.count, time_s=time_s, energy_j=self.energy_j + other.energy_j,
            energy_sd_j=math.hypot(self.energy_sd_j, other.energy_sd_j),
            scatter=math.sqrt(mine * self.scatter**2 + its * other.scatter**2),
            time_sd=math.hypot(mine * self.time_sd, its * other.time_sd),
            at_s=mine * self.at_s + its * other.at_s,
            clock_mhz=mine * self.clock_mhz + its * other.clock_mhz,
        )


for _made in (Setting, Configuration):  # that a person makes
    _made.__init__ = suggesting(_made.__init__)  # type: ignore[method-assign]
