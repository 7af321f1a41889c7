"""Truth against `%%energy`: the error of a window's energy, and the coverage of its error bar.

Windows last 0.05 to 60 s, at random phases of the six trainings; a third of them start at a step from idle to
busy. They are on a simulated card of each architecture with a stepped clock, and on cards with irregular
counters (`workbench.simulation.rough`). Truth is the exact integral of power times the card's gain.
ZeusMonitor (PyPI `zeus`) measures the same windows in the same run, except on Pascal, where it needs a
process that polls in real time.

    python -m benchmarks.measurement [--json FILE] [--quick]
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from benchmarks import measurement_drivers
from benchmarks.common import arguments, finish, table
from workbench.measurement.energy_estimate import EnergyEstimate, EnergyTimeline
from workbench.measurement.iterations import energies_of
from workbench.measurement.meter import AFTER_S, BEFORE_S
from workbench.periods.segment import from_marks
from workbench.records import Marks, Phase

CARDS = ("P100", "V100", "RTX6000", "A100", "A40", "RTX4090", "H100")
# Counters that only sum readings or move at every look, and slow calls, some on eight GPUs behind one lock.
# What readings may miss was set on A100.
ROUGH = (
    "A100,part-time", "V100,part-time", "H100,part-time", "A100,moving", "H100,moving", "A100,late",
    "A100,slow", "V100,slow", "8*H100,slow", "8*A40,jitter", "H100,rough",
)
LENGTHS_S = (0.05, 0.1, 0.5, 1.0, 5.0, 20.0, 60.0)
LONGER = 1.1  # the longest window of a length on a rough card, over the length; the shortest is as much under
WINDOWS = 504  # of each length and card
COLUMNS = {
    "card": "card", "length_s": "window s", "one_step_percent": "one step %", "windows": "n",
    "settled_covered": "covered", "settled_bar_over_error": "bar / error",
    "settled_median_error_percent": "error %", "settled_median_bar_percent": "bar %",
    "at_once_covered": "at once: covered", "at_once_bar_over_error": "bar / error",
    "at_once_median_error_percent": "error %", "parts_off_max": "parts off by",
    "parts_covered": "parts covered", "zeus_median_error_percent": "Zeus error %",
    "settled_over_zeus": "ours / Zeus", "at_once_over_zeus": "immediately / Zeus",
}
STEADY_COLUMNS = {
    "card": "card", "iteration_ms": "iteration ms", "windows": "n", "covered": "covered",
    "bar_over_error": "bar / error", "median_error_j": "error J", "median_bar_j": "bar J",
    "median_bar_percent": "bar %",
}
LEAD_S, TAIL_S = 2.5, 0.6
ITERATIONS_MS = (5.0, 7.0, 13.0, 23.0, 33.0, 50.0, 71.0, 99.3, 100.0, 137.0, 200.0, 310.0)
JITTERS = (0.0, 0.01, 0.05)  # standard deviation of the logarithm of an iteration's length
STEADY_LENGTHS_S = (0.05, 10.0)  # of windows, log-uniform
STEADY_RUN_S = 45.0
STEADY_LOADS, STEADY_WINDOWS = 12, 10  # loads of each card and iteration length, and windows of each load
NOTHING = EnergyEstimate(math.nan, math.nan)


class Outcome(NamedTuple):
    """One window: truth, ours with its bar (settled, and immediately), and ZeusMonitor's. Joules."""

    length_s: float
    workload: str
    step: bool
    truth_j: float
    settled_j: float
    settled_bar_j: float
    at_once_j: float = math.nan  # this and what follows on kind cards alone
    at_once_bar_j: float = math.nan
    zeus_j: float | None = None
    parts_off: float = 0.0  # of the sum of its parts from the whole, relative
    parts_within: float | None = None  # share of the parts whose bar holds the truth


