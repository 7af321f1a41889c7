"""Ranks nodes by a lower limit of a job's cost, so that a cost-based policy examines only a few closely."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .policy import ClusterControl
from .power import UNIT
from .state import Job, Node

_FULL = np.iinfo(np.int64).max


class Ranking:
    """Key figures of all nodes, in arrays. The policy reports every change of a node.

    A node's lower limit for a job has two parts: the node's extra power while its present jobs run, and the
    power of the whole node while the job alone would keep it awake. It is the cost if the job slowed no
    other.

    Args:
        max_jobs: Highest number of jobs on one GPU.
    """

    def __init__(self, cluster: ClusterControl, *, max_jobs: int) -> None:
        self.nodes, self._most, self._kind = cluster.nodes, max_jobs, cluster.cluster.kind
        count, whole = len(self.nodes), UNIT * self._kind.gpus
        self._load, self._memory = (np.zeros((count, self._kind.gpus), np.int64) for _ in range(2))
        self._used, self._free = (np.zeros(count, np.int64) for _ in range(2))
        self._power_w, self._end_s = np.zeros(count), np.zeros(count)
        self._speed, self._active = np.ones(count), np.ones(count)
        self._hosting = np.zeros(count, bool)
        # By utilisation in units.
        active_w = [self._kind.power_w(used / whole) - self._kind.idle_w for used in range(whole + 1)]
        self._active_w = np.array(active_w)

    def changed(self, node: Node, end_s: float) -> None:
        """Note a node's new jobs, limit or state; its last job is expected to end at `end_s`."""
        at = node.index
        self._hosting[at], self._used[at], self._free[at] = node.seats > 0, node.used, node.free
        self._power_w[at], self._end_s[at] = node.power_w, end_s
        self._speed[at], self._active[at] = node.speed, node.cap.active if node.cap else 1.0
        self._load[at] = [gpu.mix.load if gpu.mix.size < self._most else _FULL for gpu in node.gpus]
        self._memory[at] = [gpu.memory for gpu in node.gpus]

    def least_first(
        self, job: Job, left_s: float, now_s: float, load: int, memory: int
    ) -> Iterator[tuple[float, Node]]:
        """Lower limits in joules, and nodes with jobs, ascending; without nodes where too few GPUs have room
        for the job.

        Args:
            job: The job.
            left_s: Remaining time of the job alone.
            now_s: The moment.
            load: Highest load, in units, of a GPU before the job is placed.
            memory: Highest total memory of a GPU's jobs, in bytes.
        """
        room = (self._load <= load) & (self._memory <= memory - job.memory)
        fits = self._free >= job.num_gpus
        if job.priority <= 0:
            fits |= room.sum(axis=1) >= job.num_gpus
        (at,) = (fits & self._hosting).nonzero()
        time_s = left_s / self._speed[at]
        shared_s = np.minimum(np.maximum(self._end_s[at] - now_s, 0.0), time_s)
        most = len(self._active_w) - 1
        adds = min(job.num_gpus * job.load, most)
        used = np.minimum(self._used[at] + adds, most)
        idle_w, active = self._kind.idle_w, self._active[at]
        more_w = idle_w + active * self._active_w[used] - self._power_w[at]
        alone_w = idle_w + active * self._active_w[adds] - self._kind.standby_w
        bound_j = more_w * shared_s + alone_w * (time_s - shared_s)
        order = bound_j.argsort(kind="stable")
        for joules, number in zip(bound_j[order].tolist(), at[order].tolist(), strict=True):
            yield joules, self.nodes[number]
