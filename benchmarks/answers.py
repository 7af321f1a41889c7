"""Features that use joules for answers: fair comparisons, tests that may fail on joules, logs of other tools.

    python -m benchmarks.answers [--data DIR] [--json FILE] [--quick]

Comparison: two variants run on generated cards whose temperature and surroundings drift
(`fixtures/thermal.py`), in the order that `workbench.compare` uses, until it stops.

    type one error   pairs without a difference in which one is found (0.05 is right)
    power            pairs that differ by 2 % in which one is found (0.9 is the aim)
    time             total seconds of GPU time, relative to pairs in fixed order with 5 s of cooling before a
                     run, for the same power. This is `zeus.profile`'s rule, with the smallest sufficient
                     number of pairs, which is unknown in practice.

Tokens: windows of 0.5 to 60 s of simulated trainings, as in `benchmarks.measurement`, with a known number of
tokens.

    tokens covered   windows whose 95 % interval contains the true number of tokens per joule, by card
    phases covered   the same for the energies of intervals between steps inside of the windows

Logs: traces of 100 ms averaged over 1 to 30 s, as other tools write them, read by `workbench.read_log`.

    joules inside    those within 1 % of the trace's joules, or whose interval contains them
    false periods    of 200, those with a sure period that is none of the training's
    right periods    those with one of the training's periods

Waste: simulated runs with an idle period, waits between iterations and stalls. Samples are as in a cell,
every second and every 15 s.

    time, energy inside   wastes whose idle time (joules) is in the interval of `workbench.waste`
    missed                unreported wastes of at least 5 % of a run
    waits claimed         reported waits at 15 s per sample, which cannot show any

Iterations: lengths that are normal with a correlation from one to the next (AR(1)), and others.

    covered          series whose true mean is in the 95 % interval of `segment.mean_interval`
    times Student    its median half width over Student's, which assumes independent iterations

The rule's two constants were chosen on the families of `thermal.CHOSEN_ON` only.
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from scipy.signal import lfilter
from scipy.special import stdtrit

from workbench.experiments.difference import LEAST_PAIRS, difference, enough, order
from workbench.logbook.log_readers import read_log
from workbench.logbook.waste import waste as workbench_waste
from workbench.logbook.work_rates import rates
from workbench.periods.detect import find_periods
from workbench.periods.segment import mean_interval
from workbench.records import GpuMeasurement, Measurement, WorkDone

from . import measurement
from .common import arguments, finish, table
from .fixtures.thermal import CHOSEN_ON, FAMILIES, SCORED_ON, ThermalCard

NOISES = (0.005, 0.01, 0.02)
SMALLEST, MOST_PAIRS, COOLING_S = 0.02, 60, 5.0
CARDS = ("V100", "A100", "H100", "RTX4090")
WASTE_CARDS = ("V100", "A40", "H100", "RTX4090")  # none of them was looked at when its rules were written
WASTE_PACES = {"cell": 0.0, "every second": 1.0, "every 15 s": 15.0}
WASTE_LEAST = 0.05  # of a run: less waste than this need not be found
LOG_FORMATS = 12  # each has its layout as a test: tests/logbook/test_log_readers.py, test_other_logs.py
ITERATIONS, CORRELATIONS = (5, 9, 15, 50, 200), (-0.5, 0.0, 0.5, 0.9)
STALLED = 0.05  # of iterations, which take 1.8 times as long; from 2 on they are rows of their own
FIXED_PAIRS = (4, 5, 6, 7, 8, 10, 12, 14, 17, 20, 24, 28, 34, 40, 50, 60)


def compared(card: ThermalCard, seed: int) -> tuple[bool, float]:
    """One comparison as `workbench.compare` makes it: whether a difference was found, and the GPU time."""
    way: list[int] = []
    warm: list[float] = []
    joules: list[float] = []
    for each in (0, 1):
        card.run(each)
    turns = order(seed)
    while True:
        for each in (next(turns), next(turns)):
            begun_c, log_j = card.run(each)
            way.append(each)
            warm.append(begun_c)
            joules.append(100 * math.exp(log_j))
        pairs = len(way) // 2
        if pairs >= MOST_PAIRS or (pairs >= LEAST_PAIRS and enough(way, joules, warm, SMALLEST)):
            return difference(way, joules, warm, sequential=True).significant, card.at_s


def fixed(card: ThermalCard, pairs: int) -> tuple[bool, float]:
    """Pairs in fixed order, each run after some seconds of rest, by a paired t test."""
    for each in (0, 1):
        card.run(each)
    gaps = []
    for _ in range(pairs):
        logs = []
        for each in (0, 1):
            card.wait(COOLING_S)
            logs.append(card.run(each)[1])
        gaps.append(logs[1] - logs[0])
    half = float(stdtrit(pairs - 1, 0.975)) * float(np.std(gaps, ddof=1)) / math.sqrt(pairs)
    return abs(float(np.mean(gaps))) > half, card.at_s


def comparison(families: Sequence[str], count: int) -> list[dict[str, Any]]:
    """A row for each family and noise."""
    rows = []
    for family in families:
        for noise in NOISES:
            def card(seed: int, effect: float, family: str = family, noise: float = noise) -> ThermalCard:
                draw = np.random.default_rng([seed, FAMILIES.index(family)])
                return ThermalCard(family, draw, noise, effect)

            alike = [compared(card(seed, 0.0), seed) for seed in range(count)]
            apart = [compared(card(10**6 + seed, math.log1p(SMALLEST)), seed) for seed in range(count // 3)]
            time_s = float(np.mean([each[1] for each in apart]))
            power = float(np.mean([each[0] for each in apart]))
            peer = _sufficient(card, count // 3, min(power, 0.9))
            rows.append({"family": family, "noise": noise, "type_one": float(np.mean([e[0] for e in alike])),
                         "power": power, "time_s": time_s, **peer, "time_share": time_s / peer["fixed_s"]})
    return rows


def _sufficient(card: Any, count: int, power: float) -> dict[str, float]:
    """The fewest fixed pairs that reach a power, the time they take, and their own type one error."""
    for pairs in FIXED_PAIRS:
        apart = [fixed(card(2 * 10**6 + seed, math.log1p(SMALLEST)), pairs) for seed in range(count)]
        if np.mean([each[0] for each in apart]) >= power:
            break
    alike = [fixed(card(3 * 10**6 + seed, 0.0), pairs) for seed in range(count)]
    return {"fixed_pairs": pairs, "fixed_s": float(np.mean([each[1] for each in apart])),
            "fixed_type_one": float(np.mean([each[0] for each in alike]))}


def tokens(windows: int) -> list[dict[str, Any]]:
    """How often the truth is in the interval of tokens per joule, for each card."""
    rows = []
    for card in CARDS:
        draw = np.random.default_rng([9, len(rows)])
        inside, parts = [], []
        lengths = [length for length in measurement.LENGTHS_S if length >= 0.5]
        runs = math.ceil(windows / (3 * len(lengths)))
        for each in measurement.windows(card, runs, seed=20):
            if each.length_s not in lengths:
                continue
            done = float(draw.integers(1000, 1_000_000))
            gpu = GpuMeasurement(card, card, each.settled_j, each.settled_bar_j, "counter", True)
            counted = Measurement("", "", 0.0, each.length_s, (gpu,), work=(WorkDone("tokens", done),))
            (rate,) = rates(counted)
            assert rate.low is not None
            assert rate.high is not None
            inside.append(rate.low <= done / each.truth_j <= rate.high)
            if each.parts_within is not None:
                parts.append(each.parts_within)
        rows.append({"card": card, "windows": len(inside), "tokens_covered": float(np.mean(inside)),
                     "phases_covered": float(np.mean(parts))})
    return rows


def iteration_means(count: int) -> list[dict[str, Any]]:
    """How often the true mean of iterations is in its interval, by kind and number of iterations."""
    rows = []
    for kind in (*CORRELATIONS, "lognormal", "stalls", "misplaced borders"):
        for number in ITERATIONS:
            draw = np.random.default_rng([21, len(rows)])
            inside, widths = [], []
            for _ in range(count):
                values, truth = _lengths(draw, kind, number)
                mean, half = mean_interval(values)
                assert half is not None
                inside.append(abs(mean - truth) <= half)
                scatter = float(np.std(values, ddof=1))
                widths.append(half * math.sqrt(number) / scatter / float(stdtrit(number - 1, 0.975)))
            rows.append({"kind": kind, "iterations": number, "covered": float(np.mean(inside)),
                         "times_student": float(np.median(widths))})
    return rows


def _lengths(draw: np.random.Generator, kind: float | str, number: int) -> tuple[np.ndarray, float]:
    """Lengths of iterations, and the mean of the distribution that they come from."""
    noise = draw.standard_normal(number)
    if kind == "lognormal":
        return np.exp(0.5 * noise), math.exp(0.125)
    if kind == "stalls":
        return 1 + 0.05 * noise + 0.8 * (draw.random(number) < STALLED), 1 + 0.8 * STALLED
    if kind == "misplaced borders":
        return np.diff(noise, append=draw.standard_normal()), 0.0
    assert not isinstance(kind, str)
    noise[1:] *= math.sqrt(1 - kind**2)
    return lfilter([1.0], [1.0, -kind], noise), 0.0


def _mean_summary(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The least and the greatest coverage, of nine iterations and of all normal ones with a correlation."""
    normal = [row for row in rows if not isinstance(row["kind"], str)]
    nine = [row["covered"] for row in normal if row["iterations"] == 9]
    return {"iteration_mean_covered_min": min(nine), "iteration_mean_covered_max": max(nine),
            "iteration_mean_covered_min_all": min(row["covered"] for row in normal)}


