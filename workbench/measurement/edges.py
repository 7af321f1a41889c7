"""When a sensor refreshes, from the moments between which its value changed. Standard library only."""

from __future__ import annotations

import itertools
import math


class EdgeTracker:
    """When a sensor refreshes: a straight line through the moments at which its value was seen to change.

    Each edge is a bracket (last look at the old value, first look at the new one). Period and phase are a
    least-squares fit over the last edges, weighted by their widths; `error_s` is how far a predicted edge may
    be off.
    """

    KEEP = 32
    LONGEST_S = 0.4  # between two edges that were seen in one go; further ones do not report the period
    FINEST_S = 5e-5  # what a bracket is taken to be at least, as half a width
    SURE = 2.0  # standard errors within which an edge is counted on a line
    PARTS = 4  # of a period that may be too long, as edges between those on the line were seen too vaguely

    def __init__(self) -> None:
        self.edges: list[tuple[float, float]] = []  # midpoint, half width
        self._vague: list[tuple[float, float]] = []  # those dropped, which the line must not contradict
        self.period_s = math.nan
        self._origin_s = self._spread_s = self._slope_error = self._mean_error_s = self._middle = math.nan
        self.widen = 1.0  # of the next search for an edge
        self.doubt_s = 0.0  # half the stretch that the last search covered without success
        self.jitter_s = self.bracket_s = 0.0  # standard deviations of an edge: off the line, in its bracket

    def add(self, before_s: float, after_s: float) -> None:
        """An edge is between two readings; a bracket far wider than the best ones is dropped."""
        middle_s, half_s = (before_s + after_s) / 2, (after_s - before_s) / 2
        if self.edges and half_s > 6 * min(half for _, half in self.edges) + 0.002:
            self._vague = [*self._vague[-7:], (middle_s, half_s)]
            return
        if self.locked and self.SURE * self.error_s(middle_s) > 0.5 * self.period_s:
            self.forget()  # which edge of the line this is cannot be known
        self.edges = [*self.edges[-self.KEEP + 1 :], (middle_s, half_s)]
        if len(self.edges) >= 3:
            self._fit()

    def _fit(self) -> None:
        times = [middle for middle, _ in self.edges]
        period_s = self.period_s
        if math.isnan(period_s):
            period_s = min(b - a for a, b in itertools.pairwise(times))
            if period_s > self.LONGEST_S:
                return
            period_s /= next((n for n in range(1, self.PARTS) if self._fits(times[-1], period_s / n)), 1)
        weights = [1.0 / (half * half + self.FINEST_S**2) for _, half in self.edges]
        whole = sum(weights)
        for _ in range(3):  # numbering by the period, then the period by the numbers
            numbers = [round((t - times[-1]) / period_s) for t in times]
            mean_k, mean_t = (
                sum(w * each for w, each in zip(weights, values, strict=True)) / whole
                for values in (numbers, times)
            )
            rows = list(zip(weights, numbers, times, strict=True))
            spread = sum(w * (k - mean_k) ** 2 for w, k, _ in rows)
            if not spread:
                return
            period_s = sum(w * (k - mean_k) * (t - mean_t) for w, k, t in rows) / spread
            if not period_s > 0:
                return
        squares = sum(w * (t - mean_t - (k - mean_k) * period_s) ** 2 for w, k, t in rows)
        scale = math.sqrt(max(squares / max(1, len(rows) - 2), 1 / 3))  # of the half widths
        bracket_s2 = sum(half * half for _, half in self.edges) / 3 / len(rows)  # a bracket tells no more
        off_s2 = sum((t - mean_t - (k - mean_k) * period_s) ** 2 for _, k, t in rows) / max(1, len(rows) - 2)
        self.jitter_s = math.sqrt(max(0.0, off_s2 - bracket_s2))
        self.bracket_s = math.sqrt(bracket_s2)
        self.period_s = period_s
        self._origin_s, self._middle = mean_t - mean_k * period_s, mean_k
        self._spread_s = scale * math.sqrt(len(rows) / whole)
        self._slope_error = scale / math.sqrt(spread)
        self._mean_error_s = scale / math.sqrt(whole)

    def _fits(self, origin_s: float, period_s: float) -> bool:
        """Whether the edges that were seen vaguely may are on a line."""
        return all(
            abs(math.remainder(middle_s - origin_s, period_s)) <= half_s + 0.1 * period_s
            for middle_s, half_s in self._vague
        )

    def forget(self) -> None:
        """Begin again: the sensor has left its line."""
        self.edges, self._vague, self.period_s, self._origin_s = [], [], math.nan, math.nan
        self.widen, self.doubt_s = 1.0, 0.0

    @property
    def locked(self) -> bool:
        """Whether edges can be predicted: enough were seen and they are on one line."""
        fitted = len(self.edges) >= 3 and not math.isnan(self._origin_s)
        return fitted and self._spread_s < 0.15 * self.period_s

    def edge_before(self, at_s: float) -> float:
        """The last edge at or before a time."""
        return self._origin_s + math.floor((at_s - self._origin_s) / self.period_s) * self.period_s

    def error_s(self, at_s: float) -> float:
        """Standard error of a predicted edge near a time."""
        ahead = (at_s - self._origin_s) / self.period_s - self._middle  # the line is surest amid its edges
        return math.hypot(self._mean_error_s, self._slope_error * ahead)

    def tick(self, before_s: float, after_s: float) -> tuple[float, float]:
        """The refresh that a reading between two moments shows, and its standard error; NaN where two fit."""
        if not self.locked:
            return math.nan, math.nan
        error_s = math.hypot(self.error_s(after_s), self.jitter_s, self.doubt_s)
        tick_s = self.edge_before(before_s - 2 * error_s)
        # Half a period apart is another refresh; computed twice, one differs in its last digits.
        if self.edge_before(after_s + 2 * error_s) - tick_s < 0.5 * self.period_s:
            return tick_s, error_s
        return math.nan, math.nan
