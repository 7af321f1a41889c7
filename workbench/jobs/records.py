"""Records of a job on several GPUs: its ranks, its nodes, and the waiting of its GPUs."""

from __future__ import annotations

from dataclasses import dataclass

from .._html import HtmlFacts
from ..records import Measurement, WorkDone


@dataclass(frozen=True, slots=True)
class GpuWait(HtmlFacts):
    """One GPU in the mean iteration of its job.

    Attributes:
        uuid, index: The GPU; its number on its node.
        work_s: From the beginning of the iteration until this GPU reaches the synchronisation.
        wait_s: From then until the last GPU reaches it; 0 for that GPU. None: unknown.
        wait_uncertainty_s: Half width of the 95 % interval of `wait_s`.
        wait_energy_j: Energy of this GPU while it waits.
        power_w: Mean power over the iteration, in parts of equal length.
        sm_clock_mhz: Mean SM clock while it works.
    """

    uuid: str
    index: int
    work_s: float | None = None
    wait_s: float | None = None
    wait_uncertainty_s: float | None = None
    wait_energy_j: float | None = None
    power_w: tuple[float, ...] = ()
    sm_clock_mhz: float | None = None


@dataclass(frozen=True, slots=True)
class JobWaiting(HtmlFacts):
    """Who waits for whom in the mean iteration of a job whose GPUs synchronise in every iteration.

    Attributes:
        iteration_s: Mean time of an iteration.
        iteration_uncertainty_s: Half width of its 95 % interval.
        count: Iterations in the mean.
        gpus: Every GPU of the job.
        straggler: UUID of the GPU that the others wait for; None where there is none or it is unknown.
        cost_s: Time by which an iteration would be shorter if the straggler were as fast as the next slowest
            GPU.
        known: Whether the data show who waits. `reason` explains why not, or names the straggler's
            cause.
    """

    iteration_s: float
    iteration_uncertainty_s: float
    count: int
    gpus: tuple[GpuWait, ...] = ()
    straggler: str | None = None
    cost_s: float | None = None
    known: bool = False
    reason: str = ""

    @property
    def energy_j(self) -> float | None:
        """Energy of all waiting in one iteration; None where it is unknown."""
        parts = [gpu.wait_energy_j for gpu in self.gpus]
        return None if not self.known or None in parts else sum(part or 0.0 for part in parts)


@dataclass(frozen=True, slots=True)
class Rank(HtmlFacts):
    """One process of a job.

    Attributes:
        rank: Its number in the job; None where the launcher gives none.
        node: Host name.
        pid: Process id there.
        gpus: UUIDs of its GPUs.
        iterations: That it has marked.
        energy_j: Of its GPUs while it ran; a GPU of several ranks counts in equal parts. None: unknown.
        energy_uncertainty_j: Half width of the 95 % interval.
        started_s, ended_s: Relative to the job's beginning.
        outcome: "ok", "died" (it ended before the job without an exit of its own), "restarted" (another
            process took its number) or "late" (it began after the others' first iteration).
        work: The work that it counted.
    """

    rank: int | None
    node: str
    pid: int
    gpus: tuple[str, ...] = ()
    iterations: int = 0
    energy_j: float | None = None
    energy_uncertainty_j: float | None = None
    started_s: float = 0.0
    ended_s: float = 0.0
    outcome: str = "ok"
    work: tuple[WorkDone, ...] = ()


@dataclass(frozen=True, slots=True)
class JobNode(HtmlFacts):
    """One machine of a job.

    Attributes:
        name: Host name.
        measurement: Of its GPUs.
        skew_s: Its clock minus that of the first node; None where it is unknown.
        skew_uncertainty_s: Half width of the 95 % interval.
        outcome: "ok", "interrupted", "error", or "unfinished": its log ends before the job.
    """

    name: str
    measurement: Measurement
    skew_s: float | None = None
    skew_uncertainty_s: float | None = None
    outcome: str = "ok"


@dataclass(frozen=True, slots=True)
class JobMeasurement(HtmlFacts):
    """A job on several GPUs: every GPU counts once.

    Attributes:
        measurement: Of all GPUs of all nodes together, with the job's iterations and work.
        ranks: Its processes.
        nodes: Its machines.
        waiting: Who waits for whom; None where it was not looked for.
        notes: Remarks, one sentence each.
    """

    measurement: Measurement
    ranks: tuple[Rank, ...] = ()
    nodes: tuple[JobNode, ...] = ()
    waiting: JobWaiting | None = None
    notes: tuple[str, ...] = ()
