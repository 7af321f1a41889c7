"""Searches that the product is compared with: MF-GPOEO's, Optuna's samplers, and random choice."""

from __future__ import annotations

from typing import Any

import numpy as np

from workbench.search.clocks import make
from workbench.search.clocks.make import ClockSearch
from workbench.search.objective import Objective
from workbench.search.space import SettingSpace

from .mf_gpoeo import Feedback
from .optuna_samplers import KINDS, Sampled

NAMES = (*make.NAMES, "mf-gpoeo", *KINDS)


def make_search(
    name: str,
    space: SettingSpace,
    objective: Objective | None = None,
    max_slowdown: float | None = 0.05,
    *,
    rng: np.random.Generator | None = None,
    **options: Any,
) -> ClockSearch:
    """A search by name, the product's or a peer's; `options` as `workbench.search.clocks.make.make_search`
    takes them.

    Args:
        rng: Of the samplers, which alone draw.
    """
    if name in make.NAMES:
        return make.make_search(name, space, objective, max_slowdown, **options)
    known = {key: options[key] for key in ("prior", "counter_update_s", "gpus") if key in options}
    if name == "mf-gpoeo":
        return Feedback(space, objective, max_slowdown, **known)
    return Sampled(space, objective, max_slowdown, kind=name, rng=rng, **known)