def logs(count: int) -> dict[str, float]:
    """Joules and periods of traces that were averaged over so long that their iteration cannot be seen."""
    inside, narrow, widths = 0, 0, []
    right = {True: 0, False: 0}  # of the periods that are claimed surely
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "events.csv"
        for seed in range(count):
            draw = np.random.default_rng([7, seed])
            every_s = float(draw.choice([1.0, 2.0, 5.0, 10.0, 15.0, 30.0]))
            levels, watts = _training(draw, max(600.0, 60 * every_s))
            block = round(10 * every_s)
            count_blocks = len(watts) // block
            means = watts[: count_blocks * block].reshape(count_blocks, block).mean(1)
            pl.DataFrame({"_timestamp": 1.79e9 + every_s * np.arange(1, count_blocks + 1),
                          "system.gpu.0.powerWatts": means}).write_csv(path)
            found = read_log(path)
            (row,) = found.energies.to_dicts()
            truth_j = 0.1 * float(watts[block : count_blocks * block].sum())
            held = row["low_j"] <= truth_j <= row["high_j"]
            near = abs(row["energy_j"] / truth_j - 1) < 0.01
            inside += held or near
            narrow += near
            widths.append((row["high_j"] - row["low_j"]) / 2 / truth_j)
            periods = find_periods(found["0"])
            step = periods.iteration
            if periods.sure and step:
                right[any(abs(step.period_s / each - 1) < 0.05 for each in levels)] += 1
    return {"joules_inside": inside / count, "joules_within_1_percent": narrow / count,
            "median_half_width": float(np.median(widths)), "false_periods": 200 * right[False] / count,
            "right_periods": 200 * right[True] / count}


