"""Numbers in panels: units with a prefix."""

from __future__ import annotations

import math

PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "µ"))


def prefixed(value: float, unit: str) -> tuple[float, str]:
    """The best power of 1000 for a value, and the unit with its prefix; whole seconds stay seconds.

    >>> prefixed(52_000.0, "J"), prefixed(0.02, "s"), prefixed(5000.0, "s")
    ((1000.0, 'kJ'), (0.001, 'ms'), (1.0, 's'))
    """
    if value > 0 and math.isfinite(value):
        for scale, prefix in PREFIXES:
            if value >= scale and not (unit == "s" and scale > 1):
                return scale, prefix + unit
    return 1.0, unit
