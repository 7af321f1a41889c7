"""One card's response to clocks and limits, from two numbers of a workload: its memory activity and its
power.

With d the activity of memory at the reference, d_full that of a fully memory-bound workload, b = d/d_full,
a**n + b**n = 1 and q the share of gaps,

    time_j  = q + (1 - q) * ((a*A_j)**n + (b*M_j)**n)**(1/n)                 a roofline with a rounded edge
            (Williams et al., 2009)
    power_j = (static_j * unit + clocked_j * p + memory_j * d * unit) / p    p is power at the reference,
                                                                             `unit` that of the training set

relative to the reference, at each setting j of the training set. A_j and M_j are how much longer clock-bound
and memory-bound work takes there. On paper that is the ratio of clocks. But cards run other clocks than
requested, and memory slows where the crossbar's clock falls. So they are fitted, and regularised towards the
ratios. Three numbers a setting for power, none below zero, do the same for power. So few numbers carry over
to workloads unlike those of the training set, which trees do not.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares, nnls

from .curves import Array, RelativeCurves

MEMORY = ("dram_active", "memory_utilisation")  # the first that is reported
BUSY = "gpu_utilisation"
SHARE = "power_share"
SOFT = 0.05  # of ln time: a misfit beyond it counts by its size, not its square
HOLD = 0.02  # weight of the clocks' ratios against one workload
FULL = 0.999
# Power at the reference in watts, if a training set does not determine it.
STATIC, CLOCKED, MEMORY_POWER = 0.25, 0.65, 0.10


@dataclass(frozen=True)
class CardPhysics:
    """The fitted numbers of one card: `clocked` and `memory` are ln A_j and ln M_j, `watts` is (nodes, 3)."""

    edge: float
    full: float
    gap: float
    clocked: Array
    memory: Array
    watts: Array
    typical_memory: float  # used if a workload does not report it

    def log_time(self, names: tuple[str, ...], features: Array) -> Array:
        """ln of relative time, (workloads, nodes)."""
        active, idle = _inputs(names, features, self.typical_memory)
        return _time(self.edge, self.full, self.gap, active, idle, self.clocked, self.memory)

    def log_power(self, names: tuple[str, ...], features: Array) -> Array:
        """ln of relative power, (workloads, nodes)."""
        active, _ = _inputs(names, features, self.typical_memory)
        share = features[:, names.index(SHARE)]
        watts = np.column_stack([np.ones(len(share)), share, active]) @ self.watts.T
        return np.log(np.maximum(watts, 1e-3) / share[:, None])

    def inputs(self, names: tuple[str, ...], features: Array) -> Array:
        """The inputs of the laws for a workload: memory activity, share of gaps, power, (workloads, 3)."""
        active, idle = _inputs(names, features, self.typical_memory)
        return np.column_stack([active, idle, features[:, names.index(SHARE)]])


def fit(curves: RelativeCurves) -> CardPhysics:
    """The numbers of a card that explain a training set best."""
    active, _ = _inputs(curves.names, curves.features, np.nan)
    typical = float(np.nanmedian(active)) if np.isfinite(active).any() else 0.3
    active, idle = _inputs(curves.names, curves.features, typical)
    top = max(float(np.nanmax(active)), 1e-3)
    known, held = np.isfinite(curves.log_time), np.concatenate(paper(curves))

    def misfit(at: Array) -> Array:
        clocked, memory = np.split(at[3:], 2)
        predicted = _time(at[0], top * at[1], at[2], active, idle, clocked, memory)
        return np.concatenate([(curves.log_time - predicted)[known], HOLD * (at[3:] - held)])

    free = np.full(len(held), np.inf)
    low, high = np.concatenate([[1.05, 1.001, 0.0], -free]), np.concatenate([[20.0, 5.0, 1.0], free])
    start = np.concatenate([[2.0, 1.15, 0.5], held])
    edge, full, gap, *rest = least_squares(misfit, start, bounds=(low, high), loss="soft_l1", f_scale=SOFT).x
    clocked, memory = np.split(np.array(rest), 2)
    return CardPhysics(
        float(edge), top * float(full), float(gap), clocked, memory, _watts(curves, active), typical
    )


def paper(curves: RelativeCurves) -> tuple[Array, Array]:
    """ln A_j and ln M_j by the clocks' ratio alone; a limit counts as a clock of its share's square root."""
    nodes = curves.nodes
    slow = -np.log(nodes.x) - 0.5 * np.log(nodes.cap)
    return slow, -np.log(nodes.mu) + 0.3 * slow


def _inputs(names: tuple[str, ...], features: Array, typical: float) -> tuple[Array, Array]:
    """Activity of memory, and the share of gaps."""
    known = next((name for name in MEMORY if name in names), None)
    active = features[:, names.index(known)] if known else np.full(len(features), np.nan)
    busy = features[:, names.index(BUSY)] if BUSY in names else np.ones(len(features))
    active = np.where(np.isfinite(active), np.clip(active, 0, 1), typical)
    return active, np.clip(1 - np.where(np.isfinite(busy), busy, 1.0), 0, 0.98)


def _parts(edge: float, full: float, gap: float, active: Array, idle: Array) -> tuple[Array, Array, Array]:
    q = gap * idle
    b = np.clip(active / (full * np.maximum(1 - q, 0.02)), 0, FULL)
    return (1 - b**edge) ** (1 / edge), b, q


def _time(
    edge: float, full: float, gap: float, active: Array, idle: Array, clocked: Array, memory: Array
) -> Array:
    a, b, q = (each[:, None] for each in _parts(edge, full, gap, active, idle))
    busy = ((a * np.exp(clocked)) ** edge + (b * np.exp(memory)) ** edge) ** (1 / edge)
    return np.log(q + (1 - q) * busy)


def _watts(curves: RelativeCurves, active: Array) -> Array:
    share = curves.features[:, curves.names.index(SHARE)]
    share = np.where(np.isfinite(share), share, curves.power_w / curves.power_unit_w)
    inputs = np.column_stack([np.ones(len(share)), share, active])
    found = np.empty((len(curves.nodes), 3))
    slow = curves.nodes.x * np.sqrt(curves.nodes.cap)
    for node in range(len(curves.nodes)):
        known = np.isfinite(curves.log_power[:, node])
        observed = share[known] * np.exp(curves.log_power[known, node])
        weak = 0.01 * np.sqrt(max(known.sum(), 1))
        held = np.array([STATIC, CLOCKED * slow[node] ** 2, MEMORY_POWER * curves.nodes.mu[node]])
        left = np.vstack([inputs[known] / observed[:, None], weak * np.eye(3)])
        found[node] = nnls(left, np.concatenate([np.ones(known.sum()), weak * held]))[0]
    return found
