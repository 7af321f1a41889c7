"""Searches that the product is compared with: GPOEO's, MF-GPOEO's, Optuna's samplers, and random choice."""

from __future__ import annotations

import numpy as np

from workbench.search.clocks.base import Scripted
from workbench.search.clocks.gpoeo import Golden
from workbench.search.objective import Objective
from workbench.search.space import SettingSpace

from .mf_gpoeo import Feedback
from .optuna_samplers import KINDS, Sampled

NAMES = ("gpoeo", "mf-gpoeo", *KINDS)


def make_search(
    name: str, space: SettingSpace, objective: Objective | None = None, max_slowdown: float | None = 0.05, *,
    rng: np.random.Generator | None = None,
) -> Scripted:
    """A search by one of `NAMES`; only the samplers draw from `rng`."""
    if name == "gpoeo":
        return Golden(space, objective, max_slowdown)
    if name == "mf-gpoeo":
        return Feedback(space, objective, max_slowdown)
    return Sampled(space, objective, max_slowdown, kind=name, rng=rng)
