"""Cuts the time of a running job into stretches at one setting, and counts each once its energy is known."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from ..measurement.meter import Meter
from ..records import Setting
from .accounts import Stretch
from .iteration_sources import Count, Counter, Guess, IterationSource, MarkSource
from .probe import PARAMS as PROBE_PARAMS
from .probe import Reading, energy


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
    """What is to go into the book."""

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
