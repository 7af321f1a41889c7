"""A second, slow reckoning of a run: who was where and when is recorded, and all work and energy is worked
out again from that alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl
import pytest

from workbench.cluster.policy import Policy
from workbench.cluster.power import Cluster, NodeType, in_steps
from workbench.cluster.simulator import Result, Simulator
from workbench.cluster.state import LEAVING, QUEUED, RUNNING, STANDBY, Gpu, Job, Node

TINY = NodeType(
    "tiny",
    "T",
    gpus=4,
    memory_bytes=1000,
    idle_w=100.0,
    span_w=400.0,
    exponent=1.5,
    standby_w=10.0,
    wake_s=5.0,
)


def log(*rows: dict[str, Any]) -> pl.DataFrame:
    """Jobs `a`, `b`, ... of one GPU, 100 s, utilisation 0.5 and 300 bytes, unless a row gives other values.
    """
    filled = []
    for number, row in enumerate(rows):
        base = {
            "job_id": chr(97 + number),
            "submit_s": 0.0,
            "duration_s": 100.0,
            "num_gpus": 1,
            "utilisation": 0.5,
            "memory_bytes": 300,
        }
        filled.append(
            {
                **base,
                "model": "m",
                "deadline_s": None,
                "priority": 0,
                "sensitivity": 1.0,
                "epoch_s": None,
                **row,
            }
        )
    return pl.DataFrame(filled, infer_schema_length=None)


class Recording(Simulator):
    """Writes down every change of every GPU: who comes to it and goes, who is stopped, states and limits
    of nodes.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        self.changes: list[tuple[float, str, Any]] = []
        super().__init__(*args, **options)

    def place(self, job: Job, gpus: Sequence[Gpu]) -> None:  # type: ignore[override]
        before = {gpu.node: gpu.node.state for gpu in gpus}
        super().place(job, gpus)  # type: ignore[arg-type]
        self.changes.append(
            (self.now_s, "stay", (job.index, tuple((gpu.node.index, gpu.index) for gpu in gpus)))
        )
        for node, state in before.items():
            if state == STANDBY:
                self.changes.append((self.now_s, "state", (node.index, "waking")))
        for gpu in gpus:
            assert gpu.memory == sum(each.memory for each in gpu.jobs) <= gpu.node.kind.memory_bytes
            assert gpu.mix.load == sum(each.load for each in gpu.jobs)

    def stop(self, job: Job, *, undo: bool = False) -> None:
        super().stop(job, undo=undo)
        self.changes.append((self.now_s, "frozen", (job.index,)))

    def sleep(self, node: Node) -> None:
        self.changes.append((self.now_s, "state", (node.index, "standby")))
        super().sleep(node)

    def cap(self, node: Node, index: int) -> None:
        super().cap(node, index)
        self.changes.append((self.now_s, "cap", (node.index, index)))

    def _remove(self, job: Job) -> None:
        self.changes.append((self.now_s, "stay", (job.index, ())))
        super()._remove(job)

    def _other(self, now: float, what: int, subject: object, version: int) -> None:
        if isinstance(subject, Node) and what == 2:
            self.changes.append((now, "state", (subject.index, "awake")))
        super()._other(now, what, subject, version)


