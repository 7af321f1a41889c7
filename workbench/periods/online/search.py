"""Searches for a period in incoming readings, and decides when the detector's answer counts.

Durations grow by a half, or by a quarter where a period is coming, so that all questions together cost no
more than a few of the last. The detector must be sure itself, and an answer from less data must agree. A
period that sampling may have made is sampled again at another pace, or doubted (`aliasing`). GPOEO estimates
a small spread over suffixes instead (SpectrumAnalysis.py:711-942).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ...records import DetectedPeriod, Periods
from ..detect import LEAST_READINGS, LEVEL_SURE
from ..vote import same
from . import aliasing, buffer
from .buffer import Memory

if TYPE_CHECKING:
    import polars as pl

Array = np.ndarray
Detector = Callable[["pl.DataFrame"], Periods]

# Tuned constants of the search, set manually; `benchmarks.tracking` scores the tracker.
FIRST_S = 2.0  # length of the first trace for the detector, and minimum at another pace
GROWTH = 1.5  # growth of the length per search: a failed search costs the most,
COMING_GROWTH = 1.25  # and growth if a period is emerging
RAREST_S = 60.0  # longest time between two searches
# time after which a failed search has state "none", if the detector expects no result from more data;
# and longest wait for another polling interval
HOPELESS_S = 10.0
ROLE_PERIODS = 5.0  # periods to wait for the role of a sure period
# periods of sampling at another pace, if the readings differ from the prediction
AGAIN_PERIODS = 3.0
SECOND = "a second measurement must confirm it"


@dataclass(slots=True)
class _Trial:
    """A period that is sampled again at another polling interval."""

    found: Periods
    level: DetectedPeriod
    from_s: float
    search_s: float
    until_s: float


class Search:
    """The search for one workload's period.

    Args:
        from_s: Start of the workload.
        detect: Detector of periods in a frame.
        guarded: Doubt periods that sampling alone could have caused.
        first_s: Recorded time before the first search.
    """

    def __init__(
        self, from_s: float, detect: Detector, *, guarded: bool = True, first_s: float = FIRST_S
    ) -> None:
        self.from_s, self.detect = from_s, detect
        self.due_s = from_s + first_s
        self.wanted_interval_s: float | None = None
        self.hopeless = False
        self.rows_from_s = from_s  # start of the data behind the last answer
        self._guarded = guarded
        self._searches = self._misses = 0
        self._guesses: tuple[float, ...] = ()
        self._judged: tuple[tuple[float, str], ...] = ()  # periods, and the evidence against each: "" none
        self._trial: _Trial | None = None
        self._coming = False

    def step(self, kept: Memory, now_s: float) -> Periods | None:
        """Known periods, sure or with the reason for doubt; None if there is no new answer."""
        if now_s < self.due_s:
            return None
        if self._trial is not None:
            return self._try(self._trial, kept, now_s)
        span_s = now_s - self.from_s
        self._wait(now_s, GROWTH)
        self._searches += 1
        # The first part may have been different: a warm-up, another cell. But an emerging period needs all of
        # it.
        part = span_s > 30 and self._searches % 2 == 1 and not self._coming
        self.rows_from_s = now_s - span_s / 3 if part else self.from_s
        rows = kept.since(self.rows_from_s)
        if len(rows) < LEAST_READINGS:
            return None
        return self._judge(self.detect(buffer.frame(rows)), rows, now_s)

    def _wait(self, now_s: float, growth: float) -> None:
        self.due_s = now_s + min(max(0.5, (growth - 1) * (now_s - self.from_s)), RAREST_S)

    def _judge(self, found: Periods, rows: Array, now_s: float) -> Periods:
        level = main(found)
        self._coming = agreed = False
        if level is not None:
            agreed = any(same(level.period_s, guess) for guess in self._guesses[-3:])
            self._coming = agreed or level.period_confidence >= LEVEL_SURE
            if self._coming and not found.sure:
                self._wait(now_s, COMING_GROWTH)
            span_s = rows["time_s"][-1] - rows["time_s"][0]
            # A long trace may contain an earlier period, with more of the readings: the newer half must
            # agree.
            if found.main_sure and span_s > 6 * level.period_s and (not agreed or span_s > 30):
                half = main(self.detect(buffer.frame(rows[rows["time_s"] > rows["time_s"][-1] - span_s / 2])))
                agreed = half is not None and same(half.period_s, level.period_s)
            self._guesses = (*self._guesses[-5:], level.period_s)
            if level.period_confidence >= LEVEL_SURE:
                found = found if found.main_sure else aliasing.with_counter(found, rows)
                early = self._doubt_early(found, level, rows, now_s)
                if early is not None:
                    return early
        if level is None or not self._enough(found, level, now_s):
            self._misses = 0 if found.main_sure else self._misses + 1
            # A few seconds are too short for the answer "aperiodic".
            hopeless_s = HOPELESS_S if found.longer_s == 0 else RAREST_S
            self.hopeless = self._misses >= 3 and now_s - self.from_s > hopeless_s
            unknown = found.longer_s is None and not self.hopeless
            return found.doubted(found.reason, self.due_s - now_s if unknown else found.longer_s)
        self._misses, self.hopeless = 0, False
        if not agreed:
            self.due_s = min(self.due_s, now_s + max(0.5, 0.5 * level.period_s))
            return found.doubted(SECOND, self.due_s - now_s)
        why = self._verdict(level.period_s, rows)
        if why is None:
            return self._resample(found, level, rows, now_s)
        return self._reject(found, level, why) if why else found

    def _enough(self, found: Periods, level: DetectedPeriod, now_s: float) -> bool:
        """Whether an answer may be followed: a sure iteration immediately, a period of uncertain role once
        more data did not determine its role.
        """
        if found.sure or not found.main_sure:
            return found.sure
        return now_s - self.from_s >= ROLE_PERIODS * level.period_s

    # the guard against beats

    def _doubt_early(self, found: Periods, level: DetectedPeriod, rows: Array,
        now_s: float) -> Periods | None:
        """Check a period for a beat before it is followed: an early check gives an early answer.

        A counter without a trace of the period decides after two periods; another pace needs three.
        """
        periods = (rows["time_s"][-1] - rows["time_s"][0]) / level.period_s
        why = self._verdict(level.period_s, rows) if periods >= 2 else ""
        evidence = aliasing.testimony(rows, level.period_s) if why else None
        if why and evidence is not None and evidence.share < aliasing.STAYS:
            return self._reject(found, level, why)
        return self._resample(found, level, rows, now_s) if why is None and periods >= 3 else None

    def _verdict(self, seconds: float, rows: Array) -> str | None:
        """As `aliasing.check_aliasing`; a judged period keeps its judgement."""
        known = next((why for judged_s, why in self._judged if same(judged_s, seconds)), None)
        if known is not None:
            return known
        return aliasing.check_aliasing(rows, seconds, guarded=self._guarded)

    def _resample(self, found: Periods, level: DetectedPeriod, rows: Array, now_s: float) -> Periods:
        """Request another pace, and wait for its readings."""
        search_s = aliasing.intervals(rows[-LEAST_READINGS:])[0]  # earlier ones may have another pace
        self.wanted_interval_s = search_s / 1.37 if search_s > 0.012 else search_s * 1.37
        needed_s = self._needed_s(level) + LEAST_READINGS * self.wanted_interval_s
        self._trial = _Trial(found, level, now_s, search_s, now_s + needed_s + HOPELESS_S)
        self.due_s = now_s + 0.5
        reason = "sampling may have caused this period; sampling again at another pace"
        return found.doubted(reason, needed_s)

    @staticmethod
    def _needed_s(level: DetectedPeriod) -> float:
        """Longest sampling time of a period at another pace."""
        return max(AGAIN_PERIODS * level.period_s, FIRST_S)

    def _reject(self, found: Periods, level: DetectedPeriod, why: str) -> Periods:
        self._remember(level, why)
        self.hopeless = True
        return found.doubted(why)

    def _remember(self, level: DetectedPeriod, why: str) -> None:
        if not any(same(seconds, level.period_s) for seconds, _ in self._judged):
            self._judged = (*self._judged[-7:], (level.period_s, why))

    def _stays(self, trial: _Trial, kept: Memory, rows: Array, now_s: float) -> bool | None:
        """Whether a period is present at another pace too; None while undecided. Readings that match the
        prediction from those before, or not at all, decide earlier.
        """
        seconds, waited_s = trial.level.period_s, now_s - trial.from_s
        if waited_s < FIRST_S or len(rows) < LEAST_READINGS:
            return None
        before = kept.since(self.rows_from_s)
        found = aliasing.at_another_pace(before[before["time_s"] < trial.from_s - 0.5], rows, seconds)
        if found is None:
            return None
        least = aliasing.STAYS * found.before
        if found.moved:
            return False
        if waited_s >= seconds and found.predicted >= least:
            return True
        return found.fitted >= least if waited_s >= self._needed_s(trial.level) else None

    def _try(self, trial: _Trial, kept: Memory, now_s: float) -> Periods | None:
        """Decide on a period by another polling interval; a period that persists is no beat of the sampling.
        """
        self.due_s = now_s + 0.5
        rows = kept.since(trial.from_s)
        seconds = trial.level.period_s
        obeyed = abs(aliasing.intervals(rows[:LEAST_READINGS])[0] / trial.search_s - 1) >= 0.1
        if not obeyed:
            trial.from_s += 0.5
        stays = self._stays(trial, kept, rows, now_s) if obeyed else None
        late_s = self._needed_s(trial.level)
        undecided = obeyed and len(rows) >= LEAST_READINGS and now_s - trial.from_s >= late_s
        if stays is None and now_s < trial.until_s and not undecided:
            return None
        self._trial, self.wanted_interval_s = None, None
        if stays:
            self._remember(trial.level, "")
            self.due_s = now_s  # with the readings recorded meanwhile, which must agree
            return self.step(kept, now_s)
        if stays is not None:
            self.rows_from_s = trial.from_s
            self.from_s = now_s  # readings of both paces together would show neither
            why = f"aliasing suspected: {seconds:.3g} s disappeared when sampled at another pace"
            return self._reject(trial.found, trial.level, why)
        if obeyed:  # too few readings to decide: more of them, at the usual pace first
            self.due_s = now_s + late_s
            return trial.found.doubted("too few readings yet to separate a period from a beat", late_s)
        if not aliasing.near_limit(seconds, trial.search_s, math.nan):
            self._remember(trial.level, "")
            self.due_s = now_s  # the chance of a beat is the only evidence against it
            return trial.found.doubted(SECOND)
        return self._reject(
            trial.found, trial.level,
            f"aliasing suspected: {seconds:.3g} s is near the limit of polls every {trial.search_s:.3g} s, "
            "and no other interval was available",
        )


def main(periods: Periods) -> DetectedPeriod | None:
    """The level to follow: a sure period, else the iteration, else the level of highest confidence."""
    return periods.main if periods.main_sure else periods.iteration or periods.main
