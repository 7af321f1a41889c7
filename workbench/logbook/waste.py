"""Waste: what of a run a GPU drew while it did nothing, and what to do about it.

    print(workbench.waste("resnet50"))        # the newest run of this label, or a measurement
    workbench.waste().frame                   # all runs of the log, a row for each kind
    workbench.waste(workbench.read_log("nvidia-smi.csv"))

| kind | what it is |
|---|---|
| rest | the GPU did nothing for `REST_S` or longer |
| long rest | the same for `LONG_S` or longer: a forgotten kernel, a job that waits for something |
| waits | all shorter stretches together: waits for data, for the host, for other ranks |
| evaluation, checkpoint, ... | phases that the training named; at most all of their energy is waste |

What is idle is told by the driver's utilisation, the share of the last 1/6 to 1 s in which a kernel ran
(NVML, nvmlUtilization_t). Nothing is claimed without it, nor of short waits where readings are further apart
than `WAITS_PACE_S`. Joules are bounds: idle power lies between what no card falls below and the lowest
readings beside work.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from .. import _html
from ..errors import UsageError, checked, shown
from ..records import UNNAMED_KINDS, Measurement
from ..tariff import NO_TARIFF, Tariff, significant
from . import result_card
from .quantities import format_duration
from .store import Store

REST_S, LONG_S = 5.0, 600.0
WAITS_PACE_S = 2.0
IDLE = 0.015  # utilisation up to which nothing runs: it comes in whole per cent
WINDOW_S, LATE_S = 1 / 6, 1.0  # the shortest window of a utilisation, and how late it may be
STATUS_S = 0.2  # how often the sampler asks for it
LEAST_SHARE = 0.02  # of the time: less waiting than this is not told from the pauses between two kernels
LEAST_IDLE = 0.05  # of its highest power limit: no card with a context draws less
LEAST_ROWS = 20
OFF = 1.05  # how far a power reading may be off its card's counter
VARIES = 2.0  # more than this, from low readings to high ones, is work
SETTLED = 5
MARGIN_S = 0.5  # of a trace before its run and after it
ADVICE = {
    "long rest": "shut the kernel down or end the job when its work is done; nothing else frees the GPU",
    "rest": "prepare, compile and load before the GPU is taken, or in a process of its own",
    "waits": "more workers, prefetching and pinned memory in the data loader, or larger batches",
    "checkpoint": "write checkpoints in the background, or less often",
    "": "evaluate less often or on a part; a lower power limit there costs time and no result",
}


_Bounds = tuple[float, float, float, float]  # seconds at least and at most, joules at least and at most


@dataclass(frozen=True, slots=True)
class WasteFinding(_html.HtmlFacts):
    """One kind of waste of one GPU in one run; times and energies are 95 % intervals or wider.

    Attributes:
        label: Of the run; `gpu` is its name, or what the log calls it.
        kind: "rest", "long rest", "waits", or the phase's name.
        low_s: At least so long; `high_s` at most.
        low_j: At least so many joules; `high_j` at most.
        run_s: How long the run was, and `run_j` what this GPU drew in it.
    """

    label: str
    gpu: str
    kind: str
    low_s: float
    high_s: float
    low_j: float
    high_j: float
    run_s: float
    run_j: float

    @property
    def share(self) -> float:
        """Of the run's energy, 0..1: the middle of the interval."""
        return (self.low_j + self.high_j) / 2 / self.run_j if self.run_j > 0 else 0.0

    @property
    def idle(self) -> bool:
        """Whether nothing ran in it, or it is a phase of the training that may be shorter."""
        return self.kind in ("rest", "long rest", "waits")

    @property
    def advice(self) -> str:
        return ADVICE.get(self.kind, ADVICE[""])

    def text(self, tariff: Tariff = NO_TARIFF) -> str:
        """What was wasted: `waits: 3.9 to 4.4 s (7 %), 310 to 420 J (2 to 3 % of the energy)`."""
        percent = f"{100 * (self.low_s + self.high_s) / 2 / max(self.run_s, 1e-9):.0f} %"
        time = f"{_between(self.low_s, self.high_s, format_duration)} ({percent})"
        joules = _between(self.low_j, self.high_j, _joules)
        worth = tariff.text(self.high_j)
        return (f"{self.kind}: {time}, {joules} ({_percent(self)} of the energy)"
                f"{f', at most {worth}' if worth else ''}")


