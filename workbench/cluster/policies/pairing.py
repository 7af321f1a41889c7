"""Policies that put two jobs of equal width on the same GPUs: FIFO packed, Gandiva-like and Lucid-like."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator

from ..policy import ClusterControl
from ..power import UNIT
from ..state import LEAVING, RUNNING, Gpus, Job
from .fifo import Fifo


class Pairing(Fifo):
    """A queue that prefers whole GPUs. Where none are free, the head of the queue gets a partner. Subclasses
    define partners and the order of the queue.

    Args:
        sleep_after_s: Time after which empty nodes go to standby; None: never.
    """

    spread = True

    def __init__(self, *, sleep_after_s: float | None = None) -> None:
        self.sleep_after_s = sleep_after_s

    def begin(self, cluster: ClusterControl) -> None:
        super().begin(cluster)
        # By width and profile: jobs that have their GPUs to themselves.
        self.alone: dict[tuple[int, int], dict[Job, None]] = {}

    def partners(self, job: Job) -> Iterator[Job]:
        """Candidates for sharing with this job, best first."""
        raise NotImplementedError

    def finished(self, job: Job, gpus: Gpus) -> None:
        self.alone.get((job.num_gpus, job.profile), {}).pop(job, None)
        if gpus[0].jobs:
            other = gpus[0].jobs[0]
            self.alone.setdefault((other.num_gpus, other.profile), {})[other] = None
        super().finished(job, gpus)

    def stopped(self, job: Job, gpus: Gpus) -> None:
        self.finished(job, gpus)
        self.arrived(job)

    def fits(self, job: Job, other: Job) -> bool:
        """Whether memory fits on every GPU, and state and priority of both jobs allow sharing."""
        shared = other.state == RUNNING and max(job.priority, other.priority) <= 0
        return shared and job.memory + other.memory <= self.memory

    def expected_excess(self, job: Job, other: Job) -> float:
        """Relative growth of the run time of both."""
        return self.history.predict(self.cluster.mixes.grown(other.gpus[0].mix, job.profile))

    def _serve(self) -> None:
        while self.queue:
            job = self.queue[0][2]
            if self.place_alone(job):
                heapq.heappop(self.queue)
                self.alone.setdefault((job.num_gpus, job.profile), {})[job] = None
                continue
            other = next((each for each in self.partners(job) if self.fits(job, each)), None)
            if other is None:
                return
            heapq.heappop(self.queue)
            del self.alone[other.num_gpus, other.profile][other]
            self.cluster.place(job, other.gpus)
            for each in (job, other):
                self.cluster.notify(each, each.epoch_s)

    def reached(self, job: Job) -> None:
        mix = job.gpus[0].mix
        if mix.size == 2:
            self.history.learn(mix, self.cluster.excess(job))


class FifoPacked(Pairing):
    """Gavel's FIFO with packing: where the head does not fit, it joins the running job with the highest sum
    of normalised speeds, if above 1.5.

    In Gavel only jobs of equal width pair, and no jobs are packed while GPUs are free (from its code;
    Narayanan et al., OSDI'20).
    """

    THRESHOLD = 1.5
    name = "FIFO packed, always on"

    def partners(self, job: Job) -> Iterator[Job]:
        ranked = []
        for (width, profile), jobs in self.alone.items():
            if width == job.num_gpus and jobs:
                excess = self.expected_excess(job, next(iter(jobs)))
                if 2 / (1 + excess) > self.THRESHOLD:
                    ranked.append((excess, profile, jobs))
        for _, _, jobs in sorted(ranked, key=lambda each: each[:2]):
            yield from jobs


class Gandiva(Pairing):
    """Gandiva's packing as in Gavel: a random partner of equal width when requests exceed the cluster. The
    packing is undone where the sum of speeds is below 1.

    Xiao et al., OSDI'18, section 3.3: packing is tried, and ended where it does not help.
    """

    THRESHOLD = 1.0
    name = "Gandiva-like, always on"

    def __init__(self, seed: int = 0, *, sleep_after_s: float | None = None) -> None:
        super().__init__(sleep_after_s=sleep_after_s)
        self.random = random.Random(seed)

    def partners(self, job: Job) -> Iterator[Job]:
        equal = [other for (width, _), jobs in self.alone.items() if width == job.num_gpus for other in jobs]
        for _ in range(min(len(equal), 64)):
            yield self.random.choice(equal)

    def reached(self, job: Job) -> None:
        super().reached(job)
        gpu = job.gpus[0]
        if gpu.mix.size != 2 or any(each.state == LEAVING for each in gpu.jobs):
            return
        speeds = sum(1 / (1 + self.cluster.excess(each)) for each in gpu.jobs)
        if speeds < self.THRESHOLD and gpu.jobs[-1].state == RUNNING:
            self.cluster.stop(gpu.jobs[-1], undo=True)


class Lucid(Pairing):
    """Lucid-like (Hu et al., ASPLOS'23): shortest expected GPU time first; two jobs share where their sharing
    scores sum to at most 2.

    A job scores 0, 1 or 2 by its own utilisation: below 25 %, below 60 %, above. The original learns the
    score with a decision tree from utilisation, memory and use of mixed precision, and estimates durations.
    This version uses the scheduler's estimates of durations.
    """

    LIMIT = 2
    name = "Lucid-like"
    spread = False

    def __init__(self, *, sleep_after_s: float | None = 300.0) -> None:
        super().__init__(sleep_after_s=sleep_after_s)

    def order(self, job: Job) -> float:
        return job.expected_s * job.num_gpus - 1e12 * job.priority

    def partners(self, job: Job) -> Iterator[Job]:
        score = self._score(job.load)
        for (width, profile), jobs in self.alone.items():
            own = self._score(self.cluster.profiles[profile].load)
            if width == job.num_gpus and score + own <= self.LIMIT:
                yield from jobs

    @staticmethod
    def _score(load: int) -> int:
        return 0 if load < 0.25 * UNIT else 1 if load < 0.6 * UNIT else 2
