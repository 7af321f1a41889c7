"""Simulated training: its time, its power, and its behaviour under disturbances."""

from __future__ import annotations

import itertools
import math
import os
import random
import statistics
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.fixtures.bulk import plans
from workbench.errors import SimulationError, UsageError
from workbench.simulation import catalogue, training
from workbench.simulation.catalogue import WorkloadPhase
from workbench.simulation.machine import Machine
from workbench.simulation.physics import Card, operate
from workbench.simulation.training import AHEAD_S, OutOfMemory, TrainingJob

GAP = "data"


def phases(card: Card, batch_size: int = 256) -> tuple[WorkloadPhase, ...]:
    """An iteration of ResNet-50 on a card."""
    return catalogue.iteration(card, catalogue.WORKLOADS["imagenet"], batch_size)


def iteration_s(card: Card, limit_w: float, *, busy: float = 1.0, gap: float = 1.0) -> float:
    """The calculated time of an iteration at a limit, its phases varied by factors."""
    return sum(
        phase.time_s
        * (gap if phase.load is None else busy)
        * operate(card, phase.load, power_limit_w=limit_w).stretch
        for phase in phases(card)
    )


def energy_j(card: Card, limit_w: float) -> float:
    points = [(phase, operate(card, phase.load, power_limit_w=limit_w)) for phase in phases(card)]
    return sum(phase.time_s * point.stretch * point.power_w for phase, point in points)


def changed_iteration_s(card: Card, limit_w: float) -> float:
    """How long an iteration takes whose first 90 ms still run at 250 W: they fall into its forward pass."""
    forward = phases(card)[0]
    fast = operate(card, forward.load, power_limit_w=250.0).stretch
    slow = operate(card, forward.load, power_limit_w=limit_w).stretch
    assert forward.time_s * fast > 0.090
    return 0.090 + (forward.time_s - 0.090 / fast) * slow + iteration_s(card, limit_w) - forward.time_s * slow


@pytest.fixture
def regular(monkeypatch: pytest.MonkeyPatch) -> None:
    """Iterations that are all alike."""
    monkeypatch.setattr(training, "ITERATION_JITTER", 0.0)
    monkeypatch.setattr(training, "GAP_JITTER", 0.0)


# undisturbed


@pytest.mark.usefixtures("regular")
def test_a_hundred_iterations_take_a_hundred_times_as_long_as_one(stepped: Machine) -> None:
    card, state = stepped.card(0), stepped.state
    stepped.step(5.0)
    job = TrainingJob("imagenet", 256, iterations=100)
    assert len(job) == 100
    observed = [batch.iteration for batch in job]
    one_s = iteration_s(card, 250.0)
    assert observed == list(range(100))
    assert job.marks == pytest.approx([5.0 + number * one_s for number in range(100)], abs=1e-9)
    assert stepped.clock() == pytest.approx(5.0 + 100 * one_s, abs=1e-9)
    assert state.true_energy_j(0, stepped.clock()) - state.true_energy_j(0, 5.0) == pytest.approx(
        100 * energy_j(card, 250.0), rel=1e-9
    )
    stepped.step(1.0)
    assert state.true_mean_power_w(0, stepped.clock() - 1.0, stepped.clock()) == pytest.approx(card.idle_w)


def test_iterations_vary_with_their_seed(stepped: Machine) -> None:
    card, rng = stepped.card(0), random.Random(3)
    job = TrainingJob("imagenet", 256, iterations=20, seed=3)
    job.run()
    expected_s = [0.0]
    for _ in range(20):
        busy, gap = (
            rng.lognormvariate(0.0, training.ITERATION_JITTER),
            rng.lognormvariate(0.0, training.GAP_JITTER),
        )
        expected_s.append(expected_s[-1] + iteration_s(card, 250.0, busy=busy, gap=gap))
    assert [*job.marks, stepped.clock()] == pytest.approx(expected_s, abs=1e-9)
    lengths = [late - early for early, late in itertools.pairwise(job.marks)]
    assert len(set(lengths)) == 19
    assert max(lengths) / min(lengths) < 1.1


