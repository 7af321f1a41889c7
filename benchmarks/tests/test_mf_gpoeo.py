"""MF-GPOEO's search steers the slowdown as its authors' does."""

from __future__ import annotations

from benchmarks.peers import make_search
from tests.search.test_local_search import CLOCKS, World
from workbench.records import Limits
from workbench.search.clocks.gpoeo import Gpoeo
from workbench.search.space import SettingSpace, space_from


def searching(space: SettingSpace) -> Gpoeo:
    return make_search("mf-gpoeo", space, max_slowdown=0.05)


def test_feedback_steers_the_slowdown_to_just_below_the_bound() -> None:
    space = space_from(Limits(sm_clocks_mhz={5001: tuple(range(1800, 585, -15))}), "clocks")
    sample, search = World(space, compute=0.35, memory=0.1), searching(space)
    asked = sample.run(search)
    assert len(asked) <= 12
    assert 0.03 <= sample.slowdowns[search.held()] <= 0.0501


def test_feedback_takes_a_lower_memory_clock_only_where_it_keeps_the_bound_and_pays() -> None:
    idle, busy = World(CLOCKS, compute=0.4, memory=0.01), World(CLOCKS, compute=0.3, memory=0.5)
    for sample, expected in ((idle, 1000), (busy, 5001)):
        search = searching(CLOCKS)
        asked = sample.run(search)
        assert CLOCKS.settings[asked[-1]].mem_clock_mhz == expected
