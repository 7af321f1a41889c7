"""The tuner minimises the published formula of the objective that was asked for."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import workbench
from workbench.errors import UsageError
from workbench.measurement import session as sessions
from workbench.records import Setting
from workbench.search.clocks import make
from workbench.search.clocks.make import ClockSearch, make_search
from workbench.search.earlier import EarlierCurve
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
        for used in (job.work.objective, job.belief.objective, job.belief.search.objective):
            assert float(used.cost(TIME_S, ENERGY_J)) == pytest.approx(published), objective
    tuner.end()


def test_zeus_chooses_the_measured_limit_of_the_least_cost(stepped: Simulated) -> None:
    machine = stepped("V100")
    tuner = Tuner(sessions.current().meter, objective="zeus", max_slowdown=None, over="power", model=False)

    def holds() -> bool:
        job = tuner.phase.job
        return tuner.state == "watch" and job is not None and job.chosen in job.belief.measured()

    train(machine, tuner, 600, holds)
    assert holds()
    assert tuner.phase.job is not None
    measured = tuner.phase.job.belief.measured()
    cost = {each: 0.5 * energy_j + 0.5 * LIMIT_W * time_s for each, (time_s, energy_j) in measured.items()}
    held = tuner.phase.job.chosen
    assert held != Setting()
    assert cost[held] <= 1.01 * min(cost.values())  # one trial is good to half a per cent
    assert measured[held][0] < 1.2 * measured[Setting()][0]
    tuner.end()


def test_a_search_that_only_keeps_the_protocol_tunes_a_job(
    stepped: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Minimal:
        """A search with the attributes of the protocol, and no others."""

        def __init__(self, *args: Any, **options: Any) -> None:
            self.__dict__["inner"] = make_search(*args, **options)

        def __getattr__(self, name: str) -> Any:
            if name not in {*ClockSearch.__annotations__, *vars(ClockSearch)}:
                raise AttributeError(name)
            return getattr(self.inner, name)

    monkeypatch.setattr(make, "make_search", Minimal)
    curve = EarlierCurve({Setting(): (1.0, 100.0), Setting(power_limit_w=200.0): (1.03, 90.0)})
    machine = stepped("V100")
    tuner = Tuner(sessions.current().meter, over="power", model=False, warm_start=True)
    monkeypatch.setattr("workbench.tuning.phases.known_runs", lambda *_, **__: [curve])
    train(machine, tuner, 600, lambda: tuner.state == "watch")
    assert tuner.state == "watch", tuner.refused
    tuner.end()


def test_zeus_cost_needs_the_highest_power_limit() -> None:
    assert resolve_objective(EnergyDelay(3), None, 2) == EnergyDelay(3)
    assert resolve_objective(ZeusCost(0.3, 300.0), None, 2) == ZeusCost(0.3, 300.0, gpus=2)
    with pytest.raises(UsageError, match="max_power_w="):
        resolve_objective("zeus", None, 1)
