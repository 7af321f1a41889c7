"""Waste: what of a run a GPU drew while it did nothing, and what to do about it.

    print(workbench.waste("resnet50"))        # the newest run of this label, or a measurement
    workbench.waste().frame                   # all runs of the log, a row for each kind
    workbench.waste(workbench.read_log("nvidia-smi.csv"))

| kind | meaning |
|---|---|
| rest | the GPU did nothing for `REST_S` or longer |
| long rest | the same for `LONG_S` or longer: a forgotten kernel, a job that waits for something |
| waits | all shorter stretches together: waits for data, for the host, for other ranks |

Idle time comes from the driver's utilisation, the share of the last 1/6 to 1 s in which a kernel ran
(NVML, nvmlUtilization_t). Nothing is claimed without it, nor of short waits where readings are further apart
than `WAITS_PACE_S`. Joules are bounds: idle power is between what no card falls below and the lowest
readings next to work.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from .. import _html
from ..errors import UsageError, checked, listed, printable, shown
from ..records import Measurement
from ..tariff import NO_TARIFF, Tariff
from .quantities import format_duration, format_energy
from .report import IDLE as IDLE_ALL
from .store import Store

REST_S, LONG_S = 5.0, 600.0
WAITS_PACE_S = 2.0
IDLE = 0.015  # utilisation up to which nothing runs: it comes in whole per cent
WINDOW_S, LATE_S = 1 / 6, 1.0  # the shortest window of a utilisation, and how late it may be
STATUS_S = 0.2  # how often the sampler asks for it
LEAST_IDLE = 0.05  # of its highest power limit: no card with a context draws less
LEAST_ROWS = 20
OFF = 1.05  # how far a power reading may be off its card's counter
VARIES = 2.0  # more than this, from low readings to high ones, is work
MARGIN_S = 0.5  # of a trace before its run and after it
ADVICE = {
    "long rest": "shut the kernel down or end the job when its work is done; nothing else frees the GPU",
    "rest": "prepare, compile and load before the GPU is taken; write checkpoints in the background",
    "waits": "more workers, prefetching and pinned memory in the data loader, or larger batches",
}


class Bounds(NamedTuple):
    """Seconds at least and at most, joules at least and at most."""

    low_s: float
    high_s: float
    low_j: float
    high_j: float


@dataclass(frozen=True)
class WasteFinding(_html.HtmlFacts):
    """One kind of waste of one GPU in one run; times and energies are 95 % intervals or wider.

    Attributes:
        label: Of the run; `gpu` is its name, or what the log calls it.
        kind: "rest", "long rest" or "waits".
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
    def advice(self) -> str:
        return ADVICE[self.kind]

    def cells(self, tariff: Tariff = NO_TARIFF) -> tuple[str, str, str, str]:
        """Time, energy, share of the run's energy, and what that is worth at most."""
        whole_j = max(self.run_j, 1e-9)
        return (
            _between(self.low_s, self.high_s, format_duration),
            _between(self.low_j, self.high_j, lambda joules: format_energy(joules, None)),
            _between(self.low_j / whole_j, self.high_j / whole_j, lambda share: f"{100 * share:.0f} %"),
            tariff.text(self.high_j),
        )

    def text(self, tariff: Tariff = NO_TARIFF) -> str:
        """Wasted energy: `waits: 3.9 s to 4.4 s, 310 J to 420 J (2 % to 3 % of the energy)`."""
        time, energy, share, worth = self.cells(tariff)
        worth = f", at most {worth.replace('less than ', '')}" if worth else ""
        return f"{self.kind}: {time}, {energy} ({share} of the energy){worth}"


def _between(low: float, high: float, form: Callable[[float], str]) -> str:
    """An interval as text: "3 s to 4 s", "at most 4 s" where little is known of its lower end."""
    least, most = form(low), form(high)
    return f"at most {most}" if high > 4 * low else most if least == most else f"{least} to {most}"


