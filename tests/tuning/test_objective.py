"""The tuner minimises the published formula of the objective that was asked for."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import polars as pl
import pytest

import workbench
from workbench.errors import UsageError
from workbench.measurement import session as sessions
from workbench.search.objective import EnergyDelay, Objective, ZeusCost, resolve_objective
from workbench.simulation.machine import Machine
from workbench.simulation.training import TrainingJob
from workbench.tuning.options import objective_name
from workbench.tuning.results import OBJECTIVES
from workbench.tuning.state_machine import Tuner, running

Simulated = Callable[..., Machine]
LIMIT_W = 250.0
TIME_S, ENERGY_J = 3.0, 400.0
# Horowitz et al. (1994) for EDP and ED2P; Zeus (NSDI'23), equations 2 and 3: energy summed over the GPUs,
# time priced at the highest power limit of all of them.
PUBLISHED: dict[str, Callable[[int], float]] = {
    "energy": lambda gpus: ENERGY_J,
    "time": lambda gpus: TIME_S,
    "edp": lambda gpus: ENERGY_J * TIME_S,
    "ed2p": lambda gpus: ENERGY_J * TIME_S**2,
    "zeus": lambda gpus: 0.5 * ENERGY_J + 0.5 * gpus * LIMIT_W * TIME_S,
}


@pytest.fixture
def stepped(simulated: Simulated, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Simulated]:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # locks of other runs have the same UUIDs

    def make(card: str) -> Machine:
        sessions.current().close()
        machine = simulated(card, stepped=True)
        _ = sessions.current().meter
        machine.step(3.0)
        return machine

    yield make
    for each in list(running()):
        each.end()
    sessions.current().close()


def train(machine: Machine, tuner: Tuner, iterations: int, until: Callable[[], bool]) -> None:
    """Train while the tuner advances; stop where `until` is true."""

    def advance(_target_s: float) -> None:
        tuner.advance()

    machine.clock.on_step.append(advance)
    try:
        job = TrainingJob("imagenet", 256, machine=machine, iterations=iterations, evaluate=False, seed=1)
        for _ in job:
            workbench.step()
            if until():
                break
    finally:
        machine.clock.on_step.remove(advance)


def test_every_name_has_a_published_formula() -> None:
    assert set(PUBLISHED) == set(OBJECTIVES)


@pytest.mark.parametrize("gpus", [1, 2])
def test_the_tuner_asks_its_search_for_the_published_formula(stepped: Simulated, gpus: int) -> None:
    machine = stepped(",".join(["V100"] * gpus))
    busy = lambda recorder, devices, now_s: tuple(devices)  # noqa: E731
    asked: list[str | Objective] = [*PUBLISHED, ZeusCost(0.5, LIMIT_W)]
    tuner = Tuner(sessions.current().meter, objective="energy", max_slowdown=None, over="power", model=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("workbench.tuning.phases.busy_gpus", busy)
        train(machine, tuner, 300, lambda: tuner.phase.job is not None)
    for objective in asked:
        tuner.change(objective=objective)
        job = tuner.phase.job
        assert job is not None
        assert len(job.gpus.devices) == gpus
        name = objective_name(objective) if isinstance(objective, str) else "zeus"
        published = PUBLISHED[name](gpus)
        for used in (job.work.objective, job.method.objective):
            assert float(used.cost(TIME_S, ENERGY_J)) == pytest.approx(published), objective
    tuner.end()


def test_zeus_chooses_the_measured_limit_of_the_least_cost(stepped: Simulated) -> None:
    machine = stepped("V100")
    tuner = Tuner(sessions.current().meter, objective="zeus", max_slowdown=None, over="power", model=False)

    def holds() -> bool:
        return tuner.state == "hold" and tuner.result.trials > 3

    train(machine, tuner, 600, holds)
    assert holds(), tuner.log.events
    trials = tuner.view().trials.filter(pl.col("outcome") == "kept")
    cost = (0.5 * trials["energy_j"] + 0.5 * LIMIT_W * trials["time_s"]) / trials["iterations"]
    held_w = tuner.view().current.power_limit_w
    assert held_w is not None
    assert held_w < LIMIT_W
    nearest = (trials["power_limit_w"] - held_w).abs().arg_min()
    assert nearest is not None
    assert cost[nearest] <= 1.02 * cost.min()  # type: ignore[operator]  # one trial is good to one per cent
    assert trials["time_ratio"][nearest] < 1.2
    tuner.end()


def test_zeus_cost_needs_the_highest_power_limit() -> None:
    assert resolve_objective(EnergyDelay(3), None, 2) == EnergyDelay(3)
    assert resolve_objective(ZeusCost(0.3, 300.0), None, 2) == ZeusCost(0.3, 300.0, gpus=2)
    with pytest.raises(UsageError, match="max_power_w="):
        resolve_objective("zeus", None, 1)