def _percent(found: WasteFinding) -> str:
    low, high = (100 * value / max(found.run_j, 1e-9) for value in (found.low_j, found.high_j))
    return f"{low:.0f} to {high:.0f} %" if round(low) < round(high) else f"{high:.0f} %"


def _between(low: float, high: float, form: Any) -> str:
    """An interval in words: "3 to 4 s", "at most 4 s" where little is known of its lower end."""
    if high > 4 * low:
        return f"at most {form(high)}"
    least, most = form(low), form(high)
    number, _, unit = least.partition(" ")
    return most if least == most else f"{number if most.endswith(f' {unit}') else least} to {most}"


def _joules(value: float) -> str:
    """Joules to three digits: bounds are known no better."""
    scale, unit = (1e6, "MJ") if value >= 1e6 else (1e3, "kJ") if value >= 1e4 else (1.0, "J")
    return f"{significant(value / scale)} {unit}"


class Waste:
    """What was drawn while nothing was done, in one or more runs.

    Attributes:
        findings: A `WasteFinding` for each run, GPU and kind.
        notes: What could not be told, and why.
    """

    def __init__(
        self, findings: Iterable[WasteFinding], notes: Iterable[str] = (), tariff: Tariff = NO_TARIFF
    ) -> None:
        self.findings, self.notes = tuple(findings), tuple(dict.fromkeys(notes))
        self.tariff = tariff

    @property
    def frame(self) -> pl.DataFrame:
        """A row for each finding, with its share of the run's energy and its advice."""
        schema = {"label": pl.String, "gpu": pl.String, "kind": pl.String, **dict.fromkeys(
            ("low_s", "high_s", "low_j", "high_j", "run_s", "run_j", "share"), pl.Float64),
            "advice": pl.String}
        return pl.DataFrame([asdict(each) | {"share": each.share, "advice": each.advice}
                             for each in self.findings], schema=schema)

    def __repr__(self) -> str:
        lines = [f"{' '.join(filter(None, (each.label, each.gpu)))}: {each.text(self.tariff)}"
                 for each in _together(self.findings)]
        kinds = dict.fromkeys(each.kind for each in self.findings)
        lines += [f"{kind}: {ADVICE.get(kind, ADVICE[''])}" for kind in kinds]
        return "\n".join([*(lines or ["no waste found"]), *self.notes])

    def _repr_html_(self) -> str:
        rows = [(each.label, each.gpu, each.kind, _between(each.low_s, each.high_s, format_duration),
                 _between(each.low_j, each.high_j, _joules), _percent(each),
                 self.tariff.text(each.high_j), each.advice) for each in _together(self.findings)]
        heads = ("label", "GPU", "kind", "time", "energy", "of the energy", "worth at most", "what to do")
        kept = [n for n, _ in enumerate(heads) if any(row[n] for row in rows)]
        drawn = _html.table([heads[n] for n in kept], [[row[n] for n in kept] for row in rows])
        return (drawn or "<p>no waste found</p>") + _html.facts("", {"notes": self.notes})


def _together(findings: Sequence[WasteFinding]) -> list[WasteFinding]:
    """Findings of one label, GPU and kind as one, most joules first."""
    sums: dict[tuple[str, str, str], WasteFinding] = {}
    for each in findings:
        key, names = (each.label, each.gpu, each.kind), ("low_s", "high_s", "low_j", "high_j", "run_s",
                                                         "run_j")
        known = sums.get(key)
        sums[key] = each if known is None else replace(
            known, **{name: getattr(known, name) + getattr(each, name) for name in names})
    return sorted(sums.values(), key=lambda each: -each.high_j)


