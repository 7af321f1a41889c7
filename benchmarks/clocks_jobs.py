"""Trainings to be tuned, on simulated and on table-driven cards, with their true cost at every setting and
the actions of the tuner.

A job's truth comes from the card (its equations, or its table), not from measurements. It is the energy and
time of every iteration at the default setting, at the best one within the slowdown limit, and in the tuned
run. The variation of iterations comes from the job's random seed, so that all three have the same iterations.
"""

from __future__ import annotations

import bisect
import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.clocks_grids import Grid, grids, whole_iterations
from benchmarks.fixtures.tables import Measured, Point, measured_card, measured_workload
from workbench.records import Setting
from workbench.simulation import catalogue
from workbench.simulation.catalogue import Workload, WorkloadPhase
from workbench.simulation.machine import SENSORS, Machine
from workbench.simulation.physics import Card, operate
from workbench.simulation.training import GAP_JITTER, ITERATION_JITTER, TrainingJob

LEAST_S, LEAST_ITERATIONS = 600.0, 300
CARDS = ("V100", "A100", "RTX3080TI", "A40", "H100", "RTX6000", "RTX4090", "P100")
SIZES = 3
CHECKPOINT_EVERY = 200
GRAIN_S = 0.1


@dataclass(frozen=True)
class Part:
    """Work of a job until its end or its next change: a catalogued workload at a batch size, or a row of
    measured problems.
    """

    workload: str
    batch_size: int = 1
    problems: tuple[str, ...] = ()
    iteration_s: float = 0.0


@dataclass(frozen=True)
class Job:
    """One training that is to be tuned.

    Attributes:
        card: Of the catalogue; for a table-driven one the stem of the file that it comes from.
        parts: One, or two with a shift of the workload in the middle.
        told: The training states where its iterations end (`workbench.step()`); otherwise the power reading
            must show it.
        checkpoints: Writes one now and then.
        family: "simulated", or the kind of the grid.
    """

    family: str
    card: str
    parts: tuple[Part, ...]
    seed: int
    told: bool
    checkpoints: bool = False
    over: str = "both"
    objective: str = "energy"
    max_slowdown: float = 0.05

    @property
    def name(self) -> str:
        return " then ".join(
            f"{part.workload} {part.batch_size}" if not part.problems else part.workload
            for part in self.parts
        )


@dataclass(frozen=True)
class Cost:
    """An iteration at one setting, before its variation: what varies as kernels do, and what varies as
    waits do.
    """

    busy_s: float
    busy_j: float
    wait_s: float
    wait_j: float

    @property
    def time_s(self) -> float:
        return self.busy_s + self.wait_s

    @property
    def energy_j(self) -> float:
        return self.busy_j + self.wait_j


# which jobs


def simulated_jobs(seeds: Sequence[int], cards: Sequence[str] = CARDS) -> Iterator[Job]:
    """Six workloads on each card at each seed; batch sizes (smallest to largest that fits) and the rest
    take turns over the seeds.
    """
    names = list(catalogue.WORKLOADS)
    for seed in seeds:
        for place, card in enumerate(cards):
            for number, name in enumerate(names):
                turn = seed + number + place
                first = Part(name, _batch_size(card, name, turn))
                other = names[(number + 1 + seed % (len(names) - 1)) % len(names)]
                shift = turn % 4 == 3
                parts = (first, Part(other, _batch_size(card, other, turn + 1))) if shift else (first,)
                # How it is reported alternates between the seeds of one workload and card, and between
                # workloads of one seed.
                yield Job(
                    "simulated", card, parts, seed, told=(seed + number) % 2 == 0, checkpoints=turn % 4 == 1
                )


