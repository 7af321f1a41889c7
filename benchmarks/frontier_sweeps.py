"""Number of measurements of a sweep for 99 % of the frontier's dominated area, next to grid, random and
Optuna's samplers.

A problem is a measured grid: batch sizes x power limits of one training, or the clocks of one kernel,
application or pipeline pass. A method sees only its measurements. Axes are relative. The reference point is
the worst time and the worst energy of the problem (which no method knows). A repeated configuration costs
nothing, which favours samplers that repeat.

Curves that differ by less than a thousandth are one problem. If the best single measurement is sufficient, a
ratio is not informative: such problems are scored by the measurements beyond the first.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from benchmarks.common import area
from workbench.search.surrogates.expected_hypervolume import AXES, FrontierSearch

from .clocks_grids import EMPTY, distinct, grids

ENOUGH = 0.99
LEAST_POINTS = 30

Visit = Iterator[int]
Tell = Callable[[int], tuple[float, float]]
Method = Callable[[pl.DataFrame, Tell, int], Visit]


def problems(data: Path, least: int = LEAST_POINTS, most: int = 10**9) -> dict[str, pl.DataFrame]:
    """Grids of at least `least` and at most `most` measured points, with the axes of `AXES` that
    they have, time_s and energy_j.
    """
    found: dict[str, pl.DataFrame] = {}
    for path in sorted((data / "zeus").glob("summary_power_*.csv")):
        frame = pl.read_csv(path, infer_schema_length=None, null_values=EMPTY)
        for key, part in frame.group_by("dataset", "network", "optimizer", maintain_order=True):
            found[f"{path.stem.removeprefix('summary_power_')} {key[0]} {key[2]}"] = (
                part.select(
                    "batch_size", pl.col("power_limit").cast(pl.Float64).alias("power_limit_w"),
                    pl.col("time_per_epoch").alias("time_s"),
                    (pl.col("average_power") * pl.col("time_per_epoch")).alias("energy_j"),
                )
                .drop_nulls()
                .group_by("batch_size", "power_limit_w")
                .mean()
                .sort("batch_size", "power_limit_w")
            )
    for each in distinct(grids(data, kinds=("kernels", "applications", "stages"))):
        points = each.points.group_by("sm_clock_mhz", "mem_clock_mhz").agg(
            pl.col("time_s", "energy_j").mean()
        )
        kept = [axis for axis in ("sm_clock_mhz", "mem_clock_mhz") if points[axis].n_unique() > 1]
        found[f"{each.file} {each.problem}"] = points.select(*kept, "time_s", "energy_j").sort(kept)
    return {name: frame for name, frame in found.items() if least <= len(frame) <= most}


def ours(space: pl.DataFrame, tell: Tell, seed: int) -> Visit:
    search = FrontierSearch(space, min_gain=0.0, rng=np.random.default_rng(seed))
    while (step := search.ask()) is not None:
        yield step.row
        search.tell(step.row, *tell(step.row))


def in_random_order(space: pl.DataFrame, tell: Tell, seed: int) -> Visit:
    yield from (int(i) for i in np.random.default_rng(seed).permutation(len(space)))


def row_by_row(space: pl.DataFrame, tell: Tell, seed: int) -> Visit:
    """A grid as in a script: nested loops, each axis up or down and nested in the order of the seed."""
    rng = np.random.default_rng(seed)
    axes = [space.columns[i] for i in rng.permutation(len(space.columns))]
    down = [bool(each) for each in rng.integers(0, 2, len(axes))]
    yield from space.with_row_index("row").sort(axes, descending=down)["row"].to_list()


def optuna_sampler(kind: str) -> Method:
    def visit(space: pl.DataFrame, tell: Tell, seed: int) -> Visit:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        sampler = (
            optuna.samplers.TPESampler(seed=seed, multivariate=False)
            if kind == "TPE"
            else optuna.samplers.NSGAIISampler(seed=seed, population_size=10)
        )
        study = optuna.create_study(directions=["minimize", "minimize"], sampler=sampler)
        levels = {axis: sorted(space[axis].unique().to_list()) for axis in space.columns}
        rows = {tuple(values): i for i, values in enumerate(space.rows())}
        for _ in range(20 * len(space)):
            trial = study.ask()
            chosen = tuple(
                levels[axis][trial.suggest_int(axis, 0, len(levels[axis]) - 1)] for axis in space.columns
            )
            row = rows.get(chosen)
            if row is None:  # the card does not pair these clocks
                study.tell(trial, state=optuna.trial.TrialState.FAIL)
                continue
            yield row
            study.tell(trial, list(tell(row)))

    return visit


METHODS: dict[str, Method] = {
    "ours": ours, "grid": row_by_row, "random": in_random_order, "NSGA-II": optuna_sampler("NSGA-II"),
    "TPE": optuna_sampler("TPE"),
}


def needed(method: Method, frame: pl.DataFrame, seed: int) -> int:
    """Distinct configurations measured until `ENOUGH` of the area is dominated; all of them where a method
    gives up before.
    """
    time_s = frame["time_s"].to_numpy() / frame["time_s"].min()  # type: ignore[operator]
    energy_j = frame["energy_j"].to_numpy() / frame["energy_j"].min()  # type: ignore[operator]
    worst = float(time_s.max()), float(energy_j.max())
    whole = area(time_s, energy_j, *worst)
    space = frame.select([axis for axis in AXES if axis in frame.columns])
    seen: list[int] = []
    for row in method(space, lambda i: (float(time_s[i]), float(energy_j[i])), seed):
        if row in seen:
            continue
        seen.append(row)
        if area(time_s[seen], energy_j[seen], *worst) >= ENOUGH * whole:
            return len(seen)
    return len(frame)


def floor(frame: pl.DataFrame) -> int:
    """What one who knows the table needs, taking the best next point each time: nobody can do much better."""
    time_s, energy_j = frame["time_s"].to_numpy(), frame["energy_j"].to_numpy()
    worst = float(time_s.max()), float(energy_j.max())
    whole, seen = area(time_s, energy_j, *worst), list[int]()
    while area(time_s[seen], energy_j[seen], *worst) < ENOUGH * whole:
        seen.append(
            int(
                np.argmax([area(time_s[[*seen, i]], energy_j[[*seen, i]], *worst) for i in range(len(frame))])
            )
        )
    return len(seen)


def but_for_the_scatter(frame: pl.DataFrame) -> int | None:
    """What one needs who knows the curve, but not how the measured points scatter about it; None where there
    are several axes.

    The curve: polynomials of the fourth degree in the logarithm of the knob, fitted to the logarithms of all
    times and energies. The next point is the one that adds most area where each is either measured or on the
    curve.
    """
    axes = [axis for axis in AXES if axis in frame.columns]
    if len(axes) != 1 or len(frame) < 10:
        return None
    x = np.log(frame[axes[0]].to_numpy().astype(float))
    x = (x - x.mean()) / x.std()
    true = np.stack([frame[name].to_numpy() / frame[name].min() for name in ("time_s", "energy_j")])  # type: ignore[operator]
    known = np.stack([np.exp(np.polyval(np.polyfit(x, np.log(values), 4), x)) for values in true])
    worst, seen = true.max(axis=1), list[int]()
    whole = area(true[0], true[1], *worst)
    while area(true[0, seen], true[1, seen], *worst) < ENOUGH * whole:
        bound = np.maximum(worst, known.max(axis=1))
        gains = [
            -1.0 if i in seen else area(known[0, [*seen, i]], known[1, [*seen, i]], *bound)
            for i in range(len(frame))
        ]
        seen.append(int(np.argmax(gains)))
        known[:, seen[-1]] = true[:, seen[-1]]
    return len(seen)


def problem(name: str, frame: pl.DataFrame, seeds: int) -> dict[str, Any]:
    """The medians of every method over seeds, and what those need who know more than a method may."""
    row: dict[str, Any] = {
        "problem": name, "points": len(frame), "floor": floor(frame),
        "curve_known": but_for_the_scatter(frame),
    }
    for method, visit in METHODS.items():
        counts = [needed(visit, frame, seed) for seed in range(seeds)]
        row[method] = statistics.median(counts)
        row[f"{method} worst"] = max(counts)
    best = min(row[method] for method in METHODS if method != "ours")
    row |= {"family": family(name), "ratio": row["ours"] / best, "floor_ratio": row["floor"] / best}
    return row | {"extra": row["ours"] - 1, "extra of the best peer": best - 1, "one": row["floor"] <= 1}


def family(name: str) -> str:
    """Problems that are alike: the GPU of a training, the file and the pass of a pipeline stage, a file."""
    words = name.split()
    return f"{words[0]} {words[-1]} passes" if len(words) > 2 and words[1] == "stage" else words[0]


def ratios(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Median ratio to the best peer by family, of problems that take more than one measurement."""
    of: dict[str, list[float]] = {}
    for row in rows:
        if not row["one"]:
            of.setdefault(row["family"], []).append(row["ratio"])
    return {name: statistics.median(values) for name, values in of.items()}


