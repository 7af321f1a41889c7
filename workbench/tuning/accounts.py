"""What every stretch of a tuned job took, and what was saved against its baselines, tuning included."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from ..measurement.meter import Meter
from ..records import Setting
from .iteration_sources import Count, Counter, Guess, IterationSource, MarkSource
from .probe import PARAMS as PROBE_PARAMS
from .probe import Reading, energy
from .results import Saved


@dataclass(frozen=True, slots=True)
class SavingsAccountParams:
    """Tuned constants of `SavingsAccounts`; set by hand, `benchmarks.clocks --only online` scores them."""

    # relative error of a baseline that no length of measuring takes away
    baseline_sd: float = 0.002


PARAMS = SavingsAccountParams()


TUNING = ("baseline", "probe", "re-check")


@dataclass(frozen=True, slots=True)
class Stretch:
    """Iterations at one setting; a 95 % half width with the energy, a relative standard error with the number
    of iterations.

    `common_sd` is the part of that error that all stretches at the setting share.
    """

    kind: str  # "baseline", "probe", "re-check", "paused" or "held"
    setting: Setting
    iterations: float
    time_s: float
    energy_j: float
    energy_uncertainty_j: float = 0.0
    count_sd: float = 0.0
    common_sd: float = 0.0

    @property
    def iteration_s(self) -> float:
        return self.time_s / self.iterations

    @property
    def power_w(self) -> float:
        return self.energy_j / self.time_s


@dataclass
class SavingsAccount:
    """One workload: its baselines, and sums over its stretches."""

    baselines: list[Reading] = field(default_factory=list)
    iterations: float = 0.0
    time_s: float = 0.0
    energy_j: float = 0.0
    own_variance: float = 0.0  # of the stretches' energies
    count_variance: float = 0.0  # of their numbers of iterations
    common: float = 0.0  # iterations that all of them may be off by together

    def baseline(self) -> tuple[float, float, float, float]:
        """Time and energy of an iteration at the default setting, and their relative standard errors."""
        times = [(r.iteration_s, max(r.sd_s / r.iteration_s, PARAMS.baseline_sd)) for r in self.baselines]
        energies = [(r.iteration_j, max(r.energy_sd, PARAMS.baseline_sd)) for r in self.baselines]
        return (*_pooled(times), *_pooled(energies))

    def add(self, stretch: Stretch) -> None:
        self.iterations += stretch.iterations
        self.time_s += stretch.time_s
        self.energy_j += stretch.energy_j
        self.own_variance += (stretch.energy_uncertainty_j / 1.96) ** 2
        self.count_variance += (stretch.count_sd * stretch.iterations) ** 2
        if stretch.setting != Setting():  # at the default setting the baseline is off by as much
            self.common += stretch.common_sd * stretch.iterations


class SavingsAccounts:
    """All workloads of one tuned job."""

    def __init__(self) -> None:
        self.accounts: list[SavingsAccount] = []
        self.spent_s = self.spent_j = 0.0
        self.iterations = 0.0

    def open(self, reading: Reading) -> None:
        """A new workload, with its first baseline."""
        self.accounts.append(SavingsAccount([reading]))

    def again(self, number: int, reading: Reading) -> None:
        """Workload `number` is back; it goes on in its account."""
        self.accounts.append(self.accounts.pop(number))
        self.check(reading)

    def forget(self) -> None:
        """The present workload was none."""
        self.accounts.pop()

    def check(self, reading: Reading) -> None:
        """Another baseline of the present workload."""
        self.accounts[-1].baselines.append(reading)

    def add(self, stretch: Stretch) -> None:
        """A stretch of the present workload."""
        self.iterations += stretch.iterations
        if stretch.kind in TUNING:
            self.spent_s += stretch.time_s
            self.spent_j += stretch.energy_j
        if self.accounts:
            self.accounts[-1].add(stretch)

    def saved(self) -> Saved | None:
        """What was saved so far; None before any stretch has a baseline."""
        would_j = would_s = took_j = took_s = variance = time_variance = iterations = 0.0
        for account in self.accounts:
            if not account.iterations:
                continue
            time_s, time_sd, energy_j, energy_sd = account.baseline()
            would_j += account.iterations * energy_j
            would_s += account.iterations * time_s
            took_j += account.energy_j
            took_s += account.time_s
            iterations += account.iterations
            counts = account.count_variance + account.common**2
            own = (account.iterations * energy_j * energy_sd) ** 2 + account.own_variance
            variance += own + counts * energy_j**2
            time_variance += (account.iterations * time_s * time_sd) ** 2 + counts * time_s**2
        if not would_j > 0:
            return None
        uncertainty_j = 1.96 * math.sqrt(variance)
        return Saved(would_j - took_j, uncertainty_j, 1.0 - took_j / would_j, uncertainty_j / would_j,
                     took_s / would_s - 1.0, 1.96 * math.sqrt(time_variance) / would_s, iterations, took_s)


def _pooled(values: list[tuple[float, float]]) -> tuple[float, float]:
    """A mean of measured values with their relative errors, weighted by them; the error grows where they
    do not agree.
    """
    weights = [1.0 / (value * sd) ** 2 for value, sd in values]
    total = sum(weights)
    mean = sum(w * value for w, (value, _) in zip(weights, values, strict=True)) / total
    variance = 1.0 / total
    if len(values) > 1:
        chi = sum(w * (value - mean) ** 2 for w, (value, _) in zip(weights, values, strict=True))
        variance *= max(1.0, chi / (len(values) - 1))
    return mean, math.sqrt(variance) / mean


class Piece(NamedTuple):
    """A stretch whose energy is not known yet.

    Attributes:
        count_from_s: Its iterations are timed from here on: the setting was not in force before.
        known: What was measured of its iterations already.
    """

    from_s: float
    to_s: float
    kind: str
    setting: Setting
    guess: Guess
    count_from_s: float
    known: Reading | Count | None


@dataclass(frozen=True, slots=True)
class Counted:
    """A stretch that was counted, and the row of iterations that tells how long they were."""

    stretch: Stretch
    run: Reading | Count


@dataclass
class Pool:
    """Stretches at the held setting that were not reported to the search yet."""

    iterations: float = 0.0
    time_s: float = 0.0
    energy_j: float = 0.0
    variance_j: float = 0.0  # of the energy, from 95 % half widths
    variance_s: float = 0.0  # of the time
    least_s: float = 0.0  # that the next portion takes

    def add(self, stretch: Stretch, run: Reading | Count) -> None:
        self.iterations += stretch.iterations
        self.time_s += stretch.time_s
        self.energy_j += stretch.energy_j
        self.variance_j += stretch.energy_uncertainty_j**2
        self.variance_s += (stretch.iterations * run.sd_s) ** 2

    def next(self) -> Pool:
        """The one after this, twice as long."""
        return Pool(least_s=2.0 * max(self.time_s, self.least_s))


class SavingsLedger:
    """Cuts the time of a running job into stretches, and counts each once its energy is known."""

    def __init__(self) -> None:
        self.cursor_s = math.nan  # up to where the book is kept; nothing is, where NaN
        self._pieces: list[Piece] = []

    @property
    def oldest_s(self) -> float:
        """Since when the trace is needed."""
        cursor_s = math.inf if math.isnan(self.cursor_s) else self.cursor_s
        return min([cursor_s, *(piece.from_s for piece in self._pieces[:1])])

    @property
    def waiting(self) -> float:
        """About how many iterations are not in the book yet."""
        return sum((piece.to_s - piece.from_s) / piece.guess.seconds for piece in self._pieces)

    def begin(self, at_s: float) -> None:
        """Everything counts from here on."""
        self.cursor_s, self._pieces = at_s, []

    def drop(self) -> None:
        """What is not in the book is no part of it."""
        self.begin(math.nan)

    def cut(
        self, to_s: float, kind: str, source: IterationSource | None, setting: Setting, guess: Guess, *,
        count_from_s: float = -math.inf, known: Reading | Count | None = None,
    ) -> None:
        """Everything up to a time was one stretch."""
        if source is None or not to_s > self.cursor_s:
            return
        if isinstance(source, (MarkSource, Counter)):  # borders lie between iterations
            times = source.since(self.cursor_s, to_s)
            if len(times) < 2:
                return
            to_s = float(times[-1])
        begin_s = min(max(self.cursor_s, count_from_s), to_s - 0.25 * (to_s - self.cursor_s))
        self._pieces.append(Piece(self.cursor_s, to_s, kind, setting, guess, begin_s, known))
        self.cursor_s = to_s

    def count(self, meter: Meter, source: IterationSource | None, now_s: float) -> list[Counted]:
        """The oldest stretch that waits, if its energy is known by now: its rows of iterations."""
        if not self._pieces or source is None or now_s < self._pieces[0].to_s + PROBE_PARAMS.read_s:
            return []
        piece = self._pieces.pop(0)
        exact = isinstance(source, (MarkSource, Counter))
        runs: list[Reading | Count] = [] if piece.known is None or exact else [piece.known]
        if not runs:
            runs += source.runs(piece.from_s if exact else piece.count_from_s, piece.to_s, piece.guess)
        found = []
        for run in runs:
            begin_s, end_s = (run.start_s, run.end_s) if exact else (piece.from_s, piece.to_s)
            used = energy(meter, begin_s, end_s)
            if used is None:
                continue
            time_s = end_s - begin_s
            count = float(run.iterations) if exact else time_s / run.iteration_s
            sd = 0.0 if exact else run.sd_s / run.iteration_s
            stretch = Stretch(
                piece.kind, piece.setting, count, time_s, used.energy_j, used.uncertainty_j, sd, run.common_sd
            )
            found.append(Counted(stretch, run))
        return found

    def count_all(self, meter: Meter, source: IterationSource | None) -> list[Counted]:
        """Everything that waits, as well as it is known."""
        found: list[Counted] = []
        while self._pieces and source is not None:
            found += self.count(meter, source, math.inf)
        return found
