"""The doctor's findings on well-behaved and on irregular simulated GPUs."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import workbench
from workbench import cli
from workbench.experiments.workloads import any_training
from workbench.measurement import doctor, foreign
from workbench.measurement.doctor import FAIL, INFO, PASS, WARN, Finding
from workbench.simulation.catalogue import CARDS
from workbench.simulation.machine import Machine, attached


def examined(machine: Machine, seconds: float = 16.0) -> dict[str, Finding]:
    """The findings of the first GPU, by the subject of the check."""
    device = workbench.open_device(0)
    return {each.what: each for each in doctor.gpu_findings(device, any_training(device), seconds=seconds)}


def test_a_well_behaved_gpu_passes_every_check(simulated: Callable[..., Machine]) -> None:
    found = examined(simulated("H100", stepped=True))
    assert [each for each in found.values() if each.grade == FAIL] == []
    assert found["energy counter"].grade == PASS
    assert [each.grade for name, each in found.items() if name.endswith("at rest")] == [PASS]


@pytest.mark.parametrize("card", list(CARDS))
def test_every_simulated_card_has_a_training_that_fits_it(
    simulated: Callable[..., Machine], card: str
) -> None:
    simulated(card, stepped=True)
    make = any_training(workbench.open_device(0))
    assert make is not None
    assert next(iter(make())) is not None


def test_a_counter_that_only_sums_power_readings_is_reported(simulated: Callable[..., Machine]) -> None:
    found = examined(simulated("H100,part-time", stepped=True))["energy counter"]
    assert found.grade == WARN
    assert "power readings" in found.found


def test_what_somebody_has_set_or_switched_is_reported(simulated: Callable[..., Machine]) -> None:
    machine = simulated("A100", stepped=True)
    machine.state.set_card(0, "mig", 1)
    machine.state.set_control(0, "enforced_w", 250.0)
    machine.state.set_control(0, "persistence", 1)
    device = workbench.open_device(0)
    found = {each.what: each for each in doctor.gpu_findings(device, None, seconds=4.0)}
    assert found["MIG"].grade == WARN
    assert found["power limit"].grade == WARN
    assert re.search("400 W.*250 W", found["power limit"].found)
    assert found["persistence"].grade == PASS
    assert found["under load"].grade == INFO


def test_a_slow_driver_is_reported(simulated: Callable[..., Machine]) -> None:
    simulated("A100,slow", scale=8.0)
    found = {each.what: each for each in doctor.gpu_findings(workbench.open_device(0), None, seconds=0.5)}
    assert found["time per sample"].grade == WARN


def test_findings_fit_a_bug_report(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "doctor.json"
    monkeypatch.setenv("USER", "mallory")
    status = cli.main(["doctor", "--simulate", "V100", "--no-load", "--seconds", "2", "--json", str(file)])
    reported = capsys.readouterr().out
    written = file.read_text()
    found = json.loads(written)
    assert status == int(found["fail"] > 0)
    assert "GPU 0: " in reported
    assert f"{found['fail']} FAIL, {found['warn']} WARN" in reported
    assert [gpu["simulated"] for gpu in found["gpus"]] == [True]
    machine = attached()
    assert machine is not None
    for secret in (machine.state.card(0, "uuid"), "mallory", str(Path.home()), str(tmp_path)):
        assert secret not in written
    machine.close()  # which the command leaves to the end of its process


# every property that a simulated card can be given, and what the doctor says of it


KIND = [card for card in CARDS if card != "P100"]  # whose NVML has no energy counter
PROPERTIES = {
    "part-time": ("energy counter", WARN, "only sums"),
    "moving": ("sensor refresh", PASS, "the counter changes"), "capped": ("power limit", WARN, "320 W"),
}


@pytest.mark.parametrize("card", CARDS)
def test_no_simulated_card_fails_a_check(simulated: Callable[..., Machine], card: str) -> None:
    found = examined(simulated(card, stepped=True))
    assert [str(each) for each in found.values() if each.grade == FAIL] == []
    if card in KIND:
        assert found["sensor refresh"].found.startswith("every ")


@pytest.mark.parametrize("name", PROPERTIES)
def test_every_property_of_an_irregular_gpu_is_reported(simulated: Callable[..., Machine], name: str) -> None:
    what, grade, part = PROPERTIES[name]
    found = examined(simulated(f"A100,{name}", stepped=True))
    assert found[what].grade == grade
    assert part in found[what].found
    kind = examined(simulated("A100", stepped=True))
    assert part not in kind[what].found
    assert [str(each) for each in found.values() if each.grade == FAIL] == []


def test_a_gpu_that_computes_is_not_checked_at_rest(simulated: Callable[..., Machine]) -> None:
    machine = simulated("H100", stepped=True)
    machine.state.publish(0, machine.clock(), [], (400.0, 1500, 2619, 1.0, 0.5, 0))
    found = {each.what for each in doctor.gpu_findings(workbench.open_device(0), None, seconds=4.0)}
    assert "counter / readings, while another program computes" in found
    assert "counter / readings, at rest" not in found


def test_a_gpu_without_energy_and_power_fails(simulated: Callable[..., Machine]) -> None:
    machine = simulated("H100", stepped=True)
    for name in ("field:83", "field:186", "nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetPowerUsage"):
        machine.inject(name, 3)
    machine.inject("nvmlDeviceGetComputeRunningProcesses_v3", 3)
    found = {each.what: each for each in doctor.gpu_findings(workbench.open_device(0), None, seconds=1.0)}
    assert found["counter / readings, at rest"].grade == FAIL
    assert found["other processes"].grade == WARN


@pytest.mark.parametrize(("update_s", "grade"), [(1e6, FAIL), (1.5, INFO), (0.1, PASS)])
def test_a_counter_is_compared_as_exactly_as_it_refreshes(
    simulated: Callable[..., Machine], update_s: float, grade: str
) -> None:
    """A counter that stands still fails; one that refreshes rarely is not compared in a few seconds."""
    machine = simulated("A100", stepped=True)
    machine.state.set_card(0, "counter_update_s", update_s)
    found = {each.what: each for each in doctor.gpu_findings(workbench.open_device(0), None, seconds=8.0)}
    assert found["counter / readings, at rest"].grade == grade, found["counter / readings, at rest"]


def test_who_else_is_there_is_reported(
    simulated: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = simulated("A100,host-pids", stepped=True)
    machine.state.set_process(0, os.getpid(), 2**30)
    monkeypatch.setattr(foreign, "with_open", lambda _: set())
    gpu = workbench.open_device(0)
    found = {each.what: each for each in doctor.gpu_findings(gpu, None, seconds=0.5)}
    assert "1 without" in found["other processes"].found
    machine.state.set_card(0, "mps", 2**22 + 5)
    machine.state.set_control(0, "forced_reasons", 0x2)
    found = {each.what: each for each in doctor.gpu_findings(gpu, None, seconds=0.5)}
    assert found["MPS"].found == "1 client"
    assert (found["clocks"].grade, found["persistence"].grade) == (WARN, WARN)


def test_a_report_hides_user_host_path_and_uuid(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor.socket, "gethostname", lambda: "node-17")
    monkeypatch.setattr(doctor.getpass, "getuser", lambda: "mallory")
    message = "mallory's job on node-17 holds /home/mallory/x.lock of GPU-1234abcd-12 (1/2 W/s, 3 W / 4 W)"
    finding = Finding(WARN, "a", message, "b")
    found = doctor.report([finding], {})
    masked = found["machine"][0]["found"]
    assert not re.search("mallory|node-17|1234abcd", masked)
    assert all(each in masked for each in ("[user]'s", "[host]", "[path]", "[uuid]", "(1/2 W/s, 3 W / 4 W)"))
    assert found["versions"]["Python"]


def test_an_idle_gpu_at_a_high_clock_is_reported(simulated: Callable[..., Machine]) -> None:
    machine = simulated("A100", stepped=True)
    device = workbench.open_device(0)
    found = {each.what: each for each in doctor.gpu_findings(device, None, seconds=4.0)}["idle clocks"]
    assert found.grade == PASS
    assert re.fullmatch("SM 210 of 1410 MHz, 5[0-9] W", found.found)
    machine.state.publish(0, machine.clock(), [], (100.0, 1410, 1593, 0.0, 0.0, 0))
    found = {each.what: each for each in doctor.gpu_findings(device, None, seconds=4.0)}["idle clocks"]
    assert found.grade == WARN
    assert re.fullmatch("SM 1410 of 1410 MHz, 9[0-9] W", found.found)
    assert "DCGM" in found.means


def test_a_busy_gpu_has_no_finding_about_idle_clocks(simulated: Callable[..., Machine]) -> None:
    machine = simulated("A100", stepped=True)
    machine.state.publish(0, machine.clock(), [], (300.0, 1410, 1593, 1.0, 0.5, 0))
    found = doctor.gpu_findings(workbench.open_device(0), None, seconds=4.0)
    assert "idle clocks" not in {each.what for each in found}
