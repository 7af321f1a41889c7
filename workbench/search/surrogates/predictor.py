"""Time and energy of an iteration at other clocks and limits, predicted from features of the workload at one
setting.

    model = ClockModel.train(frame, gpu="Tesla V100-PCIE-32GB")            one row per workload and setting
    prediction = model.predict({"dram_active": 0.62}, space, power_w=181)  ln time and ln energy per setting
    model.save(path)
    ClockModel.load(path, gpu="Tesla V100-PCIE-32GB")

LightGBM blended with the card's own roofline and power law (`prediction.trees`, `prediction.physics`). All
values are relative to the reference setting and to the card's highest clocks. Each
set of features ("gpm", "nvml") has its own model. A feature that a workload does not have is missing, never
zero. Where no model exists, `response_surface` starts from general physics alone.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from ... import _paths
from ...errors import UsageError, checked, named_file, read_file
from .prediction import surface, trees
from .prediction.curves import Array, Nodes, curves_of
from .prediction.physics import CardPhysics

if TYPE_CHECKING:
    from ..space import SettingSpace

FORMAT = ["GPU Energy Workbench clock model", 3]  # and its version
REMEDY = "`workbench profile-gpu` makes a new one"
# Inputs of the laws. More counters made predictions worse on held-out groups of kernels.
FEATURE_SETS = {
    "nvml": ("memory_utilisation", "gpu_utilisation", "power_share"),
    "gpm": ("dram_active", "gpu_utilisation", "power_share"),
}


@dataclass(frozen=True)
class Prediction:
    """A model's prediction of time and energy at every setting of a space.

    Attributes:
        space: The settings.
        frame: One row per setting: power_limit_w, sm_clock_mhz, mem_clock_mhz (null = the driver's choice),
            log_time, log_time_sd, log_energy, log_energy_sd, relative to the reference; null where the model
            cannot predict. The 80 % intervals contained 80 % of the workloads of held-out groups.
        source: The model that made it, as text.
    """

    space: SettingSpace
    frame: pl.DataFrame
    source: str


@dataclass(frozen=True)
class ClockModel:
    """A model of one GPU's clocks and limits for one set of features.

    Attributes:
        gpu: The card, as its driver names it.
        feature_set: The source of the features: "gpm" or "nvml".
        features: The features that it was trained with.
        means: The mean prediction at the settings of the training set.
        errors: Held-out error by setting (`prediction.trees.held_out_errors`).
        power_unit_w: Power that is a `power_share` of 1.
        workloads: Number of workloads in the training.
        dropped: Workloads of the training set that could not be used, with the reason.
    """

    gpu: str
    feature_set: str
    features: tuple[str, ...]
    means: trees.Means = field(repr=False)
    errors: pl.DataFrame = field(repr=False)
    power_unit_w: float
    workloads: int
    dropped: tuple[str, ...] = ()

    @classmethod
    def train(
        cls, frame: pl.DataFrame, *, gpu: str, feature_set: str = "gpm", features: Sequence[str] | None = None
    ) -> ClockModel:
        """Learn from measured workloads (`prediction.curves.curves_of` has the columns).

        Args:
            frame: One row per workload and setting.
            gpu: The card's name.
            feature_set: "gpm" or "nvml": the columns of the frame that are features.
            features: Other names, for a custom set.

        Raises:
            UsageError: an unknown set of features, columns that are missing, too few workloads.
        """
        if features is None and feature_set not in FEATURE_SETS:
            raise UsageError(
                f"'{feature_set}' is not a set of features; choose one of {', '.join(FEATURE_SETS)}"
            )
        if "gpu" in frame.columns and len(others := set(frame["gpu"].drop_nulls().to_list()) - {gpu}):
            raise UsageError(
                f"this training set is of {', '.join(sorted(map(str, others)))}, not of {gpu}; train one "
                "model per card"
            )
        curves = curves_of(frame, features if features is not None else FEATURE_SETS[feature_set])
        return cls(
            gpu, feature_set, curves.names, trees.fit(curves), trees.held_out_errors(curves),
            curves.power_unit_w, len(curves), curves.dropped,
        )

    @property
    def error(self) -> tuple[float, float]:
        """Mean held-out relative error of time and of power over the settings below the reference."""
        time, power = self.errors.select(pl.mean("time_error", "power_error")).row(0)
        return float(time), float(power)

    def predict(
        self, features: Mapping[str, float], space: SettingSpace, power_w: float | None = None
    ) -> Prediction:
        """Predict time and energy of an iteration at every setting, relative to the space's reference.

        Args:
            features: Features of the workload at the reference; unknown ones are missing or NaN.
            space: Settings of the model's card.
            power_w: Mean power there. Without it the feature power_share is needed, and power limits are
                not predicted.

        Raises:
            UsageError: neither power nor power_share, or an impossible value.
        """
        time, power = self.means(self.features, self._row(features, power_w))
        sds = self.errors.select("log_time_sd", "log_energy_sd").to_numpy()
        table = np.column_stack([time[0], time[0] + power[0], sds])
        columns = surface.read(
            self.means.nodes, table, space.settings, full_limit_w=space.max_power_limit_w, power_w=power_w,
            log_power=power[0],
        )
        here = columns[space.reference_row].copy()
        columns += np.concatenate([-here[:2], here[2:]])  # the reference's error is common to all
        columns[space.reference_row, 2:] -= 2 * here[2:]
        names = ("log_time", "log_energy", "log_time_sd", "log_energy_sd")
        return Prediction(
            space,
            space.frame().with_columns(
                pl.Series(name, columns[:, at], nan_to_null=True) for at, name in enumerate(names)
            ),
            f"a {self.feature_set} model of the {self.gpu} ({self.workloads} workloads)",
        )

    def _row(self, features: Mapping[str, float], power_w: float | None) -> Array:
        """The features in the model's order, (1, features); NaN: unknown."""
        if power_w is not None and not 0 < power_w < float("inf"):
            raise UsageError(
                f"a power of {power_w:g} W at the reference is impossible; give watts above 0 or power_share "
                "instead"
            )
        values = {name: features[name] for name in self.features if features.get(name) is not None}
        for name, value in values.items():
            if np.isinf(value) or value < 0 or (value == 0 and name == "power_share"):
                raise UsageError(f"a feature {name} of {value:g} is impossible; omit unknown features")
        row = np.array([[values.get(name, np.nan) for name in self.features]], float)
        at = self.features.index("power_share")
        if np.isnan(row[0, at]):
            if power_w is None:
                raise UsageError(
                    "a prediction needs the power at the reference: give power_w, or the feature power_share"
                )
            row[0, at] = power_w / self.power_unit_w
        return row

    def save(self, path: Path | str) -> Path:
        """Write the model to one file; it replaces an older one once it is complete.

        Raises:
            UsageError: a place that cannot be written to.
        """
        means = self.means
        model = {
            "format": FORMAT, "gpu": self.gpu, "feature_set": self.feature_set, "features": self.features,
            "nodes": _lists(means.nodes), "physics": _lists(means.physics), "trees": means.trees,
            "errors": self.errors.to_dict(as_series=False), "power_unit_w": self.power_unit_w,
            "workloads": self.workloads, "dropped": self.dropped,
        }
        try:
            with _paths.replacing(Path(path)) as file:
                file.write(gzip.compress(json.dumps(model).encode(), mtime=0))
        except OSError as error:
            raise UsageError(
                f"the clock model cannot be written to {path} ({error.strerror}); name another place"
            ) from error
        return Path(path)

    @classmethod
    @checked
    def load(cls, path: Path | str, gpu: str | None = None) -> ClockModel:
        """Read a model.

        Args:
            path: Its file.
            gpu: The card that it is wanted for.

        Raises:
            UsageError: no such file, a damaged one, one of another version, or a model of another card.
        """
        path = named_file(path)
        stored = _read(path)
        name = str(stored.get("gpu"))
        if gpu is not None and _plain(gpu) != _plain(name):
            raise UsageError(
                f"{path} is a model of the {name}, this GPU is a {gpu}; `workbench profile-gpu` makes one "
                "for it"
            )
        try:
            time, power = stored["trees"]
            means = trees.Means(
                Nodes(**_arrays(stored["nodes"])), CardPhysics(**_arrays(stored["physics"])), (time, power)
            )
            return cls(
                name, stored["feature_set"], tuple(stored["features"]), means, pl.DataFrame(stored["errors"]),
                stored["power_unit_w"], stored["workloads"], tuple(stored["dropped"]),
            )
        except (AttributeError, KeyError, TypeError, ValueError, pl.exceptions.PolarsError) as error:
            raise UsageError(f"the clock model {path} is damaged ({error}); {REMEDY}") from error


def _read(path: Path) -> dict[str, Any]:
    """A stored model; the compression has a checksum of its own."""
    try:
        model = json.loads(read_file(path))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the clock model {path} is damaged ({error}); {REMEDY}") from error
    if not isinstance(model, dict) or model.get("format") != FORMAT:
        raise UsageError(f"{path} is not a clock model of version {FORMAT[1]}; {REMEDY}")
    return model


def _lists(record: Nodes | CardPhysics) -> dict[str, Any]:
    return {
        name: value.tolist() if isinstance(value, np.ndarray) else value
        for name, value in vars(record).items()
    }


def _arrays(stored: dict[str, Any]) -> dict[str, Any]:
    return {
        name: np.array(value, float) if isinstance(value, list) else value for name, value in stored.items()
    }


def _plain(gpu: str) -> str:
    return re.sub(r"[^a-z0-9]+", " ", gpu.lower().removeprefix("nvidia ").strip())


__all__ = ["FEATURE_SETS", "ClockModel", "Prediction"]
