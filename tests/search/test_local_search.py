"""GPOEO's search: promises that the peers of the benchmarks keep too, and its own rules."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from workbench.records import Configuration, Limits, Observation
from workbench.search.clocks.effects import ladders
from workbench.search.clocks.gpoeo import Gpoeo
from workbench.search.objective import Energy, EnergyDelay, Objective
from workbench.search.space import SettingSpace, space_from

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

    def block(self, search: Gpoeo, row: int, iterations: int = 10) -> Observation:
        luck = np.exp(self.noise * self.rng.standard_normal(2))
        took, drew = iterations * self.time_s[row] * luck[0], iterations * self.energy_j[row] * luck[1]
        error_j = max(self.noise, 0.001) * float(drew)
        at_s = search.now_s + 0.5 * took
        at = Configuration(search.rungs.settings[row])
        return Observation(at, iterations, float(took), float(drew), error_j, self.noise, at_s=float(at_s))

    def tell(self, search: Gpoeo, row: int) -> None:
        """Report a trial of the work that never changes."""
        block = self.block(search, row)
        search.blocks.append(block)
        search.now_s += block.time_s

    def run(self, search: Gpoeo, most: int = 40) -> list[int]:
        """Try what the search asks for; returns the rows."""
        asked: list[int] = []
        while len(asked) < most and (plan := search.next(search.now_s)).kind != "held":
            asked.append(plan.row)
            self.tell(search, plan.row)
        return asked

    def best(self, bound: float | None, objective: Objective | None = None) -> float:
        cost = np.asarray((objective or Energy()).cost(self.time_s, self.energy_j))
        return float(cost[self.slowdowns <= (np.inf if bound is None else bound) + 1e-9].min())


def searching(
    name: str = "gpoeo", space: SettingSpace = CLOCKS, objective: Objective | None = None,
    bound: float | None = 0.05,
) -> Gpoeo:
    return make_search(name, space, objective, bound)


def make_search(name: str, space: SettingSpace, *options: Any) -> Gpoeo:
    """GPOEO's search; tests of the peers put theirs here."""
    assert name == "gpoeo"
    rungs = ladders(space, float(space.max_sm_clock_mhz or 1), 300.0)
    search = Gpoeo(rungs, np.full(len(space), np.inf), *options, space=space)
    search.count(True)
    return search


# what all of them keep


@pytest.mark.parametrize("name", METHODS)
def test_a_search_begins_with_the_reference_ends_by_itself_and_keeps_the_bound(name: str) -> None:
    world, search = World(CLOCKS), searching(name)
    asked = world.run(search)
    assert asked[0] == CLOCKS.reference_row
    assert len(asked) < 40
    plan = search.next(search.now_s)
    assert (plan.kind, plan.row) == ("held", search.held())
    assert world.slowdowns[plan.row] <= 0.055
    assert world.energy_j[plan.row] <= world.energy_j[world.here]


def test_a_choice_of_gpoeo_is_held_however_many_blocks_follow() -> None:
    world, search = World(CLOCKS, noise=0.01), searching("gpoeo")
    world.run(search)
    held = search.held()
    for _ in range(120):
        plan = search.next(search.now_s)
        assert (plan.kind, plan.row) == ("held", held)
        world.tell(search, plan.row)


@pytest.mark.parametrize("name", METHODS)
def test_a_repeated_request_returns_the_same_trial(name: str) -> None:
    world, search = World(CLOCKS), searching(name)
    for _ in range(3):
        first, second = search.next(search.now_s), search.next(search.now_s)
        assert first == second
        if first.kind != "held":
            world.tell(search, first.row)


