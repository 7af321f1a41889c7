"""A recorder's GPUs, each with a tracker: what a live view asks a few times per second."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable

from ..periods.tracker import PeriodTracker
from .recorder import Recorder


class Following:
    """Follows the period of one GPU of a recorder, and asks it for the polling that the tracker wants.

    Args:
        recorder: Where rows come from.
        uuid: Of which GPU.
        from_s: Follow from this time of the device's clock on; the present where None.
        make: Makes the tracker.
    """

    def __init__(
        self, recorder: Recorder, uuid: str, from_s: float | None = None, *,
        make: Callable[[], PeriodTracker] = PeriodTracker,
    ) -> None:
        self.recorder, self.uuid, self.tracker = recorder, uuid, make()
        self._last_s = recorder.clock() if from_s is None else from_s
        self._asked_s: float | None = None
        self._give_back: weakref.finalize[..., Following] | None = None  # also where nobody calls `end`

    def update(self) -> PeriodTracker:
        """The tracker, with everything that was recorded by now. Cheap where nothing is new."""
        newest = self.recorder.latest(self.uuid)
        if newest is None or newest["time_s"] <= self._last_s:
            return self.tracker
        rows = self.recorder.rows(self.uuid, math.nextafter(self._last_s, math.inf), float(newest["time_s"]))
        if len(rows):
            self._last_s = float(rows["time_s"][-1])
            self.tracker.feed(rows)
        if self.tracker.wanted_interval_s != self._asked_s:
            self._asked_s = self.tracker.wanted_interval_s
            self.recorder.ask_interval(self.uuid, self._asked_s)
            self._give_back = self._give_back or weakref.finalize(
                self, self.recorder.ask_interval, self.uuid, None
            )
        return self.tracker

    def end(self) -> None:
        """Leave the polling to the sampler again."""
        if self._give_back is not None:
            self._give_back()
        self._asked_s = self._give_back = None
