"""Whether readings far apart can tell a period from something faster that they fold onto it.

Readings every `pace_s` show a rhythm of frequency f and one of k / pace_s + f or k / pace_s - f alike
(Shannon 1949); only readings at uneven moments tell them apart, those of k = 1 last.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..harmonics import fit

Array = np.ndarray[Any, Any]

SLOW_S = 0.9  # a pace from which on most trainings' iterations are faster than two readings can show
ODDS = math.log(1000.0)  # by which the period must fit better than what is faster
HARMONICS = 3
REFINED = np.linspace(-1.0, 1.0, 9)  # frequencies that are tried, in steps of one turn over the whole trace


def faster_s(time_s: Array, values: Array, period_s: float) -> float | None:
    """The period (s) of something faster that explains readings as well; None where there is none, or where
    they come so fast that little is faster.

    Args:
        time_s: (n,) moments of the readings, rising.
        values: (n,) readings.
        period_s: What they are said to repeat with, two paces or more.
    """
    pace_s = float(np.median(np.diff(time_s)))
    if pace_s < SLOW_S:
        return None
    harmonics = int(np.clip(period_s / (2 * pace_s), 1, HARMONICS))
    own = _unexplained(time_s, values, 1 / period_s, harmonics)
    best_s, least = math.inf, math.inf
    for sign in (1, -1):
        frequency = 1 / pace_s + sign / period_s
        left = _unexplained(time_s, values, frequency, harmonics)
        if left < least:
            best_s, least = 1 / frequency, left
    return best_s if 0.5 * len(time_s) * math.log(max(least, 1e-12) / max(own, 1e-12)) < ODDS else None


def _unexplained(time_s: Array, values: Array, frequency: float, harmonics: int) -> float:
    """The share of the values' variance that harmonics of (near) a frequency (1/s) leave."""
    centred = values - values.mean()
    from_start_s = time_s - time_s[0]
    tried = frequency + REFINED / float(from_start_s[-1])
    left = min(fit(from_start_s, centred, each, range(1, harmonics + 1))[1] for each in tried)
    return left / max(float(centred @ centred), 1e-300)
