"""Jobs, GPUs and nodes at one moment. Policies read them; only the simulator changes them."""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass
from typing import Any

from .colocation import Mix
from .power import UNIT, CapLevel, NodeType, PowerTable, in_steps

# States of a job
QUEUED, RUNNING, LEAVING, DONE = 0, 1, 2, 3
# States of a node
AWAKE, WAKING, STANDBY = 0, 1, 2

NEVER_S = math.inf


@dataclass(slots=True, eq=False)
class Job:
    """One job between its submission and its end.

    Attributes:
        index: Its row in the log.
        load, memory: On each of its GPUs: utilisation in units, peak bytes.
        work_s, expected_s: Run time alone: true, and as estimated for the scheduler.
        left_s: Remaining work at `since_s`; `rate` is the work done per second since then.
        target_s: The amount of remaining work at which the simulator calls next: 0 is its end.
        gpus: Its GPUs; empty while it is queued.
        observed: Measured excess of this very job in a mix.
    """

    index: int
    submit_s: float
    work_s: float
    expected_s: float
    left_s: float
    deadline_s: float
    epoch_s: float
    sensitivity: float
    num_gpus: int
    profile: int
    load: int
    memory: int
    priority: int
    state: int = QUEUED
    version: int = 0
    undos: int = 0
    moves: int = 0
    start_s: float = -1.0
    target_s: float = 0.0
    rate: float = 0.0
    since_s: float = 0.0
    began_s: float = 0.0
    run_s: float = 0.0
    energy_j: float = 0.0
    gpus: Gpus = ()
    stays: tuple[tuple[Node, int, float, float], ...] = ()
    observed: dict[Mix, float] | None = None
    watch: Any = None  # both are for the policy's use
    note: Any = None

    def done_s(self, now_s: float) -> float:
        """Work done until now, in seconds alone."""
        return self.work_s - self.left_s + self.rate * (now_s - self.since_s)

    def expected_left_s(self, now_s: float) -> float:
        """Scheduler's estimate of the remaining work (s): at least a minute for a job past its estimate."""
        left_s = self.expected_s - self.work_s + self.left_s - self.rate * (now_s - self.since_s)
        return left_s if left_s > 0 else min(60.0, self.expected_s)

    def breaks(self, excess: float, now_s: float) -> bool:
        """Whether this excess makes it miss a deadline that it can meet alone."""
        left_s, time_s = self.expected_left_s(now_s), self.deadline_s - now_s
        return left_s <= time_s < left_s * (1 + excess)


class Gpu:
    """One GPU: its jobs, their mix, the bytes of their peaks; `stamp` counts changes, to date notes."""

    __slots__ = ("index", "jobs", "memory", "mix", "node", "note", "stamp")

    note: Any  # for the policy's use

    def __init__(self, node: Node, index: int, empty: Mix) -> None:
        self.node, self.index, self.mix = node, index, empty
        self.jobs: list[Job] = []
        self.stamp = self.memory = 0
        self.note = None


Gpus = tuple[Gpu, ...]


class Node:
    """One node and its meters.

    Attributes:
        free: GPUs without a job. `seats` counts jobs on GPUs, `demand` sums their utilisations in units.
        used: Utilisation that the GPUs show, in units, none above one whole.
        power_w: Present power, in whole steps (`power.in_steps`); `since_s` is the last update of its meters.
        per_demand, per_seat: Joules so far for each unit of demand, and for each seat. A job's energy is the
            difference of these between its start and end.
        energy_j: Total energy; `unowned_j` is the part without any job.
        hosting_s: Seconds with at least one job; `awake_s` seconds awake or waking.
        history: Meter values per interval (`recording.NODE_COLUMNS`); None: not kept.
    """

    __slots__ = (
        "awake_s", "cap", "cap_index", "demand", "energy_j", "free", "gpus", "history", "hosting_s",
        "idle_w", "index", "kind", "opened", "per_demand", "per_seat", "power_w", "seats",
        "since_s", "speed", "stamp", "standby_w", "state", "table", "tables", "unowned_j", "used", "wakes",
    )

    def __init__(self, index: int, kind: NodeType, empty: Mix, tables: tuple[PowerTable, ...]) -> None:
        self.index, self.kind = index, kind
        self.tables, self.table = tables, tables[0]
        self.gpus = tuple(Gpu(self, i, empty) for i in range(kind.gpus))
        self.state, self.free, self.seats, self.demand, self.used, self.stamp = STANDBY, kind.gpus, 0, 0, 0, 0
        self.cap: CapLevel | None = None
        self.cap_index = -1
        self.speed = 1.0
        self.idle_w, self.standby_w = in_steps(kind.idle_w), in_steps(kind.standby_w)
        self.power_w = self.standby_w
        self.since_s = 0.0
        self.per_demand = self.per_seat = self.energy_j = self.unowned_j = self.hosting_s = self.awake_s = 0.0
        self.wakes = 0
        self.history: array[float] | None = None
        self.opened = 0  # for the policy's use

    def advance(self, now_s: float) -> None:
        """Update the meters; power has been constant since their last update."""
        seconds = now_s - self.since_s
        if seconds > 0:
            if self.history is not None:
                used = self.used / (UNIT * self.kind.gpus) if self.state == AWAKE else math.nan
                limit_w = self.cap.power_limit_w if self.cap else math.nan
                what = self.state, self.seats, used, limit_w, self.power_w
                self.history.extend((self.index, self.since_s, now_s, *what))
            self.since_s = now_s
            energy_j = self.power_w * seconds
            self.energy_j += energy_j
            if self.seats:
                # Above idle by demand, the idle part by seats: EaCO attributes nothing (docs/explanation/).
                self.hosting_s += seconds
                self.awake_s += seconds
                self.per_seat += self.idle_w * seconds / self.seats
                if self.demand:
                    self.per_demand += (self.power_w - self.idle_w) * seconds / self.demand
                else:
                    self.per_seat += (self.power_w - self.idle_w) * seconds / self.seats
            else:
                self.unowned_j += energy_j
                if self.state != STANDBY:
                    self.awake_s += seconds

    def jobs(self) -> list[Job]:
        """The jobs on this node, each once, in the order of GPUs."""
        return list(dict.fromkeys(job for gpu in self.gpus for job in gpu.jobs))
