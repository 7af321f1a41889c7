"""Nodes by the least that a job could cost there, so that a policy by cost looks closely at a few only."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .policy import ClusterControl
from .power import UNIT
from .state import Job, Node

_FULL = np.iinfo(np.int64).max


class Ranking:
    """The state of all nodes, as arrays. The policy reports each change of a node.

    A node's bound for a job is what the node will draw more while its jobs run anyway, plus the whole node
    for as long as the job would keep it awake alone: its cost there, if it slowed nobody.

    Args:
        max_jobs: On one GPU.
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
        """Bounds in joules, and nodes with jobs, ascending; without nodes on which too few GPUs have room for
        the job.

        Args:
            job: The job.
            left_s: The job's time alone.
            now_s: The moment.
            load: Highest load in units that a GPU may have before the job comes.
            memory: Bytes that a GPU's jobs may take together.
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
