"""Another vendor's GPU is measured, shown and checked through `WORKBENCH_DRIVER` alone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import workbench
from workbench import panels
from workbench.device import driver
from workbench.errors import NotSupported
from workbench.measurement import doctor, gpu_table, session
from workbench.records import Setting

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures" / "drivers"


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Iterator[session.Session]:
    """A session that measures the other vendor's second card."""
    monkeypatch.syspath_prepend(str(FIXTURES))
    monkeypatch.setenv("WORKBENCH_DRIVER", "other_vendor")
    monkeypatch.setenv("OTHER_VISIBLE_CARDS", "1")
    session.current().close()
    yield session.current()
    session.current().close()


def _busy(seconds: float) -> None:
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        pass


def test_energy_is_measured_by_a_sampling_process_with_the_same_driver(card: session.Session) -> None:
    window = card.meter.open("work")
    _busy(0.3)
    window = card.meter.close(window)
    gpu = card.meter.measure(window).gpus[0]
    assert (gpu.uuid, gpu.name, gpu.source) == ("board_00a1.1", "Other X1", "counter")
    assert gpu.energy_j == pytest.approx(150.0 * ((window.end_s or 0.0) - window.start_s), rel=0.05)
    assert gpu.energy_uncertainty_j is not None
    assert gpu.mean_power_w == pytest.approx(150.0, rel=0.05)


def test_the_live_panel_shows_it_without_a_slider(card: session.Session) -> None:
    assert card.recorder is not None
    panel = panels.PowerView(card.recorder, card.devices)
    _busy(0.2)
    text, _ = panel.snapshot()
    (shown,) = text["gpus"]
    assert (shown["uuid"], shown["low"]) == ("board_00a1.1", None)
    assert text["energy"][0] > 0.0
    assert "Other X1" in panel.svg()
    panel.end()
    assert panels.apply(live=False).about()["knobs"] == {"limits": None, "sm": [], "memory": []}


def test_doctor_checks_it_and_its_report_hides_the_identifier(card: session.Session) -> None:
    (gpu,) = card.devices
    machine, found = doctor.machine_findings(), doctor.gpu_findings(gpu, seconds=0.3)
    assert not [each for each in (*machine, *found) if each.grade == doctor.FAIL]
    named = doctor.Finding(doctor.INFO, "gpu", f"{gpu.uuid} is busy", "")
    assert doctor.report([named], {gpu: found})["machine"][0]["found"] == "[uuid] is busy"
    assert "energy" in "\n".join(gpu_table.lines([gpu]))


def test_unsupported_actions_are_refused_with_a_reason(card: session.Session) -> None:
    gpu = workbench.open_device("board_00a1.0")
    with pytest.raises(NotSupported, match="Other X1"):
        gpu.apply(power_limit_w=100.0)
    assert gpu.setting() == Setting()
    assert [each.uuid for each in workbench.devices()] == ["board_00a1.1"]


def test_simulated_gpus_stay_behind_their_own_driver(
    card: session.Session, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert driver.current().NAME == "ovml"
    monkeypatch.setenv("WORKBENCH_SIMULATED_GPUS", str(tmp_path / "machine"))
    assert driver.current().NAME == "NVML"
