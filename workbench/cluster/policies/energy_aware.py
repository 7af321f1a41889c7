"""The workbench's own policy. It places each job at the least predicted energy, with a price in watts on
slowdown, and empties nodes by moving their remaining jobs. Differences from EaCO:
docs/explanation/cluster.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ..colocation import Mix
from ..placement import FreeNodesPolicy, nodes_of
from ..policy import ClusterControl
from ..power import UNIT
from ..ranking import Ranking
from ..state import AWAKE, LEAVING, NEVER_S, RUNNING, STANDBY, Gpu, Gpus, Job, Node

# Further tuned constants of `EnergyAwarePolicy`.

# price of a second by which a job runs longer. From 75 to 250 W the energy of a run changes by 1 %; the
# higher price keeps nodes under power limits from slowing jobs
SLOWDOWN_W = 250.0
# nodes without a free GPU that are asked for one job at most, which bounds the time that a placement takes
# on thousands of nodes; on 64 nodes more give the same figures
CHECKS = 64
# cost of its moves that emptying a node must save. Any value from 1 to 10 changes the energy by 1 %
WORTH_TIMES = 3.0
# cost of a move, in seconds, that a job must still run to be moved. With 3 the energy is 1 to 2 % less and
# more deadlines are missed, as a short job has no time to make up for a move
MOVABLE_TIMES = 30.0
# by how much a predicted excess is raised against deadlines until the job has been measured; without,
# nothing is gained and three times as many placements are undone
MARGIN = 1.6


@dataclass(slots=True, eq=False)
class JobEstimate:
    """A job's margin on its predicted excess, its ratio of measured to predicted excess, its excluded
    neighbours, and the destination of its move.
    """

    margin: float
    sensitivity: float = 1.0
    avoid: set[Job] = field(default_factory=set)
    target: Gpus = ()


class EnergyAwarePolicy(FreeNodesPolicy):
    """Least predicted energy under deadlines.

    Args:
        max_jobs: Highest number of jobs on one GPU, for any slowdown.
        load_threshold: Highest sum of solo utilisations on a shared GPU.
        max_excess: Highest predicted slowdown of any job by sharing, while sleeping nodes are available
            instead.
        busy_excess: The same once all nodes are awake and jobs would have to wait.
        review_s: Time between searches for nodes to empty; None: never, no job is moved.
        capped: Set one of the power limits of awake nodes (`NodeType.caps`): the one of least predicted
            energy under which all their jobs still meet the deadlines.
        sleep_after_s: Time after which empty nodes go to standby.
        name: Name in results.
    """

    def __init__(
        self, *, max_jobs: int = 4, load_threshold: float = 1.0, max_excess: float = 0.09,
        busy_excess: float = 0.3, review_s: float | None = 1200.0, capped: bool = False,
        sleep_after_s: float | None = 60.0, name: str = "workbench",
    ) -> None:
        self.sleep_after_s, self.name = sleep_after_s, name
        self.max_jobs, self.limit = max_jobs, round(load_threshold * UNIT)
        self.max_excess, self.busy_excess, self.bound = max_excess, busy_excess, max_excess
        self.review_s, self.capped = review_s, capped

    def begin(self, cluster: ClusterControl) -> None:
        super().begin(cluster)
        self.ranking = Ranking(cluster, max_jobs=self.max_jobs)
        self.move_s = cluster.checkpoint_s + cluster.restart_s
        self.review_due_s = cluster.now_s
        self.ends: dict[Node, float] = {}  # expected last end, for nodes with jobs
        self.reserved: set[Gpu] = set()  # for moving jobs
        self.draining: set[Node] = set()

    # Events

    def arrived(self, job: Job) -> None:
        job.note = JobEstimate(MARGIN)
        self._schedule(job)

    def finished(self, job: Job, gpus: Gpus) -> None:
        self._changed(job, gpus)
        if self.waiting:
            self._serve(gpus)
        elif self.review_s is not None and self.cluster.now_s >= self.review_due_s:
            self.review_due_s = self.cluster.now_s + self.review_s
            self._review()

    def stopped(self, job: Job, gpus: Gpus) -> None:
        self._changed(job, gpus)
        target, job.note.target = job.note.target, ()
        self.reserved -= set(target)
        if target and all(
            gpu.node.state == AWAKE and gpu.node.seats
            and gpu.memory + job.memory <= self.memory for gpu in target
        ):
            self._place(job, target)
        else:
            self._schedule(job)
        self._serve(gpus)

    def awoke(self, node: Node) -> None:
        self._note(node)

    def reached(self, job: Job) -> None:
        """An epoch with new neighbours has been measured: learn, and undo a placement that breaks a deadline.
        """
        gpu = max(job.gpus, key=lambda gpu: self.history.predict(gpu.mix))
        expected, excess = self.history.predict(gpu.mix), self.cluster.excess(job)
        if gpu.mix.size < 2:
            return
        if expected > 0:
            job.note.sensitivity, job.note.margin = excess / expected, 1.0
        self.history.learn(gpu.mix, excess)
        newcomer = gpu.jobs[-1]
        if job.breaks(excess, self.cluster.now_s) and newcomer.state == RUNNING:
            newcomer.note.avoid.update(gpu.jobs)
            self.cluster.stop(newcomer, undo=True)

    # Placing

    def _schedule(self, job: Job) -> None:
        """Place the job where it costs least, or queue it."""
        for bound in (self.max_excess, self.busy_excess):
            self.bound = bound
            gpus = self._shared(job) or self._shared(job, draining=True) or self.free.find(job)
            if gpus:
                self._place(job, gpus)
                return
        self.waiting.add(job)

    def _shared(
        self, job: Job, more_s: float = 0.0, *, draining: bool = False
    ) -> Sequence[Gpu] | None:
        """The cheapest GPUs of nodes with jobs.

        Args:
            job: The job to place.
            more_s: Additional work of a move; the node must then be awake.
            draining: Search nodes that are being emptied, otherwise the others.
        """
        if draining and not self.draining:
            return None
        best: Sequence[Gpu] | None = None
        checks, least, now = CHECKS, NEVER_S, self.cluster.now_s
        left_s = job.expected_left_s(now) + more_s
        joined: dict[Mix, float | None] = {}
        for bound_j, node in self.ranking.least_first(job, left_s, now, self.limit - job.load, self.memory):
            if bound_j >= least:
                break
            if (node in self.draining) != draining or (more_s and node.state != AWAKE):
                continue
            if node.free < job.num_gpus:
                if not checks:
                    continue
                checks -= 1
            found = self._on_node(job, node, left_s, joined, (least - bound_j) / SLOWDOWN_W)
            if found and found[0] < least:
                least, best = found
        return best

    def _on_node(
        self, job: Job, node: Node, left_s: float, joined: dict[Mix, float | None], most_s: float = NEVER_S
    ) -> tuple[float, Sequence[Gpu]] | None:
        """Predicted joules of the job on this node, and its cheapest GPUs there; `joined` and `most_s` as in
        `_price`.
        """
        priced: list[tuple[float, float, int, Gpu]] = []
        count, room = job.num_gpus, self.memory - job.memory
        alone = count == 1 and node.free
        for gpu in node.gpus:
            # A free GPU costs less than a shared one; a refused mix is full for all its GPUs.
            if gpu.jobs and (alone or gpu.memory > room or joined.get(gpu.mix, 0.0) is None):
                continue
            if gpu in self.reserved:
                continue
            price = self._price(job, gpu, left_s, joined, most_s) if gpu.jobs else (0.0, 0.0)
            if price:
                # A job on several GPUs is as slow as on the slowest of them: the other GPUs decide.
                priced.append((price[0] + price[1] * (count == 1), price[1], gpu.index, gpu))
                if alone:
                    break
        if len(priced) < count:
            return None
        priced.sort()
        sums_s, own_s, _, gpus = zip(*priced[:count], strict=True)
        slow_s = max(own_s)
        used = min(node.used + count * job.load, UNIT * node.kind.gpus)
        time_s = (left_s + slow_s) / node.speed
        shared_s = min(time_s, max(self.ends.get(node, 0.0) - self.cluster.now_s, 0.0))
        energy_j = (node.table[used] - node.power_w) * shared_s
        energy_j += (node.table[count * job.load] - node.standby_w) * (time_s - shared_s)
        return energy_j + (sum(sums_s) + slow_s * (count > 1)) * SLOWDOWN_W, gpus

    def _joins(self, job: Job, mix: Mix, left_s: float) -> float | None:
        """Expected excess of the mix with the job; None where the mix is too full or the job too slow."""
        if job.priority > 0 or mix.size >= self.max_jobs or mix.load + job.load > self.limit:
            return None
        expected = self.history.predict(self.cluster.mixes.grown(mix, job.profile))
        own = expected * job.note.sensitivity
        late = left_s <= job.deadline_s - self.cluster.now_s < left_s * (1 + own * job.note.margin)
        return None if own > self.bound or late else expected

    def _price(
        self, job: Job, gpu: Gpu, left_s: float, joined: dict[Mix, float | None], most_s: float
    ) -> tuple[float, float] | None:
        """Total extra run time (s) of the other jobs on this GPU, and that of the newcomer. None where it
        does not fit, a deadline breaks, or the newcomer would run longer by `most_s`. `joined` caches the
        results of mixes, which are the same for all GPUs of one mix.
        """
        mix, now = gpu.mix, self.cluster.now_s
        if mix not in joined:
            joined[mix] = self._joins(job, mix, left_s)
        expected = joined[mix]
        if expected is None or (own_s := expected * job.note.sensitivity * left_s) >= most_s:
            return None
        others_s, before = 0.0, self.history.predict(mix)
        for other in gpu.jobs:
            note = other.note
            excess = expected * note.sensitivity
            if excess > self.bound or other.priority > 0 or other.state == LEAVING or other in job.note.avoid:
                return None
            one_gpu = len(other.gpus) == 1
            more = excess - (before * note.sensitivity if one_gpu else self._excess(other))
            if more > 0:
                other_s = other.expected_left_s(now)
                if other_s <= other.deadline_s - now < other_s * (1 + excess * note.margin):
                    return None
                others_s += more * other_s
        return others_s, own_s

    def _excess(self, job: Job) -> float:
        """Predicted excess of a running job now."""
        mixes = [gpu.mix for gpu in job.gpus]
        return float(max(map(self.history.predict, mixes)) * job.note.sensitivity)

    def _place(self, job: Job, gpus: Sequence[Gpu]) -> None:
        self.cluster.place(job, list(gpus))
        company = dict.fromkeys(other for gpu in gpus for other in gpu.jobs)
        for each in company if len(company) > 1 else ():
            if each.state == RUNNING:
                self.cluster.notify(each, each.epoch_s)
        self._changed(job, gpus, came=True)

    def _changed(self, job: Job, gpus: Sequence[Gpu], *, came: bool = False) -> None:
        """The job has come to these GPUs or left them."""
        self.free.touched(gpus)
        for node in nodes_of(gpus):
            if node.seats and self.capped:
                self._limit(node)
            if came:
                self.ends[node] = max(self.ends.get(node, 0.0), self._end_s(node, [job]))
                self.ranking.changed(node, self.ends[node])
            else:
                self._note(node)

    def _end_s(self, node: Node, jobs: Iterable[Job]) -> float:
        """Expected last end of these jobs on this node."""
        now, wake_s = self.cluster.now_s, 0.0 if node.state == AWAKE else node.kind.wake_s
        return now + wake_s + max([job.expected_left_s(now) / (job.rate or node.speed) for job in jobs])

    def _note(self, node: Node) -> None:
        if node.seats:
            self.ends[node] = self._end_s(node, node.jobs())
        else:
            self.ends.pop(node, None)
            self.draining.discard(node)
        self.ranking.changed(node, self.ends.get(node, 0.0))

    # Power limits

    def _limit(self, node: Node) -> None:
        """Set the power limit of least energy that breaks no further deadline."""
        kind, now, tightest = node.kind, self.cluster.now_s, 0.0
        for job in node.jobs():
            left_s, time_s = job.expected_left_s(now), job.deadline_s - now
            if job.state == RUNNING and left_s <= time_s:
                excess = self._excess(job) * job.note.margin
                tightest = max(tightest, min(left_s * (1 + excess) / time_s, 1.0))
        active_w = kind.power_w(node.used / (UNIT * kind.gpus)) - kind.idle_w

        def cost_w(index: int) -> float:
            # Cost of a slowdown: the node's other power for longer, and the price of a slower job.
            speed, active = levels[index]
            power_w = kind.idle_w - kind.standby_w + active_w * active
            return (power_w + SLOWDOWN_W * node.seats * (1 - speed)) / speed

        levels = [*((cap.speed, cap.active) for cap in kind.caps), (1.0, 1.0)]
        allowed = [index for index, cap in enumerate(kind.caps) if cap.speed >= tightest]
        self.cluster.cap(node, min([-1, *allowed], key=cost_w))

    # Emptying nodes

    def _review(self) -> None:
        """Move the jobs of the emptiest node, where that saves several times its cost."""
        now, least_s = self.cluster.now_s, MOVABLE_TIMES * self.move_s
        order = sorted(self.ends, key=lambda node: (node.used, node.index))
        for node in order[: max(len(order) // 2, 1)]:
            residents = node.jobs()
            # A job that waits for another of its nodes has no rate.
            steady = all(job.state == RUNNING and job.rate for job in residents)
            if node.state != AWAKE or node in self.draining or not steady:
                continue
            left_s = {job: job.expected_left_s(now) / job.rate for job in residents}
            moving = [job for job in residents if job.expected_left_s(now) > least_s]
            rest_s = max([left_s[job] for job in residents if job not in moving], default=0.0)
            if not 0 < len(moving) <= node.kind.gpus:
                continue
            saved_j = (node.idle_w - node.standby_w) * (max(left_s[job] for job in moving) - rest_s)
            cost_j = self.move_s * len(moving) * node.power_w
            if saved_j > WORTH_TIMES * cost_j and self._empty(node, moving):
                return

    def _empty(self, node: Node, moving: list[Job]) -> bool:
        """Stop these jobs to move them, if there is room for all of them on other nodes."""
        self.draining.add(node)
        targets: dict[Job, Gpus] = {}
        self.bound = self.max_excess
        for job in sorted(moving, key=lambda job: -job.num_gpus):
            late = job.breaks(self.move_s / job.expected_left_s(self.cluster.now_s), self.cluster.now_s)
            gpus = None if late else self._shared(job, self.move_s)
            if gpus is None:
                self.reserved.difference_update(gpu for target in targets.values() for gpu in target)
                self.draining.discard(node)
                return False
            targets[job] = tuple(gpus)
            self.reserved.update(gpus)
        for job, target in targets.items():
            job.note.target = target
            self.cluster.stop(job)
        return True

    # The queue

    def _serve(self, gpus: Iterable[Gpu]) -> None:
        """Place waiting jobs on the nodes that have changed, until none fits."""
        self.bound = self.busy_excess
        for node in nodes_of(gpus):
            while node.state != STANDBY and (found := self._next(node)):
                self.waiting.take(found[0])
                self._place(*found)

    def _next(self, node: Node) -> tuple[Job, Sequence[Gpu]] | None:
        """The first waiting job that fits on the node, and its GPUs."""
        for _, _, job in sorted([queue[0] for queue in self.waiting.values()]):
            if not node.seats or job.num_gpus > node.kind.gpus:
                gpus: Sequence[Gpu] | None = self.free.find(job)
            else:
                found = self._on_node(job, node, job.expected_left_s(self.cluster.now_s), {})
                gpus = found and found[1]
            if gpus:
                return job, gpus
        return None
