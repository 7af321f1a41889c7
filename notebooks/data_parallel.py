"""Data-parallel training on simulated GPUs that exchange their gradients in every iteration.

    machine = workbench.simulate("8xH100", stepped=True)
    job = DataParallelJob("squad", gpu=range(8), straggler=(3, 1.2), iterations=50)
    job.run()
    job.exchanges[10].wait_s                     # true waiting time of each GPU in iteration 10

Each GPU computes at its own speed. Its gradients are complete in buckets during the backward pass. A ring
reduces a bucket as soon as all GPUs have it and the previous one is reduced:

    done[k] = max(done[k-1], max over GPUs of ready[k]) + bucket_s
    bucket_s = 2 (n-1)/n * bytes / link speed * link_slowdown * max over GPUs of the slowdown by its clocks

A GPU whose backward pass has ended waits until the last one reaches this barrier, then until the last bucket
is reduced. Then it runs the optimizer and begins its next iteration. The barrier couples only the all-reduce,
so a change of one GPU's setting affects the others only through their waiting.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from workbench.errors import UsageError
from workbench.simulation.catalogue import Workload, WorkloadPhase
from workbench.simulation.lane import Lane
from workbench.simulation.physics import Load, operate
from workbench.simulation.tenants import Planned
from workbench.simulation.training import GAP_JITTER, ITERATION_JITTER, TrainingJob, _varied

Row = tuple[float, float, WorkloadPhase]
# Dynamic power while a NCCL kernel polls for the others, as a share of the power between static power and
# the default limit: the range over jobs. Assumed: more than a gap, less than any busy phase.
SPIN = (0.1, 0.35)
LINK_BYTES_PER_S = 20e9  # of a ring over PCIe 4, assumed
_BEGIN, _BUCKET = "begin", "bucket "  # names of an iteration's first phase and of its parts with a bucket


@dataclass(slots=True)
class Exchange:
    """True times of one iteration of all GPUs, in the order of the job's GPUs, on the machine's clock.

    Attributes:
        iteration: Its number in the job.
        begin_s: Beginning of the iteration on each GPU.
        ready_s: For each GPU, when each bucket of its gradients is complete.
        end_s: End of the all-reduce, common to all GPUs.
        wait_energy_j: True energy of each GPU between its arrival and the barrier; empty until then.
    """

    iteration: int
    begin_s: list[float]
    ready_s: list[list[float]]
    end_s: float = 0.0
    wait_energy_j: tuple[float, ...] = ()

    @property
    def arrival_s(self) -> tuple[float, ...]:
        """End of each GPU's backward pass."""
        return tuple(moments[-1] for moments in self.ready_s)

    @property
    def barrier_s(self) -> float:
        """Arrival of the last GPU."""
        return max(self.arrival_s)

    @property
    def wait_s(self) -> tuple[float, ...]:
        """Time that each GPU waits for the last one; 0 for that one."""
        return tuple(self.barrier_s - arrival_s for arrival_s in self.arrival_s)

    @property
    def last(self) -> int:
        """Place of the last GPU, for which the others wait."""
        return self.arrival_s.index(self.barrier_s)

    def note(self, place: int, rows: Sequence[Row], from_s: float) -> None:
        """Record the times of a GPU's work that is planned again from a time on."""
        for start_s, end_s, phase in rows:
            if phase.name.startswith(_BUCKET):
                self.ready_s[place][int(phase.name.removeprefix(_BUCKET))] = end_s
            elif phase.name == _BEGIN and self.begin_s[place] >= from_s:
                self.begin_s[place], from_s = start_s, float("inf")  # a setting may split the first phase


@dataclass(slots=True)
class _Track:
    """The work of one GPU while it is planned.

    Attributes:
        begin_s: Its start.
        stages: Its phases before each all-reduce, and those after the last.
        at_s: End of the planned part.
    """

    lane: Lane
    begin_s: float
    stages: list[list[WorkloadPhase]]
    at_s: float
    plan: list[Planned] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)

    @classmethod
    def of(cls, lane: Lane, begin_s: float, phases: Sequence[WorkloadPhase]) -> _Track:
        stages: list[list[WorkloadPhase]] = [[]]
        work = (phase for phase in phases if phase.kind != "wait")
        for exchanging, group in itertools.groupby(work, lambda phase: phase.kind == "transfer"):
            if exchanging:
                stages.append([])
            else:
                stages[-1] += group
        return cls(lane, begin_s, stages, begin_s)

    def add(self, phases: Sequence[WorkloadPhase]) -> list[Row]:
        plan, rows, self.at_s = self.lane.plan(self.at_s, phases)
        self.plan += plan
        self.rows += rows
        return rows

    def add_until(self, end_s: float, phase: WorkloadPhase) -> None:
        """Fill the time until an end that all GPUs have in common."""
        if end_s > self.at_s and self.add([replace(phase, time_s=end_s - self.at_s)]):
            # Without its rounding error: otherwise only some GPUs would have ended at that time.
            self.rows[-1] = (self.rows[-1][0], end_s, self.rows[-1][2])
            self.at_s = end_s


