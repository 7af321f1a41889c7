"""Beats between a job and the polling times are distinguished from true periods."""

from __future__ import annotations

import math

import numpy as np
import pytest

from workbench.periods.online import aliasing, buffer
from workbench.samples import ROWS

STEP_S = 0.1


def sensed(
    seconds: float, *, window_s: float = 0.025, swing_w: float = 80.0, counter: bool = True
) -> np.ndarray:
    """A minute of a sine load as a sensor shows it that averages over a window at the end of each 0.1 s."""
    ticks = np.arange(1, 601) * STEP_S
    angular = 2 * np.pi / seconds

    def energy_j(at_s: np.ndarray) -> np.ndarray:
        return 200 * at_s - swing_w / angular * (np.cos(angular * at_s) - 1)

    rows = np.zeros(len(ticks), ROWS)
    rows["time_s"], rows["tick_s"], rows["power_tick_s"] = ticks + 0.01, ticks, ticks
    rows["power_w"] = (energy_j(ticks) - energy_j(ticks - window_s)) / window_s
    rows["energy_j"] = energy_j(ticks) if counter else math.nan
    return rows


@pytest.mark.parametrize(
    ("true_s", "observed_s", "share"), [(3.0, 3.0, 1.0), (0.7, 0.7, 1.0), (0.104, 2.6, 0.04), (0.11, 1.1, 0.1)]
)
def test_the_counter_swings_with_a_true_period_only(true_s: float, observed_s: float, share: float) -> None:
    """In a beat, an average over 0.1 s keeps 0.1 s / 2.6 s of the swing (sinc near its first zero), of 1.1
    s a tenth.
    """
    observed = aliasing.testimony(sensed(true_s), observed_s)
    assert observed is not None
    assert observed.share == pytest.approx(share, rel=0.12, abs=0.01)
    believed = aliasing.check_aliasing(sensed(true_s), observed_s)
    assert (believed == "") is (true_s == observed_s)


def polled(true_s: float, pace_s: float, from_s: float, to_s: float) -> np.ndarray:
    """A square load polled at a pace."""
    rows = np.zeros(int((to_s - from_s) / pace_s), ROWS)
    rows["time_s"] = from_s + pace_s * np.arange(len(rows))
    rows["power_w"] = np.where(rows["time_s"] / true_s % 1 < 0.45, 280.0, 120.0)
    return rows


@pytest.mark.parametrize(("true_s", "observed_s", "waited_s"), [(0.0976, 4.07, 2.0), (0.0892, 0.826, 2.5)])
def test_a_period_predicts_its_readings_at_another_pace_and_a_beat_does_not(
    true_s: float, observed_s: float, waited_s: float
) -> None:
    for load_s, there in ((observed_s, True), (true_s, False)):
        start_s = 4 * observed_s
        before, after = polled(load_s, 0.1, 0.0, start_s), polled(load_s, 0.073, start_s, start_s + waited_s)
        found = aliasing.at_another_pace(before, after, observed_s)
        assert found is not None
        assert found.before > 0.7
        assert (found.predicted > 0.5, found.moved) == (there, not there)


def noisy(
    seconds: float, pace_s: float, from_s: float, to_s: float, jitter_s: float, rng: np.random.Generator
) -> np.ndarray:
    """A square load polled at a pace that is not quite even."""
    rows = np.zeros(int((to_s - from_s) / pace_s), ROWS)
    rows["time_s"] = from_s + pace_s * np.arange(len(rows)) + rng.normal(0, jitter_s, len(rows))
    rows["power_w"] = np.where(rows["time_s"] / seconds % 1 < 0.45, 280.0, 120.0)
    rows["power_w"] += rng.normal(0, 6, len(rows))
    return rows


