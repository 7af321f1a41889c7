"""Where models of this user's GPUs are: one for each GPU and features (`search.surrogates.predictor`
makes and reads them).
"""

from __future__ import annotations

import re
from pathlib import Path

from .. import _paths

SUFFIX = ".clocks.json.gz"


def directory() -> Path:
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


def path(gpu: str, feature_set: str) -> Path:
    """Where the model of a GPU for a set of features is kept, whether there is one or not."""
    return directory() / f"{slug(gpu)}.{feature_set}{SUFFIX}"


def find(gpu: str, source: str) -> Path | None:
    """The model that serves features of a source: its own, or that of what every driver tells, which the
    other sources contain.
    """
    return next((each for each in (path(gpu, source), path(gpu, "nvml")) if each.exists()), None)
