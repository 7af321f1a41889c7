"""The difference between two ways: the estimate, its interval, when to stop, and when it is unknown."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from workbench.errors import UsageError
from workbench.experiments.difference import difference, enough, order


def runs(count: int, effect: float, *, noise: float = 0.003, warming: float = 0.0, seed: int = 3):
    draw = np.random.default_rng(seed)
    way = np.array(list(itertools.islice(order(seed), count)))
    warm = 40 + 20 * (1 - np.exp(-np.arange(count) / 5)) + 4 * np.concatenate([[0], way[:-1]])
    logs = effect * way + warming * (warm - 50) + noise * draw.normal(size=count)
    return way, 100 * np.exp(logs), np.round(warm)


def test_the_order_is_fair_over_four_runs() -> None:
    turns = list(itertools.islice(order(1), 400))
    blocks = {tuple(turns[start:start + 4]) for start in range(0, 400, 4)}
    assert blocks == {(0, 1, 1, 0), (1, 0, 0, 1)}


def test_a_difference_is_found_with_its_interval() -> None:
    found = difference(*runs(16, math.log(0.9)))
    assert found.low < 0.9 < found.high
    assert found.significant
    assert found.high - found.low < 0.02


def test_a_gpu_that_warms_up_does_not_change_the_answer() -> None:
    way, joules, warm = runs(16, math.log(1.01), warming=0.003, noise=0.001)
    raw = joules[way == 1].mean() / joules[way == 0].mean()
    found = difference(way, joules, warm)
    assert abs(found.value - 1.01) < 0.002 < abs(raw - 1.01)


def test_it_is_enough_once_the_smallest_difference_would_be_found() -> None:
    assert not enough(*runs(12, 0.0, noise=0.03), 0.02)
    assert enough(*runs(12, 0.0, noise=0.003), 0.02)
    assert not enough(*runs(8, 0.0, noise=0.0001), 0.02)  # five of each at least


def test_a_large_difference_needs_no_narrow_interval() -> None:
    assert enough(*runs(12, math.log(2.0), noise=0.05), 0.02)


def test_runs_that_did_not_alternate_are_noted() -> None:
    way = np.repeat([0, 1], 8)
    found = difference(way, 100 + 10.0 * way + np.tile([0.1, -0.1], 8), np.linspace(30, 60, 16))
    assert found.value == pytest.approx(1.1, rel=0.01)
    assert any("temperature" in note for note in found.notes)
    assert any("drift" in note for note in found.notes)


@pytest.mark.parametrize("values", [[1.0, 2.0, -1.0], [1.0, math.nan, 2.0], [1.0, 0.0, 2.0]])
def test_values_that_are_none_are_refused(values: list[float]) -> None:
    with pytest.raises(UsageError, match="above 0"):
        difference([0, 1, 0], values)


def test_two_runs_are_no_comparison() -> None:
    assert math.isnan(difference([0, 1], [1.0, 2.0]).value)


def test_it_reads_in_percent() -> None:
    found = difference([0, 1, 1, 0, 0, 1], [100, 88, 88.1, 100, 100.1, 88])
    assert str(found).startswith("-12.0 % (-12.")


def test_a_few_scattered_runs_are_not_significant() -> None:
    found = difference([0, 1, 0], [1.0, 3.0, 9.0])
    assert not found.significant
    assert "too few runs" in str(found)
