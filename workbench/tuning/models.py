"""A model of this GPU, where there is one, and its prediction for the job that runs on it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import _paths
from ..device.protocol import Device
from ..errors import UsageError, WorkbenchError
from ..measurement.recorder import Recorder
from ..search.space import SettingSpace
from .features import FeatureReader

if TYPE_CHECKING:
    from ..search.surrogates.predictor import Prediction


class Forecast:
    """Reads the features of a running job on one GPU, for the model of it; does nothing where there is none.

    Args:
        device: The GPU.
        recorder: The sampler, for the features that any driver reports.
        wanted: A model, the path of one, None for those in the user's directory, False for none.

    Attributes:
        notes: Why there is no model, or no features, where some were expected.
    """

    def __init__(self, device: Device, recorder: Recorder, wanted: Any = None) -> None:
        self.notes: list[str] = []
        self._model: Any = None
        if wanted is False or (wanted is None and find_model(device.name, "gpm") is None):
            return
        from ..search.surrogates.predictor import ClockModel

        try:
            self._reader = FeatureReader(device, recorder)
            self._reader.start()
            found = find_model(device.name, self._reader.source) if wanted is None else wanted
            model: Any = ClockModel.load(found) if isinstance(found, str | Path) else found
            if model is not None and slug(model.gpu) != slug(device.name):
                raise UsageError(
                    f"the model is of a {model.gpu} and this is a {device.name}; `workbench profile-gpu` "
                    "makes one of this card"
                )
            self._model = model
        except (WorkbenchError, OSError) as error:
            self.notes.append(f"{error}; tuning goes on without a model")

    def prediction(self, space: SettingSpace, power_w: float) -> tuple[Prediction | None, str]:
        """The model's prediction for a job that draws `power_w` on each GPU, or why there is none."""
        if self._model is None:
            return None, ""
        try:
            values = self._reader.read().values
            if not values:
                return None, "this GPU reports no features now; tuning goes on without its model"
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
