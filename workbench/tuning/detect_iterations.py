"""Iterations of a running job: from marks, a counter, or the power trace."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..device.protocol import Device
from ..experiments.iteration_sources import Counter, Marked, MarkSource, Trace
from ..measurement.follow import Following
from ..measurement.recorder import Recorder
from ..periods.fold import SLOWEST
from ..periods.online import aliasing
from ..periods.online.search import main

# Tuned constants of `IterationDetector`; set by hand, `benchmarks.clocks --only online` scores them.

STEADY_ITERATIONS = 6  # that are reported before they are counted; half of what a period is waited for
WARM_ITERATIONS = 2  # that compile, tune and fill caches
LEAST_REPORTED_S = 2.0  # of iterations, before they are counted
# by how much the medians of the older and the newer half may differ, until ten times as many are reported
UNSTEADY = 0.08
HOPELESS_S = 30.0  # without a period, after which none is looked for


@dataclass(frozen=True)
class DetectedIterations:
    """Iterations of a running job at the default setting.

    Attributes:
        source: Tells them from now on.
        iteration_s: How long one takes.
        variation: Standard deviation of that from one to the next, as a share.
        from_s: Since when they have been steady: the baseline may begin there.
        text: For the person.
    """

    source: Marked | Trace
    iteration_s: float
    variation: float
    from_s: float
    text: str


class IterationDetector:
    """Detects the iterations of the job on some GPUs.

    Args:
        recorder, devices: The recorder and the GPUs.
        marks: Of this process.
        counter: A user's, which then counts before everything else.
        from_s: What came before belongs to another job.
    """

    def __init__(
        self, recorder: Recorder, devices: Sequence[Device], marks: MarkSource, counter: Counter | None,
        from_s: float,
    ) -> None:
        self._recorder, self._devices, self.from_s = recorder, tuple(devices), from_s
        self._marks, self._counter = marks, counter
        self.trace_s = from_s
        self._following: Following | None = None
        self._uuid = devices[0].uuid
        self.given_up = ""  # why no period of the power trace will do for now
        self.hopeless = False  # the sensor is too slow for its period
        self.text = "none was reported yet"

    def observe(self, now_s: float, *, trace: bool = True) -> DetectedIterations | None:
        """The iterations, once they are known; by the power trace only where `trace`."""
        if self._counter is not None and not self._counter.failed:
            times, values = self._counter.observed
            return self._from_counter(times, values, self._counter, now_s)
        moments = self._marks.since(self.from_s)
        if len(moments):
            found = self._from_counter(moments, np.arange(float(len(moments))), self._marks, now_s)
            usual_s = float(np.median(np.diff(moments))) if len(moments) > 2 else moments[-1] - self.from_s
            if found is not None or now_s - moments[-1] < max(10.0, 6.0 * usual_s):
                return found
        return self._followed(now_s) if trace and not self.hopeless else None

    def _from_counter(
        self, times: np.ndarray, values: np.ndarray, source: Marked, now_s: float
    ) -> DetectedIterations | None:
        keep = times >= self.from_s
        times, values = times[keep], values[keep]
        self.text = f"{len(times)} were reported so far"
        if len(times) < STEADY_ITERATIONS + WARM_ITERATIONS:
            return None
        # Of very many the newest tell enough.
        times, values = times[WARM_ITERATIONS:][-4000:], values[WARM_ITERATIONS:][-4000:]
        lengths = np.diff(times) / np.maximum(np.diff(values), 1e-9)
        usual = float(np.median(lengths))
        if times[-1] - times[0] < LEAST_REPORTED_S or not usual > 0:
            return None
        half = len(lengths) // 2
        apart = abs(math.log(float(np.median(lengths[half:])) / float(np.median(lengths[:half]))))
        fine = lengths[lengths < 3.0 * usual]
        variation = float(np.std(fine)) / usual if len(fine) > 2 else 0.02
        unsteady = apart > max(UNSTEADY, 2.0 * variation / math.sqrt(half))
        if unsteady and len(times) < 10 * STEADY_ITERATIONS:
            self.text = "the iterations are not steady yet"
            return None
        first = 0 if apart <= UNSTEADY else half
        from_s = max(float(times[first]), now_s - 60.0)
        how = "marks of the training" if source.name == "marks" else "your counter"
        return DetectedIterations(
            source, usual, variation, from_s, f"one iteration takes {usual:.4g} s (by {how})"
        )

    def _followed(self, now_s: float) -> DetectedIterations | None:
        if self._following is None:
            self._uuid = max(self._devices, key=lambda device: self._mean_w(device.uuid, now_s)).uuid
            self._following = Following(self._recorder, self._uuid, self.trace_s)
        tracker = self._following.update()
        self.text = tracker.text
        level = main(tracker.periods)
        if tracker.state == "locked" and tracker.periods.main_sure and level is not None:
            refresh_s = self._refresh_s(now_s)
            # At a lower clock the alias of a faster iteration moves three times as far as the iteration.
            if level.period_s < SLOWEST * refresh_s:
                if now_s - self.trace_s < HOPELESS_S:
                    return None  # the job may still report its steps, or show something longer
                self._give_up(f"a period of {level.period_s:.3g} s cannot be trusted: the sensor refreshes "
                              f"only every {refresh_s:.2g} s")
                self.hopeless = True
                self.end()
                return None
            # A sure period stretches with the iterations in it, whatever its role.
            lead = f"one {level.name} takes" if tracker.periods.sure else "a period of"
            return self._traced(level.period_s, max(tracker.since_s, self.trace_s), now_s,
                                f"{lead} {level.period_s:.4g} s (seen in the power trace)")
        wanted_s = 2 * STEADY_ITERATIONS * level.period_s if level is not None else 0.0
        if tracker.state == "none" or now_s - self.trace_s > max(HOPELESS_S, wanted_s):
            self._give_up(f"no visible iterations ({tracker.periods.reason or 'nothing repeats'})")
        return None

    def restart(self, from_s: float) -> None:
        """The power trace begins here: what came before was at another setting."""
        self.end()
        self.trace_s = from_s

    def _give_up(self, why: str) -> None:
        self.given_up = (f"{why}: the clocks alone keep the limit. Call workbench.step() once per iteration "
                         "for a measured slowdown and a larger saving")

    def _refresh_s(self, now_s: float) -> float:
        """Time (s) between two refreshes of the power reading or of the energy counter, the slower one."""
        shown_s = aliasing.intervals(self._recorder.rows(self._uuid, now_s - 10.0, now_s))
        return float(np.nanmax([*shown_s, self._recorder.update_s(self._uuid) or 0.0]))

    def _traced(self, seconds: float, from_s: float, now_s: float, text: str) -> DetectedIterations:
        from_s = max(from_s, now_s - 60.0)
        source = Trace(self._recorder, self._uuid, seconds)
        source.learn(from_s, now_s, seconds)
        return DetectedIterations(source, seconds, source.variation, from_s, text)

    def _mean_w(self, uuid: str, now_s: float) -> float:
        power_w = self._recorder.rows(uuid, now_s - 2.0, now_s)["power_w"]
        power_w = power_w[np.isfinite(power_w)]
        return float(power_w.mean()) if len(power_w) else 0.0

    def end(self) -> None:
        if self._following is not None:
            self._following.end()
            self._following = None
