"""Where iterations come from: marks of the training, a user's counter, or the power trace.

All answer one question: how many whole iterations are in a stretch of time at one setting, and where they
begin and end.
"""

from __future__ import annotations

import bisect
import math
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np

from ..measurement import marks, process_marks
from ..measurement.recorder import Recorder
from . import harmonic_fit

Array = np.ndarray

# Tuned constants of the sources; set by hand, `benchmarks.clocks --only online` scores them.
LONG_RATIO = 3.0  # times the usual length: an evaluation, a checkpoint or a pause, and no iteration
LEAST_SD = 0.003  # relative, of the mean length of marked iterations
VARIATION = 0.02  # relative, of iterations that nobody has timed one by one
# relative, of lengths in a power trace: what a shape that changes with the setting makes of them
TRACE_COMMON_SD = 0.005
ALIKE_COSINE = 0.7  # cosine of the harmonics' sizes that one job has at all settings
MOST_MARKS = 400_000


@dataclass(frozen=True)
class Count:
    """Whole iterations in a row, from `start_s` to `end_s` on the device's clock.

    Attributes:
        sd_s: Standard error of the mean length of one.
        common_sd: Relative error common to all counts at this setting: more of them do not lower it.
    """

    iterations: int
    start_s: float
    end_s: float
    sd_s: float
    common_sd: float = 0.0

    @property
    def time_s(self) -> float:
        return self.end_s - self.start_s

    @property
    def iteration_s(self) -> float:
        return self.time_s / self.iterations


class Guess(NamedTuple):
    """How long an iteration should take: `sd` is of the logarithm; it is in `least_s`..`most_s`.

    All lengths are NaN where nothing is known.
    """

    seconds: float
    sd: float
    least_s: float
    most_s: float


def guessed(seconds: float, sd: float) -> Guess:
    """A guess that may be wrong by three standard deviations."""
    reach = math.exp(min(max(3.0 * sd, 0.06), 0.3))
    return Guess(seconds, sd, seconds / reach, seconds * reach)


class IterationSource(Protocol):
    """Tells iterations."""

    name: str

    def runs(self, from_s: float, to_s: float, guess: Guess) -> list[Count]:
        """All rows of whole iterations between two times, which should take `guess` each."""