def table_jobs(data: Path, seeds: Sequence[int]) -> Iterator[Job]:
    """Jobs made of measured problems, some of each file at each seed: one problem, or a row of them, or one
    after another.

    A single kernel draws the same power all the time and shows nothing of its iterations, so such a job
    reports them. A row of three, each a third of the iteration, shows them wherever their powers differ; half
    of those do not report.
    """
    for seed in seeds:
        for file, all_problems in _by_file(data).items():
            grid_kind = all_problems[0].kind
            rng = random.Random(f"{seed} {file}")
            problems = [grid.problem for grid in all_problems]
            rng.shuffle(problems)
            count = min(len(problems), {"kernels": 9, "stages": 4, "trainings": 4}.get(grid_kind, 3))
            for number, problem in enumerate(problems[:count]):
                iteration_s = round(math.exp(rng.uniform(math.log(0.15), math.log(3.0))), 3)
                row = grid_kind in ("kernels", "applications") and number % 3 == 2 and len(problems) >= 3
                picked = (
                    (problem, *rng.sample([each for each in problems if each != problem], 2))
                    if row
                    else (problem,)
                )
                first = Part(" + ".join(picked), 1, picked, iteration_s)
                parts: tuple[Part, ...] = (first,)
                if number % 4 == 3:
                    other = rng.choice([each for each in problems if each != problem])
                    parts = (first, Part(other, 1, (other,), round(iteration_s * rng.uniform(0.5, 2.0), 3)))
                told = not row or len(parts) > 1 or seed % 2 == 0
                yield Job(grid_kind, file, parts, seed, told)


def _batch_size(card: str, workload: str, turn: int) -> int:
    from benchmarks.period_endtoend import batch_sizes

    sizes = batch_sizes(catalogue.CARDS[card], catalogue.WORKLOADS[workload], SIZES)
    return sizes[turn % len(sizes)]


@lru_cache(maxsize=4)
def _by_file(data: Path) -> dict[str, list[Grid]]:
    """Measured problems by file: whole iterations of pipeline stages, no counters (their times are
    relative).
    """
    found: dict[str, list[Grid]] = {}
    every = grids(data, ("kernels", "applications", "stages", "trainings"))
    stages = [grid for grid in every if grid.kind == "stages"]
    for grid in [*(grid for grid in every if grid.kind != "stages"), *whole_iterations(stages)]:
        if len(grid.settings()) >= 4:
            found.setdefault(grid.file, []).append(grid)
    return found


# what a job is made of


def built(job: Job, data: Path | None) -> tuple[str, list[Workload]]:
    """The key of the card that the job runs on, now in the catalogue, and the workload of each of its
    parts.
    """
    if job.family == "simulated":
        return job.card, [catalogue.WORKLOADS[part.workload] for part in job.parts]
    assert data is not None
    known = {grid.problem: grid for grid in _by_file(data)[job.card]}
    sweeps = {problem: _sweep(known[problem]) for part in job.parts for problem in part.problems}
    card = measured_card("TABLE", list(sweeps.values()), name=job.card)
    return card.key, [
        measured_workload(
            card, part.workload,
            [(sweeps[problem], part.iteration_s / len(part.problems)) for problem in part.problems],
        )
        for part in job.parts
    ]


def _sweep(grid: Grid) -> Measured:
    rows = grid.points.iter_rows(named=True)
    return Measured(
        grid.problem,
        [
            Point(
                r["sm_clock_mhz"], r["mem_clock_mhz"], r["power_limit_w"], r["time_s"],
                r["energy_j"] / r["time_s"],
            )
            for r in rows
        ],
    )


# what is true


def cost(card: Card, phases: Sequence[WorkloadPhase], setting: Setting) -> Cost:
    """An iteration at a setting, as the card's equations or tables have it."""
    limit_w = card.power_limit_w[1] if setting.power_limit_w is None else setting.power_limit_w
    sm = setting.sm_clock_mhz
    sums = {True: [0.0, 0.0], False: [0.0, 0.0]}
    for phase in phases:
        mem = setting.mem_clock_mhz
        point = operate(
            card, phase.load, power_limit_w=limit_w, min_sm_clock_mhz=sm, max_sm_clock_mhz=sm,
            mem_clock_mhz=mem,
        )
        time_s = phase.time_s * point.stretch
        mine = sums[phase.load is not None]
        mine[0] += time_s
        mine[1] += time_s * point.power_w
    return Cost(*sums[True], *sums[False])


