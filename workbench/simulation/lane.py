"""One GPU of a simulated job: its share of the card, its phases, and its work queue."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from dataclasses import replace

from ..errors import SimulationError
from . import activity, catalogue, tenants
from .catalogue import Workload, WorkloadPhase
from .machine import Machine, idle
from .physics import operate
from .tenants import Demand, Planned, TimelineStretch

_POWER_CAP, _USER_CLOCKS, _THERMAL = 0x4, 0x2, 0x20
_FIXED = ("checkpoint", "wait", "transfer")  # phases that no other job lengthens
_claims = itertools.count(1)


class OutOfMemory(RuntimeError):
    """The simulated GPU does not have the memory for this batch size, alone or with its present jobs."""


class Lane:
    """One GPU of a job: its phases and its work queue."""

    def __init__(self, machine: Machine, gpu: int, workload: Workload, batch_size: int) -> None:
        self.machine, self.gpu, self.card = machine, gpu, machine.card(gpu)
        self.iteration = catalogue.iteration(self.card, workload, batch_size)
        batches = workload.evaluation_batches(batch_size)
        self.evaluation = catalogue.evaluation(self.card, workload, batch_size) * batches
        self.memory_bytes = workload.memory_bytes(batch_size)
        self.title = f"{workload.title} at batch size {batch_size}"
        self._counts = machine.state.card(gpu, "architecture") >= activity.SINCE
        if not catalogue.fits(self.card, workload, batch_size):
            raise OutOfMemory(
                f"{self.title} needs {self.memory_bytes / 2**30:.1f} GiB and "
                f"{self.card.name} has {self.card.memory_bytes / 2**30:.0f} GiB; take a smaller batch size"
            )
        self._queued: list[tuple[float, float, WorkloadPhase]] = []  # start, end, phase
        self._generation = machine.state.generation(gpu)
        self._slot: int | None = None
        self._token = 0
        self._rows: list[TimelineStretch] = []  # of the timeline, as published to other jobs
        self._until_s = -tenants.RESIDENT_S
        self._crowd: tuple[tuple[int, float], ...] = ()  # other jobs here: token and utilisation
        self._stretch = 1.0
        self._demands: dict[tuple[float | int | None, ...], Demand] = {}
        self.throttle_mhz = 0  # the highest SM clock that the temperature permits; 0: any

    # share of the card

    def check_room(self) -> None:
        """Whether the job fits together with the present jobs. Raises OutOfMemory."""
        there = tenants.present(self.machine.state, self.gpu)
        if self._slot is not None:
            raise SimulationError(f"this job runs on simulated GPU {self.gpu} already; create another one")
        used = sum(tenant.memory_bytes for tenant in there)
        if there and used + self.memory_bytes > catalogue.usable_bytes(self.card):
            held = [f"process {tenant.pid} holds {tenant.memory_bytes / 2**30:.1f} GiB" for tenant in there]
            free = max(0, catalogue.usable_bytes(self.card) - used) / 2**30
            raise OutOfMemory(
                f"{self.title} needs {self.memory_bytes / 2**30:.1f} GiB, and "
                f"{free:.1f} of {self.card.memory_bytes / 2**30:.0f} GiB of {self.card.name} are free "
                f"({', '.join(held)}); take a smaller batch size, or wait until a job ends"
            )

    def enter(self) -> None:
        state = self.machine.state
        self._token = os.getpid() << 32 | next(_claims) & 0xFFFFFFFF
        self._rows, self._until_s, self._queued = [], -tenants.RESIDENT_S, []
        self._slot = tenants.join(
            state, self.gpu, self._token, self.memory_bytes, self._demand(self.knobs(state.now_s()))
        )
        self._book()

    def leave(self) -> None:
        state = self.machine.state
        with state.writing():
            if self._slot is not None:
                tenants.leave(state, self.gpu, self._slot)
            self._slot = None
            self._book()
            now_s = state.now_s()
            self._publish_all(now_s, self._others(now_s - tenants.RESIDENT_S, rows=True))

    def _book(self) -> None:
        """The driver's view of processes: the memory of all jobs of each."""
        state = self.machine.state
        there = tenants.present(state, self.gpu)
        mine = [tenant.memory_bytes for tenant in there if tenant.pid == os.getpid()]
        state.set_process(self.gpu, os.getpid(), sum(mine) if mine else None)
        state.set_control(self.gpu, "load_pid", there[0].pid if there else 0)

    def _others(self, since_s: float, *, rows: bool = False) -> list[tenants.Tenant]:
        """Jobs that had work queued at a time or later."""
        if self._slot is not None and tenants.alone(self.machine.state, self.gpu):
            return []
        there = tenants.present(self.machine.state, self.gpu, rows=rows)
        return [tenant for tenant in there if tenant.slot != self._slot and tenant.until_s > since_s]

    def survey(self, *, again: bool = False) -> bool:
        """Record the other jobs here and this job's slowdown by them (`again`: its own demand has changed).
        Returns whether they have changed.
        """
        if not self._crowd and tenants.alone(self.machine.state, self.gpu):
            return False
        now_s = self.machine.state.now_s()
        others = self._others(now_s - tenants.grace_s(self.machine.state))
        crowd = tuple((tenant.token, round(tenant.demand.utilisation, 6)) for tenant in others)
        changed, self._crowd = crowd != self._crowd, crowd
        if changed or again:
            self._stretch = tenants.stretch(
                [self._demand(self.knobs(now_s)).utilisation, *(used for _, used in crowd)]
            )
        return changed

    def _demand(self, knobs: dict[str, float | int | None]) -> Demand:
        """The load of an iteration on the card at a setting."""
        key = tuple(knobs.values())
        if key not in self._demands:
            resident_w = operate(self.card, None, **knobs).power_w
            points = [(phase, operate(self.card, phase.load, **knobs)) for phase in self.iteration]
            spans = [phase.time_s * point.stretch for phase, point in points]
            whole_s = sum(spans) or 1.0
            over_w = [max(0.0, point.power_w - resident_w) for _, point in points]
            busy_s = sum(span_s * phase.utilisation for span_s, (phase, _) in zip(spans, points, strict=True))
            mean_w = sum(span_s * each_w for span_s, each_w in zip(spans, over_w, strict=True)) / whole_s
            self._demands[key] = Demand(busy_s / whole_s, mean_w, max(over_w, default=0.0), resident_w)
        return self._demands[key]

    # work queue

    def changed(self) -> bool:
        """Whether the setting or the set of jobs on the card has changed since the last call."""
        generation = self.machine.state.generation(self.gpu)
        changed, self._generation = generation != self._generation, generation
        return self.survey(again=changed) or changed

    def queue(self, start_s: float, phases: Sequence[WorkloadPhase]) -> float:
        """Append phases at `start_s`; returns their end."""
        with self.machine.state.writing():
            self.survey()
            plan, rows, end_s = self.plan(start_s, phases)
            self.put(start_s, plan, rows)
        return end_s

    @property
    def end_s(self) -> float:
        """End of the queued work."""
        return self._until_s

    def put(
        self, start_s: float, plan: Sequence[Planned], rows: Sequence[tuple[float, float, WorkloadPhase]]
    ) -> None:
        """Replace all queued work after `start_s` by a result of `plan`."""
        now_s = self.machine.state.now_s()
        self._queued = [row for row in self._queued if now_s < row[1] <= start_s] + [*rows]
        self._publish(start_s, plan)

    def requeue(self, from_s: float) -> float:
        """Plan the remaining work after `from_s` again, under the present setting and with the present jobs.
        """
        begin_s, left = self.left(from_s)
        with self.machine.state.writing():
            plan, rows, end_s = self.plan(begin_s, left)
            self.put(begin_s, plan, rows)
        return end_s

    def left(self, from_s: float) -> tuple[float, list[WorkloadPhase]]:
        """Start and phases of the remaining work after `from_s`."""
        left = [
            (replace(phase, time_s=phase.time_s * (end_s - max(from_s, start_s)) / (end_s - start_s)))
            for start_s, end_s, phase in self._queued if end_s > from_s
        ]
        starts = [start_s for start_s, end_s, _ in self._queued if end_s > from_s]
        return max(from_s, starts[0]) if starts else from_s, left

    def _publish(self, start_s: float, plan: Sequence[Planned]) -> None:
        # If this process dies, the job's gap power must end: a minute of it, then idle.
        state = self.machine.state
        knobs = self.knobs(start_s)
        resident = operate(self.card, None, **knobs)
        pause = (
            tenants.RESIDENT_S, resident.power_w, resident.sm_clock_mhz, resident.mem_clock_mhz, 0.0, 0.0, 0,
        )
        self._note(start_s, plan, TimelineStretch(self._until_s, *pause[1:]))
        if self._slot is not None:
            tenants.write(
                state, self.gpu, self._slot, self._token, self.memory_bytes, self._demand(knobs), self._rows,
                self._until_s,
            )
        if self._others(start_s - tenants.RESIDENT_S):
            self._publish_all(start_s, tenants.present(state, self.gpu, rows=True))
        else:
            state.publish(self.gpu, start_s, [*plan, pause], idle(self.card))

    def _publish_all(self, start_s: float, jobs: Sequence[tenants.Tenant]) -> None:
        after = idle(self.card)
        self.machine.state.publish(self.gpu, start_s, tenants.compose(jobs, start_s, after), after)

    def _note(self, start_s: float, plan: Sequence[Planned], waiting: TimelineStretch) -> None:
        """Write a plan into the published rows, and replace all rows after its start."""
        now_s = self.machine.state.now_s()
        kept = [row for row in self._rows if row.start_s < start_s]
        passed = max((number for number, row in enumerate(kept) if row.start_s <= now_s), default=0)
        self._rows = kept[passed:]
        if self._rows and self._until_s < start_s and plan:
            self._rows.append(waiting)  # the host was late: nothing ran in between
        for span_s, *values in plan:
            self._rows.append(TimelineStretch(start_s, *values))  # type: ignore[arg-type]
            start_s += span_s
        self._until_s = start_s if plan else min(self._until_s, start_s)

    def knobs(self, at_s: float) -> dict[str, float | int | None]:
        """The active setting at a time, as arguments of `operate`."""
        limit_w, sm_min, sm_max, _, mem_max = self.machine.state.effective(self.gpu, at_s)
        if hot := self.throttle_mhz:
            sm_min, sm_max = min(sm_min, hot), min(sm_max or hot, hot)
        return {
            "power_limit_w": limit_w, "min_sm_clock_mhz": sm_min or None, "max_sm_clock_mhz": sm_max or None,
            "mem_clock_mhz": mem_max or None,
        }

    def plan(
        self, at_s: float, phases: Sequence[WorkloadPhase]
    ) -> tuple[list[Planned], list[tuple[float, float, WorkloadPhase]], float]:
        """Phases as timeline segments from `at_s` on, split where a setting takes effect."""
        plan: list[Planned] = []
        rows: list[tuple[float, float, WorkloadPhase]] = []
        change_s = self.machine.state.control(self.gpu, "effective_from_s")
        for phase in phases:
            left = 1.0
            while left > 1e-12:
                knobs = self.knobs(at_s)
                point = operate(self.card, phase.load, **knobs)
                shared = 1.0 if phase.kind in _FIXED else self._stretch
                whole_s = phase.time_s * point.stretch * shared
                span_s = left * whole_s
                if at_s < change_s < at_s + span_s:
                    span_s = change_s - at_s
                held = knobs["max_sm_clock_mhz"]
                reasons = (
                    _POWER_CAP if point.capped else _THERMAL if held == self.throttle_mhz
                    else _USER_CLOCKS if held else 0
                )
                if self._counts:
                    reasons |= activity.packed(self.card, phase.load, point)
                plan.append((span_s, point.power_w, point.sm_clock_mhz, point.mem_clock_mhz,
                             phase.utilisation, phase.memory_utilisation, reasons))
                part = replace(phase, time_s=phase.time_s * span_s / whole_s) if span_s < whole_s else phase
                rows.append((at_s, at_s + span_s, part))
                left -= span_s / whole_s
                at_s += span_s
        return plan, rows, at_s
