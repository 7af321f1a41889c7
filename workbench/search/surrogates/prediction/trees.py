"""LightGBM and the card's laws together, and their error on held-out groups of workloads.

The trees get the inputs of the laws (memory activity, share of gaps, power) and the setting.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from . import physics
from .curves import Array, Nodes, RelativeCurves
from .physics import CardPhysics

PARAMETERS: dict[str, Any] = {
    "learning_rate": 0.05, "num_leaves": 15, "num_threads": 1, "deterministic": True, "force_row_wise": True,
    "verbosity": -1, "seed": 1,
}
# Of the mean: a third of what is best for time on groups left out (0.6), because these groups resemble each
# other more than a user's job resembles them.
SHARE = 0.2
Z80 = 1.2816  # standard deviations: half width of an 80 % interval
FOLDS = 4  # where the training set has one group only


@dataclass(frozen=True)
class Means:
    """The mean prediction: the share `SHARE` of the trees', the rest of the card's laws."""

    nodes: Nodes
    physics: CardPhysics
    trees: tuple[list[Any], list[Any]]  # of time, of power, as LightGBM dumps them

    def __call__(self, names: tuple[str, ...], features: Array) -> tuple[Array, Array]:
        """ln of relative time and of relative power, (workloads, nodes) each."""
        laws = self.physics.log_time(names, features), self.physics.log_power(names, features)
        rows = _rows(self.physics.inputs(names, features), self.nodes)
        time, power = (
            (1 - SHARE) * law
            + SHARE * np.sum([_leaves(tree, rows) for tree in trees], axis=0).reshape(law.shape)
            for law, trees in zip(laws, self.trees, strict=True)
        )
        return time, power


def fit(curves: RelativeCurves) -> Means:
    """Fit the laws and the trees.

    Time falls and power rises with each clock and with the limit.
    """
    import lightgbm

    laws = physics.fit(curves)
    rows = _rows(laws.inputs(curves.names, curves.features), curves.nodes)
    found = []
    for target, rises in ((curves.log_time.ravel(), -1), (curves.log_power.ravel(), 1)):
        known = np.isfinite(target)
        leaf = min(20, max(int(known.sum()) // 20, 3))  # LightGBM's default, fewer for a small training set
        parameters = {**PARAMETERS, "monotone_constraints": [0, 0, 0] + [rises] * 3, "min_data_in_leaf": leaf}
        data = lightgbm.Dataset(rows[known], target[known], params={"verbosity": -1})
        dump = lightgbm.train(parameters, data, 200).dump_model()
        found.append([each["tree_structure"] for each in dump["tree_info"]])
    return Means(curves.nodes, laws, (found[0], found[1]))


def _leaves(tree: dict[str, Any], rows: Array) -> Array:
    """The value of a tree for each row. LightGBM's own reader would trust every number of a model file."""
    if "leaf_value" in tree:
        return np.full(len(rows), float(tree["leaf_value"]))
    left, right = (_leaves(tree[side], rows) for side in ("left_child", "right_child"))
    return np.where(rows[:, tree["split_feature"]] <= tree["threshold"], left, right)


def _rows(inputs: Array, nodes: Nodes) -> Array:
    return np.hstack([np.repeat(inputs, len(nodes), axis=0), np.tile(nodes.inputs, (len(inputs), 1))])


def folds_of(groups: tuple[str, ...]) -> Array:
    """Fold of each workload, (workloads,): its group, or one of four where there is one group only."""
    names = sorted(set(groups))
    if len(names) < 2:
        return np.arange(len(groups)) % FOLDS
    return np.array([names.index(each) for each in groups])


def held_out_errors(curves: RelativeCurves) -> pl.DataFrame:
    """Errors per setting on groups of workloads that were held out in turn.

    Returns:
        sm_clock_mhz, mem_clock_mhz, power_limit_share, time_error, power_error, energy_error (mean absolute
        relative error), log_time_sd, log_energy_sd (of the logarithms, so that the 80 % interval holds 80 %
        of the workloads), workloads.
    """
    folds = folds_of(curves.groups)
    time, power = np.empty_like(curves.log_time), np.empty_like(curves.log_power)
    for out in np.unique(folds):
        means, test = fit(curves.part(folds != out)), curves.part(folds == out)
        predicted = means(curves.names, test.features)
        time[folds == out], power[folds == out] = test.log_time - predicted[0], test.log_power - predicted[1]
    nodes = curves.nodes
    sm, mem = (
        [None if top is None else round(each * top) for each in ratios]
        for ratios, top in ((nodes.x, nodes.max_sm_clock_mhz), (nodes.mu, nodes.max_mem_clock_mhz))
    )
    columns: dict[str, Any] = {"sm_clock_mhz": sm, "mem_clock_mhz": mem, "power_limit_share": nodes.cap}
    rests = {"time": time, "power": power, "energy": time + power}
    columns |= {f"{name}_error": np.nanmean(np.abs(np.expm1(-rest)), axis=0) for name, rest in rests.items()}
    columns |= {
        f"log_{name}_sd": np.nanquantile(np.abs(rests[name]), 0.8, axis=0) / Z80
        for name in ("time", "energy")
    }
    return pl.DataFrame({**columns, "workloads": np.isfinite(time).sum(axis=0)})
