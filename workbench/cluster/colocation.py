"""Slowdown of trainings that share a GPU: from measured sets first, then from measured pairs, then from a
prior.

CUDA time-slices between processes. `excess` is the relative growth of the iteration time: 0.08 means 8 %
longer than alone. The prediction for an unseen pair only filters candidates (docs/validation/cluster.md). The
measurement of the first shared epoch decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TypeVar

from .power import UNIT

SLOPE = 0.078
K = TypeVar("K")


@dataclass(frozen=True)
class Profile:
    """A class of jobs: its model, and its utilisation alone in units of 1/10,000."""

    model: str
    load: int


def prior(count: int, load: int) -> float:
    """Excess of each of `count` jobs whose solo utilisations sum to `load` units.

    0.078 (n - 1) sum U fits the ten sets of EaCO's tables 1 and 3 with 0.8 points RMSE, worst 1.7 (arXiv
    2412.08294).

    >>> round(prior(2, 8462), 4)
    0.066
    """
    return SLOPE * (count - 1) * load / UNIT


# Mean job completion time together over the mean of the same jobs alone, EaCO tables 1 and 3.
PUBLISHED: dict[tuple[str, ...], float] = {
    ("AlexNet", "ResNet-50"): 36.63 / 35.385 - 1,
    ("AlexNet", "VGG-16"): 36.51 / 35.445 - 1,
    ("ResNet-18", "VGG-16"): 37.01 / 35.63 - 1,
    ("AlexNet", "ResNet-18", "ResNet-50"): 38.28 / 35.30 - 1,
    ("AlexNet", "ResNet-18", "VGG-16"): 38.26 / 35.34 - 1,
    ("AlexNet", "ResNet-18", "ResNet-50", "VGG-16"): 44.21 / 35.5075 - 1,
}


def excess_of_pairs(jobs: Sequence[K], known: Callable[[tuple[K, K]], float | None]) -> float | None:
    """Mean excess of these jobs, each slowed by all others as in their pairs; None where one is unknown."""
    times = [1.0] * len(jobs)
    for i, j in combinations(range(len(jobs)), 2):
        excess = known((jobs[i], jobs[j]))
        if excess is None:
            return None
        times[i] *= 1 + excess
        times[j] *= 1 + excess
    return sum(times) / len(times) - 1


class Colocation:
    """Excess of a set of models: measured for the set, else the product of measured pairs, else `prior`.

    Args:
        measured: Excess by sorted tuple of model names.
    """

    def __init__(self, measured: dict[tuple[str, ...], float] | None = None) -> None:
        self.measured = dict(PUBLISHED if measured is None else measured)

    def excess(self, members: Sequence[Profile]) -> float:
        """Mean excess of the jobs of a set."""
        if len(members) < 2:
            return 0.0
        names = tuple(sorted(member.model for member in members))
        if names in self.measured:
            return self.measured[names]
        pairs = excess_of_pairs(names, self.measured.get)
        return prior(len(names), sum(member.load for member in members)) if pairs is None else pairs


class Mix:
    """The jobs of one GPU as a multiset of profiles. Equal multisets are the same object, so removing an
    added job restores a GPU exactly.

    Attributes:
        key: Sorted profile numbers.
        size: Number of jobs.
        load: Sum of their solo utilisations in units; `used` is the utilisation of the GPU, at most 1.
        excess: Relative growth of the iteration time here, for a job of average sensitivity.
    """

    __slots__ = ("add", "drop", "excess", "key", "load", "size", "used")

    def __init__(self, key: tuple[int, ...], load: int, excess: float) -> None:
        self.key, self.size, self.load, self.excess = key, len(key), load, excess
        self.used = min(load, UNIT)
        self.add: dict[int, Mix] = {}
        self.drop: dict[int, Mix] = {}


class Mixes:
    """All mixes met so far, linked by the addition and removal of one job."""

    # Otherwise a log in which every job has its own utilisation would keep every set that ever existed.
    LIMIT = 100_000

    def __init__(self, profiles: list[Profile], colocation: Colocation) -> None:
        self.profiles, self.colocation = profiles, colocation
        self.empty = Mix((), 0, 0.0)
        self._known: dict[tuple[int, ...], Mix] = {(): self.empty}

    def grown(self, mix: Mix, profile: int) -> Mix:
        """`mix` with one more job of this profile."""
        found = mix.add.get(profile)
        if found is None:
            found = mix.add[profile] = self.of(tuple(sorted((*mix.key, profile))))
        return found

    def shrunk(self, mix: Mix, profile: int) -> Mix:
        """`mix` without one job of this profile."""
        found = mix.drop.get(profile)
        if found is None:
            at = mix.key.index(profile)
            found = mix.drop[profile] = self.of(mix.key[:at] + mix.key[at + 1 :])
        return found

    def of(self, key: tuple[int, ...]) -> Mix:
        mix = self._known.get(key)
        if mix is None:
            if len(self._known) >= self.LIMIT:
                for known in self._known.values():
                    known.add.clear()
                    known.drop.clear()
                self._known = {(): self.empty}
            members = [self.profiles[number] for number in key]
            load = sum(member.load for member in members)
            mix = self._known[key] = Mix(key, load, self.colocation.excess(members))
        return mix


class History:
    """A policy's estimate of excess: means over measured sets, then products of measured pairs, then the
    prior.

    Args:
        profiles: Profiles by number, as mixes refer to them.
        start: Estimates before the first measurement; EaCO begins with its experiments.
    """

    def __init__(self, profiles: list[Profile], start: Colocation | None = None) -> None:
        self._start = start or Colocation()
        self._profiles = profiles
        self._sums: dict[tuple[int, ...], list[float]] = {}
        self._guess: dict[tuple[int, ...], float] = {}

    def predict(self, mix: Mix) -> float:
        """Expected excess of a job in this mix."""
        if mix.size < 2:
            return 0.0
        guess = self._mean(mix.key)
        if guess is None:
            guess = self._guess.get(mix.key)
        if guess is None:
            if len(self._guess) >= Mixes.LIMIT:
                self._guess.clear()
            guess = excess_of_pairs(mix.key, self._mean)
            if guess is None:
                guess = self._start.excess([self._profiles[number] for number in mix.key])
            self._guess[mix.key] = guess
        return guess

    def learn(self, mix: Mix, excess: float) -> None:
        """Record the measured excess of one job in this mix."""
        # The prediction counts as one measurement: a single job's sensitivity is not the set's.
        known = self._sums.setdefault(mix.key, [1.0, self.predict(mix)])
        known[0] += 1
        known[1] += excess
        if mix.size == 2:  # larger sets are predicted from their pairs
            self._guess.clear()

    def _mean(self, key: tuple[int, ...]) -> float | None:
        known = self._sums.get(key)
        return None if known is None else known[1] / known[0]
