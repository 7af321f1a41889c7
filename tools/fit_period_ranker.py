"""Train the ranker of iteration periods on simulated jobs, and show what it learned.

    python -m tools.fit_period_ranker              # a quarter of an hour on two cores; writes
                                                        workbench/periods/estimators/ranker.json.gz
    python -m tools.fit_period_ranker --leave-out  # the score on each family when training never saw it
    python -m tools.fit_period_ranker --cases 500  # a try

Everything is drawn from `benchmarks.fixtures.traces`; no recorded or published trace takes part.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, fields
from hashlib import sha256
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
from scipy.optimize import isotonic_regression

from benchmarks.fixtures.traces import APERIODIC, PERIODIC, Case, random_case
from workbench.periods.detect import _readings, precisely
from workbench.periods.estimators.candidates import SignalView
from workbench.periods.estimators.features import NAMES, describe
from workbench.periods.estimators.ranker import ERROR, FILE, STAGES, rivals
from workbench.periods.estimators.signals import SignalGrid, on_grid

Array = np.ndarray[Any, Any]
SEED = 31
CASES = 24_000
COMMAND = "python -m tools.fit_period_ranker"
TOLERANCE = 0.05
FOLDS = 3
HOME = Path(__file__).resolve().parents[1]
TREES = {"iteration_alone": 200, "level_alone": 200, "iteration": 220, "level": 160, "error": 120}
OPTIONS: dict[str, Any] = {
    "objective": "binary",
    "learning_rate": 0.06,
    "num_leaves": 24,
    "min_data_in_leaf": 60,
    "feature_fraction": 0.3,
    "bagging_fraction": 0.8,
    "bagging_freq": 1,
    "lambda_l2": 5.0,
    "verbose": -1,
    "max_bin": 63,
    "force_col_wise": True,
    "num_threads": 1,
    "seed": SEED,
    "deterministic": True,
}


@dataclass(frozen=True, slots=True)
class Table:
    """Candidates of many cases: `of` tells the case of each row."""

    features: Array
    periods_s: Array
    of: Array
    iteration: Array
    level: Array
    families: Array
    observable: Array
    periodic: Array
    doubts: Array  # a row for each case whose iteration is a candidate: what its error depends on,
    errors: Array  # and how far the period was off, as a share

    def part(self, cases: Array) -> Table:
        """The rows of some cases (a mask over cases)."""
        rows = cases[self.of]
        number = np.cumsum(cases) - 1
        return Table(
            self.features[rows],
            self.periods_s[rows],
            number[self.of[rows]],
            self.iteration[rows],
            self.level[rows],
            self.families[cases],
            self.observable[cases],
            self.periodic[cases],
            self.doubts,
            self.errors,
        )

    @property
    def sha256(self) -> str:
        """A hash of all columns."""
        found = sha256()
        for column in fields(self):
            values = getattr(self, column.name)
            # Names are hashed as text: the width NumPy stores them in follows the longest of them.
            content = "\n".join(values).encode() if values.dtype.kind == "U" else values.tobytes()
            found.update(f"{column.name} {values.shape} ".encode() + content)
        return found.hexdigest()

    @property
    def groups(self) -> Iterator[slice]:
        edges = np.searchsorted(self.of, np.arange(len(self.families) + 1))
        return (slice(int(a), int(b)) for a, b in itertools.pairwise(edges))


def labels(case: Case, periods_s: Array) -> tuple[Array, Array]:
    """Which candidates are the iteration, and which are any level."""
    truth = case.truth
    if not truth.periodic:
        return np.zeros(len(periods_s), bool), np.zeros(len(periods_s), bool)
    assert truth.low_s is not None
    assert truth.high_s is not None
    iteration = (periods_s >= truth.low_s * (1 - TOLERANCE)) & (periods_s <= truth.high_s * (1 + TOLERANCE))
    level = iteration.copy()
    for name, value in truth.levels_s.items():
        if name != "evaluation-step":  # a rhythm, but not of the training
            level |= np.abs(periods_s / value - 1) <= TOLERANCE
    return iteration, level


def drawn(task: tuple[int, int, int]) -> list[tuple[Any, ...]]:
    """Cases first..last of a seed, described; each from its own stream, so that they do not depend on how
    the work is cut.
    """
    seed, first, last = task
    found = []
    for number in range(first, last):
        case = random_case(np.random.default_rng([seed, number]))
        time_s, columns, _ = _readings(case.trace)
        if len(time_s) < 24:
            continue
        grid = on_grid(time_s, columns)
        periods_s, features, views = describe(grid)
        iteration, level = labels(case, periods_s)
        found.append(
            (
                features.astype(np.float32),
                periods_s,
                iteration,
                level,
                case.family,
                case.truth.observable,
                case.periodic,
                off(case, grid, views, periods_s, iteration),
            )
        )
    return found


def off(
    case: Case, grid: SignalGrid, views: list[SignalView], periods_s: Array, iteration: Array
) -> list[float]:
    """How far the iteration of a case is off once it is made precise, after what that depends on; empty
    where it is no candidate.
    """
    if not (case.truth.observable and iteration.any()):
        return []
    assert case.truth.iteration_s is not None
    distance = np.where(iteration, np.abs(np.log(periods_s / case.truth.iteration_s)), np.inf)
    found = precisely(views, grid, float(periods_s[int(np.argmin(distance))]))
    return [*found.doubts(grid.step_s, grid.seconds), abs(found.period_s / case.truth.iteration_s - 1)]


def table(seed: int, cases: int, workers: int) -> Table:
    step = 100
    tasks = [(seed, first, min(first + step, cases)) for first in range(0, cases, step)]
    with ProcessPoolExecutor(workers) as pool:
        rows = [row for rows in pool.map(drawn, tasks) for row in rows]
    features, periods_s, iteration, level, families, observable, periodic, error = zip(*rows, strict=True)
    errors = np.array([row for row in error if row])
    of = np.repeat(np.arange(len(rows)), [len(each) for each in periods_s])
    return Table(
        np.concatenate(features),
        np.concatenate(periods_s),
        of,
        np.concatenate(iteration),
        np.concatenate(level),
        np.array(families),
        np.array(observable),
        np.array(periodic),
        errors[:, :-1],
        errors[:, -1],
    )


def fit(features: Array, wanted: Array, trees: int) -> lightgbm.Booster:
    return lightgbm.train(OPTIONS, lightgbm.Dataset(features, wanted.astype(float)), trees)


def fits(
    features: Array, wanted: dict[str, Array], fold: Array
) -> tuple[dict[str, lightgbm.Booster], dict[str, Array]]:
    """A booster for each name on all rows, and predictions for each row by one that saw none of its fold."""
    tasks = [(name, number) for name in wanted for number in (-1, *range(FOLDS))]
    with ThreadPoolExecutor(
        2
    ) as pool:  # LightGBM lets go of the interpreter; two fits of one thread beat one of two
        made = list(
            pool.map(
                lambda task: fit(features[fold != task[1]], wanted[task[0]][fold != task[1]], TREES[task[0]]),
                tasks,
            )
        )
    boosters = {name: booster for (name, number), booster in zip(tasks, made, strict=True) if number < 0}
    unseen = {name: np.empty(len(fold)) for name in wanted}
    for (name, number), booster in zip(tasks, made, strict=True):
        if number >= 0:
            unseen[name][fold == number] = booster.predict(features[fold == number], num_threads=1)
    return boosters, unseen


def foretell(doubts: Array, errors: Array) -> lightgbm.Booster:
    """The logarithm of the error that 90 % stay below (quantile regression)."""
    options = {
        **OPTIONS,
        "objective": "quantile",
        "alpha": 0.9,
        "num_leaves": 8,
        "feature_fraction": 1.0,
        "min_data_in_leaf": 100,
    }
    return lightgbm.train(options, lightgbm.Dataset(doubts, np.log(errors + 1e-5)), TREES[ERROR])


def stretch(doubts: Array, errors: Array) -> float:
    """What foretold errors must be multiplied by to hold 90 % of unseen ones (split conformal prediction,
    Lei et al. 2018).
    """
    half = np.arange(len(errors)) % 2 == 0
    foretold = np.exp(np.asarray(foretell(doubts[half], errors[half]).predict(doubts[~half])))
    return float(np.quantile(errors[~half] / foretold, 0.9))


def with_rivals(data: Table, iteration: Array, level: Array) -> Array:
    more = [
        rivals(data.periods_s[rows], iteration[rows], level[rows])
        for rows in data.groups
        if rows.stop > rows.start
    ]
    return np.hstack([data.features, np.concatenate(more).astype(np.float32)])


def train(data: Table) -> tuple[dict[str, lightgbm.Booster], dict[str, tuple[Array, Array]], Array]:
    """Five boosters, the tables that make their scores shares, and each candidate's score by boosters that
    never saw its case.
    """
    fold = np.random.default_rng(SEED).integers(0, FOLDS, len(data.families))[data.of]
    wanted = {name: data.iteration if name.startswith("iteration") else data.level for name in STAGES}
    alone, unseen = fits(data.features, {name: wanted[name] for name in STAGES[:2]}, fold)
    together = with_rivals(data, *(unseen[name] for name in STAGES[:2]))
    joint, scores = fits(together, {name: wanted[name] for name in STAGES[2:]}, fold)
    boosters = alone | joint
    boosters[ERROR] = foretell(data.doubts, data.errors)
    best = np.array(
        [
            rows.start + int(np.argmax(scores["iteration"][rows]))
            for rows in data.groups
            if rows.stop > rows.start
        ]
    )
    tables = {"iteration": calibration(scores["iteration"][best], data.iteration[best])}
    # Another level is only named beside an iteration: calibrated on what lies clear of it.
    chosen = np.zeros(len(data.of), bool)
    for rows, lead in zip((rows for rows in data.groups if rows.stop > rows.start), best, strict=True):
        apart = np.abs(np.log(data.periods_s[rows] / data.periods_s[lead])) > np.log(1.15)
        chosen[rows] = apart & (scores["level"][rows] > 0.15)
    tables["level"] = calibration(scores["level"][chosen], data.level[chosen])
    return boosters, tables, scores["iteration"]


def calibration(scores: Array, came_true: Array, knots: int = 24) -> tuple[Array, Array]:
    """A rising table from score to share that came true (isotonic regression, Zadrozny and Elkan 2002)."""
    order = np.argsort(scores)
    risen = isotonic_regression(came_true[order].astype(float)).x
    edges = np.linspace(0, len(order), knots + 1).astype(int)
    x = np.array([scores[order[a:b]].mean() for a, b in itertools.pairwise(edges) if b > a])
    y = np.array([risen[a:b].mean() for a, b in itertools.pairwise(edges) if b > a])
    return np.concatenate([[0.0], x, [1.0]]), np.concatenate([[0.0], y, [max(float(y[-1]), 0.99)]])


def judged(data: Table, boosters: dict[str, lightgbm.Booster]) -> Array:
    """Scores of candidates by boosters."""
    alone = [np.asarray(boosters[name].predict(data.features)) for name in STAGES[:2]]
    return np.asarray(boosters["iteration"].predict(with_rivals(data, *alone)))


def scored(data: Table, iteration: Array) -> dict[str, float]:
    """Shares of observable cases whose candidate with the highest score is the iteration, and is any
    level.
    """
    right = [False] * len(data.families)
    level = [False] * len(data.families)
    for number, rows in enumerate(data.groups):
        if rows.stop > rows.start:
            best = rows.start + int(np.argmax(iteration[rows]))
            right[number], level[number] = bool(data.iteration[best]), bool(data.level[best])
    seen = data.observable
    return {
        "cases": int(seen.sum()),
        "iteration": float(np.mean(np.array(right)[seen])),
        "level": float(np.mean(np.array(level)[seen])),
    }


def save(
    boosters: dict[str, lightgbm.Booster],
    tables: dict[str, tuple[Array, Array]],
    wider: float,
    about: dict[str, Any],
) -> Path:
    stored = {
        "about": about,
        "wider": round(wider, 3),
        "features": NAMES,
        "tables": {name: [x.round(5).tolist(), y.round(5).tolist()] for name, (x, y) in tables.items()},
        "boosters": {
            name: booster.model_to_string().split("\nfeature_importances:")[0]
            for name, booster in boosters.items()
        },
    }
    file = HOME / "workbench" / "periods" / "estimators" / FILE
    file.write_bytes(gzip.compress(json.dumps(stored).encode(), 9, mtime=0))
    return file


def leave_out(data: Table) -> dict[str, dict[str, float]]:
    """Each family's score with all of it left out of training, and with it in (on cases held back)."""
    held = np.random.default_rng(SEED + 1).random(len(data.families)) < 0.25
    whole, _, _ = train(data.part(~held))
    found = {}
    for family in PERIODIC:
        mine = data.families == family
        without, _, _ = train(data.part(~held & ~mine))
        test = data.part(held & mine)
        inside, outside = scored(test, judged(test, whole)), scored(test, judged(test, without))
        found[family] = {
            "cases": inside["cases"],
            "seen": inside["iteration"],
            "left_out": outside["iteration"],
            "seen_level": inside["level"],
            "left_out_level": outside["level"],
        }
        print(f"{family:14s} {found[family]}", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=CASES)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument(
        "--leave-out",
        action="store_true",
        help="score each family when training never saw it; writes no model",
    )
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    data = table(SEED, options.cases, options.workers)
    print(
        f"{len(data.families)} cases, {len(data.of)} candidates of {len(PERIODIC)} periodic and "
        f"{len(APERIODIC)} aperiodic families"
    )
    if options.leave_out:
        result: dict[str, Any] = leave_out(data)
    else:
        boosters, tables, unseen = train(data)
        result = scored(data, unseen)
        print(f"cases that took no part in their fit: {result}")
        about = {
            "command": f"{COMMAND} --cases {options.cases}",
            "data": "cases of benchmarks.fixtures.traces, drawn and described by the command",
            "data_sha256": data.sha256,
            "lightgbm": lightgbm.__version__,
            "seed": SEED,
            "cases": options.cases,
            "unseen": result,
        }
        print(f"written: {save(boosters, tables, stretch(data.doubts, data.errors), about)}")
    if options.json:
        options.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
