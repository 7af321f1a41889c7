"""The memory counter of a simulated GPU, and its agreement with the time of the same phase."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks.fixtures.bulk import plans
from workbench.device.discovery import open_device
from workbench.simulation import activity
from workbench.simulation.catalogue import CARDS
from workbench.simulation.machine import Machine
from workbench.simulation.physics import Load, operate
from workbench.simulation.training import TrainingJob

CARD = CARDS["H100"]


def share(load: Load | None, **knobs: int) -> float:
    return activity.unpack(activity.packed(CARD, load, operate(CARD, load, power_limit_w=700.0, **knobs)))


def test_memory_bound_work_fills_the_memory_and_a_waiting_gpu_does_not() -> None:
    assert share(None) == 0.0
    assert share(Load(0.05, 0.95, 400.0)) > 5 * share(Load(0.95, 0.05, 400.0)) > 0.0


def test_at_half_the_clock_the_memory_is_less_busy() -> None:
    mixed = Load(0.5, 0.5, 200.0)
    assert share(mixed, max_sm_clock_mhz=990) < 0.75 * share(mixed)


@pytest.mark.parametrize("exact", [0.0, 0.123, 0.999, 1.0, 1.7])
def test_packing_loses_less_than_half_a_percent(exact: float) -> None:
    assert activity.unpack(activity.pack(exact) | 0x4) == pytest.approx(min(exact, 1.0), abs=0.5 / 127 + 1e-9)


def test_an_iterations_counter_is_the_mean_of_its_phases(simulated: Callable[..., Machine]) -> None:
    machine = simulated("H100", stepped=True)
    device = open_device()
    first = device.counters()
    job = TrainingJob("imagenet", iterations=20, machine=machine, evaluate=False)
    (plan,), _ = plans(job, machine.clock())
    job.run()
    found = device.counted(first, device.counters())
    expected = sum(row[0] * activity.unpack(row[6]) for row in plan) / sum(row[0] for row in plan)
    assert found == {"dram_active": pytest.approx(expected, rel=0.03)}  # iterations vary


def test_older_cards_carry_no_counters(simulated: Callable[..., Machine]) -> None:
    machine = simulated("A100", stepped=True)
    job = TrainingJob("imagenet", iterations=1, machine=machine, evaluate=False)
    (plan,), _ = plans(job, machine.clock())
    assert [row[-1] for row in plan if row[-1] > activity.REASONS] == []