def all_settings(card: Card, over: str) -> list[Setting]:
    """Everything that the card's driver takes: SM clocks at each memory clock that it pairs, power limits
    to the watt.
    """
    lacks = {*SENSORS[card.architecture].lacks, *card.lacks}
    low_w, default_w, _ = card.power_limit_w
    clocks = []
    if "sm_lock" not in lacks:
        lock_memory = "mem_lock" not in lacks and len(card.mem_clocks_mhz) > 1
        for place, mem in enumerate(card.mem_clocks_mhz if lock_memory else card.mem_clocks_mhz[:1]):
            top = card.mem_top_sm_mhz[place] if card.mem_top_sm_mhz else card.sm_clocks_mhz[0]
            low = card.mem_low_sm_mhz[place] if card.mem_low_sm_mhz else 0
            clocks += [
                Setting(None, sm, mem if lock_memory else None)
                for sm in card.sm_clocks_mhz
                if low <= sm <= top
            ]
    limits = [Setting(power_limit_w=float(watts)) for watts in np.arange(default_w, low_w - 1e-9, -1.0)]
    if over == "clocks" or (over == "both" and not limits):
        return clocks
    return limits if over == "power" else clocks + limits


def best(
    card: Card, phases: Sequence[WorkloadPhase], over: str, max_slowdown: float
) -> tuple[Setting, Cost, Cost]:
    """The setting of least energy an iteration whose time keeps the bound, its cost, and the default's."""
    default = cost(card, phases, Setting())
    found, least = Setting(), default
    for setting in all_settings(card, over):
        here = cost(card, phases, setting)
        if here.time_s <= (1 + max_slowdown) * default.time_s and here.energy_j < least.energy_j:
            found, least = setting, here
    return found, least, default


def factors(seed: int, iterations: int, variation: float = ITERATION_JITTER) -> tuple[float, float]:
    """Sums over a job's iterations of what multiplies its kernels' and its waits' lengths, as
    `TrainingJob` draws them.
    """
    rng = random.Random(seed)
    busy = wait = 0.0
    for _ in range(iterations):
        busy += rng.lognormvariate(0.0, variation)
        wait += rng.lognormvariate(0.0, GAP_JITTER)
    return busy, wait


def total(each: Cost, sums: tuple[float, float]) -> tuple[float, float]:
    """Seconds and joules of a job's iterations, all at one setting."""
    return each.busy_s * sums[0] + each.wait_s * sums[1], each.busy_j * sums[0] + each.wait_j * sums[1]


def iterations_of(
    job: Job, defaults: Sequence[Cost], least_s: float = LEAST_S, least: int = LEAST_ITERATIONS
) -> list[int]:
    """How many iterations each part has: the whole lasts ten minutes at the default setting, and has 300
    iterations at least.
    """
    share = 1.0 / len(job.parts)
    return [
        max(math.ceil(least * share), math.ceil(least_s * share / default.time_s)) for default in defaults
    ]


def checkpoints_cost(card: Card, workload: Workload, setting: Setting, count: int) -> tuple[float, float]:
    each = cost(card, catalogue.checkpoint(workload), setting)
    return count * each.time_s, count * each.energy_j


# what is done


@dataclass
class Run:
    """A job that runs on a stepped machine; it can be observed between steps."""

    job: Job | Any
    machine: Machine
    part: int = 0
    done: int = 0  # iterations that have begun, over all parts
    shifted_s: float = math.nan
    shifted_at: int = 0
    begun_s: float = 0.0


