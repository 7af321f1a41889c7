"""Identifies the iteration and other levels among the candidates, with confidences: boosted trees over
`features`.

There are three stages. The first scores each candidate alone. The second and the third score it again with
the previous stage's scores of its rivals (stacking, Wolpert 1992). The first two were trained on jobs whose
periods suit their sensor, the third on more varied jobs in physical seconds, with many hidden periods.
`python -m tools.fit_period_ranker` trains them, on generated jobs only. A table maps scores to observed
frequencies. The file begins with a description of its origin ("about"), which this module does not read.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any, NamedTuple

import numpy as np

from ...errors import WorkbenchError
from .features import NAMES

Array = np.ndarray
FILE = "ranker.json.gz"
REMEDY = "run `python -m tools.fit_period_ranker` to create it"
ERROR = "error"
ALONE, BESIDE = ("iteration_alone", "level_alone"), ("iteration_beside", "level_beside")
ROLES = ("iteration", "level", "cycle")

# Tuned constants of rivals; `tools.fit_period_ranker` trains with them, and again when they change.
MOST_RATIO = 64.0  # largest ratio of two periods in the features
NEIGHBOUR_RATIO = 1.2  # ratio of two periods below which they are neighbours, neither longer nor shorter
NEIGHBOUR = float(np.log(NEIGHBOUR_RATIO))


class Roles(NamedTuple):
    """Probabilities (n,) of candidates: that each is the iteration, that the job has such a period at all,
    and that it is a cycle of several iterations.
    """

    iteration: Array
    any_role: Array
    cycle: Array

    def of(self, k: int) -> str:
        """The likeliest role of a candidate."""
        return max(("iteration", "cycle", "micro-step"), key=lambda name: self.confidence(k, name))

    def confidence(self, k: int, name: str) -> float:
        """The probability that a candidate has a role."""
        if name == "micro-step":
            return max(0.0, float(self.any_role[k] - self.iteration[k] - self.cycle[k]))
        return float((self.iteration if name == "iteration" else self.cycle)[k])


@dataclass(frozen=True)
class Ranker:
    """Eight boosters, the feature columns (k,) of the first two stages, and the tables that map scores to
    probabilities.
    """

    boosters: dict[str, Any]
    tables: dict[str, tuple[Array, Array]]
    # predicted errors times this contain 90 % of those of unseen cases (split conformal prediction)
    wider: float
    base: Array

    def __call__(self, periods_s: Array, features: Array) -> Roles:
        """Role probabilities of (n,) candidates, from their features (n, len(NAMES))."""
        together = self.stacked(periods_s, features)
        tables = [(self._predict(name, together), *self.tables[name]) for name in ROLES]
        iteration, level, cycle = (np.interp(*table) for table in tables)
        return Roles(iteration, np.maximum(level, np.maximum(iteration, cycle)), cycle)

    def stacked(self, periods_s: Array, features: Array) -> Array:
        """Features (n, ...) of the third stage: with the second stage's scores and those of its rivals."""
        known = features[:, self.base]
        alone = [self._predict(name, known) for name in ALONE]
        with_rivals = np.hstack([known, rivals(periods_s, *alone)])
        beside = [self._predict(name, with_rivals) for name in BESIDE]
        return np.hstack([features, np.column_stack(beside), rivals(periods_s, *beside)])

    def uncertainty(self, doubts: list[float]) -> float:
        """Half width of the 95 % interval of a period, as a share of it (`Precise.doubts`)."""
        ninety = self.wider * float(np.exp(self._predict(ERROR, np.array([doubts]))[0]))
        return ninety * 1.96 / 1.645  # the quantiles of a normal distribution

    def _predict(self, name: str, features: Array) -> Array:
        return self.boosters[name].predict(features, num_threads=1)


def rivals(periods_s: Array, iteration: Array, level: Array) -> Array:
    """Each candidate against the best longer, the best shorter and its neighbour, (n, 22)."""
    count = len(periods_s)
    rows = np.arange(count)
    distance = np.log(periods_s)[None, :] - np.log(periods_s)[:, None]
    order, level_order = np.argsort(np.argsort(-iteration)), np.argsort(np.argsort(-level))
    others = np.where(np.eye(count, dtype=bool), -np.inf, iteration)
    total = float(iteration.sum()) + 0.05
    columns = [iteration, level, iteration / total, order, level_order,
               others.max(axis=1) if count > 1 else np.zeros(count)]
    for longer, apart in ((distance > NEIGHBOUR, distance), (distance < -NEIGHBOUR, -distance)):
        none = np.where(longer.any(axis=1), 0.0, np.nan)
        best = np.argmax(np.where(longer, level, -1.0), axis=1)
        other = np.argmax(np.where(longer, iteration, -1.0), axis=1)
        ratio, other_ratio = np.exp(apart[rows, best]), np.exp(apart[rows, other])
        columns += [level[best] + none, iteration[best] + none, np.minimum(ratio, MOST_RATIO) + none,
                    np.abs(ratio - np.round(ratio)) + none, iteration[other] + none,
                    np.minimum(other_ratio, MOST_RATIO) + none]
    near = (np.abs(distance) < NEIGHBOUR) & (rows != rows[:, None])
    none = np.where(near.any(axis=1), 0.0, np.nan)
    best = np.argmax(np.where(near, iteration, -1.0), axis=1)
    columns += [iteration[best] + none, np.exp(distance[rows, best]) + none,
                np.full(count, np.count_nonzero(level > 0.5)), np.full(count, count)]
    return np.column_stack(columns)


@lru_cache(maxsize=1)
def shipped() -> Ranker:
    """The ranker of this package. Raises WorkbenchError if its file is missing, damaged or incompatible."""
    import lightgbm

    file = resources.files(__package__).joinpath(FILE)
    try:
        stored = json.loads(gzip.decompress(file.read_bytes()))
    except (OSError, EOFError, ValueError) as error:
        raise WorkbenchError(f"the period ranker {FILE} cannot be read ({error}); {REMEDY}") from error
    if stored["features"] != NAMES:
        raise WorkbenchError(f"the period ranker {FILE} was made for other features; {REMEDY}")
    names = (*ALONE, *BESIDE, *ROLES, ERROR)
    boosters = {name: lightgbm.Booster(model_str=stored["boosters"][name]) for name in names}
    tables = {name: (np.array(x), np.array(y)) for name, (x, y) in stored["tables"].items()}
    base = np.array([NAMES.index(name) for name in stored["base"]])
    return Ranker(boosters, tables, stored["wider"], base)
