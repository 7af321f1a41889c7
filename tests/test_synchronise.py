"""Queued GPU work is waited for, by frameworks that are in use already and by no other."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

from workbench.synchronise import synchronise


@pytest.fixture(autouse=True)
def no_frameworks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torch", "jax", "jax._src.xla_bridge", "cupy"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def framework(monkeypatch: pytest.MonkeyPatch, name: str, **attributes: object) -> None:
    module = ModuleType(name)
    vars(module).update(attributes)
    monkeypatch.setitem(sys.modules, name, module)


def test_nothing_is_imported_for_it() -> None:
    assert synchronise() == ()
    assert not {"torch", "jax", "cupy"} & sys.modules.keys()


@pytest.mark.parametrize(("started", "waited"), [(True, [0, 1]), (False, [])])
def test_torch_is_waited_for_on_every_gpu_once_it_has_started_one(
    monkeypatch: pytest.MonkeyPatch, started: bool, waited: list[int]
) -> None:
    seen: list[int] = []
    cuda = SimpleNamespace(is_initialized=lambda: started, device_count=lambda: 2, synchronize=seen.append)
    framework(monkeypatch, "torch", cuda=cuda)
    assert synchronise() == (("torch",) if started else ())
    assert seen == waited


def test_torch_without_cuda_is_nothing_to_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    framework(monkeypatch, "torch")
    assert synchronise() == ()


def test_jax_is_waited_for_once_it_has_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[str] = []
    gpu, cpu = SimpleNamespace(platform="gpu"), SimpleNamespace(platform="cpu")

    def put(_value: float, device: SimpleNamespace) -> SimpleNamespace:
        return SimpleNamespace(block_until_ready=lambda: waited.append(device.platform))

    framework(monkeypatch, "jax", devices=lambda: [gpu, cpu], device_put=put)
    assert synchronise() == ()  # no backend was started: asking would start one
    framework(monkeypatch, "jax._src.xla_bridge", _backends={"cuda": object()})
    assert synchronise() == ("jax",)
    assert waited == ["gpu"]


def test_cupy_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[str] = []

    class Device:
        def __init__(self, _number: int) -> None: ...
        def __enter__(self) -> None: ...
        def __exit__(self, *_error: object) -> None: ...

    runtime = SimpleNamespace(getDeviceCount=lambda: 2, deviceSynchronize=lambda: waited.append("x"))
    framework(monkeypatch, "cupy", cuda=SimpleNamespace(runtime=runtime, Device=Device))
    assert synchronise() == ("cupy",)
    assert waited == ["x", "x"]


def test_a_broken_framework_does_not_cost_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> bool:
        raise RuntimeError("CUDA error: device-side assert triggered")

    framework(monkeypatch, "torch", cuda=SimpleNamespace(is_initialized=fail))
    assert synchronise() == ()
