"""Trainings to try the workbench on: simulated, or a small PyTorch network on a real GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from ..device import driver
from ..device.discovery import why_no_gpu
from ..device.gpu import OpenGpu
from ..errors import NotSupported, UsageError, checked


@checked
def example_training(
    workload: str = "imagenet", *, iterations: int = 40, batch_size: int | None = None
) -> Iterator[int]:
    """Iterate a training as one would iterate a data loader; yields the iteration's number.

    On a simulated GPU this is the named workload of `simulation.training`. On a real GPU it is a small
    convolutional network in PyTorch on random images for every name, so that notebooks run on both.

    Raises:
        UsageError: fewer than one iteration, or an unknown workload.
        NotSupported: a real GPU, and no PyTorch with CUDA to train with.
    """
    if iterations < 1:
        raise UsageError(f"a training needs at least one iteration, not {iterations}")
    from ..simulation.machine import attached

    machine = attached()
    if machine is None:
        return convolutional(iterations, batch_size or 128, device="cuda")
    from ..simulation.training import TrainingJob

    job = TrainingJob(workload, batch_size, iterations=iterations, gpu=_first_visible(), machine=machine)
    return (batch.iteration for batch in job)


def any_training(device: OpenGpu) -> Callable[[], Iterator[Any]] | None:
    """Makes a training that runs on a GPU for as long as it is iterated; None where nothing can run."""
    from ..simulation.machine import attached

    machine = attached() if device.simulated else None
    if machine is not None and machine.replayed:
        return None
    if machine is not None:
        from ..simulation import catalogue
        from ..simulation.training import TrainingJob

        work, card = catalogue.WORKLOADS["squad"], machine.card(device.index)
        size = max(size for size in work.batch_sizes if catalogue.fits(card, work, size))
        return lambda: iter(TrainingJob(work, size, iterations=10**9, gpu=device.index, machine=machine))
    with contextlib.suppress(NotSupported):
        torch = torch_on("cuda", "", "")
        return lambda: _steps(torch, 10**9, 128, "cuda")
    return None


def _first_visible() -> int:
    """Number of the simulated GPU that a program without a choice of its own would use."""
    door = driver.current()
    known = door.identities()
    visible = door.visible(known)
    if not visible:
        raise NotSupported(f"{why_no_gpu()} to train on")
    return [uuid for uuid, _, _ in known].index(visible[0])


def convolutional(iterations: int, batch_size: int, *, device: str) -> Iterator[int]:
    """Training steps of a small convolutional network on random 64 x 64 images (PyTorch)."""
    why = "the example trains with PyTorch on a real GPU"
    torch = torch_on(device, why, "choose a simulated GPU with workbench.simulate('A100')")
    return _steps(torch, iterations, batch_size, device)


def torch_on(where: str, why: str, instead: str) -> Any:
    """PyTorch, which has the device `where`.

    Raises:
        NotSupported: it is not installed, or finds no such device; with `why` it is needed, and what to do.
    """
    try:
        import torch  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        raise NotSupported(f"{why}, and it is not installed here: pip install torch; or {instead}") from None
    if where.startswith("cuda") and not torch.cuda.is_available():
        raise NotSupported(f"PyTorch finds no CUDA device here; {instead}")
    return torch


def _steps(torch: Any, iterations: int, batch_size: int, device: str) -> Iterator[int]:
    nn = torch.nn
    layers: list[Any] = []
    width = 3
    for channels in (64, 128, 256, 256):
        layers += [
            nn.Conv2d(width, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU(), nn.MaxPool2d(2),
        ]
        width = channels
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(256 * 16, 100)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images = torch.randn(batch_size, 3, 64, 64, device=device)
    labels = torch.randint(0, 100, (batch_size,), device=device)
    for number in range(iterations):
        optimizer.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        yield number
