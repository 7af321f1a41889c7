"""Number of trials of the searches over clocks, and the quality of their choices, on measured grids.

    python -m benchmarks.clocks --only search [--data DIR] [--json FILE] [--quick]

A problem is a kernel, a pass of a pipeline stage or an application that was measured at many clocks
(`clocks_grids`, which also has the rule for clocks between). Every trial of every method has its own error in
time and in energy, 1, 2 or 3 % (normal, relative). Every method begins with a trial of the reference, the
highest clocks. All have the same prediction to start from: physics and that trial, without knowledge of the
card. Each method goes on until it stops. A curve that occurs twice in the data is one problem. The choice is
then scored in the grid without noise.

    excess      energy of the choice over that of the best setting within the slowdown limit; a choice beyond
        it
                is charged as the reference
    shared      the same, but a job beyond the limit runs so much of its time at the reference that all of it
                keeps the limit
    raw         the same without such a charge: below zero where the limit was exceeded

Kernels and stages have the same weight for any number of problems of either.

In addition there are generated cards (`fixtures.cards.clock_grid`), one family at a time. They do not affect
the measured figures. Constants of the search may be chosen on the families of `CHOSEN_ON`, never on the
others. `by_family` has the figures of each family.
"""

from __future__ import annotations

import itertools
import math
import multiprocessing
import zlib
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from benchmarks.fixtures.cards import CLOCK_FAMILIES, clock_grid
from benchmarks.peers import make_search
from workbench.errors import WorkbenchError
from workbench.search.clocks.make import Trial
from workbench.search.objective import Energy, EnergyDelay, Objective, ZeusCost
from workbench.search.space import space_of

from .clocks_grids import Grid, complete, distinct, grids, whole_iterations
from .common import table

