"""The settings that a search may use."""

from __future__ import annotations

import pytest

from workbench.errors import UsageError
from workbench.records import Limits, Setting
from workbench.search.space import knobs, space_from, space_of

AMPERE = Limits(100.0, 350.0, 400.0, {9501: (2100, 1800, 1500), 810: (1800, 1500), 405: (420,)})


def test_clocks_are_what_the_card_pairs_with_the_highest_of_both_as_reference() -> None:
    space = space_from(AMPERE, "clocks")
    assert len(space) == 6
    assert space.reference == Setting(sm_clock_mhz=2100, mem_clock_mhz=9501)
    assert (space.max_sm_clock_mhz, space.max_mem_clock_mhz, space.max_power_limit_w) == (2100, 9501, 350.0)
    assert Setting(sm_clock_mhz=2100, mem_clock_mhz=810) not in space.settings


def test_a_memory_clock_that_cannot_be_locked_is_left_to_the_driver() -> None:
    space = space_from(AMPERE, "clocks", can_lock_memory=False)
    assert space.settings == tuple(Setting(sm_clock_mhz=clock) for clock in (2100, 1800, 1500))
    assert list(space.mu) == [1.0, 1.0, 1.0]


def test_one_memory_clock_is_never_named() -> None:
    assert space_from(Limits(100, 300, 300, {877: (1380, 1200)}), "clocks").reference == Setting(
        sm_clock_mhz=1380
    )


def test_power_limits_go_in_equal_steps_from_the_default_to_the_lowest() -> None:
    space = space_from(AMPERE, "power", step_w=60)
    assert [each.power_limit_w for each in space.settings] == [350.0, 290.0, 230.0, 170.0, 110.0, 100.0]
    assert space.reference == Setting(power_limit_w=350.0)
    assert len(space_from(AMPERE, "power")) == 51  # 5 W apart


def test_both_means_the_clocks_and_also_the_limits_below_the_default() -> None:
    space = space_from(AMPERE, "both", step_w=50)
    assert space.reference == Setting(sm_clock_mhz=2100, mem_clock_mhz=9501)
    assert [each.power_limit_w for each in space.settings[6:]] == [300.0, 250.0, 200.0, 150.0, 100.0]
    assert all(each.sm_clock_mhz is None for each in space.settings[6:])


@pytest.mark.parametrize(
    ("limits", "over", "says"),
    [
        (Limits(), "clocks", "neither clocks"),
        (Limits(), "power", "neither clocks"),
        (Limits(), "both", "neither clocks"),
        (Limits(100, 300, 300), "clocks", "choose power"),
        (Limits(sm_clocks_mhz={877: (1380, 1200)}), "power", "choose clocks"),
        (Limits(300, 300, 300), "power", "neither clocks"),
        (AMPERE, "voltage", "'voltage'"),
    ],
)
def test_where_nothing_can_be_set_an_alternative_is_named(limits: Limits, over: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        space_from(limits, over)  # type: ignore[arg-type]


def test_a_step_of_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="0 W apart"):
        space_from(AMPERE, "power", step_w=0)



def test_a_table_names_its_reference_by_the_highest_clocks() -> None:
    settings = [
        Setting(sm_clock_mhz=900, mem_clock_mhz=810),
        Setting(sm_clock_mhz=900, mem_clock_mhz=5001),
        Setting(sm_clock_mhz=1200, mem_clock_mhz=810),
    ]
    assert space_of(settings).reference == settings[1]
    with pytest.raises(UsageError, match="among the 3 settings"):
        space_of(settings, Setting(sm_clock_mhz=1))
    with pytest.raises(UsageError, match="no setting"):
        space_of([])


def test_a_driver_that_rounds_a_limit_is_understood_and_another_setting_is_not() -> None:
    space = space_of([Setting(power_limit_w=300.0), Setting(power_limit_w=250.0)])
    assert space.row(Setting(power_limit_w=249.6)) == 1
    with pytest.raises(UsageError, match="of the 2 settings"):
        space.row(Setting(power_limit_w=200.0))


def test_values_left_to_the_driver_are_null_in_a_frame() -> None:
    assert knobs([Setting(sm_clock_mhz=900)]).row(0) == (None, 900, None)
