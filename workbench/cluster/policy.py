"""What a policy is: an object that hears of events, and places, stops and moves jobs in the simulator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..errors import SimulationError
from .colocation import Mixes, Profile
from .power import Cluster
from .state import QUEUED, Gpu, Job, Node


class IllegalPlacement(SimulationError):
    """A policy has placed a job where it cannot run; the message names both."""


def refusal(policy: str, name: str, job: Job, gpus: Sequence[Gpu]) -> str:
    """What is wrong with a placement that breaks a rule."""
    who = f"{policy} places job {name} (row {job.index}, {job.num_gpus} GPUs)"
    if job.state != QUEUED:
        return f"{who}, which is not queued; stop it first, or place each job once"
    if len(gpus) != job.num_gpus:
        return f"{who} on {len(gpus)} GPUs; give exactly {job.num_gpus}"
    if len(set(gpus)) != len(gpus):
        return f"{who} twice on one GPU; give {job.num_gpus} different ones"
    for gpu in gpus:
        kind = gpu.node.kind
        where = f"GPU {gpu.index} of node {gpu.node.index}"
        if job.gpu_type is not None and job.gpu_type != kind.gpu_type:
            return f"{who} on {where}, a {kind.gpu_type}; the job asks for {job.gpu_type}"
        if gpu.memory + job.memory > kind.memory_bytes:
            return (
                f"{who} on {where}, where {gpu.memory / 2**30:.2f} GiB of {kind.memory_bytes / 2**30:.2f} "
                f"are taken and it needs {job.memory / 2**30:.2f}; peak memories must fit together"
            )
    nodes = sorted({gpu.node.index for gpu in gpus})
    return f"{who} on nodes {nodes}; a job stays on the fewest nodes of one type that hold it"


class ClusterControl(Protocol):
    """What a policy sees of a running simulation, and may do to it. `Simulator` is one.

    Attributes:
        now_s: Simulated time.
        nodes: In order of their index, with their GPUs and jobs.
        awake: How many nodes are awake.
        cluster: What the cluster is made of.
        profiles, mixes: Groups of alike jobs in the log, and what is known of sharing between them.
        checkpoint_s, restart_s: What it costs a job to be stopped, and to begin again.
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
        """Slowdown - 1 of a running job, on its slowest GPU now."""

    def place(self, job: Job, gpus: tuple[Gpu, ...] | list[Gpu]) -> None:
        """Put a queued job on these GPUs; a node in standby wakes for it. Raises IllegalPlacement."""

    def stop(self, job: Job, *, undo: bool = False) -> None:
        """Have a running job write its checkpoint and leave; `Policy.stopped` follows."""

    def notify(self, job: Job, work_s: float) -> None:
        """Have `Policy.reached` called when that much more work of a running job is done."""

    def at(self, time_s: float, payload: object) -> None:
        """Have `Policy.timer` called with this payload at that moment."""

    def sleep(self, node: Node) -> None:
        """Put an empty awake node to standby now."""

    def cap(self, node: Node, index: int) -> None:
        """Set the node's GPUs to one of its type's power limits; -1 for none."""


class Policy(Protocol):
    """Decides who runs where. One object serves one simulation.

    `name` appears in results. `sleep_after_s` is how long a node stays awake empty before the cluster puts it
    to standby; None: for ever. The queue is the policy's: a job that it neither places nor keeps is lost, and
    the simulator says so at the end.
    """

    name: str
    sleep_after_s: float | None

    def begin(self, cluster: ClusterControl) -> None:
        """Once, before the first event: keep `cluster`, build what indices it takes."""

    def arrived(self, job: Job) -> None:
        """`job` is queued: place it now with `cluster.place`, or keep it."""

    def finished(self, job: Job, gpus: tuple[Gpu, ...]) -> None:
        """`job` has ended and has left these GPUs."""
        return

    def reached(self, job: Job) -> None:
        """`job` has come to the amount of work that `cluster.notify` was asked for."""
        return

    def stopped(self, job: Job, gpus: tuple[Gpu, ...]) -> None:
        """`job` has written its checkpoint, as asked by `cluster.stop`, left these GPUs, and is queued."""
        return

    def awoke(self, node: Node) -> None:
        """`node` has woken; its jobs have started."""
        return

    def slept(self, node: Node) -> None:
        """`node` has gone to standby."""
        return

    def timer(self, payload: object) -> None:
        """The moment has come that `cluster.at` was asked for."""
        return


class BasePolicy(Policy):
    """Says nothing to everything but arrivals; policies override what they want to hear."""

    name = "base"
    sleep_after_s: float | None = 300.0
    cluster: ClusterControl

    def begin(self, cluster: ClusterControl) -> None:
        self.cluster = cluster

    def arrived(self, job: Job) -> None:
        raise NotImplementedError
