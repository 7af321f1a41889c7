"""Time as a parameter: the machine's monotonic clock, or a simulated GPU's, faster or stepped."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Seconds since an arbitrary start that never go back."""

    def __call__(self) -> float: ...

    def sleep(self, seconds: float) -> None:
        """Return when `seconds` of this clock have passed."""

    def unix_s(self, at_s: float) -> float:
        """The civil time (seconds since 1970) of a reading of this clock."""


class MonotonicClock:
    """The machine's own clock."""

    def __call__(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        if seconds > 0:
            time.sleep(seconds)

    def unix_s(self, at_s: float) -> float:
        return time.time() - time.monotonic() + at_s  # again: the machine may have slept, or been set right


MONOTONIC = MonotonicClock()
