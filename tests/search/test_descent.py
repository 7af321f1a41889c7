"""The tuner's method on made-up jobs, whose tables of time and power no formula of the method has made."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import pytest

from workbench.records import Configuration, Observation, Setting
from workbench.search.clocks.descent import Descent
from workbench.search.clocks.effects import ladders
from workbench.search.clocks.knowledge import time_bounds
from workbench.search.objective import EnergyDelay, Objective
from workbench.search.space import space_of

CLOCKS = np.arange(1800, 585, -30)
SPACE = space_of([Setting(sm_clock_mhz=int(clock)) for clock in CLOCKS])
RUNGS = ladders(SPACE, float(CLOCKS[0]), 300.0)
MOST = time_bounds(RUNGS, np.full(8, float(CLOCKS[0])), np.ones(8))
UNIT_S, UNIT_W = 0.25, 280.0  # of an iteration at the default setting


@dataclass
class Job:
    """A job of ten minutes: relative time and power of an iteration by row of the space.

    Attributes:
        counts: Whether iterations are counted.
        changes_s: When the work changes; iterations then take half the time, at 80 % of the power.
    """

    time: np.ndarray
    power: np.ndarray
    seed: int = 0
    scatter: float = 0.02
    counts: bool = True
    changes_s: float = math.inf
    time_s: float = 0.0
    energy_j: float = 0.0
    work_s: float = 0.0  # time of the same iterations at the default setting
    work_j: float = 0.0
    rows: list[int] = field(default_factory=list)

    def run(self, objective: Objective | None = None, max_slowdown: float | None = 0.05) -> Descent:
        rng, changed_s = np.random.default_rng(self.seed), math.inf
        method = Descent(RUNGS, MOST, objective, max_slowdown)
        method.count(self.counts)
        while self.time_s < 600.0:
            plan = method.next(self.time_s)
            later = self.time_s >= self.changes_s
            unit_s, unit_w = UNIT_S * (0.5 if later else 1.0), UNIT_W * (0.8 if later else 1.0)
            count = max(plan.count, math.ceil(plan.seconds / (unit_s * self.time[plan.row])))
            slip = math.exp(self.scatter / math.sqrt(count) * rng.standard_normal())
            time_s = count * unit_s * self.time[plan.row] * slip
            energy_j = time_s * unit_w * self.power[plan.row]
            block = Observation(
                Configuration(RUNGS.settings[plan.row]), float(count * self.counts), time_s,
                energy_j * math.exp(0.002 * rng.standard_normal()), 0.002 * energy_j, self.scatter * self.counts,
                at_s=self.time_s + 0.5 * time_s,
            )
            self.time_s, self.energy_j = self.time_s + time_s, self.energy_j + energy_j
            self.work_s, self.work_j = self.work_s + count * unit_s, self.work_j + count * unit_s * unit_w
            self.rows.append(plan.row)
            method.passed(plan.row, time_s)
            if method.tell(block) and changed_s == math.inf:
                self.changed_s = changed_s = self.time_s
                break
        return method

    @property
    def slowdown(self) -> float:
        return self.time_s / self.work_s - 1

    @property
    def saving(self) -> float:
        return 1 - self.energy_j / self.work_j

    def possible(self, max_slowdown: float) -> float:
        """Saving of the best setting within a slowdown limit from the first moment on."""
        allowed = self.time <= 1 + max_slowdown
        return float(1 - (self.time * self.power)[allowed].min())


def tables(compute: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Steps of the voltage, and times that are irregular by 0.3 %; `compute` of the time follows the clock."""
    x, rng = CLOCKS / CLOCKS[0], np.random.default_rng(seed)
    time = (1 - compute + compute / x) * np.exp(0.003 * rng.standard_normal(len(x)))
    power = 0.35 + 0.65 * x * np.maximum(np.floor(8 * x) / 8, 0.6) ** 2
    return time / time[0], power / power[0]