@pytest.mark.usefixtures("regular")
def test_the_host_runs_a_little_ahead_of_the_device(stepped: Machine) -> None:
    job = TrainingJob("imagenet", 256, iterations=3)
    one_s = iteration_s(stepped.card(0), 250.0)
    yielded = [stepped.clock() for _ in job]
    assert yielded == pytest.approx([(number + 1) * one_s - AHEAD_S for number in range(3)], abs=1e-9)


@pytest.mark.usefixtures("regular")
def test_the_driver_lists_a_job_only_while_it_runs(stepped: Machine) -> None:
    state = stepped.state
    for batch in TrainingJob("imagenet", 256, iterations=2):
        assert state.processes(0) == [(os.getpid(), 1_200_000_000 + 256 * 87_500_000)]
        assert state.control(0, "load_pid") == os.getpid()
        assert batch.size == 256
    assert (state.processes(0), state.control(0, "load_pid")) == ([], 0)


@pytest.mark.usefixtures("regular")
def test_an_epoch_ends_with_its_evaluation_and_checkpoints_come_when_due(stepped: Machine) -> None:
    job = TrainingJob("squad", 56, epochs=2, checkpoint_every=1000, checkpoint_s=2.0)
    epoch = job.iterations_per_epoch
    assert (epoch, len(job)) == (88_524 // 56, 2 * (88_524 // 56))
    assert [batch.epoch for batch in job] == [0] * epoch + [1] * epoch
    assert [event.kind for event in job.events] == [
        "checkpoint", "evaluation", "checkpoint", "checkpoint", "evaluation",
    ]
    checkpoint, evaluation = job.events[:2]
    assert checkpoint.end_s - checkpoint.start_s == pytest.approx(2.0)
    assert checkpoint.start_s == pytest.approx(job.marks[999] + job.marks[1] - job.marks[0])
    assert job.marks[1000] == pytest.approx(checkpoint.end_s)
    batches = catalogue.WORKLOADS["squad"].evaluation_batches(56)
    each_s = sum(
        phase.time_s * operate(stepped.card(0), phase.load, power_limit_w=250.0).stretch
        for phase in catalogue.evaluation(stepped.card(0), catalogue.WORKLOADS["squad"], 56)
    )
    assert evaluation.end_s - evaluation.start_s == pytest.approx(batches * each_s)


@pytest.mark.usefixtures("regular")
def test_a_job_on_two_gpus_goes_at_the_pace_of_the_slower(simulated: Callable[..., Machine]) -> None:
    machine = simulated("V100,P100", stepped=True)
    job = TrainingJob("imagenet", 128, iterations=5, gpu=(0, 1))
    assert job.iterations_per_epoch == 1_281_167 // 256
    job.run()
    slow_s = sum(
        phase.time_s * operate(machine.card(1), phase.load, power_limit_w=250.0).stretch
        for phase in phases(machine.card(1), 128)
    )
    assert job.marks == pytest.approx([number * slow_s for number in range(5)])
    gap_w = operate(machine.card(0), None, power_limit_w=250.0).power_w
    assert machine.state.segment_at(0, 2 * slow_s - 0.001).power_w == gap_w  # the faster one waits


# disturbed


@pytest.mark.usefixtures("regular")
def test_a_lower_power_limit_slows_the_iteration_under_way_after_the_governors_delay(
    stepped: Machine,
) -> None:
    card = stepped.card(0)
    job, before_s, after_s = (
        TrainingJob("imagenet", 256, iterations=4), iteration_s(card, 250.0), iteration_s(card, 150.0),
    )
    for batch in job:
        if batch.iteration == 0:  # the host is 10 ms ahead, the governor takes 100: 90 ms into iteration 1
            stepped.state.change_setting(0, limit_w=150.0)
    changed_s = changed_iteration_s(card, 150.0)
    lengths = [late - early for early, late in itertools.pairwise([*job.marks, stepped.clock()])]
    assert lengths == pytest.approx([before_s, changed_s, after_s, after_s], abs=1e-9)
    assert after_s > 1.05 * before_s
    state, forward, change_s = stepped.state, phases(card)[0], job.marks[1] + 0.090
    assert state.segment_at(0, change_s - 1e-6).power_w == pytest.approx(
        operate(card, forward.load, power_limit_w=250.0).power_w
    )
    assert state.segment_at(0, change_s + 1e-6).power_w == 150.0
    assert state.segment_at(0, change_s + 1e-6).reasons == 0x4  # the power cap


@pytest.mark.usefixtures("regular")
def test_a_change_while_the_host_is_blocked_is_followed_too(stepped: Machine) -> None:
    card = stepped.card(0)
    before_s, after_s = iteration_s(card, 250.0), iteration_s(card, 125.0)
    changes: list[float] = []

    def change(_to_s: float) -> None:
        if len(job.marks) == 2 and not changes:
            changes.append(stepped.clock())
            stepped.state.change_setting(0, limit_w=125.0)

    job = TrainingJob("imagenet", 256, iterations=3)
    stepped.clock.on_step.append(change)
    job.run()
    assert changes == pytest.approx(
        [before_s - AHEAD_S]
    )  # as above, but after the second iteration was queued
    lengths = [late - early for early, late in itertools.pairwise([*job.marks, stepped.clock()])]
    assert lengths == pytest.approx([before_s, changed_iteration_s(card, 125.0), after_s], abs=1e-9)


@pytest.mark.usefixtures("regular")
def test_a_locked_clock_is_kept_and_reported(stepped: Machine) -> None:
    stepped.state.change_setting(0, lock_sm_min=900, lock_sm_max=900)
    stepped.step(0.2)
    job = TrainingJob("imagenet", 256, iterations=2)
    job.run()
    segment = stepped.state.segment_at(0, job.marks[1] + 0.1)
    point = operate(
        stepped.card(0), phases(stepped.card(0))[0].load, power_limit_w=250.0, max_sm_clock_mhz=900
    )
    assert (segment.sm_clock_mhz, segment.reasons) == (900, 0x2)
    assert segment.power_w == pytest.approx(point.power_w)


@pytest.mark.usefixtures("regular")
def test_a_loop_that_breaks_off_leaves_the_gpu_idle(stepped: Machine) -> None:
    for batch in TrainingJob("imagenet", 256, iterations=50):
        if batch.iteration == 3:
            break
    assert stepped.state.control(0, "load_pid") == 0
    stepped.step(1.0)
    assert stepped.state.segment_at(0, stepped.clock()).power_w == stepped.card(0).idle_w


def test_a_job_whose_process_dies_goes_idle_after_the_pause(stepped: Machine) -> None:
    program = (
        "import os\nfrom workbench.simulation.training import TrainingJob\n"
        "for batch in TrainingJob('imagenet', 256):\n    if batch.iteration == 1:\n        os._exit(0)\n"
    )
    dead = subprocess.run([sys.executable, "-c", program], check=True)
    state, card = stepped.state, stepped.card(0)
    assert dead.returncode == 0
    ends_s = stepped.clock() + AHEAD_S  # the child has stepped our clock to the end of its second iteration
    gap_w = operate(card, None, power_limit_w=250.0).power_w
    assert state.segment_at(0, ends_s + 1.0).power_w == gap_w
    assert state.segment_at(0, ends_s + 59.9).power_w == gap_w
    assert state.segment_at(0, ends_s + 60.1).power_w == card.idle_w
    assert state.processes(0) == []
    TrainingJob("imagenet", 256, iterations=1).run()  # nor is the GPU kept from others


# refused


def test_a_batch_that_does_not_fit_shows_the_memory_it_needs(stepped: Machine) -> None:
    with pytest.raises(OutOfMemory, match=r"42\.8 GiB.*32 GiB"):
        TrainingJob("imagenet", 512)


def test_a_job_that_does_not_fit_next_to_another_runs_out_of_memory(stepped: Machine) -> None:
    for _ in TrainingJob("imagenet", 256, iterations=1):
        with pytest.raises(OutOfMemory, match=rf"9\.6 of 32 GiB.*{os.getpid()}.*22\.0 GiB"):
            TrainingJob("squad", 32, iterations=1).run()
    TrainingJob("squad", 32, iterations=1).run()


def test_a_job_takes_all_of_its_gpus_or_none(simulated: Callable[..., Machine]) -> None:
    machine = simulated("V100,V100", stepped=True)
    for _ in TrainingJob("imagenet", 256, iterations=1, gpu=1):
        with pytest.raises(OutOfMemory, match="batch size"):
            TrainingJob("squad", 32, iterations=1, gpu=(0, 1)).run()
        assert machine.state.processes(0) == []
        TrainingJob("squad", 32, iterations=1, gpu=0).run()


def test_an_invalid_job_is_refused_with_valid_values(stepped: Machine) -> None:
    with pytest.raises(UsageError, match=r"'resnet'.*cifar100"):
        TrainingJob("resnet")
    for name in ("batch_size", "epochs", "iterations"):
        with pytest.raises(UsageError, match=f"{name} .*0"):
            TrainingJob("imagenet", **{name: 0})  # type: ignore[arg-type]
    with pytest.raises(SimulationError, match="GPU 3"):
        TrainingJob("imagenet", gpu=3)


def test_without_simulated_gpus_there_is_no_simulated_training(simulated: Callable[..., Machine]) -> None:
    with pytest.raises(SimulationError, match="%gpu simulate A100"):
        TrainingJob("imagenet")


# in real time


def test_other_processes_see_and_control_a_running_job(
    simulated: Callable[..., Machine],
) -> None:
    machine = simulated("V100", scale=20)
    job = TrainingJob("imagenet", 256)
    program = (
        "from workbench.device.discovery import open_device\nfrom workbench.records import Setting\n"
        "device = open_device(0)\nearly = device.energy_j(), device.clock()\n"
        "device.write(Setting(power_limit_w=125))\ndevice.clock.sleep(10.0)\n"
        "late = device.energy_j(), device.clock()\nsample = device.sample()\n"
        "print((late[0] - early[0]) / (late[1] - early[1]), sample.power_limit_w, device.processes()[0].pid)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as child:
        for _ in job:
            if child.poll() is not None:
                break
        mean_w, limit_w, pid = (float(answer) for answer in child.communicate()[0].split())
    assert (limit_w, pid) == (125.0, os.getpid())
    assert 60 < mean_w <= 160  # mostly at the new limit
    slow_s = iteration_s(machine.card(0), 125.0)
    last = [late - early for early, late in itertools.pairwise(job.marks[-6:])]
    assert 0.95 * slow_s < min(last) < 1.15 * slow_s  # a busy host may come late, never early


# other shapes


@pytest.mark.usefixtures("regular")
def test_accumulated_gradients_cost_what_the_whole_batch_costs(stepped: Machine) -> None:
    card = stepped.card(0)
    seconds = {
        phase.kind: phase.time_s * operate(card, phase.load, power_limit_w=250.0).stretch
        for phase in phases(card)
    }
    job = TrainingJob("imagenet", iterations=4, accumulate=3)
    assert {batch.size for batch in job} == {3 * 256}
    one_s = 3 * sum(
        seconds.values()
    )  # the optimizer works once, as long as for three times as many samples at once
    assert [late - early for early, late in itertools.pairwise(job.marks)] == pytest.approx(
        [one_s] * 3, rel=1e-9
    )
    assert job.iterations_per_epoch == 1_281_167 // (3 * 256)
    (plan,), _ = plans(job, stepped.clock())
    assert sum(row[1] * row[0] for row in plan) == pytest.approx(3 * energy_j(card, 250.0))
    assert len(plan) == 3 * 3 + 1  # forward, backward, wait; one optimizer


def test_iterations_vary_as_much_as_is_asked_for(stepped: Machine) -> None:
    spread = []
    for variation in (None, 0.8):
        job = TrainingJob("squad", iterations=80, variation=variation)
        job.run()
        spread.append(
            statistics.stdev(math.log(late - early) for early, late in itertools.pairwise(job.marks))
        )
    assert spread[0] < 0.03
    assert spread[1] == pytest.approx(0.72, abs=0.2)  # the wait for data does not vary as much


@pytest.mark.usefixtures("stepped")
@pytest.mark.parametrize("wrong", [{"accumulate": 0}, {"variation": -0.1}, {"variation": math.nan}])
def test_a_shape_that_no_job_has_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        TrainingJob("squad", **wrong)
