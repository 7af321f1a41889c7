"""How busy a simulated GPU's memory is in each phase of a job: the one performance counter that is modelled.

It follows from the load that gives a phase its time and power (`physics`). With b_c and b_m the shares of a
phase in which the SM clock and the memory clock are at work at the active setting:

    dram_active   0.92 b_m + 0.10 b_c

Stated, not measured: trust it for shape. A segment of the machine's timeline carries it above its event
reasons, in steps of 1/127. Of work that is known by measurements of its time and power alone nothing is
counted, nor of segments that no job has written.
"""

from __future__ import annotations

from functools import lru_cache

from .physics import Card, Load, OperatingPoint, SelfSettling, busy_share

SINCE = 9  # the first architecture, as NVML numbers them, whose driver reports its counters (GPM): Hopper
REASONS = 0x7FF  # the bits of a segment's `reasons` that are NVML's
STEPS = 127


@lru_cache(maxsize=65536)
def packed(card: Card, load: Load | SelfSettling | None, point: OperatingPoint) -> int:
    """The memory's activity in a phase, as the bits that go above a segment's event reasons.

    Args:
        card: The GPU model.
        load: None while it waits for its host.
        point: Where the card has settled.
    """
    if not isinstance(load, Load):
        return 0
    x, u = point.sm_clock_mhz / card.sm_clocks_mhz[0], point.mem_clock_mhz / card.mem_clocks_mhz[0]
    computing = min(1.0, busy_share(card, load, load.compute) / (x * point.stretch))
    moving = min(1.0, busy_share(card, load, load.memory) / (u * point.stretch))
    return pack(0.92 * moving + 0.10 * computing)


def pack(share: float) -> int:
    """The bits of a share 0..1; more counts as 1.

    >>> round(unpack(pack(0.5) | 0x4), 3)
    0.504
    """
    return round(min(1.0, share) * STEPS) * (REASONS + 1)


def unpack(reasons: int) -> float:
    """The share that a segment's `reasons` carry."""
    return reasons // (REASONS + 1) / STEPS
