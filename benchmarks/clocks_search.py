"""The tuner's method and peers on measured grids: what a job of ten minutes saves, exploration included.

    python -m benchmarks.clocks --only search [--data DIR] [--json FILE] [--quick]

A problem is a kernel, a pass of a pipeline stage or an application that was measured at many clocks
(`clocks_grids`, which also has the rule for clocks between). A job repeats it: iterations of half a second at
the reference, the highest clocks, for ten minutes. Ten iterations have an error in time and in energy of 1, 2
or 3 % (normal, relative). Ours decides every block of the job (`Descent`), and does not know its length. The
searches of the peers have trials of ten iterations at least; their choice is held until the job ends. A curve
that occurs twice in the data is one problem.

    share   what the job saved, over what the best setting within the slowdown limit saves; means over jobs
    kept    jobs that kept the slowdown limit as a whole, within a tenth of a percent of their time
    excess  energy of the last choice over that of the best setting within the limit, in the grid without
            noise; a choice beyond the limit is charged as the reference

Kernels and stages have the same weight for any number of problems of either.

In addition there are generated cards (`fixtures.cards.clock_grid`), one family at a time. They do not affect
the measured figures. Constants of the method may be chosen on the families of `CHOSEN_ON`, never on the
others. `by_family` has the figures of each family.
"""

from __future__ import annotations

import math
import multiprocessing
import zlib
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from benchmarks.fixtures.cards import CLOCK_FAMILIES, clock_grid
from benchmarks.peers import make_search, report
from workbench.errors import WorkbenchError
from workbench.records import Configuration, Observation, Setting
from workbench.search.clocks.descent import Descent
from workbench.search.clocks.effects import ladders
from workbench.search.clocks.knowledge import time_bounds
from workbench.search.objective import Energy, EnergyDelay, Objective, ZeusCost
from workbench.search.space import SettingSpace, space_of

from .clocks_grids import Grid, complete, distinct, grids, whole_iterations
from .common import table

