"""A job that does not report its steps is tuned by a period in the power readings, but not by an alias."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from workbench.measurement import session as sessions
from workbench.records import Setting
from workbench.simulation import catalogue
from workbench.simulation.catalogue import Workload, WorkloadPhase
from workbench.simulation.machine import Machine
from workbench.simulation.physics import Load
from workbench.simulation.training import TrainingJob
from workbench.tuning.blocks import BlockMeter
from workbench.tuning.state_machine import Tuner, running


@pytest.fixture
def simulated() -> Iterator[Callable[[str], Machine]]:
    from workbench.simulation import machine

    machines = []

    def begin(card: str) -> Machine:
        sessions.current().close()
        machines.append(machine.simulate(card, stepped=True, seed=5))
        return machines[-1]

    yield begin
    for tuner in running():
        tuner.end()
    sessions.current().close()
    for each in machines:
        each.close()


def training(card: str, seconds: float, wait: float) -> Workload:
    """Iterations that keep the GPU busy at two power levels, and then wait for the host."""
    power_w = 0.7 * (catalogue.card(card).power_limit_w[1] - catalogue.card(card).idle_w)
    busy = [
        catalogue.busy("forward", "forward", 0.5 * (1 - wait) * seconds, Load(0.8, 0.12, share * power_w))
        for share in (0.85, 1.15)
    ]
    phases = (*busy, WorkloadPhase("data", "data", wait * seconds, None, 0.0, 0.0))
    return replace(catalogue.WORKLOADS["imagenet"], key="own", phases=phases, card=card)


def tuned(machine: Machine, work: Workload, count: int, variation: float = 0.01) -> tuple[Tuner, float]:
    """A tuner at work on a training that does not report its steps, and the true slowdown with it."""
    def lasts_s() -> float:
        begun_s = machine.clock()
        TrainingJob(
            work, 1, machine=machine, iterations=count, evaluate=False, grain_s=0.1, variation=variation, seed=3
        ).run()
        return machine.clock() - begun_s

    meter = sessions.current().meter
    plain_s = lasts_s()
    machine.step(3.0)
    tuner, last_s = Tuner(meter, model=False, warm_start=False), -math.inf

    def advance(_: float) -> None:
        nonlocal last_s
        if machine.clock() >= last_s + tuner.pace_s:
            last_s = machine.clock()
            tuner.advance()

    machine.clock.on_step.append(advance)
    slowdown = lasts_s() / plain_s - 1
    machine.clock.on_step.remove(advance)
    assert not tuner.refused
    return tuner, slowdown


def assert_clocks_keep_the_limit(tuner: Tuner, slowdown: float) -> None:
    device = sessions.current().devices[0]
    assert tuner.result.source == "clocks", tuner.log.events
    assert slowdown < 0.05
    assert any("workbench.step()" in note for note in tuner.end().notes)
    assert device.setting() == Setting(power_limit_w=device.limits.default_power_limit_w)


@pytest.mark.parametrize(
    ("card", "seconds", "wait"), [("A40", 0.16, 0.2), pytest.param("V100", 0.031, 0.05, marks=pytest.mark.slow)]
)
def test_a_period_near_the_refresh_of_the_sensor_is_not_used(
    simulated: Callable[[str], Machine], card: str, seconds: float, wait: float
) -> None:
    """The readings show 0.267 s and 0.056 s, which become shorter where the clock falls."""
    machine = simulated(card)
    assert_clocks_keep_the_limit(*tuned(machine, training(card, seconds, wait), int(90 / seconds)))


@pytest.mark.slow
def test_a_long_alias_does_not_follow_the_clock(
    simulated: Callable[[str], Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sensor that refreshes every 20 ms shows iterations of 19.66 ms as a period of 1.16 s or more."""
    monkeypatch.setattr("workbench.simulation.training.GAP_JITTER", 0.001)
    tuner, slowdown = tuned(simulated("P100"), training("P100", 0.01966, 0.1), 6000, variation=0.001)
    assert any(" takes " in words or "a period of" in words for _, words in tuner.log.events), tuner.log.events
    assert tuner.result.source == "clocks", tuner.log.events
    assert slowdown < 0.05
    tuner.end()


def test_blocks_that_show_no_iteration_now_and_then_cost_themselves_only(
    simulated: Callable[[str], Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    advance, meters = BlockMeter.advance, []

    def third_and_fourth_fail(meter: BlockMeter, now_s: float, *, idle: bool = False) -> None:
        if meter not in meters:
            meters.append(meter)
        if meter in meters[4:6]:
            meter.failed = "no iteration is seen"
        else:
            advance(meter, now_s, idle=idle)

    monkeypatch.setattr(BlockMeter, "advance", third_and_fourth_fail)
    tuner, slowdown = tuned(simulated("A40"), training("A40", 1.5, 0.3), 100)
    assert len(meters) > 8, tuner.log.events
    assert tuner.result.source == "power", tuner.log.events
    assert slowdown < 0.05
    tuner.end()