class Waste:
    """Energy drawn by idle GPUs, in one or more runs.

    Attributes:
        findings: A `WasteFinding` for each run, GPU and kind.
        notes: Unknown values, with reasons.
        examined: Number of readings that show whether the GPU worked; without any the waste is unknown.
    """

    def __init__(
        self, findings: Iterable[WasteFinding], notes: Iterable[str] = (), tariff: Tariff = NO_TARIFF,
        examined: int = 0,
    ) -> None:
        self.findings, self.notes = tuple(findings), tuple(dict.fromkeys(notes))
        self.tariff, self.examined = tariff, examined

    @property
    def frame(self) -> pl.DataFrame:
        """A row for each finding, with its share of the run's energy and its advice."""
        numbers = ("low_s", "high_s", "low_j", "high_j", "run_s", "run_j", "share")
        schema = {**dict.fromkeys(("label", "gpu", "kind"), pl.String), **dict.fromkeys(numbers, pl.Float64),
                  "advice": pl.String}
        rows = [[getattr(each, name) for name in schema] for each in self.findings]
        return pl.DataFrame(rows, schema, orient="row")

    def _together(self) -> list[WasteFinding]:
        """Findings of one label, GPU and kind as one, most joules first."""
        sums = self.frame.drop("share", "advice").group_by("label", "gpu", "kind").sum()
        return [WasteFinding(*row) for row in sums.sort("high_j", descending=True).iter_rows()]

    def __repr__(self) -> str:
        found = self._together()
        lines = [f"{each.label} {each.gpu}: {each.text(self.tariff)}".strip(" :") for each in found]
        lines += dict.fromkeys(f"{each.kind}: {each.advice}" for each in found)
        return "\n".join(map(printable, [*(lines or [self._none()]), *self.notes]))

    def _none(self) -> str:
        if not self.examined:
            return "the waste is unknown: nothing could be examined"
        return f"no waste found in {self.examined:,} readings"

    def _repr_html_(self) -> str:
        rows = [(each.label, each.gpu, each.kind, *each.cells(self.tariff), each.advice)
                for each in self._together()]
        heads = ("label", "GPU", "kind", "time", "energy", "of the energy", "worth at most", "what to do")
        return (_html.table(heads, rows) or f"<p>{self._none()}</p>") + _html.facts("", {"notes": self.notes})


@checked
def waste(
    what: Any = None, *, label: str | None = None, since: str | None = None, last: int | None = None,
    tariff: Tariff = NO_TARIFF,
) -> Waste:
    """Energy drawn by idle GPUs: in a measurement, in runs of the log, or in a trace.

    Args:
        what: A measurement, a label or id (its newest run), a log (`read_log`) or a power trace; all of the
            log where None.
        label: Runs of the log with this label only.
        since: Those from this day on (2026-11-22, local time).
        last: The newest so many of those.
        tariff: What energy is worth.

    Raises:
        UsageError: something else, nothing in the log fits, or a tariff that is none.
    """
    if not 0 <= (price := getattr(tariff, "price_per_kwh", math.nan) or 0.0) < math.inf:
        raise UsageError(f"a price of {price:g} per kWh: give 0 or more (tariff=Tariff(0.3))")
    store = Store()
    if what is None:
        from .statement import report

        return _of_log(report(last=last, label=label, since=since).measurements, store, tariff)
    for name, value in {"label": label, "since": since, "last": last}.items():
        if value is not None:
            raise UsageError(f"{name}={shown(value)} chooses runs of the log; leave out that, or `what`")
    if isinstance(what, pl.DataFrame):
        what = {"": what}
    if isinstance(what, Mapping) and all(isinstance(trace, pl.DataFrame) for trace in what.values()):
        parts = [(gpu, *_of_trace(trace)) for gpu, trace in what.items()]
        return Waste([replace(each, gpu=gpu) for gpu, found, _, _ in parts for each in found],
                     [f"{gpu}: {note}".lstrip(": ") for gpu, _, notes, _ in parts for note in notes], tariff,
                     sum(examined for *_, examined in parts))
    measured = store.find(what) if isinstance(what, str) else getattr(what, "measurement", what)
    if not isinstance(measured, Measurement):
        raise UsageError(f"{shown(what)} is no measurement, label, log or trace; workbench.waste() takes all "
                         "runs of the log")
    return _of_log([measured], store, tariff)


