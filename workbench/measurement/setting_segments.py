"""The settings that were active in a window, stretch by stretch."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from ..device.restore import SAME_W
from ..records import Setting, SettingSegment
from .sampler import STATUS_EVERY_S
from .sensor_updates import Floats

SHORTEST_S = 2 * STATUS_EVERY_S  # of a stretch: a shorter one has no sample of the power limit for sure
MOST = 40  # stretches that a measurement keeps; more are added up, each setting once


def setting_segments(
    times: Floats, limits_w: Floats, locks: Sequence[tuple[float, Setting]], within_s: tuple[float, float],
    energies_j: Callable[[Sequence[float]], Floats],
) -> tuple[SettingSegment, ...]:
    """The stretches of a window under one setting each, in order; at least one. Of more than `MOST` each
    setting once.

    Args:
        times, limits_w: When the power limit was sampled, and what it was.
        locks: Clocks that this process had locked, each from a moment on, oldest first.
        within_s: Start and end of the window.
        energies_j: The energy of each stretch between moments; NaN where it is not known.
    """
    start_s, end_s = within_s
    locked_s = [at_s for at_s, _ in locks]
    borders_s = [start_s]
    for at_s in sorted([*times[1:][np.abs(np.diff(limits_w)) > SAME_W].tolist(), *locked_s]):
        if borders_s[-1] + SHORTEST_S <= at_s <= end_s - SHORTEST_S:
            borders_s.append(at_s)
    moments_s, settings = [], list[Setting]()
    for first_s, last_s in itertools.pairwise([*borders_s, end_s]):
        sampled_w = limits_w[(times >= first_s) & (times < last_s)]
        place = bisect.bisect_right(locked_s, (first_s + last_s) / 2)
        locked = locks[place - 1][1] if place else Setting()
        setting = replace(locked, power_limit_w=float(np.median(sampled_w)) if len(sampled_w) else None)
        if not settings or settings[-1] != setting:
            settings.append(setting)
            moments_s.append(first_s)
    moments_s.append(end_s)
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
