"""A known shape is found again in new readings: where in the iteration they are, how alike, how strong, at
what scale.
"""

from __future__ import annotations

import numpy as np
import pytest

from workbench.periods.online import phase_lock
from workbench.periods.online.phase_lock import PhaseLock


def wave(phase: np.ndarray) -> np.ndarray:
    into = phase % 1.0
    return np.select([into < 0.3, into < 0.8], [180.0, 260.0], 90.0)


def compare(lock: PhaseLock, time_s: np.ndarray, power_w: np.ndarray) -> phase_lock.Match:
    rows = np.rec.fromarrays([time_s, power_w], names="time_s,power_w")
    return phase_lock.compare(lock, rows)


def learned(seconds: float = 1.0, step_s: float = 0.05, noise_w: float = 0.0) -> PhaseLock:
    time_s = np.arange(0, 20 * seconds, step_s)
    power_w = wave(time_s / seconds) + np.random.default_rng(1).normal(0, noise_w, len(time_s))
    return phase_lock.learn(time_s, power_w, seconds, 0.0, step_s)


def test_a_fold_is_the_mean_of_each_part_less_the_mean_of_all() -> None:
    phase = np.array([0.1, 0.6, 0.1, 0.6])
    assert phase_lock.fold(phase, np.array([100.0, 200.0, 120.0, 220.0]), 2).tolist() == [-50.0, 50.0]


def test_parts_of_a_fold_without_readings_are_interpolated() -> None:
    shape = phase_lock.fold(np.array([0.1, 0.6]), np.array([100.0, 200.0]), 4)
    assert (shape + 150).tolist() == [100.0, 150.0, 200.0, 150.0]


@pytest.mark.parametrize("late", [-0.2, -0.07, 0.0, 0.11, 0.24])
def test_the_lateness_of_an_iteration_is_measured(late: float) -> None:
    lock = learned()
    time_s = 30 + np.arange(0, 1.5, 0.05)
    observed = compare(lock, time_s, wave(time_s - late))
    assert observed.late == pytest.approx(late, abs=0.03)  # readings are 0.05 apart
    assert observed.likeness > 0.97
    assert observed.height == pytest.approx(1.0, abs=0.05)
    assert phase_lock.oddness(lock, observed) < 1.0


def test_power_and_the_observed_part_of_an_iteration_are_separated() -> None:
    """Half an iteration too much draws more than the mean, and yet nothing has changed."""
    lock = learned()
    time_s = 30.25 + np.arange(0, 1.6, 0.05)
    power_w = wave(time_s)
    assert abs(power_w.mean() - lock.level_w) > 5
    assert compare(lock, time_s, power_w).level_w == pytest.approx(lock.level_w, abs=2)


@pytest.mark.parametrize(
    "change",
    [
        lambda time_s: 0.8 * wave(time_s),
        lambda time_s: wave(time_s / 0.63),
        lambda time_s: 200 + 0 * time_s,
        lambda time_s: 340 - wave(time_s),
    ],
    ids=["less power", "another period", "flat", "upside down"],
)
def test_a_trace_without_the_period_is_odd(change) -> None:  # type: ignore[no-untyped-def]
    lock = learned(noise_w=3.0)
    for _ in range(8):  # how much is usual is known after some stretches
        start_s = lock.phase_s
        time_s = np.arange(start_s, start_s + 2, 0.05)
        power_w = wave(time_s) + np.random.default_rng(2).normal(0, 3, len(time_s))
        lock = phase_lock.follow(lock, compare(lock, time_s, power_w), start_s + 2)
    time_s = np.arange(lock.phase_s, lock.phase_s + 2, 0.05)
    assert phase_lock.oddness(lock, compare(lock, time_s, change(time_s))) > 1.5


def test_the_period_follows_the_boundaries() -> None:
    lock, end_s = learned(1.0), 20.0
    for _ in range(12):  # the job now takes 1.04 s
        time_s = np.arange(end_s, end_s + 2, 0.05)
        end_s += 2
        lock = phase_lock.follow(lock, compare(lock, time_s, wave((time_s - 20) / 1.04)), end_s)
    assert lock.seconds == pytest.approx(1.04, rel=0.005)
    iterations = (lock.phase_s - 20) / 1.04
    assert iterations == pytest.approx(round(iterations), rel=0, abs=0.05)