def sweeps(data: Path, *, seeds: int, least: int = LEAST_POINTS, most: int = 10**9) -> dict[str, Any]:
    """A row a problem with the median of every method over seeds, and the summary. Problems are shared
    among the cores.
    """
    rows: list[dict[str, Any]] = []
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "POLARS_MAX_THREADS"):
        os.environ.setdefault(variable, "1")  # of the processes that are begun here; the arrays are small
    found = problems(data, least, most)
    with ProcessPoolExecutor(
        max_workers=os.cpu_count(), mp_context=multiprocessing.get_context("spawn")
    ) as pool:
        for row in pool.map(problem, found.keys(), found.values(), [seeds] * len(found)):
            rows.append(row)
            told = ", ".join(f"{method} {row[method]:g}" for method in METHODS)
            print(f"  {row['problem']}: {told} of {row['points']}", flush=True)
    if not rows:
        return {"problems": [], "measurements_ratio_to_best_peer": None}
    scored, single = ([row for row in rows if row["one"] is one] for one in (False, True))
    medians = {method: statistics.median(row[method] for row in rows) for method in METHODS}
    return {
        "problems": rows,
        "medians": medians,
        "measurements_ratio_to_best_peer": statistics.median(row["ratio"] for row in rows),
        "ratio_of_medians": medians["ours"]
        / min(value for method, value in medians.items() if method != "ours"),
        "ratio_worst": max(row["ratio"] for row in rows),
        "ratio_median": statistics.median(row["ratio"] for row in scored) if scored else None,
        "ratio_by_family": ratios(rows),
        "ratio_worst_family": max(ratios(rows).values(), default=None),
        "extra": {
            key: statistics.fmean(row[key] for row in single) if single else None
            for key in ("extra", "extra of the best peer")
        },
        "floor_ratio": statistics.median(row["floor_ratio"] for row in rows),  # of one who knows the table
    }