def train(
    run: Run, workloads: Sequence[Workload], counts: Sequence[int], act: Callable[[Run], float]
) -> tuple[float, float]:
    """Run a job to its end; returns its true time and energy. See `train_all` for `act`."""
    parts = enumerate(zip(workloads, run.job.parts, counts, strict=True))
    jobs = (
        TrainingJob(
            workload, part.batch_size, machine=run.machine, iterations=count, evaluate=False,
            seed=run.job.seed * 2 + number,
            checkpoint_every=CHECKPOINT_EVERY if run.job.checkpoints else None, grain_s=GRAIN_S,
        )
        for number, (workload, part, count) in parts
    )
    return train_all(run, jobs, act)


def train_all(run: Run, jobs: Iterable[TrainingJob], act: Callable[[Run], float]) -> tuple[float, float]:
    """Run trainings one after the other; returns their true time and energy.

    `act` is called when the tuner's thread would call. It returns the seconds of the machine's time until its
    next call.
    """
    from workbench.measurement import marks

    machine, clock = run.machine, run.machine.clock
    due_s, told = clock(), 0
    job: TrainingJob | None = None

    def follow(target_s: float) -> None:
        nonlocal due_s, told
        if target_s < due_s:
            return
        clock.show(min(max(due_s, clock()), target_s))
        if run.job.told and job is not None:
            # What `workbench.step()` would have noted by now: the clock went on for many iterations
            # immediately.
            ended = bisect.bisect_right(job.marks, clock())
            for notebook in marks._open:
                notebook.steps.extend(job.marks[told:ended])
            told = ended
        due_s = clock() + act(run)

    clock.on_step.append(follow)
    start_s = run.begun_s = clock()
    start_j = machine.state.true_energy_j(0, start_s)
    try:
        for number, job in enumerate(jobs):
            run.part, told = number, 0
            if number:
                run.shifted_s, run.shifted_at = clock(), run.done
            for _ in job:
                run.done += 1
    finally:
        clock.on_step.remove(follow)
    end_s = clock()
    return end_s - start_s, machine.state.true_energy_j(0, end_s) - start_j


@dataclass(frozen=True)
class Truth:
    """Seconds and joules of a job untuned, and with the best setting from its first moment; the best setting
    of each part.
    """

    counts: tuple[int, ...]
    default_s: float
    default_j: float
    oracle_s: float
    oracle_j: float
    settings: tuple[Setting, ...]
    iteration_s: tuple[float, ...]
    part_j: tuple[tuple[float, float], ...]  # an iteration's energy by default and at best, by part


def truth(
    job: Job, card: Card, workloads: Sequence[Workload], least_s: float = LEAST_S,
    least: int = LEAST_ITERATIONS,
) -> Truth:
    """Work a job out at its default and its best settings."""
    phases = [
        catalogue.iteration(card, workload, part.batch_size)
        for workload, part in zip(workloads, job.parts, strict=True)
    ]
    chosen = [best(card, each, job.over, job.max_slowdown) for each in phases]
    counts = iterations_of(job, [default for _, _, default in chosen], least_s, least)
    default, oracle = np.zeros(2), np.zeros(2)
    for number, ((setting, least_cost, default_cost), workload, count) in enumerate(
        zip(chosen, workloads, counts, strict=True)
    ):
        sums = factors(job.seed * 2 + number, count)
        default += total(default_cost, sums)
        oracle += total(least_cost, sums)
        if job.checkpoints:
            written = count // CHECKPOINT_EVERY
            default += checkpoints_cost(card, workload, Setting(), written)
            oracle += checkpoints_cost(card, workload, setting, written)
    return Truth(
        tuple(counts), float(default[0]), float(default[1]), float(oracle[0]), float(oracle[1]),
        tuple(each[0] for each in chosen), tuple(each[2].time_s for each in chosen),
        tuple((each[2].energy_j, each[1].energy_j) for each in chosen),
    )
