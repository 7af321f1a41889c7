"""A recurring job on a simulated GPU, from the first recurrence on: measured, profiled, stopped, restored,
learned from.
"""

from __future__ import annotations

import dataclasses
import math
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest

import workbench
from workbench.errors import MeasurementError, NoDriver, StoreError, UsageError
from workbench.experiments.job import JobRun, RecurringJob
from workbench.experiments.power_profiling import default_limits_w
from workbench.measurement import session as sessions
from workbench.measurement.meter import Meter
from workbench.search.objective import Energy, EnergyDelay, Time
from workbench.simulation.machine import Machine
from workbench.simulation.training import TrainingJob

Simulated = Callable[..., Machine]
Made = Callable[..., RecurringJob]
SIZES = (128, 256, 512, 1024)
EPOCHS = {128: 8, 256: 6, 512: 8, 1024: 12, 4096: 20, 8192: 20}
TARGET = 0.6


@pytest.fixture
def machine(simulated: Simulated, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    sessions.current().close()
    made = simulated("V100", stepped=True)
    _ = sessions.current().meter
    made.step(3.0)
    yield made
    sessions.current().close()


def train(
    run: JobRun, machine: Machine, *, need: dict[int, int] = EPOCHS, gpu: int | tuple[int, ...] = 0
) -> None:
    """ShuffleNetV2 on CIFAR-100: its metric rises in a straight line to the target."""
    done = 0
    while not run.should_stop():
        for _ in TrainingJob("cifar100", run.batch_size, machine=machine, seed=done, gpu=gpu):
            workbench.step()
            if run.should_stop():
                return
        done += 1
        run.report(min(TARGET * done / need[run.batch_size], 0.61))


def limit_w(machine: Machine, gpu: int = 0) -> float:
    return sessions.current().devices[gpu].setting().power_limit_w or 0.0


@pytest.fixture
def job() -> Callable[..., RecurringJob]:
    """Makes jobs that share a history in memory, but where another storage is given."""
    memory = optuna.storages.InMemoryStorage()

    def made(name: str = "cifar", sizes: Sequence[int] = SIZES, default: int = 1024, **options: Any) -> RecurringJob:
        known = {"target": TARGET, "seed": 1, "max_epochs": 30, "storage": memory, **options}
        return RecurringJob(name, sizes, default, **known)

    return made


# from the first recurrence to convergence


@pytest.mark.slow
def test_a_job_learns_its_batch_size_and_power_limit(machine: Machine, job: Made) -> None:
    nightly = job()
    runs = [nightly.run(lambda run: train(run, machine)) for _ in range(9)]
    assert runs[0].batch_size == 1024
    assert runs[0].profile is not None
    assert all(run.reached for run in runs)
    last = runs[-1]
    assert last.batch_size == 256
    assert last.power_limit_w is not None
    assert last.power_limit_w < 250.0
    frame = nightly.history().filter(nightly.history()["purpose"] == "run")
    assert frame["cost"][-1] < 0.75 * frame["cost"][0]
    assert sum(run.profile is not None for run in runs[-2:]) == 0  # what is known is not profiled again


def test_the_cost_of_a_run_is_the_true_energy_of_the_gpu(machine: Machine, job: Made) -> None:
    nightly = job()
    start_s = machine.clock()
    run = nightly.run(lambda run: train(run, machine))
    true_j = machine.true_energy_j(0, start_s, machine.clock()) * machine.gain(0)
    attempts = nightly.study.attempts
    assert run.measurement is not None
    assert sum(a.energy_j + a.profile_energy_j for a in attempts) == pytest.approx(true_j, rel=0.01)
    assert sum(a.time_s + a.profile_time_s for a in attempts) == pytest.approx(
        machine.clock() - start_s, rel=0.001
    )
    assert attempts[-1].profile_time_s > 0  # booked apart
    assert attempts[-1].energy_j + attempts[-1].profile_energy_j == pytest.approx(
        run.measurement.energy_j or 0.0
    )
    assert nightly.study.evidence().spent_energy_j == pytest.approx(true_j, rel=0.01)


def test_the_running_cost_is_the_true_energy_and_stays_quick_to_read(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, job: Made
) -> None:
    meter = sessions.current().meter
    assert meter.recorder is not None
    rows, fetched_s, off_j = meter.recorder.rows, [], []

    def counted(uuid: str, from_s: float, to_s: float) -> np.ndarray:
        fetched_s[-1] = max(fetched_s[-1], to_s - from_s)
        return rows(uuid, from_s, to_s)

    nightly = job(sizes=(1024,), power_limits_w=[])
    start_s = machine.clock()
    with nightly.recurrence() as run, monkeypatch.context() as patch:
        patch.setattr(meter.recorder, "rows", counted)
        for number in range(12):
            TrainingJob("cifar100", 1024, machine=machine, seed=number).run()
            fetched_s.append(0.0)
            run.report(0.1)
            now_s = machine.clock()
            assert run.attempt.time_s == pytest.approx(now_s - start_s)
            true_j = machine.true_energy_j(0, start_s, now_s) * machine.gain(0)
            off_j.append(abs(run.attempt.energy_j - true_j))
        last_j = run.attempt.energy_j
    assert max(off_j) < 250.0 * 0.02  # 20 ms at the most that the card draws, also after many sums
    assert run.measurement is not None
    assert run.measurement.energy_j == pytest.approx(last_j, abs=5.0)
    epoch_s = (now_s - start_s) / 12
    before_s = 30.0  # of rows before a window, by which its edges are judged
    assert np.median(fetched_s) < epoch_s + before_s + 8.0 < 0.6 * (now_s - start_s)
    assert max(fetched_s) <= 60.0  # until it is known what the counter is


def test_without_samples_a_run_counts_what_its_counter_has_risen_by(machine: Machine, job: Made) -> None:
    (gpu,) = sessions.current().devices
    nightly = job(sizes=(1024,), power_limits_w=[], meter=Meter([gpu], zones=()))
    before_j = gpu.energy_j()
    with nightly.recurrence() as run:
        machine.step(10.0)
        workbench.work(samples=8)
        run.report(0.1)
        assert run.attempt.energy_j == gpu.energy_j() - before_j > 0.0
        machine.step(10.0)
        workbench.work(samples=8)
        run.finish(reached=True)
    assert run.measurement is not None
    assert run.measurement.energy_j == gpu.energy_j() - before_j
    assert [(each.name, each.amount) for each in run.measurement.work] == [("samples", 16.0)]


@pytest.mark.slow
def test_the_profile_is_that_of_whole_epochs_at_every_limit(machine: Machine, job: Made) -> None:
    nightly = job(max_epochs=60)
    with nightly.recurrence() as run:
        train(run, machine, need={1024: 40})
    profile = {limit: (time_s, power_w) for limit, time_s, power_w in nightly.study.attempts[0].profile}
    assert sorted(profile) == [100.0, 125.0, 150.0, 175.0, 200.0, 225.0, 250.0]
    for limit in (250.0, run.power_limit_w or 0.0):  # which were measured; others are predicted
        sessions.current().set_power_limit(sessions.current().devices[0].uuid, limit)
        machine.step(1.0)
        before_s = machine.clock()
        TrainingJob("cifar100", 1024, machine=machine, epochs=3).run()
        seconds = machine.clock() - before_s
        true_w = machine.true_energy_j(0, before_s, machine.clock()) / seconds
        assert profile[limit][0] == pytest.approx(seconds / 3, rel=0.03)
        assert profile[limit][1] == pytest.approx(true_w, rel=0.03)
    sessions.current().restore()


@pytest.mark.slow
def test_short_epochs_are_profiled_too(machine: Machine, job: Made) -> None:
    """An epoch of 12 iterations, of which one slice takes more."""
    nightly = job(sizes=(1024, 4096), max_epochs=60)
    before = nightly.study.claim(1024)
    nightly.study.end(before, state="reached", epochs=20.0, time_s=200.0, energy_j=3e4)
    with nightly.recurrence() as first:
        train(first, machine, need={1024: 25, 4096: 25})
    other = job("short", [4096], 4096, max_epochs=60)
    with other.recurrence() as run:
        train(run, machine, need={4096: 25})
    assert run.profile is not None
    assert run.profile.frame()["measured"].sum() >= 3
    assert other.study.attempts[0].profile


@pytest.mark.slow
def test_epochs_alone_are_enough(machine: Machine, job: Made) -> None:
    """A loop that never calls step()."""
    nightly = job("epochs", [1024], 1024, max_epochs=60)
    with nightly.recurrence() as run:
        for number in range(14):
            TrainingJob("cifar100", 1024, machine=machine, seed=number).run()
            run.report(0.3)
        run.finish(reached=True)
    assert run.profile is not None
    assert run.profile.frame()["measured"].sum() >= 3
    (attempt,) = nightly.study.attempts
    assert (attempt.state, attempt.epochs) == ("reached", 14.0)
    by_limit = {limit: seconds for limit, seconds, _ in attempt.profile}
    assert by_limit[250.0] == pytest.approx(8.5, rel=0.05)


@pytest.mark.slow
def test_pauses_between_iterations_are_not_in_the_profile(machine: Machine, job: Made) -> None:
    """A loop that evaluates every ten iterations and never calls epoch()."""
    nightly = job("pauses", [1024], 1024)
    with nightly.recurrence() as run:
        for number in range(30):
            for _ in TrainingJob("cifar100", 1024, machine=machine, iterations=10, seed=number):
                workbench.step()
            machine.step(6.0)
        run.finish(reached=True)
    assert run.profile is not None
    found = run.profile.frame()
    begin_s = machine.clock()
    TrainingJob("cifar100", 1024, machine=machine, iterations=40).run()
    (iteration_s,) = found.filter(found["limit_w"] == 250.0)["iteration_s"]
    assert iteration_s == pytest.approx((machine.clock() - begin_s) / 40, rel=0.03)


@pytest.mark.slow
def test_several_gpus_have_one_limit_and_one_sum(
    simulated: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions.current().close()
    two = simulated("V100,V100", stepped=True)
    _ = sessions.current().meter
    two.step(3.0)
    nightly = RecurringJob("two", [512], 512, target=TARGET, seed=1)
    observed: set[tuple[float, float]] = set()

    def both(run: JobRun) -> None:
        done = 0
        while not run.should_stop():
            for _ in TrainingJob("cifar100", 512, machine=two, gpu=(0, 1), seed=done):
                workbench.step()
                observed.add((limit_w(two, 0), limit_w(two, 1)))
            done += 1
            run.report(0.61 if done > 12 else 0.1)

    start_s = two.clock()
    run = nightly.run(both)
    assert all(a == b for a, b in observed)
    assert len(observed) > 2
    true_j = sum(two.true_energy_j(gpu, start_s, two.clock()) for gpu in (0, 1))
    assert run.measurement is not None
    assert run.measurement.energy_j == pytest.approx(true_j, rel=0.01)
    assert nightly.objective.cost(1.0, 0.0) == 0.5 * 250.0 * 2
    assert nightly.study.attempts[0].profile[0][2] > 250.0  # watts of both
    sessions.current().close()


# what was there before


def test_the_earlier_limit_is_restored(machine: Machine, job: Made) -> None:
    session = sessions.current()
    session.set_power_limit(session.devices[0].uuid, 225.0)
    nightly = job()
    observed = set()
    with nightly.recurrence() as run:
        for number in range(4):
            for _ in TrainingJob("cifar100", 1024, machine=machine, seed=number):
                run.step()
                observed.add(limit_w(machine))
            run.report(0.1)
        run.finish(reached=True)
    assert len(observed) > 2
    assert limit_w(machine) == 225.0
    with pytest.raises(KeyError), nightly.recurrence() as run:  # noqa: PT012
        TrainingJob("cifar100", run.batch_size, machine=machine, iterations=30).run()
        raise KeyError("a bug")
    assert limit_w(machine) == 225.0


def test_without_rights_it_reports_and_continues(simulated: Simulated, monkeypatch: pytest.MonkeyPatch, job: Made) -> None:
    sessions.current().close()
    poor = simulated("V100", stepped=True, privileged=False)
    _ = sessions.current().meter
    poor.step(3.0)
    with pytest.warns(RuntimeWarning, match="only the batch size is chosen"):
        nightly = job()
    run = nightly.run(lambda run: train(run, poor))
    assert run.reached
    assert run.power_limit_w is None
    (shown,) = [note for note in nightly.notes if "are not changed" in note]
    assert shown in run.notes
    assert "Tesla V100-PCIE-32GB" in shown
    assert "SYS_ADMIN" in shown
    assert nightly.run(lambda run: train(run, poor)).reached
    sessions.current().close()


# how runs end


def test_an_end_without_report_counts_as_failed(machine: Machine, job: Made) -> None:
    nightly = job(target=None)
    with nightly.recurrence():
        machine.step(5.0)
    (attempt,) = nightly.study.attempts
    assert (attempt.state, attempt.epochs) == ("failed", 1.0)
    with nightly.recurrence() as run:
        machine.step(5.0)
        run.finish(reached=True)
    assert [a.state for a in nightly.study.attempts] == ["failed", "reached"]
    assert {a.recurrence for a in nightly.study.attempts} == {0}  # the second was a retry


@pytest.mark.slow
def test_a_run_that_is_not_worth_going_on_is_stopped(machine: Machine, job: Made) -> None:
    nightly = job(policy="zeus", sizes=(512, 1024))
    nightly.run(lambda run: train(run, machine))
    with nightly.recurrence() as run:
        train(run, machine, need=dict.fromkeys(SIZES, 1000))
    assert run.should_stop()
    assert not run.reached
    assert "cost" in run.stop_reason
    assert nightly.study.attempts[-1].state == "stopped"
    assert run.epochs < 30


def test_an_error_of_the_training_goes_through_and_is_learned(machine: Machine, job: Made) -> None:
    nightly = job()

    def bug(run: JobRun) -> None:
        machine.step(1.0)
        raise ZeroDivisionError("a bug")

    with pytest.raises(ZeroDivisionError):
        nightly.run(bug)
    (attempt,) = nightly.study.attempts
    assert (attempt.state, attempt.oom, attempt.reason) == ("crashed", False, "ZeroDivisionError: a bug")
    with pytest.raises(KeyboardInterrupt), nightly.recurrence():
        raise KeyboardInterrupt
    assert nightly.study.attempts[-1].state == "interrupted"
    assert nightly.next().batch_size == 1024


def test_a_run_whose_energy_could_not_be_read_does_not_count_against_its_batch_size(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, job: Made
) -> None:
    nightly = job(target=None)
    with nightly.recurrence() as run:
        machine.step(5.0)
        run.finish(reached=True)
    monkeypatch.setattr(type(run.measurement), "energy_j", None)
    for batch_size in (512, 512, 512):
        with nightly.recurrence() as run:
            run.attempt = dataclasses.replace(run.attempt, batch_size=batch_size)
            machine.step(5.0)
            run.finish(reached=True)
        assert run.reached
        assert "not be measured" in run.notes[-1]
        assert nightly.study.attempts[-1].state == "interrupted"
    assert nightly.study.barred() == {}


def test_a_database_that_cannot_be_reached_ends_no_training(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, job: Made
) -> None:
    nightly = job(target=None)

    def unreachable(*_: object, **__: object) -> None:
        raise StoreError("the history in postgresql://host/runs cannot be read (connection refused)")

    with nightly.recurrence() as run:
        for down in (False, True, True, False):
            with monkeypatch.context() as patched:
                if down:
                    patched.setattr(nightly.study, "update", unreachable)
                    patched.setattr(nightly.study, "watch", unreachable)
                machine.step(5.0)
                run.report(0.3)
        run.finish(reached=True)
    assert (run.epochs, run.reached) == (4, True)
    assert [note for note in run.notes if "connection refused" in note] == [run.notes[0]]
    assert nightly.study.attempts[-1].epochs == 4


@pytest.mark.slow
def test_a_batch_size_that_does_not_fit_is_tried_once(machine: Machine, job: Made) -> None:
    nightly = job("memory", [512, 1024, 8192], 8192, max_epochs=100)
    runs = [nightly.run(lambda run: train(run, machine)) for _ in range(3)]
    assert [a.batch_size for a in nightly.study.attempts if a.oom] == [8192]
    assert {run.batch_size for run in runs} <= {512, 1024}
    assert nightly.study.barred().keys() == {8192}
    nightly.unblock(8192)
    assert nightly.study.barred() == {}


@pytest.mark.slow
def test_three_failed_runs_end_a_recurrence_and_the_next_begins(machine: Machine, job: Made) -> None:
    nightly = job("fails", [512, 1024], 1024, max_epochs=14)
    nightly.run(lambda run: train(run, machine))
    before = {attempt.recurrence for attempt in nightly.study.attempts}
    astray = dict.fromkeys(EPOCHS, 10_000)
    with pytest.raises(MeasurementError, match="3 runs of 'fails'"):
        nightly.run(lambda run: train(run, machine, need=astray))
    nightly.run(lambda run: train(run, machine))
    runs = [a for a in nightly.study.attempts if a.purpose == "run" and a.recurrence not in before]
    assert [a.state for a in runs].count("reached") == 1
    lost, again = runs[0].recurrence, runs[-1].recurrence
    assert [a.recurrence for a in runs] == [lost] * 3 + [again] * (len(runs) - 3)
    assert lost != again


def test_a_target_that_is_never_reached_ends_in_a_sentence(machine: Machine, job: Made) -> None:
    nightly = job(sizes=(512, 1024), max_epochs=1, target=0.9)
    with pytest.raises(UsageError, match=r"0.9 within 1 epochs"):
        nightly.run(lambda run: train(run, machine))
    with pytest.raises(MeasurementError, match="2 runs of 'few'"):
        job("few", target=0.9, max_epochs=1, retries=2).run(
            lambda run: train(run, machine)
        )


def test_a_killed_job_puts_the_limit_back_and_its_attempt_is_closed(
    simulated: Simulated, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, job: Made
) -> None:
    sessions.current().close()
    shared = simulated("V100", scale=20.0)
    code = """
    import sys, workbench
    from workbench.experiments.job import RecurringJob
    from workbench.simulation.training import TrainingJob
    job = RecurringJob("cifar", [128, 256, 512, 1024], 1024, target=0.6, storage=sys.argv[1], seed=1)
    with job.recurrence() as run:
        for number, batch in enumerate(TrainingJob("cifar100", 1024, iterations=100000)):
            workbench.step()
            if number == 40:
                run.report(0.1)
                print("begun", flush=True)
    """
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "runs.db")],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "begun\n"
    os.kill(child.pid, signal.SIGKILL)
    child.communicate()
    nightly = job(storage=tmp_path / "runs.db")
    (killed,) = nightly.study.attempts
    assert killed.state == "killed"
    assert killed.energy_j > 0
    assert nightly.study.evidence().spent_energy_j == killed.energy_j
    with nightly.recurrence() as run:  # it takes the GPU, whoever restored it
        assert run.attempt.recurrence == 0
        run.finish(reached=True)
    assert limit_w(shared) == 250.0
    sessions.current().close()


