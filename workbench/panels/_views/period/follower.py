"""The period part of a live view: follows one GPU's period and regularly sends its drawing to the views."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ....device.protocol import Device
from ....measurement.recorder import Recorder
from ....records import DetectedPeriod, Periods
from ..._core.svg import ShadedSpan
from ..power.series import WINDOW_S
from .figure import described
from .model import PeriodView, Table, level_text, period_view

if TYPE_CHECKING:
    from ....measurement.follow import Following
    from ....periods.segment import SegmentedIterations

PACE_S = 1.0  # one update per second at most: it takes some 15 ms of a processor
MOST_SPANS = 4000
LONGEST_S = 900.0  # of a cell that is analysed in one piece after its end
SHORT_S = 2.0  # after which the busiest of several GPUs is known; shorter iterations are not mentioned

PeriodMessage = tuple[dict[str, Any], Table]


class PeriodFollower:
    """The iterations of one of a live view's GPUs: the busiest, until a person chooses. Times are on the
    recorder's clock.

    Args:
        recorder: Records the devices.
        devices: The shown devices.
        start_s: The view's zero.
        follow: Creates the tracker of a GPU from a time on.
    """

    def __init__(
        self, recorder: Recorder, devices: Sequence[Device], start_s: float, *,
        follow: Callable[[Recorder, str, float], Following] | None = None,
    ) -> None:
        self.recorder, self.devices, self.start_s = recorder, tuple(devices), start_s
        self._follow = follow or _following
        self.number: int | None = None
        self.view = PeriodView()
        self._following: Following | None = None
        self._level: str | None = None  # the name of the level that a person chose
        self._version = -1
        self._due_s = self._updated_s = self._fresh_s = -math.inf
        self._older: list[ShadedSpan] = []

    def update(self, now_s: float) -> bool:
        """Follow; true if there are new data to draw."""
        if now_s < self._due_s:
            return False
        self._due_s = now_s + PACE_S
        return self._update(now_s)

    def choose(self, number: int) -> None:
        """Follow another of the devices, from the start of the view on."""
        if not 0 <= number < len(self.devices) or number == self.number:
            return
        self.end()
        self.number, self._level, self._version, self._older = number, None, -1, []
        self.view, self._due_s = PeriodView(), -math.inf
        self._following = self._follow(
            self.recorder, self.devices[number].uuid, math.nextafter(self.start_s, -math.inf)
        )

    def choose_level(self, name: str) -> None:
        """Fold another of the detected levels."""
        self._level, self._version, self._due_s = name, -1, -math.inf

    def end(self) -> None:
        """Stop following."""
        if self._following is not None:
            self._following.end()
            self._following = None

    def message(self, *, whole: bool) -> PeriodMessage:
        """A message for views: all iterations, or those of the last analysis, which replace others."""
        return message(self.view, self.number or 0, -math.inf if whole else self._fresh_s)

    def conclude(self, end_s: float, settled: SegmentedIterations | None = None) -> None:
        """Analyse the whole trace once more after the end of the run.

        Args:
            end_s: Time of the end.
            settled: The iterations that the measurement has found in the busiest GPU's trace, or that
                `step()` has reported. None detects them here.
        """
        if settled is None and end_s - self.start_s < SHORT_S and not self.view.sure:
            self.end()
            self.number = None  # no request, and too short to detect
            return
        busiest = self._busiest(end_s)
        if self.number is None:
            self.choose(busiest)
        number = self.number or 0
        trace = self.recorder.trace(self.devices[number].uuid, max(self.start_s, end_s - LONGEST_S), end_s)
        periods = settled.periods if settled is not None and number == busiest else None
        if periods is None:
            from ....measurement.iterations import detect

            periods = detect(trace)
        known = settled if number == busiest else None
        if not periods.main_sure and (known is None or not known.summary.count):
            self._update(end_s, last=True)
            if self.view.sure:  # the result for the last part, after a change
                return
        level = self._chosen(periods)
        self.view = period_view(trace, periods, start_s=self.start_s, level=level, known=known)

    # inside

    def _update(self, now_s: float, *, last: bool = False) -> bool:
        if self.number is None and (len(self.devices) == 1 or now_s - self.start_s > SHORT_S or last):
            self.choose(self._busiest(now_s))
        if self._following is None:
            return False
        tracker = self._following.update()
        view = self.view
        iteration_s = view.level.period_s if view.level and view.spans else 4 * PACE_S
        ended_s = view.spans[-1].end_s + self.start_s if view.spans else self._updated_s
        if tracker.version == self._version and now_s - ended_s < iteration_s and not last:
            return False
        self._version, self._updated_s = tracker.version, now_s
        uuid = self.devices[self.number or 0].uuid
        # On the device's clock; the pauses in the notes are drawn.
        periods = replace(tracker.periods, notes=())
        since_s = max(self.start_s, now_s - WINDOW_S)
        if periods.main_sure and math.isfinite(tracker.since_s):
            since_s = max(since_s, tracker.since_s)  # the part before had another period
        new = period_view(
            self.recorder.trace(uuid, since_s, now_s), periods, start_s=self.start_s,
            level=self._chosen(periods), looking=tracker.state in ("looking", "changed"),
        )
        self.view = self._with_older(new, since_s - self.start_s)
        return True

    def _chosen(self, periods: Periods) -> DetectedPeriod | None:
        return next((each for each in periods.levels if each.name == self._level), None)

    def _with_older(self, new: PeriodView, from_s: float) -> PeriodView:
        """The analysis with earlier iterations from before its trace began."""
        first_s = new.spans[0].start_s if new.spans else from_s
        self._fresh_s = first_s
        self._older = [span for span in (*self._older, *self.view.spans) if span.start_s < first_s - 1e-6]
        self._older = sorted(set(self._older))[-MOST_SPANS:]
        last_s = first_s + 0.5 * (new.level.period_s if new.level else 0.0)
        kept = [span for span in self._older if span.end_s <= last_s]
        return replace(new, spans=(*kept, *new.spans))

    def _busiest(self, now_s: float) -> int:
        """The GPU that has drawn the most since the start."""

        def mean_w(device: Device) -> float:
            power = self.recorder.rows(device.uuid, self.start_s, now_s)["power_w"]
            known = power[~np.isnan(power)]
            return float(known.mean()) if len(known) else -1.0

        return max(range(len(self.devices)), key=lambda number: mean_w(self.devices[number]))


def _following(recorder: Recorder, uuid: str, from_s: float) -> Following:
    from ....measurement.follow import Following  # late: the detector brings the frames' library with it

    return Following(recorder, uuid, from_s)


def message(view: PeriodView, number: int, since_s: float = -math.inf) -> PeriodMessage:
    """An analysis as a message: words and pictures, and a table of the iterations from `since_s` on."""
    shown = [(span.start_s, span.end_s, span.pause) for span in view.spans if span.start_s >= since_s - 1e-6]
    spans = np.array(shown, np.float32).reshape(-1, 3)
    levels = [
        {"name": each.name, "seconds": each.period_s, "words": level_text(each)} for each in view.levels
    ]
    text = {
        "gpu": number, "since": since_s if math.isfinite(since_s) else None, "headline": view.headline,
        "details": list(view.details), "sure": view.sure, "levels": levels,
        "level": {"name": view.level.name, "seconds": view.level.period_s} if view.level else None,
        "spans": len(spans), "figure": described(view, number),
        "range": view.spectrum[[0, -1], 0].tolist() if len(view.spectrum) else None,
    }
    return text, spans
