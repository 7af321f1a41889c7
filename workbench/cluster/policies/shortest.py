"""Policies that assign whole GPUs out of order: SJF, and with preemption SRTF and Tiresias-like."""

from __future__ import annotations

import heapq

from ..placement import FreeNodesPolicy, free_gpus, nodes_of
from ..policy import ClusterControl
from ..state import AWAKE, RUNNING, Gpu, Gpus, Job, Node

Entry = tuple[float, int, Job]  # order, row in the log, job


class Sjf(FreeNodesPolicy):
    """Shortest expected job first, without preemption, on the fullest node that holds it.

    A job that does not fit blocks no other job: every queued job behind it is tried. Jobs of one shape are
    queued together, by their number of GPUs: where the first of them does not fit, the others do not either.

    Args:
        sleep_after_s: Time after which empty nodes go to standby.
    """

    name = "SJF"

    def __init__(self, *, sleep_after_s: float | None = 300.0) -> None:
        self.sleep_after_s = sleep_after_s

    def begin(self, cluster: ClusterControl) -> None:
        super().begin(cluster)
        self.queues: dict[int, list[Entry]] = {}

    def order(self, job: Job) -> float:
        """Lower is served first."""
        return job.expected_left_s(self.cluster.now_s) - 1e12 * job.priority

    def arrived(self, job: Job) -> None:
        if self._queue(job):
            self._serve_first(job.num_gpus)

    def finished(self, job: Job, gpus: Gpus) -> None:
        self.free.touched(gpus)
        self._serve()

    def stopped(self, job: Job, gpus: Gpus) -> None:
        self._queue(job)
        self.finished(job, gpus)

    def _queue(self, job: Job) -> bool:
        """Queue a job; True if it is now the first of its shape."""
        queue = self.queues.setdefault(job.num_gpus, [])
        heapq.heappush(queue, (self.order(job), job.index, job))
        return queue[0][2] is job

    def _serve(self) -> None:
        """Start every queued job that can start, in order."""
        heads = [(*queue[0], shape) for shape, queue in self.queues.items()]
        heapq.heapify(heads)
        while heads:
            shape = heapq.heappop(heads)[3]
            if self._serve_first(shape) and shape in self.queues:
                heapq.heappush(heads, (*self.queues[shape][0], shape))

    def _serve_first(self, shape: int) -> bool:
        """Start the first queued job of a shape; False if it cannot start."""
        queue = self.queues[shape]
        started = self.start(queue[0][2])
        if started:
            heapq.heappop(queue)
            if not queue:
                del self.queues[shape]
        return started

    def start(self, job: Job) -> bool:
        """Place a queued job; False if no GPUs are free for it."""
        return self.place_alone(job)


class Srtf(Sjf):
    """Shortest remaining time first: a job takes the GPUs of running jobs that need longer, each by more than
    the cost of a preemption. Only jobs that fit on one node preempt, and only jobs on one node are preempted.
    """

    name = "SRTF"

    def begin(self, cluster: ClusterControl) -> None:
        super().begin(cluster)
        self.claims: dict[Node, tuple[Job, set[Job]]] = {}
        self.free.reserved = self.claims

    def finished(self, job: Job, gpus: Gpus) -> None:
        self._free(job, gpus)
        self._serve()

    def start(self, job: Job) -> bool:
        """Place a queued job, or stop others for it; False if neither is possible."""
        return self.place_alone(job) or self._claim(job)

    def may_take(self, job: Job, victim: Job) -> bool:
        """Whether `victim` may be stopped for `job`."""
        now, cost_s = self.cluster.now_s, self.cluster.checkpoint_s + self.cluster.restart_s
        longer = victim.expected_left_s(now) > job.expected_left_s(now) + cost_s
        return victim.priority <= job.priority and longer

    def worth(self, victim: Job) -> float:
        """Higher is stopped first."""
        return victim.expected_left_s(self.cluster.now_s)

    def _free(self, job: Job, gpus: Gpus) -> None:
        """A job has left its GPUs. The job that claimed its node starts when the last victim has left."""
        for node in nodes_of(gpus):
            claim = self.claims.get(node)
            if claim:
                claimant, victims = claim
                victims.discard(job)
                if not victims and node.free >= claimant.num_gpus:
                    del self.claims[node]
                    self.place_on(claimant, free_gpus(node, claimant.num_gpus))
        self.free.touched(gpus)

    def _claim(self, job: Job) -> bool:
        """Stop the running jobs of one node with the longest remaining time, for this job; False if too few.
        """
        best: tuple[float, Node, list[Job]] | None = None
        for node in self.cluster.nodes:
            if node in self.claims or node.state != AWAKE or job.num_gpus > node.kind.gpus:
                continue
            victims: list[Job] = []
            found = node.free
            takeable = [
                each for each in node.jobs()
                if each.state == RUNNING and len(each.stays) == 1 and self.may_take(job, each)
            ]
            for victim in sorted(takeable, key=lambda each: -self.worth(each)):
                if found >= job.num_gpus:
                    break
                victims.append(victim)
                found += victim.num_gpus
            if found >= job.num_gpus and victims:
                score = min(self.worth(victim) for victim in victims) / len(victims)
                if best is None or score > best[0]:
                    best = (score, node, victims)
        if best is None:
            return False
        self.claims[best[1]] = (job, set(best[2]))
        for victim in best[2]:
            self.cluster.stop(victim)
        return True


class Tiresias(Srtf):
    """Tiresias-like: discretised least attained service with two queues (Gu et al., NSDI'19, section 3.2).

    It knows no durations. A job that has held its GPUs for `THRESHOLD_GPU_S` GPU-seconds falls to the second
    queue, at that moment; jobs of the first queue take GPUs from jobs of the second. Each queue is first in,
    first out.
    """

    THRESHOLD_GPU_S = 3600.0
    name = "Tiresias-like"

    def begin(self, cluster: ClusterControl) -> None:
        super().begin(cluster)
        self.second: set[Job] = set()  # permanent, also when a job repeats work after a stop

    def order(self, job: Job) -> float:
        return job.submit_s + 1e9 * (job in self.second) - 1e12 * job.priority

    def may_take(self, job: Job, victim: Job) -> bool:
        return victim.priority <= job.priority and victim in self.second and job not in self.second

    def worth(self, victim: Job) -> float:
        return victim.done_s(self.cluster.now_s) * victim.num_gpus

    def place_on(self, job: Job, gpus: Gpus | list[Gpu]) -> None:
        super().place_on(job, gpus)
        if job not in self.second:
            self.cluster.notify(job, self.THRESHOLD_GPU_S / job.num_gpus - job.done_s(self.cluster.now_s))

    def reached(self, job: Job) -> None:
        self.second.add(job)
        self._serve()
