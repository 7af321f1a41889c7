"""Every policy on logs of all kinds: all its placements legal, all work done, the joules audited; and what
each is for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import polars as pl
import pytest
from audit import TINY, log, run
from hypothesis import given, settings
from hypothesis import strategies as st
from test_laws import jobs

from workbench.cluster.colocation import Colocation
from workbench.cluster.generator import draw, generate
from workbench.cluster.policies import (
    POLICIES,
    Eaco,
    EnergyAwarePolicy,
    Fifo,
    Gandiva,
    Lucid,
    Sjf,
    Srtf,
    Tiresias,
    energy_aware,
)
from workbench.cluster.policies.pairing import FifoPacked
from workbench.cluster.policy import Policy
from workbench.cluster.power import V100_NODE, CapLevel, Cluster
from workbench.cluster.simulator import Simulator
from workbench.cluster.summary import summarise

CAPS = (CapLevel(200.0, 0.978, 0.866), CapLevel(150.0, 0.931, 0.667))
EVERY = {
    **POLICIES,
    "ours, no moves": partial(EnergyAwarePolicy, review_s=None),
    "ours, restless": partial(EnergyAwarePolicy, review_s=1.0, capped=True),
}
QUICK = {"fifo-packed", "tiresias", "eaco", "ours", "ours-capped"}
SOME = [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in EVERY]


@pytest.mark.parametrize("name", EVERY)
def test_every_policy_keeps_the_laws_on_a_busy_cluster(name: str) -> None:
    frame = generate(150, gpus=16, seed=4, load=1.4, mean_s=900.0).with_columns(
        (pl.int_range(150) % 17 == 0).cast(pl.Int64).alias("priority"),
        pl.when(pl.int_range(150) % 5 > 0).then("deadline_s").alias("deadline_s"),
    )
    _, result = run(frame, 2, EVERY[name](), kind=replace(V100_NODE, caps=CAPS))
    assert result.jobs.height == 150


@pytest.mark.parametrize("name", SOME)
def test_every_policy_keeps_the_laws_on_any_log(name: str) -> None:
    make: Callable[[], Policy] = EVERY[name]

    @given(jobs(widest=9), st.sampled_from([Colocation({}), None]))
    @settings(max_examples=12, deadline=None, database=None)
    def hold(frame: pl.DataFrame, truth: Colocation | None) -> None:
        run(frame, 3, make(), kind=replace(TINY, caps=CAPS), checkpoint_s=3.0, restart_s=7.0)

    hold()


@pytest.mark.parametrize("name", SOME)
def test_the_same_log_gives_the_same_result(name: str) -> None:
    frame = generate(300, gpus=32, seed=9, load=1.1, mean_s=2000.0)
    first, again = (Simulator(frame, Cluster.of(4), EVERY[name]()).run() for _ in range(2))
    assert first.jobs.equals(again.jobs)
    assert first.energy_j == again.energy_j


def ends(frame: pl.DataFrame, nodes: int, policy: Any, **options: Any) -> list[float]:
    _, result = run(frame, nodes, policy, **options)
    return [round(value, 3) for value in result.jobs["end_s"]]


def test_nobody_overtakes_in_fifo_but_a_higher_priority() -> None:
    wide = {"num_gpus": 4, "submit_s": 1.0}
    frame = log({"duration_s": 50.0}, wide, {"submit_s": 2.0}, {"submit_s": 3.0, "priority": 1})
    assert ends(frame, 1, Fifo(sleep_after_s=None)) == [50.0, 203.0, 303.0, 103.0]


def test_best_fit_fills_a_node_and_spread_takes_the_emptiest() -> None:
    frame = log({}, {})
    assert sorted(run(frame, 2, Fifo())[1].nodes["hosting_s"].to_list()) == [0.0, 105.0]
    assert run(frame, 2, Fifo(spread=True))[1].nodes["hosting_s"].to_list() == [105.0, 105.0]


def test_the_shortest_goes_first_in_sjf_and_takes_the_gpu_in_srtf() -> None:
    frame = log(
        {"duration_s": 5000.0, "num_gpus": 4},
        {"duration_s": 300.0, "num_gpus": 4, "submit_s": 1.0},
        {"num_gpus": 4, "submit_s": 2.0},
    )
    assert ends(frame, 1, Sjf(sleep_after_s=None)) == [5000.0, 5400.0, 5100.0]
    # The longest writes its checkpoint from 1 s to 4 s, the second from 4 s to 7 s; the shortest runs until
    # 107 s. Both others repeat 7 s.
    assert ends(frame, 1, Srtf(sleep_after_s=None), checkpoint_s=3.0, restart_s=7.0) == [
        107 + 307 + 4999 + 7,
        107 + 300 + 7.0,
        107.0,
    ]


def test_no_job_preempts_while_a_gpu_is_free() -> None:
    frame = log(
        {"duration_s": 5000.0, "num_gpus": 3}, {"duration_s": 4000.0, "num_gpus": 2},
        {"duration_s": 300.0, "num_gpus": 4, "submit_s": 1.0}, {"num_gpus": 1, "submit_s": 2.0},
    )
    # The third job stops the first. The fourth takes a free GPU of the other node, none of the claimed one.
    _, result = run(frame, 2, Srtf(sleep_after_s=None), checkpoint_s=3.0, restart_s=7.0)
    assert result.jobs.sort("job_id")["start_s"].to_list()[3] == 2.0
    assert result.jobs["moves"].sum() == 1


def test_every_queued_job_is_tried_however_long_the_queue_is() -> None:
    wide = [{"duration_s": 50.0, "num_gpus": 4, "submit_s": 1.0} for _ in range(40)]
    first = {"duration_s": 1000.0, "num_gpus": 3}, {"duration_s": 50.0}
    _, result = run(log(*first, *wide, {"duration_s": 99.0, "submit_s": 2.0}), 1, Sjf(sleep_after_s=None))
    assert result.jobs.sort("submit_s")["start_s"].to_list()[-1] == 50.0


def test_tiresias_moves_a_job_to_the_second_queue_when_it_reaches_the_threshold() -> None:
    frame = log({"duration_s": 5000.0, "num_gpus": 4}, {"num_gpus": 4, "submit_s": 100.0})
    # 3,600 GPU-seconds on 4 GPUs are 900 s: then the waiting job takes the GPUs, 3 s later.
    assert ends(frame, 1, Tiresias(sleep_after_s=None), checkpoint_s=3.0, restart_s=7.0)[1] == 900 + 3 + 100


def test_tiresias_lets_the_new_ones_pass_without_knowing_durations() -> None:
    frame = log({"duration_s": 5000.0, "num_gpus": 4}, {"num_gpus": 4, "submit_s": 3000.0})
    assert ends(frame, 1, Tiresias(sleep_after_s=None), checkpoint_s=3.0, restart_s=7.0) == [
        5000 + 100 + 3 + 7,
        3103.0,
    ]


def test_packing_waits_until_the_cluster_is_full() -> None:
    frame = log(*({} for _ in range(6)))
    _, result = run(frame, 1, FifoPacked(), colocation=Colocation({}))
    assert result.jobs["run_s"].to_list() == pytest.approx([107.8, 107.8, 100, 100, 107.8, 107.8])
    _, random = run(frame, 1, Gandiva(seed=1))
    assert sorted(random.jobs["run_s"].to_list())[:2] == [100, 100]
    assert random.jobs["start_s"].max() == 0


def test_lucid_never_pairs_two_jobs_that_are_both_large() -> None:
    large = {"utilisation": 0.7}
    assert max(run(log(*(large for _ in range(6))), 1, Lucid())[1].jobs["run_s"]) == 100.0
    small = {"utilisation": 0.2}
    assert max(run(log(*(small for _ in range(6))), 1, Lucid())[1].jobs["run_s"]) > 100.0


def test_ours_takes_a_free_gpu_of_an_awake_node_before_it_shares_and_shares_before_it_wakes() -> None:
    calm = {"utilisation": 0.3, "memory_bytes": 100, "duration_s": 4000.0}
    _, four = run(log(*(calm for _ in range(4))), 2, EnergyAwarePolicy())
    assert four.jobs["run_s"].to_list() == [4000.0] * 4
    assert four.nodes["hosting_s"].sum() == 4005.0
    _, six = run(log(*(calm for _ in range(6))), 2, EnergyAwarePolicy())
    assert six.nodes["wakes"].sum() == 1


def test_ours_empties_a_node_that_one_long_job_keeps_awake() -> None:
    short, long = {"duration_s": 2000.0, "memory_bytes": 600}, {"duration_s": 90_000.0, "memory_bytes": 600}
    frame = log(
        *(short for _ in range(3)),
        long,
        *({**short, "submit_s": 1.0} for _ in range(3)),
        {**long, "submit_s": 2.0},
        {"submit_s": 3000.0},
    )
    _, moved = run(frame, 2, EnergyAwarePolicy(review_s=100.0))
    _, kept = run(frame, 2, EnergyAwarePolicy(review_s=None))
    assert moved.jobs["moves"].sum() <= 2
    assert moved.energy_j <= kept.energy_j


def test_ours_moves_no_short_job_and_undoes_less_with_its_margin(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster.of(8)
    frame = draw(
        generate(800, gpus=64, seed=5, load=0.9).select("job_id", "submit_s", "duration_s", "num_gpus"), 1
    )
    usual = Simulator(frame, cluster, EnergyAwarePolicy()).run()
    monkeypatch.setattr(energy_aware, "MARGIN", 1.0)
    bare = Simulator(frame, cluster, EnergyAwarePolicy()).run()
    assert usual.jobs["undos"].sum() < bare.jobs["undos"].sum()
    moved = usual.jobs.filter(pl.col("moves") > 0)
    assert moved.height > 0
    assert min(moved["run_s"]) > 30 * 60.0


def test_sharing_saves_energy_over_best_fit_and_ours_over_eaco() -> None:
    frame = draw(
        generate(1500, gpus=96, seed=21, load=0.9).select("job_id", "submit_s", "duration_s", "num_gpus"), 3
    )
    energy = {
        name: float(summarise(Simulator(frame, Cluster.of(12), make()).run())["energy_kwh"])
        for name, make in (
            ("spread", partial(Fifo, spread=True, sleep_after_s=None)),
            ("fit", Fifo),
            ("eaco", Eaco),
            ("ours", EnergyAwarePolicy),
        )
    }
    assert energy["spread"] > energy["fit"] > energy["eaco"] > energy["ours"]
    assert energy["ours"] < 0.92 * energy["eaco"]
