"""Looks for a rhythm in readings as they come, and decides when the detector may be believed.

Durations grow by a quarter or a half, so that all questions together cost no more than a few of the last; the
detector must be sure itself; an answer from less data must agree; and a rhythm that sampling may have made is
sampled again at another pace, or doubted (`aliasing`). GPOEO believes a small spread over suffixes instead
(SpectrumAnalysis.py:711-942).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ...records import Level, Periods
from . import aliasing, buffer, phase_lock
from .buffer import Memory
from .phase_lock import PhaseLock

if TYPE_CHECKING:
    import polars as pl

Array = np.ndarray[Any, Any]
Detector = Callable[["pl.DataFrame"], Periods]


@dataclass(frozen=True, slots=True)
class PeriodSearchParams:
    """Tuned constants of the search, by hand; `benchmarks.tracking` scores the tracker."""

    first_s: float = 2.0  # of trace, that the detector is given first
    growth: float = 1.25  # times that, the next time
    rarest_s: float = 120.0  # between two searches, at most
    # of trace, beyond which durations grow by `idle_growth` where nothing promises to settle:
    eager_s: float = 10.0
    idle_growth: float = 1.5  # a search in vain costs the most
    least_rows: int = 20
    same: float = 0.05  # of the longer of two periods that are one
    # after so long in vain it is said: where the detector sees no use in waiting, and where it does
    hopeless_s: tuple[float, float] = (10.0, 60.0)
    obey_s: float = 10.0  # how long to wait for another polling interval


PARAMS = PeriodSearchParams()


@dataclass(frozen=True, slots=True)
class Before:
    """The rhythm that was followed until something changed."""

    lock: PhaseLock
    found: Periods
    left_s: float
    step_s: float

    def expected_s(self, kept: Memory, rows: Array) -> float | None:
        """This rhythm's period (s) in `rows`, had only the clock changed; None: its shape is not there."""
        before = kept.since(self.left_s - 20.0)
        ratio = buffer.clock_mhz(before[before["time_s"] < self.left_s]) / buffer.clock_mhz(rows)
        # Memory does not wait for the SM clock: an iteration stretches by nothing up to the clocks' ratio.
        low, high = (min(1.0, ratio) / 1.15, max(1.0, ratio) * 1.15) if math.isfinite(ratio) else (0.5, 2.0)
        return phase_lock.scaled(self.lock, rows["time_s"], rows["power_w"].astype(np.float64), low, high)


@dataclass(slots=True)
class _Trial:
    """A rhythm that is looked at again at another polling interval."""

    found: Periods
    level: Level
    from_s: float
    look_s: float
    until_s: float