@pytest.mark.parametrize("name", METHODS)
def test_a_setting_that_cannot_be_set_is_not_asked_for_again_nor_held(name: str) -> None:
    world, search = World(CLOCKS), searching(name)
    for _ in range(60):
        plan = search.next(search.now_s)
        if plan.kind == "held":
            break
        assert plan.row not in search.barred
        if CLOCKS.settings[plan.row].mem_clock_mhz != 5001:
            search.bar(plan.row, "the driver refuses it")
        else:
            world.tell(search, plan.row)
    assert search.next(search.now_s).kind == "held"
    assert search.held() not in search.barred


@pytest.mark.parametrize("name", METHODS)
def test_a_tried_setting_that_can_no_longer_be_set_is_not_held(name: str) -> None:
    world, search = World(CLOCKS), searching(name)
    world.tell(search, CLOCKS.reference_row)
    good = int(np.argmin(np.where(world.slowdowns <= 0.02, world.energy_j, np.inf)))
    world.tell(search, good)
    assert search.held() == good
    search.bar(good, "the driver refuses it")
    assert search.held() == CLOCKS.reference_row


@pytest.mark.parametrize("name", METHODS)
def test_power_limits_are_searched_alike(name: str) -> None:
    world, search = World(LIMITS), searching(name, LIMITS)
    world.run(search)
    assert world.slowdowns[search.held()] <= 0.055
    assert world.energy_j[search.held()] <= world.energy_j[world.here]


# GPOEO's


def test_gpoeo_tries_at_most_three_points_for_the_memory_clock_before_it_walks_the_sm_clock() -> None:
    world, search = World(CLOCKS), searching()
    asked = [CLOCKS.settings[row] for row in world.run(search)]
    memories = [each.mem_clock_mhz for each in asked[1:]]
    chosen = memories[-1]
    assert sum(clock != chosen for clock in memories) <= 2
    assert len({each.sm_clock_mhz for each in asked[1:] if each.mem_clock_mhz != chosen}) <= 1


def test_gpoeo_holds_a_gear_of_the_cubic_between_its_probes() -> None:
    world, search = World(CLOCKS), searching()
    asked = [CLOCKS.settings[row] for row in world.run(search)]
    held = CLOCKS.settings[search.held()]
    clocks = [each.sm_clock_mhz for each in asked if each.mem_clock_mhz == held.mem_clock_mhz]
    assert min(c for c in clocks if c) <= (held.sm_clock_mhz or 0) <= max(c for c in clocks if c)
    assert world.energy_j[search.held()] <= 1.05 * world.best(0.05)


def test_gpoeo_measures_no_gear_twice() -> None:
    asked = World(CLOCKS).run(searching())
    assert len(asked) == len(set(asked))


@pytest.mark.parametrize(("objective", "bound"), [(EnergyDelay(2), 0.05), (Energy(), 0.2), (Energy(), None)])
def test_another_objective_or_limit_continues_the_search_from_the_same_trials(
    objective: Objective, bound: float | None
) -> None:
    world, search = World(CLOCKS), searching()
    before = world.run(search)
    search.objective, search.max_slowdown = objective, bound
    after = world.run(search)
    assert not set(before) & set(after)
    assert bound is None or world.slowdowns[search.held()] <= 1.1 * bound
    cost = float(objective.cost(world.time_s[search.held()], world.energy_j[search.held()]))
    assert cost <= 1.05 * world.best(bound, objective)


def test_an_unexpected_memory_clock_is_measured_again_after_the_default() -> None:
    world, search = World(CLOCKS, compute=0.1, memory=0.8), searching(bound=1.0)
    rows: list[int] = []
    while (plan := search.next(search.now_s)).kind != "held" and len(rows) < 60:
        rows.append(plan.row)
        assert not search.tell(world.block(search, plan.row))
    assert plan.kind == "held"
    assert rows.count(world.here) >= 2


def test_without_counted_iterations_the_clocks_alone_decide() -> None:
    search = searching()
    search.count(False)
    plan = search.next(1.0)
    assert (plan.kind, plan.row) == ("clocks", CLOCKS.reference_row)
    assert search.held() == CLOCKS.reference_row
