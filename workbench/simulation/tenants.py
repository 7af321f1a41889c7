"""Jobs that share a simulated GPU, of one process or of several: their entries in the machine's memory, and
their effect on the card.

CUDA time-slices between processes. With u_i the utilisation of job i alone and U their sum over n jobs that
run,

    stretch      every iteration takes max(1 + 0.078 (n - 1) U, U) times as long as alone
    utilisation  min(1, U)
    power        resident + f(min(1, U)) * (mean of D_i / f(u_i), weighted by u_i),  f(u) = 2 u - u**1.55

where D_i is the mean power of job i alone over that of a resident GPU that waits (EaCO, arXiv 2412.08294,
tables 1 to 3, and f of Fan, Weber and Barroso, ISCA'07, section 4; see docs/validation/simulation.md).
Phases show as a mean around which each job swings as far as the card allows.

Standard library only. Each job has a slot with its demand and its queued timeline. The job that queues work
writes the card's timeline.
"""

from __future__ import annotations

import itertools
import os
import struct
from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from .._processes import runs
from ..errors import SimulationError
from . import activity
from .state import TENANT_BYTES, TENANT_SLOTS, MachineState

SLOPE, EXPONENT = 0.078, 1.55
RESIDENT_S = 60.0  # a job without queued work holds its clocks for this time
# real seconds without queued work, as with a late host, after which a job slows no other
GRACE_S = 0.02
# pid, rows, token, memory; utilisation, dynamic, peak and resident power, end of its queue, spare
_HEAD = struct.Struct("<IIQQdddddd")
_ROW = struct.Struct("<ddIIffQ")
_ROWS_AT = 128
MOST_ROWS = (TENANT_BYTES - _ROWS_AT) // _ROW.size

# duration, power, SM MHz, memory MHz, utilisations, reasons
Planned = tuple[float, float, int, int, float, float, int]
Tail = tuple[float, int, int, float, float, int]


class TimelineStretch(NamedTuple):
    """An interval of one job's timeline: as the job would be alone on the card, except for its length."""

    start_s: float
    power_w: float
    sm_clock_mhz: int
    mem_clock_mhz: int
    utilisation: float
    memory_utilisation: float
    reasons: int


class Demand(NamedTuple):
    """The load of a job on its card when it is alone there: means over an iteration at the active setting.

    Attributes:
        utilisation: Share of the time in which a kernel runs.
        dynamic_w: Power over `resident_w`, mean.
        peak_w: Power over `resident_w` of the phase with the highest power.
        resident_w: Power of the card while the job waits.
    """

    utilisation: float
    dynamic_w: float
    peak_w: float
    resident_w: float


class Tenant(NamedTuple):
    """A job on a card."""

    slot: int
    pid: int
    token: int
    memory_bytes: int
    demand: Demand
    until_s: float
    rows: tuple[TimelineStretch, ...] = ()


# the laws


def stretch(utilisations: Sequence[float]) -> float:
    """Relative length of an iteration when jobs of these solo utilisations share a card.

    >>> round(stretch([0.1117, 0.4801]), 3), stretch([0.9, 0.9]), stretch([0.5])
    (1.046, 1.8, 1.0)
    """
    total = sum(utilisations)
    return float(max(1.0 + SLOPE * (len(utilisations) - 1) * total, total)) if len(utilisations) > 1 else 1.0


def concave(utilisation: float) -> float:
    """f above: the share of a card's dynamic power at a share of its utilisation."""
    u = min(max(utilisation, 0.0), 1.0)
    return float(2.0 * u - u**EXPONENT)


def dynamic_w(demands: Sequence[Demand]) -> float:
    """Mean power over a resident card's when jobs share it."""
    if len(demands) == 1:
        return demands[0].dynamic_w
    total = sum(demand.utilisation for demand in demands)
    if total <= 0.0:
        return max((demand.dynamic_w for demand in demands), default=0.0)
    scale_w = sum(
        demand.utilisation * demand.dynamic_w / concave(demand.utilisation) for demand in demands
        if demand.utilisation > 0
    )
    return concave(total) * scale_w / total


# slots


