"""Marks from PyTorch without a change to the training: every step of its optimizer is reported like
`marks.MarkWriter`, in a file of its own of the same form.

Copied next to a job as `sitecustomize.py`, which Python imports at its start, in the environment of the job's
Python: so this needs the standard library only, and not the workbench. A `sitecustomize` of that environment
    is run afterwards. Its marks count only where a job makes none itself.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.util
import json
import os
import sys
import time
from types import ModuleType
from typing import Any

WATCHED = "torch.optim.optimizer"
OTHERS = 10  # steps of other optimizers in a row after which the one that counted is taken to be done


class OptimizerSteps:
    """Tells the steps of one optimizer: where several train parts of a model in turn, the first one is the
    iteration's.
    """

    def __init__(self, directory: str) -> None:
        self._directory, self._pid, self._file = directory, 0, -1
        self._leader: int | None = None
        self._others = 0

    def __call__(self, optimizer: Any, *_: Any) -> None:
        if self._leader != id(optimizer):
            self._others += 1
            if self._leader is not None and self._others <= OTHERS:
                return
            self._leader = id(optimizer)
        self._others = 0
        now_s = time.monotonic()
        with contextlib.suppress(OSError):
            if self._pid != os.getpid():  # at first, and in a forked process
                self._pid = os.getpid()
                path = os.path.join(self._directory, f"{self._pid}-{time.time_ns()}-optimizer.marks")
                self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
                os.write(self._file, json.dumps({"pid": self._pid, "began_s": now_s}).encode() + b"\n")
            os.write(self._file, f"optimizer {now_s}\n".encode())


class OptimizerFinder:
    """Waits until the module with the optimizers is imported, and asks it to call back after every step."""

    def __init__(self, steps: OptimizerSteps) -> None:
        self._steps = steps

    def find_spec(
        self, name: str, path: Any = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != WATCHED:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            load(module)
            # a PyTorch before 2.0: its iterations are looked for in the power
            with contextlib.suppress(Exception):
                module.register_optimizer_step_post_hook(self._steps)

        with contextlib.suppress(AttributeError):
            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def begin(directory: str) -> None:
    """From now on steps are reported to a file in this directory."""
    sys.meta_path.insert(0, OptimizerFinder(OptimizerSteps(directory)))


def go_on(directory: str) -> None:
    """Run the `sitecustomize` that this one stands before, if there is one."""
    sys.path[:] = [each for each in sys.path if os.path.abspath(each or ".") != directory]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if __name__ == "sitecustomize":
    if _path := os.environ.get("WORKBENCH_MARKS"):
        begin(_path)
    go_on(os.path.dirname(os.path.abspath(__file__)))
