"""Searches that the product is compared with: GPOEO's, MF-GPOEO's, Optuna's samplers, and random choice."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from workbench.records import Configuration, Observation
from workbench.search.clocks.effects import ladders
from workbench.search.clocks.gpoeo import Gpoeo
from workbench.search.objective import Objective
from workbench.search.space import SettingSpace

from .mf_gpoeo import Feedback
from .optuna_samplers import KINDS, Sampled

NAMES = ("gpoeo", "mf-gpoeo", *KINDS)


def make_search(
    name: str, space: SettingSpace, objective: Objective | None = None, max_slowdown: float | None = 0.05, *,
    prior: Any = None, rng: np.random.Generator | None = None,
) -> Gpoeo:
    """A search by one of `NAMES` for a job with counted iterations; only the samplers draw from `rng`."""
    makers: dict[str, Any] = {"gpoeo": Gpoeo, "mf-gpoeo": Feedback}
    make = makers.get(name) or partial(Sampled, kind=name, rng=rng)
    rungs = ladders(space, float(space.max_sm_clock_mhz or 1), space.max_power_limit_w or 1.0)
    most = np.full(len(space), np.inf)
    search: Gpoeo = make(rungs, most, objective, max_slowdown, space=space, prior=prior)
    search.count(True)
    return search


def report(
    search: Gpoeo, row: int, count: float, time_s: float, energy_j: float, energy_sd_j: float = 0.0
) -> None:
    """A trial of so many iterations. Not `Descent.tell`: no peer notices that the work changes."""
    at_s = search.now_s + 0.5 * time_s
    at = Configuration(search.rungs.settings[row])
    search.blocks.append(Observation(at, count, time_s, energy_j, energy_sd_j, at_s=at_s))
    search.now_s += time_s
