"""The moment when a setting takes effect, on cards whose drivers follow immediately or after seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from workbench.device.lease import Lease
from workbench.measurement import session as sessions
from workbench.records import Setting
from workbench.simulation.machine import Machine
from workbench.simulation.training import TrainingJob
from workbench.tuning.arrival import LONGEST_S, Arrival

Simulated = Callable[..., Machine]
LOWER = [Setting(power_limit_w=200.0), Setting(sm_clock_mhz=1005), Setting(sm_clock_mhz=1200)]


@pytest.fixture(autouse=True)
def own_session(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    sessions.current().close()
    yield
    sessions.current().close()


def arrivals(machine: Machine, settings: list[Setting]) -> Iterator[tuple[float, float]]:
    """For each setting, one after the other, when it was found to have arrived and when it had."""
    meter = sessions.current().meter
    assert meter.recorder is not None
    arrival, before = Arrival(meter.devices, meter.recorder), Setting()
    job = iter(TrainingJob("squad", 32, machine=machine, iterations=10**9))
    with Lease(meter.devices) as lease:
        for wanted in settings:
            until_s = machine.clock() + 3.0
            while machine.clock() < until_s:
                next(job)
            lease.put(wanted)
            arrival.begin(before, wanted, machine.clock())
            true_s, found_s = machine.state.control(0, "effective_from_s"), None
            while found_s is None:
                next(job)
                found_s = arrival.at_s(machine.clock())
            yield found_s, true_s
            before = wanted
    job.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("card", ["A100", "A100,late", "V100,late"])
def test_a_trial_begins_when_its_setting_is_active(simulated: Simulated, card: str) -> None:
    machine = simulated(card, stepped=True)
    settings = [each for one in LOWER for each in (one, Setting())]
    if card.startswith("V100"):
        settings = [Setting(power_limit_w=150.0), Setting(), Setting(power_limit_w=120.0)]
    for found_s, true_s in arrivals(machine, settings):
        assert -0.3 < found_s - true_s < 0.8  # never by a constant


def test_what_does_not_show_counts_as_arrived_after_a_time_out(simulated: Simulated) -> None:
    machine = simulated("A100", stepped=True)
    job = iter(TrainingJob("squad", 32, machine=machine, iterations=10**9))
    meter = sessions.current().meter
    assert meter.recorder is not None
    while machine.clock() < 3.0:
        next(job)
    arrival = Arrival(meter.devices, meter.recorder)
    # nothing is changed, and so nothing will be seen of it
    arrival.begin(Setting(), Setting(sm_clock_mhz=600), machine.clock())
    begun_s = machine.clock()
    while arrival.at_s(machine.clock()) is None:
        assert machine.clock() < begun_s + LONGEST_S + 0.5
        next(job)
    assert machine.clock() >= begun_s + LONGEST_S - 0.5
    job.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("card", ["A100", "A100,late"])
def test_a_setting_changed_again_before_it_arrived_is_not_taken_for_there(
    simulated: Simulated, card: str
) -> None:
    machine = simulated(card, stepped=True)
    meter = sessions.current().meter
    assert meter.recorder is not None
    arrival, before = Arrival(meter.devices, meter.recorder), Setting()
    job = iter(TrainingJob("squad", 32, machine=machine, iterations=10**9))
    with Lease(meter.devices) as lease:
        for wanted, wait_s in (
            (Setting(power_limit_w=150.0), 6.0),
            (Setting(sm_clock_mhz=1335), 0.4),
            (Setting(sm_clock_mhz=1380), 0.0),
        ):
            until_s = machine.clock() + 3.0 * (before == Setting())
            while machine.clock() < until_s:
                next(job)
            lease.put(wanted)
            arrival.begin(before, wanted, machine.clock())
            before, until_s = wanted, machine.clock() + wait_s
            while machine.clock() < until_s:
                next(job)
                arrival.at_s(machine.clock())
        true_s = machine.state.control(0, "effective_from_s")
        while (found_s := arrival.at_s(machine.clock())) is None:
            next(job)
    job.close()  # type: ignore[attr-defined]
    assert -0.3 < found_s - true_s < LONGEST_S + 0.5
