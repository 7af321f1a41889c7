"""The history of one job or one node agrees with the whole run: its integrals equal the run's figures under
every policy.
"""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest
from audit import TINY, log

from workbench.cluster import Cluster, Simulator, draw, generate
from workbench.cluster.colocation import Colocation
from workbench.cluster.drill import companions, job_history, node_history, residents
from workbench.cluster.policies import POLICIES, Eaco, Fifo
from workbench.cluster.policy import Policy
from workbench.cluster.result import Result
from workbench.cluster.scenario import Scenario
from workbench.errors import UsageError

RESTART_S = 30.0
BUSY = generate(400, gpus=32, seed=5, load=1.1, mean_s=4000.0)


def record(jobs: pl.DataFrame, nodes: int, policy: Policy, kind=TINY, **options) -> Result:
    where, truth = Cluster.of(nodes, kind), Colocation({})
    run = Simulator(jobs, where, policy, colocation=truth, restart_s=RESTART_S, stays=True, **options)
    return run.run()


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=[] if name in {"fifo-packed", "eaco", "ours"} else pytest.mark.slow) for name in POLICIES
])
def test_a_nodes_power_over_time_is_its_energy_and_a_jobs_speed_over_time_is_its_work(name: str) -> None:
    scenario = Scenario(nodes=4, policies=(name,))
    run = Simulator(BUSY, scenario.cluster_of(name), scenario.maker(name)(), stays=True)
    found = run.run()
    for node, energy_j in found.nodes.select("node", "energy_j").iter_rows():
        told = node_history(found, node)
        assert told["from_s"][0] == found.start_s
        assert told["to_s"][-1] == found.end_s
        assert told["from_s"][1:].to_list() == told["to_s"][:-1].to_list()
        assert ((told["to_s"] - told["from_s"]) * told["power_w"]).sum() == pytest.approx(energy_j, rel=1e-5)
    jobs = found.jobs
    several = jobs.filter(pl.col("num_gpus") > 1)["job_id"].head(8)
    stopped = jobs.filter(pl.col("undos") + pl.col("moves") > 0)["job_id"].head(25)
    for job_id in [*jobs["job_id"].head(40), *several, *stopped]:
        told = job_history(found, job_id)
        job = jobs.row(by_predicate=pl.col("job_id") == job_id, named=True)
        length = told["to_s"] - told["from_s"]
        extra_s = (length * told["speed"]).sum() - job["duration_s"]
        restarts = round(extra_s / RESTART_S)
        assert 0 <= restarts <= job["undos"] + job["moves"]
        assert extra_s == pytest.approx(restarts * RESTART_S, abs=1e-4 * job["duration_s"])
        on_gpus = told["state"].is_in(["running", "stopping"])
        assert length.filter(on_gpus).sum() == pytest.approx(job["run_s"], rel=1e-9, abs=1e-6)
        assert told["to_s"][-1] == job["end_s"]
        assert told["from_s"][0] == job["submit_s"]


def test_two_jobs_on_one_gpu_slow_each_other_by_the_prior_and_their_node_wakes_for_the_first() -> None:
    jobs = log({"duration_s": 100.0}, {"submit_s": 5.0, "duration_s": 100.0})
    found = record(jobs, 1, Eaco(max_jobs=2), replace(TINY, gpus=1))
    told = job_history(found, "a")
    assert told.select("state", "from_s", "to_s").rows()[0] == ("waking", 0.0, TINY.wake_s)
    beside = told.filter(pl.col("beside").list.len() > 0)
    assert beside["excess"].to_list() == [pytest.approx(0.078)]
    assert beside["speed"].to_list() == [pytest.approx(1 / 1.078)]
    assert companions(found, "a").rows() == [("b", pytest.approx(107.8))]


def test_a_job_in_the_queue_is_waiting() -> None:
    jobs = log(*[{"num_gpus": 4} for _ in range(2)])
    found = record(jobs, 1, Fifo())
    told = job_history(found, "b")
    assert told.select("state", "from_s", "to_s").rows()[0] == ("waiting", 0.0, 105.0)


def test_the_history_of_a_power_limited_job_shows_the_speed_of_that_limit() -> None:
    scenario = Scenario(nodes=4, policies=("ours-capped",))
    run = Simulator(
        draw(BUSY.drop("deadline_s"), 1, slack=(1.5, 4.0)),
        scenario.cluster_of("ours-capped"),
        scenario.maker("ours-capped")(),
        stays=True,
    )
    found = run.run()
    speeds = {cap.power_limit_w: cap.speed for cap in scenario.cluster_of("ours-capped").kind.caps}
    looked = 0
    for node in range(4):
        limited = node_history(found, node).filter(pl.col("power_limit_w").is_not_null())
        assert set(limited["power_limit_w"]) <= set(speeds)
        there = residents(found, node)
        for from_s, to_s, limit_w in limited.select("from_s", "to_s", "power_limit_w").head(10).iter_rows():
            for job_id in there.filter((pl.col("from_s") < to_s) & (pl.col("to_s") > from_s))[
                "job_id"
            ].unique():
                told = job_history(found, job_id).filter(
                    (pl.col("state") == "running")
                    & (pl.col("from_s") >= from_s)
                    & (pl.col("to_s") <= to_s)
                    & (pl.col("nodes") == [node])
                )
                for speed, excess in told.select("speed", "excess").iter_rows():
                    assert speed == pytest.approx(speeds[limit_w] / (1 + excess))
                    looked += 1
    assert looked > 10


def test_who_is_not_there_is_a_sentence() -> None:
    jobs = log({})
    found = record(jobs, 1, Fifo())
    with pytest.raises(UsageError, match="there is no node 1; the cluster has nodes 0 to 0"):
        node_history(found, 1)
    with pytest.raises(UsageError, match="there is no job 'z' in this run; it has 1 jobs, the first is 'a'"):
        job_history(found, "z")