@pytest.mark.parametrize("jitter_s", [0.0, 0.0005, 0.001])
@pytest.mark.parametrize("seconds", [0.4, 0.52, 0.6])
def test_a_true_period_stays_when_its_harmonics_are_unresolved(seconds: float, jitter_s: float) -> None:
    """Two readings per period give no amplitude, as for the third harmonic of 0.6 s or the second of 0.4 s.
    """
    rng, there = np.random.default_rng(5), []
    for _ in range(20):
        middle_s = rng.uniform(3, 10)
        before = noisy(seconds, 0.1, 0.0, middle_s, jitter_s, rng)
        after = noisy(seconds, 0.073, middle_s + 0.5, middle_s + 2.5, jitter_s, rng)
        found = aliasing.at_another_pace(before, after, seconds)
        assert found is not None
        there.append(not found.moved and found.fitted >= aliasing.STAYS * found.before)
    assert there == [True] * 20


def test_too_few_readings_give_no_evidence() -> None:
    assert aliasing.at_another_pace(polled(1.0, 0.1, 0.0, 1.5), polled(1.0, 0.073, 2.0, 5.0), 1.0) is None
    assert aliasing.at_another_pace(polled(1.0, 0.1, 0.0, 4.0), polled(1.0, 0.073, 4.5, 5.5), 1.0) is None


def test_a_beat_averaged_by_the_sensor_is_found_by_its_weakness() -> None:
    weak = aliasing.check_aliasing(sensed(0.104, window_s=STEP_S), 2.6)
    assert weak is not None
    assert weak.startswith("aliasing suspected")
    assert aliasing.check_aliasing(sensed(2.6, window_s=STEP_S), 2.6) == ""


def test_without_a_counter_there_is_no_testimony() -> None:
    assert aliasing.testimony(sensed(3.0, counter=False), 3.0) is None
    assert aliasing.check_aliasing(sensed(3.0, counter=False), 3.0) == ""
    near = aliasing.check_aliasing(sensed(0.35, counter=False), 0.35)
    assert near.startswith("aliasing suspected: 0.35 s")
    assert aliasing.check_aliasing(sensed(0.35, counter=False), 0.35, guarded=False) == ""


def test_with_slow_polling_another_interval_would_decide() -> None:
    rows = sensed(0.35, counter=False)
    rows["power_tick_s"] = math.nan
    assert aliasing.check_aliasing(rows, 0.35) is None


@pytest.mark.parametrize(
    ("seconds", "near"),
    [
        (0.25, True),
        (0.39, True),
        (0.5, True),
        (0.503, True),
        (0.55, False),
        (0.6, True),
        (0.7, False),
        (5.0, False),
    ],
)
def test_periods_near_the_sampling_limit_are_recognised(seconds: float, near: bool) -> None:
    assert aliasing.near_limit(seconds, 0.1, 0.1) is near
    assert aliasing.near_limit(seconds, math.nan, 0.1) is near


def test_readings_and_refreshes_are_counted_separately() -> None:
    rows = np.repeat(sensed(3.0), 3)
    rows["time_s"] = rows["tick_s"] + np.tile([0.01, 0.04, 0.07], 600)
    reading_s, refresh_s = aliasing.intervals(rows)
    assert reading_s == pytest.approx(0.03)
    assert refresh_s == pytest.approx(0.1)
    rows["power_tick_s"] = math.nan  # then the readings' own changes tell
    assert aliasing.intervals(rows) == (pytest.approx(0.03), pytest.approx(0.1))


def test_many_rows_are_averaged_for_the_detector() -> None:
    rows = np.zeros(10_000, ROWS)
    rows["time_s"] = np.arange(10_000) / 50
    rows["power_w"] = np.arange(10_000) % 3
    rows["energy_j"] = rows["time_s"] * 100
    rows["utilisation"] = math.nan
    frame = buffer.frame(rows)
    assert frame.height == 3333
    assert frame["power_w"].unique().to_list() == [1.0]
    assert frame["time_s"][0] == pytest.approx(0.02)
    assert frame["energy_j"][0] == pytest.approx(4.0)
    assert frame["utilisation"].null_count() == 3333
