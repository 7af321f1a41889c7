"""EaCO (Haghshenas and Hashemi, arXiv 2412.08294): share the most utilised GPUs that can take a job, observe
one epoch, then keep or undo the placement. docs/explanation/cluster.md lists the corrections of its
pseudo-code. Both tests of a set are tests of its GPUs, so the best set of a node consists of its best GPUs.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ..capacity_index import CapacityIndex
from ..colocation import Mix
from ..placement import FreeNodesPolicy, nodes_of
from ..policy import ClusterControl
from ..power import UNIT
from ..state import LEAVING, STANDBY, Gpu, Gpus, Job, Node

WINDOW = 8  # jobs of one class tried per retry, if the deadline of the first forbids a placement


@dataclass(slots=True, eq=False)
class ProvisionalPlacement:
    """A provisional placement: every job on its GPUs is measured over one epoch."""

    newcomer: Job
    gpus: Gpus
    base_s: float
    waiting: dict[Job, None] = field(default_factory=dict)
    undoing: bool = False


class Eaco(FreeNodesPolicy):
    """Energy-aware co-allocation.

    Args:
        max_jobs: Highest number of jobs on one GPU.
        load_threshold: Highest sum of solo utilisations on a shared GPU; may exceed 1.
        sleep_after_s: Time after which empty nodes go to standby.
    """

    def __init__(
        self, *, max_jobs: int = 3, load_threshold: float = 1.0, sleep_after_s: float | None = 300.0
    ) -> None:
        self.max_jobs, self.limit = max_jobs, round(load_threshold * UNIT)
        self.sleep_after_s = sleep_after_s
        self.name = f"EaCO, {max_jobs} job{'s' * (max_jobs != 1)}, {100 * load_threshold:.0f} %"

    def begin(self, cluster: ClusterControl) -> None:
        super().begin(cluster)
        self.openings = CapacityIndex()
        self.active: dict[Node, None] = {}

    # Events

    def arrived(self, job: Job) -> None:
        gpus: Sequence[Gpu] | None = None
        if job.num_gpus > 1:
            gpus = self._best_set(job)
        elif job.priority <= 0:
            gpus = self.openings.find(job, self.limit - job.load, self._fits, self._accepts)
        if gpus := gpus or self.free.find(job):
            self._place(job, gpus)
        else:
            self.waiting.add(job)

    def finished(self, job: Job, gpus: Gpus) -> None:
        watch = job.watch
        self._left(gpus)
        if watch:
            job.watch = None
            watch.waiting.pop(job, None)
            if job is watch.newcomer or (not watch.waiting and not watch.undoing):
                self._close(watch)
        self._retry(gpus)

    def stopped(self, job: Job, gpus: Gpus) -> None:
        watch = job.watch
        self._left(gpus)
        if watch:
            job.watch = None
            self._close(watch)
        self.arrived(job)
        self._retry(gpus)

    def reached(self, job: Job) -> None:
        watch = job.watch
        if not watch:
            return
        newcomer = watch.newcomer
        if not watch.undoing:
            watch.waiting.pop(job, None)
            excess, now = self.cluster.excess(job), self.cluster.now_s
            mix = max([gpu.mix for gpu in job.gpus], key=self.history.predict)
            if mix.size > 1:
                self.history.learn(mix, excess)
                job.observed = {**(job.observed or {}), mix: excess}
            watch.undoing = job.breaks(excess, now)
            if watch.undoing and job is not newcomer:
                done_s = newcomer.done_s(now) - watch.base_s
                self.cluster.notify(newcomer, newcomer.epoch_s - done_s % newcomer.epoch_s)
            elif not watch.undoing and not watch.waiting:
                self._close(watch)
                self._retry(watch.gpus)
        # The newcomer leaves at the end of its epoch, and its neighbours are remembered.
        if watch.undoing and job is newcomer:
            newcomer.note = (newcomer.note or set()).union(*(gpu.jobs for gpu in watch.gpus))
            self.cluster.stop(newcomer, undo=True)

    # Algorithm 1

    def _best_set(self, job: Job) -> list[Gpu] | None:
        """The set of highest utilisation among all nodes' best sets; None where only empty nodes are left."""
        best: list[Gpu] | None = None
        most = -1
        count = job.num_gpus
        joins: dict[Mix, bool] = {}
        for node in self.active:
            # No set can have more load than its whole node: this excludes most nodes early.
            if node.demand > most and node.free + node.opened >= count:
                gpus = self._on_node(job, node, joins)
                if gpus:
                    load = sum([gpu.mix.load for gpu in gpus])
                    if load > most:
                        best, most = gpus, load
        return best

    def _on_node(self, job: Job, node: Node, joins: dict[Mix, bool]) -> list[Gpu] | None:
        """The node's most utilised GPUs that take the job; `joins` caches the mixes that the job may join."""
        count, kind = job.num_gpus, node.kind
        if count > kind.gpus:
            return None
        shared = job.priority <= 0
        takes = []
        spare = kind.gpus - count
        for gpu in node.gpus:
            mix = gpu.mix
            if mix.size and not (
                shared and gpu.note and self._joins(job, mix, joins)
                and self._accepts(job, gpu)
            ):
                spare -= 1
                if spare < 0:
                    return None
            else:
                takes.append(gpu)
        takes.sort(key=lambda gpu: -gpu.mix.load)
        return takes[:count]

    def _joins(self, job: Job, mix: Mix, joins: dict[Mix, bool]) -> bool:
        found = joins.get(mix)
        if found is None:
            found = joins[mix] = mix.load + job.load <= self.limit and self._fits(job, mix)
        return found

    def _place(self, job: Job, gpus: Sequence[Gpu]) -> None:
        """Place the job; provisionally where it has neighbours."""
        gpus = tuple(gpus)
        residents = dict.fromkeys(other for gpu in gpus for other in gpu.jobs)
        self.place_on(job, gpus)
        self.active.update(dict.fromkeys(gpu.node for gpu in gpus))
        if not residents:
            self._file(gpus)
            return
        watch = ProvisionalPlacement(job, gpus, job.done_s(self.cluster.now_s))
        for each in (*residents, job):
            each.watch = watch
            watch.waiting[each] = None
            self.cluster.notify(each, each.epoch_s)
            for gpu in each.gpus:
                self.openings.file(gpu, False)

    def _close(self, watch: ProvisionalPlacement) -> None:
        """End the observation: its GPUs may be shared again."""
        gpus = dict.fromkeys(watch.gpus)
        for job in [job for gpu in gpus for job in gpu.jobs if job.watch is watch]:
            job.watch = None
            gpus.update(dict.fromkeys(job.gpus))
        self._file(gpus)

    def _left(self, gpus: Gpus) -> None:
        """A job has left these GPUs."""
        self._file(gpus)
        for gpu in gpus:
            if not gpu.node.seats:
                self.active.pop(gpu.node, None)
        self.free.touched(gpus)

    # Algorithm 2

    def _file(self, gpus: Iterable[Gpu]) -> None:
        """Open the GPUs that have room for a newcomer, and no job of high priority, leaving or observed."""
        for gpu in gpus:
            room = 0 < gpu.mix.size < self.max_jobs and gpu.mix.load <= self.limit
            self.openings.file(gpu, room and not any(
                job.watch or job.priority > 0 or job.state == LEAVING for job in gpu.jobs
            ))

    def _fits(self, job: Job, mix: Mix) -> bool:
        """Whether the newcomer's own deadline holds in this mix."""
        after = self.cluster.mixes.grown(mix, job.profile)
        return not job.breaks(self._predict(job, after), self.cluster.now_s)

    def _accepts(self, job: Job, gpu: Gpu) -> bool:
        """Whether memory fits here and all residents keep their deadlines."""
        after, refused = gpu.mix.add[job.profile], job.note or ()
        return gpu.memory + job.memory <= self.memory and not any(
            other in refused or other.breaks(self._predict(other, after), self.cluster.now_s)
            for other in gpu.jobs
        )

    def _predict(self, job: Job, mix: Mix) -> float:
        """Excess of this job in a mix: measured on this job, else on others."""
        if job.observed and mix in job.observed:
            return job.observed[mix]
        return self.history.predict(mix)

    # The queue

    def _retry(self, gpus: Iterable[Gpu]) -> None:
        """Try waiting jobs, in order, on changed nodes only."""
        for node in nodes_of(gpus):
            while self.waiting and self._serve(node):
                pass
        most = self.cluster.cluster.kind.gpus
        for queue in sorted([queue for queue in self.waiting.values() if queue[0][2].num_gpus > most]):
            while queue and (free := self.free.find(queue[0][2])):
                job = queue[0][2]
                self.waiting.take(job)
                self._place(job, free)

    def _serve(self, node: Node) -> bool:
        """Place the first waiting job that this node takes."""
        room = node.free + node.opened
        if room == 0 or node.state == STANDBY:
            return False
        now = self.cluster.now_s
        for queue in sorted([queue for queue in self.waiting.values() if queue[0][2].num_gpus <= room]):
            job = queue[0][2]
            # Where its own deadline may be the reason, other jobs of its class have more time or have already
            # missed theirs.
            tried = WINDOW if job.deadline_s - now >= job.expected_left_s(now) else 1
            for _, _, job in heapq.nsmallest(tried, queue):
                gpus = self._on_node(job, node, {})
                if gpus:
                    self.waiting.take(job)
                    self._place(job, gpus)
                    return True
        return False
