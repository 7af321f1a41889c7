"""On every machine the same: GPUs are listed and measured, settings are applied and restored, the doctor ends."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from driver_machines import Machine, needs_stand_in, simulated, stand_in, versions

# Stand-in machines: driver, what the GPUs are, and what is expected of them.
STEADY = {"load": 1}
MACHINES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "A100": ("570", {"gpus": [{"model": "A100", "load": 2}]}, {}),
    "A100, R470": ("470", {"gpus": [{"model": "A100", "load": 2}]}, {}),
    "8 H100": ("570", {"gpus": [{"model": "H100", "count": 8, "load": 2}]}, {"count": 8}),
    "V100": ("550", {"gpus": [{"model": "V100", **STEADY}]}, {}),
    "T4": ("535", {"gpus": [{"model": "T4", **STEADY}]}, {}),
    "P100": ("535", {"gpus": [{"model": "P100", **STEADY}]}, {"source": "integrated"}),
    "GTX 1080 Ti": ("550", {"gpus": [{"model": "GTX1080TI", **STEADY}]}, {"source": "integrated"}),
    "A40": ("550", {"gpus": [{"model": "A40", **STEADY}]}, {}),
    "RTX 3090": ("580", {"gpus": [{"model": "RTX3090", **STEADY}]}, {}),
    "GH200": ("570", {"gpus": [{"model": "GH200", **STEADY}]}, {}),
    "B200": ("615", {"gpus": [{"model": "B200", "count": 2, **STEADY}]}, {"count": 2}),
    "slow calls": ("570", {"ms_energy": 5, "ms_fields": 6, "ms_power": 5, "gpus": [{"model": "A100", **STEADY}]}, {}),
    "MIG": ("570", {"gpus": [{"model": "A100", **STEADY, "mig": ["MIG-11111111-aaaa-bbbb-cccc-000000000001"]}]}, {}),
    "vGPU": ("570", {"gpus": [{"model": "A100", **STEADY, "vgpu": 1}]}, {"source": None, "sets": "no"}),
    "no rights": ("570", {"root": 2, "gpus": [{"model": "A100", **STEADY}]}, {"sets": "NotPermitted"}),
    "settings ignored": ("570", {"gpus": [{"model": "A100", **STEADY, "set_ignored": 1}]}, {"sets": "DriverError"}),
    "limits clamped": ("570", {"gpus": [{"model": "A100", **STEADY, "limit_clamp": 1, "limit_quantum_mw": 1000}]}, {}),
    "a cap below": ("570", {"gpus": [{"model": "H100", **STEADY, "bmc_cap_w": 500}]}, {}),
}
# Cards and drivers that differ from the others in few things; `make test-all` has them.
SLOW = {"A100, R470", "V100", "T4", "GTX 1080 Ti", "A40", "RTX 3090", "GH200", "8 H100", "B200", "vGPU", "P100"}
SIMULATED = {"A100": {}, "P100": {"source": "integrated"}, "H100,A40,V100": {"count": 3}}


def check(machine: Machine, expected: dict[str, Any]) -> None:
    found = machine.run("survey.py")
    gpus = found["gpus"]
    assert [each["index"] for each in gpus] == list(range(expected.get("count", 1)))
    assert len({each["uuid"] for each in gpus}) == len({each["pci"] for each in gpus}) == len(gpus)
    source = expected.get("source", "counter")
    for window in found["windows"]:
        if source is None:
            assert window["energy_j"] is None, window
            continue
        # The bar is a 95 % interval: 2.5 of it leaves one window in a million outside, for a normal error.
        assert abs(window["energy_j"] - window["truth_j"]) <= 2.5 * window["bar_j"], window
        assert source in window["source"], window
    if source is not None:
        assert sorted(window["bar_j"] / window["truth_j"] for window in found["windows"])[1] < 0.3, found["windows"]
    setting, sets = found["setting"], expected.get("sets", "")
    same = ("limit_w", "lock_hi", "mlock_hi")
    assert [setting["after"][name] for name in same] == [setting["before"][name] for name in same]
    if sets == "no":
        assert not setting["wanted"]
    elif sets:
        assert setting["error"].startswith(sets), setting
    else:
        assert not setting["error"]
        assert setting["during"]["limit_w"] == pytest.approx(setting["wanted"]["power_limit_w"], abs=1.0)
        assert setting["during"]["lock_hi"] == setting["wanted"].get("sm_clock_mhz", 0)
        assert setting["shown"] == [setting["during"]["limit_w"], setting["wanted"].get("sm_clock_mhz")]
    for name in ("gpus command", "doctor"):
        assert found[name]["traceback"] == ""
        assert found[name]["status"] in (0, 1)
    checks = found["doctor"]["text"]
    assert checks.count("GPU ") >= len(gpus)
    assert not re.search("PASS  counter / readings, at rest", checks)  # every GPU here is busy
    if source is None:
        assert "FAIL  counter / readings" in checks
    if any("MIG" in each["note"] for each in gpus):
        assert "PASS  other processes" not in checks


@pytest.mark.parametrize(
    "cards", [pytest.param(each, marks=pytest.mark.slow if each != "A100" else ()) for each in SIMULATED]
)
def test_a_simulated_machine(made: list[Machine], tmp_path: Path, cards: str) -> None:
    made.append(simulated(tmp_path, cards))
    check(made[0], SIMULATED[cards])


@needs_stand_in()
@pytest.mark.parametrize("name", [
    pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in MACHINES
])
def test_a_machine_of_the_driver_under_test(made: list[Machine], tmp_path: Path, name: str) -> None:
    version, config, expected = MACHINES[name]
    made.append(stand_in(tmp_path, version, config))
    check(made[0], expected)


@needs_stand_in()
@pytest.mark.parametrize("version", versions() or ["none"])
def test_gpus_are_listed_and_opened_with_every_version(made: list[Machine], tmp_path: Path, version: str) -> None:
    made.append(stand_in(tmp_path, version, {"gpus": [{"model": "A100"}, {"model": "V100"}]}))
    answers = made[0].run("visible.py", "[null]")
    assert [len(uuids) for uuids in answers] == [2]
