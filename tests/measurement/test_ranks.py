"""Ranks of one node: each measures its own GPU, and all of them when asked."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from workbench.device.selection import local_rank
from workbench.measurement.session import Session
from workbench.simulation.machine import Machine


@pytest.mark.parametrize(
    ("environment", "rank"),
    [
        ({}, None),
        ({"LOCAL_RANK": "0"}, None),
        ({"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}, 1),
        ({"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}, None),
        ({"SLURM_LOCALID": "2", "SLURM_STEP_TASKS_PER_NODE": "4(x2)", "SLURM_NTASKS": "8"}, 2),
        ({"SLURM_LOCALID": "0", "SLURM_STEP_TASKS_PER_NODE": "1(x4)", "SLURM_NTASKS": "4"}, None),
        ({"SLURM_LOCALID": "0", "SLURM_STEP_TASKS_PER_NODE": "2,1"}, None),
        ({"SLURM_LOCALID": "0", "SLURM_NTASKS": "8"}, None),  # the script of a batch job
        ({"OMPI_COMM_WORLD_LOCAL_RANK": "3", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, 3),
        ({"LOCAL_RANK": "x", "LOCAL_WORLD_SIZE": "4"}, None),
    ],
)
def test_a_rank_is_told_by_whoever_started_it(environment: dict[str, str], rank: int | None) -> None:
    assert local_rank(environment) == rank


@pytest.fixture
def third_of_four(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "2")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")


def test_ranks_measure_their_own_gpu_and_together_each_once(
    simulated: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = simulated("A100,A100,V100,V100", stepped=True)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    measured = []
    for rank in range(4):
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        session = Session(sync=False)
        measured += [device.uuid for device in session.devices]
        assert [each for each in session.messages if "rank" in each] == [
            f"rank {rank} of this node measures GPU {rank}; gpus=... measures others too"
        ]
        session.close()
    assert measured == [machine.state.card(gpu, "uuid") for gpu in range(4)]


@pytest.mark.usefixtures("third_of_four")
def test_a_rank_measures_other_gpus_when_they_are_named(simulated: Callable[..., Machine]) -> None:
    simulated("A100,A100,V100,V100", stepped=True)
    session = Session(sync=False)
    assert len(session.devices) == 1
    assert len(session.meter_of([0, 3]).devices) == 2
    assert len(session.meter.devices) == 4
    session.close()


@pytest.mark.usefixtures("third_of_four")
@pytest.mark.parametrize("cards", ["A100", "A100,A100"])
def test_a_rank_that_sees_fewer_gpus_than_there_are_ranks_measures_what_it_sees(
    simulated: Callable[..., Machine], cards: str
) -> None:
    simulated(cards, stepped=True)
    session = Session(sync=False)
    assert len(session.devices) == len(cards.split(","))
    session.close()
