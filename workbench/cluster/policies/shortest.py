"""Policies that give whole GPUs out of order: SJF, and with preemption SRTF and Tiresias-like."""

from __future__ import annotations

import heapq

from ..placement import FreeNodesPolicy, free_gpus
from ..policy import ClusterControl
from ..state import AWAKE, RUNNING, Gpu, Job, Node


class Sjf(FreeNodesPolicy):
    """Shortest expected job first, without preemption, on the fullest node that holds it; the shortest one
    blocks nobody that fits behind it.

    Args:
        sleep_after_s: When empty nodes go to standby.
    """

    BACKFILL = 16  # jobs of the queue that are tried each time
    name = "SJF"

    def __init__(self, *, sleep_after_s: float | None = 300.0) -> None:
        self.sleep_after_s = sleep_after_s

    def begin(self, cluster: ClusterControl) -> None:
        super().begin(cluster)
        self.queue: list[tuple[float, int, Job]] = []

    def order(self, job: Job) -> float:
        """Lower is served first."""
        return job.expected_left_s(self.cluster.now_s) - 1e12 * job.priority

    def arrived(self, job: Job) -> None:
        if not self.place_alone(job):
            self._queue(job)

    def finished(self, job: Job, gpus: tuple[Gpu, ...]) -> None:
        self.free.touched(job, gpus)
        self._serve()

    def stopped(self, job: Job, gpus: tuple[Gpu, ...]) -> None:
        self._queue(job)
        self.finished(job, gpus)

    def _queue(self, job: Job) -> None:
        heapq.heappush(self.queue, (self.order(job), job.index, job))

    def _serve(self) -> None:
        passed: list[tuple[float, int, Job]] = []
        widths: set[int] = set()
        while self.queue and len(passed) < self.BACKFILL:
            entry = heapq.heappop(self.queue)
            job = entry[2]
            # What is as wide or wider than what did not fit will not fit either.
            if (widths and job.gpu_type is None and job.num_gpus >= min(widths)) or not self.place_alone(job):
                passed.append(entry)
                if job.gpu_type is None:
                    widths.add(job.num_gpus)
                    if 1 in widths:
                        break
        for entry in passed:
            heapq.heappush(self.queue, entry)


class Srtf(Sjf):
    """Shortest remaining time first: a newcomer takes the GPUs of those that have longer to run, if by much
    more than a preemption costs.
    """

    # Whoever is preempted has at least this many times the newcomer's remaining time left, and ten times the
    # cost of a preemption.
    GAIN = 2.0
    name = "SRTF"

    def begin(self, cluster: ClusterControl) -> None:
        super().begin(cluster)
        self.claims: dict[Node, tuple[Job, set[Job]]] = {}

    def arrived(self, job: Job) -> None:
        if not self.place_alone(job) and not self._claim(job):
            self._queue(job)

    def finished(self, job: Job, gpus: tuple[Gpu, ...]) -> None:
        self._free(job, gpus)
        self._serve()

    def may_take(self, job: Job, victim: Job) -> bool:
        """Whether `victim` may be stopped for `job`."""
        now = self.cluster.now_s
        cost_s = self.cluster.checkpoint_s + self.cluster.restart_s
        least_s = max(self.GAIN * job.expected_left_s(now), 10 * cost_s)
        return victim.priority <= job.priority and victim.expected_left_s(now) > least_s

    def worth(self, victim: Job) -> float:
        """Higher is stopped first."""
        return victim.expected_left_s(self.cluster.now_s)

    def _free(self, job: Job, gpus: tuple[Gpu, ...]) -> None:
        """A job has gone: whoever claimed its node takes it when the last of those that had to go is gone."""
        for node in {gpu.node: None for gpu in gpus}:
            claim = self.claims.get(node)
            if claim is not None:
                claimant, victims = claim
                victims.discard(job)
                if not victims and node.free >= claimant.num_gpus:
                    del self.claims[node]
                    self.cluster.place(claimant, free_gpus(node, claimant.num_gpus))
                    self.free.touched(claimant, claimant.gpus)
        self.free.touched(job, gpus)

    def _claim(self, job: Job) -> bool:
        """Stop those on one node that have the longest to run, for this job."""
        best: tuple[float, Node, list[Job]] | None = None
        for node in self.cluster.nodes:
            kind = node.kind
            if node in self.claims or node.state != AWAKE or job.num_gpus > kind.gpus:
                continue
            if job.memory > kind.memory_bytes or job.gpu_type not in (None, kind.gpu_type):
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

    def place_alone(self, job: Job) -> bool:
        gpus = self.free.find(job)
        if gpus is None or any(gpu.node in self.claims for gpu in gpus):
            return False
        self.cluster.place(job, gpus)
        self.free.touched(job, gpus)
        return True


class Tiresias(Srtf):
    """Tiresias-like (Gu et al., NSDI'19): least attained GPU service first, in two queues; knows no
    durations.

    A job that has held its GPUs for `THRESHOLD_GPU_S` GPU-seconds falls to the second queue; who is in the
    first takes GPUs from who is in the second.
    """

    THRESHOLD_GPU_S = 3600.0
    name = "Tiresias-like"

    def order(self, job: Job) -> float:
        return job.submit_s + 1e9 * self._level(job) - 1e12 * job.priority

    def may_take(self, job: Job, victim: Job) -> bool:
        return victim.priority <= job.priority and self._level(victim) > self._level(job)

    def worth(self, victim: Job) -> float:
        return self._attained(victim) + 1.0

    def _attained(self, job: Job) -> float:
        return job.done_s(self.cluster.now_s) * job.num_gpus

    def _level(self, job: Job) -> int:
        return 1 if self._attained(job) >= self.THRESHOLD_GPU_S else 0