def windows(card: str, runs: int, seed: int) -> Iterator[Outcome]:
    """Windows of every length on one card: each run is idle, then one training, with one window at the
    step and two inside.
    """
    from workbench.device.discovery import devices
    from workbench.measurement.meter import Meter
    from workbench.measurement.recorder import Recorder
    from workbench.simulation import catalogue
    from workbench.simulation.machine import simulate
    from workbench.simulation.training import TrainingJob

    part_time = _is_part_time(card)
    rng = random.Random(f"{card}{seed}")
    machine = simulate(names(card), stepped=True, seed=rng.getrandbits(32))
    gpus = devices()
    zeus = _zeus() if gpus[0].can("energy") and card not in ROUGH else None
    around = random.Random(f"{card}{seed} lengths")
    for run in range(runs):
        recorder = Recorder(gpus)
        meter = Meter(gpus, recorder, sync=False, zones=())
        machine.step(LEAD_S + rng.random())
        workload = list(catalogue.WORKLOADS.values())[run % len(catalogue.WORKLOADS)]
        size = _batch_size(machine.card(0), workload)
        start_s = machine.clock()
        # Slow calls move the clock on; they must not keep the training waiting.
        grain_s = 5.0 if card in ROUGH else 0.0
        job = iter(TrainingJob(
            workload, size, machine=machine, seed=rng.getrandbits(32), iterations=10**9, gpu=range(len(gpus)),
            grain_s=grain_s,
        ))
        while machine.clock() - start_s < max(LENGTHS_S) * LONGER + 2:
            next(job)
        job.close()
        end_s = machine.clock()
        machine.step(TAIL_S)
        for length_s in LENGTHS_S:
            for step in (True, False, False):
                # A whole number of a sensor's steps has no error at its edges; no cell lasts that long.
                lasts_s = length_s * (around.uniform(1 / LONGER, LONGER) if card in ROUGH else 1.0)
                room_s = end_s - start_s - lasts_s - 0.5
                open_s = start_s - 0.004 * rng.random() if step else start_s + 0.5 + rng.random() * room_s
                what = (workload.key, step, length_s, run % len(gpus))
                yield _outcome(
                    machine, meter, zeus, part_time, what, (open_s, open_s + lasts_s), card in ROUGH
                )
        recorder.stop()
    machine.close()


def names(card: str) -> list[str]:
    """What `simulate` takes for a card of this benchmark.

    >>> names("2*A100,slow")
    ['A100', 'A100', 'slow']
    """
    model, *rough = card.split(",")
    count, _, key = model.rpartition("*")
    return [key] * int(count or 1) + rough


def _is_part_time(card: str) -> bool:
    """What the workbench finds out about a card's counter while a training runs for half a minute; on another
    card of the kind, as it is kept for later.
    """
    from workbench.device.discovery import open_device
    from workbench.measurement.counter_kind import CounterKind
    from workbench.measurement.recorder import Recorder
    from workbench.simulation import catalogue
    from workbench.simulation.machine import simulate
    from workbench.simulation.training import TrainingJob

    machine = simulate(card.rpartition("*")[2], stepped=True, seed=1)
    device = open_device(0)
    recorder = Recorder([device])
    kind = CounterKind(device, recorder)
    machine.step(3.0)  # a kernel is at rest before its first cell
    workload = catalogue.WORKLOADS["squad"]
    size = _batch_size(machine.card(0), workload)
    job = iter(TrainingJob(workload, size, machine=machine, seed=1, iterations=10**9))
    while machine.clock() < 30.0:
        next(job)
    job.close()
    kind.learn()
    recorder.stop()
    machine.close()
    return bool(kind.part_time)


