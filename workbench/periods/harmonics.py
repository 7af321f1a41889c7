"""Periodicity of readings at uneven times: the first harmonics of a period, fitted by least squares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

Array = np.ndarray

MOST = 3  # harmonics: any number from two to four gives the same figures
STEPS = 2.5  # shortest period of a harmonic, in intervals of the readings: at two the fit is nearly singular
NEARBY_CYCLES = np.linspace(-0.5, 0.5, 11)  # frequencies near another one, in cycles over all readings


class HarmonicFit(NamedTuple):
    """Harmonics fitted to readings."""

    frequency: float  # of the first one, in 1/s
    coefficients: Array  # of `waves`
    left: float  # residual share of the readings' variance


def resolved(seconds: float, step_s: float) -> list[int]:
    """The first harmonics of a period that readings `step_s` apart can show; at least the first one."""
    return list(range(1, int(np.clip(seconds / (STEPS * step_s), 1, MOST)) + 1))


def waves(time_s: Array, frequency: float, harmonics: Sequence[int]) -> Array:
    """One row per reading: 1, then each harmonic's cosine, then each one's sine, of a frequency (1/s)."""
    angle = 2 * np.pi * frequency * np.outer(time_s, harmonics)
    return np.column_stack([np.ones(len(time_s)), np.cos(angle), np.sin(angle)])


def fit(time_s: Array, values: Array, frequency: float, harmonics: Sequence[int]) -> HarmonicFit:
    """The harmonics of a frequency that fit the readings best; times count from the first reading.

    Args:
        time_s: (n,).
        values: (n,).
        frequency: In 1/s.
        harmonics: Multiples of the frequency.
    """
    columns = waves(time_s - time_s[0], frequency, harmonics)
    found = np.linalg.lstsq(columns, values, rcond=None)[0]
    left = float(np.mean((values - columns @ found) ** 2)) / max(float(np.var(values)), 1e-300)
    return HarmonicFit(frequency, found, left)


def nearest(time_s: Array, values: Array, frequency: float, harmonics: Sequence[int]) -> HarmonicFit:
    """The best fit within half a cycle (over all readings) of a frequency.

    Args:
        time_s: (n,).
        values: (n,).
        frequency: In 1/s.
        harmonics: Multiples of the frequency.
    """
    tried = frequency + NEARBY_CYCLES / float(time_s[-1] - time_s[0])
    return min((fit(time_s, values, each, harmonics) for each in tried), key=lambda found: found.left)


def unexplained(time_s: Array, values: Array, frequencies: Array, harmonics: Sequence[int]) -> Array:
    """The residual share of the values' variance for harmonics of each frequency (m,), (m,).

    Args:
        time_s: (n,).
        values: (n,).
        frequencies: (m,) in 1/s.
        harmonics: Multiples of each frequency.
    """
    return np.array([fit(time_s, values, each, harmonics).left for each in frequencies])


def amplitudes(found: HarmonicFit) -> Array:
    """The amplitude of each harmonic."""
    cosines, sines = np.split(found.coefficients[1:], 2)
    return np.hypot(cosines, sines)
