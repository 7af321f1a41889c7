"""Which GPU is meant. CUDA's rules for CUDA_VISIBLE_DEVICES, and ours where CUDA's numbering is not known."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from workbench.device.discovery import devices, open_device
from workbench.device.selection import cuda_order, resolve, visible
from workbench.errors import UnknownGpu
from workbench.simulation.catalogue import CARDS
from workbench.simulation.machine import Machine

A, B, C = "GPU-1a2b0000-aaaa", "GPU-1a2c0000-bbbb", "GPU-9f000000-cccc"
ALIKE = [(A, "00000000:1A:00.0", "NVIDIA A100"), (B, "00000000:3B:00.0", "NVIDIA A100"),
         (C, "00000000:D8:00.0", "NVIDIA A100")]
MIXED = [ALIKE[0], (B, "00000000:3B:00.0", "Tesla V100"), ALIKE[2]]


def env(entries: str) -> dict[str, str]:
    return {"CUDA_VISIBLE_DEVICES": entries}


@pytest.mark.parametrize(
    ("entries", "left"),
    [
        ("0,1,2", [A, B, C]),
        ("2,0", [C, A]),
        (" 1 , 2 ", [B, C]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("0,-1,2", [A]),  # the list ends at its first entry that names no GPU
        ("1,7,0", [B]),
        ("1,x,0", [B]),
        (A, [A]),
        (f"{C},{A}", [C, A]),
        ("GPU-9f", [C]),  # as much as tells it apart
        ("GPU-1a2b,GPU-1a2c", [A, B]),
        ("GPU-1a2", []),  # two answer to it
        ("GPU-77", []),
        (f"{B},0", [B, A]),
        ("MIG-5d33", ["MIG-5d33"]),
        (f"MIG-{C}/1/0", [C]),  # the older form names the whole GPU
        ("MIG-GPU-nobody/1/0,0", []),
        ("MIG-5d33,1", ["MIG-5d33", B]),
    ],
)
def test_cuda_visible_devices_leaves(entries: str, left: list[str]) -> None:
    assert visible(ALIKE, env(entries)) == left


def test_without_the_variable_all_are_visible_in_the_drivers_order() -> None:
    assert visible(ALIKE, {}) == [A, B, C]
    assert visible(MIXED, {}) == [A, B, C]
    assert visible([], {}) == []


def test_numbers_among_different_models_need_an_order() -> None:
    """CUDA counts the fastest first, NVML by PCI bus: measuring the wrong GPU is worse than an error."""
    with pytest.raises(UnknownGpu, match=r"Tesla V100.*CUDA_DEVICE_ORDER=PCI_BUS_ID"):
        visible(MIXED, env("1"))
    with pytest.raises(UnknownGpu, match="UUID"):
        resolve(1, MIXED, {})
    assert visible(MIXED, {**env("1"), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}) == [B]
    assert resolve(1, MIXED, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}) == B
    assert visible(MIXED, env(f"{B},{A}")) == [B, A]
    assert resolve(0, MIXED, env(f"{B},{A}")) == B


def test_a_cuda_that_runs_already_reports_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    order = [B, A, C]
    cuda = SimpleNamespace(
        is_initialized=lambda: True,
        device_count=lambda: 3,
        get_device_properties=lambda number: SimpleNamespace(uuid=order[number][4:]),
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    assert cuda_order(MIXED, {}) == order
    assert resolve(0, MIXED, {}) == B
    cuda.is_initialized = lambda: False  # it is never started for this
    with pytest.raises(UnknownGpu):
        resolve(0, MIXED, {})


@pytest.mark.parametrize(
    ("which", "uuid"),
    [
        (0, A),
        ("2", C),
        (" 1 ", B),
        (A, A),
        ("GPU-9F", C),
        ("9f000000", C),
        ("1a2c", B),
        ("00000000:3B:00.0", B),
        ("0000:3b:00.0", B),
        ("3b:00.0", B),
        ("D8:00", C),
        ("MIG-5d33", "MIG-5d33"),
    ],
)
def test_a_gpu_answers_to(which: int | str, uuid: str) -> None:
    assert resolve(which, ALIKE, {}) == uuid


@pytest.mark.parametrize(
    ("which", "entries", "named"),
    [
        (3, None, r"GPU 3 .*0, 1, 2$"),
        (-1, None, r"GPU -1 .*0, 1, 2$"),
        (1, "2", r"GPU 1 .*0 .CUDA_VISIBLE_DEVICES=2"),
        (0, "", r"GPU 0 .*\(CUDA_VISIBLE_DEVICES=\)"),
        ("GPU-1a2", None, r"'GPU-1a2'.*GPU-1a2b0000-aaaa, 00000000:1A:00\.0"),
        ("77:00.0", None, r"'77:00\.0'.* 0: "),
        ("A100", None, "'A100'"),
    ],
)
def test_an_unknown_name_is_reported_with_the_gpus_that_exist(
    which: int | str, entries: str | None, named: str
) -> None:
    with pytest.raises(UnknownGpu, match=named):
        resolve(which, ALIKE, {} if entries is None else env(entries))


def test_where_there_is_no_gpu_the_message_names_none() -> None:
    with pytest.raises(UnknownGpu, match="'GPU-1'"):
        resolve("GPU-1", [], {})


# through to opened devices


def test_devices_are_those_that_are_visible(
    simulated: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = simulated("V100,A100,H100", stepped=True)
    uuids = [machine.state.card(gpu, "uuid") for gpu in range(3)]
    assert [device.uuid for device in devices()] == uuids
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", f"2,{uuids[0]}")
    assert [device.index for device in devices()] == [2, 0]
    assert open_device(0).uuid == uuids[2]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert devices() == []


@pytest.mark.parametrize("spelled", [1, "1", "uuid", "pci", "short pci"])
def test_a_device_opens_by_number_uuid_and_bus(simulated: Callable[..., Machine], spelled: int | str) -> None:
    machine = simulated("V100,A100", stepped=True)
    names = {"uuid": machine.state.card(1, "uuid"), "pci": "00000000:11:00.0", "short pci": "11:00.0"}
    assert open_device(names.get(str(spelled), spelled)).name == f"{CARDS['A100'].name} (simulated)"


def test_a_mig_instance_is_measured_as_its_whole_gpu_and_reports_it(
    simulated: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = simulated("V100,A100", stepped=True)
    machine.state.set_card(1, "mig", 1)
    uuid = machine.state.card(1, "uuid")
    instance = open_device(f"MIG-{uuid[4:]}")
    assert (instance.uuid, instance.index) == (uuid, 1)
    assert "MIG instance" in instance.note
    assert instance.can("energy")
    assert not instance.can("utilisation")  # a GPU in MIG mode has none of its own
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", f"MIG-{uuid[4:]}")
    assert ["MIG instance" in device.note for device in devices()] == [True]
