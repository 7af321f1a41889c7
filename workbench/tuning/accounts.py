"""What every stretch of a tuned job took, and what was saved against its baselines, tuning included."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from ..experiments.iteration_sources import Count, Guess, IterationSource, Marked
from ..experiments.probe import READ_S, Reading, energy
from ..measurement.meter import Meter
from ..records import Setting
from ..search.clocks.posterior import SettingPosterior
from .cost_ratios import cost_ratios
from .results import Saved

# Tuned constants of `SavingsAccounts`; set by hand, `benchmarks.clocks --only online` scores them.

# relative error of a baseline that no length of measuring takes away
BASELINE_SD = 0.002
MOST_SAMPLES = 100  # that are compared; above it, neighbours at one setting are joined


TUNING = ("baseline", "probe", "re-check")


@dataclass(frozen=True)
class Stretch:
    """Iterations at one setting; a 95 % half width with the energy.

    Attributes:
        kind: "baseline", "probe", "re-check", "paused", "held", or "unobserved" (held without observations).
        length_sd: Relative standard error of the mean length of an iteration.
        common_sd: The part of that error that all stretches at the setting share.
        at_s: Its middle.
        settled: The setting was active from the beginning.
    """

    kind: str
    setting: Setting
    iterations: float
    time_s: float
    energy_j: float
    energy_uncertainty_j: float = 0.0
    length_sd: float = 0.0
    common_sd: float = 0.0
    at_s: float = 0.0
    settled: bool = True

    @property
    def iteration_s(self) -> float:
        return self.time_s / self.iterations

    @property
    def power_w(self) -> float:
        return self.energy_j / self.time_s

    def __add__(self, other: Stretch) -> Stretch:
        """Both as one."""
        count = self.iterations + other.iterations
        mine, its = self.iterations / count, other.iterations / count
        return replace(
            self, iterations=count, time_s=self.time_s + other.time_s,
            energy_j=self.energy_j + other.energy_j,
            energy_uncertainty_j=math.hypot(self.energy_uncertainty_j, other.energy_uncertainty_j),
            length_sd=math.hypot(mine * self.length_sd, its * other.length_sd),
            common_sd=mine * self.common_sd + its * other.common_sd, at_s=mine * self.at_s + its * other.at_s,
        )


@dataclass
class SavingsAccount:
    """One workload: its settings, its baselines, and its time and energy at each setting.

    Attributes:
        held: The sum at each setting, at the default one with baselines.
        others: Trials, and stretches in which the setting changed.
        samples: Settled iterations that are compared, in order of time.
    """

    belief: SettingPosterior
    baselines: list[Reading] = field(default_factory=list)
    held: dict[Setting, Stretch] = field(default_factory=dict)
    others: list[Stretch] = field(default_factory=list)
    samples: list[Stretch] = field(default_factory=list)

    @property
    def counted(self) -> list[Stretch]:
        """Everything that it took."""
        return [*self.held.values(), *self.others]

    def baseline(self) -> tuple[float, float, float]:
        """Time of an iteration at the default setting, its relative standard error, and its energy."""
        count = sum(each.iterations for each in self.baselines)
        time_s = sum(each.time_s for each in self.baselines)
        error_s = math.hypot(*(each.iterations * each.sd_s for each in self.baselines))
        energy_j = sum(each.energy_j for each in self.baselines)
        return time_s / count, max(error_s / time_s, BASELINE_SD), energy_j / count

    def read(self, reading: Reading) -> None:
        """Add a measurement of a setting; at the default one it is a baseline."""
        if reading.setting == Setting():
            self.baselines.append(reading)
        self._compare(Stretch(
            "probe", reading.setting, reading.iterations, reading.time_s, reading.energy_j,
            reading.energy_uncertainty_j, reading.sd_s / reading.iteration_s,
            at_s=0.5 * (reading.start_s + reading.end_s),
        ))

    def add(self, stretch: Stretch) -> None:
        """Add a stretch; it is used to compare settings if it is settled."""
        setting, held = stretch.setting, stretch.kind not in TUNING
        if held or setting == Setting():
            self.held[setting] = self.held[setting] + stretch if setting in self.held else stretch
        else:
            self.others.append(stretch)
        if held and stretch.settled:
            self._compare(stretch)

    def _compare(self, sample: Stretch) -> None:
        """Add a sample; where they become too many, the shortest neighbours at one setting are joined."""
        self.samples = sorted([*self.samples, sample], key=lambda each: each.at_s)
        pairs = [pair for pair in itertools.pairwise(self.samples) if pair[0].setting == pair[1].setting]
        if len(self.samples) <= MOST_SAMPLES or not pairs:
            return
        one, other = min(pairs, key=lambda pair: pair[0].time_s + pair[1].time_s)
        place = self.samples.index(one)
        self.samples[place : place + 2] = [one + other]

    def compare(self, what: str) -> tuple[float, float, float]:
        """Time or energy of its iterations ("time_s" or "energy_j"), the same at the default setting, and the
        variance of the difference.
        """
        samples = [each for each in self.samples if each.setting in {Setting(), *self.held}]
        known = {each.setting for each in samples}
        others = self.others + [each for each in self.held.values() if each.setting not in known]
        at_s, counts = np.array([(each.at_s, each.iterations) for each in samples]).T
        # A few iterations show their own scatter badly; all samples together show it well.
        scatter = float(sum((each.length_sd * each.iterations) ** 2 for each in samples) / counts.sum())
        variances = np.maximum(scatter / counts, BASELINE_SD**2)
        own_variance = 0.0
        if what == "energy_j":
            variances += [(each.energy_uncertainty_j / 1.96 / each.energy_j) ** 2 for each in samples]
            own_variance = sum((each.energy_uncertainty_j / 1.96) ** 2 for each in self.counted)
        took = [getattr(each, what) for each in samples]
        held = [n for n, each in enumerate(samples) if each.setting != Setting()]
        places = [(each.setting, each.at_s - at_s[0]) for each in samples]
        logs, covariance = cost_ratios(
            places, np.array(took) / counts, variances,
            [*((Setting(), each.at_s - at_s[0]) for each in others), *(places[n] for n in held)],
            Setting(),
        )
        # A sample stands for as much of the total at its setting as it has of all samples there.
        sums = {each: sum(t for t, (own, _) in zip(took, places, strict=True) if own == each)
                for each in known}
        totals = [self.held[samples[n].setting] for n in held]
        parts = [took[n] * getattr(each, what) / sums[each.setting]
                 for n, each in zip(held, totals, strict=True)]
        signs = np.repeat([1.0, -1.0], [len(others), len(held)])
        would = np.array([*(each.iterations for each in others), *parts]) * np.exp(signs * logs)
        common = float(would[len(others) :] @ np.array([each.common_sd for each in totals]))
        # The iterations of the others differ from those that were compared.
        apart = sum(scatter * (own**2 / each.iterations) for own, each in zip(would, others, strict=False))
        unchanged = getattr(self.held[Setting()], what) if Setting() in self.held else 0.0
        return (
            math.fsum(getattr(each, what) for each in self.counted), float(would.sum()) + unchanged,
            float(signs * would @ covariance @ (signs * would)) + common**2 + apart + own_variance,
        )


class SavingsAccounts:
    """All workloads of one tuned job; the last one is the present."""

    def __init__(self) -> None:
        self.accounts: list[SavingsAccount] = []
        self.spent_s = self.spent_j = 0.0
        self.iterations = 0.0
        self._saved: Saved | None = None
        self._known = True  # whether `_saved` has everything

    def open(self, belief: SettingPosterior) -> None:
        """A new workload, which has no baseline yet."""
        self.accounts.append(SavingsAccount(belief))

    def again(self, number: int) -> None:
        """Workload `number` runs again, and continues its account."""
        self.accounts.append(self.accounts.pop(number))

    def forget(self) -> None:
        """No workload was one."""
        self.accounts, self._known = [], False

    def read(self, reading: Reading) -> None:
        """A measurement of a setting of the present workload."""
        self.accounts[-1].read(reading)
        self._known = False

    def add(self, stretch: Stretch) -> None:
        """A stretch of the present workload."""
        self.iterations += stretch.iterations
        if stretch.kind in TUNING:
            self.spent_s += stretch.time_s
            self.spent_j += stretch.energy_j
        if self.accounts:
            self.accounts[-1].add(stretch)
            self._known = False

    def saved(self) -> Saved | None:
        """The saving so far; None before any stretch has a baseline."""
        if not self._known:
            self._saved, self._known = self._sum(), True
        return self._saved

    def _sum(self) -> Saved | None:
        counted = [each for each in self.accounts if each.counted and each.baselines]
        if not counted:
            return None
        took_s, would_s, time_variance = np.sum([each.compare("time_s") for each in counted], axis=0).tolist()
        took_j, would_j, variance = np.sum([each.compare("energy_j") for each in counted], axis=0).tolist()
        uncertainty_j = 1.96 * math.sqrt(variance)
        return Saved(would_j - took_j, uncertainty_j, 1.0 - took_j / would_j, uncertainty_j / would_j,
                     took_s / would_s - 1.0, 1.96 * math.sqrt(time_variance) / would_s,
                     math.fsum(one.iterations for each in counted for one in each.counted), took_s)


class Piece(NamedTuple):
    """A stretch whose energy is not known yet.

    Attributes:
        count_from_s: Its iterations are timed from here on: the setting was not active before.
        known: Earlier measurements of its iterations.
    """

    from_s: float
    to_s: float
    kind: str
    setting: Setting
    guess: Guess
    count_from_s: float
    known: Reading | Count | None


class Counted(NamedTuple):
    """A stretch that was counted, and the row of iterations that reports how long they were."""

    stretch: Stretch
    run: Reading | Count


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
        """Stretches that are not booked are excluded."""
        self.begin(math.nan)

    def cut(
        self, to_s: float, kind: str, source: IterationSource, setting: Setting, guess: Guess, *,
        count_from_s: float = -math.inf, known: Reading | Count | None = None,
    ) -> None:
        """Everything up to a time was one stretch.

        Args:
            to_s: End of the stretch.
            kind: "held", "probe", ...
            source: Counts its iterations.
            setting: That was active.
            guess: Length of an iteration.
            count_from_s: Detected iterations count from here on.
            known: Iterations that a trial has counted.
        """
        if not to_s > self.cursor_s:
            return
        if isinstance(source, Marked):  # borders are between iterations
            times = source.since(self.cursor_s, to_s)
            if len(times) < 2:
                return
            to_s = float(times[-1])
        begin_s = min(max(self.cursor_s, count_from_s), to_s - 0.25 * (to_s - self.cursor_s))
        self._pieces.append(Piece(self.cursor_s, to_s, kind, setting, guess, begin_s, known))
        self.cursor_s = to_s

    def count(self, meter: Meter, source: IterationSource, now_s: float) -> list[Counted]:
        """The oldest stretch that waits, if its energy is known by now: its rows of iterations."""
        if not self._pieces or now_s < self._pieces[0].to_s + READ_S:
            return []
        piece = self._pieces.pop(0)
        kind, exact = piece.kind, isinstance(source, Marked)
        runs: list[Reading | Count] = [] if piece.known is None or exact else [piece.known]
        if not runs:
            runs += source.runs(piece.from_s if exact else piece.count_from_s, piece.to_s, piece.guess)
        found = []
        if kind == "held" and not (runs or exact):  # the length that is expected stands for the observed one
            kind = "unobserved"
            runs.append(Count(1, piece.to_s - piece.guess.seconds, piece.to_s, 0.0))
        for run in runs:
            begin_s, end_s = (run.start_s, run.end_s) if exact else (piece.from_s, piece.to_s)
            used = energy(meter, begin_s, end_s)
            if used is None:
                continue
            time_s = end_s - begin_s
            count = float(run.iterations) if exact else time_s / run.iteration_s
            stretch = Stretch(
                kind, piece.setting, count, time_s, used.energy_j, used.uncertainty_j,
                run.sd_s / run.iteration_s, run.common_sd, 0.5 * (begin_s + end_s),
                piece.count_from_s <= piece.from_s and kind != "unobserved",
            )
            found.append(Counted(stretch, run))
        return found

    def count_all(self, meter: Meter, source: IterationSource) -> list[Counted]:
        """Everything that waits, as well as it is known."""
        found: list[Counted] = []
        while self._pieces:
            found += self.count(meter, source, math.inf)
        return found
