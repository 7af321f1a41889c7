"""Trainings that share a GPU: whether the simulated GPU keeps the published tables, and whether verdicts are
as sure as they state.

    python -m benchmarks.sharing [--data DIR] [--json FILE] [--quick]

Tables: each set of EaCO's tables 1 to 3 on a simulated card that stands for an eighth of the published
server, read through its driver.

Coverage: sets of simulated trainings, alone and together, there and back, as `workbench.share` measures them;
the truth is the simulator's own, over a run fifty times as long. An interval of 95 % is to hold the truth in
95 of 100 comparisons.
"""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import arguments, finish, table

NODE_IDLE_W, GPUS = 650.0, 8
NAMES = {"J1": "AlexNet", "J2": "ResNet-18", "J3": "ResNet-50", "J4": "VGG-16"}
# Seconds busy and waiting, watts when busy, spread of an iteration's length.
SETS: dict[str, tuple[tuple[float, float, float, float], ...]] = {
    "light and heavy": ((0.05, 0.20, 150.0, 0.02), (0.30, 0.12, 180.0, 0.02)),
    "two of one kind": ((0.20, 0.15, 190.0, 0.02), (0.20, 0.15, 190.0, 0.02)),
    "both full": ((0.40, 0.02, 200.0, 0.03), (0.25, 0.01, 160.0, 0.03)),
    "restless": ((0.15, 0.10, 170.0, 0.30), (0.10, 0.30, 200.0, 0.30)),
    "three": ((0.05, 0.25, 150.0, 0.02), (0.10, 0.40, 170.0, 0.02), (0.30, 0.30, 200.0, 0.02)),
    "a second each": ((0.70, 0.40, 180.0, 0.05), (0.40, 0.90, 200.0, 0.05)),
}


@dataclass
class MarkWriter:
    """A job that is known by its marks, which the run of a simulated one has left."""

    label: str
    steps: Any = ()

    def steps_s(self, latest: int | None = None) -> Any:
        return np.asarray(self.steps if latest is None else self.steps[-latest:])

    def count(self) -> int:
        return len(self.steps)

    def phases_s(self) -> list[tuple[str, float, float]]:
        return []


def workload(number: int, busy_s: float, gap_s: float, busy_w: float, card: str = "V100") -> Any:
    """A job of one busy phase and one gap on that card."""
    from workbench.simulation import catalogue
    from workbench.simulation.catalogue import Workload, WorkloadPhase
    from workbench.simulation.physics import Load

    load = Load(0.5, 0.3, busy_w - catalogue.CARDS[card].static_w)
    phases = (
        WorkloadPhase("kernels", "forward", busy_s, load, 1.0, 0.4),
        WorkloadPhase("waiting", "data", gap_s, None, 0.0, 0.0),
    )
    return Workload(
        key=f"job {number + 1}", title=f"job {number + 1}", samples=1 << 40, evaluation_samples=0,
        default_batch_size=1, batch_sizes=(1,), fixed_bytes=1 << 30, sample_bytes=0, checkpoint_bytes=0,
        phases=phases, card=card,
    )


def jobs(
    shape: Sequence[tuple[float, float, float, float]], machine: Any, which: Sequence[int], seed: int
) -> list[Any]:
    from workbench.simulation.training import TrainingJob

    return [
        TrainingJob(
            workload(number, *shape[number][:3]), iterations=1 << 30, machine=machine, evaluate=False,
            variation=shape[number][3], seed=1000 * seed + number,
        )
        for number in which
    ]


# coverage


def truth(shape: Sequence[tuple[float, float, float, float]], seconds: float) -> dict[str, Any]:
    """The simulator's own figures over a long run: slowdowns, saving, power together."""
    from benchmarks.fixtures.together import together
    from workbench.simulation.machine import simulate

    machine = simulate("V100", stepped=True, seed=0)
    try:
        alone_s, alone_j = [], []
        for number in range(len(shape)):
            (job,) = jobs(shape, machine, [number], 77)
            together([job], seconds)
            alone_s.append((job.marks[-2] - job.marks[1]) / (len(job.marks) - 3))
            alone_j.append(machine.true_energy_j(0, job.marks[1], job.marks[-2]) / (len(job.marks) - 3))
        running = jobs(shape, machine, range(len(shape)), 78)
        from_s = machine.clock() + 2.0
        together(running, seconds)
        to_s = machine.clock() - 2.0
        made = [np.diff(np.interp([from_s, to_s], job.marks, range(len(job.marks))))[0] for job in running]
        joules = machine.true_energy_j(0, from_s, to_s)
        slow = [(to_s - from_s) / count / took_s for count, took_s in zip(made, alone_s, strict=True)]
        work_j = sum(count * each for count, each in zip(made, alone_j, strict=True))
        return {
            "slowdown": [float(each) for each in slow], "saving": float(1.0 - joules / work_j),
            "together_w": float(joules / (to_s - from_s)),
        }
    finally:
        machine.close()


