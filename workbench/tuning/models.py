"""A model of this GPU, where there is one, and the features of the running job that it asks for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..device.protocol import Device
from ..errors import WorkbenchError
from . import model_store

if TYPE_CHECKING:
    from ..search.surrogates.predictor import ClockModel
    from .features import FeatureReader


def find(device: Device, source: str, wanted: Any = None) -> tuple[ClockModel | None, str]:
    """The model of a GPU for features of a source; without one, a sentence where one was expected.

    Args:
        device: The GPU.
        source: Where features come from there.
        wanted: A model, the path of one, None for what is in the user's directory, False for none.
    """
    if wanted is False:
        return None, ""
    model: Any = wanted
    if wanted is None or isinstance(wanted, (str, Path)):
        path = model_store.find(device.name, source) if wanted is None else Path(wanted)
        if path is None:
            return None, ""
        from ..search.surrogates.predictor import ClockModel

        try:
            model = ClockModel.load(path)
        except (WorkbenchError, OSError) as error:
            return None, f"{error}; tuning goes on without a model"
    if model_store.slug(model.gpu) != model_store.slug(device.name):
        return None, (
            f"the model is of a {model.gpu} and this is a {device.name}: tuning goes on without it; "
            "`workbench profile-gpu` makes one of this card"
        )
    return model, ""


def expected(device: Device, wanted: Any = None) -> bool:
    """Whether it is worth reading features."""
    return wanted is not False and (
        wanted is not None or any(model_store.find(device.name, source) for source in ("gpm", "dcgm", "nvml"))
    )


class JobFeatures:
    """Reads the features of a running job on one GPU, from the best source there is.

    Args:
        device: The GPU.
        recorder: What samples it, for the features that any driver tells.
    """

    def __init__(self, device: Device, recorder: Any = None) -> None:
        self.source = ""
        self.problem = ""
        self._reader: FeatureReader | None = None
        from .features import FeatureReader

        try:
            self._reader = FeatureReader(device, recorder)
            self.source = self._reader.source
            self._reader.start()
        except WorkbenchError as error:
            self.problem, self._reader = f"no features: {error}", None

    def read(self) -> Mapping[str, float]:
        """What was seen since; empty where nothing could be."""
        if self._reader is None:
            return {}
        try:
            found = self._reader.read()
        except WorkbenchError as error:
            self.problem = f"no features: {error}"
            return {}
        self.source = found.source
        return dict(found.values)

    def close(self) -> None:
        """No more is wanted."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None
