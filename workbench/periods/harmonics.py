"""Least-squares fits of a period's harmonics to readings at uneven times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def waves(time_s: Array, frequency: float, harmonics: Sequence[int]) -> Array:
    """One row per reading: 1, then each harmonic's cosine, then each one's sine, of a frequency (1/s)."""
    angle = 2 * np.pi * frequency * np.outer(time_s, harmonics)
    return np.column_stack([np.ones(len(time_s)), np.cos(angle), np.sin(angle)])


def fit(time_s: Array, values: Array, frequency: float, harmonics: Sequence[int]) -> tuple[Array, float]:
    """The coefficients of `waves` that fit the values best, and the sum of squares that they leave.

    Args:
        time_s: (n,).
        values: (n,).
        frequency: In 1/s.
        harmonics: Multiples of the frequency.
    """
    columns = waves(time_s, frequency, harmonics)
    found = np.linalg.lstsq(columns, values, rcond=None)[0]
    rest = values - columns @ found
    return found, float(rest @ rest)
