"""Numbers as panels say them: per cent with a sign, periods, units with a prefix."""

from __future__ import annotations

import math

MINUS = "\N{MINUS SIGN}"
PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "µ"))


def percent(share: float, error: float | None = None, digits: int = 1) -> str:
    """A share in per cent with its sign, and with an error where there is one.

    >>> percent(-0.1834, 0.0072), percent(0.0), percent(-0.37, digits=0)
    ('−18.3 % ± 0.7', '+0.0 %', '−37 %')
    """
    number = f"{100 * share + 0.0:+.{digits}f} %".replace("-", MINUS)
    known = error is not None and math.isfinite(error)
    return f"{number} ± {100 * (error or 0.0):.{digits}f}" if known else number


def period(seconds: float, uncertainty_s: float | None = None) -> str:
    """A period, with its uncertainty where that is known.

    >>> period(0.4123, 0.0031), period(12.34, 0.21), period(0.5)
    ('412.3 ± 3.1 ms', '12.34 ± 0.21 s', '500 ms')
    """
    unit, scale = ("ms", 1000.0) if seconds < 0.9995 else ("s", 1.0)
    if uncertainty_s is None:
        return f"{seconds * scale:.3g} {unit}"
    error = max(uncertainty_s * scale, 1e-3)
    digits = min(max(1 - math.floor(math.log10(error)), 0), 3)
    return f"{seconds * scale:.{digits}f} ± {error:.{digits}f} {unit}"


def prefixed(value: float, unit: str) -> tuple[float, str]:
    """The power of 1000 that a value is best told in, and the unit with its prefix; whole seconds stay
    seconds.

    >>> prefixed(52_000.0, "J"), prefixed(0.02, "s"), prefixed(5000.0, "s")
    ((1000.0, 'kJ'), (0.001, 'ms'), (1.0, 's'))
    """
    if value > 0 and math.isfinite(value):
        for scale, prefix in PREFIXES:
            if value >= scale and not (unit == "s" and scale > 1):
                return scale, prefix + unit
    return 1.0, unit
