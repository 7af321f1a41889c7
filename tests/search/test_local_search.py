"""Searches over settings: promises that all of them keep, and what sets them apart."""

from __future__ import annotations

import re
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from workbench.errors import MeasurementError, UsageError
from workbench.records import Limits, Setting
from workbench.search.clocks.make import NAMES, ClockSearch, Done, Trial, make_search
from workbench.search.objective import Energy, EnergyDelay, EnergyWithin, Objective, Time, ZeusCost
from workbench.search.space import SettingSpace, space_from, space_of

CLOCKS = space_from(
    Limits(100.0, 300.0, 300.0, {m: tuple(range(1800, 585, -15)) for m in (5001, 4500, 1000)}), "clocks"
)
LIMITS = space_from(Limits(100.0, 300.0, 300.0), "power", step_w=10)
METHODS = NAMES


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

    def tell(self, search: ClockSearch, setting: Setting, iterations: int = 10) -> None:
        row = self.space.row(setting)
        luck = np.exp(self.noise * self.rng.standard_normal(2))
        took, drew = iterations * self.time_s[row] * luck[0], iterations * self.energy_j[row] * luck[1]
        sd = max(self.noise, 0.001) * self.time_s[row] * np.sqrt(iterations)
        search.tell(
            setting,
            iterations,
            float(took),
            float(drew),
            1.96 * max(self.noise, 0.001) * float(drew),
            float(sd),
        )

    def run(self, search: ClockSearch, most: int = 40) -> list[Setting]:
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
) -> ClockSearch:
    return make_search(name, space, objective, bound, **options)


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


@pytest.mark.parametrize("name", ["model-guided", "gpoeo"])
@pytest.mark.parametrize(
    ("told", "says"),
    [
        ((0, 1.0, 1.0), "whole iteration"),
        ((5, float("nan"), 1.0), "time is nan"),
        ((5, 1.0, -2.0), "energy is -2"),
        ((5, 1.0, 0.0), "shows nothing"),
        ((5, 1.0, 1.0, -1.0), "uncertain by 0 J"),
        ((5, 1.0, 1.0, 0.0, float("nan")), "scatter of iterations must be 0 s"),
    ],
)
def test_what_cannot_have_been_measured_changes_nothing(name: str, told: tuple[Any, ...], says: str) -> None:
    search = searching(name)
    with pytest.raises(MeasurementError, match=says):
        search.tell(CLOCKS.reference, *told)
    assert not search.measured_rows


@pytest.mark.parametrize("name", ["model-guided", "gpoeo"])
def test_before_a_probe_there_is_no_choice(name: str) -> None:
    with pytest.raises(MeasurementError, match="the reference first"):
        searching(name).choice()


def test_bad_questions_get_a_sentence() -> None:
    with pytest.raises(UsageError, match=r"'simplex'.* model-guided, gpoeo"):
        searching("simplex")
    with pytest.raises(UsageError, match="-5 %"):
        searching("model-guided", bound=-0.05)
    with pytest.raises(UsageError, match="500 %"):
        searching("gpoeo", bound=5)
    with pytest.raises(UsageError, match="200 %"):
        searching("gpoeo", objective=EnergyWithin(3.0, 1.0), bound=None)
    other = space_of([Setting(sm_clock_mhz=clock) for clock in range(1800, 1800 - len(CLOCKS), -1)])
    with pytest.raises(UsageError, match="for other settings"):
        searching("model-guided", prior=SimpleNamespace(space=other, frame=other.frame()))
    for horizon_s in (0.0, -5.0, float("nan")):
        with pytest.raises(UsageError, match="no remaining time"):
            searching("model-guided", horizon_s=horizon_s)
    with pytest.raises(UsageError, match="not one of"):
        searching("model-guided").tell(Setting(sm_clock_mhz=7), 1, 1.0, 1.0)


# a probe that runs


@pytest.mark.parametrize("name", ["model-guided", "gpoeo"])
def test_a_probe_that_breaks_the_bound_is_ended_and_one_that_may_not_is_left(name: str) -> None:
    world, search = World(CLOCKS), searching(name)
    low = CLOCKS.settings[60]
    assert not search.breaks_bound(low, 1, 9.0)  # nothing to compare with yet
    world.tell(search, CLOCKS.reference)
    assert not search.breaks_bound(low, 0, 0.0)  # it begins now
    assert search.breaks_bound(low, 1, 0.2 * 1.2)
    assert search.breaks_bound(low, 0, 0.2 * 1.2)  # an iteration that has not ended is too long already
    assert not search.breaks_bound(low, 1, 0.2 * 1.04)
    assert not search.breaks_bound(low, 1, 0.2 * 1.055)  # may be chance
    assert search.breaks_bound(low, 400, 400 * 0.2 * 1.07)
    assert not search.breaks_bound(CLOCKS.reference, 1, 9.0)
    assert not searching(name, bound=None).breaks_bound(low, 1, 9.0)


