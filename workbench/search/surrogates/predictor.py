"""Time and energy of an iteration at other clocks and limits, predicted from features of the workload at one
setting.

    model = ClockModel.train(frame, gpu="Tesla V100-PCIE-32GB")            one row per workload and setting
    prediction = model.predict({"dram_active": 0.62}, space, power_w=181)  ln time and ln energy per setting
    model.save(path)
    ClockModel.load(path)

As in GPOEO (Wang et al., TPDS 2022, its prediction models of energy and time), boosted trees predict relative
time and power from counters at the default setting. Here they are LightGBM's, and four fifths of the
prediction are laws with five numbers per setting, because few numbers carry over to workloads unlike those of
the training set. A workload is described by the activity m of its memory, the share b of time in which the
GPU is in use, and its power p. With n = 1.3 and s = min(m/b, 1)**n, at each setting of the training set and
relative to the reference,

    time  = 1 - b + b * ((1 - s) * compute + s * memory)**(1/n)    a roofline with a rounded edge (Williams et
            al., CACM 2009)
    power = (clocked * p + static + memory * m) / p

and no number is below zero. Other clocks are interpolated, linearly in the logarithms. A power limit acts as
the clock at which the power meets it, as in the driver.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from scipy.optimize import least_squares

from ... import _paths
from ...errors import UsageError, checked, read_file

if TYPE_CHECKING:
    from ..space import SettingSpace

Array = np.ndarray
FORMAT = ["GPU Energy Workbench clock model", 4]  # and its version
# The feature that is the memory's activity. More counters made predictions worse on held-out groups.
FEATURE_SETS = {"nvml": "memory_utilisation", "gpm": "dram_active"}
BUSY = "gpu_utilisation"
CLOCKS = "sm_clock_mhz", "mem_clock_mhz"
MEASURED = "iteration_s", "power_w"
# Power limit over power at the reference, where no clock was set.
CAPS = 1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3
LEAST_WORKLOADS = 8
PARAMETERS: dict[str, Any] = {
    "learning_rate": 0.05, "num_leaves": 15, "num_threads": 1, "deterministic": True, "force_row_wise": True,
    "verbosity": -1, "seed": 1,
}
# Of the prediction: a third of what is best for time on groups left out (0.6), because these groups resemble
# each other more than a user's job resembles them.
SHARE = 0.2
EDGE = 1.3  # of the roofline; chosen on groups left out, of microbenchmarks and of simulated profiles
SOFT = 0.05  # relative error beyond which a misfit of the law counts by its size, not its square


@dataclass(frozen=True)
class Prediction:
    """A model's prediction of time and energy at every setting of a space.

    Attributes:
        space: The settings.
        frame: One row per setting: power_limit_w, sm_clock_mhz, mem_clock_mhz (null = the driver's choice),
            log_time, log_energy, relative to the reference; null where the model cannot predict.
        source: The model that made it, as text.
    """

    space: SettingSpace
    frame: pl.DataFrame
    source: str


@dataclass(frozen=True)
class ClockCurves:
    """ln of time and power relative to the reference at the settings of a training set.

    A call takes workloads (memory activity, share of time in use, power), (workloads, 3), and returns
    (2, workloads, settings).

    Attributes:
        clocks: SM and memory clock of each setting, relative to the highest; the reference is among them.
        laws: The numbers of the laws of time and of power, (settings, 2) and (settings, 3).
        trees: Of time and of power, as LightGBM dumps them.
        share: The share of the trees.
    """

    clocks: list[list[float]]
    laws: list[list[list[float]]]
    trees: list[list[Any]]
    share: float = SHARE

    @classmethod
    def fit(cls, clocks: list[list[float]], loads: Array, targets: Array) -> ClockCurves:
        """Fit law and trees; targets as what a call returns, NaN where there is no measurement."""
        import lightgbm

        laws, trees, rows = [], [], _rows(loads, clocks)
        for (formula, count, rises), target in zip(LAWS, targets, strict=True):
            laws.append([_law(formula, count, loads, column) for column in target.T])
            measured = np.isfinite(target.ravel())
            data = lightgbm.Dataset(rows[measured], target.ravel()[measured], params={"verbosity": -1})
            parameters = {**PARAMETERS, "monotone_constraints": [0, 0, 0, rises, rises]}
            dump = lightgbm.train(parameters, data, 200).dump_model()
            trees.append([each["tree_structure"] for each in dump["tree_info"]])
        return cls(clocks, laws, trees)

    def __call__(self, loads: Array) -> Array:
        rows, logs = _rows(loads, self.clocks), []
        for (formula, *_), law, trees in zip(LAWS, self.laws, self.trees, strict=True):
            by_law = np.log(np.maximum(formula(loads, np.transpose(law)), 0.01))
            boosted = np.sum([_leaves(tree, rows) for tree in trees], axis=0).reshape(by_law.shape)
            logs.append((1 - self.share) * by_law + self.share * boosted)
        return np.array(logs)


def _time(loads: Array, law: Array) -> Array:
    """Relative time by its law, (2, settings); returns (workloads, settings)."""
    memory, busy, _ = loads.T[:, :, None]
    busy = np.clip(busy, 0.02, 1)
    bound = np.minimum(memory / busy, 1) ** EDGE
    return 1 - busy + busy * ((1 - bound) * law[0] + bound * law[1]) ** (1 / EDGE)


def _power(loads: Array, law: Array) -> Array:
    """Relative power by its law, (3, settings); returns (workloads, settings)."""
    memory, _, power = loads.T[:, :, None]
    return law[0] + (law[1] + law[2] * memory) / power


# Numbers of a law, and whether the quantity falls (-1) or rises with clocks.
LAWS = (_time, 2, -1), (_power, 3, 1)


def _law(formula: Callable[[Array, Array], Array], count: int, loads: Array, target: Array) -> list[float]:
    """The numbers of a law at one setting, by relative errors."""
    measured = np.isfinite(target)
    ratio = np.exp(target[measured])
    solution = least_squares(
        lambda law: formula(loads[measured], law[:, None])[:, 0] / ratio - 1, np.ones(count),
        bounds=(0, np.inf), loss="soft_l1", f_scale=SOFT,
    )
    return solution.x.tolist()


def _rows(loads: Array, clocks: list[list[float]]) -> Array:
    """Workloads at settings as the trees need them, (workloads * settings, 5)."""
    return np.hstack([np.repeat(loads, len(clocks), axis=0), np.tile(clocks, (len(loads), 1))])


def _leaves(tree: dict[str, Any], rows: Array) -> Array:
    """The value of a tree for each row. LightGBM's own reader would trust every number of a model file."""
    if "leaf_value" in tree:
        return np.full(len(rows), float(tree["leaf_value"]))
    left, right = (_leaves(tree[side], rows) for side in ("left_child", "right_child"))
    return np.where(rows[:, tree["split_feature"]] <= tree["threshold"], left, right)


@dataclass(frozen=True)
class ClockModel:
    """A model of one GPU's clocks and limits for one set of features.

    Attributes:
        gpu: The card, as its driver names it.
        feature_set: The source of the features: "gpm" or "nvml".
        workloads: Number of workloads in the training.
        error: Mean absolute relative error of time and of power, below the reference, on groups of workloads
            that were held out in turn.
        curves: The prediction at the settings of the training set.
        highest_mhz: SM and memory clock of the value 1; None if no clock was set.
        typical: Memory activity of a workload that does not report it.
        unit_w: The unit of power, in watts: the largest of the training set.
    """

    gpu: str
    feature_set: str
    workloads: int
    error: list[float]
    curves: ClockCurves = field(repr=False)
    highest_mhz: list[float | None]
    typical: float
    unit_w: float

    @classmethod
    def train(cls, frame: pl.DataFrame, *, gpu: str, feature_set: str = "gpm") -> ClockModel:
        """Learn from measured workloads.

        Args:
            frame: One row per workload and setting: workload, group (held out together), reference (whether
                this is the GPU's default setting), sm_clock_mhz, mem_clock_mhz, power_limit_w (null = the
                driver's), iteration_s, power_w, and features; those of the rows at the reference count. A
                workload that was not measured at the reference is left out. Limits are used only where no
                clock was set.
            gpu: The card's name.
            feature_set: "gpm" or "nvml".

        Raises:
            UsageError: an unknown set of features, impossible values, too few workloads or settings.
        """
        if feature_set not in FEATURE_SETS:
            raise UsageError(
                f"'{feature_set}' is not a set of features; choose one of {', '.join(FEATURE_SETS)}"
            )
        memory = FEATURE_SETS[feature_set]
        kinds = {"workload": pl.String, "group": pl.String, "reference": pl.Boolean}
        numbers = *MEASURED, *CLOCKS, "power_limit_w", memory, BUSY
        kinds |= dict.fromkeys(numbers, pl.Float64)
        columns = [pl.col(name).cast(kind) for name, kind in kinds.items() if name in frame.columns]
        rows = pl.concat([pl.DataFrame(schema=kinds), frame.select(columns).fill_nan(None)], how="diagonal")
        above = [pl.col(name).is_between(0, np.inf, closed="none").fill_null(False) for name in MEASURED]
        bad = rows.filter(~pl.all_horizontal(above))
        if bad.height:
            workload, seconds, watts = bad.select("workload", *MEASURED).row(0)
            raise UsageError(
                f"{bad.height} of {rows.height} rows have no iteration_s or power_w above zero (first: "
                f"{workload}, {seconds} s, {watts} W); leave them out"
            )
        tops = rows.filter("reference").group_by("workload", maintain_order=True).agg(
            pl.first("group"), pl.mean(memory, BUSY), top_s=pl.mean("iteration_s"), top_w=pl.mean("power_w")
        )
        if tops.height < LEAST_WORKLOADS:
            raise UsageError(
                f"a model needs {LEAST_WORKLOADS} workloads measured at the reference and below, this "
                f"training set has {tops.height}; `workbench profile-gpu` collects one"
            )
        typical: Any = tops[memory].median() or 0.3
        unit_w: Any = tops["top_w"].max()
        loads = tops.select(
            pl.col(memory).fill_null(typical), pl.col(BUSY).fill_null(1.0), pl.col("top_w") / unit_w
        ).to_numpy()
        highest_mhz: list[Any] = [rows[name].max() for name in CLOCKS]
        table = rows.join(tops.select("workload", "top_s", "top_w"), on="workload").group_by(
            "workload", "reference", *CLOCKS, "power_limit_w"
        ).agg(pl.mean(*MEASURED, "top_s", "top_w")).sort(CLOCKS[0], "power_limit_w", nulls_last=True)
        limits_w, clocks = table["power_limit_w"], _clocks(table, highest_mhz)
        if (clocks == 1).all():  # a limit counts as the clock of its share's square root
            clocks[:, 0] = np.sqrt((limits_w / table["top_w"]).fill_null(1.0).clip(upper_bound=1.0))
            nodes = np.array([(cap**0.5, 1.0) for cap in sorted(CAPS)])
        else:
            highest_w: Any = limits_w.max() or 0.0  # has no effect
            free = limits_w.fill_null(np.inf) >= highest_w
            table, clocks = table.filter(free), clocks[free.to_numpy()]
            nodes = np.unique(clocks, axis=0)
        logs = np.log([table["iteration_s"] / table["top_s"], table["power_w"] / table["top_w"]])
        targets = np.full((2, tops.height, len(nodes)), np.nan)
        for row, name in enumerate(tops["workload"]):
            mine = (table["workload"] == name).to_numpy()
            targets[:, row] = _interpolated(nodes, clocks[mine], logs[:, mine])
        often = np.isfinite(targets[0]).sum(axis=0) >= LEAST_WORKLOADS
        nodes, targets = nodes[often], targets[:, :, often]
        if len(nodes) < 2:
            raise UsageError(
                "this training set has one setting only; measure every workload at some lower clocks or "
                "limits too"
            )
        wrong = np.empty_like(targets)
        groups = tops["group"] if tops["group"].n_unique() > 1 else tops["workload"]
        for group in groups.unique():
            out = (groups == group).to_numpy()
            curves = ClockCurves.fit(nodes.tolist(), loads[~out], targets[:, ~out])
            wrong[:, out] = np.expm1(curves(loads[out]) - targets[:, out])
        error = np.nanmean(np.abs(wrong[:, :, :-1]), axis=(1, 2)).tolist()  # the last is the reference
        curves = ClockCurves.fit(nodes.tolist(), loads, targets)
        return cls(gpu, feature_set, tops.height, error, curves, highest_mhz, typical, unit_w)

    def predict(self, features: Mapping[str, float], space: SettingSpace, power_w: float) -> Prediction:
        """Predict time and energy of an iteration at every setting, relative to the space's reference.

        Clocks outside those of the training set are not predicted.

        Args:
            features: Features of the workload at the reference; unknown ones are missing or NaN.
            space: Settings of the model's card.
            power_w: Mean power there.

        Raises:
            UsageError: an impossible value.
        """
        values = {FEATURE_SETS[self.feature_set]: self.typical, BUSY: 1.0}
        values |= {name: features[name] for name in values if not np.isnan(features.get(name, np.nan))}
        for name, value in {"power_w": power_w, **values}.items():
            if not (0 <= value < np.inf and power_w):
                raise UsageError(
                    f"{name}={value:g} is impossible; give power_w above 0, and omit unknown features"
                )
        load = np.array([[*values.values(), power_w / self.unit_w]])
        nodes = np.array(self.curves.clocks)
        curves = self.curves(load)[:, 0]
        curves -= curves[:, -1:]
        table = space.frame()
        clocks = _clocks(table, self.highest_mhz)
        limits_w, top = table["power_limit_w"].to_numpy(), nodes[:, 1] == 1
        cap = limits_w / power_w
        powers = np.maximum.accumulate(curves[1, top])
        met = np.exp(np.interp(np.log(cap), powers, np.log(nodes[top, 0]), left=np.nan))
        clocks[:, 0] = np.where(np.isnan(cap), clocks[:, 0], np.minimum(clocks[:, 0], met))
        time, power = _interpolated(clocks, nodes, curves)
        energy, here = time + power, space.reference_row
        frame = table.with_columns(
            pl.Series("log_time", time - time[here], nan_to_null=True),
            pl.Series("log_energy", energy - energy[here], nan_to_null=True),
        )
        source = f"a {self.feature_set} model of the {self.gpu} ({self.workloads} workloads)"
        return Prediction(space, frame, source)

    def save(self, path: Path | str) -> Path:
        """Write the model to one file; it replaces an older one once it is complete.

        Raises:
            UsageError: a place that cannot be written to.
        """
        model = json.dumps({"format": FORMAT, **asdict(self)})
        try:
            with _paths.replacing(Path(path)) as file:
                file.write(gzip.compress(model.encode(), mtime=0))
        except OSError as error:
            raise UsageError(
                f"the clock model cannot be written to {path} ({error.strerror}); name another place"
            ) from error
        return Path(path)

    @classmethod
    @checked
    def load(cls, path: Path | str) -> ClockModel:
        """Read a model.

        Raises:
            UsageError: no such file, a damaged one, or one of another version.
        """
        try:
            stored = json.loads(read_file(path))
            if stored.pop("format") != FORMAT:
                raise ValueError(f"this is not version {FORMAT[1]}")
            return cls(curves=ClockCurves(**stored.pop("curves")), **stored)
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise UsageError(
                f"the clock model {path} is damaged or of another version ({error}); `workbench profile-gpu` "
                "makes a new one"
            ) from error


def _clocks(table: pl.DataFrame, highest: Sequence[float | None]) -> Array:
    """Relative clocks, (rows, 2): 1 where the driver decides, NaN for a clock that has no highest."""
    columns = zip(CLOCKS, highest, strict=True)
    return np.column_stack([(table[name] / (top or np.nan)).fill_null(1.0) for name, top in columns])


def _interpolated(clocks: Array, nodes: Array, values: Array) -> Array:
    """Values (2, nodes) at other clocks, linear in ln of the SM clock; NaN outside the nodes.

    The SM clocks of the nodes rise.
    """
    result = np.full((2, len(clocks)), np.nan)
    for memory in np.unique(nodes[:, 1]):
        on, at = nodes[:, 1] == memory, clocks[:, 1] == memory
        places, supports = np.log(clocks[at, 0]), np.log(nodes[on, 0])
        result[:, at] = [
            np.interp(places, supports, value[on], left=np.nan, right=np.nan) for value in values
        ]
    return result


__all__ = ["CLOCKS", "FEATURE_SETS", "ClockModel", "Prediction"]
