"""Index of nodes by number of free GPUs, for policies that assign whole GPUs."""

from __future__ import annotations

import heapq
from collections.abc import Container, Iterable, Sequence

from .colocation import History
from .policy import ClusterControl, Policy
from .state import STANDBY, Gpu, Gpus, Job, Node

MEMORY_SHARE = 0.9  # of a GPU's memory: limit for the summed peaks of jobs that share it


class FreeNodes:
    """Finds the fullest or the emptiest node that can hold a job, without a scan of all nodes.

    There is one bucket of nodes for each number of free GPUs, and one for empty nodes in standby. `moved`
    must be called whenever a node's free GPUs or its state have changed. Nodes in `reserved` are never
    returned.
    """

    reserved: Container[Node] = ()

    def __init__(self, cluster: ClusterControl) -> None:
        self._gpus = cluster.cluster.kind.gpus
        self._buckets: list[dict[int, Node]] = [{} for _ in range(self._gpus + 1)]
        self._standby: dict[int, Node] = {}
        self._where = [self._bucket(node) for node in cluster.nodes]
        for node, bucket in zip(cluster.nodes, self._where, strict=True):
            bucket[node.index] = node

    def _bucket(self, node: Node) -> dict[int, Node]:
        return self._standby if node.state == STANDBY else self._buckets[node.free]

    def moved(self, node: Node) -> None:
        """Move the node to its present bucket."""
        bucket, before = self._bucket(node), self._where[node.index]
        if before is not bucket:
            del before[node.index]
            bucket[node.index] = node
            self._where[node.index] = bucket

    def touched(self, gpus: Sequence[Gpu]) -> None:
        """File the nodes of these GPUs, which a job has come to or left."""
        for node in nodes_of(gpus):
            self.moved(node)

    def find(self, job: Job, *, spread: bool = False) -> list[Gpu] | None:
        """Free GPUs on the fullest node (awake before standby), with `spread` on the emptiest; None: none.
        A job that is wider than a node gets whole nodes, and the rest on the fullest that has it.
        """
        count = job.num_gpus
        if count > self._gpus:
            return self._several(count)
        partly, empty = self._buckets[count : self._gpus], (self._buckets[self._gpus], self._standby)
        for bucket in (*empty, *reversed(partly)) if spread else (*partly, *empty):
            for node in bucket.values():
                if node not in self.reserved:
                    return free_gpus(node, count)
        return None

    def _several(self, count: int) -> list[Gpu] | None:
        """Whole nodes, and the rest on the fullest that has it."""
        whole, rest = divmod(count, self._gpus)
        fuller, free = (
            [node for bucket in buckets for node in bucket.values() if node not in self.reserved]
            for buckets in (self._buckets[rest : self._gpus], (self._buckets[self._gpus], self._standby))
        )
        taken = free[:whole] + [*fuller, *free[whole:]][: rest > 0]
        if len(free) < whole or len(taken) < whole + (rest > 0):
            return None
        return [gpu for node in taken for gpu in free_gpus(node, count)][:count]


class WaitingJobs(dict[tuple[object, ...], list[tuple[int, int, Job]]]):
    """Queues of jobs that fit on the same GPUs, each a heap by priority and row; none of them is empty."""

    @staticmethod
    def _key(job: Job) -> tuple[object, ...]:
        return job.profile, job.num_gpus, job.priority > 0

    def add(self, job: Job) -> None:
        """Queue a job: higher priority first, then earlier submission."""
        heapq.heappush(self.setdefault(self._key(job), []), (-job.priority, job.index, job))

    def take(self, job: Job) -> None:
        """Take a job out of its queue."""
        key = self._key(job)
        queue = self[key]
        queue.remove((-job.priority, job.index, job))
        heapq.heapify(queue)
        if not queue:
            del self[key]


class FreeNodesPolicy(Policy):
    """A policy that keeps `free`, the nodes by their free GPUs.

    Attributes:
        history: Measured slowdowns of jobs that share a GPU.
        memory: The bytes that peaks of jobs on one GPU may take together.
        waiting: Jobs that fit on no node yet.
    """

    spread = False  # take the emptiest node instead of the fullest that holds a job

    def begin(self, cluster: ClusterControl) -> None:
        self.cluster, self.free, self.waiting = cluster, FreeNodes(cluster), WaitingJobs()
        self.history = History(cluster.profiles)
        self.memory = int(MEMORY_SHARE * cluster.cluster.kind.memory_bytes)

    def slept(self, node: Node) -> None:
        self.free.moved(node)

    def place_alone(self, job: Job) -> bool:
        """Place the job on free GPUs; False where there are none for it."""
        if gpus := self.free.find(job, spread=self.spread):
            self.place_on(job, gpus)
        return bool(gpus)

    def place_on(self, job: Job, gpus: Gpus | list[Gpu]) -> None:
        """Place the job on these free GPUs."""
        self.cluster.place(job, gpus)
        self.free.touched(gpus)


def nodes_of(gpus: Iterable[Gpu]) -> list[Node]:
    """The nodes of these GPUs, each once, in order."""
    return list(dict.fromkeys(gpu.node for gpu in gpus))


def free_gpus(node: Node, count: int) -> list[Gpu]:
    """The first so many free GPUs of a node that has them."""
    return [gpu for gpu in node.gpus if not gpu.jobs][:count]
