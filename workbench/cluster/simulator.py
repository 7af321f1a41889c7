"""Simulates a cluster exactly: from event to event, with remaining work instead of finish times, and energy
as an integral without steps.

Between two events every rate and every power is constant, so the integrals are sums of products. Only the
node that changes is updated, and `advance` may be called in pieces of any size. docs/explanation/cluster.md
describes how energy is attributed to jobs.
"""

from __future__ import annotations

import heapq
from typing import cast

import numpy as np
import polars as pl

from ..errors import SimulationError, UsageError
from . import jobs as logs
from .colocation import Colocation
from .engine import SLEEP, STOP, TARGET, TIMER, WAKE, Engine
from .policy import IllegalPlacement, Policy
from .power import Cluster
from .recording import RunRecorder
from .result import OUTCOME, Result, Timeline, job_frame, node_frame
from .state import AWAKE, DONE, LEAVING, QUEUED, RUNNING, STANDBY, WAKING, Job, Node


class Simulator(Engine):
    """One run of one policy over one log.

    Args:
        log: Jobs with the columns of `jobs.SCHEMA`.
        cluster: Its nodes.
        policy: A new one; it keeps its queue.
        colocation: The true slowdowns by sharing; a job's `sensitivity` multiplies its excess.
        checkpoint_s: How long a stopped job stays on its GPUs without progress, at its full power.
        restart_s: Additional work after a restart.
        timeline_s: Distance of the rows of `timeline`; None for none.
        stays: Whether to record placements and the course of every job and node, for `drill`.
        keep_valid: Remove invalid rows of the log instead of raising.

    Raises:
        UsageError: The log is invalid; see `jobs.check`.
    """

    def __init__(
        self, log: pl.DataFrame, cluster: Cluster, policy: Policy, *, colocation: Colocation | None = None,
        checkpoint_s: float = 30.0, restart_s: float = 30.0, timeline_s: float | None = 600.0,
        stays: bool = False, keep_valid: bool = False,
    ) -> None:
        if not (checkpoint_s >= 0 and restart_s >= 0) or (timeline_s is not None and not timeline_s > 0):
            raise UsageError(
                f"checkpoint_s {checkpoint_s}, restart_s {restart_s} must not be negative, timeline_s "
                f"{timeline_s} be above 0"
            )
        self.policy = policy
        self.checkpoint_s, self.restart_s = checkpoint_s, restart_s
        checked = logs.check(log, cluster, keep_valid=keep_valid)
        asleep = policy.sleep_after_s is not None
        super().__init__(
            checked, cluster, asleep=asleep, colocation=colocation or Colocation(), stays=stays
        )
        self.done = self.events = 0
        self._next = 0
        self._outcomes = np.zeros(checked.height, OUTCOME)
        self._timeline = Timeline(self.now_s, timeline_s)
        policy.begin(self)

    # Queries and actions of policies (`ClusterControl`)

    def excess(self, job: Job) -> float:
        """Relative growth of a running job's iteration time now: 0.08 is 8 %."""
        return max([gpu.mix.excess for gpu in job.gpus]) * job.sensitivity

    def stop(self, job: Job, *, undo: bool = False) -> None:
        """Let a running job write its checkpoint and leave; for policies."""
        if job.state != RUNNING:
            raise IllegalPlacement(
                f"{self.policy.name} stops job {self.name(job)}, which is not running; only running jobs can "
                "be stopped"
            )
        if undo:
            job.undos += 1
        else:
            job.moves += 1
        self._settle(job)
        began = not any(node.state == WAKING for node, *_ in job.stays)
        job.state, job.rate, job.target_s = LEAVING, 0.0, 0.0
        job.version += 1
        if began:
            job.left_s += self.restart_s
        else:
            job.began_s = self.now_s
        if self._recorder:
            self._recorder.changed(job, self.now_s)
        self._push(self.now_s + (self.checkpoint_s if began else 0.0), STOP, job, job.version)

    def notify(self, job: Job, work_s: float) -> None:
        """Call `Policy.reached` once that much more work (s alone) is done."""
        # The work is not updated here, nor when the target is reached: an observation leaves the job's end
        # exactly unchanged.
        job.target_s = max(job.left_s - job.rate * (self.now_s - job.since_s) - work_s, 0.0)
        self._schedule(job)

    def at(self, time_s: float, payload: object) -> None:
        """Call `Policy.timer` with this payload at that moment."""
        self._push(max(time_s, self.now_s), TIMER, payload, 0)

    def sleep(self, node: Node) -> None:
        """Put an empty awake node to standby now."""
        if node.state != AWAKE or node.seats:
            raise IllegalPlacement(
                f"{self.policy.name} puts node {node.index} to standby, which is not awake and empty "
                f"({node.seats} seats taken)"
            )
        node.advance(self.now_s)
        node.state = STANDBY
        node.stamp += 1
        self.awake -= 1
        self._draw(node, node.standby_w)
        self.policy.slept(node)

    def cap(self, node: Node, index: int) -> None:
        """Set a node's GPUs to one of its type's power limits; -1 is none."""
        if not -1 <= index < len(node.kind.caps):
            raise UsageError(
                f"node {node.index} ({node.kind.name}) has {len(node.kind.caps)} power limits; {index} is "
                "none of them (-1: no limit)"
            )
        if index == node.cap_index:
            return
        node.advance(self.now_s)
        node.cap_index = index
        node.cap = cap = node.kind.caps[index] if index >= 0 else None
        node.table = node.tables[index + 1]
        node.speed = cap.speed if cap else 1.0
        if node.state == AWAKE:
            self._draw(node, node.table[node.used])
            for job in node.jobs():
                self._rerate(job)

    # Run

    def advance(self, events: int) -> bool:
        """Handle at most that many events; True while there is more to do."""
        heap, submit, policy, until = self._heap, self._submit, self.policy, self.events + events
        while self.events < until and self.done < len(submit):
            arrival = self._next < len(submit) and (not heap or submit[self._next] < heap[0][0])
            if arrival:
                now = submit[self._next]
            elif heap:
                now, _, version, what, subject = heapq.heappop(heap)
                if what == TARGET and subject.version != version:  # type: ignore[attr-defined]
                    continue
            else:
                raise SimulationError(
                    f"{policy.name} leaves {len(submit) - self.done} of {len(submit)} jobs in its queue for "
                    "ever: nothing runs and nothing more will happen"
                )
            self.events += 1
            if now >= self._timeline.due_s:
                self._tick(now)
            self.now_s = now
            if arrival:
                self._next += 1
                self.queued += 1
                policy.arrived(next(self._arrivals))
            elif what != TARGET:
                self._other(now, what, subject, version)
            elif (job := cast(Job, subject)).target_s > 0:
                job.target_s = 0.0
                self._schedule(job)
                policy.reached(job)
            else:
                job.left_s, job.state = 0.0, DONE
                gpus = job.gpus
                self._remove(job)
                self.done += 1
                self._outcomes[job.index] = (
                    job.start_s, now, job.run_s, job.energy_j, job.undos, job.moves
                )
                policy.finished(job, gpus)
        return self.done < len(submit)

    def run(self) -> Result:
        """Run to the end."""
        while self.advance(50_000):
            pass
        return self.result()

    @property
    def progress(self) -> float:
        """Share of the jobs that are done."""
        return self.done / self.log.height

    def result(self) -> Result:
        """The result. Raises SimulationError while jobs are left."""
        if self.done < self.log.height:
            raise SimulationError(
                f"{self.log.height - self.done} of {self.log.height} jobs are not done yet; advance "
                "until it returns False"
            )
        end_s = self.now_s
        for node in self.nodes:
            node.advance(end_s)
        self.energy_j += self.power_w * (end_s - self._metered_s)
        self._metered_s = end_s
        if self._timeline.due_s <= end_s:
            self._tick(end_s)
        recorder, job_ids = self._recorder or RunRecorder(()), self.log["job_id"]
        return Result(
            self.policy.name, self.cluster, job_frame(self.log, self._outcomes, self.nodes),
            node_frame(self.nodes), self._timeline.frame(), self.energy_j, self.start_s, end_s,
            self.events, recorder.stays(job_ids), recorder.job_changes(job_ids), recorder.node_stretches(),
        )

    # Events

    def _other(self, now: float, what: int, subject: object, version: int) -> None:
        """The rarer events."""
        if what == SLEEP:
            node: Node = subject  # type: ignore[assignment]
            if node.stamp == version and node.state == AWAKE and not node.seats:
                self.sleep(node)
        elif what == WAKE:
            node = subject  # type: ignore[assignment]
            node.advance(now)
            node.state = AWAKE
            self._draw(node, node.table[node.used])
            for job in node.jobs():
                if job.state == RUNNING:
                    self._begin(job)
            self._sleep_later(node)
            self.policy.awoke(node)
        elif what == STOP:
            job = subject  # type: ignore[assignment]
            job.state = QUEUED
            gpus = job.gpus
            self._remove(job)
            self.queued += 1
            self.policy.stopped(job, gpus)
        else:
            self.policy.timer(subject)

    def _tick(self, now: float) -> None:
        counts = self.hosting, self.awake, self.running, self.queued
        self._timeline.write(now, self._metered_s, self.energy_j, self.power_w, counts)