class DataParallelJob(TrainingJob):
    """A training on several simulated GPUs that wait for each other in every iteration.

    `exchanges` holds the true times of each iteration. `marks` are the iteration starts of the first GPU.

    Args:
        workload: As of `TrainingJob`.
        batch_size: Per GPU.
        gpu: Indices of at least two simulated GPUs.
        straggler: Index of a GPU and the factor by which it is slower, such as (3, 1.2).
        cause: Its cause. "clock": the GPU is hot and lowers its clock. "data": its data come late.
        link_slowdown: Factor by which the slowest link of the ring is slower. It delays all GPUs equally.
        wait: A waiting GPU polls in a kernel ("spin": utilisation 100 %) or idles ("block").
        imbalance: Standard deviation of the logarithm of a GPU's work in an iteration relative to the
            others. With sequences of random lengths it is about 0.1, and the straggler changes.
        buckets: Parts in which gradients are reduced.
        options: Further arguments of `TrainingJob`.

    Raises:
        UsageError: Fewer than two GPUs, or a factor below 1.
    """

    def __init__(
        self, workload: str | Workload, batch_size: int | None = None, *, gpu: Sequence[int],
        straggler: tuple[int, float] | None = None, cause: Literal["clock", "data"] = "clock",
        link_slowdown: float = 1.0, wait: Literal["spin", "block"] = "spin",
        imbalance: float = ITERATION_JITTER, buckets: int = 4, **options: Any,
    ) -> None:
        super().__init__(workload, batch_size, gpu=gpu, **options)
        count = len(self.gpus)
        if count < 2:
            raise UsageError(f"gpu={[*self.gpus]}: a data-parallel job needs 2 or more GPUs")
        slow_gpu, slowdown = straggler or (self.gpus[0], 1.0)
        if slow_gpu not in self.gpus:
            raise UsageError(f"the straggler {slow_gpu} is not a GPU of this job; it has {[*self.gpus]}")
        for name, factor in (("slowdown of the straggler", slowdown), ("link_slowdown", link_slowdown)):
            if not factor >= 1.0:
                raise UsageError(f"{name} is a factor of 1 or more, not {factor:g}")
        self.imbalance, self.buckets = imbalance, buckets
        self.exchanges: list[Exchange] = []
        self._settled = 0
        # Adam's checkpoint is three times as large as the gradients: weights and two moments.
        reduced_bytes = 2 * (count - 1) / count * max(self.workload.checkpoint_bytes / 3, 1e6)
        self._bucket_s = reduced_bytes / LINK_BYTES_PER_S / buckets * link_slowdown
        slow = self._lanes[self.gpus.index(slow_gpu)]
        self._late_s = [0.0] * count
        if cause == "data":
            late_s = (slowdown - 1.0) * sum(phase.time_s for phase in slow.iteration)
            self._late_s[self.gpus.index(slow_gpu)] = late_s
        elif slowdown > 1.0:
            slow.throttle_mhz = _throttled_mhz(slow, slowdown)
        # Polling differs between jobs, cards and waits, and each card's place in the ring sets its traffic.
        rng = random.Random(self.machine.state.header("seed") + self.seed)
        share = rng.uniform(*SPIN)
        self._spins: list[tuple[WorkloadPhase, ...]] = []
        self._transfers: list[WorkloadPhase] = []
        for lane in self._lanes:
            room_w = share * rng.lognormvariate(0.0, 0.1) * (lane.card.power_limit_w[1] - lane.card.static_w)
            self._spins.append(tuple(
                WorkloadPhase("wait", "wait", 0.0, Load(0.0, 0.0, ripple * room_w), 1.0, 0.02)
                for ripple in (0.95, 1.0, 1.05)
            ) if wait == "spin" else (WorkloadPhase("wait", "wait", 0.0, None, 0.0, 0.0),))
            self._transfers.append(WorkloadPhase(
                "transfer", "transfer", 1.0, Load(0.0, 0.0, 1.5 * room_w), 1.0, rng.uniform(0.2, 0.5)
            ))

    def _iteration(self) -> list[list[WorkloadPhase]]:
        common, works = self._rng.lognormvariate(0.0, self.variation), []
        for lane, transfer, late_s in zip(self._lanes, self._transfers, self._late_s, strict=True):
            factor = common * self._rng.lognormvariate(0.0, self.imbalance)
            gaps = [self._rng.lognormvariate(0.0, GAP_JITTER) for _ in range(self.accumulate)]
            phases = _varied(lane.iteration, factor, gaps)
            if phases[-1].load is None:  # the data come first
                phases = [phases[-1], *phases[:-1]]
            if late_s:
                phases.insert(0, WorkloadPhase("data", "data", late_s, None, 0.0, 0.0))
            works.append(self._bucketed(phases, transfer))
        count = len(self._lanes)
        self.exchanges.append(Exchange(
            len(self.exchanges), [float("inf")] * count, [[0.0] * self.buckets for _ in range(count)]
        ))
        return works

    def _bucketed(self, phases: list[WorkloadPhase], transfer: WorkloadPhase) -> list[WorkloadPhase]:
        """The phases of an iteration with its all-reduce, and its last pass in parts."""
        last = max(
            place for place, phase in enumerate(phases)
            if phase.load is not None and phase.kind != "optimizer"
        )
        if not last:
            half = replace(phases[0], time_s=phases[0].time_s / 2)
            phases, last = [half, half, *phases[1:]], 1
        backward = phases[last]
        parts = [
            replace(backward, name=f"{_BUCKET}{number}", time_s=backward.time_s / self.buckets)
            for number in range(self.buckets)
        ]
        return [replace(phases[0], name=_BEGIN), *phases[1:last], *parts, transfer, *phases[last + 1:]]

    def _start(self, phases: Sequence[Sequence[WorkloadPhase]]) -> float:
        soonest_s = self._soonest()
        with self.machine.state.writing():
            for lane in self._lanes:
                lane.survey()
            tracks = [
                _Track.of(lane, max(lane.end_s, soonest_s), work)
                for lane, work in zip(self._lanes, phases, strict=True)
            ]
            self._couple(tracks, 0.0)
        return tracks[0].begin_s

    def follow(self) -> None:
        changed = [lane.changed() for lane in self._lanes]
        if any(changed):
            from_s = self._soonest()
            with self.machine.state.writing():
                self._couple([_Track.of(lane, *lane.left(from_s)) for lane in self._lanes], from_s)

    def _couple(self, tracks: Sequence[_Track], from_s: float) -> None:
        """Plan the GPUs' work with its waiting, and queue it.

        Args:
            tracks: By GPU.
            from_s: An all-reduce whose barrier was before remains as it is.
        """
        stages = list(zip(*(track.stages for track in tracks), strict=True))
        pending = self.exchanges[len(self.exchanges) + 1 - len(stages):]
        for exchange, works in zip(pending, stages[:-1], strict=True):
            for place, (track, work) in enumerate(zip(tracks, works, strict=True)):
                exchange.note(place, track.add(work), from_s)
            if exchange.barrier_s > from_s:
                exchange.end_s = self._reduced_s(exchange)
            for track, spins, transfer in zip(tracks, self._spins, self._transfers, strict=True):
                track.add_until(exchange.barrier_s, self._rng.choice(spins))
                track.add_until(exchange.end_s, transfer)
            if exchange.iteration < len(self.marks):
                self.marks[exchange.iteration] = exchange.begin_s[0]
        for track in tracks:
            track.add(track.stages[-1])
            track.lane.put(track.begin_s, track.plan, track.rows)
        self._end_s = max(lane.end_s for lane in self._lanes)

    def _reduced_s(self, exchange: Exchange) -> float:
        """End of the all-reduce."""
        slowest = max(
            operate(lane.card, Load(0.3, 0.5, 0.0), **lane.knobs(exchange.barrier_s)).stretch
            for lane in self._lanes
        )
        done_s = 0.0
        for ready_s in zip(*exchange.ready_s, strict=True):
            done_s = max(done_s, *ready_s) + self._bucket_s * slowest
        return done_s

    def _wait(self, ahead_s: float, grain_s: float = 0.0) -> None:
        # The next iteration must be queued before the first GPU is free.
        ends = [lane.end_s for lane in self._lanes]
        super()._wait(ahead_s and ahead_s + max(ends) - min(ends), grain_s)
        for exchange in self.exchanges[self._settled:]:
            if exchange.end_s > self.machine.state.now_s():
                break
            exchange.wait_energy_j = tuple(
                self.machine.true_energy_j(gpu, arrival_s, exchange.barrier_s)
                for gpu, arrival_s in zip(self.gpus, exchange.arrival_s, strict=True)
            )
            self._settled += 1


def _throttled_mhz(lane: Lane, slowdown: float) -> int:
    """The highest SM clock at which a GPU's iteration is slower by a factor, or else its lowest."""
    def iteration_s(max_mhz: int) -> float:
        limit_w = lane.card.power_limit_w[1]
        return sum(
            phase.time_s
            * operate(lane.card, phase.load, power_limit_w=limit_w, max_sm_clock_mhz=max_mhz).stretch
            for phase in lane.iteration
        )

    clocks = lane.card.sm_clocks_mhz
    slow_s = slowdown * iteration_s(clocks[0])
    return next((clock for clock in clocks if iteration_s(clock) >= slow_s), clocks[-1])
