"""Loads for `benchmarks.first_gpu`, on a real GPU, a simulated one, a stand-in driver, or the processor.

Each has `burst` (the GPU computes), `copy` (it moves memory) and `steps` (it trains). They give the true
times of their work, on the clock of the measured GPU.
"""

from __future__ import annotations

import ctypes
import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

TRAININGS = ("resnet", "gpt", "stall")
PRODUCT_S = 0.0025  # a matrix product takes at most so long, so that bursts of 5 ms are possible
STEP_S = {"resnet": 0.30, "gpt": 0.12, "stall": 0.06}  # of a training step (gpt: micro-step), at least
MICRO_STEPS, STALL_EVERY, STALL_S = 4, 8, 0.25


class Load:
    """A load on the processor alone, for machines whose GPU nothing can drive.

    Args:
        clock: The clock of the measured GPU.
    """

    name = "processor only"
    on_gpu = False

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self._matrix = np.ones((256, 256), np.float32)

    def burst(self, seconds: float, level: float = 1.0) -> tuple[float, float]:
        """Compute for about `seconds`; returns when it began and ended (s).

        Args:
            seconds: Length of the burst.
            level: Share of the full power, where the load can choose it.
        """
        start_s = self.clock()
        while self.clock() < start_s + seconds:
            self._matrix @ self._matrix
        return start_s, self.clock()

    def copy(self, seconds: float) -> tuple[float, float]:
        """Move memory for about `seconds`; returns when it began and ended (s)."""
        return self.burst(seconds, 0.5)

    def training(self, kind: str) -> Iterator[None]:
        """Train for ever; yields after every optimizer step. `kind` is one of `TRAININGS`."""
        for number in itertools.count(1):
            for _ in range(MICRO_STEPS if kind == "gpt" else 1):
                self.burst(0.35 * STEP_S[kind], 0.8)
                self.burst(0.65 * STEP_S[kind], 1.0)
                time.sleep(0.1 * STEP_S[kind])
            if kind == "stall" and number % STALL_EVERY == 0:
                time.sleep(STALL_S)
            yield

    def steps(self, kind: str, seconds: float) -> Iterator[int]:
        """Train for `seconds`; yields the number of steps done. `step_ends_s` has their true ends."""
        self.step_ends_s: list[float] = [self.clock()]
        training = self.training(kind)
        for number in itertools.count(1):
            next(training)
            self.step_ends_s.append(self.clock())
            yield number
            if self.step_ends_s[-1] > self.step_ends_s[0] + seconds:
                return

    def true_energy_j(self, start_s: float, end_s: float) -> float | None:
        """The true energy (J) between two moments; None on a real GPU, where it is unknown."""
        return None


class SimulatedLoad(Load):
    """Work on a simulated GPU."""

    name, on_gpu = "simulated", True

    def __init__(self, clock: Callable[[], float], machine: Any, gpu: int) -> None:
        super().__init__(clock)
        from workbench.simulation import catalogue

        self._machine, self._gpu, self._card = machine, gpu, machine.card(gpu)
        self._load = catalogue.law(self._card, catalogue.WORKLOADS["squad"]).at(32)[2]

    def burst(self, seconds: float, level: float = 1.0) -> tuple[float, float]:
        return self._run(seconds, self._load.compute, level)

    def copy(self, seconds: float) -> tuple[float, float]:
        return self._run(seconds, 0.1, 0.6)

    def _run(self, seconds: float, compute: float, level: float) -> tuple[float, float]:
        from workbench.simulation import catalogue
        from workbench.simulation.physics import Load as PhysicalLoad
        from workbench.simulation.training import TrainingJob

        work = PhysicalLoad(compute, 0.9 * (1 - compute), level * self._load.dynamic_w)
        phase = catalogue.busy("burst", "forward", seconds, work)
        workload = catalogue.Workload("burst", "burst", 1, 0, 1, (1,), 10**9, 0, 0, (phase,), self._card.key)
        job = TrainingJob(
            workload, iterations=1, variation=0.0, evaluate=False, gpu=self._gpu, machine=self._machine
        )
        job.run()
        return job.marks[0], job.end_s

    def true_energy_j(self, start_s: float, end_s: float) -> float | None:
        # Sensors of a card differ from true power by a gain, which no measurement can see.
        gain = self._machine.gain(self._gpu)
        return float(gain * self._machine.true_energy_j(self._gpu, start_s, end_s))


