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
DAEMON = "nvidia-cuda-mps-control"


def running(environment: Mapping[str, str] | None = None) -> bool:
    """Whether CUDA programs started with this environment would share through the service."""
    env = os.environ if environment is None else environment
    pipes = Path(env.get("CUDA_MPS_PIPE_DIRECTORY") or DEFAULT_PIPES)
    if not (pipes / "control").exists():
        return False
    import psutil

    # The pipes stay behind when the daemon is killed. Where its command line is hidden, its name is cut.
    names = {process.info["name"] for process in psutil.process_iter(["name"])}
    return not names.isdisjoint((DAEMON, DAEMON[:15]))


def words(mps: bool, simulated: bool) -> str:
    """How the jobs share, for a person."""
    if simulated:
        return "time slicing (simulated)"
    return "MPS: kernels of the jobs run at once" if mps else "CUDA time slicing: the jobs take turns"
