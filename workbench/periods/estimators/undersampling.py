"""Whether sparse readings can separate a period from a faster one that they fold onto it.

Readings every `pace_s` show a period of frequency f and one of k / pace_s + f or k / pace_s - f alike
(Shannon 1949); only readings at uneven moments separate them, those of k = 1 last.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..harmonics import nearest, resolved

Array = np.ndarray[Any, Any]

SLOW_S = 0.9  # a pace from which on most trainings' iterations are faster than two readings can show
ODDS = math.log(1000.0)  # by which the period must fit better than what is faster


def faster_s(time_s: Array, values: Array, period_s: float) -> float | None:
    """The period (s) of something faster that explains readings as well; None where there is none, or where
    they come so fast that little is faster.

    Args:
        time_s: (n,) moments of the readings, rising.
        values: (n,) readings.
        period_s: The reported period, two paces or more.
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
