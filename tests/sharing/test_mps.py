"""Jobs under CUDA's Multi-Process Service: found by who listens, asked to end, and never just killed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import workbench
from workbench.device import mps
from workbench.measurement import foreign
from workbench.sharing import stages
from workbench.sharing.children import JobProcess, stop_all
from workbench.sharing.watching import Interval
from workbench.simulation.machine import Machine

STUBBORN = (
    "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
)


@pytest.mark.parametrize("kind", ["socket", "pipe"])
def test_a_daemon_of_another_container_is_found_by_who_listens(tmp_path: Path, kind: str) -> None:
    control, environment = tmp_path / "control", {"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)}
    if kind == "socket":
        with socket.socket(socket.AF_UNIX) as daemon:
            daemon.bind(str(control))
            daemon.listen()
            assert mps.running(environment)
    else:
        os.mkfifo(control)
        daemon_end = os.open(control, os.O_RDONLY | os.O_NONBLOCK)
        assert mps.running(environment)
        os.close(daemon_end)
    assert not mps.running(environment)  # what it leaves behind is no daemon


def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, terminates: str) -> Path:
    """A control program with one server, 77, whose clients are the processes of a file."""
    log = tmp_path / "asked"
    (tmp_path / mps.DAEMON).write_text(
        f'#!/bin/sh\nread line\necho "$line" >> {log}\ncase "$line" in\nget_server_list) echo 77;;\n'
        f'get_client_list*) cat {tmp_path}/clients;;\nterminate_client*) echo {terminates};;\nesac\n'
    )
    (tmp_path / mps.DAEMON).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return log


@pytest.mark.parametrize(("terminates", "ended"), [("0", True), ("801", False)])
def test_a_client_is_killed_only_after_the_service_has_ended_its_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, terminates: str, ended: bool
) -> None:
    log = daemon(tmp_path, monkeypatch, terminates)
    monkeypatch.setattr(mps, "GRACE_S", 0.2)
    job = JobProcess("job", [sys.executable, "-c", STUBBORN], tmp_path, os.environ, client=True)
    job.start()
    while not job.tail():
        time.sleep(0.01)
    (tmp_path / "clients").write_text(f"{job.pid}\n12\n")
    (shown,) = stop_all([job], grace_s=0.1)
    assert log.read_text().splitlines() == ["get_server_list", "get_client_list 77", f"terminate_client 77 {job.pid}"]
    assert job.running is not ended
    assert ("was killed" if ended else "killing a client") in shown
    if not ended:
        os.killpg(job.pid, signal.SIGKILL)
        job.client = False
        job.kill()


def test_a_reaper_with_a_grace_interrupts_before_it_kills(tmp_path: Path) -> None:
    """Its parent is killed; the job records the signals that it receives."""
    out = tmp_path / "out"
    job = f"import signal, time\nsignal.signal(signal.SIGINT, signal.default_int_handler)\ntry:\n    time.sleep(60)\nexcept KeyboardInterrupt:\n    open({str(out)!r}, 'w').write('asked')"
    code = (
        "import os, signal, subprocess, sys; from workbench._processes import ProcessReaper\n"
        f"p = subprocess.Popen([sys.executable, '-c', {job!r}], start_new_session=True, env={{**os.environ, 'MARKED': 'x'}})\n"
        "r = ProcessReaper(b'MARKED=x', dict(os.environ), 30.0); r.began(p.pid); print(p.pid, flush=True)\n"
        "import time; time.sleep(1.0); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    until = time.monotonic() + 60.0
    while not out.exists() and time.monotonic() < until:
        time.sleep(0.05)
    assert out.exists(), done.stderr


def test_the_clients_of_a_service_are_seen_and_its_server_is_nobody(simulated: Callable[..., Machine]) -> None:
    machine = simulated("A100", stepped=True)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        machine.state.set_process(0, os.getpid(), 2**30)
        machine.state.set_process(0, other.pid, 2**30)
        machine.state.set_card(0, "mps", 2**22 + 5)  # in another container: no name here
        observed = {each.pid for each in workbench.open_device(0).processes()}
        assert observed == {os.getpid(), other.pid}
        other.communicate(b"\n")


def test_host_process_ids_have_no_name_here(simulated: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch) -> None:
    machine = simulated("A100,host-pids", stepped=True)
    machine.state.set_process(0, os.getpid(), 2**30)
    gpu = workbench.open_device(0)
    assert [each.name for each in gpu.processes()] == ["?"]
    monkeypatch.setattr(foreign, "with_open", lambda _: {os.getpid()})
    assert foreign.foreign_processes(gpu)[:2] == ((), 0)  # it is we
    monkeypatch.setattr(foreign, "with_open", lambda _: set())
    assert foreign.foreign_processes(gpu)[:2] == ((), 1)


@pytest.mark.parametrize(("after_w", "pauses"), [(60.0, True), (290.0, False)])
def test_a_pause_without_effect_is_reported(
    after_w: float, pauses: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages, "GRACE_S", 0.2)
    powers = iter([300.0])
    watcher: Any = SimpleNamespace(
        mean_power_w=lambda *_: next(powers, after_w), settled=lambda: None, least_s=lambda: 0.5, clock=lambda: 9.0
    )
    drawn_w = stages.drawn_when_paused(watcher, 50.0, Interval((0,), 0.0, 1.0))
    assert drawn_w == (None if pauses else after_w)
