"""The graded loads that a simulated card is profiled with: possible, various, and none of the trainings."""

from __future__ import annotations

import pytest

from workbench.simulation import graded
from workbench.simulation.catalogue import CARDS, WORKLOADS, fits, iteration
from workbench.simulation.physics import Load, operate


@pytest.mark.parametrize("key", CARDS)
def test_graded_loads_are_possible_and_fit_every_card(key: str) -> None:
    card = CARDS[key]
    found = [workload for _, workload in graded.workloads(card)]
    assert len({each.key for each in found}) == len(found) == 45
    assert not {each.key for each in found} & set(WORKLOADS)
    for workload in found:
        assert fits(card, workload, 1)
        phases = iteration(card, workload, 1)
        load = phases[0].load
        assert isinstance(load, Load)
        assert 0 <= load.compute <= 1
        assert 0 <= load.memory <= 1
        assert load.compute + load.memory <= 1 + 1e-9
        assert load.dynamic_w > 0


def test_grades_span_what_clocks_and_limits_can_do() -> None:
    """From time that goes with the SM clock to time that does not, from light to limited, from busy to
    mostly waiting.
    """
    card = CARDS["A100"]
    slower, drawn_w, waiting = [], [], []
    for _, workload in graded.workloads(card):
        fast, slow = (
            sum(
                phase.time_s * operate(card, phase.load, power_limit_w=1000.0, max_sm_clock_mhz=clock).stretch
                for phase in workload.phases
            )
            for clock in (1410, 705)
        )
        slower.append(slow / fast)
        drawn_w.append(operate(card, workload.phases[0].load, power_limit_w=1000.0).power_w)
        whole_s = sum(phase.time_s for phase in workload.phases)
        waiting.append(sum(phase.time_s for phase in workload.phases if phase.load is None) / whole_s)
    assert min(slower) < 1.05
    assert max(slower) > 1.75
    assert min(drawn_w) < 110
    assert max(drawn_w) > 440  # above its 400 W limit
    assert waiting.count(0.0) > 10
    assert max(waiting) == pytest.approx(0.8)
