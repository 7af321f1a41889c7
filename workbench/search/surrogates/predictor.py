"""How an iteration's time and energy answer to clocks and limits, foretold from features of the workload at
one setting.

    model = ClockModel.train(frame, gpu="Tesla V100-PCIE-32GB", feature_set="dcgm")     one row a workload and
                                                                                        setting
    prediction = model.predict({"dram_active": 0.62, ...}, space, power_w=181.0)        ln time, ln energy
                                                                                        with quantiles, per
                                                                                        setting
    prediction = prediction.after([setting], [log_time], [log_energy])                  what a probe says of
                                                                                        all other settings
    model.save(path);  ClockModel.load(path, gpu="Tesla V100-PCIE-32GB")

LightGBM, monotone where physics is, blended with the card's own roofline and power law (`prediction.card`,
`prediction.physics`). All is relative to the reference setting and to the card's highest clocks. Each set of
features ("gpm", "dcgm", "nvml") has its own model; a feature that a workload does not tell is missing, never
zero. Where no model exists, `search.response` starts from physics alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from ...errors import UsageError, checked, named_file
from ...records import Setting
from .prediction import choice, files, surface
from .prediction.belief import GaussianPosterior
from .prediction.card import QUANTILES, FittedCard, fit
from .prediction.curves import FEATURES, curves_of

if TYPE_CHECKING:
    from ..space import SettingSpace

Array = np.ndarray[Any, Any]
SUFFIX = ".clocks.json.gz"
OF_NVML = ("gpu_utilisation", "memory_utilisation", "sm_clock_ratio", "mem_clock_ratio", "power_share")
FEATURE_SETS = {"nvml": OF_NVML, "dcgm": FEATURES, "gpm": FEATURES}


@dataclass(frozen=True, slots=True)
class PredictionParams:
    """Tuned constants of `Prediction`; set by hand, scored by `benchmarks.clocks --only predictor`."""

    own_share: float = 0.1  # part of the errors' covariance that is each setting's own
    counter_sd: float = 0.05  # of a share that counters tell: they are sampled, and not of every kernel
    own_sd: float = 0.005  # of ln time and ln power that every setting has of its own


PARAMS = PredictionParams()


@dataclass(frozen=True)
class Prediction:
    """A model's prediction of time and energy at every setting of a space.

    Attributes:
        space: The settings.
        frame: One row a setting: power_limit_w, sm_clock_mhz, mem_clock_mhz (null = driver), log_time,
            log_time_sd, log_energy, log_energy_sd, log_time_low, log_time_high, log_energy_low,
            log_energy_high (10 % and 90 % quantiles), all relative to the reference; null where the model
            cannot tell.
        source: Where it comes from, in words.
    """

    space: SettingSpace
    frame: pl.DataFrame
    source: str
    belief: GaussianPosterior = field(repr=False)  # over the settings that can be told
    told: Array = field(repr=False)  # their rows
    # From mean to low and high quantile over sd, (2 * told,).
    distances: tuple[Array, Array] = field(repr=False)
    probes: int = 0

    def after(
        self, settings: Sequence[Setting], log_time: Sequence[float], log_energy: Sequence[float],
        errors: Any = 0.0,
    ) -> Prediction:
        """The prediction once some settings were measured.

        Args:
            settings: Of the space; ones that the model cannot tell of are passed over, and so are values that
                are not finite.
            log_time, log_energy: ln of time and energy of an iteration relative to the reference.
            errors: Relative standard errors, one number or (probes, 2).
        """
        where = {int(row): at for at, row in enumerate(self.told)}
        at = [where.get(self.space.row(each)) for each in settings]
        seen = np.isfinite(np.asarray(log_time, float)) & np.isfinite(np.asarray(log_energy, float))
        known = [i for i, row in enumerate(at) if row is not None and seen[i]]
        rows = [row for i, row in enumerate(at) if row is not None and seen[i]]
        if not known:
            return self
        noise = np.broadcast_to(np.asarray(errors, float), (len(at), 2))[known]
        belief = self.belief.after(
            rows, np.asarray(log_time, float)[known], np.asarray(log_energy, float)[known], noise
        )
        probes = self.probes + len(known)
        source = f"{self.source.removesuffix(_said(self.probes))}{_said(probes)}"
        return _prediction(self.space, belief, self.told, self.distances, source, probes)

    def draws(self, count: int, rng: np.random.Generator) -> tuple[Array, Array]:
        """Equally likely surfaces: ln time and ln energy, (count, settings) each; NaN: unknown."""
        drawn = self.belief.draws(count, rng)
        out = np.full((2, count, len(self.space.settings)), np.nan)
        n = self.belief.settings
        out[0][:, self.told], out[1][:, self.told] = drawn[:, :n], drawn[:, n:]
        return out[0], out[1]

    def least_energy(self, max_slowdown: float, *, sure: float | None = None) -> Setting:
        """The setting with the least expected energy that keeps the bound; breaking it costs the saving.

        Args:
            max_slowdown: A share, 0.05 = 5 %.
            sure: Probability of keeping the bound that a choice needs; by default one half, and more once
                something was probed.

        Raises:
            UsageError: a slowdown below 0 or above 100 %.
        """
        log_bound = _log_bound(max_slowdown)
        if not len(self.told):
            return self.space.reference
        sure = sure if sure is not None else choice.SURE_PROBED if self.probes else choice.SURE
        row = choice.chosen(self.belief, self._reference, log_bound, sure=sure)
        return self.space.settings[int(self.told[row])]

    def next_probe(
        self, max_slowdown: float, *, measured: Sequence[Setting] = (), error: float = 0.01,
        rng: np.random.Generator | None = None,
    ) -> Setting:
        """The setting whose probe would improve `least_energy` most, for a probe of this relative error.

        Raises:
            UsageError: the model cannot tell of this space, or a slowdown that cannot be.
        """
        if not len(self.told):
            raise UsageError(
                f"{self.source} says nothing of these settings; search without it, or let `workbench "
                "profile-gpu` measure them"
            )
        done = {self.space.row(each) for each in measured}
        leave_out = [at for at, row in enumerate(self.told) if int(row) in done]
        rng = rng or np.random.default_rng(0)
        row = choice.next_probe(
            self.belief, self._reference, _log_bound(max_slowdown), rng=rng, error=error, leave_out=leave_out
        )
        return self.space.settings[int(self.told[row])]

    @property
    def _reference(self) -> int:
        return int(np.flatnonzero(self.told == self.space.reference_row)[0])


@dataclass(frozen=True)
class ClockModel:
    """A model of one GPU's clocks and limits for one set of features.

    Attributes:
        gpu: The card, as its driver names it.
        feature_set: Where features come from: "gpm", "dcgm" or "nvml".
        features: The features that it was trained with.
        version: Of the file format.
        workloads: How many it was trained with.
        dropped: Workloads of the training set that could not be used, with the reason.
    """

    gpu: str
    feature_set: str
    card: FittedCard = field(repr=False)
    workloads: int = 0
    dropped: tuple[str, ...] = ()
    version: int = files.VERSION

    @classmethod
    def train(
        cls, frame: pl.DataFrame, *, gpu: str, feature_set: str = "dcgm",
        features: Sequence[str] | None = None, trees_alone: bool = False,
    ) -> ClockModel:
        """Learn from measured workloads (`prediction.curves.curves_of` has the columns).

        Args:
            frame: One row a workload and setting.
            gpu: The card's name.
            feature_set: "gpm", "dcgm" or "nvml": which of the frame's columns are features.
            features: Other names, for a set of one's own.
            trees_alone: Leave the card's physics out, as GPOEO's predictor does.

        Raises:
            UsageError: an unknown set of features, columns that are missing, too few workloads.
        """
        if features is None and feature_set not in FEATURE_SETS:
            raise UsageError(
                f"'{feature_set}' is no set of features; choose one of {', '.join(FEATURE_SETS)}"
            )
        if "gpu" in frame.columns and len(others := set(frame["gpu"].drop_nulls().to_list()) - {gpu}):
            raise UsageError(
                f"this training set is of {', '.join(sorted(map(str, others)))}, not of {gpu}; train one "
                "model per card"
            )
        curves = curves_of(frame, features if features is not None else FEATURE_SETS[feature_set])
        return cls(gpu, feature_set, fit(curves, trees_alone=trees_alone), len(curves), curves.dropped)

    @property
    def features(self) -> tuple[str, ...]:
        return self.card.names

    @property
    def errors(self) -> pl.DataFrame:
        """Held-out error by setting, groups left out in turn (`prediction.card.Card.errors`)."""
        return self.card.errors

    @property
    def error(self) -> tuple[float, float]:
        """Mean held-out relative error of time and of power over the settings below the reference."""
        time, power = self.errors.select(pl.mean("time_error", "power_error")).row(0)
        return float(time), float(power)

    def importance(self) -> pl.DataFrame:
        """Inputs of the trees: name, and its share of the gain in time and in power."""
        return self.card.importance()

    def predict(
        self, features: Mapping[str, float], space: SettingSpace, power_w: float | None = None
    ) -> Prediction:
        """Foretell time and energy of an iteration at every setting, relative to the space's reference.

        Args:
            features: Of the workload at the reference; a feature that is not known is left out or NaN.
            space: The settings, of the card that this model is of.
            power_w: Mean power there. Without it the feature power_share must be told, and nothing is told of
                power limits.

        Raises:
            UsageError: neither power nor power_share, or a value that cannot be.
        """
        row, drawn_w = self._row(features, power_w)
        nodes = self.card.nodes
        mean, down, up = self.card.nodes_of(row)
        count = len(nodes)
        cover = self.card.residuals * np.sqrt(self.card.alike(row))[:, None]
        cover = np.vstack([cover, self.card.misled(row, PARAMS.counter_sd)])
        variance = np.sum(cover**2, axis=0)
        own = np.diag(np.sqrt(PARAMS.own_share * variance + PARAMS.own_sd**2))
        factor = np.hstack([np.sqrt(1 - PARAMS.own_share) * cover.T, own])
        weights, told = surface.weights(
            nodes, space.settings, full_limit_w=space.max_power_limit_w, power_w=drawn_w,
            log_power=mean[count:],
        )
        reference = space.reference_row
        weights = weights - weights[reference]
        if not told[reference]:
            told[:] = False
        rows = np.flatnonzero(told)
        to_time = np.hstack([weights[rows], np.zeros((len(rows), count))])
        to_energy = np.hstack([weights[rows], weights[rows]])
        change = np.vstack([to_time, to_energy])
        belief = GaussianPosterior(change @ mean, change @ factor).compact()
        sd = np.maximum(belief.sd, 1e-9)
        pull = np.abs(weights[rows]) @ np.column_stack([down[:count], up[:count], down[count:], up[count:]])
        low, high = (np.concatenate([pull[:, at], pull[:, at + 2]]) / sd for at in (0, 1))
        distances = low, high
        words = f"a {self.feature_set} model of the {self.gpu} ({self.workloads} workloads)"
        return _prediction(space, belief, rows, distances, words)

    def _row(self, features: Mapping[str, float], power_w: float | None) -> tuple[Array, float | None]:
        for name, value in features.items():
            if (
                name in self.features and value is not None and not np.isnan(value)
                and (np.isinf(value) or value < 0)
            ):
                raise UsageError(f"the feature {name} cannot be {value:g}; leave out what is not known")
        if power_w is not None and not (0 < power_w < float("inf")):
            raise UsageError(
                f"a power of {power_w:g} W at the reference cannot be; give watts above 0, or power_share "
                "instead"
            )
        named = [(name, features.get(name)) for name in self.features]
        row = np.array([np.nan if value is None else float(value) for _, value in named])
        at = self.features.index("power_share")
        if np.isnan(row[at]):
            if power_w is None:
                raise UsageError(
                    "a prediction needs the power at the reference: give power_w, or the feature power_share"
                )
            row[at] = power_w / self.card.power_unit_w
        if row[at] <= 0:
            raise UsageError("the feature power_share cannot be 0; leave out what is not known")
        return row, power_w

    def save(self, path: Path | str) -> Path:
        """Write the model to one file; an older one is replaced when the new one is whole."""
        about = {
            "gpu": self.gpu, "feature_set": self.feature_set, "workloads": self.workloads,
            "dropped": list(self.dropped), "made_by": f"lightgbm {_version('lightgbm')}",
        }
        files.write(Path(path), about, self.card)
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
        about, card = files.read(named_file(path))
        counts = int(about["workloads"]), tuple(about["dropped"])
        model = cls(about["gpu"], about["feature_set"], card, *counts)
        if gpu is not None and _plain(gpu) != _plain(model.gpu):
            raise UsageError(
                f"{path} is a model of the {model.gpu}, this GPU is a {gpu}; `workbench profile-gpu` makes "
                "one for it"
            )
        return model


def _said(probes: int) -> str:
    return f", and {probes} probe{'s' if probes > 1 else ''}" if probes else ""


def _prediction(
    space: SettingSpace, belief: GaussianPosterior, told: Array, distances: tuple[Array, Array], source: str,
    probes: int = 0,
) -> Prediction:
    n, sd = belief.settings, belief.sd
    columns = {"log_time": belief.mean[:n], "log_time_sd": sd[:n]}
    low, high = belief.mean - sd * distances[0], belief.mean + sd * distances[1]
    columns |= {"log_time_low": low[:n], "log_time_high": high[:n]}
    columns |= {"log_energy": belief.mean[n:], "log_energy_sd": sd[n:]}
    columns |= {"log_energy_low": low[n:], "log_energy_high": high[n:]}
    frame = space.frame()
    whole = {}
    for name, values in columns.items():
        full = np.full(frame.height, np.nan)
        full[told] = values
        whole[name] = full
    return Prediction(
        space, frame.with_columns(pl.Series(name, each, nan_to_null=True) for name, each in whole.items()),
        source, belief, told, distances, probes,
    )


def _log_bound(max_slowdown: float) -> float:
    if not 0 <= max_slowdown <= 1:
        raise UsageError(f"a slowdown of {max_slowdown:g} is no share between 0 and 1; 0.05 stands for 5 %")
    return float(np.log1p(max_slowdown))


def _plain(gpu: str) -> str:
    return re.sub(r"[^a-z0-9]+", " ", gpu.lower().removeprefix("nvidia ").strip())


def _version(package: str) -> str:
    from importlib.metadata import version

    return version(package)


__all__ = ["FEATURE_SETS", "QUANTILES", "SUFFIX", "ClockModel", "Prediction"]
