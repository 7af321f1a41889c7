"""Energies and durations as text, rounded to their uncertainty."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from ..errors import printable
from ..tariff import significant, with_error

MINUS = "\N{MINUS SIGN}"
SENSOR_ERROR = 0.05  # typical gain error of NVIDIA's power sensors (Yang et al., SC'24, arXiv 2312.02741)
LEAST_HALF = 0.001  # no interval is shown as narrower: temperature alone changes more
MOST_SETTINGS = 4  # that fit into one line or cell


def format_energy(energy_j: float | None, uncertainty_j: float | None) -> str:
    """Joules with their error, rounded to what the error allows.

    >>> format_energy(123.4321, 1.8342), format_energy(0.0213, 0.0004), format_energy(1234567.0, 3210.0)
    ('123.4 ± 1.8 J', '0.02130 ± 0.00040 J', '1.235 ± 0.004 MJ')
    """
    if energy_j is None:
        return "no energy"
    scale, unit = (1e6, "MJ") if energy_j >= 1e6 else (1e3, "kJ") if energy_j >= 1e3 else (1.0, "J")
    value = energy_j / scale
    if uncertainty_j is None:
        return f"{significant(value)} {unit}"
    return f"{with_error(value, max(uncertainty_j / scale, 1e-9))} {unit}"


def format_measured(energy_j: float | None, uncertainty_j: float | None) -> str:
    """Joules of one measurement, with the error of the card's sensor and the 95 % error of the reading.

    The sensor's error is common to all measurements on a card, so comparisons on one card do not have it.

    >>> format_measured(2696.37, 0.11), format_measured(3.0, 250.0)
    ('2.70 kJ (sensor ± 5 %, reading ± 0.1 %)', '3 ± 250 J (sensor ± 5 %)')
    """
    sensor = f"sensor ± {100 * SENSOR_ERROR:g} %"
    if energy_j is None or uncertainty_j is None or not 0 <= uncertainty_j < 0.5 * energy_j:
        value = format_energy(energy_j, uncertainty_j)
        return value if energy_j is None else f"{value} ({sensor})"
    percent = 100 * max(uncertainty_j / energy_j, LEAST_HALF)
    reading = significant(percent, 2 if percent >= 1 else 1)
    return f"{format_energy(energy_j, None)} ({sensor}, reading ± {reading} %)"


def format_duration(seconds: float) -> str:
    """A duration as text.

    >>> format_duration(0.01234), format_duration(9.98), format_duration(754.0), format_duration(7384.0)
    ('12.3 ms', '9.98 s', '12 min 34 s', '2 h 3 min')
    """
    if seconds < 0.1:
        return f"{1000 * seconds:.3g} ms"
    if seconds < 120:
        return f"{seconds:.3g} s" if seconds < 100 else f"{seconds:.0f} s"
    minutes = int(seconds // 60)
    if minutes < 100:
        return f"{minutes} min {int(seconds % 60)} s"
    return f"{minutes // 60} h {minutes % 60} min"


def format_seconds(seconds: float, uncertainty_s: float | None = None) -> str:
    """A duration with its error, in milliseconds below a second.

    >>> format_seconds(0.4123, 0.0031), format_seconds(12.34, 0.21), format_seconds(0.5, None)
    ('412.3 ± 3.1 ms', '12.34 ± 0.21 s', '500 ms')
    """
    scale, unit = (1e3, "ms") if seconds < 0.9995 else (1.0, "s")  # which would read as 1000 ms
    if uncertainty_s is None:
        return f"{significant(scale * seconds)} {unit}"
    return f"{with_error(scale * seconds, max(scale * uncertainty_s, 1e-3))} {unit}"


def format_change(share: float, half: float | None = None, digits: int = 1) -> str:
    """A share in per cent with its sign, and with its 95 % half width, of at least a tenth of a per cent.

    >>> format_change(-0.1234, 0.0041), format_change(0.031), format_change(-0.37, digits=0)
    ('−12.3 ± 0.4 %', '+3.1 %', '−37 %')
    """
    error = ""
    if half and math.isfinite(half):
        digits = 1 if half < 0.0995 else 0
        error = f" ± {100 * max(half, LEAST_HALF):.{digits}f}"
    return f"{100 * share + 0.0:+.{digits}f}{error} %".replace("-", MINUS)


def student_half_width(sd: float, count: int) -> float:
    """Half width of the 95 % interval of a mean of `count` >= 2 values, by Student from their deviation.

    >>> round(student_half_width(1.0, 10), 3)
    0.715
    """
    from scipy.special import stdtrit

    return float(stdtrit(count - 1, 0.975)) * sd / math.sqrt(count)


def gpu_names(names: Iterable[str]) -> str:
    """Names of GPUs with how often there are.

    >>> gpu_names(["A100 (simulated)", "A100 (simulated)", "V100"])
    '2 x A100 + V100'
    """
    listed = [name.removesuffix(" (simulated)") for name in names]
    return " + ".join(f"{listed.count(name)} x {name}" if listed.count(name) > 1 else name
                      for name in dict.fromkeys(listed))


def as_columns(heads: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    """A table in columns of equal width."""
    cells = [[printable(cell) for cell in line] for line in cells]
    widths = [max(len(cell) for cell in column) for column in zip(heads, *cells, strict=True)]
    lines = ["  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip()
             for line in (heads, *cells)]
    return "\n".join(lines)
