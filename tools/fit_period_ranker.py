"""Train the ranker of iteration periods on simulated jobs, and show what it learned.

    python -m tools.fit_period_ranker              # the third stage; writes
                                                        workbench/periods/estimators/ranker.json.gz
    python -m tools.fit_period_ranker --base       # the first two stages too: half an hour more
    python -m tools.fit_period_ranker --leave-out  # the score on families that the third stage never saw
    python -m tools.fit_period_ranker --cases 500  # a try

The first two stages learn from `benchmarks.fixtures.traces.random_case`, whose jobs suit their sensors, the
third from `benchmarks.fixtures.job_grammar.random_world`: jobs by a grammar, in physical seconds, and 45 % of
the former. No recorded or published trace takes part.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields
from hashlib import sha256
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
from scipy.optimize import isotonic_regression

from benchmarks.fixtures.job_grammar import GRAMMAR, random_world
from benchmarks.fixtures.traces import APERIODIC, PERIODIC, Case, random_case
from workbench.periods.detect import _readings, precisely
from workbench.periods.estimators.features import NAMES, describe
from workbench.periods.estimators.ranker import ALONE, BESIDE, ERROR, FILE, ROLES, rivals
from workbench.periods.estimators.signals import SignalGrid, on_grid

Array = np.ndarray[Any, Any]
SEED, BASE_SEED = 41, 31
CASES, BASE_CASES = 16_629, 24_000
# A grammar draws gradient accumulation, stalls and pauses as often as jobs without any of them. What a period
# is, which follows from how common each is, is learned with so much weight on the grammar's jobs.
GRAMMAR_WEIGHT = 0.15
COMMAND = "python -m tools.fit_period_ranker"
TOLERANCE = 0.05
FOLDS = 3
HOME = Path(__file__).resolve().parents[1]
TREES = {
    "iteration_alone": 200, "level_alone": 200, "iteration_beside": 220, "level_beside": 160, "error": 120
}
ROLE_TREES = 120
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


ROLE_OPTIONS = {**OPTIONS, "num_leaves": 16, "feature_fraction": 0.25}


@dataclass(frozen=True, slots=True)
class Table:
    """Candidates of many cases: `of` tells the case of each row."""

    features: Array
    periods_s: Array
    of: Array
    iteration: Array
    level: Array
    cycle: Array
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
            self.cycle[rows],
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


def labels(case: Case, periods_s: Array) -> tuple[Array, Array, Array]:
    """Which candidates are the iteration, which are any level, and which are a cycle of iterations."""
    truth, none = case.truth, np.zeros(len(periods_s), bool)
    if not truth.periodic:
        return none, none, none
    assert truth.low_s is not None
    assert truth.high_s is not None
    iteration = (periods_s >= truth.low_s * (1 - TOLERANCE)) & (periods_s <= truth.high_s * (1 + TOLERANCE))
    level, cycle = iteration.copy(), none.copy()
    for name, value in truth.levels_s.items():
        if name != "evaluation-step":  # a period, but not of the training
            near = np.abs(periods_s / value - 1) <= TOLERANCE
            level |= near
            cycle |= near & name.endswith("cycle")
    return iteration, level, cycle & ~iteration


def drawn(task: tuple[int, int, int, bool]) -> list[tuple[Any, ...]]:
    """Cases first..last of a seed, described; each from its own stream, so that they do not depend on how
    the work is cut.
    """
    seed, first, last, wide = task
    found = []
    for number in range(first, last):
        rng = np.random.default_rng([seed, number])
        case = random_world(rng) if wide else random_case(rng)
        time_s, columns, _ = _readings(case.trace)
        if len(time_s) < 24:
            continue
        grid = on_grid(time_s, columns)
        periods_s, features = describe(grid)
        iteration, level, cycle = labels(case, periods_s)
        found.append(
            (
                features.astype(np.float32),
                periods_s,
                iteration,
                level,
                cycle,
                case.family,
                case.truth.observable,
                case.periodic,
                off(case, grid, periods_s, iteration),
            )
        )
    return found


def off(case: Case, grid: SignalGrid, periods_s: Array, iteration: Array) -> list[float]:
    """How far the iteration of a case is off once it is made precise, after what that depends on; empty
    where it is no candidate.
    """
    if not (case.truth.observable and iteration.any()):
        return []
    assert case.truth.iteration_s is not None
    distance = np.where(iteration, np.abs(np.log(periods_s / case.truth.iteration_s)), np.inf)
    found = precisely(grid, float(periods_s[int(np.argmin(distance))]))
    return [*found.doubts(grid.step_s, grid.seconds), abs(found.period_s / case.truth.iteration_s - 1)]


def table(seed: int, cases: int, workers: int, *, wide: bool = True) -> Table:
    step = 100
    tasks = [(seed, first, min(first + step, cases), wide) for first in range(0, cases, step)]
    with ProcessPoolExecutor(workers) as pool:
        rows = [row for rows in pool.map(drawn, tasks) for row in rows]
    features, periods_s, iteration, level, cycle, families, observable, periodic, error = zip(
        *rows, strict=True
    )
    errors = np.array([row for row in error if row])
    of = np.repeat(np.arange(len(rows)), [len(each) for each in periods_s])
    return Table(
        np.concatenate(features),
        np.concatenate(periods_s),
        of,
        np.concatenate(iteration),
        np.concatenate(level),
        np.concatenate(cycle),
        np.array(families),
        np.array(observable),
        np.array(periodic),
        errors[:, :-1],
        errors[:, -1],
    )


def fit(features: Array, wanted: Array, trees: int, weights: Array | None = None) -> lightgbm.Booster:
    options = OPTIONS if weights is None else ROLE_OPTIONS
    return lightgbm.train(options, lightgbm.Dataset(features, wanted.astype(float), weight=weights), trees)


def fits(
    features: Array, wanted: dict[str, Array], fold: Array, trees: dict[str, int],
    weights: dict[str, Array] | None = None,
) -> tuple[dict[str, lightgbm.Booster], dict[str, Array]]:
    """A booster for each name on all rows, and predictions for each row by one that saw none of its fold."""
    boosters, unseen = {}, {}
    for name, target in wanted.items():
        unseen[name] = np.empty(len(fold))
        weight = weights[name] if weights is not None else None
        for number in (-1, *range(FOLDS)):
            rows = fold != number
            part = weight[rows] if weight is not None else None
            booster = fit(features[rows], target[rows], trees[name], part)
            if number < 0:
                boosters[name] = booster
            else:
                unseen[name][~rows] = booster.predict(features[~rows], num_threads=1)
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


def with_rivals(data: Table, features: Array, iteration: Array, level: Array) -> Array:
    more = [
        rivals(data.periods_s[rows], iteration[rows], level[rows])
        for rows in data.groups
        if rows.stop > rows.start
    ]
    return np.hstack([features, np.concatenate(more).astype(np.float32)])


def train_base(data: Table) -> dict[str, lightgbm.Booster]:
    """Boosters of the first two stages and of the error, from jobs whose periods suit their sensors."""
    fold = np.random.default_rng(BASE_SEED).integers(0, FOLDS, len(data.families))[data.of]
    labels = {"iteration": data.iteration, "level": data.level}
    alone, unseen = fits(data.features, {name: labels[name.split("_")[0]] for name in ALONE}, fold, TREES)
    together = with_rivals(data, data.features, *(unseen[name] for name in ALONE))
    beside, _ = fits(together, {name: labels[name.split("_")[0]] for name in BESIDE}, fold, TREES)
    return alone | beside | {ERROR: foretell(data.doubts, data.errors)}


def stacked(data: Table, base: dict[str, lightgbm.Booster], columns: Array) -> Array:
    """As `Ranker.stacked`, of all cases at once."""
    known = data.features[:, columns].astype(float)
    alone = [np.asarray(base[name].predict(known, num_threads=1)) for name in ALONE]
    together = with_rivals(data, known, *alone)
    beside = [np.asarray(base[name].predict(together, num_threads=1)) for name in BESIDE]
    return with_rivals(data, np.hstack([data.features, np.column_stack(beside)]), *beside).astype(np.float32)


@dataclass(frozen=True, slots=True)
class Fitted:
    """Boosters of the third stage, the tables that make their scores shares, and each candidate's scores by
    boosters that never saw its case.
    """

    boosters: dict[str, lightgbm.Booster]
    tables: dict[str, tuple[Array, Array]]
    unseen: dict[str, Array]


def train(data: Table, together: Array) -> Fitted:
    """The third stage, on what the first two (which never saw these cases) think of them (`stacked`)."""
    fold = np.random.default_rng(SEED).integers(0, FOLDS, len(data.families))[data.of]
    wanted = {"iteration": data.iteration, "level": data.level, "cycle": data.cycle}
    wide = np.isin(data.families, GRAMMAR)[data.of]
    common = np.where(wide, GRAMMAR_WEIGHT, 1.0)
    weights = {"iteration": common, "level": np.ones(len(wide)), "cycle": common}
    boosters, scores = fits(together, wanted, fold, dict.fromkeys(ROLES, ROLE_TREES), weights)
    chosen = {"iteration": highest(data, scores["iteration"]), "level": highest(data, scores["level"])}
    # A cycle is the likeliest period, or another that may well be one.
    named = scores["level"] > 0.3
    named[chosen["level"]] = True
    chosen["cycle"] = np.flatnonzero(named)
    tables = {
        name: calibration(scores[name][rows], wanted[name][rows], weights[name][rows])
        for name, rows in chosen.items()
    }
    return Fitted(boosters, tables, scores)


def highest(data: Table, scores: Array) -> Array:
    """The row with the highest score of each case that has rows."""
    return np.array([
        rows.start + int(np.argmax(scores[rows])) for rows in data.groups if rows.stop > rows.start
    ])


def calibration(scores: Array, came_true: Array, weights: Array, knots: int = 24) -> tuple[Array, Array]:
    """A rising table from score to share that came true (isotonic regression, Zadrozny and Elkan 2002)."""
    order = np.argsort(scores)
    risen = isotonic_regression(came_true[order].astype(float), weights=weights[order]).x
    edges = np.linspace(0, len(order), knots + 1).astype(int)
    x = np.array([scores[order[a:b]].mean() for a, b in itertools.pairwise(edges) if b > a])
    y = np.array([risen[a:b].mean() for a, b in itertools.pairwise(edges) if b > a])
    return np.concatenate([[0.0], x, [1.0]]), np.concatenate([[0.0], y, [max(float(y[-1]), 0.99)]])


def scored(data: Table, iteration: Array, level_score: Array) -> dict[str, float]:
    """Shares of observable cases whose likeliest iteration is it, and whose likeliest period is any level."""
    right = [False] * len(data.families)
    level = [False] * len(data.families)
    for number, rows in enumerate(data.groups):
        if rows.stop > rows.start:
            best = rows.start + int(np.argmax(iteration[rows]))
            right[number] = bool(data.iteration[best])
            level[number] = bool(data.level[rows.start + int(np.argmax(level_score[rows]))])
    seen = data.observable
    return {
        "cases": int(seen.sum()),
        "iteration": float(np.mean(np.array(right)[seen])),
        "level": float(np.mean(np.array(level)[seen])),
    }


def save(
    boosters: dict[str, str], tables: dict[str, tuple[Array, Array]], base: dict[str, Any],
    about: dict[str, Any],
) -> Path:
    """Write the ranker's file; `base` has the first stages' boosters, columns and stretch of the error."""
    stored = {
        "about": about,
        "wider": base["wider"],
        "features": NAMES,
        "base": base["base"],
        "tables": {name: [x.round(5).tolist(), y.round(5).tolist()] for name, (x, y) in tables.items()},
        "boosters": base["boosters"] | boosters,
    }
    file = HOME / "workbench" / "periods" / "estimators" / FILE
    file.write_bytes(gzip.compress(json.dumps(stored).encode(), 9, mtime=0))
    return file


def text(boosters: dict[str, lightgbm.Booster]) -> dict[str, str]:
    models = {name: each.model_to_string() for name, each in boosters.items()}
    return {name: model.split("\nfeature_importances:")[0] for name, model in models.items()}


def first_stages(fresh: bool, workers: int) -> dict[str, Any]:
    """The first two stages: as shipped, or made anew."""
    if not fresh:
        file = HOME / "workbench" / "periods" / "estimators" / FILE
        stored = json.loads(gzip.decompress(file.read_bytes()))
        kept = {name: stored["boosters"][name] for name in (*ALONE, *BESIDE, ERROR)}
        about = stored["about"]["base"]
        return {"wider": stored["wider"], "base": stored["base"], "boosters": kept, "about": about}
    data = table(BASE_SEED, BASE_CASES, workers, wide=False)
    about = {"data": "cases of benchmarks.fixtures.traces", "seed": BASE_SEED, "cases": BASE_CASES,
             "data_sha256": data.sha256, "lightgbm": lightgbm.__version__}
    wider = round(stretch(data.doubts, data.errors), 3)
    return {"wider": wider, "base": NAMES, "boosters": text(train_base(data)), "about": about}


def leave_out(data: Table, together: Array) -> dict[str, dict[str, float]]:
    """Each family's score with all of it left out of the third stage, and with it in (cases held back)."""
    held = np.random.default_rng(SEED + 1).random(len(data.families)) < 0.25

    def of(cases: Array) -> Fitted:
        return train(data.part(cases), together[cases[data.of]])

    whole, found = of(~held), {}
    for family in (*GRAMMAR, *PERIODIC):
        mine = data.families == family
        test, rows = data.part(held & mine), together[(held & mine)[data.of]]
        inside, outside = (
            scored(test, np.asarray(fitted.boosters["iteration"].predict(rows)),
                   np.asarray(fitted.boosters["level"].predict(rows)))
            for fitted in (whole, of(~held & ~mine))
        )
        found[family] = inside | {f"{name}_left_out": value for name, value in outside.items()}
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
    parser.add_argument("--base", action="store_true", help="fit the first two stages too")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    base = first_stages(options.base, options.workers)
    data = table(SEED, options.cases, options.workers)
    print(
        f"{len(data.families)} cases, {len(data.of)} candidates of {len(PERIODIC) + len(GRAMMAR)} periodic "
        f"and {len(APERIODIC)} aperiodic families"
    )
    boosters = {name: lightgbm.Booster(model_str=each) for name, each in base["boosters"].items()}
    together = stacked(data, boosters, np.array([NAMES.index(name) for name in base["base"]]))
    result: dict[str, Any]
    if options.leave_out:
        result = leave_out(data, together)
    else:
        result = fit_roles(data, together, base, f"{COMMAND} --cases {options.cases}")
    if options.json:
        options.json.write_text(json.dumps(result, indent=1))


def fit_roles(data: Table, together: Array, base: dict[str, Any], command: str) -> dict[str, float]:
    """Fit the third stage and write the ranker's file; the score on cases that took no part in their fit."""
    fitted = train(data, together)
    result = scored(data, fitted.unseen["iteration"], fitted.unseen["level"])
    print(f"cases that took no part in their fit: {result}")
    about = {
        "command": command, "data_sha256": data.sha256,
        "data": "cases of benchmarks.fixtures.job_grammar, drawn by the command",
        "lightgbm": lightgbm.__version__, "seed": SEED, "unseen": result, "base": base["about"],
    }
    print(f"written: {save(text(fitted.boosters), fitted.tables, base, about)}")
    return result


if __name__ == "__main__":
    main()