def comparison(shape: Sequence[tuple[float, float, float, float]], seed: int, seconds: float = 10.0) -> Any:
    """What `share` finds: each alone, all together, there and back."""
    from benchmarks.fixtures.together import together
    from workbench.device.discovery import open_device
    from workbench.measurement.meter import Meter
    from workbench.measurement.recorder import Recorder
    from workbench.sharing.comparing import compare, pooled
    from workbench.sharing.watching import Interval, Watcher
    from workbench.simulation.machine import simulate

    machine = simulate("V100", stepped=True, seed=seed)
    recorder = None
    try:
        device = open_device(0)
        machine.step(3.0)
        recorder = Recorder([device])
        machine.step(4.0)
        meter = Meter([device], recorder, sync=False, zones=())
        idle_from_s = machine.clock() - 2.0
        tellers = [MarkWriter(f"job {number + 1}") for number in range(len(shape))]
        watcher = Watcher(meter, tellers)
        everyone = tuple(range(len(shape)))
        idle_w = watcher.mean_power_w(idle_from_s, machine.clock() - 0.2) or 0.0
        intervals = []
        there = [*((number,) for number in everyone), everyone]
        for place, members in enumerate([*there, *reversed(there)]):
            running = jobs(shape, machine, members, 10 * seed + place)
            together(running, seconds + 1.0)
            for number, job in zip(members, running, strict=True):
                tellers[number].steps = [*tellers[number].steps, *job.marks[1:-1]]
            intervals.append(Interval(members, machine.clock() - seconds, machine.clock()))
            machine.step(0.5)
        machine.step(1.0)
        stages = {
            members: pooled([watcher.stage(each) for each in intervals if each.members == members])
            for members in there
        }
        return compare([stages[(number,)] for number in everyone], stages[everyone], idle_w)
    finally:
        if recorder is not None:
            recorder.stop()
        machine.close()


def coverage(trials: int) -> Iterator[dict[str, Any]]:
    """How often intervals of 95 % hold the truth, and how wide they are."""
    for name, shape in SETS.items():
        true = truth(shape, 1000.0)
        held: dict[str, list[bool]] = {"slowdown": [], "saving": [], "together_w": []}
        wide: dict[str, list[float]] = {"slowdown": [], "saving": []}
        off: list[float] = []
        for seed in range(1, trials + 1):
            found = comparison(shape, seed)
            for each, exact in zip(found.slowdown, true["slowdown"], strict=True):
                held["slowdown"].append(bool(each.low <= exact <= each.high))
                wide["slowdown"].append(each.error)
            held["saving"].append(bool(found.saving.low <= true["saving"] <= found.saving.high))
            wide["saving"].append(found.saving.error)
            off.append(found.saving.value - true["saving"])
            assert abs(sum(found.parts_j) / found.board_j - 1.0) < 1e-9
        yield {
            "set": name, "true_slowdown": max(true["slowdown"]), "true_saving": true["saving"],
            "slowdown_held": float(np.mean(held["slowdown"])), "saving_held": float(np.mean(held["saving"])),
            "slowdown_error": float(np.median(wide["slowdown"])),
            "saving_error": float(np.median(wide["saving"])), "saving_off": float(np.mean(off)),
            "trials": trials,
        }


# tables


