"""What a training set teaches of one card: physics and trees together, and how far both err on workloads they
have not seen.

The mean of two forecasts that fail differently beats the better of them more often than a choice between them
does (Clemen, 1989). Trees know nothing beyond the range of their training set: there their part fades and
physics is left alone. Errors come from cross-validation that leaves whole groups out, never one variant of a
kernel that is there in seven others: their covariance over all settings is what makes one probe tell of all
others (`belief`). LightGBM's quantiles of those errors say for which workloads they are large; they are
stretched until they hold the share of unseen workloads that they promise (split conformal prediction).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from scipy.optimize import isotonic_regression

from . import boosting, physics
from .boosting import Trees
from .curves import Array, Curves, Nodes
from .physics import CardPhysics

CARRY = 1 / 3  # of the trees' best share on groups left out, that carries over to other workloads
BEFORE = (0.4, 0.4)  # shares of models that were stored before they were weighed
ALONE = (1.0, 1.0)  # shares of trees alone, GPOEO's way
FADE = 0.5  # beyond the training range by this share of it, trees are not heard any more
QUANTILES = (0.1, 0.9)
LEAST_GROUPS = 2
ALIKE = 0.5  # over how many standard deviations of the inputs errors are alike
ANYWAY = 0.2  # weight of the errors on a workload that is not alike at all
BOTH = ("time", "energy")  # what quantiles are given of; an error in time often takes back one in power


@dataclass(frozen=True)
class Means:
    """Physics and trees, fitted to one set of workloads."""

    physics: CardPhysics
    trees: tuple[Trees, Trees]  # time, power
    low: Array  # range of the trees' inputs
    high: Array
    shares: tuple[float, float] = BEFORE  # of the trees in the mean: of time, of power

    def __call__(self, names: tuple[str, ...], features: Array, nodes: Nodes) -> Array:
        """ln of relative time, then of relative power, (workloads, 2 * nodes)."""
        return mixed(nodes, *self.apart(names, features, nodes), self.shares)

    def apart(self, names: tuple[str, ...], features: Array, nodes: Nodes) -> tuple[Array, Array]:
        """What physics and what trees foretell, each as `__call__`; trees as far as they can be heard."""
        laws = np.hstack([self.physics.log_time(names, features), self.physics.log_power(names, features)])
        trees = np.hstack([each(names, features, nodes.inputs) for each in self.trees])
        if self.shares != ALONE:
            trees = laws + self.heard(names, features)[:, None] * (trees - laws)
        return laws, trees

    def heard(self, names: tuple[str, ...], features: Array) -> Array:
        """How far the trees are heard, by workload (workloads,), 0..1: not beyond their training set."""
        columns = boosting.selected(names, features, self.trees[0].inputs)
        span = np.maximum(self.high - self.low, 1e-6)
        beyond = np.maximum(np.maximum(columns - self.high, self.low - columns), 0) / span
        farthest = (
            np.nanmax(np.where(np.isfinite(beyond), beyond, 0.0), axis=1) if columns.shape[1]
            else np.zeros(len(features))
        )
        return np.asarray(np.clip(1 - farthest / FADE, 0, 1))


def mixed(nodes: Nodes, laws: Array, trees: Array, shares: tuple[float, float]) -> Array:
    """Both together, in order: ln of relative time, then of relative power, (workloads, 2 * nodes)."""
    part = np.repeat(shares, len(nodes))
    time, power = np.hsplit((1 - part) * laws + part * trees, 2)
    return np.hstack([-ordered(nodes, -time), ordered(nodes, power)])


def weighed(seen: Array, laws: Array, trees: Array) -> tuple[float, float]:
    """Shares of the trees in time and in power, by what they were worth on groups that neither had seen.

    Groups of a training set resemble each other more than they resemble what a user runs, and trees live of
    that resemblance: `CARRY` of the best share is taken.
    """
    shares = np.linspace(0.0, 1.0, 21)
    halves = zip(*(np.hsplit(each, 2) for each in (seen, laws, trees)), strict=True)
    found = [
        shares[np.argmin([np.nanmean(np.abs(np.expm1(law + w * (tree - law) - true))) for w in shares])]
        for true, law, tree in halves
    ]
    return CARRY * float(found[0]), CARRY * float(found[1])


def fit_means(
    curves: Curves, laws: CardPhysics, shares: tuple[float, float], *, lean: bool
) -> Means:
    wanted = boosting.inputs(curves.names, lean)
    targets = ((curves.log_time, -1), (curves.log_power, 1))
    time, power = (
        boosting.grow(curves.names, curves.features, curves.nodes.inputs, target, wanted, rising=rising)
        for target, rising in targets
    )
    columns = boosting.selected(curves.names, curves.features, wanted)
    low, high = (
        np.where(np.isfinite(each), each, end)
        for each, end in zip(_range(columns), (-np.inf, np.inf), strict=True)
    )
    return Means(laws, (time, power), low, high, shares)


def ordered(nodes: Nodes, values: Array) -> Array:
    """The nearest values, (workloads, nodes), that rise with clock and limit to at most the reference's 0."""
    found = values.copy()
    for mu in np.unique(nodes.mu):
        for line in (
            np.flatnonzero((nodes.mu == mu) & (nodes.cap == 1)),
            np.flatnonzero((nodes.mu == mu) & (nodes.cap < 1)),
        ):
            order = line[np.lexsort((nodes.x[line], nodes.cap[line]))]
            for row in found if len(order) else ():
                row[order] = isotonic_regression(row[order]).x
                if mu == 1:
                    row[order] = np.minimum(row[order], 0.0)
    return found


