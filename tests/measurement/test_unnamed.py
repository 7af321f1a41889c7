"""A measurement reports unnamed processes on the GPU and GPUs that are divided into instances."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

import workbench
from workbench import _processes
from workbench.measurement import foreign
from workbench.measurement.meter import Meter
from workbench.records import Process
from workbench.simulation.machine import Machine


@pytest.mark.parametrize(
    ("there", "ours", "unnamed"),
    [
        ([4123456], set(), 1),
        ([4123456, 4123457], set(), 2),
        ([4123456], {1}, 0),  # in a container: it is we, under a number of the host
        ([4123456, 4123457], {1}, 1),
        ([], {1}, 0),
    ],
)
def test_who_has_no_name_here_is_counted_and_we_are_not_among_them(
    simulated: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch, there: list[int], ours: set[int],
    unnamed: int,
) -> None:
    simulated("A100", stepped=True)
    gpu = workbench.open_device(0)
    monkeypatch.setattr(foreign, "with_open", lambda *_, **__: ours)
    monkeypatch.setattr(type(gpu), "processes", lambda *_, **__: tuple(Process(pid, "?") for pid in there))
    assert foreign.foreign_processes(gpu)[:2] == ((), unnamed)


def test_an_mps_server_is_no_other_process_and_a_neighbour_is(
    simulated: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    simulated("A100", stepped=True)
    gpu = workbench.open_device(0)
    there = (Process(1, foreign.MPS_SERVER), Process(os.getpid(), "python"), Process(2, "train"))
    monkeypatch.setattr(type(gpu), "processes", lambda *_, **__: there)
    found = foreign.foreign_processes(gpu)
    assert (found.names, found.unnamed) == ("train (2)", 0)


def test_a_hidden_process_is_in_the_notes_of_a_measurement(
    simulated: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = simulated("A100", stepped=True)
    gpu = workbench.open_device(0)
    monkeypatch.setattr(type(gpu), "processes", lambda *_, **__: (Process(4123456, "?", 2**30),))
    made = Meter([gpu], zones=())
    window = made.open("w")
    machine.step(1.0)
    notes = made.measure(made.close(window)).gpus[0].notes
    assert any("1 other process" in note for note in notes)


def test_a_gpu_in_mig_mode_has_a_note_without_a_mig_environment(simulated: Callable[..., Machine]) -> None:
    simulated("A100", stepped=True).state.set_card(0, "mig", 1)
    gpu = workbench.open_device(0)
    assert "whole GPU" in gpu.note


def test_a_process_without_cuda_is_not_taken_for_one_with() -> None:
    assert os.getpid() not in _processes.with_open("/dev/nvidia-uvm") or os.path.exists("/dev/nvidia-uvm")
