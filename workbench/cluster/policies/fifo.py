"""First in, first out; each job has its GPUs to itself."""

from __future__ import annotations

import heapq

from ..placement import FreeNodesPolicy
from ..policy import ClusterControl
from ..state import Gpus, Job


class Fifo(FreeNodesPolicy):
    """The head of the queue is served first, and no job overtakes it. Jobs of a higher priority come before
    all others.

    Args:
        spread: Choose the emptiest node instead of the fullest that holds the job, as load-balancing
            schedulers do.
        sleep_after_s: Time after which empty nodes go to standby; None: never.
    """

    def __init__(self, *, spread: bool = False, sleep_after_s: float | None = 300.0) -> None:
        self.spread, self.sleep_after_s = spread, sleep_after_s
        how = "spread" if spread else "best-fit"
        self.name = f"FIFO {how}, {'always on' if sleep_after_s is None else 'sleep'}"

    def begin(self, cluster: ClusterControl) -> None:
        super().begin(cluster)
        self.queue: list[tuple[float, int, Job]] = []

    def order(self, job: Job) -> float:
        """Lower is served first."""
        return -job.priority

    def arrived(self, job: Job) -> None:
        heapq.heappush(self.queue, (self.order(job), job.index, job))
        if self.queue[0][2] is job:
            self._serve()

    def finished(self, job: Job, gpus: Gpus) -> None:
        self.free.touched(gpus)
        self._serve()

    def _serve(self) -> None:
        while self.queue and self.place_alone(self.queue[0][2]):
            heapq.heappop(self.queue)
