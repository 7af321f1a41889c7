"""Built-in workloads of graded intensity, for `workbench profile-gpu`.

On a simulated GPU they are simulated loads (`simulation.graded`); on a real one small PyTorch kernels
(`_makers`), some with gaps in which the GPU waits for its host. An iteration is some tens of milliseconds of
them and ends when the GPU has ended.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from ...device import driver
from ...device.protocol import Device
from ...errors import NotSupported
from ...experiments.workloads import torch_on

BUSY_S = 0.04  # of an iteration at the reference setting
Step = Callable[[], object]


@dataclass(frozen=True)
class CalibrationWorkload:
    """One workload.

    Attributes:
        name: Of its own.
        group: The family; its members are near relatives, and no model is judged on one after another.
        running: A context in which it runs; gives a function that does one whole iteration.
    """

    name: str
    group: str
    running: Callable[[], contextlib.AbstractContextManager[Step]]


def workloads(device: Device) -> list[CalibrationWorkload]:
    """The graded workloads for a GPU.

    Raises:
        NotSupported: a real GPU, and no PyTorch with CUDA that could keep it busy.
    """
    return simulated(device) if device.simulated else kernels(f"cuda:{_cuda_index(device)}")


def simulated(device: Device) -> list[CalibrationWorkload]:
    """Simulated loads for a simulated GPU."""
    from ...simulation import graded
    from ...simulation.machine import attached
    from ...simulation.training import TrainingJob

    machine = attached()
    assert machine is not None

    @contextlib.contextmanager
    def running(workload: Any) -> Iterator[Step]:
        job = TrainingJob(
            workload, iterations=1 << 40, machine=machine, gpu=device.index, evaluate=False, variation=0.002,
            accumulate=graded.TOGETHER,
        )
        with contextlib.closing(iter(job)) as iterations:  # type: ignore[type-var]
            yield lambda: next(iterations)

    found = graded.workloads(machine.card(device.index))
    return [CalibrationWorkload(each.key, family, partial(running, each)) for family, each in found]


# PyTorch


def kernels(where: str = "cuda", *, busy_s: float = BUSY_S, scale: float = 1.0) -> list[CalibrationWorkload]:
    """PyTorch kernels on a real GPU.

    Args:
        where: PyTorch's name of the device.
        busy_s: How long the kernels of an iteration take, at the setting active when the workload begins.
        scale: Of all sizes, for a small device.

    Raises:
        NotSupported: PyTorch is not installed, or finds no such device.
    """
    why = "profiling a real GPU takes PyTorch to keep it busy"
    torch = torch_on(where, why, "profile a simulated GPU with `workbench profile-gpu --simulate A100`")
    makers = _makers(torch, where, scale)
    plan = [(group, name, 0.0) for group, names in makers.items() for name in names]
    plan += [
        (group, list(names)[-1], (0.15, 0.4)[place % 2])
        for place, (group, names) in enumerate(makers.items())
    ]
    plan += [("small", next(iter(makers["small"])), 0.8)]
    return [
        CalibrationWorkload(
            f"{name}, {gap:.0%} waiting" if gap else name, group,
            partial(_run, torch, where, makers[group][name], gap, busy_s),
        )
        for group, name, gap in plan
    ]


@contextlib.contextmanager
def _run(torch: Any, where: str, make: Callable[[], Step], gap: float, busy_s: float) -> Iterator[Step]:
    """Iterations of as many kernels as fill `busy_s`, then a gap of that share of the iteration."""
    kernel = make()
    repeats = _repeats(torch, where, kernel, busy_s)
    # As long at every setting: what the GPU waits for is its host, whom the GPU's clocks do not slow down.
    wait_s = _timed(torch, where, kernel, repeats) * gap / (1.0 - gap) if gap else 0.0

    def step() -> None:
        for _ in range(repeats):
            kernel()
        _synchronise(torch, where)
        if wait_s:
            time.sleep(wait_s)

    try:
        yield step
    finally:
        if where.startswith("cuda"):
            torch.cuda.empty_cache()


def _repeats(torch: Any, where: str, kernel: Step, busy_s: float) -> int:
    for _ in range(3):  # the first ones choose algorithms and load code
        kernel()
    repeats = 1
    while (took_s := _timed(torch, where, kernel, repeats)) < 0.25 * busy_s and repeats < 1 << 20:
        repeats *= 2
    return max(1, round(repeats * busy_s / took_s))


def _timed(torch: Any, where: str, kernel: Step, repeats: int) -> float:
    _synchronise(torch, where)
    begin_s = time.perf_counter()
    for _ in range(repeats):
        kernel()
    _synchronise(torch, where)
    return time.perf_counter() - begin_s


def _synchronise(torch: Any, where: str) -> None:
    if where.startswith("cuda"):
        torch.cuda.synchronize(where)


def _makers(torch: Any, where: str, scale: float) -> dict[str, dict[str, Callable[[], Step]]]:
    """By family and name: what makes a kernel ready to be called."""

    def size(n: int) -> int:
        return max(16, round(n * scale))

    def matmul(n: int, kind: Any, tensor_cores: bool = True) -> Callable[[], Step]:
        def make() -> Step:
            a, b = (torch.randn(size(n), size(n), device=where, dtype=kind) for _ in range(2))
            out = torch.empty_like(a)

            def kernel() -> None:
                before = torch.backends.cuda.matmul.allow_tf32
                torch.backends.cuda.matmul.allow_tf32 = tensor_cores
                try:
                    torch.matmul(a, b, out=out)
                finally:
                    torch.backends.cuda.matmul.allow_tf32 = before

            return kernel

        return make

    def on(numbers: int, act: Callable[[Any], object], kind: Any = torch.float32) -> Callable[[], Step]:
        def make() -> Step:
            x = torch.randn(max(1024, round(numbers * scale)) // 1024, 1024, device=where, dtype=kind)
            return lambda: act(x)

        return make

    def convolution(channels: int, edge: int, batch: int, kind: Any) -> Callable[[], Step]:
        def make() -> Step:
            layer = torch.nn.Conv2d(
                size(channels), size(channels), 3, padding=1, bias=False, device=where, dtype=kind
            )
            x = torch.randn(
                max(1, round(batch * scale)), size(channels), edge, edge, device=where, dtype=kind
            )

            def kernel() -> None:
                with torch.no_grad():
                    layer(x)

            return kernel

        return make

    def training(width: int, batch: int) -> Callable[[], Step]:
        def make() -> Step:
            layers = [
                torch.nn.Linear(size(width), size(width)), torch.nn.GELU(), torch.nn.LayerNorm(size(width)),
            ]
            model = torch.nn.Sequential(*layers, torch.nn.Linear(size(width), size(width))).to(where)
            x = torch.randn(size(batch), size(width), device=where)

            def kernel() -> None:
                model.zero_grad(set_to_none=True)
                model(x).square().mean().backward()

            return kernel

        return make

    half, single, double = torch.float16, torch.float32, torch.float64
    if not where.startswith("cuda"):
        half = torch.bfloat16  # a processor without half precision takes minutes
    return {
        "matmul-tensor": {f"half matmul {n}": matmul(n, half) for n in (512, 1024, 2048, 8192)},
        "matmul-tf32": {f"tf32 matmul {n}": matmul(n, single) for n in (1024, 4096)},
        "matmul-fp32": {f"fp32 matmul {n}": matmul(n, single, tensor_cores=False) for n in (512, 1024, 4096)},
        "matmul-fp64": {f"fp64 matmul {n}": matmul(n, double) for n in (512, 2048)},
        "convolution": {
            f"convolution {c}x{e}": convolution(c, e, b, half) for c, e, b in ((64, 56, 64), (512, 14, 128))
        },
        "stream": {f"scale {n >> 20}M": on(n, lambda x: x.mul_(1.0)) for n in (1 << 22, 1 << 25, 1 << 28)},
        "reduce": {f"sum {n >> 20}M": on(n, lambda x: x.sum()) for n in (1 << 24, 1 << 27)},
        "normalise": {
            f"softmax {n >> 20}M": on(n, lambda x: torch.softmax(x, -1)) for n in (1 << 22, 1 << 26)
        },
        "transcendental": {f"{steps} sines": on(1 << 24, _sines(torch, steps)) for steps in (1, 8)},
        "small": {f"small {n >> 10}K": on(n, lambda x: x.add_(1.0)) for n in (1 << 12, 1 << 17)},
        "training": {
            f"training step {w}x{b}": training(w, b) for w, b in ((1024, 64), (2048, 512), (4096, 4096))
        },
    }


def _sines(torch: Any, steps: int) -> Callable[[Any], object]:
    def act(x: Any) -> object:
        for _ in range(steps):
            x = torch.sin(x)
        return x

    return act


def _cuda_index(device: Device) -> int:
    """Which of PyTorch's devices a GPU is: the one with its UUID."""
    try:
        import torch  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        return 0
    count = torch.cuda.device_count()
    found = [str(torch.cuda.get_device_properties(index).uuid).casefold() for index in range(count)]
    place = next((index for index, each in enumerate(found) if device.uuid.casefold().endswith(each)), None)
    if count and place is None:  # whatever ran there would not be what is measured here
        raise NotSupported(f"{device.name} ({device.uuid}) is none of the {count} devices that PyTorch sees; "
                           f"make it visible with {driver.current().VISIBLE}, or choose another --gpu")
    return place or 0
