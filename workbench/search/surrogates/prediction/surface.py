"""From the settings of a training set to any setting of the card: weights of the training settings, one row a
wanted setting.

Between clocks everything is straight in the logarithm of the clock; below the lowest clock that was measured
the line from the reference is drawn out. A power limit acts as the clock at which the predicted power meets
it, which is what the driver does (`search.response`); where the training set has curves over limits too, it
is the mean of both. What the training set cannot tell, a memory clock it never saw, stays untold.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ....records import Setting
from .curves import Array, Nodes

NEAR = 0.01  # two clocks this close, as a share of the highest, are one
REACH = 0.5  # how far below what was measured a clock or limit may lie, as a share of it


def weights(
    nodes: Nodes, settings: Sequence[Setting], *, full_limit_w: float | None, power_w: float | None,
    log_power: Array,
) -> tuple[Array, Array]:
    """Weights (settings, nodes) of the training settings, and a mask of settings that have any.

    Args:
        full_limit_w: A limit as high as this changes nothing.
        power_w: Mean power at the reference; without it nothing can be told of limits.
        log_power: Predicted ln of relative power at the training settings, (nodes,).
    """
    rows, known = np.zeros((len(settings), len(nodes))), np.zeros(len(settings), bool)
    for row, each in enumerate(settings):
        x = _relative(each.sm_clock_mhz, nodes.max_sm_clock_mhz)
        mu = _relative(each.mem_clock_mhz, nodes.max_mem_clock_mhz)
        limit_w = each.power_limit_w
        if x is None or mu is None:
            continue
        if limit_w is None or (full_limit_w is not None and limit_w >= full_limit_w):
            known[row] = _at_clock(nodes, x, mu, rows[row])
        elif power_w is not None and abs(x - 1) <= NEAR and abs(mu - 1) <= NEAR:
            known[row] = _at_cap(nodes, limit_w / power_w, log_power, rows[row])
    return rows, known


def _relative(clock_mhz: int | None, highest_mhz: float | None) -> float | None:
    """1 where the driver decides; None for a clock of which the training set says nothing."""
    if clock_mhz is None:
        return 1.0
    return None if highest_mhz is None else clock_mhz / highest_mhz


def _at_clock(nodes: Nodes, x: float, mu: float, row: Array) -> bool:
    clocked = nodes.cap == 1
    levels = sorted({1.0, *nodes.mu[clocked].tolist()})
    near = [each for each in levels if abs(each - mu) <= NEAR]
    if near:
        return _at_level(nodes, near[0], x, row, 1.0)
    above, below = [each for each in levels if each > mu], [each for each in levels if each < mu]
    if not above or not below:
        return False
    high, low = above[0], below[-1]
    part = float(np.log(mu / low) / np.log(high / low))
    return _at_level(nodes, high, x, row, part) and _at_level(nodes, low, x, row, 1 - part)


def _at_level(nodes: Nodes, mu: float, x: float, row: Array, part: float) -> bool:
    """Add the weights of one memory clock; the reference, where all is zero, stands at (1, 1)."""
    at = np.flatnonzero((nodes.cap == 1) & (nodes.mu == mu))
    places = [(float(np.log(nodes.x[i])), int(i)) for i in at]
    if mu == 1 and not any(abs(place) < 1e-9 for place, _ in places):
        places.append((0.0, -1))
    places.sort()
    return _line(places, float(np.log(x)), row, part)


def _at_cap(nodes: Nodes, cap: float, log_power: Array, row: Array) -> bool:
    if cap >= 1:
        return True
    capped = np.flatnonzero(nodes.cap < 1)
    clocked = np.flatnonzero((nodes.mu == 1) & (nodes.x < 1) & (nodes.cap == 1))
    ways = int(len(capped) > 0) + int(len(clocked) > 0)
    known = False
    if len(capped):
        caps = sorted([(float(np.log(nodes.cap[i])), int(i)) for i in capped] + [(0.0, -1)])
        known |= _line(caps, float(np.log(cap)), row, 1 / ways)
    if len(clocked):
        order = clocked[np.argsort(nodes.x[clocked])]
        clocks = np.append(np.log(nodes.x[order]), 0.0)
        powers = np.maximum.accumulate(np.append(log_power[order], 0.0))
        level = float(np.exp(np.interp(np.log(cap), powers, clocks)))
        known |= _at_level(nodes, 1.0, level, row, 1 / ways if known else 1.0)
    return known


def _line(places: list[tuple[float, int]], want: float, row: Array, part: float) -> bool:
    """Straight between two places; beyond the lowest one the line from the highest is drawn out."""
    spots = np.array([each for each, _ in places])
    if not len(spots) or want > spots[-1] + NEAR or want < spots[0] + np.log(REACH):
        return False
    if len(spots) == 1 and want < spots[0] - NEAR:
        return False
    if want >= spots[-1] or len(spots) == 1:
        ends = [(places[-1][1], 1.0)]
    else:
        high = len(spots) - 1 if want < spots[0] else max(int(np.searchsorted(spots, want)), 1)
        low = 0 if want < spots[0] else high - 1
        share = (want - spots[low]) / (spots[high] - spots[low])
        ends = [(places[low][1], 1 - share), (places[high][1], share)]
    for node, weight in ends:
        if node >= 0:
            row[node] += part * weight
    return True
