"""Interpolates from the settings of a training set to any setting of the card.

Interpolation is linear in the logarithm of the clock. Below the lowest measured clock, the line from the
reference is extended. A power limit acts as the clock at which the predicted power meets it, as in the
driver. If the training set has curves over limits too, it is the mean of both. A memory clock that the
training set does not have stays unknown.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ....records import Setting
from .curves import Array, Nodes

NEAR = 0.01  # two clocks this close, as a share of the highest, are one
REACH = 0.5  # largest distance of a clock or limit below the measured ones, as a share of them


def read(
    nodes: Nodes, table: Array, settings: Sequence[Setting], *, full_limit_w: float | None,
    power_w: float | None, log_power: Array,
) -> Array:
    """A table of the training settings, (nodes, columns), at other settings; NaN where it is unknown.

    Args:
        nodes: The training settings.
        table: 0 at the reference, which is not a node.
        settings: The requested settings.
        full_limit_w: A limit as high as this has no effect.
        power_w: Mean power at the reference; without it, values at limits are unknown.
        log_power: Predicted ln of relative power at the training settings, (nodes,).
    """
    found = np.full((len(settings), table.shape[1]), np.nan)
    for row, each in enumerate(settings):
        x = _relative(each.sm_clock_mhz, nodes.max_sm_clock_mhz)
        mu = _relative(each.mem_clock_mhz, nodes.max_mem_clock_mhz)
        if each.power_limit_w is None or (full_limit_w is not None and each.power_limit_w >= full_limit_w):
            found[row] = _at_clock(nodes, table, x, mu)
        elif power_w is not None and abs(x - 1) <= NEAR and abs(mu - 1) <= NEAR:
            found[row] = _at_cap(nodes, table, each.power_limit_w / power_w, log_power)
    return found


def _relative(clock_mhz: int | None, highest_mhz: float | None) -> float:
    """1 where the driver decides; NaN for a clock that the training set does not cover."""
    return 1.0 if clock_mhz is None else np.nan if highest_mhz is None else clock_mhz / highest_mhz


def _at_clock(nodes: Nodes, table: Array, x: float, mu: float) -> Array:
    at = np.flatnonzero((nodes.cap == 1) & (np.abs(nodes.mu - mu) <= NEAR))
    return _line(nodes.x[at], table[at], x, at_top=abs(mu - 1) <= NEAR)


def _at_cap(nodes: Nodes, table: Array, cap: float, log_power: Array) -> Array:
    if cap >= 1:
        return np.zeros(table.shape[1])
    capped = np.flatnonzero(nodes.cap < 1)
    clocked = np.flatnonzero((nodes.mu == 1) & (nodes.x < 1) & (nodes.cap == 1))
    ways = [_line(nodes.cap[capped], table[capped], cap, at_top=True)] if len(capped) else []
    if len(clocked):
        order = clocked[np.argsort(nodes.x[clocked])]
        powers = np.maximum.accumulate(np.append(log_power[order], 0.0))
        x = np.exp(np.interp(np.log(cap), powers, np.append(np.log(nodes.x[order]), 0.0)))
        ways.append(_at_clock(nodes, table, float(x), 1.0))
    known = [each for each in ways if np.isfinite(each).all()]
    return np.mean(known, axis=0) if known else np.full(table.shape[1], np.nan)


def _line(places: Array, table: Array, want: float, *, at_top: bool) -> Array:
    """Straight in the logarithm; with the reference, where all is 0, where `at_top`."""
    if at_top:
        places, table = np.append(places, 1.0), np.vstack([table, np.zeros(table.shape[1])])
    order = np.argsort(places)
    logs, table = np.log(places[order]), table[order]
    if not len(logs) or not logs[0] + np.log(REACH) <= np.log(want) <= logs[-1] + NEAR:
        return np.full(table.shape[1], np.nan)
    inside = np.array([np.interp(np.log(want), logs, column) for column in table.T])
    below = min(np.log(want) - logs[0], 0.0)
    if below and len(logs) > 1:
        inside += below * (table[-1] - table[0]) / (logs[-1] - logs[0])
    return inside
