"""Two ways of doing the same work, compared fairly: they take turns until their difference is known.

    found = workbench.compare(train_small, train_large)       # functions, measured now
    found = workbench.compare(Setting(power_limit_w=250), Setting(power_limit_w=200), work=train)
    found = workbench.compare("before", "after")              # labels of the log, as far as that goes
    print(found)

Runs take turns in random order; temperature and drift are part of the estimate (`difference`), so that nobody
has to wait for the GPU to cool. It ends by itself.
"""

from __future__ import annotations

import html
import inspect
import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from .. import _html
from ..device.discovery import Gpus
from ..errors import MeasurementError, NoDriver, UsageError, checked, shown
from ..logbook.equal_work import UNKNOWN_WORK, caveats, comparison_basis
from ..logbook.quantities import format_duration
from ..logbook.store import Store, from_row, unknown
from ..measurement import session
from ..measurement.api import gpu_settings
from ..measurement.meter import Meter
from ..measurement.repeats import repeated, with_iterations
from ..records import Measurement, Setting, Window, WorkDone
from .difference import LEAST_PAIRS, TOO_WIDE, UNKNOWN, Ratio, difference, enough, order
from .progress import ProgressLine

RUN_S = 2.0  # a run is as many calls as take this long: a shorter one has a wide error of its own
RUNS = pl.Schema({
    "way": pl.Int64, "label": pl.String, "calls": pl.Int64,
    "energy_j": pl.Float64, "energy_uncertainty_j": pl.Float64, "time_s": pl.Float64,  # of one unit
    "temperature_c": pl.Float64,  # of the hottest GPU as the run began
})
Work = Callable[[], object]
DEFAULT = Setting()


@dataclass(frozen=True)
class EnergyComparison:
    """Two ways of working, compared; energies and times are those of one `unit`.

    Attributes:
        labels: Names of the first and the second.
        energy: Joules of the second over the first, with a 95 % interval; `time` likewise seconds.
        runs: A row of `RUNS` for each run, in order.
        ended: Why no more were made.
        simulated: Whether no joule of it is real.
        notes: Limitations.
        unit: "call", or "run" of the log. For unequal work "sample", "iteration" or the like.
    """

    labels: tuple[str, str]
    energy: Ratio
    time: Ratio
    runs: pl.DataFrame
    ended: str
    simulated: bool = False
    notes: tuple[str, ...] = ()
    unit: str = "call"

    def __str__(self) -> str:
        """The answer in one sentence."""
        first, second = self.labels
        per = "" if self.unit in ("call", "run") else f" per {self.unit}"
        if not self.energy.high < TOO_WIDE:
            return f"{first} and {second} cannot be compared yet: {self.runs.height} runs; {self.ended}"
        if not self.energy.significant:
            return f"no measurable difference in energy{per} between {first} and {second}; time {self.time}"
        much = f"{abs(100 * (self.energy.value - 1)):.1f} %"
        less = "less" if self.energy.value < 1 else "more"
        low, high = sorted(abs(100 * (each - 1)) for each in (self.energy.low, self.energy.high))
        return (f"{second} takes {much} {less} energy{per} than {first} ({low:.1f} to {high:.1f} %); "
                f"time {self.time}")

    __repr__ = __str__

    def _repr_html_(self) -> str:
        means = self.runs.group_by("way", "label", maintain_order=True).agg(
            pl.len(), pl.col("energy_j", "time_s", "temperature_c").mean()).sort("way")
        rows = [(label, count, *(f"{each:.4g}" if each is not None else "" for each in rest))
                for _, label, count, *rest in means.iter_rows()]
        heads = ("", "runs", f"J per {self.unit}", f"s per {self.unit}", "°C at the start")
        notes = "".join(f"<li>{html.escape(note)}</li>" for note in (self.ended, *self.notes) if note)
        title = html.escape(str(self)) + _html.SIMULATED * self.simulated
        return (f"<div class='gpu-comparison'><p><b>{title}</b></p>{_html.table(heads, rows)}"
                f"<ul style='margin:.3em 0;opacity:.8'>{notes}</ul></div>")


