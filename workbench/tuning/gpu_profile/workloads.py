"""Built-in workloads of graded intensity, for `workbench profile-gpu`.

On a simulated GPU they are simulated loads (`simulation.graded`); on a real one small PyTorch kernels
(`KERNELS`), some with gaps in which the GPU waits for its host. An iteration is some tens of milliseconds of
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
# By family: PyTorch's name of a type, edges of square arrays, what is done with an array, and the share of an
# iteration in which the GPU waits, in a variant with the last edge.
KERNELS: dict[str, tuple[str, tuple[int, ...], Callable[[Any], object], float]] = {
    "matmul-half": ("float16", (512, 1024, 2048, 8192), lambda x: x @ x, 0.15),
    "matmul-fp32": ("float32", (512, 1024, 4096), lambda x: x @ x, 0.15),
    "matmul-fp64": ("float64", (512, 2048), lambda x: x @ x, 0.4),
    "stream": ("float32", (2048, 5792, 16384), lambda x: x.mul_(1.0), 0.15),
    "reduce": ("float32", (4096, 11584), lambda x: x.sum(), 0.15),
    "normalise": ("float32", (2048, 8192), lambda x: x.softmax(-1), 0.4),
    "transpose": ("float32", (4096, 8192), lambda x: x.t().contiguous(), 0.15),
    "transcendental": ("float32", (2048, 4096), lambda x: x.sin().exp().tanh().erf(), 0.4),
    "small": ("float32", (64, 362), lambda x: x.add_(0.0), 0.8),
}


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


def kernels(where: str = "cuda", *, busy_s: float = BUSY_S, scale: float = 1.0) -> list[CalibrationWorkload]:
    """PyTorch kernels on a real GPU.

    Args:
        where: PyTorch's name of the device.
        busy_s: How long the kernels of an iteration take, at the setting active when the workload begins.
        scale: Of all edges, for a small device.

    Raises:
        NotSupported: PyTorch is not installed, or finds no such device.
    """
    why = "profiling a real GPU takes PyTorch to keep it busy"
    torch = torch_on(where, why, "profile a simulated GPU with `workbench profile-gpu --simulate A100`")

    def make(kind: str, edge: int, act: Callable[[Any], object]) -> Step:
        x = torch.randn(edge, edge, device=where).to(getattr(torch, kind))
        return lambda: act(x)

    found = []
    for family, (kind, edges, act, gap) in KERNELS.items():
        for edge, waiting in [*((edge, 0.0) for edge in edges), (edges[-1], gap)]:
            name = f"{family} {edge}" + (f", {waiting:.0%} waiting" if waiting else "")
            maker = partial(make, kind, max(16, round(edge * scale)), act)
            running = partial(_run, torch, where, maker, waiting, busy_s)
            found.append(CalibrationWorkload(name, family, running))
    return found


@contextlib.contextmanager
def _run(torch: Any, where: str, make: Callable[[], Step], gap: float, busy_s: float) -> Iterator[Step]:
    """Iterations of as many kernels as fill `busy_s`, then a gap of that share of the iteration."""
    kernel = make()

    def timed(repeats: int) -> float:
        begin_s = time.perf_counter()
        for _ in range(repeats):
            kernel()
        if where.startswith("cuda"):
            torch.cuda.synchronize(where)
        return time.perf_counter() - begin_s

    timed(3)  # the first ones choose algorithms and load code
    repeats = 1
    while (took_s := timed(repeats)) < 0.25 * busy_s and repeats < 1 << 20:
        repeats *= 2
    repeats = max(1, round(repeats * busy_s / took_s))
    # The wait is as long at every setting: the host does not slow down with the GPU's clocks.
    wait_s = timed(repeats) * gap / (1.0 - gap)

    def step() -> None:
        timed(repeats)
        time.sleep(wait_s)

    try:
        yield step
    finally:
        if where.startswith("cuda"):
            torch.cuda.empty_cache()


def _cuda_index(device: Device) -> int:
    """Which of PyTorch's devices a GPU is: the one with its UUID."""
    try:
        import torch  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        return 0
    count = torch.cuda.device_count()
    for index in range(count):
        if device.uuid.casefold().endswith(str(torch.cuda.get_device_properties(index).uuid).casefold()):
            return index
    if count:  # any other GPU's work would not be what is measured here
        raise NotSupported(f"{device.name} ({device.uuid}) is none of the {count} devices that PyTorch sees; "
                           f"make it visible with {driver.current().VISIBLE}, or choose another --gpu")
    return 0
