"""Three walks through the code when it runs: a sample to joules, a slider to the GPU, a bandit's choice to
the training. `python -m tools.walks` counts with `sys.setprofile` on a stepped simulated V100.

Own files without the simulation count. A change of file is a call or return that enters another own file; the
depth is the number of own frames on the stack.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple
from unittest import mock

import polars as pl

import workbench
from workbench.device.nvml import NvmlDevice
from workbench.experiments.job import RecurringJob
from workbench.measurement import session
from workbench.panels._core.live import LivePanel
from workbench.records import Setting
from workbench.simulation.machine import attached

ROOT = str(Path(workbench.__file__).parent)


class Walk(NamedTuple):
    """What one walk has passed through."""

    files: int
    changes: int
    functions: int
    depth: int


@contextmanager
def walked(found: list[Walk]) -> Iterator[None]:
    """Count what the block calls."""
    path: list[str] = []
    functions: set[tuple[str, str]] = set()
    stack: list[str] = []
    deepest = 0

    def see(frame: FrameType, event: str, _: Any) -> None:
        nonlocal deepest
        name = frame.f_code.co_filename
        if event not in ("call", "return") or not name.startswith(ROOT) or "/simulation/" in name:
            return
        if event == "call":
            stack.append(name)
            deepest = max(deepest, len(stack))
            functions.add((name, frame.f_code.co_qualname))
            path.append(name)
        elif stack:
            stack.pop()
            if stack:
                path.append(stack[-1])

    sys.setprofile(see)
    try:
        yield
    finally:
        sys.setprofile(None)
    changes = sum(a != b for a, b in itertools.pairwise(path))
    found.append(Walk(len(set(path)), changes, len(functions), deepest))


def _sample_to_joules(found: list[Walk]) -> None:
    machine = attached()
    with workbench.measure("walk") as result:  # the first one imports and opens
        machine.step(1.0)
    print(result, file=sys.stderr)
    meter = session.current().meter
    window = meter.open("walk")
    with walked(found):
        machine.step(0.02)  # the sampler reads
    machine.step(1.0)
    with walked(found):
        str(meter.measure(meter.close(window)))


def _slider_to_gpu(found: list[Walk]) -> None:
    points = pl.DataFrame({
        "power_limit_w": [250.0, 200.0, 150.0], "time_s": [100.0, 103.0, 110.0],
        "energy_j": [2.3e4, 2.0e4, 1.6e4], "batch_size": [64] * 3,
    })
    panel = workbench.panels.frontier(points)
    greeted, _ = panel.snapshot()
    with mock.patch.object(LivePanel, "_say"):
        with walked(found):
            panel.receive({"kind": "choose", "n": 1, "row": 1, "rule": "manual", "eta": 0.5,
                                    "slowdown": None, "version": greeted["choice"]["version"]})
        depths: list[int] = []
        write = NvmlDevice.write

        def counted(device: NvmlDevice, *given: Any) -> Setting:
            depths.append(sum(1 for _ in _own_frames(sys._getframe(1))))
            return write(device, *given)

        with mock.patch.object(NvmlDevice, "write", counted), walked(found):
            panel.apply()
        print(f"frames at the driver: {max(depths, default=0)}", file=sys.stderr)
        panel.undo()


def _own_frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        if frame.f_code.co_filename.startswith(ROOT):
            yield frame
        frame = frame.f_back


def _choice_to_training(found: list[Walk]) -> None:
    storage = Path(tempfile.mkdtemp()) / "walk.db"
    job = RecurringJob("walk", (256, 512), 512, target=0.6, seed=1, max_epochs=30, storage=storage)
    with walked(found):
        run = job.recurrence()
        run.__enter__()
        run.step()
    run.__exit__(None, None, None)


WALKS: dict[str, Callable[[list[Walk]], None]] = {
    "sample": _sample_to_joules, "slider": _slider_to_gpu, "choice": _choice_to_training,
}
PARTS = {
    "sample": ("a sample into the ring", "window to measurement and its line"),
    "slider": ("slider heard by the kernel", "Apply to the GPU"),
    "choice": ("bandit's choice, and the first limit set",),
}


def main() -> None:
    session.simulate("V100", stepped=True)
    for name, act in WALKS.items():
        found: list[Walk] = []
        act(found)
        for part, walk in zip(PARTS[name], found, strict=True):
            files = f"{walk.files} files, {walk.changes} changes of file"
            print(f"{part}: {files}, {walk.functions} functions, depth {walk.depth}")
    session.current().close()


if __name__ == "__main__":
    main()
