"""What the doctor says of kind and of rough simulated GPUs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import workbench
from workbench import cli
from workbench.experiments.workloads import any_training
from workbench.measurement import doctor
from workbench.measurement.doctor import FAIL, INFO, PASS, WARN, Finding
from workbench.simulation.catalogue import CARDS
from workbench.simulation.machine import Machine, attached


def examined(machine: Machine, seconds: float = 16.0) -> dict[str, Finding]:
    """The findings of the first GPU, by what was looked at."""
    device = workbench.open_device(0)
    return {each.what: each for each in doctor.gpu_findings(device, any_training(device), seconds=seconds)}


def test_a_kind_gpu_fails_nothing(simulated: Callable[..., Machine]) -> None:
    found = examined(simulated("H100", stepped=True))
    assert [each for each in found.values() if each.grade == FAIL] == []
    assert found["energy counter"].grade == PASS
    assert found["counter / readings, at rest"].grade == PASS


@pytest.mark.parametrize("card", list(CARDS))
def test_every_simulated_card_has_a_training_that_fits_it(
    simulated: Callable[..., Machine], card: str
) -> None:
    simulated(card, stepped=True)
    make = any_training(workbench.open_device(0))
    assert make is not None
    assert next(iter(make())) is not None


def test_a_counter_that_only_sums_power_readings_is_told(simulated: Callable[..., Machine]) -> None:
    found = examined(simulated("H100,part-time", stepped=True))["energy counter"]
    assert found.grade == WARN
    assert found.found.startswith("only sums power readings (")


def test_what_somebody_has_set_or_switched_is_told(simulated: Callable[..., Machine]) -> None:
    machine = simulated("A100", stepped=True)
    machine.state.set_card(0, "mig", 1)
    machine.state.set_control(0, "enforced_w", 250.0)
    machine.state.set_control(0, "persistence", 1)
    device = workbench.open_device(0)
    found = {each.what: each for each in doctor.gpu_findings(device, None, seconds=4.0)}
    assert found["MIG"].grade == WARN
    assert found["power limit"].grade == WARN
    assert found["power limit"].found == "400 W requested, 250 W enforced"
    assert found["persistence"].grade == PASS
    assert found["under load"].grade == INFO


def test_a_slow_driver_is_told(simulated: Callable[..., Machine]) -> None:
    simulated("A100,slow", scale=8.0)
    assert doctor._call_cost(workbench.open_device(0)).grade == FAIL


def test_findings_fit_a_bug_report(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "doctor.json"
    monkeypatch.setenv("USER", "mallory")
    status = cli.main(["doctor", "--simulate", "V100", "--no-load", "--seconds", "2", "--json", str(file)])
    told = capsys.readouterr().out
    written = file.read_text()
    found = json.loads(written)
    assert status == int(found["fail"] > 0)
    assert "GPU 0: " in told
    assert f"{found['fail']} FAIL, {found['warn']} WARN" in told
    assert [gpu["simulated"] for gpu in found["gpus"]] == [True]
    machine = attached()
    assert machine is not None
    for secret in (machine.state.card(0, "uuid"), "mallory", str(Path.home()), str(tmp_path)):
        assert secret not in written
    machine.close()  # which the command leaves to the end of its process
