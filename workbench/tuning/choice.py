"""The best known setting for a job that must keep its slowdown limit as a whole."""

from __future__ import annotations

from ..search.clocks.base import Choice
from ..search.clocks.posterior import SettingPosterior
from .params import PARAMS
from .results import Saved


def best(
    belief: SettingPosterior, bound: float | None, saved: Saved | None, *, common: float
) -> Choice:
    """The best known setting; farther inside the limit where it is uncertain or the job is behind.

    Args:
        belief: Estimates of settings.
        bound: Slowdown limit; None for none.
        saved: The saving and slowdown of the job so far.
        common: Relative error of times that all settings share.
    """
    if bound is None:
        return belief.choice(None)
    allowed = PARAMS.aim * bound - lost(saved, bound) - common
    choice = belief.choice(max(allowed, 0.0))
    if choice.setting != belief.space.reference:
        choice = belief.choice(max(allowed - PARAMS.caution * choice.time_sd, 0.0))
    return choice


def lost(saved: Saved | None, bound: float) -> float:
    """Share of time by which iterations must be faster than the bound, for the whole job to keep it."""
    if saved is None:
        return 0.0
    would_s = saved.time_s / (1.0 + saved.slowdown)
    lost_s = (saved.slowdown - PARAMS.aim * bound) * would_s
    return max(lost_s, 0.0) / max(PARAMS.make_up_s, 0.25 * would_s)
