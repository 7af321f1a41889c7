"""The base of policies: objects that receive events, and place, stop and move jobs in the simulator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..errors import SimulationError
from .colocation import Mixes, Profile
from .power import Cluster
from .state import QUEUED, Gpu, Job, Node


class IllegalPlacement(SimulationError):
    """A policy has placed a job where it cannot run; the message names both."""


def broken_rule(job: Job, gpus: Sequence[Gpu]) -> str:
    """How a placement breaks a rule, as the end of a sentence; empty where it breaks none."""
    if job.state != QUEUED:
        return ", which is not queued; stop it first, or place each job once"
    if len(gpus) != job.num_gpus:
        return f" on {len(gpus)} GPUs; give exactly {job.num_gpus}"
    if len(set(gpus)) != len(gpus):
        return f" twice on one GPU; give {job.num_gpus} different ones"
    for gpu in gpus:
        kind = gpu.node.kind
        if gpu.memory + job.memory > kind.memory_bytes:
            return (
                f" on GPU {gpu.index} of node {gpu.node.index}, where {gpu.memory / 2**30:.2f} GiB of "
                f"{kind.memory_bytes / 2**30:.2f} are taken and it needs {job.memory / 2**30:.2f}; peak "
                "memories must fit together"
            )
    nodes = {gpu.node for gpu in gpus}
    if len(nodes) > -(-job.num_gpus // kind.gpus):
        found = sorted(node.index for node in nodes)
        return f" on nodes {found}; a job stays on the fewest nodes that hold it"
    return ""


class ClusterControl(Protocol):
    """The view and the actions of a policy in a running simulation. `Simulator` is one.

    Attributes:
        now_s: Simulated time.
        nodes: In order of their index, with their GPUs and jobs.
        awake: How many nodes are awake.
        cluster: The hardware of the cluster.
        profiles, mixes: Groups of alike jobs in the log, and what is known of sharing between them.
        checkpoint_s, restart_s: The cost of a stop and a new start of a job.
    """

    now_s: float
    nodes: list[Node]
    awake: int
    cluster: Cluster
    profiles: list[Profile]
    mixes: Mixes
    checkpoint_s: float
    restart_s: float

    def name(self, job: Job) -> str:
        """The job's id in the log."""

    def excess(self, job: Job) -> float:
        """The job's slowdown - 1 on its slowest GPU now, as a person would measure it."""

    def place(self, job: Job, gpus: tuple[Gpu, ...] | list[Gpu]) -> None:
        """Put a queued job on these GPUs; a node in standby wakes for it.

        Raises:
            IllegalPlacement: The job is not queued, GPUs are too many, too few or twice the same, on more
                nodes than need be, or too full.
        """

    def stop(self, job: Job, *, undo: bool = False) -> None:
        """Have a running job write its checkpoint and leave; `Policy.stopped` reports when it is queued
        again.

        An undo restores a provisional placement; anything else counts as a move. A job whose node is still
        waking leaves immediately.
        """

    def notify(self, job: Job, work_s: float) -> None:
        """Have `Policy.reached` called once that much more work of a running job is done, unless it ends."""

    def at(self, time_s: float, payload: object) -> None:
        """Have `Policy.timer` called with this payload at that moment."""

    def sleep(self, node: Node) -> None:
        """Put an empty awake node to standby now."""

    def cap(self, node: Node, index: int) -> None:
        """Set the node's GPUs to one of its type's power limits; -1: none. Jobs go on at the new speed."""


class Policy:
    """Decides who runs where. One object serves one simulation.

    `name` appears in results. `sleep_after_s` is how long a node stays awake empty before the cluster puts it
    to standby; None: for ever. The queue is the policy's: a job that it neither places nor keeps is lost, and
    the simulator reports it at the end. Subclasses override the events that they need.
    """

    name = "policy"
    sleep_after_s: float | None = 300.0
    cluster: ClusterControl

    def begin(self, cluster: ClusterControl) -> None:
        """Once, before the first event: keep `cluster`, build what indices it takes."""
        self.cluster = cluster

    def arrived(self, job: Job) -> None:
        """`job` is queued: place it now with `cluster.place`, or keep it."""
        raise NotImplementedError

    def finished(self, job: Job, gpus: tuple[Gpu, ...]) -> None:
        """`job` has ended and has left these GPUs."""

    def reached(self, job: Job) -> None:
        """`job` has come to the amount of work that `cluster.notify` was asked for."""

    def stopped(self, job: Job, gpus: tuple[Gpu, ...]) -> None:
        """`job` has written its checkpoint, as asked by `cluster.stop`, left these GPUs, and is queued."""

    def awoke(self, node: Node) -> None:
        """`node` has woken; its jobs have started."""

    def slept(self, node: Node) -> None:
        """`node` has gone to standby."""

    def timer(self, payload: object) -> None:
        """The moment has come that `cluster.at` was asked for."""