def audit(run: Recording, result: Result) -> None:
    """Every job did exactly its work and what its restarts add; the joules of nodes and jobs are what a
    plain sum over intervals gives.
    """
    frame, kinds = run.log, [node.kind for node in run.nodes]
    # Powers are whole steps, so the cluster's is the sum of its nodes' to the last bit, whatever came and
    # went, and an empty node's is its idle or its standby power.
    assert run.power_w == sum(node.power_w for node in run.nodes)
    assert {node.power_w for node in run.nodes} <= {
        in_steps(watts) for kind in kinds for watts in (kind.idle_w, kind.standby_w)
    }
    # What happens at one moment has no length; only what holds between two moments counts.
    times = sorted({change[0] for change in run.changes} | {result.start_s, result.end_s})
    by_time: dict[float, list[tuple[str, Any]]] = {}
    for time_s, kind, what in run.changes:
        by_time.setdefault(time_s, []).append((kind, what))
    where: dict[int, tuple[tuple[int, int], ...]] = {}
    stopped: set[int] = set()
    asleep = run.policy.sleep_after_s is not None
    states = ["standby" if asleep else "awake"] * len(kinds)
    caps = [-1] * len(kinds)
    work, owed = [0.0] * frame.height, [0.0] * frame.height
    ran = [0.0] * frame.height
    unowned, total = 0.0, 0.0
    loads, memory = [round(u * 10_000) for u in frame["utilisation"]], frame["memory_bytes"].to_list()
    sensitivity = frame["sensitivity"].fill_null(1.0).to_list()
    for start_s, end_s in zip(times, [*times[1:], times[-1]], strict=True):
        for kind, what in by_time.get(start_s, []):
            if kind == "stay":
                job, gpus = what
                if gpus:
                    assert job not in where, "a job runs once at a time"
                    where[job] = gpus
                else:
                    del where[job]
                    stopped.discard(job)
            elif kind == "frozen":
                stopped.add(what[0])
            elif kind == "state":
                states[what[0]] = what[1]
            else:
                caps[what[0]] = what[1]
        seconds = end_s - start_s
        if seconds == 0:
            continue
        on: dict[tuple[int, int], list[int]] = {}
        for job, gpus in where.items():
            for gpu in gpus:
                on.setdefault(gpu, []).append(job)
        for gpu, there in on.items():
            assert sum(memory[job] for job in there) <= kinds[gpu[0]].memory_bytes
        for job, gpus in where.items():
            nodes = {node for node, _ in gpus}
            if any(states[node] != "awake" for node in nodes):
                continue
            ran[job] += seconds
            if job in stopped:
                continue
            excess = 0.0
            for gpu in gpus:
                there = on[gpu]
                excess = max(excess, 0.078 * (len(there) - 1) * sum(loads[each] for each in there) / 10_000)
            speed = min(
                kinds[node].caps[caps[node]].speed if caps[node] >= 0 else 1.0
                for node in nodes
            )
            work[job] += seconds * speed / (1 + excess * sensitivity[job])
        for node, kind in enumerate(kinds):
            here = {gpu: there for gpu, there in on.items() if gpu[0] == node}
            used = (
                sum(min(1.0, sum(loads[job] for job in there) / 10_000) for there in here.values())
                / kind.gpus
            )
            seats = sum(len(there) for there in here.values())
            if states[node] == "standby":
                power_w = in_steps(kind.standby_w)
                assert not seats
            elif states[node] == "waking":
                power_w = in_steps(kind.idle_w)
            else:
                power_w = in_steps(kind.power_w(used, kind.caps[caps[node]] if caps[node] >= 0 else None))
            total += power_w * seconds
            if not seats:
                unowned += power_w * seconds
                continue
            demand = sum(loads[job] for there in here.values() for job in there)
            for there in here.values():
                for job in there:
                    owed[job] += kind.idle_w * seconds / seats
                    owed[job] += (
                        (power_w - kind.idle_w) * seconds * (loads[job] / demand if demand else 1 / seats)
                    )
    jobs = result.jobs
    restarts = run.restart_s * frame.height
    for row, (done_s, duration_s) in enumerate(zip(work, frame["duration_s"], strict=True)):
        extra_s = done_s - duration_s
        assert extra_s == pytest.approx(
            run.restart_s * round(extra_s / run.restart_s) if run.restart_s else 0.0, abs=1e-5 * duration_s
        ), row
        assert -1e-6 <= extra_s <= restarts * 100
        assert extra_s <= run.restart_s * (jobs["undos"][row] + jobs["moves"][row]) + 1e-5 * duration_s
    assert not where
    assert ran == pytest.approx(jobs["run_s"].to_list(), rel=1e-9, abs=1e-6)
    assert owed == pytest.approx(jobs["own_energy_j"].to_list(), rel=1e-9, abs=1e-6)
    assert total == pytest.approx(result.energy_j, rel=1e-9)
    assert jobs["energy_j"].sum() == pytest.approx(result.energy_j, rel=1e-9)
    assert result.nodes["energy_j"].sum() == pytest.approx(result.energy_j, rel=1e-9)
    assert unowned == pytest.approx(result.nodes["unowned_j"].sum(), rel=1e-9, abs=1e-6)
    assert (jobs["start_s"] >= jobs["submit_s"]).all()
    assert (jobs["end_s"] >= jobs["start_s"]).all()
    assert jobs["job_id"].to_list() == frame["job_id"].to_list()


