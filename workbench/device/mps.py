"""Whether CUDA's Multi-Process Service runs: with it kernels of several processes run immediately, without it
they take turns.

A client that is killed before its work has ended may take the server and other users' clients with it
(NVIDIA, Multi-Process Service, "Limitations"), so that clients are ended through the daemon.

The daemon `nvidia-cuda-mps-control` listens in a directory that `CUDA_MPS_PIPE_DIRECTORY` names (NVIDIA,
Multi-Process Service, "CUDA Environment Variables"); CUDA programs find it by themselves.
"""

from __future__ import annotations

import os
import socket
import stat
import subprocess
from collections.abc import Mapping
from pathlib import Path

DEFAULT_PIPES = "/tmp/nvidia-mps"
DAEMON = "nvidia-cuda-mps-control"
ANSWER_S = 5.0
GRACE_S = 30.0  # for clients to end by themselves


def terminate_clients(pids: set[int], environment: Mapping[str, str]) -> set[int]:
    """Have the daemon end the GPU work of these clients; returns those that it could not.

    Those are all of them where it does not answer.
    """
    left: set[int] = set()
    servers = _ask("get_server_list", environment)
    clients = [_ask(f"get_client_list {server}", environment) for server in servers or ()]
    if servers is None or None in clients:
        return set(pids)
    for server, found in zip(servers, clients, strict=True):
        for client in pids & set(found or ()):
            if _ask(f"terminate_client {server} {client}", environment) != [0]:
                left.add(client)
    return left


def _ask(command: str, environment: Mapping[str, str]) -> list[int] | None:
    """The numbers that the daemon answers to a command; None where it does not answer."""
    try:
        answer = subprocess.run([DAEMON], input=command, capture_output=True, text=True, timeout=ANSWER_S,
                                env=dict(environment))
    except (OSError, subprocess.TimeoutExpired):
        return None
    return None if answer.returncode else [int(word) for word in answer.stdout.split() if word.isdigit()]


def _answers(control: Path) -> bool | None:
    """Whether somebody listens at the daemon's end, in any PID namespace; None where nothing shows it."""
    try:
        mode = control.stat().st_mode
        if stat.S_ISFIFO(mode):
            os.close(os.open(control, os.O_WRONLY | os.O_NONBLOCK))
        elif stat.S_ISSOCK(mode):
            with socket.socket(socket.AF_UNIX) as end:
                end.settimeout(ANSWER_S)
                end.connect(str(control))
        else:
            return None
    except OSError:
        return False
    return True


def running(environment: Mapping[str, str] | None = None) -> bool:
    """Whether CUDA programs started with this environment would share through the service."""
    env = os.environ if environment is None else environment
    pipes = Path(env.get("CUDA_MPS_PIPE_DIRECTORY") or DEFAULT_PIPES)
    if not (pipes / "control").exists():
        return False
    if (answers := _answers(pipes / "control")) is not None:
        return answers
    import psutil

    # The pipes stay behind when the daemon is killed. Where its command line is hidden, its name is cut.
    names = {process.info["name"] for process in psutil.process_iter(["name"])}
    return not names.isdisjoint((DAEMON, DAEMON[:15]))


def describe(mps: bool, simulated: bool) -> str:
    """How the jobs share, for a person."""
    if simulated:
        return "time slicing (simulated)"
    return "MPS: kernels of the jobs run together" if mps else "CUDA time slicing: the jobs take turns"
