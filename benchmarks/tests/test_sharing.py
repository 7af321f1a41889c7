"""Intervals of what sharing changes hold the truth as often as they state."""

from __future__ import annotations

import pytest

from benchmarks import sharing


def test_the_interval_covers_the_truth_at_its_level() -> None:
    shape, trials, held = sharing.SETS["restless"], 12, []
    true = sharing.truth(shape, 250.0)
    for seed in range(1, trials + 1):
        found = sharing.comparison(shape, seed, seconds=4.0)
        held += [
            each.low <= exact <= each.high
            for each, exact in zip(found.slowdown, true["slowdown"], strict=True)
        ]
        held.append(found.saving.low <= true["saving"] <= found.saving.high)
        assert found.saving.value == pytest.approx(true["saving"], abs=0.12)
        assert sum(found.parts_j) == pytest.approx(found.board_j)
    # 36 intervals that hold with 95 %: fewer than 29 are held once in 20,000 times.
    assert sum(held) >= 29