def join(state: MachineState, gpu: int, token: int, memory_bytes: int, demand: Demand) -> int:
    """Take a slot of a card under the machine's lock. Raises SimulationError if all are occupied.

    Args:
        state: State of the machine.
        gpu: Number of the GPU.
        token: Identifies the job.
        memory_bytes: Memory of the job.
        demand: Utilisation and power of the job alone.
    """
    taken = {tenant.slot for tenant in present(state, gpu)}
    free = next((slot for slot in range(TENANT_SLOTS) if slot not in taken), None)
    if free is None:
        raise SimulationError(
            f"simulated GPU {gpu} has {TENANT_SLOTS} jobs, which is the maximum; wait until one ends, "
            f"or use another of the {state.count} GPUs"
        )
    write(state, gpu, free, token, memory_bytes, demand, (), -RESIDENT_S)
    count(state, gpu)
    return free


def count(state: MachineState, gpu: int) -> None:
    """Count the occupied slots, and free those of dead processes; the caller holds the machine's lock."""
    there = present(state, gpu)
    for slot in range(TENANT_SLOTS):
        if all(tenant.slot != slot for tenant in there):
            state.put(state.tenants_at(gpu) + slot * TENANT_BYTES, bytes(_HEAD.size))
    state.set_control(gpu, "tenants", len(there))


def alone(state: MachineState, gpu: int) -> bool:
    """Whether at most one slot is occupied: then no search for other jobs is necessary."""
    return int(state.control(gpu, "tenants")) <= 1


def write(
    state: MachineState, gpu: int, slot: int, token: int, memory_bytes: int, demand: Demand,
    rows: Sequence[TimelineStretch], until_s: float,
) -> None:
    """Write a job's queued intervals, each ending where the next starts; too many are merged.

    Args:
        state: State of the machine.
        gpu: Number of the GPU.
        slot: Result of `join`.
        token: Identifies the job.
        memory_bytes: Memory of the job.
        demand: Utilisation and power of the job alone.
        rows: Queued intervals.
        until_s: End of the last one.
    """
    kept = coarser(rows, until_s) if len(rows) > MOST_ROWS else rows
    at = state.tenants_at(gpu) + slot * TENANT_BYTES
    packed = b"".join(_ROW.pack(*row) for row in kept)
    state.put(at + _ROWS_AT, packed)
    state.put(at, _HEAD.pack(os.getpid(), len(kept), token, memory_bytes, *demand, until_s, 0.0))


def leave(state: MachineState, gpu: int, slot: int) -> None:
    """Free a slot; the caller holds the machine's lock."""
    state.put(state.tenants_at(gpu) + slot * TENANT_BYTES, bytes(_HEAD.size))
    count(state, gpu)


def present(state: MachineState, gpu: int, *, rows: bool = False) -> list[Tenant]:
    """The jobs on a card whose processes are alive, running or not."""
    found = []
    base = state.tenants_at(gpu)
    for slot in range(TENANT_SLOTS):
        at = base + slot * TENANT_BYTES
        pid, count, token, memory, u, mean_w, peak_w, resident_w, until_s, _ = _HEAD.unpack(
            state.get(at, _HEAD.size)
        )
        if not pid or (pid != os.getpid() and not runs(pid)):
            continue
        queued = _ROW.iter_unpack(state.get(at + _ROWS_AT, count * _ROW.size)) if rows else ()
        found.append(Tenant(
            slot, pid, token, memory, Demand(u, mean_w, peak_w, resident_w), until_s,
            tuple(map(TimelineStretch._make, queued)),
        ))
    return found


def grace_s(state: MachineState) -> float:
    """`GRACE_S` on the machine's clock."""
    return GRACE_S * (1.0 if state.header("stepped") else float(state.header("scale")))