@checked
def waste(
    what: Any = None, *, label: str | None = None, since: str | None = None, last: int | None = None,
    tariff: Tariff = NO_TARIFF,
) -> Waste:
    """What was drawn while nothing was done: in a measurement, in the runs of the log, or in a trace.

    Args:
        what: A measurement, a label or id (its newest run), a log (`read_log`) or a power trace; all of the
            log where None.
        label: Runs of the log with this label only.
        since: Those from this day on (2026-11-22, local time).
        last: The newest so many of those.
        tariff: What energy is worth.

    Raises:
        UsageError: something else, or nothing in the log fits.
    """
    if what is None:
        from .statement import report

        return _of_log(report(last=last, label=label, since=since).measurements, Store(), tariff)
    if isinstance(what, str):
        return _of_log([Store().find(what)], Store(), tariff)
    if isinstance(what, pl.DataFrame):
        return Waste(*_of_trace(what), tariff)
    if isinstance(what, Mapping):
        parts = [(gpu, *_of_trace(trace)) for gpu, trace in what.items()]
        return Waste([replace(each, gpu=gpu) for gpu, found, _ in parts for each in found],
                     [f"GPU {gpu}: {note}" for gpu, _, notes in parts for note in notes], tariff)
    measured = what if isinstance(what, Measurement) else getattr(what, "measurement", None)
    if not isinstance(measured, Measurement):
        raise UsageError(f"{shown(what)} is no measurement, label, log or trace; workbench.waste() takes all "
                         "runs of the log")
    return _of_log([measured], Store(), tariff)


def _of_log(measurements: Sequence[Measurement], store: Store, tariff: Tariff) -> Waste:
    found: list[WasteFinding] = []
    notes: list[str] = []
    missing = 0
    for each in measurements:
        trace = store.trace(each.id)
        if trace is None:
            missing += 1
            continue
        names = {gpu.uuid: gpu.name for gpu in each.gpus}
        traces = {str(key[0]): part for key, part in trace.partition_by("uuid", as_dict=True).items()}
        some, why = waste_of_run(each, traces, store.iterations(each.id))
        found += [replace(one, gpu=names.get(one.gpu, one.gpu)) for one in some]
        notes += [f"{each.label or each.id}: {note}" for note in why]
    if missing:
        notes.append(f"{missing} of {len(measurements)} runs have no power trace any more and were left out")
    return Waste(found, notes, tariff)


def waste_of_run(
    measurement: Measurement, traces: Mapping[str, pl.DataFrame], iterations: pl.DataFrame | None = None
) -> tuple[list[WasteFinding], list[str]]:
    """The waste of one measured run, and what could not be told.

    Args:
        measurement: The run.
        traces: Of its GPUs, by UUID, with as much before its beginning as after its end (`Meter.traces`).
        iterations: Its frame of iterations (`periods.segment.SCHEMA`), whose phases are named.
    """
    found: list[WasteFinding] = []
    notes: list[str] = []
    phases = [] if iterations is None else [
        (row["kind"], row["start_s"], row["end_s"])
        for row in iterations.filter(~pl.col("kind").is_in(UNNAMED_KINDS)).iter_rows(named=True)]
    for gpu in measurement.gpus:
        trace = traces.get(gpu.uuid)
        if trace is None or not trace.height:
            notes.append(f"{gpu.name} has no power trace")
            continue
        first_s, last_s = float(trace["time_s"][0]), float(trace["time_s"][-1])
        more_s, energy_j = max(0.0, (last_s - first_s - measurement.time_s) / 2), gpu.energy_j
        if measurement.repeats > 1:  # its time and energy are means; the trace is that of the last
            more_s, energy_j = MARGIN_S, None
        inside = trace.filter(pl.col("time_s").is_between(first_s + more_s, last_s - more_s))
        some, why = _of_trace(inside, phases, energy_j)
        found += [replace(each, label=measurement.label, gpu=gpu.uuid) for each in some]
        notes += why
        if some and gpu.other_processes:
            notes.append(f"other processes used {gpu.name}: what they did is no waste of this run, and what "
                         "they drew is in it")
    return found, notes