@checked
def compare(
    a: Work | Setting | str, b: Work | Setting | str, *, work: Work | None = None,
    labels: Sequence[str] | None = None, min_effect: float = 0.02, timeout_s: float = 300.0,
    max_pairs: int = 200, gpus: Gpus = None, seed: int | None = None,
) -> EnergyComparison:
    """Which of two takes less energy and time for the same work, by how much, and how sure that is.

    Functions and settings are run now: one unmeasured call each, then turns until a difference of
    `min_effect` would be found in nine cases of ten, or `timeout_s` is spent. Settings are restored. Both
    ways are in the log afterwards, also where one of them fails. Labels are looked up in the log: all their
    runs count.

    Args:
        a, b: Two functions without arguments, two settings of the GPU, or two labels of the log.
        work: With settings, what to run under each.
        labels: Names for the two; those of the functions or settings where None.
        min_effect: The difference worth finding: 0.02 is 2 %.
        timeout_s: Seconds of runs after which it ends; the interval is as wide as it is then.
        max_pairs: Pairs of runs at most.
        gpus: Which GPUs to count and set, as `devices` takes them; all visible ones where None.
        seed: Of the order; another one each time where None.

    Raises:
        UsageError: two that cannot be compared, numbers that make no sense. NoDriver: no GPU here.
        MeasurementError: a run without an energy.
    """
    if not 0 < min_effect < 1:
        raise UsageError(f"min_effect={shown(min_effect)}: give a share between 0 and 1; "
                         "0.02 finds 2 %")
    if not timeout_s > 0:
        raise UsageError(f"timeout_s={shown(timeout_s)} measures nothing; give seconds above 0")
    if max_pairs < 2:
        raise UsageError(f"{max_pairs} pair of runs shows no spread; give at least 2 pairs")
    if isinstance(a, str) and isinstance(b, str):
        for name, value in {"work": work, "labels": labels, "gpus": gpus, "seed": seed}.items():
            if value is not None:
                raise UsageError(f"{name}={shown(value)} is for work that runs now, and {a!r} and {b!r} are "
                                 "labels of the log; leave it out")
        return compare_logged(Store(), a, b)
    ways, names = _ways(a, b, work)
    if labels is not None:
        if len(labels) != 2:
            raise UsageError(f"labels of {shown(labels)}: give two names, one for each way")
        names = (str(labels[0]), str(labels[1]))
    for way in ways:
        _without_arguments(way.call)
    return _Alternation(ways, names, gpus).run(min_effect, timeout_s, max_pairs, seed)


@dataclass(frozen=True)
class Way:
    """One of two ways: what to call, and the setting it is called under (none leaves the GPU alone)."""

    call: Work
    setting: Setting = DEFAULT


def _ways(a: object, b: object, work: Work | None) -> tuple[tuple[Way, Way], tuple[str, str]]:
    if isinstance(a, Setting) and isinstance(b, Setting):
        if not callable(work):
            raise UsageError("two settings are compared on a piece of work: give work=, a function without "
                             "arguments")
        return (Way(work, a), Way(work, b)), (_setting_name(a), _setting_name(b))
    if callable(a) and callable(b):
        if work is not None:
            raise UsageError("work= belongs to two settings; of two functions each is its own work")
        names = [str(getattr(each, "__qualname__", type(each).__name__)) for each in (a, b)]
        same = names[0] == names[1]
        return (Way(a), Way(b)), (names[0] + " (A)" * same, names[1] + " (B)" * same)
    raise UsageError(f"{shown(a)} and {shown(b)} cannot be compared: give two functions (omit their "
                     "parentheses), two settings, or two labels of the log")


