"""What holds for every log and every policy: nothing lost, nothing run twice, memory kept, joules that add
up, looking changes nothing.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import polars as pl
import pytest
from audit import TINY, Chance, log, run
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.cluster.policy import Policy
from workbench.cluster.power import CapLevel, Cluster
from workbench.cluster.simulator import Simulator
from workbench.cluster.state import Job, Node

CAPPED = replace(TINY, caps=(CapLevel(200.0, 0.97, 0.85), CapLevel(150.0, 0.9, 0.7)))


@st.composite
def jobs(draw: Any, widest: int = 4) -> pl.DataFrame:
    count = draw(st.integers(1, 14))
    at = 0.0
    rows = []
    for number in range(count):
        at += draw(st.sampled_from([0.0, 0.0, 1.0, 17.5, 130.25]))
        rows.append(
            {
                "job_id": str(number),
                "submit_s": at,
                "duration_s": draw(st.floats(0.5, 400.0)),
                "num_gpus": draw(st.integers(1, widest)),
                "utilisation": draw(st.sampled_from([0.0, 0.05, 0.37, 0.5, 0.9])),
                "memory_bytes": draw(st.sampled_from([0, 300, 450, 1000])),
                "sensitivity": draw(st.sampled_from([0.5, 1.0, 2.0])),
                "deadline_s": draw(st.one_of(st.none(), st.just(at + 500.0))),
                "priority": draw(st.sampled_from([0, 0, 0, 1])),
            }
        )
    return log(*rows)


@pytest.mark.slow
@given(jobs(widest=10), st.integers(0, 10**6), st.sampled_from([None, 0.0, 20.0]))
@settings(max_examples=60, deadline=None)
def test_work_and_joules_add_up_under_every_policy(
    frame: pl.DataFrame, seed: int, sleep_after_s: float | None
) -> None:
    run(
        frame,
        3,
        Chance(random.Random(seed), sleep_after_s=sleep_after_s),
        kind=CAPPED,
        checkpoint_s=3.0,
        restart_s=7.0,
    )


@given(jobs(), st.integers(0, 10**6))
@settings(max_examples=25, deadline=None)
def test_a_result_does_not_depend_on_how_often_one_looks(frame: pl.DataFrame, seed: int) -> None:
    whole = Simulator(frame, Cluster.of(2, CAPPED), Chance(random.Random(seed))).run()
    pieces = Simulator(frame, Cluster.of(2, CAPPED), Chance(random.Random(seed)))
    while pieces.advance(1):
        assert 0 <= pieces.progress <= 1
    assert pieces.result().jobs.equals(whole.jobs)
    assert pieces.result().energy_j == whole.energy_j


class Crowding(Policy):
    """Every job goes to the first GPUs that hold its memory, and shares them; who finds none waits."""

    name = "crowding"

    def begin(self, cluster: Simulator) -> None:
        super().begin(cluster)
        self.queue: list[Job] = []

    def arrived(self, job: Job) -> None:
        fits = [
            gpu for gpu in self.cluster.nodes[0].gpus if gpu.memory + job.memory <= gpu.node.kind.memory_bytes
        ]
        fits = (
            fits if len(fits) >= job.num_gpus else [gpu for gpu in self.cluster.nodes[1].gpus if not gpu.jobs]
        )
        if len(fits) >= job.num_gpus:
            self.cluster.place(job, fits[: job.num_gpus])
        else:
            self.queue.append(job)

    def finished(self, job: Job, gpus: Any) -> None:
        waiting, self.queue = self.queue, []
        for other in waiting:
            self.arrived(other)


class Looking(Crowding):
    """The same, with a timer every 13 s that sets targets for the running jobs."""

    def begin(self, cluster: Simulator) -> None:
        super().begin(cluster)
        for second in range(0, 2000, 13):
            cluster.at(cluster.start_s + second + 0.37, "look")

    def timer(self, payload: object) -> None:
        for node in self.cluster.nodes:
            for job in node.jobs():
                if job.rate > 0:
                    self.cluster.notify(job, min(5.0, job.left_s / 2))

    def reached(self, job: Job) -> None:
        if job.index % 2:
            self.cluster.notify(job, 3.0)


class Metering(Looking):
    """Reads all meters at each look, too, which cuts every integral in pieces."""

    def timer(self, payload: object) -> None:
        for node in self.cluster.nodes:
            node.advance(self.cluster.now_s)
        super().timer(payload)


@pytest.mark.slow
@given(jobs())
@settings(max_examples=40, deadline=None)
def test_who_looks_changes_nothing_to_the_last_bit(frame: pl.DataFrame) -> None:
    whole, looked = (
        Simulator(frame, Cluster.of(2, TINY), policy, stays=True).run() for policy in (Crowding(), Looking())
    )
    assert looked.jobs.equals(whole.jobs)
    assert looked.nodes.equals(whole.nodes)
    assert looked.stays.equals(whole.stays)
    assert looked.energy_j == whole.energy_j
    assert looked.timeline.head(whole.timeline.height).equals(whole.timeline)


@given(jobs())
@settings(max_examples=25, deadline=None)
def test_a_result_does_not_depend_on_how_time_is_split(frame: pl.DataFrame) -> None:
    whole, split = (
        Simulator(frame, Cluster.of(2, TINY), policy).run() for policy in (Crowding(), Metering())
    )
    assert split.energy_j == pytest.approx(whole.energy_j, rel=1e-12)
    for name in ("start_s", "end_s", "run_s"):
        assert split.jobs[name].equals(whole.jobs[name])
    assert split.jobs["energy_j"].to_list() == pytest.approx(
        whole.jobs["energy_j"].to_list(), rel=1e-9, abs=1e-9
    )


def snapshot(node: Node) -> tuple[object, ...]:
    """All that an undo is charged: places, mixes, loads, memory, power and limit."""
    who = [(gpu.mix.key, gpu.memory, frozenset(job.index for job in gpu.jobs)) for gpu in node.gpus]
    rates = sorted((job.index, job.rate) for job in node.jobs())
    sums = (node.state, node.free, node.seats, node.demand, node.used, node.power_w, node.cap_index)
    return (*sums, who, rates)


class Undoing(Policy):
    """All jobs but the last share as they come; the last is placed and undone, and its nodes are compared."""

    name = "undoing"
    sleep_after_s = None

    def __init__(self, last: int) -> None:
        self.last = last
        self.before: tuple[object, ...] | None = None
        self.equal = False

    def arrived(self, job: Job) -> None:
        fits = [
            gpu
            for node in self.cluster.nodes
            for gpu in node.gpus
            if gpu.memory + job.memory <= node.kind.memory_bytes
        ]
        gpus = fits[: job.num_gpus]
        node = gpus[0].node
        if job.index == self.last:
            self.before = snapshot(node)
            self.cluster.place(job, gpus)
            self.cluster.stop(job, undo=True)
        else:
            self.cluster.place(job, gpus)

    def stopped(self, job: Job, gpus: Any) -> None:
        self.equal = snapshot(gpus[0].node) == self.before
        self.cluster.place(job, gpus)


@given(
    st.lists(
        st.tuples(st.integers(1, 4), st.sampled_from([0, 100, 250]), st.sampled_from([0.1, 0.3, 0.77])),
        min_size=2,
        max_size=6,
    )
)
@settings(max_examples=40, deadline=None)
def test_an_undo_puts_the_node_back_exactly(shapes: list[tuple[int, int, float]]) -> None:
    rows = [
        {
            "job_id": str(i),
            "submit_s": float(i),
            "num_gpus": n,
            "memory_bytes": m if i < len(shapes) - 1 else 0,
            "utilisation": u,
            "duration_s": 1e5,
        }
        for i, (n, m, u) in enumerate(shapes)
    ]
    policy = Undoing(len(shapes) - 1)
    simulation = Simulator(
        log(*rows), Cluster.of(1, replace(TINY, memory_bytes=3000)), policy, checkpoint_s=0.0
    )
    result = simulation.run()
    assert policy.equal
    assert result.jobs["undos"].to_list() == [0] * (len(shapes) - 1) + [1]