def _of_trace(
    trace: pl.DataFrame, phases: Sequence[tuple[str, float, float]] = (), energy_j: float | None = None
) -> tuple[list[WasteFinding], list[str]]:
    """The waste in a power trace of one GPU (`trace.SCHEMA`), and what could not be told.

    Args:
        trace: Power, utilisation and, where it is known, the power limit.
        phases: Name, beginning and end (s) of stretches that are no training.
        energy_j: Of the whole trace, where that is known better than by its power.
    """
    if not {"time_s", "utilisation", "power_w"} <= set(trace.columns):
        return [], ["a trace needs the columns time_s, power_w and utilisation"]
    known = trace.select("time_s", "power_w", "utilisation").fill_nan(None).drop_nulls().sort("time_s")
    if known.height < LEAST_ROWS:
        return [], [f"{known.height} readings of power and utilisation tell nothing of waste; "
                    f"{LEAST_ROWS} are needed"]
    times, watts, busy = (known[name].to_numpy() for name in known.columns)
    readings = _Readings(times, watts, np.clip(busy, 0.0, 1.0), _limit_w(trace))
    if not readings.trustworthy:
        return [], ["its utilisation says nothing of its power: no waste can be told (MIG, vGPU)"]
    whole_j = readings.joules(np.ones(len(times), bool)) if energy_j is None else energy_j
    run_s = float(times[-1] - times[0])
    found: list[tuple[str, _Bounds]] = []
    named = np.zeros(len(times), bool)
    of_phases = {kind: np.zeros(len(times), bool) for kind, _, _ in phases}
    for kind, start_s, end_s in phases:
        of_phases[kind] |= (readings.middles > start_s) & (readings.middles <= end_s)
        named |= of_phases[kind]
    rests = readings.rests(~named)
    resting = np.zeros(len(times), bool)
    for kind, shortest_s, longest_s in (("long rest", LONG_S, math.inf), ("rest", REST_S, LONG_S)):
        stretches = [each for each in rests if shortest_s <= times[each.stop - 1] - times[each.start]
                     < longest_s]
        for each in stretches:
            resting[each] = True
            readings.count_at_rest(each)
        if stretches:
            bounds = np.sum([readings.rest(each) for each in stretches], axis=0)
            found.append((kind, (float(bounds[0]), float(bounds[1]), float(bounds[2]), float(bounds[3]))))
    found += [(kind, readings.phase(inside)) for kind, inside in of_phases.items() if inside.any()]
    notes = []
    working = ~named & ~resting
    if readings.pace_s > WAITS_PACE_S:
        notes.append(f"readings {readings.pace_s:.3g} s apart show no waits between iterations; record every "
                     "second or faster")
    elif (waits := readings.waits(working)) is not None:
        found.append(("waits", waits))
    return [WasteFinding("", "", kind, *bounds, run_s, whole_j) for kind, bounds in found], notes


def _limit_w(trace: pl.DataFrame) -> float:
    """The highest power limit in a trace; NaN where it has none."""
    highest = trace["power_limit_w"].fill_nan(None).max() if "power_limit_w" in trace.columns else None
    return math.nan if highest is None else float(highest)  # type: ignore[arg-type]