def coarser(rows: Sequence[TimelineStretch], until_s: float) -> list[TimelineStretch]:
    """Neighbouring intervals merged until there are few enough; powers are means, so energy is kept."""
    at_once = -(-len(rows) // MOST_ROWS)
    ends = [row.start_s for row in rows[1:]] + [until_s]
    out = []
    for first in range(0, len(rows), at_once):
        group, spans = rows[first : first + at_once], ends[first : first + at_once]
        lengths = [max(end_s - row.start_s, 0.0) for row, end_s in zip(group, spans, strict=True)]
        whole_s = sum(lengths) or 1.0
        power_w, busy, moving = (
            sum(row[place] * length_s for row, length_s in zip(group, lengths, strict=True)) / whole_s
            for place in (1, 4, 5)
        )
        hungriest = max(group, key=lambda row: row.power_w)
        out.append(hungriest._replace(
            start_s=group[0].start_s, power_w=power_w, utilisation=busy, memory_utilisation=moving
        ))
    return out


# the card's timeline


def compose(tenants: Sequence[Tenant], from_s: float, idle: Tail) -> list[Planned]:
    """The card's timeline until all queued work has ended and its jobs have released their clocks."""
    ends = [tenant.until_s + RESIDENT_S for tenant in tenants]
    borders = {from_s, *ends, *(tenant.until_s for tenant in tenants)}
    for tenant in tenants:
        borders.update(row.start_s for row in tenant.rows)
    moments = sorted(at for at in borders if at >= from_s)
    plan: list[Planned] = []
    for begin_s, end_s in itertools.pairwise(moments):
        active: list[tuple[Tenant, TimelineStretch]] = []
        waiting: list[tuple[float, int, int]] = []  # power and clocks
        for tenant in tenants:
            place = bisect_right(tenant.rows, begin_s, key=lambda row: row.start_s)
            if place and begin_s < tenant.until_s:
                active.append((tenant, tenant.rows[place - 1]))
            elif begin_s < tenant.until_s + RESIDENT_S:
                clocks = tenant.rows[-1][2:4] if tenant.rows else idle[1:3]
                waiting.append((tenant.demand.resident_w, *clocks))
        span_s = end_s - begin_s
        if len(active) == 1:
            plan.append((span_s, *active[0][1][1:]))
        elif active:
            mixture = _mixture(tuple(tenant.demand for tenant, _ in active))
            plan.append((span_s, *mixture.at([row for _, row in active])))
        elif waiting:
            plan.append((span_s, *max(waiting), 0.0, 0.0, 0))
        else:
            plan.append((span_s, *idle))
    return plan


class _JobMixture:
    """Jobs that run simultaneously: the means of the laws above, and the variation of each job's phases."""

    def __init__(self, demands: Sequence[Demand]) -> None:
        self.demands = demands
        self.resident_w = max(demand.resident_w for demand in demands)
        self.dynamic_w = dynamic_w(demands)
        self.alone_w = sum(demand.dynamic_w for demand in demands)
        total = sum(demand.utilisation for demand in demands)
        self.utilisation, self.total = min(1.0, total), total
        peaks_w = [demand.peak_w for demand in demands]
        highest_w = self.dynamic_w * sum(peaks_w) / self.alone_w if self.alone_w > 0 else 0.0
        self.swing = _swing(self.dynamic_w, highest_w, max(peaks_w))
        busiest = self.utilisation * len(demands) / total if total > 0 else 0.0
        self.busy_swing = _swing(self.utilisation, busiest, 1.0)

    def at(self, rows: Sequence[TimelineStretch]) -> Tail:
        """Power, clocks, utilisations and reasons at a moment at which the jobs are in these phases."""
        now_w = sum(row.power_w - demand.resident_w for row, demand in zip(rows, self.demands, strict=True))
        busy = sum(row.utilisation for row in rows)
        swung = self.swing * now_w / self.alone_w if self.alone_w > 0 else 0.0
        power_w = self.dynamic_w * (1.0 - self.swing + swung)
        busy_swung = self.busy_swing * busy / self.total if self.total > 0 else 0.0
        used = self.utilisation * (1.0 - self.busy_swing + busy_swung)
        hungriest = max(rows, key=lambda row: row.power_w)
        moving = min(1.0, sum(row.memory_utilisation for row in rows))
        clocks = hungriest.sm_clock_mhz, hungriest.mem_clock_mhz
        return (
            self.resident_w + max(power_w, 0.0), *clocks, min(max(used, 0.0), 1.0), moving, _reasons(rows),
        )


_mixture = lru_cache(_JobMixture)


def _swing(mean: float, highest: float, most: float) -> float:
    """The share of its variation around the mean that keeps a sum at or below its maximum."""
    if highest <= most or highest <= mean:
        return 1.0
    return min(1.0, max(0.0, (most - mean) / (highest - mean)))


def _reasons(rows: Sequence[TimelineStretch]) -> int:
    """The clock event reasons of all jobs, and the sum of their memory activities."""
    held = 0
    for row in rows:
        held |= row.reasons & activity.REASONS
    return held | activity.pack(sum(activity.unpack(row.reasons) for row in rows))
