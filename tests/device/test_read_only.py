"""An administrator's switch: nothing of a GPU is changed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import workbench
from workbench.device import restore
from workbench.errors import NotSupported
from workbench.experiments.job import RecurringJob
from workbench.measurement import session
from workbench.panels._views.apply import model
from workbench.panels._views.power.model import WatchedGpu
from workbench.records import Configuration, Setting
from workbench.simulation.machine import Machine
from workbench.simulation.training import TrainingJob
from workbench.tuning import Tuner, manual

SETTINGS = [Setting(power_limit_w=250.0), Setting(sm_clock_mhz=1200), Setting(mem_clock_mhz=1215)]


@pytest.mark.parametrize("setting", SETTINGS, ids=["limit", "sm", "mem"])
def test_a_read_only_workbench_changes_nothing_and_gives_the_reason(
    simulated: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch, setting: Setting
) -> None:
    monkeypatch.setenv("WORKBENCH_READ_ONLY", "1")
    machine = simulated("A100", stepped=True)
    before = machine.state.generation(0)
    gpu = workbench.open_device(0)
    with pytest.raises(NotSupported, match="WORKBENCH_READ_ONLY"):
        gpu.apply(setting)
    assert machine.state.generation(0) == before
    assert not any(gpu.can(name) for name in ("set_power_limit", "lock_sm_clock", "lock_mem_clock"))


def test_read_only_mode_restores_no_earlier_change_either(
    simulated: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = simulated("A100", stepped=True)
    machine.state.change_setting(0, limit_w=180.0, lock_sm_max=900)
    monkeypatch.setenv("WORKBENCH_READ_ONLY", "1")
    generation = machine.state.generation(0)
    outcome = restore.to_default(workbench.open_device(0))
    assert not outcome.settled
    assert "WORKBENCH_READ_ONLY" in outcome.sentence
    assert machine.state.generation(0) == generation


@pytest.mark.parametrize("value", ["", "0"])
def test_an_empty_switch_is_off(
    simulated: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("WORKBENCH_READ_ONLY", value)
    simulated("A100", stepped=True)
    assert workbench.open_device(0).can("set_power_limit")


def test_every_panel_that_could_change_a_gpu_reports_that_it_does_not(
    simulated: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKBENCH_READ_ONLY", "1")
    machine = simulated("A100", stepped=True)
    gpu, message = workbench.open_device(0), "WORKBENCH_READ_ONLY is set: no GPU is changed"
    control = manual.ManualControl(gpu)
    view = model.view([control], Configuration(SETTINGS[0]), None)
    assert (dict(view.facts)["Rights"], view.can_apply, view.can_default) == (message, False, False)
    assert gpu.missing_rights() == message
    made = session.Session()
    with pytest.warns(RuntimeWarning, match=message):
        notes = RecurringJob("job", batch_sizes=[32], target=0.5, meter=made.meter).notes
    assert [note for note in notes if message in note]
    assert made.recorder is not None
    assert WatchedGpu(made.recorder, made.devices[0], 0, 0.0).about()["reason"] == message
    tuner = Tuner(made.meter, model=False)
    training = TrainingJob("imagenet", 512, machine=machine, iterations=100, evaluate=False)
    for _ in training:
        tuner.advance()
    assert message in tuner.view().refused
    tuner.end()
    made.close()
    assert machine.state.generation(0) == 0


def test_clocks_alone_can_be_left_out(simulated: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch) -> None:
    machine = simulated("A40", stepped=True)
    machine.state.change_setting(0, limit_w=180.0, lock_sm_max=900)
    monkeypatch.setenv("WORKBENCH_READ_ONLY", "clocks")
    gpu = workbench.open_device(0)
    with gpu.applied(power_limit_w=200.0) as shown:
        assert shown.power_limit_w == 200.0
    for setting in SETTINGS[1:]:
        with pytest.raises(NotSupported, match="WORKBENCH_READ_ONLY=clocks"):
            gpu.apply(setting)
    outcome = restore.to_default(gpu)  # the clocks are not its own to unlock
    assert outcome.settled
    assert "WORKBENCH_READ_ONLY=clocks" in outcome.sentence
    assert machine.state.control(0, "lock_sm_max") == 900
