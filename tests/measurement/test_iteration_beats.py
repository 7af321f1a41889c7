"""A beat of a fast job with a slow sensor is found out after the cell, by the energy counter that misses
nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from workbench.device.discovery import open_device
from workbench.measurement.iterations import detect
from workbench.measurement.recorder import Recorder
from workbench.periods.detect import find_periods
from workbench.simulation.machine import Machine


def blinking(simulated: Callable[..., Machine], seconds: float) -> Recorder:
    """Forty seconds of a load that is on for half of each period, on an A100: 25 ms seen of every 100."""
    machine = simulated("A100", stepped=True)
    machine.step(0.5)
    recorder = Recorder([open_device()])
    at_s = machine.clock()
    for _ in range(8):
        plan = [
            (seconds / 2, 280.0, 1400, 877, 1.0, 0.5, 0),
            (seconds / 2, 140.0, 1400, 877, 1.0, 0.5, 0),
        ] * round(5 / seconds)
        machine.state.publish(0, at_s, plan, (140.0, 1400, 877, 1.0, 0.5, 0))
        at_s += sum(part[0] for part in plan)
        machine.step(at_s - machine.clock())
    return recorder


@pytest.mark.parametrize(("seconds", "reported"), [(0.104, "aliasing suspected"), (3.5, "")])
def test_the_counter_distinguishes_a_beat_from_a_period(
    simulated: Callable[..., Machine], seconds: float, reported: str
) -> None:
    recorder = blinking(simulated, seconds)
    trace = recorder.trace(recorder.devices[0].uuid, 2.0, 40.0)
    alone = find_periods(trace.select("time_s", "power_w"))
    assert alone.iteration is not None
    assert alone.iteration.period_s == pytest.approx(3.5, rel=0.05)  # both look the same in the readings
    found = detect(trace)
    recorder.stop()
    assert found.reason.startswith(reported)
    assert found.main_sure == (reported == "")
