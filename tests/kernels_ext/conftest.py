"""Kernels for the tests of this directory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from a_kernel import Kernel
from jupyter_client.manager import start_new_kernel


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Kernel]]:
    """Start a kernel with a home of its own and no GPU; all end with the module."""
    started: list[Kernel] = []

    def begin(**environment: str) -> Kernel:
        home = tmp_path_factory.mktemp("kernel")
        clean = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("WORKBENCH_", "CUDA_", "XDG_"))
        }
        own = {"HOME": str(home), "TMPDIR": str(home), "WORKBENCH_HOME": str(home / "workbench"),
               "IPYTHONDIR": str(home / "ipython"),
               "JUPYTER_CONFIG_DIR": str(home / "jupyter"), "JUPYTER_RUNTIME_DIR": str(home / "runtime")}
        Path(home / "runtime").mkdir()
        started.append(
            Kernel(
                *start_new_kernel(kernel_name="python3", env={**clean, **own, **environment}, cwd=str(home))
            )
        )
        return started[-1]

    yield begin
    for kernel in started:
        kernel.end()
