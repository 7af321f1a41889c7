"""The workbench's own policy: every placement at the least predicted energy, slowdown priced in watts, nodes
emptied by moving what is left on them. What it does otherwise than EaCO, and why:
docs/explanation/cluster.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..colocation import Colocation, History, Mix
from ..placement import FreeNodesPolicy, WaitingJobs
from ..policy import ClusterControl
from ..power import UNIT
from ..ranking import Ranking
from ..state import AWAKE, LEAVING, NEVER_S, RUNNING, STANDBY, Gpu, Job, Node

REFUSED = -1.0


@dataclass(frozen=True, slots=True)
class EnergyAwareParams:
    """Tuned constants of `EnergyAwarePolicy` beside its arguments; set by hand.

    `benchmarks.cluster` scores the policy with them, on weeks that they were not chosen on
    (docs/validation/cluster.md).

    Attributes:
        memory_threshold: Highest share of a GPU's memory that peaks may take together.
        slowdown_w: Price of a second by which a job runs longer, in watts; `cap_slowdown_w` under a limit.
        margin: By how much a predicted excess is raised against deadlines until the job has been measured.
    """

    memory_threshold: float = 0.9
    slowdown_w: float = 150.0
    cap_slowdown_w: float = 250.0
    margin: float = 1.6
    # nodes without a free GPU that are asked for one job at most, which bounds what a job costs
    checks: int = 64
    quiet_nodes: int = 8  # while no more than 1 node in so many is awake, `quiet_excess` holds
    # measured excess over the predicted one of a job, at least and at most
    sensitivity: tuple[float, float] = (0.25, 4.0)
    movable_times: float = 30  # cost of a move in seconds, that a job must still run to be moved
    most_moves: int = 6  # jobs of one node
    pays_times: float = 3  # cost of the moves, that they must save


PARAMS = EnergyAwareParams()


@dataclass(slots=True, eq=False)
class JobEstimate:
    """A job's sensitivity (1: as its model), the jobs it must not meet again, and where it is moving to."""

    sensitivity: float = 1.0
    measured: bool = False
    avoid: set[int] | None = None
    target: tuple[Gpu, ...] | None = None


class NodeLimiter:
    """Sets a node's power limit of least energy under which all deadlines hold that hold without."""

    def __init__(self, cluster: ClusterControl, history: History, params: EnergyAwareParams) -> None:
        self.cluster, self.history, self.params = cluster, history, params

    def limit(self, node: Node) -> None:
        caps = node.kind.caps
        if not caps or not node.seats:
            return
        whole_w = node.table.kind.power_w(node.used / (UNIT * node.kind.gpus))
        active_w = whole_w - node.kind.idle_w
        tightest = self._tightest(node)
        best, least = -1, whole_w - node.kind.standby_w
        for index, cap in enumerate(caps):
            # What a slowdown costs is the node's other power for longer, and the price that a slower job has.
            power_w = node.kind.idle_w - node.kind.standby_w + active_w * cap.active
            cost = (power_w + self.params.cap_slowdown_w * node.seats * (1 - cap.speed)) / cap.speed
            if cap.speed >= tightest and cost < least:
                best, least = index, cost
        if best != node.cap_index:
            self.cluster.cap(node, best)

    def _tightest(self, node: Node) -> float:
        """The lowest speed at which everyone on the node still meets its deadline, of those that can."""
        now = self.cluster.now_s
        tightest = 0.0
        for gpu in node.gpus:
            for job in gpu.jobs:
                if job.state == RUNNING:
                    belief: JobEstimate = job.note  # type: ignore[assignment]
                    excess = max([self.history.predict(each.mix) for each in job.gpus]) * belief.sensitivity
                    left_s, time_s = job.expected_left_s(now), job.deadline_s - now
                    need_s = left_s * (1 + (excess if belief.measured else excess * self.params.margin))
                    if need_s <= time_s:
                        tightest = max(tightest, need_s / time_s)
                    elif left_s <= time_s:
                        return 1.0
        return tightest