# many at a time, other samplers, other objectives


def test_runs_of_two_handles_are_one_history(machine: Machine, job: Made) -> None:
    first, second = job(), job(seed=2)
    with first.recurrence() as one:
        train(one, machine)
        with second.recurrence() as two:  # begun before the other has ended
            assert two.batch_size == 1024
            train(two, machine)
    assert len(first.history()) == len(second.history()) == 2
    assert first.study.evidence().in_flight.sum() == 0


def test_next_claims_what_recurrence_runs(machine: Machine, job: Made) -> None:
    nightly = job()
    configuration = nightly.next()
    assert configuration == nightly.next()
    assert [a.state for a in nightly.study.attempts] == ["running"]
    with nightly.recurrence() as run:
        assert run.batch_size == configuration.batch_size == 1024
        run.finish(reached=True)
    with pytest.raises(UsageError, match="has run already"):
        run.__enter__()


@pytest.mark.slow
def test_optunas_sampler_runs_a_job(machine: Machine, job: Made) -> None:
    import optuna

    nightly = job(policy=optuna.samplers.TPESampler(seed=1, n_startup_trials=2))
    runs = [nightly.run(lambda run: train(run, machine)) for _ in range(4)]
    assert {run.batch_size for run in runs} <= set(SIZES)


@pytest.mark.slow
@pytest.mark.parametrize("objective", [EnergyDelay(1), 0.0])
def test_any_objective_runs_and_rescores_the_history(machine: Machine, objective: object, job: Made) -> None:
    nightly = job(objective=objective, sizes=(512, 1024))
    run = nightly.run(lambda run: train(run, machine))
    attempts = len(nightly.study.attempts)
    costs = []
    for each in (Energy(), Time(), 0.5):
        nightly.objective = each
        costs.append(nightly.history()["cost"][-1])  # of the run; slices came before it
    assert run.measurement is not None
    assert costs == pytest.approx(
        [
            run.measurement.energy_j,
            run.measurement.time_s,
            0.5 * (run.measurement.energy_j or 0) + 125 * run.measurement.time_s,
        ]
    )
    assert len(nightly.study.attempts) == attempts