def _without_arguments(work: Callable[..., object]) -> None:
    """Raises UsageError for a function that needs arguments."""
    try:
        inspect.signature(work).bind()
    except TypeError as error:
        raise UsageError(f"{getattr(work, '__name__', shown(work))} is called without arguments ({error}); "
                         "give lambda: f(...)") from None
    except ValueError:  # a function in C has no signature
        return


def _setting_name(setting: Setting) -> str:
    known = {"power_limit_w": "W", "sm_clock_mhz": "MHz", "mem_clock_mhz": "MHz memory"}
    parts = [f"{value:g} {unit}" for name, unit in known.items() if (value := getattr(setting, name))]
    return ", ".join(parts) or "default"


class _Alternation:
    """Two ways that take turns on the GPUs of this process."""

    def __init__(self, ways: tuple[Way, Way], labels: tuple[str, str], gpus: Gpus) -> None:
        self._ways, self._labels, self._gpus = ways, labels, gpus
        self._meter: Meter = session.current().meter_or_clock(gpus)
        if not self._meter.devices:
            raise NoDriver(f"there is no GPU to measure ({self._meter.why}); choose a simulated one with "
                           "workbench.simulate('A100')")
        for way in ways:  # a refusal comes before the work
            if way.setting != DEFAULT:
                with gpu_settings(way.setting, gpus=gpus):
                    pass
        self._rows: list[dict[str, Any]] = []
        self._measured: tuple[list[Measurement], list[Measurement]] = ([], [])
        self._windows: dict[int, Window] = {}
        self._active: int | None = None

    def run(self, min_effect: float, timeout_s: float, most: int, seed: int | None) -> EnergyComparison:
        kept: list[str] = []
        try:
            with ProgressLine(f"Comparing {' and '.join(self._labels)}") as progress, ExitStack() as held:
                ended = self._alternate(held, progress, min_effect, timeout_s, most, seed)
        finally:
            kept = self._keep()
        measured = [_of_one_call(self._measured[row["way"]].pop(0), row["calls"]) for row in self._rows]
        return _result(self._labels, pl.DataFrame(self._rows, schema=RUNS), ended, measured, sequential=True,
                       notes=tuple(kept))

    def _alternate(
        self, held: ExitStack, progress: ProgressLine, min_effect: float, timeout_s: float, most: int,
        seed: int | None,
    ) -> str:
        clock, order_of_ways = self._meter.clock, order(seed)
        progress.tell(0.0, "warming up")
        calls = [self._warm(held, number) for number in (0, 1)]
        began_s = clock()
        while True:
            for number in (next(order_of_ways), next(order_of_ways)):
                spent_s, done = clock() - began_s, len(self._rows)
                left = format_duration(max(timeout_s - spent_s, 0.0))
                progress.tell(max(spent_s / timeout_s, done / (2 * most)),
                              f"run {done + 1}, {self._labels[number]}; at most {left} left")
                self._once(held, number, calls[number])
            pairs = len(self._rows) // 2
            if pairs >= LEAST_PAIRS and enough(*_columns(self._rows, "energy_j"), min_effect):
                return f"a difference of {100 * min_effect:g} % would have been found: {2 * pairs} runs"
            if (spent_s := clock() - began_s) >= timeout_s or pairs >= most:
                return (f"the budget is spent ({spent_s:.0f} s, {2 * pairs} runs); a larger one (timeout_s=, "
                        "max_pairs=) makes the interval narrower")

    def _warm(self, held: ExitStack, number: int) -> int:
        self._enter(held, number, warm=False)
        return calls_of_a_run(self._meter, self._ways[number].call)

    def _enter(self, held: ExitStack, number: int, *, warm: bool = True) -> None:
        """Apply the setting of a way; a changed one is in effect after a call that is not measured."""
        way = self._ways[number]
        before = DEFAULT if self._active is None else self._ways[self._active].setting
        self._active = number
        if way.setting == before:
            return
        held.close()
        if way.setting != DEFAULT:
            held.enter_context(gpu_settings(way.setting, gpus=self._gpus))
        if warm:
            way.call()

    def _once(self, held: ExitStack, number: int, calls: int) -> None:
        self._enter(held, number)
        label, call = self._labels[number], self._ways[number].call
        temperature_c = self._temperature_c()
        measured, window = measure_calls(self._meter, label, call, calls)
        self._measured[number].append(measured)
        self._windows[number] = window
        energy_j = countable_j(measured)
        self._rows.append({
            "way": number, "label": label, "calls": calls, "energy_j": energy_j / calls,
            "energy_uncertainty_j": (measured.energy_uncertainty_j or 0.0) / calls,
            "time_s": measured.time_s / calls, "temperature_c": temperature_c,
        })

    def _temperature_c(self) -> float | None:
        """Of the hottest GPU now; None where none tells."""
        known = [device.sample().temperature_c for device in self._meter.devices]
        return max((each for each in known if math.isfinite(each)), default=None)

    def _keep(self) -> list[str]:
        """Both ways into the log, each as one measurement of several runs."""
        remarks: list[str] = []
        for number, window in self._windows.items():
            calls = {row["calls"] for row in self._rows if row["way"] == number}
            run = _of_one_call(repeated(self._measured[number]), max(calls, default=1))
            remarks += session.keep(run, window, self._meter, Store(), kind="comparison")
        return remarks