class _Readings:
    """Readings of one GPU; each stands for the time since the one before, or two paces of it in a hole."""

    def __init__(self, times: Any, watts: Any, busy: Any, limit_w: float) -> None:
        self.times, self.watts, self.busy, self.limit_w = times, watts, busy, limit_w
        steps = np.diff(times, prepend=times[0])
        self.pace_s = float(np.median(steps[1:]))
        self.lengths = np.minimum(steps, 3 * max(self.pace_s, STATUS_S))
        self.middles = times - self.lengths / 2
        self.idle = busy <= IDLE
        # What idle power cannot be less than.
        self.least_w = LEAST_IDLE * limit_w if math.isfinite(limit_w) else 0.0

    @property
    def trustworthy(self) -> bool:
        """Whether the power at no utilisation is that of a GPU at rest, once it had a second to fall."""
        first = np.searchsorted(self.times, self.times - LATE_S)
        worked = np.concatenate([[0], np.cumsum(~self.idle)])
        settled = self.idle & (worked[first] == worked[1:]) & (first > 0)
        if settled.sum() < SETTLED:
            return True
        low_w, high_w = np.quantile(self.watts[settled], (0.1, 0.9))
        if self.idle.all():
            return bool(high_w < VARIES * low_w) and not high_w > 0.5 * self.limit_w
        return bool(np.median(self.watts[settled]) < OFF * np.median(self.watts[~self.idle]))

    def joules(self, chosen: Any) -> float:
        return float(self.watts[chosen] @ self.lengths[chosen])

    def rests(self, chosen: Any) -> list[slice]:
        """Stretches of `REST_S` or longer with three idle readings or more and nothing else."""
        edges = np.flatnonzero(np.diff(np.concatenate([[0], (self.idle & chosen).astype(np.int8), [0]])))
        pairs = ((int(first), int(end)) for first, end in edges.reshape(-1, 2))
        return [slice(first, end) for first, end in pairs
                if end - first >= 3 and self.times[end - 1] - self.times[first] >= REST_S]

    def count_at_rest(self, stretch: slice) -> None:
        """Take the power at rest for the least: a card that waits between work draws more than one at rest.
        """
        self.least_w = max(self.least_w, 0.9 * float(np.quantile(self.watts[stretch], 0.1)))

    def rest(self, stretch: slice) -> _Bounds:
        """How long it was and what it drew. Utilisation is late, so that its beginning shows late and its end
        does too, each by `LATE_S` at most; power is slow to fall.
        """
        first, last = stretch.start, stretch.stop - 1
        observed_s = float(self.times[last] - self.times[first])
        before_s = float(self.times[first] - self.times[first - 1]) + LATE_S if first else 0.0
        after_s = float(self.times[last + 1] - self.times[last]) if last + 1 < len(self.times) else 0.0
        low_s = max(observed_s - (LATE_S if after_s else 0.0), 0.0) * (1 - IDLE)
        high_s = observed_s + before_s + after_s
        watts = self.watts[stretch]
        low_w, mean_w = float(np.quantile(watts, 0.1)), float(watts.mean())
        return low_s, high_s, low_s * low_w, high_s * max(mean_w, low_w)

    def phase(self, chosen: Any) -> _Bounds:
        """A phase that the training named: how long it was, what its idle part drew at least, and all of it
        drew.
        """
        time_s = float(self.lengths[chosen].sum())
        idle_s = float(((1 - self.busy) * self.lengths)[chosen].sum())
        return time_s, time_s, idle_s * self.least_w, self.joules(chosen)

    def waits(self, chosen: Any) -> _Bounds | None:
        """Idle time and energy of readings between work; None where there is little or it is not sure."""
        time_s = float(self.lengths[chosen].sum())
        if chosen.sum() < LEAST_ROWS or not (self.busy[chosen] > IDLE).any():
            return None
        idle, lengths = 1 - self.busy[chosen], self.lengths[chosen]
        idle_s = float(idle @ lengths)
        # Of each pace a window of utilisation is seen; the rest is like it, but for chance.
        pace_s = max(self.pace_s, STATUS_S)
        unseen = max(0.0, 1 - WINDOW_S / pace_s)
        half_s = 1.96 * float(idle.std()) * math.sqrt(unseen * pace_s * time_s) + 0.005 * time_s + self.pace_s
        half_s += 0.5 * LATE_S * float(np.count_nonzero(np.diff(chosen.astype(np.int8))))
        low_s, high_s = max(idle_s - half_s, 0.0), min(idle_s + half_s, time_s)
        if low_s < LEAST_SHARE * time_s:
            return None
        # A reading is a mean over work and waiting, and waiting draws less than work.
        most_w = OFF * float(np.quantile(self.watts[chosen], 0.05))
        waiting = self.idle & chosen
        if waiting.sum() >= LEAST_ROWS:
            most_w = max(most_w, OFF * float(np.median(self.watts[waiting])))
        return low_s, high_s, low_s * min(self.least_w, most_w), high_s * most_w


def describe_waste(
    findings: Sequence[WasteFinding], measurement: Measurement, least: float = 0.03
) -> list[str]:
    """Sentences on what took more than a share of a run's energy, with what to do about it.

    Of GPUs that did nothing at all its card tells (`result_card`).
    """
    used = {gpu.uuid: number for number, gpu in enumerate(measurement.gpus)
            if (gpu.idle_share or 0.0) < result_card.IDLE}
    several = len(measurement.gpus) > 1
    sentences = []
    for each in findings:
        if each.gpu not in used or not each.idle:
            continue
        of_all = replace(each, run_j=measurement.energy_j or each.run_j) if several else each
        if of_all.high_j > least * of_all.run_j:
            where = f"GPU {used[each.gpu]}" if several else "the GPU"
            sentences.append(f"{of_all.text()} were drawn while {where} did nothing: {each.advice}")
    return sentences
