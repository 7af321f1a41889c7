"""The settings that were active in a window, stretch by stretch."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from ..records import Setting, SettingSegment
from .sensor_updates import Floats

SHORTEST_S = 0.5  # a power limit is sampled five times per second, so a shorter stretch is not known well
SAME_W = 0.5  # two limits within it are one
MOST = 40  # stretches of a measurement that the log keeps; more are added up, each setting once


def setting_segments(
    times: Floats, limits_w: Floats, locks: Sequence[tuple[float, Setting]], within_s: tuple[float, float],
    energies_j: Callable[[Sequence[float]], Floats],
) -> tuple[SettingSegment, ...]:
    """The stretches of a window under one setting each, in order; at least one.

    Args:
        times, limits_w: When the power limit was sampled, and what it was.
        locks: Clocks that this process had locked, each from a moment on, oldest first.
        within_s: Start and end of the window.
        energies_j: The energy of each stretch between moments; NaN where it is not known.
    """
    start_s, end_s = within_s
    changes_s = [*times[1:][np.abs(np.diff(limits_w)) > SAME_W].tolist(), *(at_s for at_s, _ in locks)]
    borders_s = [start_s]
    for at_s in sorted(changes_s):
        if borders_s[-1] + SHORTEST_S <= at_s <= end_s - SHORTEST_S:
            borders_s.append(at_s)
    borders_s.append(end_s)
    rows, locked_s = np.searchsorted(times, borders_s).tolist(), [at_s for at_s, _ in locks]
    moments_s, settings = [start_s], list[Setting]()
    for first, last, (first_s, last_s) in zip(rows, rows[1:], itertools.pairwise(borders_s), strict=False):
        limit_w = float(np.median(limits_w[first:last])) if last > first else None
        place = bisect.bisect_right(locked_s, (first_s + last_s) / 2)
        setting = replace(locks[place - 1][1] if place else Setting(), power_limit_w=limit_w)
        if settings and settings[-1] == setting:
            moments_s[-1] = last_s
        else:
            settings.append(setting)
            moments_s.append(last_s)
    if len(settings) == 1:
        return (SettingSegment(settings[0], end_s - start_s, None),)
    joules = [None if math.isnan(each) else each for each in energies_j(moments_s).tolist()]
    found = tuple(map(SettingSegment, settings, np.diff(moments_s).tolist(), joules))
    return found if len(found) <= MOST else by_setting(found)


def by_setting(segments: Sequence[SettingSegment]) -> tuple[SettingSegment, ...]:
    """Each setting once, longest first, with the time and energy of all its stretches."""
    sums: dict[Setting, SettingSegment] = {}
    for each in segments:
        known = sums.get(each.setting, SettingSegment(each.setting, 0.0, 0.0))
        energy_j = None
        if known.energy_j is not None and each.energy_j is not None:
            energy_j = known.energy_j + each.energy_j
        sums[each.setting] = SettingSegment(each.setting, known.time_s + each.time_s, energy_j)
    return tuple(sorted(sums.values(), key=lambda each: -each.time_s))