BOUND = 0.05
NOISES = (0.01, 0.02, 0.03)
OURS = "model-guided"
SEEDS = {OURS: 4, "gpoeo": 4, "mf-gpoeo": 4, "random": 4, "tpe": 2, "gp": 1}
ITERATIONS = 10  # that have the error of a problem's noise; a peer's trial has at least as many
JOB_S, ITERATION_S = 600.0, 0.5  # of a job and of an iteration, at the reference
DRAW = 1.05  # times the mean power at the reference: a lower limit slows the job down
MAIN = ("kernels", "stages")
CHOSEN_ON = CLOCK_FAMILIES[: len(CLOCK_FAMILIES) // 2]
GENERATED = 24  # cards a family; a quick look takes a third
FEW = 40  # grids that a quick look takes whole
Task = tuple[Grid, str, float, int, float, str]  # problem, method, noise, seed, bound, objective
FIGURES = ("share", "kept", "saving", "possible", "slowdown", "trials", "excess", "choice_beyond")
HEADS = (
    "method", "share of the oracle's saving", "limit kept", "saving", "possible", "mean slowdown", "trials",
    "excess, mean", "choices beyond",
)


def search(data: Path, quick: bool) -> dict[str, Any]:
    """Every method on every problem; prints its tables and gives `summary` and the details."""
    every = grids(data, ("kernels", "stages", "applications"))
    found = distinct(every)
    families, generated = _generated(quick)
    if not any(grid.kind in MAIN for grid in found):
        print(f"no measured clocks in {data / 'clocks'}: only generated cards were searched")
        return {"summary": families, "generated": generated}
    methods = [name for name in SEEDS if _there(name)]
    absent = [name for name in SEEDS if name not in methods]
    if absent:
        print(f"not run, as their libraries are not here: {', '.join(absent)}")
    runs = _all(_tasks(found, methods, quick))
    main = runs.filter(pl.col("kind").is_in(MAIN))
    details: dict[str, Any] = {"absent": absent, "runs": runs.height}
    print(f"\nKernels and stages, {BOUND:.0%} slowdown allowed\n")
    details["all"] = score = summarised(main)
    _print(score)
    for title, of, column in (("kind", runs, "kind"), ("noise", main, "noise"), ("file", runs, "file")):
        print(f"\nby {title}\n")
        parts = of.group_by(column, maintain_order=True)
        details[f"by_{title}"] = scores = {str(value): summarised(part) for (value,), part in parts}
        _print({
            f"{value}: {name}": row for value, rows in scores.items() for name, row in rows.items()
            if name in (OURS, "gpoeo")
        })
    if not quick:
        stages = whole_iterations([each for each in every if each.kind == "stages"])
        details["beside"] = _beside(found, distinct(stages))
    summary = score[OURS] | {f"{key}_by_method": {name: row[key] for name, row in score.items()}
                             for key in FIGURES}
    return {"summary": summary | families, **details, "generated": generated}


def generated(family: str, count: int) -> list[Grid]:
    """Grids of random cards over clocks; the file names the family."""
    return [
        Grid(family, "generated", f"card {seed}", complete(clock_grid(family, seed))) for seed in range(count)
    ]


def _generated(quick: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """`by_family`, and the means over the families that constants were chosen on and over those left out;
    the same of GPOEO's search.
    """
    count = GENERATED // (3 if quick else 1)
    runs = _all([
        (grid, name, noise, 0, BOUND, "energy")
        for family in CLOCK_FAMILIES for grid in generated(family, count)
        for name in (OURS, "gpoeo") for noise in NOISES
    ])
    scores = {
        name: {family: _score(runs.filter(file=family, method=name)) for family in CLOCK_FAMILIES}
        for name in (OURS, "gpoeo")
    }
    groups = {
        "chosen_on": _score(runs.filter(pl.col("file").is_in(CHOSEN_ON), method=OURS)),
        "left_out": _score(runs.filter(~pl.col("file").is_in(CHOSEN_ON), method=OURS)),
    }
    print(f"\nGenerated cards, {count} a family; constants were chosen on {', '.join(CHOSEN_ON)}\n")
    _print(scores[OURS] | groups)
    summary = {"by_family": scores[OURS], "generated": groups}
    return summary, {"by_method": scores, "chosen_on": CHOSEN_ON, "runs": runs.height}


def _tasks(found: Sequence[Grid], methods: Sequence[str], quick: bool) -> list[Task]:
    tasks: list[Task] = []
    # few grids are all played, and all of a kind of which a fifth is none
    thinned = {grid.kind for grid in found[::5]} if quick and len(found) > FEW else set()
    for name in methods:
        for number, grid in enumerate(found):
            sampled = name in ("tpe", "gp", "random")
            if (grid.kind in thinned and number % 5) or (
                grid.kind == "applications" and (sampled or number % 3)
            ):
                continue
            if name == "gp" and grid.kind == "stages" and number % 4:
                continue  # its fits take seconds; stages are alike
            seeds = 1 if quick else SEEDS[name] if grid.kind == "kernels" else max(1, SEEDS[name] // 2)
            tasks += [(grid, name, noise, seed, BOUND, "energy") for noise in NOISES for seed in range(seeds)]
    return tasks


@dataclass
class GridJob:
    """A job of ten minutes on a grid: iterations at one setting after another.

    Attributes:
        times, energies: Of an iteration, by row: s and J.
        left: Iterations.
        time_s, energy_j: Of those that have ended.
        trials: Rows that were tried, not held.
    """

    times: np.ndarray
    energies: np.ndarray
    scatter: float
    rng: np.random.Generator
    left: int = round(JOB_S / ITERATION_S)
    time_s: float = 0.0
    energy_j: float = 0.0
    trials: list[int] = field(default_factory=list)

    def run(self, row: int, setting: Setting, count: int) -> Observation:
        """So many iterations at a row and its setting, or what is left of the job, as they are measured."""
        count = min(count, self.left)
        time_s, energy_j = count * self.times[row], count * self.energies[row]
        slips = np.exp(self.scatter / math.sqrt(count) * self.rng.standard_normal(2))
        block = Observation(
            Configuration(setting), count, time_s * slips[0], energy_j * slips[1],
            self.scatter / math.sqrt(count) * energy_j, self.scatter, at_s=self.time_s + 0.5 * time_s,
        )
        self.left -= count
        self.time_s, self.energy_j = self.time_s + time_s, self.energy_j + energy_j
        return block


def ours(job: GridJob, space: SettingSpace, objective: Objective, bound: float | None) -> int:
    """The job with the tuner's method, in a loop as the tuner's; returns the row that was held last."""
    here = space.reference_row
    clock_mhz = float(space.max_sm_clock_mhz or 1)
    rungs = ladders(space, clock_mhz, DRAW * job.energies[here] / job.times[here])
    most = time_bounds(rungs, np.full(8, clock_mhz), np.ones(8))
    method = Descent(rungs, most, objective, bound)
    method.count(True)
    row = here
    while job.left:
        plan = method.next(job.time_s)
        count = max(plan.count, math.ceil(plan.seconds / job.times[plan.row]))
        count = 2 if job.times[plan.row] > plan.too_slow_s else count
        block = job.run(plan.row, space.settings[plan.row], count)
        if plan.kind == "held":
            row = plan.row
        else:
            job.trials.append(plan.row)
        method.passed(plan.row, block.time_s)
        if method.tell(block):  # the work has changed, as the method has it
            method = Descent(rungs, most, objective, bound, earlier_s=method.spent_s())
            method.count(True)
    return row


def peer(job: GridJob, space: SettingSpace, objective: Objective, bound: float | None, name: str,
         seed: int) -> int:
    """The job with a peer's search, whose choice is held until the end; returns its row."""
    search = make_search(name, space, objective, bound, rng=np.random.default_rng(seed))
    while job.left and (plan := search.next(search.now_s)).kind != "held":
        count = max(plan.count, ITERATIONS, math.ceil(plan.seconds / job.times[plan.row]))
        block = job.run(plan.row, space.settings[plan.row], count)
        report(search, plan.row, block.count, block.time_s, block.energy_j, block.energy_sd_j)
        job.trials.append(plan.row)
    row = search.held()
    if job.left:
        job.run(row, space.settings[row], job.left)
    return row


def one(task: Task) -> dict[str, Any]:
    """One job with one method."""
    grid, name, noise, seed, bound, wanted = task
    settings = grid.settings()
    space = space_of(settings, grid.reference)
    times, energies = grid.table(settings)
    here = space.reference_row
    scale = ITERATION_S / times[here]
    luck = np.random.default_rng(
        [seed, round(1000 * noise), zlib.crc32(grid.name.encode())]
    )  # the same for every method
    job = GridJob(scale * times, scale * energies, noise * math.sqrt(ITERATIONS), luck)
    count, objective = job.left, _objective(wanted, times, energies, here)
    limits = space, objective, bound
    chosen = ours(job, *limits) if name == OURS else peer(job, *limits, name, seed)
    cost = np.asarray(objective.cost(job.times, job.energies), dtype=float)
    allowed = times <= (1 + bound) * times[here] * (1 + 1e-9)
    best = float(cost[allowed].min())
    mean = float(objective.cost(job.time_s / count, job.energy_j / count))
    return {
        "file": grid.file, "kind": grid.kind, "problem": grid.problem, "method": name, "noise": noise,
        "seed": seed, "trials": len(job.trials), "beyond": sum(not allowed[row] for row in job.trials),
        "choice_beyond": not allowed[chosen], "slowdown": job.time_s / JOB_S - 1,
        "kept": job.time_s <= (1 + bound + 0.001) * JOB_S,
        "saving": 1 - mean / float(cost[here]), "possible": 1 - best / float(cost[here]),
        "excess": float(cost[chosen] if allowed[chosen] else max(cost[here], cost[chosen])) / best - 1,
    }


def summarised(runs: pl.DataFrame) -> dict[str, dict[str, float]]:
    """One row a method."""
    names = [each for each in SEEDS if each in runs["method"].unique()]
    return {name: _score(runs.filter(method=name)) for name in names}


def _score(runs: pl.DataFrame) -> dict[str, float]:
    """Means of `FIGURES`; kinds weigh the same, and within a kind every problem does."""
    problems = pl.struct("file", "problem").n_unique().over("kind")
    weight = 1 / pl.len().over("kind", "problem", "file") / problems
    weights = runs.select(weight.alias("weight"))["weight"].to_numpy()
    means = {name: float(np.average(runs[name].to_numpy(), weights=weights)) for name in FIGURES[1:]}
    # below half a percent there is nothing to save
    return {"share": means["saving"] / max(means["possible"], 0.005), **means, "jobs": runs.height,
            "excess_median": float(np.median(runs["excess"])), "excess_worst": float(runs["excess"].max())}  # type: ignore[arg-type]


def _beside(found: Sequence[Grid], stages: list[Grid]) -> dict[str, Any]:
    """Ours and GPOEO's: no noise at all, other bounds, other objectives, whole iterations of a stage."""
    main = [
        grid
        for number, grid in enumerate(found)
        if grid.kind == "kernels" or (grid.kind == "stages" and number % 3 == 0)
    ]
    cases: dict[str, tuple[list[Grid], tuple[float, ...], float, str]] = {
        "no noise": (main, (1e-4,), BOUND, "energy"), "2 % allowed": (main, NOISES, 0.02, "energy"),
        "10 % allowed": (main, NOISES, 0.10, "energy"),
        "whole iterations of a stage": (stages, NOISES, BOUND, "energy"),
        "EDP, no bound below 100 %": (main, NOISES, 1.0, "edp"),
        "ED2P, no bound below 100 %": (main, NOISES, 1.0, "ed2p"),
        "Zeus cost at eta 0.5, no bound below 100 %": (main, NOISES, 1.0, "zeus"),
    }
    result = {}
    for title, (mine, noises, bound, wanted) in cases.items():
        tasks: list[Task] = [
            (grid, name, noise, 0, bound, wanted)
            for name in (OURS, "gpoeo") for grid in mine for noise in noises
        ]
        if tasks:
            result[title] = summarised(_all(tasks))
            print(f"\n{title}\n")
            _print(result[title])
    return result


def _objective(name: str, times: np.ndarray, energies: np.ndarray, here: int) -> Objective:
    if name == "edp":
        return EnergyDelay(1)
    if name == "ed2p":
        return EnergyDelay(2)
    return ZeusCost(0.5, float(energies[here] / times[here])) if name == "zeus" else Energy()


def _all(tasks: Sequence[Task]) -> pl.DataFrame:
    if len(tasks) < 40:
        return pl.DataFrame([one(task) for task in tasks], infer_schema_length=None)
    # A fork of a process whose library has threads may wait for ever.
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=2, mp_context=spawn) as pool:
        return pl.DataFrame(list(pool.map(one, tasks, chunksize=8)), infer_schema_length=None)


def _there(name: str) -> bool:
    """Whether the libraries of a method are installed."""
    if name == OURS:
        return True
    search = make_search(name, space_of(list(_TINY.settings()), _TINY.reference))
    try:
        while (plan := search.next(search.now_s)).kind != "held":
            report(search, plan.row, 5, 5.0, 5.0)
    except (ImportError, WorkbenchError):
        return False
    return True


def _print(rows: dict[str, dict[str, float]]) -> None:
    print(table(HEADS, [
        (name, *(f"{row[key]:.1f}" if key == "trials" else f"{100 * row[key]:.1f} %" for key in FIGURES))
        for name, row in rows.items()
    ]))


_TINY = Grid(
    "tiny", "kernels", "tiny",
    pl.DataFrame({"sm_clock_mhz": [900, 1200, 1500], "mem_clock_mhz": [5000] * 3, "power_limit_w": [None] * 3,
                  "time_s": [1.5, 1.2, 1.0], "energy_j": [0.9, 0.9, 1.0]}),
)
