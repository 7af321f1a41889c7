"""An administrator's switch: nothing of a GPU is changed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import workbench
from workbench.device import restore
from workbench.errors import NotSupported
from workbench.records import Setting
from workbench.simulation.machine import Machine

SETTINGS = [Setting(power_limit_w=250.0), Setting(sm_clock_mhz=1200), Setting(mem_clock_mhz=1215)]


@pytest.mark.parametrize("setting", SETTINGS, ids=["limit", "sm", "mem"])
def test_a_read_only_workbench_changes_nothing_and_says_why(
    simulated: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch, setting: Setting
) -> None:
    monkeypatch.setenv("WORKBENCH_READ_ONLY", "1")
    machine = simulated("A100", stepped=True)
    before = machine.state.generation(0)
    gpu = workbench.open_device(0)
    with pytest.raises(NotSupported, match="WORKBENCH_READ_ONLY is set: no GPU is changed"):
        gpu.apply(setting)
    assert machine.state.generation(0) == before
    assert not any(gpu.can(name) for name in ("set_power_limit", "lock_sm_clock", "lock_mem_clock"))


def test_what_was_left_changed_is_not_restored_either(
    simulated: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = simulated("A100", stepped=True)
    machine.state.change_setting(0, limit_w=180.0, lock_sm_max=900)
    monkeypatch.setenv("WORKBENCH_READ_ONLY", "1")
    generation = machine.state.generation(0)
    outcome = restore.to_default(workbench.open_device(0))
    assert not outcome.settled
    assert "WORKBENCH_READ_ONLY is set: no GPU is changed" in outcome.sentence
    assert machine.state.generation(0) == generation


@pytest.mark.parametrize("value", ["", "0"])
def test_an_empty_switch_is_off(
    simulated: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("WORKBENCH_READ_ONLY", value)
    simulated("A100", stepped=True)
    assert workbench.open_device(0).can("set_power_limit")
