"""Readings far apart name no period that something faster would show as well."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from workbench.periods.detect import find_periods
from workbench.periods.estimators.undersampling import faster_s

RNG = np.random.default_rng


def sampled(time_s: np.ndarray, period_s: float) -> np.ndarray:
    return np.where(time_s % period_s < 0.6 * period_s, 300.0, 120.0) + RNG(2).normal(0, 4, len(time_s))


@pytest.mark.parametrize("true_s", [7.3, 1 / (1 + 1 / 7.3)])
def test_even_readings_one_second_apart_cannot_separate_a_period_from_its_alias(true_s: float) -> None:
    time_s = np.arange(0.0, 600.0, 1.0)
    found = find_periods(pl.DataFrame({"time_s": time_s, "power_w": sampled(time_s, true_s)}))
    assert not found.sure
    assert not found.main_sure
    assert found.iteration is not None  # as a guess
    assert "readings 1 s apart" in found.reason


def test_the_faster_period_is_named() -> None:
    time_s = np.arange(0.0, 600.0, 1.0)
    assert faster_s(time_s, sampled(time_s, 7.3), 7.3) == pytest.approx(1 / (1 + 1 / 7.3), rel=0.001)


def test_readings_at_uneven_moments_separate_them() -> None:
    time_s = np.sort(RNG(1).uniform(0, 600, 600))
    assert faster_s(time_s, sampled(time_s, 7.3), 7.3) is None


def test_quick_readings_are_not_asked() -> None:
    time_s = np.arange(0.0, 60.0, 0.1)
    assert faster_s(time_s, sampled(time_s, 7.3), 7.3) is None