def _batch_size(card: Any, workload: Any) -> int:
    """The workload's default, or the nearest that fits the card and is slow enough for the machine to
    remember a whole run.
    """
    from workbench.simulation import catalogue
    from workbench.simulation.state import RING

    def remembered(size: int) -> bool:
        phases = catalogue.iteration(card, workload, size)
        return (max(LENGTHS_S) + 5) * (len(phases) + 1) / sum(phase.time_s for phase in phases) < 0.8 * RING

    sizes = [b for b in workload.batch_sizes if catalogue.fits(card, workload, b) and remembered(b)]
    return min(sizes, key=lambda b: abs(math.log(b / workload.default_batch_size)))


def _outcome(
    machine: Any, meter: Any, zeus: Any, part_time: bool, what: tuple[str, bool, float, int],
    edges_s: tuple[float, float], rough: bool,
) -> Outcome:
    """Measure one window of the past, the clock turned back to its edges; of the GPU whose turn it is.

    Args:
        what: Workload, whether at the step from idle to busy, the length (s), the GPU's number.
        edges_s: When the window begins and ends.
        rough: Whether the card is; then the settled measurement is all that is asked for.
    """
    workload, step, length_s, gpu = what
    state, now_s = machine.state, machine.clock()

    def at(time_s: float) -> None:
        state.set_header("stepped_now_s", time_s)

    at(edges_s[0])
    if zeus is not None:
        zeus.begin_window("w", sync_execution=False)
    window = meter.open("w")
    at(max(edges_s[1], machine.clock()))
    zeus_j = zeus.end_window("w", sync_execution=False).total_energy if zeus is not None else None
    window = meter.close(window)
    at(now_s)
    full = meter.recorder.rows(meter.devices[gpu].uuid, edges_s[0] - BEFORE_S, window.end_s + AFTER_S)
    later = np.flatnonzero(full["tick_s"] >= window.end_s)
    settled = _timeline(meter, gpu, window, full[: later[0] + 1] if len(later) else full, part_time)
    truth_j = machine.true_energy_j(gpu, window.start_s, window.end_s) * machine.gain(gpu)
    if rough:
        found = settled.between(window.start_s, window.end_s) or NOTHING
        return Outcome(length_s, workload, step, truth_j, *found[:2])
    at_once = _timeline(meter, gpu, window, full[full["time_s"] <= window.end_s], part_time)
    measured = [each.between(window.start_s, window.end_s) or NOTHING for each in (settled, at_once)]
    parts = _parts(machine, gpu, settled, window, measured[0].energy_j)
    return Outcome(length_s, workload, step, truth_j, *measured[0][:2], *measured[1][:2], zeus_j, *parts)


def _timeline(meter: Any, gpu: int, window: Any, rows: Any, part_time: bool) -> EnergyTimeline:
    device = meter.devices[gpu]
    return EnergyTimeline(
        rows, power_window_s=device.power_window_s, counted=device.can("energy"),
        most_w=device.limits.max_power_limit_w, update_s=meter.recorder.update_s(device.uuid), window=window,
        number=gpu, part_time=part_time,
    )


def _parts(
    machine: Any, gpu: int, timeline: EnergyTimeline, window: Any, whole_j: float
) -> tuple[float, float]:
    """A window of iterations with a phase and a pause among them, marked at random moments: how far off the
    sum of its rows is, and how often the bars of the stretches between the marks hold the truth.
    """
    rng = np.random.default_rng(int(1e6 * window.start_s))
    inside = np.sort(rng.uniform(window.start_s, window.end_s, rng.integers(8, 21))).tolist()
    runs = (tuple(inside[:3]), tuple(inside[4:]))  # between them lies a pause
    marks = Marks(runs, (Phase("evaluation", inside[4], inside[5]),))
    within_s = (window.start_s, window.end_s)
    frame = from_marks(marks, energies=energies_of([timeline]), within_s=within_s)
    off = abs(float(frame["energy_j"].sum()) - whole_j) / max(whole_j, 1e-6)
    moments = [window.start_s, *inside, window.end_s]
    truth_j = [machine.true_energy_j(gpu, a, b) * machine.gain(gpu) for a, b in itertools.pairwise(moments)]
    energy_j, bar_j = timeline.parts(moments)
    off = max(off, abs(float(energy_j.sum()) - whole_j) / max(whole_j, 1e-6))
    return off, float(np.mean(np.abs(energy_j - truth_j) <= bar_j))


