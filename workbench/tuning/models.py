"""A model of this GPU, where there is one, and what it foretells of the job that runs on it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import _paths
from ..device.protocol import Device
from ..errors import WorkbenchError
from ..measurement.recorder import Recorder
from ..search.space import SettingSpace
from .features import FEATURE_SETS, FeatureReader

if TYPE_CHECKING:
    from ..search.surrogates.predictor import Prediction


class Forecast:
    """Reads the features of a running job on one GPU, for the model of it; does nothing where there is none.

    Args:
        device: The GPU.
        recorder: What samples it, for the features that any driver reports.
        wanted: A model, the path of one, None for those in the user's directory, False for none.

    Attributes:
        notes: Why there is no model, or no features, where some were expected.
    """

    def __init__(self, device: Device, recorder: Recorder, wanted: Any = None) -> None:
        self.notes: list[str] = []
        self._model: Any = None
        self._reader: FeatureReader | None = None
        known = any(find_model(device.name, source) for source in FEATURE_SETS)
        if wanted is False or (wanted is None and not known):
            return

        source = ""
        try:
            self._reader = FeatureReader(device, recorder)
            source = self._reader.source
            self._reader.start()
        except WorkbenchError as error:
            self.notes.append(f"no features: {error}")
            self._reader = None
        self._model = self._find(device.name, source, wanted)

    def _find(self, gpu: str, source: str, wanted: Any) -> Any:
        """The model of a GPU for features of a source."""
        model: Any = wanted
        if wanted is None or isinstance(wanted, (str, Path)):
            path = find_model(gpu, source) if wanted is None else Path(wanted)
            if path is None:
                return None
            from ..search.surrogates.predictor import ClockModel

            try:
                model = ClockModel.load(path)
            except (WorkbenchError, OSError) as error:
                self.notes.append(f"{error}; tuning goes on without a model")
                return None
        if slug(model.gpu) == slug(gpu):
            return model
        self.notes.append(
            f"the model is of a {model.gpu} and this is a {gpu}: tuning goes on without it; "
            "`workbench profile-gpu` makes one of this card"
        )
        return None

    def prediction(self, space: SettingSpace, power_w: float) -> tuple[Prediction | None, str]:
        """The model's prediction for a job that draws `power_w` on each GPU, or why there is none."""
        if self._model is None or self._reader is None:
            return None, ""
        try:
            values = self._reader.read().values
        except WorkbenchError as error:
            return None, f"no features: {error}"
        if not values:
            return None, "this GPU reports no features now; tuning goes on without its model"
        try:
            return self._model.predict(values, space, power_w), ""
        except Exception as error:  # a model's tables may be whole and yet make no sense
            known = isinstance(error, WorkbenchError)
            what = error if known else f"the model cannot predict ({type(error).__name__}: {error})"
            return None, f"{what}; tuning goes on without that model"


# where models are: one for each GPU and set of features

SUFFIX = ".clocks.json.gz"


def models_directory() -> Path:
    """Made if need be."""
    path = _paths.home()[0] / "models"
    path.mkdir(parents=True, exist_ok=True)
    return path


def slug(gpu: str) -> str:
    """A card's name as a file's. A simulated card keeps the word, so that its model never serves a real one.

    >>> slug("NVIDIA A100-SXM4-80GB (simulated)")
    'nvidia-a100-sxm4-80gb-simulated'
    """
    return re.sub(r"[^a-z0-9]+", "-", gpu.casefold()).strip("-")


def model_path(gpu: str, feature_set: str) -> Path:
    """Where the model of a GPU for a set of features is kept, whether there is one or not."""
    return models_directory() / f"{slug(gpu)}.{feature_set}{SUFFIX}"


def find_model(gpu: str, source: str) -> Path | None:
    """The model that serves features of a source: its own, or that of what every driver reports."""
    return next((each for each in (model_path(gpu, source), model_path(gpu, "nvml")) if each.exists()), None)
