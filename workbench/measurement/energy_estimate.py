"""The energy between two moments, with its error: `EnergyTimeline`, the one source of joules.

By a sensor's refreshes where it was followed (`sensor_updates`); else by the counter at the edges of a
window, straight lines between its readings, or trapezoids between power readings.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..records import Window
from . import sensor_updates
from .sampled_counter import missed_variance
from .sensor_updates import UNIFORM, EnergyParts, Floats, Rows, SensorUpdates, half_widths

UNKNOWN_W = 300.0  # what a GPU may draw where neither readings nor a limit are known
POSSIBLE = 2.0  # times its highest power limit, that no GPU draws for the length of a refresh
MOVING_S = 0.016  # between two changes of a counter that changes at every look, at most


class EnergyEstimate(NamedTuple):
    """Joules, the half width of their 95 % interval, and how they were had.

    `source` is "refreshes" (the sensor's refreshes around the edges), "difference" (of the counter as it was
    read at the edges), "readings" (of the counter, in between) or "power" (trapezoids).
    """

    energy_j: float
    uncertainty_j: float
    source: str = "refreshes"


def add_estimates(estimates: Sequence[EnergyEstimate | None]) -> EnergyEstimate | None:
    """The energy of several GPUs together; None where one is not known, or where there is none."""
    known = [each for each in estimates if each is not None]
    if not known or len(known) < len(estimates):
        return None
    return EnergyEstimate(sum(each.energy_j for each in known),
                          math.hypot(*(each.uncertainty_j for each in known)), known[0].source)


def add_parts(timelines: Sequence[EnergyTimeline], moments: Sequence[float] | Floats) -> EnergyParts:
    """The stretches between moments, of several GPUs together; NaN where there is no GPU."""
    parts = [timeline.parts(moments) for timeline in timelines]
    if not parts:
        nothing = np.full(max(len(moments) - 1, 0), np.nan)
        return EnergyParts(nothing, nothing)
    return EnergyParts(np.sum([part.energy_j for part in parts], axis=0),
                       np.sqrt(np.sum([np.square(part.uncertainty_j) for part in parts], axis=0)))


class Break(NamedTuple):
    """A span in which a counter started again, or rose by more than its GPU can draw.

    Its energy is between none and the most that the GPU may draw: `half_j` around the middle; infinite where
    nothing was read for `LATE_S`.
    """

    from_s: float
    to_s: float
    rise_j: float  # of the counter
    half_j: float


class EnergyTimeline:
    """The energy that one GPU has drawn between any two moments its samples surround.

    Args:
        rows: Samples of the GPU (`samples.ROWS`), from some refreshes before the first moment that is asked
            about to one after the last.
        power_window_s: Averaging window of a power reading, if known.
        counted: Whether the GPU has an energy counter; as the rows show where None.
        most_w: The most that the GPU may draw, where the rows show no power limit.
        update_s: The time between two refreshes of the sensor, as far as it is known.
        window: A closed window, at whose edges the counter was read.
        number: The place of the GPU among those of the window.
        part_time: Whether the counter only sums power readings (`sampled_counter.sums_readings`); None where
            that is not known.
    """

    def __init__(
        self, rows: Rows, *, power_window_s: float | None = None, counted: bool | None = None,
        most_w: float = 0.0, update_s: float | None = None, window: Window | None = None, number: int = 0,
        part_time: bool | None = False,
    ) -> None:
        self._update_s, self.rows = update_s or 0.1, rows
        limits = rows["power_limit_w"][np.isfinite(rows["power_limit_w"])]
        highest_w = max([most_w, *limits])
        self.counted = bool(np.isfinite(rows["energy_j"]).any()) if counted is None else counted
        self._window = window if self.counted and window is not None and window.end_s is not None else None
        self._opened = window.opened[number] if self._window is not None and window is not None else None
        self._closed = window.closed[number] if self._window is not None and window is not None else None
        self._mended, self.breaks = _mended(rows, highest_w, self._update_s)
        if self.breaks:  # the readings at the edges are of the counter as it was
            self._window = self._opened = self._closed = None
        most_w = float(limits.max()) if len(limits) else most_w
        self._most_w, self._part_time, self._power_window_s = most_w, part_time, power_window_s or 0.0
        self._updates = sensor_updates.as_updates(
            self._mended, power_window_s, self._closed, most_w, part_time=part_time
        )

    @property
    def moving(self) -> bool:
        """Whether the counter changes at every look, so that its plain difference is all there is to know."""
        return self._update_s < MOVING_S

    @property
    def difference_j(self) -> float:
        """Rise of the counter between the edges of the window; NaN if it was not read."""
        if self._opened is None or self._closed is None:
            return math.nan
        return self._closed.energy_j - self._opened.energy_j

    def missed_j(self, start_s: float, end_s: float) -> float:
        """Half width (J) of what a counter that only sums readings may miss; 0 where it integrates."""
        if self._part_time is False:
            return 0.0
        return float(np.sqrt(self._missed_j2(np.array([start_s, end_s]))[0]))

    def _missed_j2(self, moments: Floats) -> Floats:
        at_s, power_w = _power_readings(self.rows)
        fresh = np.append(True, np.diff(power_w) != 0)[: len(at_s)]  # looks may be closer than refreshes
        return 1.96**2 * missed_variance(at_s[fresh], power_w[fresh], self._power_window_s, moments)

    def between(self, start_s: float, end_s: float) -> EnergyEstimate | None:
        """The energy between two moments; None where it is not known. Raises ValueError if they go back."""
        parts, source = self._parts(np.array([start_s, end_s]))
        if not parts.known[0]:
            return None
        return EnergyEstimate(max(float(parts.energy_j[0]), 0.0), float(parts.uncertainty_j[0]), source)

    def parts(self, moments: Sequence[float] | Floats) -> EnergyParts:
        """The stretches between two or more moments, at each of which power may change (some 2 ms each), and
        which make up `between`. ValueError where the moments go back.
        """
        return self._parts(np.asarray(moments, float))[0]

    def energies_j(self, moments: Sequence[float] | Floats) -> Floats:
        """The energies alone (J), as if power changed at the first and the last moment only; for thousands of
        stretches.
        """
        at_s = np.asarray(moments, float)
        if (updates := self._followed(at_s)) is not None:
            return sensor_updates.energies_by_refreshes(updates, at_s)
        return self._parts(at_s)[0].energy_j

    def _followed(self, moments: Floats) -> SensorUpdates | None:
        """The refreshes, where they surround all the moments."""
        if len(moments) < 2:
            return None
        if np.min(np.diff(moments)) < 0:
            raise ValueError(f"the window ends {-np.min(np.diff(moments)):g} s before it starts")
        found = self._updates
        followed = found is not None and sensor_updates.reaches(found, moments[0], moments[-1])
        return found if followed else None

    def _parts(self, moments: Floats) -> tuple[EnergyParts, str]:
        if len(moments) < 2:
            return EnergyParts(np.empty(0), np.empty(0)), "refreshes"
        (energy_j, half_j), source = self._by_any(moments)
        for each in self.breaks if source != "power" else ():
            half_j = half_j + each.half_j * ((moments[:-1] < each.to_s) & (moments[1:] > each.from_s))
        return EnergyParts(energy_j, half_j), source

    def _by_any(self, moments: Floats) -> tuple[EnergyParts, str]:
        if (updates := self._followed(moments)) is not None:
            return sensor_updates.energy_by_refreshes(updates, moments), "refreshes"
        window, difference_j = self._window, self.difference_j
        if window is not None and (moments[0], moments[-1]) == (window.start_s, window.end_s):
            if difference_j >= 0:
                return self._by_difference(moments), "difference"
            if difference_j < 0:
                nothing = np.full(len(moments) - 1, np.nan)
                return EnergyParts(nothing, nothing), "difference"
        if self.counted and (found := self._by_readings(moments)) is not None:
            return found, "readings"
        return self._by_power(moments), "power"

    def _by_difference(self, moments: Floats) -> EnergyParts:
        """The counter as read before and after the window; each is off by up to one update's energy, by the
        energy of half its own call, and by what power did between its reading and the window.
        """
        opened, closed = self._opened, self._closed
        assert opened is not None
        assert closed is not None
        observed_s, observed_j = _counter_readings(self._mended)
        inside = (observed_s > opened.time_s) & (observed_s < closed.time_s)
        inside &= (observed_j > opened.energy_j) & (observed_j < closed.energy_j)
        at_s = np.concatenate([[opened.time_s], observed_s[inside], [closed.time_s]])
        joules = np.maximum.accumulate(
            np.concatenate([[opened.energy_j], observed_j[inside], [closed.energy_j]])
        )
        mean_w = (joules[-1] - joules[0]) / max(at_s[-1] - at_s[0], self._update_s)
        away_s = max(moments[0] - opened.time_s, closed.time_s - moments[-1])
        # A counter may rest with its GPU: what it shows is as old as its value.
        ages_s = [edge.time_s - min(observed_s[observed_j == edge.energy_j], default=edge.time_s)
                  for edge in (opened, closed)]
        stale_s = max(self._update_s, *ages_s)
        off_s = math.hypot(stale_s, max(opened.took_s, closed.took_s), away_s)
        half_j = UNIFORM * off_s * self._most_near(moments, mean_w)
        gap = np.clip(np.searchsorted(at_s, moments, side="right") - 1, 0, len(at_s) - 2)
        half_j[1:-1] = np.maximum(half_j, UNIFORM * np.diff(joules)[gap])[1:-1]
        variance = np.square(half_widths(half_j))
        if self._part_time is not False:
            variance += self._missed_j2(moments)
        return EnergyParts(np.diff(np.interp(moments, at_s, joules)), np.sqrt(variance))

    def _most_near(self, moments: Floats, mean_w: float) -> Floats:
        """The highest power readings (W) around moments; half way to the limit without readings."""
        times, watts = _power_readings(self.rows)
        if not len(watts):
            return np.full(len(moments), max(0.5 * (mean_w + self._most_w), mean_w) or UNKNOWN_W)
        places = np.searchsorted(times, moments)
        reach = 2 * sensor_updates.NEIGHBOURS
        return np.array([watts[max(n - reach, 0) : n + reach].max(initial=mean_w) for n in places.tolist()])

    def _by_readings(self, moments: Floats) -> EnergyParts | None:
        """Straight lines between readings of the counter, for a sampling that could not follow its refreshes;
        nothing is known beyond them.
        """
        at_s, joules = _counter_readings(self._mended)
        if len(at_s) < 2:
            return None
        gains, spans = np.diff(joules), np.diff(at_s)
        lost = spans > max(sensor_updates.LATE_S, 3.0 * float(np.median(spans)))
        gap = np.clip(np.searchsorted(at_s, moments) - 1, 0, len(gains) - 1)
        unknown = lost[gap] | (moments < at_s[0]) | (moments > at_s[-1])
        half_j = np.where(unknown, np.inf, UNIFORM * gains[gap])
        return EnergyParts(np.diff(np.interp(moments, at_s, joules)), half_widths(half_j))

    def _by_power(self, moments: Floats) -> EnergyParts:
        """Trapezoids between power readings, for a sensor without a counter whose refreshes are not known (it
        showed the same value all the time, or refreshes at no fixed pace).
        """
        times, watts = _power_readings(self.rows)
        if len(times) < 2:
            nothing = np.full(len(moments) - 1, np.nan)
            return EnergyParts(nothing, nothing)
        inside = (times > moments[0]) & (times < moments[-1])
        at_s = np.union1d(times[inside], moments)
        at_w = np.interp(at_s, times, watts)
        spans = np.diff(at_s)
        # Between two readings power may have been either's all along.
        areas = spans * (at_w[1:] + at_w[:-1]) / 2, np.square(np.diff(at_w) * spans / 2)
        place = np.searchsorted(at_s, moments)
        energy_j, variance = (np.diff(np.append(0.0, np.cumsum(each))[place]) for each in areas)
        # Errors of readings last where the load repeats nearly as often as it is read.
        half_j = np.sqrt(np.maximum(1.96**2 * variance, self._missed_j2(moments)))
        half_j += 0.02 * energy_j / np.maximum(np.diff(place) + 1, 1)
        covered = (times[0] <= moments) & (moments <= times[-1] + 0.3)
        return EnergyParts(energy_j, np.where(covered[1:] & covered[:-1], half_j, np.inf))


def _mended(rows: Rows, most_w: float, update_s: float) -> tuple[Rows, list[Break]]:
    """Rows with a continuous counter, and its breaks. In a break it rises by half of what `most_w` gives."""
    known = np.flatnonzero(np.isfinite(rows["energy_j"]))
    joules, times_s = rows["energy_j"][known], rows["time_s"][known]
    new = np.flatnonzero(np.diff(joules)) + 1  # the first row of each value but the first
    rises_j = joules[new] - joules[new - 1]
    # At most: a driver that hangs may answer as late as the next row begins.
    later_s = np.append(times_s[1:], times_s[-1:])
    spans_s = later_s[new] - times_s[np.append(0, new[:-1] - 1)[: len(new)]] + update_s
    # The first value may be of any age.
    jumps = np.append(False, rises_j[1:] > POSSIBLE * (most_w or math.inf) * spans_s[1:])[: len(new)]
    back = rises_j < 0.0
    # The first rise after a restart is unknown too, because the time of the restart is.
    wrong = np.flatnonzero(back | np.append(False, back[:-1])[: len(new)] | jumps)
    # Times between refreshes are shorter, where they are known.
    between_s = 1.1 * (rows["tick_s"][known[new]] - rows["tick_s"][known[new - 1]])
    spans_s = np.where(between_s > 0.0, np.minimum(between_s, spans_s), spans_s)
    offsets_j, breaks = np.zeros(len(known)), []
    for place in wrong.tolist():
        row = new[place]
        from_s, to_s = float(times_s[row] - spans_s[place]), float(times_s[row])
        most_j = (most_w or UNKNOWN_W) * spans_s[place]
        breaks.append(Break(from_s, to_s, float(rises_j[place]),
                            most_j / 2 if to_s - from_s < sensor_updates.LATE_S else math.inf))
        offsets_j[row:] += most_j / 2 - rises_j[place]
    if breaks:
        rows = rows.copy()
        rows["energy_j"][known] += offsets_j
    return rows, breaks


def _power_readings(rows: Rows) -> tuple[Floats, Floats]:
    known = rows[np.isfinite(rows["power_w"]) & np.isfinite(rows["time_s"])]
    times, first = np.unique(known["time_s"], return_index=True)
    return times, known["power_w"][first].astype(float)


def _counter_readings(rows: Rows) -> tuple[Floats, Floats]:
    """Times (s) and values (J) of the counter's refreshes; the first reading of each value if unknown."""
    rows = rows[np.isfinite(rows["energy_j"])]
    if not len(rows):
        return np.empty(0), np.empty(0)
    ticked = np.isfinite(rows["tick_s"])
    fresh = np.append(True, np.diff(rows["energy_j"]) != 0)
    kept = fresh | (ticked & np.append(True, np.diff(rows["tick_s"]) != 0))
    times, first = np.unique(np.where(ticked, rows["tick_s"], rows["time_s"])[kept], return_index=True)
    return times, rows["energy_j"][kept][first]
