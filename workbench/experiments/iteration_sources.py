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
from dataclasses import dataclass
from typing import NamedTuple

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

    def runs(self, from_s: float, to_s: float, usual_s: float) -> list[Count]:
        """Rows of whole iterations between two times, without those that took far longer than usual (NaN:
        than the median one) or that overlap a marked evaluation, checkpoint or pause.
        """
        ends = self.since(from_s, to_s)
        if len(ends) < 2:
            return []
        lengths = np.diff(ends)
        long_s = LONG_RATIO * (usual_s if math.isfinite(usual_s) else float(np.median(lengths)))
        found = []
        for first, last in stretches((lengths < long_s) & ~in_phases(self, ends)):
            each, number = lengths[first:last], last - first
            mean_s = float(each.mean())
            sd_s = (float(each.std(ddof=1)) if number > 2 else 0.03 * mean_s) / math.sqrt(number)
            found.append(Count(number, float(ends[first]), float(ends[last]), max(sd_s, LEAST_SD * mean_s)))
        return found

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

    def run(self, from_s: float, to_s: float, guess: Guess) -> Count | None:
        """The whole iterations between two times; None where the trace does not show them."""
        time_s, power_w = harmonic_fit.readings(self._recorder.rows(self._uuid, from_s, to_s))
        if len(time_s) < harmonic_fit.LEAST_READINGS or time_s[-1] < from_s + 0.6 * (to_s - from_s):
            return None
        found = harmonic_fit.timed(
            time_s, power_w, guess.seconds, low=guess.least_s / guess.seconds,
            high=guess.most_s / guess.seconds, sd=max(guess.sd, 0.02), variation=self.variation,
        )
        whole = 0 if found is None else int((to_s - from_s) / found.seconds)
        if found is None or whole < 1:
            return None
        if self._amplitudes is None:
            self._amplitudes = found.amplitudes
        shown = min(len(self._amplitudes), len(found.amplitudes))
        first, now = self._amplitudes[:shown], found.amplitudes[:shown]
        if first @ now < ALIKE_COSINE * np.linalg.norm(first) * np.linalg.norm(now):
            return None  # another period, of which this is a multiple
        return Count(whole, to_s - whole * found.seconds, to_s, found.sd_s, TRACE_COMMON_SD)


def stretches(fine: Array) -> list[list[int]]:
    """Where each row of true values begins, and where it has ended."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], fine.astype(int), [0]])))
    return edges.reshape(-1, 2).tolist()


def in_phases(source: Marked, ends: Array) -> Array:
    """Whether each interval between ends overlaps an evaluation, a checkpoint or a pause."""
    phases = [] if isinstance(source, Counter) else source.phases[-32:]
    inside = np.zeros(max(len(ends) - 1, 0), bool)
    for phase in phases:
        inside |= (ends[:-1] < phase.end_s) & (ends[1:] > phase.start_s)
    return inside