def test_a_metric_that_falls_reaches_its_target(machine: Machine, job: Made) -> None:
    nightly = job(target=40.0, higher_is_better=False)
    with nightly.recurrence() as run:
        for metric in (120.0, 80.0, 50.0, 39.0):
            machine.step(5.0)
            run.report(metric)
    assert run.reached
    assert nightly.study.attempts[0].metric == 39.0


# bad input, and as CSV


def test_bad_input_is_a_sentence_each(machine: Machine, job: Made) -> None:
    with pytest.raises(UsageError, match="no batch size"):
        RecurringJob("a", [])
    with pytest.raises(UsageError, match="100 is not"):
        RecurringJob("a", [64, 128], 100)
    with pytest.raises(UsageError, match=r"1\.5 .*0 to 1"):
        RecurringJob("a", [64, 128], objective=1.5)
    with pytest.raises(UsageError, match="target of nan"):
        RecurringJob("a", [64, 128], target=math.nan)
    with pytest.raises(UsageError, match=r"400 W .* 100\.\.250 W"):
        RecurringJob("a", [64, 128], power_limits_w=[400.0])
    nightly = job()
    with pytest.raises(UsageError, match="made with"):
        job(sizes=(64, 1024))
    with pytest.raises(UsageError, match="nan"), nightly.recurrence() as run:
        run.report(math.nan)
    assert nightly.study.attempts[-1].state == "crashed"
    with pytest.raises(UsageError, match="objective=-1"):
        nightly.objective = -1


