"""Events on the nodes of a simulated cluster: jobs start, end and change speed, and meters are updated."""

from __future__ import annotations

import heapq
from collections import Counter

import polars as pl

from .colocation import Colocation, Mixes
from .columns import columns
from .policy import IllegalPlacement, Policy, broken_rule
from .power import Cluster, PowerTable
from .recording import RunRecorder
from .state import AWAKE, RUNNING, STANDBY, WAKING, Gpu, Gpus, Job, Node

TARGET, SLEEP, WAKE, STOP, TIMER = 0, 1, 2, 3, 4  # event types


class Engine:
    """The state between two events and its changes; `Simulator` adds time and the policy interface.

    Every change first updates the meters of its nodes. It then predicts new end times for the jobs whose
    speed it changes.
    """

    policy: Policy

    def __init__(
        self, log: pl.DataFrame, cluster: Cluster, *, asleep: bool, colocation: Colocation,
        stays: bool,
    ) -> None:
        self.log, self.cluster = log, cluster
        self.profiles, self._submit, self._arrivals = columns(log)
        self.mixes = Mixes(self.profiles, colocation)
        tables = tuple(PowerTable(cluster.kind, cap) for cap in (None, *cluster.kind.caps))
        self.nodes = [Node(at, cluster.kind, self.mixes.empty, tables) for at in range(cluster.size)]
        self.now_s = self.start_s = self._submit[0]
        for node in self.nodes:
            node.since_s = self.now_s
            if not asleep:
                node.state, node.power_w = AWAKE, node.table[0]
        self.power_w = sum(node.power_w for node in self.nodes)
        self.energy_j, self._metered_s = 0.0, self.now_s
        self.hosting, self.awake = 0, 0 if asleep else len(self.nodes)
        self.queued = self.running = 0
        # (time, order, version, event, subject). At equal times, job targets come first, in the order of the
        # log. Other events follow in the order of their request. So the order does not depend on how often
        # a job's target was predicted.
        self._heap: list[tuple[float, int, int, int, object]] = []
        self._seq = log.height
        self._recorder = RunRecorder(self.nodes) if stays else None

    def name(self, job: Job) -> str:
        return str(self.log["job_id"][job.index])

    def place(self, job: Job, gpus: Gpus | list[Gpu]) -> None:
        if broken := broken_rule(job, gpus):
            who = f"job {self.name(job)} (row {job.index}, {job.num_gpus} GPUs)"
            raise IllegalPlacement(f"{self.policy.name} places {who}{broken}")
        by_node = Counter(gpu.node for gpu in gpus) if len(gpus) > 1 else {gpus[0].node: 1}
        others = dict.fromkeys(other for gpu in gpus for other in gpu.jobs)
        for node in by_node:
            node.advance(self.now_s)
        for gpu in gpus:
            self._seat(job, gpu)
        job.gpus = tuple(gpus)
        job.stays = tuple((node, seats, node.per_demand, node.per_seat) for node, seats in by_node.items())
        job.state, job.rate, job.since_s = RUNNING, 0.0, self.now_s
        self.queued -= 1
        self.running += 1
        if self._recorder:
            self._recorder.came(job, self.now_s)
        for node in by_node:
            if node.state == AWAKE:
                self._draw(node, node.table[node.used])
        self._begin(job)
        for other in others:
            self._rerate(other)

    def _seat(self, job: Job, gpu: Gpu) -> None:
        """Put the job on one of its GPUs."""
        node, mix = gpu.node, gpu.mix
        gpu.mix = after = self.mixes.grown(mix, job.profile)
        gpu.stamp += 1
        gpu.memory += job.memory
        gpu.jobs.append(job)
        node.seats += 1
        node.demand += job.load
        node.used += after.used - mix.used
        if mix.size == 0:
            node.free -= 1
            if node.seats == 1:
                self.hosting += 1
                node.stamp += 1
                if node.state == STANDBY:
                    node.state = WAKING
                    node.wakes += 1
                    self.awake += 1
                    self._draw(node, node.idle_w)
                    self._push(self.now_s + node.kind.wake_s, WAKE, node, 0)

    def _begin(self, job: Job) -> None:
        """Let a placed job run, if all its nodes are awake."""
        for node, *_ in job.stays:
            if node.state != AWAKE:
                return
        job.began_s = job.since_s = self.now_s
        if job.start_s < 0:
            job.start_s = self.now_s
        job.rate = self._rate(job)
        self._schedule(job)
        if self._recorder:
            self._recorder.changed(job, self.now_s)

    def _rate(self, job: Job) -> float:
        excess = max([gpu.mix.excess for gpu in job.gpus])
        return min([node.speed for node, *_ in job.stays]) / (1.0 + excess * job.sensitivity)

    def _rerate(self, job: Job) -> None:
        """The neighbours of a running job have changed, or its node's limit."""
        if job.state != RUNNING or job.rate == 0.0:
            return
        rate = self._rate(job)
        if rate != job.rate:
            self._settle(job)
            job.rate = rate
            self._schedule(job)
        if self._recorder:
            self._recorder.changed(job, self.now_s)

    def _settle(self, job: Job) -> None:
        job.left_s -= job.rate * (self.now_s - job.since_s)
        job.since_s = self.now_s

    def _schedule(self, job: Job) -> None:
        job.version += 1
        if job.rate > 0:
            due_s = max(job.since_s + max(job.left_s - job.target_s, 0.0) / job.rate, self.now_s)
            heapq.heappush(self._heap, (due_s, job.index, job.version, TARGET, job))

    def _push(self, time_s: float, what: int, subject: object, version: int) -> None:
        self._seq += 1
        heapq.heappush(self._heap, (time_s, self._seq, version, what, subject))

    def _sleep_later(self, node: Node) -> None:
        """Put the node to standby after the policy's time, if it then has been empty since now."""
        if not node.seats and self.policy.sleep_after_s is not None:
            self._push(self.now_s + self.policy.sleep_after_s, SLEEP, node, node.stamp)

    def _draw(self, node: Node, power_w: float) -> None:
        """Set the node's power from now on; its meters are up to date."""
        if power_w != node.power_w:
            self.energy_j += self.power_w * (self.now_s - self._metered_s)
            self._metered_s = self.now_s
            self.power_w += power_w - node.power_w
            node.power_w = power_w

    def _remove(self, job: Job) -> None:
        """Take a job off its GPUs; the remaining jobs go on faster."""
        now, load = self.now_s, job.load
        for node, seats, per_demand, per_seat in job.stays:
            node.advance(now)
            job.energy_j += load * seats * (node.per_demand - per_demand) + seats * (node.per_seat - per_seat)
            node.seats -= seats
            node.demand -= load * seats
        others: list[Job] = []
        for gpu in job.gpus:
            mix = gpu.mix
            gpu.mix = after = self.mixes.shrunk(mix, job.profile)
            gpu.stamp += 1
            gpu.memory -= job.memory
            gpu.jobs.remove(job)
            node = gpu.node
            node.used += after.used - mix.used
            if after.size == 0:
                node.free += 1
            else:
                others += gpu.jobs
        for node, *_ in job.stays:
            self.hosting -= node.seats == 0
            if node.state == AWAKE:
                self._draw(node, node.table[node.used])
                self._sleep_later(node)
        if self._recorder:
            self._recorder.left(job, now)
        job.run_s += now - job.began_s
        job.gpus = ()
        self.running -= 1
        for other in others:
            self._rerate(other)
        job.stays = ()