def _of_log(measurements: Sequence[Measurement], store: Store, tariff: Tariff) -> Waste:
    found: list[WasteFinding] = []
    notes: list[str] = []
    missing = examined = 0
    for each in measurements:
        trace = store.trace(each.id)
        if trace is None:
            missing += 1
            continue
        names = {gpu.uuid: gpu.name for gpu in each.gpus}
        traces = {str(key[0]): part for key, part in trace.partition_by("uuid", as_dict=True).items()}
        some, why, count = waste_of_run(each, traces)
        examined += count
        found += [replace(one, gpu=names.get(one.gpu, one.gpu)) for one in some]
        notes += [f"{each.label or each.id}: {note}" for note in why]
    if missing:
        notes.append(f"{missing} of {len(measurements)} runs have no power trace any more and were left out")
    return Waste(found, notes, tariff, examined)


def waste_of_run(
    measurement: Measurement, traces: Mapping[str, pl.DataFrame]
) -> tuple[list[WasteFinding], list[str], int]:
    """The waste of one measured run, notes on unknown values, and the number of examined readings.

    Args:
        measurement: The run.
        traces: Of its GPUs, by UUID, with as much before its beginning as after its end (`Meter.traces`).
    """
    found: list[WasteFinding] = []
    notes: list[str] = []
    examined = 0
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
        some, why, count = _of_trace(inside, energy_j)
        examined += count
        found += [replace(each, label=measurement.label, gpu=gpu.uuid) for each in some]
        notes += why
        if some and gpu.other_processes:
            notes.append(f"other processes used {gpu.name}: their work is no waste of this run, but their "
                         f"energy is included")
    return found, notes, examined


def _of_trace(
    trace: pl.DataFrame, energy_j: float | None = None
) -> tuple[list[WasteFinding], list[str], int]:
    """The waste in a power trace of one GPU (`trace.SCHEMA`), notes on unknown values, and the number of
    examined readings.

    Args:
        trace: Power, utilisation and, where it is known, the power limit.
        energy_j: Of the whole trace, where that is known better than by its power.
    """
    names = ("time_s", "power_w", "utilisation")
    absent = [name for name in names if name not in trace.columns or not trace[name].count()]
    known = pl.DataFrame() if absent else trace.select(names).fill_nan(None).drop_nulls().sort("time_s")
    if known.height < LEAST_ROWS:
        few = f"{known.height} readings of power and utilisation are too few"
        return [], [f"{f'no {listed(absent)}' if absent else few}; waste needs power and utilisation, at "
                    f"least {LEAST_ROWS} readings"], 0
    times, watts, busy = (known[name].to_numpy() for name in known.columns)
    limits = trace["power_limit_w"].drop_nulls().drop_nans() if "power_limit_w" in trace.columns else ()
    readings = _Readings(times, watts, np.clip(busy, 0.0, 1.0), max(limits, default=math.nan))
    if not readings.trustworthy:
        return [], ["its utilisation does not relate to its power: its waste is unknown (MIG, vGPU)"], 0
    found: dict[str, Bounds] = {}
    working = np.ones(len(times), bool)
    for stretch in readings.rests():
        working[stretch] = False
        kind = "rest" if times[stretch.stop - 1] - times[stretch.start] < LONG_S else "long rest"
        bounds = readings.rest(stretch)
        found[kind] = Bounds(*map(sum, zip(found.get(kind, (0.0,) * 4), bounds, strict=True)))
    notes = []
    if readings.pace_s > WAITS_PACE_S:
        notes.append(f"readings {readings.pace_s:.3g} s apart show no waits between iterations; record every "
                     "second or faster")
    elif (waits := readings.waits(working)) is not None:
        found["waits"] = waits
    run_s = float(times[-1] - times[0])
    run_j = float(watts @ readings.lengths) if energy_j is None else energy_j
    findings = [WasteFinding("", "", kind, *bounds, run_s, run_j) for kind, bounds in found.items()]
    return findings, notes, known.height


