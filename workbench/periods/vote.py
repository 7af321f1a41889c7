"""One answer from several GPUs of one job: the evidence of one GPU resolves the doubt of another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from ..records import DetectedPeriod, Periods
from .detect import CYCLE_SURE, ROLE_SURE

# Tuned constants of the vote, set manually.
SAME_PERIOD = 0.05  # of the longer of two equal periods: detectors are scored with the same tolerance


def same(a_s: float, b_s: float) -> bool:
    """Whether two answers mean the same period."""
    return abs(a_s - b_s) <= SAME_PERIOD * max(a_s, b_s)


def vote(founds: Sequence[Periods]) -> Periods:
    """The joint answer of the GPUs of one job: the surest one, unless another GPU is as sure of another
    period.

    If no single GPU is sure of a period, it is sure if most of them show it. Its role is sure if they agree
    on that, too.

    Args:
        founds: One answer of `find_periods` per GPU, at least one.
    """
    best = max(founds, key=_certainty)
    if len(founds) == 1 or best.main is None:
        return best
    for other in founds:
        if other.role_sure and best.role_sure and not _same(other.main, best.main):
            assert other.main is not None
            both = f"{best.main.period_s:.3g} s and {other.main.period_s:.3g} s"
            return replace(best, sure=False, cycle_sure=False, longer_s=0.0,
                           reason=f"the GPUs of the job do not agree: {both}")
    if best.role_sure:
        return best
    shown = [level for found in founds for level in found.levels if _same(level, best.main)]
    if 2 * len(shown) <= len(founds):
        return best
    if fmean(level.period_confidence for level in shown) < ROLE_SURE:
        return best
    # only GPUs with this level: other answers would refer to another of their levels
    agreed = [(found, found.main) for found in founds if found.main and _same(found.main, best.main)]
    owner, level = max(agreed, key=lambda each: each[1].confidence)
    role = sum(each.role for each in shown if each.name == level.name) / len(shown)
    least = CYCLE_SURE if level.name == "cycle" else ROLE_SURE
    sure = role >= least
    return replace(owner, steady=True, sure=sure and level.name == "iteration",
                   cycle_sure=sure and level.name == "cycle", reason="" if sure else owner.reason)


def _certainty(found: Periods) -> tuple[bool, bool, float, float]:
    level = found.main
    return (found.role_sure, found.main_sure, level.period_confidence if level else 0.0,
            level.confidence if level else 0.0)


def _same(a: DetectedPeriod | None, b: DetectedPeriod | None) -> bool:
    return a is not None and b is not None and same(a.period_s, b.period_s)