def tables(path: Path) -> Iterator[dict[str, Any]]:
    """Each published set as the simulated card shows it."""
    from benchmarks.fixtures.together import together
    from workbench.device import nvml
    from workbench.simulation import catalogue
    from workbench.simulation.machine import simulate
    from workbench.simulation.training import TrainingJob

    with path.open() as file:
        rows = {row["job_set"]: row for row in csv.DictReader(file)}
    share_w = NODE_IDLE_W / GPUS
    catalogue.CARDS["SERVER8"] = replace(
        catalogue.CARDS["V100"], key="SERVER8", static_w=share_w, gap_w=share_w, idle_w=share_w,
        power_limit_w=(100.0, 600.0, 600.0),
    )
    machine = simulate("SERVER8", stepped=True, seed=3)
    machine.state.set_card(0, "gain", 1.0)
    solo_s: dict[str, float] = {}
    try:
        device = nvml.open_index(0)
        for name, row in rows.items():
            members = name.split("&")
            running = []
            for each in members:
                used, watts = float(rows[each]["avg_gpu_util"]) / 100, float(rows[each]["avg_power_w"])
                seconds = 0.2 + 0.017 * int(each[1])
                work = workload(
                    int(each[1]), used * seconds, (1 - used) * seconds,
                    share_w + (watts / GPUS - share_w) / used, "SERVER8",
                )
                running.append(
                    TrainingJob(
                        replace(work, title=NAMES[each]), iterations=1 << 30, machine=machine,
                        seed=int(each[1]),
                    )
                )
            before_j, before_s, busy = device.energy_j(), machine.clock(), []
            machine.clock.on_step.append(lambda _, busy=busy: busy.append(device.sample().utilisation))
            together(running, 60.0)
            machine.clock.on_step.clear()
            power_w = GPUS * (device.energy_j() - before_j) / (machine.clock() - before_s)
            times = [(job.marks[-2] - job.marks[1]) / (len(job.marks) - 3) for job in running]
            if len(members) == 1:
                solo_s[name] = times[0]
            alone_h = [float(rows[each]["avg_jct_h"]) for each in members]
            yield {
                "set": name,
                "published_w": float(row["avg_power_w"]),
                "power_w": power_w,
                "published_utilisation": float(row["avg_gpu_util"]) / 100,
                "utilisation": float(np.mean(busy)),
                "published_slowdown": float(row["avg_jct_h"]) / float(np.mean(alone_h)),
                "slowdown": float(
                    np.mean([took / solo_s[each] for took, each in zip(times, members, strict=True)])
                ),
            }
    finally:
        machine.close()
        del catalogue.CARDS["SERVER8"]


def main(argv: Sequence[str] | None = None) -> None:
    options = arguments(__doc__ or "", argv)
    result: dict[str, Any] = {}
    path = options.data / "colocation" / "eaco_tables.csv"
    if path.exists():
        result["tables"] = list(tables(path))
        print("The published sets on the simulated card:\n")
        heads = (
            "set", "W, published", "W", "utilisation, published", "utilisation", "time, published", "time",
        )
        print(table(heads, [list(row.values()) for row in result["tables"]]))
        power = [abs(row["power_w"] / row["published_w"] - 1) for row in result["tables"]]
        slow = [abs(row["slowdown"] - row["published_slowdown"]) for row in result["tables"]]
        used = [abs(row["utilisation"] - row["published_utilisation"]) for row in result["tables"]]
        result["worst"] = {"power": max(power), "utilisation": max(used), "slowdown": max(slow)}
        print(
            f"\nworst: power {100 * max(power):.1f} %, utilisation {100 * max(used):.1f} points, time "
            f"{100 * max(slow):.1f} points\n"
        )
    else:
        print(f"the published tables are not here ({path})\n")
    rows = []
    for row in coverage(8 if options.quick else 40):
        rows.append(row)
        print(
            {key: round(value, 4) if isinstance(value, float) else value for key, value in row.items()},
            flush=True,
        )
    result["coverage"] = rows
    heads = (
        "set", "slowdown", "saving", "held: slowdown", "held: saving", "± slowdown", "± saving",
        "saving off by", "trials",
    )
    print("\nIntervals of 95 % and the truth:\n")
    print(table(heads, [list(row.values()) for row in rows]))
    count = sum(row["trials"] for row in rows)
    both = sum(row["trials"] * row["saving_held"] for row in rows) / count
    jobs_held = list(
        itertools.chain.from_iterable(
            [row["slowdown_held"]] * row["trials"] * len(SETS[row["set"]]) for row in rows
        )
    )
    result["summary"] = {"saving_held": both, "slowdown_held": float(np.mean(jobs_held))}
    print(f"\nover all: saving {100 * both:.1f} %, slowdown {100 * float(np.mean(jobs_held)):.1f} %")
    finish(result, options.json)


if __name__ == "__main__":
    main()