class SteadyWindow(NamedTuple):
    """One window of a load that repeats: energy (J), its true value, and the half width of its 95 % bar."""

    iteration_ms: float
    jitter: float
    length_s: float
    truth_j: float
    energy_j: float
    bar_j: float


def steady_windows(card: str, loads: int, seed: int) -> Iterator[SteadyWindow]:
    """Windows of loads that repeat, at random phases: every iteration length, each with so many loads."""
    from workbench.device.discovery import devices
    from workbench.measurement.meter import Meter
    from workbench.measurement.recorder import Recorder
    from workbench.simulation.machine import simulate
    from workbench.simulation.training import TrainingJob

    rng = random.Random(f"{card}{seed} steady")
    for iteration_ms in ITERATIONS_MS:
        # Another machine each time: its sensor has another phase.
        machine = simulate(card, stepped=True, seed=rng.getrandbits(32))
        gpus = devices()
        recorder = Recorder(gpus)
        meter = Meter(gpus, recorder, sync=False, zones=())
        machine.step(LEAD_S + rng.random())
        for load in range(loads):
            jitter = JITTERS[load % len(JITTERS)]
            job = iter(TrainingJob(
                steady_workload(machine.card(0), iteration_ms / 1e3, rng), machine=machine, grain_s=5.0,
                seed=rng.getrandbits(32), iterations=10**9, variation=jitter,
            ))
            start_s = machine.clock()
            while machine.clock() - start_s < STEADY_RUN_S:
                next(job)
            end_s = machine.clock()
            job.close()
            machine.step(TAIL_S + rng.random())
            for _ in range(STEADY_WINDOWS):
                low_s, high_s = STEADY_LENGTHS_S
                lasts_s = low_s * (high_s / low_s) ** rng.random()
                open_s = rng.uniform(start_s + 0.5, end_s - lasts_s - 0.5)
                what = ("steady", False, lasts_s, 0)
                found = _outcome(machine, meter, None, False, what, (open_s, open_s + lasts_s), True)
                yield SteadyWindow(
                    iteration_ms, jitter, lasts_s, found.truth_j, found.settled_j, found.settled_bar_j
                )
        recorder.stop()
        machine.close()


def steady_workload(card: Any, iteration_s: float, rng: random.Random) -> Any:
    """A training whose iterations have 2 to 4 phases of random lengths and powers between what the card draws
    while it waits and its power limit; every other has a swing of at most a third of that.
    """
    from workbench.simulation.catalogue import Workload, busy
    from workbench.simulation.physics import Load, operate

    limit_w = card.power_limit_w[1]
    swing_w = (0.97 * limit_w - card.gap_w) * rng.choice((1.0, rng.uniform(0.05, 0.33)))
    low_w = card.gap_w + rng.random() * (0.97 * limit_w - card.gap_w - swing_w)
    # Power is a straight line over `dynamic_w`.
    still_w, unit_w = (operate(card, Load(0.0, 0.0, w), power_limit_w=1e4).power_w for w in (0.0, 1.0))
    count = rng.choice((2, 2, 3, 4))
    ends = sorted(rng.random() for _ in range(count - 1))
    shares = np.diff([0.0, *ends, 1.0])
    phases = tuple(
        busy(f"phase {number}", "forward", float(share) * iteration_s,
             Load(0.0, 0.0, (low_w + rng.random() * swing_w - still_w) / (unit_w - still_w)))
        for number, share in enumerate(shares)
    )
    return Workload("steady", "steady", 10**12, 0, 1, (1,), 1 << 30, 0, 1 << 20, phases, card.key)


def run_steady(card: str, loads: int, seed: int = 1) -> list[SteadyWindow]:
    return list(steady_windows(card, loads, seed))


