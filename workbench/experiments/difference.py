"""How much two ways of working differ, from runs that take turns: least squares with temperature and drift.

    log(value) = a + b*way + c*temperature + d*order + e*order^2 + noise

`b` is the result. The temperature is the GPU's when a run begins: what the run before left behind, and
none of the run's own doing. Order stands for drift. A term that the runs cannot separate from the variants is
left out, with a note. Pure functions over arrays; a run is a row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtrit

from .._html import HtmlFacts
from ..errors import UsageError

LEAST_PAIRS = 5
POWER = 0.9
# Whoever looks after every pair and stops when the interval is narrow stops too soon, when the noise happens
# to look small; a wider quantile, by this over the degrees of freedom, makes up for it. Chosen on normal
# noise of 0.5 to 2 % with the thermal models of `benchmarks.fixtures.thermal.CHOSEN_ON`.
LOOKING = 0.7
CONFOUNDED = 0.7  # share of the ways' variance that a term may explain
TOO_WIDE = 10.0  # an interval up to so many times as much says nothing
FREE = 3  # degrees of freedom that terms must leave


@dataclass(frozen=True)
class Ratio(HtmlFacts):
    """How many times as much the second way takes: 0.88 is 12 % less.

    Attributes:
        value: The estimate; nan where there are too few runs.
        low, high: Its 95 % interval.
        degrees: Degrees of freedom that the interval rests on.
        notes: Terms that had to be left out.
    """

    value: float
    low: float
    high: float
    degrees: int = 0
    notes: tuple[str, ...] = ()

    @property
    def significant(self) -> bool:
        """Whether 1 is outside of the interval."""
        return self.high < 1.0 or self.low > 1.0

    def __str__(self) -> str:
        """In percent, with the interval: "-12.3 % (-13.1 to -11.4 %)"."""
        if not self.high < TOO_WIDE:
            return "not known yet (too few runs)"
        if not self.significant:
            return "no measurable difference"
        value, low, high = (100 * (each - 1) for each in (self.value, self.low, self.high))
        digits = min(max(-math.floor(math.log10(max(high - low, 1e-9))), 0), 1)
        return f"{value:+.{digits}f} % ({low:+.{digits}f} to {high:+.{digits}f} %)"


UNKNOWN = Ratio(math.nan, 0.0, math.inf)


def order(seed: int | None = None) -> Iterator[int]:
    """Whose turn it is, 0 or 1, without end: blocks of 0 1 1 0 or 1 0 0 1 at random, which a drift that is
    steady over four runs cannot favour.
    """
    draw = np.random.default_rng(seed)
    while True:
        first = int(draw.integers(2))
        yield from (first, 1 - first, 1 - first, first)


def difference(
    way: ArrayLike, values: ArrayLike, temperature_c: ArrayLike | None = None, *, sequential: bool = False
) -> Ratio:
    """The ratio of the second way's values to the first's, other things being equal.

    Args:
        way: (n,) of 0 and 1, in the order in which the runs were made.
        values: (n,) of joules or seconds, above zero.
        temperature_c: (n,) when each run began; nan where unknown.
        sequential: Whether the interval was tested after every pair, to stop when it is narrow.

    Raises:
        UsageError: values that are no numbers above zero, or arrays of different lengths.
    """
    fit = _fit(way, values, temperature_c)
    if fit is None:
        return UNKNOWN
    log_ratio, error, degrees, notes = fit
    half = error * _quantile(degrees, 0.975, sequential)
    return Ratio(math.exp(log_ratio), math.exp(log_ratio - half), math.exp(log_ratio + half), degrees, notes)


def enough(
    way: ArrayLike, values: ArrayLike, temperature_c: ArrayLike | None, min_effect: float
) -> bool:
    """Whether a difference of `min_effect` (0.02 is 2 %) would be found with a probability of 0.9; a far
    larger one that was found needs to be known to a third of itself only.

    Args:
        way: (n,) of 0 and 1, in the order of the runs.
        values: (n,) of joules or seconds.
        temperature_c: (n,) when each run began; nan where unknown, None where no run has one.
        min_effect: The relative difference worth finding.
    """
    fit = _fit(way, values, temperature_c)
    if fit is None or min(np.bincount(np.asarray(way, int), minlength=2)) < LEAST_PAIRS:
        return False
    log_ratio, error, degrees, _ = fit
    wide = error * (_quantile(degrees, 0.975, True) + _quantile(degrees, POWER, True))
    return bool(wide <= max(math.log1p(min_effect), 0.3 * abs(log_ratio)))


def _quantile(degrees: int, share: float, sequential: bool) -> float:
    return float(stdtrit(degrees, share)) * (1 + (LOOKING / degrees if sequential else 0.0))


def _fit(
    way: ArrayLike, values: ArrayLike, temperature_c: ArrayLike | None
) -> tuple[float, float, int, tuple[str, ...]] | None:
    """Log ratio, its standard error, degrees of freedom, notes; None where there are too few runs."""
    ways, known = np.asarray(way, float), np.asarray(values, float)
    if ways.shape != known.shape or ways.ndim != 1:
        raise UsageError(f"each run has a way and a value; there are {ways.size} and {known.size}")
    if not (np.isfinite(known).all() and (known > 0).all()):
        raise UsageError("joules and seconds that are compared are numbers above 0; leave out runs without")
    if len(ways) < FREE or min(np.sum(ways == 0), np.sum(ways == 1)) < 1:
        return None
    columns, notes = _columns(ways, temperature_c)
    design, logs = np.stack(columns, 1), np.log(known)
    free = len(logs) - design.shape[1]
    solved = np.linalg.lstsq(design, logs, rcond=None)[0]
    variance = float(np.sum((logs - design @ solved) ** 2)) / free
    error = math.sqrt(variance * float(np.linalg.inv(design.T @ design)[1, 1]))
    return float(solved[1]), error, free, tuple(notes)


def _columns(ways: np.ndarray, temperature_c: ArrayLike | None) -> tuple[list[np.ndarray], list[str]]:
    """The columns of the fit: ones, ways, and each further term that the runs can tell from these."""
    count = len(ways)
    along = np.linspace(-1.0, 1.0, count)
    warm = np.full(count, np.nan) if temperature_c is None else np.asarray(temperature_c, float)
    columns, notes = [np.ones(count), ways - 0.5], []
    for name, term in (("temperature", warm), ("drift", along), ("", along**2)):
        if not np.isfinite(term).all() or np.ptp(term) == 0 or count - len(columns) - 1 < FREE:
            continue
        rest = _residual(term - term.mean(), columns)
        if np.std(rest) < 1e-6 * np.std(term):
            continue
        if np.std(_residual(columns[1], [columns[0], *columns[2:], term])) ** 2 < (1 - CONFOUNDED) / 4:
            if name:
                notes.append(f"{name} cannot be separated from the difference: the runs did not alternate")
            continue
        columns.append(term - term.mean())
    return columns, notes


def _residual(values: np.ndarray, columns: Sequence[np.ndarray]) -> np.ndarray:
    """What is left of values that other columns explain."""
    design = np.stack(columns, 1)
    rest: np.ndarray = values - design @ np.linalg.lstsq(design, values, rcond=None)[0]
    return rest