def calls_of_a_run(meter: Meter, call: Work) -> int:
    """Call something unmeasured, twice: the first call compiles and loads. How many calls take `RUN_S`."""
    took_s = 0.0
    for _ in range(2):
        began_s = meter.clock()
        call()
        took_s = meter.clock() - began_s
        if took_s >= RUN_S:
            break
    return max(1, math.ceil(RUN_S / max(took_s, RUN_S / 10_000)))


def measure_calls(meter: Meter, label: str, call: Work, calls: int) -> tuple[Measurement, Window]:
    """Call something so many times as one window; an error of it passes through.

    Args:
        meter: Measures the window.
        label: Of the measurement.
        call: The function.
        calls: How often it is called in the window.
    """
    window = meter.open(label)
    try:
        for _ in range(calls):
            call()
    finally:
        window = meter.close(window)
    measured = meter.measure(window)
    found = meter.count(window, measured) if window.marks.count else None
    return with_iterations(measured, found), window


def countable_j(measured: Measurement) -> float:
    """The joules of a run that can be compared. Raises MeasurementError where there are none."""
    if measured.energy_j is None or not measured.energy_j > 0 or not measured.time_s > 0:
        why = "; ".join(note for gpu in measured.gpus for note in gpu.notes) or "no energy was counted"
        raise MeasurementError(f"{measured.label} cannot be compared: {why}")
    return measured.energy_j


def compare_logged(store: Store, a: str, b: str) -> EnergyComparison:
    """The same from the runs of two labels of the log; runs that failed or have no energy are left out.

    Raises:
        UsageError: a label with no such run, or runs that cannot be compared.
    """
    if a == b:
        raise UsageError(f"{a!r} is compared with itself; give two labels")
    sound = (pl.col("outcome") == "ok") & (pl.col("energy_j") > 0) & (pl.col("time_s") > 0)
    whole = store.log().filter(sound, pl.col("label").is_in([a, b]))
    found = [from_row(row) for row in whole.iter_rows(named=True)]
    sides = [[each for each in found if each.label == label] for label in (a, b)]
    for label, side in zip((a, b), sides, strict=True):
        if not side:
            if label not in (labels := store.log()["label"]):
                raise unknown(label, labels)
            raise UsageError(f"no run labelled {label!r} is complete and has an energy; run it again")
    if problem := comparison_basis(found).problem:
        raise UsageError(f"{a} and {b} are not compared: {problem}")
    runs = whole.select(
        (pl.col("label") == b).cast(pl.Int64).alias("way"), "label", pl.lit(1, pl.Int64).alias("calls"),
        "energy_j", pl.col("energy_uncertainty_j").fill_null(0.0), "time_s",
        pl.lit(None, pl.Float64).alias("temperature_c"),
    )
    plural = "" if whole.height == 1 else "s"
    return _result((a, b), runs, f"{whole.height} logged run{plural}", found, sequential=False,
                   notes=tuple(_differences(*sides)))