def steady_summary(card: str, found: list[SteadyWindow]) -> list[dict[str, Any]]:
    """A row per iteration length, and one of all: coverage, and size of the bars in joules."""
    rows = []
    for length in (*ITERATIONS_MS, "all"):
        mine = np.array([each for each in found if length in ("all", each.iteration_ms)])
        error_j, bar_j = np.abs(mine[:, 4] - mine[:, 3]), mine[:, 5]
        rows.append({
            "card": card, "iteration_ms": length, "windows": len(mine),
            "covered": float(np.mean(error_j <= bar_j)),
            "covered_by_jitter": [
                float(np.mean((error_j <= bar_j)[mine[:, 1] == jitter])) for jitter in JITTERS
            ],
            "median_error_j": float(np.median(error_j)), "median_bar_j": float(np.median(bar_j)),
            "bar_over_error": float(np.median(bar_j) / max(float(np.median(error_j)), 1e-12)),
            "median_bar_percent": 100 * float(np.median(bar_j / mine[:, 3])),
        })
    return rows


def _zeus() -> Any:
    """A ZeusMonitor on GPU 0, or None where zeus is not installed."""
    try:
        import zeus.device.gpu as gpus
        from zeus.monitor import ZeusMonitor
    except ImportError:
        return None
    gpus._gpus = None
    return ZeusMonitor(gpu_indices=[0], cpu_indices=[], approx_instant_energy=False)


def run_card(card: str, runs: int, seed: int = 1) -> list[Outcome]:
    import warnings

    warnings.filterwarnings("ignore", module="zeus.*")
    return list(windows(card, runs, seed))


def summary(card: str, outcomes: list[Outcome]) -> list[dict[str, Any]]:
    """A row per length: coverage and size of the bars, median errors, ratios to ZeusMonitor."""
    rows = []
    for length_s in LENGTHS_S:
        mine = [o for o in outcomes if o.length_s == length_s]
        truth = np.array([o.truth_j for o in mine])
        row: dict[str, Any] = {"card": card, "length_s": length_s, "windows": len(mine)}
        row["one_step_percent"] = 100 * _update_s(card) / length_s
        for name, energy, bar in (
            ("settled", [o.settled_j for o in mine], [o.settled_bar_j for o in mine]),
            ("at_once", [o.at_once_j for o in mine], [o.at_once_bar_j for o in mine]),
        ):
            error, half = np.abs(np.array(energy) - truth), np.array(bar)
            if np.isnan(error).all():
                continue
            row |= {
                f"{name}_covered": float(np.mean(error <= half)),
                f"{name}_median_error_j": float(np.median(error)),
                f"{name}_median_bar_j": float(np.median(half)),
                f"{name}_median_error_share": float(np.median(error / truth)),
                f"{name}_bar_over_error": float(np.median(half) / max(np.median(error), 1e-12)),
                f"{name}_median_bar_share": float(np.median(half / truth)),
            }
        if mine[0].zeus_j is not None:
            zeus = np.abs(np.array([o.zeus_j for o in mine], float) - truth)
            row["zeus_median_error_j"] = float(np.median(zeus))
            row["zeus_median_error_share"] = float(np.median(zeus / truth))
            for name in ("settled", "at_once"):
                row[f"{name}_over_zeus"] = row[f"{name}_median_error_j"] / max(float(np.median(zeus)), 1e-12)
        within = [o.parts_within for o in mine if o.parts_within is not None]
        if within:
            row["parts_off_max"] = max(o.parts_off for o in mine)
            row["parts_covered"] = float(np.mean(within))
        rows.append(row)
    return rows


def _update_s(card: str) -> float:
    """What the sensor sets as the bound of a plain difference: the time between two refreshes of what
    energy comes from.
    """
    from workbench.simulation.catalogue import CARDS
    from workbench.simulation.machine import SENSORS

    sensor = SENSORS[CARDS[names(card)[0]].architecture]
    return sensor.counter_update_s or sensor.power_update_s


