"""Tracks the iteration period of a running job: searches for it, follows it, detects changes.

    looking   the detector runs at growing durations until two of its answers agree (`search`)
    locked    new readings are compared with the known shape (`phase_lock`); drift is followed
    changed   another workload, batch size or clock: the search begins again
    none      a long search found no period; it is repeated now and then

The lock is kept for the plausible time of an evaluation or a checkpoint, and then continues.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from ..records import DetectedPeriod, Periods
from .detect import find_periods
from .online import aliasing, buffer, phase_lock
from .online.buffer import Memory
from .online.phase_lock import PhaseLock
from .online.search import COMING_GROWTH, FIRST_S, HOPELESS_S, RAREST_S, Detector, Search, main
from .vote import same

Array = np.ndarray

# Tuned constants of `PeriodTracker`, set manually; `benchmarks.tracking` scores it.
IDLE_S = 2.0  # without work, after which a GPU is idle
# share of the tracked time after which different readings count as a new workload: a training of ten
# seconds has no evaluation of a minute
HOLD_SHARE = 0.3
# accepted drift of a period (logarithm) while it is followed, which the detector sees as one mean
DRIFT = 0.3
SETTLE_S = 0.3  # after a change: sensors average over earlier readings, and governors are slow


@dataclass(slots=True)
class _Doubt:
    """Readings unlike the known period: since when, and the evidence for a change."""

    since_s: float
    evidence: str = ""
    pause: bool = False


@dataclass(slots=True)
class _Locked:
    """A period that is followed.

    `found` is the detector's last answer and `anchor_s` the period in it. `observed_s` is the time of the
    last comparison, `good_s` that of the last match, `unlike` the evidence against the period since.
    """

    lock: PhaseLock
    found: Periods
    anchor_s: float
    step_s: float
    from_s: float  # the first reading of this workload
    since_s: float
    observed_s: float
    good_s: float
    review_s: float
    unlike: float = 0.0
    doubt: _Doubt | None = None

    @property
    def stretch_s(self) -> float:
        return phase_lock.stretch_s(self.lock.seconds, self.step_s)


class PeriodTracker:
    """The period of one GPU's job, from a recorder's rows as they arrive, in constant memory.

    `guard` requests another polling interval if sampling alone could have caused the period. It is off for
    recorded traces, which cannot be sampled again.
    """

    def __init__(self, detect: Detector = find_periods, *, guard: bool = True) -> None:
        self.periods = Periods(reason="no readings yet")
        self.state, self.version = "looking", 0
        self._detect, self._guarded = detect, guard
        self._memory = Memory()
        self._search: Search | None = None
        self._locked: _Locked | None = None
        self._due_s, self._busy_s, self._paused_s = -math.inf, math.nan, math.nan
        self._limit_w = math.nan
        self._notes: tuple[str, ...] = ()
        self._aways: list[float] = []  # duration of each interruption
        self._away_s = math.nan  # start of the last one

    # results

    @property
    def wanted_interval_s(self) -> float | None:
        """The polling interval that the guard against aliasing requests now."""
        return self._search.wanted_interval_s if self._search else None

    @property
    def since_s(self) -> float:
        """Time (s) at which the followed work began: the start, or the last change."""
        if self._locked is not None:
            return self._locked.from_s
        return self._search.from_s if self._search is not None else -math.inf

    @property
    def text(self) -> str:
        """One sentence: the known period (s), or the expected duration of the search."""
        level, now_s = main(self.periods), self._memory.newest_s
        if not math.isnan(self._paused_s):
            rest = f"; before, {_takes(self.periods, level, 'took')}" if level and self._locked else ""
            return f"paused: the GPU has been idle for {now_s - self._paused_s:.0f} s{rest}"
        if self._locked is not None and level is not None:
            doubt = self._locked.doubt
            other = f"; different readings for {now_s - doubt.since_s:.0f} s now" if doubt else ""
            return f"{_takes(self.periods, level)}{other}"
        longer_s = self.periods.longer_s
        more = f"; about {max(longer_s, 1.0):.0f} s more are needed" if longer_s else ""
        return f"{self.periods.reason or 'looking'}{more}"

    def feed(self, rows: Array) -> None:
        """Add rows (dtype `recorder.ROWS`) that are newer than all before."""
        for first in range(0, len(rows), 1024):
            self._memory.add(rows[first : first + 1024])
            if math.isinf(self._due_s):
                self._due_s = self._busy_s = float(rows["time_s"][0])
            while self._due_s <= self._memory.newest_s:
                fresh = self._memory.next(self._due_s)
                self._work(fresh, float(fresh["time_s"][-1]))

    def _work(self, fresh: Array, now_s: float) -> None:
        # Changed settings and an idle GPU are checked twice per second.
        self._due_s = now_s + 0.5
        self._check_settings(fresh)
        if self._idle(fresh, now_s):
            return
        if self._locked is not None:
            self._follow(self._locked, now_s)
        elif self._search is not None:
            self._run_search(self._search, now_s)
        self._due_s = max(self._due_s, now_s + 0.01)

    # idle GPU and changed settings

    def _idle(self, fresh: Array, now_s: float) -> bool:
        active = np.flatnonzero(~(fresh["utilisation"] <= 0))  # a GPU without this reading counts as busy
        if len(active):
            first_s, self._busy_s = float(fresh["time_s"][active[0]]), float(fresh["time_s"][active[-1]])
            if not math.isnan(self._paused_s):
                self._resume(first_s)
            elif self._search is None and self._locked is None:
                self._begin(first_s)
            return False
        # A job with long iterations may wait for its data for more than two seconds in each.
        patience_s = max(IDLE_S, self._locked.lock.seconds) if self._locked else IDLE_S
        if math.isnan(self._paused_s) and now_s - self._busy_s > patience_s:
            self._paused_s = self._busy_s
            if self._locked is None:
                self._say(Periods(reason="the GPU is idle"))
            self.version += 1
        return not math.isnan(self._paused_s)

    def _resume(self, at_s: float) -> None:
        rested_s, self._paused_s = at_s - self._paused_s, math.nan
        self.version += 1
        if self._locked is not None:
            self._locked.doubt, self._locked.observed_s = _Doubt(at_s, "after a pause", pause=True), at_s
        elif self._search is None or rested_s > 5 * IDLE_S:  # a slow data loader's pauses are short
            self._begin(at_s)

    def _check_settings(self, fresh: Array) -> None:
        limits = fresh["power_limit_w"]
        limit_w, before_w = float(limits[-1]), self._limit_w
        if math.isnan(limit_w):
            return
        self._limit_w = limit_w
        if math.isnan(before_w) or abs(limit_w - before_w) <= 0.5:
            return
        at_s = float(fresh["time_s"][np.argmax(limits == limits[-1])])
        evidence = f"the power limit went from {before_w:g} to {limit_w:g} W"
        if self._locked is None:
            self._begin(at_s + SETTLE_S)
        elif self._locked.doubt is None:
            self._locked.doubt, self._locked.observed_s = _Doubt(at_s, evidence), at_s + SETTLE_S
        else:
            self._locked.doubt.evidence = evidence

    # search

    def _begin(self, from_s: float, first_s: float = FIRST_S) -> None:
        """Begin the search for a period in readings after `from_s`, and discard all before."""
        self._search = Search(from_s, self._detect, guarded=self._guarded, first_s=first_s)
        self._locked = None
        self._aways.clear()
        self.state = "looking"
        self._say(Periods(reason="looking for a period", longer_s=first_s))

    def _run_search(self, search: Search, now_s: float) -> None:
        found = search.step(self._memory, now_s)
        self._due_s = min(search.due_s, now_s + 0.5)
        if found is None:
            return
        level = main(found)
        if found.main_sure and level is not None:
            self._take_up(found, level, self._memory.since(search.rows_from_s), now_s)
            return
        self.state = "none" if search.hopeless else "looking"
        self._say(found)

    # tracking

    def _take_up(self, found: Periods, level: DetectedPeriod, rows: Array, now_s: float) -> None:
        # Time from one new reading to the next: repeated polls of one refresh give no new information.
        step_s = float(np.nanmax([*aliasing.intervals(rows), 1e-3]))
        power_w, from_s = rows["power_w"].astype(np.float64), float(rows["time_s"][0])
        lock = phase_lock.learn(rows["time_s"], power_w, level.period_s, level.phase_s, step_s)
        self._locked = _Locked(lock, found, level.period_s, step_s, from_s, now_s, now_s, now_s,
                               now_s + self._until_review_s(found, now_s - from_s))
        self._search, self.state, self._due_s = None, "locked", now_s + 0.5
        self._publish(self._locked)

    def _follow(self, locked: _Locked, now_s: float) -> None:
        if now_s < locked.observed_s + 0.98 * locked.stretch_s:
            return
        rows, lock, doubt = self._memory.since(locked.observed_s), locked.lock, locked.doubt
        locked.observed_s = now_s
        # A gap in the samples: the job's position in its iteration afterwards is unknown.
        if len(rows) < phase_lock.LEAST_READINGS // 2:
            locked.doubt = doubt or _Doubt(now_s)
            return
        compared = phase_lock.compare(lock, rows, anywhere=doubt is not None)
        odd = phase_lock.oddness(lock, compared)
        if doubt is not None:
            if odd < 1.0:
                self._come_back(locked, doubt, phase_lock.rephase(lock, compared, now_s), now_s)
            else:
                self._hold(locked, doubt, now_s)
            return
        # A one-sided cumulative sum (Page, Biometrika 41, 1954): one very unlike interval, or several of
        # them.
        locked.unlike = max(0.0, locked.unlike + odd - 1.0)
        if odd < 1.3:
            locked.lock = phase_lock.follow(lock, compared, now_s)
        if locked.unlike == 0.0:
            locked.good_s = now_s
        elif locked.unlike > 1.5:
            locked.doubt = _Doubt(locked.good_s)
        if locked.doubt is None and now_s >= locked.review_s:
            self._review(locked, now_s)
        else:
            self._publish(locked)

    def _come_back(self, locked: _Locked, doubt: _Doubt, lock: PhaseLock, now_s: float) -> None:
        away_s = now_s - locked.stretch_s - doubt.since_s
        if doubt.pause:
            self._note(f"paused until {doubt.since_s:.1f} s, then the same iteration again")
        elif away_s > 1.0:
            self._aways.append(away_s)
            self._away_s = doubt.since_s
        locked.lock, locked.doubt, locked.unlike, locked.good_s = lock, None, 0.0, now_s
        self._publish(locked)

    def _hold(self, locked: _Locked, doubt: _Doubt, now_s: float) -> None:
        """Decide whether a period that is missing in the readings is interrupted or over."""
        away_s = now_s - doubt.since_s
        lately = self._memory.since(doubt.since_s - 20.0)
        doubt.evidence = doubt.evidence or buffer.other_clock(lately, doubt.since_s)
        followed_s = doubt.since_s - locked.since_s
        least_s, most_s = HOPELESS_S, RAREST_S
        held_s = float(np.clip(HOLD_SHARE * followed_s, least_s, most_s))
        if doubt.evidence:  # after a pause the first iterations are often slow
            held_s = min(held_s, (2.0 if doubt.pause else 0.9) * locked.stretch_s)
        if away_s > held_s:
            why = doubt.evidence or f"another period or none since {doubt.since_s:.1f} s"
            self._begin(doubt.since_s + SETTLE_S, away_s - SETTLE_S)
            self.state = "changed"
            self._note(f"a change at {doubt.since_s:.1f} s: {why}")
            longer_s = max(FIRST_S, 3 * locked.lock.seconds)
            self._say(Periods(reason=f"changed: {why}", longer_s=longer_s))
            return
        self.version += 1

    @staticmethod
    def _until_review_s(found: Periods, observed_s: float) -> float:
        """Time until the next detection: for the role of a period as often as for a period."""
        if found.sure:
            return min(max(observed_s, 10.0), 600.0)
        return min(max(0.5, (COMING_GROWTH - 1) * observed_s), RAREST_S)

    def _review(self, locked: _Locked, now_s: float) -> None:
        """Run the detector again, with more data: for a cycle, or another level as the iteration."""
        locked.review_s = now_s + self._until_review_s(locked.found, now_s - locked.from_s)
        rows = self._memory.since(locked.from_s)
        found = self._detect(buffer.frame(rows))
        level = main(found)
        if level is None or not found.main_sure:
            if not locked.lock.telling:  # an old answer is its only evidence
                self._begin(max(locked.from_s, now_s - 30.0))
                self._say(found.doubted(found.reason, found.longer_s))
            return
        if same(level.period_s, locked.lock.seconds):
            if not locked.found.sure:  # tracked since few periods: with more of them its shape is clearer
                self._take_up(found, level, rows, now_s)
                return
            if found.sure:  # a sure role is kept until another one is sure
                locked.found = found
            locked.anchor_s = level.period_s
        # Another level, if its role is sure; a smaller difference is drift.
        elif found.sure and abs(math.log(level.period_s / locked.lock.seconds)) > DRIFT:
            middle_s = 0.5 * (rows["time_s"][0] + now_s)
            half = main(self._detect(buffer.frame(rows[rows["time_s"] > middle_s])))
            agreed = half is not None and same(half.period_s, level.period_s)
            if agreed and aliasing.check_aliasing(rows, level.period_s, guarded=self._guarded) == "":
                was = f"{locked.lock.seconds:.4g} s"
                self._note(f"with more data the {level.name} is {level.period_s:.4g} s, not {was}")
                self._take_up(found, level, rows, now_s)
                return
        self._publish(locked)

    # reports

    def _publish(self, locked: _Locked) -> None:
        """The detector's levels, updated by later tracking."""
        lock, level = locked.lock, main(locked.found)
        ratio = lock.seconds / locked.anchor_s
        followed = tuple(
            replace(each, period_s=lock.seconds, phase_s=lock.phase_s) if each is level
            else replace(each, period_s=each.period_s * ratio)
            for each in locked.found.levels
        )
        self._say(replace(locked.found, levels=followed, longer_s=None))

    def _say(self, periods: Periods) -> None:
        notes = [*(note for note in periods.notes if note not in self._notes), *self._notes]
        if self._aways:
            mean_s = sum(self._aways) / len(self._aways)
            notes.append(f"{len(self._aways)} interruptions of about {mean_s:.1f} s, the last at "
                         f"{self._away_s:.1f} s, then the same iteration again: evaluations or checkpoints")
        self.periods = replace(periods, notes=tuple(notes))
        self.version += 1

    def _note(self, sentence: str) -> None:
        self._notes = (*self._notes[-4:], sentence)


def _takes(periods: Periods, level: DetectedPeriod, verb: str = "takes") -> str:
    """The followed level: an iteration, or a period whose role is different or uncertain."""
    if periods.sure:
        return f"one {level.name} {verb} {_seconds(level)}"
    inside = "; the iterations inside it are too fast for this sensor" if periods.cycle_sure else ""
    return f"a period of {_seconds(level)}{inside}"


def _seconds(level: DetectedPeriod) -> str:
    return f"{level.period_s:.4g} s ± {max(level.uncertainty_s, 1e-4):.1g}"
