"""Clusters and logs of every kind: each policy ends, places legally and loses no
job and no joule.
"""

from __future__ import annotations

import random
from typing import Any

import polars as pl
import pytest

from workbench.cluster.jobs import check
from workbench.cluster.policies import POLICIES
from workbench.cluster.power import V100_NODE, CapLevel, Cluster, NodeType, in_steps
from workbench.cluster.ranking import Ranking
from workbench.cluster.simulator import Simulator
from workbench.errors import UsageError

GIB = 2**30


def any_cluster(rng: random.Random) -> Cluster:
    caps = tuple(
        CapLevel(250.0 * share, rng.uniform(0.6, 1.0), rng.uniform(0.3, 1.0))
        for share in (0.8, 0.6)[: rng.randrange(3)]
    )
    kind = NodeType(
        "kind", "A", rng.choice([1, 2, 4, 8, 16]), rng.choice([8, 16, 80]) * GIB,
        idle_w=rng.choice([0.0, 650.3]), span_w=rng.choice([0.0, 1311.0]),
        exponent=rng.choice([1.0, 1.55, 2.0]), standby_w=0.0, wake_s=rng.choice([0.0, 60.0]), caps=caps,
    )
    return Cluster.of(rng.randrange(1, 9), kind)


def anything(rng: random.Random, cluster: Cluster) -> pl.DataFrame:
    """Waves of jobs as wide as the cluster, as large as a GPU, without work for the GPU, past hope,
    misjudged, of models of their own.
    """
    at, rows = 0.0, []
    own = rng.random() < 0.3
    for number in range(rng.choice([5, 40])):
        at += rng.choice([0.0, 0.0, rng.expovariate(1 / 60), rng.expovariate(1 / 1000)])
        duration_s = rng.choice([60.0, rng.lognormvariate(6, 2), 1e-3, 3 * 86400.0])
        model, utilisation = rng.choice(
            [("AlexNet", 0.0472), ("VGG-16", 0.4801), ("none", 0.0), ("all", 1.0)]
        )
        rows.append(
            {
                "job_id": str(number),
                "submit_s": at,
                "duration_s": duration_s,
                "num_gpus": rng.choice([1, 1, 2, 4, 8, rng.randrange(1, cluster.gpus + 1)]),
                "model": str(number) if own else model,
                "utilisation": rng.random() if own else utilisation,
                "memory_bytes": rng.choice(
                    [0, int(rng.random() * 8 * GIB), 8 * GIB, int(rng.random() * 80 * GIB)]
                ),
                "deadline_s": rng.choice([None, at + duration_s * rng.uniform(1, 1.5), at + duration_s / 2]),
                "priority": rng.choice([0, 0, 0, 1]),
                "gpu_type": rng.choice([None, None, "A"]),
                "epoch_s": rng.choice([None, duration_s / 3, duration_s * 2]),
                "expected_s": rng.choice([None, duration_s / 10, duration_s * 3]),
                "sensitivity": rng.choice([None, 0.0, rng.lognormvariate(0, 0.5), 8.0]),
            }
        )
    floats = dict.fromkeys(("deadline_s", "epoch_s", "expected_s", "sensitivity"), pl.Float64)
    return pl.DataFrame(rows, infer_schema_length=None, schema_overrides={**floats, "gpu_type": pl.String})


@pytest.mark.slow
@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_ends_on_any_cluster(name: str) -> None:
    ended = 0
    for seed in range(24):
        rng = random.Random(seed)
        cluster = any_cluster(rng)
        frame = anything(rng, cluster)
        try:
            jobs = check(frame, cluster, keep_valid=True)
        except UsageError:
            continue
        simulation = Simulator(jobs, cluster, POLICIES[name](), restart_s=rng.choice([0.0, 30.0]))
        result = simulation.run()
        assert result.jobs["job_id"].to_list() == jobs["job_id"].to_list()
        assert result.jobs["energy_j"].sum() == pytest.approx(result.energy_j, rel=1e-9, abs=1e-6)
        assert simulation.power_w == sum(node.power_w for node in simulation.nodes)
        assert all(gpu.memory == 0 and gpu.mix.size == 0 for node in simulation.nodes for gpu in node.gpus)
        ended += 1
    assert ended >= 20  # few clusters are such that nothing fits


def test_powers_in_steps_add_up_and_are_taken_away_exactly() -> None:
    rng = random.Random(0)
    powers = [in_steps(rng.uniform(0, 6000)) for _ in range(10_000)]
    total = 0.0
    for power_w in powers:
        total += power_w
    rng.shuffle(powers)
    for power_w in powers:
        total -= power_w
    assert total == 0.0
    assert max(abs(in_steps(power_w) - power_w) for power_w in (0.1, 711.1, 30.0004)) <= 0.5 / 1024


def test_a_ranking_puts_the_node_first_that_stays_awake_anyway_and_leaves_out_the_full() -> None:
    rows: dict[str, Any] = {
        "job_id": [*"abcd"],
        "submit_s": [0.0, 0.0, 0.0, 1.0],
        "duration_s": [100.0, 1000.0, 500.0, 400.0],
        "num_gpus": [1, 1, 8, 1],
        "utilisation": [0.3] * 4,
        "memory_bytes": [GIB, GIB, 30 * GIB, 8 * GIB],
    }

    class Ranked:
        name, sleep_after_s = "ranked", None

        def begin(self, cluster: Simulator) -> None:
            self.cluster, self.ranking = cluster, Ranking(cluster, max_jobs=3)
            self.order: list[tuple[float, int]] = []

        def arrived(self, job: Any) -> None:
            cluster, now = self.cluster, self.cluster.now_s
            if job.index == 3:
                found = self.ranking.least_first(job, 400.0, now, 10_000 - job.load, int(0.9 * 32 * GIB))
                self.order = [(joules, node.index) for joules, node in found]
            node = cluster.nodes[job.index]
            cluster.place(job, node.gpus[: job.num_gpus])
            self.ranking.changed(node, now + job.work_s)

        def finished(self, job: Any, gpus: Any) -> None:
            return

        reached = stopped = awoke = slept = timer = finished

    policy = Ranked()
    Simulator(pl.DataFrame(rows), Cluster.of(4), policy).run()  # type: ignore[arg-type]
    # The third node's memory is taken and the fourth hosts nobody; the second stays awake all the time, the
    # first for 99 s of 400 s.
    more_w = V100_NODE.power_w(0.6 / 8) - V100_NODE.power_w(0.3 / 8)
    alone_w = V100_NODE.power_w(0.3 / 8) - 30
    assert [node for _, node in policy.order] == [1, 0]
    assert [joules for joules, _ in policy.order] == pytest.approx(
        [more_w * 400, more_w * 99 + alone_w * 301], rel=1e-4
    )
