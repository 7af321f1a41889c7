"""Nodes by the least that a job could cost there, so that a policy by cost looks closely at a few only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

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
        self._types = [kind for kind, _ in cluster.cluster.nodes]
        self._type = np.array([node.kind_index for node in self.nodes])

        def of_kind(name: str) -> Any:
            return np.array([getattr(node.kind, name) for node in self.nodes])

        self._gpus, self._speed, self._exponent = map(of_kind, ("gpus", "speed", "exponent"))
        self._idle_w, self._standby_w, self._span_w = map(of_kind, ("idle_w", "standby_w", "span_w"))
        count = len(self.nodes)
        self._used, self._free = (np.zeros(count, dtype=np.int64) for _ in range(2))
        # By node and GPU; what a smaller node lacks is full for ever.
        self._load, self._memory = (np.full((count, max(self._gpus)), _FULL) for _ in range(2))
        self._power_w, self._end_s, self._active = np.zeros(count), np.zeros(count), np.ones(count)
        self._hosting = np.zeros(count, dtype=bool)

    def changed(self, node: Node, end_s: float) -> None:
        """Note a node's new jobs, limit or state; its last job is expected to end at `end_s`."""
        at, width = node.index, len(node.gpus)
        self._hosting[at], self._used[at], self._free[at] = node.seats > 0, node.used, node.free
        self._power_w[at], self._end_s[at] = node.power_w, end_s
        self._speed[at], self._active[at] = node.speed, node.cap.active if node.cap else 1.0
        self._load[at, :width] = [gpu.mix.load if gpu.mix.size < self._most else _FULL for gpu in node.gpus]
        self._memory[at, :width] = [gpu.memory for gpu in node.gpus]

    def least_first(
        self, job: Job, left_s: float, now_s: float, load: int, memory: list[int]
    ) -> Iterator[tuple[float, Node]]:
        """Bounds in joules, and nodes with jobs, ascending; without nodes on which too few GPUs have room for
        the job.

        Args:
            job: The job.
            left_s: What the job takes alone.
            now_s: The moment.
            load: Highest load in units that a GPU may have before the job comes.
            memory: By type of node, the bytes that a GPU's jobs may take together.
        """
        suits = np.array([job.suits(kind) for kind in self._types])
        room = (self._load <= load) & (self._memory <= (np.array(memory) - job.memory)[self._type, None])
        fits = self._free >= job.num_gpus
        if job.priority <= 0:
            fits |= room.sum(axis=1) >= job.num_gpus
        (at,) = np.nonzero(fits & self._hosting & suits[self._type])
        time_s = left_s / self._speed[at]
        shared_s = np.clip(self._end_s[at] - now_s, 0.0, time_s)
        adds = job.num_gpus * job.load
        more_w = self._busy_w(at, self._used[at] + adds) - self._power_w[at]
        alone_w = self._busy_w(at, adds) - self._standby_w[at]
        bound_j = more_w * shared_s + alone_w * (time_s - shared_s)
        order = bound_j.argsort(kind="stable")
        for joules, number in zip(bound_j[order].tolist(), at[order].tolist(), strict=True):
            yield joules, self.nodes[number]

    def _busy_w(self, at: Any, used: Any) -> Any:
        """What these nodes draw with so much utilisation, in units (`NodeType.power_w`)."""
        share = np.minimum(used / (UNIT * self._gpus[at]), 1.0)
        active_w = self._span_w[at] * (2 * share - share ** self._exponent[at])
        return self._idle_w[at] + self._active[at] * active_w
