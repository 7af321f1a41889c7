"""Memory activity of a simulated GPU in each phase of a job: the only modelled performance counter.

It follows from the load that determines time and power of a phase (`physics`). b_c and b_m are the shares of
a phase in which the SM clock and the memory clock are busy at the active setting:

    dram_active   0.92 b_m + 0.10 b_c

The coefficients are assumed, not measured: use the shape, not the values. A segment of the machine's timeline
carries the activity above its event reasons, in steps of 1/127. Work that is known only by measured time and
power has no activity, nor have segments that no job has written.
"""

from __future__ import annotations

from functools import lru_cache

from .physics import Card, Load, OperatingPoint, SelfSettling, busy_share

SINCE = 9  # the first architecture, as NVML numbers them, whose driver reports its counters (GPM): Hopper
REASONS = 0x7FF  # the bits of a segment's `reasons` that belong to NVML
STEPS = 127


@lru_cache(maxsize=65536)
def packed(card: Card, load: Load | SelfSettling | None, point: OperatingPoint) -> int:
    """The memory's activity in a phase, as the bits above a segment's event reasons.

    Args:
        card: The GPU model.
        load: None while it waits for its host.
        point: The operating point of the card.
    """
    if not isinstance(load, Load):
        return 0
    x, u = point.sm_clock_mhz / card.sm_clocks_mhz[0], point.mem_clock_mhz / card.mem_clocks_mhz[0]
    computing = min(1.0, busy_share(card, load, load.compute) / (x * point.stretch))
    moving = min(1.0, busy_share(card, load, load.memory) / (u * point.stretch))
    return pack(0.92 * moving + 0.10 * computing)


def pack(share: float) -> int:
    """The bits of a share 0..1; more than 1 counts as 1.

    >>> round(unpack(pack(0.5) | 0x4), 3)
    0.504
    """
    return round(min(1.0, share) * STEPS) * (REASONS + 1)


def unpack(reasons: int) -> float:
    """The share that a segment's `reasons` carry."""
    return reasons // (REASONS + 1) / STEPS
