"""The loads and the table of the measurement benchmark."""

from __future__ import annotations

import random

import pytest

from benchmarks.measurement import ITERATIONS_MS, JITTERS, SteadyWindow, steady_summary, steady_workload
from workbench.simulation import catalogue
from workbench.simulation.physics import operate


@pytest.mark.parametrize("key", catalogue.CARDS)
def test_a_steady_load_keeps_its_length_and_stays_below_the_power_limit(key: str) -> None:
    card = catalogue.card(key)
    limit_w = card.power_limit_w[1]
    rng = random.Random(5)
    for iteration_ms in ITERATIONS_MS:
        phases = steady_workload(card, iteration_ms / 1e3, rng).phases
        assert sum(phase.time_s for phase in phases) == pytest.approx(iteration_ms / 1e3)
        points = [operate(card, phase.load, power_limit_w=limit_w) for phase in phases]
        assert all(card.gap_w - 1 <= point.power_w <= limit_w and point.stretch == 1.0 for point in points)


def test_the_table_counts_the_windows_whose_bar_covers_the_truth() -> None:
    found = [
        SteadyWindow(length, jitter, 1.0, 100.0, 101.0, bar_j)
        for length in ITERATIONS_MS for jitter in JITTERS for bar_j in (0.5, 2.0)
    ]
    rows = steady_summary("A40", found)
    assert [row["iteration_ms"] for row in rows] == [*ITERATIONS_MS, "all"]
    assert {row["covered"] for row in rows} == {0.5}
    assert rows[-1]["bar_over_error"] == pytest.approx(1.25)