def _training(draw: np.random.Generator, seconds: float) -> tuple[list[float], np.ndarray]:
    """True periods in seconds, and watts every 100 ms: iterations, of which every so many evaluate."""
    step_s, pause_s = float(draw.uniform(0.15, 8.0)), float(draw.uniform(2.0, 20.0))
    every = int(draw.integers(20, 200))
    times = np.arange(0.0, seconds, 0.1)
    cycle_s = every * step_s + pause_s
    inside = times % cycle_s
    busy = (inside % step_s) / step_s < draw.uniform(0.5, 0.9)
    watts = np.where(inside < every * step_s, np.where(busy, 300.0, 180.0), 120.0)
    return [step_s, cycle_s], watts + draw.normal(0, 4, len(times))


def waste(runs: int) -> list[dict[str, Any]]:
    """Results of `workbench.waste` for simulated runs on each card. Runs have an idle period before the
    training, waits between iterations and occasional stalls. Samples are as in a cell and as in files of
    `nvidia-smi -l 1`.
    """
    rows = []
    for number, card in enumerate(WASTE_CARDS):
        draw = np.random.default_rng([11, number])
        told = [_wasted(card, draw, run) for run in range(runs)]
        for way in WASTE_PACES:
            all_ = [each for run in told for each in run[way]]
            found = [each for each in all_ if not each["missed"]]
            waits = [each for each in found if each["kind"] == "waits"]
            rows.append({
                "card": card, "sampled": way, "wastes": len(all_), "missed": len(all_) - len(found),
                "waits_claimed": len(waits), "time_inside": _mean([each["time"] for each in found]),
                "energy_inside": _mean([each["energy"] for each in found]),
                "waits_half_width_s": _median([each["half_s"] for each in waits]),
                "waits_high_over_truth": _median([each["high_over_truth"] for each in waits])})
    return rows


