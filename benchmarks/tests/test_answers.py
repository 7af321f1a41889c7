"""The benchmark of comparisons: it can fail, and its fixed pairs are a fair peer."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import answers
from benchmarks.answers import compared, comparison, fixed, iteration_means, logs, waste
from benchmarks.fixtures.thermal import FAMILIES, ThermalCard


def card(family: str, effect: float = 0.0, seed: int = 1, noise: float = 0.005) -> ThermalCard:
    return ThermalCard(family, np.random.default_rng(seed), noise, effect)


def test_a_large_difference_is_found_by_both_and_sooner_without_rest() -> None:
    (ours, ours_s), (theirs, theirs_s) = compared(card("steady", 0.1), 1), fixed(card("steady", 0.1), 6)
    assert ours
    assert theirs
    assert ours_s < theirs_s


def test_a_hot_run_leaks() -> None:
    hot, cool = card("steady", noise=0.0), card("steady", noise=0.0)
    hot.wait(200.0, 400.0)
    cool.wait(200.0, 60.0)
    assert hot.run(0)[1] > cool.run(0)[1]


def test_every_family_has_a_row_for_each_noise() -> None:
    rows = comparison(FAMILIES[:2], 6)
    assert len(rows) == 6
    assert all(0 <= row["type_one"] <= 1 and row["time_share"] > 0 for row in rows)


def test_waste_is_scored_by_what_the_card_did(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "WASTE_CARDS", ("A100",))
    cell, second, minute = waste(2)
    assert cell["wastes"] >= second["wastes"] > 0
    assert (cell["missed"], cell["time_inside"], cell["energy_inside"]) == (0, 1.0, 1.0)
    assert minute["waits_claimed"] == 0
    summary = answers._waste_summary([cell, second, minute])
    assert all(isinstance(each, int | float) for each in summary.values())


def test_logs_name_no_false_period() -> None:
    assert logs(8)["false_periods"] == 0


def test_an_interval_is_scored_for_every_correlation_and_number_of_iterations() -> None:
    rows = iteration_means(20)
    assert len(rows) == 7 * len(answers.ITERATIONS)
    assert answers._mean_summary(rows)["iteration_mean_covered_min"] >= 0.7