def _differences(first: Sequence[Measurement], second: Sequence[Measurement]) -> list[str]:
    """What also the way differs between logged runs."""
    remarks = caveats(*first, *second)
    settings = [{gpu.setting for m in side for gpu in m.gpus} for side in (first, second)]
    if settings[0] != settings[1]:
        remarks.append("the two ran under different settings: that is part of the difference")
    if len(first) + len(second) < 2 * LEAST_PAIRS:
        remarks.append("few runs; workbench.compare of two functions runs both until the result is clear")
    return remarks


def _columns(rows: Sequence[dict[str, Any]], name: str) -> tuple[list[int], list[float], list[float]]:
    warm = [math.nan if row["temperature_c"] is None else row["temperature_c"] for row in rows]
    return [row["way"] for row in rows], [row[name] for row in rows], warm


def _result(
    labels: tuple[str, str], runs: pl.DataFrame, ended: str, measured: Sequence[Measurement], *,
    sequential: bool, notes: tuple[str, ...] = (),
) -> EnergyComparison:
    basis, unit = comparison_basis(measured), "call" if sequential else "run"
    if basis.unit != "run":
        unit, columns = basis.unit, ("energy_j", "energy_uncertainty_j", "time_s")
        costs = zip(columns, zip(*basis.costs, strict=True), strict=False)
        runs = runs.with_columns(pl.Series(name, values) for name, values in costs)
        notes += (f"the two did unequal work: energy and time are those of one {unit}",)
    elif basis.problem == UNKNOWN_WORK:
        notes += ("how much work a call does is not known: each call is taken to do the same",)
    rows = runs.to_dicts()
    energy, time = (
        difference(*_columns(rows, name), sequential=sequential) for name in ("energy_j", "time_s")
    )
    if energy is UNKNOWN and runs.height == 2:
        energy = _by_errors(rows)
    shared = [m for m in measured if any(gpu.other_processes for gpu in m.gpus)]
    if shared:
        notes += (f"other processes used the GPU in {len(shared)} of {len(measured)} runs",)
    return EnergyComparison(labels, energy, time, runs, ended, any(m.simulated for m in measured),
                            tuple(dict.fromkeys((*notes, *energy.notes))), unit)


def _by_errors(rows: Sequence[dict[str, Any]]) -> Ratio:
    """Of one run each: the errors of the two measurements alone, which say nothing about other runs."""
    first, second = sorted(rows, key=lambda row: int(row["way"]))
    ratio = second["energy_j"] / first["energy_j"]
    half = math.hypot(*(row["energy_uncertainty_j"] / row["energy_j"] for row in (first, second)))
    note = "one run each: the interval holds the errors of measurement, not the spread from run to run"
    return Ratio(ratio, ratio * math.exp(-half), ratio * math.exp(half), 0, (note,))


def _of_one_call(m: Measurement, calls: int) -> Measurement:
    """A measurement of so many calls as that of one, as it is when it is measured alone."""
    if calls == 1:
        return m

    def part(value: float | None) -> float | None:
        return None if value is None else value / calls

    gpus = tuple(
        replace(gpu, energy_j=part(gpu.energy_j), energy_uncertainty_j=part(gpu.energy_uncertainty_j))
        for gpu in m.gpus)
    work = tuple(WorkDone(each.name, each.amount / calls) for each in m.work)
    found = m.iterations
    iterations = None if found is None else replace(found, count=round(found.count / calls))
    return replace(
        m, gpus=gpus, time_s=m.time_s / calls, time_sd_s=part(m.time_sd_s), energy_sd_j=part(m.energy_sd_j),
        cpu_energy_j=part(m.cpu_energy_j), dram_energy_j=part(m.dram_energy_j), work=work,
        iterations=iterations, calls=calls)
