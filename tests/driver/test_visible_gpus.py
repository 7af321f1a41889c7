"""Which GPUs a process sees on any driver: CUDA_VISIBLE_DEVICES in all forms, MIG, several models, one that fails."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from driver_machines import Machine, needs_stand_in, simulated, stand_in

MIG = "MIG-22222222-aaaa-bbbb-cccc-000000000001"
Make = Callable[[str], Machine]


@pytest.fixture(params=["simulated", pytest.param("under test", marks=needs_stand_in())])
def make(request: pytest.FixtureRequest, made: list[Machine], tmp_path: Path) -> Make:
    def of(cards: str) -> Machine:
        if request.param == "simulated":
            made.append(simulated(tmp_path, cards))
        else:
            made.append(stand_in(tmp_path, "570", {"gpus": [{"model": each} for each in cards.split(",")]}))
        return made[-1]

    return of


def visible(machine: Machine, *entries: str | None, **environment: str) -> list[Any]:
    return list(machine.run("visible.py", json.dumps(entries), **environment))


def test_every_form_of_the_variable(make: Make) -> None:
    machine = make("A100,A100,A100")
    (uuids,) = visible(machine, None)
    a, b, c = uuids
    forms = {
        "0,1,2": [a, b, c], "2,0": [c, a], " 1 , 2 ": [b, c], "": [], "-1": [], "NoDevFiles": [], "0,-1,2": [a],
        "1,7,0": [b], a: [a], f"{c},{a}": [c, a], b[:-1]: None, f"{b},0": [b, a], "GPU-": [], "GPU-ffffffff": [],
        f"MIG-{c}/1/0": [c], "MIG-GPU-nobody/1/0,0": [], "0,0": [a],
    }
    for entries, left in zip(forms, visible(machine, *forms), strict=True):
        expected = forms[entries]
        if expected is None:  # as much as tells it apart
            expected = [b] if sum(each.startswith(entries) for each in uuids) == 1 else []
        assert left == expected, entries
    assert visible(machine, "2,1", CUDA_DEVICE_ORDER="PCI_BUS_ID") == [[c, b]]


@pytest.mark.slow
def test_gpus_of_several_models_are_numbered_in_a_known_order_or_not_at_all(make: Make) -> None:
    machine = make("A100,V100")
    (uuids,) = visible(machine, None)
    assert visible(machine, "1", CUDA_DEVICE_ORDER="PCI_BUS_ID") == [uuids[1:]]
    assert visible(machine, f"{uuids[1]}") == [uuids[1:]]
    if machine.driver != "simulated":  # which no CUDA numbers
        (refused,) = visible(machine, "1", CUDA_DEVICE_ORDER="FASTEST_FIRST")
        assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in refused


@needs_stand_in()
def test_a_mig_instance_stands_for_its_whole_gpu(made: list[Machine], tmp_path: Path) -> None:
    gpus = [{"model": "A100"}, {"model": "A100", "mig": [MIG]}]
    made.append(stand_in(tmp_path, "570", {"gpus": gpus}))
    (uuids,) = visible(made[0], None)
    assert visible(made[0], MIG, f"{MIG},0", "MIG-unknown") [:2] == [[uuids[1]], [uuids[1], uuids[0]]]


@needs_stand_in()
@pytest.mark.parametrize("function", ["nvmlDeviceGetUUID", "nvmlDeviceGetName"])
def test_a_gpu_that_does_not_answer_shifts_no_number(made: list[Machine], tmp_path: Path, function: str) -> None:
    config = {"gpus": [{"model": "A100", "count": 3}]}
    made.append(stand_in(tmp_path / "a", "570", config))
    (uuids,) = visible(made[0], None)
    shared = tmp_path / "a" / "machine.json"
    shared.write_text(json.dumps({**config, "faults": [{"func": function, "gpu": 0, "code": 999}]}))
    (tmp_path / "a" / "state").unlink()
    assert visible(made[0], "1,2", "2", None) == [uuids[1:], uuids[2:], uuids[1:]]


@needs_stand_in()
def test_gpus_of_a_cgroup_are_numbered_from_0(made: list[Machine], tmp_path: Path) -> None:
    made.append(stand_in(tmp_path, "570", {"gpus": [{"model": "A100", "count": 4}]}))
    (uuids,) = visible(made[0], None)
    assert visible(made[0], None, "1", MOCKNVML_VISIBLE="2,3") == [uuids[2:], uuids[3:]]