def _range(columns: Array) -> tuple[Array, Array]:
    filled_low, filled_high = (np.where(np.isfinite(columns), columns, end) for end in (np.inf, -np.inf))
    return filled_low.min(axis=0, initial=np.inf), filled_high.max(axis=0, initial=-np.inf)


@dataclass(frozen=True)
class FittedCard:
    """A fitted card.

    Attributes:
        residuals: What cross-validation leaves over, (workloads, 2 * nodes): ln of true over predicted
            relative time, then power.
        seen: The trees' inputs of the training workloads, in the same order.
        spreads: Boosters of the low and high quantile of errors in time and in energy.
        stretch: What the quantiles' distances must be multiplied by to hold what they promise, for time and
            energy.
        errors: Held-out error by setting: sm_clock_mhz, mem_clock_mhz, power_limit_share; time_error,
            power_error, energy_error (mean absolute, relative); time_covered, energy_covered (share inside
            the 80 % interval), workloads.
        lean: Whether the trees see only the inputs that physics asks for; cross-validation decided.
    """

    nodes: Nodes
    names: tuple[str, ...]
    means: Means
    spreads: dict[str, tuple[Trees, Trees]]
    stretch: tuple[float, float]
    residuals: Array
    seen: Array
    power_unit_w: float
    errors: pl.DataFrame
    lean: bool

    def nodes_of(self, features: Array) -> tuple[Array, Array, Array]:
        """A workload's mean ln time and ln power, distances to both quantiles of ln time and ln energy."""
        mean = self.means(self.names, features[None, :], self.nodes)[0]
        down, up = _distances(self.names, features[None, :], self.nodes, self.spreads, self.stretch)
        return mean, down[0], up[0]

    def misled(self, features: Array, by: float) -> Array:
        """How ln time and ln power of a workload change if what is told of its memory is wrong by a share,
        (1, 2 * nodes).
        """
        name = next((each for each in physics.MEMORY if each in self.names), None)
        if name is None or not np.isfinite(features[self.names.index(name)]):
            return np.zeros((1, 2 * len(self.nodes)))
        at = self.names.index(name)
        others = np.repeat(features[None, :], 2, axis=0)
        others[:, at] = np.clip(features[at] + np.array([by, -by]), 0.0, 1.0)
        high, low = self.means(self.names, others, self.nodes)
        return np.asarray((high - low)[None, :] / 2)

    def alike(self, features: Array) -> Array:
        """Weights of the training workloads' errors for another workload, (workloads,), in sum 1."""
        wanted = self.means.trees[0].inputs
        mine = boosting.selected(self.names, features[None, :], wanted)[0]
        theirs = self.seen
        spread = np.maximum(np.nanstd(theirs, axis=0), 1e-6)
        apart = np.where(np.isfinite(theirs) & np.isfinite(mine), (theirs - mine) / spread, 1.0)
        near = np.exp(-0.5 * np.sum(np.minimum(apart**2, 16), axis=1) / ALIKE**2)
        return np.asarray((near + ANYWAY) / np.sum(near + ANYWAY))

    def importance(self) -> pl.DataFrame:
        """Share of the gain of the trees by input: input, time, power."""
        time, power = (each.gains() for each in self.means.trees)
        rows = [(name, time[name], power[name]) for name in time]
        table = pl.DataFrame(rows, schema=["input", "time", "power"], orient="row")
        return table.sort("time", descending=True)


