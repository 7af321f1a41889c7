"""Detects whether slow readings can separate a period from a faster one that they alias onto it.

Readings at equal intervals `pace_s` cannot separate frequency f from k / pace_s + f or k / pace_s - f
(Shannon 1949). Only readings at unequal intervals can, with k = 1 as the most difficult case.
"""

from __future__ import annotations

import math

import numpy as np

from ..harmonics import nearest, resolved

Array = np.ndarray

SLOW_S = 0.9  # interval from which on most trainings' iterations are too fast for two readings
ODDS = math.log(1000.0)  # by which the period must fit better than a faster one


def faster_s(time_s: Array, values: Array, period_s: float) -> float | None:
    """The faster period (s) that explains readings as well. None if there is none, or if the readings are so
    fast that few periods are faster.

    Args:
        time_s: (n,) moments of the readings, ascending.
        values: (n,) readings.
        period_s: The period to check, at least two intervals of the readings.
    """
    pace_s = float(np.median(np.diff(time_s)))
    if pace_s < SLOW_S:
        return None
    harmonics = resolved(period_s, pace_s)
    own = nearest(time_s, values, 1 / period_s, harmonics)
    faster = (1 / pace_s + 1 / period_s, 1 / pace_s - 1 / period_s)
    best = min((nearest(time_s, values, each, harmonics) for each in faster), key=lambda fit: fit.left)
    better = 0.5 * len(time_s) * math.log(max(best.left, 1e-12) / max(own.left, 1e-12))
    return 1 / best.frequency if better < ODDS else None
