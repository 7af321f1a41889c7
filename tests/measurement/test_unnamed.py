"""Processes on a GPU that cannot be named, and GPUs that are cut into instances: said with the joules."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

import workbench
from workbench import _processes
from workbench.measurement import meter
from workbench.measurement.meter import Meter
from workbench.records import Process
from workbench.simulation.machine import Machine


@pytest.mark.parametrize(
    ("pids", "ours", "words"),
    [
        ([4123456], set(), "1 process on this GPU cannot be seen from here"),
        ([4123456, 4123457], set(), "2 processes on this GPU cannot be seen from here"),
        ([4123456], {1}, ""),  # in a container: it is we, under a number of the host
        ([4123456, 4123457], {1}, "1 process on this GPU"),
        ([], {1}, ""),
    ],
)
def test_who_cannot_be_named_is_counted_and_we_are_not_among_them(
    monkeypatch: pytest.MonkeyPatch, pids: list[int], ours: set[int], words: str
) -> None:
    monkeypatch.setattr(meter, "with_cuda", lambda: ours)
    said = meter._unnamed([Process(pid, "?") for pid in pids])
    assert said.startswith(words) if words else said == ""


def test_a_hidden_process_is_in_the_notes_of_a_measurement(
    simulated: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = simulated("A100", stepped=True)
    gpu = workbench.open_device(0)
    monkeypatch.setattr(type(gpu), "processes", lambda _: (Process(4123456, "?", 2**30),))
    made = Meter([gpu], zones=())
    window = made.open("w")
    machine.step(1.0)
    notes = made.measure(made.close(window)).gpus[0].notes
    assert any("another container's or user's); the energy is in the figure" in note for note in notes)


def test_a_gpu_in_mig_mode_says_so_whatever_the_environment_does_not_say(
    simulated: Callable[..., Machine]
) -> None:
    simulated("A100", stepped=True).state.set_card(0, "mig", 1)
    gpu = workbench.open_device(0)
    assert gpu.note == "MIG is on: power and energy are those of the whole GPU, of all its instances"


def test_a_process_without_cuda_is_not_taken_for_one_with() -> None:
    assert os.getpid() not in _processes.with_cuda() or os.path.exists("/dev/nvidia-uvm")
