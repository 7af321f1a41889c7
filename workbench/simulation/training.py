"""Simulated training: a job that keeps a simulated GPU busy, iterated like a data loader.

    for batch in TrainingJob("imagenet", batch_size=256, iterations=100):
        # the GPU computes meanwhile; a changed power limit slows it immediately
        ...

An iteration consists of the workload's phases (data, forward, backward, optimizer). The card's physics gives
their power and speed under the active setting. As with a real GPU, the host runs slightly ahead of the
device. `marks` holds true iteration starts, `events` holds evaluations and checkpoints, all in seconds of the
machine's clock.

Jobs of this process and of others may share a GPU: its time is sliced, and their memory adds up (`tenants`).
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

from ..errors import SimulationError, UsageError
from . import catalogue
from .catalogue import Workload, WorkloadPhase
from .lane import Lane
from .lane import OutOfMemory as OutOfMemory
from .machine import Machine, attached
from .state import GUARD_S

T = TypeVar("T")
AHEAD_S = 0.010  # how far the host may run ahead of the device
# The same for much work queued together, as a share of its length. A clock step longer than requested must
# not make the host late, or the job would restart in phase with the observer.
AHEAD_OF_GRAIN = 0.1
CHECK_S = AHEAD_S / 2  # interval at which a blocked host checks for a changed setting
ITERATION_JITTER = 0.01
GAP_JITTER = 0.15


class Batch(NamedTuple):
    """The value that a job yields for each iteration: its number."""

    iteration: int
    epoch: int
    size: int


@dataclass(frozen=True)
class Event:
    """An evaluation or a checkpoint between iterations."""

    kind: str
    start_s: float
    end_s: float


class TrainingJob:
    """A training of a named workload on one simulated GPU, or data-parallel on several.

    Args:
        workload: One of the six of Zeus: cifar100, imagenet, librispeech, movielens, sentiment140, squad.
        batch_size: Per GPU; the workload's default if None.
        epochs: Number of epochs; ignored when `iterations` is given.
        iterations: Number of iterations.
        gpu: Index or indices of simulated GPUs.
        evaluate: Run the workload's evaluation after each epoch.
        checkpoint_every: Number of iterations between checkpoints. Each takes `checkpoint_s` seconds, or as
            long as a disk takes.
        accumulate: Micro-steps of `batch_size` samples each per optimizer step (gradient accumulation).
        variation: Standard deviation of the logarithm of an iteration's length, 1 % if None. With 0.7 or more
            nothing in the trace repeats, as with inference requests of random lengths.
        grain_s: For a stepped clock: length of work queued together before each step of the clock. Otherwise
            iterations of a few milliseconds would make such short steps that the sampler, which sees one step
            at a time, never sees a sensor refresh.
        seed: Random seed of the variation between iterations.

    Raises:
        OutOfMemory: The batch does not fit on the card, or, when the job begins, not together with its
            present jobs.
        SimulationError: No simulated GPU in this process, or one with the maximum number of jobs.
        UsageError: An unknown workload, or a batch size or count below 1.
    """

    def __init__(
        self, workload: str | Workload, batch_size: int | None = None, *, epochs: int = 1,
        iterations: int | None = None, gpu: int | Sequence[int] = 0, machine: Machine | None = None,
        evaluate: bool = True, checkpoint_every: int | None = None, checkpoint_s: float | None = None,
        accumulate: int = 1, variation: float | None = None, grain_s: float = 0.0, seed: int = 0,
    ) -> None:
        found = machine or attached()
        if found is None:
            raise SimulationError("this process has no simulated GPU; choose one first: %gpu simulate A100")
        if found.replayed:
            raise SimulationError("this process replays a recording, and no job can run on it; choose a "
                                  "simulated GPU: %gpu simulate A100")
        self.machine = found
        self.workload = workload if isinstance(workload, Workload) else named(workload)
        self.batch_size = self.workload.default_batch_size if batch_size is None else batch_size
        for name, value in (
            ("batch_size", self.batch_size), ("epochs", epochs),
            ("iterations", 1 if iterations is None else iterations), ("accumulate", accumulate),
        ):
            if value < 1:
                raise UsageError(f"{name} must be at least 1, not {value}")
        if variation is not None and not variation >= 0:
            raise UsageError(f"variation is a standard deviation, 0 or more, not {variation:g}")
        self.gpus = (gpu,) if isinstance(gpu, int) else tuple(gpu)
        for index in self.gpus:
            if not 0 <= index < found.state.count:
                raise SimulationError(
                    f"there is no simulated GPU {index}; there are {found.state.count}, from 0"
                )
        self._lanes = [Lane(found, index, self.workload, self.batch_size) for index in self.gpus]
        self.accumulate = accumulate
        self.variation = ITERATION_JITTER if variation is None else variation
        self.iterations_per_epoch = max(
            1, self.workload.samples // (self.batch_size * accumulate * len(self.gpus))
        )
        self.iterations = iterations if iterations is not None else epochs * self.iterations_per_epoch
        self._evaluate, self._checkpoint_every, self._checkpoint_s = evaluate, checkpoint_every, checkpoint_s
        self.seed = seed
        self._grain_s = grain_s if found.clock.stepped else 0.0
        self._rng = random.Random(seed)
        self.marks: list[float] = []
        self.events: list[Event] = []
        self._end_s = 0.0

    def __len__(self) -> int:
        return self.iterations

    def __iter__(self) -> Iterator[Batch]:
        with self.claimed():
            for batch in self.pieces():
                self._wait(max(AHEAD_S, AHEAD_OF_GRAIN * self._grain_s), self._grain_s if batch else 0.0)
                if batch is not None:
                    yield batch
            self._wait(0.0)

    def pieces(self) -> Iterator[Batch | None]:
        """Queue work without a wait: an iteration, which is yielded, or work between two iterations."""
        for number in range(self.iterations):
            self.marks.append(self._start(self._iteration()))
            yield Batch(number, number // self.iterations_per_epoch, self.batch_size * self.accumulate)
            if self._evaluate and (number + 1) % self.iterations_per_epoch == 0:
                yield from self._between("evaluation", [lane.evaluation for lane in self._lanes])
            if self._checkpoint_every and (number + 1) % self._checkpoint_every == 0:
                yield from self._between("checkpoint", [self._checkpoint() for _ in self._lanes])

    def run(self) -> None:
        """Run the job to its end."""
        for _ in self:
            pass

    # start and end of a job

    @contextlib.contextmanager
    def claimed(self) -> Iterator[None]:
        """Occupy the job's GPUs; afterwards a GPU without other jobs idles.

        Raises OutOfMemory or SimulationError if one has no room.
        """
        with self.machine.state.writing():
            for lane in self._lanes:  # all of them or none
                lane.check_room()
            for lane in self._lanes:
                lane.enter()
        self._end_s = self._soonest()
        try:
            yield
        finally:
            for lane in self._lanes:
                lane.leave()

    # running phases

    def _iteration(self) -> list[list[WorkloadPhase]]:
        """The phases of the next iteration on every GPU."""
        factor = self._rng.lognormvariate(0.0, self.variation)
        gaps = [self._rng.lognormvariate(0.0, GAP_JITTER) for _ in range(self.accumulate)]
        return [_varied(lane.iteration, factor, gaps) for lane in self._lanes]

    def _soonest(self) -> float:
        now_s = self.machine.state.now_s()
        return now_s if self.machine.clock.stepped else now_s + GUARD_S

    def _start(self, phases: Sequence[Sequence[WorkloadPhase]]) -> float:
        """Queue phases on every GPU after the queued ones; returns when they start."""
        start_s = max(self._end_s, self._soonest())
        self._end_s = max([lane.queue(start_s, work) for lane, work in zip(self._lanes, phases, strict=True)])
        return start_s

    def _wait(self, ahead_s: float, grain_s: float = 0.0) -> None:
        """Wait until the device is within `ahead_s` of its queue's end, following changes of the setting."""
        state, clock = self.machine.state, self.machine.clock
        if self._end_s - ahead_s - state.now_s() <= grain_s:
            return
        while (left_s := self._end_s - ahead_s - state.now_s()) > 0:
            # A step of a stepped clock is at most the delay of a change, so that each change is noticed in
            # time.
            check_s = (
                state.arrival_s(self.gpus[0]) if clock.stepped
                else CHECK_S * state.header("scale")
            )
            clock.sleep(min(left_s, max(check_s, 2 * GUARD_S)))
            self.follow()

    def follow(self) -> None:
        """Plan the queued work again if the setting or the jobs on a GPU have changed."""
        changed = [lane.changed() for lane in self._lanes]  # calls every one: each call records the change
        if any(changed):
            self._end_s = max([lane.requeue(self._soonest()) for lane in self._lanes])

    @property
    def end_s(self) -> float:
        """End time of the queued work."""
        return self._end_s

    def _checkpoint(self) -> tuple[WorkloadPhase, ...]:
        phases = catalogue.checkpoint(self.workload)
        if self._checkpoint_s is None:
            return phases
        return tuple(replace(phase, time_s=self._checkpoint_s / len(phases)) for phase in phases)

    def _between(self, kind: str, phases: Sequence[Sequence[WorkloadPhase]]) -> Iterator[None]:
        start_s = self._start(phases)
        yield None
        self.events.append(Event(kind, start_s, self._end_s))


