"""Searches that the product is compared with: Optuna's samplers, and random choice."""

from __future__ import annotations

from typing import Any

from workbench.search.clocks import make
from workbench.search.clocks.make import ClockSearch
from workbench.search.objective import Objective
from workbench.search.space import SettingSpace

from .optuna_samplers import KINDS, Sampled

NAMES = (*make.NAMES, *KINDS)


def make_search(
    name: str,
    space: SettingSpace,
    objective: Objective | None = None,
    max_slowdown: float | None = 0.05,
    **options: Any,
) -> ClockSearch:
    """A search by name, the product's or a peer's; `options` as `workbench.search.clocks.make.make_search`
    takes them.
    """
    if name not in KINDS:
        return make.make_search(name, space, objective, max_slowdown, **options)
    known = {key: options[key] for key in ("prior", "counter_update_s", "gpus", "rng") if key in options}
    return Sampled(space, objective, max_slowdown, kind=name, **known)
