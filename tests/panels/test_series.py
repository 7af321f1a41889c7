"""The memory of a plot: gaps stay gaps, peaks stay peaks, and its size stays bounded."""

from __future__ import annotations

import numpy as np
import pytest

from workbench.panels._views.power.series import BINS, MOST_ROWS, WINDOW_S, Rows, Series, is_gap, thin


def rows(*times: float, power: float = 100.0) -> Rows:
    return np.array([[time, power, 250.0, 1300.0, 0.9] for time in times], np.float32)


def test_a_hole_in_the_sampling_is_marked_within_and_between_appends() -> None:
    series = Series(gap_s=0.5)
    assert not is_gap(series.append(rows(0.0, 0.1, 0.2))).any()
    reported = series.append(rows(2.0, 2.1, 4.1))
    assert is_gap(reported).tolist() == [True, False, False, True, False]
    assert reported[0, 0] == np.float32(1.1)  # half way through the hole
    assert is_gap(series.rows).sum() == 2


def test_thinning_keeps_the_extremes_the_gaps_and_the_changes_of_the_limit() -> None:
    table = rows(*np.arange(10_000) / 50)
    table[1234, 1], table[7777, 1] = 399.0, 3.0
    table[5000:, 2] = 200.0
    table[3000, 1:] = np.nan
    few = thin(table, 100)
    assert len(few) <= 2 * 100 + 3
    assert few[:, 1][~np.isnan(few[:, 1])].max() == 399.0
    assert np.nanmin(few[:, 1]) == 3.0
    assert is_gap(few).sum() == 1
    assert few[few[:, 2] == 200.0][0, 0] == np.float32(100.0)
    assert (np.diff(few[:, 0]) > 0).all()


def test_a_gpu_without_power_readings_keeps_its_clocks() -> None:
    table = rows(*np.arange(1000) / 10)
    table[:, 1] = np.nan
    few = thin(table, 50)
    assert len(few) == 50
    assert not is_gap(few).any()


@pytest.mark.slow
def test_a_day_takes_no_more_room_than_some_minutes_and_the_last_minute_is_whole() -> None:
    series = Series()
    for minute in range(0, 24 * 60, 5):
        series.append(rows(*(60.0 * minute + np.arange(1, 5 * 60 * 20) / 20)))
    assert len(series.rows) <= MOST_ROWS + 5 * 60 * 20
    recent = series.rows[series.rows[:, 0] > series.rows[-1, 0] - 60]
    assert len(recent) >= 60 * 20 - 1
    old = series.rows[series.rows[:, 0] < series.rows[-1, 0] - 5 * 60 - 1.25 * WINDOW_S]
    assert 0 < len(old) <= 3 * BINS


def test_what_came_after_the_end_is_cut() -> None:
    series = Series()
    series.append(rows(0.0, 0.1, 0.2, 0.3))
    series.cut(0.25)
    assert len(series.rows) == 3