def fit(curves: Curves, *, trees_alone: bool = False) -> FittedCard:
    """A card's model, fitted to the curves of its training set; `trees_alone` leaves physics out."""
    folds = folds_of(curves.groups)
    outs = np.unique(folds)
    laws = {int(out): physics.fit(curves.part(folds != out)) for out in outs}
    seen = np.hstack([curves.log_time, curves.log_power])

    def left_over(lean: bool) -> tuple[Array, tuple[float, float]]:
        law, tree = np.empty_like(seen), np.empty_like(seen)
        for out in outs:
            shares = ALONE if trees_alone else BEFORE
            means = fit_means(curves.part(folds != out), laws[int(out)], shares, lean=lean)
            law[folds == out], tree[folds == out] = means.apart(
                curves.names, curves.features[folds == out], curves.nodes
            )
        shares = ALONE if trees_alone else weighed(seen, law, tree)
        return seen - mixed(curves.nodes, law, tree, shares), shares

    lean, (residuals, shares) = True, left_over(True)
    if boosting.inputs(curves.names, True) != boosting.inputs(curves.names, False):
        fuller, other = left_over(False)
        errors_of = [[np.nanmean(np.abs(each[folds == out])) for out in outs] for each in (residuals, fuller)]
        better = np.array(errors_of[0]) - np.array(errors_of[1])
        # More inputs must be better by more than chance between groups.
        if better.mean() > better.std() / np.sqrt(len(outs)):
            lean, residuals, shares = False, fuller, other
    means = fit_means(curves, physics.fit(curves), shares, lean=lean)
    spreads = _grow_spreads(curves, residuals, lean)
    stretch, covered = _conformal(curves, residuals, folds, lean)
    errors = _errors(curves, residuals, covered)
    return FittedCard(
        curves.nodes, curves.names, means, spreads, stretch, filled(residuals),
        boosting.selected(curves.names, curves.features, means.trees[0].inputs), curves.power_unit_w, errors,
        lean,
    )


def folds_of(groups: tuple[str, ...]) -> Array:
    """Fold of each workload, (workloads,): its group, or one of four where groups are too few."""
    names = sorted(set(groups))
    if len(names) < LEAST_GROUPS:
        return np.arange(len(groups)) % 4
    return np.array([names.index(each) for each in groups])


def filled(residuals: Array) -> Array:
    """Residuals without holes: what was not measured is expected from what was."""
    known = np.isfinite(residuals)
    full = np.where(known, residuals, 0.0)
    for _ in range(0 if known.all() else 4):
        cover = full.T @ full / len(full) + 1e-5 * np.eye(full.shape[1])
        for row in np.flatnonzero(~known.all(axis=1)):
            at = known[row]
            full[row, ~at] = (
                cover[np.ix_(~at, at)] @ np.linalg.solve(cover[np.ix_(at, at)], full[row, at]) if at.any()
                else 0.0
            )
    return full