# ours


def test_it_needs_few_probes_and_finds_what_the_bound_allows() -> None:
    for compute, memory in ((0.9, 0.05), (0.3, 0.6), (0.6, 0.2)):
        world = World(CLOCKS, compute=compute, memory=memory, noise=0.01)
        search = searching("model-guided")
        asked = world.run(search)
        chosen = CLOCKS.row(search.choice().setting)
        assert len(asked) <= 10
        assert search.choice().measured
        assert world.slowdowns[chosen] <= 0.065
        assert world.energy_j[chosen] <= 1.06 * world.best(0.05)


def test_it_needs_about_as_many_probes_as_gpoeo_at_no_more_energy() -> None:
    counts: dict[str, list[int]] = {"model-guided": [], "gpoeo": []}
    costs: dict[str, list[float]] = {"model-guided": [], "gpoeo": []}
    for name in counts:
        for seed, compute in enumerate((0.9, 0.7, 0.5, 0.3)):
            world = World(CLOCKS, compute=compute, memory=0.95 - compute, noise=0.01, seed=seed)
            search = searching(name)
            counts[name].append(len(world.run(search)))
            chosen = CLOCKS.row(search.choice().setting)
            share = min(
                1.0, 0.05 / max(float(world.slowdowns[chosen]), 1e-9)
            )  # the rest of the time at the reference keeps the bound
            costs[name].append(
                (share * world.energy_j[chosen] + (1 - share) * world.energy_j[world.here]) / world.best(0.05)
            )
    assert sum(counts["model-guided"]) <= 1.25 * sum(counts["gpoeo"])
    assert np.mean(costs["model-guided"]) <= np.mean(costs["gpoeo"]) + 0.01


def test_a_cliff_that_no_physics_makes_does_not_take_the_choice_beyond_the_bound() -> None:
    watts = np.arange(100.0, 301.0, 10.0)
    space = space_of([Setting(power_limit_w=each) for each in watts])
    time_s = np.where(watts < 215, 1.09, 1.0) * (1 + 0.0001 * (300 - watts))
    energy_j = time_s * np.minimum(watts, 270)
    kept = []
    for seed in range(6):
        rng, search = np.random.default_rng(seed), make_search("model-guided", space, max_slowdown=0.05)
        while isinstance(step := search.next(), Trial):
            row = int(np.flatnonzero(watts == step.setting.power_limit_w)[0])
            slips = np.exp(0.01 * rng.standard_normal(2))
            search.tell(step.setting, 10, 10 * time_s[row] * slips[0], 10 * energy_j[row] * slips[1], 0.0, 0.03)
        choice = search.choice()
        assert choice.measured
        kept.append(choice.setting.power_limit_w >= 215)
    assert kept == [True] * 6


def test_a_memory_clock_that_costs_no_time_and_saves_half_is_found() -> None:
    """No draw of physics is like it; few of what is open come near."""
    space = space_of([
        Setting(sm_clock_mhz=sm, mem_clock_mhz=mem)
        for mem in (9501, 9251, 5001, 810) for sm in range(210, 1051, 15)
    ])
    x, mu = space.x, space.mu
    time_s = 0.1 / x
    energy_j = time_s * (30 + 12 * x + 55 * mu)
    here, found = space.reference_row, []
    for seed in range(3):
        rng, search = np.random.default_rng(seed), make_search("model-guided", space)
        while isinstance(step := search.next(), Trial):
            row, slips = space.row(step.setting), np.exp(0.01 * rng.standard_normal(2))
            took, drew = 10 * time_s[row] * slips[0], 10 * energy_j[row] * slips[1]
            search.tell(step.setting, 10, took, drew, 0.0196 * drew, 0.032 * time_s[row])
        found.append(energy_j[space.row(search.choice().setting)] / energy_j[here])
    assert sum(each < 0.6 for each in found) >= 2


@pytest.mark.parametrize("memory", [0.0, 0.02, 0.4])
def test_a_running_job_is_never_put_to_a_memory_clock_far_below_all_that_were_tried(memory: float) -> None:
    levels = (9501, 9251, 5001, 810, 405)
    space = space_from(Limits(100.0, 350.0, 350.0, {m: tuple(range(2100, 585, -15)) for m in levels}), "clocks")
    for seed in range(4):
        world = World(space, compute=0.95 - memory, memory=memory, noise=0.01, seed=seed)
        asked = world.run(searching("model-guided", space, learns_later=True))
        lowest = levels[0]
        for setting in asked:
            there = setting.mem_clock_mhz or levels[0]
            below = max((level for level in levels if level < lowest), default=lowest)
            assert there >= min(lowest / 2, below)
            lowest = min(lowest, there)