class MarkSource(marks.MarkRecorder):
    """Iterations from marks: those of `workbench.step()` once it is attached. Where this process marks none,
    those of the lowest rank that it has started.
    """

    name = "marks"

    def __init__(self, clock: Callable[[], float], gpus: Sequence[str] | None = None) -> None:
        super().__init__(clock, gpus)
        self._dropped = 0
        self._known_s, self._of_a_rank = clock(), False
        process_marks.watch(clock)

    @property
    def total(self) -> int:
        """Iterations reported since this source was made."""
        return self._dropped + len(self.steps)

    def sample(self, now_s: float) -> None:
        if self._of_a_rank or not self.steps:
            fresh = process_marks.steps_after(self.clock, self._known_s)
            self.steps.extend(fresh)
            self._of_a_rank, self._known_s = self._of_a_rank or bool(fresh), max([self._known_s, *fresh[-1:]])
        if len(self.steps) > MOST_MARKS:
            del self.steps[: MOST_MARKS // 2]
            self._dropped += MOST_MARKS // 2
        for moments, amounts in self.work.values():
            if len(moments) > MOST_MARKS:
                del moments[: MOST_MARKS // 2], amounts[: MOST_MARKS // 2]

    def last(self, count: int) -> Array:
        """The newest moments."""
        return np.array(self.steps[-count:])  # a copy: an array that is looked into cannot be appended to

    def since(self, from_s: float, to_s: float = math.inf) -> Array:
        steps = self.steps
        low = bisect.bisect_left(steps, from_s)
        return np.array(steps[low : bisect.bisect_right(steps, to_s, low)])

    def runs(self, from_s: float, to_s: float, guess: Guess) -> list[Count]:
        moments = self.since(from_s, to_s)
        phases = [phase for phase in self.phases[-32:] if phase.end_s > from_s]
        return in_rows(moments, np.ones(max(len(moments) - 1, 0)), guess.seconds, phases)

    def end(self) -> None:
        marks.detach(self)


class Counter:
    """Iterations as a user's counter reports them, a growing number; `failed` gives the reason it cannot be
    used.
    """

    name = "counter"

    def __init__(self, read: Callable[[], float], clock: Callable[[], float]) -> None:
        self._read, self._clock = read, clock
        self._times, self._values = array("d"), array("d")
        self._check_s = 0.1
        self._checked_s = math.nan
        self.failed = ""

    def sample(self, now_s: float) -> None:
        if self.failed:
            return
        try:
            value = float(self._read())
        except Exception as error:
            self.failed = f"the counter of iterations failed: {type(error).__name__}: {error}"
            return
        if not math.isfinite(value) or (len(self._values) and value < self._values[-1]):
            self.failed = f"the counter of iterations must be a number that grows, and is now {value:g}"
            return
        if not math.isnan(self._checked_s):
            self._check_s += 0.1 * (now_s - self._checked_s - self._check_s)
        if not len(self._values) or value > self._values[-1]:
            # It has grown at some moment since the last look.
            at_s = now_s if math.isnan(self._checked_s) else 0.5 * (now_s + self._checked_s)
            self._times.append(at_s)
            self._values.append(value)
        self._checked_s = now_s

    @property
    def observed(self) -> tuple[Array, Array]:
        """When it grew, and to what."""
        return np.array(self._times), np.array(self._values)

    def since(self, from_s: float, to_s: float = math.inf) -> Array:
        """When it grew, between two times."""
        low = bisect.bisect_left(self._times, from_s)
        return np.array(self._times[low : bisect.bisect_right(self._times, to_s, low)])

    def runs(self, from_s: float, to_s: float, guess: Guess) -> list[Count]:
        times, values = self.observed
        low, high = np.searchsorted(times, from_s), np.searchsorted(times, to_s, side="right")
        found = in_rows(times[low:high], np.diff(values[low:high]), guess.seconds, [])
        looking_s = self._check_s / math.sqrt(6.0)  # either end may be off by half a look
        return [replace(each, sd_s=math.hypot(each.sd_s, looking_s / each.iterations)) for each in found]


Marked = MarkSource | Counter


class MarkedIterations:
    """Iterations that the job reports: marks of this process, and a user's counter where one was given."""

    def __init__(
        self, clock: Callable[[], float], progress: Callable[[], float] | None,
        gpus: Sequence[str] | None = None,
    ) -> None:
        self.marks = MarkSource(clock, gpus)
        marks.attach(self.marks)
        self.counter = Counter(progress, clock) if progress is not None else None

    def sample(self, now_s: float) -> str:
        """Look at both; returns a sentence if the counter has just failed."""
        self.marks.sample(now_s)
        if self.counter is None or self.counter.failed:
            return ""
        self.counter.sample(now_s)
        return f"{self.counter.failed}; iterations are looked for elsewhere" if self.counter.failed else ""

    def going(self, now_s: float) -> bool:
        """Whether marks are coming just now."""
        steps = self.marks.last(12)
        return len(steps) >= 12 and bool(steps[-1] > now_s - 3.0 * max(float(np.median(np.diff(steps))), 0.3))


class Trace:
    """Iterations as the power trace shows them, once a tracker has found how long one is.

    Args:
        recorder, uuid: Whose trace.
        seconds: Length of an iteration at the default setting.

    Attributes:
        variation: How much iterations differ, as a share: the median of a guess and of what was learnt since.
    """

    name = "power"

    def __init__(self, recorder: Recorder, uuid: str, seconds: float) -> None:
        self._recorder, self._uuid, self.seconds = recorder, uuid, seconds
        self._amplitudes: Array | None = None  # of its harmonics, as measured first
        self._variations = deque([VARIATION], maxlen=9)

    @property
    def variation(self) -> float:
        return float(np.median(self._variations))

    def learn(self, from_s: float, to_s: float, seconds: float) -> None:
        """How much iterations differ in a stretch at one setting."""
        time_s, power_w = harmonic_fit.readings(self._recorder.rows(self._uuid, from_s, to_s))
        found = harmonic_fit.variation(time_s, power_w, seconds)
        if found is not None:
            self._variations.append(found)

    def runs(self, from_s: float, to_s: float, guess: Guess) -> list[Count]:
        time_s, power_w = harmonic_fit.readings(self._recorder.rows(self._uuid, from_s, to_s))
        if len(time_s) < harmonic_fit.LEAST_READINGS or time_s[-1] < from_s + 0.6 * (to_s - from_s):
            return []
        found = harmonic_fit.timed(
            time_s, power_w, guess.seconds, low=guess.least_s / guess.seconds,
            high=guess.most_s / guess.seconds, sd=max(guess.sd, 0.02), variation=self.variation,
        )
        whole = 0 if found is None else int((to_s - from_s) / found.seconds)
        if found is None or whole < 1:
            return []
        if self._amplitudes is None:
            self._amplitudes = found.amplitudes
        shown = min(len(self._amplitudes), len(found.amplitudes))
        first, now = self._amplitudes[:shown], found.amplitudes[:shown]
        if first @ now < ALIKE_COSINE * np.linalg.norm(first) * np.linalg.norm(now):
            return []  # another period, of which this is a multiple
        return [Count(whole, to_s - whole * found.seconds, to_s, found.sd_s, TRACE_COMMON_SD)]


def busy_and_clock(rows: Array) -> tuple[float, float]:
    """Mean utilisation, and the mean SM clock while busy; NaN for what the rows do not report."""
    used = rows["utilisation"]
    known = np.isfinite(used)
    clocks = rows["sm_clock_mhz"][~(used <= 0)]
    clocks = clocks[np.isfinite(clocks)]
    return (float(used[known].mean()) if known.any() else math.nan), (
        float(clocks.mean()) if len(clocks) else math.nan
    )


def in_rows(moments: Array, counts: Array, guess_s: float, phases: list[Any]) -> list[Count]:
    """Rows of iterations between moments, without what took far longer than usual or was something else.

    Args:
        moments: When iterations ended.
        counts: How many ended between a moment and the next.
        guess_s: How long one should take; the median where that is not known.
        phases: Marked phases that are no iterations.
    """
    if len(moments) < 2:
        return []
    lengths = np.diff(moments) / np.maximum(counts, 1.0)
    usual_s = guess_s if math.isfinite(guess_s) else float(np.median(lengths))
    fine = lengths < LONG_RATIO * usual_s
    for phase in phases:
        fine &= ~((moments[:-1] < phase.end_s) & (moments[1:] > phase.start_s))
    found: list[Count] = []
    edges = np.flatnonzero(np.diff(np.concatenate([[False], fine, [False]]).astype(np.int8)))
    for first, last in edges.reshape(-1, 2):
        whole = round(float(counts[first:last].sum()))
        if whole < 1:
            continue
        each = lengths[first:last]
        time_s = float(moments[last] - moments[first])
        n = last - first
        spread = float(np.std(each, ddof=1)) / math.sqrt(n) if n > 2 else 0.03 * time_s / whole / math.sqrt(n)
        sd_s = max(spread, LEAST_SD * time_s / whole)
        found.append(Count(whole, float(moments[first]), float(moments[last]), sd_s))
    return found
