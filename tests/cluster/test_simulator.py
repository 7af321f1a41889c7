"""Runs whose every number can be worked out on paper, and placements that are refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import polars as pl
import pytest
from audit import TINY, log, run

from workbench.cluster.colocation import Colocation
from workbench.cluster.policies import Fifo
from workbench.cluster.policy import IllegalPlacement, Policy
from workbench.cluster.power import CapLevel, Cluster
from workbench.cluster.simulator import Simulator
from workbench.cluster.state import AWAKE, Job
from workbench.cluster.summary import summarise
from workbench.errors import SimulationError, UsageError

KJ = 1000.0


class Scripted(Policy):
    """Calls its function when a job arrives."""

    name = "scripted"
    sleep_after_s: float | None = None

    def __init__(self, *steps: Callable[[Simulator, Job], object]) -> None:
        self.steps = steps

    def arrived(self, job: Job) -> None:
        self.steps[min(job.index, len(self.steps) - 1)](self.cluster, job)


def on(node: int, *gpus: int) -> Callable[[Simulator, Job], object]:
    return lambda cluster, job: cluster.place(job, [cluster.nodes[node].gpus[gpu] for gpu in gpus])


def test_one_job_alone_costs_its_node_from_waking_to_its_end() -> None:
    simulation, result = run(log({"utilisation": 1.0}), 1, Fifo())
    # 5 s to wake at 100 W; 100 s at u = 1/4: 100 + 400 (2/4 - 1/8) = 250 W
    assert result.energy_j == pytest.approx(5 * 100 + 100 * 250)
    job = result.jobs.row(0, named=True)
    assert (job["start_s"], job["end_s"], job["run_s"]) == (5.0, 105.0, 100.0)
    assert result.nodes["wakes"][0] == 1
    assert simulation.hosting == 0


def test_two_jobs_on_one_gpu_slow_each_other_until_one_ends() -> None:
    _, result = run(
        log({"utilisation": 0.5}, {"utilisation": 0.5, "duration_s": 50.0}), 1, Scripted(on(0, 0))
    )
    # together 1 + 0.078: the short one takes 53.9 s; then 50 s of the long one are left and run alone
    assert result.jobs["end_s"].to_list() == pytest.approx([103.9, 53.9])
    # 53.9 s at u = 1/4 (250 W) shared evenly, then 50 s at u = 1/8: 100 + 400 (1/4 - 1/8^1.5) W
    alone_w = 100 + 400 * (0.25 - 0.125**1.5)
    assert result.jobs["own_energy_j"].to_list() == pytest.approx(
        [53.9 * 125 + 50 * alone_w, 53.9 * 125], rel=1e-5
    )


def test_a_sensitive_job_suffers_more_and_its_slowest_gpu_sets_its_pace() -> None:
    frame = log({"num_gpus": 2, "sensitivity": 2.0}, {"duration_s": 1000.0})
    _, result = run(frame, 1, Scripted(on(0, 0, 1), on(0, 1)))
    assert result.jobs["run_s"][0] == pytest.approx(100 * (1 + 2 * 0.078))


def test_an_undo_costs_a_checkpoint_and_a_restart() -> None:
    def start_and_stop(cluster: Simulator, job: Job) -> None:
        on(0, 0)(cluster, job)
        cluster.at(40.0, job)

    class Once(Scripted):
        def timer(self, payload: object) -> None:
            self.cluster.stop(payload, undo=True)  # type: ignore[arg-type]

        def stopped(self, job: Job, gpus: object) -> None:
            on(0, 1)(self.cluster, job)

    _, result = run(log({"utilisation": 1.0}), 1, Once(start_and_stop), checkpoint_s=3.0, restart_s=7.0)
    job = result.jobs.row(0, named=True)
    assert (job["end_s"], job["run_s"], job["undos"], job["moves"]) == (110.0, 110.0, 1, 0)
    assert job["energy_j"] == pytest.approx(110 * 250)


def test_a_job_wider_than_a_node_takes_the_fewest_nodes_and_all_must_be_awake() -> None:
    frame = log({"num_gpus": 6})
    _, result = run(frame, 2, Fifo())
    assert result.jobs["run_s"].to_list() == [100.0]
    assert result.nodes["hosting_s"].to_list() == [105.0, 105.0]


def test_a_limit_slows_the_work_and_lowers_the_power() -> None:
    kind = replace(TINY, caps=(CapLevel(150.0, 0.8, 0.5),))

    def capped(cluster: Simulator, job: Job) -> None:
        cluster.cap(cluster.nodes[0], 0)
        on(0, 0)(cluster, job)

    _, result = run(log({"utilisation": 1.0}), 1, Scripted(capped), kind=kind)
    assert result.jobs["run_s"][0] == pytest.approx(125.0)
    assert result.energy_j == pytest.approx(125 * (100 + 75))
    with pytest.raises(UsageError, match=r"node 0 \(tiny\) has 0 power limits; 3 is none of them"):
        run(log({}), 1, Scripted(lambda cluster, job: cluster.cap(cluster.nodes[0], 3)))


def test_an_empty_node_sleeps_when_its_time_has_come() -> None:
    frame = log({}, {"submit_s": 1000.0})
    simulation, result = run(frame, 1, Fifo(sleep_after_s=50.0))
    # asleep from 155 s to 1000 s at 10 W, wakes for the second job, which starts 5 s late
    assert result.jobs["start_s"].to_list() == [5.0, 1005.0]
    assert result.nodes["awake_s"][0] == pytest.approx(155 + 105)
    assert result.nodes["unowned_j"][0] == pytest.approx(50 * 100 + 845 * 10)
    summary = summarise(result)
    assert summary["wait_h"] == pytest.approx(5 / 3600)
    assert summary["runtime_inflation"] == pytest.approx(0)
    assert summary["active_nodes"] == pytest.approx(210 / 1105)
    assert simulation.nodes[0].state == AWAKE


def test_the_timeline_holds_exact_integrals() -> None:
    _, result = run(log({"utilisation": 1.0}), 1, Fifo(), timeline_s=10.0)
    row = result.timeline.filter(pl.col("time_s") == 50.0).row(0, named=True)
    assert row["power_w"] == 250.0
    assert row["energy_j"] == pytest.approx(5 * 100 + 45 * 250)
    assert (row["hosting"], row["awake"], row["running"], row["queued"]) == (1, 1, 1, 0)
    assert result.timeline["energy_j"].is_sorted()


def test_stays_list_the_gpu_and_times_of_each_job() -> None:
    frame = log({"num_gpus": 2}, {"submit_s": 10.0}, {"submit_s": 20.0, "num_gpus": 6})
    _, result = run(frame, 2, Fifo(), stays=True)
    assert result.stays.rows()[:3] == [
        ("a", 0, 0, 0.0, 105.0),
        ("a", 0, 1, 0.0, 105.0),
        ("b", 0, 2, 10.0, 110.0),
    ]
    assert result.stays.filter(pl.col("job_id") == "c").height == 6
    held_s = result.stays.group_by("job_id").agg((pl.col("to_s") - pl.col("from_s")).sum()).sort("job_id")
    assert held_s["to_s"].to_list() == [210.0, 100.0, 6 * 105.0]
    assert run(frame, 2, Fifo())[1].stays.height == 0


def test_a_deadline_that_passes_is_a_miss_and_one_that_is_met_is_none() -> None:
    frame = log({"deadline_s": 105.0}, {"deadline_s": 104.0}, {"deadline_s": None})
    _, result = run(frame, 1, Fifo())
    assert result.jobs["end_s"].to_list() == [105.0, 105.0, 105.0]
    summary = summarise(result)
    assert (summary["misses"], summary["deadlines"]) == (1, 2)


@pytest.mark.parametrize(
    ("row", "place", "words"),
    [
        ({"num_gpus": 2}, on(0, 0), "on 1 GPUs; give exactly 2"),
        ({"num_gpus": 2}, on(0, 0, 0), "twice on one GPU"),
        (
            {"memory_bytes": 900},
            on(0, 1),
            r"on GPU 1 of node 0, where 0.00 GiB of 0.00 are taken.*peak memories must fit",
        ),
        (
            {"num_gpus": 2},
            lambda c, j: c.place(j, [c.nodes[0].gpus[0], c.nodes[1].gpus[0]]),
            r"on nodes \[0, 1\]; a job stays on the fewest nodes",
        ),
        ({}, lambda c, j: (on(0, 0)(c, j), on(0, 2)(c, j)), "which is not queued"),
        ({"num_gpus": 2}, lambda c, j: (on(0, 2, 3)(c, j), on(1, 0, 1)(c, j)), "which is not queued"),
    ],
)
def test_an_illegal_placement_is_refused_with_the_job_and_the_reason(
    row: dict[str, object], place: Callable[..., object], words: str
) -> None:
    frame = log({"memory_bytes": 200}, row)
    with pytest.raises(IllegalPlacement, match=words) as told:
        Simulator(frame, Cluster.of(2, TINY), Scripted(on(0, 1), place)).run()
    assert "scripted places job b (row 1" in str(told.value)


def test_a_policy_that_forgets_a_job_is_found_out() -> None:
    with pytest.raises(SimulationError, match="scripted leaves 1 of 2 jobs in its queue for ever"):
        Simulator(log({}, {}), Cluster.of(1, TINY), Scripted(on(0, 0), lambda cluster, job: None)).run()


def test_only_running_jobs_can_be_stopped_and_only_empty_nodes_can_sleep() -> None:
    with pytest.raises(IllegalPlacement, match="stops job a, which is not running"):
        Simulator(log({}), Cluster.of(1, TINY), Scripted(lambda cluster, job: cluster.stop(job))).run()
    with pytest.raises(
        IllegalPlacement, match=r"puts node 0 to standby, which is not awake and empty \(1 seats taken\)"
    ):
        Simulator(
            log({}), Cluster.of(1, TINY), Scripted(lambda c, j: (on(0, 0)(c, j), c.sleep(c.nodes[0])))
        ).run()


def test_a_run_reports_its_progress_and_can_be_ended() -> None:
    frame = log(*({"job_id": str(i), "submit_s": float(i)} for i in range(20)))
    whole = Simulator(frame, Cluster.of(1, TINY), Fifo())
    told = [whole.progress]
    while whole.advance(3):
        told.append(whole.progress)
    assert told == sorted(told)
    assert told[0] == 0.0
    assert 0.0 < told[-1] < whole.progress == 1.0
    unfinished = Simulator(frame, Cluster.of(1, TINY), Fifo())
    unfinished.advance(5)
    with pytest.raises(SimulationError, match="jobs are not done yet"):
        unfinished.result()


def test_costs_that_cannot_be_are_refused() -> None:
    with pytest.raises(UsageError, match="checkpoint_s -1"):
        Simulator(log({}), Cluster.of(1, TINY), Fifo(), checkpoint_s=-1)
    with pytest.raises(UsageError, match="timeline_s 0"):
        Simulator(log({}), Cluster.of(1, TINY), Fifo(), timeline_s=0)


def test_measured_sets_of_the_paper_hold_in_a_run() -> None:
    frame = log({"model": "ResNet-18", "utilisation": 0.1117}, {"model": "VGG-16", "utilisation": 0.4801})
    result = Simulator(frame, Cluster.of(1, TINY), Scripted(on(0, 0)), colocation=Colocation()).run()
    assert result.jobs["run_s"].to_list() == pytest.approx([100 * 37.01 / 35.63] * 2)
