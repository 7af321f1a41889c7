"""Nodes by the least that a job could cost there, so that a policy by cost looks closely at a few only."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .policy import ClusterControl
from .power import UNIT
from .state import Job, Node

_FULL = np.iinfo(np.int64).max


class Ranking:
    """What is known of all nodes, in arrays. The policy says when a node has changed.

    A node's bound for a job is what the node will draw more while its jobs run anyway, plus the whole node
    for as long as the job would keep it awake alone: its cost there, if it slowed nobody.

    Args:
        max_jobs: On one GPU.
    """

    def __init__(self, cluster: ClusterControl, *, max_jobs: int) -> None:
        self.nodes, self._most = cluster.nodes, max_jobs
        count = len(self.nodes)
        self._used = np.zeros(count, dtype=np.int64)
        self._free = np.zeros(count, dtype=np.int64)
        # By node and GPU; what a smaller node lacks is full for ever.
        widest = max(kind.gpus for kind, _ in cluster.cluster.nodes)
        self._load, self._memory = (np.full((count, widest), _FULL, dtype=np.int64) for _ in range(2))
        self._power, self._end, self._active = (np.zeros(count) for _ in range(3))
        self._speed = np.array([node.speed for node in self.nodes])
        self._hosting = np.zeros(count, dtype=bool)
        # Type, its nodes, its power by utilisation.
        self._kinds: list[tuple[int, np.ndarray, np.ndarray]] = []
        for number, (kind, _) in enumerate(cluster.cluster.nodes):
            mine = [node.index for node in self.nodes if node.kind_index == number]
            members = np.array(mine, dtype=np.int64)
            shares = np.arange(kind.gpus * UNIT + 1) / (kind.gpus * UNIT)
            self._kinds.append((number, members, kind.span_w * (2 * shares - shares**kind.exponent)))

    def changed(self, node: Node, end_s: float) -> None:
        """Note a node's new jobs, limit or state; its last job is expected to end at `end_s`."""
        at = node.index
        self._hosting[at] = bool(node.seats)
        self._used[at], self._power[at], self._end[at] = node.used, node.power_w, end_s
        self._speed[at], self._active[at] = node.speed, node.cap.active if node.cap else 1.0
        self._free[at] = node.free
        width = len(node.gpus)
        self._load[at, :width] = [gpu.mix.load if gpu.mix.size < self._most else _FULL for gpu in node.gpus]
        self._memory[at, :width] = [gpu.memory for gpu in node.gpus]

    def least_first(
        self, job: Job, left_s: float, now_s: float, load: int, memory: list[int]
    ) -> Iterator[tuple[float, Node]]:
        """Bounds in joules, and nodes with jobs, ascending; without nodes on which too few GPUs have room for
        the job.

        Args:
            left_s: What the job takes alone.
            load: Highest load in units that a GPU may have before the job comes.
            memory: By type of node, the bytes that a GPU's jobs may take together.
        """
        bounds: list[np.ndarray] = []
        which: list[np.ndarray] = []
        for number, members, active_w in self._kinds:
            kind = self.nodes[members[0]].kind
            if job.num_gpus > kind.gpus or (job.gpu_type is not None and job.gpu_type != kind.gpu_type):
                continue
            if job.memory > kind.memory_bytes:
                continue
            fits = self._free[members] >= job.num_gpus
            if job.priority <= 0:
                room = (self._load <= load) & (self._memory <= memory[number] - job.memory)
                room = room if len(members) == len(self.nodes) else room[members]
                fits |= room.any(axis=1) if job.num_gpus == 1 else room.sum(axis=1) >= job.num_gpus
            fits &= self._hosting[members]
            at = members[fits]
            if not len(at):
                continue
            time_s = left_s / self._speed[at]
            shared_s = np.minimum(np.maximum(self._end[at] - now_s, 0.0), time_s)
            adds = job.num_gpus * job.load
            used = np.minimum(self._used[at] + adds, len(active_w) - 1)
            more_w = kind.idle_w + self._active[at] * active_w[used] - self._power[at]
            alone_w = kind.idle_w - kind.standby_w + self._active[at] * active_w[adds]
            bounds.append(more_w * shared_s + alone_w * (time_s - shared_s))
            which.append(at)
        if not bounds:
            return
        bound, index = bounds[0], which[0]
        if len(bounds) > 1:
            bound, index = np.concatenate(bounds), np.concatenate(which)
        order = bound.argsort(kind="stable")
        nodes = self.nodes
        for joules, at in zip(bound[order].tolist(), index[order].tolist(), strict=True):
            yield joules, nodes[at]