def _wrong(residuals: Array) -> Array:
    """Errors of ln time, then of ln energy."""
    count = residuals.shape[1] // 2
    return np.hstack([residuals[:, :count], residuals[:, :count] + residuals[:, count:]])


def _grow_spreads(curves: Curves, residuals: Array, lean: bool) -> dict[str, tuple[Trees, Trees]]:
    wanted, halves = boosting.inputs(curves.names, lean), np.hsplit(_wrong(residuals), 2)
    found = {}
    for name, target in zip(BOTH, halves, strict=True):
        pair = [
            boosting.grow(
                curves.names, curves.features, curves.nodes.inputs, target, wanted, rising=0, quantile=each
            )
            for each in QUANTILES
        ]
        found[name] = (pair[0], pair[1])
    return found


def _distances(
    names: tuple[str, ...], features: Array, nodes: Nodes, spreads: dict[str, tuple[Trees, Trees]],
    stretch: tuple[float, float],
) -> tuple[Array, Array]:
    """How far below and above the mean the quantiles of ln time and ln energy lie, (workloads, 2 * nodes)."""
    down, up = [], []
    for name, wider in zip(BOTH, stretch, strict=True):
        low, high = (each(names, features, nodes.inputs) for each in spreads[name])
        least = 0.15 * (high - low).clip(0) + 1e-3
        down.append(wider * np.maximum(-low, least))
        up.append(wider * np.maximum(high, least))
    return np.hstack(down), np.hstack(up)


def _conformal(
    curves: Curves, residuals: Array, folds: Array, lean: bool
) -> tuple[tuple[float, float], Array]:
    """The stretch of either quantile pair, and errors on unseen groups within it, (workloads, 2 * nodes)."""
    down, up = np.empty_like(residuals), np.empty_like(residuals)
    for out in np.unique(folds):
        keep = folds != out
        spreads = _grow_spreads(curves.part(keep), residuals[keep], lean)
        features = curves.features[~keep]
        down[~keep], up[~keep] = _distances(curves.names, features, curves.nodes, spreads, (1.0, 1.0))
    wrong = _wrong(residuals)
    score = np.where(wrong < 0, -wrong / down, wrong / up)
    halves = np.hsplit(score, 2)
    promised = QUANTILES[1] - QUANTILES[0]
    # The settings of one workload are no independent cases, so that the correction for few cases counts
    # workloads.
    wider = [
        max(float(np.nanquantile(half, min(promised * (1 + 1 / len(half)), 1.0))), 0.3) for half in halves
    ]
    held = np.hstack([half <= each for half, each in zip(halves, wider, strict=True)])
    return (wider[0], wider[1]), held


def _errors(curves: Curves, residuals: Array, covered: Array) -> pl.DataFrame:
    nodes, count = curves.nodes, len(curves.nodes)
    time, power = residuals[:, :count], residuals[:, count:]
    wrong = {"time": time, "power": power, "energy": time + power}
    held = dict(zip(BOTH, np.hsplit(covered, 2), strict=True))
    highest = nodes.max_sm_clock_mhz
    sm = [None if highest is None else round(each * highest) for each in nodes.x]
    memory = nodes.max_mem_clock_mhz
    mem = [None if memory is None else round(each * memory) for each in nodes.mu]
    columns: dict[str, Any] = {"sm_clock_mhz": sm, "mem_clock_mhz": mem, "power_limit_share": nodes.cap}
    columns |= {f"{name}_error": np.nanmean(np.abs(np.expm1(-each)), axis=0) for name, each in wrong.items()}
    columns |= {
        f"{name}_covered": np.nanmean(np.where(np.isfinite(wrong[name]), each, np.nan), axis=0)
        for name, each in held.items()
    }
    columns["workloads"] = np.isfinite(wrong["time"]).sum(axis=0)
    return pl.DataFrame(columns)
