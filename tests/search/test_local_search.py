"""Searches over settings: promises that all of them keep, and what sets them apart."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from workbench.errors import MeasurementError, UsageError
from workbench.records import Limits, Setting
from workbench.search.clocks.base import Done, Scripted, Trial
from workbench.search.clocks.gpoeo import Golden
from workbench.search.objective import Energy, EnergyWithin, Objective
from workbench.search.space import SettingSpace, space_from, space_of

CLOCKS = space_from(
    Limits(100.0, 300.0, 300.0, {m: tuple(range(1800, 585, -15)) for m in (5001, 4500, 1000)}), "clocks"
)
LIMITS = space_from(Limits(100.0, 300.0, 300.0), "power", step_w=10)
METHODS = ("gpoeo",)


class World:
    """A job whose answers can be worked out on paper; noise on request."""

    def __init__(
        self,
        space: SettingSpace,
        *,
        compute: float = 0.7,
        memory: float = 0.2,
        noise: float = 0.0,
        seed: int = 0,
    ) -> None:
        self.space, self.noise, self.rng = space, noise, np.random.default_rng(seed)
        gap = 1 - compute - memory
        x = np.minimum(space.x, (np.clip(space.limit * 300 - 70, 1, None) / 180) ** (1 / 3))
        self.time_s = 0.2 * (compute / x + memory / space.mu + gap)
        self.energy_j = self.time_s * (70 + 30 * space.mu + 150 * x**3)
        self.here = space.reference_row
        self.slowdowns = self.time_s / self.time_s[self.here] - 1

    def tell(self, search: Scripted, setting: Setting, iterations: int = 10) -> None:
        row = self.space.row(setting)
        luck = np.exp(self.noise * self.rng.standard_normal(2))
        took, drew = iterations * self.time_s[row] * luck[0], iterations * self.energy_j[row] * luck[1]
        search.tell(
            setting,
            iterations,
            float(took),
            float(drew),
            1.96 * max(self.noise, 0.001) * float(drew),
        )

    def run(self, search: Scripted, most: int = 40) -> list[Setting]:
        asked = []
        while len(asked) < most and isinstance(step := search.next(), Trial):
            asked.append(step.setting)
            self.tell(search, step.setting)
        return asked

    def best(self, bound: float | None, objective: Objective | None = None) -> float:
        cost = np.asarray((objective or Energy()).cost(self.time_s, self.energy_j))
        return float(cost[self.slowdowns <= (np.inf if bound is None else bound) + 1e-9].min())


def searching(
    name: str,
    space: SettingSpace = CLOCKS,
    objective: Objective | None = None,
    bound: float | None = 0.05,
    **options: Any,
) -> Scripted:
    return make_search(name, space, objective, bound, **options)


def make_search(name: str, *args: Any, **options: Any) -> Scripted:
    """GPOEO's search; tests of the peers put theirs here."""
    assert name == "gpoeo"
    return Golden(*args, **options)


# what all of them keep


@pytest.mark.parametrize("name", METHODS)
def test_a_search_begins_with_the_reference_ends_by_itself_and_keeps_the_bound(name: str) -> None:
    world, search = World(CLOCKS), searching(name)
    asked = world.run(search)
    assert asked[0] == CLOCKS.reference
    assert set(asked) <= set(CLOCKS.settings)
    done = search.next()
    assert isinstance(done, Done)
    assert done.reason
    assert len(search.measured_rows) == len(asked) < 40
    choice = search.choice()
    assert world.slowdowns[CLOCKS.row(choice.setting)] <= 0.055
    assert choice.energy_ratio <= 1.0


@pytest.mark.parametrize("name", METHODS)
def test_a_repeated_request_returns_the_same_trial(name: str) -> None:
    world, search = World(CLOCKS), searching(name)
    for _ in range(3):
        first, second = search.next(), search.next()
        assert first == second
        if isinstance(first, Trial):
            world.tell(search, first.setting)


@pytest.mark.parametrize("name", METHODS)
def test_what_cannot_be_set_is_not_asked_for_again_nor_chosen(name: str) -> None:
    world, search = World(CLOCKS), searching(name)
    refused: set[Setting] = set()
    for _ in range(60):
        step = search.next()
        if not isinstance(step, Trial):
            break
        assert step.setting not in refused
        if step.setting.mem_clock_mhz != 5001:
            refused.add(step.setting)
            search.cannot(step.setting, "the driver says no")
        else:
            world.tell(search, step.setting)
    assert isinstance(search.next(), Done)
    assert search.choice().setting not in refused