class Chance(Policy):
    """Places, stops, moves, caps and puts to sleep at random, but only as is allowed."""

    name = "chance"

    def __init__(self, rng: Any, *, sleep_after_s: float | None = 20.0, splits: bool = False) -> None:
        self.rng, self.sleep_after_s, self.splits = rng, sleep_after_s, splits

    def begin(self, cluster: Simulator) -> None:
        self.cluster = cluster
        self.queue: list[Job] = []
        self.live: list[Job] = []
        self.undone = 0

    def arrived(self, job: Job) -> None:
        self.queue.append(job)
        self._act()

    def finished(self, job: Job, gpus: Sequence[Gpu]) -> None:
        self.live.remove(job)
        self._act()

    def stopped(self, job: Job, gpus: Sequence[Gpu]) -> None:
        self.live.remove(job)
        self.queue.append(job)
        self._act()

    def reached(self, job: Job) -> None:
        self._act()

    def timer(self, payload: object) -> None:
        self._act()

    def _act(self) -> None:
        cluster, rng = self.cluster, self.rng
        for job in list(self.queue):
            nodes = list(cluster.nodes)
            rng.shuffle(nodes)
            gpus = self._legal(job, nodes)
            if gpus:
                self.queue.remove(job)
                cluster.place(job, gpus)
                self.live.append(job)
        running = [job for job in self.live if job.state == RUNNING]
        if running and rng.random() < 0.2 and self.undone < 200:
            self.undone += 1
            cluster.stop(rng.choice(running), undo=rng.random() < 0.5)
        running = [job for job in running if job.state == RUNNING and job.rate > 0]
        if running and rng.random() < 0.3:
            job = rng.choice(running)
            cluster.notify(job, rng.random() * job.left_s)
        node = rng.choice(cluster.nodes)
        if node.kind.caps and rng.random() < 0.3:
            cluster.cap(node, rng.randrange(-1, len(node.kind.caps)))
        if node.state == 0 and not node.seats and rng.random() < 0.3 and self.sleep_after_s is not None:
            cluster.sleep(node)
        assert all(job.state in (QUEUED, RUNNING, LEAVING) for job in [*self.queue, *self.live])

    def _legal(self, job: Job, nodes: list[Node]) -> list[Gpu] | None:
        found: list[Gpu] = []
        taken: set[Node] = set()
        count = nodes[0].kind.gpus
        most = -(-job.num_gpus // count)
        for node in nodes:
            gpus = [gpu for gpu in node.gpus if gpu.memory + job.memory <= node.kind.memory_bytes]
            self.rng.shuffle(gpus)
            need = min(job.num_gpus - len(found), count)
            if len(gpus) >= need and len(taken) < most:
                taken.add(node)
                found += gpus[:need]
            if len(found) == job.num_gpus:
                return found
        return None


def run(
    jobs: pl.DataFrame, nodes: int, policy: Any, *, kind: NodeType = TINY, **options: Any
) -> tuple[Recording, Result]:
    """Simulate and audit."""
    from workbench.cluster.colocation import Colocation

    simulation = Recording(
        jobs, Cluster.of(nodes, kind), policy, colocation=options.pop("colocation", Colocation({})), **options
    )
    result = simulation.run()
    audit(simulation, result)
    return simulation, result