class EnergyAwarePolicy(FreeNodesPolicy):
    """Least predicted energy under deadlines.

    Args:
        max_jobs: On one GPU, whatever their slowdown.
        load_threshold: Highest sum of solo utilisations on a GPU that is shared.
        max_excess: Highest predicted slowdown of any job by sharing, while nodes are left that could be woken
            instead.
        busy_excess: The same once all nodes are awake and jobs would have to wait.
        quiet_excess: The same while no more than an eighth of the nodes is awake: standby is then much of the
            energy, and one node fewer a large part of the rest.
        review_s: How often nodes are looked at that might be emptied; None: never, no job is moved.
        capped: Put awake nodes under one of their power limits (`NodeType.caps`), the one of least predicted
            energy, for as long as everyone there still meets the deadlines under it.
        start: What is believed of sharing before the first measurement.
        sleep_after_s: When empty nodes go to standby.
        params: The remaining constants.
    """

    def __init__(
        self, *, max_jobs: int = 4, load_threshold: float = 1.0, max_excess: float = 0.09,
        busy_excess: float = 0.3, quiet_excess: float = 0.12, review_s: float | None = 1200.0,
        capped: bool = False, start: Colocation | None = None, sleep_after_s: float | None = 60.0,
        params: EnergyAwareParams = PARAMS,
    ) -> None:
        self.params, self.start, self.sleep_after_s = params, start, sleep_after_s
        self.max_jobs, self.limit, self.margin = max_jobs, round(load_threshold * UNIT), params.margin
        self.max_excess, self.busy_excess, self.quiet_excess = max_excess, busy_excess, quiet_excess
        self.review_s, self.capped = review_s, capped
        self.name = "workbench" + " with caps" * capped + ", no moves" * (review_s is None)

    def begin(self, cluster: ClusterControl) -> None:
        super().begin(cluster)
        self.history = History(cluster.profiles, self.start)
        self.ranking = Ranking(cluster, max_jobs=self.max_jobs)
        self.active: dict[int, Node] = {}
        self.ends: dict[int, float] = {}
        self.waiting = WaitingJobs()
        share = self.params.memory_threshold
        self.memory = [int(share * kind.memory_bytes) for kind, _ in cluster.cluster.nodes]
        self.reserved: set[Gpu] = set()
        self.draining: set[int] = set()
        self.review_due_s = cluster.now_s
        self.quiet = len(cluster.nodes) // self.params.quiet_nodes
        self.bound = self.max_excess
        self.limiter = NodeLimiter(cluster, self.history, self.params) if self.capped else None

    # What happens

    def arrived(self, job: Job) -> None:
        job.note = JobEstimate()
        if not self._schedule(job):
            self.waiting.add(job, job.submit_s - 1e9 * job.priority)

    def finished(self, job: Job, gpus: tuple[Gpu, ...]) -> None:
        self._left(job, gpus)
        if self.waiting:
            self._serve(gpus)
        elif self.review_s is not None and self.cluster.now_s >= self.review_due_s:
            self.review_due_s = self.cluster.now_s + self.review_s
            self._review()

    def stopped(self, job: Job, gpus: tuple[Gpu, ...]) -> None:
        self._left(job, gpus)
        belief: JobEstimate = job.note  # type: ignore[assignment]
        target, belief.target = belief.target, None
        if target is not None:
            self.reserved.difference_update(target)
            if all(
                gpu.node.state == AWAKE and gpu.node.seats
                and gpu.memory + job.memory <= self.memory[gpu.node.kind_index]
                for gpu in target
            ):
                self._place(job, target)
                target = None
        if job.state != RUNNING and not self._schedule(job):
            self.waiting.add(job, job.submit_s - 1e9 * job.priority)
        if self.waiting:
            self._serve(gpus)

    def awoke(self, node: Node) -> None:
        self._changed(node)

    def reached(self, job: Job) -> None:
        """An epoch in new company has been measured."""
        mix = max([gpu.mix for gpu in job.gpus], key=self.history.predict)
        if mix.size < 2:
            return
        excess = self.cluster.excess(job)
        belief: JobEstimate = job.note  # type: ignore[assignment]
        expected = self.history.predict(mix)
        if expected > 0:
            least, most = self.params.sensitivity
            belief.sensitivity, belief.measured = min(max(excess / expected, least), most), True
        self.history.learn(mix, excess)
        now = self.cluster.now_s
        left_s, time_s = job.expected_left_s(now), job.deadline_s - now
        if left_s <= time_s < left_s * (1 + excess):
            self._undo(job)

    # Placing

    def _schedule(self, job: Job) -> bool:
        gpus = self._cheapest(job)
        if gpus is None:
            return False
        self._place(job, gpus)
        return True

    def _cheapest(self, job: Job) -> Sequence[Gpu] | None:
        """The GPUs on which the job costs least; None where none takes it."""
        now = self.cluster.now_s
        self.bound = self.quiet_excess if self.cluster.awake <= self.quiet else self.max_excess
        best = self._shared(job, job.expected_left_s(now), now)
        if best is None:
            best = self.free.find(job)
        if best is None and self.busy_excess > self.bound:
            self.bound = self.busy_excess
            best = self._shared(job, job.expected_left_s(now), now)
        self.bound = self.max_excess
        return best

    def _shared(self, job: Job, left_s: float, now: float, *, moving: bool = False) -> Sequence[Gpu] | None:
        """The cheapest GPUs of nodes with jobs; of nodes being emptied last, and never for a moving job."""
        best: Sequence[Gpu] | None = None
        least = NEVER_S
        checks = self.params.checks
        joined: dict[Mix, float] = {}
        drained: list[Node] = []
        for bound_j, node in self.ranking.least_first(job, left_s, now, self.limit - job.load, self.memory):
            if bound_j >= least:
                break
            if node.index in self.draining:
                drained.append(node)
            elif (checks > 0 or node.free >= job.num_gpus) and (not moving or node.state == AWAKE):
                checks -= node.free < job.num_gpus
                cost, gpus = self._on_node(job, node, left_s, now, joined)
                if gpus is not None and cost < least:
                    least, best = cost, gpus
        if best is None and not moving:
            for node in drained:
                cost, gpus = self._on_node(job, node, left_s, now, joined)
                if gpus is not None and cost < least:
                    least, best = cost, gpus
        return best

    def _on_node(
        self, job: Job, node: Node, left_s: float, now: float, joined: dict[Mix, float]
    ) -> tuple[float, Sequence[Gpu] | None]:
        """Predicted joules of the job on this node, and its cheapest GPUs there; `joined` as in `_price`."""
        count = job.num_gpus
        kind = node.kind
        if (
            count > kind.gpus or (job.gpu_type is not None and job.gpu_type != kind.gpu_type)
            or job.memory > kind.memory_bytes
        ):
            return 0.0, None
        slow_s = 0.0
        if count == 1:
            chosen: Sequence[Gpu] | None = None
            most = float("inf")
            if node.free:
                for gpu in node.gpus:
                    if not gpu.jobs and gpu not in self.reserved:
                        chosen, most = (gpu,), 0.0
                        break
            if chosen is None and job.priority <= 0:
                for gpu in node.gpus:
                    if joined.get(gpu.mix, 0.0) == REFUSED:
                        continue
                    price = self._price(job, gpu, left_s, now, joined)
                    if price is not None and price[0] < most:
                        most, slow_s, chosen = price[0], price[1], (gpu,)
            if chosen is None:
                return 0.0, None
        else:
            priced: list[tuple[float, float, int, Gpu]] = []
            for gpu in node.gpus:
                if gpu in self.reserved:
                    continue
                if not gpu.jobs:
                    priced.append((0.0, 0.0, gpu.index, gpu))
                elif job.priority <= 0 and joined.get(gpu.mix, 0.0) != REFUSED:
                    price = self._price(job, gpu, left_s, now, joined)
                    if price is not None:
                        priced.append((price[0] - price[1], price[1], gpu.index, gpu))
            if len(priced) < count:
                return 0.0, None
            priced.sort()
            priced = priced[:count]
            slow_s = max(each[1] for each in priced)
            most = sum(each[0] for each in priced) + slow_s
            chosen = [each[3] for each in priced]
        table = node.table
        used = node.used + count * job.load
        whole = UNIT * kind.gpus
        time_s = (left_s + slow_s) / node.speed
        shared_s = min(time_s, max(self.ends[node.index] - now, 0.0))
        power = table[used if used < whole else whole] - node.power_w
        alone = table[count * job.load] - node.standby_w
        return power * shared_s + alone * (time_s - shared_s) + most * self.params.slowdown_w, chosen

    def _joins(self, job: Job, mix: Mix, left_s: float, now: float) -> float:
        """Expected excess of the mix with the job; `REFUSED` where the mix is too full or the job late."""
        if mix.size >= self.max_jobs or mix.load + job.load > self.limit:
            return REFUSED
        after = mix.add.get(job.profile) or self.cluster.mixes.grown(mix, job.profile)
        expected = self.history.predict(after)
        belief: JobEstimate = job.note  # type: ignore[assignment]
        own = expected * belief.sensitivity
        slowest_s = left_s * (1 + (own if belief.measured else own * self.margin))
        return REFUSED if own > self.bound or left_s <= job.deadline_s - now < slowest_s else expected

    def _price(
        self, job: Job, gpu: Gpu, left_s: float, now: float, joined: dict[Mix, float]
    ) -> tuple[float, float] | None:
        """Seconds by which everyone on this GPU would run longer in sum, and the newcomer's part of it; None
        where it does not fit or a deadline breaks. `joined` keeps what was found of mixes, which is the same
        for all GPUs of one mix.
        """
        mix = gpu.mix
        if gpu.memory + job.memory > self.memory[gpu.node.kind_index] or gpu in self.reserved:
            return None
        expected = joined.get(mix)
        if expected is None:
            expected = joined[mix] = self._joins(job, mix, left_s, now)
        if expected == REFUSED:
            return None
        belief: JobEstimate = job.note  # type: ignore[assignment]
        own_s = total_s = expected * belief.sensitivity * left_s
        before = self.history.predict(mix)
        for other in gpu.jobs:
            if other.priority > 0 or other.state == LEAVING:
                return None
            belief = other.note  # type: ignore[assignment]
            excess = expected * belief.sensitivity
            if excess > self.bound:
                return None
            if job.note.avoid is not None and other.index in job.note.avoid:  # type: ignore[attr-defined]
                return None
            if len(other.gpus) > 1:
                now_excess = max([self.history.predict(each.mix) for each in other.gpus]) * belief.sensitivity
            else:
                now_excess = before * belief.sensitivity
            if excess > now_excess:
                other_s = other.expected_left_s(now)
                time_s = other.deadline_s - now
                if other_s <= time_s < other_s * (1 + (excess if belief.measured else excess * self.margin)):
                    return None
                total_s += (excess - now_excess) * other_s
        return total_s, own_s

    def _place(self, job: Job, gpus: Sequence[Gpu]) -> None:
        gpus = tuple(gpus)
        cluster = self.cluster
        others = dict.fromkeys(other for gpu in gpus for other in gpu.jobs)
        cluster.place(job, gpus)
        self.free.touched(job, gpus)
        now = cluster.now_s
        for node in {gpu.node: None for gpu in gpus}:
            self.active[node.index] = node
            wake_s = 0.0 if node.state == AWAKE else node.kind.wake_s
            end_s = now + job.expected_left_s(now) / (job.rate or node.speed) + wake_s
            self.ends[node.index] = max(self.ends.get(node.index, 0.0), end_s)
        if others:
            for each in (*others, job):
                if each.state == RUNNING:
                    cluster.notify(each, each.epoch_s)
        for node in {gpu.node: None for gpu in gpus}:
            if self.limiter is not None:
                self.limiter.limit(node)
            self._changed(node)

    def _changed(self, node: Node) -> None:
        self.ranking.changed(node, self.ends.get(node.index, 0.0))

    def _left(self, job: Job, gpus: Iterable[Gpu]) -> None:
        now = self.cluster.now_s
        for node in {gpu.node: None for gpu in gpus}:
            if not node.seats:
                self.active.pop(node.index, None)
                self.ends.pop(node.index, None)
                self.draining.discard(node.index)
            else:
                here = [each for gpu in node.gpus for each in gpu.jobs]
                ends_s = [now + each.expected_left_s(now) / (each.rate or node.speed) for each in here]
                self.ends[node.index] = max(ends_s)
                if self.limiter is not None:
                    self.limiter.limit(node)
            self._changed(node)
        self.free.touched(job, tuple(gpus))

    def _undo(self, job: Job) -> None:
        """Stop the last comer on the job's slowest GPU, to save a deadline that can still be met."""
        gpu = max(job.gpus, key=lambda gpu: self.history.predict(gpu.mix))
        newcomer = gpu.jobs[-1]
        if newcomer.state != RUNNING:
            return
        now = self.cluster.now_s
        restart_s = self.cluster.checkpoint_s + self.cluster.restart_s
        left_s = newcomer.expected_left_s(now)
        if left_s < 2 * restart_s:
            return  # it is gone sooner than it could be moved
        if newcomer is job and left_s + restart_s > job.deadline_s - now:
            return  # too late to save it
        belief: JobEstimate = newcomer.note  # type: ignore[assignment]
        belief.avoid = (belief.avoid or set()) | {other.index for other in gpu.jobs if other is not newcomer}
        self.cluster.stop(newcomer, undo=True)

    # Emptying nodes

    def _review(self) -> None:
        """Move the jobs that keep the emptiest node awake, where that pays several times over."""
        params = self.params
        now = self.cluster.now_s
        cost_s = self.cluster.checkpoint_s + self.cluster.restart_s
        order = sorted(self.active.values(), key=lambda node: (node.used, node.index))
        for node in order[: max(len(order) // 2, 1)]:
            if node.state != AWAKE or node.index in self.draining:
                continue
            residents = node.jobs()
            # One that waits for another of its nodes has no rate.
            if any(job.state != RUNNING or not job.rate for job in residents):
                continue
            least_s = params.movable_times * cost_s
            movable = [job for job in residents if job.expected_left_s(now) > least_s]
            stay = [job for job in residents if job.expected_left_s(now) <= least_s]
            if not movable or len(movable) > params.most_moves:
                continue
            end_s = max(job.expected_left_s(now) / job.rate for job in movable)
            rest_s = max([job.expected_left_s(now) / job.rate for job in stay], default=0.0)
            saved_j = (node.idle_w - node.standby_w) * (end_s - rest_s)
            self.draining.add(node.index)
            targets: list[tuple[Job, tuple[Gpu, ...]]] = []
            for job in sorted(movable, key=lambda job: -job.num_gpus):
                gpus = self._target(job, now)
                if gpus is None:
                    break
                self.reserved.update(gpus)
                targets.append((job, gpus))
            paid_j = params.pays_times * cost_s * len(targets) * node.power_w
            if len(targets) == len(movable) and saved_j > paid_j:
                for job, gpus in targets:
                    job.note.target = gpus  # type: ignore[attr-defined]
                    self.cluster.stop(job)
                return
            for _, gpus in targets:
                self.reserved.difference_update(gpus)
            self.draining.discard(node.index)

    def _target(self, job: Job, now: float) -> tuple[Gpu, ...] | None:
        """The cheapest GPUs for a job that is to move, on nodes that are not being emptied."""
        cost_s = self.cluster.checkpoint_s + self.cluster.restart_s
        left_s = job.expected_left_s(now) + cost_s
        if left_s - cost_s <= job.deadline_s - now < left_s:
            return None
        best = self._shared(job, left_s, now, moving=True)
        return tuple(best) if best is not None else None

    # The queue

    def _serve(self, gpus: Iterable[Gpu]) -> None:
        """Place who waits on the nodes that have changed, as long as somebody fits."""
        cluster = self.cluster
        self.bound = max(self.busy_excess, self.max_excess)
        for node in {gpu.node: None for gpu in gpus}:
            placed = True
            while placed and self.waiting:
                placed = False
                now = cluster.now_s
                if node.state == STANDBY:
                    break
                for _, _, job in sorted([queue[0] for queue in self.waiting.values()]):
                    whole = not node.seats or job.num_gpus > node.kind.gpus
                    found: Sequence[Gpu] | None = self.free.find(job) if whole else None
                    if not whole:
                        found = self._on_node(job, node, job.expected_left_s(now), now, {})[1]
                    if found is not None:
                        self.waiting.take(job)
                        self._place(job, found)
                        placed = True
                        break
        self.bound = self.max_excess
