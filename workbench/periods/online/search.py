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
    # how long, and for how many periods, the role of a sure rhythm is waited for
    role_s: float = 5.0
    role_periods: float = 5.0
    likely: float = 0.5  # confidence in a rhythm from which it is checked for a beat, before it is sure
    jumps: float = 1.5  # times as much from reading to reading where a beat has moved
    again_s: float = 2.0  # how long a rhythm is sampled at another pace at least,
    again_periods: tuple[float, float] = (1.0, 3.0)  # where it comes as predicted, and at most


PARAMS = PeriodSearchParams()
SECOND = "sure once a second measurement agrees"


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
    search_s: float
    until_s: float
    agreed: bool  # whether nothing but the chance of a beat speaks against what was found
    obeyed: bool = False


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
        self._searches = self._misses = 0
        self._guesses: tuple[float, ...] = ()
        self._judged: tuple[tuple[float, str], ...] = ()  # periods, and what speaks against each: "" nothing
        self._trial: _Trial | None = None
        self._beats = self._coming = False

    def step(self, kept: Memory, now_s: float) -> Periods | None:
        """Periods known now, sure or with the reason why not; None where there is nothing new."""
        if now_s < self.due_s:
            return None
        if self._trial is not None:
            return self._try(self._trial, kept, now_s)
        span_s = now_s - self.from_s
        growth = PARAMS.growth if span_s < PARAMS.eager_s else PARAMS.idle_growth
        self.due_s = now_s + min(max(0.5, (growth - 1) * span_s), PARAMS.rarest_s)
        self._searches += 1
        # What came first may have been of another kind: a warm-up, another cell. But a rhythm that is coming
        # needs all of it.
        part = span_s > 30 and self._searches % 2 == 1 and not self._coming
        self.rows_from_s = now_s - span_s / 3 if part else self.from_s
        rows = kept.since(self.rows_from_s)
        if len(rows) < PARAMS.least_rows:
            return None
        return self._judge(self.detect(buffer.frame(rows)), kept, rows, now_s)

    def _judge(self, found: Periods, kept: Memory, rows: Array, now_s: float) -> Periods:
        wait_s, level = self.due_s - now_s, main(found)
        self._coming = agreed = False
        if level is not None:
            agreed = any(same(level.seconds, guess) for guess in self._guesses[-3:])
            self._coming = agreed or level.rhythm >= PARAMS.likely
            if self._coming and not found.sure:
                wait_s = min(wait_s, max(0.5, (PARAMS.growth - 1) * (now_s - self.from_s)))
                self.due_s = now_s + wait_s
            expected_s = self.before.expected_s(kept, rows) if self.before else None
            if expected_s is not None and same(level.seconds, expected_s) and level.confidence >= 0.3:
                known, agreed = self.before.found if self.before else found, True
                found = replace(found, sure=known.sure and level.name == "iteration", steady=True,
                                reason=known.reason)
            span_s = rows["time_s"][-1] - rows["time_s"][0]
            # A long trace may hold an earlier rhythm, with more of the readings: the newer half must agree.
            long = span_s > 6 * level.seconds and (not agreed or span_s > 3 * PARAMS.eager_s)
            if found.rhythm_sure and long:
                half = main(self.detect(buffer.frame(rows[rows["time_s"] > rows["time_s"][-1] - span_s / 2])))
                agreed = half is not None and same(half.seconds, level.seconds)
            self._guesses = (*self._guesses[-5:], level.seconds)
        if level is not None and level.rhythm >= PARAMS.likely:
            found = found if found.rhythm_sure else aliasing.with_counter(found, rows)
            early = self._doubt_early(found, level, rows, now_s)
            if early is not None:
                return early
        if level is None or not self._enough(found, level, now_s):
            self._misses = 0 if found.rhythm_sure else self._misses + 1
            # Short is not aperiodic, whatever a detector says of a few seconds.
            hopeless_s = PARAMS.hopeless_s[0 if found.longer_s == 0 else 1]
            self.hopeless = self._misses >= 3 and now_s - self.from_s > hopeless_s
            longer_s = wait_s if found.longer_s is None and not self.hopeless else found.longer_s
            return found.doubted(found.reason, longer_s)
        self._misses, self.hopeless = 0, False
        if not agreed:
            self.due_s = now_s + min(wait_s, max(0.5, 0.5 * level.seconds))
            return found.doubted(SECOND, self.due_s - now_s)
        return self._guard(found, level, rows, now_s)

    def _enough(self, found: Periods, level: Level, now_s: float) -> bool:
        """Whether an answer may be followed: a sure iteration at once, a rhythm of unsure role once more data
        did not tell its role.
        """
        if found.sure or not found.rhythm_sure:
            return found.sure
        return now_s - self.from_s >= max(PARAMS.role_s, PARAMS.role_periods * level.seconds)

    # the guard against beats

    def _doubt_early(self, found: Periods, level: Level, rows: Array, now_s: float) -> Periods | None:
        """Check a rhythm for a beat before it is followed: the sooner, the sooner it is known.

        A counter that shows nothing of a rhythm tells by two periods of it; three are asked of another pace.
        """
        periods = (rows["time_s"][-1] - rows["time_s"][0]) / level.seconds
        why = self.verdict(level.seconds, rows) if periods >= 2 else ""
        evidence = aliasing.testimony(rows, level.seconds) if why else None
        if why and evidence is not None and evidence.share < aliasing.PARAMS.doubted:
            return self._reject(found, level, why)
        if why is not None or periods < 3:
            return None
        return self._resample(found, level, rows, now_s, agreed=False)

    def verdict(self, seconds: float, rows: Array) -> str | None:
        """As `aliasing.check_aliasing`; what was judged once stays judged."""
        known = next((why for judged_s, why in self._judged if same(judged_s, seconds)), None)
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
        return self._resample(found, level, rows, now_s, agreed=True)

    def _resample(
        self, found: Periods, level: Level, rows: Array, now_s: float, *, agreed: bool
    ) -> Periods:
        """Ask for another pace, and wait for what it shows."""
        search_s = aliasing.intervals(rows[-PARAMS.least_rows :])[0]  # earlier ones may have another pace
        self.wanted_interval_s = search_s / 1.37 if search_s > 0.012 else search_s * 1.37
        rows_s = PARAMS.least_rows * self.wanted_interval_s
        needed_s = max(PARAMS.again_periods[1] * level.seconds, PARAMS.again_s, rows_s)
        self._trial = _Trial(found, level, now_s, search_s, now_s + needed_s + PARAMS.obey_s, agreed)
        self.due_s = now_s + 0.5
        reason = "a rhythm that the sampling may have made is sampled again at another pace"
        return found.doubted(reason, needed_s)

    def _reject(self, found: Periods, level: Level, why: str) -> Periods:
        self._remember(level, why)
        self.hopeless = True
        return found.doubted(why)

    def _remember(self, level: Level, why: str) -> None:
        if not any(same(seconds, level.seconds) for seconds, _ in self._judged):
            self._judged = (*self._judged[-7:], (level.seconds, why))

    def _stays(self, trial: _Trial, kept: Memory, rows: Array, now_s: float) -> bool | None:
        """Whether a rhythm is there at another pace too; None while that cannot be told. Something that is as
        before would predict tells it sooner.
        """
        seconds, waited_s = trial.level.seconds, now_s - trial.from_s
        if waited_s < PARAMS.again_s or len(rows) < PARAMS.least_rows:
            return None
        before = kept.since(self.rows_from_s)
        before = before[before["time_s"] < trial.from_s - 0.5]
        whole, share = aliasing.predicted_shares(before, rows, seconds)
        soon, late = PARAMS.again_periods
        if share < 0.0 and aliasing.jumps(rows) > PARAMS.jumps * aliasing.jumps(before):  # and no pause
            return False
        if waited_s >= soon * seconds and share >= aliasing.PARAMS.predicted * whole > 0:
            return True
        return aliasing.stays(before, rows, seconds) if waited_s >= late * seconds else None

    def _try(self, trial: _Trial, kept: Memory, now_s: float) -> Periods | None:
        """Look at a rhythm again at another polling interval; what stays is no beat of the sampling."""
        self.due_s = now_s + 0.5
        rows = kept.since(trial.from_s)
        seconds = trial.level.seconds
        changed = abs(aliasing.intervals(rows[: PARAMS.least_rows])[0] / trial.search_s - 1)
        trial.obeyed = changed >= 0.1
        if changed < 0.1:
            trial.from_s += 0.5
        elif (stays := self._stays(trial, kept, rows, now_s)) is not None:
            self._trial, self.wanted_interval_s = None, None
            if stays:
                self._remember(trial.level, "")
                self.due_s = now_s  # with what was seen meanwhile, which must agree
                return trial.found if trial.agreed else self.step(kept, now_s)
            self.rows_from_s = trial.from_s
            self._beats, self.from_s = True, now_s  # readings of both paces together would show neither
            why = f"aliasing suspected: {seconds:.3g} s was gone when the power was sampled at another pace"
            return self._reject(trial.found, trial.level, why)
        late_s = max(PARAMS.again_periods[1] * seconds, PARAMS.again_s)
        undecided = trial.obeyed and len(rows) >= PARAMS.least_rows and now_s - trial.from_s >= late_s
        if now_s < trial.until_s and not undecided:
            return None
        self._trial, self.wanted_interval_s = None, None
        if trial.obeyed:  # too few readings to tell: more of them, at the usual pace first
            self.due_s = now_s + late_s
            return trial.found.doubted("too few readings yet to tell a rhythm from a beat", late_s)
        if not aliasing.near_limit(seconds, trial.search_s, math.nan):
            self._remember(trial.level, "")
            self.due_s = now_s  # nothing but the chance of a beat speaks against it
            return trial.found.doubted(SECOND)
        return self._reject(
            trial.found, trial.level,
            f"aliasing suspected: {seconds:.3g} s is near the limit of looking every {trial.search_s:.3g} s, "
            "and no other pace could be had",
        )


def main(periods: Periods) -> Level | None:
    """The level to follow: a sure rhythm, else the iteration, else what is most certain."""
    return periods.rhythm if periods.rhythm_sure else periods.iteration or periods.rhythm


def same(a_s: float, b_s: float) -> bool:
    """Whether two answers mean the same period."""
    return abs(a_s - b_s) <= PARAMS.same * max(a_s, b_s)
