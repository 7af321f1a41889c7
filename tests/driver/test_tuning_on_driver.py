"""A training is tuned on the driver under test: its limit goes down, and is as found afterwards, also after a kill."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from driver_machines import Machine, needs_stand_in, stand_in

pytestmark = needs_stand_in()
MACHINES: dict[str, tuple[str, dict[str, Any]]] = {
    "A100": ("570", {"gpus": [{"model": "A100"}]}),
    "A100, R470": ("470", {"gpus": [{"model": "A100"}]}),
    "H100": ("550", {"gpus": [{"model": "H100"}]}),
    "V100": ("535", {"gpus": [{"model": "V100"}]}),
    "P100": ("535", {"gpus": [{"model": "P100"}]}),
    "T4": ("580", {"gpus": [{"model": "T4"}]}),
    "A40": ("550", {"gpus": [{"model": "A40"}]}),
    "RTX 3090": ("580", {"gpus": [{"model": "RTX3090"}]}),
    "GH200": ("570", {"gpus": [{"model": "GH200"}]}),
    "B200": ("615", {"gpus": [{"model": "B200"}]}),
}
SAME = ("limit_w", "lock_hi", "mlock_hi")


def as_found(found: dict[str, Any]) -> bool:
    return [found["after"][name] for name in SAME] == [found["before"][name] for name in SAME]


# Half a minute each: all of them with WORKBENCH_ALL_MACHINES=1.
SOME = MACHINES if os.environ.get("WORKBENCH_ALL_MACHINES") else ("A100, R470", "V100", "T4")


@pytest.mark.slow
@pytest.mark.parametrize("name", SOME)
def test_a_training_is_tuned_and_the_gpu_is_as_found(made: list[Machine], tmp_path: Path, name: str) -> None:
    made.append(stand_in(tmp_path, *MACHINES[name]))
    found = made[0].run("tune.py", "100")
    assert found["state"] in ("search", "hold"), found
    assert found["lowest_w"] < found["before"]["limit_w"]
    assert as_found(found), found


@pytest.mark.parametrize("knobs", [
    {"root": 2}, {"gpus": [{"model": "A100", "vgpu": 1}]},
    pytest.param({"gpus": [{"model": "A100", "set_ignored": 1}]}, marks=pytest.mark.slow),
], ids=["no rights", "vGPU", "settings ignored"])
def test_where_nothing_can_be_set_the_training_goes_on_untuned(
    made: list[Machine], tmp_path: Path, knobs: dict[str, Any]
) -> None:
    made.append(stand_in(tmp_path, "570", {"gpus": [{"model": "A100"}], **knobs}))
    found = made[0].run("tune.py", "60")
    assert found["state"] == "refused", found
    assert found["text"]
    assert as_found(found), found


def test_a_tuner_that_is_killed_leaves_the_gpu_as_found(made: list[Machine], tmp_path: Path) -> None:
    made.append(stand_in(tmp_path, "570", {"gpus": [{"model": "A100"}]}))
    child = made[0].start("tune.py", "100")
    assert child.stdout is not None
    limits_w = (float(line.split()[1]) for line in child.stdout if line.startswith("limit"))
    first_w = next(limits_w)
    assert next(limits_w) < first_w
    child.kill()
    after = made[0].run("restored.py", str(first_w))
    assert (after["limit_w"], after["lock_hi"], after["mlock_hi"]) == (first_w, 0.0, 0.0)
