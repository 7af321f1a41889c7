"""What the performance counters of a simulated GPU count, and that it agrees with the time and power of
the same phase.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks.fixtures.bulk import plans
from workbench.device.discovery import open_device
from workbench.simulation import activity, counters
from workbench.simulation.catalogue import CARDS
from workbench.simulation.machine import Machine
from workbench.simulation.physics import Load, operate
from workbench.simulation.training import TrainingJob

CARD = CARDS["H100"]


def seen(load: Load | None, mix: activity.KernelMix | None = None, **knobs: int) -> counters.Activity:
    point = operate(CARD, load, power_limit_w=700.0, **knobs)
    return activity.activity(CARD, mix or activity.KernelMix(tensor=0.5, fp32=0.2), load, point)


def test_a_waiting_gpu_does_nothing_but_receive() -> None:
    assert seen(None) == counters.Activity(pcie_rx_mib_per_s=256.0)


def test_compute_bound_work_fills_the_pipes_and_memory_bound_work_the_memory() -> None:
    computing, moving = seen(Load(0.95, 0.05, 400.0)), seen(Load(0.05, 0.95, 400.0))
    assert computing.tensor_active > 10 * moving.tensor_active
    assert moving.dram_active > 5 * computing.dram_active
    assert computing.sm_active == moving.sm_active == pytest.approx(1.0)
    assert seen(Load(0.2, 0.2, 400.0)).sm_active < 0.65  # what no clock bounds leaves multiprocessors empty


def test_at_half_the_clock_a_pipe_is_as_busy_in_compute_bound_work_and_the_memory_half_as_much() -> None:
    load = Load(1.0, 0.0, 200.0)
    fast, slow = seen(load), seen(load, max_sm_clock_mhz=990)
    assert slow.tensor_active == pytest.approx(fast.tensor_active)  # cycles are counted
    mixed = Load(0.5, 0.5, 200.0)
    assert seen(mixed, max_sm_clock_mhz=990).dram_active < 0.75 * seen(mixed).dram_active


def test_a_hungrier_load_has_busier_pipes() -> None:
    assert seen(Load(0.7, 0.3, 500.0)).fp32_active > 1.3 * seen(Load(0.7, 0.3, 150.0)).fp32_active


@pytest.mark.parametrize("load", [Load(0.6, 0.3, 300.0), Load(1.0, 0.0, 900.0), None])
def test_packing_loses_less_than_half_a_percent(load: Load | None) -> None:
    exact = seen(load)
    back = counters.unpack(counters.pack(exact) | 0x4)
    assert back[:7] == pytest.approx(exact[:7], abs=0.5 / 127 + 1e-9)
    assert back.pcie_rx_mib_per_s == exact.pcie_rx_mib_per_s


def test_an_iterations_counters_are_the_means_of_its_phases(simulated: Callable[..., Machine]) -> None:
    machine = simulated("H100", stepped=True)
    device = open_device()
    first = device.counters()
    start_s = machine.clock()
    job = TrainingJob("imagenet", iterations=20, machine=machine, evaluate=False)
    (plan,), _ = plans(job, start_s)
    job.run()
    found = device.counted(first, device.counters())
    _, expected = counters.mean(
        [(span_s, busy, bits) for span_s, _, _, _, busy, _, bits in plan], sum(row[0] for row in plan)
    )
    # Iterations vary by a percent, and gaps by fifteen.
    for name in ("sm_active", "sm_occupancy", "tensor_active", "fp32_active", "dram_active"):
        assert found[name] == pytest.approx(getattr(expected, name), rel=0.03)
    assert found["fp64_active"] == 0.0


def test_older_cards_carry_no_counters(simulated: Callable[..., Machine]) -> None:
    machine = simulated("A100", stepped=True)
    job = TrainingJob("imagenet", iterations=1, machine=machine, evaluate=False)
    (plan,), _ = plans(job, machine.clock())
    assert [row[-1] for row in plan if row[-1] > counters.REASONS] == []