class _Readings:
    """Readings of one GPU; each stands for the time since the one before, or two paces of it in a hole."""

    def __init__(self, times: Any, watts: Any, busy: Any, limit_w: float) -> None:
        self.times, self.watts, self.busy, self.limit_w = times, watts, busy, limit_w
        steps = np.diff(times, prepend=times[0])
        self.reading_s = float(np.median(steps[1:]))
        self.pace_s = max(self.reading_s, STATUS_S)
        self.lengths = np.minimum(steps, 3 * self.pace_s)
        self.idle = busy <= IDLE
        # What idle power cannot be less than: a card that waits between work draws more than one at rest.
        self.least_w = LEAST_IDLE * limit_w if math.isfinite(limit_w) else 0.0

    @property
    def trustworthy(self) -> bool:
        """Whether the power at no utilisation is that of a GPU at rest, once it had a second to fall."""
        first = np.searchsorted(self.times, self.times - LATE_S)
        worked = np.concatenate([[0], np.cumsum(~self.idle)])
        settled = self.watts[self.idle & (worked[first] == worked[1:]) & (first > 0)]
        if not len(settled):
            return True
        low_w, middle_w, high_w = np.quantile(settled, (0.1, 0.5, 0.9))
        if self.idle.all():
            return bool(high_w < VARIES * low_w) and not high_w > 0.5 * self.limit_w
        return bool(middle_w < OFF * np.median(self.watts[~self.idle]))

    def rests(self) -> list[slice]:
        """Stretches of `REST_S` or longer with three idle readings or more and nothing else."""
        edges = np.flatnonzero(np.diff(np.concatenate([[0], self.idle.astype(np.int8), [0]])))
        pairs = ((int(first), int(end)) for first, end in edges.reshape(-1, 2))
        return [slice(first, end) for first, end in pairs
                if end - first >= 3 and self.times[end - 1] - self.times[first] >= REST_S]

    def rest(self, stretch: slice) -> Bounds:
        """How long it was and what it drew. Utilisation is late, so that its beginning shows late and its end
        does too, each by `LATE_S` at most; power is slow to fall.
        """
        first, last = stretch.start, stretch.stop - 1
        observed_s = float(self.times[last] - self.times[first])
        before_s = float(self.times[first] - self.times[first - 1]) + LATE_S if first else 0.0
        after_s = float(self.times[last + 1] - self.times[last]) if last + 1 < len(self.times) else 0.0
        low_s = max(observed_s - (LATE_S if after_s else 0.0), 0.0) * (1 - IDLE)
        high_s = observed_s + before_s + after_s
        low_w, mean_w = float(np.quantile(self.watts[stretch], 0.1)), float(self.watts[stretch].mean())
        self.least_w = max(self.least_w, low_w / OFF)
        return Bounds(low_s, high_s, low_s * low_w, high_s * max(mean_w, low_w))

    def waits(self, chosen: Any) -> Bounds | None:
        """Idle time and energy of readings between work; None where there is little or it is not sure."""
        if chosen.sum() < LEAST_ROWS or self.idle[chosen].all():
            return None
        idle, lengths = 1 - self.busy[chosen], self.lengths[chosen]
        time_s, idle_s = float(lengths.sum()), float(idle @ lengths)
        # Of each pace a window of utilisation is observed; the rest is like it, but for chance.
        unknown = 1 - WINDOW_S / self.pace_s
        half_s = 1.96 * float(idle.std()) * math.sqrt(unknown * self.pace_s * time_s) + self.reading_s
        half_s += 0.5 * (0.01 * time_s + LATE_S * float(np.count_nonzero(np.diff(chosen.astype(np.int8)))))
        low_s, high_s = max(idle_s - half_s, 0.0), min(idle_s + half_s, time_s)
        if low_s < IDLE * time_s:
            return None
        # A reading is a mean over work and waiting, and waiting draws less than work.
        most_w = OFF * float(np.quantile(self.watts[chosen], 0.05))
        waiting = self.watts[self.idle & chosen]
        if len(waiting) >= LEAST_ROWS:
            most_w = max(most_w, OFF * float(np.median(waiting)))
        return Bounds(low_s, high_s, low_s * min(self.least_w, most_w), high_s * most_w)


def describe_waste(findings: Sequence[WasteFinding], measurement: Measurement) -> list[str]:
    """Sentences on what took more than 3 % of a run's energy, with what to do about it.

    Its card reports GPUs that did nothing at all (`report`).
    """
    used = {gpu.uuid: number for number, gpu in enumerate(measurement.gpus)
            if (gpu.idle_share or 0.0) < IDLE_ALL}
    several = len(measurement.gpus) > 1
    sentences = []
    for each in findings:
        if each.gpu not in used:
            continue
        of_all = replace(each, run_j=measurement.energy_j or each.run_j) if several else each
        if of_all.high_j > 0.03 * of_all.run_j:
            where = f"GPU {used[each.gpu]}" if several else "the GPU"
            sentences.append(f"{of_all.text()} were drawn while {where} did nothing: {each.advice}")
    return sentences
