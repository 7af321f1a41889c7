"""What energy is worth: its price and its carbon."""

from __future__ import annotations

import math
from dataclasses import dataclass

J_PER_KWH = 3.6e6
MOST_DIGITS = 4  # of a value with an error: comparisons on one card need no more


@dataclass(frozen=True)
class Tariff:
    """What energy is worth; parts that are None are not shown."""

    price_per_kwh: float | None = None
    currency: str = "EUR"
    g_co2_per_kwh: float | None = None

    def text(self, energy_j: float | None) -> str:
        """Money and CO2 of an energy, as far as they are configured."""
        if energy_j is None:
            return ""
        kwh, parts = energy_j / J_PER_KWH, []
        if self.price_per_kwh is not None:
            parts.append(f"{_worth(kwh * self.price_per_kwh)} {self.currency}")
        if self.g_co2_per_kwh is not None:
            parts.append(f"{_worth(kwh * self.g_co2_per_kwh)} gCO2")
        return ", ".join(parts)


def _worth(amount: float) -> str:
    """Two digits, as the sensor is good for; below a thousandth only that it is."""
    return significant(amount, 2) if amount >= 0.001 or not amount else "less than 0.001"


NO_TARIFF = Tariff()


def significant(value: float, digits: int = 3) -> str:
    """A number with so many significant digits and no exponent.

    >>> significant(12.412), significant(0.00012345), significant(251234.0), significant(9.999)
    ('12.4', '0.000123', '251234', '10.0')
    """
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    size = math.floor(math.log10(abs(float(f"{value:.{digits}g}"))))  # 9.999 has that of 10.0
    return f"{value:.{min(max(0, digits - 1 - size), 9)}f}"


def with_error(value: float, error: float) -> str:
    """A value and its error to two digits of the error, and to `MOST_DIGITS` of the value at most; an error
    that is smaller than that is rounded up.

    >>> with_error(123.4321, 1.8342), with_error(62.72011, 0.00036)
    ('123.4 ± 1.8', '62.72 ± 0.01')
    """
    if not math.isfinite(value + error):
        return f"{value:g} ± {error:g}"
    decimals = max(0, min(9, 1 - math.floor(math.log10(error))))
    if value:
        most = max(0, MOST_DIGITS - 1 - math.floor(math.log10(abs(value))))
        if most < decimals:
            decimals, error = most, math.ceil(error * 10**most) / 10**most
    return f"{value:.{decimals}f} ± {error:.{decimals}f}"
