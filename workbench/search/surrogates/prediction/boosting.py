"""LightGBM over features and settings: relative time and power at every setting of a training set, monotone
where physics is.

One row of a training table is a workload at a setting. Time falls and power rises with either clock and with
the limit, so these constraints always hold. In a training set of one memory clock, time at a lower SM clock
also rises with what the workload keeps the SM's pipes busy with and falls with what it keeps memory busy
with; with several memory clocks it is one or the other, and is left open. Nothing is imported before a model
is made or read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .curves import Array
from .tree_text import checked

PIPES = ("tensor_active", "fp64_active", "fp32_active", "fp16_active")
PIPE = "pipe_active"  # the busiest of these
SETTING = ("sm_clock", "memory_clock", "limit")  # relative to the reference
LEAN = ("dram_active", "memory_utilisation", "gpu_utilisation", "power_share")
# Of time at a lower SM clock.
SIGNS = {"dram_active": -1, "memory_utilisation": -1, "power_share": 1, PIPE: 1, **dict.fromkeys(PIPES, 1)}
MEANS = {
    "objective": "regression", "learning_rate": 0.05, "num_leaves": 15, "min_data_in_leaf": 20,
    "monotone_constraints_method": "intermediate",
}
MEAN_ROUNDS = 200
SPREAD = {"objective": "quantile", "learning_rate": 0.05, "num_leaves": 6, "min_data_in_leaf": 40}
SPREAD_ROUNDS = 60
ALWAYS = {"num_threads": 1, "deterministic": True, "force_row_wise": True, "verbosity": -1, "seed": 1}


@dataclass(frozen=True)
class Trees:
    """One LightGBM booster and the names of its inputs."""

    booster: Any
    inputs: tuple[str, ...]

    def __call__(self, names: tuple[str, ...], features: Array, settings: Array) -> Array:
        """(workloads, settings)."""
        rows = _rows(selected(names, features, self.inputs), settings)
        return np.asarray(self.booster.predict(rows, num_threads=1)).reshape(len(features), len(settings))

    def gains(self) -> dict[str, float]:
        """Share of the gain of all splits, by input."""
        gain = self.booster.feature_importance("gain")
        total = float(gain.sum()) or 1.0
        return {name: float(each) / total for name, each in zip([*self.inputs, *SETTING], gain, strict=True)}

    def stored(self) -> dict[str, Any]:
        return {"inputs": list(self.inputs), "booster": self.booster.model_to_string()}

    @classmethod
    def restored(cls, stored: dict[str, Any]) -> Trees:
        import lightgbm

        names = tuple(stored["inputs"])
        text = checked(str(stored["booster"]), len(names) + len(SETTING))
        trees = cls(lightgbm.Booster(model_str=text), names)
        if trees.booster.num_feature() != len(trees.inputs) + len(SETTING):
            raise ValueError("its trees have other inputs than it says")
        return trees


def inputs(names: Sequence[str], lean: bool) -> tuple[str, ...]:
    """Names of the inputs that a booster gets: the few that physics asks for, or all."""
    few = tuple(name for name in LEAN if name in names)
    few = tuple(name for name in few if name != "memory_utilisation" or "dram_active" not in names)
    if lean:
        return few
    return (
        *few, *([PIPE] if any(name in names for name in PIPES) else []),
        *(name for name in names if name not in few),
    )


def selected(names: tuple[str, ...], features: Array, wanted: Sequence[str]) -> Array:
    """The columns of these inputs; what a workload does not tell is NaN, which LightGBM knows as missing."""
    columns = []
    for name in wanted:
        if name == PIPE:
            told = [features[:, names.index(each)] for each in PIPES if each in names]
            stacked = np.stack(told) if told else np.full((1, len(features)), np.nan)
            columns.append(np.max(np.where(np.isfinite(stacked), stacked, -1.0), axis=0))
            columns[-1][~np.isfinite(stacked).any(axis=0)] = np.nan
        else:
            known = name in names
            columns.append(features[:, names.index(name)] if known else np.full(len(features), np.nan))
    return np.column_stack(columns) if columns else np.empty((len(features), 0))


def grow(
    names: tuple[str, ...], features: Array, settings: Array, target: Array, wanted: tuple[str, ...], *,
    rising: int, quantile: float | None = None,
) -> Trees:
    """Train one booster.

    Args:
        target: (workloads, settings); NaN = not measured, left out.
        wanted: Its inputs (`inputs`).
        rising: 1 where the target rises with clocks (power), -1 where it falls (time), 0 for none of both
            (spreads).
        quantile: Learn this quantile of the target instead of its mean.
    """
    import lightgbm

    # The reference itself is part of the table: there every workload is 1 by definition.
    told = np.concatenate([target, np.zeros((len(target), 1))], axis=1) if quantile is None else target
    places = np.vstack([settings, np.ones((1, settings.shape[1]))]) if quantile is None else settings
    rows, seen = _rows(selected(names, features, wanted), places), told.ravel()
    keep = np.isfinite(seen)
    one_memory_clock = bool(np.all(settings[:, 1] == 1))
    signs = [-rising * SIGNS.get(name, 0) if one_memory_clock else 0 for name in wanted]
    signs += [rising] * len(SETTING)
    parameters: dict[str, Any] = {**(MEANS if quantile is None else SPREAD), **ALWAYS}
    if quantile is None:
        parameters["monotone_constraints"] = signs
    else:
        parameters["alpha"] = (
            quantile  # LightGBM has no monotone quantiles; these are of errors, which know no such law
        )
    parameters["min_data_in_leaf"] = min(int(parameters["min_data_in_leaf"]), max(int(keep.sum()) // 20, 3))
    data = lightgbm.Dataset(rows[keep], seen[keep], params={"verbosity": -1})
    return Trees(lightgbm.train(parameters, data, MEAN_ROUNDS if quantile is None else SPREAD_ROUNDS), wanted)


def _rows(columns: Array, settings: Array) -> Array:
    return np.hstack([np.repeat(columns, len(settings), axis=0), np.tile(settings, (len(columns), 1))])