@pytest.mark.parametrize("compute", [0.2, 0.5, 0.9])
def test_it_keeps_the_limit_and_finds_most_of_the_possible_saving(compute: float) -> None:
    shares = []
    for seed in range(3):
        job = Job(*tables(compute, seed), seed=seed)
        job.run()
        assert job.slowdown <= 0.051
        shares.append(job.saving / job.possible(0.05))
    assert np.mean(shares) >= 0.6


def test_measured_times_overrule_the_bound_of_the_clocks() -> None:
    """Each step of the clock takes 1 % more than the ratio of the clocks, as no law has it."""
    time, power = tables(1.0)
    job = Job(time * (1 + 0.01 * np.minimum(np.arange(len(time)), 8)), power)
    method = job.run()
    assert job.slowdown <= 0.052
    assert method.about(4).time_ratio == pytest.approx(job.time[4], abs=0.025)


def test_another_work_is_noticed_after_two_odd_blocks() -> None:
    job = Job(*tables(0.5), changes_s=300.0)
    job.run()
    assert 300.0 < job.changed_s < 360.0
    same = Job(*tables(0.5))
    same.run()
    assert not hasattr(same, "changed_s")


def test_without_counts_it_takes_the_lowest_clock_that_cannot_be_too_slow() -> None:
    """By their clocks alone, settings above 1800 / 1.05 = 1714 MHz are safe."""
    for compute in (0.1, 1.0):
        job = Job(*tables(compute), counts=False)
        method = job.run()
        assert job.slowdown <= 0.05
        assert 1700 <= CLOCKS[job.rows[-1]] <= 1740
        assert method.held() == job.rows[-1]


@pytest.mark.parametrize("objective", [None, EnergyDelay(1), EnergyDelay(2)])
def test_other_objectives_and_no_limit(objective: Objective | None) -> None:
    job = Job(*tables(0.6))
    method = job.run(objective, None)
    cost = [float(method.objective.cost(t, t * p)) for t, p in zip(job.time, job.power, strict=True)]
    mean = float(method.objective.cost(job.time_s / job.work_s, job.energy_j / job.work_j))
    assert 1 - mean >= 0.6 * (1 - min(cost))


def test_a_setting_that_cannot_be_set_is_not_asked_for_again() -> None:
    job = Job(*tables(0.5))
    method = Descent(RUNGS, MOST)
    method.count(True)
    method.tell(Observation(Configuration(RUNGS.settings[0]), 40.0, 10.0, 2800.0, 5.0, 0.02, at_s=5.0))
    wanted = method.next(10.0).row
    assert wanted != 0
    method.bar(wanted, "the driver refuses")
    assert method.next(10.0).row != wanted
    assert job.possible(0.05) > 0


def test_blocks_that_become_one_are_of_one_setting_and_all_counted_or_none() -> None:
    method = Descent(RUNGS, MOST)
    method.count(True)
    rng = np.random.default_rng(5)
    slower = np.array([1.0, 1.03])
    for number in range(150):
        row = int(number > 0 and number % 5 > 0)
        count = 0.0 if number in (70, 75) else 20.0
        time_s = 20.0 * UNIT_S * slower[row] * math.exp(0.002 * rng.standard_normal())
        method.tell(Observation(
            Configuration(RUNGS.settings[row]), count, time_s, UNIT_W * time_s, 0.002 * UNIT_W * time_s, 0.02,
            at_s=6.0 * number,
        ))
    assert len(method.blocks) <= 80
    assert [each.at_s for each in method.blocks] == sorted(each.at_s for each in method.blocks)
    unit_s = np.array([each.time_s / each.count for each in method.blocks if each.count])
    assert unit_s == pytest.approx(UNIT_S * slower[method.visited(counted=True)], rel=0.02)
    assert sum(each.count for each in method.blocks) == 148 * 20.0
    assert method.about(1).time_ratio == pytest.approx(1.03, abs=0.005)