BOUND = 0.05
NOISES = (0.01, 0.02, 0.03)
SEEDS = {"model-guided": 4, "gpoeo": 4, "mf-gpoeo": 4, "random": 4, "tpe": 2, "gp": 1}
ITERATIONS = 10  # of a probe; its scatter is reported such that ten of them have the error of the probe
MOST = 60  # probes, if a method never stops
MAIN = ("kernels", "stages")
CHOSEN_ON = CLOCK_FAMILIES[: len(CLOCK_FAMILIES) // 2]
GENERATED = 24  # cards a family; a quick look takes a third
FEW = 40  # grids that a quick look takes whole
Task = tuple[Grid, str, float, int, float, str]  # problem, method, noise, seed, bound, objective


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
    score = summarised(main)
    print(f"\nKernels and stages, {BOUND:.0%} slowdown allowed\n")
    _print(score)
    details: dict[str, Any] = {"absent": absent, "all": score, "runs": runs.height}
    for kind in [kind for kind in ("kernels", "stages", "applications") if kind in runs["kind"].unique()]:
        details[kind] = summarised(runs.filter(pl.col("kind") == kind))
        print(f"\n{kind}\n")
        _print(details[kind])
    print("\nby noise\n")
    details["by_noise"] = noises = _by(main, "noise")
    print("\nby file\n")
    details["by_file"] = _by(runs, "file")
    if not quick:
        stages = whole_iterations([each for each in every if each.kind == "stages"])
        details["beside"] = _beside(found, distinct(stages))
    ours = score["model-guided"]
    summary = _summary(score)
    # Plain figures are ours; of every method the tables stand under other names.
    summary |= {f"{name}_by_method": summary.pop(name) for name in ("excess_median", "excess_worst")}
    summary |= {
        f"excess_median_{round(100 * noise)}": noises[str(noise)]["model-guided"]["excess_median"]
        for noise in NOISES
    }
    summary |= {
        "excess_median": ours["excess_median"], "excess_worst": ours["excess_worst"],
        "broken": ours["choice_beyond"], "probes": ours["probes_mean"],
    }
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
    found = [each for family in CLOCK_FAMILIES for each in generated(family, count)]
    tasks: list[Task] = [
        (grid, name, noise, 0, BOUND, "energy")
        for grid in found for name in ("model-guided", "gpoeo") for noise in NOISES
    ]
    runs = _all(tasks)
    scores = {
        name: {family: _family_score(runs.filter(file=family, method=name)) for family in CLOCK_FAMILIES}
        for name in ("model-guided", "gpoeo")
    }
    ours = scores["model-guided"]
    groups = {
        group: {key: float(np.mean([ours[each][key] for each in members])) for key in ours[members[0]]}
        for group, members in (
            ("chosen_on", CHOSEN_ON), ("left_out", [each for each in CLOCK_FAMILIES if each not in CHOSEN_ON])
        )
    }
    print(f"\nGenerated cards, {count} a family; constants were chosen on "
          f"{', '.join(CHOSEN_ON)}\n")
    rows = [*ours.items(), *((f"mean, {name}", each) for name, each in groups.items())]
    print(table(FAMILY_HEADS, [_family_cells(*row) for row in rows]))
    summary = {"by_family": ours, "generated": groups}
    return summary, {"by_method": scores, "chosen_on": CHOSEN_ON, "runs": runs.height}


def _family_score(runs: pl.DataFrame) -> dict[str, float]:
    """Excess (median, mean by noise, worst), choices beyond the bound, probes; each card weighs the same."""
    by_noise = {
        f"excess_{what}_{round(100 * noise)}": float(getattr(runs.filter(noise=noise)["excess"], what)())
        for what in ("median", "mean") for noise in NOISES
    }
    excess = runs["excess"]
    return {
        "excess_median": float(excess.median()), "excess_mean": float(excess.mean()),  # type: ignore[arg-type]
        "excess_worst": float(excess.max()), "broken": float(runs["choice_beyond"].mean()),  # type: ignore[arg-type]
        "probes": float(runs["probes"].mean()),  # type: ignore[arg-type]
        "possible": float((runs["reference"]).mean()), **by_noise,  # type: ignore[arg-type]
    }


FAMILY_HEADS = (
    "family", "median excess at 1, 2, 3 %", "mean", "worst", "bound broken", "probes", "reference"
)


def _family_cells(name: str, row: dict[str, float]) -> tuple[str, ...]:
    medians, means = (
        ", ".join(f"{100 * row[f'excess_{what}_{noise}']:.1f}" for noise in (1, 2, 3)) + " %"
        for what in ("median", "mean")
    )
    shares = [f"{100 * row[key]:.1f} %" for key in ("excess_worst", "broken")]
    return name, medians, means, *shares, f"{row['probes']:.1f}", f"{100 * row['possible']:.1f} %"


def _tasks(found: Sequence[Grid], methods: Sequence[str], quick: bool) -> list[Task]:
    tasks: list[Task] = []
    # few grids are all played, and all of a kind of which a fifth is none
    thinned = {grid.kind for grid in found[::5]} if quick and len(found) > FEW else set()
    for name in methods:
        for number, grid in enumerate(found):
            sampled = name in ("tpe", "gp", "random")
            if (
                (grid.kind in thinned and number % 5)
                or (grid.kind == "applications" and (sampled or number % 3))
            ):
                continue
            if name == "gp" and grid.kind == "stages" and number % 4:
                continue  # its fits take seconds; stages are alike
            seeds = 1 if quick else SEEDS[name] if grid.kind == "kernels" else max(1, SEEDS[name] // 2)
            tasks += [
                (grid, name, noise, seed, BOUND, "energy")
                for noise in NOISES
                for seed in range(seeds)
            ]
    return tasks


def _summary(score: dict[str, dict[str, float]]) -> dict[str, Any]:
    ours, theirs = score["model-guided"], score["gpoeo"]
    return {
        "probes_median": {name: each["probes_median"] for name, each in score.items()},
        "probes_mean": {name: each["probes_mean"] for name, each in score.items()},
        "probes_ratio_to_gpoeo": ours["probes_median"] / theirs["probes_median"],
        "probes_mean_ratio_to_gpoeo": ours["probes_mean"] / theirs["probes_mean"],
        "violations": {
            name: {
                "per_run": each["violations_per_run"],
                "share_of_probes": each["violation_share"],
                "two_in_a_row": each["in_a_row"],
                "choice_beyond": each["choice_beyond"],
                "overshoot_of_those": each["overshoot"],
            }
            for name, each in score.items()
        },
        **{
            f"{which}_{what}": {name: each[f"{which}_{what}"] for name, each in score.items()}
            for which in ("excess", "shared", "raw")
            for what in ("median", "mean", "worst")
        },
    }


def one(task: Task) -> dict[str, Any]:
    """One method on one problem, until it stops."""
    grid, name, noise, seed, bound, wanted = task
    settings = grid.settings()
    space = space_of(settings, grid.reference)
    times, energies = grid.table(settings)
    here = space.reference_row
    mine: Objective = _objective(wanted, times, energies, here)
    luck = np.random.default_rng(
        [seed, round(1000 * noise), zlib.crc32(grid.name.encode())]
    )  # the same for every method
    running = make_search(
        name,
        space,
        mine,
        bound,
        rng=np.random.default_rng(seed),
    )
    allowed = times <= (1 + bound) * times[here] * (1 + 1e-9)
    visited: list[int] = []
    reason = f"after {MOST} probes"
    while len(visited) < MOST:
        step = running.next()
        if not isinstance(step, Trial):
            reason = step.reason
            break
        row = space.row(step.setting)
        time_s, energy_j = (
            np.array([times[row], energies[row]]) * np.exp(noise * luck.standard_normal(2)) * ITERATIONS
        )
        scatter_s = noise * math.sqrt(ITERATIONS) * time_s / ITERATIONS
        running.tell(
            step.setting,
            ITERATIONS,
            float(time_s),
            float(energy_j),
            1.96 * noise * float(energy_j),
            float(scatter_s),
        )
        visited.append(row)
    chosen = space.row(running.choice().setting)
    cost = np.asarray(mine.cost(times, energies), dtype=float)
    best = float(cost[allowed].min())
    share = min(1.0, bound / max(float(times[chosen] / times[here]) - 1, 1e-12))
    beyond = [not allowed[row] for row in visited]
    return {
        "file": grid.file,
        "kind": grid.kind,
        "problem": grid.problem,
        "method": name,
        "noise": noise,
        "seed": seed,
        "probes": len(visited),
        "beyond": sum(beyond),
        "in_a_row": any(a and b for a, b in itertools.pairwise(beyond)),
        "choice_beyond": not allowed[chosen],
        "slowdown": float(times[chosen] / times[here] - 1),
        "excess": float(cost[chosen] if allowed[chosen] else max(cost[here], cost[chosen])) / best - 1,
        "shared": float(share * cost[chosen] + (1 - share) * cost[here]) / best - 1,
        "raw": float(cost[chosen]) / best - 1,
        "reference": float(cost[here]) / best - 1,
        "reason": reason,
    }


def summarised(runs: pl.DataFrame) -> dict[str, dict[str, float]]:
    """One row a method; kinds weigh the same, and within a kind every problem does."""
    found = {}
    for name in [each for each in SEEDS if each in runs["method"].unique()]:
        mine = runs.filter(pl.col("method") == name).with_columns(
            weight=1
            / pl.len().over("kind", "problem", "file")
            / pl.struct("file", "problem").n_unique().over("kind")
        )
        weights = mine["weight"].to_numpy()
        row = {
            "probes_median": _median(mine["probes"].to_numpy(), weights),
            "probes_mean": _mean(mine["probes"].to_numpy(), weights),
        }
        for which in ("excess", "shared", "raw"):
            values = mine[which].to_numpy()
            row |= {f"{which}_median": _median(values, weights), f"{which}_mean": _mean(values, weights)}
            row[f"{which}_worst"] = float(values.max())
        row["violations_per_run"] = _mean(mine["beyond"].to_numpy(), weights)
        row["violation_share"] = row["violations_per_run"] / row["probes_mean"]
        row["in_a_row"] = _mean(mine["in_a_row"].to_numpy(), weights)
        row["choice_beyond"] = _mean(mine["choice_beyond"].to_numpy(), weights)
        row["overshoot"] = float(mine.filter(pl.col("choice_beyond"))["slowdown"].mean() or math.nan) - BOUND  # type: ignore[arg-type]
        row["reference_median"] = _median(mine["reference"].to_numpy(), weights)
        row["runs"] = mine.height
        found[name] = row
    return found


def _beside(found: Sequence[Grid], stages: list[Grid]) -> dict[str, Any]:
    """Ours and GPOEO's: no noise at all, other bounds, other objectives, whole iterations of a stage."""
    main = [
        grid
        for number, grid in enumerate(found)
        if grid.kind == "kernels" or (grid.kind == "stages" and number % 3 == 0)
    ]
    cases: dict[str, tuple[list[Grid], tuple[float, ...], float, str]] = {
        "no noise": (main, (1e-4,), BOUND, "energy"),
        "2 % allowed": (main, NOISES, 0.02, "energy"),
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
            for name in ("model-guided", "gpoeo")
            for grid in mine
            for noise in noises
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
    space = space_of(list(_TINY.settings()), _TINY.reference)
    try:
        running = make_search(name, space)
        for _ in range(8):
            step = running.next()
            if not isinstance(step, Trial):
                break
            running.tell(step.setting, 5, 5.0, 5.0)
    except (ImportError, WorkbenchError):
        return False
    return True


def _by(runs: pl.DataFrame, column: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    rows = []
    for (value,), part in runs.group_by(column, maintain_order=True):
        score = summarised(part)
        found[str(value)] = score
        rows += [(value, name, *_cells(score[name])) for name in ("model-guided", "gpoeo") if name in score]
    print(table((column, *HEADS), rows))
    return found


HEADS = (
    "method",
    "probes, median",
    "mean",
    "excess, median",
    "mean",
    "worst",
    "shared, median",
    "raw, median",
    "choices beyond, %",
    "probes beyond a run",
    "two in a row, %",
)


def _cells(row: dict[str, float]) -> tuple[Any, ...]:
    percent = [
        f"{100 * row[name]:.1f} %"
        for name in ("excess_median", "excess_mean", "excess_worst", "shared_median", "raw_median")
    ]
    return (
        f"{row['probes_median']:.1f}",
        f"{row['probes_mean']:.1f}",
        *percent,
        f"{100 * row['choice_beyond']:.0f}",
        f"{row['violations_per_run']:.2f}",
        f"{100 * row['in_a_row']:.0f}",
    )


def _print(score: dict[str, dict[str, float]]) -> None:
    print(table(HEADS, [(name, *_cells(row)) for name, row in score.items()]))


def _mean(values: np.ndarray, weights: np.ndarray) -> float:
    return float(np.sum(values * weights) / np.sum(weights))


def _median(values: np.ndarray, weights: np.ndarray) -> float:
    order = np.argsort(values, kind="stable")
    summed = np.cumsum(weights[order]) / weights.sum()
    return float(values[order][int(np.searchsorted(summed, 0.5 - 1e-12))])


_TINY = Grid(
    "tiny", "kernels", "tiny",
    pl.DataFrame({"sm_clock_mhz": [900, 1200, 1500], "mem_clock_mhz": [5000] * 3, "power_limit_w": [None] * 3,
                  "time_s": [1.5, 1.2, 1.0], "energy_j": [0.9, 0.9, 1.0]}),
)