@pytest.mark.parametrize("name", METHODS)
def test_a_tried_setting_that_can_no_longer_be_set_is_not_chosen(name: str) -> None:
    world, search = World(CLOCKS), searching(name)
    world.tell(search, CLOCKS.reference)
    good = CLOCKS.settings[int(np.argmin(np.where(world.slowdowns <= 0.02, world.energy_j, np.inf)))]
    for _ in range(3):
        world.tell(search, good)
    assert search.choice().energy_ratio < 0.99
    search.cannot(good, "the driver says no")
    assert search.choice().setting != good


@pytest.mark.parametrize("name", METHODS)
def test_power_limits_are_searched_alike(name: str) -> None:
    world, search = World(LIMITS), searching(name, LIMITS)
    world.run(search)
    chosen = LIMITS.row(search.choice().setting)
    assert world.slowdowns[chosen] <= 0.055
    assert world.energy_j[chosen] <= world.energy_j[world.here]


@pytest.mark.parametrize("name", METHODS)
def test_a_reference_that_cannot_be_set_ends_it_with_the_reason(name: str) -> None:
    search = searching(name)
    search.cannot(CLOCKS.reference, "no rights")
    done = search.next()
    assert isinstance(done, Done)
    assert "no rights" in done.reason


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize(
    ("told", "says"),
    [
        ((0, 1.0, 1.0), "whole iteration"),
        ((5, float("nan"), 1.0), "time is nan"),
        ((5, 1.0, -2.0), "energy is -2"),
        ((5, 1.0, 0.0), "shows nothing"),
        ((5, 1.0, 1.0, -1.0), "uncertain by 0 J"),
    ],
)
def test_what_cannot_have_been_measured_changes_nothing(name: str, told: tuple[Any, ...], says: str) -> None:
    search = searching(name)
    with pytest.raises(MeasurementError, match=says):
        search.tell(CLOCKS.reference, *told)
    assert not search.measured_rows


@pytest.mark.parametrize("name", METHODS)
def test_before_a_probe_there_is_no_choice(name: str) -> None:
    with pytest.raises(MeasurementError, match="the reference first"):
        searching(name).choice()


def test_bad_questions_get_a_sentence() -> None:
    with pytest.raises(UsageError, match="-5 %"):
        searching("gpoeo", bound=-0.05)
    with pytest.raises(UsageError, match="500 %"):
        searching("gpoeo", bound=5)
    with pytest.raises(UsageError, match="200 %"):
        searching("gpoeo", objective=EnergyWithin(3.0, 1.0), bound=None)
    other = space_of([Setting(sm_clock_mhz=clock) for clock in range(1800, 1800 - len(CLOCKS), -1)])
    with pytest.raises(UsageError, match="for other settings"):
        searching("gpoeo", prior=SimpleNamespace(space=other, frame=other.frame()))
    with pytest.raises(UsageError, match="not one of"):
        searching("gpoeo").tell(Setting(sm_clock_mhz=7), 1, 1.0, 1.0)


# GPOEO's


def test_gpoeo_tries_at_most_three_points_for_the_memory_clock_before_it_walks_the_sm_clock() -> None:
    world, search = World(CLOCKS), searching("gpoeo")
    asked = world.run(search)
    memories = [each.mem_clock_mhz for each in asked[1:]]
    chosen = memories[-1]
    assert sum(clock != chosen for clock in memories) <= 2
    assert len({each.sm_clock_mhz for each in asked[1:] if each.mem_clock_mhz != chosen}) <= 1


def test_gpoeo_answers_with_a_gear_of_the_cubic_between_its_probes() -> None:
    world, search = World(CLOCKS), searching("gpoeo")
    asked = world.run(search)
    choice = search.choice()
    clocks = [each.sm_clock_mhz for each in asked if each.mem_clock_mhz == choice.setting.mem_clock_mhz]
    assert min(c for c in clocks if c) <= (choice.setting.sm_clock_mhz or 0) <= max(c for c in clocks if c)
    assert world.energy_j[CLOCKS.row(choice.setting)] <= 1.05 * world.best(0.05)


def test_gpoeo_measures_no_gear_twice() -> None:
    asked = World(CLOCKS).run(searching("gpoeo"))
    assert len(asked) == len(set(asked))
