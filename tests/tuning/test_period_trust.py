"""A job that does not report its steps is tuned by a period in the power readings, but not by an alias."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from workbench.experiments.probe import Probe, Reading
from workbench.measurement import session as sessions
from workbench.records import Setting
from workbench.simulation import catalogue
from workbench.simulation.catalogue import Workload, WorkloadPhase
from workbench.simulation.machine import Machine
from workbench.simulation.physics import Load
from workbench.simulation.training import TrainingJob
from workbench.tuning.state_machine import Tuner
from workbench.tuning.tuned_job import PeriodTest

DEFAULT = (1740.0, 7251.0)


@pytest.fixture
def simulated() -> Iterator[Callable[[str], Machine]]:
    from workbench.simulation import machine

    machines = []

    def begin(card: str) -> Machine:
        sessions.current().close()
        machines.append(machine.simulate(card, stepped=True, seed=5))
        return machines[-1]

    yield begin
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


def tuned(machine: Machine, work: Workload, lasts_s: float, variation: float = 0.01) -> Tuner:
    """A tuner at work on a training that does not report its steps."""
    tuner = Tuner(sessions.current().meter, model=False, warm_start=False)
    last_s = -math.inf

    def advance(_: float) -> None:
        nonlocal last_s
        if machine.clock() >= last_s + tuner.pace_s:
            last_s = machine.clock()
            tuner.advance()

    machine.clock.on_step.append(advance)
    begun_s = machine.clock()
    for _ in TrainingJob(
        work, 1, machine=machine, iterations=10**6, evaluate=False, grain_s=0.1, variation=variation
    ):
        if tuner.ended or machine.clock() > begun_s + lasts_s:
            break
    machine.clock.on_step.remove(advance)
    return tuner


def assert_refused_at_the_default(tuner: Tuner) -> None:
    device = sessions.current().devices[0]
    assert tuner.state == "refused", tuner.log.events
    assert "cannot be trusted" in tuner.refused
    assert "workbench.step()" in tuner.refused
    assert tuner.result.saved is None
    assert device.setting() == Setting(power_limit_w=device.limits.default_power_limit_w)


@pytest.mark.parametrize(("card", "seconds", "wait"), [("A40", 0.16, 0.2), ("V100", 0.031, 0.05)])
def test_a_period_near_the_refresh_of_the_sensor_is_not_used(
    simulated: Callable[[str], Machine], card: str, seconds: float, wait: float
) -> None:
    """The readings show 0.267 s and 0.056 s, which become shorter where the clock falls."""
    assert_refused_at_the_default(tuned(simulated(card), training(card, seconds, wait), 60.0))


def test_a_long_alias_does_not_follow_the_clock(
    simulated: Callable[[str], Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sensor that refreshes every 20 ms shows iterations of 19.66 ms as a period of 1.16 s."""
    monkeypatch.setattr("workbench.simulation.training.GAP_JITTER", 0.001)
    tuner = tuned(simulated("P100"), training("P100", 0.01966, 0.1), 120.0, variation=0.001)
    assert any("takes 1.1" in words or "of 1.1" in words for _, words in tuner.log.events), tuner.log.events
    assert_refused_at_the_default(tuner)


def test_a_period_that_was_seen_at_lower_clocks_is_trusted_when_later_probes_fail(
    simulated: Callable[[str], Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    advance, probes = Probe.advance, []

    def third_and_fourth_fail(probe: Probe, now_s: float) -> None:
        if probe.kind == "probe" and probe not in probes:
            probes.append(probe)
        if probe in probes[2:4]:
            probe.failed = "no iteration is seen"
        else:
            advance(probe, now_s)

    monkeypatch.setattr(Probe, "advance", third_and_fourth_fail)
    tuner = tuned(simulated("A40"), training("A40", 1.5, 0.3), 100.0)
    assert len(probes) > 4, tuner.log.events
    assert not tuner.refused


def period_test() -> tuple[PeriodTest, Callable[..., str]]:
    """A test of a period, and how to give it a reading at some clocks."""
    clocks: dict[Reading, tuple[float, float]] = {}
    gpus: Any = SimpleNamespace(clocks_mhz=clocks.__getitem__)
    test = PeriodTest(gpus, traced=True)

    def read(seconds: float, sm_mhz: float = DEFAULT[0], mem_mhz: float = DEFAULT[1]) -> str:
        reading = Reading(Setting(), 10, 10 * seconds, 100.0, 1.0, 0.002 * seconds, len(clocks), 0.0)
        clocks[reading] = (sm_mhz, mem_mhz)
        return test.wrong(reading)

    assert read(1.0) == ""
    return test, read


@pytest.mark.parametrize("seconds", [1.0, 1.03, 1.09])
def test_times_that_the_clocks_allow_are_right(seconds: float) -> None:
    _, read = period_test()
    assert read(seconds, 1600.0) == ""


@pytest.mark.parametrize("seconds", [0.93, 1.15])
def test_times_that_the_clocks_do_not_allow_are_wrong(seconds: float) -> None:
    _, read = period_test()
    assert read(seconds, 1600.0).count(f"{seconds:.3f} times")


def test_a_time_is_also_compared_with_those_at_other_lower_clocks() -> None:
    """Half of a period that doubled is as long as the period was, and shorter than at the clock in between."""
    _, read = period_test()
    assert read(1.12, 1500.0) == ""
    assert "times as long" in read(1.005, 870.0)


def test_a_lower_memory_clock_allows_more() -> None:
    _, read = period_test()
    assert read(1.3, 1740.0, 5001.0) == ""
    assert "times as long" in read(1.9, 1740.0, 5001.0)