def named(workload: str) -> Workload:
    """The workload of that name. Raises UsageError with the known names."""
    try:
        return catalogue.WORKLOADS[workload]
    except KeyError:
        known = ", ".join(catalogue.WORKLOADS)
        raise UsageError(f"no workload is called {workload!r}; there are {known}") from None


def _varied(phases: Sequence[WorkloadPhase], factor: float, gaps: Sequence[float]) -> list[WorkloadPhase]:
    """The phases of one iteration, varied (gaps vary more than kernels), with a micro-step for each gap.

    The optimizer works once, in the last of them, as long as in an iteration with all samples in one batch.
    """
    steps, made = len(gaps), []
    for number, gap in enumerate(gaps, start=1):
        for phase in phases:
            if phase.kind != "optimizer" or number == steps:
                time_s = phase.time_s * (gap if phase.load is None else factor)
                made.append(replace(phase, time_s=time_s * (steps if phase.kind == "optimizer" else 1)))
    return made


def gpu_beside(steps: Iterable[T], workload: str = "imagenet", *, gpu: int = 0) -> Iterator[T]:
    """Iterate a loop that really computes on the host's processor. During each step, a simulated GPU works
    for one iteration of a workload. Without a simulated GPU, only the steps run.

    Args:
        steps: The iterable of the loop, such as a data loader.
        workload: The workload that determines the GPU's power, as in `TrainingJob`.
        gpu: Index of the simulated GPU.
    """
    machine = attached()
    if machine is None or machine.replayed:
        yield from steps
        return
    job = TrainingJob(workload, gpu=gpu, machine=machine)
    with job.claimed():
        for item in steps:
            job.marks.append(job._start([lane.iteration for lane in job._lanes]))
            yield item
            job._wait(0.0)
