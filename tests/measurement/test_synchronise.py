"""Queued GPU work is waited for, by frameworks that are in use already and by no other."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

from workbench.measurement.synchronise import synchronise


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


@pytest.mark.parametrize(("started", "waited"), [(True, [1, 2]), (False, [])])
def test_torch_is_waited_for_where_it_computes_and_makes_no_context_elsewhere(
    monkeypatch: pytest.MonkeyPatch, started: bool, waited: list[int]
) -> None:
    observed: list[int] = []
    cuda = SimpleNamespace(
        is_initialized=lambda: started, device_count=lambda: 4, synchronize=observed.append,
        current_device=lambda: 1, memory_reserved=lambda index: 2**20 if index == 2 else 0,
    )
    framework(monkeypatch, "torch", cuda=cuda)
    assert synchronise() == (("torch",) if started else ())
    assert observed == waited


def test_torch_without_cuda_is_nothing_to_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    framework(monkeypatch, "torch")
    assert synchronise() == ()


def test_jax_is_waited_for_once_it_has_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[str] = []
    gpu, cpu = SimpleNamespace(platform="gpu"), SimpleNamespace(platform="cpu")

    class Array:
        def __init__(self, device: SimpleNamespace, computed: bool = False) -> None:
            self.device, self.computed = device, computed

        def __add__(self, _other: int) -> Array:
            return Array(self.device, computed=True)

        def block_until_ready(self) -> None:
            assert self.computed  # a mere transfer does not wait for what computes
            waited.append(self.device.platform)

    framework(
        monkeypatch, "jax", local_devices=lambda: [gpu, cpu], device_put=lambda _value, device: Array(device)
    )
    assert synchronise() == ()  # no backend was started: asking would start one
    framework(monkeypatch, "jax._src.xla_bridge", _backends={"cuda": object()})
    assert synchronise() == ("jax",)
    assert waited == ["gpu"]


@pytest.mark.parametrize(("context", "waited"), [(0x55D0, ["x"]), (0, [])])
def test_cupy_is_waited_for_once_it_has_a_context(
    monkeypatch: pytest.MonkeyPatch, context: int, waited: list[str]
) -> None:
    observed: list[str] = []
    runtime = SimpleNamespace(deviceSynchronize=lambda: observed.append("x"))
    driver = SimpleNamespace(ctxGetCurrent=lambda: context)
    framework(monkeypatch, "cupy", cuda=SimpleNamespace(runtime=runtime, driver=driver))
    assert synchronise() == (("cupy",) if context else ())
    assert observed == waited


def test_a_broken_framework_does_not_cost_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> bool:
        raise RuntimeError("CUDA error: device-side assert triggered")

    framework(monkeypatch, "torch", cuda=SimpleNamespace(is_initialized=fail))
    assert synchronise() == ()


def test_a_cuda_graph_that_is_being_captured_is_not_spoilt(monkeypatch: pytest.MonkeyPatch) -> None:
    observed: list[int] = []
    cuda = SimpleNamespace(
        is_initialized=lambda: True, device_count=lambda: 1, synchronize=observed.append, current_device=lambda: 0,
        memory_reserved=lambda _: 2**20, is_current_stream_capturing=lambda: True,
    )
    framework(monkeypatch, "torch", cuda=cuda)
    assert (synchronise(), observed) == ((), [])