def test_it_reports_its_estimate_its_stop_reason_and_an_unusual_card() -> None:
    world, search = World(LIMITS, noise=0.01), searching("model-guided", LIMITS)
    world.run(search)
    done = search.next()
    assert isinstance(done, Done)
    says = r"; .*\d+ W takes -\d+\.\d% ± \d+\.\d% energy and .* with \d+% probability"
    assert re.search(says, done.reason)
    assert "usual curve" not in done.reason
    jumps = World(LIMITS, noise=0.001)
    jumps.time_s = jumps.time_s * np.where(np.arange(len(LIMITS)) % 4 < 2, 1.0, 1.12)
    other = searching("model-guided", LIMITS)
    for row in (LIMITS.reference_row, 1, 2, 4, 6, 8):
        jumps.tell(other, LIMITS.settings[row])
    assert "usual curve" in other.next().reason  # type: ignore[union-attr]


def test_its_belief_has_a_row_for_every_setting_and_sharpens_where_it_has_probed() -> None:
    world, search = World(CLOCKS), searching("model-guided")
    before = search.belief()
    world.run(search)
    after = search.belief()
    assert after.columns == [
        "power_limit_w",
        "sm_clock_mhz",
        "mem_clock_mhz",
        "time_ratio",
        "time_sd",
        "energy_ratio",
        "energy_sd",
        "p_allowed",
        "probes",
    ]
    assert before.height == after.height == len(CLOCKS)
    assert after["probes"].sum() == len(search.measured_rows)
    probed = after["probes"].to_numpy() > 0
    assert (
        after["time_sd"].to_numpy()[probed].mean() < 0.5 * before["time_sd"].to_numpy()[probed].mean() + 0.004
    )
    assert after["p_allowed"][CLOCKS.reference_row] == 1.0


def test_another_objective_or_bound_is_scored_again_without_a_probe() -> None:
    world, search = World(CLOCKS), searching("model-guided")
    world.run(search)
    told = len(search.measured_rows)
    tight, loose = search.choice(max_slowdown=0.01), search.choice(max_slowdown=0.3)
    assert tight.time_ratio <= 1.012
    assert loose.energy_ratio <= search.choice().energy_ratio < tight.energy_ratio  # of what was measured
    assert search.choice(Time(), 1.0).time_ratio <= 1.02
    within = search.choice(EnergyWithin(1.01, reference_time_s=0.2))
    assert within.setting == tight.setting
    assert len(search.measured_rows) == told


@pytest.mark.parametrize("objective", [EnergyDelay(1), EnergyDelay(2), ZeusCost(0.5, 300.0)])
def test_other_objectives_are_searched_as_well(objective: Objective) -> None:
    world, search = World(CLOCKS, noise=0.01), searching("model-guided", objective=objective, bound=None)
    world.run(search)
    chosen = CLOCKS.row(search.choice().setting)
    cost = np.asarray(objective.cost(world.time_s, world.energy_j))
    assert cost[chosen] <= 1.04 * world.best(None, objective)


def test_a_short_job_is_not_probed_as_long_as_a_long_one() -> None:
    counts = []
    for horizon_s in (30.0, 36000.0):
        world = World(CLOCKS, noise=0.02)
        counts.append(len(world.run(searching("model-guided", horizon_s=horizon_s))))
    assert counts[0] < counts[1]


def test_a_job_with_nothing_to_win_is_left_alone() -> None:
    """At every lower clock it takes as much longer as the clock is lower, and draws the same power."""
    search = searching("model-guided", bound=0.0)
    World(CLOCKS, compute=1.0, memory=0.0).run(search)
    assert search.choice().setting == CLOCKS.reference


def test_its_next_trial_is_chosen_quickly() -> None:
    lists = {clock: tuple(range(2100, 285, -15)) for clock in (9501, 9251, 5001, 810, 405)}
    space = space_from(Limits(100.0, 350.0, 350.0, lists), "clocks")
    world, search = World(space), searching("model-guided", space)
    spent = []
    for _ in range(4):
        step = search.next()
        if isinstance(step, Done):
            break
        world.tell(search, step.setting)
        search.choice()
        began = time.thread_time()
        search.next()
        spent.append(time.thread_time() - began)
    assert min(spent) < 0.2  # 0.1 s where nothing else runs


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
