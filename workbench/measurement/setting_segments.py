"""The settings that were active in a window, stretch by stretch."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from ..records import Setting, SettingSegment
from .energy_estimate import EnergyEstimate
from .sensor_updates import Floats

SHORTEST_S = 0.5  # a power limit is sampled five times per second, so a shorter stretch is not known well
SAME_W = 0.5  # two limits within it are one
MOST = 40  # stretches of a measurement that the log keeps; more are added up, each setting once


def setting_segments(
    times: Floats, limits_w: Floats, locks: Sequence[tuple[float, Setting]], within_s: tuple[float, float],
    between: Callable[[float, float], EnergyEstimate | None],
) -> tuple[SettingSegment, ...]:
    """The stretches of a window under one setting each, in order; at least one.

    Args:
        times, limits_w: When the power limit was sampled, and what it was.
        locks: Clocks that this process had locked, each from a moment on, oldest first.
        within_s: Start and end of the window.
        between: The energy between two moments.
    """
    start_s, end_s = within_s
    changes_s = [*times[1:][np.abs(np.diff(limits_w)) > SAME_W].tolist(), *(at_s for at_s, _ in locks)]
    borders_s = [start_s]
    for at_s in sorted(changes_s):
        if borders_s[-1] + SHORTEST_S <= at_s <= end_s - SHORTEST_S:
            borders_s.append(at_s)
    stretches: list[tuple[float, float, Setting]] = []
    for first_s, last_s in itertools.pairwise([*borders_s, end_s]):
        locked = [setting for at_s, setting in locks if at_s <= (first_s + last_s) / 2]
        inside = limits_w[(times >= first_s) & (times < last_s)]
        limit_w = float(np.median(inside)) if len(inside) else None
        setting = replace(locked[-1] if locked else Setting(), power_limit_w=limit_w)
        if stretches and stretches[-1][2] == setting:
            first_s = stretches.pop()[0]
        stretches.append((first_s, last_s, setting))
    found = []
    for first_s, last_s, setting in stretches:
        energy = between(first_s, last_s) if len(stretches) > 1 else None
        found.append(SettingSegment(setting, last_s - first_s, None if energy is None else energy.energy_j))
    return tuple(found) if len(found) <= MOST else by_setting(found)


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
