"""Simulated nodes: how their GPUs differ, who waits for whom in a data-parallel job, and what it costs."""

from __future__ import annotations

import itertools
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from notebooks import data_parallel as ranks
from notebooks.data_parallel import DataParallelJob, Exchange
from workbench.errors import SimulationError, UnknownGpu, UsageError
from workbench.simulation import catalogue
from workbench.simulation.machine import Machine
from workbench.simulation.physics import Load, operate


@pytest.fixture
def alike(simulated: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Four GPUs without any difference, that always wait equally long for their data."""
    monkeypatch.setattr(ranks, "GAP_JITTER", 0.0)
    return simulated("V100,V100,V100,V100", stepped=True, seed=1)


def steady(count: int = 8, **options: Any) -> DataParallelJob:
    """A job whose iterations differ in nothing."""
    options = {"iterations": 6, "variation": 0.0, "imbalance": 0.0} | options
    return DataParallelJob("squad", gpu=range(count), **options)


def mean_wait_s(job: DataParallelJob) -> list[float]:
    return [statistics.mean(column) for column in zip(*(each.wait_s for each in job.exchanges), strict=True)]


# names


def test_a_count_before_a_name_makes_a_node(simulated: Callable[..., Machine]) -> None:
    assert simulated("2xA100, V100", stepped=True).cards == ("A100", "A100", "V100")
    assert simulated(["2 x rtx 3080 ti"], stepped=True).cards == ("RTX3080TI", "RTX3080TI")
    assert simulated("16xH100,slow", stepped=True).cards == ("H100",) * 16


@pytest.mark.parametrize(("name", "message"), [
    ("0xA100", r"0 GPUs.*1 to 16.*8xA100"), ("1000000xA100", r"1000000 GPUs.*1 to 16"),
    ("-2xA100", "-2 GPUs"), ("9xA100,8xV100", r"17 simulated GPUs.*1 to 16"),
])
def test_a_count_that_no_machine_has_is_refused(
    simulated: Callable[..., Machine], name: str, message: str,
) -> None:
    with pytest.raises(SimulationError, match=message):
        simulated(name)


def test_a_node_of_an_unknown_card_is_refused(simulated: Callable[..., Machine]) -> None:
    with pytest.raises(UnknownGpu, match="A1000"):
        simulated("2xA1000")


# differences


def test_gpus_of_a_node_differ_by_a_few_percent(simulated: Callable[..., Machine]) -> None:
    load = Load(0.7, 0.2, 420.0)
    spreads = []
    for seed in range(5):
        machine = simulated("8xA100", stepped=True, seed=seed)
        cards = [machine.card(gpu) for gpu in range(8)]
        slow = [operate(card, load, power_limit_w=400.0).stretch for card in cards]
        spreads.append(max(slow) / min(slow) - 1.0)
        low = [operate(card, load, power_limit_w=400.0, max_sm_clock_mhz=900) for card in cards]
        assert len({point.stretch for point in low}) == 1  # at the same clock they are equally fast
        assert 0.01 < max(point.power_w for point in low) / min(point.power_w for point in low) - 1.0 < 0.25
        assert [machine.state.card(gpu, "idle_w") for gpu in range(8)] == [card.idle_w for card in cards]
        temperatures = {machine.state.card(gpu, "idle_c") for gpu in range(8)}
        assert len(temperatures) == 8
    assert 0.02 < statistics.mean(spreads) < 0.10


def test_the_seed_decides_the_differences_and_single_names_have_none(
    simulated: Callable[..., Machine],
) -> None:
    nodes = [
        [machine.card(gpu).dynamic for gpu in range(2)]
        for machine in (simulated("2xA100", stepped=True, seed=seed) for seed in (7, 7, 8))
    ]
    assert nodes[0] == nodes[1] != nodes[2]
    assert simulated("A100,A100", stepped=True, seed=7).card(1) is catalogue.CARDS["A100"]


# waiting


def test_gpus_that_are_alike_arrive_together(alike: Machine) -> None:
    job = steady(4)
    job.run()
    assert mean_wait_s(job) == pytest.approx([0.0] * 4, abs=1e-9)
    lengths = [late - early for early, late in itertools.pairwise(job.marks)]
    alone_s = sum(
        phase.time_s * operate(alike.card(0), phase.load, power_limit_w=250.0).stretch
        for phase in catalogue.iteration(alike.card(0), job.workload, job.batch_size)
    )
    # Only the last of four buckets is not hidden behind the backward pass.
    bucket_s = 2 * 3 / 4 * job.workload.checkpoint_bytes / 3 / ranks.LINK_BYTES_PER_S / 4
    slow = operate(alike.card(0), Load(0.3, 0.5, 0.0), power_limit_w=250.0).stretch
    assert lengths == pytest.approx([alone_s + slow * bucket_s] * 5, rel=1e-9)


@pytest.mark.parametrize("cause", ["clock", "data"])
def test_all_wait_for_a_straggler(alike: Machine, cause: Any) -> None:
    job = steady(4, straggler=(2, 1.2), cause=cause)
    job.run()
    assert {each.last for each in job.exchanges} == {2}
    waits_s, iteration_s = mean_wait_s(job), job.marks[3] - job.marks[2]
    assert waits_s[2] == 0.0
    assert waits_s[0] == pytest.approx(iteration_s * (1 - 1 / 1.2), rel=0.2)
    segment = alike.state.segment_at(2, job.exchanges[3].barrier_s - 0.01)
    fast = alike.state.segment_at(0, job.exchanges[3].arrival_s[0] - 0.01)
    slow_clock = segment.sm_clock_mhz < fast.sm_clock_mhz
    assert (slow_clock, segment.reasons & 0x20 > 0) == (cause == "clock", cause == "clock")
    usual_s = sum(phase.time_s for phase in job._lanes[2].iteration if phase.load is None)
    begin = alike.state.segment_at(2, job.exchanges[3].begin_s[2] + usual_s + 0.01)
    assert begin.utilisation == (0.0 if cause == "data" else 1.0)


def test_a_gpu_that_polls_looks_busy_and_one_that_blocks_idles(alike: Machine) -> None:
    seen = {}
    for wait in ("spin", "block"):
        job = steady(4, straggler=(2, 1.3), wait=wait)
        job.run()
        at_s = job.exchanges[3].barrier_s - 0.01
        seen[wait] = alike.state.segment_at(0, at_s)
        assert seen[wait].power_w < alike.state.segment_at(0, job.exchanges[3].arrival_s[0] - 0.01).power_w
    assert (seen["spin"].utilisation, seen["block"].utilisation) == (1.0, 0.0)
    assert seen["spin"].power_w > seen["block"].power_w == alike.card(0).gap_w


def test_a_slow_link_delays_all_and_makes_no_straggler(alike: Machine) -> None:
    plain, slow = steady(4), steady(4, link_slowdown=8.0)
    for job in (plain, slow):
        job.run()
    first, second = plain.exchanges[3], slow.exchanges[3]
    assert second.end_s - second.barrier_s > 4 * (first.end_s - first.barrier_s)
    assert mean_wait_s(slow) == pytest.approx([0.0] * 4, abs=1e-9)
    assert slow.marks[4] - slow.marks[3] > plain.marks[4] - plain.marks[3]


@pytest.mark.usefixtures("alike")
def test_sequences_of_random_lengths_make_another_gpu_the_last() -> None:
    job = steady(4, imbalance=0.1, iterations=40)
    job.run()
    assert {each.last for each in job.exchanges} == {0, 1, 2, 3}


def test_the_energy_of_waiting_is_that_of_the_timeline(simulated: Callable[..., Machine]) -> None:
    machine = simulated("8xH100", stepped=True, seed=3)
    job = steady(8, straggler=(5, 1.15), imbalance=0.02)
    job.run()
    for place, gpu in enumerate(job.gpus):
        for each in job.exchanges:
            assert each.wait_energy_j[place] == pytest.approx(
                machine.true_energy_j(gpu, each.arrival_s[place], each.barrier_s), abs=1e-6
            )
        waits = [
            (span_s, segment.power_w)
            for each in job.exchanges
            for span_s, segment in machine.state.spans(gpu, each.arrival_s[place], each.barrier_s)
        ]
        assert sum(span_s * power_w for span_s, power_w in waits) == pytest.approx(
            sum(each.wait_energy_j[place] for each in job.exchanges), rel=1e-9, abs=1e-9
        )
    assert job.exchanges[2].wait_energy_j[5] == 0.0


# disturbed


def consistent(job: DataParallelJob) -> None:
    """Check the times of every exchange against the machine's timeline."""
    before: Exchange | None = None
    for each in job.exchanges:
        for place, gpu in enumerate(job.gpus):
            ready_s = each.ready_s[place]
            assert each.begin_s[place] < ready_s[0]
            assert ready_s == sorted(ready_s)
            assert each.barrier_s < each.end_s
            if before is not None:
                assert each.begin_s[place] > before.end_s - 1e-9
            if each.wait_s[place] > 1e-3:  # it computes until it arrives, and polls from then on
                state, arrival_s = job.machine.state, each.arrival_s[place]
                early, late = state.segment_at(gpu, arrival_s - 1e-5), state.segment_at(gpu, arrival_s + 1e-5)
                assert early.memory_utilisation > 0.1 > late.memory_utilisation
                assert state.segment_at(gpu, each.barrier_s - 1e-5).memory_utilisation < 0.1
            assert job.machine.state.segment_at(gpu, each.end_s - 1e-5).memory_utilisation >= 0.2
        before = each


def test_a_lower_clock_of_one_gpu_lengthens_only_its_own_work(alike: Machine) -> None:
    job = steady(4, iterations=12, straggler=(2, 1.3))
    for batch in job:
        if batch.iteration == 5:
            alike.state.change_setting(0, lock_sm_min=1005, lock_sm_max=1005)
    before, after = job.exchanges[3], job.exchanges[10]
    consistent(job)
    assert after.wait_s[0] < before.wait_s[0] - 0.02
    assert after.wait_s[1] == pytest.approx(before.wait_s[1], abs=1e-9)
    # The job remains as fast as its straggler.
    assert job.exchanges[10].end_s - job.exchanges[9].end_s == pytest.approx(
        job.exchanges[3].end_s - job.exchanges[2].end_s, rel=0.01
    )


def test_a_gpu_that_becomes_the_last_delays_all(alike: Machine) -> None:
    job = steady(4, iterations=10)
    for batch in job:
        if batch.iteration == 4:
            alike.state.change_setting(1, limit_w=120.0)
    consistent(job)
    assert [each.last for each in job.exchanges[-3:]] == [1, 1, 1]
    assert job.exchanges[9].barrier_s - job.exchanges[8].barrier_s > 1.1 * (
        job.exchanges[2].barrier_s - job.exchanges[1].barrier_s
    )


@pytest.mark.parametrize("grain_s", [0.0, 2.0])
def test_settings_that_change_at_any_time_keep_the_gpus_together(
    simulated: Callable[..., Machine], grain_s: float,
) -> None:
    machine, rng = simulated("4xA100", stepped=True, seed=2), random.Random(4)
    job = DataParallelJob("imagenet", gpu=range(4), iterations=60, grain_s=grain_s, imbalance=0.05)

    def change(_to_s: float) -> None:
        if rng.random() < 0.3:
            machine.state.change_setting(rng.randrange(4), limit_w=rng.uniform(150.0, 400.0))

    machine.clock.on_step.append(change)
    job.run()
    consistent(job)
    assert len(job.exchanges) == len(job.marks) == 60
    assert job.marks == [each.begin_s[0] for each in job.exchanges]
    assert all(each.wait_energy_j for each in job.exchanges)


def test_evaluations_and_checkpoints_are_between_iterations(alike: Machine) -> None:
    job = steady(4, iterations=None, epochs=1, batch_size=56, checkpoint_every=200, checkpoint_s=1.0)
    job.run()
    assert [event.kind for event in job.events] == ["checkpoint", "evaluation"]
    assert alike.state.processes(0) == []


# refused


@pytest.mark.usefixtures("alike")
@pytest.mark.parametrize(("wrong", "message"), [
    ({"gpu": [0]}, "2 or more"), ({"straggler": (7, 1.2)}, "straggler 7"),
    ({"straggler": (1, 0.8)}, r"1 or more, not 0\.8"), ({"link_slowdown": 0.5}, "link_slowdown"),
])
def test_a_job_that_no_node_runs_is_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        DataParallelJob("squad", **{"gpu": range(2)} | wrong)


# in real time


def test_eight_gpus_cost_little_of_a_processor(simulated: Callable[..., Machine]) -> None:
    simulated("8xH100")
    job = DataParallelJob("squad", gpu=range(8), iterations=10)
    begun_s, used_s = time.monotonic(), time.process_time()
    job.run()
    # Usually 4 %; a slow machine needs more.
    assert time.process_time() - used_s < 0.2 * (time.monotonic() - begun_s)
    assert all(len(each.wait_energy_j) == 8 for each in job.exchanges)


def test_each_process_drives_its_own_gpu(simulated: Callable[..., Machine]) -> None:
    machine = simulated("3xV100", scale=5)
    program = (
        "import os, sys\nfrom workbench.simulation.training import gpu_beside\n"
        "for _ in gpu_beside(range(8), 'squad', gpu=int(os.environ['LOCAL_RANK'])):\n    pass\n"
        "sys.stdout.write('done')"
    )
    begun_s = machine.clock()
    children = [
        subprocess.Popen(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True,
            env={**os.environ, "LOCAL_RANK": str(rank)},
        )
        for rank in range(3)
    ]
    seen: dict[int, set[int]] = {0: set(), 1: set(), 2: set()}
    while any(child.poll() is None for child in children):
        for gpu in range(3):
            seen[gpu] |= {pid for pid, _ in machine.state.processes(gpu)}
        time.sleep(0.02)
    assert [child.communicate()[0] for child in children] == ["done"] * 3
    assert [seen[gpu] for gpu in range(3)] == [{child.pid} for child in children]
    for gpu in range(3):
        assert machine.true_energy_j(gpu, begun_s, machine.clock()) > 8 * 0.5 * 150.0
