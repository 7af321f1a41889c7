"""The predicted time and energy at every setting, before and after trials."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import polars as pl
import pytest

from workbench.records import Limits, Setting
from workbench.search.space import SettingSpace, space_from
from workbench.search.surrogates.response_surface import fit

SPACE = space_from(
    Limits(100.0, 300.0, 300.0, {5001: tuple(range(1800, 585, -60)), 2500: tuple(range(1800, 585, -60))}),
    "clocks",
)
REFERENCE = SPACE.reference_row


def truth(
    space: SettingSpace = SPACE, *, compute: float = 0.8, memory: float = 0.15, gap: float = 0.05
) -> tuple[np.ndarray, np.ndarray]:
    """A job whose parts take turns, on a card whose dynamic power goes with the cube of the clock above a
    floor.
    """
    x, mu = space.x, space.mu
    time_s = 0.2 * (compute / x + memory / mu + gap)
    power_w = 80 + 20 * mu + 150 * x * np.maximum(x, 0.7) ** 2
    return time_s, time_s * power_w


def row(sm: int, mem: int = 5001) -> int:
    return SPACE.row(Setting(sm_clock_mhz=sm, mem_clock_mhz=mem))


def believed(rows: list[int], sd: float = 0.01, **options: object) -> object:
    time_s, energy_j = truth()
    return fit(SPACE, rows, time_s[rows], energy_j[rows], np.full((len(rows), 2), sd), **options)  # type: ignore[arg-type]


def test_before_any_probe_physics_alone_is_wide_and_falls_with_the_clocks() -> None:
    found = fit(SPACE, [], [], [], np.empty((0, 2)))
    assert found.time_ratio[REFERENCE] == found.energy_ratio[REFERENCE] == 1.0
    times = found.time_ratio[[row(clock) for clock in (1800, 1500, 1200, 900, 600)]]
    assert np.all(np.diff(times) > 0)
    assert 1.0 < times[-1] < 3.0  # no job gets slower than its clock
    assert found.time_sd[row(600)] > 0.1
    assert found.time_ratio[row(1800, 2500)] > 1.05


def test_samples_are_relative_to_the_reference_and_cover_every_setting() -> None:
    found = believed([REFERENCE, row(1200)])
    assert found.log_times.shape == found.log_energies.shape == (256, len(SPACE))
    assert np.all(found.log_times[:, REFERENCE] == 0)
    assert np.exp(found.log_time_s.mean()) == pytest.approx(0.2, rel=0.02)
    assert np.exp(found.log_energy_j.mean()) == pytest.approx(0.2 * 250, rel=0.02)


def test_three_trials_predict_the_rest_of_the_curve() -> None:
    time_s, energy_j = truth()
    found = believed([REFERENCE, row(1200), row(1560)])
    line = [row(clock) for clock in range(1800, 1140, -60)]
    assert np.max(np.abs(np.log(found.time_ratio[line] / (time_s[line] / time_s[REFERENCE])))) < 0.02
    assert np.max(np.abs(np.log(found.energy_ratio[line] / (energy_j[line] / energy_j[REFERENCE])))) < 0.04


def test_the_stated_spread_contains_the_truth() -> None:
    time_s, energy_j = truth()
    rng = np.random.default_rng(5)
    rows = [REFERENCE, row(1200), row(1500), row(1800, 2500)]
    inside = []
    for _ in range(12):
        noise = np.exp(0.02 * rng.standard_normal((2, len(rows))))
        found = fit(SPACE, rows, time_s[rows] * noise[0], energy_j[rows] * noise[1], np.full((4, 2), 0.02))
        for log, true in ((found.log_times, time_s), (found.log_energies, energy_j)):
            low, high = np.quantile(log, (0.05, 0.95), axis=0)
            logs = np.log(true / true[REFERENCE])
            inside.append(np.mean((low[1:] <= logs[1:]) & (logs[1:] <= high[1:])))
    assert np.mean(inside) > 0.75


def test_repeated_probes_pool() -> None:
    once, often = believed([REFERENCE, row(1500)], 0.03), believed([REFERENCE, row(1500)] * 6, 0.03)
    assert often.time_sd[row(1500)] < 0.7 * once.time_sd[row(1500)]


def test_one_wild_probe_does_not_bend_the_curve() -> None:
    time_s, energy_j = truth()
    rows = [REFERENCE, row(1680), row(1560), row(1440), row(1320), row(1200)]
    times = time_s[rows].copy()
    times[3] *= 1.4  # another process had the GPU
    found = fit(SPACE, rows, times, energy_j[rows], np.full((6, 2), 0.01))
    assert abs(np.log(found.time_ratio[row(1500)] / (time_s[row(1500)] / time_s[REFERENCE]))) < 0.1


def test_a_job_at_its_power_limit_loses_no_time_at_first() -> None:
    space = space_from(Limits(100.0, 300.0, 300.0, {5001: tuple(range(1800, 585, -60))}), "clocks")
    capped = fit(space, [0], [0.2], [60.0], [[0.01, 0.01]], power_share=1.0)
    free = fit(space, [0], [0.2], [30.0], [[0.01, 0.01]], power_share=0.5)
    near = space.row(Setting(sm_clock_mhz=1620))
    assert capped.time_ratio[near] < free.time_ratio[near]


def test_power_limits_slow_a_job_only_below_its_own_power() -> None:
    space = space_from(Limits(100.0, 300.0, 300.0), "power", step_w=20)
    found = fit(space, [0], [0.2], [0.2 * 180], [[0.01, 0.01]], power_share=0.6)
    assert found.time_ratio[space.row(Setting(power_limit_w=220.0))] == pytest.approx(1.0, abs=0.01)
    assert found.time_ratio[space.row(Setting(power_limit_w=120.0))] > 1.1


@dataclass
class Said:
    frame: pl.DataFrame


def test_a_prediction_is_weighted_by_its_error_and_corrected_by_trials() -> None:
    time_s, energy_j = truth()
    logs = [np.log(each / each[REFERENCE]) for each in (time_s, energy_j)]

    def said(shift: float, sd: float) -> Said:
        off = shift * (1 - SPACE.x)
        flat = np.full(len(SPACE), sd)
        return Said(
            pl.DataFrame(
                {"log_time": logs[0] + off, "log_time_sd": flat, "log_energy": logs[1], "log_energy_sd": flat}
            )
        )

    alone, right = (
        fit(SPACE, [], [], [], np.empty((0, 2))),
        fit(SPACE, [], [], [], np.empty((0, 2)), prior=said(0.0, 0.02)),
    )
    at = row(1200)
    assert right.time_sd[at] < 0.5 * alone.time_sd[at]
    assert abs(np.log(right.time_ratio[at]) - logs[0][at]) < 0.05
    rows = [REFERENCE, at, row(1500)]
    wrong = believed(rows, 0.01, prior=said(0.5, 0.1))
    assert abs(np.log(wrong.time_ratio[at]) - logs[0][at]) < 0.04


def test_six_hundred_settings_are_fitted_quickly() -> None:
    lists = {clock: tuple(range(2100, 285, -15)) for clock in (9501, 9251, 5001, 810, 405)}
    space = space_from(Limits(100.0, 350.0, 350.0, lists), "clocks")
    assert len(space) > 600
    rows = [0, 10, 150, 40, 300]
    times, energies = truth(space)
    spent = []
    for _ in range(6):
        began = time.thread_time()
        fit(space, rows, times[rows], energies[rows], np.full((5, 2), 0.01), power_share=0.8)
        spent.append(time.thread_time() - began)
    assert min(spent) < 0.3  # 0.03 s where nothing else runs