def _waste_summary(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    seen = [row for row in rows if row["sampled"] != "every 15 s"]
    wastes = sum(row["wastes"] for row in seen)

    def told(name: str) -> list[float]:
        return [row[name] for row in seen if row[name] is not None]

    return {"waste_time_inside_min": min(told("time_inside"), default=0.0),
            "waste_energy_inside_min": min(told("energy_inside"), default=0.0),
            "waste_missed": sum(row["missed"] for row in seen) / max(wastes, 1),
            "waste_waits_high_over_truth": _median(told("waits_high_over_truth")) or 0.0,
            "waste_waits_claimed_at_15_s": sum(row["waits_claimed"] for row in rows if row not in seen)}


def _mean(values: Sequence[bool]) -> float | None:
    return float(np.mean(values)) if values else None


def _median(values: Sequence[float]) -> float | None:
    return float(np.median(values)) if values else None


def _wasted(card: str, draw: np.random.Generator, seed: int) -> dict[str, list[dict[str, Any]]]:
    """One run on a simulated card: for each kind whether time and energy are in their intervals."""
    from workbench.device.discovery import devices
    from workbench.measurement.recorder import Recorder
    from workbench.simulation import catalogue
    from workbench.simulation.machine import simulate
    from workbench.simulation.training import TrainingJob

    machine = simulate(card, stepped=True, seed=seed)
    recorder = Recorder(devices())
    machine.step(4.0)
    start_s = machine.clock()
    rest_s = float(draw.choice([0.0, draw.uniform(7.0, 40.0)]))
    if rest_s:
        machine.step(rest_s)
    workload = list(catalogue.WORKLOADS.values())[seed % len(catalogue.WORKLOADS)]
    size = measurement._batch_size(machine.card(0), workload)
    job = iter(TrainingJob(workload, size, machine=machine, seed=seed, iterations=10**9, evaluate=False))
    stalls = draw.random() < 0.7
    each_s = float(np.exp(draw.uniform(math.log(0.05), math.log(3.0))))
    trained_s = machine.clock()
    while machine.clock() - trained_s < 45.0:
        begun_s = machine.clock()
        while machine.clock() - begun_s < each_s * draw.uniform(0.8, 1.6):
            next(job)
        if stalls:
            machine.step(each_s * float(draw.uniform(0.05, 0.8)))
    job.close()
    end_s = machine.clock()
    machine.step(1.0)

    def truth(from_s: float, to_s: float) -> dict[str, tuple[float, float]]:
        """Idle seconds and joules, before the training and in it."""
        idle = {"rest": np.zeros(2), "waits": np.zeros(2)}
        for span_s, segment in machine.state.spans(0, from_s, to_s):
            idle_s = (1 - segment.utilisation) * span_s
            kind = "rest" if segment.start_s < start_s + rest_s - 1e-6 else "waits"
            idle[kind] += (idle_s, idle_s * segment.power_w * machine.gain(0))
        if idle["waits"][0] > 0.98 * (to_s - max(from_s, start_s + rest_s)):  # a job that does nothing
            idle = {"rest": idle["rest"] + idle["waits"], "waits": np.zeros(2)}
        return {kind: (float(each[0]), float(each[1])) for kind, each in idle.items()}

    trace = recorder.trace(recorder.devices[0].uuid, start_s, end_s)
    told = {}
    for way, pace_s in WASTE_PACES.items():
        kept = trace.group_by((trace["time_s"] // pace_s).alias("n"), maintain_order=True).last().drop("n")
        kept = trace if pace_s < 1 else kept
        told[way] = _scored(kept, truth(float(kept["time_s"][0]), float(kept["time_s"][-1])))
    recorder.stop()
    machine.close()
    return told


def _scored(trace: pl.DataFrame, truth: dict[str, tuple[float, float]]) -> list[dict[str, Any]]:
    found = {each.kind: each for each in workbench_waste(trace).findings}
    rows = []
    for kind, (true_s, true_j) in truth.items():
        each = found.get(kind)
        if each is not None:
            rows.append({"kind": kind, "time": each.low_s <= true_s <= each.high_s,
                         "energy": each.low_j <= true_j <= each.high_j,
                         "half_s": (each.high_s - each.low_s) / 2, "missed": False,
                         "high_over_truth": each.high_j / max(true_j, 1e-9)})
        elif true_s > WASTE_LEAST * (trace["time_s"][-1] - trace["time_s"][0]):
            rows.append({"kind": kind, "missed": True})
    return rows


def _summed(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    names = ("type_one", "power", "time_share", "fixed_type_one")
    means = {name: float(np.mean([row[name] for row in rows])) for name in names}
    return {**means, "time_in_all": sum(row["time_s"] for row in rows) / sum(row["fixed_s"] for row in rows)}


def answers(quick: bool) -> dict[str, Any]:
    count = 60 if quick else 300
    rows = comparison(FAMILIES, count)
    heads = ("family", "noise", "type_one", "power", "time_s", "fixed_s", "fixed_pairs", "fixed_type_one",
             "time_share")
    print("Two ways compared: until a difference of 2 % would be found\n")
    print(table(heads, [[row[name] for name in heads] for row in rows]))
    counted = tokens(60 if quick else 500)
    print("\nTokens per joule\n")
    print(table(tuple(counted[0]), [list(row.values()) for row in counted]))
    means = iteration_means(300 if quick else 3000)
    print("\nIntervals of the mean per iteration\n")
    print(table(tuple(means[0]), [list(row.values()) for row in means]))
    read = logs(50 if quick else 200)
    print("\nLogs of other tools: averages over 1 to 30 s\n")
    print(table(tuple(read), [list(read.values())]))
    wasted = waste(8 if quick else 40)
    print("\nWaste: energy without work\n")
    print(table(tuple(wasted[0]), [list(row.values()) for row in wasted]))
    groups = {"chosen_on": CHOSEN_ON, "scored_on": SCORED_ON, "all": FAMILIES}
    sums = {group: _summed([row for row in rows if row["family"] in members])
            for group, members in groups.items()}
    print("\n" + table(("families", *sums["all"]), [[group, *each.values()] for group, each in sums.items()]))
    summary = {"type_one_error": sums["all"]["type_one"], "power_at_2_percent": sums["all"]["power"],
               "time_over_fixed_pairs": sums["all"]["time_in_all"], **read,
               "log_formats": LOG_FORMATS, **_waste_summary(wasted), **_mean_summary(means),
               "tokens_covered_min": min(row["tokens_covered"] for row in counted),
               "phases_covered_min": min(row["phases_covered"] for row in counted)}
    return {"summary": summary, "comparison": rows, "groups": sums, "tokens": counted, "waste": wasted,
            "iteration_means": means, "comparisons_without_difference": count * len(FAMILIES) * len(NOISES)}


def main(argv: Sequence[str] | None = None) -> int:
    given = arguments(str(__doc__).splitlines()[0], argv)
    finish(answers(given.quick), given.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
