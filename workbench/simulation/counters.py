"""Performance counters in a simulated machine's timeline: how busy its multiprocessors, pipes and memory were
in each segment.

A segment carries them in 53 bits above its event reasons: shares in steps of 1/127, the traffic over PCIe as
a power of two. What they are in a phase of a job, `activity` says; segments that nobody gave any count
nothing.

Standard library only: the sampling process imports this.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

SINCE = 9  # the first architecture, as NVML numbers them, whose driver tells its counters (GPM): Hopper
REASONS = 0x7FF  # the bits of a segment's `reasons` that are NVML's
SHARES = (
    "sm_active", "sm_occupancy", "tensor_active", "fp64_active", "fp32_active", "fp16_active", "dram_active",
)
_STEPS, _TRAFFIC_AT, _SHARES_AT, _BITS = 127, 11, 15, 7
_LEAST_MIB_PER_S = 8.0


class Activity(NamedTuple):
    """Of one stretch of time: shares 0..1, and bytes received over PCIe in MiB/s."""

    sm_active: float = 0.0
    sm_occupancy: float = 0.0
    tensor_active: float = 0.0
    fp64_active: float = 0.0
    fp32_active: float = 0.0
    fp16_active: float = 0.0
    dram_active: float = 0.0
    pcie_rx_mib_per_s: float = 0.0


def pack(activity: Activity) -> int:
    """The bits above a segment's event reasons.

    >>> unpack(pack(Activity(sm_active=1.0, dram_active=0.5, pcie_rx_mib_per_s=64.0)) | 0x4)[-2:]
    (0.5039370078740157, 64.0)
    """
    rate = activity.pcie_rx_mib_per_s
    traffic = 0 if rate < _LEAST_MIB_PER_S else min(15, 1 + round(math.log2(rate / _LEAST_MIB_PER_S)))
    bits = traffic << _TRAFFIC_AT
    for place, share in enumerate(activity[: len(SHARES)]):
        bits |= round(min(1.0, max(0.0, share)) * _STEPS) << (_SHARES_AT + _BITS * place)
    return bits


def unpack(reasons: int) -> Activity:
    """What a segment's `reasons` carry beside the reasons."""
    traffic = reasons >> _TRAFFIC_AT & 15
    shares = [(reasons >> (_SHARES_AT + _BITS * place) & _STEPS) / _STEPS for place in range(len(SHARES))]
    return Activity._make([*shares, _LEAST_MIB_PER_S * 2.0 ** (traffic - 1) if traffic else 0.0])


def mean(spans: Iterable[tuple[float, float, int]], seconds: float) -> tuple[float, Activity]:
    """Time-weighted mean utilisation and activity of spans (length, utilisation, reasons) over `seconds`."""
    busy, sums = 0.0, [0.0] * len(Activity._fields)
    for span_s, utilisation, reasons in spans:
        busy += utilisation * span_s
        for place, value in enumerate(unpack(reasons)):
            sums[place] += value * span_s
    return busy / seconds, Activity._make(each / seconds for each in sums)