def test_without_a_gpu_only_time_can_be_minimised(tmp_path: Path) -> None:
    with pytest.raises(NoDriver, match="objective=0"):
        RecurringJob("cpu", [64], meter=Meter([]), storage=tmp_path / "runs.db")
    cpu = RecurringJob("cpu", [32, 64], 64, 0, gpus=[], storage=tmp_path / "runs.db", seed=1)
    assert isinstance(cpu.objective, Time)
    with cpu.recurrence() as run:
        run.finish(reached=True)
    (attempt,) = cpu.study.attempts
    assert (attempt.state, attempt.energy_j) == ("reached", 0.0)


def test_a_history_that_cannot_be_written_is_one_sentence(machine: Machine, tmp_path: Path, job: Made) -> None:
    with pytest.raises(StoreError, match="name a file"):
        job().export_csv(tmp_path)  # IsADirectoryError of Polars before


def test_a_storage_may_have_braces_in_its_name(machine: Machine, tmp_path: Path) -> None:
    RecurringJob("one", SIZES, 1024, target=TARGET, storage=tmp_path / "{0.__class__}.db")  # IndexError before
    assert (tmp_path / "{0.__class__}.db").exists()


def test_a_storage_that_is_no_url_is_one_sentence(machine: Machine) -> None:
    with pytest.raises(StoreError, match="no URL"):
        RecurringJob("one", SIZES, 1024, target=TARGET, storage="://")  # ArgumentError of SQLAlchemy before


def test_limits_that_all_gpus_take() -> None:
    assert default_limits_w([]) == ()
    assert default_limits_w([(100.0, 130.0)]) == (105.0, 130.0)
    assert default_limits_w([(100.0, 150.0), (200.0, 300.0)]) == ()