class Search:
    """The search for one workload's rhythm.

    Args:
        from_s: When the workload began.
        detect: What finds periods in a frame.
        guarded: Doubt what sampling alone could have made.
        before: The rhythm from before a change, which tells where to expect the new one.
        first_s: How much to see before the first question.
    """

    def __init__(
        self, from_s: float, detect: Detector, *, guarded: bool = True, before: Before | None = None,
        first_s: float = PARAMS.first_s,
    ) -> None:
        self.from_s, self.detect, self.before = from_s, detect, before
        self.due_s = from_s + first_s
        self.wanted_interval_s: float | None = None
        self.hopeless = False
        self.rows_from_s = from_s  # what the last answer stands on
        self._guarded = guarded
        self._looks = self._misses = 0
        self._guesses: tuple[float, ...] = ()
        self._rejected: tuple[tuple[float, str], ...] = ()
        self._trial: _Trial | None = None
        self._beats = False

    def step(self, kept: Memory, now_s: float) -> Periods | None:
        """Periods known now, sure or with the reason why not; None where there is nothing new."""
        if now_s < self.due_s:
            return None
        if self._trial is not None:
            return self._try(self._trial, kept, now_s)
        span_s = now_s - self.from_s
        growth = PARAMS.growth if span_s < PARAMS.eager_s else PARAMS.idle_growth
        self.due_s = now_s + min(max(0.5, (growth - 1) * span_s), PARAMS.rarest_s)
        self._looks += 1
        # What came first may have been of another kind: a warm-up, another cell.
        self.rows_from_s = now_s - span_s / 3 if span_s > 30 and self._looks % 2 else self.from_s
        rows = kept.since(self.rows_from_s)
        if len(rows) < PARAMS.least_rows:
            return None
        return self._judge(self.detect(buffer.frame(rows)), kept, rows, now_s)

    def _judge(self, found: Periods, kept: Memory, rows: Array, now_s: float) -> Periods:
        wait_s, level = self.due_s - now_s, main(found)
        agreed = False
        if level is not None:
            agreed = any(same(level.seconds, guess) for guess in self._guesses[-3:])
            if agreed and not found.sure:  # it is coming
                wait_s = min(wait_s, max(0.5, (PARAMS.growth - 1) * (now_s - self.from_s)))
                self.due_s = now_s + wait_s
            expected_s = self.before.expected_s(kept, rows) if self.before else None
            if expected_s is not None and same(level.seconds, expected_s) and level.confidence >= 0.3:
                found, agreed = replace(found, sure=True, reason=""), True
            span_s = rows["time_s"][-1] - rows["time_s"][0]
            # A long trace may hold an earlier rhythm, with more of the readings: the newer half must agree.
            if found.sure and span_s > 6 * level.seconds and (not agreed or span_s > 3 * PARAMS.eager_s):
                half = main(self.detect(buffer.frame(rows[rows["time_s"] > rows["time_s"][-1] - span_s / 2])))
                agreed = half is not None and same(half.seconds, level.seconds)
            self._guesses = (*self._guesses[-5:], level.seconds)
        if level is None or not found.sure:
            self._misses += 1
            # Short is not aperiodic, whatever a detector says of a few seconds.
            hopeless_s = PARAMS.hopeless_s[0 if found.longer_s == 0 else 1]
            self.hopeless = self._misses >= 3 and now_s - self.from_s > hopeless_s
            longer_s = wait_s if found.longer_s is None and not self.hopeless else found.longer_s
            return replace(found, sure=False, longer_s=longer_s)
        self._misses, self.hopeless = 0, False
        if not agreed:
            self.due_s = now_s + min(wait_s, max(0.5, 0.5 * level.seconds))
            reason = "sure once a second look agrees"
            return replace(found, sure=False, reason=reason, longer_s=self.due_s - now_s)
        return self._guard(found, level, rows, now_s)

    # the guard against beats

    def verdict(self, seconds: float, rows: Array) -> str | None:
        """As `aliasing.check_aliasing`; what was rejected once stays rejected."""
        known = next((why for rejected_s, why in self._rejected if same(rejected_s, seconds)), None)
        if known is not None:
            return known
        why = aliasing.check_aliasing(rows, seconds, guarded=self._guarded)
        # Where one rhythm was made by the polling, others at its multiples are as well.
        return None if why == "" and self._beats and aliasing.testimony(rows, seconds) is None else why

    def _guard(self, found: Periods, level: Level, rows: Array, now_s: float) -> Periods:
        why = self.verdict(level.seconds, rows)
        if why == "":
            return found
        if why is not None:
            return self._reject(found, level, why)
        look_s = aliasing.intervals(rows)[0]
        self.wanted_interval_s = look_s / 1.37 if look_s > 0.012 else look_s * 1.37
        needed_s = max(5 * level.seconds, 4.0)
        self._trial = _Trial(found, level, now_s, look_s, now_s + needed_s + PARAMS.obey_s)
        self.due_s = now_s + 0.5
        reason = "a rhythm near the limit of the sampling is looked at again at another pace"
        return replace(found, sure=False, reason=reason, longer_s=needed_s)

    def _reject(self, found: Periods, level: Level, why: str) -> Periods:
        if not any(same(seconds, level.seconds) for seconds, _ in self._rejected):
            self._rejected = (*self._rejected[-7:], (level.seconds, why))
        self.hopeless = True
        return replace(found, sure=False, reason=why, longer_s=0.0)

    def _try(self, trial: _Trial, kept: Memory, now_s: float) -> Periods | None:
        """Look at a rhythm again at another polling interval; what stays is no beat of the sampling."""
        self.due_s = now_s + 0.5
        rows = kept.since(trial.from_s)
        seconds = trial.level.seconds
        if abs(aliasing.intervals(rows[: PARAMS.least_rows])[0] / trial.look_s - 1) < 0.1:  # not obeyed yet
            trial.from_s += 0.5
        elif now_s - trial.from_s >= max(5 * seconds, 4.0) and len(rows) >= PARAMS.least_rows:
            again = main(self.detect(buffer.frame(rows)))
            self._trial, self.wanted_interval_s, self.rows_from_s = None, None, trial.from_s
            if again is not None and abs(again.seconds / seconds - 1) <= aliasing.PARAMS.same:
                return trial.found
            became = f"{again.seconds:.3g} s" if again else "nothing"
            self._beats, self.from_s = True, now_s  # readings of both paces together would show neither
            why = f"aliasing suspected: {seconds:.3g} s became {became} when looked at at another pace"
            return self._reject(trial.found, trial.level, why)
        if now_s < trial.until_s:
            return None
        self._trial, self.wanted_interval_s = None, None
        return self._reject(
            trial.found, trial.level,
            f"aliasing suspected: {seconds:.3g} s is near the limit of looking every {trial.look_s:.3g} s, "
            "and no other pace could be had",
        )


def main(periods: Periods) -> Level | None:
    """The level to follow: the iteration, or else the one that is most certain."""
    return periods.iteration or max(periods.levels, key=lambda level: level.confidence, default=None)


def same(a_s: float, b_s: float) -> bool:
    """Whether two answers mean the same period."""
    return abs(a_s - b_s) <= PARAMS.same * max(a_s, b_s)