def main() -> None:
    from workbench.simulation import catalogue

    options = arguments(__doc__ or "")
    runs = max(6, WINDOWS // 3 // (10 if options.quick else 1) // 6 * 6)
    loads = STEADY_LOADS // (4 if options.quick else 1)
    with ProcessPoolExecutor(2) as pool:
        cards = CARDS + ROUGH
        results = dict(zip(cards, pool.map(run_card, cards, [runs] * len(cards)), strict=True))
        known = tuple(catalogue.CARDS)
        repeated = dict(zip(known, pool.map(run_steady, known, [loads] * len(known)), strict=True))
    rows = [row for card, outcomes in results.items() for row in summary(card, outcomes)]
    for row in rows:
        for name in (
            "settled_median_error", "settled_median_bar", "at_once_median_error", "zeus_median_error",
        ):
            if f"{name}_share" in row:
                row[f"{name}_percent"] = 100 * row[f"{name}_share"]
    print(table(list(COLUMNS.values()), [[row.get(column) for column in COLUMNS] for row in rows]))
    rough = [r for r in rows if r["card"] in ROUGH]
    every, rows = rows, [r for r in rows if r["card"] not in ROUGH]
    compared = [r for r in rows if "zeus_median_error_j" in r]
    short = [r for r in compared if r["length_s"] in (0.1, 0.5)]
    overall = {
        "covered_min": min(r["settled_covered"] for r in rows),
        "covered_max": max(r["settled_covered"] for r in rows),
        "covered": float(np.mean([r["settled_covered"] for r in rows])),
        "windows": sum(r["windows"] for r in rows),
        "parts_off_max": max(r["parts_off_max"] for r in rows),
        "parts_covered": float(np.mean([r["parts_covered"] for r in rows])),
        "bar_over_error_max": max(r["settled_bar_over_error"] for r in rows),
        "worst_over_zeus": max((r["settled_over_zeus"] for r in compared), default=None),
        "worst_over_zeus_at_0.1_and_0.5": max((r["settled_over_zeus"] for r in short), default=None),
        "error_over_zeus_at_0_1_s": max(
            (r["settled_over_zeus"] for r in compared if r["length_s"] == 0.1), default=None
        ),
        "rough_covered_min": min(r["settled_covered"] for r in rough if r["length_s"] >= 0.1),
        "rough_covered_max": max(r["settled_covered"] for r in rough if r["length_s"] >= 0.1),
        "rough_covered": float(np.mean([r["settled_covered"] for r in rough if r["length_s"] >= 0.1])),
        "rough_bar_over_error_max": max(r["settled_bar_over_error"] for r in rough if r["length_s"] >= 0.1),
    }
    steady = [row for card, found in repeated.items() for row in steady_summary(card, found)]
    print("\n" + table(list(STEADY_COLUMNS.values()), [[r[c] for c in STEADY_COLUMNS] for r in steady]))
    whole = [row for row in steady if row["iteration_ms"] == "all"]
    overall |= {
        "resonant_covered_min": min(row["covered"] for row in steady),
        "covered_min_card": min(row["covered"] for row in whole),
        "covered_max_card": max(row["covered"] for row in whole),
        # of cards whose counter integrates; without one (P100) readings miss half of the time
        "steady_bar_over_error_max": max(row["bar_over_error"] for row in whole if row["card"] != "P100"),
    }
    print()
    drivers = measurement_drivers.run(options.data, quick=options.quick)
    numbers = drivers.get("summary", {}).items()
    overall |= {name: value for name, value in numbers if isinstance(value, int | float)}
    print("\n" + "\n".join(f"{name}: {value:.3g}" for name, value in overall.items() if value is not None))
    finish({"summary": overall, "rows": every, "steady": steady, "drivers": drivers}, options.json)


if __name__ == "__main__":
    main()