class StandInLoad(Load):
    """Kernels of a stand-in driver that exports `mock_kernel`."""

    name, on_gpu = "stand-in driver", True

    def __init__(self, clock: Callable[[], float], library: Any) -> None:
        super().__init__(clock)
        self._library = library
        library.mock_truth_j.restype = ctypes.c_double

    def burst(self, seconds: float, level: float = 1.0) -> tuple[float, float]:
        start_s, at = self.clock(), ctypes.c_double
        self._library.mock_kernel(0, at(seconds), at(0.9 * level), at(1.0))
        return start_s, self.clock()

    def true_energy_j(self, start_s: float, end_s: float) -> float | None:
        first, last = (self._library.mock_truth_j(0, ctypes.c_double(at_s)) for at_s in (start_s, end_s))
        return float(last - first)


class TorchLoad(Load):
    """Products, copies and trainings of PyTorch, on CUDA or, to rehearse them, on the processor."""

    def __init__(self, clock: Callable[[], float], torch: Any, where: str) -> None:
        super().__init__(clock)
        self.name, self.on_gpu = f"PyTorch {torch.__version__} on {where}", where == "cuda"
        self._torch, self._where = torch, where
        self._wait = torch.cuda.synchronize if self.on_gpu else lambda: None
        kind, size = (torch.bfloat16, 8192) if self.on_gpu else (torch.float32, 512)
        self._pixels = (112, 112) if self.on_gpu else (16, 16)
        self._words = (8192, 256, 512) if self.on_gpu else (64, 16, 64)
        while True:
            self._a = torch.randn(size, size, device=where, dtype=kind)
            self._c = torch.empty_like(self._a)
            self._product_s = self._time(self._multiply)
            if self._product_s < PRODUCT_S or size <= 256:
                break
            size //= 2
        rows = (2 << 30) if self.on_gpu else (16 << 20)
        self._from = torch.empty(rows, dtype=torch.uint8, device=where)
        self._to = torch.empty_like(self._from)
        self._copy_s = self._time(self._move)
        self._trainings: dict[str, Callable[[], Any]] = {}

    def _multiply(self) -> None:
        self._torch.mm(self._a, self._a, out=self._c)

    def _move(self) -> None:
        self._to.copy_(self._from)

    def _time(self, act: Callable[[], Any], count: int = 10) -> float:
        """Mean seconds of an operation, once warm."""
        for repetitions in (3, count):
            self._wait()
            start_s = time.perf_counter()
            for _ in range(repetitions):
                act()
            self._wait()
        return (time.perf_counter() - start_s) / count

    def _repeat(self, act: Callable[[], None], once_s: float, seconds: float) -> tuple[float, float]:
        self._wait()
        start_s = self.clock()
        for _ in range(max(1, round(seconds / once_s))):
            act()
        self._wait()
        return start_s, self.clock()

    def burst(self, seconds: float, level: float = 1.0) -> tuple[float, float]:
        return self._repeat(self._multiply, self._product_s, seconds)

    def copy(self, seconds: float) -> tuple[float, float]:
        return self._repeat(self._move, self._copy_s, seconds)

    def training(self, kind: str) -> Iterator[None]:
        step = self._trainings.get(kind) or self._trainings.setdefault(kind, self._built(kind))
        for number in itertools.count(1):
            step()
            if kind == "stall" and number % STALL_EVERY == 0:
                time.sleep(STALL_S)
            yield

    def _built(self, kind: str) -> Callable[[], Any]:
        """An optimizer step of a training, with a batch that is large enough for `STEP_S`."""
        make = self._gpt if kind == "gpt" else self._resnet
        size, micro_steps = 2, MICRO_STEPS if kind == "gpt" else 1
        chosen = make(size)
        while self._time(chosen, 3) < 0.7 * STEP_S[kind] * micro_steps and size < 4096:
            size *= 2
            try:
                larger = make(size)
                larger()
            except self._torch.cuda.OutOfMemoryError:
                break
            chosen = larger
        return chosen

    def _resnet(self, size: int) -> Callable[[], Any]:
        torch, nn = self._torch, self._torch.nn

        class Residual(nn.Module):  # type: ignore[misc, name-defined]
            def __init__(self, width: int) -> None:
                super().__init__()
                layers: list[Any] = []
                for _ in range(2):
                    layers += [nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
                self.layers = nn.Sequential(*layers)

            def forward(self, images: Any) -> Any:
                return images + self.layers(images)

        blocks: list[Any] = [nn.Conv2d(3, 64, 7, stride=2, padding=3)]
        for width in (64, 128, 256):
            blocks += [Residual(width), Residual(width), nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)]
        model = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))
        images = torch.randn(size, 3, *self._pixels, device=self._where)
        labels = torch.randint(0, 1000, (size,), device=self._where)
        return self._stepper(model, lambda net: nn.functional.cross_entropy(net(images), labels), 1)

    def _gpt(self, size: int) -> Callable[[], Any]:
        torch, nn = self._torch, self._torch.nn
        words, length, width = self._words
        layer = nn.TransformerEncoderLayer(width, 8, 4 * width, 0.0, batch_first=True, norm_first=True)
        model = nn.Sequential(
            nn.Embedding(words, width), nn.TransformerEncoder(layer, 6, enable_nested_tensor=False),
            nn.Linear(width, words),
        )
        tokens = torch.randint(0, words, (size, length), device=self._where)
        target = tokens.roll(-1, 1).flatten()
        return self._stepper(
            model, lambda net: nn.functional.cross_entropy(net(tokens).flatten(0, 1), target), MICRO_STEPS
        )

    def _stepper(self, model: Any, loss_of: Callable[[Any], Any], micro_steps: int) -> Callable[[], Any]:
        model = model.to(self._where)
        optimizer = self._torch.optim.AdamW(model.parameters(), lr=1e-4)

        def step() -> None:
            optimizer.zero_grad(set_to_none=True)
            for _ in range(micro_steps):
                with self._torch.autocast(self._where, self._torch.bfloat16, enabled=self.on_gpu):
                    loss = loss_of(model) / micro_steps
                loss.backward()
            optimizer.step()

        return step

    def steps(self, kind: str, seconds: float) -> Iterator[int]:
        """As in `Load`. The ends on the GPU come from CUDA events, since its work runs behind the host's."""
        if not self.on_gpu:
            yield from super().steps(kind, seconds)
            return
        training, events, event = self.training(kind), [], self._torch.cuda.Event
        next(training)
        self._wait()
        first = event(enable_timing=True)
        first.record()
        first.synchronize()
        start_s = self.clock()
        for number in itertools.count(1):
            next(training)
            events.append(event(enable_timing=True))
            events[-1].record()
            if number > 2:
                events[-3].synchronize()  # the host prepares at most two steps ahead
            yield number
            if self.clock() > start_s + seconds:
                break
        self._wait()
        self.step_ends_s = [start_s, *(start_s + first.elapsed_time(each) / 1000 for each in events)]


def load_for(device: Any, torch_on: str = "") -> Load:
    """The best load for an open GPU.

    Args:
        device: The GPU.
        torch_on: "cpu" to rehearse PyTorch's trainings on the processor.
    """
    import pynvml

    from workbench.simulation.machine import attached

    try:
        import torch
    except ImportError:
        torch = None  # type: ignore[assignment]
    if torch is not None and torch_on:
        return TorchLoad(device.clock, torch, torch_on)
    machine = attached() if device.simulated else None
    if machine is not None and not machine.replayed:
        return SimulatedLoad(device.clock, machine, device.index)
    if hasattr(pynvml.nvmlLib, "mock_kernel"):
        return StandInLoad(device.clock, pynvml.nvmlLib)
    if torch is not None and torch.cuda.is_available() and not device.simulated:
        return TorchLoad(device.clock, torch, "cuda")
    return Load(device.clock)
