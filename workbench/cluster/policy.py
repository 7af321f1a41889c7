"""Interface of a scheduling policy: it receives events, and places, stops and moves jobs in the simulator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..errors import SimulationError
from .colocation import Mixes, Profile
from .power import Cluster
from .state import QUEUED, Gpu, Gpus, Job, Node


class IllegalPlacement(SimulationError):
    """A policy has placed a job where it cannot run; the message names policy and job."""


def broken_rule(job: Job, gpus: Sequence[Gpu]) -> str:
    """The broken rule of a placement, as the end of a sentence; empty if it breaks none."""
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
    """The simulation as a policy sees it, with the actions of a policy. `Simulator` implements it.

    Attributes:
        now_s: Simulated time.
        nodes: In order of their index, with their GPUs and jobs.
        awake: Number of awake nodes.
        cluster: Number and type of the nodes.
        profiles, mixes: Classes of equal jobs in the log, and their known slowdowns when they share a GPU.
        checkpoint_s, restart_s: Cost to a job of a stop and of a restart.
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
        """The job's slowdown - 1 on its slowest GPU now, as a measurement would show it."""

    def place(self, job: Job, gpus: Gpus | list[Gpu]) -> None:
        """Put a queued job on these GPUs; a node in standby wakes for it.

        Raises:
            IllegalPlacement: The job is not queued, GPUs are too many, too few or repeated, on more nodes
                than necessary, or too full.
        """

    def stop(self, job: Job, *, undo: bool = False) -> None:
        """Let a running job write its checkpoint and leave; `Policy.stopped` reports when it is queued again.

        An undo reverts a provisional placement; anything else counts as a move. A job whose node is still
        waking leaves immediately.
        """

    def notify(self, job: Job, work_s: float) -> None:
        """Request a call of `Policy.reached` when a running job has done that much more work, unless it ends.
        """

    def at(self, time_s: float, payload: object) -> None:
        """Request a call of `Policy.timer` with this payload at that moment."""

    def sleep(self, node: Node) -> None:
        """Put an empty awake node to standby now."""

    def cap(self, node: Node, index: int) -> None:
        """Set the node's GPUs to one of its type's power limits; -1: none. Jobs continue at the new speed."""


class Policy:
    """Decides where jobs run. One object serves one simulation.

    `name` appears in results. `sleep_after_s` is how long a node stays awake empty before the cluster puts it
    to standby; None: for ever. The policy owns the queue. A job that it neither places nor keeps is lost, and
    the simulator reports it at the end. Subclasses override the methods of the events that they need.
    """

    name = "policy"
    sleep_after_s: float | None = 300.0
    cluster: ClusterControl

    def begin(self, cluster: ClusterControl) -> None:
        """Called once, before the first event: keep `cluster` and build indices."""
        self.cluster = cluster

    def arrived(self, job: Job) -> None:
        """`job` is queued: place it now with `cluster.place`, or keep it."""
        raise NotImplementedError

    def finished(self, job: Job, gpus: Gpus) -> None:
        """`job` has ended and has left these GPUs."""

    def reached(self, job: Job) -> None:
        """`job` has reached the amount of work requested by `cluster.notify`."""

    def stopped(self, job: Job, gpus: Gpus) -> None:
        """`job` has written the checkpoint requested by `cluster.stop`, left these GPUs, and is queued."""

    def awoke(self, node: Node) -> None:
        """`node` has woken; its jobs have started."""

    def slept(self, node: Node) -> None:
        """`node` has gone to standby."""

    def timer(self, payload: object) -> None:
        """The moment requested by `cluster.at` has come."""

