"""Which setting is the best by what is known: as near to the bound as errors and what the job has in hand
allow.
"""

from __future__ import annotations

import math

from ..records import Setting
from .core import Core


class Choosing(Core):
    """The part of a `Tuner` that chooses the setting to hold."""

    def _choose(self) -> None:
        """The best by what is known, as far inside the bound as that is unsure, and farther where the job
        was too slow so far.
        """
        params = self.params
        belief, bound = self._belief, self.max_slowdown
        assert belief is not None
        if self._pinned is not None:
            self._choice = belief.about(self._pinned)
            return
        if bound is None:
            self._choice = belief.choice(None)
            return
        traced = self._source is not None and self._source.name == "power"
        common = params.trace_margin * params.trace_error if traced else 0.0
        allowed = min(bound + self._in_hand() - common, 1.0)
        self._choice = belief.choice(max(0.0, allowed))
        if self._own(self._choice.setting) != Setting():
            allowed -= params.caution * self._choice.time_sd * self._choice.time_ratio
            self._choice = belief.choice(max(0.0, allowed))
        for _ in range(
            2
        # what the job has in hand is for errors; a setting that is believed to be beyond the bound is not
        # held
        ):
            over = self._choice.time_ratio - 1.0 - max(params.aim * bound - common, 0.0)
            if over <= 0.0 or self._own(self._choice.setting) == Setting():
                break
            allowed -= over
            self._choice = belief.choice(max(0.0, allowed))

    def _in_hand(self) -> float:
        """By which share an iteration may take longer than the bound asks, if it must be, without the whole
        job doing so.

        The baseline and quick probes leave something over; a job that was too slow so far owes.
        """
        params = self.params
        bound, saved = self.max_slowdown, self.book.saved()
        if bound is None or saved is None:
            return 0.0
        would_s = saved.time_s / (1.0 + saved.slowdown)
        left_s = (bound - saved.slowdown) * would_s
        if left_s > 0:  # what is in hand is known no better than the baseline
            left_s = max(0.0, left_s - 0.5 * saved.slowdown_uncertainty * would_s)
        return (
            min(left_s / max(params.in_hand_horizon_s, would_s), params.most_in_hand)
            if left_s >= 0
            else left_s / max(params.make_up_s, 0.25 * would_s)
        )

    def _keeps(self, setting: Setting) -> float:
        """Probability that a setting keeps what is allowed for, with what the job has in hand."""
        assert self._belief is not None
        if self.max_slowdown is None:
            return 1.0
        ratio, sd, _ = self._belief.ratios(setting)
        apart = math.log(max(1.0 + self.max_slowdown + self._in_hand(), 1.0)) - math.log(ratio)
        return 0.5 * math.erfc(-apart / max(sd, 1e-6) / math.sqrt(2.0))
