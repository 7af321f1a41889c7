"""Processes on a GPU that are not ours, for measurements, the tuner, GPU profiles and the doctor."""

from __future__ import annotations

import os
from typing import NamedTuple

from .._processes import environment_of, is_ours, parent_of, with_open
from ..device import driver
from ..device.protocol import Device
from ..device.selection import same_job
from ..records import Process

MPS_SERVER = "nvidia-cuda-mps-server"  # computes for its clients, who are in the list themselves
SHARED_BY_RANKS = ("other ranks of this job share this GPU, and the figure of each rank has all of its "
                   "energy; do not add them up")


class ForeignProcesses(NamedTuple):
    """Those that have a name here, how many have none (another container's, or another user's), and how many
    other ranks of this job share the GPU with this one.
    """

    named: tuple[Process, ...]
    unnamed: int
    ranks: int = 0

    @property
    def names(self) -> str:
        """The first three with their process ids."""
        return ", ".join(f"{each.name} ({each.pid})" for each in self.named[:3])

    def notes(self) -> list[str]:
        """For a measurement of this GPU."""
        number = f"{self.unnamed} other process{'es' * (self.unnamed > 1)} on this GPU"
        return [note for note, applies in (
            (f"other processes used this GPU and are in the figure: {self.names}", self.named),
            (f"{number} cannot be named from here (another container's or user's); the figure includes their "
             "energy", self.unnamed),
            (SHARED_BY_RANKS, self.ranks),
        ) if applies]


def foreign_processes(device: Device, *, graphics: bool = True) -> ForeignProcesses:
    """The processes on a GPU that are neither this one, nor its descendants, nor ranks of the same job;
    those of a desktop, which only draw, are among them with `graphics`.

    In a container the driver may report ours under ids of the host, which have no name here. Of processes
    without a name, as many count as ours as we have with CUDA and an id outside of the list.

    Raises:
        DeviceError: the driver does not report them.
    """
    there = device.processes(graphics=graphics)
    known = [each for each in there if each.name not in ("?", MPS_SERVER)]
    others = [each for each in known if not is_ours(each.pid)]
    named = tuple(each for each in others if not is_sibling(each.pid))
    ranks = len(others) - len(named) if len(others) < len(known) else 0
    unnamed = sum(each.name == "?" for each in there)
    if unnamed:
        unnamed -= len(with_open(driver.current().MEMORY_FILES) - {each.pid for each in there})
    return ForeignProcesses(named, max(unnamed, 0), ranks)


def is_sibling(pid: int) -> bool:
    """Whether a process of this user is another rank of the job that this one is a rank of."""
    environment = environment_of(pid)
    one_parent = os.getppid() > 1 and parent_of(pid) == os.getppid()  # 0, 1: somewhere else, or none any more
    return environment is not None and same_job(os.environ, environment, one_parent=one_parent)
