"""A recurring job over two ranks has one batch size, one history, and the energy of both GPUs once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from workbench.errors import UsageError
from workbench.experiments import job as jobs
from workbench.experiments.job import RecurringJob
from workbench.experiments.ranks import gpus_of_ranks
from workbench.measurement import session as sessions
from workbench.simulation.machine import Machine
from workbench.simulation.training import TrainingJob

Simulated = Callable[..., Machine]
TARGET = 0.6


class Together:
    """Two ranks in two threads of this process; `share` is a meeting."""

    def __init__(self) -> None:
        self.meeting, self.values = threading.Barrier(2, timeout=30), [None]
        self.of = threading.local()

    def rank(self, number: int) -> Rank:
        return Rank(self, number)


class Rank:
    size = 2

    def __init__(self, together: Together, rank: int) -> None:
        self.together, self.rank = together, rank

    def share(self, value: Any) -> Any:
        if self.rank == 0:
            self.together.values[0] = value
        self.together.meeting.wait()
        found = self.together.values[0]
        self.together.meeting.wait()
        return found


@pytest.fixture
def machine(simulated: Simulated, monkeypatch: pytest.MonkeyPatch) -> Any:
    sessions.current().close()
    made = simulated("V100,V100", stepped=True)
    _ = sessions.current().meter
    made.step(3.0)
    yield made
    sessions.current().close()


def test_both_ranks_run_at_one_batch_size_and_the_history_has_each_attempt_once(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    together = Together()
    monkeypatch.setattr(jobs, "current_ranks", lambda: getattr(together.of, "rank", None))
    observed: dict[int, list[tuple[str, int, bool]]] = {0: [], 1: []}
    made: dict[int, RecurringJob] = {}
    spent: list[float] = []

    def rank(number: int) -> None:
        together.of.rank = together.rank(number)
        made[number] = job = RecurringJob(
            "two", [1024, 2048], 2048, target=TARGET, seed=1, max_epochs=30, storage=tmp_path / f"{number}.db"
        )
        for _ in range(2):
            for run in job.attempts():
                with run:
                    done = 0
                    while not run.should_stop():
                        if number == 0:  # both GPUs of the one machine work while this thread steps it
                            start_s = machine.clock()
                            for _ in TrainingJob("cifar100", run.batch_size, machine=machine, gpu=(0, 1)):
                                run.step()
                            spent.append(
                                sum(machine.true_energy_j(gpu, start_s, machine.clock()) for gpu in (0, 1))
                            )
                        done += 1
                        run.report(0.61 if done > 2 else 0.1)
                observed[number].append((run.purpose, run.batch_size, run.reached))

    other = threading.Thread(target=rank, args=(1,), daemon=True)
    other.start()
    rank(0)
    other.join(30)
    assert observed[0] == observed[1]
    assert [reached for _, _, reached in observed[0]].count(True) == 2
    history = made[0].study.attempts
    assert len(history) == len(observed[0])
    assert made[1].study.attempts == []
    booked_j = sum(a.energy_j + a.profile_energy_j for a in history)
    assert booked_j == pytest.approx(sum(spent), rel=0.02)


def test_a_failure_of_the_first_rank_is_an_error_on_the_others_too(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    together = Together()
    monkeypatch.setattr(jobs, "current_ranks", lambda: getattr(together.of, "rank", None))
    errors: dict[int, str] = {}

    def rank(number: int) -> None:
        together.of.rank = together.rank(number)
        job = RecurringJob("two", [256], 256, retries=1, max_epochs=2, storage=tmp_path / f"{number}.db")
        try:
            for run in job.attempts():
                with run:
                    if number == 0:
                        machine.step(5.0)
                    run.report(0.1)
                    run.report(0.1)
        except Exception as error:
            errors[number] = str(error)

    other = threading.Thread(target=rank, args=(1,), daemon=True)
    other.start()
    rank(0)
    other.join(30)
    assert errors[0] == errors[1]
    assert "their target" in errors[0]


def test_a_rank_that_is_not_connected_is_refused(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match="init_process_group"):
        RecurringJob("two", [256], 256, storage=tmp_path / "runs.db")
    own = RecurringJob("own", [256], 256, storage=tmp_path / "runs.db", gpus=[1])
    assert len(own.meter.devices) == 1
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert RecurringJob("one", [256], 256, storage=tmp_path / "runs.db").space.batch_sizes == (256,)


def test_a_gpu_that_is_named_twice_is_measured_once(machine: Machine, tmp_path: Path) -> None:
    job = RecurringJob("twice", [256], 256, storage=tmp_path / "runs.db", gpus=[0, 0])
    assert len(job.meter.devices) == 1


def test_a_batch_size_is_that_of_the_whole_job(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Together().rank(0)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert gpus_of_ranks(ranks, (256, 512)) == [0, 1]
    with pytest.raises(UsageError, match=r"255 .* 2 ranks"):
        gpus_of_ranks(ranks, (255, 512))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    with pytest.raises(UsageError, match="on other nodes"):
        gpus_of_ranks(ranks, (256,))
