"""A driver that fails, hangs, is reloaded or is forked: no traceback, no failed cell, every setting restored."""

from __future__ import annotations

from pathlib import Path

import pytest
from driver_machines import Machine, needs_stand_in, simulated, stand_in

UNKNOWN, GPU_IS_LOST, NO_PERMISSION, NOT_SUPPORTED, FUNCTION_NOT_FOUND = 999, 15, 4, 3, 13
A100 = {"model": "A100", "load": 1}


def no_harm(found: dict[str, object]) -> None:
    assert len(found["functions"]) > 30  # type: ignore[arg-type]
    assert found["wrong"] == {}


@pytest.mark.parametrize("code", [UNKNOWN, pytest.param(NOT_SUPPORTED, marks=pytest.mark.slow)])
def test_each_function_of_the_simulated_driver_may_fail(made: list[Machine], tmp_path: Path, code: int) -> None:
    made.append(simulated(tmp_path, "A100"))
    no_harm(made[0].run("faults.py", str(code)))


@pytest.mark.slow
@needs_stand_in()
@pytest.mark.parametrize("code", [
    UNKNOWN, GPU_IS_LOST,
    *(pytest.param(code, marks=pytest.mark.slow) for code in (NO_PERMISSION, NOT_SUPPORTED, FUNCTION_NOT_FOUND)),
])
def test_each_function_of_the_driver_under_test_may_fail(made: list[Machine], tmp_path: Path, code: int) -> None:
    made.append(stand_in(tmp_path, "570", {"ms_set": 1, "gpus": [A100]}))
    no_harm(made[0].run("faults.py", str(code)))


@needs_stand_in()
@pytest.mark.parametrize("code", [9, 12, 18, UNKNOWN])
def test_a_driver_that_does_not_start(made: list[Machine], tmp_path: Path, code: int) -> None:
    made.append(stand_in(tmp_path, "570", {"init_error": code, "gpus": [A100]}))
    found = made[0].run("survey.py")
    assert found["gpus"] == []
    assert found["doctor"]["traceback"] == found["gpus command"]["traceback"] == ""
    assert found["doctor"]["status"] == 1
    assert "no GPU" in found["doctor"]["text"]


@needs_stand_in()
@pytest.mark.parametrize("code", [UNKNOWN, GPU_IS_LOST, NO_PERMISSION, NOT_SUPPORTED])
def test_a_driver_that_answers_nothing_about_its_gpus(made: list[Machine], tmp_path: Path, code: int) -> None:
    config = {"faults": [{"func": "nvmlDeviceGet*", "code": code}], "gpus": [A100]}
    made.append(stand_in(tmp_path, "570", config))
    found = made[0].run("survey.py")
    assert found["gpus"] == []
    assert found["doctor"]["traceback"] == found["gpus command"]["traceback"] == ""


@needs_stand_in()
@pytest.mark.parametrize(("what", "after_fork"), [
    *((what, 1) for what in ("lost", "lost and back", "reload", "hang", "fork", "clock")),
    ("fork", 2), ("fork", 3),  # in a forked process the driver answers with an error, or not at all
])
def test_what_happens_during_a_cell(made: list[Machine], tmp_path: Path, what: str, after_fork: int) -> None:
    config = {"after_fork": after_fork, "gpus": [{**A100, "count": 2, "persistence": 0}]}
    made.append(stand_in(tmp_path, "570", config))
    found = made[0].run("events.py", what)
    first, second = found["energies"]
    assert first["energy_j"] == pytest.approx(first["truth_j"], rel=0.1), found  # GPU 0 goes on
    if what == "fork":
        child = found["child"]
        assert child["energy_j"] == pytest.approx(child["truth_j"], rel=0.1)
    if what in ("hang", "fork", "clock"):
        assert second["energy_j"] == pytest.approx(second["truth_j"], rel=0.1), found
    elif second["energy_j"] is not None:  # not the whole of the window is known: the bar or a note has it
        off_j = abs(second["energy_j"] - second["truth_j"])
        assert off_j <= 2.5 * second["bar_j"] or second["notes"], found
    if what == "clock":
        assert found["shown at first"] == [300.0, found["lock"]]
        assert found["shown later"] == [300.0, None]  # 1410 MHz run: the driver ignores it
    if what == "reload":
        assert second["notes"], found
    assert found["after"]["limit_w"] == 400.0
    assert found["after"]["lock_hi"] == 0.0
