"""Whether CUDA's Multi-Process Service runs: with it kernels of several processes run at once, without it
they take turns.

The daemon `nvidia-cuda-mps-control` listens in a directory that `CUDA_MPS_PIPE_DIRECTORY` names (NVIDIA,
Multi-Process Service, "CUDA Environment Variables"); CUDA programs find it by themselves.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

DEFAULT_PIPES = "/tmp/nvidia-mps"


def running(environment: Mapping[str, str] | None = None, processes: Path = Path("/proc")) -> bool:
    """Whether CUDA programs started with this environment would share through the service."""
    env = os.environ if environment is None else environment
    pipes = Path(env.get("CUDA_MPS_PIPE_DIRECTORY") or DEFAULT_PIPES)
    return (pipes / "control").exists() and _daemon(processes)


def _daemon(processes: Path) -> bool:
    """Whether the daemon is alive: its pipes stay behind when it is killed."""
    for path in processes.glob("[0-9]*/comm"):
        try:
            if path.read_text().strip() == "nvidia-cuda-mps-control"[:15]:  # as the kernel cuts names
                return True
        except OSError:
            continue
    return False


def words(mps: bool, simulated: bool) -> str:
    """How the jobs share, for a person."""
    if simulated:
        return "time slicing (simulated)"
    return "MPS: kernels of the jobs run at once" if mps else "CUDA time slicing: the jobs take turns"
